"""A model's files as one value and as a directory again: what arrives is resolved as the same model."""

import os
import time
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest

from interlock.engine.compute.cluster.messages import GridPlan, Hello, ModelFiles, Ready
from interlock.engine.compute.cluster.node import ClusterNode, pack, unpack
from interlock.engine.compute.context import REAL
from interlock.engine.compute.controls import Controls
from interlock.engine.errors import DiskError, UnavailableError
from interlock.engine.gpu.cpu import CpuDevice
from interlock.engine.models.assets import Policy, resolve
from interlock.engine.models.registry import ModelSpec
from tests.builders import hub_snapshot, routed_sparse, tiny_m3, tiny_model, tiny_scorer, tiny_sparse
from tests.harness import grid_of


def resolved(spec, path=None):
    spec = replace(spec, sources=(str(path),)) if path else spec
    return resolve(spec, Policy(offline=True), lambda _: None)


MODELS = {
    "dense": lambda place: ModelSpec("m", (str(tiny_model(place)),)),
    "sparse": lambda place: ModelSpec("m", (str(tiny_sparse(place)),), kind="sparse"),
    "routed": lambda place: ModelSpec("m", (str(routed_sparse(place)),), kind="sparse"),
    "scores": lambda place: ModelSpec("m", (str(tiny_scorer(place)),), kind="scores"),
    "heads": lambda place: ModelSpec(
        "m", (str(tiny_m3(place)),), outputs=("dense", "sparse", "tokens"), allow_pickle=True
    ),
}


@pytest.mark.parametrize("kind", MODELS)
def test_a_model_that_was_sent_is_the_same_model(tmp_path, monkeypatch, kind):
    monkeypatch.setenv("INTERLOCK_CACHE", str(tmp_path / "cache"))
    spec = MODELS[kind](tmp_path / "here")
    here = resolved(spec)
    place = unpack(pack("m", here), tmp_path / "there")
    for file in (tmp_path / "here").rglob("*.pt"):
        file.unlink()  # what was a pickle here is safetensors there
    there = resolved(replace(spec, allow_pickle=False), place)
    assert (there.fingerprint, there.head_digests) == (here.fingerprint, here.head_digests)
    assert there.path == place
    assert sorted(there.weights) == sorted(place / file.relative_to(here.path) for file in here.weights)


def test_a_model_of_the_hubs_cache_is_sent_through_its_links(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    hub_snapshot(tmp_path / "hub", "org/m", tiny_model(tmp_path / "made"), "a" * 40)
    here = resolved(ModelSpec("m", ("hf:org/m",)))
    place = unpack(pack("m", here), tmp_path / "there")
    assert resolved(ModelSpec("m", ()), place).fingerprint == here.fingerprint
    assert not any(file.is_symlink() for file in place.rglob("*"))


def test_what_lies_beside_a_model_is_not_sent(tmp_path):
    model = tiny_model(tmp_path / "here")
    for name in ("checkpoint-1/model.safetensors", "other.safetensors", "pytorch_model.bin", "code.py", "runs/log.txt"):
        (model / name).parent.mkdir(exist_ok=True)
        (model / name).write_bytes(b"x")
    sent = set(pack("m", resolved(ModelSpec("m", (str(model),)))).files)
    assert {"config.json", "tokenizer.json", "model.safetensors", "modules.json", "1_Pooling/config.json"} <= sent
    assert sent.isdisjoint({"checkpoint-1/model.safetensors", "other.safetensors", "pytorch_model.bin", "code.py"})
    assert "runs/log.txt" not in sent


@pytest.mark.parametrize("name", ["../x", "/tmp/x", "a/../../x", "", "."])
def test_a_name_that_leads_out_of_its_directory_writes_nothing(tmp_path, name):
    with pytest.raises(UnavailableError, match="leads out of its directory"):
        unpack(ModelFiles("m", {name: [np.zeros(1, np.uint8)]}), tmp_path / "there")
    assert not (tmp_path / "there").exists()
    assert not (tmp_path / "x").exists()


def test_a_disk_that_refuses_is_named_and_no_half_of_a_file_is_left(tmp_path):
    (tmp_path / "there").write_text("a file where the directory was to be")
    with pytest.raises(DiskError, match=r"cannot write .*there"):
        unpack(ModelFiles("m", {"config.json": [np.zeros(1, np.uint8)]}), tmp_path / "there")


def test_a_file_that_is_gone_meanwhile_is_named(tmp_path):
    here = resolved(ModelSpec("m", (str(tiny_model(tmp_path / "here")),)))
    (tmp_path / "here" / "tokenizer.json").unlink()
    with pytest.raises(UnavailableError, match=r"model m: cannot read .*tokenizer\.json: No such file"):
        pack("m", here)


@pytest.fixture
def elsewhere(tmp_path, monkeypatch):
    """The plan of a model that only the head has, and its files."""
    monkeypatch.setenv("INTERLOCK_CACHE", str(tmp_path / "cache"))
    spec = ModelSpec("m", (str(tiny_model(tmp_path / "here")),))
    cards = REAL.cards([spec], Policy(offline=True), [CpuDevice()], lambda _: None)
    grid = grid_of(cards, [8] * 4, lambda row, length: np.arange(length) % 60)
    plan = GridPlan.of(grid, [replace(spec, sources=(str(tmp_path / "nowhere"),))], Policy(offline=True), Controls())
    return plan, pack("m", cards[0].snapshot)


@contextmanager
def beginning(plan, name="node-1"):
    node = ClusterNode()
    assert not node.welcome(Hello("run", name, "cpu", (), 0, 0, 0, 1)).trouble
    try:
        yield node, node.begin(plan).lacking
    finally:
        node.close()


def test_a_model_that_was_sent_is_kept_for_the_next_process_of_the_machine_while_it_is_whole(tmp_path, elsewhere):
    plan, files = elsewhere
    with beginning(plan) as (node, lacking):
        assert lacking == ["m"] and node.take(files) == Ready()
    with beginning(plan) as (_, lacking):
        assert not lacking
    (place,) = (tmp_path / "cache" / "sent").iterdir()
    for damage in (lambda file: file.write_bytes(file.read_bytes()[:-1]), lambda file: file.unlink()):
        damage(place / "model.safetensors")
        with beginning(plan) as (node, lacking):
            assert lacking == ["m"] and node.take(files) == Ready()
    assert [*(tmp_path / "cache" / "sent").iterdir()] == [place]


def test_two_nodes_of_a_machine_that_are_sent_a_model_leave_each_other_theirs(tmp_path, elsewhere):
    plan, files = elsewhere
    with beginning(plan) as (one, lacking), beginning(plan, "node-2") as (other, lacks):
        assert lacking == lacks == ["m"] and one.take(files) == Ready()
        (place,) = (tmp_path / "cache" / "sent").iterdir()
        before = (place / "model.safetensors").stat().st_ino
        assert other.take(files) == Ready() and (place / "model.safetensors").stat().st_ino == before


def test_what_was_sent_and_no_node_has_used_for_a_week_is_removed(tmp_path, elsewhere):
    plan, files = elsewhere
    for name, days in {"old": 8, "new": 6}.items():
        (kept := tmp_path / "cache" / "sent" / name).mkdir(parents=True)
        os.utime(kept, (time.time() - days * 86400,) * 2)
    with beginning(plan) as (node, _):
        assert node.take(files) == Ready()
    assert {each.name for each in (tmp_path / "cache" / "sent").iterdir()} == {"new", plan.passes[0].fingerprint[:32]}
