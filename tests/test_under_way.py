"""How an upload stands is read from its journal by whoever looks at the run: that it goes on, what it waits for, that
it ended, and that its process died. Real processes, and a server behind a socket that is late, refuses or is grey."""

import json
import os
import shlex
import shutil
import signal
import sys
import time
from pathlib import Path

import pytest

from interlock.console.ctl import status
from interlock.console.sources.journal import Watched
from interlock.console.sources.runs import RunList
from interlock.console.text import runs_text
from interlock.engine.errors import ExitCode, UsageError
from interlock.engine.record import journal
from interlock.engine.record.journal import Acknowledged, Upload, UploadBinding, UploadJournal, upload_of
from interlock.engine.standing import judgement
from interlock.engine.standing.health import Concern, Health, Remedy
from interlock.engine.standing.judgement import Judgement, judge, uploaded
from interlock.engine.standing.runs import delete, overview
from interlock.widgets import header
from interlock.widgets.text import plain
from tests.builders import corpus, interlock, sentences, start
from tests.edge_bridge import Collection, refusal, serving
from tests.processes import until
from tests.test_upload import POINTS
from tests.uploads import ROWS

DONE = Health("DONE", "ok")
OVER = Judgement(health=DONE, share_done=1.0)
TO = UploadBinding("http://gpu-9:6333", "docs", "f", 1000)


@pytest.fixture
def run(upload, tmp_path):
    """A run of its own, that goes in batches of eight."""
    shutil.copytree(upload.run, tmp_path / "runs" / "one")
    upload.bridge.strict = {"enabled": True, "upsert_max_batchsize": 8}
    return tmp_path / "runs" / "one"


@pytest.fixture
def going(upload, run):
    """Begins the upload of the run in a process of its own."""
    begun = []
    with serving(upload.bridge) as url:

        def begin(*more):
            begun.append(start("upload", run, "--qdrant", url, *more))
            return begun[-1]

        yield begin
        upload.bridge.before = lambda *_: None
        for process in begun:
            process.kill()


def now(run: Path) -> Health:
    return overview(run, time.time()).health


def busy(after: int, answer=lambda: refusal(503, "overloaded")):
    """A server that takes so many requests with points, and to each later one gives this answer."""
    taken = 0

    def before(method, path, *_):
        nonlocal taken
        if (method, path) == ("PUT", POINTS):
            taken += 1
            return answer() if taken > after else None
        return None

    return before


def test_a_server_that_is_too_busy_is_waited_for_in_all_lists_alike_until_it_answers(upload, run, going):
    upload.bridge.before = busy(2)
    assert now(run) == DONE
    process = going()
    until(lambda: now(run).word == "UPLOAD WAITING" and "2 attempts" in now(run).detail)
    with pytest.raises(UsageError, match="in use"):
        delete(run)
    found = now(run)
    assert found.level == "warn"
    assert all(said in found.detail for said in ("(docs)", "16 of 90 points at 127.0.0.1:", "503: overloaded"))
    assert "check the server" in found.detail
    listed = RunList(run.parent)
    watched = Watched(run)
    until(lambda: listed.complete and watched.upload)
    (seen,) = listed.seen
    shown = plain(header.rows(watched.snapshot(), 120, judge(watched.snapshot(), time.time(), watched.upload), lines=5))
    assert seen.health.word == "UPLOAD WAITING" and "UPLOAD WAITING  17%" in status(run, as_json=False)
    for told in (json.loads(status(run, as_json=True)), *json.loads(runs_text.as_json([seen]))):
        assert (told["state"], told["done"], told["upload"]["state"]) == ("DONE", 1.0, "UPLOAD WAITING")
        assert told["upload"]["done"] == pytest.approx(16 / 90)
    assert "UPLOAD WAITING" in shown[0] and "17%" in shown[0]
    assert "16 of 90 points at 127.0.0.1:" in " ".join("".join(shown).split())
    assert "UPLOAD WAITING" in interlock("runs", "--plain", "--out", run.parent).stdout
    upload.bridge.before = lambda *_: None
    process.communicate(60)
    assert now(run) == DONE
    until(lambda: listed.seen[0].health == DONE and watched.upload is None)
    listed.close()
    watched.close()


@pytest.mark.parametrize("mark", [True, False], ids=["when it ended", "by hand, without its server"])
def test_a_run_that_was_to_be_uploaded_says_so_where_nothing_of_that_has_begun(upload, tmp_path, tiny_a, mark):
    chunks = corpus(tmp_path / "in", {"Docs": {"a.jsonl": sentences(20)}})
    words = ["run", chunks, "--roster", tiny_a, "--run-id", "r", "--out", tmp_path / "runs", "--devices", "cpu"]
    place = "console.delivery.upload_after" if mark else "engine.record.journal.Journal.close"
    module, name = f"interlock.{place}".rsplit(".", 1) if mark else ("interlock.engine.record.journal", "Journal.close")
    died = f"import os, {module}\n{module}.{name} = lambda *_, **more: os.kill(os.getpid(), 9)"
    with serving(upload.bridge) as url:
        interlock(*words, "--qdrant", url, "--prune", first=died, check=-signal.SIGKILL)
        if not mark:
            said = interlock(*words, "--resume", check=0).stderr
            assert f"the run is to go to {url}, and this session does not upload it: add --qdrant {url}" in said
        run = tmp_path / "runs" / "r"
        found = now(run)
        assert (found.word, found.level) == ("UPLOAD NOT BEGUN", "warn")
        onward = f"interlock upload {run} --qdrant {url} --prune"
        assert found.detail == f"nothing is at {url.partition('://')[2]}" and found.remedy.command == onward
        assert json.loads(status(run, as_json=True))["upload"]["done"] == 0
        interlock(*shlex.split(onward)[1:])
        assert now(run) == DONE


def test_an_upload_that_was_killed_between_two_collections_is_not_done(upload, tmp_path, tiny_a):
    texts = {"Docs": {"a.jsonl": sentences(20)}, "More": {"b.jsonl": sentences(9)}}
    words = ["--roster", tiny_a, "--run-id", "r", "--out", tmp_path / "runs", "--devices", "cpu"]
    interlock("run", corpus(tmp_path / "in", texts), *words)
    run, module = tmp_path / "runs" / "r", "interlock.engine.targets.upload"
    died = (
        f"import os, {module} as to\nmade = to.UploadJournal\n"
        "to.UploadJournal = lambda path, *more: os.kill(os.getpid(), 9) if 'more' in path.name else made(path, *more)"
    )
    with serving(upload.bridge) as url:
        interlock("upload", run, "--qdrant", url, first=died, check=-signal.SIGKILL)
        found = now(run)
        assert found.word == "UPLOAD DIED" and f"continue it with interlock upload {run} --qdrant {url}" in found.told
        interlock("upload", run, "--qdrant", url)
        assert now(run) == DONE


def test_an_upload_whose_process_died_says_so_until_the_same_command_has_done_it(upload, run, going):
    upload.bridge.before = busy(3)
    process = going()
    until(lambda: now(run).word == "UPLOAD WAITING")
    os.kill(process.pid, signal.SIGKILL)
    process.communicate(60)
    found = now(run)
    assert (found.word, found.level) == ("UPLOAD DIED", "error")
    assert "24 of 90 points" in found.detail and f"interlock upload {run} --qdrant http" in found.told
    upload.bridge.before = lambda *_: None
    assert going().communicate(60)
    assert now(run) == DONE
    assert len(set(upload.bridge.collections["docs"].sent)) == ROWS


def test_the_command_that_continues_an_upload_has_the_flags_it_was_begun_with_and_works_as_printed(upload, run, going):
    upload.bridge.before = busy(3)
    (key := run.parent / "a key").write_text("k")
    flags = ["--index", "lang:keyword", "--index", "n:integer", "--vector-type", "float16", "--api-key-file", str(key)]
    process = going(*flags, "--settle", "60", "--prune", "--patience", "300")
    until(lambda: now(run).word == "UPLOAD WAITING")
    os.kill(process.pid, signal.SIGKILL)
    process.communicate(60)
    when, told = now(run).remedy
    assert when == "continue it with"
    _, *words = shlex.split(told)
    url = words[words.index("--qdrant") + 1]
    assert sorted(words) == sorted(["upload", str(run), "--qdrant", url, *flags, "--settle", "60", "--prune"])
    upload.bridge.before = lambda *_: None
    interlock(*words)
    assert now(run) == DONE and len(set(upload.bridge.collections["docs"].sent)) == ROWS
    assert len(upload.bridge.collections["docs"].sent) == ROWS  # none was sent twice


@pytest.mark.parametrize("refused", [False, True])
def test_the_end_is_told_once_and_after_the_upload(upload, tmp_path, tiny_a, refused):
    corpus(tmp_path / "in", {"Docs": {"a.jsonl": sentences(12)}})
    heard = "import sys; open('heard', 'a').write('|'.join(sys.argv[1:-1]) + chr(10))"
    told = shlex.join([sys.executable, "-c", heard, "{state}", "{done}", "{next}", "{reason}"])
    run, words = tmp_path / "runs" / "r", ["--roster", tiny_a, "--run-id", "r", "--out", tmp_path / "runs"]
    if refused:
        upload.bridge.before = busy(0, lambda: refusal(400, "not like this"))
    with serving(upload.bridge) as url:
        code = ExitCode.FAILED if refused else ExitCode.COMPLETED
        interlock("run", tmp_path / "in", "--qdrant", url, *words, "--notify", told, cwd=tmp_path, check=code)
    (line,) = (tmp_path / "heard").read_text().splitlines()
    state, done, following, reason = line.split("|")
    if refused:
        assert (state, done) == ("UPLOAD FAILED", "0%") and "not like this" in reason
        assert following == f"interlock upload {run} --qdrant {url}"
    else:
        assert (state, done, following) == ("DONE", "100%", f"interlock view {run}")


def test_why_an_upload_ended_is_told_and_that_it_was_stopped(upload, run, going):
    upload.bridge.before = busy(1)
    going("--patience", "0").communicate(60)
    found = now(run)
    assert (found.word, found.level) == ("UPLOAD FAILED", "error")
    assert "503: overloaded" in found.detail and "8 of 90 points" in found.detail
    process = going()
    until(lambda: now(run).word == "UPLOAD WAITING")
    os.kill(process.pid, signal.SIGINT)
    process.communicate(60)
    assert (now(run).word, now(run).level) == ("UPLOAD STOPPED", "warn")


def test_a_server_that_takes_a_request_and_does_not_answer_is_waited_for(upload, run, going, monkeypatch):
    monkeypatch.setattr(judgement, "SLOW", 0.5)
    late = [True]

    def answer():
        while late:
            time.sleep(0.05)

    upload.bridge.before = busy(2, answer)
    process = going()
    until(lambda: now(run).word == "UPLOADING")
    until(lambda: now(run).word == "UPLOAD WAITING" and "no answer for" in now(run).detail)
    late.clear()
    process.communicate(60)
    assert now(run) == DONE


@pytest.mark.parametrize(("state", "level"), [("yellow", "idle"), ("grey", "warn")])
def test_indexes_that_are_built_are_waited_for_and_grey_ones_are_a_warning(
    upload, run, going, monkeypatch, state, level
):
    monkeypatch.setattr(Collection, "threshold", 1)
    states = [state]

    def before(*_):
        for each in upload.bridge.collections.values():
            each.status = states[0] if each.hnsw["m"] else "green"

    upload.bridge.before = before
    process = going()
    until(lambda: f"({state})" in now(run).detail)
    assert (now(run).word, now(run).level) == ("UPLOAD WAITING", level)
    assert "90 of 90 points" in now(run).detail and "gives up in" in now(run).detail
    states[0] = "green"
    process.communicate(60)
    assert now(run) == DONE


def test_what_is_told_of_a_server_is_no_older_than_its_answer(tmp_path, monkeypatch):
    moment = [100.0]
    monkeypatch.setattr(journal.time, "time", lambda: moment[0])

    def after(seconds: float) -> Health:
        moment[0] += seconds
        return uploaded(OVER, upload_of(tmp_path), moment[0]).health

    with UploadJournal(tmp_path / "uploads" / "docs-1.jsonl", TO) as open_one:
        assert after(1).word == "UPLOADING"
        open_one.acknowledge(100)
        open_one.note("503", 1, 60.0)
        moment[0] += 9
        open_one.note("no route", 2, 51.0)
        found = after(1).detail
        assert found.startswith("check the server, which is retried for 0:50 more: no route, 2 attempts in 0:10; ")
        open_one.note()
        assert after(0).word == "UPLOADING"
        open_one.acknowledge(300)
        assert after(0).detail == "300 of 1,000 points at gpu-9:6333 (docs), 0:35 left"
        assert after(judgement.SLOW + 1).word == "UPLOAD WAITING"
        open_one.stand("its indexes are built (yellow)", 60)
        open_one.note("502", 1, 10.0)
        open_one.note()  # it answers, and still builds
        assert (after(0).level, "yellow" in after(0).detail) == ("idle", True)
        open_one.stand("", 0)
        assert after(0).word == "UPLOADING"
    assert upload_of(tmp_path) is None


def test_a_journal_of_an_earlier_version_counts_by_its_rows(tmp_path):
    path = tmp_path / "uploads" / "docs-1.jsonl"
    path.parent.mkdir()
    for rows, word in ((400, "UPLOAD DIED"), (1000, "DONE")):
        lines = [f'{{"entry":"begun","url":"{TO.url}","collection":"docs","fingerprint":"f","rows":1000,"mark":"m"']
        lines += [f'{{"entry":"acknowledged","rows":{rows}']
        path.write_bytes(b"".join(journal.sealed(line.encode()) for line in lines))
        assert uploaded(OVER, upload_of(tmp_path), 1e9).health.word == word
        with UploadJournal(path, TO) as open_one:
            assert (open_one.rows, open_one.mark) == (rows, "m")
            open_one.acknowledge(1000)
    path.write_bytes(b"no journal\n")
    assert upload_of(tmp_path) is None


def test_how_a_run_ended_is_not_hidden_by_its_upload():
    at_it = Upload(Path("runs/one"), TO, Acknowledged(rows=10, at=5.0), True)
    found = uploaded(Judgement(health=Health("INCOMPLETE", "warn", "no vectors of a")), at_it, 5.0)
    assert (found.health.word, found.health.level, found.share_done) == ("UPLOADING", "warn", 0.01)
    assert found.health.detail.endswith("; the run is over (INCOMPLETE)")
    assert found.health.concerns[0].why.startswith("10 of 1,000 points")  # how far it is stands before what it lacks
    again = Remedy("continue it with", "interlock run in --resume")
    waits = at_it._replace(latest=Acknowledged(rows=10, at=5.0, since=4.0, waits="503", attempts=2, until=65.0))
    found = uploaded(
        Judgement(health=Health("INCOMPLETE", "warn", "why", concerns=(Concern("why", again),))), waits, 5.0
    )
    first, second = found.health.concerns
    assert first.remedy == ("if it gives up, upload the rest with", waits.onward)
    anew = "(upload it again after that)"
    assert second.told == f"the run is over (INCOMPLETE): why; after the upload continue it {anew} with {again.command}"
    whole = uploaded(Judgement(health=Health("DONE", "ok")), waits, 5.0)
    assert whole.health.remedy == first.remedy
