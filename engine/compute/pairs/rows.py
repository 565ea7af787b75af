"""Pairs of a query and a text as rows of token ids, as their cross-encoder wants them; and how they are scored.

A row is [tokens], or with token types [tokens, 2]: its ids and its types. It is cut where it is longer than the model
takes, the longer of its two texts first (`longest_first`), as `CrossEncoder` of sentence-transformers does it. Each
distinct text is tokenised once, whatever the number of its pairs.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch
from tokenizers import Encoding
from torch import nn

from interlock.engine.compute.encoder import Apart, Encoder, Ids
from interlock.engine.compute.parts.dense import ScoreRows
from interlock.engine.compute.parts.outputs import Outputs
from interlock.engine.corpus.tokens import (
    EVERY,
    Lengths,
    Specials,
    Texts,
    Tokenised,
    encoded,
    in_time,
    load_tokenizer,
    naming,
    translated,
)
from interlock.engine.corpus.tokens import Ids as StoredIds
from interlock.engine.errors import UnavailableError
from interlock.engine.gpu.device import Device
from interlock.engine.models.card import ModelCard
from interlock.engine.models.layout import modules_of
from interlock.engine.models.memory import HeadLaw, Law, law_for
from interlock.engine.models.networks.attention import ROTARY
from interlock.engine.models.networks.batching import Batching
from interlock.engine.models.networks.kernels import Kernel, filling, pack, padded_tokens
from interlock.engine.models.networks.network import PackedPairEncoder
from interlock.engine.models.scoring import ANSWER, Activation

Pair = tuple[str, str]


class PairRows(Tokenised):
    """Pairs in memory, each as its model is given it."""

    def __init__(self, rows: Sequence[Ids], full_lengths: Sequence[int]) -> None:
        """`full_lengths` count the tokens of each pair if it were not cut, special ones included."""
        super().__init__(np.asarray(full_lengths, np.int64), Specials((), ()))
        self._rows = rows

    def lengths(self, limit: int, texts: Texts = EVERY) -> Lengths:
        return np.array([len(row) for row in self._rows], np.int64)[texts]

    def truncated(self, limit: int, texts: Texts = EVERY) -> Lengths:
        return self.full_lengths[texts] - self.lengths(limit, texts)

    def stored(self, text: int) -> StoredIds:
        return self._rows[text].astype(np.uint32)

    def row(self, text: int, limit: int) -> npt.NDArray[np.int64]:
        return self._rows[text]


def pair_law(card: ModelCard, device_kind: str) -> Law:
    """Estimate the law of a cross-encoder; a language model gives the logits of one token for each row."""
    law = law_for(card, device_kind)
    if ANSWER not in [module.kind for module in modules_of(card.snapshot.path)]:
        return law
    size = 2 if device_kind == "sim" or card.dtype != "float32" else 4
    words, width = int(card.config["vocab_size"]), int(card.config["hidden_size"])
    return replace(law, head=HeadLaw(0, 2.0 * width * size, 0.0, 0, row=float(words * size)))


def rows_of_texts(card: ModelCard, pairs: Sequence[Pair]) -> PairRows:
    """Tokenise pairs by the `tokenizer.json` of a card. Raises UnavailableError for what the tokenizer cannot take."""
    with naming([card.key], card.tokenizer_file):
        tokenizer = load_tokenizer(card.tokenizer_file)
        texts = list(dict.fromkeys(text for pair in pairs for text in (card.query_prompt + pair[0], pair[1])))
        known: dict[str, Encoding] = dict(zip(texts, encoded(tokenizer, texts), strict=True))
        tokenizer.enable_truncation(card.max_tokens, strategy="longest_first")
        specials = tokenizer.num_special_tokens_to_add(is_pair=True)
        typed = card.tokenizer is not None and card.tokenizer.types is not None  # the network is given token types
        rows, full = [], []
        for query, text in pairs:
            first, second = known[card.query_prompt + query], known[text]
            with translated():
                whole = tokenizer.post_process(first, second)
            rows.append(np.array([whole.ids, whole.type_ids]).T if typed else np.asarray(whole.ids, np.int64))
            full.append(len(first.ids) + len(second.ids) + specials)
    return PairRows(rows, full)


def rows_of_network(network: Any, card: ModelCard, pairs: Sequence[Pair]) -> PairRows:
    """Tokenise pairs as the `CrossEncoder` in `network` does: by its own template where it has one."""
    prompt, uncut = card.query_prompt or None, {"processing_kwargs": {"text": {"truncation": False}}}

    def tokenised() -> PairRows:
        rows, full = [], []
        for pair in pairs:
            try:
                made = network.preprocess([list(pair)], prompt=prompt)
            except ValueError as error:  # a template that does not take pairs: pages of advice follow
                raise UnavailableError(str(error).partition(". ")[0]) from error
            ids, types = made["input_ids"][0].numpy(), made.get("token_type_ids")
            rows.append(ids if types is None else np.stack([ids, types[0].numpy()], axis=1))
            whole = len(ids) < card.max_tokens
            full.append(len(ids if whole else network.preprocess([list(pair)], prompt=prompt, **uncut)["input_ids"][0]))
        return PairRows(rows, full)

    with naming([card.key], card.snapshot.path):  # its template is the model's own, whatever it did on trial
        return in_time(tokenised, [text for pair in pairs for text in pair])


def scorer_for(activation: Activation, card: ModelCard, network: nn.Module, device: Device) -> Encoder:
    """Return what scores with a network that is attached to `device`: `scores` [rows, 1], with what the model applies
    to them."""
    if isinstance(network, PackedPairEncoder):
        return PackedPairs(network, activation, device.torch, card.kernel_on(device.kind))
    padded = PaddedPairs(network, activation, device.torch, card.positions)
    # A network that counts places from the left sees how far padding on the left pushes a row.
    moved = padded.left and card.config.get("model_type") not in ROTARY
    batching = Batching.EVEN if moved and card.batching is Batching.MIXED else card.batching
    return padded if batching is Batching.MIXED else Apart(padded, batching)


def _ids_and_types(rows: Sequence[Ids]) -> tuple[Sequence[Ids], Sequence[Ids]]:
    """The ids of rows, and their types where they have some."""
    return ([row[:, 0] for row in rows], [row[:, 1] for row in rows]) if rows[0].ndim > 1 else (rows, [])


@dataclass(frozen=True)
class PackedPairs:
    """Scores rows laid end to end; nothing is computed for padding."""

    padded: ClassVar[bool] = False
    network: PackedPairEncoder
    activation: Activation
    device: torch.device
    kernel: Kernel = Kernel.HOST

    @torch.inference_mode()
    def encode(self, rows: Sequence[Ids]) -> Outputs:
        ids, types = _ids_and_types(rows)
        batch = pack(ids, self.device, self.kernel)
        if types:
            after = np.zeros(filling(batch.tokens), np.int64)
            batch = replace(batch, types=torch.from_numpy(np.concatenate([*types, after])).to(self.device))
        return _applied(self.network.scores(batch), self.activation)


class PaddedPairs:
    """Scores rows by the module graph of sentence-transformers, padded on the side that its tokenizer says."""

    padded = True

    def __init__(self, network: Any, activation: Activation, device: torch.device, limit: int) -> None:
        """`limit` is the longest row that the network takes."""
        self._network = network
        self._activation = activation
        self._device = device
        self._limit = limit
        self.left = network.tokenizer.padding_side == "left"
        made = network.preprocess([["a", "b"]])
        self._more = {
            name: made[name] for name in made if name not in ("input_ids", "attention_mask", "token_type_ids")
        }
        """What sentence-transformers hands to its network beside the rows, the same for every one."""

    @torch.inference_mode()
    def encode(self, rows: Sequence[Ids]) -> Outputs:
        lengths = [len(row) for row in rows]
        longest, even = max(lengths), len(set(lengths)) == 1
        width = longest if even else max(longest, min(self._limit, padded_tokens(1, longest, 0)))
        tokenizer = self._network.tokenizer

        def filled(values: Sequence[Ids], fill: int) -> torch.Tensor:
            table = np.full((len(values), width), fill, np.int64)
            for line, value in zip(table, values, strict=True):
                line[width - len(value) if self.left else 0 :][: len(value)] = value
            return torch.from_numpy(table).to(self._device)

        ids, types = _ids_and_types(rows)
        features = dict(self._more)
        features["input_ids"] = filled(ids, int(tokenizer.pad_token_id or 0))
        features["attention_mask"] = filled([np.ones(length, np.int64) for length in lengths], 0)
        if types:
            features["token_type_ids"] = filled(types, int(tokenizer.pad_token_type_id or 0))
        return _applied(self._network(features)["scores"].reshape(len(rows), -1)[:, 0], self._activation)


def _applied(logits: torch.Tensor, activation: Activation) -> Outputs:
    scores = torch.sigmoid(logits.float()) if activation == "sigmoid" else logits.float()
    return Outputs.of({"scores": ScoreRows(scores.cpu().numpy()[:, None])})
