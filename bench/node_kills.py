"""Kill a node of a run in each of its passes, at random moments, again and again: nothing may be lost or differ.

Each run is a command of its own on `--cluster local:N` with real models. Its journal says when a pass is under way;
then a process that computes, or Ray's own on that machine (its raylet), is sent SIGKILL. What the run leaves is
compared with a run in one process: the SHA-256 of every pass's vectors, and what the summary says was computed again.
"""

import argparse
import hashlib
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from bench import evidence
from interlock.engine.flows.demo import write

NODE, RAYLET = "ray::InterlockNode", "raylet"
SOURCES = ("engine",)
PATIENCE = 600.0


def command(chunks: Path, out: Path, name: str, *more: str) -> list[str]:
    roster = "all-minilm-l6=0.5,all-mpnet-base-v2=0.5"
    flags = ["--no-ui", "--out", str(out), "--run-id", name, "--roster", roster, "--devices", "cpu", "--export", "npy"]
    return [sys.executable, "-m", "interlock.console.main", "run", str(chunks), *flags, "--offline", *more]


def hashes(run: Path) -> dict[str, str]:
    """The SHA-256 of the vectors of each pass."""
    return {
        file.parent.name: hashlib.sha256(file.read_bytes()).hexdigest()
        for file in sorted(run.glob("passes/*/vectors.npy"))
    }


def events(journal: Path) -> Iterator[dict[str, Any]]:
    for line in journal.read_text().splitlines() if journal.exists() else ():
        try:
            yield json.loads(line[line.index("{") :])["body"]
        except (ValueError, KeyError):  # its last line is being written
            return


def killed(head: psutil.Process, dice: random.Random, what: str) -> None:
    """Kill one of the processes that compute, or a machine's raylet; the first machine's, where the head is, is
    `campaigns/heads`'."""
    there = [each for each in head.children(recursive=True) if each.status() != psutil.STATUS_ZOMBIE]
    nodes = [each for each in there if each.name().startswith(NODE)]
    raylets = sorted((each for each in there if each.name() == RAYLET), key=lambda each: each.pid)
    dice.choice(nodes if what == "process" else raylets[1:]).kill()


def trial(chunks: Path, out: Path, number: int, dice: random.Random, nodes: int, batches: list[int]) -> dict[str, Any]:
    """One run, with a node killed in each of its two passes; what came of it."""
    name, what = f"killed-{number}", ("process", "raylet")[number % 2]
    moments = [dice.randrange(0, most - 1) for most in batches]
    journal = out / name / "journal.jsonl"
    began, kills = time.monotonic(), 0
    with (out / f"{name}.log").open("wb") as log:
        head = subprocess.Popen(command(chunks, out, name, "--cluster", f"local:{nodes}"), stdout=log, stderr=log)
        while head.poll() is None and time.monotonic() - began < PATIENCE:
            if kills < 2:
                told = list(events(journal))
                open_pass = any(e["event"] == "lease_granted" and e["model_pass"] == kills for e in told)
                done = sum(e["event"] == "batch_committed" and e["model_pass"] == kills for e in told)
                if open_pass and done >= moments[kills]:
                    time.sleep(0.3 * dice.random())
                    killed(psutil.Process(head.pid), dice, what)
                    kills += 1
            time.sleep(0.05)
        head.kill()
    told = list(events(journal))
    committed = [(e["model_pass"], e["batch_index"]) for e in told if e["event"] == "batch_committed"]
    lost = [e for e in told if e["event"] == "node_lost"]
    summary = json.loads((out / name / "summary.json").read_text())
    said = sum(len(each["lost"]) for each in summary["nodes"]), sum(each["rows_again"] for each in summary["nodes"])
    return {
        "killed": what,
        "kills": kills,
        "exit_code": head.returncode,
        "status": summary["status"],
        "nodes_lost": len(lost),
        "batches_again": sum(e["batches"] for e in lost),
        "rows_again": sum(e["rows"] for e in lost),
        "committed_twice": len(committed) - len({*committed}),
        "told_in_summary": said == (len(lost), sum(e["rows"] for e in lost)) and len(lost) == kills,
        "at": moments,
        "hashes": hashes(out / name),
        "seconds": round(time.monotonic() - began, 1),
    }


def measure(options: argparse.Namespace) -> dict[str, Any]:
    dice = random.Random(options.seed)
    with tempfile.TemporaryDirectory(prefix="interlock-nodes-") as place:
        out, chunks = Path(place), options.chunks
        if chunks is None:
            chunks = out / "chunks"
            write(chunks, everything=False)
        subprocess.run(command(chunks, out, "one"), check=True, stdout=subprocess.DEVNULL)
        wanted = hashes(out / "one")
        of = [e["model_pass"] for e in events(out / "one" / "journal.jsonl") if e["event"] == "batch_committed"]
        batches = [of.count(0), of.count(1)]
        trials = []
        for number in range(options.trials):
            result = trial(chunks, out, number, dice, options.nodes, batches)
            result["same_vectors"] = result.pop("hashes") == wanted and len(wanted) == 2
            trials.append(result)
            print(json.dumps(result), flush=True)
    good = [
        each
        for each in trials
        if each["same_vectors"]
        and not each["exit_code"]
        and not each["committed_twice"]
        and each["told_in_summary"]
        and each["kills"] == 2
    ]
    return {
        "nodes": options.nodes,
        "batches_of_passes": batches,
        "trials": trials,
        "failures": len(trials) - len(good),
        "kills": sum(each["kills"] for each in trials),
        "nodes_lost": sum(each["nodes_lost"] for each in trials),
        "batches_again": sum(each["batches_again"] for each in trials),
    }


def show(result: dict[str, Any]) -> None:
    print(json.dumps({key: value for key, value in result.items() if key != "trials"}, indent=1))
    if result["failures"]:
        sys.exit(1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--chunks", type=Path, help="a directory of chunk files instead of the demo's")
    parser.add_argument("--trials", type=int, default=20, metavar="N")
    parser.add_argument("--nodes", type=int, default=3, metavar="N")
    parser.add_argument("--seed", type=int, default=0)
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    evidence.gather(parser, measure, show, SOURCES)


if __name__ == "__main__":
    main()
