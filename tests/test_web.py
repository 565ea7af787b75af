"""A run in a browser: whoever has the address with its token sees the console, and nobody else sees anything."""

import asyncio
import re
import signal
import socket
import subprocess
import sys
import time

import pytest

from tests.builders import corpus, environment, interlock, sentences

aiohttp = pytest.importorskip("aiohttp")
pytest.importorskip("textual_serve")


@pytest.fixture(scope="module")
def run(tmp_path_factory, tiny_a):
    home = tmp_path_factory.mktemp("web")
    corpus(home / "in", {"Docs": {"a.jsonl": sentences(6)}})
    interlock("run", "in", "--roster", tiny_a, "--run-id", "seen", "--export", "npy", cwd=home)
    return home / "runs" / "seen"


@pytest.fixture
def served(run):
    """The address that is printed, with its token."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = [sys.executable, "-m", "interlock", "watch", str(run), "--web", str(port)]
    process = subprocess.Popen(words, env=environment(), stderr=subprocess.PIPE, text=True, cwd=run.parent)
    try:
        line = process.stderr.readline()
        for _ in range(100):  # it is told a moment before it listens
            with socket.socket() as asked:
                if not asked.connect_ex(("127.0.0.1", port)):
                    break
            time.sleep(0.05)
        yield re.search(r"http://127\.0\.0\.1:\d+/\?token=\S+", line)[0]
    finally:
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 0


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
    assert "cannot listen at" in said and "choose another port" in said
