"""Errors that nothing below expected: one line for whoever started it, the rest in a file for whoever mends it."""

import os
import platform
import re
import shlex
import sys
import tempfile
import traceback
from contextlib import suppress
from pathlib import Path

from interlock.engine import __version__
from interlock.engine.errors import InterlockError, limit
from interlock.engine.record.words import safe

_SECRETS = (
    (re.compile(r"://[^/@\s]+@"), "://***@"),
    (re.compile(r"(?i)((?:api[-_]?key|token|secret|passw(?:or)?d)[\w-]*['\"]?[=: ]+['\"]?)[^\s'\",&]+"), r"\1***"),
    (re.compile(r"\bhf_\w{8,}"), "hf_***"),
)
LONGEST = 2000
"""Signs of a line of a crash file."""


def reportable(error: BaseException, run: Path | None = None) -> InterlockError:
    """Make `error` one that fits a line. One of ours stays as it is, a limit of the machine is called what it is, and
    anything else leaves a crash file in the directory `run` of its run, or among the temporary ones."""
    if isinstance(error, InterlockError):
        return error
    if reason := limit(error):
        return InterlockError(reason)
    kept = _kept(error, run)
    where = f"report it with {kept}" if kept else "details could not be saved"
    message = (str(error).strip() or "no message").splitlines()[0]
    what = safe(_without_secrets(f"{type(error).__name__}: {message}"), 200)
    return InterlockError(f"{what} (a bug in interlock or a faulty machine): {where}")


def _kept(error: BaseException, run: Path | None) -> Path | None:
    """The crash file, in the first place that takes one."""
    versions = f"interlock {__version__}, Python {platform.python_version()}, {platform.platform()}"
    story = "".join(traceback.format_exception(error)).splitlines()
    lines = [f"command: {shlex.join(sys.argv)}", versions, "", *story]
    data = "".join(f"{safe(_without_secrets(line), LONGEST)}\n" for line in lines).encode(errors="backslashreplace")
    places = [(run, "crash-")] if run and run.is_dir() else []
    for place, prefix in [*places, (None, "interlock-crash-")]:
        with suppress(OSError):
            handle, name = tempfile.mkstemp(".txt", prefix, place)
            with os.fdopen(handle, "wb") as file:
                file.write(data)
            return Path(name)
    return None


def _without_secrets(line: str) -> str:
    for pattern, instead in _SECRETS:
        line = pattern.sub(instead, line)
    return line
