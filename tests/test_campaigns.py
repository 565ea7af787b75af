"""Fault campaigns of `bench/campaign.py`, a few trials of each: none fails, and what would be a failure is seen."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from bench.campaigns import CAMPAIGNS
from bench.campaigns.delivered import Oracle
from bench.campaigns.field import pointwise
from bench.campaigns.process import Outcome, wrongs
from tests.builders import ROOT, environment

TRIALS = 2
NAMES = [each.name for each in CAMPAIGNS]
SEED = 8


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, object]]:
    """What a few trials of every campaign came to, by its name. They fork, which needs a process without threads."""
    file = tmp_path_factory.mktemp("campaigns") / "result.json"
    words = ["--trials", TRIALS, "--seed", SEED, "--jobs", 1, "--records", 150, "--json", file]
    done = subprocess.run(
        [sys.executable, ROOT / "bench" / "campaign.py", *map(str, words)],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert file.exists(), done.stdout + done.stderr
    return {each["name"]: each for each in json.loads(file.read_text())["campaigns"]}


@pytest.mark.nightly
@pytest.mark.parametrize("name", NAMES)
def test_what_is_done_to_a_run_makes_nothing_wrong(told, name):
    assert told[name]["trials"] == TRIALS
    assert told[name]["failures"] == []


def test_a_vector_that_stands_beside_another_text_is_seen():
    rows = {text: {"m": np.eye(2, dtype=np.float32)[place]} for place, text in enumerate(("one", "other"))}
    right = {text: (text, {"m": rows[text]["m"].tobytes()}) for text in rows}
    swapped = {"one": right["one"], "other": ("other", right["one"][1])}
    oracle = Oracle({}, rows)
    oracle.models = {"m": (Path(), "mean")}
    assert oracle.wrong(right) == []
    assert len(oracle.wrong(swapped)) == 1
    assert pointwise(right, right) == []
    assert pointwise(right, swapped) == ["1 points with another vector: other"]
    assert pointwise(right, {"one": right["one"]}) == ["1 points missing: other"]


@pytest.mark.parametrize(
    ("code", "said"),
    [
        (0, "Traceback (most recent call last):"),
        (1, "thread '<unnamed>' panicked at src/lib.rs"),
        (-signal.SIGBUS, ""),
        (1, ""),
        (77, "interlock: something"),
    ],
)
def test_an_end_that_no_run_may_have_is_seen(code, said):
    assert wrongs(Outcome(code, said, "", 1.0))
    assert not wrongs(Outcome(1, "interlock: it is damaged", "", 1.0))
    assert not wrongs(Outcome(-signal.SIGKILL, "", "", 1.0), sent=[signal.SIGKILL])
