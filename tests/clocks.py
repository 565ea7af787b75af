"""Time that passes only where something is computed, so that no test has to wait or depends on a machine's speed."""

from dataclasses import replace

from interlock.engine.compute.context import REAL, Backend
from interlock.engine.compute.encoder import encoder_for


class Clock:
    """Seconds that pass while an encoder computes, and never else: ten for each token."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now

    def encoder(self, card, module, device):
        encoder = encoder_for(card, module, device)
        encode = encoder.encode

        def ticking(rows):
            self.now += 10 * sum(len(row) for row in rows)
            return encode(rows)

        encoder.encode = ticking
        return encoder

    @property
    def backend(self) -> Backend:
        return replace(REAL, clock=self, encoders=self.encoder)
