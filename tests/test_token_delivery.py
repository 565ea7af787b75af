"""Token vectors as they are delivered: read with the libraries whose formats they are in, never only with our own."""

from types import SimpleNamespace

import numpy as np
import pytest
import qdrant_edge as edge
from msgspec.structs import replace as changed

from interlock.engine.compute.parts.tokens import NO_TOKENS, TokenFile, TokenRows
from interlock.engine.corpus.collections import discover
from interlock.engine.corpus.corpus import read_corpus
from interlock.engine.errors import InterlockError, UsageError
from interlock.engine.record.facts import TokenForm
from interlock.engine.targets import windows
from interlock.engine.targets.embedded import Store
from interlock.engine.targets.files import arrays
from interlock.engine.targets.files import write as files
from interlock.engine.targets.mirror import verified
from interlock.engine.targets.target import deliver as put
from interlock.engine.targets.windows import Delivery, TokenWindow, points_of
from interlock.engine.vectors.fusion import Fusion
from interlock.engine.vectors.manifest import CollectionSpec, read_manifest
from interlock.engine.vectors.points import Point
from tests.builders import corpus, roster_entry

DIM = 8
TEXTS = [*(f"text {number}" for number in range(9)), "text 3", "text 0"]
PARKED = 2
ENTRY = roster_entry(tokens=TokenForm(dim=DIM, precision="int8", pooling=1))
DIMS, LATE = {"dense": 4, "fused": 4}, {"dense-tokens": DIM}


def tokens_of(texts, precision):
    """Token vectors of so many texts, one of them parked."""
    rng = np.random.default_rng(0)
    counts = rng.integers(2, 7, texts)
    vectors = rng.standard_normal((counts.sum(), DIM)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    starts = np.concatenate([[0], np.cumsum(counts)])
    vectors[starts[PARKED]] = np.nan
    return TokenRows.from_vectors(vectors, starts, precision)


@pytest.fixture
def made(tmp_path):
    """A collection of texts, some of them twice, with dense and token vectors: its delivery, and each row's tokens."""

    def make(precision="int8"):
        read = read_corpus(discover(corpus(tmp_path / "in", {"Docs": {"a.jsonl": TEXTS}})), lambda _: None)
        distinct = len(read.digests)
        dense = np.eye(distinct, 4, dtype=np.float32) + np.float32(1e-3)
        dense /= np.linalg.norm(dense, axis=1, keepdims=True)
        tokens = tokens_of(distinct, precision)
        file = TokenFile.open(tmp_path / "passes" / "0_dense" / "token_rows.npy", distinct, DIM, precision)
        for rows in np.array_split(np.arange(distinct)[::-1], 3):
            file.put(rows, tokens.taken(rows))
        (rows,) = read.rows
        spec = CollectionSpec("docs", Fusion.CONCAT, [ENTRY], "one")
        delivery = Delivery(rows, read.digests, spec, {"dense": dense}, tokens={"dense-tokens": file})
        expected = [tokens.taken(np.array([text])).to_float32() for text in rows.texts]
        return SimpleNamespace(delivery=delivery, file=file, expected=expected, out=tmp_path / "out")

    return make


def written(made, formats=("npy", "parquet")):
    return {path.name: path for path in files.write(made.delivery, formats, made.out, {})}


def decoded(tokens):
    """Vectors [n, dim] of tokens as the documentation says that they are read."""
    if tokens.dtype.names == ("bits",):
        return (2.0 * np.unpackbits(tokens["bits"], axis=1) - 1) / np.sqrt(DIM)
    values = tokens["values"].astype(np.float32)
    return values * tokens["scale"][:, None] if "scale" in tokens.dtype.names else values


@pytest.mark.parametrize("precision", ["int8", "float16", "bit"])
def test_token_vectors_are_exported_as_two_arrays_that_numpy_maps(made, precision):
    this = made(precision)
    paths = written(this)
    tokens, starts = (np.load(paths[f"dense-tokens{end}.npy"], mmap_mode="r") for end in ("", "-starts"))
    assert (starts.dtype, len(starts), starts[0], starts[-1]) == (np.int64, len(TEXTS) + 1, 0, len(tokens))
    for row, expected in enumerate(this.expected):
        np.testing.assert_allclose(decoded(tokens[starts[row] : starts[row + 1]]), expected, atol=1e-7)
    assert starts[PARKED] == starts[PARKED + 1]


def test_more_rows_than_a_window_and_more_tokens_than_a_slice_give_the_same_bytes(made, monkeypatch):
    first = {name: path.read_bytes() for name, path in written(made(), ["npy"]).items()}
    for module in (windows, arrays):
        monkeypatch.setattr(module, "WINDOW", 4)
    monkeypatch.setattr(windows, "TOKENS", 3)
    assert {name: path.read_bytes() for name, path in written(made(), ["npy"]).items()} == first


@pytest.mark.parametrize(
    ("formats", "names"),
    [
        (["npy"], {"dense.npy", "fused.npy", "dense-tokens.npy", "dense-tokens-starts.npy"}),
        (["parquet"], {"points.parquet"}),
    ],
)
def test_token_vectors_are_arrays_only_and_no_column_of_the_table(made, formats, names):
    assert set(written(made(), formats)) == names


def test_a_collection_whose_every_row_was_parked_is_exported(made):
    this = made()
    every = np.arange(len(this.delivery.digests))
    this.file.put(every, NO_TOKENS.join(len(every), []))
    paths = written(this, ["npy"])
    assert np.load(paths["dense-tokens.npy"]).shape == (0,)
    assert not np.load(paths["dense-tokens-starts.npy"]).any()


def test_vectors_whose_tokens_are_torn_are_not_delivered(made):
    this = made()
    this.file.records.write_bytes(this.file.records.read_bytes()[:-8])
    with pytest.raises(InterlockError, match=r"tokens\.bin is damaged: --resume"):
        written(this)
    assert not list(this.out.iterdir())


@pytest.mark.parametrize("name", ["dense-tokens.npy", "dense-tokens-starts.npy"])
def test_a_file_with_other_tokens_than_the_plan_says_is_not_delivered(made, monkeypatch, name):
    this, slices, walks = made(), TokenWindow.slices, []

    def otherwise(self):
        walks.append(self)
        for rows in slices(self):
            if len(walks) == 1:
                rows.records["values"][-1, 0] ^= 1
            yield rows

    if name.endswith("starts.npy"):
        counts, asked = TokenFile.counts, []
        monkeypatch.setattr(TokenFile, "counts", lambda *args: asked.append(args) or counts(*args) + (len(asked) == 2))
    else:
        monkeypatch.setattr(TokenWindow, "slices", otherwise)
    with pytest.raises(InterlockError, match=rf"{name} differs from what was written"):
        written(this, ["npy"])
    assert not list(this.out.iterdir())


@pytest.mark.parametrize("keep", [0, 60, 300])
def test_an_array_that_is_cut_short_when_it_is_read_back_is_not_delivered(made, monkeypatch, keep):
    this, read = made(), arrays.TokenVectors.read

    def damaged(*_):
        (partial,) = this.out.glob(".dense-tokens.npy.*")
        partial.write_bytes(partial.read_bytes()[:keep])
        return read(*_)

    monkeypatch.setattr(arrays.TokenVectors, "read", damaged)
    with pytest.raises(InterlockError, match=r"dense-tokens\.npy differs from what was written"):
        written(this, ["npy"])
    assert not list(this.out.iterdir())


# In a store


def manifest(entry=ENTRY):
    return CollectionSpec("docs", Fusion.CONCAT, [entry], "one").manifest


def open_store(directory, entry=ENTRY):
    return Store.open_for_write(directory, "docs", DIMS, manifest(entry), (), LATE)


def fill(store, delivery):
    for window in delivery.windows():
        put(points_of(window, store.dims), store)


def ids_of(delivery):
    return [windows.uuid_of(point) for point in delivery.rows.points.tolist()]


def by_formula(query, tokens):
    return (query @ tokens.T).max(axis=1).sum()


@pytest.mark.parametrize("precision", ["int8", "float16", "bit"])
def test_a_store_has_the_tokens_of_each_row_in_float16_beside_its_dense_vectors(made, tmp_path, precision):
    this = made(precision)
    with open_store(tmp_path) as store:
        fill(store, this.delivery)
        seen = verified(this.delivery, store)
    assert (seen.ok, seen.points, seen.sampled) == (True, len(TEXTS), len(TEXTS))
    engine = edge.EdgeShard.load(str(tmp_path / "docs"), None)
    found = {str(each.id): each.vector for each in engine.retrieve(ids_of(this.delivery), False, True)}
    engine.close()
    for point, expected in zip(ids_of(this.delivery), this.expected, strict=True):
        assert ("dense-tokens" in found[point]) == (len(expected) > 0)
        if len(expected):
            tokens = np.array(found[point]["dense-tokens"], np.float32)
            np.testing.assert_array_equal(tokens, expected.astype(np.float16).astype(np.float32))
            assert found[point].keys() == {"dense", "fused", "dense-tokens"}


def test_the_store_scores_points_by_the_formula_of_late_interaction(made, tmp_path):
    this, query = made(), np.random.default_rng(1).standard_normal((3, DIM)).astype(np.float32)
    with open_store(tmp_path) as store:
        fill(store, this.delivery)
    with Store.open_for_read(tmp_path, "docs") as store:
        some = ids_of(this.delivery)[:6]
        scores = store.query("dense-tokens", query, len(some), among=some)
        assert store.query("dense-tokens", query, 6, among=[]) == {}
        for name, wrong in (("fused", query), ("dense-tokens", query[:, 1:]), ("dense-tokens", query * np.nan)):
            with pytest.raises(UsageError, match=r"no token vectors|token vectors .* are none of"):
                store.query(name, wrong, len(some), among=some)
    assert scores.keys() == {*some} - {some[PARKED]}
    for point, tokens in zip(some, this.expected[:6], strict=True):
        if len(tokens):
            halves = (each.astype(np.float16).astype(np.float32) for each in (query, tokens))  # as the engine compares
            assert scores[point] == pytest.approx(by_formula(*halves), abs=1e-4)


@pytest.mark.parametrize(
    "harm",
    [
        lambda tokens: {},
        lambda tokens: {"dense-tokens": tokens[1:]},
        lambda tokens: {"dense-tokens": np.nextafter(tokens, np.float16(9))},
        lambda tokens: {"dense-tokens": tokens[::-1]},
    ],
    ids=["lost", "one fewer", "other numbers", "another order"],
)
def test_a_point_with_other_tokens_than_delivered_is_told(made, tmp_path, harm):
    this = made()
    with open_store(tmp_path) as store:
        fill(store, this.delivery)
        window = next(this.delivery.windows())
        vectors = {name: matrix[1] for name, matrix in window.vectors.items()}
        payload = {"text": window.chunks[1].text}
        put([Point(ids_of(this.delivery)[1], payload, vectors, {}, harm(this.expected[1].astype(np.float16)))], store)
        seen = verified(this.delivery, store)
    assert not seen.ok
    assert "1 with other vectors than delivered" in seen.detail


@pytest.mark.parametrize(
    "form", [None, TokenForm(dim=DIM, precision="int8", pooling=2), TokenForm(dim=DIM, precision="bit", pooling=1)]
)
def test_a_store_written_with_other_token_vectors_is_refused(made, tmp_path, form):
    with open_store(tmp_path) as store:
        fill(store, made().delivery)
    with pytest.raises(UsageError, match=r"was written with other settings \(tokens"):
        open_store(tmp_path, changed(ENTRY, tokens=form))


def test_the_manifest_of_a_store_without_token_vectors_reads_as_before():
    plain = manifest(changed(ENTRY, tokens=None))
    assert "tokens" not in plain
    assert read_manifest(plain, DIMS).tokens == []


def test_a_manifest_whose_token_vectors_are_not_those_of_the_store_is_refused():
    assert read_manifest(manifest(), DIMS, (), LATE).tokens[0].tokens.pooling == 1
    for there in ({}, {"dense-tokens": DIM + 1}, {"other-tokens": DIM}):
        with pytest.raises(UsageError, match="its token vectors do not match the store"):
            read_manifest(manifest(), DIMS, (), there)
