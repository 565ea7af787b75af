"""The contract suites know nothing of the inside: their own imports say so."""

import ast
from pathlib import Path

import pytest

HELPERS = {"tests.builders", "tests.contract", "tests.edge_bridge", "tests.edge_grpc", "tests.local_bridge"}
"""What makes models and corpora, starts the command, and stands for a server."""
SUITES = sorted(Path(__file__).parent.glob("*.py"))


def imported(file):
    """The dotted names that a file imports anywhere in it."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            yield from (each.name for each in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file.name} imports by its place"
            yield node.module


@pytest.mark.parametrize("file", SUITES, ids=lambda file: file.stem)
def test_a_contract_imports_nothing_of_the_inside(file):
    for name in imported(file):
        top, *inside = name.split(".")
        assert top != "interlock" or not inside, f"{file.name} imports {name}"
        assert top not in ("engine", "console", "widgets", "bench", "tools"), f"{file.name} imports {name}"
        assert top != "tests" or any(f"{name}.".startswith(f"{one}.") for one in HELPERS), f"{file.name} imports {name}"


@pytest.mark.parametrize("file", SUITES, ids=lambda file: file.stem)
def test_a_contract_names_no_room_of_the_house(file):
    rooms = [f"interlock.{room}" for room in ("engine", "console", "widgets")]
    assert [room for room in rooms if room in file.read_text()] == []
