"""The pictures in `screenshots/`: every screen at two sizes, from a recorded rehearsal, as SVG and PNG.

`python -m tools.screenshots [--check] [OUT]` makes them anew; with `--check` it makes the SVGs again and says which
differ from those in OUT. The same code gives the same SVG, byte for byte, on any machine and in any time zone.
"""

import argparse
import asyncio
import html
import json
import os
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, chdir, contextmanager, suppress
from copy import copy
from dataclasses import dataclass, replace
from importlib import import_module
from io import BytesIO
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast
from unittest.mock import patch

from interlock.engine.errors import ExitCode, InterlockError
from interlock.engine.record.atomic import write_bytes
from interlock.engine.record.rundir import RunDirectory
from interlock.engine.settings import load
from tools.recorded import Recorded

if TYPE_CHECKING:  # textual reads its environment when it is imported, and that is to be the one of `steady`
    from textual.app import App
    from textual.pilot import Pilot

    from interlock.console.form import ModelRow
    from interlock.console.look import Look

SIZES = ((80, 24), (120, 40))
RUN, EARLIER = "20260901-080000", "20260831-174500"
STOPPED, DIED = "20260831-120210", "20260830-221533"
FOREIGN = ("NO_COLOR", "FORCE_COLOR", "COLORTERM", "COLUMNS", "LINES")
"""What of the environment would change a picture, beside all that begins with TEXTUAL."""
LOOKS = 3
"""Equal looks at a screen after which it is taken to have settled."""
FONT = "DejaVu Sans Mono"
COLOURS = 256

Make = Callable[[Recorded, "Look"], "App[Any]"]


def console(run: Recorded, look: "Look") -> "App[Any]":
    """The console on the run."""
    from interlock.console.apps.run import Console

    # By its name alone: where a picture is made is no part of it.
    app = Console(run, look, summary=Path(run.directory.path.name) / run.directory.summary.name, driver=None)
    app.who = "operator at the console"
    return app


def from_journal(kind: str) -> Make:
    """The console on the run as if another process had written it, or as it is shown again."""

    def make(run: Recorded, look: "Look") -> "App[Any]":
        source = copy(run)
        source.kind, source.past = kind, kind == "replay"
        source.controls = None if source.past else source.controls
        return console(source, look)

    return make


def comparison(run: Recorded, look: "Look") -> "App[Any]":
    """The viewer on this run and one of eight devices."""
    from interlock.console.apps.base import viewer
    from interlock.console.summary import document

    other = Recorded(RunDirectory(run.directory.path.with_name(EARLIER)), name="eight-devices")
    other.play_to(1.0)
    return viewer(document.load(run.directory.summary), document.load(other.directory.summary), look, driver=None)


def setup(run: Recorded, look: "Look") -> "App[Any]":
    """The form of a new run."""
    from interlock.console.apps.base import Form
    from interlock.console.form import Machine

    for name, count in (("Handbook", 480), ("Tickets", 1250)):
        shelf = run.directory.path.parent / "chunks" / name
        shelf.mkdir(parents=True)
        (shelf / "a_chunks.json").write_text(json.dumps([{"text": f"text {number}"} for number in range(count)]))
    return Form(look, Machine(load({}, {})), driver=None)


def search(run: Recorded, look: "Look") -> "App[Any]":
    """The search screen on the demo's store."""
    from interlock.console.apps.base import Frame
    from interlock.console.screens.search import SearchScreen
    from interlock.engine.flows.search import SerialRetriever
    from interlock.engine.search.ask import Ask
    from tools.recorded_answer import SHOWN, RecordedRetriever

    retriever = cast(SerialRetriever, RecordedRetriever())
    return Frame[None](look, lambda: SearchScreen(retriever, SHOWN, Ask(limit=20), look), driver=None)


def runs(run: Recorded, look: "Look") -> "App[Any]":
    """The list of runs: this one, which goes on, one that is over, one that was stopped and one whose process died."""
    from interlock.console.apps.base import Runs
    from interlock.console.screens.runs import RunsScreen
    from interlock.console.sources.runs import RunList
    from interlock.engine.record.atomic import Occupant
    from interlock.engine.standing.runs import overview

    out, now = run.directory.path.parent, run.snapshot().latest_at
    ended = {EARLIER: ("eight-devices", 1.0), STOPPED: ("two-devices", 0.3), DIED: ("two-devices", 0.6)}
    for name, (recording, share) in ended.items():
        other = Recorded(RunDirectory(out / name), name=recording)
        other.play_to(share)
        if name == STOPPED and other.controls:
            other.controls.stop(ExitCode.STOPPED)
            other.go()
        other.close()
    who = {RUN: Occupant(48_112, "operator", "gpu-1", now), DIED: Occupant(31_877, "operator", "gpu-1", now)}
    listed = [
        replace(overview(out / name, now), path=Path("runs", name), bytes=size << 20, occupant=who.get(name))
        for name, size in ((RUN, 212), (EARLIER, 388), (STOPPED, 97), (DIED, 164))
    ]
    began = [now - hours * 3600 for hours in (0.03, 14, 20, 34)]
    listed = [replace(each, began_at=at) for each, at in zip(listed, began, strict=True)]

    class Listed(RunList):
        """Runs that do not change, on no disk."""

        complete, failure, looks, places, seen = True, "", 1, (Path("runs"),), listed

        def __init__(self) -> None:
            """Look at nothing."""

        def open(self) -> None:
            """Nothing is looked at."""

        def close(self) -> None:
            """Nothing goes on."""

    class Shown(Runs):
        def open(self) -> None:
            self.push_screen(RunsScreen(Listed(), self.look, lambda: now))

    return Shown(look, driver=None)


@dataclass(frozen=True)
class Shot:
    """One picture: how far the run is, what was asked of it before (and heeded) or just now, the keys to its screen."""

    name: str
    share: float = 0.65
    keys: tuple[str, ...] = ()
    heeded: tuple[str, str] | None = None
    pending: tuple[str, str] | None = None
    ascii: bool = False
    theme: str = "signal"
    run: str = "two-devices"
    make: Make = console
    sizes: tuple[tuple[int, int], ...] = ()
    """Other ones than `SIZES`."""


SHOTS = (
    Shot("main"),
    Shot("ascii", ascii=True),
    Shot("daltonic", theme="daltonic"),
    Shot("light", theme="daylight"),
    Shot("wide", sizes=((200, 60),)),
    Shot("zoomed", keys=("1", "z")),
    Shot("watch", make=from_journal("watch")),
    Shot("replay", make=from_journal("replay")),
    Shot("mitigations", keys=("4", "z")),
    Shot("eight-devices", 0.73, run="eight-devices"),
    Shot("nodes", 0.33, keys=("1", "down", "enter"), run="nodes", sizes=((80, 24),)),
    Shot("nodes", 0.33, run="nodes", sizes=((140, 45),)),
    Shot("shared", 0.56),
    Shot("pending", 0.35, pending=("schedule", "shared")),
    Shot("paused", 0.73, heeded=("pause", "yes")),
    Shot("events", keys=("6", "f", "z")),
    Shot("event", keys=("6", "f", "up", "up", "enter")),
    Shot("exclusive", 0.35, keys=("x",)),
    Shot("quit", keys=("q",)),
    Shot("help", keys=("question_mark",)),
    Shot("palette", keys=("ctrl+p",)),
    Shot("ended", 1.0, keys=("escape",)),
    Shot("recap", 1.0),
    Shot("summary", 1.0, keys=("s",)),
    Shot("comparison", 1.0, make=comparison),
    Shot("runs", keys=("space", "j"), make=runs),
    Shot("search", keys=(*"how do I make a date from an ISO 8601 string?", "enter", "down"), make=search),
    Shot("setup", keys=(*"chunks", "slash"), make=setup),
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Make the pictures, or check them; an exit code."""
    parser = argparse.ArgumentParser("tools.screenshots", description=__doc__)
    parser.add_argument("out", type=Path, nargs="?", default=Path("screenshots"), metavar="OUT")
    parser.add_argument("--check", action="store_true", help="change nothing; exit 1 where an SVG differs")
    parser.add_argument("--only", action="append", metavar="NAME", help="only this shot; may be given again")
    options = parser.parse_args(arguments)
    differing = []
    with steady():
        for name, svg in pictures([shot for shot in SHOTS if not options.only or shot.name in options.only]):
            file = options.out / f"{name}.svg"
            if options.check:
                differing += [name] if not file.exists() or file.read_bytes() != svg else []
            else:
                write_bytes(file, svg)
                write_bytes(file.with_suffix(".png"), png_of(svg))
    if differing:
        print(f"not as the code draws them: {', '.join(differing)}; make screenshots", file=sys.stderr)
    return ExitCode.FAILED if differing else ExitCode.COMPLETED


def pictures(shots: Sequence[Shot]) -> Iterator[tuple[str, bytes]]:
    """Every shot at every size: its name and its SVG."""
    for shot in shots:
        for width, height in shot.sizes or SIZES:
            with tempfile.TemporaryDirectory() as scratch:
                svg = asyncio.run(_taken(shot, (width, height), Path(scratch)))
            name = f"{shot.name}-{width}x{height}"
            yield name, _normal(svg, name).encode()


@contextmanager
def steady() -> Iterator[None]:
    """The environment that pictures are made in: no time zone, no wishes of this machine's user."""
    with ExitStack() as stack:
        plain = {name: value for name, value in os.environ.items() if not name.startswith("TEXTUAL")}
        plain = {name: value for name, value in plain.items() if name not in FOREIGN}
        plain |= {"TZ": "UTC", "TERM": "xterm-256color", "TEXTUAL_ANIMATIONS": "none"}
        stack.enter_context(patch.dict(os.environ, plain, clear=True))
        time.tzset()
        yield
    time.tzset()


def png_of(svg: bytes) -> bytes:
    """The picture of an SVG, with a font of this machine and few colours.

    Raises InterlockError without cairosvg (which brings Pillow) and the cairo library.
    """
    try:
        cairosvg, pillow = import_module("cairosvg"), import_module("PIL.Image")
    except (ImportError, OSError) as error:
        raise InterlockError(f"PNGs need cairosvg and the cairo library ({error}): pip install cairosvg") from error
    placed = _TEXT.sub(_letter_by_letter, svg.decode().replace("Fira Code", FONT))
    made, painted = BytesIO(), BytesIO(cairosvg.svg2png(placed.encode()))
    few = pillow.open(painted).convert("RGB").quantize(COLOURS, method=pillow.Quantize.MAXCOVERAGE)
    few.save(made, "PNG", optimize=True)
    return made.getvalue()


_TEXT = re.compile(r'(<text [^>]*?)x="([\d.]+)"([^>]*?)textLength="([\d.]+)"([^>]*>)([^<]*)')


def _letter_by_letter(text: re.Match[str]) -> str:
    """A run of text with a place for each sign: cairo rounds the width of a sign, and a run of them would end early."""
    before, x, middle, length, after, content = text.groups()
    signs = html.unescape(content)
    places = " ".join(f"{float(x) + float(length) * place / len(signs):.2f}" for place in range(len(signs)))
    return f'{before}x="{places}"{middle}{after}{content}'


def _svg(app: "App[Any]") -> str:
    return app.export_screenshot(title="interlock")


def _plain(app: "App[Any]") -> str:
    strips = app.screen._compositor.render_strips()
    return "\n".join("".join(segment.text for segment in strip).rstrip() for strip in strips)


def shown(shot: Shot, size: tuple[int, int]) -> str:
    """What a terminal of this size shows, without colour."""
    with tempfile.TemporaryDirectory() as scratch:
        return asyncio.run(_taken(shot, size, Path(scratch), _plain))


async def _taken(shot: Shot, size: tuple[int, int], scratch: Path, picture: "Callable[[App[Any]], str]" = _svg) -> str:
    from textual.worker import WorkerCancelled

    from interlock.console.look import Look

    run = Recorded(RunDirectory(scratch / RUN), name=shot.run)
    run.play_to(shot.share)
    assert run.controls
    if shot.heeded:
        run.controls.ask(*shot.heeded, "operator at the console")
        run.play_until(lambda seen: seen.paused)
    if shot.pending:
        run.controls.ask(*shot.pending, "operator at the console")
    app = shot.make(run, Look(ascii=shot.ascii, theme=shot.theme))
    with _scene(run):
        async with app.run_test(size=size) as pilot:
            await _settled(app, pilot)
            for key in shot.keys:
                await pilot.press(key)
            while unfinished := [worker for worker in app.workers if not worker.is_finished]:
                with suppress(WorkerCancelled):  # by a later one
                    await app.workers.wait_for_complete(unfinished)
            await _settled(app, pilot)
            taken = picture(app)
    run.close()
    return taken


@contextmanager
def _scene(run: Recorded) -> Iterator[None]:
    """For the screens it is the moment of the run's latest entry, on a machine with the demo's models."""
    import interlock.console.apps.run
    import interlock.console.screens.main
    import interlock.console.screens.setup
    from interlock.console.form import Machine

    now = SimpleNamespace(time=lambda: run.snapshot().latest_at, strftime=time.strftime)
    here = {name for name, _ in load({}, {}).settings.roster}

    def known(machine: Machine) -> "list[ModelRow]":
        return [replace(each, here=each.key in here) for each in machine.known()]

    with ExitStack() as stack:
        stack.enter_context(patch.object(interlock.console.apps.run, "time", now))
        stack.enter_context(patch.object(interlock.console.screens.main, "time", now))
        stack.enter_context(patch.object(Machine, "looked_at", known))
        stack.enter_context(patch.object(Machine, "gpus", lambda _: []))
        stack.enter_context(patch.object(interlock.console.screens.setup, "UNASKED", -1))  # a plan is of this machine
        stack.enter_context(chdir(run.directory.path.parent))
        yield


async def _settled(app: "App[Any]", pilot: "Pilot[Any]") -> None:
    """Wait until no screen has changed for some looks."""
    seen, same = [], 0
    while same < LOOKS:
        _still(app)
        if poll := getattr(app, "poll", None):
            poll()
        await pilot.pause()
        now = [screen._compositor.render_strips() for screen in app.screen_stack]
        seen, same = now, same + 1 if now == seen else 0


def _still(app: "App[Any]") -> None:
    """A cursor that blinks is there or not by chance."""
    from textual.widgets import Input

    for field in app.screen.query(Input):
        field.cursor_blink = False


def _normal(svg: str, name: str) -> str:
    """Ids that tell the pictures apart, and do not change with every sign of them."""
    return re.sub(r"terminal-\d+", f"interlock-{name}", svg)


if __name__ == "__main__":
    sys.exit(main())
