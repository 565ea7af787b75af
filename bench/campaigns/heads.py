"""What the head of a cluster leans on is ended beside it, at every stage: its raylet, an agent of that, or
Ray's server (GCS), by TERM and KILL, of `local:2` and of a `ray start --head --block`.

A run ends with exit code 4 and a cause, its journal closed, its `--notify` told, and nothing left that only a live run
has; `--resume` on this machine alone gives the bytes of a run that nothing befell. Bytes are compared by SHA-256.
"""

import hashlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from bench.campaigns.tally import Campaign, Report, Room
from tests.builders import command, corpus, environment, sentences, tiny_model

ENDED = ("raylet", "gcs_server", "runtime_env/agent", "dashboard/agent")
STAGES = ("node_joined", "lease_granted", "batch_committed", "half", "roster_resolved")
PATIENCE = 150.0
TEXTS = 6000
_wanted: dict[Path, dict[str, str]] = {}


def trial(room: Room) -> Report:
    """One run on a cluster, of which something is ended at a stage; and its resume without."""
    number, report, run = room.number, Report(), room.run()
    local = number % 2 == 0
    what = ENDED[number // 2 % len(ENDED)]
    stage, sign = STAGES[number // 8 % len(STAGES)], (signal.SIGTERM, signal.SIGKILL)[number // 2 % 3 % 2]
    told = f"{'local:2' if local else 'ray start'}, {what} by {sign.name} at {stage}"
    wanted, notified = undisturbed(room), room.place / "notified"
    script = room.place / "notify"
    script.write_text(f"#!/bin/sh\necho told >> {notified}\n")
    script.chmod(0o755)
    with _ray(room, local=local) as (address, others):
        log = room.place / "log"
        words = [*_words(room, run), "--cluster", address, "--notify", script]
        with log.open("wb") as out:
            head = subprocess.Popen(command(*words), env=_environment(room), stdout=out, stderr=out)
            ended = _end(head, run, what, stage, sign, others)
            try:
                code = head.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                head.kill()
                report.wrong.append(f"{told}: it hung")
                return report
    said, events = log.read_text(errors="replace"), list(_events(run))
    report.tried.update(["kills" if ended else "runs that ended before", f"ended {what}", f"exit {code}"])
    if ended and code != 4 and not (code == 0 and _harmless(events)):
        report.wrong.append(f"exit {code}: {said[-200:]}")
    if code == 4:
        report.wrong += [] if "Ray has" in said or "no node" in said else [f"no cause: {said[-200:]}"]
        if run.exists():
            report.wrong += [] if events and events[-1]["event"] == "run_closed" else ["its journal is open"]
            report.wrong += [] if notified.exists() else ["--notify heard nothing"]
    left = [*run.glob("control.sock"), *run.glob(".session.json"), *run.glob(".tokens-*")]
    report.wrong += [f"left: {each.name}" for each in left]
    again = subprocess.run(command(*_words(room, run), *(["--resume"] if run.exists() else [])),
                           env=_environment(room), capture_output=True, text=True)  # fmt: skip
    report.wrong += [] if again.returncode == 0 else [f"resume: exit {again.returncode}: {again.stderr[-200:]}"]
    report.wrong += [] if _hashes(run) == wanted else ["resume: other bytes"]
    report.tried["resumes"] += 1
    report.wrong = [f"{told}: {each}" for each in report.wrong]
    return report


def undisturbed(room: Room) -> dict[str, str]:
    """The vectors of a run that nothing befell, by pass."""
    place = room.field.place / "heads"
    if place not in _wanted:
        if not place.exists():
            tiny_model(place / "one", seed=1, width=128, layers=4)
            tiny_model(place / "two", seed=2, width=128, layers=4, pooling="cls")
            corpus(place / "chunks", {"Docs": {"a_chunks.json": sentences(TEXTS, words=40)}})
        run = room.run("undisturbed")
        subprocess.run(command(*_words(room, run)), env=_environment(room), check=True, capture_output=True)
        _wanted[place] = _hashes(run)
    return _wanted[place]


def _words(room: Room, run: Path) -> list[object]:
    place = room.field.place / "heads"
    flags = ["--out", run.parent, "--run-id", run.name, "--devices", "cpu", "--threads", 1, "--keep", "both"]
    return ["run", place / "chunks", "--no-ui", "--roster", f"{place}/one,{place}/two", "--offline", *flags]


def _environment(room: Room) -> dict[str, str]:
    return environment(
        {
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_AUTH_MODE": "disabled",
            "INTERLOCK_CACHE": str(room.field.place / "cache"),
        }
    )


@contextmanager
def _ray(room: Room, *, local: bool) -> Iterator[tuple[str, list[psutil.Process]]]:
    """An address for `--cluster`, and the processes of a Ray that was started for it."""
    if local:
        yield "local:2", []
        return
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    ray = [str(Path(sys.executable).with_name("ray")), "start", "--head", "--block", "--disable-usage-stats"]
    ray += ["--node-ip-address=127.0.0.1", f"--port={address.partition(':')[2]}", "--num-cpus=1", "--num-gpus=0"]
    ray += [f"--temp-dir=/tmp/il-{os.getpid()}-{room.number}", f"--object-store-memory={192 << 20}"]
    ray += ["--include-dashboard=false"]
    started = subprocess.Popen(ray, env=_environment(room), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    others: list[psutil.Process] = []
    try:
        until = time.monotonic() + 60
        while sum(each.name() == "raylet" or "dashboard/agent" in _line(each) for each in others) < 2:
            assert time.monotonic() < until, "Ray does not start"
            time.sleep(0.5)
            others = psutil.Process(started.pid).children(recursive=True)
        yield address, others
    finally:
        for each in [psutil.Process(started.pid), *others] if started.poll() is None else others:
            with suppress(psutil.NoSuchProcess):
                each.kill()
        started.wait()
        subprocess.run(["rm", "-rf", f"/tmp/il-{os.getpid()}-{room.number}"], check=False)


def _end(
    head: "subprocess.Popen[bytes]", run: Path, what: str, stage: str, sign: int, others: list[psutil.Process]
) -> bool:
    """Send the signal once the run is at the stage; whether there was anything to send it to."""
    until = time.monotonic() + PATIENCE
    while head.poll() is None and time.monotonic() < until:
        there = others or psutil.Process(head.pid).children(recursive=True)
        raylets = sorted((each for each in there if _line(each).partition(" ")[0].endswith("/raylet")), key=_born)
        if raylets and _at(run, stage):
            mine = raylets[0] if what == "raylet" else None
            own = [each for each in there if what in _line(each) and "core_worker" not in _line(each)]
            own = [each for each in own if "agent" not in what or each.ppid() == raylets[0].pid]
            if target := mine or next(iter(own), None):
                with suppress(psutil.NoSuchProcess):
                    target.send_signal(sign)
                    return True
        time.sleep(0.02)
    return False


def _at(run: Path, stage: str) -> bool:
    """Whether a run has come so far, `half` with ten batches."""
    count = sum(each["event"] == ("batch_committed" if stage == "half" else stage) for each in _events(run))
    return count >= (10 if stage == "half" else 1)


def _harmless(events: list[dict[str, object]]) -> bool:
    """Whether a run had nothing left to compute when it was disturbed, or could do without what ended."""
    return bool(events) and events[-1].get("status") == "completed"


def _events(run: Path) -> Iterator[dict[str, object]]:
    journal = run / "journal.jsonl"
    for line in journal.read_text().splitlines() if journal.exists() else ():
        with suppress(ValueError, KeyError):  # its last line is being written
            yield json.loads(line[line.index("{") :])["body"]


def _hashes(run: Path) -> dict[str, str]:
    files = sorted(run.glob("passes/*/vectors.npy"))
    return {each.parent.name: hashlib.sha256(each.read_bytes()).hexdigest() for each in files}


def _line(process: psutil.Process) -> str:
    with suppress(psutil.NoSuchProcess):
        return " ".join(process.cmdline())
    return ""


def _born(process: psutil.Process) -> float:
    with suppress(psutil.NoSuchProcess):
        return process.create_time()
    return 0.0


CAMPAIGN = Campaign("heads", trial, 40, "what a cluster's head leans on is ended beside it, at every stage")
