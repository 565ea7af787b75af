"""A model's tokenizer file as what it is: a program of patterns and tables that somebody else wrote.

The library that runs it can neither be interrupted nor be trusted to return, so that a file not met before is first
tried in a process of its own, which has little time and memory. What passed is remembered beside the models, by the
file's SHA-256 and the library's version.
"""

import hashlib
import json
import signal
import subprocess
import sys
from contextlib import suppress
from importlib import metadata
from pathlib import Path

from interlock.engine.errors import InterlockError, UnavailableError
from interlock.engine.models.sources import model_cache
from interlock.engine.record import atomic, words

TRIAL_VERSION = 1
SECONDS = 10
"""Processor time that a trial may take; a large tokenizer needs one or two."""
MEMORY = 4 << 30
TRIAL = """
import json, resource, sys
path, seconds, memory = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 1))
resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
from tokenizers import Tokenizer
signs = "aA0 .-_\\n\\t\\u00e9\\u5b57\\u200b\\U0001f600"
plain = "The quick brown fox (it jumps, 12.5 times) over the lazy dog. "
texts = ["a", plain * 40, *(sign * 200 + "!" for sign in signs)]
def grown(made, text):
    if made > 100 * len(text):
        raise ValueError(f"it turns {len(text)} characters into {made}")
try:
    tokenizer = Tokenizer.from_file(path)
    tokenizer.no_truncation()
    tokenizer.no_padding()
    tokenizer.encode("a", add_special_tokens=True)
    for text in texts:
        if tokenizer.normalizer:
            grown(len(tokenizer.normalizer.normalize_str(text)), text)
        try:
            found = tokenizer.encode_batch_fast([text], add_special_tokens=False)
        except Exception:  # it may still do for the texts that there are
            if text == "a":
                raise
        else:
            grown(len(found[0].ids), text)
    print(json.dumps(""))
except BaseException as error:
    print(json.dumps(" ".join(str(error).split())[:500] or type(error).__name__))
"""


def check_tokenizer(model: str, file: Path) -> None:
    """Raise UnavailableError, naming model and file, for a tokenizer that fails, does not end or takes too much memory.

    A file that passed before is only hashed; a new one costs the start of a bare interpreter.
    """
    try:
        about = f"{TRIAL_VERSION} {metadata.version('tokenizers')} {atomic.sha256_of(file)}"
        passed = model_cache() / "tokenizers" / hashlib.sha256(about.encode()).hexdigest()
        if passed.exists():
            return
        fault = _tried(file)
    except OSError as error:
        raise UnavailableError(f"model {model}: cannot read {file}: {error.strerror}") from error
    if fault:
        raise UnavailableError(f"model {model}: cannot use {file} as a tokenizer: {fault}")
    with suppress(InterlockError):  # it can be tried again
        atomic.write_bytes(passed, b"")


def _tried(file: Path) -> str:
    """What is wrong with a tokenizer, if anything, as a process of its own found it."""
    trial = [sys.executable, "-P", "-c", TRIAL, str(file), str(SECONDS), str(MEMORY)]
    with subprocess.Popen(  # noqa: S603  # our own script, with the file as its argument
        trial, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as process:
        answer = _answer(process)
    if answer is None:
        return f"timed out after {12 * SECONDS} s"
    if process.returncode == -signal.SIGXCPU:
        return f"timed out after {SECONDS} s of CPU time"
    if process.returncode == -signal.SIGKILL:
        return "its process was killed (SIGKILL): too slow, too much memory, or from outside"
    if process.returncode < 0:
        name = f"signal {-process.returncode}"
        with suppress(ValueError):  # signals for real-time use have no name
            name = signal.Signals(-process.returncode).name
        return f"it needs more than {words.human_bytes(MEMORY)}, or crashes its process ({name})"
    try:
        return str(json.loads(answer))
    except ValueError:
        return f"its process exited with {process.returncode} and no message"


def _answer(process: subprocess.Popen[bytes]) -> bytes | None:
    """What a trial wrote; None where it had to be killed. Waits a second at a time: being stopped costs one of them."""
    try:
        for _ in range(12 * SECONDS):
            with suppress(subprocess.TimeoutExpired):
                return process.communicate(timeout=1)[0]
        return None
    finally:
        process.kill()
