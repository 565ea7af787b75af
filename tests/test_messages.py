"""Every message of the program as a user meets it: the page that lists them is that of the code, and reads well."""

import re
from typing import get_args

import pytest

from interlock.engine.record import events as ev
from tools import messages

PAGE = messages.ROOT / "docs" / "messages.md"
CLUMSY = re.compile(
    r"\b(is no (?!\w+ left)|are no |cannot be had|there are:|leave (it )?out\b|give the\b|put back|mend that|"
    r"do it again|computed anew|goes on|was begun|not to be had|of another meaning|without a word|is none of)"
)
"""Turns of phrase that read as a translation."""


@pytest.fixture(scope="module")
def found():
    """Reading the source for them takes seconds."""
    return messages.collect()


def test_the_page_of_messages_is_that_of_the_code():
    assert PAGE.read_text() == messages.page(), "a message changed: read it once more, then run make generate"


def test_a_message_reads_as_an_engineer_would_write_it(found):
    said = [each.text for each in found]
    assert [each for each in said if CLUMSY.search(each)] == []
    assert [each for each in said if "  " in each.replace("\n  ", "\n")] == []
    assert [each for each in said if each.endswith(".") or each != each.rstrip(" ;:,")] == []


@pytest.mark.parametrize("count", [1, 2, 260])
@pytest.mark.parametrize("kind", get_args(ev.AnyEvent))
def test_an_event_line_agrees_with_its_number(kind, count):
    line = messages.describe(messages.sample(kind, count), "cuda").text
    assert not re.search(
        r"(?<![\d,.])1 (committed )?(texts|rows|batches|chunks|files|tokens|vectors|models|retries)\b", line
    )
    assert not re.search(
        r"(?<!pass )\b(2|260) (committed )?(text|row|batch|chunk|file|token|vector|model|retry)\b", line
    )


@pytest.mark.parametrize(
    "text",
    [
        "nothing to embed: {refusals}",  # in two parts
        "--fusion mean mixes unrelated vector spaces and scored below concat in every measurement",  # in a variable
        "{name} was {had}, is now {have}: the last bits of vectors may differ",  # handed out one by one
        "{path} was written with other settings ({few}): choose another store directory, or delete that directory",
        "no chunk files",  # in one arm of a choice
        "streaming layers from the host",  # in the ladder's table
    ],
)
def test_a_message_is_found_wherever_the_code_keeps_it(found, text):
    assert text in {each.text for each in found}


def test_every_kind_of_message_has_its_section(found):
    assert {each.kind for each in found} == set(messages.TITLES)
