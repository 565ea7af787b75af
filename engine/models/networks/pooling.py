"""How a text's tokens become one: their hidden states a vector, and their logits weights of terms.

Of terms as sentence-transformers' SpladePooling does it: the largest logit of each is taken before the activation,
which rises with it and is then computed once a text and not once a token; sums need it for each token. Which way a
model's is, its files say.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from interlock.engine.errors import UnavailableError
from interlock.engine.models.commits import published_of
from interlock.engine.models.layout import Module, architecture_of, read_object
from interlock.engine.models.networks.kernels import PackedBatch
from interlock.engine.models.registry import ModelSpec


def _first(hidden: Tensor, batch: PackedBatch, skipped: int) -> Tensor:
    starts, stops = batch.starts[:-1], batch.starts[1:]
    return hidden[torch.where(starts + skipped < stops, starts + skipped, starts) if skipped else starts].float()


def _last(hidden: Tensor, batch: PackedBatch, skipped: int) -> Tensor:
    starts, stops = batch.starts[:-1], batch.starts[1:]
    last = hidden[stops - 1].float()
    return last.masked_fill((starts + skipped >= stops)[:, None], 0.0) if skipped else last


def _mean(hidden: Tensor, batch: PackedBatch, skipped: int) -> Tensor:
    # unsafe: it would look at the offsets from the host, and wait for the device to tell them
    starts, stops = batch.starts[:-1], batch.starts[1:]
    if not skipped:
        return torch.segment_reduce(hidden.float(), "mean", offsets=batch.starts, axis=0, unsafe=True)
    inside = torch.minimum(starts + skipped, stops)
    offsets = torch.cat([torch.stack([starts, inside], 1).flatten(), stops[-1:]])  # what is left out, what counts, ...
    means = torch.segment_reduce(hidden.float(), "mean", offsets=offsets, axis=0, unsafe=True)[1::2]
    return means.masked_fill((inside == stops)[:, None], 0.0)


POOLINGS: Mapping[str, Callable[[Tensor, PackedBatch, int], Tensor]] = {
    "cls": _first,
    "lasttoken": _last,
    "mean": _mean,
}
"""By sentence-transformers' name what makes one vector in float32 [rows, width] for each row of a batch, of its tokens'
[T, width] without so many at its start. Rows that are pooled in another way are padded."""
POOLING_MODES = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
"""What earlier versions of sentence-transformers wrote for each way."""


@dataclass(frozen=True)
class VectorShape:
    """What of a text's tokens and of its vector counts: not the first `skipped` tokens, and of the numbers the first
    `cut`; None keeps all."""

    skipped: int = 0
    cut: int | None = None


WHOLE = VectorShape()
Strategy = Literal["max", "sum"]
Activation = Literal["relu", "log1p_relu"]


@dataclass(frozen=True)
class TermPooling:
    """One way of pooling: log1p(relu(logit)), or log1p of that, by its largest or its sum over the tokens of a text.

    `most` terms of each text are kept, those that weigh most; None keeps all.
    """

    strategy: Strategy = "max"
    """`sum` as in arxiv.org/abs/2107.05720, `max` as in arxiv.org/abs/2109.10086."""
    activation: Activation = "relu"
    """`log1p_relu` as in arxiv.org/abs/2504.14839."""
    most: int | None = None

    def held(self, dtype: torch.dtype) -> torch.dtype:
        """Return the precision of what tokens have together, where their logits are in `dtype`: no logit is rounded
        for being the largest, but weights and sums would be."""
        return dtype if self.strategy == "max" else torch.float32

    def prepare(self, logits: Tensor) -> Tensor:
        """Bring the logits of some tokens [n, words], in place unless their precision is another, to what `pool` and
        `join` take."""
        values = logits.to(self.held(logits.dtype))
        return values if self.strategy == "max" else self._activated(values)

    def pool(self, values: Tensor, out: Tensor) -> None:
        """Write into `out` [words] what the tokens of a text, or of a part of it, have together."""
        if self.strategy == "max":
            torch.amax(values, 0, out=out)
        else:
            torch.sum(values, 0, out=out)

    def join(self, here: Tensor, more: Tensor) -> None:
        """Add to `here` what another part of the same text has."""
        if self.strategy == "max":
            torch.maximum(here, more, out=here)
        else:
            here.add_(more)

    def finish(self, joined: Tensor) -> Tensor:
        """Turn what whole texts have together [n, words], in place, into weights, of which `most` are to be kept."""
        if self.strategy == "max":
            self._activated(joined)
        return joined

    def _activated(self, values: Tensor) -> Tensor:
        values.relu_().log1p_()
        return values.log1p_() if self.activation == "log1p_relu" else values


def pooling_file(path: Path, modules: Sequence[Module]) -> Path:
    """Find the file that says how a model is pooled."""
    folder = next((module.path for module in modules if module.kind == "Pooling"), "1_Pooling")
    return path / folder / "config.json"


def poolings_of(spec: ModelSpec, path: Path, config: Mapping[str, Any], modules: Sequence[Module]) -> tuple[str, ...]:
    """The ways of pooling whose results stand side by side in a vector. A directory without modules has that of the
    model which it is a copy of, else, as in sentence-transformers, the last token's for a language model, or the mean.
    """
    if not modules:
        causal = architecture_of(config).endswith("ForCausalLM") and config.get("is_causal", True)
        known = published_of(spec)
        return (known[0] if known else "lasttoken" if causal else "mean",)
    file = pooling_file(path, modules)
    told = read_object(file)
    _check_widths(file, told)
    flags = [each for each in {**POOLING_MODES, **told} if each.startswith("pooling_mode_") and told.get(each)]
    given = told.get("pooling_mode", [POOLING_MODES.get(flag, flag) for flag in flags])
    modes = [given] if isinstance(given, str) else given
    if not isinstance(modes, list) or any(mode not in POOLING_MODES.values() for mode in modes):
        raise UnavailableError(
            f"model {spec.key}: {file}: pooling_mode: expected any of {', '.join(POOLING_MODES.values())}, got "
            f"{given!r:.100}"
        )
    return tuple(modes) or ("mean",)


def _check_widths(file: Path, told: Mapping[str, object]) -> None:
    """Refuse the width of a pooling that is not there or no number, which sentence-transformers counts with."""
    widths = ("embedding_dimension", "word_embedding_dimension")
    for name in widths:
        if not isinstance(told.get(name, 0), int):
            raise UnavailableError(f"{file}: {name} is {told[name]!r:.100}: set it to the width of the vectors")
    if file.is_file() and not any(
        name in told for name in widths
    ):  # cut, most likely, and with it the way that is meant
        raise UnavailableError(
            f"{file} has no embedding_dimension, so it is not whole: replace it with the publisher's"
        )
