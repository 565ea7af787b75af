"""Reads every collection once: rows, digests and, on the way, the tokens of each distinct text.

Tells what it read and what it refused, and keeps nothing of the texts.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from msgspec.structs import asdict

from interlock.engine.corpus.chunks import Chunk
from interlock.engine.corpus.collections import Collection
from interlock.engine.corpus.corpus import Corpus, Rows, digest_of_texts, read_corpus
from interlock.engine.corpus.features import Features, no_features
from interlock.engine.corpus.tokens import TokenStore, load_tokenizer, naming
from interlock.engine.errors import Stopped, UsageError
from interlock.engine.record.events import CollectionRead, CorpusTokenised, Emit, RecordRefused

FEW = 3
"""Places, and records of a file, that are named where nothing can be embedded."""


@dataclass(frozen=True)
class Tokenising:
    """One tokenizer with one prompt, and the models that share what it gives; `cap` is their longest limit."""

    tokenizer: Path
    prompt: str
    cap: int
    models: Sequence[str]


@dataclass(frozen=True)
class Beside:
    """Who looks on while a corpus is read: `texts` gets the distinct ones, a window at a time, and `each` every chunk,
    with the terms that `features` reads of it."""

    texts: Callable[[list[str]], object] = lambda _: None
    each: Callable[[Chunk], object] = lambda _: None
    features: Features = no_features


def read_and_tokenise(
    collections: Sequence[Collection],
    wanted: Mapping[str, Tokenising],
    directory: Path,
    emit: Emit,
    stop: Callable[[], bool],
    beside: Beside = Beside(),
) -> tuple[Corpus, dict[str, TokenStore]]:
    """Read the corpus, and make in `directory` a token store for each key of `wanted`; `beside` says who else looks on.

    Raises UsageError when no chunk is good, Stopped when `stop` says so.
    """
    spent = dict.fromkeys(wanted, 0.0)
    with ExitStack() as stack:
        stores: dict[str, TokenStore] = {}
        for key, job in wanted.items():
            with naming(job.models, job.tokenizer):
                store = TokenStore(directory / key, load_tokenizer(job.tokenizer), job.prompt, job.cap)
            stores[key] = stack.enter_context(store)

        def take(texts: list[str]) -> None:
            if stop():
                raise Stopped("stopped by the operator while reading: nothing was kept, repeat the command")
            for key, store in stores.items():
                began = time.monotonic()
                with naming(wanted[key].models, wanted[key].tokenizer):
                    store.add(texts)
                spent[key] += time.monotonic() - began
            beside.texts(texts)

        corpus = read_corpus(collections, take, beside.each, beside.features)
    for rows in corpus.rows:
        _tell(rows, corpus.owners(rows), emit)
    for key, store in stores.items():
        emit(
            CorpusTokenised(
                models=list(wanted[key].models),
                texts=len(store),
                tokens=int(store.full_lengths.sum()),
                seconds=round(spent[key], 3),
                digest=digest_of_texts(corpus.digests),
            )
        )
    if not corpus.chunks:
        raise UsageError("nothing to embed: " + _refusals(corpus.rows))
    return corpus, stores


def _tell(rows: Rows, borrows: list[str], emit: Emit) -> None:
    name = rows.collection.name
    for refusal in rows.refusals.told:
        emit(RecordRefused(collection=name, **asdict(refusal)))
    emit(
        CollectionRead(
            collection=name,
            qdrant_collection=rows.collection.qdrant_collection,
            files=len(rows.collection.files),
            chunks=rows.chunks,
            duplicates=rows.duplicates,
            refused=len(rows.refusals),
            borrows=borrows,
            reasons=dict(rows.refusals.reasons),
            seconds=round(rows.seconds, 3),
        )
    )


def _refusals(corpus: Sequence[Rows]) -> str:
    """Why there is no chunk: the first places and reasons, each reason of a file once, with its records."""
    found: dict[tuple[str, str], list[str]] = {}
    for rows in corpus:
        for refusal in rows.refusals.told:
            place = f"{rows.collection.name}/{refusal.file}", refusal.reason
            found.setdefault(place, []).extend([] if refusal.record is None else [f"{refusal.record:,}"])
    if not found:
        return "no chunk file has a record"
    shown = dict(islice(found.items(), FEW))
    left = sum(len(rows.refusals) for rows in corpus) - sum(len(records) or 1 for records in shown.values())
    texts = [f"{file}{_records(records)}: {reason}" for (file, reason), records in shown.items()]
    return "; ".join(texts) + f" (and {left:,} more)" * bool(left)


def _records(numbers: Sequence[str]) -> str:
    """Which records of a file are meant, or nothing for the whole of it."""
    if not numbers:
        return ""
    more = f" and {len(numbers) - FEW:,} more" if len(numbers) > FEW else ""
    return f" record{'s' * (len(numbers) > 1)} {', '.join(numbers[:FEW])}{more}"
