"""Tokenizers and settings of models as untrusted input: refused by file and reason, never the end of the process."""

import json
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pytest

from interlock.engine.compute.controls import Controls
from interlock.engine.compute.encoder import encoder_for
from interlock.engine.corpus import tokenizer, tokens
from interlock.engine.corpus.tokens import encoded, load_tokenizer
from interlock.engine.errors import ExitCode, UnavailableError
from interlock.engine.flows.run import Run
from interlock.engine.gpu.cpu import CpuDevice
from interlock.engine.gpu.lease import Lessor
from interlock.engine.models import weights
from interlock.engine.models.assets import Policy
from interlock.engine.models.registry import find
from interlock.engine.models.roster import cards_of
from interlock.engine.record.events import ArtefactWritten, PassFailed
from interlock.engine.settings import load
from tests.builders import ROOT, corpus, environment, events_of, interlock, tiny_model, unprivileged

HOST = CpuDevice()


def cards(directory):
    return cards_of(find({}, [str(directory)]), Policy(offline=True), [HOST], lambda _: None)


@pytest.fixture(autouse=True)
def as_runs_do(monkeypatch):
    """Files are tried here as runs try them, in a process that begins with nothing."""
    monkeypatch.setattr(tokenizer, "subprocess", subprocess)


@pytest.fixture
def model(tmp_path, tiny_a, monkeypatch):
    monkeypatch.setenv("INTERLOCK_CACHE", str(tmp_path / "cache"))
    return shutil.copytree(tiny_a, tmp_path / "model")


def edit(file, **changes):
    said = json.loads(file.read_text()) if file.exists() else {}
    file.write_text(json.dumps(said | changes))


def replacing(*, text, by):
    return {"type": "Replace", "pattern": {"String": text}, "content": by}


def splitting(pattern):
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}


HOSTILE = {
    "panics": {"normalizer": {"type": "Precompiled", "precompiled_charsmap": "AAAA"}},
    "looks-back-for-ever": {"pre_tokenizer": splitting("(a+)+$b")},
    "grows": {"normalizer": {"type": "Sequence", "normalizers": [replacing(text="a", by="a" * 10)] * 6}},
    "grows-beyond-memory": {"normalizer": {"type": "Sequence", "normalizers": [replacing(text="a", by="a" * 99)] * 6}},
    "chunks-of-nothing": {"pre_tokenizer": {"type": "FixedLength", "length": 0}},
    "template-without-its-tokens": {
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "[CLS]", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [],
            "special_tokens": {},
        }
    },
}


@pytest.mark.parametrize("change", HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_tokenizer_is_refused_with_its_model_and_file_before_it_is_run_here(model, change):
    edit(model / "tokenizer.json", **change)
    with pytest.raises(UnavailableError, match=r"model model: .*cannot use .*tokenizer\.json as a tokenizer: ."):
        cards(model)


def test_a_tokenizer_that_does_not_end_is_given_up(model, monkeypatch):
    monkeypatch.setattr(tokenizer, "SECONDS", 1)
    steps = [replacing(text="a", by="aa")] * 24  # too much to do in a second, and not too much to hold
    edit(model / "tokenizer.json", normalizer={"type": "Sequence", "normalizers": steps})
    with pytest.raises(UnavailableError, match="timed out after 1 s of CPU time"):
        cards(model)


def test_a_hostile_tokenizer_ends_the_command_with_5_and_one_line(tmp_path, model):
    edit(model / "tokenizer.json", **HOSTILE["panics"])
    root = corpus(tmp_path / "in", {"Docs": {"a.jsonl": ["a"]}})
    said = interlock("run", root, "--roster", model, "--out", tmp_path / "out", "--no-ui", cwd=tmp_path, check=5).stderr
    assert "Traceback" not in said
    assert "panicked" not in said
    assert "tokenizer.json as a tokenizer" in said
    with pytest.raises(UnavailableError, match=r"tokenizer\.json as a tokenizer: Precompiled"):
        load_tokenizer(model / "tokenizer.json")


def test_a_tokenizer_that_passed_is_not_tried_again_until_it_changes(model, monkeypatch):
    cards(model)
    tried = []
    monkeypatch.setattr(tokenizer, "_tried", lambda folder, how: tried.append(how) or tokenizer.Tried())
    cards(model)
    assert tried == []
    edit(model / "tokenizer.json", version="1.0", padding=None, added_tokens=[])
    cards(model)
    assert tried == [""]


def test_a_text_that_the_tokenizer_cannot_take_ends_the_run_with_model_file_and_reason(tmp_path, model):
    said = json.loads((model / "tokenizer.json").read_text())
    said["model"] = {"type": "WordLevel", "vocab": said["model"]["vocab"], "unk_token": "nowhere"}
    (model / "tokenizer.json").write_text(json.dumps(said))
    root = corpus(tmp_path / "in", {"Docs": {"a.jsonl": ["a", "nothingofthekind"]}})
    told = interlock("plan", root, "--roster", model, cwd=tmp_path, check=5).stderr
    assert "Traceback" not in told
    assert "model model: " in told
    assert "tokenizer.json" in told


class Endless:
    """A tokenizer that comes to no end."""

    def encode_batch_fast(self, texts, add_special_tokens):
        time.sleep(3600)


def test_texts_that_a_tokenizer_comes_to_no_end_of_are_given_up(monkeypatch):
    monkeypatch.setattr(tokens, "PATIENCE", 0.2)
    monkeypatch.setattr(tokens, "SLICE", 0.1)
    with pytest.raises(UnavailableError, match=r"tokenising 1 text \(3 characters\) took longer than 0 s"):
        encoded(Endless(), ["abc"])


STOPPED_WHILE_TOKENISING = """
import sys, time
from interlock.engine.corpus import tokenizer, tokens
tokens.PATIENCE, tokens.SLICE = 3.0, 0.25
class Slow:
    def encode_batch_fast(self, texts, add_special_tokens):
        print("begun", flush=True)
        for _ in range(10):
            time.sleep(0.1)
        return []
tokens.encoded(Slow(), ["abc"])
print("done")
"""


def test_being_stopped_for_longer_than_tokenising_may_take_refuses_no_tokenizer():
    child = [sys.executable, "-c", STOPPED_WHILE_TOKENISING]
    with subprocess.Popen(child, env=environment(), cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "begun\n"
        process.send_signal(signal.SIGSTOP)
        time.sleep(4)
        process.send_signal(signal.SIGCONT)
        assert process.communicate(timeout=60)[0] == "done\n"


def script(directory, code):
    (directory / "trial.py").write_text(code)
    return directory / "trial.py"


def test_a_trial_that_waits_without_computing_is_given_up(monkeypatch, tmp_path):
    monkeypatch.setattr(tokenizer, "TRIAL", script(tmp_path, "import time\ntime.sleep(60)"))
    monkeypatch.setattr(tokenizer, "PATIENCE", 1)
    assert tokenizer._tried(tmp_path, "").fault == "timed out after 1 s"


def test_being_stopped_for_longer_than_a_trial_may_take_refuses_no_tokenizer(monkeypatch, tmp_path):
    monkeypatch.setattr(tokenizer, "TRIAL", script(tmp_path, "import time\ntime.sleep(0.5)\nprint('{}')"))
    begun, patient = [], subprocess.Popen.communicate

    def jumping(process, *args, timeout):
        """The clock has jumped by all the time there is, as after a stop, when it is first waited for."""
        begun.append(timeout)
        if len(begun) == 1:
            raise subprocess.TimeoutExpired("", timeout)
        return patient(process, *args, timeout=timeout)

    monkeypatch.setattr(subprocess.Popen, "communicate", jumping)
    assert tokenizer._tried(tmp_path, "") == tokenizer.Tried()


def test_a_killed_trial_is_told_as_killed_and_not_as_slow(monkeypatch, tmp_path):
    monkeypatch.setattr(tokenizer, "TRIAL", script(tmp_path, "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)"))
    assert "ended with -9" in tokenizer._tried(tmp_path, "").fault


def test_memory_that_runs_out_when_tokenising_or_loading_is_told_as_that(model, monkeypatch):
    class Full:
        def encode_batch_fast(self, texts, add_special_tokens):
            raise MemoryError

    with pytest.raises(UnavailableError, match="out of memory; free memory"):
        encoded(Full(), ["abc"])
    (card,) = cards(model)
    monkeypatch.setattr(weights, "_packed", lambda card: Full().encode_batch_fast([], False))
    with pytest.raises(UnavailableError, match=r"cannot load model model from .*: out of memory; free memory"):
        weights.load(card)


WRONG = {
    "num_attention_heads": [0, "4", 1.5, True, [4]],
    "num_hidden_layers": [None],
    "hidden_size": ["32", -32, {}],
    "hidden_act": ["os.system", None],
    "layer_norm_eps": ["x", -1],
    "vocab_size": ["9"],
    "intermediate_size": [0.5],
    "max_position_embeddings": ["512"],
}


@pytest.mark.parametrize(("key", "value"), [(key, value) for key, values in WRONG.items() for value in values])
def test_a_setting_of_a_wrong_type_or_value_is_refused_by_file_and_key(model, key, value):
    edit(model / "config.json", **{key: value})
    with pytest.raises(UnavailableError, match=rf"config\.json: {key}: expected "):
        cards(model)


def test_a_width_that_the_heads_do_not_share_is_refused_by_file_and_key(model):
    edit(model / "config.json", num_attention_heads=5)
    with pytest.raises(
        UnavailableError, match=r"config\.json: hidden_size 32 is not a multiple of num_attention_heads 5"
    ):
        cards(model)


@pytest.mark.parametrize("value", ["yes", {}])
def test_flags_that_are_no_flags_are_refused_by_file_and_key(model, value):
    edit(model / "sentence_bert_config.json", do_lower_case=value)
    with pytest.raises(UnavailableError, match=r"sentence_bert_config\.json: do_lower_case: expected "):
        cards(model)
    edit(model / "sentence_bert_config.json", do_lower_case=False)
    edit(model / "1_Pooling" / "config.json", pooling_mode_cls_token=value)
    with pytest.raises(UnavailableError, match=r"1_Pooling/config\.json: pooling_mode_cls_token: expected "):
        cards(model)


@pytest.mark.parametrize(
    "kind", ["sentence_transformers.util.os.system", "sentence_transformers.models.Nothing", "sentence_transformers."]
)
def test_a_module_that_is_none_of_the_librarys_is_refused(model, kind):
    modules = json.loads((model / "modules.json").read_text())
    modules[1]["type"] = kind
    (model / "modules.json").write_text(json.dumps(modules))
    with pytest.raises(UnavailableError, match=r"modules\.json: module .* is not supported"):
        cards(model)


@pytest.mark.parametrize(
    ("activation", "good"),
    [
        ("torch.nn.modules.activation.Tanh", True),
        ("torch.nn.modules.linear.Identity", True),
        ("os.system", False),
        ("builtins.eval", False),
        ("torch.hub.load", False),
        ("torch.nn.modules.linear.Linear", False),
        (5, False),
        (None, False),
    ],
)
def test_an_activation_that_is_none_of_torch_is_refused_and_not_replaced(model, activation, good):
    dense = {"in_features": 32, "out_features": 8, "bias": True, "activation_function": activation}
    (model / "2_Dense").mkdir()
    (model / "2_Dense" / "config.json").write_text(json.dumps(dense))
    shutil.copy(model / "model.safetensors", model / "2_Dense")
    modules = json.loads((model / "modules.json").read_text())
    modules.append({"idx": 2, "name": "2", "path": "2_Dense", "type": "sentence_transformers.models.Dense"})
    (model / "modules.json").write_text(json.dumps(modules))
    if good:
        assert cards(model)[0].dim == 8
    else:
        with pytest.raises(UnavailableError, match=r"2_Dense/config\.json: activation_function: expected "):
            cards(model)


def test_a_dense_layer_that_other_numbers_come_to_is_refused_before_any_work(tmp_path):
    model = tiny_model(tmp_path / "model")
    (model / "2_Dense").mkdir()
    (model / "2_Dense" / "config.json").write_text(json.dumps({"in_features": 64, "out_features": 8}))
    shutil.copy(model / "model.safetensors", model / "2_Dense")
    modules = json.loads((model / "modules.json").read_text())
    modules.append({"idx": 2, "name": "2", "path": "2_Dense", "type": "sentence_transformers.models.Dense"})
    (model / "modules.json").write_text(json.dumps(modules))
    with pytest.raises(UnavailableError, match=r"2_Dense/config\.json: in_features is 64, but 32 numbers come to it"):
        cards(model)


@pytest.mark.parametrize("name", ["1_Pooling", ""])
def test_a_directory_of_a_model_that_may_not_be_read_is_told_by_its_name(name):
    with tempfile.TemporaryDirectory() as directory:
        Path(directory).chmod(0o755)
        closed = tiny_model(Path(directory) / "model") / name
        closed.chmod(0)
        with (
            unprivileged(),
            pytest.raises(UnavailableError, match=rf"cannot read {closed}: Permission denied; let this"),
        ):
            cards(Path(directory) / "model")
        closed.chmod(0o755)


def test_a_directory_that_begins_with_a_tilde_is_no_home_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    tiny_model(tmp_path / "~" / "model")
    assert cards("./~/model")[0].dim == 32


@pytest.mark.parametrize("name", ["tokenizer.json", "model.safetensors", "config.json", "modules.json"])
def test_a_model_file_that_may_not_be_read_is_told_with_permission_denied(name):
    with tempfile.TemporaryDirectory() as directory:
        Path(directory).chmod(0o755)
        model = tiny_model(Path(directory) / "model")
        (model / name).chmod(0)
        with unprivileged(), pytest.raises(UnavailableError) as raised:
            cards(model)
    said = str(raised.value)
    assert f"{name}: Permission denied" in said
    assert "damaged" not in said
    assert "delete that copy" not in said


def test_a_model_read_at_the_limit_of_open_files_says_so(model):
    import resource

    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    with Path("/dev/null").open() as lowest:
        free = lowest.fileno()  # the lowest number that is free, and there may be higher ones in use
    resource.setrlimit(resource.RLIMIT_NOFILE, (free, before[1]))
    try:
        with pytest.raises(UnavailableError, match="Too many open files"):
            cards(model)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


KINDS = {
    "packed": {},
    "electra": {"kind": "electra"},
    "qwen3": {"kind": "qwen3", "pooling": "lasttoken", "head_dim": 8, "num_key_value_heads": 2},
}


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_weights_that_are_overwritten_while_they_compute_change_no_vector(tmp_path, kind):
    model = tiny_model(tmp_path / "model", **kind)
    other = tiny_model(tmp_path / "other", seed=9, **kind)
    (card,) = cards(model)
    device = CpuDevice()
    attached = weights.attach_to_host(card, device)
    encoder = encoder_for(card, attached.network, device)
    rows = [np.arange(2, 20), np.arange(3, 9)]
    before = encoder.encode(rows).dense
    file = model / "model.safetensors"
    file.write_bytes((other / file.name).read_bytes())
    np.testing.assert_array_equal(encoder.encode(rows).dense, before)
    assert str(file) not in Path("/proc/self/maps").read_text()  # or it would die of a signal where it is cut short


def test_weights_that_were_mapped_are_never_in_memory_twice(tmp_path):
    (card,) = cards(tiny_model(tmp_path / "model", kind="electra", width=768, layers=6))
    device = CpuDevice()
    device.reclaim()
    device.start_peak()
    before = device.memory().occupied
    attached = weights.attach_to_host(card, device)
    assert attached.bytes > 100 << 20
    assert device.peak().occupied - before < 1.5 * attached.bytes


def test_weights_that_are_others_while_they_are_loaded_are_refused_though_they_are_put_back(tmp_path, monkeypatch):
    model, other = (tiny_model(tmp_path / name, seed=seed) for name, seed in (("model", 1), ("other", 2)))
    file = model / "model.safetensors"
    own = file.read_bytes()
    (card,) = cards(model)
    packed = weights._packed

    def swapped(card):
        file.write_bytes((other / file.name).read_bytes())
        network = packed(card)
        file.write_bytes(own)
        return network

    monkeypatch.setattr(weights, "_packed", swapped)
    with pytest.raises(UnavailableError, match="changed during the run"):
        weights.load(card)
    monkeypatch.setattr(weights, "_packed", packed)
    weights.load(card)


@pytest.mark.parametrize("replaced", ["in place", "by another file"])
def test_weights_that_are_replaced_after_the_run_looked_at_them_fail_its_pass(tmp_path, tiny_a, monkeypatch, replaced):
    model = shutil.copytree(tiny_a, tmp_path / "model")
    other = tiny_model(tmp_path / "other", seed=9) / "model.safetensors"
    chunks = corpus(tmp_path / "in", {"Docs": {"a.jsonl": ["one", "two"]}})
    granted = Lessor.lease

    def lease(self, *args, **kwargs):
        file = model / "model.safetensors"
        if replaced == "in place":
            file.write_bytes(other.read_bytes())
        else:
            other.replace(file)
        monkeypatch.setattr(Lessor, "lease", granted)
        return granted(self, *args, **kwargs)

    monkeypatch.setattr(Lessor, "lease", lease)
    flags = {"out": str(tmp_path / "runs"), "roster": str(model), "run_id": "r", "export": "npy"}
    run = Run(chunks, load(flags, {}, None), Controls())
    assert run.go() == ExitCode.FAILED
    (failed,) = events_of(tmp_path / "runs" / "r", PassFailed)
    assert "changed during the run" in failed.reason
    assert not events_of(tmp_path / "runs" / "r", ArtefactWritten)
