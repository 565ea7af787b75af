"""The summary that `--summary` asked for, of a run that was not closed: refused before its work, or broken off.

It says what was asked for and why nothing came of it; it goes where it was asked for, and nothing else is written.
"""

import importlib.metadata
import time
from pathlib import Path

from msgspec.structs import replace

from interlock.console.sources.session import Work
from interlock.engine.errors import InterlockError, Stopped
from interlock.engine.record import summary
from interlock.engine.record.events import AnyEvent, Entry, RunClosed, RunStarted
from interlock.engine.record.facts import Status
from interlock.engine.record.fold import fold
from interlock.engine.record.state import RunState
from interlock.engine.record.summary import Summary
from interlock.engine.settings import Configuration, recorded


def summary_of(work: Work, failure: InterlockError) -> Summary | None:
    """Summarise a run that began; it ended for this reason unless it says itself how it ended."""
    written = work.recorder.look(lambda state: summary.summarise(state) if state.started else None)
    if written is None or written.exit_code is not None:
        return written
    return replace(written, status=_status(failure), reason=str(failure), exit_code=int(failure.exit_code))


def refused(chunks: Path, configuration: Configuration | None, failure: InterlockError) -> Summary:
    """Summarise a run that never began; `configuration` is None where that was the reason."""
    settings = configuration.settings if configuration else None
    began = RunStarted(
        run_id=settings.run_id if settings else "",
        chunks=str(chunks),
        config=recorded(configuration) if configuration else {},
        fusion=settings.fusion if settings else "",
        schedule="",
        versions={"interlock": importlib.metadata.version("interlock")},
        environment={},
    )
    state = RunState()
    ended = RunClosed(status=_status(failure), reason=str(failure), exit_code=int(failure.exit_code))
    story: tuple[AnyEvent, ...] = (began, ended)
    for seq, body in enumerate(story):
        fold(state, Entry(seq=seq, at=time.time(), session=0, elapsed=0.0, device_kind="", body=body))
    return summary.summarise(state)


def _status(failure: InterlockError) -> Status:
    return "stopped" if isinstance(failure, Stopped) else "failed"
