"""What a model would take is told by its configuration alone, before anything is fetched or computed."""

import json
import socket
from pathlib import Path

import pytest

from tests.architectures import QWEN2_15B, XLM_R_LARGE
from tests.builders import corpus, interlock, sentences, tiny_model, toml
from tests.hub import Hub

COMMIT = "b" * 40


def roster_of_hub(file: Path, count: int) -> Path:
    """Models of the hub that are not on this machine."""
    return toml(
        file, {f"m{number}": {"source": f"hf:stations/m{number}", "revision": COMMIT} for number in range(count)}
    )


def planned(tmp_path: Path, url: str, count: int) -> tuple[str, str]:
    """What planning without chunks says, to stdout and to stderr, with no models in any cache."""
    env = {"HF_HOME": str(tmp_path / "home"), "HF_ENDPOINT": url}
    done = interlock("plan", "--config", roster_of_hub(tmp_path / "m.toml", count), env=env, timeout=60)
    return done.stdout, done.stderr


@pytest.mark.parametrize("silent", [False, True], ids=["connections are refused", "nobody ever answers"])
def test_an_unreached_hub_is_told_in_one_line_and_nothing_is_retried_when_planning_without_chunks(tmp_path, silent):
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        if not silent:
            listening.close()
        said, errors = planned(tmp_path, f"http://127.0.0.1:{port}", 3)
    missing = [line for line in said.splitlines() if line.rstrip().endswith("hub not reached")]
    assert {line.split()[0] for line in missing} >= {"m0", "m1", "m2", "bge-m3"}
    assert errors == f"hub not reached: no configuration for {len(missing)} models\n"


def test_a_configuration_is_asked_of_the_hub_and_kept_when_planning_without_chunks(tiny_a, tmp_path):
    with Hub("stations/m0", tiny_a, COMMIT).serving() as hub:
        said, errors = planned(tmp_path, hub.url, 2)
    lines = {line.split()[0]: line for line in said.splitlines() if line.strip()}
    assert lines["m0"].endswith("hf:stations/m0")
    assert lines["m1"].endswith("not found")
    assert errors == ""
    assert planned(tmp_path, "http://127.0.0.1:9", 1)[0].count("hf:stations/m0") == 1


def test_what_the_hub_answers_is_told_as_what_it_is_when_planning_without_chunks(tiny_a, tmp_path):
    statuses = [401, 403, 404, 429, 500, 503]
    refused = {f"stations/m{number}": status for number, status in enumerate(statuses)}
    with Hub("stations/other", tiny_a, COMMIT, refused=refused).serving() as hub:
        said, errors = planned(tmp_path, hub.url, len(statuses))
    lines = {line.split()[0]: line.rstrip() for line in said.splitlines() if line.strip()}
    assert [lines[f"m{number}"].endswith("  not found") for number in range(6)] == [True] * 3 + [False] * 3
    assert [lines[f"m{number}"].endswith("  hub not reached") for number in range(6)] == [False] * 3 + [True] * 3
    assert errors == "hub not reached: no configuration for 3 models\n"


def test_a_configuration_that_cannot_be_read_is_told_with_its_reason_when_planning_without_chunks(tmp_path):
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "config.json").write_text("{broken")
    tables = {
        "here": {"source": str(tmp_path / "broken")},
        "there": {"source": "hf:stations/there", "revision": COMMIT},
    }
    with Hub("stations/there", tmp_path / "broken", COMMIT).serving() as hub:
        env = {"HF_HOME": str(tmp_path / "home"), "HF_ENDPOINT": hub.url}
        done = interlock("plan", "--config", toml(tmp_path / "m.toml", tables), env=env)
    lines = {line.split()[0]: line for line in done.stdout.splitlines() if line.strip()}
    for name in tables:
        assert "config.json: Expecting property name" in lines[name]
    assert done.stderr == ""


def test_the_law_of_each_model_is_planned_from_its_configuration_alone(tmp_path):
    for name, config in (("big", XLM_R_LARGE), ("bigger", QWEN2_15B)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(json.dumps(config))
    tables = {name: {"source": str(tmp_path / name), "max_tokens": 8192} for name in ("big", "bigger")}
    said = interlock("plan", "--config", toml(tmp_path / "m.toml", tables), "--offline").stdout
    lines = {line.split()[0]: line for line in said.splitlines() if line.strip()}
    assert "1.1 GiB" in lines["big"]  # 559 million values in float16
    assert "5.8 GiB" in lines["bigger"]  # 1,543 million in float32: in float16 they overflow on a T4
    assert "not found" in lines["bge-m3"]


def test_a_plan_says_which_models_are_streamed_or_go_to_the_cpu(
    tmp_path,
):
    (tmp_path / "big").mkdir()
    (tmp_path / "big" / "config.json").write_text(json.dumps(XLM_R_LARGE))
    file = toml(tmp_path / "m.toml", {"big": {"source": str(tmp_path / "big"), "max_tokens": 8192}})
    said = interlock("plan", "--config", file, "--offline", "--ceiling", "1GiB").stdout
    (line,) = [line for line in said.splitlines() if line.startswith("big ")]
    assert "0, streamed or CPU" in line


def test_a_plan_with_chunks_says_where_passes_would_be_computed(
    tmp_path,
):
    model = tiny_model(tmp_path / "tall", width=256, layers=16)
    chunks = corpus(tmp_path / "chunks", {"Docs": {"a_chunks.json": sentences(4)}})
    plan = ("plan", chunks, "--roster", model, "--devices", "sim:2xT4", "--ceiling")

    def said(ceiling: str) -> str:
        return interlock(*plan, ceiling).stdout

    assert "cuda:0,cuda:1\n" in said("1GiB")
    streamed = said("372MiB")
    assert "cuda:0,cuda:1 streamed" in streamed
    assert "tall is streamed under --ceiling 372.0 MiB, which is slower: raise it to 0.4GiB to hold" in streamed
    assert "cuda:0,cuda:1\n" in said("0.4GiB")
    assert " cpu\n" in said("365MiB")
