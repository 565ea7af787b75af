"""Requests a second and their longest waits: `interlock serve` beside sentence-transformers behind the same server.

The same model, starlette and uvicorn answer 1, 8 and 64 clients that each send one text after another, in turns, each
service at one thread and the clients in this process. The other service is what a page of documentation has: the model,
and `encode` in a thread for each request. Wall times: what waits is the question.
"""

import argparse
import asyncio
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import evidence
import machine

os.environ.update(machine.SINGLE_THREAD)

import httpx
import numpy as np
import psutil

SOURCES = ("console/front_ends/http.py", "engine/search/batching.py", "engine/compute/*.py")
INTERLOCK = (sys.executable, "-m", "interlock")
MODEL = "all-minilm-l6"
KEYS = ("rate", "p50_ms", "p99_ms", "cpu_ms")
MORE = 1.5
"""Goal: so many times as many requests a second, with as many clients as there are."""
PEER = """
import sys, torch, uvicorn
torch.set_num_threads(1)
from sentence_transformers import SentenceTransformer
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.responses import JSONResponse
from starlette.routing import Route
model = SentenceTransformer(sys.argv[1], device="cpu")
async def embeddings(request):
    texts = [(await request.json())["input"]]
    rows = await run_in_threadpool(model.encode, texts, normalize_embeddings=True, show_progress_bar=False)
    return JSONResponse({"data": [{"index": at, "embedding": row.tolist()} for at, row in enumerate(rows)]})
async def health(request):
    return JSONResponse({})
app = Starlette(routes=[Route("/v1/embeddings", embeddings, methods=["POST"]), Route("/health", health)])
uvicorn.run(app, port=int(sys.argv[2]), log_level="critical", access_log=False)
"""


def texts(count: int) -> list[str]:
    """Distinct questions, of 10 to 30 words."""
    words = [name for name in dir(str) + dir(os) + dir(time) if not name.startswith("_")]
    return [" ".join(words[(row * 31 + at * 7) % len(words)] for at in range(10 + row % 21)) for row in range(count)]


def started(stack: ExitStack, command: Callable[[int], list[str]], cwd: Path) -> tuple[str, psutil.Process]:
    """The URL of a service that answers, and its process."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    process = subprocess.Popen(command(port), cwd=cwd, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    stack.callback(process.wait)
    stack.callback(process.terminate)
    url = f"http://127.0.0.1:{port}"
    while process.poll() is None:
        try:
            if httpx.get(f"{url}/health").status_code == 200:
                return url, psutil.Process(process.pid)
        except httpx.TransportError:
            time.sleep(0.1)
    raise SystemExit(f"{command(port)} ended with {process.returncode}")


def asked(service: tuple[str, psutil.Process], clients: int, seconds: float) -> dict[str, Any]:
    """What so many clients get of a service for a while."""

    url, process = service

    async def all_of_them() -> tuple[list[float], float, np.ndarray[Any, Any]]:
        took: list[float] = []
        limits, asks = httpx.Limits(max_connections=clients), texts(256)
        async with httpx.AsyncClient(base_url=url, timeout=60, limits=limits) as client:
            began = time.perf_counter()

            async def one(number: int) -> None:
                while (sent := time.perf_counter()) < began + seconds:
                    body = {"model": MODEL, "input": asks[(number + len(took)) % len(asks)]}
                    (await client.post("/v1/embeddings", json=body)).raise_for_status()
                    took.append(time.perf_counter() - sent)

            await asyncio.gather(*map(one, range(clients)))
            spent = time.perf_counter() - began
            same = await client.post("/v1/embeddings", json={"model": MODEL, "input": asks[0]})
            return took, spent, np.array(same.json()["data"][0]["embedding"])

    before = sum(process.cpu_times()[:2])
    took, spent, row = asyncio.run(all_of_them())
    cpu = 1000 * (sum(process.cpu_times()[:2]) - before) / (len(took) + 1)
    p50, p99 = (1000 * float(np.quantile(took, share)) for share in (0.5, 0.99))
    return {"rate": len(took) / spent, "p50_ms": p50, "p99_ms": p99, "cpu_ms": cpu, "row": row}


def measure(options: argparse.Namespace) -> dict[str, Any]:
    from interlock.engine.models.assets import Policy, resolve
    from interlock.engine.models.registry import REGISTRY

    about, rows = machine.describe(), []
    directory = str(resolve(REGISTRY[MODEL], Policy(offline=True), lambda event: None).path)
    with tempfile.TemporaryDirectory() as made, ExitStack() as stack:
        flags = ("--no-ui", "--quiet", "--devices", "cpu", "--roster", MODEL)
        subprocess.run([*INTERLOCK, "demo", *flags], cwd=made, check=True, capture_output=True)
        own = ("serve", "runs/demo-store", "--threads", "1", "--devices", "cpu", "--port")
        services = {
            "interlock": started(stack, lambda port: [*INTERLOCK, *own, str(port)], Path(made)),
            "peer": started(stack, lambda port: [sys.executable, "-c", PEER, directory, str(port)], Path(made)),
        }
        for service in services.values():
            asked(service, 2, 1.0)
        for clients in options.clients:
            variants = {name: partial(asked, each, clients, options.seconds) for name, each in services.items()}
            found = machine.interleave(variants, options.rounds)
            for name, each in found.items():
                told = {key: machine.spread([one[key] for one in each], 1) for key in KEYS}
                rows.append({"service": name, "clients": clients, **told})
            cosine = float(found["interlock"][0]["row"] @ found["peer"][0]["row"])
    rate = {(row["service"], row["clients"]): row["rate"]["median"] for row in rows}
    most = max(options.clients)
    return {
        "machine": {**about, "load_after": machine.load()},
        "rows": rows,
        "goals": {
            f"requests a second with {most} clients, beside the other's": machine.goal(
                rate["interlock", most] / rate["peer", most], MORE
            ),
            "cosine of one text by both": machine.goal(cosine, 0.99999),
        },
    }


def show(result: dict[str, Any]) -> None:
    machine.goals(result["goals"])
    names = {"interlock": "interlock serve", "peer": "sentence-transformers"}
    heads = ["clients", "service", "requests/s", "p50 ms", "p99 ms", "CPU ms a request"]
    machine.table(
        heads,
        [
            [row["clients"], names[row["service"]], *(row[key]["median"] for key in KEYS)]
            for row in sorted(result["rows"], key=lambda row: row["clients"])
        ],
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=5.0, help="of each measurement")
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 8, 64])
    machine.quick(parser, rounds=1, seconds=0.5, clients=[1, 4])
    evidence.gather(parser, measure, show, SOURCES)


if __name__ == "__main__":
    main()
