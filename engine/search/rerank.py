"""Reranking: a query's candidates, or pairs by themselves, scored by the first model of an order that can do it.

A model that is not to be had, does not fit or gives no scores is passed over with an event that says why, and the next
one is tried. Where none is left the candidates keep the order of the first stage.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from types import TracebackType
from typing import TypeVar

from interlock.engine.compute.context import Granted
from interlock.engine.compute.pairs.rows import Pair
from interlock.engine.compute.pairs.scorer import Progress, Scorer, Scores
from interlock.engine.errors import InterlockError, UnavailableError, UsageError
from interlock.engine.models.assets import Policy, resolve
from interlock.engine.models.networks.kernels import OLDEST
from interlock.engine.models.registry import ModelSpec
from interlock.engine.models.roster import fewest_processors, lowest_capability
from interlock.engine.models.scoring import activation_of, read_scorer
from interlock.engine.record.events import RerankerPassedOver
from interlock.engine.search.combine import CANDIDATES, SHARE, reranked
from interlock.engine.search.hits import Answer, Hit, LateHit, RankedHit

T = TypeVar("T")


@dataclass(frozen=True)
class Rerank:
    """The models that score candidates anew, in the order in which they are tried, or `late`, the one of late
    interaction; how many candidates, and how much their new scores count beside the old ones."""

    names: Sequence[str]
    late: str = ""
    share: float = SHARE
    depth: int = CANDIDATES

    def __post_init__(self) -> None:
        if not 0 <= self.share <= 1:
            raise UsageError(f"--rerank-share: expected a number from 0 to 1, got {self.share!r:.100}")
        if type(self.depth) is not int or self.depth < 1:
            raise UsageError(f"--rerank-depth: expected a whole number of at least 1, got {self.depth!r:.100}")


class Rerankers(AbstractContextManager["Rerankers"]):
    """Models in the order in which they are tried; the first that can be had stays loaded until this is closed."""

    def __init__(self, specs: Sequence[ModelSpec], policy: Policy, on: Granted) -> None:
        self._left, self._policy, self._on, self._emit = list(specs), policy, on, on.emit
        self._scorer: Scorer | None = None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._close("done" if kind is None else f"ended by {kind.__name__}")

    @property
    def model(self) -> str:
        """The key of the model that is asked now; empty where none is left."""
        return self._left[0].key if self._left else ""

    def check(self) -> None:
        """Find the first model that can score. Raises what the last one raised where none can."""
        self._first(lambda scorer: scorer.check())

    def score(self, pairs: Sequence[Pair], progress: Progress = lambda _: None) -> Scores:
        """Score pairs [n] by the first model that gives scores. Raises what the last one raised where none does."""
        return self._first(lambda scorer: scorer.score(pairs, progress))

    def give_up(self, reason: str) -> None:
        """Tell that none of them gives scores, and that the order of the first stage stands."""
        self._close(reason)
        self._emit(RerankerPassedOver(model=self.model, reason=reason))

    def _first(self, ask: Callable[[Scorer], T]) -> T:
        while True:
            try:
                if not self._left:
                    raise UnavailableError("no reranker is left: every one that was named was passed over")
                return ask(self._opened())
            except UsageError:
                raise
            except InterlockError as error:
                self._close(_short(error))
                if len(self._left) < 2:
                    raise
                failed = self._left.pop(0)
                self._emit(RerankerPassedOver(model=failed.key, reason=_short(error), next=self._left[0].key))

    def _opened(self) -> Scorer:
        if self._scorer is None:
            spec, devices = self._left[0], [*self._on.gpus, self._on.host]
            lowest, fewest = lowest_capability(devices) or OLDEST, fewest_processors(devices)
            snapshot = resolve(spec, self._policy, self._emit)
            card = read_scorer(spec, snapshot, devices[0].kind, lowest, fewest)
            self._scorer = Scorer(card, activation_of(spec, snapshot.path, card.config), self._on)
        return self._scorer

    def _close(self, cause: str) -> None:
        if self._scorer:
            self._scorer.close(cause)
            self._scorer = None


def reordered(
    answers: Sequence[Answer], rerankers: Rerankers, share: float
) -> tuple[list[Sequence[Hit]], BaseException | None]:
    """Score the candidates of questions and blend: `RankedHit`s for each, best first. Whatever goes wrong, or an
    interrupt, leaves them in their order, and is told."""
    try:
        texts = [[hit.payload.get("text") for hit in answer.hits] for answer in answers]
        if not all(isinstance(text, str) for own in texts for text in own):
            raise UnavailableError("a chunk of the store has no text to rerank by: deliver again")
        pairs = [(answer.text, str(text)) for answer, own in zip(answers, texts, strict=True) for text in own]
        scores = iter([float(score) for score in rerankers.score(pairs)] if pairs else [])
    except (InterlockError, KeyboardInterrupt) as error:
        rerankers.give_up(_short(error))
        return [answer.hits for answer in answers], error
    return [_blended(each.hits, [next(scores) for _ in each.hits], share) for each in answers], None


def late_reordered(hits: Sequence[Hit], share: float) -> list[RankedHit]:
    """Blend the candidates' scores with those of late interaction; one without any counts as the last of them."""
    late = [hit.late if isinstance(hit, LateHit) else None for hit in hits]
    lowest = min((score for score in late if score is not None), default=0.0)
    return _blended(hits, [lowest if score is None else score for score in late], share)


def _blended(hits: Sequence[Hit], scores: Sequence[float], share: float) -> list[RankedHit]:
    places = reranked([hit.score for hit in hits], scores, share)
    return [
        RankedHit(
            *(hit.id, each.blended, hit.payload, each.before + 1, each.first, each.rerank),
            stages=hit.stages,
            cosine=hit.cosine,
        )
        for each in places
        for hit in [hits[each.before]]
    ]


def _short(error: BaseException) -> str:
    """Why, in one line."""
    return str(error).partition("\n")[0] or "interrupted"
