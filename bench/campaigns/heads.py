"""What the head of a cluster leans on is ended beside it, at every stage: its raylet, an agent of that, Ray's server
(GCS) or its dashboard, by TERM and KILL, of `local:2` and of a `ray start --head --block`.

A run ends with exit code 4 and a cause, its journal closed, its `--notify` told, and nothing left that only a live run
has; or Ray does without what ended, and the run is done. `--resume` on this machine alone gives the bytes of a run that
nothing befell. Before Ray is connected nothing is to be continued: then 5, with a cause, is right too. Bytes are
compared by SHA-256. A trial in which nothing was ended has failed.
"""

import hashlib
import json
import os
import re
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

ENDED = {
    "raylet": r"\S*/raylet ",
    "GCS": r"\S*/gcs_server ",
    "environment agent": r"ray::RuntimeEnvAgent|.*/runtime_env/agent/main",
    "dashboard agent": r"ray::DashboardAgent|.*/dashboard/agent\.py",
    "dashboard": r".*/dashboard/dashboard\.py",
}
WITHOUT = ("dashboard", "GCS")
"""A run can end well without these; the environment agent takes no notice of TERM."""
STAGES = ("connecting", "node_joined", "lease_granted", "batch_committed", "half", "roster_resolved")
PATIENCE = 200.0
TEXTS = 6000
_wanted: dict[Path, dict[str, str]] = {}


def trial(room: Room) -> Report:
    """One run on a cluster, of which something is ended at a stage; and its resume without."""
    number, report, run = room.number, Report(), room.run()
    what, local = list(ENDED)[number % 5], number // 5 % 2 == 0
    sign, stage = (signal.SIGTERM, signal.SIGKILL)[number // 10 % 2], STAGES[number % 6]
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
    deaf = what == "environment agent" and sign == signal.SIGTERM
    went_on = ended and code == 0 and (deaf or what in WITHOUT)
    report.tried.update(["kills"] * ended + [f"{what}: {'went on' if went_on else f'exit {code}'}", f"at {stage}"])
    report.wrong += [] if ended else [f"nothing was ended: {said[-200:]}"]
    report.wrong += _wrongs(run, code, said, events, notified, early=stage == "connecting", went_on=went_on)
    if code == 0 and _hashes(run) != wanted:  # before `--resume` would make it whole
        report.wrong.append("exit 0: other bytes")
    again = subprocess.run(command(*_words(room, run), *(["--resume"] if run.exists() else [])),
                           env=_environment(room), capture_output=True, text=True)  # fmt: skip
    report.wrong += [] if again.returncode == 0 else [f"resume: exit {again.returncode}: {again.stderr[-200:]}"]
    report.wrong += [] if _hashes(run) == wanted else ["resume: other bytes"]
    report.tried["resumes"] += 1
    report.wrong = [f"{told}: {each}" for each in report.wrong]
    return report


def _wrongs(
    run: Path, code: int, said: str, events: list[dict[str, object]], notified: Path, *, early: bool, went_on: bool
) -> Iterator[str]:
    """What a run may not do of which something was ended."""
    if code not in ((0,) if went_on else (4, 5) if early else (4,)):
        yield f"exit {code}: {said[-250:]}"
    if went_on and not (events and events[-1].get("status") == "completed"):
        yield "exit 0 of a run that is not completed"
    if not went_on and not re.search(r"Ray has|no node|no Ray cluster|do not start|Ray's driver", said):
        yield f"no cause: {said[-250:]}"
    if "Traceback" in said:
        yield f"a traceback: {said[-250:]}"
    if code == 4 and run.exists():
        if not events or events[-1]["event"] != "run_closed":
            yield "its journal is open"
        if not notified.exists():
            yield "--notify heard nothing"
    for each in (*run.glob("control.sock"), *run.glob(".session.json"), *run.glob(".tokens-*")):
        yield f"left: {each.name}"


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


def _environment(room: Room, **more: str) -> dict[str, str]:
    own = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "disabled"}
    return environment({**own, "INTERLOCK_CACHE": str(room.field.place / "cache"), **more})


@contextmanager
def _ray(room: Room, *, local: bool) -> Iterator[tuple[str, psutil.Process | None]]:
    """An address for `--cluster`, and the process that started a Ray for it; on the loopback alone."""
    if local:
        yield "local:2", None
        return
    port, client = (_free() for _ in range(2))
    home = f"/tmp/il-{os.getpid()}-{room.number}"  # the names of sockets must be short
    ray = [str(Path(sys.executable).with_name("ray")), "start", "--head", "--block", "--disable-usage-stats"]
    ray += ["--node-ip-address=127.0.0.1", f"--port={port}", f"--ray-client-server-port={client}", "--num-cpus=1"]
    ray += ["--num-gpus=0", f"--temp-dir={home}", f"--object-store-memory={192 << 20}", "--include-dashboard=false"]
    settings = _environment(room, RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER="0")  # else it listens on every interface
    started = psutil.Popen(ray, env=settings, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    there: list[psutil.Process] = []
    try:
        until = time.monotonic() + 90
        while not all(_found(there, what) for what in ENDED):
            assert time.monotonic() < until and started.poll() is None, "Ray does not start"
            time.sleep(0.5)
            there = started.children(recursive=True)
        yield f"127.0.0.1:{port}", started
    finally:
        with suppress(psutil.NoSuchProcess):
            there = [started, *started.children(recursive=True), *there]
        for each in there:
            with suppress(psutil.NoSuchProcess):
                each.kill()
        started.wait()
        subprocess.run(["rm", "-rf", home], check=False)


def _free() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def _end(
    head: "subprocess.Popen[bytes]", run: Path, what: str, stage: str, sign: int, ray: psutil.Process | None
) -> bool:
    """Send the signal once the run is at the stage; whether there was anything to send it to."""
    until = time.monotonic() + PATIENCE
    while head.poll() is None and time.monotonic() < until:
        if _at(run, stage):
            with suppress(psutil.NoSuchProcess):
                if target := _found((ray or psutil.Process(head.pid)).children(recursive=True), what):
                    target.send_signal(sign)
                    return True
        time.sleep(0.02)
    return False


def _found(there: list[psutil.Process], what: str) -> psutil.Process | None:
    """The process of that kind that the head's machine has: the first raylet's, where there are several."""
    raylets = sorted((each for each in there if re.match(ENDED["raylet"], _line(each))), key=_born)
    if what == "raylet":
        return next(iter(raylets), None)
    found = [each for each in there if re.match(ENDED[what], _line(each))]
    return next((each for each in found if "agent" not in what or each.ppid() == raylets[0].pid), None)


def _at(run: Path, stage: str) -> bool:
    """Whether a run has come so far, `half` with ten batches."""
    if stage == "connecting":
        return True
    count = sum(each["event"] == ("batch_committed" if stage == "half" else stage) for each in _events(run))
    return count >= (10 if stage == "half" else 1)


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
        return float(process.create_time())
    return 0.0


CAMPAIGN = Campaign("heads", trial, 40, "what a cluster's head leans on is ended beside it, at every stage")
