"""A run's numbers for Prometheus are those of its summary, on this machine alone; a command hears of its end."""

import importlib.util
import json
import re
import shlex
import shutil
import socket
import struct
import subprocess
import sys
import time
import urllib.error
import urllib.request
import warnings
from contextlib import suppress
from pathlib import Path

import pytest

from interlock.console.front_ends import connections, exposing
from interlock.console.front_ends.exposing import exposed
from interlock.console.notifying import notify, recordable, without_secrets
from tests.builders import command, corpus, environment, interlock, sentences, summary_of

TEXTS = sentences(60)
SECRETS = {
    "HF_TOKEN": "hf_canary", "OPENAI_API_KEY": "canary", "AWS_ACCESS_KEY_ID": "canary", "QDRANT_API_KEY": "canary",
    "DB_PASSWORD": "canary", "GITHUB_TOKEN": "canary", "SSH_AUTH_SOCK": "canary", "CLIENT_SECRET": "canary",
}  # fmt: skip
LISTEN = """
import json, os, pathlib, re, sys, urllib.request
place = pathlib.Path(sys.argv[1])
seen = {"arguments": sys.argv[2:], "environment": dict(os.environ)}
url = re.search(r"http://\\S+", (place / "stderr").read_text())
if url:
    seen["answer"] = urllib.request.urlopen(url[0]).read().decode()
    port = int(re.search(r":(\\d+)/", url[0])[1])
    rows = [line.split()[1:4] for name in ("tcp", "tcp6") for line in open(f"/proc/net/{name}").readlines()[1:]]
    seen["addresses"] = [mine for mine, other, state in rows if state == "0A" and int(mine[-4:], 16) == port]
(place / "heard").write_text(json.dumps(seen))
sys.exit(3)
"""


@pytest.fixture(autouse=True)
def client():
    if importlib.util.find_spec("prometheus_client") is None:
        told = "metrics are not tested without prometheus-client (pip install 'interlock[metrics]')"
        warnings.warn(pytest.PytestWarning(told), stacklevel=1)
        pytest.skip(told)


@pytest.fixture(scope="module")
def heard(tmp_path_factory, tiny_a, tiny_b):
    """A real run whose numbers its own --notify command asks for at the end: what that heard; the run; its code."""
    place = tmp_path_factory.mktemp("metrics")
    chunks = corpus(place / "in", {"Docs": {"a.jsonl": TEXTS}})
    (place / "listen.py").write_text(LISTEN)
    told = shlex.join([sys.executable, str(place / "listen.py"), str(place), "$HOME; echo"])
    arguments = ["run", chunks, "--roster", f"{tiny_a},{tiny_b}", "--run-id", "r", "--out", place / "runs", "--no-ui"]
    with (place / "stderr").open("w") as stderr:
        done = subprocess.run(
            command(*arguments, "--metrics", "0", "--notify", told),
            env={**environment(), **SECRETS}, stdout=subprocess.PIPE, stderr=stderr, cwd=place, timeout=120,
        )  # fmt: skip
    return json.loads((place / "heard").read_text()), place / "runs" / "r", done


def parsed(text):
    """The samples of a text, as the client's own parser reads them."""
    from prometheus_client.parser import text_string_to_metric_families

    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def read_apart(text):
    """The same by the format's rules alone: `name{label="value",...} number`."""
    lines = [line for line in text.splitlines() if line and line[0] != "#"]
    found = [re.fullmatch(r'(\w+)(?:\{((?:\w+="[^"\\]*",?)*)\})? (\S+)', line) for line in lines]
    return {(each[1], tuple(sorted(re.findall(r'(\w+)="([^"]*)"', each[2] or "")))): float(each[3]) for each in found}


def test_numbers_over_http_are_those_of_the_summary(heard):
    told, summary = heard[0], summary_of(heard[1])
    (collection,) = summary["collections"]
    numbers = read_apart(told["answer"])
    assert numbers == parsed(told["answer"])
    for each in collection["passes"]:
        model = (("model", each["model"]),)
        assert numbers["interlock_rows_total", model] == each["rows"] == 60
        assert numbers["interlock_tokens_total", model] == each["tokens"]
        assert numbers["interlock_batch_seconds_count", model] == each["batches"]
        assert numbers["interlock_batch_seconds_sum", model] == pytest.approx(each["seconds"], abs=0.01)
        assert numbers["interlock_batch_seconds_bucket", (("le", "+Inf"), *model)] == each["batches"]
        leases = [lease for lease in collection["leases"] if lease["model"] == each["model"]]
        assert numbers["interlock_leases_total", model] == len(leases) == 1
        assert numbers["interlock_leases_held", model] == 0
    for device in summary["devices"]:
        name = (("device", device["name"]),)
        assert numbers["interlock_device_peak_occupied_bytes", name] == device["peak_occupied_bytes"]
        assert numbers["interlock_device_ceiling_bytes", name] == device["ceiling_bytes"]
        assert 0 < numbers["interlock_device_occupied_bytes", name] <= device["peak_occupied_bytes"]
    assert numbers["interlock_run_info", (("run", "r"), ("status", "completed"))] == 1


def test_numbers_are_served_on_the_loopback_alone(heard):
    assert [address.split(":")[0] for address in heard[0]["addresses"]] == ["0100007F"]


def test_the_command_gets_the_summary_and_no_secret_and_changes_no_exit_code(heard):
    told, run, done = heard
    assert done.returncode == 0
    assert told["arguments"] == ["$HOME; echo", str(run / "summary.json")]
    assert told["environment"].keys() & SECRETS.keys() == set()
    assert "canary" not in json.dumps(told["environment"])
    assert "PATH" in told["environment"]
    assert "failed with exit code 3" in (run.parent.parent / "stderr").read_text()


def test_a_file_has_the_numbers_at_the_end_and_steps_of_the_ladder_and_no_simulated_seconds(call, tmp_path, tiny_a):
    corpus(tmp_path / "in", {"Docs": {"a.jsonl": TEXTS}})
    devices = ("--devices", "sim:T4", "--faults", "oom:1", "--out", "runs", "--run-id", "r")
    code, _, _ = call("run", "in", "--roster", tiny_a, "--metrics", "numbers.prom", "--quiet", *devices)
    summary, numbers = summary_of(tmp_path / "runs" / "r"), parsed((tmp_path / "numbers.prom").read_text())
    steps = [each for collection in summary["collections"] for each in collection["mitigations"]]
    counted = {labels: value for (name, labels), value in numbers.items() if name == "interlock_mitigations_total"}
    assert (code, sum(counted.values()), len(steps) > 0) == (0, len(steps), True)
    assert {dict(labels)["rung"] for labels in counted} == {each["rung"] for each in steps}
    assert not [name for name, _ in numbers if name.startswith("interlock_batch_seconds")]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in", "numbers.prom", "runs"]
    again = ("run", "in", "--out", "runs", "--run-id", "again", "--roster", tiny_a, "--devices", "cpu", "--quiet")
    assert call(*again, "--metrics", "numbers.prom")[0] == 0


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (("--metrics", "numbers.txt"), "ends in .prom"),
        (("--metrics", "nowhere/numbers.prom"), "nowhere does not exist: create it"),
        (("--metrics", "other.prom"), "name another file"),
        (("--metrics", "both.prom", "--summary", "./both.prom"), "both write both.prom: name another file"),
        (("--metrics", "70000"), "ports end at 65535"),
        (("--notify", "no-such-program-anywhere x"), "no such program"),
        (("--notify", "'unfinished"), "quotes"),
    ],
)
def test_what_could_not_be_done_at_the_end_is_refused_at_once(call, tmp_path, tiny_a, flags, says):
    corpus(tmp_path / "in", {"Docs": {"a.jsonl": TEXTS}})
    (tmp_path / "other.prom").write_text("# HELP node_load1 of another collector\n")
    code, _, err = call("run", "in", "--roster", tiny_a, "--no-ui", *flags)
    assert (code, says in err) == (2, True)
    assert not (tmp_path / "runs").exists()


def test_without_the_client_metrics_say_how_to_get_it(call, tmp_path, tiny_a, monkeypatch):
    corpus(tmp_path / "in", {"Docs": {"a.jsonl": TEXTS}})
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    code, _, err = call("run", "in", "--roster", tiny_a, "--no-ui", "--metrics", "0")
    assert (code, "pip install 'interlock[metrics]'" in err) == (5, True)


@pytest.mark.parametrize(
    ("command", "kept"),
    [
        ("mail -s '{run} {state}' me@example.com", True),
        ("/usr/local/bin/tell {next} monkeys passed", True),
        ("curl https://hooks.example.com/T0/B0/x", False),
        ("tell --api-key x", False),
        ("tell --token=x", False),
        ("tell -H 'Authorization: Bearer x'", False),
    ],
)
def test_a_run_records_no_command_that_may_hold_a_secret(command, kept):
    assert recordable(command) == (command if kept else "")


def test_a_command_that_does_not_end_is_killed_with_what_it_started(tmp_path):
    (tmp_path / "summary.json").write_text("{}")
    said, script = [], f"sleep 1000 & echo $! > {tmp_path / 'child'}; wait"
    while not (tmp_path / "child").exists() or not (tmp_path / "child").read_text():  # a busy machine starts it late
        notify(["sh", "-c", script, "sh"], tmp_path / "summary.json", said.append, limit=1.0)
    assert "did not end within 1 s, and was killed" in said[-1]
    child, end, state = int((tmp_path / "child").read_text()), time.monotonic() + 30, "S"
    with suppress(FileNotFoundError, ProcessLookupError):  # gone, or dead and not yet waited for
        while state != "Z" and time.monotonic() < end:
            state = Path(f"/proc/{child}/stat").read_text().split()[2]
        assert state == "Z"


def test_a_session_that_is_refused_does_not_call_the_command_with_the_summary_of_the_one_before(tmp_path, tiny_a):
    corpus(tmp_path / "in", {"Docs": {"a.jsonl": TEXTS[:12]}})
    words = ["run", tmp_path / "in", "--out", tmp_path / "runs", "--run-id", "r", "--roster", tiny_a, "--quiet"]
    told = ["--notify", f"touch {tmp_path / 'called'}"]
    interlock(*words)
    corpus(tmp_path / "in", {"Docs": {"b.jsonl": TEXTS[12:15]}})
    interlock(*words, "--resume", *told, check=2)
    assert not (tmp_path / "called").exists()
    (tmp_path / "in" / "Docs" / "b.jsonl").unlink()
    interlock(*words, "--resume", *told)
    assert (tmp_path / "called").exists()


def test_a_client_that_breaks_off_is_not_told_of(capfd):
    with exposed("0", lambda: None, (said := list[str]()).append):
        host, port = re.findall(r"//(.+):(\d+)/", said[0])[0]
        client = socket.create_connection((host, int(port)))
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        client.close()  # which resets the connection
        urllib.request.urlopen(f"http://{host}:{port}").close()
    assert capfd.readouterr().err == ""


def test_a_file_that_cannot_be_written_any_more_is_said_once(tmp_path, monkeypatch):
    monkeypatch.setattr(exposing, "EVERY", 0.01)
    said, place = [], tmp_path / "gone"
    place.mkdir()
    with exposed(str(place / "numbers.prom"), lambda: None, said.append):
        shutil.rmtree(place)
        time.sleep(0.2)
    assert said == [f"metrics: cannot write {place / 'numbers.prom'}: No such file or directory"]


def test_secrets_are_told_by_their_names():
    kept = {
        "PATH": "x",
        "PWD": "x",
        "OLDPWD": "x",
        "HOME": "x",
        "MONKEY": "x",
        "KEYBOARD": "x",
        "COMPASS": "x",
        "INTERLOCK_OUT": "x",
    }
    assert (
        without_secrets({**SECRETS, **kept, "my_api_key": "x", "PGPASSWORD": "x", "MYSQL_PWD": "x", "SENTRY_DSN": "x"})
        == kept
    )


def test_clients_that_say_nothing_take_few_descriptors_for_a_short_time_and_other_names_are_refused(monkeypatch):
    monkeypatch.setattr(connections, "SLOW", 0.5)
    said = []
    with exposed("0", lambda: None, said.append):
        url = said[0].split()[-1]
        port = int(url.split(":")[-1].split("/")[0])
        before = len(list(Path("/proc/self/fd").iterdir()))
        idle = [socket.create_connection(("127.0.0.1", port)) for _ in range(40)]
        time.sleep(0.3)
        assert len(list(Path("/proc/self/fd").iterdir())) - before - len(idle) <= exposing.MOST_CLIENTS
        time.sleep(0.8)
        for each in idle:
            each.settimeout(2)
            with suppress(ConnectionResetError):
                assert each.recv(1) == b""
            each.close()
        assert urllib.request.urlopen(url, timeout=5).status == 200
        foreign = urllib.request.Request(url, headers={"Host": "evil.example"})
        with pytest.raises(urllib.error.HTTPError, match="403"):
            urllib.request.urlopen(foreign, timeout=5)
