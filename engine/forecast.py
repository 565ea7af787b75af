"""What a run would do, without doing it: passes, batches, tokens and predicted memory, and no weights loaded."""

import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from engine.config import Configuration
from engine.errors import UnavailableError
from engine.gpu.device import RESERVE, Device
from engine.gpu.devices import choose as choose_devices
from engine.gpu.lease import Lessor
from engine.gpu.memory import HEAP_FACTOR, Calibration, Law
from engine.gpu.sim import CONTEXT
from engine.intake.collections import discover
from engine.intake.corpus import Corpus, Rows
from engine.intake.reading import read_and_tokenise
from engine.models.assets import Policy, configuration_of
from engine.models.card import ModelCard
from engine.models.registry import ModelSpec, extended, find
from engine.models.roster import as_input, cards_of, delivered_dim, entry_of, token_key, tokenisings
from engine.models.trace import law_for, law_of_config_only
from engine.models.weights import DTYPES
from engine.outlet.fusion import Fusion, fused_width
from engine.passes import reuse
from engine.passes.grid import Layout, lay_out
from engine.passes.reuse import Mask
from engine.passes.seat import first_calibration


@dataclass(frozen=True)
class PassForecast:
    """One model's pass: `fits` is empty, or says why no lease would be granted."""

    layout: Layout
    weights_bytes: int
    predicted_bytes: int
    fits: str


@dataclass(frozen=True)
class Forecast:
    """What `interlock plan` shows."""

    collections: list[Rows]
    passes: list[PassForecast]
    budget_bytes: int
    fused_dim: int | None


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
    """Every model of the registry by its configuration alone, the ceiling in bytes, and the kind of device meant.

    Where there is no GPU and none is named, a GPU in float16 is meant: that is what is planned ahead.
    """
    settings = configuration.settings
    kind = choose_devices(settings.devices, settings.faults)[0].kind
    kind = "cuda" if settings.devices == "auto" and kind == "cpu" else kind
    policy = Policy(offline=settings.offline)
    registry = extended(configuration.models).values()
    return [_surveyed(spec, policy, kind, settings.ceiling) for spec in registry], settings.ceiling, kind


def _surveyed(spec: ModelSpec, policy: Policy, kind: str, ceiling: int) -> ModelForecast:
    dtype = spec.dtype.get(kind, "float32")
    found = configuration_of(spec, policy)
    longest = spec.max_tokens or int(str((found[0] if found else {}).get("max_position_embeddings") or 512))
    if found is None:
        return ModelForecast(spec.key, "not to be had", dtype, longest, None)
    law = law_of_config_only(found[0], kind, DTYPES[dtype], spec.attention)
    tokens = spec.gpu_batch_tokens if kind == "cuda" else spec.batch_tokens
    known = Calibration(scale=HEAP_FACTOR, margin=0.0) if kind == "cpu" else Calibration()
    room = ceiling - law.weights - (0 if kind == "cpu" else CONTEXT + RESERVE)
    row = min(longest, tokens)
    batch = law.weights + known.activations(law, tokens, row)
    return ModelForecast(spec.key, found[1], dtype, longest, law, tokens, batch, known.most_tokens(law, longest, room))


def forecast(chunks: Path, configuration: Configuration) -> Forecast:
    """Plan a run of `chunks`. Raises what the run itself would raise before it computes."""
    settings = configuration.settings
    specs = find(extended(configuration.models), [name for name, _ in settings.roster])
    collections = discover(chunks, settings.collections)
    device = choose_devices(settings.devices, settings.faults)[0]
    lessor = Lessor([device], settings.ceiling)
    cards = cards_of(specs, Policy(offline=True), device.kind, lambda _: None)
    dims = [delivered_dim(spec, card, settings.dim) for spec, card in zip(specs, cards, strict=True)]
    with tempfile.TemporaryDirectory(prefix="interlock-plan-") as scratch:
        corpus, stores = read_and_tokenise(
            collections, tokenisings(cards), Path(scratch), lambda _: None, lambda: False
        )
        layouts = [
            lay_out(number, card, stores[token_key(card)], corpus.rows, _reusable(settings.reuse, card, corpus))
            for number, card in enumerate(cards)
        ]
    fused = fused_width(Fusion(settings.fusion), dims, [card.key for card in cards])
    return Forecast(
        corpus.rows, [_forecast(layout, device, lessor) for layout in layouts], lessor.budget(device), fused
    )


def _reusable(run: Path | None, card: ModelCard, corpus: Corpus) -> Mask:
    mask = np.zeros(len(corpus.digests), np.bool_)
    earlier = reuse.check(run) if run else None
    for rows, _ in reuse.available(earlier, as_input(entry_of(card, 1.0, card.dim)), corpus.digests):
        mask[rows] = True
    return mask


def _forecast(layout: Layout, device: Device, lessor: Lessor) -> PassForecast:
    law, first = law_for(layout.card, device.kind), first_calibration(device)
    predicted = layout.predicted_bytes(law, first)
    try:
        lessor.check(layout.card.key, layout.least_bytes(law, first), device)
    except UnavailableError as error:
        return PassForecast(layout, law.weights, predicted, str(error))
    return PassForecast(layout, law.weights, predicted, "")
