"""Whether an ensemble is worth its cost, in words that say no more than the figures do. Pure."""

from collections.abc import Mapping

from interlock.engine.evaluation.material import SideCost
from interlock.engine.evaluation.measures import MAIN, Difference
from interlock.engine.record.words import duration, several

FEW = 30
"""Judged queries below which every interval is wide, or says nothing: where none of a few differ it is from 0 to 0."""
ALIKE = 0.01
"""Two ways whose difference lies within this are told to find the same."""


def verdict(name: str, best: str, difference: Difference) -> str:
    """Say in one sentence what the interval of `name` minus `best` carries."""
    lies = f"the difference in {MAIN} lies between {signed(difference.low)} and {signed(difference.high)}"
    judged = several(difference.queries, "judged query", "judged queries")
    if difference.significant and difference.low > 0:
        return f"{name} finds more than its best member, {best}, alone: {lies} (95 %, {judged})"
    if difference.significant:
        return f"{name} finds less than its best member, {best}, alone, which will do: {lies} (95 %, {judged})"
    if difference.queries >= FEW and max(-difference.low, difference.high) <= ALIKE:
        return f"{name} and its best member, {best}, alone find the same: {lies} (95 %, {judged})"
    return f"cannot tell with {judged} whether {name} finds more than its best member, {best}, alone: {lies}"


def bill(best: str, costs: Mapping[str, SideCost]) -> str:
    """Say what all models take for the texts and for a query, and what the best member takes alone; empty where no
    model's time is known."""
    known = {name: cost.seconds for name, cost in costs.items() if cost.seconds is not None}
    if len(known) < len(costs) or best not in known:
        return ""
    (device, *others) = {cost.device for cost in costs.values()}
    whose = f"{device} time" if not others else "time on its devices"
    texts = f"the texts took {duration(sum(known.values()))} of {whose}, {best} alone {duration(known[best])}"
    queries = {name: cost.query_ms for name, cost in costs.items() if cost.query_ms is not None}
    if len(queries) < len(costs):
        return texts
    return f"{texts}; a query {sum(queries.values()):.0f} ms of CPU time, {best} alone {queries[best]:.0f}"


def few_queries(queries: int) -> str:
    """Warn of a number of judged queries by which little can be told; empty for enough."""
    if queries >= FEW:
        return ""
    judged = several(queries, "judged query", "judged queries")
    return f"only {judged}: intervals are wide, and what has no * here may have one with {FEW} or more"


def signed(value: float) -> str:
    """Write a difference in three digits, with its sign: +.012."""
    text = f"{value:+.3f}".replace("0.", ".", 1)
    return "0" if text in ("+.000", "-.000") else text
