"""A ledger for what a forward allocates: bytes now, and the most of them."""

import threading

import torch

from interlock.engine.gpu.meter import ROUND


class Counter:
    """A ledger without a limit, for traces: bytes now, and the most since `start_peak`, in steps of 512."""

    def __init__(self) -> None:
        self.allocated = 0
        self.peak = 0
        self._lock = threading.RLock()

    def charge(self, _: torch.Tensor, size: int) -> int:
        taken = -(-size // ROUND) * ROUND
        with self._lock:
            self.allocated += taken
            self.peak = max(self.peak, self.allocated)
        return taken

    def free(self, taken: int) -> None:
        with self._lock:
            self.allocated -= taken

    def start_peak(self) -> None:
        with self._lock:
            self.peak = self.allocated
