"""States of a model's copy: what two libraries, the hub's client, an interrupted download and people leave behind.

Tiny models of twelve families, of whose files some lack. What is computed is what sentence-transformers computes with
the whole model, one text at a time; what is refused is refused by the name of a file that lacks or may lack.
"""

import json
import os
import random
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from bench.campaigns.tally import Campaign, Report, Room
from tests import builders

REPO, COMMIT = "stations/tiny", "c" * 40
TEXTS = builders.sentences(5, words=24)
NEAR = 1 - 1e-5
LOOKED_FOR = ("added_tokens.json", "special_tokens_map.json", "chat_template.jinja", "tokenizer.model")
"""What transformers marks where it is not there; sentence-transformers looks for what follows too."""
BY_SENTENCES = ("modules.json", "README.md", *LOOKED_FOR)
Build = Callable[[Path], object]


def _tiny(**how: Any) -> Build:
    return lambda place: builders.tiny_model(place, max_tokens=24, **how)


def _plain(**how: Any) -> Build:
    def build(place: Path) -> None:
        _tiny(**how)(place)
        for name in ("modules.json", "sentence_bert_config.json", "1_Pooling"):
            shutil.rmtree(place / name) if (place / name).is_dir() else (place / name).unlink()

    return build


def _nested(place: Path) -> None:
    """The pooling lies two folders deep, and takes the first token or the largest value."""
    _tiny(seed=7, pooling=random.Random(str(place)).choice(("cls", "max")))(place)
    (place / "a").mkdir()
    shutil.move(place / "1_Pooling", place / "a" / "1_Pooling")
    edited(place / "modules.json", lambda rows: rows[1].update(path="a/1_Pooling"))


def _sharded(place: Path) -> None:
    """Weights in two files by an index, which transformers writes for a large model."""
    from safetensors.numpy import load_file, save_file

    _tiny(seed=8, pooling="cls")(place)
    tensors = load_file(place / "model.safetensors")
    (place / "model.safetensors").unlink()
    table = {}
    for number, names in enumerate((sorted(tensors)[::2], sorted(tensors)[1::2]), 1):
        name = f"model-0000{number}-of-00002.safetensors"
        save_file({each: tensors[each] for each in names}, place / name, {"format": "pt"})
        table |= dict.fromkeys(names, name)
    (place / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": table}))


LANGUAGE: Mapping[str, Any] = {"kind": "qwen3", "num_key_value_heads": 2, "head_dim": 8}
PROMPTS = {"document": "it is this : ", "query": "what is "}
FAMILIES: dict[str, Build] = {
    "bert": _tiny(seed=1),
    "cls with a prompt": _tiny(seed=2, pooling="cls", prompts=PROMPTS),
    "roberta": _tiny(seed=3, kind="roberta", pooling="max"),
    "mpnet": _tiny(seed=4, kind="mpnet", prompts=PROMPTS),
    "distilbert": _tiny(seed=5, kind="distilbert", pooling="cls"),
    "last token": _tiny(seed=6, pooling="lasttoken", prompts=PROMPTS, **LANGUAGE),
    "nested": _nested,
    "sharded": _sharded,
    "plain": _plain(seed=9),
    "plain language model": _plain(seed=10, architectures=["Qwen3ForCausalLM"], **LANGUAGE),
    "albert": _tiny(seed=11, kind="albert", embedding_size=16),
    "xlm-roberta": _tiny(seed=12, kind="xlm-roberta", pooling="cls"),
}


def edited(file: Path, change: Callable[[Any], object]) -> None:
    """Change what a JSON file holds."""
    document = json.loads(file.read_text())
    change(document)
    file.write_text(json.dumps(document))


def names_in(model: Path) -> list[str]:
    return sorted(file.relative_to(model).as_posix() for file in model.rglob("*") if file.is_file())


def _in_hub(home: Path, model: Path, kept: list[str], marks: tuple[str, ...] | None) -> str:
    """The hub's cache as its client lays it out, with the commit's list, or with the `marks` of a library alone."""
    whole = names_in(model)
    snapshot = builders.hub_snapshot(home / "hub", REPO, model, COMMIT)
    for name in set(whole) - set(kept):
        blob = (snapshot / name).resolve()
        (snapshot / name).unlink()
        blob.rename(blob.with_name(f"{blob.name}.incomplete"))
    if marks is not None:
        shutil.rmtree(snapshot.parents[1] / "trees")
    for name in set(marks or ()) - set(whole):
        mark = snapshot.parents[1] / ".no_exist" / COMMIT / name
        mark.parent.mkdir(parents=True, exist_ok=True)
        mark.touch()
    return f"hf:{REPO}"


def _in_directory(home: Path, model: Path, kept: list[str], rng: random.Random) -> str:
    """A directory as `hf download --local-dir` fills it, of an old or a new client."""
    place, whole = home / "local", names_in(model)
    notes = place / ".cache" / "huggingface" / "download"
    for name in kept:
        for file in (place / name, notes / f"{name}.metadata"):
            file.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(model / name, place / name)
        (notes / f"{name}.metadata").write_text(f"{COMMIT}\netag\n1.0\n")
    for name in set(whole) - set(kept):
        (notes / name).parent.mkdir(parents=True, exist_ok=True)
        (notes / f"{name}.etag.incomplete").write_bytes((model / name).read_bytes()[:9])
    if rng.random() < 0.8:
        (notes.parent / "trees").mkdir()
        listed = {"format_version": 1, "files": {name: {} for name in whole}}
        (notes.parent / "trees" / f"{COMMIT}.json").write_text(json.dumps(listed))
    return str(place)


def trial(room: Room) -> Report:
    """Look for one model in one state of its copy."""
    rng, family = room.rng, list(FAMILIES)[room.number % len(FAMILIES)]
    model, home, report = room.place / "model", room.place / "home", Report()
    FAMILIES[family](model)
    whole = names_in(model)
    lost = rng.sample(whole, rng.choice((0, 0, 1, 1, 1, 2, len(whole) // 2)))
    kept, writer = [name for name in whole if name not in lost], room.number // len(FAMILIES) % 4
    if writer < 3:
        marks = (None, LOOKED_FOR, _all_marks(whole))[writer]
        source = _in_hub(home, model, kept, marks)
    else:
        source = _in_directory(home, model, kept, rng)
    told = ("the client's list", "marks of transformers", "marks of sentence-transformers", "a directory")[writer]
    with _environment(HF_HOME=str(home), HF_HUB_OFFLINE="1"):
        found, refusal = ours(source)
    report.tried.update(["states of caches", told, family, "refused" if refusal else "computed"])
    where = f"{family}, {told}, without {', '.join(lost) or 'nothing'}"
    if found is not None:
        near = float((found * theirs(model)).sum(axis=1).min())
        report.tried.update(["equal"] * (near >= NEAR))
        report.wrong += [f"{where}: a cosine of {near:.4f}"] * (near < NEAR)
    elif lost and not any(name in refusal for name in lost):
        report.wrong.append(f"{where}: refused without a name that lacks: {refusal}")
    elif not lost and writer in (0, 2):
        report.wrong.append(f"{where}: a whole copy was refused: {refusal}")
    return report


def _all_marks(whole: list[str]) -> tuple[str, ...]:
    """What sentence-transformers looks for: settings where there are modules, an index after the single file."""
    settings = ("config_sentence_transformers.json", *(f"sentence_{kind}_config.json" for kind in KINDS))
    return (*BY_SENTENCES, "model.safetensors", *(settings if "modules.json" in whole else ()))


KINDS = ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")


def ours(source: str) -> tuple[np.ndarray | None, str]:
    """The unit vectors that Interlock makes of the texts, or why it refuses."""
    from interlock.engine.compute.texts import encode_texts
    from interlock.engine.errors import InterlockError
    from interlock.engine.gpu.cpu import CpuDevice
    from interlock.engine.gpu.lease import Lessor
    from interlock.engine.models.assets import Policy, resolve
    from interlock.engine.models.card import read_card
    from interlock.engine.models.registry import ModelSpec

    try:
        spec = ModelSpec("tiny", (source,))
        card = read_card(spec, resolve(spec, Policy(offline=True), lambda _: None), "cpu")
        return encode_texts(card, TEXTS, card.document_prompt, Lessor([CpuDevice()], 1 << 30)).dense, ""
    except InterlockError as error:
        return None, str(error)


def theirs(model: Path) -> np.ndarray:
    """The unit vectors of sentence-transformers, one text at a time."""
    import torch
    from sentence_transformers import SentenceTransformer

    network = SentenceTransformer(str(model), device="cpu", model_kwargs={"dtype": torch.float32})
    return np.stack([network.encode_document(text, normalize_embeddings=True) for text in TEXTS])


@contextmanager
def _environment(**more: str) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in more}
    os.environ.update(more)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None) if value is None else os.environ.update({name: value})


CAMPAIGN = Campaign("caches", trial, 200, "copies of models as libraries and interrupted downloads leave them")
