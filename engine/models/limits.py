"""How many tokens of a text a model takes: as its row of the registry says, or as sentence-transformers would cut it.

A table of places ends where it ends. What else a configuration names is the length of the texts of its training, by
which is cut where nobody says another.
"""

import math
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from interlock.engine.corpus.tokenizer import Built
from interlock.engine.corpus.tokens import sentence_config
from interlock.engine.errors import UnavailableError, UsageError
from interlock.engine.models.assets import ModelSnapshot
from interlock.engine.models.layout import shapes_in
from interlock.engine.models.networks.checkpoint import packable
from interlock.engine.models.registry import ModelSpec
from interlock.engine.models.sentence import group_of

Config = Mapping[str, Any]
PADDED_FIRST = (
    *("roberta", "roberta-prelayernorm", "xlm-roberta", "xlm-roberta-xl", "xmod", "camembert", "data2vec-text"),
    *("ibert", "longformer", "mpnet"),
)
UNBOUNDED = 1 << 20
"""The limit of a model that says none, and whose network has none."""
PLACED = re.compile(r"(^|[._])(position_embeddings?|embed_positions|positions?_embed|pos_embed(ding)?s?|wpe)\.weight$")
"""Tables of places, beyond whose end a network computes nothing: others say only how long the texts of their training
were."""
PLACED_UNSAVED = ("codegen", "ctrl", "gptj")
"""Architectures with such a table that is not among their weights."""


def positions_of(snapshot: ModelSnapshot, path: Path, config: Config) -> int | None:
    """Find the longest row that the network itself takes; None where it has no table that ends."""
    kind = config.get("model_type")
    tensors = (name for file in snapshot.weights for name in shapes_in(file))
    if not packable(config) and kind not in PLACED_UNSAVED and not any(map(PLACED.search, tensors)):
        return None
    positions = whole(path / "config.json", config, "max_position_embeddings", "n_positions")
    if positions is not None and kind in PADDED_FIRST:  # the positions up to padding's id belong to padding
        pad = 1 if kind == "mpnet" else config.get("pad_token_id")
        positions -= (pad if isinstance(pad, int) else 1) + 1
    return positions


def max_tokens_of(spec: ModelSpec, path: Path, config: Config, tokenizer: Built, hard: int | None) -> int:
    """Find the longest row that the model takes, special tokens included: as its row of the registry says, or as
    sentence-transformers reads its files; `hard` is where its network ends."""
    file = path / "config.json"
    if spec.max_tokens and hard and spec.max_tokens > hard:
        raise UsageError(
            f"[models.{spec.key}] max_tokens is {spec.max_tokens}, but the model takes at most {hard} tokens ({file})"
        )
    told = []
    for place, key, value in _told(path):  # no limit is written by some tokenizers as a number beyond all bounds
        if not isinstance(value, float) or math.isfinite(value):
            told.append(whole(place, {key: int(value) if isinstance(value, float) else value}, key))
    first = next(filter(None, told), None)
    own = min(filter(None, (tokenizer.limit, _trained(file, config))), default=UNBOUNDED)
    return spec.max_tokens or min(first or own, hard or UNBOUNDED)


def _trained(file: Path, config: Config) -> int | None:
    """The length that the configuration names, by which sentence-transformers cuts where nothing else is said."""
    if (said := whole(file, config, "max_position_embeddings")) or packable(config):
        return said
    from transformers import CONFIG_MAPPING

    with suppress(Exception):  # what is wrong with a configuration is told when its network is made
        usual = CONFIG_MAPPING[str(config.get("model_type"))].from_dict(dict(config))
        return whole(file, {"_": getattr(usual, "max_position_embeddings", None)}, "_")
    return None


def whole(file: Path, config: Config, *names: str) -> int | None:
    """The first of these settings that is given: a whole number; 0 and -1 stand for none."""
    for name in names:
        value = config.get(name)
        if value is not None and (isinstance(value, bool) or not isinstance(value, int)):
            raise UnavailableError(f"{file}: {name}: expected a whole number, got {value!r}")
        if value is not None and value > 0:
            return value
    return None


def _told(path: Path) -> Iterator[tuple[Path, str, object]]:
    """Yield file, key and value of each limit on tokens that sentence-transformers is told, the one that outdoes the
    others first; a value may be None."""
    file, settings = sentence_config(path)
    for group in ("tokenizer_args", "processor_kwargs"):
        yield file, f"{group}.model_max_length", group_of(settings, group).get("model_max_length")
    said = settings.get("max_seq_length")
    if isinstance(said, int) and said < 0:
        raise UnavailableError(f"{file}: max_seq_length is {said}: set it to the tokens that a text may have, or null")
    yield file, "max_seq_length", said
