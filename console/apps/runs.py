"""`interlock runs` on a terminal: an app that shows the runs of a directory until one is chosen."""

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from textual.driver import Driver

from interlock.console.apps.base import Frame
from interlock.console.look import Look
from interlock.console.terminal.driver import HangupSafeDriver


class Runs(Frame[None]):
    """The runs of a directory."""

    def __init__(
        self, out: Path, look: Look | None = None,
        *, now: Callable[[], float] = time.time, driver: type[Driver] | None = HangupSafeDriver,
    ) -> None:  # fmt: skip
        super().__init__(replace(look or Look(), out=out), driver=driver)
        self.now = now

    def open(self) -> None:
        self.show_runs()
