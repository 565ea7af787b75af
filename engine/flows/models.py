"""Models before a run: what the registry has, what is on this machine, fetching them, and a bundle for another one."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from interlock.engine.compute.parts.terms import SparseRows
from interlock.engine.compute.texts import weigh_documents, weigh_queries
from interlock.engine.corpus.documents import ChunkedFiles, TokenCounter, Told, chunk_documents
from interlock.engine.errors import UnavailableError, UsageError
from interlock.engine.gpu.cpu import CpuDevice
from interlock.engine.gpu.lease import Lessor
from interlock.engine.models import assets
from interlock.engine.models.bundles import Bundle, bundle_directory, files_of, write_bundle
from interlock.engine.models.card import read_card, told_by
from interlock.engine.models.members import members
from interlock.engine.models.registry import ModelSpec, extended, find, vouched
from interlock.engine.models.sources import Copy
from interlock.engine.record.events import Emit
from interlock.engine.settings import Configuration

Side = Literal["query", "document"]


@dataclass(frozen=True)
class ModelHere:
    """A model with its files on this machine, where they are (`path`, `source`); how many, their bytes, and what is
    known of its pooling and its prompts for documents and queries."""

    spec: ModelSpec
    path: Path | None = None
    source: str = ""
    files: int = 0
    bytes: int = 0
    told: tuple[str, str, str] | None = None


def here(spec: ModelSpec, settings: Configuration, *, measured: bool = False) -> ModelHere:
    """Look for a model on this machine; `measured` counts its files and bytes too."""
    told = None
    if not (found := assets.cached(vouched(spec, settings.settings.allow_pickle))):
        return ModelHere(spec, told=told_by(spec, None))
    with suppress(UnavailableError):  # what is wrong with it is told by who uses it
        told = told_by(spec, found[0])
    files = files_of(found[0], {}) if measured else {}
    return ModelHere(spec, found[0], found[1], len(files), sum(file.stat().st_size for file in files.values()), told)


def named(settings: Configuration, names: Sequence[str]) -> list[ModelSpec]:
    """Find models by name; all of the registry without any."""
    registry = extended(settings.models)
    return find(registry, names or list(registry))


def bundled(settings: Configuration, names: Sequence[str]) -> list[ModelSpec]:
    """Find the models of a bundle: those that are named; without names, and where one is given, those of the roster."""
    registry = extended(settings.models)
    given = any(settings.origins[name] != "default" for name in ("roster", "sparse", "token_vectors"))
    roster = settings.settings.members(registry) if given or not names else []
    keys = {spec.key for spec in roster}
    return [*roster, *(spec for spec in find(registry, names) if spec.key not in keys)]


def fetch(spec: ModelSpec, settings: Configuration, emit: Emit) -> assets.ModelSnapshot:
    """Have the files of a model on this machine. Raises UnavailableError where they are not to be had."""
    own = settings.settings
    return assets.resolve(spec, assets.Policy(own.offline, own.refresh_models, own.allow_pickle), emit)


def check_bundle(directory: Path) -> None:
    """Raise UsageError for a bundle that would be made of itself."""
    if (given := bundle_directory()) and given.absolute() == directory.absolute():
        raise UsageError(f"--models {directory}: a bundle is not made of itself: drop --models and INTERLOCK_MODELS")


def bundle(
    directory: Path,
    specs: Sequence[ModelSpec],
    settings: Configuration,
    emit: Emit,
    copied: Callable[[str, int, int], object],
) -> Bundle:
    """Copy models into a directory that another machine uses without a network; `copied` hears of each file."""
    found = []
    for spec in specs:
        snapshot = fetch(spec, settings, emit)
        found.append((spec, Copy(snapshot.path, snapshot.commit, snapshot.heads), snapshot.source))
    return write_bundle(directory, found, copied)


def term_rows(settings: Configuration, model: str, texts: Sequence[str], side: Side) -> SparseRows:
    """Weigh the terms of `texts` by a sparse model on the CPU, as queries or as documents."""
    own = settings.settings
    (spec,) = members(extended(settings.models), (), (model,))
    policy = assets.Policy(offline=own.offline, pickles=own.allow_pickle)
    card = read_card(spec, assets.resolve(spec, policy, lambda _: None), "cpu")
    lessor = Lessor([CpuDevice()], *own.limits)
    return (weigh_queries if side == "query" else weigh_documents)(card, texts, lessor)


def chunk(settings: Configuration, root: Path, out: Path, tokens: int, overlap: int, told: Told) -> ChunkedFiles:
    """Cut the documents under `root` into the chunk file `out`, as large as every model of the roster reads whole."""
    own = settings.settings
    specs = own.members(extended(settings.models))
    policy = assets.Policy(own.offline, own.refresh_models, own.allow_pickle)
    cards = [read_card(spec, assets.resolve(spec, policy, lambda _: None), "cpu") for spec in specs]
    counters = [TokenCounter(card.tokenizer_file, card.document_prompt, card.max_tokens, card.key) for card in cards]
    return chunk_documents(root, out, counters, tokens, overlap, told)
