"""What a commit of a repository has, as its copy on this machine proves it: what a copy lacks is told by name.

The hub's client notes a commit's list of files beside the copies that it makes whole, and marks those that somebody
looked for and the commit is without. A directory that no client made is no copy of a commit: it is what it holds.
"""

import json
import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from interlock.engine.corpus.tokens import SENTENCE_CONFIGS
from interlock.engine.models.layout import (
    INDEX,
    MODULES,
    OF_TOKENIZER,
    PROMPTS,
    STATIC,
    WEIGHTS,
    home_of,
    is_static,
    modules_of,
    onnx_of,
    read_object,
    settings_of,
)
from interlock.engine.models.registry import REGISTRY, ModelSpec, Pooling

SAID_BY_ROWS = (MODULES, PROMPTS, *SENTENCE_CONFIGS)
"""What a row of the registry can say in place of a file."""
LOOKED_FOR = (*SAID_BY_ROWS, *OF_TOKENIZER, WEIGHTS, INDEX, "chat_template.jinja")
"""Files that many models are without, and that change vectors where they are."""
MODULE = re.compile(r"\d+_\w+/(?:.*/)?[\w.-]+\.json")


@dataclass(frozen=True)
class Proof:
    """What is known of a commit: its `names`, where they were noted, and the directory of `marks` for what it lacks;
    `foreign` are files of another commit that lie beside its own."""

    names: frozenset[str] | None = None
    marks: Path | None = None
    foreign: tuple[str, ...] = ()

    def is_without(self, name: str) -> bool:
        """Tell whether the commit is known to be without a file."""
        marked = self.marks is not None and (self.marks / name).is_file()
        return marked if self.names is None else name not in self.names


def proof_of(path: Path) -> Proof | None:
    """Find what is known of the commit that `path` is a copy of; None for a directory that is no copy of one."""
    repository, kept = path.parent.parent, path / ".cache" / "huggingface"
    if path.parent.name == "snapshots" and repository.name.startswith("models--"):
        return Proof(_listed(repository / "trees" / f"{path.name}.json"), repository / ".no_exist" / path.name)
    return _proof_beside(path, kept) if kept.is_dir() else None


def lacking(path: Path, spec: ModelSpec, proof: Proof | None, *, by_row: bool = False) -> list[str]:
    """List what the copy of a commit in `path` lacks, or may lack for all that is known, of the files that change
    vectors; `by_row` leaves out what the model's row says in their place."""
    if proof is None:
        return []
    here = "" if home_of(path) == path else f"{home_of(path).relative_to(path)}/"
    whole = "added_tokens_decoder" in read_object(path / here / OF_TOKENIZER[0])  # nobody then reads the other two
    own: tuple[str, ...] = ("config.json", "tokenizer.json", *OF_TOKENIZER[: 1 if whole else None], WEIGHTS)
    own = ("tokenizer.json", WEIGHTS) if is_static(path) else own
    wanted = [MODULES, *(here + name for name in own)]
    wanted += [here + INDEX] * proof.is_without(here + WEIGHTS)
    if onnx := onnx_of(path):
        name = onnx.relative_to(path).as_posix()
        wanted += [each for each in proof.names or () if each.startswith(name)]
    wanted += [f"{here}chat_template.jinja"] * (spec.kind == "scores")
    if modules := modules_of(path):
        wanted += [PROMPTS]
        folders = [each.path for each in modules if each.path and each.kind not in ("Normalize", "Router", STATIC)]
        wanted += [f"{folder}/config.json" for folder in folders]
        wanted += _until_there(path, [here + name for name in SENTENCE_CONFIGS])
    elif spec.kind != "dense" or not proof.is_without(MODULES):
        wanted += [PROMPTS, *(name for name in proof.names or () if MODULE.fullmatch(name))]
    lacks = [name for name in wanted if not (path / name).is_file() and not proof.is_without(name)]
    if by_row and spec.published and spec.max_tokens and not modules_of(path):
        lacks = [name for name in lacks if name not in SAID_BY_ROWS and not MODULE.fullmatch(name)]
    read = {file.relative_to(path).as_posix() for file in settings_of(path)} | {WEIGHTS}
    return [*lacks, *(f"{name} of its commit, has that of another" for name in proof.foreign if name in read)]


def published_of(spec: ModelSpec) -> tuple[Pooling, str, str] | None:
    """Find what the publisher says of a model: as its row has it, or that of the repository which it is named after."""
    named = (row.published for row in REGISTRY.values() if (row.hub_repo or "").rpartition("/")[2] == spec.key)
    return spec.published or next(named, None)


def mark(path: Path, names: frozenset[str]) -> None:
    """Note beside a copy what its commit is without, where the hub's client has not noted what it has."""
    proof = proof_of(path)
    if proof and proof.names is None and proof.marks:
        for name in LOOKED_FOR:
            if name not in names:
                proof.marks.mkdir(parents=True, exist_ok=True)
                (proof.marks / name).touch()


def _until_there(path: Path, names: list[str]) -> list[str]:
    """The names before the first that is there: what it says outdoes those after it."""
    there = next((place for place, name in enumerate(names) if (path / name).is_file()), len(names))
    return names[:there]


def _proof_beside(path: Path, kept: Path) -> Proof:
    """What a client noted in a directory that it was told to fill: the commit of each file, and what commits have."""
    commits: dict[str, str] = {}
    for note in (kept / "download").rglob("*.metadata"):
        name = note.relative_to(kept / "download").as_posix().removesuffix(".metadata")
        with suppress(OSError, ValueError, IndexError):
            if (path / name).is_file():
                commits[name] = note.read_text().splitlines()[0]
    trees = sorted((kept / "trees").glob("*.json"), key=lambda file: file.stat().st_mtime_ns)
    latest = trees[-1].stem if trees else commits.get("config.json", "")
    names = _listed(trees[-1]) if trees else None
    return Proof(names, None, tuple(sorted(name for name, commit in commits.items() if commit != latest)))


def _listed(file: Path) -> frozenset[str] | None:
    """The names in a list of files that the hub's client noted; None where there is none that can be read."""
    with suppress(OSError, ValueError, KeyError, TypeError):
        told = json.loads(file.read_text(encoding="utf-8"))
        return frozenset(map(str, told["files"])) if told["format_version"] == 1 else None
    return None
