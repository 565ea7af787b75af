"""A run's numbers for other programs: every family of Prometheus that there is, declared once, each a projection of the
run's state, of all its sessions, at the moment that somebody asks.

Names, labels and units are an interface: base units, `_total` of what only rises, and no label of which a corpus could
make many. The table in docs/runs.md is made of these; dashboard and alerts in docs/deploy are checked against them.
"""

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from operator import add
from typing import Any, NamedTuple, Self, get_args

from interlock.engine.record.events import Mitigated
from interlock.engine.record.facts import NO_WORK, Readings, Status, Tally
from interlock.engine.record.journal import Upload
from interlock.engine.record.snapshot import DeviceView, PassView, Snapshot, snapshot
from interlock.engine.record.state import SECONDS, NodeState, RunState
from interlock.engine.standing.health import TROUBLES
from interlock.engine.standing.judgement import LEVELS, Judgement, judge
from interlock.engine.standing.outlook import Outlook, told_of

PHASES = ("starting", "resolving", "reading", "planning", "running", "delivering", *get_args(Status))
HEALTHS = ("ok", *map(str.lower, TROUBLES))
UPLOADS = ("not begun", "uploading", "waiting", "stopped", "died", "failed", "completed")
UNITS = ("bytes", "seconds", "ratio", "celsius", "watts")


@dataclass(frozen=True)
class Scrape:
    """What is known `now`, in seconds since the epoch, when somebody asks: what screens see; what adds up over the
    shares of each model; counts; and the uploads of a run that is over, the latest last."""

    seen: Snapshot
    now: float
    uploads: Sequence[Upload]
    timed: bool
    work: Mapping[str, tuple[Tally, Sequence[int]]]
    """What was embedded, lost and done again too, and batches by how many SECONDS they took."""
    rows: Mapping[str, int]
    """By the device that made them."""
    leases: Mapping[str, int]
    held: Mapping[str, int]
    steps: Mapping[tuple[str, str], int]
    batches_lost: int
    exported_bytes: int

    @classmethod
    def of(cls, state: RunState, uploads: Sequence[Upload] = (), now: float | None = None) -> Self:
        """Copy what a state says; the engine may wait for it, and for nothing that is made of it."""
        work, rows = dict[str, tuple[Tally, Sequence[int]]](), Counter[str]()
        for share in state.shares():
            done, took = work.get(share.plan.model, (NO_WORK, [0] * len(share.took)))
            work[share.plan.model] = done + share.done + share.lost, list(map(add, took, share.took))
            for (device, _), count in share.computed.items():
                rows[device] += count
        held, bodies = Counter(lease.model for lease in state.held.values()), (each.body for each in state.mitigations)
        return cls(
            snapshot(state, 0),
            time.time() if now is None else now,
            uploads,
            state.timed,
            work,
            rows,
            leases := Counter(lease.model for lease in state.leases.values()),
            {model: held[model] for model in leases},
            Counter((each.rung, each.device) for each in bodies if isinstance(each, Mitigated)),
            state.batches_lost,
            sum(each.bytes for made in state.collections.values() for each in made.artefacts.values()),
        )

    @cached_property
    def judged(self) -> Judgement:
        """What is said of the run."""
        return judge(self.seen, self.now)

    @property
    def left(self) -> Outlook | None:
        """When the last batch is committed, as far as anybody knows."""
        return self.judged.left


Numbers = Mapping[Any, float]
Project = Callable[[Scrape], Numbers]


class Family(NamedTuple):
    """Numbers of one name: what they are, their labels, and how many there are by the values of those."""

    own: str
    text: str
    labels: str
    project: Project

    @property
    def name(self) -> str:
        """The name without what Prometheus adds to a counter's."""
        return f"interlock_{self.own}"

    @property
    def unit(self) -> str:
        """The unit that ends it, if any."""
        last = self.own.rpartition("_")[2]
        return last if last in UNITS else ""


def _work(count: Callable[[Tally], float]) -> Project:
    return lambda scrape: {model: count(done) for model, (done, _) in scrape.work.items()}


def _passes(count: Callable[[PassView], float]) -> Project:
    return lambda scrape: {each.model: count(each) for each in scrape.seen.passes}


def _devices(figure: Callable[[DeviceView], float | None]) -> Project:
    return lambda scrape: {each.facts.name: told for each in scrape.seen.devices if (told := figure(each)) is not None}


def _reading(figure: Callable[[Readings], float | None]) -> Project:
    """What the readings of devices that are there tell."""
    return _devices(lambda each: figure(each.readings) if each.readings and not each.lost else None)


def _nodes(count: Callable[[NodeState], float]) -> Project:
    return lambda scrape: {node.node: count(node) for node in scrape.seen.nodes}


def _one(number: Callable[[Scrape], float | None]) -> Project:
    """A number without labels, where there is one."""
    return lambda scrape: {} if (told := number(scrape)) is None else {(): told}


def _upload(number: Callable[[Upload], float | None]) -> Project:
    """A number of the latest upload, where there is one."""
    return _one(lambda scrape: number(scrape.uploads[-1]) if scrape.uploads else None)


def _sums(number: Callable[[Upload], float]) -> Project:
    return _one(lambda scrape: sum(map(number, scrape.uploads)) if scrape.uploads else None)


def _enum(values: Sequence[str], which: Callable[[Scrape], str]) -> Project:
    return lambda scrape: {each.replace(" ", "_"): each == now for now in (which(scrape),) for each in values if now}


def _health(scrape: Scrape) -> str:
    return word if (word := scrape.judged.health.word.lower()) in HEALTHS else "ok"


def _upload_state(scrape: Scrape) -> str:
    """How the latest upload stands; empty where there is none."""
    if not scrape.uploads or scrape.uploads[-1].latest.ended == "":
        return "completed" * bool(scrape.uploads)
    return judge(scrape.seen, scrape.now, scrape.uploads[-1]).health.word.lower().removeprefix("upload ")


def _run(scrape: Scrape) -> Numbers:
    return {(scrape.seen.run_id, scrape.seen.phase if scrape.seen.over else "running"): 1}


def _makes(scrape: Scrape) -> Numbers:
    return {(each.facts.name, each.facts.kind, each.facts.label): 1 for each in scrape.seen.devices}


def _machines(scrape: Scrape) -> Numbers:
    return {(each.node, each.label): 1 for each in scrape.seen.nodes}


def _busy(readings: Readings) -> float | None:
    return None if readings.utilisation is None else readings.utilisation / 100


STATES = (
    Family("run_state", "What the run does, or how it ended", "", _enum(PHASES, lambda s: s.seen.phase)),
    Family("run_health", "What the console's header says of it", "", _enum(HEALTHS, _health)),
    Family("run_level", "How bad that is", "", _enum(LEVELS, lambda s: s.judged.health.level)),
    Family("upload_state", "How the upload that follows it stands", "", _enum(UPLOADS, _upload_state)),
)
"""Each value that they may have is 0 or 1."""
COUNTERS = (
    Family("sessions", "How often the run was begun, or gone on with", "", _one(lambda s: s.seen.sessions)),
    Family("rows", "Distinct texts embedded", "model", _work(lambda each: each.rows)),
    Family("tokens", "Tokens embedded", "model", _work(lambda each: each.tokens)),
    Family(
        "batches", "Batches committed", "model", lambda s: {model: sum(took) for model, (_, took) in s.work.items()}
    ),
    Family("batches_lost", "Batches whose vectors did not survive", "", _one(lambda s: s.batches_lost)),
    Family("rows_parked", "Texts that have no vector", "model", _passes(lambda each: each.parked)),
    Family("records_refused", "Records left out", "", _one(lambda s: sum(c.refused for c in s.seen.collections))),
    Family("leases", "Leases granted", "model", lambda s: s.leases),
    Family("mitigations", "Steps of the ladder", "rung device", lambda s: s.steps),
    Family("warnings", "Warnings", "", _one(lambda s: s.seen.warnings)),
    Family("download_retries", "Attempts to fetch a model that failed", "", _one(lambda s: s.seen.retries)),
    Family("device_losses", "Devices lost", "", _one(lambda s: len(s.seen.losses))),
    Family("node_losses", "How often a node was lost", "node", _nodes(lambda node: len(node.losses))),
    Family("node_sent_bytes", "Bytes of models sent to a node", "node", _nodes(lambda node: node.sent_bytes)),
    Family("batches_doubled", "Batches that another was given too", "node", _nodes(lambda node: node.batches_doubled)),
    Family("rows_again", "Texts that a lost node held, computed again", "node", _nodes(lambda node: node.rows_again)),
)
"""They only rise in a session: what was computed, lost and computed again counts twice."""
GAUGES = (
    Family("run_info", "The run, and how it stands", "run status", _run),
    Family("run_exit_code", "How it ended, as its process says", "", _one(lambda s: s.seen.exit_code)),
    Family("run_done_ratio", "Share of its predicted cost that is done", "", _one(lambda s: s.seen.share_done)),
    Family("run_remaining_seconds", "Foreseen to the last batch", "", _one(lambda s: s.left and s.left.seconds)),
    Family("run_remaining_spread_seconds", "How far that may be off", "", _one(lambda s: s.left and s.left.spread)),
    Family("run_start_timestamp_seconds", "When it was begun", "", _one(lambda s: s.seen.began_at or None)),
    Family("run_deadline_timestamp_seconds", "When it must be over", "", _one(lambda s: s.seen.deadline or None)),
    Family("latest_event_timestamp_seconds", "When it told of anything last", "", _one(lambda s: s.seen.latest_at)),
    Family("progress_timestamp_seconds", "When it made progress last", "", _one(lambda s: s.seen.progressed_at)),
    Family("rows_expected", "Texts to embed, but for reused ones", "model", _passes(lambda each: each.rows)),
    Family("rows_reused", "Texts whose vectors another run had", "model", _passes(lambda each: each.reused)),
    Family("tokens_expected", "Tokens to embed", "model", _passes(lambda each: each.tokens)),
    Family("batches_expected", "Batches planned", "model", _passes(lambda each: each.batches)),
    Family("batches_left", "The queue: not committed yet", "model", _passes(lambda e: e.batches - e.batches_done)),
    Family("collections", "How many stand so", "status", lambda s: dict(Counter(c.word for c in s.seen.collections))),
    Family("leases_held", "Leases held now", "model", lambda s: s.held),
    Family("exported_bytes", "Bytes of files that were delivered", "", _one(lambda s: s.exported_bytes)),
    Family("disk_free_bytes", "Free on the disk of the run", "device", lambda s: told_of(s.seen, "disk_free")),
    Family("host_memory_free_bytes", "Free of its host's", "device", lambda s: told_of(s.seen, "memory_free")),
    Family("device_info", "What a device is", "device kind make", _makes),
    Family("device_up", "Whether a device can be used", "device", _devices(lambda each: not each.lost)),
    Family("device_rows", "Texts whose vectors it made, of all models", "device", lambda s: s.rows),
    Family(
        "device_occupied_bytes",
        "What the run has of it",
        "device",
        _devices(lambda each: each.occupied if each.memory and not each.lost else None),
    ),
    Family("device_peak_occupied_bytes", "The most so far", "device", _devices(lambda each: each.peak)),
    Family("device_ceiling_bytes", "What the run may have", "device", _devices(lambda each: each.facts.ceiling_bytes)),
    Family("device_weights_bytes", "Weights that leases have attached", "device", _devices(lambda each: each.weights)),
    Family(
        "device_others_bytes",
        "What others have of it",
        "device",
        _devices(lambda each: each.others if each.readings and not each.lost else None),
    ),
    Family("device_free_bytes", "What nobody has of it", "device", _reading(lambda r: r.total - r.used)),
    Family("device_total_bytes", "All of it", "device", _reading(lambda r: r.total)),
    Family("device_utilisation_ratio", "How busy it is", "device", _reading(_busy)),
    Family("device_temperature_celsius", "How warm it is", "device", _reading(lambda r: r.temperature)),
    Family("device_power_watts", "What it draws", "device", _reading(lambda r: r.power)),
    Family("node_up", "Whether a node is there", "node", lambda s: _nodes(lambda n: n.here and not s.seen.over)(s)),
    Family("node_info", "The machine that a node is on", "node machine", _machines),
    Family("upload_points", "Points that the server acknowledged", "", _sums(lambda each: each.latest.rows)),
    Family("upload_points_unchanged", "Not sent, as it had them", "", _sums(lambda each: each.latest.unchanged)),
    Family("upload_points_expected", "Of all collections that it has come to", "", _sums(lambda each: each.to.rows)),
    Family("upload_remaining_seconds", "Foreseen for the collection under way", "", _upload(lambda e: e.latest.left)),
    Family("upload_failed_attempts", "Since the server answered last", "", _upload(lambda each: each.latest.attempts)),
)
BATCH_SECONDS = Family("batch_seconds", "Wall time of a batch; not of simulated devices", "model", lambda _: {})
"""A histogram."""


def families(scrape: Scrape) -> list[Any]:
    """Make every family that has numbers."""
    from prometheus_client import core

    found: list[Any] = [
        core.StateSetMetricFamily(each.name, each.text, told) for each in STATES if (told := each.project(scrape))
    ]
    for kind, table in ((core.CounterMetricFamily, COUNTERS), (core.GaugeMetricFamily, GAUGES)):
        for each in table:
            family = kind(each.name, each.text, labels=each.labels.split(), unit=each.unit)
            for values, number in each.project(scrape).items():
                family.add_metric([values] if isinstance(values, str) else values, number)
            found += [family] * bool(family.samples)
    took = core.HistogramMetricFamily(BATCH_SECONDS.name, BATCH_SECONDS.text, labels=["model"], unit="seconds")
    for model, (done, counts) in scrape.work.items() if scrape.timed else ():  # simulated seconds say nothing
        took.add_metric([model], list(zip([*map(str, SECONDS), "+Inf"], accumulate(counts), strict=True)), done.seconds)
    return [*found, took]
