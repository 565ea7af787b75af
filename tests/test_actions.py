"""One registry of actions: no key means two things, every action has a method, and a file may give it another key."""

import pytest

from interlock.console.actions import ACTIONS, MAIN, SCREENS, SETUP, actions_of, keymap
from interlock.console.screens.main import Main
from interlock.console.screens.setup import Setup
from interlock.engine.errors import UsageError


@pytest.mark.parametrize("screen", SCREENS)
def test_GIVEN_a_screen_WHEN_its_keys_are_counted_THEN_each_means_one_thing(screen):
    keys = [key for action in actions_of(screen) for key in action.key.split(",")]
    assert len(keys) == len(set(keys))


@pytest.mark.parametrize(("name", "screen"), [(MAIN, Main), (SETUP, Setup)])
def test_GIVEN_an_action_WHEN_looked_for_THEN_its_screen_has_the_method(name, screen):
    assert [action.name for action in actions_of(name) if not hasattr(screen, f"action_{method(action.name)}")] == []


def method(name: str) -> str:
    return name.partition("(")[0]


def test_GIVEN_the_registry_WHEN_read_THEN_every_action_has_an_id_of_its_own_and_says_what_it_does():
    assert len({action.id for action in ACTIONS}) == len(ACTIONS)
    assert all(len(action.help) > 5 and action.label for action in ACTIONS)


def test_GIVEN_keys_in_a_file_WHEN_they_are_good_THEN_they_are_taken():
    assert keymap({"stop": "f9", "find-next": "f8"}) == {"stop": "f9", "find-next": "f8"}


@pytest.mark.parametrize(
    ("keys", "said"),
    [({"explode": "x"}, "unknown action 'explode'"), ({"stop": "x"}, "'x' is assigned to both exclusive and stop")],
)
def test_GIVEN_keys_in_a_file_WHEN_they_cannot_be_THEN_it_is_said(keys, said):
    with pytest.raises(UsageError, match=said):
        keymap(keys)
