"""The models that questions to a store go through: the very ones that it was written with, wherever they lie now."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from interlock.engine.compute.parts.term_table import TermTable, table_of
from interlock.engine.errors import UnavailableError, UsageError
from interlock.engine.gpu.device import Device
from interlock.engine.models.assets import ModelSnapshot, Policy, cached, resolve
from interlock.engine.models.card import ModelCard
from interlock.engine.models.registry import Head, Kind, ModelSpec, Output, name_of_output
from interlock.engine.models.roster import card_for
from interlock.engine.record.words import alike
from interlock.engine.search.hits import Side
from interlock.engine.vectors.manifest import KnownModel, Manifest, TokenMember

BESIDE: tuple[Output, ...] = ("sparse", "tokens")
WEIGHED: Mapping[Head, str] = {"sparse_linear": "weights of terms", "colbert_linear": "token vectors"}
WITHOUT: Mapping[Head, str] = {"sparse_linear": "--hybrid off", "colbert_linear": "drop --rerank"}


@dataclass(frozen=True)
class StoreModel:
    """A model as the store's vectors were made; `weighs_only` where terms are all that it is asked for."""

    card: ModelCard
    member: KnownModel
    weighs_only: bool
    side: Side = "query"

    @cached_property
    def table(self) -> TermTable | None:
        """What weighs the terms of a question where no network has to."""
        return table_of(self.card) if self.weighs_only and self.side == "query" else None

    @property
    def prompt(self) -> str:
        """What stands before each text."""
        return self.member.query_prompt if self.side == "query" else self.member.document_prompt


class StoreModels:
    """Finds the models of one store, each once."""

    def __init__(
        self,
        manifest: Manifest,
        registry: Mapping[str, ModelSpec],
        policy: Policy,
        devices: Sequence[Device],
        given: Mapping[str, Mapping[str, object]] = {},
    ) -> None:
        """Cards are for `devices`. The registry adds where the models may lie; rows that a caller has `given` for them
        are the only place, and must not say something else than the store. Raises UsageError where they do."""
        for member in (*manifest.models, *manifest.sparse):
            row = given.get(member.model, {})
            for name in ("max_tokens", "document_prompt", "query_prompt"):
                if row.get(name) is not None and row[name] != getattr(member, name):
                    raise UsageError(
                        f"[models.{member.model}] {name} is {row[name]!r:.100}, but the store was written with "
                        f"{getattr(member, name)!r:.100}: drop it from the row, or deliver again"
                    )
        places = {key: registry[key].sources[0] for key, row in given.items() if {"source", "sources"} & row.keys()}
        self._manifest, self._sources = manifest, {**manifest.run.sources, **places}
        self._registry, self._policy, self._devices = registry, policy, devices
        self._found: dict[tuple[str, tuple[str, ...], Side], StoreModel] = {}

    def serving(self, names: Collection[str], side: Side = "query") -> list[StoreModel]:
        """Return the models that make the vectors of these names, in the order of the manifest: those that a question
        is compared by, or those that a chunk has.

        Raises UsageError where a model here is not the one that the store was written with, UnavailableError for one
        that is not there.
        """
        manifest, late = self._manifest, {each.model: each for each in self._manifest.tokens}
        models = []
        for member in manifest.models:
            beside = {name_of_output(member.model, "sparse"), name_of_output(member.model, "tokens")}
            if wanted := {member.model, *beside} & {*names}:
                models.append(self._model(member, "dense", wanted, side, late.get(member.model)))
        served = {name_of_output(member.model, "sparse") for member in manifest.models}
        for term in manifest.sparse:
            if term.model in names and term.model not in served:
                models.append(self._model(term, "sparse", {term.model}, side))
        return models

    def _model(
        self, member: KnownModel, kind: Kind, names: set[str], side: Side, late: TokenMember | None = None
    ) -> StoreModel:
        key = member.model, tuple(sorted(names)), side
        if key in self._found:
            return self._found[key]
        known, device = self._registry.get(member.model), self._devices[0].kind
        beside: list[Output] = [each for each in BESIDE if name_of_output(member.model, each) in names]
        # On a CPU texts are as precise as the store's vectors, but not in float16, which takes it 100 times as long,
        # and questions not in int8, which is for many texts; on a GPU the card decides.
        wide = ("float16", "int8") if side == "query" else ("float16",)
        dtype = {device: "float32" if member.dtype in wide else member.dtype}
        spec = ModelSpec(
            member.model,
            tuple(dict.fromkeys((self._sources[member.model], *(known.sources if known else ())))),
            kind=kind,
            revision=self._manifest.run.commits[member.model] or (known.revision if known else "main"),
            max_tokens=member.max_tokens,
            pickle_sha256=known.pickle_sha256 if known else None,
            allow_pickle=bool(known and known.allow_pickle),
            document_prompt=member.document_prompt,
            query_prompt=member.query_prompt,
            dtype=dtype if device != "cuda" else known.dtype if known else {},
            head_sha256=known.head_sha256 if known else {},
            outputs=("dense", *beside) if beside else (),
            # A question's are what the store compares in, a chunk's what it was made of.
            token_precision=late.tokens.precision if late and side == "document" else "float16",
            token_pooling=late.tokens.pooling if late and side == "document" else 1,
        )
        snapshot = the_same(spec, known, member.fingerprint, self._policy)
        if (terms := name_of_output(member.model, "sparse", kind)) in names:
            stored = next((each.head for each in self._manifest.sparse if each.model == terms), "")
            _check_head(member, "sparse_linear", stored, snapshot)
        if "tokens" in beside:
            _check_head(member, "colbert_linear", late.head if late else "", snapshot)
        card = card_for(spec, snapshot, self._devices)
        check_tokens(card, member.tokenizer, "store was written", "deliver")
        self._found[key] = StoreModel(card, member, weighs_only=kind == "sparse", side=side)
        return self._found[key]


def the_same(
    spec: ModelSpec,
    known: ModelSpec | None,
    fingerprint: str,
    policy: Policy,
    *,
    was: str = "store was written",
    again: str = "deliver",
) -> ModelSnapshot:
    """Find the very model of a fingerprint: what lies here before what has to be fetched, another one with its key
    never. Raises UsageError where this machine has another, UnavailableError where it has none.

    It is at the commit of `spec`, or as the registry has it `known`; a fingerprint decides, and commit or place differ.
    """
    others: list[ModelSnapshot] = []
    alone = [replace(spec, sources=(source,)) for source in spec.sources]
    if known and known.revision != spec.revision:
        alone += [replace(one, revision=known.revision) for one in alone if one.sources[0] in known.sources]
    here = [one for one in alone if cached(one)]
    for one in here:
        snapshot = resolve(one, policy, lambda _: None)
        if alike(snapshot.fingerprint, fingerprint):
            return snapshot
        others.append(snapshot)
    held = {source for one in here for source in one.sources}
    # What lies here is another model, so asking for it again would never fetch the right one.
    absent = replace(spec, sources=tuple(source for source in spec.sources if source not in held))
    try:
        fetched = resolve(absent, policy, lambda _: None)
        if alike(fetched.fingerprint, fingerprint):
            return fetched
        others.append(fetched)
    except UnavailableError:
        if not others:
            raise
    there = ", ".join(f"{other.fingerprint[:12]} from {other.source}" for other in others)
    raise UsageError(
        f"the {was} with another {spec.key} (fingerprint {fingerprint[:12]}, this machine has {there}): install that "
        f"one, or {again} again"
    )


def check_tokens(card: ModelCard, tokenizer: str, was: str, again: str) -> None:
    """Raise UsageError where other tokens would come of a text than when the vectors were made."""
    if card.tokens_digest != tokenizer:
        raise UsageError(
            f"the {was} with another tokenizer of {card.key} ({tokenizer[:12] or 'tokenizer.json'}, now "
            f"{card.tokens_digest[:12] or 'tokenizer.json'}): restore its files, or {again} again"
        )


def _check_head(member: KnownModel, head: Head, stored: str, snapshot: ModelSnapshot) -> None:
    if (here := snapshot.head_digests.get(head, "")) != stored:
        raise UsageError(
            f"the store's {WEIGHED[head]} are those of another {head} of {member.model} (SHA-256 "
            f"{stored[:12] or 'none'}, here {here[:12] or 'none'}): install that one, search without them "
            f"({WITHOUT[head]}), or deliver again"
        )
