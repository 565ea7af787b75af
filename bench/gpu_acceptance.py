"""What is promised of a GPU, measured on one in under nine minutes without a network; `--rehearse` proves the script.

Models are the real architectures with random weights, made on the fly; memory and speed do not depend on what weights
say. Every section has a budget of time and stops between two measurements when it is spent; every goal stands in the
JSON with its limit, its figure and whether it was met (null: not measured). A rehearsal runs the same code on a card
that is not there, with small models: it proves logic, and its JSON holds no figure of time or rate.
"""

import argparse
import copy
import json
import os
import random
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parent)]
os.environ |= {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}

import machine
import numpy as np
import torch
from safetensors.torch import save_file

from engine.errors import ExitCode, InterlockError, UnavailableError
from engine.gpu.cpu import CpuDevice
from engine.gpu.cuda import CudaDevice, pin
from engine.gpu.device import RESERVE, Device
from engine.gpu.devices import describe_host, why_no_gpu
from engine.gpu.lease import Lease, Lessor
from engine.gpu.shortage import Trouble, classify
from engine.gpu.sim import SimDevice, simulated
from engine.intake.tokens import TokenStore, load_tokenizer
from engine.models.assets import Policy, resolve
from engine.models.card import ModelCard, read_card
from engine.models.masters import Masters
from engine.models.registry import ModelSpec
from engine.models.stages import layers_of, size_of
from engine.models.trace import law_for
from engine.models.weights import DTYPES, Master, Replica, load
from engine.passes.batches import plan
from engine.passes.controls import Controls
from engine.passes.encoder import Ids, Vectors, encoder_for
from engine.passes.grid import Cells, Layout
from engine.passes.ladder import Rung
from engine.passes.rounds import Crew, Rounds
from engine.passes.schedule import Schedule
from engine.passes.seat import Seat, first_calibration
from engine.passes.vectors import VectorFile
from engine.record import events as ev
from tests.architectures import MODERNBERT_BASE, QWEN2_15B, QWEN3_06B, XLM_R_LARGE
from tests.builders import PAD, WORDS, tiny_model

CEILING = 12 << 30
WHOLE, LAST = 510.0, 530.0
"""Seconds after which no section begins, and after which what there is is written and the process ends."""
FP16_COSINE = 0.9999
RESULT = Path(__file__).parent / "results" / "gpu-acceptance.json"
POOLINGS = {"XLM-R-large": "cls", "Qwen3-0.6B": "lasttoken", "Qwen2-1.5B": "lasttoken", "ModernBERT-base": "mean"}
CONFIGS = {
    "XLM-R-large": XLM_R_LARGE,
    "Qwen3-0.6B": QWEN3_06B,
    "Qwen2-1.5B": QWEN2_15B,
    "ModernBERT-base": MODERNBERT_BASE,
}
T = TypeVar("T")
Tree = dict[str, Any]


@dataclass(frozen=True)
class Timed:
    """A figure of time, or one that follows from time; a device that is not there has none."""

    value: float


@dataclass(frozen=True)
class Goal:
    """A limit; `timed` where only a real device can tell."""

    limit: float
    at_least: bool = False
    timed: bool = False

    def told(self, figure: float | None) -> Tree:
        met = None if figure is None else figure >= self.limit if self.at_least else figure <= self.limit
        return {"limit": f"{'>=' if self.at_least else '<='} {self.limit:g}", "figure": figure, "met": met}


GOALS: Mapping[str, Goal] = {
    "law: error of the peak, median": Goal(0.01),
    "law: error of the peak, worst": Goal(0.02),
    "plans: out-of-memory errors": Goal(0),
    "plans: allocator retries": Goal(0),
    "plans: bytes over the ceiling": Goal(0),
    "plans: rows without a vector": Goal(0),
    "attach: ms beyond bytes / rate, pinned": Goal(5, timed=True),
    "attach: ms beyond bytes / rate, pageable": Goal(5, timed=True),
    "attach: ms of a release": Goal(20, timed=True),
    "residue: bytes allocated": Goal(0),
    "residue: bytes reserved": Goal(0),
    "residue: bytes of driver drift": Goal((1 << 20) - 1),
    "throughput: x sentence-transformers, chunks": Goal(1.5, at_least=True, timed=True),
    "throughput: x sentence-transformers, mixed": Goal(2.0, at_least=True, timed=True),
    "throughput: least cosine to sentence-transformers": Goal(FP16_COSINE, at_least=True),
    "ladder: rungs never used": Goal(0),
    "ladder: least cosine to the undisturbed": Goal(FP16_COSINE, at_least=True),
    "ladder: streamed / max(compute, copy), worst": Goal(1.15, timed=True),
}


@dataclass(frozen=True)
class Scale:
    """How much is done: on a GPU, or in a rehearsal."""

    longest: int
    tokens: int
    samples: int
    plans: int
    plan_tokens: int
    repeats: int
    leases: int
    text_tokens: int
    sizes: tuple[int, ...]
    steps: int
    long_row: int
    stream_tokens: tuple[int, ...]
    copied: int
    square: int


REAL = Scale(8192, 32768, 60, 60, 60_000, 7, 50, 80_000, (8, 16, 32, 64, 128), 14, 4096, (512, 8192), 256 << 20, 8192)
SMALL = Scale(256, 2048, 4, 3, 1500, 2, 50, 600, (4, 8), 12, 1400, (64, 512), 1 << 20, 64)


@dataclass
class Bench:
    """One device under the ceiling, a place for files, and the models made so far."""

    device: Device
    place: Path
    scale: Scale
    host: CpuDevice = field(default_factory=CpuDevice)
    rng: random.Random = field(default_factory=lambda: random.Random(7))
    until: float = 0.0
    rates: dict[str, float] = field(default_factory=dict)
    made: dict[str, ModelCard] = field(default_factory=dict)
    files: int = 0

    @property
    def real(self) -> bool:
        return self.device.kind == "cuda"

    @property
    def spent(self) -> bool:
        """Whether the section's time is over; a rehearsal is never short of it."""
        return self.real and time.monotonic() >= self.until

    def card(self, name: str, *, eager: bool = False, shape: Mapping[str, Any] | None = None) -> ModelCard:
        """The model of an architecture; `eager` ones are built by transformers, whatever we have for them."""
        key = name if shape is None else f"{name}-deep"
        if key not in self.made:
            self.made[key] = made_card(self, name, key, shape or {})
        card = self.made[key]
        return replace(card, key=f"{key}-eager", packed=False, attention="eager") if eager else card

    def file(self, suffix: str) -> Path:
        self.files += 1
        return self.place / f"{self.files}{suffix}"

    def sync(self) -> None:
        if self.real:
            torch.cuda.synchronize(self.device.torch)

    def seconds(self, work: Callable[[], object]) -> float:
        """Wall seconds of some work, with what it left the device to do."""
        self.sync()
        began = time.perf_counter()
        work()
        self.sync()
        return time.perf_counter() - began

    def shortages(self) -> tuple[int, int]:
        """Out-of-memory errors and retries of the allocator so far."""
        if isinstance(self.device, SimDevice):
            counters = self.device.allocator.counters()
            return counters.ooms, counters.retries
        stats = torch.cuda.memory_stats(self.device.torch)
        return int(stats.get("num_ooms", 0)), int(stats.get("num_alloc_retries", 0))

    def driver(self) -> int:
        """Bytes of the card that are in use, as the driver says."""
        if self.real:
            free, total = torch.cuda.mem_get_info(self.device.torch)
            return total - free
        return self.device.memory().occupied


def made_card(bench: Bench, name: str, key: str, shape: Mapping[str, Any]) -> ModelCard:
    """A sentence-transformers directory with random weights of the architecture, and its card."""
    directory, longest = bench.place / key, bench.scale.longest if not shape else bench.scale.long_row + 2
    config = {**CONFIGS[name], "pad_token_id": PAD, **({} if bench.real else _small(CONFIGS[name], longest)), **shape}
    width = config["hidden_size"]
    tiny_model(directory, width=width, layers=1, heads=2, pooling=POOLINGS[name], max_tokens=longest)
    dtype = "float16" if bench.real else "float32"
    (directory / "config.json").write_text(json.dumps({**config, "dtype": dtype, "torch_dtype": dtype}))
    save_file(_weights(config, DTYPES[dtype], bench), directory / "model.safetensors", {"format": "pt"})
    spec = ModelSpec(key, (str(directory),), gpu_batch_tokens=16384, batch_tokens=2048)
    return read_card(spec, resolve(spec, Policy(offline=True), lambda _: None), bench.device.kind)


def _small(config: Mapping[str, Any], longest: int) -> Tree:
    small = {
        "hidden_size": 64, "intermediate_size": 256, "num_attention_heads": 4, "num_hidden_layers": 3,
        "max_position_embeddings": longest + 2, "vocab_size": 512, "bos_token_id": 2, "eos_token_id": 3,
        "max_window_layers": 3, "head_dim": 16, "num_key_value_heads": 2, "cls_token_id": 2, "sep_token_id": 3,
        "local_attention": 32,
    }  # fmt: skip
    return {name: value for name, value in small.items() if name in config}


def _weights(config: Mapping[str, Any], dtype: torch.dtype, bench: Bench) -> dict[str, torch.Tensor]:
    """Random tensors for every parameter that transformers would look for; norms begin as they do."""
    from transformers import AutoConfig, AutoModel

    with torch.device("meta"):
        blank = AutoModel.from_config(AutoConfig.for_model(**copy.deepcopy(dict(config))))
    norms = {
        f"{name}.weight" for name, module in blank.named_modules() if "norm" in type(module).__name__.lower()
    }  # fmt: skip
    generator = torch.Generator(bench.device.torch).manual_seed(7)
    made = {}
    for name, parameter in blank.named_parameters():
        numbers = torch.randn(parameter.shape, dtype=dtype, device=bench.device.torch, generator=generator) * 0.04
        made[name] = (numbers + (name in norms)).cpu()
    return made


def on_seat(bench: Bench, card: ModelCard, master: Master, work: Callable[[Seat, Lessor], T]) -> T:
    """Lease, attach, work, release; the model lives in a frame that is gone before the lease ends."""
    lessor = Lessor([bench.device, bench.host], CEILING)
    law = law_for(card, bench.device.kind)
    with lessor.lease(card.key, {bench.device.name: law.weights}, lambda _: None) as lease:
        return _work(bench, card, master, lease, lessor, work)


def _work(
    bench: Bench, card: ModelCard, master: Master, lease: Lease, lessor: Lessor, work: Callable[[Seat, Lessor], T]
) -> T:
    attached = Replica(master, bench.device)
    encoder = encoder_for(card, attached.network, bench.device)
    law = law_for(card, bench.device.kind)
    return work(Seat(bench.device, attached, encoder, law, first_calibration(bench.device), lease, lessor), lessor)


def rows_of(bench: Bench, lengths: Iterable[int]) -> list[Ids]:
    """Rows of token ids, longest first."""
    draw = np.random.default_rng(bench.rng.randrange(1 << 30))
    return [draw.integers(5, 100, length, np.int64) for length in sorted(lengths, reverse=True)]


def texts_of(bench: Bench, lengths: Iterable[int]) -> list[str]:
    """Texts of about so many tokens."""
    return [" ".join(bench.rng.choices(WORDS, k=max(1, length - 2))) for length in lengths]


def lengths_of(bench: Bench, kind: str, tokens: int, longest: int) -> list[int]:
    """Lengths of rows, about `tokens` in all: chunks as documents give them, or anything from few to many."""
    found: list[int] = []
    while sum(found) < tokens:
        match kind:
            case "chunks":
                length = int(bench.rng.lognormvariate(5.2, 0.6))
            case "mixed":
                length = bench.rng.randint(10, 2000)
            case "short":
                length = bench.rng.randint(4, 60)
            case _:
                length = bench.rng.choice((8, longest))
        found.append(max(3, min(length, longest)))
    return found


def probes(bench: Bench) -> Tree:
    """How fast this machine copies to the device and multiplies, in this very run."""
    place, scale = bench.device.torch, bench.scale
    with bench.device.computing():
        target = torch.empty(scale.copied, dtype=torch.uint8, device=place)
        pageable = torch.ones(scale.copied, dtype=torch.uint8)
        pinned = pageable.pin_memory() if bench.real else pageable
        for name, source in (("pinned", pinned), ("pageable", pageable)):
            copied = _elapsed(bench, lambda source=source: target.copy_(source, non_blocking=True))
            bench.rates[name] = scale.copied / copied
        x = torch.randn(scale.square, scale.square, dtype=torch.float16 if bench.real else torch.float32, device=place)
        flops = 2 * scale.square**3 / _elapsed(bench, lambda: x @ x)
    return {
        "copied_bytes": scale.copied,
        "pinned_h2d_gb_per_s": Timed(bench.rates["pinned"] / 1e9),
        "pageable_h2d_gb_per_s": Timed(bench.rates["pageable"] / 1e9),
        "gemm_tflops": Timed(flops / 1e12),
    }


def _elapsed(bench: Bench, work: Callable[[], object], repeats: int = 7) -> float:
    """Seconds between two events around the work on the device: the median."""
    return statistics.median([_between_events(work) if bench.real else bench.seconds(work) for _ in range(repeats)][2:])


def _between_events(work: Callable[[], object]) -> float:
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    work()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) / 1000


def law(bench: Bench) -> Tree:
    """The predicted peak against the allocator's, over random shapes, after one warm-up and three probes."""
    variants = [(name, eager) for name in CONFIGS for eager in (False, True)]
    found: dict[str, Tree] = {}
    ends = bench.until
    for number, (name, eager) in enumerate(variants):
        left = len(variants) - number
        bench.until = time.monotonic() + max(0.0, ends - time.monotonic()) / left
        card = bench.card(name, eager=eager)
        samples = on_seat(bench, card, Master(load(card)), lambda seat, lessor: _law_samples(bench, seat, lessor))
        found[f"{name}, {'eager' if eager else 'sdpa'}"] = samples
    errors = [error for each in found.values() for error in each["peak_errors"]]
    return {
        "models": {name: _errors(each) for name, each in found.items()},
        "law: error of the peak, median": statistics.median(errors) if errors else None,
        "law: error of the peak, worst": max(errors, default=None),
    }


def _errors(samples: Mapping[str, Any]) -> Tree:
    told: Tree = {"shapes": len(samples["peak_errors"]), "scale": samples["scale"], "refused": samples["refused"]}
    for name in ("peak_errors", "activation_errors"):
        errors = samples[name] or [0.0]
        told |= {f"{name}_median": statistics.median(errors), f"{name}_worst": max(errors)}
    return told | {"worst_shape": samples["worst"]}


def _law_samples(bench: Bench, seat: Seat, lessor: Lessor) -> Tree:
    longest = bench.scale.longest
    _measured(bench, seat, lessor, [16])
    refused = 0
    for length in (longest // 16, longest // 4, longest):
        lengths = _shape(bench, seat, length, ragged=False)
        if measured := _measured(bench, seat, lessor, lengths):
            lawful = seat.law.for_rows(lengths).activations(seat.tokens(lengths), length)
            seat.calibration = seat.calibration.observed(lawful, measured[0])
    found: Tree = {"scale": seat.calibration.scale, "peak_errors": [], "activation_errors": [], "worst": None}
    for number in range(bench.scale.samples):
        if bench.spent:
            break
        lengths = _shape(bench, seat, int(2 ** bench.rng.uniform(4, np.log2(longest))), ragged=number % 2 == 1)
        measured = _measured(bench, seat, lessor, lengths)
        if measured is None:
            refused += 1
            continue
        activations, at_rest = measured
        tokens, most = seat.tokens(lengths), max(lengths)
        predicted = seat.calibration.scale * seat.law.for_rows(lengths).activations(tokens, most)
        error = abs(predicted - activations) / (at_rest + activations)
        if error >= max(found["peak_errors"], default=0.0):
            found["worst"] = {"rows": len(lengths), "longest": most, "tokens": tokens, "ragged": number % 2 == 1}
        found["peak_errors"].append(error)
        found["activation_errors"].append(abs(predicted - activations) / activations)
    return found | {"refused": refused}


def _shape(bench: Bench, seat: Seat, length: int, *, ragged: bool) -> list[int]:
    """Lengths of a random batch with a row of `length` that the law lets through."""
    allowed = min(bench.scale.tokens, int(seat.most_tokens(length) * 0.9))
    least = min(allowed, max(length, bench.scale.tokens // 8))
    rows = max(1, int(2 ** bench.rng.uniform(np.log2(max(1, least)), np.log2(max(1, allowed)))) // length)
    return [length, *(bench.rng.randint(max(1, length // 2), length) if ragged else length for _ in range(rows - 1))]


def _measured(bench: Bench, seat: Seat, lessor: Lessor, lengths: Sequence[int]) -> tuple[int, int] | None:
    """Bytes that a forward took, and those at rest beside it; None where it ran out of memory."""
    try:
        with lessor.measuring(bench.device) as measure, bench.device.computing():
            at_rest = bench.device.memory().allocated
            seat.encoder.encode(rows_of(bench, lengths))
        return measure.activations or 0, at_rest
    except Exception as error:
        if classify(error) is not Trouble.MEMORY:
            raise
    bench.device.reclaim()
    return None


def compute(
    bench: Bench,
    cards: Sequence[ModelCard],
    texts: Sequence[str],
    masters: Masters,
    *,
    budget: int,
    ceiling: int = CEILING,
    schedule: Schedule = Schedule.EXCLUSIVE,
    window: int = 0,
    cpu_fallback: bool = False,
    attached: Callable[[], object] = lambda: None,
) -> tuple[list[Vectors], list[ev.AnyEvent]]:
    """The vectors of every model, computed by the engine's own rounds, and what they told."""
    told: list[ev.AnyEvent] = []

    def emit(event: ev.AnyEvent) -> None:
        told.append(event)
        if isinstance(event, ev.ModelAttached) and event.device == bench.device.name:
            attached()

    controls = Controls()
    controls.begin(schedule, window, cpu_fallback=cpu_fallback)
    grid = [_cells(bench, number, card, texts, budget) for number, card in enumerate(cards)]
    lessor = Lessor([bench.device, bench.host], ceiling)
    crew = Crew([bench.device], bench.host, lessor, masters, controls, emit, lambda: None)
    Rounds(grid, [range(len(cells.batches)) for cells in grid], [1.0] * len(grid), crew).run()
    vectors = [np.array(cells.file.array) for cells in grid]
    for cells in grid:
        cells.file.path.unlink()
        cells.tokens.path.unlink()
    return vectors, told


def _cells(bench: Bench, number: int, card: ModelCard, texts: Sequence[str], budget: int) -> Cells:
    store = stored(bench, card, texts)
    batches = list(plan(np.arange(len(store)), store.lengths(card.max_tokens), budget).batches)
    layout = Layout(card, batches, ["Acceptance"] * len(batches))
    return Cells(number, layout, store, VectorFile(bench.file(".npy"), len(texts), card.dim))


def stored(bench: Bench, card: ModelCard, texts: Sequence[str]) -> TokenStore:
    """The token ids of texts."""
    store = TokenStore(bench.file(".ids"), load_tokenizer(card.tokenizer_file), "", card.max_tokens)
    with store:
        store.add(texts)
    return store


def plans(bench: Bench) -> Tree:
    """Random rosters, corpora, budgets and schedules through the engine; nothing may run short of memory."""
    masters = Masters(16 << 30)
    cards = [*map(bench.card, CONFIGS), bench.card("Qwen3-0.6B", eager=True)]
    ooms, retries = bench.shortages()
    done = missing = rows = highest = 0
    while done < bench.scale.plans and not bench.spent:
        kind = bench.rng.choice(("chunks", "mixed", "short", "spikes"))
        texts = texts_of(bench, lengths_of(bench, kind, bench.scale.plan_tokens, bench.scale.longest))
        vectors, told = compute(
            bench,
            bench.rng.sample(cards, bench.rng.randint(1, 2)),
            texts,
            masters,
            budget=bench.rng.choice((2048, 8192, 16384, 65536)),
            schedule=bench.rng.choice(list(Schedule)),
            window=2,
        )
        done += 1
        rows += sum(map(len, vectors))
        missing += sum(int((~np.isfinite(each).all(1)).sum()) for each in vectors)
        highest = max([highest, *(receipt.peak.occupied for receipt in _receipts(told))])
    now = bench.shortages()
    ran = done > 0
    return {
        "plans": done,
        "rows": rows,
        "highest_peak_bytes": highest,
        "ceiling_bytes": CEILING,
        "plans: out-of-memory errors": now[0] - ooms if ran else None,
        "plans: allocator retries": now[1] - retries if ran else None,
        "plans: bytes over the ceiling": max(0, highest - CEILING) if ran else None,
        "plans: rows without a vector": missing if ran else None,
    }


def _receipts(told: Sequence[ev.AnyEvent]) -> Iterator[Any]:
    for event in told:
        if isinstance(event, ev.LeaseReleased):
            yield from event.receipts


def attach(bench: Bench) -> Tree:
    """Attaching and letting go, against the copy that this machine makes of as many bytes."""
    found: dict[str, Tree] = {}
    beyond: dict[str, list[float]] = {"pinned": [], "pageable": []}
    releases = []
    for name in CONFIGS:
        if bench.spent:
            break
        master = Master(load(bench.card(name)))
        found[name] = {"bytes": master.bytes}
        for mode in ("pageable", "pinned"):
            unpin = [pin(flat, bench.device.torch) for flat in master.flats.values()] if mode == "pinned" else []
            try:
                times = [_attach_once(bench, bench.card(name), master) for _ in range(bench.scale.repeats)][1:]
            finally:
                bench.sync()
                for undo in unpin:
                    undo()
            attached, copied, released = (statistics.median(each) for each in zip(*times, strict=True))
            beyond[mode].append(1000 * (attached - master.bytes / bench.rates[mode]))
            releases.append(1000 * released)
            found[name][mode] = {
                "attach_ms": Timed(1000 * attached),
                "of_it_copy_ms": Timed(1000 * copied),
                "bytes_over_rate_ms": Timed(1000 * master.bytes / bench.rates[mode]),
                "release_ms": Timed(1000 * released),
            }
    return {
        "models": found,
        "attach: ms beyond bytes / rate, pinned": Timed(max(beyond["pinned"])),
        "attach: ms beyond bytes / rate, pageable": Timed(max(beyond["pageable"])),
        "attach: ms of a release": Timed(max(releases)),
    }


def _attach_once(bench: Bench, card: ModelCard, master: Master) -> tuple[float, float, float]:
    """Seconds of attaching, of the copy alone, and of letting go."""
    lessor = Lessor([bench.device], CEILING)
    with lessor.lease(card.key, {bench.device.name: master.bytes}, lambda _: None):
        kept: list[Replica] = []
        attached = bench.seconds(lambda: kept.append(Replica(master, bench.device)))
        kept[0].stream()
        bench.device.reclaim()
        copied = bench.seconds(kept[0].whole)

        def release() -> None:
            kept.clear()
            bench.device.reclaim()

        return attached, copied, bench.seconds(release)


def residue(bench: Bench) -> Tree:
    """What leases leave behind, against what was there after two of them."""
    cards = [bench.card("XLM-R-large"), bench.card("Qwen3-0.6B")]
    masters = [Master(load(card)) for card in cards]
    floor = (0, 0, 0)
    worst, done = [0, 0, 0], 0
    for number in range(-2, bench.scale.leases):
        if bench.spent:
            break
        on_seat(bench, cards[number % 2], masters[number % 2], lambda seat, _: _one_forward(bench, seat))
        held = bench.device.memory()
        now = (held.allocated, held.reserved, bench.driver())
        if number < 0:
            floor = now
            continue
        worst = [max(most, here - was) for most, here, was in zip(worst, now, floor, strict=True)]
        done += 1
    names = ("residue: bytes allocated", "residue: bytes reserved", "residue: bytes of driver drift")
    return {"leases": done, **dict(zip(names, worst if done else [None] * 3, strict=True))}


def _one_forward(bench: Bench, seat: Seat) -> None:
    rows = rows_of(bench, [bench.scale.longest // 8] * 4)
    if not isinstance(seat.attempt(rows), np.ndarray):
        raise InterlockError("a small batch ran out of memory")


def throughput(bench: Bench) -> Tree:
    """Real tokens a second from texts to vectors, ours and theirs taking turns; loading is left out on both sides."""
    found: dict[str, Tree] = {}
    ratios: dict[str, list[float]] = {"chunks": [], "mixed": []}
    cosines: list[float] = []
    for name in ("XLM-R-large", "Qwen3-0.6B", "ModernBERT-base"):
        card = bench.card(name)
        for mix in ratios:
            if bench.spent:
                break
            texts = texts_of(bench, lengths_of(bench, mix, bench.scale.text_tokens, bench.scale.longest))
            one = on_seat(bench, card, Master(load(card)), lambda seat, _: _abab(bench, card, seat, texts))  # noqa: B023
            found[f"{name}, {mix}"] = one
            cosines.append(one["least_cosine"])
            ratios[mix].append(one["x_best"].value)
    return {
        "models": found,
        **{
            f"throughput: x sentence-transformers, {mix}": Timed(min(each)) if each else None
            for mix, each in ratios.items()
        },
        "throughput: least cosine to sentence-transformers": min(cosines, default=None),
    }


def _abab(bench: Bench, card: ModelCard, seat: Seat, texts: Sequence[str]) -> Tree:
    from sentence_transformers import SentenceTransformer

    peer = SentenceTransformer(
        str(card.snapshot.path),
        device=str(bench.device.torch),
        local_files_only=True,
        model_kwargs={"dtype": DTYPES[card.dtype]},
    )
    vectors: dict[str, Vectors] = {}

    def ours() -> None:
        store = stored(bench, card, texts)
        lengths = store.lengths(card.max_tokens)
        vectors["ours"] = np.empty((len(texts), card.dim), np.float32)
        for batch in plan(np.arange(len(store)), lengths, card.batch_tokens).batches:
            done = seat.attempt([store.row(int(row), card.max_tokens) for row in batch.rows])
            if not isinstance(done, np.ndarray):
                raise InterlockError(f"a batch ran out of memory: {done.message}")
            vectors["ours"][batch.rows] = done

    def theirs(size: int) -> float:
        def run() -> None:
            got = peer.encode(list(texts), batch_size=size, show_progress_bar=False)
            vectors["theirs"] = np.asarray(got, np.float32)

        return bench.seconds(run)

    ours()
    sweep = _swept(bench, theirs)
    best = min(sweep, key=lambda size: sweep[size])
    pairs = []
    for _ in range(bench.scale.repeats):
        pairs.append((bench.seconds(ours), theirs(best)))
        if bench.spent:
            break
    mine, other = (statistics.median(each) for each in zip(*pairs, strict=True))
    tokens = int(stored(bench, card, texts).lengths(card.max_tokens).sum())
    return {
        "texts": len(texts),
        "tokens": tokens,
        "rounds": len(pairs),
        "sizes_tried": list(sweep),
        "best_size": Timed(best),
        "interlock_tokens_per_s": Timed(tokens / mine),
        "sentence_transformers_tokens_per_s": Timed(tokens / other),
        "x_best": Timed(statistics.median(other / mine for mine, other in pairs)),
        "least_cosine": least_cosine(vectors["ours"], vectors["theirs"]),
    }


def _swept(bench: Bench, theirs: Callable[[int], float]) -> dict[int, float]:
    """Seconds by batch size, of those that fit under the ceiling; each size is warmed up first."""
    found: dict[int, float] = {}
    for size in bench.scale.sizes:
        try:
            theirs(size)
            found[size] = theirs(size)
        except Exception as error:
            if classify(error) is not Trouble.MEMORY:
                raise
            break
        finally:
            bench.device.trim()
    if not found:
        raise InterlockError("sentence-transformers fits under the ceiling at no batch size")
    return found


def least_cosine(found: Vectors, wanted: Vectors) -> float:
    """Of the rows that have a vector."""
    some = np.isfinite(found).all(1)
    one, other = found[some].astype(np.float64), wanted[some].astype(np.float64)
    if not len(one):
        return 1.0
    return float(((one * other).sum(1) / np.linalg.norm(one, axis=1) / np.linalg.norm(other, axis=1)).min())


def ladder(bench: Bench) -> Tree:
    """The rungs that a falling ceiling, told and untold, makes the engine take, and what they do to the vectors."""
    deep = None if bench.real else _DEEP
    card = bench.card("XLM-R-large", shape=deep)
    masters = Masters(16 << 30)
    lengths = [bench.scale.long_row, bench.scale.long_row // 2, *([bench.scale.long_row // 8] * 4)]
    texts = texts_of(bench, lengths)
    (wanted,), _ = compute(bench, [card], texts, masters, budget=sum(lengths))
    tries: list[Tree] = []
    for pressure, fallback in ((_told, True), (_untold, True), (_untold, False)):
        for step in range(bench.scale.steps + 1):
            if bench.spent:
                break
            arguments = pressure(bench, card, lengths, step / bench.scale.steps)
            (vectors,), told = compute(
                bench, [card], texts, masters, budget=sum(lengths), cpu_fallback=fallback, **arguments
            )
            tries.append(_climbed(pressure.__name__.strip("_"), fallback, vectors, wanted, told))
    bench.device.wall(CEILING)
    rungs = {rung for each in tries for rung in each["rungs"]}
    never = [rung.value for rung in Rung if rung.value not in rungs and rung is not Rung.RELOCATE]
    streamed = streaming(bench, card)
    return {
        "tries": tries,
        "never_used": never,
        "relocate": "needs a second GPU",
        "streaming": streamed,
        "ladder: rungs never used": len(never) if tries else None,
        "ladder: least cosine to the undisturbed": min((each["least_cosine"] for each in tries), default=None),
        "ladder: streamed / max(compute, copy), worst": Timed(max(each["x_limit"].value for each in streamed.values())),
    }


_DEEP = {"hidden_size": 128, "intermediate_size": 512, "num_hidden_layers": 28}
"""A rehearsal's model whose weights are large beside a segment of the allocator."""


def _told(bench: Bench, card: ModelCard, lengths: Sequence[int], share: float) -> Tree:
    """A run that knows its ceiling: from all that it needs, down to nothing at all."""
    return {"ceiling": RESERVE + _lowered(bench, card, lengths, share)}


def _untold(bench: Bench, card: ModelCard, lengths: Sequence[int], share: float) -> Tree:
    """A run that counts on the ceiling while its allocator is refused what the law says is there."""
    low = _lowered(bench, card, lengths, share)
    return {"attached": lambda: bench.device.wall(low)}


def _lowered(bench: Bench, card: ModelCard, lengths: Sequence[int], share: float) -> int:
    """A ceiling of the device: what is in use now, and what remains of the need when `share` of it is taken away."""
    bench.device.reclaim()
    law = law_for(card, bench.device.kind)
    need = law.weights + int(1.1 * law.activations(sum(lengths), max(lengths)))
    return bench.device.memory().occupied + int(need * (1 - share))


def _climbed(pressure: str, fallback: bool, vectors: Vectors, wanted: Vectors, told: Sequence[ev.AnyEvent]) -> Tree:
    rungs = [event.rung for event in told if isinstance(event, ev.Mitigated)]
    parked = sum(isinstance(event, ev.RowParked) for event in told)
    refused = [event.reason for event in told if isinstance(event, ev.PassFailed)]
    return {
        "pressure": pressure,
        "cpu_fallback": fallback,
        "rungs": sorted({str(rung) for rung in rungs} | ({Rung.PARK.value} if parked else set())),
        "streamed": any(event.streamed for event in told if isinstance(event, ev.ModelAttached)),
        "parked": parked,
        "refused": len(refused),
        "rows": int(np.isfinite(vectors).all(1).sum()),
        "least_cosine": least_cosine(vectors, wanted),
        "largest_difference": float(np.nanmax(np.abs(vectors - wanted), initial=0.0)),
    }


def streaming(bench: Bench, card: ModelCard) -> dict[str, Tree]:
    """A forward with its layers streamed, against the longer of its computation and the copy of the layers."""
    master = Master(load(card))
    unpin = [pin(flat, bench.device.torch) for flat in master.flats.values()]
    try:
        return on_seat(bench, card, master, lambda seat, _: _streamed(bench, seat))
    finally:
        bench.sync()
        for undo in unpin:
            undo()


def _streamed(bench: Bench, seat: Seat) -> dict[str, Tree]:
    layers = sum(size_of(layer) for layer in layers_of(seat.attached.network))
    copied = layers / bench.rates["pinned"]
    found = {}
    for tokens in bench.scale.stream_tokens:
        rows = rows_of(bench, [tokens // 4] * 4)
        whole = _forward_seconds(bench, seat, rows)
        seat.stream()
        streamed = _forward_seconds(bench, seat, rows)
        seat.grow_back()
        found[f"{tokens} tokens"] = {
            "layer_bytes": layers,
            "compute_ms": Timed(1000 * whole),
            "copy_ms": Timed(1000 * copied),
            "streamed_ms": Timed(1000 * streamed),
            "x_limit": Timed(streamed / max(whole, copied)),
        }
    return found


def _forward_seconds(bench: Bench, seat: Seat, rows: Sequence[Ids]) -> float:
    def forward() -> None:
        with bench.device.computing():
            seat.encoder.encode(rows)

    return _elapsed(bench, forward)


SECTIONS: Mapping[str, tuple[float, Callable[[Bench], Tree]]] = {
    "probes": (15, probes),
    "law": (130, law),
    "plans": (80, plans),
    "attach": (60, attach),
    "residue": (45, residue),
    "throughput": (90, throughput),
    "ladder": (70, ladder),
}
"""Seconds that a section may take, and what it does; what one leaves over the next ones have too."""


@dataclass
class Report:
    """The result as it grows; written after every section, so that what was measured is never lost."""

    about: Tree
    timed: bool
    file: Path
    sections: dict[str, Tree] = field(default_factory=dict)
    figures: dict[str, Any] = field(default_factory=dict)
    lock: threading.RLock = field(default_factory=threading.RLock)

    def add(self, name: str, found: Mapping[str, Any]) -> None:
        with self.lock:
            self.figures |= {goal: value for goal, value in found.items() if goal in GOALS}
            self.sections[name] = {key: value for key, value in found.items() if key not in GOALS}
            self.write()

    def write(self, **more: object) -> None:
        with self.lock:
            machine.keep({**self.about, **more, **self._told()}, self.file)

    def goals(self) -> dict[str, Tree]:
        figures = self._plain(self.figures)
        return {name: goal.told(figures.get(name)) for name, goal in GOALS.items()}

    @property
    def failed(self) -> bool:
        return any("error" in found for found in self.sections.values()) or any(
            told["met"] is False for told in self.goals().values()
        )

    def _told(self) -> Tree:
        return {"goals": self.goals(), "sections": self._plain(self.sections)}

    def _plain(self, value: Any) -> Any:
        """Without figures of time where there is no real device."""
        if isinstance(value, Timed):
            return value.value
        if isinstance(value, dict):
            kept = {name: each for name, each in value.items() if self.timed or not isinstance(each, Timed)}
            return {name: self._plain(each) for name, each in kept.items()}
        return [self._plain(each) for each in value] if isinstance(value, list) else value


def measure(bench: Bench, report: Report, wanted: Sequence[str]) -> None:
    """All sections that are wanted, each within its time; one that fails leaves the others theirs."""
    began = time.monotonic()
    for name in CONFIGS:
        bench.card(name)
    bench.device.wall(CEILING)
    allowed = time.monotonic()
    for name, (budget, section) in SECTIONS.items():
        allowed += budget
        if name not in wanted:
            continue
        bench.until = min(allowed, began + WHOLE)
        print(f"{name} ...", flush=True)
        try:
            report.add(name, section(bench))
        except Exception as error:
            report.add(name, {"error": f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"})
        bench.device.wall(CEILING)
        bench.device.reclaim()


def show(report: Report) -> None:
    machine.table(
        ["goal", "figure", "limit", ""],
        [
            [name, "-" if told["figure"] is None else f"{told['figure']:.6g}", told["limit"], _verdict(told["met"])]
            for name, told in report.goals().items()
        ],
    )
    for name, found in report.sections.items():
        if "error" in found:
            print(f"{name} failed: {found['error']}")


def _verdict(met: bool | None) -> str:
    return "not measured" if met is None else "met" if met else "MISSED"


def device_of(options: argparse.Namespace) -> Device:
    """Raises UnavailableError without a GPU to measure on."""
    if options.rehearse:
        return simulated("sim:1xT4")[0]
    if not torch.cuda.is_available():
        raise UnavailableError(f"no GPU to measure on: {why_no_gpu()}; --rehearse proves the script without one")
    return CudaDevice(0)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=RESULT, metavar="PATH")
    parser.add_argument("--rehearse", action="store_true", help="on a simulated T4, small models; no figure of time")
    parser.add_argument("--only", nargs="+", choices=list(SECTIONS), default=list(SECTIONS), metavar="SECTION")
    options = parser.parse_args()
    try:
        device = device_of(options)
    except UnavailableError as error:
        print(f"gpu_acceptance: {error}", file=sys.stderr)
        return error.exit_code
    wanted = ["probes", *options.only]
    with tempfile.TemporaryDirectory(prefix="interlock-acceptance-") as made:
        os.environ["INTERLOCK_CACHE"] = str(Path(made) / "cache")
        bench = Bench(device, Path(made), SMALL if options.rehearse else REAL)
        report = Report(_about(device), bench.real, options.out)
        if bench.real:
            _end_at_last(report)
        measure(bench, report, wanted)
    show(report)
    print(f"written to {options.out}")
    return ExitCode.FAILED if report.failed else ExitCode.COMPLETED


def _about(device: Device) -> Tree:
    about = {name: value for name, value in machine.describe().items() if name != "load_before"}
    return {
        "device_kind": device.kind,
        "device": device.label,
        "ceiling_bytes": CEILING,
        "machine": {**about, **describe_host([device])},
    }


def _end_at_last(report: Report) -> None:
    """Whatever hangs: what there is is written, and the process is gone before the nine minutes are."""

    def end() -> None:
        report.write(cut_off=True)
        os._exit(ExitCode.FAILED)

    timer = threading.Timer(LAST, end)
    timer.daemon = True
    timer.start()


if __name__ == "__main__":
    sys.exit(main())
