"""What the tests of uploads share: a run with every kind of vector, a server of the bridge, and a clock that jumps."""

import json
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import httpx

from interlock.engine.compute.controls import Controls
from interlock.engine.flows.run import Run
from interlock.engine.settings import load
from interlock.engine.targets.connection import Address, ApiKey, Patience
from interlock.engine.targets.files.exported import ExportedCollection, ExportedRun
from interlock.engine.targets.server import QdrantServer
from interlock.engine.targets.upload import CollectionUpload
from interlock.engine.targets.upload_plan import UploadOptions, UploadReport
from tests.builders import pins_of, sentences, start, tiny_m3, toml
from tests.edge_bridge import Answer, EdgeBridge, refusal

ROWS = 90
URL = "http://localhost:6333"


def records(rows: int = ROWS, told: object = "", changed: Sequence[int] = ()) -> list[dict[str, Any]]:
    """Chunks with metadata of every kind, some with fields of their own, one twice, one that has no words; with `told`
    in the metadata, if anything, and a longer text in the rows that are `changed`."""
    texts = [*sentences(rows - 2), sentences(1)[0], "—"]
    for row in changed:
        texts[row] += " and more words"
    found: list[dict[str, Any]] = []
    for number, text in enumerate(texts):
        metadata = {"chunk_id": f"c{number}", "lang": ["en", "de"][number % 2], "page": number, "share": number / 7}
        metadata |= {"told": told} if told else {}
        record: dict[str, Any] = {"text": text, "metadata": metadata}
        if number % 3 == 0:
            record["sparse_features"] = {"key": 0.5, f"word{number}": 2.0}
        if number % 5 == 0:
            record |= {"title": f"Title {number}", "deep": {"list": [1, None, "ü"], "large": 2**70}}
        if number == 7:
            metadata["record"] = {"of": "its own"}
        found.append(record)
    return found


def embedded(
    home: Path, tiny: Path, name: str, rows: int = ROWS, told: object = "", changed: Sequence[int] = (), **flags: str
) -> Path:
    """Embed these chunks with dense, sparse, token and BM25 vectors into files and a store: the run's directory."""
    model = home / "m"
    if not model.exists():
        tiny_m3(model, seed=6)
    chunks = home / f"in-{rows}{told}{'-changed' if changed else ''}" / "Docs" / "a.jsonl"
    chunks.parent.mkdir(parents=True, exist_ok=True)
    chunks.write_text("".join(json.dumps(record) + "\n" for record in records(rows, told, changed)))
    config = toml(
        home / "interlock.toml",
        {"m": {"source": str(model), "head_sha256": pins_of(model)}, "a": {"source": str(tiny)}},
    )
    given = {
        "out": str(home / "runs"),
        "run_id": name,
        "roster": "m,a",
        "sparse": "m",
        "token_vectors": "m",
        "chunk_sparse": "keywords",
        "devices": "cpu",
        "qdrant": str(home / "stores" / name),
        **flags,
    }
    assert Run(chunks.parents[1], load(given, {}, config), Controls()).go() == 0
    return home / "runs" / name


def answered(result: object) -> Answer:
    """How a server says what it found."""
    return 200, {}, json.dumps({"result": result, "status": "ok", "time": 0.0}).encode()


def key_of(rights: str) -> Callable[[str, str, bytes, dict[str, str]], Answer | None]:
    """A server that lets a key do what Qdrant lets one: `r`, `prw` and `rw` are for a collection, `m` is global."""

    def before(method: str, path: str, *_: object) -> Answer | None:
        aliases = path == "/collections/aliases"
        if (method in ("PUT", "PATCH") and path.count("/") == 2) or (method == "POST" and aliases):
            return None if rights == "m" else refusal(403, "Global access is required")
        writes = (method, path.rpartition("/")[2]) in (("PUT", "points"), ("POST", "delete"), ("GRPC", "Upsert"))
        if writes and rights == "r":
            return refusal(403, "Write access to collection docs is required")
        if path.endswith("/index") and rights in ("r", "prw"):
            return refusal(403, "Only points access is allowed for collection docs")
        return None

    return before


class Clock:
    """Time that passes when somebody sleeps."""

    def __init__(self) -> None:
        self.now, self.slept = 0.0, list[float]()

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


def transport(bridge: EdgeBridge, seen: Callable[[httpx.Request], object] = lambda _: None) -> httpx.MockTransport:
    """The bridge in the place of the network."""

    def handle(request: httpx.Request) -> httpx.Response:
        seen(request)
        headers = {name.lower(): value for name, value in request.headers.items()}
        target = request.url.raw_path.decode()
        status, more, content = bridge.answer(request.method, target, request.content, headers)
        return httpx.Response(status, headers=more, content=content)

    return httpx.MockTransport(handle)


def opened(run: Path, wanted: str | None = None) -> ExportedCollection:
    (found,) = ExportedRun.open(run).collections(wanted)
    return found


class Uploads:
    """Uploads of one run to one bridge, with no network and no waiting; `told` is what they said."""

    def __init__(self, bridge: EdgeBridge, run: Path, directory: Path) -> None:
        self.bridge, self.run, self.directory = bridge, run, directory
        self.clock, self.told, self.progress = Clock(), list[str](), list[int]()
        self.seen: Callable[[httpx.Request], object] = lambda _: None

    def __call__(
        self,
        run: Path | None = None,
        *,
        patience: float = 100.0,
        key: str = "",
        through: httpx.MockTransport | None = None,
        wanted: str | None = None,
        **options: Any,
    ) -> UploadReport:
        clock = self.clock
        waits = Patience(patience, lambda *said: self.told.append(str(said)), clock, clock.sleep, lambda: 0.0)
        link = through or transport(self.bridge, lambda request: self.seen(request))
        with QdrantServer(Address.parse(URL), ApiKey(key) if key else None, waits, link) as server:
            collection, asked = opened(run or self.run, wanted), UploadOptions(**options)
            return CollectionUpload(
                collection,
                server,
                asked,
                self.directory,
                progress=lambda done, _: self.progress.append(done),
                say=self.told.append,
                clock=clock,
                sleep=clock.sleep,
            ).go()


Side = Literal["lost", "taken", "answered"]
SIDES: tuple[Side, ...] = ("lost", "taken", "answered")


def killed(words: Sequence[object], bridge: EdgeBridge, at: int, side: Side, path: str = "") -> bool:
    """Upload in a process of its own that is killed at its request number `at`, of those for `path` if that is given:
    before the server took it, while it does, or when it had done it. False: it ended before that."""
    begun, asked = threading.Event(), 0
    process: Any = None

    def kill() -> None:
        begun.wait()
        os.kill(process.pid, signal.SIGKILL)  # whoever waits for it reads its end

    def before(_: str, to: str, *__: object) -> Answer | None:
        nonlocal asked
        if path not in ("", to):
            return None
        asked += 1
        if asked == at and side != "answered":
            kill()
            return refusal(500, "gone") if side == "lost" else None
        return None

    def after(_: str, to: str) -> Answer | None:
        if asked == at and path in ("", to) and side == "answered":
            kill()
        return None

    bridge.before, bridge.after = before, after
    process = start(*words)
    begun.set()
    try:
        said = process.communicate(120)
    finally:
        process.kill()
        bridge.before = bridge.after = lambda *_: None
    assert process.returncode in (0, -signal.SIGKILL), said
    return bool(process.returncode)


@contextmanager
def bridged(directory: Path) -> Iterator[EdgeBridge]:
    bridge = EdgeBridge(directory)
    try:
        yield bridge
    finally:
        bridge.close()
