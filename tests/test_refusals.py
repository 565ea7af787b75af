"""What a run refuses before any work, what it leaves alone, and how it ends when the world around it is hostile."""

import re
import shlex
import shutil

import pytest

from interlock.console.cli import parse
from interlock.console.summary.document import load
from interlock.engine.corpus.collections import discover
from interlock.engine.errors import UsageError
from interlock.engine.models.assets import Policy, resolve
from interlock.engine.models.card import read_card
from interlock.engine.models.registry import ModelSpec
from interlock.engine.record.events import LeaseReleased
from interlock.engine.record.recorder import journal_at
from interlock.engine.removed import REMOVED
from interlock.engine.targets.files.exported import ExportedRun
from interlock.engine.targets.stores import collections, named
from tests.builders import corpus, events_of, interlock, sentences, summary_of, tiny_scorer, tiny_sparse, toml


@pytest.fixture
def chunks(tmp_path):
    return corpus(
        tmp_path / "in", {"Docs": {"a_chunks.json": sentences(12)}, "More": {"b.jsonl": sentences(5, start=30)}}
    )


def test_a_directory_of_something_else_is_refused_as_the_run_and_untouched(tmp_path, chunks, tiny_a):
    (tmp_path / "out" / "mine").mkdir(parents=True)
    (tmp_path / "out" / "mine" / "precious").write_text("x")
    said = interlock("run", chunks, "--out", tmp_path / "out", "--run-id", "mine", "--roster", "/nothere", check=2)
    assert "is not empty and not a run" in said.stderr
    assert (tmp_path / "out" / "mine" / "precious").read_text() == "x"


def test_an_output_inside_the_chunks_is_refused_before_it_becomes_input(chunks, tiny_a):
    said = interlock("run", ".", "--roster", tiny_a, cwd=chunks, check=2)
    assert "is inside" in said.stderr
    assert not (chunks / "runs").exists()
    said = interlock("run", chunks, "--roster", tiny_a, "--summary", chunks / "Docs" / "s.jsonl", check=2)
    assert "is inside" in said.stderr and not (chunks / "Docs" / "s.jsonl").exists()


FLAGS = ["--no-exclusive", "--bm25-language=german", "--partial", "--refresh=2", "--readonly", "--no-bm25"]
FLAGS += ["--long=split", "--long-overlap=0.2"]


@pytest.mark.parametrize("flag", FLAGS)
def test_a_flag_of_earlier_versions_is_refused_with_what_to_use(capsys, flag):
    with pytest.raises(SystemExit, match="2"):
        parse(["run", ".", flag])
    setting = flag.partition("=")[0][2:].removeprefix("no-").replace("-", "_")
    instead = REMOVED[setting].instead if setting in REMOVED else "use --bm25 off"
    assert instead in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize("look", [discover, collections, journal_at, ExportedRun.open, load])
def test_a_path_that_is_not_there_is_refused_with_the_one_beside_it_that_may_be_meant(tmp_path, look):
    (tmp_path / "runs" / "first").mkdir(parents=True)
    for wrong in ("rnus/first", "runs/frist"):
        with pytest.raises(UsageError, match=f"did you mean {tmp_path}/runs/first"):
            look(tmp_path / wrong)
    with pytest.raises(UsageError) as refused:
        look(tmp_path / "rnus" / "another")
    assert "did you mean" not in str(refused.value)


def test_a_run_named_in_place_of_a_store_is_refused_with_the_command_that_makes_one(tmp_path):
    (tmp_path / "r").mkdir()
    (tmp_path / "r" / "journal.jsonl").touch()
    with pytest.raises(UsageError) as refused:
        named(tmp_path / "r")
    said = shlex.split(str(refused.value).split("`")[1])[1:]
    assert (parse(said).command, parse(said).run) == ("export", tmp_path / "r")


OF_THE_PREDECESSOR = {"--chunked-dir": "interlock run DIR", "--force-cpu": "--devices cpu", "--backend": "drop it"}


@pytest.mark.parametrize("flag", OF_THE_PREDECESSOR)
def test_a_flag_of_the_predecessor_is_refused_with_what_stands_for_it_here(capsys, flag):
    with pytest.raises(SystemExit, match="2"):
        parse(["run", ".", flag, "x"])
    said = capsys.readouterr().err
    assert OF_THE_PREDECESSOR[flag] in said and "did you mean" not in said


@pytest.mark.parametrize("command", [["run", "."], []])
def test_all_flags_of_the_predecessor_are_answered_at_once_before_a_command_too(capsys, command):
    with pytest.raises(SystemExit, match="2"):
        parse([*command, "--chunked-dir", "D", "--enable-ensemble", "--matryoshka-dim=256", "--force-cpu"])
    said = capsys.readouterr().err
    for part in ("interlock run DIR", "drop it: several models", "--dim N for models", "--devices cpu"):
        assert part in said
    assert "no command" not in said
    assert ("--chunked-dir comes before a command: put one first, as in `interlock run CHUNKS`" in said) != bool(
        command
    )


def test_a_second_path_is_refused_with_what_is_taken(capsys):
    with pytest.raises(SystemExit, match="2"):
        parse(["run", "a.csv", "b.csv"])
    assert "unknown: b.csv: name one file or directory (one of several files)" in capsys.readouterr().err


def test_a_file_of_another_form_is_refused_with_the_way_for_what_python_holds(tmp_path):
    (tmp_path / "docs.pkl").touch()
    with pytest.raises(UsageError, match=r"cannot read texts from .*docs\.pkl: .*interlock\.embed\(documents\)$"):
        discover(tmp_path / "docs.pkl")


def test_a_flag_of_an_earlier_eval_is_refused_with_what_to_use(capsys):
    with pytest.raises(SystemExit, match="2"):
        parse(["eval", ".", "--picture", "x.svg"])
    assert "there is no --picture: the table and --json say the same" in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize("flags", [("--shared", "--window", "3"), ("--window=3", "--shared")])
def test_a_window_beside_shared_is_refused_since_one_of_them_would_mean_nothing(capsys, flags):
    with pytest.raises(SystemExit, match="2"):
        parse(["run", ".", *flags])
    assert "not allowed with argument" in capsys.readouterr().err


def test_a_sparse_model_whose_files_do_not_say_so_is_told_as_what_it_is_taken_for(tmp_path, chunks, tiny_a):
    bare = tiny_sparse(tmp_path / "bare")
    told = "bare: nothing says how it is pooled (no modules.json), and it is a BertForMaskedLM: taken for a dense model"
    roster = ("--roster", f"{tiny_a},{bare}")
    assert told in interlock("plan", chunks, *roster).stdout
    assert told in interlock("run", chunks, *roster, "--out", tmp_path / "o").stderr
    right = interlock("plan", chunks, "--roster", tiny_a, "--sparse", bare).stdout
    assert "taken for" not in right and "taken for" not in interlock("plan", chunks, "--roster", tiny_a).stdout


@pytest.mark.parametrize("kind", ["bert", "roberta"])
def test_a_cross_encoder_in_the_roster_is_refused_since_its_means_would_mean_nothing(tmp_path, kind):
    scorer = tiny_scorer(tmp_path / "scorer", kind=kind)
    snapshot = resolve(spec := ModelSpec("scorer", (str(scorer),)), Policy(offline=True), lambda _: None)
    why = r"scorer is a cross-encoder by its .*config.json \(\w+ForSequenceClassification\), .* name it in --rerank"
    with pytest.raises(UsageError, match=why):
        read_card(spec, snapshot, "cpu")


@pytest.mark.parametrize(
    ("flags", "why"),
    [
        (("--qdrant", "a-file"), "--qdrant a-file: a-file is not a directory: choose another"),
        (("--qdrant", "a-file/below"), "a-file is not a directory: choose another"),
        (("--out", "a-file"), "--out a-file: a-file is not a directory: choose another"),
        (("--resume", "--run-id", "nope"), "no run 'nope'"),
    ],
)
def test_a_plan_of_what_a_run_refuses_is_refused(tmp_path, chunks, tiny_a, call, flags, why):
    (tmp_path / "a-file").touch()
    file = toml(tmp_path / "i.toml", {"all-minilm-l6": {"source": str(tiny_a)}, "all-mpnet-base-v2": {"source": "./b"}})
    for command in ("plan", "run"):
        code, _, err = call(command, chunks, "--config", file, *flags)
        assert (code, why in err) == (1 if "--out" in flags else 2, True), err


@pytest.mark.parametrize("command", ["search", "encode", "serve"])
@pytest.mark.parametrize(
    "flag", [("--patience", "3"), ("--api-key-file", "k"), ("--projection", "p.npy"), ("--exact",)], ids=str
)
def test_a_flag_that_asks_a_server_is_refused_where_a_directory_is_asked(call, tmp_path, command, flag):
    (tmp_path / "store").mkdir()
    words = {"search": ["text"], "encode": ["text"], "serve": ["--port", "0"]}[command]
    code, _, err = call(command, "store", *words, *flag)
    lacks = command == "encode" and flag == ("--exact",)  # which it does not take
    assert (code, "is for a server, and store is a directory: drop it" in err) == (2, not lacks), err


def test_a_store_of_another_meaning_is_refused_before_any_pass(tmp_path, chunks, tiny_a, tiny_b):
    store = tmp_path / "store"
    interlock("run", chunks, "--out", tmp_path / "o", "--roster", tiny_a, "--qdrant", store, "--run-id", "one")
    said = interlock(
        "run", chunks, "--out", tmp_path / "o", "--roster", tiny_b, "--qdrant", store, "--run-id", "two", check=2
    )
    assert "written with other settings" in said.stderr
    assert not (tmp_path / "o" / "two").exists()


def test_a_collection_named_in_another_script_is_embedded_and_found_by_its_qdrant_name(tmp_path, tiny_a):
    root = corpus(tmp_path / "in", {"日本語": {"a_chunks.json": ["a text"]}, "Docs": {"a_chunks.json": ["another"]}})
    args = ["run", root, "--out", tmp_path / "o", "--roster", tiny_a, "--qdrant", tmp_path / "store"]
    assert "Qdrant collection collection-77710aed" in interlock(*args).stderr
    said = interlock("search", tmp_path / "store", "a", "--collection", "collection-77710aed").stdout
    assert "a text" in said


def test_fetching_without_a_model_name_says_what_is_missing():
    assert "name the models" in interlock("models", "fetch", check=2).stderr


def test_fetching_offline_asks_nothing(tmp_path):
    said = interlock("models", "fetch", "bge-m3", env={"INTERLOCK_OFFLINE": "yes"}, check=5)
    assert "try 1 failed" not in said.stdout + said.stderr
    assert "interlock models fetch" not in said.stderr and "hf download BAAI/bge-m3" in said.stderr


def test_a_model_that_cannot_be_fetched_is_told_with_those_that_are_here(call, tiny_a, tmp_path):
    config = toml(tmp_path / "c.toml", {"here": {"source": str(tiny_a)}})
    code, _, err = call("models", "fetch", "bge-m3", "--offline", "--config", config)
    assert code == 5 and re.search(r"or use one that is on this machine: .*\bhere\b", err)


def test_the_other_model_has_its_turn_when_one_breaks_in_its_pass(tmp_path, chunks, tiny_a, tiny_b):
    broken = shutil.copytree(tiny_a, tmp_path / "broken")
    weights = bytearray((broken / "model.safetensors").read_bytes())
    header = int.from_bytes(weights[:8], "little")
    weights[8 : 8 + header] = weights[8 : 8 + header].replace(
        b"embeddings.word_embeddings", b"embeddings.word_embeddinks"
    )
    (broken / "model.safetensors").write_bytes(weights)
    interlock("run", chunks, "--out", tmp_path / "o", "--run-id", "r", "--roster", f"{broken},{tiny_b}", check=1)
    first, _ = summary_of(tmp_path / "o" / "r")["collections"]
    assert [each["status"] for each in first["passes"]] == ["failed", "completed"]
    assert (first["status"], "word_embeddings" in first["reason"]) == ("failed", True)


def test_every_lease_of_two_sessions_has_its_receipt_in_the_summary(tmp_path, chunks, tiny_a, tiny_b):
    config = toml(tmp_path / "c.toml", {"a": {"source": str(tiny_a)}, "b": {"source": str(tiny_b)}})
    common = ["run", chunks, "--out", tmp_path / "o", "--run-id", "r", "--roster", "a,b", "--config", config]
    interlock(*common)
    vectors = tmp_path / "o" / "r" / "passes" / "1_b" / "vectors.npy"
    data = bytearray(vectors.read_bytes())
    data[-40:] = bytes(40)
    vectors.write_bytes(data)
    interlock(*common, "--resume", "--export", "npy")
    summary = summary_of(tmp_path / "o" / "r")
    leases = {each["lease"]: each for part in summary["collections"] for each in part["leases"]}
    assert len(leases) == len(events_of(tmp_path / "o" / "r", LeaseReleased)) == 3
    assert all(each["receipts"] for each in leases.values())
    assert summary["configuration"]["export"]["value"] == ["npy"]


UNREAD = """
import os
read, write = os.pipe()
os.close(read)
os.dup2(write, 1)
os.dup2(write, 2)
"""
"""What gives a command a stdout and a stderr that nobody reads."""


def test_a_failed_run_keeps_its_exit_code_when_nobody_reads_stderr(tmp_path, chunks):
    corpus(chunks, {"Bad": {"a_chunks.json": [{"text": ""}]}})
    interlock("run", chunks, "--out", tmp_path / "o", "--roster", "/nothere", first=UNREAD, check=5)


def test_a_run_completes_when_nobody_reads_its_summary(tmp_path, chunks, tiny_a):
    args = ("run", chunks, "--out", tmp_path / "o", "--run-id", "r", "--roster", tiny_a, "--summary", "-")
    interlock(*args, first=UNREAD, check=0)
    assert summary_of(tmp_path / "o" / "r")["status"] == "completed"


def test_thousands_of_refusals_and_no_good_chunk_give_one_line_and_exit_2(tmp_path, tiny_a):
    root = corpus(tmp_path / "in", {"Docs": {"a.jsonl": []}})
    (root / "Docs" / "a.jsonl").write_text("x\n" * 20_000)
    said = interlock("run", root, "--out", tmp_path / "o", "--roster", tiny_a, check=2)
    assert len(said.stderr.splitlines()) < 120
    assert "nothing to embed" in said.stderr


def test_refusals_of_every_collection_are_printed(tmp_path, tiny_a):
    root = corpus(tmp_path / "in", {name: {"a.jsonl": [""] * 60 + ["a text"]} for name in ("Docs", "More")})
    said = interlock("run", root, "--out", tmp_path / "o", "--roster", tiny_a, "--max-refused", "60")
    for name in ("Docs", "More"):
        lines = [line for line in said.stderr.splitlines() if f"{name}/a.jsonl" in line and "the text is empty" in line]
        assert len(lines) == 60
