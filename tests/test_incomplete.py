"""What is not delivered is told: whatever is missing of a run, each place that says how it ended says the same.

A row of WAYS leaves something out; what the exit code says, the journal, the summary, the list of runs, the viewer, the
end card, the line under --quiet, the command of --notify and the numbers for Prometheus is compared.
"""

import gzip
import importlib.util
import json
import os
import random
import re
import shlex
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from interlock.console.text.recap import recap
from interlock.engine.corpus.collections import discover
from interlock.engine.corpus.corpus import read_corpus
from interlock.engine.corpus.rereading import LOOKED_UP, placed
from interlock.engine.record.events import BatchCommitted, RowParked, RunClosed
from interlock.engine.record.snapshot import snapshot
from interlock.engine.standing.judgement import judge, left_behind
from interlock.engine.standing.runs import overview, state_of
from tests.builders import corpus, events_of, interlock, sentences, summary_of
from tests.test_worker import POISON, poisoned

TEXTS = sentences(12)
WORDS = {"completed": "DONE", "incomplete": "INCOMPLETE", "failed": "FAILED", "stopped": "STOPPED"}
GONE = """
from interlock.engine.corpus import collections
found = collections._collection
def lost(directory, *rest):
    seen = found(directory, *rest)
    for name in seen.files:
        if name.startswith("b"):
            (directory / name).unlink()
    return seen
collections._collection = lost
"""
"""What makes a file vanish between the listing and the reading."""


@dataclass(frozen=True)
class Way:
    """How something is left out of `chunks`, with which flags; what the run comes to, and what its one line names."""

    spoil: Callable[[Path], object]
    names: str
    status: str = "incomplete"
    code: int = 1
    flags: tuple[object, ...] = ()
    first: str = ""


def beside(data, name="b_chunks.json", place="Docs"):
    """Put a file beside the good one, or into a collection of its own."""

    def spoil(chunks):
        (chunks / place).mkdir(exist_ok=True)
        (chunks / place / name).write_bytes(data if isinstance(data, bytes) else json.dumps(data).encode())

    return spoil


def link(target):
    return lambda chunks: (chunks / "Docs" / "b_chunks.json").symlink_to(target)


def bad(count, good=0):
    return [{"text": text} for text in sentences(good, start=50)] + [{"text": " "}] * count


WHOLE = json.dumps([{"text": text} for text in sentences(9, start=20)])
LINES = "".join(json.dumps({"text": text}) + "\n" for text in sentences(9, start=20))
CUT = len(WHOLE) // 2
WAYS = {
    "a list that is cut": Way(beside(WHOLE[:CUT].encode()), "b_chunks.json: file ends within record"),
    "lines that are cut": Way(beside(LINES[:-9].encode(), "b.jsonl"), "b.jsonl: file ends within record 9"),
    "nothing but a file that is cut": Way(
        beside(b'[{"text": "a', place="Torn"), "Torn: no usable record: 1 file refused", "failed"
    ),
    "an empty file": Way(beside(b""), "b_chunks.json: empty file"),
    "a link to nothing": Way(link("nowhere_chunks.json"), "b_chunks.json: broken link"),
    "a link out of the root": Way(link(__file__), "b_chunks.json: link points outside the root"),
    "a pipe": Way(lambda chunks: os.mkfifo(chunks / "Docs" / "b_chunks.json"), "b_chunks.json: not a regular file"),
    "a file that vanishes": Way(beside([{"text": "b"}]), "b_chunks.json: cannot read the file", first=GONE),
    "a compressed file": Way(beside(gzip.compress(WHOLE.encode())), "1 file refused (b_chunks.json"),
    "compressed lines": Way(beside(gzip.compress(LINES.encode(), mtime=0), "b.jsonl"), "refused (first b.jsonl"),
    "no list": Way(beside({"rows": []}), "b_chunks.json: object with none of"),
    "a second list": Way(
        beside({"chunks": [{"text": "b"}], "data": [{"text": "c"}]}), "b_chunks.json: only the list under"
    ),
    "text behind the list": Way(beside(WHOLE.encode() + b" and more"), "b_chunks.json: ignored text"),
    "a name that is no text": Way(
        lambda chunks: (chunks / "Docs" / os.fsdecode(b"\xe9_chunks.json")).write_text("[]"), "not UTF-8"
    ),
    "a record without a text": Way(
        beside([{"body": "b"}]), "1 of 13 records refused (b_chunks.json record 1: no field"
    ),
    "texts that are empty": Way(beside(bad(3)), "3 of 15 records refused (first b_chunks.json record 1"),
    "all texts empty": Way(beside(bad(5), place="Void"), "Void: no usable record: 5 of 5 records", "failed"),
    "one record more than allowed": Way(beside(bad(3, good=5)), "3 of 20 records", flags=("--max-refused", "2")),
    "as many records as allowed": Way(
        beside(bad(2, good=86)), "2 of 100 records refused", "completed", 0, ("--max-refused", "2%")
    ),
    "a file that is allowed": Way(
        beside(b"["), "1 file refused (b_chunks.json", "completed", 0, ("--max-refused", "0,files")
    ),
    "a file, with what allows it": Way(beside(b"["), "or allow it with --max-refused 0,files"),
    "the same under --strict": Way(
        beside(b"["), "1 file refused", "completed", 3, ("--max-refused", "0,files", "--strict")
    ),
    "too many under --strict": Way(beside(bad(3)), "3 of 15 records", "incomplete", 1, ("--strict",)),
    "another kind of file alone": Way(
        beside(b"PAR1", "b.parquet", "Other"),
        "Other: no chunk files, though 1 file beside like them: give its own path",
        "completed",
        0,
    ),
    "a text that has no vector": Way(beside([{"text": f"a {POISON} b"}]), "1 text has no spoilt vector"),
    "a model that breaks": Way(lambda _: None, "broken", "failed", flags=("--roster", "{broken}")),
    "a model that is missing": Way(
        lambda _: None, "delivered without", flags=("--roster", "{spoilt},/nowhere/at-all", "--allow-missing")
    ),
    "no GPU that is left": Way(
        lambda _: None, "no GPU is left", "stopped", 4, ("--devices", "sim:1xT4", "--faults", "lose:60")
    ),
}


@pytest.fixture(scope="module")
def spoilt(tmp_path_factory):
    return poisoned(tmp_path_factory.mktemp("models") / "spoilt")


@pytest.fixture(scope="module")
def broken(spoilt):
    import shutil

    place = shutil.copytree(spoilt, spoilt.with_name("broken"))
    weights = (place / "model.safetensors").read_bytes()
    (place / "model.safetensors").write_bytes(weights.replace(b"word_embeddings", b"word_embeddinks", 1))
    return place


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_every_place_says_how_a_run_ended(tmp_path, spoilt, broken, way):
    chunks, run = corpus(tmp_path / "in", {"Docs": {"a_chunks.json": TEXTS}}), tmp_path / "runs" / "r"
    way.spoil(chunks)
    heard = "import json, sys; json.dump([sys.argv[1:-1], json.load(open(sys.argv[-1]))], open('heard', 'w'))"
    flags = [str(each).format(spoilt=spoilt, broken=broken) for each in way.flags]
    flags = flags if "--roster" in flags else ["--roster", spoilt, *flags]
    told = ("--notify", shlex.join([sys.executable, "-c", heard, "{run} {state}", "{reason}"]))
    counted = ("--metrics", tmp_path / "run.prom") if importlib.util.find_spec("prometheus_client") else ()
    where = ("--out", tmp_path / "runs", "--run-id", "r", "--devices", "cpu", "--summary", tmp_path / "copy")
    said = interlock(
        "run", chunks, *where, *flags, *told, *counted, "--quiet", check=way.code, first=way.first, cwd=tmp_path
    )

    (line,) = [each for each in said.stderr.splitlines() if re.match(r"[\d:]{8} (warning: |error: )?run ", each)]
    (closed,) = events_of(run, RunClosed)
    summary = summary_of(run)
    assert (closed.status, closed.exit_code, closed.reason) == (way.status, way.code, summary["reason"])
    assert (summary["status"], summary["exit_code"]) == (way.status, way.code)
    assert way.names in line and way.names in summary["reason"] and way.status in line
    called, heard = json.loads((tmp_path / "heard").read_text())
    assert json.loads((tmp_path / "copy").read_text()) == heard == summary
    assert called == [f"r {WORDS[way.status]}", summary["reason"]]
    (listed,) = json.loads(interlock("runs", "--out", tmp_path / "runs", "--json").stdout)
    assert (listed["state"], listed["exit_code"], listed["detail"]) == (
        WORDS[way.status], way.code, summary["reason"],
    )  # fmt: skip
    assert WORDS[way.status] in interlock("watch", tmp_path / "runs").stdout
    viewed = interlock("view", run, "--plain").stdout
    assert f"{way.status}" in viewed and f"exit {way.code}" in viewed and way.names in " ".join(viewed.split())
    card = recap(snapshot(state_of(run), 0), run)
    assert card[0].startswith(WORDS[way.status]) and way.names in card[0]
    if counted:
        assert f'interlock_run_info{{run="r",status="{way.status}"}} 1.0' in (tmp_path / "run.prom").read_text()


def test_a_whole_run_says_nothing_under_quiet(tmp_path, tiny_a):
    chunks = corpus(tmp_path / "in", {"Docs": {"a_chunks.json": TEXTS, "c_chunks.json": []}})
    assert interlock("run", chunks, "--out", tmp_path / "runs", "--roster", tiny_a, "--quiet", "--strict").stderr == ""


@pytest.fixture
def parked(tmp_path, spoilt):
    """A run of which one text has no vector, and what goes on with it."""
    chunks = corpus(tmp_path / "in", {"Docs": {"a_chunks.json": [*TEXTS, f"a {POISON} b"]}})

    def again(*flags):
        where = ("--out", tmp_path / "runs", "--run-id", "r", "--devices", "cpu", *flags)
        said = interlock("run", chunks, "--roster", spoilt, *where, check=1)
        return said.stderr, len(events_of(tmp_path / "runs" / "r", BatchCommitted)), tmp_path / "runs" / "r"

    return again


def test_a_text_that_failed_before_is_tried_again_only_when_that_is_asked_for(parked):
    said, batches, run = parked()
    assert "warning: Docs/a_chunks.json record 13, chunk " in said
    assert "next: " in said and "--resume --retry-parked" in said
    (again,) = re.findall(r"next: (interlock run .*)", said)
    assert overview(run, 0.0).onward == shlex.split(again)[1:]  # what the list of runs does
    assert again in interlock("ctl", run, "pause", check=1).stderr
    said, after, _ = parked("--resume")
    assert after == batches and "1 text failed before, a_chunks.json record 13, chunk " in said
    (told,) = re.findall(r"not tried again: once this is over, repeat it with (interlock run .*)", said)
    assert shlex.split(told)[1:] == overview(run, 0.0).onward
    standing = judge(left_behind(snapshot(state_of(run), 0), ""), 0.0)
    assert standing.health.level == overview(run, 0.0).health.level == "error"  # a vector is lost, whoever tells it
    said, after, _ = parked("--resume", "--retry-parked")
    assert after == batches + 1 and "also when tried again" in said
    assert "--resume" not in said.partition("summary: ")[2]
    (docs,) = summary_of(run)["collections"]
    assert len(docs["parked"]) == 1 and summary_of(run)["batches_lost"] == 0


def test_a_text_that_failed_before_is_tried_again_where_the_limits_are_others(parked):
    _, batches, _ = parked()
    said, after, _ = parked("--resume", "--ceiling", "3GiB")
    assert after == batches + 1 and "computed again: devices or limits are others" in said


def test_a_text_without_vectors_of_two_models_is_one(tmp_path, spoilt):
    import shutil

    other = shutil.copytree(spoilt, tmp_path / "other")
    chunks = corpus(tmp_path / "in", {"Docs": {"a_chunks.json": [*TEXTS, f"a {POISON} b"]}})
    said = interlock("run", chunks, "--roster", f"{spoilt},{other}", "--out", tmp_path / "runs", check=1)
    assert "to look at: 1 text parked" in said.stderr
    (listed,) = json.loads(interlock("runs", "--out", tmp_path / "runs", "--json").stdout)
    assert listed["parked"] == 1


def test_a_gpu_that_was_lost_is_told_after_a_resume_too(tmp_path, tiny_a):
    chunks = corpus(tmp_path / "in", {"Docs": {"a_chunks.json": TEXTS}})
    where = ("--out", tmp_path / "runs", "--run-id", "r", "--roster", tiny_a)
    interlock("run", chunks, *where, "--devices", "sim:1xT4", "--faults", "lose:60", check=4)
    said = interlock("run", chunks, *where, "--resume", "--faults", "").stderr
    assert "lost in an earlier session: cuda:0" in said and "to look at: 1 GPU lost" in said
    assert [each["device"] for each in summary_of(tmp_path / "runs" / "r")["losses"]] == ["cuda:0"]


def test_the_command_that_goes_on_with_a_rehearsal_whose_gpus_were_lost_leaves_its_faults_out(tmp_path, tiny_a):
    chunks = corpus(tmp_path / "in", {"Docs": {"a_chunks.json": TEXTS}})
    where = ("--out", tmp_path / "runs", "--run-id", "r", "--roster", tiny_a)
    lost = interlock("run", chunks, *where, "--devices", "sim:1xT4", "--faults", "lose:60", check=4).stderr
    again = next(line for line in lost.splitlines() if line.startswith("next: interlock run"))
    interlock(*shlex.split(again)[2:])
    assert summary_of(tmp_path / "runs" / "r")["status"] == "completed"


def test_a_run_that_was_killed_before_its_chunks_were_read_is_named_by_a_resume_that_begins_another(tmp_path, tiny_a):
    chunks = corpus(tmp_path / "in", {"Docs": {"a_chunks.json": TEXTS}})
    (tmp_path / "runs" / "cut").mkdir(parents=True)
    (tmp_path / "runs" / "cut" / "journal.jsonl").touch()
    said = interlock("run", chunks, "--out", tmp_path / "runs", "--roster", tiny_a, "--devices", "cpu", "--resume")
    (told,) = [line for line in said.stderr.splitlines() if "--resume begins a new run" in line]
    assert "cut" in told


def test_the_summary_of_a_run_that_never_began_says_so(tmp_path):
    chunks = corpus(tmp_path / "in", {"Docs": {"a_chunks.json": TEXTS}})
    words = ("--roster", "/nowhere/at-all", "--out", tmp_path / "runs", "--summary", tmp_path / "copy")
    interlock("run", chunks, *words, "--quiet", check=5)
    said = json.loads((tmp_path / "copy").read_text())
    assert (said["status"], said["begun"]) == ("failed", False)


def test_files_are_not_read_again_for_each_text_of_a_pass_that_parks_them_all(tmp_path):
    records = [{"text": text, "metadata": {"chunk_id": f"c{number}"}} for number, text in enumerate(sentences(30))]
    read = read_corpus(discover(corpus(tmp_path / "in", {"Docs": {"a_chunks.json": records}})), lambda _: None)
    events = [RowParked(model_pass=0, model="m", collection="Docs", row=row, reason="") for row in range(30)]
    named = [placed(event, read) for event in events]
    assert [(each.file, each.record) for each in named] == [("a_chunks.json", number) for number in range(1, 31)]
    assert [each.chunk_id for each in named] == [f"c{number}" * (number < LOOKED_UP) for number in range(30)]


def test_a_file_of_noise_is_a_refused_file_however_few_lines_it_is_taken_for(tmp_path, tiny_a, call):
    root = corpus(tmp_path / "in", {"Docs": {"a.jsonl": sentences(100)}})
    noise = random.Random(1).randbytes(2000)
    (root / "Docs" / "noise.jsonl").write_bytes(noise)
    how = ("--roster", tiny_a, "--max-refused", "20%", "--no-ui", "--out", tmp_path / "o")
    code, _, err = call("run", root, *how)
    assert code == 1 and "1 file refused (noise.jsonl: none of its records can be used)" in err
    code, _, err = call("run", root, *how[:2], "--max-refused", "20%,files", *how[4:])
    assert code == 0, err


def test_a_file_of_empty_pages_and_one_of_records_seen_before_are_no_refused_files(tmp_path, tiny_a, call):
    page = {"text": "a page", "metadata": {"source_path": "p.pdf"}, "chunk_id": "1"}
    files = {"a.jsonl": [*sentences(100), page], "b.jsonl": [""], "c.jsonl": [page, {"text": 7}]}
    code, _, err = call(
        "run", corpus(tmp_path / "in", {"Docs": files}), "--roster", tiny_a, "--max-refused", "5%", "--no-ui"
    )
    assert code == 0 and "file refused" not in err
