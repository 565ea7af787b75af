"""`interlock view` on a terminal: an app that shows one or two summaries and nothing else."""

from pathlib import Path

from textual.driver import Driver

from interlock.console.apps.base import Frame
from interlock.console.look import Look
from interlock.console.screens.summary import SummaryScreen
from interlock.console.summary.document import Document
from interlock.console.terminal.driver import HangupSafeDriver


class Viewer(Frame[None]):
    """Summaries that were read, on the screen until they are left."""

    def __init__(
        self, document: Document, other: Document | None = None, look: Look | None = None,
        *, driver: type[Driver] | None = HangupSafeDriver,
    ) -> None:  # fmt: skip
        super().__init__(look, driver=driver)
        self._documents = document, other

    @property
    def runs_in(self) -> Path:
        document = self._documents[0]
        return Path(document.name).absolute().parent.parent if document.size is not None else self.look.out

    def open(self) -> None:
        self.push_screen(SummaryScreen(*self._documents, self.look))
