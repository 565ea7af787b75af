"""Chunk files as a stream of chunks and refusals, each chunk with its payload and an identity that stays the same."""

import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any, TypeVar

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from interlock.engine.corpus.collections import Collection
from interlock.engine.corpus.counts import Counts
from interlock.engine.corpus.features import Features, no_features
from interlock.engine.corpus.forms import form_of
from interlock.engine.corpus.identity import (
    UNUSED,
    IdentityMaker,
    Partition,
    digest_of,
    joined,
    large_in,
    named,
    partitions_above,
)
from interlock.engine.corpus.naming import BEIR, TEXTS, Naming, Said, found_in, looked_up, other, spelt, unnamed
from interlock.engine.corpus.records import TOO_DEEP, cause, depth_of, records
from interlock.engine.errors import UsageError
from interlock.engine.record.facts import Refusal
from interlock.engine.record.words import safe

NOTHING = Said()
MAX_DEPTH = 110  # the store takes deeper metadata, but never gives it back
RECORD = "record"
"""The name in a payload under which a record's other fields are kept."""
NAME = 60
"""Signs of a name that are told."""
EMPTY, NULL = "the text is empty", "null in place of a text"
"""Of a true record: an empty page, say."""
HEADLESS = "; the first line names the columns: where it is a record, put one with names above it"
"""Of a table of cells, behind that it lacks a field."""
UNUSABLE = "none of its records can be used"
"""Of a file, behind the refusals of its records."""
_KINDS = {str: "a string", list: "a list", int: "a number", float: "a number", bool: "a boolean", type(None): "null"}
_AT_A_STRING = re.compile("truncated|escape|surrogate")

DUMPED = ("lc", "type", "id", "name", "repr", "graph", "kwargs")
"""What LangChain dumps of an object."""
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Chunk:
    """One text with its payload (its metadata, a JSON object as it stood in the file) and its identity.

    `record` is a JSON object of the record's other fields; empty where it has none. `features` are the terms that it
    brings, if they are asked for.
    """

    text: str
    payload: bytes
    chunk_id: str
    source: str
    point_id: str
    record: bytes = b""
    features: bytes = b""

    @property
    def whole_payload(self) -> bytes:
        """The payload with the other fields in it under `record`, or `record_` where the metadata has that name."""
        if not self.record:
            return self.payload
        fields, name = msgspec.json.decode(self.payload, type=dict[str, Raw]), RECORD
        while name in fields:
            name += "_"
        return msgspec.json.encode(fields | {name: Raw(self.record)})


def parted(whole: bytes) -> tuple[bytes, bytes]:
    """Part a whole payload into payload and record, as a chunk has them. Metadata that itself ends in an object of that
    name is taken for a record."""
    if b'"' + RECORD.encode() not in whole:
        return whole, b""
    fields = msgspec.json.decode(whole, type=dict[str, Raw])
    last = next(reversed(fields), "")
    taken = [RECORD + "_" * each for each in range(len(last) - len(RECORD))]
    added = last.rstrip("_") == RECORD and all(name in fields for name in taken)
    if not added or not bytes(fields[last]).startswith(b"{"):
        return whole, b""
    record = bytes(fields.pop(last))
    return msgspec.json.encode(fields), record


class _Record(Struct):
    text: str
    metadata: Raw | UnsetType = UNSET


class _Plain(_Record, forbid_unknown_fields=True):
    """A record without other fields, as most are."""


class ChunkReader:
    """Reads one collection, always in the same order; `hashes` gets a file's SHA-256 once its end has been read, and
    `counts` what it found: of a shard its own, while `elsewhere` has what others count. All of them tell of each file
    that is refused, and `passed` gets the texts of others, to say how many words they have."""

    def __init__(
        self, collection: Collection, features: Features = no_features, passed: Callable[[str], int] = lambda _: 0
    ) -> None:
        self.collection, self._features, self._passed = collection, features, passed
        self.hashes: dict[str, str] = {}
        self.counts, self.elsewhere = Counts(), Counts()
        self.place: tuple[str, int] = "", 0
        """The file and the record that were read last."""
        self.identities = IdentityMaker(collection.qdrant_collection, by_ordinal=collection.by_ordinal)
        self._bad: tuple[bytes | None, str] = (None, "")
        self._partitions = list[tuple[str, str | None]]()  # what the directories above the file say
        self._without_id = False
        self._example = b""  # what the first record has beside its text

    @property
    def read(self) -> int:
        """How many records were read so far, whosever they are."""
        return self.counts.records + self.elsewhere.records

    def __iter__(self) -> Iterator[Chunk | Refusal]:
        yield from self.collection.refusals
        for name in self.collection.files:
            yield from self._of_file(name)
        title = self.collection.naming.title
        if title and self._example and not self.counts.titled and self.collection.naming != BEIR:
            place = f"{safe(self.collection.name, NAME)}: none of its {self.read:,} records"
            fields = _decode(self._example, dict[str, Raw])
            raise UsageError(
                f"{place} has a field {title!r}{found_in(fields)}: name the one with the title, such as "
                f"{other('--title-field', fields, title)}, or drop --title-field"
            )

    def _of_file(self, name: str) -> Iterator[Chunk | Refusal]:
        path, within = self.collection.root / name, self.collection.within
        form = form_of(name)
        assert form, f"{name} is no file of texts"
        naming = replace(self.collection.naming, usual_ids=form.usual_ids)
        # One was taken; the file itself is refused; one is refused for more than no text, has one, is no object.
        used = whole = odd = filled = alien = False
        count = 0
        self._partitions = partitions_above(path, within)
        self._without_id = not (naming.id or naming.usual_ids or any(self.counts.unused))
        note, beside = partial(self.hashes.__setitem__, name), partial(self._note_beside, name)
        for number, data in records(path, within, note, naming.texts, beside):
            self.place = name, number or 0
            if form.is_table and number == 1 and (lack := _lack(data, naming)):  # so lacks each row below it
                yield Refusal(name, None, lack + HEADLESS * (form.layout == "cells"))
                return
            count += number is not None
            found = Refusal(name, number, data) if isinstance(data, str) else self._read(name, number, data, naming)
            if isinstance(found, Refusal):
                whole, odd = whole or number is None, odd or found.reason != EMPTY
                filled = filled or not found.reason.startswith((EMPTY, NULL))
                alien = alien or data[:1] not in (b"{", "")
                if number is not None:
                    counts = self._counts_of(f"{self.collection.name}/{name}/{number}")
                    counts.records += 1
                    counts.refused += 1
                    found = found if counts is self.counts else None
            else:
                used = True
            if found is not None:
                yield found
        lost = count and not (used or whole)
        hint = naming.instead(_fields(self._bad[0], naming)) if lost and not filled and self._bad[0] else ""
        if hint or (lost and odd and (count > 1 or alien)):  # a file is lost, whatever its lines are taken for
            yield Refusal(name, None, UNUSABLE + hint)

    def _note_beside(self, file: str, fields: str) -> None:
        self.counts.beside = self.counts.beside or f"{safe(file, NAME)} ({safe(fields, 2 * NAME)})"

    def _read(self, file: str, number: int | None, data: bytes, naming: Naming) -> Chunk | Refusal | None:
        """The chunk that a record is, or why it is none; bad records are often millions of the same. None: it was there
        before, or falls to another shard."""
        if data == self._bad[0]:
            return Refusal(file, number, self._bad[1])
        try:
            return self._chunk(file, number, *_parted(data, naming, self._partitions))
        except _Refused as refused:
            self._bad = data, str(refused)
            return Refusal(file, number, str(refused))

    def _chunk(self, file: str, number: int | None, record: "_Record", others: bytes, said: Said) -> Chunk | None:
        """The chunk with its payload and identity; `others` are its fields beside text and metadata, as an object."""
        if not (record.text.strip() or said.title):
            raise _Refused(EMPTY)
        payload = b"{}" if record.metadata is UNSET else bytes(record.metadata)
        payload = b"{}" if payload == b"null" else payload
        if not payload.startswith(b"{"):
            raise _Refused("metadata is not an object")
        fields = list[dict[str, object]]()
        for kept in filter(None, (payload, others)):  # refuse what not every reader of a delivered payload could take
            if kept.count(b"{") + kept.count(b"[") > MAX_DEPTH and depth_of(kept) > MAX_DEPTH:
                raise _Refused(TOO_DEEP)
            fields.append(_decode(kept, dict, "$.metadata" if kept is payload else "$"))
            if not self.counts.large and (large := large_in(kept, fields[-1])):
                self.counts.large = f"{safe(large, NAME)} of {safe(file, NAME)} record {number:,}"
        try:
            features = self._features(payload, others)
        except ValueError as error:
            raise _Refused(str(error)) from None
        bare = not record.text.strip()
        text = said.title if bare else f"{said.title} {record.text}" if said.title else record.text
        counts = self._counts_of(text)
        counts.records += 1
        known = self.identities.of(file, record.text, *fields, own=said.id, beside=self._partitions)
        if known is None:
            counts.same += 1
            return None
        among = fields[-1] if self._without_id and others and "chunk_id" not in fields[0] else {}
        unused = next((name for name in UNUSED if named(among.get(name))), "") if among else ""
        beside = (others, fields[-1] if others else {}, self._partitions)
        others, unlike = joined(*beside) if self._partitions else (others, "")
        place = f"{safe(file, NAME)} record {number:,}" if bare or known.given or unused or unlike else ""
        counts.unlike = counts.unlike or (unlike and f"{unlike} of {place}")
        if unused:
            counts.unused, self._without_id = (unused, place), False
        if known.given:
            given, source, now = (safe(each, NAME) for each in (known.given, known.source, known.chunk_id))
            counts.renamed += 1
            counts.first = counts.first or f"{place}: chunk_id {given} of {source} is now {now}"
        self.counts.titled += said.titled  # which none may have, whosever they are
        counts.bare += bare
        counts.first_bare = counts.first_bare or place * bare
        self._example = self._example or others or payload
        if counts is self.elsewhere:
            counts.words += self._passed(text)
            return None
        return Chunk(text, payload, known.chunk_id, known.source, known.point_id, others, features)

    def _counts_of(self, text: str) -> Counts:
        """Where a record with this text, or by which else it is known, is counted."""
        shard = self.collection.shard
        return self.counts if shard is None or shard.has(digest_of(text)) else self.elsewhere


class _Refused(Exception):
    """Why a record is left out."""


def _parted(data: bytes, naming: Naming, above: Sequence[Partition]) -> tuple[_Record, bytes, Said]:
    """The text and the metadata of a record, its other fields as an object, and what it and directories say of it."""
    if not naming.given and not naming.usual_ids:
        try:
            return msgspec.json.decode(data, type=_Plain), b"", NOTHING
        except (ValueError, RecursionError):
            pass
    raw = _fields(data, naming)
    given = bytes(raw.pop(naming.text or "text"))
    alone = given == b"null" and naming.title  # as an empty cell of a CSV file
    text = "" if alone else _decode(given, str, f"$.{naming.text or 'text'}")
    # In a table a column may be called so and hold anything.
    column = naming.usual_ids and bytes(raw.get("metadata", b"{"))[:1] not in (b"{", b"n")
    record = _Record(text, UNSET if column else raw.pop("metadata", UNSET))
    return record, msgspec.json.encode(raw) if raw else b"", _said(raw, record.metadata, naming, above)


def _said(fields: dict[str, Raw], metadata: Raw | UnsetType, naming: Naming, above: Sequence[Partition]) -> Said:
    """Raises _Refused for a record without the id that is asked for by name."""
    if not (naming.id or naming.title or naming.usual_ids):
        return NOTHING
    inner = dict[str, Raw]()
    if metadata is not UNSET and bytes(metadata)[:1] == b"{":
        inner = _decode(bytes(metadata), dict[str, Raw], "$.metadata")
    given = naming.id_in(fields, inner)
    own = named(_decode(bytes(given), object)) if given else ""
    if naming.id and not own:
        name, there = safe(naming.id, NAME), found_in(inner | fields)
        if given and naming != BEIR:
            raise _Refused(f'field "{name}" is empty or not an id: give this record one, or drop --id-field')
        no_title = naming != BEIR and naming.title not in ("", *inner, *fields, *dict(above))
        also = f', nor "{safe(naming.title, NAME)}" with a title' * no_title
        such = f", such as {other('--id-field', inner | fields, naming.id)}" if there else ""
        otherwise = "" if naming == BEIR else f", name another{such}, or drop --id-field"
        raise _Refused(f'no field "{name}" with an id{also}{there}: add it{otherwise}')
    if naming.title:
        inner = {name: Raw(msgspec.json.encode(value)) for name, value in above} | inner
    title = looked_up(fields, inner, naming.title) if naming.title else None
    told = _decode(bytes(title), str, f"$.{naming.title}").strip() if title else ""
    return Said(own, told, any(spelt(naming.title, each) in each for each in (fields, inner)))


def _fields(data: bytes, naming: Naming) -> dict[str, Raw]:
    """The fields of a record by name. Raises _Refused where it is no object, or one without a text."""
    wanted = naming.text or "text"
    if not data.startswith(b"{"):
        kind = _KINDS[type(_decode(data, object))]
        raise _Refused(f'expected an object with a field "{wanted}", got {kind}')
    fields = _decode(data, dict[str, Raw])
    if "lc" in fields and bytes(fields.get("kwargs", b""))[:1] == b"{":  # as LangChain dumps an object
        added = {name: each for name, each in fields.items() if name not in DUMPED}
        fields = added | _decode(bytes(fields["kwargs"]), dict[str, Raw])
    lacks = not naming.text and bytes(fields.get("text", b"null")) == b"null"
    texts = [each for each in TEXTS if lacks and bytes(fields.get(each, b""))[:1] in (b'"', b"n")]
    if usual := min(texts, key=lambda each: bytes(fields[each])[:1], default=""):
        fields["text"] = fields.pop(usual)
        if "metadata" not in fields and bytes(fields.get("meta", b""))[:1] == b"{":
            fields["metadata"] = fields.pop("meta")
    if (its := spelt(wanted, fields)) not in fields:
        raise _Refused(unnamed(fields, wanted))
    fields[wanted] = fields.pop(its)
    return fields


def _lack(data: bytes | str, naming: Naming) -> str:
    """Why no row of a table can be read, by its first; empty where they may be."""
    try:
        if not isinstance(data, str):
            _fields(data, naming)
    except _Refused as refused:
        return str(refused)
    return ""


@cache
def _decoder_of(kind: Any) -> msgspec.json.Decoder[Any]:
    """Make a decoder once: msgspec looks at a kind anew for each that is not its own."""
    return msgspec.json.Decoder(kind)


def _decode(data: bytes, kind: type[T], place: str = "$") -> T:
    """Raises _Refused, in words, for whatever JSON and the kind do not allow; `place` is where it stands."""
    try:
        return _decoder_of(kind).decode(data)  # type: ignore[arg-type, no-any-return]
    except (ValueError, RecursionError) as error:  # also what Python says of bytes and of endless numbers
        if _AT_A_STRING.search(str(error)) and _is_whole(data):
            raise _Refused("a \\u escape is half of a surrogate pair without its other half") from None
        if data == b"null" and kind is str:
            raise _Refused(f"{NULL} - at `{place}`") from None
        why = cause(error, data).split(";")[0]
        if isinstance(error, msgspec.ValidationError) and "`$" not in why:
            why += " - at `$`"
        raise _Refused(why.replace("`$", f"`{place}")) from None


def _is_whole(data: bytes) -> bool:
    """Whether its strings end: Python's reader takes half of a surrogate pair, which others say to be cut short."""
    try:
        json.loads(data)
    except (ValueError, RecursionError):
        return False
    return True
