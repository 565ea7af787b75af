"""What a model tells sentence-transformers and its tokenizer beside its configuration: used, harmless, or refused."""

import hashlib
import json
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from importlib import metadata
from pathlib import Path

import msgspec

from interlock.engine.corpus.tokens import sentence_config
from interlock.engine.errors import InterlockError, UnavailableError
from interlock.engine.models.layout import read_object
from interlock.engine.models.sources import model_cache
from interlock.engine.record import atomic, words

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


def check_whole(model: str, path: Path, dim: int) -> None:
    """Raise UnavailableError where the model's `dim` numbers are to be cut by its own settings."""
    file = path / "config_sentence_transformers.json"
    cut = read_object(file).get("truncate_dim")
    if cut is not None and not (isinstance(cut, int) and cut >= dim):
        raise UnavailableError(
            f"model {model}: {file}: truncate_dim is {cut!r:.100}, but its vectors have {dim} "
            f"dimensions: remove truncate_dim, set matryoshka in [models.{model}] and use --dim"
        )


def limits_of(path: Path) -> Iterator[tuple[Path, str, object]]:
    """Yield file, key and value of each limit on tokens, the one that outdoes the others first; a value may be None."""
    file, settings = sentence_config(path)
    for group in ("tokenizer_args", "processor_kwargs"):
        yield file, f"{group}.model_max_length", _group(settings, group).get("model_max_length")
    yield file, "max_seq_length", settings.get("max_seq_length")
    own = path / "tokenizer_config.json"
    for key in ("model_max_length", "max_len"):
        yield own, key, read_object(own).get(key)


def _unknown(settings: Settings, config: Settings, usual: Settings) -> Iterator[tuple[str, object]]:
    """Keys and values that are neither used nor harmless."""
    for key, value in settings.items():
        if value is None or value == {} or key in USED or key in UNHEARD:
            continue
        if key not in (*GROUPS, "processing_kwargs", "modality_config") or not isinstance(value, dict):
            if usual.get(key) != value:
                yield key, value
        elif key == "modality_config":
            text = _group(value, "text")
            for name in ("method", "method_output_name"):
                if usual[place := f"{key}.text.{name}"] != text.get(name):
                    yield place, text.get(name)
        elif key == "processing_kwargs":
            for bucket in ("common", "text"):
                yield from _unfit(f"{key}.{bucket}", _group(value, bucket), "text", {})
        else:
            yield from _unfit(key, value, GROUPS[key], config if GROUPS[key] == "config" else {})


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
        yield file, f"{group}.truncation_side", _group(settings, group).get("truncation_side")
    own = path / "tokenizer_config.json"
    yield own, "truncation_side", read_object(own).get("truncation_side")
    file = path / "tokenizer.json"
    with suppress(msgspec.MsgspecError, UnicodeDecodeError, OSError):  # what is wrong with it is told by its trial
        truncation = msgspec.json.decode(file.read_bytes(), type=_Tokenizer).truncation
        yield file, "truncation.direction", truncation and truncation.direction.lower()


def _group(settings: Settings, key: str) -> Settings:
    value = settings.get(key)
    return value if isinstance(value, dict) else {}


TRIAL_VERSION = 1
SECONDS = 10
"""Processor time that a trial may take; a large tokenizer needs one or two."""
PATIENCE = 12 * SECONDS
"""Seconds that it may last: one that sleeps, or waits for itself, takes no processor time."""
MEMORY = 4 << 30
TRIAL = """
import json, resource, sys
path, seconds, memory = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 1))
resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
from tokenizers import Tokenizer
signs = "aA0 .-_\\n\\t\\u00e9\\u5b57\\u200b\\U0001f600"
plain = "The quick brown fox (it jumps, 12.5 times) over the lazy dog. "
texts = ["a", plain * 40, *(sign * 200 + "!" for sign in signs)]
def grown(made, text):
    if made > 100 * len(text):
        raise ValueError(f"it turns {len(text)} characters into {made}")
try:
    tokenizer = Tokenizer.from_file(path)
    tokenizer.no_truncation()
    tokenizer.no_padding()
    tokenizer.encode("a", add_special_tokens=True)
    for text in texts:
        if tokenizer.normalizer:
            grown(len(tokenizer.normalizer.normalize_str(text)), text)
        try:
            found = tokenizer.encode_batch_fast([text], add_special_tokens=False)
        except Exception:  # it may still do for the texts that there are
            if text == "a":
                raise
        else:
            grown(len(found[0].ids), text)
    print(json.dumps(""))
except BaseException as error:
    print(json.dumps(" ".join(str(error).split())[:500] or type(error).__name__))
"""


def check_tokenizer(model: str, file: Path) -> None:
    """Raise UnavailableError, naming model and file, for a tokenizer that fails, does not end or takes too much memory.

    A file that passed before is only hashed; a new one costs the start of a bare interpreter.
    """
    try:
        about = f"{TRIAL_VERSION} {metadata.version('tokenizers')} {atomic.sha256_of(file)}"
        passed = model_cache() / "tokenizers" / hashlib.sha256(about.encode()).hexdigest()
        if passed.exists():
            return
        fault = _tried(file)
    except OSError as error:
        raise UnavailableError(f"model {model}: cannot read {file}: {error.strerror}") from error
    if fault:
        raise UnavailableError(f"model {model}: cannot use {file} as a tokenizer: {fault}")
    with suppress(InterlockError):  # it can be tried again
        atomic.write_bytes(passed, b"")


def _tried(file: Path) -> str:
    """What is wrong with a tokenizer, if anything, as a process of its own found it within its limits."""
    trial = [sys.executable, "-P", "-c", TRIAL, str(file), str(SECONDS), str(MEMORY)]
    with subprocess.Popen(  # noqa: S603  # our own script, with the file as its argument
        trial, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as process:
        answer = _answer(process)
    if answer is None:
        return f"timed out after {PATIENCE} s"
    if process.returncode == -signal.SIGXCPU:
        return f"timed out after {SECONDS} s of CPU time"
    try:
        return str(json.loads(answer))
    except ValueError:
        limit = words.human_bytes(MEMORY)
        return f"its process ended with {process.returncode}: it needs more than {limit}, crashes it, or was killed"


def _answer(process: subprocess.Popen[bytes]) -> bytes | None:
    """What a trial wrote; None where it had to be killed. Waits a second at a time: being stopped costs one of them."""
    try:
        for _ in range(PATIENCE):
            with suppress(subprocess.TimeoutExpired):
                return process.communicate(timeout=1)[0]
        return None
    finally:
        process.kill()
