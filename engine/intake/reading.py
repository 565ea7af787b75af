"""Reads every collection once: rows, digests and, on the way, the tokens of each distinct text.

Tells what it read and what it refused, and keeps nothing of the texts.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from msgspec.structs import asdict

from interlock.engine.errors import Stopped, UsageError
from interlock.engine.intake.collections import Collection
from interlock.engine.intake.corpus import Corpus, Rows, digest_of_texts, read_corpus
from interlock.engine.intake.tokens import TokenStore, load_tokenizer, naming
from interlock.engine.record.events import CollectionRead, CorpusTokenised, Emit, RecordRefused


@dataclass(frozen=True)
class Tokenising:
    """One tokenizer with one prompt, and the models that share what it gives; `cap` is their longest limit."""

    tokenizer: Path
    prompt: str
    cap: int
    models: Sequence[str]


def read_and_tokenise(
    collections: Sequence[Collection],
    wanted: Mapping[str, Tokenising],
    directory: Path,
    emit: Emit,
    stop: Callable[[], bool],
) -> tuple[Corpus, dict[str, TokenStore]]:
    """Read the corpus, and make in `directory` a token store for each key of `wanted`.

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

        corpus = read_corpus(collections, take)
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
    reasons = [f"{refusal.file}: {refusal.reason}" for rows in corpus for refusal in rows.refusals.told]
    total = sum(len(rows.refusals) for rows in corpus)
    more = f" (and {total - 3} more)" if total > 3 else ""
    return "; ".join(reasons[:3]) + more if reasons else "no chunk file has a record"
