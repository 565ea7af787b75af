"""How long a server that does not answer is asked again: exponential pauses with jitter, up to a deadline.

The clock, the sleep and the dice are those of whoever makes it, so that no test has to wait.
"""

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from tenacity import RetryCallState

FIRST, LONGEST = 0.5, 30.0
"""Seconds of the first pause, and of the longest but for one that the server asks for."""
T = TypeVar("T")


class Passing(Exception):
    """An answer that may be another one later; `wait` is how many seconds the server asks to be left alone."""

    def __init__(self, reason: str, wait: float = 0.0) -> None:
        super().__init__(reason)
        self.wait = wait


@dataclass
class Patience:
    """What one request is allowed: `seconds` from its first attempt; `told` hears why and how long it pauses.

    `retries` counts the attempts that were repeated.
    """

    seconds: float
    told: Callable[[str, float], object] = lambda reason, pause: None
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    chance: Callable[[], float] = random.random
    retries: int = 0

    def insist(self, attempt: Callable[[], T]) -> T:
        """Return what `attempt` gives, tried again after each `Passing`. Raises the last of them where the next pause
        would end behind the deadline."""
        from tenacity import Retrying, retry_if_exception_type

        began = self.clock()
        retrying = Retrying(
            retry=retry_if_exception_type(Passing),
            wait=self._pause,
            stop=lambda state: self.clock() - began + state.upcoming_sleep > self.seconds,
            before_sleep=self._tell,
            sleep=self.sleep,
            reraise=True,
        )
        return retrying(attempt)

    def _pause(self, state: "RetryCallState") -> float:
        """Between half of the exponential pause and all of it, so that clients do not come back together; never less
        than the server asked for."""
        asked = error.wait if isinstance(error := _error_of(state), Passing) else 0.0
        exponential = min(LONGEST, FIRST * 2.0 ** min(state.attempt_number - 1, 10))
        return max(asked, exponential / 2 * (1 + self.chance()))

    def _tell(self, state: "RetryCallState") -> None:
        self.retries += 1
        self.told(str(_error_of(state)), state.upcoming_sleep)


def _error_of(state: "RetryCallState") -> BaseException | None:
    return state.outcome.exception() if state.outcome else None
