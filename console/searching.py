"""`interlock search`: one question, a file of them, or a screen that takes one after another."""

import argparse
import sys
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from interlock.console.answering import Answering, Rerank, SerialDesk, ask_of, rerank_of
from interlock.console.cli import configuration, limit_threads
from interlock.console.reranking import Hear, Telemetry, check_telemetry, nothing_heard
from interlock.console.text.answer_text import answer_lines, cut_text, hit_lines, stages_took, writer
from interlock.console.writing import check_directory, progress, writing
from interlock.engine.corpus.questions import read_questions
from interlock.engine.errors import ExitCode, UsageError
from interlock.engine.record.words import safe, several
from interlock.engine.settings import Configuration

if TYPE_CHECKING:
    from interlock.engine.search.ask import Ask
    from interlock.engine.search.hits import Answer

ON_SCREEN = 20
"""How many chunks answer a question on the screen where nobody says it."""


def search(options: argparse.Namespace) -> int:
    """Search a store for one question, or for those of a file, or open a screen that takes one after another."""
    from interlock.engine.search.ask import LIMIT, check_question

    settings = configuration(options)
    limit_threads(settings)
    on_screen = options.query is None and options.queries is None and not options.answers and _has_screen(options)
    limit = options.limit if options.limit is not None else ON_SCREEN if on_screen else LIMIT
    ask = ask_of(limit, options.weights, options.only, options.hybrid, options.sparse_share, options.filter or ())
    rerank = rerank_of(settings, options.rerank or (), options.rerank_share, options.rerank_depth)
    if on_screen:
        return _open_screen(options, settings, ask, rerank)
    if (options.query is None) == (options.queries is None):
        raise UsageError("search: pass a query, or a file of them with --queries")
    check_telemetry(options.telemetry, {"the file of questions": options.queries, "that of --out": options.answers})
    hear = partial(Telemetry, options.telemetry)
    if options.queries:
        return _search_file(options, settings, ask, rerank, hear)
    if options.answers:
        raise UsageError("--out is for the answers of --queries: use > FILE for those of one query")
    check_question(options.query)  # at once: no store answers it
    with Answering(settings, options.store, options.collection, rerank, hear) as answering:
        _tell_gap(answering)
        made = answering.answer([options.query], ask)
        stale = _stale_among(made.answers, answering)
    _print_answer(made.answers[0], as_json=options.json, explained=options.explain)
    if cut := made.answers[0].cut:
        print(safe(f"interlock: warning: {cut_text([cut], 1)}", 1000), file=sys.stderr)
    if stale:
        print(stale, file=sys.stderr)
    return made.exit_code


def _stale_among(answers: "Sequence[Answer]", answering: Answering) -> str:
    """Tell how much of a store is stale where an answer has any of it; empty where none has."""
    from interlock.engine.targets.mirror import marked

    hits = sum(hit.stale for answer in answers for hit in answer.hits)
    if not hits:
        return ""
    store = answering.searcher.store
    points = f"{len(marked(store)):,} of {several(store.count(), 'point')} in {safe(store.path)}"
    return (
        f"interlock: {several(hits, 'hit')} and {points} are of chunks that left the corpus: "
        f"interlock prune {safe(store.path.parent)} removes them"
    )


def _has_screen(options: argparse.Namespace) -> bool:
    from interlock.console.terminal.tty import why_headless

    return not options.json and bool(sys.stdout and sys.stdout.isatty()) and not why_headless()


def _open_screen(options: argparse.Namespace, settings: Configuration, ask: "Ask", rerank: Rerank | None) -> int:
    """Answer what is typed on a screen until it is left; what speaks against it is told before it opens."""
    from interlock.console.apps.search import SearchApp
    from interlock.console.look import look_of
    from interlock.console.terminal.tty import quiet_descriptors
    from interlock.console.text.answer_rows import shown_of

    look = look_of(settings)
    hear = partial(Telemetry, options.telemetry) if options.telemetry else nothing_heard
    answering = Answering(settings, options.store, options.collection, rerank, hear, kept=True)
    desk = SerialDesk(answering)
    try:
        desk.check(ask)
        store = answering.searcher.store
        short = [name.rpartition("/")[2] for name in rerank.names] if rerank else []
        shown = shown_of(answering.searcher.manifest, store.count(), ", ".join(short))
        with quiet_descriptors():
            SearchApp(desk, shown, ask, look).run()
    finally:
        desk.close()
    return ExitCode.COMPLETED


def print_search(settings: Configuration, store: Path, query: str, limit: int) -> None:
    """Search the one collection of a store and print what was found."""
    from interlock.engine.search.ask import Ask

    with Answering(settings, store, None, None, nothing_heard) as answering:
        _print_answer(answering.answer([query], Ask(limit)).answers[0], as_json=False, explained=False)


def _search_file(
    options: argparse.Namespace, settings: Configuration, ask: "Ask", rerank: Rerank | None, hear: Hear
) -> int:
    questions = list(read_questions(options.queries))  # a bad line is told before anything is computed
    write = writer(options.answers, options.ids, explained=options.explain)
    check_directory("--out", options.answers)
    if options.answers and options.answers.exists() and options.answers.samefile(options.queries):
        raise UsageError(f"--out: {options.answers} is the file of questions: name another file")
    code, began, texts = ExitCode.COMPLETED, time.monotonic(), [each.text for each in questions]
    stale, none, cuts = "", "", list[Mapping[str, int]]()
    with (
        Answering(settings, options.store, options.collection, rerank, hear, questions=len(questions)) as answering,
        writing(options.answers) as out,
        progress("question") as tell,
    ):
        _tell_gap(answering)
        left = iter(questions)
        for made in answering.windows(texts, ask, told=lambda model, done: tell(model, done, len(texts))):
            code = code or made.exit_code
            stale = stale or _stale_among(made.answers, answering)
            cuts += [answer.cut for answer in made.answers if answer.cut]
            none = none or next((answer.why_none for answer in made.answers if answer.why_none), "")
            for answer in made.answers:
                out(write(next(left), answer))
    took = time.monotonic() - began
    print(f"{several(len(questions), 'question')} answered in {took:.1f} s", file=sys.stderr)
    if cuts:
        print(safe(f"interlock: warning: {cut_text(cuts, len(questions))}", 1000), file=sys.stderr)
    if none:
        print(safe(f"interlock: no chunk found for any: {none}", 1000), file=sys.stderr)
    if stale:
        print(stale, file=sys.stderr)
    return code


def _tell_gap(answering: Answering) -> None:
    """Say on stderr which models the store lacks."""
    if gap := answering.searcher.manifest.gap:
        print(safe(f"interlock: warning: {gap}", 1000), file=sys.stderr)


def _print_answer(answer: "Answer", *, as_json: bool, explained: bool) -> None:
    if not answer.hits:
        print(safe(f"interlock: no chunk found{answer.why_none and f': {answer.why_none}'}", 1000), file=sys.stderr)
    for line in (hit_lines if as_json else answer_lines)(answer, explained=explained):
        print(line)
    if explained and not as_json:
        print(stages_took(answer), file=sys.stderr)
