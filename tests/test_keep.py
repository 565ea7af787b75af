"""Each vector is kept once: `--keep` says whether a store holds the fused one, the models' own, or both."""

import json
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow.parquet as pq
import pytest

import interlock
from interlock.engine.compute.controls import Controls
from interlock.engine.errors import ExitCode, UsageError
from interlock.engine.flows.forecast import forecast
from interlock.engine.flows.run import Run
from interlock.engine.record.events import StoreVerified, Warned
from interlock.engine.settings import load
from interlock.engine.targets.embedded import Store
from interlock.engine.vectors.fusion import Fusion
from interlock.engine.vectors.manifest import CollectionSpec
from interlock.engine.vectors.precision import VectorForm
from tests.builders import corpus, events_of, roster_entry, sentences

QUERY = sentences(30)[7]


class Place(NamedTuple):
    path: Path
    chunks: Path
    roster: str

    def run(self, run_id, **settings):
        given = {"roster": self.roster, "out": str(self.path / "runs"), "run_id": run_id, "offline": True}
        given |= {"qdrant": str(self.path / f"store-{run_id}"), **settings}
        run = Run(self.chunks, load(given, {}), Controls())
        assert run.go() == ExitCode.COMPLETED
        return run.directory.path

    def names(self, run_id):
        exports = self.path / "runs" / run_id / "exports" / "Docs"
        with Store.open_for_read(self.path / f"store-{run_id}", "docs") as store:
            columns = pq.read_schema(exports / "points.parquet").names[5:]
            return {file.stem for file in exports.glob("*.npy")}, {*columns}, {*store.dims}


@pytest.fixture
def place(tmp_path, tiny_a, tiny_b, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return Place(tmp_path, corpus(tmp_path / "in", {"Docs": {"a.jsonl": sentences(30)}}), f"{tiny_a}=0.3,{tiny_b}=0.7")


MEMBERS = {"tiny-a", "tiny-b"}


@pytest.mark.parametrize(
    ("settings", "kept"),
    [({}, {"fused"}), ({"keep": "members"}, MEMBERS), ({"keep": "both"}, MEMBERS | {"fused"})],
)
def test_a_store_and_the_table_keep_what_is_asked_for_and_are_searched_alike(place, settings, kept):
    run = place.run("r", **settings)
    assert place.names("r") == (MEMBERS | {"fused"}, kept, kept)
    assert events_of(run, StoreVerified)[-1].ok
    fused = np.load(run / "exports" / "Docs" / "fused.npy")
    ids = interlock.open_run(run).vectors("Docs").ids
    hits = interlock.search(place.path / "store-r", QUERY, settings=interlock.Settings(offline=True))
    assert [hit.id for hit in hits] == [ids[row] for row in np.argsort(-fused @ fused[7])[: len(hits)]]
    with Store.open_for_read(place.path / "store-r", "docs") as store:
        for name in kept:
            stored = np.stack([point.vectors[name] for point in [*store.read(ids).values()]])
            whole = np.load(run / "exports" / "Docs" / f"{name}.npy")
            np.testing.assert_allclose(stored, whole, atol=1e-6)


@pytest.mark.parametrize(
    ("settings", "name"), [({}, "fused"), ({"fusion": "mean"}, "fused"), ({"keep": "members"}, "tiny-a")]
)
def test_the_vectors_of_a_lone_model_are_kept_once_and_found_by_either_name(place, tiny_a, settings, name):
    run = place.run("r", roster=str(tiny_a), **settings)
    assert place.names("r") == ({name}, {name}, {name})
    opened = interlock.open_run(run)
    for asked in ("fused", "tiny-a"):
        found = opened.vectors("Docs", asked)
        assert (found.model, found.array.shape, len(found.ids)) == (asked, (30, 32), 30)
    with pytest.raises(UsageError, match=f"by 'tiny-b': available {name}"):
        opened.vectors("Docs", "tiny-b")
    hits = interlock.search(place.path / "store-r", QUERY, settings=interlock.Settings(offline=True))
    assert hits[0].payload["text"] == QUERY


def test_a_lone_model_can_be_asked_for_under_both_names(place, tiny_a):
    place.run("r", roster=str(tiny_a), keep="both")
    assert place.names("r") == ({"tiny-a", "fused"},) * 3


def test_fused_vectors_alone_take_a_fraction_of_the_room(place):
    sizes = {}
    for keep in ("fused", "both"):
        run = place.run(keep, keep=keep)
        sizes[keep] = (run / "exports" / "Docs" / "points.parquet").stat().st_size
    assert sizes["fused"] < 0.7 * sizes["both"]


def as_of_older_versions(store):
    """What a version wrote that knew of no form: both, and not a word of it."""
    manifest = json.loads((store / "docs" / "manifest.json").read_text())
    assert "keep" not in manifest


def test_a_store_of_older_versions_keeps_both_when_it_is_delivered_into_again(place):
    place.run("old", keep="both")
    store = place.path / "store-old"
    as_of_older_versions(store)
    again = place.run("again", qdrant=str(store))
    (told,) = [each.message for each in events_of(again, Warned) if "--keep" in each.message]
    assert "was made with --keep both and stays so, not --keep fused: choose another store directory" in told
    assert events_of(again, StoreVerified)[-1].ok
    with Store.open_for_read(store, "docs") as opened:
        assert opened.dims.keys() == MEMBERS | {"fused"}
        assert opened.count() == 30
    as_of_older_versions(store)
    hits = interlock.search(store, QUERY, settings=interlock.Settings(offline=True))
    assert hits[0].payload["text"] == QUERY


def test_a_resumed_run_keeps_what_it_was_begun_with(place):
    place.run("r", keep="both")
    place.run("r", resume=True)
    assert place.names("r")[2] == MEMBERS | {"fused"}


def test_members_alone_are_refused_where_they_would_lose_the_means(place):
    with pytest.raises(UsageError, match=r"--keep members has nothing of --fusion mean.* use --fusion named"):
        place.run("r", keep="members", fusion="mean")
    assert not (place.path / "runs").exists()


def test_fused_vectors_are_nothing_to_ask_for_where_none_are_made(place):
    run = place.run("r", fusion="named", keep="fused")
    assert any("--keep fused: named makes no fused vector" in each.message for each in events_of(run, Warned))
    assert place.names("r") == (MEMBERS,) * 3
    silent = place.run("s", fusion="named")
    assert not any("--keep" in each.message for each in events_of(silent, Warned))


def test_a_plan_says_the_same_as_the_run(place):
    planned = forecast(place.chunks, load({"roster": place.roster, "fusion": "named", "keep": "fused"}, {}))
    assert any("--keep fused" in each for each in planned.overlooked)


def test_a_store_means_the_same_whether_its_form_was_typed_or_read_from_a_run():
    """A text that was read is another object than the default, whatever it says."""
    read = VectorForm(keep=json.loads('"both"'), quantise=json.loads('"none"'))
    specs = (CollectionSpec("docs", Fusion.CONCAT, [roster_entry()], "r", form=form) for form in (VectorForm(), read))
    typed, again = (spec.manifest for spec in specs)
    assert again == typed
    assert {"keep", "quantised"} & typed.keys() == set()
