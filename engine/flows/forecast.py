"""What a plan would take, without doing it: batches, tokens, predicted memory and time, and no weights loaded."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np

from interlock.engine.compute import reuse
from interlock.engine.compute.cluster.pricing import ClusterWork
from interlock.engine.compute.context import REAL, MemoryPlanner, rooms
from interlock.engine.compute.instance import first_calibration
from interlock.engine.compute.job import Layout
from interlock.engine.compute.schedule import Assignment, DeviceRoom, MemoryNeed, Schedule, budgets, next_placement
from interlock.engine.corpus.corpus import Corpus, Rows
from interlock.engine.corpus.places import release
from interlock.engine.errors import UsageError
from interlock.engine.flows.opening import form_of, schedule_of
from interlock.engine.flows.plan import PlannedPass, RunPlan, read, requested, resolve, sized
from interlock.engine.gpu.cpu import CpuDevice
from interlock.engine.gpu.device import Device
from interlock.engine.gpu.devices import choose as choose_devices
from interlock.engine.gpu.lease import Lessor, too_small
from interlock.engine.models.assets import Policy
from interlock.engine.models.card import ModelCard
from interlock.engine.models.roster import illegible
from interlock.engine.record import atomic, rundir
from interlock.engine.record.events import AnyEvent, RecordsRead, Warned
from interlock.engine.record.facts import joined
from interlock.engine.record.inputs import as_input
from interlock.engine.record.words import human_bytes
from interlock.engine.settings import Configuration, RunSettings
from interlock.engine.standing.closed import paces
from interlock.engine.targets import mirror
from interlock.engine.targets.files.formats import file_bytes
from interlock.engine.targets.stores import check_projectable, other_models
from interlock.engine.vectors.fusion import Fusion
from interlock.engine.vectors.precision import FUSED, stored_bytes

TOTALS = ("batches", "rows", "tokens", "token_bytes", "truncated")
"""What of a pass is the sum over its collections."""


@dataclass(frozen=True)
class LongTexts:
    """Texts that are longer than a model's limit: how many, and their tokens beyond it."""

    texts: int = 0
    beyond: int = 0


@dataclass(frozen=True)
class PassForecast:
    """One model's pass: where it would be computed, `streamed` or not, or why it is refused; and `seconds` at the pace
    of an earlier run of the model on the same kind of device, where there was one."""

    layout: Layout
    weights_bytes: int
    predicted_bytes: int
    devices: tuple[str, ...]
    streamed: bool
    refused: str
    batches: int
    rows: int
    tokens: int
    token_bytes: int
    """What the vectors of its tokens would take."""
    truncated: int
    seconds: float | None = None
    warning: str = ""
    """Why it would be computed on the CPU although there are GPUs."""
    long: LongTexts = LongTexts()
    most_tokens: tuple[int, int] | None = None
    """The tokens that a forward may have on a GPU while the model is alone there, and beside the others of a shared
    run; None where it would be on none of them, or streamed."""

    @property
    def place(self) -> str:
        """Where it would be computed, in a word."""
        return "does not fit" if self.refused else ",".join(self.devices) + (" streamed" if self.streamed else "")


@dataclass(frozen=True)
class Forecast:
    """What `interlock plan` shows."""

    collections: list[Rows]
    passes: list[PassForecast]
    budget_bytes: int
    margin_bytes: int
    fused_dim: int | None
    file_bytes: int
    """Bytes of the dense vectors of a chunk in all files, before a table is compressed."""
    stored_bytes: int
    """Bytes of these in a store, whether one is asked for or not."""
    overlooked: Sequence[str] = ()
    """What is there or asked for and not used: files beside the chunk files, GPUs, and --dim."""
    reading_seconds: float = 0.0
    """What it took to read and tokenise the chunks, as a run has to."""
    to_store: bool = False
    compact: bool = False

    @property
    def work(self) -> ClusterWork:
        """What its passes are for a cluster."""
        seconds = [each.seconds for each in self.passes]
        chunks = sum(rows.chunks for rows in self.collections)
        return ClusterWork(
            sum(each.rows for each in self.passes),
            sum(each.batches for each in self.passes),
            self.reading_seconds,
            None if None in seconds else sum(filter(None, seconds)),
            sum(4 * each.layout.card.dim * each.rows + each.token_bytes for each in self.passes),
            sum(each.weights_bytes for each in self.passes),
            chunks * (self.file_bytes + self.stored_bytes * self.to_store),
        )


def forecast(
    chunks: Path,
    configuration: Configuration,
    stopped: Callable[[], bool] = lambda: False,
    reached: Callable[[str, int], object] = lambda *_: None,
) -> Forecast:
    """Plan a run of `chunks` by its files, models and devices; of the run's directory is looked at only whether one to
    be resumed is there, and of a store only which points it has. `reached` hears about once a second how many
    records of a collection were read.

    Raises Stopped once `stopped` says so, UsageError for chunks or settings that no run can have, UnavailableError for
    a model or device that is not there, unless models may be missing; a pass that fits nowhere says why itself.
    """
    request = requested(chunks, configuration)
    settings = request.settings
    if settings.resume and settings.run_id:
        begin = configuration.origins["roster"] != "default"
        rundir.choose(settings.out, settings.run_id, chunks, resume=True, begin=begin)
    devices = choose_devices(settings.devices, settings.faults)
    policy = Policy(offline=True, pickles=settings.allow_pickle, forbids="a plan downloads nothing")
    said = list[str]()

    def hear(event: AnyEvent) -> None:
        if isinstance(event, Warned):
            said.append(event.message)
        elif isinstance(event, RecordsRead):
            reached(event.collection, event.records)

    models = resolve(REAL, request.specs, policy, devices, hear, allowed=settings.allow_missing)
    models = sized(request, models, devices, REAL.laws)
    roster, source = request.roster(models), reuse.check(settings.reuse) if settings.reuse else None

    def reusable(number: int, card: ModelCard, corpus: Corpus) -> reuse.Mask:
        mask = np.zeros(len(corpus.digests), np.bool_)
        for rows, _ in reuse.available(source, as_input(roster[number]), corpus.digests, lambda _: None):
            mask[rows] = True
        return mask

    with atomic.scratch("interlock-plan-") as scratch:
        began = time.monotonic()
        plan = read(request, models, roster, scratch, hear, stopped)
        took, plan = time.monotonic() - began, plan.laid_out(reusable)
        longs = [_long(each) for each in plan.passes]
        passes, budget = _forecasts([each.layout for each in plan.passes], devices, settings)
    passes = [replace(each, long=long) for each, long in zip(passes, longs, strict=True)]
    had = [roster[number] for number in models.cards]
    dense = [entry for entry in had if entry.kind == "dense"]
    lacking = [(entry.model, reuse.lacking(source, as_input(entry))) for entry in had]
    members, prints = {each.model: each.dim for each in dense}, {each.model: each.fingerprint for each in dense}
    stored = [(settings.qdrant, rows) for rows in plan.corpus.rows if settings.qdrant]
    texts = max(rows.distinct for rows in plan.corpus.rows)
    form, fusion = form_of(settings, members, texts), Fusion(settings.fusion)
    kept = form.widths(fusion, members)
    unused = [
        *said,
        *(f"planned without a model: {why}" for why in models.missing.values()),
        *(
            f"--reuse {settings.reuse}: no {what} of {model} there, computing it anew"
            for model, what in lacking
            if what
        ),
        *request.unused(devices),
        *illegible(plan.corpus.rows, plan.cards),
        *_too_few(plan),
        *filter(None, (mirror.unplanned(store, rows) for store, rows in stored)),
        *filter(None, (other_models(store / rows.collection.qdrant_collection, prints) for store, rows in stored)),
    ]
    sizes = file_bytes(settings.export, form, fusion, members), stored_bytes(kept, form.quantise)
    told = plan.corpus.rows, passes, budget, settings.margin, kept.get(FUSED)
    return Forecast(*told, *sizes, unused, took, bool(settings.qdrant), settings.compact)


def _too_few(plan: RunPlan) -> Iterator[str]:
    """Tell of collections that a run would refuse to project, unless their store has been projected before."""
    for rows in plan.corpus.rows:
        try:
            check_projectable(rows, form_of(plan.settings, texts=rows.distinct), None)
        except UsageError as error:
            yield str(error)


def _long(planned: PlannedPass) -> LongTexts:
    """What is longer than the model's limit of the texts that are not reused."""
    layout, texts, beyond = planned.layout, 0, 0
    for batch in layout.batches:
        over = planned.tokens.truncated(layout.card.max_tokens, batch.rows)
        texts, beyond = texts + int(np.count_nonzero(over)), beyond + int(over.sum())
    release(planned.tokens.full_lengths)
    return LongTexts(texts, beyond)


def _forecasts(
    layouts: Sequence[Layout], devices: Sequence[Device], settings: RunSettings
) -> tuple[list[PassForecast], int]:
    """Each pass as it would be leased if it had every device to itself, and what may be leased of the first."""
    host = devices[0] if devices[0].kind == "cpu" else CpuDevice()
    gpus = [device for device in devices if device is not host]
    lessor = Lessor([*gpus, host], *settings.limits)
    planner, free = MemoryPlanner(devices, host), rooms(devices, host, lessor, cpu_fallback=settings.cpu_fallback)
    known, found = paces(settings.out, devices[0].kind), []
    beside = _side_by_side(layouts, planner, free, settings)
    shared = schedule_of(settings) is Schedule.SHARED
    for number, layout in enumerate(layouts):
        each = _forecast(layout, devices[0], planner, free, settings)
        pace = known.get((each.layout.card.key, each.layout.card.dtype))
        seconds = each.tokens / pace / max(1, len(each.devices)) if pace else None if each.rows else 0.0
        need = planner.of(each.layout)
        short = too_small(need.whole, need.streamed, gpus, lessor) if each.devices == (host.name,) else None
        warning = f"{each.layout.card.key} {short.why}: it is computed on the CPU; {short.remedy}" if short else ""
        warning = warning or (_streamed(planner.of(layout), gpus, lessor) if each.streamed else "")
        have = beside.get(number, {})
        if shared and set(have) == {host.name} and not short:
            others = joined(other.card.key for other in layouts if other is not layout)
            warning = f"{layout.card.key} finds no room beside {others}: it is computed on the CPU until a GPU has room"
            each = replace(each, devices=(host.name,), streamed=False)
        most = None
        if len(beside) > 1 and have and not each.streamed and host.name not in (*each.devices, *have):
            law, longest = planner.law(layout.card, gpus[0]), max(batch.longest for batch in layout.batches)
            fits = partial(first_calibration(gpus[0]).most_tokens, law, longest)
            most = fits(free[0].room - law.weights), fits(min(have.values()) - law.weights)
        found.append(replace(each, seconds=seconds, warning=warning, most_tokens=most))
    return found, max(0, free[0].room)


def _streamed(need: MemoryNeed, gpus: Sequence[Device], lessor: Lessor) -> str:
    """Say what a ceiling costs that keeps a model's weights off a GPU which has room for them; empty where none has."""
    best = max(gpus, key=lambda gpu: gpu.room(gpu.total))
    if need.whole > best.room(best.total) - lessor.margin:
        return ""
    tenths = -(-10 * (lessor.ceiling + need.whole - lessor.budget(best)) >> 30)  # of a GiB, rounded up
    under = f"under --ceiling {human_bytes(lessor.ceiling)}"
    return f"{need.model} is streamed {under}, which is slower: raise it to {tenths / 10:g}GiB to hold its weights"


def _side_by_side(
    layouts: Sequence[Layout], planner: MemoryPlanner, free: Sequence[DeviceRoom], settings: RunSettings
) -> dict[int, dict[str, int]]:
    """The bytes by device that models have which a shared run begins with side by side: on the CPU those for which
    GPUs have no room beside the others."""
    if not any(device.is_gpu for device in free):
        return {}
    left, needs = [range(len(layout.batches)) for layout in layouts], [planner.of(layout) for layout in layouts]
    now = next_placement(Schedule.SHARED, left, needs, free, 0, None, cpu_fallback=settings.cpu_fallback)
    placed = now.assignments if now else ()
    least = [{name: planner.least(layouts[each.model_pass], each, name) for name in each.devices} for each in placed]
    return {each.model_pass: had for each, had in zip(placed, budgets(least, free), strict=True)}


def _forecast(
    layout: Layout, device: Device, needs: MemoryPlanner, rooms: Sequence[DeviceRoom], settings: RunSettings
) -> PassForecast:
    law = needs.law(layout.card, device)
    predicted = needs.widest(layout, device)
    found = next_placement(
        Schedule.EXCLUSIVE, [[0]], [needs.of(layout)], rooms, 0, None, cpu_fallback=settings.cpu_fallback
    )
    assert found is not None, "one batch is left"
    placed, refused = found.assignments[0] if found.assignments else Assignment(0, (), ()), found.refused.get(0, "")
    totals = (sum(getattr(share, name) for share in layout.planned) for name in TOTALS)
    return PassForecast(layout, law.weights, predicted, placed.devices, placed.streamed, refused, *totals)
