"""Ray between a head and its nodes: real raylets and actors on this machine, really killed."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import psutil
import pytest

import interlock
from interlock.engine.compute.cluster.head import ClusterExecutor
from interlock.engine.compute.cluster.members import ClusterMembers
from interlock.engine.compute.cluster.messages import ClusterEnded, GridPlan, Hello, ModelFiles, Orders
from interlock.engine.compute.cluster.node import ClusterNode, pack, versions
from interlock.engine.compute.cluster.ray_cluster import _actor
from interlock.engine.compute.cluster.ray_head import AWAY, connect, usable
from interlock.engine.compute.context import REAL, Deadline
from interlock.engine.compute.controls import Controls
from interlock.engine.compute.schedule import Schedule
from interlock.engine.compute.source import BatchSource
from interlock.engine.errors import UnavailableError, UsageError
from interlock.engine.gpu.cpu import CpuDevice
from interlock.engine.models.assets import Policy, resolve
from interlock.engine.models.registry import ModelSpec
from interlock.engine.record import events as ev
from tests.builders import ROOT, corpus, environment, events_of, sentences, summary_of, tiny_model
from tests.harness import Told, grid_of
from tests.processes import checksums, exports, kill_after
from tests.ray_nodes import texts
from tests.threads import Threads

ray = pytest.importorskip("ray", reason="Ray is not installed (pip install 'interlock[cluster]'): no cluster is tested")
ECHO = "tests.ray_nodes:EchoNode"
HELLO = Hello(run="r", node="node-1", devices="cpu", faults=(), ceiling=0, host_ceiling=0, warm=0, threads=0)


@pytest.fixture(scope="module")
def cluster():
    found = connect("local:3", node=ECHO)
    _, table = found._seen
    home = Path(*Path(table[0]["RayletSocketName"]).parts[:3])
    yield found
    found.close()
    (session,) = home.glob("ray/session_2*")
    assert [each.name for each in session.iterdir() if each.is_dir()] == [
        "logs"
    ]  # a node was lost, and who looks for why finds them
    shutil.rmtree(home)


@pytest.fixture(scope="module")
def link(cluster, tmp_path_factory):
    """A node for whom nothing bad happens."""
    found = cluster.start(cluster.machines()[1], replace(HELLO, run=str(tmp_path_factory.mktemp("nodes"))))
    assert found.welcome().result(60).versions == {"node": "node-1"}
    return found


@pytest.fixture
def started(cluster, tmp_path):
    """Starts a node on one of the machines, and says its process."""
    links = []

    def start(machine=1, node="node-1"):
        link = cluster.start(cluster.machines()[machine], replace(HELLO, run=str(tmp_path), node=node))
        links.append(link)
        return link, psutil.Process(int(link.welcome().result(60).environment["pid"]))

    yield start
    for link in links:
        link.close()


def failed(call: "Future[object]", seconds=30) -> str:
    error = call.exception(seconds)
    assert isinstance(error, UnavailableError)
    return str(error)


def gone(process: psutil.Process, seconds: float) -> bool:
    """Whether a process has ended in that time."""
    end = time.monotonic() + seconds
    with suppress(psutil.NoSuchProcess):  # it may end between two looks at it
        while process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
            if time.monotonic() > end:
                return False
            time.sleep(0.05)
    return True


def test_every_machine_has_an_id_that_stays_and_the_heads_own_comes_first(cluster):
    machines = cluster.machines()
    assert len({each.id for each in machines}) == 3
    assert machines == cluster.machines()
    assert {each.label for each in machines} == {"this machine"}
    assert machines[0].id == cluster._here


def test_everything_listens_on_the_loopback_only(link):
    ours = psutil.Process()
    listening = {
        each.laddr.ip.removeprefix("::ffff:")
        for process in (ours, *ours.children(recursive=True))
        for each in process.net_connections("tcp")
        if each.status == psutil.CONN_LISTEN
    }
    assert listening == {"127.0.0.1"}


def test_arrays_come_whole_and_are_not_to_be_written(link):
    report = link.exchange(Orders(handed=[texts(100_000)])).result(30)
    assert report.asks == {0: [100_000, sum(range(100_000)), 0]}
    assert psutil.Process(int(report.trouble)).name().startswith("ray::")


def test_the_plan_reaches_a_node_as_it_was_shared(cluster, link):
    plan = cluster.shared(GridPlan(passes=[], roster=2, granted=0, window=0, controls={}, pickles=()))
    assert link.begin(plan).result(30).lacking == []


def test_a_model_arrives_with_every_byte_of_its_files_however_many_parts_they_are(cluster, link, monkeypatch):
    monkeypatch.setattr("interlock.engine.compute.cluster.ray_head.PART", 1000)
    files = {"a/weights": np.arange(2500, dtype=np.uint8), "config": np.ones(7, np.uint8), "empty": np.zeros(0, "u1")}
    shared = cluster.shared(ModelFiles("m", {name: [data] for name, data in files.items()}))
    assert [len(parts) for _, parts in shared.parts] == [3, 1, 0]
    assert link.take(shared).result(30).lacking == ["a/weights", "config", "empty"]
    assert {name: (Path(link._hello.run) / "node-1" / name).read_bytes() for name in files} == {
        name: data.tobytes() for name, data in files.items()
    }


def test_what_a_node_raises_is_said_with_where_its_log_is(cluster, link):
    said = failed(link.take(cluster.shared(ModelFiles("m", {"../x": [np.zeros(1, np.uint8)]}))))
    assert "model m: '../x' leads out of its directory" in said
    log = Path(said.partition("what it wrote last is in ")[2].removesuffix(" on this machine"))
    assert log.is_file()


def test_a_nudge_ends_the_wait_of_an_exchange(link):
    waiting = link.exchange(Orders(wait=60))
    time.sleep(0.3)
    assert not waiting.done()
    link.nudge()
    assert waiting.result(5).news == ()


def test_a_node_that_is_killed_fails_what_it_was_asked_at_once_and_can_be_started_anew(started):
    link, process = started()
    waiting = link.exchange(Orders(wait=60))
    time.sleep(0.3)
    process.kill()
    assert "its worker process has died" in failed(waiting, 5)
    assert "died" in failed(link.exchange(Orders()), 5)
    again, other = started()
    assert other.pid != process.pid
    assert again.exchange(Orders(wait=0)).result(10).trouble == str(other.pid)


def test_a_closed_node_ends_even_while_it_waits(started):
    link, process = started()
    waiting = link.exchange(Orders(wait=60))
    time.sleep(0.3)
    link.close()
    assert gone(process, 5)
    failed(waiting, 5)


def test_versions_are_compared_before_anything_is_read(monkeypatch, cluster):
    monkeypatch.setattr("interlock.engine.compute.cluster.ray_head.versions", lambda: {"interlock": "99", "torch": "1"})
    link = cluster.start(cluster.machines()[0], HELLO)
    welcome = link.welcome().result(60)
    assert set(welcome.versions) == {"interlock", "torch"}
    assert welcome.versions["interlock"] != "99"
    assert not welcome.environment
    link.close()


def test_a_machine_without_interlock_says_so_and_needs_nothing_of_it():
    code = (
        "import sys, pickle, os; sys.modules['interlock'] = None\n"
        "from importlib import metadata\n"
        "def version(name, there=metadata.version):\n"
        "    if name == 'interlock': raise metadata.PackageNotFoundError(name)\n"
        "    return there(name)\n"
        "metadata.version = version\n"
        "node = pickle.load(sys.stdin.buffer)('interlock.engine.compute.cluster.node:ClusterNode')\n"
        "print(node.welcome({'interlock': '0.1.0', 'numpy': '0'}, b'')[1])"
    )
    sent = ray.cloudpickle.dumps(_actor())
    done = subprocess.run([sys.executable, "-c", code], input=sent, capture_output=True, check=True)
    assert done.stdout.decode().strip() == str({"versions": {"numpy": np.__version__}})


def test_a_node_that_cannot_be_made_says_why(monkeypatch, cluster):
    monkeypatch.setattr(cluster, "node", "tests.ray_nodes:BrokenNode")
    link = cluster.start(cluster.machines()[0], HELLO)
    assert link.welcome().result(60).trouble == "RuntimeError: its driver is too old"
    link.close()


def test_a_cluster_is_joined_by_its_address_and_stays_when_it_is_let_go(cluster):
    beside = connect(cluster.address, node=ECHO)
    assert beside.machines() == cluster.machines()
    link = beside.start(beside.machines()[0], HELLO)
    process = psutil.Process(int(link.welcome().result(60).environment["pid"]))
    beside.close()
    assert gone(process, 5)
    assert len(cluster.machines()) == 3


def test_a_proxy_and_gpus_of_a_trial_are_refused(monkeypatch):
    with pytest.raises(UsageError, match="takes no ray:// address"):
        connect("ray://10.0.0.1:10001")
    monkeypatch.setenv("RAY_ADDRESS", "ray://10.0.0.1:10001")
    with pytest.raises(UsageError, match="takes no ray:// address"):
        connect("auto")
    with pytest.raises(UsageError, match="without GPUs: use --devices cpu"):
        connect("local:2", devices="cuda:0")


@pytest.mark.parametrize("address", ["127.0.0.1:1", "auto"])
def test_a_cluster_that_does_not_answer_is_given_up_at_once(monkeypatch, address):
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    began = time.monotonic()
    with pytest.raises(UnavailableError, match=r"no Ray cluster .*: start one \(ray start --head\).*refused"):
        connect(address)
    assert time.monotonic() - began < 20


def test_without_ray_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UnavailableError, match=r"--cluster needs Ray: pip install 'interlock\[cluster\]'"):
        connect("auto")


@pytest.mark.parametrize(
    ("devices", "resources", "found"),
    [
        ("auto", {"a": {"CPU": 8}, "b": {"CPU": 8, "GPU": 2}, "c": {"GPU": 1}}, "bc"),
        ("cpu", {"a": {"CPU": 8}, "b": {"CPU": 8, "GPU": 2}, "c": {}}, "ba"),
        ("sim:2xT4", {"a": {"CPU": 8}, "b": {"GPU": 2}}, "a"),
        ("auto", {"b": {}, "a": {"CPU": 1}, "z": {"GPU": 1}}, "a"),
        ("auto", {"a": {}, "b": {}}, "ba"),
    ],
)
def test_machines_with_gpus_count_before_others_and_those_given_nothing_last(devices, resources, found):
    table = [
        {"NodeID": name, "Alive": name != "z", "NodeManagerAddress": "10.0.0.1", "Resources": given}
        for name, given in resources.items()
    ]
    machines = usable(table, "b", {}, plain=devices != "auto")
    assert "".join(each["NodeID"] for each in machines) == found


@pytest.mark.parametrize(
    ("takes", "found"),
    [
        ({}, "abc"),
        ({"GPU": 2.0}, "bc"),
        ({"GPU": 2.0, "accelerator_type:T4": 0.001}, "c"),
        ({"CPU": 16.0}, "b"),
        ({"memory": 2.0**40}, ""),
    ],
)
def test_machines_without_what_a_node_takes_are_no_nodes(takes, found):
    has = {
        "a": {"GPU": 1.0, "CPU": 8.0, "memory": 2.0**35},
        "b": {"GPU": 4.0, "CPU": 16.0, "memory": 2.0**36, "accelerator_type:A100": 1.0},
        "c": {"GPU": 2.0, "CPU": 8.0, "memory": 2.0**36, "accelerator_type:T4": 1.0},
    }
    table = [{"NodeID": name, "Alive": True, "NodeManagerAddress": name, "Resources": has[name]} for name in has]
    assert "".join(each["NodeID"] for each in usable(table, "a", takes, plain=False)) == found


def test_a_ray_that_answers_no_more_is_given_up_and_not_waited_for(monkeypatch, cluster):
    monkeypatch.setattr(cluster, "_seen", (time.monotonic() - AWAY - 1, []))
    monkeypatch.setattr(cluster, "_local", False)
    with pytest.raises(ClusterEnded, match=r"start it again on its first machine \(ray start --head\), then --resume"):
        cluster.machines()


class Head:
    """A head with one real model of this machine on the CPU, and 200 texts of 100 tokens in 10 batches or more."""

    def __init__(self, model):
        self.snapshot = resolve(ModelSpec("m", (str(model),)), Policy(offline=True), lambda _: None)
        (card,) = REAL.cards([ModelSpec("m", (str(model),))], Policy(offline=True), [CpuDevice()], lambda _: None)
        self.grid = grid_of(
            [replace(card, batch_tokens=512)], [100] * 200, lambda row, length: np.arange(length) % 60 + row % 7
        )
        self.heard = Told()
        self.heard.begin(self.grid, [], 1 << 30, Schedule.EXCLUSIVE, "run")

    def run(self, cluster, source):
        controls = Controls()
        controls.begin(Schedule.EXCLUSIVE, 0, cpu_fallback=True)
        hello = Hello(run="r", node="", devices="cpu", faults=(), ceiling=1 << 30, host_ceiling=0, warm=0, threads=1)
        crew = ClusterMembers(cluster, hello, versions())
        try:
            crew.gather()
            plan = GridPlan.of(self.grid, [ModelSpec("m", (str(source),))], Policy(offline=True), controls)
            crew.begin(plan, lambda key: pack(key, self.snapshot))
            source = BatchSource(self.grid, [[]], [1.0], self.heard)
            ClusterExecutor(source, crew, controls, self.heard, lambda: None, Deadline()).run()
        finally:
            crew.close()
        return self.grid[0].files


def test_real_nodes_are_sent_the_model_and_compute_what_one_process_would_though_one_is_killed(cluster, tmp_path):
    model = tiny_model(tmp_path / "m")
    alone, head = Head(model), Head(model)
    expected = alone.run(Threads(lambda _: ClusterNode(), ["a"]), model).array
    killed = []

    def told(event):
        if isinstance(event, ev.BatchCommitted) and not killed:  # the first: most are left, whoever is slow
            (link,) = [each for each in beside._links if each._hello.node == event.device.partition("/")[0]]
            killed.append(int(Path(link._log).stem.rpartition("-")[2]))
            os.kill(killed[0], signal.SIGKILL)

    head.heard.told = told
    beside = connect(cluster.address, devices="cpu")
    found = head.run(beside, tmp_path / "lacking")
    assert killed
    assert len(head.heard.of(ev.NodeLost)) == 1
    assert {*found.puts.values()} == {1}
    np.testing.assert_array_equal(found.array, expected)


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    place = tmp_path_factory.mktemp("models")
    return [tiny_model(place / "one", seed=1), tiny_model(place / "two", seed=2, pooling="cls")]


@pytest.fixture(scope="module")
def chunks(tmp_path_factory):
    return corpus(tmp_path_factory.mktemp("chunks"), {"Docs": {"a_chunks.json": sentences(400, words=40)}})


@pytest.fixture(scope="module")
def settings(models, tmp_path_factory):
    return interlock.Settings(
        roster=models,
        out=tmp_path_factory.mktemp("runs"),
        devices="cpu",
        threads=1,
        export=["npy"],
        offline=True,
        resume=False,
    )


@pytest.fixture(scope="module")
def plain(chunks, settings):
    """A run in this process alone."""
    return interlock.embed(chunks, replace(settings, run_id="plain"), progress="none")


def on_nodes(cluster, chunks, settings):
    """A run on the machines that are there; its directory."""
    return interlock.embed(chunks, replace(settings, cluster=cluster.address), progress="none").path


def test_a_run_on_three_nodes_delivers_the_bytes_of_one_in_one_process(cluster, chunks, settings, plain):
    run = on_nodes(cluster, chunks, replace(settings, run_id="nodes"))
    assert exports(run) == exports(plain.path)
    assert {event.node for event in events_of(run, ev.NodeJoined)} == {"node-1", "node-2", "node-3"}
    told = {event.device for event in events_of(run, ev.BatchCommitted)}
    assert told <= {"node-1/cpu", "node-2/cpu", "node-3/cpu"}
    nodes = summary_of(run)["nodes"]
    assert sum(each["rows"] for each in nodes) == 800
    assert [each["sent_bytes"] for each in nodes] == [0, 0, 0]


def test_a_run_whose_head_was_killed_goes_on_with_another_number_of_nodes(cluster, chunks, settings, plain, models):
    run = Path(settings.out) / "killed"
    flags = ("--out", settings.out, "--run-id", "killed", "--devices", "cpu", "--threads", 1, "--export", "npy")
    roster = ",".join(map(str, models))
    started = "run", chunks, "--no-ui", "--roster", roster, "--offline", *flags, "--cluster", "local:1"
    assert kill_after(run, 2, *started)
    before = checksums(run)
    on_nodes(cluster, chunks, replace(settings, run_id="killed", resume=True))
    assert exports(run) == exports(plain.path)
    assert before.items() <= checksums(run).items()
    assert len({event.lease for event in events_of(run, ev.LeaseGranted)}) == len(events_of(run, ev.LeaseGranted))


# What follows kills what the others use, in this order.


def test_a_lost_raylet_fails_its_node_takes_its_process_with_it_and_is_gone_from_the_list(cluster, started, capfd):
    link, process = started(2, "node-3")
    waiting, lost = link.exchange(Orders(wait=60)), cluster.machines()[2]
    time.sleep(0.3)
    began = time.monotonic()
    process.parent().kill()
    failed(waiting, 10)
    assert gone(process, 5)
    while lost in cluster.machines():
        assert time.monotonic() - began < 20
        time.sleep(0.05)
    said = failed(cluster.start(lost, HELLO).welcome(), 30)
    assert "doesn't exist any more" in said or "Unschedulable" in said or "died" in said
    assert capfd.readouterr() == ("", "")


def test_a_raylet_that_ends_in_order_ends_neither_the_head_nor_what_it_waits_for(capfd):
    """Ray ends the process that has connected to it with that."""
    cluster = connect("local:1", node=ECHO)
    link = cluster.start(cluster.machines()[0], HELLO)
    link.welcome().result(60)
    waiting = link.exchange(Orders(wait=60))
    children = psutil.Process(cluster._driver.pid).children(recursive=True)
    (raylet,) = [each for each in children if each.name() == "raylet"]
    raylet.terminate()
    failed(waiting, 20)
    for _ in range(200):
        try:
            cluster.machines()
        except ClusterEnded as ended:
            assert "Ray has ended on this machine" in str(ended) and "--resume" in str(ended)
            break
        time.sleep(0.1)
    else:
        pytest.fail("it never says so")
    failed(link.exchange(Orders()))
    cluster.close()
    assert capfd.readouterr() == ("", "")


CODE = """
import json, os, signal, sys, time
before = signal.getsignal(signal.SIGTERM)
from interlock.engine.compute.cluster.ray_head import connect
cluster = connect("local:1", node="tests.ray_nodes:EchoNode")
assert signal.getsignal(signal.SIGTERM) is before and "ray" not in sys.modules
import psutil
print(json.dumps([[each.pid for each in psutil.Process().children(recursive=True)],
                  cluster._seen[1][0]["RayletSocketName"]]), flush=True)
if sys.argv[1] == "raise":
    raise SystemExit("an error")
time.sleep(60)
"""


def test_nodes_end_with_the_process_that_started_them_however_it_ends():
    children = {
        way: subprocess.Popen(
            [sys.executable, "-c", CODE, way], env=environment(), cwd=ROOT, stdout=subprocess.PIPE, text=True
        )
        for way in ("killed", "raise")
    }
    told = {way: json.loads(child.stdout.readline()) for way, child in children.items()}
    processes = [psutil.Process(pid) for pids, _ in told.values() for pid in pids if psutil.pid_exists(pid)]
    assert len(processes) >= 6  # of one alone: the driver, the keeper, GCS, the raylet, its agents
    children["killed"].kill()
    for child in children.values():
        child.communicate(timeout=30)
    for each in processes:
        assert gone(each, 20), each
    assert not any(Path(*Path(home).parts[:3]).exists() for _, home in told.values())


def test_what_lost_its_raylet_and_does_not_end_is_ended_with_the_nodes():
    program = """
import os, subprocess
from interlock.engine.compute.cluster.ray_session import adopt_orphans, end_orphans
adopt_orphans()
raylet = ["sh", "-c", "sleep 600 & echo $!; exec sleep 600 >&-"]  # an agent is beside it, and a node began it
node = subprocess.Popen(["sh", "-c", '"$@" & echo $!', "-", *raylet], stdout=subprocess.PIPE, text=True)
children = [int(node.stdout.readline()) for _ in range(2)]
node.wait()
end_orphans()
print(*children)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment(), capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    children = [int(each) for each in done.stdout.split()]
    assert len(children) == 2 and not any(psutil.pid_exists(each) for each in children)


def test_what_is_asked_of_a_ray_that_has_ended_begins_no_other(tmp_path):
    program = """
from contextlib import suppress
from interlock.engine.compute.cluster.ray_session import open_ray
with suppress(Exception):
    open_ray("127.0.0.1:1")
import ray
with suppress(Exception):
    ray.put(0)
print(ray.is_initialized())
"""
    env = environment({"RAY_TMPDIR": str(tmp_path)})
    done = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True, timeout=60)
    assert done.stdout.split() == ["False"], done.stderr
    assert [*tmp_path.iterdir()] == []
