"""Cross-encoders: the scores of sentence-transformers, packed or padded, whatever the length of a pair."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch._subclasses.fake_tensor import FakeTensorMode

from interlock.console.text.event_text import line_of
from interlock.engine.compute.context import Granted
from interlock.engine.compute.instance import ModelInstance
from interlock.engine.compute.pairs.scorer import Scorer
from interlock.engine.errors import InterlockError, UnavailableError, UsageError
from interlock.engine.gpu.cpu import CpuDevice
from interlock.engine.gpu.faults import parse
from interlock.engine.gpu.lease import Lessor
from interlock.engine.gpu.meter import Meter
from interlock.engine.gpu.sim import simulated
from interlock.engine.models.assets import Policy, resolve
from interlock.engine.models.card import ModelCard
from interlock.engine.models.members import members, rerankers
from interlock.engine.models.memory import law_of
from interlock.engine.models.networks.kernels import Kernel, filling, pack
from interlock.engine.models.networks.network import PackedPairEncoder
from interlock.engine.models.registry import REGISTRY, ModelSpec
from interlock.engine.models.scoring import activation_of, read_scorer
from interlock.engine.record import events as ev
from tests.architectures import BERT_BASE, MINILM, MPNET_BASE, XLM_R_LARGE
from tests.builders import sentences, tiny_answerer, tiny_model, tiny_scorer
from tests.ledgers import Counter
from tests.oracle import as_on_a_gpu, lengths_of

PACKED = ("bert", "distilbert", "mpnet", "roberta", "xlm-roberta")
TEXTS = sentences(12, words=30)
PAIRS = [
    *((TEXTS[number % 3], text) for number, text in enumerate(TEXTS)),
    ("", ""), ("a query", ""), ("", "a text"),
    ("the " * 200, "of " * 200), ("the " * 200, "of"), ("the", "of " * 300), ("the " * 63, "of " * 62),
]  # fmt: skip
GIB = 1 << 30
Config = Mapping[str, Any]


def spec_of(directory: Path) -> ModelSpec:
    return ModelSpec(directory.name, (str(directory),), kind="scores")


def card_of(directory: Path) -> ModelCard:
    spec = spec_of(directory)
    return read_scorer(spec, resolve(spec, Policy(offline=True), lambda _: None), "cpu")


def scores_of(directory: Path, pairs=PAIRS, emit=lambda _: None) -> np.ndarray:
    card, host = card_of(directory), CpuDevice()
    activation = activation_of(spec_of(directory), directory, card.config)
    with Scorer(card, activation, Granted([], host, Lessor([host], 8 * GIB), emit)) as scorer:
        return scorer.score(pairs)


def wanted(directory: Path, pairs=PAIRS) -> np.ndarray:
    from sentence_transformers import CrossEncoder

    return CrossEncoder(str(directory), device="cpu").predict([list(pair) for pair in pairs])


@pytest.mark.parametrize("kind", PACKED)
def test_scores_are_those_of_sentence_transformers_together_or_alone(tmp_path: Path, kind: str) -> None:
    model = tiny_scorer(tmp_path / "m", seed=3, kind=kind)
    expected = wanted(model)
    assert card_of(model).packed
    assert np.ptp(expected) > 0.05
    np.testing.assert_allclose(scores_of(model), expected, rtol=0, atol=1e-5)
    alone = np.concatenate([scores_of(model, [pair]) for pair in PAIRS[::4]])
    np.testing.assert_allclose(alone, expected[::4], rtol=0, atol=1e-5)


@pytest.mark.parametrize("kind", ["electra", "deberta-v2", "modernbert"])
def test_a_network_that_is_not_packed_scores_as_sentence_transformers_does(tmp_path: Path, kind: str) -> None:
    model = tiny_scorer(tmp_path / "m", seed=3, kind=kind)
    assert not card_of(model).packed
    np.testing.assert_allclose(scores_of(model), wanted(model), rtol=0, atol=1e-5)


@pytest.mark.parametrize("kind", ["qwen2", "qwen3"])
def test_a_language_model_that_is_asked_scores_as_sentence_transformers_does(tmp_path: Path, kind: str) -> None:
    model = tiny_answerer(tmp_path / "m", seed=3, kind=kind)
    expected = wanted(model)
    assert np.ptp(expected) > 0.05
    np.testing.assert_allclose(scores_of(model), expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("config", "kernel"),
    [
        (MINILM, Kernel.EFFICIENT),
        (BERT_BASE, Kernel.HOST),
        (MPNET_BASE, Kernel.RUNS),
        (XLM_R_LARGE, Kernel.EFFICIENT),
    ],
    ids=["MiniLM-L6", "BERT-base", "MPNet-base", "XLM-R-large"],
)
def test_the_law_is_within_one_percent_with_the_head_in(config: Config, kernel: Kernel) -> None:
    law = law_of(config, 2, packed=True, kernel=kernel, kind="scores")
    mode = FakeTensorMode()
    with mode:
        network = PackedPairEncoder.blank(config, torch.float16)
    generator, errors = np.random.default_rng(11), []
    for even in (True, False) * 4:
        lengths, counter = lengths_of(generator, 510, 1 << 15, packed=True, even=even), Counter()
        with mode, as_on_a_gpu(kernel), torch.inference_mode(), Meter(counter):
            batch = pack([np.ones(each, np.int64) for each in lengths], torch.device("cpu"), kernel)
            network.scores(replace(batch, types=torch.zeros_like(batch.ids))).float()
        tokens = sum(lengths) + filling(sum(lengths))
        errors.append(abs(law.activations(tokens, max(lengths)) - counter.peak) / counter.peak)
    assert law.weights == pytest.approx(sum(each.numel() * 2 for each in network.parameters()), rel=0.005)
    assert median(errors) <= 0.01
    assert max(errors) <= 0.02


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_what_differs_in_float32_is_no_tie_in_halves(tmp_path: Path, dtype: torch.dtype) -> None:
    """Against the same network in float32: rounded to halves its scores would tie."""
    directory = tiny_scorer(tmp_path / "m")
    state = load_file(directory / "model.safetensors")
    bias = next(name for name in state if name.startswith("classifier") and name.endswith("bias"))
    state[bias] += 512  # scores far from 0 and near each other, as those of good candidates are
    save_file(state, directory / "model.safetensors", {"format": "pt"})
    config = json.loads((directory / "config.json").read_text())
    rows = np.random.default_rng(0).integers(5, 100, (64, 9))
    batch = pack(list(rows), torch.device("cpu"), Kernel.HOST)
    whole, half = (PackedPairEncoder.from_state(config, dict(state), each) for each in (torch.float32, dtype))
    with torch.inference_mode():
        exact, scores = (
            each.scores(replace(batch, types=torch.zeros_like(batch.ids))).float() for each in (whole, half)
        )
    assert len(exact.unique()) == len(rows) > 2 * len(exact.to(dtype).unique())
    assert len(scores.unique()) > 0.9 * len(rows)


def edited(directory: Path, **values: object) -> Path:
    file = directory / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | values))
    return directory


def test_a_model_without_a_head_that_gives_one_score_is_refused(tmp_path: Path, tiny_a: Path) -> None:
    with pytest.raises(UnavailableError, match="architectures is BertModel, expected one ForSequenceClassification"):
        card_of(tiny_a)
    with pytest.raises(UnavailableError, match="says 3 labels: a reranker gives one score"):
        card_of(tiny_scorer(tmp_path / "three", num_labels=3))
    bare = edited(tiny_model(tmp_path / "bare"), architectures=["BertForSequenceClassification"], id2label={"0": "x"})
    (bare / "modules.json").unlink()
    with pytest.raises(UnavailableError, match=r"lacks the tensors of its head \(classifier.weight\)"):
        card_of(bare)


def test_a_language_model_that_does_not_say_which_tokens_count_is_refused(tmp_path: Path) -> None:
    tiny_answerer(tmp_path / "m")
    with pytest.raises(UnavailableError, match=r"Qwen3ForCausalLM, expected one .* with LogitScore"):
        card_of(tmp_path / ".m")


def test_what_follows_the_score_is_applied_as_the_files_say(tmp_path: Path) -> None:
    model = tiny_scorer(tmp_path / "m", seed=3)
    sigmoid = scores_of(model)
    edited(model, sbert_ce_default_activation_function="torch.nn.modules.linear.Identity")
    plain = scores_of(model)
    np.testing.assert_allclose(plain, wanted(model), rtol=0, atol=1e-5)
    np.testing.assert_allclose(sigmoid, 1 / (1 + np.exp(-plain)), rtol=0, atol=1e-6)
    edited(model, sentence_transformers={"activation_fn": "torch.hub.load"})
    with pytest.raises(UnavailableError, match=r"sentence_transformers.activation_fn is 'torch.hub.load', expected"):
        card_of(model)


def test_token_types_are_given_only_where_the_tokenizer_gives_them(tmp_path: Path) -> None:
    model = tiny_scorer(tmp_path / "m", seed=3)
    typed = scores_of(model)
    file = model / "tokenizer_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"model_input_names": ["input_ids", "attention_mask"]}))
    untyped = scores_of(model)
    np.testing.assert_allclose(untyped, wanted(model), rtol=0, atol=1e-5)
    assert np.abs(typed - untyped).max() > 0.01


@pytest.mark.parametrize("name", ["splade-tiny", "bge-reranker-v2-m3"])
def test_a_model_without_token_vectors_is_not_sent_to_the_roster(name: str) -> None:
    with pytest.raises(UsageError, match=f"--token-vectors: {name} is not a dense model: name one of --roster here"):
        members(REGISTRY, ["all-minilm-l6"], tokens=[name])


def test_a_model_of_another_kind_or_in_another_list_is_told_where_it_belongs() -> None:
    with pytest.raises(UsageError, match="all-minilm-l6 is a dense model, which scores no pairs: use one of"):
        rerankers(REGISTRY, ["all-minilm-l6"])
    with pytest.raises(UsageError, match="--roster: bge-reranker-v2-m3 is a reranker"):
        members(REGISTRY, ["bge-reranker-v2-m3"])
    found = rerankers(REGISTRY, ["mxbai-rerank-base-v2", "./mine"])
    assert [(spec.key, spec.kind) for spec in found] == [("mxbai-rerank-base-v2", "scores"), ("mine", "scores")]


class Sim:
    """A scorer on simulated GPUs, what it told and what came of it."""

    def __init__(self, model: Path, faults: str = "", ceiling: int = 12 * GIB, **more: bool) -> None:
        self.told: list[ev.AnyEvent] = []
        host, gpus = CpuDevice(), simulated("sim:2xT4", parse(faults))
        lessor, card = Lessor([*gpus, host], ceiling, 8 * GIB), card_of(model)
        with Scorer(card, "sigmoid", Granted(gpus, host, lessor, self.told.append, **more)) as scorer:
            self.scores = scorer.score(PAIRS)

    def of(self, kind: type[ev.AnyEvent]) -> list[Any]:
        return [each for each in self.told if isinstance(each, kind)]

    @property
    def moves(self) -> list[tuple[str, str]]:
        return [(each.source, each.device) for each in self.of(ev.ModelMoved)]


@pytest.fixture(scope="module")
def scorer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_scorer(tmp_path_factory.mktemp("models") / "scorer", seed=3)


def test_a_reranker_is_lent_a_gpu_and_leaves_nothing_on_it(scorer: Path) -> None:
    sim = Sim(scorer)
    np.testing.assert_allclose(sim.scores, scores_of(scorer), rtol=0, atol=1e-5)
    assert [type(each).__name__ for each in sim.told] == [
        "PairsPlanned", "LeaseGranted", "ModelMoved", "PairsScored", "LeaseReleased", "ModelUnloaded",
    ]  # fmt: skip
    assert sim.moves == [("disk", "cuda:0")]
    (planned,), (released,), (left,) = map(sim.of, (ev.PairsPlanned, ev.LeaseReleased, ev.ModelUnloaded))
    assert (planned.pairs, planned.truncated) == (len(PAIRS), 3)
    assert [receipt.residue_bytes for receipt in released.receipts] == [0]
    assert (left.device, left.cause, left.bytes) == ("cuda:0", "done", sim.of(ev.ModelMoved)[0].bytes)


def test_a_network_that_is_not_packed_leaves_nothing_on_a_gpu_either(tmp_path: Path) -> None:
    model = tiny_answerer(tmp_path / "m", seed=3)
    sim = Sim(model)
    np.testing.assert_allclose(sim.scores, wanted(model), rtol=0, atol=1e-5)
    assert [receipt.residue_bytes for each in sim.of(ev.LeaseReleased) for receipt in each.receipts] == [0]


@pytest.mark.parametrize(("times", "rungs"), [(1, ["replan"]), (2, ["replan", "split"])])
def test_a_batch_that_runs_out_of_memory_goes_the_way_of_those_of_a_run(
    scorer: Path, times: int, rungs: list[str]
) -> None:
    sim = Sim(scorer, ",".join(f"oom:{40 + number}" for number in range(times)))
    np.testing.assert_allclose(sim.scores, scores_of(scorer), rtol=0, atol=1e-5)
    steps = sim.of(ev.Mitigated)
    assert [(step.rung, step.model) for step in steps] == [(rung, "scorer") for rung in rungs]
    assert line_of(steps[0]).startswith("smaller batches, scorer on cuda:0: out of memory")
    assert sim.moves == [("disk", "cuda:0")]


def test_on_a_cpu_no_forward_takes_more_than_its_lease_has_room_for(
    scorer: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected, taken = scores_of(scorer), list[tuple[int, int]]()
    monkeypatch.setattr(ModelInstance, "room", lambda self: self.predicted([128] * 4))
    attempt = ModelInstance.attempt

    def noted(self: ModelInstance, rows: Any, *tried: Any) -> Any:
        taken.append((self.predicted([len(row) for row in rows]), self.room()))
        return attempt(self, rows, *tried)

    monkeypatch.setattr(ModelInstance, "attempt", noted)
    told: list[Any] = []
    np.testing.assert_allclose(scores_of(scorer, emit=told.append), expected, rtol=0, atol=1e-5)
    assert len(taken) > 1
    assert all(needed <= room for needed, room in taken)
    assert all(each.foreseen for each in told if isinstance(each, ev.Mitigated))


def test_rows_of_one_length_teach_nothing_of_a_padded_network(tmp_path: Path) -> None:
    """They carry no mask, which the law counts: what they take would be too little for rows that do."""
    host, gpus = CpuDevice(), simulated("sim:1xT4")
    card = card_of(tiny_scorer(tmp_path / "m", seed=3, kind="electra"))
    granted = Granted(gpus, host, Lessor([*gpus, host], 12 * GIB, 8 * GIB), lambda _: None)
    with Scorer(card, "sigmoid", granted) as scorer:
        known = []
        for pairs in (PAIRS[:8], PAIRS[:1] * 8, PAIRS[:8]):  # the first forward takes workspaces and says nothing
            scorer.score(pairs)
            assert scorer.instance is not None
            known.append(scorer.instance.calibration.batches)
    assert known == [0, 0, 1]


def test_pairs_that_fit_a_gpu_not_even_alone_move_with_the_model_to_the_cpu(scorer: Path) -> None:
    sim = Sim(scorer, ",".join(f"oom:{number}" for number in range(40, 400)))
    np.testing.assert_allclose(sim.scores, scores_of(scorer), rtol=0, atol=1e-5)
    assert sim.moves == [("disk", "cuda:0"), ("cuda:0", "cpu")]
    assert sim.of(ev.Mitigated)[-1].rung == "cpu"
    assert all(lease.rows > 0 for lease in sim.of(ev.LeaseGranted))
    assert [each.device for each in sim.of(ev.ModelUnloaded)] == ["cuda:0", "cpu"]
    assert "out of memory" in sim.of(ev.ModelUnloaded)[0].cause
    assert all(receipt.residue_bytes == 0 for each in sim.of(ev.LeaseReleased) for receipt in each.receipts)


def test_a_lost_gpu_is_left_for_the_cpu(scorer: Path) -> None:
    sim = Sim(scorer, "lose@0:40")
    np.testing.assert_allclose(sim.scores, scores_of(scorer), rtol=0, atol=1e-5)
    assert sim.moves == [("disk", "cuda:0"), ("cuda:0", "cpu")]


def test_a_gpu_that_takes_no_weights_is_left_for_the_cpu(scorer: Path) -> None:
    sim = Sim(scorer, "attach:2")
    np.testing.assert_allclose(sim.scores, scores_of(scorer), rtol=0, atol=1e-5)
    assert sim.moves == [("disk", "cpu")]
    assert sim.of(ev.ModelMoved)[0].cause.startswith("attaching to cuda:0 failed")


def test_scores_that_are_not_finite_on_a_gpu_are_computed_on_the_cpu(scorer: Path) -> None:
    sim = Sim(scorer, ",".join(f"nan:{number}" for number in range(20, 200)))
    np.testing.assert_allclose(sim.scores, scores_of(scorer), rtol=0, atol=1e-5)
    assert sim.moves == [("disk", "cuda:0"), ("cuda:0", "cpu")]
    assert "not finite" in sim.of(ev.ModelMoved)[1].cause


def test_a_model_above_the_ceiling_is_computed_on_the_cpu_or_refused(scorer: Path) -> None:
    sim = Sim(scorer, ceiling=320 << 20)
    assert sim.moves == [("disk", "cpu")]
    assert "needs" in sim.of(ev.ModelMoved)[0].cause
    with pytest.raises(UnavailableError, match=r"fits on no GPU .* CPU fallback is off"):
        Sim(scorer, ceiling=320 << 20, cpu_fallback=False)


def test_an_interrupted_reranker_leaves_nothing_on_its_gpu_while_the_interrupt_is_handled(scorer: Path) -> None:
    told: list[Any] = []
    host, gpus = CpuDevice(), simulated("sim:1xT4")

    def cut(done: int) -> None:
        raise KeyboardInterrupt

    lessor = Lessor([*gpus, host], 12 * GIB, 8 * GIB)
    running = Scorer(card_of(scorer), "sigmoid", Granted(gpus, host, lessor, told.append))
    try:
        running.score(PAIRS, cut)
    except KeyboardInterrupt:
        running.close("interrupted")
    assert [each.cause for each in told if isinstance(each, ev.ModelUnloaded)] == ["interrupted"]
    (released,) = [each for each in told if isinstance(each, ev.LeaseReleased)]
    assert [receipt.residue_bytes for receipt in released.receipts] == [0]
    assert gpus[0].memory().allocated == 0


def test_a_failing_forward_leaves_nothing_on_its_gpu_while_its_error_is_handled(
    scorer: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(self: PackedPairEncoder, batch: object) -> None:
        held = self.embeddings  # what a frame may hold
        raise RuntimeError(f"a bug beside {type(held)}")

    monkeypatch.setattr(PackedPairEncoder, "scores", fail)
    told: list[Any] = []
    host, gpus = CpuDevice(), simulated("sim:1xT4")
    lessor = Lessor([*gpus, host], 12 * GIB, 8 * GIB)
    running = Scorer(card_of(scorer), "sigmoid", Granted(gpus, host, lessor, told.append))
    try:
        running.score(PAIRS)
    except RuntimeError:
        running.close("failed")
    (released,) = [each for each in told if isinstance(each, ev.LeaseReleased)]
    assert [receipt.residue_bytes for receipt in released.receipts] == [0]


def test_scores_that_are_not_finite_anywhere_are_an_error(tmp_path: Path) -> None:
    model = tiny_scorer(tmp_path / "m", seed=3)
    tensors = load_file(model / "model.safetensors")
    save_file(tensors | {"classifier.bias": torch.full((1,), torch.nan)}, model / "model.safetensors", {"format": "pt"})
    with pytest.raises(InterlockError, match="19 of 19 scores not finite, the first of pair 1"):
        scores_of(model)
