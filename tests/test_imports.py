"""What a command loads before it is needed: nothing heavy for help, no screen and no transformers for a run."""

import json
import subprocess
import sys

import pytest

from interlock.console.cli import COMMANDS
from tests.builders import ROOT, corpus, environment

HEAVY = {"torch", "textual", "rich", "transformers", "sentence_transformers", "qdrant_client", "grpc", "numpy"}
SCREEN = {"textual", "rich"}
CODE = """
import json, sys
from interlock.console.main import main
try:
    code = main(sys.argv[1:])
except SystemExit as exit:
    code = exit.code
parts = [name.split(".") for name in sys.modules]
names = {".".join(words[:3] if words[0] == "interlock" else words[:1]) for words in parts}
print("\\n" + json.dumps([code, sorted(names)]))
"""


def loaded(*args, cwd):
    """The packages that are loaded when the command has ended."""
    done = subprocess.run(
        [sys.executable, "-c", CODE, *map(str, args)], env=environment(), cwd=cwd, capture_output=True, text=True
    )
    code, modules = json.loads(done.stdout.splitlines()[-1])
    assert code == 0, done.stderr
    return set(modules)


@pytest.mark.parametrize("command", [None, *COMMANDS])
def test_help_loads_nothing_heavy(tmp_path, command):
    assert loaded(*filter(None, [command]), "--help", cwd=tmp_path) & HEAVY == set()


@pytest.mark.parametrize(
    ("words", "room"), [(("schema",), "answers"), (("runs", "--json"), "commands"), (("config", "show"), "answers")]
)
def test_a_command_loads_its_own_room_of_the_console_and_no_other(tmp_path, words, room):
    rooms = {f"interlock.console.{name}" for name in ("answers", "commands", "searching", "answering", "evaluating")}
    assert loaded(*words, cwd=tmp_path) & rooms == {f"interlock.console.{room}"}


def test_a_headless_run_of_a_packed_model_loads_no_screen_and_no_transformers(tmp_path, tiny_a):
    root = corpus(tmp_path / "in", {"Docs": {"a_chunks.json": ["a"]}})
    modules = loaded("run", root, "--no-ui", "--quiet", "--roster", tiny_a, "--qdrant", "store", cwd=tmp_path)
    assert {"torch", "pyarrow", "qdrant_edge"} <= modules
    assert modules & (SCREEN | {"transformers", "sentence_transformers", "qdrant_client", "grpc"}) == set()


def test_the_console_loads_only_its_screens_before_it_paints():
    screens = ("commands", "front_ends.dispatch", "apps.run", "apps.base", "screens.setup")
    code = f"import sys, {', '.join(f'interlock.console.{name}' for name in screens)}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], env=environment(), capture_output=True, text=True, check=True)
    loaded = {name.partition(".")[0] for name in done.stdout.split()}
    assert "textual" in loaded
    assert loaded & (HEAVY - SCREEN) == set()


def test_no_source_of_the_engine_calls_into_a_screen():
    sources = [path.read_text() for path in (ROOT / "engine").rglob("*.py")]
    assert len(sources) > 50
    assert not [text for text in sources if "call_from_thread" in text or "post_message" in text]
