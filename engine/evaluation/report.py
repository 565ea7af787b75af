"""What `interlock eval --json` writes, and what its table is drawn from."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct

from interlock.engine.evaluation.judging import Judge, JudgedWay, Way
from interlock.engine.evaluation.material import Material
from interlock.engine.evaluation.measures import Difference
from interlock.engine.evaluation.verdict import bill, few_queries, verdict
from interlock.engine.evaluation.weighing import Chosen, chosen
from interlock.engine.record.words import several


def says(text: str) -> Meta:
    return Meta(description=text)


class Interval(Struct, frozen=True, kw_only=True):
    """A mean difference in nDCG@10 with its interval."""

    mean: float
    low: float
    high: float
    significant: Annotated[bool, says("whether 0 lies outside of low..high")]


class MeasuredWay(Struct, frozen=True, kw_only=True):
    """One way to search."""

    group: Literal["models", "fusions", "storage", "sparse", "hybrid", "rerank"]
    name: str
    measures: Annotated[dict[str, float], says("nDCG@10, R@100, RR@10: means over the judged queries")]
    against: Annotated[str, says("the way that the difference is from; empty for none")]
    difference: Interval | None
    ms: Annotated[float | None, says("CPU milliseconds a query, encoding included; null if not known")]
    bytes: Annotated[float, says("bytes that a text takes in what is searched")]
    rescored_bytes: Annotated[
        float, says("bytes that it takes beside, of what only the best hits are scored again by")
    ] = 0.0


class MeasuredWeights(Struct, frozen=True, kw_only=True):
    """The weights that cross-validation proposes, and what they give on queries that had no part in it."""

    weights: dict[str, float]
    training: Annotated[int, says("queries that chose them")]
    held_out: Annotated[int, says("queries that judge them")]
    expected: Annotated[float, says("nDCG@10 that cross-validation expects")]
    value: Annotated[float, says("nDCG@10 on the held-out queries")]
    against_roster: Annotated[Interval, says("against the roster's own weights")]
    against_best: Annotated[Interval, says("against the best member alone")]


class MeasuredModel(Struct, frozen=True, kw_only=True):
    """A dense model of the roster."""

    weight: float
    dim: int
    spread: Annotated[float, says("standard deviation of the cosines of random pairs of texts")]
    seconds: Annotated[float | None, says("seconds of `device` that encoding all texts took; null if not known")]
    device: str
    query_ms: Annotated[float | None, says("CPU milliseconds that encoding a query takes")]


class Evaluation(Struct, frozen=True, kw_only=True):
    """What an ensemble finds, by judged queries."""

    schema_version: Literal["1"] = "1"
    data: str
    texts: int
    queries: Annotated[int, says("judged queries that the figures are of")]
    training: Annotated[int, says("judged queries that chose the best member and the weights")]
    halved: Annotated[bool, says("whether the training queries are a half of the judged ones")]
    seed: int
    fusion: str
    best_member: Annotated[str, says("the model that finds most on the training queries")]
    models: dict[str, MeasuredModel]
    ways: list[MeasuredWay]
    weights: MeasuredWeights | None
    verdict: str
    cost: str
    notes: list[str]
    roster: Annotated[str, says("the proposed weights as `--roster` takes them; empty for one model")] = ""

    def __repr__(self) -> str:
        judged = f"{several(self.texts, 'text')}, {several(self.queries, 'judged query', 'judged queries')}"
        return f"<evaluation of {self.data}: {judged}; {self.verdict or f'{self.best_member} alone'}>"


def evaluation(data: str, judge: Judge, ways: Sequence[Way], notes: Sequence[str], names: Sequence[str]) -> Evaluation:
    """Measure `ways` and word the verdict; `names` are what `--roster` calls the dense models."""
    material, base = judge.material, judge.base
    lines = judge.lines(ways)
    fused = next((line for line in lines if line.name == base.name and line.group == "fusions"), None)
    said = verdict(base.name, judge.best, fused.difference) if fused and fused.difference else ""
    few, weights = few_queries(len(material.tested)), _weights(chosen(material, judge.best, judge.seed))
    return Evaluation(
        data=data,
        texts=len(material.ids),
        queries=len(material.tested),
        training=len(material.trained),
        halved=material.halved,
        seed=judge.seed,
        fusion=str(judge.fusion),
        best_member=judge.best,
        models=_models(judge, material),
        ways=[_way(line) for line in lines],
        weights=weights,
        verdict=said,
        cost=bill(judge.best, {side.model: side.cost for side in material.dense}) if fused else "",
        notes=[*([few] if few else []), *notes],
        roster=roster_of(dict(zip(names, weights.weights.values(), strict=True))) if weights else "",
    )


def roster_of(weights: Mapping[str, float]) -> str:
    """Write weights as `--roster` takes them, without the models that they leave out."""
    return ",".join(f"{model}={weight:g}" for model, weight in weights.items() if weight > 0)


def dumps(found: Evaluation) -> bytes:
    """Write an evaluation as JSON, with a line end."""
    return msgspec.json.format(msgspec.json.encode(found), indent=1) + b"\n"


def _models(judge: Judge, material: Material) -> dict[str, MeasuredModel]:
    return {
        side.model: MeasuredModel(
            weight=side.weight,
            dim=side.documents.shape[1],
            spread=judge.spread(side.documents),
            seconds=side.cost.seconds,
            device=side.cost.device,
            query_ms=side.cost.query_ms,
        )
        for side in material.dense
    }


def _way(line: JudgedWay) -> MeasuredWay:
    return MeasuredWay(
        group=line.group,  # type: ignore[arg-type]  # the groups that `Judge` makes
        name=line.name,
        measures=dict(line.values),
        against=line.against,
        difference=_interval(line.difference),
        ms=line.ms,
        bytes=line.bytes,
        rescored_bytes=line.rescored_bytes,
    )


def _weights(found: Chosen | None) -> MeasuredWeights | None:
    if found is None:
        return None
    return MeasuredWeights(
        weights=dict(found.weights),
        training=found.training,
        held_out=found.held_out,
        expected=found.expected,
        value=found.value,
        against_roster=_sure(found.against_weights),
        against_best=_sure(found.against_best),
    )


def _interval(difference: Difference | None) -> Interval | None:
    return None if difference is None else _sure(difference)


def _sure(difference: Difference) -> Interval:
    return Interval(mean=difference.mean, low=difference.low, high=difference.high, significant=difference.significant)
