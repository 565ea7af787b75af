"""What becomes of models that cannot be had where the rest is to be delivered without them (`--allow-missing`).

A model is missing when its files, its card or a device that holds it cannot be had, or when its pass fails. Its place
in the roster stays, so that a later session of the run finds everything else where it was and fills the gap.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from interlock.engine.compute.context import Backend
from interlock.engine.errors import UnavailableError, reason
from interlock.engine.gpu.device import Device
from interlock.engine.models.assets import Policy
from interlock.engine.models.card import ModelCard
from interlock.engine.models.registry import ModelSpec
from interlock.engine.record import health
from interlock.engine.record.events import Emit
from interlock.engine.record.facts import MissingModel
from interlock.engine.record.state import RunState

OFFER = "add --allow-missing to deliver what the other models make"
"""What is said where a model is missed and the rest could be delivered."""


@dataclass(frozen=True)
class Models:
    """The cards of a roster by the number of their pass, and why the others cannot be had."""

    cards: Mapping[int, ModelCard]
    missing: Mapping[int, str]


def resolved(
    backend: Backend,
    specs: Sequence[ModelSpec],
    policy: Policy,
    devices: Sequence[Device],
    emit: Emit,
    *,
    allowed: bool,
) -> Models:
    """Resolve every model. Raises UnavailableError for the first that cannot be had, or where missing ones are
    `allowed` and no dense one is left."""
    cards: dict[int, ModelCard] = {}
    errors: dict[int, UnavailableError] = {}
    for number, spec in enumerate(specs):
        try:
            cards[number] = backend.cards([spec], policy, devices, emit)[0]
        except UnavailableError as error:
            if not allowed:
                raise offering(error, specs, number) from error
            errors[number] = error
    if errors and not any(card.kind == "dense" for card in cards.values()):
        raise next(iter(errors.values()))
    return Models(cards, {number: reason(error) for number, error in errors.items()})


def offering(error: UnavailableError, specs: Sequence[ModelSpec], number: int) -> UnavailableError:
    """Return the error that says how the rest is delivered all the same, where a dense model would be left."""
    if not any(other.kind == "dense" for place, other in enumerate(specs) if place != number):
        return error
    return UnavailableError(f"{error}\n{OFFER}")


def check_placed(refused: Mapping[int, str], specs: Sequence[ModelSpec], models: Models, *, allowed: bool) -> None:
    """Raise UnavailableError for the first pass that fits nowhere, or where those are `allowed` to be missing and no
    dense one is left."""
    for number, why in refused.items():
        if not allowed:
            raise offering(UnavailableError(why), specs, number)
        if not any(card.kind == "dense" for place, card in models.cards.items() if place not in refused):
            raise UnavailableError(why)


def check_unfinished(state: RunState, missing: Mapping[int, str]) -> None:
    """Raise UnavailableError for a missing model that has computed a whole collection: a delivery with it would be
    replaced by one without."""
    for number, why in missing.items():
        seen = [each.plan for each in state.shares_of(number) if each.whole]
        done = [plan.collection for plan in seen if plan.rows + plan.reused]
        if done:
            raise UnavailableError(
                f"{why}; its vectors of {', '.join(done)} are computed, and --allow-missing would deliver these "
                "without it: restore the model, then --resume"
            )


def lacking(state: RunState, name: str, *, allowed: bool) -> list[MissingModel]:
    """Return the models that a collection is to be delivered without, as far as they are known to be missing: none
    where that is not `allowed`, or would leave no dense one."""
    found = health.lacking(state, name)
    gone = {each.model_pass for each in found}
    dense = [number for number, entry in enumerate(state.roster) if entry.kind == "dense" and number not in gone]
    return found if allowed and dense else []
