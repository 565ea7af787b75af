"""What a run came to, in the shell and on the last screen: how fast, how near to memory, what went wrong, what next."""

import re
import shlex
from pathlib import Path

import pytest
from msgspec.structs import replace

from interlock.console.text.progress_text import bar, progress
from interlock.console.text.recap import next_commands, recap
from interlock.engine.record import events as ev
from interlock.engine.record.snapshot import coverage
from interlock.engine.targets import shard
from interlock.widgets import formats
from tests.builders import corpus, interlock, sentences
from tests.snapshots import did, one_lease, sample

RUN = Path("runs/r 1")


def text_of(snapshot):
    return "\n".join(recap(snapshot, RUN))


def test_a_completed_run_says_what_it_did_how_fast_and_where_it_lies():
    text = text_of(sample(phase="completed", warnings=0, parked=0))
    assert text.startswith("DONE: 3 models, 13,312 texts of 2 collections in 4:12\n")
    assert "all-mpnet-base-v2  done   12,288 texts" in text
    assert "memory: cuda:0 peak" in text and "% of the ceiling" in text
    assert "summary: runs/r 1/summary.json" in text
    assert "to look at: 2 inputs left out" in text


def test_duplicates_are_said_to_be_computed_once_and_delivered_for_each_chunk(tmp_path, tiny_a):
    root = corpus(tmp_path / "in", {"Docs": {"a.jsonl": [*sentences(9), *sentences(3)]}})
    words = (root, "--roster", tiny_a, "--devices", "cpu")
    said = interlock("run", *words, "--out", tmp_path / "runs").stderr
    assert "12 chunks in 1 file, 3 duplicates (texts computed once, delivered for each chunk), 0 refused" in said
    assert "DONE: 1 model, 9 texts for 12 chunks of 1 collection" in said
    planned = interlock("plan", *words).stdout.splitlines()
    assert "duplicates: texts that are computed once and delivered for each chunk" in planned


def test_a_run_that_was_stopped_says_by_whom_once_and_one_text_is_one():
    run = sample(phase="stopped")
    one = did(run.passes[0], rows=1, terms=0)
    run = replace(run, passes=(one,), reason="stopped by the operator between batches: --resume continues")
    first, *rest = recap(run, RUN)
    assert first.startswith("STOPPED") and first.endswith(": by the operator between batches")
    assert any(re.search(r" 1 text  ", line) for line in rest)


def test_what_went_wrong_is_told_last_before_the_place():
    lines = recap(sample(phase="stopped", mitigations=3, parked=1), RUN)
    wrong = lines.index("to look at: 1 text parked, 1 warning, 3 mitigations, 2 inputs left out")
    assert lines[wrong + 1].startswith("summary: ")


def test_texts_without_a_vector_are_counted_beside_those_of_their_model():
    run = sample(phase="completed", parked=1)
    first, *others = run.passes
    text = text_of(replace(run, passes=(replace(first, parked=1), *others)))
    assert re.search(first.model + r"  .*[\d,]+ texts, 1 parked ", text)
    assert "texts, " not in text_of(run)


def test_texts_that_no_query_finds_are_counted_beside_the_terms_of_the_others():
    run = sample(phase="completed")
    first, *others = run.passes
    sparse = replace(did(first, terms=2 * first.done.rows, termless=3), kind="sparse")
    assert " texts, 2 terms a text, 3 without terms " in text_of(replace(run, passes=(sparse, *others)))
    assert "without terms" not in text_of(run)


def test_truncated_texts_are_counted_with_the_share_of_tokens_that_was_seen_and_never_rounded_up():
    run = sample(phase="completed")
    cut = replace(run.passes[0], truncated=9, coverage=0.99996)
    text = text_of(replace(run, passes=(cut, *run.passes[1:])))
    assert " texts, 9 truncated (99.9% of the tokens seen)" in text


@pytest.mark.parametrize(("seen", "wanted"), [((90, 60), 0.75), ((90, None), None), ((0, 0), 0.0)])
def test_what_a_model_sees_is_told_of_all_collections_together_and_not_of_older_journals(seen, wanted):
    about = {"model_pass": 0, "model": "m", "first_batch": 0, "batches": 1, "rows": 1, "reused": 0, "tokens": 1}
    plans = [
        ev.PassPlanned(
            **about, collection=name, padding=0, truncated=1, truncated_tokens=cut, plan="p", seen_tokens=tokens
        )
        for name, cut, tokens in zip("ab", (10, 40), seen, strict=True)
    ]
    assert coverage(plans) == wanted
    assert coverage([]) is None


@pytest.mark.parametrize(("kind", "measured"), [("cuda", "tensors and cuBLAS workspace"), ("sim", "tensors")])
def test_measured_tensors_stand_beside_what_was_predicted_for_them(kind, measured):
    lease = one_lease(1, held=9.0, weights=2.0)
    run = replace(sample(phase="completed", kind=kind), leases=(lease,))
    assert f"6.0 GiB of {measured}, 6.0 GiB of tensors predicted" in text_of(run)


@pytest.mark.parametrize("phase", ["stopped", "failed", "incomplete"])
def test_a_run_that_did_not_complete_says_how_to_go_on(phase):
    command, view = next_commands(sample(phase=phase, chunks="my chunks"), RUN)
    assert shlex.split(command) == ["interlock", "run", "my chunks", "--out", "runs", "--run-id", "r 1", "--resume"]
    assert shlex.split(view) == ["interlock", "view", "runs/r 1"]


def test_a_store_that_was_written_is_what_one_searches_next():
    run = replace(sample(phase="completed"), store="my store")
    first, _ = next_commands(replace(run, collections=run.collections[:1]), RUN)
    assert shlex.split(first) == ["interlock", "search", "my store", "your question"]


def test_a_store_that_has_collections_of_other_runs_too_is_searched_by_name(tmp_path):
    for name in ("docs", "tickets"):
        (tmp_path / name).mkdir()
        (tmp_path / name / shard.MANIFEST).write_text("{}")
    run = replace(sample(phase="completed"), store=str(tmp_path))
    mine = run.collections[0].read.qdrant_collection
    first, _ = next_commands(replace(run, collections=run.collections[:1]), RUN)
    assert shlex.split(first) == ["interlock", "search", str(tmp_path), f"--collection={mine}", "your question"]


def test_a_run_without_a_store_says_how_to_get_one_that_can_be_asked():
    first, _ = next_commands(sample(phase="completed"), RUN)
    assert shlex.split(first) == ["interlock", "export", "runs/r 1", "--to-store", "store"]


def test_a_store_below_the_working_directory_is_named_as_one_types_it_there(tmp_path, monkeypatch):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    run = replace(sample(phase="completed"), collections=sample().collections[:1])
    named = {}
    for place in ("here/runs/my store", "beside", "here/-x"):
        first, _ = next_commands(replace(run, store=str(tmp_path / place)), RUN)
        named[place] = shlex.split(first)[2]
    assert named == {
        "here/runs/my store": "runs/my store",
        "beside": str(tmp_path / "beside"),
        "here/-x": str(tmp_path / "here" / "-x"),
    }


def test_models_are_told_in_words_where_their_table_is_wider_than_the_screen():
    run = sample(phase="completed", warnings=0)
    wide, narrow = recap(run, RUN, 104), recap(run, RUN, 40)
    assert any(line.startswith("model  ") for line in wide) and wide == recap(run, RUN)
    assert not any(line.startswith(("model  ", "---")) for line in narrow)
    assert any(
        re.fullmatch(r"all-mpnet-base-v2 done: 12,288 texts.*, in .*, .* texts/s, on .*", line) for line in narrow
    )


def test_the_commands_that_a_run_names_are_those_that_go_on_with_what_it_made(tmp_path, tiny_a):
    files = {"Empty": [""], "My Docs": sentences(3), "More": sentences(3, start=9)}
    chunks = corpus(tmp_path / "in", {name: {"a_chunks.json": texts} for name, texts in files.items()})
    where, store = ("--out", tmp_path / "runs", "--run-id", "r"), tmp_path / "store"
    for how in (("--roster", tiny_a, "--qdrant", store, "--max-refused", "100%"), ("--resume",)):
        said = interlock("run", chunks, *where, *how).stderr
        search, view = (line for line in said.splitlines() if line.startswith("next: "))
        words = shlex.split(search.removeprefix("next: interlock "))
        assert words == ["search", str(store), "--collection=more", "your question"]
        assert view == f"next: interlock view {tmp_path / 'runs' / 'r'}"
    assert "  1. " in interlock(*words).stdout


def test_texts_a_second_are_those_of_all_devices_wherever_they_are_told():
    run = sample(phase="completed")
    both = replace(did(run.passes[0], rows=1000, tokens=5000, seconds=100.0), devices=("cuda:0", "cuda:1"))
    run = replace(run, passes=(both,))
    assert re.search(r"1,000 texts  +0:50  +20\.0  +cuda:0, cuda:1", text_of(run))
    assert formats.rates(run) == (20.0, 100.0)
    now = replace(run, phase="running", exit_code=None, current_pass=0)
    assert "20.0 texts/s" in progress(now) and "20.0 texts/s" in bar(now, 200)


def test_a_model_that_was_stopped_before_its_first_batch_is_told_from_one_that_never_had_a_lease():
    run = replace(sample(phase="stopped"), leases=())
    assert re.search(r"bge-m3 +not begun +0 of 12,288 texts\n", text_of(run))
    leased = text_of(replace(run, leases=(one_lease(1, model_pass=2, model="bge-m3", held=7.0),)))
    assert re.search(r"bge-m3 +stopped +0 of 12,288 texts \(stopped while it was loaded and tried\)", leased)


def test_simulated_seconds_are_no_pace():
    assert "texts/s" in text_of(sample(phase="completed"))
    simulated = text_of(sample(phase="completed", kind="sim"))
    assert " in 4:12" not in simulated and "0.2" not in simulated.splitlines()[2]


def test_a_gpu_that_was_lost_is_told_first_and_a_peak_beyond_the_ceiling_as_what_it_is():
    run = sample(phase="completed", lost=(1,), warnings=0)
    first, *others = run.devices
    over = replace(first, peak=3 * first.facts.ceiling_bytes)
    text = text_of(replace(run, devices=(over, *others)))
    assert "to look at: 1 GPU lost, " in text and "300% of the ceiling" in text


def test_nothing_waits_in_a_run_that_ended():
    run = sample(phase="stopped")
    lines = [line.split() for line in recap(run, RUN) if line.startswith(tuple(each.model for each in run.passes))]
    words = {each.model: each for each in run.passes}
    for model, state, *_ in lines:
        whole = words[model].batches_done >= words[model].batches
        assert state == ("done" if whole else "stopped" if words[model].batches_done else "not")
