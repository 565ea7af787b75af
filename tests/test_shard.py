"""The directory of a collection: what is taken up, what is refused, and what each failure is told as."""

import errno
import fcntl
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
from collections import namedtuple
from contextlib import ExitStack, nullcontext
from dataclasses import replace
from pathlib import Path
from uuid import UUID

import numpy as np
import pytest

from interlock.engine.errors import InterlockError, UsageError
from interlock.engine.targets import shard, stores
from interlock.engine.targets.embedded import Point, Store
from interlock.engine.targets.stores import check_names, check_store, collections
from interlock.engine.targets.target import deliver
from interlock.engine.vectors.fusion import Fusion
from interlock.engine.vectors.manifest import CollectionSpec
from tests.builders import roster_entry, unprivileged

ROOT = Path(__file__).parents[1]  # where a child process finds the engine
MANIFEST = {"schema_version": 1, "fusion": "named", "models": [{"name": "a", "fingerprint": "f1"}]}
POINT = Point(str(UUID(int=1)), {"row": 0}, {"small": np.ones(8, np.float32)})
Usage = namedtuple("Usage", "total used free")
OPEN = """
import sys
from pathlib import Path
from interlock.engine.targets.embedded import Store
from interlock.engine.targets.target import deliver
"""


def open_store(directory, manifest=MANIFEST, dim=8, name="docs"):
    return Store.open_for_write(directory, name, {"small": dim}, manifest)


def run_python(code, *args, **options):
    return subprocess.run(
        [sys.executable, "-c", code, *map(str, args)], capture_output=True, text=True, cwd=ROOT, **options
    )


def test_another_manifest_is_refused_with_the_differences(tmp_path):
    open_store(tmp_path).close()
    other = {**MANIFEST, "models": [{"name": "a", "fingerprint": "f2"}], "extra": 1}
    with pytest.raises(UsageError) as refusal:
        open_store(tmp_path, other)
    for part in ("extra is new", 'models[0].fingerprint was "f1", is now "f2"', "another store directory"):
        assert part in str(refusal.value)


def test_a_store_of_another_run_is_reused_and_names_the_new_run(tmp_path):
    open_store(tmp_path, {**MANIFEST, "run": "one"}).close()
    open_store(tmp_path, {**MANIFEST, "run": "two"}).close()
    stored = json.loads((tmp_path / "docs" / "manifest.json").read_text())
    assert stored == {**MANIFEST, "run": "two"}
    assert not list(tmp_path.rglob("*.partial"))


def test_other_dimensions_are_refused(tmp_path):
    open_store(tmp_path).close()
    with pytest.raises(UsageError, match="incompatible"):
        open_store(tmp_path, dim=9)


def test_a_missing_collection_is_refused_with_those_there_are(tmp_path):
    with pytest.raises(UsageError, match=r"no store at .*nowhere"):
        Store.open_for_read(tmp_path / "nowhere", "docs")
    with pytest.raises(UsageError, match="has no collection: name the --qdrant directory of a run"):
        Store.open_for_read(tmp_path, "docs")
    for name in ("b", "a"):
        open_store(tmp_path, name=name).close()
    assert collections(tmp_path) == ["a", "b"]
    with pytest.raises(UsageError, match=r"no collection 'docs' in .*: choose one of a, b"):
        Store.open_for_read(tmp_path, "docs")


@pytest.mark.parametrize("name", ["", "../up", ".hidden", "a/b", "a:b", "a|b", "x" * 201, "tab\t"])
def test_a_name_that_a_server_refuses_is_refused_here(name, tmp_path):
    with pytest.raises(UsageError, match="name"):
        check_names("docs", [name])
    with pytest.raises(UsageError, match="collection name"):
        open_store(tmp_path, name=name)
    assert not any(tmp_path.iterdir())


def test_a_foreign_directory_is_refused_and_untouched(tmp_path):
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "thesis.txt").write_text("mine")
    with pytest.raises(UsageError, match="not an Interlock collection"):
        open_store(tmp_path)
    assert [p.name for p in (tmp_path / "docs").iterdir()] == ["thesis.txt"]


@pytest.mark.parametrize("broken", ["manifest.json", "edge_config.json", "segment.json", "deleted/status.dat"])
def test_a_damaged_file_is_reported_even_when_the_engine_panics(tmp_path, broken):
    with open_store(tmp_path) as store:
        deliver([POINT], store)
    damaged = next(path for path in tmp_path.rglob("*") if str(path).endswith(broken))
    os.truncate(damaged, damaged.stat().st_size // 2)
    for opening in (lambda: open_store(tmp_path), lambda: Store.open_for_read(tmp_path, "docs")):
        with pytest.raises(UsageError, match="damaged"):
            opening()


def test_an_open_store_is_in_use_to_another_process(tmp_path):
    code = OPEN + "Store.open_for_read(Path(sys.argv[1]), 'docs')"
    with open_store(tmp_path):
        refused = run_python(code, tmp_path)
    assert "UsageError" in refused.stderr
    assert "in use by another run or search" in refused.stderr
    assert run_python(code, tmp_path).returncode == 0


def test_a_creation_killed_before_the_shard_was_made_is_taken_up_by_the_next(tmp_path):
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / ".manifest.json.partial").write_text("{")
    open_store(tmp_path).close()
    assert json.loads((tmp_path / "docs" / "manifest.json").read_text()) == MANIFEST
    assert not list(tmp_path.rglob("*.partial"))
    (tmp_path / "half").mkdir()
    (tmp_path / "half" / "manifest.json").write_text(json.dumps(MANIFEST))
    with open_store(tmp_path, name="half") as store:
        assert store.count() == 0


@pytest.mark.parametrize(
    "room", [1_000, 1_000_000]
)  # bytes of a file at which the kernel kills: before, amid the engine's
def test_a_store_whose_first_delivery_was_killed_says_so_and_how_it_goes_on(tmp_path, room):
    code = f"""{OPEN}
import resource, signal
signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
resource.setrlimit(resource.RLIMIT_FSIZE, ({room}, {room}))
Store.open_for_write(Path(sys.argv[1]), "docs", {{"small": 8}}, {{"run": {{"run_id": "r1"}}}})
"""
    assert run_python(code, tmp_path).returncode == -signal.SIGXFSZ
    left = sorted(tmp_path.rglob("*"))
    with pytest.raises(UsageError, match=r"docs has no points yet.*finish run r1 with the command"):
        Store.open_for_read(tmp_path, "docs")
    assert sorted(tmp_path.rglob("*")) == left
    with open_store(tmp_path, {"run": {"run_id": "r1"}}) as store:
        deliver([POINT], store)
        assert store.count() == 1


def test_a_store_in_the_making_has_no_kinds_of_vectors_yet_and_is_not_called_damaged(tmp_path):
    (tmp_path / "docs" / "wal").mkdir(parents=True)
    (tmp_path / "docs" / "manifest.json").write_text('{"unfinished": true, "run": {"run_id": "r1"}}')
    with pytest.raises(UsageError, match=r"docs has no points yet.*finish run r1 with the command"):
        shard.read_kinds(tmp_path / "docs")


def test_an_upsert_stops_before_a_full_disk_would_kill_the_engine(tmp_path, monkeypatch):
    with open_store(tmp_path) as store:
        monkeypatch.setattr(shard.shutil, "disk_usage", lambda _: Usage(10**9, 10**9, 1000))
        with pytest.raises(InterlockError, match=r"docs is nearly full \(1000 B free\)"):
            deliver([POINT], store)
        monkeypatch.undo()
        deliver([POINT], store)
        assert store.count() == 1


def test_a_file_system_that_does_not_say_what_is_free_is_written_to(tmp_path, monkeypatch):
    def unknown(path):
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS), path)

    monkeypatch.setattr(shard.shutil, "disk_usage", unknown)
    with open_store(tmp_path) as store:
        deliver([POINT], store)
        assert store.count() == 1


def test_a_limit_of_files_says_what_to_do_and_is_no_usage_error(tmp_path):
    def limit_files():
        resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, 1_000_000))

    code = OPEN + "Store.open_for_write(Path(sys.argv[1]), 'docs', {'m': 8}, {})"
    failed = run_python(code, tmp_path, preexec_fn=limit_files)
    assert "interlock.engine.errors.InterlockError" in failed.stderr
    assert "raise the file size limit (ulimit -f), then deliver again" in failed.stderr


@pytest.mark.parametrize("spare", [1, 2, 3, 4])
def test_a_whole_store_is_not_called_damaged_where_the_limit_of_open_files_is_met(tmp_path, spare):
    open_store(tmp_path).close()
    code = f"""{OPEN}
import os, qdrant_edge, resource
most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) - 1 + {spare - 1}, most))
try:
    Store.open_for_write(Path(sys.argv[1]), "docs", {{"small": 8}}, {MANIFEST})
except Exception as error:
    print(type(error).__name__, error)
"""
    said = run_python(code, tmp_path).stdout
    assert said.startswith("InterlockError ") and "raise the open file limit (ulimit -n), then" in said
    assert "damaged" not in said


def test_a_parent_that_is_a_file_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InterlockError, match="file/docs failed while writing manifest"):
        open_store(tmp_path / "file")


def check(directory, manifest=MANIFEST, dim=8, name="docs"):
    stores.check(directory, name, {"small": dim}, manifest)


def test_checking_a_new_an_own_or_a_half_made_collection_writes_nothing(tmp_path):
    check(tmp_path / "not" / "yet")
    assert not (tmp_path / "not").exists()
    open_store(tmp_path, {**MANIFEST, "run": "one"}).close()
    (tmp_path / "half").mkdir()
    (tmp_path / "half" / "manifest.json").write_text(json.dumps(MANIFEST))
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    check(tmp_path, {**MANIFEST, "run": "two"})
    check(tmp_path, name="half")
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        ({"manifest": {**MANIFEST, "fusion": "mean"}}, "other settings .fusion was"),
        ({"dim": 9}, "other dimensions .small was 8, is now 9"),
        ({"name": "../up"}, "collection name"),
        ({"name": "foreign"}, "not an Interlock collection"),
        ({"name": "file"}, "not a directory"),
        ({"name": "damaged"}, "is damaged"),
    ],
)
def test_checking_refuses_what_opening_would_refuse(tmp_path, asked, why):
    open_store(tmp_path).close()
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "thesis.txt").write_text("mine")
    (tmp_path / "file").write_text("")
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / "manifest.json").write_text("{")
    with pytest.raises(UsageError, match=why):
        check(tmp_path, **asked)


def test_checking_an_open_collection_says_in_use_until_it_is_closed(tmp_path):
    code = (
        OPEN
        + "from interlock.engine.targets import stores\n"
        + f"stores.check(Path(sys.argv[1]), 'docs', {{'small': 8}}, {MANIFEST})"
    )
    with open_store(tmp_path):
        refused = run_python(code, tmp_path)
    assert "in use by another run or search" in refused.stderr
    assert run_python(code, tmp_path).returncode == 0


def test_a_collection_whose_files_the_engine_has_yet_to_make_is_in_use_too(tmp_path):
    (tmp_path / "docs").mkdir()
    with shard.holding(tmp_path / "docs", fcntl.LOCK_EX):
        for asked in (check, open_store):
            with pytest.raises(UsageError, match="in use by another run or search"):
                asked(tmp_path)
    assert not list((tmp_path / "docs").iterdir())


def test_a_writer_waits_for_a_run_that_only_checks(tmp_path, monkeypatch):
    (tmp_path / "docs").mkdir()
    checking = ExitStack()
    checking.enter_context(shard.holding(tmp_path / "docs", fcntl.LOCK_SH))
    monkeypatch.setattr("time.sleep", lambda _: checking.close())
    with open_store(tmp_path) as store:
        deliver([POINT], store)
        assert store.count() == 1


CREATOR = f"""{OPEN}
import numpy, qdrant_edge, uuid
from interlock.engine.errors import InterlockError
from interlock.engine.targets.embedded import Point
print("ready", flush=True)
for line in sys.stdin:
    try:
        with Store.open_for_write(Path(line.strip()), "docs", {{"small": 8}}, {MANIFEST}) as store:
            deliver([Point(str(uuid.uuid4()), {{}}, {{"small": numpy.ones(8, numpy.float32)}})], store)
        print("whole", flush=True)
    except InterlockError as error:
        print("in use" if "in use by another run or search" in str(error) else error, flush=True)
"""


def test_two_processes_making_one_collection_leave_it_whole_or_are_told_that_it_is_in_use(tmp_path):
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "cwd": ROOT}
    both = [subprocess.Popen([sys.executable, "-c", CREATOR], **pipes) for _ in range(2)]
    for each in both:
        assert each.stdout.readline() == "ready\n"
    for trial in range(12):
        for each in both:
            print(tmp_path / str(trial), file=each.stdin, flush=True)
        told = [each.stdout.readline().strip() for each in both]
        assert "whole" in told and set(told) <= {"whole", "in use"}
        with Store.open_for_read(tmp_path / str(trial), "docs") as store:
            assert store.count() == told.count("whole")
    for each in both:
        each.communicate(timeout=60)


@pytest.mark.parametrize(("fusion", "refused"), [(Fusion.CONCAT, False), (Fusion.NAMED, True)])
def test_checking_for_a_new_run_refuses_another_fusion_and_takes_the_same(tmp_path, fusion, refused):
    roster = [roster_entry(model=name, dim=dim, weight=0.5) for name, dim in (("a", 8), ("b", 4))]
    spec = CollectionSpec("docs", Fusion.CONCAT, roster, "one")
    Store.open_for_write(tmp_path, "docs", {"a": 8, "b": 4, "fused": 12}, spec.manifest).close()
    with pytest.raises(UsageError, match="fusion was") if refused else nullcontext():
        check_store(replace(spec, fusion=fusion, run_id="two"), tmp_path)


@pytest.mark.parametrize("asked", [check, open_store])
def test_a_disk_without_room_is_told_before_the_engine_makes_its_files(tmp_path, monkeypatch, asked):
    monkeypatch.setattr(shard.shutil, "disk_usage", lambda _: Usage(10**9, 10**9, 1000))
    with pytest.raises(InterlockError, match=r"docs is nearly full \(1000 B free\)"):
        asked(tmp_path / "store")
    assert not list(tmp_path.rglob("wal"))


@pytest.mark.parametrize("kilobytes", [100, 1000, 5000])
def test_a_full_disk_is_an_error_and_not_the_death_of_the_process(tmp_path, kilobytes):
    (disk := tmp_path / "disk").mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={kilobytes}k", "none", str(disk)]
    if subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("this user may not mount")
    try:
        code = OPEN + "Store.open_for_write(Path(sys.argv[1]), 'docs', {'m': 1024, 'n': 768}, {})"
        failed = run_python(code, disk)
    finally:
        subprocess.run(["umount", str(disk)], check=True)
    assert failed.returncode == 1
    assert "interlock.engine.errors.InterlockError: disk of " in failed.stderr


def test_what_a_killed_engine_was_about_to_write_is_swept_when_the_store_is_written_again(tmp_path):
    open_store(tmp_path).close()
    segment = next((tmp_path / "docs" / "segments").iterdir())
    left = [tmp_path / "docs" / ".atomicwriteAbC", segment / ".atomicwriteXyZ"]
    for each in left:
        each.mkdir()
        (each / "tmpfile.tmp").write_text("half")
    Store.open_for_read(tmp_path, "docs").close()
    assert all(each.exists() for each in left)
    open_store(tmp_path).close()
    assert not list(tmp_path.rglob(".atomicwrite*"))


PANICKING = f"""{OPEN}
import os, threading, time
from interlock.engine.errors import UsageError
def opened():
    try:
        Store.open_for_read(Path(sys.argv[1]), "docs")
    except UsageError as error:
        print(error)
"""


def panicking(directory, what, backtrace):
    """What a process prints that opens a store in which the engine panics, and its standard error output."""
    with open_store(directory) as store:
        deliver([POINT], store)
    damaged = next(path for path in directory.rglob("*") if str(path).endswith("deleted/status.dat"))
    os.truncate(damaged, damaged.stat().st_size // 2)
    done = run_python(PANICKING + what, directory, env={**os.environ, "RUST_BACKTRACE": backtrace})
    assert "is damaged or not Interlock's" in done.stdout
    return done.stderr


@pytest.mark.parametrize("backtrace", ["0", "1"])
def test_the_panic_of_the_engine_is_not_told_beside_the_refusal(tmp_path, backtrace):
    assert (
        panicking(tmp_path, "opened()\nos.write(2, b'after')\nopened()\nos.write(2, b'wards')", backtrace)
        == "afterwards"
    )


def test_what_others_write_while_the_engine_panics_is_not_lost(tmp_path):
    chatter = """
def chatter():
    for number in range(200):
        os.write(2, b"[%d]\\n" % number)
        time.sleep(0.001)
others = threading.Thread(target=chatter)
others.start()
opened()
while others.is_alive():
    opened()
"""
    said = panicking(tmp_path, chatter, "0").split()
    assert [each for each in sorted(said) if each.startswith("[")] == sorted(f"[{number}]" for number in range(200))


def test_a_collection_that_may_not_be_read_is_in_nobodys_way():
    with tempfile.TemporaryDirectory() as directory:
        Path(directory).chmod(0o755)
        open_store(Path(directory)).close()
        (Path(directory) / "closed").mkdir(mode=0)
        (Path(directory) / "closed").chmod(0)
        with unprivileged():
            assert stores.alone(Path(directory), "docs").name == "docs"
            with pytest.raises(
                InterlockError, match=r"store .*closed .*Permission denied.*; let this user read it, then"
            ):
                shard.read_manifest(stores.alone(Path(directory), "closed"))


def test_a_store_that_may_not_be_written_to_is_told_with_the_copy_that_is_read_instead(tmp_path, monkeypatch):
    import qdrant_edge as edge

    with open_store(tmp_path) as store:
        store.upsert([POINT], 1)

    def refused(*_):
        raise RuntimeError("Failed to open mmap payload storage: Read-only file system (os error 30)")

    monkeypatch.setattr(edge, "EdgeShard", type("Refusing", (), {"load": staticmethod(refused)}))
    with pytest.raises(InterlockError, match=r"make it writable, or search a copy of it \(--copy\), then try again$"):
        Store.open_for_read(tmp_path, "docs").__enter__()
