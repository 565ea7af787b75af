"""The command lines that go on from a run, exactly as they are typed."""

import shlex
from collections.abc import Sequence
from pathlib import Path


def resume_words(chunks: str, run: Path, *, rehearsed: bool) -> list[str]:
    """Write the arguments of `interlock` that go on with the run of `chunks` whose directory is `run`; one that was
    `rehearsed` writes its chunks itself."""
    begun = ["demo", "--scripted"] if rehearsed else ["run", chunks]
    named = [f"--run-id={run.name}"] if run.name.startswith("-") else ["--run-id", run.name]
    return [*begun, "--out", str(run.parent), *named, "--resume"]


def command(words: Sequence[str]) -> str:
    """Write arguments of `interlock` as a shell takes them."""
    return shlex.join(["interlock", *words])
