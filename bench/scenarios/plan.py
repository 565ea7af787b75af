"""A random plan: rows that are hard to plan for, scarce memory, a schedule, faults, and what an operator asks for.

Drawn from a seed and the memory laws of the models alone; the same seed always draws the same.
"""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from interlock.engine.compute.schedule import Schedule
from interlock.engine.gpu.device import RESERVE
from interlock.engine.gpu.faults import MENU
from interlock.engine.models.memory import Calibration, Law
from interlock.engine.models.networks.kernels import TILE

KIB, MIB = 1 << 10, 1 << 20
LONGEST = 600
"""Tokens that the models take; what is over is cut off."""
RESERVES = (*[RESERVE] * 8, 44 * MIB, 44 * MIB, 26 * MIB, 22 * MIB, 4 * MIB)
"""Slack that no lease is promised: with less than the engine's own, segments of the allocator do not fit either."""
SHORTEST_NAN = 16
"""torch's fused attention for the CPU makes zeros of NaN in queries or keys of rows shorter than a vector register."""


@dataclass(frozen=True)
class Plan:
    """Everything about one plan; sizes are bytes."""

    seed: int
    models: tuple[str, ...]
    lengths: tuple[int, ...]
    """Tokens of each row."""
    split: int
    """Rows from here on are those of a second collection."""
    batch_tokens: int
    ceiling: int
    totals: tuple[int, int]
    """All memory of each card."""
    reserve: int
    schedule: Schedule
    window: int
    cpu_fallback: bool
    halves: bool
    """Whether models are in a half precision, and float32 is wider."""
    overflows: bool
    """Whether the longest rows are not finite in a half precision, which the canary does not see."""
    faults: tuple[str, ...]
    asked: tuple[tuple[int, str, str], ...]
    """What is asked for when so many batches are committed: a control and its value."""
    stop: int
    """After so many batches the run is stopped, and gone on with; 0: never."""
    limit: int = LONGEST
    """Tokens that the models take of a row."""

    @property
    def kinds(self) -> set[str]:
        """The faults by their names."""
        return {fault.partition(":")[0].partition("@")[0] for fault in self.faults}

    @property
    def calm(self) -> bool:
        """Whether nothing goes wrong but that memory is scarce."""
        return not self.faults and not (self.halves and self.overflows) and self.reserve == RESERVE

    @property
    def schedules(self) -> set[str]:
        """Every schedule that it may be on at some time."""
        return {self.schedule, *(value for _, control, value in self.asked if control == "schedule")}


def draw(seed: int, laws: Mapping[str, Law]) -> Plan:
    """The plan of a seed for some of the models that `laws` names, the last of which is the dearest."""
    dice = random.Random(seed)
    known = list(laws)[: len(laws) - dice.choice((0, 1, 1))]
    models = tuple(dice.sample(known, dice.choice((1, 2, 2, 3))))
    kinds = [dice.choice(list(MENU)) for _ in range(dice.choice((0, 1, 1, 2, 3)))]
    lengths, budget = _lengths(dice), dice.choice((16, 64, 65, 127, 256, 700))
    if "nan" in kinds and list(laws)[-1] in models:
        lengths = tuple(max(length, SHORTEST_NAN) for length in lengths)
    limit = _limit(random.Random(f"long {seed}")) if "nan" not in kinds else LONGEST
    reserve, schedule = dice.choice(RESERVES), dice.choice(list(Schedule))
    scarce = _scarce(dice, [laws[key] for key in models], [min(limit, length) for length in lengths], budget)
    ceiling = reserve + dice.choice((KIB, 300 * KIB, 8 * MIB, 24 * MIB)) + scarce
    return Plan(
        seed=seed,
        models=models,
        lengths=lengths,
        split=dice.choice((len(lengths), max(1, len(lengths) // 3))),
        batch_tokens=budget,
        ceiling=ceiling,
        totals=(_total(dice, ceiling), _total(dice, ceiling)),
        reserve=reserve,
        schedule=schedule,
        window=dice.randrange(1, 4) if schedule is Schedule.ROTATING else 0,
        cpu_fallback=dice.random() < 0.6,
        halves=dice.random() < 0.6,
        overflows=dice.random() < 0.3,
        faults=tuple(_fault(dice, kind, ceiling) for kind in kinds),
        asked=tuple(_asked(dice) for _ in range(dice.choice((0, 0, 1, 2)))),
        stop=dice.choice((0, 0, 0, 0, dice.randrange(1, 12))),
        limit=limit,
    )


def ids_of(row: int, length: int) -> npt.NDArray[np.int64]:
    """The token ids of a row follow from its place."""
    return (np.arange(length) * (row + 3) + row) % 60 + 5


def _lengths(dice: random.Random) -> tuple[int, ...]:
    """One token each; all equal; one huge among small ones, and too long perhaps; about powers of two; or anything."""
    count = dice.randrange(1, 15)
    near = [2**power + step for power in range(1, 9) for step in (-1, 0, 1)]
    match dice.choice(("one", "equal", "huge", "powers", "random")):
        case "one":
            return (1,) * count
        case "equal":
            return (dice.choice(near),) * count
        case "huge":
            return (*(dice.randrange(1, 9) for _ in range(count)), dice.choice((LONGEST, LONGEST + 1)))
        case "powers":
            return tuple(dice.choice(near) for _ in range(count))
    return tuple(dice.randrange(1, 130) for _ in range(count))


def _limit(dice: random.Random) -> int:
    """The models' limit; in one plan of three some rows are longer, and cut off, perhaps before a NaN."""
    return LONGEST if dice.random() < 2 / 3 else dice.choice((16, 40, 120))


def _scarce(dice: random.Random, laws: Sequence[Law], lengths: Sequence[int], budget: int) -> int:
    """Bytes between what the largest model cannot do without and what holds its widest batch at ease."""
    longest, first = min(LONGEST, max(lengths)), Calibration()
    alone = longest + TILE - 1  # packed rows are filled up
    least = max((law.slots or law.weights) + first.activations(law, alone, longest) for law in laws)
    most = max(law.weights + first.activations(law, max(alone, budget + TILE - 1), longest) for law in laws)
    return least + int(dice.random() ** 2 * 1.5 * max(0, most - least))


def _total(dice: random.Random, ceiling: int) -> int:
    """Mostly more than the ceiling."""
    return ceiling + dice.choice((0, MIB, 40 * MIB, 100 * MIB))


def _fault(dice: random.Random, kind: str, ceiling: int) -> str:
    where = dice.choice(("", "", "@cuda:0", "@cuda:1"))
    first = int(2 ** dice.uniform(0, 8))
    arguments = {
        "oom": f"{first}",
        "cublas": f"{first}",
        "nvml": f"{first}",
        "assert": f"{first}",
        "skew": f"{dice.choice((1, 1, 2, 5))}",
        "oom-over": f"{dice.choice((2, 8, 16, 64, 256))}KiB",
        "fragment": f"{dice.choice((1, 20, 40, 100))}MiB",
        "leak": f"{dice.choice((1, 600, 3000))}KiB",
        "other": f"{dice.choice((1, ceiling // KIB // 2, ceiling // KIB))}KiB:{first}"
        + dice.choice(("", f":{first + dice.randrange(200)}")),
        "lose": f"{first}",
        "attach": f"{dice.choice((1, 2, 3, 5))}",
        "nan": f"{first}",
        "lag": f"{dice.choice((0.05, 1, 5))}",
    }
    return f"{kind}{where}:{arguments[kind]}"


def _asked(dice: random.Random) -> tuple[int, str, str]:
    if dice.random() < 0.8:
        return dice.randrange(1, 12), "schedule", dice.choice(list(Schedule))
    return dice.randrange(1, 12), "cpu_fallback", dice.choice(("yes", "no"))
