"""A Qdrant server that is mean: each upload ends with every point as it was exported, or with a line that says why not;
the same command against a sane server then completes it.

The server is the engine behind `tests/edge_bridge`, in a process of its own that also says what it holds; that is
compared with the run's parquet, point by point. What is done to an answer is drawn by chance.
"""

import json
import os
import pickle
import random
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import numpy as np

from bench.campaigns.field import PLAIN
from bench.campaigns.process import Outcome, aside, carry_out, wrongs
from bench.campaigns.tally import Campaign, Report, Room
from tests.edge_bridge import Answer, Collection, EdgeBridge, refusal, serving
from tests.uploads import key_of

ATTEMPT, PATIENCE, SETTLE, BOUND = 1.0, 2, 3, 60.0
"""Seconds that an attempt, a request and the indexes have in a trial, and that a whole command may take."""
ODD: tuple[Any, ...] = (None, True, -1, 10**400, 1e308, "", "x", "\x1b[2J", [], {}, [[]], "y" * 10**6, 2**63)
WAITS = ("9" * 400, "-7", "soon", "1e999", formatdate(0), formatdate(10**10), "0", "1", "²")
RIGHTS = ("r", "prw", "rw")
LIMITS = ("search_allow_exact", "condition_max_size", "upsert_max_batchsize", "max_query_limit", "max_points_count",
          "filter_max_conditions", "read_rate_limit", "write_rate_limit")  # fmt: skip
Spoil = Callable[[EdgeBridge, random.Random, "Aim"], object]


class Aim:
    """Which requests are met: those of one kind, from one of them on, so many of them."""

    def __init__(self, rng: random.Random) -> None:
        self.kind = rng.choice(("", "", "PUT /collections", "PATCH", "points/count", "/points", "aliases", "GET /coll",
                                "scroll", "delete", "optimizations", "GRPC"))  # fmt: skip
        self.first, self.times = rng.choice((0, 0, 1, 2, 5)), rng.choice((1, 1, 2, 10**9))

    def hits(self, method: str, path: str) -> bool:
        if self.kind not in f"{method} {path}":
            return False
        self.first -= 1
        if self.first >= 0 or self.times <= 0:
            return False
        self.times -= 1
        return True


def _instead(answer: Callable[[random.Random], Answer]) -> Spoil:
    """Another answer, and nothing is done."""

    def spoil(bridge: EdgeBridge, rng: random.Random, aim: Aim) -> None:
        bridge.before = lambda method, path, *_: _fit(method, answer(rng)) if aim.hits(method, path) else None

    return spoil


def _fit(method: str, answer: Answer) -> Answer:
    """The same over gRPC, whose answers have codes of their own."""
    if method != "GRPC":
        return answer
    import grpc

    codes = {429: "RESOURCE_EXHAUSTED", 403: "PERMISSION_DENIED", 401: "UNAUTHENTICATED", 200: "OK"}
    waits = {name.lower(): value for name, value in answer[1].items() if value.isascii()}
    return grpc.StatusCode[codes.get(answer[0], "UNAVAILABLE")], waits, answer[2][:200]  # type: ignore[return-value]


def _bent(bridge: EdgeBridge, rng: random.Random, aim: Aim) -> None:
    """What was asked for is done, and one place of the answer is another."""
    real = bridge._said

    def said(method: str, path: list[str], body: bytes, query: dict[str, list[str]]) -> Answer:
        status, more, content = real(method, path, body, query)
        if not aim.hits(method, "/" + "/".join(path)):
            return status, more, content
        whole = json.loads(content)
        places = list(_places(whole))
        inner, key = rng.choice(places)
        if isinstance(inner, dict) and rng.random() < 0.3:
            del inner[key]
        else:
            inner[key] = rng.choice(ODD)
        return status, more, json.dumps(whole).encode()

    bridge._said = said  # type: ignore[method-assign]


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    for key in value if isinstance(value, dict) else range(min(3, len(value))) if isinstance(value, list) else ():
        yield value, key
        yield from _places(value[key])


def _written(bridge: EdgeBridge, rng: random.Random, aim: Aim) -> None:
    """What was asked for is done, and the answer comes otherwise than HTTP or patience want it."""
    how = rng.randrange(8)

    def raw(handler: BaseHTTPRequestHandler, answer: Answer) -> bool:
        if not aim.hits(handler.command, handler.path):
            return False
        content, write = answer[2], handler.wfile.write
        size = len(content)
        length = (size, size, size + 50, max(0, size - 5), -1, "x", size, 0)[how]
        head = f"HTTP/1.1 {answer[0]} OK\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n".encode()
        if how == 6:
            head += b"Content-Encoding: gzip\r\n"
        if how == 7:
            head = b"\x00garbage\r\n"
        whole = head + b"\r\n" + content
        for byte in whole[: 60 if how == 0 else 0]:
            write(bytes([byte]))
            time.sleep(0.1)
        if how == 1:
            time.sleep(2 * ATTEMPT)
        write(whole if how else b"")
        return True

    bridge.raw = raw


def _states(bridge: EdgeBridge, rng: random.Random, _: Aim) -> None:
    """Grey, yellow for long, flapping, or counts that lag."""
    states = [rng.choice(("green", "yellow", "grey", "red")) for _ in range(rng.choice((1, 3, 8)))]
    states += rng.choice(([], ["green"], ["green"]))
    turn, lag, waiting = [0], rng.random() < 0.5, rng.choice((0, 0, 2))

    class Moody(Collection):
        def info(self) -> dict[str, Any]:
            if self.hnsw["m"]:
                self.status = states[min(turn[0], len(states) - 1)]
                turn[0] += 1
                self.waiting = waiting if turn[0] < 5 else 0
            return {**super().info(), "indexed_vectors_count": turn[0] * 10 if lag and turn[0] < 9 else 90}

    bridge.kind = Moody


def _strict(bridge: EdgeBridge, rng: random.Random, _: Aim) -> None:
    chosen = rng.sample(LIMITS, rng.choice((1, 2, 3)))
    given = {name: rng.choice((1, 3, 7, 0)) for name in chosen}
    if "search_allow_exact" in given:
        given["search_allow_exact"] = False
    bridge.strict = {"enabled": True, **given}


def _keyed(bridge: EdgeBridge, rng: random.Random, _: Aim) -> None:
    bridge.before = key_of(rng.choice(RIGHTS))


def _circle(bridge: EdgeBridge, rng: random.Random, _: Aim) -> None:
    """Pages that lead anywhere."""
    ids, number = [f"00000000-0000-0000-0000-{each:012}" for each in range(4)], [0]

    def before(method: str, path: str, *_: object) -> Answer | None:
        if not path.endswith("/scroll"):
            return None
        number[0] += 1
        page: list[Any] = rng.choice(([], [{"id": rng.choice(ids)}], [{"id": number[0]}]))
        found = {"points": page, "next_page_offset": rng.choice([*ids, number[0]])}
        return 200, {}, json.dumps({"result": found, "status": "ok", "time": 0.0}).encode()

    bridge.before = before


HTML = b"<html><body>502 Bad Gateway</body></html>"
NESTED = b"[" * 50_000 + b"]" * 50_000
KINDS: dict[str, Spoil] = {
    "bent": _bent,
    "bent again": _bent,
    "written": _written,
    "written again": _written,
    "states": _states,
    "strict": _strict,
    "a key": _keyed,
    "a circle": _circle,
    "busy": _instead(lambda rng: refusal(rng.choice((429, 503)), "busy", **{"Retry-After": rng.choice(WAITS)})),
    "refused": _instead(lambda rng: refusal(rng.choice((400, 401, 403, 404, 409, 413, 422, 500)), "no")),
    "redirect": _instead(lambda rng: (rng.choice((301, 302, 307)), {"Location": rng.choice(("/", "http://x"))}, b"")),
    "html": _instead(lambda rng: (rng.choice((200, 502, 403)), {"Content-Type": "text/html"}, HTML)),
    "nested": _instead(lambda rng: (rng.choice((200, 429, 500)), {}, NESTED)),
    "empty": _instead(lambda rng: (rng.choice((200, 204, 599)), {}, rng.choice((b"", b"{}", b'{"result": null}')))),
}


@contextmanager
def _server(place: Path, seed: str, kind: str) -> Iterator[tuple[list[object], Callable[[bytes], Any]]]:
    """The server in a fork: words of its address, and what makes it mean (`m`) or sane (`s`), or says what it holds
    (`d`)."""
    (up, down), (back, forth) = os.pipe(), os.pipe()
    if not (pid := os.fork()):
        try:
            _serve(place, random.Random(seed), kind, up, forth)
        finally:
            os._exit(0)
    with os.fdopen(down, "wb", 0) as asks, os.fdopen(back, "rb") as answers:

        def ask(letter: bytes) -> Any:
            asks.write(letter)
            return pickle.load(answers)

        try:
            yield pickle.load(answers), ask
        finally:
            asks.write(b"e")
            os.waitpid(pid, 0)


def _serve(place: Path, rng: random.Random, kind: str, asked: int, answers: int) -> None:
    from tests.edge_grpc import serving_grpc

    bridge, out = EdgeBridge(place), os.fdopen(answers, "wb", 0)
    with ExitStack() as stack:
        words: list[object] = ["--qdrant", stack.enter_context(serving(bridge))]
        words += ["--grpc-port", stack.enter_context(serving_grpc(bridge))] if rng.random() < 0.4 else []
        pickle.dump(words, out)
        while (letter := os.read(asked, 1)) in (b"m", b"s", b"d"):
            with bridge.lock:
                if letter != b"d":
                    sane = EdgeBridge(place)
                    bridge.before, bridge.after, bridge.raw = sane.before, sane.after, sane.raw
                    bridge.kind, bridge.strict = Collection, {}
                    bridge._said = EdgeBridge._said.__get__(bridge)  # type: ignore[method-assign]
                    if letter == b"m":
                        KINDS[kind](bridge, rng, Aim(rng))
                    for each in bridge.collections.values():
                        each.strict, each.status, each.waiting, each.__class__ = bridge.strict, "green", 0, bridge.kind
                    pickle.dump(True, out)
                else:
                    held = {name: each.points(sorted(set(each.sent))) for name, each in bridge.collections.items()}
                    pickle.dump((held, dict(bridge.aliases)), out)


def differences(run: Path, held: tuple[dict[str, list[Any]], dict[str, str]], alias: str) -> list[str]:
    """What a server holds of a run otherwise than its parquet has it."""
    import pyarrow.parquet as pq

    collections, aliases = held
    rows = pq.read_table(run / "exports" / "Docs" / "points.parquet", use_threads=False).to_pylist()
    name = aliases.get(alias, "") if alias else "docs"
    there = {each["id"]: each for each in collections.get(name, [])}
    found = [] if there.keys() == {row["id"] for row in rows} else [f"{name}: {len(there)} points of {len(rows)}"]
    for row in rows:
        if not (point := there.get(row["id"])):
            continue
        if any(point["payload"][key] != row[key] for key in ("text", "source", "chunk_id")):
            found.append(f"{row['id']} has another payload")
        for key, vector in row.items():
            if isinstance(vector, list) and not np.allclose(point["vector"][key], vector, rtol=0, atol=1e-6):
                found.append(f"{row['id']} has another {key}")
    return found


def trial(room: Room) -> Report:
    """One upload to a mean server, and the same command to a sane one."""
    report, kinds = Report(), list(KINDS)
    kind = kinds[room.number % len(kinds)]
    run = room.copied(room.field.whole(PLAIN))
    alias = room.rng.choice(("", "live"))
    more: list[object] = ["--alias", alias] if alias else []
    more += ["--prune"] if room.rng.random() < 0.5 or kind == "a circle" else []

    def command(words: list[object]) -> Outcome:
        limits = ["--patience", PATIENCE, "--settle", SETTLE]
        given = ["upload", run, "--collection", "Docs", *words, *limits, *more]
        return carry_out(given, room.place, setup=_hasty, patience=BOUND)

    with _server(room.place / "server", f"{room.rng.random()}", kind) as (words, ask):
        if there := room.rng.random() < 0.4:  # an upload was made there before, from another machine
            assert command(words).code == 0
            shutil.rmtree(run / "uploads")
        ask(b"m")
        first = command(words)
        report.tried.update(["made before"] if there else [])
        report.tried.update(["servers", f"server: {kind}", f"ended with {first.code}", "gRPC" if words[2:] else "REST"])
        report.wrong += _ended(first, run, ask, alias)
        ask(b"s")
        again = command(words)
        report.wrong += [f"then: {each}" for each in _ended(again, run, ask, alias)]
        if again.code:
            report.wrong.append(f"then exit code {again.code}: {again.last}")
    report.wrong = [f"{kind}, {' '.join(map(str, more))}: {each}" for each in report.wrong]
    return report


def _ended(outcome: Outcome, run: Path, ask: Callable[[bytes], Any], alias: str) -> list[str]:
    """What is wrong with an end: what it delivered, or how it says that it did not."""
    found = wrongs(outcome)
    lines = [line for line in outcome.err.splitlines() if line.startswith("interlock: ")]
    if outcome.code and not outcome.hung and len(lines[-1:]) != 1:
        found.append(f"no line says why: {outcome.err[-200:]!r}")
    if outcome.code == 0:
        held = ask(b"d")
        found += aside(lambda: differences(run, held, alias))
    return found


def _hasty() -> None:
    """Have the command wait for less."""
    from interlock.engine.targets import grpc_port, indexing, server

    server.TIMEOUT = grpc_port.TIMEOUT = grpc_port.PROBE = ATTEMPT  # type: ignore[assignment]
    indexing.SPACING = 0.1


CAMPAIGN = Campaign("servers", trial, 168, "a server that answers wrongly, late, strictly or never, then a sane one")
