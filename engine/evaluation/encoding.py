"""Texts encoded by one model, slice by slice, each kept on disk: what was computed once is read thereafter.

A slice is found again by its texts, the model's fingerprint, its precision, its limit and the prompt. A killed
evaluation therefore begins where it was, and a corpus that changed in one place is computed there alone.
"""

import hashlib
import json
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from interlock.engine.compute.encoder import Ids
from interlock.engine.compute.job import Encoded, HostEncoder, TextDevices, TextPass
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
NAME = "judged texts"
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
    gpus: TextDevices | None = None,
) -> Encoded:
    """Encode `texts` [n] behind `prompt`, cut at the model's limit, on the CPU that `lessor` lends or on `gpus`; `tell`
    hears how many are done."""
    slices = [(first, part, _file(card, part, prompt, gpus)) for first, part in _slices(texts)]
    known = {file: found for _, _, file in slices if (found := _kept(file)) is not None}
    missing = {file: part for _, part, file in slices if file not in known}
    done = len(texts) - sum(len(part) for part in missing.values())
    computed = _on_gpus(card, missing, prompt, gpus) if gpus else _on_host(card, missing, prompt, lessor)
    for file, found in computed:
        known[file] = found
        with suppress(InterlockError):  # it can be computed again
            if not found.rows.refused(card.dim):
                _keep(file, found)
        tell(done := done + len(found.rows))
    pieces = [(np.arange(first, first + len(part)), known[file].rows) for first, part, file in slices]
    return Encoded(pieces[0][1].joined(len(texts), pieces), sum(known[file].seconds for _, _, file in slices))


def amount_of(
    card: ModelCard, texts: Sequence[str], prompt: str, lessor: Lessor, gpus: TextDevices | None = None
) -> Amount:
    """Count what `encode_all` has yet to do, and try the model on a few texts of it to say how long that takes."""
    missing = [part for _, part in _slices(texts) if not _file(card, part, prompt, gpus).exists()]
    if not missing:
        return Amount(card.key, len(texts), 0, 0, 0.0)
    encoder = HostEncoder(card, lessor.devices[0])
    lengths = [len(row) for part in missing for row in encoder.rows(part, prompt)]
    every = [text for part in missing for text in part]
    tried = [every[at] for at in np.linspace(0, len(every) - 1, min(SLICE if gpus else TRIED, len(every))).astype(int)]
    if gpus:
        seconds = gpus.compute([TextPass(card, prompt, tried)], NAME)[0].seconds / len(gpus.devices)
        pace = seconds / sum(len(row) for row in encoder.rows(tried, prompt))
        return Amount(card.key, len(texts), len(lengths), sum(lengths), pace * sum(lengths))
    one, *more = encoder.rows(tried, prompt)
    with _leased(encoder, card, lessor, encoder.needs([len(row) for row in (one, *more)])):
        encoder.encode([one])  # which attaches it
        began = time.monotonic()
        encoder.encode(more or [one])
    pace = (time.monotonic() - began) / sum(len(row) for row in more or [one])
    return Amount(card.key, len(texts), len(lengths), sum(lengths), pace * sum(lengths))


def _on_host(
    card: ModelCard, missing: Mapping[Path, Sequence[str]], prompt: str, lessor: Lessor
) -> Iterator[tuple[Path, Encoded]]:
    """Encode slices on the CPU, one after the other, under one lease."""
    if not missing:
        return
    encoder = HostEncoder(card, lessor.devices[0])
    needs = max(encoder.needs([len(row) for row in encoder.rows(part, prompt)]) for part in missing.values())
    with _leased(encoder, card, lessor, needs):
        for file, part in missing.items():
            yield file, _timed(encoder, encoder.rows(part, prompt))


def _on_gpus(
    card: ModelCard, missing: Mapping[Path, Sequence[str]], prompt: str, gpus: TextDevices
) -> Iterator[tuple[Path, Encoded]]:
    """Encode slices in passes of `TOGETHER` of them: what took a pass counts to each by its share of the texts."""
    left = iter(missing.items())
    while group := dict(islice(left, TOGETHER)):
        texts = [text for part in group.values() for text in part]
        (found,) = gpus.compute([TextPass(card, prompt, texts)], NAME)
        start = 0
        for file, part in group.items():
            rows = found.rows.taken(np.arange(start, start + len(part)))
            yield file, Encoded(rows, found.seconds * len(part) / len(texts))
            start += len(part)


@contextmanager
def _leased(encoder: HostEncoder, card: ModelCard, lessor: Lessor, needs: int) -> Iterator[None]:
    (device,) = lessor.devices
    with lessor.lease(card.key, {device.name: needs}, lambda _: None):
        try:
            yield
        finally:
            encoder.detach()


def _timed(encoder: HostEncoder, rows: Sequence[Ids]) -> Encoded:
    if not encoder.attached:
        encoder.encode(rows[:1])  # attaching is no part of what a text takes
    began = time.process_time()
    found = encoder.encode(rows)
    return Encoded(found, time.process_time() - began)


def _slices(texts: Sequence[str]) -> Iterator[tuple[int, Sequence[str]]]:
    for first in range(0, len(texts), SLICE):
        yield first, texts[first : first + SLICE]


def _file(card: ModelCard, texts: Sequence[str], prompt: str, gpus: TextDevices | None) -> Path:
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
