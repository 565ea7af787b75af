"""What a model would take is told by its configuration alone, before anything is fetched or computed."""

import json

from tests.architectures import QWEN2_15B, XLM_R_LARGE
from tests.builders import corpus, interlock, sentences, tiny_model, toml


def test_GIVEN_configurations_without_weights_WHEN_planned_without_chunks_THEN_the_law_of_each_is_shown(tmp_path):
    for name, config in (("big", XLM_R_LARGE), ("bigger", QWEN2_15B)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(json.dumps(config))
    tables = {name: {"source": str(tmp_path / name), "max_tokens": 8192} for name in ("big", "bigger")}
    said = interlock("plan", "--config", toml(tmp_path / "m.toml", tables), "--offline").stdout
    lines = {line.split()[0]: line for line in said.splitlines() if line.strip()}
    assert "1.1 GiB" in lines["big"]  # 559 million values in float16
    assert "2.9 GiB" in lines["bigger"]  # 1,543 million
    assert "not to be had" in lines["bge-m3"]


def test_GIVEN_a_ceiling_below_the_weights_WHEN_planned_THEN_it_says_that_the_model_is_streamed_or_goes_to_the_cpu(
    tmp_path,
):
    (tmp_path / "big").mkdir()
    (tmp_path / "big" / "config.json").write_text(json.dumps(XLM_R_LARGE))
    file = toml(tmp_path / "m.toml", {"big": {"source": str(tmp_path / "big"), "max_tokens": 8192}})
    said = interlock("plan", "--config", file, "--offline", "--ceiling", "1GiB").stdout
    (line,) = [line for line in said.splitlines() if line.startswith("big ")]
    assert "0, streamed or CPU" in line


def test_GIVEN_chunks_and_a_ceiling_below_the_weights_WHEN_planned_THEN_it_says_where_passes_would_be_computed(
    tmp_path,
):
    model = tiny_model(tmp_path / "tall", width=256, layers=16)
    chunks = corpus(tmp_path / "chunks", {"Docs": {"a_chunks.json": sentences(4)}})
    plan = ("plan", chunks, "--roster", model, "--devices", "sim:2xT4", "--ceiling")

    def said(ceiling: str) -> str:
        return interlock(*plan, ceiling).stdout

    assert "cuda:0,cuda:1\n" in said("1GiB")
    assert "cuda:0,cuda:1 streamed" in said("372MiB")
    assert " cpu\n" in said("365MiB")
