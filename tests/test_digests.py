"""The SHA-256 of weights is remembered while the file is the same, and found anew when it may not be."""

import json
import os
import time

import pytest

from interlock.engine.models import sources as digests
from interlock.engine.models.assets import Policy, resolve
from interlock.engine.models.registry import ModelSpec
from interlock.engine.models.sources import remembered_sha256
from interlock.engine.record import atomic
from tests.builders import tiny_m3, tiny_model


@pytest.fixture(autouse=True)
def hashed(monkeypatch, tmp_path):
    """The names of the files that are hashed whole; the clock is an hour ahead, so that all have settled."""
    seen, hash_of, now = [], atomic.sha256_of, time.time

    def noting(path):
        seen.append(path.name)
        return hash_of(path)

    monkeypatch.setenv("INTERLOCK_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(atomic, "sha256_of", noting)
    monkeypatch.setattr(digests.time, "time", lambda: now() + 3600)
    return seen


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "weights.safetensors"
    path.write_bytes(b"one" * 1000)
    return path


def test_a_file_that_stays_is_hashed_once(file, hashed):
    first = remembered_sha256(file)
    assert remembered_sha256(file) == first == atomic.sha256_of(file)
    assert hashed == [file.name] * 2  # the second is this test's own


def change_content(file):
    file.write_bytes(b"two" * 1000)


def change_and_put_the_time_back(file):
    status = file.stat()
    file.write_bytes(b"two" * 1000)
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))


def replace_by_another(file):
    status = file.stat()
    other = file.with_name("other")
    other.write_bytes(b"two" * 1000)
    os.utime(other, ns=(status.st_atime_ns, status.st_mtime_ns))
    other.replace(file)


@pytest.mark.parametrize("change", [change_content, change_and_put_the_time_back, replace_by_another])
def test_a_file_that_changed_is_hashed_anew(file, change):
    before = remembered_sha256(file)
    change(file)
    assert remembered_sha256(file) == atomic.sha256_of(file) != before


def test_a_link_is_known_by_the_file_that_it_leads_to(file, tmp_path, hashed):
    link = tmp_path / "link"
    link.symlink_to(file)
    assert remembered_sha256(link) == remembered_sha256(file)
    assert hashed == [file.name]


@pytest.mark.parametrize("note", [b"", b"{}", b"[1]", b"\xff", b'{"sha256": "short", "path": "", "stamp": []}'])
def test_a_note_that_is_damaged_is_not_believed(file, tmp_path, note):
    right = remembered_sha256(file)
    (kept,) = (tmp_path / "cache" / "digests").iterdir()
    kept.write_bytes(note)
    assert remembered_sha256(file) == right
    assert json.loads(kept.read_text())["sha256"] == right


def test_what_changed_just_now_is_not_remembered(file, tmp_path, hashed, monkeypatch):
    monkeypatch.setattr(digests.time, "time", lambda: file.stat().st_ctime + 1)
    remembered_sha256(file)
    remembered_sha256(file)
    assert hashed == [file.name] * 2
    assert not (tmp_path / "cache" / "digests").exists()


def test_a_cache_that_cannot_be_written_only_costs_time(file, tmp_path):
    (tmp_path / "cache").write_text("in the way")
    assert remembered_sha256(file) == atomic.sha256_of(file)


def test_a_model_is_resolved_twice_with_its_weights_hashed_once_and_a_changed_one_has_another_fingerprint(
    tmp_path, hashed
):
    model = tiny_model(tmp_path / "model", seed=1)
    first, again = (resolve(ModelSpec("m", (str(model),)), Policy(), lambda _: None) for _ in range(2))
    assert first.fingerprint == again.fingerprint
    assert hashed.count("model.safetensors") == 1
    weights = bytearray((model / "model.safetensors").read_bytes())
    weights[-1] ^= 1
    (model / "model.safetensors").write_bytes(weights)
    assert resolve(ModelSpec("m", (str(model),)), Policy(), lambda _: None).fingerprint != first.fingerprint


def test_weights_that_came_from_a_pickle_are_hashed_each_time(tmp_path, hashed):
    model = tiny_m3(tmp_path / "m3")
    spec = ModelSpec("m3", (str(model),), allow_pickle=True)
    for _ in range(2):
        resolve(spec, Policy(), lambda _: None)
    assert hashed.count("model.safetensors") == 2
