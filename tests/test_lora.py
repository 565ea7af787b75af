"""LoRA adapters: merged into their base when they are resolved, as numpy merges them here, or refused by setting."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from interlock.engine.compute.texts import encode_texts
from interlock.engine.errors import UnavailableError
from interlock.engine.gpu.cpu import CpuDevice
from interlock.engine.gpu.lease import Lessor
from interlock.engine.models.assets import ModelSnapshot, Policy, resolve
from interlock.engine.models.card import read_card
from interlock.engine.models.registry import ModelSpec
from interlock.engine.record.events import AnyEvent, ModelResolved
from tests.builders import hub_snapshot, sentence_transformer, sentences, tiny_model

TEXTS = [*sentences(6), "the of and to in is for " * 20 + "final word differs", "a"]
RANK, ALPHA = 4, 12
OF = {
    "bert": ("encoder.layer.{}.attention.self.query", "encoder.layer.{}.output.dense"),
    "qwen3": ("layers.{}.self_attn.q_proj", "layers.{}.mlp.down_proj"),
    "modernbert": ("layers.{}.attn.Wqkv", "layers.{}.mlp.Wo"),
}
PLAIN = {
    "peft_type": "LORA", "r": RANK, "lora_alpha": ALPHA, "bias": "none", "lora_dropout": 0.1, "use_dora": False,
    "init_lora_weights": True, "target_modules": ["query"], "task_type": "FEATURE_EXTRACTION", "rank_pattern": {},
    "revision": None, "inference_mode": True, "modules_to_save": None,
}  # fmt: skip


def edited(file: Path, **said: object) -> None:
    file.write_text(json.dumps((json.loads(file.read_text()) if file.exists() else {}) | said))


def adapted(directory: Path, base: Path, kind: str, named: str, scale: float = ALPHA / RANK) -> tuple[Path, Path]:
    """An adapter of `base` without its weights, as sentence-transformers saves it, and the model that numpy makes."""
    merged = shutil.copytree(base, directory / "merged")
    adapter = shutil.copytree(base, directory / "adapter")
    for name in ("model.safetensors", "config.json"):
        (adapter / name).unlink()
    tensors, random, parts = load_file(base / "model.safetensors"), np.random.default_rng(5), {}
    for module in (name.format(layer) for name in OF[kind] for layer in (0, 1)):
        (place,) = (name for name in tensors if name.endswith(f"{module}.weight"))
        rows, columns = tensors[place].shape
        a = random.normal(0, 0.3, (RANK, columns)).astype(np.float32)
        b = random.normal(0, 0.3, (rows, RANK)).astype(np.float32)
        parts |= {f"base_model.model.{module}.lora_{one}.weight": each for one, each in (("A", a), ("B", b))}
        tensors[place] = tensors[place] + np.float32(scale) * (b @ a)
    save_file(tensors, merged / "model.safetensors", {"format": "pt"})
    save_file(parts, adapter / "adapter_model.safetensors", {"format": "pt"})
    edited(adapter / "adapter_config.json", **PLAIN, base_model_name_or_path=named)
    return adapter, merged


def resolved(source: object, events: list[AnyEvent] | None = None) -> ModelSnapshot:
    return resolve(ModelSpec("m", (str(source),)), Policy(offline=True), (events if events is not None else []).append)


def vectors(snapshot: ModelSnapshot) -> np.ndarray:
    card = read_card(ModelSpec("m", (str(snapshot.path),)), snapshot, "cpu")
    dense = encode_texts(card, TEXTS, "", Lessor([CpuDevice()], 1 << 30)).dense
    assert dense is not None
    return dense


def agree(snapshot: ModelSnapshot, merged: Path) -> float:
    there = sentence_transformer(merged).encode(TEXTS, normalize_embeddings=True, batch_size=1)
    return float((vectors(snapshot).astype(np.float64) * there).sum(axis=1).min())


@pytest.fixture(params=["bert", *(pytest.param(kind, marks=pytest.mark.nightly) for kind in ("qwen3", "modernbert"))])
def made(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, Path, Path]:
    more = {"num_key_value_heads": 2} if request.param == "qwen3" else {}
    base = tiny_model(tmp_path / "base", kind=request.param, pooling="cls", **more)
    return base, *adapted(tmp_path, base, request.param, str(base))


def test_an_adapter_is_merged_into_the_base_that_it_names(made):
    base, adapter, merged = made
    events = list[AnyEvent]()
    snapshot = resolved(adapter, events)
    assert agree(snapshot, merged) > 0.9999
    assert (vectors(snapshot) * vectors(resolved(base))).sum(axis=1).max() < 0.999  # or nothing was shown
    found = [event for event in events if isinstance(event, ModelResolved)]
    assert [(event.model, event.source) for event in found] == [("base", str(base)), ("m", str(adapter))]


def test_an_adapter_beside_its_base_is_merged_into_it(made):
    base, adapter, merged = made
    for name in ("model.safetensors", "config.json"):
        shutil.copy(base / name, adapter / name)
    edited(adapter / "adapter_config.json", base_model_name_or_path="/nowhere")
    assert agree(resolved(adapter), merged) > 0.9999


def test_a_base_on_the_hub_is_found_and_its_commit_recorded(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    base = tiny_model(tmp_path / "base")
    adapter, merged = adapted(tmp_path, base, "bert", "stations/base")
    with pytest.raises(UnavailableError, match=r"model base is not on this machine(.|\n)*hf download stations/base"):
        resolved(adapter)
    hub_snapshot(tmp_path / "home" / "hub", "stations/base", base, "c" * 40)
    events = list[AnyEvent]()
    assert agree(resolved(adapter, events), merged) > 0.9999
    assert next((event.source, event.commit) for event in events) == ("hf:stations/base", "c" * 40)


@pytest.mark.parametrize("of", ["base", "adapter", "config"])
def test_the_fingerprint_is_that_of_base_and_adapter(tmp_path, of):
    base = tiny_model(tmp_path / "base")
    adapter, _ = adapted(tmp_path, base, "bert", str(base))
    before = resolved(adapter)
    assert resolved(adapter).path == before.path  # merged once
    if of == "config":
        edited(adapter / "adapter_config.json", lora_alpha=ALPHA + 1)
    else:
        file = base / "model.safetensors" if of == "base" else adapter / "adapter_model.safetensors"
        tensors = load_file(file)
        name = next(iter(tensors))
        save_file(tensors | {name: tensors[name] + 1}, file, {"format": "pt"})
    assert resolved(adapter).fingerprint != before.fingerprint


def test_a_rank_stabilised_adapter_counts_by_the_root_of_its_rank(tmp_path):
    base = tiny_model(tmp_path / "base")
    adapter, merged = adapted(tmp_path, base, "bert", str(base), scale=ALPHA / RANK**0.5)
    edited(adapter / "adapter_config.json", use_rslora=True)
    assert agree(resolved(adapter), merged) > 0.9999


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ({"use_dora": True}, "use_dora is True, and only plain LoRA"),
        ({"bias": "all"}, "bias is 'all'"),
        ({"rank_pattern": {"query": 8}}, "rank_pattern is"),
        ({"alpha_pattern": {"query": 8}}, "alpha_pattern is"),
        ({"modules_to_save": ["pooler"]}, "modules_to_save is"),
        ({"fan_in_fan_out": True}, "fan_in_fan_out is"),
        ({"init_lora_weights": "pissa"}, "init_lora_weights is 'pissa'"),
        ({"unheard_of": 1}, "unheard_of is 1"),
        ({"peft_type": "IA3"}, "adapters of type 'IA3' are not supported: merge it"),
        ({"base_model_name_or_path": ""}, "base_model_name_or_path is '', which is not here: put its files beside"),
    ],
    ids=lambda each: next(iter(each)) if isinstance(each, dict) else "",
)
def test_an_adapter_that_is_not_plain_is_refused_by_file_and_setting(tmp_path, said, why):
    base = tiny_model(tmp_path / "base")
    adapter, _ = adapted(tmp_path, base, "bert", str(base))
    edited(adapter / "adapter_config.json", **said)
    with pytest.raises(UnavailableError, match=rf"model m: .*adapter_config\.json: {why}"):
        resolved(adapter)


def test_parts_that_do_not_fit_the_base_are_refused_by_name(tmp_path):
    base = tiny_model(tmp_path / "base")
    adapter, _ = adapted(tmp_path, base, "bert", str(base))
    file = adapter / "adapter_model.safetensors"
    tensors = load_file(file)
    for name, why in (
        ("pooler.lora_magnitude", "which is no part of a plain LoRA"),
        ("x.lora_A.weight", "x is no matrix"),
    ):
        save_file(tensors | {f"base_model.model.{name}": np.zeros((4, 4), np.float32)}, file)
        with pytest.raises(UnavailableError, match=f"model m: .*adapter_model.safetensors.*{why}"):
            resolved(adapter)


def test_an_adapter_that_says_nothing_of_pooling_where_its_base_does_is_refused(tmp_path):
    base = tiny_model(tmp_path / "base", pooling="cls")
    adapter, _ = adapted(tmp_path, base, "bert", str(base))
    (adapter / "modules.json").unlink()
    with pytest.raises(UnavailableError, match=r"says nothing of pooling, and its base does: copy modules\.json"):
        resolved(adapter)
