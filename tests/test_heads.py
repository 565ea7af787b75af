"""The maps that a model has beside its network, as BGE-M3: fetched and read where a run asks for what they give."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from statistics import median

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from interlock.engine.errors import UnavailableError
from interlock.engine.gpu.meter import Meter
from interlock.engine.models.assets import ModelSnapshot, Policy, resolve
from interlock.engine.models.heads import TokenMap, TokenScale
from interlock.engine.models.memory import law_of, token_law
from interlock.engine.models.networks.kernels import Kernel, filling, pack
from interlock.engine.models.networks.network import PackedEncoder
from interlock.engine.models.registry import ModelSpec
from interlock.engine.models.sources import model_cache
from tests.architectures import XLM_R_LARGE
from tests.builders import environment, pins_of, tiny_m3
from tests.hub import Hub
from tests.ledgers import Counter
from tests.oracle import as_on_a_gpu, lengths_of

COMMIT = "c" * 40
BOTH = ("dense", "sparse")


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("INTERLOCK_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def model(tmp_path) -> Path:
    return tiny_m3(tmp_path / "m")


def found(spec: ModelSpec, *, offline: bool = True) -> ModelSnapshot:
    return resolve(spec, Policy(offline=offline), lambda _: None)


def spec_of(model: Path, **row) -> ModelSpec:
    return ModelSpec("m", (str(model),), **{"head_sha256": pins_of(model), **row})


def test_a_pinned_head_is_read_once_where_an_output_needs_it(model, monkeypatch):
    assert found(spec_of(model)).heads == {}
    heads = found(spec_of(model, outputs=BOTH)).heads
    assert list(heads) == ["sparse_linear"]
    file = heads["sparse_linear"]
    assert file.is_relative_to(model_cache())
    wanted = torch.load(model / "sparse_linear.pt", weights_only=True)
    read = load_file(file)
    assert all(torch.equal(read[name], wanted[name]) for name in ("weight", "bias"))
    monkeypatch.setattr(torch, "load", lambda *_, **__: pytest.fail("a pickle was loaded"))
    assert found(spec_of(model, outputs=BOTH)).heads == heads


def test_a_head_with_another_hash_is_refused_by_its_name(model, monkeypatch):
    monkeypatch.setattr(torch, "load", lambda *_, **__: pytest.fail("a pickle was loaded"))
    pins = pins_of(model) | {"colbert_linear": "0" * 64}
    with pytest.raises(UnavailableError, match=r"colbert_linear\.pt has SHA-256 .*, expected 0000"):
        found(spec_of(model, head_sha256=pins, outputs=("dense", "tokens")))


def test_a_head_that_nobody_vouches_for_is_not_read_and_says_how_it_is(model):
    alone = spec_of(model, head_sha256={}, outputs=BOTH)
    with pytest.raises(UnavailableError, match=r"pickle only \(.*sparse_linear\.pt\): add --allow-pickle"):
        found(alone)
    allowed = resolve(alone, Policy(offline=True, pickles=("m",)), lambda _: None)
    assert allowed.heads.keys() == {"sparse_linear"}


def test_a_head_in_safetensors_is_taken_as_it_is(model):
    for name in ("sparse_linear", "colbert_linear"):
        save_file(torch.load(model / f"{name}.pt", weights_only=True), model / f"{name}.safetensors")
    heads = found(spec_of(model, head_sha256={}, outputs=("dense", "sparse", "tokens"))).heads
    assert {head: file.parent for head, file in heads.items()} == dict.fromkeys(
        ("sparse_linear", "colbert_linear"), model
    )


def test_a_head_that_a_row_names_and_the_model_lacks_is_missed_by_its_name(model):
    spec = spec_of(model, outputs=BOTH)
    (model / "sparse_linear.pt").unlink()
    with pytest.raises(UnavailableError, match=r"lacks sparse_linear\.pt: fetch the model again"):
        found(spec)


def test_other_heads_are_told_apart_and_leave_the_network_the_same(model, tmp_path):
    other = tiny_m3(tmp_path / "other")
    torch.save({"weight": torch.ones(1, 32), "bias": torch.ones(1)}, other / "sparse_linear.pt")
    one, another = (found(spec_of(each, outputs=BOTH)) for each in (model, other))
    assert one.fingerprint == another.fingerprint == found(spec_of(model)).fingerprint
    assert one.head_digests != another.head_digests


def test_a_head_that_changes_during_a_run_is_seen(model):
    snapshot = found(spec_of(model, outputs=BOTH))
    looked = snapshot.stamped()
    snapshot.check_unchanged("m", looked)
    save_file({"weight": torch.ones(1, 32), "bias": torch.ones(1)}, snapshot.heads["sparse_linear"])
    with pytest.raises(UnavailableError, match="changed during the run"):
        snapshot.check_unchanged("m", snapshot.stamped())


FETCH = """
import sys
from interlock.engine.gpu.meter import Meter
from tests.ledgers import Counter
from interlock.engine.models.assets import Policy, resolve
from interlock.engine.models.networks.network import PackedEncoder
from interlock.engine.models.networks.kernels import filling, pack
from interlock.engine.models.registry import ModelSpec
outputs, pins = sys.argv[1].split(), dict(pin.split("=") for pin in sys.argv[2:])
spec = ModelSpec("m", ("hf:stations/m",), head_sha256=pins, outputs=tuple(outputs))
print(*resolve(spec, Policy(), lambda _: None).heads)
"""


def test_the_hub_is_asked_for_the_heads_that_an_output_needs(model, tmp_path):
    pins = pins_of(model)
    save_file({"weight": torch.ones(24, 32), "bias": torch.ones(24)}, model / "colbert_linear.safetensors")
    with Hub("stations/m", model, COMMIT).serving() as hub:
        env = {"HF_HOME": str(tmp_path / "home"), "HF_ENDPOINT": hub.url, "INTERLOCK_CACHE": str(tmp_path / "cache")}

        def fetched(outputs: str) -> tuple[str, set[str]]:
            given = [sys.executable, "-c", FETCH, outputs, *(f"{head}={pin}" for head, pin in pins.items())]
            said = subprocess.run(given, env=environment(env), capture_output=True, text=True, check=True).stdout
            return said.strip(), {request.rpartition("/")[2] for request in hub.requests if "_linear" in request}

        assert fetched("dense") == ("", set())
        assert fetched("dense sparse") == ("sparse_linear", {"sparse_linear.pt"})
        assert fetched("dense tokens") == ("colbert_linear", {"sparse_linear.pt", "colbert_linear.safetensors"})


@pytest.mark.parametrize("dim", [1024, 8192], ids=["as published", "where the vectors are the peak"])
@pytest.mark.parametrize("kernel", [Kernel.HOST, Kernel.EFFICIENT])
def test_the_law_is_within_one_percent_with_all_three_outputs(dim: int, kernel: Kernel) -> None:
    law = law_of(XLM_R_LARGE, 2, packed=True, kernel=kernel)
    law = replace(law, head=token_law(1024, dim, 2, host=False))
    mode = FakeTensorMode()
    with mode:
        network = PackedEncoder.blank(XLM_R_LARGE, torch.float16)
        weigh, give = (kind(blank(out, 1024), blank(out)) for kind, out in ((TokenScale, 1), (TokenMap, dim)))
    generator, errors = np.random.default_rng(11), []
    for even in (True, False) * 3:
        lengths, counter = lengths_of(generator, 8190, 1 << 14, packed=True, even=even), Counter()
        lengths += [short] if (short := filling(sum(lengths))) else []  # what fills up has no vector
        with mode, as_on_a_gpu(kernel), torch.inference_mode(), Meter(counter):
            batch = pack([np.ones(each, np.int64) for each in lengths], torch.device("cpu"), kernel)
            hidden = network(batch)
            vectors = F.normalize(hidden[batch.starts[:-1]].float(), dim=1)
            del vectors
            weigh(hidden)
            give(hidden, lambda *_: None)
            del hidden, batch
        predicted = law.activations(sum(lengths), max(lengths))
        errors.append(abs(predicted - counter.peak) / counter.peak)
    assert median(errors) <= 0.01
    assert max(errors) <= 0.02


def blank(*shape: int) -> nn.Parameter:
    return nn.Parameter(torch.empty(shape, dtype=torch.float16), requires_grad=False)
