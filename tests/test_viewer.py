"""The summary viewer: one JSON document or two as an outline, as tables and as text; what cannot be shown is said."""

import json
import os
import subprocess
import sys
import time
import unicodedata
from copy import deepcopy
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len
from textual.app import App

from interlock.console.apps.viewer import Viewer
from interlock.console.look import Look
from interlock.console.screens.summary import SummaryScreen
from interlock.console.summary import detail, tables
from interlock.console.summary.document import Document, header, load, meaning, parse, plain, told, top
from interlock.engine.errors import ExitCode, UsageError
from interlock.widgets import table, tree
from interlock.widgets.nodes import No, Node, children, differences, find, human, inside, walk
from interlock.widgets.outline import Outline
from interlock.widgets.text import plain as texts
from tests.builders import environment, interlock
from tests.pty_harness import on_terminal

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


def harmless(line):
    """Whether no sign of a line could steer a terminal."""
    return all(unicodedata.category(sign) not in ("Cc", "Cf", "Cs", "Zl", "Zp") for sign in line)


# One document


@given(values)
def test_every_value_of_any_json_has_one_place_with_its_own_path(value):
    nodes = list(walk(Node((), value)))
    paths = [node.path for node in nodes]
    assert len(set(paths)) == len(paths)
    assert all(node.mark == "" for node in nodes)
    for node in nodes:
        found = value
        for step in node.steps:
            found = found[step]
        assert found is node.value


@pytest.mark.parametrize(
    ("steps", "path"),
    [
        ((), "$"),
        (("passes", 1, "peak"), "$.passes[1].peak"),
        (("versions", "sentence-transformers"), '$.versions["sentence-transformers"]'),
        (("a b", 'x"y', "\x1b", "é"), '$["a b"]["x\\"y"]["\\u001b"]["\\u00e9"]'),
        (("passes", ~2), "$.passes[2]"),
    ],
)
def test_a_place_is_written_as_a_json_path_in_ascii(steps, path):
    assert Node(steps, None).path == path


@given(objects, st.integers(0, 30))
def test_a_folded_outline_lists_the_opened_nodes_in_order(value, line):
    outline = Outline(Node((), value))
    outline.chosen = line % len(outline.nodes)
    chosen = outline.node.steps
    outline.fold()
    outline.inward()
    outline.outward()
    outline.move(line)
    shown = {node.steps for node in outline.nodes}
    expected = [node.steps for node in walk(outline.nodes[0], lambda node: node.steps in outline.opened)]
    assert [node.steps for node in outline.nodes] == expected
    assert outline.opened <= shown and chosen in shown
    assert 0 <= outline.chosen < len(outline.nodes)


@given(values)
def test_a_revealed_place_is_chosen_and_nothing_else_is_opened(value):
    *_, last = walk(Node((), value))
    outline = Outline(Node((), value))
    assert outline.reveal(last.steps)
    assert outline.node.steps == last.steps
    assert outline.opened <= {last.steps[:depth] for depth in range(len(last.steps))} | {()}
    assert not outline.reveal((*last.steps, "no such place"))


def test_the_choice_moves_to_a_branch_that_closes_above_it():
    outline = Outline(Node((), a_summary()))
    outline.reveal(("collections", 0, "passes", 1, "model"))
    for _ in range(3):
        outline.outward()
    assert outline.node.steps == ("collections", 0, "passes")
    outline.close(0)
    assert outline.chosen == 0 and len(outline.nodes) == 1


@given(objects, st.text(min_size=1, max_size=3))
def test_a_search_finds_exactly_the_keys_and_values_that_hold_the_text(value, text):
    wanted = text.casefold()

    def holds(node):
        key = node.steps[-1] if node.steps and isinstance(node.steps[-1], str) else ""
        value = node.value
        shown = value if isinstance(value, str) else "" if isinstance(value, dict | list) else json.dumps(value)
        return wanted in key.casefold() or wanted in shown.casefold()

    assert find(Node((), value), text) == [node.steps for node in walk(Node((), value)) if holds(node)]


@pytest.mark.parametrize(
    ("steps", "value", "said"),
    [
        (("budget_bytes",), 12 * GIB, "12.0 GiB"),
        (("peak", "occupied"), 3 * GIB, "3.0 GiB"),
        (("budgets", "cuda:0"), GIB, "1.0 GiB"),
        (("bytes",), 12, ""),
        (("seconds",), 702.1, "11:42"),
        (("held_seconds",), 59, ""),
        (("seconds",), None, ""),
        (("rows",), 10**9, ""),
        (("bytes",), True, ""),
    ],
)
def test_bytes_and_seconds_are_shown_by_the_name_of_their_field(steps, value, said):
    assert human(steps, value) == said


@pytest.mark.parametrize(
    ("steps", "said"),
    [
        (("seconds",), "sum over all sessions; null if the device is simulated"),
        (("collections", 0, "passes", 2, "rows"), "distinct texts encoded in this run"),
        (("collections", 0, "leases", 1, "receipts", 0, "lost"), "the device was lost"),
        (("configuration", "roster", "origin"), "default, file, environment, flag, Python"),
        (("run_id",), ""),
        (("no", "such", 3, "field"), ""),
        ((), ""),
    ],
)
def test_the_schema_says_what_a_place_means(steps, said):
    assert meaning(steps).startswith(said) and bool(meaning(steps)) == bool(said)


# Two documents


@given(values)
def test_a_document_equals_itself(value):
    assert differences(Node((), value, deepcopy(value))) == []


@given(documents, documents)
@settings(max_examples=100)
def test_two_documents_differ_exactly_where_it_is_told(one, other):
    node = Node((), one, other)
    found = differences(node)
    assert bool(found) == (json.dumps(one, sort_keys=True) != json.dumps(other, sort_keys=True)) or _only_moved(
        one, other
    )
    assert len({each.steps for each in found}) == len(found)
    assert all(each.mark in "+-~" and each.mark for each in found)
    back = differences(Node((), other, one))
    assert len(back) == len(found)
    assert inside(found).get((), len(found)) == len(found) or node.mark


def _only_moved(one, other):
    """Equal as numbers (1 and 1.0, 0.0 and -0.0), or lists whose named items only stand in another order."""
    return not differences(Node((), one, other))


@given(documents, documents)
@settings(max_examples=50)
def test_the_outline_reveals_every_difference(one, other):
    node = Node((), one, other)
    outline = Outline(node)
    for each in differences(node):
        assert outline.reveal(each.steps)
        assert outline.node.mark == each.mark


def test_true_differs_from_one_and_one_equals_one_point_zero():
    assert [
        each.mark for each in differences(Node((), {"a": True, "b": 1, "c": 0}, {"a": 1, "b": 1.0, "c": False}))
    ] == [
        "~",
        "~",
    ]


def test_named_things_in_lists_are_compared_by_name():
    found = differences(Node((), a_summary(), changed()))
    assert [f"{each.mark} {each.path}" for each in found] == [
        "~ $.run_id",
        "~ $.collections[0].passes[1].batches",
        "+ $.collections[0].passes[0]",
        "- $.collections[0].mitigations[0]",
    ]
    assert told(found[1]) == "~ $.collections[0].passes[1].batches: 512 -> 511"
    assert told(found[2]).startswith("+ $.collections[0].passes[0]: {12} bge-m3")
    assert inside(found)[("collections", 0)] == 3


@pytest.mark.parametrize(
    ("one", "other", "marks"),
    [
        ([1, 2, 3], [1, 2], "-"),
        ([1], [2, 3], "~+"),
        ([{"name": "a"}, {"name": "a"}], [{"name": "a"}], "-"),
        ([{"name": "a"}, {"name": "b"}], [{"name": "b"}, {"name": "a"}], ""),
        ({"a": {"b": 1}}, {"a": [1]}, "~"),
        ({"a": {}}, {"a": None}, "~"),
        ({"a": None}, {}, "-"),
    ],
)
def test_every_change_in_a_list_or_kind_is_one_sign(one, other, marks):
    assert "".join(each.mark for each in differences(Node((), one, other))) == marks


def test_a_thousand_levels_are_walked_found_and_compared():
    def deep(bottom):
        for _ in range(5000):
            bottom = [bottom]
        return bottom

    assert len(find(Node((), deep("x")), "x")) == 1
    assert len(differences(Node((), deep(1), deep(2)))) == 1


# Rows


@given(documents, st.one_of(st.none(), documents), st.integers(0, 130), st.integers(1, 30), st.booleans())
@settings(max_examples=40)
def test_drawn_rows_are_exact_and_hold_no_control_character(one, other, width, height, ascii):
    node = Node((), one, No.OTHER if other is None else other)
    found = [] if other is None else differences(node)
    outline = Outline(node)
    for line in range(min(6, len(outline.nodes))):
        outline.open(line)
    counts = None if other is None else inside(found)
    drawn = tree.rows(outline, 0, width, height, differing=counts, ascii=ascii)
    assert len(drawn) == min(height, len(outline.nodes))
    for each in outline.nodes[:8]:
        siblings = list(children(node))[:2]
        drawn += detail.rows(Document(one), each, siblings, found, width, ascii=ascii)
    for line in texts(drawn):
        assert cell_len(line) == width
        assert harmless(line)


@given(
    st.lists(st.tuples(st.sampled_from(HOSTILE), st.sampled_from(["1", "2,048", "-", "3.0 GiB"]), st.text())),
    st.integers(0, 90),
)
def test_a_table_of_any_cells_fits(cells, width):
    drawn = table.rows(["texts", "numbers", "anything"], cells, width, of=len(cells) + 5)
    assert all(cell_len(line) == width for line in texts(drawn))


def test_texts_give_way_before_numbers_at_80_columns_and_gaps_are_named():
    found = tables.table_of(("collections", 0, "passes"), a_summary()["collections"][0]["passes"])
    assert texts(table.rows(found.heads, found.rows, 78)) == [
        f"{line:<78}"
        for line in [
            "pass  model       status     batches   rows  reused  tokens  seconds  rows/s",
            "   1  bge-small   completed      512  4,096       0  90,000     2:11    31.1",
            "   2  minilm-l6   completed      512  4,096       0  90,000     2:11    31.1",
            "   3  mpnet-base  completed      512  4,096       0  90,000     2:11    31.1",
            "no room for: device, truncated",
        ]
    ]


def test_ascii_draws_no_sign_beyond_it():
    summary = a_summary(reason="x" * 9000, run_id="y" * 900)
    outline = Outline(Node((), summary, changed()))
    outline.open(1)
    drawn = tree.rows(outline, 0, 40, 40, differing=inside(differences(outline.nodes[0])), ascii=True)
    for node in outline.nodes:
        drawn += detail.rows(Document(summary), node, [], [], 40, ascii=True)
    assert all(line.isascii() for line in texts(drawn))


def test_an_empty_list_says_that_it_holds_nothing():
    data = a_summary() | {"controls": []}
    node = next(each for each in walk(top(Document(data))) if each.steps == ("controls",))
    drawn = texts(detail.rows(Document(data), node, [], [], 60))
    assert any("list of 0" in line for line in drawn)


def test_the_same_field_of_each_item_is_shown_beside_the_chosen_one():
    node = top(Document(a_summary()))
    steps = ("collections", 0, "leases", 1, "budget_bytes")
    outline = Outline(node)
    outline.reveal(steps)
    siblings = [each for each in outline.nodes if len(each.steps) == 4 and each.steps[:3] == steps[:3]]
    drawn = [line.rstrip() for line in texts(detail.rows(Document(a_summary()), outline.node, siblings, [], 60))]
    assert drawn[0] == "12884901888  (12.0 GiB)"
    assert drawn[-2] == "1 minilm-l6               12884901888  (12.0 GiB)"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("exports/a.npy", "exports/a.npy"),
        ("two words", "two words"),
        ("rm -rf /\n", '"rm -rf /\\n"'),
        ("\x1b[2J", '"\\u001b[2J"'),
        (None, "null"),
        ({"a": [1]}, '{\n  "a": [\n    1\n  ]\n}'),
    ],
)
def test_a_copied_value_cannot_act_in_a_terminal(value, text):
    assert detail.copied(value) == text


# Header and plain text


def test_the_heading_says_how_the_run_ended_and_what_was_done():
    said = [fact.text for fact in header(Document(a_summary()))]
    assert said == [
        "SUMMARY", "20261121-120431", "completed", "exit 0", "11:42", "3 passes", "1,536 batches", "1 mitigation",
        "2026-11-21 12:04:31",
    ]  # fmt: skip


@pytest.mark.parametrize(("kind", "word"), [("sim", "SIMULATED"), ("scripted", "SCRIPTED")])
def test_the_heading_says_when_devices_are_simulated(kind, word):
    data = a_summary(device_kind=kind, seconds=None)
    assert word in [fact.text for fact in header(Document(data))]
    assert word in plain(Document(data)).splitlines()[0]


@given(documents, st.one_of(st.none(), documents))
@settings(max_examples=50)
def test_a_summary_as_text_holds_no_control_character(one, other):
    said = plain(Document(one, "a"), None if other is None else Document(other, "b"))
    assert all(harmless(line) for line in said.split("\n"))


def test_the_lists_of_a_summary_are_tables_as_text():
    said = plain(Document(a_summary()))
    assert [line for line in said.splitlines() if line in tables.OVERVIEW] == [
        "collections", "passes", "leases", "mitigations", "devices", "exports",
    ]  # fmt: skip
    assert "   2    119  split  cuda:0  out of memory  halved    32     1.5" in said
    assert "L001   " in said and "13.0 GiB" in said


def test_rows_of_two_collections_say_whose_and_a_shared_lease_stands_once():
    data = a_summary()
    data["collections"].append(data["collections"][0] | {"name": "More"})
    found = {each.title: each for each in tables.overview(data)}
    assert [row[0] for row in found["passes"].rows] == ["Docs"] * 3 + ["More"] * 3
    assert found["leases"].count == 3


# Bad input

BAD = {
    "empty": (b"", "empty file"),
    "blank": (b" \n\n", "empty file"),
    "cut": (b'{"schema_version": "1", "run_id": ', "line 1 column"),
    "text": (b"hello", "not JSON"),
    "NaN": (b'{"schema_version": "1", "seconds": NaN}', "contains NaN"),
    "infinity": (b'{"schema_version": "1", "seconds": -Infinity}', "contains -Infinity"),
    "later": (b'{"schema_version": "2"}', 'schema_version is "2"'),
    "number": (b'{"schema_version": 1}', "schema_version is 1"),
    "foreign": (b'{"a": 1}', "without a schema_version"),
    "list": (b"[1, 2]", "without a schema_version"),
    "binary": (b"\x80\x81\xff\xfe{", "not UTF-8 text"),
    "deep": (b'{"schema_version": "1", "a": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "nested too deeply"),
    "digits": (b'{"schema_version": "1", "a": ' + b"1" * 5000 + b"}", "digits"),
}


@pytest.mark.parametrize("name", BAD)
def test_reading_a_bad_file_names_it_and_says_why(tmp_path, name):
    data, why = BAD[name]
    (tmp_path / "summary.json").write_bytes(data)
    with pytest.raises(UsageError, match=r"summary\.json") as caught:
        load(tmp_path)
    assert why in str(caught.value)


@given(st.binary(max_size=60))
def test_any_bytes_are_a_summary_or_a_usage_error(data):
    try:
        assert parse(data, "x")["schema_version"] == "1"
    except UsageError:
        pass


def view(*args, cwd=None):
    return interlock("view", *args, cwd=cwd, check=None)


@pytest.mark.parametrize("name", ["empty", "cut", "NaN", "later", "foreign"])
def test_viewing_a_bad_file_exits_2_and_says_why_on_stderr(tmp_path, name):
    (file := tmp_path / "s.json").write_bytes(BAD[name][0])
    done = view(file)
    assert (done.returncode, done.stdout) == (ExitCode.USAGE, "")
    assert BAD[name][1] in done.stderr and "Traceback" not in done.stderr


def test_viewing_a_path_without_a_summary_says_what_to_do_and_exits_2(tmp_path):
    (loop := tmp_path / "loop").symlink_to(loop)
    (run := tmp_path / "runs" / "r").mkdir(parents=True)
    (run / "journal.jsonl").touch()
    (whole := tmp_path / "done" / "r").mkdir(parents=True)
    (whole / "summary.json").write_text(json.dumps(a_summary()))
    (empty := tmp_path / "nothing").mkdir()
    cases = {
        tmp_path / "missing.json": "does not exist",
        tmp_path / "missing\x1b[2J": "does not exist",
        loop: "does not exist",
        run: "interlock watch",
        whole.parent: f"has 1 run: name one, such as {whole}",
        empty: "name a run directory",
        Path("/dev/null"): "not a file",
        whole / "summary.json" / "x": "",
    }
    for path, why in cases.items():
        done = view(path)
        assert (done.returncode, done.stdout) == (ExitCode.USAGE, ""), path
        assert why in done.stderr and done.stderr.startswith("interlock: ")
        assert "\x1b" not in done.stderr and "Traceback" not in done.stderr
    assert view(whole, tmp_path / "missing.json").returncode == ExitCode.USAGE


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_viewing_a_file_without_permission_says_so(tmp_path):
    (file := tmp_path / "s.json").write_text("{}")
    file.chmod(0)
    done = view(file)
    assert done.returncode == ExitCode.USAGE and "permissions" in done.stderr


def test_a_disk_error_is_a_message(tmp_path, monkeypatch):
    (file := tmp_path / "s.json").write_text("{}")

    def refuse(self):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "read_bytes", refuse)
    with pytest.raises(UsageError, match=r"s\.json: Permission denied; check the path and its permissions"):
        load(file)


def test_without_a_terminal_the_summary_is_text_and_no_screen_is_loaded(tmp_path):
    (tmp_path / "summary.json").write_text(json.dumps(a_summary()))
    (tmp_path / "b.json").write_text(json.dumps(changed()))
    code = (
        "import sys; from interlock.console.main import main; code = main(sys.argv[1:]);"
        "print(*[m for m in ('textual', 'rich', 'torch') if m in sys.modules], file=sys.stderr); sys.exit(code)"
    )
    for args in ([tmp_path], [tmp_path, "b.json"]):
        line = [sys.executable, "-c", code, "view", *map(str, args)]
        done = subprocess.run(line, env=environment(), cwd=tmp_path, capture_output=True, text=True)
        assert (done.returncode, done.stderr.strip()) == (0, "")
        assert "\x1b" not in done.stdout and "20261121-120431  completed" in done.stdout
    assert "4 differences" in done.stdout
    assert "~ $.collections[0].passes[1].batches: 512 -> 511" in done.stdout


# On a terminal


@pytest.fixture
def run(tmp_path):
    (tmp_path / "summary.json").write_text(json.dumps(a_summary()))
    return tmp_path


def test_on_a_terminal_the_screen_opens_and_q_leaves_it(run):
    with on_terminal("view", run, cwd=run) as terminal:
        terminal.wait_for("q Quit")
        assert "20261121-120431 completed" in terminal.screen().text
        terminal.press("q")
        assert terminal.wait() == 0
        assert b"\x1b[?1049h" in terminal.output


def test_plain_on_a_terminal_is_text(run):
    with on_terminal("view", run, "--plain", columns=200, rows=60, cwd=run) as terminal:
        assert terminal.wait() == 0
        terminal.wait_for("3 passes")
        assert b"\x1b" not in terminal.output


@pytest.fixture(params=[(80, 24), (120, 40)], ids=["80x24", "120x40"])
def size(request):
    return request.param


async def typed(pilot, key, text):
    """Press a key that asks for a line, and give it one."""
    await pilot.press(key)
    pilot.app.screen.query_one("Input").value = text
    await pilot.press("enter")


async def shown(pilot):
    await pilot.pause()
    await pilot.pause()
    return lines_of(pilot.app)


async def test_header_tree_overview_and_keys_stand_on_the_screen(size):
    app = Viewer(Document(a_summary(), "run/summary.json", 12_000))
    async with app.run_test(size=size) as pilot:
        lines = await shown(pilot)
    assert len(lines) == size[1] and all(cell_len(line) == size[0] for line in lines)
    for word in ("20261121-120431", "completed", "exit 0", "11:42", "3 passes", "1,536 batches", "1 mitigation"):
        assert word in lines[0]
    assert ">▼ summary.json  11.7 KiB {11}" in lines[2]
    assert any("collection  status     files  chunks" in line for line in lines)
    assert all(
        word in lines[-1] for word in ("? Help", "/ Find", "n Next", "enter Fold", "y Copy", "esc Back", "q Quit")
    )
    beside = lines[1].count("╭") == 2
    assert beside == (size[0] == 120)


async def test_keys_open_and_close_branches_and_the_table_follows(size):
    app = Viewer(Document(a_summary()))
    async with app.run_test(size=size) as pilot:
        screen = app.screen
        before = len(screen._outline.nodes)
        await typed(pilot, "slash", "passes")
        assert screen._outline.node.path == "$.collections[0].passes"
        lines = await shown(pilot)
        assert any("pass  model       status" in line for line in lines)
        await pilot.press("enter")
        assert len(screen._outline.nodes) == before + 3
        await pilot.press("l", "l", "j", "j")
        assert screen._outline.node.path == "$.collections[0].passes[0].model"
        assert any("same for each" in line for line in await shown(pilot))
        await pilot.press("h", "h", "h")
        assert screen._outline.node.path == "$.collections[0].passes"
        await pilot.press("left")
        assert len(screen._outline.nodes) == before
        await pilot.press("end", "up", "pageup", "home", "k")
        assert screen._outline.chosen == 0
        await pilot.press("space")
        assert len(screen._outline.nodes) == 1


async def test_a_move_paints_lines_of_the_tree_and_never_all_of_it():
    app = Viewer(Document(a_summary()))
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.pause()
        painted, refresh = [], app.screen._tree.refresh

        def counted(*regions, **more):
            painted.append(regions)
            return refresh(*regions, **more)

        app.screen._tree.refresh = counted
        await pilot.press("j")
        await pilot.pause()
        assert painted and all(painted)


async def test_n_and_shift_n_walk_round_the_matches_and_escape_ends_it(size):
    app = Viewer(Document(a_summary()))
    async with app.run_test(size=size) as pilot:
        screen = app.screen
        await typed(pilot, "slash", "BATCHES")
        assert screen._outline.node.path == "$.collections[0].passes[0].batches"
        assert any("/BATCHES 1 of 3" in line for line in await shown(pilot))
        await pilot.press("n", "n")
        assert screen._outline.node.path == "$.collections[0].passes[2].batches"
        await pilot.press("n", "N")
        assert screen._outline.node.path == "$.collections[0].passes[2].batches"
        await typed(pilot, "slash", "nowhere[/]")
        assert any("no match for" in line for line in await shown(pilot))
        await pilot.press("n")
        assert any("nothing to step through" in line for line in await shown(pilot))
        await pilot.press("slash", "escape", "escape")
        assert any("q leaves" in line for line in await shown(pilot))


async def test_copying_puts_path_and_value_on_the_clipboard(size):
    app = Viewer(Document(a_summary(reason="x" * 200_000)))
    async with app.run_test(size=size) as pilot:
        await typed(pilot, "slash", "minilm")
        await pilot.press("y")
        assert app.clipboard == "$.collections[0].passes[1].model"
        await pilot.press("Y")
        assert app.clipboard == "minilm-l6"
        assert any("copied the value: minilm-l6" in line for line in await shown(pilot))
        await typed(pilot, "slash", "xxx")
        await pilot.press("Y")
        assert any("too large for a terminal's clipboard" in line for line in await shown(pilot))
        assert app.clipboard == "minilm-l6"


async def test_a_second_file_is_compared_and_n_walks_the_differences(tmp_path, size):
    (first := tmp_path / "a.json").write_text(json.dumps(a_summary()))
    (second := tmp_path / "b.json").write_text(json.dumps(changed()))
    app = Viewer(load(first))
    async with app.run_test(size=size) as pilot:
        await typed(pilot, "o", str(second))
        lines = await shown(pilot)
        assert lines[0].startswith("1 ") and lines[1].startswith("2 ")
        assert any("4 differences: - only in the first, + only in the second" in line for line in lines)
        assert any("differences 4" in line for line in lines)
        marks = []
        for _ in range(4):
            await pilot.press("n")
            marks.append((app.screen._outline.node.mark, app.screen._outline.node.path))
            lines = await shown(pilot)
        assert marks == [
            ("~", "$.run_id"),
            ("~", "$.collections[0].passes[1].batches"),
            ("+", "$.collections[0].passes[0]"),
            ("-", "$.collections[0].mitigations[0]"),
        ]
        await pilot.press("N", "N")
        lines = await shown(pilot)
        assert any("~" in line and "batches: 512 -> 511" in line for line in lines)
        assert any("second  511  (-1, -0.2%)" in line for line in lines)


async def test_a_bad_second_file_is_told_in_a_line_and_the_screen_stays(tmp_path):
    cases = {f"{tmp_path}/no": "does not exist", "~nobody-here/x": "", str(tmp_path): "no summary.json in this"}
    for name in ("empty", "NaN", "later"):
        (bad := tmp_path / f"{name}\x1b[2J[red].json").write_bytes(BAD[name][0])
        cases[str(bad)] = BAD[name][1]
    app = Viewer(Document(a_summary()))
    async with app.run_test(size=(80, 24)) as pilot:
        for path, why in cases.items():
            await typed(pilot, "o", path)
            lines = await shown(pilot)
            assert why in " ".join("".join(lines[-5:-1]).split())
            assert isinstance(app.screen, SummaryScreen) and "20261121-120431" in lines[0]
            await pilot.press("j")
            assert "Quit" in (await shown(pilot))[-1]


async def test_a_comparison_opened_at_once_is_the_same():
    app = Viewer(Document(a_summary()), Document(changed(), "b"), Look(ascii=True))
    async with app.run_test(size=(80, 24)) as pilot:
        lines = await shown(pilot)
    assert all(line.isascii() for line in lines)
    assert any("1 and 2 {11}  4 differences" in line for line in lines)


@pytest.mark.parametrize("small", [(39, 9), (60, 15), (20, 5)])
async def test_a_small_terminal_still_says_how_the_run_ended(small):
    app = Viewer(Document(a_summary()), Document(changed()))
    async with app.run_test(size=small) as pilot:
        lines = await shown(pilot)
        assert "20261121-12" in lines[0]
        await pilot.press("j", "n", "enter")
        await pilot.resize_terminal(120, 40)
        assert "Quit" in (await shown(pilot))[-1]


async def test_hostile_text_breaks_nothing_and_draws_no_escape(size):
    hostile = {f"{text[:40]}{number}": [text, {text[:20]: text, "name": text}] for number, text in enumerate(HOSTILE)}
    data = a_summary(run_id="\x1b[2J[/]", status="[red]", warnings=HOSTILE, **hostile)
    app = Viewer(Document(data, "\x1b[/].json"), Document(a_summary(**{"[/]0": 1})))
    async with app.run_test(size=size) as pilot:
        for key in (
            "end",
            "l",
            "l",
            "k",
            "l",
            "n",
            "n",
            "y",
            "Y",
            "tab",
            "j",
            "down",
            "slash",
            "escape",
            "question_mark",
        ):
            await pilot.press(key)
            lines = await shown(pilot)
            assert all(harmless(line) and cell_len(line) == size[0] for line in lines)


async def test_the_arrows_scroll_a_focused_detail_and_the_tree_stays():
    app = Viewer(Document(a_summary()))
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("tab", "j", "down", "G")
        await shown(pilot)
        assert app.screen._outline.chosen == 0
        assert app.screen._detail.scroll_offset.y > 2


async def test_clicks_and_the_wheel_choose_and_fold_lines():
    app = Viewer(Document(a_summary()))
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.pause()
        await pilot.click("#tree", offset=(6, 3))
        assert app.screen._outline.node.path == "$.run_id"
        await pilot.click("#tree", offset=(6, 1))
        await pilot.click("#tree", offset=(6, 1))
        assert len(app.screen._outline.nodes) == 1
        await pilot.click("#tree", offset=(6, 7))
        assert app.screen._outline.chosen == 0


async def test_escape_goes_back_to_the_screen_below():
    class Below(App[None]):
        left = False

        def on_mount(self):
            self.push_screen("help-me")
            self.push_screen(SummaryScreen(Document(a_summary())))

        def next_theme(self):
            return "other"

        async def action_quit(self):
            self.left = True

    from textual.screen import Screen

    Below.SCREENS = {"help-me": Screen}
    app = Below()
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("t", "q")
        assert app.left
        await typed(pilot, "slash", "run")
        await pilot.press("escape")
        assert isinstance(app.screen, SummaryScreen)
        await pilot.press("escape")
        assert not isinstance(app.screen, SummaryScreen)


async def test_help_theme_and_palette_come_when_asked_for():
    app = Viewer(Document(a_summary()))
    async with app.run_test(size=(80, 24)) as pilot:
        theme = app.theme
        await pilot.press("t")
        assert app.theme != theme
        await pilot.press("question_mark")
        page = await shown(pilot)
        assert any("copy the value" in line for line in page)
        assert not any("VRAM" in line for line in page)  # signs that only the screen of a run has
        await pilot.press("escape", "colon")
        await pilot.pause()
        await pilot.press(*"Fold", "enter")
        await pilot.pause(0.3)
        assert len(app.screen_stack) == 2
        await pilot.press("q")
    assert app.return_value is None


# Cost


def big(nodes):
    """A summary of about so many nodes, as leases of many receipts make it."""
    data = a_summary()
    each = sum(1 for _ in walk(Node((), a_lease(0, "m"))))
    data["collections"][0]["leases"] = [a_lease(number, "m") for number in range(nodes // each)]
    return data


async def test_of_14_000_nodes_only_the_visible_are_made(record_property, capsys):
    data = big(14_000)
    app = Viewer(Document({"schema_version": "1"}))
    async with app.run_test(size=(80, 24)) as pilot:
        began = time.perf_counter()
        screen = SummaryScreen(Document(data))
        await app.push_screen(screen)
        await pilot.pause()
        painted = time.perf_counter() - began
        assert len(screen._outline.nodes) < 60
        began = time.perf_counter()
        screen._outline.reveal(("collections", 0, "leases"))
        screen.action_fold()
        opened = time.perf_counter() - began
    record_property("seconds", painted + opened)
    with capsys.disabled():
        print(f"\n14k nodes: shown in {painted * 1000:.0f} ms, the longest list opened in {opened * 1000:.0f} ms")
    assert painted + opened < 1.5


def test_14_000_nodes_are_compared_and_searched_quickly(capsys):
    data = big(14_000)
    began = time.perf_counter()
    assert differences(Node((), data, deepcopy(data))) == []
    compared = time.perf_counter() - began
    began = time.perf_counter()
    assert find(Node((), data), "halved")
    found = time.perf_counter() - began
    with capsys.disabled():
        print(f"\n14k nodes: compared in {compared * 1000:.0f} ms, searched in {found * 1000:.0f} ms")
    assert compared + found < 5


def test_a_file_of_ten_mebibytes_opens_in_seconds(tmp_path, record_property, capsys):
    (file := tmp_path / "summary.json").write_text(json.dumps(big(430_000), indent=2))
    assert file.stat().st_size > 10 * 2**20
    began = time.perf_counter()
    document = load(file)
    outline = Outline(top(document))
    tree.rows(outline, 0, 78, 12)
    detail.rows(document, outline.node, [], [], 78)
    opened = time.perf_counter() - began
    record_property("seconds", opened)
    with capsys.disabled():
        print(f"\n{file.stat().st_size / 2**20:.0f} MiB: opened in {opened:.2f} s")
    assert opened < 15
