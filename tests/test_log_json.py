"""With --log-json every line of stderr is one JSON object, whoever writes it and however the run ends."""

import json
import os
import signal
import subprocess
import time
from datetime import datetime, timedelta

import msgspec
import pytest

from interlock.console.text.event_text import line_of
from tests.builders import command, corpus, entries, environment, sentences

TEXTS = sentences(200)


@pytest.fixture
def words(tmp_path, tiny_a):
    corpus(tmp_path / "in", {"Docs": {"a.jsonl": [*TEXTS, {"no": "text"}]}})
    out = "--out", tmp_path / "runs", "--run-id", "r", "--max-refused", "5"
    return "run", tmp_path / "in", "--roster", tiny_a, *out, "--log-json"


def told(said):
    """The objects of a log, each whole, with a time that has a zone."""
    lines = [json.loads(line) for line in said.splitlines()]
    for each in lines:
        assert [*each][:4] == ["time", "level", "event", "message"] and each["message"].strip()
        assert each["level"] in ("info", "warning", "error")
        assert datetime.fromisoformat(each["time"]).utcoffset() == timedelta(0)
    return lines


def ran(*words, code=0):
    done = subprocess.run(command(*words), capture_output=True, env=environment(), timeout=120)
    assert done.returncode == code, done.stderr
    return told(done.stderr.decode())


def test_a_run_tells_what_plain_output_tells_with_the_fields_of_each_event(words, tmp_path):
    noise = "sh -c 'echo from a command; printf \"\\377 no newline\" >&2; exit 3'"
    lines = ran(*words, "--devices", "sim:T4", "--faults", "oom:1", "--notify", noise)
    printed = [each for each in entries(tmp_path / "runs" / "r") if line_of(each.body, each.device_kind)]
    events = [each for each in lines if "fields" in each and each["event"] != "progress"]
    assert [each["event"] for each in events] == [each.body.__struct_config__.tag for each in printed]
    for each, entry in zip(events, printed, strict=True):
        assert each["fields"] == json.loads(msgspec.json.encode(entry.body))
        assert datetime.fromisoformat(each["time"]).timestamp() == pytest.approx(entry.at, abs=0.002)
    levels = {each["event"]: each["level"] for each in lines}
    assert levels["run_started"] == levels["mitigated"] == "info" and levels["record_refused"] == "warning"
    assert any("failed with exit code 3" in each["message"] for each in lines)
    outputs = [each["message"] for each in lines if each["event"] == "output"]
    assert outputs == ["from a command", "\ufffd no newline"]
    (recap,) = (each["message"] for each in lines if each["event"] == "recap")
    assert "summary: " in recap and "\n" in recap


@pytest.mark.parametrize(
    ("more", "code", "event", "says"),
    [
        (("--bogus",), 2, "message", "unknown: --bogus"),
        (("--metrics", "70000"), 2, "refused", "ports end at 65535"),
        (("--window", "x"), 2, "refused", "window"),
    ],
)
def test_a_refusal_is_an_error_of_the_log(words, more, code, event, says):
    last = ran(*words, *more, code=code)[-1]
    assert (last["level"], last["event"], says in last["message"]) == ("error", event, True)
    assert event == "message" or last["exit_code"] == code


def test_quiet_leaves_errors_alone(words):
    (first,) = ran(*words, "--quiet")
    assert (first["level"], first["event"], "1 of 201 records refused" in first["message"]) == (
        "warning",
        "run_closed",
        True,
    )
    (last,) = ran(*words, "--quiet", code=2)
    assert last["level"] == "error" and "--resume" in last["message"]


@pytest.mark.parametrize("times", [1, 2])
def test_a_run_that_is_terminated_says_so_in_the_log(words, tmp_path, times):
    corpus(tmp_path / "in", {"Docs": {"b.jsonl": sentences(6000, start=1000)}})
    with (tmp_path / "stderr").open("w") as stderr:
        process = subprocess.Popen(command(*words), env=environment(), stderr=stderr)
    while "lease_granted" not in (tmp_path / "stderr").read_text():
        assert process.poll() is None
        time.sleep(0.02)
    for _ in range(times):
        os.kill(process.pid, signal.SIGTERM)
        time.sleep(0.05)
    assert process.wait(60) == 143
    lines = told((tmp_path / "stderr").read_text())
    assert any("stopping at the next batch" in each["message"] for each in lines)
    assert any("--resume" in each["message"] for each in lines)
