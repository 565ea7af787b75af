"""The contract of the command line: arguments, exit codes, what goes to which stream, and JSON that programs read.

What is promised stands in README.md and docs/reference.md; commands and codes are taken from there.
"""

import json
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import jsonschema
import numpy as np
import pytest

from tests.builders import ROOT, command, corpus, environment, interlock, minilm_directory, sentences, start, summary_of
from tests.contract.conftest import told
from tests.edge_bridge import EdgeBridge, serving

REFERENCE = (ROOT / "docs" / "reference.md").read_text()
README = (ROOT / "README.md").read_text()
COMMANDS = re.findall(r"^\| `interlock (\w+)` \|", REFERENCE, re.MULTILINE)
CODES = [int(code) for code in re.findall(r"^\| (\d+) \| ", REFERENCE, re.MULTILINE)]
SERVER = "http://127.0.0.1:9"


@pytest.fixture(scope="session")
def home(tmp_path_factory, models):
    """Chunks, a run of them with its store, and what is no collection."""
    home = tmp_path_factory.mktemp("command-line")
    corpus(home / "chunks", {"Docs": {"a_chunks.json": sentences(30)}, "More": {"m.jsonl": ["one more", {"text": 1}]}})
    corpus(home / "bad", {"Docs": {"a.jsonl": ["a good one"]}})
    with (home / "bad/Docs/a.jsonl").open("a") as file:
        file.write('{"text": "bad\n{"text": "another good one"}\n')
    (home / "broken/Docs").mkdir(parents=True)
    (home / "broken/Docs/a_chunks.json").write_text('[{"text": ')
    (home / "empty").mkdir()
    shutil.copytree(models, home / "models")
    text = (models / "interlock.toml").read_text().replace(str(models), str(home / "models"))
    (home / "interlock.toml").write_text(text)
    say(home, "run", "chunks", *GIVEN, "--run-id", "one", "--qdrant", "store")
    return home


GIVEN = ("--config", "interlock.toml", "--roster", "mean", "--devices", "cpu", "--max-refused", "1")
TOLD = r"[\d:]{8} warning: run completed: More: 1 of 2 records refused \(m\.jsonl record 2: .*\)\n"


def say(home, *words, check=0, **more):
    return interlock(*words, cwd=home, check=check, **more)


# Words.


def test_the_commands_and_codes_of_the_reference_are_those_of_the_help():
    said = interlock("--help")
    assert len(COMMANDS) >= 17 and CODES == [0, 1, 2, 3, 4, 5, 129, 130, 143]
    assert [code for code in CODES if not re.search(rf"^ +{code} ", said.stdout, re.MULTILINE)] == []
    assert (
        re.findall(r"^    (\w+)  ", said.stdout.split("COMMAND\n")[1].split("exit codes")[0], re.MULTILINE) == COMMANDS
    )
    assert said.stderr == ""


NEEDED = {
    "chunk": ["x", "--out", "y.jsonl"],
    "encode": ["x", "y"],
    "questions": ["x", "y"],
    "ctl": ["x", "status"],
    "upload": ["x", "--qdrant", SERVER],
    "rerank": ["x", "--model", "y"],
    "config": ["show"],
    "compare": ["x", "--qrels", "y"],
    **{name: ["x"] for name in ("run", "plan", "watch", "view", "export", "prune", "eval", "search", "serve")},
}
"""The words without which a command is not whole."""


@pytest.mark.parametrize("name", COMMANDS)
def test_help_exits_0_and_an_unknown_flag_2(name):
    said = interlock(name, "--help")
    assert said.stdout.startswith(f"usage: interlock {name}") and said.stderr == ""
    wrong = interlock(name, *NEEDED.get(name, []), "--no-such-flag", check=2)
    assert wrong.stdout == "" and "--no-such-flag" in wrong.stderr and "Traceback" not in wrong.stderr


@pytest.mark.parametrize("words", [[], ["fly"], ["run"], ["search"], ["ctl"], ["run", "x", "--roster"]], ids=" ".join)
def test_a_command_that_is_not_whole_exits_2(words):
    wrong = interlock(*words, check=2)
    assert wrong.stdout == "" and "interlock" in wrong.stderr and "Traceback" not in wrong.stderr


@pytest.mark.parametrize("flag", re.findall(r"^\| `(--[\w-]+)` \| `INTERLOCK_", REFERENCE, re.MULTILINE))
def test_every_setting_of_the_reference_is_a_flag_of_run(flag, helped):
    assert f"{flag} " in helped or f"{flag}\n" in helped or f"{flag}]" in helped


@pytest.fixture(scope="session")
def helped():
    return interlock("run", "--help").stdout


def test_python_m_interlock_is_the_command(home):
    script = Path(sys.executable).with_name("interlock")
    if not script.exists():
        pytest.skip("the command is not installed beside this interpreter")
    for words in (["--version"], ["runs", "--json"], ["run", "nowhere", "--no-ui"], ["schema"]):
        ended = [
            subprocess.run(line, env=environment(), cwd=home, capture_output=True, text=True)
            for line in ([str(script), *words], command(*words))
        ]
        assert ended[0].returncode == ended[1].returncode
        assert (ended[0].stdout, ended[0].stderr) == (ended[1].stdout, ended[1].stderr)


# Exit codes.

REFUSED = {
    "no such folder": (["run", "nowhere", *GIVEN], 2),
    "no folder but a file": (["run", "interlock.toml", *GIVEN], 2),
    "an empty corpus": (["run", "empty", *GIVEN], 2),
    "a corpus of a broken file": (["run", "broken", *GIVEN, "--out", "spare"], 2),
    "a collection that is not there": (["run", "chunks", *GIVEN, "--collections", "Nowhere"], 2),
    "a model of no name that is known": (["run", "chunks", "--roster", "no-such-model"], 2),
    "a model that is not here, offline": (["run", "chunks", "--roster", "hf:no/model", "--offline"], 5),
    "a model whose directory is not here": (["run", "chunks", "--roster", "/no/such/model"], 5),
    "a value that is none": (["run", "chunks", *GIVEN, "--fusion", "sum"], 2),
    "a configuration that is not here": (["run", "chunks", "--config", "missing.toml"], 2),
    "a run to reuse that is not here": (["run", "chunks", *GIVEN, "--reuse", "missing"], 2),
    "a device of no kind": (["run", "chunks", "--config", "interlock.toml", "--roster", "mean", "--devices", "tpu"], 5),
    "a ceiling too small": (["run", "chunks", *GIVEN, "--ceiling", "1KiB"], 5),
    "an --out that cannot be written": (["run", "chunks", *GIVEN, "--out", "/proc/nowhere"], 1),
    "an --out that is a file": (["run", "chunks", *GIVEN, "--out", "interlock.toml"], 1),
    "two things on stdout": (["run", "chunks", *GIVEN, "--events", "-", "--summary", "-"], 2),
    "a plan that does not fit": (["plan", "chunks", *GIVEN, "--ceiling", "1KiB"], 5),
    "a plan of no such folder": (["plan", "nowhere", *GIVEN], 2),
    "a store that is not here": (["search", "nowhere", "a question"], 2),
    "a collection to be chosen": (["search", "store", "a question"], 2),
    "a question of nothing": (["search", "store", " ", "--collection", "docs"], 2),
    "a run to view that is not here": (["view", "nowhere"], 2),
    "a run to watch that is not here": (["watch", "nowhere"], 2),
    "a run to steer that is not here": (["ctl", "nowhere", "status"], 2),
    "a run to steer that is over": (["ctl", "runs/one", "pause"], 1),
    "a run to export that is not here": (["export", "nowhere", "--to", "x"], 2),
    "a run to upload that is not here": (["upload", "nowhere", "--qdrant", SERVER], 2),
    "a server that does not answer": (["upload", "runs/one", "--qdrant", SERVER, "--patience", "0.1"], 5),
    "a store to prune that is not here": (["prune", "nowhere"], 2),
    "judgements that are not here": (["eval", "nowhere"], 2),
    "pairs that are not here": (["rerank", "nowhere", "--model", "models/scorer"], 2),
    "models to fetch without a name": (["models", "fetch"], 2),
    "a collection of no name to embed": (["run", "chunks", *GIVEN, "--collections", ""], 2),
}
NAMED = {
    "a collection to export": ["export", "runs/one", "--to", "spare/named", "--collection", ""],
    "a collection to upload": ["upload", "runs/one", "--qdrant", SERVER, "--collection", ""],
    "an alias": ["upload", "runs/one", "--qdrant", SERVER, "--dry-run", "--alias", ""],
    "a collection to search": ["search", "store", "a question", "--collection", " "],
    "a model to search by": ["search", "store", "a question", "--collection", "docs", "--only", ""],
    "a reranker": ["search", "store", "a question", "--collection", "docs", "--rerank", ","],
    "a collection to prune": ["prune", "store", "--collection", ""],
}
"""Names that a script left empty: none of them means all, or none."""


@pytest.mark.parametrize("what", REFUSED)
def test_what_cannot_be_done_exits_with_the_code_that_is_documented(home, what):
    words, code = REFUSED[what]
    runs = {path.name for path in (home / "runs").iterdir()}
    said = say(home, *words, check=code)
    assert "interlock: " in said.stderr and "Traceback" not in said.stderr
    assert said.stdout == "" or words[0] == "plan"
    assert {path.name for path in (home / "runs").iterdir()} == runs, "nothing was to be done"


@pytest.mark.parametrize("what", NAMED)
def test_a_name_that_is_empty_is_refused(home, what):
    said = say(home, *NAMED[what], check=2)
    assert "expected" in said.stderr and "name" in said.stderr and not said.stdout
    assert not (home / "spare" / "named").exists()


def test_what_is_delivered_of_a_run_with_gaps_exits_1_once_it_is_there(home, tmp_path):
    words = ("--config", "interlock.toml", "--roster", "mean", "--devices", "cpu", "--out", "spare")
    say(home, "run", "chunks", *words, "--run-id", "gaps", check=1)  # a record of two is refused
    said = say(home, "export", "spare/gaps", "--to", tmp_path / "files", "--export", "npy", check=1)
    gaps = r"interlock: {} with gaps, as the run left it \(More incomplete\): resume .*, then {} again"
    assert re.search(gaps.format("exported", "export"), said.stderr)
    assert [np.load(tmp_path / f"files/{name}/fused.npy").shape for name in ("Docs", "More")] == [(30, 32), (1, 32)]
    say(home, "export", "spare/gaps", "--to", tmp_path / "whole", "--export", "npy", "--collection", "Docs")
    with serving(EdgeBridge(tmp_path / "server")) as url:
        said = say(home, "upload", "spare/gaps", "--qdrant", url, "--json", check=1)
        assert re.search(gaps.format("uploaded", "upload"), said.stderr)
        assert [(each["collection"], each["points"]) for each in json.loads(said.stdout)] == [("docs", 30), ("more", 1)]
        say(home, "upload", "spare/gaps", "--qdrant", url, "--collection", "docs")


def test_a_bad_line_is_refused_by_its_place_and_the_others_are_embedded(home):
    say(home, "run", "bad", *GIVEN, "--run-id", "bad", "--out", "spare")
    run = home / "spare" / "bad"
    assert [each["record"] for each in told(run, "record_refused")] == [2]
    assert np.load(lone(run)).shape == (2, 32)


def lone(run):
    """The array of a lone model, which is kept once."""
    return run / "exports" / "Docs" / "fused.npy"


def test_mitigations_exit_3_where_strict_asks_for_it_and_0_otherwise(home):
    words = (
        "--config",
        "interlock.toml",
        "--roster",
        "mean",
        "--devices",
        "sim:1xT4",
        "--faults",
        "oom:40,oom:41",
        "--max-refused",
        "1",
    )
    for flags, code in (([], 0), (["--strict"], 3)):
        say(home, "run", "chunks", *words, *flags, "--run-id", f"code{code}", "--out", "spare", check=code)
        assert told(home / "spare" / f"code{code}", "mitigated")
        assert summary_of(home / "spare" / f"code{code}")["exit_code"] == code


def test_a_model_that_fails_exits_1(home):
    words = ("--config", "interlock.toml", "--roster", "mean", "--devices", "sim:1xT4", "--faults", "skew:9")
    said = say(home, "run", "chunks", *words, "--no-cpu-fallback", "--run-id", "fails", "--out", "spare", check=1)
    assert "error" in said.stderr
    assert summary_of(home / "spare" / "fails")["exit_code"] == 1


@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGKILL, -9)],
    ids=["interrupted", "terminated", "killed"],
)
def test_a_run_that_is_ended_goes_on_to_the_same_bytes(home, long, number, code):
    name = f"ended{number}"
    words = ("run", "long", *GIVEN, "--run-id", name, "--out", "long-runs", "--no-ui")
    process, run = start(*words, cwd=home), home / "long-runs" / name
    while not (run / "journal.jsonl").exists() or len(told_so_far(run)) < 5:
        assert process.poll() is None, process.communicate()
        time.sleep(0.005)
    process.send_signal(number)
    out, err = process.communicate(60)
    assert (process.returncode, out) == (code, "") and "Traceback" not in err
    begun = len(told_so_far(run))
    assert begun < long[1]
    if code > 0:
        assert summary_of(run)["exit_code"] == code
    (listed,) = [
        each
        for each in json.loads(say(home, "runs", "--out", "long-runs", "--json").stdout)
        if each["run"].endswith(name)
    ]
    assert 0 < listed["done"] < 1 and not listed["in_use"]
    say(home, *words, "--resume")
    assert len(told(run, "batch_committed")) == long[1]
    assert lone(run).read_bytes() == long[0].read_bytes()


def told_so_far(run):
    """The batches that a journal which is being written tells of."""
    return re.findall(rb'"batch_committed"', (run / "journal.jsonl").read_bytes())


@pytest.fixture(scope="session")
def long(home):
    """The vectors of a run of many batches that nothing ended, and how many there were."""
    corpus(home / "long", {"Docs": {"a_chunks.json": sentences(1500, words=12)}})
    say(home, "run", "long", *GIVEN, "--run-id", "whole", "--out", "long-runs")
    run = home / "long-runs" / "whole"
    return lone(run), len(told(run, "batch_committed"))


# Streams.


def test_a_run_talks_on_stderr_and_quietly_only_of_what_was_refused(home):
    said = say(home, "run", "chunks", *GIVEN, "--run-id", "talks", "--out", "spare")
    assert said.stdout == "" and "talks" in said.stderr and "summary.json" in said.stderr
    quiet = say(home, "run", "chunks", *GIVEN, "--run-id", "quiet", "--out", "spare", "--quiet")
    assert quiet.stdout == "" and re.fullmatch(TOLD, quiet.stderr)
    whole = ("--collections", "Docs", "--run-id", "whole", "--out", "spare", "--quiet")
    quiet = say(home, "run", "chunks", *GIVEN, *whole)
    assert (quiet.stdout, quiet.stderr) == ("", "")


def test_events_on_stdout_are_the_journal_and_a_summary_is_the_file(home):
    said = say(home, "run", "chunks", *GIVEN, "--run-id", "events", "--out", "spare", "--events", "-")
    assert said.stdout == (home / "spare/events/journal.jsonl").read_text()
    lines = [json.loads(line) for line in said.stdout.splitlines()]
    assert [line["seq"] for line in lines] == list(range(len(lines)))
    assert all({"seq", "at", "session", "body", "crc"} <= {*line} for line in lines)
    assert (lines[0]["body"]["event"], lines[-1]["body"]["event"]) == ("run_started", "run_closed")
    said = say(home, "run", "chunks", *GIVEN, "--run-id", "summed", "--out", "spare", "--summary", "-", "--quiet")
    assert said.stdout == (home / "spare/summed/summary.json").read_text()
    assert re.fullmatch(TOLD, said.stderr)


def test_a_plan_is_data_and_writes_nothing(home):
    before = {path: path.stat().st_mtime_ns for path in home.rglob("*")}
    said = say(home, "plan", "chunks", *GIVEN)
    assert {"Docs", "More", "mean"} <= {*said.stdout.split()} and said.stderr == ""
    assert {path: path.stat().st_mtime_ns for path in home.rglob("*")} == before


@pytest.mark.parametrize("flags", [[], ["--explain"]], ids=["plain", "explained"])
def test_a_search_prints_what_it_found(home, flags):
    words = ("search", "store", sentences(30)[7], "--collection", "docs", "--config", "interlock.toml")
    assert sentences(30)[7] in say(home, *words, *flags).stdout


# JSON.

SUMMARY = {
    "schema_version",
    "run_id",
    "status",
    "reason",
    "exit_code",
    "started_at",
    "finished_at",
    "seconds",
    "sessions",
}
SUMMARY |= {"device_kind", "devices", "schedule", "fusion", "chunks", "collections", "configuration", "versions"}
SUMMARY |= {"environment", "warnings", "share_done", "batches_lost", "canaries", "calibrations", "residues", "controls"}
SUMMARY |= {"sessions"}
LISTED = {"run", "state", "detail", "began_at", "latest_at", "models", "chunks_read", "done", "device_kind", "chunks"}
LISTED |= {"exit_code", "parked", "warnings", "mitigations", "refused", "bytes", "in_use", "pid", "user", "host"}
STATUS = {"run", "state", "detail", "done", "seconds_left", "schedule", "cpu_fallback", "paused", "in_use_by"}


def test_a_summary_has_the_keys_of_its_schema_and_is_valid_by_it(home):
    schema = json.loads(say(home, "schema").stdout)
    summary = summary_of(home / "runs" / "one")
    jsonschema.validate(summary, schema, cls=jsonschema.Draft202012Validator)
    assert summary["schema_version"] == "1" and {*summary} >= SUMMARY
    assert summary["configuration"]["roster"] == {"value": [["mean", 1.0]], "origin": "flag --roster"}


def test_lists_of_runs_and_how_one_stands_are_json(home):
    (run,) = json.loads(say(home, "runs", "--json").stdout)
    assert {*run} >= LISTED and (run["state"], run["done"], run["refused"]) == ("DONE", 1.0, 1)
    assert json.loads(say(home, "runs", "--json", "--out", "nowhere").stdout) == []
    status = json.loads(say(home, "ctl", "runs/one", "status", "--json").stdout)
    assert {*status} >= STATUS and status["state"] == "DONE"


def test_hits_are_json_lines(home):
    words = ("search", "store", sentences(30)[7], "--collection", "docs", "--config", "interlock.toml", "--json")
    said = say(home, *words, "--limit", 3)
    hits = [json.loads(line) for line in said.stdout.splitlines()]
    assert len(hits) == 3 and said.stderr == ""
    assert all({"id", "score", "payload"} <= {*hit} for hit in hits)
    assert hits[0]["payload"]["text"] == sentences(30)[7]
    assert [hit["score"] for hit in hits] == sorted((hit["score"] for hit in hits), reverse=True)


def test_answers_of_a_file_of_questions_are_in_its_order(home):
    (home / "asked.tsv").write_text("".join(f"q{at}\t{text}\n" for at, text in enumerate(sentences(4))))
    words = ("search", "store", "--collection", "docs", "--config", "interlock.toml", "--limit", 2, "--offline")
    say(home, *words, "--queries", "asked.tsv", "--out", "answers.jsonl")
    answers = [json.loads(line) for line in (home / "answers.jsonl").read_text().splitlines()]
    assert [each["query_id"] for each in answers] == [f"q{at}" for at in range(4)]
    say(home, *words, "--queries", "asked.tsv", "--out", "answers.trec")
    rows = [line.split() for line in (home / "answers.trec").read_text().splitlines()]
    assert [(row[0], row[1], row[3]) for row in rows] == [(f"q{at}", "Q0", rank) for at in range(4) for rank in "12"]


def test_an_upload_that_is_only_planned_is_json_and_asks_no_server(home):
    said = say(home, "upload", "runs/one", "--qdrant", SERVER, "--dry-run", "--json")
    assert [(each["collection"], each["points"]) for each in json.loads(said.stdout)] == [("docs", 30), ("more", 1)]


@pytest.mark.parametrize(
    ("words", "keys"),
    [
        (["models", "--json", "--offline"], {"model", "kind", "dim", "max_tokens", "licence"}),
        (["doctor", "--json"], {"check", "good", "found"}),
    ],
    ids=["models", "doctor"],
)
def test_what_this_machine_has_is_json(home, words, keys):
    said = say(home, *words, check=None)
    assert said.returncode in (0, 5)
    rows = json.loads(said.stdout)
    assert rows and all(keys <= {*row} for row in rows)


def test_settings_are_shown_with_where_they_come_from(home):
    said = say(home, "config", "show", *GIVEN, env={"INTERLOCK_WINDOW": "3"})
    rows = {line.split()[0]: line for line in said.stdout.splitlines() if line.split()}
    assert "flag" in rows["roster"] and "INTERLOCK_WINDOW" in rows["window"] and "default" in rows["fusion"]
    over = say(home, "config", "show", "--window", "5", env={"INTERLOCK_WINDOW": "3"})
    assert re.search(r"^window +5 .*flag", over.stdout, re.MULTILINE)


# What README shows first.


def quick():
    """The first three commands that README shows for one's own collections, without their comments."""
    block = README.split("## Your own collections")[1].split("```\ninterlock ")[1].split("```")[0]
    lines = [line for line in ("interlock " + block).splitlines() if line.startswith("interlock ")]
    return [shlex.split(line, comments=True)[1:] for line in lines[:3]]


@pytest.mark.skipif(minilm_directory() is None or find_spec("torch") is None, reason="the demo's models are not here")
def test_the_first_commands_of_readme_run_as_they_are_printed(tmp_path):
    assert [words[0] for words in quick()] == ["plan", "run", "search"]
    texts = ["To rotate the keys, issue a new pair and revoke the old one.", "The cafeteria opens at eight."]
    corpus(tmp_path / "chunks", {"Handbook": {"intro_chunks.json": texts}, "Tickets": {"2026.jsonl": ["a ticket"]}})
    plan, run, search = quick()
    assert "Handbook" in interlock(*plan, cwd=tmp_path).stdout
    assert not (tmp_path / "runs").exists()
    interlock(*run, cwd=tmp_path)
    assert texts[0] in interlock(*search, cwd=tmp_path).stdout.split("2.")[0]
