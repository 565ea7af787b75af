"""Where a cross-encoder sits: on a GPU where it fits beside everything else, otherwise on the CPU in float32.

It sits under a lease of its own, one device at a time. Every move of its weights, and that it left, is an event with
bytes and cause. What forwards have measured is kept for the next choice.
"""

import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace

from torch import nn

from interlock.engine.compute.context import tell_granted, tell_released
from interlock.engine.compute.encoder import computed_tokens
from interlock.engine.compute.instance import Shortfall, first_calibration
from interlock.engine.compute.ladder import Rung
from interlock.engine.compute.pairs.rows import Pair, PairRow, PairScorer, rows_of_network, rows_of_texts, scorer_for
from interlock.engine.errors import UnavailableError
from interlock.engine.gpu.device import Device
from interlock.engine.gpu.device_errors import classify, summed_up
from interlock.engine.gpu.lease import Lease, Lessor
from interlock.engine.models.card import ModelCard
from interlock.engine.models.memory import Calibration, HeadLaw, Law, law_for
from interlock.engine.models.scoring import Activation
from interlock.engine.models.weights import Attached, Master, Replica, attach_to_host, load
from interlock.engine.record.events import Emit, Mitigated, ModelMoved, ModelUnloaded
from interlock.engine.record.words import distinct_sizes, human_bytes

FILES, ON_CPU = "disk", "computing on the CPU in float32"


@dataclass(eq=False)
class Place:
    """Where the model is, with the lease that it is there under."""

    device: Device
    card: ModelCard
    attached: Attached
    scorer: PairScorer
    lease: Lease
    stack: ExitStack


class Seat:
    """Takes a place for a cross-encoder when it is first needed, and gives it up when it is left.

    Who leaves it or has it moved holds no `Place` any more: the weights live as long as somebody refers to them.
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
        self.card = card
        self.lessor = lessor
        self.place: Place | None = None
        self._activation = activation
        self._gpus = [device for device in devices if device is not host]
        self._host = host
        self._emit = emit
        self._fallback = cpu_fallback or not self._gpus
        self._read: nn.Module | None = None
        self._known: dict[str, Calibration] = {}
        self._laws: dict[str, Law] = {}

    def rows(self, pairs: Sequence[Pair]) -> list[PairRow]:
        """Tokenise pairs. Of a model that is not packed this reads the weights: only with them sentence-transformers
        tells how its pairs are put together."""
        if self.card.packed:
            return rows_of_texts(self.card, pairs)
        if self.place:
            return rows_of_network(self.place.attached.network, self.card, pairs)
        self._read = self._read or load(self.card)
        return rows_of_network(self._read, self.card, pairs)

    def choose(self, rows: Sequence[PairRow]) -> tuple[Device, str]:
        """Find the device that the model is on, or the GPU with the most room for it, or the CPU; and why.

        Raises UnavailableError where it fits on no GPU and may not go to the CPU.
        """
        if self.place:
            return self.place.device, ""
        longest, full = _longest(rows), []
        for gpu in sorted(self._gpus, key=self.lessor.budget, reverse=True):
            law, budget = self.law(gpu, rows), self.lessor.budget(gpu)
            if (needed := law.weights + self.needed(gpu, law, [longest])) <= budget:
                return gpu, f"{human_bytes(needed)} fit on {gpu.name}"
            full.append("{} needed, {} free on {}".format(*distinct_sizes(needed, max(0, budget)), gpu.name))
        if not self._fallback:
            raise UnavailableError(
                f"model {self.card.key} fits on no GPU ({'; '.join(full)}), and CPU fallback is off: free memory, "
                "raise --ceiling or drop --no-cpu-fallback"
            )
        return self._host, "; ".join(full) or "no GPU is among the devices"

    def taken(self, rows: Sequence[PairRow]) -> Place:
        """Return the model's place, which the first call takes, with room for these rows one by one."""
        if self.place is None:
            device, why = self.choose(rows)
            try:
                self.place = self._attached(device, rows, FILES, why)
            except Exception as error:
                if classify(error) is None or not self.falls_back(device):
                    raise
                cause = f"attaching to {device.name} failed: {summed_up(error)}"
            else:
                return self.place
            device.reclaim()
            self.tell_mitigated(Rung.CPU, cause, ON_CPU, len(rows), device)
            self.place = self._attached(self._host, rows, FILES, cause)
        return self.place

    def falls_back(self, device: Device) -> bool:
        """Whether the model may go to the CPU from this device."""
        return self._fallback and device is not self._host

    def move_to_host(self, rows: Sequence[PairRow], cause: str) -> None:
        """Give the place up for one on the CPU, with room for these rows one by one."""
        assert self.place
        source = self.place.device.name
        self.leave(cause)
        self.place = self._attached(self._host, rows, source, cause)

    def leave(self, cause: str) -> None:
        """Take the model off its device, if it is on one, and end the lease."""
        self._read = None
        if self.place is None:
            return
        place, self.place = self.place, None
        device, stack, lease, began = place.device, place.stack, place.lease.id, time.monotonic()
        size = self.law(device, []).weights if device.metered else place.attached.bytes
        del place
        stack.close()
        self._emit(
            ModelUnloaded(
                lease=lease,
                model=self.card.key,
                device=device.name,
                bytes=size,
                cause=cause,
                seconds=round(time.monotonic() - began, 3),
            )
        )

    def law(self, device: Device, rows: Sequence[PairRow]) -> Law:
        """Return the memory law of the model on a device; a language model's logits of one token for each row are its
        head."""
        card = self._card_on(device)
        if device.name not in self._laws:
            self._laws[device.name] = law_for(card, device.kind)
        law = self._laws[device.name]
        if not any("logits_to_keep" in row.more for row in rows[:1]):
            return law
        size = 2 if device.kind == "sim" or card.dtype != "float32" else 4
        words, width = int(card.config["vocab_size"]), int(card.config["hidden_size"])
        shortest = min(len(row) for row in rows)
        return replace(law, head=HeadLaw(0, 2 * width * size + words * size / shortest, 0.0, 0))

    def needed(self, device: Device, law: Law, lengths: Sequence[int]) -> int:
        """Predict the bytes beside the weights of a forward of rows of these lengths."""
        tokens = computed_tokens(lengths, padded=not self.card.packed)
        return self.calibration(device).activations(law, tokens, max(lengths))

    def room(self, place: Place, law: Law) -> int:
        """Measure what one forward may take now: of the lease's budget, and of what the device really has."""
        device = place.device
        return max(0, min(place.lease.budgets[device.name] - law.weights, self.lessor.budget(device)))

    def calibration(self, device: Device) -> Calibration:
        """Return what forwards on this device have taught of the memory law."""
        return self._known.get(device.name, first_calibration(device))

    def learn(self, device: Device, calibration: Calibration) -> None:
        """Keep what a forward has taught."""
        self._known[device.name] = calibration

    def tell_mitigated(
        self, rung: Rung, cause: str, action: str, rows: int, device: Device, short: Shortfall | None = None
    ) -> None:
        """Emit a step of the ladder, and what the forward cost that fell `short`."""
        self._emit(
            Mitigated(
                model_pass=0,
                model=self.card.key,
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

    def _attached(self, device: Device, rows: Sequence[PairRow], source: str, cause: str) -> Place:
        """Put the model on a device under a new lease, which has room for the longest of `rows` at least."""
        card, law = self._card_on(device), self.law(device, rows)
        needed = law.weights + self.needed(device, law, [_longest(rows)])
        with ExitStack() as stack:
            lease = stack.enter_context(self.lessor.lease(card.key, {device.name: needed}, self._released))
            tell_granted(self._emit, lease, 0, needed, rows=len(rows))
            began = time.monotonic()
            attached = self._loaded(card, device)
            lease.watch(attached.network)
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
            scorer = scorer_for(card, self._activation, attached.network, device)
            return Place(device, card, attached, scorer, lease, stack.pop_all())

    def _released(self, lease: Lease) -> None:
        tell_released(self._emit, lease, 0)

    def _loaded(self, card: ModelCard, device: Device) -> Attached:
        """Attach what was read for its tokenizer, where it is that, or what is read now."""
        network, self._read = self._read if card.dtype == self.card.dtype else None, None
        if device.kind == "cpu":
            return attach_to_host(card, device, lambda card: load(card) if network is None else network)
        master = Master(load(card) if network is None else network)
        master.pin(device)
        return Replica(master, device)

    def _card_on(self, device: Device) -> ModelCard:
        return self.card.on_host if device is self._host and self._gpus else self.card


def _longest(rows: Sequence[PairRow]) -> int:
    return max((len(row) for row in rows), default=1)
