"""What grows: for each subject the command to measure at a size, and the inputs or the history that it needs.

Long histories are journals of a real run with its own entries repeated in their places, as many batches, mitigations,
leases or sessions would have left them.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from bench.campaigns.process import aside, carry_out
from interlock.engine.record import events as ev
from interlock.engine.record import journal
from tests import builders

Work = Callable[[], object] | list[object]
PARKED = "tiny-nan"


@dataclass
class Ground:
    """A directory with a model, and one that parks every row."""

    place: Path
    models: dict[str, Path] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.models = aside(lambda: _models(self.place))
        self.config = builders.toml(
            self.place / "i.toml",
            {key: {"source": str(path), "batch_tokens": 8192} for key, path in self.models.items()},
        )

    def plan(self, chunks: Path) -> list[object]:
        return ["plan", chunks, "--config", self.config, "--roster", "tiny", "--offline"]

    def run(self, chunks: Path, place: Path, *more: object, model: str = "tiny") -> list[object]:
        """A run with the identity `r` in `place`."""
        words: list[object] = [
            "run",
            chunks,
            "--config",
            self.config,
            "--roster",
            model,
            "--offline",
            "--no-ui",
        ]
        return [*words, "--out", place, "--run-id", "r", *more]

    def lines(self, name: str, count: int, *, distinct: bool, place: Path | None = None) -> Path:
        """One collection of one file of so many records, all of one length."""
        root = (place or self.place) / name
        (root / "Docs").mkdir(parents=True)
        with (root / "Docs" / "a.jsonl").open("w") as handle:
            handle.writelines(json.dumps({"text": f"text {n if distinct else 0:07}"}) + "\n" for n in range(count))
        return root

    def finished(self, chunks: Path, place: Path, *more: object, model: str = "tiny") -> Path:
        """A run over these chunks, to its end."""
        outcome = carry_out(self.run(chunks, place, *more, model=model), place, patience=600)
        assert outcome.code in (0, 1), outcome
        return place / "r"


def _models(place: Path) -> dict[str, Path]:
    import numpy as np
    from safetensors.numpy import load_file, save_file

    paths = {name: builders.tiny_model(place / name, seed=1, width=16, layers=1, heads=2) for name in ("tiny", PARKED)}
    file = paths[PARKED] / "model.safetensors"
    weights = {name: np.full_like(array, np.nan) for name, array in load_file(file).items()}
    save_file(weights, file, metadata={"format": "pt"})
    return paths


@dataclass(frozen=True)
class Subject:
    """What is measured at which sizes."""

    name: str
    sizes: Sequence[int]
    make: Callable[[Ground, Path, int], Work]


def _plan_rows(ground: Ground, place: Path, n: int) -> Work:
    return ground.plan(ground.lines("rows", n, distinct=True, place=place))


def _plan_repeats(ground: Ground, place: Path, n: int) -> Work:
    return ground.plan(ground.lines("rows", n, distinct=False, place=place))


def _plan_files(ground: Ground, place: Path, n: int) -> Work:
    files = {f"{number % 50}/{number}.jsonl": [f"text {number}"] for number in range(n)}
    return ground.plan(builders.corpus(place / "files", {"Docs": files}))


def _collections(place: Path, n: int) -> Path:
    each = {f"C{number:05}": {"a.jsonl": [f"text {number}", "a text of all"]} for number in range(n)}
    return builders.corpus(place / "collections", each)


def _plan_collections(ground: Ground, place: Path, n: int) -> Work:
    return ground.plan(_collections(place, n))


def _refused(place: Path, n: int) -> Path:
    root = place / "refused" / "Docs"
    root.mkdir(parents=True)
    (root / "a.jsonl").write_text('{"text": "a good one"}\n' + "{}\n" * n)
    return root.parent


def _plan_refusals(ground: Ground, place: Path, n: int) -> Work:
    return ground.plan(_refused(place, n))


def _run_refusals(ground: Ground, place: Path, n: int) -> Work:
    return ground.run(_refused(place, n), place)


def _run_rows(ground: Ground, place: Path, n: int) -> Work:
    return ground.run(ground.lines("rows", n, distinct=True, place=place), place)


def _run_repeats(ground: Ground, place: Path, n: int) -> Work:
    return ground.run(ground.lines("rows", n, distinct=False, place=place), place)


def _run_store(ground: Ground, place: Path, n: int) -> Work:
    return [*_run_rows(ground, place, n), "--qdrant", place / "store"]


def _run_collections(ground: Ground, place: Path, n: int) -> Work:
    return ground.run(_collections(place, n), place)


def _run_parked(ground: Ground, place: Path, n: int) -> Work:
    return ground.run(ground.lines("rows", n, distinct=True, place=place), place, model=PARKED)


def _run_parked_everywhere(ground: Ground, place: Path, n: int) -> Work:
    return ground.run(_collections(place, n), place, model=PARKED)


def _reuse(ground: Ground, place: Path, n: int) -> Work:
    chunks = ground.lines("rows", n, distinct=True, place=place)
    (place / "earlier").mkdir()
    earlier = ground.finished(chunks, place / "earlier")
    return ground.run(chunks, place, "--reuse", earlier)


def _resume(ground: Ground, place: Path, n: int) -> Work:
    chunks = ground.lines("rows", n, distinct=True, place=place)
    ground.finished(chunks, place)
    return ground.run(chunks, place, "--resume")


def _view_collections(ground: Ground, place: Path, n: int) -> Work:
    return ["view", ground.finished(_collections(place, n), place, "--export", ""), "--plain"]


def _long(ground: Ground, place: Path, n: int, kind: type[ev.Event] | None) -> tuple[Path, Path]:
    """A small finished run whose journal tells n entries of a kind, or of sessions if None; with its chunks."""
    chunks = ground.lines("rows", 40, distinct=True, place=place)
    run = ground.finished(chunks, place)
    entries = list(journal.read(run / "journal.jsonl"))
    long = _sessions(entries, n) if kind is None else _repeated(entries, kind, n)
    with (run / "journal.jsonl").open("wb") as handle:
        handle.writelines(journal.encode(replace(entry, seq=seq)) for seq, entry in enumerate(long))
    return chunks, run


def _repeated(entries: list[ev.Entry], kind: type[ev.Event], n: int) -> Iterator[ev.Entry]:
    """The entries, and behind the attached model so many more of the kind."""
    for entry in entries:
        yield entry
        if isinstance(entry.body, ev.ModelAttached):
            for number in range(n):
                yield from (replace(entry, body=body) for body in _bodies(entries, kind, number))


def _bodies(entries: list[ev.Entry], kind: type[ev.Event], number: int) -> list[Any]:
    """One more of its kind as a run tells it."""
    if kind is ev.Warned:
        return [ev.Warned(message=f"warning {number}")]
    if kind is ev.Mitigated:
        told = {"cause": "out of memory", "action": f"step {number}", "rung": "replan", "device": "cpu"}
        return [ev.Mitigated(model_pass=0, batch_index=0, rows=1, cost_seconds=0.0, **told)]
    if kind is ev.LeaseGranted:
        pair = [
            next(each.body for each in entries if isinstance(each.body, one))
            for one in (ev.LeaseGranted, ev.LeaseReleased)
        ]
        return [replace(body, lease=f"X{number}") for body in pair]
    return [next(entry.body for entry in entries if isinstance(entry.body, kind))]


def _sessions(entries: list[ev.Entry], n: int) -> Iterator[ev.Entry]:
    """The run, and so many sessions that found nothing left to do."""
    yield from entries
    resumed = next(entry for entry in entries if isinstance(entry.body, ev.RunStarted)).body
    assert isinstance(resumed, ev.RunStarted)
    opening = ev.RunResumed(
        versions=resumed.versions, chunks=resumed.chunks, config=resumed.config, environment=resumed.environment
    )
    again = (
        ev.RunStarted,
        ev.PassPlanned,
        ev.BatchCommitted,
        ev.EnsemblePassCompleted,
        ev.LeaseGranted,
        ev.LeaseReleased,
    )
    body = [entry for entry in entries if not isinstance(entry.body, again)]
    for session in range(1, n + 1):
        yield replace(entries[0], session=session, body=opening)
        yield from (replace(entry, session=session) for entry in body)


def _resumed(kind: type[ev.Event] | None) -> Callable[[Ground, Path, int], Work]:
    def make(ground: Ground, place: Path, n: int) -> Work:
        chunks, _ = _long(ground, place, n, kind)
        return ground.run(chunks, place, "--resume", "--export", "")

    return make


def _watched(kind: type[ev.Event] | None) -> Callable[[Ground, Path, int], Work]:
    def make(ground: Ground, place: Path, n: int) -> Work:
        _, run = _long(ground, place, n, kind)
        return lambda: _watch(run)

    return make


def _watch(run: Path) -> None:
    """Read and fold it as `watch` does, and fold its summary."""
    from interlock.engine.record import summary
    from interlock.engine.record.fold import fold, uncollected
    from interlock.engine.record.recorder import Tail
    from interlock.engine.record.snapshot import snapshot
    from interlock.engine.record.state import RunState

    tail, state = Tail(run / "journal.jsonl"), RunState()
    while entries := tail.more()[1]:
        with uncollected():
            for entry in entries:
                fold(state, entry)
        snapshot(state, entries[-1].seq)
    summary.dumps(summary.summarise(state))


def subjects() -> list[Subject]:
    """Everything that is measured."""
    events = {
        "samples": (ev.DeviceSampled, 60_000),
        "warnings": (ev.Warned, 60_000),
        "mitigations": (ev.Mitigated, 60_000),
        "leases": (ev.LeaseGranted, 80_000),
        "sessions": (None, 2_000),
    }
    return [
        Subject("plan, rows", _sizes(150_000), _plan_rows),
        Subject("plan, repeats", _sizes(150_000), _plan_repeats),
        Subject("plan, files", _sizes(32_000), _plan_files),
        Subject("plan, collections", _sizes(20_000, 2), _plan_collections),
        Subject("plan, refusals", _sizes(500_000), _plan_refusals),
        Subject("run, rows", _sizes(40_000), _run_rows),
        Subject("run, repeats", _sizes(60_000), _run_repeats),
        Subject("run, rows into a store", _sizes(12_000), _run_store),
        Subject("run, collections", _sizes(2_400), _run_collections),
        Subject("run, refusals", _sizes(500_000), _run_refusals),
        Subject("run, parked rows", _sizes(12_000), _run_parked),
        Subject("run, collections with parked rows", _sizes(2_400), _run_parked_everywhere),
        Subject("run, reused rows", _sizes(60_000), _reuse),
        Subject("resume, rows", _sizes(60_000), _resume),
        Subject("view, collections", _sizes(1_000), _view_collections),
        *(Subject(f"resume, {name}", _sizes(most), _resumed(kind)) for name, (kind, most) in events.items()),
        *(Subject(f"watch, {name}", _sizes(most), _watched(kind)) for name, (kind, most) in events.items()),
    ]


def _sizes(most: int, step: int = 4) -> list[int]:
    """Four sizes, each two or four times the one before: hash tables double, and are equally full at all of them."""
    return [round(most / step**back) for back in (3, 2, 1, 0)]
