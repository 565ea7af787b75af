"""The cells of one pass, for who looks at it alone: too much for a snapshot, which is taken several times a second."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from interlock.engine.record import events as ev
from interlock.engine.record.state import RunState


@dataclass(frozen=True, eq=False)
class PassCells:
    """The committed batches of a pass by their index; how often the ladder was climbed for a batch, committed or not,
    and how many of its rows were parked. Equal only to itself."""

    committed: Mapping[int, ev.BatchCommitted] = field(default_factory=dict)
    mitigated: Mapping[int, int] = field(default_factory=dict)
    parked: Mapping[int, int] = field(default_factory=dict)


def cells_of(state: RunState, model_pass: int) -> PassCells:
    """Copy what is known of the batches of a pass."""
    steps = (each for collection in state.collections.values() for each in collection.mitigations)
    rows = (each for parked in state.parked.get(model_pass, {}).values() for each in parked.values())
    return PassCells(
        committed=dict(state.committed.get(model_pass, {})),
        mitigated=Counter(
            each.batch_index for each in steps if each.model_pass == model_pass and each.batch_index is not None
        ),
        parked=Counter(each.batch_index for each in rows if each.batch_index is not None),
    )
