"""Messages between two processes of one machine, by a socket: pickled, with what is large (arrays) beside, uncopied.

Both ends are of this installation, started by one another. What only passes through is `packed` once and stays so.
"""

import pickle
import socket
import struct
import threading
from typing import Any

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]
Packed = tuple[bytes, list[Bytes]]
"""A value as bytes, and its arrays beside them."""
_COUNT = struct.Struct("<Q")


def packed(value: Any) -> Packed:
    """Make bytes of a value; its arrays are not copied."""
    buffers: list[pickle.PickleBuffer] = []
    head = pickle.dumps(value, 5, buffer_callback=buffers.append)
    return head, [np.frombuffer(each.raw(), np.uint8) for each in buffers]


def unpacked(given: Packed) -> Any:
    """Make the value of its bytes; its arrays are read only."""
    head, buffers = given
    return pickle.loads(head, buffers=[each.data.toreadonly() for each in buffers])  # noqa: S301  # our own


class Wire:
    """One end of the socket: any thread may send, one receives."""

    def __init__(self, end: socket.socket) -> None:
        self._end, self._lock = end, threading.Lock()

    def send(self, message: Any) -> None:
        """Send a message. Raises OSError where nobody is there to receive it."""
        head, buffers = packed(message)
        sizes = struct.pack(f"<{len(buffers) + 2}Q", len(buffers) + 1, len(head), *map(len, buffers))
        with self._lock:
            self._end.sendall(sizes + head)
            for each in buffers:
                self._end.sendall(each.data)

    def receive(self) -> Any:
        """Wait for the next message. Raises EOFError, or OSError, where none will come."""
        (count,) = _COUNT.unpack(self._read(_COUNT.size).data)
        head, *buffers = map(self._read, struct.unpack(f"<{count}Q", self._read(_COUNT.size * count).data))
        return unpacked((head.tobytes(), buffers))

    def close(self) -> None:
        """Let the other end know that nothing more will come."""
        self._end.close()

    def _read(self, size: int) -> Bytes:
        data = np.empty(size, np.uint8)
        left = data.data
        while left:
            if not (got := self._end.recv_into(left)):
                raise EOFError
            left = left[got:]
        return data
