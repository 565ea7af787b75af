"""What the store's engine prints of a panic, which our own refusal tells better: taken off the standard error output.

Whatever else is written there meanwhile, by anybody, goes through as it comes.
"""

import os
import re
import secrets
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

STDERR = 2
_BEGINS = b" panicked at "
_PANIC = (
    rb"\n?thread '[^'\n]*'(?: \(\d+\))? panicked at [^\n]*\n%s\n"
    rb"(?:stack backtrace:\n(?: +(?:\d+: |at )[^\n]*\n)*)?(?:note: [^\n]*RUST_BACKTRACE[^\n]*\n)?"
)


@contextmanager
def panics_untold() -> Iterator[None]:
    """Leave out of descriptor 2 what the engine prints of a panic that is raised here."""
    try:
        sieve = _Sieve()
    except OSError:  # no descriptor is left, or none is there to be kept clean
        yield
        return
    message = ""
    try:
        yield
    except BaseException as error:
        message = str(error)
        raise
    finally:
        sieve.end(message)


class _Sieve:
    """Stands before descriptor 2 and hands on what comes, but keeps back whatever follows a panic until the end."""

    def __init__(self) -> None:
        self._real = os.dup(STDERR)
        try:
            self._reader, self._writer = os.pipe()
        except OSError:
            os.close(self._real)
            raise
        self._mark = b"\0" + secrets.token_bytes(16)
        self._message = ""
        self._done = threading.Event()
        self._given_back = threading.Event()
        threading.Thread(target=self._hand_on, name="panics", daemon=True).start()
        os.dup2(self._writer, STDERR)

    def end(self, message: str) -> None:
        """Give descriptor 2 back, and what was kept but for the panic of this `message`."""
        self._message = message
        os.dup2(self._real, STDERR)
        self._given_back.set()
        with suppress(OSError):  # nobody reads any more
            os.write(self._writer, self._mark)
        os.close(self._writer)
        self._done.wait()

    def _hand_on(self) -> None:
        """Until the last writer has gone: a process that was started meanwhile has this end of the pipe as well."""
        kept = b""
        try:
            with suppress(OSError):  # the pipe is no more
                while data := os.read(self._reader, 1 << 16):
                    before, mark, after = (kept + data).partition(self._mark)
                    kept = b""
                    if mark:
                        panic = _PANIC % re.escape(self._message.encode(errors="replace"))
                        self._write(re.sub(panic, b"", before) + after)
                        self._done.set()
                    elif _BEGINS in before or self._mark.startswith(before[before.rfind(b"\0") :] or b"-"):
                        kept = before  # a panic, or the mark, may have begun
                    else:
                        self._write(before)
        finally:
            self._done.set()
            os.close(self._reader)
            self._given_back.wait()
            os.close(self._real)

    def _write(self, data: bytes) -> None:
        with suppress(OSError):
            while data:
                data = data[os.write(self._real, data) :]
