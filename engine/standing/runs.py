"""The runs in a directory, each as a list shows it: how it stands, what it is of, how far it is, what it takes on disk.

A run that was closed is read from its summary, which takes no time; only one that was not is folded from its journal.
Nothing is locked and nothing is written, but by `delete`.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from fnmatch import fnmatch
from pathlib import Path

from interlock.engine.errors import ExitCode, InterlockError, UsageError, reason
from interlock.engine.record import atomic, journal
from interlock.engine.record.atomic import SESSION, Occupant, held, lock, occupant
from interlock.engine.record.facts import Setting, rehearsed
from interlock.engine.record.fold import fold_all
from interlock.engine.record.inputs import resume_words, upload_flags
from interlock.engine.record.rundir import JOURNAL, SCRATCH, SOCKET, RunDirectory, death_of, runs_at
from interlock.engine.record.snapshot import snapshot
from interlock.engine.record.state import RunState
from interlock.engine.record.words import argument, command
from interlock.engine.standing.closed import attention_of, closed_run, models_of, read_of, written_at
from interlock.engine.standing.health import Health, ended
from interlock.engine.standing.judgement import DeviceUse, Judgement, judge, left_behind, need, uploaded
from interlock.engine.standing.outcome import allowance

_OWN = (JOURNAL, SESSION, SOCKET, f"{SCRATCH}*", atomic.PARTIAL)  # what a run has that has not begun


@dataclass(frozen=True, kw_only=True)
class Overview(Judgement):
    """A run as a list shows it; times are seconds since the epoch."""

    path: Path
    began_at: float = 0.0
    latest_at: float = 0.0
    models: tuple[str, ...] = ()
    chunks_read: int = 0
    """Of all its collections."""
    device_kind: str = ""
    chunks: str = ""
    rehearsed: bool = False
    config: Mapping[str, Setting] = field(default_factory=dict)
    """What its latest session was called with."""
    exit_code: int | None = None
    allows: str = ""
    """The --max-refused that covers all that was refused of it; empty where its own does."""
    bytes: int = 0
    held: bool = False
    """Whether a process has it in use."""
    uploading: bool = False
    unreadable: bool = False
    occupant: Occupant | None = None

    @property
    def id(self) -> str:
        return self.path.name

    def need(self, now: float) -> int:
        """Rank it by how much it needs somebody at `now`, low first."""
        return need(self, held=self.held, latest_at=self.latest_at, now=now)

    @property
    def lives(self) -> bool:
        """Whether there is more to come of it, or its process died."""
        return self.exit_code is None or self.held or self.uploading

    @property
    def resumable(self) -> bool:
        """Whether `--resume` would go on with it."""
        return not self.held and self.exit_code != 0 and bool(self.chunks)

    @property
    def onward(self) -> list[str]:
        """The arguments of `interlock` that go on with it: where nothing but parked texts or refused input
        is left, with these, or doing without it."""
        whole = self.exit_code is not None and self.share_done == 1
        allowed = ["--max-refused", self.allows] * bool(whole and self.allows)
        again = ["--retry-parked"] * bool(whole and self.attention.parked)
        return [*resume_words(self.chunks, self.path, self.config), *allowed, *again]


def overviews(places: Sequence[Path], now: float) -> list[Overview]:
    """Look at every run in directories, or at single ones, the one that began last first."""
    found = [overview(path, now) for path in runs_at(places)]
    return sorted(found, key=lambda each: each.began_at, reverse=True)


def overview(directory: Path, now: float, folded: Callable[[Path], RunState] | None = None) -> Overview:
    """Look at one run as it stands at `now`; `folded` gives the state of one that is not closed, for who has it.

    One that cannot be read says so in its health.
    """
    in_use = held(directory / JOURNAL)
    try:
        seen = None if in_use else _closed(directory)
        seen = seen or _open(directory, (folded or state_of)(directory), now, in_use=in_use)
    except Exception as error:  # whatever one holds, it hurts no other
        seen = Overview(
            path=directory, health=Health("UNREADABLE", "error", reason(error), stuck=True), unreadable=True
        )
    upload = upload_due(directory, seen.config, seen.exit_code)
    return replace(
        uploaded(seen, upload, now),
        uploading=upload is not None and upload.live,
        latest_at=max(seen.latest_at or written_at(directory / JOURNAL), upload.latest.at if upload else 0.0),
        bytes=size_of(directory),
        held=in_use,
        occupant=occupant(directory),
        chunks=chunks_of(directory, seen.chunks, seen.config),
    )


def upload_due(run: Path, config: Mapping[str, Setting], code: int | None) -> journal.Upload | None:
    """Find how a run that ended with this exit code is brought to a server, as far as that is to be told: by its
    journal, and where it has none although the run was whole and called with one, that nothing has begun."""
    found = None if code is None else journal.upload_of(run)
    if found or "server" not in config or code not in (ExitCode.COMPLETED, ExitCode.MITIGATED):
        return found
    if any(run.glob("uploads/*.jsonl")):
        return None
    flags = ("--prune",) * ("prune" in config and bool(config["prune"].value)) + upload_flags(config)
    to = journal.UploadBinding(str(config["server"].value), "", "", 0, flags=flags)
    return journal.Upload(run, to, journal.Acknowledged(rows=0), live=False)


def state_of(directory: Path) -> RunState:
    """Fold the journal of a run. Raises InterlockError where it is damaged, OSError where it cannot be read."""
    return fold_all(RunState(), journal.read(directory / JOURNAL))


def size_of(directory: Path) -> int:
    """Add up the bytes that a directory takes on disk."""
    total = 0
    for place, _, names in os.walk(directory):
        for name in names:
            try:
                total += Path(place, name).lstat().st_blocks * 512
            except OSError:  # it went meanwhile
                continue
    return total


def refuse_at_work(directory: Path, lacks: str) -> None:
    """Raise UsageError where somebody is at work on a run, who may bring yet what it `lacks`."""
    if held(directory / JOURNAL):
        who, follow = occupant(directory) or "another session", command(["watch", argument(str(directory))])
        raise UsageError(f"{lacks} yet: {directory} is in use by {who}: wait for its end, or follow it (`{follow}`)")


def delete(directory: Path) -> None:
    """Remove a run for good. Raises UsageError for what is no run and for one in use, InterlockError where a part of it
    stays."""
    path = directory / JOURNAL
    if directory.is_symlink() or path.is_symlink() or not path.is_file() or not _begins(path):
        raise UsageError(f"{directory} is not a run, so it was not deleted")
    if inner := [each.parent for each in directory.rglob(JOURNAL) if each != path]:
        raise UsageError(f"{directory} has another run in it ({inner[0]}), so it stays: delete that one first")
    with atomic.explaining(path), atomic.opened(path) as handle:
        upload = journal.upload_of(directory)
        if not lock(handle) or (upload and upload.live):  # who would resume it meanwhile is refused
            raise UsageError(f"{directory} is in use by {occupant(directory) or 'another session'}")
        atomic.remove(directory)
    if directory.exists():
        raise InterlockError(f"{directory} could not be deleted whole: check the permissions of what is left")


def _begins(path: Path) -> bool:
    """Whether a file begins as the journal of a run does. An empty one may be that of a run that never came to work,
    where nothing else lies beside it."""
    with atomic.reading(path), atomic.opened(path) as handle:
        line = handle.readline()
        if not line:
            return all(any(fnmatch(each.name, own) for own in _OWN) for each in path.parent.iterdir())
    with suppress(InterlockError):
        return journal.decode(line) is not None
    return True  # of another version


def _open(directory: Path, state: RunState, now: float, *, in_use: bool) -> Overview:
    """A run that is not closed, or whose summary cannot be read."""
    seen = snapshot(state, 0) if in_use else left_behind(snapshot(state, 0), death_of(directory))
    return Overview(
        **vars(judge(seen, now, run=directory)),
        path=directory,
        began_at=seen.began_at,
        latest_at=seen.latest_at,
        models=tuple(each.model for each in seen.passes) or tuple(each.model for each in seen.models),
        chunks_read=sum(each.read.chunks for each in seen.collections),
        device_kind=seen.device_kind,
        chunks=seen.chunks,
        rehearsed=seen.rehearsed,
        config=seen.config,
        exit_code=seen.exit_code,
        allows=allowance([each.read for each in seen.collections], seen.config),
    )


def _closed(directory: Path) -> Overview | None:
    """A run whose journal ends with its close, from its summary; None for any other."""
    if (said := closed_run(directory)) is None:
        return None
    try:
        began, latest = (datetime.fromisoformat(each).timestamp() for each in (said.started_at, said.finished_at))
    except (OSError, ArithmeticError, ValueError):
        return None
    lost = [each.name for each in said.devices if each.lost]
    return Overview(
        path=directory,
        health=ended(said.status, said.reason, lost=lost, exit_code=said.exit_code),
        attention=attention_of(said),
        share_done=1.0 if said.status == "completed" else said.share_done and min(1.0, max(0.0, said.share_done)),
        devices=tuple(
            DeviceUse(each.name, None, "error" if each.lost else "ok", bool(each.lost)) for each in said.devices
        ),
        began_at=began,
        latest_at=latest,
        models=models_of(said),
        chunks_read=sum(place.chunks for place in said.collections),
        device_kind=said.device_kind,
        chunks=said.chunks,
        rehearsed=rehearsed(said.configuration),
        config=said.configuration,
        exit_code=said.exit_code,
        allows=allowance(map(read_of, said.collections), said.configuration),
    )


def chunks_of(directory: Path, told: str, config: Mapping[str, Setting]) -> str:
    """Where a run's chunks lie, from any directory: `run.json` says so, or what it was called with; else as `told`."""
    otherwise = config["chunks"].value if "chunks" in config else told
    try:
        return str(RunDirectory(directory).inputs().get("chunks", otherwise))
    except InterlockError:
        return str(otherwise)
