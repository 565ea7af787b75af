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
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import urlsplit

from interlock.engine.errors import UsageError
from interlock.engine.record import atomic
from interlock.engine.record.words import masked

if TYPE_CHECKING:
    from tenacity import RetryCallState

VARIABLE = "QDRANT_API_KEY"
PORT = 6333
"""Where a server listens if its URL names no port."""
GRPC_PORT = 6334
"""Where one that listens there listens for gRPC."""
FIRST, LONGEST = 0.5, 30.0
"""Seconds of the first pause, and of the longest but for one that the server asks for."""
MOST_STREAMS = 16
"""Of one upload: requests with points under way at once."""
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
                f"--qdrant: {masked(text)!r:.200} is not the URL of a server: name one such as http://localhost:6333"
            )
        if "@" in parts.netloc or parts.query or parts.fragment:
            raise UsageError(
                f"--qdrant: {masked(text)!r:.200} holds more than an address: drop user, password and query, and put a "
                f"key into {VARIABLE}"
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


class TransientError(Exception):
    """An answer that may be another one later; `wait` is how many seconds the server asks to be left alone."""

    def __init__(self, reason: str, wait: float = 0.0) -> None:
        super().__init__(reason)
        self.wait = wait


def begun(request: Callable[[], T]) -> Future[T]:
    """Begin a request in a thread of its own, which no end of a process waits for; what it will give."""
    answer = Future[T]()

    def ask() -> None:
        try:
            answer.set_result(request())
        except BaseException as error:
            answer.set_exception(error)

    threading.Thread(target=ask, daemon=True).start()
    return answer


def within(seconds: float, request: Callable[[], T]) -> T:
    """Return what a request gives. Raises TransientError where that takes longer, however its answer trickles in: it
    is left to a thread that nobody waits for."""
    answer = begun(request)
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

    Requests may be made side by side. `retries` counts the attempts that were repeated. Clock, sleep (None: one that
    `end` cuts short) and dice are those of whoever makes it.
    """

    seconds: float
    waits: Callable[[str], object] = lambda told: None
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], object] | None = None
    chance: Callable[[], float] = random.random
    retries: int = 0
    turn: threading.RLock = field(default_factory=threading.RLock, init=False)
    """Who has it is told of nothing meanwhile, and tells nobody."""
    _note: Callable[..., object] = field(default=lambda *_: None, init=False)
    _shared: list[float] = field(default_factory=list, init=False)
    """When the pauses end that all requests share; none: each has its own."""
    _ended: threading.Event = field(default_factory=threading.Event, init=False)

    @contextmanager
    def noted_by(self, note: Callable[..., object]) -> Iterator[None]:
        """Let `note` hear meanwhile of each answer; and of each attempt that had none why, its number, and for how many
        seconds more there may be others. While one request pauses none of the others is tried."""
        self._note, self._shared = note, [-inf]
        try:
            yield
        finally:
            self._note, self._shared = lambda *_: None, []

    def end(self) -> None:
        """Let nobody try again, nor go on with a pause."""
        self._ended.set()

    def insist(self, attempt: Callable[[], T]) -> T:
        """Return what `attempt` gives, tried again after each `TransientError`. Raises the last of them where the next
        pause would end behind the deadline."""
        from tenacity import Retrying, retry_if_exception_type

        began, until = self.clock(), self._shared or [-inf]

        def pause(state: "RetryCallState") -> float:
            """Between half of the exponential pause and all of it, so that clients do not come back together; never
            less than the server asked for."""
            exponential = min(LONGEST, FIRST * 2.0 ** min(state.attempt_number - 1, 10))
            return max(_error_of(state).wait, exponential / 2 * (1 + self.chance()))

        def repeat(state: "RetryCallState") -> None:
            with self.turn:
                now, told = self.clock(), until[0]
                until[0] = max(told, now + state.upcoming_sleep)
                self.retries += 1
                attempt, left = state.attempt_number + 1, max(0.0, self.seconds - (now - began))
                pause = f"attempt {attempt} in {state.upcoming_sleep:.1f} s, the last within {left:.0f} s"
                if told <= now:  # else another request has said so
                    self.waits(f"{_error_of(state)}; {pause}: ctrl+c ends it")
                self._note(str(_error_of(state)), state.attempt_number, left)

        def turn() -> T:
            while (left := until[0] - self.clock()) > 0 and not self._ended.is_set():
                (self.sleep or self._ended.wait)(left)
            if self._ended.is_set():
                raise TransientError("another request has failed")
            return attempt()

        retrying = Retrying(
            retry=retry_if_exception_type(TransientError),
            wait=pause,
            stop=lambda state: self._ended.is_set() or self.clock() - began + state.upcoming_sleep > self.seconds,
            before_sleep=repeat,
            sleep=lambda _: None,  # `turn` does, for all
            reraise=True,
        )
        answer = retrying(turn)
        with self.turn:
            self._note()
        return answer


def _error_of(state: "RetryCallState") -> TransientError:
    error = state.outcome.exception() if state.outcome else None
    return error if isinstance(error, TransientError) else TransientError("")
