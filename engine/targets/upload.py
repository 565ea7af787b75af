"""The way of a collection into a Qdrant server: prepare, send, count, compare, prune, index, and only then switch the
alias.

Each point goes in once, with all its vectors, in one upsert that is waited for. What is acknowledged is journaled, so
the same command goes on after any interruption, and says again that all is well where nothing is left to do; one that
is incremental looks at every digest instead. Nothing on the server is deleted: not a collection, not what an alias
meant before, and no point unless that is asked for, which means those of earlier uploads.
"""

import hashlib
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from interlock.engine.errors import InterlockError, UsageError
from interlock.engine.record import atomic
from interlock.engine.record.journal import UploadBinding, UploadJournal
from interlock.engine.record.words import several
from interlock.engine.targets.collection import PAGE, ServerCollection
from interlock.engine.targets.connection import MOST_STREAMS, TransientError
from interlock.engine.targets.files.exported import ExportedCollection
from interlock.engine.targets.indexing import IndexWait
from interlock.engine.targets.layout import key_of, mark_of, superseded, unclaimed, unindexed
from interlock.engine.targets.server import MANAGE, WRITE, Forbidden, QdrantServer
from interlock.engine.targets.target import MOST_POINTS, compare, deliver, lacking, prune
from interlock.engine.targets.upload_plan import (
    AVERAGE,
    UploadOptions,
    UploadReport,
    alias_before,
    as_held,
    as_sent,
    behind,
    create,
    differing,
    layout_of,
    shard_told,
    switch_alias,
    target_of,
    unplanned,
    unproved,
)
from interlock.engine.vectors.points import Point

if TYPE_CHECKING:
    from qdrant_client.models import CollectionInfo

SAMPLE = 100
"""Points that are read back whole."""


class CollectionUpload:
    """One collection on its way; `go` may be called once."""

    def __init__(
        self,
        collection: ExportedCollection,
        server: QdrantServer,
        options: UploadOptions,
        directory: Path,
        *,
        more: bool = False,
        progress: Callable[[int, int], object] = lambda done, rows: None,
        say: Callable[[str], object] = lambda text: None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """`directory` is where uploads have journals and reports, `more` says that others follow. `progress` hears how
        many rows of how many are there, `say` what else is worth knowing; `clock` and `sleep` wait for indexes."""
        self._collection, self._server, self._options, self._more = collection, server, options, more
        self._progress, self._say, self._clock, self._sleep = progress, say, clock, sleep
        self._layout = layout_of(collection, options)
        self._target = ServerCollection(server, target_of(collection, options), self._layout)
        place = hashlib.sha256(server.address.url.encode()).hexdigest()[:8]
        self._stem, self._sent = directory / f"{self._target.name}-{place}", 0
        self._key, self._others = key_of(collection.shards), dict[str, Any]()
        self._found: object = None
        """The mark that the collection had before."""
        self._marked = self._may_change = True
        """Whether it has the mark of this upload, and whether the key may change it."""

    def go(self) -> UploadReport:
        """Upload the collection and return what it came to, once that is verified.

        Raises UsageError for a server or a collection that does not fit, UnavailableError where the server does not
        answer for too long, InterlockError where what is there is not what was sent, or a file was changed meanwhile.
        """
        try:
            report = self._uploaded()
        except Exception:
            self._collection.check()  # whatever else went wrong, a file that was changed meanwhile is why
            raise
        text = msgspec.json.format(msgspec.json.encode(report), indent=2)
        atomic.write_bytes(self._stem.with_name(f"{self._stem.name}.json"), text + b"\n")
        return report

    def _uploaded(self) -> UploadReport:
        began, collection, target, options = self._clock(), self._collection, self._target, self._options
        url, alias, kind = self._server.address.url, options.alias, "-incremental" * options.incremental
        binding = UploadBinding(url, target.name, collection.fingerprint + kind, collection.rows, flags=options.flags)
        path = self._stem.with_name(f"{self._stem.name}.jsonl")
        with UploadJournal(path, binding, self._more) as journal, self._server.patience.noted_by(journal.note), target:
            version = self._server.version()
            previous = alias_before(self._server, target.name, alias)
            self._prepare(journal)
            collection = self._collection  # with the average length of what is there
            self._send(journal)
            # Acknowledged points may be gone although nobody else has marked the collection.
            if lacking(target, collection.ids(), target.most_ids) and journal.rows > self._sent + journal.unchanged:
                self._say(f"{target.name} has lost points since they were acknowledged: all are sent again")
                self._begin(journal)
                self._send(journal)
            compared = compare(collection.sampled(SAMPLE), target.read, payloads=True)
            if compared.faults:
                again = f"with{'out' * options.incremental} --incremental"  # either way all that differs is sent
                raise InterlockError(
                    f"{target.where} differs from the run ({next(iter(compared.faults.values()))}): check for "
                    f"another writer, then repeat it {again}, pass --alias NAME to upload beside it, or delete it there"
                )
            pruned, foreign = self._prune(journal)
            some = partial(as_sent, collection, SAMPLE, options)
            wait = IndexWait(self._server, target, options.settle, some, self._say, journal.stand)
            if gap := shard_told(self._server, target.name, self._described, collection):
                self._say(f"{gap}: its indexes and an alias wait for them")
            else:
                wait.until_built(self._described, self._clock, self._sleep)
            points = self._counted()  # indexes may take hours, and others do not wait for them
            self._check_mark(journal)
            collection.check()
            if alias and not gap:
                previous = switch_alias(self._server, alias, target.name, previous, self._say)
        return UploadReport(
            url=self._server.address.url,
            server_version=version,
            collection=target.name,
            alias="" if gap else alias,
            previous=previous if previous != target.name else "",
            run_id=collection.run_id,
            fingerprint=collection.fingerprint,
            rows=collection.rows,
            points=points,
            stale=0 if collection.shards else points - collection.rows,
            pruned=pruned,
            foreign=foreign,
            compared=compared.points,
            worst_cosine=compared.worst_cosine,
            sent=self._sent,
            transport=target.transport,
            requests=target.requests,
            retries=self._server.retries,
            bytes=target.bytes,
            seconds=round(self._clock() - began, 3),
            finished_at=datetime.now(UTC).isoformat(timespec="seconds"),
            configuration=self._layout.configuration,
            unproved=unproved(target.exact, self._marked),
            unchanged=journal.unchanged if options.incremental else None,
        )

    def _prepare(self, journal: UploadJournal) -> None:
        """Make the collection, or see that it is the one that it should be, has what was acknowledged, and that the key
        may do all that is to be done."""
        target, there = self._target, self._server.describe(self._target.name)
        if there is None and not create(self._server, target.name, self._layout):
            raise self._refused(f"may not make {target.name}, which is not there")
        there = there or self._described()
        self._layout.check(there, target.where)
        target.obey(there, self._collection.rows)
        if unclaimed(there):
            self._claim()
        for key, kind in self._layout.indexes.items():
            if key not in (there.payload_schema or {}):
                target.index(key, kind)
        own = self._collection.shards
        self._others = superseded(there, own.union if own else "")
        mark = self._found = mark_of(there, self._key).get("upload")
        if self._options.incremental:
            self._collection = as_held(self._collection, there)
            if there.points_count and AVERAGE not in mark_of(there, self._key):
                self._say(f"{target.name} was last uploaded without --incremental: points without a digest are sent")
            self._begin(journal)
        elif mark != journal.mark:
            if journal.rows:
                who = f"{target.name} has the mark of another upload"
                self._say(f"{who if mark else f'{target.name} has no mark of this upload'}: all rows are sent again")
            self._begin(journal)
        elif journal.rows and target.exact and target.count() < journal.rows:
            self._say(f"{target.name} has fewer points than it acknowledged: all are sent again")
            self._begin(journal)
        elif unindexed(there) or self._options.alias:
            self._mark(journal)  # what comes last takes the same right
        if self._marked and self._may_change:
            return
        if self._options.alias:
            raise self._refused("may not switch an alias, nor change a collection")
        if unindexed(there):
            raise self._refused(f"may not change {target.name}, which builds no index (m = 0)")

    def _claim(self) -> None:
        """Say of an empty collection that somebody else made what its points mean; all else of it stays."""
        try:
            self._server.change(self._target.name, metadata=self._layout.metadata)
        except Forbidden:
            raise self._refused(f"may not say in {self._target.name}, which is empty, what its points mean") from None
        self._say(f"{self._target.name} was made by somebody else and is empty: it is filled as it is")

    def _refused(self, what: str) -> UsageError:
        return UsageError(
            f"{self._server.address.url}: this key {what}: use one with {MANAGE}; once an upload without --alias was "
            f"made with it, later ones need {WRITE} alone"
        )

    def _begin(self, journal: UploadJournal) -> None:
        """Begin the journal anew, and mark the collection with it before any point goes there."""
        journal.restart()
        self._mark(journal)

    def _mark(self, journal: UploadJournal) -> None:
        """Mark the collection, unless the key may not; what then is not sure is told."""
        ours = self._collection
        told: dict[str, Any] = {"run": ours.run_id, "fingerprint": ours.fingerprint, "upload": journal.mark}
        if self._options.incremental:
            told[AVERAGE] = ours.bm25.average_length if ours.bm25 else 0.0
        if ours.shards:
            told["shards"] = msgspec.to_builtins(ours.shards)
        try:
            self._server.change(self._target.name, metadata={**self._others, self._key: told})
        except Forbidden:
            self._may_change, self._marked = False, self._found == journal.mark
        if self._marked:
            self._check_mark(journal)

    def _check_mark(self, journal: UploadJournal, *, written: bool = False) -> None:
        """Raise InterlockError where another upload has marked the collection. What was `written` since the last look
        may have gone over points of the other, so that one loses its mark too."""
        if not self._marked:
            return
        where, mark = self._target.where, dict[str, Any]()

        def look() -> None:
            nonlocal mark
            mark = mark_of(self._described(), self._key)
            if mark.get("upload") == self._found != journal.mark:
                raise TransientError(f"{self._target.name} does not show the mark of this upload yet")  # nor a peer

        with suppress(TransientError):
            self._server.patience.insist(look)
        if mark.get("upload") == journal.mark:
            return
        if not mark or mark.get("upload") == self._found:
            raise InterlockError(
                f"{where} does not keep the mark of this upload in its metadata: check who else changes that, then "
                "repeat the command"
            )
        if written:
            with suppress(Forbidden):
                ours = {**mark, "run": self._collection.run_id, "upload": ""}
                self._server.change(self._target.name, metadata={self._key: ours})
        who = f" (of run {mark['run']})" if "run" in mark else ""
        raise InterlockError(
            f"another upload{who} writes to {where}: wait for its end, then repeat the command, or pass "
            "--alias NAME to upload beside it"
        )

    def _described(self) -> "CollectionInfo":
        there = self._server.describe(self._target.name)
        if there is None:
            raise InterlockError(
                f"{self._target.name} is gone from {self._server.address.url}: check for another writer, then repeat "
                "the command"
            )
        return there

    def _send(self, journal: UploadJournal) -> None:
        """Send what is not acknowledged, or what differs, and note what is there."""
        rows, waiting = self._collection.rows, deque[int]()
        self._progress(journal.rows, rows)
        if journal.rows == rows:
            return

        def noted(points: Sequence[Point], _size: int) -> None:
            self._note(journal, [waiting.popleft() for _ in points][-1] + 1, written=True)
            if self._found and not self._marked and not self._sent:
                self._say(
                    f"{self._target.name} keeps the mark of another upload, which this key may not change: that one "
                    "takes these points for its own, so repeat it with --incremental alone, which compares each"
                )
            self._sent += len(points)

        self._target.choose_way(self._server.address.grpc_port(self._options.grpc_port), self._say)
        deliver(self._to_send(journal, waiting), self._target, noted, self._options.streams, self._server.patience.end)
        if journal.rows < rows:
            self._note(journal, rows, written=False)

    def _to_send(self, journal: UploadJournal, waiting: deque[int]) -> Iterator[Point]:
        """Yield the points that are not acknowledged, or of all those that differ; the rows of these are `waiting`."""
        first, collection, target = journal.rows, self._collection, self._target
        late = MOST_STREAMS * MOST_POINTS * (self._found == journal.mark)  # sent before a kill, and perhaps not noted
        points = differing(collection, target) if self._options.incremental else behind(collection, target, first, late)
        for row, point in enumerate(points, first):
            if point:
                waiting.append(row)
                yield point
            else:
                journal.unchanged += 1
            if row % PAGE == PAGE - 1 and not waiting:
                self._note(journal, row + 1, written=False)

    def _note(self, journal: UploadJournal, rows: int, *, written: bool) -> None:
        """Note that all rows before `rows` are there, if nobody else has marked the collection meanwhile."""
        self._check_mark(journal, written=written)
        self._collection.check()  # what was sent was read before, so that it was right if it is now
        with self._server.patience.turn:
            journal.acknowledge(rows)
        self._progress(rows, self._collection.rows)

    def _counted(self) -> int:
        """How many points there are, of which all rows are some. Raises InterlockError where they are not."""
        target, rows = self._target, self._collection.rows
        missing, points = lacking(target, self._collection.ids(), target.most_ids), target.count()
        if not target.exact:
            points = max(points, rows)
        if missing := max(missing, rows - points):
            raise InterlockError(
                f"{target.where} lacks {several(missing, 'point')} of {rows:,} that it acknowledged: check for "
                "another writer, then repeat the command"
            )
        return points

    def _prune(self, journal: UploadJournal) -> tuple[int, int | None]:
        """Remove points of earlier uploads that are not of the run, if that is asked for: how many there were, and how
        many are somebody else's."""
        if not self._options.prune:
            return 0, None
        if self._collection.unread:
            self._say(
                f"{self._target.where} may hold points of chunks that are gone; {self._collection.unread}, so none was "
                "removed: fix those, then run and upload again"
            )
            return 0, None
        self._check_mark(journal)
        pages = unplanned(self._target, self._collection)
        return prune(self._target, pages, self._target.most_ids, lambda: self._check_mark(journal, written=True))
