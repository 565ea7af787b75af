"""What is promised of a GPU, and the report that grows beside it: written after every figure, so that none is lost.

A goal has its limit, its figure and whether it was met (null: not measured). A figure of time or rate is `Timed`; where
the device is not there it is left out, whoever measured it.
"""

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import evidence
import machine

FP16_COSINE = 0.9999
SOURCES = ("engine/gpu", "engine/models", "engine/compute")
Tree = dict[str, Any]


@dataclass(frozen=True)
class Timed:
    """A figure of time, or one that follows from time; a device that is not there has none."""

    value: float


@dataclass(frozen=True)
class Goal:
    """A limit from above, or from below."""

    limit: float
    at_least: bool = False

    def told(self, figure: float | None) -> Tree:
        met = None if figure is None else figure >= self.limit if self.at_least else figure <= self.limit
        return {"limit": f"{'>=' if self.at_least else '<='} {self.limit:.7g}", "figure": figure, "met": met}


GOALS: Mapping[str, Goal] = {
    "wall: bytes of the driver's over the ceiling": Goal(0),
    "wall: allocations that the driver had to refuse": Goal(0),
    "law: error of the peak, median": Goal(0.01),
    "law: error of the peak, worst": Goal(0.02),
    "plans: out-of-memory errors": Goal(0),
    "plans: allocator retries": Goal(0),
    "plans: bytes over the ceiling": Goal(0),
    "plans: rows without a vector": Goal(0),
    "residue: bytes allocated": Goal(0),
    "residue: bytes reserved": Goal(0),
    "residue: bytes of driver drift": Goal((1 << 20) - 1),
    # An attachment copies the network's objects, then its bytes; a release goes through all objects of the process.
    "attach: ms beyond the network's twin and 1.1 x bytes / rate, pinned": Goal(5),
    "attach: ms beyond the network's twin and 1.1 x bytes / rate, pageable": Goal(5),
    "attach: ms of a release beyond collecting garbage": Goal(20),
    # sentence-transformers sorts by length and computes 3 to 22 % of padding: that much is to be won for certain.
    "throughput: x sentence-transformers, chunks": Goal(1.0, at_least=True),
    "throughput: x sentence-transformers, mixed": Goal(1.05, at_least=True),
    "throughput: least cosine to sentence-transformers": Goal(FP16_COSINE, at_least=True),
    "streaming: time / max(compute, copy), worst": Goal(1.15),
    "ladder: rungs never used": Goal(0),
    "ladder: least cosine to the undisturbed": Goal(FP16_COSINE, at_least=True),
}


@dataclass
class Report:
    """The result as it grows. `timed`: whether figures of time may be told."""

    about: Tree
    timed: bool
    file: Path
    sections: dict[str, Tree] = field(default_factory=dict)
    figures: Tree = field(default_factory=dict)
    lock: threading.RLock = field(default_factory=threading.RLock)

    def put(self, section: str, name: str, value: Any) -> None:
        """A goal's figure, or what else a section has to tell."""
        with self.lock:
            if name in GOALS:
                self.figures[name] = value
            else:
                self.sections.setdefault(section, {})[name] = value
            self.write()

    def write(self, **more: object) -> None:
        with self.lock:
            part = self.file.with_name(self.file.name + ".part")
            told = {**self.about, **more, "goals": self.goals(), "sections": self._plain(self.sections)}
            evidence.keep(told, part, SOURCES)
            part.replace(self.file)

    def goals(self) -> dict[str, Tree]:
        figures = self._plain(self.figures)
        return {name: goal.told(figures.get(name)) for name, goal in GOALS.items()}

    @property
    def errors(self) -> list[str]:
        return [f"{name}: {error}" for name, found in self.sections.items() for error in found.get("errors", ())]

    @property
    def failed(self) -> bool:
        return bool(self.errors) or any(told["met"] is False for told in self.goals().values())

    def show(self) -> None:
        """The goals as a table, and what went wrong."""
        never = {"ladder: rungs never used": ", ".join(self.sections.get("ladder", {}).get("never_used", ()))}
        rows = [
            [
                name,
                "-" if told["figure"] is None else f"{told['figure']:.6g}",
                told["limit"],
                f"{_verdict(told['met'])} {never.get(name, '')}".rstrip(),
            ]
            for name, told in self.goals().items()
        ]
        machine.table(["goal", "figure", "limit", ""], rows)
        for error in self.errors:
            print(f"error in {error}")

    def _plain(self, value: Any) -> Any:
        """Without figures of time where there is no real device."""
        if isinstance(value, Timed):
            return value.value
        if isinstance(value, dict):
            kept = {name: each for name, each in value.items() if self.timed or not isinstance(each, Timed)}
            return {name: self._plain(each) for name, each in kept.items()}
        return [self._plain(each) for each in value] if isinstance(value, list) else value


def _verdict(met: bool | None) -> str:
    return "not measured" if met is None else "met" if met else "MISSED"
