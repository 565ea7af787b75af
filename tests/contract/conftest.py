"""What the contract suites share: models that follow from their seeds, and readers of what a run leaves behind.

Nothing of Interlock is imported here or in the suites but its public package: they know the command, the files that it
writes and its streams, and so they hold for any code that keeps the same promises.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.builders import pins_of, tiny_m3, tiny_model, tiny_scorer, tiny_sparse, toml


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory of four models, one of each kind, a cross-encoder, and the `interlock.toml` that names them."""
    return make_models(tmp_path_factory.mktemp("contract-models"))


def make_models(home: Path) -> Path:
    """Make the models of the suites below `home`; the same bytes on every machine."""
    tiny_model(home / "mean", seed=21)
    tiny_model(home / "cls", seed=22, kind="mpnet", width=48, layers=1, pooling="cls")
    tiny_m3(home / "m3", seed=23)
    tiny_sparse(home / "splade", seed=24)
    tiny_scorer(home / "scorer", seed=25)
    rows: dict[str, dict[str, object]] = {
        name: {"source": str(home / name), "batch_tokens": 96} for name in ("mean", "cls", "m3", "splade")
    }
    rows["m3"]["head_sha256"] = pins_of(home / "m3")
    rows["splade"]["kind"] = "sparse"
    toml(home / "interlock.toml", rows)
    return home


def journal_of(run: Path) -> list[dict[str, Any]]:
    """What each line of a run's journal tells, in order."""
    return [json.loads(line)["body"] for line in (run / "journal.jsonl").read_text().splitlines()]


def told(run: Path, event: str) -> list[dict[str, Any]]:
    """The events of one kind."""
    return [body for body in journal_of(run) if body["event"] == event]


def terms_of(file: Path) -> np.ndarray:
    """A sparse model's exported weights as a dense matrix, a row a chunk."""
    with np.load(file) as csr:
        found = np.zeros(tuple(csr["shape"]), np.float32)
        for row, (first, last) in enumerate(zip(csr["indptr"][:-1], csr["indptr"][1:], strict=True)):
            found[row, csr["indices"][first:last]] = csr["data"][first:last]
    return found


def cosines(found: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Row by row, in float64."""
    a, b = found.astype(np.float64), wanted.astype(np.float64)
    return np.asarray((a * b).sum(1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1))
