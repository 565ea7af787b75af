"""A forward whose weights are streamed from pinned memory, against the longer of its computation and their copy.

What is not a layer, above all the table of words, is copied before it is used and hides behind nothing.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from acceptance.goals import Timed, Tree
from acceptance.inputs import rows_of
from acceptance.workbench import Bench, seated

from interlock.engine.compute.encoder import Ids
from interlock.engine.compute.instance import ModelInstance
from interlock.engine.models.networks.streaming import layers_of, size_of


def streaming(bench: Bench) -> Iterator[tuple[str, Any]]:
    card = bench.card("XLM-R-large", deep=True)
    with bench.pinned(bench.master(card)) as pinned:
        yield "is_pinned", pinned
        found = seated(bench, card, lambda instance, _: _measured(bench, instance))
    yield from found.items()
    if found:
        worst = max(each["x_limit"].value for each in found.values())
        yield "streaming: time / max(compute, copy), worst", Timed(worst)


def _measured(bench: Bench, instance: ModelInstance) -> dict[str, Tree]:
    size, layers = instance.attached.bytes, sum(map(size_of, layers_of(instance.attached.network)))
    copied, found = size / bench.rates["pinned"], {}
    for number, tokens in enumerate(bench.scale.stream_tokens):
        with bench.part(f"{tokens} tokens", len(bench.scale.stream_tokens) - number):
            rows = rows_of(bench, [tokens // 4] * 4)
            whole = _seconds(bench, instance, rows)
            instance.stream()
            streamed = _seconds(bench, instance, rows)
            instance.attached.restore()
            found[f"{tokens} tokens"] = {
                "bytes": size,
                "of_it_layers": layers,
                "compute_ms": Timed(1000 * whole),
                "copy_ms": Timed(1000 * copied),
                "streamed_ms": Timed(1000 * streamed),
                "x_limit": Timed(streamed / max(whole, copied)),
            }
    return found


def _seconds(bench: Bench, instance: ModelInstance, rows: Sequence[Ids]) -> float:
    return bench.device_seconds(lambda: instance.encoder.encode(rows))
