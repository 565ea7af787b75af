"""An answer as text: for a reader, as JSON Lines, or as a run that trec_eval reads. Pure."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

from interlock.engine.errors import UsageError
from interlock.engine.record.words import safe, several
from interlock.engine.search.hits import Answer, Hit, RankedHit, trec_lines
from interlock.engine.search.questions import Question

RELATIVE = "each from 0 to 1 among what it found"
"""What a blended score is made of: the best of anything has about 1, and a cosine says how near that is."""
TREC = (".trec", ".run")
"""How the names of files end that trec_eval reads."""


def answer_lines(answer: Answer, *, explained: bool) -> Iterator[str]:
    """Write an answer for a reader: under the question each chunk with its score; `explained` with that of each
    stage, and with calibrated weights. Nothing where no chunk was found."""
    reranked = bool(answer.hits) and isinstance(answer.hits[0], RankedHit)
    if answer.hits:
        parts = [f"{share:.2g} {name}" for name, share in answer.shares.items()]
        yield safe(answer.text + (f"  ({' + '.join(parts)}, {RELATIVE})" if parts and not reranked else ""))
    if explained and answer.calibrated:
        parts = [f"{name} {weight:.2g}" for name, weight in answer.calibrated.items()]
        yield safe(f"weights calibrated by `interlock eval`: {', '.join(parts)}")
    for place, hit in enumerate(answer.hits, 1):
        was = f"(was {hit.before}.)  " if isinstance(hit, RankedHit) else ""
        source = safe(", ".join([hit.source, *_within(hit.payload)]))
        gone = "  [left the corpus]" if hit.stale else ""
        near = "" if hit.cosine in (None, hit.score) else f"  cosine {hit.cosine:.3f}"
        yield f"{place:3}. {was}{hit.score:.3f}  {safe(hit.payload.get('chunk_id'))}  ({source}){near}{gone}"
        if explained:
            by = [f"{name} {each.rank}. {each.score:.3f}" for name, each in hit.stages.items()]
            by += [f"rerank {hit.rerank_score:.3f}"] if isinstance(hit, RankedHit) else []
            yield f"     {safe(', '.join(by))}"
        yield f"     {safe(' '.join(str(hit.payload.get('text')).split()), 160)}"


def _within(payload: Mapping[str, object]) -> Iterator[str]:
    """Where in its source a chunk stands, as documents and `interlock chunk` say it."""
    own = payload.get("metadata")
    fields = own if isinstance(own, Mapping) else payload
    headings, page, start = map(fields.get, ("headings", "page", "start"))
    if isinstance(headings, list) and headings:
        yield " > ".join(map(str, headings))
    if isinstance(page, int | str):
        yield f"page {page}"
    if isinstance(start, int):
        yield f"from character {start:,}"


def hit_lines(answer: Answer, *, explained: bool) -> Iterator[str]:
    """Write each chunk of an answer as a line of JSON, `explained` with rank and score of each stage."""
    return (json.dumps({**plain_hit(hit, explained=explained), **_calibrated(answer)}) for hit in answer.hits)


def stages_took(answer: Answer) -> str:
    """Tell how many milliseconds each stage took."""
    return safe(", ".join(f"{stage} {1000 * took:.1f} ms" for stage, took in answer.seconds.items()))


def cut_text(cuts: Sequence[Mapping[str, int]], asked: int, what: str = "question") -> str:
    """Tell of questions, or `what` they are, that are longer than models read, out of so many that were `asked`, by the
    tokens that each leaves out of each; and what to do. Empty where none is."""
    if not (cuts := [each for each in cuts if each]):
        return ""
    models = {key: sum(cut.get(key, 0) for cut in cuts) for key in dict.fromkeys(key for cut in cuts for key in cut)}
    by = ", ".join(f"{key} leaves out {several(tokens, 'token')}" for key, tokens in models.items())
    if asked == 1:
        return f"the {what} is longer than its models read: {by}; shorten it"
    which = f"{several(len(cuts), what)} of {asked:,}"
    return f"{which} {'is' if len(cuts) == 1 else 'are'} longer than the models read: {by}; shorten them"


def writer(file: Path | None, ids: str, *, explained: bool) -> Callable[[Question, Answer], str]:
    """Choose by the name of the file how an answer is written: a run of trec_eval, or JSON Lines as on stdout. `ids`
    are those of "chunk" or "point". Raises UsageError for another name."""
    if file is None or file.suffix == ".jsonl":
        return partial(_json_line, explained=explained)
    if file.suffix in TREC:
        return partial(_trec, ids=ids)
    raise UsageError(f"--out {file}: name it .jsonl, or {' or '.join(TREC)} for trec_eval")


def _json_line(question: Question, answer: Answer, *, explained: bool) -> str:
    hits = [plain_hit(hit, explained=explained) for hit in answer.hits]
    said = {"query_id": question.id, "query": question.text, "hits": hits, **_calibrated(answer)}
    if explained:
        said["seconds"] = {stage: round(took, 6) for stage, took in answer.seconds.items()}
    return json.dumps(said) + "\n"


def _calibrated(answer: Answer) -> dict[str, object]:
    return {"calibrated_weights": answer.calibrated} if answer.calibrated else {}


def _trec(question: Question, answer: Answer, *, ids: str) -> str:
    scores = dict[str, float]()
    if len(question.id.split()) != 1:
        raise UsageError(
            f"trec_eval takes no ids with blanks, as in {question.id!r:.60}: name it otherwise, or write a .jsonl"
        )
    for hit in answer.hits:
        name = hit.id if ids == "point" else str(hit.payload.get("chunk_id"))
        if name in scores:
            raise UsageError(f"two chunks have the id {name!r:.60}, of which trec_eval takes one: use --ids point")
        if len(name.split()) != 1:
            raise UsageError(
                f"trec_eval takes no ids with blanks, as in {name!r:.60}: use --ids point, or write a .jsonl"
            )
        scores[name] = hit.score
    return "".join(trec_lines(question.id, scores, "interlock"))


def plain_hit(hit: Hit, *, explained: bool) -> dict[str, object]:
    """Return a chunk as JSON has it, `explained` with rank and score of each stage."""
    scores: dict[str, object] = {"score": hit.score, "cosine": hit.cosine}
    if isinstance(hit, RankedHit):
        scores |= {"before": hit.before, "first_score": hit.first_score, "rerank_score": hit.rerank_score}
    if explained:
        scores["stages"] = {name: {"rank": each.rank, "score": each.score} for name, each in hit.stages.items()}
    return {"id": hit.id, **scores, **({"stale": True} if hit.stale else {}), "payload": hit.payload}
