"""Where the vectors of a pass lie, and what opens them: dense vectors, or compressed rows of term weights."""

from pathlib import Path

from interlock.engine.models.registry import Kind
from interlock.engine.passes.sparse import SparseFile
from interlock.engine.passes.vectors import PassFile, VectorFile

ROWS = "rows.npy"


def place_of(vectors: Path, kind: Kind) -> Path:
    """Return the file that a pass is found by; `vectors` is the one of a dense pass."""
    return vectors.with_name(ROWS) if kind == "sparse" else vectors


def open_pass(vectors: Path, kind: Kind, texts: int, width: int) -> PassFile:
    """Open the file of a pass, or make it. Raises InterlockError as the files do."""
    file = SparseFile if kind == "sparse" else VectorFile
    return file(place_of(vectors, kind), texts, width)
