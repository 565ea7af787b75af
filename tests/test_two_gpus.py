"""What befalls passes on two GPUs: pieces that move from one to the other, devices that are lost or full, turns."""

from collections import Counter
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from interlock.engine.compute.batch_runner import BatchRunner, DeviceGone
from interlock.engine.compute.instance import ModelInstance
from interlock.engine.compute.ladder import Rung
from interlock.engine.compute.parts.outputs import Outputs
from interlock.engine.compute.schedule import Schedule
from interlock.engine.compute.source import Queue
from interlock.engine.errors import Stopped, UnavailableError
from interlock.engine.flows.weightless import WeightlessHost, WeightlessRows
from interlock.engine.gpu.device import RESERVE
from interlock.engine.gpu.faults import parse
from interlock.engine.gpu.lease import Lessor
from interlock.engine.gpu.sim import CONTEXT
from interlock.engine.models.masters import Masters
from interlock.engine.models.memory import Calibration
from interlock.engine.models.weights import Replica
from interlock.engine.record import events as ev
from tests import weightless
from tests.harness import grid_of
from tests.weightless import LIMIT, T4, Desk, card_of, hydrate, ids_of, law, lengths_of, vectors_of

GIB = 1 << 30
CEILING = 12 * GIB
PRIMARY, COMPANION = card_of("Qwen3-0.6B"), card_of("XLM-R-large", packed=True)
SMALL = card_of("MiniLM-L6", packed=True)


class Full:
    """An encoder on a GPU where nothing fits."""

    padded = False

    def encode(self, rows):
        raise torch.OutOfMemoryError("CUDA out of memory")


class Neighbour:
    """An encoder that notes whether its model was streamed, and the other GPU of the lease for who asks."""

    padded = False

    def __init__(self, *, streams_rightly=True):
        self._streams_rightly = streams_rightly
        self.streamed = []
        self.instance = None

    def encode(self, rows):
        self.streamed.append(self.instance.streamed)
        return Outputs(vectors_of([len(row) for row in rows], COMPANION.dim))

    def other(self, instance):
        return self.instance

    def host_possible(self):
        return False

    def streams_rightly(self, instance):
        return self._streams_rightly

    def makes_room(self, instance):
        return False


def moved(neighbour):
    """What becomes of a batch that the first of two GPUs has no room for."""
    gpus = [T4(0), T4(1)]
    lessor, (cells,) = Lessor(gpus, CEILING), grid_of([COMPANION], [64], ids_of)

    def emit(event):
        if isinstance(event, ev.Mitigated) and event.rung == "relocate":
            neighbour.instance.grow_back(64)  # as its own worker does after a batch of its own

    with ExitStack() as stack:
        lease = stack.enter_context(lessor.lease("m", {gpu.name: GIB for gpu in gpus}, lambda _: None))
        master, bytes_of = hydrate(COMPANION), law(COMPANION, "sim")
        full, neighbour.instance = (
            ModelInstance(gpu, Replica(master, gpu), encoder, "float16", bytes_of, Calibration(), lease, lessor)
            for gpu, encoder in zip(gpus, (Full(), neighbour), strict=True)
        )
        return BatchRunner(Queue(cells, [0]), full, neighbour, emit).compute(0)


def test_a_moved_piece_stays_streamed_though_the_worker_there_grows_the_model_back():
    neighbour = Neighbour()
    assert np.isfinite(moved(neighbour).outputs.dense).all()
    assert neighbour.streamed == [True]


def test_a_piece_that_streaming_computes_wrongly_is_not_streamed_where_it_moves_to():
    neighbour = Neighbour(streams_rightly=False)
    assert np.isfinite(moved(neighbour).outputs.dense).all()
    assert neighbour.streamed == [False]


def counted(monkeypatch, *names):
    """How often each of these is done to a replica."""
    calls = Counter()

    def counting(name, done):
        def call(replica):
            calls[name] += 1
            return done(replica)

        return call

    for name in names:
        monkeypatch.setattr(Replica, name, counting(name, getattr(Replica, name)))
    return calls


def test_a_model_whose_weights_fit_and_whose_rows_do_not_is_streamed_until_they_are_through(monkeypatch):
    bytes_of = law(PRIMARY, "sim")
    alone = bytes_of.activations(8192, 8192)
    ceiling = CONTEXT + RESERVE + bytes_of.weights + alone // 2
    calls = counted(monkeypatch, "_attach")
    desk = Desk([PRIMARY], [8192] * 12 + [64] * 2000, [T4(0)], ceiling)
    desk.compute(Schedule.EXCLUSIVE, cpu_fallback=False)
    assert [lease.streamed for lease in desk.of(ev.LeaseGranted)] == [True]
    assert calls["_attach"] == 1
    assert {step.rung for step in desk.of(ev.Mitigated)} <= {"replan"}


class Squeezed(T4):
    """A GPU on which somebody else takes so many bytes of what is free."""

    taken = 0

    def room(self, ceiling):
        return max(0, super().room(ceiling) - self.taken)


def test_a_companion_pauses_when_memory_gets_short_beside_the_primary():
    weights, gpu = sum(law(card, "sim").weights for card in (PRIMARY, COMPANION)), Squeezed(0)
    desk = Desk([PRIMARY, COMPANION], [4096] * 24, [gpu], CONTEXT + RESERVE + weights + GIB)

    def squeeze(event):
        if isinstance(event, ev.BatchCommitted):
            gpu.taken = GIB

    desk.hears = squeeze
    desk.compute(Schedule.SHARED, cpu_fallback=False)
    steps = [step for step in desk.of(ev.Mitigated) if "pausing" in step.action]
    assert [(step.model_pass, step.action) for step in steps] == [
        (1, f"pausing {COMPANION.key} until {PRIMARY.key} has ended")
    ]
    paused = desk.events.index(steps[0])
    assert [event.model_pass for event in desk.events[paused:] if isinstance(event, ev.LeaseGranted)] == [0, 1]
    assert {step.rung for step in desk.of(ev.Mitigated)} == {"replan"}
    batches = [(batch.model_pass, batch.batch_index) for batch in desk.of(ev.BatchCommitted)]
    assert len(batches) == len(set(batches)) == sum(share.batches for share in desk.of(ev.PassPlanned))


class NeverWhole:
    """An encoder that memory is short for whenever the weights are on the GPU, whatever the law says."""

    padded = False
    instance = None

    def encode(self, rows):
        if not self.instance.streamed:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return Outputs(vectors_of([len(row) for row in rows], COMPANION.dim))


def test_a_model_that_does_not_last_whole_is_tried_ever_more_rarely(monkeypatch):
    gpu, encoder = T4(0), NeverWhole()
    lessor, (cells,) = Lessor([gpu], CEILING), grid_of([replace(COMPANION, batch_tokens=64)], [64] * 100, ids_of)
    with lessor.lease("m", {gpu.name: 4 * GIB}, lambda _: None) as lease:
        replica, bytes_of = Replica(hydrate(COMPANION), gpu), law(COMPANION, "sim")
        encoder.instance = ModelInstance(gpu, replica, encoder, "float16", bytes_of, Calibration(), lease, lessor)
        calls = counted(monkeypatch, "_attach", "stream")
        queue = Queue(cells, range(100))
        runner = BatchRunner(queue, encoder.instance, Nowhere(lessor, None), lambda _: None)
        while (index := queue.take()) is not None:
            assert np.isfinite(runner.compute(index).outputs.dense).all()
    assert 3 <= calls["_attach"] <= 7
    assert calls["stream"] <= 8


def test_a_model_that_finds_no_room_to_grow_back_stays_streamed(monkeypatch):
    gpu, master = T4(0), hydrate(COMPANION)
    lessor, rungs = Lessor([gpu], CEILING), frozenset({Rung.STREAM})
    with lessor.lease("m", {gpu.name: 4 * GIB}, lambda _: None) as lease:
        replica, bytes_of = Replica(master, gpu), law(COMPANION, "sim")
        instance = ModelInstance(gpu, replica, Full(), "float16", bytes_of, Calibration(), lease, lessor)
        instance.adopt(rungs)
        monkeypatch.setattr(Replica, "_attach", full)
        instance.grow_back(64)
        assert instance.streamed


def full(replica):
    raise torch.OutOfMemoryError("CUDA out of memory")


class Lazy(T4):
    """A GPU that loads kernels when they are first used, beside its allocator."""

    def __init__(self, number):
        super().__init__(number)
        self.beside, self.walls = 0, []

    def wall(self, ceiling):
        self.walls.append(self.beside)
        super().wall(ceiling)


class Loads:
    """An encoder whose every forward loads something."""

    padded = False

    def __init__(self, gpu):
        self._gpu = gpu

    def encode(self, rows):
        self._gpu.beside += 1
        return Outputs(vectors_of([len(row) for row in rows], SMALL.dim))


def test_the_wall_is_measured_again_once_the_first_forward_has_loaded_its_kernels():
    gpu = Lazy(0)
    lessor = Lessor([gpu], CEILING)
    with lessor.lease("m", {gpu.name: GIB}, lambda _: None) as lease:
        attached, bytes_of = Replica(hydrate(SMALL), gpu), law(SMALL, "sim")
        instance = ModelInstance(gpu, attached, Loads(gpu), "float16", bytes_of, Calibration(), lease, lessor)
        for _ in range(3):
            instance.attempt([ids_of(0, 64)])
        assert gpu.walls == [0, 1]


def test_each_of_two_lost_gpus_tells_only_the_rows_that_it_gave_back():
    gpus = [T4(number, parse("lose:3")) for number in range(2)]
    desk = Desk([COMPANION], [512] * 320, gpus, CEILING)
    with pytest.raises(Stopped):
        desk.compute(Schedule.EXCLUSIVE)
    told = {step.device: step.rows for step in desk.of(ev.Mitigated) if " lost: " in step.cause}
    assert told == {"cuda:0": 32, "cuda:1": 32}


class Bad:
    """An encoder that a GPU is lost of, as CUDA says it."""

    padded = False

    def __init__(self, said):
        self.said, self.tried = said, 0

    def encode(self, rows):
        self.tried += 1
        raise getattr(torch, "AcceleratorError", RuntimeError)(f"CUDA error: {self.said}\nmore")


class Host:
    """The way to the CPU, if any."""

    def __init__(self, lessor, instance):
        self._lessor, self._instance = lessor, instance

    def lose(self, instance, reason):
        self._lessor.lose(instance.device, reason)

    def other(self, instance):
        raise AssertionError("another GPU was asked for")

    def host(self, lengths):
        return self._instance

    def host_possible(self):
        return self._instance is not None

    def streams_rightly(self, instance):
        return True

    def makes_room(self, instance):
        return False


class Nowhere(Host):
    """No way at all."""

    def other(self, instance):
        return None


@pytest.fixture
def losing():
    """Computes a batch on a GPU that is lost of it with these words; what was told, and the encoder."""
    stack = ExitStack()

    def make(said, *, cpu):
        host, told = WeightlessHost(), []
        lessor, (cells,) = Lessor([T4(0), host], CEILING), grid_of([SMALL], [64] * 600, ids_of)
        lease = stack.enter_context(lessor.lease("m", {"cuda:0": GIB, "cpu": GIB}, lambda _: None))
        rest = law(SMALL, "sim"), Calibration(), lease, lessor
        attached = Replica(hydrate(SMALL), lessor.devices[0])
        gpu = ModelInstance(lessor.devices[0], attached, encoder := Bad(said), "float16", *rest)
        there = ModelInstance(host, attached, WeightlessRows(SMALL, attached.network), "float32", *rest)
        fallbacks = Host(lessor, there if cpu else None)
        return BatchRunner(Queue(cells, [0, 1]), gpu, fallbacks, told.append), told, encoder

    with stack:
        yield make


@pytest.mark.parametrize("said", ["device-side assert triggered", "an illegal memory access was encountered"])
def test_the_batch_that_a_gpu_was_lost_of_goes_to_the_cpu_and_to_no_other_gpu(losing, said):
    runner, told, encoder = losing(said, cpu=True)
    result = runner.compute(0)
    assert np.isfinite(result.outputs.dense).all()
    assert [(part.device, part.dtype, part.rows) for part in result.parts] == [
        ("cpu", "float32", len(result.outputs.dense))
    ]
    (step,) = told
    assert (step.rung, step.rows, step.cause) == (
        "cpu",
        len(result.outputs.dense),
        f"cuda:0 lost at this batch: CUDA error: {said}",
    )
    with pytest.raises(DeviceGone, match=said):
        runner.compute(1)
    assert encoder.tried == 1


@pytest.mark.parametrize(
    ("said", "cpu"), [("uncorrectable ECC error encountered", True), ("device-side assert triggered", False)]
)
def test_a_batch_that_a_gpu_was_lost_under_is_given_back_where_it_is_not_to_blame_or_has_nowhere_to_go(
    losing, said, cpu
):
    runner, told, _ = losing(said, cpu=cpu)
    with pytest.raises(DeviceGone, match=said):
        runner.compute(0)
    assert told == []


def test_the_batch_that_a_gpu_was_lost_of_goes_to_the_cpu_where_layers_were_on_their_way_to_it_too(losing, monkeypatch):
    said = "an illegal memory access was encountered"
    runner, _, encoder = losing(said, cpu=True)
    replica, host = runner.instance.attached, runner._fallbacks.host([])
    replica.stream()
    host.encoder = SimpleNamespace(
        padded=False, encode=lambda rows: Outputs(vectors_of(list(map(len, rows)), SMALL.dim))
    )

    def join_copies(gpu):
        raise RuntimeError(f"CUDA error: {said}")

    def encode(rows):
        replica._streaming._enter(0)
        monkeypatch.setattr(T4, "join_copies", join_copies)
        Bad.encode(encoder, rows)

    monkeypatch.setattr(encoder, "encode", encode)
    assert np.isfinite(runner.compute(0).outputs.dense).all()
    with pytest.raises(DeviceGone, match=said):
        runner.compute(1)


def test_a_row_is_parked_and_costs_no_pass_where_the_host_fills_up_before_it_gets_there(losing):
    runner, told, _ = losing("out of memory", cpu=True)
    runner._fallbacks.other = lambda instance: None
    runner._fallbacks.host = lambda lengths: None
    result = runner.compute(0)
    assert np.isnan(result.outputs.dense).all()
    assert len([parked for parked in told if isinstance(parked, ev.RowParked)]) == len(result.outputs.dense)


class Crowded(T4):
    """A GPU that another process fills up now and then."""

    full = False

    def room(self, ceiling):
        return 0 if self.full else super().room(ceiling)

    @contextmanager
    def computing(self):
        with super().computing():
            if self.full:
                raise torch.OutOfMemoryError("CUDA out of memory")
            yield


@pytest.mark.parametrize(("stays_full", "devices"), [(False, ["cuda:0", "cuda:1"]), (True, ["cuda:1"])])
def test_a_shared_primary_whose_only_gpu_is_full_is_computed_later_or_elsewhere(monkeypatch, stays_full, devices):
    crowded = Crowded(0)
    desk = Desk([PRIMARY, COMPANION], [512] * 64, [crowded, T4(1)], CEILING)

    def fill(card):
        crowded.full = crowded.full or (card == PRIMARY and not desk.of(ev.ModelAttached))
        return hydrate(card)

    def clear(event):
        crowded.full = crowded.full and (stays_full or not isinstance(event, ev.ModelAttached))

    monkeypatch.setattr(weightless, "hydrate", fill)
    desk.hears = clear
    desk.compute(Schedule.SHARED, cpu_fallback=False)
    assert desk.of(ev.PassFailed) == []
    assert [lease.devices for lease in desk.of(ev.LeaseGranted) if lease.model == PRIMARY.key][1:] == [devices]
    assert all(file.puts == dict.fromkeys(range(64), 1) for file in desk.files)


def test_a_companion_whose_gpu_is_lost_goes_on_beside_the_primary_before_that_has_ended():
    desk = Desk([PRIMARY, COMPANION], [512] * 1280, [T4(0), T4(1, parse("lose:6"))], CEILING)
    desk.compute(Schedule.SHARED, cpu_fallback=False)
    lost = next(number for number, event in enumerate(desk.events) if isinstance(event, ev.DeviceLost))
    granted = [event for event in desk.events[lost:] if isinstance(event, ev.LeaseGranted)]
    assert [(lease.model, lease.devices) for lease in granted] == [
        (PRIMARY.key, ["cuda:0"]), (COMPANION.key, ["cuda:0"])
    ]  # fmt: skip
    assert all(file.puts == dict.fromkeys(range(1280), 1) for file in desk.files)


def test_a_primary_is_not_interrupted_for_a_companion_that_finds_no_other_room():
    gpus = [T4(0), T4(1, parse("lose:6"))]
    room = max(law(card, "sim").weights for card in (PRIMARY, COMPANION))
    desk = Desk([PRIMARY, COMPANION], [64] * 2560, gpus, CONTEXT + RESERVE + room + (400 << 20))
    desk.compute(Schedule.SHARED, cpu_fallback=False)
    assert [lease.model for lease in desk.of(ev.LeaseGranted)] == [PRIMARY.key, COMPANION.key, COMPANION.key]


def test_a_primary_that_can_never_be_loaded_fails_in_the_end(monkeypatch):
    desk = Desk([PRIMARY, COMPANION], [512] * 64, [T4(0), T4(1)], CEILING)

    def broken(card):
        if card == PRIMARY:
            raise UnavailableError("no weights")
        return hydrate(card)

    monkeypatch.setattr(weightless, "hydrate", broken)
    desk.compute(Schedule.SHARED, cpu_fallback=False)
    assert [(failed.model, failed.reason) for failed in desk.of(ev.PassFailed)] == [(PRIMARY.key, "no weights")]
    assert [end.model for end in desk.of(ev.EnsemblePassCompleted)] == [COMPANION.key]


def test_what_is_read_ahead_is_the_model_whose_turn_is_next(monkeypatch):
    desk, ahead = Desk([COMPANION, PRIMARY, SMALL], [512] * 128, [T4(0), T4(1)], CEILING), []

    def note(masters, card, size):
        ahead.append((len(desk.of(ev.LeaseGranted)), card.key))

    monkeypatch.setattr(Masters, "prefetch", note)
    desk.compute(Schedule.ROTATING, window=1)
    turns = [lease.model for lease in desk.of(ev.LeaseGranted)]
    assert len(turns) > 2 * len(desk.cards)
    assert ahead == list(enumerate(turns[1:], 1))


def crowded(*faults):
    """What comes of many texts on two GPUs whose memory others take: rungs, forwards, and the GPUs of the batches."""
    lengths = [length for length in lengths_of(4000, 3) if length < LIMIT]
    desk = Desk([COMPANION], lengths, [T4(number, parse(",".join(faults))) for number in (0, 1)], CEILING)
    desk.compute(Schedule.EXCLUSIVE)
    assert not desk.of(ev.RowParked)
    np.testing.assert_array_equal(desk.files[0].array, vectors_of(lengths, COMPANION.dim))
    done = desk.of(ev.BatchCommitted)
    return desk.of(ev.Mitigated), sum(batch.forwards for batch in done), [batch.device for batch in done]


def test_a_gpu_whose_memory_others_took_gives_its_texts_to_the_other_many_at_a_time():
    steps, forwards, devices = crowded("oom@1:60", "other@1:16GiB:60")
    assert len(steps) < 20, Counter(step.rung for step in steps)
    assert forwards < 1.5 * len(devices) + 20
    assert "cuda:0" in devices
    assert "cpu" not in {step.rung for step in steps}


def test_a_gpu_computes_again_once_others_have_left_it():
    lengths, gpus = [512] * 1600, [T4(0), Squeezed(1)]
    desk = Desk([COMPANION], lengths, gpus, CEILING)

    def squeeze(event):
        if isinstance(event, ev.BatchCommitted):
            gpus[1].taken = CEILING if 5 <= len(desk.of(ev.BatchCommitted)) < 25 else 0

    desk.hears = squeeze
    desk.compute(Schedule.EXCLUSIVE)
    devices = [batch.device for batch in desk.of(ev.BatchCommitted)]
    assert "relocate" in {step.rung for step in desk.of(ev.Mitigated)}
    assert devices[10:20] == ["cuda:0"] * 10
    assert devices[30:].count("cuda:1") > 3
    np.testing.assert_array_equal(desk.files[0].array, vectors_of(lengths, COMPANION.dim))


def test_texts_go_to_the_cpu_many_at_a_time_where_others_have_taken_every_gpu():
    steps, _, devices = crowded("oom:60", "other:16GiB:60")
    assert len(steps) < 8 * len(devices), Counter(step.rung for step in steps)
    assert any("cpu" in device for device in devices)
