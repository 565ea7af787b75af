"""Fixtures that tests share: two tiny models, and the real MiniLM where its package is installed."""

import gc
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import hypothesis
import pytest

from interlock.console.main import ENVIRONMENT, main
from interlock.engine.corpus import tokenizer
from tests import warm
from tests.builders import MINILM_PACKAGE, cache_of_all, minilm_directory, tiny_model
from tests.pure import is_pure

# Read when torch is imported. Tests run side by side, a core each: threads of one process would wait for each other.
os.environ |= {**ENVIRONMENT, "OMP_NUM_THREADS": "1"}
os.environ["INTERLOCK_CACHE"] = str(cache_of_all())  # what tests compute in this process is not its user's
gc.disable()  # until the tests begin: a third of the time in which they are found is otherwise spent on garbage

# A neighbour on the machine is no failure, and a change is not refused for what another one did: the same examples each
# time. `make nightly` looks for new ones.
hypothesis.settings.register_profile("same", deadline=None, derandomize=True)
hypothesis.settings.register_profile("new", deadline=None, derandomize=False, max_examples=1000)
hypothesis.settings.load_profile("same")


@pytest.fixture(autouse=True)
def same_precision() -> Iterator[None]:
    """torch's default precision is that of the process: a test that leaves another one spoils those after it."""
    yield
    assert precision() in (None, "torch.float32")


def precision() -> str | None:
    """torch's default precision, where torch is; one that a thread still imports is waited for, as half of it cannot
    tell."""
    if "torch" not in sys.modules:
        return None
    import torch

    return str(torch.get_default_dtype())


@pytest.fixture(scope="session", autouse=True)
def frozen() -> Iterator[None]:
    """Every lease collects garbage, and need not walk all that tests have imported."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(gc, "unfreeze", lambda: None)
        gc.collect()
        gc.freeze()
        gc.enable()
        yield


@pytest.fixture(scope="session", autouse=True)
def warm_trials() -> Iterator[None]:
    """Tokenizers are tried in forks, a second sooner; those of tests/test_untrusted_models.py are not."""
    begun = {name: getattr(subprocess, name) for name in ("DEVNULL", "PIPE", "TimeoutExpired")}
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(tokenizer, "subprocess", SimpleNamespace(Popen=warm.trial, **begun))
        yield


@pytest.fixture(scope="session")
def tiny_a(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A BERT with mean pooling and 32 dimensions."""
    return tiny_model(tmp_path_factory.mktemp("models") / "tiny-a", seed=1)


@pytest.fixture(scope="session")
def tiny_b(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An MPNet with CLS pooling and 48 dimensions."""
    return tiny_model(
        tmp_path_factory.mktemp("models") / "tiny-b", seed=2, kind="mpnet", width=48, layers=1, pooling="cls"
    )


@pytest.fixture(scope="session")
def exported(tmp_path_factory, tiny_a):
    """Runs with every kind of vector, in files and stores: `one`, `two` of fewer chunks, and `other`, whose vectors are
    those of the first and whose payloads differ."""
    from tests.uploads import embedded

    home = tmp_path_factory.mktemp("exported")
    embedded(home, tiny_a, "one", keep="both")
    embedded(home, tiny_a, "two", rows=40, keep="both")
    embedded(home, tiny_a, "other", keep="both", told="other")
    return home


@pytest.fixture
def upload(exported, tmp_path):
    """Uploads of the first run to a server of its own."""
    from tests.uploads import Uploads, bridged

    with bridged(tmp_path / "bridge") as bridge:
        yield Uploads(bridge, exported / "runs" / "one", tmp_path / "uploads")


@pytest.fixture
def call(capfdbinary, monkeypatch, tmp_path):
    """Run the command in this process: exit code, stdout, stderr."""
    monkeypatch.chdir(tmp_path)

    def run(*args):
        try:
            code = main([str(each) for each in args])
        except SystemExit as ended:
            code = ended.code
        out, err = capfdbinary.readouterr()
        return code, out.decode(), err.decode()

    return run


@pytest.fixture(scope="session")
def minilm() -> Path:
    """The files of the real all-MiniLM-L6-v2."""
    directory = minilm_directory()
    if directory is None:
        pytest.skip(f"{MINILM_PACKAGE} is not installed")
    return directory


FIRST = (
    *("fake_cuda", "cluster_ray", "operator", "printed", "upload", "cluster", "console", "untrusted_models", "rounds"),
    *("api", "encoder", "missing", "plans", "resume", "t4", "network", "law", "facts", "rehearsal", "start"),
)
"""Files that take long: what is begun last ends when nothing else is left to do beside it."""
TOGETHER = ("bench", "docling", "encoder", "gpu_acceptance", "sentence_settings", "splade_tiny")
"""Files that import sentence-transformers, which takes seconds: one worker does."""


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Give the tests of a file to one worker, which then shares what they share.

    Groups are told from names of files, because xdist 3.8 writes its own where pytest 9.2 no longer looks.
    """
    from xdist.scheduler import LoadScopeScheduling

    class ByFile(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            name = Path(nodeid.partition("::")[0]).stem.removeprefix("test_")
            return "together" if name in TOGETHER else name

    return ByFile(config, log)


def pytest_report_teststatus(report: pytest.TestReport) -> tuple[str, str, str] | None:
    """Name a test when it fails: all of them together take a quarter of an hour."""
    if not report.failed:
        return None
    kind = "failed" if report.when == "call" else "error"
    return kind, f"\n{kind.upper()} {report.nodeid}\n", kind.upper()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark what `make quick` runs, where it is asked for, and put the files that take long first."""
    if "pure" in config.option.markexpr:
        for item in items:
            fixtures = getattr(item, "fixturenames", ())
            if is_pure(item.path, getattr(item, "originalname", item.name), fixtures):
                item.add_marker("pure")
    items.sort(key=lambda item: item.path.stem.removeprefix("test_") not in FIRST)
