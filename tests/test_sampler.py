"""The sampler: a thread that tells of devices, is never in the way, and ends at once."""

import os
import shutil
import threading
import time
from types import SimpleNamespace

from interlock.console.text.event_text import describe
from interlock.engine.compute.cluster.messages import RemoteDevice, RemoteFacts
from interlock.engine.flows.computing import at_work
from interlock.engine.gpu import cpu
from interlock.engine.gpu.cpu import CpuDevice
from interlock.engine.gpu.sampler import Sampler
from interlock.engine.gpu.sim import simulated
from interlock.engine.record.events import DiskLow, MemoryLow
from interlock.engine.record.facts import LEAST_DISK, LEAST_MEMORY, DeviceFacts


class Told:
    """What a sampler told, and a way to wait for it."""

    def __init__(self):
        self.seen = []
        self._more = threading.Condition()

    def __call__(self, event):
        with self._more:
            self.seen.append((event.device, event.memory, event.readings))
            self._more.notify_all()

    def wait_for(self, count, name=None):
        with self._more:
            assert self._more.wait_for(lambda: len(self.of(name)) >= count, timeout=10), self.seen

    def of(self, name=None):
        return [seen for seen in self.seen if name in (None, seen[0])]


class Broken(CpuDevice):
    """A device whose driver fails from the second look on."""

    name = "broken"
    looks = 0

    def readings(self):
        self.looks += 1
        if self.looks > 1:
            raise OSError("the driver is gone")


def test_each_device_is_told_again_and_again_with_memory_and_readings():
    told = Told()
    with Sampler([CpuDevice(), *simulated("sim:1xT4")], told, period=0.01):
        told.wait_for(3, "cpu")
        told.wait_for(3, "cuda:0")
    _, memory, readings = told.of("cpu")[0]
    assert memory.occupied > 0
    assert readings.total >= readings.used > 0


def test_a_head_of_a_cluster_looks_at_its_own_machine():
    told = Told()
    facts = DeviceFacts(name="node-1/cuda:0", kind="cuda", label="T4", total_bytes=1, ceiling_bytes=1)
    with at_work([RemoteDevice(RemoteFacts(facts, (7, 5), 40))], told):
        told.wait_for(1, "head")
    assert {name for name, _, _ in told.seen} == {"head"}


def test_the_first_look_is_told_and_the_end_is_not_waited_for():
    told = Told()
    began = time.monotonic()
    with Sampler([CpuDevice()], told, period=60):
        told.wait_for(1)
    assert time.monotonic() - began < 5
    assert not any(thread.name == "sampler" for thread in threading.enumerate())


def test_nothing_is_told_after_the_block_has_ended():
    told = Told()
    with Sampler([CpuDevice()], told, period=0.001):
        told.wait_for(2)
    count = len(told.seen)
    time.sleep(0.05)
    assert len(told.seen) == count


def test_a_failing_device_is_left_alone_and_the_others_are_told():
    told, broken = Told(), Broken()
    with Sampler([broken, CpuDevice()], told, period=0.001):
        told.wait_for(5, "cpu")
    assert len(told.of("broken")) == 1
    assert broken.looks == 2


def test_a_failing_listener_stops_the_sampler_and_not_the_run():
    calls = []

    def tell(*seen):
        calls.append(seen)
        raise ValueError("nobody listens")

    with Sampler([CpuDevice()], tell, period=0.001) as sampler:
        sampler._thread.join(timeout=10)
        assert not sampler._thread.is_alive()
    assert len(calls) == 1


def test_the_disk_of_the_run_is_told_by_one_device_and_one_that_is_gone_by_none(tmp_path):
    told = Told()
    with Sampler([CpuDevice(), *simulated("sim:1xT4")], told, period=0.01, place=tmp_path):
        told.wait_for(1, "cuda:0")
    free = told.of("cpu")[0][2].disk_free
    assert abs(free - shutil.disk_usage(tmp_path).free) < 1 << 30
    assert told.of("cuda:0")[0][2].disk_free is None
    gone = Told()
    with Sampler([CpuDevice()], gone, period=0.01, place=tmp_path / "gone"):
        gone.wait_for(1)
    assert gone.seen[0][2].disk_free is None


def test_a_disk_is_told_once_when_it_falls_below_the_limit_and_once_when_it_is_well_again(tmp_path, monkeypatch):
    told = []
    sampler = Sampler(simulated("sim:2xT4"), told.append, place=tmp_path)
    for free in (LEAST_DISK, LEAST_DISK - 1, 5, LEAST_DISK, 2 * LEAST_DISK, LEAST_DISK, 7):
        monkeypatch.setattr(shutil, "disk_usage", lambda _, free=free: SimpleNamespace(free=free))
        for each in sampler._devices:
            sampler._look_at(each)
    assert [(each.over, each.free_bytes) for each in told if isinstance(each, DiskLow)] == [
        (False, LEAST_DISK - 1), (True, 2 * LEAST_DISK), (False, 7),
    ]  # fmt: skip
    low, well, _ = [describe(each) for each in told if isinstance(each, DiskLow)]
    assert (low.severity, well.severity) == ("warning", "notice")
    assert low.text == f"1.0 GiB free on the disk of {tmp_path}: make that 1.0 GiB, or the run stops once it is full"
    assert well.text == f"2.0 GiB free on the disk of {tmp_path} again"


def test_memory_of_the_host_is_told_once_when_it_is_nearly_gone_and_once_when_it_is_well(tmp_path, monkeypatch):
    told = []
    sampler = Sampler([CpuDevice(), *simulated("sim:1xT4")], told.append, place=tmp_path)
    for free in (LEAST_MEMORY, 300 << 20, 5, LEAST_MEMORY, 2 * LEAST_MEMORY):
        monkeypatch.setattr("interlock.engine.gpu.sampler.memory_free", lambda free=free: free)
        for each in sampler._devices:
            sampler._look_at(each)
    low, well = [each for each in told if isinstance(each, MemoryLow)]
    assert [(each.over, each.free_bytes) for each in (low, well)] == [(False, 300 << 20), (True, 2 * LEAST_MEMORY)]
    said = describe(low)
    assert (said.severity, describe(well).text) == ("warning", "1.0 GiB of the host's memory free again")
    assert said.text.startswith("300.0 MiB of the host's memory free, 512.0 MiB needed: end other programs (most: ")
    sizes = [each.bytes for each in low.holders]
    assert sizes == sorted(sizes, reverse=True) and not well.holders
    assert len(low.holders) <= cpu.MOST_HOLDERS
    monkeypatch.setattr(cpu, "MOST_HOLDERS", 1 << 20)
    assert [each.pid for each in cpu.memory_holders(-1) if each.name == "this run"] == [os.getpid()]
    assert "(none can be seen from here)" in describe(MemoryLow(free_bytes=1)).text


def test_what_a_container_may_use_counts_as_the_memory_that_is_free(tmp_path, monkeypatch):
    told = Told()
    monkeypatch.setattr(cpu, "_free_in_containers", lambda: iter([7 << 20]))
    with Sampler([CpuDevice()], told, period=0.01, place=tmp_path):
        told.wait_for(1)
    assert told.seen[0][2].memory_free == 7 << 20
