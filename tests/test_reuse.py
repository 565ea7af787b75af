"""Every vector that stands in a run directory has a checksum, and nothing is taken from an earlier run but by it."""

import json
import os
import shutil
import zipfile

import msgspec
import numpy as np
import pytest

from interlock.engine.compute import reuse
from interlock.engine.compute.controls import Controls
from interlock.engine.compute.parts.dense import DenseRows, VectorFile
from interlock.engine.errors import ExitCode, InterlockError, UsageError
from interlock.engine.flows.run import Run
from interlock.engine.record import journal
from interlock.engine.record.events import BatchCommitted, PassPlanned, RowsReused, Warned
from interlock.engine.settings import load
from tests.builders import corpus, entries, events_of, sentences, toml
from tests.processes import exports, files_of

TEXTS = 60


@pytest.fixture(scope="module")
def original(tmp_path_factory, tiny_a):
    """A directory with chunks and a finished run `one`; not to be changed."""
    home = tmp_path_factory.mktemp("original")
    corpus(home / "in", {"Docs": {"a.jsonl": sentences(TEXTS)}})
    toml(home / "interlock.toml", {"a": {"source": str(tiny_a), "batch_tokens": 64}})
    embedding(home)("one")
    return home


def embedding(home):
    """Embed the chunks of `home` as a run of this name: its directory."""

    def embed(name, **flags):
        flags = {"out": str(home / "runs"), "roster": "a", "run_id": name, "export": "npy", **flags}
        assert Run(home / "in", load(flags, {}, home / "interlock.toml"), Controls()).go() == ExitCode.COMPLETED
        return home / "runs" / name

    return embed


@pytest.fixture
def home(original, tmp_path):
    shutil.copytree(original, tmp_path / "home")
    return tmp_path / "home"


@pytest.fixture
def embed(home):
    return embedding(home)


@pytest.fixture
def one(home):
    return home / "runs" / "one"


def vectors(run):
    return np.load(run / "passes" / "0_a" / "vectors.npy", mmap_mode="r+")


def test_an_earlier_run_whose_list_of_texts_was_changed_gives_no_vectors(one, embed):
    texts = np.load(one / "passes" / "texts.npy", mmap_mode="r+")
    texts[[3, 40]] = texts[[40, 3]]
    texts.flush()
    with pytest.raises(UsageError, match="texts differ from the journal"):
        embed("two", reuse=str(one))


def test_what_an_earlier_run_computed_is_known_by_its_journal_and_not_by_its_run_json(one, home, embed, tiny_b):
    told = json.loads((one / "run.json").read_text())
    toml(home / "interlock.toml", {"a": {"source": str(tiny_b), "batch_tokens": 64}})
    fresh = embed("fresh")
    told["roster"] = json.loads((fresh / "run.json").read_text())["roster"]
    (one / "run.json").write_text(json.dumps(told))
    assert exports(embed("two", reuse=str(one))) == exports(fresh)


def flip_sign(array):
    array.view(np.uint32)[7, 3] ^= 1 << 31


def flip_bit(array):
    array.view(np.uint32)[7, 3] ^= 1 << 20


def swap_rows(array):
    array[[3, 40]] = array[[40, 3]]


def unfinished(array):
    array[7] = np.nan


def too_long(array):
    array[7] = 7.0


def damage(run, change):
    array = vectors(run)
    change(array)
    array.flush()


@pytest.mark.parametrize("change", [flip_sign, flip_bit, swap_rows])
def test_rows_that_are_damaged_in_the_earlier_run_are_told_and_computed_anew(embed, one, change):
    whole = exports(one)
    damage(one, change)
    two = embed("two", reuse=str(one))
    (plan,), (warned,) = events_of(two, PassPlanned), events_of(two, Warned)
    assert 0 < plan.rows < TEXTS / 2 and plan.reused == TEXTS - plan.rows
    assert f"{plan.rows} vectors of a damaged there, recomputing" in warned.message
    assert exports(two) == whole


def test_rows_taken_over_are_taken_over_again_and_again_while_they_are_intact(embed, one):
    two = embed("two", reuse=str(one))
    three = embed("three", reuse=str(two))
    shutil.rmtree(one)
    damage(three, flip_bit)
    four = embed("four", reuse=str(three))
    plans = [[(plan.rows, plan.reused) for plan in events_of(run, PassPlanned)] for run in (two, three, four)]
    assert plans == [[(0, TEXTS)], [(0, TEXTS)], [(TEXTS, 0)]]  # so few rows share one checksum
    assert [each.rows for run in (two, three, four) for each in events_of(run, RowsReused)] == [TEXTS, TEXTS]
    assert exports(four) == exports(two)


@pytest.mark.parametrize("change", [flip_bit, swap_rows, unfinished, too_long, None])
def test_a_run_whose_rows_taken_over_were_damaged_is_not_continued_and_not_touched(embed, one, change):
    two = embed("two", reuse=str(one))
    if change:
        damage(two, change)
    else:
        (two / "passes" / "0_a" / "vectors.npy").unlink()
    before = files_of(two)
    with pytest.raises(UsageError, match=r"up to 60 of the 60 vectors of a reused from .*one are damaged") as said:
        embed("two", resume=True)
    assert f"--reuse {two}" in str(said.value) and "\n" not in str(said.value)
    assert files_of(two) == before
    assert exports(embed("three", reuse=str(two))) == exports(one)


def test_a_run_that_took_rows_over_is_continued_without_being_told_from_where(embed, home, one):
    shutil.copy(home / "in" / "Docs" / "a.jsonl", home / "in" / "Docs" / "b.jsonl")
    with (home / "in" / "Docs" / "b.jsonl").open("a") as file:
        file.writelines(json.dumps({"text": text}) + "\n" for text in sentences(5, start=TEXTS))
    two = embed("two", reuse=str(one))
    whole, commits = exports(two), len(events_of(two, BatchCommitted))
    shutil.rmtree(one)
    embed("two", resume=True)
    assert (exports(two), len(events_of(two, BatchCommitted))) == (whole, commits)
    assert {(plan.rows, plan.reused) for plan in events_of(two, PassPlanned)} == {(5, TEXTS)}


@pytest.mark.parametrize("left", [b"", b"garbage", b"[1]", None])
def test_no_file_beside_the_vectors_decides_what_a_continued_run_computes(embed, one, left):
    whole, file = exports(one), one / "passes" / "0_a" / "reused.npy"
    file.unlink(missing_ok=True)
    file.mkdir() if left is None else file.write_bytes(left)
    embed("one", resume=True)
    assert exports(one) == whole


@pytest.mark.parametrize(
    ("name", "change", "told"),
    [
        ("passes/0_a/order.npy", lambda path: path.unlink(), "cannot check the vectors"),
        ("passes/0_a/order.npy", lambda path: path.write_bytes(b""), "is damaged"),
        ("passes/0_a/order.npy", lambda path: os.truncate(path, 140), "is damaged"),
        ("passes/0_a/order.npy", lambda path: np.save(path, np.arange(TEXTS, dtype=np.int32)), "expected a row order"),
        (
            "passes/0_a/order.npy",
            lambda path: np.save(path, ~np.arange(TEXTS, dtype=np.int32)),
            "differ from the journal",
        ),
        ("passes/0_a/vectors.npy", lambda path: path.write_bytes(b""), "is damaged"),
        ("passes/0_a/vectors.npy", lambda path: zipfile.ZipFile(path, "w").close(), "is damaged"),
        ("passes/texts.npy", lambda path: path.write_bytes(b""), "is damaged"),
        ("journal.jsonl", lambda path: path.write_bytes(path.read_bytes()[5:]), "line 1 is damaged"),
        ("run.json", lambda path: path.write_bytes(b"{"), "is damaged"),
        ("journal.jsonl", lambda path: path.unlink(), "not a run directory"),
    ],
)
def test_a_run_that_cannot_be_checked_is_not_taken_from_and_the_file_is_named(embed, home, one, name, change, told):
    change(one / name)
    with pytest.raises(UsageError, match=told) as said:
        embed("two", reuse=str(one))
    assert "\n" not in str(said.value)
    assert str(said.value).count(name) == 1 or told == "not a run directory"
    assert str(said.value).count("is damaged") <= 1 and str(said.value).count("restore") <= 1
    assert not (home / "runs" / "two").exists()


@pytest.mark.parametrize("together", [1 << 17, 100, 1])
def test_texts_that_both_runs_have_are_found_however_few_are_compared_together(monkeypatch, together):
    monkeypatch.setattr("interlock.engine.compute.reuse.TOGETHER", together)
    monkeypatch.setattr("interlock.engine.corpus.places.STEP", 7)
    monkeypatch.setattr("interlock.engine.corpus.places.HELD", 64)  # the places are in a file
    every = np.random.default_rng(3).permutation(np.arange(900, dtype=np.uint64))
    digests = np.stack([every << 55, every], 1).view("V16")[:, 0]  # of which many begin alike
    ours, theirs = digests[:600], digests[250:][::-1].copy()
    row_of = {digest: row for row, digest in enumerate(ours.tolist())}
    assert reuse._positions(ours, theirs).tolist() == [row_of.get(digest, -1) for digest in theirs.tolist()]
    assert reuse._positions(ours, theirs[:0]).tolist() == []


def test_rows_taken_over_are_parted_for_their_checksums_as_they_always_were(monkeypatch):
    monkeypatch.setattr("interlock.engine.corpus.places.STEP", 100)
    monkeypatch.setattr(reuse, "WINDOW", 64)
    for taken in (np.arange(1000) % 3 > 0, np.ones(128, np.bool_), np.zeros(9, np.bool_)):
        rows = np.flatnonzero(taken)
        found = [each.tolist() for each in reuse._rows_of(taken)]
        assert found == [rows[start : start + 64].tolist() for start in range(0, len(rows), 64)]


def test_rows_that_were_computed_in_another_precision_are_not_taken(embed, one):
    lines = [
        msgspec.structs.replace(entry, body=msgspec.structs.replace(entry.body, dtype="float16"))
        if isinstance(entry.body, BatchCommitted) and entry.body.batch_index == 1
        else entry
        for entry in entries(one)
    ]
    (one / "journal.jsonl").write_bytes(b"".join(map(journal.encode, lines)))
    rows = next(
        each.body.rows for each in lines if isinstance(each.body, BatchCommitted) and each.body.batch_index == 1
    )
    (plan,) = events_of(embed("two", reuse=str(one)), PassPlanned)
    assert (plan.rows, plan.reused) == (rows, TEXTS - rows)


@pytest.mark.parametrize(
    "change",
    [
        lambda path: path.write_bytes(b""),
        lambda path: path.write_bytes(b"\x93NUMPY"),
        lambda path: path.write_bytes(b"garbage" * 100),
        lambda path: path.write_bytes(path.read_bytes().replace(b"'descr'", b"'de(cr'")),
        lambda path: path.write_bytes(path.read_bytes().replace(b"(6, 2)", b"(6, 2 ")),
        lambda path: zipfile.ZipFile(path, "w").close(),
    ],
)
def test_vectors_that_are_no_array_any_more_are_told_as_damaged(tmp_path, change):
    VectorFile.open(path := tmp_path / "vectors.npy", 6, 2)
    change(path)
    with pytest.raises(InterlockError, match=r"vectors\.npy is damaged .*delete it and --resume"):
        VectorFile.open(path, 6, 2)


def test_vectors_of_another_kind_are_told_and_those_cut_short_are_made_whole(tmp_path):
    VectorFile.open(path := tmp_path / "vectors.npy", 6, 2).put(np.arange(6), DenseRows(np.ones((6, 2), np.float32)))
    np.save(other := tmp_path / "other.npy", np.zeros((6, 2)))
    with pytest.raises(InterlockError, match=r"has \(6, 2\) vectors of float64, expected \(6, 2\) of float32"):
        VectorFile.open(other, 6, 2)
    os.truncate(path, path.stat().st_size - 8)
    np.testing.assert_array_equal(VectorFile.open(path, 6, 2).array, [[1, 1]] * 5 + [[0, 0]])


def test_too_many_open_files_are_no_damage(tmp_path, monkeypatch):
    VectorFile.open(path := tmp_path / "vectors.npy", 6, 2)

    def refuse(*_, **__):
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(np.lib.format, "open_memmap", refuse)
    with pytest.raises(InterlockError, match=r"cannot open .*: Too many open files; raise the open file limit"):
        VectorFile.open(path, 6, 2)
