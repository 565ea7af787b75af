"""One trial: the command line carried out in a forked copy of a warm process, and how it ended.

Everything heavy is imported once; a trial then starts in milliseconds. The warm process itself computes nothing and
starts no thread: whatever would is done `aside`, in a fork of its own.
"""

import gc
import os
import pickle
import re
import resource
import select
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from interlock.engine.errors import ExitCode

PATIENCE = 120.0
"""Seconds after which a trial hangs; a loaded machine needs one."""
OURS = re.compile(
    r"Traceback \(most recent call last\)|internal error|panicked at|PanicException|Fatal Python error|"
    r"Exception ignored in|Segmentation fault"
)
BLOCKED = set(signal.Signals) - {signal.SIGKILL, signal.SIGSTOP}
SILENT = (ExitCode.INTERRUPTED, ExitCode.TERMINATED, ExitCode.HANGUP)
"""Whoever sent the signal knows why it ended."""
T = TypeVar("T")
Setup = Callable[[], object]


def warm() -> None:
    """Import what every command needs, with one thread for everything."""
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "RAYON_NUM_THREADS"):
        os.environ[name] = "1"
    import interlock.console.main

    os.environ |= {**interlock.console.main.ENVIRONMENT, "TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1"}
    import pyarrow.parquet
    import qdrant_edge
    import sentence_transformers
    import torch
    import transformers

    import interlock.console.commands
    import interlock.console.sources.journal
    import interlock.console.summary.document
    import interlock.engine.flows.forecast
    import interlock.engine.flows.run
    import interlock.engine.search.searcher

    assert all((pyarrow.parquet, qdrant_edge, sentence_transformers, transformers, interlock))
    torch.set_num_threads(1)
    gc.collect()
    gc.freeze()


@dataclass(frozen=True)
class Outcome:
    """How a trial ended: `code` is below zero for a signal."""

    code: int
    err: str
    out: str
    seconds: float
    hung: bool = False

    @property
    def last(self) -> str:
        """The last line of stderr."""
        return (self.err.strip().splitlines() or [""])[-1]


def wrongs(outcome: Outcome, *, sent: Sequence[int] = (), codes: Sequence[int] = tuple(ExitCode)) -> list[str]:
    """What no command may do, whatever was done to it; `sent` are the signals that it was sent."""
    if outcome.hung:
        return [f"no end within {outcome.seconds:.0f} s: {outcome.last}"]
    found = []
    if outcome.code < 0 and -outcome.code not in sent:
        found.append(f"died of {signal.Signals(-outcome.code).name}: {outcome.last}")
    elif outcome.code >= 0 and outcome.code not in codes:
        found.append(f"exit code {outcome.code}: {outcome.last}")
    if said := OURS.search(outcome.err + outcome.out):
        found.append(f"{said[0]!r} is told: {outcome.last}")
    if outcome.code > 0 and outcome.code not in SILENT and not outcome.err.strip():
        found.append(f"exit code {outcome.code} without a word")
    return found


def carry_out(
    arguments: Sequence[object], place: Path, *, setup: Setup | None = None, patience: float = PATIENCE,
    meanwhile: Callable[[int], object] | None = None,
) -> Outcome:  # fmt: skip
    """Run the command to its end; `setup` is called in it first, `meanwhile` in this process with its id."""
    trial = start(arguments, place, setup=setup)
    if meanwhile:
        meanwhile(trial.pid)
    return trial.end(patience)


@dataclass(frozen=True)
class Trial:
    """A command under way in a fork; its output lies in `place`."""

    pid: int
    place: Path
    began: float

    def end(self, patience: float = PATIENCE) -> Outcome:
        """Wait for it; what does not end in time is killed."""
        handle = os.pidfd_open(self.pid)
        try:
            hung = not select.select([handle], [], [], patience)[0]
        finally:
            os.close(handle)
        if hung:
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
        code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        err, out = (_text(self.place / name) for name in ("err", "out"))
        return Outcome(code, err, out, time.monotonic() - self.began, hung)


def _text(file: Path) -> str:
    """What was written there; nothing by a process that was killed before it could."""
    return file.read_text(errors="replace") if file.exists() else ""


def start(arguments: Sequence[object], place: Path, *, setup: Setup | None = None) -> Trial:
    """Begin the command in a fork with `place` as its working directory."""
    place = Path(tempfile.mkdtemp(dir=place, prefix="o-"))
    before = signal.pthread_sigmask(signal.SIG_BLOCK, BLOCKED)  # until the command itself is there to be hit
    pid = os.fork()
    if pid:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        return Trial(pid, place, time.monotonic())
    try:
        os.setsid()
        _redirect(place)
        if setup:
            setup()
        _command([str(each) for each in arguments])
    finally:
        os._exit(70)


def _redirect(place: Path) -> None:
    """Output into files: a pipe that nobody empties would be one more thing that can go wrong."""
    os.chdir(place)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    for number, name in ((1, "out"), (2, "err")):
        handle = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
        os.dup2(handle, number)
        os.close(handle)
    os.close(null)
    sys.stdout = os.fdopen(1, "w", closefd=False)
    sys.stderr = os.fdopen(2, "w", closefd=False, buffering=1)


def _command(arguments: list[str]) -> None:
    """What the installed script does, up to the end of the process."""
    import threading

    from interlock.console.main import main

    try:
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        code = main(arguments)
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    except BaseException:
        traceback.print_exc()
        code = 1
    with suppress(BaseException):
        threading._shutdown()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)


def aside(work: Callable[[], T], patience: float = 600.0) -> T:
    """What `work` returns, computed in a fork so that nothing of it stays here. Raises RuntimeError if it fails."""
    read, write = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            os.close(read)
            with os.fdopen(write, "wb") as pipe:
                pickle.dump(_answer(work), pipe)
        finally:
            os._exit(0)
    os.close(write)
    data = b""
    until = time.monotonic() + patience
    while time.monotonic() < until and select.select([read], [], [], until - time.monotonic())[0]:
        if not (piece := os.read(read, 1 << 20)):
            break
        data += piece
    else:
        os.kill(pid, signal.SIGKILL)
    os.close(read)
    os.waitpid(pid, 0)
    good, value = pickle.loads(data) if data else (False, "no answer")
    if not good:
        raise RuntimeError(value)
    return value


def _answer(work: Callable[[], Any]) -> tuple[bool, Any]:
    try:
        return True, work()
    except BaseException:
        return False, traceback.format_exc()


def no_core_files() -> None:
    """A process that dies of SIGBUS is evidence enough."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
