"""What a session says first: its settings, machine and versions, and what of them differs from the session before."""

import importlib
import importlib.metadata
import platform
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from msgspec import convert
from msgspec.structs import replace

from interlock.engine.compute.cluster.messages import RemoteDevice
from interlock.engine.compute.job import Job, token_bytes
from interlock.engine.compute.schedule import Schedule
from interlock.engine.errors import DiskError, InterlockError, UnavailableError, UsageError, check_apart, reason
from interlock.engine.gpu.device import Device, facts_of
from interlock.engine.gpu.devices import arithmetic_of, describe_host
from interlock.engine.models.registry import ModelSpec
from interlock.engine.parsers import SHARED
from interlock.engine.record import atomic
from interlock.engine.record import events as ev
from interlock.engine.record.facts import RosterEntry, Setting
from interlock.engine.record.inputs import NAMES, resume_words
from interlock.engine.record.recorder import Recorder
from interlock.engine.record.rundir import Begun, RunDirectory
from interlock.engine.record.words import command, human_bytes, typed
from interlock.engine.settings import FROM_RUN, Configuration, RunSettings, continued, flag_of, recorded
from interlock.engine.standing.closed import paces
from interlock.engine.targets.files.formats import FORMATS, with_arrays
from interlock.engine.targets.shard import existing
from interlock.engine.vectors.fusion import Fusion, fused_width
from interlock.engine.vectors.precision import VectorForm

PACKAGES = ("torch", "transformers", "sentence-transformers", "tokenizers", "numpy", "qdrant-edge-py", "pyarrow")

NEEDED_LATE = {"pyarrow": "pyarrow.parquet", "qdrant-edge-py": "qdrant_edge"}
"""Packages that nothing needs before the vectors are delivered, with the module that shows whether they load."""

STORED_BYTES = 5
"""Bytes of the disk that a store takes for each number of a token vector: two, the engine's log and spare room."""


def schedule_of(settings: RunSettings) -> Schedule:
    """Return the schedule that the settings ask for."""
    if settings.window == SHARED:
        return Schedule.SHARED
    return Schedule.ROTATING if settings.window else Schedule.EXCLUSIVE


def form_of(settings: RunSettings, members: Mapping[str, int] = {}, texts: int | None = None) -> VectorForm:
    """Return the form in which the settings have dense vectors kept; compact ones of these `members` and so many
    `texts` are projected where both allow it and fused ones are kept."""
    fusion, project = Fusion(settings.fusion), settings.project
    width = fused_width(fusion, list(members.values()), list(members)) if members else None
    unfused = fusion is Fusion.NAMED or settings.keep == "members"
    if settings.compact and (unfused or (width and width <= project) or (texts is not None and texts < project)):
        project = 0
    return VectorForm(settings.keep, project, settings.quantise).of(fusion)


def check(settings: RunSettings, chunks: Path | None = None) -> None:
    """Raise UsageError for settings that no run of `chunks` can have, or of any; InterlockError for an --out that no
    disk can have."""
    form_of(settings).check(Fusion(settings.fusion))
    for name in ("compact", "project", "quantise"):
        if settings.shard and getattr(settings, name) not in (False, 0, "none"):
            raise UsageError(
                f"{flag_of(name)} is fitted on all vectors, of which shard {settings.shard} has its share: drop it",
                name,
            )
    for name in ("min_nodes", "node_resources"):
        if getattr(settings, name) and not settings.cluster:
            raise UsageError(f"{flag_of(name)} is of a run on a cluster: add --cluster, or drop it", name)
    nodes = settings.cluster.removeprefix("local:")
    if nodes.isdecimal() and settings.node_resources:
        raise UsageError("--node-resources is of machines that Ray knows: drop it with local:N", "node_resources")
    if nodes.isdecimal() and settings.min_nodes > int(nodes):
        raise UsageError(f"--min-nodes is more than {settings.cluster} has: choose at most {nodes}", "min_nodes")
    if not (there := existing(settings.out)).is_dir():
        raise InterlockError(f"--out {settings.out}: {there} is not a directory: choose another", "out")
    if settings.qdrant and not (there := existing(settings.qdrant)).is_dir():
        raise UsageError(f"--qdrant {settings.qdrant}: {there} is not a directory: choose another", "qdrant")
    for flag, path in (("--out", settings.out), ("--qdrant", settings.qdrant)):
        if path and chunks:
            check_apart(flag, path, chunks)


def resumed(begun: Begun, now: Configuration, run: Path) -> Configuration:
    """Settle the settings of a run that is continued. Raises UsageError where it is told what only one that begins may
    be, or half of how its records are read."""
    settings, origins, had = now.settings, now.origins, begun.config

    def given(name: str) -> bool:
        return not origins[name].startswith(("default", "file ", "environment "))

    if given("reuse") and settings.reuse and had.get("reuse", Setting(None, "")).value != recorded(now)["reuse"].value:
        raise UsageError(
            f"--reuse {settings.reuse} is for a run that begins, and --resume continues run {run.name}: drop --resume "
            "to take those vectors into a new run, or drop --reuse"
        )
    fields = {name: had[name].value for name in NAMES if name in had and had[name].value}
    if any(map(given, fields)) and any(origins[name] == "default" for name in fields):
        said = " ".join(f"{flag_of(name)} {typed(value)}" for name, value in fields.items())
        again = command(resume_words(str(had["chunks"].value), run, had))
        raise UsageError(
            f"run {run.name} was started with {said}, and this command has not all of them: drop these flags, or pass "
            f"all of them: `{again}`"
        )
    return continued(begun.kept, now)


def check_cut(configuration: Configuration, specs: Sequence[ModelSpec]) -> None:
    """Raise UsageError where vectors are to be cut and no model is known to have been trained for that. A run that was
    begun so goes on."""
    dim, known = configuration.settings.dim, any(spec.matryoshka for spec in specs)
    if dim and not known and configuration.origins["dim"] != FROM_RUN:
        raise UsageError(
            f"--dim {dim}: no model of the roster is known to be trained for shorter vectors: drop --dim, or, where "
            f"its publisher says so, set matryoshka = [{dim}] in [models.{specs[0].key}]"
        )


def without_effect(configuration: Configuration) -> list[str]:
    """Say which settings were given and change nothing about a run."""
    settings = configuration.settings
    stored = settings.qdrant or "server" in configuration.beside
    tokens = "" if settings.token_vectors else "nothing is kept of tokens without --token-vectors"
    idle = {
        "keep": "named makes no fused vector, so every model's own are kept"
        if Fusion(settings.fusion) is Fusion.NAMED and settings.keep == "fused"
        else "",
        "token_precision": tokens,
        "token_pooling": tokens,
        "bm25": "" if stored or not settings.language else "BM25 is only in a store (--qdrant)",
        "export": "" if settings.export or stored else "vectors stay in the run, neither files nor a store get any",
        "retry_parked": ""
        if settings.resume or not settings.retry_parked
        else "nothing was parked before, add --resume",
        "prune": "" if stored or not settings.prune else "nothing is delivered into a store without --qdrant",
    }
    return [
        *configuration.notes,
        *(
            f"{flag_of(name)}{_value(getattr(settings, name))}: {why}"
            for name, why in idle.items()
            if why and configuration.origins[name] not in ("default", FROM_RUN)
        ),
    ]


def _value(value: object) -> str:
    """A value as it is typed behind its flag; nothing for a switch."""
    return "" if isinstance(value, bool) else f" {value or repr('')}"


def check_packages(export: Sequence[str], store: Path | None) -> None:
    """Raise UnavailableError where a library that the delivery needs does not load, before anything is computed."""
    wanted = {FORMATS[each].package for each in export} | ({"qdrant-edge-py"} if store else set())
    for name in NEEDED_LATE:
        if name in wanted and (why := unloadable(name)):
            raise UnavailableError(f"{name} {why}")


def check_uploadable(configuration: Configuration) -> None:
    """Raise UsageError where a run is to go to a server and makes no files of what an upload reads."""
    settings, server = configuration.settings, configuration.beside.get("server")
    lacks = [each for each in ("npy" * bool(settings.token_vectors), "parquet") if {each} - {"", *settings.export}]
    if server and server.origin != FROM_RUN and lacks:
        raise UsageError(
            f"--qdrant {server.value}: an upload reads files that --export leaves out: add {' and '.join(lacks)} to it"
        )


def unloadable(name: str) -> str:
    """Say why a package of `NEEDED_LATE` does not load, and what to do; empty where it does."""
    try:
        importlib.import_module(NEEDED_LATE[name])
    except (ImportError, AttributeError) as error:  # AttributeError: built for another numpy
        return (
            f"does not load ({reason(error)}): install versions that fit each other, such as `pip install --upgrade "
            "numpy`, and restart a notebook's kernel"
        )
    return ""


def check_room(directory: Path, store: Path | None, grid: Sequence[Job], formats: Sequence[str]) -> None:
    """Raise DiskError where the token vectors that the passes are still to give would fill the disk, with their files
    and their place in the `store`."""
    coming = exported = stored = 0
    for job in grid:
        if form := job.card.by_token.vectors:
            whole = token_bytes(job.card, job.tokens.lengths(job.card.max_tokens))
            coming += max(0, whole - job.files.token_bytes)
            exported += whole * with_arrays(formats)
            stored += whole // form.bytes * form.dim * STORED_BYTES
    wanted: dict[int, int] = {}  # by disk, as both may lie on one
    for path, needed in ((directory, coming + exported), (store or directory, stored * bool(store))) if coming else ():
        there = next(above for above in (path, *path.absolute().parents) if above.exists())
        disk = there.stat().st_dev
        needed += wanted.get(disk, 0)
        wanted[disk] = needed
        if needed > (free := atomic.free_bytes(there)):
            raise DiskError(
                f"disk of {path} has {human_bytes(free)} free, but token vectors take {human_bytes(needed)}: free "
                "space, choose another place, or keep less (--token-pooling, --token-precision bit), then start again"
            )


def announce(
    recorder: Recorder,
    directory: RunDirectory,
    configuration: Configuration,
    chunks: Path,
    devices: Sequence[Device],
    notes: Sequence[str],
    elsewhere: Mapping[str, str],
) -> None:
    """Emit what begins a run, or a further session of it, with its devices and what nodes say `elsewhere`; then `notes`
    and changes as warnings."""
    settings = configuration.settings
    versions = {name: importlib.metadata.version(name) for name in ("interlock", *PACKAGES)}
    versions["python"] = platform.python_version()
    here = [each for each in devices if not isinstance(each, RemoteDevice)]
    started = ev.RunStarted(
        run_id=directory.id,
        chunks=str(chunks),
        config=recorded(configuration) | {"chunks": Setting(str(chunks.absolute()), "argument")},
        fusion=settings.fusion,
        schedule=schedule_of(settings),
        versions=versions,
        environment={**describe_host(here), **elsewhere},
    )
    before, had = recorder.look(lambda state: (state.started, dict(state.versions)))
    if before is None:
        recorder.emit(started)
    else:
        committed = recorder.look(lambda state: sum(len(done) for done in state.committed.values()))
        recorder.emit(replace(convert(started, ev.RunResumed, from_attributes=True), committed=committed))
    found = [facts_of(device, settings.ceiling_of(device.kind)) for device in devices]
    recorder.emit(ev.DevicesFound(devices=found))
    changes: Iterator[str] = iter(())
    if before is not None:  # an earlier version told less of the machine
        told = before.environment
        made = {name: each for device in here for name, each in arithmetic_of(device).items() if name in told}
        changes = _changes({**told, **had}, {**versions, **made}, before.config, started.config)
    for message in (*notes, *changes):
        recorder.emit(ev.Warned(message=message))


def tell_roster(
    recorder: Recorder, roster: Sequence[RosterEntry], missing: Mapping[int, str], settings: RunSettings, kind: str
) -> dict[str, float]:
    """Emit what the models are and which cannot be had; how fast each was before on devices of this kind, in tokens a
    second (0: not known)."""
    known = paces(settings.out, kind)
    before = {entry.model: known.get((entry.model, entry.dtype), 0.0) for entry in roster}
    recorder.emit(ev.RosterResolved(roster=list(roster), paces=before))
    for number, why in missing.items():
        recorder.emit(ev.PassFailed(model_pass=number, model=roster[number].model, reason=why))
    if Fusion(settings.fusion) is Fusion.MEAN:
        message = "--fusion mean mixes unrelated vector spaces and scored below concat in every measurement"
        recorder.emit(ev.Warned(message=message))
    return before


def _changes(
    had: Mapping[str, str], have: Mapping[str, str], before: Mapping[str, Setting], now: Mapping[str, Setting]
) -> Iterator[str]:
    """What may make this session's vectors, or their way, differ from those of the session before."""
    for name in sorted(name for name in have if had.get(name) != have[name]):
        yield f"{name} was {had.get(name)}, is now {have[name]}: the last bits of vectors may differ"
    for name in ("devices", "ceiling", "host_ceiling", "margin"):
        was, is_now = before.get(name), now[name]
        if was and was.value != is_now.value and is_now.origin != FROM_RUN:
            yield f"{name} was {was.value}, is now {is_now.value} ({is_now.origin})"
