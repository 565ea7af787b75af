"""Writes the parts of the repository that are made from code or from results: tables, and the schema of the summary.

`python -m tools.generate` rewrites them, `--check` fails when one of them has drifted. Figures come from
`bench/results`, so this works in the repository only and is no part of what is installed. Whether a result is older
than the code is part of its table, so the first change of the code after a measurement asks for `make generate`.
"""

import argparse
import ast
import inspect
import json
import re
import sys
import tomllib
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from textwrap import wrap
from types import UnionType
from typing import Literal, get_args, get_origin

import interlock
from bench import tables
from interlock.asking import SearchOptions
from interlock.console import metrics
from interlock.console.actions import ACTIONS, shown_keys
from interlock.console.cli import COMMANDS, parser
from interlock.engine import parsers
from interlock.engine.compute.cluster.pricing import ClusterWork, priced
from interlock.engine.errors import MEANINGS
from interlock.engine.models import registry
from interlock.engine.models.registry import REGISTRY, label
from interlock.engine.record import summary
from interlock.engine.removed import PREDECESSOR
from interlock.engine.settings import ON_SCREEN, flag_of, knobs, variable_of
from interlock.engine.standing.health import ENDED, TROUBLES, Health, Level
from interlock.engine.targets.files.formats import FORMATS
from interlock.judging import EvaluationOptions
from tools import dashboard, messages

ROOT = Path(__file__).parent.parent
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "bench").glob("*.md")))
SCHEMA = ROOT / "engine" / "record" / summary.SCHEMA_FILE
MESSAGES = ROOT / "docs" / "messages.md"
GIVEN = ROOT / "src" / "interlock" / "given.py"


def models() -> str:
    """The registry."""
    rows = [
        [
            f"`{spec.key}`",
            spec.kind,
            spec.dim,
            spec.max_tokens,
            spec.languages,
            spec.licence,
            "<br>".join(f"`{label(s)}`" for s in spec.sources),
        ]
        for spec in REGISTRY.values()
    ]
    return _table(
        ["model", "kind", "dim", "tokens", "languages", "licence", "sources, in the order in which they are asked"],
        rows,
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


_VALUES: Mapping[object, str] = {
    parsers.roster: "Mapping[str, float] | Mapping[Path, float] | Sequence[str | Path]",
    parsers.names: "Sequence[str]",
    parsers.text: "str | Sequence[str]",
    parsers.size: "int | str",
    parsers.window: 'int | Literal["shared"]',
}
"""What a caller from Python may pass where a parser takes more than the type that it gives."""


def given() -> str:
    """The settings as keyword arguments of Python: None leaves one to the environment, the file or its default."""
    lines = [_GIVEN]
    for item in (item for item in knobs() if item.name not in ON_SCREEN):
        kind = _VALUES.get(item.metadata["parse"]) or _given(item.type, item.metadata["metavar"])
        kind = "str" if item.name == "chunk_sparse" else kind
        default = "field(default=None, hash=False)" if "Sequence" in kind else "None"
        lines.append(f"    {item.name}: {kind} | None = {default}")
    functions = (interlock.search, interlock.rerank, interlock.upload)
    taken = {item.name for item in knobs()} | SearchOptions.__annotations__.keys()
    taken |= EvaluationOptions.__annotations__.keys()
    taken |= {name for each in functions for name in inspect.signature(each).parameters}
    beside = (name for flag in _flags() if (name := flag.replace("-", "_")) in taken - {item.name for item in knobs()})
    lines += ["", "", "BESIDE = (", *(f'    "{each} "' for each in wrap(" ".join(beside), 110)), ")"]
    lines += ['"""What else Python takes, by the names of its flags."""', f"RENAMED = {json.dumps(_RENAMED)}"]
    return "\n".join([*lines, '"""Flags that Python knows by another name."""']) + "\n"


_RENAMED = {"filter": "where", "index": "indexes", "shared": "window"}
"""Flags that Python knows by another name."""


def _flags() -> list[str]:
    """Every long flag of every command, without its dashes."""
    found = [flag for each in _commands().values() for action in each._actions for flag in action.option_strings]
    return sorted({flag.removeprefix("--") for flag in found if flag.startswith("--") and flag[:5] != "--no-"})


def _commands() -> Mapping[str, argparse.ArgumentParser]:
    (found,) = (each for each in parser()._actions if isinstance(each, argparse._SubParsersAction))
    return found.choices


def _given(kind: object, metavar: str) -> str:
    """The type of a value that is passed as it is taken."""
    if get_origin(kind) is Literal:
        return "Literal[" + ", ".join(f'"{each}"' for each in get_args(kind)) + "]"
    if kind == tuple[str, ...]:
        formats = "Sequence[Literal[" + ", ".join(f'"{name}"' for name in FORMATS) + "]]"
        return formats if metavar == "FORMAT,..." else "Sequence[str]"
    if kind is Path or (isinstance(kind, UnionType) and Path in get_args(kind)):
        return "str | PathLike[str]"
    return str(getattr(kind, "__name__", kind))


_GIVEN = '''"""What Python passes as settings of a run. Made from `engine/knobs.py` by `make generate`; do not edit."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Literal


@dataclass(frozen=True, kw_only=True)
class GivenSettings:
    """What a run may be told, by value; None leaves a setting to the environment, the file or its default."""
'''


def fields() -> str:
    """What a row of a model may say, by the docstrings of `ModelSpec`."""
    body = next(
        node.body
        for node in ast.parse(inspect.getsource(registry)).body
        if isinstance(node, ast.ClassDef) and node.name == "ModelSpec"
    )
    rows = []
    for item, told in pairwise(body):
        match item, told:
            case ast.AnnAssign(target=ast.Name(id=name), value=value), ast.Expr(value=ast.Constant(value=str(text))):
                if name not in ("key", *registry.OF_RUNS):  # the name of the table, and what a run says
                    rows.append([f"`{name}`", _default(value), " ".join(text.split())])
    return _table(["field", "default", "what it says"], rows)


def _default(value: ast.expr | None) -> str:
    """A default as TOML writes it, where there is one."""
    match value:
        case None | ast.Constant(value=None):
            return ""
        case ast.Constant(value=bool(whether)):
            return f"`{str(whether).lower()}`"
        case ast.Call():
            return "`{}`"
        case ast.Tuple():
            return "`[]`"
    return f"`{ast.unparse(value)}`".replace("'", '"')


def flags() -> str:
    """The flags of each command that are no settings, and which settings it takes too."""
    known, parts = {item.name for item in knobs()}, []
    for name, command in _commands().items():
        actions = [each for each in command._actions if each.dest not in ("help", "config") and each.help]
        own = [each for each in actions if each.dest not in known]
        taken = [flag_of(each.name) for each in knobs() if each.name in {action.dest for action in actions}]
        said = "every setting" if len(taken) == len(known) else ", ".join(f"`{flag}`" for flag in taken)
        rows = [[f"`{_written(each)}`", str(each.help)] for each in own]
        rows += [["settings", f"{said}, and `--config FILE.toml`"]] if taken else []
        parts.append(
            f"**`interlock {name}`**\n\n" + (_table(["argument", "what it does"], rows) if rows else "takes none.")
        )
    return "\n\n".join(parts)


def _written(action: argparse.Action) -> str:
    """An argument as it is typed."""
    values = action.metavar or "|".join(map(str, action.choices or ()))
    if action.nargs is None and not values:
        values = action.dest.upper()
    if not action.option_strings:
        return f"[{values}]" if action.nargs in ("?", "*") else str(values)
    return f"{action.option_strings[0]} {values}".strip()


def exit_codes() -> str:
    """What the process says when it ends."""
    return _table(["code", "means"], [[int(code), meaning] for code, meaning in MEANINGS.items()])


def commands() -> str:
    """Every command with its one line of help."""
    return _table(["command", "what it does"], [[f"`interlock {name}`", text] for name, text in COMMANDS.items()])


def command_list() -> str:
    """The same in few words."""
    return "\n".join(f"- `{name}`: {text}" for name, text in COMMANDS.items())


STATES = tomllib.loads((Path(__file__).parent / "states.toml").read_text())
"""What each word for how a run stands means, and what to do."""


def states() -> str:
    """Every word for how a run stands; of one without a meaning nothing is written."""
    levels: dict[str, Level] = {"RUN": "ok", **dict.fromkeys(TROUBLES, "warn"), **dict(ENDED.values())}
    rows = [[f"`{word}`", Health(word, level).asks, *STATES[word]] for word, level in levels.items()]
    return _table(["state", "whether anybody is needed", "what it means", "what to do"], rows)


def keys() -> str:
    """Every action of the console, its key, and its name in `[keys]`."""
    rows = [[f"`{shown_keys(each, {})}`", each.help, ", ".join(each.screens), f"`{each.id}`"] for each in ACTIONS]
    return _table(["key", "what it does", "screens", "name in `[keys]`"], rows)


def predecessor() -> str:
    """What stands for each flag of the predecessor."""
    rows = [[", ".join(f"`{word}`" for word in words.split(", ")), said] for words, said in PREDECESSOR.items()]
    return _table(["there", "here"], rows)


def metrics_table() -> str:
    """Every family of numbers that `--metrics` tells."""
    kinds = {"state": metrics.STATES, "counter": metrics.COUNTERS, "gauge": metrics.GAUGES}
    kinds |= {"histogram": (metrics.BATCH_SECONDS,)}
    rows = [
        [
            f"`{each.name}{'_total' * (kind == 'counter')}`",
            kind,
            ", ".join(f"`{e}`" for e in each.labels.split()),
            each.text,
        ]
        for kind, table in kinds.items()
        for each in table
    ]
    return _table(["metric", "kind", "labels", "what it is"], rows)


def scale() -> str:
    """What nodes of 8 GPUs take that embed 2,000 texts a second each, of 180 words and 1,024 numbers."""
    rows = []
    for texts, shown in ((10**7, "10 M"), (10**8, "100 M"), (10**9, "1 B")):
        work = ClusterWork(
            texts, texts // 64, texts * 0.55e-3 / 16, texts / 16_000, 4096 * texts, 10**9, 2 * 4096 * texts
        )
        for nodes in (1, 8, 125):
            price = priced(work, nodes)
            assert price.wall is not None, "the pace is given"
            hours = (f"{each / 3600:,.1f} h" for each in (price.wall, 8 * price.idle))
            sizes = (f"{each / 1e9:,.0f} GB" for each in (price.sent_bytes, price.memory_bytes, price.disk_bytes))
            rows.append([shown, f"{nodes:,}", next(hours), price.limits, next(hours), *sizes])
    heads = ["texts", "nodes", "to the last batch", "limited by", "GPU hours without work", "sent to nodes"]
    return _table([*heads, "memory of the head", "disk of the head"], rows)


PARTS: dict[str, Callable[[], str]] = {
    "models": models,
    "settings": settings,
    "fields": fields,
    "flags": flags,
    "exit codes": exit_codes,
    "commands": commands,
    "command list": command_list,
    "keys": keys,
    "states": states,
    "predecessor": predecessor,
    "metrics": metrics_table,
    "scale": scale,
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
    parser = argparse.ArgumentParser("tools.generate", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing, and fail where something has drifted")
    check = parser.parse_args().check
    wanted = {page: generated(page.read_text()) for page in PAGES}
    wanted |= {
        SCHEMA: summary.schema_text(),
        MESSAGES: messages.page(),
        GIVEN: given(),
        dashboard.FILE: dashboard.dashboard(),
    }
    drifted = [path for path, text in wanted.items() if not path.exists() or path.read_text() != text]
    for path in drifted:
        print(f"{path.relative_to(ROOT)} {'has drifted: make generate' if check else 'written'}")
        if not check:
            path.write_text(wanted[path])
    return int(bool(drifted) and check)


if __name__ == "__main__":
    sys.exit(main())
