"""What `interlock eval` judges: a judged collection with the models of the settings, or what a run has delivered."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from interlock.engine.errors import UsageError
from interlock.engine.record.rundir import JOURNAL
from interlock.engine.record.words import several
from interlock.engine.settings import Configuration, flag_of
from interlock.engine.targets.shard import MANIFEST

if TYPE_CHECKING:
    from interlock.engine.corpus.judged import Judged
    from interlock.engine.evaluation.delivered import DeliveredCollection
    from interlock.engine.evaluation.gathering import QueryParts, TextEncoder
    from interlock.engine.evaluation.material import Material
    from interlock.engine.models.assets import Policy
    from interlock.engine.models.card import ModelCard
    from interlock.engine.models.registry import ModelSpec

CORPUS = "corpus.jsonl"
OWN_OF_A_RUN = ("roster", "sparse", "fusion", "bm25", "bm25_language")
"""Settings that a run has of its own."""


@dataclass(frozen=True)
class Asked:
    """What an evaluation is asked for, beside its settings."""

    data: Path
    rerank: Sequence[str] = ()
    limit: int | None = None
    seed: int = 0
    queries: Path | None = None
    qrels: Path | None = None
    collection: str | None = None

    def __post_init__(self) -> None:
        if self.limit is not None and self.limit < 1:
            raise UsageError(f"--limit: expected a whole number of at least 1, got {self.limit}")
        if self.seed < 0:
            raise UsageError(f"--seed: expected a whole number of at least 0, got {self.seed}")


@dataclass(frozen=True)
class Matter:
    """What is judged: texts with queries and grades, models with their weights, and what a run has delivered."""

    name: str
    judged: "Judged"
    specs: "Sequence[ModelSpec]"
    cards: "Sequence[ModelCard]"
    weights: Mapping[str, float]
    """By the name that --roster has of each dense model."""
    fusion: str
    notes: Sequence[str]
    delivered: "DeliveredCollection | None" = None


def matter_of(settings: Configuration, asked: Asked) -> Matter:
    """Read what is to be judged, and find its models. Raises UsageError for what cannot be judged."""
    from interlock.engine.corpus.judged import read_judged
    from interlock.engine.evaluation.delivered import is_run

    if is_run(asked.data):
        return _run(settings, asked)
    for flag, given in (("--queries", asked.queries), ("--qrels", asked.qrels), ("--collection", asked.collection)):
        if given is not None:
            raise UsageError(
                f"{flag} is for the directory of a run, and {asked.data} has no journal: drop it, or name a run"
            )
    _check_place(asked.data)
    judged = read_judged(asked.data)
    specs, cards = _models(settings)
    notes = []
    if judged.left_out:
        few = ", ".join(judged.left_out[:3]) + (" and others" if len(judged.left_out) > 3 else "")
        notes.append(f"{several(len(judged.left_out), 'empty text')} skipped: {few}")
    weights = dict(settings.settings.roster)
    return Matter(asked.data.absolute().name, judged, specs, cards, weights, settings.settings.fusion, notes)


def _check_place(data: Path) -> None:
    """Raise UsageError, saying what it is instead, for a place that has no judged collection."""
    if not data.is_dir():
        what = "is not a directory" if data.exists() else "does not exist"
    elif any(data.glob(f"*/{MANIFEST}")):
        raise UsageError(f"{data} is a store: name the run that wrote it")
    elif any(data.glob(f"*/{JOURNAL}")):
        raise UsageError(f"{data} is a directory of runs: name one of them")
    elif not (data / CORPUS).exists():
        what = f"has no {CORPUS}"
    else:
        return
    raise UsageError(
        f"{data} {what}: name a directory with {CORPUS}, queries.jsonl and qrels/test.tsv, or that of a run"
    )


def _run(settings: Configuration, asked: Asked) -> Matter:
    """A run's own vectors, with queries and judgements from files."""
    from interlock.engine.corpus.judged import Judged, read_grades, read_queries
    from interlock.engine.corpus.questions import read_questions
    from interlock.engine.evaluation.delivered import card_of, read_delivered
    from interlock.engine.models.registry import extended

    if given := [flag_of(name) for name in OWN_OF_A_RUN if settings.origins[name].startswith(("flag", "python"))]:
        raise UsageError(f"{given[0]}: a run is judged by its own: drop it, or name a judged collection")
    if asked.queries is None or asked.qrels is None:
        raise UsageError(
            "a run is judged by --queries FILE and --qrels FILE: pass both, or neither to compare its models"
        )
    found = read_delivered(asked.data, asked.collection)
    listed = asked.queries.suffix in (".tsv", ".txt")
    queries = {each.id: each.text for each in read_questions(asked.queries)} if listed else read_queries(asked.queries)
    judged = Judged(
        dict(zip(found.ids, found.texts, strict=True)),
        queries,
        {"test": read_grades(asked.qrels, queries, set(found.ids))},
    )
    registry, policy = extended(settings.models), policy_of(settings)
    models = [card_of(entry, registry, policy) for entry in found.roster]
    notes = [f"{several(found.parked, 'chunk')} without vectors skipped"] if found.parked else []
    if found.missing:
        notes.append(f"delivered without {', '.join(found.missing)}, so the others alone are judged")
    if found.smaller:
        notes.append(
            f"the store was made smaller ({found.smaller}) and is not judged: the whole vectors are; the storage "
            "rows say what smaller ones find"
        )
    dense = [entry for entry in found.roster if entry.model in found.dense]
    weights = {entry.model if entry.model in registry else entry.source: entry.weight for entry in dense}
    specs, cards = [spec for spec, _ in models], [card for _, card in models]
    return Matter(f"{found.run}, {found.name}", judged, specs, cards, weights, found.fusion, notes, found)


def material_of(settings: Configuration, source: Matter, parts: "QueryParts", encoder: "TextEncoder") -> "Material":
    """Have texts and queries encoded, or take from the run what it delivered."""
    from interlock.engine.evaluation.gathering import (
        bm25_side,
        delivered_dense,
        delivered_sparse,
        dense_side,
        grades_of,
        sparse_side,
    )
    from interlock.engine.evaluation.material import DenseSide, Material, SparseSide
    from interlock.engine.models.registry import name_of_output

    judged, own = source.judged, settings.settings
    ids, texts = list(judged.texts), list(judged.texts.values())
    queries = [judged.queries[query] for query in parts.queries]
    weights, dense, sparse = list(source.weights.values()), list[DenseSide](), list[SparseSide]()
    if language := own.bm25_language * own.bm25 if source.delivered is None else source.delivered.bm25:
        sparse.append(bm25_side(texts, queries, language))
    for spec, card in zip(source.specs, source.cards, strict=True):
        if "dense" in spec.gives:
            weight = weights[len(dense)]
            if source.delivered:
                dense.append(delivered_dense(encoder, spec, card, weight, source.delivered, queries))
            else:
                dense.append(dense_side(encoder, spec, card, weight, texts, queries))
        if "sparse" in spec.gives:
            name = name_of_output(spec.key, "sparse", spec.kind)
            if source.delivered:
                sparse.append(delivered_sparse(encoder, card, name, source.delivered, queries))
            else:
                sparse.append(sparse_side(encoder, spec, card, name, texts, queries))
    grades = grades_of(judged, parts)
    return Material(ids, texts, queries, grades, parts.tested, parts.trained, dense, sparse, parts.halved)


def _models(settings: Configuration) -> "tuple[list[ModelSpec], list[ModelCard]]":
    from interlock.engine.models.assets import resolve
    from interlock.engine.models.card import read_card
    from interlock.engine.models.registry import extended

    policy, specs = policy_of(settings), settings.settings.members(extended(settings.models))
    return specs, [read_card(spec, resolve(spec, policy, lambda _: None), "cpu") for spec in specs]


def policy_of(settings: Configuration) -> "Policy":
    """How far to go for models."""
    from interlock.engine.models.assets import Policy

    return Policy(offline=settings.settings.offline, pickles=settings.settings.allow_pickle)
