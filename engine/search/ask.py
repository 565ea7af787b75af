"""How questions are to be answered, and which vectors of a store that takes. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Self

from interlock.engine.corpus.tokens import is_text
from interlock.engine.errors import UsageError
from interlock.engine.models.registry import name_of_output
from interlock.engine.search.combine import DEPTH, Hybrid, shares_of
from interlock.engine.search.conditions import Condition, conditions_in
from interlock.engine.vectors.bm25 import BM25
from interlock.engine.vectors.manifest import Manifest

MAXSIM = "maxsim"
"""Names late interaction where a reranker is named."""
DENSE = "dense"
"""Names the list of the dense vectors, whichever models make them."""
LIMIT = 5
"""How many chunks answer a question where nobody says it."""


@dataclass(frozen=True)
class Ask:
    """How questions are to be answered.

    `weights` of the dense models, None for those of the store, which an evaluation may have chosen; `sparse_share` of
    all its sparse lists together, None for the store's; `only` one model's vectors or terms, or BM25's; `late` the
    model whose token vectors are compared with the question's, or MAXSIM for the first that the store has any of.
    Raises UsageError for what is out of bounds.
    """

    limit: int = LIMIT
    weights: Mapping[str, float] | None = None
    only: str = ""
    hybrid: Hybrid = Hybrid.WEIGHTED
    sparse_share: float | None = None
    where: Sequence[Condition] = ()
    late: str = ""

    def __post_init__(self) -> None:
        if type(self.limit) is not int or self.limit < 1:
            raise UsageError(f"--limit: expected a whole number of at least 1, got {self.limit!r:.100}")
        if self.only and self.weights is not None:
            raise UsageError("--only and --weights: one model has all the weight: give one of the two")
        given = [0.0] if self.weights is None else [*self.weights.values()]
        numbers = all(type(each) in (int, float) and 0 <= each < float("inf") for each in given)
        if not numbers or sum(given) == float("inf"):
            raise UsageError(
                f"--weights: expected numbers of 0 or more, got {self.weights!r:.100}: give each model one"
            )
        if self.weights is not None and not any(given):
            raise UsageError(
                "--weights: no model has a weight above 0: give one to a model, or --only to a list of terms"
            )
        shares_of([DENSE], [BM25], self.sparse_share or 0.0)

    def to(self, limit: int) -> Self:
        """The same for another number of chunks."""
        return replace(self, limit=limit)


def ask_of(
    limit: int,
    weights: Sequence[tuple[str, float]] | Mapping[str, float] | None,
    only: str | None,
    hybrid: str | None,
    sparse_share: float | None,
    where: object,
) -> Ask:
    """Make what is asked for of what was given; None takes the default, `where` is what `conditions_in` reads. Raises
    UsageError for what cannot be."""
    try:
        weighed = None if weights is None else dict(weights)
    except (TypeError, ValueError):
        raise UsageError(f"--weights: expected numbers by model, got {weights!r:.100}: give each model one") from None
    if hybrid is not None and hybrid not in [*Hybrid]:
        raise UsageError(f"--hybrid {hybrid!r}: choose one of {', '.join(Hybrid)}")
    return Ask(
        limit=limit,
        weights=weighed,
        only=only or "",
        hybrid=Hybrid(hybrid or Hybrid.WEIGHTED),
        sparse_share=sparse_share,
        where=conditions_in(where),
    )


@dataclass(frozen=True)
class Comparison:
    """What is compared for every question: dense models by weight, sparse vectors by name, and token vectors.

    The sparse ones count `sparse_share` together. `calibrated` says that the weights are those which an evaluation gave
    the store.
    """

    weights: Mapping[str, float]
    sparse: Sequence[str]
    tokens: str = ""
    sparse_share: float = 0.0
    calibrated: bool = False

    @property
    def several(self) -> bool:
        """Whether there are several lists."""
        return bool(self.weights) + len(self.sparse) > 1

    def depth(self, limit: int) -> int:
        """How many hits each list gives for an answer of `limit`."""
        return max(DEPTH, limit) if self.several else limit

    @property
    def dense(self) -> str:
        """The name of the list of the dense vectors: not that of a sparse one."""
        return DENSE if DENSE not in self.sparse else f"{DENSE} vectors"


def comparison_of(manifest: Manifest, ask: Ask) -> Comparison:
    """Say what of a store is compared. Raises UsageError, naming what there is, for what the store has none of."""
    own = manifest.weights
    terms = [member.model for member in manifest.sparse] + ([BM25] if manifest.bm25 else [])
    tokens = ""
    if ask.late:
        there = [member.model for member in manifest.tokens]
        if not there or ask.late not in (MAXSIM, *there):
            raise UsageError(
                f"--rerank {ask.late}: the store of {manifest.collection} has token vectors of "
                f"{', '.join(there) or 'no model'}: name one that it has, or write a store anew with `interlock run "
                "CHUNKS --token-vectors MODEL`"
            )
        tokens = name_of_output(there[0] if ask.late == MAXSIM else ask.late, "tokens")
    if ask.only:
        if ask.only not in (*own, *terms):
            raise UsageError(
                f"--only {ask.only}: the store has no such vectors{_gone(manifest, ask.only)}: name one of "
                f"{searched(manifest)}"
            )
        return Comparison({ask.only: 1.0}, [], tokens) if ask.only in own else Comparison({}, [ask.only], tokens)
    weights = own if ask.weights is None else ask.weights
    if unknown := sorted(weights.keys() - own.keys()):
        gone = _gone(manifest, unknown[0])
        raise UsageError(f"--weights: the store has no vectors of {unknown[0]}{gone}: name any of {', '.join(own)}")
    share = manifest.sparse_share if ask.sparse_share is None else ask.sparse_share
    hybrid = ask.hybrid is not Hybrid.OFF and share > 0
    if not terms and (ask.hybrid in (Hybrid.RRF, Hybrid.DBSF) or share not in (0, manifest.sparse_share)):
        what = f"--hybrid {ask.hybrid}" if ask.hybrid is not Hybrid.WEIGHTED else f"--sparse-share {share:g}"
        raise UsageError(
            f"{what}: the store has no sparse vectors to combine with the dense ones: drop it, or write a store anew "
            "without --bm25 off, or with --sparse"
        )
    used, calibrated = {name: say for name, say in weights.items() if say}, ask.weights is None and manifest.calibrated
    return Comparison(used, terms if hybrid else [], tokens, share, calibrated=bool(calibrated))


def _gone(manifest: Manifest, model: str) -> str:
    return f" (it was delivered without; run {manifest.run.run_id} can add it)" if model in manifest.missing else ""


def searched(manifest: Manifest) -> str:
    """Name all vectors of a store by which alone it can be searched."""
    return ", ".join([*(each.model for each in (*manifest.models, *manifest.sparse)), *([BM25] * bool(manifest.bm25))])


def check_question(text: object) -> None:
    """Raise UsageError for what no chunk can answer."""
    if not is_text(text):
        raise UsageError(f"the query is not text: expected UTF-8, got {text!r:.100}")
    if not str(text).strip():
        raise UsageError("the query is empty: pass the words to look for")
