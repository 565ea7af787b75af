"""Collects every message of the program, with its cause and its remedy, for `docs/messages.md`.

Errors, warnings and refusals are read from the source: each place that raises or returns one of the errors, emits a
warning, refuses a record or a control, or takes a step of the ladder. What stands in braces is filled in at run time.
Event lines are rendered by the table that writes them, once with one of each and once with several.

`messages.toml` says when the messages of a folder appear and what to do about those that do not say so themselves; a
folder or a message that it lacks is an error, so that nobody adds one without thinking of who reads it.
"""

import ast
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

from interlock.console.text.event_text import describe, line_of
from interlock.engine import errors
from interlock.engine.record import events as ev
from tools.samples import sample

ROOT = Path(__file__).parent.parent
FOLDERS = ("engine", "console", "src/interlock")
ADVICE = Path(__file__).with_name("messages.toml")
ERRORS = {
    name: int(kind.exit_code)
    for name, kind in vars(errors).items()
    if isinstance(kind, type) and issubclass(kind, errors.InterlockError)
}
KINDS = {
    "Warned": "warning", "skipped": "warning", "refuse": "control", "ValueError": "value",
    "Refusal": "record", "_Refused": "record", "_Unreadable": "record", "_NoList": "record",
    "mitigate": "step", "_step": "step", "_again": "step", "_mitigated": "step", "tell_mitigated": "step",
}  # fmt: skip
"""What is called with a message that is not an error, and the kind of message."""
TITLES = {
    "error": "Errors",
    "warning": "Warnings",
    "record": "Refused records and files",
    "step": "Mitigations",
    "control": "Refused controls",
    "value": "Values",
    "status": "Incomplete and failed collections",
}
SETTINGS = ("engine/settings.py", "engine/parsers.py")
VALUES = (*SETTINGS, "engine/gpu/faults.py", "engine/record/words.py")
"""Files whose ValueErrors are a person's values; others are a caller's mistakes."""
_REFUSING = ("refuse_path", "_refuse_link", "bounded", "unnamed", "_twice", "_row", "_encoded")
"""What returns why a file is refused."""
_REMEDY = re.compile(
    r"(?:[:;,] |\n|\()((?:--resume|add|check|choose|close|continue|copy|delete|drop|finish|fix|free|give|install|merge|"
    r"name|pass|put|raise|remove|rename|replace|restore|resume|set|start|use|view|wait|watch|`interlock)\b.*)$",
    re.DOTALL,
)


@dataclass(frozen=True)
class Message:
    """One message: `kind` as in TITLES, the exit code of an error, and its text with names in braces."""

    kind: str
    exit_code: int | None
    file: str
    text: str


def collect() -> list[Message]:
    """Every message in the source, each once, by folder and text."""
    found = {
        message: None
        for folder in FOLDERS
        for path in sorted((ROOT / folder).rglob("*.py"))
        if not path.is_relative_to(ROOT / "src/interlock/engine") and not path.is_symlink()
        for message in _in_file(path)
    }
    return sorted(found, key=lambda each: (each.kind, _folder(each.file), each.text.lower()))


def page() -> str:
    """The whole of `docs/messages.md`."""
    advice = tomllib.loads(ADVICE.read_text())
    messages = collect()
    lines = [_HEAD]
    for kind, title in TITLES.items():
        lines.append(f"\n## {title}\n\n{advice['kinds'][kind]}")
        own = [each for each in messages if each.kind == kind]
        for folder in sorted({_folder(each.file) for each in own}):
            when = advice["when"].get(folder)
            if when is None:
                raise SystemExit(f"{ADVICE.name}: [when] lacks {folder!r}: say when its messages appear")
            lines.append(f"\n### {when}\n")
            lines += _table(kind, [each for each in own if _folder(each.file) == folder], advice["do"])
    lines += ["\n## Event lines\n", advice["kinds"]["event"], "", *_events()]
    return "\n".join(lines) + "\n"


def _table(kind: str, messages: Sequence[Message], advice: Mapping[str, str]) -> Iterator[str]:
    """A row for each error, with its exit code and what to do; a line for anything else."""
    if kind == "error":
        yield "| message | exit | what to do |\n| --- | --- | --- |"
    for text, code in dict.fromkeys((each.text, each.exit_code) for each in messages):
        told = _remedy(kind, text, advice)
        yield (
            f"| `{_cell(text)}` | {code} | {told} |"
            if kind == "error"
            else f"- `{_cell(text)}`" + (told and f": {told}")
        )


def _remedy(kind: str, text: str, advice: Mapping[str, str]) -> str:
    """What a message says itself, else what the table says of it; empty where its section says it of all."""
    if kind == "error" and (found := _REMEDY.search(text)):
        said = found[1].removesuffix(")") if found[1].count(")") > found[1].count("(") else found[1]
        return f"{said[0].upper()}{said[1:]}.".replace("|", "\\|")
    if told := next((told for part, told in advice.items() if part in text), ""):
        return told
    if kind in ("error", "warning"):
        raise SystemExit(f"{ADVICE.name}: [do] lacks this message, which does not say what to do: {text}")
    return ""


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|").replace("`", "'")


def _folder(file: str) -> str:
    """A folder of the engine; its settings; the files of a whole run beside them; the console; the package."""
    top, *rest = file.split("/")
    if top != "engine":
        return top
    if file in SETTINGS:
        return "engine/settings"
    return f"engine/{rest[0]}" if len(rest) > 1 else "engine/flows"


def _in_file(path: Path) -> Iterator[Message]:
    tree, file = ast.parse(path.read_text()), str(path.relative_to(ROOT))
    known = _imported(tree) | _assigned(tree.body)
    for scope in (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)):
        values = known | _assigned(ast.walk(scope))
        for node in ast.walk(scope):
            kind, code, given = _said(node, file, scope.name)
            yield from (Message(kind, code, file, text) for each in given for text in _texts(each, values))
    if path.name == "ladder.py":
        for node in ast.walk(tree):
            if isinstance(node, ast.Dict) and all(isinstance(key, ast.Attribute) for key in node.keys):
                yield from (Message("step", None, file, text) for each in node.values for text in _texts(each, {}))


def _imported(tree: ast.Module) -> dict[str, ast.expr]:
    """What constants of other modules of ours stand for, by the names they are imported by."""
    found: dict[str, ast.expr] = {}
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("interlock."):
            path = ROOT / f"{str(node.module).removeprefix('interlock.').replace('.', '/')}.py"
            names = {each.name for each in node.names if each.name.isupper()}
            if names and path.exists():
                found |= {name: of for name, of in _assigned(ast.parse(path.read_text()).body).items() if name in names}
    return found


def _assigned(nodes: Iterable[ast.AST]) -> dict[str, ast.expr]:
    """What names stand for, and under `name()` all that a private function returns."""
    found: dict[str, ast.expr] = {}
    for node in nodes:
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                found[name] = value
            case ast.Assign(targets=[ast.Tuple(elts=names)], value=ast.Tuple(elts=values)):
                found |= {
                    name.id: value for name, value in zip(names, values, strict=False) if isinstance(name, ast.Name)
                }
            case ast.FunctionDef(name=name) if name.startswith("_"):
                returned = [each.value for each in ast.walk(node) if isinstance(each, ast.Return) and each.value]
                found[f"{name}()"] = ast.List(elts=returned)
    return found


def _said(node: ast.AST, file: str, scope: str) -> tuple[str, int | None, Sequence[ast.expr]]:
    """The kind, the exit code and the texts of a place that says something."""
    match node:
        case ast.Call(func=func, args=args, keywords=keywords):
            name = ast.unparse(func).rpartition(".")[2]
            kind, code = ("error", ERRORS[name]) if name in ERRORS else (KINDS.get(name, ""), None)
            if not kind or (kind == "value" and file not in VALUES):
                return "", None, ()
            return kind, code, [*args, *(each.value for each in keywords if each.arg in ("message", "reason"))]
        case ast.Yield(value=ast.JoinedStr() as text) if _folder(file) == "engine/flows" or scope == "overlooked":
            return "warning", None, [text]
        case ast.Yield(value=ast.Tuple(elts=[_, text])) if file.startswith("engine/corpus/"):
            return "record", None, [text]
        case ast.Return(value=ast.expr() as text) if file.startswith("engine/corpus/") and scope in _REFUSING:
            return "record", None, [text]
        case ast.Return(value=ast.Tuple(elts=[_, text])) if scope in ("collection_status", "run_status"):
            return "status", None, [text]
    return "", None, ()


def _texts(node: ast.expr, values: Mapping[str, ast.expr]) -> Iterator[str]:
    """The templates that an argument may become; nothing for what is no text of our own."""
    match node:
        case ast.Name(id=name) if name in values and not isinstance(values[name], ast.Name):
            yield from _texts(values[name], {key: each for key, each in values.items() if key.endswith("()")})
        case ast.Call(func=ast.Name(id=name)) if f"{name}()" in values:
            yield from _texts(values[f"{name}()"], {})
        case ast.IfExp(body=body, orelse=orelse):
            yield from (*_texts(body, values), *_texts(orelse, values))
        case ast.List(elts=elts):
            yield from (text for each in elts for text in _texts(each, values))
        case ast.JoinedStr() | ast.Constant() | ast.BinOp():
            text = _template(node, values)
            if re.search(r"[a-z]{2,} ", re.sub(r"\{.*?\}", "", text)) or re.fullmatch("[a-z ]+ [a-z ]+", text):
                yield text


def _template(node: ast.expr, values: Mapping[str, ast.expr]) -> str:
    """A text with what is filled in by its last name in braces."""
    match node:
        case ast.Constant(value=value):
            return f"{value:,}" if isinstance(value, int) else str(value)
        case ast.JoinedStr(values=parts):
            return "".join(_template(part, values) for part in parts)
        case ast.BinOp(left=left, right=right):
            return _template(left, values) + _template(right, values)
        case ast.FormattedValue(value=ast.Name(id=name)) if isinstance(values.get(name), ast.JoinedStr | ast.Constant):
            return _template(values[name], {})
        case ast.FormattedValue(value=ast.Call(func=ast.Name(id=name))) if (
            len(texts := list(_texts(values.get(f"{name}()", node), {}))) == 1
        ):
            return texts[0]
        case ast.FormattedValue(value=ast.IfExp(body=ast.Constant(value=str(text)))):
            return text
        case ast.FormattedValue(value=value):
            return "{" + _named(value) + "}"
    return "{" + _named(node) + "}"


_UNWRAPPED = (
    "human_bytes", "int", "label", "len", "list", "map", "printable", "repr", "safe", "sorted", "str", "sum",
    "typed", "written",
)  # fmt: skip
"""Functions that only write what they are given."""


def _named(node: ast.expr) -> str:
    """What a reader would call an expression: its last name, or what a helper counts."""
    match node:
        case ast.Call(func=ast.Name(id="several"), args=[_, ast.Constant(value=str(thing)), *_]):
            return f"n {thing}s"
        case (
            ast.Call(func=ast.Attribute(attr="join"), args=[only]) | ast.Starred(value=only) | ast.Subscript(value=only)
        ):
            return _named(only)
        case ast.Call(func=ast.Name(id=name), args=[*_, only]) if name in _UNWRAPPED:
            return _named(only)
        case ast.Call(func=ast.Attribute(value=only, attr=name)) if name in ("get", "removeprefix", "replace", "strip"):
            return _named(only)
        case (
            ast.Call(func=only) | ast.GeneratorExp(elt=only) | ast.BoolOp(values=[only, *_]) | ast.NamedExpr(value=only)
        ):
            return _named(only)
        case ast.BinOp(left=left, right=ast.Name(id=name)):
            return name if isinstance(left, ast.Constant) else _named(left)
        case ast.BinOp(left=left):
            return _named(left)
        case ast.Attribute(attr=name) | ast.Name(id=name):
            return name.strip("_").replace("_", " ")
        case ast.Constant(value=str(value)):
            return value
    return "..."


def _events() -> Iterator[str]:
    yield "| event | severity | word | printed | text |\n| --- | --- | --- | --- | --- |"
    for kind in get_args(ev.AnyEvent):
        for count in (1, 260):
            said = describe(sample(kind, count), "cuda")
            printed = "yes" if line_of(sample(kind, count), "cuda") else ""
            if count > 1 and said == describe(sample(kind, 1), "cuda"):
                continue
            tag = kind.__struct_config__.tag
            yield f"| `{tag}` | {said.severity or ''} | {said.word} | {printed} | {_cell(said.text)} |"


_HEAD = """# Messages

Made from the source by `make generate`; do not edit. Names in braces are filled in when a message appears. Plain output
(`--no-ui`) prints `error:` or `warning:` before an event line of that severity, and `interlock:` before an error that
ends the command. The exit codes are explained in [reference.md](reference.md)."""
