"""What a summary says of devices, precisions, rows and seconds is what was seen where they were computed."""

import random
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from tokenizers import Tokenizer

from interlock.console.text.event_text import describe
from interlock.engine.compute.checks.canary import Canaries
from interlock.engine.compute.context import Backend
from interlock.engine.compute.controls import Controls
from interlock.engine.compute.encoder import encoder_for
from interlock.engine.errors import ExitCode
from interlock.engine.flows.run import Run
from interlock.engine.record import events as ev
from interlock.engine.record.words import distinct_sizes
from interlock.engine.settings import load
from tests.builders import corpus, events_of, sentences, summary_of, tiny_model

TEXTS = [*sentences(30, 30), "a long one " + "and on it goes " * 25]


class Witness:
    """Stands between the engine and its encoders; knows which row last came from which device in which precision."""

    def __init__(self) -> None:
        self.seen: dict[tuple[str, bytes], tuple[str, str]] = {}
        self.seconds: Counter[str] = Counter()
        self.pause = 0.0
        self.broken = ""
        """A device that computes nothing but NaN."""
        self.held = ""
        """A device that computes nothing before another one has failed."""
        self.failed = threading.Event()
        self.failed_rows = 0
        """Rows of the forward that failed last."""
        self.aside = threading.local()
        """Whether this thread computes a canary, of which nothing is kept."""
        self.poison: dict[str, bytes] = {}
        """A row of each model that comes out as NaN wherever it is computed; empty: the first that is."""

    def encoders(self, card, network, device):
        return _Watched(encoder_for(card, network, device), card.key, network, device.name, self)

    def rows(self, model: str) -> Counter[tuple[str, str]]:
        """Rows of a model by device and precision."""
        return Counter(place for (key, _), place in self.seen.items() if key == model)


class _Watched:
    def __init__(self, encoder, model, network, device, witness):
        self.padded = encoder.padded
        self._encoder, self._model, self._network = encoder, model, network
        self._device, self._witness = device, witness

    def encode(self, rows):
        if getattr(self._witness.aside, "now", False):
            return self._encoder.encode(rows)
        if self._device == self._witness.held:
            self._witness.failed.wait(60)
        began = time.monotonic()
        time.sleep(self._witness.pause)
        try:
            outputs = self._encoder.encode(rows)
        except Exception:
            self._witness.failed_rows = len(rows)
            self._witness.failed.set()
            raise
        vectors = outputs.dense
        if self._device == self._witness.broken:
            vectors[:] = np.nan
        if self._model in self._witness.poison:
            bad = self._witness.poison[self._model] = self._witness.poison[self._model] or bytes(rows[0])
            vectors[[bytes(row) == bad for row in rows]] = np.nan
        self._witness.seconds[self._model] += time.monotonic() - began
        dtypes = {str(tensor.dtype).removeprefix("torch.") for tensor in self._network.parameters()}
        for row, vector in zip(rows, vectors, strict=True):
            if np.isfinite(vector).all():
                self._witness.seen[self._model, bytes(row)] = (self._device, ",".join(sorted(dtypes)))
        return outputs


@dataclass
class Desk:
    """Two models, a corpus and a place for runs."""

    root: Path
    file: Path
    out: Path
    witness: Witness = field(default_factory=Witness)

    def run(self, *, stop_after: int = 0, **flags: str) -> tuple[ExitCode, Path]:
        """One session; with `stop_after`, it is stopped when so many batches are committed."""
        settings = load({"out": str(self.out), "roster": "one,two", "offline": "yes", **flags}, {}, self.file)
        run = Run(self.root, settings, Controls(), Backend(encoders=self.witness.encoders))
        compared = Canaries._compared

        def trying(*canary):
            self.witness.aside.now = True
            try:
                return compared(*canary)
            finally:
                self.witness.aside.now = False

        emit, left = run._emit, [stop_after]

        def watching(event):
            if isinstance(event, ev.BatchCommitted) and stop_after:
                left[0] -= 1
                run.controls.code = ExitCode.STOPPED if left[0] <= 0 else None
            return emit(event)

        run._emit = watching
        with patch.object(Canaries, "_compared", trying):
            return run.go(), run.directory.path


@pytest.fixture
def desk(tmp_path: Path, models: dict[str, Path]) -> Desk:
    file, precisions = tmp_path / "models.toml", '{cpu = "float32", sim = "bfloat16"}'
    tables = [
        f'[models.{key}]\nsource = "{path}"\nbatch_tokens = 300\ngpu_batch_tokens = 300\ndtype = {precisions}\n'
        for key, path in models.items()
    ]
    file.write_text("".join(tables))
    root = corpus(tmp_path / "in", {"Docs": {"a_chunks.json": TEXTS[:20]}, "More": {"b_chunks.json": TEXTS[20:]}})
    return Desk(root, file, tmp_path / "runs")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    place = tmp_path_factory.mktemp("models")
    return {
        "one": tiny_model(place / "one", seed=1, width=64, layers=3),
        "two": tiny_model(place / "two", seed=2, kind="qwen3", pooling="lasttoken", head_dim=8, num_key_value_heads=2),
    }


def passes(run: Path, model: str) -> list[dict[str, Any]]:
    return [each for held in summary_of(run)["collections"] for each in held["passes"] if each["model"] == model]


def told(run: Path, model: str) -> Counter[tuple[str, str]]:
    """Rows by device and precision, as the summary has them."""
    rows: Counter[tuple[str, str]] = Counter()
    for part in (part for each in passes(run, model) for part in each["computed"]):
        rows[part["device"], part["dtype"]] += part["rows"]
    return rows


@pytest.mark.parametrize("schedule", [{}, {"window": "2"}, {"window": "shared"}], ids=["one", "turns", "side by side"])
@pytest.mark.parametrize("faults", ["", "oom:120,oom:121,nan:60", "lose@cuda:1:200", "oom-over:1KiB"])
def test_rows_are_counted_where_they_were_computed_whatever_strikes(desk, faults, schedule):
    code, run = desk.run(devices="sim:2xT4", faults=faults, **schedule)
    assert code == ExitCode.COMPLETED
    for model in ("one", "two"):
        assert told(run, model) == desk.witness.rows(model)
        assert sum(each["rows"] for each in passes(run, model)) == len(TEXTS)
    places = {place for model in ("one", "two") for place in desk.witness.rows(model)}
    assert (("cpu", "float32") in places) == (faults == "oom-over:1KiB")


def test_a_pass_that_fell_back_to_the_cpu_says_cpu_and_float32(desk):
    _, run = desk.run(devices="sim:T4", faults="oom-over:1KiB")
    (end, *_) = events_of(run, ev.EnsemblePassCompleted)
    assert desk.witness.rows(end.model) == {("cpu", "float32"): len(TEXTS)}
    assert (end.device, end.dtype) == ("cpu", "float32")
    assert {(each["device"], each["dtype"]) for each in passes(run, end.model)} == {("cpu", "float32")}
    assert {(batch.device, batch.dtype) for batch in events_of(run, ev.BatchCommitted)} == {("cpu", "float32")}


def test_a_pass_of_two_sessions_counts_the_seconds_of_both(desk):
    desk.witness.pause = 0.05
    code, run = desk.run(devices="cpu", run_id="r", stop_after=6)
    first = Counter(desk.witness.seconds)
    assert code == ExitCode.STOPPED
    assert first["one"] > 0
    assert desk.run(devices="cpu", run_id="r", resume="yes")[0] == ExitCode.COMPLETED
    ends = {end.model: end for end in events_of(run, ev.EnsemblePassCompleted)}
    for model, seconds in desk.witness.seconds.items():
        assert seconds <= ends[model].seconds + 0.01
        assert ends[model].seconds == pytest.approx(sum(each["seconds"] for each in passes(run, model)), abs=0.01)
        assert ends[model].rows == len(TEXTS)


def test_models_side_by_side_are_told_with_the_seconds_of_each(desk):
    desk.witness.pause = 0.05
    _, run = desk.run(devices="cpu", window="shared")
    own = desk.witness.seconds
    for end in events_of(run, ev.EnsemblePassCompleted):
        assert own[end.model] <= end.seconds + 0.01 < own.total()


def test_a_lease_opened_for_one_row_says_one_row(desk):
    _, run = desk.run(devices="sim:T4", faults=",".join(f"oom:{k}" for k in range(120, 170)), roster="one")
    computed = desk.witness.rows("one")["cpu", "float32"]
    (first, *_) = [lease for lease in events_of(run, ev.LeaseGranted) if lease.devices == ["cpu"]]
    assert computed
    assert (first.batches, first.rows) == (1, 1)
    assert first.predicted_bytes < first.budget_bytes


@pytest.mark.parametrize("faults", ["oom:120", ""])
def test_only_a_shortage_that_happened_is_told_as_one_that_did(desk, faults):
    """Without a fault, the ceiling is what is foreseen: nothing larger is tried."""
    tight = {} if faults else {"ceiling": f"{(364 << 10) + 400}KiB"}
    _, run = desk.run(devices="sim:T4", faults=faults, roster="one", **tight)
    steps = [step for step in events_of(run, ev.Mitigated) if step.batch_index is not None]
    assert steps
    for step in steps:
        assert step.foreseen == (not faults)
        assert step.cause.startswith("too large for the free memory" if step.foreseen else "out of memory")
        assert step.foreseen <= (step.predicted_bytes > step.free_bytes)
        assert "measured" not in describe(step).text
    told = [step for each in summary_of(run)["collections"] for step in each["mitigations"]]
    assert [step["free_bytes"] for step in told] == [step.free_bytes for step in events_of(run, ev.Mitigated)]


def test_what_a_device_lost_under_a_batch_is_told_with_the_rows_of_that_batch(desk):
    """The other device waits: on a loaded machine it would take all batches before this one reaches the fault."""
    desk.witness.held = "cuda:0"
    _, run = desk.run(devices="sim:2xT4", faults="lose@cuda:1:200", roster="one")
    (step,) = [step for step in events_of(run, ev.Mitigated) if step.rung == "relocate"]
    assert step.rows == desk.witness.failed_rows > 0


@pytest.mark.parametrize(
    ("sizes", "told"),
    [
        ((1034 << 20, 1024 << 20), ["1,034 MiB", "1,024 MiB"]),
        ((2 << 30, 1 << 30), ["2.0 GiB", "1.0 GiB"]),
        (((1 << 30) + 1, 1 << 30), ["1,073,741,825 B", "1,073,741,824 B"]),
        ((1 << 30, 1 << 30), ["1.0 GiB", "1.0 GiB"]),
        ((0, 0), ["0 B", "0 B"]),
    ],
)
def test_sizes_that_differ_are_told_so_that_they_do(sizes, told):
    assert distinct_sizes(*sizes) == told


def test_a_model_that_does_not_see_whole_texts_is_a_note_with_the_figures_and_no_warning(desk, models):
    lengths = [len(Tokenizer.from_file(str(models["one"] / "tokenizer.json")).encode(text).ids) for text in TEXTS[20:]]
    over = [length - 128 for length in lengths if length > 128]
    assert over
    _, run = desk.run(devices="cpu", run_id="r", stop_after=3, roster="one")
    desk.run(devices="cpu", run_id="r", resume="yes", roster="one")
    assert not events_of(run, ev.Warned)
    told = [describe(each) for each in events_of(run, ev.PassPlanned)]
    cut = f"{len(over)} text longer than its limit, truncated ({sum(over):,} tokens not embedded)"
    assert [(each.severity, cut in each.text, bool(each.printed)) for each in told[:2]] == [
        (None, False, False), ("note", True, True),
    ]  # fmt: skip
    assert [each["truncated"] for each in summary_of(run)["collections"]] == [0, len(over)]


def test_pressure_that_has_passed_is_in_the_summary(desk):
    _, run = desk.run(devices="sim:T4", faults="oom:120", roster="one")
    told = [passed for each in summary_of(run)["collections"] for passed in each["pressure_passed"]]
    assert [(passed["model_pass"], passed["device"]) for passed in told] == [(0, "cuda:0")]


def test_a_simulated_run_that_fell_back_to_the_cpu_has_no_figure_of_time(desk):
    _, run = desk.run(devices="sim:T4", faults="oom-over:1KiB", roster="one")
    leases = [lease for each in summary_of(run)["collections"] for lease in each["leases"]]
    assert "cpu" in {lease["device_kind"] for lease in leases}
    assert {lease[name] for lease in leases for name in ("held_seconds", "attach_seconds")} == {None}


@pytest.mark.parametrize("seed", range(3))
def test_rows_of_two_sessions_are_counted_where_each_was_computed(desk, seed):
    dice = random.Random(seed)
    faults = ",".join([f"oom:{dice.randrange(60, 200)}", f"lose@cuda:1:{dice.randrange(200, 300)}"])
    flags = {"run_id": "r", **dice.choice([{}, {"window": "2"}, {"window": "shared"}])}
    code, run = desk.run(devices="sim:2xT4", faults=faults, stop_after=dice.randrange(3, 9), **flags)
    assert code == ExitCode.STOPPED
    assert desk.run(devices="sim:2xT4", faults="lose@cuda:1:120", resume="yes", **flags)[0] == ExitCode.COMPLETED
    for model in ("one", "two"):
        assert told(run, model) == desk.witness.rows(model)
        (end,) = [end for end in events_of(run, ev.EnsemblePassCompleted) if end.model == model]
        places = desk.witness.rows(model)
        assert end.rows == places.total() == len(TEXTS)
        assert end.device == ",".join(sorted({device for device, _ in places}))
        assert end.dtype == ",".join(sorted({dtype for _, dtype in places}))


def test_a_parked_row_is_not_among_those_that_were_computed(desk):
    desk.witness.poison["one"] = b""
    code, run = desk.run(devices="sim:T4")
    assert code == ExitCode.FAILED
    assert told(run, "one") == desk.witness.rows("one")
    assert sum(each["rows"] for each in passes(run, "one")) == len(TEXTS) - 1
    assert sum(each["rows"] for each in passes(run, "two")) == len(TEXTS)
    assert [row["model"] for each in summary_of(run)["collections"] for row in each["parked"]] == ["one"]


def test_a_device_whose_every_row_is_refused_is_not_among_those_that_computed_a_batch(desk):
    desk.witness.broken = "cuda:0"
    code, run = desk.run(devices="sim:T4", roster="one")
    assert code == ExitCode.COMPLETED
    assert {(each.device, each.dtype) for each in events_of(run, ev.BatchCommitted)} == {("cpu", "float32")}
    assert not any(each.parts for each in events_of(run, ev.BatchCommitted))
    assert [(part["device"], part["rows"]) for each in passes(run, "one") for part in each["computed"]] == [
        ("cpu", 20),
        ("cpu", len(TEXTS) - 20),
    ]


def test_a_pass_that_reused_every_row_ran_nowhere(desk):
    _, first = desk.run(devices="cpu", run_id="first")
    _, second = desk.run(devices="cpu", run_id="second", reuse=str(first))
    for each in (each for model in ("one", "two") for each in passes(second, model)):
        assert (each["device"], each["computed"], each["rows"], each["seconds"]) == (None, [], 0, 0.0)
        assert (each["rows_per_second"], each["dtype"], each["status"]) == (None, "float32", "completed")
    assert sum(each["rows_reused"] for each in passes(second, "one")) == len(TEXTS)
    ends = [(end.device, end.dtype, end.rows, end.seconds) for end in events_of(second, ev.EnsemblePassCompleted)]
    assert ends == [("", "", 0, 0.0)] * 2
