"""A run that is cut into shards is together what one run is: nothing twice, nothing lost, whatever is killed."""

import json
import time
from collections import Counter

import numpy as np
import pyarrow.dataset as ds
import pytest

from interlock.engine.compute.controls import Controls
from interlock.engine.corpus.identity import digest_of
from interlock.engine.corpus.naming import Shard, part_of, shard_in, whole_name
from interlock.engine.errors import ExitCode, UsageError
from interlock.engine.flows.export import ExportRequest, export
from interlock.engine.flows.run import Run
from interlock.engine.settings import load
from tests.builders import corpus, interlock, sentences, start, summary_of, tiny_sparse


def records():
    """Texts that are there twice, ids that are there twice, copies, and what is no record."""
    texts = sentences(400)
    docs = [{"text": text, "metadata": {"n": n}} for n, text in enumerate(texts[:250])]
    docs += [{"text": text, "metadata": {"chunk_id": f"id{n % 7}"}} for n, text in enumerate(texts[250:290])]
    docs += [docs[3], docs[5], docs[260], {"text": texts[0], "metadata": {"n": "again"}}]
    docs += [{"text": "equal"} for _ in range(9)]
    docs += [
        {"text": ""},
        {"nothing": 1},
        [1],
        {"text": " "},
        {"text": "x", "metadata": 3},
        {"text": "y", "metadata": []},
    ]
    return docs, [{"text": text, "sparse_features": {f"w{n}": 1.5}} for n, text in enumerate(texts[200:330])]


@pytest.fixture(scope="module")
def chunks(tmp_path_factory):
    place, (docs, more) = tmp_path_factory.mktemp("shards") / "in", records()
    corpus(place, {"Docs": {"a.jsonl": docs}, "More": {"b.jsonl": more}})
    cut = json.dumps([{"text": text} for text in sentences(40, start=360)])
    (place / "Docs" / "z_chunks.json").write_text(cut[: len(cut) // 2])
    (place / "Cells").mkdir()
    (place / "Cells" / "c.csv").write_text("text,lang\n" + "".join(f"{text},en\n" for text in sentences(60) * 2))
    return place


@pytest.fixture(scope="module")
def terms(tmp_path_factory):
    return tiny_sparse(tmp_path_factory.mktemp("model") / "terms")


@pytest.fixture(scope="module")
def flags(tiny_a, terms):
    return {
        "roster": str(tiny_a),
        "sparse": str(terms),
        "chunk_sparse": "keywords",
        "devices": "cpu",
        "max_refused": "9,files",
    }


def run(chunks, out, flags, shard="", **more):
    """Run a shard, or all; the run's directory."""
    name = f"run-{shard.replace('/', '-of-') or 'whole'}"
    given = {**flags, "out": str(out), "run_id": name, **({"shard": shard} if shard else {}), **more}
    assert Run(chunks, load(given, {}, None), Controls()).go() == ExitCode.COMPLETED
    return out / name


@pytest.fixture(scope="module")
def whole(chunks, tmp_path_factory, flags):
    return run(chunks, tmp_path_factory.mktemp("whole"), flags)


def tables(runs, collection):
    return ds.dataset([path for each in runs for path in each.glob(f"exports/{collection}/*.parquet")]).to_table()


def by_id(table):
    rows = table.to_pylist()
    assert len({row["id"] for row in rows}) == len(rows)
    return {row["id"]: row for row in rows}


def alike(one, other):
    """The same rows, but for the last bits of vectors, which hang on what else was in a batch."""
    assert one.keys() == other.keys()
    for key, row in one.items():
        for name, value in row.items():
            if name == "fused":
                np.testing.assert_allclose(value, other[key][name], atol=1e-5)
            elif isinstance(value, dict):
                assert value["indices"] == other[key][name]["indices"]
                np.testing.assert_allclose(value["values"], other[key][name]["values"], atol=1e-4)
            else:
                assert value == other[key][name]


def counted(runs):
    """What each run counted of each collection, with the parts that only one of them may count."""
    found = {}
    for each in runs:
        for one in summary_of(each)["collections"]:
            records = one["refused"] - one["refused_files"]
            assert one["records"] == one["chunks"] + one["same"] + records
            found.setdefault(one["name"], Counter()).update(
                records=one["records"], chunks=one["chunks"], same=one["same"], refused=records, renamed=one["renamed"]
            )
    return found


@pytest.mark.parametrize("of", [1, 2, 3, 5])
def test_the_shards_of_a_run_are_together_what_one_run_is(chunks, whole, flags, tmp_path, of):
    shards = [run(chunks, tmp_path, flags, f"{number}/{of}") for number in range(1, of + 1)]
    for name in ("Docs", "More", "Cells"):
        alike(by_id(tables(shards, name)), by_id(tables([whole], name)))
    assert counted(shards) == counted([whole])
    docs, _ = records()
    assert counted(shards)["Docs"]["records"] == len(docs) + sum(
        each["records"] - len(docs) for each in summary_of(whole)["collections"] if each["name"] == "Docs"
    )
    for number, each in enumerate(shards, 1):
        names = sorted(path.name for path in each.glob("exports/*/*"))
        assert all(f"-{number:05}-of-{of:05}." in name for name in names)
        for collection in summary_of(each)["collections"]:
            rest, own = collection["elsewhere"], collection
            total = counted([whole])[own["name"]]
            assert own["chunks"] + rest["chunks"] == total["chunks"]
            assert own["same"] + rest["same"] == total["same"]
            assert own["refused"] - own["refused_files"] + rest["refused"] == total["refused"]
        for text in by_id(tables([each], "Docs")).values():
            assert Shard(number, of).has(digest_of(text["text"]))


def test_a_folder_of_parts_is_one_table(chunks, whole, flags, tmp_path):
    """As DuckDB and pyarrow read them; another run's part is refused there, and a part is written over by its own."""
    shards = [run(chunks, tmp_path, flags, f"{number}/2") for number in (1, 2)]
    told, to = [], tmp_path / "set"
    for each in [*shards, shards[0]]:
        export(each, load({"export": "parquet"}, {}, None), ExportRequest(to=to), told.append)
    parts = str(to / "Docs" / "points-*.parquet")
    wanted = tables([whole], "Docs")
    alike(by_id(ds.dataset(sorted(to.glob("Docs/*.parquet"))).to_table()), by_id(wanted))
    duckdb = pytest.importorskip("duckdb")
    found = duckdb.sql(f"select count(*), count(distinct id), count(distinct text) from '{parts}'").fetchone()
    assert found == (len(wanted), len(wanted), len(set(wanted["text"].to_pylist())))
    other = run(chunks, tmp_path, flags, "1/3")
    for stranger in (whole, other):
        with pytest.raises(UsageError, match=r"of run .*, of other texts, settings or shards: choose another --to"):
            export(stranger, load({"export": "parquet"}, {}, None), ExportRequest(to=to), told.append)
    with pytest.raises(UsageError, match="--vectors int8 is scaled by all vectors"):
        export(shards[0], load({}, {}, None), ExportRequest(to=tmp_path / "b", precision="int8"), told.append)


def test_a_shard_that_is_killed_goes_on_as_itself_beside_the_others(chunks, whole, flags, tmp_path):
    words = ["--out", tmp_path, "--roster", flags["roster"], "--sparse", flags["sparse"], "--max-refused", "9,files"]
    words += ["--devices", "cpu", "--offline", "--chunk-sparse", "keywords", "--threads", "1", "--log-json", "--resume"]
    kills = Counter()
    for shard in ("1/3", "2/3", "3/3") * 4:
        process = start("run", chunks, *words, "--shard", shard)
        while kills[shard] < 3 and process.poll() is None:
            done = [text for each in tmp_path.glob("*/journal.jsonl") if shard in (text := each.read_text())]
            if done and done[0].count('"batch_committed"') > kills[shard]:
                kills[shard] += 1
                process.kill()
            time.sleep(0.01)
        process.communicate(timeout=60)
    assert kills == {"1/3": 3, "2/3": 3, "3/3": 3}
    runs = [each.parent for each in tmp_path.glob("*/run.json")]
    assert sorted(json.loads((each / "run.json").read_text())["shard"] for each in runs) == ["1/3", "2/3", "3/3"]
    for name in ("Docs", "More", "Cells"):
        alike(by_id(tables(runs, name)), by_id(tables([whole], name)))
    assert counted(runs) == counted([whole])


def test_a_run_keeps_its_shard_and_a_shard_what_it_can_know(chunks, whole, flags, tmp_path):
    one = run(chunks, tmp_path, flags, "1/2")
    before = {path: path.read_bytes() for path in one.rglob("*.npy")}
    again = {**flags, "out": str(tmp_path), "run_id": one.name, "resume": True}
    assert Run(chunks, load(again, {}, None), Controls()).go() == ExitCode.COMPLETED  # as it was begun
    assert {path: path.read_bytes() for path in one.rglob("*.npy")} == before
    for shard in ("2/2", "1/3"):
        with pytest.raises(UsageError, match=f'--shard was "1/2", is now "{shard}"'):
            Run(chunks, load({**again, "shard": shard}, {}, None), Controls()).go()
    for setting in ({"project": "8"}, {"quantise": "int8"}, {"compact": "yes"}):
        with pytest.raises(UsageError, match="is fitted on all vectors, of which shard 1/2 has its share: drop it"):
            run(chunks, tmp_path / "x", flags, "1/2", **setting)
    with pytest.raises(UsageError, match="nothing to embed: shard 7/9 has none of 1 chunk: choose fewer shards"):
        run(corpus(tmp_path / "few", {"Docs": {"a.jsonl": ["one text"]}}), tmp_path / "y", flags, "7/9")
    taken = run(chunks, tmp_path / "z", flags, "2/3", reuse=str(whole))
    docs = next(each for each in summary_of(taken)["collections"] if each["name"] == "Docs")
    assert [each["rows_reused"] > 50 and not each["batches"] for each in docs["passes"]] == [True, True]


def test_how_a_shard_is_written():
    assert [shard_in(text) for text in ("", "3/8", " 03 / 8 ")] == [None, Shard(3, 8), Shard(3, 8)]
    for odd in ("0/3", "4/3", "3", "/3", "a/b", "1/100000", "-1/3", "１/３"):
        with pytest.raises(ValueError, match="expected K/N, such as 3/8"):
            shard_in(odd)
    assert part_of(Shard(3, 8), "a.b-c.npy") == "a.b-c-00003-of-00008.npy"
    assert whole_name("exports/x/a.b-c-00003-of-00008.npy") == "a.b-c.npy"
    failed = interlock("run", "in", "--shard", "", check=2)
    assert "--shard: got an empty text: name one, or drop it" in failed.stderr
