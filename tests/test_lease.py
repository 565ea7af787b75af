"""A lease is granted to one model at a time, only where it fits, and ends with a receipt whatever happens."""

import gc
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import nn

from interlock.engine.errors import InterlockError, UnavailableError
from interlock.engine.gpu import cpu
from interlock.engine.gpu.cpu import CpuDevice
from interlock.engine.gpu.device import RESERVE
from interlock.engine.gpu.devices import choose
from interlock.engine.gpu.lease import HOST_RESERVE, Lease, Lessor, too_small
from interlock.engine.gpu.sim import simulated
from tests.builders import corpus, interlock, sentences

MIB, GIB = 1 << 20, 1 << 30
SIZE = 64 * MIB


@dataclass
class Desk:
    """A lessor of the host, and the leases that it has seen end."""

    lessor: Lessor
    ended: list[Lease]

    def lease(self, holder: str = "a", predicted: int = MIB, **how):
        needs = {device.name: predicted for device in self.lessor.devices}
        return self.lessor.lease(holder, needs, self.ended.append, **how)

    def budget(self) -> int:
        return self.lessor.budget(self.lessor.devices[0])


@pytest.fixture
def desk() -> Desk:
    return Desk(Lessor([CpuDevice()], 1 << 30), [])


def network() -> nn.Module:
    """A network of SIZE bytes whose pages are really there."""
    return nn.Linear(SIZE // 4 // 1024, 1024, bias=False).requires_grad_(False)


def test_a_second_lease_is_refused_and_told_who_holds_the_device(desk):
    with desk.lease("first"), pytest.raises(InterlockError, match="second cannot lease cpu: first holds"):
        desk.lease("second").__enter__()


def test_the_first_lease_has_the_only_receipt_when_a_second_was_refused(desk):
    with desk.lease("first"), pytest.raises(InterlockError), desk.lease("second"):
        pass
    assert [lease.holder for lease in desk.ended] == ["first"]


def test_the_next_lease_has_the_next_number(desk):
    for holder in ("first", "second"):
        with desk.lease(holder):
            pass
    assert [(lease.id, lease.holder) for lease in desk.ended] == [("L001", "first"), ("L002", "second")]


def test_a_prediction_above_the_ceiling_names_model_and_sizes(desk):
    said = r"^a needs 1,073,741,825 B, 1,073,741,824 B available on cpu: free memory or raise --ceiling"
    with pytest.raises(UnavailableError, match=said):
        desk.lease(predicted=(1 << 30) + 1).__enter__()
    assert desk.ended == []


def test_a_prediction_of_the_whole_ceiling_is_granted(desk):
    budget = desk.budget()
    with desk.lease(predicted=budget) as lease:
        assert lease.budget <= budget <= desk.lessor.ceiling


def test_the_host_is_the_limit_when_the_ceiling_is_above_it():
    device = CpuDevice()
    lessor = Lessor([device], 1 << 60)
    assert lessor.budget(device) == pytest.approx(device.room(1 << 60) - RESERVE, rel=0.05)
    with pytest.raises(UnavailableError):
        lessor.check("a", device.room(1 << 60) + (1 << 30), device)


class Host(CpuDevice):
    """A host with this much free."""

    free = 8 << 30

    def room(self, ceiling):
        return self.free


@pytest.mark.parametrize(
    ("gpus", "host_ceiling", "budget", "flag"),
    [
        ("sim:T4", 0, Host.free - HOST_RESERVE, ""),
        ("sim:T4", 2 << 30, 2 << 30, "--host-ceiling"),
        ("sim:T4", 1 << 40, Host.free - RESERVE, "--host-ceiling"),
        ("", 0, 1 << 30, "--ceiling"),
        ("", 2 << 30, 2 << 30, "--host-ceiling"),
    ],
)
def test_the_host_has_a_ceiling_of_its_own_and_beside_gpus_only_what_is_free(gpus, host_ceiling, budget, flag):
    host = Host()
    lessor = Lessor([*(simulated(gpus) if gpus else []), host], 1 << 30, host_ceiling)
    assert (lessor.budget(host), lessor.flag_on(host)) == (budget, flag)
    with pytest.raises(UnavailableError, match=f"free memory or raise {flag}$" if flag else "free memory$"):
        lessor.check("a", Host.free, host)


def test_the_margin_of_a_run_is_promised_to_no_lease():
    (gpu,), host = simulated("sim:T4"), Host()
    usual, wide = Lessor([gpu, host], 12 * GIB), Lessor([gpu, host], 12 * GIB, 0, GIB)
    assert usual.budget(gpu) - wide.budget(gpu) == GIB - RESERVE
    assert (usual.budget(host), wide.budget(host)) == (Host.free - HOST_RESERVE, Host.free - GIB)
    assert Lessor([gpu, host], 12 * GIB, 0, 0).budget(gpu) == gpu.room(12 * GIB)


CONTAINER = {"memory.max": "1000", "memory.current": "700", "memory.stat": "anon 400\ninactive_file 200\nfile 300\n"}


@pytest.mark.parametrize(
    ("files", "free"),
    [
        (CONTAINER, 500),
        (CONTAINER | {"memory.max": "max"}, None),
        (CONTAINER | {"memory.current": "4000"}, 0),
        ({}, None),
    ],
)
def test_the_host_has_no_more_free_than_its_container(tmp_path, monkeypatch, files, free):
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(cpu, "CONTAINERS", ((str(tmp_path), "memory.max", "memory.current", "inactive_file"),))
    room = CpuDevice().room(0)
    assert room == free if free is not None else room > 1 << 20


def test_a_smaller_model_is_granted_after_a_refusal(desk):
    with pytest.raises(UnavailableError), desk.lease("huge", 1 << 50):
        pass
    with desk.lease("small") as lease:
        assert lease.id == "L001"


@pytest.mark.parametrize("failure", [RuntimeError, MemoryError, KeyboardInterrupt, SystemExit])
def test_an_exception_releases_the_lease_with_a_receipt(desk, failure):
    with pytest.raises(failure), desk.lease():
        raise failure
    (lease,) = desk.ended
    assert [receipt.device for receipt in lease.receipts] == ["cpu"]
    with desk.lease("next"):
        pass


def test_nothing_stays_of_a_dropped_model(desk):
    with desk.lease() as lease:
        model = network()
        lease.devices[0].hold(model, SIZE)
        del model
    (receipt,) = lease.receipts
    assert receipt.residue_bytes == 0
    assert receipt.peak.allocated == SIZE
    assert receipt.before.allocated == receipt.after.allocated == 0


def test_nothing_stays_of_a_model_in_a_cycle(desk):
    with desk.lease() as lease:
        model = network()
        model.itself = [model]
        lease.devices[0].hold(model, SIZE)
        del model
    assert lease.receipts[0].residue_bytes == 0


def test_the_bytes_of_a_model_still_referenced_are_the_residue(desk):
    with desk.lease() as lease:
        kept = network()
        lease.devices[0].hold(kept, SIZE)
    assert lease.receipts[0].residue_bytes == SIZE
    assert lease.receipts[0].after.allocated == SIZE
    del kept


def test_an_earlier_residue_is_not_charged_to_a_clean_lease(desk):
    with desk.lease("first") as first:
        kept = network()
        first.devices[0].hold(kept, SIZE)
    with desk.lease("second") as second:
        pass
    assert second.receipts[0].before.allocated == SIZE
    assert second.receipts[0].residue_bytes == 0
    del kept


def test_nothing_stays_of_an_exception_whose_traceback_is_handled(desk):
    def fails(lease: Lease) -> None:
        model = network()
        lease.devices[0].hold(model, SIZE)
        raise RuntimeError("in the middle of a batch")

    with pytest.raises(RuntimeError), desk.lease() as lease:
        fails(lease)
    gc.collect()
    assert desk.lessor.devices[0].memory().allocated == 0


def test_an_attached_model_adds_at_least_its_bytes_to_the_process(desk):
    with desk.lease() as lease:
        before = lease.devices[0].memory().occupied
        model = network()
        lease.devices[0].hold(model, SIZE)
        held = lease.devices[0].memory()
        assert held.allocated == SIZE
        assert held.occupied >= before + SIZE * 0.9
        del model
    (receipt,) = lease.receipts
    assert receipt.peak.occupied >= receipt.before.occupied + SIZE * 0.9
    assert receipt.after.occupied < receipt.peak.occupied


def test_the_peak_of_a_lease_is_its_own_after_a_higher_one(desk):
    with desk.lease() as first:
        torch.ones(SIZE).sum()
    with desk.lease() as second:
        pass
    assert second.receipts[0].peak.occupied < first.receipts[0].peak.occupied - 2 * SIZE


def test_a_lease_says_how_long_it_was_held(desk):
    with desk.lease() as lease:
        assert lease.held_seconds == 0
    assert 0 < lease.held_seconds < 10


def test_two_shared_leases_hold_the_device_within_what_was_agreed(desk):
    with (
        desk.lease("primary", limits={"cpu": 8 * MIB}, shared=True) as one,
        desk.lease("companion", limits={"cpu": 4 * MIB}, shared=True) as other,
    ):
        assert (one.budget, other.budget) == (8 * MIB, 4 * MIB)
        with pytest.raises(InterlockError, match="third cannot lease cpu: primary holds it"), desk.lease("third"):
            pass


@pytest.fixture
def gpus() -> Desk:
    return Desk(Lessor(simulated("sim:2xT4"), 12 << 30), [])


def on(device, size: int) -> torch.Tensor:
    with device.computing():
        return torch.empty(size, dtype=torch.uint8, device="meta")  # of no content, it takes nothing of the host


def test_each_simulated_gpu_has_a_receipt_in_the_allocators_terms(gpus):
    with gpus.lease() as lease:
        held = on(lease.devices[1], SIZE)
        assert lease.devices[1].memory().allocated == SIZE
        del held
    assert [receipt.residue_bytes for receipt in lease.receipts] == [0, 0]
    assert [receipt.peak.allocated for receipt in lease.receipts] == [0, SIZE]
    assert [receipt.after.reserved for receipt in lease.receipts] == [0, 0]


def test_each_forward_has_its_own_peak_and_the_receipt_the_highest(gpus):
    with gpus.lease() as lease:
        measured = []
        for size in (SIZE, 4 * SIZE, 2 * SIZE):
            with gpus.lessor.measuring(lease.devices[0]) as measure:
                on(lease.devices[0], size)
            measured.append(measure.activations)
    assert measured == [SIZE, 4 * SIZE, 2 * SIZE]
    assert lease.receipts[0].peak.allocated == 4 * SIZE


def test_the_wall_stops_an_allocation_above_the_ceiling(gpus):
    with gpus.lease() as lease, pytest.raises(torch.OutOfMemoryError):
        on(lease.devices[0], 12 << 30)
    assert all(receipt.peak.occupied <= 12 << 30 for receipt in lease.receipts)


def test_the_receipt_counts_how_often_memory_fell_short(gpus):
    with gpus.lease() as lease:
        for _ in range(2):
            with pytest.raises(torch.OutOfMemoryError):
                on(lease.devices[0], 12 << 30)
        on(lease.devices[0], SIZE)
    assert [receipt.retries for receipt in lease.receipts] == [2, 0]


def test_bytes_that_stay_on_a_gpu_are_told_and_missing_in_the_next_budget(gpus):
    before = gpus.budget()
    with gpus.lease() as lease:
        model = network()
        lease.watch(model)
        kept = on(lease.devices[0], SIZE)
    (residue,) = lease.residues
    assert (residue.device, residue.bytes, residue.left_bytes) == ("cuda:0", SIZE, SIZE)
    assert "still referenced by" in residue.action
    assert gpus.budget() == before - SIZE
    del kept


def test_the_receipt_of_a_lost_device_says_so_and_claims_no_residue(gpus):
    with gpus.lease() as lease:
        gpus.lessor.lose(lease.devices[1], "gone")
    assert [(receipt.lost, receipt.residue_bytes) for receipt in lease.receipts] == [(False, 0), (True, 0)]


@pytest.mark.parametrize("wanted", ["auto", "cpu"])
def test_auto_and_cpu_each_choose_a_device_of_a_known_kind(wanted):
    chosen = choose(wanted)
    assert chosen
    assert {device.kind for device in chosen} <= ({"cpu"} if wanted == "cpu" else {"cpu", "cuda"})


def test_an_unknown_device_is_named():
    with pytest.raises(UnavailableError, match="'quantum'"):
        choose("quantum")


def test_a_ceiling_too_low_for_a_model_exits_5_before_any_work(tmp_path: Path, tiny_a: Path):
    chunks = corpus(tmp_path / "chunks", {"Docs": {"a_chunks.json": sentences(3)}})
    command = ["run", chunks, "--roster", tiny_a, "--out", tmp_path / "runs", "--run-id", "one", "--no-ui"]
    said = interlock(*command, "--ceiling", "64KiB", check=5).stderr
    assert "tiny-a needs" in said
    assert "64.0 KiB available" in said
    assert not (tmp_path / "runs" / "one").exists()


def test_a_ceiling_of_10_mib_exits_5_and_names_minilm(tmp_path: Path, minilm: Path):
    chunks = corpus(tmp_path / "chunks", {"Docs": {"a_chunks.json": ["one text"]}})
    command = ["run", chunks, "--roster", "all-minilm-l6", "--out", tmp_path / "runs", "--offline", "--no-ui"]
    said = interlock(*command, "--ceiling", "10MiB", check=5).stderr
    assert "all-minilm-l6 needs" in said
    assert "10.0 MiB available" in said


def test_memory_that_others_hold_is_not_taken_for_too_small_a_ceiling():
    (gpu,), host = simulated("sim:T4"), CpuDevice()
    lessor = Lessor([gpu, host], 12 * GIB)
    assert too_small(2 * GIB, 0, [gpu], lessor) is None
    gpu.others = 14 * GIB
    why, remedy, flags = too_small(2 * GIB, 0, [gpu], lessor)
    assert why.startswith("fits on no GPU (needs 2.0 GiB, ")
    assert (remedy, flags) == ("free memory on cuda:0", ())
