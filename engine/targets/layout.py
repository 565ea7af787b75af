"""How a collection is made on a server, and how one that is there differs from that. Pure.

Dense vectors are compared by cosine and lie on disk; quantised copies of them are in memory. Token vectors are compared
by MaxSim and have no index, which would be larger than they are. No index is built while points come: `UNINDEXED` makes
it so, and `INDEXED` has all of them built once.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from interlock.engine.errors import UsageError
from interlock.engine.models.registry import NAME_RULE, nameable
from interlock.engine.record.words import differences
from interlock.engine.vectors.bm25 import BM25

VectorType = Literal["float32", "float16"]
Quantisation = Literal["none", "int8", "binary"]
IndexType = Literal["keyword", "integer", "float", "bool", "datetime", "uuid", "text", "geo"]
METADATA = "interlock"
"""The key of a collection's metadata under which it is said what its vectors mean."""
MARK = "interlock_upload"
"""The key under which the latest upload is named: what was acknowledged to another may have been overwritten."""
UNINDEXED, INDEXED = {"m": 0}, {"m": 16}
_QUANTISED: Mapping[str, Mapping[str, object]] = {
    "int8": {"scalar": {"type": "int8", "quantile": 0.99, "always_ram": True}},
    "binary": {"binary": {"always_ram": True}},
}


@dataclass(frozen=True)
class CollectionLayout:
    """A collection of a server: its dense and token vectors by name with their widths, its sparse ones by name, and
    what they all mean (`manifest`); `indexes` are keys of the payload with their types."""

    dense: Mapping[str, int]
    sparse: Sequence[str]
    tokens: Mapping[str, int]
    manifest: Mapping[str, object]
    vector_type: VectorType = "float32"
    quantisation: Quantisation = "none"
    indexes: Mapping[str, str] = field(default_factory=dict)

    @property
    def request(self) -> dict[str, object]:
        """What a server is asked for to create it."""
        quantised = {"quantization_config": _QUANTISED[self.quantisation]} if self.quantisation != "none" else {}
        vectors: dict[str, object] = {
            name: {"size": size, "distance": "Cosine", "on_disk": True, "datatype": self.vector_type, **quantised}
            for name, size in self.dense.items()
        }
        for name, size in self.tokens.items():
            vectors[name] = {
                "size": size,
                "distance": "Dot",
                "on_disk": True,
                "datatype": "float16",
                "multivector_config": {"comparator": "max_sim"},
                "hnsw_config": {"m": 0},
            }
        return {
            "vectors": vectors,
            "sparse_vectors": {name: {"modifier": "idf"} if name == BM25 else {} for name in self.sparse},
            "hnsw_config": UNINDEXED,
            "metadata": {METADATA: self.manifest},
        }

    def differences(self, there: Mapping[str, Any]) -> list[str]:
        """Say how a collection that the server describes differs in what its points mean or how they are kept."""
        config, params = there["config"], there["config"]["params"]
        told = (config.get("metadata") or {}).get(METADATA)
        if told is None:
            return ["it was not made by interlock (its metadata says nothing of models)"]
        wanted = self.request
        found = [_kept(params.get("vectors") or {}), _weighed(params.get("sparse_vectors") or {})]
        asked = [_kept(wanted["vectors"]), _weighed(wanted["sparse_vectors"])]
        here = {"vectors": found[0], "sparse_vectors": found[1], **_meaning(told)}
        indexes = {key: each.get("data_type") for key, each in (there.get("payload_schema") or {}).items()}
        odd = [
            f"the index of {key} was {indexes[key]}, is now {kind}"
            for key, kind in self.indexes.items()
            if indexes.get(key, kind) != kind
        ]
        return [*differences(here, {"vectors": asked[0], "sparse_vectors": asked[1], **_meaning(self.manifest)}), *odd]


def vector_type_of(text: str) -> VectorType:
    """Read the type of numbers. Raises UsageError for another: a server's uint8 takes whole numbers from 0 to 255, and
    would make zeros of vectors of unit length."""
    for each in get_args(VectorType):
        if each == text:
            found: VectorType = each
            return found
    raise UsageError(f"--vector-type: {text!r} does not exist: choose {' or '.join(get_args(VectorType))}")


def quantisation_of(text: str) -> Quantisation:
    """Read the kind of quantised copies. Raises UsageError for another."""
    for each in get_args(Quantisation):
        if each == text:
            found: Quantisation = each
            return found
    raise UsageError(f"--quantisation: {text!r} does not exist: choose {', '.join(get_args(Quantisation))}")


def parse_indexes(texts: Sequence[str]) -> dict[str, str]:
    """Read indexes as they are asked for, `KEY:TYPE` each. Raises UsageError for a type that there is not."""
    found = {}
    for text in texts:
        key, _, kind = text.rpartition(":")
        if not key or kind not in get_args(IndexType):
            raise UsageError(
                f"--index: {text!r} is not KEY:TYPE: name a key and a type, such as metadata.lang:keyword, of "
                f"{', '.join(get_args(IndexType))}"
            )
        found[key] = kind
    return found


def check_named(name: str) -> None:
    """Raise UsageError unless a server would take this name for a collection or an alias."""
    if not nameable(name):
        raise UsageError(f"a collection cannot be called {name!r}: use {NAME_RULE}")


def _kept(vectors: Any) -> dict[str, object]:
    """Of dense and token vectors by name what may not change; an unnamed one is named by nothing."""
    named = {"": vectors} if "size" in vectors else vectors
    return {name: dict(_told(each)) for name, each in named.items()}


def _told(vector: Mapping[str, Any]) -> Iterator[tuple[str, object]]:
    yield "size", vector["size"]
    yield "distance", vector["distance"]
    yield "datatype", vector.get("datatype") or "float32"
    yield "multivector", (vector.get("multivector_config") or {}).get("comparator")
    quantised = vector.get("quantization_config") or {}
    yield "quantisation", next((kind for kind, own in _QUANTISED.items() if own.keys() == quantised.keys()), "none")


def _weighed(sparse: Any) -> dict[str, object]:
    return {name: {"modifier": (each or {}).get("modifier") or "none"} for name, each in sparse.items()}


def _meaning(manifest: Mapping[str, Any]) -> dict[str, object]:
    """A manifest but for which run wrote last."""
    return {key: value for key, value in manifest.items() if key != "run"}
