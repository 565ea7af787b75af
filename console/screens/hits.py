"""The parts of the search screen: the line that questions are typed in, the list of chunks, one chunk in full, and the
conditions on payloads."""

import shlex
from collections.abc import Callable, Sequence
from typing import ClassVar

from textual import events, on, work
from textual.binding import Binding, BindingType
from textual.widgets import Input

from interlock.console.actions import HIT, bindings_of
from interlock.console.look import Look
from interlock.console.screens.ask import Find
from interlock.console.screens.base import DetailScreen, aside, copied
from interlock.console.text import answer_rows
from interlock.engine.errors import InterlockError, UsageError
from interlock.engine.record.words import drawn
from interlock.engine.search.conditions import Condition, read_condition
from interlock.engine.search.hits import Hit
from interlock.widgets.choices import Choices
from interlock.widgets.text import Row


class QuestionLine(Input):
    """The line that questions are typed in."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("ctrl+c", "screen.quit", show=False)]

    def __init__(self) -> None:
        super().__init__(placeholder="type a question, enter asks", compact=True, id="question", select_on_focus=False)

    def _on_paste(self, event: events.Paste) -> None:
        """Take all lines of what was pasted as one."""
        event.prevent_default().stop()
        self.replace(" ".join(event.text.split()), *sorted(self.selection))

    def take(self, character: str) -> None:
        """Take a key that another widget was given."""
        self.replace(character, *sorted(self.selection))


class Hits(Choices):
    """The chunks; keys move the choice in it, on a screen where others begin a question."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding(key, f"screen.move('{where}')", show=False)
        for key, where in (("up", "up"), ("down", "down"), ("pageup", "page_up"), ("pagedown", "page_down"),
                           ("home", "first"), ("end", "last"))
    ]  # fmt: skip


class Filters(Find):
    """The conditions on payloads; one that cannot be is told while it stands, and may be mended."""

    def __init__(
        self, value: str, check: Callable[[Sequence[Condition]], object], problem: Callable[[str], object]
    ) -> None:
        """`check` is called in a thread, `problem` hears why a condition cannot be; nothing once that is mended."""
        super().__init__("only KEY=VALUE ...", value)
        self._check, self._problem = check, problem

    @on(Input.Changed)
    def _mended(self) -> None:
        self._problem("")

    @on(Input.Submitted)
    def done(self, event: Input.Submitted) -> None:
        """Close only with what the store can be asked."""
        event.prevent_default().stop()  # a line of another kind closes with anything
        self._try(event.value)

    @work(exclusive=True, group="check", exit_on_error=False)
    async def _try(self, text: str) -> None:
        try:
            conditions = read_conditions(text)
            await aside(lambda: self._check(conditions))
        except InterlockError as error:
            self._problem(str(error))
        else:
            self.dismiss(text)


def read_conditions(text: str) -> tuple[Condition, ...]:
    """Read conditions as they are typed, parted by blanks, in quotes where they have any. Raises UsageError for what is
    none."""
    try:
        parts = shlex.split(text)
    except ValueError as error:
        raise UsageError(f"filters {text!r:.100}: {error}: set quotes in pairs") from error
    return tuple(map(read_condition, parts))


class HitScreen(DetailScreen):
    """Everything about one chunk."""

    ACTIONS = HIT
    BINDINGS: ClassVar[list[BindingType]] = [*bindings_of(HIT), Binding("enter,space", "close", show=False)]

    def __init__(self, hit: Hit, question: str, look: Look) -> None:
        super().__init__(drawn(hit.payload.get("chunk_id"), 80), look.keys)
        self._hit, self._question, self._look = hit, question, look

    def rows(self, width: int) -> list[Row]:
        return answer_rows.whole(self._hit, self._question, width)

    def action_copy_hit(self) -> None:
        """Copy id and text through the terminal (OSC 52)."""
        self.notify(copied(self.app, answer_rows.copied(self._hit), "id and text"), markup=False)
