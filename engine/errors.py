"""The few exceptions a person can act on, each with the exit code that means it.

Raised anywhere in the engine, rendered once by the front end. A message says what was wrong, where
(file, record, model, device) and what to do.
"""

import errno
import os
import re
import traceback
from collections.abc import Iterable
from contextlib import suppress
from enum import IntEnum
from itertools import takewhile
from pathlib import Path


class ExitCode(IntEnum):
    """What the process says when it ends; the numbers are an interface and never change."""

    COMPLETED = 0
    FAILED = 1
    USAGE = 2
    MITIGATED = 3
    STOPPED = 4
    UNAVAILABLE = 5
    HANGUP = 129
    INTERRUPTED = 130
    TERMINATED = 143


MEANINGS = {
    ExitCode.COMPLETED: "completed",
    ExitCode.FAILED: "failed, or a collection is incomplete",
    ExitCode.USAGE: "bad usage, configuration or input; nothing was done",
    ExitCode.MITIGATED: "completed, but with mitigations or without refused input (--strict)",
    ExitCode.STOPPED: "stopped by the operator, a deadline, or no GPU that answers; resumable",
    ExitCode.UNAVAILABLE: "no usable device, model or server",
    ExitCode.HANGUP: "terminal lost, with --on-hangup stop; resumable",
    ExitCode.INTERRUPTED: "interrupted, resumable",
    ExitCode.TERMINATED: "terminated, resumable",
}


def meant(word: str, known: Iterable[str], before: str = "") -> str:
    """Suggest ` (did you mean --roster?)` where a known word is close; `before` is what all of them begin with."""
    from difflib import get_close_matches

    close = get_close_matches(word, list(known), 1)
    return f" (did you mean {before}{close[0]}?)" if close else ""


def near(path: Path) -> str:
    """Suggest ` (did you mean runs/a?)` for a path that is not there, where a close name beside it is."""
    from difflib import get_close_matches

    gone = path
    while gone != gone.parent and not gone.parent.is_dir():
        gone = gone.parent
    with suppress(OSError):
        names = [] if gone.exists() else [each.name for each in gone.parent.iterdir()]
        found = [gone.with_name(name) / path.relative_to(gone) for name in get_close_matches(gone.name, names, 3)]
        return next((f" (did you mean {place}?)" for place in found if place.exists()), "")
    return ""


def check_apart(flag: str, path: Path, chunks: Path) -> None:
    """Raise UsageError where what `flag` writes at `path` lies in the chunks of a run, through a link too."""
    place, above = (each if "://" in str(each) else Path(os.path.realpath(each)) for each in (path, chunks))
    if place.is_relative_to(above):
        raise UsageError(
            f"{flag} {path} is inside {chunks}, so its files would be read as chunks: choose another directory",
            flag[2:],
        )


_OF_NOTEBOOKS = re.compile(r"[\\/](IPython|ipykernel)[\\/]")
IN_NOTEBOOKS = 12
"""Lines that a notebook shows of an error at most."""


class InterlockError(Exception):
    """A run cannot go on; `exit_code` says how the process ends, `setting` which one is to be changed, if one is."""

    exit_code: ExitCode = ExitCode.FAILED

    def __init__(self, said: object = "", setting: str = "") -> None:
        super().__init__(said)
        self.setting = setting

    def _render_traceback_(self) -> list[str]:
        """Show what it says, and of the way from the cell to our own code what there is room for; IPython asks."""
        said = f"{type(self).__name__}: {self}".splitlines()
        if len(said) > IN_NOTEBOOKS:
            said = [*said[: IN_NOTEBOOKS - 2], "...", said[-1]]
        own, shown = str(Path(__file__).parents[1]), list[str]()
        frames = takewhile(lambda each: not each.filename.startswith(own), traceback.extract_tb(self.__traceback__))
        for frame in reversed([each for each in frames if not _OF_NOTEBOOKS.search(each.filename)]):
            lines = "".join(traceback.format_list([frame])).splitlines()
            if len(lines) + len(shown) + len(said) > IN_NOTEBOOKS:
                break
            shown = lines + shown
        return [*shown, *said]


class UsageError(InterlockError):
    """The command, the configuration or the input cannot be used as given."""

    exit_code = ExitCode.USAGE


class UnavailableError(InterlockError):
    """A model, a device or a server that is needed is not to be had."""

    exit_code = ExitCode.UNAVAILABLE


class Terminated(KeyboardInterrupt):
    """SIGTERM came to what ends by an exception, as at an interrupt."""


class NoDeviceError(InterlockError):
    """No device takes a model in the midst of a run: its pass fails, and the others go on."""


class DiskError(InterlockError):
    """A file of the run cannot be written, so that nothing more can be recorded."""


class Stopped(InterlockError):
    """The operator or the deadline stopped the run, or no GPU was left; it can be resumed."""

    exit_code = ExitCode.STOPPED


_REMEDIES = {
    errno.ENOSPC: "free space there and retry",
    errno.EDQUOT: "free space there and retry",
    errno.EFBIG: "raise the file size limit (ulimit -f) and retry",
    errno.EMFILE: "raise the open file limit (ulimit -n) and retry",
    errno.ENFILE: "close other programs' files and retry",
    errno.ENOMEM: "free memory, or raise this process's limit, and retry",
    errno.EAGAIN: "raise the process limit (ulimit -u) and retry",
    errno.ENAMETOOLONG: "choose a shorter one",
}
_FILE_SYSTEM = {  # which some, over a network or from a host, do not do
    errno.ENOLCK: "its file system gives no locks: choose a path on a local disk",
    errno.EINVAL: "its file system may not do what is asked, such as fsync: choose a path on a local disk",
    errno.ENOTSUP: "its file system does not do what is asked: choose a path on a local disk",
}
_WORDS = {  # of libraries that raise no OSError, with what they mean and what to do
    "can't start new thread": ("cannot start a thread", _REMEDIES[errno.EAGAIN]),  # Python
    "Failed to launch worker thread": ("cannot start a thread", _REMEDIES[errno.EAGAIN]),  # Arrow
    "failed to map segment": ("cannot load a library into memory", _REMEDIES[errno.ENOMEM]),  # the dynamic loader
    "could not create a primitive": (  # it does not say why
        "oneDNN could not create a primitive (usually too little memory)",
        _REMEDIES[errno.ENOMEM],
    ),
    "Invalid log settings": ("TORCH_LOGS is not as torch reads it", "correct it or unset it, and retry"),
}
_CLOSED = (errno.EACCES, errno.EPERM, errno.EROFS)


def remedy(error: OSError) -> str:
    """Say what to do about what the system says of a file."""
    return {**_REMEDIES, **_FILE_SYSTEM}.get(error.errno or 0, "fix the cause, or choose another path")


def how_to_resume(error: OSError) -> str:
    """Say what to do where a run ended because of what the system says of its journal."""
    full = {errno.EFBIG: "raise the file size limit (ulimit -f) or ", errno.ENOSPC: "", errno.EDQUOT: ""}
    before = full.get(error.errno or 0)
    return "fix the cause and --resume" if before is None else f"{before}free space and --resume"


def reason(error: BaseException) -> str:
    """Say why it failed, in one line that is never empty: what it says, else the limit it met, else its type."""
    return " ".join(str(error).split()) or limit(error) or type(error).__name__


def limit(error: BaseException) -> str:
    """Say what of the machine ran out or is closed to this user, and what to do; empty for any other error."""
    if isinstance(error, MemoryError):
        return f"out of memory; {_REMEDIES[errno.ENOMEM]}"
    for words, (what, todo) in _WORDS.items():
        if words in str(error):
            return f"{what}; {todo}"
    if not isinstance(error, OSError) or error.errno not in (*_REMEDIES, *_CLOSED):
        return ""
    where = f"{os.fsdecode(error.filename)}: " if isinstance(error.filename, str | bytes | os.PathLike) else ""
    return f"{where}{error.strerror}; {remedy(error)}"
