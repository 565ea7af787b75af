"""A run that is cut into shards is together what one run is: nothing twice, nothing lost, whatever is killed."""

import json
import re
import shutil
import time
from collections import Counter
from types import SimpleNamespace

import numpy as np
import pyarrow.dataset as ds
import pytest
import qdrant_edge as edge

from interlock.engine.compute.controls import Controls
from interlock.engine.corpus.identity import digest_of
from interlock.engine.errors import ExitCode, UsageError
from interlock.engine.flows.export import ExportRequest, export
from interlock.engine.flows.run import Run
from interlock.engine.record.shards import Shard, part_of, shard_in, whole_name
from interlock.engine.settings import load
from interlock.engine.targets.layout import shards_in
from tests.builders import corpus, interlock, sentences, start, summary_of, tiny_sparse
from tests.uploads import Uploads, bridged


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
    corpus(place, {"Docs": {"a.jsonl": docs}, "More": {"b.jsonl": more}, "Cells": {"c.jsonl": sentences(60) * 2}})
    cut = json.dumps([{"text": text} for text in sentences(40, start=360)])
    (place / "Docs" / "z_chunks.json").write_text(cut[: len(cut) // 2])
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


def run(chunks, out, flags, shard="", code=ExitCode.COMPLETED, **more):
    """Run a shard, or all; the run's directory."""
    name = f"run-{shard.replace('/', '-of-') or 'whole'}"
    given = {**flags, "out": str(out), "run_id": name, **({"shard": shard} if shard else {}), **more}
    assert Run(chunks, load(given, {}, None), Controls()).go() == code
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
    other = run(chunks, tmp_path, flags, "1/3")
    for stranger in (whole, other):
        with pytest.raises(UsageError, match=r"of run .*, of other texts, settings or shards: choose another --to"):
            export(stranger, load({"export": "parquet"}, {}, None), ExportRequest(to=to), told.append)
    with pytest.raises(UsageError, match="--vectors int8 is scaled by all vectors"):
        export(shards[0], load({}, {}, None), ExportRequest(to=tmp_path / "b", precision="int8"), told.append)
    for otherwise, precision in (({"payload": "flat"}, "float32"), ({}, "float16")):
        with pytest.raises(UsageError, match="of other texts, settings or shards"):
            now = load({"export": "parquet", **otherwise}, {}, None)
            export(shards[1], now, ExportRequest(to=to, precision=precision), told.append)
    duckdb = pytest.importorskip("duckdb")
    found = duckdb.sql(f"select count(*), count(distinct id), count(distinct text) from '{parts}'").fetchone()
    assert found == (len(wanted), len(wanted), len(set(wanted["text"].to_pylist())))


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


def held(store, collection):
    """What a store has, as its engine alone reads it."""
    shard = edge.EdgeShard.load(str(store / collection))
    found = points(shard)
    shard.close()
    return found


def points(shard):
    """By id the payload and the vectors."""
    records, _ = shard.scroll(edge.ScrollRequest(limit=10_000, with_payload=True, with_vector=True))
    return {str(each.id): (each.payload, each.vector) for each in records}


def at(bridge, name="docs"):
    return points(bridge.collections[name].shard)


def lacks(bridge, name="docs"):
    """What the marks on a server say is missing; None where there are none."""
    there = SimpleNamespace(config=SimpleNamespace(metadata=bridge.collections[name].metadata))
    found = shards_in(there)
    return found and found.gap(name)


def stored_alike(one, other):
    assert one.keys() == other.keys()
    for key, (payload, vectors) in one.items():
        assert payload == other[key][0]
        assert vectors.keys() == other[key][1].keys()
        for name, each in vectors.items():
            wanted = other[key][1][name]
            if hasattr(each, "indices"):
                mine = dict(zip(each.indices, each.values, strict=True))
                assert mine == pytest.approx(dict(zip(wanted.indices, wanted.values, strict=True)), abs=1e-4)
            else:
                np.testing.assert_allclose(each, wanted, atol=1e-5)


def test_one_store_takes_the_shards_of_a_run_in_any_order_and_says_which_lack(chunks, flags, tmp_path):
    """BM25 is among what is compared, and a shard that comes again changes nothing."""
    store = tmp_path / "store"
    run(chunks, tmp_path / "one", flags, qdrant=str(tmp_path / "whole"))
    wanted = {name: held(tmp_path / "whole", name) for name in ("docs", "more", "cells")}
    assert {*next(iter(wanted["docs"].values()))[1]} >= {"fused", "bm25"}
    for number, left in ((3, "1/3, 2/3"), (1, "2/3"), (3, "2/3"), (2, "")):
        made = tmp_path / "cut" / f"run-{number}-of-3"
        run(chunks, made.parent, flags, f"{number}/3", qdrant=str(store), resume=made.exists())
        told = [interlock("search", store, "text 7", "--collection", name).stderr for name in wanted]
        for name, text in zip(wanted, told, strict=True):
            assert ("shards: deliver" in text) is bool(left), text
            assert not left or re.search(rf"{name} has \d of 3 shards: deliver {left} too", text)
        assert (made / "summary.json").exists()
        seen = [each["verification"] for each in summary_of(made)["collections"]]
        assert all(each["ok"] and not each["stale"] for each in seen)
    for name, points in wanted.items():
        stored_alike(held(store, name), points)


def numbered(place, texts):
    records = [{"text": text, "metadata": {"chunk_id": f"c{number}"}} for number, text in enumerate(texts)]
    return corpus(place, {"Docs": {"a.jsonl": records}})


def test_a_store_mirrors_the_next_corpus_shard_by_shard(flags, tmp_path):
    """Eight texts are others, most of which fall to other shards than their points did before; four are gone."""
    own, store = {"roster": flags["roster"], "devices": "cpu"}, tmp_path / "store"
    texts = sentences(60)
    for number in (1, 2, 3):
        run(numbered(tmp_path / "in", texts), tmp_path / "old", own, f"{number}/3", qdrant=str(store))
    later = numbered(tmp_path / "later" / "in", [f"{text} new" for text in texts[:8]] + texts[8:56])
    for number in (2, 3, 1):
        made = run(later, tmp_path / "new", own, f"{number}/3", qdrant=str(store), prune="yes")
        assert summary_of(made)["collections"][0]["verification"]["ok"]
    run(later, tmp_path / "one", own, qdrant=str(tmp_path / "anew"))
    stored_alike(held(store, "docs"), held(tmp_path / "anew", "docs"))
    assert "shards" not in interlock("search", store, "text 7").stderr
    broken = numbered(tmp_path / "third" / "in", texts[:50])
    with (broken / "Docs" / "a.jsonl").open("a") as file:
        file.write('{"text": ""}\n')
    for number in (1, 2, 3):  # what one shard could not read may be another's
        made = run(broken, tmp_path / "last", own, f"{number}/3", qdrant=str(store), prune="yes", max_refused="1")
        seen = summary_of(made)["collections"][0]["verification"]
        assert (seen["ok"], seen["pruned"]) == (True, 0)
    assert len(held(store, "docs")) == 56


def test_shards_are_uploaded_into_one_collection_in_any_order_and_over_each_other(chunks, whole, flags, tmp_path):
    runs = {each: run(chunks, tmp_path, flags, f"{each}/3") for each in (1, 2, 3)}

    def going(bridge, each):
        one = Uploads(bridge, runs.get(each, each), tmp_path / f"uploads-{bridge is plain}-{each}")
        return one, one(wanted="Docs", alias="" if bridge is plain else "live")

    with bridged(tmp_path / "one") as alone, bridged(tmp_path / "plain") as bridge:
        plain = bridge
        Uploads(alone, whole, tmp_path / "w")(wanted="Docs")
        wanted = at(alone, "docs")
        for each, left in ((2, "1/3, 3/3"), (2, "1/3, 3/3"), (1, "3/3"), (3, ""), (1, ""), (2, "")):
            one, report = going(bridge, each)
            assert (report.stale, report.points) == (0, len(at(bridge, "docs")))
            assert any(f"shards: deliver {left} too" in text for text in one.told) is bool(left)
            assert (f"deliver {left} too" in lacks(bridge)) if left else lacks(bridge) == ""
            assert bridge.collections["docs"].hnsw["m"] == (0 if left else 16)
        stored_alike(at(bridge, "docs"), wanted)
        assert {report.sent for each in (1, 2, 3) for report in [going(bridge, each)[1]]} == {0}  # nothing twice

        texts = [f"{text} new" for text in sentences(30)] + sentences(30, start=30)
        later = numbered(tmp_path / "later" / "in", texts)
        own = {"roster": flags["roster"], "sparse": flags["sparse"], "chunk_sparse": "keywords", "devices": "cpu"}
        for each in (3, 1, 2):
            made = run(later, tmp_path / "new", own, f"{each}/3")
            Uploads(bridge, made, tmp_path / f"next-{each}")()
        assert {payload["text"] for payload, _ in at(bridge, "docs").values()} > {*texts}  # and those of before
        assert going(bridge, 2)[1].sent > 0  # of the corpus before: it has no mark any more, and says so
        assert "deliver 1/3, 3/3 too" in lacks(bridge)

    with bridged(tmp_path / "aliased") as bridge:
        for each in (3, 1, 2):
            assert "live" not in bridge.aliases
            report = going(bridge, each)[1]
            assert report.alias == ("live" if each == 2 else "")  # it says so where it did so
        (name,) = bridge.collections
        assert bridge.aliases == {"live": name}
        stored_alike(at(bridge, name), wanted)


@pytest.mark.parametrize("flag", ["--prune", "--incremental"])
def test_an_upload_of_a_shard_takes_nothing_for_known_that_another_may_change(chunks, flags, tmp_path, flag):
    part = run(chunks, tmp_path, flags, "1/2")
    done = interlock("upload", part, "--qdrant", "http://127.0.0.1:1", "--collection", "Docs", flag, check=2)
    assert f"{flag}: the run is a shard" in done.stderr and "--alias NAME" in done.stderr


def test_a_whole_upload_and_shards_take_each_others_marks(chunks, whole, flags, tmp_path):
    part = run(chunks, tmp_path, flags, "1/2")
    with bridged(tmp_path / "bridge") as bridge:
        one, other = (Uploads(bridge, each, tmp_path / f"to-{each.name}") for each in (whole, part))
        rows = one(wanted="Docs").rows
        assert other(wanted="Docs").sent > 0
        assert "deliver 2/2 too" in lacks(bridge)
        assert one(wanted="Docs").sent == rows
        assert lacks(bridge) is None


def test_a_command_says_whether_the_shards_of_a_run_are_all_there(chunks, whole, flags, tmp_path):
    def check(code, *places):
        done = interlock("runs", *(places or ("--out", tmp_path)), "--shards", check=code)
        return done.stdout.splitlines(), done.stderr

    for number in (1, 3):
        run(chunks, tmp_path, flags, f"{number}/3")
    out, err = check(1)
    assert out[0] == "2 of 3 shards completed" and "no run of 2/3: run them, or name where they are" in err
    (union,) = json.loads(interlock("runs", "--out", tmp_path, "--shards", "--json", check=1).stdout)
    assert (union["told"], union["faults"]) == (out, ["no run of 2/3: run them, or name where they are"])
    elsewhere = run(chunks, tmp_path / "another", flags, "2/3")
    out, err = check(0, tmp_path, elsewhere)
    assert (out[0], err) == ("3 of 3 shards completed", "")
    for name, wanted in counted([whole]).items():
        kinds = f"{wanted['chunks']:,} chunks + {wanted['same']:,} the same + {wanted['refused']:,} refused"
        (line,) = (each for each in out if each.startswith(f"{name}: "))
        assert line.startswith(f"{name}: {wanted['records']:,} records = {kinds}")
        assert line.endswith("; 1 file refused") is (name == "Docs")
    assert "1 file refused" in out[2] + out[1] + out[3]

    again = run(chunks, tmp_path / "twice", flags, "2/3")
    assert "shard 2/3 is there 2 times: keep one of run-2-of-3" in check(1, tmp_path, elsewhere, again)[1]
    other = run(chunks, tmp_path / "other", flags, "2/3", keep="both")
    assert "--keep is not the same in all (both; fused): run those anew" in check(1, tmp_path, other)[1]
    changed = tmp_path / "changed"
    shutil.copytree(chunks, changed)
    with (changed / "Docs" / "a.jsonl").open("a") as file:
        file.write('{"text": "one more"}\n')
    later = run(changed, tmp_path / "later", flags, "2/3")
    out, err = check(1, tmp_path, later)
    assert [line for line in out if "completed" in line] == ["2 of 3 shards completed", "1 of 3 shards completed"]
    failed = run(chunks, tmp_path / "refused", {**flags, "max_refused": "0"}, "2/3", code=ExitCode.FAILED)
    assert "shard 2/3 is incomplete" in check(1, tmp_path, failed)[1]
    assert "is a shard: name runs made with --shard K/N" in check(2, whole)[1]


def test_a_shard_is_uploaded_while_another_is(chunks, whole, flags, tmp_path, monkeypatch):
    monkeypatch.setattr("interlock.engine.targets.collection.MOST_POINTS", 16)
    with bridged(tmp_path / "bridge") as bridge, bridged(tmp_path / "one") as alone:
        one, other = (
            Uploads(bridge, run(chunks, tmp_path, flags, each), tmp_path / f"to-{each[0]}") for each in ("1/2", "2/2")
        )
        left = [3]

        def seen(request):
            left[0] -= (request.method, request.url.path) == ("PUT", "/collections/docs/points")
            if left == [0]:
                left[0] = -1
                other(wanted="Docs")

        one.seen = seen
        one(wanted="Docs")
        assert left[0] < 0 and lacks(bridge) == ""
        assert {each(wanted="Docs").sent for each in (one, other)} == {0}
        Uploads(alone, whole, tmp_path / "w")(wanted="Docs")
        stored_alike(at(bridge), at(alone))
