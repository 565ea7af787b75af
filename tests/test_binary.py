"""`--quantise binary`: a bit a number to search by, and eight to order what it finds; in files, and in no store."""

import itertools

import numpy as np
import pytest

import interlock
from interlock.console.text.plan_text import plan_text
from interlock.engine.compute.controls import Controls
from interlock.engine.errors import ExitCode, UsageError
from interlock.engine.flows.export import ExportRequest, export
from interlock.engine.flows.forecast import forecast
from interlock.engine.flows.run import Run
from interlock.engine.record.events import VectorsKept
from interlock.engine.settings import load
from interlock.engine.targets.embedded import Store
from interlock.engine.vectors.fusion import turned
from interlock.engine.vectors.precision import BITS, int8_for, search, signs, unpack
from tests.builders import corpus, events_of, sentences

TEXTS, WIDTH = 300, 32 + 48


def unit(rows, width, seed):
    drawn = np.random.default_rng(seed).standard_normal((rows, width)).astype(np.float32)
    return drawn / np.linalg.norm(drawn, axis=1, keepdims=True)


def test_bits_are_the_signs_and_a_parked_row_is_told_from_one_without_a_number_above_zero():
    vectors = unit(40, 13, 1)
    vectors[3], vectors[7] = np.nan, -np.abs(vectors[7])
    bits, codes = BITS.encode(vectors), int8_for([vectors]).encode(vectors)
    assert (bits.dtype, bits.shape) == (np.uint8, (40, 2))
    assert bits[0, 0] >> 7 == (vectors[0, 0] > 0) and not bits[3].any() and not bits[7].any()
    numbers = unpack(bits, codes)
    np.testing.assert_array_equal(np.isnan(numbers).all(axis=1), np.arange(40) == 3)
    np.testing.assert_array_equal(np.delete(numbers, 3, 0), np.sign(np.delete(vectors, 3, 0)))
    np.testing.assert_array_equal(signs(vectors), numbers)


def test_a_turn_keeps_every_dot_product_and_spreads_the_length_evenly():
    vectors = unit(200, 16, 1) * np.geomspace(1, 0.01, 16, dtype=np.float32)
    found = turned(vectors)
    np.testing.assert_allclose(found @ found.T, vectors @ vectors.T, atol=1e-5)
    np.testing.assert_array_equal(turned(vectors), found)
    before, after = (np.square(each).sum(axis=0) for each in (vectors, found))
    assert before.max() / before.min() > 1000 and after.max() / after.min() < 100


def test_a_parked_row_is_never_found_and_neither_are_more_rows_than_there_are():
    vectors = unit(6, 16, 1)
    vectors[2] = np.nan
    numbers = int8_for([vectors])
    rows, scores = search(BITS.encode(vectors), numbers.encode(vectors), numbers.scale, unit(4, 16, 2), 6)
    np.testing.assert_array_equal(np.sort(rows, axis=1), [[-1, 0, 1, 3, 4, 5]] * 4)
    np.testing.assert_array_equal(rows[:, 5], -1)
    assert np.isneginf(scores[:, 5]).all() and np.isfinite(scores[:, :5]).all()


@pytest.fixture(scope="module")
def place(tmp_path_factory, tiny_a, tiny_b):
    top = tmp_path_factory.mktemp("binary")
    chunks = corpus(top / "in", {"Docs": {"a.jsonl": sentences(TEXTS)}})

    def given(run_id, **settings):
        roster = {"roster": f"{tiny_a}=0.3,{tiny_b}=0.7", "out": str(top / "runs"), "run_id": run_id, "offline": True}
        return chunks, load({**roster, "quantise": "binary", **settings}, {})

    return given


@pytest.fixture(scope="module")
def go(place):
    def run(run_id, **settings):
        made = Run(*place(run_id, **settings), Controls())
        assert made.go() == ExitCode.COMPLETED
        return made.directory.path

    return run


@pytest.fixture(scope="module", params=[0, 24])
def done(request, go):
    return go(f"to-{request.param}", project=request.param), request.param or WIDTH


def exported(run, name):
    return np.load(run / "exports" / "Docs" / f"{name}.npy")


def whole(run):
    return np.hstack([exported(run, "tiny-a") * 0.3**0.5, exported(run, "tiny-b") * 0.7**0.5])


def bits_of(run):
    """The bits of every row as 1 and -1."""
    packed, width = exported(run, "fused.bits"), exported(run, "fused.int8").shape[1]
    numbers = np.array([[1 if byte >> (7 - at) & 1 else -1 for byte in row for at in range(8)] for row in packed])
    return numbers[:, :width].astype(np.float64)


def settled(run, queries, rescored):
    """Whether the first stage has no equals about its last row: of those a processor's own rounding chooses."""
    first = -np.sort(-(bits_of(run) @ queries.astype(np.float64).T), axis=0)
    return np.ones(len(queries), bool) if rescored >= len(first) else first[rescored - 1] - first[rescored] > 1e-5


def by_hand(run, queries, rescored, leave_out=None):
    """Two stages over the exports with nothing of the product: every row by its bits, the best of these by int8."""
    codes, scale = exported(run, "fused.int8").astype(np.float64), float(exported(run, "fused.int8-scale"))
    numbers = bits_of(run)
    for place, query in enumerate(queries.astype(np.float64)):
        first = numbers @ query
        if leave_out is not None:
            first[leave_out[place]] = -np.inf
        candidates = sorted(range(len(first)), key=lambda row: -first[row])[:rescored]
        scores = {row: float(codes[row] @ query) * scale for row in candidates}
        yield sorted(scores.items(), key=lambda pair: -pair[1])


@pytest.mark.parametrize(("limit", "rescored"), [(10, 40), (10, 12), (20, 5), (10, TEXTS)])
def test_a_search_is_that_of_both_stages_over_the_exports(done, limit, rescored):
    run, width = done
    queries = unit(15, WIDTH, 5)
    bits = interlock.open_run(run).bits("Docs")
    assert (bits.bits.shape, bits.bits.dtype) == ((TEXTS, -(-width // 8)), np.uint8)
    rows, scores = bits.nearest(queries, limit, rescored)
    asked = queries if width == WIDTH else queries @ exported(run, "projection")
    certain = settled(run, asked, max(limit, rescored))
    assert certain.sum() >= 10
    wanted_of = zip(rows, scores, by_hand(run, asked, max(limit, rescored)), strict=True)
    for found, told, wanted in itertools.compress(wanted_of, certain):
        assert found.tolist() == [row for row, _ in wanted[:limit]]
        np.testing.assert_allclose(told, [score for _, score in wanted[:limit]], atol=1e-5)


def test_bytes_and_loss_are_told_before_and_after_as_they_are(done, place):
    run, width = done
    each = width + -(-width // 8)
    (told,) = events_of(run, VectorsKept)
    files = [run / "exports" / "Docs" / name for name in ("fused.bits.npy", "fused.int8.npy")]
    assert sum(file.stat().st_size - 128 for file in files) == TEXTS * each
    assert told.bytes == each + 4 * WIDTH + 4 * width  # with the models' own, and the table
    seen = forecast(*place("planned", project=0 if width == WIDTH else width))
    assert f"dense vectors: {told.bytes:,} bytes a chunk in files, in a form that no store keeps" in plan_text(seen)
    vectors, sample = whole(run), np.unique(np.linspace(0, TEXTS - 1, 256).astype(int))
    asked = vectors if width == WIDTH else vectors @ exported(run, "projection")
    asked = asked[sample] / np.linalg.norm(asked[sample], axis=1, keepdims=True)
    shares = []
    for row, found in zip(sample, by_hand(run, asked, 40, sample), strict=True):
        cosines = vectors @ vectors[row]
        cosines[row] = -np.inf
        shares.append(np.mean(cosines[[place for place, _ in found[:10]]] >= np.sort(cosines)[-10] - 1e-6))
    assert told.neighbours == pytest.approx(np.mean(shares), abs=2e-3)


def test_projected_vectors_have_no_direction_that_says_it_all(done):
    run, width = done
    lengths = np.square(exported(run, "fused.int8").astype(float)).sum(axis=0)
    assert len(lengths) == width and lengths.max() / lengths.sum() < 0.3  # as found, the first has nearly all
    if width < WIDTH:
        directions = exported(run, "projection")
        np.testing.assert_allclose(directions.T @ directions, np.eye(width), atol=1e-5)


def test_the_vectors_of_a_run_are_those_in_eight_bits(done):
    run, _ = done
    array = interlock.open_run(run).vectors("Docs").array
    np.testing.assert_allclose(array, exported(run, "fused.int8") * exported(run, "fused.int8-scale"), atol=1e-7)


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        (
            {"qdrant": "store"},
            "a store keeps its vectors beside their bits.* use --quantise int8 for it",
        ),
        ({"fusion": "named"}, "fused vectors of .npy files .* none are written: use --fusion concat"),
        ({"export": "parquet"}, "fused vectors of .npy files .* use --fusion concat and --export npy"),
    ],
)
def test_bits_are_refused_where_they_would_save_nothing_before_any_work(place, settings, told):
    with pytest.raises(UsageError, match=told):
        Run(*place("refused", **settings), Controls())
    with pytest.raises(UsageError, match=told):
        forecast(*place("refused", **settings))


def test_a_store_would_only_grow_by_bits(tmp_path):
    """Why it is refused: the engine keeps its vectors whole, whatever it quantises beside them."""
    import qdrant_edge as edge

    sizes = {}
    turbo = edge.VectorStorageDatatype.Turbo8
    for name, beside in (("int8", None), ("binary", edge.BinaryQuantizationConfig())):
        path = tmp_path / name
        path.mkdir()
        params = edge.EdgeVectorParams(256, edge.Distance.Cosine, datatype=turbo, quantization_config=beside)
        shard = edge.EdgeShard.load(str(path), edge.EdgeConfig(vectors={"v": params}))
        points = [edge.Point(row + 1, {"v": vector.tolist()}, {}) for row, vector in enumerate(unit(2000, 256, 1))]
        shard.update(edge.UpdateOperation.upsert_points(points))
        shard.flush()
        shard.optimize()
        shard.close()
        files = [file for file in path.rglob("vector_storage-*/**/*") if file.is_file()]
        sizes[name] = sum(file.stat().st_blocks * 512 for file in files)
    assert sizes["binary"] > sizes["int8"] + 2000 * 256 // 8


def test_a_lone_text_has_bits_and_no_neighbour(tiny_a, tmp_path):
    settings = interlock.Settings(roster=[tiny_a], out=tmp_path, devices="cpu", quantise="binary", bm25="off")
    run = interlock.embed(["alone"], settings, progress="none")
    rows, _ = run.bits("texts").nearest(np.ones((1, 32), np.float32), 3)
    assert rows.tolist() == [[0]]


def test_what_is_asked_of_bits_wrongly_is_refused(done):
    run, _ = done
    opened = interlock.open_run(run)
    with pytest.raises(UsageError, match=r"expected \[n, 80\], got \[3, 79\]: pass fused vectors"):
        opened.bits("Docs").nearest(unit(3, 79, 1))
    with pytest.raises(UsageError, match="at least 1, got 0 and 40: set both above 0"):
        opened.bits("Docs").nearest(unit(3, 80, 1), 0)


def test_a_run_without_bits_says_how_to_have_some(go):
    with pytest.raises(UsageError, match=r"has no bits of Docs: use Settings\(quantise='binary'\)"):
        interlock.open_run(go("plain", quantise="int8")).bits("Docs")


def test_a_run_with_bits_is_exported_into_files_and_into_a_store_of_another_form_alone(done, tmp_path):
    run, width = done
    asked = ExportRequest(store=tmp_path / "store")
    with pytest.raises(UsageError, match=r"a store keeps its vectors beside their bits.* use --quantise int8 for it"):
        export(run, load({}, {}, None), asked, lambda _: None)
    assert not (tmp_path / "store").exists()
    export(run, load({"quantise": "int8"}, {}, None), asked, lambda _: None)
    with Store.open_for_read(tmp_path / "store", "docs") as store:
        assert (store.dims, store.quantise, store.count()) == ({"fused": width}, "int8", TEXTS)
    export(run, load({"export": "npy"}, {}, None), ExportRequest(to=tmp_path / "files"), lambda _: None)
    assert np.load(tmp_path / "files" / "Docs" / "fused.npy").shape == (TEXTS, width)
