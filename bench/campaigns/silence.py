"""Chunks of which something is missing, in every way we know; runs that are killed and continued; texts that fail.

A plain reader counts the records that were written and those that parquet holds. Where fewer were delivered, the exit
code says so, or the flags allowed it and the last line has the number; where all were, nothing is complained of.
"""

import json
import os
import random
import re
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from bench.campaigns import delivered
from bench.campaigns.field import COLLECTIONS, Variant
from bench.campaigns.process import Outcome, aside, carry_out, wrongs
from bench.campaigns.tally import Campaign, Report, Room
from tests import builders
from tests.test_worker import POISON, poisoned

RECORDS = 40
FORMS = ("list_chunks.json", "held_chunks.json", "lines.jsonl")
BAD = (b'{"text": " "}', b'{"txt": "x"}', b'{"text": 7}', b'"text"', b'{"text": "a", "metadata": 3}', b"{oops}")
ALLOWED: dict[str, tuple[float, bool]] = {
    "": (1.0, False),
    "0": (0, False),
    "20%": (20.0, False),
    "100%,files": (100.0, True),
}
"""Values of --max-refused, with what they allow: percent of the records, and whether files."""


@dataclass
class Wrote:
    """What a file holds: how many records were begun in it, how many of them are good, and whether it is whole."""

    begun: int = 0
    good: int = 0
    whole: bool = True


def written(file: Path, rng: random.Random, start: int, bad: int, poison: bool) -> Wrote:
    """Write a file of its form with good records, `bad` ones among them, and one that no model can embed."""
    records = [json.dumps({"text": text}).encode() for text in builders.sentences(RECORDS, start=start)]
    records += [json.dumps({"text": f"{start} {POISON}"}).encode()] * poison
    records += [rng.choice(BAD) for _ in range(bad)]
    rng.shuffle(records)
    if file.suffix == ".jsonl":
        file.write_bytes(b"\n".join(records) + b"\n")
    else:
        body = b"[" + b", ".join(records) + b"]"
        file.write_bytes(b'{"chunks": ' + body + b', "by": "us"}' if file.name == FORMS[1] else body)
    return Wrote(len(records), len(records) - bad)


def cut(file: Path, rng: random.Random, wrote: Wrote) -> Wrote:
    """Cut a file at any byte; what is left of it is counted by its records, of which each begins alike."""
    data = file.read_bytes()[: rng.randrange(file.stat().st_size)]
    file.write_bytes(data)
    if file.suffix == ".jsonl":
        lines = [line for line in data.split(b"\n") if line.strip()]
        read = [_good(line) for line in lines]
        torn = bool(data) and not data.endswith(b"\n") and _parsed(lines[-1]) is None
        return Wrote(len(lines), sum(read), whole=bool(data) and not torn)
    return Wrote(wrote.begun, 0, whole=_parsed(data) is not None)


def _parsed(data: bytes) -> object:
    try:
        return json.loads(data)
    except ValueError:
        return None


def _good(line: bytes) -> bool:
    record = _parsed(line)
    text = record.get("text") if isinstance(record, dict) else None
    return isinstance(text, str) and bool(text.strip()) and isinstance(record.get("metadata", {}), dict)  # type: ignore[union-attr]


def _instead(make: Callable[[Path], object]) -> Callable[[Path, random.Random, Wrote], Wrote]:
    """Put something else in the place of a file."""

    def spoil(file: Path, _: random.Random, wrote: Wrote) -> Wrote:
        file.unlink()
        make(file)
        return Wrote(wrote.begun, 0, whole=False)

    return spoil


def _rewritten(change: Callable[[bytes], bytes]) -> Callable[[Path, random.Random, Wrote], Wrote]:
    def spoil(file: Path, _: random.Random, wrote: Wrote) -> Wrote:
        file.write_bytes(change(file.read_bytes()))
        return Wrote(wrote.begun, 0, whole=False)

    return spoil


SPOILS: dict[str, Callable[[Path, random.Random, Wrote], Wrote]] = {
    "nothing": lambda file, rng, wrote: wrote,
    "cut": cut,
    "cut again": cut,
    "emptied": _rewritten(lambda _: b""),
    "a link to nothing": _instead(lambda file: file.symlink_to("gone")),
    "a link that leaves": _instead(lambda file: file.symlink_to(__file__)),
    "a pipe": _instead(os.mkfifo),
    "other bytes": _rewritten(lambda data: data.decode().encode("utf-16")),
    "noise": _rewritten(lambda data: bytes(255 - each for each in data)),
}


def trial(room: Room) -> Report:
    """Spoil some files of two collections, run, perhaps be killed and go on, and count."""
    rng, report, chunks = room.rng, Report(), room.directory("chunks")
    allowed = list(ALLOWED)[room.number % len(ALLOWED)]
    poison, killed, strict = room.number % 5 == 4, rng.random() < 0.25, rng.random() < 0.3
    wrote: dict[str, list[Wrote]] = {}
    for number, name in enumerate(COLLECTIONS):
        (chunks / name).mkdir()
        for place, form in enumerate(FORMS):
            file, start = chunks / name / form, 1000 * number + 100 * place
            bad = rng.choice((0, 0, 0, 1, 3, 30))
            told = written(file, rng, start, bad, poison and not (number or place))
            way = rng.choice(list(SPOILS)) if rng.random() < 0.35 else "nothing"
            wrote.setdefault(name, []).append(SPOILS[way](file, rng, told))
            report.tried[f"files: {way}"] += 1
    flags = [
        *(["--max-refused", allowed] if allowed else []),
        *["--strict"] * strict,
        "--quiet",
        "--export",
        "parquet,npy",
    ]
    run, model = room.run(), _model(room) if poison else None
    command = room.field.command(run, Variant("silence"), *flags, chunks=chunks)
    if model:
        command[command.index("--roster") + 1] = f"{model}"
    outcome = carry_out(command, room.place, meanwhile=_kill(rng) if killed else None)
    if killed and outcome.code < 0:
        report.tried["killed"] += 1
        outcome = carry_out([*command, "--resume"], room.place)
    report.tried[f"ended with {outcome.code}"] += 1
    report.wrong += wrongs(outcome)
    report.wrong += aside(lambda: judged(run, wrote, outcome, ALLOWED[allowed], strict=strict))
    report.wrong = [f"--max-refused {allowed or 'as usual'}: {each}" for each in report.wrong]
    return report


def _kill(rng: random.Random) -> Callable[[int], None]:
    after = rng.random() * 1.5

    def kill(pid: int) -> None:
        time.sleep(after)
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)

    return kill


_models: list[Path] = []


def _model(room: Room) -> Path:
    """A model with a word that it cannot embed, made once in this process."""
    if not _models:
        _models.append(aside(lambda: poisoned(room.field.place / f"poisoned-{os.getpid()}")))
    return _models[0]


def judged(
    run: Path, wrote: dict[str, list[Wrote]], outcome: Outcome, allowed: tuple[float, bool], *, strict: bool
) -> list[str]:
    """Say what is wrong with how a run ended, beside what was put in and what it delivered."""
    found, lost, beyond, named = list[str](), 0, False, outcome.last
    if outcome.code == 2 and not any(each.good for files in wrote.values() for each in files):
        return [] if "nothing to embed" in outcome.err or "no chunk files" in outcome.err else [f"refused: {named}"]
    for name, files in wrote.items():
        points = _finite(run / "exports" / name / "points.parquet")
        begun, broken = sum(each.begun for each in files), sum(not each.whole for each in files)
        if (lacks := begun - points) or broken:
            lost += 1
            refused = sum(each.begun - each.good for each in files if each.whole)
            beyond |= bool(broken and not allowed[1])
            beyond |= refused * 100 > allowed[0] * (begun - sum(each.begun for each in files if not each.whole))
            beyond |= _rows(run, name) > points  # parked
            if f"{name}: " not in outcome.err:
                found.append(f"{lacks} records of {name} are missing, and its name is not in the last line: {named}")
            own = re.split(r"(?:Docs|Notes): ", outcome.err.partition(f" {name}: ")[2])[0]
            numbers = re.findall(r"(\d[\d,]*) of (\d[\d,]*) records? refused", own)
            told = int(numbers[0][0].replace(",", "")) if numbers else 0
            if not broken and refused != told:
                found.append(f"{refused} records of {name} were refused, and {told} are told: {named}")
    wanted = 1 if beyond else 3 if lost and strict else 0
    if outcome.code != wanted:
        found.append(f"exit code {outcome.code}, not {wanted} ({lost} collections lack something): {named}")
    if not lost and outcome.err.strip():
        found.append(f"complained of nothing: {named}")
    return found


def _rows(run: Path, name: str) -> int:
    import pyarrow.parquet as pq

    file = run / "exports" / name / "points.parquet"
    return pq.read_table(file).num_rows if file.exists() else 0


def _finite(file: Path) -> int:
    """How many points of a file have all their vectors."""
    points = delivered.from_parquet(file) if file.exists() else {}
    most = max((len(vectors) for _, vectors in points.values()), default=0)
    return sum(len(vectors) == most for _, vectors in points.values())


CAMPAIGN = Campaign("silence", trial, 200, "chunks of which something is missing, counted by another reader")
