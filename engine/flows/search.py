"""Answers questions over a store, for a command, a screen or a script: its models, its stages, and a reranker behind
them, which stay loaded from one question to the next.
"""

import hashlib
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from typing import TYPE_CHECKING, Any

from interlock.engine.compute.context import Granted
from interlock.engine.compute.texts import GpuJobs, HeldJobs, Progress, TextJobs
from interlock.engine.errors import ExitCode, InterlockError, UsageError
from interlock.engine.flows import EventSink, Listener
from interlock.engine.flows.rerank import free_devices, policy_of, rerankers
from interlock.engine.gpu.cpu import CpuDevice
from interlock.engine.gpu.lease import Lessor
from interlock.engine.gpu.locks import holding
from interlock.engine.models.registry import extended
from interlock.engine.search.ask import MAXSIM, Ask
from interlock.engine.search.encoding import Meaning, check_texts, encode, meaning_of, points_behind
from interlock.engine.search.hits import Answer, EncodedTexts, Hit, Side
from interlock.engine.search.questions import Question
from interlock.engine.search.rerank import Rerank, late_reordered, reordered
from interlock.engine.search.searcher import StoreSearcher
from interlock.engine.search.served import Place
from interlock.engine.search.store_models import StoreModels
from interlock.engine.settings import Configuration

if TYPE_CHECKING:
    from interlock.engine.evaluation.pooling import Sheet

WINDOW = 512
"""Questions that are answered and then reranked together; all of them have been encoded before."""


MANY = 64
"""Questions at once that are worth loading models on GPUs for. Chosen, not measured."""


@dataclass
class Answers:
    """The answers to questions, and why they were not reranked, if they were to be."""

    answers: list[Answer]
    failure: BaseException | None = None

    @property
    def exit_code(self) -> ExitCode:
        """What a command ends with that was asked to rerank."""
        if self.failure is None:
            return ExitCode.COMPLETED
        return self.failure.exit_code if isinstance(self.failure, InterlockError) else ExitCode.INTERRUPTED


class Answering(AbstractContextManager["Answering"]):
    """Answers questions over one collection, with its models and a reranker, which stays loaded; a context manager."""

    def __init__(
        self,
        settings: Configuration,
        place: Place,
        collection: str | None,
        rerank: Rerank | None,
        events: EventSink,
        given: Mapping[str, Mapping[str, object]] = {},
        *,
        kept: bool = False,
        questions: int = 1,
        granted: Granted | None = None,
        jobs: TextJobs | None = None,
        told: bool = False,
    ) -> None:
        """`given` are rows of models that the caller passes by value, and `kept` holds the store's models from one
        question to the next. So many `questions` at once as `MANY` are encoded on GPUs, where there are any; or `jobs`
        encodes them, on what is `granted`. Of the store's models on the CPU `events` hear where that is to be `told`.
        Raises as `StoreSearcher` and `rerankers` do."""
        own, (place, collection) = settings.settings, points_behind(place, collection) or (place, collection)
        lessor = Lessor([CpuDevice()], *own.limits)
        policy, registry = policy_of(settings), extended(settings.models)
        self._rerank, self._models = rerank, None
        scores, many = rerank is not None and not rerank.late, questions >= MANY
        with ExitStack() as stack:
            on = granted
            if not on and (scores or many):
                on = stack.enter_context(free_devices(settings, events))
            if on and rerank and scores:
                self._models = stack.enter_context(rerankers(settings, rerank.names, on, [MAXSIM]))
            if on and many:
                jobs = _passes(on)
            if told and not jobs:
                emit = on.emit if on else stack.enter_context(events("cpu"))
                host = Granted([], lessor.devices[0], on.lessor if on else lessor, emit)
                jobs = stack.enter_context(HeldJobs(host, kept=kept))
            self.searcher = stack.enter_context(
                StoreSearcher(place, collection, registry, policy, lessor, given, kept=kept, on=jobs)
            )
            self._stack = stack.pop_all()

    def __exit__(self, *error: Any) -> None:
        self._stack.__exit__(*error)

    def close(self) -> None:
        """Let models and store go."""
        self._stack.close()

    @property
    def reranks(self) -> bool:
        """Whether anything scores chunks anew."""
        return self._rerank is not None

    def answer(self, texts: Sequence[str], ask: Ask, *, reranked: bool = True) -> Answers:
        """Answer questions, and score their best chunks anew where that was asked for, and is wanted this time."""
        (found,) = self.windows(texts, ask, max(1, len(texts)), reranked=reranked)
        return found

    def windows(
        self,
        texts: Sequence[str],
        ask: Ask,
        size: int = WINDOW,
        encoded: Callable[[str, int], object] = lambda model, rows: None,
        *,
        reranked: bool = True,
    ) -> Iterator[Answers]:
        """Answer questions, `size` of them after another. `encoded` hears which model encoded how many.

        Where no model can score the chunks a warning says so, and they are in the order in which they were found.
        """
        deep, rerank = ask, self._rerank if reranked else None
        if rerank:
            deep = replace(ask.to(max(ask.limit, rerank.depth)), late=rerank.late)
        answers = self.searcher.answers(texts, deep, encoded)
        for _ in range(0, max(1, len(texts)), size):
            window = [*islice(answers, size)]
            yield self._reranked(window, ask.limit, rerank) if rerank else Answers(window)

    def _reranked(self, answers: list[Answer], limit: int, rerank: Rerank) -> Answers:
        began, failure = time.perf_counter(), None
        first = [replace(answer, hits=answer.hits[: rerank.depth]) for answer in answers]
        if self._models:
            placed, failure = reordered(first, self._models, rerank.share)
        else:
            placed = [late_reordered(answer.hits, rerank.share) for answer in first]
        placed = [_followed(hits, answer.hits[rerank.depth :]) for hits, answer in zip(placed, answers, strict=True)]
        took = (time.perf_counter() - began) / max(1, len(answers))
        made = [
            replace(answer, hits=hits[:limit], seconds={**answer.seconds, "rerank": took})
            for answer, hits in zip(answers, placed, strict=True)
        ]
        return Answers(made, failure)


def _followed(hits: Sequence[Hit], rest: Sequence[Hit]) -> list[Hit]:
    """Put those that nobody scored anew behind the others, in their order and with no higher score."""
    lower = min(0.0, hits[-1].score - rest[0].score) if rest else 0.0
    return [*hits, *(replace(hit, score=hit.score + lower) for hit in rest)]


def _passes(on: Granted) -> GpuJobs | None:
    """What computes many texts, where there are GPUs."""
    return GpuJobs(on) if on.gpus else None


def encode_for(
    settings: Configuration,
    place: Place,
    collection: str | None,
    texts: Iterable[str],
    side: Side,
    only: str,
    listener: Listener,
    given: Mapping[str, Mapping[str, object]] = {},
) -> EncodedTexts:
    """Make the vectors that the points of a collection in a store, or of a run, have of texts; so many as `MANY` on
    GPUs, where there are any. Raises as `meaning_of`, `check_texts` and `encode` do."""
    own, wanted, meaning = settings.settings, check_texts(texts), meaning_of(place, collection)
    with ExitStack() as stack:
        many = len(wanted) >= MANY
        passes = _passes(stack.enter_context(free_devices(settings, listener.events))) if many else None
        host = HeldJobs(Lessor([CpuDevice()], *own.limits))
        on: TextJobs = passes or stack.enter_context(host)
        models = _models_of(settings, meaning, on, given)
        done: Progress = lambda model, rows: listener.progress(model, rows, len(wanted))  # noqa: E731
        return encode(meaning, models, on, wanted, side, only, done)


def _models_of(
    settings: Configuration, meaning: Meaning, on: TextJobs, given: Mapping[str, Mapping[str, object]] = {}
) -> StoreModels:
    """What finds the models of a collection that nobody has to open."""
    return StoreModels(meaning.manifest, extended(settings.models), policy_of(settings), on.devices, given)


class Service(AbstractContextManager["Service"]):
    """One collection for many clients: texts as the vectors of its points, and answers where it has any. Its models
    stay in memory, each under a lease, on the GPUs of the settings that nobody holds, else on the CPU; a context
    manager.
    """

    def __init__(
        self, settings: Configuration, place: Place, collection: str | None, rerank: Rerank | None, events: EventSink
    ) -> None:
        """Open a store or a copy of it, a run or a collection of a server, and load its models. Raises as `Answering`
        and `encode_for` do."""
        with ExitStack() as stack:
            on = stack.enter_context(free_devices(settings, events))
            stack.enter_context(holding(on.gpus, "serve"))
            self._jobs = stack.enter_context(HeldJobs(on, kept=True))
            if at := points_behind(place, collection):
                self._answering: Answering | None = stack.enter_context(
                    Answering(settings, *at, rerank, events, granted=on, jobs=self._jobs)
                )
                self.manifest = self._answering.searcher.manifest
            else:
                self._answering, self._meaning = None, meaning_of(place, collection)
                self.manifest = self._meaning.manifest
                self._models = _models_of(settings, self._meaning, self._jobs)
            self.reranks, self.place = rerank is not None, place
            self.encode(["load"], "query")
            if self._answering and rerank:
                self._answering.answer(["load"], Ask(1))
            self._stack = stack.pop_all()

    def __exit__(self, *error: Any) -> None:
        self._stack.__exit__(*error)

    @property
    def searches(self) -> bool:
        """Whether there are points to search in."""
        return self._answering is not None

    @property
    def devices(self) -> list[str]:
        """What computes."""
        return [device.name for device in self._jobs.devices]

    @property
    def batch(self) -> int:
        """How many texts to compute at once: more are no faster on a CPU, and wait for one another."""
        return 32 if all(device.kind == "cpu" for device in self._jobs.devices) else 256

    @property
    def dims(self) -> dict[str, int]:
        """The dimensions of the dense vectors that texts can have, by name; the points' own first."""
        manifest = self.manifest
        own = {member.model: member.dim for member in manifest.models}
        return manifest.form.widths(manifest.fusion, own) | own

    def encode(self, texts: Sequence[str], side: Side, only: str = "") -> EncodedTexts:
        """Make the vectors that the points have, as `encode` does."""
        if self._answering:
            return self._answering.searcher.encode(texts, side, only)
        return encode(self._meaning, self._models, self._jobs, check_texts(texts), side, only)

    def answer(self, texts: Sequence[str], ask: Ask, *, reranked: bool) -> Answers:
        """Answer questions. Raises UsageError where there are no points, and as `Answering` does."""
        if not self._answering:
            raise UsageError(
                f"{self.place} wrote no store: start the service with a store, or with the URL of a server"
            )
        return self._answering.answer(texts, ask, reranked=reranked)


class SerialRetriever:
    """Answers a screen, whose threads it lets in one after another."""

    def __init__(self, answering: Answering) -> None:
        self._answering, self._turn = answering, threading.Lock()

    @property
    def resident(self) -> Sequence[str]:
        return self._answering.searcher.resident

    def load(self, ask: Ask) -> None:
        """Load the models, by a question whose answer nobody sees."""
        with self._turn:
            self._answering.answer(["load"], replace(ask, limit=1), reranked=False)

    def check(self, ask: Ask) -> None:
        with self._turn:
            self._answering.searcher.check(ask)

    def answer(self, texts: Sequence[str], ask: Ask, *, reranked: bool) -> Answers:
        with self._turn:
            return self._answering.answer(texts, ask, reranked=reranked)

    def close(self) -> None:
        """Let models and store go. What a thread still computes with is left to it, and goes with the process."""
        if self._turn.acquire(blocking=False):
            self._answering.close()


class Judging(SerialRetriever):
    """Answers a judge's screen with the candidates that all ways have for a question: a known one without a search."""

    def __init__(self, answering: Answering, sheet: "Sheet") -> None:
        """Raises as `StoreSearcher.check` does."""
        super().__init__(answering)
        self.sheet, searcher = sheet, answering.searcher
        self._ways = sheet.ways(searcher.manifest, searcher.store.dims)
        for ask in self._ways.values():
            searcher.check(ask)
        state = searcher.manifest, searcher.store.count(), self._ways, answering.reranks
        self.asked_of = hashlib.sha256(repr(state).encode()).hexdigest()[:16]

    def pool(self, questions: Sequence[Question]) -> None:
        """Ask these in every way, and keep what was found. Raises what a reranker fails with."""
        texts, found, ask = [each.text for each in questions], dict[str, list[Answer]](), self._answering.answer
        with self._turn:
            for way, rules in self._ways.items():
                found[way] = ask(texts, rules, reranked=False).answers
            if self._answering.reranks:
                made = ask(texts, next(iter(self._ways.values())))
                if made.failure:
                    raise made.failure
                found["reranked"] = made.answers
        self.sheet.add(questions, found, asked_of=self.asked_of, by_point=self._ids_repeat)

    @cached_property
    def _ids_repeat(self) -> bool:
        """Whether two chunks of the collection share an id, as those of two documents do whose chunks are numbered."""
        ids = [str(id) for _, id in self._answering.searcher.store.parts("chunk_id")]
        return len(set(ids)) < len(ids)

    def answer(self, texts: Sequence[str], ask: Ask, *, reranked: bool) -> Answers:
        store, answers = self._answering.searcher.store, list[Answer]()
        for text in texts:
            known = self.sheet.asked(text)
            if not known or len(store.payloads([*known.points.values()])) < len(known.points):  # some left the store
                self.pool([Question(known.id if known else self.sheet.new_id(), text)])
            known = self.sheet.asked(text)
            assert known, "which was pooled"
            answers.append(Answer(text, self.sheet.shown(known, store.payloads([*known.points.values()]))))
        return Answers(answers)
