"""`--compact`: a store whose vectors are few and small and whose terms of BM25 are made again of its texts."""

import json
from uuid import UUID

import numpy as np
import pytest

import interlock
from interlock.engine.compute.controls import Controls
from interlock.engine.errors import ExitCode
from interlock.engine.flows.opening import form_of
from interlock.engine.flows.run import Run
from interlock.engine.record.events import StoreVerified, Warned
from interlock.engine.settings import load
from interlock.engine.targets.embedded import Store
from interlock.engine.vectors.points import Point
from tests.builders import corpus, events_of, sentences

OFFLINE = interlock.Settings(offline=True)
TEXTS = sentences(60)


@pytest.fixture(scope="module")
def run(tmp_path_factory, tiny_a, tiny_b):
    place = tmp_path_factory.mktemp("compact")

    def go(run_id, texts=60, **settings):
        rows = [{"text": text, "metadata": {"even": at % 2 == 0, "n": at}} for at, text in enumerate(TEXTS[:texts])]
        root = corpus(place / "in", {"Docs": {"a.jsonl": rows}})
        given = {"roster": f"{tiny_a}=0.3,{tiny_b}=0.7", "out": str(place / "runs"), "run_id": run_id}
        given |= {"qdrant": str(place / run_id), "offline": True, **settings}
        made = Run(root, load(given, {}), Controls())
        assert made.go() == ExitCode.COMPLETED
        return made.directory.path

    return go


@pytest.fixture(scope="module")
def stores(run):
    """A compact store, and one that is it in all but the switch."""
    compact, plain = run("small", compact=True, project=24), run("plain", quantise="int8", project=24)
    assert all(events_of(each, StoreVerified)[-1].ok for each in (compact, plain))
    return compact.parents[1] / "small", compact.parents[1] / "plain"


def test_a_compact_store_says_so_and_keeps_eight_bits_a_number_and_no_terms(stores):
    manifest = json.loads((stores[0] / "docs" / "manifest.json").read_text())
    assert manifest["compact"] and manifest["quantised"] == "int8" and manifest["projection"]["dim"] == 24
    kept = [{each.name for each in (store / "docs").rglob("vector_storage-*")} for store in stores]
    assert kept == [{"vector_storage-fused"}, {"vector_storage-fused", "vector_storage-bm25"}]
    assert "compact" not in json.loads((stores[1] / "docs" / "manifest.json").read_text())


@pytest.mark.parametrize(
    "asked",
    [{"limit": 5}, {"only": "bm25", "limit": 60}, {"only": "bm25", "limit": 1}, {"where": "metadata.n>=30"}],
    ids=["hybrid", "bm25", "one", "filtered"],
)
def test_it_answers_as_the_same_store_that_keeps_its_terms(stores, asked):
    for text in TEXTS[::9]:
        small, plain = (interlock.search(store, text, settings=OFFLINE, **asked) for store in stores)
        assert [hit.id for hit in small] == [hit.id for hit in plain] and small
        assert [hit.score for hit in small] == pytest.approx([hit.score for hit in plain], rel=1e-5)


def test_its_terms_are_those_of_the_delivery_and_its_scores_those_of_brute_force(stores):
    with (
        Store.open_for_read(stores[0], "docs") as small,
        Store.open_for_read(stores[1], "docs") as plain,
    ):
        (ids,) = plain.ids()
        kept, made = plain.read(ids), small.read(ids)
        assert all(made[id].sparse["bm25"].same(kept[id].sparse["bm25"]) for id in ids)
        assert small.read(ids[:1], ["bm25"])[ids[0]].vectors == {}
        terms = sorted({int(term) for point in kept.values() for term in point.sparse["bm25"].indices})
        table = np.zeros((len(ids), len(terms)))
        for at, id in enumerate(ids):
            own = kept[id].sparse["bm25"]
            table[at, np.searchsorted(terms, own.indices)] = own.values
        having = (table > 0).sum(axis=0)
        rarity = np.log(1 + (len(ids) - having + 0.5) / (having + 0.5))
        for id in ids[::7]:
            question = kept[id].sparse["bm25"]
            asked = np.zeros(len(terms))
            asked[np.searchsorted(terms, question.indices)] = question.values
            wanted = dict(zip(ids, (table * rarity) @ asked, strict=True))
            found = small.query("bm25", question, 5, among=ids[:40])
            best = sorted((score for id, score in wanted.items() if id in ids[:40] and score > 0), reverse=True)[:5]
            assert list(found.values()) == pytest.approx(best, rel=1e-5)
            assert all(score == pytest.approx(wanted[id], rel=1e-5) for id, score in found.items())


def test_what_is_written_or_removed_is_found_or_not_at_once(stores, run):
    run("changing", compact=True, project=24)
    with Store.open_for_removal(stores[0].parent / "changing", "docs") as store:
        (ids,) = store.ids()
        question = store.read(ids[:1])[ids[0]].sparse["bm25"]
        assert ids[0] in store.query("bm25", question, 60)
        store.remove(ids[:1])
        assert ids[0] not in store.query("bm25", question, 60)
        new = str(UUID(int=5))
        store.upsert([Point(new, {"text": TEXTS[0]}, {"fused": np.ones(24, np.float32)})], 100)
        assert new in store.query("bm25", question, 60)


def test_a_store_stays_compact_or_not_whatever_a_later_run_asks_for(run, stores):
    for made, asks in (("small", {"quantise": "int8"}), ("plain", {"compact": True})):
        before = json.loads((stores[0].parent / made / "docs" / "manifest.json").read_text())
        done = run(f"{made}-again", qdrant=str(stores[0].parent / made), project=24, **asks)
        after = json.loads((stores[0].parent / made / "docs" / "manifest.json").read_text())
        assert after.get("compact") == before.get("compact") and events_of(done, StoreVerified)[-1].ok
        assert any("--compact or not" in each.message for each in events_of(done, Warned)) == (made == "plain")


def test_a_run_is_exported_resumed_and_reused_as_a_compact_store(run, stores):
    plain, place = stores[1].parent / "runs" / "plain", stores[0].parent
    interlock.open_run(plain)
    run("small", compact=True, project=24, resume=True)
    run("reused", compact=True, project=24, reuse=str(plain))
    found = [
        [hit.id for hit in interlock.search(place / name, TEXTS[5], settings=OFFLINE)] for name in ("reused", "small")
    ]
    assert found[0] == found[1]


def test_vectors_are_projected_only_where_there_are_more_dimensions_and_as_many_texts():
    settings = load({"compact": "yes"}, {}).settings
    assert (settings.project, settings.quantise) == (384, "int8")
    wide = {"a": 384, "b": 1024}
    assert form_of(settings, wide, 400).project == 384
    assert form_of(settings, wide, 383).project == form_of(settings, {"a": 384}, 400).project == 0
    own = load({"compact": "yes", "project": "256"}, {"INTERLOCK_QUANTISE": "none"}).settings
    assert (own.project, own.quantise) == (256, "none")
    none = load({}, {}).settings
    assert (none.project, none.quantise, none.compact) == (0, "none", False)


@pytest.mark.parametrize("asked", [{"fusion": "named"}, {"keep": "members"}])
def test_a_compact_store_without_fused_vectors_keeps_each_models_in_eight_bits(run, asked):
    made = run(f"each-{next(iter(asked))}", compact=True, **asked)
    (verified,) = events_of(made, StoreVerified)
    manifest = json.loads((made.parents[1] / made.name / "docs" / "manifest.json").read_text())
    assert verified.ok and manifest["compact"] and manifest["quantised"] == "int8"
    assert not manifest.get("projection") and len(manifest["models"]) == 2
