"""An answer as rows: its chunks with the question's words marked, what each stage made of one, and lines on how it was
found. Pure.
"""

import re
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile

from interlock.engine.record.words import safe, several
from interlock.engine.search.ask import DENSE, Ask
from interlock.engine.search.combine import Hybrid, shares_of
from interlock.engine.search.hits import Answer, Candidate, Hit, LateHit, RankedHit
from interlock.engine.vectors import SPARSE_SHARE
from interlock.engine.vectors.bm25 import BM25
from interlock.engine.vectors.manifest import Manifest
from interlock.widgets.text import ELLIPSIS, LONGEST, Row, Span, fit, fitted, row, width_of, wrapped

LINES = 3
"""Rows of a chunk in the list: where it stands, and two of its text."""
INDENT = "     "
JUDGED = {2: "relevant", 1: "partly", 0: "not", -1: "skipped", None: "?"}
"""How a candidate's grade is shown."""
_COMMON = """
a an and any are as at be been but by can could did do does for from get had has have how i if in into is it its may me
my not of on or our should so that the their them then there these they this to was we were what when where which who
why will with would you your
"""
COMMON = frozenset(_COMMON.split())
"""Words of a question that say nothing of what is looked for."""
ENDINGS = frozenset(("", "s", "es", "e", "d", "ed", "ing", "er", "ers", "or", "ors", "ion", "ions", "y", "ies", "ly"))
"""What may differ at the end of two words that are taken for the same one."""
_WORD = re.compile(r"\w+")
LOSING = (Hybrid.RRF, Hybrid.DBSF)
"""Ways to combine lists that lose much on some collections."""


@dataclass(frozen=True)
class StoreShown:
    """What a screen tells of the store: its collection, how many chunks it has, its dense models by weight, the names
    of its sparse lists, of what reranks, if anything does, and of what it was delivered without."""

    collection: str
    chunks: int
    dense: Mapping[str, float]
    sparse: Sequence[str] = ()
    rerank: str = ""
    calibrated: bool = False
    """Whether an evaluation chose these weights."""
    missing: Sequence[str] = ()
    sparse_share: float = SPARSE_SHARE
    """How much its sparse lists count where a question does not say it."""

    @property
    def alone(self) -> list[str]:
        """What can be searched by alone."""
        return [*self.dense, *self.sparse]

    @property
    def lists(self) -> list[str]:
        """The ranked lists of a question."""
        return [*([DENSE] if self.dense else []), *self.sparse]


def shown_of(manifest: Manifest, chunks: int, rerank: str) -> StoreShown:
    """Say of a store what a screen tells."""
    sparse = [*(each.model for each in manifest.sparse), *[BM25] * bool(manifest.bm25)]
    calibrated = manifest.calibrated is not None
    missing = [*manifest.missing, *["some chunks"] * manifest.unfinished]
    own = manifest.weights, sparse, rerank, calibrated, missing, manifest.sparse_share
    return StoreShown(manifest.collection, chunks, *own)


def words_of(question: str) -> list[str]:
    """List the words of a question that are marked in texts; those that every question has only where it has no
    others."""
    words = list(dict.fromkeys(word.casefold() for word in _WORD.findall(question)))
    return [word for word in words if word not in COMMON] or words


def alike(one: str, other: str) -> bool:
    """Tell whether two words are the same, but for an ending."""
    if one == other:
        return True
    same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))
    return same >= 3 and one[same:] in ENDINGS and other[same:] in ENDINGS


def marked(text: str, words: Sequence[str], style: str = "") -> list[Span]:
    """Cut a text into spans, those of the question's words in the style of what was found."""
    spans, place = [], 0
    for found in _WORD.finditer(text):
        if any(alike(found[0].casefold(), word) for word in words):
            spans += [Span(text[place : found.start()], style), Span(found[0], "hit")]
            place = found.end()
    return [span for span in (*spans, Span(text[place:], style)) if span.text]


def blocks(answer: Answer, width: int) -> list[list[Row]]:
    """Draw each chunk of an answer in `LINES` rows of `width` cells; one that is judged in one, with its grade."""
    words = words_of(answer.text)
    before = [f"(was {hit.before}.) " if isinstance(hit, RankedHit) else "" for hit in answer.hits]
    room = max(map(len, before), default=0)
    shown = []
    for place, hit in enumerate(answer.hits):
        if isinstance(hit, Candidate):
            shown.append([_head(hit, f"{place + 1:3}. {JUDGED[hit.grade]:10}", width)])
            continue
        lead = f"{place + 1:3}. {before[place]:{room}}{hit.score:.3f}  "
        shown.append([_head(hit, lead, width), *_lines(hit, words, width)])
    return shown


def stages(hit: Hit) -> str:
    """Tell the rank and the score of a chunk by each stage that has it."""
    by = [f"{name} {each.rank}. {each.score:.3f}" for name, each in hit.stages.items()]
    if isinstance(hit, RankedHit):
        by += [f"before {hit.before}. {hit.first_score:.3f}", f"rerank {hit.rerank_score:.3f}"]
    elif isinstance(hit, LateHit):
        by += [f"tokens {hit.late:.3f}" if hit.late is not None else "no token vectors"]
    return "  ".join(by)


def whole(hit: Hit, question: str, width: int) -> list[Row]:
    """Draw all of a chunk: its scores by stage, its text line by line, and below it every field of its payload."""
    if width < 1:
        return []
    near = "" if hit.cosine is None else f"cosine {hit.cosine:.3f}  "
    told = f"score {hit.score:.3f} among these hits  {near}{stages(hit)}"
    judged = isinstance(hit, Candidate)  # by a reader, who is not to know how it was found
    shown: list[Row] = [] if judged else [*(row((line, "bold")) for line in wrapped(told, width)), ()]
    words = words_of(question)
    for text in str(hit.payload.get("text", "")).expandtabs(4).splitlines():
        lines = wrapped(safe(text, sys.maxsize), width)
        shown += [tuple(marked(line, words)) for line in lines]
    shown.append(())
    for name, value in _fields(hit.payload):
        named = f"{safe(name, LONGEST)}:"
        first, *others = wrapped(f"{named} {safe(value, sys.maxsize)}", max(1, width - 2))
        cut = min(len(first), len(named))
        shown += [row((first[:cut], "title"), first[cut:]), *(row(f"  {line}") for line in others)]
    return shown


def copied(hit: Hit) -> str:
    """Write a chunk for the clipboard: its id, and its text below."""
    return f"{hit.payload.get('chunk_id')}\n{hit.payload.get('text', '')}\n"


def found_in(answer: Answer, width: int = sys.maxsize) -> str:
    """Tell how many chunks there are, how many of these left the corpus, and how long that took in all and by stage, of
    which the shortest ones make way where the `width` is not enough."""
    stale = sum(hit.stale for hit in answer.hits)
    gone = f" ({stale:,} left the corpus)" if stale else ""
    taken = f"{several(len(answer.hits), 'chunk')}{gone} in {1000 * sum(answer.seconds.values()):.0f} ms"
    stages = {
        stage: f"{stage} {1000 * took:.{0 if took >= 0.01 else 1}f}"
        for stage, took in sorted(answer.seconds.items(), key=lambda each: -each[1])
        if took >= 5e-5
    }
    for count in range(len(stages), 0, -1):
        longest = list(stages)[:count]
        told = f"{taken}: {', '.join(stages[stage] for stage in answer.seconds if stage in longest)}"
        if width_of(told) <= width:
            return told
    return taken


def in_memory(names: Sequence[str], width: int) -> str:
    """Name the models in memory, or count them where there is no room for their names."""
    if not names:
        return "no model in memory"
    told = f"in memory: {', '.join(names)}"
    return told if width_of(told) <= width else f"in memory: {several(len(names), 'model')}"


def rules(ask: Ask, shown: StoreShown, *, reranked: bool) -> list[str]:
    """Tell how the lists are combined, whether it is reranked, and what chunks are left out."""
    told = [_combined(ask, shown)]
    if ask.weights is None and not ask.only and shown.calibrated:
        told.append("calibrated weights")
    if ask.weights:
        told.append(f"weights {', '.join(f'{name} {weight:.2g}' for name, weight in ask.weights.items())}")
    if shown.rerank:
        told.append(f"rerank {shown.rerank}" if reranked else "rerank off")
    if ask.where:
        told.append(f"only {' '.join(written(ask))}")
    return told


def combined_next(ask: Ask, shown: StoreShown, all_key: str) -> tuple[Ask, str]:
    """Combine the lists in the next way: how it is asked then, and what to say of it. `all_key` asks all lists."""
    if len(shown.lists) < 2:
        return ask, f"the store has one list alone ({', '.join(shown.lists)}): nothing to combine"
    if ask.only:
        return ask, f"{ask.only} is asked alone: {all_key} asks all"
    ways = [*Hybrid]
    way = ways[(ways.index(ask.hybrid) + 1) % len(ways)]
    loses = "; it loses much on some collections, where weighted does not" if way in LOSING else ""
    return replace(ask, hybrid=way), f"hybrid: {way}{loses}"


def alone_next(ask: Ask, own: Ask, shown: StoreShown) -> tuple[Ask, str]:
    """Ask the next model alone, and after the last one all, by the weights of one's `own`: how it is asked then, and
    what to say of it."""
    names = ["", *shown.alone]
    only = names[(names.index(ask.only) + 1) % len(names)] if ask.only in names else ""
    return replace(ask, only=only, weights=None if only else own.weights), f"{only} alone" if only else "all models"


def loaded_for(ask: Ask, shown: StoreShown) -> list[str]:
    """Name the dense models that a question goes through."""
    weights = shown.dense if ask.weights is None else ask.weights
    return [name for name in shown.dense if (ask.only == name if ask.only else weights.get(name))]


def written(ask: Ask) -> list[str]:
    """Write the conditions as they are typed, in quotes where they have blanks or quotes of their own."""
    return [_typed(str(each)) for each in ask.where]


def head(shown: StoreShown, *, wide: bool) -> str:
    """Tell which store is searched, and by what; with the weights where there is room."""
    models = [f"{name} {weight:.2g}" if wide else name for name, weight in shown.dense.items()]
    without = f"without {', '.join(shown.missing)}, " if shown.missing else ""
    return f"{several(shown.chunks, 'chunk')}, {without}exact  {', '.join([*models, *shown.sparse])}"


def nothing(answer: Answer | None, shown: StoreShown, filtered: str) -> list[str]:
    """Say why there is no chunk, and `filtered` where conditions leave some out; or what to do where nothing was asked
    yet."""
    if answer is None:
        asked = f"Type a question and press enter: it is compared with every chunk of {shown.collection}."
        return [asked, f"Lists: {', '.join(_listed(shown))}."]
    why = f"{answer.why_none[0].upper()}{answer.why_none[1:]}." if answer.why_none else "No chunk was found."
    return [why, *filter(None, [filtered])]


def _listed(shown: StoreShown) -> Iterator[str]:
    if shown.dense:
        yield f"dense ({' + '.join(f'{weight:.2g} {name}' for name, weight in shown.dense.items())})"
    for name in shown.sparse:
        yield f"{name} (words)" if name == BM25 else f"{name} (weighed terms)"


def _combined(ask: Ask, shown: StoreShown) -> str:
    if ask.only:
        return f"{ask.only} alone"
    share = shown.sparse_share if ask.sparse_share is None else ask.sparse_share
    if ask.hybrid is Hybrid.OFF or not share or len(shown.lists) < 2:
        return f"{shown.lists[0]} alone" if len(shown.lists) < 2 or shown.dense else " + ".join(shown.lists)
    if ask.hybrid is Hybrid.RRF:
        return f"rrf: ranks of {', '.join(shown.lists)}"
    shares = shares_of([DENSE] if shown.dense else [], shown.sparse, share)
    sums = " + ".join(f"{share:.2g} {name}" for name, share in shares.items())
    return sums if ask.hybrid is Hybrid.WEIGHTED else f"dbsf: {sums}"


def _head(hit: Hit, lead: str, width: int) -> Row:
    """Where a chunk stands, as `lead` says it, with its id and source."""
    name, source = safe(hit.payload.get("chunk_id") or "", LONGEST), safe(hit.source, LONGEST)
    left = max(0, width - width_of(lead))
    beside = min(width_of(source), left // 3)
    if hit.stale:
        name = f"[left the corpus] {name}"
    spans = [Span(lead, "title"), Span(fit(name, max(0, left - beside - 1)) + " ", "bold")]
    spans.append(Span(fit(source, beside), "dim"))
    return fitted(spans, width)


def _lines(hit: Hit, words: Sequence[str], width: int) -> list[Row]:
    """Two rows of the text, from its beginning, or from where the question's words begin in it."""
    text = safe(" ".join(str(hit.payload.get("text", "")).split()), LONGEST)
    room = max(1, width - len(INDENT))
    begin = next((each.start() for each in _WORD.finditer(text) if any(alike(each[0].casefold(), w) for w in words)), 0)
    if begin > 2 * room - 20:
        text = ELLIPSIS + text[begin - room // 2 :].partition(" ")[2]
    first, *others = wrapped(text[: 4 * room], room) or [""]
    second = fit(" ".join(others), room) if others else ""
    return [fitted([Span(INDENT), *marked(line, words)], width) for line in (first, second)]


def _typed(text: str) -> str:
    if {*text} & {*"\"'\\"}:
        return shlex.quote(text)
    return f'"{text}"' if any(sign.isspace() for sign in text) else text


def _fields(payload: object, before: str = "") -> Iterator[tuple[str, object]]:
    """The fields of a payload by their dotted names, as conditions name them; without the text."""
    if not isinstance(payload, Mapping):
        yield before, payload
        return
    for key, value in payload.items():
        if before or key != "text":
            yield from _fields(value, f"{before}.{key}" if before else str(key))
