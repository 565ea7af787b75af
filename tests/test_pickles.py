"""Weights that are pickles only: nothing of one runs, one that is vouched for is read once, any other is refused."""

import json
import os
import pickle
import re
import shutil
import zipfile
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from interlock.engine.compute.texts import encode_texts
from interlock.engine.errors import UnavailableError
from interlock.engine.gpu.cpu import CpuDevice
from interlock.engine.gpu.lease import Lessor
from interlock.engine.models import pickles
from interlock.engine.models.assets import Policy, cached, resolve
from interlock.engine.models.card import read_card
from interlock.engine.models.members import members
from interlock.engine.models.registry import OWN_CODE, REGISTRY, ModelSpec, extended, find, vouched
from interlock.engine.models.sources import model_cache
from interlock.engine.record import atomic
from tests.builders import corpus, entries, hub_snapshot, interlock, sentences, tiny_model
from tests.hub import Hub

COMMIT = "c" * 40


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("INTERLOCK_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def state(tmp_path) -> dict[str, torch.Tensor]:
    """The weights of the model in `pickled`."""
    return load_file(tiny_model(tmp_path / "whole") / "model.safetensors")


@pytest.fixture
def pickled(tmp_path, state) -> Path:
    """A model whose weights are a pickle only."""
    model = tiny_model(tmp_path / "model")
    (model / "model.safetensors").unlink()
    torch.save(OrderedDict(state), model / pickles.NAME)
    return model


def spec_of(model: Path, **row) -> ModelSpec:
    return ModelSpec("m", (str(model),), **row)


def found(spec: ModelSpec):
    return resolve(spec, Policy(offline=True), lambda _: None)


def vectors(spec: ModelSpec) -> np.ndarray:
    card = read_card(spec, found(spec), "cpu")
    return encode_texts(card, sentences(5), "", Lessor([CpuDevice()], 1 << 30)).dense


def forbid(monkeypatch) -> None:
    monkeypatch.setattr(torch, "load", lambda *_, **__: pytest.fail("a pickle was loaded"))


def test_a_pinned_pickle_is_read_once_and_gives_the_vectors_of_the_same_weights(pickled, tmp_path, monkeypatch):
    spec = spec_of(pickled, pickle_sha256=atomic.sha256_of(pickled / pickles.NAME))
    assert cached(spec)
    assert np.array_equal(vectors(spec), vectors(spec_of(tmp_path / "whole")))
    assert found(spec).path.is_relative_to(model_cache())
    forbid(monkeypatch)
    assert found(spec).fingerprint == found(spec_of(pickled)).fingerprint  # as safetensors it needs nobody's word


def test_nobody_reads_a_pickle_that_nobody_vouches_for(pickled, monkeypatch):
    forbid(monkeypatch)
    assert not cached(spec_of(pickled))
    with pytest.raises(
        UnavailableError,
        match=r"^model \S+ has its weights as pickle only \(\S+\): add --allow-pickle m, which reads",
    ):
        found(spec_of(pickled))


def test_a_repository_with_a_pinned_row_is_advised_to_be_named_by_it(pickled, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    hub_snapshot(tmp_path / "home" / "hub", "BAAI/bge-m3", pickled, "a" * 40)
    with pytest.raises(UnavailableError, match=r"or use bge-m3, whose pickle is known$"):
        resolve(find(REGISTRY, ["BAAI/bge-m3"])[0], Policy(offline=True), lambda _: None)


def test_a_pickle_with_another_hash_is_refused_unread(pickled, monkeypatch):
    forbid(monkeypatch)
    with pytest.raises(UnavailableError, match=r"SHA-256 \w{64}, expected 0000"):
        found(spec_of(pickled, pickle_sha256="0" * 64))


class Evil:
    def __init__(self, call, *arguments) -> None:
        self.does = call, arguments

    def __reduce__(self):
        return self.does


def test_nothing_of_a_pickle_that_is_a_program_runs_and_what_would_be_called_is_named(pickled, tmp_path, state):
    ran = tmp_path / "ran"
    torch.save({**state, "x": Evil(os.system, f"touch {ran}")}, pickled / pickles.NAME)
    with pytest.raises(UnavailableError, match=r"would call posix\.system, which was not run") as raised:
        found(spec_of(pickled, allow_pickle=True))
    assert "weights_only" not in str(raised.value)  # torch's advice is to load it with all that it does
    assert not ran.exists() and not list(model_cache().rglob("*.safetensors"))


def repeated(file: Path) -> None:
    torch.save({"x": torch.zeros(1).expand(1 << 40)}, file)


def edited(file: Path, state: dict[str, torch.Tensor], edit: Callable[[bytes], bytes]) -> None:
    """Save tensors with another program than torch wrote."""
    torch.save(state, file)
    with zipfile.ZipFile(file) as archive:
        members = {each.filename: archive.read(each) for each in archive.infolist()}
    with zipfile.ZipFile(file, "w") as archive:
        for name, data in members.items():
            archive.writestr(name, edit(data) if name.endswith("data.pkl") else data)


def shadowed(file: Path) -> None:
    """A dictionary that says of itself that it has no values."""
    hides = b"}X\x06\0\0\0values" + b"ccollections\nOrderedDict\n" + b"sb."
    edited(file, OrderedDict(x=torch.zeros(1).expand(1 << 40)), lambda data: data[:-1] + hides)


def beyond(file: Path) -> None:
    """A tensor that says it is longer than its storage."""
    edited(file, {"x": torch.zeros(4)}, lambda data: data.replace(b"K\x04\x85", b"J\xff\xff\xff\x7f\x85"))


def squeezed(file: Path) -> None:
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data.pkl", bytes(1 << 20))


BOMBS = {
    "repeated": repeated,
    "shadowed": shadowed,
    "beyond": beyond,
    "squeezed": squeezed,
    "old": lambda file: torch.save({"x": torch.zeros(4)}, file, _use_new_zipfile_serialization=False),
    "greedy": lambda file: torch.save({"x": Evil(bytearray, 1 << 45)}, file),
    "misnamed": lambda file: torch.save({"x\ud800": torch.zeros(4)}, file),
    "reserved": lambda file: torch.save({"__metadata__": torch.zeros(4)}, file),
    "bare": lambda file: file.write_bytes(pickle.dumps({"x": 1})),
    "torn": lambda file: file.write_bytes(file.read_bytes()[:-1000]),
    "other": lambda file: torch.save([torch.zeros(4)], file),
}


@pytest.mark.parametrize("change", BOMBS.values(), ids=BOMBS)
def test_a_bomb_and_what_is_no_state_of_tensors_is_refused_with_its_file(pickled, change):
    change(pickled / pickles.NAME)
    with pytest.raises(UnavailableError, match=pickles.NAME):
        found(spec_of(pickled, allow_pickle=True))
    assert not list(model_cache().rglob("complete"))


def test_tied_weights_and_views_are_kept_whole(pickled, state):
    table = state["embeddings.word_embeddings.weight"]
    torch.save({**state, "tied": table, "part": table[2:4], "turned": table.T}, pickled / pickles.NAME)
    kept = load_file(found(spec_of(pickled, allow_pickle=True)).weights[0])
    assert all(torch.equal(kept[name], tensor) for name, tensor in state.items())
    assert torch.equal(kept["tied"], table)
    assert torch.equal(kept["part"], table[2:4]) and torch.equal(kept["turned"], table.T)


def test_weights_in_several_pickles_are_read_by_their_index(pickled, tmp_path, state):
    (pickled / pickles.NAME).unlink()
    names = sorted(state)
    parts = {"pytorch_model-00001-of-00002.bin": names[::2], "pytorch_model-00002-of-00002.bin": names[1::2]}
    for file, held in parts.items():
        torch.save({name: state[name] for name in held}, pickled / file)
    index = {"weight_map": {name: file for file, held in parts.items() for name in held}}
    (pickled / pickles.INDEX).write_text(json.dumps(index))
    assert np.array_equal(vectors(spec_of(pickled, allow_pickle=True)), vectors(spec_of(tmp_path / "whole")))


@pytest.mark.parametrize("named", ["pytorch_model-00002-of-00002.bin", "..", "x/y.bin", "\ud800.bin"])
def test_an_index_of_files_that_are_not_there_or_not_the_models_is_refused(pickled, named):
    (pickled / pickles.INDEX).write_text(json.dumps({"weight_map": {"a": pickles.NAME, "b": named}}))
    with pytest.raises(UnavailableError, match=r"lacks (pytorch_model-00002|a weight_map)"):
        found(spec_of(pickled, allow_pickle=True))


def test_a_pickle_that_is_another_while_it_is_read_is_not_kept(pickled, state, monkeypatch):
    real = torch.load

    def meanwhile(file, **how):
        read = real(file, **how)
        os.utime(pickled / pickles.NAME)
        return read

    monkeypatch.setattr(torch, "load", meanwhile)
    with pytest.raises(UnavailableError, match="changed while its weights were read"):
        found(spec_of(pickled, allow_pickle=True))
    assert not list(model_cache().rglob("complete"))


def test_what_is_put_in_place_of_a_pickle_while_it_is_checked_is_not_read(pickled, tmp_path, state, monkeypatch):
    good, evil = (pickled / name for name in ("good", "evil"))
    (pickled / pickles.NAME).rename(good)
    torch.save({name: tensor + 1 for name, tensor in state.items()}, evil)
    (pickled / pickles.NAME).symlink_to("good")
    real = torch.load

    def meanwhile(file, **how):
        (pickled / pickles.NAME).unlink()
        (pickled / pickles.NAME).symlink_to("evil")
        return real(file, **how)

    monkeypatch.setattr(torch, "load", meanwhile)
    spec = spec_of(pickled, pickle_sha256=atomic.sha256_of(good))
    kept = load_file(found(spec).weights[0])
    assert all(torch.equal(kept[name], tensor) for name, tensor in state.items())


def test_models_whose_files_look_the_same_are_told_apart_and_a_pin_is_asked_for_again(pickled, tmp_path, state):
    twin = tmp_path / "twin" / "model"
    shutil.copytree(pickled, twin)
    torch.save(OrderedDict((name, tensor + 1) for name, tensor in state.items()), twin / pickles.NAME)
    for file in (pickled / pickles.NAME, twin / pickles.NAME):
        os.utime(file, (1, 1))
    one, other = (found(spec_of(model, allow_pickle=True)) for model in (pickled, twin))
    assert one.fingerprint != other.fingerprint
    with pytest.raises(UnavailableError, match="expected 0000"):
        found(spec_of(pickled, pickle_sha256="0" * 64))


def test_what_was_changed_in_the_cache_is_made_again(pickled):
    spec = spec_of(pickled, allow_pickle=True)
    before = found(spec)
    with before.weights[0].open("r+b") as handle:
        handle.seek(-4, os.SEEK_END)
        handle.write(b"\1\2\3\4")
    assert found(spec).fingerprint == before.fingerprint


def test_only_what_loading_reads_is_taken_along_and_by_nobody_else_read(pickled, tmp_path):
    (tmp_path / "secret").write_text("mine")
    (pickled / "secret.txt").symlink_to(tmp_path / "secret")
    (pickled / "vocab.txt").symlink_to(tmp_path / "secret")
    os.mkfifo(pickled / "notes.txt")
    kept = found(spec_of(pickled, allow_pickle=True)).path
    assert not (kept / "secret.txt").exists() and not (kept / "notes.txt").exists()
    assert (kept / "vocab.txt").stat().st_mode & 0o077 == 0


def test_a_run_reads_a_pickle_where_it_is_told_to_and_the_next_one_needs_no_word(pickled, tmp_path, cache):
    chunks = corpus(tmp_path / "in", {"Docs": {"a_chunks.json": sentences(4)}})
    run = ["run", chunks, "--roster", pickled, "--no-ui", "--out", tmp_path / "runs"]
    env = {"INTERLOCK_CACHE": str(cache)}
    said = interlock(*run, env=env, check=5).stderr
    assert said.count(str(pickled)) == 2 and "not on this machine" not in said  # where it is, and its name
    told = re.search(r"add (--allow-pickle \S+), which", said)[1].split()
    interlock(*run, *told, "--run-id", "one", env=env)
    interlock(*run, "--run-id", "two", env=env)
    assert entries(tmp_path / "runs" / "two")


@pytest.mark.parametrize("key", ["mine", "model"])
def test_the_row_of_a_pickled_model_is_named_as_the_command_line_takes_it(pickled, key):
    rows = {key: {"source": str(pickled)}}
    with pytest.raises(UnavailableError) as told:
        found(extended(rows)[key])
    name = re.search(r"add --allow-pickle (\S+), which", str(told.value))[1]
    assert name == (key if key == "mine" else str(pickled))
    assert vouched(extended(rows)[key], [name]).allow_pickle


def test_a_sparse_model_that_is_named_by_its_source_may_be_read_by_that_name(pickled):
    (spec, _) = members({}, [str(pickled.parent / "other")], [str(pickled)])[::-1]
    assert spec.kind == "sparse" and vouched(spec, [str(pickled)]).allow_pickle
    said = interlock("models", "--allow-pickle", "hf:BAAI/bge-m3").stdout  # which names a row of the registry
    assert said.count("bge-m3 ") == 1


def test_the_pickle_of_a_module_is_fetched_beside_weights_that_are_whole(pickled, tmp_path, state):
    model = shutil.copytree(tmp_path / "whole", tmp_path / "both")
    (model / "2_Dense").mkdir()
    torch.save(state, model / "2_Dense" / pickles.NAME)
    with Hub("stations/both", model, COMMIT).serving() as hub:
        env = {"HF_HOME": str(tmp_path / "home"), "HF_ENDPOINT": hub.url, "INTERLOCK_CACHE": str(tmp_path / "cache")}
        interlock("models", "fetch", "hf:stations/both", "--allow-pickle", "hf:stations/both", env=env)
    assert any(f"2_Dense/{pickles.NAME}" in request for request in hub.requests)


def test_the_hub_is_asked_for_a_pickle_only_where_it_may_be_read(pickled, tmp_path, monkeypatch):
    wanted = ModelSpec("tiny", ("hf:stations/tiny",))
    with Hub("stations/tiny", pickled, COMMIT).serving() as hub:
        env = {"HF_HOME": str(tmp_path / "home"), "HF_ENDPOINT": hub.url, "INTERLOCK_CACHE": str(tmp_path / "cache")}
        said = interlock("models", "fetch", "hf:stations/tiny", env=env, check=5).stderr
        assert (
            "model tiny has its weights as pickle only (hf:stations/tiny): add --allow-pickle hf:stations/tiny, "
            in said
        )
        assert not any(pickles.NAME in request for request in hub.requests)
        done = interlock("models", "fetch", "hf:stations/tiny", "--allow-pickle", "hf:stations/tiny", env=env)
    assert str(tmp_path / "cache") in done.stdout
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    assert found(wanted).commit == COMMIT


def test_what_is_refused_for_its_own_code_names_a_model_that_works():
    assert all(other.partition(",")[0] in REGISTRY or other.startswith("jinaai/") for other in OWN_CODE.values())
    with pytest.raises(UnavailableError, match=r"use qwen3-embedding-0\.6b, .* or jinaai/\S+-vllm-retrieval"):
        found(REGISTRY["jina-embeddings-v4"])


def test_a_registry_entry_that_pins_a_pickle_pins_its_revision():
    pinned = [spec for spec in REGISTRY.values() if spec.pickle_sha256]
    assert pinned and all(len(spec.revision) == 40 for spec in pinned)
