"""What a run on a cluster takes of its nodes, its head and the network between them, by the number of nodes: one model,
behind `interlock plan --nodes` and the tables of docs/scale.md.

Rates are those of one core and of a head over Ray as bench/results/cluster.json has them; reading, tokenising and
computing are as the plan knows them of this machine, of which every node is another one. Delivery and upload come after
and are the same for any number of nodes.
"""

from dataclasses import dataclass

START, END = 5.0, 0.4
"""Seconds until Ray's nodes take their first batch, beside the start of the run itself, and behind the last one."""
IDLE = 60.0
"""Seconds that a node keeps its devices while texts are read; it then ends, and another comes with the plan."""
EXCHANGE = 1.2e-3
"""Seconds of each batch in which a node waits for its head."""
TEXT, BATCH, BATCH_NODE = 13.2e-6, 37e-6, 0.27e-6
"""Seconds of the head's core for a text, for a batch, and for a batch as often as there are nodes."""
BACK = 148e6
"""Bytes a second in which a head takes vectors in and writes them."""
PLANNED = 17.1
"""Bytes of the plan of a text, which each node gets."""
ALONE, HELD = 320 << 20, 21
"""Bytes of the head's memory at its peak: with hardly a text, and for each."""


@dataclass(frozen=True)
class ClusterWork:
    """What is to be done: distinct `texts` of all passes together, `batches` of these; `reading` and `computing`
    seconds on one machine like this (None: unknown); bytes of the vectors that come back, of the models that a node has
    to get, and of what the head writes behind the passes."""

    texts: int
    batches: int
    reading: float
    computing: float | None
    vector_bytes: int
    model_bytes: int
    delivered_bytes: int


@dataclass(frozen=True)
class ClusterPrice:
    """What `nodes` take: `wall` seconds to the last batch, None where the pace is unknown, and what `limits` them;
    `idle` seconds of all nodes together in which they are held without work; bytes that the head sends and takes in,
    and those of its memory and disk."""

    nodes: int
    wall: float | None
    limits: str
    idle: float
    sent_bytes: float
    back_bytes: int
    memory_bytes: float
    disk_bytes: int


def priced(work: ClusterWork, nodes: int) -> ClusterPrice:
    """Price a run on so many nodes."""
    head = work.texts * TEXT + work.batches * (BATCH + BATCH_NODE * nodes)
    spans = {"the head's processor": head, "vectors on their way to the head": work.vector_bytes / BACK}
    if work.computing is not None:
        spans["the nodes"] = (work.computing + work.batches * EXCHANGE) / nodes
    limits = max(spans, key=lambda name: spans[name])
    known, kept = work.computing is not None, min(work.reading, IDLE)
    starts = START if kept == work.reading else 2 * START  # nodes that were let go come again for the plan
    wall = starts + work.reading + spans[limits] + END if known else None
    return ClusterPrice(
        nodes,
        wall,
        ("reading and tokenising" if work.reading > spans[limits] else limits) if known else "unknown",
        nodes * (starts + kept),
        nodes * (work.texts * PLANNED + work.model_bytes),
        work.vector_bytes,
        ALONE + work.texts * HELD,
        work.vector_bytes + work.delivered_bytes,
    )
