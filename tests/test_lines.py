"""What is said of events: every kind has its words, many of one kind become a count, and what is kept is bounded."""

import re
import time
import types
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Struct
from msgspec.structs import fields, replace

from interlock.console.front_ends import headless as lines
from interlock.console.text import event_lists as feeds
from interlock.console.text.event_lists import Feed
from interlock.console.text.event_text import describe, line_of
from interlock.console.text.progress_text import progress
from interlock.engine.record import events as ev
from interlock.engine.record.events import Entry
from interlock.engine.record.facts import Memory, Receipt
from interlock.engine.record.fold import fold
from interlock.engine.record.snapshot import snapshot
from interlock.engine.record.state import RunState
from interlock.engine.record.words import safe
from interlock.widgets.panes.events import SEVERITIES

EVENTS = get_args(ev.AnyEvent)
SILENT = (ev.BatchCommitted, ev.PassPlanned, *(kind for kind in EVENTS if issubclass(kind, ev.Heartbeat)))
NOT_PRINTED = (*SILENT, ev.BlockRead, ev.CorpusTokenised, ev.ModelAttached, ev.RowsReused)
GIB = 1 << 30
HOSTILE = st.one_of(
    st.text(max_size=40),
    st.sampled_from(
        ["[/]", "\x1b[2J\x1b]52;c;eA==\a", "\u202eabc", "模型" * 20, "👩‍👩‍👧 x", "a\nb\r\tc", "x" * 10_000, ""]
    ),
)


def example(kind: Any, text: str = "x", filled: bool = True, count: int = 7) -> Any:
    """A value of a type: what may be left out is left out unless `filled`; texts are `text`, whole numbers `count`."""
    if isinstance(kind, type) and issubclass(kind, Struct):
        hints = get_type_hints(kind)
        names = [item.name for item in fields(kind) if filled or item.required]
        return kind(**{name: example(hints[name], text, filled, count) for name in names})
    origin, args = get_origin(kind), get_args(kind)
    if origin is Literal:
        return args[0]
    if origin in (Union, types.UnionType):
        return example(args[0], text, filled, count) if filled else None
    if origin in (list, tuple):
        return origin([example(args[0], text, filled, count)] if filled else [])
    if origin is dict:
        return {text: example(args[1], text, filled, count)} if filled else {}
    return {str: text, int: count, float: 1.5, bool: True}.get(kind, text)


def entry(seq: int, body: ev.AnyEvent, device_kind: str = "cuda") -> Entry:
    return Entry(seq=seq, at=1_795_000_000.0 + seq, session=0, elapsed=float(seq), device_kind=device_kind, body=body)


def refusal(record: int, collection: str = "Docs") -> ev.RecordRefused:
    return ev.RecordRefused(collection=collection, file="a.json", record=record, reason="the text is empty")


def parked(row: int, model: str = "minilm") -> ev.RowParked:
    return ev.RowParked(model_pass=0, model=model, collection="Docs", row=row, reason="out of memory")


def batch(index: int) -> ev.BatchCommitted:
    return ev.BatchCommitted(
        model_pass=0, batch_index=index, rows=1, tokens=9, padding=0, seconds=0.1, device="cpu", crc=1
    )


def texts(*bodies: ev.AnyEvent, device_kind: str = "cuda") -> list[str]:
    """The lines that a feed makes of events."""
    lines = Feed(verbose=True).take(entry(seq, body, device_kind) for seq, body in enumerate(bodies))
    return [f"{line.severity} {line.word} {line.text}" for line in lines]


@pytest.mark.parametrize("filled", [True, False])
@pytest.mark.parametrize("kind", EVENTS)
def test_every_event_type_is_in_the_table_with_a_severity_a_word_and_a_text(kind, filled):
    event = example(kind, filled=filled)
    for said in (describe(event), describe(event, "sim")):
        assert said.text.strip() and re.fullmatch("[a-z]{3,10}", said.word)
        assert said.severity in (None, *SEVERITIES)


@pytest.mark.parametrize("kind", EVENTS)
def test_every_event_makes_a_line_unless_it_is_one_of_many(kind):
    event = example(kind)
    body = replace(event, reused=0, split=0, truncated=0) if kind is ev.PassPlanned else event
    assert len(texts(body)) == (kind not in SILENT)


@pytest.mark.parametrize("kind", EVENTS)
def test_plain_output_prints_every_event_but_the_many_and_the_detailed(kind):
    state, event = RunState(), example(kind, filled=False)
    if kind is not ev.BatchesLost:
        fold(state, entry(0, event))
    body = replace(event, truncated=0) if kind is ev.PassPlanned else event
    assert bool(line_of(body, verbose=True)) == (kind not in NOT_PRINTED)
    assert isinstance(progress(snapshot(state, 0)), str)


@pytest.mark.parametrize(
    ("remembered", "kind", "line"),
    [
        (False, "cuda", "vectors of minilm on Tesla T4 are as they should be: cosine 0.9999999 (0.6 s)"),
        (False, "sim", "vectors of minilm on Tesla T4 are as they should be: cosine 0.9999999"),
        (True, "cuda", ""),
    ],
)
def test_a_canary_of_this_run_that_passed_has_a_short_line_and_a_remembered_one_none(remembered, kind, line):
    event = replace(
        example(ev.CanaryChecked, "minilm"), label="Tesla T4", cosine=0.9999999, outcome="passed", seconds=0.62,
        remembered=remembered,
    )  # fmt: skip
    assert (line_of(event, kind, verbose=True), line_of(event, kind)) == (line, "")
    assert line_of(replace(event, outcome="failed"), kind).startswith("warning: ") is not remembered


def test_what_was_as_it_should_be_is_no_line_unless_all_is_wanted():
    bodies = example(ev.MemoryCalibrated), replace(example(ev.CanaryChecked), outcome="passed"), refusal(1)
    entries = [entry(seq, body) for seq, body in enumerate(bodies)]
    assert [line.word for line in Feed().take(entries)] == ["refused"]
    assert [line.word for line in Feed(verbose=True).take(entries)] == ["memory", "check", "refused"]
    wrong = replace(bodies[1], outcome="failed")
    assert [line.severity for line in Feed().take([entry(0, wrong)])] == ["warning"]


def step(index: int | None, rung: str = "split", device: str = "cuda:0", model_pass: int = 0) -> ev.Mitigated:
    return ev.Mitigated(
        model_pass=model_pass, batch_index=index, rung=rung, device=device, rows=2, cost_seconds=0.1,
        cause="out of memory", action="the batch is halved",
    )  # fmt: skip


def test_steps_of_one_kind_are_told_once_and_counted_when_their_pass_ends():
    folded = lines.Folded()
    taken = [folded.takes(step(index)) for index in range(30)]
    assert taken == [False, *[True] * 29]
    assert not folded.takes(step(30, "stream"))
    assert not folded.takes(step(31, device="cuda:1"))
    assert not folded.takes(step(32, model_pass=1))
    assert not folded.ended_by(ev.PassFailed(model_pass=1, model="m", reason="r"))
    assert folded.ended_by(ev.PassFailed(model_pass=0, model="m", reason="r")) == [
        "halved, pass 1 on cuda:0: ... and 29 like it"
    ]
    assert not folded.takes(step(33))


def test_counted_steps_are_told_every_ten_seconds_and_no_more_than_once():
    folded, began = lines.Folded(), time.monotonic()
    for index in range(3):
        folded.takes(step(index))
    assert folded.due(began + 9) == []
    assert folded.due(began + 11) == ["halved, pass 1 on cuda:0: ... and 2 like it"]
    assert folded.due(began + 40) == []
    assert folded.takes(step(4))
    closed = ev.RunClosed(status="completed", reason="", exit_code=0, mitigations=4)
    assert folded.ended_by(closed) == ["halved, pass 1 on cuda:0: ... and 1 like it"]
    assert line_of(closed) == "run completed with 4 mitigations"


def test_a_step_of_a_whole_pass_is_always_told():
    folded = lines.Folded()
    assert not any(folded.takes(step(None)) for _ in range(3))


def test_a_mitigation_tells_cause_step_rung_bytes_and_cost():
    about = {"rows": 64, "cost_seconds": 0.412, "predicted_bytes": 2 * GIB, "free_bytes": GIB}
    event = replace(step(118, model_pass=1), **about)
    text = (
        "halved, pass 2 batch 119 on cuda:0: out of memory; the batch is halved "
        "(64 texts, needs 2.0 GiB, 1.0 GiB free, cost 0.41 s)"
    )
    assert texts(event) == [f"notice mitigation {text}"]  # it was answered
    assert line_of(event, "cuda") == text
    for severe in (step(None, "cpu"), step(3, "park")):  # hours, or a text
        assert line_of(severe, "cuda").startswith("warning: ")
    assert "cost" not in line_of(event, "sim")


@pytest.mark.parametrize("kind", EVENTS)
def test_one_of_a_kind_is_told_in_the_singular(kind):
    text = describe(example(kind, count=1)).text
    assert not re.search(r"\b1 (committed )?[a-z]+s\b|\b1 .*\b(were|their)\b", text)


def test_the_end_of_a_lease_tells_its_receipts_and_names_a_lost_device():
    memory = [Memory(allocated=0, occupied=size * GIB) for size in (1, 3, 1)]
    one, two = (
        Receipt(device=f"cuda:{number}", before=memory[0], peak=memory[1], after=memory[2], residue_bytes=0)
        for number in range(2)
    )
    released = ev.LeaseReleased(lease="L001", model_pass=0, model="minilm", held_seconds=72.4, receipts=[one])
    assert texts(released) == [
        "notice lease lease L001: released minilm after 1:12; "
        "cuda:0 1.0 GiB before, 3.0 GiB peak, 1.0 GiB after, residue 0 B"
    ]
    lost = replace(released, lease="L002", receipts=[one, replace(two, lost=True)])
    assert texts(lost)[0].startswith("warning lease") and texts(lost)[0].endswith("; cuda:1 lost")


def test_files_and_vectors_already_there_are_cache_lines():
    hit = ev.ModelResolved(model="minilm", source="/models/m", outcome="hit", commit=None, bytes=GIB, seconds=0.1)
    fetched = ev.ModelResolved(
        model="bge", source="hub:a/b", outcome="download", commit="c0ffee" * 5, bytes=GIB, seconds=9.0
    )
    planned = ev.PassPlanned(
        model_pass=0, model="minilm", collection="Docs", first_batch=0, batches=2, rows=10, reused=90, tokens=100,
        padding=0, truncated=0, truncated_tokens=0, plan="p",
    )  # fmt: skip
    first, second, third = texts(hit, fetched, planned)
    assert first.startswith("note cache model minilm: found on this machine")
    assert second.startswith("notice cache model bge: downloaded")
    assert third == "note cache pass 1 minilm, Docs: 10 texts in 2 batches, 90 reused"


def test_a_control_tells_who_asked_and_why_it_was_refused():
    applied = ev.ControlApplied(control="schedule", value="shared", who="kim")
    refused = ev.ControlRefused(control="pause", value="maybe", who="kim", reason="pause is yes or no")
    assert texts(applied, refused) == [
        "notice control kim set the schedule to shared",
        "warning control pause stays as it is: pause is yes or no (kim asked for maybe)",
    ]


@pytest.mark.parametrize(("device_kind", "word"), [("sim", "SIMULATED cuda:0"), ("scripted", "SCRIPTED cuda:0")])
def test_a_simulated_device_is_called_so_and_has_no_seconds(device_kind, word):
    granted = replace(example(ev.LeaseGranted), devices=["cuda:0"], device_kind=device_kind)
    done = ev.EnsemblePassCompleted(
        model_pass=0, model="m", device="cuda:0", dtype="float16", weight=1.0, rows=100, seconds=2.0
    )
    first, second = texts(granted, done, device_kind=device_kind)
    assert word in first
    assert "texts/s" not in second and not re.search(r"\d s\b", second)
    assert "100 texts in 2.0 s (50.0 texts/s)" in texts(done)[0]
    assert "100 texts in 1.0 s (100.0 texts/s)" in texts(replace(done, device="cuda:0,cuda:1"))[0]


@pytest.mark.parametrize(
    ("status", "severity"),
    [
        ("completed", "warning"),
        ("skipped", "notice"),
        ("stopped", "warning"),
        ("incomplete", "error"),
        ("failed", "error"),
    ],
)
def test_the_end_of_a_run_has_the_severity_it_deserves(status, severity):
    closed = ev.CollectionClosed(collection="Docs", status=status, reason="because")
    ended = ev.RunClosed(status=status, reason="because", exit_code=0)
    assert texts(closed, ended) == [
        f"{severity} collection collection Docs {status}: because",
        f"{severity} run run {status}: because",
    ]


@pytest.mark.parametrize(
    ("make", "more"), [(refusal, "980 more refused in Docs"), (parked, "980 more in Docs without a minilm vector")]
)
def test_a_thousand_of_one_kind_are_twenty_lines_and_a_count(make, more):
    feed = Feed()
    for begin in range(0, 1000, 7):
        lines = feed.take(entry(seq, make(seq)) for seq in range(begin, min(1000, begin + 7)))
    assert len(lines) == feeds.ONE_BY_ONE + 1
    assert lines[-1].text == f"{more} (the journal has them all)"
    assert lines[-1].seq == feeds.ONE_BY_ONE
    assert feed.entry(lines[-1].seq).body == make(feeds.ONE_BY_ONE)


def test_batches_between_parked_rows_still_count_as_one_series():
    bodies = [body for number in range(40) for body in (batch(number), parked(number))]
    assert len(texts(*bodies)) == feeds.ONE_BY_ONE + 1


def test_another_collection_model_or_kind_begins_the_count_anew():
    many = [refusal(number) for number in range(30)]
    other = [refusal(number, "Other") for number in range(30)]
    lines = texts(*many, *other, ev.Warned(message="between"), *many)
    assert [text.partition(" (")[0] for text in lines if " more " in text] == [
        "warning refused 10 more refused in Docs",
        "warning refused 10 more refused in Other",
        "warning refused 10 more refused in Docs",
    ]
    assert len(texts(*[parked(number, f"model-{number % 2}") for number in range(100)])) == 100


def test_only_the_latest_lines_are_kept():
    feed = Feed()
    lines = feed.take(entry(seq, ev.Warned(message=str(seq))) for seq in range(5000))
    assert len(lines) == 4096
    assert (lines[0].text, lines[-1].text) == ("904", "4999")
    assert feed.entry(903) is None
    assert feed.entry(4999) == entry(4999, ev.Warned(message="4999"))
    assert feed.held() is lines


def test_entries_without_a_line_leave_the_very_same_lines():
    feed = Feed()
    lines = feed.take([entry(0, ev.Warned(message="a"))])
    assert feed.take([]) is lines
    assert feed.take([entry(1, batch(0)), entry(2, batch(1))]) is lines


def test_missed_entries_are_counted_in_a_line():
    feed = Feed()
    feed.take([entry(seq, refusal(seq)) for seq in range(10, 40)])
    lines = feed.take([entry(seq, refusal(seq)) for seq in range(50, 60)])
    gap = next(line for line in lines if line.word == "missed")
    assert gap.text == "10 events skipped, too fast to show (the journal has them all)"
    assert (gap.seq, feed.entry(gap.seq)) == (49, None)
    assert [line.seq for line in lines] == sorted({line.seq for line in lines})
    assert len(lines) == feeds.ONE_BY_ONE + 1 + 1 + 10


@settings(max_examples=60, deadline=None)
@given(text=HOSTILE, filled=st.booleans())
def test_hostile_names_in_every_field_give_short_plain_lines(text, filled):
    feed = Feed()
    for line in feed.take(entry(seq, example(kind, text, filled)) for seq, kind in enumerate(EVENTS)):
        assert line.text == safe(line.text, 6000)
        assert len(line.text) <= 5001


@pytest.mark.parametrize(
    ("control", "value", "said"),
    [
        ("stop", "yes", "ann asked the run to stop"), ("pause", "yes", "ann paused the run"),
        ("pause", "no", "ann resumed the run"), ("cpu_fallback", "no", "ann turned CPU fallback off"),
        ("cpu_fallback", "yes", "ann turned CPU fallback on"), ("schedule", "shared", "ann set the schedule to shared"),
    ],
)  # fmt: skip
def test_what_somebody_asked_for_is_told_as_what_it_does(control, value, said):
    assert line_of(ev.ControlApplied(control=control, value=value, who="ann")) == said


def test_a_parked_text_is_counted_from_1_among_those_of_the_run():
    assert line_of(parked(396)).startswith("warning: text 397 of the run (Docs) has no minilm vector: ")
