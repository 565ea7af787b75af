"""The journal of a run cut at every byte, with bits flipped, lines swapped, dropped and doubled.

What is read of it, by `watch`, by a resume and by the summary, is a beginning of what was written, or an error that
names it; and a run whose journal was cut anywhere behind its first line is continued to the undisturbed run's bytes.
"""

import random
from collections.abc import Callable
from pathlib import Path

from bench.campaigns.field import PLAIN
from bench.campaigns.ownfiles import template
from bench.campaigns.process import aside, carry_out
from bench.campaigns.tally import Campaign, Report, Room

A_TRIAL = 120
"""So many journals are read in one trial; one of them is continued."""
Damage = Callable[[bytes, random.Random], bytes]


def _flipped(data: bytes, rng: random.Random) -> bytes:
    changed = bytearray(data)
    changed[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    return bytes(changed)


def _lines(change: Callable[[list[bytes], random.Random], object]) -> Damage:
    def damaged(data: bytes, rng: random.Random) -> bytes:
        lines = data.splitlines(keepends=True)
        change(lines, rng)
        return b"".join(lines)

    return damaged


def _swapped(lines: list[bytes], rng: random.Random) -> None:
    one, other = rng.sample(range(len(lines)), 2)
    lines[one], lines[other] = lines[other], lines[one]


OTHERS: dict[str, Damage] = {
    "a bit flipped": _flipped,
    "lines swapped": _lines(_swapped),
    "a line dropped": _lines(lambda lines, rng: lines.pop(rng.randrange(len(lines)))),
    "a line doubled": _lines(lambda lines, rng: lines.insert(rng.randrange(len(lines)), rng.choice(lines))),
    "a line of something else": _lines(lambda lines, rng: lines.insert(rng.randrange(len(lines)), b'{"a": 1}\n')),
}


def trial(room: Room) -> Report:
    """Read many damaged journals, and continue a run with one of them."""
    source = room.field.whole(PLAIN) if room.number % 2 else template(room, PLAIN, whole=False)
    data = (source / "journal.jsonl").read_bytes()
    cuts = room.number % 4 < 2
    name = "cut" if cuts else list(OTHERS)[room.number // 4 % len(OTHERS)]
    journals = [data[: place % len(data)] for place in _places(room)] if cuts else [
        OTHERS[name](data, room.rng) for _ in range(A_TRIAL)
    ]  # fmt: skip
    report = Report()
    report.tried.update(
        {"damaged journals": len(journals), "damaged files": len(journals), f"journals {name}": len(journals)}
    )
    report.wrong += aside(lambda: _read(journals, data, room.directory("journals")))
    run = room.copied(source)
    chosen = room.rng.choice(journals)
    (run / "journal.jsonl").write_bytes(chosen)
    outcome = carry_out(room.field.command(run, PLAIN, "--resume"), room.place)
    report.tried["then resume"] += 1
    begun = cuts and b"\n" in chosen  # what a run was begun with is its first line
    judge = room.field.must_be_right if begun else room.field.right_or_refused
    report.wrong += [f"{name}, resume: {each}" for each in judge(outcome, run, PLAIN)]
    return report


def _places(room: Room) -> range:
    """Bytes to cut at: successive trials go on from one another, for whole runs and half ones."""
    return range(room.number // 4 * A_TRIAL, (room.number // 4 + 1) * A_TRIAL)


def _read(journals: list[bytes], whole: bytes, place: Path) -> list[str]:
    return [wrong for number, data in enumerate(journals) for wrong in _judged(number, data, whole, place)]


def _judged(number: int, data: bytes, whole: bytes, place: Path) -> list[str]:
    """What every reader makes of one journal: lines as they were written, from the first on, or an error of ours."""
    from interlock.engine.errors import InterlockError
    from interlock.engine.record import journal, summary
    from interlock.engine.record.fold import fold
    from interlock.engine.record.journal import Journal
    from interlock.engine.record.recorder import Tail
    from interlock.engine.record.state import RunState

    path = place / f"{number}.jsonl"
    path.write_bytes(data)
    found = []
    for reader in (lambda: Tail(path).more()[1], lambda: list(Journal(path).replay())):
        try:
            entries = reader()
            if not whole.startswith(b"".join(map(journal.encode, entries))):
                found.append(f"journal {number}: entries that were never written in this order")
            state = RunState()
            for entry in entries:
                fold(state, entry)
            if entries:
                summary.dumps(summary.summarise(state))
        except InterlockError:
            continue
        except Exception as error:
            found.append(f"journal {number}: {error!r}")
    path.unlink()
    return found


CAMPAIGN = Campaign(
    "journal", trial, 540, "the journal cut at every byte, flipped, its lines swapped, dropped, doubled"
)
