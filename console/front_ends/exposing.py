"""Where a run's numbers are had: over HTTP while it works, or in a file that is written anew now and then.

The official client writes them, and what serves them is what `interlock serve` listens with; both are imported only
where they are asked for. A run goes on whatever happens to them, and to who reads them.
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from glob import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self, TypeVar

from interlock.console.metrics import Scrape, families
from interlock.console.writing import check_file
from interlock.engine import parsers
from interlock.engine.errors import UnavailableError, UsageError
from interlock.engine.record.journal import Upload, upload_of
from interlock.engine.record.recorder import Recorder
from interlock.engine.record.state import RunState
from interlock.engine.standing.runs import state_of

if TYPE_CHECKING:
    from interlock.console.front_ends.connections import Admission

KEY = "INTERLOCK_METRICS_KEY"
MOST_CLIENTS, ENDING = 8, 1
"""Connections at a time: a run's descriptors are its own; and seconds for them to end with it."""
EVERY = 5.0
"""Seconds between two writings of a file."""
T = TypeVar("T")
Say = Callable[[str], object]


class Ended(NamedTuple):
    """A run that is over, whose uploads go on: its directory, and what its journal says."""

    run: Path
    state: RunState

    @classmethod
    def of(cls, run: Path) -> Self:
        """Read the journal of a run."""
        return cls(run, state_of(run))

    def look(self, read: Callable[[RunState], T]) -> T:
        """Let `read` look at the state."""
        return read(self.state)


Find = Callable[[], Recorder | Ended | None]


class RunCollector:
    """Says how the numbers of a run stand, for a registry."""

    def __init__(self, recorder: Find) -> None:
        """`recorder` returns that of the run, or None as long as there is none."""
        self._find = recorder

    def describe(self) -> list[Any]:
        """Nothing: a registry would ask for numbers to learn their names."""
        return []

    def collect(self) -> Iterator[Any]:
        """Yield every family of numbers."""
        recorder = self._find()
        if not recorder:
            yield from families(Scrape.of(RunState(), now=0.0))
            return
        run = recorder.run if isinstance(recorder, Ended) else recorder.journal.path.parent
        uploads = uploads_of(run) if recorder.look(lambda state: state.status is not None) else []
        yield from families(recorder.look(lambda state: Scrape.of(state, uploads)))


def uploads_of(run: Path) -> list[Upload]:
    """List how the collections of a run are brought to the server that was written to last, the latest at the end."""
    found = [upload_of(run, escape(path.stem), whole=True) for path in run.glob("uploads/*.jsonl")]
    uploads = sorted(filter(None, found), key=lambda each: each.latest.at)
    return [each for each in uploads if each.to.url == uploads[-1].to.url]


class Place(NamedTuple):
    """Where numbers are served, as `--metrics` says it; port 0 is any that is free."""

    host: str
    port: int

    @classmethod
    def of(cls, target: str) -> "Place | None":
        """Read `[HOST:]PORT`; None for anything else. Raises UsageError for a port that cannot be."""
        host, colon, port = target.rpartition(":")
        if not (port.isascii() and port.isdigit()) or (colon and not host):
            return None
        if len(port) > 5 or int(port) > 65535:
            raise UsageError(f"--metrics {target:.100}: ports end at 65535: choose another")
        return cls(host.strip("[]") or "127.0.0.1", int(port))

    def url(self, port: int) -> str:
        """Say where that is, listening at `port`."""
        return f"http://{f'[{self.host}]' if ':' in self.host else self.host}:{port}/metrics"


@contextmanager
def exposed(target: str | None, recorder: Find, say: Say) -> Iterator[None]:
    """Serve the numbers at `target`, or keep them in the file of that name; None: neither.

    Raises UsageError for a place or file that cannot be used, UnavailableError without the client; what goes wrong
    later is said once.
    """
    if target is None:
        yield
        return
    client, said = _client(), set[str]()
    registry = client.CollectorRegistry()
    registry.register(RunCollector(recorder))

    def say_once(text: str) -> None:
        if text not in said:
            said.add(text)
            say(text)

    place = Place.of(target)
    with (
        _served(client, registry, place, target, say)
        if place
        else _written(client, registry, _prom_file(target), say_once)
    ):
        yield


def check_target(target: str | None) -> Path | None:
    """Raise UsageError or UnavailableError now for what `exposed` would refuse, but for a port that is taken; the file
    that it would keep."""
    if target is None:
        return None
    _client()
    if place := Place.of(target):
        _admission(target, place)
        return None
    return _prom_file(target)


def _prom_file(target: str) -> Path:
    """Return the file of that name. Raises UsageError for one that no collector would read, or that cannot be there."""
    if not target.endswith(".prom"):
        raise UsageError(
            f"--metrics {target:.100}: give a port, HOST:PORT, or a file whose name ends in .prom (for node_exporter)"
        )
    path = parsers.path_of(target, "--metrics")
    check_file("--metrics", path, begin=b"# HELP interlock_")
    return path


def _client() -> Any:
    try:
        import prometheus_client
    except ImportError:
        raise UnavailableError(
            "--metrics needs prometheus-client: install it (pip install 'interlock[metrics]')"
        ) from None
    return prometheus_client


def _admission(target: str, place: Place) -> "Admission":
    try:
        from interlock.console.front_ends.connections import Admission
    except ModuleNotFoundError as missing:
        raise UnavailableError(
            f"--metrics {target:.100} needs {missing.name}: install it (pip install 'interlock[metrics]')"
        ) from None
    return Admission.of(f"--metrics {target:.100}", place.host, KEY)


@contextmanager
def _served(client: Any, registry: Any, place: Place, target: str, say: Say) -> Iterator[None]:
    admission = _admission(target, place)
    from interlock.console.front_ends.connections import listening, server_of

    async def answer(scope: Any, receive: Any, send: Any) -> None:
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        if refusal := admission.refusal(headers):
            status, kind, said = refusal[0], "text/plain; charset=utf-8", f"{refusal[1]}\n".encode()
        else:
            encode, kind = client.exposition.choose_encoder(headers.get("accept", ""))
            status, said = 200, encode(registry)
        told = [(b"content-type", kind.encode()), (b"content-length", str(len(said)).encode())]
        await send({"type": "http.response.start", "status": status, "headers": told})
        await send({"type": "http.response.body", "body": said})

    at = listening(place.host, place.port, f"--metrics {target:.100}")
    port, server = at.getsockname()[1], server_of(answer, MOST_CLIENTS, ENDING)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [at]}, name="metrics", daemon=True)
    thread.start()
    while thread.is_alive() and not server.started:
        time.sleep(0.005)
    say(f"metrics: {place.url(port)}")
    try:
        yield
    finally:
        server.force_exit = server.should_exit = True
        thread.join(3 * ENDING)


@contextmanager
def _written(client: Any, registry: Any, path: Path, say: Say) -> Iterator[None]:
    over = threading.Event()

    def write() -> None:
        try:
            client.write_to_textfile(str(path), registry)
        except OSError as error:
            say(f"metrics: cannot write {path}: {error.strerror or error}")

    def keep() -> None:
        while not over.wait(EVERY):
            write()

    write()
    thread = threading.Thread(target=keep, name="metrics", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        write()
