"""The journal keeps whole lines: through kills, damage, full disks and second openers."""

import errno
import io
import json
import os
import resource
import subprocess
import sys
import zlib
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from interlock.engine.errors import DiskError, InterlockError, UsageError
from interlock.engine.record import atomic, journal
from interlock.engine.record import events as ev
from interlock.engine.record.events import Entry
from interlock.engine.record.journal import Journal, UploadBinding, UploadJournal, decode, encode
from interlock.engine.record.recorder import LATEST, Recorder
from tests.builders import ROOT

OPENER = (
    "import sys; from pathlib import Path; from interlock.engine.record.journal import Journal; "
    "Journal(Path(sys.argv[1]))"
)


def entry(seq, message="something happened"):
    return Entry(seq=seq, at=1.5, session=0, elapsed=0.25, device_kind="cpu", body=ev.Warned(message=message))


@pytest.fixture
def path(tmp_path):
    return tmp_path / "run" / "journal.jsonl"


def written(path, count):
    kept = Journal(path)
    for seq in range(count):
        kept.append(entry(seq))
    kept.close()
    return path


def seqs(path):
    return [each.seq for each in journal.read(path)]


def reopened(path):
    """The journal as the next session opens it, and the numbers of what it replayed."""
    kept = Journal(path)
    return kept, [each.seq for each in kept.replay()]


@given(st.text(st.characters(exclude_categories=["Cs"])), st.integers(0), st.floats(0, 1e10))
def test_an_entry_is_one_line_of_json_that_decodes_to_itself(message, seq, at):
    whole = Entry(seq=seq, at=at, session=1, elapsed=at, device_kind="cpu", body=ev.Warned(message=message))
    line = encode(whole)
    assert decode(line) == whole
    assert line.count(b"\n") == 1 and line.endswith(b"\n")
    assert json.loads(line)["body"]["message"] == message


def test_the_checksum_of_a_line_is_the_crc_of_all_before_it():
    body, _, tail = encode(entry(3)).rpartition(b',"crc":"')
    assert int(tail[:8], 16) == zlib.crc32(body)


@given(st.data())
def test_a_line_with_any_bit_flipped_is_no_entry(data):
    line = bytearray(encode(entry(1)))
    line[data.draw(st.integers(0, len(line) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    assert decode(bytes(line)) is None


@pytest.mark.parametrize("line", [b"", b"\n", b"{}\n", b"short", b"\0" * 100])
def test_a_foreign_line_is_no_entry(line):
    assert decode(line) is None


def test_entries_come_back_in_order(path):
    assert list(journal.read(written(path, 5))) == [entry(seq) for seq in range(5)]


def test_reopening_cuts_off_only_the_torn_line(path):
    whole = written(path, 3).read_bytes()
    begin = len(b"".join(whole.splitlines(keepends=True)[:2]))
    for end in range(begin, len(whole)):
        path.write_bytes(whole[:end])
        kept, replayed = reopened(path)
        kept.append(entry(2))
        kept.close()
        assert replayed == [0, 1]
        assert path.read_bytes() == whole


def test_reopening_cuts_off_zeros_at_the_end(path):
    whole = written(path, 2).read_bytes()
    path.write_bytes(whole + b"\0" * 4096)
    kept, replayed = reopened(path)
    kept.close()
    assert (replayed, path.read_bytes()) == ([0, 1], whole)


@pytest.mark.parametrize("damage", [b"", b"x", b"\xff" * 7])
def test_damage_before_the_end_is_named_with_file_and_line(path, damage):
    lines = written(path, 4).read_bytes().splitlines(keepends=True)
    lines[1] = damage + lines[1][20:]
    path.write_bytes(b"".join(lines))
    with pytest.raises(InterlockError, match=r"journal\.jsonl: line 2 is damaged"):
        list(journal.read(path))


def test_reopening_cuts_nothing_off_when_damage_is_before_the_end(path):
    lines = written(path, 4).read_bytes().splitlines(keepends=True)
    lines[1] = lines[1].replace(b"something", b"anything!")
    path.write_bytes(damaged := b"".join(lines))
    kept = Journal(path)
    with pytest.raises(InterlockError):
        list(kept.replay())
    kept.close()
    assert path.read_bytes() == damaged


def test_taking_a_session_back_leaves_the_journal_as_it_was_found(path):
    before = written(path, 2).read_bytes()
    kept, _ = reopened(path)
    kept.append(entry(2))
    kept.append(entry(3))
    kept.rewind()
    assert path.read_bytes() == before
    kept.append(entry(2))
    kept.close()
    assert seqs(path) == [0, 1, 2]


def test_a_journal_that_is_gone_before_it_is_read_is_no_bug(path):
    kept = Journal(path)
    path.unlink()
    with pytest.raises(InterlockError, match=r"No such file.*journal\.jsonl.*: restore it from a copy, or start a new"):
        list(kept.replay())
    kept.close()


def test_an_open_journal_is_refused_to_another_process_and_loses_nothing(path):
    kept = Journal(path)
    kept.append(entry(0))
    done = subprocess.run([sys.executable, "-c", OPENER, path], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 1
    assert "UsageError" in done.stderr and f"in use by {atomic.occupant(path.parent)}" in done.stderr
    kept.append(entry(1))
    kept.close()
    assert seqs(path) == [0, 1]


def test_a_closed_journal_is_free_to_open(path):
    written(path, 1)
    kept, replayed = reopened(path)
    kept.close()
    assert replayed == [0]
    with pytest.raises(UsageError, match="in use"):
        one, _ = Journal(path), Journal(path)
        one.close()


def test_a_place_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InterlockError, match=r"cannot write .*journal\.jsonl"):
        Journal(tmp_path / "file" / "journal.jsonl")


@contextmanager
def full_disk():
    """Leaves room for two lines and half of a third; for no longer than the block, because it binds whoever writes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(2.5 * len(encode(entry(0)))), before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_full_disk_is_reported_and_whole_lines_stay(path):
    kept = Journal(path)
    with full_disk():
        kept.append(entry(0))
        kept.append(entry(1))
        with pytest.raises(InterlockError, match=r"cannot write .*journal\.jsonl.*free space and --resume"):
            kept.append(entry(2))
    kept.close()
    assert path.read_bytes() == encode(entry(0)) + encode(entry(1))


@pytest.mark.parametrize(
    ("number", "told"),
    [
        (errno.ENOSPC, "No space left on device; free space and --resume"),
        (errno.EFBIG, "File too large; raise the file size limit (ulimit -f) or free space and --resume"),
        (errno.EIO, "Input/output error; fix the cause and --resume"),
    ],
)
def test_a_journal_that_cannot_be_written_is_told_with_what_helps_against_that(path, number, told, monkeypatch):
    kept = Journal(path)

    def refuse(_):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(kept, "_handle", SimpleNamespace(write=refuse, truncate=refuse, close=kept._handle.close))
    with pytest.raises(DiskError) as refused:
        kept.append(entry(0))
    kept._handle.close()
    assert str(refused.value) == f"cannot write {path}: {told}"


def test_a_refused_session_says_why_though_its_journal_cannot_be_taken_back(call, tmp_path, monkeypatch):
    def refuse(_):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(Journal, "rewind", refuse)
    (tmp_path / "a.jsonl").write_text('{"text": "one"}\n')
    (tmp_path / "models").mkdir()
    code, _, err = call("run", "a.jsonl", "--roster", "./models", "--no-ui", "--quiet")
    assert code in (2, 5) and "models" in err and "bug in interlock" not in err


def test_the_journal_goes_on_once_a_full_disk_has_room(path):
    kept = Journal(path)
    with full_disk():
        kept.append(entry(0))
        with pytest.raises(InterlockError):
            kept.append(entry(1, "far too long " * 100))
        kept.append(entry(1))
    kept.close()
    assert seqs(path) == [0, 1]


def test_a_part_of_a_line_that_could_not_be_taken_back_is_taken_back_before_the_next(path, monkeypatch):
    kept = Journal(path)
    opened, failing = kept._handle, [OSError(errno.EIO, os.strerror(errno.EIO))]

    class Handle:
        def truncate(self, size):
            if failing:
                raise failing.pop()
            return opened.truncate(size)

        def __getattr__(self, name):
            return getattr(opened, name)

    monkeypatch.setattr(kept, "_handle", Handle())
    with full_disk():
        kept.append(entry(0))
        with pytest.raises(DiskError, match=r"cannot write .*journal\.jsonl"):
            kept.append(entry(1, "far too long " * 100))
        kept.append(entry(1))
    kept.close()
    assert seqs(path) == [0, 1]


@pytest.mark.parametrize("call", ["truncate", "readall"])
def test_a_journal_of_an_upload_that_the_disk_refuses_is_named(tmp_path, monkeypatch, call):
    binding = UploadBinding("http://a", "docs", "f" * 64, 3)
    with UploadJournal(path := tmp_path / "uploads" / "it.jsonl", binding) as kept:
        kept.acknowledge(2)
    with path.open("ab") as torn:
        torn.write(b"torn")

    def refused(self, *size):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(journal.io, "FileIO", type("Refusing", (io.FileIO,), {call: refused}))
    with pytest.raises(InterlockError, match=r"cannot (read|write) .*it\.jsonl: Input/output error; "):
        UploadJournal(path, binding)
    monkeypatch.undo()
    assert UploadJournal(path, binding).rows == 2  # and nobody holds it


def test_journal_state_and_ring_have_events_in_one_order(path):
    recorder = Recorder(Journal(path), "cpu")
    for number in range(3):
        recorder.emit(ev.Warned(message=str(number)))
    fresh, dropped = recorder.drain(0)
    assert ([each.seq for each in fresh], dropped) == ([1, 2], 0)
    assert recorder.look(lambda state: list(state.warnings)) == ["0", "1", "2"]
    assert list(journal.read(path)) == recorder.drain(-1)[0]


def test_draining_tells_how_many_events_the_ring_dropped(path):
    recorder = Recorder(Journal(path), "cpu")
    for number in range(LATEST + 5):
        recorder.emit(ev.Warned(message=str(number)))
    fresh, dropped = recorder.drain(-1)
    assert (len(fresh), dropped, fresh[0].seq) == (LATEST, 5, 5)
    assert recorder.drain(LATEST + 4) == ([], 0)


def test_numbers_go_on_in_the_next_session(path):
    first = Recorder(Journal(path), "cpu")
    first.emit(ev.Warned(message="a"))
    first.journal.close()
    second = Recorder(Journal(path), "cpu")
    made = second.emit(ev.Warned(message="b"))
    assert (second.first, made.seq, made.session) == (1, 1, 1)
    assert second.drain(-1)[0] == [made]
    assert second.look(lambda state: list(state.warnings)) == ["a", "b"]


def test_who_has_a_run_in_use_is_told_whatever_the_system_calls_him(tmp_path, monkeypatch):
    monkeypatch.setenv("LOGNAME", os.fsdecode(b"j\xf6rg"))
    kept = Journal(tmp_path / "journal.jsonl")
    assert atomic.occupant(tmp_path).user == "j\ufffdrg"
    kept.close()


@pytest.mark.parametrize("since", ["1e300", "-1e300", '"noon"'])
def test_what_says_nothing_sensible_of_who_has_a_run_in_use_names_nobody(tmp_path, since):
    kept = Journal(tmp_path / "journal.jsonl")
    (tmp_path / atomic.SESSION).write_text(f'{{"pid":1,"user":"u","host":"h","since":{since}}}')
    with pytest.raises(UsageError, match="in use by another session"):
        Journal(tmp_path / "journal.jsonl")
    kept.close()
