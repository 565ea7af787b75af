"""`import interlock`: the same runs as the command's, from a notebook's cell or a script, by values, typed errors."""

import asyncio
import builtins
import io
import re
import runpy
import shutil
import subprocess
import sys
import threading
import time
import types
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest

import interlock
from interlock import progress
from interlock.console.sources.session import Session
from interlock.engine.compute.texts import encode_texts
from interlock.engine.gpu.devices import choose
from interlock.engine.gpu.lease import Lessor
from interlock.engine.models.assets import Policy, resolve
from interlock.engine.models.card import read_card
from interlock.engine.models.registry import ModelSpec
from interlock.engine.record.rundir import RunDirectory
from interlock.engine.record.state import RunState
from interlock.engine.settings import ON_SCREEN, knobs
from interlock.given import GivenSettings
from interlock.progress import follow
from interlock.wording import in_python
from tests.builders import ROOT, corpus, environment, scratch, sentences
from tests.builders import interlock as command

TEXTS = sentences(30)
HEAVY = {"torch", "numpy", "textual", "rich", "pydantic", "transformers", "pyarrow", "qdrant_edge"}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A directory with a corpus of one collection, whose name holds a comma."""
    directory = tmp_path_factory.mktemp("api")
    corpus(directory / "in", {"Docs, all": {"a_chunks.json": TEXTS}})
    return directory


@pytest.fixture(scope="module")
def settings(place, tiny_a, tiny_b):
    return interlock.Settings(
        roster={tiny_a: 1, tiny_b: 3},
        collections=["Docs, all"],
        ceiling=4 << 30,
        qdrant=place / "store",
        out=place / "runs",
    )


@pytest.fixture(scope="module")
def run(place, settings):
    return interlock.embed(place / "in", settings, progress="none")


def test_importing_loads_nothing_heavy_and_every_name_is_there():
    code = "import interlock, sys; print(*sys.modules); print(interlock.__version__); "
    code += "print(all(getattr(interlock, name) is not None for name in interlock.__all__), 'torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], env=environment(), capture_output=True, text=True, check=True)
    loaded, version, after = done.stdout.splitlines()
    assert {name.partition(".")[0] for name in loaded.split()} & HEAVY == set()
    assert version.strip()[0].isdigit()
    assert after == "True False"


def test_settings_take_every_setting_of_a_run_and_say_what_each_is_for():
    run_settings = {item.name for item in knobs() if item.name not in ON_SCREEN}
    assert {item.name for item in fields(interlock.Settings)} == run_settings | {"config", "models"}
    assert all(f"{name}: " in interlock.Settings.__doc__ for name in run_settings)


def test_values_are_recorded_with_their_origin(run, settings):
    told = run.summary.configuration
    assert told["ceiling"].value == 4 << 30
    assert told["collections"].value == ["Docs, all"]
    assert {told[name].origin for name in ("roster", "ceiling", "qdrant")} == {
        "python Settings.roster",
        "python Settings.ceiling",
        "python Settings.qdrant",
    }
    assert told["fusion"].origin == "default"


def test_a_plan_prints_what_the_run_then_does(run, place, settings):
    plan = interlock.plan(place / "in", settings)
    assert [each.batches for each in plan.forecast.passes] == [
        each.batches for each in run.summary.collections[0].passes
    ]
    assert "Docs, all" in str(plan)
    assert "tiny-b" in str(plan)


def test_a_plan_says_what_is_reused_takes_no_time_and_which_store_a_run_would_refuse(run, place, settings, tiny_a):
    again = interlock.plan(place / "in", replace(settings, reuse=run.path))
    assert [(each.rows, each.seconds) for each in again.forecast.passes] == [(0, 0.0)] * 2
    assert "0:00" in str(again) and " ? " not in str(again) and "would refuse" not in str(again)
    other = replace(settings, roster=[tiny_a])
    why = "docs_all was written with other models (were tiny-a, tiny-b, are now tiny-a), and a run would refuse it"
    assert why in str(interlock.plan(place / "in", other))
    with pytest.raises(
        interlock.UsageError, match=r"settings \(.*models were tiny-a, tiny-b, are now tiny-a"
    ) as refused:
        interlock.embed(place / "in", other, progress="none")
    assert len(str(refused.value)) < 400 and str(refused.value).endswith("or delete that directory")


def test_vectors_are_mapped_read_only_in_the_order_of_the_chunks(run, tiny_b):
    found = run.vectors("Docs, all", "tiny-b")
    spec = ModelSpec("tiny-b", (str(tiny_b),))
    card = read_card(spec, resolve(spec, Policy(offline=True), lambda _: None), "cpu")
    assert isinstance(found.array, np.memmap)
    assert not found.array.flags.writeable
    np.testing.assert_allclose(
        found.array, encode_texts(card, TEXTS, card.document_prompt, Lessor(choose("cpu"), 4 << 30)).dense, atol=1e-5
    )
    assert len(set(found.ids)) == len(found.chunk_ids) == len(TEXTS)


def test_fused_vectors_are_wider_than_each_models_own(run):
    assert run.vectors("Docs, all").array.shape == (len(TEXTS), 32 + 48)


@pytest.mark.parametrize(
    ("ask", "told"),
    [
        (lambda run: run.vectors("Docs"), "no collection 'Docs': available Docs, all"),
        (lambda run: run.vectors("Docs, all", "other"), "by 'other': available tiny-a, tiny-b, fused"),
        (lambda run: interlock.open_run("other", out=run.path.parent), "runs in"),
        (lambda run: interlock.watch("no/such/run"), "does not exist"),
        (lambda run: interlock.open_run(run.path / "run.json"), "is a file: name the run's directory"),
        (lambda run: interlock.open_run(5), "run: expected a path, got 5"),
        (lambda run: interlock.Settings(threads=-1).configuration(), "^Settings.threads: expected 0 or more"),
        (lambda run: interlock.Settings(config=5).configuration(), "Settings.config: expected a path, got 5"),
        (lambda run: interlock.Settings(models=[]).configuration(), r"Settings.models: expected a table .* got \[\]"),
        (lambda run: interlock.plan(""), "^chunks: expected a path that is not empty, .*, got ''"),
        (lambda run: interlock.plan("\0"), "^chunks: expected a path that is not empty, .* without a null byte"),
        (lambda run: interlock.plan(".", interlock.Settings(config="\0")), "^Settings.config: expected a path"),
        (lambda run: interlock.open_run("\ud800"), "^run: expected a path, got"),
        (lambda run: interlock.open_run(run.id, out=b"runs"), "^out: expected a path, got b'runs'"),
        (lambda run: interlock.plan(None), "chunks: expected a path, got None"),
        (lambda run: interlock.plan(".", {"dim": 3}), "settings: expected interlock.Settings, got {'dim': 3}"),
        (lambda run: interlock.embed(".", progress="bar"), "progress: expected one of auto, lines, none, got 'bar'"),
        (lambda run: interlock.search(run, "a", limit="3"), "limit: expected a whole number of at least 1, got '3'"),
        (lambda run: interlock.search(run, 5), "the query is not text: expected UTF-8, got 5"),
        (lambda run: interlock.search(run, "\ud800"), "the query is not text"),
        (lambda run: interlock.search(run, "a", collection="other"), "no collection 'other' .* one of docs_all"),
        (lambda run: interlock.search(run, "a", collection=0), "collection: expected a text, got 0"),
        (lambda run: interlock.search(run, "a", sparse_share=""), "sparse_share: expected a number, got ''"),
        (lambda run: interlock.search(run, "a", rerank=b"x"), "rerank: expected a list of texts, got b'x'"),
        (lambda run: interlock.rerank("a", ["a"], model=0), "model: expected a list of texts, got 0"),
        (lambda run: interlock.evaluate(run, rerank=0), "rerank: expected a list of texts, got 0"),
        (lambda run: interlock.evaluate(run, measures=0), "measures: expected a list of texts, got 0"),
        (lambda run: interlock.evaluate(run, seed=""), "seed: expected a whole number, got ''"),
        (lambda run: interlock.compare(0, "q"), "runs: expected several files"),
        (lambda run: interlock.encode(run, ["a"], only=-1), "only: expected a text, got -1"),
        (lambda run: interlock.upload(run, 0), "url: expected a text, got 0"),
        (lambda run: interlock.upload(run, "http://127.0.0.1:9", indexes=1), "indexes: expected a dict, got 1"),
        (lambda run: run.vectors([]), r"no collection \[\]: available"),
    ],
)
def test_what_is_not_there_is_refused_with_what_there_is(run, ask, told):
    with pytest.raises(interlock.UsageError, match=told):
        ask(run)


def test_a_file_cut_short_is_refused_when_its_vectors_are_asked_for(run, tmp_path):
    copy = interlock.open_run(shutil.copytree(run.path, tmp_path / "copy"))
    file = copy.path / "exports" / "Docs, all" / "fused.npy"
    file.write_bytes(file.read_bytes()[:500])
    with pytest.raises(interlock.InterlockError, match=r"fused\.npy has 500 bytes, delivered were"):
        copy.vectors("Docs, all")


@pytest.mark.parametrize(
    ("name", "read"), [("fused.npy", lambda found: found.array), ("points.parquet", lambda found: found.ids)]
)
def test_a_file_that_was_changed_after_its_delivery_is_refused(run, tmp_path, name, read):
    copy = interlock.open_run(shutil.copytree(run.path, tmp_path / "copy"))
    read(copy.vectors("Docs, all"))
    with (copy.path / "exports" / "Docs, all" / name).open("r+b") as handle:
        handle.seek(-40, 2)
        handle.write(b"\0" * 4)
    with pytest.raises(interlock.InterlockError, match=f"{name} was changed after .*: restore it, or resume the run"):
        read(copy.vectors("Docs, all"))


def test_ids_need_the_parquet_file(place, tiny_a):
    settings = interlock.Settings(roster=[tiny_a], export=["npy"], out=place / "runs")
    run = interlock.embed(place / "in", settings, progress="none")
    with pytest.raises(interlock.UsageError, match=r'ids need "parquet" in its exports'):
        _ = run.vectors("Docs, all").ids


def test_settings_that_are_equal_hash_alike(tiny_a):
    roster = {tiny_a: 1}
    assert hash(interlock.Settings(roster=roster, dim=3)) == hash(interlock.Settings(roster=dict(roster), dim=3))


@pytest.mark.parametrize("given", [{"roster": {"a"}}, {"export": (n for n in ["npy"])}, {"collections": iter(["A"])}])
def test_a_setting_that_is_read_once_or_has_no_order_is_refused(given):
    with pytest.raises(interlock.UsageError, match=r"expected a list, got .*: pass a list of it"):
        interlock.Settings(**given).configuration()


def test_a_home_directory_may_stand_for_the_chunks(place, settings, monkeypatch):
    monkeypatch.setenv("HOME", str(place))
    assert "Docs, all" in str(interlock.plan("~/in", settings))


def test_a_plan_refuses_settings_that_the_run_would_refuse(place, tiny_a):
    settings = interlock.Settings(roster=[tiny_a], out=place / "in" / "runs")
    with pytest.raises(interlock.UsageError, match=r"^out='.*' is inside .*: choose another directory"):
        interlock.plan(place / "in", settings)


def test_what_an_error_advises_is_what_a_caller_from_python_passes(run, place, settings):
    with pytest.raises(interlock.UsageError, match="add resume=True to continue it, or choose another run_id"):
        interlock.embed(place / "in", replace(settings, run_id=run.id, resume=False), progress="none")


@pytest.mark.parametrize(
    ("row", "told"),
    [
        ({"query_prompt": "query: "}, "query_prompt is 'query: ', but the store was written with ''"),
        ({"max_tokens": 16}, "max_tokens is 16, but the store was written with"),
        ({"source": "tiny-b"}, "the store was written with another tiny-a"),
    ],
)
def test_searching_with_a_row_that_contradicts_the_store_is_refused(run, tiny_a, tiny_b, row, told):
    row = {"source": str(tiny_a)} | {key: str(tiny_b) if key == "source" else value for key, value in row.items()}
    with pytest.raises(interlock.UsageError, match=told):
        interlock.search(run, TEXTS[5], settings=interlock.Settings(models={"tiny-a": row}))


def test_conditions_that_no_chunk_fulfils_are_a_warning(run):
    with pytest.warns(RuntimeWarning, match="no chunk has chunk_id=none: values there are"):
        assert not interlock.search(run, TEXTS[5], where="chunk_id=none")


def test_searching_with_a_row_finds_a_model_where_it_lies_now(run, tiny_a, tmp_path):
    here = shutil.copytree(tiny_a, tmp_path / "moved")
    models = {"tiny-a": {"source": str(here)}}
    (hit,) = interlock.search(run, TEXTS[5], limit=1, settings=interlock.Settings(models=models))
    assert hit.payload["text"] == TEXTS[5]


def test_a_limit_beyond_what_the_store_holds_finds_everything(run):
    assert len(interlock.search(run, TEXTS[5], limit=10**30)) == len(TEXTS)


@pytest.mark.parametrize("collection", [None, "Docs, all", "docs_all"])
def test_search_in_a_run_finds_the_point_of_a_text(run, collection):
    (hit,) = interlock.search(run, TEXTS[5], limit=1, collection=collection)
    assert hit.payload["text"] == TEXTS[5]
    assert hit.id == run.vectors("Docs, all").ids[5]


def test_a_run_is_opened_by_its_directory_its_id_or_itself(run):
    assert interlock.open_run(run.path) == interlock.open_run(run.id, out=run.path.parent) == run
    assert interlock.open_run(run) is run
    assert interlock.open_run(run.path / "journal.jsonl") == run
    assert "completed, 30 chunks in 1 collection" in repr(run)


def test_watching_a_run_that_is_over_yields_its_journal(run):
    told = list(interlock.watch(run))
    assert [each.seq for each in told] == list(range(len((run.path / "journal.jsonl").read_bytes().splitlines())))
    assert told == list(run.events())
    assert isinstance(told[-1].body, interlock.events.RunClosed)


def test_watching_a_run_whose_process_died_ends_with_what_it_wrote(run, tmp_path):
    lines = (run.path / "journal.jsonl").read_bytes().splitlines(keepends=True)
    (tmp_path / "journal.jsonl").write_bytes(b"".join(lines[:4]) + lines[4][:20])
    assert len(list(interlock.watch(tmp_path))) == 4


def test_watching_a_run_that_is_damaged_raises_after_what_is_whole(run, tmp_path):
    lines = (run.path / "journal.jsonl").read_bytes().splitlines(keepends=True)
    (tmp_path / "journal.jsonl").write_bytes(b"".join([*lines[:4], b"damage\n", *lines[5:]]))
    with pytest.raises(interlock.InterlockError, match="line 5 is damaged"):
        list(interlock.watch(tmp_path))


def test_embedding_in_a_thread_can_be_watched_from_an_event_loop(place, tiny_a):
    settings = interlock.Settings(roster=[tiny_a], out=place / "runs", run_id="threaded")

    async def both():
        done = asyncio.create_task(asyncio.to_thread(interlock.embed, place / "in", settings, progress="none"))
        while not (place / "runs" / "threaded" / "journal.jsonl").exists():
            await asyncio.sleep(0.01)
        told = [entry async for entry in stream(interlock.watch(place / "runs" / "threaded"))]
        return await done, told

    run, told = asyncio.run(both())
    assert run.summary.status == "completed"
    assert told == list(run.events())


async def stream(entries):
    """What a thread waits for, in an event loop."""
    end = object()
    while (entry := await asyncio.to_thread(next, entries, end)) is not end:
        yield entry


def test_embedding_inside_a_running_event_loop_is_like_anywhere_else(place, tiny_a):
    async def cell():
        return interlock.embed(place / "in", interlock.Settings(roster=[tiny_a], out=place / "runs"), progress="none")

    assert asyncio.run(cell()).summary.status == "completed"


def test_a_run_that_is_refused_raises_and_leaves_nothing(place, settings):
    before = sorted((place / "runs").iterdir())
    with pytest.raises(interlock.UsageError, match="nothing does not exist"):
        interlock.embed(place / "nothing", settings, progress="none")
    assert sorted((place / "runs").iterdir()) == before


def test_a_run_with_mitigations_raises_under_strict_and_can_be_opened(place, tiny_a):
    settings = interlock.Settings(
        roster=[tiny_a], out=place / "runs", run_id="strict", devices="sim:T4", faults=["oom:9"], strict=True
    )
    with pytest.raises(interlock.InterlockError, match="run strict needed mitigations") as raised:
        interlock.embed(place / "in", settings, progress="none")
    assert raised.value.exit_code == interlock.ExitCode.MITIGATED
    assert interlock.open_run("strict", out=place / "runs").summary.collections[0].mitigations


INTERRUPTED = """
import os, signal, threading, time
import interlock

signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in what a shell began in the background
chunks, model, out = {places!r}
settings = dict(roster=["slow"], models={{"slow": {{"source": model, "batch_tokens": 8}}}}, out=out, run_id="r")

def interrupt():
    while not os.path.exists(out + "/r/journal.jsonl"):
        time.sleep(0.01)
    for entry in interlock.watch(out + "/r"):
        if isinstance(entry.body, interlock.events.BatchCommitted):
            os.kill(os.getpid(), signal.SIGINT)
            return

threading.Thread(target=interrupt).start()
try:
    interlock.embed(chunks, interlock.Settings(**settings), progress="lines")
except interlock.Stopped as stopped:
    print(int(stopped.exit_code), stopped)
run = interlock.embed(chunks, interlock.Settings(**settings, resume=True), progress="none")
print(run.summary.status, run.summary.sessions)
"""


def interrupted(script, place, model):
    """What such a script came to, before the command that is carried out after it; there is work for two seconds."""
    root = corpus(place / "in", {"Docs": {"a_chunks.json": sentences(1500)}})
    return command("--version", first=script.format(places=[str(root), str(model), str(place / "runs")]))


def test_an_interrupt_stops_after_the_batch_and_the_same_cell_resumes(tmp_path, tiny_a):
    done = interrupted(INTERRUPTED, tmp_path, tiny_a)
    assert done.stdout.count("\n") == 3, done.stderr
    stopped, resumed, _ = done.stdout.splitlines()
    assert stopped.startswith("130 run r was stopped: continue it with Settings(run_id='r', resume=True)"), done.stderr
    assert resumed == "completed 2"


def work(go):
    """What a session does, where only that counts."""
    recorder = types.SimpleNamespace(look=lambda read: read(RunState()), first=0, drain=lambda after: ([], 0))
    return types.SimpleNamespace(go=go, directory=RunDirectory(scratch()), recorder=recorder)


class Patient(Session):
    """A session whose work ends when it is told to, and whose caller is interrupted whenever it waits."""

    def __init__(self):
        self.goes_on, self.waits = threading.Event(), 0
        super().__init__(lambda controls: work(self.goes_on.wait))

    def wait(self, seconds):
        self.waits += 1
        raise KeyboardInterrupt


def test_a_second_interrupt_returns_while_the_batch_is_computed():
    session = Patient()
    with pytest.raises(KeyboardInterrupt):
        follow(session, "none")
    assert (session.waits, session.alive, session.controls.code) == (2, True, interlock.ExitCode.INTERRUPTED)
    session.goes_on.set()
    session.result()


def test_an_interrupt_before_anything_is_shown_stops_the_session_too(monkeypatch):
    session = Session(lambda controls: work(lambda: while_not_asked(controls)))
    monkeypatch.setattr(progress, "Headless", interrupting := Once(progress.Headless))
    try:
        follow(session, "lines")
    except KeyboardInterrupt:  # which would end the tests
        pytest.fail("the interrupt came through")
    assert (interrupting.calls, session.alive, session.result()) == (2, False, interlock.ExitCode.INTERRUPTED)


def while_not_asked(controls):
    """The work of a session that ends when it is stopped, with the code that it was stopped with."""
    while controls.code is None:
        time.sleep(0.01)
    return controls.code


class Once:
    """A front end whose making is interrupted the first time."""

    def __init__(self, real):
        self.real, self.calls = real, 0

    def __call__(self, session, **how):
        self.calls += 1
        if self.calls == 1:
            raise KeyboardInterrupt
        return types.SimpleNamespace(poll=lambda: None)


IN_A_LOOP = (
    INTERRUPTED.replace("try:\n    interlock.embed(", "async def main():\n    interlock.embed(")
    .replace("except interlock.Stopped", "try:\n    asyncio.run(main())\nexcept interlock.Stopped")
    .replace("import os", "import asyncio, os", 1)
)


def test_an_interrupt_stops_a_run_that_keeps_an_event_loop_waiting(tmp_path, tiny_a):
    done = interrupted(IN_A_LOOP, tmp_path, tiny_a)
    assert done.stdout.count("\n") == 3, done.stderr
    stopped, resumed, _ = done.stdout.splitlines()
    assert stopped.startswith("130 run r was stopped"), done.stderr
    assert resumed == "completed 2"


class TerminalText(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def small(place, tiny_a):
    """Embeds once more, and shows it."""
    settings = interlock.Settings(roster=[tiny_a], out=place / "runs", resume=False)
    return lambda **how: interlock.embed(place / "in", settings, **how)


def test_a_terminal_shows_a_table_that_ends_with_the_run(small, monkeypatch):
    monkeypatch.setattr(sys, "stderr", screen := TerminalText())
    monkeypatch.setenv("TERM", "xterm-256color")
    small()
    last = screen.getvalue().rpartition("model")[2]
    assert "tiny-a" in last
    assert "100%" in last
    assert "completed" in last


def test_without_a_terminal_lines_are_printed(small, capsys):
    small()
    assert "collection Docs, all completed" in capsys.readouterr().err


def test_a_cell_shows_one_output_that_is_drawn_over(small, monkeypatch):
    shown = []

    def display(table, *, display_id):
        assert display_id
        shown.append(table)
        return types.SimpleNamespace(update=shown.append)

    shell = type("ZMQInteractiveShell", (), {})()
    monkeypatch.setattr(builtins, "get_ipython", lambda: shell, raising=False)
    monkeypatch.setitem(sys.modules, "IPython", types.ModuleType("IPython"))
    monkeypatch.setitem(sys.modules, "IPython.display", types.SimpleNamespace(display=display))
    small()
    text = shown[-1]._repr_mimebundle_([], [])["text/html"]
    assert "tiny-a" in text
    assert "completed" in text


def test_progress_that_cannot_be_shown_does_not_end_the_run(small, monkeypatch):
    monkeypatch.setattr(sys, "stderr", TerminalText())
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setattr("rich.live.Live.update", lambda *_, **__: 1 / 0)
    with pytest.warns(UserWarning, match="progress display stopped .*; the run continues"):
        run = small()
    assert run.summary.status == "completed"


def test_the_first_notebook_runs_as_it_stands(tmp_path, monkeypatch, capsys, minilm):
    monkeypatch.chdir(tmp_path)
    notebook = runpy.run_path(str(ROOT / "docs" / "first_notebook.py"))
    said = capsys.readouterr().out
    assert "(3, 768)" in said
    assert said.splitlines()[-2].endswith("Rotate the keys every 90 days.")  # the best of two hits
    assert notebook["run"].summary.status == "completed"


def test_a_run_is_found_again_after_the_directory_changed(small, tmp_path, monkeypatch, place):
    monkeypatch.chdir(place)
    run = small(progress="none")
    again = interlock.open_run(run.path.relative_to(place))
    monkeypatch.chdir(tmp_path)
    assert run.summary.status == again.summary.status == "completed"
    assert run.vectors("Docs, all").ids == again.vectors("Docs, all").ids


def test_a_run_whose_journal_is_gone_raises_an_interlock_error(tmp_path):
    with pytest.raises(interlock.InterlockError, match=r"cannot read .*journal"):
        interlock.RecordedRun(tmp_path / "gone").summary  # noqa: B018


def test_more_threads_than_a_process_survives_are_refused():
    with pytest.raises(interlock.UsageError, match="expected 0 to 1024"):
        interlock.Settings(threads=50_000).configuration()


def test_points_of_a_longer_corpus_are_warned_of_until_the_advice_is_followed(tmp_path, tiny_a):
    def embedded(texts, run_id, **more):
        corpus(tmp_path / "in", {"Docs": {"a_chunks.json": texts}})
        how = interlock.Settings(roster=[tiny_a], qdrant=tmp_path / "st", out=tmp_path / "runs", run_id=run_id, **more)
        return interlock.embed(tmp_path / "in", how, progress="none")

    embedded(TEXTS, "long")
    run = embedded(TEXTS[:20], "short")
    (warning,) = [entry.body.message for entry in run.events() if "still holds" in getattr(entry.body, "message", "")]
    assert "10 points" in warning
    assert len(interlock.search(run, TEXTS[25], limit=100)) == 30
    shutil.rmtree(warning.partition(" still")[0])
    run = embedded(TEXTS[:20], "short", resume=True)
    assert {hit.payload["text"] for hit in interlock.search(run, TEXTS[25], limit=100)} == set(TEXTS[:20])


def test_a_journal_repaired_in_place_is_continued_though_the_first_error_is_kept(tmp_path, tiny_a):
    corpus(tmp_path / "in", {"Docs": {"a_chunks.json": TEXTS}})
    settings = interlock.Settings(roster=[tiny_a], out=tmp_path / "runs", run_id="r", resume=True)
    journal = interlock.embed(tmp_path / "in", settings, progress="none").path / "journal.jsonl"
    whole = journal.read_bytes()
    journal.write_bytes(whole.replace(b"batch_committed", b"batch_xommitted", 1))
    with pytest.raises(interlock.InterlockError) as kept:
        interlock.embed(tmp_path / "in", settings, progress="none")
    with journal.open("r+b") as handle:
        handle.write(whole)
    assert interlock.embed(tmp_path / "in", settings, progress="none").summary.status == "completed"
    assert "journal" in str(kept.value)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ("add it to --token-vectors, or drop --no-cpu-fallback", "add it to token_vectors, or drop cpu_fallback=False"),
        ("--resume continues, --run-id r1 too", "resume=True continues, run_id r1 too"),
        ("use --devices cpu or --qdrant DIR", "use devices='cpu' or qdrant"),
        ("--project 64: drop it, or --shared", "project=64: drop it, or window='shared'"),
        (
            "--bm25 off, --deadline 17:45,export or --deadline 8h",
            "bm25='off', deadline='17:45,export' or deadline='8h'",
        ),
        ("with --run-id 20261126-120830 --resume", "with run_id='20261126-120830' resume=True"),
        ("--filter: choose --index", "where: choose indexes"),
        ("the text, such as --text-field body", "such as Settings(text_field='body')"),
        ("such as --id-field 'my id', or drop --id-field", "such as Settings(id_field='my id'), or drop id_field"),
        ("`interlock run --resume` (ray start --head), or `interlock upload`", "(ray start --head)"),
    ],
)
def test_errors_name_what_python_passes_and_leave_commands_as_they_are(flags, words):
    assert words in in_python(flags)


@pytest.mark.parametrize("name", ["n" * 5000, "n/" * 2500])
def test_a_name_that_no_file_can_have_is_one_line_with_what_to_do(name):
    for call in (lambda: interlock.Reranker(name), lambda: interlock.term_weights(name, ["a"])):
        with pytest.raises(interlock.InterlockError, match=r"^[^\n]*File name too long; choose a shorter one$"):
            call()


def test_pages_set_only_what_there_is():
    root = Path(__file__).parents[1]
    for page in (root / "README.md", *(root / "docs").glob("*.md")):
        for block in re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL):
            calls = re.findall(r"\bSettings\(([^()]*(?:\([^()]*\)[^()]*)*)\)", block)
            named = {name for call in calls for name in re.findall(r"(?:^|,|\n)\s*(\w+)=", call)}
            assert named <= {item.name for item in fields(interlock.Settings)}, page


def test_every_setting_of_a_run_has_a_word_in_python():
    for name in GivenSettings.__annotations__:
        assert "--" not in in_python(f"give --{name.replace('_', '-')}, or not")
