"""The form of a new run: what is filled in, what is marked and why, what it finds, and that nothing typed is lost."""

from contextlib import asynccontextmanager

import pytest
from textual import events

from interlock.console.apps.base import Form
from interlock.console.cli import configuration, parse
from interlock.console.form import (
    FIELDS,
    Filled,
    Machine,
    ModelRow,
    as_begun,
    as_configured,
    command_of,
    misread,
    placed,
    problems,
    toggled,
)  # fmt: skip
from interlock.console.look import Look
from interlock.console.screens.ask import Dialog
from interlock.console.screens.entry import Browse, completed
from interlock.console.screens.lists import Listing
from interlock.console.screens.planning import plan_rows
from interlock.console.screens.setup import Setup
from interlock.console.text import form_text
from interlock.engine.corpus.collections import glance
from interlock.engine.models.registry import REGISTRY
from interlock.engine.record.facts import Setting
from interlock.engine.settings import load, recorded
from interlock.widgets.text import plain, width_of
from tests.builders import corpus, interlock, sentences, toml
from tests.summaries import lines_of, shows


@pytest.fixture
def place(tmp_path, monkeypatch, tiny_a):
    """A directory with chunks, an empty one, and a configuration file with one small model."""
    corpus(tmp_path / "chunks", {"Docs": {"a_chunks.json": sentences(20)}, "More": {"m.jsonl": sentences(5)}})
    (tmp_path / "empty").mkdir()
    toml(tmp_path / "models.toml", {"one": {"source": str(tiny_a)}})
    with (tmp_path / "models.toml").open("r+") as file:
        text = file.read()
        file.seek(0)
        file.write(f'roster = ["one"]\ndevices = "cpu"\n{text}')
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("INTERLOCK_CONFIG", str(tmp_path / "models.toml"))
    return tmp_path


def machine():
    return Machine(load({}))


@asynccontextmanager
async def shown(size=(80, 24), filled=None, failed="", **look):
    app = Form(Look(**look), machine(), filled, failed, driver=None)
    async with app.run_test(size=size) as pilot:
        await pilot.pause()
        yield app, pilot


async def until(pilot, says):
    """The lines of the screen once they say this."""
    await shows(pilot, lambda: says in "\n".join(lines_of(pilot.app)))
    return lines_of(pilot.app)


def fill(app, **texts):
    for name, text in texts.items():
        app.screen.query_one(f"#{name}").value = text


def filled(**texts):
    return Filled({**as_configured(load({}, {}).settings).texts, **texts})


def test_a_command_has_only_what_differs_from_the_settings():
    settings = load({}, {}).settings
    assert command_of(filled(chunks="docs"), settings) == ["run", "docs"]
    words = command_of(filled(chunks="-docs", ceiling="10GiB", qdrant="-s", flags="--dim 256 --shared"), settings)
    assert words == ["run", "./-docs", "--ceiling", "10GiB", "--qdrant=-s", "--dim", "256", "--shared"]
    assert parse(words).dim == "256"


@pytest.mark.parametrize(
    ("begun", "typed"),
    [
        ("all-minilm-l6,all-mpnet-base-v2", "all-minilm-l6,all-mpnet-base-v2"),
        ("all-minilm-l6=1,all-mpnet-base-v2=1", "all-minilm-l6=1,all-mpnet-base-v2=1"),
        ("all-minilm-l6,bge-m3", "all-minilm-l6,bge-m3"),
        ("all-minilm-l6=0.5,bge-m3", "all-minilm-l6=0.5,bge-m3"),
    ],
)
def test_a_roster_is_typed_without_weights_where_these_are_the_usual_ones_and_never_changes_its_meaning(begun, typed):
    settings = load({"roster": begun}, {}).settings
    text = as_configured(settings).text("roster")
    assert (text, load({"roster": text}, {}).settings.roster) == (typed, settings.roster)


def test_the_order_in_which_models_are_ticked_is_that_of_the_roster():
    roster = "bge-m3=0.5, hf:a/b=2"
    assert toggled(roster, "all-minilm-l6") == "bge-m3=0.5,hf:a/b=2,all-minilm-l6"
    assert toggled(roster, "bge-m3") == "hf:a/b=2" and toggled("", "one") == "one"
    assert placed(f"{roster},all-minilm-l6") == {"bge-m3": "1", "hf:a/b": "2", "all-minilm-l6": "3"}
    words = command_of(filled(chunks="d", roster=roster), load({}, {}).settings)
    assert words == ["run", "d", "--roster", roster]


@pytest.mark.parametrize(
    ("texts", "field", "said"),
    [
        ({"chunks": ""}, "chunks", "name the directory"),
        ({"chunks": "nowhere"}, "chunks", "no such directory"),
        ({"chunks": "~nobody-at-all/x"}, "chunks", "no such directory"),
        ({"roster": "bge-m"}, "roster", "did you mean bge-m3?"),
        ({"roster": "hf:a/b=heavy"}, "roster", "expected a number as the weight of hf:a/b"),
        ({"roster": ""}, "roster", "expected at least one model"),
        ({"roster": "bge-m3=0"}, "roster", "weight above 0"),
        ({"ceiling": "twelve"}, "ceiling", "expected a size such as 12GiB"),
        ({"ceiling": ""}, "ceiling", "expected a size"),
        ({"fusion": "sum"}, "fusion", "expected one of concat, named, mean"),
        ({"qdrant": "http://host:6333"}, "qdrant", "expected a directory"),
        ({"out": ""}, "out", "expected a path"),
        ({"run_id": "../x"}, "run_id", "expected letters"),
        ({"flags": "--dim 'x"}, "flags", "no closing quotation"),
        ({"flags": "--dimm 2"}, "flags", "did you mean --dim?"),
        ({"flags": "--dim many"}, "flags", "--dim: expected a whole number"),
        ({"flags": "--help"}, "flags", "expected flags of"),
    ],
)
def test_each_mistake_is_told_at_its_field(place, texts, field, said):
    wrong = problems(filled(**{"chunks": "chunks"} | texts), REGISTRY)
    assert list(wrong) == [field]
    assert said in wrong[field]


def test_what_a_run_was_begun_with_makes_the_same_settings_again(place):
    given = {
        "dim": "256", "window": "shared", "roster": "bge-m3=0.5,hf:a/b", "ceiling": "600MiB", "warm": "1GiB",
        "faults": "oom:40,lose@cuda:1:400", "devices": "sim:2xT4", "collections": "a,b c", "qdrant": "s",
        "bm25": "german", "chunk_sparse": "terms",
    }  # fmt: skip
    begun = load(given, {})
    again = as_begun("chunks", recorded(begun), load({}, {}).settings)
    assert again.texts["roster"] == "bge-m3=0.5,hf:a/b"
    assert again.texts["ceiling"] == "600MiB"
    options = parse(command_of(again, load({}, {}).settings))
    now = load({name: value for name in given if (value := getattr(options, name)) is not None}, {})
    assert recorded(now).keys() == recorded(begun).keys()
    assert [name for name, each in recorded(now).items() if each.value != recorded(begun)[name].value] == []
    assert misread(command_of(again, load({}, {}).settings)) == ""


def test_a_run_of_an_earlier_version_fills_the_form_with_the_settings_that_there_are():
    begun = {
        "bm25": True,
        "bm25_language": "german",
        "exclusive": False,
        "window": 0,
        "partial": True,
        "deadline": "8h",
    }
    again = as_begun(
        "chunks", {name: Setting(value, "default") for name, value in begun.items()}, load({}, {}).settings
    )
    assert again.texts["flags"] == "--window shared --bm25 german --deadline 8h,export"
    plain = {"bm25": Setting(True, "default"), "bm25_language": Setting("english", "default")}
    assert as_begun("chunks", plain, load({}, {}).settings).texts["flags"] == ""


def test_a_glance_counts_collections_files_and_about_how_many_chunks(place):
    found, whole = glance(place / "chunks")
    assert whole
    assert [(each.name, each.files) for each in found] == [("Docs", 1), ("More", 1)]
    assert found[1].chunks == 5
    assert 15 <= found[0].chunks <= 25
    assert glance(place / "empty") == ([], True)
    assert glance(place / "chunks", most=1)[1] is False
    assert glance(place / "chunks", lambda: True)[1] is False


def test_a_path_is_completed_to_a_directory(place):
    assert completed("ch") == "chunks/"
    assert completed("chunks/D") == "chunks/Docs/"
    assert completed(str(place)[:-1]) is not None
    assert (completed(""), completed("nowhere/x"), completed("chunks/Docs/")) == (None, None, None)


@pytest.mark.parametrize("width", [1, 12, 40, 60, 100])
def test_models_are_rows_of_the_width_and_ticked_ones_have_their_place(width):
    models = [ModelRow("alpha", 384, 256, "English", "MIT", True, 1 << 20), ModelRow("b" * 30, licence="x" * 60)]
    heads, lines = form_text.models(models, {"b" * 30: "1", "alpha": "2"}, width)
    assert {sum(width_of(span.text) for span in each) for each in [heads, *lines]} == {width}
    text = "\n".join(plain(lines))
    if width >= 40:
        assert "[2] alpha" in text and "[1] bbb" in text
    if width >= 60:
        assert "1.0 MiB" in text
    if width >= 100:
        assert all(word in text for word in ("256", "English"))


@pytest.mark.parametrize("width", [20, 46, 78, 120])
def test_a_plan_is_rows_that_fit_and_says_what_does_not(place, width):
    seen = machine().plan(["run", "chunks"])
    assert max(sum(width_of(span.text) for span in each) for each in plan_rows(seen, width)) <= width
    small = machine().plan(["run", "chunks", "--ceiling", "1KiB"])
    assert "raise --ceiling" in " ".join(plain(plan_rows(small, 200)))


def test_the_machine_says_which_models_are_here_and_how_large_they_are(place):
    found = {each.key: each for each in machine().looked_at()}
    assert found["one"].here and found["one"].size and found["one"].dim == 32
    assert configuration(parse(["run", "x"])).settings.roster == (("one", 1.0),)


async def test_the_form_shows_collections_models_and_the_plan_of_the_command_beside_it(place):
    async with shown((120, 40)) as (app, pilot):
        await until(pilot, "one          ")
        fill(app, chunks="empty")
        await until(pilot, "no collections in empty: a collection is a directory with")
        fill(app, chunks="chunks")
        lines = await until(pilot, "2 collections")
        assert any("interlock run chunks" in line for line in lines[-3:])
        lines = await until(pilot, "1 pass, 1 batch")
        assert any("Docs" in line for line in lines)
        fill(app, ceiling="1KiB")
        await until(pilot, "plan before these changes")
        await until(pilot, "does not fit")
        assert any("interlock run chunks --ceiling 1KiB" in line for line in lines_of(app)[-3:])


async def test_mistakes_are_marked_and_hold_the_run_and_the_focus_goes_to_the_first(place):
    async with shown((80, 30)) as (app, pilot):
        fill(app, chunks="chunks", roster="nobody", ceiling="twelve")
        await pilot.press("ctrl+r")
        lines = await until(pilot, "X fix: models, ceiling")
        assert not any("interlock run" in line for line in lines[-4:])
        assert app.screen.focused.id == "roster"
        assert any(line.strip().startswith("X models") for line in lines)
        fill(app, roster="one")
        await pilot.press("ctrl+r")
        await until(pilot, "X ceiling twelve")
        assert app.screen.focused.id == "ceiling"
        fill(app, ceiling="2GiB")
        await pilot.press("ctrl+r")
        await shows(pilot, lambda: not app.is_running or app.return_value)
    assert command_of(app.return_value, load({}).settings) == ["run", "chunks", "--ceiling", "2GiB"]


async def test_the_form_begins_from_an_earlier_run_and_what_a_look_at_the_machine_shows_comes_back_to_its_field(place):
    flags = ("--run-id", "old", "--quiet", "--config", "models.toml", "--ceiling", "3GiB", "--window", "2")
    interlock("run", "chunks", *flags, cwd=place)
    async with shown((100, 40)) as (app, pilot):
        await pilot.press("ctrl+g")
        await until(pilot, "DONE")
        assert isinstance(app.screen, Listing)
        await pilot.press("enter")
        lines = await until(pilot, "--ceiling 3GiB")
        assert isinstance(app.screen, Setup)
        assert app.screen.filled.texts["chunks"] == str(place / "chunks")
        assert any("--window 2" in line for line in lines)
        assert app.screen.filled.text("roster") == "one"
        fill(app, chunks="chunks", run_id="old")
        await pilot.press("ctrl+r")
        await until(pilot, "already exists")
        assert app.screen.focused.id == "run_id"
        assert app.screen.query_one("#chunks").value == "chunks"
        fill(app, run_id="", out="chunks/runs")
        await pilot.press("ctrl+r")
        await until(pilot, "is inside")
        assert app.screen.focused.id == "out"


async def test_a_failed_beginning_comes_back_with_everything_that_was_typed(place):
    before = Filled({**machine().empty().texts, "chunks": "chunks", "flags": "--dim 8", "roster": "bge-m3=2"})
    async with shown(filled=before, failed="the run did not begin: no such thing") as (app, pilot):
        await until(pilot, "the run did not begin: no such thing")
        assert app.screen.filled == before


async def test_models_are_ticked_and_devices_chosen_from_lists_of_those_that_are_here(place):
    async with shown((60, 20)) as (app, pilot):
        app.screen.query_one("#models").focus()
        await pilot.press("down", "down")
        await until(pilot, "bge-m3: languages 100+, licence MIT")
        await pilot.resize_terminal(80, 40)
        fill(app, chunks="chunks")
        await pilot.press("up", "up", "space", "down", "enter")
        roster = app.screen.query_one("#roster")  # the line above them
        assert roster.value == "one,all-minilm-l6,all-mpnet-base-v2"
        roster.value = "all-mpnet-base-v2=2,one"
        lines = await until(pilot, "[1] all-mpnet-base-v2")
        assert any("[2] one" in line for line in lines) and any("[ ] all-minilm-l6" in line for line in lines)
        await pilot.press("space")
        assert roster.value == "one"
        await pilot.press("up", "up")
        assert app.screen.focused is roster
        devices = app.screen.query_one("#devices")
        devices.focus()
        await until(pilot, "here: no GPU, cpu")
        assert devices.value == "cpu"
        await pilot.press("enter", "down", "enter")
        await until(pilot, "--devices sim:2xT4")
        assert devices.value == "sim:2xT4"


async def test_a_path_is_taken_from_the_tree_or_completed_and_leaving_asks_only_where_something_was_typed(place):
    async with shown() as (app, pilot):
        await pilot.press("ctrl+g")
        await until(pilot, "no runs in runs yet")
        await pilot.press("escape")
        assert isinstance(app.screen, Setup)
        (place / "runs").mkdir()
        runs, chunks = (app.screen.query_one(name) for name in ("#out", "#chunks"))
        runs.focus()
        await pilot.pause(0.3)
        await pilot.press("tab")  # nobody touched it
        assert runs.value == "runs" and app.screen.focused is not runs
        chunks.focus()
        await pilot.press("ctrl+o")
        assert isinstance(app.screen, Browse)
        await until(pilot, "empty")
        await pilot.press("down", "enter")
        assert chunks.value == "chunks/"
        fill(app, chunks="")
        await pilot.press("e")
        await shows(pilot, lambda: chunks._suggestion)
        await pilot.press("tab")
        assert chunks.value == "empty/"
        await pilot.press("tab")
        assert app.screen.focused.id == "roster"
        app.screen._fill(Filled({**app.screen.filled.texts, "chunks": "chunks"}))
        chunks.focus()
        await pilot.pause(0.3)
        await pilot.press("tab")
        assert chunks.value == "chunks" and app.screen.focused is not chunks
        await pilot.press("ctrl+q")
        assert isinstance(app.screen, Dialog)
        await pilot.press("escape")
        assert chunks.value == "chunks"
    async with shown() as (app, pilot):
        await pilot.press("ctrl+q")
    assert app.return_value is None


async def test_the_field_with_the_focus_the_command_and_the_keys_are_in_sight_at_any_size(place):
    async with shown() as (app, pilot):
        fill(app, chunks="chunks")
        await until(pilot, "interlock run chunks")
        for size in ((80, 24), (40, 10), (60, 15)):
            await pilot.resize_terminal(*size)
            for name in (*FIELDS, "models"):
                app.screen.query_one(f"#{name}").focus()
                form = app.screen.query_one("#form")
                for _ in range(100):
                    if form.region.contains_region(seen := app.screen.focused.region) or name == "models":
                        break
                    await pilot.pause(0.05)
                assert form.region.overlaps(seen), name
                assert form.region.contains_region(seen) or name == "models", name
                lines = lines_of(app)
                assert any("interlock run chunks" in line for line in lines[-3:])
                assert "^r Run" in lines[-1]
        await pilot.press("ctrl+p")  # the plan alone
        lines = await until(pilot, "1 pass, 1 batch")
        assert any("interlock run chunks" in line for line in lines)
        await pilot.press("ctrl+p")
        await until(pilot, "chunks    chunks")


async def test_a_plan_of_many_chunks_waits_for_the_key_that_the_settings_give_it_and_all_is_ascii(place, monkeypatch):
    monkeypatch.setattr("interlock.console.screens.setup.UNASKED", 100)
    keys = {"run": "f5", "browse": "f6", "plan": "f7", "leave": "f8"}
    async with shown((120, 40), keys=keys, ascii=True) as (app, pilot):
        assert any("or f6 for a tree" in line for line in lines_of(app))
        said = " ".join(lines_of(app)[-1].split())
        assert said == "f5 Run f7 Plan f6 Tree ^g Earlier runs tab Next field f1 Help f8 Quit"
        fill(app, chunks="chunks")
        await until(pilot, "press f7 for it")
        await pilot.press("down")
        assert "".join(lines_of(app)).isascii()
        await pilot.press("f7")
        await until(pilot, "1 pass, 1 batch")


async def test_an_error_that_nobody_knew_is_told_and_leaves_the_form_as_it_was(place, monkeypatch):
    def boom(*_):
        raise ZeroDivisionError("boom")

    monkeypatch.setattr("interlock.engine.crash.tempfile.tempdir", str(place))
    async with shown((120, 40)) as (app, pilot):
        for asked, key in (("plan", "down"), ("hindrance", "ctrl+r")):
            with monkeypatch.context() as patched:
                patched.setattr(Machine, asked, boom)
                fill(app, chunks="chunks", run_id=asked)
                await until(pilot, "2 collections")
                await pilot.press(key)
                text = "\n".join(await until(pilot, "ZeroDivisionError: boom"))
                assert "checking..." not in text and "reading and tokenising..." not in text
                assert app.is_running and app.screen.filled.text("chunks") == "chunks"


async def test_keys_that_come_in_one_burst_count_in_their_order(place):
    async with shown() as (app, pilot):
        line, before = (app.screen.query_one(name) for name in ("#flags", "#run_id"))
        for keys, typed in (
            (("ctrl+u", *"7GiB"), ("7GiB", "one")),
            (("backspace", "backspace", "backspace", *"MiB"), ("99MiB", "one")),
            (("home", "1"), ("199GiB", "one")),
            (("shift+tab", "1"), ("99GiB", "one1")),
        ):
            before.value, line.value = "one", "99GiB"
            line.focus()
            await pilot.pause()
            line.action_end()
            before.action_end()
            for key in keys:
                app.post_message(events.Key(key, key if len(key) == 1 else None))
            await shows(pilot, lambda typed=typed: (line.value, before.value) == typed)
