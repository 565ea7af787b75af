"""What a collection refused: the first by name, all of it by reason, so that millions take no more room than a few."""

import re
from collections import Counter
from dataclasses import dataclass, field
from functools import lru_cache

from interlock.engine.record.facts import REFUSALS_TOLD, Refusal

REASONS = 20
"""Kinds of reason that are counted apart."""
_PLACES = re.compile(
    r" \(byte \d+\)| in position [\d-]+|(?<=^chunk_id ).* of .*(?= has been used before$)"
    r'|(?<=^no field "text") \(found .*\)(?=: rename)',
    re.DOTALL,
)


@dataclass
class Refusals:
    """Counts every refusal and keeps the first REFUSALS_TOLD; as many as `len` says."""

    told: list[Refusal] = field(default_factory=list)
    reasons: Counter[str] = field(default_factory=Counter)

    def add(self, refusal: Refusal) -> None:
        if len(self.told) < REFUSALS_TOLD:
            self.told.append(refusal)
        kind = kind_of(refusal.reason)
        self.reasons[kind if kind in self.reasons or len(self.reasons) < REASONS else "other reasons"] += 1

    def __len__(self) -> int:
        return self.reasons.total()


@lru_cache(1024)
def kind_of(reason: str) -> str:
    """Strip a reason of the names and places that make each its own."""
    return _PLACES.sub("…" if reason.startswith("chunk_id") else "", reason)
