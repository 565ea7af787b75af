"""The pages: every link within the repository leads somewhere, and every command is one that the parser takes."""

import argparse
import re
import shlex

import pytest

from interlock.console.cli import COMMANDS, parser
from tests.builders import ROOT, interlock

PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "SECURITY.md",
    ROOT / "bench" / "README.md",
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted(ROOT.glob("docs/*.ipynb")),
]
LISTED = {name: page for page in PAGES if (name := str(page.relative_to(ROOT)))}
LEAST = 90
"""Commands that the pages have; fewer would mean that they are not found."""


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_relative_link_of_a_page_leads_to_a_file(page):
    links = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text())
    assert [link for link in links if not (page.parent / link).exists()] == []


def test_readme_links_every_page():
    linked = set(re.findall(r"\]\((docs/[^)#]+)\)", (ROOT / "README.md").read_text()))
    assert {f"docs/{page.name}" for page in (ROOT / "docs").glob("*.md")} <= linked


def test_readme_is_read_in_five_minutes():
    assert len((ROOT / "README.md").read_text().split()) <= 900


_FENCED = re.compile(r"^( *)```(\w*)\n(.*?)^\1```", re.M | re.S)
_BEGINS = re.compile(r"(?:^|(?<=[\s;&|=!\"'(`/]))interlock (?=[a-z-]+\b)")


def lines_of(text: str) -> list[str]:
    """The commands of a text that stand in lines of their own, whole; `\\` joins lines."""
    text = text.replace("\\\n", " ")
    return [line[found.start() :] for line in text.splitlines() if (found := _BEGINS.search(line.partition("#")[0]))]


def commands_of(page: str) -> list[str]:
    """The commands that a page shows in blocks, in lines of their own and between backticks."""
    blocks = [text for _, kind, text in _FENCED.findall(page) if kind in ("", "bash", "console", "yaml")]
    rest = _FENCED.sub("", page)
    own = [line for block in blocks for line in lines_of(re.sub(r"^next: ", "", block, flags=re.M))]
    own += lines_of("\n".join(line for line in rest.splitlines() if line.startswith("    interlock ")))
    between = [" ".join(each.split()) for each in re.findall(r"`([^`]+)`", rest)]
    own += [each.removeprefix(".venv/bin/") for each in between if re.match(r"(\.venv/bin/)?interlock [a-z]", each)]
    own += re.findall(r"'(interlock [a-z][^']+)'", page)
    return [each for each in own if each.split()[1] in COMMANDS or each.split()[1].startswith("-")]


def refused(line: str, capsys: pytest.CaptureFixture[str]) -> str:
    """Why the parser does not take a command, with a value in the place of each of its blanks; empty where it does."""
    line = re.sub(
        r"\[[^]]*\]| \| .*| &$", "", line
    )  # what may be left out, what reads it, and that it is not waited for
    words = [word.split("|")[0] for word in shlex.split(line, comments=True)[1:] if word not in ("...", "\\")]
    if len(words) == 1 and words[0] in COMMANDS:  # a name, not a command to be typed
        return ""
    try:
        parser().parse_args(words)
    except SystemExit as ended:
        said = capsys.readouterr()
        return f"{line}: {said.err.splitlines()[-1]}" if ended.code else ""
    return ""


@pytest.mark.parametrize("name", LISTED)
def test_every_command_of_a_page_is_one_that_the_parser_takes(name, capsys):
    wrong = [why for each in commands_of(LISTED[name].read_text()) if (why := refused(each, capsys))]
    assert wrong == []


def test_the_commands_of_the_pages_are_found():
    assert sum(len(commands_of(page.read_text())) for page in PAGES) >= LEAST


@pytest.mark.parametrize("name", ["", *COMMANDS])
def test_every_example_of_help_is_one_that_the_parser_takes(name, capsys):
    said = interlock(*[name] * bool(name), "--help").stdout.replace("\n  interlock ", "\n    interlock ")
    wrong = [why for each in commands_of(said) if (why := refused(each, capsys))]
    assert wrong == []


def test_what_stands_for_a_flag_of_the_predecessor_is_a_flag():
    (commands,) = (each for each in parser()._actions if isinstance(each, argparse._SubParsersAction))
    known = {flag for command in commands.choices.values() for flag in command._option_string_actions}
    rows = re.findall(r"^\| (.+) \| (.+) \|$", (ROOT / "docs" / "predecessor.md").read_text(), re.M)
    ours = {flag for _, here in rows for flag in re.findall(r"(?<=[` ])--[a-z-]+", here)}
    assert len(ours) > 20 and ours <= known
