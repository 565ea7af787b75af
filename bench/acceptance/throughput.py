"""From texts to vectors, ours and sentence-transformers taking turns, it at the batch size that suits it best.

Real tokens a second; loading is left out on both sides. How many texts there are follows from how fast the device is.
The share of the products' rate counts the layers' weights alone, two operations each for every token.
"""

import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from acceptance.goals import Timed, Tree
from acceptance.inputs import least_cosine, lengths_of, stored, texts_of
from acceptance.workbench import Bench, seated
from transformers.integrations import sdpa_attention

from interlock.engine.compute.instance import ModelInstance, Shortfall
from interlock.engine.compute.job import plan
from interlock.engine.compute.parts.dense import Vectors
from interlock.engine.errors import InterlockError
from interlock.engine.gpu.device_errors import Trouble, classify
from interlock.engine.models.card import ModelCard
from interlock.engine.models.networks.streaming import layers_of, size_of
from interlock.engine.models.weights import DTYPES

MODELS = ("XLM-R-large", "Qwen3-0.6B", "ModernBERT-base")
MIXES = ("chunks", "mixed")
_GROUPED = sdpa_attention.use_gqa_in_sdpa
"""How transformers decides on fewer heads of keys, before the engine decides it."""
RUNS = 30
"""About how often as long as one run of ours a race takes: a sweep of five sizes, and the rounds."""


def throughput(bench: Bench) -> Iterator[tuple[str, Any]]:
    races: dict[str, list[Tree]] = {mix: [] for mix in MIXES}
    for number, name in enumerate(MODELS):
        with bench.part(name, len(MODELS) - number):
            found = seated(bench, bench.card(name), lambda instance, _: _races(bench, bench.card(name), instance))  # noqa: B023
            for mix, race in found.items():
                races[mix].append(race)
                yield f"{name}, {mix}", race
    for mix, each in races.items():
        if each:
            yield f"throughput: x sentence-transformers, {mix}", Timed(min(race["x_best"].value for race in each))
    if every := [race["least_cosine"] for each in races.values() for race in each]:
        yield "throughput: least cosine to sentence-transformers", min(every)


def _races(bench: Bench, card: ModelCard, instance: ModelInstance) -> dict[str, Tree]:
    found: dict[str, Tree] = {}
    peer = _peer(bench, card)
    for place, mix in enumerate(MIXES):
        with bench.part(f"{card.key}, {mix}", len(MIXES) - place):
            found[mix] = _Race(bench, card, instance, peer, mix).run()
    return found


def _peer(bench: Bench, card: ModelCard) -> Any:
    """The same model as its users have it: in the same precision, with its default attention."""
    from sentence_transformers import SentenceTransformer

    dtype = DTYPES[card.dtype]
    peer = SentenceTransformer(
        str(card.snapshot.path),
        device=str(bench.device.torch),
        local_files_only=True,
        model_kwargs={"torch_dtype": dtype},
    )
    if (given := next(peer.parameters()).dtype) is not dtype:
        raise InterlockError(f"sentence-transformers computes in {given}, not in {dtype}")
    return peer


@contextmanager
def _their_switches() -> Iterator[None]:
    """Compute as torch and transformers come: what the engine has set for its own process is not theirs."""
    cuda = torch.backends.cuda
    reduced, grouped = cuda.matmul.allow_fp16_reduced_precision_reduction, sdpa_attention.use_gqa_in_sdpa
    ours = reduced, cuda.cudnn_sdp_enabled(), grouped
    try:
        _switch(True, True, _GROUPED)
        yield
    finally:
        _switch(*ours)


def _switch(reduced: bool, cudnn: bool, grouped: Callable[..., bool]) -> None:
    torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = reduced
    torch.backends.cuda.enable_cudnn_sdp(cudnn)
    sdpa_attention.use_gqa_in_sdpa = grouped


class _Race:
    """One model over one mix of texts."""

    def __init__(self, bench: Bench, card: ModelCard, instance: ModelInstance, peer: Any, mix: str) -> None:
        self._bench, self._card, self._instance, self._peer = bench, card, instance, peer
        self._texts = self._chosen(mix)
        self._tokens = int(stored(bench, card, self._texts).lengths(card.max_tokens).sum())
        self._mine: Vectors = np.empty(0, np.float32)
        self._other: Vectors = np.empty(0, np.float32)

    def run(self) -> Tree:
        bench, sizes = self._bench, self._sweep()
        best = min(sizes, key=lambda size: sizes[size])
        pairs: list[tuple[float, float]] = []
        self._ours(self._texts)  # every shape once before it is timed, as the sweep has done for theirs
        while len(pairs) < bench.scale.repeats and not (bench.spent and pairs):
            pairs.append(self._pair(best, first=len(pairs) % 2 == 0))
        mine, other = (statistics.median(each) for each in zip(*pairs, strict=True))
        rate, layers = self._tokens / mine, layers_of(self._instance.attached.network)
        per_token = 2 * sum(map(size_of, layers)) / DTYPES[self._card.dtype].itemsize
        return {
            "texts": len(self._texts),
            "tokens": self._tokens,
            "rounds": len(pairs),
            "seconds_by_size": {str(size): Timed(seconds) for size, seconds in sizes.items()},
            "best_size": Timed(best),
            "interlock_tokens_per_s": Timed(rate),
            "sentence_transformers_tokens_per_s": Timed(self._tokens / other),
            "x_best": Timed(statistics.median(theirs / ours for ours, theirs in pairs)),
            "share_of_gemm": Timed(rate * per_token / bench.rates["gemm"]),
            "least_cosine": least_cosine(self._mine, self._other),
        }

    def _chosen(self, mix: str) -> list[str]:
        """As many texts as the time allows, by how long a few take once everything is warm."""
        least, most = self._bench.scale.text_tokens
        few = texts_of(self._bench, lengths_of(self._bench, mix, least))
        self._ours(few)
        wanted = least * self._bench.left / RUNS / self._bench.seconds(lambda: self._ours(few))
        tokens = int(min(most, wanted))
        return few if tokens <= least else texts_of(self._bench, lengths_of(self._bench, mix, tokens))

    def _sweep(self) -> dict[int, float]:
        """Seconds by batch size, of those that fit under the ceiling and into the time."""
        found: dict[int, float] = {}
        self._theirs(self._texts[:8], self._bench.scale.sizes[0])
        for size in self._bench.scale.sizes:
            if self._bench.spent and found:
                break
            if self._fits(size):
                found[size] = self._bench.seconds(lambda: self._theirs(self._texts, size))  # noqa: B023
        if not found:
            raise InterlockError("sentence-transformers fits under the ceiling at no batch size")
        return found

    def _fits(self, size: int) -> bool:
        """Whether the longest texts go through together; that also makes ready for them."""
        try:
            self._theirs(sorted(self._texts, key=len, reverse=True)[:size], size)
        except Exception as error:
            if classify(error) is not Trouble.MEMORY:
                raise
        else:
            return True
        self._bench.device.trim()
        return False

    def _pair(self, size: int, *, first: bool) -> tuple[float, float]:
        """Seconds of ours and of theirs; who is first changes from round to round."""
        runs: list[Callable[[], None]] = [lambda: self._ours(self._texts), lambda: self._theirs(self._texts, size)]
        times = [self._bench.seconds(run) for run in (runs if first else runs[::-1])]
        return (times[0], times[1]) if first else (times[1], times[0])

    def _ours(self, texts: Sequence[str]) -> None:
        store = stored(self._bench, self._card, texts)
        lengths = store.lengths(self._card.max_tokens)
        self._mine = np.empty((len(texts), self._card.dim), np.float32)
        for batch in plan(np.arange(len(store)), lengths, self._card.batch_tokens).batches:
            done = self._instance.attempt([store.row(int(row), self._card.max_tokens) for row in batch.rows])
            if isinstance(done, Shortfall):
                raise InterlockError(f"a batch ran out of memory: {done.message}")
            self._mine[batch.rows] = done.dense
        store.path.unlink()

    def _theirs(self, texts: Sequence[str], size: int) -> None:
        with _their_switches():
            self._other = np.asarray(
                self._peer.encode(list(texts), batch_size=size, show_progress_bar=False), np.float32
            )
