"""The tables of what searches find on judged collections: ways of an evaluation, how often its intervals hold, and how
the defaults were chosen."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from bench.figures import Figures, Row, current, figures, goal_of


def retrieval(found: Any) -> Iterator[Row]:
    each = (found or {"collections": []})["collections"]
    ways = [{way["name"]: way for way in one["ways"]} for one in each]
    for name, first in ways[0].items() if ways else ():
        ms = f"{first['ms']:.0f}" if first["ms"] is not None else ""
        yield (
            f"{first['group']}: {name}",
            *(_judged(own[name]) for own in ways if name in own),
            ms,
            f"{first['bytes']:.0f}",
        )


def verdicts(found: Any) -> Iterator[Row]:
    for one in (found or {"collections": []})["collections"]:
        weights = one["weights"]
        chosen = ", ".join(f"{model} {weight:.1f}" for model, weight in weights["weights"].items())
        gained = f"{weights['against_roster']['mean']:+.3f}{'*' if weights['against_roster']['significant'] else ''}"
        yield one["data"], one["queries"], one["verdict"], f"{chosen}: {gained}", one["cost"]
    for name in (found or {"goals": {}})["goals"]:
        value, wanted = goal_of(found, name, "{:.0f}")
        yield f"collections with the {name}", "", f"{value}, goal {wanted}", "", ""


def _heads(found: Any) -> list[str]:
    """The collections of an evaluation, between the way and its cost."""
    names = [one["data"] for one in (found or {"collections": []})["collections"]]
    return ["way", *names, *(f"{cost} ({name})" for cost in ("ms a query", "bytes a text") for name in names[:1])]


def _judged(way: Any) -> str:
    value = f"{way['measures']['nDCG@10']:.3f}"
    if not (found := way["difference"]):
        return value
    return f"{value} ({found['mean']:+.3f}{'*' if found['significant'] else ''})"


def folds(found: Any) -> Iterator[Row]:
    """Of each collection what the others chose for it, and the default."""
    for chosen, now in zip(found["folds"], found["default"], strict=True) if found else ():
        queries = found["queries"][now["collection"]]
        yield now["collection"], queries, chosen["choice"], *_against(chosen), *_against(now)
    if found:
        lowest = min(found["default"], key=lambda each: each["dense"]["mean"])
        told = f"{_interval(lowest['dense'])} on {lowest['collection']}"
        yield "the worst for the default", "", "", "", "", "", told
        (name,) = found["goals"]
        value, wanted = goal_of(found, name, "{:.0f}")
        yield name, "", "", "", "", "", f"{value}, goal {wanted}"


def tried(found: Any) -> Iterator[Row]:
    """The mean over the collections of everything that was tried: weights by shares."""
    mean = {name: sum(each) / len(each) for name, each in (found or {"tried": {}})["tried"].items()}
    for way in dict.fromkeys(name.rpartition(", ")[0] for name in mean):
        yield way, *(f"{mean[f'{way}, {share}']:.4f}" for share in _shares(found))


def unanswered(found: Any) -> Iterator[Row]:
    """How often a cosine errs about whether there is an answer."""
    for each in (found or {"unanswered": []})["unanswered"]:
        kinds = [each[kind] for kind in ("others", "own")]
        yield each["collection"], *(f"{kind[by]:.0%}" for kind in kinds for by in ("best", "elsewhere"))


def intervals(part: str, found: Any) -> Iterator[Row]:
    """How often the intervals hold what is true, by the judged queries that they are told from."""
    each = (found or {part: {}})[part]
    for name, words in HELD.items():
        if cells := [f"{100 * own[name]:.1f} %" for own in each.values() if name in own]:
            yield words, *cells


def _intervals(part: str) -> Figures:
    found = current("intervals")
    heads = [f"judged queries, {found['rounds']:,} samples of each number", *found[part]] if found else [""]
    return figures(heads, ["intervals"], partial(intervals, part))


def _shares(found: Any) -> list[str]:
    return [*dict.fromkeys(name.rpartition(", ")[2] for name in (found or {"tried": {}})["tried"])]


def _against(row: Any) -> tuple[str, str]:
    return _interval(row["before"]), _interval(row["dense"])


def _interval(each: Any) -> str:
    return f"{each['mean']:+.3f} [{each['low']:+.3f}, {each['high']:+.3f}]"


FOLDS = ["collection", "queries", "the others choose", "against before", "against dense", "default against before",
         "default against dense"]  # fmt: skip
UNANSWERED = ["collection", "questions of others: by its own threshold", "by the others'",
              "its own without their answers: by its own threshold", "by the others'"]  # fmt: skip
HELD = {
    "t": "intervals that hold the true difference",
    "resamples": "the same by quantiles of resamples",
    "stars": "tables of equal ways with a star",
    "means": "intervals that hold the mean of one way",
}

PARTS: dict[str, Callable[[], Figures]] = {
    "retrieval": lambda: figures(_heads(current("retrieval")), ["retrieval"], retrieval),
    "verdicts": lambda: figures(
        ["collection", "queries", "verdict", "proposed weights, on the held-out queries", "cost"],
        ["retrieval"],
        verdicts,
    ),
    "defaults": lambda: figures(FOLDS, ["defaults"], folds),
    "tried defaults": lambda: figures(["weights", *_shares(current("defaults"))], ["defaults"], tried),
    "unanswered": lambda: figures(UNANSWERED, ["defaults"], unanswered),
    "intervals": lambda: _intervals("samples"),
    "intervals over sets": lambda: _intervals("together"),
}
