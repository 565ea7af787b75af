"""Applications of one screen: a summary or two, the runs of a directory, the search in a store, the form of a new run.

Each imports its screen when it opens, so that none waits for those of the others.
"""

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from textual.driver import Driver

from interlock.console.apps.base import Frame
from interlock.console.look import Look
from interlock.console.terminal.driver import HangupSafeDriver

if TYPE_CHECKING:
    from interlock.console.form import Filled, Machine
    from interlock.console.screens.hits import Retriever
    from interlock.console.summary.document import Document
    from interlock.console.text.answer_rows import StoreShown
    from interlock.engine.search.ask import Ask


class Viewer(Frame[None]):
    """`interlock view` on a terminal: summaries that were read, on the screen until they are left."""

    def __init__(
        self, document: "Document", other: "Document | None" = None, look: Look | None = None,
        *, driver: type[Driver] | None = HangupSafeDriver,
    ) -> None:  # fmt: skip
        super().__init__(look, driver=driver)
        self._documents = document, other

    @property
    def runs_in(self) -> Path:
        document = self._documents[0]
        return Path(document.name).absolute().parent.parent if document.size is not None else self.look.out

    def open(self) -> None:
        from interlock.console.screens.summary import SummaryScreen

        self.push_screen(SummaryScreen(*self._documents, self.look))


class Runs(Frame[None]):
    """`interlock runs` on a terminal: the runs of a directory, until one is chosen."""

    def __init__(
        self, out: Path, look: Look | None = None,
        *, now: Callable[[], float] = time.time, driver: type[Driver] | None = HangupSafeDriver,
    ) -> None:  # fmt: skip
        super().__init__(replace(look or Look(), out=out), driver=driver)
        self.now = now

    def open(self) -> None:
        self.show_runs()


class SearchApp(Frame[None]):
    """`interlock search` without a question: one store to be asked, until it is left."""

    def __init__(
        self, retriever: "Retriever", shown: "StoreShown", ask: "Ask", look: Look | None = None,
        *, driver: type[Driver] | None = HangupSafeDriver,
    ) -> None:  # fmt: skip
        super().__init__(look, driver=driver)
        self._asked = retriever, shown, ask

    def open(self) -> None:
        from interlock.console.screens.search import SearchScreen

        self.push_screen(SearchScreen(*self._asked, self.look))


class Form(Frame["Filled"]):
    """`interlock` alone: a form that gives what was filled in and can begin; nothing when it was left."""

    ENABLE_COMMAND_PALETTE = False

    def __init__(
        self, look: Look, machine: "Machine", filled: "Filled | None" = None, failed: str = "",
        *, driver: type[Driver] | None = HangupSafeDriver,
    ) -> None:  # fmt: skip
        """`filled` is what stands in the form at first, `failed` why a run of it did not begin."""
        from interlock.console.screens.setup import Setup

        super().__init__(look, driver=driver)
        self.animation_level = "none"  # a field is in sight at once, and few bytes are sent
        self._setup = Setup(machine, look, filled or machine.empty(), failed)

    def open(self) -> None:
        self.push_screen(self._setup)

    async def action_quit(self) -> None:
        """Leave as the form does, which asks where something would be lost."""
        if self.screen is self._setup:
            self._setup.action_leave()
