"""Directories of models as other libraries and people leave them: taken as sentence-transformers takes them, or refused
in one true line before any work."""

import json
import re
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from interlock.engine.corpus import tokenizer
from interlock.engine.errors import UnavailableError, UsageError
from interlock.engine.flows.plan import RunPlan
from interlock.engine.models.assets import Policy, resolve
from interlock.engine.models.card import ModelCard, read_card
from interlock.engine.models.registry import ModelSpec
from interlock.engine.models.scoring import read_scorer
from interlock.engine.models.weights import load
from tests.builders import hub_snapshot, interlock, routed_sparse, tiny_answerer, tiny_model

MODULES = "modules.json"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return tiny_model(tmp_path / "m", seed=3, pooling="cls", prompts={"document": "it is this : "})


def card_of(source: object, **row: str) -> ModelCard:
    spec = ModelSpec("m", (str(source),), **row)  # type: ignore[arg-type]
    return read_card(spec, resolve(spec, Policy(offline=True), lambda _: None), "cpu")


def edited(file: Path, **said: object) -> None:
    file.write_text(json.dumps((json.loads(file.read_text()) if file.exists() else {}) | said))


def rows(*kinds: str) -> list[dict[str, object]]:
    return [
        {"idx": number, "name": str(number), "path": "1_Pooling" if kind == "Pooling" else "",
         "type": f"sentence_transformers.models.{kind}"}
        for number, kind in enumerate(kinds)
    ]  # fmt: skip


def test_files_that_a_tokenizer_does_not_read_are_not_missed(model, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))

    def snapshot(commit: str) -> None:
        place = hub_snapshot(tmp_path / "home" / "hub", "stations/m", model, commit)
        shutil.rmtree(place.parents[1] / "trees")  # as the hub's clients before 2 leave it

    snapshot("a" * 40)
    with pytest.raises(UnavailableError, match=r"lacks special_tokens_map\.json, added_tokens\.json"):
        card_of("hf:stations/m", revision="a" * 40)
    pad = {"content": "[PAD]", "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    edited(model / "tokenizer_config.json", added_tokens_decoder={"1": pad})
    snapshot("b" * 40)
    assert card_of("hf:stations/m", revision="b" * 40).pooling == "cls"


@pytest.mark.parametrize(
    ("kinds", "why"),
    [
        ([], "names no module"),
        (["Pooling", "Transformer"], "expected the Transformer first, got Pooling"),
        (["Transformer"], "names no Pooling"),
        (["Transformer", "Normalize", "Pooling"], "Normalize stands before any Pooling"),
    ],
)
def test_modules_that_do_not_fit_together_are_refused_before_any_work(model, kinds, why):
    (model / MODULES).write_text(json.dumps(rows(*kinds)))
    with pytest.raises(UnavailableError, match=rf"model m: .*modules\.json:? {why}"):
        card_of(model)


def test_a_sparse_model_in_the_roster_is_called_one(tmp_path):
    from sentence_transformers import SparseEncoder
    from sentence_transformers.base.modules import Transformer
    from sentence_transformers.sparse_encoder.modules import SpladePooling

    routed_sparse(tmp_path / "routed")
    network = Transformer(str(tmp_path / "routed-plain"), transformer_task="fill-mask")
    SparseEncoder(modules=[network, SpladePooling()], device="cpu").save_pretrained(str(tmp_path / "m"))
    with pytest.raises(UsageError, match=r"is a sparse model by its .*modules\.json: name it in --sparse"):
        card_of(tmp_path / "m")


@pytest.mark.parametrize("kind", [torch.float8_e4m3fn, torch.int8])
def test_weights_in_other_numbers_are_called_so(model, kind):
    tensors = load_file(model / "model.safetensors")
    cast = {name: value.to(kind) if value.dim() == 2 else value for name, value in tensors.items()}
    save_file(cast, model / "model.safetensors", {"format": "pt"})
    with pytest.raises(UnavailableError, match=r"embeddings\.weight has numbers of type \w+, which is not supported"):
        load(card_of(model))


def test_weights_of_other_shapes_are_called_so(tmp_path):
    model = tiny_model(tmp_path / "m", kind="electra", embedding_size=16)
    edited(model / "config.json", embedding_size=8)
    with pytest.raises(UnavailableError, match=r"cannot load model m .*: its weights have other shapes than its"):
        load(card_of(model))


def test_a_plain_directory_with_a_template_beside_its_tokenizer_is_refused(model):
    (model / MODULES).unlink()
    (model / "chat_template.jinja").write_text("{{ messages }}")
    with pytest.raises(UnavailableError, match=r"has a chat template and no modules\.json"):
        card_of(model)


@pytest.mark.parametrize(
    ("template", "why"),
    [
        ("{% for a in range(9999) %}{% for b in range(9999) %}{{ a }}{% endfor %}{% endfor %}", r"it turns|timed out"),
        ("{{ raise_exception('boo') }}", r"cannot carry a 'query'/'document' pair \(it raised TemplateError: boo\)$"),
    ],
)
def test_a_template_that_does_not_end_or_raises_is_refused_in_a_line(tmp_path, monkeypatch, template, why):
    model = tiny_answerer(tmp_path / "m")
    (model / "chat_template.jinja").write_text(template)
    pairs = tmp_path / "pairs.jsonl"
    pairs.write_text(json.dumps({"query": "the", "text": "of"}))
    if "range" in template:
        monkeypatch.setattr(tokenizer, "SECONDS", 3)
        spec = ModelSpec("m", (str(model),), kind="scores")
        with pytest.raises(UnavailableError, match=rf"model m: cannot use its chat template in .*: ({why})"):
            read_scorer(spec, resolve(spec, Policy(offline=True), lambda _: None), "cpu")
    else:
        done = interlock("rerank", pairs, "--model", model, "--out", tmp_path / "scores.jsonl", check=5)
        assert re.search(why, done.stderr.strip().splitlines()[-1])


def test_a_tokenizer_that_is_replaced_before_the_plan_is_named(model):
    card = card_of(model)
    plan = RunPlan(None, [], None, None, {0: card}, {"made with another": None})  # type: ignore[arg-type,dict-item]
    with pytest.raises(UnavailableError, match=r"model m: its files in .* changed during the run"):
        plan.laid_out(lambda *_: None)  # type: ignore[arg-type,return-value]
