"""summary.json is the journal, folded: byte for byte, within its schema, and never with a secret in it."""

import json

import pytest
from jsonschema import Draft202012Validator

from interlock.engine.compute.controls import Controls
from interlock.engine.errors import ExitCode
from interlock.engine.flows.run import Run
from interlock.engine.record import events as ev
from interlock.engine.record import journal, summary
from interlock.engine.record.fold import fold
from interlock.engine.record.state import RunState
from interlock.engine.settings import load
from tests.builders import committed_schema, corpus, events_of, interlock, sentences, summary_of, tiny_model

CANARIES = {"HF_TOKEN": "canary-of-hugging-face", "QDRANT_API_KEY": "canary-of-qdrant"}


def embed(chunks, out, stop=None, **flags):
    run = Run(chunks, load({"out": str(out), **flags}, {}), stop or Controls())
    return run.go(), run.directory.path


def refolded(run):
    state = RunState()
    for entry in journal.read(run / "journal.jsonl"):
        fold(state, entry)
    return summary.dumps(summary.summarise(state))


def validate(run):
    Draft202012Validator(json.loads(committed_schema())).validate(summary_of(run))


class StopAfter(Controls):
    """Stops the run when it has been asked a number of times: between two batches, as an operator would."""

    def __init__(self, batches):
        super().__init__()
        self.code = ExitCode.STOPPED
        self._left = batches

    @property
    def stop_requested(self):
        self._left -= 1
        return self._left < 0


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """Three collections: one good, one with duplicates and refusals, one of bad records only."""
    return corpus(
        tmp_path_factory.mktemp("in"),
        {
            "A": {"a_chunks.json": sentences(40)},
            "B": {"b.jsonl": [*sentences(8, start=36), {"text": 3}, "the " * 300]},
            "C": {"c_chunks.json": [{"text": ""}]},
        },
    )


@pytest.fixture(scope="module")
def finished(tmp_path_factory, root, tiny_a, tiny_b):
    place = tmp_path_factory.mktemp("finished")
    roster, store = f"{tiny_a}=0.75,{tiny_b}=0.25", str(place / "store")
    code, run = embed(root, place / "runs", roster=roster, qdrant=store, max_refused="100%")
    assert code == ExitCode.COMPLETED
    return run


def test_folding_the_journal_again_gives_the_same_summary(finished):
    assert (finished / "summary.json").read_bytes() == refolded(finished)


def test_a_summary_loaded_and_written_again_does_not_change(finished):
    data = (finished / "summary.json").read_bytes()
    assert summary.dumps(summary.load(data)) == data


def test_a_summary_from_before_the_optional_fields_loads_and_keeps_the_schema(finished):
    older = summary_of(finished)
    for collection in older["collections"]:
        del collection["refused_by_reason"], collection["pressure_passed"]
        for each in collection["passes"]:
            del each["computed"]
        for each in collection["exports"]:
            del each["verified"]
    Draft202012Validator(json.loads(committed_schema())).validate(older)
    assert [each.refused_by_reason for each in summary.load(json.dumps(older).encode()).collections] == [{}, {}, {}]


def test_the_schema_made_from_the_models_is_the_committed_one():
    assert summary.schema_text() == committed_schema()


def test_the_schema_is_valid_and_refuses_what_is_not_ours(finished):
    schema = json.loads(committed_schema())
    Draft202012Validator.check_schema(schema)
    assert not Draft202012Validator(schema).is_valid(summary_of(finished) | {"surprise": 1})
    assert not Draft202012Validator(schema).is_valid(summary_of(finished) | {"status": "fine"})


def test_every_row_is_accounted_for_in_the_summary(finished):
    first, second, third = summary_of(finished)["collections"]
    assert (first["chunks"], first["duplicates"], first["refused"]) == (40, 0, 0)
    assert (second["chunks"], second["duplicates"], second["refused"]) == (9, 4, 1)
    assert (third["status"], third["refused"]) == ("skipped", 1)
    assert [each["rows"] for each in first["passes"]] == [40, 40]
    assert [each["rows"] for each in second["passes"]] == [5, 5]
    assert second["refusals"] == [{"file": "b.jsonl", "record": 9, "reason": "Expected `str`, got `int` - at `$.text`"}]
    assert second["truncated"] == 1
    assert [each["truncated_tokens"] for each in second["passes"]] == [302 - 128] * 2
    assert [each["weight"] for each in first["passes"]] == [0.75, 0.25]


def test_each_pass_has_a_lease_with_a_receipt_and_no_residue(finished):
    first = summary_of(finished)["collections"][0]
    assert [(each["model"], each["weights_bytes"] > 0) for each in first["leases"]] == [
        ("tiny-a", True),
        ("tiny-b", True),
    ]
    for lease in first["leases"]:
        (receipt,) = lease["receipts"]
        assert receipt["residue_bytes"] == 0
        assert receipt["peak"]["allocated"] == lease["weights_bytes"]
        assert lease["predicted_bytes"] <= lease["budget_bytes"]


def test_exports_are_named_with_their_hashes_and_the_store_is_verified(finished):
    first = summary_of(finished)["collections"][0]
    assert {each["path"] for each in first["exports"]} == {
        f"exports/A/{name}" for name in ("tiny-a.npy", "tiny-b.npy", "fused.npy", "points.parquet")
    }
    assert all((finished / each["path"]).stat().st_size == each["bytes"] for each in first["exports"])
    assert (first["verification"]["ok"], first["verification"]["points"]) == (True, 40)


def test_a_stopped_run_says_what_is_missing(tmp_path, root, tiny_a):
    code, run = embed(root, tmp_path, StopAfter(3), roster=str(tiny_a))
    said = summary_of(run)
    assert (code, said["status"], said["exit_code"]) == (ExitCode.STOPPED, "stopped", 4)
    assert {each["status"] for each in said["collections"]} == {"stopped"}
    assert (run / "summary.json").read_bytes() == refolded(run)
    validate(run)


def test_a_stopped_and_resumed_run_is_one_whole_of_two_sessions(tmp_path, root, tiny_a, finished):
    _, run = embed(root, tmp_path, StopAfter(3), roster=str(tiny_a), max_refused="100%")
    code, again = embed(root, tmp_path, roster=str(tiny_a), resume="yes")
    assert (code, again) == (ExitCode.COMPLETED, run)
    said = summary_of(run)
    assert (said["status"], said["sessions"], said["batches_lost"]) == ("completed", 2, 0)
    assert [each["rows"] for collection in said["collections"] for each in collection["passes"]] == [40, 5, 0]
    assert [len(collection["refusals"]) for collection in said["collections"]] == [0, 1, 1]
    batches = [event.batch_index for event in events_of(run, ev.BatchCommitted)]
    assert sorted(batches) == list(range(len(batches)))
    assert (run / "summary.json").read_bytes() == refolded(run)
    assert (run / "exports/A/fused.npy").read_bytes() == (finished / "exports/A/tiny-a.npy").read_bytes()
    validate(run)


def test_damaged_vectors_are_redone_on_resume_and_counted_once(tmp_path, root, tiny_a):
    _, run = embed(root, tmp_path, roster=str(tiny_a), max_refused="100%")
    good = (run / "exports/A/fused.npy").read_bytes()
    vectors = run / "passes" / "0_tiny-a" / "vectors.npy"
    data = bytearray(vectors.read_bytes())
    data[-200:] = bytes(200)
    vectors.write_bytes(data)
    code, _ = embed(root, tmp_path, roster=str(tiny_a), resume="yes")
    said = summary_of(run)
    assert (code, said["batches_lost"] > 0) == (ExitCode.COMPLETED, True)
    assert (run / "exports/A/fused.npy").read_bytes() == good
    assert [collection["passes"][0]["rows"] for collection in said["collections"][:2]] == [40, 5]


def test_the_other_model_has_its_pass_when_one_fails_the_collection(tmp_path, root, tiny_a):
    broken = tiny_model(tmp_path / "broken", layers=1)
    config = json.loads((broken / "config.json").read_text())
    (broken / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 2}))  # the weights hold one
    code, run = embed(root, tmp_path / "runs", roster=f"{broken},{tiny_a}")
    first = summary_of(run)["collections"][0]
    assert code == ExitCode.FAILED
    assert [(each["model"], each["status"]) for each in first["passes"]] == [
        ("broken", "failed"),
        ("tiny-a", "completed"),
    ]
    assert "encoder.layer.1" in first["passes"][0]["reason"]
    assert (first["status"], first["exports"]) == ("failed", [])
    validate(run)


def test_no_secret_of_the_environment_is_in_any_file_or_output(tmp_path, root, tiny_a):
    done = interlock(
        *("run", root, "--roster", tiny_a, "--qdrant", "store", "--events", "-", "--summary", "copy.json"),
        *("--max-refused", "100%"),
        env=CANARIES,
        cwd=tmp_path,
    )
    shown = interlock("config", "show", env=CANARIES, cwd=tmp_path)
    said = "".join([done.stdout, done.stderr, shown.stdout, shown.stderr]).encode()
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(files) > 8 and b"run_closed" in said
    for canary in CANARIES.values():
        assert canary.encode() not in said
        assert [path for path in files if canary.encode() in path.read_bytes()] == []
