"""Writes the parts of the repository that are made from code or from results: tables, and the schema of the summary.

`python -m tools.generate` rewrites them, `--check` fails when one of them has drifted. Figures come from
`bench/results`, so this works in the repository only and is no part of what is installed. Whether a result is older
than the code is part of its table, so the first change of the code after a measurement asks for `make generate`.
"""

import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from bench import tables
from interlock.console.actions import ACTIONS, shown_keys
from interlock.console.cli import COMMANDS
from interlock.engine.config import flag_of, knobs, variable_of
from interlock.engine.errors import MEANINGS
from interlock.engine.models.registry import REGISTRY, label
from interlock.engine.record import summary
from tools import messages

ROOT = Path(__file__).parent.parent
PAGES = (*sorted((ROOT / "docs").glob("*.md")), ROOT / "bench" / "README.md")
SCHEMA = ROOT / "engine" / "record" / summary.SCHEMA_FILE
MESSAGES = ROOT / "docs" / "messages.md"


def models() -> str:
    """The registry."""
    rows = [
        [
            f"`{spec.key}`",
            spec.dim,
            spec.max_tokens,
            spec.languages,
            spec.licence,
            "<br>".join(f"`{label(s)}`" for s in spec.sources),
        ]
        for spec in REGISTRY.values()
    ]
    return _table(
        ["model", "dim", "tokens", "languages", "licence", "sources, in the order in which they are asked"], rows
    )


def settings() -> str:
    """Every knob."""
    rows = [
        [
            f"`{flag_of(item.name)}`",
            f"`{variable_of(item.name)}`",
            f"`{item.metadata['default']}`" if item.metadata["default"] else "",
            item.metadata["help"],
        ]
        for item in knobs()
    ]
    return _table(["flag", "environment", "default", "what it does"], rows)


def exit_codes() -> str:
    """What the process says when it ends."""
    return _table(["code", "means"], [[int(code), meaning] for code, meaning in MEANINGS.items()])


def commands() -> str:
    """Every command with its one line of help."""
    return _table(["command", "what it does"], [[f"`interlock {name}`", text] for name, text in COMMANDS.items()])


def keys() -> str:
    """Every action of the console, its key, and its name in `[keys]`."""
    rows = [[f"`{shown_keys(each, {})}`", each.help, ", ".join(each.screens), f"`{each.id}`"] for each in ACTIONS]
    return _table(["key", "what it does", "screens", "name in `[keys]`"], rows)


PARTS: dict[str, Callable[[], str]] = {
    "models": models,
    "settings": settings,
    "exit codes": exit_codes,
    "commands": commands,
    "keys": keys,
}


def figures(name: str) -> str:
    """A table of measured figures, with what they were measured on."""
    heads, rows, origin = tables.PARTS[name]()
    return f"{_table(heads, rows)}\n\n{origin}"


def generated(text: str) -> str:
    """`text` with everything between its generated-part markers made anew."""
    marker = re.compile(r"(<!-- (generated|figures): ([a-z ]+) -->\n).*?(<!-- end -->)", re.DOTALL)
    makers: dict[str, Callable[[str], str]] = {"figures": figures, "generated": lambda name: PARTS[name]()}
    return marker.sub(lambda match: f"{match[1]}{makers[match[2]](match[3])}\n{match[4]}", text)


def _table(heads: list[str], rows: Sequence[Sequence[object]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join("| " + " | ".join(str(cell).replace("|", "\\|") for cell in line) + " |" for line in lines)


def main() -> int:
    """Rewrite what has drifted; with `--check` only say so."""
    wanted = {page: generated(page.read_text()) for page in PAGES}
    wanted |= {SCHEMA: summary.schema_text(), MESSAGES: messages.page()}
    drifted = [path for path, text in wanted.items() if not path.exists() or path.read_text() != text]
    check = "--check" in sys.argv
    for path in drifted:
        print(f"{path.relative_to(ROOT)} {'has drifted: make generate' if check else 'written'}")
        if not check:
            path.write_text(wanted[path])
    return int(bool(drifted) and check)


if __name__ == "__main__":
    sys.exit(main())
