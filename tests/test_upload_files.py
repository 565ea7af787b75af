"""Exported files that change while they are uploaded: told, never the end of the process, and never called done."""

import os
import shutil

import pytest

from interlock.engine.errors import InterlockError
from tests.builders import start
from tests.edge_bridge import serving
from tests.uploads import ROWS, Uploads, bridged

PUT = ("PUT", "/collections/docs/points")
FILES = ("points.parquet", "m-tokens.npy", "m-tokens-starts.npy")


@pytest.fixture
def upload(exported, tmp_path, monkeypatch):
    shutil.copytree(exported / "runs" / "one", tmp_path / "run")
    monkeypatch.setattr("interlock.engine.targets.collection.MOST_POINTS", 16)
    with bridged(tmp_path / "bridge") as bridge:
        yield Uploads(bridge, tmp_path / "run", tmp_path / "uploads")


def file(upload, name):
    return upload.run / "exports" / "Docs" / name


def meddle(upload, do, at=3):
    """Do something to the files while the server has request number `at` of those with points."""
    left = [at]

    def seen(request):
        left[0] -= (request.method, request.url.path) == PUT
        if not left[0]:
            left[0] = -1
            do()

    upload.seen = seen


def change(path):
    """Change a byte in place, and give the file its time again."""
    status, content = path.stat(), bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    with path.open("rb+") as handle:
        handle.write(content)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


@pytest.mark.parametrize("name", FILES)
def test_a_file_that_was_changed_meanwhile_ends_the_upload_and_is_acknowledged_no_further(upload, name):
    whole = file(upload, name).read_bytes()
    meddle(upload, lambda: change(file(upload, name)))
    with pytest.raises(InterlockError, match=rf"{name} was changed after it was delivered"):
        upload()
    with pytest.raises(InterlockError, match=rf"{name} was changed after it was delivered"):
        upload()
    file(upload, name).write_bytes(whole)
    assert upload().sent == ROWS - 3 * 16  # the third was read before, and is there as it would be sent


@pytest.mark.parametrize("name", FILES)
def test_a_file_that_was_changed_once_all_was_sent_is_told_too(upload, name):
    upload.seen = lambda request: (
        change(file(upload, name)) if request.method == "PATCH" and b"hnsw" in request.content else None
    )
    with pytest.raises(InterlockError, match=rf"{name} was changed after it was delivered"):
        upload()
    assert not list(upload.directory.glob("*.json"))


def test_files_that_were_written_again_as_they_were_are_the_same(upload):
    def again():
        for name in FILES:
            content = file(upload, name).read_bytes()
            file(upload, name).unlink()
            file(upload, name).write_bytes(content)

    meddle(upload, again)
    assert upload().sent == ROWS


@pytest.mark.parametrize("name", FILES)
def test_a_file_that_is_cut_short_meanwhile_ends_the_upload_with_words(upload, name):
    """In a process of its own, which a memory-mapped file would end by a signal."""

    def before(method, path, *_):
        if path.endswith("/count"):  # then a sample is read
            os.truncate(file(upload, name), 0)

    upload.bridge.before = before
    with serving(upload.bridge) as url:
        process = start("upload", upload.run, "--qdrant", url)
        _, said = process.communicate(120)
    assert process.returncode == 1, said
    assert f"{name} has 0 bytes, delivered were" in said
