"""What the vectors of a store mean: the models, weights and prompts that a query must be encoded with; and that query.

A store of `concat` holds `[sqrt(w_i) * u_i]`. A query that scales each model's vector by `v_i / sqrt(w_i)` meets it in
`sum v_i * cos_i`: so weights are chosen when a query comes, and no model's own vectors need be kept for that.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, TypeVar, get_args

import msgspec
import numpy as np
from msgspec import Meta, Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from interlock.engine.errors import UsageError
from interlock.engine.models.registry import Precision, check_key, name_of_output
from interlock.engine.record.facts import MissingModel, RosterEntry, TermForm, TokenForm
from interlock.engine.record.shards import Shards
from interlock.engine.record.words import differences, few
from interlock.engine.vectors import UNSAID_SHARE
from interlock.engine.vectors.bm25 import BM25, Words, WordWeights
from interlock.engine.vectors.fusion import Fusion, Vectors, fuse, shares
from interlock.engine.vectors.points import NESTED, PayloadForm
from interlock.engine.vectors.precision import ALL, Keep, Quantise, Reduced, VectorForm

M = TypeVar("M", bound=Struct)


class KnownModel(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A model as it has to be for a query. `overlap` says how its longer texts were split; a query is cut."""

    model: str
    fingerprint: str
    dim: Annotated[int, Meta(ge=1)]
    dtype: Precision
    max_tokens: Annotated[int, Meta(ge=1)]
    query_prompt: str
    document_prompt: str
    overlap: float | None = None
    tokenizer: str = ""


class SparseMember(KnownModel, frozen=True, kw_only=True):
    """A model that weighs terms; `dim` is the size of its vocabulary, `head` the SHA-256 of its `sparse_linear`."""

    head: str = ""
    terms: TermForm | None = None


class Member(KnownModel, frozen=True, kw_only=True):
    """A dense model as it has to be for a query: everything but where its files come from."""

    weight: Annotated[float, Meta(gt=0, le=1)]


class TokenMember(KnownModel, frozen=True, kw_only=True):
    """A model whose token vectors are kept, and how; `dim` is that of what it is in the roster for, `head` the SHA-256
    of its `colbert_linear`."""

    head: str = ""
    tokens: TokenForm


class Origin(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Which run wrote last, and where its models came from; may differ between two writers.

    `bm25_average_length` is the number of words that its BM25 vectors take for average: a query needs none. `began` is
    when that run was begun, in seconds since the epoch, and `missing` says of each model that the store lacks why.
    """

    run_id: str
    sources: dict[str, str]
    commits: dict[str, str | None]
    bm25_average_length: float | None = None
    began: float = 0.0
    missing: dict[str, str] = {}


class CalibratedWeights(Struct, frozen=True, kw_only=True):
    """How much each dense model counts in a question where nobody says it, 0 for nothing: chosen by so many judged
    `queries`, in the place of what counted `before`. The vectors are as they were."""

    weights: dict[str, float]
    before: dict[str, float]
    queries: Annotated[int, Meta(ge=1)]

    def check(self, models: Collection[str]) -> None:
        """Raise ValueError unless each of these models has a weight, and one of them a say."""
        if self.weights.keys() != {*models}:
            raise ValueError(f"its calibrated weights are of {few(sorted(self.weights)) or 'nothing'}")
        if not all(0 <= each < math.inf for each in self.weights.values()) or not any(self.weights.values()):
            raise ValueError(f"its calibrated weights are {self.weights}")


class Manifest(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a store holds; one without sparse or token vectors says nothing of them, and reads as it always did.

    `keep` says which dense vectors it holds, `projection` what reduced the fused ones, and `quantised` in what numbers
    they are, `payload` where its points have metadata. `calibrated` are weights that an evaluation chose, if one did.
    `chunk_sparse` is the name of the terms that chunks brought; a term's index is the first 32 bits of its SHA-1.
    `missing` are models of the run that it lacks, with all they give: the others' weights are those of a roster without
    them. Sparse lists count `sparse_share` where a question says none. `unfinished`: a delivery is not found whole yet;
    `shards`: those of a run that are there.
    """

    schema_version: str
    collection: str
    fusion: Fusion
    keep: Keep = "both"
    projection: Reduced | None = None
    quantised: Quantise = "none"
    compact: bool = False  # its terms of BM25 are not kept: they are made again of its texts
    payload: PayloadForm = NESTED
    models: Annotated[list[Member], Meta(min_length=1)]
    sparse: list[SparseMember] = []
    tokens: list[TokenMember] = []
    bm25: Words | None = None
    chunk_sparse: str = ""
    sparse_share: Annotated[float, Meta(ge=0, le=1)] = UNSAID_SHARE
    calibrated: CalibratedWeights | None = None
    missing: list[str] = []
    unfinished: bool = False
    shards: Shards | None = None
    run: Origin

    @property
    def weights(self) -> dict[str, float]:
        """How much each dense model counts where nobody says it: calibrated, or as in the run."""
        own = {member.model: member.weight for member in self.models}
        return {name: self.calibrated.weights[name] for name in own} if self.calibrated else own

    @property
    def gap(self) -> str:
        """What of its run it lacks and why, and what counts instead; empty where it lacks nothing."""
        if self.unfinished or not self.missing:
            again = f"finish run {self.run.run_id} (see `interlock ctl RUN_DIR status`), or repeat its export"
            lacks = self.shards.gap(self.collection) if self.shards else ""
            return f"{self.collection} is not whole: {again}" if self.unfinished else lacks
        lacks = ", ".join(f"{name} ({why})" if (why := self.run.missing.get(name)) else name for name in self.missing)
        left = ", ".join(f"{name}={weight:.3g}" for name, weight in self.weights.items())
        return f"{self.collection} was delivered without {lacks}; it is searched by the rest: {left}"

    @property
    def form(self) -> VectorForm:
        """The form of its dense vectors."""
        return VectorForm(self.keep, self.projection.dim if self.projection else 0, self.quantised)


def token_dims(members: Sequence[RosterEntry | TokenMember]) -> dict[str, int]:
    """Return the dimensions of the token vectors of these models, by the name of what is delivered."""
    return {name_of_output(each.model, "tokens"): each.tokens.dim for each in members if each.tokens}


@dataclass(frozen=True)
class CollectionSpec:
    """What a collection is to be, wherever it is delivered: what its manifest and its vectors follow from.

    `roster` are the models of the run but for those that are `missing`; `projection` is the SHA-256 of what brings its
    fused vectors to the dimensions of its form, and the run was begun at `began`, in seconds since the epoch.
    """

    collection: str
    fusion: Fusion
    roster: Sequence[RosterEntry]
    run_id: str
    bm25: WordWeights | None = None
    chunk_sparse: str = ""
    form: VectorForm = ALL
    projection: str = ""
    missing: Sequence[MissingModel] = ()
    began: float = 0.0
    payload: PayloadForm = NESTED
    sparse_share: float = UNSAID_SHARE
    compact: bool = False

    @property
    def members(self) -> dict[str, int]:
        """The width of every dense model's own vectors, by name."""
        return {entry.model: entry.dim for entry in self.roster if entry.kind == "dense"}

    @property
    def dims(self) -> dict[str, int]:
        """The width of every dense vector that a store and the table keep, by name."""
        return self.form.widths(self.fusion, self.members)

    @property
    def sparse(self) -> list[str]:
        """The names of its sparse vectors."""
        return [*self._weighing, *filter(None, [self.chunk_sparse, BM25 if self.bm25 else ""])]

    @property
    def tokens(self) -> dict[str, int]:
        """The width of its token vectors, by name."""
        return token_dims(self.roster)

    @property
    def _weighing(self) -> dict[str, RosterEntry]:
        """The models that weigh terms, by the names of their sparse vectors."""
        return {name_of_output(each.model, "sparse", each.kind): each for each in self.roster if "sparse" in each.gives}

    @property
    def manifest(self) -> Mapping[str, object]:
        """Its manifest, as plain JSON."""
        named, form = {entry.model: entry for entry in self.roster} | self._weighing, self.form.of(self.fusion)
        own = {each: each for each in (*get_args(Keep), *get_args(Quantise), *get_args(PayloadForm))}
        manifest = Manifest(
            schema_version="1",
            collection=self.collection,
            fusion=self.fusion,
            keep=own[form.keep],
            quantised=own[form.quantise],
            compact=self.compact,
            payload=own[self.payload],
            projection=Reduced(dim=form.project, sha256=self.projection) if form.project else None,
            models=[_member(entry, Member) for entry in self.roster if entry.kind == "dense"],
            sparse=[
                _member(entry, SparseMember, "sparse_linear", model=name, dim=entry.words or entry.dim)
                for name, entry in self._weighing.items()
            ],
            tokens=[_member(entry, TokenMember, "colbert_linear") for entry in self.roster if entry.tokens],
            bm25=self.bm25.words if self.bm25 else None,
            chunk_sparse=self.chunk_sparse,
            sparse_share=UNSAID_SHARE if self.sparse_share == UNSAID_SHARE else self.sparse_share,  # left out
            missing=[each.model for each in self.missing],
            run=Origin(
                run_id=self.run_id,
                sources={name: entry.source for name, entry in named.items()},
                commits={name: entry.commit for name, entry in named.items()},
                bm25_average_length=self.bm25.average_length if self.bm25 else None,
                began=self.began,
                missing={each.model: each.reason for each in self.missing},
            ),
        )
        return dict(msgspec.to_builtins(manifest))


def _member(entry: RosterEntry, kind: type[M], head: str = "", **own: object) -> M:
    """A model as a member of this kind, with the SHA-256 of its `head`, if it has one of this name."""
    given = msgspec.to_builtins(entry) | ({"head": entry.heads.get(head, "")} if head else {}) | own
    return msgspec.convert(given, kind)


def remaining(
    roster: Sequence[RosterEntry], without: Sequence[MissingModel], given: Sequence[float] = ()
) -> list[RosterEntry]:
    """Return the models that are left in their order, the dense ones with their shares of the fusion as if they were
    the whole roster; `given` are the weights of the first models, as they were asked for."""
    left = {at: entry for at, entry in enumerate(roster) if all(at != each.model_pass for each in without)}
    asked = dict(enumerate(given)) if given else {number: entry.weight for number, entry in left.items()}
    dense = [number for number, entry in left.items() if entry.kind == "dense"]
    weights = dict(zip(dense, shares([asked[number] for number in dense]).tolist(), strict=True)) if dense else {}
    return [replace(entry, weight=weights.get(number, entry.weight)) for number, entry in left.items()]


def read_manifest(
    plain: Mapping[str, object], dims: Mapping[str, int], sparse: Collection[str] = (), tokens: Mapping[str, int] = {}
) -> Manifest:
    """Read the manifest of a store with dense and token vectors of these dimensions by name, and these sparse ones.

    Raises UsageError for one that this version cannot read, that contradicts itself, or that is not of these vectors.
    """
    try:
        manifest = msgspec.convert(plain, Manifest)
        widths, terms = {each.model: each.dim for each in manifest.models}, {each.model for each in manifest.sparse}
        if len(widths | dict.fromkeys(terms)) < len(manifest.models) + len(manifest.sparse):
            raise ValueError("it lists a model twice")
        if manifest.calibrated:
            manifest.calibrated.check(widths)
        if odd := sorted({*manifest.missing} & {*widths, *terms}):
            raise ValueError(f"it both has and lacks {few(odd)}")
        for name in (*widths, *sorted(terms)):
            check_key(name)
            if not manifest.run.sources.keys() & manifest.run.commits.keys() >= {name}:
                raise ValueError(f"it lacks the sources of {name}")
        if faults := list(differences(dict(dims), manifest.form.widths(manifest.fusion, widths))):
            raise ValueError(f"its vectors do not match the store: {few(faults)}")
        if odd := sorted(({*terms, BM25 if manifest.bm25 else "", manifest.chunk_sparse} - {""}) ^ set(sparse)):
            raise ValueError(f"its sparse vectors do not match the store: {few(odd)}")
        if faults := list(differences(dict(tokens), token_dims(manifest.tokens))):
            raise ValueError(f"its token vectors do not match the store: {few(faults)}")
    except (msgspec.ValidationError, ValueError) as error:
        raise UsageError(
            f"cannot read the store's manifest ({error}): it is damaged or from another version; restore it "
            "from a copy, or deliver again"
        ) from None
    return manifest


def query_vectors(
    manifest: Manifest, unit: Mapping[str, Vectors], weights: Mapping[str, float], projection: Vectors | None = None
) -> tuple[Vectors, NDArray[np.float64]]:
    """Make [n, width] unit vectors of the models' `unit` vectors of n queries, each [n, dim], and their scale [n].

    The cosine of such a vector with one of the store, times its scale, is the weighted mean of the models' cosines,
    where `weights` sum to anything above 0; a model without a weight, or with 0, has no say and needs no vectors. A
    store of `mean` takes the weights it was written with alone, and its cosine is that of the means, at a scale of 1.
    `projection` [width, N] is the store's own, where it has one: the sum is as near then as that keeps.

    Raises ValueError where the store's projection is left out, and UsageError for weights that are negative, not
    finite, all 0 or of no model of the store, and for others than its own where it is a store of `mean`.
    """
    if (projection is None) is not (manifest.projection is None):
        raise ValueError(f"the projection to pass is that of the store: expected {manifest.projection}")
    asked, own = _asked(manifest, weights), shares([member.weight for member in manifest.models])
    if manifest.fusion is Fusion.MEAN:
        if not np.allclose(asked, own, rtol=0, atol=1e-6):
            written = ", ".join(f"{each.model}={share:.3g}" for each, share in zip(manifest.models, own, strict=True))
            raise UsageError(
                f"the store was written with --fusion {Fusion.MEAN}, which mixes its models for good: use the weights "
                f"it was written with ({written}), or deliver again with --fusion {Fusion.CONCAT}"
            )
        whole = fuse(Fusion.MEAN, [unit[member.model] for member in manifest.models], own.tolist())
        assert whole is not None, "a mean is one vector"
        return _scaled(whole.astype(np.float64), projection, whole_is=1.0)
    rows = max(len(vectors) for vectors in unit.values())
    blocks = [
        unit[member.model].astype(np.float64) * (say / np.sqrt(share)) if say else np.zeros((rows, member.dim))
        for member, say, share in zip(manifest.models, asked.tolist(), own.tolist(), strict=True)
    ]
    return _scaled(np.concatenate(blocks, axis=1), projection)


def _scaled(
    vectors: NDArray[np.float64], projection: Vectors | None, whole_is: float | None = None
) -> tuple[Vectors, NDArray[np.float64]]:
    """The unit vectors, projected where there is something to project by, and how long they were."""
    if projection is not None:
        vectors = vectors @ projection.astype(np.float64)
    scale = np.linalg.norm(vectors, axis=1)
    return (vectors / scale[:, None]).astype(np.float32), scale if whole_is is None else np.full(len(scale), whole_is)


def _asked(manifest: Manifest, weights: Mapping[str, float]) -> NDArray[np.float64]:
    """The weights of the store's models in their order, scaled to sum 1."""
    names = [member.model for member in manifest.models]
    if unknown := sorted(weights.keys() - {*names}):
        raise UsageError(f"the store has no vectors of {', '.join(unknown)}: name any of {', '.join(names)}")
    given = np.array([weights.get(name, 0.0) for name in names], np.float64)
    if not (np.isfinite(given) & (given >= 0)).all() or not given.any():
        raise UsageError(
            f"weights of a query: expected numbers of 0 or more, one of them above 0, got {dict(weights)}: give 0 to a "
            "model that is to have no say"
        )
    return np.asarray((scaled := given / given.max()) / scaled.sum(), np.float64)
