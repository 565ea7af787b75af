"""What a run is tied to, as `run.json` keeps it; how that differs from what it is to be continued with; and where the
paths that it recorded lie once its directory was moved or copied.

A difference is told with the setting that it comes of and both values; of a file, by its name. Pure but for looking
whether a path is there. And the command that goes on with it.
"""

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec.structs import fields

from interlock.engine.record.facts import RosterEntry, Setting, rehearsed
from interlock.engine.record.snapshot import Snapshot
from interlock.engine.record.words import alike, argument, command, differences

_USUAL = {each.name: each.default for each in fields(RosterEntry) if each.default is not msgspec.NODEFAULT} | {
    "heads": {}
}
_SETTINGS = {
    "dim": "--dim",
    "tokens": "--token-vectors",
    "tokens.pooling": "--token-pooling",
    "tokens.precision": "--token-precision",
}
"""Where what a model is kept with is called otherwise than the setting that decides it."""


SPLIT = "were split into spans, which this version does not do"
"""What earlier versions could do with texts beyond a model's limit."""


_DECISIVE = ("fingerprint", "dtype", "max_tokens", "document_prompt", "overlap", "tokenizer")
"""What vectors have in common that another run takes."""
INPUTS = "inputs"
"""The directory beside runs with texts that were in memory, each in one of their digest."""
NAMES = ("text_field", "id_field", "title_field")
"""The settings that say how records are read."""


class _Member(msgspec.Struct):
    model: str
    dim: int
    fingerprint: str
    dtype: str
    max_tokens: int
    document_prompt: str
    weight: float = 1.0


class _Inputs(msgspec.Struct):
    """What `run.json` holds at least."""

    chunks: str
    fusion: str
    threads: Annotated[int, msgspec.Meta(ge=0, le=4096)]  # beyond that torch ends the process
    roster: list[_Member]
    files: dict[str, object]


def check(inputs: object) -> None:
    """Raise msgspec.ValidationError for what `run.json` never holds."""
    msgspec.convert(inputs, _Inputs)


def as_input(entry: RosterEntry) -> dict[str, object]:
    """Return an entry as `run.json` keeps it: where the files came from is no part of what they are, what these say is
    in their fingerprint, and what is as usual goes unsaid, as older versions left it."""
    said = msgspec.to_builtins(entry)
    return {
        name: value
        for name, value in said.items()
        if name not in ("source", "commit", "pooling") and (name not in _USUAL or getattr(entry, name) != _USUAL[name])
    }


def union_of(inputs: Mapping[str, Any]) -> str:
    """Digest what the shards of one run have in common: texts, models and their number; empty where there are none."""
    if not inputs.get("shard"):
        return ""
    roster = [[each.get(name) for name in ("model", "dim", "weight", *_DECISIVE)] for each in inputs["roster"]]
    known = [*(inputs.get(name) for name in ("files", "fusion", *NAMES)), inputs["shard"].partition("/")[2], roster]
    return hashlib.sha256(msgspec.json.encode(known, order="sorted")).hexdigest()


def filled(begun: dict[str, Any], now: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return both with what only one of them knows of a model that is missing in the other, and of files, which are not
    known before they were read."""
    if not begun["files"]:
        begun = {**begun, "files": now["files"]}
    if len(begun["roster"]) != len(now["roster"]):
        return begun, now
    pairs = [_known(was, is_now) for was, is_now in zip(begun["roster"], now["roster"], strict=True)]
    return {**begun, "roster": [was for was, _ in pairs]}, {**now, "roster": [is_now for _, is_now in pairs]}


def _known(was: dict[str, Any], is_now: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    if any(was.get(name) != is_now.get(name) for name in ("model", "weight", "kind")):
        return was, is_now
    if is_now.get("missing"):
        return was, was
    return (is_now, is_now) if was.get("missing") else (was, is_now)


def changes(begun: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    """Yield what differs between two inputs, both as JSON has them; the same files elsewhere are the same input.

    Of rosters of other models only the names and weights, since everything else differs with them.
    """
    was, is_now = (
        ", ".join(f"{each['model']}={each.get('weight', 1):.3g}" for each in of["roster"]) for of in (begun, now)
    )
    if was != is_now:
        yield f"roster was {was}, is now {is_now}"
    else:
        for stored, wanted in zip(begun["roster"], now["roster"], strict=True):
            yield from _changes_of(stored, wanted)
    yield from differences(_beside_roster(begun), _beside_roster(now))


def reused(begun: Mapping[str, Any], now: Mapping[str, Any], run: str) -> str:
    """Say what a new run is started with that takes what `run` has: vectors that were made otherwise are not taken."""
    had = [*map(_with_usual, begun["roster"])]
    anew = [each["model"] for each in now["roster"] if not any(_gives(one, _with_usual(each)) for one in had)]
    if len(anew) == len(now["roster"]):
        return "start a new run, which computes all anew (--reuse takes nothing of models that compute otherwise)"
    told = (
        f", but {', '.join(anew)} computes all anew" if len(anew) == 1 else f", but {', '.join(anew)} compute all anew"
    )
    return f"start a new run with --reuse {run} (unchanged texts cost nothing{told if anew else ''})"


def _gives(had: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    """Whether the vectors of one entry are those of another."""
    more = ("tokens", "terms", "heads") if wanted["outputs"] != ["dense"] else ()
    return {*wanted["outputs"]} <= {*had["outputs"]} and all(
        alike(had.get(name), wanted.get(name)) for name in (*_DECISIVE, *more)
    )


def _changes_of(stored: Mapping[str, Any], wanted: Mapping[str, Any]) -> Iterator[str]:
    """What differs of one model."""
    one, other = _with_usual(stored), _with_usual(wanted)
    if one["overlap"] != other["overlap"]:
        yield f"long texts of {stored['model']} {SPLIT}"
        del one["overlap"], other["overlap"]
    for phrase in differences(one, other):
        name, said = phrase.split(" ", 1)
        yield f"{_SETTINGS.get(name, name)} of {stored['model']} {said}"


def _with_usual(entry: Mapping[str, Any]) -> dict[str, Any]:
    """An entry with what goes unsaid."""
    whole = {**json.loads(msgspec.json.encode(_USUAL)), **entry}
    return whole | {"outputs": whole["outputs"] or [whole["kind"]]}


def _beside_roster(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Everything but the models, and but where the chunks lie."""
    settings = {name: f"--{name.replace('_', '-')}" for name in ("fusion", "threads", "shard", *NAMES)}
    return {settings.get(key, key): value for key, value in inputs.items() if key not in ("chunks", "roster")}


def moved(value: Any, before: Path, now: Path) -> Any:
    """Return a recorded setting with the paths in it as they are beside a run that lay at `before` and lies at `now`.

    What is there, seen from the run, is taken; where nothing is, what is at the recorded path. What is in neither place
    is to be made, and that beside the run, unless only the recorded path has a directory for it.
    """
    if before == now:
        return value
    if isinstance(value, list | tuple):
        return [moved(each, before, now) for each in value]
    return str(_moved(Path(value), before, now)) if isinstance(value, str) and value.startswith("/") else value


def store_of(configuration: Mapping[str, Setting], run_id: str, run: Path) -> Path | None:
    """Return where the store of a run that lies at `run` now has to be looked for; None where it wrote none."""
    written, out = (str(configuration[name].value or "") for name in ("qdrant", "out"))
    return Path(moved(written, Path(out) / run_id, run.absolute())) if written else None


def language_of(config: Mapping[str, Setting]) -> str:
    """Return the language whose words a run counted for BM25; empty where it counted none."""
    value = config["bm25"].value if "bm25" in config else False
    if isinstance(value, bool):  # as earlier versions had it, beside the language
        return str(config["bm25_language"].value) if value else ""
    return "" if value == "off" else str(value)


def _moved(path: Path, before: Path, now: Path) -> Path:
    if os.path.commonpath([path, before]) == "/":
        return path
    beside = Path(os.path.normpath(now / os.path.relpath(path, before)))
    if beside.exists() or not path.exists():
        return beside if beside.parent.exists() or not path.parent.exists() else path
    return path


def same_files(files: list[str], root: Path) -> bool:
    """Whether the chunk files of a run, `collection/file` each, are in `root` by their names."""
    own = [root.resolve().parent, root]  # a root that is a collection itself is named after itself
    return bool(files) and any(all((place / file).is_file() for file in files) for place in own)


AGAIN = ("cluster", "node_resources", "min_nodes", "wait", "warm", "offline", "allow_pickle", "deadline", "strict")
"""What a run does not keep for itself, and a session that goes on with it needs as well."""


def resume_words(chunks: str, run: Path, config: Mapping[str, Setting]) -> list[str]:
    """Write the arguments of `interlock` that go on with the run of `chunks` whose directory is `run` and whose latest
    session was called with `config`; one that was rehearsed writes its chunks itself."""
    words = ["demo", "--scripted"] if rehearsed(config) else ["run", argument(now_at(chunks, run, config))]
    faults = _each(config["faults"].value) if words[0] == "run" and "faults" in config else []
    words += ["--faults", ""] * any(each.startswith(("lose", "assert")) for each in faults)
    # A directory that was given another name is a run of that name.
    named = [f"--run-id={run.name}"] if run.name.startswith("-") else ["--run-id", run.name]
    onward = ["--qdrant", str(config["server"].value)] if "server" in config else []
    onward += upload_flags(config)
    onward += ["--metrics", now_at(config["metrics"].value, run, config)] if "metrics" in config else []
    onward += ["--notify", str(config["notify"].value)] if "notify" in config else []
    return [*words, *needed(run, config), "--out", argument(str(run.parent)), *named, "--resume", *onward]


UPLOADED = ("incremental", "streams")
"""How a run is uploaded to a server."""


def upload_flags(config: Mapping[str, Setting]) -> tuple[str, ...]:
    """Write the flags that say how a run is uploaded."""
    asked = ((name, config[name].value) for name in UPLOADED if name in config)
    return tuple(each for name, value in asked for each in (f"--{name}", *[str(value)] * (value is not True)))


RESUMABLE = ("stopped", "failed", "incomplete")


def onward(seen: Snapshot, run: Path, *flags: str) -> str:
    """Write the command that goes on with the run whose directory is `run`, with more `flags`, once its process has
    ended: where nothing but parked texts is left, or some are parked so far, with these; empty where nothing is."""
    if seen.over and (seen.phase not in RESUMABLE or not (flags or seen.resumes or seen.untried)):
        return ""
    retries = bool(seen.untried and not seen.resumes) if seen.over else seen.parked > 0
    chunks = str(seen.config["chunks"].value) if "chunks" in seen.config else seen.chunks
    words = resume_words(chunks, run, seen.config)
    return command([*words, *flags, *["--retry-parked"] * retries]) if chunks else ""


def now_at(path: object, run: Path, config: Mapping[str, Setting]) -> str:
    """Name where a path of a run lies, which may have been moved with what is beside it."""
    now, out = run.absolute(), Path(str(config["out"].value) if "out" in config else "")
    return str(moved(path, out / run.name if out.is_absolute() else now, now))


def needed(run: Path, config: Mapping[str, Setting]) -> list[str]:
    """Write the flags without which no session has the models and the machines that this run had."""
    words = list[str]()
    for name in ("config", "models"):
        words += [f"--{name}", now_at(config[name].value, run, config)] if name in config else []
    for name in AGAIN:
        said = config.get(name, Setting(None, ""))
        absent = said.value is False or said.value in (None, "", []) or said.origin.startswith(("default", "file "))
        if not absent and not (name == "deadline" and ":" in str(said.value)):  # a time of day is another one tomorrow
            flag = "--" + name.replace("_", "-")
            words += [flag] if said.value is True else [flag, ",".join(_each(said.value))]
    return words


def _each(value: object) -> list[str]:
    return list(map(str, value)) if isinstance(value, list | tuple) else [str(value)]
