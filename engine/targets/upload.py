"""The way of a collection into a Qdrant server: prepare, send, count, compare, prune, index, and only then switch the
alias.

Each point goes in once, with all its vectors, in one upsert that is waited for. What is acknowledged is journaled, so
the same command goes on after any interruption, and says again that all is well where nothing is left to do. Nothing on
the server is deleted: not a collection, not what an alias meant before, and no point unless that is asked for, which
means those of earlier uploads.
"""

import hashlib
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from interlock.engine.errors import InterlockError, UnavailableError, UsageError
from interlock.engine.record import atomic
from interlock.engine.record.words import several
from interlock.engine.targets.collection import INDEXED, MARK, UNINDEXED, ServerCollection
from interlock.engine.targets.files.exported import ExportedCollection
from interlock.engine.targets.server import QdrantServer
from interlock.engine.targets.target import compare, deliver, lacking, prune
from interlock.engine.targets.upload_plan import (
    UploadBinding,
    UploadJournal,
    UploadOptions,
    UploadReport,
    alias_before,
    layout_of,
    target_of,
    unplanned,
)
from interlock.engine.vectors.points import Point

if TYPE_CHECKING:
    from qdrant_client.models import CollectionInfo

SAMPLE = 100
"""Points that are read back whole."""
POLLS = (0.2, 5.0)
"""Seconds between two looks at a collection that builds its indexes: the first pause, and the longest."""


class CollectionUpload:
    """One collection on its way; `go` may be called once."""

    def __init__(
        self,
        collection: ExportedCollection,
        server: QdrantServer,
        options: UploadOptions,
        directory: Path,
        *,
        progress: Callable[[int, int], object] = lambda done, rows: None,
        say: Callable[[str], object] = lambda text: None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """`directory` is where uploads have journals and reports; `progress` hears how many rows of how many are there,
        `say` in words what else is worth knowing; `clock` and `sleep` are for the wait for indexes."""
        self._collection, self._server, self._options = collection, server, options
        self._progress, self._say, self._clock, self._sleep = progress, say, clock, sleep
        self._layout = layout_of(collection, options)
        self._target = ServerCollection(server, target_of(collection, options), self._layout)
        place = hashlib.sha256(server.address.url.encode()).hexdigest()[:8]
        self._stem, self._sent = directory / f"{self._target.name}-{place}", 0

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
        began, collection, target, alias = self._clock(), self._collection, self._target, self._options.alias
        version = self._server.version()
        previous = alias_before(self._server, target.name, alias)
        binding = UploadBinding(self._server.address.url, target.name, collection.fingerprint, collection.rows)
        with UploadJournal(self._stem.with_name(f"{self._stem.name}.jsonl"), binding) as journal, target:
            self._prepare(journal)
            self._send(journal)
            # Acknowledged points may be gone although nobody else has marked the collection.
            if lacking(target, collection.ids(), target.most_ids) and journal.rows > self._sent:
                self._say(f"{target.name} has lost points since they were acknowledged: all are sent again")
                self._begin(journal)
                self._send(journal)
            compared = compare(collection.sampled(SAMPLE), target.read, payloads=True)
            if compared.faults:
                raise InterlockError(
                    f"{target.where} differs from the run ({next(iter(compared.faults.values()))}): check for another "
                    "writer, then pass --alias NAME to upload beside it, or delete it there"
                )
            pruned, foreign = self._prune(journal)
            self._index()
            points = self._counted()  # indexes may take hours, and others do not wait for them
            self._check_mark(journal)
            collection.check()
            if alias:
                previous = self._switch(previous)
        return UploadReport(
            url=self._server.address.url,
            server_version=version,
            collection=target.name,
            alias=alias,
            previous=previous if previous != target.name else "",
            run_id=collection.run_id,
            fingerprint=collection.fingerprint,
            rows=collection.rows,
            points=points,
            stale=points - collection.rows,
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
        )

    def _prepare(self, journal: UploadJournal) -> None:
        """Make the collection, or see that it is the one that it should be, and that it has what was acknowledged."""
        target = self._target
        there = self._server.describe(target.name)
        if there is None:
            try:
                self._server.create(target.name, self._layout.request)
            except InterlockError:  # an attempt whose answer was lost may have made it
                there = self._server.describe(target.name)
                if there is None:
                    raise
        there = there or self._described()
        self._layout.check(there, target.where)
        limits = target.obey(there)
        if limits and (most := limits.max_points_count) and most < self._collection.rows:
            raise UsageError(
                f"{target.name} takes {several(most, 'point')} in strict mode, and {self._collection.rows:,} are to be "
                "uploaded: raise its max_points_count"
            )
        for key, kind in self._layout.indexes.items():
            if key not in (there.payload_schema or {}):
                target.index(key, kind)
        if _mark_of(there).get("upload") != journal.mark:
            if journal.rows:
                self._say(f"another upload has written to {target.name} since: all rows are sent again")
            self._begin(journal)
        elif journal.rows and target.count() < journal.rows:
            self._say(f"{target.name} has fewer points than it acknowledged: all are sent again")
            self._begin(journal)

    def _begin(self, journal: UploadJournal) -> None:
        """Begin the journal anew, and mark the collection with it before any point goes there."""
        journal.restart()
        told = {"run": self._collection.run_id, "fingerprint": self._collection.fingerprint, "upload": journal.mark}
        self._server.change(self._target.name, metadata={MARK: told})

    def _check_mark(self, journal: UploadJournal, *, written: bool = False) -> None:
        """Raise InterlockError where another upload has marked the collection. What was `written` since the last look
        may have gone over points of the other, so that one loses its mark too."""
        mark = _mark_of(self._described())
        if mark.get("upload") == journal.mark:
            return
        if written:
            self._server.change(self._target.name, metadata={MARK: None})
        who = f" (of run {mark['run']})" if "run" in mark else ""
        raise InterlockError(
            f"another upload{who} writes to {self._target.where}: wait for its end, then repeat the command, or pass "
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
        """Send what is not acknowledged, and note what is."""
        rows = self._collection.rows
        self._progress(journal.rows, rows)
        if journal.rows == rows:
            return

        def acknowledge(points: Sequence[Point], _size: int) -> None:
            self._check_mark(journal, written=True)
            self._collection.check()  # what was sent was read before, so that it was right if it is now
            journal.acknowledge(journal.rows + len(points))
            self._sent += len(points)
            self._progress(journal.rows, rows)

        self._target.choose_way(self._server.address.grpc_port(self._options.grpc_port), self._say)
        deliver(self._collection.points(journal.rows), self._target, acknowledge)

    def _counted(self) -> int:
        """How many points there are, of which all rows are some. Raises InterlockError where they are not."""
        target, rows = self._target, self._collection.rows
        missing, points = lacking(target, self._collection.ids(), target.most_ids), target.count()
        if missing := max(missing, rows - points):
            raise InterlockError(
                f"{target.where} lacks {several(missing, 'point')} of {rows:,} that it acknowledged: check for another "
                "writer, then repeat the command"
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

    def _index(self) -> None:
        """Have the indexes built that were put off, and wait until they are."""
        from qdrant_client.models import HnswConfigDiff

        where, there = self._target.where, self._described()
        if _unindexed(there):
            self._server.change(self._target.name, hnsw_config=HnswConfigDiff(m=INDEXED))
            there = self._described()
        began, pause = self._clock(), POLLS[0]
        while (status := there.status.value) != "green" or _unindexed(there):
            if status == "red":
                raise InterlockError(
                    f"{where} failed to build its indexes ({there.optimizer_status}): fix that on the server, then "
                    "repeat the command"
                )
            if self._clock() - began > self._options.settle:
                state = "m = 0, as it was made" if _unindexed(there) else status
                raise UnavailableError(
                    f"{where} has all its points, and its indexes are not built after {self._options.settle:g} s "
                    f"({state}): wait on with the same command, or raise --settle"
                )
            self._sleep(pause)
            pause = min(POLLS[1], 2 * pause)
            there = self._described()

    def _switch(self, before: str) -> str:
        """Let the alias mean the collection, and see that it does; what it meant until then. `before` is what it meant
        when the upload began."""
        alias, name = self._options.alias, self._target.name
        meant = self._server.aliases().get(alias, "")
        if meant != before:
            self._say(
                f"{alias} was switched from {before or 'nothing'} to {meant or 'nothing'} while this upload went on"
            )
        if meant != name:
            self._server.point_alias(alias, name, anew=bool(meant))
            if (now := self._server.aliases().get(alias, "")) != name:
                raise InterlockError(
                    f"alias {alias} means {now or 'nothing'} on {self._server.address.url}, not {name}: check for who "
                    "else switches it, then repeat the command"
                )
        return meant


def _mark_of(there: "CollectionInfo") -> dict[str, Any]:
    """What the latest upload has left in the metadata."""
    found = (there.config.metadata or {}).get(MARK)
    return found if isinstance(found, dict) else {}


def _unindexed(there: "CollectionInfo") -> bool:
    return bool(there.config.hnsw_config and there.config.hnsw_config.m == UNINDEXED)
