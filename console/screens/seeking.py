"""What an operator does with the past of a run that is watched: go to any moment, mark it, find what went wrong.

The run itself goes on meanwhile, and its source goes on reading.
"""

import math
from abc import abstractmethod

from interlock.console.actions import ACTIONS, Action
from interlock.console.screens.steering import Steering
from interlock.console.sources.journal import Watched
from interlock.engine.record.words import duration
from interlock.widgets.panes.events import EventsPane

PAST = {action.name.partition("(")[0] for action in ACTIONS if action.past}


class Seeking(Steering):
    """A screen that shows a run as it stands, or as it stood."""

    _events: EventsPane
    _mark: float | None = None
    """The moment that was marked, in seconds from the beginning of the run."""

    @abstractmethod
    def gone(self) -> None:
        """Draw the moment that was gone to."""

    @property
    def _watched(self) -> Watched | None:
        """The run with a past that can be gone to; None for a run of this process."""
        return self.source if isinstance(self.source, Watched) else None

    def offers(self, action: Action) -> bool:
        if action.changes:
            return not self.why_not(action)
        return not action.past or self._watched is not None

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Keys for the past of a run do nothing where it has none."""
        return self._watched is not None or action not in PAST

    def action_first(self) -> None:
        if self._watched:
            self._go(0.0)
        else:
            self._events.action_home()

    def action_follow(self) -> None:
        if self._watched and self.source.past:
            self._go(math.inf)
        self._events.follow()

    def action_step(self, way: str, steps: int = 1) -> None:
        if run := self._watched:
            self._go(run.position + (steps if way == "on" else -steps) * run.step)

    def action_leap(self, way: str) -> None:
        self.action_step(way, 10)

    def action_trouble(self, way: str) -> None:
        """Go to what went wrong next, or before."""
        if self._watched and self._watched.go_to_trouble(1 if way == "next" else -1):
            self.gone()
        else:
            self.say(f"nothing went wrong {'after' if way == 'next' else 'before'} this moment")

    def action_set_mark(self) -> None:
        if self._watched:
            self._mark = self._watched.position
            self.say(f"marked {duration(self._mark)}: {self.shown_key('to_mark')} goes back to it")

    def action_to_mark(self) -> None:
        if self._mark is None:
            self.say(f"nothing is marked: {self.shown_key('set_mark')} marks a moment")
        else:
            self._go(self._mark)

    def _go(self, position: float) -> None:
        """Show the run as it was after so many seconds."""
        if self._watched:
            self._watched.go_to(position)
            self.gone()

    def action_faster(self, times: float = 2.0) -> None:
        if run := self._watched:
            run.go_at(run.speed * times)
            self.gone()

    def action_slower(self) -> None:
        self.action_faster(0.5)
