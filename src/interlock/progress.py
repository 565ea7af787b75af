"""Shows how far a run is to whoever called `embed`: a table in a terminal or a notebook's cell, lines elsewhere.

Draws in the caller's thread and owns no state of the run. An interrupt of the caller stops the run after its batch.
"""

import asyncio
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Literal

from interlock.console.front_ends.headless import POLL_SECONDS, Headless
from interlock.console.sources.session import Session
from interlock.console.text.progress_text import progress
from interlock.console.writing import say
from interlock.engine.errors import ExitCode
from interlock.engine.record.facts import timed
from interlock.engine.record.snapshot import PassView, Snapshot
from interlock.engine.record.words import duration, percent, safe, several
from interlock.engine.standing.health import batches_of
from interlock.engine.standing.outlook import time_left_of

if TYPE_CHECKING:
    from rich.table import Table

BAR = 10
CELL_SECONDS = 0.5
"""A cell is drawn over at most so often: each time is a message to the browser."""

Show = Callable[[], None]
"""Show the run as it is now."""


def follow(session: Session, how: Literal["auto", "lines", "none"], before: str = "") -> None:
    """Begin the session and show it to its end; what it raised stays in the session. What was `before` is said once the
    chunks are accepted.

    The first interrupt stops the session, whenever it comes. Raises KeyboardInterrupt for a second one, while the batch
    in flight is still computed.
    """
    cancelled = _cancellations()
    session.start()
    try:
        with ExitStack() as screen:
            show, over = None, False
            while not over:
                try:
                    show = show or screen.enter_context(_display(session, how))
                    over = not session.alive  # asked first: what is shown then is how it ended
                    session.wait(POLL_SECONDS)
                    if before and _snapshot(session).collections:
                        say(before)
                        before = ""
                    show()
                    if _cancellations() > cancelled:
                        session.controls.stop(ExitCode.INTERRUPTED)
                except KeyboardInterrupt:
                    if session.controls.code is not None:
                        raise
                    session.controls.stop(ExitCode.INTERRUPTED)
    finally:
        if session.alive:  # nobody looks any more
            session.controls.stop(ExitCode.INTERRUPTED)


def _cancellations() -> int:
    """How many of this thread's tasks were asked to end: all that a first Ctrl-C does where an event loop runs, which
    `embed` keeps from going on."""
    try:
        return sum(task.cancelling() for task in asyncio.all_tasks())
    except RuntimeError:  # no loop runs here
        return 0


@contextmanager
def _display(session: Session, how: Literal["auto", "lines", "none"]) -> Iterator[Show]:
    if how == "none":
        yield lambda: None
        return
    if how == "lines":
        yield Headless(session, events=False, quiet=False).poll
        return
    from rich.console import Console

    console = Console(file=sys.stderr)
    if console.is_jupyter:
        yield _kept_up(_in_cell(session))
    elif console.is_terminal and console.is_interactive and not console.is_dumb_terminal:
        from rich.live import Live

        with Live(table(_snapshot(session)), console=console, auto_refresh=False) as live:
            yield _kept_up(lambda: live.update(table(_snapshot(session)), refresh=True))
    else:
        yield Headless(session, events=False, quiet=False).poll


def _kept_up(show: Show) -> Show:
    """The same, until it fails: the run goes on without it."""
    failed = False

    def shown() -> None:
        nonlocal failed
        if failed:
            return
        try:
            show()
        except Exception as error:
            failed = True
            warnings.warn(
                f"progress display stopped ({type(error).__name__}: {error}); the run continues", stacklevel=2
            )

    return shown


def _in_cell(session: Session) -> Show:
    """One output of the cell, drawn over by its id: rich's own Live needs ipywidgets for that."""
    from IPython.display import display

    handle, drawn, at = display(table(_snapshot(session)), display_id=True), -1, time.monotonic()

    def show() -> None:
        nonlocal drawn, at
        seen = _snapshot(session)
        if seen.seq != drawn and (not session.alive or time.monotonic() - at >= CELL_SECONDS):
            drawn, at = seen.seq, time.monotonic()
            handle.update(table(seen))

    return show


def _snapshot(session: Session) -> Snapshot:
    return session.work.recorder.snapshot() if session.work else Snapshot()


def table(snapshot: Snapshot) -> "Table":
    """Draw the run as a table: a row for each pass, and under it what is being done."""
    from rich import box
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    shown = Table(box=box.SIMPLE_HEAD, title_justify="left", caption_justify="left")
    shown.title = Text(f"run {safe(snapshot.run_id)}" if snapshot.run_id else "starting")
    for name in ("model", "", "", "batches", "pace", "left"):
        shown.add_column(name, no_wrap=True, min_width=8 if name == "model" else None)
    for each in snapshot.passes:
        bar = ProgressBar(total=1.0, completed=each.share_done, width=BAR)
        words = [each.failure or batches_of(each) or each.word, *_pace(each, snapshot)]
        shown.add_row(safe(each.model), bar, percent(each.share_done), *(Text(safe(word)) for word in words))
    notes = [f"{snapshot.phase}: {snapshot.reason}" if snapshot.reason else snapshot.phase]
    if not snapshot.over:
        notes = [progress(snapshot) or snapshot.phase]
    if snapshot.mitigations:
        notes.append(several(snapshot.mitigations, "mitigation"))
    if snapshot.warnings:
        notes.append(several(snapshot.warnings, "warning"))
    shown.caption = Text(safe(", ".join(notes)))
    return shown


def _pace(each: PassView, snapshot: Snapshot) -> tuple[str, str]:
    """Rows a second and the time left of a pass; nothing of devices that are not there."""
    if not timed(snapshot.device_kind) or not each.rows_per_second:
        return "", ""
    left = time_left_of(each, snapshot.passes)
    return f"{each.rows_per_second:.1f} texts/s", duration(left.seconds) if left else ""
