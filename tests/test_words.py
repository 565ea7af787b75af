"""One word for one thing: names of public classes, and the glossary that explains those of the engine."""

import ast
import re
from collections import defaultdict

from tests.builders import ROOT

GLOSSARY = ROOT / "docs" / "glossary.md"


def public_classes() -> dict[str, list[str]]:
    """Where each public class of the product is defined, by its name."""
    found = defaultdict(list)
    for room in ("engine", "console", "widgets", "src/interlock"):
        for path in (ROOT / room).rglob("*.py"):
            for node in ast.parse(path.read_text()).body:
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    found[node.name].append(str(path.relative_to(ROOT)))
    return found


def engine() -> dict[str, str]:
    """Where each public class of the engine's rooms is defined, by its name."""
    rooms = tuple(
        f"engine/{room}/"
        for room in (
            "compute",
            "corpus",
            "evaluation",
            "gpu",
            "models",
            "record",
            "search",
            "standing",
            "targets",
            "vectors",
        )
    )
    return {name: places[0] for name, places in public_classes().items() if places[0].startswith(rooms)}


def test_no_public_class_has_the_name_of_another():
    assert {name: places for name, places in public_classes().items() if len(places) > 1} == {}


def test_the_glossary_explains_every_public_class_of_the_engine_and_no_other():
    explained = re.findall(r"`([A-Z][A-Za-z]*[a-z][A-Za-z]*)`", GLOSSARY.read_text())
    defined = engine()
    told = tuple(f"engine/record/{name}.py" for name in ("events", "facts", "summary"))
    facts = {name for name, place in defined.items() if place in told}
    assert set(explained) - set(defined) == set()
    assert set(defined) - facts - set(explained) == set()  # docs/messages.md has the events
    assert len(explained) == len(set(explained))


def test_the_glossary_explains_each_word_once():
    words = re.findall(r"^\| ((?!word|class)[a-z][^|`]*) \|", GLOSSARY.read_text(), flags=re.MULTILINE)
    assert len(words) > 25
    assert len(words) == len(set(words))
