"""Storms of signals at a run, without a terminal and under a console on one; then it is continued."""

import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress

from bench.campaigns.field import PLAIN, STORED
from bench.campaigns.process import Outcome, carry_out, wrongs
from bench.campaigns.tally import Campaign, Report, Room
from tests import builders
from tests.pty_harness import OnTerminal

NAMES = ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGPIPE", "SIGALRM", "SIGWINCH", "SIGTSTP", "SIGSTOP")
STOPS = (signal.SIGSTOP, signal.SIGTSTP)
OVER = " exit "
"""The console shows the summary of a run that is over until it is left."""
LEAVES = b"\x1b[?1049l"
ENTERS = b"\x1b[?1049h"


def trial(room: Room) -> Report:
    """One run in a storm, and its resume in peace."""
    variant = (PLAIN, STORED)[room.number % 2]
    run, report = room.run(), Report()
    names = room.rng.sample(NAMES, room.rng.choice((1, 1, 2, 3)))
    storm = [room.rng.choice(names) for _ in range(room.rng.choice((1, 2, 5, 12)))]
    on_terminal = room.number % 6 == 5
    command = room.field.command(run, variant)
    if on_terminal:
        outcome = _on_terminal(room, [word for word in command if word != "--no-ui"], storm)
    else:
        outcome = carry_out(command, room.place, meanwhile=_storm(room, storm, room.rng.random() * 0.6))
    report.tried.update(["storms", "storms on a terminal" if on_terminal else "storms without one"])
    report.tried.update(signals=len(storm))
    report.wrong += wrongs(outcome, sent=[getattr(signal, name) for name in storm])
    if outcome.code == 0:
        report.wrong += room.field.compare(run, variant)
    again = carry_out(room.field.command(run, variant, "--resume"), room.place)
    report.wrong += [f"resumed: {each}" for each in room.field.must_be_right(again, run, variant)]
    report.wrong = [f"{variant.name}, {' '.join(storm)}, terminal {on_terminal}: {each}" for each in report.wrong]
    return report


def _storm(room: Room, storm: list[str], first: float) -> Callable[[int], None]:
    def send(pid: int) -> None:
        time.sleep(first)
        for name in storm:
            with suppress(ProcessLookupError):
                number = getattr(signal, name)
                os.kill(pid, number)
                if number in STOPS:
                    time.sleep(0.02)
                    os.kill(pid, signal.SIGCONT)
            time.sleep(room.rng.choice((0.0, 0.001, 0.05)))
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)

    return send


def _on_terminal(room: Room, command: list[object], storm: list[str]) -> Outcome:
    """The same as a real process under a console; a terminal that was taken must have been given back."""
    began = time.monotonic()
    words = [sys.executable, "-m", "interlock", *command]
    with OnTerminal(words, env=builders.environment(), cwd=room.place) as terminal:
        _storm(room, storm, 1.0 + 3.0 * room.rng.random())(terminal.process.pid)
        until = time.monotonic() + 60
        while (hung := terminal.process.poll() is None) and time.monotonic() < until:
            time.sleep(2)
            terminal.signal(signal.SIGCONT)  # a console that was asked to stop does so when it has tidied up
            time.sleep(1)
            if OVER in terminal.screen().text:
                terminal.press("q")
        code = -9 if hung else terminal.process.returncode
        time.sleep(0.05)
        painted = terminal.output
    told = painted.decode(errors="replace")
    if code >= 0 and painted.rfind(ENTERS) > painted.rfind(LEAVES):
        told += "\nTraceback (most recent call last): the terminal was not given back"
    return Outcome(code, told, "", time.monotonic() - began, hung)


CAMPAIGN = Campaign("signals", trial, 300, "storms of signals, without a terminal and under the console on one")
