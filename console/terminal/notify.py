"""Calls an operator who looks elsewhere: the bell, and a message that many terminals show on the desktop (OSC 9)."""

from typing import Any

from textual.app import App

from interlock.engine.record.snapshot import Snapshot
from interlock.engine.record.words import safe

LIMIT = 200


def call(text: str) -> str:
    """Write what makes a terminal ring and show `text`, which cannot steer it."""
    return f"\a\x1b]9;{safe(text, LIMIT)[:LIMIT]}\x1b\\"


def words(snapshot: Snapshot) -> str:
    """Say how the run ended. It begins with a word, because terminals read numbers after OSC 9 as something else."""
    kind = " SCRIPTED" if snapshot.scripted else " SIMULATED" if snapshot.simulated else ""
    reason = f": {snapshot.reason}" if snapshot.reason else ""
    return f"interlock{kind} {snapshot.run_id or 'run'} {snapshot.phase}{reason}"


def ended(app: App[Any], snapshot: Snapshot) -> None:
    """Call the operator; nothing happens where no terminal is."""
    if app._driver and not app.is_headless:
        app._driver.write(call(words(snapshot)))
