"""What each architecture would launch on a GPU, and how often the host would wait for it: on a CUDA that is not there.

Small models of every architecture, with the encoders of the engine, on `cuda:1` of `tests/fake_cuda.py`: resident,
streamed, and without Triton's kernels; rows of one length, of several, and a single one. Counts say how much there
is to launch, never how long it takes.
"""

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from bench import evidence, machine

SOURCES = ("engine/models/networks", "engine/compute/encoder.py", "tests/fake_cuda.py", "tests/fake_models.py")
LAYERS = 2, 4
GOALS = {"bert": 9, "roberta": 9, "xlm-roberta": 9, "qwen3": 16}
"""The most kernels that a layer may launch with Triton, whatever the mix of lengths."""
WAITS = 2
"""The most synchronisations of a batch of packed rows."""


def ways(kinds: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Count for every architecture in every way."""
    from tests.fake_cuda import fake_cuda
    from tests.fake_models import ROWS, T4, attached

    for kind in kinds:
        for way in ("resident", "streamed", "resident on a T4", "resident without Triton"):
            with fake_cuda() as fake:
                how: dict[str, Any] = {"capability": T4} if way.endswith("T4") else {"streamed": way == "streamed"}
                how["triton"] = not way.endswith("without Triton")
                few, many = (attached(fake, kind, layers, **how) for layers in LAYERS)
                yield {"architecture": kind, "way": way, "packed": few.packed, **counted(few, many, ROWS)}


def counted(few: Any, many: Any, mixes: Mapping[str, list[int]]) -> dict[str, Any]:
    """Of two depths of one model: faults, and the most of all mixes of lengths."""
    from torch._subclasses.fake_tensor import FakeTensorDeviceMismatchError

    faults, layer, beside, waits = 0, 0.0, 0.0, 0
    for lengths in mixes.values():
        try:
            each = [model.kernels(lengths) for model in (few, many)]
        except FakeTensorDeviceMismatchError:
            faults += 1
            continue
        rise = (each[1] - each[0]) / (LAYERS[1] - LAYERS[0])
        layer, beside = max(layer, rise), max(beside, each[0] - LAYERS[0] * rise)
        waits = max(waits, sum(many.fake.waits.values()))
    return {"faults": faults, "kernels_a_layer": layer, "kernels_beside_layers": beside, "waits_a_batch": waits}


def judged(found: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    resident = {each["architecture"]: each for each in found if each["way"] == "resident"}
    goals = {"faults": machine.goal(sum(each["faults"] for each in found), 0, at_most=True)}
    goals |= {
        f"kernels a layer, {kind}": machine.goal(resident[kind]["kernels_a_layer"], most, at_most=True)
        for kind, most in GOALS.items()
        if kind in resident
    }
    packed = [each["waits_a_batch"] for each in found if each["packed"] and each["way"] == "resident"]
    return goals | {"waits a batch, packed": machine.goal(max(packed), WAITS, at_most=True)}


def show(result: Mapping[str, Any]) -> None:
    heads = ["architecture", "way", "faults", "kernels a layer", "beside the layers", "waits a batch"]
    keys = ("architecture", "way", "faults", "kernels_a_layer", "kernels_beside_layers", "waits_a_batch")
    machine.table(heads, [[each[key] for key in keys] for each in result["ways"]])
    machine.goals(result["goals"])


def main() -> None:
    from tests.fake_models import KINDS

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS)
    machine.quick(parser, kinds=["bert"])
    parser.add_argument("--json", type=Path, metavar="PATH")
    options = parser.parse_args()
    found = list(ways(options.kinds))
    result = {"versions": {name: machine.describe()[name] for name in ("torch", "transformers")}}
    result |= {"ways": found, "goals": judged(found)}
    show(result)
    evidence.keep(result, options.json, SOURCES)


if __name__ == "__main__":
    main()
