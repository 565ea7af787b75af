"""The contract of computing: every kind of output, on every device, in every schedule and through every fault.

Nothing of Interlock is known here but its command line and the files that it writes. What they hold is compared with
sentence-transformers, and with the formulas of BGE-M3's paper where it has no reader for them.
"""

import json
from functools import cache

import numpy as np
import pyarrow.parquet as pq
import pytest

from tests.builders import corpus, interlock, sentences, summary_of
from tests.contract.conftest import cosines, terms_of, told

DENSE, FUSED = ("mean", "cls", "m3"), "fused"
NEAR = 1 - 1e-5
LIMIT = 128
LONG = " ".join(["the"] * 150)
BAD = ['{"text": ""}', '{"text": 5}', '{"no": "text"}', '{"text": "cut', '["a list"]']
"""Lines that no collection can use."""


def record(number, text, **more):
    return {"text": text, "metadata": {"chunk_id": f"c{number}", "page": number}, **more}


TEXTS = [*sentences(26), LONG, "Ünïcödé ☃ 日本語", "—", "a"]
DOCS = [record(number, text) for number, text in enumerate([*TEXTS, TEXTS[3], TEXTS[4], TEXTS[3]])]
MORE = [record(number, text) for number, text in enumerate([TEXTS[5], "only here", TEXTS[7], TEXTS[5]])]
WAYS = {
    "cpu": ["--devices", "cpu"],
    "cpu, rotating": ["--devices", "cpu", "--window", 1],
    "one card": ["--devices", "sim:1xT4"],
    "one card, rotating": ["--devices", "sim:1xT4", "--window", 1],
    "one card, shared": ["--devices", "sim:1xT4", "--shared"],
    "two cards": ["--devices", "sim:2xT4"],
    "two cards, rotating": ["--devices", "sim:2xT4", "--window", 2],
    "two cards, shared": ["--devices", "sim:2xT4", "--shared"],
}
ANSWERED = (
    "oom:60,oom:61,oom:90",
    "oom-over:60KiB",
    "cublas:70,nvml:90",
    "attach:1",
    "lose@cuda:1:90",
    "assert@cuda:0:80",
    "skew:2",
)
"""Faults that the ladder answers."""
BORNE = ("nan:75", "other:11GiB:1:400", "fragment:10GiB,leak:2MiB,lag:0.01")
"""Faults that need no answer where there is room enough."""


@pytest.fixture(scope="session")
def home(tmp_path_factory):
    place = tmp_path_factory.mktemp("compute")
    corpus(place / "chunks", {"Docs": {"b_chunks.json": DOCS[12:20]}, "More": {"m.jsonl": MORE}})
    (place / "chunks/Docs/a").mkdir()
    (place / "chunks/Docs/a/deep_chunks.json").write_text(json.dumps({"chunks": DOCS[:12]}))
    lines = [json.dumps(each) for each in DOCS[20:]]
    (place / "chunks/Docs/c.jsonl").write_text("\n".join([lines[0], *BAD, *lines[1:]]) + "\n")
    (place / "chunks/Docs/notes.txt").write_text("not read")
    return place


@pytest.fixture(scope="session")
def run(home, models):
    """The run with these flags, computed once."""

    @cache
    def computed(*flags, check=0, again=""):
        name = again or "run" + "".join(each if each.isalnum() else "-" for each in "".join(map(str, flags)))
        given = ["--roster", "mean=2,cls=1,m3=1", "--sparse", "splade,m3", "--token-vectors", "m3"]
        given += [
            "--max-refused",
            "100%",
            "--token-precision",
            "float16",
            "--config",
            models / "interlock.toml",
            "--run-id",
            name,
        ]
        given += ["--export", "npy,parquet"] if flags == ("--devices", "cpu") else ["--export", "npy"]
        interlock("run", home / "chunks", *given, "--out", home / "runs", "--quiet", *flags, check=check)
        return home / "runs" / name

    return computed


@pytest.fixture(scope="session")
def plain(run):
    return run(*WAYS["cpu"])


def arrays(run, collection="Docs"):
    return {file.name: file.read_bytes() for file in sorted((run / "exports" / collection).glob("*.np[yz]"))}


def dense(run, name, collection="Docs"):
    return np.load(run / "exports" / collection / f"{name}.npy")


def texts_of(collection):
    return [each["text"] for each in {"Docs": DOCS, "More": MORE}[collection]]


COLLECTIONS = ("Docs", "More")


# What is computed.


@pytest.mark.parametrize("collection", COLLECTIONS)
def test_rows_are_those_of_the_corpus_in_its_order(plain, collection):
    table = pq.read_table(plain / "exports" / collection / "points.parquet").to_pydict()
    records = {"Docs": DOCS, "More": MORE}[collection]
    assert table["text"] == [each["text"] for each in records]
    assert table["chunk_id"] == [each["metadata"]["chunk_id"] for each in records]
    assert [json.loads(each)["page"] for each in table["payload"]] == [each["metadata"]["page"] for each in records]
    assert len({*table["id"]}) == len(records)
    fused = np.array(table["fused"], np.float32)
    np.testing.assert_array_equal(fused, dense(plain, FUSED, collection))


@pytest.mark.parametrize("collection", COLLECTIONS)
@pytest.mark.parametrize("name", DENSE)
def test_dense_vectors_are_those_of_sentence_transformers(plain, encoded, name, collection):
    found, wanted = dense(plain, name, collection), encoded(name, collection)
    assert found.dtype == np.float32 and found.shape == wanted.shape
    assert cosines(found, wanted).min() >= NEAR
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1, atol=1e-5)


@pytest.fixture(scope="session")
def encoded(models):
    @cache
    def wanted(name, collection):
        from sentence_transformers import SentenceTransformer

        model = SentenceTransformer(str(models / name), device="cpu")
        return model.encode(texts_of(collection), normalize_embeddings=True, batch_size=1)

    return wanted


@pytest.mark.parametrize("collection", COLLECTIONS)
def test_the_fused_vector_is_every_models_own_times_the_root_of_its_weight(plain, collection):
    parts = [np.sqrt(w) * dense(plain, name, collection) for w, name in zip((0.5, 0.25, 0.25), DENSE, strict=True)]
    np.testing.assert_allclose(dense(plain, FUSED, collection), np.concatenate(parts, axis=1), rtol=0, atol=1e-6)


@pytest.mark.parametrize("collection", COLLECTIONS)
def test_weights_of_terms_are_those_of_sentence_transformers(plain, models, collection):
    from sentence_transformers import SparseEncoder

    texts = texts_of(collection)
    encoder = SparseEncoder(str(models / "splade"), device="cpu", max_active_dims=None)
    wanted = encoder.encode(texts, convert_to_sparse_tensor=False, batch_size=1).numpy()
    found = terms_of(plain / "exports" / collection / "splade.npz")
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)
    assert cosines(found, wanted).min() >= NEAR


@pytest.fixture(scope="session")
def paper(models):
    """Lexical weights and token vectors as BGE-M3's paper has them (arxiv.org/abs/2402.03216, 3.2)."""
    import torch
    from transformers import AutoModel, AutoTokenizer

    model = models / "m3"
    network = AutoModel.from_pretrained(str(model)).eval()
    tokenizer = AutoTokenizer.from_pretrained(str(model))
    sparse, late = (torch.load(model / f"{name}_linear.pt", weights_only=True) for name in ("sparse", "colbert"))
    special = {*tokenizer.all_special_ids} - {tokenizer.mask_token_id}

    def of(text):
        ids = tokenizer(text, truncation=True, max_length=LIMIT, return_tensors="pt")["input_ids"]
        with torch.inference_mode():
            states = network(input_ids=ids).last_hidden_state[0]
        weights = np.zeros(network.config.vocab_size, np.float32)
        for word, state in zip(ids[0].tolist(), states, strict=True):
            if word not in special:
                weights[word] = max(weights[word], float(sparse["weight"][0] @ state + sparse["bias"][0]), 0)
        tokens = states[1:] @ late["weight"].T + late["bias"]
        return weights, (tokens / tokens.norm(dim=1, keepdim=True)).numpy()

    return of


@pytest.mark.parametrize("collection", COLLECTIONS)
def test_lexical_weights_are_those_of_the_paper(plain, paper, collection):
    wanted = np.stack([paper(text)[0] for text in texts_of(collection)])
    np.testing.assert_allclose(terms_of(plain / "exports" / collection / "m3-sparse.npz"), wanted, rtol=0, atol=1e-5)


@pytest.mark.parametrize("collection", COLLECTIONS)
def test_vectors_of_tokens_are_those_of_the_paper(plain, paper, collection):
    files = plain / "exports" / collection
    tokens, starts = np.load(files / "m3-tokens.npy")["values"], np.load(files / "m3-tokens-starts.npy")
    wanted = [paper(text)[1] for text in texts_of(collection)]
    assert np.diff(starts).tolist() == [len(each) for each in wanted]
    assert tokens.dtype == np.float16 and starts[0] == 0 and starts[-1] == len(tokens)
    assert cosines(tokens, np.concatenate(wanted)).min() >= NEAR


def test_a_text_that_occurs_again_has_the_same_vectors_and_is_computed_once(plain):
    distinct = {*texts_of("Docs"), *texts_of("More")}
    for name in DENSE:
        found = dense(plain, name)
        np.testing.assert_array_equal(found[-3:], found[[3, 4, 3]])
        np.testing.assert_array_equal(dense(plain, name, "More")[[0, 2, 3]], found[[5, 7, 5]])
    passes = {}
    for each in told(plain, "batch_committed"):
        passes[each["model_pass"]] = passes.get(each["model_pass"], 0) + each["rows"]
    assert passes == dict.fromkeys(range(4), len(distinct))


@pytest.mark.parametrize("collection", COLLECTIONS)
def test_the_summary_counts_what_the_input_has(plain, collection):
    summary = summary_of(plain)
    found = {each["name"]: each for each in summary["collections"]}
    assert {*found} == {*COLLECTIONS}
    texts = texts_of(collection)
    before = {*texts_of("Docs")} if collection == "More" else set()
    duplicates = len([text for at, text in enumerate(texts) if text in before or text in texts[:at]])
    wanted = {"Docs": (3, len(DOCS), duplicates, len(BAD), 1), "More": (1, len(MORE), duplicates, 0, 0)}[collection]
    counted = ("files", "chunks", "duplicates", "refused", "truncated")
    assert tuple(found[collection][name] for name in counted) == wanted
    assert sum(found[collection]["refused_by_reason"].values()) == wanted[3]
    assert [each["record"] for each in found[collection]["refusals"]] == list(range(2, 2 + wanted[3]))
    for each in found[collection]["exports"]:
        file = plain / each["path"]
        assert (each["rows"], each["bytes"], each["verified"]) == (len(texts), file.stat().st_size, True)
    assert {each["path"] for each in found[collection]["exports"]} == {
        f"exports/{collection}/{file.name}" for file in (plain / "exports" / collection).iterdir()
    }


def test_the_summary_counts_the_same_in_every_schedule(run, plain):
    def counts(summary):
        return [
            {name: each[name] for name in ("name", "status", "files", "chunks", "duplicates", "refused", "truncated")}
            | {"passes": [(one["model_pass"], one["model"], one["status"], one["rows"]) for one in each["passes"]]}
            for each in summary["collections"]
        ]

    wanted = counts(summary_of(plain))
    assert all(counts(summary_of(run(*flags))) == wanted for flags in WAYS.values())


# In which order, and where.


@pytest.mark.parametrize("way", [way for way in WAYS if way != "cpu"])
def test_every_schedule_on_every_device_gives_the_same_bytes(run, plain, way):
    for collection in COLLECTIONS:
        wanted, found = arrays(plain, collection), arrays(run(*WAYS[way]), collection)
        assert found.keys() == wanted.keys()
        assert [name for name in wanted if found[name] != wanted[name]] == []
    assert told(run(*WAYS[way]), "mitigated") == []


@pytest.mark.parametrize("way", WAYS)
def test_a_summary_tells_the_schedule_and_whether_it_was_simulated(run, way):
    summary = summary_of(run(*WAYS[way]))
    shared, rotating = "shared" in way, "rotating" in way
    assert summary["schedule"] == ("shared" if shared else "rotating" if rotating else "exclusive")
    assert summary["device_kind"] == ("cpu" if way.startswith("cpu") else "sim")
    assert (summary["status"], summary["exit_code"], summary["share_done"]) == ("completed", 0, 1.0)
    if not way.startswith("cpu"):
        assert summary["seconds"] is None  # nothing is claimed about speed


# What goes wrong.


@pytest.mark.parametrize("fault", [*ANSWERED, *BORNE])
def test_a_fault_changes_no_array_and_what_was_done_about_it_is_told(run, plain, fault):
    struck = run("--devices", "sim:2xT4", "--faults", fault)
    summary = summary_of(struck)
    assert (summary["status"], summary["exit_code"], summary["share_done"]) == ("completed", 0, 1.0)
    for collection in COLLECTIONS:
        assert_same(struck / "exports" / collection, plain / "exports" / collection)
        assert all(each["parked"] == [] for each in summary["collections"])
    steps = told(struck, "mitigated")
    assert steps or fault not in ANSWERED
    assert all(each["rung"] and each["cause"] and each["action"] and each["device"] for each in steps)
    listed = [each for one in summary["collections"] for each in one["mitigations"]]
    assert {each["rung"] for each in listed} == {each["rung"] for each in steps}
    lost = {each["name"] for each in summary["devices"] if each["lost"]}
    assert lost == {f"cuda:{name}" for name in "01" if f"lose@cuda:{name}" in fault or f"assert@cuda:{name}" in fault}


def assert_same(files, wanted):
    """Arrays are equal but for the last bits, which the number of rows of a forward decides."""
    assert {each.name for each in files.glob("*.np[yz]")} == {each.name for each in wanted.glob("*.np[yz]")}
    for name in (*DENSE, FUSED):
        np.testing.assert_allclose(np.load(files / f"{name}.npy"), np.load(wanted / f"{name}.npy"), rtol=0, atol=2e-6)
    for name in ("splade.npz", "m3-sparse.npz"):
        np.testing.assert_allclose(terms_of(files / name), terms_of(wanted / name), rtol=0, atol=1e-5)
    tokens = [np.load(each / "m3-tokens.npy")["values"].astype(np.float32) for each in (files, wanted)]
    np.testing.assert_allclose(*tokens, rtol=0, atol=1e-3)
    np.testing.assert_array_equal(*(np.load(each / "m3-tokens-starts.npy") for each in (files, wanted)))


def test_without_a_card_left_a_run_stops_and_goes_on_to_the_same_bytes_where_there_is_one(run, plain):
    struck = run("--devices", "sim:2xT4", "--faults", "lose:90", check=4)
    assert summary_of(struck)["status"] == "stopped"
    assert len(told(struck, "batch_committed")) > 0
    resumed = run("--devices", "sim:2xT4", "--faults", "leak:1MiB", "--resume", again=struck.name)
    assert resumed == struck and summary_of(struck)["sessions"] == 2
    for collection in COLLECTIONS:
        assert arrays(struck, collection) == arrays(plain, collection)


def test_faults_of_a_real_device_are_refused(home, models):
    given = ["--roster", "mean", "--config", models / "interlock.toml", "--out", home / "runs"]
    interlock("run", home / "chunks", *given, "--devices", "cpu", "--faults", "oom:3", check=2)


# Scores.

PAIRS = [
    {"query": TEXTS[0], "text": TEXTS[1]},
    {"query": TEXTS[2], "texts": [TEXTS[3], "", LONG, TEXTS[27]]},
    {"query": TEXTS[4], "texts": []},
    {"query": TEXTS[5], "text": TEXTS[5], "id": "left aside"},
]


@pytest.mark.parametrize(
    "flags",
    [
        ["--devices", "cpu"],
        ["--devices", "sim:1xT4"],
        ["--devices", "sim:2xT4"],
        ["--devices", "sim:1xT4", "--faults", "oom:20,oom:21"],
        ["--devices", "sim:1xT4", "--faults", "lose:20"],
    ],
    ids=" ".join,
)
def test_scores_are_those_of_sentence_transformers(models, tmp_path, scored, flags):
    file = tmp_path / "pairs.jsonl"
    file.write_text("".join(json.dumps(pair) + "\n" for pair in PAIRS))
    ended = interlock("rerank", file, "--model", models / "scorer", *flags)
    found = [json.loads(line) for line in ended.stdout.splitlines()]
    assert [{*each} for each in found] == [{"scores"} if "texts" in pair else {"score"} for pair in PAIRS]
    assert [len(each["scores"]) for each in found if "scores" in each] == [4, 0]
    flat = [one for each in found for one in each.get("scores", [each.get("score")])]
    np.testing.assert_allclose(flat, scored, rtol=0, atol=1e-5)


@pytest.fixture(scope="session")
def scored(models):
    from sentence_transformers import CrossEncoder

    pairs = [(each["query"], text) for each in PAIRS for text in each.get("texts", [each.get("text")])]
    return CrossEncoder(str(models / "scorer"), device="cpu").predict(pairs, batch_size=1)
