"""`--long split`: a text beyond a model's limit is embedded as overlapping spans, whose vectors become one."""

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.sparse import load_npz
from tokenizers import Tokenizer

from interlock.engine.compute.batches import in_spans, plan
from interlock.engine.compute.controls import Controls
from interlock.engine.corpus.spans import Splitting
from interlock.engine.corpus.tokens import TokenStore, load_tokenizer
from interlock.engine.errors import ExitCode, UsageError
from interlock.engine.flows.forecast import forecast
from interlock.engine.flows.run import Run
from interlock.engine.record.events import (
    BatchCommitted,
    BatchesLost,
    LeaseReleased,
    Mitigated,
    PassPlanned,
    RowParked,
    RowsReused,
    Warned,
)
from interlock.engine.settings import load
from tests.builders import (
    corpus,
    events_of,
    interlock,
    sentences,
    summary_of,
    tiny_model,
    tiny_sparse,
    toml,
)
from tests.processes import exports, kill_after

LIMIT = 24
TEXTS = [*sentences(30), *(" ".join(sentences(count)) for count in (3, 9, 4, 30)), "a"]
"""Shorter than the limit, some of them near it, and four that are several times as long."""

lengths = st.lists(st.integers(0, 400), min_size=1, max_size=20)
splittings = st.builds(Splitting.of, st.integers(8, 60), st.integers(0, 5), st.sampled_from([0.0, 0.125, 0.5, 0.9]))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("models") / "short", seed=4, max_tokens=LIMIT)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory, model: Path) -> Path:
    """Chunks, a configuration, and two finished runs: `cut` and `split`; not to be changed."""
    home = tmp_path_factory.mktemp("long")
    furnish(home, TEXTS, a={"source": str(model), "batch_tokens": 96})
    embed(home, "cut")
    embed(home, "split", long="split")
    return home


def furnish(home: Path, texts: list[str], **models: dict[str, object]) -> None:
    corpus(home / "in", {"Docs": {"a.jsonl": texts}})
    toml(home / "interlock.toml", models)


def embed(home: Path, name: str, code: ExitCode = ExitCode.COMPLETED, **flags: object) -> Path:
    """Embed the chunks of `home` as a run of this name: its directory."""
    given = {"out": str(home / "runs"), "roster": "a", "run_id": name, "export": "npy", **flags}
    assert Run(home / "in", load(given, {}, home / "interlock.toml"), Controls()).go() == code
    return home / "runs" / name


def vectors(run: Path) -> np.ndarray:
    return np.load(run / "exports" / "Docs" / "fused.npy")


def spans_of(file: Path, text: str, limit: int, share: float, prompt: str = "") -> list[tuple[list[int], int]]:
    """The spans of a text, written out: the ids of each, and how many of its text's tokens no span before it has."""
    tokenizer = Tokenizer.from_file(str(file))
    tokenizer.no_truncation()
    before, ids = (tokenizer.encode(each, add_special_tokens=False).ids for each in (prompt, prompt + text))
    head, ids = tokenizer.encode(prompt).ids[: 1 + len(before)], ids[len(before) :]
    room = limit - len(head) - 1
    overlap, found, stop = int(room * share), [([*head, *ids[:room], 3], min(room, len(ids)))], room
    while stop < len(ids):
        found.append(([*head, *ids[stop - overlap : stop - overlap + room], 3], min(room - overlap, len(ids) - stop)))
        stop += room - overlap
    return found


def pooled(model: Path, text: str, limit: int, share: float = 0.125, prompt: str = "") -> np.ndarray:
    """What sentence-transformers makes of the spans, each alone, and their mean by new tokens."""
    from sentence_transformers import SentenceTransformer

    network, total = SentenceTransformer(str(model), device="cpu"), np.zeros(0)
    for ids, new in spans_of(model / "tokenizer.json", text, limit, share, prompt):
        features = {"input_ids": torch.tensor([ids]), "attention_mask": torch.ones(1, len(ids), dtype=torch.long)}
        with torch.inference_mode():
            vector = network(features)["sentence_embedding"][0].double().numpy()
        total = new * vector / np.linalg.norm(vector) + (total if total.size else 0)
    return total / np.linalg.norm(total)


@given(lengths, splittings, st.integers(1, 300))
def test_batches_have_every_span_once_and_keep_the_budget(own: list[int], splitting: Splitting, budget: int) -> None:
    limit = splitting.room + splitting.frame
    tokens = np.array(own) + splitting.frame
    over = np.maximum(tokens - limit, 0)
    made = plan(np.arange(len(own)), np.minimum(tokens, limit), budget)
    batches = in_spans(made, over, splitting, budget).batches
    assert sorted(row for batch in batches for row in batch.rows.tolist()) == list(range(len(own)))
    assert sum(batch.tokens for batch in batches) == np.minimum(tokens, limit).sum() + splitting.cost(over)
    for batch in batches:
        assert batch.spans == len(batch.rows) + splitting.counts(over[batch.rows]).sum()
        assert all(each.rows * each.longest <= budget or each.rows == 1 for each in batch.forwards)
        assert max(each.longest for each in batch.forwards) == batch.longest <= limit
        assert len(batch.forwards) == 1 or len(batch.rows) == 1 or not over[batch.rows].all()


@given(lengths, splittings, st.integers(1, 300))
def test_texts_that_fit_stay_in_the_forward_that_they_are_in_when_others_are_cut(
    own: list[int], splitting: Splitting, budget: int
) -> None:
    limit = splitting.room + splitting.frame
    tokens = np.array(own) + splitting.frame
    over = np.maximum(tokens - limit, 0)
    made = plan(np.arange(len(own)), np.minimum(tokens, limit), budget)
    cut = [(batch.rows.tolist(), batch.forwards[0]) for batch in made.batches if not over[batch.rows].all()]
    split = in_spans(made, over, splitting, budget).batches
    assert [(each.rows.tolist(), each.forwards[0]) for each in split if not over[each.rows].all()] == cut


@pytest.mark.parametrize("prompt", ["", "passage: ", "the of "])
@pytest.mark.parametrize("share", [0.0, 0.125, 0.5, 0.9])
def test_spans_are_the_tokenizers_own_ids_with_specials_and_prompt_around_each(
    tmp_path: Path, model: Path, prompt: str, share: float
) -> None:
    texts, file = [*TEXTS, "日本語 ✓ é " * 40, "x" * 500, "\u200b"], model / "tokenizer.json"
    with TokenStore(tmp_path / "ids", load_tokenizer(file), prompt, 1 << 40) as store:
        store.add(texts)
    splitting, over = store.splitting(LIMIT, share), store.truncated(LIMIT)
    further = splitting.further(over)
    for place, text in enumerate(texts):
        mine = sorted(further.numbers[further.texts == place].tolist())
        rows = [store.row(place, LIMIT), *(store.further(place, number, splitting) for number in mine)]
        assert [row.tolist() for row in rows] == [ids for ids, _ in spans_of(file, text, LIMIT, share, prompt)]
    assert (np.diff(further.new) <= 0).all()


@pytest.mark.parametrize("share", [0.0, 0.125, 0.5])
def test_the_vector_of_a_long_text_is_the_mean_of_what_sentence_transformers_makes_of_its_spans(
    home: Path, model: Path, share: float
) -> None:
    found = vectors(embed(home, f"share-{share}", long="split", long_overlap=share))
    for place in range(len(TEXTS)):
        np.testing.assert_allclose(found[place], pooled(model, TEXTS[place], LIMIT, share), rtol=0, atol=1e-5)
    assert np.linalg.norm(found, axis=1) == pytest.approx(1, abs=1e-6)


def test_every_span_has_the_prompt(tmp_path: Path) -> None:
    prompted = tiny_model(tmp_path / "m", seed=6, max_tokens=LIMIT, prompts={"document": "passage: "})
    furnish(tmp_path, TEXTS[28:], a={"source": str(prompted)})
    found = vectors(embed(tmp_path, "one", long="split"))
    for place, text in enumerate(TEXTS[28:]):
        wanted = pooled(prompted, text, LIMIT, prompt="passage: ")
        np.testing.assert_allclose(found[place], wanted, rtol=0, atol=1e-5)


def test_a_text_that_fits_has_the_same_bytes_as_where_others_are_cut(home: Path) -> None:
    cut, split = (vectors(home / "runs" / name) for name in ("cut", "split"))
    planned = events_of(home / "runs" / "split", PassPlanned)[-1]
    same = np.array([one.tobytes() == other.tobytes() for one, other in zip(cut, split, strict=True)])
    assert 0 < planned.split == (~same).sum() < len(TEXTS)


def test_a_run_tells_what_is_split_and_what_it_costs(home: Path) -> None:
    cut, split = (summary_of(home / "runs" / name)["collections"][0]["passes"][0] for name in ("cut", "split"))
    assert cut["truncated_rows"] == split["split_rows"] > 0
    assert (cut["split_rows"], cut["spans"], cut["split_tokens"], split["truncated_rows"]) == (0, 0, 0, 0)
    assert split["spans"] > 2 * split["split_rows"]
    assert split["tokens"] - cut["tokens"] == split["split_tokens"] > cut["truncated_tokens"]
    assert sum(each.tokens for each in events_of(home / "runs" / "split", BatchCommitted)) == split["tokens"]
    warnings = [len(events_of(home / "runs" / name, Warned)) for name in ("cut", "split")]
    assert warnings == [1, 0]


def test_a_plan_tells_both_what_is_cut_off_and_what_splitting_costs(home: Path) -> None:
    done = summary_of(home / "runs" / "split")["collections"][0]["passes"][0]
    for long in ("cut", "split"):
        given = {"roster": "a", "long": long}
        (seen,) = forecast(home / "in", load(given, {}, home / "interlock.toml")).passes
        assert (seen.long.texts, seen.long.spans, seen.long.tokens) == tuple(
            done[name] for name in ("split_rows", "spans", "split_tokens")
        )
        assert seen.long.beyond == summary_of(home / "runs" / "cut")["collections"][0]["passes"][0]["truncated_tokens"]
    assert seen.tokens == done["tokens"]


def test_vectors_of_cut_and_of_split_texts_are_never_mixed(home: Path) -> None:
    runs = home / "runs"
    assert not events_of(embed(home, "from-cut", long="split", reuse=str(runs / "cut")), RowsReused)
    assert not events_of(embed(home, "from-split", reuse=str(runs / "split")), RowsReused)
    other = embed(home, "from-another", long="split", long_overlap="0.25", reuse=str(runs / "split"))
    assert not events_of(other, RowsReused)
    again = embed(home, "again", long="split", reuse=str(runs / "split"))
    assert [each.rows for each in events_of(again, RowsReused)] == [len(TEXTS)]
    assert vectors(again).tobytes() == vectors(runs / "split").tobytes()


def test_a_resumed_run_goes_on_as_it_began_and_in_no_other_way(home: Path) -> None:
    embed(home, "kept", long="split")
    embed(home, "kept", resume="yes")
    for other, told in (
        ({"long": "cut"}, '--long of a was "split", is now "cut"'),
        ({"long": "split", "long_overlap": "0.5"}, "--long-overlap of a was 0.125, is now 0.5"),
    ):
        with pytest.raises(UsageError, match=told):
            embed(home, "kept", resume="yes", **other)


def test_a_row_of_the_registry_says_for_its_model_alone(home: Path, model: Path, tmp_path: Path) -> None:
    rows = {"a": {"source": str(model), "batch_tokens": 96, "long": "split"}, "b": {"source": str(model)}}
    furnish(tmp_path, TEXTS, **rows)
    planned = events_of(embed(tmp_path, "two", roster="a,b"), PassPlanned)
    assert [(each.split > 0, each.truncated > 0) for each in planned] == [(True, False), (False, True)]


def test_a_store_takes_no_split_texts_where_it_has_cut_ones(home: Path, tmp_path: Path) -> None:
    store = tmp_path / "store"
    embed(home, "stored", qdrant=str(store))
    with pytest.raises(UsageError, match="overlap"):
        embed(home, "stored-split", qdrant=str(store), long="split")


def test_a_prompt_that_leaves_no_room_for_the_text_is_refused(tmp_path: Path, model: Path) -> None:
    furnish(tmp_path, TEXTS, a={"source": str(model), "document_prompt": "the " * LIMIT})
    embed(tmp_path, "cut")
    with pytest.raises(UsageError, match="the document prompt of a takes all of its 24 tokens"):
        embed(tmp_path, "split", long="split")


@pytest.mark.parametrize("devices", ["cpu", "sim:2xT4"])
def test_a_text_of_200_000_tokens_is_computed_in_forwards_of_a_batch_each(
    tmp_path: Path, model: Path, devices: str
) -> None:
    furnish(tmp_path, ["the of " * 100_000, *sentences(3)], a={"source": str(model), "batch_tokens": 2048})
    run = embed(tmp_path, "huge", long="split", devices=devices)
    (planned,) = events_of(run, PassPlanned)
    huge = max(events_of(run, BatchCommitted), key=lambda each: each.tokens)
    assert planned.spans > 200_000 // LIMIT
    assert huge.forwards >= huge.tokens // 2048
    assert not events_of(run, Mitigated)
    receipts = [each for lease in events_of(run, LeaseReleased) for each in lease.receipts]
    assert [each.residue_bytes for each in receipts] == [0] * len(receipts)
    assert np.isfinite(vectors(run)).all()


@pytest.mark.parametrize("faults", ["oom:10", "oom-over:6KiB", "oom:5,oom:60,lose@cuda:1:80"])
def test_spans_climb_the_ladder_and_their_texts_come_out_the_same(home: Path, faults: str) -> None:
    name = "".join(filter(str.isalnum, faults))
    run = embed(home, name, long="split", devices="sim:2xT4", faults=faults)
    assert events_of(run, Mitigated)
    np.testing.assert_allclose(vectors(run), vectors(home / "runs" / "split"), rtol=0, atol=1e-5)
    done = summary_of(run)["collections"][0]["passes"][0]
    assert done["rows"] == len(TEXTS) == sum(each["rows"] for each in done["computed"])


def test_a_text_of_which_one_span_has_no_vector_is_parked_once(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    spoilt = tiny_model(tmp_path / "m", seed=4, max_tokens=LIMIT)
    tensors = load_file(spoilt / "model.safetensors")
    (name,) = [each for each in tensors if each.endswith("position_embeddings.weight")]
    tensors[name][LIMIT - 1 :] = torch.nan  # of full spans only
    save_file(tensors, spoilt / "model.safetensors")
    furnish(tmp_path, ["the of", "the of " * 60, "and to"], a={"source": str(spoilt)})
    run = embed(tmp_path, "parked", ExitCode.FAILED, long="split")
    (collection,) = summary_of(run)["collections"]
    assert [each["row"] for each in collection["parked"]] == [1] == [each.row for each in events_of(run, RowParked)]
    assert collection["passes"][0]["rows"] == 2


def test_a_killed_run_ends_with_the_bytes_of_an_undisturbed_one(home: Path) -> None:
    run, whole = home / "runs" / "killed", home / "runs" / "whole"
    words = ["run", home / "in", "--config", home / "interlock.toml", "--roster", "a", "--long", "split"]
    command = [*words, "--export", "npy", "--out", home / "runs", "--resume", "--no-ui", "--quiet", "--run-id"]
    interlock(*command, "whole")
    batches = len(events_of(whole, BatchCommitted))
    for commits in (1, batches // 2):
        kill_after(run, commits, *command, "killed")
    interlock(*command, "killed")
    assert exports(run) == exports(whole)


def test_a_long_text_whose_vector_was_torn_is_computed_again(home: Path) -> None:
    run = embed(home, "torn", long="split")
    place = int(np.argmax([len(text) for text in TEXTS]))
    np.load(run / "passes" / "0_a" / "vectors.npy", mmap_mode="r+")[place] = 0
    embed(home, "torn", resume="yes")
    assert len(events_of(run, BatchesLost)[0].batches) == 1
    assert vectors(run).tobytes() == vectors(home / "runs" / "split").tobytes()


def _states(network: torch.nn.Module, ids: list[int], name: str) -> np.ndarray:
    features = {"input_ids": torch.tensor([ids]), "attention_mask": torch.ones(1, len(ids), dtype=torch.long)}
    with torch.inference_mode():
        found = network(features)[name][0]
    return found.float().numpy()


def test_the_terms_of_a_long_text_are_the_heaviest_of_its_spans(tmp_path: Path, model: Path) -> None:
    from sentence_transformers import SparseEncoder

    terms = tiny_sparse(tmp_path / "m", seed=5)
    rows = {"a": {"source": str(model)}, "s": {"source": str(terms), "kind": "sparse", "max_tokens": LIMIT}}
    furnish(tmp_path, TEXTS, **rows)
    run, network = embed(tmp_path, "one", sparse="s", long="split"), SparseEncoder(str(terms), device="cpu")
    found = load_npz(run / "exports" / "Docs" / "s.npz").toarray()
    for place, text in enumerate(TEXTS):
        each = [
            _states(network, ids, "sentence_embedding")
            for ids, _ in spans_of(terms / "tokenizer.json", text, LIMIT, 0.125)
        ]
        np.testing.assert_allclose(found[place], np.max(each, axis=0), rtol=0, atol=1e-5)


def test_the_token_vectors_of_a_long_text_are_those_of_its_spans_one_after_the_other(home: Path, model: Path) -> None:
    from sentence_transformers import SentenceTransformer

    flags = {"token_vectors": "a", "token_precision": "float16", "long": "split"}
    run, network = embed(home, "tokens", **flags), SentenceTransformer(str(model), device="cpu")
    tokens, starts = (np.load(run / "exports" / "Docs" / f"a-tokens{end}.npy") for end in ("", "-starts"))
    for place, text in enumerate(TEXTS):
        spans = spans_of(model / "tokenizer.json", text, LIMIT, 0.125)
        each = np.concatenate([_states(network, ids, "token_embeddings")[1:-1] for ids, _ in spans])
        wanted = each / np.linalg.norm(each, axis=1, keepdims=True)
        got = np.asarray(tokens[starts[place] : starts[place + 1]]["values"], np.float32)
        np.testing.assert_allclose(got, wanted, rtol=0, atol=2e-3)
    (planned,) = events_of(run, PassPlanned)
    assert planned.token_bytes == tokens.nbytes


def test_of_a_split_text_as_many_terms_are_kept_as_its_model_keeps(tmp_path: Path, model: Path) -> None:
    terms = tiny_sparse(tmp_path / "m", seed=5)
    rows = {"a": {"source": str(model)}, "s": {"source": str(terms), "kind": "sparse", "max_tokens": LIMIT}}
    furnish(tmp_path, TEXTS, **rows)
    found = []
    for name, kept in (("all", "{}"), ("few", '{"max_active_dims": 5}')):
        (terms / "config_sentence_transformers.json").write_text(kept)
        run = embed(tmp_path, name, sparse="s", long="split")
        found.append(load_npz(run / "exports" / "Docs" / "s.npz").toarray())
    whole, few = found
    fifth = np.sort(whole, axis=1)[:, [-5]]
    np.testing.assert_array_equal(few, np.where(whole >= fifth, whole, 0))
