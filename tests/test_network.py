"""Models come from the caches of this machine; the network is asked only when one is missing or a refresh is wanted."""

import json
import shutil
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from interlock.engine.errors import UnavailableError
from interlock.engine.models.assets import Policy, cached, resolve
from interlock.engine.models.registry import ModelSpec
from interlock.engine.record.events import DownloadRetried, ModelResolved
from tests.builders import (
    command,
    corpus,
    environment,
    events_of,
    hub_snapshot,
    interlock,
    summary_of,
    tiny_model,
)
from tests.hub import Hub

MINILM = "sentence-transformers/all-MiniLM-L6-v2"
REPO = "stations/tiny"
COMMIT, LATER = "1" * 40, "2" * 40

WATCH = """
import os, socket, sys

EVENTS = {"socket.getaddrinfo", "socket.gethostbyname", "socket.gethostbyaddr", "socket.connect", "socket.sendto"}

def watch(event, arguments):
    if event in EVENTS and getattr(arguments[0], "family", None) != socket.AF_UNIX:
        with open(os.environ["WATCHED"], "a") as file:
            file.write(f"{event} {arguments!r}\\n")
        raise ConnectionRefusedError(f"a test forbids {event}")

sys.addaudithook(watch)
"""


HASTE = "from interlock.engine.models import assets; assets.FIRST_WAIT = 0.1"
"""What makes a command wait tenths of seconds before it asks again."""


@dataclass(frozen=True)
class Watch:
    """Every use of the network is refused and noted: by a process that starts in `path`, or by a fork after WATCH."""

    env: dict[str, str]
    path: dict[str, str]
    notes: Path

    def seen(self) -> list[str]:
        return self.notes.read_text().splitlines() if self.notes.exists() else []


@pytest.fixture
def watch(tmp_path: Path) -> Watch:
    (tmp_path / "watch").mkdir()
    (tmp_path / "watch" / "sitecustomize.py").write_text(WATCH)
    notes = tmp_path / "watched.txt"
    return Watch({"WATCHED": str(notes)}, {"PYTHONPATH": str(tmp_path / "watch")}, notes)


@pytest.fixture
def chunks(tmp_path: Path) -> Path:
    return corpus(tmp_path / "chunks", {"Docs": {"a_chunks.json": ["a signal at danger", "a clear line", "tea"]}})


@pytest.fixture(scope="module")
def warm(tmp_path_factory: pytest.TempPathFactory, minilm: Path) -> Path:
    """An HF_HOME that holds the real MiniLM as the hub's client would have put it."""
    home = tmp_path_factory.mktemp("warm")
    hub_snapshot(home / "hub", MINILM, minilm, COMMIT)
    return home


@pytest.fixture
def held(tmp_path: Path, tiny_a: Path) -> Path:
    """An HF_HOME that holds a tiny model as REPO."""
    hub_snapshot(tmp_path / "home" / "hub", REPO, tiny_a, COMMIT)
    return tmp_path / "home"


def run_of(chunks: Path, roster: str, *more: object, run: str = "one") -> list[object]:
    out = chunks.parent / "runs"
    return ["run", chunks, "--roster", roster, "--out", out, "--run-id", run, "--no-ui", *more]


def cache_of(chunks: Path, run: str = "one") -> dict[str, object]:
    """What the summary says of where the one model came from."""
    return dict(summary_of(chunks.parent / "runs" / run)["collections"][0]["cache"][0])


def test_the_watch_refuses_and_notes_a_connection(watch):
    code = "import socket; socket.create_connection(('127.0.0.1', 9))"
    env = environment(watch.env | watch.path)
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)
    assert "a test forbids socket.getaddrinfo" in done.stderr
    assert len(watch.seen()) == 1


def test_the_watch_refuses_and_notes_what_a_run_asks_of_the_hub(watch, chunks, tmp_path):
    env = watch.env | {"HF_HOME": str(tmp_path / "empty"), "HF_ENDPOINT": "http://localhost:9"}
    said = interlock(*run_of(chunks, f"hf:{REPO}"), env=env, first=WATCH + HASTE, check=5).stderr
    assert "a test forbids socket.getaddrinfo" in said
    assert watch.seen()


def test_a_warm_cache_runs_and_searches_without_a_lookup_and_tells_the_commit(watch, warm, chunks):
    env = watch.env | {"HF_HOME": str(warm)}
    store = chunks.parent / "store"
    interlock(*run_of(chunks, "all-minilm-l6", "--qdrant", store), env=env | watch.path)
    words = ("search", store, "railway signal", "--limit", "1", "--json")
    found = interlock(*words, env=env, first=WATCH).stdout
    assert json.loads(found)["payload"]["text"] == "a signal at danger"
    assert watch.seen() == []
    cache = cache_of(chunks)
    assert (cache["source"], cache["outcome"], cache["commit"]) == (f"hf:{MINILM}", "hit", COMMIT)
    assert summary_of(chunks.parent / "runs" / "one")["collections"][0]["passes"][0]["commit"] == COMMIT


def test_a_run_completes_in_a_network_namespace_without_network(warm, chunks):
    if not shutil.which("unshare") or subprocess.run(["unshare", "-rn", "true"], capture_output=True).returncode:
        pytest.skip("no network namespace can be made here (unshare -rn)")
    line = ["unshare", "-rn", *command(*run_of(chunks, "all-minilm-l6"))]
    done = subprocess.run(line, env=environment({"HF_HOME": str(warm)}), capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("flags", "env"), [(["--offline"], {}), ([], {"HF_HUB_OFFLINE": "1"}), ([], {"TRANSFORMERS_OFFLINE": "1"})]
)
def test_a_missing_model_offline_says_what_where_and_how(watch, chunks, tmp_path, flags, env):
    env = watch.env | env | {"HF_HOME": str(tmp_path / "empty")}
    said = interlock(*run_of(chunks, f"hf:{REPO}", *flags), env=env, first=WATCH, check=5).stderr
    assert "model tiny is not on this machine" in said
    assert f"hf:{REPO}: not in {tmp_path}/empty/hub/models--stations--tiny" in said
    assert f"hf download {REPO} --revision main" in said
    assert watch.seen() == []
    assert not (tmp_path / "runs" / "one").exists()


TINY = ModelSpec("tiny", (f"hf:{REPO}",))


@pytest.fixture
def had(held: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """HF_HOME holds a tiny model as REPO."""
    monkeypatch.setenv("HF_HOME", str(held))
    return held


@pytest.mark.parametrize(
    "named", [{"HF_HOME": ""}, {"HF_HUB_CACHE": "hub"}, {"HF_HOME": "nowhere", "HF_HUB_CACHE": "hub"}]
)
def test_the_model_comes_from_the_cache_that_a_variable_names(held, monkeypatch, named):
    for variable, place in named.items():
        monkeypatch.setenv(variable, str(held / place))
    found = resolve(TINY, Policy(offline=True), lambda _: None)
    assert (found.outcome, found.commit) == ("hit", COMMIT)


@pytest.mark.parametrize("file", ["config.json", "tokenizer.json", "model.safetensors", "1_Pooling/config.json"])
def test_a_snapshot_with_a_link_to_a_missing_blob_is_not_taken(had, file):
    link = had / "hub" / "models--stations--tiny" / "snapshots" / COMMIT / file
    link.resolve().unlink()
    assert link.is_symlink()
    with pytest.raises(UnavailableError, match=f"model tiny is not on this machine.*\\n.*{file}"):
        resolve(TINY, Policy(offline=True), lambda _: None)


def test_weights_of_another_sha256_are_refused(had):
    with pytest.raises(UnavailableError, match=f"model tiny: the weights in .* expected {'0' * 64}"):
        resolve(replace(TINY, weights_sha256="0" * 64), Policy(offline=True), lambda _: None)


def test_a_commit_as_revision_needs_no_ref(had):
    shutil.rmtree(had / "hub" / "models--stations--tiny" / "refs")
    assert resolve(replace(TINY, revision=COMMIT), Policy(offline=True), lambda _: None).commit == COMMIT


def test_a_download_that_fails_at_first_is_retried_and_told_and_then_a_hit_without_a_request(tiny_a, chunks, tmp_path):
    with Hub(REPO, tiny_a, COMMIT, failures=2).serving() as hub:
        env = {"HF_HOME": str(tmp_path / "home"), "HF_ENDPOINT": hub.url}
        interlock(*run_of(chunks, f"hf:{REPO}"), env=env, first=HASTE)
        assert hub.requests
        hub.requests.clear()
        interlock(*run_of(chunks, f"hf:{REPO}", run="two"), env=env)
        assert hub.requests == []
    retries = events_of(chunks.parent / "runs" / "one", DownloadRetried)
    assert [(retry.model, retry.attempt) for retry in retries] == [("tiny", 1), ("tiny", 2)]
    assert all(retry.wait_seconds > 0 and "503" in retry.reason for retry in retries)
    cache = cache_of(chunks)
    assert (cache["outcome"], cache["commit"], cache["retries"]) == ("download", COMMIT, 2)
    (resolved,) = events_of(chunks.parent / "runs" / "two", ModelResolved)
    assert (resolved.outcome, resolved.commit) == ("hit", COMMIT)


def test_a_model_missing_on_the_hub_is_named_and_not_retried(tiny_a, chunks, tmp_path):
    with Hub("stations/other", tiny_a, COMMIT).serving() as hub:
        env = {"HF_HOME": str(tmp_path / "home"), "HF_ENDPOINT": hub.url}
        said = interlock(*run_of(chunks, f"hf:{REPO}"), env=env, check=5, timeout=20).stderr
    assert f"model tiny is not on this machine and cannot be fetched from hf:{REPO} @ main" in said


def test_only_a_refresh_fetches_a_newer_commit_that_the_hub_has(held, chunks, tmp_path):
    with Hub(REPO, tiny_model(tmp_path / "tiny", seed=9), LATER).serving() as hub:
        env = {"HF_HOME": str(held), "HF_ENDPOINT": hub.url}
        interlock(*run_of(chunks, f"hf:{REPO}"), env=env)
        assert hub.requests == []
        interlock(*run_of(chunks, f"hf:{REPO}", "--refresh-models", run="two"), env=env)
    assert cache_of(chunks)["commit"] == COMMIT
    assert {name: cache_of(chunks, "two")[name] for name in ("outcome", "commit")} == {
        "outcome": "refresh",
        "commit": LATER,
    }


def test_a_refresh_with_nothing_newer_is_a_hit(tiny_a, held, chunks):
    with Hub(REPO, tiny_a, COMMIT).serving() as hub:
        env = {"HF_HOME": str(held), "HF_ENDPOINT": hub.url}
        interlock(*run_of(chunks, f"hf:{REPO}", "--refresh-models"), env=env)
        assert any("/revision/main" in request for request in hub.requests)
    assert cache_of(chunks)["outcome"] == "hit"


def test_a_refresh_offline_is_refused(had):
    with pytest.raises(UnavailableError, match="model tiny cannot be refreshed offline"):
        resolve(TINY, Policy(offline=True, refresh=True), lambda _: None)


def test_a_refresh_from_a_hub_that_does_not_answer_takes_the_copy_here_and_says_so(tiny_a, held, chunks):
    with Hub(REPO, tiny_a, COMMIT, failures=1000).serving() as hub:
        env = {"HF_HOME": str(held), "HF_ENDPOINT": hub.url}
        said = interlock(*run_of(chunks, f"hf:{REPO}", "--refresh-models"), env=env, first=HASTE).stderr
    assert "model tiny: cache fallback" in said
    assert (cache_of(chunks)["outcome"], cache_of(chunks)["commit"]) == ("hit", COMMIT)


@pytest.fixture
def parts(tmp_path: Path, tiny_a: Path) -> list[str]:
    """Packages that are installed (their directory has to be on the path) and hold a model's zip in two parts."""
    zipped = Path(shutil.make_archive(str(tmp_path / "whole"), "zip", tiny_a.parent, tiny_a.name)).read_bytes()
    half = len(zipped) // 2
    for number, piece in enumerate((zipped[:half], zipped[half:]), 1):
        file, about = f"part{number}/model.zip.00{number}", f"part{number}-1.dist-info"
        for name, content in {
            file: piece,
            f"{about}/METADATA": f"Metadata-Version: 2.1\nName: part{number}\nVersion: 1\n".encode(),
            f"{about}/RECORD": f"{file},,\n".encode(),
        }.items():
            (tmp_path / "site" / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / "site" / name).write_bytes(content)
    return ["part1", "part2"]


@pytest.fixture
def site(tmp_path: Path, parts: list[str], monkeypatch: pytest.MonkeyPatch) -> ModelSpec:
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    monkeypatch.setenv("INTERLOCK_CACHE", str(tmp_path / "joined"))
    return ModelSpec("parted", ("pkg:" + "+".join(parts),))


def test_looking_at_a_model_in_parts_finds_it_and_unpacks_nothing(site, tmp_path):
    assert cached(site) == (tmp_path / "site" / "part1", site.sources[0], None)
    assert not (tmp_path / "joined").exists()
    snapshot = resolve(site, Policy(offline=True), lambda _: None)
    assert cached(site) == (snapshot.path, site.sources[0], None)
    assert {path.name for path in (tmp_path / "joined" / "parted").iterdir()} == {"lock", snapshot.path.name}


def test_what_a_killed_process_left_of_a_model_in_parts_is_cleared_by_the_next(site, tmp_path):
    target = resolve(site, Policy(offline=True), lambda _: None).path
    whole = {path.name for path in target.iterdir()}
    (target / "complete").unlink()
    for left in (target.parent, target):
        (left / f".model.zip.{'0' * 12}.partial").write_bytes(b"half")
    assert resolve(site, Policy(offline=True), lambda _: None).path == target
    assert {path.name for path in target.iterdir()} == whole
    assert {path.name for path in target.parent.iterdir()} == {"lock", target.name}


def test_several_processes_at_once_each_get_a_model_in_parts(site, tmp_path):
    code = (
        "from interlock.engine.models.registry import ModelSpec; from interlock.engine.models.sources import local; "
        f"print(local({site.sources[0]!r}, ModelSpec('parted', ()))[0])"
    )
    env = environment({"PYTHONPATH": str(tmp_path / "site"), "INTERLOCK_CACHE": str(tmp_path / "joined")})
    runs = [subprocess.Popen([sys.executable, "-c", code], env=env, stdout=subprocess.PIPE) for _ in range(2)]
    said = [run.communicate(timeout=60)[0] for run in runs]
    assert [run.returncode for run in runs] == [0, 0]
    assert len(set(said)) == 1


def test_parts_that_make_no_zip_are_refused_and_leave_no_archive(site, tmp_path):
    (tmp_path / "site" / "part2" / "model.zip.002").write_bytes(b"no zip")
    with pytest.raises(UnavailableError, match="do not form a zip"):
        resolve(site, Policy(offline=True), lambda _: None)
    assert [path.name for path in (tmp_path / "joined" / "parted").iterdir()] == ["lock"]
