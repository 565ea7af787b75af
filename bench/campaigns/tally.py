"""What was tried, how often, and what failed."""

import random
import subprocess
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.campaigns.field import Field, store_of

LONGEST = 300
"""Characters of what is told of a failure; the seed and the number of the trial bring back the rest."""


@dataclass
class Report:
    """Of one trial: what it tried, and what was wrong."""

    tried: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Room:
    """Where one trial takes place, and its chance: the same for the same seed and number."""

    field: Field
    place: Path
    number: int
    rng: random.Random

    def run(self, name: str = "r") -> Path:
        """A run's directory in this room."""
        (self.place / "runs").mkdir(exist_ok=True)
        return self.place / "runs" / name

    def copied(self, source: Path, name: str = "r") -> Path:
        """A copy of a run and of the store beside it, files with holes and all."""
        run = self.run(name)
        pairs = [(source, run), (store_of(source), store_of(run))]
        for old, new in pairs:
            if old.exists():
                subprocess.run(["cp", "-a", "--sparse=always", old, new], check=True)
        return run

    def directory(self, name: str) -> Path:
        """A directory that is there."""
        path = self.place / name
        path.mkdir(parents=True, exist_ok=True)
        return path


@dataclass(frozen=True)
class Campaign:
    """One kind of trial, and how many of it a whole campaign makes."""

    name: str
    trial: Callable[[Room], Report]
    trials: int
    told: str


@dataclass
class Tally:
    """Reports of many trials of one campaign."""

    trials: int = 0
    seconds: float = 0.0
    tried: Counter[str] = field(default_factory=Counter)
    failures: list[dict[str, Any]] = field(default_factory=list)

    def add(self, number: int, report: Report, seconds: float) -> None:
        self.trials += 1
        self.seconds += seconds
        self.tried.update(report.tried)
        if report.wrong:
            self.failures.append({"trial": number, "wrong": [wrong[:LONGEST] for wrong in report.wrong]})

    def merge(self, other: "Tally") -> None:
        self.trials += other.trials
        self.seconds += other.seconds
        self.tried.update(other.tried)
        self.failures = sorted([*self.failures, *other.failures], key=lambda each: each["trial"])
