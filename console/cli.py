"""The command line: its commands, how it is read, and what is said of a wrong one."""

import argparse
import sys
from collections.abc import Callable, Sequence
from textwrap import fill
from typing import Any, NoReturn

from interlock.console import asking_flags, flags
from interlock.console.streams import write_ascii
from interlock.engine import __version__, settings
from interlock.engine.errors import MEANINGS, UsageError, meant
from interlock.engine.parsers import OFF
from interlock.engine.record.words import safe
from interlock.engine.removed import FLAGS, REMOVED
from interlock.engine.settings import Configuration, knobs

EPILOG = f"""exit codes:
{chr(10).join(f"  {int(code):3} {meaning}" for code, meaning in MEANINGS.items())}

Any setting can also come from the environment (INTERLOCK_ROSTER=...) or a TOML
file (--config); `interlock config show` prints every value and its origin."""

COMMANDS = {
    "chunk": "cut documents into a chunk file",
    "run": "embed chunk files or tables",
    "plan": "show what a run would do",
    "demo": "embed the docstrings of Python's standard library",
    "runs": "list the runs: state, progress, ETA, issues, models, size",
    "watch": "follow and steer a run, many at once, or replay one",
    "ctl": "steer a run from another terminal: pause, stop",
    "view": "show a run's summary, or compare two",
    "upload": "upload what a run exported to a Qdrant server",
    "search": "search a run's store, or a server",
    "questions": "judge what a store finds",
    "encode": "turn texts into the vectors that points have",
    "serve": "answer other programs: embeddings and search",
    "export": "deliver a finished run into other files or a store",
    "prune": "remove points of a store whose chunks left the corpus",
    "rerank": "score pairs of a query and a text with a cross-encoder",
    "eval": "judge what a roster finds, by queries with known answers",
    "compare": "compare TREC runs",
    "models": "list models, fetch them, or bundle them",
    "config": "show every setting and its origin",
    "doctor": "check this machine; --gpu tries its GPUs out",
    "schema": "print the JSON Schema of summary.json",
}
ROOMS = {
    **dict.fromkeys(("search", "questions", "encode", "serve", "rerank"), "searching"),
    **dict.fromkeys(("export", "upload", "prune"), "delivery"),
    **dict.fromkeys(("chunk", "plan", "eval", "compare", "models", "config", "doctor", "schema"), "answers"),
}
"""The module beside this one that does a command, where it is not `commands`."""
LOADING = {*COMMANDS} - {"runs", "watch", "ctl", "view", "upload", "export", "prune", "compare", "config", "schema"}
"""The commands that look for models."""
EXAMPLES = {
    "chunk": "examples:\n  interlock chunk handbook --out chunks/Handbook/pages.jsonl\n"
    "  interlock chunk web --out chunks/Web/p.jsonl --roster bge-m3 --tokens 512\n"
    "  interlock run chunks --qdrant store",
    "run": "example:\n"
    "  interlock run chunks --roster bge-m3=0.6,all-minilm-l6=0.4 --qdrant store\n"
    "  interlock run chunks --resume   # after a kill: recomputes the batch in flight",
    "watch": "example:\n  interlock watch runs/20261121-120000\n  interlock watch runs/20261121-120000 --speed 20\n"
    "  interlock watch runs   # all of them, a line each",
    "search": "examples:\n"
    '  interlock search store "rotate the keys" --filter metadata.lang=en --explain\n'
    "  interlock search store --queries questions.txt --limit 100 --out run.trec",
    "questions": "examples:\n  interlock questions store sheet --queries questions.txt\n"
    "  interlock questions store sheet   # goes on with it\n"
    "  interlock compare sheet/runs/*.run --qrels sheet/qrels.txt --baseline default",
    "encode": "examples:\n"
    '  interlock encode store "how do I rotate the keys?" | jq .vectors.fused\n'
    "  interlock encode runs/20261121-120000 --file questions.txt --out asked.npy\n"
    "  cat chunks.txt | interlock encode http://localhost:6333 - --side document",
    "serve": "examples:\n"
    "  interlock serve store\n"
    "  interlock serve http://localhost:6333 --collection docs --devices cpu\n"
    "  curl http://127.0.0.1:8077/v1/embeddings -H 'Content-Type: application/json' \\\n"
    '    -d \'{"model": "fused", "input": "how do I rotate the keys?"}\'',
    "export": "examples:\n"
    "  interlock export runs/20261121-120000 --to files --export npy,jsonl\n"
    "  interlock export runs/20261121-120000 --to files --vectors float16\n"
    "  interlock export runs/20261121-120000 --to-store store",
    "ctl": "examples:\n  interlock ctl runs/20261121-120000 pause\n"
    "  interlock ctl runs/20261121-120000 exclusive off\n\n"
    "exit codes: 0 acknowledged by the run, 1 refused or unanswered, 2 no such run",
    "eval": "examples:\n"
    "  interlock eval judged --roster all-minilm-l6,bge-m3 --sparse splade-v3 --plan\n"
    "  interlock eval judged --rerank maxsim --json eval.json\n"
    '  interlock eval judged --measures "nDCG@10 P@5 AP" --worst --run-out lists',
    "compare": "examples:\n"
    '  interlock compare a.run b.run --qrels q.txt --measures "nDCG@10 AP Judged@10"\n'
    "  interlock compare cranfield.json med.json cisi.json   # each of eval --json",
    "upload": "examples:\n"
    "  interlock upload runs/20261121-120000 --qdrant http://localhost:6333 --dry-run\n"
    "  interlock upload runs/20261121-120000 --qdrant http://localhost:6333\n"
    "  QDRANT_API_KEY=... interlock upload runs/20261121-120000 \\\n"
    "    --qdrant https://qdrant.example.org --alias docs --quantisation int8 \\\n"
    "    --index metadata.lang:keyword\n\n"
    "After an interruption, a kill or a refusal the same command continues.",
    "view": "example:\n  interlock view runs/20261121-120000\n  interlock view runs/before runs/after | grep seconds",
}
RAW = argparse.RawDescriptionHelpFormatter


class CommandList(RAW):
    """Has the longest command beside what it does, not above it."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog)
        self._action_max_length = len(max(COMMANDS, key=len)) + 4


MEANT = {"embed": "run", "index": "run", "query": "search", "ask": "search", "--model": "--roster"}
"""What others call a command or a flag."""


class Parser(argparse.ArgumentParser):
    """Says what is wrong with a command line without letting it steer the terminal; a flag is typed whole."""

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **{**more, "allow_abbrev": False})

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """Say of a command that there is none which is meant, rather than list all."""
        if isinstance(action.choices, dict) and value not in action.choices:
            near = f" (did you mean {MEANT[value]}?)" if value in MEANT else meant(str(value), action.choices)
            self.error(f"there is no command {str(value)!r}{near}: `interlock --help` lists them")
        super()._check_value(action, value)

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"usage: {self.prog} --help shows every option\n{self.prog}: error: {safe(message)}\n")

    def _print_message(self, message: str, file: Any = None) -> None:
        """Fail where help is lost, of which argparse says nothing; what stderr is told may be."""
        if file is sys.stdout:
            file.write(message)
        else:
            super()._print_message(message, file)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Refuse what a command does not know here, where its own options are known."""
        given, told = [word.partition("=")[0] for word in args or () if word[:1] == "-" != word], list[str]()
        if self._subparsers and given and args[0].partition("=")[0] == given[0] not in self._option_string_actions:
            told.append(f"{given[0]} comes before a command: put one first, as in `interlock run CHUNKS`")
        for name in dict.fromkeys(given if told or not self._subparsers else ()):
            setting = name.removeprefix("--").removeprefix("no-").replace("-", "_")
            instead = REMOVED[setting].instead if setting in REMOVED else FLAGS.get(name)
            takes = self._option_string_actions.get(f"--{name.removeprefix('--no-')}")
            if name.startswith("--no-") and takes and OFF in str(takes.metavar).split("|"):
                instead = f"use {takes.option_strings[0]} {OFF}"
            if instead and name not in self._option_string_actions:
                told.append(f"there is no {name}: {instead}")
        if told:
            self.error("; and ".join(told))
        known, unknown = super().parse_known_args(args, namespace)
        ends = unknown.index("--") if "--" in unknown else len(unknown)
        options = [word for word in unknown[:ends] if word[:1] == "-" != word]
        words = [word for word in unknown[:ends] if word not in options] + unknown[ends + 1 :]
        if len(words) == 1 and getattr(known, "query", "") is None:  # argparse looks for it before the options alone
            known.query, unknown = words[0], options
        if (texts := getattr(known, "texts", None)) is not None:  # and those behind options not at all
            known.texts, unknown = [*texts, *words], options
        if unknown:
            options = [option[2:] for option in self._option_string_actions if option.startswith("--")]
            near = [_near(word.partition("=")[0], options) if word[:2] == "--" else "" for word in unknown]
            known_json = "--json" in self._option_string_actions and getattr(known, "json", False)
            if known_json and len(unknown) == 1 and unknown[0].endswith(".json"):
                near = [f" (--json prints to stdout: --json > {unknown[0]})"]
            text = safe(", ".join(map("".join, zip(unknown, near, strict=True))))
            if hasattr(known, "query") and hasattr(known, "store") and any(word[:1] != "-" for word in unknown):
                text += ": put the question in quotes"
            elif hasattr(known, "chunks") and words == unknown:
                text += ": name one file or directory (one of several files), and a list as one word (A,B)"
            self.error(f"unknown: {text}")
        return known, unknown


def _near(flag: str, known: Sequence[str]) -> str:
    """Suggest which of the flags `known` is meant: what others call so, what begins so, or what is close."""
    begin = [f"--{name}" for name in known if name.startswith(flag[2:])]
    if found := [each for each in (MEANT.get(flag, ""), *begin) if each[2:] in known]:
        return f" (did you mean {found[0]}?)"
    return meant(flag[2:], known, "--")


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Read a command and its options; `command` is its name, `words` are what was typed. Exits with 2 where it is
    wrong."""
    return parser().parse_args(arguments, argparse.Namespace(words=[*arguments]))


def parser() -> argparse.ArgumentParser:
    root = Parser(
        "interlock",
        description="Embed document collections with an ensemble of models, one at a time under a\nmemory lease. "
        "Without a command, `interlock` opens a form that sets up a run.",
        epilog=EPILOG,
        formatter_class=CommandList,
    )
    root.add_argument("--version", action="version", version=f"interlock {__version__}")
    root.set_defaults(command="setup", config=None)
    commands = root.add_subparsers(title="commands", metavar="COMMAND")
    for name, text in COMMANDS.items():
        add: Callable[[argparse.ArgumentParser], None] = getattr(flags, name, None) or getattr(asking_flags, name)
        about = fill(" ".join((add.__doc__ or "").split()), 79)  # its docstring is its help
        example = EXAMPLES.get(name)
        command = commands.add_parser(name, help=text, description=about, epilog=example, formatter_class=RAW)
        command.set_defaults(command=name)
        add(command)
        if name in LOADING:
            text = "directory of `interlock models bundle`, looked into before any cache (INTERLOCK_MODELS)"
            command.add_argument("--models", type=flags.PATH, metavar="DIR", help=text)
    return root


def configuration(options: argparse.Namespace) -> Configuration:
    """Load the settings that these options, the environment and the file make together, and obey them here."""
    flags = {item.name: value for item in knobs() if (value := getattr(options, item.name, None)) is not None}
    for name in ("run_id", "qdrant", "collections", "shard"):
        if flags.get(name) is not None and not str(flags[name]).strip(" ,"):
            raise UsageError(f"{settings.flag_of(name)}: got an empty text: name one, or drop it")
    loaded = settings.load(flags, file=options.config)
    if loaded.settings.ascii:
        write_ascii(asked=True)
    settings.limit_threads(loaded)
    return loaded
