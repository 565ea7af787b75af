"""Pairs of a query and a text as one row of token ids each, as their cross-encoder wants them; and how they are scored.

A row is cut where it is longer than the model takes, the longer of its two texts first (`longest_first`), as
`CrossEncoder` of sentence-transformers does it. Each distinct text is tokenised once, whatever the number of its pairs.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from tokenizers import Encoding
from torch import nn

from interlock.engine.compute.batches import BatchPlan
from interlock.engine.compute.parts.dense import ScoreRows
from interlock.engine.compute.parts.outputs import Outputs
from interlock.engine.corpus.tokens import encoded, load_tokenizer, naming, translated
from interlock.engine.gpu.device import Device
from interlock.engine.models.card import ModelCard
from interlock.engine.models.layout import read_object
from interlock.engine.models.memory import HeadLaw
from interlock.engine.models.networks.kernels import Kernel, filling, pack, padded_tokens
from interlock.engine.models.networks.network import PackedPairEncoder
from interlock.engine.models.scoring import Activation
from interlock.engine.record.events import PairsPlanned

Ids = npt.NDArray[np.int64]
Scores = npt.NDArray[np.float32]
Pair = tuple[str, str]
TYPED = ("BertTokenizer", "BertTokenizerFast")
"""Tokenizers of transformers that give token types without being told to, of those that packed networks come with."""


@dataclass(frozen=True, eq=False)
class PairRow:
    """A pair as its model is given it; `full` counts the tokens that it would have if it were not cut."""

    ids: Ids
    types: Ids | None
    full: int
    more: Mapping[str, Any]
    """What sentence-transformers hands to its network beside them, the same for every row."""

    def __len__(self) -> int:
        return len(self.ids)


@dataclass(frozen=True)
class PairPlan:
    """Pairs as rows, and the batches that they go through in; `needed` is the most that a forward is predicted to take
    beside the weights, in bytes, `weights` what those take."""

    rows: Sequence[PairRow]
    batches: BatchPlan
    device: str
    weights: int
    needed: int

    @property
    def truncated(self) -> int:
        """Count the pairs of which something is cut off."""
        return sum(row.full > len(row) for row in self.rows)

    @property
    def truncated_tokens(self) -> int:
        return sum(row.full - len(row) for row in self.rows)

    def told(self, card: ModelCard) -> PairsPlanned:
        """Say what is about to be scored."""
        return PairsPlanned(
            model=card.key,
            pairs=len(self.rows),
            batches=len(self.batches.batches),
            tokens=self.batches.tokens,
            padding=0 if card.packed else self.batches.padding,
            truncated=self.truncated,
            truncated_tokens=self.truncated_tokens,
        )


def head_of(card: ModelCard, device_kind: str, rows: Sequence[PairRow]) -> HeadLaw | None:
    """Return what a language model's logits of one token for each row take; None of a model that gives no such."""
    if not any("logits_to_keep" in row.more for row in rows[:1]):
        return None
    size = 2 if device_kind == "sim" or card.dtype != "float32" else 4
    words, width = int(card.config["vocab_size"]), int(card.config["hidden_size"])
    return HeadLaw(0, 2 * width * size + words * size / min(map(len, rows)), 0.0, 0)


def rows_of_texts(card: ModelCard, pairs: Sequence[Pair]) -> list[PairRow]:
    """Tokenise pairs by the `tokenizer.json` of a card. Raises UnavailableError for what the tokenizer cannot take."""
    with naming([card.key], card.tokenizer_file):
        tokenizer = load_tokenizer(card.tokenizer_file)
        texts = list(dict.fromkeys(text for pair in pairs for text in (card.query_prompt + pair[0], pair[1])))
        known: dict[str, Encoding] = dict(zip(texts, encoded(tokenizer, texts), strict=True))
        tokenizer.enable_truncation(card.max_tokens, strategy="longest_first")
        specials, typed = tokenizer.num_special_tokens_to_add(is_pair=True), _typed(card)
        rows = []
        for query, text in pairs:
            first, second = known[card.query_prompt + query], known[text]
            with translated():
                whole = tokenizer.post_process(first, second)
            types = np.asarray(whole.type_ids, np.int64) if typed else None
            full = len(first.ids) + len(second.ids) + specials
            rows.append(PairRow(np.asarray(whole.ids, np.int64), types, full, {}))
    return rows


def rows_of_network(network: Any, card: ModelCard, pairs: Sequence[Pair]) -> list[PairRow]:
    """Tokenise pairs as the `CrossEncoder` in `network` does: by its own template where it has one."""
    uncut = {"processing_kwargs": {"text": {"truncation": False}}}
    rows = []
    for pair in pairs:
        made = network.preprocess([list(pair)], prompt=card.query_prompt or None)
        ids, types = made.pop("input_ids"), made.pop("token_type_ids", None)
        made.pop("attention_mask", None)
        full = len(ids[0])
        if full >= card.max_tokens:
            full = len(network.preprocess([list(pair)], prompt=card.query_prompt or None, **uncut)["input_ids"][0])
        rows.append(PairRow(ids[0].numpy(), None if types is None else types[0].numpy(), full, made))
    return rows


def _typed(card: ModelCard) -> bool:
    """Whether a network is given token types, as the settings of its tokenizer say."""
    settings = read_object(card.tokenizer_file.parent / "tokenizer_config.json")
    inputs = settings.get("model_input_names")
    if isinstance(inputs, list):
        return "token_type_ids" in inputs
    usual = "BertTokenizer" if card.config["model_type"] == "bert" else ""
    return settings.get("tokenizer_class", usual) in TYPED


class PairScorer(Protocol):
    """Scores rows of pairs."""

    padded: bool
    """Whether every row costs as much as the longest."""

    def encode(self, rows: Sequence[PairRow]) -> Outputs:
        """Compute a score of each row, with what the model applies to it: `scores` [len(rows), 1]."""


def scorer_for(card: ModelCard, activation: Activation, network: nn.Module, device: Device) -> PairScorer:
    """Return what scores with a network that is attached to `device`."""
    if isinstance(network, PackedPairEncoder):
        return PackedPairs(network, activation, device.torch, card.kernel_on(device.kind))
    return PaddedPairs(network, activation, device.torch, card.positions)


class PackedPairs:
    """Scores rows laid end to end; nothing is computed for padding."""

    padded = False

    def __init__(
        self, network: PackedPairEncoder, activation: Activation, device: torch.device, kernel: Kernel = Kernel.HOST
    ) -> None:
        self._network = network
        self._activation = activation
        self._device = device
        self._kernel = kernel

    @torch.inference_mode()
    def encode(self, rows: Sequence[PairRow]) -> Outputs:
        batch = pack([row.ids for row in rows], self._device, self._kernel)
        types = [row.types for row in rows if row.types is not None]
        if types:
            after = np.zeros(filling(batch.tokens), np.int64)
            batch = replace(batch, types=torch.from_numpy(np.concatenate([*types, after])).to(self._device))
        return _applied(self._network.scores(batch), self._activation)


class PaddedPairs:
    """Scores rows by the module graph of sentence-transformers, padded on the side that its tokenizer says."""

    padded = True

    def __init__(self, network: Any, activation: Activation, device: torch.device, limit: int) -> None:
        """`limit` is the longest row that the network takes."""
        self._network = network
        self._activation = activation
        self._device = device
        self._limit = limit

    @torch.inference_mode()
    def encode(self, rows: Sequence[PairRow]) -> Outputs:
        lengths = [len(row) for row in rows]
        longest, even = max(lengths), len(set(lengths)) == 1
        width = longest if even else max(longest, min(self._limit, padded_tokens(1, longest, 0)))
        tokenizer = self._network.tokenizer
        left = tokenizer.padding_side == "left"

        def filled(values: Sequence[Ids], fill: int) -> torch.Tensor:
            table = np.full((len(values), width), fill, np.int64)
            for line, value in zip(table, values, strict=True):
                line[width - len(value) if left else 0 :][: len(value)] = value
            return torch.from_numpy(table).to(self._device)

        features = dict(rows[0].more)
        features["input_ids"] = filled([row.ids for row in rows], int(tokenizer.pad_token_id or 0))
        features["attention_mask"] = filled([np.ones(length, np.int64) for length in lengths], 0)
        types = [row.types for row in rows if row.types is not None]
        if types:
            features["token_type_ids"] = filled(types, int(tokenizer.pad_token_type_id or 0))
        return _applied(self._network(features)["scores"].reshape(len(rows), -1)[:, 0], self._activation)


def _applied(logits: torch.Tensor, activation: Activation) -> Outputs:
    scores = torch.sigmoid(logits.float()) if activation == "sigmoid" else logits.float()
    return Outputs.of({"scores": ScoreRows(scores.cpu().numpy()[:, None])})
