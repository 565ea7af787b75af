"""What re-ordering by late interaction is worth, and what its token vectors take, in each form they are stored in.

nDCG@10 over a judged collection (BEIR's files: corpus.jsonl, queries.jsonl, qrels/test.tsv): the first 50 texts by the
model's own vectors are ordered anew by (1 - share) x that cosine + share x MaxSim, both as z-scores of the 50. The
token vectors are the last hidden states of the same model, each of unit length, without special tokens: as a run keeps
them.
"""

import argparse
import os
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import evidence
import machine
from judged import CUT, ndcg, read

os.environ.update(machine.SINGLE_THREAD)

import numpy as np
import torch

from interlock.engine.compute.encoder import PackedRows, encoder_for
from interlock.engine.compute.parts.tokens import TokenRows, pool_tokens
from interlock.engine.corpus.places import starts_of
from interlock.engine.corpus.tokens import load_tokenizer, specials_of
from interlock.engine.evaluation.nearest import maxsim
from interlock.engine.gpu.devices import choose
from interlock.engine.models.assets import Policy, resolve
from interlock.engine.models.card import ModelCard, read_card
from interlock.engine.models.networks.kernels import pack
from interlock.engine.models.registry import REGISTRY, find
from interlock.engine.models.weights import attach_to_host

SOURCES = ("engine/evaluation/nearest.py", "engine/compute/parts/*.py")
DEPTH, BATCH = 50, 32
SHARES = (0.3, 0.5)
WHOLE = "float32"
FORMS = {
    "float16": ("float16", 1),
    "int8": ("int8", 1),
    "int8, pooled 2": ("int8", 2),
    "int8, pooled 4": ("int8", 4),
    "one bit": ("bit", 1),
    "one bit, pooled 2": ("bit", 2),
}


class Model:
    """A dense model that gives both: a vector [dim] and vectors of the tokens."""

    def __init__(self, card: ModelCard) -> None:
        (device,) = choose("cpu")
        self.network = attach_to_host(card, device).network
        self.encoder: Any = encoder_for(card, self.network, device)
        self.tokenizer = load_tokenizer(card.tokenizer_file)
        self.tokenizer.enable_truncation(card.max_tokens)
        assert isinstance(self.encoder, PackedRows), "the model is not computed packed"

    @torch.inference_mode()
    def encode(self, texts: list[str]) -> tuple[Any, list[Any]]:
        """Vectors [n, dim], and for each text those of its tokens [tokens, dim]."""
        rows = [np.asarray(each.ids, np.int64) for each in self.tokenizer.encode_batch(texts)]
        dense, tokens = [], []
        specials = specials_of(self.tokenizer)
        before, after = len(specials.before), len(specials.after)
        for start in range(0, len(rows), BATCH):
            part = rows[start : start + BATCH]
            dense.append(self.encoder.encode(part).dense)
            batch = pack(part, torch.device("cpu"))
            hidden = torch.nn.functional.normalize(self.network(batch).float(), dim=1).numpy()[: sum(map(len, part))]
            whole = np.split(hidden, np.cumsum([len(row) for row in part])[:-1])
            tokens += [each[before : len(each) - after] for each in whole]
        return np.concatenate(dense), tokens


def z(scores: Any) -> Any:
    return (scores - scores.mean()) / max(float(scores.std()), 1e-9)


def reordered(model: Model, collection: Path, queries: int | None) -> dict[str, Any]:
    """nDCG of each query by form and share, and the bytes that each form takes of all texts."""
    texts, asked, grades = read(collection)
    judged = [each for each in asked if any(grades.get(each, {}).values())][:queries]
    names = list(texts)
    dense, tokens = model.encode(list(texts.values()))
    queried, queried_tokens = model.encode([asked[each] for each in judged])
    starts = starts_of(np.array([len(each) for each in tokens]))
    stored = {}
    for form, (precision, factor) in FORMS.items():
        stored[form] = TokenRows.from_vectors(*pool_tokens(np.concatenate(tokens), starts, factor), precision)
    found: dict[tuple[str, float], list[float]] = defaultdict(list)
    for query, vector, own in zip(judged, queried, queried_tokens, strict=True):
        cosines = dense @ vector
        near = np.argsort(-cosines, kind="stable")[:DEPTH]
        scores = {WHOLE: np.array([(own @ tokens[text].T).max(axis=1).sum() for text in near])}
        scores |= {form: maxsim(own, rows.taken(near)) for form, rows in stored.items()}
        for form, late in scores.items():
            for share in (0.0, *SHARES):
                order = near[np.argsort(-((1 - share) * z(cosines[near]) + share * z(late)), kind="stable")]
                found[form, share].append(ndcg([names[text] for text in order], grades[query]))
    size = {WHOLE: sum(each.nbytes for each in tokens)} | {form: rows.records.nbytes for form, rows in stored.items()}
    return {"found": found, "bytes": size, "texts": len(texts), "queries": len(judged), "tokens": int(starts[-1])}


def told(found: dict[tuple[str, float], list[float]], size: dict[str, int], texts: int) -> list[dict[str, Any]]:
    """A row for each form: bytes a text, nDCG at each share, and its gain with a bootstrap interval (95 %)."""
    rows = []
    for form, total in size.items():
        row: dict[str, Any] = {"form": form, "bytes a text": round(total / texts)}
        alone = np.array(found[form, 0.0])
        for share in SHARES:
            each = np.array(found[form, share])
            picked = np.random.default_rng(0).integers(0, len(each), (10_000, len(each)))
            low, high = np.quantile((each - alone)[picked].mean(axis=1), (0.025, 0.975))
            row[f"ndcg at {share}"] = round(float(each.mean()), 4)
            row[f"gain at {share}"] = [round(float(one), 4) for one in ((each - alone).mean(), low, high)]
        rows.append(row)
    return rows


def measure(options: argparse.Namespace) -> dict[str, Any]:
    (spec,) = find(REGISTRY, [options.model])
    model = Model(read_card(spec, resolve(spec, Policy(), lambda _: None), "cpu"))
    made = reordered(model, options.collection, options.queries)
    return {
        "collection": options.collection.name,
        "model": options.model,
        "texts": made["texts"],
        "queries": made["queries"],
        "tokens a text": round(made["tokens"] / made["texts"], 1),
        "alone": round(float(np.mean(made["found"][WHOLE, 0.0])), 4),
        "forms": told(made["found"], made["bytes"], made["texts"]),
    }


def show(result: dict[str, Any]) -> None:
    print(f"{result['model']} on {result['collection']}: {result['queries']} queries, {result['texts']:,} texts of "
          f"{result['tokens a text']} tokens; nDCG@{CUT} without re-ordering {result['alone']:.4f}")  # fmt: skip
    for row in result["forms"]:
        gains = "  ".join(
            f"{share}: {row[f'ndcg at {share}']:.4f} ({row[f'gain at {share}'][0]:+.4f} "
            f"[{row[f'gain at {share}'][1]:+.4f}, {row[f'gain at {share}'][2]:+.4f}])"
            for share in SHARES
        )
        print(f"{row['form']:>18}  {row['bytes a text']:>9,} bytes a text  {gains}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("collection", type=Path, help="directory of a judged collection")
    parser.add_argument("--model", default="all-minilm-l6")
    parser.add_argument("--queries", type=int, metavar="N", help="the first so many only")
    evidence.gather(parser, measure, show, SOURCES)


if __name__ == "__main__":
    main()
