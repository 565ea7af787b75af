"""A run's numbers for other programs, in Prometheus' text format: over HTTP on this machine alone, or in a file.

They are a projection of the run's state, of all its sessions, whenever somebody asks. The official client writes them;
it is imported only where they are asked for. A run goes on whatever happens to them.
"""

import re
import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import accumulate
from pathlib import Path
from typing import Any

from interlock.console.writing import check_own
from interlock.engine import parsers
from interlock.engine.errors import UnavailableError, UsageError
from interlock.engine.record.events import Mitigated
from interlock.engine.record.recorder import Recorder
from interlock.engine.record.state import SECONDS, RunState, Share

LOOPBACK = "127.0.0.1"
OWN_NAME = re.compile(r"(127\.0\.0\.1|localhost|\[::1\])(:\d{1,5})?")
MOST_CLIENTS, PATIENCE = 8, 5.0
"""Connections at a time, and seconds that one may last."""
EVERY = 5.0
"""Seconds between two writings of a file."""
Find = Callable[[], Recorder | None]
Say = Callable[[str], object]


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
        yield from recorder.look(families) if recorder else families(RunState())


@contextmanager
def exposed(target: str | None, recorder: Find, say: Say) -> Iterator[None]:
    """Serve the numbers on port `target` of this machine, or keep them in the file of that name; None: neither.

    Raises UsageError for a port or file that cannot be used, UnavailableError without the client; what goes wrong later
    is said once.
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

    port = _is_port(target)
    with (
        _served(client, registry, int(target), say)
        if port
        else _written(client, registry, check_file(target), say_once)
    ):
        yield


def _is_port(target: str) -> bool:
    return target.isascii() and target.isdigit()


def check_target(target: str | None) -> None:
    """Raise UsageError or UnavailableError now for what `exposed` would refuse, but for a port that is taken."""
    if target is None:
        return
    _client()
    if _is_port(target) and (len(target) > 5 or int(target) > 65535):
        raise UsageError(f"--metrics {target:.100}: ports end at 65535: choose another")
    if not _is_port(target):
        check_file(target)


def check_file(target: str) -> Path:
    """Return the file of that name. Raises UsageError for one that no collector would read, or that cannot be there."""
    if not target.endswith(".prom"):
        raise UsageError(
            f"--metrics {target:.100}: give a port, or a file whose name ends in .prom, as node_exporter reads"
        )
    try:
        path = parsers.path(target)
    except ValueError as wanted:
        raise UsageError(f"--metrics: {wanted}, got {target!r:.100}") from None
    if path.is_dir() or not path.parent.is_dir():
        wrong = "is a directory" if path.is_dir() else f"{path.parent} is not a directory"
        raise UsageError(f"--metrics {target}: {wrong}: name a file in a directory that exists")
    check_own("--metrics", path, b"# HELP interlock_")
    return path


def _client() -> Any:
    try:
        import prometheus_client
    except ImportError:
        raise UnavailableError(
            "--metrics needs prometheus-client: install it (pip install 'interlock[metrics]')"
        ) from None
    return prometheus_client


@contextmanager
def _served(client: Any, registry: Any, port: int, say: Say) -> Iterator[None]:
    try:
        server = _Server(client, registry, port)
    except (OSError, OverflowError) as error:
        raise UsageError(f"--metrics {port}: cannot listen there ({error}): choose another port") from None
    thread = threading.Thread(target=server.serve_forever, name="metrics", daemon=True)
    thread.start()
    say(f"metrics: http://{LOOPBACK}:{server.server_port}/metrics")
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Server(ThreadingHTTPServer):
    """Answers a few clients of this machine at a time, each for a few seconds: a run's descriptors are its own."""

    def __init__(self, client: Any, registry: Any, port: int) -> None:
        super().__init__((LOOPBACK, port), _Handler)
        self._client, self._registry = client, registry
        self._room = threading.BoundedSemaphore(MOST_CLIENTS)

    def process_request(self, request: Any, client_address: Any) -> None:
        if self._room.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        late = threading.Timer(PATIENCE, self._cut, [request])
        late.daemon = True
        late.start()
        try:
            super().process_request_thread(request, client_address)
        finally:
            late.cancel()
            self._room.release()

    def encoded(self, accepted: str) -> tuple[bytes, str]:
        """Write the numbers in a format that a client accepts; and name it."""
        encode, kind = self._client.exposition.choose_encoder(accepted)
        return encode(self._registry), kind

    @staticmethod
    def _cut(request: Any) -> None:
        with suppress(OSError):
            request.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing: a client that breaks off is none of the operator's business."""


class _Handler(BaseHTTPRequestHandler):
    timeout = PATIENCE
    server: _Server

    def do_GET(self) -> None:
        """Give the numbers, to nobody whom another name has led here."""
        host = self.headers.get("Host", LOOPBACK).strip().lower()
        if not OWN_NAME.fullmatch(host):
            self.send_error(403, "only this machine is answered")
            return
        said, kind = self.server.encoded(self.headers.get("Accept", ""))
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(said)))
        self.end_headers()
        self.wfile.write(said)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


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


def _of_models(state: RunState, count: Callable[[Share], float]) -> dict[str, float]:
    """What adds up over the shares of each model."""
    sums: dict[str, float] = {}
    for share in state.shares():
        sums[share.plan.model] = sums.get(share.plan.model, 0) + count(share)
    return sums


def _parked(state: RunState) -> dict[str, float]:
    return {state.roster[number].model: sum(map(len, rows.values())) for number, rows in state.parked.items()}


def _held(state: RunState) -> dict[str, float]:
    held = Counter(lease.model for lease in state.held.values())
    return {lease.model: held[lease.model] for lease in state.leases.values()}


def _occupied(state: RunState) -> dict[str, float]:
    return {name: each.memory.occupied for name, each in state.devices.items() if each.memory and not each.lost}


def _steps(state: RunState) -> Counter[tuple[str, str]]:
    bodies = (entry.body for entry in state.mitigations)
    return Counter((step.rung, step.device) for step in bodies if isinstance(step, Mitigated))


def _warnings(state: RunState) -> int:
    return len(state.warnings) + sum(len(each.warnings) for each in state.collections.values())


Project = Callable[[RunState], Mapping[Any, float]]
COUNTERS: Sequence[tuple[str, str, str, Project]] = (
    ("rows", "Distinct texts embedded", "model", lambda s: _of_models(s, lambda each: (each.done + each.lost).rows)),
    ("tokens", "Tokens embedded", "model", lambda s: _of_models(s, lambda each: (each.done + each.lost).tokens)),
    ("rows_parked", "Texts that have no vector of a model", "model", _parked),
    ("leases", "Leases granted", "model", lambda s: Counter(lease.model for lease in s.leases.values())),
    ("mitigations", "Steps of the ladder", "rung device", _steps),
    ("warnings", "Warnings", "", lambda s: {(): _warnings(s)}),
    ("node_losses", "How often a node was lost", "node", lambda s: {n: len(o.losses) for n, o in s.nodes.items()}),
    ("rows_again", "Texts of lost nodes, again", "node", lambda s: {n: o.rows_again for n, o in s.nodes.items()}),
)
"""Name, text, labels, and the numbers by the values of the labels. They only rise in a session: what was computed, lost
and computed again counts twice."""
GAUGES: Sequence[tuple[str, str, str, Project]] = (
    ("run_info", "The run, and how it stands", "run status", lambda s: {(_name(s), s.status or "running"): 1}),
    ("latest_event_timestamp_seconds", "When the run told of anything last", "", lambda s: {(): s.latest_at}),
    ("leases_held", "Leases held now", "model", _held),
    ("device_occupied_bytes", "Bytes occupied on a device", "device", _occupied),
    ("device_peak_occupied_bytes", "The most so far", "device", lambda s: {n: o.peak for n, o in s.devices.items()}),
    (
        *("device_ceiling_bytes", "Bytes that the run may occupy", "device"),
        lambda s: {name: each.facts.ceiling_bytes for name, each in s.devices.items()},
    ),
    ("node_up", "Whether a node is there", "node", lambda s: {n: o.here for n, o in s.nodes.items()}),
)


def _name(state: RunState) -> str:
    return state.started.run_id if state.started else ""


def families(state: RunState) -> list[Any]:
    """Make every family, whose names and labels are an interface: they stay as they are."""
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

    found = []
    for kind, table in ((CounterMetricFamily, COUNTERS), (GaugeMetricFamily, GAUGES)):
        for name, text, labels, project in table:
            family = kind(f"interlock_{name}", text, labels=labels.split())
            for values, number in project(state).items():
                family.add_metric([values] if isinstance(values, str) else values, number)
            if family.samples or labels != "node":  # one machine has no nodes, and says nothing of them
                found.append(family)
    took = HistogramMetricFamily("interlock_batch_seconds", "Wall time of a batch", labels=["model"])
    for model in _of_models(state, lambda _: 0) if state.timed else ():  # simulated seconds say nothing
        mine = [share for share in state.shares() if share.plan.model == model]
        counts = accumulate(map(sum, zip(*(share.took for share in mine), strict=True)))
        buckets = zip([*map(str, SECONDS), "+Inf"], counts, strict=True)
        took.add_metric([model], list(buckets), sum((share.done + share.lost).seconds for share in mine))
    return [*found, took]
