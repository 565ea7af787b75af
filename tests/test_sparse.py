"""Sparse models, which weigh terms: the same as sentence-transformers, and passes like any other."""

import shutil
from pathlib import Path
from statistics import median

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch._subclasses.fake_tensor import FakeTensorMode

from interlock.engine.compute.checks.canary import lowest_cosine
from interlock.engine.compute.controls import Controls
from interlock.engine.compute.encoder import encoder_for
from interlock.engine.compute.parts.outputs import Outputs
from interlock.engine.compute.parts.terms import SparseFile, SparseRows
from interlock.engine.errors import ExitCode, UnavailableError, UsageError
from interlock.engine.flows.run import Run
from interlock.engine.gpu.cpu import CpuDevice
from interlock.engine.gpu.faults import parse
from interlock.engine.gpu.meter import Meter
from interlock.engine.gpu.sim import CARDS, SimDevice
from interlock.engine.models.assets import Policy, resolve
from interlock.engine.models.card import ModelCard, read_card
from interlock.engine.models.members import members
from interlock.engine.models.memory import law_of
from interlock.engine.models.networks.checkpoint import PACKED_TYPES
from interlock.engine.models.networks.kernels import Kernel, filling, pack
from interlock.engine.models.networks.network import HEAD_ROWS, HEAD_TOKENS, PackedTermEncoder
from interlock.engine.models.networks.pooling import TermPooling
from interlock.engine.models.networks.sizes import cost_of
from interlock.engine.models.networks.streaming import walk
from interlock.engine.models.registry import REGISTRY, ModelSpec
from interlock.engine.models.weights import Master, Replica, attach_to_host
from interlock.engine.models.weights import load as load_network
from interlock.engine.record.events import BatchCommitted, BatchesLost, LeaseReleased, RosterResolved, RowsReused
from interlock.engine.settings import load
from tests.architectures import BERT_BASE, MPNET_BASE, SPARSE
from tests.builders import (
    corpus,
    events_of,
    interlock,
    sentences,
    summary_of,
    tiny_model,
    tiny_sparse,
    toml,
)
from tests.ledgers import Counter
from tests.oracle import as_on_a_gpu, lengths_of
from tests.processes import checksums, exports, kill_after

TEXTS = 90


@pytest.fixture(scope="module")
def terms(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small model with a masked-LM head."""
    return tiny_sparse(tmp_path_factory.mktemp("models") / "terms", seed=5)


def card_of(directory: Path) -> ModelCard:
    spec = ModelSpec(directory.name, (str(directory),), kind="sparse")
    return read_card(spec, resolve(spec, Policy(offline=True), lambda _: None), "cpu")


def ids_of(directory: Path, texts: list[str], limit: int = 128) -> list[np.ndarray]:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.enable_truncation(limit)
    return [np.array(tokenizer.encode(text).ids) for text in texts]


def weights_of(card: ModelCard, rows: list[np.ndarray]) -> np.ndarray:
    host = CpuDevice()
    attached = attach_to_host(card, host)
    found = encoder_for(card, attached.network, host).encode(rows).terms
    assert found
    return found.to_dense(card.dim)


@pytest.mark.parametrize("untied", [False, True], ids=["tied", "with a decoder of its own"])
@pytest.mark.parametrize("kind", sorted(PACKED_TYPES))
def test_weights_are_those_of_sentence_transformers_packed_or_padded(tmp_path: Path, kind: str, untied: bool) -> None:
    from sentence_transformers import SparseEncoder

    model = tiny_sparse(tmp_path / "m", seed=3, kind=kind, tie_word_embeddings=not untied)
    texts = [*sentences(30, words=30), "the " * 120]
    wanted = SparseEncoder(str(model), device="cpu").encode(texts, convert_to_sparse_tensor=False).numpy()
    card, rows = card_of(model), ids_of(model, texts)
    packed = weights_of(card, rows)
    alone = np.concatenate([weights_of(card, [row]) for row in rows])
    assert (wanted > 0).any(axis=1).all()
    for found in (packed, alone):
        np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-5)
        assert lowest_cosine(Outputs(found), Outputs(wanted)) >= 1 - 1e-5


@pytest.mark.parametrize("kind", ["bert", "distilbert", "mpnet", "roberta"])
def test_a_head_has_its_own_activation_where_its_architecture_says_so(tmp_path: Path, kind: str) -> None:
    from sentence_transformers import SparseEncoder

    named = "activation" if kind == "distilbert" else "hidden_act"
    model, texts = tiny_sparse(tmp_path / "m", seed=3, kind=kind, **{named: "relu"}), sentences(5)
    wanted = SparseEncoder(str(model), device="cpu").encode(texts, convert_to_sparse_tensor=False).numpy()
    np.testing.assert_allclose(weights_of(card_of(model), ids_of(model, texts)), wanted, rtol=0, atol=1e-5)


def test_a_model_as_sentence_transformers_saves_it_is_read(tmp_path: Path, terms: Path) -> None:
    from sentence_transformers import SparseEncoder

    encoder = SparseEncoder(str(terms), device="cpu")
    encoder.save_pretrained(str(tmp_path / "saved"))
    assert card_of(tmp_path / "saved").dim == card_of(terms).dim


def test_a_row_longer_than_a_part_has_its_largest_logits_of_all_parts(terms: Path) -> None:
    card, generator = card_of(terms), np.random.default_rng(1)
    rows = [generator.integers(5, 180, length) for length in (100, 3, *[7] * 40, 128, 90, 120)]
    assert sum(map(len, rows)) > 2 * HEAD_TOKENS
    together = weights_of(card, rows)
    alone = np.concatenate([weights_of(card, [row]) for row in rows])
    np.testing.assert_allclose(together, alone, rtol=0, atol=1e-5)


def test_rows_of_all_words_are_compressed_a_block_at_a_time(terms: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    card, from_dense, written = card_of(terms), SparseRows.from_dense, []

    def noted(matrix: np.ndarray) -> SparseRows:
        written.append(len(matrix))
        return from_dense(matrix)

    monkeypatch.setattr(SparseRows, "from_dense", noted)
    weights_of(card, [np.array([2, 7, 3])] * 100)
    assert sum(written) == 100
    assert max(written) <= HEAD_ROWS


def test_norms_as_tensorflow_named_them_are_read(tmp_path: Path, terms: Path) -> None:
    shutil.copytree(terms, tmp_path / "old")
    file = tmp_path / "old" / "model.safetensors"
    former = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}
    renamed = {}
    for name, tensor in load_file(file).items():
        ends = next((end for end in former if name.endswith(end)), "")
        renamed[name.removesuffix(ends) + former.get(ends, "")] = tensor
    save_file(renamed, file)
    rows = ids_of(terms, sentences(5))
    np.testing.assert_array_equal(weights_of(card_of(tmp_path / "old"), rows), weights_of(card_of(terms), rows))


def test_a_model_that_cannot_weigh_terms_is_refused_with_what_can(tmp_path: Path, tiny_a: Path) -> None:
    with pytest.raises(UsageError, match=r"dense model by its .*name it in --roster"):
        card_of(tiny_a)
    electra = tiny_sparse(tmp_path / "electra", kind="electra", embedding_size=32)
    with pytest.raises(UnavailableError, match=r"model_type 'electra'.*use one of type bert, distilbert"):
        card_of(electra)
    headless = tiny_model(tmp_path / "headless")
    (headless / "modules.json").unlink()
    with pytest.raises(UnavailableError, match="lacks the tensors of a masked-LM head"):
        card_of(headless)


def test_a_model_in_the_wrong_list_is_refused_with_the_right_one() -> None:
    with pytest.raises(UsageError, match="splade-v3 is a sparse model: name it in --sparse"):
        members(REGISTRY, ["all-minilm-l6", "splade-v3"])
    with pytest.raises(UsageError, match="all-mpnet-base-v2 is a dense model: name it in --roster"):
        members(REGISTRY, ["all-minilm-l6"], ["all-mpnet-base-v2"])
    found = members(REGISTRY, ["all-minilm-l6"], ["splade-tiny", "./mine"])
    assert [spec.kind for spec in found] == ["dense", "sparse", "sparse"]


@pytest.mark.parametrize(
    ("name", "kernel"),
    [(name, Kernel.RUNS if name == "MPNet-base" else Kernel.EFFICIENT) for name in SPARSE]
    + [("BERT-base", Kernel.HOST)],
)
def test_the_law_is_within_one_percent_with_the_head_in(name: str, kernel: Kernel) -> None:
    law = law_of(SPARSE[name], 2, packed=True, kernel=kernel, kind="sparse")
    mode = FakeTensorMode()
    with mode:
        network = PackedTermEncoder.blank(SPARSE[name], torch.float16)
    generator, errors = np.random.default_rng(11), []
    for even in (True, False, True, False):
        lengths, counter = lengths_of(generator, 510, 1 << 14, packed=True, even=even), Counter()
        with mode, as_on_a_gpu(kernel), torch.inference_mode(), Meter(counter):
            rows = [np.ones(each, np.int64) for each in lengths]
            network.terms(pack(rows, torch.device("cpu"), kernel), TermPooling(), lambda *_: None)
        tokens = sum(lengths) + filling(sum(lengths))
        errors.append(abs(law.activations(tokens, max(lengths)) - counter.peak) / counter.peak)
    assert law.weights == pytest.approx(sum(each.numel() * 2 for each in network.parameters()), rel=0.005)
    assert median(errors) <= 0.01
    assert max(errors) <= 0.02


def test_the_head_counts_in_what_a_token_costs() -> None:
    dense, sparse = cost_of(BERT_BASE), cost_of(BERT_BASE, "sparse")
    assert dense and sparse
    assert sparse.per_token - dense.per_token == 2 * (768 * 768 + 768 * BERT_BASE["vocab_size"])
    assert sparse.per_pair == dense.per_pair


def test_a_text_without_terms_passes_and_one_that_is_not_finite_does_not() -> None:
    vectors = np.array([[0, 0], [1, 0], [np.nan, 1], [np.inf, 0]], np.float32)
    assert Outputs(terms=SparseRows.from_dense(vectors)).refused(0) == {2: "not finite", 3: "not finite"}


def test_the_head_is_computed_with_its_weights_on_the_device_when_layers_are_streamed(terms: Path) -> None:
    card, rows = card_of(terms), ids_of(terms, sentences(12))
    gpu, copied = SimDevice("cuda:0", CARDS["T4"], parse("")), []
    replica = Replica(master := Master(load_network(card)), gpu, streamed=True)
    hosts = {flat.untyped_storage()._cdata for flat in master.flats.values()}
    assert isinstance(replica.network, PackedTermEncoder)
    for stage, _ in walk(replica.network):
        stage.register_forward_pre_hook(
            lambda stage, _: copied.extend(
                each.untyped_storage()._cdata not in hosts for each in stage.parameters(recurse=False)
            )
        )
    with gpu.computing():
        found = encoder_for(card, replica.network, gpu).encode(rows).terms
    assert copied
    assert all(copied)
    np.testing.assert_allclose(found.to_dense(card.dim), weights_of(card, rows), rtol=0, atol=1e-5)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory, tiny_a: Path, terms: Path) -> Path:
    """Chunks, a configuration with a dense and a sparse model, and a finished run `one`; not to be changed."""
    home = tmp_path_factory.mktemp("sparse")
    corpus(home / "in", {"Docs": {"a.jsonl": sentences(TEXTS)}})
    rows = {"a": {"source": str(tiny_a)}, "s": {"source": str(terms), "kind": "sparse"}}
    toml(home / "interlock.toml", {key: {**row, "batch_tokens": 32} for key, row in rows.items()})
    embed(home, "one")
    return home


def embed(home: Path, name: str, code: ExitCode = ExitCode.COMPLETED, **flags: object) -> Path:
    """Embed the chunks of `home` as a run of this name: its directory."""
    given = {"out": str(home / "runs"), "roster": "a", "sparse": "s", "run_id": name, "export": "npy", **flags}
    assert Run(home / "in", load(given, {}, home / "interlock.toml"), Controls()).go() == code
    return home / "runs" / name


def kept(run: Path) -> SparseRows:
    """The rows of the sparse pass of a run."""
    width = events_of(run, RosterResolved)[-1].roster[1].dim
    return SparseFile.open(run / "passes" / "1_s" / "rows.npy", TEXTS, width).take(np.arange(TEXTS))


def same(one: SparseRows, other: SparseRows) -> bool:
    fields = ("starts", "indices", "values", "parked")
    return all(getattr(one, name).tobytes() == getattr(other, name).tobytes() for name in fields)


def test_a_sparse_pass_is_told_with_its_kind_and_terms_and_has_no_share_in_the_fusion(home: Path) -> None:
    run = home / "runs" / "one"
    dense, sparse = summary_of(run)["collections"][0]["passes"]
    rows = kept(run)
    assert (dense["kind"], dense["weight"], dense["terms_per_text"]) == ("dense", 1.0, None)
    assert (sparse["kind"], sparse["weight"], sparse["status"]) == ("sparse", 0.0, "completed")
    assert sparse["terms_per_text"] == round(rows.counts.mean(), 1) > 1
    assert (dense["rows_without_terms"], sparse["rows_without_terms"]) == (None, 0)
    assert (dense["coverage"], sparse["coverage"]) == (1.0, 1.0)
    assert not rows.parked.any()


def test_texts_without_terms_and_the_share_of_their_tokens_that_was_seen_are_told(tmp_path: Path, tiny_a: Path) -> None:
    model = tiny_sparse(tmp_path / "s", seed=5)
    tensors = load_file(model / "model.safetensors")
    tensors["cls.predictions.bias"] -= 1000  # no word is above zero
    save_file(tensors, model / "model.safetensors", {"format": "pt"})
    corpus(tmp_path / "in", {"Docs": {"a.jsonl": ["a " * 4, "a " * 14]}})
    rows = {"a": {"source": str(tiny_a)}, "s": {"source": str(model), "kind": "sparse", "max_tokens": 10}}
    toml(tmp_path / "interlock.toml", rows)
    run = embed(tmp_path, "one")
    _, sparse = summary_of(run)["collections"][0]["passes"]
    assert (sparse["terms_per_text"], sparse["rows_without_terms"]) == (0.0, 2)
    assert (sparse["truncated_rows"], sparse["coverage"]) == (1, round((4 + 8) / (4 + 14), 4))
    again = embed(tmp_path, "again", reuse=str(run))
    _, reused = summary_of(again)["collections"][0]["passes"]
    assert (reused["rows"], reused["rows_without_terms"], reused["coverage"]) == (0, 0, sparse["coverage"])


def test_dense_and_sparse_models_share_simulated_gpus_and_leave_nothing_behind(home: Path) -> None:
    run = embed(home, "sim", devices="sim:2xT4")
    receipts = [receipt for lease in events_of(run, LeaseReleased) for receipt in lease.receipts]
    width = events_of(run, RosterResolved)[-1].roster[1].dim
    found, wanted = (kept(each).to_dense(width) for each in (run, home / "runs" / "one"))
    assert receipts
    assert [receipt.residue_bytes for receipt in receipts] == [0] * len(receipts)
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-5)


def test_a_killed_run_ends_with_the_bytes_of_an_undisturbed_one(home: Path) -> None:
    run, whole = home / "killed" / "r", home / "whole" / "r"
    words = ["run", home / "in", "--config", home / "interlock.toml", "--roster", "a", "--sparse", "s", "--export"]
    command = [*words, "npy", "--resume", "--no-ui", "--quiet", "--run-id", "r", "--out"]
    interlock(*command, whole.parent)
    batches = len([each for each in events_of(whole, BatchCommitted) if each.model_pass == 1])
    for commits in (batches // 3, batches):
        kill_after(run, commits, *command, run.parent)
    interlock(*command, run.parent)
    assert same(kept(run), kept(whole))
    assert exports(run) == exports(whole)
    assert checksums(run) == checksums(whole)


def test_what_was_torn_off_the_terms_is_computed_again(home: Path, tmp_path: Path) -> None:
    shutil.copytree(home, tmp_path / "home")
    torn = tmp_path / "home"
    with (torn / "runs" / "one" / "passes" / "1_s" / "terms.bin").open("rb+") as handle:
        handle.truncate(400)
    run = embed(torn, "one", resume="yes")
    assert [each.model_pass for each in events_of(run, BatchesLost)] == [1]
    assert same(kept(run), kept(home / "runs" / "one"))


def test_sparse_rows_are_taken_over_from_another_run(home: Path) -> None:
    run = embed(home, "again", reuse=str(home / "runs" / "one"))
    assert [(each.model, each.rows) for each in events_of(run, RowsReused)] == [("a", TEXTS), ("s", TEXTS)]
    assert same(kept(run), kept(home / "runs" / "one"))
    again = embed(home, "thrice", reuse=str(run))
    assert same(kept(again), kept(run))


def test_rows_with_another_number_of_terms_are_not_taken_over(home: Path, tmp_path: Path) -> None:
    changed = Path(shutil.copytree(home, tmp_path / "home"))
    model = Path(load({}, {}, home / "interlock.toml").models["s"]["source"])
    shutil.copytree(model, changed / "s")
    (changed / "s" / "config_sentence_transformers.json").write_text('{"max_active_dims": 3}')
    table = (home / "interlock.toml").read_text().replace(str(model), str(changed / "s"))
    (changed / "interlock.toml").write_text(table)
    run = embed(changed, "few", reuse=str(home / "runs" / "one"))
    assert [each.model for each in events_of(run, RowsReused)] == ["a"]
    assert kept(run).counts.max() == 3
    embed(changed, "few", resume="yes")
    again = embed(changed, "few-again", reuse=str(run))
    assert [each.model for each in events_of(again, RowsReused)] == ["a", "s"]


def test_a_text_that_has_no_weights_is_parked_alone(home: Path, tmp_path: Path, terms: Path) -> None:
    spoilt = tmp_path / "spoilt"
    shutil.copytree(terms, spoilt)
    tensors = load_file(spoilt / "model.safetensors")
    tensors["bert.embeddings.position_embeddings.weight"][60:] = torch.nan  # of long texts only
    save_file(tensors, spoilt / "model.safetensors")
    place = tmp_path / "home"
    corpus(place / "in", {"Docs": {"a.jsonl": [*sentences(20), "the " * 70]}})
    shutil.copy(home / "interlock.toml", place)
    config = (place / "interlock.toml").read_text().replace(str(terms), str(spoilt))
    (place / "interlock.toml").write_text(config)
    run = embed(place, "parked", ExitCode.FAILED)
    (collection,) = summary_of(run)["collections"]
    assert [(each["model_pass"], each["row"]) for each in collection["parked"]] == [(1, 20)]
    rows = SparseFile.open(run / "passes" / "1_s" / "rows.npy", 21, card_of(spoilt).dim).take(np.arange(21))
    assert rows.parked.tolist() == [False] * 20 + [True]


@pytest.mark.parametrize(
    ("roster", "sparse", "told"),
    [
        (["all-minilm-l6"], ["all-minilm-l6"], "all-minilm-l6 is a dense model: name it in --roster"),
        (["splade-v3"], ["splade-v3"], "splade-v3 is a sparse model: name it in --sparse"),
        (["all-minilm-l6"], ["splade-v3", "splade-v3"], "two models of this run are named 'splade-v3': name it once"),
    ],
)
def test_a_model_in_a_wrong_list_or_twice_is_told_what_it_is(roster, sparse, told):
    with pytest.raises(UsageError, match=told):
        members(REGISTRY, roster, sparse)


def test_models_whose_outputs_would_be_delivered_over_each_other_are_refused() -> None:
    rows = {"m": ModelSpec("m", ("/m",)), "m-sparse": ModelSpec("m-sparse", ("/a",))}
    rows |= {key: ModelSpec(key, ("/a",)) for key in ("m-tokens", "m-tokens-starts")}
    with pytest.raises(UsageError, match="m and m-sparse would both be delivered as 'm-sparse'"):
        members(rows, ["m", "m-sparse"], ["m"])
    for other in ("m-tokens", "m-tokens-starts"):
        with pytest.raises(UsageError, match=f"would both be delivered as '{other}'"):
            members(rows, [other, "m"], (), ["m"])
        assert [spec.key for spec in members(rows, [other, "m"])] == [other, "m"]


def test_the_law_of_the_host_counts_blocks_of_rows_and_the_terms_of_many_short_ones():
    words = BERT_BASE["vocab_size"]
    blocks = 3 * HEAD_ROWS * words * 4  # the head's, a copy, and the one that is compressed
    terms = 2 * (2048 // 6) * 8 * words // 8  # of an eighth of the words, as pieces and joined
    dense, sparse = (law_of(MPNET_BASE, 4, packed=True, kind=kind, host=True) for kind in ("dense", "sparse"))
    assert law_of(BERT_BASE, 4, packed=True, kind="sparse", host=True).activations(2048, 6) > blocks + terms
    assert dense.square == sparse.square > 0
