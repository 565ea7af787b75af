"""A store is searched with the model that wrote it, wherever that lies now, encoding as it did then, or not at all."""

import json
import shutil

import pytest

from interlock.engine.compute.controls import Controls
from interlock.engine.compute.texts import HeldJobs, unheard
from interlock.engine.errors import ExitCode, UnavailableError, UsageError
from interlock.engine.flows.run import Run
from interlock.engine.gpu.devices import choose
from interlock.engine.gpu.lease import Lessor
from interlock.engine.models.assets import Policy, resolve
from interlock.engine.models.registry import ModelSpec
from interlock.engine.record.events import LeaseGranted, LeaseReleased, ModelMoved, ModelUnloaded
from interlock.engine.search.ask import Ask
from interlock.engine.search.searcher import StoreSearcher
from interlock.engine.settings import load
from tests.builders import corpus, hub_snapshot, interlock, logged, sentences, toml

TEXTS = sentences(12)
COMMIT, MOVED = "a" * 40, "b" * 40


@pytest.mark.parametrize("asked", [("one question",), ("--queries", "questions.txt")])
def test_the_log_of_a_search_on_a_cpu_tells_of_leases_and_moves_and_its_screen_of_neither(
    tmp_path, tiny_a, call, asked
):
    store = written(tmp_path, tiny_a)
    (tmp_path / "questions.txt").write_text("a question\nanother\n")
    done = interlock("search", store, *asked, "--config", tmp_path / "c.toml", "--log-json", cwd=tmp_path)
    told = logged(done.stderr)
    kinds = [LeaseGranted, ModelMoved, LeaseReleased, ModelUnloaded]
    assert [type(each) for each in told] == kinds
    assert {(each.lease, each.model) for each in told} == {("L001", "mine")}
    assert "lease" not in call("search", store, *asked, "--config", tmp_path / "c.toml")[2]


def written(place, source, dtype="float32", **model):
    """A store of `TEXTS` by the model at `source`, called `mine` and set by a configuration file alone."""
    chunks = corpus(place / "chunks", {"Docs": {"a_chunks.json": TEXTS}})
    file = toml(place / "c.toml", {"mine": {"source": str(source), **model}})
    file.write_text(file.read_text() + f'dtype = {{ cpu = "{dtype}" }}\n')
    flags = {"roster": "mine", "out": str(place / "runs"), "qdrant": str(place / "store"), "export": "npy"}
    assert Run(chunks, load(flags, {}, file), Controls()).go() == ExitCode.COMPLETED
    return place / "store"


def best(store, *sources, **registered):
    """The best hit for the sixth text, where `mine` is registered with `sources`, or not at all."""
    registry = {"mine": ModelSpec("mine", tuple(map(str, sources)), **registered)} if sources else {}
    lessor = Lessor(choose("cpu"), 4 << 30)
    with StoreSearcher(store, None, registry, Policy(offline=True), lessor) as searcher:
        ((hit,),) = [answer.hits for answer in searcher.search([TEXTS[5]], Ask(limit=1))]
    return hit


def is_found(hit):
    return hit.payload["text"] == TEXTS[5] and hit.score == pytest.approx(1, abs=1e-5)


@pytest.fixture
def cards(monkeypatch):
    """The cards that queries were encoded with, and their prompts."""
    seen, compute = [], HeldJobs.compute

    def noted(self, jobs, progress=unheard):
        seen.extend((job.card, job.tokens.prompt) for job in jobs)
        return compute(self, jobs, progress)

    monkeypatch.setattr(HeldJobs, "compute", noted)
    return seen


@pytest.fixture
def model(tmp_path, tiny_a):
    """A model that a test may move away."""
    return shutil.copytree(tiny_a, tmp_path / "models" / "mine")


@pytest.mark.parametrize("registered", [False, True])
def test_the_query_is_encoded_as_the_manifest_of_the_store_says(tmp_path, model, cards, registered):
    said = {"max_tokens": 32, "query_prompt": "ask: ", "document_prompt": "tell: "}
    store = written(tmp_path, model, dtype="bfloat16", **said)
    best(store, *([model] if registered else []))
    ((card, prompt),) = cards
    assert (card.dtype, card.max_tokens, card.document_prompt, prompt) == ("bfloat16", 32, "tell: ", "ask: ")


def test_the_stores_own_model_is_taken_over_another_of_its_key(tmp_path, model, tiny_b):
    assert is_found(best(written(tmp_path, model), tiny_b))


def test_every_registered_source_of_a_moved_model_is_tried(tmp_path, model, tiny_b):
    store = written(tmp_path, model)
    moved = model.rename(tmp_path / "elsewhere")
    assert is_found(best(store, "/no/such/model", tiny_b, moved, weights_sha256="0" * 64))


def test_a_search_with_other_models_here_is_refused_and_names_them(tmp_path, model, tiny_b):
    store = written(tmp_path, model)
    model.rename(tmp_path / "elsewhere")
    with pytest.raises(UsageError, match=f"written with another mine .* from {tiny_b}"):
        best(store, tiny_b)


def test_a_search_without_a_model_is_unavailable_and_names_the_places(tmp_path, model):
    store = written(tmp_path, model)
    model.rename(tmp_path / "elsewhere")
    with pytest.raises(UnavailableError, match=f"{model}: not a directory\n  /no/such/model: not a directory"):
        best(store, "/no/such/model")


def test_the_stores_commit_is_taken_when_the_branch_moved_on(tmp_path, tiny_a, tiny_b, monkeypatch):
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    hub_snapshot(tmp_path / "hub", "org/mine", tiny_a, COMMIT)
    store = written(tmp_path, "hf:org/mine")
    hub_snapshot(tmp_path / "hub", "org/mine", tiny_b, MOVED)
    assert is_found(best(store, "hf:org/mine"))


def test_a_manifest_with_an_unknown_precision_is_refused(tmp_path, model):
    store = written(tmp_path, model)
    file = store / "docs" / "manifest.json"
    manifest = json.loads(file.read_text())
    manifest["models"][0]["dtype"] = "int3"
    file.write_text(json.dumps(manifest))
    with pytest.raises(UsageError, match=r"cannot read the store's manifest .*int3.*models\[0\]\.dtype"):
        best(store)


def test_a_tokenizer_that_grows_beyond_bounds_is_refused_when_searching_before_it_is_run_here(tmp_path, model):
    store = written(tmp_path, model)
    file, manifest = model / "tokenizer.json", store / "docs" / "manifest.json"
    step = {"type": "Replace", "pattern": {"String": "a"}, "content": "a" * 10}
    file.write_text(
        json.dumps(json.loads(file.read_text()) | {"normalizer": {"type": "Sequence", "normalizers": [step] * 6}})
    )
    said = json.loads(manifest.read_text())
    said["models"][0]["fingerprint"] = fingerprint_of(model)  # as in a store that came with this tokenizer
    manifest.write_text(json.dumps(said))
    told = r"model mine: .*tokenizer\.json as a tokenizer: it turns 1 characters into 1000000"
    with pytest.raises(UnavailableError, match=told) as raised:
        best(store)
    assert raised.value.exit_code == ExitCode.UNAVAILABLE


def fingerprint_of(directory):
    return resolve(ModelSpec("mine", (str(directory),)), Policy(offline=True), lambda _: None).fingerprint
