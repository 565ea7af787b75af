"""The precision of a CPU: int8 is near to float32 row by row, is tried by a canary, and is never taken for float32."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from interlock.engine.compute.controls import Controls
from interlock.engine.errors import ExitCode, UsageError
from interlock.engine.evaluation import encoding
from interlock.engine.flows.run import Run
from interlock.engine.gpu.devices import choose
from interlock.engine.models.assets import Policy, resolve
from interlock.engine.models.card import read_card
from interlock.engine.models.networks import int8
from interlock.engine.models.networks.int8 import QuantisedLinear, cpu_precision
from interlock.engine.models.registry import ModelSpec
from interlock.engine.models.weights import attach_to_host
from interlock.engine.record.events import BatchCommitted, CanaryChecked, PassPlanned, RowsReused
from interlock.engine.settings import load
from tests.builders import corpus, events_of, sentences, summary_of, tiny_model, toml


def drawn(*shape: int, seed: int = 1) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def card_of(source, kind="cpu", **row):
    spec = ModelSpec("m", (str(source),), **row)
    return read_card(spec, resolve(spec, Policy(offline=True), lambda _: None), kind)


class Desk:
    def __init__(self, place, model, monkeypatch):
        monkeypatch.setenv("INTERLOCK_CACHE", str(place / "cache"))
        self.place = place
        self.file = toml(place / "models.toml", {"m": {"source": str(model), "max_tokens": 64}})
        self.chunks = corpus(place / "in", {"Docs": {"a_chunks.json": sentences(30, 12)}})

    def run(self, name: str, **flags: str):
        flags = {"out": str(self.place / "runs"), "roster": "m", "devices": "cpu", "export": "npy", **flags}
        run = Run(self.chunks, load({"run_id": name, **flags}, {}, self.file), Controls())
        assert run.go() == ExitCode.COMPLETED
        return run.directory.path


@pytest.fixture
def desk(tmp_path, minilm, monkeypatch):
    return Desk(tmp_path, minilm, monkeypatch)


def vectors_of(run):
    (file,) = run.glob("passes/*/vectors.npy")
    return np.load(file)


def dtypes(run):
    return {batch.dtype for batch in events_of(run, BatchCommitted)}


@pytest.mark.parametrize(
    ("inputs", "outputs", "activation"), [(384, 1536, "gelu"), (1536, 384, "none"), (20, 7, "relu")]
)
def test_a_map_in_int8_is_that_of_float32_within_a_few_percent_and_no_row_depends_on_another(
    inputs, outputs, activation
):
    weight, bias, rows = drawn(outputs, inputs) * 0.05, drawn(outputs, seed=2), drawn(33, inputs, seed=3)
    rows[5] *= 1e4  # one row is large, another nothing at all
    rows[6] = 0
    made, plain = QuantisedLinear(weight, bias, activation), F.linear(rows, weight, bias)
    wanted = {"gelu": F.gelu, "relu": F.relu, "none": lambda plain: plain}[activation](plain.clone())
    found = made.activated(rows)
    assert ((found - wanted).norm(dim=1) <= 0.03 * wanted.norm(dim=1) + 1e-6).all()
    other = drawn(33, outputs, seed=4)
    added = made.added(rows.clone(), other)
    assert ((added - plain - other).norm(dim=1) <= 0.03 * plain.norm(dim=1) + 1e-5).all()
    for row in (0, 5, 6, 32):
        assert torch.equal(made.activated(rows[row : row + 1])[0], found[row])


def test_products_in_int8_are_exact_whatever_the_processor_adds_them_in(monkeypatch):
    most, whole = int8._most_of_weights(), torch.full((64, 64), 1.0)
    made = QuantisedLinear(whole, torch.zeros(64), "none")
    assert most in (127, 63)
    torch.testing.assert_close(made.activated(whole), torch.full((64, 64), 64.0), rtol=1e-6, atol=0)
    monkeypatch.setattr(int8, "_multiplied", lambda rows, *_: torch.zeros(len(rows), 64))  # as where sums are clipped
    assert int8._most_of_weights.__wrapped__() == 63


def test_a_row_that_is_not_finite_stays_so_in_int8_and_spoils_no_other():
    made, rows = QuantisedLinear(drawn(8, 16), drawn(8, seed=2), "none"), drawn(3, 16, seed=3)
    clean, rows[1, 2] = made.activated(rows), float("nan")
    found = made.activated(rows)
    assert not torch.isfinite(found[1]).any()
    assert torch.equal(found[[0, 2]], clean[[0, 2]])


def test_a_run_in_int8_passes_its_canary_says_so_and_finds_the_neighbours_of_float32(desk):
    plain, less = vectors_of(desk.run("plain")), desk.run("less", precision="int8")
    (found,) = events_of(less, CanaryChecked)
    assert (found.dtype, found.outcome) == ("int8", "passed")
    assert 0.98 <= found.cosine < 0.99999
    assert dtypes(less) == {"int8"}
    assert [share["dtype"] for each in summary_of(less)["collections"] for share in each["passes"]] == ["int8"]
    vectors = vectors_of(less)
    cosines = (plain * vectors).sum(1)
    assert 0.98 < cosines.min() < cosines.max() < 0.99999
    alike = plain @ plain.T - 2 * np.eye(len(plain))
    near = (vectors @ vectors.T - 2 * np.eye(len(plain))).argmax(1)
    assert (alike[np.arange(len(plain)), near] >= alike.max(1) - 0.02).all()


def test_int8_that_spoils_the_vectors_fails_its_canary_and_the_run_is_computed_in_float32(desk, monkeypatch):
    plain = vectors_of(desk.run("plain"))
    monkeypatch.setattr(int8, "MOST", 1)  # three values a number
    run = desk.run("spoilt", precision="int8")
    failed, passed = events_of(run, CanaryChecked)
    assert (failed.dtype, failed.outcome, failed.action) == ("int8", "failed", "trying float32")
    assert failed.cosine < 0.98
    assert (passed.dtype, passed.outcome) == ("float32", "passed")
    assert dtypes(run) == {"float32"}
    np.testing.assert_array_equal(vectors_of(run), plain)


def test_a_resumed_run_keeps_its_precision_and_is_not_resumed_in_another(desk):
    run = desk.run("kept", precision="int8")
    before = vectors_of(run)
    assert desk.run("kept", resume="yes") == run
    np.testing.assert_array_equal(vectors_of(run), before)
    with pytest.raises(UsageError, match='dtype of m was "int8", is now "float32"'):
        desk.run("kept", resume="yes", precision="float32")


def test_another_precision_is_named_by_its_flag_and_no_vectors_are_promised_that_are_not_taken(desk, tiny_a):
    toml(desk.file, {"m": {"source": str(tiny_a)}, "n": {"source": str(tiny_a), "dtype": {"cpu": "float32"}}})
    alone, both = desk.run("alone"), desk.run("both", roster="m,n")
    with pytest.raises(UsageError, match="changed\n  --precision was float32, is now bfloat16\n") as told:
        desk.run("alone", resume="yes", precision="bfloat16")
    assert str(told.value).endswith("computes all anew (--reuse takes nothing of models that compute otherwise)")
    with pytest.raises(UsageError, match="unchanged texts cost nothing, but m computes all anew") as told:
        desk.run("both", resume="yes", roster="m,n", precision="bfloat16")
    assert f"--reuse {both} " in str(told.value)
    for run, wanted in ((alone, {}), (both, {1: 30})):
        made = desk.run(f"after-{run.name}", roster="m,n" if run is both else "m", precision="bfloat16", reuse=str(run))
        assert {each.model_pass: each.rows for each in events_of(made, RowsReused)} == wanted


def test_vectors_in_int8_are_reused_by_runs_in_int8_alone(desk):
    first = desk.run("first", precision="int8")
    other = desk.run("other", reuse=str(first))
    assert dtypes(other) == {"float32"}
    assert sum(plan.reused for plan in events_of(other, PassPlanned)) == 0
    same = desk.run("same", reuse=str(first), precision="int8")
    assert sum(each.rows for each in events_of(same, RowsReused)) == len(vectors_of(first))
    np.testing.assert_array_equal(vectors_of(same), vectors_of(first))


def test_judged_texts_in_another_precision_are_kept_apart(minilm):
    files = {encoding._file(card_of(minilm, precision=name), ["one"], "", None) for name in ("float32", "int8")}
    assert len(files) == 2


def test_the_maps_of_the_layers_are_in_int8_and_nothing_else(minilm):
    attached = attach_to_host(card_of(minilm, precision="int8"), choose("cpu")[0])
    kinds = {type(module).__name__ for layer in attached.network.layers for module in layer.children()}
    assert kinds == {"QuantisedLinear", "LayerNorm"}
    assert attached.network.embeddings.words.dtype is torch.float32
    assert attached.bytes < attach_to_host(card_of(minilm), choose("cpu")[0]).bytes * 0.7


@pytest.mark.parametrize(
    ("kind", "row", "dtype"),
    [
        ("cpu", {}, "float32"),
        ("cpu", {"precision": "int8"}, "int8"),
        ("cpu", {"precision": "bfloat16"}, "bfloat16"),
        ("cpu", {"precision": "auto"}, cpu_precision("auto")),
        ("cpu", {"precision": "int8", "dtype": {"cpu": "float32"}}, "float32"),
        ("cpu", {"dtype": {"cpu": "int8"}}, "int8"),
        ("sim", {"dtype": {"cpu": "int8"}}, "float32"),
        ("cuda", {"precision": "auto"}, "float16"),
    ],
)
def test_a_row_goes_before_the_precision_of_a_run_which_is_for_the_cpu(tmp_path, kind, row, dtype):
    assert card_of(tiny_model(tmp_path / "m"), kind, **row).dtype == dtype


@pytest.mark.parametrize(
    ("kind", "device", "row", "why"),
    [
        ("bert", "sim", {"precision": "int8"}, "--precision int8 is for the CPU and the run has GPUs"),
        ("bert", "cuda", {"precision": "bfloat16"}, "--precision bfloat16 is for the CPU and the run has GPUs"),
        ("bert", "cuda", {"dtype": {"cuda": "int8"}}, "m cannot be computed in int8 on cuda"),
        ("qwen3", "cpu", {"precision": "int8"}, "m cannot be computed in int8 on cpu, only BERT and its like on a CPU"),
    ],
)
def test_a_precision_that_cannot_be_had_is_refused_in_one_line(tmp_path, kind, device, row, why):
    with pytest.raises(UsageError, match=f"^{why}") as refused:
        card_of(tiny_model(tmp_path / "m", kind=kind), device, **row)
    assert "\n" not in str(refused.value)


def test_int8_is_refused_where_the_processor_has_no_kernels_for_it(tmp_path, monkeypatch):
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "DEFAULT")
    with pytest.raises(
        UsageError, match=r"m cannot be computed in int8 on cpu, .* with AVX2: choose another --precision"
    ):
        card_of(tiny_model(tmp_path / "m"), precision="int8")


def test_auto_is_bfloat16_where_the_processor_multiplies_it_and_else_float32(monkeypatch):
    for native in (False, True):
        for name in ("_is_avx512_bf16_supported", "_is_amx_tile_supported"):
            monkeypatch.setattr(torch.cpu, name, lambda native=native: native)
        assert cpu_precision("auto") == ("bfloat16" if native else "float32")
