"""What a session says first: its settings, machine and versions, and what of them differs from the session before."""

import importlib.metadata
import platform
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from msgspec import convert
from msgspec.structs import replace

from interlock.engine.config import FROM_RUN, Configuration, RunSettings, recorded
from interlock.engine.errors import UsageError
from interlock.engine.gpu.device import Device
from interlock.engine.gpu.devices import describe_host
from interlock.engine.passes.schedule import Schedule
from interlock.engine.record import events as ev
from interlock.engine.record.facts import DeviceFacts, Setting
from interlock.engine.record.recorder import Recorder
from interlock.engine.record.rundir import RunDirectory

PACKAGES = ("torch", "transformers", "sentence-transformers", "tokenizers", "numpy", "qdrant-edge-py", "pyarrow")


def schedule_of(settings: RunSettings) -> Schedule:
    """Return the schedule that the settings ask for."""
    if not settings.exclusive:
        return Schedule.SHARED
    return Schedule.ROTATING if settings.window else Schedule.EXCLUSIVE


def check(settings: RunSettings, chunks: Path) -> None:
    """Raise UsageError for settings that no run of `chunks` can have."""
    if settings.window and not settings.exclusive:
        raise UsageError("--window needs models that take turns: drop --window, or drop --shared")
    for flag, path in (("--out", settings.out), ("--qdrant", settings.qdrant)):
        if path and path.resolve().is_relative_to(chunks.resolve()):
            raise UsageError(
                f"{flag} {path} is inside {chunks}, so its files would be read as chunks: choose another directory"
            )


def announce(
    recorder: Recorder,
    directory: RunDirectory,
    configuration: Configuration,
    chunks: Path,
    devices: Sequence[Device],
    notes: Sequence[str],
) -> None:
    """Emit what begins a run, or a further session of it, with its devices; then `notes` and changes as warnings."""
    settings = configuration.settings
    versions = {name: importlib.metadata.version(name) for name in ("interlock", *PACKAGES)}
    versions["python"] = platform.python_version()
    started = ev.RunStarted(
        run_id=directory.id,
        chunks=str(chunks),
        config=recorded(configuration),
        fusion=settings.fusion,
        schedule=schedule_of(settings),
        versions=versions,
        environment=describe_host(devices),
    )
    before, had = recorder.look(lambda state: (state.started, dict(state.versions)))
    if before is None:
        recorder.emit(started)
    else:
        committed = recorder.look(lambda state: sum(len(done) for done in state.committed.values()))
        recorder.emit(replace(convert(started, ev.RunResumed, from_attributes=True), committed=committed))
    found = [
        DeviceFacts(
            name=device.name,
            kind=device.kind,
            label=device.label,
            total_bytes=device.total,
            ceiling_bytes=min(device.total, settings.ceiling_of(device.kind)),
        )
        for device in devices
    ]
    recorder.emit(ev.DevicesFound(devices=found))
    changes = () if before is None else _changes(had, versions, before.config, started.config)
    for message in (*notes, *changes):
        recorder.emit(ev.Warned(message=message))


def _changes(
    had: Mapping[str, str],
    have: Mapping[str, str],
    before: Mapping[str, Setting],
    now: Mapping[str, Setting],
) -> Iterator[str]:
    """What may make this session's vectors, or their way, differ from those of the session before."""
    for name in sorted(name for name in have if had.get(name) != have[name]):
        yield f"{name} was {had.get(name)}, is now {have[name]}: the last bits of vectors may differ"
    for name in ("devices", "ceiling", "host_ceiling"):
        was, is_now = before.get(name), now[name]
        if was and was.value != is_now.value and is_now.origin != FROM_RUN:
            yield f"{name} was {was.value}, is now {is_now.value} ({is_now.origin})"
