"""A person's shell in a directory of an odd name: what is printed is copied as it stands and run by bash.

Models, chunks and their number are made here, and what was delivered is counted with pyarrow; no code of the product
takes part in finding a command in a text, or in writing one.
"""

import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from bench.campaigns.process import aside
from bench.campaigns.tally import Report, Room
from tests import builders
from tests.pty_harness import OnTerminal

NAMES = (
    "plain", "two words", "it's", "-dash", "ünï-日本", "$HOME", "a;b&c", "(p) #x", "back`tick`", 'quo"te', "tab\there",
    "~", "!bang", "*[a]?", "back\\slash", "/".join(["deep" * 12] * 14), "{x,y}", "می\u200cخواهم",
)  # fmt: skip
PATIENCE, RECORDS = 180.0, 60
MODELS = ("one", "two", "slow", "words")
LOST = ("--devices", "sim:1xT4", "--faults", "lose:400")
"""The only GPU goes, and the run stops."""
Ended = subprocess.CompletedProcess[str]


class Shell:
    """One trial: where it takes place, and what it came to."""

    def __init__(self, room: Room, name: str) -> None:
        self.report, self.rng, self.name = Report(), room.rng, name
        self.home = room.place / "home" / name / "here"
        self.home.mkdir(parents=True)
        self.bin, self.shared = room.directory("bin"), _models(room.field.place)
        (self.bin / "interlock").write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m interlock "$@"\n')
        (self.bin / "interlock").chmod(0o755)
        self.texts = builders.sentences(RECORDS)
        self.chunks = builders.corpus(self.home / "my chunks", {"Docs": {"a_chunks.json": self.texts}})
        rows = {name: {"source": str(self.shared / name), "batch_tokens": 96} for name in MODELS}
        self.config = builders.toml(self.home / "my file.toml", rows | {"words": {**rows["words"], "kind": "sparse"}})
        self.relative = room.rng.random() < 0.5
        """Whether paths are typed as they are seen from here."""
        self.runs = self.home / "my runs"

    def typed(self, path: Path) -> str:
        """A path as a person types it, who knows of leading dashes."""
        text = os.path.relpath(path, self.home) if self.relative else str(path)
        return f"./{text}" if text.startswith("-") else text

    def environment(self, more: dict[str, str]) -> dict[str, str]:
        return builders.environment(more) | {"PATH": f"{self.bin}:{os.environ['PATH']}"}

    def do(self, line: str, cwd: Path | None = None, patience: float = PATIENCE, **env: str) -> Ended:
        """Run a line in bash."""
        return subprocess.run(["bash", "-c", line], cwd=cwd or self.home, env=self.environment(env), text=True,
                              capture_output=True, timeout=patience, stdin=subprocess.DEVNULL)  # fmt: skip

    def ours(self, *words: object, code: int | None = 0, cwd: Path | None = None, **env: str) -> Ended:
        """Run a command of ours that we typed ourselves; what it printed is what is tried."""
        done = self.do(line_of(words), cwd, **env)
        if code is not None and done.returncode != code:
            raise RuntimeError(f"{words[0]} ended with {done.returncode}, not {code}: {done.stderr[-600:]}")
        return done

    def run(self, *flags: object, name: str = "r", code: int | None = 0, roster: str = "one,two", **env: str) -> Ended:
        """Embed the chunks under this name."""
        return self.ours(*self.words(*flags, name=name, roster=roster), code=code, **env)

    def words(self, *flags: object, name: str = "r", roster: str = "one,two") -> list[object]:
        """The arguments of a run; a roster of paths needs no file, and none is that of the environment."""
        given = ["--config", self.typed(self.config)] if not roster.startswith("./") else []
        given += ["--roster", roster] if roster else []
        return [
            "run",
            self.typed(self.chunks),
            *given,
            "--out",
            self.typed(self.runs),
            "--run-id",
            name,
            "--no-ui",
            *flags,
        ]

    def begun(self, *flags: object, event: str, **env: str) -> "subprocess.Popen[str]":
        """A run of a slow model that goes on, once its journal tells of this; its words lie in `log`."""
        line = line_of(self.words(*flags, "--devices", "cpu", roster="slow,one"))
        with (self.home / "log").open("w") as log:
            made = subprocess.Popen(["bash", "-c", f"exec {line}"], cwd=self.home, env=self.environment(env), text=True,
                                    stdin=subprocess.DEVNULL, stdout=log, stderr=log)  # fmt: skip
        until, journal = time.monotonic() + PATIENCE, self.runs / "r" / "journal.jsonl"
        while not (journal.exists() and event in journal.read_text()):
            if made.poll() is not None or time.monotonic() > until:
                raise RuntimeError(f"it ended before {event}: {(self.home / 'log').read_text()[-400:]}")
            time.sleep(0.02)
        return made

    def signalled(self, number: int, *flags: object, event: str = '"batch_committed"') -> Ended:
        """Such a run, to which this signal is sent then."""
        made = self.begun(*flags, event=event)
        made.send_signal(number)
        code = made.wait(PATIENCE)
        return subprocess.CompletedProcess([], code, "", (self.home / "log").read_text())

    def slowly(self) -> None:
        """Take so many chunks that a run can be met in the middle."""
        self.texts = builders.sentences(4000)
        builders.corpus(self.chunks, {"Docs": {"a_chunks.json": self.texts}})

    # What is copied.

    def wrong(self, told: str) -> None:
        self.report.wrong.append(f"{self.name!r}: {told}")

    def paste(
        self, line: str, codes: Sequence[int] = (0,), says: str = "", cwd: Path | None = None, **env: str
    ) -> Ended:
        """Run a printed command as it stands. It has to end with one of the codes, and to say this."""
        done = self.do(line, cwd, **env)
        self.report.tried[f"pasted: {line.split()[1]}"] += 1
        if done.returncode not in codes:
            self.wrong(f"exit {done.returncode}, not {codes[0]}, of {line}: {done.stderr.strip()[-200:]}")
        elif says not in done.stdout + done.stderr:
            self.wrong(f"{says!r} is not said by {line}: {(done.stdout + done.stderr)[-200:]}")
        return done

    def next_of(self, said: str, word: str) -> str:
        """The printed next command with this word."""
        found = [
            line.removeprefix("next: ") for line in said.splitlines() if re.match(f"next: interlock .*{word}", line)
        ]
        return found[0] if found else self.none(word, said)

    def between(self, said: str, before: str, after: str) -> str:
        """The command between the words of a sentence."""
        found = re.search(f"{before}(interlock .*?){after}", said, re.S)
        return found[1] if found else self.none(before, said)

    def none(self, wanted: str, said: str) -> str:
        self.wrong(f"no command is printed ({wanted}): {said.strip()[-300:]}")
        return "interlock --version"

    def go_on(self, said: Ended, cwd: Path | None = None, **env: str) -> Ended:
        """Paste the next command until the run is whole, and then the one that shows it."""
        for _ in range(6):
            said = self.paste(self.next_of(said.stderr, "--resume"), (0, 4), cwd=cwd, **env)
            if said.returncode != 4:
                break
        else:
            self.wrong("it stops for ever")
        self.whole(self.runs / "r")
        self.paste(self.next_of(said.stderr, "view"), says="completed", cwd=cwd)
        return said

    def whole(self, run: Path, wanted: int | None = None) -> None:
        """Every text has its point."""
        import pyarrow.parquet as pq

        file, wanted = run / "exports" / "Docs" / "points.parquet", len(self.texts) if wanted is None else wanted
        there = pq.read_metadata(file).num_rows if file.exists() else 0
        if there != wanted:
            self.wrong(f"{there} points of {wanted} texts in {run.name}")

    def on_terminal(self, line: str, until: Callable[[OnTerminal], object] | None = None, columns: int = 80) -> str:
        """What a terminal of so many columns shows at the end, with the lines that it broke put together again."""
        tall = {"columns": columns, "rows": 200}
        with OnTerminal(["bash", "-c", line], cwd=self.home, env=self.environment({}), **tall) as terminal:
            if until:
                until(terminal)
            terminal.wait(PATIENCE)
            time.sleep(0.2)
            rows = [row.ljust(columns) for row in terminal.screen().lines]
        return re.sub(r" +\n", "\n", "".join(row if row.rstrip() == row else row.rstrip() + "\n" for row in rows))


def _models(place: Path) -> Path:
    """Models of the trials, made once; a fork of its own, since torch's threads do not survive one."""
    home = place / "commands"
    if not home.exists():
        made = home.with_name(f"commands-{os.getpid()}")
        for pooling, name in {"mean": "one", "cls": "two"}.items():
            builders.tiny_model(made / name, seed=len(pooling), pooling=pooling)
        builders.tiny_model(made / "slow", seed=5, width=192, layers=6)
        builders.tiny_sparse(made / "words", seed=7)
        try:
            made.rename(home)
        except OSError:
            assert home.exists()
    return home


def line_of(words: Sequence[object]) -> str:
    """A command as a person types it."""
    return shlex.join(["interlock", *map(str, words)])


def kill(process: "subprocess.Popen[str]") -> None:
    process.send_signal(signal.SIGKILL)
    process.wait()


class Kinds(dict[str, Callable[[Shell], object]]):
    """Kinds of trials by name; called with a function, it makes it one."""

    def __call__(self, work: Callable[[Shell], object]) -> Callable[[Shell], object]:
        self[work.__name__] = work
        return work

    def trial(self, room: Room) -> Report:
        """One kind, in a directory of one name."""
        name, work = list(self.items())[room.number % len(self)]
        odd = NAMES[(room.number + room.number // len(self)) % len(NAMES)]

        def done() -> Report:
            shell = Shell(room, odd)
            try:
                work(shell)
            except (RuntimeError, AssertionError) as error:
                shell.wrong(str(error))
            return shell.report

        report = aside(done)
        report.tried[name] += 1
        report.wrong = [f"{name} in {each}" for each in report.wrong]
        return report
