"""Token ids of every distinct text, once per tokenizer and prompt, in a memory-mapped file.

Stored without special tokens and cut at the longest limit of the models that share them, unless one of them splits
longer texts; the full length is kept, so that every model knows exactly what it truncates.
"""

import json
import math
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Self, TypeVar, cast

import numpy as np
import numpy.typing as npt
from tokenizers import Encoding, Tokenizer
from tokenizers.normalizers import Lowercase
from tokenizers.normalizers import Sequence as Sequenced

from interlock.engine.corpus.places import Spool, release
from interlock.engine.errors import UnavailableError, UsageError, reason
from interlock.engine.record import atomic
from interlock.engine.record.words import several

T = TypeVar("T")
Ids = npt.NDArray[np.uint32]
Lengths = npt.NDArray[np.int32 | np.int64]
Texts = slice | npt.NDArray[np.int32 | np.int64]
EVERY = slice(None)
WINDOW = 256
PATIENCE = 60.0
"""Seconds that a window of texts has to be tokenised, whatever it holds."""
SLOWEST = 50_000
"""Characters that it may hold for each further second: a hundredth of what slow tokenizers reach."""
RELEASED = 64
"""Texts whose ids are looked up before the pages of the file are given back."""
SLICE = 1.0
"""Seconds waited at a time: a process that is stopped or frozen, however long, loses one of its slices."""
SENTENCE_CONFIGS = tuple(
    f"sentence_{kind}_config.json"
    for kind in ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
)
"""The names that sentence-transformers' settings of a model may have, in the order in which it looks for them."""


@dataclass(frozen=True)
class Specials:
    """The ids that a tokenizer's template puts before and after a single text."""

    before: tuple[int, ...]
    after: tuple[int, ...]

    @property
    def count(self) -> int:
        return len(self.before) + len(self.after)


def load_tokenizer(path: Path) -> Tokenizer:
    """Load the tokenizer of a `tokenizer.json`, its truncation and padding off, and lowering where asked for."""
    try:
        path.open("rb").close()  # the library would not say why it cannot
        with translated():
            tokenizer = Tokenizer.from_file(str(path))
    except OSError as error:
        raise UnavailableError(f"cannot read {path}: {error.strerror}") from error
    except UnavailableError as error:
        raise UnavailableError(f"cannot read {path} as a tokenizer: {error}") from error
    tokenizer.no_truncation()
    tokenizer.no_padding()
    if lowercases(path):
        own = tokenizer.normalizer
        parts = list(own) if isinstance(own, Sequenced) else [own]  # type: ignore[call-overload]
        if not any(isinstance(part, Lowercase) for part in parts):
            tokenizer.normalizer = Sequenced([Lowercase(), *filter(None, [own])])
    return tokenizer


@contextmanager
def translated() -> Iterator[None]:
    """Turn whatever the library raises into an UnavailableError; its panics are no Exception."""
    try:
        yield
    except BaseException as error:
        if isinstance(error, Exception) or type(error).__name__ == "PanicException":
            raise UnavailableError(reason(error)) from error
        raise


@contextmanager
def naming(models: Sequence[str], file: Path) -> Iterator[None]:
    """Say of whatever a tokenizer cannot do which it is, and whose."""
    try:
        yield
    except UnavailableError as error:
        where = "" if str(file) in str(error) else f"{file}: "
        raise UnavailableError(f"model {', '.join(models)}: {where}{error}") from error


def encoded(tokenizer: Tokenizer, texts: Sequence[str]) -> list[Encoding]:
    """Encode `texts` without special tokens. Raises UnavailableError as `in_time` does."""
    return in_time(lambda: tokenizer.encode_batch_fast(list(texts), add_special_tokens=False), texts)


def in_time(work: Callable[[], T], texts: Sequence[str]) -> T:
    """Return what `work` makes of `texts`.

    Raises UnavailableError for texts that the tokenizer cannot take, and where it does not finish in time: the library
    cannot be interrupted, so that its thread is then left behind.
    """
    answer: Future[T] = Future()

    def encode() -> None:
        try:
            with translated():
                answer.set_result(work())
        except UnavailableError as error:
            answer.set_exception(error)

    size = sum(map(len, texts))
    seconds = PATIENCE + size / SLOWEST
    threading.Thread(target=encode, name="tokenizer", daemon=True).start()
    for _ in range(math.ceil(seconds / SLICE)):
        with suppress(TimeoutError):
            return answer.result(timeout=SLICE)
    raise UnavailableError(
        f"tokenising {several(len(texts), 'text')} ({size:,} characters) took longer than {seconds:.0f} s"
    )


def is_text(value: object) -> bool:
    """Tell whether a value is text that a tokenizer can take, which no half of a pair of surrogates is."""
    return isinstance(value, str) and not any("\ud800" <= sign <= "\udfff" for sign in value)


def texts_in(given: object, name: str = "texts") -> list[str]:
    """Return the texts of a list, an array, a column or an iterator, which is read once. Raises UsageError for what is
    none of these or has no order, and for the first item that is no text, by its place."""
    unordered = isinstance(given, str | bytes | Mapping | set | frozenset) or hasattr(given, "columns")
    try:
        items = iter(() if unordered else cast(Iterable[object], given))
    except TypeError:  # an array of no dimension says it late
        unordered = True
    if unordered:
        instead = "[text]" if isinstance(given, str) else "a list, which has an order"
        raise UsageError(f"{name}: expected a list of texts, got {given!r:.100}: pass {instead}")
    texts = [each.as_py() if hasattr(each, "as_py") else each for each in items]  # as Arrow's columns have them
    for number, text in enumerate(texts):
        if not is_text(text):
            raise UsageError(f"text {number} is none: expected UTF-8, got {text!r:.100}: pass texts alone")
    return [str(text) for text in texts]


def lowercases(path: Path) -> bool:
    """Tell whether the sentence-transformers settings beside a `tokenizer.json` want every text in small letters."""
    return bool(sentence_config(path.parent)[1].get("do_lower_case"))


def sentence_config(directory: Path) -> tuple[Path, dict[str, object]]:
    """Find the file of a model's sentence-transformers settings that counts, the first that says anything, and read it.

    Without a `modules.json` nothing reads them, and they say nothing; a network that is one of a model's routes has it
    in the folder above.
    """
    told = (directory / "modules.json").is_file() or (directory.parent / "router_config.json").is_file()
    names = SENTENCE_CONFIGS if told else ()
    for file in (directory / name for name in names):
        try:
            settings = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
        except (OSError, ValueError, RecursionError) as error:
            raise UnavailableError(f"cannot read {file}: {error}") from error
        if not isinstance(settings, dict):
            raise UnavailableError(f"{file} is not a JSON object")
        if settings:
            return file, settings
    return directory / SENTENCE_CONFIGS[0], {}


def specials_of(tokenizer: Tokenizer) -> Specials:
    """Find the special ids around a text; raises UnavailableError for a template that is not before + text + after."""
    with translated():
        plain = tokenizer.encode("a", add_special_tokens=False).ids
        whole = tokenizer.encode("a", add_special_tokens=True).ids
    for start in range(len(whole) - len(plain) + 1):
        if whole[start : start + len(plain)] == plain:
            return Specials(tuple(whole[:start]), tuple(whole[start + len(plain) :]))
    raise UnavailableError("the tokenizer's template changes the text, which is not supported: use another model")


def tokens_of_prompt(file: Path, prompt: str, limit: int) -> int:
    """Count the tokens of a row that sentence-transformers takes for those of its prompt: the row of the prompt alone,
    cut at `limit`, without a special token at its end."""
    tokenizer = load_tokenizer(file)
    around = specials_of(tokenizer)
    with translated():
        inner = tokenizer.encode(prompt, add_special_tokens=False).ids[: limit - around.count]
        special = {number for number, token in tokenizer.get_added_tokens_decoder().items() if token.special}
    row = [*around.before, *inner, *around.after]
    return len(row) - (row[-1] in special if row else 0)


class Tokenised(ABC):
    """Texts as token ids, whoever keeps them: their lengths [texts], and the rows that models are given."""

    def __init__(self, full_lengths: Lengths, specials: Specials) -> None:
        """`full_lengths` [texts] count the tokens of each, without special ones and with those of the prompt."""
        self.full_lengths = full_lengths
        self.specials = specials
        self._before, self._after = (np.array(each, np.int64) for each in (specials.before, specials.after))

    @abstractmethod
    def stored(self, text: int) -> Ids:
        """Return the ids that are kept of a text."""

    def lengths(self, limit: int, texts: Texts = EVERY) -> Lengths:
        """Count the tokens of `texts`, special tokens included, for a model that takes at most `limit`."""
        return np.minimum(self.full_lengths[texts], limit - self.specials.count) + self.specials.count

    def truncated(self, limit: int, texts: Texts = EVERY) -> Lengths:
        """Count the tokens of `texts` that a model with this `limit` does not see."""
        return np.maximum(self.full_lengths[texts] + self.specials.count - limit, 0)

    def row(self, text: int, limit: int) -> npt.NDArray[np.int64]:
        """Return the ids that a model with this `limit` is given for one text."""
        ids = self.stored(text)[: limit - self.specials.count]
        return np.concatenate((self._before, ids, self._after), dtype=np.int64)


class TokenStore(Tokenised):
    """Ids of texts in the order in which they were added; a context manager while it is written."""

    def __init__(self, path: Path, tokenizer: Tokenizer, prompt: str, cap: int) -> None:
        """Keep at most `cap` ids of each text (without special tokens) in the file `path`."""
        super().__init__(np.empty(0, np.int64), specials_of(tokenizer))
        self.path = path
        self.prompt = prompt
        self._cap = cap
        self._tokenizer = tokenizer
        self._full = Spool(np.int32)
        self._files: tuple[IO[bytes], IO[bytes]] | None = None
        self._ids: Ids = np.empty(0, np.uint32)
        self._starts: Lengths = np.zeros(1, np.int64)
        self._end = self._looked_up = 0

    def __enter__(self) -> Self:
        with atomic.explaining(self.path):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._files = self.path.open("wb"), self._starts_file.open("wb")
            self._files[1].write(self._starts.tobytes())
        return self

    @property
    def _starts_file(self) -> Path:
        """Where in the file of ids each text begins, and the last ends."""
        return self.path.with_name(f"{self.path.name}.starts")

    def add(self, texts: Sequence[str]) -> None:
        """Tokenise `texts` behind those added before."""
        assert self._files is not None
        for start in range(0, len(texts), WINDOW):
            window = [self.prompt + text for text in texts[start : start + WINDOW]]
            rows = [np.asarray(encoding.ids, np.uint32) for encoding in encoded(self._tokenizer, window)]
            self._full.add(np.array([len(row) for row in rows], np.int32).tobytes())
            kept = [row[: self._cap] for row in rows]
            starts = self._end + np.cumsum([len(row) for row in kept], dtype=np.int64)
            self._end = int(starts[-1])
            with atomic.explaining(self.path):
                self._files[0].write(np.concatenate(kept).tobytes())
                self._files[1].write(starts.tobytes())

    def show(self) -> None:
        """Have the texts added so far read, while more may be added."""
        assert self._files is not None
        with atomic.explaining(self.path):
            for file in self._files:
                file.flush()
            if self._end:
                self._ids = np.asarray(np.memmap(self.path, np.uint32, mode="r"))  # each row of a memmap costs 2 us
            self._starts = np.asarray(np.memmap(self._starts_file, np.int64, mode="r"))
        self.full_lengths = self._full.records

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        assert self._files is not None
        self.show()
        for file in self._files:
            file.close()

    def __len__(self) -> int:
        return len(self.full_lengths)

    def stored(self, text: int) -> Ids:
        self._looked_up += 1
        if not self._looked_up % RELEASED:  # each brings its neighbours with it: in the end all would be in memory
            release(self._ids, self._starts)
        return self._ids[self._starts[text] : self._starts[text + 1]]
