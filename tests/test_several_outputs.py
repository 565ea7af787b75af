"""A pass with several outputs: committed, resumed, reused and parked together, and told one by one."""

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from interlock.engine.compute.controls import Controls
from interlock.engine.errors import ExitCode, UsageError
from interlock.engine.flows.run import Run
from interlock.engine.record import atomic
from interlock.engine.record.events import (
    BatchCommitted,
    BatchesLost,
    LeaseReleased,
    RosterResolved,
    RowParked,
    RowsReused,
    Warned,
)
from interlock.engine.settings import load
from tests.builders import corpus, events_of, interlock, pins_of, sentences, summary_of, tiny_m3, toml
from tests.processes import checksums, exports, kill_after

TEXTS = 60
FILES = ("vectors.npy", "rows.npy", "terms.bin", "token_rows.npy", "tokens.bin")


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory, tiny_a: Path) -> Path:
    """Chunks, a configuration with a model of three outputs and a dense one, and a finished run `one`; not to be
    changed."""
    home = tmp_path_factory.mktemp("outputs")
    model = tiny_m3(home / "m", seed=6)
    corpus(home / "in", {"Docs": {"a.jsonl": sentences(TEXTS)}})
    rows = {"m": {"source": str(model), "head_sha256": pins_of(model)}, "a": {"source": str(tiny_a)}}
    toml(home / "interlock.toml", {key: {**row, "batch_tokens": 64} for key, row in rows.items()})
    embed(home, "one")
    return home


def embed(home: Path, name: str, code: ExitCode = ExitCode.COMPLETED, **flags: object) -> Path:
    """Embed the chunks of `home` as a run of this name: its directory."""
    asked = {"roster": "m,a", "sparse": "m", "token_vectors": "m", "export": "npy", "devices": "cpu"}
    given = {"out": str(home / "runs"), "run_id": name, **asked, **flags}
    assert Run(home / "in", load(given, {}, home / "interlock.toml"), Controls()).go() == code
    return home / "runs" / name


def kept(run: Path) -> dict[str, str]:
    """SHA-256 of the files of the pass with several outputs, as far as they are there."""
    place = run / "passes" / "0_m"
    return {name: atomic.sha256_of(place / name) for name in FILES if (place / name).exists()}


def test_one_pass_gives_all_three_and_tells_each(home: Path) -> None:
    run = home / "runs" / "one"
    both, dense = summary_of(run)["collections"][0]["passes"]
    assert list(kept(run)) == list(FILES)
    assert (both["kind"], both["weight"], both["status"]) == ("dense", 0.5, "completed")
    assert both["terms_per_text"] > 1
    assert both["token_vectors"] > TEXTS
    assert (dense["terms_per_text"], dense["token_vectors"]) == (None, None)
    entry = events_of(run, RosterResolved)[-1].roster[0]
    assert (entry.outputs, entry.dim, entry.tokens.dim) == (("dense", "sparse", "tokens"), 32, 24)
    assert {"m.npy", "m-sparse.npz"} <= exports(run).keys()


def test_a_store_has_the_weights_of_terms_beside_the_vectors_and_is_searched(home: Path) -> None:
    run, store = embed(home, "stored", qdrant=str(home / "store")), home / "store"
    assert summary_of(run)["collections"][0]["status"] == "completed"
    assert interlock("search", store, "the model of", "--config", home / "interlock.toml").stdout.count("\n") > 5
    again = embed(home, "once-more", qdrant=str(store))
    assert summary_of(again)["collections"][0]["status"] == "completed"


def test_on_simulated_gpus_it_gives_the_same_and_leaves_nothing_behind(home: Path) -> None:
    run, one = embed(home, "sim", devices="sim:2xT4"), home / "runs" / "one"
    receipts = [receipt for lease in events_of(run, LeaseReleased) for receipt in lease.receipts]
    vectors, wanted = (np.load(each / "passes" / "0_m" / "vectors.npy") for each in (run, one))
    assert receipts
    assert [receipt.residue_bytes for receipt in receipts] == [0] * len(receipts)
    np.testing.assert_allclose(vectors, wanted, rtol=0, atol=1e-5)
    found, other = (summary_of(each)["collections"][0]["passes"][0] for each in (run, one))
    assert [found[name] for name in ("terms_per_text", "token_vectors")] == [
        other[name] for name in ("terms_per_text", "token_vectors")
    ]


def test_a_killed_run_ends_with_the_bytes_of_an_undisturbed_one_in_every_output(home: Path) -> None:
    run, whole = home / "killed" / "r", home / "whole" / "r"
    words = ["run", home / "in", "--config", home / "interlock.toml", "--roster", "m,a", "--sparse", "m"]
    more = ["--token-vectors", "m", "--export", "npy", "--resume", "--no-ui", "--quiet"]
    command = [*words, *more, "--run-id", "r", "--out"]
    interlock(*command, whole.parent)
    batches = len([each for each in events_of(whole, BatchCommitted) if each.model_pass == 0])
    kill_after(run, batches // 3, *command, run.parent)
    interlock(*command, run.parent)
    assert exports(run) == exports(whole)
    assert checksums(run) == checksums(whole)


@pytest.mark.parametrize("name", ["vectors.npy", "terms.bin", "tokens.bin"])
def test_what_is_damaged_in_one_output_is_computed_again_in_all(home: Path, tmp_path: Path, name: str) -> None:
    torn = Path(shutil.copytree(home, tmp_path / "home"))
    file = torn / "runs" / "one" / "passes" / "0_m" / name
    with file.open("rb+") as handle:
        handle.seek(300)
        handle.write(b"\xff" * 64)
    run = embed(torn, "one", resume="yes")
    (lost,) = events_of(run, BatchesLost)
    assert lost.model_pass == 0
    assert len(lost.batches) < len([each for each in checksums(run) if each[0] == 0])
    assert exports(run) == exports(home / "runs" / "one")


def test_a_run_with_more_outputs_serves_one_with_fewer(home: Path) -> None:
    one = home / "runs" / "one"
    for name, asked in (("fewer", {"token_vectors": ""}), ("dense", {"token_vectors": "", "sparse": ""}), ("all", {})):
        run = embed(home, name, reuse=str(one), **asked)
        assert [(each.model, each.rows) for each in events_of(run, RowsReused)] == [("m", TEXTS), ("a", TEXTS)]
        assert exports(run).items() <= exports(one).items()


def test_a_pass_of_terms_alone_is_served_by_one_with_vectors_and_the_other_way_round_it_is_said(home: Path) -> None:
    one, alone = home / "runs" / "one", {"roster": "a", "sparse": "m", "token_vectors": ""}
    anew, served = embed(home, "terms", **alone), embed(home, "terms-served", reuse=str(one), **alone)
    assert [(each.model, each.rows) for each in events_of(served, RowsReused)] == [("a", TEXTS), ("m", TEXTS)]
    assert not events_of(served, BatchCommitted)
    assert (anew / "exports" / "Docs" / "m.npz").read_bytes() == (served / "exports" / "Docs" / "m.npz").read_bytes()
    dense = embed(home, "vectors", reuse=str(anew), token_vectors="")
    assert [each.model for each in events_of(dense, RowsReused)] == ["a"]
    said = [each.message for each in events_of(dense, Warned)]
    assert f"--reuse {anew}: no vectors of m there, computing it anew" in said


def test_a_run_with_fewer_outputs_serves_none_with_more_and_says_so(home: Path) -> None:
    fewer = embed(home, "without", token_vectors="", sparse="")
    run = embed(home, "anew", reuse=str(fewer))
    assert [each.model for each in events_of(run, RowsReused)] == ["a"]
    said = [each.message for each in events_of(run, Warned) if "--reuse" in each.message]
    assert len(said) == 1
    assert "no weights of terms and token vectors as they are wanted of m there, computing it anew" in said[0]
    assert exports(run) == exports(home / "runs" / "one")


def test_other_heads_are_not_served_by_what_was_computed_with_these(home: Path, tmp_path: Path) -> None:
    moved = Path(shutil.copytree(home, tmp_path / "home"))
    torch.save({"weight": torch.ones(1, 32), "bias": torch.zeros(1)}, moved / "m" / "sparse_linear.pt")
    rows = {"m": {"source": str(moved / "m"), "head_sha256": pins_of(moved / "m")}}
    toml(moved / "interlock.toml", {key: {**row, "batch_tokens": 64} for key, row in rows.items()})
    run = embed(moved, "other", reuse=str(home / "runs" / "one"), roster="m", token_vectors="")
    assert not events_of(run, RowsReused)
    assert any("no weights of terms of m there" in each.message for each in events_of(run, Warned))
    plain = embed(moved, "plain", reuse=str(home / "runs" / "one"), roster="m", token_vectors="", sparse="")
    assert [each.rows for each in events_of(plain, RowsReused)] == [TEXTS]


@pytest.mark.parametrize("head", ["sparse_linear", "colbert_linear"])
def test_a_store_of_other_heads_takes_no_vectors_of_these_and_compares_none_with_them(
    home: Path, tmp_path: Path, head: str
) -> None:
    moved, store = Path(shutil.copytree(home, tmp_path / "home")), tmp_path / "store"
    before, after = (moved / "interlock.toml", moved / "changed.toml")
    rows = {"m": {"source": str(moved / "m"), "head_sha256": pins_of(moved / "m")}}
    toml(before, rows)
    embed(moved, "first", roster="m", qdrant=str(store))
    state = torch.load(moved / "m" / f"{head}.pt", weights_only=True)
    torch.save({name: -tensor for name, tensor in state.items()}, moved / "m" / f"{head}.pt")
    toml(after, {"m": {**rows["m"], "head_sha256": pins_of(moved / "m")}})
    given = {"out": str(moved / "runs"), "roster": "m", "sparse": "m", "token_vectors": "m", "qdrant": str(store)}
    with pytest.raises(UsageError, match="written with other settings"):
        Run(moved / "in", load(given, {}, after), Controls()).go()
    with_it = {"sparse_linear": (), "colbert_linear": ("--rerank", "maxsim")}
    without_it = {"sparse_linear": ("--hybrid", "off"), "colbert_linear": ()}
    asked = "search", store, "the of", "--config", after
    assert f"another {head} of m" in interlock(*asked, *with_it[head], check=ExitCode.USAGE).stderr
    assert interlock(*asked, *without_it[head]).stdout


def test_a_text_that_one_output_cannot_be_computed_of_is_parked_in_all(home: Path, tmp_path: Path) -> None:
    spoilt = Path(shutil.copytree(home, tmp_path / "home"))
    words = load_file(spoilt / "m" / "model.safetensors")
    from tokenizers import Tokenizer

    word = Tokenizer.from_file(str(spoilt / "m" / "tokenizer.json")).token_to_id("q")
    words["embeddings.word_embeddings.weight"][word] = float("nan")
    save_file(words, spoilt / "m" / "model.safetensors", {"format": "pt"})
    corpus(spoilt / "in", {"Docs": {"a.jsonl": [*sentences(10), "the q of the"]}})
    toml(
        spoilt / "interlock.toml",
        {"m": {"source": str(spoilt / "m"), "head_sha256": pins_of(spoilt / "m"), "batch_tokens": 64}},
    )
    run = embed(spoilt, "parked", ExitCode.FAILED, roster="m")
    assert [each.row for each in events_of(run, RowParked)] == [10]
    place = run / "passes" / "0_m"
    assert np.isnan(np.load(place / "vectors.npy")[10]).all()
    assert [int(np.load(place / name)[10, 0]) for name in ("rows.npy", "token_rows.npy")] == [-2, -2]
    assert not np.isnan(np.load(place / "vectors.npy")[:10]).any()


def test_a_plan_tells_what_else_a_pass_gives_and_what_cannot_be_reused(home: Path) -> None:
    fewer = embed(home, "planned-from", sparse="", token_vectors="")
    words = ["plan", home / "in", "--config", home / "interlock.toml", "--roster", "m,a", "--sparse", "m"]
    said = interlock(*words, "--reuse", fewer).stdout
    assert "weights of terms: m gives them in the pass of its vectors" in said
    assert f"warning: --reuse {fewer}: no weights of terms of m there, computing it anew" in said
