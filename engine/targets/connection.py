"""Where a Qdrant server is, the key that it asks for, how long one request may take, and how long it is asked again.

A URL ends up in journals and reports, so it holds no secret; a key is read from the environment or from a file, and
shows itself to nobody who prints it. Pauses are exponential with jitter, up to a deadline.
"""

import ipaddress
import os
import random
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import urlsplit

from interlock.engine.errors import UsageError
from interlock.engine.record import atomic

if TYPE_CHECKING:
    from tenacity import RetryCallState

VARIABLE = "QDRANT_API_KEY"
PORT = 6333
"""Where a server listens if its URL names no port."""
GRPC_PORT = 6334
"""Where one that listens there listens for gRPC."""
FIRST, LONGEST = 0.5, 30.0
"""Seconds of the first pause, and of the longest but for one that the server asks for."""
T = TypeVar("T")
_LIKE_A_URL = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[\w.-]+):\d{1,5}(/.*)?")
_PAUSE = re.compile(r"[0-9]{1,9}(\.[0-9]{1,9})?")
_KEY = re.compile(r"[\x21-\x7e]{1,4096}")


def is_address(text: str) -> bool:
    """Tell whether a text means a server, rather than a directory: it has a scheme, or a port behind a name."""
    return "://" in text or _LIKE_A_URL.fullmatch(text) is not None


@dataclass(frozen=True)
class Address:
    """A server by its URL, as it is told and kept: scheme, host, port and the path that its API is below."""

    url: str
    loopback: bool

    @classmethod
    def parse(cls, text: str) -> "Address":
        """Read a URL. Raises UsageError for what is none, and for one that holds a user, a password or a query."""
        try:
            parts = urlsplit(text)
            host, port = parts.hostname, parts.port or PORT
        except ValueError:
            host = None
        if not host or parts.scheme not in ("http", "https"):
            raise UsageError(
                f"--qdrant: {_masked(text)} is not the URL of a server: name one such as http://localhost:6333"
            )
        if "@" in parts.netloc or parts.query or parts.fragment:
            raise UsageError(
                f"--qdrant: {_masked(text)} holds more than an address: drop user, password and query, and put a key "
                f"into {VARIABLE}"
            )
        name = f"[{host}]" if ":" in host else host
        return cls(f"{parts.scheme}://{name}:{port}{parts.path.rstrip('/')}", _is_loopback(host))

    @property
    def secure(self) -> bool:
        """Whether a key may be sent there: it is encrypted, or does not leave the machine."""
        return self.loopback or self.url.startswith("https://")

    @property
    def host(self) -> str:
        """Its host alone, in brackets where it has colons."""
        return urlsplit(self.url).netloc.rpartition(":")[0]

    def grpc_port(self, asked: int | None = None) -> int:
        """Return where its gRPC is to be looked for; 0: nowhere. Unless it is `asked` for, that is where gRPC goes with
        REST at its own port: beside another port there may be another server."""
        if asked is not None:
            return asked
        parts = urlsplit(self.url)
        return GRPC_PORT if parts.port == PORT and not parts.path else 0


class ApiKey:
    """A key; printed it is `***`."""

    def __init__(self, secret: str) -> None:
        self._secret = secret

    def __repr__(self) -> str:
        return "***"

    def reveal(self) -> str:
        """Return the key itself, for the request alone."""
        return self._secret

    def hidden_in(self, text: str) -> str:
        """Return a text without the key."""
        return text.replace(self._secret, "***")


def read_key(address: Address, file: Path | None, environment: Mapping[str, str] = os.environ) -> ApiKey | None:
    """Read the key from `file`, else from the environment; None where there is none.

    Raises UsageError for a file that cannot be read or holds no key, and where it would be sent in the clear.
    """
    if file:
        try:
            text = atomic.content(file).decode().strip()
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or "not a text"
            raise UsageError(f"--api-key-file: cannot read {file} ({reason}): fix that, or set {VARIABLE}") from None
    else:
        text = environment.get(VARIABLE, "").strip()
    if not text and not file:
        return None
    where = f"--api-key-file {file}" if file else VARIABLE
    if not _KEY.fullmatch(text):
        raise UsageError(f"{where} holds no key: set it to one line of letters, digits and signs")
    if not address.secure:
        raise UsageError(f"{where}: the key would be readable on the way to {address.url}: use https, or drop the key")
    return ApiKey(text)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def _masked(text: str) -> str:
    """A URL without what stands before its host or behind its path."""
    return repr(re.sub(r"//[^/@]*@", "//***@", re.sub(r"[?#].*", "?***", text)))[:200]


class TransientError(Exception):
    """An answer that may be another one later; `wait` is how many seconds the server asks to be left alone."""

    def __init__(self, reason: str, wait: float = 0.0) -> None:
        super().__init__(reason)
        self.wait = wait


def within(seconds: float, request: Callable[[], T]) -> T:
    """Return what a request gives. Raises TransientError where that takes longer, however its answer trickles in: it
    is left to a thread that nobody waits for."""
    answer = Future[T]()

    def ask() -> None:
        try:
            answer.set_result(request())
        except BaseException as error:
            answer.set_exception(error)

    threading.Thread(target=ask, daemon=True).start()
    try:
        return answer.result(seconds)
    except TimeoutError:
        if answer.done():
            raise
        raise TransientError(f"no whole answer within {seconds:g} s") from None


def pause_of(told: object) -> float:
    """Read how many seconds a server asks to be left alone: a number of at most nine digits, or a date; 0 for anything
    else."""
    text = str(told).strip()
    if _PAUSE.fullmatch(text):
        return float(text)
    try:
        return min(10.0**9, max(0.0, parsedate_to_datetime(text[:60]).timestamp() - time.time()))
    except (ValueError, OverflowError):
        return 0.0


@dataclass
class Patience:
    """What one request is allowed: `seconds` from its first attempt; `waits` hears why it pauses, and for how long.

    `retries` counts the attempts that were repeated. Clock, sleep and dice are those of whoever makes it.
    """

    seconds: float
    waits: Callable[[str], object] = lambda told: None
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    chance: Callable[[], float] = random.random
    retries: int = 0
    _note: Callable[..., object] = field(default=lambda *_: None, init=False)

    @contextmanager
    def noted_by(self, note: Callable[..., object]) -> Iterator[None]:
        """Let `note` hear meanwhile of each answer; and of each attempt that had none why, its number, and for how many
        seconds more there may be others."""
        self._note = note
        try:
            yield
        finally:
            self._note = lambda *_: None

    def insist(self, attempt: Callable[[], T]) -> T:
        """Return what `attempt` gives, tried again after each `TransientError`. Raises the last of them where the next
        pause would end behind the deadline."""
        from tenacity import Retrying, retry_if_exception_type

        began = self.clock()

        def pause(state: "RetryCallState") -> float:
            """Between half of the exponential pause and all of it, so that clients do not come back together; never
            less than the server asked for."""
            exponential = min(LONGEST, FIRST * 2.0 ** min(state.attempt_number - 1, 10))
            return max(_error_of(state).wait, exponential / 2 * (1 + self.chance()))

        def repeat(state: "RetryCallState") -> None:
            self.retries += 1
            attempt, left = state.attempt_number + 1, max(0.0, self.seconds - (self.clock() - began))
            pause = f"attempt {attempt} in {state.upcoming_sleep:.1f} s, the last within {left:.0f} s"
            self.waits(f"{_error_of(state)}; {pause}: ctrl+c ends it")
            self._note(str(_error_of(state)), state.attempt_number, left)

        retrying = Retrying(
            retry=retry_if_exception_type(TransientError),
            wait=pause,
            stop=lambda state: self.clock() - began + state.upcoming_sleep > self.seconds,
            before_sleep=repeat,
            sleep=self.sleep,
            reraise=True,
        )
        answer = retrying(attempt)
        self._note()
        return answer


def _error_of(state: "RetryCallState") -> TransientError:
    error = state.outcome.exception() if state.outcome else None
    return error if isinstance(error, TransientError) else TransientError("")
