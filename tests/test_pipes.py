"""A pipe in the place of a run's or a store's own file is told as that: nobody waits for a writer. Work goes on when
nobody reads what is said of it."""

import os
import subprocess

import pytest

from tests.builders import command, corpus, environment, interlock, sentences


@pytest.fixture(scope="module")
def done(tmp_path_factory, tiny_a):
    home = tmp_path_factory.mktemp("pipes")
    corpus(home / "in", {"Docs": {"a.jsonl": sentences(5)}})
    interlock("run", "in", "--roster", tiny_a, "--run-id", "one", "--qdrant", "store", cwd=home)
    return home


@pytest.mark.parametrize(
    ("name", "command"),
    [
        ("runs/one/run.json", ["run", "in", "--resume", "--run-id", "one"]),
        ("runs/one/journal.jsonl", ["run", "in", "--resume", "--run-id", "one"]),
        ("runs/one/passes/texts.npy", ["run", "in", "--reuse", "runs/one"]),
        ("runs/one/passes/0_tiny-a/order.npy", ["run", "in", "--reuse", "runs/one"]),
        ("runs/one/passes/0_tiny-a/vectors.npy", ["run", "in", "--reuse", "runs/one"]),
        ("store/docs/manifest.json", ["search", "store", "q"]),
        ("store/docs/edge_config.json", ["search", "store", "q"]),
    ],
)
def test_a_pipe_in_place_of_a_file_is_refused_and_not_waited_for(done, tiny_a, name, command):
    (file := done / name).rename(kept := done / "kept")
    os.mkfifo(file)
    try:
        roster = ["--roster", str(tiny_a)] if command[0] == "run" else []
        said = interlock(*command, *roster, cwd=done, check=None).stderr
    finally:
        kept.replace(file)
    assert "regular file" in said
    assert "Traceback" not in said


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
@pytest.mark.parametrize(
    ("words", "made"),
    [
        (["export", "runs/one", "--to", "files"], "files/More/fused.npy"),
        (["models", "bundle", "bundle"], "bundle/models.json"),
    ],
)
def test_who_reads_no_further_stops_no_work(tmp_path, tiny_a, words, made, stream):
    corpus(tmp_path / "in", {name: {"a.jsonl": sentences(5)} for name in ("Docs", "More")})
    roster = ["--roster", str(tiny_a)]
    interlock("run", "in", "--run-id", "one", *roster, cwd=tmp_path)
    read, write = os.pipe()
    os.close(read)
    words += roster if words[0] == "models" else []
    streams = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, stream: write}
    ended = subprocess.run(command(*words), cwd=tmp_path, env=environment({"PYTHONUNBUFFERED": "1"}), **streams)
    os.close(write)
    assert (ended.returncode, (tmp_path / made).exists()) == (0, True)
