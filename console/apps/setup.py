"""The application around the set-up form: it ends with what was filled in, which is a command line."""

from textual.driver import Driver

from interlock.console.apps.base import Frame
from interlock.console.form import Filled, Machine
from interlock.console.look import Look
from interlock.console.screens.setup import Setup
from interlock.console.terminal.driver import HangupSafeDriver


class Form(Frame[Filled]):
    """Gives what was filled in and can begin; nothing when it was left."""

    ENABLE_COMMAND_PALETTE = False

    def __init__(
        self, look: Look, machine: Machine, filled: Filled | None = None, failed: str = "",
        *, driver: type[Driver] | None = HangupSafeDriver,
    ) -> None:  # fmt: skip
        """`filled` is what stands in the form at first, `failed` why a run of it did not begin."""
        super().__init__(look, driver=driver)
        self.animation_level = "none"  # a field is in sight at once, and few bytes are sent
        self._setup = Setup(machine, look, filled or machine.empty(), failed)

    def open(self) -> None:
        self.push_screen(self._setup)

    async def action_quit(self) -> None:
        """Leave as the form does, which asks where something would be lost."""
        if self.screen is self._setup:
            self._setup.action_leave()
