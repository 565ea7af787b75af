"""How a collection of a Qdrant server is made, and how one that is there differs from that.

Dense vectors are compared by cosine and lie on disk; quantised copies of them are in memory. Token vectors are compared
by MaxSim and have no index, which would be larger than they are. No index is built while points come: `UNINDEXED` makes
it so, and `INDEXED` has all of them built once.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, TypeVar, get_args

import msgspec
from msgspec import structs

from interlock.engine.errors import UsageError
from interlock.engine.models.registry import NAME_RULE, nameable
from interlock.engine.record.shards import Shards
from interlock.engine.record.words import differences, few
from interlock.engine.vectors.bm25 import BM25
from interlock.engine.vectors.points import NESTED, PayloadForm

if TYPE_CHECKING:
    from qdrant_client.models import CollectionInfo, CreateCollection

VectorType = Literal["float32", "float16"]
Quantisation = Literal["none", "int8", "binary"]
IndexType = Literal["keyword", "tenant", "integer", "float", "bool", "datetime", "uuid", "text", "geo"]
METADATA = "interlock"
"""The key of a collection's metadata under which it is said what its vectors mean."""
MARK = "interlock_upload"
"""That under which the latest upload is named: what was acknowledged to another may have been overwritten."""
UNINDEXED, INDEXED = 0, 16
"""Links of each vector in the index, `m`, while points come and afterwards."""
C = TypeVar("C", bound=str)


@dataclass(frozen=True)
class Topology:
    """How a cluster of servers spreads a collection: in how many shards, how many servers have each, and how many of
    these must have written a point before it counts. What is None is left to the server."""

    shards: int | None = None
    replicas: int | None = None
    write_consistency: int | None = None

    @property
    def asked(self) -> dict[str, int]:
        """What is not left to the server, as that calls it."""
        factors = self.shards, self.replicas, self.write_consistency
        named = zip(("shard_number", "replication_factor", "write_consistency_factor"), factors, strict=True)
        return {name: factor for name, factor in named if factor is not None}


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
    topology: Topology = Topology()

    @property
    def dense_bytes(self) -> int:
        """Bytes of the dense vectors of one point, as the server keeps them."""
        return sum(self.dense.values()) * (2 if self.vector_type == "float16" else 4)

    @cached_property
    def request(self) -> "CreateCollection":
        """What a server is asked for to create it."""
        from qdrant_client import models

        vectors = {
            name: models.VectorParams(
                size=size,
                distance=models.Distance.COSINE,
                on_disk=True,
                datatype=models.Datatype(self.vector_type),
                quantization_config=self._quantised,
            )
            for name, size in self.dense.items()
        }
        for name, size in self.tokens.items():
            vectors[name] = models.VectorParams(
                size=size,
                distance=models.Distance.DOT,
                on_disk=True,
                datatype=models.Datatype.FLOAT16,
                multivector_config=models.MultiVectorConfig(comparator=models.MultiVectorComparator.MAX_SIM),
                hnsw_config=models.HnswConfigDiff(m=UNINDEXED),
            )
        weighed = models.SparseVectorParams(modifier=models.Modifier.IDF)
        return models.CreateCollection(
            vectors=vectors,
            sparse_vectors={name: weighed if name == BM25 else models.SparseVectorParams() for name in self.sparse},
            hnsw_config=models.HnswConfigDiff(m=UNINDEXED),
            metadata=self.metadata,
            **self.topology.asked,  # type: ignore[arg-type]
        )

    @property
    def _quantised(self) -> Any:
        from qdrant_client import models

        if self.quantisation == "int8":
            scalar = models.ScalarQuantizationConfig(type=models.ScalarType.INT8, quantile=0.99, always_ram=True)
            return models.ScalarQuantization(scalar=scalar)
        if self.quantisation == "binary":
            return models.BinaryQuantization(binary=models.BinaryQuantizationConfig(always_ram=True))
        return None

    @property
    def configuration(self) -> dict[str, Any]:
        """The same as JSON."""
        return dict(self.request.model_dump(mode="json", exclude_unset=True, exclude_none=True))

    @property
    def metadata(self) -> dict[str, Any]:
        """What a collection says of its points."""
        return {METADATA: dict(self.manifest)}

    def check(self, there: "CollectionInfo", where: str) -> None:
        """Raise UsageError where a collection is another one in what its points mean or how they are kept; an empty one
        that somebody else made may mean anything."""
        told = self.manifest if unclaimed(there) else (there.config.metadata or {}).get(METADATA)
        if not isinstance(told, Mapping):
            odd = ["it was not made by interlock (its metadata says nothing of models)"]
        else:
            asked, params = self.request, there.config.params
            wanted = {**_kept(asked.vectors, asked.sparse_vectors), **_meaning(self.manifest), **self.topology.asked}
            has = {**_kept(params.vectors, params.sparse_vectors), **_meaning(told)}
            odd = list(differences({**has, **{name: getattr(params, name) for name in self.topology.asked}}, wanted))
            for key, kind in self.indexes.items():
                found = (there.payload_schema or {}).get(key)
                if found and (had := _index_type(found)) != kind:
                    odd.append(f"the index of {key} was {had}, is now {kind}")
        if odd:
            raise UsageError(
                f"{where} is another collection ({few(odd)}): pass --alias NAME to upload beside it, or delete it there"
            )


def unclaimed(there: "CollectionInfo") -> bool:
    """Tell whether a collection has no point and says nothing of models: somebody made it to be filled."""
    return METADATA not in (there.config.metadata or {}) and there.points_count == 0


def unindexed(there: "CollectionInfo") -> bool:
    """Tell whether a collection builds no index, as ours do while points come."""
    return bool(there.config.hnsw_config and there.config.hnsw_config.m == UNINDEXED)


def key_of(shards: Shards | None) -> str:
    """Return the key of the mark of an upload: each shard has its own, so that several go on at once."""
    return f"{MARK}_{shards.own}_of_{shards.of}" if shards else MARK


def mark_of(there: "CollectionInfo", key: str = MARK) -> dict[str, Any]:
    """Read what the latest upload, or that of the shard with this `key`, has left in the metadata."""
    found = (there.config.metadata or {}).get(key)
    return found if isinstance(found, dict) else {}


def superseded(there: "CollectionInfo", union: str) -> dict[str, Any]:
    """Say which marks go once shards of this `union`, or all of a run (empty), are uploaded: those of others."""
    keys = (key for key in there.config.metadata or {} if key.startswith(MARK))
    held = {key: mark_of(there, key) for key in keys if union or key != MARK}
    return {key: {} for key, mark in held.items() if mark and mark.get("shards", {}).get("union") != (union or None)}


def shards_in(there: "CollectionInfo") -> Shards | None:
    """Read which shards of a run were uploaded; None where it was not cut."""
    marks = [mark_of(there, key) for key in there.config.metadata or {} if key.startswith(MARK)]
    told = [msgspec.convert(mark["shards"], Shards) for mark in marks if "shards" in mark]
    held = {number: count for each in told for number, count in each.there.items()}
    return structs.replace(told[0], there=held) if told else None


def layout_in(there: "CollectionInfo", where: str) -> CollectionLayout:
    """Read how a collection of ours was made. Raises UsageError for one that another program made."""
    told, params = (there.config.metadata or {}).get(METADATA), there.config.params
    if not isinstance(told, dict):
        raise UsageError(
            f"{where} was not made by interlock (its metadata says nothing of models): name one that `interlock "
            "upload` made"
        )
    named = params.vectors if isinstance(params.vectors, Mapping) else {}
    widths = [
        {name: each.size for name, each in named.items() if bool(each.multivector_config) is late}
        for late in (False, True)
    ]
    shards = shards_in(there)
    told = told | ({"shards": msgspec.to_builtins(shards)} if shards else {})
    return CollectionLayout(widths[0], [*(params.sparse_vectors or {})], widths[1], told)


def _kept(vectors: Any, sparse: Any) -> dict[str, object]:
    """Of vectors by name what may not change; an unnamed one is named by nothing."""
    named = vectors if isinstance(vectors, Mapping) else {"": vectors} if vectors else {}
    return {
        "vectors": {
            name: {
                "size": each.size,
                "distance": _word(each.distance),
                "datatype": _word(each.datatype) or "float32",
                "multivector": _word(each.multivector_config.comparator) if each.multivector_config else None,
                "quantisation": _quantised_by(each.quantization_config),
            }
            for name, each in named.items()
        },
        "sparse_vectors": {name: {"modifier": _word(each.modifier) or "none"} for name, each in (sparse or {}).items()},
    }


def _quantised_by(config: Any) -> str:
    """How a collection keeps quantised copies: `none`, `int8`, `binary`, or another kind by the client's word."""
    kind = next(iter(type(config).model_fields)) if config else "none"
    return {"scalar": "int8"}.get(kind, kind)


def _index_type(index: Any) -> str:
    """The type of an index, as it is asked for."""
    return "tenant" if getattr(index.params, "is_tenant", None) else str(_word(index.data_type))


def _word(value: Any) -> Any:
    """The word of an enumeration of the client."""
    return getattr(value, "value", value)


def _meaning(manifest: Mapping[str, Any]) -> dict[str, object]:
    """A manifest but for which run wrote last, and the share of sparse lists, which a collection keeps as it has it."""
    return {"payload": NESTED} | {key: value for key, value in manifest.items() if key not in ("run", "sparse_share")}


def topology_of(shards: int | None, replicas: int | None, write_consistency: int | None) -> Topology:
    """Read how a cluster is to spread a collection; None: as it has it. Raises UsageError for what is no number from 1
    on, and where no write could ever count."""
    asked = {"shards": shards, "replicas": replicas, "write-consistency": write_consistency}
    for flag, each in asked.items():
        if each is not None and (type(each) is not int or each < 1):
            raise UsageError(f"--{flag}: {each!r:.100}: pass a whole number above 0")
    made = Topology(shards, replicas, write_consistency)
    if made.replicas and made.write_consistency and made.write_consistency > made.replicas:
        raise UsageError(
            f"--write-consistency {made.write_consistency} is more than --replicas {made.replicas}, so that no write "
            "counts: choose a lower one"
        )
    return made


def vector_type_of(text: str) -> VectorType:
    """Read the type of numbers. Raises UsageError for another: a server's uint8 takes whole numbers from 0 to 255, and
    would make zeros of vectors of unit length."""
    return _one_of(text, get_args(VectorType), "--vector-type", " or ")


def payload_of(text: str | None) -> PayloadForm | None:
    """Read the form of payloads; None: that of the run. Raises UsageError for another."""
    return None if text is None else _one_of(text, get_args(PayloadForm), "--payload", " or ")


def quantisation_of(text: str) -> Quantisation:
    """Read the kind of quantised copies. Raises UsageError for another."""
    return _one_of(text, get_args(Quantisation), "--quantisation", ", ")


def _one_of(text: str, choices: Sequence[C], flag: str, between: str) -> C:
    if text not in choices:
        raise UsageError(f"{flag}: {text!r} does not exist: choose {between.join(choices)}")
    return choices[choices.index(text)]


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
