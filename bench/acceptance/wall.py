"""The wall, step by step: under each ceiling memory is taken block by block until it is refused.

It must be our allocator that refuses: the driver still has the bytes, and what the driver counts is under the ceiling.
"""

from collections.abc import Iterator
from typing import Any

import torch
from acceptance.goals import Tree
from acceptance.workbench import Bench

from interlock.engine.gpu.device_errors import Trouble, classify

BLOCKS = 32
"""Into which a ceiling is divided."""


def wall(bench: Bench) -> Iterator[tuple[str, Any]]:
    steps: list[Tree] = []
    for number, ceiling in enumerate(bench.scale.walls):
        with bench.part(f"ceiling of {ceiling} bytes", len(bench.scale.walls) - number):
            steps.append(_step(bench, ceiling))
        bench.device.reclaim()
    yield "steps", steps
    if steps:
        yield "wall: bytes of the driver's over the ceiling", max(each["bytes_over"] for each in steps)
        yield "wall: allocations that the driver had to refuse", sum(not each["refused_by_us"] for each in steps)


def _step(bench: Bench, ceiling: int) -> Tree:
    bench.device.reclaim()
    bench.device.wall(ceiling)
    at_first, before, block = bench.device.memory().occupied, bench.free(), ceiling // BLOCKS
    blocks, said, recognised = _fill(bench, block)
    free = bench.free()
    occupied = max(bench.device.memory().occupied, at_first + before - free)
    return {
        "ceiling_bytes": ceiling,
        "block_bytes": block,
        "blocks": len(blocks),
        "occupied_bytes": occupied,
        "bytes_over": max(0, occupied - ceiling),
        "unused_bytes": max(0, ceiling - occupied),
        "driver_gave_bytes": before - free,
        "driver_free_bytes": free,
        "refused_by_us": recognised and free >= block,
        "said": said,
    }


def _fill(bench: Bench, block: int) -> tuple[list[torch.Tensor], str, bool]:
    """What could be had, what was said then, and whether the engine knows that for a shortage."""
    blocks: list[torch.Tensor] = []
    try:
        with bench.device.computing():
            while len(blocks) <= BLOCKS:
                blocks.append(torch.empty(block, dtype=torch.uint8, device=bench.device.torch))
    except RuntimeError as error:
        return blocks, str(error).partition(" Including")[0], classify(error) is Trouble.MEMORY
    return blocks, "nothing was refused", False
