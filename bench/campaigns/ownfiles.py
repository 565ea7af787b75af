"""Every file that a run has written, damaged in every way; then it is continued, reused, viewed, watched, searched.

What is damaged is told or mended. What says that it is completed has the undisturbed run's vectors, texts and ids.
"""

import json
import os
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path

from bench.campaigns import taps
from bench.campaigns.damage import WAYS
from bench.campaigns.field import ANY, PLAIN, STORED, Variant, store_of
from bench.campaigns.process import aside, carry_out, wrongs
from bench.campaigns.tally import Campaign, Report, Room

REUSED = Variant("reused files", reuse=True)
QUERY = "text 3 of the"
Follow = Callable[[Room, Path, Variant], list[str]]
_hits: list[tuple[str, float]] = []
_templates: dict[tuple[str, bool], Path] = {}


def resume(room: Room, run: Path, variant: Variant) -> list[str]:
    """Continue it by its name."""
    outcome = carry_out(room.field.command(run, variant, "--resume"), room.place)
    return room.field.right_or_refused(outcome, run, variant)


def resume_any(room: Room, run: Path, variant: Variant) -> list[str]:
    """Continue whatever is the newest run; it may be a new one."""
    outcome = carry_out(room.field.command(run, variant, "--resume", ANY), room.place)
    if outcome.code:
        return wrongs(outcome)
    runs = [each for each in run.parent.iterdir() if (each / "run.json").exists()]
    newest = max(runs, key=lambda each: (each / "journal.jsonl").stat().st_mtime_ns)
    return wrongs(outcome) + room.field.compare(newest, variant, store_of(run))


def reuse(room: Room, run: Path, variant: Variant) -> list[str]:
    """Take its vectors over into a new run; the texts are the same, and so must the vectors be."""
    fresh = room.run("fresh")
    outcome = carry_out(room.field.command(fresh, PLAIN, "--reuse", run), room.place)
    return room.field.right_or_refused(outcome, fresh, PLAIN)


def view(room: Room, run: Path, variant: Variant) -> list[str]:
    """Print its summary."""
    return wrongs(carry_out(["view", run, "--plain"], room.place))


def compare(room: Room, run: Path, variant: Variant) -> list[str]:
    """Print where its summary differs from that of an undisturbed run."""
    return wrongs(carry_out(["view", run, room.field.whole(variant), "--plain"], room.place))


def watch(room: Room, run: Path, variant: Variant) -> list[str]:
    """Read it as `watch` does, without a screen."""
    try:
        aside(lambda: _watched(run), patience=60)
    except RuntimeError as error:
        return [f"watch: {str(error).strip().splitlines()[-1]}"]
    return []


def _watched(run: Path) -> None:
    from interlock.console.sources.journal import Watched
    from interlock.engine.errors import InterlockError

    try:
        source = Watched(run)
    except InterlockError:
        return
    for _ in range(3):
        source.snapshot(), source.note, source.over
        time.sleep(0.01)
    source.close()


def search(room: Room, run: Path, variant: Variant) -> list[str]:
    """Search its store; hits are the undisturbed store's, or there are none."""
    found = _search(room, store_of(run))
    if found[0]:
        return found[1]
    return found[1] + ([] if found[2] == _true_hits(room) else [f"other hits: {found[2]}"])


def _search(room: Room, store: Path) -> tuple[int, list[str], list[tuple[str, float]]]:
    words = ["search", store, QUERY, "--json", "--collection", "docs", "--config", room.field.config, "--offline"]
    outcome = carry_out(words, room.place)
    hits = [(hit["id"], round(hit["score"], 5)) for hit in map(json.loads, outcome.out.splitlines())]
    return outcome.code, wrongs(outcome), hits


def _true_hits(room: Room) -> list[tuple[str, float]]:
    """What a search of the undisturbed store finds, asked once in this process."""
    if not _hits:
        _hits.extend(_search(room, store_of(room.copied(room.field.whole(STORED), "sound")))[2])
    return _hits


FOLLOWS: dict[str, Follow] = {
    "resume": resume,
    "resume any": resume_any,
    "reuse": reuse,
    "view": view,
    "compare": compare,
    "watch": watch,
}
STORE_FOLLOWS: dict[str, Follow] = {"resume": resume, "search": search}
RUNS = ((PLAIN, True), (PLAIN, False), (REUSED, True), (REUSED, False))


def trial(room: Room) -> Report:
    """Damage one file of a copied run, then do two things with it."""
    variant, whole = RUNS[room.number % len(RUNS)]
    source = template(room, variant, whole=whole)
    files = sorted(path.relative_to(source) for path in source.rglob("*") if path.is_file())
    number = room.number // len(RUNS) * STRIDE
    file, way = files[number % len(files)], list(WAYS)[number // len(files) % len(WAYS)]
    changing = room.rng.choice(("resume", "resume any", "reuse"))
    reading = room.rng.choice(("view", "compare", "watch"))
    run = room.copied(source)
    WAYS[way](run / file, room.rng)
    report = Report()
    report.tried.update(["damaged files", f"damaged: {way}"])
    for name in (reading, changing):
        report.tried[f"then {name}"] += 1
        told = FOLLOWS[name](room, run, variant)
        state = "whole" if whole else "half-way"
        report.wrong += [f"{variant.name}, {state}, {file} {way}, {name}: {each}" for each in told]
    return report


def store_trial(room: Room) -> Report:
    """Damage one file of a copied store, then do one thing with it."""
    source = room.field.whole(STORED)
    store = store_of(source)
    files = sorted(_stable(path.relative_to(store)) for path in store.rglob("*") if path.is_file())
    number = room.number * STRIDE
    file, way = files[number % len(files)], list(WAYS)[number // len(files) % len(WAYS)]
    run = room.copied(source)
    found = next(store_of(run).glob(file))
    WAYS[way](found, room.rng)
    name = room.rng.choice(list(STORE_FOLLOWS))
    report = Report()
    report.tried.update(["damaged files", f"damaged: {way}", f"then {name}"])
    report.wrong += [f"store, {file} {way}, {name}: {each}" for each in STORE_FOLLOWS[name](room, run, STORED)]
    return report


def _stable(path: Path) -> str:
    """The path in a store with its random part as a pattern."""
    parts = path.parts
    return str(Path(*["*" if place == 2 and parts[1] == "segments" else part for place, part in enumerate(parts)]))


def template(room: Room, variant: Variant, *, whole: bool) -> Path:
    """A finished run, or one that was killed about half-way; made once in this process."""
    if whole:
        return room.field.whole(variant)
    if (variant.name, whole) not in _templates:
        run = room.field.whole(variant).parent / f"half-{os.getpid()}"
        journal, file = run / "journal.jsonl", room.place / "lines"
        command = room.field.command(run, variant)
        carry_out(command, room.place, setup=lambda: taps.install([journal], taps.record_points(file), {"write"}))
        act = taps.kill_at(len(taps.points(file)) // 2, 1.0)
        shutil.rmtree(run)
        outcome = carry_out(command, room.place, setup=lambda: taps.install([journal], act, {"write"}))
        assert outcome.code == -signal.SIGKILL and (run / "run.json").exists(), outcome
        _templates[variant.name, whole] = run
    return _templates[variant.name, whole]


STRIDE = 7919
"""A prime: trials go round all files and ways, and few of them touch as different ones as they can."""
CAMPAIGN = Campaign("own-files", trial, 4400, "every file of a run damaged in every way, then continued, reused, read")
STORES = Campaign("store-files", store_trial, 600, "every file of a store damaged in every way, then written, searched")
