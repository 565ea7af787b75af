"""`interlock view` on a terminal: an app that shows one or two summaries and nothing else."""

from textual.driver import Driver

from console.driver import HangupSafeDriver
from console.frame import Frame
from console.look import Look
from console.screens.summary import SummaryScreen
from console.summaries import Document


class Viewer(Frame[None]):
    """Summaries that were read, on the screen until they are left."""

    def __init__(
        self,
        document: Document,
        other: Document | None = None,
        look: Look | None = None,
        *,
        driver: type[Driver] | None = HangupSafeDriver,
    ) -> None:
        super().__init__(look, driver=driver)
        self._documents = document, other

    def open(self) -> None:
        document, other = self._documents
        self.push_screen(SummaryScreen(document, other, self.look))
