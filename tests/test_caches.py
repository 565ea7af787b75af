"""Where a model's files come from makes no difference to its vectors: caches that other libraries filled, in part too.

A copy of a commit is taken where it is known to have all that counts; else what lacks is fetched, or named.
"""

import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from interlock.engine.errors import UnavailableError
from interlock.engine.models.assets import Policy, counting, resolve
from interlock.engine.models.card import read_card
from interlock.engine.models.registry import REGISTRY, ModelSpec
from interlock.engine.models.weights import load
from interlock.engine.record.words import alike
from tests.builders import environment, hub_snapshot, interlock, tiny_model
from tests.hub import Hub

REPO, COMMIT = "stations/caches", "7" * 40
SPEC = ModelSpec("caches", (f"hf:{REPO}",))
BY_TRANSFORMERS = "import transformers as t; t.AutoModel.from_pretrained(R); t.AutoTokenizer.from_pretrained(R)"
BY_SENTENCES = "from sentence_transformers import SentenceTransformer as S; S(R, device='cpu')"
SMALL = ("modules.json", "1_Pooling/config.json", "sentence_bert_config.json", "config_sentence_transformers.json")


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    """A model that is nothing like the mean of its states without a prompt."""
    place = tmp_path_factory.mktemp("models") / "cls"
    return tiny_model(place, seed=3, pooling="cls", max_tokens=16, prompts={"document": "it is this : "})


@pytest.fixture(scope="module")
def filled(tmp_path_factory, model):
    """HF_HOMEs as transformers and sentence-transformers leave them, by what filled them."""
    homes = {}
    for name, code in {"transformers": BY_TRANSFORMERS, "sentences": BY_SENTENCES}.items():
        homes[name] = tmp_path_factory.mktemp(name)
        with Hub(REPO, model, COMMIT).serving() as hub:
            env = environment({"HF_HOME": str(homes[name]), "HF_ENDPOINT": hub.url})
            subprocess.run([sys.executable, "-c", f"R = {REPO!r}; {code}"], env=env, check=True, capture_output=True)
    return homes


def at(home: Path, monkeypatch):
    monkeypatch.setenv("HF_HOME", str(home))


def offline(spec=SPEC):
    return resolve(spec, Policy(offline=True), lambda _: None)


def snapshot_in(home: Path) -> Path:
    return home / "hub" / f"models--{REPO.replace('/', '--')}" / "snapshots" / COMMIT


def test_what_transformers_left_is_refused_offline_by_the_names_of_what_lacks(filled, monkeypatch):
    at(filled["transformers"], monkeypatch)
    with pytest.raises(UnavailableError, match=r"lacks modules.json, config_sentence_transformers.json") as refused:
        offline()
    assert f"to fetch it: interlock models fetch hf:{REPO}" in str(refused.value)


def test_what_transformers_left_is_completed_where_the_hub_is_there(filled, model, tmp_path):
    home = shutil.copytree(filled["transformers"], tmp_path / "home", symlinks=True)
    with Hub(REPO, model, COMMIT).serving() as hub:
        env = {"HF_HOME": str(home), "HF_ENDPOINT": hub.url}
        interlock("models", "fetch", f"hf:{REPO}", env=env)
        assert all((snapshot_in(home) / name).is_file() for name in SMALL)
        hub.requests.clear()
        interlock("models", "fetch", f"hf:{REPO}", env=env)
        assert hub.requests == []


def test_what_sentence_transformers_left_is_taken_offline_as_the_same_model(filled, model, monkeypatch):
    at(filled["sentences"], monkeypatch)
    whole = resolve(ModelSpec("caches", (str(model),)), Policy(offline=True), lambda _: None)
    assert offline().fingerprint == whole.fingerprint


@pytest.mark.parametrize("name", [*SMALL, "tokenizer_config.json"])
def test_a_file_that_a_whole_commit_has_is_refused_by_name_where_it_lacks(model, tmp_path, monkeypatch, name):
    hub_snapshot(tmp_path / "hub", REPO, model, COMMIT)
    (snapshot_in(tmp_path) / name).unlink()
    at(tmp_path, monkeypatch)
    with pytest.raises(UnavailableError, match=name):
        offline()


def test_a_commit_without_modules_is_taken_where_that_is_known(tmp_path, monkeypatch):
    plain = tiny_model(tmp_path / "plain", seed=1)
    for name in ("modules.json", "sentence_bert_config.json", "1_Pooling/config.json"):
        (plain / name).unlink()
    snapshot = hub_snapshot(tmp_path / "hub", REPO, plain, COMMIT)
    at(tmp_path, monkeypatch)
    assert offline().path == snapshot
    shutil.rmtree(snapshot.parents[1] / "trees")
    with pytest.raises(UnavailableError, match=r"modules.json"):
        offline()
    for name in ("modules.json", "config_sentence_transformers.json", "special_tokens_map.json", "added_tokens.json"):
        mark = snapshot.parents[1] / ".no_exist" / COMMIT / name
        mark.parent.mkdir(parents=True, exist_ok=True)
        mark.touch()
    assert offline().path == snapshot


def test_an_older_client_notes_no_list_and_marks_are_made_for_it(model, tmp_path):
    older = "import huggingface_hub._snapshot_download as s; s.write_tree_cache = lambda *_: None"
    with Hub(REPO, model, COMMIT).serving() as hub:
        env = {"HF_HOME": str(tmp_path), "HF_ENDPOINT": hub.url}
        interlock("models", "fetch", f"hf:{REPO}", env=env, first=older)
        assert not list(tmp_path.rglob("trees"))
        hub.requests.clear()
        interlock("models", "fetch", f"hf:{REPO}", env=env, first=older)
        assert hub.requests == []


@pytest.mark.parametrize("lost", ["modules.json", "1_Pooling/config.json", "config_sentence_transformers.json"])
def test_a_directory_that_the_hub_client_filled_in_part_is_refused_by_name(model, tmp_path, lost):
    place = shutil.copytree(model, tmp_path / "local")
    kept = place / ".cache" / "huggingface"
    names = [file.relative_to(model).as_posix() for file in model.rglob("*") if file.is_file()]
    for name in names:
        note = kept / "download" / f"{name}.metadata"
        note.parent.mkdir(parents=True, exist_ok=True)
        note.write_text(f"{COMMIT}\netag\n1.0\n")
    (kept / "trees").mkdir()
    listed = {"format_version": 1, "files": {name: {} for name in names}}
    (kept / "trees" / f"{COMMIT}.json").write_text(json.dumps(listed))
    spec = ModelSpec("local", (str(place),))
    assert offline(spec).path == place
    (kept / "download" / "config.json.metadata").write_text(f"{'8' * 40}\netag\n1.0\n")
    with pytest.raises(UnavailableError, match=r"config.json of its commit, has that of another"):
        offline(spec)
    (place / lost).unlink()
    with pytest.raises(UnavailableError, match=lost):
        offline(spec)


def test_a_row_says_what_a_copy_of_its_model_lacks_and_nothing_of_another(filled, monkeypatch):
    at(filled["transformers"], monkeypatch)
    row = replace(SPEC, published=("cls", "it is this : ", ""), max_tokens=16)
    assert offline(row).commit == COMMIT
    assert all(REGISTRY[key].published and REGISTRY[key].max_tokens for key in ("bge-m3", "qwen3-embedding-0.6b"))


OPENED = """
import json, sys
seen, place = set(), sys.argv[1]
def watch(event, words):
    if event == "open" and isinstance(words[0], str) and words[0].startswith(place):
        seen.add(words[0])
sys.addaudithook(watch)
from interlock.engine.models.assets import Policy, counting, resolve
from interlock.engine.models.card import read_card
from interlock.engine.models.registry import ModelSpec
from interlock.engine.models.weights import load
from interlock.engine.corpus.tokens import load_tokenizer
spec = ModelSpec("m", (place,))
found = resolve(spec, Policy(offline=True), lambda _: None)
card = read_card(spec, found, "cpu")
load_tokenizer(card.tokenizer_file)
load(card)
counted = {str(file) for file in counting(found.path, found.weights)}
print(json.dumps(sorted(seen - counted)))
"""


@pytest.mark.parametrize("kind", ["bert", "qwen3"])
def test_every_file_that_loading_opens_is_in_the_fingerprint(tmp_path, kind):
    more = {"num_key_value_heads": 2, "head_dim": 8} if kind == "qwen3" else {}
    model = tiny_model(tmp_path / "m", kind=kind, prompts={"query": "q : "}, **more)
    (model / "a").mkdir()
    shutil.move(model / "1_Pooling", model / "a" / "1_Pooling")
    modules = json.loads((model / "modules.json").read_text())
    modules[1]["path"] = "a/1_Pooling"
    (model / "modules.json").write_text(json.dumps(modules))
    for name in ("added_tokens.json", "special_tokens_map.json"):
        (model / name).write_text("{}")
    (model / "README.md").write_text("# A model\n")
    done = subprocess.run([sys.executable, "-c", OPENED, str(model)], env=environment(), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert {os.path.relpath(each, model) for each in json.loads(done.stdout)} <= {"README.md"}
    found = counting(model, ())
    assert model / "a" / "1_Pooling" / "config.json" in found
    assert model / "tokenizer_config.json" in found


@pytest.mark.parametrize("kind", ["CNN", "Router", "BoW"])
def test_a_module_that_is_not_computed_is_refused_by_name_before_what_lacks(tmp_path, kind):
    model = tiny_model(tmp_path / "m")
    modules = json.loads((model / "modules.json").read_text())
    modules[-1] = {"idx": 1, "name": "1", "path": "2_Other", "type": f"sentence_transformers.models.{kind}"}
    (model / "modules.json").write_text(json.dumps(modules))
    with pytest.raises(UnavailableError, match=rf"model m: .*modules.json: module {kind} is not supported"):
        offline(ModelSpec("m", (str(model),)))


@pytest.mark.parametrize(
    ("file", "change"),
    [
        ("config.json", {"quantization_config": {"quant_method": "x"}}),
        ("config.json", {"is_causal": True}),
        ("config.json", {"is_causal": True, "model_type": "t5"}),
        ("config.json", {"use_bidirectional_attention": True, "model_type": "gemma"}),
        ("config.json", {"transformers_weights": "other.safetensors"}),
        ("config_sentence_transformers.json", {"model_type": "CrossEncoder"}),
        ("config_sentence_transformers.json", {"model_type": None}),
        ("config_sentence_transformers.json", {"default_prompt_name": "none"}),
        ("config_sentence_transformers.json", {"requirements": {"torch": ">=99"}}),
        ("sentence_bert_config.json", {"modality_config": {}}),
    ],
)
def test_a_setting_that_sentence_transformers_takes_otherwise_is_refused_by_name(model, tmp_path, file, change):
    place = shutil.copytree(model, tmp_path / "m")
    document = json.loads((place / file).read_text())
    (place / file).write_text(json.dumps(document | change))
    with pytest.raises(UnavailableError, match=rf"{file}: {next(iter(change))}"):
        card_of(place)


def card_of(place: Path):
    spec = ModelSpec("m", (str(place),))
    return read_card(spec, offline(spec), "cpu")


def test_requirements_that_are_met_or_are_none_change_nothing(model, tmp_path):
    place = shutil.copytree(model, tmp_path / "m")
    told = json.loads((place / "config_sentence_transformers.json").read_text())
    told["requirements"] = {"torch": {"specifier": ">=1"}, "python": ">=3", "numpy": "whichever"}
    (place / "config_sentence_transformers.json").write_text(json.dumps(told))
    assert card_of(place).document_prompt == card_of(model).document_prompt


def test_a_language_model_without_modules_pools_by_its_last_token_and_a_copy_by_its_registry(tmp_path):
    model = tiny_model(tmp_path / "plain", kind="qwen3", num_key_value_heads=2, head_dim=8)
    (model / "modules.json").unlink()
    assert card_of(model).pooling == "mean"
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(config | {"architectures": ["Qwen3ForCausalLM"]}))
    assert card_of(model).pooling == "lasttoken"
    (model / "config.json").write_text(json.dumps(config))
    copy = shutil.copytree(model, tmp_path / "Qwen3-Embedding-0.6B")
    spec = ModelSpec(copy.name, (str(copy),))
    card = read_card(spec, offline(spec), "cpu")
    assert (card.pooling, card.query_prompt.startswith("Instruct: ")) == ("lasttoken", True)


@pytest.mark.parametrize("other", ["ctx_encoder.", "aux_encoder."])
def test_a_second_encoder_in_the_weights_is_not_taken_for_the_model(model, tmp_path, other):
    from safetensors.numpy import load_file, save_file

    place = shutil.copytree(model, tmp_path / "m")
    own = load_file(place / "model.safetensors")
    both = own | {f"{other}{name}": -tensor for name, tensor in own.items()}
    save_file(both, place / "model.safetensors", {"format": "pt"})
    read = dict(load(card_of(place)).named_parameters())
    assert all((read[name] == tensor).all() for name, tensor in load(card_of(model)).named_parameters())
    save_file({f"{other}{name}": tensor for name, tensor in own.items()}, place / "model.safetensors", {"format": "pt"})
    with pytest.raises(UnavailableError, match=r"lacks the tensor (bert\.)?embeddings"):
        load(card_of(place))


def test_what_earlier_versions_wrote_of_a_model_is_known_again(model):
    whole = offline(ModelSpec("m", (str(model),))).fingerprint
    assert len(whole) == 128
    assert alike(whole[64:], whole) and alike(whole, whole[64:])
    assert not alike(whole[:64], whole) and not alike("x" * 64, "x" * 128)
    assert not alike(whole, "0" * 64 + whole[64:])


def test_the_hub_cache_is_looked_for_where_huggingface_hub_keeps_it(tmp_path):
    ways = [
        {},
        {"XDG_CACHE_HOME": "$HOME/xdg"},
        {"HF_HOME": "~/hf"},
        {"HF_HOME": "$PLACE/$HOME/hf"},
        {"HF_HOME": "${PLACE}/hf", "XDG_CACHE_HOME": "x"},
        {"HF_HUB_CACHE": "$PLACE/hub", "HF_HOME": "no"},
        {"HUGGINGFACE_HUB_CACHE": "~/old/$NOTHING"},
    ]
    code = (
        "import json, os\nfrom importlib import reload\nfrom huggingface_hub import constants\n"
        "from interlock.engine.models.sources import hub_cache\n"
        f"begun, found = dict(os.environ), []\nfor way in {ways!r}:\n"
        "    os.environ.clear()\n    os.environ.update(begun | way)\n"
        "    found.append([reload(constants).HF_HUB_CACHE, str(hub_cache())])\n"
        "print(json.dumps(found))"
    )
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "XDG_", "HUGGING"))}
    env = kept | {"HOME": str(tmp_path), "PLACE": "/some where"}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    assert len(found) == len(ways) and all(Path(theirs) == Path(ours) for theirs, ours in found)
