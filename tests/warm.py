"""The command in a fork of a process that has imported what every command needs: real, and two seconds sooner there.

The process imports and forks, and does nothing else. Settings are read after the fork; caches and addresses of the hub
are read by an import, which is left to the fork where they are not those of every test.
"""

import atexit
import fcntl
import gc
import os
import pickle
import select
import signal
import socket
import subprocess
import sys
import tempfile
import termios
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import IO

MOST = 1 << 20
"""Bytes of a request."""
FILES, STORE = ("pyarrow.compute", "pyarrow.parquet"), ("numpy.ma", "qdrant_edge")
OF_COMMANDS = {
    "run": (*FILES, *STORE, "interlock.console.sources.again"),
    "export": (*FILES, *STORE, "interlock.console.delivery"),
    "search": (*STORE, "interlock.console.searching"),
    "upload": (*FILES, "httpcore", "interlock.console.delivery", "numpy.ma", "qdrant_client", "tenacity.asyncio"),
}
"""What a command imports beside what all do: the first of its kind has it imported for those after it."""


class Fork:
    """A command that was begun in a fork; of `subprocess.Popen` what tests ask of it, with both streams in files.

    With a `terminal`, which is open here, the command leads a session on it instead; `first` is run before the command.
    Instead of the command it is a `trial` of a tokenizer.
    """

    def __init__(
        self,
        args: list[str],
        env: Mapping[str, str],
        cwd: Path,
        *,
        hub: bool = False,
        trial: bool = False,
        terminal: int = -1,
        first: str = "",
    ) -> None:
        self.args = args
        self.returncode: int | None = None
        self._streams: list[IO[bytes]] = [tempfile.TemporaryFile() for _ in range(2)]  # noqa: SIM115
        self._end, end = os.pipe()
        request = pickle.dumps((args, dict(env), str(cwd), first))
        handles = [each.fileno() for each in self._streams] if terminal < 0 else [terminal]
        socket.send_fds(_server("trial" if trial else "hub" if hub else ""), [request], [end, *handles])
        os.close(end)
        self.pid = int(self._told())

    def __enter__(self) -> "Fork":
        return self

    def __exit__(self, *about: object) -> None:
        self.wait()

    def __del__(self) -> None:
        os.close(self._end)
        for stream in self._streams:
            stream.close()

    def poll(self) -> int | None:
        return self._ended(0)

    def wait(self, timeout: float | None = None) -> int:
        code = self._ended(timeout)
        if code is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0)
        return code

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """What was said on stdout and stderr until the end."""
        self.wait(timeout)
        said = []
        for stream in self._streams:
            stream.seek(0)
            said.append(stream.read().decode().replace("\r\n", "\n"))
        return said[0], said[1]

    def heard(self) -> bytes:
        """What was said on stderr so far."""
        return os.pread(self._streams[1].fileno(), 1 << 24, 0)

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with suppress(ProcessLookupError):  # it ended meanwhile, which Popen takes too
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def _ended(self, timeout: float | None) -> int | None:
        if self.returncode is None and select.select([self._end], [], [], timeout)[0]:
            self.returncode = int(self._told())
        return self.returncode

    def _told(self) -> bytes:
        """A number of eight signs: the process id, and once it has ended its exit code."""
        told = os.read(self._end, 8)
        assert len(told) == 8, "the process that forks commands has gone"
        return told


def trial(line: list[str], *, env: Mapping[str, str], **_: int) -> Fork:
    """Begin what the engine begins to try a tokenizer, in a fork."""
    return Fork(line[3:], env, Path.cwd(), trial=True)


@cache
def _server(kind: str) -> socket.socket:
    """A connection to a process that forks commands, with the `hub`'s library imported too, or forks a `trial`; it ends
    with this one."""
    from tests.builders import environment

    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with there:
        line = [sys.executable, "-m", "tests.warm", str(there.fileno()), kind]
        quiet = {"TRANSFORMERS_VERBOSITY": "critical"} if kind == "trial" else {}
        process = subprocess.Popen(line, env=environment(quiet), pass_fds=[there.fileno()], stdin=subprocess.DEVNULL)
    atexit.register(process.wait)
    atexit.register(here.close)
    return here


ASKED = """import os, pickle, socket, sys
told, end = os.pipe()
request = pickle.dumps((sys.argv[1:], dict(os.environ), os.getcwd(), ""))
socket.send_fds(socket.socket(fileno={number}), [request], [end, 1, 2])
os.close(end)
os.read(told, 8)
code = int(os.read(told, 8))
sys.exit(code if code >= 0 else 128 - code)
"""


def asking() -> tuple[str, int]:
    """A program for a shell that has its arguments done as the command by a fork, with its streams, environment and
    directory; and the connection that the shell has to leave open for it."""
    number = _server("hub").fileno()
    return ASKED.format(number=number), number


def serve(requests: socket.socket, kind: str) -> None:
    """Fork for every request until nobody can make one; a fork becomes the command, or the trial."""
    _import(kind)
    become = _try if kind == "trial" else _become
    keepers: list[int] = []
    while True:
        message, handles, _, _ = socket.recv_fds(requests, MOST, 3)
        if not message:
            break
        keepers = [keeper for keeper in keepers if os.waitpid(keeper, os.WNOHANG) == (0, 0)]
        args, *request = pickle.loads(message)
        for name in OF_COMMANDS.get(args[0], ()) if args and kind != "trial" else ():
            import_module(name)
        keepers.append(os.fork())
        if keepers[-1] == 0:
            requests.close()
            _keep(become, args, *request, *handles)
        for handle in handles:
            os.close(handle)
    for keeper in keepers:
        os.waitpid(keeper, 0)


def _import(kind: str) -> None:
    if kind == "trial":
        sys.modules["torch"] = None  # type: ignore[assignment]  # as a trial has it
        from transformers import AutoTokenizer  # noqa: F401
    else:
        from interlock.console.main import ENVIRONMENT

        for name, value in ENVIRONMENT.items():
            os.environ.setdefault(name, value)
        import interlock.console.commands
        import interlock.console.control.server
        import interlock.console.front_ends.dispatch
        import interlock.console.front_ends.headless
        import interlock.console.summary.document
        import interlock.engine.flows.forecast
        import interlock.engine.flows.run
        import interlock.engine.search.searcher  # noqa: F401
    if kind == "hub":
        import transformers  # noqa: F401
    gc.collect()
    gc.freeze()


def _keep(
    become: Callable[..., None], args: list[str], env: Mapping[str, str], cwd: str, first: str, end: int, *handles: int
) -> None:
    """Fork the command, tell its process id and how it ended; does not come back, but in the command's process."""
    pid = os.fork()
    if pid == 0:
        os.close(end)
        _take(*handles)
        become(args, env, cwd, first)
    for handle in handles:
        os.close(handle)
    os.write(end, b"%08d" % pid)
    os.write(end, b"%08d" % os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    os._exit(0)


def _take(out: int, err: int = -1) -> None:
    """Have these as stdout and stderr, or the first, a terminal, as all three and as this session's own."""
    if err < 0:
        os.setsid()
        fcntl.ioctl(out, termios.TIOCSCTTY, 0)
    for number, handle in enumerate((out, out, out) if err < 0 else (0, out, err)):
        os.dup2(handle, number)
    for handle in {out, err} - {-1}:
        os.close(handle)


def _become(args: list[str], env: Mapping[str, str], cwd: str, first: str) -> None:
    from interlock.console.main import main

    signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in what a shell began in the background
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(env)
    sys.argv = [str(Path(__file__).parents[1] / "src" / "interlock" / "__main__.py"), *args]
    exec(first, {})
    sys.exit(main())


def _try(args: list[str], env: Mapping[str, str], cwd: str, first: str) -> None:
    from interlock.engine.corpus.trial import main

    os.environ.update(env)
    main(*args)
    sys.exit()


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])), sys.argv[2])
