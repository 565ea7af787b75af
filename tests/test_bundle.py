"""A bundle of models serves a machine without a network and is never written to; a file that changed is refused."""

import hashlib
import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from interlock.engine.errors import UnavailableError, UsageError
from interlock.engine.models.assets import Policy, cached, resolve
from interlock.engine.models.bundles import BundledModel, bundled, read_bundle, write_bundle
from interlock.engine.models.registry import ModelSpec
from interlock.engine.models.sources import Copy
from interlock.engine.record import events as ev
from tests.builders import corpus, events_of, hub_snapshot, interlock, pins_of, sentences, summary_of, tiny_m3, toml
from tests.test_network import COMMIT, REPO, WATCH

SPEC = ModelSpec("tiny", (f"hf:{REPO}",))


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory, tiny_a: Path) -> Path:
    """An HF_HOME with a tiny model as REPO, chunks, a configuration that names it, and a bundle of it."""
    place = tmp_path_factory.mktemp("bundle")
    hub_snapshot(place / "home" / "hub", REPO, tiny_a, COMMIT)
    corpus(place / "chunks", {"Docs": {"a_chunks.json": sentences(20)}})
    toml(place / "models.toml", {"tiny": {"source": f"hf:{REPO}"}})
    words = ["models", "bundle", place / "bundle", "--roster", "tiny", "--config", place / "models.toml"]
    planned = interlock(*words, "--plan", env={"HF_HOME": str(place / "home")}).stdout
    assert not (place / "bundle").exists()
    said = interlock(*words, env={"HF_HOME": str(place / "home")})
    assert "copied tiny/model.safetensors: " in said.stderr
    size = sum(each["bytes"] for each in manifest(place)["files"])
    assert f"{size / 1024:.1f} KiB on this machine" in planned
    return place


def manifest(stage: Path) -> dict:
    (model,) = json.loads((stage / "bundle" / "models.json").read_text())["models"]
    return model


def state(bundle: Path) -> dict[str, tuple[int, int]]:
    return {
        str(each): (each.stat().st_mtime_ns, each.stat().st_ctime_ns) for each in [bundle, *sorted(bundle.rglob("*"))]
    }


def run(stage: Path, run_id: str, *more: object, **env: str) -> Path:
    words = ["run", stage / "chunks", "--out", stage / "runs", "--run-id", run_id, "--no-ui"]
    asked = ["--roster", "tiny", "--config", stage / "models.toml", *more]
    notes = env.pop("notes", "")
    first = WATCH if notes else ""
    interlock(*words, *asked, env={**env, **({"WATCHED": notes} if notes else {})}, first=first)
    return stage / "runs" / run_id


def test_a_manifest_says_where_each_file_came_from_and_what_it_is(stage, tiny_a):
    model = manifest(stage)
    assert (model["key"], model["repository"], model["revision"], model["commit"]) == ("tiny", REPO, "main", COMMIT)
    for file in model["files"]:
        data = (tiny_a / file["path"]).read_bytes()
        assert (file["bytes"], file["sha256"]) == (len(data), hashlib.sha256(data).hexdigest())
    assert {"model.safetensors", "config.json", "modules.json", "tokenizer.json", "1_Pooling/config.json"} <= {
        file["path"] for file in model["files"]
    }


@pytest.mark.parametrize("how", ["flag", "environment"])
def test_a_run_with_nothing_but_a_bundle_looks_nothing_up_and_gives_the_same_vectors(stage, tmp_path, how):
    if not (stage / "runs" / "cache").exists():
        run(stage, "cache", HF_HOME=str(stage / "home"))
    notes, before = tmp_path / "watched", state(stage / "bundle")
    more = ["--models", stage / "bundle"] if how == "flag" else []
    env = {} if more else {"INTERLOCK_MODELS": str(stage / "bundle")}
    done = run(stage, how, *more, HF_HOME=str(tmp_path / "empty"), notes=str(notes), **env)
    assert not notes.exists()
    assert state(stage / "bundle") == before
    digests = [
        {each.path: each.sha256 for each in events_of(each, ev.ArtefactWritten)}
        for each in (done, stage / "runs" / "cache")
    ]
    assert digests[0] == digests[1]
    (came,) = summary_of(done)["collections"][0]["cache"]
    assert (came["source"], came["commit"]) == (f"hf:{REPO}", COMMIT)


@pytest.fixture
def copy(stage, tmp_path, monkeypatch) -> Path:
    shutil.copytree(stage / "bundle", tmp_path / "copy")
    monkeypatch.setenv("INTERLOCK_MODELS", str(tmp_path / "copy"))
    monkeypatch.setenv("HF_HOME", str(stage / "home"))  # which has the model whole
    return tmp_path / "copy"


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json", "1_Pooling/config.json"])
def test_a_file_that_changed_in_the_bundle_is_refused_by_name_whatever_the_cache_has(copy, name):
    file = copy / "tiny" / name
    data = bytearray(file.read_bytes())
    data[-3] ^= 1
    file.write_bytes(data)
    with pytest.raises(UnavailableError, match=f"tiny/{name} is not the file that the bundle was made with"):
        resolve(SPEC, Policy(offline=True), lambda _: None)


def test_a_file_that_is_gone_from_the_bundle_is_refused_by_name(copy):
    (copy / "tiny" / "config.json").unlink()
    with pytest.raises(UnavailableError, match=r"tiny/config.json of the bundle cannot be read"):
        resolve(SPEC, Policy(offline=True), lambda _: None)


def test_a_file_that_is_read_and_that_the_manifest_lacks_is_refused_by_name(copy):
    prompts = {"prompts": {"document": "so: "}, "default_prompt_name": "document"}  # which would change every vector
    (copy / "tiny" / "config_sentence_transformers.json").write_text(json.dumps(prompts))
    (copy / "tiny" / "README.md").write_text("nobody reads this")
    with pytest.raises(UnavailableError, match=r"config_sentence_transformers.json is not of the model"):
        resolve(SPEC, Policy(offline=True), lambda _: None)


def test_a_bundle_made_again_has_the_files_of_its_models_and_nothing_of_those_before(tmp_path, tiny_a, monkeypatch):
    model, bundle = shutil.copytree(tiny_a, tmp_path / "tiny"), tmp_path / "bundle"
    (model / "config_sentence_transformers.json").write_text("{}")
    interlock("models", "bundle", bundle, model)
    (model / "config_sentence_transformers.json").unlink()
    (bundle / "tiny" / "notes.md").write_text("mine")
    (bundle / "tiny" / "1_Pooling" / ".config.json.0a1b2c.partial").write_text("of a process that was killed")
    interlock("models", "bundle", bundle, model)
    own = {path.relative_to(model) for path in model.rglob("*")}
    assert {path.relative_to(bundle / "tiny") for path in (bundle / "tiny").rglob("*")} == {*own, Path("notes.md")}


def test_a_bundle_is_added_to_and_what_was_damaged_in_it_is_copied_again(tmp_path, tiny_a, tiny_b):
    one, two = ((ModelSpec(path.name, (str(path),)), Copy(path, None), str(path)) for path in (tiny_a, tiny_b))
    place, name = tmp_path / "bundle", Path(tiny_a.name, "model.safetensors")
    write_bundle(place, [one], lambda *_: None)
    (place / name).write_bytes(bytes((place / name).stat().st_size))
    both = write_bundle(place, [two], lambda *_: None)
    assert [each.key for each in both.models] == sorted([tiny_a.name, tiny_b.name])
    write_bundle(place, [one], lambda *_: None)
    assert (place / name).read_bytes() == (tiny_a / "model.safetensors").read_bytes()
    assert read_bundle(place) == both


def test_a_bundle_that_would_not_fit_is_refused_and_nothing_is_copied(tmp_path, tiny_a, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=10))
    with pytest.raises(UsageError, match="has 10 B free, but the bundle takes"):
        write_bundle(tmp_path / "bundle", [(SPEC, Copy(tiny_a, None), f"hf:{REPO}")], lambda *_: None)
    assert list((tmp_path / "bundle").iterdir()) == []


def test_a_bundle_is_not_made_of_itself(stage):
    words = ["models", "bundle", stage / "bundle", "--roster", "tiny", "--config", stage / "models.toml"]
    assert "a bundle is not made of itself" in interlock(*words, "--models", stage / "bundle", check=2).stderr


def test_a_bundle_is_seen_by_whoever_only_looks(copy):
    found = cached(SPEC)
    assert found and found[0] == copy / "tiny"


def test_a_model_that_is_not_in_the_bundle_is_found_in_the_cache(copy, stage):
    (copy / "models.json").write_text('{"schema_version": "1", "models": []}')
    assert resolve(SPEC, Policy(offline=True), lambda _: None).path.is_relative_to(stage / "home")
    with pytest.raises(UnavailableError, match=rf"bundle {copy}: not in it"):
        resolve(ModelSpec("other", ("hf:org/other",)), Policy(offline=True), lambda _: None)


NEWER = '{"schema_version": "2", "models": []}'


@pytest.mark.parametrize("text", [None, "{", '{"schema_version": "1"}', '["models"]', NEWER])
def test_a_directory_that_is_no_bundle_is_refused(tmp_path, monkeypatch, text):
    monkeypatch.setenv("INTERLOCK_MODELS", str(tmp_path))
    if text is not None:
        (tmp_path / "models.json").write_text(text)
    with pytest.raises(UsageError, match=r"models\.json"):
        bundled(SPEC)


def test_a_manifest_that_leads_out_of_the_bundle_is_refused(copy):
    text = (copy / "models.json").read_text()
    (copy / "models.json").write_text(text.replace("1_Pooling/config.json", "../../secret.json"))
    with pytest.raises(UsageError, match="leads out of the bundle"):
        read_bundle(copy)


def model_of(**more: object) -> BundledModel:
    usual = {"key": "tiny", "source": f"hf:{REPO}", "sources": [f"hf:{REPO}", "pkg:tiny"], "repository": REPO}
    return BundledModel(**{**usual, "revision": "main", "commit": COMMIT, "files": [], **more})


@pytest.mark.parametrize(
    ("model", "spec", "serves"),
    [
        (model_of(), SPEC, True),
        (model_of(), ModelSpec("another-name", (f"hf:{REPO}",)), True),
        (model_of(), ModelSpec("tiny", ("hf:org/other",)), False),
        (model_of(), ModelSpec("tiny", (f"hf:{REPO}",), revision=COMMIT), True),
        (model_of(), ModelSpec("tiny", (f"hf:{REPO}",), revision="2" * 40), False),
        (model_of(), ModelSpec("tiny", (f"hf:{REPO}",), revision="v2"), False),
        (model_of(revision="v2"), ModelSpec("tiny", (f"hf:{REPO}",), revision="v2"), True),
        (model_of(commit=None, repository=None), ModelSpec("tiny", ("pkg:tiny",), revision="v2"), True),
        (model_of(repository=None, sources=[], source="tiny"), ModelSpec("tiny", ("/a/tiny",)), True),
        (model_of(repository=None, sources=[], source="tiny"), ModelSpec("other", ("/a/other",)), False),
        (model_of(repository=None, sources=[], source="tiny"), ModelSpec("tiny", ("/",)), False),  # which is here
        (model_of(), ModelSpec("tiny", ("/a/tiny",)), False),
    ],
)
def test_a_bundled_model_serves_rows_that_mean_it(model, spec, serves):
    assert model.serves(spec) is serves


def test_the_heads_of_a_model_and_what_was_a_pickle_are_bundled_as_safetensors(tmp_path, monkeypatch):
    m3 = tiny_m3(tmp_path / "m3")
    table = {"source": str(m3), "head_sha256": "PINS"}
    file = toml(tmp_path / "models.toml", {"m3": {"source": table["source"]}})
    pins = "\n".join(f'head_sha256.{name} = "{pin}"' for name, pin in pins_of(m3).items())
    file.write_text(file.read_text() + pins + "\n")
    words = ["models", "bundle", tmp_path / "bundle", "--roster", "m3", "--sparse", "m3", "--config", file]
    interlock(*words)
    (model,) = json.loads((tmp_path / "bundle" / "models.json").read_text())["models"]
    names = {each["path"] for each in model["files"]}
    assert "sparse_linear.safetensors" in names and not any(name.endswith((".pt", ".bin")) for name in names)
    again = interlock(*words).stdout  # nothing is copied twice, and nothing is lost
    assert "1 model (m3)" in again


@pytest.mark.parametrize("place", ["tiny-a", "tiny-a/1_Pooling"])
def test_a_bundle_is_neither_written_nor_cleared_through_a_link(tmp_path, tiny_a, place):
    file = toml(tmp_path / "own.toml", {"tiny-a": {"source": str(tiny_a)}})
    words = ("models", "bundle", "bundle", "tiny-a", "--config", file)
    interlock(*words, cwd=tmp_path)
    inner = tmp_path / "bundle" / place
    inner.rename(tmp_path / "elsewhere")
    inner.symlink_to(tmp_path / "elsewhere")
    was = {each: each.read_bytes() for each in (tmp_path / "elsewhere").rglob("*") if each.is_file()}
    said = interlock(*words, cwd=tmp_path, check=2)
    assert "is a symbolic link" in said.stderr
    assert {each: each.read_bytes() for each in (tmp_path / "elsewhere").rglob("*") if each.is_file()} == was
