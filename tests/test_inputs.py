"""What a run is tied to: it says only what is not as usual, and what changed is told by setting, with both values."""

import pytest

from interlock.engine.record.inputs import changes

ENTRY = {
    "model": "a", "weight": 1.0, "fingerprint": "ab" * 32, "dim": 384, "dtype": "float32", "max_tokens": 256,
    "document_prompt": "", "query_prompt": "", "batch_tokens": 2048,
}  # fmt: skip
INPUTS = {"schema_version": "1", "chunks": "/in", "fusion": "concat", "threads": 2, "files": {"Docs/a; b.json": "cd"}}
TOKENS = {"dim": 24, "precision": "int8", "pooling": 1}
SPLIT = {"overlap": 0.125}


def told(was: dict[str, object], now: dict[str, object]) -> list[str]:
    begun, wanted = ({**INPUTS, "roster": [{**ENTRY, **each}]} for each in (was, now))
    return list(changes(begun, wanted))


@pytest.mark.parametrize(
    ("was", "now", "wanted"),
    [
        (SPLIT, {}, ["long texts of a were split into spans, which this version does not do"]),
        ({}, {"dim": 128}, ["--dim of a was 384, is now 128"]),
        ({}, {"max_tokens": 512, "dtype": "float16"}, [
            'dtype of a was "float32", is now "float16"', "max_tokens of a was 256, is now 512",
        ]),
        ({"tokens": TOKENS}, {"tokens": TOKENS | {"precision": "bit", "pooling": 2}}, [
            "--token-pooling of a was 1, is now 2", '--token-precision of a was "int8", is now "bit"',
        ]),
        ({}, {"tokens": TOKENS, "outputs": ["dense", "tokens"]}, [
            'outputs of a was ["dense"], is now ["dense", "tokens"]',
            '--token-vectors of a was null, is now {"dim": 24, "precision": "int8", "pooling": 1}',
        ]),
        ({}, {"terms": {"most": 64}}, ['terms of a was null, is now {"most": 64}']),
    ],
)  # fmt: skip
def test_a_setting_of_a_model_is_told_with_both_values_though_one_went_unsaid(was, now, wanted):
    assert told(was, now) == wanted


def test_what_is_said_though_it_is_as_usual_is_no_change():
    said = {"overlap": None, "outputs": [], "kind": "dense", "words": 0, "heads": {}, "tokens": None, "terms": None}
    assert told({}, said) == told(said, {"outputs": ["dense"]}) == []


def test_what_another_version_said_of_a_model_is_a_change():
    assert told({"colour": "red"}, {}) == ["colour of a is missing"]


def test_settings_of_the_run_are_told_with_both_values_and_files_by_name():
    begun = {**INPUTS, "roster": [ENTRY]}
    now = {**begun, "chunks": "/elsewhere", "fusion": "named", "threads": 4, "files": {"Docs/c.json": "cd"}}
    assert list(changes(begun, now)) == [
        '--fusion was "concat", is now "named"',
        "--threads was 2, is now 4",
        "files.Docs/a; b.json is missing",
        "files.Docs/c.json is new",
    ]


def test_of_another_roster_only_the_names_and_weights_are_told():
    begun, now = ({**INPUTS, "roster": [{**ENTRY, **each}]} for each in ({}, {"model": "b", "dim": 8}))
    assert list(changes(begun, now)) == ["roster was a=1, is now b=1"]
