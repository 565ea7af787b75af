"""`--project N`: fused vectors in the N dimensions in which a collection's have the most of their length."""

import json
import shutil

import numpy as np
import pytest

import interlock
from interlock.console.text.event_text import describe
from interlock.engine.compute.controls import Controls
from interlock.engine.errors import ExitCode, UsageError
from interlock.engine.flows.run import Run
from interlock.engine.record.events import ArtefactWritten, StoreVerified, Warned
from interlock.engine.settings import load
from interlock.engine.targets.embedded import Store
from interlock.engine.vectors.fusion import energy, fit, from_bytes, project, to_bytes
from tests.builders import corpus, events_of, sentences

DIM = 12
OFFLINE = interlock.Settings(offline=True)


def unit(rows, width, seed, within=None):
    """Unit vectors, `within` so many dimensions of a random subspace."""
    random = np.random.default_rng(seed)
    drawn = random.standard_normal((rows, within or width))
    if within:
        drawn = drawn @ random.standard_normal((within, width))
    return (drawn / np.linalg.norm(drawn, axis=1, keepdims=True)).astype(np.float32)


def test_directions_are_those_of_the_singular_vectors_of_all_windows_together():
    vectors = unit(300, 20, 1)
    vectors[7] = np.nan
    found = fit(np.split(vectors, [100, 130]), 20, 5)
    _, _, right = np.linalg.svd(np.delete(vectors, 7, 0).astype(np.float64), full_matrices=False)
    np.testing.assert_allclose(np.abs((right[:5] * found.T).sum(axis=1)), 1, atol=1e-5)
    assert (found.dtype, found.shape) == (np.float32, (20, 5))
    assert (np.take_along_axis(found, np.abs(found).argmax(axis=0)[None], axis=0) > 0).all()


def test_nothing_is_lost_of_vectors_that_lie_within():
    vectors = unit(50, 20, 1, within=4)
    directions = fit([vectors], 20, 4)
    reduced = project(vectors, directions)
    np.testing.assert_allclose(reduced @ reduced.T, vectors @ vectors.T, atol=1e-5)
    assert energy(vectors, directions) == pytest.approx(1, abs=1e-6)
    assert energy(unit(50, 20, 2), directions) < 0.5


def test_a_row_that_was_parked_stays_so_and_others_are_unit_vectors():
    vectors = unit(10, 20, 1)
    vectors[3] = np.nan
    reduced = project(vectors, fit([vectors], 20, 6))
    assert np.isnan(reduced[3]).all()
    np.testing.assert_allclose(np.linalg.norm(np.delete(reduced, 3, 0), axis=1), 1, atol=1e-6)


def test_a_projection_reads_as_it_was_written():
    directions = fit([unit(50, 20, 1)], 20, 4)
    np.testing.assert_array_equal(from_bytes(to_bytes(directions)), directions)
    with pytest.raises(ValueError, match="expected float32"):
        from_bytes(to_bytes(directions.astype(np.float64)))


@pytest.fixture
def run(tmp_path, tiny_a, tiny_b):
    def go(run_id, texts=40, store="store", chunks="in", **settings):
        root = corpus(tmp_path / chunks, {"Docs": {"a.jsonl": sentences(texts)}})
        given = {"roster": f"{tiny_a}=0.3,{tiny_b}=0.7", "out": str(tmp_path / "runs"), "run_id": run_id}
        given |= {"qdrant": str(tmp_path / store), "offline": True, "project": DIM, **settings}
        made = Run(root, load(given, {}), Controls())
        assert made.go() == ExitCode.COMPLETED
        return made.directory.path

    return go


def exported(run, name="fused"):
    return np.load(run / "exports" / "Docs" / f"{name}.npy")


def concat(run):
    return np.hstack([exported(run, "tiny-a") * 0.3**0.5, exported(run, "tiny-b") * 0.7**0.5])


def test_files_and_store_hold_projected_vectors_with_what_projects_a_query(run, tmp_path):
    done = run("r")
    assert events_of(done, StoreVerified)[-1].ok
    (told,) = [each for each in events_of(done, ArtefactWritten) if each.path.endswith("projection.npy")]
    assert (told.rows, describe(told).text) == (0, f"wrote and verified {told.path} (3.9 KiB)")
    directions, reduced = exported(done, "projection"), exported(done)
    assert (directions.shape, reduced.shape) == ((80, DIM), (40, DIM))
    np.testing.assert_allclose(reduced, project(concat(done), directions), atol=1e-6)
    np.testing.assert_allclose(directions.T @ directions, np.eye(DIM), atol=1e-5)
    with Store.open_for_read(tmp_path / "store", "docs") as store:
        assert store.dims == {"fused": DIM}
        np.testing.assert_array_equal(store.projection, directions)
        assert store.manifest["projection"]["dim"] == DIM
    ids = interlock.open_run(done).vectors("Docs").ids
    hits = interlock.search(tmp_path / "store", sentences(40)[7], settings=OFFLINE)
    assert [hit.id for hit in hits] == [ids[row] for row in np.argsort(-reduced @ reduced[7])[: len(hits)]]


def test_the_same_texts_give_the_same_bytes_resumed_and_reused(run):
    first = run("r")
    files = ("fused.npy", "projection.npy")
    wanted = [(first / "exports" / "Docs" / name).read_bytes() for name in files]
    shutil.rmtree(first / "exports")
    run("r", resume=True)
    again = run("again", reuse=str(first), store="other")
    for place in (first, again):
        assert [(place / "exports" / "Docs" / name).read_bytes() for name in files] == wanted


def test_a_corpus_that_grew_is_delivered_into_its_store_by_the_projection_there(run, tmp_path):
    first, grown = run("r"), run("grown", texts=60, chunks="more")
    np.testing.assert_array_equal(exported(grown, "projection"), exported(first, "projection"))
    (told,) = [each.message for each in events_of(grown, Warned) if "projection" in each.message]
    share = energy(concat(grown), exported(first, "projection"))
    assert f"keeps the projection that it was made with, which holds {share:.1%} of the length" in told
    elsewhere = run("elsewhere", texts=60, chunks="more", store="elsewhere")
    assert not np.array_equal(exported(elsewhere, "projection"), exported(first, "projection"))
    assert not any("projection" in each.message for each in events_of(elsewhere, Warned))


@pytest.mark.parametrize(("changed", "told"), [(0, "projection is missing"), (8, r"projection\.dim was 12, is now 8")])
def test_a_store_of_another_projection_is_refused_before_any_work(run, changed, told):
    run("r")
    with pytest.raises(UsageError, match=f"was written with other settings .*{told}"):
        run("other", project=changed)


def test_a_store_that_was_not_projected_takes_no_projected_vectors(run):
    run("r", project=0)
    with pytest.raises(UsageError, match=r"was written with other settings .*projection is new"):
        run("other")


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"texts": 11}, "--project 12: Docs has 11 distinct texts, too few .* choose at most 11"),
        ({"project": 80}, "--project 80: the fused vectors have 80 dimensions: choose fewer"),
        ({"fusion": "named"}, "--project 12: it is the fused vectors that are projected, and none are kept: drop it"),
        ({"keep": "members"}, "--project 12: it is the fused vectors that are projected, and none are kept: drop it"),
    ],
)
def test_what_cannot_be_projected_is_refused_before_any_work(run, tmp_path, settings, told):
    with pytest.raises(UsageError, match=told):
        run("r", **settings)
    assert not (tmp_path / "runs" / "r").exists()


def test_a_lone_model_has_its_own_vectors_beside_the_projected_ones(run, tiny_a):
    done = run("r", roster=str(tiny_a))
    opened = interlock.open_run(done)
    assert opened.vectors("Docs", "tiny-a").array.shape == (40, 32)
    assert opened.vectors("Docs").array.shape == (40, DIM)


@pytest.mark.parametrize(
    ("harm", "told"),
    [
        (lambda file: file.unlink(), r"has lost its projection\.npy.*: restore it from a copy"),
        (lambda file: file.write_bytes(file.read_bytes()[:-8] + bytes(8)), r"is not the one that manifest\.json names"),
    ],
)
def test_a_store_without_its_own_projection_is_not_searched_but_delivered_into_again(run, tmp_path, harm, told):
    run("r")
    file = tmp_path / "store" / "docs" / "projection.npy"
    good = file.read_bytes()
    harm(file)
    with pytest.raises(UsageError, match=told):
        interlock.search(tmp_path / "store", "text", settings=OFFLINE)
    with pytest.raises(UsageError, match=told):  # another run could not make it again, and is told before any work
        run("other", texts=60, chunks="more")
    assert not (tmp_path / "runs" / "other").exists()
    if not file.exists():
        run("r", resume=True)
        assert file.read_bytes() == good
    assert json.loads((file.parent / "manifest.json").read_text())["projection"]["dim"] == DIM


def test_a_run_that_took_over_a_projection_gives_it_back_to_a_store_that_lost_it(run, tmp_path):
    run("r")
    file = tmp_path / "store" / "docs" / "projection.npy"
    good = file.read_bytes()
    run("grown", texts=60, chunks="more")
    file.unlink()
    done = run("grown", texts=60, chunks="more", resume=True)
    assert file.read_bytes() == good
    assert events_of(done, StoreVerified)[-1].ok


def test_chunks_that_left_are_dropped_from_a_store_that_keeps_its_projection(run, tmp_path):
    """Fewer texts are left than dimensions, so that no other projection could be fitted on them."""
    first = run("r")
    left = run("left", texts=11, chunks="fewer", prune=True)
    assert events_of(left, StoreVerified)[-1].ok
    directions = exported(first, "projection")
    np.testing.assert_array_equal(exported(left, "projection"), directions)
    ids = interlock.open_run(left).vectors("Docs").ids
    with Store.open_for_read(tmp_path / "store", "docs") as store:
        assert sorted(point for page in store.ids() for point in page) == sorted(ids)
        np.testing.assert_array_equal(store.projection, directions)
    hits = interlock.search(tmp_path / "store", sentences(40)[7], limit=40, settings=OFFLINE)
    assert [hit.id for hit in hits] == [ids[row] for row in np.argsort(-exported(left) @ exported(left)[7])]
