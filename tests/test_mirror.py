"""A store says what in it is no longer in the corpus, and lets it go when that is asked for and never otherwise."""

import json
import os
import signal
import subprocess
import sys
from fnmatch import fnmatch

import numpy as np
import pytest
import qdrant_edge as edge

from interlock.engine.compute.controls import Controls
from interlock.engine.errors import ExitCode
from interlock.engine.flows.run import Run
from interlock.engine.record.events import StoreVerified, Warned
from interlock.engine.settings import load
from interlock.engine.targets import mirror
from interlock.engine.targets.embedded import Store
from interlock.engine.targets.target import deliver as put
from interlock.engine.vectors.points import Point
from tests.builders import ROOT, corpus, events_of, sentences, summary_of, toml

TEXTS = sentences(12)
GONE, KEPT = TEXTS[:4], TEXTS[4:]


@pytest.fixture
def deliver(tmp_path, tiny_a):
    """Embed these texts as the collection Docs into the one store; the run's directory."""
    config = toml(tmp_path / "c.toml", {"mine": {"source": str(tiny_a)}})

    def run(texts, **flags):
        chunks = corpus(tmp_path / "in", {"Docs": {"a_chunks.json": texts}})
        out, store = str(tmp_path / "runs"), str(tmp_path / "store")
        flags = {"roster": "mine", "out": out, "qdrant": store, "export": "", "bm25": "no", **flags}
        made = Run(chunks, load(flags, {}, config), Controls())
        assert made.go() == ExitCode.COMPLETED
        return made.directory.path

    return run


def held(store):
    """The texts in a collection of a store with the runs that found them gone, as the engine alone reads them."""
    shard = edge.EdgeShard.load(str(store / "docs"))
    records, _ = shard.scroll(edge.ScrollRequest(limit=1000, with_payload=True, with_vector=False))
    shard.close()
    return {each.payload["text"]: each.payload.get("stale_since") for each in records}


def test_points_of_chunks_that_left_are_marked_found_as_such_and_removed_when_asked(deliver, call, tmp_path):
    store, search = tmp_path / "store", ("--config", tmp_path / "c.toml", "--limit", "1")
    deliver(TEXTS)
    assert held(store) == dict.fromkeys(TEXTS)
    run = deliver(KEPT)
    (seen,), (warned,) = events_of(run, StoreVerified), events_of(run, Warned)
    assert (seen.points, seen.expected, seen.stale, seen.pruned, seen.ok) == (12, 8, 4, 0, True)
    assert "holds 4 points of chunks that are no longer in the corpus" in warned.message
    assert held(store) == dict.fromkeys(KEPT) | dict.fromkeys(GONE, run.name)

    code, out, err = call("search", store, GONE[2], *search)
    assert (code, "[left the corpus]" in out) == (0, True)
    assert "1 hit and 4 of 12 points" in err
    code, out, err = call("search", store, KEPT[2], *search)
    assert (code, "left the corpus" in out + err) == (0, False)
    assert [
        json.loads(call("search", store, text, "--json", *search)[1]).get("stale") for text in (GONE[0], KEPT[0])
    ] == [
        True,
        None,
    ]

    assert call("prune", store, "--dry-run")[:2] == (0, "docs: 4 of 12 points no longer in the corpus\n")
    assert len(held(store)) == 12
    assert call("prune", store)[:2] == (0, "docs: 4 of 12 points removed, 8 left\n")
    assert held(store) == dict.fromkeys(KEPT)
    assert call("prune", store, "--collection", "Docs", "--dry-run")[:2] == (
        0,
        "docs: 0 of 8 points no longer in the corpus\n",
    )
    for place, collection, why in (
        (store, "dosc", "no collection 'dosc' in .* (did you mean docs?): choose one of docs"),
        (store / "docs", None, "docs is one collection of a store: name .*store, with --collection docs"),
        (
            run,
            None,
            "is a run and not a store: name its --qdrant directory, or make one: `interlock export * --to-store store`",
        ),
        (tmp_path, None, "has no collection: name the --qdrant directory of a run"),
    ):
        code, out, err = call("prune", place, *(["--collection", collection] if collection else []))
        assert (code, out) == (ExitCode.USAGE, "") and fnmatch(err, f"interlock: *{why.replace('.*', '*')}\n"), err


def test_a_run_removes_them_only_with_prune_and_a_plan_says_how_many(deliver, call, tmp_path):
    deliver(TEXTS)
    corpus(tmp_path / "in", {"Docs": {"a_chunks.json": KEPT}})
    settings = ("--config", tmp_path / "c.toml", "--roster", "mine", "--qdrant", tmp_path / "store")
    code, out, _ = call("plan", tmp_path / "in", *settings)
    assert (code, "holds 4 points whose chunks are not in the corpus" in out) == (0, True)
    assert held(tmp_path / "store") == dict.fromkeys(TEXTS)
    run = deliver(KEPT, prune="yes")
    (verified,) = [each["verification"] for each in summary_of(run)["collections"]]
    assert [verified[name] for name in ("points", "expected", "stale", "pruned", "ok")] == [8, 8, 0, 4, True]
    assert held(tmp_path / "store") == dict.fromkeys(KEPT)
    assert not events_of(run, Warned)


def test_a_chunk_that_comes_back_is_stale_no_more(deliver, tmp_path):
    deliver(TEXTS)
    first = deliver(KEPT)
    last = deliver([*KEPT[1:], *GONE[1:]])
    assert held(tmp_path / "store") == dict.fromkeys([*KEPT[1:], *GONE[1:]]) | {GONE[0]: first.name, KEPT[0]: last.name}


@pytest.mark.parametrize("refused", [{"text": ""}, {"text": TEXTS[0], "metadata": []}, {"no": "text"}])
def test_a_run_that_could_not_use_every_record_marks_and_removes_nothing(deliver, tmp_path, refused):
    deliver(TEXTS)
    run = deliver([refused, *TEXTS[4:]], prune="yes", max_refused="1")
    (seen,) = events_of(run, StoreVerified)
    assert (seen.stale, seen.pruned, seen.ok) == (4, 0, True)
    assert "4 points of chunks that this run did not see; 1 record or file" in events_of(run, Warned)[-1].message
    assert held(tmp_path / "store") == dict.fromkeys(TEXTS)


def test_a_store_that_differs_from_the_plan_loses_nothing(deliver, tmp_path, monkeypatch):
    deliver(TEXTS)
    upsert = Store.upsert
    monkeypatch.setattr(Store, "upsert", lambda self, points, size: upsert(self, [*points][:-1], size))
    monkeypatch.setattr(Store, "stale", 3)
    with pytest.raises(AssertionError):
        deliver([*KEPT, "a new one"], prune="yes")
    assert held(tmp_path / "store") == dict.fromkeys(TEXTS)


KILLED = """
import os, signal, sys
from pathlib import Path
from interlock.engine.targets import embedded, mirror
few = embedded._few
def some(points):
    for number, batch in enumerate(few(points)):
        if number == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        yield batch
embedded._few = some
mirror.prune_marked(Path(sys.argv[1]), "docs", remove=True)
"""


def test_killed_while_it_removes_it_has_removed_stale_points_alone_and_goes_on(tmp_path):
    vectors = np.random.default_rng(0).standard_normal((3000, 8)).astype(np.float32)
    points = [Point(f"{i:08x}-0000-5000-8000-{i:012x}", {"text": str(i)}, {"v": v}) for i, v in enumerate(vectors)]
    stale = [point.id for point in points[:2000]]
    with Store.open_for_write(tmp_path, "docs", {"v": 8}, {"v": 1}) as store:
        put(points, store)
        store.mark(stale, "r")
    killed = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], cwd=ROOT, env=os.environ)
    assert killed.returncode == -signal.SIGKILL
    told = mirror.prune_marked(tmp_path, "docs", remove=True)
    assert (told.points, told.stale) == (3000 - 3 * 256, 2000 - 3 * 256)
    with Store.open_for_read(tmp_path, "docs") as store:
        assert sorted(point for page in store.ids() for point in page) == [point.id for point in points[2000:]]
