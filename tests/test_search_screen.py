"""The search screen: what is typed is asked in a thread, what was found is shown at any size, and keys ask it anew."""

import json
import signal
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from rich.cells import cell_len
from textual import events

from interlock.console.apps.base import Frame
from interlock.console.look import Look
from interlock.console.screens.ask import Find
from interlock.console.screens.hits import HitScreen
from interlock.console.screens.judging import JudgingScreen
from interlock.console.screens.search import SearchScreen, read_conditions
from interlock.console.text import answer_rows
from interlock.console.text.answer_rows import LINES, StoreShown
from interlock.console.text.evaluation_text import sheet_text
from interlock.engine.errors import ExitCode, UnavailableError, UsageError
from interlock.engine.evaluation.judgements import read_grades, read_run
from interlock.engine.evaluation.pooling import Sheet, needed
from interlock.engine.evaluation.report import queries_to_tell, smallest_told
from interlock.engine.flows import no_events
from interlock.engine.flows.search import Answering, Answers, Judging, SerialRetriever
from interlock.engine.search.ask import Ask
from interlock.engine.search.combine import Hybrid
from interlock.engine.search.hits import Answer, Hit, LateHit, RankedHit, StageScore
from interlock.engine.search.questions import Question, read_questions
from interlock.engine.settings import load
from interlock.widgets.text import plain
from tests.builders import corpus, interlock, tiny_scorer
from tests.pty_harness import on_terminal
from tests.summaries import harmless, lines_of, shows
from tools.recorded_answer import SHOWN, RecordedRetriever, recorded

QUESTION = "make dates"
HOSTILE = "line\x1b[2J one\u202e\n\n表 wide 表表表 signs " + "x" * 300 + " and the dated end"


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [("date", "dates", True), ("make", "making", True), ("query", "queries", True), ("string", "strict", False),
     ("is", "iso", False), ("date", "database", False), ("fuse", "fusion", True),
     ("be", "bing", False)],
)  # fmt: skip
def test_words_are_alike_but_for_an_ending(one, other, same):
    assert answer_rows.alike(one, other) is answer_rows.alike(other, one) is same


def drawn(answer, width, **more):
    return [row for block in answer_rows.blocks(answer, width, **more) for row in block]


def test_words_that_every_question_has_are_marked_only_where_there_are_no_others():
    assert answer_rows.words_of("How do I make a Date, a date?") == ["make", "date"]
    assert answer_rows.words_of("who are you") == ["who", "are", "you"]
    spans = answer_rows.marked("Dates are updated: date.", ["date"])
    assert [(span.text, span.style) for span in spans] == [
        ("Dates", "hit"), (" are updated: ", ""), ("date", "hit"), (".", ""),
    ]  # fmt: skip


@pytest.mark.parametrize("width", [8, 40, 78, 198])
def test_rows_have_the_width_they_are_given_and_nothing_in_them_steers_a_terminal(width):
    hits = [Hit("1", 0.5, {"text": HOSTILE, "chunk_id": HOSTILE, "source": HOSTILE, "metadata": {HOSTILE: 1}})]
    rows = drawn(Answer(QUESTION, [*hits, *recorded().hits]), width)
    assert len(rows) == LINES * (1 + len(recorded().hits))
    lines = plain(rows)
    assert {cell_len(line) for line in lines} == {width} and all(map(harmless, lines))
    whole = plain(answer_rows.whole(hits[0], QUESTION, width))
    assert max(map(cell_len, whole)) <= width and all(map(harmless, whole))


def test_a_text_is_shown_from_where_the_question_is_met():
    rows = drawn(Answer(QUESTION, [Hit("1", 0.5, {"text": "word " * 200 + "the dated end"})]), 60)
    assert "dated" in "".join(plain(rows)) and ("dated", "hit") in [tuple(span) for row in rows for span in row]


def test_a_chunk_that_left_the_corpus_is_marked_and_counted():
    here = Hit("1", 0.5, {"text": "text", "chunk_id": "one"})
    gone = Hit("2", 0.4, {"text": "text", "chunk_id": "two", "stale_since": "r"})
    lines = plain(drawn(Answer("q", [here, gone]), 60))
    assert [number for number, line in enumerate(lines) if "[left the corpus]" in line] == [LINES]
    assert answer_rows.found_in(Answer("q", [here, gone])).startswith("2 chunks (1 left the corpus) in ")
    assert "left" not in answer_rows.found_in(Answer("q", [here]))


def test_what_has_no_room_makes_way_whole():
    took = {"models": 0.0001, "encoding": 0.143, "dense": 0.0009, "payloads": 0.0025}
    answer = Answer("q", [Hit("1", 0.5, {})], {}, took)
    every = "1 chunk in 146 ms: models 0.1, encoding 143, dense 0.9, payloads 2.5"
    assert answer_rows.found_in(answer) == answer_rows.found_in(answer, len(every)) == every
    assert answer_rows.found_in(answer, len(every) - 1) == "1 chunk in 146 ms: encoding 143, dense 0.9, payloads 2.5"
    assert answer_rows.found_in(answer, 5) == "1 chunk in 146 ms"
    assert answer_rows.in_memory(["one", "other"], 21) == "in memory: one, other"
    assert answer_rows.in_memory(["one", "other"], 20) == "in memory: 2 models"
    assert answer_rows.in_memory([], 5) == "no model in memory"


def test_a_chunk_says_what_each_stage_made_of_it():
    by = {"stages": {"dense": StageScore(3, 0.63), "bm25": StageScore(1, 19.1)}}
    ranked = RankedHit("1", 0.9, {}, 4, 0.8, 0.7, **by)
    assert answer_rows.stages(ranked) == "dense 3. 0.630  bm25 1. 19.100  before 4. 0.800  rerank 0.700"
    lines = plain(drawn(Answer("q", [ranked, replace(ranked, before=11)]), 60))
    assert (
        "(was 4.) " in lines[0] and "(was 11.)" in lines[LINES] and len({line.index("0.9") for line in lines[::3]}) == 1
    )
    assert answer_rows.stages(LateHit("1", 0.9, {}, None)) == "no token vectors"


def test_how_lists_are_combined_is_told_as_it_is_asked():
    told = {
        "0.8 dense + 0.2 bm25": Ask(),
        "0.5 dense + 0.5 bm25": Ask(sparse_share=0.5),
        "rrf: ranks of dense, bm25": Ask(hybrid=Hybrid.RRF),
        "dbsf: 0.8 dense + 0.2 bm25": Ask(hybrid=Hybrid.DBSF),
        "dense alone": Ask(hybrid=Hybrid.OFF),
        "bm25 alone": Ask(only="bm25"),
    }
    assert {answer_rows.rules(ask, SHOWN, reranked=True)[0]: ask for ask in told.values()} == told
    filtered = Ask(where=read_conditions('a=b "c=two words" d>=3'))
    assert answer_rows.rules(filtered, SHOWN, reranked=True)[1] == 'only a=b "c=two words" d>=3'
    own = Ask(where=read_conditions("""'a="two words"' 'b."own key"=c'"""))
    assert read_conditions(" ".join(answer_rows.written(own))) == own.where and own.where[0].value == '"two words"'
    reranked = replace(SHOWN, rerank="m")
    assert [answer_rows.rules(Ask(), reranked, reranked=on)[1] for on in (True, False)] == ["rerank m", "rerank off"]


def test_models_are_loaded_that_have_a_weight_or_are_asked_alone():
    asks = {Ask(): 2, Ask(only="bm25"): 0, Ask(only="all-minilm-l6"): 1}
    assert {each: len(answer_rows.loaded_for(each, SHOWN)) for each in asks} == asks
    weighed = Ask(weights={"all-minilm-l6": 0.0, "all-mpnet-base-v2": 1.0})
    assert answer_rows.loaded_for(weighed, SHOWN) == ["all-mpnet-base-v2"]
    assert answer_rows.rules(weighed, SHOWN, reranked=False)[1] == "weights all-minilm-l6 0, all-mpnet-base-v2 1"
    calibrated = replace(SHOWN, calibrated=True)
    every = [answer_rows.rules(each, calibrated, reranked=False) for each in (Ask(), weighed, Ask(only="bm25"))]
    assert ["calibrated weights" in told for told in every] == [True, False, False]


def test_all_of_a_long_text_is_shown():
    hit = Hit("1", 0.5, {"text": "\tbegin " + "word " * 2000 + "end", "metadata": {"more": "x" * 9000}})
    text = "".join(line.strip() + " " for line in plain(answer_rows.whole(hit, QUESTION, 70)))
    assert text.count("word") == 2000 and text.count("x") == 9000 and "\\t" not in text


def test_conditions_are_read_as_on_the_command_line_or_refused():
    assert [each.value for each in read_conditions('a=b c="two words"')] == ["b", "two words"]
    for text, why in {"a": "give KEY=VALUE", 'a="b': "set quotes in pairs", "a>b": "compares numbers"}.items():
        with pytest.raises(UsageError, match=why):
            read_conditions(text)


def screen_of(desk, shown: StoreShown = SHOWN, ask: Ask | None = None, **looks: object) -> Frame:
    look = Look(**looks)
    return Frame(look, lambda: SearchScreen(desk, shown, ask or Ask(limit=20), look), driver=None)


def text_of(app) -> str:
    return "\n".join(lines_of(app))


async def ask(pilot, question: str, wanted: str = "chunks in") -> None:
    """Type a question and wait for its answer."""
    await pilot.press(*question, "enter")
    await shows(pilot, lambda: f"for {question}" in text_of(pilot.app) and wanted in text_of(pilot.app))


@pytest.mark.parametrize("look", [{"ascii": True, "theme": "daylight"}, {}], ids=["ascii", "plain"])
async def test_a_question_is_answered_at_any_size_and_chunks_are_walked_opened_and_copied(look):
    desk = RecordedRetriever()
    app = screen_of(desk, **look)
    async with app.run_test(size=(30, 6)) as pilot:
        await pilot.press("space", "enter")
        await shows(pilot, lambda: desk.resident)
        await pilot.resize_terminal(80, 24)
        await shows(pilot, lambda: "the question is empty" in text_of(app) and "nothing asked yet" in text_of(app))
        assert desk.asked == []
        await pilot.resize_terminal(30, 6)  # too small for all but the line
        await pilot.press("backspace", *QUESTION, "enter")
        await shows(pilot, lambda: "12 chunks in 58 ms" in text_of(app))
        assert [asked[0] for asked in desk.asked] == [QUESTION]
        for size in ((40, 10), (80, 24), (120, 40), (200, 60)):
            await pilot.resize_terminal(*size)
            await pilot.press("home")
            await shows(pilot, lambda: "1. 1.000  datetime.date" in text_of(app))
            assert "dense 1. 0.830  bm25 1. 19.132" in text_of(app)
            assert ("metadata.line: 980" in text_of(app)) == (size[0] >= 120)
            assert not look or text_of(app).isascii()
            await pilot.press("down", "G", "G")
            await shows(pilot, lambda: "12. " in text_of(app))  # the last one is in sight
        await pilot.resize_terminal(80, 24)
        await pilot.press("home", "down", "enter")
        await shows(pilot, lambda: isinstance(app.screen, HitScreen) and "metadata.line: 1823" in text_of(app))
        await pilot.press("c")
        assert app.clipboard.splitlines()[:2] == ["datetime.datetime.fromisoformat"] * 2
        await pilot.press("escape", "up", "c")
        assert app.clipboard.startswith("datetime.date.fromisoformat\n")
        await pilot.click("#hits", offset=(10, 8))
        await shows(pilot, lambda: "dense 3. 0.732" in text_of(app))
        await pilot.press("escape")
        await pilot.pause()
        assert not app.is_running


async def test_keys_ask_the_same_question_in_another_way():
    desk, shown = RecordedRetriever(), replace(SHOWN, rerank="m")
    app = screen_of(desk, shown, Ask(limit=7, weights={"all-minilm-l6": 1.0}))
    async with app.run_test(size=(80, 24)) as pilot:
        await ask(pilot, QUESTION)
        for key in ("h", "h", "h", "h", "w", "h", "w", "w", "w", "r", "r"):
            await pilot.press(key)
            if key == "h" and len(desk.asked) == 2:
                assert "loses much on some collections" in text_of(app)
            await pilot.pause(0.05)
    assert {(text, each.limit) for text, each, _ in desk.asked} == {(QUESTION, 7)}
    ways = [(str(each.hybrid), each.only, bool(each.weights), on) for _, each, on in desk.asked]
    assert ways == [
        ("weighted", "", True, True),
        ("rrf", "", True, True),
        ("dbsf", "", True, True),
        ("off", "", True, True),
        ("weighted", "", True, True),
        ("weighted", "all-minilm-l6", False, True),
        ("weighted", "all-mpnet-base-v2", False, True),
        ("weighted", "bm25", False, True),
        ("weighted", "", True, True),
        ("weighted", "", True, False),
        ("weighted", "", True, True),
    ]


async def test_what_is_no_key_or_pasted_begins_another_question_and_a_burst_loses_nothing():
    app = screen_of(RecordedRetriever(), StoreShown("c", 3, {"a": 1.0}))
    async with app.run_test(size=(120, 40)) as pilot:
        line = app.screen.query_one("#question")
        await ask(pilot, QUESTION)
        for key, said in {"h": "one list alone (dense)", "r": "begin with --rerank MODEL"}.items():
            await pilot.press(key)  # there is nothing to choose from
            await shows(pilot, lambda said=said: said in text_of(app))
        for typed in ("parse how", "/what"):
            for key in typed:
                app.post_message(events.Key({" ": "space", "/": "slash"}.get(key, key), key))
            await shows(pilot, lambda typed=typed: line.value == typed.strip("/"))
            await pilot.press("escape")
        app.screen._list.post_message(events.Paste("pasted how\nand more"))
        await shows(pilot, lambda: line.value == "pasted how and more")
        await pilot.press("escape", "q")
        await pilot.pause()
        assert not app.is_running


class Slow(RecordedRetriever):
    """Answers each question only when it may."""

    def __init__(self) -> None:
        super().__init__()
        self.may = {name: threading.Event() for name in ("slow", "second", "third")}

    def answer(self, texts, ask, *, reranked):
        self.asked.append((texts[0], ask, reranked))
        assert self.may[texts[0]].wait(20)
        return Answers([replace(recorded(), text=texts[0])])


async def test_a_newer_question_takes_the_place_of_an_older_one_and_the_screen_never_waits():
    desk = Slow()
    app = screen_of(desk)
    async with app.run_test(size=(80, 24)) as pilot:
        screen = app.screen
        await pilot.press(*"slow", "enter")
        await shows(pilot, lambda: "searching..." in text_of(app))
        for question in ("second", "third"):
            screen._question.value = ""
            await pilot.press(*question, "enter")
        assert screen._question.value == "third" and [text for text, *_ in desk.asked] == ["slow"]
        desk.may["slow"].set()
        await shows(pilot, lambda: len(desk.asked) == 2)
        assert screen._answer is None and screen._question.has_focus  # nothing of what is not wanted any more
        desk.may["third"].set()
        await shows(pilot, lambda: "12 chunks for third" in text_of(app))
        assert [text for text, *_ in desk.asked] == ["slow", "third"]


def test_who_leaves_lets_models_and_store_go_but_does_not_wait_for_a_thread():
    class Answering:
        closed, began, may = 0, threading.Event(), threading.Event()

        def answer(self, texts, ask, *, reranked):
            self.began.set()
            assert self.may.wait(20)

        def close(self):
            self.closed += 1

    busy = Answering()
    desk = SerialRetriever(busy)
    thread = threading.Thread(target=desk.answer, args=(["q"], Ask()), kwargs={"reranked": True})
    thread.start()
    assert busy.began.wait(20)
    desk.close()
    assert busy.closed == 0
    busy.may.set()
    thread.join()
    SerialRetriever(idle := Answering()).close()
    assert idle.closed == 1


async def test_what_fails_is_told_on_the_screen_which_goes_on():
    desk = RecordedRetriever(failure=UnavailableError("no model here: fetch it"))
    app = screen_of(desk)
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press(*QUESTION, "enter")
        await shows(pilot, lambda: "no model here: fetch it" in text_of(app))
        await pilot.press("enter")
        await shows(pilot, lambda: "12 chunks for" in text_of(app) and "no model" not in text_of(app))
        desk.answer = lambda texts, ask, reranked: Answers([replace(recorded(), text="q")], RuntimeError("no memory"))
        await pilot.press("h")
        await pilot.press("h")
        await shows(pilot, lambda: "not reranked: no memory" in text_of(app))


async def test_a_filter_that_cannot_be_is_told_while_it_stands_and_then_taken():
    desk = RecordedRetriever()

    def check(ask):
        if any(each.key == "lang" for each in ask.where):
            raise UsageError("no chunk has 'lang': use a key that there is")

    desk.check = check
    app = screen_of(desk)
    async with app.run_test(size=(80, 24)) as pilot:
        await ask(pilot, QUESTION)
        await pilot.press("f")
        for wrong, why in {"lang": "give KEY=VALUE", "lang=en": "no chunk has 'lang'"}.items():
            app.screen.query_one("Input").value = wrong
            await pilot.pause()  # what is typed takes away what was told of the line before
            await pilot.press("enter")
            await shows(pilot, lambda why=why: why in text_of(app) and isinstance(app.screen, Find))
        app.screen.query_one("Input").value = "metadata.line>=10"
        await pilot.press("enter")
        await shows(pilot, lambda: "only metadata.line>=10" in text_of(app))
        await pilot.press("f", "escape")
        assert [len(each.where) for _, each, _ in desk.asked] == [0, 1]
        await pilot.press("f", "ctrl+u", "enter")
        await shows(pilot, lambda: "only metadata" not in text_of(app))


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory, tiny_a: Path) -> Path:
    place = tmp_path_factory.mktemp("run")
    texts = [{"text": f"chapter {number} of alpha", "metadata": {"part": number % 2}} for number in range(6)]
    chunks = corpus(place / "chunks", {"Docs": {"a_chunks.json": [*texts, {"text": "the zebra crossing"}]}})
    interlock("run", chunks, "--roster", tiny_a, "--qdrant", place / "store", "--out", place / "runs", "--no-ui")
    return place / "store"


def test_on_a_terminal_a_store_is_searched_and_reranked_until_it_is_left(store, tmp_path):
    scorer = tiny_scorer(tmp_path / "scorer", seed=3)
    words = ("search", store, "--rerank", scorer, "--rerank-share", "0", "--offline")
    with on_terminal(*words, cwd=tmp_path, columns=100, rows=30) as terminal:
        terminal.wait_for("in memory: ")
        terminal.press("zebra crossings\r")
        wanted = "7 chunks for zebra crossings", "the zebra crossing ", "(was 1.)", "rerank 0."
        terminal.wait_for(lambda screen: all(text in screen.text for text in wanted))
        terminal.press("r")
        terminal.wait_for(lambda screen: "rerank off" in screen.text and "(was 1.)" not in screen.text)
        busy = interlock("search", store, "zebra", cwd=tmp_path, check=ExitCode.USAGE)
        assert "in use" in busy.stderr
        terminal.press("q")
        assert terminal.wait() == 0
        assert b"\x1b[?1049l" in terminal.output
    assert "zebra" in interlock("search", store, "zebra", "--limit", 1, cwd=tmp_path).stdout


def test_what_can_be_known_is_told_before_the_screen_opens_and_without_a_terminal_a_query_is_needed(store, tmp_path):
    for flags, why in ((("--filter", "lang=en"), "no chunk has 'lang'"), (("--theme", "nobody"), "unknown theme")):
        with on_terminal("search", store, *flags, cwd=tmp_path, columns=200) as terminal:
            assert terminal.wait() == ExitCode.USAGE
            terminal.wait_for(why)
            assert b"\x1b[?1049h" not in terminal.output
    assert "pass a query" in interlock("search", store, cwd=tmp_path, check=ExitCode.USAGE).stderr


ASKED = {"q1": "the zebra", "q2": "chapter of alpha"}


@pytest.fixture
def asked(tmp_path: Path) -> Path:
    file = tmp_path / "asked.tsv"
    file.write_text("".join(f"{id}\t{text}\n" for id, text in ASKED.items()))
    return file


def ready(text: str) -> bool:
    """Whether keys judge, and are not typed into the line."""
    return "n Not" in text


def test_candidates_are_judged_by_keys_and_a_kill_loses_nothing_that_was_said(store, asked, tmp_path, call):
    words = ("questions", store, tmp_path / "sheet", "--queries", asked, "--offline")
    with on_terminal(*words, cwd=tmp_path) as terminal:
        screen = terminal.wait_for(lambda screen: "1 of 2: 0 of 7 chunks judged" in screen.text and ready(screen.text))
        assert "JUDGE docs" in screen.text and "the zebra" in screen.text
        assert "score" not in screen.text and "rank" not in screen.text  # who found what is not the judge's to know
        for at, (key, said) in enumerate({"r": "relevant", "n": "not", "1": "partly", "s": "skipped"}.items(), 1):
            terminal.press(key)
            terminal.wait_for(lambda screen, at=at, said=said: f"{at} of 7" in screen.text and said in screen.text)
        terminal.signal(signal.SIGKILL)
        terminal.wait()
    qrels = (tmp_path / "sheet" / "qrels.txt").read_text().split("\n")
    assert [line.split()[::3] for line in qrels[:-1]] == [["q1", grade] for grade in ("2", "0", "1", "-1")]
    code, out, err = call(*words)  # once more, where nobody can press a key
    assert code == 0 and "10 chunks to judge, one key each, over 2 questions" in err
    assert "2 questions, 0 of them done; 4 of 14 chunks judged" in " ".join(out.split())


async def test_a_judge_goes_through_all_questions_and_types_others(store, asked, tmp_path):
    answering = Answering(load({"offline": True}, {}), store, None, None, no_events, kept=True)
    with answering:
        sheet = Sheet(tmp_path / "sheet", "docs", depth=2)
        judging = Judging(answering, sheet)
        judging.pool(sheet.new(list(read_questions(asked))))
        assert {name.partition("/")[0] for name in sheet.questions["q1"].ways} >= {"default", "rrf", "dbsf", "bm25"}
        app = Frame(Look(), lambda: JudgingScreen(judging, SHOWN, Look()), driver=None)
        async with app.run_test(size=(80, 24)) as pilot:
            for number, id in enumerate(ASKED, 1):
                count = len(sheet.questions[id].points)
                for _ in range(count):
                    asks = f"question {number} of 2: "
                    await shows(pilot, lambda asks=asks: asks in text_of(app) and ready(text_of(app)))
                    await pilot.press("r" if number == 1 else "n")
            await shows(pilot, lambda: "every question is judged" in text_of(app))
            assert "1 question done and 1 without an answer, at least 19 more" in text_of(app)
            again = Frame(Look(), lambda: JudgingScreen(judging, SHOWN, Look()), driver=None)
            async with again.run_test(size=(80, 24)) as other:
                await shows(other, lambda: "question 1 of 2: " in text_of(again))
            await pilot.press("slash", *"alpha", "enter")
            await shows(pilot, lambda: "question 3 of 3: 0 of" in text_of(app) and ready(text_of(app)))
            await pilot.press("right")
            await shows(pilot, lambda: "question 1 of 3: " in text_of(app) and "relevant" in text_of(app))
            await pilot.press("left", "left")
            await shows(pilot, lambda: "question 2 of 3: " in text_of(app))
        again = Sheet(tmp_path / "sheet", "docs")
        assert again.grades == sheet.grades and [*again.questions.values()] == [*sheet.questions.values()]
        assert again.asked("alpha").id == "q03" and again.left(again.asked("alpha")) > 0
        found = again.comparison()  # of q1 alone: q2 has no answer, the other is not judged
        assert found.query_ids == ["q1"] and {"default", "bm25"} <= {run.name for run in found.runs}
        runs = tmp_path / "sheet" / "runs"
        lists = read_run(runs / "bm25.run")
        assert lists["q1"].keys() <= sheet.grades["q1"].keys()
        (runs / "hybrid-bm25.run").touch()  # as earlier versions called it, or of a way that is no more
        again.comparison()
        assert sorted(file.stem for file in runs.iterdir()) == sorted(run.name for run in found.runs)
        sheet.questions["q1"].points["gone"] = "00000000-0000-0000-0000-000000000000"
        (answer,) = judging.answer(
            ["the zebra"], Ask(), reranked=False
        ).answers  # of what left the store nobody can say
        assert "gone" not in sheet.questions["q1"].points and all(hit.grade == 2 for hit in answer.hits)


def test_chunks_that_documents_number_each_for_itself_are_judged_and_evaluated(tmp_path, tiny_a, call):
    numbered = [[{"text": text, "metadata": {"chunk_id": "0"}}] for text in ("alpha beta", "the zebra crossing")]
    chunks = corpus(tmp_path / "c", {"Docs": {f"{at}_chunks.json": each for at, each in enumerate(numbered)}})
    run = ("run", chunks, "--roster", tiny_a, "--qdrant", tmp_path / "store", "--out", tmp_path / "runs", "--no-ui")
    interlock(*run, "--run-id", "r")
    answering = Answering(load({"offline": True}, {}), tmp_path / "store", None, None, no_events, kept=True)
    with answering:
        sheet = Sheet(tmp_path / "s", "docs")
        judging = Judging(answering, sheet)
        judging.pool([Question("q1", "alpha"), Question("q2", "zebra")])
        for id, word in {"q1": "alpha", "q2": "zebra"}.items():
            assert len(sheet.questions[id].points) == 2
            for hit in judging.answer([sheet.questions[id].text], Ask(), reranked=False).answers[0].hits:
                sheet.judge(id, hit.id, 2 * (word in hit.payload["text"]))
    judged = ("--queries", sheet.directory / "questions.jsonl", "--qrels", sheet.directory / "qrels.txt")
    code, _, err = call("eval", tmp_path / "runs" / "r", *judged, "--json", tmp_path / "e.json", "--offline")
    assert code == 0, err
    assert json.loads((tmp_path / "e.json").read_text())["query_ids"] == ["q1", "q2"]


def test_what_another_store_or_other_ways_found_is_asked_anew_and_what_was_judged_stays(store, asked, tmp_path, call):
    words = ("questions", store, tmp_path / "s", "--queries", asked, "--offline")
    assert call(*words, "--depth", "1")[0] == 0
    sheet = Sheet(tmp_path / "s", "docs")
    first = sheet.questions["q1"]
    sheet.judge("q1", first.candidates[0], 2)
    code, out, err = call(*words, "--depth", "1")
    assert code == 0 and "anew" not in err
    code, out, err = call(*words)
    assert (
        code == 0
        and "asking 2 questions anew" in err
        and "0 of them done; 1 of 14 chunks judged" in " ".join(out.split())
    )
    again = Sheet(tmp_path / "s", "docs")
    assert again.grades == sheet.grades and first.points.items() < again.questions["q1"].points.items()


def test_a_judgement_is_dropped_with_the_text_that_it_is_of(tmp_path):
    sheet, who = Sheet(tmp_path, "docs"), [Question("q1", "who")]

    def found(**texts):
        hits = [Hit(f"p{id}", 1.0, {"chunk_id": id, "text": text}) for id, text in texts.items()]
        return {"default": [Answer("who", hits)]}

    sheet.add(who, found(a="one", b="two"))
    sheet.judge("q1", "a", 2)
    sheet.judge("q1", "b", 1)
    sheet.add(who, found(a="one", b="another", c="three"), asked_of="later")
    assert sheet.grades == Sheet(tmp_path, "docs").grades == {"q1": {"a": 2}}
    assert sheet.outdated("later") == [] and sheet.outdated("now") == who


def test_more_questions_come_from_another_file_whose_lines_have_the_same_numbers(tmp_path):
    sheet = Sheet(tmp_path, "docs")
    sheet.add([Question("1", "who"), Question("2", "what")], {"default": [Answer("", []), Answer("", [])]})
    more = [Question("1", "when"), Question("2", "who"), Question("3", "where")]
    assert sheet.new(more, numbered=True) == [Question("q01", "when"), Question("3", "where")]
    with pytest.raises(UsageError, match="question '1' is there"):
        sheet.new(more)


def found_by(*ways: str) -> dict[str, list[Answer]]:
    return {way: [Answer("q", [Hit(f"p{id}", 1.0, {"chunk_id": f"c{id}"}) for id in "123"])] for way in ways}


def test_a_sheet_that_cannot_be_gone_on_with_is_refused_in_a_line(tmp_path):
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "notes").touch()
    with pytest.raises(UsageError, match="has notes and no questions"):
        Sheet(tmp_path / "other", "docs")
    sheet = Sheet(tmp_path / "s", "docs")
    (tmp_path / "s").mkdir()
    sheet.add([Question("q1", "who")], found_by("default"))
    sheet.judge("q1", "c1", 1)
    for words, id in {("who", "q2"), ("what", "q1")}:
        with pytest.raises(UsageError, match="drop one"):
            sheet.new([Question(id, words)])
    with pytest.raises(UsageError, match="no ids with blanks, as in 'q 2'"):
        sheet.new([Question("q 2", "what")])
    with pytest.raises(UsageError, match="no ids with blanks, as in 'c 2'"):
        sheet.add([Question("q2", "what")], {"default": [Answer("q", [Hit("p", 1.0, {"chunk_id": "c 2"})])]})
    with pytest.raises(UsageError, match="questions to docs, not to else"):
        Sheet(tmp_path / "s", "else")
    for name, line in {"qrels.txt": "q9 0 c1 1\n", "questions.jsonl": '{"_id": "q1", "te'}.items():
        (tmp_path / "s" / name).write_text(line)
        with pytest.raises(UsageError, match=f"{name}:1: "):
            Sheet(tmp_path / "s", "docs")


def test_judgements_are_trecs_and_tell_how_many_questions_more_it_takes(tmp_path):
    sheet = Sheet(tmp_path, "docs")
    generator, best = np.random.default_rng(1), ["c1", "c2", "c3"]
    ids = [f"q{at}" for at in range(40)]
    lists = {"default": [best] * 40, "worse": [best[::-1]] * 40}
    lists["near"] = [best[::-1] if generator.random() < 0.1 else best for _ in ids]

    def answered(order):
        return Answer("q", [Hit(f"p{id}", 3.0 - at, {"chunk_id": id}) for at, id in enumerate(order)])

    hits = {way: [*map(answered, orders)] for way, orders in lists.items()}
    sheet.add([Question(id, f"asked {id}") for id in ids], hits)
    orders = {tuple(each.candidates) for each in sheet.questions.values()}
    assert len(orders) == 6  # every order of three: none of them says who found what
    for at, id in enumerate(ids):
        assert sheet.left(sheet.questions[id]) == 3
        for chunk in best[: 1 if at % 2 else 2] if at < 39 else ["c1"]:
            sheet.judge(id, chunk, 2)
        for chunk in best if at < 39 else []:
            sheet.judge(id, chunk, sheet.grades[id].get(chunk, -1))
    assert len(sheet.done) == 39 and read_grades(tmp_path / "qrels.txt", None, {*best}).grades == sheet.grades
    found = sheet.comparison()
    assert found.queries == 39 and [run.name for run in found.runs] == [*lists]
    worse, near = needed(found)
    assert worse.more == 0 and near.more is not None
    apart = np.subtract(found.runs[2].values["nDCG@10"], found.runs[0].values["nDCG@10"])
    assert smallest_told(39 + near.more, apart.std(ddof=1), 2) <= abs(apart.mean())
    assert near.more == 1 or smallest_told(38 + near.more, apart.std(ddof=1), 2) > abs(apart.mean())
    assert queries_to_tell(0.0) is None and queries_to_tell(1.0) == 20
    text = sheet_text(sheet)
    assert "Told apart from default: worse." in text and "117 of 120 chunks judged" not in text
    assert f"near ({apart.mean():+.3f}".replace("0.", ".") in " ".join(text.split())
