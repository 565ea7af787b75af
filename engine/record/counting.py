"""How people are told of passes and batches, which they count from 1, and of numbers of things."""

from interlock.engine.record.snapshot import PassView, Snapshot
from interlock.engine.record.units import human_bytes


def pass_of(model_pass: int, passes: int = 0) -> str:
    """Write `pass 2/3`: counted from 1, as people count, where files count from 0; without an unknown total."""
    return f"pass {model_pass + 1}" + (f"/{passes}" if passes else "")


def batch_of(batch_index: int) -> str:
    """Write `batch 14`: which one, counted from 1 too."""
    return f"batch {batch_index + 1}"


def batches_of(each: PassView) -> str:
    """Write `batch 14/22`: how many of a pass are committed, whichever they are; nothing before there is one."""
    return f"batch {each.batches_done}/{each.batches}" if each.batches_done else ""


def percent(share: float) -> str:
    """Write a share in four cells; 100 % is said of nothing that is not finished."""
    whole = 100 if share >= 1 else min(99, int(share * 100 + 1e-9))
    return f"{max(0, whole):>3}%"


def outputs_of(each: PassView) -> list[str]:
    """Tell what a pass has given beside a vector of each text, and how much of its texts its model sees."""
    seen = "" if each.coverage is None else f" ({int(each.coverage * 1000) / 10}% of the tokens seen)"
    facts = [f"{each.truncated:,} truncated{seen}"] * bool(each.truncated)
    facts += [f"{each.terms_per_text:.0f} terms a text"] * bool(each.terms)
    facts += [f"{each.termless:,} without terms"] * bool(each.termless)
    kept = f"{several(each.token_vectors, 'token vector')} ({human_bytes(each.token_bytes)})"
    return facts + [kept] * bool(each.token_vectors)


def nodes_reached(snapshot: Snapshot, control: str) -> str:
    """Tell on how many nodes a control is in force: `2 of 3 nodes`, `all 3 nodes`; nothing on one machine."""
    done, of = snapshot.reached(control)
    return "" if not of else f"all {several(of, 'node')}" if done == of > 1 else f"{done} of {several(of, 'node')}"


def several(number: int, thing: str, things: str = "") -> str:
    """Write `1 row`, `2,000 rows`; `things` is the plural of what does not take an s."""
    return f"{number:,} {thing if number == 1 else things or thing + 's'}"
