"""What a run would do, as text: its collections, its passes, and what is not known beforehand."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from msgspec.structs import asdict

from interlock.console.text.event_text import counted, line_of
from interlock.engine.compute.cluster.pricing import priced
from interlock.engine.record.events import RecordRefused
from interlock.engine.record.words import duration, human_bytes, safe, several
from interlock.widgets.formats import render

if TYPE_CHECKING:
    from interlock.engine.compute.cluster.pricing import ClusterWork
    from interlock.engine.flows.forecast import Forecast, PassForecast
    from interlock.engine.models.card import ModelCard

PASSES: Mapping[str, "Callable[[int, PassForecast], str]"] = {
    "pass": lambda number, _: str(number),
    "model": lambda _, each: each.layout.card.key,
    "dtype": lambda _, each: each.layout.card.dtype,
    "dim": lambda _, each: str(each.layout.card.dim),
    "batches": lambda _, each: f"{each.batches:,}",
    "texts": lambda _, each: f"{each.rows:,}",
    "reused": lambda _, each: f"{sum(share.reused for share in each.layout.planned):,}",
    "tokens": lambda _, each: f"{each.tokens:,}",
    "truncated": lambda _, each: f"{each.truncated:,}",
    "weights": lambda _, each: human_bytes(each.weights_bytes),
    "predicted": lambda _, each: human_bytes(each.predicted_bytes),
    "time": lambda _, each: "?" if each.seconds is None else duration(each.seconds),
    "on": lambda _, each: each.place,
}
REFUSALS_SHOWN = 5
"""Of a collection; how many more there are is told."""
IDS = 46
"""Bytes that a store takes for a point's id and for where its payload is, as they lie on a disk."""


def plan_text(seen: "Forecast") -> str:
    """Draw two tables, of collections and of passes, without a final newline."""
    collections = []
    for rows in seen.collections:
        counts = (len(rows.collection.files), rows.chunks, rows.own_texts, rows.duplicates, len(rows.refusals))
        name, store = rows.collection.name, rows.collection.qdrant_collection
        collections.append([name, *(f"{count:,}" for count in counts), store])
    passes = [[cell(number, each) for cell in PASSES.values()] for number, each in enumerate(seen.passes, 1)]
    heads = [*list(PASSES)[:-1], f"of {human_bytes(seen.budget_bytes)} on"]
    above = ["collection", "files", "chunks", "texts", "duplicates", "refused", "Qdrant collection"]
    lines = [render(above, collections), "", render(heads, passes), ""]
    lines.append(f"fused vectors: {seen.fused_dim or 'none (one named vector per model)'}")
    lines.append(sizes_of(seen))
    lines.append(f"margin: {human_bytes(seen.margin_bytes)} of each limit are leased to no model (--margin)")
    lines += [
        f"token vectors: {each.layout.card.key} would keep {human_bytes(each.token_bytes)} ({form.precision}), and its "
        "exports as much again"
        for each in seen.passes
        if (form := each.layout.card.by_token.vectors)
    ]
    if any(each.seconds is None for each in seen.passes):
        lines.append("time: unknown until each model has run once on this kind of device")
    cards = [each.layout.card for each in seen.passes]
    lines += map(told_of, cards)
    lines += filter(None, map(forwards, seen.passes))
    both = [card.key for card in cards if card.kind == "dense" and "sparse" in card.outputs]
    lines += [f"weights of terms: {key} gives them in the pass of its vectors" for key in both]
    lines += [f"padded: {card.key}, because {card.padded_because}" for card in cards if card.padded_because]
    if any(rows.duplicates for rows in seen.collections):
        lines.append("duplicates: texts that are computed once and delivered for each chunk")
    lines += [*long_texts(seen), *sums(seen), *_refused(seen)]
    warnings = (*(each.warning for each in seen.passes), *emptied(seen), *seen.overlooked)
    lines += [f"warning: {each}" for each in warnings if each]
    return "\n".join(lines)


def cluster_text(work: "ClusterWork", counts: Sequence[int]) -> str:
    """Draw a table of what a cluster of each of these numbers of nodes takes, and what its head needs at any."""
    prices = [priced(work, nodes) for nodes in counts]
    rows = [
        [
            f"{each.nodes:,}",
            "?" if each.wall is None else duration(each.wall),
            each.limits,
            duration(each.idle),
            human_bytes(each.sent_bytes),
        ]
        for each in prices
    ]
    any_number = prices[0]
    return "\n".join(
        [
            render(["nodes", "to the last batch", "limited by", "nodes held idle", "to nodes"], rows),
            "",
            f"of that reading and tokenising on the head: {duration(work.reading)}; then delivery and upload, at any "
            "number of nodes",
            f"head: {human_bytes(any_number.memory_bytes)} of memory beside the program, "
            f"{human_bytes(any_number.disk_bytes)} of disk, {human_bytes(any_number.back_bytes)} of vectors from nodes",
        ]
    )


def told_of(card: "ModelCard") -> str:
    """Tell what a model does with a text before and after its network."""
    prompts = (("documents", card.document_prompt), ("queries", card.query_prompt))
    told = [f"before {side} {json.dumps(safe(prompt), ensure_ascii=False)}" for side, prompt in prompts if prompt]
    limit = f"at most {card.max_tokens:,} tokens"
    return f"{safe(card.key)}: " + ", ".join([f"pooling {card.how_pooled}", limit, *(told or ["no prompts"])])


def forwards(each: "PassForecast") -> str:
    """Tell how large the batches of a pass are, and how much of them a GPU computes at a time, alone and shared."""
    if not each.most_tokens:
        return ""
    sizes = [*map(each.layout.computed, each.layout.batches)]
    alone, shared = (sum(-(-size // max(1, most)) for size in sizes) for most in each.most_tokens)
    room = "{:,} fit while it is alone there, {:,} beside the others (--shared)".format(*each.most_tokens)
    told = f": {several(alone, 'forward')}, {shared:,} shared" if max(alone, shared) > len(sizes) else ""
    return f"{each.layout.card.key}: batches of up to {max(sizes):,} tokens; on a GPU {room}{told}"


def sizes_of(seen: "Forecast") -> str:
    """Tell what the dense vectors take."""
    sizes = f"{several(seen.stored_bytes, 'byte')} a chunk in a store, {several(seen.file_bytes, 'byte')} in files"
    small = f"; with --compact {several(seen.stored_bytes + IDS, 'byte')} with its id, and no terms of BM25"
    return f"dense vectors: {sizes}{small if seen.compact else ''}"


def long_texts(seen: "Forecast") -> list[str]:
    """Tell of each model what its limit cuts off."""
    return [
        f"{card.key}: {several(long.texts, 'text')} longer than {card.max_tokens:,} tokens, "
        f"{several(long.beyond, 'token')} of theirs not embedded"
        for card, long in ((each.layout.card, each.long) for each in seen.passes)
        if long.texts
    ]


def sums(seen: "Forecast") -> list[str]:
    """Tell what became of the records of each collection of which not all are kept."""
    found = [(rows, counted(rows.counts.records, rows.chunks, rows.counts.same)) for rows in seen.collections]
    return [f"{safe(rows.collection.name)}: {told}" for rows, told in found if told]


def emptied(seen: "Forecast") -> list[str]:
    """Tell of collections that have chunk files and no chunk that can be embedded."""
    empty = [rows for rows in seen.collections if not rows.chunks and (rows.collection.files or len(rows.refusals))]
    return [f"collection {safe(rows.collection.name)} has no usable record: a run would fail for it" for rows in empty]


def _refused(seen: "Forecast") -> Iterator[str]:
    """What was left out and why, as a run tells it: the first of each collection, and how many more there are."""
    for rows in seen.collections:
        name, told = rows.collection.name, rows.refusals.told[:REFUSALS_SHOWN]
        yield from (safe(line_of(RecordRefused(collection=name, **asdict(refusal)))) for refusal in told)
        if more := len(rows.refusals) - len(told):
            yield f"warning: {several(more, 'more refusal')} in {safe(name)}"
