"""The command line: commands and their flags; the flags of a run come from `engine.config.RunSettings`."""

import argparse
from collections.abc import Mapping, Sequence
from textwrap import fill
from typing import Any, NoReturn

from interlock.engine import __version__, config, parsers
from interlock.engine.config import Configuration, flag_of, knobs
from interlock.engine.errors import MEANINGS, meant
from interlock.engine.record.safe import safe

EPILOG = f"""exit codes:
{chr(10).join(f"  {int(code):3} {meaning}" for code, meaning in MEANINGS.items())}

Any setting can also come from the environment (INTERLOCK_ROSTER=...) or a TOML
file (--config); `interlock config show` prints every value and its origin."""

QUESTION = "how do I make a date from an ISO 8601 string?"
"""What the demo searches for; its sample holds the answer on every Python."""
COMMANDS = {
    "run": "embed a directory of chunk files",
    "plan": "show what a run would do",
    "demo": "embed the docstrings of Python's standard library",
    "runs": "list the runs: how each stands, its age, models, progress and size",
    "watch": "follow and steer a run in progress, or replay a finished one",
    "ctl": "steer a run from another terminal: pause, resume, stop, status",
    "view": "show a run's summary as a tree and tables, or compare two",
    "search": "search a store that a run wrote",
    "models": "list models and their cache status, or fetch them",
    "config": "show every setting and its origin",
    "doctor": "check this machine; --gpu tries its GPUs out",
    "schema": "print the JSON Schema of summary.json",
}
ANSWERED = ("plan", "search", "models", "config", "doctor", "schema")
"""The commands that only print something."""
ASKED = ("pause", "resume", "stop", "exclusive", "fallback", "status")
EXAMPLES = {
    "run": "example:\n"
    "  interlock run chunks --roster bge-m3=0.6,all-minilm-l6=0.4 --qdrant store\n"
    "  interlock run chunks --resume   # after a kill: recomputes the batch in flight",
    "watch": "example:\n  interlock watch runs/20261121-120000\n  interlock watch runs/20261121-120000 --speed 20",
    "ctl": "examples:\n  interlock ctl runs/20261121-120000 pause\n"
    "  interlock ctl runs/20261121-120000 exclusive off\n\n"
    "exit codes: 0 acknowledged by the run, 1 refused or unanswered, 2 no such run",
    "view": "example:\n  interlock view runs/20261121-120000\n  interlock view runs/before runs/after | grep seconds",
}
RAW = argparse.RawDescriptionHelpFormatter


class Parser(argparse.ArgumentParser):
    """Says what is wrong with a command line without letting it steer the terminal."""

    def error(self, message: str) -> NoReturn:
        super().error(safe(message))

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Refuse what a command does not know here, where its own options are known."""
        known, unknown = super().parse_known_args(args, namespace)
        if unknown:
            options = [option[2:] for option in self._option_string_actions if option.startswith("--")]
            near = [meant(word[2:].partition("=")[0], options, "--") if word[:2] == "--" else "" for word in unknown]
            known_json = "--json" in self._option_string_actions and getattr(known, "json", False)
            if known_json and len(unknown) == 1 and unknown[0].endswith(".json"):
                near = [f" (--json prints to stdout: --json > {unknown[0]})"]
            text = safe(", ".join(map("".join, zip(unknown, near, strict=True))))
            if hasattr(known, "query") and hasattr(known, "store") and any(word[:1] != "-" for word in unknown):
                text += ": put the question in quotes"
            self.exit(2, f"usage: {self.prog} --help shows every option\n{self.prog}: error: unknown: {text}\n")
        return known, unknown


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Read a command and its options; `command` is its name. Exits with 2 on a wrong command line."""
    return parser().parse_args(arguments)


def parser() -> argparse.ArgumentParser:
    root = Parser(
        "interlock",
        description="Embed document collections with an ensemble of models, one at a time under a\nmemory lease. "
        "Without a command, `interlock` opens a form that sets up a run.",
        epilog=EPILOG,
        formatter_class=RAW,
    )
    root.add_argument("--version", action="version", version=f"interlock {__version__}")
    root.set_defaults(command="setup", config=None)
    commands = root.add_subparsers(title="commands", metavar="COMMAND")
    adders = (_run, _plan, _demo, _runs, _watch, _ctl, _view, _search, _models, _config, _doctor, _schema)
    for (name, text), add in zip(COMMANDS.items(), adders, strict=True):
        about = fill(" ".join((add.__doc__ or "").split()), 79)  # its docstring is its help
        example = EXAMPLES.get(name)
        command = commands.add_parser(name, help=text, description=about, epilog=example, formatter_class=RAW)
        command.set_defaults(command=name)
        add(command)
    return root


def configuration(options: argparse.Namespace) -> Configuration:
    """Load the settings that these options, the environment and the file make together."""
    flags = {item.name: value for item in knobs() if (value := getattr(options, item.name, None)) is not None}
    return config.load(flags, file=options.config)


def _run(command: argparse.ArgumentParser) -> None:
    """Embed every collection under CHUNKS (<root>/<Collection>/**/*_chunks.json or *.jsonl) with every model
    of the roster, one model at a time, and deliver vectors, points and a summary into a run directory.
    """
    command.add_argument("chunks", type=parsers.path, metavar="CHUNKS", help="directory of collections of chunk files")
    _front_end(command)
    _settings(command)


def _plan(command: argparse.ArgumentParser) -> None:
    """Read and tokenise CHUNKS, then show passes, batches, tokens, truncation and predicted memory. Loads no
    weights and writes nothing. Without CHUNKS: what each model of the registry would need, by its
    configuration alone.
    """
    text = "directory of collections of chunk files"
    command.add_argument("chunks", type=parsers.path, nargs="?", metavar="CHUNKS", help=text)
    _settings(command)


def _demo(command: argparse.ArgumentParser) -> None:
    """Embed the docstrings of the installed standard library with the demo roster into an embedded Qdrant
    store, then search it once. A real run on the GPUs of this machine, else on simulated ones; the demo models must be
    installed or cached (`make install`).
    """
    command.add_argument("--all", action="store_true", help="use every docstring (thousands), not a few hundred")
    command.add_argument("--query", default=QUESTION, help="search query at the end")
    text = "rehearse every failure: the real engine on simulated GPUs, models without weights"
    command.add_argument("--scripted", action="store_true", help=text)
    command.add_argument(
        "--speed", type=float, default=1.0, metavar="N", help="with --scripted: N times as fast, above 0 (default 1)"
    )
    _front_end(command)
    _settings(command)


def _runs(command: argparse.ArgumentParser) -> None:
    """List every run under --out, the latest first: how it stands, its age, models, rows and progress, what to look at,
    its size on disk, and the process that has it in use. On a terminal a screen opens in which a run is watched,
    viewed, resumed, compared or deleted.
    """
    command.add_argument("--plain", action="store_true", help="print a table to stdout instead")
    command.add_argument("--json", action="store_true", help="machine-readable")
    _settings(command, "out", *(item.name for item in knobs() if item.metadata["screen"] and item.name != "on_hangup"))


def _watch(command: argparse.ArgumentParser) -> None:
    """Show the console of a run: follow and steer one that is running in another process (--readonly: only follow), or
    show or replay one that ended. Locks nothing.
    """
    command.add_argument("run", type=parsers.path, metavar="RUN_DIR", help="run directory")
    text = "replay at N times the speed, above 0 (without: show its current state)"
    command.add_argument("--speed", type=float, metavar="N", help=text)
    _settings(command, *(item.name for item in knobs() if item.metadata["screen"] and item.name != "on_hangup"))


def _ctl(command: argparse.ArgumentParser) -> None:
    """Ask something of a run that is running in another process of yours, over the control socket in its directory, and
    wait for its answer: at the next batch, or for `stop` when the run has stopped. `status` says how a run stands,
    running or not.
    """
    command.add_argument("run", type=parsers.path, metavar="RUN_DIR", help="run directory")
    command.add_argument("action", choices=ASKED, help="what to ask for")
    command.add_argument("value", nargs="?", choices=["on", "off"], help="for exclusive and fallback")
    command.add_argument("--no-wait", action="store_true", help="do not wait until it is acknowledged")
    command.add_argument(
        "--timeout", type=parsers.seconds, default=60.0, metavar="S", help="seconds to wait (default 60)"
    )
    command.add_argument("--json", action="store_true", help="machine-readable")


def _view(command: argparse.ArgumentParser) -> None:
    """Show the summary of a run as a tree and tables; with two, their differences. Without a terminal, or with
    --plain, print text to stdout.
    """
    command.add_argument("file", type=parsers.path, metavar="FILE", help="summary.json or run directory")
    command.add_argument("other", type=parsers.path, nargs="?", metavar="FILE", help="second summary to compare with")
    command.add_argument("--plain", action="store_true", help="print text to stdout instead")
    _settings(command, "theme", "ascii", "slow_link")


def _search(command: argparse.ArgumentParser) -> None:
    """Encode QUERY as the store's texts were encoded (models, weights, prompts) and print the best chunks."""
    command.add_argument("store", type=parsers.path, metavar="STORE", help="--qdrant directory of a run")
    command.add_argument("query", metavar="QUERY", help="search query")
    command.add_argument("--collection", metavar="NAME", help="collection to search; required if the store has several")
    command.add_argument("--limit", type=int, default=5, metavar="N", help="number of chunks (default 5)")
    command.add_argument("--json", action="store_true", help="print one JSON object per line")
    _settings(command, "threads", "ceiling", "host_ceiling", "offline", "allow_pickle")


def _models(command: argparse.ArgumentParser) -> None:
    """List every model of the registry with its sources and whether its files are on this machine. `models fetch`
    downloads the named models into the Hugging Face cache.
    """
    command.add_argument("action", nargs="?", choices=["list", "fetch"], default="list", help="list (default) or fetch")
    command.add_argument("names", nargs="*", metavar="MODEL", help="only these models")
    command.add_argument("--json", action="store_true", help="machine-readable")
    _settings(command, "offline", "refresh_models", "allow_pickle")


def _config(command: argparse.ArgumentParser) -> None:
    """Print every setting and its origin."""
    command.add_argument("action", choices=["show"], help="print the settings")
    _settings(command)


def _doctor(command: argparse.ArgumentParser) -> None:
    """Check versions, devices, memory, disk, caches and the demo models. Exits with 5 if any check fails. With --gpu:
    try each GPU out with small models made in place, in every precision and with every kernel that a run may come to;
    downloads nothing. Exits with 1 if any check fails, with 5 without a GPU.
    """
    command.add_argument("--gpu", action="store_true", help="try each GPU out, and print what a bug report needs")
    command.add_argument("--json", action="store_true", help="machine-readable")
    _settings(command)


def _schema(command: argparse.ArgumentParser) -> None:
    """Print the JSON Schema of summary.json."""


def _front_end(command: argparse.ArgumentParser) -> None:
    group = command.add_argument_group("output")
    group.add_argument("--no-ui", action="store_true", help="no console, plain log output on stderr")
    group.add_argument("--events", choices=["-"], help="stream events to stdout as JSON lines")
    group.add_argument("--summary", metavar="PATH|-", help="also write summary.json to PATH, or to stdout")
    group.add_argument("--quiet", action="store_true", help="print errors only")


def _settings(command: argparse.ArgumentParser, *names: str) -> None:
    """Add the configuration file and the flags of these settings by what they are about; without names, of all."""
    text = "TOML file with settings and [models.*] tables"
    command.add_argument("--config", type=parsers.path, metavar="FILE.toml", help=text)
    metadata = {item.name: item.metadata for item in knobs()}
    wanted = names or tuple(metadata)
    for title, members in GROUPS.items():
        if mine := [name for name in members if name in wanted]:
            group = command.add_argument_group(title)
            for name in mine:
                _setting(group, name, metadata[name])


GROUPS = {
    "models and texts": (
        "roster",
        "sparse",
        "collections",
        "dim",
        "fusion",
        "offline",
        "refresh_models",
        "allow_pickle",
    ),
    "devices and memory": (
        "devices",
        "exclusive",
        "window",
        "cpu_fallback",
        "warm",
        "threads",
        "ceiling",
        "host_ceiling",
        "faults",
    ),
    "results": ("export", "qdrant"),
    "the run": ("out", "run_id", "resume", "reuse", "strict", "on_hangup"),
    "console": ("refresh", "theme", "ascii", "slow_link", "readonly"),
}
"""Settings as `--help` shows them, by what they are about."""


def _setting(command: argparse._ArgumentGroup, name: str, about: Mapping[str, Any]) -> None:
    default = about["default"]
    text = about["help"] + (f" (default {default})" if default else "")
    if about["metavar"]:
        command.add_argument(flag_of(name), dest=name, metavar=about["metavar"], help=text)
        return
    command.add_argument(flag_of(name), dest=name, action="store_const", const="yes", help=text)
    opposite = f"not {flag_of(name)}" if default == "yes" else argparse.SUPPRESS
    command.add_argument("--no-" + flag_of(name)[2:], dest=name, action="store_const", const="no", help=opposite)
    if name == "exclusive":
        command.add_argument("--shared", dest=name, action="store_const", const="no", help="same as --no-exclusive")
