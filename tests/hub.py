"""A small hub on 127.0.0.1 that speaks as much of the Hugging Face protocol as its client needs to fetch a model."""

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from urllib.parse import unquote, urlsplit


class Hub:
    """Serves one model directory as `repo` at `commit`.

    The first `failures` requests are answered with 503, and those for a repository in `refused` with its status.
    """

    def __init__(
        self, repo: str, model: Path, commit: str, failures: int = 0, refused: Mapping[str, int] | None = None
    ) -> None:
        self.repo = repo
        self.model = model
        self.commit = commit
        self.failures = failures
        self.refused = refused or {}
        self.requests: list[str] = []
        self.url = ""

    @contextmanager
    def serving(self) -> Iterator["Hub"]:
        """Answer requests at `url` until the block is left."""
        server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"hub": self}))
        self.url = f"http://127.0.0.1:{server.server_port}"
        Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        try:
            yield self
        finally:
            server.shutdown()
            server.server_close()

    def files(self) -> list[Path]:
        return sorted(path for path in self.model.rglob("*") if path.is_file())


class _Handler(BaseHTTPRequestHandler):
    hub: Hub
    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def log_message(self, *_: object) -> None:
        """Nothing on the tests' stderr."""

    def _answer(self) -> None:
        hub, path = self.hub, unquote(urlsplit(self.path).path)
        hub.requests.append(f"{self.command} {path}")
        if hub.failures:
            hub.failures -= 1
            self._send(503, b"{}")
        elif status := next((status for repo, status in hub.refused.items() if f"/{repo}/" in path), 0):
            self._send(status, b"{}")
        elif path == f"/api/models/{hub.repo}" or path.startswith(f"/api/models/{hub.repo}/revision/"):
            self._send(200, json.dumps({"id": hub.repo, "sha": hub.commit, "siblings": self._siblings()}).encode())
        elif path.startswith(f"/api/models/{hub.repo}/tree/"):  # of the commit; an older client asks for the branch
            self._send(200, json.dumps([self._listed(file) for file in hub.files()]).encode())
        elif path.startswith(tuple(wanted := [f"/{hub.repo}/resolve/{each}/" for each in (hub.commit, "main")])):
            self._file(hub.model / next(path.removeprefix(each) for each in wanted if path.startswith(each)))
        else:
            self._send(404, b"{}", {"X-Error-Code": "RepoNotFound"})

    def _siblings(self) -> list[dict[str, str]]:
        return [{"rfilename": file.relative_to(self.hub.model).as_posix()} for file in self.hub.files()]

    def _listed(self, file: Path) -> dict[str, object]:
        name = file.relative_to(self.hub.model).as_posix()
        return {"type": "file", "path": name, "size": file.stat().st_size, "oid": _oid(file)}

    def _file(self, file: Path) -> None:
        if file.is_file():
            self._send(200, file.read_bytes(), {"ETag": f'"{_oid(file)}"', "X-Repo-Commit": self.hub.commit})
        else:
            self._send(404, b"", {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": self.hub.commit})

    def _send(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)


def _oid(file: Path) -> str:
    return hashlib.sha1(file.read_bytes(), usedforsecurity=False).hexdigest()
