"""The pictures of the console: the same bytes each time, with nothing of this machine in them."""

import os
import re

import pytest

from tests.builders import ROOT
from tools import screenshots as shots
from tools.screenshots import SHOTS, SIZES, main, pictures, steady

MAIN = next(shot for shot in SHOTS if shot.name == "main")
SETUP = next(shot for shot in SHOTS if shot.name == "setup")


@pytest.fixture
def one_size(monkeypatch):
    monkeypatch.setattr(shots, "SIZES", SIZES[:1])


def taken(*wanted):
    with steady():
        return dict(pictures(wanted))


def test_pictures_taken_under_other_zones_and_wishes_have_the_same_bytes(one_size, monkeypatch):
    first = taken(MAIN, SETUP)
    for name, value in {"TZ": "Asia/Tokyo", "NO_COLOR": "1", "TEXTUAL_THEME": "nord", "USER": "ada"}.items():
        monkeypatch.setenv(name, value)
    assert taken(MAIN, SETUP) == first
    assert os.environ["TZ"] == "Asia/Tokyo"
    text = first["main-80x24"].decode().replace("&#160;", " ")
    assert "SIMULATED" in text and "08:01:" in text and not re.search(r"terminal-\d|/tmp|ada", text)


def test_missing_or_different_pictures_are_named_and_nothing_is_written(one_size, tmp_path, capsys):
    assert main([str(tmp_path), "--check", "--only", "main"]) == 1
    assert "main-80x24" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
    (tmp_path / "main-80x24.svg").write_bytes(taken(MAIN)["main-80x24"])
    assert main([str(tmp_path), "--check", "--only", "main"]) == 0


def test_a_png_has_every_character_in_its_cell(one_size):
    pytest.importorskip("cairosvg")
    assert shots.png_of(taken(MAIN)["main-80x24"]).startswith(b"\x89PNG")
    run = '<text class="a" x="12.2" y="20" textLength="36.6" clip-path="b">a&#160;b</text>'
    placed = shots._TEXT.sub(shots._letter_by_letter, run)
    assert placed == '<text class="a" x="12.20 24.40 36.60" y="20"  clip-path="b">a&#160;b</text>'


def test_each_committed_picture_is_there_at_each_size():
    wanted = {f"{shot.name}-{width}x{height}" for shot in SHOTS for width, height in shot.sizes or SIZES}
    for kind in ("svg", "png"):
        assert wanted <= {file.stem for file in (ROOT / "screenshots").glob(f"*.{kind}")}
