"""The recipes of docs/recipes.md work as they stand there, and find what brute force finds."""

import importlib.util
import re
import signal
import subprocess
import sys
import warnings

import numpy as np
import pyarrow.parquet as pq
import pytest
from sentence_transformers import SentenceTransformer

from interlock import Searcher
from tests.builders import ROOT, corpus, environment, interlock, sentences
from tests.edge_bridge import serving
from tests.test_serve import started
from tests.uploads import Uploads, bridged

TEXTS = [
    {"text": text, "metadata": {"chunk_id": f"intro-{number}", "lang": "en" if number % 3 else "de"}}
    for number, text in enumerate(sentences(30))
]
QUESTION = "how do I rotate the keys?"
_BLOCK = re.compile(r"^## (.+?)$.*?^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)
RECIPES = dict(_BLOCK.findall((ROOT / "docs" / "recipes.md").read_text()))


@pytest.fixture(scope="module")
def place(tmp_path_factory, tiny_a, tiny_b):
    """Where the page's own commands have been called."""
    place = tmp_path_factory.mktemp("recipes")
    corpus(place / "chunks", {"Handbook": {"a.jsonl": TEXTS}})
    commands = re.findall(r"^    interlock (.*)$", (ROOT / "docs" / "recipes.md").read_text(), re.MULTILINE)
    assert len(commands) == 4 and commands[3] == "serve runs/r"
    for command in commands[:3]:
        roster = ("--roster", f"{tiny_a},{tiny_b}", "--quiet") if command.startswith("run") else ()
        interlock(*command.split(), *roster, cwd=place)
    return place


def _is_there(name):
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:  # what it is a part of is not
        return False


@pytest.fixture
def cook(place, monkeypatch, capfd):
    """Run the block under a heading; its names, and what it printed."""

    def run(heading, *libraries, at=place, url="", port=8077):
        missing = [name for name in libraries if not _is_there(name)]
        if missing:
            told = (
                f"docs/recipes.md, {heading}: not run without {', '.join(missing)} (pip install 'interlock[recipes]')"
            )
            warnings.warn(pytest.PytestWarning(told), stacklevel=1)
            pytest.skip(told)
        monkeypatch.chdir(at)
        names: dict[str, object] = {}
        exec(RECIPES[heading].replace("http://localhost:6333", url).replace("8077", str(port)), names)
        return names, capfd.readouterr().out

    return run


@pytest.fixture
def vectors(place):
    return np.load(place / "vectors" / "Handbook" / "fused.npy")


def test_every_block_of_the_page_is_tested():
    assert {*RECIPES} == {
        *("datasets", "FAISS", "Qdrant's client", "LangChain", "LlamaIndex"),
        *("LangChain without a server", "LanceDB", "DuckDB", "Without any library"),
    }
    assert (ROOT / "docs" / "recipes.md").read_text().count("```python") == len(RECIPES)


def test_a_table_is_a_dataset(cook, vectors, monkeypatch, tmp_path):
    if importlib.util.find_spec("datasets"):
        import datasets

        monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path)
        datasets.disable_progress_bars()
    names, out = cook("datasets", "datasets")
    assert out == "30 intro-0 (80,)\n"
    np.testing.assert_array_equal(np.stack(list(names["chunks"]["fused"])), vectors)


def asked(*models):
    """The question of the page as sentence-transformers has it, fused at equal weights."""
    own = [SentenceTransformer(str(each), device="cpu").encode(QUESTION, normalize_embeddings=True) for each in models]
    return np.concatenate(own) / np.sqrt(len(own))


def test_a_faiss_index_finds_what_brute_force_finds(cook, vectors, place, tiny_a, tiny_b):
    names, _ = cook("FAISS", "faiss")
    cosines = vectors.astype(np.float64) @ asked(tiny_a, tiny_b)
    best = np.argsort(-cosines)[:5]
    np.testing.assert_allclose(names["cosines"][0], cosines[best], atol=1e-6)
    assert [each["chunk_id"] for each in names["found"]] == [f"intro-{row}" for row in best]
    assert (place / "handbook.faiss").stat().st_size > vectors.nbytes


def test_the_faiss_recipe_takes_fewer_chunks_than_it_asks_for(cook, place, vectors, tmp_path):
    few = tmp_path / "vectors" / "Handbook"
    few.mkdir(parents=True)
    (tmp_path / "runs").symlink_to(place / "runs")
    np.save(few / "fused.npy", vectors[:3])
    table = pq.read_table(place / "vectors" / "Handbook" / "points.parquet")
    pq.write_table(table.slice(0, 3), few / "points.parquet")
    names, _ = cook("FAISS", "faiss", at=tmp_path)
    assert {each["chunk_id"] for each in names["found"]} == {"intro-0", "intro-1", "intro-2"}


def test_an_uploaded_collection_answers_the_client_that_asks_with_an_encoded_question(
    cook, vectors, place, tiny_a, tiny_b, tmp_path
):
    with bridged(tmp_path / "bridge") as bridge, serving(bridge) as url:
        Uploads(bridge, place / "runs" / "r", tmp_path / "uploads")()
        names, _ = cook("Qdrant's client", url=url)
    cosines = np.sort(vectors.astype(np.float64) @ asked(tiny_a, tiny_b))[::-1]
    np.testing.assert_allclose([each.score for each in names["found"]], cosines[:5], atol=1e-6)


@pytest.fixture(scope="module")
def port(place):
    """Where `interlock serve runs/r` answers."""
    process, port = started(place / "runs" / "r")
    yield port
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=30)


@pytest.mark.parametrize(
    ("heading", "libraries"),
    [
        ("LangChain", ("langchain_openai", "langchain_qdrant")),
        ("LlamaIndex", ("llama_index.embeddings.openai_like", "llama_index.vector_stores.qdrant")),
    ],
)
def test_a_framework_asks_the_uploaded_collection_through_the_service(
    cook, vectors, place, port, tiny_a, tiny_b, tmp_path, heading, libraries
):
    with bridged(tmp_path / "bridge") as bridge, serving(bridge) as url:
        Uploads(bridge, place / "runs" / "r", tmp_path / "uploads")()
        names, _ = cook(heading, *libraries, url=url, port=port)
    best = np.argsort(-(vectors.astype(np.float64) @ asked(tiny_a, tiny_b)))[:5]
    texts = [each.page_content if heading == "LangChain" else each.node.get_content() for each in names["found"]]
    assert texts == [TEXTS[row]["text"] for row in best]
    if heading == "LangChain":
        assert [each.metadata["chunk_id"] for each in names["found"]] == [f"intro-{row}" for row in best]


def test_a_retriever_of_langchain_asks_a_store_as_a_search_does(cook, place):
    names, _ = cook("LangChain without a server", "langchain_core")
    with Searcher(place / "store") as searcher:
        hits = searcher.search(QUESTION)
    script = [sys.executable, "-c", RECIPES["LangChain without a server"]]
    done = subprocess.run(script, cwd=place, env=environment(), capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert [each.page_content for each in names["found"]] == [hit.payload["text"] for hit in hits]
    assert names["found"][0].metadata == hits[0].payload["metadata"] | {"score": hits[0].score} and len(hits) == 5
    assert [each.id for each in names["found"]] == [hit.id for hit in hits]


def test_lancedb_finds_what_brute_force_finds(cook, vectors, tiny_a, tiny_b):
    names, _ = cook("LanceDB", "lancedb")
    cosines = vectors.astype(np.float64) @ asked(tiny_a, tiny_b)
    best = np.argsort(-cosines)[:5]
    assert [each["chunk_id"] for each in names["found"]] == [f"intro-{row}" for row in best]
    np.testing.assert_allclose([1 - each["_distance"] for each in names["found"]], cosines[best], atol=1e-6)


def test_duckdb_filters_by_metadata_and_orders_by_cosine(cook, vectors, tiny_a, tiny_b):
    names, _ = cook("DuckDB", "duckdb")
    cosines = vectors.astype(np.float64) @ asked(tiny_a, tiny_b)
    best = [row for row in np.argsort(-cosines) if row % 3][:5]
    assert [found[:2] for found in names["found"]] == [(f"intro-{row}", "en") for row in best]
    np.testing.assert_allclose([found[2] for found in names["found"]], cosines[best], atol=1e-6)


def test_lines_of_json_are_read_by_the_standard_library(cook, vectors):
    names, out = cook("Without any library")
    assert [line.split()[1:] for line in out.splitlines()] == [[f"intro-{row}", "80"] for row in range(30)]
    np.testing.assert_array_equal(names["point"]["vectors"]["fused"], vectors[-1].astype(np.float64))
