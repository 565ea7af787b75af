"""What became of a collection and of a run: pure readings of the state.

A collection is completed only when every model saw every row; anything less says what is missing.
One that was delivered without some models is incomplete, and failed where they are missing and it was not.
"""

from interlock.engine.record.counting import several
from interlock.engine.record.events import RowParked
from interlock.engine.record.facts import MissingModel, Status
from interlock.engine.record.state import RunState

GOOD: tuple[Status, ...] = ("completed", "skipped")


def unfinished(state: RunState, name: str) -> list[str]:
    """Return the models that have not seen every text of the collection, those it shares with earlier ones included."""
    owners = [state.collections[owner] for owner in (name, *state.collections[name].read.borrows)]
    shares = [share for owner in owners for share in owner.shares.values()]
    return list(dict.fromkeys(share.plan.model for share in shares if share.batches_done < share.plan.batches))


def lacking(state: RunState, name: str) -> list[MissingModel]:
    """Return the models that have failed or cannot be had and have not seen every text of the collection, in the order
    of the roster."""
    late = unfinished(state, name)
    return [
        MissingModel(
            model_pass=number,
            model=entry.model,
            kind=entry.kind,
            weight=entry.weight,
            reason=state.failures[number].reason,
        )
        for number, entry in enumerate(state.roster)
        if number in state.failures and (entry.missing or entry.model in late)
    ]


def of_collection(state: RunState, name: str) -> tuple[Status, str]:
    """Tell where a collection stands, before and after it is delivered."""
    collection = state.collections[name]
    if not collection.read.chunks:
        found = f"no record in {several(collection.read.files, 'file')}" if collection.read.files else "no chunk files"
        return "skipped", "no usable record" if collection.read.refused else found
    without = {each.model for each in collection.missing}
    missing = [model for model in unfinished(state, name) if model not in without]
    failed = [failure for failure in state.failures.values() if failure.model in missing]
    if failed:
        return "failed", "; ".join(f"{failure.model}: {failure.reason}" for failure in failed)
    if missing:
        return "incomplete", f"not finished by {', '.join(missing)}"
    if collection.verification and not collection.verification.ok:
        return "failed", f"the store differs from what was written: {collection.verification.detail}"
    gaps = [f"delivered without {each.model}: {each.reason}" for each in collection.missing]
    if faults := [*gaps, *filter(None, [_parked(state, name)])]:
        return "incomplete", "; ".join(faults)
    return "completed", ""


def of_run(state: RunState) -> tuple[Status, str]:
    """Tell what became of a run whose collections are all closed."""
    bad = [collection for collection in state.collections.values() if collection.status not in GOOD]
    if not bad:
        return "completed", ""
    status: Status = "failed" if any(collection.status == "failed" for collection in bad) else "incomplete"
    return status, "; ".join(f"{collection.name}: {collection.reason}" for collection in bad)


def _parked(state: RunState, name: str) -> str:
    rows = [parked for collections in state.parked.values() for parked in collections.get(name, {}).values()]
    by_model: dict[str, list[RowParked]] = {}
    for parked in rows:
        by_model.setdefault(parked.model, []).append(parked)
    return "; ".join(
        f"{several(len(mine), 'text')} {'has' if len(mine) == 1 else 'have'} no {model} vector: {mine[0].reason}"
        for model, mine in sorted(by_model.items())
    )
