"""What all trials share: models, chunks, their undisturbed runs, and the comparison with them.

An undisturbed run is itself held against the texts of the input files and against vectors that were computed without
the product; everything delivered by a disturbed run is then compared with it, byte for byte.
"""

import json
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.campaigns import delivered
from bench.campaigns.delivered import Oracle, Points
from bench.campaigns.process import Outcome, aside, carry_out, wrongs
from tests import builders

ROSTER = "tiny-a=1,tiny-b=2"
COLLECTIONS = ("Docs", "Notes")
ANY = "any run"
"""In the place of a flag: the run is not named."""


@dataclass(frozen=True)
class Variant:
    """A way to run: its flags, and whether a store and an earlier run belong to it."""

    name: str
    flags: tuple[str, ...] = ()
    store: bool = False
    reuse: bool = False
    exact: bool = True
    """Whether vectors are those of float32."""


PLAIN = Variant("files")
STORED = Variant("store", store=True)
VARIANTS = (
    PLAIN,
    STORED,
    Variant("window", ("--window", "1"), store=True),
    Variant("reuse", store=True, reuse=True),
    Variant("sim", ("--devices", "sim:2xT4", "--faults", "oom:60,leak:8MiB", "--window", "2"), exact=False),
    Variant("shared", ("--devices", "sim:2xT4", "--shared"), store=True, exact=False),
)


@dataclass(frozen=True)
class Truth:
    """An undisturbed run, as it was read without the product."""

    shas: Mapping[str, str]
    points: Mapping[str, Points]
    stored: Mapping[str, Points]


@dataclass
class Field:
    """The inputs of all trials under `place`."""

    place: Path
    chunks: Path
    config: Path
    oracle: Oracle
    records: int = 900
    """Of its large collections, in `wide`."""
    truths: dict[str, Truth] = field(default_factory=dict)
    _wholes: dict[str, Path] = field(default_factory=dict)

    def command(self, run: Path, variant: Variant, *more: object, chunks: Path | None = None) -> list[object]:
        """`interlock run` into the directory `run`, and a store beside it."""
        given: list[object] = ["run", chunks or self.chunks, "--config", self.config, "--roster", ROSTER, "--no-ui"]
        given += ["--keep", "both"]  # every vector is looked at, wherever it is
        given += ["--out", run.parent, "--offline", *variant.flags]
        given += [] if ANY in more else ["--run-id", run.name]
        given += ["--qdrant", store_of(run)] if variant.store else []
        given += ["--reuse", self.earlier] if variant.reuse and "--resume" not in more else []
        return [*given, *(each for each in more if each != ANY)]

    @property
    def earlier(self) -> Path:
        """A finished run over half of the chunks, to be reused."""
        return self.place / "earlier" / "r"

    def truth(self, variant: Variant) -> Truth:
        """The undisturbed run of a variant, made once. Raises AssertionError if it is not right itself."""
        if variant.name not in self.truths:
            self.truths[variant.name] = self._undisturbed(variant)
        return self.truths[variant.name]

    def whole(self, variant: Variant) -> Path:
        """The undisturbed run of a variant, to be copied and never changed."""
        self.truth(variant)
        return self._wholes[variant.name]

    def _undisturbed(self, variant: Variant) -> Truth:
        run = Path(tempfile.mkdtemp(dir=self.place, prefix=f"undisturbed-{variant.name}-")) / "r"
        self._wholes[variant.name] = run
        outcome = carry_out(self.command(run, variant), run.parent)
        assert outcome.code == 0 and not wrongs(outcome), outcome
        truth = aside(lambda: _read(run, variant.store))
        asked = texts_of(self.chunks)
        for name, points in truth.points.items():
            assert sorted(text for text, _ in points.values()) == sorted(asked[name]), name
            assert not (
                bad := aside(lambda points=points: self.oracle.wrong(points, 0.9999 if variant.exact else 0.99))
            ), bad
        return truth

    def compare(self, run: Path, variant: Variant, at: Path | None = None) -> list[str]:
        """What a run that says that it is completed delivered otherwise than the undisturbed one; its store is `at`."""
        truth, store = self.truth(variant), (at or store_of(run)) if variant.store else None
        try:
            return aside(lambda: differences(truth, run, store))
        except RuntimeError as error:
            return [f"cannot be read: {str(error).strip().splitlines()[-1]}"]

    def must_be_right(self, outcome: Outcome, run: Path, variant: Variant) -> list[str]:
        """What is wrong with a command that must end well: its end, or what it delivered."""
        found = wrongs(outcome)
        if outcome.code:
            return found or [f"exit code {outcome.code}: {outcome.last}"]
        return found + self.compare(run, variant)

    def right_or_refused(self, outcome: Outcome, run: Path, variant: Variant) -> list[str]:
        """What is wrong with a command that may be refused in words, and is right where it is not."""
        return wrongs(outcome) + ([] if outcome.code else self.compare(run, variant))


POINTED = 3
"""So many wrong points are told of each kind."""


def build(place: Path, records: int) -> Field:
    """Make models and chunks in `place`; large collections, where they are needed, are of so many records."""
    models = aside(lambda: _models(place))
    chunks = builders.corpus(place / "chunks", _collections())
    config = builders.toml(
        place / "interlock.toml", {key: {"source": str(path), "batch_tokens": 128} for key, (path, _) in models.items()}
    )
    built = Field(place, chunks, config, Oracle(models), records)
    half = place / "half"
    shutil.copytree(chunks / "Docs", half / "Docs")
    built.earlier.parent.mkdir()
    outcome = carry_out(built.command(built.earlier, PLAIN, chunks=half), place)
    assert outcome.code == 0, outcome
    _teach(built)
    return built


def wide(field: Field) -> Field:
    """The same models over files of some megabytes, so that much can happen while one is read."""
    place = Path(tempfile.mkdtemp(dir=field.place, prefix="wide-"))
    chunks = builders.corpus(place / "chunks", _wide_collections(field.records))
    config = builders.toml(
        place / "interlock.toml",
        {key: {"source": str(path), "batch_tokens": 2048} for key, (path, _) in field.oracle.models.items()},
    )
    built = Field(place, chunks, config, field.oracle)
    _teach(built)
    return built


def _teach(field: Field) -> None:
    """Let the oracle know every text of a field."""
    texts = [text for each in texts_of(field.chunks).values() for text in each]
    field.oracle.known |= aside(lambda: field.oracle.learn(texts).known)


def _wide_collections(records: int) -> dict[str, dict[str, Sequence[object]]]:
    texts = builders.sentences(2 * records)
    padded = [
        {"text": text, "metadata": {"chunk_id": f"w{number}", "padding": f"{number} " * 300}}
        for number, text in enumerate(texts)
    ]
    return {
        "Docs": {"a_small.jsonl": texts[:20], "b_large.jsonl": padded[20:records], "c_last.jsonl": texts[5:25]},
        "Notes": {"d_list_chunks.json": padded[records : records + records // 3], "e.jsonl": texts[-20:]},
    }


def _models(place: Path) -> dict[str, tuple[Path, str]]:
    a = builders.tiny_model(place / "models" / "tiny-a", seed=1)
    b = builders.tiny_model(place / "models" / "tiny-b", seed=2, kind="mpnet", width=48, layers=1, pooling="cls")
    return {"tiny-a": (a, "mean"), "tiny-b": (b, "cls")}


def _collections() -> dict[str, dict[str, Sequence[object]]]:
    """Lists and lines, ids given and made, texts that stand in both collections, metadata."""
    texts = builders.sentences(60)
    named = [
        {"text": text, "metadata": {"chunk_id": f"n{number}", "source_path": "a.md", "page": number}}
        for number, text in enumerate(texts[:20])
    ]
    return {
        "Docs": {"a_chunks.json": named, "deep/b_chunks.json": texts[20:30], "c.jsonl": [*texts[30:40], texts[31]]},
        "Notes": {"d.jsonl": texts[35:60], "e_chunks.json": [texts[0], "another text, of Notes alone"]},
    }


def texts_of(chunks: Path) -> dict[str, list[str]]:
    """The texts of every collection as its files have them."""
    return {
        collection.name: [text for file in chunk_files(collection) for text in texts_in(file)]
        for collection in sorted(chunks.iterdir())
    }


def chunk_files(directory: Path) -> list[Path]:
    """The chunk files below a directory."""
    return sorted(file for file in directory.rglob("*") if file.name.endswith(("_chunks.json", ".jsonl")))


def texts_in(file: Path) -> list[str]:
    """The texts of a whole chunk file."""
    lines = [json.loads(line) for line in file.read_text().splitlines()] if file.suffix == ".jsonl" else None
    records: list[Any] = json.loads(file.read_text()) if lines is None else lines
    return [record["text"] for record in records]


def store_of(run: Path) -> Path:
    """Where the store of a run lies."""
    return run.parent / f"store-{run.name}"


def _read(run: Path, store: bool) -> Truth:
    points = {name: delivered.from_parquet(run / "exports" / name / "points.parquet") for name in COLLECTIONS}
    for name, found in points.items():
        _same_as_npy(run / "exports" / name, found)
    stored = {}
    for name, found in points.items() if store else ():
        count, stored[name] = delivered.from_store(store_of(run), name.lower(), found)
        assert count == len(found), f"{name}: {count} points in the store, {len(found)} in parquet"
        assert {point: text for point, (text, _) in stored[name].items()} == {p: t for p, (t, _) in found.items()}
    return Truth(delivered.shas(run), points, stored)


def _same_as_npy(directory: Path, points: Points) -> None:
    for name, vectors in delivered.from_npy(directory).items():
        rows = [found[name] for _, found in points.values()]
        assert rows == [row.tobytes() for row in vectors], f"{directory.name}/{name}.npy is not what parquet holds"


def differences(truth: Truth, run: Path, store: Path | None) -> list[str]:
    """What `run` delivered otherwise: files by their bytes, then points one by one; the store's points always."""
    found = []
    here = delivered.shas(run)
    for name in sorted(truth.shas.keys() | here.keys()):
        if truth.shas.get(name) != here.get(name):
            found.append(f"{name} {'is missing' if name not in here else 'has other bytes'}")
            if name in here and name.endswith("points.parquet"):
                collection = Path(name).parts[1]
                found += pointwise(truth.points[collection], delivered.from_parquet(run / name))
    for collection, points in truth.stored.items() if store else ():
        count, stored = delivered.from_store(store, collection.lower(), points)
        if count != len(points):
            found.append(f"{collection}: {count} points in the store, not {len(points)}")
        found += [f"store: {each}" for each in pointwise(points, stored)]
    return found


def pointwise(wanted: Points, given: Points) -> list[str]:
    """Missing and foreign points, other texts, other vectors."""
    missing, foreign = wanted.keys() - given.keys(), given.keys() - wanted.keys()
    both = sorted(wanted.keys() & given.keys())
    texts = [point for point in both if wanted[point][0] != given[point][0]]
    vectors = [point for point in both if wanted[point][1] != given[point][1]]
    kinds = {"missing": missing, "foreign": foreign, "with another text": texts, "with another vector": vectors}
    return [f"{len(ids)} points {kind}: {', '.join(sorted(ids)[:POINTED])}" for kind, ids in kinds.items() if ids]
