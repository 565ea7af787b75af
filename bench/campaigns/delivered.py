"""What a run has delivered, read without the product: pyarrow, numpy and the store's own engine.

Every function here starts threads of the libraries that it uses: call them in a fork (`process.aside`).
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

Vectors = npt.NDArray[np.float32]
Points = dict[str, tuple[str, dict[str, bytes]]]
"""id -> text and the vectors by name."""
CLOSE = 1 - 1e-4
POSITIONS = 128


def shas(run: Path) -> dict[str, str]:
    """The SHA-256 of every exported file, by its path in the run."""
    return {
        file.relative_to(run).as_posix(): hashlib.sha256(file.read_bytes()).hexdigest()
        for file in sorted((run / "exports").rglob("*"))
        if file.is_file() and not file.name.startswith(".")
    }


def from_parquet(file: Path) -> Points:
    """The points of a `points.parquet`."""
    import pyarrow.parquet as pq

    table = pq.read_table(file, use_threads=False)
    names = [column for column in table.column_names if str(table.schema.field(column).type).startswith("fixed_size")]
    columns = {name: table[name].to_pylist() for name in names}
    return {
        point: (text, {name: _packed(columns[name][row]) for name in names if columns[name][row] is not None})
        for row, (point, text) in enumerate(zip(table["id"].to_pylist(), table["text"].to_pylist(), strict=True))
    }


def from_npy(directory: Path) -> dict[str, Vectors]:
    """The vectors [rows, dim] of every `.npy` of a collection, by name."""
    return {file.stem: np.load(file) for file in sorted(directory.glob("*.npy"))}


def from_store(store: Path, collection: str, ids: Iterable[str]) -> tuple[int, Points]:
    """How many points a collection of a store holds, and those of these ids."""
    import qdrant_edge as edge

    shard = edge.EdgeShard.load(str(store / collection), None)
    try:
        count = int(shard.count(edge.CountRequest(exact=True)))
        found = shard.retrieve(list(ids), with_payload=True, with_vector=True)
        return count, {
            str(each.id): (
                str((each.payload or {}).get("text")),
                {name: _packed(vector) for name, vector in dict(each.vector or {}).items()},
            )
            for each in found
        }
    finally:
        shard.close()


def _packed(vector: Any) -> bytes:
    """A dense vector, or the indices and values of a sparse one."""
    import qdrant_edge as edge

    if isinstance(vector, edge.SparseVector):
        return np.array(vector.indices, np.uint32).tobytes() + np.array(vector.values, np.float32).tobytes()
    return np.asarray(vector, np.float32).tobytes()


@dataclass
class Oracle:
    """Vectors of single texts, computed from the models' files without the product; each text is computed once."""

    models: Mapping[str, tuple[Path, str]]
    """Key -> directory and pooling."""
    known: dict[str, dict[str, Vectors]] = field(default_factory=dict)

    def learn(self, texts: Iterable[str]) -> "Oracle":
        """Compute what is not known yet."""
        from tokenizers import Tokenizer

        fresh = [text for text in dict.fromkeys(texts) if text not in self.known]
        for key, (directory, pooling) in self.models.items():
            if not fresh:
                break
            network = _network(directory)
            tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
            tokenizer.no_padding()
            tokenizer.enable_truncation(POSITIONS)
            for alike in _by_length([tokenizer.encode(text).ids for text in fresh]):
                vectors = _vectors(network, [ids for _, ids in alike], pooling)
                for (place, _), vector in zip(alike, vectors, strict=True):
                    self.known.setdefault(fresh[place], {})[key] = vector
        return self

    def wrong(self, points: Points, least: float = CLOSE) -> list[str]:
        """The points with a model's vector that is not their text's."""
        self.learn(text for text, _ in points.values())
        found = []
        for point, (text, vectors) in points.items():
            for key in self.models.keys() & vectors.keys():
                given = np.frombuffer(vectors[key], np.float32)
                cosine = float(given @ self.known[text][key] / max(float(np.linalg.norm(given)), 1e-12))
                if not cosine > least:
                    found.append(f"{point}: {key} of {text[:40]!r} has a cosine of {cosine:.4f}")
        return found


def _network(directory: Path) -> object:
    from transformers import AutoModel

    return AutoModel.from_pretrained(directory).eval()


def _by_length(rows: Sequence[Sequence[int]]) -> list[list[tuple[int, Sequence[int]]]]:
    """The rows with their places, those of one length together: nothing needs padding then."""
    alike: dict[int, list[tuple[int, Sequence[int]]]] = {}
    for place, ids in enumerate(rows):
        alike.setdefault(len(ids), []).append((place, ids))
    return list(alike.values())


def _vectors(network: object, rows: Sequence[Sequence[int]], pooling: str) -> Vectors:
    import torch

    with torch.inference_mode():
        hidden = network(input_ids=torch.tensor([list(ids) for ids in rows])).last_hidden_state
    pooled = hidden.mean(1) if pooling == "mean" else hidden[:, 0]
    return (pooled / pooled.norm(dim=1, keepdim=True)).numpy()
