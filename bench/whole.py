"""The whole job, files to vectors on disk: `interlock run` against the plain script with sentence-transformers.

Processes of their own at one thread, in turns: CPU seconds with those of starting, wall, and peak memory. The script
reads the same files, encodes with the defaults and saves an array; so does the run, with its journal and its checks.
"""

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np

from bench import corpora, evidence, machine
from interlock.engine.models.assets import Policy, resolve
from interlock.engine.models.registry import REGISTRY, find
from tests import builders

SOURCES = evidence.RUN
SCRIPT = """
import json, pathlib, sys, numpy, torch
from sentence_transformers import SentenceTransformer
model, chunks, out, dtype = sys.argv[1:]
torch.set_num_threads(1)
files = sorted(pathlib.Path(chunks).rglob("*_chunks.json"))
texts = [record["text"] for file in files for record in json.loads(file.read_text())]
model = SentenceTransformer(model, device="cpu", model_kwargs={"dtype": getattr(torch, dtype)})
numpy.save(out, model.encode(texts, normalize_embeddings=True, show_progress_bar=False).astype("float32"))
"""
SHAPE: dict[str, Any] = {
    "kind": "qwen3", "width": 1024, "layers": 28, "heads": 16, "pooling": "lasttoken", "max_tokens": 1024,
    "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 3072,
}  # fmt: skip
"""Qwen3-Embedding-0.6B without its 150,000 words: 440 M of its 596 M weights."""
OURS, THEIRS = "interlock", "sentence-transformers"
FILES, UNITS, GOAL = "*_chunks.json", ("cpu", "wall", *machine.PEAKS), 1.7


def short(texts: list[str], count: int) -> list[str]:
    """So many distinct texts of 5 to 15 words."""
    words = [word for text in texts for word in text.split()]
    words *= count * 16 // len(words) + 1
    return [f"{n} {' '.join(words[10 * n : 10 * n + 4 + n % 11])}" for n in range(count)]


def prepared(options: argparse.Namespace, root: Path) -> tuple[str, str, Path, int]:
    """The model as we name it, and its path; the chunks, and how many there are."""
    model = str(builders.tiny_model(root / "made", **SHAPE)) if options.made else options.model
    path = str(resolve(find(REGISTRY, [model])[0], Policy(offline=True), lambda _: None).path)
    if options.chunks and not (options.texts or options.short):
        return model, path, options.chunks, sum(len(json.loads(f.read_text())) for f in options.chunks.rglob(FILES))
    texts = corpora.texts_of(options.chunks, few=options.quick)
    texts = short(texts, options.short) if options.short else corpora.sample(texts, options.texts or len(texts), 0)
    corpora.write_chunks(root / "chunks", texts, 200)
    return model, path, root / "chunks", len(texts)


def measure(options: argparse.Namespace) -> dict[str, Any]:
    about = machine.describe()
    with tempfile.TemporaryDirectory() as made:
        root = Path(made)
        model, path, chunks, count = prepared(options, root)
        (root / "job.py").write_text(SCRIPT)
        environment = builders.environment(machine.SINGLE_THREAD)

        def ours() -> dict[str, float]:
            with tempfile.TemporaryDirectory(dir=root) as out:
                asked = ["--roster", model, "--precision", options.dtype, "--threads", "1", "--offline", "--quiet"]
                where = ["--out", out, "--run-id", "r", "--export", "npy"]
                found = machine.watched(builders.command("run", chunks, *asked, *where), environment)
                vectors[OURS] = np.load(next(Path(out).rglob("fused.npy")))
            return found

        def theirs() -> dict[str, float]:
            out = root / "theirs.npy"
            command = [sys.executable, str(root / "job.py"), path, str(chunks), str(out), options.dtype]
            found = machine.watched(command, environment)
            vectors[THEIRS] = np.load(out)
            return found

        vectors: dict[str, Any] = {}
        found = machine.interleave({OURS: ours, THEIRS: theirs}, options.rounds)
    told = {
        name: {what: machine.spread([e[what] for e in rounds], 1) for what in UNITS} for name, rounds in found.items()
    }
    medians = [told[name]["cpu"]["median"] for name in (THEIRS, OURS)]
    goals = {"whole job, CPU": machine.goal(medians[0] / medians[1], GOAL)}
    kept = {"model": (options.made and "qwen3 0.6B") or options.model, "dtype": options.dtype, "chunks": count}
    kept["kind"] = "short texts" if options.short else "chunks" if options.chunks else "docstrings"
    worst = float((vectors[OURS] * vectors[THEIRS]).sum(1).min())
    return {
        "machine": {**about, "load_after": machine.load()},
        **kept,
        "jobs": told,
        "worst cosine": worst,
        "goals": goals,
    }


def show(result: dict[str, Any]) -> None:
    print(f"{result['chunks']:,} chunks, {result['model']}, {result['dtype']}, cosine >= {result['worst cosine']:.6f}")
    machine.table(["job", "CPU s", "wall s", "peak MiB", "of it anonymous"], [
        [name, *(each[what]["median"] for what in UNITS[:2]), *(each[n]["median"] / 2**20 for n in machine.PEAKS)]
        for name, each in result["jobs"].items()
    ])  # fmt: skip
    machine.goals(result["goals"])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="all-minilm-l6")
    parser.add_argument(
        "--made", action="store_true", help="a Qwen3 of 0.6 B with random weights instead; 2 GB of disk"
    )
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--chunks", type=Path, metavar="DIR", help="chunks of yours, not docstrings")
    parser.add_argument("--texts", type=int, metavar="N", help="so many of them")
    parser.add_argument("--short", type=int, metavar="N", help="so many texts of 5 to 15 words, cut out of them")
    parser.add_argument("--rounds", type=int, default=3)
    machine.quick(parser, texts=40, rounds=1)
    evidence.gather(parser, measure, show, SOURCES)
