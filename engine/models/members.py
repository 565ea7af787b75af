"""The models that a run or a rerank is given by name: which rows they mean, in the order of their passes.

Every list is checked for models of another kind, for one model twice, and for two that would be delivered as one.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import get_args

from interlock.engine.errors import UsageError
from interlock.engine.models.registry import (
    REGISTRY,
    Kind,
    ModelSpec,
    Output,
    canonical,
    each_once,
    meaning,
    name_of_output,
)


def members(
    registry: Mapping[str, ModelSpec], roster: Sequence[str], sparse: Sequence[str] = (), tokens: Sequence[str] = ()
) -> list[ModelSpec]:
    """Find the models of a run in the order of their passes: the dense ones of `roster`, then those of `sparse`.

    One in both weighs terms in its dense pass; those of the roster that are among `tokens` give token vectors too.
    Raises UsageError as `find` does, and for a model in the wrong list. A source that no row names is taken for what it
    is listed as.
    """
    roster, sparse, tokens = ([canonical(registry, name) for name in names] for names in (roster, sparse, tokens))
    kinds = {kind: [key for key, row in registry.items() if row.kind == kind] for kind in get_args(Kind)}
    weighing = kinds["sparse"] + [key for key in kinds["dense"] if "sparse_linear" in registry[key].head_sha256]
    wanted = (roster, kinds["dense"]), (sparse, weighing), (tokens, roster)
    dense, terms, late = ([meaning(registry, name, offered) for name in names] for names, offered in wanted)
    for spec in dense:
        if spec.kind == "sparse":
            raise UsageError(f"--roster: {spec.key} is a sparse model: name it in --sparse, beside a dense one here")
    for flag, spec in [("--roster", spec) for spec in dense] + [("--sparse", spec) for spec in terms]:
        if spec.kind == "scores":
            raise UsageError(f"{flag}: {spec.key} is a reranker: name it in --rerank of interlock search")
    for name, spec in zip(sparse, terms, strict=True):
        fixed = name in registry and (spec not in dense or spec == REGISTRY.get(name))  # else its files may have a head
        if fixed and spec.kind != "sparse" and "sparse_linear" not in spec.head_sha256:
            raise UsageError(
                f"--sparse: {spec.key} is a dense model: name it in --roster (or, if it is sparse, set "
                f'kind = "sparse" in [models.{spec.key}])'
            )
    if absent := next((spec for spec in late if spec not in dense), None):
        if absent.kind != "dense":
            raise UsageError(f"--token-vectors: {absent.key} is not a dense model: name one of --roster here")
        raise UsageError(f"--token-vectors: {absent.key} is not in --roster: add it there, or drop it here")
    each_once(terms)
    beside: dict[Output, list[ModelSpec]] = {"sparse": terms, "tokens": late}
    giving = [_beside(spec, [output for output in beside if spec in beside[output]]) for spec in dense]
    return _named_apart(each_once([*giving, *(_alone(spec) for spec in terms if spec not in dense)]))


def _named_apart(specs: list[ModelSpec]) -> list[ModelSpec]:
    """Raise UsageError where two models give something of one name: one would be delivered over the other."""
    taken: dict[str, str] = {}
    for spec in specs:
        names = [name_of_output(spec.key, output, spec.kind) for output in spec.gives]
        for name in names + [f"{spec.key}-tokens-starts"] * ("tokens" in spec.gives):
            if taken.setdefault(name, spec.key) != spec.key:
                raise UsageError(
                    f"{taken[name]} and {spec.key} would both be delivered as {name!r}: give one of them another name "
                    "in a [models.*] table"
                )
    return specs


def _beside(spec: ModelSpec, more: Sequence[Output]) -> ModelSpec:
    """A dense model with what else its pass gives."""
    return replace(spec, outputs=("dense", *more)) if more else spec


def _alone(spec: ModelSpec) -> ModelSpec:
    """A model whose pass weighs terms and does nothing else; what is the width of its vectors is not that of these."""
    return replace(spec, kind="sparse", dim=None if spec.head_sha256 else spec.dim)


def rerankers(registry: Mapping[str, ModelSpec], names: Sequence[str], others: Collection[str] = ()) -> list[ModelSpec]:
    """Find the cross-encoders that `names` mean, in the order in which they are tried. A source that no row names is
    taken for one. `others` are offered beside them where a name means nothing.

    Raises UsageError as `find` does, and for a model of another kind.
    """
    known = [key for key, row in registry.items() if row.kind == "scores"]
    found = [meaning(registry, name, [*known, *others]) for name in names]
    for name, spec in zip(names, found, strict=True):
        if canonical(registry, name) in registry and spec.kind != "scores":
            raise UsageError(f"{spec.key} is a {spec.kind} model, which scores no pairs: use one of {', '.join(known)}")
    return each_once([replace(spec, kind="scores") for spec in found])
