"""`--payload flat` puts what a chunk's metadata says at the top of a payload: of a store, of files, of a server."""

import json
from itertools import product

import pytest

from interlock.engine.compute.controls import Controls
from interlock.engine.errors import UsageError
from interlock.engine.flows.export import ExportRequest, export
from interlock.engine.flows.run import Run
from interlock.engine.search.conditions import check_keys, filter_of, read_condition
from interlock.engine.search.hits import Hit
from interlock.engine.search.served import ServerPlace
from interlock.engine.settings import load
from interlock.engine.targets.embedded import Store
from interlock.engine.targets.files.exported import ExportedRun
from tests.builders import sentences
from tests.edge_bridge import serving
from tests.uploads import Uploads, bridged

METADATA = {"lang": "en", "page": 3, "text": "its own", "record": 1, "chunk_id": "c", "deep": {"source": "x"}}
METADATA |= {"as is": 2**60, "of.all": 2**60 + 2**40}
FLAT = {
    "text": sentences(1)[0],
    "chunk_id": "c",
    "source": "a",
    "lang": "en",
    "page": 3,
    "deep": {"source": "x"},
    "as is": 2**60,
    "of.all": 2**60 + 2**40,
    "metadata": {"text": "its own", "record": 1, "chunk_id": "c"},
    "record": {"title": "T"},
}
NESTED = {**{key: FLAT[key] for key in ("text", "chunk_id", "source", "record")}, "metadata": METADATA}


@pytest.fixture
def delivered(tmp_path, tiny_a):
    """Runs of one chunk, by their names and settings: their directory."""
    chunks = tmp_path / "in" / "Docs" / "a.jsonl"
    chunks.parent.mkdir(parents=True)
    chunks.write_text(json.dumps({"text": sentences(1)[0], "metadata": METADATA, "title": "T"}) + "\n")

    def run(name, **settings):
        given = {"roster": str(tiny_a), "out": str(tmp_path / "runs"), "run_id": name, "export": "parquet,jsonl"}
        given |= {"offline": True, "devices": "cpu", "qdrant": str(tmp_path / "store"), **settings}
        assert Run(chunks.parents[1], load(given, {}), Controls()).go() == 0
        return tmp_path / "runs" / name

    return run


def held(store):
    with Store.open_for_read(store, "docs") as there:
        return dict(there.some_payloads(9)[0])


def sent(run, payload=None):
    [collection] = ExportedRun.open(run).collections(payload=payload)
    [point], [sampled] = collection.points(), collection.sampled(9)
    assert point.payload == sampled.payload
    return point.payload, collection


def test_flat_payloads_are_alike_in_a_store_its_files_and_an_upload(delivered, tmp_path):
    run = delivered("flat", payload="flat")
    line = json.loads((run / "exports" / "Docs" / "points.jsonl").read_text())
    payload, collection = sent(run)
    assert held(tmp_path / "store") == line["payload"] == payload == {**FLAT, "source": payload["source"]}
    assert collection.manifest["payload"] == "flat"


def test_a_store_of_flat_payloads_is_filtered_by_the_bare_key(delivered, tmp_path):
    run = delivered("flat", payload="flat")
    conditions = ["lang=en", "page>=3", "metadata.text=its own", "record.title=T"]
    conditions += [f'"as is">{2**59}', f'"of.all"={2**60 + 2**40}', f'"of.all">{2**60}']
    with bridged(tmp_path / "bridge") as bridge, serving(bridge) as url:
        Uploads(bridge, run, tmp_path / "uploads")()
        with Store.open_for_read(tmp_path / "store", "docs") as store, ServerPlace(url).open("docs") as served:
            for condition, place in product(conditions, (store, served)):
                assert place.has(filter_of([read_condition(condition)], place)), (condition, place)
            with pytest.raises(UsageError, match=r"did you mean lang\?"):
                check_keys(store, [read_condition("metadata.lang=en")])


def test_an_export_and_an_upload_give_a_run_the_other_form_with_another_fingerprint(delivered, tmp_path):
    run = delivered("nested")
    payload, collection = sent(run)
    assert payload == {**NESTED, "source": payload["source"]}
    assert "payload" not in collection.manifest  # as it was before there was a choice
    flat, other = sent(run, "flat")
    assert flat == {**FLAT, "source": payload["source"]}
    assert other.fingerprint != collection.fingerprint
    export(run, load({"payload": "flat"}, {}), ExportRequest(store=tmp_path / "other"), lambda _: None)
    assert held(tmp_path / "other") == flat


@pytest.mark.parametrize(("first", "then"), [("nested", "flat"), ("flat", "nested")])
def test_a_store_of_the_other_form_is_refused_before_anything_is_computed(delivered, first, then):
    delivered("one", payload=first)
    with pytest.raises(UsageError, match=f"was made with --payload {first}, not {then}.*pass --payload {first}"):
        delivered("two", payload=then)


def test_a_resumed_run_keeps_its_form_unless_another_is_given(delivered, tmp_path):
    run = delivered("flat", payload="flat", qdrant="")
    for again, store in ({}, "kept"), ({"payload": "nested"}, "given"):
        export(run, load(again, {}), ExportRequest(store=tmp_path / store), lambda _: None)
    assert "lang" in held(tmp_path / "kept")
    assert "lang" in held(tmp_path / "given")["metadata"]


def test_a_hit_of_a_flat_payload_names_what_its_metadata_says_it_is_from():
    assert Hit("p", 1.0, {"source": "a", "source_path": "docs/x.md"}).source == "docs/x.md"
    assert Hit("p", 1.0, {"source": "a", "url": "http://x"}).source == "http://x"
    assert Hit("p", 1.0, {"source": "a"}).source == "a"
