"""Holding a device among processes: told who has it, all or none, and free again however the holder ended."""

import fcntl
import os
import signal
import stat
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass

import pytest

from interlock.engine.errors import UnavailableError
from interlock.engine.gpu import locks
from interlock.engine.gpu.locks import holder, holding
from tests.builders import start

HOLD = """
import tempfile, time
from pathlib import Path
from types import SimpleNamespace
from interlock.engine.gpu.locks import holding
tempfile.tempdir = None
devices = [SimpleNamespace(name=f"cuda:{{number}}", key=key) for number, key in enumerate({keys!r})]
with holding(devices, {run!r}):
    Path({held!r}).touch()
    while Path({held!r}).exists():
        time.sleep(0.01)
"""
"""Holds devices until the file goes that says so, and then lets the command be carried out."""


@dataclass
class Card:
    """As much of a device as a lock looks at."""

    name: str
    key: str | None


ONE, TWO = Card("cuda:0", "GPU-1"), Card("cuda:1", "GPU-2")


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    """The machine's temporary directory, for this test and the processes it starts."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "of-the-user"))
    return tmp_path / "interlock-locks"


@pytest.fixture
def other(place):
    """`other(run, *keys)` starts a process that holds devices while a file of its run's name is there."""
    started = []

    def begin(run, *keys):
        held = place.with_name(run)
        process = start("--version", first=HOLD.format(keys=keys, run=run, held=str(held)))
        started.append(process)
        while process.poll() is None and not held.exists():
            time.sleep(0.01)
        assert process.poll() is None
        return process

    yield begin
    for process in started:
        process.kill()
        process.wait()


def refusal(*devices):
    with pytest.raises(UnavailableError) as refused, holding(devices, "mine"):
        pass
    return str(refused.value)


def test_a_device_held_elsewhere_is_refused_with_run_process_and_time(
    other,
):
    process = other("run-7", ONE.key)
    said = refusal(Card("cuda:3", ONE.key))
    began = time.strftime("%H:%M", time.localtime(holder(ONE).since))
    assert said == (
        f"cuda:3 is in use by run run-7 (pid {process.pid}, since {began}): wait for it, or choose other --devices"
    )


def test_a_device_of_a_killed_holder_is_free_and_its_note_is_not_told(other):
    process = other("run-7", ONE.key)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert holder(ONE) is None
    with holding([ONE], "mine"):
        assert (holder(ONE).run, holder(ONE).pid) == ("mine", os.getpid())


def test_a_device_is_free_once_its_holder_has_ended(other, place):
    process = other("run-7", ONE.key)
    place.with_name("run-7").unlink()
    assert process.wait(60) == 0
    with holding([ONE], "mine"):
        pass


def test_an_exception_in_the_block_frees_its_devices():
    with pytest.raises(ValueError, match="inside"), holding([ONE, TWO], "mine"):
        raise ValueError("inside")
    assert holder(ONE) is None
    with holding([TWO, ONE], "mine"):
        pass


def test_neither_device_is_taken_when_one_of_two_is_held(other):
    other("run-7", TWO.key)
    assert "cuda:1 is in use by run run-7" in refusal(ONE, TWO)
    assert holder(ONE) is None


def test_devices_are_tried_in_one_order_however_they_are_asked_for(other):
    other("run-7", ONE.key)
    other("run-8", TWO.key)
    assert refusal(ONE, TWO) == refusal(TWO, ONE)


def test_a_device_held_in_this_process_is_refused_once_more():
    with holding([ONE], "first"):
        assert "in use by run first" in refusal(ONE)


def test_devices_without_a_key_or_named_twice_are_held_without_trouble():
    host = Card("cpu", None)
    with holding([host, ONE, ONE], "first"), holding([host], "second"):
        assert holder(host) is None


def test_a_child_that_outlives_its_holder_does_not_hold_the_device():
    with holding([ONE], "first"):
        child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        with holding([ONE], "second"):
            pass
    finally:
        child.communicate(b"\n")


def test_every_user_can_lock_under_a_strict_umask(place):
    before = os.umask(0o077)
    try:
        with holding([ONE], "mine"):
            (file,) = place.iterdir()
    finally:
        os.umask(before)
    assert stat.S_IMODE(place.stat().st_mode) == 0o1777
    assert stat.S_IMODE(file.stat().st_mode) == 0o666


def test_a_link_in_place_of_the_lock_file_is_not_followed(place, tmp_path):
    with holding([ONE], "mine"):
        (file,) = place.iterdir()
    file.unlink()
    victim = tmp_path / "victim"
    victim.write_text("precious")
    file.symlink_to(victim)
    assert f"{file} is in the way" in refusal(ONE)
    assert victim.read_text() == "precious"


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir], ids=["pipe", "directory"])
def test_anything_but_a_file_in_place_of_the_lock_is_refused_at_once(place, make):
    with holding([ONE], "mine"):
        (file,) = place.iterdir()
    file.unlink()
    make(file)
    assert f"{file} is in the way" in refusal(ONE)


@pytest.mark.parametrize(
    "content", [b"", b"\xff\xfe{", b"[]", b'{"pid":1,"run":"x","device":"y","since":1e300}', b"x" * 9999]
)
def test_a_lock_file_full_of_nonsense_is_refused_without_a_name(place, content):
    with holding([ONE], "mine"):
        (file,) = place.iterdir()
        file.write_bytes(content)
        assert "cuda:0 is in use by another run: wait for it" in refusal(ONE)


def test_a_run_whose_name_is_no_text_holds_its_devices_all_the_same(place):
    with holding([ONE], os.fsdecode(b"caf\xe9")):
        assert holder(ONE).run == "caf\ufffd"


@pytest.mark.parametrize("spoil", ["file", "link"])
def test_the_users_own_directory_serves_where_the_machine_has_none(place, tmp_path, spoil):
    place.write_text("") if spoil == "file" else place.symlink_to(tmp_path)
    with holding([ONE], "mine"):
        assert len(list((tmp_path / "of-the-user" / "interlock-locks").iterdir())) == 1
        assert "in use by run mine" in refusal(ONE)


def test_without_a_directory_to_lock_in_the_refusal_says_where_it_looked(place, tmp_path):
    place.write_text("")
    (tmp_path / "of-the-user").write_text("")
    assert "set TMPDIR" in refusal(ONE)
    assert holder(ONE) is None


def test_a_run_waits_a_moment_for_somebody_who_only_looks(place, monkeypatch):
    with holding([ONE], "makes the file"):
        (file,) = place.iterdir()
    looker = file.open()
    fcntl.flock(looker, fcntl.LOCK_SH)  # as `holder` does
    monkeypatch.setattr(locks.time, "sleep", lambda _: looker.close())
    with holding([ONE], "mine"):
        assert looker.closed
