"""Textual's driver for a page of textual-serve, which outlives an application: another can take its place.

The server greets a process once and closes the page when an application ends; here only `leave` asks for that. A page
that was closed, and a server that is gone, end every application that is begun. Of Textual's private names `_write`,
`_key_thread`, `_input_reader` and `_size` are used.
"""

import asyncio
import json
import os
import signal
import sys
from functools import partial
from typing import Any, ClassVar

from textual.app import App
from textual.drivers.web_driver import WebDriver

GREETING = b"__GANGLION__\n"


class PageDriver(WebDriver):
    """For each `App(driver_class=...)` of a process that draws for a page."""

    greeted: ClassVar[bool] = False
    closed: ClassVar[bool] = False
    """Whether nobody looks at the page any more."""
    cells: ClassVar[tuple[int, int] | None] = None
    """Columns and rows of the page, once it said so."""

    def __init__(
        self, app: App[Any], *, debug: bool = False, mouse: bool = True, size: tuple[int, int] | None = None
    ) -> None:
        super().__init__(app, debug=debug, mouse=mouse, size=size or self.cells)
        self._write = partial(self._sent)

    def start_application_mode(self) -> None:
        super().start_application_mode()
        for ends in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(ends, self._gone)
        if self.closed:  # while no application was there to be told
            self._gone()

    def stop_application_mode(self) -> None:
        """Read no more keys; the page stays."""
        self.exit_event.set()
        self._input_reader.close()
        self._key_thread.join()

    def run_input_thread(self) -> None:
        super().run_input_thread()
        if not self.exit_event.is_set():
            self._gone()

    def on_meta(self, packet_type: str, payload: dict[str, Any]) -> None:
        PageDriver.closed |= packet_type == "quit"
        super().on_meta(packet_type, payload)
        PageDriver.cells = self._size

    def _gone(self) -> None:
        self.on_meta("quit", {})

    def _sent(self, data: bytes) -> int:
        """Write to the server, which takes a second greeting for a packet."""
        if data == GREETING and self.greeted:
            return 0
        PageDriver.greeted |= data == GREETING
        return os.write(self.fileno, data)

    @classmethod
    def leave(cls) -> None:
        """Close the page, if an application was on it."""
        if cls.greeted and sys.__stdout__:
            said = json.dumps({"type": "exit"}).encode()
            os.write(sys.__stdout__.fileno(), b"M%s%s" % (len(said).to_bytes(4, "big"), said))
