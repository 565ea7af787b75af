"""A Ray that somebody started with `ray start`: what finds it at which address, and with which token."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from interlock.engine.compute.cluster.ray_head import connect
from interlock.engine.errors import UnavailableError
from tests.builders import environment
from tests.test_cluster_ray import ECHO, HELLO

ray = pytest.importorskip("ray", reason="Ray is not installed (pip install 'interlock[cluster]'): no cluster is tested")
TOKEN = "1f" * 32


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """Of a Ray with a token, at this machine's address on its network as `ray start --head` takes it."""
    with socket.socket() as free, socket.socket() as other:
        free.bind(("127.0.0.1", 0))
        other.bind(("127.0.0.1", 0))
        port, client = free.getsockname()[1], other.getsockname()[1]
    home = f"/tmp/il-t{os.getpid()}"
    words = ["start", "--head", "--block", f"--port={port}", f"--ray-client-server-port={client}", "--num-cpus=1"]
    words += ["--num-gpus=2", f"--temp-dir={home}", f"--object-store-memory={192 << 20}", "--include-dashboard=false"]
    own = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": TOKEN}
    log = tmp_path_factory.mktemp("ray") / "log"
    with log.open("wb") as out:
        started = psutil.Popen(
            [str(Path(sys.executable).with_name("ray")), *words], env=environment(own), stdout=out, stderr=out
        )
    until = time.monotonic() + 90
    while "Ray runtime started" not in log.read_text():
        assert started.poll() is None and time.monotonic() < until, log.read_text()
        time.sleep(0.2)
    yield port
    for each in [started, *started.children(recursive=True)]:
        each.kill()
    started.wait()
    subprocess.run(["rm", "-rf", home], check=False)


def test_this_machines_ray_is_found_at_127_0_0_1_with_the_token_that_is_there(port, monkeypatch):
    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    monkeypatch.setenv("RAY_AUTH_TOKEN", TOKEN)
    found = connect(f"127.0.0.1:{port}", "cpu", node=ECHO)
    (machine,) = found.machines()
    assert found.start(machine, HELLO).welcome().result(60).versions == {"node": "node-1"}
    found.close()


@pytest.mark.nightly
def test_a_ray_that_asks_for_no_token_is_given_none(monkeypatch):
    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    monkeypatch.setenv("RAY_AUTH_TOKEN", TOKEN)
    first = connect("local:1", "cpu", node=ECHO)
    beside = connect(first.address, "cpu", node=ECHO)
    assert beside.start(beside.machines()[0], HELLO).welcome().result(60).versions == {"node": "node-1"}
    beside.close()
    first.close()


@pytest.mark.parametrize("setting", [{"RAY_AUTH_MODE": "disabled"}, {"RAY_AUTH_TOKEN": "2e" * 32}])
def test_another_token_is_named_at_once(port, monkeypatch, setting):
    for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    for name, value in setting.items():
        monkeypatch.setenv(name, value)
    began = time.monotonic()
    with pytest.raises(UnavailableError, match=r"asks for another token: copy ~/\.ray/auth_token"):
        connect(f"127.0.0.1:{port}", "cpu")
    assert time.monotonic() - began < 15


DEMAND = """
import sys
from ray.autoscaler.v2.sdk import get_cluster_status
print(get_cluster_status(sys.argv[1]).resource_demands.placement_group_demand)
"""


def test_who_holds_the_gpus_that_a_node_waits_for_is_told_and_an_autoscaler_sees_what_is_wanted(port, monkeypatch):
    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    monkeypatch.setenv("RAY_AUTH_TOKEN", TOKEN)
    one, other = (connect(f"127.0.0.1:{port}", "cuda", node=ECHO) for _ in range(2))
    (machine,) = one.machines()
    held = one.start(machine, HELLO)
    held.welcome().result(60)
    assert (other.machines(), other.about(), one.held(machine)) == ([machine], "1 machine, 1 with GPUs (2)", "")
    waiting = other.start(machine, HELLO).welcome()
    said = other.held(machine)
    assert said.startswith(f"others hold 2 of 2 GPU of {machine.label} (there is InterlockNode of job ")
    assert said.endswith("; a node waits for 2 GPU")
    other.want(3)
    env = environment({"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": TOKEN})
    ask = [sys.executable, "-c", DEMAND, f"127.0.0.1:{port}"]
    until = time.monotonic() + 30
    while "STRICT_SPREAD" not in (told := subprocess.run(ask, env=env, capture_output=True, text=True)).stdout:
        assert time.monotonic() < until, (told.stdout, told.stderr[-400:])
    print(told.stdout)
    assert not waiting.done()
    other.want(0)
    held.close()
    assert waiting.result(60).versions == {"node": "node-1"}
    for each in (one, other):
        each.close()


def test_nodes_that_take_a_part_of_a_machine_share_it_and_the_one_too_many_says_what_it_waits_for(port, monkeypatch):
    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    monkeypatch.setenv("RAY_AUTH_TOKEN", TOKEN)
    runs = [connect(f"127.0.0.1:{port}", "cuda", {"GPU": 1.0}, node=ECHO) for _ in range(3)]
    (machine,) = runs[0].machines()
    assert [each.machines() for each in runs[1:]] == [[machine]] * 2
    links = [each.start(machine, HELLO) for each in runs[:2]]
    for link in links:
        assert link.welcome().result(60).versions == {"node": "node-1"}
    waiting = runs[2].start(machine, HELLO).welcome()
    said = runs[2].held(machine)
    assert said.startswith(f"others hold 2 of 2 GPU of {machine.label} (there is ")
    assert said.endswith("; a node waits for 1 GPU") and not waiting.done()
    monkeypatch.setattr(runs[2], "_has", {})  # as where the machine has gone meanwhile
    assert runs[2].held(machine) == ""
    links[0].close()
    assert waiting.result(60).versions == {"node": "node-1"}
    more = connect(f"127.0.0.1:{port}", "cuda", {"GPU": 4.0, "memory": 2.0**30}, node=ECHO)
    assert more.machines() == [] and more.about() == "1 machine, 1 with GPUs (2), 0 with 4 GPU, 1.0 GiB memory"
    for each in (*runs, more):
        each.close()
