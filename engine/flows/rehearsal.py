"""A rehearsal: a real run over models without weights on GPUs that are not there, with every trouble in it.

The engine is the real one, from the chunks on disk to files and store. Models, devices and the seconds that they take
are simulated, and vectors mean nothing; so every model, collection and store says so by its name. No network is asked.
"""

import hashlib
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

from interlock.engine.compute.controls import Controls
from interlock.engine.errors import UsageError
from interlock.engine.record import atomic
from interlock.engine.record import events as ev
from interlock.engine.record.facts import REHEARSAL
from interlock.engine.settings import Configuration

if TYPE_CHECKING:
    from interlock.engine.compute.context import Backend
    from interlock.engine.compute.encoder import Encoder
    from interlock.engine.flows.computing import Clusters
    from interlock.engine.flows.run import Run
    from interlock.engine.models.assets import Policy
    from interlock.engine.models.card import ModelCard
    from interlock.engine.models.registry import ModelSpec

MARK = "sim-"
"""What the name of every model begins with, and so its vectors, files and columns."""
DEFAULTS: dict[str, Any] = {
    "devices": "sim:2x4GiB",
    "ceiling": 3 << 30,
    "roster": (("sim-bge-m3", 3.0), ("sim-bge-large-en", 2.0), ("sim-mpnet-base", 1.0)),
    "dim": 256,
    "faults": ("attach@1:1", "oom@0:200", "oom@1:655", "other@1:2680MiB:655:715", "leak@0:46MiB", "lose@1:2300"),
    "max_refused": "1%,files",
}
"""Settings of a rehearsal where nothing else was said; vectors are cut to be small; the faults are for two devices."""
OPERATIONS = 3e12
"""Floating-point operations that a simulated GPU does in a second."""
READ, RESOLVED = 1 << 30, 0.6
"""Bytes of weights that are read in a second, and seconds until a model's files are found."""
BATCH_TOKENS = 8192


def _encoder(kind: str, width: int, layers: int, heads: int, words: int, positions: int) -> dict[str, Any]:
    return {
        "model_type": kind, "hidden_act": "gelu", "hidden_size": width, "intermediate_size": 4 * width,
        "num_attention_heads": heads, "num_hidden_layers": layers, "vocab_size": words,
        "max_position_embeddings": positions, "type_vocab_size": 1 if kind == "xlm-roberta" else 2,
        "layer_norm_eps": 1e-5, "pad_token_id": 0 if kind == "bert" else 1,
    }  # fmt: skip


CONFIGS = {
    "sim-bge-m3": _encoder("xlm-roberta", 1024, 24, 16, 250_002, 8194),
    "sim-bge-large-en": _encoder("bert", 1024, 24, 16, 30_522, 512),
    "sim-mpnet-base": _encoder("mpnet", 768, 12, 12, 30_527, 514),
    "sim-minilm-l6": _encoder("bert", 384, 6, 12, 30_522, 512),
}
"""The published shapes of four encoders."""


@dataclass(frozen=True)
class Shelf:
    """A collection to write: its texts, how many of them stand in the collection before it, and broken records."""

    name: str
    files: int
    texts: int
    borrowed: int = 0
    broken: bool = False


SHELVES = (
    Shelf("Sim-Handbook", 6, 260),
    Shelf("Sim-Runbooks", 4, 160, borrowed=24),
    Shelf("Sim-Source-Code", 9, 380),
    Shelf("Sim-Tickets", 5, 200, broken=True),
)
LENGTHS = (64, 128, 256, 384, 510, 1200)
"""Words of a text; few lengths, for what torch knows of a shape is then known of many batches."""
LENGTH_WEIGHTS = (1, 3, 6, 6, 5, 3)
RETRIED = "sim-bge-large-en"
"""The model whose files come at the second try."""
SPOILT, SPOILT_IN = "overflow", "Sim-Source-Code"
"""The word of which every model makes a vector that is not finite, and the collection with one such text."""
WORDS = [f"word{number}" for number in range(200)]


def run(
    configuration: Configuration,
    controls: Controls,
    speed: float = 1.0,
    clusters: "Clusters | None" = None,
) -> "Run":
    """Write the corpus, and make the run of it, `speed` times as fast as its simulated GPUs (`inf`: without waiting),
    on the nodes of one of `clusters` where the configuration asks for that.

    Raises UsageError for a speed that is none, and for machines, which have not its devices; and whatever a run raises.
    """
    if not speed > 0:
        raise UsageError("--speed: expected a number above 0")
    if configuration.settings.cluster and clusters is None:
        raise UsageError(
            "--scripted has simulated GPUs of its own process: drop --cluster (to try a cluster: interlock demo "
            "--cluster local:2 --devices cpu)"
        )
    from interlock.engine.flows.run import Run

    out = configuration.settings.out
    write(out)
    return Run(out / "rehearsal-chunks", configured(configuration), controls, backend(out, speed), clusters)


def configured(configuration: Configuration) -> Configuration:
    """Settle a rehearsal: its own models, and devices, faults and a store where nothing else was said."""
    knobs, origins = configuration.settings, dict(configuration.origins)
    wanted = {name: value for name, value in DEFAULTS.items() if origins[name] == "default"}
    if "devices" not in wanted:
        wanted.pop("faults", None)
    knobs, origins = replace(knobs, **wanted), origins | dict.fromkeys(wanted, REHEARSAL)
    if knobs.qdrant is None:
        knobs = replace(knobs, qdrant=knobs.out / "rehearsal-store")
    row = {"matryoshka": [DEFAULTS["dim"]], "gpu_batch_tokens": BATCH_TOKENS}
    models = {key: {"source": f"weightless:{key.removeprefix(MARK)}", **row} for key in CONFIGS}
    return replace(configuration, settings=knobs, origins=origins, models=models)


def backend(out: Path, speed: float, pause: Callable[[float], object] = time.sleep) -> "Backend":
    """Put weightless models on simulated devices; `pause` is how their time passes, `speed` times as fast."""
    from interlock.engine.compute.context import Backend
    from interlock.engine.flows import weightless
    from interlock.engine.gpu.device import Device
    from interlock.engine.gpu.faults import parse
    from interlock.engine.gpu.sim import simulated
    from interlock.engine.models.networks.sizes import cost_of
    from interlock.engine.models.weights import Master

    def devices(wanted: str, faults: Sequence[str]) -> list[Device]:
        return list(simulated(wanted, parse(",".join(faults)), weightless.WeightlessGpu))

    def hydrate(card: "ModelCard") -> Master:
        master = weightless.hydrate(card)
        pause(master.bytes / READ / speed)
        return master

    def encoder(card: "ModelCard", network: Any, device: Device) -> "Encoder":
        cost = cost_of(card.config, card.network_kind)
        assert cost is not None
        rate = OPERATIONS * speed * (1 if device.kind == "sim" else 0.05)

        def pace(lengths: Sequence[int]) -> object:
            pairs = sum(length * length for length in lengths)
            return pause((cost.per_token * sum(lengths) + cost.per_pair * pairs) / rate)

        return weightless.WeightlessRows(card, network, pace, 1)

    def cards(specs: "Sequence[ModelSpec]", _: "Policy", devices: "Sequence[Device]", emit: Any) -> "list[ModelCard]":
        return [resolved(spec, out, emit, lambda seconds: pause(seconds / speed)) for spec in specs]

    return Backend(
        devices=devices, host=weightless.WeightlessHost, cards=cards, laws=weightless.law, load=weightless.load,
        hydrate=lambda _: hydrate, encoders=encoder,
    )  # fmt: skip


def resolved(spec: "ModelSpec", out: Path, emit: Callable[[ev.AnyEvent], object], pause: Any) -> "ModelCard":
    """Make the card of a model that has no files but a tokenizer; this takes its time, and one model a retry."""
    from interlock.engine.flows import weightless
    from interlock.engine.models.assets import ModelSnapshot
    from interlock.engine.models.card import ModelCard

    if spec.key not in CONFIGS:
        raise UsageError(f"the rehearsal has no model {spec.key!r}: available {', '.join(CONFIGS)}")
    config, source, began = CONFIGS[spec.key], spec.sources[0], time.monotonic()
    pause(RESOLVED)
    if spec.key == RETRIED:
        emit(ev.DownloadRetried(model=spec.key, attempt=1, wait_seconds=1.4, reason="simulated read timeout"))
        pause(2 * RESOLVED)
    content = json.dumps(config, sort_keys=True)
    fingerprint = hashlib.sha256(f"{source} {content}".encode()).hexdigest()
    path = out / "rehearsal-models"
    snapshot = ModelSnapshot(path, source, None, "download" if spec.key == RETRIED else "hit", (), fingerprint, 0, 0.0)
    card = ModelCard(
        key=spec.key, snapshot=snapshot, config=config, dim=config["hidden_size"],
        max_tokens=config["max_position_embeddings"] - (2 if config["pad_token_id"] else 0),
        pooling="mean", packed=True, dtype="float16", attention="sdpa",
        document_prompt="", query_prompt="", batch_tokens=BATCH_TOKENS,
    )  # fmt: skip
    size, seconds = weightless.law(card, "sim").weights, round(time.monotonic() - began, 3)
    outcome = snapshot.outcome
    emit(ev.ModelResolved(model=spec.key, source=source, outcome=outcome, commit=None, bytes=size, seconds=seconds))
    return card


def write(out: Path) -> None:
    """Write the corpus under `out`, and the tokenizer that all models of a rehearsal have; always the same bytes."""
    vocabulary = {"": 0, **{word: number for number, word in enumerate((SPOILT, *WORDS), 1)}}
    tokenizer: dict[str, object] = {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": None,
        "pre_tokenizer": {"type": "WhitespaceSplit"}, "post_processor": None, "decoder": None,
        "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": ""},
    }  # fmt: skip
    atomic.write_bytes(out / "rehearsal-models" / "tokenizer.json", json.dumps(tokenizer).encode())
    random, before = Random(7), list[str]()  # noqa: S311  a corpus, no secret
    for shelf in SHELVES:
        lengths = random.choices(LENGTHS, LENGTH_WEIGHTS, k=shelf.texts - shelf.borrowed)
        texts = [" ".join(random.choices(WORDS, k=length)) for length in lengths] + before[: shelf.borrowed]
        if shelf.name == SPOILT_IN:
            texts[0] = f"{SPOILT} {texts[0]}".rpartition(" ")[0]
        texts += texts[:4]
        before = texts
        for number in range(shelf.files):
            records: list[dict[str, object]] = [{"text": text} for text in texts[number :: shelf.files]]
            if shelf.broken and number == 0:
                records.append({"text": ""})
            file = out / "rehearsal-chunks" / shelf.name / f"part{number:02d}_chunks.json"
            atomic.write_bytes(file, json.dumps(records).encode())
        if shelf.broken:
            atomic.write_bytes(out / "rehearsal-chunks" / shelf.name / "export_chunks.json", b'"no list of chunks"')
