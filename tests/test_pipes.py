"""A pipe in the place of a run's or a store's own file is told as that: nobody waits for a writer."""

import os

import pytest

from tests.builders import corpus, interlock, sentences


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
