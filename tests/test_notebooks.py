"""What a notebook shows of the package: its names, its signatures, its errors."""

import ast
import os
import pydoc
import subprocess
import sys
from pathlib import Path

import pytest

import interlock
from tests.builders import environment


def test_a_listing_of_the_package_is_its_interface():
    assert dir(interlock) == sorted(interlock.__all__)
    assert all(hasattr(interlock, name) for name in dir(interlock))
    (typed,) = [each for each in ast.parse(Path(interlock.__file__).read_text()).body if isinstance(each, ast.If)][:1]
    named = {name.asname for each in typed.body for name in each.names}  # which a type checker knows it by
    assert {*named, "__version__"} == {*interlock.__all__}


def test_a_function_shows_its_settings_in_a_word_each():
    assert "settings: interlock.api.Settings = Settings()," in pydoc.plain(pydoc.render_doc(interlock.embed))
    assert repr(interlock.Settings(roster={"a": 1.0}, dim=8)) == "Settings(roster={'a': 1.0}, dim=8)"


CELL = "def mine():\n    interlock.plan('nowhere')\n\nmine()\n"


def test_a_notebook_shows_an_error_in_the_cell_and_what_it_says():
    with pytest.raises(interlock.UsageError) as raised:
        exec(compile(CELL, "<cell>", "exec"), {"interlock": interlock})
    shown = raised.value._render_traceback_()
    assert len(shown) <= 12 and [line.strip() for line in shown if 'File "<cell>' in line] == [
        'File "<cell>", line 4, in <module>',
        'File "<cell>", line 2, in mine',
    ]
    assert shown[-1] == f"UsageError: {raised.value}"
    assert not [line for line in shown if "api.py" in line]
    assert len(interlock.InterlockError("long\n" * 99)._render_traceback_()) == 12


def test_ipython_shows_no_more_of_an_error(tmp_path):
    pytest.importorskip("IPython")
    env = environment({"IPYTHONDIR": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)})
    done = subprocess.run(
        [sys.executable, "-m", "IPython", "--no-banner", "--colors=NoColor", "-c", f"import interlock\n{CELL}"],
        env=env, cwd=tmp_path, capture_output=True, text=True,
    )  # fmt: skip
    shown = (done.stdout + done.stderr).strip().splitlines()
    assert shown[-1].startswith("UsageError: ") and len(shown) <= 12, shown
