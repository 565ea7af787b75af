"""What bash completes by the script that shtab writes: commands, flags, values, models and paths."""

import os
import subprocess
import sys

import pytest

from tests.builders import environment

pytest.importorskip("shtab", reason="make install brings shtab")
TRY = """
source "$1"; shift
COMP_WORDS=("$@"); COMP_CWORD=$(($#-1)); COMP_LINE="$*"; COMP_POINT=${#COMP_LINE}
_shtab_interlock
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.fixture(scope="module")
def script(tmp_path_factory):
    file = tmp_path_factory.mktemp("shell") / "interlock.bash"
    words = [sys.executable, "-m", "shtab", "--shell", "bash", "interlock.completion.parser"]
    env = environment({"PYTHONPATH": os.pathsep.join(sys.path)})
    with file.open("w") as out:
        subprocess.run(words, env=env, stdout=out, check=True)
    return file


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        (["r"], {"run", "runs", "rerank"}),
        (["run", "--quant"], {"--quantise"}),
        (["run", "--fusion", ""], {"concat", "named", "mean"}),
        (["run", "--roster", "all-m"], {"all-minilm-l6", "all-mpnet-base-v2"}),
        (["run", "my"], {"mychunks"}),
        (["search", "my"], {"mychunks"}),
        (["run", "mychunks", "--config", "my"], {"mychunks"}),
        (["search", "store", "--hybrid", "r"], {"rrf"}),
    ],
)
def test_bash_offers_what_may_stand_there(script, tmp_path, typed, offered):
    (tmp_path / "mychunks").mkdir()
    words = ["bash", "-c", TRY, "bash", str(script), "interlock", *typed]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert {*done.stdout.split()} == offered
