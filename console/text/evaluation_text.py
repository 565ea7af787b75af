"""An evaluation as a table of at most 80 columns, and what encoding for it would take."""

from collections.abc import Sequence
from itertools import groupby
from textwrap import fill

from interlock.engine.evaluation.encoding import Amount
from interlock.engine.evaluation.report import Evaluation, Interval, MeasuredWay, signed
from interlock.engine.record.words import duration, safe, several
from interlock.widgets.formats import render

WIDTH = 79
NAME = 25
HEADS = ("", "nDCG", "R", "MRR", "difference", "ms", "bytes")
LEGEND = (
    "nDCG@10, recall@100 and MRR@10; the difference in nDCG@10 with its interval (95 %), * where it is told from "
    "chance beside all others here; CPU milliseconds a query, encoding in batches and brute force included; bytes a "
    "text, and behind a + those that only the best hits are scored again by"
)
BETTER = "They find more than the roster's: --calibrate FILE.toml writes them."
KEPT = "That is no reason to change the roster: keep its weights."


def evaluation_text(found: Evaluation, *, whole: bool = False) -> str:
    """Write an evaluation: notes, a table for each group of ways, the weights, the verdict and the cost; the names of
    ways `whole`, or short enough for a terminal of 80 columns."""
    judged = several(found.queries, "judged query", "judged queries")
    chosen = f"the best member and the weights by {'half of them' if found.halved else f'{found.training} others'}"
    head = f"{safe(found.data)}: {several(found.texts, 'text')}, {judged}; {chosen} (seed {found.seed})"
    parts = [_wrapped(head), *(_wrapped(f"note: {safe(note)}") for note in found.notes), _wrapped(LEGEND)]
    parts.append(_table(found.ways, whole=whole))
    parts += _weights(found)
    if found.verdict:
        parts.append(_wrapped(f"{_first_up(safe(found.verdict))}."))
    if found.cost:
        parts.append(_wrapped(f"{_first_up(safe(found.cost))}."))
    return "\n\n".join(parts)


def amounts_text(amounts: Sequence[Amount]) -> str:
    """Write what is yet to be encoded, model by model."""
    rows = [
        [each.model, f"{each.texts:,}", f"{each.missing:,}", f"{each.tokens:,}", duration(each.seconds)]
        for each in amounts
    ]
    return render(["model", "texts", "to encode", "tokens", "about"], rows)


def _table(ways: Sequence[MeasuredWay], *, whole: bool) -> str:
    heads, _, *rows = render(HEADS, [_row(way, whole=whole) for way in ways]).splitlines()
    lines, row = [heads], iter(rows)
    for group, members in groupby(ways, key=lambda way: way.group):
        for against, some in _by_reference(list(members)):
            lines.append(f"{group}, against {safe(against)}" if against else group)
            lines += [next(row) for _ in some]
    return "\n".join(lines)


def _by_reference(ways: Sequence[MeasuredWay]) -> list[tuple[str, list[MeasuredWay]]]:
    """Consecutive ways with one reference; one without goes with its neighbours."""
    parts: list[tuple[str, list[MeasuredWay]]] = []
    for way in ways:
        if parts and (way.against in ("", parts[-1][0]) or not parts[-1][0]):
            parts[-1] = (parts[-1][0] or way.against, [*parts[-1][1], way])
        else:
            parts.append((way.against, [way]))
    return parts


def _row(way: MeasuredWay, *, whole: bool) -> list[str]:
    figures = [f"{value:.3f}".replace("0.", ".", 1) for value in way.measures.values()]
    ms = "" if way.ms is None else f"{way.ms:.1f}" if way.ms < 100 else f"{way.ms:.0f}"
    name = way.name.partition(" after ")[0] if way.group == "rerank" else way.name
    beside = f"+{way.rescored_bytes:.0f}" if way.rescored_bytes else ""
    return [
        f"  {name}" if whole else _short(f"  {name}"),
        *figures,
        _interval(way.difference),
        ms,
        f"{way.bytes:.0f}{beside}",
    ]


def _short(text: str) -> str:
    """Cut a name before the way that its lists are combined, which tells it from its neighbours."""
    last = text[text.rfind(", ") :] if ", " in text else ""
    return text if len(text) <= NAME else f"{text[: NAME - 1 - len(last)]}…{last}"


def _interval(found: Interval | None) -> str:
    if found is None:
        return ""
    return f"{signed(found.mean)} [{signed(found.low)}, {signed(found.high)}]{'*' if found.significant else ''}"


def _weights(found: Evaluation) -> list[str]:
    if found.weights is None:
        return []
    own = found.weights
    return [
        _wrapped(
            f"Weights by {several(own.training, 'training query', 'training queries')}: {safe(found.roster)}. On the "
            f"{own.held_out} held out: nDCG@10 {own.value:.3f}, {_interval(own.against_roster)} against the "
            f"weights of the roster, {_interval(own.against_best)} against {safe(found.best_member)} alone. "
            + (BETTER if own.supported else KEPT)
        )
    ]


def _wrapped(text: str) -> str:
    return fill(text, WIDTH, break_on_hyphens=False)


def _first_up(text: str) -> str:
    return text[:1].upper() + text[1:]
