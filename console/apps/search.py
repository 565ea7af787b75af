"""`interlock search STORE` on a terminal: an app that answers one question after another until it is left."""

from textual.driver import Driver

from interlock.console.apps.base import Frame
from interlock.console.look import Look
from interlock.console.screens.search import Desk, SearchScreen
from interlock.console.terminal.driver import HangupSafeDriver
from interlock.console.text.answer_rows import StoreShown
from interlock.engine.search.ask import Ask


class SearchApp(Frame[None]):
    """One store, and the questions that are typed."""

    def __init__(
        self, desk: Desk, shown: StoreShown, ask: Ask, look: Look | None = None,
        *, driver: type[Driver] | None = HangupSafeDriver,
    ) -> None:  # fmt: skip
        super().__init__(look, driver=driver)
        self._search = SearchScreen(desk, shown, ask, self.look)

    def open(self) -> None:
        self.push_screen(self._search)
