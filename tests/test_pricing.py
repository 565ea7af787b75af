"""The price of a cluster, by the one model of `plan --nodes` and docs/scale.md, against what was measured."""

import json
from dataclasses import replace

import numpy as np
import pytest

from interlock.console.text.plan_text import cluster_text
from interlock.engine.compute.cluster import pricing
from interlock.engine.compute.cluster.pricing import START, ClusterWork, priced
from tests.builders import ROOT, corpus

WORK = ClusterWork(10**6, 15_625, 100.0, 4000.0, 4096 * 10**6, 10**9, 8192 * 10**6)
MEASURED = json.loads((ROOT / "bench" / "results" / "cluster.json").read_text())["efficiency"]


def wall(measured, monkeypatch, exchange, end):
    """What the model says, with these constants, of a measured pass, whose batches slept a tenth of a second each."""
    monkeypatch.setattr(pricing, "EXCHANGE", exchange)
    monkeypatch.setattr(pricing, "END", end)
    nodes = measured["nodes"]
    batches = round(measured["asleep"] * nodes / 0.1)
    return priced(ClusterWork(16 * batches, batches, 0.0, measured["asleep"] * nodes, 0, 0, 0), nodes).wall - START


@pytest.mark.parametrize("left_out", MEASURED, ids=lambda each: f"{each['nodes']} nodes left out")
def test_a_number_of_nodes_takes_what_the_others_say_to_half_a_second(left_out, monkeypatch):
    others = [each for each in MEASURED if each is not left_out]
    asleep = np.array([wall(each, monkeypatch, 0.0, 0.0) for each in others])
    slopes = [[wall(each, monkeypatch, *one) for each in others] - asleep for one in ((1.0, 0.0), (0.0, 1.0))]
    fitted, *_ = np.linalg.lstsq(np.transpose(slopes), [each["wall"] for each in others] - asleep, rcond=None)
    assert wall(left_out, monkeypatch, *fitted) == pytest.approx(left_out["wall"], abs=0.5)


def test_more_nodes_are_faster_until_the_head_limits_and_only_cost_from_then_on():
    prices = [priced(WORK, nodes) for nodes in (1, 8, 64, 1024)]
    walls = [each.wall for each in prices]
    assert walls[0] > walls[1] > walls[2] > walls[3] == priced(WORK, 512).wall
    assert [each.limits for each in prices[:2]] == ["the nodes", "the nodes"]
    assert {each.limits for each in prices[2:]} == {"reading and tokenising"}
    assert priced(replace(WORK, reading=1.0), 64).limits == "the nodes"
    assert priced(replace(WORK, reading=1.0), 1024).limits == "vectors on their way to the head"
    assert [each.idle for each in prices] == [nodes * 70.0 for nodes in (1, 8, 64, 1024)]
    assert priced(replace(WORK, reading=20.0), 8).idle == 8 * 25.0
    assert prices[1].sent_bytes == 8 * prices[0].sent_bytes and len({each.disk_bytes for each in prices}) == 1


def test_without_a_pace_all_is_priced_but_the_time():
    price = priced(replace(WORK, computing=None), 8)
    assert (price.wall, price.limits) == (None, "unknown")
    assert price.idle == priced(WORK, 8).idle and price.disk_bytes == priced(WORK, 8).disk_bytes
    assert "?" in cluster_text(replace(WORK, computing=None), [8]).splitlines()[2]


def test_a_plan_prices_each_number_of_nodes_and_refuses_what_is_none(tmp_path, tiny_a, call):
    chunks = corpus(tmp_path / "in", {"Docs": {"a.jsonl": ["one text", "another"]}})
    words = ["plan", chunks, "--roster", tiny_a, "--out", tmp_path / "runs"]
    code, out, _ = call(*words, "--nodes", "1,8")
    assert (code, [line.split()[0] for line in out.splitlines() if line.strip()[:1].isdigit()][-2:]) == (0, ["1", "8"])
    assert "nodes held idle" in out and "of memory beside the program" in out
    assert "nodes held idle" not in call(*words)[1]
    for wrong in ("0", "", "1,", "x"):
        assert call(*words, "--nodes", wrong)[0] == 2
