"""A wheelhouse has everything that is needed but what the machine has itself."""

import subprocess
import sys

import pytest

from tools import wheelhouse
from tools.wheelhouse import needed, told

REQUIRES = {
    "own": ["torch>=2", "Ready_Made>=1 ; python_version < '3.12'", "shared", "tests ; extra == 'dev'"],
    "torch": ["sympy", "shared"],
    "ready-made": ["own", "deep[extra]"],
    "deep": ["beyond ; extra == 'extra'", "never ; extra == 'other'"],
    "beyond": [],
    "shared": [],
    "sympy": [],
}


def test_what_is_needed_is_listed_to_its_end_and_once():
    assert needed("own", python="3.11", requires=REQUIRES.__getitem__) == [
        *("beyond", "deep", "ready-made", "shared", "sympy", "torch")
    ]


def test_what_the_machine_has_is_left_out_with_what_that_alone_needs():
    assert needed("own", ("torch",), python="3.11", requires=REQUIRES.__getitem__) == [
        *("beyond", "deep", "ready-made", "shared")
    ]


def test_another_python_needs_other_packages():
    assert needed("own", ("torch",), python="3.12", requires=REQUIRES.__getitem__) == ["shared"]


def test_the_list_of_this_installation_has_what_the_project_names_and_no_tools_of_its_development():
    names = needed("interlock", ("torch",))
    assert {"transformers", "msgspec", "qdrant-edge-py", "textual"} <= {*names}
    assert not {"torch", "triton", "pytest", "mypy", "interlock"} & {*names}


def test_wheels_for_another_python_that_lay_there_are_counted_and_told(tmp_path):
    for name in ("a-1-cp311-cp311-x.whl", "a-1-cp312-cp312-x.whl", "b-1-py3-none-any.whl"):
        (tmp_path / name).write_bytes(bytes(500_000))
    assert told(tmp_path, set()) == f"{tmp_path}: 3 wheels, 2 MB"
    assert told(tmp_path, {tmp_path / "a-1-cp311-cp311-x.whl"}).endswith("3 wheels, 2 MB, 1 of them there before")


def test_a_torch_for_this_machine_alone_is_not_asked_of_an_index_for_another(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(wheelhouse.metadata, "version", lambda name: "2.13.0+cpu")
    monkeypatch.setattr(sys, "argv", ["wheelhouse", "--to", str(tmp_path / "w"), "--torch", "--python", "3.12"])
    with pytest.raises(SystemExit):
        wheelhouse.main()
    assert "--torch: 2.13.0+cpu is a build for this machine" in capsys.readouterr().err
    assert not (tmp_path / "w").exists()


def test_what_pip_could_not_do_is_one_line_behind_its_own(monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "argv", ["wheelhouse", "--to", str(tmp_path / "w")])
    monkeypatch.setattr(subprocess, "run", lambda words, **how: subprocess.CompletedProcess(words, 1))
    with pytest.raises(SystemExit, match="pip failed as it says above"):
        wheelhouse.main()
