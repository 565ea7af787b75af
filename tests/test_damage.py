"""Own files that were damaged are told as such: one line, an exit code that is documented, and never a traceback.

Each kind of damage is done to a copy of a real run, and the real command is called in this process.
"""

import json
import os
import re
import shutil

import pytest

from interlock.console.main import main
from interlock.engine.errors import MEANINGS, ExitCode, UsageError
from interlock.engine.record import atomic, words
from interlock.engine.standing.closed import paces
from interlock.engine.vectors.manifest import read_manifest
from tests.builders import corpus, interlock, sentences, summary_of

DEEP = b"[" * 200_000


def cut(data):
    return data[: len(data) // 2]


def cut_before_the_first(_):
    return b'{"seq":0,"a'


def without(*keys):
    """JSON without one of its members, named by the way to it."""

    def damage(data):
        found = json.loads(data)
        place = found
        for key in keys[:-1]:
            place = place[key]
        del place[keys[-1]]
        return json.dumps(found).encode()

    damage.__name__ = "without-" + "-".join(map(str, keys))
    return damage


def instead(value, *keys):
    """JSON with another value at a place."""

    def damage(data):
        found = json.loads(data)
        place = found
        for key in keys[:-1]:
            place = place[key]
        place[keys[-1]] = value
        return json.dumps(found).encode()

    damage.__name__ = f"{'-'.join(map(str, keys))}-{str(value)[:12]}"
    return damage


def whole(data):
    damage = lambda _: data  # noqa: E731
    damage.__name__ = f"all-{data[:12]!r}"
    return damage


def as_directory(path):
    path.unlink()
    path.mkdir()


def as_loop(path):
    path.unlink()
    path.symlink_to(path.name)


ANY_JSON = [
    cut,
    *map(whole, (b"", b"[1]", b"1", b"null", b"true", b"NaN", b'"a"', b"{}", b"\xff\xfe\0", b"[{}]", DEEP)),
]
PLACES = [as_directory, as_loop]
RUN_JSON = [
    without("roster"),
    without("chunks"),
    without("files"),
    without("roster", 0, "fingerprint"),
    instead("many", "threads"),
    instead(-1, "threads"),
    instead(10**30, "threads"),
    instead([1], "roster"),
    instead(None, "roster", 0, "weight"),
    instead("x", "roster"),
    instead(5, "files"),
    instead(None, "chunks"),
]
MANIFEST = [
    without("run"),
    without("models"),
    without("run", "commits"),
    without("run", "sources"),
    without("run", "commits", "tiny-a"),
    without("run", "sources", "tiny-a"),
    without("models", 0, "dim"),
    instead("sum", "fusion"),
    instead("named", "fusion"),
    instead([], "models"),
    instead("other", "models", 0, "model"),
    instead("../../x", "models", 0, "model"),
    instead("\x1b[2J", "models", 0, "model"),
    instead(0, "models", 0, "weight"),
    instead(float("inf"), "models", 0, "weight"),
    instead(float("nan"), "models", 0, "weight"),
    instead(-1, "models", 0, "dim"),
    instead(10**40, "models", 0, "dim"),
    instead(0, "models", 0, "max_tokens"),
    instead("int3", "models", 0, "dtype"),
]
NO_SUMMARY = [*ANY_JSON, *PLACES, instead(float("inf"), "seconds")]
HOURS = f"{10**39 // 3600}:{10**39 % 3600 // 60:02d}:{10**39 % 60:02d}"
TIBS = f"{10**39 / 1024**4:.1f} TiB"
SUMMARY = {
    instead(10**39, "seconds"): ("SUMMARY", 5, HOURS),
    instead(-(10**400), "seconds"): ("SUMMARY", 5, "?"),
    instead(-5, "seconds"): ("SUMMARY", 5, "-0:05"),
    instead(10**400, "collections", 0, "passes", 0, "rows_per_second"): ("1  tiny-a", 9, "?"),
    instead(-(10**400), "collections", 0, "passes", 0, "seconds"): ("1  tiny-a", 8, "?"),
    instead(10**400, "collections", 0, "leases", 0, "budget_bytes"): ("L001", 7, "?"),
    instead(-(10**39), "collections", 0, "leases", 0, "predicted_bytes"): ("L001", 9, f"-{TIBS}"),
    instead({"a": 1}, "collections"): ("SUMMARY", 6, "0 passes"),
    instead([1, [2], {"passes": 3}], "collections"): ("SUMMARY", 6, "0 passes"),
}
"""Odd values in a summary that is one all the same: the line, the cell of it and the words that show them."""


@pytest.fixture(scope="module")
def finished(tmp_path_factory, tiny_a):
    """Chunks, a completed run of them and its store; not to be changed."""
    home = tmp_path_factory.mktemp("damage") / "finished"
    corpus(home / "chunks", {"Docs": {"a_chunks.json": sentences(12)}})
    interlock("run", "chunks", "--roster", tiny_a, "--run-id", "one", "--qdrant", "store", "--quiet", cwd=home)
    return home


@pytest.fixture
def home(finished, tmp_path, monkeypatch):
    shutil.copytree(finished, tmp_path / "home", ignore=shutil.ignore_patterns("store"))
    monkeypatch.chdir(tmp_path / "home")
    run = tmp_path / "home" / "runs" / "one" / "run.json"  # the copied chunks lie elsewhere
    run.write_text(json.dumps(json.loads(run.read_text()) | {"chunks": str((tmp_path / "home" / "chunks").resolve())}))
    return tmp_path / "home"


@pytest.fixture
def call(capfd):
    """Call the command in this process; its exit code, and the lines on stderr that are its own; `out` has the rest."""

    def called(*args):
        capfd.readouterr()
        try:
            code = main([str(each) for each in args])
        except SystemExit as ended:
            code = ended.code
        called.out, err = capfd.readouterr()
        assert "Traceback" not in called.out + err and "\x1b" not in called.out + err
        assert code in set(MEANINGS)
        return code, [line for line in err.splitlines() if line.startswith("interlock: ")]

    return called


def harm(path, damage):
    if damage in PLACES:
        damage(path)
    else:
        path.write_bytes(damage(path.read_bytes()))


def name(damage):
    return damage.__name__


@pytest.mark.parametrize("damage", [*ANY_JSON, *PLACES, *RUN_JSON], ids=name)
def test_a_run_whose_json_is_damaged_is_told_in_one_line_and_not_continued_or_reused(home, call, tiny_a, damage):
    harm(home / "runs" / "one" / "run.json", damage)
    before = sorted(path for path in (home / "runs" / "one").rglob("*"))
    code, said = call("run", "chunks", "--roster", tiny_a, "--run-id", "one", "--resume", "--no-ui")
    assert code == ExitCode.FAILED and len(said) == 1
    assert "one/run.json" in said[0]
    assert sorted(path for path in (home / "runs" / "one").rglob("*")) == before
    code, said = call("run", "chunks", "--roster", tiny_a, "--reuse", "runs/one", "--run-id", "two", "--no-ui")
    assert code == ExitCode.USAGE and len(said) == 1


def test_a_run_json_that_is_gone_is_not_written_anew_beside_vectors_of_unknown_texts(home, call, tiny_a):
    (home / "runs" / "one" / "run.json").unlink()
    corpus(home / "chunks", {"Docs": {"a_chunks.json": [text.replace("text", "else") for text in sentences(12)]}})
    code, said = call("run", "chunks", "--roster", tiny_a, "--run-id", "one", "--resume", "--no-ui")
    assert (code, len(said)) == (ExitCode.FAILED, 1) and "one/run.json is missing" in said[0]
    assert not (home / "runs" / "one" / "run.json").exists()


@pytest.mark.parametrize("damage", [whole(b"[1]"), whole(DEEP), as_directory], ids=name)
def test_a_resume_passes_over_a_run_that_cannot_be_read_and_says_so(home, call, tiny_a, damage):
    bad = shutil.copytree(home / "runs" / "one", home / "runs" / "bad")
    harm(bad / "run.json", damage)
    assert call("run", "chunks", "--roster", tiny_a, "--resume", "--no-ui", "--quiet") == (0, [])
    summary = summary_of(home / "runs" / "one")
    assert summary["sessions"] == 2
    (warning,) = summary["warnings"]
    assert "skipped a run" in warning and "bad/run.json" in warning


@pytest.mark.parametrize("damage", NO_SUMMARY, ids=name)
def test_what_is_no_summary_is_refused_in_one_line(home, call, damage):
    harm(home / "runs" / "one" / "summary.json", damage)
    for args in (["view", "runs/one"], ["view", "runs/one", "runs/one"], ["view", "--plain", "runs/one"]):
        code, said = call(*args)
        assert (code, len(said)) == (ExitCode.USAGE, 1) and "runs/one" in said[0]


@pytest.mark.parametrize(("damage", "shown"), SUMMARY.items(), ids=lambda each: getattr(each, "__name__", ""))
def test_a_summary_with_odd_values_is_shown_with_what_they_are(home, call, damage, shown):
    begins, cell, words = shown
    harm(home / "runs" / "one" / "summary.json", damage)
    assert call("view", "runs/one", "runs/one") == (0, [])
    assert "no difference" in call.out
    assert call("view", "--plain", "runs/one") == (0, [])
    line = next(line.strip() for line in call.out.splitlines() if line.strip().startswith(begins))
    assert re.split(r"  +", line)[cell - 1] == words


@pytest.mark.parametrize("damage", [*NO_SUMMARY, *SUMMARY], ids=name)
def test_the_pace_of_a_good_run_is_known_beside_a_damaged_one(home, damage):
    bad = shutil.copytree(home / "runs" / "one", home / "runs" / "two")
    harm(bad / "summary.json", damage)
    found = paces(home / "runs", "cpu")
    assert found[("tiny-a", "float32")] > 0


@pytest.mark.parametrize("damage", [*ANY_JSON, *PLACES, *MANIFEST], ids=name)
def test_a_damaged_manifest_is_told_in_one_line(finished, tmp_path, call, damage):
    for file in (finished / "store" / "docs").iterdir():  # a store is large, and nothing but its manifest is touched
        if file.name != "manifest.json":
            (tmp_path / "docs").mkdir(exist_ok=True)
            (tmp_path / "docs" / file.name).symlink_to(file)
    shutil.copy(finished / "store" / "docs" / "manifest.json", tmp_path / "docs")
    harm(tmp_path / "docs" / "manifest.json", damage)
    code, said = call("search", tmp_path, "the text", "--collection", "docs", "--offline")
    assert (code, len(said)) == (ExitCode.USAGE, 1), said


def test_a_manifest_whose_models_are_those_of_the_vectors_is_read(finished):
    plain = json.loads((finished / "store" / "docs" / "manifest.json").read_text())
    assert [member.model for member in read_manifest(plain, {"fused": 32}, ["bm25"]).models] == ["tiny-a"]
    with pytest.raises(UsageError, match="vectors do not match the store: fused was 8, is now 32"):
        read_manifest(plain, {"fused": 8}, ["bm25"])


@pytest.mark.parametrize("damage", [cut, *map(whole, (b"", b"{}", b"\0" * 500, DEEP)), *PLACES], ids=name)
def test_a_command_that_fails_on_a_damaged_journal_says_so_in_one_line(home, call, tiny_a, damage):
    harm(home / "runs" / "one" / "journal.jsonl", damage)
    for args in (
        ["run", "chunks", "--roster", tiny_a, "--run-id", "one", "--resume", "--no-ui"],
        ["watch", "runs/one"],
    ):
        code, said = call(*args)
        assert len([line for line in said if "plain log output" not in line]) == (code != 0), said


@pytest.mark.parametrize("damage", [*map(whole, (b"", b"{}", b"\0" * 500)), cut_before_the_first], ids=name)
def test_a_begun_run_whose_journal_says_nothing_is_not_begun_again(home, call, tiny_a, damage):
    harm(home / "runs" / "one" / "journal.jsonl", damage)
    code, said = call("run", "chunks", "--roster", tiny_a, "--run-id", "one", "--resume", "--no-ui")
    assert (code, len(said)) == (ExitCode.FAILED, 1)
    assert "one/journal.jsonl is missing or lacks the run's settings" in said[0]
    assert (home / "runs" / "one" / "journal.jsonl").read_bytes() == damage(b"")


def test_a_name_that_no_run_has_is_refused_with_the_names_of_those_there_and_begun_where_there_are_none(
    home, call, tiny_a
):
    words = ["--resume", "--no-ui", "--quiet"]
    code, said = call("run", "chunks", "--roster", tiny_a, *words, "--run-id", "oen")
    assert (code, len(said)) == (ExitCode.USAGE, 1) and "no run 'oen', runs in runs: one:" in said[0]
    assert not (home / "runs" / "oen").exists()
    none = ("--run-id", "first", "--out", "none-so-far")
    assert call("run", "chunks", *words, *none)[0] == ExitCode.USAGE  # with whatever models are the default
    assert call("run", "chunks", "--roster", tiny_a, *words, *none) == (0, [])
    assert summary_of(home / "none-so-far" / "first")["warnings"] == []


@pytest.mark.parametrize(
    "place", ["passes", "exports", "exports/Docs", "passes/0_tiny-a", "passes/0_tiny-a/vectors.npy", "."]
)
def test_a_link_in_a_run_directory_is_written_through_by_nobody(home, call, tiny_a, tmp_path, place):
    run = home / "runs" / "one"
    elsewhere = tmp_path / "elsewhere"
    shutil.move(run / place if place != "." else run, elsewhere)
    (run / place if place != "." else run).symlink_to(elsewhere)
    before = {path: path.stat().st_mtime_ns for path in [elsewhere, *elsewhere.rglob("*")]}
    code, said = call("run", "chunks", "--roster", tiny_a, "--run-id", "one", "--resume", "--no-ui")
    assert (code, len(said)) == (ExitCode.USAGE, 1) and "is a symbolic link" in said[0]
    assert {path: path.stat().st_mtime_ns for path in [elsewhere, *elsewhere.rglob("*")]} == before


def test_links_that_have_the_names_of_unfinished_files_are_not_followed(home, call, tiny_a, tmp_path):
    victim = tmp_path / "victim"
    victim.write_text("mine")
    run = home / "runs" / "one"
    names = [".summary.json.partial", "exports/Docs/.points.parquet.partial", "passes/.texts.npy.partial"]
    for each in names:
        (run / each).symlink_to(victim)
    (run / "exports" / "Docs" / ".vectors.npy.00ff00ff00ff.partial").write_text("left by a killed session")
    assert call("run", "chunks", "--roster", tiny_a, "--run-id", "one", "--resume", "--no-ui", "--quiet")[0] == 0
    assert victim.read_text() == "mine"
    assert not list(run.rglob(".*.partial"))


def test_an_unfinished_file_has_a_name_of_its_own_each_time(tmp_path):
    with atomic.replacing(tmp_path / "a") as one, atomic.replacing(tmp_path / "a") as other:
        assert one != other and one.exists() and other.exists()
        one.write_text("1")
        other.write_text("2")
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


NUMBERS = {
    float("inf"): ("?", "?"),
    float("-inf"): ("?", "?"),
    float("nan"): ("?", "?"),
    10**400: ("?", "?"),
    -(10**400): ("?", "?"),
    10**39: (TIBS, HOURS),
    2**30 - 1: ("1.0 GiB", "298261:37:03"),
    -7: ("-7 B", "-0:07"),
    0: ("0 B", "0:00"),
}


@pytest.mark.parametrize(("number", "shown"), NUMBERS.items(), ids=range(len(NUMBERS)))
def test_any_number_is_shown_as_bytes_and_as_a_time_or_as_a_question(number, shown):
    assert (words.human_bytes(number), words.duration(number)) == shown


@pytest.mark.parametrize(("seconds", "shown"), [(-5, "-0:05"), (-61.5, "-1:01"), (-0.5, "0:00"), (float("nan"), "?")])
def test_times_below_zero_are_shown_as_such_and_what_is_none_as_a_question(seconds, shown):
    assert words.duration(seconds) == shown


def test_a_pace_that_is_no_number_is_not_taken_over(home, tmp_path):
    told = summary_of(home / "runs" / "one")
    for each in told["collections"][0]["passes"]:
        each |= {"tokens": 10**9, "seconds": 1e-308}
    (tmp_path / "r").mkdir()
    (tmp_path / "r" / "summary.json").write_text(json.dumps(told))
    assert paces(tmp_path, "cpu") == {}
    (tmp_path / "p").mkdir()
    os.mkfifo(tmp_path / "p" / "summary.json")  # nobody waits for who would write it
    assert paces(tmp_path, "cpu") == {}
