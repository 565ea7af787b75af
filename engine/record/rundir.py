"""A run on disk: where it lies, which run is meant, and the inputs it was begun with.

`run.json` is written once and never changed. A run is continued only with the same inputs; what differs is told.
"""

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from engine.errors import InterlockError, UsageError
from engine.record import durable
from engine.record.compare import differences, few

SCRATCH = ".tokens-"
RUN, JOURNAL, SUMMARY = "run.json", "journal.jsonl", "summary.json"


@dataclass(frozen=True)
class RunDirectory:
    """The files of one run."""

    path: Path

    @property
    def id(self) -> str:
        return self.path.name

    @property
    def journal(self) -> Path:
        return self.path / JOURNAL

    @property
    def summary(self) -> Path:
        return self.path / SUMMARY

    def scratch(self) -> TemporaryDirectory[str]:
        """A place for one session's token ids, gone when it ends; what a killed session left is cleared."""
        for left in self.path.glob(f"{SCRATCH}*"):
            shutil.rmtree(left, ignore_errors=True)
        with durable.explaining(self.path):
            return TemporaryDirectory(prefix=SCRATCH, dir=self.path)

    def vectors(self, model_pass: int, model: str) -> Path:
        """The vectors of a pass, a row for each distinct text."""
        return self.path / "passes" / f"{model_pass}_{model}" / "vectors.npy"

    @property
    def digests(self) -> Path:
        """What each row of the passes' vectors is the vector of: 16 bytes of the text's SHA-256."""
        return self.path / "passes" / "texts.npy"

    def exports(self, collection: str) -> Path:
        return self.path / "exports" / collection

    def inputs(self) -> dict[str, Any]:
        """What the run was begun with; empty for a run that has not come so far. Raises InterlockError when damaged."""
        file = self.path / RUN
        if not file.exists():
            return {}
        try:
            return dict(json.loads(file.read_text()))
        except ValueError as error:
            raise InterlockError(f"{file} is damaged: {error}") from error


def choose(out: Path, run_id: str, chunks: Path, resume: bool) -> RunDirectory:
    """The directory that these flags mean: a new one, or with `resume` the one to continue.

    Raises UsageError for a run that exists and is not to be resumed, and for a directory of something else.
    """
    named = RunDirectory(out / run_id) if run_id else None
    found = named or (_newest(out, chunks) if resume else None) or RunDirectory(out / _fresh_id(out))
    if found.journal.exists() and not resume:
        raise UsageError(f"run {found.id} exists in {out}: add --resume to continue it, or choose another --run-id")
    if not found.journal.exists() and found.path.exists() and any(found.path.iterdir()):
        raise UsageError(f"{found.path} holds something that is no run: choose another --run-id or --out")
    return found


def bind(directory: RunDirectory, inputs: Mapping[str, Any]) -> None:
    """Tie the run to its inputs. Raises UsageError with what changed where it was begun with others."""
    begun = directory.inputs()
    if not begun:
        durable.write_bytes(directory.path / RUN, json.dumps(inputs, indent=2).encode() + b"\n")
    elif changed := list(differences(_compared(begun), _compared(json.loads(json.dumps(inputs))))):
        raise UsageError(
            f"run {directory.id} was begun with other inputs and is not continued:\n  "
            + few(changed, 20).replace("; ", "\n  ")
            + f"\nput them back, or start a new run with --reuse {directory.path} (what is the same costs nothing)"
        )


def _compared(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Everything but where the chunks lie: the same files elsewhere are the same input."""
    return {key: value for key, value in inputs.items() if key != "chunks"}


def _newest(out: Path, chunks: Path) -> RunDirectory | None:
    runs = [RunDirectory(file.parent) for file in out.glob(f"*/{RUN}")]
    same = [run for run in runs if run.inputs().get("chunks") == str(chunks.resolve())]
    return max(same, key=lambda run: (run.path / RUN).stat().st_mtime_ns, default=None)


def _fresh_id(out: Path) -> str:
    stamp = datetime.now().strftime("%Y%m%d-%H%M%S")
    taken = {path.name for path in out.glob(f"{stamp}*")}
    return next(name for number in range(1000) if (name := stamp + (f"-{number}" if number else "")) not in taken)
