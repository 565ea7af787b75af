"""What a run is to do: its models, their passes laid out over the chunks, and what is delivered of them.

One `RunPlan` is read and laid out here for all: `forecast` says what it would take, `run` computes and delivers it, and
`export` delivers it again.

A model is missing when its files, its card or a device that holds it cannot be had, or when its pass fails. Where the
rest is to be delivered all the same (`--allow-missing`) its place in the roster stays, so that a later session of the
run finds everything else where it was and fills the gap.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import psutil

from interlock.engine.compute.context import Backend, Laws
from interlock.engine.compute.job import Layout, lay_out
from interlock.engine.compute.reuse import Mask
from interlock.engine.corpus.collections import Collection, discover, overlooked
from interlock.engine.corpus.corpus import BLOCK, Corpus, Rows, read_and_tokenise
from interlock.engine.corpus.tokens import TokenStore
from interlock.engine.errors import InterlockError, UnavailableError, reason
from interlock.engine.flows.opening import check, check_cut, form_of, without_effect
from interlock.engine.gpu.device import Device
from interlock.engine.gpu.devices import unused_gpus
from interlock.engine.gpu.lease import Lessor
from interlock.engine.models import roster as rosters
from interlock.engine.models.assets import Policy, changed_files
from interlock.engine.models.card import ModelCard
from interlock.engine.models.memory import Calibration, Law
from interlock.engine.models.networks.attention import older_transformers
from interlock.engine.models.registry import LARGE_BATCH, ModelSpec, check_beside, extended, find
from interlock.engine.record.events import Emit, Warned
from interlock.engine.record.facts import MissingModel, RosterEntry
from interlock.engine.record.inputs import as_input
from interlock.engine.record.shards import shard_in
from interlock.engine.record.state import RunState
from interlock.engine.settings import Configuration, RunSettings
from interlock.engine.standing import outcome
from interlock.engine.targets.delivery import DeliveryBuilder
from interlock.engine.targets.shard import ELSEWHERE, read_manifest
from interlock.engine.targets.stores import is_store
from interlock.engine.vectors import SPARSE_SHARE
from interlock.engine.vectors.fusion import Fusion, shares
from interlock.engine.vectors.manifest import CollectionSpec, Manifest, remaining

BATCHES, TOKEN = 32, 4
"""How many batches a run has at least where that leaves them large, and the bytes of its files that are a token."""
Roster = Sequence[Mapping[str, Any]]
"""Entries of models as `run.json` keeps them."""
OFFER = "add --allow-missing to deliver what the other models make"
"""What is said where a model is missed and the rest could be delivered."""


@dataclass(frozen=True)
class Models:
    """The cards of a roster by the number of their pass, and why the others cannot be had."""

    cards: Mapping[int, ModelCard]
    missing: Mapping[int, str]


@dataclass(frozen=True)
class RunRequest:
    """What a run is asked for: chunks and settings, with the models and collections that these name."""

    chunks: Path
    configuration: Configuration
    specs: Sequence[ModelSpec]
    weights: Sequence[float]
    """Of each model in the fusion, 0 for those that are not fused."""
    collections: Sequence[Collection]

    @property
    def settings(self) -> RunSettings:
        return self.configuration.settings

    @property
    def policy(self) -> Policy:
        """Where models may come from."""
        return Policy(self.settings.offline, self.settings.refresh_models, self.settings.allow_pickle)

    def unused(self, devices: Sequence[Device]) -> list[str]:
        """Tell what is given or there and changes nothing: settings, files beside the chunk files, and GPUs."""
        gpus = [] if self.settings.cluster else unused_gpus(self.settings.devices, devices)
        return [*without_effect(self.configuration), *overlooked(self.chunks, self.collections), *gpus]

    def roster(self, models: Models) -> list[RosterEntry]:
        """Record each model as far as it can be had. Raises UsageError where their vectors cannot be fused."""
        settings, roster, dense = self.settings, [], {}
        for number, (spec, weight) in enumerate(zip(self.specs, self.weights, strict=True)):
            if (card := models.cards.get(number)) is None:
                roster.append(rosters.entry_without(spec, weight, models.missing[number]))
                continue
            roster.append(rosters.entry_of(card, weight, rosters.delivered_dim(spec, card, settings.dim)))
            if card.kind == "dense":
                dense[card.key] = roster[-1].dim
        form_of(settings, dense).widths(Fusion(settings.fusion), dense)
        return roster


def named(configuration: Configuration, chunks: Path | None = None) -> list[ModelSpec]:
    """Find the models that the settings name. Raises UsageError for settings that no run of `chunks` can have, or of
    any."""
    settings = configuration.settings
    check(settings, chunks)
    registry = extended(configuration.models)
    find(registry, settings.allow_pickle)  # refuses what is no model
    specs = settings.members(registry)
    check_cut(configuration, specs)
    check_beside(settings.chunk_sparse, specs)
    return specs


def requested(chunks: Path, configuration: Configuration) -> RunRequest:
    """Find what the settings name. Raises UsageError for chunks or settings that no run can have."""
    settings, specs = configuration.settings, named(configuration, chunks)
    found = discover(chunks, settings.collections, settings.naming)
    shard = shard_in(settings.shard)
    collections = [replace(each, by_ordinal=configuration.by_ordinal, shard=shard) for each in found]
    configuration = _as_stored(configuration, specs, collections)
    dense = shares([weight for _, weight in configuration.settings.roster]).tolist()
    return RunRequest(chunks, configuration, specs, [*dense, *[0.0] * (len(specs) - len(dense))], collections)


def _as_stored(
    configuration: Configuration, specs: Sequence[ModelSpec], collections: Sequence[Collection]
) -> Configuration:
    """Give models that were given no weights those of the store, where it was written by the same models before."""
    settings = configuration.settings
    keys = [spec.key for spec, _ in zip(specs, settings.roster, strict=False)]
    store = settings.qdrant if configuration.usual else None
    for path in filter(is_store, [store / each.qdrant_collection for each in collections] if store else []):
        with suppress(InterlockError, msgspec.ValidationError):  # what is wrong with a store is said when it is opened
            models = msgspec.convert(read_manifest(path), Manifest).models
            now = shares([weight for _, weight in settings.roster])
            if [each.model for each in models] == keys and not np.allclose(now, [each.weight for each in models]):
                roster = tuple((name, each.weight) for (name, _), each in zip(settings.roster, models, strict=True))
                told = ", ".join(f"{name}={weight:.3g}" for name, weight in roster)
                note = f"{path} was written with {told}: these weights are kept; {ELSEWHERE} for others"
                changed = replace(settings, roster=roster)
                return replace(configuration, settings=changed, usual=False, notes=(*configuration.notes, note))
    return configuration


@dataclass(frozen=True)
class PlannedPass:
    """One model's pass: its batches over the corpus, and the tokens that they are made of."""

    model_pass: int
    layout: Layout
    tokens: TokenStore


@dataclass(frozen=True)
class RunPlan:
    """What is computed of a corpus and delivered: `roster` has every model, `cards` those that compute, by the number
    of their pass, `tokens` what their tokenizers gave. A run that is over is delivered again without cards."""

    settings: RunSettings
    roster: Sequence[RosterEntry]
    corpus: Corpus
    builder: DeliveryBuilder
    cards: Mapping[int, ModelCard] = field(default_factory=dict)
    tokens: Mapping[str, TokenStore] = field(default_factory=dict)
    passes: Sequence[PlannedPass] = ()
    sparse_share: float = SPARSE_SHARE
    block: int = BLOCK
    """Distinct texts of a collection that are planned for themselves; 0: all, as older versions did."""

    def laid_out(self, reused: Callable[[int, ModelCard, Corpus], Mask]) -> "RunPlan":
        """Lay out every pass over the texts that are not `reused`. Raises UsageError as `lay_out` does."""
        passes = []
        for number, card in self.cards.items():
            if (tokens := self.tokens.get(rosters.token_key(card))) is None:  # its tokenizer was replaced meanwhile
                raise changed_files(card.key, card.snapshot.path)
            without = reused(number, card, self.corpus)
            layout = lay_out(number, card, tokens, self.corpus.rows, without, self.block)
            passes.append(PlannedPass(number, layout, tokens))
        return replace(self, passes=passes)

    def inputs(self, chunks: Path, threads: int) -> dict[str, object]:
        """Return what a run of this plan is tied to."""
        return {
            "schema_version": "1",
            "chunks": str(chunks.resolve()),
            "fusion": self.settings.fusion,
            "threads": threads,
            "roster": [as_input(entry) for entry in self.roster],
            "files": self.corpus.fingerprint(),
            **self.settings.naming.given,
            **({"block": self.block} if 0 < self.block <= len(self.corpus.digests) else {}),
            **({"shard": self.settings.shard} if self.settings.shard else {}),
        }

    def spec(self, rows: Rows, run_id: str, missing: Sequence[MissingModel] = (), began: float = 0.0) -> CollectionSpec:
        """Say what a collection is to be of a run that was begun then, without what is missing: the other models share
        its weight."""
        shares = [weight for _, weight in self.settings.roster]
        roster = remaining(self.roster, missing, shares) if missing else list(self.roster)
        members = {entry.model: entry.dim for entry in roster if entry.kind == "dense"}
        return CollectionSpec(
            rows.collection.qdrant_collection,
            Fusion(self.settings.fusion),
            roster,
            run_id,
            self.builder.bm25(rows),
            self.settings.chunk_sparse,
            form_of(self.settings, members, rows.distinct),
            missing=missing,
            began=began,
            payload=self.settings.payload,
            sparse_share=self.sparse_share,
            compact=self.settings.compact,
        )


def read(
    request: RunRequest,
    models: Models,
    roster: Sequence[RosterEntry],
    scratch: Path,
    emit: Emit,
    stopped: Callable[[], bool],
    language: str = "",
    whole: Callable[..., object] | None = None,
    block: int = BLOCK,
) -> RunPlan:
    """Read the chunks, and tokenise them into `scratch`, for a plan that is still to be laid out; words are counted
    for BM25 of this `language`. `whole` gets what sees the texts, and what `read_and_tokenise` gives it.

    Raises UsageError when no chunk is good, Stopped when `stopped` says so.
    """
    builder = DeliveryBuilder(scratch, language, request.settings.chunk_sparse)
    cards, collections = [*models.cards.values()], request.collections
    for card in cards:
        if (older := older_transformers()) and older in card.padded_because:
            emit(Warned(message=f"{card.key} computes padding, for {card.padded_because}"))
    told = rosters.tokenisings(cards), scratch, emit, stopped, builder.beside
    corpus, tokens = read_and_tokenise(collections, *told, whole and partial(whole, builder), block or BLOCK)
    share = request.configuration.sparse_share
    return RunPlan(request.settings, roster, corpus, builder, models.cards, tokens, sparse_share=share, block=block)


def resolve(
    backend: Backend,
    specs: Sequence[ModelSpec],
    policy: Policy,
    devices: Sequence[Device],
    emit: Emit,
    *,
    allowed: bool,
) -> Models:
    """Resolve every model. Raises UnavailableError for the first that cannot be had, or where missing ones are
    `allowed` and no dense one is left."""
    cards: dict[int, ModelCard] = {}
    errors: dict[int, UnavailableError] = {}
    for number, spec in enumerate(specs):
        try:
            cards[number] = backend.cards([spec], policy, devices, emit)[0]
        except UnavailableError as error:
            if not allowed:
                raise offering(error, specs, number) from error
            errors[number] = error
    if errors and not any(card.kind == "dense" for card in cards.values()):
        raise next(iter(errors.values()))
    return Models(cards, {number: reason(error) for number, error in errors.items()})


def sized(request: RunRequest, models: Models, devices: Sequence[Device], laws: Laws, begun: Roster = ()) -> Models:
    """Have each model take the batches that the run was `begun` with; else, on GPUs and where its row leaves that open,
    as large ones as a lease of its own holds, up to 65,536 tokens, while a run has some `BATCHES` of them.

    The schedule has no say, since all of them walk the same batches: beside others, one may take several forwards.
    """
    kind, cards = devices[0].kind, dict[int, ModelCard]()
    gpus = [] if request.settings.cluster else [device for device in devices if device.kind != "cpu"]
    before = {number: each.get("batch_tokens", 0) for number, each in enumerate(begun)}
    files, size = [each.root / name for each in request.collections for name in each.files if gpus], 0
    for file in files:
        with suppress(OSError):  # who reads it says what is wrong with it
            size += file.stat().st_size
    for number, card in models.cards.items():
        spec, tokens = request.specs[number], before.get(number, 0)
        if gpus and not tokens:
            on_host = kind == "sim" and spec.batch_tokens != ModelSpec.batch_tokens  # as a simulated GPU computes
            most, lessor = size // TOKEN // BATCHES, Lessor(gpus, *request.settings.limits)
            tokens = spec.gpu_batch_tokens or (spec.batch_tokens if on_host else 0)
            tokens = tokens or _fitting(spec, card, laws(card, kind), most, gpus, lessor)
        cards[number] = replace(card, batch_tokens=tokens or card.batch_tokens)
    return replace(models, cards=cards)


def _fitting(spec: ModelSpec, card: ModelCard, law: Law, most: int, gpus: Sequence[Device], lessor: Lessor) -> int:
    """Count the tokens of the largest batch that a model alone on each of `gpus` holds, and is of use; those of the
    host where it fits none."""
    tokens = spec.tokens_for("cuda", rosters.fewest_processors(gpus))
    while card.kind == "dense" and 2 * tokens <= min(LARGE_BATCH, most):
        tokens *= 2
    room = min(map(lessor.budget, gpus))
    if gpus[0].kind == "sim":  # what it counts in float16 the host computes in float32, for all of them
        room = min(room, law.weights + psutil.virtual_memory().available // (4 * len(gpus)))
    ways = [law.weights, *([law.slots] if law.slots else [])]
    fits = (Calibration().most_tokens(law, card.max_tokens, room - kept) for kept in ways)
    return min(tokens, next((each for each in fits if each >= card.max_tokens), 0)) or spec.tokens_for("cpu", 0)


def offering(error: UnavailableError, specs: Sequence[ModelSpec], number: int) -> UnavailableError:
    """Return the error that says how the rest is delivered all the same, where a dense model would be left."""
    if not any(other.kind == "dense" for place, other in enumerate(specs) if place != number):
        return error
    return UnavailableError(f"{error}\n{OFFER}")


def check_placed(refused: Mapping[int, str], specs: Sequence[ModelSpec], models: Models, *, allowed: bool) -> None:
    """Raise UnavailableError for the first pass that fits nowhere, or where those are `allowed` to be missing and no
    dense one is left."""
    for number, why in refused.items():
        if not allowed:
            raise offering(UnavailableError(why), specs, number)
        if not any(card.kind == "dense" for place, card in models.cards.items() if place not in refused):
            raise UnavailableError(why)


def check_unfinished(state: RunState, missing: Mapping[int, str]) -> None:
    """Raise UnavailableError for a missing model that has computed a whole collection: a delivery with it would be
    replaced by one without."""
    for number, why in missing.items():
        seen = [each.plan for each in state.shares_of(number) if each.whole]
        done = [plan.collection for plan in seen if plan.rows + plan.reused]
        if done:
            raise UnavailableError(
                f"{why}; its vectors of {', '.join(done)} are computed, and --allow-missing would deliver these "
                "without it: restore the model, then --resume"
            )


def lacking(state: RunState, name: str, *, allowed: bool) -> list[MissingModel]:
    """Return the models that a collection is to be delivered without, as far as they are known to be missing: none
    where that is not `allowed`, or would leave no dense one."""
    found = outcome.lacking(state, name)
    gone = {each.model_pass for each in found}
    dense = [number for number, entry in enumerate(state.roster) if entry.kind == "dense" and number not in gone]
    return found if allowed and dense else []
