"""A run that is told and never computed: real events through a real recorder and journal, from a script and a seed.

It heeds an operator as the engine does, resumes what was stopped, and marks every entry `scripted`. Time is its own:
`go` lets it pass at `speed` times the pace of the clock on the wall (`inf`: at once), `play_to` and `play_until` skip
to a moment of it. The same seed, and the same things asked for at the same moments, give the same bytes.
"""

import time
from collections.abc import Callable, Iterator
from random import Random

from interlock.console import scripted_cast as cast
from interlock.console.scripted_cards import Card
from interlock.console.scripted_cast import Shelf
from interlock.console.scripted_work import Waits, Work
from interlock.engine.errors import ExitCode, Stopped, UsageError
from interlock.engine.passes.controls import PAUSE_SECONDS, Controls
from interlock.engine.passes.schedule import Schedule
from interlock.engine.record import events as ev
from interlock.engine.record import summary, verdict
from interlock.engine.record.events import Entry
from interlock.engine.record.journal import Journal
from interlock.engine.record.recorder import Recorder
from interlock.engine.record.rundir import RunDirectory
from interlock.engine.record.snapshot import Snapshot

BEGAN = 1_788_249_600.0
"""When a scripted run begins unless it is told: 2026-09-01 08:00:00 UTC."""
BETWEEN_SESSIONS = 60.0
SAMPLE_SECONDS = 1.0
SETTINGS: dict[str, object] = {
    "ceiling": "12.0 GiB",
    "devices": "auto",
    "exclusive": True,
    "cpu_fallback": True,
    "fusion": "concat",
    "export": ["npy", "parquet"],
    "qdrant": "store",
}


class Scripted:
    """One run; `go` may be called once, from any thread, also after `play_to`."""

    def __init__(
        self,
        directory: RunDirectory,
        controls: Controls,
        *,
        seed: int = 7,
        speed: float = 1.0,
        devices: int = 2,
        models: int = 3,
        began: float = BEGAN,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        """At most six models. `began` is seconds since the epoch; `sleep` is how time passes.

        Raises UsageError for a speed that is none and when another process holds the directory, InterlockError when it
        cannot be written.
        """
        if not speed > 0:
            raise UsageError("--speed must be above 0")
        self.directory = directory
        self.controls = controls
        self.seconds = 0.0
        """Of this session, by its own clock."""
        self.code: ExitCode | None = None
        self._speed, self._sleep, self._began = speed, sleep, began
        self._random = Random(seed)  # noqa: S311  a script, no secret
        self._parts = cast.PARTS[:models]
        self._weights = cast.weights_of(len(self._parts))
        self._grid = [cast.cells_of(number, part) for number, part in enumerate(self._parts)]
        self._cards = [Card(cast.facts_of(number), self._random) for number in range(devices)]
        self._sampled_at: float | None = None
        controls.begin(Schedule.EXCLUSIVE, 0, cpu_fallback=True)
        self._journal = Journal(directory.journal)
        self.recorder = Recorder(self._journal, cast.KIND, clock=lambda: self.seconds, wall=lambda: self._wall())
        if self.recorder.first:
            self._began = self.recorder.look(lambda state: state.latest_at) + BETWEEN_SESSIONS
        self._emit = self.recorder.emit
        self._steps = self._stepped()

    def go(self) -> ExitCode:
        """Let it happen; how it ended."""
        for step in self._steps:
            self._sleep(step / self._speed or PAUSE_SECONDS * self.controls.paused)
        assert self.code is not None
        return self.code

    def play_until(self, there: Callable[[Snapshot], bool]) -> Snapshot:
        """Skip to the first moment at which `there` is so, or to the end."""
        while not there(seen := self.recorder.snapshot()) and next(self._steps, None) is not None:
            pass
        return seen if self.code is None else self.recorder.snapshot()

    def play_to(self, share: float) -> Snapshot:
        """Skip to where this share of all work is done; 1 is the end."""
        return self.play_until(lambda seen: seen.over if share >= 1 else seen.share_done >= share)

    def close(self) -> None:
        """Leave a run, which can be resumed where it is not at its end."""
        if self.code is None:
            self._journal.close()

    def _wall(self) -> float:
        return self._began + self.seconds

    def _stepped(self) -> Iterator[float]:
        """The story in steps of time, with the devices looked at once a second while models are leased."""
        for wait in self._told():
            end = self.seconds + wait
            while self.seconds < end:
                at = end if self._sampled_at is None else min(end, self._sampled_at + SAMPLE_SECONDS)
                yield at - self.seconds
                self.seconds = at
                if self._sampled_at is not None and at >= self._sampled_at + SAMPLE_SECONDS:
                    self._sample()

    def _sample(self) -> None:
        self._sampled_at = self.seconds
        for card in self._cards:
            if not card.lost:
                self._emit(card.sample())

    def _told(self) -> Waits:
        status: ev.Status = "stopped"
        try:
            yield from self._story()
            status, reason = self.recorder.look(verdict.of_run)
        except Stopped as stopped:
            reason = str(stopped)
        self._sampled_at = None
        code = ExitCode.COMPLETED if status == "completed" else ExitCode.FAILED
        code = (self.controls.code or ExitCode.STOPPED) if status == "stopped" else code
        self._emit(ev.RunClosed(status=status, reason=reason, exit_code=code))
        self._write_summary()
        self._journal.close()
        self.code = code

    def _story(self) -> Waits:
        self._announce()
        for number in range(len(self._parts)):
            yield from self._resolve(number)
        entries = [cast.entry_of(*each) for each in zip(self._parts, self._weights, strict=True)]
        self._emit(ev.RosterResolved(roster=entries))
        for shelf in cast.SHELVES:
            yield from self._read(shelf)
        yield from self._tokenise()
        for part, cells in zip(self._parts, self._grid, strict=True):
            for shelf in cast.SHELVES:
                self._emit(cast.share_of(cells, part, shelf))
        work = self._work()
        self._write_summary()
        self._sample()
        yield from work.run()
        self._sampled_at = None
        self._complete(work)
        for shelf in cast.SHELVES:
            yield from self._deliver(shelf)

    def _announce(self) -> None:
        told = {"versions": {"interlock": cast.KIND}, "chunks": "chunks"}
        config = {name: ev.Setting(value, "default") for name, value in SETTINGS.items()}
        environment = {"host": cast.KIND}
        if self.recorder.first:
            self._emit(ev.RunResumed(config=config, environment=environment, **told))  # type: ignore[arg-type]
        else:
            self._emit(
                ev.RunStarted(
                    run_id=self.directory.id,
                    config=config,
                    fusion="concat",
                    schedule=self.controls.schedule,
                    environment=environment,
                    **told,  # type: ignore[arg-type]
                )
            )
        self._emit(ev.DevicesFound(devices=[card.facts for card in self._cards]))

    def _steady(self, seconds: float) -> Waits:
        """Work that is no batch. Raises Stopped when asked to."""
        yield seconds
        if self.controls.stop_requested:
            raise Stopped("stopped by the operator; --resume continues")

    def _resolve(self, number: int) -> Waits:
        """A model's files: here already, downloaded at the second try, or refreshed."""
        part, spec = self._parts[number], self._parts[number].spec
        outcome: ev.Outcome = "hit" if self.recorder.first else part.outcome
        seconds = 0.2 if outcome == "hit" else 1.1
        if outcome == "download":
            yield from self._steady(1.6)
            reason = "HTTPSConnectionPool(host='huggingface.co', port=443): Read timed out. (read timeout=10)"
            self._emit(ev.DownloadRetried(model=part.key, attempt=1, wait_seconds=1.4, reason=reason))
            seconds = 6.2
        yield from self._steady(seconds)
        self._emit(
            ev.ModelResolved(
                model=part.key,
                source=spec.sources[0],
                outcome=outcome,
                commit=cast.digest("commit", part.key)[:40],
                bytes=2 * part.weights + 17_082_730,
                seconds=round(seconds, 3),
            )
        )

    def _read(self, shelf: Shelf) -> Waits:
        seconds = shelf.chunks / 3000
        yield from self._steady(seconds)
        for file, record, reason in shelf.refusals:
            self._emit(ev.RecordRefused(collection=shelf.name, file=file, record=record, reason=reason))
        self._emit(
            ev.CollectionRead(
                collection=shelf.name,
                qdrant_collection=shelf.name.lower(),
                files=shelf.files,
                chunks=shelf.chunks,
                duplicates=shelf.duplicates,
                refused=len(shelf.refusals),
                seconds=round(seconds, 3),
                borrows=list(shelf.borrows),
            )
        )

    def _tokenise(self) -> Waits:
        for part, cells in zip(self._parts, self._grid, strict=True):
            tokens = sum(cell.tokens for cell in cells)
            seconds = tokens / 1_600_000
            yield from self._steady(seconds)
            texts = sum(shelf.rows for shelf in cast.SHELVES)
            self._emit(ev.CorpusTokenised(models=[part.key], texts=texts, tokens=tokens, seconds=round(seconds, 3)))

    def _work(self) -> Work:
        """What is left to compute; of what an earlier session committed, its last batch was lost."""
        kept = self.recorder.look(lambda state: {number: set(done) for number, done in state.committed.items()})
        number, index = self.recorder.look(lambda state: (state.current_pass, state.latest_batch))
        if number is not None and index is not None and index in kept.get(number, ()):
            kept[number].discard(index)
            self._emit(ev.BatchesLost(model_pass=number, batches=[index]))
        left = [[cell for cell in cells if cell.index not in kept.get(at, ())] for at, cells in enumerate(self._grid)]
        return Work(
            parts=self._parts,
            weights=self._weights,
            left=left,
            mishaps=cast.mishaps_of(self._grid),
            cards=self._cards,
            controls=self.controls,
            emit=self._emit,
            now=lambda: self.seconds,
            random=self._random,
            leased=self.recorder.look(lambda state: len(state.leases)),
        )

    def _complete(self, work: Work) -> None:
        """A pass whose last batch an earlier session committed is complete too."""
        closed = self.recorder.look(lambda state: {*state.passes_completed, *state.failures})
        for number in range(len(self._parts)):
            if number not in closed:
                self._emit(work.completed(number, self._cards[0].name))

    def _deliver(self, shelf: Shelf) -> Waits:
        """Files, the store and its verification: of one collection it does not hold what was written."""
        yield from self._steady(0.5)
        dims = {part.key: part.spec.dim or 0 for part in self._parts}
        for name, dim in (dims | {"fused": sum(dims.values())}).items():
            yield from self._steady(0.15)
            self._wrote(shelf, f"{name}.npy", 128 + 4 * dim * shelf.chunks)
        yield from self._steady(0.4)
        self._wrote(shelf, "points.parquet", (8 * sum(dims.values()) + 900) * shelf.chunks)
        yield from self._steady(shelf.chunks / 2500)
        self._emit(_verified(shelf))
        status, reason = self.recorder.look(lambda state: verdict.of_collection(state, shelf.name))
        self._emit(ev.CollectionClosed(collection=shelf.name, status=status, reason=reason))

    def _wrote(self, shelf: Shelf, name: str, size: int) -> None:
        self._emit(
            ev.ArtefactWritten(
                collection=shelf.name,
                path=f"exports/{shelf.name}/{name}",
                rows=shelf.chunks,
                bytes=size,
                sha256=cast.digest(shelf.name, name),
            )
        )

    def _write_summary(self) -> None:
        summary.write(self.recorder.look(summary.summarise), self.directory.summary)


class Staged:
    """A scripted run as a source for screens that is moved by hand, and by no thread."""

    kind = "live"
    note = ""

    def __init__(self, run: Scripted) -> None:
        self.run = run
        self.controls: Controls | None = run.controls

    @property
    def over(self) -> bool:
        """Whether it was played to its end."""
        return self.run.code is not None

    def snapshot(self) -> Snapshot:
        """The run at this moment."""
        return self.run.recorder.snapshot()

    def entries(self, after: int) -> tuple[list[Entry], int]:
        """Those with a `seq` above `after`, and how many before them were dropped."""
        return self.run.recorder.drain(max(after, self.run.recorder.first - 1))


def _verified(shelf: Shelf) -> ev.StoreVerified:
    ok, worst = shelf.name != cast.UNVERIFIED, 0.9999998
    points = shelf.chunks if ok else shelf.chunks - 3
    return ev.StoreVerified(
        collection=shelf.name,
        qdrant_collection=shelf.name.lower(),
        store="store",
        points=points,
        expected=shelf.chunks,
        stale=0,
        sampled=64,
        worst_cosine=worst,
        ok=ok,
        detail=f"{points} points, {shelf.chunks} expected and 0 stale; worst cosine {worst:.7f}",
    )
