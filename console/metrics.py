"""A run's numbers for other programs, in Prometheus' text format: over HTTP on this machine alone, or in a file.

They are what `RunMetrics` makes of the run's journal, read as it grows, in a registry of their own. The official client
writes them; it is imported only where they are asked for. A run goes on whatever happens to them.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import accumulate
from pathlib import Path
from typing import Any

from interlock.console.sources.tail import Tail
from interlock.engine.errors import InterlockError, UnavailableError, UsageError
from interlock.engine.record.metrics import SECONDS, RunMetrics

LOOPBACK = "127.0.0.1"
EVERY = 5.0
"""Seconds between two writings of a file."""
Find = Callable[[], Path | None]
Say = Callable[[str], object]


class JournalCollector:
    """Reads on in a run's journal whenever it is asked, and says how the numbers stand; for a registry."""

    def __init__(self, journal: Find, say: Say) -> None:
        """`journal` returns where it is, or None as long as there is none; `say` hears why it cannot be read."""
        self._find, self._say, self._metrics = journal, say, RunMetrics()
        self._tail: Tail | None = None
        self._lock = threading.Lock()

    def describe(self) -> list[Any]:
        """Nothing: a registry would ask for numbers to learn their names."""
        return []

    def collect(self) -> Iterator[Any]:
        """Yield every family of numbers, as far as the journal can be read."""
        with self._lock:
            try:
                self._read_on()
            except InterlockError as error:
                self._say(f"metrics: {error}")
            yield from _families(self._metrics)

    def _read_on(self) -> None:
        path = self._find()
        if self._tail is None and path:
            self._tail = Tail(path)
        more = self._tail is not None
        while more and self._tail:
            anew, entries = self._tail.more()
            if anew:
                self._metrics = RunMetrics()
            for entry in entries:
                self._metrics.take(entry)
            more = bool(entries)


@contextmanager
def exposed(target: str | None, journal: Find, say: Say) -> Iterator[None]:
    """Serve the numbers on port `target` of this machine, or keep them in the file of that name; None: neither.

    Raises UsageError for a port or file that cannot be used, UnavailableError without the client; what goes wrong later
    is said once.
    """
    if target is None:
        yield
        return
    client = _client()
    registry, say = client.CollectorRegistry(), _once(say)
    registry.register(JournalCollector(journal, say))
    port = target.isdecimal()
    with _served(client, registry, int(target), say) if port else _written(client, registry, check_file(target), say):
        yield


def _once(say: Say) -> Say:
    """Say each thing the first time only."""
    said = set[str]()

    def once(text: str) -> None:
        if text not in said:
            said.add(text)
            say(text)

    return once


def check_target(target: str | None) -> None:
    """Raise UsageError or UnavailableError now for what `exposed` would refuse, but for a port that is taken."""
    if target is None:
        return
    _client()
    if target.isdecimal() and int(target) > 65535:
        raise UsageError(f"--metrics {target}: ports end at 65535: choose another")
    if not target.isdecimal():
        check_file(target)


def check_file(target: str) -> Path:
    """Return the file of that name. Raises UsageError for one that no collector would read, or that cannot be there."""
    path = Path(target)
    if path.suffix != ".prom":
        raise UsageError(f"--metrics {target}: give a port, or a file whose name ends in .prom, as node_exporter reads")
    if path.is_dir() or not path.parent.is_dir():
        wrong = "is a directory" if path.is_dir() else f"{path.parent} is not a directory"
        raise UsageError(f"--metrics {target}: {wrong}: name a file in a directory that exists")
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
        server, thread = client.start_http_server(port, addr=LOOPBACK, registry=registry)
    except (OSError, OverflowError) as error:
        raise UsageError(f"--metrics {port}: cannot listen there ({error}): choose another port") from None
    server.handle_error = lambda *_: None  # a client that breaks off is none of the operator's business
    say(f"metrics: http://{LOOPBACK}:{server.server_port}/metrics")
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


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


def _families(seen: RunMetrics) -> Iterator[Any]:
    """Every family, whose names and labels are an interface: they stay as they are."""
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

    def family(kind: Any, name: str, text: str, label: str, values: dict[str, Any]) -> Any:
        made = kind(f"interlock_{name}", text, labels=[label])
        for value, number in values.items():
            made.add_metric([value], number)
        return made

    run = GaugeMetricFamily("interlock_run_info", "The run, and how it stands", labels=["run", "status"])
    run.add_metric([seen.run, seen.status], 1)
    yield run
    latest = GaugeMetricFamily("interlock_latest_event_timestamp_seconds", "When the run told of anything last")
    latest.add_metric([], seen.latest)
    yield latest
    counter, gauge = CounterMetricFamily, GaugeMetricFamily
    yield family(counter, "rows", "Distinct texts embedded", "model", seen.rows)
    yield family(counter, "tokens", "Tokens embedded", "model", seen.tokens)
    yield family(counter, "rows_parked", "Texts that have no vector of a model", "model", seen.parked)
    yield family(counter, "leases", "Leases granted", "model", seen.leases)
    held = {model: sum(each == model for each in seen.held.values()) for model in seen.leases}
    yield family(gauge, "leases_held", "Leases held now", "model", held)
    steps = CounterMetricFamily("interlock_mitigations", "Steps of the ladder", labels=["rung", "device"])
    for (rung, device), count in seen.mitigations.items():
        steps.add_metric([rung, device], count)
    yield steps
    yield family(gauge, "device_occupied_bytes", "Bytes occupied on a device", "device", seen.occupied)
    yield family(gauge, "device_peak_occupied_bytes", "The most of them so far", "device", seen.peaks)
    yield family(gauge, "device_ceiling_bytes", "Bytes that the run may occupy", "device", seen.ceilings)
    if seen.nodes:
        yield family(gauge, "node_up", "Whether a node of the cluster is there", "node", seen.nodes)
        yield family(counter, "node_losses", "How often a node was lost", "node", seen.node_losses)
        yield family(counter, "rows_again", "Texts that a lost node held, computed again", "node", seen.rows_again)
    warnings = CounterMetricFamily("interlock_warnings", "Warnings")
    warnings.add_metric([], seen.warnings)
    yield warnings
    batches = HistogramMetricFamily("interlock_batch_seconds", "Wall time of a batch", labels=["model"])
    for model, took in seen.batch_seconds.items():
        bounds = [*map(str, SECONDS), "+Inf"]
        counts = list(accumulate(took.counts))
        batches.add_metric([model], buckets=list(zip(bounds, counts, strict=True)), sum_value=took.total)
    yield batches
