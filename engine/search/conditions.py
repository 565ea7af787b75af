"""Conditions on payloads, as an operator writes them (`metadata.lang=en`), for the store's engine to apply."""

import json
import math
import operator
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from interlock.engine.errors import UsageError, meant
from interlock.engine.record.words import few
from interlock.engine.search.served import Searched

if TYPE_CHECKING:
    import qdrant_edge as edge

    _Match = edge.FieldCondition | edge.HasIdCondition | edge.IsEmptyCondition

LOOKED = 64
"""Points whose payloads say which keys and values there are, where a condition names others."""
SHOWN = 60
"""Signs of a value that is named so."""
FORMS = (
    'as in metadata.lang=en, metadata.page>=3 or title="a = b", a text in quotes being that text alone, "" an empty '
    "one, null none"
)
EXACT = 2**53 - 1
"""The largest number that the engine's ranges tell from its neighbours."""
_CONDITION = re.compile(
    r"(?P<key>(?:\"[^\"]*\"|[^=<>!\"])++)(?P<sign>!=|>=|<=|=|>|<)(?P<value>\s*+[^=<>].*)", re.DOTALL
)
_NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_WHOLE = re.compile(r"[+-]?[0-9]+")
_PART = re.compile(r'"([^"]*)"|([^.\[\]"]+)|\[(\d*)\]')
_RANGES: Mapping[str, tuple[str, Callable[[Any, Any], bool]]] = {
    ">=": ("gte", operator.ge),
    "<=": ("lte", operator.le),
    ">": ("gt", operator.gt),
    "<": ("lt", operator.lt),
}
TRUTHS = ("true", "false")
EMPTY = "null"
"""What asks for points without a value at a key: none, null or an empty list."""


@dataclass(frozen=True)
class Condition:
    """What the value at `key` of a payload has to be: `sign` one of = != >= <= > <; a `value` in JSON's quotes is that
    text and nothing that it may stand for."""

    key: str
    sign: str
    value: str

    def __str__(self) -> str:
        return f"{self.key}{self.sign}{self.value}"


def read_condition(text: str) -> Condition:
    """Read `KEY=VALUE`, or another sign in place of it. Raises UsageError for what is none, for a key that no payload
    can have, and for a bound that is no number."""
    found = _CONDITION.fullmatch(text)
    key, value = (found["key"].strip(), found["value"].strip()) if found else ("", "")
    if not found or not key or not value:
        raise UsageError(f"--filter {text!r:.100}: give KEY=VALUE, with one of = != >= <= > <, {FORMS}")
    condition = Condition(key, found["sign"], value)
    _check_key(condition.key)
    if condition.sign in _RANGES and _number(condition.value) is None:
        raise UsageError(
            f"--filter {text!r:.100}: {condition.sign} compares numbers: give one, such as 20240601 for a date that "
            "the table has so too, or use = or !="
        )
    return condition


def conditions_in(given: object) -> tuple[Condition, ...]:
    """Read conditions that a caller gives by value: one text, several, the value that each key has to have, or None for
    none. Raises UsageError for anything else, and as `read_condition` does."""
    given = [given] if isinstance(given, str) else () if given is None else given
    if isinstance(given, Mapping):
        # A key without any value stays, to be refused: left out, it would let every chunk through.
        values = [
            (key, each) for key, own in given.items() for each in (own if isinstance(own, list) else [own]) or [()]
        ]
        if not all(isinstance(key, str) and isinstance(value, str | int | float | None) for key, value in values):
            raise UsageError(
                f"--filter: expected a text, a number, a truth or None for each key, got {given!r:.100}: give one"
            )
        for key, _ in values:
            _check_key(key)
        try:
            return tuple(Condition(key, "=", json.dumps(value, ensure_ascii=False)) for key, value in values)
        except ValueError:  # Python writes no whole number of so many digits
            raise UsageError("--filter: no payload has a number of thousands of digits: give a shorter one") from None
    if not isinstance(given, Sequence) or not all(isinstance(each, str) for each in given):
        raise UsageError(f"--filter: expected texts, got {given!r:.100}: give KEY=VALUE, as in metadata.lang=en")
    return tuple(map(read_condition, given))


def filter_of(conditions: Sequence[Condition], store: Searched) -> "edge.Filter | None":
    """Make the engine's filter for a store: all conditions hold; of those that ask one key to be equal, one does."""
    import qdrant_edge as edge

    if not conditions:
        return None
    must: list[edge.FieldCondition | edge.Filter] = [
        edge.Filter(should=[match for each in alike for match in _matches(each, store)]) for alike in _equal(conditions)
    ]
    must += [
        edge.FieldCondition(each.key, range=edge.RangeFloat(**{_RANGES[each.sign][0]: float(each.value)}))
        if abs(float(each.value)) <= EXACT
        else edge.Filter(must=[_looked_up(each, store)])
        for each in conditions
        if each.sign in _RANGES
    ]
    must_not = [match for each in conditions if each.sign == "!=" for match in _matches(each, store)]
    return edge.Filter(must=[*must], must_not=[*must_not])


def why_none(store: Searched, conditions: Sequence[Condition]) -> str:
    """Say why no point fulfils conditions whose keys there are: which no point fulfils, and values that there are, or
    that no point fulfils all; empty where some do."""
    if not conditions or store.has(filter_of(conditions, store)):
        return ""
    parts = [*_equal(conditions), *([each] for each in conditions if each.sign != "=")]
    for alike in parts:
        if not store.has(filter_of(alike, store)):
            asked, parts_of = " or ".join(map(str, alike)), _parts(alike[0].key)
            within = [replace(each, key=f"metadata.{each.key}") for each in alike]
            if store.has(filter_of(within, store)):
                return f"no chunk has {asked}: use {' or '.join(map(str, within))}, which some have"
            values = (each for payload in store.some_payloads(LOOKED) for each in _values(payload, parts_of))
            asks = [one for one in alike if one.sign == "="]
            others = [each for each in values if each is not None and not any(_holds(one, each) for one in asks)]
            there = sorted({f"{json.dumps(each, ensure_ascii=False):.{SHOWN}}" for each in others})
            texts = alike[0].sign in _RANGES and others and all(isinstance(each, str) for each in others)
            if texts:
                instead = f"{alike[0].sign} compares numbers, and there are texts, as cells of a CSV file are"
                return f"no chunk has {asked}: {instead} ({few(there)}): write numbers, in a table as Parquet"
            return f"no chunk has {asked}: values there are {few(there)}" if there else f"no chunk has {asked}"
    return f"no chunk has all of {', '.join(map(str, conditions))}"


def _equal(conditions: Sequence[Condition]) -> list[list[Condition]]:
    """Those that ask a key to be equal, together for each key."""
    equal: dict[str, list[Condition]] = {}
    for each in conditions:
        if each.sign == "=":
            equal.setdefault(each.key, []).append(each)
    return [*equal.values()]


def check_keys(store: Searched, conditions: Sequence[Condition]) -> None:
    """Raise UsageError, naming keys that there are, for a condition on one that no point of the store has."""
    import qdrant_edge as edge

    for each in conditions:
        there = edge.Filter(must_not=[edge.IsEmptyCondition(each.key)])
        if not store.has(there) and store.count():
            keys = sorted({key for payload in store.some_payloads(LOOKED) for key in _keys(payload)})
            last = f".{each.key}".rpartition(".")[2]
            ends = [key for key in keys if key == last or key.endswith(f".{last}")]
            within = next((f" (did you mean {key}?)" for key in ends), "")
            hint = within or meant(each.key, keys)
            raise UsageError(f"--filter: no chunk has {each.key!r}{hint}: use a key that there is ({few(keys)})")


def _matches(condition: Condition, store: Searched) -> "list[_Match]":
    """The value as the text that it is, and as the number or truth that it may stand for; null as none at all."""
    import qdrant_edge as edge

    key, value = condition.key, condition.value
    if (text := _quoted(value)) is not None:
        return [edge.FieldCondition(key, match=edge.MatchValue(text))]
    if value == EMPTY:
        return [edge.IsEmptyCondition(key)]
    found: list[_Match] = [edge.FieldCondition(key, match=edge.MatchValue(value))]
    number = _number(value)
    low = high = number
    if (
        number is not None and number % 1 and abs(number) > sys.float_info.min
    ):  # the engine reads one in eight of 17 digits a last place off
        low, high = math.nextafter(number, -math.inf), math.nextafter(number, math.inf)
    same = edge.FieldCondition(key, range=edge.RangeFloat(gte=low, lte=high))
    if re.fullmatch(r"[+-]?[0-9]{1,19}", value) and -(2**63) <= int(value) < 2**63:
        found.append(edge.FieldCondition(key, match=edge.MatchValue(int(value))))
        if abs(int(value)) > EXACT and store.has(edge.Filter(must=[same], must_not=[*found])):
            found.append(_looked_up(condition, store))  # a float may be that number, and no match of whole ones
    elif value in TRUTHS and store.tells_truths:
        found.append(edge.FieldCondition(key, match=edge.MatchAny([value])))
    elif value in TRUTHS or (number is not None and abs(number) > EXACT):
        found.append(_looked_up(condition, store))
    if number is not None and abs(number) <= EXACT:
        found.append(same)
    return found


def _looked_up(condition: Condition, store: Searched) -> "edge.HasIdCondition":
    """Every point for which a condition holds that the engine cannot tell: its binding makes a number of a truth, which
    matches none, and it compares numbers as float64."""
    import qdrant_edge as edge

    first, *parts = _parts(condition.key)
    found = ((point, _values(payload, parts)) for point, payload in store.parts(str(first)))
    return edge.HasIdCondition({point for point, values in found if any(_holds(condition, each) for each in values)})


def _holds(condition: Condition, value: object) -> bool:
    """Whether a value of a payload is as the condition says, exactly; for != whether it is what must not be."""
    if isinstance(value, bool):
        return condition.value == json.dumps(value)
    if isinstance(value, int | float):
        number = _number(condition.value)
        compare = _RANGES[condition.sign][1] if condition.sign in _RANGES else operator.eq
        is_whole = _WHOLE.fullmatch(condition.value) and abs(number or 0) < math.inf  # beyond it none is in a payload
        exact = int(condition.value) if is_whole else number
        return exact is not None and compare(value, exact)
    return condition.sign in ("=", "!=") and value == (_quoted(condition.value) or condition.value)


def _quoted(value: str) -> str | None:
    """The text that JSON's quotes are around; None for any other value."""
    try:
        text = json.loads(value) if value.startswith('"') else None
    except ValueError:
        return None
    return text if isinstance(text, str) else None


def _parts(key: str) -> list[str | int]:
    """The parts of a path: keys, and of a list which member, or with -1 each."""
    found = _PART.finditer(key)
    return [int(each[3] or -1) if each[3] is not None else each[1] or each[2] or "" for each in found]


def _values(value: object, parts: Sequence[str | int]) -> Iterator[object]:
    """What is at a path, in each of a list at its end; not in a list within that one, which the engine leaves too."""
    first = parts[0] if parts else None
    if not parts:
        yield from value if isinstance(value, list) else [value]
    elif isinstance(value, list) and isinstance(first, int):
        for each in value if first == -1 else value[first : first + 1]:
            yield from _values(each, parts[1:])
    elif isinstance(value, dict) and first in value:
        yield from _values(value[first], parts[1:])


def _check_key(key: str) -> None:
    import qdrant_edge as edge

    try:
        edge.IsEmptyCondition(key)
    except ValueError as error:
        raise UsageError(
            f"--filter: {key!r:.100} is not the path of a key ({error}): put dots between keys, and quotes around one "
            'with other signs, as in metadata."own key"; rename one with a backslash or a quotation mark in it, which '
            "nothing can ask for"
        ) from None


def _keys(payload: object, before: str = "") -> list[str]:
    """The keys of a payload that have a value of their own, dotted."""
    if not isinstance(payload, dict):
        return [before]
    parts = [(str(key) if re.fullmatch(r"[\w-]+", str(key)) else f'"{key}"', value) for key, value in payload.items()]
    return [name for part, value in parts for name in _keys(value, f"{before}.{part}" if before else part)]


def _number(text: str) -> float | None:
    return float(text) if _NUMBER.fullmatch(text) else None
