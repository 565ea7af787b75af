"""Absurd values for every option of every command: refused at once in one line, or taken."""

import argparse
import os
from pathlib import Path

from bench.campaigns.field import PLAIN
from bench.campaigns.process import carry_out, wrongs
from bench.campaigns.tally import Campaign, Report, Room
from interlock.console.cli import COMMANDS, parser

SECONDS = 3.0
"""What a refusal may take on a machine that others use too."""
ABSURD = (
    *("a" * 5000, "9" * 5000, "-1", "1e308", "nan", "", "\udcff", "\u202e\x1b[2J"),
    *("FIFO", "/dev/zero", "/", "missing/x"),
)
LEFT_OUT = ("help", "version", "notify", "events", "patience", "settle", "timeout", "cluster", "models_dir")
"""What does something else than to take a value, or waits as long as it is told."""


def options() -> list[tuple[str, str]]:
    """Every option of every command that takes a value."""
    (commands,) = (each for each in parser()._actions if isinstance(each, argparse._SubParsersAction))
    return [
        (name, action.option_strings[0])
        for name in COMMANDS
        if name not in ("demo", "doctor", "schema")  # doctor answers on stdout, whatever it finds
        for action in commands.choices[name]._actions
        if action.option_strings and action.nargs != 0 and action.dest not in LEFT_OUT
    ]


def trial(room: Room) -> Report:
    """Give one option an absurd value, and judge what is said."""
    every = options()
    place = room.number * 7919 % (len(every) * len(ABSURD))
    (command, flag), value = every[place % len(every)], ABSURD[place // len(every)]
    if value == "FIFO":
        value = str(room.place / "fifo")
        os.mkfifo(value)
    outcome = carry_out([*_command(room, command), f"{flag}={value}"], room.place)
    report, refused = Report(), outcome.code == 2
    report.tried.update(["absurd values", "refused" if refused else f"ended with {outcome.code}"])
    report.wrong += wrongs(outcome)
    said = [line for line in outcome.err.splitlines() if not line.startswith(("usage:", "stdin"))]
    if refused and len(said) > 3:
        report.wrong.append(f"{len(said)} lines: {said[0]}")
    if refused and outcome.seconds > SECONDS:
        report.wrong.append(f"refused after {outcome.seconds:.1f} s")
    report.wrong = [f"{command} {flag}={value[:30]!a}: {each}" for each in report.wrong]
    return report


def _command(room: Room, name: str) -> list[object]:
    run: Path = room.field.whole(PLAIN)
    inputs: dict[str, list[object]] = {
        "run": room.field.command(room.run(), PLAIN)[1:],
        "plan": [room.field.chunks, "--config", room.field.config, "--roster", "tiny-a"],
        "ctl": [run, "status"],
        "upload": [run, "--qdrant", "http://127.0.0.1:9", "--dry-run"],
        "search": [run, "a question"],
        "prune": [run],
        "rerank": [room.field.config, "--model", "none"],
        "config": ["show"],
        **{each: [run] for each in ("watch", "view", "export", "eval")},
    }
    return [name, *inputs.get(name, [])]


CAMPAIGN = Campaign("values", trial, 400, "absurd values for every option of every command")
