"""When a session has to be over, and what may still be begun before that: the next batch, lease or delivery.

Each is begun only where the time it is predicted to take, with that of what closes the run, ends before the deadline.
Predicted is on the safe side: a batch takes as long as the slowest of its pass so far, and longer in proportion where
it costs more than any of them. No clock is read but the one that is given.
"""

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from interlock.engine.compute.controls import Controls
from interlock.engine.compute.grid import Cells
from interlock.engine.errors import ExitCode
from interlock.engine.record.words import parse_duration, parse_time_of_day

CLOSING_SECONDS = 30.0
"""What is kept for releasing the leases, the journal and the summary. Chosen: all of it takes a second or two."""
UNSURE = 2.0
"""How much longer the first batch of a pass is taken to be than earlier runs, or the passes before it, make of it."""
Clock = Callable[[], float]


def seconds_until(text: str, now: datetime) -> float:
    """Return how long it is from `now`, in local time, to the end that a text asks for: `8h30m` from now, or `17:45`,
    today or tomorrow. Raises ValueError for any other text."""
    try:
        at = parse_time_of_day(text)
    except ValueError:
        return parse_duration(text)
    days = now.date(), now.date() + timedelta(days=1)
    # As the clocks go: in the night in which they are put back, a time comes twice.
    comes = [datetime.combine(day, at.replace(fold=fold)).timestamp() for day in days for fold in (0, 1)]
    return next(end for end in comes if end > now.timestamp()) - now.timestamp()


@dataclass
class _Slowest:
    """The longest that something took, in seconds, and the most that any of it cost."""

    seconds: float = 0.0
    cost: float = 0.0

    def take(self, seconds: float, cost: float) -> None:
        self.seconds, self.cost = max(self.seconds, seconds), max(self.cost, cost)

    def of(self, cost: float) -> float:
        return self.seconds * max(1.0, cost / self.cost if self.cost else 1.0)


class Deadline:
    """The end of one session; without `seconds` there is none, and everything may be begun. For any thread."""

    def __init__(
        self, seconds: float | None = None, controls: Controls | None = None, clock: Clock = time.monotonic
    ) -> None:
        """It comes `seconds` from now; `controls` are told to stop when something does not fit before it."""
        self.clock = clock
        self.near = False
        """Whether something did not fit, so that the run is to stop."""
        self.reserve: Callable[[], float] = lambda: 0.0
        """Seconds that are needed beside those of what is begun, for what the run is to deliver before it ends."""
        self.paces: Mapping[str, float] = {}
        """Tokens a second by model in earlier runs."""
        self._ends = None if seconds is None else clock() + seconds
        self._controls = controls
        self._batches: dict[int, _Slowest] = {}
        self._leases = _Slowest()
        self._lock = threading.Lock()

    @property
    def left(self) -> float:
        """Seconds until then; infinite where there is no deadline."""
        return float("inf") if self._ends is None else self._ends - self.clock()

    def allows(self, seconds: float, *, reserve: bool = True) -> bool:
        """Whether what takes so long may still be begun; where it may not, the run is told to stop. Without `reserve`,
        it is what that was kept for."""
        if self._ends is None:
            return True
        if self.fits(seconds + (self.reserve() if reserve else 0.0)):
            return True
        if self._controls and not self._controls.stop_requested:
            self.near = True
            self._controls.stop(ExitCode.STOPPED)
        return False

    def fits(self, seconds: float) -> bool:
        """Whether what takes so long is over in time, with what closes the run."""
        return seconds + CLOSING_SECONDS <= self.left

    def allows_batch(self, cells: Cells, index: int) -> bool:
        """Whether a batch may still be begun, as `allows` says."""
        return self._ends is None or self.allows(self.seconds_of(cells, index))

    def allows_lease(self, weights: int, cells: Cells, index: int) -> bool:
        """Whether a model with `weights` bytes may still be leased and loaded, for at least one batch."""
        with self._lock:
            opening = self._leases.of(weights)
        return self._ends is None or self.allows(opening + self.seconds_of(cells, index))

    def seconds_of(self, cells: Cells, index: int) -> float:
        """Predict what a batch takes at most. Of a pass without any the pace of earlier runs counts, else that of the
        passes before it, either doubled; 0 where nothing is known."""
        cost, computed = cells.layout.cost(index), cells.layout.computed(cells.batches[index])
        with self._lock:
            own, others = self._batches.get(cells.model_pass), list(self._batches.values())
            if own:
                return own.of(cost)
            if pace := self.paces.get(cells.card.key, 0.0):
                return UNSURE * computed / pace
            return UNSURE * cost * max((each.seconds / each.cost for each in others if each.cost), default=0.0)

    def learn(self, cells: Cells, index: int, seconds: float) -> None:
        """Take in what a batch took."""
        with self._lock:
            self._batches.setdefault(cells.model_pass, _Slowest()).take(seconds, cells.layout.cost(index))

    def learn_lease(self, weights: int, seconds: float) -> None:
        """Take in what it took to lease and load models with so many bytes."""
        with self._lock:
            self._leases.take(seconds, weights)
