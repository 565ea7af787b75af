"""What became of a run and of its collections, told from the state where they are closed.

A collection is completed only when every model saw every row, and no more of it was refused than --max-refused allows;
anything less says what is missing. One that was delivered without some models is incomplete, and failed where they are
missing and it was not, or where nothing is left of it. Pure functions of a state.
"""

from collections.abc import Iterable, Mapping, Sequence

from interlock.engine.record.events import CollectionRead, RecordRefused, RowParked
from interlock.engine.record.facts import MissingModel, Setting, Status
from interlock.engine.record.state import RunState
from interlock.engine.record.words import Allowance, parse_allowance, several

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


def collection_status(state: RunState, name: str) -> tuple[Status, str]:
    """Tell where a collection stands, before and after it is delivered."""
    collection = state.collections[name]
    out, allowed = left_out(state, name)
    if not collection.read.chunks:
        found = f"no record in {several(collection.read.files, 'file')}" if collection.read.files else "no chunk files"
        if not out:
            return "skipped", found
        if not collection.read.refused:
            return "skipped", out
        return "skipped" if allowed else "failed", f"no usable record: {out}"
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
    if faults := [*gaps, *filter(None, [_parked_texts(state, name), "" if allowed else out])]:
        return "incomplete", "; ".join(faults)
    return "completed", out


MEND = "mend what was refused and run again with --reuse, or allow it with --max-refused "
ALL = Allowance(0, 100.0, files=True)


def left_out(state: RunState, name: str) -> tuple[str, bool]:
    """Say what of a collection's input was refused, with the first of it by its place, or was not looked at where
    nothing else was there; and whether the run was told to do without. Nothing is said where all of it was taken."""
    collection = state.collections[name]
    config = state.started.config if state.started else {}
    return refused(collection.read, collection.refusals), covered(collection.read, config)


def covered(read: CollectionRead, config: Mapping[str, Setting]) -> bool:
    """Tell whether no more of a collection was refused than the run allows; all of it where it does not say."""
    allowed = parse_allowance(str(config["max_refused"].value)) if "max_refused" in config else ALL
    records = read.refused - read.refused_files
    total = read.chunks + read.same + records
    if rest := read.elsewhere:  # a shard is good where the run would be that it is of
        records, total = records + rest["refused"], total + rest["chunks"] + rest["same"] + rest["refused"]
    return allowed.covers(records, total, read.refused_files)


def allowance(reads: Iterable[CollectionRead], config: Mapping[str, Setting]) -> str:
    """Write the --max-refused that covers all that was refused of these collections; empty where the run's own does."""
    out = [each for each in reads if each.refused]
    if all(covered(each, config) for each in out):
        return ""
    told = (each.refused - each.refused_files + each.elsewhere.get("refused", 0) for each in out)
    records = max(told)  # of each: a share becomes a number
    return f"{records}{',files' * any(each.refused_files for each in out)}"


def refused(read: CollectionRead, told: Sequence[RecordRefused]) -> str:
    """Say how many files and records of a collection were refused, and where the first of each is and why."""
    if not read.files and not read.refused and read.unread:
        return f"no chunk files, though {several(read.unread, 'file')} beside like them: give its own path"
    records, texts = read.refused - read.refused_files, list[str]()
    for whole, number in ((True, read.refused_files), (False, records)):
        first = next((each for each in told if (each.record is None) == whole), None)
        of = "" if whole else f" of {read.chunks + read.same + records:,}"
        place = first and (first.file if whole else f"{first.file} record {first.record:,}")
        why = f" ({'first ' * (number > 1)}{place}: {first.reason})" if first else ""
        texts += [
            f"{number:,}{of} {'file' if whole else 'record'}{'s' * (number > 1 or not whole)} refused{why}"
        ] * bool(number)
    return ", ".join(texts)


def run_status(state: RunState) -> tuple[Status, str]:
    """Tell what became of a run whose collections are all closed."""
    bad = [collection for collection in state.collections.values() if collection.status not in GOOD]
    told = {collection.name: [collection.reason] for collection in bad}
    for name in state.collections:  # what was allowed to be refused is told too
        out, why = left_out(state, name)[0], told.get(name, [])
        told |= {name: [*why, out]} if out and out not in "".join(why) else {}
    reason = "; ".join(f"{name}: {'; '.join(why)}" for name, why in told.items())
    if not bad:
        return "completed", reason
    status: Status = "failed" if any(collection.status == "failed" for collection in bad) else "incomplete"
    config = state.started.config if state.started else {}
    allowed = allowance([each.read for each in state.collections.values()], config)
    mend = any(not left_out(state, collection.name)[1] for collection in bad)
    return status, reason + f"; {MEND}{allowed}" * mend


def _parked_texts(state: RunState, name: str) -> str:
    rows = [parked for collections in state.parked.values() for parked in collections.get(name, {}).values()]
    by_model: dict[str, list[RowParked]] = {}
    for parked in rows:
        by_model.setdefault(parked.model, []).append(parked)
    texts: dict[tuple[str, str], list[str]] = {}  # what is true of several models is said once
    for model, mine in sorted(by_model.items()):
        first = f" ({'first ' * (len(mine) > 1)}{mine[0].place})" if mine[0].place else ""
        again = all((each.model_pass, each.row) in state.tried_again for each in mine)
        count = f"{several(len(mine), 'text')} {'has' if len(mine) == 1 else 'have'} no"
        why = f"vector{first}: {mine[0].reason}" + ", also when tried again" * again
        texts.setdefault((count, why), []).append(model)
    return "; ".join(f"{count} {', '.join(models)} {why}" for (count, why), models in texts.items())
