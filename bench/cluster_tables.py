"""The tables of a cluster's figures, and what they mean in cards: how many a head keeps up with."""

from collections.abc import Iterator, Mapping
from typing import Any

from bench.figures import Row, goal_of, share_of
from interlock.engine.models.networks.sizes import cost_of
from tests.architectures import ARCHITECTURES

TEXT = 256
"""Tokens of the text that the tables speak of."""
PEAKS = {"T4": 65e12, "H100": 989e12}
"""Operations a second in float16 by the makers' data sheets, without sparsity (H100: SXM): no encoder reaches them."""
ALIKE = 1.1
"""The slowest round of a kind beside its fastest, at most."""
MODELS = {
    "MiniLM-L6": "MiniLM-L6",
    "BERT-base": "BERT-base, MPNet-base",
    "ModernBERT-base": "ModernBERT-base",
    "XLM-R-large": "XLM-R-large, BGE-M3",
    "Qwen3-0.6B": "Qwen3-0.6B",
}
Found = Mapping[str, Any] | None


def cluster(found: Found) -> Iterator[Row]:
    """What a cluster's head does and costs."""
    if not found:
        return
    for part, told in (("head", "nodes in its own process"), ("ray", "`local:2`, Ray between")):
        if each := found.get(part):
            rates = f"{each['texts_per_second']:,} texts/s; {each['out_mb_per_second']:,.0f} MB/s out"
            yield f"ceiling of the head, {told}", f"{rates}, {each['back_mb_per_second']:,.0f} MB/s back", ""
            alone = f"{each['cpu_us_per_text']:.1f} µs, so {each['texts_per_cpu_second']:,} texts a CPU second"
            yield f"its CPU a text, {told}", alone, ""
    head = found["head"]
    yield (
        f"memory that the head takes beside files in a pass of {head['texts']:,} texts of 1,024 numbers",
        f"{head['anonymous_mb']:.0f} MB",
        "",
    )
    if "overhead" in found:
        of = found["overhead"]
        told = f"from the first lease to the end of the pass ({of['chunks']:,} texts, medians of {of['rounds']})"
        yield f"a cluster of one against a plain run, {told}", *_overhead(found)
        ends = " / ".join(f"{of['median'][name]['end']:.1f}" for name in ("plain", "local:1"))
        yield "seconds from there to the end: plain / a cluster of one, whose processes end", ends, ""
        starts = " / ".join(f"{seconds:.1f}" for seconds in found["start"].values())
        yield "seconds to the first lease: plain / one node / two / four", starts, ""
    (least, *_, most) = found["efficiency"]
    shares = " / ".join(f"{each['efficiency']:.1%}" for each in found["efficiency"][:-1])
    for_most, goal = share_of(found, "efficiency")
    yield f"efficiency at {least['nodes']} to {most['nodes']} nodes, doubling", f"{shares} / {for_most}", goal
    for name, told in (("nodes", "nodes"), ("batches", "batches, 8 nodes")):
        sizes = " / ".join(f"{each[name]:,}" for each in found[name])
        yield (
            f"the head's CPU a batch at {sizes} {told}",
            " / ".join(f"{each['us_per_batch']:.0f}" for each in found[name]) + " µs",
            "",
        )
    yield "the head's CPU grows with batches by the power of", *goal_of(found, "growth with batches", "{:.2f}")


def telling(overhead: Mapping[str, Any]) -> bool:
    """Whether rounds of the same kind agree well enough for a difference between kinds to be told."""
    return all(max(each) <= ALIKE * min(each) for each in overhead["pass_seconds"].values())


def _overhead(found: Mapping[str, Any]) -> tuple[str, str]:
    if telling(found["overhead"]):
        return share_of(found, "overhead")
    spans = ", ".join(
        f"{name} {min(each):.0f} to {max(each):.0f}" for name, each in found["overhead"]["pass_seconds"].items()
    )
    return f"**not told**: the machine was busy (seconds of a round: {spans})", "3 %"


def cards(found: Found) -> Iterator[Row]:
    """By model, the most that a card could ask of a head, and how many such cards the head that was measured feeds."""
    for name, told in MODELS.items():
        cost = cost_of(ARCHITECTURES[name])
        assert cost
        flops, dim = cost.of(1, TEXT), ARCHITECTURES[name]["hidden_size"]
        most = {card: peak / flops for card, peak in PEAKS.items()}
        rates = [f"{_rounded(rate):,g}" for rate in most.values()]
        back = f"{most['H100'] * dim * 4 / 1e6:.0f}"
        fed = ["", ""]
        if found and "ray" in found:
            here, alone = found["ray"]["texts_per_second"], found["ray"]["texts_per_cpu_second"]
            fed = [f"{_rounded(here / rate):,g} / {_rounded(alone / rate):,g}" for rate in most.values()]
        yield told, f"{dim:,}", f"{flops / 1e9:.1f}", *rates, back, *fed


def _rounded(rate: float) -> float:
    """To three digits."""
    return float(f"{rate:.3g}")


CARDS = [
    "model",
    "numbers",
    "GFLOP a text",
    "T4, texts/s at most",
    "H100, texts/s at most",
    "back from an H100, MB/s at most",
    "T4s that a head feeds, here / by its CPU",
    "H100s",
]
"""The heads of the table of cards."""
