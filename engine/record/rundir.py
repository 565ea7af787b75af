"""A run on disk: where it lies, which run is meant, and the inputs it was begun with.

`run.json` is written once, and again only to add a model that was missing, or files that were still being read. A
run is continued only with the same inputs; what differs is told.
Nothing is written through a link that lies in a run's directory: where it leads is nobody's to say.
"""

import json
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec

from interlock.engine import storage
from interlock.engine.errors import InterlockError, UsageError
from interlock.engine.record import atomic, journal
from interlock.engine.record.events import ControlApplied, DevicesFound, RunResumed, RunStarted
from interlock.engine.record.facts import DeviceFacts, Setting, node_of
from interlock.engine.record.inputs import changes, check, filled, moved, reused, same_files
from interlock.engine.record.words import few, typed

SCRATCH, SOCKET = ".tokens-", "control.sock"
RUN, JOURNAL, SUMMARY = "run.json", "journal.jsonl", "summary.json"
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")
NAMES = "letters, digits, '.', '_' and '-', beginning with a letter or digit"
"""What a new run is called; one that was moved is a run of any name."""
LISTED = 10
"""Runs that are named to somebody who looked for another."""
NO_WORD = "no word of why: killed, or the machine went down"
_TELLING = tuple(
    f'"event":"{event}"'.encode() for event in ("run_started", "run_resumed", "devices_found", "control_applied")
)
_STEERED = {
    ("schedule", "shared"): {"window": "shared"},
    ("schedule", "exclusive"): {"window": "0", "exclusive": "yes"},  # as runs of earlier versions have it
    ("cpu_fallback", "yes"): {"cpu_fallback": "yes"},
    ("cpu_fallback", "no"): {"cpu_fallback": "no"},
}
"""The settings that a control stands for; the others last no longer than the process."""
OPERATOR = "operator"
"""The origin of what an operator changed while the run went on."""


@dataclass(frozen=True)
class Begun:
    """What the latest session of a run was called with and steered to, and what it computed on."""

    config: Mapping[str, Setting]
    devices: tuple[DeviceFacts, ...]
    steered: Mapping[str, Setting] = field(default_factory=dict)
    at: Path | None = None
    """Where the run lies now."""

    @property
    def kept(self) -> Mapping[str, Setting]:
        """Its settings as they were at its end, with the devices by name where this machine was to choose them (nodes'
        names mean nothing to who goes on), and paths as they are beside a run that was moved."""
        asked, settings = self.config.get("devices"), {**self.config, **self.steered}
        out = self.config.get("out")
        if self.at and out and isinstance(out.value, str) and out.value.startswith("/"):
            before, now = Path(out.value) / self.at.name, self.at.absolute()
            settings = {name: Setting(moved(each.value, before, now), each.origin) for name, each in settings.items()}
        on_nodes = any(node_of(each.name) for each in self.devices)
        if not asked or not self.devices or on_nodes or asked.value not in ("auto", "cuda"):
            return settings
        return {**settings, "devices": Setting(",".join(each.name for each in self.devices), asked.origin)}


@dataclass(frozen=True)
class RunDirectory:
    """The files of one run; `made` are the directories that were not there when it was chosen, innermost first."""

    path: Path
    made: tuple[Path, ...] = field(default=(), compare=False)

    @property
    def id(self) -> str:
        return self.path.name

    @property
    def journal(self) -> Path:
        return self.path / JOURNAL

    @property
    def summary(self) -> Path:
        return self.path / SUMMARY

    def scratch(self) -> TemporaryDirectory[str]:
        """Make a place for one session's token ids, gone when it ends; clear what a killed session left, or one whose
        file system (NFS does) kept what was still open."""
        for left in self.path.glob(f"{SCRATCH}*"):
            shutil.rmtree(left, ignore_errors=True)
        for place in (self.path, *self._below()):
            atomic.sweep(place)
        with atomic.explaining(self.path):
            return TemporaryDirectory(prefix=SCRATCH, dir=self.path, ignore_cleanup_errors=True)

    def pass_directory(self, model_pass: int, model: str) -> Path:
        """Return where the files of a pass lie, which have a row for each distinct text."""
        return self.path / "passes" / f"{model_pass}_{model}"

    @property
    def digests(self) -> Path:
        """What each row of the passes' vectors is the vector of: 16 bytes of the text's SHA-256."""
        return self.path / "passes" / "texts.npy"

    def exports(self, collection: str) -> Path:
        """Return where a collection's files go. Raises UsageError for a link."""
        path = self.path / "exports" / collection
        _refuse_links([path.parent, path])
        return path

    @property
    def uploads(self) -> Path:
        """Where journals and reports of uploads lie. Raises UsageError for a link."""
        _refuse_links([self.path, self.path / "uploads"])
        return self.path / "uploads"

    def inputs(self) -> dict[str, Any]:
        """Read what the run was begun with; empty where a run has not come so far. Raises InterlockError for damage."""
        try:
            with atomic.reading(self.path / RUN):
                inputs: dict[str, Any] = json.loads(atomic.content(self.path / RUN))
            check(inputs)
        except (FileNotFoundError, NotADirectoryError):
            return {}
        except (ValueError, RecursionError, msgspec.MsgspecError) as error:
            reason = "nested too deeply" if isinstance(error, RecursionError) else str(error)
            raise InterlockError(
                f"{self.path / RUN} is damaged ({reason}): restore it from a copy, or start a new run"
            ) from error
        return inputs

    def begun(self) -> Begun | None:
        """Read in the journal what the latest session was called with, and what an operator changed since; None where
        no session came so far.

        Raises InterlockError for a run that was begun and whose journal does not say so.
        """
        config: Mapping[str, Setting] = {}
        steered: dict[str, Setting] = {}
        devices: tuple[DeviceFacts, ...] = ()
        with (
            suppress(FileNotFoundError, NotADirectoryError),
            atomic.reading(self.journal),
            atomic.opened(self.journal) as lines,
        ):
            for line in lines:
                # Most lines are batches: looking for a name in one takes less than decoding it.
                entry = journal.decode(line) if any(mark in line for mark in _TELLING) else None
                match entry.body if entry else None:
                    case RunStarted(config=config) | RunResumed(config=config):
                        steered = {}  # it was begun with that, or was told otherwise
                    case DevicesFound(devices=found):
                        devices = tuple(found)
                    case ControlApplied(control=control, value=value):
                        changed = _STEERED.get((control, value), {})
                        steered |= {name: Setting(to, OPERATOR) for name, to in changed.items()}
        if not config and (self.path / RUN).exists():
            raise InterlockError(
                f"{self.journal} is missing or lacks the run's settings, so the run cannot be trusted: restore it "
                "from a copy, or start a new run"
            )
        return Begun(config, devices, steered, self.path) if config else None

    def check_links(self) -> None:
        """Raise UsageError where what is written into the run would land somewhere else."""
        vectors = [file for depth in ("*", "*/*") for file in (self.path / "passes").glob(depth)]
        written = [file for file in vectors if not file.match(atomic.PARTIAL)]  # those are swept, and made anew
        _refuse_links([self.path, self.journal, *self._below(), *written])

    def unmake(self) -> None:
        """Remove the directories that were made for a run that never came to work, as far as they are empty."""
        for directory in self.made:
            with suppress(OSError):
                directory.rmdir()

    def _below(self) -> Iterator[Path]:
        """The directories that a run writes into."""
        for directory in (self.path / "passes", self.path / "exports"):
            yield directory
            with suppress(OSError):
                yield from (path for path in directory.iterdir() if path.is_dir())


def _refuse_links(paths: Iterable[Path]) -> None:
    for path in paths:
        if path.is_symlink():
            raise UsageError(
                f"{path} is a symbolic link, and runs do not write through links: replace it with a real file or "
                "directory"
            )


def choose(
    out: Path,
    run_id: str,
    chunks: Path,
    *,
    resume: bool,
    skipped: Callable[[str], None] = lambda _: None,
    begin: bool = True,
    shard: str = "",
) -> RunDirectory:
    """Choose the directory that these flags mean: a new one, which is made, or with `resume` the one to continue: of
    this `shard`, if it is said. One whose chunks are not where they were is continued where files of the same names are
    in `chunks` now; one that cannot be read is none to continue unless it is named: `skipped` is told of both.

    Raises UsageError for a run that exists and is not to be resumed, for one to be resumed that is not there (where
    there are no runs at all and it may `begin`, as a job that is started again wants it, it does), for a directory of
    something else, and for links; InterlockError for a place that is closed."""
    with atomic.explaining(out):
        if run_id:
            named = out / run_id
            begun = (named / JOURNAL).exists()
            if resume and not begun and (runs_in(out) or not begin):
                raise UsageError(
                    f"--resume: no run {run_id!r}, {beside(named)}: name one of them, or drop --resume to begin it"
                )
            if not begun and not NAME.fullmatch(run_id):
                raise UsageError(f"--run-id: use {NAMES}, not {run_id!r:.100}")
            return _checked(_named(named), out, resume=resume)
        if not resume:
            return _fresh(out)
        same: list[tuple[int, RunDirectory]] = []
        elsewhere: list[tuple[int, RunDirectory]] = []
        for run in (RunDirectory(file.parent) for file in out.glob(f"*/{RUN}") if not _is_alias(file.parent)):
            try:
                inputs = run.inputs()
                written, there = (run.path / RUN).stat().st_mtime_ns, storage.located(inputs.get("chunks", ""), Path)
                if (asked := shard in ("", inputs.get("shard", ""))) and there == chunks.resolve():
                    same.append((written, run))
                elif asked and same_files(list(inputs.get("files", ())), chunks) and not there.exists():
                    elsewhere.append((written, run))
            except (InterlockError, OSError) as error:
                skipped(f"--resume skipped a run: {error}")
        if not (same or elsewhere):
            cut = [run for run in runs_in(out) if not (run / RUN).exists() and not (run / "passes").exists()]
            cut = [run for run in cut if not atomic.held(run / JOURNAL)]
            if cut:
                names = few([run.name for run in cut], LISTED)
                skipped(f"--resume begins a new run: {names} ended before the chunks were read: delete what is left")
            return _fresh(out)
        chosen = max(same or elsewhere, key=lambda each: each[0])[1]
        if not same:
            skipped(
                f"--resume: run {chosen.id} was started with files of these names in {chosen.inputs()['chunks']}, "
                "which no longer exists: continuing it"
            )
        return _checked(chosen, out, resume=True)


def _checked(run: RunDirectory, out: Path, *, resume: bool) -> RunDirectory:
    run.check_links()
    begun = run.journal.exists()
    if begun and not resume:
        raise UsageError(
            f"run {run.id} already exists in {out}: add --resume to continue it, or choose another --run-id"
        )
    # A session that ran out of descriptors before it was refused may have left its scratch.
    if not begun and run.path.exists() and any(not left.name.startswith(SCRATCH) for left in run.path.iterdir()):
        raise UsageError(f"{run.path} is not empty and not a run: choose another --run-id or --out")
    return run


def _is_alias(run: Path) -> bool:
    """Tell whether it is a link to the run beside it, as `latest` often is."""
    return run.is_symlink() and run.resolve().parent == run.parent.resolve()


def runs_in(out: Path) -> list[Path]:
    """List the directories of the runs in `out`, the one written last first; links to others of them are none."""
    runs: list[tuple[int, Path]] = []
    with suppress(OSError):
        for file in out.glob(f"*/{JOURNAL}"):
            with suppress(OSError, RuntimeError):
                runs += [(file.stat().st_mtime_ns, file.parent)] * (not _is_alias(file.parent))
    return [path for _, path in sorted(runs, reverse=True)]


def is_run(path: Path) -> bool:
    """Tell whether this is the directory of a run, not one of runs."""
    return (path / JOURNAL).is_file()


def runs_at(places: Sequence[Path]) -> list[Path]:
    """List the runs that are meant by directories of runs, and by those of single ones."""
    found = ([place] if is_run(place) else runs_in(place) for place in places)
    return list(dict.fromkeys(path for paths in found for path in paths))


def death_of(run: Path) -> str:
    """Say what is known of the death of a run's process, which did not close it: its latest session may have left a
    crash file."""
    with suppress(OSError):
        crashes = {each.stat().st_mtime_ns: each for each in run.glob("crash-*.txt")}
        if crashes and max(crashes) >= (run / atomic.SESSION).stat().st_mtime_ns:
            return f"{crashes[max(crashes)]} tells why"
    return NO_WORD


def beside(path: Path) -> str:
    """Tell which runs there are where somebody looked for the one at `path`, in words."""
    names = [run.name for run in runs_in(path.parent)]
    return f"runs in {path.parent}: {few(names, LISTED)}" if names else f"no run in {path.parent}"


def bind(directory: RunDirectory, inputs: Mapping[str, Any], asked: Sequence[str] = ()) -> None:
    """Tie the run to its inputs. Raises UsageError with what changed where it was begun with others, behind what was
    `asked` otherwise, which may be why."""
    begun = directory.inputs()
    if not begun and (directory.path / "passes").exists():
        raise InterlockError(
            f"{directory.path / RUN} is missing, so vectors cannot be matched to texts: restore it from a "
            "copy, or start a new run"
        )
    now = json.loads(json.dumps(inputs))
    was, is_now = filled(begun, now) if begun else (begun, now)
    if begun and (changed := list(changes(was, is_now))):
        raise UsageError(
            f"run {directory.id} cannot be resumed: its inputs changed\n  "
            + few([*asked, *changed], 20).replace("; ", "\n  ")
            + f"\nrestore them, or {reused(was, is_now, typed(directory.path))}"
        )
    if not begun or (was["roster"], was["files"]) != (begun["roster"], begun["files"]):
        written = {**begun, "roster": was["roster"], "files": was["files"]} if begun else now
        atomic.write_bytes(directory.path / RUN, json.dumps(written, indent=2).encode() + b"\n")


def _named(path: Path) -> RunDirectory:
    return RunDirectory(path, tuple(each for each in (path, *path.parents) if not each.exists()))


def _fresh(out: Path) -> RunDirectory:
    """A directory of its own, whoever else begins a run in the same second."""
    stamp = datetime.now().strftime("%Y%m%d-%H%M%S")
    above = _named(out).made
    out.mkdir(parents=True, exist_ok=True)
    for name in (stamp, *(f"{stamp}-{number}" for number in range(1, 1000))):
        with suppress(FileExistsError):
            (out / name).mkdir()
            return RunDirectory(out / name, (out / name, *above))
    raise UsageError(f"{out} has a thousand runs of this second: choose a --run-id")
