"""An evaluation as a table of at most 80 columns, what encoding for it would take, and runs of TREC compared."""

from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from textwrap import fill

from interlock.engine.evaluation.comparing import RunComparison
from interlock.engine.evaluation.encoding import Amount
from interlock.engine.evaluation.pooling import Sheet, needed
from interlock.engine.evaluation.report import Evaluation, Interval, MeasuredWay, WrongHit, signed
from interlock.engine.evaluation.strata import PooledComparison
from interlock.engine.record.words import duration, safe, several
from interlock.widgets.formats import render

WIDTH = 79
NAME = 25
HEADS = {"nDCG@10": "nDCG", "R@100": "R", "RR@10": "MRR"}
USUAL = "nDCG@10, recall@100 and MRR@10; "
LEGEND = (
    "the difference in nDCG@10, * where it is told from chance beside all others here; ± is to either end of the "
    "interval (95 %), of as many means as there is room for; CPU milliseconds a query, encoding in batches and brute "
    "force included; bytes a text"
)
COMPARED = (
    "Means over the judged queries and differences from {first} query by query, ± to either end of the interval "
    "(95 %), * where it is told from chance beside all others here; wins are queries where the run is better than "
    "{first}"
)
POOLED = (
    "The mean of the differences of {sets} over {queries}, each set counting alike, ± to either end of its interval "
    "(95 %), * where it is told from chance beside all others here; then that of each set. It is of these sets, and "
    "not of others"
)
BETTER = "They find more than the roster's: --calibrate FILE.toml writes them."
KEPT = "That is no reason to change the roster: keep its weights."


def evaluation_text(found: Evaluation, *, whole: bool = False, worst: bool = False, width: int = WIDTH) -> str:
    """Write an evaluation: notes, a table for each group of ways, the `worst` queries, the weights, the verdict and the
    cost; the names of ways `whole`, or short enough for a terminal of 80 columns, and the intervals of as many means as
    have room in `width`."""
    judged = several(found.queries, "judged query", "judged queries")
    chosen = f"the best member and the weights by {'half of them' if found.halved else f'{found.training} others'}"
    head = f"{safe(found.data)}: {several(found.texts, 'text')}, {judged}; {chosen} (seed {found.seed})"
    parts = [_wrapped(head), *(_wrapped(f"note: {safe(note)}") for note in found.notes)]
    parts.append(_wrapped((USUAL if _usual(found.ways) else "") + LEGEND))
    parts.append(_table(found.ways, width, whole=whole))
    if worst:
        lines = [_wrapped(f"Answered worst by {safe(found.worst_of)} (nDCG@10), with the first wrong hits:")]
        for query in found.worst:
            lines.append(f"{_figure(query.value)}  {safe(query.query)}  {safe(query.text, WIDTH)}")
            lines += [_wrong(hit) for hit in query.wrong]
        parts.append("\n".join(lines))
    parts += _weights(found)
    if found.verdict:
        parts.append(_wrapped(f"{_first_up(safe(found.verdict))}."))
    if found.cost:
        parts.append(_wrapped(f"{_first_up(safe(found.cost))}."))
    return "\n\n".join(parts)


def comparison_text(found: RunComparison) -> str:
    """Write a comparison of runs: notes, a table of each measure, and the queries that differ most."""
    first, *others = found.runs
    parts = [_wrapped(f"note: {safe(note)}") for note in found.notes]
    for run in found.runs:
        no_hit, no_answer = (several(each, "query", "queries") for each in (run.unanswered, run.unjudged))
        few = [f"0 for {no_hit} without a hit"] if run.unanswered else []
        few += [f"{no_answer} without a judged answer left out"] if run.unjudged else []
        parts += [_wrapped(f"note: {safe(run.name)}: {', '.join(few)}")] if few else []
    parts.append(_wrapped(COMPARED.format(first=safe(first.name)) if others else f"{found.queries} judged queries"))
    parts.append(_pairs(found))
    if found.apart:
        lines = [f"The queries that differ most in {next(iter(first.measures))}:"]
        for each in found.apart:
            values = ", ".join(f"{safe(name)} {_figure(value)}" for name, value in each.values.items())
            lines += [f"  {safe(each.query)}  {values}", *([f"      {safe(each.text, WIDTH)}"] if each.text else [])]
        parts.append("\n".join(lines))
    return "\n\n".join(parts)


def _pairs(found: RunComparison) -> str:
    told, rows = {(each.measure, each.run): each for each in found.differences}, list[list[str]]()
    for measure in found.runs[0].measures:
        for run in found.runs:
            pair = told.get((measure, run.name))
            own = [_interval(pair.difference), str(pair.wins), str(pair.ties), str(pair.losses)] if pair else [""] * 4
            mean = _figure(run.measures[measure], run.intervals.get(measure))
            rows.append(["" if pair else measure, safe(run.name), mean, *own])
    return render(["", "run", "mean", "difference", "wins", "ties", "losses"], rows)


def pooled_text(found: PooledComparison) -> str:
    """Write what several sets say together: notes, and a table with each pair's difference, pooled and of each set."""
    queries = several(sum(found.sets.values()), "judged query", "judged queries")
    parts = [_wrapped(f"note: {safe(note)}") for note in found.notes]
    parts.append(_wrapped(POOLED.format(sets=several(len(found.sets), "set"), queries=queries)))
    names = [safe(Path(name).stem) for name in found.sets]
    rows = [[f"  {safe(each.run)}", _interval(each.difference), *map(signed, each.sets)] for each in found.differences]
    head, _, *rest = render(["", "difference", *names], rows).splitlines()
    lines, row = [head], iter(rest)
    for against, some in groupby(found.differences, key=lambda each: f"{each.measure}, against {each.against}"):
        lines += [safe(against), *(next(row) for _ in some)]
    return "\n\n".join([*parts, "\n".join(lines)])


def sheet_text(sheet: Sheet) -> str:
    """Write how far a sheet of questions is judged, how its ways differ, and how many questions more tell them
    apart."""
    chunks, left = (sum(map(of, sheet.questions.values())) for of in (lambda each: len(each.points), sheet.left))
    done = f"{several(len(sheet.questions), 'question')}, {len(sheet.done):,} of them done"
    if without := len(sheet.done) - len(sheet.answered):
        done += f" ({without:,} without an answer)"
    head = safe(f"{sheet.directory}: {done}; {chunks - left:,} of {several(chunks, 'chunk')} judged")
    if not (found := sheet.comparison()):
        return _wrapped(
            f"{head}. Nothing to compare yet: judge all chunks of a question that has an answer among them."
        )
    first, lacking, told = found.runs[0].name, list[str](), list[str]()
    for each in needed(found):
        if each.more == 0:
            told.append(each.way)
        else:
            many = f"about {several(each.more, 'more answered question')}" if each.more else "more than a thousand"
            beside = ", told apart alone but not beside the others" if each.alone else ""
            lacking.append(f"{each.way} ({signed(each.difference)}{beside}: {many})")
    parts = [_wrapped(head), comparison_text(found)] if found.runs[1:] else [_wrapped(head)]
    parts += [_wrapped(safe(f"Told apart from {first}: {', '.join(told)}."))] if told else []
    if lacking:
        still = f"Not told apart from {first} yet, with what it takes if they go on to differ so: {', '.join(lacking)}."
        parts.append(_wrapped(safe(still)))
    return "\n\n".join(parts)


def amounts_text(amounts: Sequence[Amount]) -> str:
    """Write what is yet to be encoded, model by model."""
    rows = [
        [each.model, f"{each.texts:,}", f"{each.missing:,}", f"{each.tokens:,}", duration(each.seconds)]
        for each in amounts
    ]
    return render(["model", "texts", "to encode", "tokens", "about"], rows)


def _table(ways: Sequence[MeasuredWay], width: int, *, whole: bool) -> str:
    measures = list(HEADS.values()) if _usual(ways) else list(ways[0].measures)
    heads = ["", *measures, "difference", "ms", "bytes"]
    for few in range(len(measures), -1, -1):  # intervals of the first means, as many as have room
        head, _, *rows = render(heads, [_row(way, few, whole=whole) for way in ways]).splitlines()
        if max(map(len, rows)) <= width:
            break
    lines, row = [head], iter(rows)
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


def _row(way: MeasuredWay, intervals: int, *, whole: bool) -> list[str]:
    shown = {name: way.intervals.get(name) for name in [*way.measures][:intervals]}
    figures = [_figure(value, shown.get(name)) for name, value in way.measures.items()]
    ms = "" if way.ms is None else f"{way.ms:.1f}" if way.ms < 100 else f"{way.ms:.0f}"
    name = way.name.partition(" after ")[0] if way.group == "rerank" else way.name
    return [
        f"  {name}" if whole else _short(f"  {name}"),
        *figures,
        _interval(way.difference),
        ms,
        f"{way.bytes:.0f}",
    ]


def _usual(ways: Sequence[MeasuredWay]) -> bool:
    return list(ways[0].measures) == list(HEADS)


def _figure(value: float, bounds: tuple[float, float] | None = None) -> str:
    return f"{value:.3f}".replace("0.", ".", 1) + (_either_way(value, *bounds) if bounds else "")


def _either_way(mean: float, low: float, high: float) -> str:
    """How far an interval goes from its mean, at the end where it is not cut off at what a mean can be."""
    return f" ±{_figure(min(max(mean - low, high - mean), 1.0))}"


def _wrong(hit: WrongHit) -> str:
    judged = "not judged" if hit.grade is None else f"grade {hit.grade}"
    return f"      {hit.rank}. {safe(hit.id)} ({judged})  {safe(' '.join(hit.text.split()), WIDTH)}"


def _short(text: str) -> str:
    """Cut a name before the way that its lists are combined, which tells it from its neighbours."""
    last = text[text.rfind(", ") :] if ", " in text else ""
    return text if len(text) <= NAME else f"{text[: NAME - 1 - len(last)]}…{last}"


def _interval(found: Interval | None) -> str:
    if found is None:
        return ""
    return f"{signed(found.mean)}{_either_way(found.mean, found.low, found.high)}{'*' if found.significant else ''}"


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
