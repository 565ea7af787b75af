"""The commands that ask models: `interlock search`, one question, a file of them or a screen that takes one after
another; `interlock questions`, whose answers are judged; `interlock encode`, texts as vectors; `interlock rerank`, a
file of pairs; `interlock serve`, all of it for other programs."""

import argparse
import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from interlock.console.cli import configuration
from interlock.console.text.answer_text import answer_lines, cut_text, hit_lines, stages_took, writer
from interlock.console.writing import check_file, progress, say, tell, telling, warn, writing
from interlock.engine.errors import ExitCode, UnavailableError, UsageError
from interlock.engine.flows import Listener, no_events
from interlock.engine.record import atomic
from interlock.engine.record.words import argument, command, safe, several
from interlock.engine.settings import Configuration

if TYPE_CHECKING:
    from interlock.engine.flows.search import Answering
    from interlock.engine.search.ask import Ask
    from interlock.engine.search.hits import Answer, EncodedTexts
    from interlock.engine.search.questions import Question
    from interlock.engine.search.rerank import Rerank
    from interlock.engine.search.served import Place

VECTOR_FILES = (".jsonl", ".npy", ".parquet")
"""How the name of a file of vectors may end, which says what it is."""
KEY = "INTERLOCK_SERVE_KEY"
ON_SCREEN = 20
"""How many chunks answer a question on the screen where nobody says it."""


def search(options: argparse.Namespace) -> int:
    """Search a store for one question, or for those of a file, or open a screen that takes one after another."""
    from interlock.console.terminal.tty import takes_screens
    from interlock.engine.flows.rerank import rerank_of
    from interlock.engine.flows.search import Answering
    from interlock.engine.search.ask import LIMIT, ask_of, check_question

    settings = configuration(options)
    asks = options.query is None and options.queries is None and not options.answers and not options.json
    on_screen = asks and takes_screens()
    limit = options.limit if options.limit is not None else ON_SCREEN if on_screen else LIMIT
    ask = ask_of(limit, options.weights, options.only, options.hybrid, options.sparse_share, options.where or ())
    rerank = rerank_of(settings, options.rerank, options.rerank_share, options.rerank_depth)
    if on_screen:
        return _open_screen(options, settings, ask, rerank)
    if (options.query is None) == (options.queries is None):
        raise UsageError("search: pass a query, or a file of them with --queries")
    asked = settings, place_of(options), options.collection, rerank, telling
    opened = partial(Answering, *asked, told=options.log_json)
    if options.queries:
        return _search_file(options, ask, opened)
    if options.answers:
        raise UsageError("--out is for the answers of --queries: use > FILE for those of one query")
    check_question(options.query)  # at once: no store answers it
    with opened() as answering:
        warn(answering.searcher.manifest.gap)
        made = answering.answer([options.query], ask)
        stale = _stale_among(made.answers, answering)
    _print_answer(made.answers[0], as_json=options.json, explained=options.explain)
    warn(cut_text([made.answers[0].cut], 1))
    if stale:
        say(stale)
    return made.exit_code


def _open_screen(options: argparse.Namespace, settings: Configuration, ask: "Ask", rerank: "Rerank | None") -> int:
    """Answer what is typed on a screen until it is left; what speaks against it is told before it opens."""
    from interlock.console.apps.base import Frame
    from interlock.console.look import look_of
    from interlock.console.screens.search import SearchScreen
    from interlock.console.terminal.tty import quiet_descriptors
    from interlock.console.text.answer_rows import shown_of
    from interlock.engine.flows.search import Answering, SerialRetriever

    look = look_of(settings)
    retriever = SerialRetriever(
        answering := Answering(settings, place_of(options), options.collection, rerank, no_events, kept=True, told=True)
    )
    try:
        retriever.check(ask)
        short = [name.rpartition("/")[2] for name in rerank.names] if rerank else []
        shown = shown_of(answering.searcher.manifest, answering.searcher.store.count(), ", ".join(short))
        with quiet_descriptors():
            Frame[None](look, lambda: SearchScreen(retriever, shown, ask, look)).run()
    finally:
        retriever.close()
    return ExitCode.COMPLETED


def questions(options: argparse.Namespace) -> int:
    """Prepare questions to a store with the candidates of every way, open a screen on which these are judged, and say
    what the judgements tell."""
    from interlock.console.apps.base import Frame
    from interlock.console.look import look_of
    from interlock.console.screens.judging import JudgingScreen
    from interlock.console.terminal.tty import quiet_descriptors, takes_screens
    from interlock.console.text.answer_rows import shown_of
    from interlock.console.text.evaluation_text import sheet_text
    from interlock.engine.evaluation.pooling import QUESTIONS, Sheet
    from interlock.engine.flows.rerank import rerank_of
    from interlock.engine.flows.search import Answering, Judging
    from interlock.engine.search.questions import read_questions

    settings, on_screen = configuration(options), takes_screens()
    look, rerank = look_of(settings), rerank_of(settings, options.rerank, None, None)
    asked = list(read_questions(options.queries)) if options.queries else []
    if not (asked or on_screen or (options.sheet / QUESTIONS).exists()):
        raise UsageError("questions: name a file of them with --queries, or type them on a terminal")
    with (
        Answering(settings, place_of(options), options.collection, rerank, no_events, kept=True) as answering,
        atomic.locked(options.sheet),
    ):
        searcher = answering.searcher
        warn(searcher.manifest.gap)
        sheet = Sheet(options.sheet, searcher.manifest.collection, options.depth)
        numbered = bool(options.queries) and options.queries.suffix == ".txt"
        judging, new = Judging(answering, sheet), sheet.new(asked, numbered=numbered)
        if again := sheet.outdated(judging.asked_of):
            kept = "the store, the ways to ask it or --depth have changed; judgements stay"
            say(f"asking {several(len(again), 'question')} anew: {kept}")
        if new:
            say(f"asking {several(len(new), 'question')} in every way")
        if again or new:
            judging.pool([*again, *new])
        if left := sum(map(sheet.left, sheet.questions.values())):
            say(f"{several(left, 'chunk')} to judge, one key each, over {several(len(sheet.questions), 'question')}")
        if on_screen:
            shown = shown_of(searcher.manifest, searcher.store.count(), "")
            with quiet_descriptors():
                Frame[None](look, lambda: JudgingScreen(judging, shown, look)).run()
        tell(sheet_text(sheet))
    return ExitCode.COMPLETED


def print_search(settings: Configuration, store: Path, query: str, limit: int) -> None:
    """Search the one collection of a store and print what was found."""
    from interlock.engine.flows.search import Answering
    from interlock.engine.search.ask import Ask

    with Answering(settings, store, None, None, no_events) as answering:
        _print_answer(answering.answer([query], Ask(limit)).answers[0], as_json=False, explained=False)


def _search_file(options: argparse.Namespace, ask: "Ask", opened: "Callable[..., Answering]") -> int:
    from interlock.engine.search.questions import read_questions

    questions = list(read_questions(options.queries))  # a bad line is told before anything is computed
    write = writer(options.answers, options.ids, explained=options.explain)
    check_file("--out", options.answers, {"the file of questions": options.queries})
    code, began, texts = ExitCode.COMPLETED, time.monotonic(), [each.text for each in questions]
    stale, none, cuts = "", "", list[Mapping[str, int]]()
    with opened(questions=len(questions)) as answering, writing(options.answers) as out, progress("question") as done:
        warn(answering.searcher.manifest.gap)
        left = iter(questions)
        for made in answering.windows(texts, ask, encoded=lambda model, count: done(model, count, len(texts))):
            code = code or made.exit_code
            stale = stale or _stale_among(made.answers, answering)
            cuts += [answer.cut for answer in made.answers if answer.cut]
            none = none or next((answer.why_none for answer in made.answers if answer.why_none), "")
            for answer in made.answers:
                out(write(next(left), answer))
    print(f"{several(len(questions), 'question')} answered in {time.monotonic() - began:.1f} s", file=sys.stderr)
    warn(cut_text(cuts, len(questions)))
    if none:
        say(f"no chunk found for any: {none}")
    if stale:
        say(stale)
    return code


def place_of(options: argparse.Namespace) -> "Place":
    """Where what is asked for lies: a directory, or a collection of a server."""
    from interlock.engine.search.served import ASKING, ServerPlace, StoreCopy

    copy, exact = getattr(options, "copy", False), getattr(options, "exact", False)
    if isinstance(options.store, Path):
        given = {"api-key-file": options.api_key_file, "patience": options.patience != ASKING}
        for name, value in {**given, "projection": options.projection, "exact": exact}.items():
            if value:
                raise UsageError(f"--{name}: is for a server, and {options.store} is a directory: drop it")
        return StoreCopy(options.store) if copy else options.store
    if copy:
        raise UsageError("--copy: a server has many readers: drop it")
    return ServerPlace(options.store, options.api_key_file, options.patience, options.projection, exact)


def encode(options: argparse.Namespace) -> int:
    """Encode texts as the points of a collection are, and write the vectors: a line of JSON each, a table, an array."""
    from interlock.engine.flows.search import encode_for

    settings, out = configuration(options), options.vectors
    check_file("--out", out, {"the file of texts": options.file})
    if out and out.suffix not in VECTOR_FILES:
        raise UsageError(f"--out {out}: name it {', '.join(VECTOR_FILES)}, which says what it is to be")
    asked = _asked(options)
    with progress("text") as done:
        listener, texts = Listener(telling, say, done), [each.text for each in asked]
        place = place_of(options)
        found = encode_for(settings, place, options.collection, texts, options.side, options.only or "", listener)
    warn(cut_text(found.cut, len(found), "text"))
    warn(found.lacks)
    _write_vectors(out, [each.id for each in asked], found)
    return ExitCode.COMPLETED


def _asked(options: argparse.Namespace) -> "list[Question]":
    """The texts of the command line, of a file, or of stdin."""
    from interlock.engine.search.questions import Question, questions_in, read_questions

    if options.file and options.texts:
        raise UsageError("encode: pass texts, or a file of them with --file")
    if options.file:
        return list(read_questions(options.file))
    if options.texts and options.texts != ["-"]:
        return [Question(str(number), text) for number, text in enumerate(options.texts, 1)]
    if not sys.stdin or (sys.stdin.isatty() and not options.texts):
        raise UsageError("encode: pass texts, a file of them with --file, or one a line on stdin")
    return list(questions_in((line.rstrip(b"\r\n") for line in sys.stdin.buffer), "stdin"))


def _write_vectors(out: Path | None, ids: Sequence[str], found: "EncodedTexts") -> None:
    from interlock.engine.targets.files.tables import text_lines, texts_table

    if out and out.suffix == ".npy":
        import numpy as np

        names = [name for name in found.dense if name == "fused"] or list(found.dense)
        if len(names) != 1:
            raise UsageError(f"--out {out} holds one a text: use .jsonl, or --only ({', '.join(names) or 'a model'})")
        with atomic.replacing(out) as partial, partial.open("wb") as file:
            np.save(file, found.dense[names[0]])
    elif out and out.suffix == ".parquet":
        import pyarrow.parquet as pq

        with atomic.replacing(out) as partial:
            pq.write_table(texts_table(ids, found.texts, found.dense, found.sparse), partial, compression="zstd")
    else:
        with writing(out) as write:
            for line in text_lines(ids, found.texts, found.dense, found.sparse):
                write(line)


def _stale_among(answers: "Sequence[Answer]", answering: "Answering") -> str:
    """Tell how much of a store is stale where an answer has any of it; empty where none has."""
    from interlock.engine.targets.embedded import Store
    from interlock.engine.targets.mirror import marked

    hits, store = sum(hit.stale for answer in answers for hit in answer.hits), answering.searcher.store
    if not hits or not isinstance(store, Store):  # a server is told by `interlock upload` what left
        return ""
    points = f"{len(marked(store)):,} of {several(store.count(), 'point')} in {safe(store.path)}"
    return (
        f"{several(hits, 'hit')} and {points} are of chunks that left the corpus: "
        f"`{command(['prune', argument(store.path.parent)])}` removes them"
    )


def _print_answer(answer: "Answer", *, as_json: bool, explained: bool) -> None:
    if not answer.hits:
        say(f"no chunk found{answer.why_none and f': {answer.why_none}'}")
    for line in (hit_lines if as_json else answer_lines)(answer, explained=explained):
        print(line)
    if explained and not as_json:
        print(stages_took(answer), file=sys.stderr)


def rerank(options: argparse.Namespace) -> int:
    """Score the pairs of a file, a line for each of its lines."""
    from interlock.engine.flows.rerank import score_file

    settings, out = configuration(options), options.scores
    check_file("--out", out, {"the file of pairs": options.pairs})
    with writing(out) as write, progress("pair") as done:
        for line, scores in score_file(settings, options.pairs, options.model, Listener(telling, progress=done)):
            write(json.dumps({"score": scores[0]} if line.alone else {"scores": scores}) + "\n")
    return ExitCode.COMPLETED


def serve(options: argparse.Namespace) -> int:
    """Answer other programs until a signal ends it."""
    try:
        from interlock.console.front_ends import connections, http
    except ModuleNotFoundError as missing:
        raise UnavailableError(f"`serve` needs {missing.name}: install interlock[serve]") from None
    from interlock.engine.flows.rerank import rerank_of
    from interlock.engine.flows.search import Service

    admission = connections.Admission.of(f"--host {options.host}", options.host, KEY)
    settings = configuration(options)
    rerank = rerank_of(settings, options.rerank, options.rerank_share, options.rerank_depth)
    with (
        connections.listening(options.host, options.port) as at,
        Service(settings, place_of(options), options.collection, rerank, telling) as service,
    ):
        warn(service.manifest.gap)
        named = f"[{options.host}]" if ":" in options.host else options.host
        dims = ", ".join(f"{name} ({dim:,})" for name, dim in service.dims.items())
        told = f"{service.manifest.collection}: {dims} on {', '.join(service.devices)}"
        door, url = http.Door(service, options.waiting, admission), f"http://{named}:{at.getsockname()[1]}"
        print(safe(told))
        print(f"{url}/v1/embeddings" + (f", {url}/search" if service.searches else "; no store: embeddings alone"))
        asked = f"with the key of {KEY}" if admission.key else f"no key asked for (set {KEY} to one)"
        print(f"{asked}; base URL of OpenAI's clients {url}/v1; ctrl+c ends it", flush=True)
        try:
            connections.server_of(door.app).run(sockets=[at])
        finally:
            door.close()
    print("interlock: ended", file=sys.stderr)
    return ExitCode.COMPLETED
