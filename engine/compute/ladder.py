"""What to do with a piece of a batch that did not go through on its device: the next rung of the ladder, with why.

A piece is some rows that went through the model in one forward. Who computes it brings evidence, means and the effort
made so far, gets a `Step`, does it, and comes back with the step's effort if a piece of it fails again:

    out of memory    replan > split > stream > relocate > cpu > park
    not finite       replan (a single row, as it is) > split (every row alone) > float32 > cpu > park
    device lost      relocate > cpu > park

A climb never goes back down, and a rung that cannot help is passed over. A lost device is not the piece's fault: where
it goes next, the climb begins again, but a piece relocates once at most, and nothing comes back from the CPU. So every
row is computed or parked within 12 + log2(rows) steps, rounded up, and none is parked because of its neighbours.

Pure: no torch, no device, no clock. Sizes are bytes; tokens count padding where there is any.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

from interlock.engine.models.networks.kernels import padded_tokens
from interlock.engine.record.words import distinct_sizes, several

MOST_REPLANS = 2
"""How often one piece is planned anew before it is split without asking the law."""

ALONE = 1
"""Tokens of a forward that no two rows fit into together."""


class Rung(StrEnum):
    """What can be done, from the cheapest to the last; names compare as text, so compare `height`."""

    REPLAN = "replan"
    SPLIT = "split"
    STREAM = "stream"
    RELOCATE = "relocate"
    FLOAT32 = "float32"
    CPU = "cpu"
    PARK = "park"

    @property
    def height(self) -> int:
        return list(Rung).index(self)


CLIMBED = frozenset({Rung.STREAM, Rung.RELOCATE, Rung.FLOAT32, Rung.CPU})
"""Rungs that a single row climbs."""
MOVES = frozenset({Rung.RELOCATE, Rung.CPU})
"""Rungs that take a piece to another device."""


class Cause(StrEnum):
    """Why a piece did not go through: out of memory, its device is gone, or vectors that are not finite or are zero."""

    MEMORY = "memory"
    LOST = "lost"
    NOT_FINITE = "not_finite"


@dataclass(frozen=True)
class Evidence:
    """What was seen when the piece failed; of one that was not finite, `rows` are those whose vectors were refused."""

    cause: Cause
    rows: int
    longest: int
    """Tokens of the longest row."""
    tokens: int
    """Of the whole forward, padding included."""
    predicted: int
    """Bytes that the forward was given."""
    room: int
    """Bytes that were free for it when it failed, after clearing."""
    allowed_tokens: int
    """The most tokens that the corrected law allows in that room now."""
    foreseen: bool = False
    """The shortage was predicted, and no allocation failed."""


@dataclass(frozen=True)
class Means:
    """What is possible from where the piece failed; a piece that failed on the CPU has no `cpu` to go to."""

    streams: bool
    """The model's layers can be streamed from the host."""
    others: bool
    """Another healthy device of this lease is there."""
    float32: bool
    """The same device can compute it in float32, which it does not do yet."""
    cpu: bool
    """CPU fallback is allowed, and host memory suffices for it."""


@dataclass(frozen=True)
class Effort:
    """What was done for a piece so far. Streaming and slicing that were `tried` stay on for what follows."""

    tried: frozenset[Rung] = frozenset()
    """Rungs climbed since the last device was lost."""
    replans: int = 0
    again: frozenset[Cause] = frozenset()
    """Causes after which it was done once more just as it was."""
    moves: frozenset[Rung] = frozenset()
    """Those of `MOVES` ever made."""


@dataclass(frozen=True)
class Step:
    """What to do now, and for an operator what happened and what is done about it; `effort` goes with every piece."""

    rung: Rung
    tokens: int | None
    """The most tokens of one forward from now on; None: as they come."""
    effort: Effort
    happened: str
    action: str

    @property
    def reason(self) -> str:
        """Both in one sentence."""
        return f"{self.happened}; {self.action}"

    def pieces(self, lengths: Sequence[int], *, padded: bool) -> list[slice]:
        """Cut the rows of the failed piece (`lengths` in tokens, longest first) into the forwards of this step."""
        if self.tokens is not None:
            return slices(lengths, self.tokens, padded=padded)
        return halves(len(lengths)) if self.rung is Rung.SPLIT else [slice(0, len(lengths))]


ROOMIER = 1.1
"""How much more has to be free than when a text did not fit that was thought to, for one as long to be tried again."""


@dataclass
class Outgrown:
    """What single texts have shown of their device: one that failed on every rung says the same of longer ones, until
    what it needs is free. Between it and what went through, the text in the middle is tried next."""

    fits: int = 0
    """Tokens of the longest text that went through."""
    off: float = math.inf
    """Tokens from which on texts leave the device: for another one, and from `far` on for the CPU."""
    far: float = math.inf
    out: float = math.inf
    """Tokens from which on nothing helps."""
    until: float = math.inf
    """Bytes that are free when `off` is forgotten; `far_until`, on the other one, when `far` is."""
    far_until: float = math.inf
    why: str = ""
    told: set[Rung] = field(default_factory=set)
    """By which rungs it was said that texts leave at once."""

    def learn(self, evidence: Evidence, step: Step, *, at_home: bool, on_host: bool) -> None:
        """Take in that a text alone has left a device by this step, or is parked: its own, another one or the CPU."""
        length = evidence.longest
        if step.rung is Rung.PARK:
            self.out = min(self.out, length)
        if on_host and not at_home:
            return
        until = evidence.predicted if evidence.foreseen else ROOMIER * evidence.room
        if at_home:
            self.off, self.until, self.why = min(self.off, length), until, step.happened
            self.fits = min(self.fits, length - 1)
        if step.rung is not Rung.RELOCATE:
            self.far, self.far_until = min(self.far, length), until

    def passed(self, length: int) -> None:
        """Take in that a text went through on its device."""
        self.fits = max(self.fits, length)
        if length >= self.off:
            self._forget()

    def holds(self, room: int, beside: int) -> bool:
        """Whether anything is known not to fit in what is free now, and `beside` on the other device; where enough is,
        it is forgotten."""
        if room > self.until:
            self._forget()
        if beside > self.far_until:
            self.far = self.far_until = math.inf
        return self.off < math.inf

    def _forget(self) -> None:
        self.off = self.far = self.out = self.until = self.far_until = math.inf
        self.told.clear()

    def middle(self, lengths: Sequence[int]) -> int | None:
        """Choose the text that tells most of those of which nothing is known; None where there is none."""
        unknown = sorted({length for length in lengths if self.fits < length < self.off})
        return lengths.index(unknown[len(unknown) // 2]) if unknown else None


def next_step(effort: Effort, evidence: Evidence, means: Means) -> Step:
    """Choose the first rung that is still ahead of the piece and can help."""
    match evidence.cause:
        case Cause.MEMORY:
            return _short_of_memory(effort, evidence, means)
        case Cause.NOT_FINITE:
            return _not_finite(effort, evidence, means)
        case Cause.LOST:
            return _onward((Rung.RELOCATE, Rung.CPU), effort, evidence, means)


def halves(rows: int) -> list[slice]:
    """Cut two or more rows into halves; of an odd number, the first has the fewer: its rows are the longer ones."""
    assert rows > 1, "a single row has no halves"
    return [slice(0, rows // 2), slice(rows // 2, rows)]


def slices(lengths: Sequence[int], most_tokens: int, *, padded: bool) -> list[slice]:
    """Cut rows, longest first, into runs of at most `most_tokens` tokens, and of at least one row each.

    `padded` rows count as many tokens as the longest of their run.
    """
    cut, start, tokens = [], 0, 0
    for row, length in enumerate(lengths):
        tokens = padded_tokens(row - start + 1, lengths[start], length) if padded else tokens + length
        if tokens > most_tokens and row > start:
            cut.append(slice(start, row))
            start, tokens = row, length
    return [*cut, slice(start, len(lengths))] if len(lengths) else []


def _short_of_memory(effort: Effort, evidence: Evidence, means: Means) -> Step:
    """Fewer tokens while there is more than one row; then less of the model at a time; then another device."""
    allowed, tokens = evidence.allowed_tokens, evidence.tokens
    if _may_replan(effort) and evidence.rows > 1 and evidence.longest <= allowed < tokens:
        action = f"retrying with at most {allowed:,} of its {tokens:,} tokens at a time"
        return _step(Rung.REPLAN, action, effort, evidence, allowed)
    if _may_replan(effort) and allowed >= tokens and evidence.cause not in effort.again:
        return _again("retrying unchanged, because it should have fitted", effort, evidence)
    if evidence.rows > 1:
        return _step(Rung.SPLIT, "computing each half separately", effort, evidence)
    return _onward((Rung.STREAM, Rung.RELOCATE, Rung.CPU), effort, evidence, means)


def _not_finite(effort: Effort, evidence: Evidence, means: Means) -> Step:
    """Every row alone; a single row once more; then in float32, on its device and last on the CPU."""
    if evidence.rows > 1:  # the overflow of one row may have spoilt its neighbours
        return _step(Rung.SPLIT, "computing every text alone", effort, evidence, ALONE)
    if _may_replan(effort) and evidence.cause not in effort.again:  # a row split off its batch has been retried so
        return _again("retrying alone", effort, evidence)
    return _onward((Rung.FLOAT32, Rung.CPU), effort, evidence, means)


_ACTIONS = {
    Rung.STREAM: "streaming layers from the host",
    Rung.RELOCATE: "moving to another device",
    Rung.FLOAT32: "computing in float32",
    Rung.CPU: "computing on the CPU in float32",
    Rung.PARK: "nothing left to try",
}


def _onward(rungs: Sequence[Rung], effort: Effort, evidence: Evidence, means: Means) -> Step:
    """The first of `rungs` that is possible and ahead; none is the end."""
    possible = {
        Rung.STREAM: means.streams,
        Rung.RELOCATE: means.others,
        Rung.FLOAT32: means.float32,
        Rung.CPU: means.cpu,
    }
    for rung in rungs:
        # A move must also lie above the moves from before a device was lost, or pieces would wander for ever.
        behind = effort.tried | effort.moves if rung in MOVES else effort.tried
        if possible[rung] and all(rung.height > tried.height for tried in behind):
            return _step(rung, _ACTIONS[rung], effort, evidence)
    return _step(Rung.PARK, _ACTIONS[Rung.PARK], effort, evidence)


def _may_replan(effort: Effort) -> bool:
    return effort.replans < MOST_REPLANS and effort.tried <= {Rung.REPLAN}


def _again(action: str, effort: Effort, evidence: Evidence) -> Step:
    """The same forward, which is done over once for each cause."""
    effort = replace(effort, again=effort.again | {evidence.cause})
    return _step(Rung.REPLAN, action, effort, evidence, evidence.tokens)


def _step(rung: Rung, action: str, effort: Effort, evidence: Evidence, tokens: int | None = None) -> Step:
    after = Effort(
        tried=frozenset() if evidence.cause is Cause.LOST else effort.tried | {rung},
        replans=effort.replans + (rung is Rung.REPLAN),
        again=effort.again,
        moves=effort.moves | ({rung} & MOVES),
    )
    return Step(rung, tokens, after, _what_happened(evidence), action)


def _what_happened(evidence: Evidence) -> str:
    longest = f"{evidence.longest:,} tokens"
    rows = several(evidence.rows, "text")
    texts = f"{rows}, {longest}" if evidence.rows == 1 else f"{rows}, at most {longest} each"
    match evidence.cause:
        case Cause.MEMORY:
            needs, free = distinct_sizes(evidence.predicted, evidence.room)
            what = "too large for the free memory" if evidence.foreseen else "out of memory"
            return f"{what} ({texts}: needs {needs}, {free} free)"
        case Cause.LOST:
            return f"device lost ({texts})"
        case Cause.NOT_FINITE:
            return f"vectors zero or not finite ({texts})"
