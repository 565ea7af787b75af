"""Reranking as a command or a script asks for it: devices, telemetry and progress around `engine.search.rerank`.

Events go to stderr as lines, or with a file to that file, one journal line each, and only what went wrong to stderr.
"""

import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from interlock.console.text.event_text import line_of
from interlock.console.writing import check_directory, progress, writing
from interlock.engine.corpus.pairs import PairLine, read_pairs
from interlock.engine.errors import InterlockError, UsageError
from interlock.engine.record import atomic, journal
from interlock.engine.record.events import AnyEvent, Emit, Entry, LeaseGranted, LeaseReleased, RunStarted, Warned
from interlock.engine.record.words import human_bytes, safe, several
from interlock.engine.settings import Configuration

if TYPE_CHECKING:
    from interlock.engine.compute.pairs import Pair
    from interlock.engine.compute.scorer import PairPlan
    from interlock.engine.gpu.device import Device
    from interlock.engine.gpu.lease import Lessor
    from interlock.engine.search.rerank import Blend, Rerankers

WINDOW = 8192
"""Pairs that are tokenised, sorted and scored together, at least."""
LONGEST = 1_000_000
"""Bytes of a line of telemetry, at most."""

Hear = Callable[[str], AbstractContextManager[Emit]]


def nothing_heard(device_kind: str) -> AbstractContextManager[Emit]:
    """Take events, and tell nobody."""
    return nullcontext(lambda event: None)


class Telemetry:
    """Takes the events of reranking; a context manager, whose file is appended to."""

    def __init__(self, file: Path | None, device_kind: str) -> None:
        self._file, self._kind = file, device_kind
        self._stack = ExitStack()
        self._count, self._began = 0, time.monotonic()

    def __enter__(self) -> "Telemetry":
        if self._file:
            _check_appendable(self._file)
            with atomic.explaining(self._file):
                self._out = self._stack.enter_context(self._file.open("ab", buffering=0))
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def __call__(self, event: AnyEvent) -> None:
        if self._file:
            elapsed = round(time.monotonic() - self._began, 3)
            entry = Entry(
                seq=self._count, at=time.time(), session=1, elapsed=elapsed, device_kind=self._kind, body=event
            )
            with atomic.explaining(self._file):
                self._out.write(journal.encode(entry))
            self._count += 1
        line = "" if isinstance(event, LeaseGranted | LeaseReleased) else line_of(event, self._kind)  # moves say it
        if line and (not self._file or line.startswith(("warning", "error"))):
            print(f"interlock: {safe(line)}", file=sys.stderr, flush=True)


@dataclass(frozen=True)
class Lent:
    """What a command may compute on: the GPUs of the settings that no run holds, and the CPU; who lends them; and who
    hears of it."""

    gpus: "Sequence[Device]"
    host: "Device"
    lessor: "Lessor"
    emit: Emit


@contextmanager
def lending(settings: Configuration, hear: Hear) -> Iterator[Lent]:
    """Find the devices of the settings; GPUs that a run holds are left to it. `hear` gets the kind of the devices, and
    gives what takes events."""
    from interlock.engine.gpu.cpu import CpuDevice
    from interlock.engine.gpu.devices import choose
    from interlock.engine.gpu.lease import Lessor
    from interlock.engine.gpu.locks import holder

    own = settings.settings
    found = choose(own.devices, own.faults)
    held = {device.name: by for device in found if (by := holder(device))}
    host = next((device for device in found if device.kind == "cpu"), None) or CpuDevice()
    gpus = [device for device in found if device is not host and device.name not in held]
    with hear(found[0].kind) as emit:
        for name, by in held.items():
            emit(Warned(message=f"{name} is left to {by}: computing elsewhere"))
        yield Lent(gpus, host, Lessor([*gpus, host], own.ceiling, own.host_ceiling), emit)


def rerankers(settings: Configuration, names: Sequence[str], lent: Lent, others: Sequence[str] = ()) -> "Rerankers":
    """Open the models of `--rerank` or `--model` in their order; `others` are offered where a name means nothing."""
    from interlock.engine.models import registry
    from interlock.engine.models.assets import Policy
    from interlock.engine.search.rerank import Rerankers

    own = settings.settings
    specs = registry.rerankers(registry.extended(settings.models), names, others)
    policy = Policy(offline=own.offline, pickles=own.allow_pickle)
    return Rerankers(specs, policy, lent.gpus, lent.host, lent.lessor, lent.emit, cpu_fallback=own.cpu_fallback)


def check_telemetry(telemetry: Path | None, others: Mapping[str, Path | None]) -> None:
    """Raise UsageError where events would be appended to one of these files, which are read or written otherwise."""
    for name, other in others.items():
        if telemetry and other and _same(telemetry, other):
            raise UsageError(f"--telemetry: {telemetry} is {name}: name another file")


def _same(one: Path, other: Path) -> bool:
    """Whether two paths are of one file, by whatever name, or would be."""
    return one.samefile(other) if one.exists() and other.exists() else one.resolve() == other.resolve()


def _check_appendable(file: Path) -> None:
    """Raise UsageError for a file that begins with anything but telemetry: one of a run or a store, by any name."""
    if not file.is_file():
        return
    with atomic.explaining(file), file.open("rb") as there:
        line = there.readline(LONGEST)
    with suppress(InterlockError):  # for an entry of another version
        entry = journal.decode(line) if line else None
        if not line or (entry and not isinstance(entry.body, RunStarted)):
            return
    raise UsageError(f"--telemetry: {file} holds something else, to which nothing is added: name another file")


def late_of(settings: Configuration, names: Sequence[str]) -> str:
    """Name the model of late interaction that `names` of rerankers mean, a dense one or `maxsim`; empty for
    cross-encoders. Raises UsageError where another one is named beside it."""
    from interlock.engine.models import registry
    from interlock.engine.search.ask import MAXSIM

    known = registry.extended(settings.models)
    late = [name for name in names if name == MAXSIM or (name in known and known[name].kind == "dense")]
    if late and len(names) > 1:
        raise UsageError(f"--rerank: {late[0]} compares token vectors, which needs no other model: name it alone")
    return late[0] if late else ""


def blend_of(settings: Configuration, names: Sequence[str], share: float | None, depth: int | None) -> "Blend":
    """Make the blend of what was given for these rerankers. Raises UsageError for what is out of bounds."""
    from interlock.engine.search.blend import LATE_SHARE
    from interlock.engine.search.rerank import Blend

    if share is None and late_of(settings, names):
        share = LATE_SHARE
    given = {"share": share, "depth": depth}
    return Blend(**{name: value for name, value in given.items() if value is not None})  # type: ignore[arg-type]


def score_file(settings: Configuration, file: Path, names: Sequence[str], out: Path | None, hear: Hear) -> None:
    """Score the pairs of a file, and write a line for each of its lines to `out`, whole or not at all, or to stdout."""
    total = sum(len(line.texts) for line in read_pairs(file))  # a bad line is told before anything is computed
    check_directory("--out", out)
    if out and out.is_dir():
        raise UsageError(f"--out: {out} is a directory: name a file")
    if out and out.exists() and out.samefile(file):
        raise UsageError(f"--out: {out} is the file of pairs, which the scores would replace: name another file")
    with (
        lending(settings, hear) as lent,
        rerankers(settings, names, lent) as models,
        writing(out) as write,
        progress("pair") as told,
    ):
        done, first = 0, ""
        for lines in _windows(read_pairs(file)):
            pairs = _pairs(lines)

            def tell(count: int, before: int = done) -> None:
                told(models.model, before + count, total)

            scores = [float(score) for score in models.score(pairs, tell)]
            if first not in ("", models.model):
                raise InterlockError(
                    f"{first} scored the first {several(done, 'pair')} of {file} and not the others, and scores of two "
                    f"models cannot be compared: name --model {models.model} alone"
                )
            first = models.model
            done += len(pairs)
            for line in lines:
                own, scores = scores[: len(line.texts)], scores[len(line.texts) :]
                write(json.dumps({"score": own[0]} if line.alone else {"scores": own}) + "\n")


def plan_file(settings: Configuration, file: Path, names: Sequence[str], hear: Hear) -> str:
    """Plan the pairs of a file, and say what scoring them would take."""
    with lending(settings, hear) as lent, rerankers(settings, names, lent) as models:
        plans = [models.plan(_pairs(lines)) for lines in _windows(read_pairs(file))]
        return plan_text(models.model, plans)


def plan_text(model: str, plans: "Sequence[PairPlan]") -> str:
    """Word a plan of pairs."""
    if not any(plan.rows for plan in plans):
        return f"{safe(model)}: nothing to score"
    pairs, truncated = sum(len(plan.rows) for plan in plans), sum(plan.truncated for plan in plans)
    tokens, cut = sum(plan.batches.tokens for plan in plans), sum(plan.truncated_tokens for plan in plans)
    batches = sum(len(plan.batches.batches) for plan in plans)
    longest = max(len(row) for plan in plans for row in plan.rows)
    weights, needed = plans[0].weights, max(plan.needed for plan in plans)
    return "\n".join(
        [
            f"{safe(model)}: {several(pairs, 'pair')} in {several(batches, 'batch', 'batches')}, "
            f"{several(tokens, 'token')}, the longest pair {longest:,}",
            f"truncated: {several(truncated, 'pair')}, {several(cut, 'token')} cut off",
            f"predicted on {plans[0].device}: {human_bytes(weights + needed)} ({human_bytes(weights)} weights, "
            f"{human_bytes(needed)} for the largest batch)",
        ]
    )


def _pairs(lines: Sequence[PairLine]) -> "list[Pair]":
    return [(line.query, text) for line in lines for text in line.texts]


def _windows(lines: Iterator[PairLine]) -> Iterator[list[PairLine]]:
    """Lines in lists of `WINDOW` pairs at least, but for the last."""
    for first in lines:
        window, pairs = [first], len(first.texts)
        while pairs < WINDOW and (line := next(lines, None)):
            window.append(line)
            pairs += len(line.texts)
        yield window
