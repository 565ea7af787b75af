"""Token vectors through whole runs: kept beside dense ones, resumed after a kill, reused, damaged, planned."""

import os
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer

from interlock.console.text.plan_text import plan_text
from interlock.engine.compute.controls import Controls
from interlock.engine.compute.parts.tokens import TokenFile, TokenRows, pool_tokens
from interlock.engine.errors import DiskError, ExitCode, InterlockError, UsageError
from interlock.engine.flows import opening
from interlock.engine.flows.forecast import forecast
from interlock.engine.flows.run import Run
from interlock.engine.record.events import BatchCommitted, BatchesLost, LeaseReleased, RosterResolved, RowsReused
from interlock.engine.settings import load
from tests.builders import corpus, events_of, interlock, sentences, summary_of, tiny_model, toml
from tests.processes import checksums, exports, kill_after

TEXTS = 60
SAYS = sentences(TEXTS)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory, tiny_a: Path, tiny_b: Path) -> Path:
    """Chunks, a configuration with two models, and a finished run `one`; not to be changed."""
    home = tmp_path_factory.mktemp("tokens")
    corpus(home / "in", {"Docs": {"a.jsonl": SAYS}})
    odd = tiny_model(home / "odd", width=12, heads=2)
    padded = tiny_model(home / "padded", pooling="max")
    rows = {"a": {"source": str(tiny_a)}, "b": {"source": str(tiny_b)}}
    rows |= {"odd": {"source": str(odd)}, "padded": {"source": str(padded)}}
    toml(home / "interlock.toml", {key: {**row, "batch_tokens": 64} for key, row in rows.items()})
    embed(home, "one")
    return home


def given(home: Path, name: str, **flags: object) -> dict[str, object]:
    usual = {"out": str(home / "runs"), "roster": "a,b", "token_vectors": "b", "run_id": name, "export": "npy"}
    return {**usual, "devices": "cpu", **flags}


def embed(home: Path, name: str, **flags: object) -> Path:
    """Embed the chunks of `home` as a run of this name: its directory."""
    settings = load(given(home, name, **flags), {}, home / "interlock.toml")
    assert Run(home / "in", settings, Controls()).go() == ExitCode.COMPLETED
    return home / "runs" / name


def kept(run: Path) -> TokenRows:
    """The token vectors of the second pass of a run, by text."""
    form = events_of(run, RosterResolved)[-1].roster[1].tokens
    file = TokenFile.open(run / "passes" / "1_b" / "token_rows.npy", TEXTS, form.dim, form.precision)
    return file.take(np.arange(TEXTS))


def same(one: TokenRows, other: TokenRows) -> bool:
    return not one.unlike(other).any()


def states(model: Path) -> tuple[np.ndarray, np.ndarray]:
    """What sentence-transformers has of each token of the texts, without special tokens, of unit length."""
    each = SentenceTransformer(str(model), device="cpu").encode(SAYS, output_value="token_embeddings")
    inside = [torch.nn.functional.normalize(one.float(), dim=1).numpy()[1:-1] for one in each]
    return np.concatenate(inside), np.concatenate([[0], np.cumsum([len(one) for one in inside])])


def test_a_run_keeps_the_vector_of_every_token_that_sentence_transformers_has(home: Path, tiny_b: Path) -> None:
    vectors, starts = states(tiny_b)
    rows = kept(home / "runs" / "one")
    np.testing.assert_array_equal(rows.starts, starts)
    largest = np.abs(vectors).max(axis=1, keepdims=True)
    assert (np.abs(rows.to_float32() - vectors) <= largest / 254 + 1e-5).all()


@pytest.mark.parametrize("precision", ["float16", "bit"])
def test_a_pooled_run_keeps_the_means_in_the_precision_that_is_asked_for(
    home: Path, tiny_b: Path, precision: str
) -> None:
    run = embed(home, f"pooled-{precision}", token_pooling="3", token_precision=precision)
    expected = TokenRows.from_vectors(*pool_tokens(*states(tiny_b), 3), precision)
    found = kept(run)
    np.testing.assert_array_equal(found.starts, expected.starts)
    off = np.abs(found.to_float32() - expected.to_float32())
    assert (off <= 1e-3).mean() > (0.99 if precision == "bit" else 0.99999)  # a sum near zero may fall on either side


def test_the_summary_tells_how_many_vectors_there_are_and_what_they_take(home: Path) -> None:
    dense, late = summary_of(home / "runs" / "one")["collections"][0]["passes"]
    rows = kept(home / "runs" / "one")
    assert (dense["token_vectors"], dense["token_bytes"]) == (None, None)
    assert (late["token_vectors"], late["token_bytes"]) == (len(rows.records), rows.records.nbytes)
    assert late["token_bytes"] == (home / "runs" / "one" / "passes" / "1_b" / "tokens.bin").stat().st_size


def test_the_exports_hold_what_the_pass_has_and_the_dense_vectors_are_those_of_a_run_without(home: Path) -> None:
    run, plain = home / "runs" / "one", embed(home, "plain", token_vectors="")
    tokens, starts = (np.load(run / "exports" / "Docs" / f"b-tokens{end}.npy") for end in ("", "-starts"))
    assert tokens.tobytes() == kept(run).records.tobytes()
    np.testing.assert_array_equal(starts, kept(run).starts)
    both = exports(run)
    assert exports(plain) == {name: digest for name, digest in both.items() if "tokens" not in name}


def test_a_killed_run_ends_with_the_bytes_of_an_undisturbed_one(home: Path) -> None:
    run, whole = home / "killed" / "r", home / "whole" / "r"
    words = ["run", home / "in", "--config", home / "interlock.toml", "--roster", "a,b", "--token-vectors", "b"]
    more = ["--token-pooling", "2", "--export", "npy", "--resume", "--no-ui", "--quiet"]
    command = [*words, *more, "--run-id", "r", "--out"]
    interlock(*command, whole.parent)
    batches = len([each for each in events_of(whole, BatchCommitted) if each.model_pass == 0])
    for commits in (batches + 2, batches + 4):  # in the midst of the pass that has tokens
        kill_after(run, commits, *command, run.parent)
    interlock(*command, run.parent)
    assert same(kept(run), kept(whole))
    assert exports(run) == exports(whole)
    assert checksums(run) == checksums(whole)


def _torn(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def _changed(path: Path) -> None:
    with path.open("rb+") as handle:
        handle.seek(40)
        handle.write(b"other")


@pytest.mark.parametrize("harm", [_torn, _changed])
def test_damaged_tokens_are_computed_again_with_the_rest_of_their_batch(home: Path, tmp_path: Path, harm) -> None:
    shutil.copytree(home, tmp_path / "home")
    harm(tmp_path / "home" / "runs" / "one" / "passes" / "1_b" / "tokens.bin")
    run = embed(tmp_path / "home", "one", resume="yes")
    assert [each.model_pass for each in events_of(run, BatchesLost)] == [1]
    assert same(kept(run), kept(home / "runs" / "one"))
    assert exports(run) == exports(home / "runs" / "one")


def test_tokens_are_taken_over_from_another_run_that_keeps_them_alike(home: Path) -> None:
    run = embed(home, "again", reuse=str(home / "runs" / "one"))
    assert [(each.model, each.rows) for each in events_of(run, RowsReused)] == [("a", TEXTS), ("b", TEXTS)]
    assert same(kept(run), kept(home / "runs" / "one"))
    thrice = embed(home, "thrice", reuse=str(run))
    assert same(kept(thrice), kept(run))


@pytest.mark.parametrize("otherwise", [{"token_pooling": "2"}, {"token_precision": "float16"}])
def test_tokens_kept_otherwise_are_computed_and_not_taken_over(home: Path, otherwise: dict[str, str]) -> None:
    name = "".join(otherwise)
    run = embed(home, f"other-{name}", reuse=str(home / "runs" / "one"), **otherwise)
    assert [each.model for each in events_of(run, RowsReused)] == ["a"]
    assert same(kept(run), kept(embed(home, f"fresh-{name}", **otherwise)))


def test_a_resumed_run_goes_on_keeping_what_it_kept_and_refuses_anything_else(home: Path, tmp_path: Path) -> None:
    shutil.copytree(home, tmp_path / "home")
    run = embed(tmp_path / "home", "one", resume="yes", token_vectors="b")
    flags = {name: value for name, value in given(tmp_path / "home", "one", resume="yes").items() if name != "roster"}
    del flags["token_vectors"]
    assert Run(tmp_path / "home" / "in", load(flags, {}, tmp_path / "home" / "interlock.toml"), Controls()).go() == 0
    assert same(kept(run), kept(home / "runs" / "one"))
    with pytest.raises(UsageError, match="--token-pooling of b was 1, is now 2"):
        embed(tmp_path / "home", "one", resume="yes", token_pooling="2")


def test_simulated_gpus_give_the_tokens_of_the_host_and_leave_nothing_behind(home: Path) -> None:
    run = embed(home, "sim", devices="sim:2xT4")
    receipts = [receipt for lease in events_of(run, LeaseReleased) for receipt in lease.receipts]
    assert receipts
    assert [receipt.residue_bytes for receipt in receipts] == [0] * len(receipts)
    found, wanted = kept(run), kept(home / "runs" / "one")
    np.testing.assert_array_equal(found.starts, wanted.starts)
    np.testing.assert_allclose(found.to_float32(), wanted.to_float32(), atol=0.01)


@pytest.mark.parametrize("pooling", ["1", "2"])
def test_a_plan_tells_the_very_bytes_that_the_run_takes(home: Path, pooling: str) -> None:
    run = embed(home, f"planned-{pooling}", token_pooling=pooling)
    settings = load(given(home, "unused", token_pooling=pooling), {}, home / "interlock.toml")
    seen = forecast(home / "in", settings)
    assert [each.token_bytes for each in seen.passes] == [0, kept(run).records.nbytes]
    assert "token vectors: b would keep" in plan_text(seen)


def test_a_disk_without_room_for_the_tokens_is_told_before_anything_is_computed(home: Path, monkeypatch) -> None:
    free = kept(home / "runs" / "one").records.nbytes * 2 - 1  # for the pass and its exports
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(10**9, 10**9 - free, free))
    with pytest.raises(DiskError, match=r"disk of .*full has .* free, but token vectors take .*--token-pooling"):
        embed(home, "full")
    assert not (home / "runs" / "full").exists()


def test_a_disk_that_run_and_store_share_has_to_have_room_for_both(home: Path, monkeypatch) -> None:
    records = kept(home / "runs" / "one").records
    free = records.nbytes * 2 + len(records) * records["values"].shape[1] * opening.STORED_BYTES - 1
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(10**9, 10**9 - free, free))
    with pytest.raises(DiskError, match=r"disk of .*shared has .* free, but token vectors take"):
        embed(home, "full", qdrant=str(home / "shared"))
    assert not (home / "runs" / "full").exists() and not (home / "shared").exists()


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        ({"token_vectors": "c"}, "unknown model 'c'"),
        ({"roster": "a"}, "--token-vectors: b is not in --roster"),
        ({"token_precision": "int4"}, "--token-precision: expected one of int8, float16, bit"),
        (
            {"roster": "a,odd", "token_vectors": "odd", "token_precision": "bit"},
            "odd has 12 numbers .* use int8",
        ),
        ({"roster": "a,padded", "token_vectors": "padded"}, "padded gives no token vectors here, since its rows are"),
        ({"token_pooling": "0"}, "--token-pooling: expected 1 or more"),
        ({"token_pooling": "-2"}, "--token-pooling: expected 1 or more"),
    ],
)
def test_what_no_run_can_keep_is_refused_by_name(home: Path, flags: dict[str, str], told: str) -> None:
    with pytest.raises(InterlockError, match=told):
        embed(home, "refused", **flags)
