"""What a model tells sentence-transformers and its tokenizer beside its configuration: used, harmless, or refused."""

import platform
from collections.abc import Iterator, Mapping
from contextlib import suppress
from importlib import metadata
from pathlib import Path

import msgspec

from interlock.engine.corpus.tokens import sentence_config
from interlock.engine.errors import UnavailableError
from interlock.engine.models.layout import read_object

Settings = Mapping[str, object]
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


def check_whole(model: str, path: Path, dim: int, dense: bool) -> None:
    """Raise UnavailableError for a model that is not what it says as a whole, or whose `dim` numbers its own
    settings cut; `dense` says whether it makes vectors of texts."""
    file = path / "config_sentence_transformers.json"
    told = read_object(file)
    known = {"document", "query", *group_of(told, "prompts")}
    for key, fits, wanted in (
        ("model_type", lambda said: said == "SentenceTransformer" or not dense, "'SentenceTransformer'"),
        ("default_prompt_name", lambda said: said in known, "the name of a prompt"),
        ("requirements", _met, "versions that are installed"),
        ("__version__", lambda said: isinstance(said, dict), "versions by library"),
    ):
        if told.get(key) is not None and not fits(told[key]):
            raise UnavailableError(f"model {model}: {file}: {key}: expected {wanted}, got {told[key]!r:.100}")
    cut = told.get("truncate_dim")
    if cut is not None and not (isinstance(cut, int) and cut >= dim):
        raise UnavailableError(
            f"model {model}: {file}: truncate_dim is {cut!r:.100}, but its vectors have {dim} "
            f"dimensions: remove truncate_dim, set matryoshka in [models.{model}] and use --dim"
        )


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


def check_widths(file: Path, told: Mapping[str, object]) -> None:
    """Raise UnavailableError for the width of a pooling that is no number, which sentence-transformers counts with."""
    for name in ("embedding_dimension", "word_embedding_dimension"):
        if not isinstance(told.get(name, 0), int):
            raise UnavailableError(f"{file}: {name} is {told[name]!r:.100}: set it to the width of the vectors")
