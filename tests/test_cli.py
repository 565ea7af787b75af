"""The command line is an interface: exit codes, what goes to stdout, and never an escape from outside to a terminal."""

import json
import os
import re
import shutil
import subprocess
from dataclasses import fields

import pytest

from interlock.console.cli import COMMANDS, parse
from interlock.engine.errors import ExitCode
from interlock.engine.knobs import GROUPS
from interlock.engine.record import events as ev
from interlock.engine.settings import knobs
from tests.builders import (
    command,
    corpus,
    environment,
    events_of,
    interlock,
    sentences,
    summary_of,
    tiny_model,
    toml,
)

ESC = "\x1b"
HOSTILE = f"{ESC}[2J{ESC}]0;owned\x07\x9b31m\u202e"


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return corpus(
        tmp_path_factory.mktemp("in"),
        {"Docs": {"a_chunks.json": sentences(12)}, "More": {"m.jsonl": ["about the more", {"text": 1}]}},
    )


@pytest.fixture(scope="module")
def store(tmp_path_factory, root, tiny_a):
    """A store of two collections, written by one run."""
    place = tmp_path_factory.mktemp("stored")
    words = ("--qdrant", "store", "--export", "npy", "--max-refused", "1", "--quiet")
    interlock("run", root, "--roster", tiny_a, *words, cwd=place)
    return place / "store"


def files_below(directory):
    return {path: path.stat().st_mtime_ns for path in directory.rglob("*")}


@pytest.mark.parametrize(
    "args",
    [[], ["fly"], ["run"], ["run", ""], ["run", "x", "--speed", "3"], ["config"], ["run", "x", "--events", "file"]],
)
def test_a_wrong_command_line_exits_2_and_says_so_on_stderr(call, args):
    code, out, err = call(*args)
    assert (code, out) == (ExitCode.USAGE, "")
    assert "usage: interlock" in err


def test_no_help_is_wider_than_80_cells(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    for words in ([], *([name] for name in COMMANDS)):
        with pytest.raises(SystemExit, match="0"):
            parse([*words, "--help"])
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 80


def test_what_is_behind_two_dashes_is_text_wherever_options_are():
    assert parse(["encode", "s", "--only", "a", "--", "-x", "--only"]).texts == ["-x", "--only"]
    assert parse(["encode", "s", "a", "--only", "a", "-", "a", "--", "-x"]).texts == ["a", "-", "a", "-x"]
    assert parse(["search", "s", "--limit", "1", "--", "-x"]).query == "-x"
    with pytest.raises(SystemExit, match="2"):
        parse(["encode", "s", "--onli", "a", "--", "--onli"])


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["run", "x", "--rooster", "y"], "interlock run: error: unknown: --rooster (did you mean --roster?), y\n"),
        (["run", "x", "--model", "y"], "interlock run: error: unknown: --model (did you mean --roster?), y\n"),
        (["run", "x", "--rost", "y"], "interlock run: error: unknown: --rost (did you mean --roster?), y\n"),
        (["embed", "x"], "there is no command 'embed' (did you mean run?): `interlock --help` lists them\n"),
        (["watch", "x", "--sped=3"], "interlock watch: error: unknown: --sped=3 (did you mean --speed?)\n"),
        (["view", "x", "--qqq"], "interlock view: error: unknown: --qqq\n"),
        (["run", "x", f"--{HOSTILE}"], "interlock run: error: unknown: --"),
        (
            ["run", "x", "--roster", "all-minilm"],
            "unknown model 'all-minilm' (did you mean all-minilm-l6?): available ",
        ),
        (["run", "x", "--roster", "zzz"], "unknown model 'zzz': available all-minilm-l6, "),
        (
            ["run", "x", "--roster", "All-MiniLM"],
            "unknown model 'All-MiniLM' (did you mean all-minilm-l6?): available ",
        ),
        (["run", "x", "--roster", "mine"], "unknown model 'mine' (did you mean ./mine?): available "),
        (["run", "x", "--collections", "handbook"], "no collection 'handbook' (did you mean Handbook?): available "),
        (["search", "x", "how", "do", "I"], "interlock search: error: unknown: do, I: put the question in quotes\n"),
    ],
)
def test_a_word_that_is_not_known_is_told_with_the_one_that_was_meant_where_one_is_close(call, args, said, tmp_path):
    corpus(tmp_path / "x", {"Handbook": {"a_chunks.json": ["a text"]}})
    (tmp_path / "mine").mkdir()
    code, _, err = call(*args)
    assert code == ExitCode.USAGE
    assert said in err and ESC not in err


def test_watch_without_a_terminal_says_that_a_run_has_not_begun_or_is_not_there(call, tmp_path):
    (begun := tmp_path / "begun").mkdir()
    (begun / "journal.jsonl").touch()
    assert call("watch", begun) == (0, f"the run has not begun: interlock watch {begun} shows it again\n", "")
    code, out, err = call("watch", tmp_path / "nope")
    assert (code, out) == (ExitCode.USAGE, "") and "nope does not exist" in err


@pytest.mark.parametrize("quiet", [(), ("--quiet",)])
def test_a_model_without_a_device_says_why_once_and_which_flag_to_drop_even_when_quiet(call, root, tiny_a, quiet):
    words = ("--roster", tiny_a, "--devices", "sim:T4", "--faults", "skew:9", "--no-cpu-fallback", "--no-ui")
    code, out, err = call("run", root, *words, *quiet)
    why = "computes wrongly on cuda:0, and CPU fallback is off: drop --no-cpu-fallback, or drop it from --roster"
    assert (code, out) == (ExitCode.FAILED, "")
    (full,) = [line for line in err.splitlines() if why in line and not line.startswith("FAILED")]  # the recap
    assert full.endswith(f"error: pass 1 {tiny_a.name} failed: {why}")
    assert f"error: run failed: Docs: {tiny_a.name}: see above" in err
    assert quiet != ("--quiet",) or all("error: " in line for line in err.splitlines())


def test_a_ceiling_too_small_for_a_model_is_told_with_bytes_and_remedy_and_counts(call, tmp_path, root, tiny_a):
    words = (root, "--roster", tiny_a, "--devices", "sim:2xT4", "--ceiling", "300MiB", "--max-refused", "1")
    why = rf"{tiny_a.name} fits on no GPU \(needs \S+ \S+ \(\S+ \S+ streamed\), 0 B left of --ceiling 300.0 MiB "
    why += r"after 300.0 MiB of context and \S+ MiB of margin\)"
    code, _, err = call("run", *words, "--strict", "--run-id", "r")
    assert code == ExitCode.MITIGATED
    (line,) = [line for line in err.splitlines() if "warning: on the CPU, pass 1" in line]
    assert re.search(f"{why}; computing all of it on the CPU; raise --ceiling to 0.4GiB or more", line)
    (step,) = events_of(tmp_path / "runs" / "r", ev.Mitigated)
    assert (step.rung, step.stays, step.flags) == ("cpu", True, ("--ceiling", "0.4GiB"))
    enough = [*words[:-4], *step.flags, *words[-2:], "--run-id", "enough"]
    assert call("run", *enough)[0] == ExitCode.COMPLETED
    assert "cpu" not in {step.rung for step in events_of(tmp_path / "runs" / "enough", ev.Mitigated)}
    code, out, _ = call("plan", *words)
    assert code == ExitCode.COMPLETED
    assert re.search(
        rf"^warning: {why}: it is computed on the CPU; raise --ceiling to 0.4GiB or more$", out, re.MULTILINE
    )
    assert "-" not in re.search(r"of (.*) on", out)[1]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("doctor", "--gpu", "--json", "out.json"), "--json prints to stdout: --json > out.json"),
        (
            ("view", "runs/x/journal.jsonl"),
            "journal.jsonl is the journal of a run: name its summary.json or the run dir",
        ),
        (("run", "nowhere"), "nowhere does not exist: name a file or a directory of texts"),
        (("run", "notes.txt"), "cannot read texts from notes.txt: name a directory, or a file of those forms: "),
        (("search", "store", " "), "the query is empty"),
    ],
)
def test_what_is_named_wrongly_is_answered_with_what_was_meant(call, tmp_path, words, said):
    (tmp_path / "runs" / "x").mkdir(parents=True)
    for file in ("runs/x/journal.jsonl", "notes.txt"):
        (tmp_path / file).write_text('{"text": "one"}\n{"text": "two"}\n')
    code, _, err = call(*words)
    assert code == ExitCode.USAGE
    assert said in err


def test_a_model_that_would_be_refused_anyway_is_not_advised_to_be_fetched(call, root):
    code, _, err = call("plan", root, "--roster", "jina-embeddings-v4", "--offline")
    assert code == ExitCode.UNAVAILABLE
    assert "needs code of its own, which is never run" in err
    assert "to fetch it" not in err


@pytest.mark.parametrize(
    ("given", "warning"),
    [
        (("--token-pooling", "2"), "--token-pooling 2: nothing is kept of tokens without --token-vectors"),
        (("--bm25", "german"), "--bm25 german: BM25 is only in a store (--qdrant)"),
        (("--export", ""), "--export '': vectors stay in the run"),
        (("--retry-parked",), "--retry-parked: nothing was parked before, add --resume"),
    ],
)
def test_a_plan_warns_as_the_run_does_of_a_setting_that_changes_nothing(call, root, tiny_a, given, warning):
    words = (root, "--roster", tiny_a)
    assert f"warning: {warning}" in call("plan", *words, *given)[1]
    assert f"warning: {warning}" in call("run", *words, *given)[2]


@pytest.mark.parametrize("command", ["plan", "run"])
def test_vectors_of_a_model_that_was_not_trained_for_it_are_not_cut(call, root, tiny_a, command):
    code, _, err = call(command, root, "--roster", tiny_a, "--dim", "7")
    assert code == ExitCode.USAGE
    assert "--dim 7: no model of the roster is known to be trained for shorter vectors: drop --dim" in err
    assert f"set matryoshka = [7] in [models.{tiny_a.name}]" in err


def test_a_setting_that_has_its_effect_is_not_warned_of(call, root, tiny_a, tmp_path):
    words = ("--token-vectors", tiny_a, "--token-pooling", "2")
    _, out, _ = call("plan", root, "--roster", tiny_a, *words, "--qdrant", tmp_path / "s", "--bm25", "german")
    assert not [line for line in out.splitlines() if line.startswith("warning: --")]


def test_mitigations_are_told_once_and_counted_at_the_end(call, tmp_path, tiny_a):
    chunks = corpus(tmp_path / "in", {"Docs": {"a_chunks.json": sentences(40)}})
    faults = ",".join(f"oom:{number}" for number in range(40, 160))
    code, _, err = call("run", chunks, "--roster", tiny_a, "--devices", "sim:T4", "--faults", faults, "--run-id", "r")
    steps = events_of(tmp_path / "runs" / "r", ev.Mitigated)
    kinds = {(step.rung, step.device) for step in steps}
    assert code == ExitCode.COMPLETED
    assert len(steps) > 2 * len(kinds)
    assert len([line for line in err.splitlines() if "warning: " in line]) <= 2 * len(kinds)
    assert f"run completed with {len(steps)} mitigations\n" in err


@pytest.mark.parametrize(
    ("args", "code"),
    [
        (["--roster", "no-such-model"], ExitCode.USAGE),
        (["--fusion", "sum"], ExitCode.USAGE),
        (["--config", "missing.toml"], ExitCode.USAGE),
        (["--reuse", "missing"], ExitCode.USAGE),
        (["--collections", "Nowhere"], ExitCode.USAGE),
        (["--roster", "/no/such/model"], ExitCode.UNAVAILABLE),
        (["--roster", "hf:no/model", "--offline"], ExitCode.UNAVAILABLE),
        (["--devices", "tpu"], ExitCode.UNAVAILABLE),
        (["--ceiling", "1KiB"], ExitCode.UNAVAILABLE),
    ],
)
def test_what_cannot_be_run_exits_with_its_code_and_leaves_no_run(call, tmp_path, root, tiny_a, args, code):
    roster = [] if "--roster" in args else ["--roster", tiny_a]
    ended, out, err = call("run", root, *roster, *args)
    assert (ended, out) == (code, "")
    assert "interlock: " in err and "Traceback" not in err
    assert not list(tmp_path.glob("runs/*"))


def test_a_resumed_run_streams_only_its_new_session(call, root, tiny_a):
    first = call("run", root, "--roster", tiny_a, "--events", "-", "--run-id", "r")[1]
    second = call("run", root, "--roster", tiny_a, "--events", "-", "--run-id", "r", "--resume")[1]
    entries = [json.loads(line) for line in second.splitlines()]
    assert entries[0]["seq"] == len(first.splitlines())
    assert {entry["session"] for entry in entries} == {1}


def test_a_summary_path_gets_a_copy_and_leaves_stdout_to_events(call, tmp_path, root, tiny_a):
    (tmp_path / "x").mkdir()
    _, out, _ = call("run", root, "--roster", tiny_a, "--summary", "x/s.json", "--events", "-", "--run-id", "r")
    assert (tmp_path / "x" / "s.json").read_bytes() == (tmp_path / "runs" / "r" / "summary.json").read_bytes()
    assert json.loads(out.splitlines()[-1])["body"]["event"] == "run_closed"


def test_a_link_to_a_run_beside_it_is_no_run_of_its_own(call, tmp_path, root, tiny_a):
    begin = ("run", root, "--roster", tiny_a, "--no-ui", "--quiet")
    assert call(*begin, "--run-id", "r1")[0] == ExitCode.FAILED
    (tmp_path / "runs" / "latest").symlink_to("r1")
    assert call(*begin, "--resume")[0] == ExitCode.FAILED
    assert {each.name for each in (tmp_path / "runs").iterdir()} == {"r1", "latest"}
    assert [each["run"] for each in json.loads(call("runs", "--json")[1])] == ["runs/r1"]


def test_a_summary_replaces_a_summary_and_nothing_else(call, tmp_path, root, tiny_a):
    chunks, journal = next(root.rglob("*.json*")), tmp_path / "runs" / "a" / "journal.jsonl"
    begin = ("run", root, "--roster", tiny_a, "--no-ui", "--quiet")
    for name in ("a", "b"):
        assert call(*begin, "--run-id", name, "--summary", tmp_path / "s.json")[0] == ExitCode.FAILED
    assert json.loads((tmp_path / "s.json").read_text())["run_id"] == "b"
    for file in (chunks, journal, journal.with_name("run.json")):
        before = file.read_bytes()
        code, out, err = call(*begin, "--run-id", "c", "--summary", file)
        assert (code, out) == (ExitCode.USAGE, "")
        assert f"--summary: {file} holds something else, which stays: name another file" in err
        assert call(*begin, "--window", "x", "--summary", file)[0] == ExitCode.USAGE
        assert file.read_bytes() == before
    assert not (tmp_path / "runs" / "c").exists()


@pytest.mark.parametrize(
    ("flags", "why"),
    [
        (("--roster", "nosuch"), "unknown model 'nosuch'"),
        (("--sparse", "all-minilm-l6"), "all-minilm-l6"),
        (("--dim", "16", "--roster", "bge-m3"), "--dim 16: no model of the roster"),
        (("--chunk-sparse", "fused"), "--chunk-sparse 'fused' does not work"),
        (("--allow-pickle", "nosuch"), "unknown model 'nosuch'"),
        (("--out", "a-file"), "--out a-file: a-file is not a directory"),
        (("--faults", "oom:1"), "--faults needs simulated devices"),
        (("--fusion", "named", "--project", "8"), "--project"),
    ],
)
def test_settings_that_no_run_can_have_are_shown_and_refused_as_the_plan_of_a_run_refuses_them(
    call, tmp_path, flags, why
):
    (tmp_path / "a-file").touch()
    corpus(tmp_path / "in", {"Docs": {"a_chunks.json": ["a"]}})
    code, out, err = call("config", "show", *flags)
    expected = ExitCode.FAILED if "--out" in flags else ExitCode.USAGE
    assert (code, why in err, "--roster" in out) == (expected, True, True), err
    planned = call("plan", "in", *flags)
    assert (planned[0], planned[2]) == (code, err)
    assert call("config", "show")[0] == ExitCode.COMPLETED


@pytest.mark.parametrize("name", ["run", "demo"])
def test_events_and_summary_both_on_stdout_are_refused_before_any_work(call, tmp_path, root, name):
    code, out, err = call(name, *([root] if name == "run" else []), "--events", "-", "--summary", "-")
    assert (code, out) == (ExitCode.USAGE, "")
    assert "both write to stdout" in err
    assert not (tmp_path / "runs").exists()


def test_the_run_completes_when_the_reader_of_its_events_goes_away(tmp_path, root, tiny_a):
    words = ("--events", "-", "--run-id", "r", "--quiet", "--collections", "Docs")
    line = command("run", root, "--roster", tiny_a, *words)
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "wb") as pipe:
        done = subprocess.run(line, env=environment(), cwd=tmp_path, stdout=pipe, stderr=subprocess.PIPE)
    assert (done.returncode, done.stderr) == (0, b"")
    assert summary_of(tmp_path / "runs" / "r")["status"] == "completed"


def test_a_plan_says_what_a_run_would_do_and_writes_nothing(call, tmp_path, root, tiny_a, tiny_b, monkeypatch):
    (scratch := tmp_path / "tmp").mkdir()
    monkeypatch.setenv("TMPDIR", str(scratch))
    before = files_below(tmp_path)
    code, out, err = call("plan", root, "--roster", f"{tiny_a},{tiny_b}", "--qdrant", "store")
    rows = [line.split() for line in out.splitlines()]
    assert (code, err) == (0, "")
    assert ["Docs", "1", "12", "12", "0", "0", "docs"] in rows
    assert ["More", "1", "1", "1", "0", "1", "more"] in rows
    assert [row[:4] for row in rows if row[:1] in (["1"], ["2"])] == [
        ["1", "tiny-a", "float32", "32"],
        ["2", "tiny-b", "float32", "48"],
    ]
    assert "fused vectors: 80" in out
    assert files_below(tmp_path) == before


@pytest.mark.parametrize(("gpus", "shares"), [("sim:T4", True), ("sim:2xT4", False)])
def test_a_plan_shows_the_margin_and_what_a_model_that_is_alone_on_its_gpu_has_more(
    call, root, tiny_a, tiny_b, gpus, shares
):
    words = ("plan", root, "--roster", f"{tiny_a},{tiny_b}", "--devices", gpus)
    code, out, _ = call(*words, "--margin", "1GiB")
    assert (code, "margin: 1.0 GiB of each limit are leased to no model (--margin)\n" in out) == (0, True)
    found = re.findall(r"tokens; on a GPU ([\d,]+) fit while it is alone there, ([\d,]+) beside the others", out)
    alone, beside = zip(
        *((int(one.replace(",", "")), int(other.replace(",", ""))) for one, other in found), strict=True
    )
    assert len(alone) == 2
    assert all((more > less) is shares for more, less in zip(alone, beside, strict=True))
    usual = re.findall(r"GPU ([\d,]+) fit", call(*words)[1])
    assert all(int(more.replace(",", "")) > less for more, less in zip(usual, alone, strict=True))
    assert " fit while " not in call(*words[:4], "--devices", "cpu")[1]


def test_a_plan_tells_what_is_refused_as_the_run_does_and_which_collection_is_left_with_nothing(call, tmp_path, tiny_a):
    files = {"Docs": ["one text", ""], "Many": ["another", *[" "] * 9], "None": [""]}
    chunks = corpus(tmp_path / "chunks", {name: {"a_chunks.json": texts} for name, texts in files.items()})
    code, out, _ = call("plan", chunks, "--roster", tiny_a)
    told = [line for line in out.splitlines() if line.startswith("warning: ")]
    assert code == ExitCode.COMPLETED
    assert told[0] == "warning: Docs/a_chunks.json record 2 refused: the text is empty"
    assert told[0] in call("run", chunks, "--roster", tiny_a)[2]
    assert told[5:] == [
        "warning: Many/a_chunks.json record 6 refused: the text is empty",
        "warning: 4 more refusals in Many",
        "warning: None/a_chunks.json record 1 refused: the text is empty",
        "warning: collection None has no usable record: a run would fail for it",
    ]


def test_a_plan_says_why_a_model_is_padded(call, tmp_path):
    model = tiny_model(tmp_path / "odd", pooling="max")
    code, out, err = call(
        "plan", corpus(tmp_path / "chunks", {"Docs": {"a_chunks.json": ["one text"]}}), "--roster", model
    )
    assert (code, err) == (0, "")
    assert "padded: odd, because its pooling is max\n" in out


def test_a_plan_that_does_not_fit_is_shown_and_exits_5(call, root, tiny_a):
    code, out, err = call("plan", root, "--roster", tiny_a, "--ceiling", "1KiB")
    assert code == ExitCode.UNAVAILABLE
    assert "does not fit" in out and "raise --ceiling" in err


def test_a_search_in_a_store_of_several_collections_must_choose_one(call, store):
    code, _, err = call("search", store, "text 3")
    assert code == ExitCode.USAGE
    assert "has 2 collections: choose one with --collection (docs, more)" in err
    code, out, _ = call("search", store, "text 3", "--collection", "more")
    assert code == 0 and "about the more" in out
    assert out.startswith("text 3  (0.75 dense + 0.25 bm25, each from 0 to 1 among what it found)\n")


@pytest.mark.parametrize(
    ("args", "why"),
    [
        (["nowhere", "q"], "no store at nowhere"),
        (["STORE", "q", "--collection", "other"], "no collection 'other'.*docs, more"),
        (["STORE", "q", "--collection", "docs", "--limit", "0"], "--limit: expected a whole number of at least 1"),
        (["STORE", "\udcff\udcfe", "--collection", "docs"], "the query is not text"),
        (["STORE", "a\ud800", "--collection", "docs"], "the query is not text"),
        (["STORE", "q", "--collection", "../docs"], "no collection"),
        (["STORE/docs", "q"], "docs is one collection of a store: name .*, with --collection docs"),
    ],
)
def test_an_impossible_search_exits_2_and_says_why(call, store, args, why):
    code, out, err = call("search", *(each.replace("STORE", str(store)) for each in args))
    assert (code, out) == (ExitCode.USAGE, "")
    assert "interlock: " in err
    assert re.search(why, err)


def test_a_search_with_too_low_a_ceiling_advises_only_what_a_search_takes(call, store):
    code, _, err = call("search", store, "q", "--collection", "docs", "--ceiling", "1KiB")
    assert code == ExitCode.UNAVAILABLE
    assert "free memory or raise --ceiling" in err and "--roster" not in err


@pytest.mark.parametrize("fusion", ["named", "mean"])
def test_a_search_follows_the_fusion_of_the_store(call, root, tiny_a, tiny_b, fusion):
    call("run", root, "--roster", f"{tiny_a}=3,{tiny_b}", "--fusion", fusion, "--qdrant", "s", "--export", "npy")
    code, out, _ = call("search", "s", sentences(12)[5], "--collection", "docs", "--limit", "1", "--json")
    hit = json.loads(out)
    assert (code, hit["payload"]["text"]) == (0, sentences(12)[5])
    assert hit["score"] == pytest.approx(1, abs=1e-5)


def test_a_search_in_a_matryoshka_store_cuts_the_query_too(call, tmp_path, root, tiny_a):
    file = toml(tmp_path / "c.toml", {"cut": {"source": str(tiny_a), "matryoshka": [8]}})
    call("run", root, "--roster", "cut", "--dim", "8", "--qdrant", "s", "--config", file)
    code, out, _ = call("search", "s", sentences(12)[5], "--collection", "docs", "--config", file, "--json")
    assert (code, json.loads(out.splitlines()[0])["score"]) == (0, pytest.approx(1, abs=1e-5))


def test_models_list_says_of_every_model_whether_it_is_here(call, tmp_path, tiny_a):
    file = toml(tmp_path / "c.toml", {"mine": {"source": str(tiny_a)}, "absent": {"source": "/no/such/model"}})
    code, out, _ = call("models", "--json", "--config", file)
    rows = {row["model"]: row for row in json.loads(out)}
    assert code == 0
    assert rows["mine"]["cached"].startswith("yes")
    assert rows["absent"]["cached"] == "no"
    assert rows["jina-embeddings-v4"]["cached"] == "refused: use qwen3-embedding-0.6b"
    assert {"all-minilm-l6", "bge-m3"} <= rows.keys()
    assert "all-mpnet-base-v2" in call("models")[1]


def test_models_list_and_fetch_take_only_the_named_model(call, tiny_a):
    assert [row["model"] for row in json.loads(call("models", "list", "bge-m3", "--json")[1])] == ["bge-m3"]
    code, out, _ = call("models", "fetch", tiny_a)
    assert (code, out.splitlines()[-1]) == (0, f"tiny-a: {tiny_a}")
    code, _, said = call("models", "list", "no-such-model")
    assert code == ExitCode.USAGE and "nomic-coderank" in said and "jina-embeddings-v4" not in said


def test_doctor_exits_0_on_a_machine_that_can_run_and_5_otherwise(call, tmp_path, tiny_a):
    code, out, _ = call("doctor", "--roster", tiny_a)
    assert code == 0
    assert "!!" not in out and "model tiny-a" in out
    code, out, _ = call("doctor", "--roster", "/no/such/model")
    assert code == ExitCode.UNAVAILABLE
    assert "!!" in out
    assert list(tmp_path.iterdir()) == []


@pytest.fixture(scope="module")
def hostile(tmp_path_factory):
    """Everything that a corpus can name, named to steer a terminal."""
    root = tmp_path_factory.mktemp("in") / f"root{ESC}[31m"
    good = {"text": f"text {HOSTILE}", "metadata": {"chunk_id": HOSTILE, "source_path": HOSTILE, HOSTILE: HOSTILE}}
    bad = {"text": "x", "metadata": {"chunk_id": HOSTILE, "source_path": HOSTILE}}
    return corpus(
        root,
        {
            "Docs": {"a_chunks.json": [good, bad, {"text": 1}], f"b{ESC}[2J_chunks.json": ["x"], "\u202eb.jsonl": [3]},
            f"Evil{ESC}[2J": {"c_chunks.json": ["x"]},
        },
    )


def test_no_escape_in_a_name_reaches_the_terminal(call, hostile, tiny_a):
    model = ["--roster", tiny_a, "--max-refused", "100%,files"]
    said = [
        call("run", hostile, *model, "--qdrant", "s", "--run-id", "r"),
        call("run", hostile, *model, "--run-id", "s", "--events", "-"),
        call("run", hostile, *model, "--run-id", "t", "--summary", "-"),
        call("plan", hostile, *model),
        call("search", "s", HOSTILE, "--json"),
        call("search", "s", HOSTILE),
    ]
    assert [code for code, _, _ in said] == [0] * 6
    for _, out, err in said:
        assert ESC not in out + err
    for _, out, err in (said[0], said[3], said[5]):
        assert not set("\x07\x9b\u202e") & set(out + err)
    assert "\\x1b[2J" in said[0][2] and "\\x1b[2J" in said[5][1]


@pytest.mark.parametrize(
    "args",
    [
        ["run", "ROOT", "--roster", "MODEL", "--out", f"out{ESC}[31m"],
        ["run", "ROOT", "--roster", f"no{ESC}[31m"],
        ["run", "ROOT", "--roster", f"/no{ESC}[31m/model"],
        ["run", "ROOT", "--collections", f"x{ESC}[31m"],
        ["run", f"missing{ESC}[31m"],
        ["run", "ROOT", "--config", f"missing{ESC}[31m"],
        ["run", "ROOT", f"--flag{ESC}[31m"],
        ["run", "ROOT", "--events", f"x{ESC}[31m"],
        [f"fly{ESC}[31m"],
        ["search", f"missing{ESC}[31m", "q"],
        ["config", "show", "--out", f"x{ESC}[31m"],
        ["doctor", "--roster", "MODEL", "--out", f"x{ESC}[31m"],
        ["models", "fetch", "EVIL"],
        ["models", "list", "EVIL"],
        ["models", "list", "EVIL", "--json"],
    ],
    ids=lambda args: " ".join(args).replace(ESC, "ESC"),
)
def test_no_escape_in_an_argument_reaches_the_terminal(call, tmp_path, root, tiny_a, args):
    evil = shutil.copytree(tiny_a, tmp_path / f"e{ESC}[31m" / "m")
    places = {"ROOT": root, "MODEL": tiny_a, "EVIL": evil}
    _, out, err = call(*(places.get(each, each) for each in args))
    assert out + err
    assert ESC not in out + err


def test_every_setting_stands_once_in_the_groups_of_help():
    grouped = [item.name for group in GROUPS for item in fields(group)]
    assert sorted(grouped) == sorted(item.name for item in knobs())


def test_a_plan_says_where_passes_would_be_computed(tmp_path):
    model = tiny_model(tmp_path / "tall", width=256, layers=16)
    chunks = corpus(tmp_path / "chunks", {"Docs": {"a_chunks.json": sentences(4)}})
    plan = ("plan", chunks, "--roster", model, "--devices", "sim:2xT4", "--ceiling")

    def said(ceiling):
        return interlock(*plan, ceiling).stdout

    assert "cuda:0,cuda:1\n" in said("1GiB")
    streamed = said("372MiB")
    assert "cuda:0,cuda:1 streamed" in streamed
    assert "tall is streamed under --ceiling 372.0 MiB, which is slower: raise it to 0.4GiB to hold" in streamed
    assert "cuda:0,cuda:1\n" in said("0.4GiB")
    assert " cpu\n" in said("365MiB")
