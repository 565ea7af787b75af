"""Questions become vectors, weights of terms and vectors of tokens, by the models of a store.

Either each model in turn, under a lease that ends with its pass, on the CPU, or on GPUs as a run computes them; or all
of them kept on the CPU under one lease, so that the next question finds them in memory.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack

from interlock.engine.compute.job import HostEncoder, TextDevices, TextPass, Told, by_table, encode_texts
from interlock.engine.compute.parts.outputs import Outputs
from interlock.engine.gpu.lease import Lessor
from interlock.engine.search.store_models import StoreModel

ROOM = 512
"""Tokens of a question that a kept lease has room for from the beginning; a longer one takes another lease."""


class QueryEncoders:
    """Encodes questions; a context manager, which lets every model go."""

    def __init__(self, lessor: Lessor, *, kept: bool, passes: TextDevices | None = None) -> None:
        """`lessor` lends the CPU. `kept` holds the models from one question to the next under one lease; else each has
        its own, and goes, in `passes` where there are GPUs."""
        (self._device,) = lessor.devices
        self._lessor, self._kept, self._passes = lessor, kept, passes
        self._encoders: dict[str, tuple[StoreModel, HostEncoder]] = {}
        self._lease = ExitStack()
        self._room: dict[str, int] = {}
        self.loading = 0.0
        """Seconds that bringing models into memory took of the last `encode`; of passes on GPUs their leases tell."""

    def __enter__(self) -> "QueryEncoders":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let every model go, and then the lease."""
        for _, encoder in self._encoders.values():
            encoder.detach()
        self._lease.close()
        self._room.clear()

    @property
    def resident(self) -> list[str]:
        """The keys of the models in memory."""
        return [key for key, (_, encoder) in self._encoders.items() if encoder.attached]

    def encode(
        self, models: Sequence[StoreModel], texts: Sequence[str], told: Told = lambda model, rows: None
    ) -> Mapping[str, Outputs]:
        """Compute what each model gives of `texts`, by its key; `told` hears 0 of one that is loaded next. Raises
        UnavailableError where one does not fit."""
        self.loading = 0.0
        found = {model.card.key: _weighed(model, texts) for model in models if model.table}
        networks = [model for model in models if not model.table]
        if self._passes and networks:
            asked = [TextPass(model.card, model.member.query_prompt, texts) for model in networks]
            computed = self._passes.compute(asked, "questions", told)
            return found | {model.card.key: each.rows for model, each in zip(networks, computed, strict=True)}
        if not self._kept:
            for model in networks:
                told(model.card.key, 0)
                heard = self._hearing(told, model.card.key)
                found[model.card.key] = encode_texts(model.card, texts, model.member.query_prompt, self._lessor, heard)
            return found
        began = time.perf_counter()
        encoders = [self._encoder(model) for model in networks]
        made = time.perf_counter() - began
        rows = [
            encoder.rows(texts, model.member.query_prompt) for model, encoder in zip(networks, encoders, strict=True)
        ]
        wanted = {}
        for model, encoder, own in zip(networks, encoders, rows, strict=True):
            lengths = [len(row) for row in own]
            wanted[model.card.key] = encoder.needs([*lengths, min(ROOM, model.card.max_tokens)])
        began = time.perf_counter()
        self._hold(wanted)
        if cold := [
            (model, encoder) for model, encoder in zip(networks, encoders, strict=True) if not encoder.attached
        ]:
            for model, encoder in cold:
                told(model.card.key, 0)
                encoder.load()
            self.loading = made + time.perf_counter() - began
        for model, encoder, own in zip(networks, encoders, rows, strict=True):
            found[model.card.key] = encoder.encode(own, _telling(told, model.card.key))
        return found

    def _hearing(self, told: Told, key: str) -> Callable[[int], object]:
        """Hear of a model that is loaded from now on, and then of how many texts it has done."""
        began = time.perf_counter()

        def heard(rows: int) -> None:
            if rows:
                told(key, rows)
            else:
                self.loading += time.perf_counter() - began

        return heard

    def _encoder(self, model: StoreModel) -> HostEncoder:
        """The encoder of a model; made anew where what is asked of it has changed."""
        there = self._encoders.get(model.card.key)
        if there is None or there[0] is not model:
            if there:
                there[1].detach()
            self._encoders[model.card.key] = model, HostEncoder(model.card, self._device)
        return self._encoders[model.card.key][1]

    def _hold(self, wanted: Mapping[str, int]) -> None:
        """Have a lease of at least these bytes for each model: the one there is, or a larger one."""
        if all(self._room.get(key, 0) >= size for key, size in wanted.items()):
            return
        room = {**self._room, **{key: max(size, self._room.get(key, 0)) for key, size in wanted.items()}}
        self.close()
        holder = ", ".join(room)
        self._lease.enter_context(self._lessor.lease(holder, {self._device.name: sum(room.values())}, lambda _: None))
        self._room = room


def _weighed(model: StoreModel, texts: Sequence[str]) -> Outputs:
    assert model.table, "which is why it is asked"
    return Outputs(terms=by_table(model.card, model.table, texts))


def _telling(told: Told, key: str) -> Callable[[int], object]:
    return lambda rows: told(key, rows) if rows else None
