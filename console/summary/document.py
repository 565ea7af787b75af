"""Reads `summary.json` for people: from a file or a run directory, as a header, as tables, and as plain text.

Pure but for `load`, and without a terminal library. A summary that cannot be shown raises a UsageError that says what
to do; fields that a later writer adds are shown like the others.
"""

import json
import stat
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any, NoReturn

from interlock.console.summary.tables import listed, objects, overview
from interlock.engine.errors import InterlockError, UsageError, near
from interlock.engine.record.atomic import LARGEST, held
from interlock.engine.record.rundir import JOURNAL, beside
from interlock.engine.record.summary import Summary, dumps, summarise
from interlock.engine.record.words import argument, command, duration, few, human_bytes, safe, several
from interlock.engine.standing.health import ENDED, ended
from interlock.engine.standing.runs import overview as overview_of
from interlock.engine.standing.runs import state_of
from interlock.widgets.formats import render
from interlock.widgets.nodes import No, Node, Step, differences, human, title, written

VERSION = "1"
FILE = "summary.json"
ALWAYS = {"run_id", "started_at", "finished_at", "at", "lease"}
"""Fields that are different in any two runs, and say nothing of either."""
FEW = 100
"""Whole numbers below it are compared by themselves: many are no amounts."""
OWN = ("run_id", "status", "collections")


@dataclass(frozen=True)
class Document:
    """A summary, its name on the screen, and the size of its file."""

    data: Mapping[str, object]
    name: str = FILE
    size: int | None = None
    """Of the file, in bytes."""


@dataclass(frozen=True)
class Fact:
    """A word of the header; those of the lowest rank stay where room is short."""

    text: str
    style: str = ""
    rank: int = 0


def load(path: Path) -> Document:
    """Read the summary at a path, or in the run directory at it. Raises UsageError."""
    file = _file(path)
    try:
        facts = file.stat()
        if not stat.S_ISREG(facts.st_mode):
            raise UsageError(f"{file}: not a file: name a {FILE} or a run directory")
        if facts.st_size > LARGEST:
            size = human_bytes(facts.st_size)
            raise UsageError(f"{file}: too large to be a summary ({size}): name a {FILE} or a run directory")
        data = file.read_bytes()
    except OSError as error:
        raise UsageError(f"cannot read {file}: {error.strerror or error}; check the path and its permissions") from None
    found = Document(parse(data, str(file)), str(file), len(data))
    return found if found.data.get("exit_code") is not None else replace(found, data=_as_it_stands(file) or found.data)


def _as_it_stands(file: Path) -> Mapping[str, object] | None:
    """The summary of a run that was not closed, from its journal, with how to follow or finish it: what is on disk is
    as old as its session. None where there is no journal beside it that can be read and says how the run began."""
    with suppress(InterlockError, OSError):
        state = state_of(file.parent)
        status = "running" if held(file.with_name(JOURNAL)) else "died"
        told = {"status": status, "reason": _unfinished(file.parent)}
        return {**of_summary(summarise(state)).data, **told} if state.started else None
    return None


def parse(data: bytes, name: str) -> Mapping[str, object]:
    """Read the summary in these bytes. Raises UsageError, whose text begins with `name`."""
    if not data.strip():
        raise UsageError(f"{name}: empty file: copy it again from the run")
    try:
        found = json.loads(data, parse_constant=_refuse_constant)
    except json.JSONDecodeError as error:
        raise UsageError(
            f"{name} line {error.lineno} column {error.colno}: not JSON ({error.msg}): copy it again from the run"
        ) from None
    except UnicodeDecodeError:
        raise UsageError(f"{name}: not UTF-8 text: name a {FILE} or a run directory") from None
    except RecursionError:
        raise UsageError(f"{name}: nested too deeply to be a summary: name a {FILE} or a run directory") from None
    except ValueError as error:
        raise UsageError(f"{name}: {error}") from None
    return _checked(found, name)


def _checked(found: object, name: str) -> Mapping[str, object]:
    if not isinstance(found, dict) or "schema_version" not in found:
        raise UsageError(f"{name}: JSON without a schema_version, so not a summary: name a {FILE} or a run directory")
    if found["schema_version"] != VERSION:
        raise UsageError(
            f"{name}: schema_version is {written(found['schema_version'], 40)}, and this interlock reads "
            f'"{VERSION}": view it with the interlock that wrote it, or install a later one'
        )
    if missing := [key for key in OWN if key not in found]:  # other files of a run have a schema_version too
        raise UsageError(
            f"{name}: JSON without {', '.join(missing)}, so not a summary: name a {FILE} or a run directory"
        )
    return found


def of_summary(summary: Summary) -> Document:
    """Take a summary that is on no disk yet, or has moved on since."""
    return Document(json.loads(dumps(summary)))


def _refuse_constant(text: str) -> NoReturn:
    raise ValueError(f"it contains {text}, which is not JSON: replace it with null")


def _file(path: Path) -> Path:
    """Find the summary: in the directory of a run, or the file itself. Raises UsageError that says what was meant."""
    try:
        if not path.exists():
            raise UsageError(f"{path} does not exist{near(path)}: name a {FILE} or a run directory ({beside(path)})")
        if path.name == JOURNAL:
            raise UsageError(f"{path} is the journal of a run: name its {FILE} or the run directory")
        if not path.is_dir():
            return path
        if (path / FILE).exists():
            return path / FILE
        unfinished = (path / JOURNAL).exists()
        runs = sorted(path.glob(f"*/{FILE}")) or sorted(path.glob(f"runs/*/{FILE}"))
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}; check the path and its permissions") from None
    if unfinished:
        raise UsageError(f"{path}: no {FILE} yet: {_unfinished(path)}")
    if runs:
        raise UsageError(f"{path} has {several(len(runs), 'run')}: name one, such as {runs[-1].parent}")
    raise UsageError(f"{path}: no {FILE} in this directory: name a run directory ({beside(path)})")


def _unfinished(path: Path) -> str:
    """Say how to follow a run that has no summary, or how to finish it where nobody works on it."""
    run = overview_of(path, time.time())
    watch = f"watch it with {command(['watch', argument(str(path))])}"
    if not run.resumable:
        return watch
    return f"finish it with {command(run.onward)}, or {watch}"


def top(document: Document, other: Document | None = None) -> Node:
    """Make the first node of an outline of a summary, or of two that are compared."""
    return Node((), document.data, other.data if other else No.OTHER)


def header(document: Document) -> list[Fact]:
    """Say which run it was, how it ended, how long it took, how much was done."""
    data = document.data
    status = str(data.get("status", "?"))
    collections = objects(data.get("collections"))
    passes = [each for one in collections for each in objects(one.get("passes"))]
    batches = sum(each["batches"] for each in passes if type(each.get("batches")) is int)
    steps: Counter[str] = Counter()  # a step of a whole lease stands in every collection of its pass
    for each in collections:
        steps |= Counter(json.dumps(step, sort_keys=True) for step in listed(each.get("mitigations")))
    mitigations = steps.total()
    seconds = data.get("seconds")
    models = len({str(each.get("model_pass")) for each in passes})
    kind, code = data.get("device_kind"), data.get("exit_code")
    facts = [
        Fact("SUMMARY", "title", 8),
        Fact(safe(data.get("run_id", "?"), 32), "bold", 0),
        Fact(safe(status, 16), ended(status, "").level if status in ENDED else "", 0),
        Fact(f"exit {safe('-' if code is None else code, 6)}", "", 1),
        Fact("SIMULATED", "warn", 0) if kind == "sim" else Fact("SCRIPTED", "warn", 0) if kind == "scripted" else None,
        Fact(duration(seconds) if isinstance(seconds, int | float) and not isinstance(seconds, bool) else "", "", 2),
        Fact(several(models, "pass", "passes"), "", 3),
        Fact(several(batches, "batch", "batches"), "", 4),
        Fact(several(mitigations, "mitigation"), "warn" if mitigations else "", 2),
        Fact(safe(str(data.get("started_at", ""))[:19]).replace("T", " "), "dim", 7),
    ]
    return [fact for fact in facts if fact and fact.text]


def plain(document: Document, other: Document | None = None) -> str:
    """Write the header and the tables as text, or the differences of two summaries, for a pipe."""
    if other:
        return "\n".join(_compared(document, other)) + "\n"
    head = "  ".join(fact.text for fact in header(document))
    reason = document.data.get("reason")
    reasons = [safe(reason)] if isinstance(reason, str) and reason else []
    tables = [f"\n{table.title}\n{render(table.heads, table.rows)}" for table in overview(document.data)]
    return "\n".join([head, safe(document.name), *reasons, *tables]) + "\n"


def in_a_line(node: Node) -> str:
    """Write a difference in one line: `~ $.seconds: 1:05 -> 1:18 (+20.0%)`."""
    if node.mark == "~":
        one, other = (human(node.steps, value) or written(value, 120) for value in (node.here, node.there))
        if one == other:  # people read both as the same
            one, other = written(node.here, 120), written(node.there, 120)
        share = change(node.here, node.there)
        return f"~ {node.path}: {one} -> {other}" + (f" ({share})" if share else "")
    called = title(node.value) if node.branch else ""
    return f"{node.mark} {node.path}: {written(node.value, 120)}" + (f" {called}" if called else "")


def change(here: object, there: object) -> str:
    """Write by what share a number has changed: `+20.0%`; empty for few of a thing, for 0, and for what is none."""
    numbers = [value for value in (here, there) if isinstance(value, int | float) and not isinstance(value, bool)]
    if len(numbers) < 2 or not numbers[0] or all(isinstance(each, int) and abs(each) < FEW for each in numbers):
        return ""
    with suppress(OverflowError):
        return f"{(numbers[1] - numbers[0]) / abs(numbers[0]):+.1%}"
    return ""


def told(found: Iterable[Node]) -> tuple[list[Node], str]:
    """Split differences into those that say something, and a line that names those that any two runs have."""
    found = list(found)
    telling = [node for node in found if not set(node.steps) & ALWAYS]
    others = list(dict.fromkeys(str(step) for node in found for step in node.steps if step in ALWAYS))
    return telling, f"not listed, always different: {few(others)}" if others else ""


def legend(count: int) -> str:
    """Count the differences, and say what their signs mean."""
    if not count:
        return "no difference"
    return f"{several(count, 'difference')}: - only in the first, + only in the second, ~ first -> second"


def _compared(document: Document, other: Document) -> Iterator[str]:
    for number, each in enumerate((document, other), 1):
        yield f"{number}  " + "  ".join(fact.text for fact in header(each)) + f"  {safe(each.name)}"
    nodes, others = told(differences(top(document, other)))
    yield "\n" + legend(len(nodes))
    yield from (safe(in_a_line(node), 1000) for node in nodes)
    if others:
        yield others


def meaning(steps: tuple[Step, ...]) -> str:
    """Look up what the schema says of a field; empty where it says nothing."""
    place = schema = _schema()
    for step in steps:
        chosen: dict[str, Any] = next((each for each in place.get("anyOf", [place]) if each.get("type") != "null"), {})
        place = schema["$defs"][chosen["$ref"].rpartition("/")[2]] if "$ref" in chosen else chosen
        below = place.get("items") if isinstance(step, int) else place.get("properties", {}).get(step)
        place = below or place.get("additionalProperties") or {}
    return " ".join(place.get("description", "").split()) if steps else ""


@cache
def _schema() -> dict[str, Any]:
    """Read as a file: what it is generated from costs more to import than the viewer to start."""
    text = resources.files("interlock.engine.record").joinpath(f"summary-{VERSION}.schema.json").read_text()
    return dict(json.loads(text))
