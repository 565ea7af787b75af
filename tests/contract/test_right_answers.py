"""The contract where answers were wrong once, and exit codes said nothing of it: what is right."""

import json
import shlex
import shutil

import numpy as np
import pytest

from tests.builders import corpus, hub_snapshot, interlock, sentences, summary_of, tiny_model
from tests.contract.conftest import cosines, told

TEXTS = sentences(12)
NEAR = 1 - 1e-5


@pytest.fixture
def chunks(tmp_path):
    return corpus(tmp_path / "chunks", {"Docs": {"a_chunks.json": TEXTS}})


def run(chunks, *more, check=0, name="one", **how):
    out = chunks.parent / "runs"
    words = ("--devices", "cpu", "--out", out, "--run-id", name, "--export", "npy", "--quiet")
    said = interlock("run", chunks, *words, *more, check=check, **how)
    return out / name if check == 0 else said


def vectors(run):
    return np.load(run / "exports" / "Docs" / "fused.npy")


def by_sentence_transformers(model, texts=TEXTS):
    from sentence_transformers import SentenceTransformer

    return SentenceTransformer(str(model), device="cpu").encode_document(list(texts), normalize_embeddings=True)


def edited(file, **changes):
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


# Vectors.


def test_a_snapshot_that_another_library_left_is_no_whole_model(tmp_path, chunks):
    model = tiny_model(tmp_path / "model", seed=1, pooling="cls")
    snapshot = hub_snapshot(tmp_path / "hub" / "hub", "org/cls", model, "a" * 40)
    for name in ("modules.json", "1_Pooling/config.json", "sentence_bert_config.json"):
        (snapshot / name).unlink()
    said = run(chunks, "--roster", "hf:org/cls", "--offline", check=None, env={"HF_HOME": str(tmp_path / "hub")})
    assert not (tmp_path / "runs" / "one" / "exports").exists() and said.returncode == 5


def test_a_model_whose_pooling_was_changed_is_another_one(tmp_path, chunks):
    model = tiny_model(tmp_path / "model", seed=1)
    (model / "a").mkdir()
    shutil.move(model / "1_Pooling", model / "a" / "1_Pooling")
    modules = json.loads((model / "modules.json").read_text())
    modules[1]["path"] = "a/1_Pooling"
    (model / "modules.json").write_text(json.dumps(modules))
    run(chunks, "--roster", model)
    edited(model / "a/1_Pooling/config.json", pooling_mode_cls_token=True, pooling_mode_mean_tokens=False)
    assert run(chunks, "--roster", model, "--resume", check=None).returncode == 2


def test_weights_are_those_that_sentence_transformers_reads(tmp_path, chunks):
    model, other = tiny_model(tmp_path / "model", seed=1), tiny_model(tmp_path / "other", seed=2)
    shutil.copy(other / "model.safetensors", model / "model-00001-of-00001.safetensors")
    from safetensors import safe_open

    with safe_open(model / "model.safetensors", "np") as file:
        parts = dict.fromkeys(file.keys(), "model-00001-of-00001.safetensors")
    (model / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": parts}))
    found = vectors(run(chunks, "--roster", model))
    assert cosines(found, by_sentence_transformers(model)).min() >= NEAR


def test_an_empty_prompt_for_documents_is_one(tmp_path, chunks):
    model = tiny_model(tmp_path / "model", seed=1, prompts={"document": "", "passage": "passage : "})
    assert cosines(vectors(run(chunks, "--roster", model)), by_sentence_transformers(model)).min() >= NEAR


def test_type_ids_of_a_template_are_used(tmp_path, chunks):
    model = tiny_model(tmp_path / "model", seed=1)
    tokenizer = json.loads((model / "tokenizer.json").read_text())
    tokenizer["post_processor"]["single"][1]["Sequence"]["type_id"] = 1
    (model / "tokenizer.json").write_text(json.dumps(tokenizer))
    names = ["input_ids", "token_type_ids", "attention_mask"]
    edited(model / "tokenizer_config.json", model_input_names=names)
    assert cosines(vectors(run(chunks, "--roster", model)), by_sentence_transformers(model)).min() >= NEAR


def test_a_network_that_sees_its_padding_is_computed_without(tmp_path):
    model = tiny_model(tmp_path / "model", seed=1, kind="fnet", tpu_short_seq_length=128)
    texts = [" ".join(["the"] * (1 + number * 9 % 100)) for number in range(12)]
    chunks = corpus(tmp_path / "chunks", {"Docs": {"a_chunks.json": texts}})
    alone = np.concatenate([by_sentence_transformers(model, [text]) for text in texts])
    assert cosines(vectors(run(chunks, "--roster", model)), alone).min() >= NEAR


def test_a_text_of_no_tokens_is_parked_alone(tmp_path):
    model = tiny_model(tmp_path / "model", seed=1)
    tokenizer = json.loads((model / "tokenizer.json").read_text())
    tokenizer["post_processor"] = None
    (model / "tokenizer.json").write_text(json.dumps(tokenizer))
    chunks = corpus(tmp_path / "chunks", {"Docs": {"a_chunks.json": [*TEXTS, "\u200b"]}})
    said = run(chunks, "--roster", model, check=None)
    assert "computes wrongly" not in said.stderr
    assert len(told(tmp_path / "runs" / "one", "batch_committed")) > 0


# What is told.


def cut(chunks):
    """A second collection, whose file was cut off while it was written."""
    whole = json.dumps([{"text": text} for text in TEXTS])
    (chunks / "Torn").mkdir()
    (chunks / "Torn" / "b_chunks.json").write_text(whole[: len(whole) // 2])


def test_a_collection_that_is_refused_whole_is_no_success(chunks, tiny_a):
    cut(chunks)
    said = run(chunks, "--roster", tiny_a, check=None)
    assert said.returncode == 1
    assert summary_of(chunks.parent / "runs" / "one")["status"] != "completed"


def test_a_refused_file_beside_good_ones_is_told_and_counts(chunks, tiny_a):
    (chunks / "Docs" / "b_chunks.json").write_text('[{"text": "one"}, {"text": "tw')
    said = run(chunks, "--roster", tiny_a, "--strict", check=None)
    assert said.returncode in (1, 3) and "b_chunks.json" in said.stderr


def test_chunks_of_several_documents_are_all_kept_whatever_names_their_source(tmp_path, tiny_a):
    records = [
        {"text": f"{name} {number} {text}", "metadata": {"source": f"{name}.pdf", "chunk_id": number}}
        for name in "abc"
        for number, text in enumerate(TEXTS[:3])
    ]
    chunks = corpus(tmp_path / "chunks", {"Docs": {"a_chunks.json": records}})
    assert len(vectors(run(chunks, "--roster", tiny_a))) == len(records)


def test_ids_of_chunks_with_a_nul_do_not_meet(tmp_path, tiny_a):
    ids = [("a\0b", "c"), ("a", "b\0c")]
    records = [
        {"text": text, "metadata": {"source_file": source, "chunk_id": chunk}}
        for text, (source, chunk) in zip(TEXTS[:2], ids, strict=True)
    ]
    chunks = corpus(tmp_path / "chunks", {"Docs": {"a_chunks.json": records}})
    assert len(vectors(run(chunks, "--roster", tiny_a))) == 2


def test_a_comma_at_the_end_of_a_list_is_no_record(tmp_path, tiny_a):
    (tmp_path / "chunks" / "Docs").mkdir(parents=True)
    (tmp_path / "chunks/Docs/a_chunks.json").write_text('[{"text": "one"}, {"text": "two"},]')
    found = run(tmp_path / "chunks", "--roster", tiny_a)
    assert len(vectors(found)) == 2
    assert told(found, "record_refused") == []


def test_a_run_that_is_not_there_is_not_continued(chunks, tiny_a):
    run(chunks, "--roster", tiny_a)
    said = run(chunks, "--roster", tiny_a, "--resume", name="two", check=None)
    assert said.returncode == 2 and not (chunks.parent / "runs" / "two").exists()


def test_a_large_number_is_found_by_a_filter(tmp_path, tiny_a):
    records = [{"text": text, "metadata": {"n": 2**64 - 1 - number}} for number, text in enumerate(TEXTS)]
    chunks = corpus(tmp_path / "chunks", {"Docs": {"a_chunks.json": records}})
    run(chunks, "--roster", tiny_a, "--qdrant", tmp_path / "store")
    said = interlock(
        *("search", tmp_path / "store", TEXTS[3], "--json", "--filter", f"metadata.n={2**64 - 4}"), check=None
    )
    assert [json.loads(line)["payload"]["text"] for line in said.stdout.splitlines()] == [TEXTS[3]]


def test_a_companion_that_goes_to_the_cpu_is_told(tmp_path):
    chunks = corpus(tmp_path / "chunks", {"Docs": {"a_chunks.json": sentences(60)}})
    first = tiny_model(tmp_path / "first", seed=1, width=256)
    second = tiny_model(tmp_path / "second", seed=2, width=512, layers=4)
    words = ("--roster", f"{first},{second}", "--devices", "sim:1xT4", "--shared", "--strict")
    for ceiling in range(366, 398, 4):  # from where the first fits a card alone to where both do
        name = str(ceiling)
        said = run(chunks, *words, "--ceiling", f"{ceiling}MiB", name=name, check=None)
        done = tmp_path / "runs" / name
        if any("cpu" in each["devices"] for each in told(done, "lease_granted")):
            assert said.returncode == 3 and told(done, "mitigated"), f"at {ceiling} MiB nothing was told"


def test_a_companion_goes_back_to_the_gpu_when_the_first_model_has_ended(tmp_path):
    chunks = corpus(tmp_path / "chunks", {"Docs": {"a_chunks.json": sentences(1500)}})
    first = tiny_model(tmp_path / "first", seed=1, width=256)
    second = tiny_model(tmp_path / "second", seed=2, width=512, layers=4)
    words = ("--roster", f"{first},{second}", "--devices", "sim:1xT4", "--shared", "--ceiling", "374MiB")
    assert "finds no room beside first" in interlock("plan", chunks, *words).stdout
    run(chunks, *words)
    granted = told(tmp_path / "runs" / "one", "lease_granted")
    assert [each["devices"] for each in granted if each["model"] == "second"] == [["cpu"], ["cuda:0"]]
    assert not any(each.get("stays") for each in told(tmp_path / "runs" / "one", "mitigated"))


def test_a_name_of_a_store_that_is_too_long_is_refused(chunks, tiny_a):
    words = ("--roster", tiny_a, "--qdrant", "./" + "a" * 5000)
    said = run(chunks, *words, check=None, env={"TMPDIR": str(chunks.parent)})
    assert said.returncode in (1, 2) and "crash" not in said.stderr


def test_the_next_command_that_is_printed_runs(chunks, models):
    words = ("--config", models / "interlock.toml", "--roster", "mean", "--devices", "sim:1xT4", "--faults", "lose:60")
    out = chunks.parent / "runs"
    said = interlock("run", chunks, *words, "--out", out, "--run-id", "one", check=4)
    line = next(line for line in said.stderr.splitlines() if line.startswith("next: ") and "--resume" in line)
    again = shlex.split(line.removeprefix("next: interlock "))
    said = interlock(*again, check=None)
    assert said.returncode in (0, 4), said.stderr
