"""Ray between a head and its nodes: real raylets and actors on this machine, really killed."""

import json
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path

import numpy as np
import psutil
import pytest

from interlock.engine.cluster.messages import GridPlan, Hello, ModelFiles, Orders, Phase
from interlock.engine.cluster.ray_cluster import RayCluster, _actor, connect
from interlock.engine.errors import UnavailableError, UsageError
from tests.builders import ROOT, environment
from tests.ray_nodes import texts

ray = pytest.importorskip("ray", reason="Ray is not installed (pip install 'interlock[cluster]'): no cluster is tested")
ECHO = "tests.ray_nodes:EchoNode"
HELLO = Hello(run="r", node="node-1", devices="cpu", faults=(), ceiling=0, host_ceiling=0, warm=0, threads=0)
NOW = Phase()


@pytest.fixture(scope="module")
def cluster():
    found = connect("local:3", node=ECHO)
    yield found
    found.close()
    assert not ray.is_initialized()


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
    assert machines[0].id == ray.get_runtime_context().get_node_id()


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
    report = link.exchange(Orders(NOW, texts=[texts(100_000)])).result(30)
    assert report.asks == {0: [100_000, sum(range(100_000)), 0]}
    assert psutil.Process(report.ended).name().startswith("ray::")


def test_the_plan_reaches_a_node_as_it_was_shared(cluster, link):
    plan = cluster.shared(GridPlan(passes=[], tokens={}, roster=2, granted=0, pickles=()))
    assert link.begin(plan).result(30).lacking == []


def test_a_model_arrives_with_every_byte_of_its_files_however_many_parts_they_are(cluster, link, monkeypatch):
    monkeypatch.setattr("interlock.engine.cluster.ray_cluster.PART", 1000)
    files = {"a/weights": np.arange(2500, dtype=np.uint8), "config": np.ones(7, np.uint8), "empty": np.zeros(0, "u1")}
    shared = cluster.shared(ModelFiles("m", files))
    assert [len(parts) for parts in shared.parts.values()] == [3, 1, 0]
    assert link.take(shared).result(30).lacking == ["a/weights", "config", "empty"]
    assert {name: (Path(link._hello.run) / "node-1" / name).read_bytes() for name in files} == {
        name: data.tobytes() for name, data in files.items()
    }


def test_what_a_node_raises_is_said_with_where_its_log_is(cluster, link):
    said = failed(link.take(cluster.shared(ModelFiles("m", {"../x": np.zeros(1, np.uint8)}))))
    assert "model m: '../x' leads out of its directory" in said
    log = Path(said.partition("what it wrote last is in ")[2].removesuffix(" on this machine"))
    assert log.is_file()


def test_a_nudge_ends_the_wait_of_an_exchange(link):
    waiting = link.exchange(Orders(NOW, wait=60))
    time.sleep(0.3)
    assert not waiting.done()
    link.nudge()
    assert waiting.result(5).news == ()


def test_a_node_that_is_killed_fails_what_it_was_asked_at_once_and_can_be_started_anew(started):
    link, process = started()
    waiting = link.exchange(Orders(NOW, wait=60))
    time.sleep(0.3)
    process.kill()
    assert "its worker process has died" in failed(waiting, 5)
    assert "died" in failed(link.exchange(Orders(NOW)), 5)
    again, other = started()
    assert other.pid != process.pid
    assert again.exchange(Orders(NOW, wait=0)).result(10).ended == other.pid


def test_a_closed_node_ends_even_while_it_waits(started):
    link, process = started()
    waiting = link.exchange(Orders(NOW, wait=60))
    time.sleep(0.3)
    link.close()
    assert gone(process, 5)
    failed(waiting, 5)


def test_versions_are_compared_before_anything_is_read(monkeypatch, cluster):
    monkeypatch.setattr("interlock.engine.cluster.ray_cluster._versions", lambda: {"interlock": "99", "torch": "1"})
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
        "node = pickle.load(sys.stdin.buffer)('interlock.engine.cluster.node:ClusterNode')\n"
        "print(node.welcome({'interlock': '0.1.0', 'numpy': '0'}, b'')[1])"
    )
    sent = ray.cloudpickle.dumps(_actor())
    done = subprocess.run([sys.executable, "-c", code], input=sent, capture_output=True, check=True)
    assert done.stdout.decode().strip() == str({"versions": {"numpy": np.__version__}})


def test_a_node_that_cannot_be_made_says_why(monkeypatch, cluster):
    monkeypatch.setattr(cluster, "_node", "tests.ray_nodes:BrokenNode")
    link = cluster.start(cluster.machines()[0], HELLO)
    assert link.welcome().result(60).trouble == "RuntimeError: its driver is too old"
    link.close()


def test_a_ray_that_is_in_use_is_taken_as_it_is_and_stays(cluster):
    for address in ("auto", ray.get_runtime_context().gcs_address):
        beside = connect(address, node=ECHO)
        assert beside.machines() == cluster.machines()
        link = beside.start(beside.machines()[0], HELLO)
        process = psutil.Process(int(link.welcome().result(60).environment["pid"]))
        beside.close()
        assert gone(process, 5)
        assert ray.is_initialized()
    for other in ("local:2", "10.0.0.1:6379"):
        with pytest.raises(UsageError, match="already uses Ray at 127"):
            connect(other)


def test_a_proxy_and_gpus_of_a_trial_are_refused(monkeypatch):
    with pytest.raises(UsageError, match="takes no ray:// address"):
        connect("ray://10.0.0.1:10001")
    monkeypatch.setenv("RAY_ADDRESS", "ray://10.0.0.1:10001")
    with pytest.raises(UsageError, match="takes no ray:// address"):
        connect("auto")
    with pytest.raises(UsageError, match="without GPUs: use --devices cpu"):
        connect("local:2", devices="cuda:0")


def test_without_ray_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UnavailableError, match=r"--cluster needs Ray: pip install 'interlock\[cluster\]'"):
        connect("auto")


class Nodes:
    """Ray's table of machines, as `ray.nodes` gives it."""

    def __init__(self, **resources):
        self.resources = resources

    def remote(self, cls):
        return cls

    def get_runtime_context(self):
        return self

    def get_node_id(self):
        return "b"

    def nodes(self):
        return [
            {"NodeID": name, "Alive": name != "z", "NodeManagerAddress": "10.0.0.1", "NodeManagerHostname": "h"}
            | {"Resources": given}
            for name, given in self.resources.items()
        ]


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
    machines = RayCluster(Nodes(**resources), lambda _: None, devices, ECHO).machines()
    assert "".join(each.id for each in machines) == found
    assert {each.label for each in machines} == {"h (10.0.0.1)"}


# What follows kills what the others use, in this order.


def test_a_lost_raylet_fails_its_node_takes_its_process_with_it_and_is_gone_from_the_list(cluster, started, capfd):
    link, process = started(2, "node-3")
    waiting, lost = link.exchange(Orders(NOW, wait=60)), cluster.machines()[2]
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


CODE = """
import json, os, signal, sys, time
before = signal.getsignal(signal.SIGTERM)
from interlock.engine.cluster.ray_cluster import connect
cluster = connect("local:1", node="tests.ray_nodes:EchoNode")
assert signal.getsignal(signal.SIGTERM) is before
import psutil
keeper = [each for each in psutil.Process().children() if "local_ray" in " ".join(each.cmdline())]
pids = [each.pid for each in (*keeper, *keeper[0].children(recursive=True))]
import ray
print(json.dumps([pids, ray.nodes()[0]["RayletSocketName"]]), flush=True)
if sys.argv[1] == "raise":
    raise SystemExit("an error")
time.sleep(60)
"""


@pytest.mark.parametrize("way", [signal.SIGKILL, "raise"])
def test_nodes_end_with_the_process_that_started_them_however_it_ends(way):
    child = subprocess.Popen(
        [sys.executable, "-c", CODE, str(way)], env=environment(), cwd=ROOT, stdout=subprocess.PIPE, text=True,
        stderr=subprocess.PIPE,
    )  # fmt: skip
    pids, home = json.loads(child.stdout.readline())
    processes = [psutil.Process(pid) for pid in pids if psutil.pid_exists(pid)]
    assert len(processes) >= 5  # the keeper, GCS, the raylet, its agents
    home = Path(*Path(home).parts[:3])
    assert home.is_dir()
    if way != "raise":
        os.kill(child.pid, way)
    child.communicate(timeout=30)
    for each in processes:
        assert gone(each, 20), each
    assert not home.exists()
