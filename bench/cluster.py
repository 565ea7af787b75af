"""What the head of a cluster can hand out and take back, what a cluster of one costs, and how it scales.

Without Ray, in this process: the ceiling of the head and its memory (echoes: nodes that answer at once in the head's
own thread), how its cost grows with nodes and batches, and efficiency (nodes in threads whose encoders sleep). By Ray,
on this machine: the same ceiling with the echoes in processes of `local:2`, whole runs beside `local:1`, and start-up.
"""

import argparse
import importlib.util
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from bench import corpora, evidence, machine
from bench.campaigns.process import aside
from bench.cluster_tables import telling
from bench.clusters import Echoes, Spent, Stage, conduct, sleepers, weightless
from bench.growth import fit
from interlock.engine.gpu.cpu import CpuDevice
from interlock.engine.models.assets import Policy
from interlock.engine.models.registry import ModelSpec
from interlock.engine.models.roster import cards_of
from interlock.engine.record import events as ev
from interlock.engine.record import journal
from tests import builders

SOURCES = ("engine/compute/cluster",)
LENGTH, DIM = 256, 1024
TOKEN_BYTES, NUMBER_BYTES, TEXT_BYTES = 4, 4, 16
NODES = (1, 2, 4, 8)
EFFICIENCY, OVERHEAD, GROWTH = 0.95, 0.03, 1.1
SLEEP_TEXTS, SLEEP_SECONDS = 16, 0.1
"""Texts of a batch of a sleeper, and how long it takes."""
ENVIRONMENT = {**os.environ, **machine.SINGLE_THREAD, "RAY_USAGE_STATS_ENABLED": "0"}


def measure(options: argparse.Namespace) -> dict[str, Any]:
    about = machine.describe()
    with tempfile.TemporaryDirectory(dir=options.place) as made:
        place = Path(made)
        found: dict[str, Any] = {
            "head": aside(lambda: head(place, options.texts)),
            "nodes": [aside(lambda n=n: cost(place, n, options.batches)) for n in options.crews],
            "batches": [aside(lambda n=n: cost(place, 8, n)) for n in options.sizes],
            "efficiency": efficiency(place, options.sleeps),
        }
        if options.ray:
            found["ray"] = by_ray(place, options.ray_texts)
            found["overhead"] = overhead(place, options)
            found["start"] = start_up(place, options)
    sizes, seconds = zip(*((each["batches"], each["cpu"]) for each in found["batches"]), strict=True)
    goals = {
        "efficiency": machine.goal(found["efficiency"][-1]["efficiency"], EFFICIENCY),
        "growth with batches": machine.goal(fit(sizes, seconds, 0.0) or 0.0, GROWTH, at_most=True),
    }
    if options.ray and telling(found["overhead"]):
        goals["overhead"] = machine.goal(_more(found["overhead"]["median"]), OVERHEAD, at_most=True)
    return {"machine": {**about, "load_after": machine.load()}, **found, "goals": goals}


def _more(median: Mapping[str, Mapping[str, float]]) -> float:
    return median["local:1"]["pass"] / median["plain"]["pass"] - 1


def head(place: Path, texts: int) -> dict[str, Any]:
    """The ceiling of the head: CPU and wall seconds of a pass over so many texts with eight echoes."""
    stage, cluster = Stage(place / f"head-{texts}", weightless(DIM), texts, LENGTH), Echoes(8)
    spent = conduct(stage, cluster)
    return told(stage, spent, spent.cpu - sum(link.node.cpu for link in cluster.links))


def told(stage: Stage, spent: Spent, cpu: float) -> dict[str, Any]:
    """What a pass says of its head; `cpu` are the seconds that are the head's own."""
    out, back = TOKEN_BYTES * stage.length + TEXT_BYTES, NUMBER_BYTES * stage.card.dim
    return {
        "texts": stage.texts,
        "batches": stage.batches,
        "cpu": round(cpu, 3),
        "wall": round(spent.wall, 3),
        "texts_per_cpu_second": round(stage.texts / cpu),
        "texts_per_second": round(stage.texts / spent.wall),
        "cpu_us_per_text": round(1e6 * cpu / stage.texts, 2),
        "out_mb_per_second": round(out * stage.texts / spent.wall / 1e6, 1),
        "back_mb_per_second": round(back * stage.texts / spent.wall / 1e6, 1),
        "anonymous_mb": round(spent.anonymous / 1e6, 1),
    }


def cost(place: Path, nodes: int, batches: int) -> dict[str, Any]:
    """The head's CPU over small batches: eight texts of eight tokens, sixteen numbers each."""
    stage = Stage(place / f"cost-{nodes}-{batches}", weightless(16), 8 * batches, 8, 8)
    cluster = Echoes(nodes)
    cpu = conduct(stage, cluster).cpu - sum(link.node.cpu for link in cluster.links)
    return {
        "nodes": nodes,
        "batches": stage.batches,
        "cpu": round(cpu, 3),
        "us_per_batch": round(1e6 * cpu / stage.batches, 1),
        "orders_bytes": cluster.links[0].said,
    }


def efficiency(place: Path, batches: int) -> list[dict[str, Any]]:
    """Wall seconds of one pass on more and more nodes, whose encoders sleep."""
    spec = ModelSpec("sleeper", (str(builders.tiny_model(place / "sleeper", width=16, layers=1, heads=2)),))
    (card,) = cards_of([spec], Policy(offline=True), [CpuDevice()], lambda _: None)
    walls = {}
    for nodes in NODES:
        stage = Stage(place / f"asleep-{nodes}", card, batches * SLEEP_TEXTS, 16, SLEEP_TEXTS)
        cluster = sleepers(nodes, SLEEP_SECONDS / SLEEP_TEXTS)
        walls[nodes] = conduct(stage, cluster, spec).wall
        cluster.join()
    ideal = batches * SLEEP_SECONDS
    return [
        {
            "nodes": nodes,
            "wall": round(wall, 3),
            "asleep": round(ideal / nodes, 3),
            "efficiency": round(walls[1] / nodes / wall, 4),
        }
        for nodes, wall in walls.items()
    ]


def by_ray(place: Path, texts: int) -> dict[str, Any]:
    """The ceiling with Ray between: two echoes in processes of their own. CPU is that of the head's whole process."""
    from interlock.engine.compute.cluster.ray_head import connect

    stage = Stage(place / "ray", weightless(DIM), texts, LENGTH)
    spent = conduct(stage, connect("local:2", "sim:1xT4", "bench.clusters:RemoteEcho"))
    return told(stage, spent, spent.process)


def overhead(place: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Wall seconds of whole runs with a cluster of one and without, in turns: from the first lease to the end of the
    pass, and from there to the end, where a cluster's processes are ended too."""
    texts = corpora.cuts(corpora.texts_of(None, few=True), options.chunks, 60)
    corpora.write_chunks(place / "chunks", texts, 100)
    variants = {
        name: lambda more=more: run(place, place / "chunks", options.model, more)
        for name, more in {"plain": (), "local:1": ("--cluster", "local:1")}.items()
    }
    found = machine.interleave(variants, options.rounds)
    spans = {
        name: dict(zip(("start", "pass", "end"), zip(*each, strict=True), strict=True)) for name, each in found.items()
    }
    return {
        "chunks": options.chunks,
        "model": options.model,
        "rounds": options.rounds,
        "median": {
            name: {part: round(statistics.median(each), 3) for part, each in parts.items()}
            for name, parts in spans.items()
        },
        "pass_seconds": {name: [round(one, 3) for one in parts["pass"]] for name, parts in spans.items()},
    }


def start_up(place: Path, options: argparse.Namespace) -> dict[str, float]:
    """Seconds from the start of a process to its first lease: a plain run, and more and more nodes."""
    corpora.write_chunks(place / "few", ["a cat sleeps", "dogs bark loudly"], 10)
    tiny = str(builders.tiny_model(place / "tiny", width=16, layers=1, heads=2))
    ways = {"plain": (), **{f"local:{n}": ("--cluster", f"local:{n}") for n in (1, 2, 4)}}
    return {name: round(run(place, place / "few", tiny, more)[0], 2) for name, more in ways.items()}


def run(place: Path, chunks: Path, model: str, more: Sequence[str]) -> tuple[float, float, float]:
    """A run of the command line: wall seconds to its first lease, from there to the end of its pass, and to its end."""
    with tempfile.TemporaryDirectory(dir=place) as out:
        command = [sys.executable, "-m", "interlock", "run", str(chunks), "--roster", model, "--out", out]
        flags = ["--run-id", "bench", "--offline", "--quiet", "--threads", "1", "--devices", "cpu", *more]
        began = time.time()
        subprocess.run([*command, *flags], env=ENVIRONMENT, cwd=place, check=True)
        entries = list(journal.read(Path(out) / "bench" / "journal.jsonl"))
    at = {type(entry.body): entry.at for entry in reversed(entries)}
    assert bool(more) == (ev.NodeJoined in at), "nodes where asked for"
    leased, computed = at[ev.LeaseGranted], at[ev.EnsemblePassCompleted]
    return leased - began, computed - leased, at[ev.RunClosed] - computed


def show(result: dict[str, Any]) -> None:
    for name in ("head", "ray"):
        if name in result:
            print(f"\n{name}: {result[name]}")
    for name in ("nodes", "batches", "efficiency"):
        print()
        machine.table(list(result[name][0]), [list(each.values()) for each in result[name]])
    for name in ("overhead", "start"):
        if name in result:
            print(f"\n{name}: {result[name]}")
    machine.goals(result["goals"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--texts", type=int, default=1_000_000, metavar="N", help="of the head's ceiling")
    parser.add_argument("--ray-texts", type=int, default=200_000, metavar="N", help="of the ceiling with Ray between")
    parser.add_argument("--crews", type=int, nargs="+", default=[1, 8, 64, 256, 1024], metavar="N", help="of nodes")
    parser.add_argument("--batches", type=int, default=16_384, metavar="N", help="of each of these")
    parser.add_argument("--sizes", type=int, nargs="+", default=[2048, 8192, 32768, 131072], metavar="N")
    parser.add_argument("--sleeps", type=int, default=800, metavar="N", help="batches of the efficiency")
    parser.add_argument("--chunks", type=int, default=400, metavar="N", help="of the overhead")
    parser.add_argument("--model", default="all-minilm-l6")
    parser.add_argument("--rounds", type=int, default=3, metavar="N")
    parser.add_argument("--place", type=Path, help="directory of the disk to measure on")
    parser.add_argument("--ray", action=argparse.BooleanOptionalAction, default=bool(importlib.util.find_spec("ray")))
    small = {"texts": 2000, "crews": [1, 4], "batches": 64, "sizes": [32, 64, 128, 256], "sleeps": 16, "ray": False}
    machine.quick(parser, **small)
    evidence.gather(parser, measure, show, SOURCES)


if __name__ == "__main__":
    main()
