"""A canary: a few rows of the corpus, computed as a run is about to and once by the plainest path, before any is kept.

What a card, a precision or a kernel does to the vectors of a model shows in the cosine between both. Too low a one is
no reason to stop: a plainer kernel is next, then a wider precision, and last another device. What was found is kept
beside the models. What passed holds for a make of card, and is asked anew for other weights, kernels, precisions or
versions of the libraries; what failed is asked anew in each run, of each card.
"""

import dataclasses
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Literal

import numpy as np
from msgspec.structs import asdict, replace

from interlock.engine.compute.checks import findings
from interlock.engine.compute.checks.findings import Finding, attention_of
from interlock.engine.compute.checks.sampling import affordable, budget_on, left_out, lengths_of, longest_of, sample
from interlock.engine.compute.context import MemoryPlanner, RunContext
from interlock.engine.compute.encoder import Apart, Ids, one_by_one
from interlock.engine.compute.instance import ModelInstance, Shortfall
from interlock.engine.compute.job import Job
from interlock.engine.compute.ladder import Rung
from interlock.engine.compute.parts.outputs import Outputs
from interlock.engine.compute.parts.tokens import TokenRows
from interlock.engine.corpus.tokens import Lengths
from interlock.engine.errors import InterlockError, UnavailableError, reason
from interlock.engine.gpu.device import Device
from interlock.engine.gpu.device_errors import Trouble, classify
from interlock.engine.models.card import ModelCard
from interlock.engine.models.networks.batching import Batching
from interlock.engine.models.networks.kernels import TILE, Kernel, wider
from interlock.engine.record.events import CanaryChecked
from interlock.engine.record.words import distinct_sizes

LEAST, LEAST_IN_HALVES, LEAST_IN_BFLOAT16, LEAST_IN_INT8 = 0.99999, 0.999, 0.99, 0.98
"""The cosine in float32, and in less, below which vectors are not those of the model. In bfloat16 a deep network may
fall below 0.999 by rounding alone; below 0.99, which is chosen, that excuses nothing. In int8
all-MiniLM-L6-v2 has 0.994 to 0.998; the 0.98 is chosen too: what int8 costs in finding, `interlock eval` says."""
LEAST_OF_TOKENS = 0.9
"""The same of the tokens of a row as they are stored, on average: with a cosine of 0.999 one in 70 bits is another."""


def least_cosine(dtype: str) -> float:
    """Return what vectors in this precision have to reach."""
    return {"float32": LEAST, "int8": LEAST_IN_INT8}.get(dtype, LEAST_IN_HALVES)


def enough(
    card: ModelCard, least: float, cosine: float | None, wanted: Outputs, computed: Callable[[ModelCard], Outputs]
) -> float:
    """Return what the lowest cosine of rows has to reach that are to reach `least` and have reached `cosine`.

    In bfloat16 that is at most twice as far from what is `wanted` as the plain path is in bfloat16, which is `computed`
    only where it matters.
    """
    if card.dtype != "bfloat16" or not LEAST_IN_BFLOAT16 <= (cosine or 0.0) < least:
        return least
    own = lowest_cosine(computed(dataclasses.replace(plain(card), dtype=card.dtype)), wanted) or 0.0
    return round(min(least, max(LEAST_IN_BFLOAT16, 1 - 2 * (1 - own))), 7)


def plain(card: ModelCard) -> ModelCard:
    """Return the card of the same model by the plainest path: float32, and of transformers' networks its own padding
    and its own attention, row by row."""
    return card.on_host if card.ours else dataclasses.replace(card.on_host, packed=False, attention="eager")


def plainer(card: ModelCard, original: ModelCard) -> ModelCard | None:
    """Return what to try after `card` has failed on a device: a plainer kernel, then the next wider precision with the
    kernel that the `original` would have; None where there is nothing plainer."""
    if card.packed and card.kernel is not Kernel.RUNS:
        return dataclasses.replace(card, kernel=card.kernel.plain if card.kernel.triton else Kernel.RUNS)
    if not card.packed and card.attention == "sdpa":
        return dataclasses.replace(card, attention="eager")
    return in_wider(card, original)


def in_wider(card: ModelCard, original: ModelCard) -> ModelCard | None:
    """Return the same in the next wider precision that every GPU of the run has; None where there is none."""
    dtype = wider(card.dtype, original.capability)
    return original.in_precision(dtype) if dtype else None


def remedy(card: ModelCard, then: ModelCard | None, device: Device) -> str:
    """Say what follows where `card` has failed on a device, and `then` is plainer."""
    if then is None:
        return f"not using {device.name}"
    if then.dtype != card.dtype:
        return f"trying {then.dtype}"
    return "trying without Triton" if card.packed and card.kernel.triton else "trying plain attention"


def _rung(card: ModelCard, then: ModelCard | None) -> Rung:
    """The step of the ladder that comes nearest to what follows where `card` has failed."""
    if then is None:
        return Rung.RELOCATE
    return Rung.FLOAT32 if then.dtype == "float32" != card.dtype else Rung.REPLAN


class Canaries:
    """The canaries of a run: one for each way to compute a model, and each make of device."""

    def __init__(self, context: RunContext, planner: MemoryPlanner) -> None:
        self._context = context
        self._planner = planner
        self._apart: dict[str, Batching] = {}
        """By model which rows may be computed together, where its own network was the cause of a failure."""
        self._found: dict[tuple[str, ...], Finding] = {}
        """By way and make what passed or could not be compared, by way and device all."""
        self._counted: set[tuple[str, str, str]] = set()
        self._lock = threading.Lock()

    def sift(
        self,
        job: Job,
        instances: Sequence[ModelInstance],
        lose: Callable[[Device, str], object],
        mitigate: Callable[[Rung, str, str, Device], object],
    ) -> list[ModelInstance] | None:
        """Return the instances on devices that compute the model of a pass rightly; None where it is to be computed in
        another way from now on, as the planner then knows.

        `lose` is called with a device that is gone, `mitigate` with what is done where one fails: once for each.
        """
        right = []
        for instance in instances:
            device, card = instance.device, self._planner.card_on(job.card, instance.device)
            then = plainer(card, job.card)
            action = remedy(card, then, device)
            match self.outcome(job, card, instance, action):
                case "lost":
                    lose(device, "lost when its canary was computed")
                case "failed":
                    if apart := self._apart.pop(card.key, None):
                        self._planner.settle(dataclasses.replace(card, batching=apart))  # no device is to blame
                        return None
                    step = card.key, device.name, action
                    if step not in self._counted and device is not self._context.host:  # an earlier lease may count it
                        self._counted.add(step)
                        why = f"failed its canary in {card.dtype}, {attention_of(card)}"
                        mitigate(_rung(card, then), why, action, device)
                    if then:
                        self._planner.settle(then)
                        self._planner.forget(job.model_pass)
                        return None
                case _:
                    right.append(instance)
        return right

    def outcome(
        self, job: Job, card: ModelCard, instance: ModelInstance, otherwise: str = ""
    ) -> Literal["passed", "failed", "skipped", "lost"]:
        """Return what a canary shows of an instance that computes as `card` says; `otherwise` is what follows where it
        fails. What passed on one GPU holds for all of its make; each that fails has failed itself."""
        device = instance.device
        way = card.key, card.dtype, card.kernel, card.attention, card.batching, instance.way
        with self._lock:  # several GPUs of one make ask at the same time when memory gets short in mid-pass
            found = self._found.get((*way, device.name))
            if found is None and not findings.failed(card, instance):
                found = self._found.get((*way, device.label))
            if found is None:
                if (found := self._checked(job, card, instance)) is None:
                    return "lost"
                self._found[*way, device.name] = found
                if found.outcome != "failed":
                    self._found[*way, device.label] = found
                self._tell(job.model_pass, card, instance, found, otherwise)
        return found.outcome

    def _checked(self, job: Job, card: ModelCard, instance: ModelInstance) -> Finding | None:
        """What a canary shows now, or an earlier run saw pass of such rows; None where the device is gone."""
        device, began = instance.device, time.monotonic()
        found = Finding(outcome="skipped", cosine=None, rows=0, tokens=0, reference="", least=least_cosine(card.dtype))
        lengths = lengths_of(job)
        where, most, lacks = self._where(lengths, card, device)
        if where is None:
            return replace(found, detail=lacks)
        shortest, longest = int(lengths.min()), min(int(lengths.max()), most)
        known = findings.passed(card, instance) if device.lasting else None
        if known and known.covers(shortest, longest):
            return replace(known.finding, remembered=True, seconds=0.0)
        with device.trying():
            result = self._compared(job, card, instance, where, most)
        instance.clear()  # small pieces that stay cached would stand in the way of a large batch
        if result is None:
            return None
        found, rows = result
        found = replace(found, seconds=round(time.monotonic() - began, 3))
        if device.lasting and found.cosine is not None:  # what raised an error may not do so again
            findings.keep(card, instance, found, len(rows[-1]), len(rows[0]))
        return found

    def _compared(
        self, job: Job, card: ModelCard, instance: ModelInstance, where: Device, most: int
    ) -> tuple[Finding, Sequence[Ids]] | None:
        """What a few rows of at most `most` tokens show, and which those were."""
        found = Finding(outcome="skipped", cosine=None, rows=0, tokens=0, reference="", least=least_cosine(card.dtype))
        try:
            rows: Sequence[Ids] = sample(job, card, most, budget_on(where))
            got = _tried(instance, rows)
        except InterlockError as error:  # no fault of the device: the pass's first batch says the same
            return replace(found, detail=str(error)), []
        if got is Trouble.LOST:
            return None
        found = replace(found, rows=len(rows), tokens=sum(map(len, rows)))
        if isinstance(got, Trouble):
            return replace(found, detail=f"not even the shortest of them fits on {instance.device.name} now"), rows
        found = replace(found, reference=f"float32 on {where.name}")
        if isinstance(got, str):
            return replace(found, outcome="failed", detail=got), rows
        rows = rows[-len(got) :]
        try:
            wanted = self._plainly(plain(card), rows, where)
            cosine = lowest_cosine(got, wanted)
            least = enough(card, found.least, cosine, wanted, lambda card: self._plainly(card, rows, where))
        except Exception as error:  # whatever the plain path lacks, the device has shown no fault
            gone = where is instance.device and classify(error) is Trouble.LOST
            return None if gone else (replace(found, detail=f"its plain path failed: {reason(error)}"), rows)
        if cosine is None:
            return replace(found, detail="none of its texts has a vector"), rows
        found = replace(found, rows=len(rows), tokens=sum(map(len, rows)), cosine=round(cosine, 7), least=least)
        if cosine >= least:
            return replace(found, outcome="passed", detail=left_out(job, rows)), rows
        if not card.packed:
            if wanted.crc() != self._plainly(plain(card), rows, where).crc():
                raise UnavailableError("gives another vector each time of the same text: drop it from --roster")
            self._blame(card, instance, rows, wanted, least)
        return replace(found, outcome="failed"), rows

    def _blame(
        self, card: ModelCard, instance: ModelInstance, rows: Sequence[Ids], wanted: Outputs, least: float
    ) -> None:
        """Find out whether the rows of a padded network come out right where they are computed apart."""
        order = list(Batching)
        for batching in order[order.index(card.batching) + 1 :]:
            with suppress(Exception), instance.device.computing():  # what fails here too, is not the network's alone
                got = Apart(instance.encoder, batching).encode(rows)
                if (lowest_cosine(got, wanted) or -1.0) >= least:
                    self._apart[card.key] = batching
                    return

    def _where(self, lengths: Lengths, card: ModelCard, device: Device) -> tuple[Device | None, int, str]:
        """Where the plain path is computed, a GPU with room for it too, else the host; how many tokens a row of it may
        have; and what it lacks where it is nowhere."""
        budget, host = self._context.lessor.budget, self._context.host
        law, heads = self._planner.law_as(card.on_host, host), int(card.config.get("num_attention_heads") or 16)
        free = budget(host)  # its weights come by way of the host in any case

        def needed(longest: int) -> int:  # three times the scores, where they are written out
            return law.weights + law.activations(longest + TILE, longest) + 3 * 4 * heads * longest**2

        for where in (device, host) if device.kind == "cuda" else (host,):
            room = min(free, budget(where))
            most = longest_of(lengths, lambda longest: needed(longest) <= room)  # noqa: B023  # it is called here
            most = min(most, affordable(lengths, card, budget_on(where)))
            if most:
                return where, most, ""
        needs, has = distinct_sizes(needed(int(lengths.min())), max(0, free))
        return None, 0, f"float32 on the host needs {needs}, {has} free"

    def _plainly(self, card: ModelCard, rows: Sequence[Ids], where: Device) -> Outputs:
        """What each row alone gives."""
        network = self._context.backend.load(card)
        with where.computing():
            network = network.to(where.torch) if where.kind == "cuda" else network
            encoder = self._context.backend.encoders(card, network, where)
            return one_by_one(encoder, rows)

    def _tell(self, model_pass: int, card: ModelCard, instance: ModelInstance, found: Finding, otherwise: str) -> None:
        device = instance.device
        self._context.emit(
            CanaryChecked(
                model_pass=model_pass,
                model=card.key,
                device=device.name,
                label=device.label,
                dtype=card.dtype,
                attention=attention_of(card),
                action=otherwise if found.outcome == "failed" else "",
                streamed=instance.streamed,
                **asdict(found),
            )
        )


def lowest_cosine(found: Outputs, wanted: Outputs) -> float | None:
    """Return the lowest cosine between what rows gave and what was `wanted` of them, over all parts; -1 where a number
    is not finite, a row is all zeros, or the vectors of its tokens are others. Of a row without a vector in what is
    wanted nothing can be asked; None where that is so of all."""
    if found.tokens and wanted.tokens and not _same_tokens(found.tokens, wanted.tokens):
        return -1.0
    lowest: list[float] = []
    words = 1 + max((int(each.terms.indices.max(initial=-1)) for each in (found, wanted) if each.terms), default=0)
    for one, other in zip(found.matrices(words), wanted.matrices(words), strict=True):
        if one.shape != other.shape:
            return -1.0
        sound = np.isfinite(other).all(1) & other.any(1)
        one, other = one[sound].astype(np.float64), other[sound].astype(np.float64)
        with np.errstate(invalid="ignore"):
            cosines = (one * other).sum(1) / (np.linalg.norm(one, axis=1) * np.linalg.norm(other, axis=1))
        lowest += [float(cosines.min()) if np.isfinite(cosines).all() else -1.0] if sound.any() else []
    return min(lowest, default=None)


def _same_tokens(found: TokenRows, wanted: TokenRows) -> bool:
    """Whether the tokens of each row have the vectors wanted, but for what rounding them to 8 bits or one, and pooling
    those that are alike, makes of the smallest difference: no cosine that is near to 1 can be asked of single ones."""
    for row in range(len(wanted)):
        one, other = (each.taken(np.array([row])).to_float32() for each in (found, wanted))
        if len(one) != len(other):
            return False
        one, other = (each / np.maximum(np.linalg.norm(each, axis=1, keepdims=True), 1e-9) for each in (one, other))
        if len(other) and (other @ one.T).max(axis=1).mean() < LEAST_OF_TOKENS:
            return False
    return True


def _tried(instance: ModelInstance, rows: Sequence[Ids]) -> Outputs | Trouble | str:
    """What comes of the rows, or of the shorter ones of them; what went wrong, where that was not a want of memory."""
    while rows:
        try:
            got = instance.attempt(rows)
        except InterlockError:
            raise
        except Exception as error:  # a kernel that this build of torch or this card does not have
            return reason(error)
        if not isinstance(got, Shortfall):
            return got
        if got.trouble is Trouble.LOST:
            return Trouble.LOST
        rows = rows[(len(rows) + 1) // 2 :]
    return Trouble.MEMORY
