"""A wheelhouse has everything that is needed but what the machine has itself."""

from tools.wheelhouse import needed

REQUIRES = {
    "own": ["torch>=2", "Ready_Made>=1 ; python_version < '3.12'", "shared", "tests ; extra == 'dev'"],
    "torch": ["sympy", "shared"],
    "ready-made": ["own", "deep[extra]"],
    "deep": ["beyond ; extra == 'extra'", "never ; extra == 'other'"],
    "beyond": [],
    "shared": [],
    "sympy": [],
}


def test_what_is_needed_is_listed_to_its_end_and_once():
    assert needed("own", python="3.11", requires=REQUIRES.__getitem__) == [
        *("beyond", "deep", "ready-made", "shared", "sympy", "torch")
    ]


def test_what_the_machine_has_is_left_out_with_what_that_alone_needs():
    assert needed("own", ("torch",), python="3.11", requires=REQUIRES.__getitem__) == [
        *("beyond", "deep", "ready-made", "shared")
    ]


def test_another_python_needs_other_packages():
    assert needed("own", ("torch",), python="3.12", requires=REQUIRES.__getitem__) == ["shared"]


def test_the_list_of_this_installation_has_what_the_project_names_and_no_tools_of_its_development():
    names = needed("interlock", ("torch",))
    assert {"transformers", "msgspec", "qdrant-edge-py", "textual"} <= {*names}
    assert not {"torch", "triton", "pytest", "mypy", "interlock"} & {*names}
