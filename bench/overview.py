"""The rows of docs/measurements.md: what was promised, in one table."""

from collections.abc import Iterator, Sequence
from typing import Any

from bench.figures import Row, goal_of, median_of, share_of

PACKED = ("flash", "memory-efficient", "runs")
"""Kernels of the memory law for rows laid end to end."""


def measured(
    chunks: Any,
    docstrings: Any,
    bfloat16: Any,
    other: Any,
    qwen3: Any,
    modernbert: Any,
    memory: Any,
    start: Any,
    over: Any,
    lawful: Any,
    heads: Any,
    tiny: Any,
    distilled: Any,
    reranker: Any,
) -> Iterator[Row]:
    """All rows, of the results that there are."""
    yield from _encoding(chunks, bfloat16, other)
    if qwen3 and modernbert:
        both = [goal_of(each, "x best") for each in (qwen3, modernbert)]
        yield "a small Qwen3 / ModernBERT, texts of all lengths, against its best batch size", *_beside(both)
    yield from _sameness(chunks)
    yield from _run(memory, start, over)
    yield from _laws(lawful, heads)
    yield from _other_kinds(tiny, distilled, reranker)
    shares = [share_of(each, "share of GEMM peak", 0) for each in (docstrings, chunks) if each]
    if shares:
        yield "share of the processor's own float32 matrix rate", " / ".join(s for s, _ in shares), shares[0][1]


def _encoding(chunks: Any, bfloat16: Any, other: Any) -> Iterator[Row]:
    if chunks:
        yield "encode against sentence-transformers' default batch, real chunks", *goal_of(chunks, "x default")
        yield "encode against its best batch size, real chunks", *goal_of(chunks, "x best")
    if bfloat16:
        both = [goal_of(bfloat16, name, "{:.1f}x") for name in ("x float32 default", "x own best")]
        what = "the same in bfloat16, against its float32 default / its own best bfloat16, docstrings"
        yield what, *_beside(both)
    if other:
        theirs = median_of(other, "st 32") / median_of(other, other["openvino_best"])
        ours = median_of(other, "st 32") / median_of(other, "interlock")
        what = "sentence-transformers' OpenVINO backend at its best batch size, against its default, real chunks"
        yield what, f"{theirs:.2f}x (ours {ours:.2f}x)", ""


def _sameness(chunks: Any) -> Iterator[Row]:
    if chunks:
        yield "cosine to sentence-transformers' own vectors, worst", *goal_of(chunks, "minimal cosine", "{:.7f}")
        theirs = chunks["padding"]["st 32"]
        what = f"padding (sentence-transformers' default on the same texts: {theirs:.0%})"
        yield what, *share_of(chunks, "padding")


def _run(memory: Any, start: Any, over: Any) -> Iterator[Row]:
    """What a run takes beside its forwards."""
    if memory:
        count = max(memory["runs"], key=int)
        both = [goal_of(memory, f"{count} chunks, {name}, MB", "{:.0f}") for name in ("without", "with --qdrant")]
        what = f"resident memory beyond torch and weights at {int(count):,} chunks, without / with a store"
        yield what, f"{both[0][0]} / {both[1][0]} MB", f"{both[0][1]} MB"
    if start:
        what = "start to the end of a one-batch run, CPU, against importing sentence-transformers and loading the model"
        yield what, *goal_of(start, "CPU, whole process")
    if over:
        what = f"share of a run of {over['chunks']:,} chunks that is not a forward pass"
        yield what, *share_of(over, "share not forward")


def _laws(lawful: Any, heads: Any) -> Iterator[Row]:
    if lawful:
        packed = [each["peak"] for each in lawful["cases"] if each["attention"] in PACKED]
        farthest = (100 * max(abs(each[name]) for each in packed) for name in ("median", "worst"))
        what = "memory law against traces of whole networks, packed, each GPU kernel: error of the peak, median / worst"
        yield what, " / ".join(f"{each:.3f} %" for each in farthest), "1 % / 2 %"
        both = [share_of(lawful, f"{name} error of peak", 2) for name in ("median", "worst")]
        yield "the same with padded networks, which are computed where rows cannot be packed", *_beside(both)
    if heads:
        both = [share_of(heads, f"{name} error of peak", 3) for name in ("median", "worst")]
        yield "the same with the masked-LM heads of sparse models, packed, each GPU kernel", *_beside(both)


def _other_kinds(tiny: Any, distilled: Any, reranker: Any) -> Iterator[Row]:
    """Sparse passes and rerankers against sentence-transformers' own."""
    sparse = "a sparse pass of {}, against SparseEncoder's default batch / its best batch size, docstrings"
    pairs = (
        "scores of pairs by a cross-encoder of MiniLM-L6's shape, against CrossEncoder.predict's default batch / its "
        "best batch size"
    )
    rows = (
        (tiny, sparse.format("splade-tiny")),
        (distilled, sparse.format("a DistilBERT of usual size, random weights")),
        (reranker, pairs),
    )
    for found, what in rows:
        if found:
            yield what, *_beside([goal_of(found, name) for name in ("x default", "x best")])


def _beside(both: Sequence[tuple[str, str]]) -> list[str]:
    """Figures side by side, then their goals."""
    return [" / ".join(each) for each in zip(*both, strict=True)]
