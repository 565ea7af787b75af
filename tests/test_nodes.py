"""The nodes of a cluster in the record: who is there, what a loss cost, and who has heard an operator."""

import json

import pytest
from jsonschema import Draft202012Validator

from interlock.console.ctl import _told
from interlock.console.metrics import Scrape, families
from interlock.console.summary.document import of_summary, plain
from interlock.console.text.event_lists import Feed
from interlock.console.text.event_text import describe, line_of
from interlock.console.text.recap import recap
from interlock.engine.record import events as ev
from interlock.engine.record import summary
from interlock.engine.record.facts import DeviceFacts, Memory, RosterEntry
from interlock.engine.record.fold import fold_all
from interlock.engine.record.snapshot import side_by_side, snapshot
from interlock.engine.record.state import RunState
from interlock.engine.standing.health import health
from interlock.engine.standing.judgement import attention
from interlock.engine.standing.outlook import time_left
from tests.builders import committed_schema

GIB = 2**30
STARTED = ev.RunStarted(
    run_id="r", chunks="in", config={}, fusion="mean", schedule="exclusive", versions={}, environment={}
)
ROSTER = ev.RosterResolved(
    roster=[
        RosterEntry(
            model="m", weight=1.0, source="s", commit=None, fingerprint="f", dim=8, dtype="float32", max_tokens=128,
            document_prompt="", query_prompt="", batch_tokens=1024,
        )
    ]
)  # fmt: skip
READ = ev.CollectionRead(
    collection="Docs", qdrant_collection="docs", files=1, chunks=80, duplicates=0, refused=0, seconds=0.1
)
PLANNED = ev.PassPlanned(
    model_pass=0, model="m", collection="Docs", first_batch=0, batches=8, rows=80, reused=0, tokens=800, padding=0,
    truncated=0, truncated_tokens=0, plan="p",
)  # fmt: skip
RESUMED = ev.RunResumed(versions={}, chunks="in", config={}, environment={})
BEGUN = (STARTED, ev.DevicesFound(devices=[]), ROSTER, READ, PLANNED)


def joined(node, gpus=2, label="ws", sent=0):
    devices = [
        DeviceFacts(name=f"{node}/cuda:{card}", kind="cuda", label="T4", total_bytes=15 * GIB, ceiling_bytes=12 * GIB)
        for card in range(gpus)
    ]
    return ev.NodeJoined(node=node, label=label, devices=devices, sent_bytes=sent, seconds=2.0)


def lost(node, batches=3, rows=41, reason="no answer for 30 s"):
    return ev.NodeLost(node=node, reason=reason, batches=batches, rows=rows)


def granted(node, gpus=2):
    names = [f"{node}/cuda:{card}" for card in range(gpus)]
    return ev.LeaseGranted(
        lease=f"{node}/L001", model_pass=0, model="m", devices=names, device_kind="cuda", budget_bytes=GIB,
        predicted_bytes=GIB,
    )  # fmt: skip


def attached(node):
    return ev.ModelAttached(lease=f"{node}/L001", model="m", bytes=GIB, seconds=1.0, device=f"{node}/cuda:0")


def sampled(device, occupied):
    return ev.DeviceSampled(device=device, memory=Memory(allocated=0, occupied=occupied))


def committed(batch, device, rows=10):
    return ev.BatchCommitted(
        model_pass=0, batch_index=batch, rows=rows, tokens=100, padding=0, seconds=0.5, device=device, crc=0
    )


def asked(value="yes", control="pause"):
    return ev.ControlApplied(control=control, value=value, who="kim")


def reached(node, value="yes", control="pause"):
    return ev.ControlReached(node=node, control=control, value=value)


def folded(*bodies, state=None, session=0):
    told = (
        ev.Entry(seq=seq, at=100.0 + seq, session=session, elapsed=float(seq), device_kind="cuda", body=body)
        for seq, body in enumerate(bodies)
    )
    return fold_all(state or RunState(), told)


def seen(*bodies):
    return snapshot(folded(*BEGUN, *bodies), 0)


THREE = (joined("node-1"), joined("node-2", sent=100), joined("node-3"))
LOSS = (
    *THREE, granted("node-1"), granted("node-2"), sampled("node-2/cuda:1", 5 * GIB), committed(0, "node-2/cuda:1"),
    committed(1, "node-1/cuda:0,node-1/cuda:1"), lost("node-2"),
)  # fmt: skip


def test_a_lost_node_takes_its_devices_and_leases_along_and_no_others():
    state = folded(*BEGUN, *LOSS)
    assert {name: gauge.lost for name, gauge in state.devices.items() if gauge.lost} == {
        "node-2/cuda:0": "no answer for 30 s",
        "node-2/cuda:1": "no answer for 30 s",
    }
    assert list(state.held) == ["node-1/L001"] and state.leases["node-2/L001"].left
    (view,) = snapshot(state, 0).passes
    assert view.at_work == ("node-1/cuda:0", "node-1/cuda:1")
    assert [name for name, node in state.nodes.items() if node.here] == ["node-1", "node-3"]


def test_a_node_that_joins_again_is_there_with_the_devices_that_it_has_now_and_their_earlier_peaks():
    state = folded(*BEGUN, *LOSS, joined("node-2", gpus=1, label="other", sent=20), lost("node-3"))
    node = state.nodes["node-2"]
    assert (node.here, node.lost, node.label, node.devices) == (True, "", "other", ("node-2/cuda:0",))
    assert (node.losses, node.batches_again, node.rows_again, node.sent_bytes) == (("no answer for 30 s",), 3, 41, 120)
    assert "node-2/cuda:1" not in state.devices and not state.devices["node-2/cuda:0"].lost
    again = folded(joined("node-2"), state=state)
    assert again.devices["node-2/cuda:1"].peak == 5 * GIB


def test_a_new_session_begins_without_nodes_and_keeps_what_earlier_ones_lost():
    state = folded(RESUMED, ev.DevicesFound(devices=[]), state=folded(*BEGUN, *LOSS), session=1)
    assert not state.devices and not any(node.here or node.lost for node in state.nodes.values())
    assert state.nodes["node-2"].rows_again == 41
    twice = folded(joined("node-2"), lost("node-2", 1, 9, "killed"), state=state, session=1).nodes["node-2"]
    assert (twice.losses, twice.batches_again, twice.rows_again) == (("no answer for 30 s", "killed"), 4, 50)


def test_a_control_is_counted_on_the_nodes_that_are_there_until_all_have_it():
    def of(*bodies):
        return seen(*THREE, *bodies).reached("pause")

    assert of() == (3, 3)
    assert of(asked()) == (0, 3)
    assert of(asked(), reached("node-1"), reached("node-2")) == (2, 3)
    assert of(asked(), reached("node-1"), reached("node-2"), lost("node-3")) == (2, 2)
    assert of(asked(), reached("node-1"), joined("node-4")) == (2, 4)
    assert of(asked(), lost("node-3"), joined("node-3")) == (1, 3)
    assert of(asked(), reached("node-1"), asked("no")) == (2, 3)
    assert of(asked(), reached("node-1"), asked("no"), reached("node-1", "no")) == (3, 3)
    assert of(asked("no")) == (3, 3)
    assert seen().reached("pause") == (0, 0)


def test_a_paused_run_says_how_many_of_its_nodes_have_paused_and_so_does_its_status():
    some = seen(*THREE, asked(), reached("node-1"), reached("node-2"))
    everywhere = seen(*THREE, asked(), *(reached(f"node-{number}") for number in (1, 2, 3)))
    for run, told in ((some, "2 of 3 nodes"), (everywhere, "all 3 nodes")):
        state = health(run, run.latest_at)
        assert state.word == "PAUSED" and state.detail.endswith(f" ago, {told}")
        assert _told(run.controls[-1], run).endswith(f": acknowledged by {told}")
    alone = seen(asked())
    assert health(alone, alone.latest_at + 90).detail == "by kim 1:30 ago"
    assert _told(alone.controls[-1], alone).endswith(": acknowledged")
    changed = seen(*THREE, asked(), asked("no"))
    assert _told(changed.controls[0], changed).endswith(": acknowledged")


def test_a_lost_node_is_one_thing_to_look_at_and_not_its_devices_too():
    run = seen(*LOSS)
    assert (
        health(run, run.latest_at).detail
        == "1 node lost (node-2), no work lost: the batches go to the other devices, only the end comes later"
        "; it joins again by itself once Ray runs on it"
    )
    assert attention(run).words == ["1 node lost"]
    back = seen(*LOSS, joined("node-2"), ev.DeviceLost(device="node-2/cuda:0", reason="fell off the bus"))
    assert health(back, back.latest_at).detail.startswith("1 GPU lost (")
    assert attention(back).words == ["1 node lost", "1 GPU lost"]
    refused = seen(*THREE, ev.NodeRefused(node="node-4", reason="torch is 2.12 there, 2.13 here"))
    assert health(refused, refused.latest_at).word != "DEGRADED"
    assert attention(refused).words == ["1 warning"]


@pytest.mark.parametrize(
    ("devices", "count"),
    [(["cpu"], 1), (["cuda:0", "cuda:1", "cpu"], 2), ([], 1), (["node-1/cpu", "node-2/cpu"], 2),
     (["node-1/cuda:0", "node-2/cuda:0", "node-2/cpu"], 2)],
)  # fmt: skip
def test_devices_that_share_work_are_gpus_or_else_a_host_for_each_node(devices, count):
    assert side_by_side(devices) == count


def test_what_is_left_takes_longer_after_a_node_is_lost():
    before, after = (time_left(seen(*bodies)) for bodies in (LOSS[:-1], LOSS))
    assert before and after and after.seconds > 1.5 * before.seconds


def test_the_summary_tells_what_each_node_computed_and_what_its_loss_cost():
    doubled = ev.BatchesDoubled(model_pass=0, node="node-3", other="node-1", batches=[6, 7], rows=20)
    state = folded(*BEGUN, *LOSS, doubled, ev.NodeRefused(node="node-4", reason="no torch"))
    made = summary.summarise(state)
    one, two, three, four = made.nodes
    assert (one.name, one.label, one.batches, one.rows, one.seconds) == ("node-1", "ws", 1, 10, 0.5)
    assert (two.batches, two.lost, two.batches_again, two.rows_again) == (1, ["no answer for 30 s"], 3, 41)
    assert (two.sent_bytes, three.batches_doubled, four.refused, four.devices) == (100, 2, "no torch", [])
    written = summary.dumps(made)
    Draft202012Validator(json.loads(committed_schema())).validate(json.loads(written))
    assert summary.load(written) == made
    assert "\nnodes\n" in plain(of_summary(made))


def test_a_pass_on_many_devices_has_a_narrow_table():
    names = [f"node-{number}" for number in range(1, 9)]
    made = summary.summarise(
        folded(*BEGUN, *map(joined, names), *(committed(at, f"{name}/cuda:{at % 2}") for at, name in enumerate(names)))
    )
    text = plain(of_summary(made))
    assert "8 GPUs on 8 nodes" in text and "node-8/cuda:0,1" in text


def test_the_summary_of_one_machine_does_not_speak_of_nodes():
    made = summary.summarise(folded(*BEGUN))
    assert b'"nodes"' not in summary.dumps(made) and "nodes" not in plain(of_summary(made))


def test_the_recap_tells_each_loss_in_a_line(tmp_path):
    refused = ev.NodeRefused(node="node-4", reason="no torch")
    lines = recap(seen(*LOSS, lost("node-3", 0, 0, "killed"), refused), tmp_path)
    assert [line for line in lines if line.startswith("nodes: ")] == [
        "nodes: 4 with 6 GPUs",
        "nodes: node-2 lost once (no answer for 30 s): 3 batches of 41 texts computed again",
        "nodes: node-3 lost once (killed): nothing to compute again",
        "nodes: node-4 took no part: no torch",
    ]
    again = seen(*LOSS, joined("node-2"), lost("node-2"), joined("node-2"), lost("node-2", 1, 1, "killed"))
    (told,) = [line for line in recap(again, tmp_path) if "node-2 lost" in line]
    assert told == "nodes: node-2 lost 3 times (no answer for 30 s; killed): 7 batches of 83 texts computed again"
    assert not any("nodes" in line for line in recap(seen(), tmp_path))


def test_a_recap_of_many_nodes_stays_a_page(tmp_path):
    names = [f"node-{number}" for number in range(1, 65)]
    full = [sampled(f"{name}/cuda:0", (number % 11) * GIB) for number, name in enumerate(names)]
    lines = recap(seen(*map(joined, names), *full, *map(lost, names[:20])), tmp_path)
    assert len(lines) < 20
    assert "nodes: and 12 more like these (all are in the summary)" in lines
    (memory,) = [line for line in lines if line.startswith("memory: ")]
    assert "peak 10.0 GiB" in memory and memory.endswith(", the fullest of 58 devices")


def test_devices_that_are_found_on_nodes_are_counted_and_not_listed():
    found = ev.DevicesFound(devices=[*joined("node-1").devices, *joined("node-2").devices])
    assert line_of(found) == "devices: 4 x T4, 15.0 GiB, ceiling 12.0 GiB; on 2 nodes"


def test_leases_of_many_nodes_are_some_lines_and_a_count():
    names = [f"node-{number}" for number in range(1, 65)]
    feed, bodies = Feed(), [*map(joined, names), *(body for name in names for body in (granted(name), attached(name)))]
    lines = feed.take(
        ev.Entry(seq=seq, at=0.0, session=0, elapsed=0.0, device_kind="cuda", body=body)
        for seq, body in enumerate(bodies)
    )
    assert [line.text for line in lines if "the journal has them all" in line.text] == [
        "44 more nodes joined (the journal has them all)",
        "108 more of m on nodes (the journal has them all)",
    ]
    assert len(lines) == 42
    alone = ev.LeaseGranted(
        lease="L001", model_pass=0, model="m", devices=["cpu"], device_kind="cpu", budget_bytes=1, predicted_bytes=1
    )
    assert describe(alone).more == ""


def test_metrics_tell_which_nodes_are_there_and_forget_what_a_lost_one_held():
    pytest.importorskip("prometheus_client")
    found = {
        (sample.name.removeprefix("interlock_"), *sample.labels.values()): sample.value
        for family in families(Scrape.of(folded(*BEGUN, *LOSS)))
        for sample in family.samples
    }
    assert {of[1]: number for of, number in found.items() if of[0] == "node_up"} == {
        "node-1": 1, "node-2": 0, "node-3": 1
    }  # fmt: skip
    assert (found["node_losses_total", "node-2"], found["rows_again_total", "node-2"]) == (1, 41)
    assert found["leases_held", "m"] == 1 and not any(of[0] == "device_occupied_bytes" for of in found)
    assert found["device_peak_occupied_bytes", "node-2/cuda:1"] == 5 * GIB
    assert sum(of[0] == "device_ceiling_bytes" for of in found) == 6
