"""What the screens of a run ask of the application that shows them; they know nothing else of it."""

from collections.abc import Sequence
from typing import Protocol

from interlock.console.look import Leave


class Themed(Protocol):
    """An application whose look can be changed."""

    @property
    def why_not_suspend(self) -> str:
        """Why this process must not be stopped for a while; empty where it may be."""

    def next_theme(self) -> str:
        """Use the next theme; return its name."""

    def show_runs(self) -> None:
        """Open the list of runs."""


class Host(Themed, Protocol):
    """An application that looks at a run."""

    who: str
    """Who sits at the terminal."""

    @property
    def skipped(self) -> int:
        """Frames that were left out because the terminal did not keep up."""

    def exit(self, result: Leave | None = None) -> None:
        """Leave the screen in this way."""

    def stop_run(self) -> bool:
        """Ask the run for an end after the batch in flight; whether it could be asked."""

    def show_recap(self) -> None:
        """Say what became of the run that has ended."""

    def show_summary(self) -> None:
        """Show the summary as it is on disk now."""

    def export(self, lines: Sequence[str]) -> str:
        """Write these lines beside the summary; return what to say of it."""

    def redraw(self) -> None:
        """Send the whole screen anew."""

    def change_rate(self, step: int) -> float:
        """Look more often, or less; return how often a second."""
