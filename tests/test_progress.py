"""How far a run is, by predicted cost: one number, the same in the header, the panes and the lines."""

import json
import re
from collections.abc import Iterable
from itertools import accumulate
from pathlib import Path

import msgspec
import pytest
import torch
from msgspec.structs import replace

from interlock.console.text.progress_text import progress
from interlock.engine.compute.controls import Controls
from interlock.engine.errors import ExitCode
from interlock.engine.flows.run import Run
from interlock.engine.models.networks.sizes import cost_of
from interlock.engine.record import events as ev
from interlock.engine.record import journal
from interlock.engine.record.fold import fold
from interlock.engine.record.snapshot import Snapshot, snapshot
from interlock.engine.record.state import RunState
from interlock.engine.settings import load
from interlock.engine.standing.judgement import judge
from interlock.engine.standing.outlook import time_left
from interlock.widgets import formats as words
from interlock.widgets import header
from interlock.widgets.panes import passes
from interlock.widgets.text import plain
from tests.architectures import ARCHITECTURES
from tests.builders import corpus, entries, events_of, sentences, tiny_model, toml
from tests.snapshots import drawn
from tools.recorded import RECORDED

CHEAP = {"width": 32, "layers": 1, "heads": 4}
DEAR = {"width": 256, "layers": 6, "heads": 8}


@pytest.fixture(scope="module")
def unlike(tmp_path_factory) -> tuple[Path, list[Path]]:
    """A finished run of a cheap and a dear model, and their directories."""
    place = tmp_path_factory.mktemp("progress")
    models = [tiny_model(place / "cheap", **CHEAP), tiny_model(place / "dear", seed=1, **DEAR)]
    root = corpus(place / "in", {"Docs": {"a_chunks.json": sentences(80)}, "More": {"b_chunks.json": ["x", "y z"]}})
    file = toml(place / "models.toml", {path.name: {"source": str(path), "batch_tokens": 96} for path in models})
    flags = {"out": str(place / "runs"), "roster": "cheap,dear", "devices": "cpu"}
    run = Run(root, load(flags, {}, file), Controls())
    assert run.go() == ExitCode.COMPLETED
    return run.directory.path, models


def moments(run: Path) -> list[Snapshot]:
    """How the run stood after each of its batches."""
    state, found = RunState(), []
    for entry in entries(run):
        fold(state, entry)
        if isinstance(entry.body, ev.BatchCommitted):
            found.append(snapshot(state, entry.seq))
    return found


@pytest.fixture(scope="module", params=["2", "shared"])
def scheduled(request, unlike) -> Path:
    """A finished run of both models, by turns or beside each other on two simulated GPUs."""
    first, _ = unlike
    place = first.parents[1]
    flags = {"out": str(place / request.param), "roster": "dear,cheap", "devices": "sim:2xT4", "window": request.param}
    few = corpus(place / "few", {"Docs": {"a_chunks.json": sentences(24)}})
    run = Run(few, load(flags, {}, place / "models.toml"), Controls())
    assert run.go() == ExitCode.COMPLETED
    return run.directory.path


def never_falls(history: Iterable[ev.Entry]) -> None:
    """The percent of a run falls where work is added, and nowhere else."""
    state, before = RunState(), 0.0
    adds = ev.RosterResolved | ev.PassPlanned | ev.RowsReused | ev.BatchesLost | ev.ParkedRetried
    for entry in history:
        fold(state, entry)
        share = snapshot(state, 0).share_done
        assert share >= before or isinstance(entry.body, adds), entry
        before = share


@pytest.mark.parametrize("name", ["two-devices", "nodes"])
def test_the_percent_of_a_recorded_run_never_falls(name):
    never_falls(journal.read(RECORDED / f"{name}.jsonl"))


def test_the_percent_of_a_run_never_falls_whatever_its_schedule(unlike, scheduled):
    never_falls(entries(unlike[0]))
    never_falls(entries(scheduled))


def test_passes_beside_each_other_are_counted_and_one_that_is_done_is_not_running(scheduled):
    shared = scheduled.parent.name == "shared"
    for now in moments(scheduled):
        (head,) = plain(header.rows(now, 140, judge(now, now.latest_at)))
        unfinished = [each for each in now.passes if each.at_work and each.batches_done < each.batches]
        assert all((each.word == "done") == (each.batches_done == each.batches) for each in now.passes)
        assert ("2 passes at once" in head) == (len(unfinished) == 2) and (shared or len(unfinished) < 2)
        assert ("2 passes at once (" in progress(now)) == (len(unfinished) == 2)
        assert len(unfinished) != 1 or f"pass {unfinished[0].model_pass + 1}/2" in head


def shown(now: Snapshot) -> dict[str, tuple[int, int]]:
    """The percent of the run and that of its pass as each place that tells them says."""
    number = now.current_pass or 0
    (head,) = plain(header.rows(now, 140, judge(now, now.latest_at)))
    (small,) = plain(header.rows(now, 60, judge(now, now.latest_at), lines=0))
    row = plain(drawn(passes, now, 100, 10))[number]
    line = progress(now)
    places = {
        "header": re.search(r"(\d+)%  pass \d/2 at (\d+)%", head),
        "one line": re.search(r"(\d+)%  pass \d/2 at (\d+)%", small),
        "line": re.search(r"(\d+)% of the run, pass \d/2 \w+ (\d+)%", line),
    }
    told = {name: (int(found[1]), int(found[2])) for name, found in places.items() if found}
    assert told.keys() == places.keys(), (head, small, line)
    pane = re.search(r"(\d+)%", row)
    assert pane, row
    return {**told, "pane": (told["header"][0], int(pane[1]))}


def operations(model: Path, tokens: int, rows: int) -> float:
    """Of a forward of BERT, from its configuration: two for each number of the layers' matrices and token, and two for
    each of attention's two products."""
    config = json.loads((model / "config.json").read_text())
    width, inner, depth = config["hidden_size"], config["intermediate_size"], config["num_hidden_layers"]
    matrices = depth * (4 * width**2 + 2 * width * inner)
    return 2 * matrices * tokens + 2 * 2 * depth * width * tokens * (tokens / rows)


def test_header_panes_and_lines_of_unlike_models_say_the_same_share_and_it_is_that_of_their_cost(unlike):
    run, models = unlike
    batches = events_of(run, ev.BatchCommitted)
    costs = [operations(models[each.model_pass], each.tokens + each.padding, each.rows) for each in batches]
    by_pass = [sum(cost for cost, each in zip(costs, batches, strict=True) if each.model_pass == k) for k in (0, 1)]
    assert by_pass[1] > 50 * by_pass[0]  # by tokens both are half of the run
    pairs = zip(moments(run), batches, accumulate(costs), strict=True)
    for now, batch, done in pairs:
        whole = done / sum(costs)
        own = (done - by_pass[0] * batch.model_pass) / by_pass[batch.model_pass]
        for name, (whole_shown, own_shown) in shown(now).items():
            assert whole_shown == min(int(whole * 100 + 1e-6), 100 if now.batches_done == now.batches else 99), name
            assert own_shown == int(own * 100 + 1e-6), name


def test_pass_and_batch_are_counted_from_1_wherever_people_read_them(unlike):
    run, _ = unlike
    now = next(now for now in moments(run) if now.current_pass == 1)
    of = now.passes[1].batches
    (head,) = plain(header.rows(now, 140, judge(now, now.latest_at)))
    assert "pass 2/2" in head and f"batch 1/{of}" in head
    assert "pass 2/2 dear" in progress(now) and f"batch 1/{of}" in progress(now)
    assert f" 1/{of} " in plain(drawn(passes, now, 100, 10))[1]
    first = events_of(run, ev.BatchCommitted)[0]
    assert (first.model_pass, first.batch_index) == (0, 0)  # in files from 0


def test_rates_of_a_pass_are_one_number_in_line_pane_and_summary(unlike):
    run, _ = unlike
    now = next(now for now in moments(run) if now.current_pass == 1 and now.passes[1].batches_done == 3)
    view = now.passes[1]
    done = [each for each in events_of(run, ev.BatchCommitted) if each.model_pass == 1][:3]
    rate = sum(each.rows for each in done) / sum(each.seconds for each in done)
    assert view.rows_per_second == pytest.approx(rate)
    assert f"{rate:.1f} texts/s" in progress(now)


def test_an_over_run_of_one_pass_has_the_rate_that_its_pass_has(unlike):
    state = RunState()
    for entry in entries(unlike[0]):
        fold(state, entry)
    now = snapshot(state, 0)
    mine = events_of(unlike[0], ev.BatchCommitted)
    mean = sum(each.rows for each in mine) / sum(each.seconds for each in mine)
    assert words.rates(now)[0] == pytest.approx(mean)


def test_the_time_left_of_a_model_that_has_not_begun_is_told_by_its_cost(unlike):
    run, _ = unlike
    now = next(now for now in moments(run) if now.passes[0].batches_done == now.passes[0].batches)
    cheap, dear = now.passes
    pace = cheap.done.seconds / cheap.cost
    left = time_left(replace(now, covered=now.elapsed, opening=0.0))
    assert left
    assert left.seconds == pytest.approx(dear.cost * pace, rel=0.3)  # which counts the latest batches most
    assert dear.cost > 50 * cheap.cost


def test_a_second_run_knows_the_pace_of_the_first(unlike):
    first, _ = unlike
    flags = {"out": str(first.parent), "roster": "cheap,dear", "devices": "cpu"}
    second = Run(first.parents[1] / "in", load(flags, {}, first.parents[1] / "models.toml"), Controls())
    assert second.go() == ExitCode.COMPLETED
    before, after = (events_of(path, ev.RosterResolved)[0].paces for path in (first, second.directory.path))
    assert before == {"cheap": 0.0, "dear": 0.0}
    mine = events_of(first, ev.BatchCommitted)
    for place, model in enumerate(after):
        batches = [each for each in mine if each.model_pass == place]
        tokens, seconds = sum(each.tokens for each in batches), sum(each.seconds for each in batches)
        milliseconds = 0.001 / seconds  # what a summary tells seconds to
        assert after[model] == pytest.approx(tokens / seconds, rel=0.01 + milliseconds)
    assert [each.known_pace for each in snapshot(folded(second.directory.path), 0).passes] == list(after.values())


def folded(run: Path) -> RunState:
    state = RunState()
    for entry in entries(run):
        fold(state, entry)
    return state


def test_a_journal_without_costs_falls_back_to_tokens_and_has_its_costs_once_it_is_planned_again(unlike):
    run, _ = unlike
    old, state, told = RunState(), RunState(), 0
    for entry in entries(run):
        if isinstance(entry.body, ev.BatchCommitted):
            told += 1
            if told > 5:
                break
        fold(state, entry)
        plain_one = msgspec.to_builtins(entry)
        for name in ("flops", "cost"):
            plain_one["body"].pop(name, None)
        fold(old, msgspec.convert(plain_one, ev.Entry))
    now = snapshot(old, 0)
    tokens = events_of(run, ev.BatchCommitted)[:5]
    share = sum(each.tokens for each in tokens) / sum(each.tokens for each in events_of(run, ev.PassPlanned))
    assert now.share_done == pytest.approx(share)
    for number, event in enumerate(events_of(run, ev.PassPlanned)):
        fold(old, ev.Entry(seq=number, at=0.0, session=1, elapsed=0.0, device_kind="cpu", body=event))
    assert snapshot(old, 0).share_done == pytest.approx(snapshot(state, 0).share_done)


def test_a_lost_batch_is_no_progress_any_more(unlike):
    run, _ = unlike
    state = RunState()
    for entry in entries(run):
        fold(state, entry)
        if isinstance(entry.body, ev.BatchCommitted):
            break
    lost = ev.BatchesLost(model_pass=0, batches=[entry.body.batch_index])
    fold(state, ev.Entry(seq=0, at=0.0, session=1, elapsed=0.0, device_kind="cpu", body=lost))
    assert snapshot(state, 0).share_done == 0.0


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_the_cost_of_a_token_is_twice_the_numbers_in_the_matrices_of_its_layers(name):
    from transformers import AutoConfig, AutoModel

    config = dict(ARCHITECTURES[name])
    made = AutoConfig.for_model(**config)
    with torch.device("meta"):
        model = AutoModel.from_config(made)
    outside = ("embed", "pooler", "relative_attention_bias")
    inside = [part for path, part in model.named_parameters() if not any(word in path for word in outside)]
    cost = cost_of(config)
    assert cost is not None
    assert cost.per_token == 2 * sum(part.numel() for part in inside if part.dim() == 2)


@pytest.mark.parametrize(
    "config",
    [{}, {"hidden_size": 8}, {"hidden_size": True, "num_hidden_layers": 2}, {"hidden_size": 10**30, "n_layer": 1}],
)
def test_a_configuration_that_does_not_say_its_size_has_no_cost(config):
    assert cost_of(config) is None


def test_the_words_of_distilbert_cost_what_those_of_bert_do():
    bert = {"hidden_size": 768, "num_hidden_layers": 6, "num_attention_heads": 12, "intermediate_size": 1024}
    assert cost_of({"dim": 768, "n_layers": 6, "n_heads": 12, "hidden_dim": 1024}) == cost_of(bert)
