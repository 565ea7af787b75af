"""Scores pairs with a cross-encoder: on a GPU where it fits beside everything else, otherwise on the CPU in float32.

It is loaded when it is first needed, under a lease of its own on one device, and stays until it is closed. What does
not fit at once is halved, and what does not fit alone moves with the model to the CPU. Every move of its weights, and
that it left, is an event with bytes and cause. Nothing is dropped: a score that cannot be had is an error.
"""

import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from traceback import clear_frames
from typing import Self, cast

import numpy as np
import numpy.typing as npt
from torch import nn

from interlock.engine.compute.batches import plan
from interlock.engine.compute.context import tell_granted, tell_released
from interlock.engine.compute.encoder import Encoder, Ids, computed_tokens
from interlock.engine.compute.instance import ModelInstance, Shortfall, first_calibration
from interlock.engine.compute.ladder import Rung
from interlock.engine.compute.pairs.rows import (
    Pair,
    PairPlan,
    PairRow,
    Scores,
    head_of,
    rows_of_network,
    rows_of_texts,
    scorer_for,
)
from interlock.engine.errors import InterlockError, NoDeviceError, UnavailableError
from interlock.engine.gpu.device import Device
from interlock.engine.gpu.device_errors import Trouble, classify, summed_up
from interlock.engine.gpu.lease import Lessor
from interlock.engine.models.card import ModelCard
from interlock.engine.models.memory import Calibration, Law, law_for
from interlock.engine.models.scoring import Activation
from interlock.engine.models.weights import Attached, Master, Replica, attach_to_host, load
from interlock.engine.record.events import Emit, Mitigated, ModelMoved, ModelUnloaded, PairsScored
from interlock.engine.record.words import distinct_sizes, human_bytes, several

Rows = npt.NDArray[np.int64]
Progress = Callable[[int], object]
"""Takes how many pairs have their scores."""
FILES, ON_CPU = "disk", "computing on the CPU in float32"


class Scorer:
    """A cross-encoder and where it is; a context manager, which takes it off its device.

    Whoever unloads it or has it moved holds no instance any more: the weights live as long as somebody refers to them.
    """

    def __init__(
        self,
        card: ModelCard,
        activation: Activation,
        devices: Sequence[Device],
        host: Device,
        lessor: Lessor,
        emit: Emit,
        *,
        cpu_fallback: bool = True,
    ) -> None:
        """`devices` are those of the settings; `host` is the CPU, which `lessor` lends too."""
        self._card = card
        self._activation = activation
        self._gpus = [device for device in devices if device is not host]
        self._host = host
        self._lessor = lessor
        self._emit = emit
        self._fallback = cpu_fallback or not self._gpus
        self._instance: ModelInstance | None = None
        self._stack = ExitStack()
        self._read: nn.Module | None = None
        """What was loaded for its tokenizer, until it is attached."""
        self._known: dict[str, Calibration] = {}
        self._laws: dict[str, Law] = {}
        self._ran: list[tuple[int, str, str]] = []
        """Tokens, device and precision of each forward of one call."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.close("done" if kind is None else f"ended by {kind.__name__}")

    def close(self, cause: str = "done") -> None:
        """Take the model off its device, if it is on one, and end the lease."""
        self._read = None
        if self._instance is None:
            return
        instance, self._instance = self._instance, None
        device, lease, began = instance.device, instance.lease.id, time.monotonic()
        self._known[device.name] = instance.calibration
        size = instance.law.weights if device.metered else instance.attached.bytes
        del instance  # nothing but this frame would keep the weights
        self._stack.close()
        self._emit(
            ModelUnloaded(
                lease=lease,
                model=self._card.key,
                device=device.name,
                bytes=size,
                cause=cause,
                seconds=round(time.monotonic() - began, 3),
            )
        )

    def plan(self, pairs: Sequence[Pair]) -> PairPlan:
        """Tokenise pairs and lay out their batches, without a lease."""
        rows = self._rows(pairs)
        device, _ = self._choose(rows)
        lengths = np.array([len(row) for row in rows], np.int64)
        batches = plan(np.arange(len(rows)), lengths, self._card.batch_tokens)
        law = self._law(device, rows)
        needs = [self._needed(device, law, lengths[batch.rows].tolist()) for batch in batches.batches]
        return PairPlan(rows, batches, device.name, law.weights, max(needs, default=0))

    def score(self, pairs: Sequence[Pair], progress: Progress = lambda _: None) -> Scores:
        """Compute the score of each pair [len(pairs)], in their order.

        Raises InterlockError for a score that is not finite on the CPU either, UnavailableError where the model fits
        nowhere.
        """
        if not pairs:
            return np.empty(0, np.float32)
        try:
            return self._scored(pairs, progress)
        except BaseException as error:
            clear_frames(error.__traceback__)  # they hold the network, and who catches it wants to unload that
            raise

    def _scored(self, pairs: Sequence[Pair], progress: Progress) -> Scores:
        began, planned = time.monotonic(), self.plan(pairs)
        card, rows, scores = self._card, planned.rows, np.full(len(pairs), np.nan, np.float32)
        self._emit(planned.told(card))
        self._ran, done = [], 0
        for batch in planned.batches.batches:
            self._compute(batch.rows, rows, scores)
            progress(done := done + len(batch.rows))
        self._repair(rows, scores)
        self._emit(
            PairsScored(
                model=card.key,
                pairs=len(rows),
                tokens=sum(tokens for tokens, _, _ in self._ran),
                forwards=len(self._ran),
                device=",".join(sorted({device for _, device, _ in self._ran})),
                dtype=",".join(sorted({dtype for _, _, dtype in self._ran})),
                seconds=round(time.monotonic() - began, 3),
            )
        )
        return scores

    def _repair(self, rows: Sequence[PairRow], scores: Scores) -> None:
        """Compute what is not finite once more on the CPU; there it is an error."""
        bad = np.flatnonzero(~np.isfinite(scores))
        if len(bad) and self._instance and self._falls_back(self._instance.device):
            cause = f"{several(len(bad), 'score')} not finite in {self._instance.dtype}"
            self._move_to_host([rows[row] for row in bad.tolist()], cause)
            self._compute(bad, rows, scores)
            bad = np.flatnonzero(~np.isfinite(scores))
        if len(bad):
            raise InterlockError(
                f"model {self._card.key}: {len(bad)} of {several(len(scores), 'score')} not finite, the first of pair "
                f"{bad[0] + 1}: its weights are damaged or it does not suit these texts; use another reranker"
            )

    def _compute(self, batch: Rows, rows: Sequence[PairRow], scores: Scores) -> None:
        """Score one batch, in as many pieces as memory asks for."""
        pieces = deque([batch])
        while pieces:
            piece = pieces.popleft()
            pairs = [rows[row] for row in piece]
            device = self._loaded(pairs)
            done = self._attempt(pairs)
            if not isinstance(done, Shortfall):
                scores[piece] = done
                continue
            cause = _cause(done)
            if done.trouble is Trouble.LOST:
                self._lessor.lose(device, done.message)
            if done.trouble is Trouble.MEMORY and len(piece) > 1:
                half = len(piece) // 2
                pieces.extendleft([piece[half:], piece[:half]])
                action = f"halved to {half} and {len(piece) - half} pairs"
                self._mitigated(Rung.SPLIT, cause, action, len(piece), device, done)
            elif not self._falls_back(device):
                raise NoDeviceError(f"model {self._card.key} cannot score a pair on {device.name}: {cause}")
            else:
                self._mitigated(Rung.CPU, cause, ON_CPU, len(piece), device, done)
                self._move_to_host(pairs, cause)
                pieces.appendleft(piece)

    def _attempt(self, rows: Sequence[PairRow]) -> Scores | Shortfall:
        """One forward; what is wrong comes back as data, when what the forward held is gone."""
        instance = self._instance
        assert instance, "it was loaded"
        instance.law, lengths = self._law(instance.device, rows), [len(row) for row in rows]
        if not instance.device.metered and len(rows) > 1:  # its lease has room for the longest row, and no wall
            needed, room = instance.predicted(lengths), max(0, instance.room())
            if needed > room:
                return Shortfall(Trouble.MEMORY, "", needed, room, 0.0, foreseen=True)
        got = instance.attempt(cast(Sequence[Ids], rows))
        if isinstance(got, Shortfall):
            return got
        self._ran.append((sum(lengths), instance.device.name, instance.dtype))
        scores: Scores = got.parts["scores"].vectors[:, 0]
        return scores

    def _rows(self, pairs: Sequence[Pair]) -> list[PairRow]:
        """Tokenise pairs. Of a model that is not packed this reads the weights: only with them sentence-transformers
        tells how its pairs are put together."""
        if self._card.packed:
            return rows_of_texts(self._card, pairs)
        if self._instance:
            return rows_of_network(self._instance.attached.network, self._card, pairs)
        self._read = self._read or load(self._card)
        return rows_of_network(self._read, self._card, pairs)

    def _choose(self, rows: Sequence[PairRow]) -> tuple[Device, str]:
        """Find the device that the model is on, or the GPU with the most room for it, or the CPU; and why.

        Raises UnavailableError where it fits on no GPU and may not go to the CPU.
        """
        if self._instance:
            return self._instance.device, ""
        longest, full = max(map(len, rows), default=1), []
        for gpu in sorted(self._gpus, key=self._lessor.budget, reverse=True):
            law, budget = self._law(gpu, rows), self._lessor.budget(gpu)
            if (needed := law.weights + self._needed(gpu, law, [longest])) <= budget:
                return gpu, f"{human_bytes(needed)} fit on {gpu.name}"
            full.append("{} needed, {} free on {}".format(*distinct_sizes(needed, max(0, budget)), gpu.name))
        if not self._fallback:
            raise UnavailableError(
                f"model {self._card.key} fits on no GPU ({'; '.join(full)}), and CPU fallback is off: free memory, "
                "raise --ceiling or drop --no-cpu-fallback"
            )
        return self._host, "; ".join(full) or "no GPU is among the devices"

    def _loaded(self, rows: Sequence[PairRow]) -> Device:
        """Have the model on a device, with room for these rows one by one, and return that."""
        if self._instance:
            return self._instance.device
        device, why = self._choose(rows)
        try:
            self._load(device, rows, FILES, why)
        except Exception as error:
            if classify(error) is None or not self._falls_back(device):
                raise
            cause = f"attaching to {device.name} failed: {summed_up(error)}"
        else:
            return device
        device.reclaim()
        self._mitigated(Rung.CPU, cause, ON_CPU, len(rows), device)
        self._load(self._host, rows, FILES, cause)
        return self._host

    def _falls_back(self, device: Device) -> bool:
        """Whether the model may go to the CPU from this device."""
        return self._fallback and device is not self._host

    def _move_to_host(self, rows: Sequence[PairRow], cause: str) -> None:
        """Give the device up for the CPU, with room for these rows one by one."""
        assert self._instance
        source = self._instance.device.name
        self.close(cause)
        self._load(self._host, rows, source, cause)

    def _load(self, device: Device, rows: Sequence[PairRow], source: str, cause: str) -> None:
        """Put the model on a device under a new lease, which has room for the longest of `rows` at least."""
        card, law = self._card_on(device), self._law(device, rows)
        needed = law.weights + self._needed(device, law, [max(map(len, rows), default=1)])
        released = partial(tell_released, self._emit, model_pass=0)
        with ExitStack() as stack:
            lease = stack.enter_context(self._lessor.lease(card.key, {device.name: needed}, released))
            tell_granted(self._emit, lease, 0, needed, rows=len(rows))
            began = time.monotonic()
            attached = self._attached(card, device)
            self._emit(
                ModelMoved(
                    lease=lease.id,
                    model=card.key,
                    source=source,
                    device=device.name,
                    bytes=law.weights if device.metered else attached.bytes,
                    cause=cause,
                    seconds=round(time.monotonic() - began, 3),
                )
            )
            # To whoever measures a forward, a row is its length: pairs are rows like others.
            encoder = cast(Encoder, scorer_for(card, self._activation, attached.network, device))
            known = self._calibration(device)
            self._instance = ModelInstance(device, attached, encoder, card.dtype, law, known, lease, self._lessor)
            self._stack = stack.pop_all()

    def _attached(self, card: ModelCard, device: Device) -> Attached:
        """Attach what was read for its tokenizer, where it is that, or what is read now."""
        network, self._read = self._read if card.dtype == self._card.dtype else None, None
        if device.kind == "cpu":
            return attach_to_host(card, device, lambda card: load(card) if network is None else network)
        master = Master(load(card) if network is None else network)
        master.pin(device)
        return Replica(master, device)

    def _law(self, device: Device, rows: Sequence[PairRow]) -> Law:
        """Return the memory law of the model on a device, for these rows."""
        card = self._card_on(device)
        if device.name not in self._laws:
            self._laws[device.name] = law_for(card, device.kind)
        law = self._laws[device.name]
        head = head_of(card, device.kind, rows)
        return replace(law, head=head) if head else law

    def _needed(self, device: Device, law: Law, lengths: Sequence[int]) -> int:
        """Predict the bytes beside the weights of a forward of rows of these lengths."""
        tokens = computed_tokens(lengths, padded=not self._card.packed)
        return self._calibration(device).activations(law, tokens, max(lengths))

    def _calibration(self, device: Device) -> Calibration:
        """What forwards on this device have taught of the memory law."""
        if self._instance and self._instance.device is device:
            return self._instance.calibration
        return self._known.get(device.name, first_calibration(device))

    def _card_on(self, device: Device) -> ModelCard:
        return self._card.on_host if device is self._host and self._gpus else self._card

    def _mitigated(
        self, rung: Rung, cause: str, action: str, rows: int, device: Device, short: Shortfall | None = None
    ) -> None:
        """Emit a step of the ladder, and what the forward cost that fell `short`."""
        self._emit(
            Mitigated(
                model_pass=0,
                model=self._card.key,
                batch_index=None,
                cause=cause,
                action=action,
                rows=rows,
                cost_seconds=round(short.seconds, 6) if short else 0.0,
                rung=rung,
                device=device.name,
                foreseen=short is not None and short.foreseen,
            )
        )


def _cause(short: Shortfall) -> str:
    if short.foreseen:
        return "needs {}, {} free".format(*distinct_sizes(short.predicted, short.room))
    return short.message
