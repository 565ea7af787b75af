"""The command line as shtab reads it: `shtab --shell bash interlock.completion.parser` writes what a shell completes:
commands, flags, values, models and paths. Nothing of this runs when a key is pressed, and no command needs it."""

import argparse
import re

import shtab

from interlock.console import cli
from interlock.engine.models.registry import REGISTRY

_PATH = re.compile(r"DIR|FILE|PATH|STORE|SHEET|CHUNKS|DATA|jsonl")
_WORDS = re.compile(r"[a-z0-9]+(\|[a-z0-9]+)+")


def parser() -> argparse.ArgumentParser:
    """Return the parser of all commands, each argument with what may stand there."""
    root = cli.parser()
    (commands,) = (each for each in root._actions if isinstance(each, argparse._SubParsersAction))
    for action in (action for command in commands.choices.values() for action in command._actions):
        takes = str(action.metavar or "")
        if _PATH.search(takes):
            action.complete = shtab.FILE  # where shtab looks for it
        elif "MODEL" in takes or takes.startswith("NAME[=WEIGHT]"):
            action.choices = [*REGISTRY]
        elif _WORDS.fullmatch(takes):
            action.choices = takes.split("|")
    return root
