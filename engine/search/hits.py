"""What a search gives: chunks with their scores, in what places, and by which stage; and texts as a search has them, in
vectors. Imports nothing heavy."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from interlock.engine.vectors.points import STALE

if TYPE_CHECKING:
    from interlock.engine.compute.parts.terms import SparseRows
    from interlock.engine.vectors.fusion import Vectors

Side = Literal["query", "document"]
"""What a text is encoded as: a question to a collection, or one of its chunks."""


@dataclass(frozen=True)
class StageScore:
    """Where one stage has a chunk: its `rank` from 1, and its score there."""

    rank: int
    score: float


SOURCES = ("source_path", "source_file", "filename", "source", "file_path", "file_name", "url", "source_id")


def trec_lines(query: str, scores: Mapping[str, float], tag: str) -> Iterator[str]:
    """Write the hits of a query, best first, as lines of a TREC run. trec_eval orders by the score in float32, equal
    ones by id: one that is not less than that of the hit before becomes the next smaller number."""
    import numpy as np

    last = np.float32(np.inf)
    for rank, (id, score) in enumerate(scores.items(), 1):
        last = min(np.float32(score), np.nextafter(last, np.float32(-np.inf)))
        yield f"{query} Q0 {id} {rank} {last!s} {tag}\n"


@dataclass(frozen=True)
class Hit:
    """A found chunk. `score` orders the hits of one question and says no more: where several stages found them it is
    blended of theirs, each from 0 to 1 among what that stage found, so that the best of nothing near has about 1 too.

    `cosine` says how near the chunk is, for any question alike: that of the dense vectors, of several models the
    weighted mean; None where no dense vector was asked or the chunk has none. Where the chunk that answers is missing,
    the next one is about as near: neither number tells that there is no answer. `stages` has each stage by name; of
    one stage alone `score` is its own: the cosine, or a sum over terms.
    """

    id: str
    score: float
    payload: Mapping[str, object]
    stages: Mapping[str, StageScore] = field(default_factory=dict, kw_only=True)
    cosine: float | None = field(default=None, kw_only=True)

    @property
    def source(self) -> str:
        """What its chunk comes from: what its metadata says, by the names that producers use, else its source."""
        metadata = self.payload.get("metadata")
        beside = {**self.payload, "source": None, **(metadata if isinstance(metadata, Mapping) else {})}
        said = [beside.get(name) for name in SOURCES]
        return next((str(each) for each in (*said, self.payload.get("source")) if each and isinstance(each, str)), "")

    @property
    def stale(self) -> bool:
        """Whether its chunk has left the corpus, as the last whole delivery found."""
        return STALE in self.payload


@dataclass(frozen=True)
class LateHit(Hit):
    """A found chunk with its score of late interaction; None where its row was parked and it has no token vectors."""

    late: float | None


@dataclass(frozen=True)
class RankedHit(Hit):
    """A candidate in its new place: `score` is blended, `before` its place in the first stage, from 1."""

    before: int
    first_score: float
    rerank_score: float


@dataclass(frozen=True)
class Candidate(Hit):
    """A chunk to be judged, whoever found it: its `grade`, None before anybody judged it. Its score says nothing."""

    grade: int | None


@dataclass(frozen=True)
class Answer:
    """What was found for one question, best first.

    `shares` say how much each list counts where several were combined, `seconds` how long each stage took, by its name.
    `calibrated` are the weights of the dense models where they are those that an evaluation gave the store. `why_none`
    says why no chunk fulfils the conditions, where none does; `cut` how many tokens of the question are beyond the
    limit of a model, by its name.
    """

    text: str
    hits: Sequence[Hit]
    shares: Mapping[str, float] = field(default_factory=dict)
    seconds: Mapping[str, float] = field(default_factory=dict)
    calibrated: Mapping[str, float] = field(default_factory=dict)
    why_none: str = ""
    cut: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class EncodedTexts:
    """Texts as a collection's points have them, row i that of text i; by the names of the points' vectors.

    `dense` float32 [n, dim] at unit length, NaN where a chunk is parked; `sparse` rows of terms, `bm25` among them, by
    dot product with the points' (those of a question without the store's IDF); `tokens` an array [tokens, dim] for each
    text. `cut` says how many tokens of a text each model left out, `read` how many all of them read, `lacks` which
    vectors could not be made, and why.
    """

    collection: str
    side: Side
    texts: Sequence[str]
    dense: "Mapping[str, Vectors]"
    sparse: "Mapping[str, SparseRows]"
    tokens: "Mapping[str, Sequence[Vectors]]"
    cut: Sequence[Mapping[str, int]]
    read: Sequence[int]
    lacks: str = ""

    def __len__(self) -> int:
        return len(self.texts)

    def __repr__(self) -> str:
        kinds = {name: f"[{', '.join(map(str, each.shape))}]" for name, each in self.dense.items()}
        kinds |= dict.fromkeys(self.sparse, "terms") | dict.fromkeys(self.tokens, "tokens")
        told = ", ".join(f"{name} {kind}" for name, kind in kinds.items())
        return f"<{len(self)} encoded as {self.side} of {self.collection}: {told}>"
