"""What leases leave behind, in the allocator's and in the driver's terms, against what was there after two of them."""

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import numpy as np
from acceptance.inputs import rows_of
from acceptance.workbench import Bench, seated

from interlock.engine.compute.instance import ModelInstance, Shortfall
from interlock.engine.errors import InterlockError

NAMES = ("residue: bytes allocated", "residue: bytes reserved", "residue: bytes of driver drift")


def residue(bench: Bench) -> Iterator[tuple[str, Any]]:
    """Two models in turn; pinned, since a copy's time is not what counts here."""
    cards = [bench.card("XLM-R-large"), bench.card("Qwen3-0.6B")]
    held: list[tuple[int, int, int]] = []
    with ExitStack() as stack:
        for card in cards:
            stack.enter_context(bench.pinned(bench.master(card)))
        while len(held) < 2 + bench.scale.leases and not bench.spent:
            seated(bench, cards[len(held) % 2], lambda instance, _: _forward(bench, instance))
            now = bench.device.memory()
            held.append((now.allocated, now.reserved, -bench.free()))
    yield "leases", max(0, len(held) - 2)
    if len(held) > 2:
        beyond = np.array(held[2:]) - np.array(held[1])
        yield "last", dict(zip(NAMES, beyond[-1].tolist(), strict=True))
        yield from zip(NAMES, np.maximum(0, beyond.max(0)).tolist(), strict=True)


def _forward(bench: Bench, instance: ModelInstance) -> None:
    if isinstance(instance.attempt(rows_of(bench, [bench.scale.longest // 8] * 4)), Shortfall):
        raise InterlockError("a small batch ran out of memory")
