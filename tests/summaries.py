"""Summaries as runs write them and as nobody would, and what of a screen tests look at."""

import time
import unicodedata
from copy import deepcopy

from hypothesis import strategies as st

from interlock.widgets.nodes import Node, walk
from tests.builders import JOINERS

HOSTILE = ["[/]", "\x1b[2J", "\x1b]52;c;AAAA\x07", "\u202egnp", "漢字", "👩‍👩‍👧", "\ud800", "a\nb", "x" * 10_000, ""]
keys = st.one_of(st.sampled_from(HOSTILE), st.sampled_from(["a", "name", "model_pass", "bytes"]), st.text(max_size=4))
scalars = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), st.sampled_from(HOSTILE)
)
values = st.recursive(
    scalars,
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(keys, inner, max_size=4)),
    max_leaves=20,
)
objects = st.dictionaries(keys, values, max_size=5)
shapes = st.sampled_from(["collections", "passes", "leases", "mitigations", "exports", "configuration", "devices"])
documents = st.dictionaries(st.one_of(shapes, keys), values, max_size=5)

GIB = 2**30
PATIENCE = 60.0


def receipt(peak):
    memory = {"allocated": 0, "occupied": peak, "reserved": 0}
    return {"device": "cuda:0", "before": memory, "peak": memory, "after": memory, "residue_bytes": 0, "retries": 0}


def a_pass(number, model, batches=512, **more):
    counts = {"batches": batches, "rows": 4096, "rows_reused": 0, "tokens": 90_000, "truncated_rows": 3}
    timed = {"seconds": 131.5, "rows_per_second": 31.1, "reason": ""}
    return {"model_pass": number, "model": model, "status": "completed", "device": "cuda:0"} | counts | timed | more


def a_lease(number, model):
    facts = {"lease": f"L00{number}", "model_pass": number, "model": model, "devices": ["cuda:0"], "streamed": False}
    return facts | {"held_seconds": 140.0, "budget_bytes": 12 * GIB, "receipts": [receipt(13 * GIB)]}


def a_summary(**more):
    """As a run of three models over one collection writes it, as far as the viewer looks at it."""
    models = ["bge-small", "minilm-l6", "mpnet-base"]
    step = {"model_pass": 1, "batch_index": 118, "rung": "split", "device": "cuda:0", "cause": "out of memory"}
    collection = {
        "name": "Docs",
        "status": "completed",
        "files": 2,
        "chunks": 4096,
        "exports": [{"path": "exports/Docs/fused.npy", "rows": 4096, "bytes": 3 * GIB, "sha256": "ab" * 32}],
        "passes": [a_pass(number, model) for number, model in enumerate(models)],
        "leases": [a_lease(number, model) for number, model in enumerate(models)],
        "mitigations": [step | {"action": "halved", "rows": 32, "cost_seconds": 1.5}],
    }
    return {
        "schema_version": "1",
        "run_id": "20261121-120431",
        "status": "completed",
        "exit_code": 0,
        "started_at": "2026-11-21T12:04:31.000Z",
        "seconds": 702.1,
        "device_kind": "cuda",
        "devices": [{"name": "cuda:0", "label": "Tesla T4", "total_bytes": 15 * GIB}],
        "collections": [collection],
        "configuration": {"roster": {"value": [["bge-small", 1.0]], "origin": "flag --roster"}},
        "warnings": [],
    } | more


def changed(**more):
    """Another run: one model more, one model's batches changed, no mitigation."""
    other = deepcopy(a_summary(run_id="20261121-130000", **more))
    (collection,) = other["collections"]
    collection["passes"].insert(0, a_pass(3, "bge-m3"))
    collection["passes"][2]["batches"] = 511
    collection["mitigations"] = []
    return other


def lines_of(app):
    """What stands on the screen, as text."""
    return ["".join(segment.text for segment in strip) for strip in app.screen._compositor.render_strips(app.size)]


async def shows(pilot, there):
    """Wait until the screen is as it should be, or show what it is."""
    limit = time.monotonic() + PATIENCE
    while not there():
        assert time.monotonic() < limit, lines_of(pilot.app)
        await pilot.pause(0.05)


def harmless(line):
    """Whether no sign of a line could steer a terminal."""
    return all(unicodedata.category(sign) not in ("Cc", "Cf", "Cs", "Zl", "Zp") for sign in line if sign not in JOINERS)


def big(nodes):
    """A summary of about so many nodes, as leases of many receipts make it."""
    data = a_summary()
    each = sum(1 for _ in walk(Node((), a_lease(0, "m"))))
    data["collections"][0]["leases"] = [a_lease(number, "m") for number in range(nodes // each)]
    return data


BAD = {
    "empty": (b"", "empty file"),
    "blank": (b" \n\n", "empty file"),
    "cut": (b'{"schema_version": "1", "run_id": ', "line 1 column"),
    "text": (b"hello", "not JSON"),
    "NaN": (b'{"schema_version": "1", "seconds": NaN}', "contains NaN"),
    "infinity": (b'{"schema_version": "1", "seconds": -Infinity}', "contains -Infinity"),
    "later": (b'{"schema_version": "2"}', 'schema_version is "2"'),
    "number": (b'{"schema_version": 1}', "schema_version is 1"),
    "bare": (b'{"schema_version": "1"}', "JSON without run_id, status, collections, so not a summary"),
    "half": (b'{"schema_version": "1", "run_id": "a", "status": "completed"}', "JSON without collections"),
    "foreign": (b'{"a": 1}', "without a schema_version"),
    "list": (b"[1, 2]", "without a schema_version"),
    "binary": (b"\x80\x81\xff\xfe{", "not UTF-8 text"),
    "deep": (b'{"schema_version": "1", "a": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "nested too deeply"),
    "digits": (b'{"schema_version": "1", "a": ' + b"1" * 5000 + b"}", "digits"),
}
