"""The house stays one that a stranger finds his way in: how long a file and a function may be, how full a room."""

import ast
from collections import Counter
from pathlib import Path

from tests.builders import ROOT

LINES, FUNCTION, FILES = 350, 70, 16
DECLARED = 500
"""Lines of a file that is a table of declarations: one entry after the other, of which each is read by itself."""
TABLES = tuple(f"engine/record/{name}.py" for name in ("events", "facts", "snapshot", "state", "summary"))
LONGER = {}
"""Files that are longer still, each as long as it is: it may become shorter, and then its line here goes with it."""


def product() -> dict[str, str]:
    """The text of each file of the product."""
    rooms = ("engine", "console", "widgets")
    files = [*(file for room in rooms for file in (ROOT / room).rglob("*.py"))]
    files += (ROOT / "src" / "interlock").glob("*.py")
    return {str(file.relative_to(ROOT)): file.read_text() for file in files}


def test_a_file_is_read_in_one_sitting():
    lengths = {name: len(text.splitlines()) for name, text in product().items()}
    most = {**LONGER, **dict.fromkeys(TABLES, DECLARED)}
    assert {name: length for name, length in lengths.items() if length > most.get(name, LINES)} == {}
    assert {name for name in LONGER if lengths.get(name, 0) <= LINES} == set()


def test_a_function_is_a_page_at_most():
    long = [
        (name, node.name, node.end_lineno - node.lineno + 1)
        for name, text in product().items()
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.end_lineno - node.lineno >= FUNCTION
    ]
    assert long == []


def test_a_room_has_so_few_files_that_one_look_finds_the_right_one():
    rooms = Counter(str(Path(name).parent) for name in product() if not name.endswith("__init__.py"))
    assert {room: files for room, files in rooms.items() if files > FILES} == {}
