"""The way of a collection into a Qdrant server: prepare, send, count, compare, index, and only then switch the alias.

Each point goes in once, with all its vectors, in one upsert that is waited for. What is acknowledged is journaled, so
the same command goes on after any interruption, and says again that all is well where nothing is left to do. Nothing on
the server is deleted: not a collection, not what an alias meant before, and no point unless that is asked for, which
means those of earlier uploads.
"""

import hashlib
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from interlock.engine.errors import InterlockError, UnavailableError, UsageError
from interlock.engine.record import atomic
from interlock.engine.record.words import several
from interlock.engine.targets.bodies import MOST_BYTES, MOST_POINTS, UpsertBody
from interlock.engine.targets.checking import Compared, compare
from interlock.engine.targets.exported import ExportedCollection
from interlock.engine.targets.layout import INDEXED, MARK, UNINDEXED
from interlock.engine.targets.planning import check_fits, layout_of, limits_of, meaning, parts, target_of
from interlock.engine.targets.pruning import others
from interlock.engine.targets.report import UploadHearing, UploadOptions, UploadReport
from interlock.engine.targets.sent import UploadBinding, UploadJournal
from interlock.engine.targets.server import QdrantServer, TooLarge
from interlock.engine.targets.upserts import Upserts

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
        hearing: UploadHearing,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """`directory` is where uploads have journals and reports; `clock` and `sleep` are for the wait for indexes."""
        self._collection, self._server, self._options = collection, server, options
        self._hearing, self._clock, self._sleep = hearing, clock, sleep
        self._layout, self.target = layout_of(collection, options), target_of(collection, options)
        place = hashlib.sha256(server.address.url.encode()).hexdigest()[:8]
        self._stem = directory / f"{self.target}-{place}"
        self._where = f"{self.target} on {server.address.url}"
        self._upserts = Upserts(server, self.target, options.grpc_port, hearing.told)
        self._limit, self._sent, self._requests, self._bytes = MOST_BYTES, 0, 0, 0

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
        began = self._clock()
        version = self._server.version()
        previous = meaning(self._server, self.target, self._options.alias)
        binding = UploadBinding(
            self._server.address.url, self.target, self._collection.fingerprint, self._collection.rows
        )
        with UploadJournal(self._stem.with_name(f"{self._stem.name}.jsonl"), binding) as journal, self._upserts:
            limits = self._prepare(journal)
            self._send(journal, limits)
            if self._lacking(limits) and journal.rows > self._sent:
                self._hearing.told(f"{self.target} has lost points since they were acknowledged: all are sent again")
                self._begin(journal)
                self._send(journal, limits)
            compared = self._compare()
            pruned, foreign = self._prune(journal, limits)
            self._index()
            points = self._counted(limits)  # indexes may take hours, and others do not wait for them
            self._check_mark(journal)
            self._collection.check()
            if self._options.alias:
                previous = self._switch(previous)
        return UploadReport(
            url=self._server.address.url,
            server_version=version,
            collection=self.target,
            alias=self._options.alias,
            previous=previous if previous != self.target else "",
            run_id=self._collection.run_id,
            fingerprint=self._collection.fingerprint,
            rows=self._collection.rows,
            points=points,
            stale=points - self._collection.rows,
            pruned=pruned,
            foreign=foreign,
            compared=compared.points,
            worst_cosine=compared.worst_cosine,
            sent=self._sent,
            transport=self._upserts.transport,
            requests=self._requests,
            retries=self._server.retries,
            bytes=self._bytes,
            seconds=round(self._clock() - began, 3),
            finished_at=datetime.now(UTC).isoformat(timespec="seconds"),
            configuration=self._layout.request,
        )

    def _prepare(self, journal: UploadJournal) -> Mapping[str, Any]:
        """Make the collection, or see that it is the one that it should be; the limits that it sets."""
        there = self._server.describe(self.target)
        if there is None:
            try:
                self._server.create(self.target, self._layout.request)
            except InterlockError:  # an attempt whose answer was lost may have made it
                there = self._server.describe(self.target)
                if there is None:
                    raise
        there = there or self._described()
        check_fits(self._layout, there, self._where)
        limits = limits_of(there)
        if (most := limits.get("max_points_count")) and most < self._collection.rows:
            raise UsageError(
                f"{self.target} takes {several(most, 'point')} in strict mode, and {self._collection.rows:,} are to be "
                "uploaded: raise its max_points_count"
            )
        for key, kind in self._layout.indexes.items():
            if key not in (there.get("payload_schema") or {}):
                self._server.index(self.target, key, kind)
        if self._mark_of(there).get("upload") != journal.mark:
            if journal.rows:
                self._hearing.told(f"another upload has written to {self.target} since: all rows are sent again")
            self._begin(journal)
        elif journal.rows and self._server.count(self.target) < journal.rows:
            self._hearing.told(f"{self.target} has fewer points than it acknowledged: all are sent again")
            self._begin(journal)
        return limits

    def _begin(self, journal: UploadJournal) -> None:
        """Begin the journal anew, and mark the collection with it before any point goes there."""
        journal.restart()
        told = {"run": self._collection.run_id, "fingerprint": self._collection.fingerprint, "upload": journal.mark}
        self._server.change(self.target, {"metadata": {MARK: told}})

    def _mark_of(self, there: Mapping[str, Any]) -> Mapping[str, Any]:
        """What the latest upload has left in the metadata."""
        found = (there["config"].get("metadata") or {}).get(MARK)
        return found if isinstance(found, dict) else {}

    def _check_mark(self, journal: UploadJournal, *, written: bool = False) -> None:
        """Raise InterlockError where another upload has marked the collection. What was `written` since the last look
        may have gone over points of the other, so that one loses its mark too."""
        mark = self._mark_of(self._described())
        if mark.get("upload") == journal.mark:
            return
        if written:
            self._server.change(self.target, {"metadata": {MARK: None}})
        who = f" (of run {mark['run']})" if "run" in mark else ""
        raise InterlockError(
            f"another upload{who} writes to {self.target} on {self._server.address.url}: wait for its end, then repeat "
            "the command, or pass --alias NAME to upload beside it"
        )

    def _described(self) -> dict[str, Any]:
        there = self._server.describe(self.target)
        if there is None:
            raise InterlockError(
                f"{self.target} is gone from {self._server.address.url}: check for another writer, then repeat the "
                "command"
            )
        return there

    def _send(self, journal: UploadJournal, limits: Mapping[str, Any]) -> None:
        """Send what is not acknowledged, and note what is."""
        most = min(MOST_POINTS, limits.get("upsert_max_batchsize") or MOST_POINTS)
        rows = self._collection.rows
        self._hearing.progress(journal.rows, rows)
        if journal.rows == rows:
            return
        for body in self._upserts.bodies(lambda: self._collection.points(journal.rows), most, lambda: self._limit):
            for part in self._accepted(body):
                self._check_mark(journal, written=True)
                self._collection.check()  # what was sent was read before, so that it was right if it is now
                journal.acknowledge(journal.rows + len(part.points))
                self._sent += len(part.points)
                self._hearing.progress(journal.rows, rows)

    def _accepted(self, body: UpsertBody) -> Iterator[UpsertBody]:
        """Send a body, in pieces where it is too large for the server; each piece that is there now. It ends where the
        rest has to go another way."""
        try:
            if not self._upserts.send(body):
                return
        except TooLarge:
            first, second = body.halves()
            if not first.points:
                raise
            self._limit = min(self._limit, body.size // 2)
            yield from self._accepted(first)
            yield from self._accepted(second)
            return
        self._requests, self._bytes = self._requests + 1, self._bytes + body.size
        yield body

    def _lacking(self, limits: Mapping[str, Any]) -> int:
        """How many of the run's rows the collection has not, by their ids. Raises InterlockError for an impossible
        count."""
        lacking = 0
        for ids in self._collection.ids():
            for part in parts(ids, limits):
                found = self._server.count(self.target, part)
                if found > len(part):
                    raise InterlockError(
                        f"{self._where} counts {several(found, 'point')} that have one of {len(part):,} ids: fix "
                        "that on the server, then repeat the command"
                    )
                lacking += len(part) - found
        return lacking

    def _counted(self, limits: Mapping[str, Any]) -> int:
        """How many points there are, of which all rows are some. Raises InterlockError where they are not."""
        lacking, rows = self._lacking(limits), self._collection.rows
        points = self._server.count(self.target)
        if lacking := max(lacking, rows - points):
            raise InterlockError(
                f"{self._where} lacks {several(lacking, 'point')} of {rows:,} that it acknowledged: check for another "
                "writer, then repeat the command"
            )
        return points

    def _compare(self) -> Compared:
        """See that a sample is as it was exported."""
        seen, worst = 0, list[float]()
        for window in _in_tens(self._collection.sampled(SAMPLE)):
            compared = compare(window, self._server.retrieve(self.target, [point.id for point in window]))
            if compared.fault:
                raise InterlockError(
                    f"{self._where} differs from the run ({compared.fault}): check for another writer, then pass "
                    "--alias NAME to upload beside it, or delete it there"
                )
            seen += compared.points
            worst += [compared.worst_cosine] if compared.worst_cosine is not None else []
        return Compared(seen, min(worst, default=None), "")

    def _prune(self, journal: UploadJournal, limits: Mapping[str, Any]) -> tuple[int, int | None]:
        """Remove points of earlier uploads that are not of the run, if that is asked for: how many there were, and how
        many are somebody else's. Each page is counted before and after."""
        if not self._options.prune:
            return 0, None
        if self._collection.unread:
            self._hearing.told(
                f"{self._where} may hold points of chunks that are gone; {self._collection.unread}, so none was "
                "removed: fix those, then run and upload again"
            )
            return 0, None
        self._check_mark(journal)
        pruned = foreign = 0
        for page in others(self._server, self.target, self._collection, limits):
            foreign += page.foreign
            if page.stale:
                self._server.remove(self.target, page.stale)
                self._check_mark(journal, written=True)
                if left := sum(self._server.count(self.target, part) for part in parts(page.stale, limits)):
                    raise InterlockError(
                        f"{self._where} still has {left:,} of {several(len(page.stale), 'point')} that were removed: "
                        "check for another writer, then repeat the command"
                    )
                pruned += len(page.stale)
        return pruned, foreign

    def _index(self) -> None:
        """Have the indexes built that were put off, and wait until they are."""
        there = self._described()
        if _unindexed(there):
            self._server.change(self.target, {"hnsw_config": INDEXED})
            there = self._described()
        began, pause = self._clock(), POLLS[0]
        while there.get("status") != "green" or _unindexed(there):
            status = there.get("status")
            if status == "red":
                raise InterlockError(
                    f"{self._where} failed to build its indexes ({there.get('optimizer_status')}): fix that on the "
                    "server, then repeat the command"
                )
            if self._clock() - began > self._options.settle:
                state = "m = 0, as it was made" if _unindexed(there) else status
                raise UnavailableError(
                    f"{self._where} has all its points, and its indexes are not built after {self._options.settle:g} s "
                    f"({state}): wait on with the same command, or raise --settle"
                )
            self._sleep(pause)
            pause = min(POLLS[1], 2 * pause)
            there = self._described()

    def _switch(self, before: str) -> str:
        """Let the alias mean the collection, and see that it does; what it meant until then. `before` is what it meant
        when the upload began."""
        alias = self._options.alias
        meant = self._server.aliases().get(alias, "")
        if meant != before:
            self._hearing.told(
                f"{alias} was switched from {before or 'nothing'} to {meant or 'nothing'} while this upload went on"
            )
        if meant != self.target:
            self._server.point_alias(alias, self.target, anew=bool(meant))
            if (now := self._server.aliases().get(alias, "")) != self.target:
                raise InterlockError(
                    f"alias {alias} means {now or 'nothing'} on {self._server.address.url}, not {self.target}: check "
                    "for who else switches it, then repeat the command"
                )
        return meant


def _unindexed(there: Mapping[str, Any]) -> bool:
    return bool((there["config"].get("hnsw_config") or {}).get("m") == UNINDEXED["m"])


def _in_tens(points: Iterator[Any]) -> Iterator[list[Any]]:
    window: list[Any] = []
    for point in points:
        window.append(point)
        if len(window) == 10:
            yield window
            window = []
    if window:
        yield window
