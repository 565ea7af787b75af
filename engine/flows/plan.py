"""What a run would do, without doing it: passes, batches, tokens and predicted memory, and no weights loaded."""

import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from interlock.engine.compute import reuse
from interlock.engine.compute.context import REAL
from interlock.engine.compute.grid import Layout, lay_out
from interlock.engine.compute.memory_needs import MemoryPlanner, rooms, too_small
from interlock.engine.compute.schedule import Assignment, DeviceRoom, Schedule, next_placement
from interlock.engine.corpus.collections import discover, overlooked
from interlock.engine.corpus.corpus import Corpus, Rows
from interlock.engine.corpus.features import features_of
from interlock.engine.corpus.reading import Beside, read_and_tokenise
from interlock.engine.corpus.tokens import TokenStore
from interlock.engine.errors import UsageError
from interlock.engine.flows import gaps
from interlock.engine.flows.opening import check, form_of, without_effect
from interlock.engine.gpu.cpu import CpuDevice
from interlock.engine.gpu.device import RESERVE, Device
from interlock.engine.gpu.devices import choose as choose_devices
from interlock.engine.gpu.devices import unused_gpus
from interlock.engine.gpu.lease import Lessor
from interlock.engine.gpu.memory import HEAP_FACTOR, Calibration, Law
from interlock.engine.gpu.sim import CONTEXT
from interlock.engine.models.assets import Policy
from interlock.engine.models.attention import why_padded
from interlock.engine.models.card import ModelCard
from interlock.engine.models.checkpoint import packable
from interlock.engine.models.configurations import Found, configurations
from interlock.engine.models.precision import T4, Capability, precision_for
from interlock.engine.models.registry import ModelSpec, check_beside, extended, vouched
from interlock.engine.models.roster import (
    cards_of,
    delivered_dim,
    entry_of,
    fewest_processors,
    lowest_capability,
    token_key,
    tokenisings,
)
from interlock.engine.models.sdpa import Kernel, kernel_for
from interlock.engine.models.trace import law_of_config_only
from interlock.engine.models.weights import DTYPES
from interlock.engine.record.inputs import as_input
from interlock.engine.record.runs import paces
from interlock.engine.settings import Configuration, RunSettings
from interlock.engine.targets import mirror
from interlock.engine.targets.delivery import check_projectable, other_models
from interlock.engine.targets.formats import file_bytes
from interlock.engine.vectors.form import FUSED, VectorForm, stored_bytes
from interlock.engine.vectors.fusion import Fusion


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
    seconds: float | None = None
    warning: str = ""
    """Why it would be computed on the CPU although there are GPUs."""
    long: LongTexts = LongTexts()

    @property
    def batches(self) -> int:
        return sum(share.batches for share in self.layout.planned)

    @property
    def rows(self) -> int:
        return sum(share.rows for share in self.layout.planned)

    @property
    def tokens(self) -> int:
        return sum(share.tokens for share in self.layout.planned)

    @property
    def token_bytes(self) -> int:
        """What the vectors of its tokens would take."""
        return sum(share.token_bytes for share in self.layout.planned)

    @property
    def truncated(self) -> int:
        return sum(share.truncated for share in self.layout.planned)

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
    fused_dim: int | None
    file_bytes: int
    """Bytes of the dense vectors of a chunk in all files, before a table is compressed."""
    stored_bytes: int
    """Bytes of these in a store, whether one is asked for or not; 0 where no store keeps them so."""
    overlooked: Sequence[str] = ()
    """What is there or asked for and not used: files beside the chunk files, GPUs, and --dim."""


@dataclass(frozen=True)
class ModelForecast:
    """What one model of the registry would take, in bytes and tokens; no `law` where no configuration is to be had.

    `batch_bytes` is the peak of a batch of `batch_tokens` with rows as long as the model allows, `most_tokens` the most
    that one forward may have under the ceiling.
    """

    key: str
    source: str
    dtype: str
    longest: int
    law: Law | None
    batch_tokens: int = 0
    batch_bytes: int = 0
    most_tokens: int = 0


def survey(configuration: Configuration) -> tuple[list[ModelForecast], int, str]:
    """Predict each model of the registry by its configuration; add the ceiling in bytes and the kind of device meant.

    Where there is no GPU and none is named, a T4 is meant: that is what is planned ahead.
    """
    settings = configuration.settings
    devices = choose_devices(settings.devices, settings.faults)
    kind, capability = devices[0].kind, lowest_capability(devices) or T4
    kind = "cuda" if settings.devices == "auto" and kind == "cpu" else kind
    specs = [vouched(spec, settings.allow_pickle) for spec in extended(configuration.models).values()]
    found = configurations(specs, Policy(offline=settings.offline))
    least, ceiling = (capability, fewest_processors(devices)), settings.ceiling_of(kind)
    surveyed = [_surveyed(*each, kind, *least, ceiling) for each in zip(specs, found, strict=True)]
    return surveyed, ceiling, kind


def _surveyed(
    spec: ModelSpec, found: Found, kind: str, capability: Capability, processors: int, ceiling: int
) -> ModelForecast:
    config = found.config
    dtype = spec.dtype.get(kind) or (precision_for(config or {}, capability) if kind == "cuda" else "float32")
    longest = spec.max_tokens or int(str((config or {}).get("max_position_embeddings") or 512))
    if config is None:
        return ModelForecast(spec.key, found.source, dtype, longest, None)
    packed = packable(config) or not why_padded(config, spec.attention)
    kernel = kernel_for(config, dtype, capability, packed=packed) if kind == "cuda" else Kernel.HOST
    law = law_of_config_only(config, kind, DTYPES[dtype], spec.attention, kernel, spec.kind)
    tokens = spec.tokens_for(kind, processors)
    known = Calibration(scale=HEAP_FACTOR, margin=0.0) if kind == "cpu" else Calibration()
    room = ceiling - law.weights - (0 if kind == "cpu" else CONTEXT + RESERVE)
    row = min(longest, tokens)
    batch = law.weights + known.activations(law, tokens, row)
    most = known.most_tokens(law, longest, room)
    return ModelForecast(spec.key, found.source, dtype, longest, law, tokens, batch, most)


def forecast(chunks: Path, configuration: Configuration, stopped: Callable[[], bool] = lambda: False) -> Forecast:
    """Plan a run of `chunks` by its files, models and devices; the run's directory is not looked at, and of a store
    only which points it has.

    Raises Stopped once `stopped` says so, UsageError for chunks or settings that no run can have, UnavailableError for
    a model or device that is not there, unless models may be missing; a pass that fits nowhere says why itself.
    """
    settings = configuration.settings
    check(settings, chunks)
    registry = extended(configuration.models)
    specs = settings.members(registry)
    check_beside(settings.chunk_sparse, specs)
    collections = discover(chunks, settings.collections)
    devices = choose_devices(settings.devices, settings.faults)
    policy = Policy(offline=True, pickles=settings.allow_pickle, forbids="a plan downloads nothing")
    models = (
        gaps.resolved(REAL, specs, policy, devices, lambda _: None, allowed=True)
        if settings.allow_missing
        else gaps.Models(dict(enumerate(cards_of(specs, policy, devices, lambda _: None))), {})
    )
    specs, cards = [specs[number] for number in models.cards], [*models.cards.values()]
    dims = [delivered_dim(spec, card, settings.dim) for spec, card in zip(specs, cards, strict=True)]
    source = reuse.check(settings.reuse) if settings.reuse else None
    with tempfile.TemporaryDirectory(prefix="interlock-plan-") as scratch:
        beside = Beside(features=features_of) if settings.chunk_sparse else Beside()
        corpus, stores = read_and_tokenise(
            collections, tokenisings(cards), Path(scratch), lambda _: None, stopped, beside
        )
        layouts, longs = [], []
        for number, card in models.cards.items():
            tokens, reused = stores[token_key(card)], _reusable(source, card, corpus)
            layouts.append(lay_out(number, card, tokens, corpus.rows, reused))
            longs.append(_long(card, tokens, reused))
    dense = [card.key for card in cards if card.kind == "dense"]
    form, fusion = form_of(settings), Fusion(settings.fusion)
    members = dict(zip(dense, dims, strict=False))
    kept = form.widths(fusion, members)
    sizes = (
        file_bytes(settings.export, form, fusion, members),
        stored_bytes(kept, form.quantise),
    )
    passes, budget = _forecasts(layouts, devices, settings)
    passes = [replace(each, long=long) for each, long in zip(passes, longs, strict=True)]
    lacking = [(card.key, reuse.lacking(source, as_input(entry_of(card, 1.0, card.dim)))) for card in cards]
    unused = [
        *(f"planned without a model: {why}" for why in models.missing.values()),
        *(f"--reuse {settings.reuse}: no {what} of {key} there, computing it anew" for key, what in lacking if what),
        *without_effect(configuration, specs),
        *overlooked(chunks, collections),
        *_too_few(corpus, form),
        *unused_gpus(settings.devices, devices),
        *filter(None, (mirror.unplanned(settings.qdrant, rows) for rows in corpus.rows if settings.qdrant)),
        *filter(None, (_refusing(settings.qdrant, rows, cards) for rows in corpus.rows if settings.qdrant)),
    ]
    return Forecast(corpus.rows, passes, budget, kept.get(FUSED), *sizes, unused)


def _refusing(store: Path, rows: Rows, cards: Sequence[ModelCard]) -> str:
    models = {card.key: entry_of(card, 1.0, card.dim).fingerprint for card in cards if "dense" in card.outputs}
    return other_models(store / rows.collection.qdrant_collection, models)


def _too_few(corpus: Corpus, form: VectorForm) -> Iterator[str]:
    """Tell of collections that a run would refuse to project, unless their store has been projected before."""
    for rows in corpus.rows:
        try:
            check_projectable(rows, form, None)
        except UsageError as error:
            yield str(error)


def _reusable(source: reuse.Earlier | None, card: ModelCard, corpus: Corpus) -> reuse.Mask:
    mask = np.zeros(len(corpus.digests), np.bool_)
    for rows, _ in reuse.available(source, as_input(entry_of(card, 1.0, card.dim)), corpus.digests, lambda _: None):
        mask[rows] = True
    return mask


def _long(card: ModelCard, tokens: TokenStore, reused: reuse.Mask) -> LongTexts:
    """What is longer than the model's limit of the texts that are not reused."""
    over = tokens.truncated(card.max_tokens)[~reused]
    return LongTexts(int((over > 0).sum()), int(over.sum()))


def _forecasts(
    layouts: Sequence[Layout], devices: Sequence[Device], settings: RunSettings
) -> tuple[list[PassForecast], int]:
    """Each pass as it would be leased if it had every device to itself, and what may be leased of the first."""
    host = devices[0] if devices[0].kind == "cpu" else CpuDevice()
    gpus = [device for device in devices if device is not host]
    lessor = Lessor([*gpus, host], settings.ceiling, settings.host_ceiling)
    planner, free = MemoryPlanner(devices, host), rooms(devices, host, lessor, cpu_fallback=settings.cpu_fallback)
    known, found = paces(settings.out, devices[0].kind), []
    for each in (_forecast(layout, devices[0], planner, free, settings) for layout in layouts):
        pace = known.get((each.layout.card.key, each.layout.card.dtype))
        seconds = each.tokens / pace / max(1, len(each.devices)) if pace else None if each.rows else 0.0
        short = too_small(planner.of(each.layout), gpus, lessor) if each.devices == (host.name,) else None
        warning = f"{each.layout.card.key} {short[0]}: it is computed on the CPU; {short[1]}" if short else ""
        found.append(replace(each, seconds=seconds, warning=warning))
    return found, max(0, free[0].room)


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
    return PassForecast(layout, law.weights, predicted, placed.devices, placed.streamed, refused)
