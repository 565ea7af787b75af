"""Delivery is paired with the plan: what is not the text that was embedded is never delivered, nor called verified."""

import dataclasses
import os
from uuid import UUID

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import qdrant_edge as edge

from interlock.engine.compute.controls import STOP, Controls
from interlock.engine.compute.executor import PassExecutor
from interlock.engine.corpus.chunks import ChunkReader
from interlock.engine.errors import ExitCode, InterlockError, UsageError
from interlock.engine.flows import sessions
from interlock.engine.flows.run import Run
from interlock.engine.record import atomic
from interlock.engine.record.events import ArtefactWritten, RunClosed, StoreVerified
from interlock.engine.record.facts import Refusal
from interlock.engine.record.journal import Journal
from interlock.engine.settings import load
from interlock.engine.targets import delivery, windows
from interlock.engine.targets.embedded import Store
from interlock.engine.targets.files import arrays, tables
from interlock.engine.targets.files import write as files
from tests.builders import corpus, events_of, interlock, sentences, summary_of

FILES = {name: sentences(20, start=place * 20) for place, name in enumerate(["a.jsonl", "b_chunks.json", "c.jsonl"])}


@pytest.fixture
def chunks(tmp_path):
    return corpus(tmp_path / "in", {"Docs": FILES})


@pytest.fixture
def embed(chunks, tmp_path, tiny_a):
    """Embed the chunks into files and a store: how it ended, and the run's directory."""

    def run(**flags):
        flags = {"out": str(tmp_path / "runs"), "roster": str(tiny_a), "qdrant": str(tmp_path / "store"), **flags}
        made = Run(chunks, load(flags, {}, None), Controls())
        return made.go(), made.directory.path

    return run


def reading_again(monkeypatch, change):
    """From its second walk on, a reader gives what `change` makes of what it read."""
    walks, read = [], ChunkReader.__iter__

    def once_more(self):
        walks.append(self.collection.name)
        yield from read(self) if len(walks) == 1 else change(list(read(self)))

    monkeypatch.setattr(ChunkReader, "__iter__", once_more)
    return walks


def refused(code, run):
    """Assert that nothing was delivered; why."""
    (collection,) = summary_of(run)["collections"]
    assert (code, collection["status"], summary_of(run)["exit_code"]) == (ExitCode.FAILED, "failed", 1)
    assert collection["exports"] == [] and not list((run / "exports").rglob("*.*"))
    assert not [each for each in events_of(run, StoreVerified) if each.ok]
    return collection["reason"]


@pytest.mark.parametrize(
    "change",
    [
        lambda found: found[:7] + found[8:],
        lambda found: found[:-1],
        lambda found: [
            *found[:20],
            Refusal("b_chunks.json", None, "cannot read the file: Too many open files"),
            *found[40:],
        ],
        lambda found: [Refusal("a.jsonl", 1, "the text is empty"), *found],
        lambda found: [*found[:4], found[5], found[4], *found[6:]],
        lambda found: [*found[:4], found[3], *found[5:]],
        lambda found: [*found, found[-1]],
        lambda found: [*found[:9], dataclasses.replace(found[9], text="another text"), *found[10:]],
        lambda found: [*found[:9], dataclasses.replace(found[9], point_id=str(UUID(int=9))), *found[10:]],
    ],
    ids=[
        "lost",
        "last_lost",
        "file_refused",
        "refusal",
        "swapped",
        "doubled",
        "one_too_many",
        "other_text",
        "other_id",
    ],
)
def test_what_is_read_otherwise_for_delivery_than_for_the_plan_is_not_delivered(embed, monkeypatch, change):
    reading_again(monkeypatch, change)
    assert "Docs" in refused(*embed())


@pytest.mark.parametrize("failing", [1, 2, 3])
def test_a_chunk_file_that_cannot_be_opened_for_delivery_fails_it_and_resume_delivers_all(
    embed, monkeypatch, tmp_path, failing
):
    opened, at_once = [], atomic.at_once

    def failing_once(path, flags):
        if str(path).startswith(str(tmp_path / "in")):
            opened.append(path)
        if len(opened) == len(FILES) + failing:
            opened.append("failed")
            raise OSError(24, "Too many open files")
        return at_once(path, flags)

    monkeypatch.setattr(atomic, "at_once", failing_once)
    reason = refused(*embed(run_id="r"))
    assert (
        f"Docs/{list(FILES)[failing - 1]} changed during the run (cannot read the file: Too many open files)" in reason
    )
    code, run = embed(run_id="r", resume=True)
    (seen,) = [each for each in events_of(run, StoreVerified) if each.ok]
    assert (code, seen.points, seen.expected, seen.stale) == (ExitCode.COMPLETED, 60, 60, 0)


def test_a_file_that_is_edited_in_place_while_it_is_delivered_is_not_delivered(tmp_path, tiny_a, monkeypatch):
    texts = [f"{number % 50} " + "x" * 300 for number in range(4000)]  # far more than is read ahead
    root = corpus(tmp_path / "in", {"Docs": {"a.jsonl": texts}})
    file, write = root / "Docs" / "a.jsonl", pq.ParquetWriter.write_table

    def editing(self, *args):
        with file.open("rb+") as handle:
            handle.seek(-200, os.SEEK_END)
            handle.write(b"y" * 100)
        return write(self, *args)

    monkeypatch.setattr(pq.ParquetWriter, "write_table", editing)
    run = Run(root, load({"out": str(tmp_path / "runs"), "roster": str(tiny_a)}, {}, None), Controls())
    assert "Docs/a.jsonl changed during the run" in refused(run.go(), run.directory.path)


def test_a_run_that_fails_and_cannot_record_it_says_why_it_failed(tmp_path, tiny_a, monkeypatch):
    def failing(*_):
        raise InterlockError("the network went away")

    def full(self, entry, append=Journal.append):
        if isinstance(entry.body, RunClosed):
            raise InterlockError("the disk is full")
        append(self, entry)

    root = corpus(tmp_path / "in", {"Docs": {"a_chunks.json": ["a"]}})
    run = Run(root, load({"out": str(tmp_path / "runs"), "roster": str(tiny_a)}, {}, None), Controls())
    monkeypatch.setattr(PassExecutor, "run", failing)
    monkeypatch.setattr(Journal, "append", full)
    with pytest.raises(InterlockError, match="the network went away; this could not be recorded: the disk is full"):
        run.go()


def test_a_stop_is_refused_once_the_last_collection_is_being_written(tmp_path, tiny_a, monkeypatch):
    refusals, deliver = [], sessions.deliver
    root = corpus(tmp_path / "in", {name: {"a_chunks.json": [name]} for name in ("Docs", "Wiki")})
    run = Run(root, load({"out": str(tmp_path / "runs"), "roster": str(tiny_a)}, {}, None), Controls())

    def asked(*given):
        refusals.append(run.controls.refusal(STOP))
        deliver(*given)

    monkeypatch.setattr(sessions, "deliver", asked)
    assert run.go() == ExitCode.COMPLETED
    assert refusals == ["", "the last collection is being written, so the run ends by itself"]


def test_chunk_files_are_read_once_for_the_plan_and_once_for_files_and_store_together(embed, monkeypatch):
    walks = reading_again(monkeypatch, iter)
    code, run = embed()
    assert (code, len(walks)) == (ExitCode.COMPLETED, 2)
    assert [(each.path[-8:], each.verified) for each in events_of(run, ArtefactWritten)] == [
        ("used.npy", True),
        (".parquet", True),
    ]
    assert {each["verified"] for each in summary_of(run)["collections"][0]["exports"]} == {True}


def without_a_window(table):
    return table.slice(1)


def with_rows_swapped(table):
    return pa.concat_tables([table.slice(1, 1), table.slice(0, 1), table.slice(2)])


def with_column(name, change):
    def changed(table):
        values = table[name].to_pylist()
        change(values)
        place = table.column_names.index(name)
        return table.set_column(place, table.schema.field(place), pa.array(values, table.schema.field(place).type))

    return changed


def swap_vectors(values):
    values[3], values[9] = values[9], values[3]


def drop_vector(values):
    values[3] = None


def nudge_vector(values):
    values[3][5] += 1e-3


def reverse_text(values):
    values[59] = values[59][::-1]


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (without_a_window, "59 rows, expected 60"),
        (with_rows_swapped, "id differs in 2 rows, first in row 0"),
        (with_column("text", reverse_text), "text differs in 1 row, first in row 59"),
        (with_column("fused", swap_vectors), "vector fused differs in 2 rows, first in row 3"),
        (with_column("fused", drop_vector), "vector fused differs in 1 row, first in row 3"),
        (with_column("fused", nudge_vector), "vector fused differs in 1 row, first in row 3"),
    ],
)
def test_a_table_that_is_not_as_planned_when_it_is_read_back_is_not_delivered(embed, monkeypatch, change, told):
    def changing(windows, checks):
        path = next(path for path in checks if path.suffix == ".parquet")
        (partial,) = path.parent.glob(f"*{path.name}*")
        pq.write_table(change(pq.read_table(partial)), partial)
        # the file is open already: what it holds now is asked anew
        kind = tables.Parquet(60, {"fused": 32})
        with kind.read(partial) as check:
            compare(windows, {path: check})

    compare = files.compare
    monkeypatch.setattr(files, "compare", changing)
    reason = refused(*embed())
    assert "points.parquet differs from what was written" in reason and told in reason


def flip_bit(array):
    array.view(np.uint32)[7, 3] ^= 1


def swap_rows(array):
    array[[3, 9]] = array[[9, 3]]


@pytest.mark.parametrize(
    ("change", "told"),
    [(flip_bit, "vector differs in 1 row, first in row 7"), (swap_rows, "vector differs in 2 rows, first in row 3")],
)
def test_an_array_that_is_not_as_planned_when_it_is_read_back_is_not_delivered(embed, monkeypatch, change, told):
    def changing(windows, checks):
        path = next(path for path in checks if path.name == "fused.npy")
        (partial,) = path.parent.glob(f"*{path.name}*")
        array = np.load(partial, mmap_mode="r+")
        change(array)
        array.flush()
        compare(windows, checks)

    compare = files.compare
    monkeypatch.setattr(files, "compare", changing)
    reason = refused(*embed())
    assert "fused.npy differs from what was written" in reason and told in reason


def ids_of(store):
    return sorted(str(each.id) for each in store._shard.scroll(edge.ScrollRequest(limit=100))[0])


def put(store, *points):
    store._shard.update(edge.UpdateOperation.upsert_points(list(points)))


def moved(store, place, *, to=None, text=None, vector=None):
    """A point of the store once more: under another id, with another text, or with another's vector."""
    (point,) = [*store.read([ids_of(store)[place]]).values()]
    (other,) = [*store.read([ids_of(store)[place if vector is None else vector]]).values()]
    vectors = {name: found.tolist() for name, found in other.vectors.items()}
    return edge.Point(to or point.id, vectors, {**point.payload, "text": text or point.payload["text"]})


def replace_point(store):
    put(store, moved(store, 5, to=str(UUID(int=5))))
    store._shard.update(edge.UpdateOperation.delete_points([ids_of(store)[6]]))


def alter_text(store):
    put(store, moved(store, 5, text="another text"))


def alter_vector(store):
    put(store, moved(store, 5, vector=6))


def swap_points(store):
    put(store, moved(store, 5, vector=6), moved(store, 6, vector=5))


def add_point(store):
    put(store, moved(store, 5, to=str(UUID(int=5))))


@pytest.mark.parametrize("change", [replace_point, alter_text, alter_vector, swap_points, add_point])
def test_a_store_that_was_changed_after_it_was_written_is_not_called_verified(embed, monkeypatch, change):
    def changing(planned, store):
        change(store)
        return verified(planned, store)

    verified = delivery.verified
    monkeypatch.setattr(delivery, "verified", changing)
    code, run = embed()
    (seen,) = events_of(run, StoreVerified)
    assert (code, seen.ok, seen.expected) == (ExitCode.FAILED, False, 60), seen.detail
    assert summary_of(run)["collections"][0]["status"] == "failed"


def test_points_that_never_reached_the_store_are_missed_by_the_plan(embed, monkeypatch):
    upsert = Store.upsert
    monkeypatch.setattr(Store, "upsert", lambda self, points, size: upsert(self, points[:-1], size))
    code, run = embed()
    (seen,) = events_of(run, StoreVerified)
    assert (code, seen.ok, seen.points, seen.expected) == (ExitCode.FAILED, False, 59, 60)
    assert "1 missing" in seen.detail
    store = ("search", run.parents[1] / "store", "text")
    told = f"docs is not whole: finish run {run.name} (see `interlock ctl RUN_DIR status`)"
    assert told in interlock(*store).stderr
    monkeypatch.setattr(Store, "upsert", upsert)
    assert embed(resume=True)[0] == ExitCode.COMPLETED
    assert "not whole" not in interlock(*store).stderr


def after_all_passes(monkeypatch, change):
    """Do something to the vectors of the first pass once every batch is committed."""
    work = PassExecutor.run

    def worked(self):
        work(self)
        change(self._grid[0].files.dense.array)

    monkeypatch.setattr(PassExecutor, "run", worked)


@pytest.mark.parametrize("change", [swap_rows, lambda array: array.__setitem__(7, np.nan)], ids=["swapped", "lost"])
def test_vectors_that_change_between_their_commit_and_their_delivery_are_not_delivered(embed, monkeypatch, change):
    with monkeypatch.context() as patched:
        after_all_passes(patched, change)
        code, run = embed()
    assert code == ExitCode.FAILED and "changed after they were computed" in summary_of(run)["reason"]
    assert not (run / "exports").exists()
    code, run = embed(resume="yes", run_id=run.name)
    assert code == ExitCode.COMPLETED and summary_of(run)["batches_lost"]


def test_damage_in_any_window_is_seen_when_a_file_is_read_back(embed, monkeypatch):
    monkeypatch.setattr(windows, "WINDOW", 8)
    monkeypatch.setattr(arrays, "WINDOW", 8)
    monkeypatch.setattr(tables, "WINDOW", 8)
    compare = files.compare

    def changing(found, checks):
        array = np.load(next(checks_path(checks, "fused.npy")), mmap_mode="r+")
        array[43] = array[44]
        array.flush()
        compare(found, checks)

    monkeypatch.setattr(files, "compare", changing)
    assert "first in row 43" in refused(*embed(export="npy", qdrant=""))


def checks_path(checks, name):
    return (partial for path in checks if path.name == name for partial in path.parent.glob(f"*{name}*"))


def test_a_table_that_cannot_be_read_back_fails_its_collection_and_not_the_run(embed, monkeypatch):
    def unreadable(self, *_, **__):
        raise pa.ArrowInvalid("Corrupt snappy compressed data")

    monkeypatch.setattr(pq.ParquetFile, "read_row_group", unreadable)
    assert "cannot be read (Corrupt" in refused(*embed())


def test_a_run_is_not_continued_with_other_texts_though_its_files_are_the_same(embed, monkeypatch):
    _, run = embed()
    kept = (run / "passes" / "texts.npy").read_bytes()
    read = ChunkReader.__iter__
    monkeypatch.setattr(ChunkReader, "__iter__", lambda self: iter(list(read(self))[::-1]))
    with pytest.raises(UsageError, match="was started with other texts, though its files are the same"):
        embed(resume="yes", run_id=run.name)
    assert (run / "passes" / "texts.npy").read_bytes() == kept
