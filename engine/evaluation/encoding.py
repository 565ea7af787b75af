"""Texts encoded by one model, slice by slice, each kept on disk: what was computed once is read thereafter.

A slice is found again by its texts, the model's fingerprint, its precision, its limit and the prompt. A killed
evaluation therefore begins where it was, and a corpus that changed in one place is computed there alone.
"""

import hashlib
import json
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from interlock.engine.compute.job import Encoded, GpuJobs, HostJobs, Job, JobExecutor
from interlock.engine.compute.parts.outputs import Outputs
from interlock.engine.compute.parts.terms import SparseRows
from interlock.engine.compute.parts.tokens import TokenRows
from interlock.engine.errors import InterlockError
from interlock.engine.gpu.lease import Lessor
from interlock.engine.models.card import ModelCard
from interlock.engine.models.sources import model_cache
from interlock.engine.record import atomic

SLICE = 256
"""Texts that are encoded, kept and told of together."""
TOGETHER = 64
"""Slices of one pass on GPUs: what a kill costs, against how often a model is loaded."""
TRIED = 9
"""Texts that a model is tried on, to say how long all of them will take: on a CPU; a slice on GPUs."""
FORM = 1
"""Of what is kept; another number makes all of it anew."""


@dataclass(frozen=True)
class Amount:
    """How much is still to be encoded by a model: texts, their tokens, and about how many seconds."""

    model: str
    texts: int
    missing: int
    tokens: int
    seconds: float


def encode_all(
    card: ModelCard,
    texts: Sequence[str],
    prompt: str,
    lessor: Lessor,
    tell: Callable[[int], object] = lambda _: None,
    gpus: GpuJobs | None = None,
) -> Encoded:
    """Encode `texts` [n] behind `prompt`, cut at the model's limit, on the CPU that `lessor` lends or on `gpus`; `tell`
    hears how many are done."""
    slices = [(first, part, _file(card, part, prompt, gpus)) for first, part in _slices(texts)]
    known = {file: found for _, _, file in slices if (found := _kept(file)) is not None}
    missing = {file: part for _, part, file in slices if file not in known}
    done = len(texts) - sum(len(part) for part in missing.values())
    for file, found in _computed(card, missing, prompt, lessor, gpus):
        known[file] = found
        with suppress(InterlockError):  # it can be computed again
            if not found.rows.refused(card.dim):
                _keep(file, found)
        tell(done := done + len(found.rows))
    pieces = [(np.arange(first, first + len(part)), known[file].rows) for first, part, file in slices]
    return Encoded(pieces[0][1].joined(len(texts), pieces), sum(known[file].seconds for _, _, file in slices))


def amount_of(
    card: ModelCard, texts: Sequence[str], prompt: str, lessor: Lessor, gpus: GpuJobs | None = None
) -> Amount:
    """Count what `encode_all` has yet to do, and try the model on a few texts of it to say how long that takes."""
    missing = [text for _, part in _slices(texts) if not _file(card, part, prompt, gpus).exists() for text in part]
    if not missing:
        return Amount(card.key, len(texts), 0, 0, 0.0)
    lengths = [len(row) for row in Job(card, prompt, missing).rows()]
    places = np.linspace(0, len(missing) - 1, min(SLICE if gpus else TRIED, len(missing))).astype(int).tolist()
    with HostJobs(lessor, kept=True) as host:
        tried, on = Job(card, prompt, [missing[at] for at in places]), gpus or host
        if on is host:
            host.compute([tried])  # what is loaded only now is no part of its pace
        began, (found,) = time.monotonic(), on.compute([tried])
        seconds = time.monotonic() - began if on is host else found.seconds / len(on.devices)
    pace = seconds / sum(lengths[at] for at in places)
    return Amount(card.key, len(texts), len(lengths), sum(lengths), pace * sum(lengths))


def _computed(
    card: ModelCard, missing: Mapping[Path, Sequence[str]], prompt: str, lessor: Lessor, gpus: GpuJobs | None
) -> Iterator[tuple[Path, Encoded]]:
    """Encode slices: on GPUs in passes of `TOGETHER` of them, on the CPU one by one under one lease. What a job took
    counts to each slice by its share of the texts."""
    left = iter(missing.items())
    with HostJobs(lessor, kept=True) as host:
        on: JobExecutor = gpus or host
        if on is host and missing:
            host.hold([Job(card, prompt, [text for part in missing.values() for text in part])])
        while group := dict(islice(left, TOGETHER if gpus else 1)):
            texts = [text for part in group.values() for text in part]
            (found,) = on.compute([Job(card, prompt, texts)])
            start = 0
            for file, part in group.items():
                rows = found.rows.taken(np.arange(start, start + len(part)))
                yield file, Encoded(rows, found.seconds * len(part) / len(texts))
                start += len(part)


def _slices(texts: Sequence[str]) -> Iterator[tuple[int, Sequence[str]]]:
    for first in range(0, len(texts), SLICE):
        yield first, texts[first : first + SLICE]


def _file(card: ModelCard, texts: Sequence[str], prompt: str, gpus: GpuJobs | None) -> Path:
    heads = {str(head): digest for head, digest in card.snapshot.head_digests.items()}
    about = [FORM, card.snapshot.fingerprint, card.dtype, card.max_tokens, card.outputs, heads, prompt]
    about = [gpus.devices[0].label, *about] if gpus else about
    said = hashlib.sha256(json.dumps([*about, str(card.by_token), str(card.terms)]).encode())
    for text in texts:
        said.update(hashlib.sha256(text.encode()).digest())
    return model_cache() / "judged" / card.snapshot.fingerprint[:16] / f"{said.hexdigest()}.npz"


def _keep(file: Path, found: Encoded) -> None:
    arrays: dict[str, Any] = {"seconds": np.array(found.seconds)}
    if found.rows.dense is not None:
        arrays["dense"] = found.rows.dense
    if (terms := found.rows.terms) is not None:
        arrays |= {"starts": terms.starts, "indices": terms.indices, "values": terms.values, "empty": terms.parked}
    if (tokens := found.rows.tokens) is not None:
        arrays |= {"token_starts": tokens.starts, "records": tokens.records, "without": tokens.parked}
    with atomic.explaining(file):
        file.parent.mkdir(parents=True, exist_ok=True)
    with atomic.replacing(file) as partial, partial.open("wb") as handle:
        np.savez(handle, **arrays)


def _kept(file: Path) -> Encoded | None:
    """What was kept in `file`; None where that is nothing whole."""
    with suppress(OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile), np.load(file) as found:
        terms = tokens = None
        if "starts" in found:
            terms = SparseRows(found["starts"], found["indices"], found["values"], found["empty"])
        if "records" in found:
            tokens = TokenRows(found["token_starts"], found["records"], found["without"])
        dense = found.get("dense")
        return Encoded(Outputs(dense, terms, tokens), float(found["seconds"]))
    return None
