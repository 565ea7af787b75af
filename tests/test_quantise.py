"""`--quantise int8`: eight bits a number, in files by one scale over the full range, in a store by the engine's own."""

import numpy as np
import pyarrow.parquet as pq
import pytest
from msgspec.structs import replace

import interlock
from interlock.engine.compute.controls import Controls
from interlock.engine.errors import ExitCode
from interlock.engine.flows.run import Run
from interlock.engine.record import journal
from interlock.engine.record.events import StoreVerified, Warned
from interlock.engine.record.facts import Setting
from interlock.engine.settings import load
from interlock.engine.targets.embedded import Store
from interlock.engine.vectors.precision import int8_for
from tests.builders import corpus, events_of, sentences

OFFLINE = interlock.Settings(offline=True)


def test_codes_are_half_a_step_off_at_most_over_the_full_range_and_parked_rows_stay_so():
    vectors = np.random.default_rng(1).standard_normal((50, 8)).astype(np.float32)
    vectors[3] = np.nan
    vectors[7, 2] = 9.0  # far out, and not cut off
    numbers = int8_for(np.split(vectors, [20]))
    codes = numbers.encode(vectors)
    assert (codes.dtype, codes[7, 2]) == (np.int8, 127)
    again = numbers.decode(codes)
    assert np.isnan(again[3]).all() and np.isfinite(np.delete(again, 3, 0)).all()
    assert np.nanmax(np.abs(again - vectors)) <= numbers.scale / 2 * 1.0001
    assert int8_for([]).scale == int8_for([vectors[3:4]]).scale == 1


@pytest.fixture
def run(tmp_path, tiny_a, tiny_b):
    def go(run_id, store="store", **settings):
        root = corpus(tmp_path / "in", {"Docs": {"a.jsonl": sentences(60)}})
        given = {"roster": f"{tiny_a}=0.3,{tiny_b}=0.7", "out": str(tmp_path / "runs"), "run_id": run_id}
        given |= {"qdrant": str(tmp_path / store), "offline": True, "quantise": "int8", **settings}
        made = Run(root, load(given, {}), Controls())
        assert made.go() == ExitCode.COMPLETED
        return made.directory.path

    return go


def names_of(run):
    return {file.name for file in (run / "exports" / "Docs").iterdir()}


def test_files_have_codes_in_place_of_the_fused_vectors_and_a_run_reads_them_as_vectors(run):
    whole, done = run("whole", store="whole", quantise="none"), run("r")
    assert names_of(done) == names_of(whole) - {"fused.npy"} | {"fused.int8.npy", "fused.int8-scale.npy"}
    codes = np.load(done / "exports" / "Docs" / "fused.int8.npy", mmap_mode="r")
    assert (codes.dtype, codes.shape) == (np.int8, (60, 80))
    before, after = (interlock.open_run(each).vectors("Docs").array for each in (whole, done))
    assert np.abs(after - before).max() <= np.abs(before).max() / 254 * 1.0001
    assert not np.array_equal(after, before)
    in_table = np.asarray(pq.read_table(done / "exports" / "Docs" / "points.parquet")["fused"].to_pylist(), np.float32)
    np.testing.assert_array_equal(in_table, before)


@pytest.mark.parametrize("settings", [{}, {"project": 24}, {"fusion": "named"}])
def test_a_store_in_eight_bits_is_verified_and_finds_what_it_is_asked_for(run, tmp_path, settings):
    done = run("r", **settings)
    seen = events_of(done, StoreVerified)[-1]
    assert seen.ok and 0.999 < seen.worst_cosine < 1 - 1e-6
    config = (tmp_path / "store" / "docs" / "edge_config.json").read_text()
    assert "turbo8" in config.lower()
    hits = interlock.search(tmp_path / "store", sentences(60)[7], settings=OFFLINE)
    assert hits[0].payload["text"] == sentences(60)[7]
    (directory,) = (tmp_path / "store" / "docs" / "segments").iterdir()
    kept = {each.name for each in directory.glob("vector_storage-*/*")}
    assert "tq_vectors" in kept and "vectors" not in kept


def test_a_lone_text_has_codes_and_no_neighbour(tiny_a, tmp_path):
    settings = interlock.Settings(roster=[tiny_a], out=tmp_path, devices="cpu", quantise="int8", bm25="off")
    run = interlock.embed(["alone"], settings, progress="none")
    assert run.vectors("texts").array.shape == (1, 32)
    assert [kept.neighbours for kept in run.summary.collections[0].vectors] == [None]


def test_a_run_that_was_begun_with_bits_goes_on_in_eight_bits(run, tmp_path):
    done = run("r", qdrant="")
    first, *others = (done / "journal.jsonl").read_bytes().splitlines(keepends=True)
    entry = journal.decode(first)
    config = {**entry.body.config, "quantise": Setting("binary", "flag --quantise")}
    began = journal.encode(replace(entry, body=replace(entry.body, config=config)))
    (done / "journal.jsonl").write_bytes(b"".join([began, *others[: len(others) // 2]]))
    asked = {"out": str(tmp_path / "runs"), "run_id": "r", "resume": True, "offline": True}
    assert Run(tmp_path / "in", load(asked, {}), Controls()).go() == ExitCode.COMPLETED
    assert {"fused.int8.npy", "fused.int8-scale.npy"} <= names_of(done)


def test_the_same_texts_give_the_same_codes_resumed(run):
    done = run("r")
    files = [done / "exports" / "Docs" / name for name in ("fused.int8.npy", "fused.int8-scale.npy")]
    before = [file.read_bytes() for file in files]
    run("r", resume=True)
    assert [file.read_bytes() for file in files] == before


@pytest.mark.parametrize(("first", "second"), [("int8", "none"), ("none", "int8")])
def test_a_store_stays_in_the_numbers_that_it_was_made_with(run, tmp_path, first, second):
    run("one", quantise=first)
    two = run("two", quantise=second)
    (told,) = [each.message for each in events_of(two, Warned) if "stays so" in each.message]
    assert "--quantise int8" in told and "choose another store directory" in told
    assert events_of(two, StoreVerified)[-1].ok
    with Store.open_for_read(tmp_path / "store", "docs") as store:
        assert store.quantise == first


def test_vectors_that_differ_more_than_eight_bits_do_are_found_when_a_store_is_read_back(run, monkeypatch):
    import interlock.engine.targets.mirror as delivering

    def spoilt(store, *given):
        first, *rest = given[1]
        fused = first.vectors["fused"]
        first.vectors["fused"] = fused + np.float32(0.02) * np.sign(fused[::-1])
        return verify(store, given[0], [first, *rest], *given[2:])

    verify = delivering.verify
    monkeypatch.setattr(delivering, "verify", spoilt)
    with pytest.raises(AssertionError):
        run("r")
