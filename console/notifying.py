"""A command of the operator's that is called when a run has ended, with the path of its summary.

It is started as it is written, without a shell, and without what looks like a secret in its environment. Whatever
becomes of it changes nothing of how the run ended.
"""

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from interlock.engine.errors import UsageError
from interlock.engine.record.words import LONG, percent, safe
from interlock.engine.standing.judgement import Judgement

_ASKED = re.compile(r"\{(?:run|state|reason|done|next)\}")
SECONDS = 60.0
"""How long it may take."""
_SECRET = re.compile(
    r"(^|_)(API)?(KEYS?|PAT|PASS|PASSWD|PASSPHRASE|AUTH|COOKIES?|DSN)(_|$)|_PWD(_|$)|TOKEN|SECRET|PASSWORD|CREDENTIAL|APIKEY|PRIVATE"
)
_PRIVATE = re.compile(r"://|\b(authorization|bearer)\b", re.IGNORECASE)
"""In a command: an address may be a secret by itself, as those of chat rooms are."""


def words_of(command: str | None) -> list[str]:
    """Split a command into its words; none for None. Raises UsageError for one that cannot be started."""
    if command is None:
        return []
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise UsageError(f"--notify {command!r:.100}: {error}: put quotes around each word with blanks") from None
    if not words or shutil.which(words[0]) is None:
        raise UsageError(f"--notify {command!r:.100}: no such program: name one by its path, or add it to PATH")
    return words


def recordable(command: str | None) -> str:
    """Return a command as a run may record it for those that go on with it; nothing of one that may hold a secret."""
    words = re.findall(r"\w+", (command or "").upper())
    return "" if not command or _PRIVATE.search(command) or any(map(_SECRET.search, words)) else command


def filled(words: Sequence[str], run: str, judged: Judgement, onward: str = "") -> list[str]:
    """Write into the words of a command, where they ask for it, which run has ended, how, as lists of runs say it, how
    far it is, and the command that comes next: `{run}`, `{state}`, `{reason}`, `{done}` and `{next}`."""
    done = "" if judged.share_done is None else percent(judged.share_done).strip()
    said = {"{run}": run, "{state}": judged.health.word, "{reason}": judged.health.detail, "{done}": done}
    said["{next}"] = onward
    return [_ASKED.sub(lambda asked: safe(said[asked[0]], LONG), word) for word in words]


def without_secrets(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment without variables whose names say that they hold a secret."""
    return {name: value for name, value in environment.items() if not _SECRET.search(name.upper())}


def notify(words: Sequence[str], summary: Path, say: Callable[[str], object], limit: float = SECONDS) -> None:
    """Call the command with the path of a summary as its last argument, and wait for it; say what went wrong with it.
    What it prints goes to stderr."""
    if not words:
        return
    name = shlex.join(words)
    try:
        process = subprocess.Popen(  # noqa: S603 - the operator's own command
            [*words, str(summary.absolute())],
            stdin=subprocess.DEVNULL,
            stdout=sys.stderr,
            env=without_secrets(os.environ),
            start_new_session=True,
        )
    except (OSError, ValueError) as error:
        say(f"--notify {name} could not be started: {error}")
        return
    try:
        code = process.wait(limit)
    except subprocess.TimeoutExpired:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # and whatever it has started
        process.wait()
        say(f"--notify {name} did not end within {limit:.0f} s, and was killed")
        return
    if code:
        say(f"--notify {name} failed with exit code {code}")
