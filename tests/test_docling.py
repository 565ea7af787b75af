"""A real corpus with a real model: 262 chunks of documentation, MiniLM, and a tiny model to keep it cheap."""

import json

import numpy as np
import pyarrow.parquet as pq
import pytest
from jsonschema import Draft202012Validator

from tests.builders import ROOT, committed_schema, interlock, sentence_transformer, summary_of

CHUNKS = ROOT.parent / "shared" / "data" / "v5-chunks"
COUNT = 262
SAMPLED = 8  # every eighth chunk is encoded a second time, the slow way


@pytest.fixture(scope="module")
def place(tmp_path_factory, minilm, tiny_b):
    """The directory of a finished run and its store."""
    if not CHUNKS.is_dir():
        pytest.skip(f"{CHUNKS} is not there")
    place = tmp_path_factory.mktemp("docling")
    roster = f"{minilm}=0.9,{tiny_b}=0.1"
    interlock("run", CHUNKS, "--roster", roster, "--run-id", "r", "--qdrant", "store", cwd=place)
    return place


def test_every_docling_chunk_is_delivered_and_the_summary_is_valid(place):
    said = summary_of(place / "runs" / "r")
    Draft202012Validator(json.loads(committed_schema())).validate(said)
    (docling,) = said["collections"]
    assert (said["status"], docling["status"], docling["chunks"]) == ("completed", "completed", COUNT)
    assert docling["verification"]["ok"] and docling["verification"]["points"] == COUNT
    assert docling["parked"] == docling["mitigations"] == []


def test_minilm_agrees_with_sentence_transformers_on_docling(place, minilm):
    exports = place / "runs" / "r" / "exports" / "Docling"
    texts = pq.read_table(exports / "points.parquet", columns=["text"])["text"].to_pylist()
    model = sentence_transformer(minilm)
    model.max_seq_length = 256
    theirs = model.encode(texts[::SAMPLED], normalize_embeddings=True)
    ours = np.load(exports / f"{minilm.name}.npy")[::SAMPLED]
    assert (ours.astype(np.float64) * theirs).sum(axis=1).min() > 0.99999


def test_asking_docling_how_to_install_finds_the_installation_page_first(place):
    done = interlock("search", "store", "how do I install docling with pip?", "--json", "--limit", "3", cwd=place)
    hits = [json.loads(line) for line in done.stdout.splitlines()]
    assert "installation" in hits[0]["payload"]["source"]
    assert "install" in hits[0]["payload"]["text"].lower()
    assert [hit["score"] for hit in hits] == sorted((hit["score"] for hit in hits), reverse=True)
