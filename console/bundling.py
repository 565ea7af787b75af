"""`interlock models bundle`: models into a directory that another machine can use without a network, or what that
takes."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from interlock.console.text.columns import render
from interlock.console.text.event_text import line_of
from interlock.console.writing import tell
from interlock.engine.errors import ExitCode, UsageError
from interlock.engine.models import assets
from interlock.engine.models.bundles import bundle_directory, files_of, write_bundle
from interlock.engine.models.registry import ModelSpec, extended, find, label, vouched
from interlock.engine.models.sources import Copy
from interlock.engine.record.words import human_bytes, safe, several
from interlock.engine.settings import Configuration


def bundle(settings: Configuration, options: argparse.Namespace) -> int:
    """Write the bundle that the options ask for, or show what it would take. Raises UsageError without a directory."""
    if not options.names:
        raise UsageError("models bundle: name the directory to write, as in `interlock models bundle DIR`")
    directory, specs = Path(options.names[0]), _asked(settings, options.names[1:])
    if (given := bundle_directory()) and given.absolute() == directory.absolute():
        raise UsageError(f"--models {directory}: a bundle is not made of itself: drop --models and INTERLOCK_MODELS")
    if options.plan:
        print(_plan(specs, settings.settings.allow_pickle))
        return ExitCode.COMPLETED
    own, found = settings.settings, []
    policy = assets.Policy(own.offline, own.refresh_models, own.allow_pickle)
    for spec in specs:
        snapshot = assets.resolve(spec, policy, lambda event: _say(line_of(event)))
        found.append((spec, Copy(snapshot.path, snapshot.commit, snapshot.heads), snapshot.source))
    made = write_bundle(directory, found, _copied)
    total = sum(model.bytes for model in made.models)
    keys = ", ".join(model.key for model in made.models)
    tell(safe(f"{directory}: {several(len(made.models), 'model')} ({keys}), {human_bytes(total)}"))
    return ExitCode.COMPLETED


def _asked(settings: Configuration, names: Sequence[str]) -> list[ModelSpec]:
    """The models that are named; without names, and where one is given, those of the roster."""
    registry = extended(settings.models)
    given = any(settings.origins[name] != "default" for name in ("roster", "sparse", "token_vectors"))
    members = settings.settings.members(registry) if given or not names else []
    keys = {spec.key for spec in members}
    return [*members, *(spec for spec in find(registry, names) if spec.key not in keys)]


def _plan(specs: Sequence[ModelSpec], allowed: Sequence[str]) -> str:
    """What each model takes; of one that is not on this machine, that it would be fetched."""
    rows, total = [], 0
    for spec in specs:
        here = assets.cached(vouched(spec, allowed))
        if here and (files := files_of(here[0], {})):
            size = sum(file.stat().st_size for file in files.values())
            total += size
            rows.append([spec.key, label(here[1]), str(len(files)), human_bytes(size)])
        else:
            rows.append([spec.key, label(spec.sources[0]), "", "to be fetched or unpacked"])
    lacking = sum(not row[2] for row in rows)
    more = f", and {several(lacking, 'model')} whose size is not known yet" if lacking else ""
    return f"{render(['model', 'source', 'files', 'bytes'], rows)}\n{human_bytes(total)} on this machine{more}"


def _copied(name: str, done: int, total: int) -> None:
    _say(f"copied {name}: {human_bytes(done)} of {human_bytes(total)}")


def _say(line: str) -> None:
    tell(safe(line), error=True)
