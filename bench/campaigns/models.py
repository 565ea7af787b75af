"""Models as untrusted input: tokenizers, configurations, module lists and weights of any structure.

Each is embedded with, or refused in words with the exit code for it, in bounded time, and nothing of it is executed.
"""

import json
import random
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from bench.campaigns.damage import WAYS
from bench.campaigns.field import PLAIN
from bench.campaigns.process import carry_out, wrongs
from bench.campaigns.tally import Campaign, Report, Room
from tests import builders

PATIENCE = 60.0
"""Seconds within which even the most hostile model is refused."""
CODES = (0, 1, 2, 5)
MARK = "PWNED"
Change = Callable[[Path, random.Random], object]
HOSTILE_WORDS = ("os.system", "subprocess.Popen", "builtins.eval", "../../x", "\u202e", "", "a" * 5000)
HOSTILE_NUMBERS = (0, -1, 1, 7, 1 << 31, 1 << 63, 10**39, 1e400, 0.5, float("nan"))


def _json(name: str, change: Callable[[Any, random.Random], object]) -> Change:
    def way(model: Path, rng: random.Random) -> None:
        document = json.loads((model / name).read_text())
        change(document, rng)
        (model / name).write_text(json.dumps(document))

    return way


def _set(**values: object) -> Callable[[Any, random.Random], object]:
    return lambda document, _: document.update(values)


def _fuzzed(times: int) -> Callable[[Any, random.Random], object]:
    """Values anywhere become others, go, or change places."""

    def change(document: Any, rng: random.Random) -> None:
        for _ in range(rng.randrange(1, times + 1)):
            holder, key = rng.choice(list(_places(document)) or [(document, "x")])
            kind = rng.randrange(4)
            if kind == 0 and isinstance(holder, dict):
                holder.pop(key, None)
            elif kind == 1:
                holder[key] = rng.choice((None, True, [], {}, [None], {"type": "x"}, {"type": "Sequence"}))
            else:
                holder[key] = rng.choice(HOSTILE_NUMBERS if kind == 2 else HOSTILE_WORDS)

    return change


def _places(document: Any) -> list[tuple[Any, Any]]:
    """Every place but those of the vocabulary, of which two are enough."""
    keys = (
        list(document)
        if isinstance(document, dict)
        else list(range(len(document)))
        if isinstance(document, list)
        else []
    )
    keys = keys[:2] if len(keys) > 60 else keys
    return [(document, key) for key in keys] + [place for key in keys for place in _places(document[key])]


def _header(change: Callable[[dict[str, Any], random.Random], object]) -> Change:
    """Change the header of the weights and keep their bytes."""

    def way(model: Path, rng: random.Random) -> None:
        file = model / "model.safetensors"
        data = file.read_bytes()
        size = struct.unpack("<Q", data[:8])[0]
        header = json.loads(data[8 : 8 + size])
        change(header, rng)
        words = json.dumps(header).encode()
        file.write_bytes(struct.pack("<Q", len(words)) + words + data[8 + size :])

    return way


def _tensor(change: Callable[[dict[str, Any], random.Random], object]) -> Change:
    def one(header: dict[str, Any], rng: random.Random) -> None:
        change(header[rng.choice([name for name in header if name != "__metadata__"])], rng)

    return _header(one)


def _size(number: int) -> Change:
    def way(model: Path, _: random.Random) -> None:
        file = model / "model.safetensors"
        file.write_bytes(struct.pack("<Q", number) + file.read_bytes()[8:])

    return way


def _values(value: float) -> Change:
    """Weights of a tensor, or of all, become this value."""

    def way(model: Path, rng: random.Random) -> None:
        file = model / "model.safetensors"
        data = bytearray(file.read_bytes())
        size = struct.unpack("<Q", data[:8])[0]
        start = 8 + size + (0 if rng.random() < 0.3 else rng.randrange(0, len(data) - size - 100) // 4 * 4)
        end = len(data) if rng.random() < 0.3 else min(len(data), start + 4 * rng.choice((1, 100)))
        count = (end - start) // 4
        data[start : start + 4 * count] = np.full(count, value, np.float32).tobytes()
        file.write_bytes(data)

    return way


def _damaged(name: str) -> Change:
    return lambda model, rng: WAYS[rng.choice(list(WAYS))](model / name, rng)


def _with_code(model: Path, rng: random.Random) -> None:
    """Code beside the model that its configuration names."""
    (model / "modeling_x.py").write_text(f"open({str(model.parent / MARK)!r}, 'w')\nclass X: pass\n")
    config = json.loads((model / "config.json").read_text())
    config["auto_map"] = {"AutoConfig": "modeling_x.X", "AutoModel": "modeling_x.X"}
    if rng.random() < 0.5:
        config["model_type"] = "x"
    (model / "config.json").write_text(json.dumps(config))


def _pickled(model: Path, _: random.Random) -> None:
    """No weights but a pickle that would execute."""
    (model / "model.safetensors").unlink()
    command = f"touch {model.parent / MARK}"
    (model / "pytorch_model.bin").write_bytes(b"cos\nsystem\n(S'" + command.encode() + b"'\ntR.")


KINDS = (
    "sentence_transformers.util.os.system",
    "modeling_x.X",
    "os.system",
    "sentence_transformers.models.Dense",
    5,
)


def _modules(model: Path, rng: random.Random) -> None:
    modules = json.loads((model / "modules.json").read_text())
    path = rng.choice(("", "2_X", "../.."))
    modules.insert(rng.randrange(3), {"idx": 2, "name": "2", "path": path, "type": rng.choice(KINDS)})
    (model / "modules.json").write_text(json.dumps(modules))


TYPES = ("I64", "F16", "F64", "BOOL", "x", 5)
SHAPES = ([], [1], [1 << 40], [-1], None, [2, 2])
OFFSETS = ([0, 4], [0, 1 << 60], [8, 4], [-4, 0], None)
SLOW = {"type": "Split", "pattern": {"Regex": "(a+)+$b"}, "behavior": "Removed", "invert": False}
SIZES = ("num_attention_heads", "num_hidden_layers", "hidden_size", "vocab_size")
BAD_MAP = {"type": "Precompiled", "precompiled_charsmap": "AAAA"}
REPLACE = {"type": "Replace", "pattern": {"String": ""}, "content": "x"}
GROWING = {"type": "Replace", "pattern": {"Regex": "."}, "content": "0123456789"}
TOKENIZER = "tokenizer.json"
CHANGES: dict[str, Change] = {
    "tokenizer fuzzed": _json(TOKENIZER, _fuzzed(1)),
    "tokenizer fuzzed in places": _json(TOKENIZER, _fuzzed(4)),
    "tokenizer fuzzed again": _json(TOKENIZER, _fuzzed(2)),
    "tokenizer with a bad map": _json(TOKENIZER, _set(normalizer=BAD_MAP)),
    "tokenizer with a slow pattern": _json(TOKENIZER, _set(pre_tokenizer=SLOW)),
    "tokenizer that replaces nothing": _json(TOKENIZER, _set(normalizer=REPLACE)),
    "tokenizer that grows texts": _json(TOKENIZER, _set(normalizer={"type": "Sequence", "normalizers": [GROWING] * 6})),
    "tokenizer that cuts by 0": _json(TOKENIZER, _set(pre_tokenizer={"type": "FixedLength", "length": 0})),
    "tokenizer without its unknown": _json(TOKENIZER, lambda document, _: document["model"].update(unk_token="gone")),
    "tokenizer with foreign ids": _json(
        TOKENIZER, lambda document, rng: document["model"]["vocab"].update(the=rng.choice((10**6, 1 << 32, 400)))
    ),
    "tokenizer damaged": _damaged(TOKENIZER),
    "config fuzzed": _json("config.json", _fuzzed(1)),
    "config fuzzed in places": _json("config.json", _fuzzed(3)),
    "config damaged": _damaged("config.json"),
    "config of hostile sizes": _json(
        "config.json",
        lambda document, rng: document.update(
            {rng.choice(SIZES): rng.choice(HOSTILE_NUMBERS)}
        ),
    ),
    "config with code": _with_code,
    "modules": _modules,
    "modules fuzzed": _json("modules.json", _fuzzed(2)),
    "modules damaged": _damaged("modules.json"),
    "pooling fuzzed": _json("1_Pooling/config.json", _fuzzed(2)),
    "sentence_bert_config damaged": _damaged("sentence_bert_config.json"),
    "a pickle for weights": _pickled,
    "weights damaged": _damaged("model.safetensors"),
    "header of no size": _size(0),
    "header of a huge size": _size(1 << 62),
    "header a little longer": _size(1 << 20),
    "header fuzzed": _header(lambda header, rng: _fuzzed(2)(header, rng)),
    "tensor of another type": _tensor(lambda each, rng: each.update(dtype=rng.choice(TYPES))),
    "tensor of another shape": _tensor(lambda each, rng: each.update(shape=rng.choice(SHAPES))),
    "tensor elsewhere": _tensor(lambda each, rng: each.update(data_offsets=rng.choice(OFFSETS))),
    "a tensor less": _header(lambda header, rng: header.pop(rng.choice(list(header)))),
    "weights of NaN": _values(float("nan")),
    "weights without end": _values(float("inf")),
    "weights of nothing": _values(0.0),
    "weights too large": _values(3e38),
}  # fmt: skip


def trial(room: Room) -> Report:
    """Run with one hostile model of two."""
    name = list(CHANGES)[room.number % len(CHANGES)]
    models = room.place / "models"
    shutil.copytree(room.field.place / "models", models)
    hostile = room.rng.choice(("tiny-a", "tiny-b"))
    CHANGES[name](models / hostile, room.rng)
    config = builders.toml(
        room.place / "i.toml", {each: {"source": str(models / each)} for each in ("tiny-a", "tiny-b")}
    )
    command = room.field.command(room.run(), PLAIN)
    command[command.index("--config") + 1] = config
    outcome = carry_out(command, room.place, patience=PATIENCE)
    report = Report()
    report.tried.update(["hostile models", f"{name}", f"ended with {outcome.code}"])
    report.wrong += wrongs(outcome, codes=CODES)
    if (models / MARK).exists() or (room.place / MARK).exists():
        report.wrong.append("its code was executed")
    report.wrong = [f"{hostile}, {name}: {each}" for each in report.wrong]
    return report


CAMPAIGN = Campaign("models", trial, 1050, "tokenizers, configurations and weights of any structure")
