"""A model's tokenizer as transformers builds it, and with it sentence-transformers: of every file that says how.

It is built and tried once, within limits in a process of its own, for nobody vouches for the files; what came of it is
kept in a cache by what the files hold. Where `tokenizer.json` alone does not say it all, a file that does is kept too.
"""

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt

from interlock.engine.corpus.tokens import lowercases
from interlock.engine.errors import InterlockError, UnavailableError
from interlock.engine.record import atomic, words

FILES = (
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"),
    "chat_template.jinja",
)
"""What a tokenizer is built of, beside `SETTINGS`."""
SETTINGS = ("model_type", "model_name", "tokenizer_class", "auto_map", "transformers_version")
"""What of `config.json` decides how it is built."""
TRIAL_VERSION = 2
SECONDS = 10
"""Processor time that a trial may take beside its imports; a large tokenizer needs one or two."""
PATIENCE = 12 * SECONDS
"""Seconds that it may last: one that sleeps, or waits for itself, takes no processor time."""
MEMORY = 4 << 30
TRIAL = Path(__file__).with_name("trial.py")
"""What the interpreter of a trial is told to run."""


class Types(msgspec.Struct, frozen=True):
    """The token types of a row: of the special tokens before a text, of its own, and of those after it."""

    before: tuple[int, ...] = ()
    own: int = 0
    after: tuple[int, ...] = ()

    @property
    def every(self) -> tuple[int, ...]:
        return *self.before, self.own, *self.after

    def of(self, lengths: Sequence[int]) -> npt.NDArray[np.int64]:
        """Return the types of rows of so many tokens, laid end to end."""
        counts = np.asarray(lengths, np.int64)
        ends = counts.cumsum()
        types = np.full(int(counts.sum()), self.own, np.int64)
        for place, kind in enumerate(self.before):
            types[(ends - counts + place)[counts > place]] = kind
        for place, kind in enumerate(reversed(self.after)):
            types[(ends - 1 - place)[counts > place]] = kind
        return types


class Tried(msgspec.Struct, frozen=True):
    """What a trial found."""

    fault: str = ""
    of: str = "file"
    """Whether the fault is that of `tokenizer.json` or of the settings beside it."""
    same: bool = True
    """Whether `tokenizer.json` alone says how ids are made."""
    alike: bool = True
    """Whether it gives the same ids."""
    types: tuple[tuple[int, ...], int, tuple[int, ...]] | None = None
    limit: int | None = None
    side: str = "right"
    chat: bool = False


@dataclass(frozen=True)
class Built:
    """A tokenizer that was built."""

    file: Path
    """What `load_tokenizer` reads: the model's own `tokenizer.json`, or one that says what all of its files say."""
    digest: str = ""
    """SHA-256 of that file where it gives other ids than `tokenizer.json` would."""
    types: Types | None = None
    """The token types that the network is given; None for none."""
    limit: int | None = None
    """The longest row by the tokenizer's own settings."""
    side: str = "right"
    """Where longer texts are cut."""
    chat: bool = False
    """Whether it has a template for messages."""


def build(model: str, folder: Path, config: Mapping[str, object], cache: Path) -> Built:
    """Build the tokenizer of the files in `folder`; `config` is a parsed `config.json`.

    Raises UnavailableError, naming model and file, for one that fails, does not end, takes too much memory or would
    have to be built by code that is not there. What was built before is only looked up.
    """
    file = folder / "tokenizer.json"
    try:
        kept = cache / _about(folder, config)
        found = _known(kept) or _made(file, config, kept)
    except OSError as error:
        raise UnavailableError(f"model {model}: cannot read {file}: {error.strerror}") from error
    if found.fault and found.of == "settings":
        beside = next((folder / name for name in FILES[1:] if (folder / name).is_file()), file)
        raise UnavailableError(
            f"model {model}: cannot build its tokenizer by {beside} ({found.fault}): use another model"
        )
    if found.fault:
        raise UnavailableError(f"model {model}: cannot use {file} as a tokenizer: {found.fault}")
    made = file if found.same else kept / "tokenizer.json"
    return Built(
        made,
        "" if found.alike else atomic.sha256_of(made),
        None if found.types is None else Types(*found.types),
        found.limit,
        found.side,
        found.chat,
    )


def build_bare(model: str, folder: Path, cache: Path) -> Built:
    """Build a tokenizer of the `tokenizer.json` in `folder` alone and without special tokens, as a static model has it:
    texts are cut where that file says. Raises UnavailableError as `build` does."""
    file = folder / "tokenizer.json"
    try:
        told = json.loads(file.read_text(encoding="utf-8"))
        limit = (told.get("truncation") or {}).get("max_length")
        bare = json.dumps(told | dict.fromkeys(("truncation", "padding", "post_processor"))).encode()
    except (OSError, ValueError, RecursionError, AttributeError) as error:
        raise UnavailableError(f"model {model}: cannot use {file} as a tokenizer: {error}") from error
    place = cache / "bare" / hashlib.sha256(bare).hexdigest()
    if not (place / "tokenizer.json").is_file():
        atomic.write_bytes(place / "tokenizer_config.json", b'{"tokenizer_class": "PreTrainedTokenizerFast"}')
        atomic.write_bytes(place / "tokenizer.json", bare)
    try:
        return replace(build(model, place, {}, cache), limit=limit)
    except UnavailableError as error:
        raise UnavailableError(str(error).replace(str(place), str(folder))) from error


def check_template(model: str, folder: Path, config: Mapping[str, object], cache: Path) -> None:
    """Raise UnavailableError, naming model and folder, where the template for messages there breaks the limits of a
    trial; arguments as those of `build`. What went well before is only looked up."""
    try:
        kept = cache / _about(folder, config) / "messages"
        if kept.is_file():
            return
        with _copied(folder, config) as place:
            found = _tried(place, "messages")
    except OSError as error:
        raise UnavailableError(f"model {model}: cannot read {folder}: {error.strerror}") from error
    if found.fault:
        raise UnavailableError(f"model {model}: cannot use its chat template in {folder}: {found.fault}")
    with suppress(InterlockError):  # it can be tried again
        atomic.write_bytes(kept, b"")


def _about(folder: Path, config: Mapping[str, object]) -> str:
    """Name what a trial of these files finds."""
    said = {name: atomic.sha256_of(folder / name) for name in FILES if (folder / name).is_file()}
    versions = [metadata.version(name) for name in ("tokenizers", "transformers")]
    lower = lowercases(folder / "tokenizer.json")
    about = json.dumps([TRIAL_VERSION, versions, said, _settings(config), lower], sort_keys=True, default=str)
    return hashlib.sha256(about.encode()).hexdigest()


def _settings(config: Mapping[str, object]) -> dict[str, object]:
    return {name: config[name] for name in SETTINGS if name in config}


@contextmanager
def _copied(folder: Path, config: Mapping[str, object]) -> Iterator[Path]:
    """A folder for a trial, with all that it reads."""
    with tempfile.TemporaryDirectory(prefix="interlock-tokenizer-") as name:
        place = Path(name)
        for each in FILES:
            if (folder / each).is_file():
                shutil.copyfile(folder / each, place / each)
        (place / "config.json").write_text(json.dumps(_settings(config)))
        yield place


def _known(kept: Path) -> Tried | None:
    """What an earlier trial found."""
    try:
        *_, sealed, seal = (kept / "found.json").read_bytes().split(b"\n")
        found = msgspec.json.decode(sealed, type=Tried)
        built = b"" if found.same else (kept / "tokenizer.json").read_bytes()
    except (OSError, ValueError, msgspec.MsgspecError):
        return None
    return found if seal == _seal(sealed, built) else None  # a bit that fell would cut texts elsewhere


def _seal(found: bytes, built: bytes) -> bytes:
    """A digest of what a trial found and built."""
    return hashlib.sha256(found + b"\n" + built).hexdigest().encode()


def _made(file: Path, config: Mapping[str, object], kept: Path) -> Tried:
    """Try and build a tokenizer, and keep what came of it, of faults nothing."""
    with _copied(file.parent, config) as folder:
        found = _tried(folder, "lower" if lowercases(file) else "")
        if not found.fault:
            built, sealed = b"", msgspec.json.encode(found)
            if not found.same:
                built = (folder / "built.json").read_bytes()
                atomic.write_bytes(kept / "tokenizer.json", built)
            with suppress(InterlockError):  # it can be tried again
                atomic.write_bytes(kept / "found.json", sealed + b"\n" + _seal(sealed, built))
    return found


def _tried(folder: Path, how: str) -> Tried:
    """What a process of its own found within its limits: of a tokenizer, with small letters first where `how` is
    "lower", or of its template where that is "messages"."""
    offline = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "critical"}
    words_of_it = [str(folder), how, str(SECONDS), str(MEMORY)]
    with subprocess.Popen(  # noqa: S603  # our own script, with the folder as its argument
        [sys.executable, "-P", str(TRIAL), *words_of_it],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=os.environ | offline,
    ) as process:
        written = _answer(process)
    if written is None:
        return Tried(f"timed out after {PATIENCE} s")
    if process.returncode == -signal.SIGXCPU:
        return Tried(f"timed out after {SECONDS} s of CPU time")
    try:
        return msgspec.json.decode(written.splitlines()[-1], type=Tried)
    except (msgspec.MsgspecError, IndexError):
        limit = words.human_bytes(MEMORY)
        return Tried(
            f"its process ended with {process.returncode}: it needs more than {limit}, crashes it, or was killed"
        )


def _answer(process: subprocess.Popen[bytes]) -> bytes | None:
    """What a trial wrote; None where it had to be killed. Waits a second at a time: being stopped costs one of them."""
    try:
        for _ in range(PATIENCE):
            with suppress(subprocess.TimeoutExpired):
                return process.communicate(timeout=1)[0]
        return None
    finally:
        process.kill()
