"""Runs to foretell, one after another: on simulated GPUs whose time is a virtual clock's, and on this machine's CPU.

A simulated run is a rehearsal: the real engine over models without weights, each with a speed of its own that its
operations do not tell, batches that differ, and a pace that drifts; the load of this machine does not touch it. A real
run computes random models of three sizes at one thread, on the memory of a simulated GPU. Every run is drawn from its
seed. What is yielded is the kind of the run, and its directory when it is finished.
"""

import math
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

from torch import nn

from interlock.engine.compute.context import REAL, Backend
from interlock.engine.compute.controls import Controls
from interlock.engine.compute.encoder import Encoder
from interlock.engine.errors import ExitCode
from interlock.engine.flows import rehearsal, weightless
from interlock.engine.flows.run import Run
from interlock.engine.gpu.device import Device
from interlock.engine.models.card import ModelCard
from interlock.engine.models.networks.sizes import cost_of
from interlock.engine.settings import load
from tests.builders import WORDS, corpus, tiny_model, toml

UNLIKE, UNEVEN, DRIFT = 0.35, 0.08, 0.15
"""Standard deviation of the logarithm of a model's own speed, and of a batch's; the share by which a pace drifts."""
SLOW = 5
HOST = (0.05, 0.3)
"""The least and the most of a GPU's speed that a host has."""
BETWEEN, OPENING = 0.02, 2.0
"""Seconds that pass between two batches, and before a model is leased."""
PATIENCE = 0.5
"""Real seconds after which a worker that does not wait for the clock is taken to wait for another worker."""
THREE = ("sim-bge-large-en", "sim-mpnet-base", "sim-minilm-l6")
Flags = dict[str, str]
KINDS: Mapping[str, Flags] = {
    "exclusive": {},
    "exclusive, one model slow": {},
    "rotating": {"window": "4"},
    "shared, one GPU": {"window": "shared"},
    "shared, two GPUs": {"window": "shared", "devices": "sim:2x16GiB"},
    "shared, one model on the CPU": {"window": "shared", "ceiling": "1100MiB"},
    "rows reused": {},
    "resumed": {},
}
REAL_KINDS: Mapping[str, Flags] = {
    "exclusive": {},
    "rotating": {"window": "3"},
    "shared, one GPU": {"window": "shared"},
    "shared, two GPUs": {"window": "shared", "devices": "sim:2xT4"},
    "shared, one model on the CPU": {"window": "shared", "ceiling": "240MiB"},
    "rows reused": {},
    "resumed": {},
}
"""Ceilings under which the first model leaves no room for the next."""
SHAPES = {"large": (512, 8, 8), "middle": (384, 6, 12), "small": (192, 3, 6)}
"""Width, layers and heads; `middle` has those of all-minilm-l6."""
LENGTHS = (20, 120)
"""Words of a text."""


def simulated(runs: int, first: int, out: Path) -> Iterator[tuple[str, Path]]:
    """Make so many simulated runs from the seed `first` on, each kind in its turn."""
    for seed in range(first, first + runs):
        kind, dice, clock = list(KINDS)[seed % len(KINDS)], Random(f"eta {seed}"), Clock()
        place, roster = out / f"sim{seed}", _roster(THREE, kind, dice)
        if (place / "run" / "summary.json").exists():  # of an earlier measurement
            yield kind, place / "run"
            continue
        rehearsal.write(place)
        shelves = dice.sample([shelf.name for shelf in rehearsal.SHELVES], dice.choice((2, 3, 4)))
        slow = dice.choice(roster) if "slow" in kind else ""
        speeds = {name: math.exp(dice.gauss(0, UNLIKE)) / (SLOW if name == slow else 1) for name in roster}
        flags = {"devices": "sim:1x16GiB", "roster": ",".join(roster), "out": str(place), **KINDS[kind]}
        backend, chunks = _paced(place, speeds, dice, clock), place / "rehearsal-chunks"
        yield kind, _run(kind, flags, shelves, dice, chunks, backend, clock)


def real(runs: int, first: int, out: Path, texts: int) -> Iterator[tuple[str, Path]]:
    """Make so many runs of about so many texts from the seed `first` on, each kind in its turn."""
    for name, (width, layers, heads) in SHAPES.items():
        tiny_model(out / name, seed=layers, width=width, layers=layers, heads=heads)
    file = toml(out / "models.toml", {name: {"source": str(out / name), "batch_tokens": 1024} for name in SHAPES})
    for seed in range(first, first + runs):
        kind, dice = list(REAL_KINDS)[seed % len(REAL_KINDS)], Random(f"eta {seed}")
        place, roster = out / f"real{seed}", _roster([*SHAPES], kind, dice)
        if (place / "run" / "summary.json").exists():
            yield kind, place / "run"
            continue
        rows = [f"{row} " + " ".join(dice.choices(WORDS, k=dice.randint(*LENGTHS))) for row in range(texts)]
        rows, third = rows[: int(texts * dice.uniform(0.6, 1.0))], texts // 3
        texts_of = {"Some": {"a_chunks.json": rows[:third]}, "More": {"b_chunks.json": rows[third:]}}
        chunks = corpus(place / "in", texts_of)
        flags = {"devices": "sim:1xT4", "roster": ",".join(roster), "out": str(place), "threads": "1"}
        yield kind, _run(kind, flags | REAL_KINDS[kind], ["Some", "More"], dice, chunks, REAL, None, file)


def _roster(models: Sequence[str], kind: str, dice: Random) -> list[str]:
    """The models in some order; what leaves no room for others comes first."""
    roster = dice.sample(models, len(models))
    return sorted(roster, key=lambda name: name != models[0]) if "CPU" in kind else roster


def _run(
    kind: str, flags: Flags, names: Sequence[str], dice: Random, chunks: Path, backend: Backend, clock: "Clock | None",
    file: Path | None = None,
) -> Path:  # fmt: skip
    """Do a run of these collections, after an earlier one of the first of them, or a session that is stopped (a real
    one: killed), where the kind asks for that."""

    def go(name: str, looks: int = 0, **more: str) -> Path:
        given = {"collections": ",".join(names), "run_id": name, "export": "", **flags, **more}
        asked = load(given, {}, file)
        if file is None:
            asked = rehearsal.configured(asked)
            asked = replace(asked, settings=replace(asked.settings, qdrant=None))
        run = Run(chunks, asked, Timed(clock, looks), backend)
        run.go()
        return run.directory.path

    if kind == "rows reused":
        return go("run", reuse=str(go("before", collections=names[0])))
    if kind == "resumed":
        looks = dice.randint(12, 40)
        if clock:
            go("run", looks)
        elif child := os.fork():
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
        else:
            go("run", looks // 3)  # a real run has fewer batches
        return go("run", resume="yes")
    return go("run")


class Clock:
    """Time that passes only while every worker waits for it: the same run takes the same seconds on any machine."""

    def __init__(self) -> None:
        self._now = 0.0
        self._woken = threading.Condition()
        self._until: dict[str, float] = {}

    def __call__(self) -> float:
        return self._now

    def wait(self, seconds: float) -> None:
        """Let so much time pass for this worker; whoever is no worker, as what reads ahead, takes none."""
        me = threading.current_thread()
        if me is not threading.main_thread() and not me.name.startswith("worker "):
            return
        with self._woken:
            self._until[me.name] = mine = self._now + seconds
            began = time.monotonic()
            while mine > min(self._until.values()) or not (working() <= self._until.keys() and _written()):
                self._woken.wait(0.002)
                if mine <= min(self._until.values()) and time.monotonic() - began > PATIENCE:
                    break
            self._now = max(self._now, self._until.pop(me.name))
            self._woken.notify_all()


def working() -> set[str]:
    """Name the workers that are at work beside each other."""
    return {each.name for each in threading.enumerate() if each.name.startswith("worker ")}


def _written() -> bool:
    """Whether all that workers have done is written beside them, so that it is stamped with its own time."""
    frames = sys._current_frames()
    beside = [frames.get(each.ident or 0) for each in threading.enumerate() if each.name.startswith("beside ")]
    return all(not at or (at.f_code.co_name == "_worker" and at.f_locals["work_queue"].empty()) for at in beside)


class Timed(Controls):
    """Controls that take time of a clock when they are looked at, before each batch and each lease, and stop the run
    after so many looks; without a clock they kill its process."""

    def __init__(self, clock: Clock | None, looks: int = 0) -> None:
        super().__init__()
        self._clock, self._looks = clock, looks

    def apply_pending(self, emit: Any) -> None:
        super().apply_pending(emit)
        if self._clock:
            self._clock.wait(OPENING if sys._getframe(1).f_code.co_name == "run" else BETWEEN)
        self._looks -= 1
        if not self._looks and not self._clock:
            os.kill(os.getpid(), signal.SIGKILL)
        elif not self._looks:
            self.stop(ExitCode.STOPPED)


def _paced(place: Path, speeds: dict[str, float], dice: Random, clock: Clock) -> Backend:
    """A rehearsal's backend with these models' own speeds, uneven batches and a drift."""
    host, waves = dice.uniform(*HOST), (dice.uniform(20, 200), dice.uniform(0, math.tau))

    def encoder(card: ModelCard, network: Any, device: Device) -> Encoder:
        cost, mine = cost_of(card.config, card.network_kind), Random(dice.random())
        assert cost is not None
        rate = rehearsal.OPERATIONS * speeds[card.key] * (1 if device.kind == "sim" else host)

        def pace(lengths: Sequence[int]) -> None:
            drifted = 1 + DRIFT * math.sin(clock() / waves[0] + waves[1])
            work = cost.per_token * sum(lengths) + cost.per_pair * sum(length * length for length in lengths)
            clock.wait(work / rate * drifted * math.exp(mine.gauss(0, UNEVEN)))

        return weightless.WeightlessRows(card, nn.Identity(), pace, 1)

    return replace(rehearsal.backend(place, 1.0, clock.wait), encoders=encoder, clock=clock)
