"""One registry of actions: no key means two things, every action has a method, and a file may give it another key."""

import pytest

from interlock.console.actions import ACTIONS, MAIN, SCREENS, SETUP, actions_of, keymap
from interlock.console.screens.main import Main
from interlock.console.screens.setup import Setup
from interlock.engine.errors import UsageError


@pytest.mark.parametrize("screen", SCREENS)
def test_every_key_of_a_screen_means_one_thing(screen):
    keys = [key for action in actions_of(screen) for key in action.key.split(",")]
    assert len(keys) == len(set(keys))


@pytest.mark.parametrize(("name", "screen"), [(MAIN, Main), (SETUP, Setup)])
def test_every_action_has_its_method_on_its_screen(name, screen):
    assert [action.name for action in actions_of(name) if not hasattr(screen, f"action_{method(action.name)}")] == []


def method(name: str) -> str:
    return name.partition("(")[0]


def test_every_action_has_its_own_id_and_a_description():
    assert len({action.id for action in ACTIONS}) == len(ACTIONS)
    assert all(len(action.help) > 5 and action.label for action in ACTIONS)


def test_good_keys_in_a_file_are_taken():
    assert keymap({"stop": "f9", "find-next": "f8"}) == {"stop": "f9", "find-next": "f8"}


@pytest.mark.parametrize(
    ("keys", "said"),
    [({"explode": "x"}, "unknown action 'explode'"), ({"stop": "x"}, "'x' is assigned to both stop and exclusive")],
)
def test_impossible_keys_in_a_file_are_refused_with_the_reason(keys, said):
    with pytest.raises(UsageError, match=said):
        keymap(keys)
