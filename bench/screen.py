"""What the console costs a run and its terminal, on real terminals: bytes, first paint, keys, a stall, throughput.

Two commands are measured. The screen's is a rehearsal, which always does much the same; the work's is a real run, whose
engine has something to lose. Both get `--out` and `--run-id`; the engine's progress is read from the journal.
"""

import argparse
import contextlib
import os
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import corpora
import evidence
import machine
import numpy as np
from emit import emit_cost

from interlock.engine.record import journal
from interlock.engine.record.events import BatchCommitted
from tests.pty_harness import OnTerminal, Screen

SOURCES = (
    "console/apps",
    "console/screens",
    "console/sources",
    "console/terminal",
    "console/text",
    "console/look.py",
    "widgets",
    "engine/standing",
)
SIZES = {(80, 24): 2500.0, (120, 40): 3000.0, (200, 60): 5000.0}
SLOW_LINK = 800.0
STALL = 5.0
CLOSED = b'"event":"run_closed"'
COMMITTED = b'"event":"batch_committed"'
PAINTED = ("Passes", "Events", "Quit")
CHANGED = 0.2
"""Share of the signs on the screen that a key has to change before it counts as answered; a tick changes fewer."""


@dataclass(frozen=True)
class Stage:
    """Where the commands run, and what they are."""

    root: Path
    screen: list[str]
    work: list[str]
    seconds: float

    @contextlib.contextmanager
    def show(self, command: list[str], *flags: str, columns: int = 80, rows: int = 24) -> Iterator["Shown"]:
        """The command on a terminal, with a new run of its own; gone afterwards."""
        name = f"run-{len(list((self.root / 'runs').glob('*')))}"
        where = ["--out", self.root / "runs", "--run-id", name]
        environment = {**machine.SINGLE_THREAD, "TMPDIR": str(self.root)}
        with OnTerminal(
            [*command, *where, *flags], columns=columns, rows=rows, env=environment, cwd=self.root
        ) as terminal:
            yield Shown(terminal, self.root / "runs" / name / "journal.jsonl")


@dataclass(frozen=True)
class Shown:
    """A command on its terminal, and the journal of its run."""

    terminal: OnTerminal
    journal: Path

    def painted(self) -> None:
        self.terminal.wait_for(whole, 60)

    def wait(self, event: bytes, seconds: float = 900) -> None:
        """Until the journal tells of such an event. Raises TimeoutError."""
        until = time.monotonic() + seconds
        while not (self.journal.exists() and event in self.journal.read_bytes()):
            if time.monotonic() > until:
                raise TimeoutError(f"no {event.decode()} within {seconds:.0f} s\n{self.terminal.screen().text}")
            time.sleep(0.1)

    def bytes_per_second(self, seconds: float) -> float:
        began = time.monotonic()
        time.sleep(seconds)
        return self.terminal.bytes_between(began, time.monotonic()) / (time.monotonic() - began)

    def progress(self) -> tuple[list[float], list[float]]:
        """Moments on the wall clock, and how many tokens were committed by then."""
        commits = [each for each in journal.read(self.journal) if isinstance(each.body, BatchCommitted)]
        return [each.at for each in commits], list(np.cumsum([each.body.tokens for each in commits]))


def whole(screen: Screen) -> bool:
    """Whether everything stands on the screen that belongs there from the start."""
    return all(word in screen.text for word in PAINTED)


def bytes_of(stage: Stage) -> dict[str, Any]:
    """Bytes a second while the run is live, with the view frozen, and once it is over."""
    found: dict[str, Any] = {}
    for columns, rows in SIZES:
        with stage.show(stage.screen, columns=columns, rows=rows) as shown:
            found[f"{columns}x{rows}"] = live(shown, stage.seconds)
    with stage.show(stage.screen, "--slow-link") as shown:
        found["80x24 --slow-link"] = live(shown, stage.seconds)
    with stage.show(stage.screen) as shown:
        shown.wait(CLOSED)
        time.sleep(3)
        found["80x24 finished"] = {"finished": shown.bytes_per_second(5)}
    return found


def live(shown: Shown, seconds: float) -> dict[str, float]:
    """From when batches are committed, because before that little moves."""
    shown.painted()
    shown.wait(COMMITTED)
    time.sleep(1)
    found = {"live": shown.bytes_per_second(seconds), "until then": float(len(shown.terminal.output))}
    shown.terminal.press(" ")
    time.sleep(1)
    return {**found, "frozen": shown.bytes_per_second(3)}


def first_paint(stage: Stage) -> dict[str, float]:
    """Seconds from the start of the process until the screen is whole."""
    with stage.show(stage.screen) as shown:
        shown.painted()
        return {"seconds": next(at for at, screen in shown.terminal.frames() if whole(screen)) - shown.terminal.began}


def help_of(command: list[str]) -> dict[str, float]:
    began = time.monotonic()
    subprocess.run([*command, "--help"], stdout=subprocess.DEVNULL, check=True)
    return {"seconds": time.monotonic() - began}


def keys_of(stage: Stage, presses: int) -> list[float]:
    """Seconds from a key to what it shows: the help opens over a run that is starting and then works."""
    with stage.show(stage.work) as shown:
        shown.painted()
        pressed = []
        for _ in range(presses):
            pressed.append(shown.terminal.press("?"))
            time.sleep(0.5)
            shown.terminal.press("\x1b")
            time.sleep(0.5)
        return list(answers(shown.terminal, pressed))


def answers(terminal: OnTerminal, pressed: list[float]) -> Iterator[float]:
    """For every key the seconds until much of the screen is different; those to the next key where that came first."""
    waiting, before, shows = list(pressed), "", ""
    asked: float | None = None
    for at, screen in terminal.frames():
        if waiting and at >= waiting[0]:
            if asked is not None:
                yield waiting[0] - asked
            asked, before = waiting.pop(0), shows
        shows = screen.text
        if asked is not None and share_changed(before, shows) > CHANGED:
            yield at - asked
            asked = None


def share_changed(before: str, after: str) -> float:
    return sum(a != b for a, b in zip(before, after, strict=False)) / max(1, len(after))


def stall_of(stage: Stage) -> dict[str, Any]:
    """The engine's rate while nobody reads the terminal, against the seconds around it; and what it cost in memory,
    beside a rehearsal, because a real engine's own memory breathes more than that."""
    with stage.show(stage.work) as shown:
        began, ended, _ = stalled(shown)
        time.sleep(STALL)
        at, tokens = shown.progress()
        header = shown.terminal.screen().lines[0].strip()
    with stage.show(stage.screen) as shown:
        grown = stalled(shown)[2]
    around = (rate(at, tokens, began - STALL, began) + rate(at, tokens, ended, ended + STALL)) / 2
    during = rate(at, tokens, began, ended)
    return {"stalled": during, "around": around, "grown_bytes": grown, "header_afterwards": header}


def stalled(shown: Shown) -> tuple[float, float, int]:
    """From when to when on the wall clock, and how many bytes of memory the process had more afterwards."""
    shown.painted()
    shown.wait(COMMITTED)
    time.sleep(2 * STALL)
    shown.terminal.stall()
    began, resident = time.time(), shown.terminal.resident_bytes()
    time.sleep(STALL)
    grown, ended = shown.terminal.resident_bytes() - resident, time.time()
    shown.terminal.go_on()
    time.sleep(STALL)
    return began, ended, grown


def rate(at: list[float], tokens: list[float], began: float, ended: float) -> float:
    """Tokens a second between two moments, a batch in flight counted by its share."""
    first, last = np.interp([began, ended], at, tokens)
    return float((last - first) / (ended - began))


def throughput_of(stage: Stage, *flags: str) -> Callable[[], dict[str, float]]:
    """A whole run: tokens a second between its first and its last commit, and CPU seconds in all."""

    def run() -> dict[str, float]:
        with stage.show(stage.work, *flags) as shown:
            shown.wait(CLOSED)
            cpu = shown.terminal.cpu_seconds()  # also of one that has ended, because nobody has asked for its code
            at, tokens = shown.progress()
        return {"tokens_per_second": rate(at, tokens, at[0], at[-1]), "cpu": cpu}

    return run


def measure(options: argparse.Namespace) -> dict[str, Any]:
    about, found = machine.describe(), {}
    with tempfile.TemporaryDirectory() as made:
        root = Path(made)
        texts = corpora.cuts(corpora.texts_of(None, few=options.quick), options.chunks, options.words)
        corpora.write_chunks(root / "chunks", texts, 200)
        work = options.work or f"{options.interlock} run chunks --roster all-minilm-l6 --threads 1 --offline --export="
        screen = options.screen or f"{options.interlock} demo --scripted"
        stage = Stage(root, shlex.split(screen), shlex.split(work), options.seconds)
        parts: dict[str, Callable[[], Any]] = {
            "bytes_per_second": lambda: bytes_of(stage),
            "start": lambda: machine.interleave(
                {"first paint": lambda: first_paint(stage), "--help": lambda: help_of(shlex.split(options.interlock))},
                options.rounds,
            ),
            "key_seconds": lambda: keys_of(stage, options.presses),
            "stall": lambda: [stall_of(stage) for _ in range(max(1, options.rounds // 2))],
            "throughput": lambda: machine.interleave(
                {"console": throughput_of(stage), "headless": throughput_of(stage, "--no-ui")}, options.rounds
            ),
            "emit_microseconds": lambda: emit_cost(options.events),
        }
        for name, part in parts.items():
            if not options.only or name in options.only:
                print(f"{name}, load {machine.load()[0]}", flush=True)
                found[name] = part()
    return {"machine": {**about, "load_after": machine.load()}, **found, "goals": goals_of(found)}


def goals_of(found: dict[str, Any]) -> dict[str, Any]:
    """Every figure that has a goal, beside it."""
    made: dict[str, Any] = {}
    if sent := found.get("bytes_per_second"):
        for (columns, rows), limit in SIZES.items():
            made[f"bytes/s {columns}x{rows}"] = machine.goal(sent[f"{columns}x{rows}"]["live"], limit, at_most=True)
        made["bytes/s --slow-link"] = machine.goal(sent["80x24 --slow-link"]["live"], SLOW_LINK, at_most=True)
        still = max(each[state] for each in sent.values() for state in ("frozen", "finished") if state in each)
        made["bytes/s frozen or finished"] = machine.goal(still, 0, at_most=True)
    if start := found.get("start"):
        for name, limit in (("first paint", 0.6), ("--help", 0.15)):
            median = statistics.median(each["seconds"] for each in start[name])
            made[f"{name}, seconds"] = machine.goal(median, limit, at_most=True)
    if keys := found.get("key_seconds"):
        made["key to repaint p95, seconds"] = machine.goal(float(np.quantile(keys, 0.95)), 0.1, at_most=True)
    if stalls := found.get("stall"):
        share = statistics.median(each["stalled"] / each["around"] for each in stalls)
        grown = statistics.median(each["grown_bytes"] for each in stalls)
        made["engine's rate in a stall"] = machine.goal(share, 0.95)
        made["growth in a stall, MB"] = machine.goal(grown / 1e6, 5, at_most=True)
    if runs := found.get("throughput"):
        pairs = zip(runs["console"], runs["headless"], strict=True)
        share = statistics.median(ours["tokens_per_second"] / theirs["tokens_per_second"] for ours, theirs in pairs)
        made["engine's rate with the console"] = machine.goal(share, 0.98)
    if cost := found.get("emit_microseconds"):
        made["emit median, microseconds"] = machine.goal(cost["median"], 5, at_most=True)
    return made


def show(result: dict[str, Any]) -> None:
    print()
    if sent := result.get("bytes_per_second"):
        heads = ["live", "frozen", "finished", "until then"]
        rows = [[name, *(round(each[head]) if head in each else "" for head in heads)] for name, each in sent.items()]
        machine.table(["bytes/s", *heads[:-1], "bytes before"], rows)
    if keys := result.get("key_seconds"):
        print(
            f"\nkey to repaint, ms: p50 {np.median(keys) * 1e3:.0f}, p95 {np.quantile(keys, 0.95) * 1e3:.0f}, ", end=""
        )
        print(f"most {max(keys) * 1e3:.0f} of {len(keys)}")
    for each in result.get("stall", []):
        print(f"\nstall: {each['stalled']:.0f} tokens/s against {each['around']:.0f} around it; ", end="")
        print(f"then: {each['header_afterwards']}")
    if runs := result.get("throughput"):
        print()
        machine.table(["run", "tokens/s", "CPU s"], [
            [name, *(statistics.median(each[what] for each in rounds) for what in ("tokens_per_second", "cpu"))]
            for name, rounds in runs.items()
        ])  # fmt: skip
    if cost := result.get("emit_microseconds"):
        print(f"\nemit, microseconds: median {cost['median']:.1f}, p99 {cost['p99']:.1f}")
    machine.goals(result["goals"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    interlock = f"{shlex.quote(sys.executable)} -m interlock"
    parser.add_argument("--interlock", default=interlock, help="how it is called")
    parser.add_argument("--screen", help="command whose screen is measured; default: the rehearsal")
    parser.add_argument("--work", help="command whose engine is measured; default: a run of cut docstrings")
    parser.add_argument("--seconds", type=float, default=20.0, help="how long bytes are counted at each size")
    parser.add_argument("--presses", type=int, default=30)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--events", type=int, default=20_000)
    parser.add_argument("--chunks", type=int, default=1500)
    parser.add_argument("--words", type=int, default=70)
    parser.add_argument("--only", nargs="+", metavar="PART", help="bytes_per_second, start, key_seconds, stall, ...")
    machine.quick(parser, only=["start", "emit_microseconds"], rounds=1, events=200, chunks=10)
    parser.add_argument("--json", type=Path, metavar="PATH")
    options = parser.parse_args()
    os.environ.update(machine.SINGLE_THREAD)
    result = measure(options)
    show(result)
    evidence.keep(result, options.json, SOURCES)


if __name__ == "__main__":
    main()
