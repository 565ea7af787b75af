"""Attaching a model and letting go of it, from pinned and from pageable memory, against as many bytes at the rate that
this machine was just seen to copy at.

Every release collects garbage, which takes longer the more objects there are. The release that is held to its goal goes
through all of them, the libraries' included, as in a run; the others are spared those.
"""

import gc
import statistics
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

from acceptance.goals import Timed, Tree
from acceptance.models import CONFIGS
from acceptance.workbench import CEILING, Bench

from interlock.engine.gpu.lease import Lessor
from interlock.engine.models.card import ModelCard
from interlock.engine.models.weights import Master, Replica

MODES = ("pinned", "pageable")


def attach(bench: Bench) -> Iterator[tuple[str, Any]]:
    beyond: dict[str, list[float]] = {mode: [] for mode in MODES}
    releases: list[float] = []
    for number, name in enumerate(CONFIGS):
        with bench.part(name, len(CONFIGS) - number):
            found: Tree = {}
            master = bench.master(bench.card(name))
            for place, mode in enumerate(MODES):
                with bench.part(f"{name}, {mode}", len(MODES) - place):
                    found[mode], over, release = _mode(bench, bench.card(name), master, mode)
                    beyond[mode].append(over)
                    releases.append(release)
            yield name, {"bytes": master.bytes, **found}
    for mode in MODES:
        if beyond[mode]:
            yield f"attach: ms beyond the network's twin and 1.1 x bytes / rate, {mode}", Timed(max(beyond[mode]))
    if releases:
        yield "attach: ms of a release beyond collecting garbage", Timed(statistics.median(releases))


def _mode(bench: Bench, card: ModelCard, master: Master, mode: str) -> tuple[Tree, float, float]:
    """What to tell, milliseconds of an attachment beyond its limit, and of a release beyond collecting garbage."""
    times: list[tuple[float, float]] = []
    with bench.pinned(master) if mode == "pinned" else nullcontext(False) as pinned:
        _once(bench, card, master)
        while len(times) < bench.scale.repeats and not (bench.spent and times):
            times.append(_once(bench, card, master))
        gc.unfreeze()
        collected = 1000 * bench.seconds(gc.collect)
        released = 1000 * _once(bench, card, master)[1]
        gc.freeze()
    attached, lightly = (1000 * statistics.median(each) for each in zip(*times, strict=True))
    copy, twin = 1000 * master.bytes / bench.rates[mode], 1000 * bench.seconds(master.twin)
    told = {
        "is_pinned": pinned,
        "attachments": len(times),
        "attach_ms": Timed(attached),
        "bytes_over_rate_ms": Timed(copy),
        "of_it_twin_ms": Timed(twin),
        "release_ms": Timed(released),
        "of_it_gc_ms": Timed(collected),
        "release_without_libraries_ms": Timed(lightly),
    }
    return told, attached - twin - 1.1 * copy, released - collected


def _once(bench: Bench, card: ModelCard, master: Master) -> tuple[float, float]:
    """Seconds of attaching, and of letting go."""
    lessor = Lessor([bench.device], CEILING)
    with lessor.lease(card.key, {bench.device.name: master.bytes}, lambda _: None):
        kept: list[Replica] = []
        attached = bench.seconds(lambda: kept.append(Replica(master, bench.device)))

        def release() -> None:
            kept.clear()
            bench.device.reclaim()

        return attached, bench.seconds(release)
