"""Words errors of the engine for Python: `--run-id` of the command line is the argument `run_id` here.

A message names settings as flags, once. Those that this package takes too become the fields of `Settings` and the
arguments of its functions; a command in backticks stays one, or becomes a call.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager

from interlock.engine.errors import InterlockError, limit
from interlock.given import BESIDE, RENAMED, GivenSettings

_FLAG = re.compile(
    r"`[^`]*`|(?<![\w-])--(no-)?([a-z][a-z0-9-]*)"
    r"(?: (DIR|\d+(?:[hms]\w*|:\d+|(?:-\d+)+)?(?:,export)?"
    r"|cpu|named|mean|off|shared|sim:\w+|[\w.-]*/[^\s,:]*)(?![\w/]))?"
)
_FIELD = re.compile(r"(?<=such as )--(text|id|title)-field[ =]('[^']*'|[^\s,;]+)")
"""A field that may be meant, which is passed whole."""
_ARGUMENTS = {each.replace("_", "-"): each for each in (*GivenSettings.__annotations__, *BESIDE.split())} | RENAMED
_CALLS = {"`interlock upload`": "interlock.upload(run, url)"}


def in_python(text: str) -> str:
    """Write the flags in a message, and the values that follow them, as a caller from Python passes them."""
    return _FLAG.sub(_written, _FIELD.sub(_passed, text))


@contextmanager
def python_wording() -> Iterator[None]:
    """Let errors of ours out in Python's words, and a limit of the machine as one of them."""
    try:
        yield
    except InterlockError as error:
        error.args = (in_python(str(error)),)
        raise
    except OSError as error:
        if not (said := limit(error)):
            raise
        raise InterlockError(said) from error


def _passed(found: re.Match[str]) -> str:
    return f"Settings({found[1]}_field={found[2].strip(chr(39))!r})"


def _written(found: re.Match[str]) -> str:
    off, flag, value = found.groups()
    name = _ARGUMENTS.get(flag or "")
    if not name:
        return _CALLS.get(found[0], found[0])
    if flag == "shared":
        return "window='shared'"
    if off:
        return f"{name}=False"
    if name in ("copy", "exact") or GivenSettings.__annotations__.get(name) == bool | None:
        return f"{name}=True" + (f" {value}" if value else "")
    if value in (None, "DIR"):
        return name
    return f"{name}={value}" if value.isdigit() else f"{name}={value!r}"
