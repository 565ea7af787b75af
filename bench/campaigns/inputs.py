"""Chunk files that change while they are read, are delivered, or cannot be read just once.

At chosen points (every call to the file system, and within files at a record) and at random moments. Every delivered
vector must be that of the text it stands beside, and every text one of the file as it was or as it became; nothing of
what stood there all the time may be missing without a word. What was not completed is continued with the old files.
"""

import json
import os
import random
import shutil
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from bench.campaigns import delivered, taps
from bench.campaigns.delivered import Oracle, Points
from bench.campaigns.field import COLLECTIONS, PLAIN, STORED, Field, Variant, chunk_files, store_of, wide
from bench.campaigns.process import Outcome, aside, carry_out, wrongs
from bench.campaigns.tally import Campaign, Report, Room

Change = Callable[[Path, random.Random], object]


def _truncated(path: Path, rng: random.Random) -> None:
    os.truncate(path, rng.randrange(path.stat().st_size))


def _appended(words: bytes) -> Change:
    def append(path: Path, _: random.Random) -> None:
        with path.open("ab") as handle:
            handle.write(words)

    return append


def _edited(path: Path, rng: random.Random) -> None:
    """Other texts of the same length from some place on, in place."""
    data = path.read_bytes()
    start = rng.randrange(len(data))
    with path.open("r+b") as handle:
        handle.seek(start)
        handle.write(data[start:].replace(b'"text": "text ', b'"text": "made '))


def _replaced(path: Path, _: random.Random) -> None:
    fresh = path.with_name("fresh")
    fresh.write_bytes(path.read_bytes().replace(b'"text": "text ', b'"text": "made '))
    fresh.replace(path)


def _reordered(path: Path, _: random.Random) -> None:
    fresh = path.with_name("fresh")
    text = path.read_text()
    lines = path.suffix == ".jsonl"
    fresh.write_text("\n".join(text.splitlines()[::-1]) + "\n" if lines else json.dumps(json.loads(text)[::-1]))
    fresh.replace(path)


def _linked(path: Path, _: random.Random) -> None:
    elsewhere = path.parents[2] / "elsewhere"
    elsewhere.write_bytes(path.read_bytes().replace(b'"text": "text ', b'"text": "made '))
    path.unlink()
    path.symlink_to(elsewhere)


def _directory_swapped(path: Path, _: random.Random) -> None:
    away = path.parents[2] / f"away-{path.parent.name}"
    path.parent.rename(away)
    path.parent.mkdir()
    path.write_bytes((away / path.name).read_bytes().replace(b'"text": "text ', b'"text": "made '))


def _added(path: Path, _: random.Random) -> None:
    path.with_name("zz_chunks.json").write_text('["no object", {"text": "a new one"}]')


CHANGES: dict[str, Change] = {
    "truncated": _truncated,
    "emptied": lambda path, _: os.truncate(path, 0),
    "appended to": _appended(b'{"text": "text that came later"}\n'),
    "half a record appended": _appended(b'{"text": "text that ca'),
    "edited in place": _edited,
    "replaced": _replaced,
    "reordered": _reordered,
    "deleted": lambda path, _: path.unlink(),
    "made a link": _linked,
    "made a directory": lambda path, _: (path.unlink(), path.mkdir()),
    "its directory swapped": _directory_swapped,
    "its directory removed": lambda path, _: shutil.rmtree(path.parent),
    "without permissions": lambda path, _: path.chmod(0),
    "a file added": _added,
    "all of it removed": lambda path, _: shutil.rmtree(path.parents[1]),
}


_wide: list[Field] = []
_surveys: dict[str, tuple[list[tuple[str, str]], float]] = {}


def _field(room: Room) -> Field:
    """The field with large files, built once in this process."""
    if not _wide:
        _wide.append(wide(room.field))
    return _wide[0]


def trial(room: Room) -> Report:
    """Change one file during a run, or let a call fail; judge what came of it; put it back and continue."""
    field = _field(room)
    variant = STORED if room.number % 3 == 0 else PLAIN
    field.truth(variant)
    chunks = room.place / "chunks"
    shutil.copytree(field.chunks, chunks)
    failing = room.number % 4 == 3
    setup, meanwhile, told = (_failing if failing else _changing)(room, chunks, variant)
    run = room.run()
    outcome = carry_out(field.command(run, variant, chunks=chunks), room.place, setup=setup, meanwhile=meanwhile)
    report = Report()
    report.tried["inputs that failed once" if failing else "changed inputs"] += 1
    report.tried["changed inputs"] += failing
    report.tried[told.partition(" at ")[0]] += 1
    report.tried[f"ended with {outcome.code}"] += 1
    report.wrong += wrongs(outcome)
    if outcome.code == 0:
        report.wrong += aside(lambda: _delivered(field, chunks, run, variant, outcome))
    else:
        report.wrong += _put_back(room, field, chunks, run, variant)
        report.tried["then continued with the old files"] += 1
    report.wrong = [f"{variant.name}, {told}: {each}" for each in report.wrong]
    return report


Setting = tuple[Callable[[], object] | None, Callable[[int], object] | None, str]


def _changing(room: Room, chunks: Path, variant: Variant) -> Setting:
    name = list(CHANGES)[room.number * 7 % len(CHANGES)]
    files = chunk_files(chunks)
    file = room.rng.choice([each for each in files if each.stat().st_size > 100_000] * 2 + files)
    change, seed = CHANGES[name], room.rng.random()

    def do() -> None:
        with suppress(OSError):
            change(file, random.Random(seed))

    points, seconds = _survey(room.place / "x", variant, _field(room))
    if room.rng.random() < 0.15:
        after = room.rng.random() * seconds

        def meanwhile(_: int) -> None:
            time.sleep(after)
            do()

        return None, meanwhile, f"{file.name} {name} at {after:.2f} s"
    number = room.rng.choice(_moments(points, room.rng))
    kinds = {*taps.READS, "open-w", "fsync", "fdatasync", taps.RECORD}
    act = taps.at(number, do)
    return (
        (lambda: taps.install([room.place], act, kinds)),
        None,
        f"{file.name} {name} at point {number} of {len(points)}",
    )


def _moments(points: list[tuple[str, str]], rng: random.Random) -> list[int]:
    """Points to choose from: each call to the file system, or each record."""
    record = rng.random() < 0.6
    return [number for number, (kind, _) in enumerate(points) if (kind == taps.RECORD) == record]


def _failing(room: Room, chunks: Path, variant: Variant) -> Setting:
    code = room.rng.choice(taps.TRANSIENT)
    points, _ = _survey(room.place / "x", variant, _field(room))
    reads = sum(kind in taps.READS and "/chunks/" in f"{path}/" for kind, path in points)
    number = room.number // 4 * 3 % max(1, reads)
    act = taps.fail_at(number, code)
    told = f"one read fails with {os.strerror(code)} at read {number} of {reads}"
    return (lambda: taps.install([chunks], act, taps.READS)), None, told


def _survey(place: Path, variant: Variant, field: Field) -> tuple[list[tuple[str, str]], float]:
    """The points of an undisturbed run and its seconds, met once in this process."""
    if variant.name not in _surveys:
        place.mkdir()
        shutil.copytree(field.chunks, place / "chunks")
        file, kinds = place / "points", {*taps.READS, "open-w", "fsync", "fdatasync", taps.RECORD}
        command = field.command(place / "runs" / "r", variant, chunks=place / "chunks")
        outcome = carry_out(command, place, setup=lambda: taps.install([place], taps.record_points(file), kinds))
        assert outcome.code == 0, outcome
        _surveys[variant.name] = taps.points(file), outcome.seconds
        shutil.rmtree(place)
    return _surveys[variant.name]


def _delivered(field: Field, chunks: Path, run: Path, variant: Variant, outcome: Outcome) -> list[str]:
    """What is wrong with what a run delivered that said it was completed."""
    found = []
    refused = {str(each["name"]): each["refused"] for each in _collections(run)}
    for name in COLLECTIONS:
        before, after = _texts(field.chunks / name), _texts(chunks / name)
        parquet = run / "exports" / name / "points.parquet"
        points = delivered.from_parquet(parquet) if parquet.exists() else {}
        found += [f"{name}: {each}" for each in _consistent(run, name, points, variant, field.oracle)]
        texts = Counter(text for text, _ in points.values())
        if foreign := [text for text in texts if text not in before | after]:
            found.append(f"{name}: {len(foreign)} texts that never stood there: {foreign[:2]}")
        missing = (before & after) - texts
        if missing and not (refused.get(name) and "refused" in outcome.err):
            found.append(f"{name}: {missing.total()} of {(before & after).total()} chunks are missing without a word")
    return found


def _collections(run: Path) -> list[dict[str, object]]:
    return list(json.loads((run / "summary.json").read_text())["collections"])


def _texts(directory: Path) -> Counter[str]:
    """The texts of whole records of a collection's files, links left out."""
    texts: Counter[str] = Counter()
    for file in chunk_files(directory) if directory.is_dir() else ():
        if file.is_file() and not file.is_symlink():
            texts.update(_readable(file))
    return texts


def _readable(file: Path) -> list[str]:
    text = file.read_text(errors="replace")
    if file.suffix != ".jsonl":
        text = "\n".join(text.strip("[] \n").replace('}}, {"text"', '}}\n{"text"').splitlines())
    records = []
    for line in text.splitlines():
        with suppress(ValueError):
            records.append(json.loads(line))
    return [record["text"] for record in records if isinstance(record, dict) and "text" in record]


def _consistent(run: Path, name: str, points: Points, variant: Variant, oracle: Oracle) -> list[str]:
    """Files and store hold the same, and every vector is its text's."""
    bad = oracle.wrong(points)
    found = [f"{len(bad)} of {len(points)} points with a vector of another text: {bad[0]}"] if bad else []
    for key, rows in delivered.from_npy(run / "exports" / name).items():
        if [row.tobytes() for row in rows] != [vectors.get(key) for _, vectors in points.values()]:
            found.append(f"{key}.npy is not what parquet holds")
    if variant.store and points:
        count, stored = delivered.from_store(store_of(run), name.lower(), points)
        if count != len(points) or {p: t for p, (t, _) in stored.items()} != {p: t for p, (t, _) in points.items()}:
            found.append(f"the store's {count} points are not the {len(points)} of parquet")
        if bad := oracle.wrong(stored):
            found.append(f"{len(bad)} points of the store with a vector of another text: {bad[0]}")
    return found


def _put_back(room: Room, field: Field, chunks: Path, run: Path, variant: Variant) -> list[str]:
    """Continue with the old files; a run that had read changed ones is refused, and a new one reuses it."""
    shutil.rmtree(chunks, ignore_errors=True)
    shutil.copytree(field.chunks, chunks)
    outcome = carry_out(field.command(run, variant, "--resume", chunks=chunks), room.place)
    if outcome.code == 0:
        return [f"put back: {each}" for each in field.must_be_right(outcome, run, variant)]
    found = wrongs(outcome)
    if "its inputs changed" not in outcome.err:
        found.append(f"put back: exit code {outcome.code}: {outcome.last}")
    return [f"put back: {each}" for each in found]


CAMPAIGN = Campaign(
    "inputs", trial, 900, "chunk files changed in every way, at every moment, large enough to be in mid-read"
)
