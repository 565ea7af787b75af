"""What Prometheus scrapes of a run: names by its rules, numbers as screens show them, and scrapers that harm nobody."""

import re
import socket
import struct
import subprocess
import threading
import time
from contextlib import suppress

import httpx
import pytest
from msgspec import structs

from interlock.console.front_ends.exposing import exposed, uploads_of
from interlock.engine.errors import UsageError
from interlock.engine.record import events as ev
from interlock.engine.record.facts import DeviceFacts, Memory, Readings
from interlock.engine.record.fold import fold_each
from interlock.engine.record.journal import Journal, UploadBinding, UploadJournal
from interlock.engine.record.recorder import Recorder
from interlock.engine.record.snapshot import snapshot
from interlock.engine.record.state import RunState
from interlock.engine.standing.judgement import judge
from interlock.engine.standing.outlook import time_left
from tests.builders import command, corpus, environment, interlock, sentences
from tests.test_nodes import BEGUN, GIB, LOSS

prometheus = pytest.importorskip("prometheus_client", reason="metrics need prometheus-client")
metrics = pytest.importorskip("interlock.console.metrics")

KEY = "INTERLOCK_METRICS_KEY"
DECLARED = [
    *((each, "state") for each in metrics.STATES),
    *((each, "counter") for each in metrics.COUNTERS),
    *((each, "gauge") for each in metrics.GAUGES),
    (metrics.BATCH_SECONDS, "histogram"),
]
NOW = 1_800_000_000.0
CARD = DeviceFacts(name="cuda:0", kind="cuda", label="Tesla T4", total_bytes=15 * GIB, ceiling_bytes=12 * GIB)
SEEN = Readings(
    used=9 * GIB, total=15 * GIB, others=2 * GIB, utilisation=97, temperature=61, power=68.5,
    disk_free=40 * GIB, memory_free=3 * GIB,
)  # fmt: skip
WORK = (
    *BEGUN[:1],
    ev.DevicesFound(devices=[CARD]),
    *BEGUN[2:],
    ev.LeaseGranted(
        lease="L001", model_pass=0, model="m", devices=["cuda:0"], device_kind="cuda", budget_bytes=GIB,
        predicted_bytes=GIB,
    ),
    ev.ModelAttached(lease="L001", model="m", bytes=GIB, seconds=1.0, device="cuda:0"),
    *(
        ev.BatchCommitted(
            model_pass=0, batch_index=index, rows=10, tokens=100, padding=0, seconds=0.5, device="cuda:0", crc=0
        )
        for index in range(3)
    ),
    ev.DeviceSampled(device="cuda:0", memory=Memory(allocated=0, occupied=7 * GIB), readings=SEEN),
)  # fmt: skip


def folded(*bodies, kind="cuda"):
    entries = (
        ev.Entry(seq=seq, at=NOW + seq, session=0, elapsed=float(seq), device_kind=kind, body=body)
        for seq, body in enumerate(bodies)
    )
    state = RunState()
    for _ in fold_each(state, entries):
        pass
    return state


class Scraped:
    """A registry of one state."""

    def __init__(self, state, uploads=(), now=NOW + 20):
        self.scrape = metrics.Scrape.of(state, uploads, now)

    def describe(self):
        return []

    def collect(self):
        return metrics.families(self.scrape)


def texts_of(*told):
    """The classic text and that of OpenMetrics."""
    registry = prometheus.CollectorRegistry()
    registry.register(Scraped(*told))
    kinds = "text/plain", "application/openmetrics-text; version=1.0.0"
    return [prometheus.exposition.choose_encoder(kind)[0](registry).decode() for kind in kinds]


def numbers_of(*told):
    """Every sample, as both of the client's parsers read it alike."""
    from prometheus_client.openmetrics import parser as strict
    from prometheus_client.parser import text_string_to_metric_families

    parse = text_string_to_metric_families, strict.text_string_to_metric_families
    classic, openmetrics = (
        {(sample.name, *sample.labels.values()): sample.value for family in each(text) for sample in family.samples}
        for each, text in zip(parse, texts_of(*told), strict=True)
    )
    assert classic == openmetrics
    return {(name.removeprefix("interlock_"), *labels): value for (name, *labels), value in classic.items()}


@pytest.mark.parametrize(("family", "kind"), DECLARED, ids=lambda each: getattr(each, "own", ""))
def test_names_units_and_labels_keep_to_the_rules_that_promtool_checks(family, kind):
    name, words = family.name, family.own.split("_")
    assert re.fullmatch(r"interlock(_[a-z]+)+", name) and family.text and not family.text.endswith(".")
    assert words[-1] not in ("total", "count", "sum", "bucket", "counter", "gauge", "metric")
    others = {"milliseconds", "ms", "minutes", "hours", "kilobytes", "megabytes", "mib", "gib", "percent", "bits"}
    assert not others & {*words}
    for unit in ("bytes", "seconds", "ratio", "celsius", "watts"):  # base units, at the end
        assert unit not in words or words[-1] == unit == family.unit
    labels = family.labels.split()
    assert {*labels} <= {"model", "rung", "device", "node", "run", "status", "kind", "make", "machine"}
    assert not any(label in words for label in labels if kind == "counter" and label != "node")


def test_no_name_is_declared_twice():
    assert len({family.name for family, _ in DECLARED}) == len(DECLARED) > 50


def test_numbers_of_a_run_under_way_are_what_screens_are_told():
    state = folded(*WORK)
    seen, found = snapshot(state, 0), numbers_of(state)
    left, (each,) = time_left(seen), seen.passes
    assert (found["run_remaining_seconds",], found["run_remaining_spread_seconds",]) == (left.seconds, left.spread)
    assert found["run_done_ratio",] == seen.share_done == pytest.approx(3 / 8)
    wanted = {"rows_expected": 80, "rows_total": 30, "batches_expected": 8, "batches_total": 3, "batches_left": 5}
    assert {name: found[name, "m"] for name in wanted} == wanted
    assert found["batch_seconds_sum", "m"] == each.done.seconds == 1.5
    (device,) = seen.devices
    assert found["device_occupied_bytes", "cuda:0"] == device.occupied == 7 * GIB
    assert found["device_others_bytes", "cuda:0"] == device.others == 2 * GIB
    assert found["device_free_bytes", "cuda:0"] == 6 * GIB and found["device_total_bytes", "cuda:0"] == 15 * GIB
    assert found["device_weights_bytes", "cuda:0"] == GIB and found["device_rows", "cuda:0"] == 30
    readings = {name: found[f"device_{name}", "cuda:0"] for name in ("utilisation_ratio", "temperature_celsius")}
    assert readings == {"utilisation_ratio": 0.97, "temperature_celsius": 61}
    assert found["device_info", "cuda:0", "cuda", "Tesla T4"] == found["device_up", "cuda:0"] == 1
    assert found["disk_free_bytes", "cuda:0"] == 40 * GIB and found["host_memory_free_bytes", "cuda:0"] == 3 * GIB
    assert set_in(found, "run_state") == "running" and set_in(found, "run_health") == "ok"
    assert set_in(found, "run_level") == judge(seen, NOW + 20).health.level == "ok"
    assert ("run_exit_code",) not in found and not any(name.startswith("upload") for name, *_ in found)


def test_what_was_lost_and_is_computed_again_counts_twice_and_is_left_once_more():
    found = numbers_of(folded(*WORK, ev.BatchesLost(model_pass=0, batches=[1])))
    assert (found["rows_total", "m"], found["batches_total", "m"], found["batches_left", "m"]) == (30, 3, 6)
    assert (found["batches_lost_total",], found["device_rows", "cuda:0"]) == (1, 20)
    assert found["run_done_ratio",] == pytest.approx(2 / 8) and found["batch_seconds_sum", "m"] == 1.5


def set_in(found, name):
    """The one value of a state that is 1."""
    (value,) = (labels[0] for (each, *labels), number in found.items() if each == name and number == 1)
    return value


def test_what_is_wrong_is_a_state_of_its_own_and_an_end_has_its_code():
    low = ev.DeviceSampled(
        device="cuda:0",
        memory=Memory(allocated=0, occupied=GIB),
        readings=Readings(used=GIB, total=15 * GIB, disk_free=5),
    )
    found = numbers_of(folded(*WORK, low))
    assert (set_in(found, "run_health"), set_in(found, "run_level")) == ("low_disk", "warn")
    assert found["disk_free_bytes", "cuda:0"] == 5
    parked = ev.RowParked(collection="Docs", model_pass=0, model="m", row=3, reason="not finite", batch_index=0)
    found = numbers_of(folded(*WORK, parked))
    assert (set_in(found, "run_health"), set_in(found, "run_level")) == ("text_parked", "warn")  # it may yet be tried
    closed = ev.RunClosed(status="incomplete", reason="1 text parked", exit_code=1)
    found = numbers_of(folded(*WORK, parked, closed))
    assert set_in(found, "run_level") == "error"  # from now on results lack it
    assert (set_in(found, "run_state"), found["run_exit_code",], found["rows_parked_total", "m"]) == (
        "incomplete",
        1,
        1,
    )


def test_a_cluster_tells_of_each_node_and_of_none_once_it_is_over():
    state = folded(*BEGUN, *LOSS)
    found = numbers_of(state)
    assert {labels[0]: number for (name, *labels), number in found.items() if name == "node_up"} == {
        "node-1": 1, "node-2": 0, "node-3": 1
    }  # fmt: skip
    assert sum(name == "node_info" for name, *_ in found) == 3
    head = ev.DeviceSampled(
        device="head",
        memory=Memory(allocated=0, occupied=GIB),
        readings=Readings(used=GIB, total=15 * GIB, disk_free=5, memory_free=3 * GIB),
    )
    found = numbers_of(folded(*BEGUN, *LOSS, head))
    assert (found["disk_free_bytes", "head"], found["host_memory_free_bytes", "head"]) == (5, 3 * GIB)
    assert set_in(found, "run_health") == "low_disk" and not any(
        "head" in each for each in found if each[0] == "device_up"
    )
    closed = ev.RunClosed(status="stopped", reason="", exit_code=4)
    over = numbers_of(folded(*BEGUN, *LOSS, closed))
    assert {number for (name, *_), number in over.items() if name == "node_up"} == {0}


def test_simulated_seconds_are_no_histogram():
    assert not any(name.startswith("batch_seconds") for name, *_ in numbers_of(folded(*WORK, kind="sim")))


def test_uploads_are_told_once_the_run_is_over_all_collections_together(tmp_path):
    over = folded(*WORK, ev.RunClosed(status="completed", reason="", exit_code=0))
    there = tmp_path / "uploads"

    def journal(name, rows=100, url="http://here:6333", more=False):
        return UploadJournal(there / f"{name}.jsonl", UploadBinding(url, name, "f", rows), more)

    with journal("old", url="http://other:6333") as old:
        old.acknowledge(100)
    with journal("[a]", more=True) as first:
        first.acknowledge(100)
    with journal("b") as second:
        second.acknowledge(20)
        second.acknowledge(40)
        found = numbers_of(over, uploads_of(tmp_path), time.time())
        assert (found["upload_points",], found["upload_points_expected",]) == (140, 200)
        assert set_in(found, "upload_state") == "uploading" and found["upload_remaining_seconds",] >= 0
        second.note("connection refused", attempts=3, seconds=200)
        found = numbers_of(over, uploads_of(tmp_path), time.time())
        assert (set_in(found, "upload_state"), found["upload_failed_attempts",]) == ("waiting", 3)
        second.acknowledge(100)
    assert set_in(numbers_of(over, uploads_of(tmp_path), time.time()), "upload_state") == "completed"
    with suppress(RuntimeError), journal("c"):
        raise RuntimeError("the disk is full")
    assert set_in(numbers_of(over, uploads_of(tmp_path), time.time()), "upload_state") == "failed"


def serving(target, monkeypatch, key=""):
    """Serve nothing's numbers there: a context, and the lines that it says."""
    monkeypatch.setenv(KEY, key)
    said = []
    return exposed(target, lambda: None, said.append), said


@pytest.mark.parametrize("target", ["0", "127.0.0.1:0", "localhost:0", "[::1]:0"])
def test_this_machine_is_served_without_a_key_by_its_own_names_alone(target, monkeypatch):
    if "::1" in target and not socket.has_ipv6:
        pytest.skip("no IPv6")
    served, said = serving(target, monkeypatch)
    with served:
        url = said[0].removeprefix("metrics: ")
        assert "interlock_warnings_total 0.0" in httpx.get(url).text
        assert httpx.get(url, headers={"Host": "evil.example"}).status_code == 403


@pytest.mark.parametrize("target", ["0.0.0.0:0", "[::]:0"])
def test_any_other_host_takes_a_key_and_answers_those_alone_who_send_it(target, monkeypatch):
    with pytest.raises(UsageError, match=f"set {KEY} to a key"), serving(target, monkeypatch)[0]:
        pass
    served, said = serving(target, monkeypatch, "s3cret")
    with served:
        url = re.sub(r"0\.0\.0\.0|\[::\]", "127.0.0.1" if "." in target else "[::1]", said[0].split()[1])
        assert "s3cret" not in said[0]
        assert httpx.get(url).status_code == 401
        assert httpx.get(url, headers={"Authorization": "Bearer wrong"}).status_code == 401
        right = httpx.get(url, headers={"Authorization": "Bearer s3cret", "Host": "scraper.example"})
        assert right.status_code == 200 and right.headers["content-type"].startswith("text/plain")


def test_a_port_that_is_taken_is_said_with_what_to_do(monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        served, said = serving(str(port), monkeypatch)[0], f"--metrics {port}: cannot listen there .*: choose another"
        with pytest.raises(UsageError, match=said), served:
            pass


def answered(url):
    """Whether a scrape has its numbers."""
    try:
        return httpx.get(url, timeout=30).status_code == 200
    except httpx.TransportError:
        return False


def test_scrapers_that_read_nothing_or_break_off_hold_up_neither_others_nor_the_run_nor_its_end(tmp_path):
    recorder, said = Recorder(Journal(tmp_path / "journal.jsonl"), "cuda"), []
    cards = [structs.replace(CARD, name=f"cuda:{number}") for number in range(600)]
    for each in (BEGUN[0], ev.DevicesFound(devices=cards), *BEGUN[2:]):
        recorder.emit(each)
    for each in cards:  # an answer of half a megabyte, more than a socket takes
        recorder.emit(ev.DeviceSampled(device=each.name, memory=Memory(allocated=0, occupied=1), readings=SEEN))
    request, deaf = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n", []
    with exposed("0", lambda: recorder, said.append):
        url = said[0].split()[1]
        port = int(url.split(":")[2].split("/")[0])
        for _ in range(20):
            with socket.create_connection(("127.0.0.1", port)) as gone:
                gone.sendall(request)
                gone.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        until = time.monotonic() + 30
        while not answered(url):  # while those who broke off are there, one too many is refused, or cut off
            assert time.monotonic() < until
        for _ in range(3):
            deaf.append(each := socket.socket())
            each.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            each.connect(("127.0.0.1", port))
            each.sendall(40 * request)
        time.sleep(4)  # until nothing fits into their sockets any more
        assert httpx.get(url, timeout=10).status_code == 200
        began = time.monotonic()
        recorder.emit(ev.Warned(message="the run goes on"))
        assert time.monotonic() - began < 1
        began = time.monotonic()
    assert time.monotonic() - began < 2
    assert not any(each.name == "metrics" for each in threading.enumerate())
    for each in deaf:
        each.close()
    recorder.journal.close()


def test_a_run_that_is_scraped_without_end_makes_the_same_files_and_keeps_the_key_to_itself(tmp_path, tiny_a):
    corpus(tmp_path / "in", {"Docs": {"a.jsonl": sentences(300)}})
    words = ["run", tmp_path / "in", "--roster", tiny_a, "--out", tmp_path / "runs", "--export", "npy", "--no-ui"]
    interlock(*words, "--run-id", "plain")
    with (tmp_path / "stderr").open("w") as stderr:
        arguments = command(*words, "--run-id", "scraped", "--metrics", "0.0.0.0:0")
        process = subprocess.Popen(arguments, env=environment({KEY: "s3cret-canary"}), stderr=stderr)
    counts, states, headers = [], set(), {"Authorization": "Bearer s3cret-canary"}

    def scrape(url):
        while process.poll() is None:
            with suppress(httpx.TransportError):
                answer = httpx.get(url, headers=headers, timeout=5)
                counts.append(answer.status_code)
                states.update(re.findall(r'run_state="(\w+)"} 1.0', answer.text))

    while not (found := re.search(r"metrics: (\S+)", (tmp_path / "stderr").read_text())):
        assert process.poll() is None
        time.sleep(0.01)
    scrapers = [threading.Thread(target=scrape, args=(found[1].replace("0.0.0.0", "127.0.0.1"),)) for _ in range(3)]
    for each in scrapers:
        each.start()
    for each in scrapers:
        each.join(120)
    assert process.wait(5) == 0 and {*counts} <= {200, 503} and counts.count(200) > 10 and len(states) > 2
    plain, scraped = (tmp_path / "runs" / name for name in ("plain", "scraped"))
    files = [each for each in (tmp_path / "runs").rglob("*") if each.is_file()]
    assert not any(b"s3cret-canary" in each.read_bytes() for each in [*files, tmp_path / "stderr"])
    vectors = [each.relative_to(plain) for each in plain.glob("exports/**/*.npy")]
    assert vectors and all((plain / each).read_bytes() == (scraped / each).read_bytes() for each in vectors)
