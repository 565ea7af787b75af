"""The corpus of a run as rows: every good chunk in reading order, pointing at its distinct text.

Texts themselves stay in their files; what is kept is in temporary files: 28 bytes a row (its text's number, its point
id, and what tells copies) and 16 a text (its digest). A text that stands in several chunks is one row of work.
While they are read the tokens of each distinct text are kept; what was read and what was refused is told.
"""

import hashlib
import time
import uuid
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

import numpy as np
import numpy.typing as npt
from msgspec.structs import asdict

from interlock.engine.corpus.chunks import UNUSABLE, Chunk, ChunkReader
from interlock.engine.corpus.collections import Collection
from interlock.engine.corpus.counts import Counts, Refusals, kind_of
from interlock.engine.corpus.features import Features, no_features
from interlock.engine.corpus.identity import Digests, digest_of, digest_of_texts
from interlock.engine.corpus.places import DIGEST, Numbered, Places, Spool, windows
from interlock.engine.corpus.tokens import TokenStore, load_tokenizer, naming
from interlock.engine.errors import Stopped, UsageError
from interlock.engine.record.events import CollectionRead, CorpusTokenised, Emit, RecordRefused, RecordsRead, Warned
from interlock.engine.record.facts import Refusal
from interlock.engine.record.words import few, in_collection, safe, several

WINDOW, BEAT = 512, 1.0
BLOCK = 64 * WINDOW
"""Distinct texts of a collection that are planned for themselves, some windows; with no more it is one block."""
SAMPLE, SIGNS = 256, 256
FEW = 3
"""Places, and records of a file, that are named where nothing can be embedded."""


@dataclass
class Rows:
    """One collection as it was read: `texts[i]` is the distinct text of row i, `points[i]` the id of its point.

    Its own texts are a range. `features` reads the terms that its chunks bring, and refuses a chunk with bad ones.
    """

    collection: Collection
    first_text: int
    features: Features = no_features
    texts: npt.NDArray[np.int32] = field(default_factory=lambda: np.empty(0, np.int32))
    points: Digests = field(default_factory=lambda: np.empty(0, DIGEST))
    own_texts: int = 0
    places: Places = field(default_factory=Places)
    chunk_ids: dict[int, str] = field(default_factory=dict)
    """By row, of the few rows whose chunk id was looked up."""
    refusals: Refusals = field(default_factory=Refusals)
    counts: Counts = field(default_factory=Counts)
    elsewhere: Counts = field(default_factory=Counts)
    hashes: dict[str, str] = field(default_factory=dict)
    seconds: float = 0.0
    sample: list[str] = field(default_factory=list)
    """The first `SIGNS` signs of some of its own texts: one of every `stride`, `SAMPLE` at most."""
    stride: int = 1

    @property
    def chunks(self) -> int:
        return len(self.texts)

    @property
    def rest(self) -> dict[str, int]:
        """What the other shards of the run count of it; nothing where it is not cut."""
        return self.elsewhere.summed if self.collection.shard else {}

    @property
    def duplicates(self) -> int:
        """Rows whose text had been seen before, in this collection or an earlier one."""
        return self.chunks - self.own_texts

    @property
    def distinct(self) -> int:
        """How many different texts its rows have."""
        borrowed = np.zeros(self.first_text if self.duplicates else 0, np.bool_)
        for part in self.borrowed():
            borrowed[part] = True
        return self.own_texts + int(np.count_nonzero(borrowed))

    def borrowed(self) -> Iterator[npt.NDArray[np.int32]]:
        """Yield the texts of its rows that stood in earlier collections, some at a time."""
        for part in windows(0, self.chunks if self.duplicates and self.first_text else 0, self.texts):
            texts = self.texts[part]
            yield texts[texts < self.first_text]

    def see(self, texts: Sequence[str]) -> None:
        """Have the latest of its own texts in the sample too."""
        seen = self.own_texts - len(texts)
        self.sample += [text[:SIGNS] for text in texts[-seen % self.stride :: self.stride]]
        while len(self.sample) > SAMPLE:
            del self.sample[1::2]
            self.stride *= 2


@dataclass
class Corpus:
    """All collections of a run and the digests of their distinct texts."""

    rows: list[Rows]
    digests: Digests

    @property
    def chunks(self) -> int:
        return sum(rows.chunks for rows in self.rows)

    def owners(self, rows: Rows) -> list[str]:
        """List the earlier collections in which texts of `rows` stood first."""
        starts, places = [each.first_text for each in self.rows], set[int]()
        for texts in rows.borrowed():
            places.update((np.searchsorted(starts, np.unique(texts), side="right") - 1).tolist())
        return [self.rows[place].collection.name for place in sorted(places)]

    def fingerprint(self) -> dict[str, str]:
        """Return the SHA-256 of every file, by `collection/file`."""
        return {f"{rows.collection.name}/{name}": digest for rows in self.rows for name, digest in rows.hashes.items()}


def read_corpus(
    collections: Sequence[Collection],
    take: Callable[[list[str]], object],
    each: Callable[[Chunk], object] = lambda _: None,
    features: Features = no_features,
    reached: Callable[[str, int], object] = lambda *_: None,
    whole: Callable[[Rows], object] = lambda _: None,
    block: int = BLOCK,
    passed: Callable[[str], int] = lambda _: 0,
) -> Corpus:
    """Read every collection; `take` gets the distinct texts in order, a window at a time, and `each` every chunk.
    `reached` hears now and then, and at its end, how many records of which collection were read; `whole` gets it
    whenever another `block` of its texts has been taken, and its last; `passed` counts the words of each chunk that
    falls to another shard."""
    seen, told = Numbered(), (take, each, reached, whole, block, passed)
    rows = [_read(Rows(one, len(seen), features), seen, *told) for one in collections]
    return Corpus(rows, seen.records)


def _read(
    rows: Rows,
    seen: Numbered,
    take: Callable[[list[str]], object],
    each: Callable[[Chunk], object],
    reached: Callable[[str, int], object],
    whole: Callable[[Rows], object],
    block: int,
    passed: Callable[[str], int],
) -> Rows:
    began, name, shard = time.monotonic(), rows.collection.name, rows.collection.shard

    def seen_pass(text: str) -> int:
        if reader.elsewhere.records % WINDOW == 0:
            reached(name, reader.read)
        return passed(text)

    reader = ChunkReader(rows.collection, rows.features, seen_pass)
    kept, points, texts, window, row = Spool(np.int32), Spool(DIGEST), array("i"), list[str](), 0
    for number, chunk in enumerate(reader, 1):
        if number % WINDOW == 0:  # of whatever comes: there may be millions that bring no text
            reached(name, reader.read)
        if isinstance(chunk, Refusal):
            rows.refusals.add(chunk)
            continue
        each(chunk)
        text = seen.number(digest_of(chunk.text))
        rows.places.add(row, *reader.place)
        row += 1
        if shard:  # others have ids among these too
            points.add(uuid.UUID(chunk.point_id).bytes)
        texts.append(text)
        if len(texts) == WINDOW:
            kept.add(texts.tobytes())
            del texts[:]
        if text == rows.first_text + rows.own_texts:  # it has the next number, so nobody had it before
            rows.own_texts += 1
            window.append(chunk.text)
        if len(window) == WINDOW:
            rows.see(window)
            take(window)
            window = []
            if rows.own_texts % block == 0:
                whole(rows)
    reached(name, reader.read)
    rows.see(window)
    take(window)
    if rows.own_texts % block:
        whole(rows)
    kept.add(texts.tobytes())
    rows.texts, rows.points = kept.records, points.records if shard else reader.identities.points
    rows.hashes, rows.counts, rows.seconds = reader.hashes, reader.counts, time.monotonic() - began
    rows.elsewhere = reader.elsewhere
    good, same, refused = rows.chunks, reader.counts.same, len(rows.refusals) - rows.refusals.broken
    if reader.counts.chunks != good or reader.counts.refused != refused:
        counts = f"{reader.counts.records:,} records, but {good:,} kept + {same:,} the same + {refused:,} refused"
        raise AssertionError(f"{rows.collection.name} does not add up: {counts}")
    return rows


@dataclass(frozen=True)
class Tokenising:
    """One tokenizer with one prompt, and the models that share what it gives; `cap` is their longest limit."""

    tokenizer: Path
    prompt: str
    cap: int
    models: Sequence[str]


@dataclass(frozen=True)
class Onlooker:
    """Who looks on while a corpus is read: `texts` gets the distinct ones, a window at a time, and `each` every chunk,
    with the terms that `features` reads of it; `passed` counts the words of each chunk of another shard."""

    texts: Callable[[list[str]], object] = lambda _: None
    each: Callable[[Chunk], object] = lambda _: None
    features: Features = no_features
    passed: Callable[[str], int] = lambda _: 0


def read_and_tokenise(
    collections: Sequence[Collection],
    wanted: Mapping[str, Tokenising],
    directory: Path,
    emit: Emit,
    stop: Callable[[], bool],
    beside: Onlooker = Onlooker(),
    whole: Callable[[Rows, Mapping[str, TokenStore], str], object] | None = None,
    block: int = BLOCK,
) -> tuple[Corpus, dict[str, TokenStore]]:
    """Read the corpus, and make in `directory` a token store for each key of `wanted`; `beside` says who else looks on.
    `whole` gets each collection, the stores and the digest of all texts so far, one `block` of texts after the other.

    Raises UsageError when no chunk is good, Stopped when `stop` says so.
    """
    spent, so_far = dict.fromkeys(wanted, 0.0), hashlib.sha256()
    with ExitStack() as stack:
        stores: dict[str, TokenStore] = {}
        for key, job in wanted.items():
            with naming(job.models, job.tokenizer):
                store = TokenStore(directory / key, load_tokenizer(job.tokenizer), job.prompt, job.cap)
            stores[key] = stack.enter_context(store)
        workers = stack.enter_context(ThreadPoolExecutor(max(1, len(wanted)), "tokenising"))
        under_way = list[Future[None]]()

        def tokenise(key: str, texts: list[str]) -> None:
            began = time.monotonic()
            with naming(wanted[key].models, wanted[key].tokenizer):
                stores[key].add(texts)
            spent[key] += time.monotonic() - began

        def settle() -> None:
            while under_way:
                under_way.pop().result()

        beat = time.monotonic()

        def reached(collection: str, records: int) -> None:
            nonlocal beat
            if stop():
                raise Stopped("stopped by the operator while reading: this session did nothing, repeat the command")
            if (now := time.monotonic()) - beat >= BEAT:
                beat = now
                emit(RecordsRead(collection=collection, records=records))

        def take(texts: list[str]) -> None:
            """Have a window tokenised while the next is read; the library computes beside the interpreter."""
            settle()
            under_way.extend(workers.submit(tokenise, key, texts) for key in stores)
            beside.texts(texts)
            so_far.update(b"".join(map(digest_of, texts)) if whole else b"")

        def show(rows: Rows) -> None:
            if whole:
                settle()
                for store in stores.values():
                    store.show()
                whole(rows, stores, so_far.hexdigest())

        corpus = read_corpus(collections, take, beside.each, beside.features, reached, show, block, beside.passed)
        settle()
    if not corpus.chunks:  # one error tells them all
        raise UsageError("nothing to embed: " + _refusals(corpus.rows))
    for rows in corpus.rows:
        _tell_read(rows, corpus, emit)
    digest = digest_of_texts(corpus.digests)
    for key, store in stores.items():
        tokens, seconds = int(store.full_lengths.sum()), round(spent[key], 3)
        emit(CorpusTokenised(list(wanted[key].models), len(store), tokens, seconds, digest))
    return corpus, stores


def _tell_read(rows: Rows, corpus: Corpus, emit: Emit) -> None:
    """Emit what was read of a collection, and what was refused."""
    refusals = rows.refusals
    for refusal in [*refusals.told, *(each for each in refusals.files if each not in refusals.told)]:
        emit(RecordRefused(collection=rows.collection.name, **asdict(refusal)))
    emit(
        CollectionRead(
            collection=rows.collection.name,
            qdrant_collection=rows.collection.qdrant_collection,
            files=len(rows.collection.files),
            chunks=rows.chunks,
            duplicates=rows.duplicates,
            refused=len(rows.refusals),
            borrows=corpus.owners(rows),
            reasons=dict(rows.refusals.reasons),
            records=rows.counts.records,
            same=rows.counts.same,
            renamed=rows.counts.renamed,
            refused_files=rows.refusals.broken,
            unread=rows.collection.unread.alike,
            seconds=round(rows.seconds, 3),
            elsewhere=rows.rest,
        )
    )
    for told in rows.counts.told(safe(rows.collection.name)):
        emit(Warned(message=told, collection=rows.collection.name))


def _refusals(corpus: Sequence[Rows]) -> str:
    """Why there is no chunk: the first places and reasons, each reason of a file once, with its records."""
    if every := sum(rows.elsewhere.chunks for rows in corpus):
        return f"shard {corpus[0].collection.shard} has none of {several(every, 'chunk')}: choose fewer shards"
    found: dict[tuple[str, str], tuple[str, list[str]]] = {}
    for rows in corpus:
        for refusal in (each for each in rows.refusals.told if each.reason != UNUSABLE):
            file = in_collection(rows.collection.name, refusal.file)
            _, records = found.setdefault((file, kind_of(refusal.reason)), (refusal.reason, []))
            records += [] if refusal.record is None else [f"{refusal.record:,}"]
    if not found:
        files = [in_collection(rows.collection.name, file) for rows in corpus for file in rows.collection.files]
        return f"{few(files)}: no record"
    shown = dict(islice(found.items(), FEW))
    every = sum(len(rows.refusals) - rows.refusals.reasons[UNUSABLE] for rows in corpus)
    left = every - sum(len(records[:FEW]) or 1 for _, records in shown.values())
    texts = [f"{file}{_records(records[:FEW])}: {reason}" for (file, _), (reason, records) in shown.items()]
    return "; ".join(texts) + f" (and {left:,} more)" * bool(left)


def _records(numbers: Sequence[str]) -> str:
    """Which records of a file are meant, or nothing for the whole of it."""
    return f" record{'s' * (len(numbers) > 1)} {', '.join(numbers)}" if numbers else ""
