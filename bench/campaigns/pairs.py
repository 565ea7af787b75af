"""Two runs against each other: one id, one store, no id, and a run that is reused while it is written.

Each is right or is refused in words; and afterwards both can be brought to their end.
"""

import time
from pathlib import Path

from bench.campaigns.field import ANY, PLAIN, STORED, Variant, store_of
from bench.campaigns.process import Outcome, carry_out, start, wrongs
from bench.campaigns.tally import Campaign, Report, Room

KINDS = ("one id", "one id, resumed", "one store", "no id", "a running run reused")


def trial(room: Room) -> Report:
    """Begin two runs, the second a little later; judge both, then continue what did not end well."""
    kind = KINDS[room.number % len(KINDS)]
    variant = STORED if kind == "one store" or room.rng.random() < 0.3 else PLAIN
    first, second = _commands(room, kind, variant)
    one = start(first, room.place)
    time.sleep(room.rng.choice((0.0, 0.0, 0.1, 0.25, 0.4)) * room.rng.random())
    two = start(second, room.place)
    outcomes = [one.end(), two.end()]
    report = Report()
    report.tried.update(["pairs", f"pairs with {kind}"])
    report.tried["pairs of which both completed"] += not any(outcome.code for outcome in outcomes)
    for outcome in outcomes:
        report.wrong += wrongs(outcome)
    report.wrong += _ends(room, kind, variant, outcomes)
    report.wrong = [f"{variant.name}, {kind}: {each}" for each in report.wrong]
    return report


def _commands(room: Room, kind: str, variant: Variant) -> tuple[list[object], list[object]]:
    run, other = room.run(), room.run("other")
    command = room.field.command
    if kind == "one store":
        stored = command(other, variant)
        stored[stored.index("--qdrant") + 1] = store_of(run)
        return command(run, variant), stored
    if kind == "a running run reused":
        return command(run, variant), command(other, PLAIN, "--reuse", run)
    more = {"one id": [], "one id, resumed": ["--resume"], "no id": [ANY]}[kind]
    if kind == "no id":
        other = Path(room.directory("runs-2")) / "r"
        mine = command(run, variant, ANY)
        theirs = command(run, PLAIN, ANY)
        return mine, theirs
    return command(run, variant, *more), command(run, variant, *more)


def _ends(room: Room, kind: str, variant: Variant, outcomes: list[Outcome]) -> list[str]:
    """What completed is right; what did not is continued and then right."""
    run = room.run()
    if kind == "no id":
        found = [] if all(outcome.code == 0 for outcome in outcomes) else ["two runs without an id disturb each other"]
        for each in sorted(path for path in run.parent.iterdir() if (path / "run.json").exists()):
            found += room.field.compare(each, PLAIN)
        return found
    targets = [(run, variant)] if kind.startswith("one id") else [(run, variant), (room.run("other"), PLAIN)]
    found = []
    if all(outcome.code for outcome in outcomes) and kind.startswith("one id"):
        found.append("neither of the two got through")
    for target, how in targets:
        again = carry_out(room.field.command(target, how, "--resume"), room.place)
        found += [f"continued: {each}" for each in room.field.must_be_right(again, target, how)]
    return found


CAMPAIGN = Campaign("pairs", trial, 200, "two processes against each other")
