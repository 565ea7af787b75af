"""Scores of pairs for notebooks and scripts: one question, or a cross-encoder that stays loaded between questions."""

from collections.abc import Sequence
from contextlib import ExitStack
from typing import Self

from interlock.api import DEFAULTS, Settings, configured, warned
from interlock.console.reranking import lending, rerankers
from interlock.engine.corpus.tokens import is_text
from interlock.engine.errors import UsageError
from interlock.wording import telling


class Reranker:
    """Holds a cross-encoder for as many questions as there are; a context manager, which unloads it at its end.

    It is loaded with the first question: on a GPU where it fits, else on the CPU.
    """

    def __init__(self, model: str | Sequence[str], *, settings: Settings = DEFAULTS) -> None:
        """`model` is a key of the registry, a source or a directory, or several: the first that can be had is taken."""
        names = [model] if isinstance(model, str) else list(model)
        configuration, self._stack = configured(settings), ExitStack()
        with telling():
            lent = self._stack.enter_context(lending(configuration, warned))
            self._models = self._stack.enter_context(rerankers(configuration, names, lent))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Unload the model."""
        self._stack.close()

    def score(self, query: str, texts: Sequence[str]) -> list[float]:
        """Score how well each of `texts` answers `query`, in their order: the higher the better.

        Raises UsageError for what is no text, UnavailableError where no model can be had, InterlockError where none
        gives scores.
        """
        if isinstance(texts, str) or not all(map(is_text, [query, *texts])):
            raise UsageError("expected a query and a list of texts, all of them UTF-8")
        with telling():
            return [float(score) for score in self._models.score([(query, text) for text in texts])]


def rerank(
    query: str, texts: Sequence[str], *, model: str | Sequence[str], settings: Settings = DEFAULTS
) -> list[tuple[int, float]]:
    """Order `texts` by how well they answer `query`: their places in `texts` with their scores, best first.

    Arguments and errors are those of `Reranker`, which is the better one for several questions.
    """
    with Reranker(model, settings=settings) as reranker:
        scores = reranker.score(query, texts)
    return sorted(enumerate(scores), key=lambda each: -each[1])
