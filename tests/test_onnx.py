"""Models that are published as ONNX alone: the vectors of the network that was exported, told and refused by file."""

import json
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from interlock.console.text.event_text import line_of
from interlock.engine.compute.encoder import encoder_for
from interlock.engine.compute.texts import encode_texts
from interlock.engine.errors import InterlockError, UnavailableError, UsageError
from interlock.engine.gpu.cpu import CpuDevice
from interlock.engine.gpu.lease import Lessor
from interlock.engine.models.assets import Policy, resolve
from interlock.engine.models.bundles import files_of
from interlock.engine.models.card import ModelCard, read_card
from interlock.engine.models.memory import law_for
from interlock.engine.models.networks.batching import Batching
from interlock.engine.models.registry import ModelSpec
from interlock.engine.models.roster import cards_of
from interlock.engine.models.scoring import read_scorer
from interlock.engine.models.weights import attach_to_host, load
from interlock.engine.record.events import AnyEvent, Warned
from tests.builders import corpus, interlock, sentence_transformer, sentences, tiny_model
from tests.hub import Hub

pytest.importorskip("onnxruntime")
TEXTS = [*sentences(9, words=30), "a", "the of and to in is for " * 30]
NAMES = ("input_ids", "attention_mask", "token_type_ids")
WIDTH, WORDS = 32, 400
FLOAT, INT64 = 1, 7


def exported(directory: Path, *names: str, name: str = "onnx/model.onnx") -> Path:
    """Take the weights of a model in `directory` into an ONNX file, as optimum's exporter lays it out."""
    from torch.onnx._internal.torchscript_exporter import onnx_proto_utils
    from transformers import AutoModel

    network = AutoModel.from_pretrained(str(directory), attn_implementation="eager").eval()

    class States(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.network = network

        def forward(self, *given: torch.Tensor) -> torch.Tensor:
            return self.network(**dict(zip(names, given, strict=True)))[0]

    file = directory / name
    file.parent.mkdir(exist_ok=True)
    axes = {each: {0: "batch", 1: "sequence"} for each in (*names, "last_hidden_state")}
    ids = torch.full((2, 7), 5)
    ids[0, 4:] = 0
    given = {"input_ids": ids, "attention_mask": (ids > 0).long(), "token_type_ids": ids * 0}
    with pytest.MonkeyPatch.context() as patched, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        patched.setattr(onnx_proto_utils, "_add_onnxscript_fn", lambda made, *_: made)  # it would want `onnx`
        torch.onnx.export(States().eval(), tuple(given[each] for each in names), str(file), dynamo=False,
                          input_names=[*names], output_names=["last_hidden_state"], dynamic_axes=axes)  # fmt: skip
    (directory / "model.safetensors").unlink()
    return directory


def number(value: int) -> bytes:
    """A number as protobuf has it."""
    more = value >> 7
    return bytes([value & 127 | (128 if more else 0)]) + (number(more) if more else b"")


def field(key: int, value: bytes | str | int) -> bytes:
    """A field of a protobuf message."""
    if isinstance(value, int):
        return number(key << 3) + number(value)
    content = value.encode() if isinstance(value, str) else value
    return number(key << 3 | 2) + number(len(content)) + content


def node(kind: str, into: Sequence[str], out: Sequence[str], **said: int | list[int]) -> bytes:
    told = b""
    for key, value in said.items():
        values = field(3, value) if isinstance(value, int) else b"".join(field(8, each) for each in value)
        told += field(5, field(1, key) + values + field(20, 2 if isinstance(value, int) else 7))
    return b"".join([field(1, each) for each in into] + [field(2, each) for each in out]) + field(4, kind) + told


def about(name: str, kind: int, *dims: str | int) -> bytes:
    shape = b"".join(field(1, field(2, each) if isinstance(each, str) else field(1, each)) for each in dims)
    return field(1, name) + field(2, field(1, field(1, kind) + field(2, shape)))


def graph(
    file: Path,
    nodes: Sequence[bytes],
    *,
    inputs: Sequence[str] = NAMES,
    outputs: Sequence[str] = ("last_hidden_state",),
    beside: str = "",
) -> np.ndarray:
    """Write an ONNX file with a table `t` of vectors, which is kept `beside` it where that is a name; the table."""
    table = np.random.default_rng(7).normal(size=(WORDS, WIDTH)).astype(np.float32)
    kept = field(9, table.tobytes())
    if beside:
        kept = field(13, field(1, "location") + field(2, beside)) + field(14, 1)
    tensor = field(1, WORDS) + field(1, WIDTH) + field(2, FLOAT) + field(8, "t") + kept
    parts = [field(1, each) for each in nodes] + [field(2, "g"), field(5, tensor)]
    parts += [field(11, about(name, INT64, "batch", "sequence")) for name in inputs]
    for name in outputs:
        dims = ["batch", "sequence", WIDTH] if name != "sentence_embedding" else ["batch", WIDTH]
        parts.append(field(12, about(name, FLOAT, *dims)))
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(field(1, 8) + field(7, b"".join(parts)) + field(8, field(2, 13)))
    return table


LOOKED_UP = [node("Gather", ["t", "input_ids"], ["last_hidden_state"])]


def bare(directory: Path, *files: str) -> Path:
    """A model whose weights are nothing but these ONNX files."""
    (tiny_model(directory) / "model.safetensors").unlink()
    for name in files:
        graph(directory / name, LOOKED_UP)
    return directory


def card_of(directory: Path, device: str = "cpu", **said: object) -> ModelCard:
    spec = ModelSpec("m", (str(directory),), **said)
    return read_card(spec, resolve(spec, Policy(offline=True), lambda _: None), device)


def vectors_of(card: ModelCard, texts: Sequence[str] = TEXTS) -> np.ndarray:
    found = encode_texts(card, texts, card.document_prompt, Lessor([CpuDevice()], 4 << 30)).dense
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("kind", "names", "pooling"),
    [("bert", NAMES, "mean"), ("xlm-roberta", NAMES[:2], "cls"), ("distilbert", NAMES[:2], "lasttoken")],
)
def test_vectors_are_those_of_the_network_that_was_exported(tmp_path, kind, names, pooling):
    model = tiny_model(tmp_path / "m", kind=kind, pooling=pooling, prompts={"document": "passage: "})
    expected = sentence_transformer(model).encode_document(TEXTS, normalize_embeddings=True)
    got = vectors_of(card_of(exported(model, *names)))
    assert (got * expected).sum(1).min() > 0.999999


def test_a_map_behind_the_pooling_is_computed(tmp_path):
    model = tiny_model(tmp_path / "m")
    modules = json.loads((model / "modules.json").read_text())
    modules.append({"idx": 2, "name": "2", "path": "2_Dense", "type": "sentence_transformers.models.Dense"})
    (model / "modules.json").write_text(json.dumps(modules))
    (model / "2_Dense").mkdir()
    said = {"in_features": 32, "out_features": 12, "activation_function": "torch.nn.modules.activation.Tanh"}
    (model / "2_Dense" / "config.json").write_text(json.dumps(said))
    state = {"linear.weight": torch.randn(12, 32), "linear.bias": torch.randn(12)}
    save_file(state, model / "2_Dense" / "model.safetensors", {"format": "pt"})
    expected = sentence_transformer(model).encode(TEXTS, normalize_embeddings=True)
    card = card_of(exported(model, *NAMES))
    assert card.dim == 12
    assert (vectors_of(card) * expected).sum(1).min() > 0.999999


def test_a_graph_that_sees_padding_is_given_none(tmp_path):
    model = bare(tmp_path / "m", "model.onnx")
    seen = [
        node("Gather", ["t", "input_ids"], ["each"]),
        node("ReduceMax", ["each"], ["most"], axes=[1], keepdims=1),
        node("Mul", ["each", "most"], ["last_hidden_state"]),
    ]
    table = graph(model / "model.onnx", seen)
    card, host = card_of(model), CpuDevice()
    assert card.batching is Batching.EVEN and card.tight
    rows = [np.random.default_rng(each).integers(5, WORDS, each % 4 + 1) for each in range(9)]
    got = encoder_for(card, attach_to_host(card, host).network, host).encode(rows).dense
    expected = np.stack([(table[row] * table[row].max(0)).mean(0) for row in rows])
    expected /= np.linalg.norm(expected, axis=1, keepdims=True)
    np.testing.assert_allclose(got, expected, atol=1e-6)


def test_a_graph_that_scales_all_rows_of_a_forward_alike_is_given_one(tmp_path):
    model = bare(tmp_path / "m", "model_quantized.onnx")
    scaled = [
        node("Gather", ["t", "input_ids"], ["each"]),
        node("DynamicQuantizeLinear", ["each"], ["small", "scale", "zero"]),
        node("DequantizeLinear", ["small", "scale", "zero"], ["last_hidden_state"]),
    ]
    graph(model / "model_quantized.onnx", scaled)
    card = card_of(model)
    assert card.batching is Batching.SINGLE and "one row at a time" in card.padded_because
    alone = np.concatenate([vectors_of(card, [text]) for text in TEXTS])
    np.testing.assert_array_equal(vectors_of(card), alone)


def test_of_several_files_the_plain_one_is_taken_and_told(tmp_path):
    model = bare(tmp_path / "m", "onnx/model_O4.onnx", "onnx/model.onnx", "onnx/model_qint8.onnx")
    events = list[AnyEvent]()
    (card,) = cards_of([ModelSpec("m", (str(model),))], Policy(offline=True), [CpuDevice()], events.append)
    assert card.padded_because.startswith("onnxruntime computes its onnx/model.onnx; rows of one length at a time")
    (told,) = (line_of(event) for event in events if isinstance(event, Warned))
    assert "m: computed of model.onnx, the plain ONNX file, and not of model_O4.onnx, model_qint8.onnx" in told


def test_of_several_variants_none_is_taken(tmp_path):
    model = bare(tmp_path / "m", "onnx/model_O4.onnx", "onnx/model_qint8.onnx")
    why = (
        r"ONNX only, and none of onnx/model_O4.onnx, onnx/model_qint8.onnx is called onnx/model.onnx or model.onnx: use"
    )
    with pytest.raises(UnavailableError, match=why):
        card_of(model)


def test_safetensors_beside_an_onnx_file_are_what_counts(tmp_path):
    model = tiny_model(tmp_path / "m")
    graph(model / "onnx" / "model.onnx", LOOKED_UP)
    card = card_of(model)
    assert not card.onnx and card.ours


def test_numbers_beside_a_graph_are_hashed_counted_bundled_and_missed(tmp_path):
    model = bare(tmp_path / "m")
    table = graph(model / "onnx" / "model.onnx", LOOKED_UP, beside="model.onnx_data")
    data = model / "onnx" / "model.onnx_data"
    data.write_bytes(table.tobytes())
    card = card_of(model)
    size = table.nbytes + (model / "onnx" / "model.onnx").stat().st_size
    assert law_for(card, "cpu").weights == card.snapshot.bytes == size
    assert attach_to_host(card, CpuDevice()).bytes == size
    assert {"onnx/model.onnx", "onnx/model.onnx_data"} <= files_of(model, {}).keys()
    vectors_of(card)
    data.write_bytes((2 * table).tobytes())
    assert card_of(model).snapshot.fingerprint != card.snapshot.fingerprint
    with pytest.raises(UnavailableError, match="changed during the run"):
        load(card)
    data.unlink()
    with pytest.raises(UnavailableError, match=r"lacks model.onnx_data"):
        card_of(model)
    graph(model / "onnx" / "model.onnx", LOOKED_UP, beside="../../data")
    with pytest.raises(UnavailableError, match=r"keeps numbers in '../../data', outside its folder: use another"):
        card_of(model)


@pytest.mark.parametrize(
    ("device", "said", "error", "why"),
    [
        ("cuda", {}, UsageError, r"m is ONNX \(model.onnx\), which is computed on the CPU alone: add --devices cpu"),
        ("sim", {}, UsageError, "which is computed on the CPU alone"),
        ("cpu", {"dtype": {"cpu": "bfloat16"}}, UsageError, r"\[models.m\] dtype: model.onnx is ONNX"),
        ("cpu", {"kind": "sparse"}, UnavailableError, "gives vectors of texts alone here: use the model that it was"),
    ],
)
def test_what_onnx_is_not_for_is_refused(tmp_path, device, said, error, why):
    with pytest.raises(error, match=why):
        card_of(bare(tmp_path / "m", "model.onnx"), device, **said)


def test_a_reranker_as_onnx_is_refused(tmp_path):
    spec = ModelSpec("m", (str(bare(tmp_path / "m", "model.onnx")),), kind="scores")
    with pytest.raises(UnavailableError, match="is ONNX, which gives vectors of texts alone here; use another"):
        read_scorer(spec, resolve(spec, Policy(offline=True), lambda _: None), "cpu")


@pytest.mark.parametrize(
    ("inputs", "output", "why"),
    [
        ((*NAMES, "past_key_values.0.key"), "last_hidden_state", "asks for past_key_values.0.key, which is not given"),
        (NAMES, "logits", "gives logits, and vectors are made of last_hidden_state or token_embeddings: use"),
    ],
)
def test_a_graph_of_other_names_is_refused_by_them(tmp_path, inputs, output, why):
    model = bare(tmp_path / "m")
    graph(model / "model.onnx", [node("Gather", ["t", "input_ids"], [output])], inputs=inputs, outputs=[output])
    with pytest.raises(UnavailableError, match=why):
        card_of(model)


def test_a_graph_that_pools_itself_needs_modules_that_say_how(tmp_path):
    model = bare(tmp_path / "m")
    given = [*LOOKED_UP, node("ReduceMean", ["last_hidden_state"], ["sentence_embedding"], axes=[1], keepdims=0)]
    graph(model / "model.onnx", given, outputs=["last_hidden_state", "sentence_embedding"])
    card_of(model)
    (model / "modules.json").unlink()
    with pytest.raises(
        UnavailableError, match=r"gives last_hidden_state, sentence_embedding, .* as a modules.json says"
    ):
        card_of(model)


def test_a_file_that_is_no_graph_is_refused(tmp_path):
    model = bare(tmp_path / "m", "model.onnx")
    (model / "model.onnx").write_bytes(b"nothing of the kind")
    with pytest.raises(UnavailableError, match=r"onnxruntime cannot load .*model.onnx \(.*\): use the model that it"):
        card_of(model)
    (model / "model.onnx").write_bytes(b"")
    with pytest.raises(InterlockError, match=r"model.onnx is damaged"):
        card_of(model)


def test_without_onnxruntime_it_is_asked_for(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(UnavailableError, match=r"needs onnxruntime: install it with pip install 'interlock\[onnx\]'"):
        card_of(bare(tmp_path / "m", "model.onnx"))


def test_what_is_fetched_is_the_plain_file_with_its_numbers(tmp_path):
    model = bare(tmp_path / "m", "onnx/model.onnx", "onnx/model_O4.onnx")
    table = graph(model / "onnx" / "model.onnx", LOOKED_UP, beside="model.onnx_data")
    (model / "onnx" / "model.onnx_data").write_bytes(table.tobytes())
    chunks = corpus(tmp_path / "chunks", {"Docs": {"a_chunks.json": TEXTS}})
    with Hub("stations/m", model, "a" * 40).serving() as hub:
        env = {"HF_HOME": str(tmp_path / "home"), "HF_ENDPOINT": hub.url}
        interlock("models", "fetch", "stations/m", env=env)
        assert not any("model_O4" in request for request in hub.requests)
    planned = interlock("plan", chunks, "--roster", "stations/m", "--devices", "cpu", "--offline", env=env).stdout
    assert "padded: m, because onnxruntime computes its onnx/model.onnx; rows of one length at a time" in planned
