"""The memory law against the allocator: the predicted peak of random shapes, after a warm-up and three probes.

An error is a share of the peak, weights included. Every shape is kept with what was predicted and what was measured,
and a line through them tells a wrong factor from bytes that the law does not know of.
"""

import statistics
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from acceptance.goals import Tree
from acceptance.inputs import rows_of
from acceptance.models import CONFIGS
from acceptance.workbench import Bench, seated

from interlock.engine.compute.instance import ModelInstance
from interlock.engine.gpu.device_errors import Trouble, classify
from interlock.engine.gpu.lease import Lessor

COLUMNS = ["rows", "longest", "tokens", "ragged", "law_bytes", "measured_bytes", "at_rest_bytes"]


def law(bench: Bench) -> Iterator[tuple[str, Any]]:
    errors: list[float] = []
    variants = [(name, False) for name in CONFIGS] + [(name, True) for name in bench.scale.eager]
    yield "columns", COLUMNS
    for number, (name, eager) in enumerate(variants):
        title = f"{name}, {'eager' if eager else 'sdpa'}"
        with bench.part(title, len(variants) - number):
            found = seated(
                bench, bench.card(name, eager=eager), lambda instance, lessor: _shapes(bench, instance, lessor)
            )
            errors += _errors(found["scale"], found["shapes"])
            yield title, found
    if errors:
        yield "law: error of the peak, median", statistics.median(errors)
        yield "law: error of the peak, worst", max(errors)


def _shapes(bench: Bench, instance: ModelInstance, lessor: Lessor) -> Tree:
    longest = bench.scale.longest
    _measured(bench, instance, lessor, [16])
    for length in (longest // 16, longest // 4, longest):
        shape = _measured(bench, instance, lessor, _lengths(bench, instance, length, ragged=False))
        if shape:
            instance.calibration = instance.calibration.observed(shape[4], shape[5])
    shapes: list[list[int]] = []
    for number in range(bench.scale.shapes):
        if bench.spent:
            break
        length = int(2 ** bench.rng.uniform(4, np.log2(longest)))
        shapes.append(_measured(bench, instance, lessor, _lengths(bench, instance, length, ragged=number % 2 == 1)))
    measured = [shape for shape in shapes if shape]
    scale = instance.calibration.scale
    return {
        "scale": scale,
        "out_of_memory": len(shapes) - len(measured),
        **_summary("peak", _errors(scale, measured)),
        **_summary("activations", [abs(scale * shape[4] - shape[5]) / shape[5] for shape in measured]),
        **_line(measured),
        "shapes": measured,
    }


def _summary(of: str, errors: Sequence[float]) -> Tree:
    return {f"{of}_error_median": statistics.median(errors), f"{of}_error_worst": max(errors)} if errors else {}


def _errors(scale: float, shapes: Sequence[Sequence[int]]) -> list[float]:
    return [abs(scale * shape[4] - shape[5]) / (shape[5] + shape[6]) for shape in shapes]


def _line(shapes: Sequence[Sequence[int]]) -> Tree:
    """measured = slope x law + constant, by least squares."""
    if len({shape[4] for shape in shapes}) < 2:
        return {}
    slope, constant = np.polyfit([shape[4] for shape in shapes], [shape[5] for shape in shapes], 1)
    return {"line_slope": float(slope), "line_constant_bytes": float(constant)}


def _lengths(bench: Bench, instance: ModelInstance, length: int, *, ragged: bool) -> list[int]:
    """Lengths of a random batch with a row of `length`, or of as much of it as the law lets through."""
    while (most := int(0.9 * instance.most_tokens(length))) < length and length > 16:
        length //= 2
    most = max(length, min(bench.scale.shape_tokens, most))
    least = min(most, max(length, bench.scale.shape_tokens // 8))
    rows = max(1, int(2 ** bench.rng.uniform(np.log2(least), np.log2(most))) // length)
    return [length, *(bench.rng.randint(max(1, length // 2), length) if ragged else length for _ in range(rows - 1))]


def _measured(bench: Bench, instance: ModelInstance, lessor: Lessor, lengths: Sequence[int]) -> list[int]:
    """A row of `COLUMNS`; empty where the forward ran out of memory."""
    tokens, longest = instance.tokens(lengths), max(lengths)
    lawful = instance.law.activations(tokens, longest)
    try:
        with lessor.measuring(bench.device) as measure, bench.device.computing():
            at_rest = bench.device.memory().allocated
            instance.encoder.encode(rows_of(bench, lengths))
        ragged = int(min(lengths) < longest)
        return [len(lengths), longest, tokens, ragged, lawful, measure.activations or 0, at_rest]
    except Exception as error:
        if classify(error) is not Trouble.MEMORY:
            raise
    bench.device.reclaim()
    return []
