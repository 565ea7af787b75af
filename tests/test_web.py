"""A run in a browser: whoever has the address with its token sees the console, and nobody else sees anything."""

import asyncio
import re
import signal
import socket
import subprocess
import sys
import time
from contextlib import asynccontextmanager, contextmanager

import psutil
import pytest

from interlock.engine.record.rundir import RunDirectory
from tests.builders import ROOT, corpus, environment, interlock, sentences, start
from tests.processes import PATIENCE, until
from tests.pty_harness import Screen
from tests.test_control import WRITER
from tools.recorded import Recorded

aiohttp = pytest.importorskip("aiohttp")
pytest.importorskip("textual_serve")


@pytest.fixture(scope="module")
def run(tmp_path_factory, tiny_a):
    home = tmp_path_factory.mktemp("web")
    corpus(home / "in", {"Docs": {"a.jsonl": sentences(6)}})
    interlock("run", "in", "--roster", tiny_a, "--run-id", "seen", "--export", "npy", cwd=home)
    return home / "runs" / "seen"


@contextmanager
def serving(watched, cwd):
    """A process that serves a watch, and the address that it prints, with its token."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = [sys.executable, "-m", "interlock", "watch", str(watched), "--web", str(port)]
    process = subprocess.Popen(words, env=environment(), stderr=subprocess.PIPE, text=True, cwd=cwd)
    try:
        line = process.stderr.readline()
        for _ in range(100):  # it is told a moment before it listens
            with socket.socket() as asked:
                if not asked.connect_ex(("127.0.0.1", port)):
                    break
            time.sleep(0.05)
        yield process, re.search(r"http://127\.0\.0\.1:\d+/\?token=\S+", line)[0]
    finally:
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 0


@pytest.fixture
def served(run):
    with serving(run, run.parent) as (_, address):
        yield address


@pytest.fixture
def wall(tmp_path):
    """A directory with a run that goes on and one whose process died."""
    died = Recorded(RunDirectory(tmp_path / "runs" / "died"))
    died.play_to(0.4)
    died.close()
    going = tmp_path / "runs" / "going"
    process = start(going, 0.5, cwd=ROOT, first=WRITER)
    until(lambda: (going / "control.sock").exists())
    yield tmp_path / "runs"
    process.kill()
    process.wait()


class Page:
    """A page at 100x30 as a browser shows it, and its keys."""

    def __init__(self, socket):
        self.socket, self.screen = socket, Screen(100, 30)

    async def shows(self, wanted):
        """Read on until it shows so."""
        try:
            async with asyncio.timeout(PATIENCE):
                while not wanted(self.screen):
                    self.screen.feed(await self.socket.receive_bytes())
        except TimeoutError:
            raise AssertionError(self.screen.text) from None

    async def press(self, keys):
        await self.socket.send_json(["stdin", keys])

    async def closed(self):
        """Read to the end: whether the server closed it."""
        async with asyncio.timeout(PATIENCE):
            async for _ in self.socket:
                pass
        return self.socket.closed

    async def chosen(self, name):
        """Find this run in the list."""
        await self.press(f"/{name}")
        await self.shows(lambda screen: "1 run " in screen.lines[-2])
        await self.press("\r")
        await self.shows(lambda screen: "1 run " not in screen.lines[-2])


@asynccontextmanager
async def opened(address):
    """A page at the address, which is closed as a browser does it."""
    async with aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True)) as browser:
        await browser.get(address)
        async with browser.ws_connect(f"{address.partition('/?')[0]}/ws?width=100&height=30") as socket:
            yield Page(socket)


def listed(screen):
    return "in use" in screen.lines[0] and any("▸" in line for line in screen.lines)


def test_a_live_run_opens_in_the_page_of_a_wall_follows_its_size_and_goes_back_to_the_list(wall):
    async def look(address, process):
        async with opened(address) as page:
            await page.shows(listed)
            await page.chosen("going")
            for _ in range(2):
                await page.press("\r")
                await page.shows(lambda screen: "watch" in screen.lines[0] and "Passes" in screen.text)
                await page.press("?")
                await page.shows(lambda screen: "type to search" in screen.text)
                await page.press("\x1b")
                await page.shows(lambda screen: "type to search" not in screen.text)
                await page.press("\x1b")
                await page.shows(listed)
            page.screen.resize(120, 40)
            await page.socket.send_json(["resize", {"width": 120, "height": 40}])
            await page.shows(lambda screen: "quit" in screen.lines[39].lower())
            await page.press("\r")
            await page.shows(lambda screen: "watch" in screen.lines[0] and "All runs" in screen.lines[39])
            await page.press("\x1b")
            await page.shows(listed)
            await page.press("q")
            assert await page.closed()
        async with opened(address) as page:  # and one that is closed while a run is open leaves no process
            await page.shows(listed)
            await page.chosen("going")
            await page.press("\r")
            await page.shows(lambda screen: "watch" in screen.lines[0])
            assert psutil.Process(process.pid).children(recursive=True)
        until(lambda: not psutil.Process(process.pid).children(recursive=True))

    with serving(wall, wall.parent) as (process, address):
        asyncio.run(look(address, process))


def test_a_page_has_no_shell_for_a_run_to_be_resumed_in_and_names_the_command(wall):
    async def look(address):
        async with opened(address) as page:
            await page.shows(listed)
            await page.chosen("died")
            await page.press("r")
            await page.shows(lambda screen: "in another terminal: interlock demo" in screen.text)
            await page.press("\r")
            await page.shows(lambda screen: "RUN PROCESS DIED" in screen.text and "6 Events" in screen.text)

    with serving(wall, wall.parent) as (_, address):
        asyncio.run(look(address))


def test_the_console_is_drawn_for_who_has_the_token_and_nothing_is_answered_without(served):
    place, _, token = served.partition("/?token=")

    async def ask():
        jar = aiohttp.CookieJar(unsafe=True)  # of an address in numbers too
        async with aiohttp.ClientSession(cookie_jar=jar) as browser:
            for path in ("/", "/ws", "/static/js/textual.js", "/download/x", "/?token=", f"/?token={token}x"):
                assert (await browser.get(place + path)).status == 403
            entered = await browser.get(served)
            assert entered.status == 200 and "token" not in str(entered.url) and token not in await entered.text()
            assert (await browser.get(place + "/static/js/textual.js")).status == 200
            drawn = b""
            async with browser.ws_connect(f"{place}/ws?width=100&height=30") as screen, asyncio.timeout(30):
                while b"tiny-a" not in drawn or b"completed" not in drawn.lower():
                    drawn += await screen.receive_bytes()

    asyncio.run(ask())


def test_an_address_that_is_none_and_a_port_that_is_taken_are_refused(run):
    assert "--web: expected [HOST:]PORT, got 'here'" in interlock("watch", run, "--web", "here", check=2).stderr
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        said = interlock("watch", run, "--web", str(taken.getsockname()[1]), check=2).stderr
    assert "cannot listen at" in said and "choose another port" in said and "console at" not in said
