"""What canaries have shown, kept beside the models for later runs: another file for all that could change it."""

import hashlib
import json
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Literal

import msgspec
import torch
from msgspec import Struct

from interlock.engine.compute.instance import ModelInstance
from interlock.engine.errors import InterlockError
from interlock.engine.gpu.devices import arithmetic_of
from interlock.engine.models.card import ModelCard
from interlock.engine.models.sources import model_cache
from interlock.engine.record import atomic

VERSION = 5
_FOLDER = "canaries"
_LIBRARIES = ("interlock", "transformers")


class Finding(Struct, frozen=True, kw_only=True):
    """What a canary showed: `cosine` is the lowest of its rows, None where nothing was compared, and `least` what
    it had to reach."""

    outcome: Literal["passed", "failed", "skipped"]
    cosine: float | None
    least: float
    rows: int
    tokens: int
    reference: str
    detail: str = ""
    remembered: bool = False
    seconds: float = 0.0


class Remembered(Struct, frozen=True, kw_only=True):
    """What a canary showed that is kept for later runs, and of what."""

    model: str
    label: str
    """The make of the device."""
    dtype: str
    attention: str
    finding: Finding
    shortest: int = 0
    """Tokens of the shortest and of the longest row that it saw."""
    longest: int = 0
    beside: int = 0
    """Tokens of the longest row that it saw beside one at most half as long."""

    def covers(self, shortest: int, longest: int) -> bool:
        """Tell whether what it shows holds for rows of these lengths together."""
        return longest <= self.longest and (shortest >= self.shortest or longest <= self.beside)


def attention_of(card: ModelCard) -> str:
    """Return how its rows are attended to, as events tell it."""
    return card.kernel if card.packed else card.attention


def remembered() -> list[Remembered]:
    """Read what canaries of earlier runs have shown on this machine, the newest first."""
    kept = {}
    with suppress(OSError):
        for file in (model_cache() / _FOLDER).glob("*.json"):
            with suppress(OSError, msgspec.MsgspecError):
                kept[file] = msgspec.json.decode(file.read_bytes(), type=Remembered), file.stat().st_mtime
    return [each for each, _ in sorted(kept.values(), key=lambda item: item[1], reverse=True)]


def passed(card: ModelCard, instance: ModelInstance) -> Remembered | None:
    """Read what an earlier run saw pass on this make of device; None where this very device has failed since."""
    if not failed(card, instance):
        with suppress(OSError, msgspec.MsgspecError), atomic.opened(_pass(card, instance)) as handle:
            return msgspec.json.decode(handle.read(), type=Remembered)
    return None


def failed(card: ModelCard, instance: ModelInstance) -> bool:
    """Tell whether this very device failed when it was looked at last."""
    return _failure(card, instance).exists()


def keep(card: ModelCard, instance: ModelInstance, found: Finding, shortest: int, longest: int) -> None:
    """Keep for later runs what rows of these lengths showed: a pass for the make of the device, a failure for this very
    one. What cannot be written can be looked at again."""
    before = passed(card, instance)
    beside = longest if 2 * shortest <= longest else 0
    about = Remembered(
        model=card.key,
        label=instance.device.label,
        dtype=card.dtype,
        attention=attention_of(card),
        finding=found,
        shortest=shortest,
        longest=longest,
        beside=max(beside, before.beside if before else 0),
    )
    with suppress(InterlockError, OSError):
        if found.outcome == "passed":
            _failure(card, instance).unlink(missing_ok=True)
        place = (_pass if found.outcome == "passed" else _failure)(card, instance)
        atomic.write_bytes(place, msgspec.json.encode(about))


def _pass(card: ModelCard, instance: ModelInstance) -> Path:
    """Where it is kept that a make of device computes a model rightly."""
    return _file(card, instance, "passed")


def _failure(card: ModelCard, instance: ModelInstance) -> Path:
    """Where it is kept that a device has failed, so that what passed on others of its make is not enough."""
    return _file(card, instance, "failed", instance.device.key or instance.device.name)


def _file(card: ModelCard, instance: ModelInstance, *more: str) -> Path:
    """Where a finding is kept: another for all that could change it, as several machines may share a cache."""
    device = instance.device
    made = [*arithmetic_of(device).values(), torch.__version__]  # it names the build for CUDA, as packages may not
    if device.kind != "cuda":  # threads that share a sum decide its last bits
        made.append(str(torch.get_num_threads()))
    about = [
        VERSION, card.snapshot.fingerprint, card.outputs, card.snapshot.head_digests, card.dtype, card.kernel,
        card.attention, card.packed, card.batching, card.pooling,
        device.kind, device.label, device.capability, *made, instance.way, *map(metadata.version, _LIBRARIES), *more,
    ]  # fmt: skip
    name = hashlib.sha256(json.dumps(about, default=str).encode()).hexdigest()
    return model_cache() / _FOLDER / f"{name}.json"
