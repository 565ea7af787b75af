"""The viewer on a terminal: keys, clicks, a second file, hostile text, and what a large summary costs."""

import json
import time
from copy import deepcopy

import pytest
from rich.cells import cell_len

from interlock.console.apps.base import viewer
from interlock.console.look import Look
from interlock.console.screens import summary
from interlock.console.screens.ask import Find
from interlock.console.screens.summary import SummaryScreen
from interlock.console.summary.document import Document, load
from interlock.engine.record import summary as summaries
from interlock.engine.record.rundir import RunDirectory
from interlock.widgets import tree
from interlock.widgets.nodes import Node, differences, sought
from tests.pty_harness import on_terminal
from tests.summaries import BAD, HOSTILE, a_summary, big, changed, harmless, lines_of, shows
from tools.recorded import Recorded


@pytest.fixture
def run(tmp_path):
    (tmp_path / "summary.json").write_text(json.dumps(a_summary()))
    return tmp_path


def test_on_a_terminal_the_screen_opens_and_q_leaves_it(run):
    with on_terminal("view", run, cwd=run) as terminal:
        terminal.wait_for("q Quit")
        assert "20261121-120431 completed" in terminal.screen().text
        terminal.press("q")
        assert terminal.wait() == 0
        assert b"\x1b[?1049h" in terminal.output


def test_plain_on_a_terminal_is_text(run):
    with on_terminal("view", run, "--plain", columns=200, rows=60, cwd=run) as terminal:
        assert terminal.wait() == 0
        terminal.wait_for("3 passes")
        assert b"\x1b" not in terminal.output


async def typed(pilot, key, text):
    """Press a key that asks for a line, and give it one."""
    await pilot.press(key)
    pilot.app.screen.query_one("Input").value = text
    await pilot.press("enter")


async def shown(pilot):
    await pilot.pause()
    await pilot.pause()
    return lines_of(pilot.app)


async def test_header_tree_overview_and_keys_stand_on_the_screen_at_any_size():
    app = viewer(Document(a_summary(), "run/summary.json", 12_000))
    async with app.run_test(size=(80, 24)) as pilot:
        for size in ((80, 24), (120, 40)):
            await pilot.resize_terminal(*size)
            lines = await shown(pilot)
            assert len(lines) == size[1] and all(cell_len(line) == size[0] for line in lines)
            for word in (
                "20261121-120431",
                "completed",
                "exit 0",
                "11:42",
                "3 passes",
                "1,536 batches",
                "1 mitigation",
            ):
                assert word in lines[0]
            assert "▸▼ summary.json  11.7 KiB {11}" in lines[2]
            assert any("collection  status     files  chunks" in line for line in lines)
            for word in ("? Help", "/ Find", "n Next", "enter Fold", "y Copy", "esc Back", "q Quit"):
                assert word in lines[-1]
            assert (lines[1].count("╭") == 2) == (size[0] == 120)  # tree and detail side by side
        for small in ((39, 9), (60, 15), (20, 5)):
            await pilot.resize_terminal(*small)
            assert "20261121-12" in (await shown(pilot))[0]
            await pilot.press("j", "n", "enter")
        await pilot.resize_terminal(120, 40)
        assert "Quit" in (await shown(pilot))[-1]


async def test_keys_and_clicks_open_and_close_branches_and_the_table_follows():
    app = viewer(Document(a_summary()))
    async with app.run_test(size=(80, 24)) as pilot:
        screen = app.screen
        await pilot.pause()
        await pilot.click("#tree", offset=(8, 3))
        assert screen._tree.node.path == "$.run_id"
        await pilot.click("#tree", offset=(8, 1))
        await pilot.pause()
        assert screen._tree.last_line == 0
        await pilot.click("#tree", offset=(2, 1))
        await pilot.pause()
        assert screen._tree.last_line > 0
        await pilot.click("#tree", offset=(8, 9))
        assert screen._tree.cursor_line == 8
        before = screen._tree.last_line + 1
        await typed(pilot, "slash", "passes")
        assert screen._tree.node.path == "$.collections[0].passes"
        assert any("pass  model       status" in line for line in await shown(pilot))
        opened = screen._tree.last_line + 1
        await pilot.press("enter")
        assert screen._tree.last_line + 1 == opened + 3 > before
        await pilot.press("l", "l", "j", "j")
        assert screen._tree.node.path == "$.collections[0].passes[0].model"
        assert any("same for each" in line for line in await shown(pilot))
        await pilot.press("h", "h", "h")
        assert screen._tree.node.path == "$.collections[0].passes"
        await pilot.press("left")
        assert screen._tree.last_line + 1 == opened
        await pilot.press("end", "up", "pageup", "home", "k")
        assert screen._tree.cursor_line == 0
        await pilot.press("tab", "j", "down", "G")  # in the other pane they scroll
        await shown(pilot)
        assert screen._tree.cursor_line == 0 and screen._detail.scroll_offset.y > 2
        await pilot.press("tab", "space")
        assert screen._tree.last_line + 1 == 1


async def test_a_search_counts_while_it_is_typed_n_walks_round_the_matches_and_escape_ends_it():
    app = viewer(Document(a_summary(reason="x" * 200_000)))
    async with app.run_test(size=(120, 40)) as pilot:
        tree_of = app.screen._tree
        await pilot.press("slash", *"batches")
        lines = await shown(pilot)
        assert "3 matches" in lines[-2] and "q Quit" in lines[-1]
        await shows(pilot, lambda: tree_of.node.path == "$.collections[0].passes[0].batches")
        await pilot.press("escape")
        assert "/batches" not in "\n".join(await shown(pilot))
        await pilot.press("home")
        await typed(pilot, "slash", "BATCHES")
        assert tree_of.node.path == "$.collections[0].passes[0].batches"
        assert any("/BATCHES 1 of 3" in line for line in await shown(pilot))
        await pilot.press("n", "n")
        assert tree_of.node.path == "$.collections[0].passes[2].batches"
        await pilot.press("n", "N")
        assert tree_of.node.path == "$.collections[0].passes[2].batches"
        await typed(pilot, "slash", "nowhere[/]")
        assert any("no match for" in line for line in await shown(pilot))
        await pilot.press("n")
        assert any("nothing to step through" in line for line in await shown(pilot))
        await typed(pilot, "slash", "minilm")
        await pilot.press("y")
        assert app.clipboard == "$.collections[0].passes[1].model"
        await pilot.press("Y")
        assert app.clipboard == "minilm-l6"
        assert any("copied the value: minilm-l6" in line for line in await shown(pilot))
        await typed(pilot, "slash", "xxx")
        await pilot.press("Y")
        assert any("too large for a terminal's clipboard" in line for line in await shown(pilot))
        assert app.clipboard == "minilm-l6"
        await pilot.press("slash", "escape", "escape")
        assert any("q leaves" in line for line in await shown(pilot))
        line = Find("/", "", lambda text: "")
        line.tell("1 match")  # before it is there, and after it has gone
        app.push_screen(line)
        await pilot.pause()
        assert "1 match" not in (await shown(pilot))[-2]
        await pilot.press("escape")
        line.tell("2 matches")
        await pilot.pause()
        assert isinstance(app.screen, SummaryScreen)


async def test_a_large_summary_is_searched_in_slices_and_escape_ends_it(monkeypatch):
    monkeypatch.setattr(summary, "SLICE", 1e-4)  # so that no machine is too fast for it
    many = [{"name": f"item {number}", "values": list(range(20))} for number in range(20_000)]
    app = viewer(Document(a_summary(devices=many)))
    async with app.run_test(size=(80, 24)) as pilot:
        screen = app.screen
        await pilot.press("slash")
        app.screen.query_one("Input").value = "item 19999"
        await pilot.pause()
        assert not screen._search.over
        assert "searching..." in "\n".join(lines_of(app))
        await pilot.press("escape")
        assert screen._search.over and not screen._search.text
        await typed(pilot, "slash", "item 19999")
        for _ in range(600):
            if "/item 19999 1 of 1 " in "\n".join(lines_of(app)):
                break
            await pilot.pause(0.05)
        assert screen._tree.node.value == "item 19999"


async def test_a_second_file_is_compared_and_n_walks_the_differences(tmp_path):
    (first := tmp_path / "a.json").write_text(json.dumps(a_summary()))
    (second := tmp_path / "b.json").write_text(json.dumps(changed()))
    app = viewer(load(first))
    async with app.run_test(size=(80, 24)) as pilot:
        await typed(pilot, "o", str(second))
        lines = await shown(pilot)
        assert lines[0].startswith("1 ") and lines[1].startswith("2 ")
        assert any("3 differences: - only in the first, + only in the second" in line for line in lines)
        assert any("differences 3" in line for line in lines)
        marks = []
        for _ in range(3):
            await pilot.press("n")
            marks.append((app.screen._tree.node.mark, app.screen._tree.node.path))
            lines = await shown(pilot)
        assert marks == [
            ("~", "$.collections[0].passes[1].batches"),
            ("+", "$.collections[0].passes[0]"),
            ("-", "$.collections[0].mitigations[0]"),
        ]
        await pilot.press("N", "N")
        lines = await shown(pilot)
        assert any("~" in line and "batches: 512 -> 511" in line for line in lines)
        assert any("second  511  (-1, -0.2%)" in line for line in lines)


async def test_a_bad_second_file_is_told_in_a_line_and_the_screen_stays(tmp_path):
    cases = {f"{tmp_path}/no": "does not exist", "~nobody-here/x": "", str(tmp_path): "no summary.json in this"}
    for name in ("empty", "NaN", "later"):
        (bad := tmp_path / f"{name}\x1b[2J[red].json").write_bytes(BAD[name][0])
        cases[str(bad)] = BAD[name][1]
    app = viewer(Document(a_summary()))
    async with app.run_test(size=(80, 24)) as pilot:
        for path, why in cases.items():
            await typed(pilot, "o", path)
            lines = await shown(pilot)
            assert why in " ".join("".join(lines[-5:-1]).split())
            assert isinstance(app.screen, SummaryScreen) and "20261121-120431" in lines[0]
            await pilot.press("j")
            assert "Quit" in (await shown(pilot))[-1]


async def test_a_comparison_opened_at_once_is_the_same():
    app = viewer(Document(a_summary()), Document(changed(), "b"), Look(ascii=True))
    async with app.run_test(size=(80, 24)) as pilot:
        lines = await shown(pilot)
    assert all(line.isascii() for line in lines)
    assert any("1 and 2 {11}  3 differences" in line for line in lines)


@pytest.mark.parametrize("size", [(80, 24), (120, 40)], ids=["80x24", "120x40"])
async def test_hostile_text_breaks_nothing_and_draws_no_escape(size):
    hostile = {f"{text[:40]}{number}": [text, {text[:20]: text, "name": text}] for number, text in enumerate(HOSTILE)}
    data = a_summary(run_id="\x1b[2J[/]", status="[red]", warnings=HOSTILE, **hostile)
    app = viewer(Document(data, "\x1b[/].json"), Document(a_summary(**{"[/]0": 1})))
    async with app.run_test(size=size) as pilot:
        for key in [
            "end",
            "l",
            "l",
            "k",
            "l",
            "n",
            "n",
            "y",
            "Y",
            "tab",
            "j",
            "down",
            "slash",
            "escape",
            "question_mark",
        ]:
            await pilot.press(key)
            lines = await shown(pilot)
            assert all(harmless(line) and cell_len(line) == size[0] for line in lines)


async def test_a_document_nested_beyond_reading_is_opened_as_far_as_a_summary_goes():
    deep = "bottom"
    for _ in range(800):
        deep = [deep]
    app = viewer(Document(a_summary(deep=deep)))
    async with app.run_test(size=(80, 24)) as pilot:
        await typed(pilot, "slash", "bottom")
        await shows(pilot, lambda: len(app.screen._tree.node.steps) == tree.DEEPEST)
        assert any("1 match" in line or "1 of" in line or "/bottom 1" in line for line in await shown(pilot))


async def test_escape_goes_back_to_the_screen_below_and_theme_help_and_palette_come_when_asked_for():
    app = viewer(Document(a_summary()))
    async with app.run_test(size=(80, 24)) as pilot:
        theme, below = app.theme, app.screen
        await pilot.press("t")
        assert app.theme != theme
        await pilot.press("question_mark")
        page = await shown(pilot)
        assert any("copy the value" in line for line in page)
        assert not any("1 Memory" in line for line in page)  # signs that only the screen of a run has
        await pilot.press("escape", "colon")
        await pilot.pause()
        await pilot.press(*"Fold", "enter")
        await pilot.pause(0.3)
        assert app.screen is below
        app.push_screen(SummaryScreen(Document(a_summary())))
        await pilot.pause()
        above = app.screen
        await typed(pilot, "slash", "run")
        await pilot.press("escape")
        assert app.screen is above
        await pilot.press("escape")
        assert app.screen is below
        await pilot.press("q")
    assert app.return_value is None


async def test_of_14_000_nodes_only_the_visible_are_made(record_property, capsys):
    data = big(14_000)
    app = viewer(Document({"schema_version": "1"}))
    async with app.run_test(size=(80, 24)) as pilot:
        began = time.perf_counter()
        screen = SummaryScreen(Document(data))
        await app.push_screen(screen)
        await pilot.pause()
        painted = time.perf_counter() - began
        assert screen._tree.last_line < 60
        began = time.perf_counter()
        screen._tree.reveal(("collections", 0, "leases"))
        screen.action_fold()
        await pilot.pause()
        opened = time.perf_counter() - began
    record_property("seconds", painted + opened)
    with capsys.disabled():
        print(f"\n14k nodes: shown in {painted * 1000:.0f} ms, the longest list opened in {opened * 1000:.0f} ms")
    assert painted + opened < 1.5


def test_14_000_nodes_are_compared_and_searched_quickly(capsys):
    data = big(14_000)
    began = time.perf_counter()
    assert differences(Node((), data, deepcopy(data))) == []
    compared = time.perf_counter() - began
    began = time.perf_counter()
    assert any(steps is not None for steps in sought(Node((), data), "halved"))
    found = time.perf_counter() - began
    with capsys.disabled():
        print(f"\n14k nodes: compared in {compared * 1000:.0f} ms, searched in {found * 1000:.0f} ms")
    assert compared + found < 5


async def test_a_file_of_ten_mebibytes_opens_in_seconds(tmp_path, record_property, capsys):
    (file := tmp_path / "summary.json").write_text(json.dumps(big(430_000), indent=2))
    assert file.stat().st_size > 10 * 2**20
    began = time.perf_counter()
    app = viewer(load(file))
    async with app.run_test(size=(80, 24)) as pilot:
        await shown(pilot)
        opened = time.perf_counter() - began
    record_property("seconds", opened)
    with capsys.disabled():
        print(f"\n{file.stat().st_size / 2**20:.0f} MiB: opened in {opened:.2f} s")
    assert opened < 15


def test_the_summary_of_a_run_that_goes_on_is_that_of_now(tmp_path):
    run = Recorded(RunDirectory(tmp_path / "run"))
    run.play_to(0.1)
    summaries.write(run.recorder.look(summaries.summarise), run.directory.summary)
    run.play_to(0.6)
    told = load(tmp_path / "run").data
    assert told["share_done"] > 0.4 and told["exit_code"] is None
    (tmp_path / "run" / "journal.jsonl").write_bytes(b"")
    assert load(tmp_path / "run").data["share_done"] < 0.2
    run.close()
