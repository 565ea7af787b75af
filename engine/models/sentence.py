"""What a model tells sentence-transformers and its tokenizer beside its configuration: used, harmless, or refused; and
how many tokens of a text it takes: as its row of the registry says, or as sentence-transformers would cut it.

A table of places ends where it ends. What else a configuration names is the length of the texts of its training, by
which is cut where nobody says another.
"""

import math
import platform
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Any

import msgspec

from interlock.engine.corpus.tokenizer import Built, build, build_bare
from interlock.engine.corpus.tokens import load_tokenizer, sentence_config
from interlock.engine.errors import UnavailableError, UsageError
from interlock.engine.models.assets import ModelSnapshot
from interlock.engine.models.layout import STATIC_TYPE, onnx_of, read_object, shapes_in
from interlock.engine.models.networks.checkpoint import packable
from interlock.engine.models.registry import ModelSpec
from interlock.engine.models.sources import model_cache
from interlock.engine.record.words import several

Settings = Mapping[str, object]
Config = Mapping[str, Any]
FEWEST = 16
"""Tokens of a row, of which less than this might all be special ones."""
USED = ("max_seq_length", "do_lower_case")
UNHEARD = ("unpad_inputs", "backend", "cache_dir")
"""They say how a library computes, and not what."""
PLACES = ("trust_remote_code", "code_revision", "revision", "subfolder", "token", "cache_dir", "local_files_only")
"""sentence-transformers says these itself, whatever a file says."""
KERNELS = ("torch_dtype", "dtype", "attn_implementation")
"""The registry says these."""
HARMLESS = {
    "model": (*PLACES, *KERNELS, "low_cpu_mem_usage", "use_safetensors", "add_pooling_layer"),
    "config": (*PLACES, *KERNELS, "use_cache"),
    "tokenizer": (*PLACES, "use_fast", "padding_side", "clean_up_tokenization_spaces"),
    "text": ("padding", "padding_side", "pad_to_multiple_of", "return_tensors"),
}
GROUPS = {
    **dict.fromkeys(("model_args", "model_kwargs"), "model"),
    **dict.fromkeys(("config_args", "config_kwargs"), "config"),
    **dict.fromkeys(("tokenizer_args", "processor_kwargs"), "tokenizer"),
}
PLAIN = {
    "transformer_task": "feature-extraction",
    "module_output_name": "token_embeddings",
    "modality_config.text.method": "forward",
    "modality_config.text.method_output_name": "last_hidden_state",
}
"""What a model that turns text into vectors says of itself since sentence-transformers 5.4."""
SPARSE = PLAIN | {"transformer_task": "fill-mask", "modality_config.text.method_output_name": "logits"}
"""What a model that weighs terms says of itself."""
CUT_WHOLE = (True, "longest_first")
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


class _Truncation(msgspec.Struct):
    direction: str = "Right"


class _Tokenizer(msgspec.Struct):
    truncation: _Truncation | None = None


def check_sentence(model: str, path: Path, config: Settings, usual: Settings = PLAIN) -> None:
    """Raise UnavailableError for a setting that would change vectors and is not done here; `config` is config.json,
    `usual` what such a model says of itself."""
    file, settings = sentence_config(path)
    for key, value in _unknown(settings, config, usual):
        raise UnavailableError(
            f"model {model}: {file}: {key} is {value!r:.100}, which changes vectors and is not supported"
        )
    side = next((place for place in _sides(path) if place[2] is not None), None)
    if side and side[2] != "right":
        raise UnavailableError(
            f"model {model}: {side[0]}: {side[1]}: expected 'right', got {side[2]!r:.100} (texts "
            "are truncated at the end only)"
        )


def check_whole(model: str, path: Path, dense: bool) -> int | None:
    """Return how many numbers of a vector a model's own settings keep, None for all; `dense` says whether it makes
    vectors of texts. Raises UnavailableError for a model that is not what it says as a whole."""
    file = path / "config_sentence_transformers.json"
    told = read_object(file)
    known = {"document", "query", *group_of(told, "prompts")}
    for key, fits, wanted in (
        ("model_type", lambda said: said == "SentenceTransformer" or not dense, "'SentenceTransformer'"),
        ("default_prompt_name", lambda said: said in known, "the name of a prompt"),
        ("requirements", _met, "versions that are installed"),
        ("__version__", lambda said: isinstance(said, dict), "versions by library"),
    ):
        asked = key in told and (told[key] is not None or key == "model_type")  # null is another type
        if asked and not fits(told[key]):
            raise UnavailableError(f"model {model}: {file}: {key}: expected {wanted}, got {told[key]!r:.100}")
    cut = told.get("truncate_dim")
    if not dense or cut is None:
        return None
    if not isinstance(cut, int) or isinstance(cut, bool) or cut < 1:
        raise UnavailableError(f"model {model}: {file}: truncate_dim is {cut!r:.100}: set it to a width, or null")
    return cut


def _met(requirements: object) -> bool:
    """Whether the libraries that a model asks for are here in the versions that it asks for; what is no version is not
    asked for, as in sentence-transformers."""
    from packaging.specifiers import InvalidSpecifier, SpecifierSet

    for name, wanted in requirements.items() if isinstance(requirements, dict) else ():
        with suppress(InvalidSpecifier):
            asked = SpecifierSet(str(wanted.get("specifier", "") if isinstance(wanted, dict) else wanted))
            try:
                here = platform.python_version() if name == "python" else metadata.version(str(name))
            except metadata.PackageNotFoundError:
                return False
            if not asked.contains(here, prereleases=True):
                return False
    return True


def _unknown(settings: Settings, config: Settings, usual: Settings) -> Iterator[tuple[str, object]]:
    """Keys and values that are neither used nor harmless."""
    for key, value in settings.items():
        if value is None or value == {} or key in USED or key in UNHEARD:
            continue
        if key not in (*GROUPS, "processing_kwargs", "modality_config") or not isinstance(value, dict):
            if usual.get(key) != value:
                yield key, value
        elif key == "modality_config":
            if "message" in value:  # every text becomes one
                yield f"{key}.message", value["message"]
            text = group_of(value, "text")
            for name in ("method", "method_output_name"):
                if usual[place := f"{key}.text.{name}"] != text.get(name):
                    yield place, text.get(name)
        elif key == "processing_kwargs":
            for bucket in ("common", "text"):
                yield from _unfit(f"{key}.{bucket}", group_of(value, bucket), "text", {})
        else:
            yield from _unfit(key, value, GROUPS[key], config if GROUPS[key] == "config" else {})
    if "modality_config" in settings and "module_output_name" not in settings:
        yield "modality_config", settings["modality_config"]


def _unfit(place: str, group: Settings, kind: str, config: Settings) -> Iterator[tuple[str, object]]:
    for key, value in group.items():
        used = key in ("model_max_length", "truncation_side") and kind == "tokenizer"
        same = (key in config and config[key] == value) or (key == "truncation" and value in CUT_WHOLE)
        if not (used or same or key in HARMLESS[kind]):
            yield f"{place}.{key}", value


def _sides(path: Path) -> Iterator[tuple[Path, str, object]]:
    """File, key and value of each word on where texts are cut, the one that outdoes the others first."""
    file, settings = sentence_config(path)
    for group in ("tokenizer_args", "processor_kwargs"):
        yield file, f"{group}.truncation_side", group_of(settings, group).get("truncation_side")
    own = path / "tokenizer_config.json"
    yield own, "truncation_side", read_object(own).get("truncation_side")
    file = path / "tokenizer.json"
    with suppress(msgspec.MsgspecError, UnicodeDecodeError, OSError):  # what is wrong with it is told by its trial
        truncation = msgspec.json.decode(file.read_bytes(), type=_Tokenizer).truncation
        yield file, "truncation.direction", truncation and truncation.direction.lower()


def group_of(settings: Settings, key: str) -> Settings:
    value = settings.get(key)
    return value if isinstance(value, dict) else {}


def tokenizer_of(spec: ModelSpec, path: Path, config: Config, *, plain: bool = False) -> Built:
    """Build the tokenizer of the network in `path`. Raises UnavailableError where texts would not be given to it as
    they are here; `plain` says that it has no `modules.json`."""
    kept = model_cache() / "tokenizers"
    if config.get("model_type") == STATIC_TYPE:
        return build_bare(spec.key, path, kept)
    built = build(spec.key, path, config, kept)
    if built.side != "right":
        raise UnavailableError(
            f"model {spec.key}: {path / 'tokenizer_config.json'}: truncation_side: expected 'right', got "
            f"{built.side!r} (texts are truncated at the end only)"
        )
    if built.chat and plain:
        raise UnavailableError(
            f"model {spec.key}: {path} has a chat template and no modules.json: texts would become messages, which "
            "is not supported: use another model"
        )
    return built


def positions_of(snapshot: ModelSnapshot, path: Path, config: Config) -> int | None:
    """Find the longest row that the network itself takes; None where it has no table that ends."""
    kind = config.get("model_type")
    onnx = onnx_of(snapshot.path)  # nobody looks into it: it is taken to have a table
    tensors = (name for file in snapshot.weights for name in shapes_in(file)) if not onnx else ()
    placed = onnx or packable(config) or kind in PLACED_UNSAVED
    if not placed and not any(map(PLACED.search, tensors)):
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
    limit = spec.max_tokens or min(first or own, hard or UNBOUNDED)
    if limit < FEWEST:
        around = load_tokenizer(tokenizer.file).num_special_tokens_to_add(is_pair=spec.kind == "scores")
        if limit <= around:
            raise UnavailableError(
                f"model {spec.key} takes at most {several(limit, 'token')} ({path}), and its special ones are "
                f"{around}, which leaves nothing of a text: set max_seq_length there to more"
            )
    return limit


def _trained(file: Path, config: Config) -> int | None:
    """The length that the configuration names, by which sentence-transformers cuts where nothing else is said."""
    own = packable(config) or config.get("model_type") == STATIC_TYPE
    if (said := whole(file, config, "max_position_embeddings")) or own:
        return said
    from transformers import CONFIG_MAPPING

    with suppress(Exception):  # what is wrong with a configuration is told when its network is made
        usual = CONFIG_MAPPING[str(config.get("model_type"))].from_dict(dict(config))
        return whole(file, {"_": getattr(usual, "max_position_embeddings", None)}, "_")
    return None


def dense_width(file: Path, read: int | None) -> int:
    """The numbers that a Dense layer gives; `read` is how many come to it, where that is known."""
    taken = whole(file, told := read_object(file), "in_features")
    if read and taken not in (None, read):
        raise UnavailableError(f"{file}: in_features is {taken}, but {read} numbers come to it: use another model")
    if (out := whole(file, told, "out_features")) is None:
        raise UnavailableError(f"{file} lacks the vector width (out_features)")
    return out


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
    if isinstance(said, int) and said < 1:  # of 0 sentence-transformers cuts nothing
        raise UnavailableError(f"{file}: max_seq_length is {said}: set it to the tokens that a text may have, or null")
    yield file, "max_seq_length", said
