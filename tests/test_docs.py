"""The pages: every link within the repository leads somewhere."""

import re

import pytest

from tests.builders import ROOT

PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "bench" / "README.md",
    *sorted((ROOT / "docs").glob("*.md")),
]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_relative_link_of_a_page_leads_to_a_file(page):
    links = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text())
    assert [link for link in links if not (page.parent / link).exists()] == []


def test_readme_links_every_page():
    linked = set(re.findall(r"\]\((docs/[^)#]+)\)", (ROOT / "README.md").read_text()))
    assert {f"docs/{page.name}" for page in (ROOT / "docs").glob("*.md")} <= linked
