"""What cannot be computed says what it is and what to take instead: other formats, own code, gated repositories."""

import json
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from interlock.engine.errors import UnavailableError, UsageError
from interlock.engine.gpu.cpu import CpuDevice
from interlock.engine.models.assets import Policy, resolve
from interlock.engine.models.card import read_card
from interlock.engine.models.registry import REGISTRY, ModelSpec, find
from interlock.engine.models.roster import cards_of
from interlock.engine.models.weights import load
from interlock.engine.record.events import AnyEvent, Warned
from tests.builders import interlock, tiny_model
from tests.hub import Hub

COMMIT = "a" * 40


def edited(file: Path, **said: object) -> None:
    file.write_text(json.dumps((json.loads(file.read_text()) if file.exists() else {}) | said))


def taken(directory: Path) -> object:
    spec = ModelSpec("m", (str(directory),))
    return load(read_card(spec, resolve(spec, Policy(offline=True), lambda _: None), "cpu"))


def converted(directory: Path, name: str) -> Path:
    """A model whose weights are in a file of this name alone."""
    (tiny_model(directory) / "model.safetensors").unlink()
    (directory / name).parent.mkdir(exist_ok=True)
    (directory / name).write_bytes(b"")
    return directory


@pytest.mark.parametrize(
    ("name", "kind"), [("m.tflite", "TensorFlow Lite"), ("m.Q8_0.gguf", "GGUF"), ("tf_model.h5", "TensorFlow")]
)
def test_weights_in_another_format_are_called_by_it(tmp_path, name, kind):
    model = converted(tmp_path / "m", name)
    with pytest.raises(UnavailableError, match=rf"model m: .* has its weights as {kind} only: use the model that they"):
        taken(model)


def test_a_repository_in_another_format_is_refused_before_it_is_fetched(tmp_path):
    with Hub("stations/m", converted(tmp_path / "m", "m.Q8_0.gguf"), COMMIT).serving() as hub:
        env = {"HF_HOME": str(tmp_path / "home"), "HF_ENDPOINT": hub.url}
        said = interlock("models", "fetch", "stations/m", env=env, check=5).stderr
        assert "hf:stations/m has its weights as GGUF only: use the model that they were made of" in said
        assert not any("resolve" in request for request in hub.requests)


@pytest.mark.parametrize(("status", "said"), [(403, "it is gated: accept its licence at"), (401, "or a private one")])
def test_a_repository_that_the_hub_does_not_give_says_what_opens_it(tmp_path, status, said):
    model = tiny_model(tmp_path / "m")
    with Hub("stations/m", model, COMMIT, refused={"stations/m": status}).serving() as hub:
        env = {"HF_HOME": str(tmp_path / "home"), "HF_ENDPOINT": hub.url}
        told = interlock("models", "fetch", "stations/m", env=env, check=5).stderr
    assert said in told and "HF_TOKEN" in told
    assert "interlock models fetch hf:stations/m" in told
    assert "wait" not in told
    assert status != 403 or "https://huggingface.co/stations/m" in told


@pytest.mark.parametrize("name", ["a/b/c", "a b/c", "a/b@main", "a/b--c", "-a/b", "a/b.git", "/b"])
def test_what_the_hub_can_call_no_model_is_refused_without_asking_it_and_nobody_is_told_to_fetch_it(name):
    for offline in (True, False):
        with pytest.raises(UsageError, match=r"the hub takes no such name as '.+': name it as hf:org/name$"):
            resolve(ModelSpec("m", (f"hf:{name}",)), Policy(offline=offline), lambda _: None)


def test_weights_of_a_network_of_its_own_are_called_so_and_not_fetched_again(tmp_path):
    model = tiny_model(tmp_path / "m", position_embedding_type="alibi")
    edited(model / "config.json", auto_map={"AutoModel": "other/code--own.Model"}, position_embedding_type="alibi")
    tensors = load_file(model / "model.safetensors")
    left = {name: tensor for name, tensor in tensors.items() if "position_embeddings" not in name}
    save_file(left, model / "model.safetensors", {"format": "pt"})
    why = r"model m: its weights are those of another network than bert \(.*position_embeddings.*auto_map.*: use"
    with pytest.raises(UnavailableError, match=why) as refused:
        taken(model)
    assert "fetch" not in str(refused.value)


def test_code_that_is_not_needed_and_not_run_is_told(tmp_path):
    model = tiny_model(tmp_path / "m")
    edited(model / "config.json", auto_map={"AutoModel": "own.Model"})
    told = list[AnyEvent]()
    cards_of([ModelSpec("m", (str(model),))], Policy(offline=True), [CpuDevice()], told.append)
    (warned,) = (event.message for event in told if isinstance(event, Warned))
    assert "code of its own (auto_map), which is never run, so it is computed as bert" in warned


@pytest.mark.parametrize(
    ("name", "other"),
    [
        ("jinaai/jina-embeddings-v4", "jinaai/jina-embeddings-v4-vllm-retrieval (or -code, -text-matching)"),
        ("jinaai/jina-embeddings-v3", "jinaai/jina-embeddings-v3-hf"),
        ("nvidia/NV-Embed-v2", "qwen3-embedding-0.6b"),
    ],
)
def test_a_model_known_for_its_own_code_names_another(tmp_path, monkeypatch, name, other):
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    with pytest.raises(UnavailableError, match="needs code of its own, which is never run: use ") as refused:
        resolve(find(REGISTRY, [name])[0], Policy(), lambda _: None)
    assert other in str(refused.value)
