"""A finished run is delivered once more from its own vectors, exactly or with a loss that is told, and over nothing."""

import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import qdrant_edge as edge

from interlock.engine.compute import reuse
from interlock.engine.compute.controls import Controls
from interlock.engine.errors import ExitCode, UsageError
from interlock.engine.flows.export import ExportRequest, export
from interlock.engine.flows.run import Run
from interlock.engine.record import atomic
from interlock.engine.record.events import ArtefactWritten, Warned
from interlock.engine.settings import load
from interlock.engine.targets.files import write as exports
from tests.builders import ROOT, corpus, interlock, sentences

TEXTS = [*sentences(40), "said twice", "said twice"]
METADATA = {"page": 3, "big": 2**70, "float": 1e-7, "nested": {"a b": [None, "line\u2028two"]}}
NOTHING = load({}, {}, None)


@pytest.fixture(scope="module")
def run(tmp_path_factory, tiny_a, tiny_b):
    """A run whose models are no longer there."""
    place = tmp_path_factory.mktemp("export")
    models = [shutil.copytree(model, place / model.name) for model in (tiny_a, tiny_b)]
    chunks = corpus(place / "in", {"Docs": {"b.jsonl": TEXTS}, "More": {"c.jsonl": sentences(5, start=38)}})
    first = [{"text": "with metadata", "metadata": METADATA, "other": [1]}]
    (chunks / "Docs" / "a_chunks.json").write_text(json.dumps(first, indent=2))
    flags = {"roster": f"{models[0]}=0.3,{models[1]}=0.7", "out": str(place / "runs"), "run_id": "r", "export": "npy"}
    assert Run(chunks, load(flags, {}, None), Controls()).go() == ExitCode.COMPLETED
    for model in models:
        shutil.rmtree(model)
    return place / "runs" / "r"


@pytest.fixture(scope="module")
def vectors(run):
    """What each chunk of Docs has: its text's row in the passes, and the fused one as the README says it is made."""
    texts = ["with metadata", *TEXTS]
    rows = [list(dict.fromkeys(texts)).index(text) for text in texts]
    one, other = (np.load(next(run.glob(f"passes/{number}_*/vectors.npy")))[rows] for number in (0, 1))
    fused = np.hstack([np.sqrt(0.3) * one, np.sqrt(0.7) * other]).astype(np.float32)
    return {"tiny-a": one, "tiny-b": other, "fused": fused}


def exported(run, to, formats="npy", now=None, **asked):
    """The files written, by name; what is told of loss."""
    told = []
    given = load({"export": formats, **(now or {})}, {}, None)
    losses = export(run, given, ExportRequest(to=to, **asked), told.append).losses
    names = [each.path for each in told if isinstance(each, ArtefactWritten)]
    return {name.partition("/")[2]: to / name for name in names if name.startswith("Docs/")}, losses


def test_files_are_exported_as_the_passes_have_them_without_any_model(run, vectors, tmp_path):
    files, losses = exported(run, tmp_path / "out")
    assert losses == {"Docs": [], "More": []}
    assert sorted(files) == ["fused.npy", "tiny-a.npy", "tiny-b.npy"]
    for name in ("tiny-a", "tiny-b"):
        np.testing.assert_array_equal(np.load(files[f"{name}.npy"]), vectors[name])
    np.testing.assert_allclose(np.load(files["fused.npy"]), vectors["fused"], atol=1e-7)
    assert not list(tmp_path.rglob(".*"))


def test_lines_of_json_give_back_every_bit_and_every_field(run, vectors, tmp_path):
    files, _ = exported(run, tmp_path / "out", "npy,jsonl", {"keep": "both"}, collection="Docs")
    lines = [json.loads(line) for line in files["points.jsonl"].open(encoding="utf-8")]
    assert [line["payload"]["text"] for line in lines] == ["with metadata", *TEXTS]
    metadata, record = lines[0]["payload"]["metadata"], lines[0]["payload"]["record"]
    assert (metadata, record) == (METADATA, {"other": [1]})
    for name, wanted in {**vectors, "fused": np.load(files["fused.npy"])}.items():
        found = np.array([line["vectors"][name] for line in lines])
        np.testing.assert_array_equal(found, wanted.astype(np.float64))
    assert len({line["id"] for line in lines}) == len(lines)


@pytest.mark.parametrize(("precision", "kind"), [("float16", np.float16), ("int8", np.int8)])
def test_narrower_numbers_lose_what_is_told_of_them(run, vectors, tmp_path, precision, kind):
    files, losses = exported(run, tmp_path / "out", "npy,parquet", precision=precision, collection="Docs")
    table = pq.read_table(files["points.parquet"])
    for loss in losses["Docs"]:
        exact = vectors[loss.name].astype(np.float64)
        numbers = np.load(files[f"{loss.name}.{precision}.npy"])
        assert numbers.dtype == kind
        scale = np.load(files[f"{loss.name}.int8-scale.npy"]).item() if precision == "int8" else 1
        found = numbers.astype(np.float64) * scale
        cosines = (exact * found).sum(1) / np.linalg.norm(exact, axis=1) / np.linalg.norm(found, axis=1)
        assert (loss.least_cosine, loss.mean_cosine) == pytest.approx((cosines.min(), cosines.mean()), abs=1e-7)
        assert loss.sampled == len(exact)
        assert loss.neighbours == pytest.approx(kept(exact, found), abs=0.006)  # ties may fall either way
        if loss.name == "fused":
            assert float((table.schema.field("fused").metadata or {}).get(b"scale", 1)) == pytest.approx(scale)
            np.testing.assert_array_equal(np.array(table["fused"].to_pylist(), kind), numbers)
    told = json.loads((tmp_path / "out" / "Docs" / "export.json").read_text())
    assert (told["vectors"], told["losses"][0]["neighbours"]) == (precision, losses["Docs"][0].neighbours)


def kept(exact, found):
    """Of each row's ten nearest others by `found`, the share that is as near by `exact` as its ten nearest are."""
    before, after = (products - 9 * np.eye(len(exact)) for products in (exact @ exact.T, found @ found.T))
    last = np.sort(before, axis=1)[:, -10, None] - 1e-6
    nearest = np.argsort(-after, axis=1)[:, :10]
    return (np.take_along_axis(before, nearest, axis=1) >= last).mean()


def test_a_file_that_no_export_wrote_is_never_written_over(run, tmp_path):
    out = tmp_path / "out"
    (out / "Docs").mkdir(parents=True)
    (out / "Docs" / "fused.npy").write_bytes(b"mine")
    (out / "Docs" / "notes.txt").write_bytes(b"mine too")
    with pytest.raises(UsageError, match=r"fused\.npy was not written by an export"):
        exported(run, out)
    assert (out / "Docs" / "fused.npy").read_bytes() == b"mine"
    (out / "Docs" / "fused.npy").unlink()
    files, _ = exported(run, out)
    again, _ = exported(run, out, "npy,jsonl")  # its own, and one more
    assert again.keys() == files.keys() | {"points.jsonl"}
    assert (out / "Docs" / "notes.txt").read_bytes() == b"mine too"
    whole = files["tiny-a.npy"].read_bytes()
    files["tiny-a.npy"].write_bytes(whole + b"1")
    with pytest.raises(UsageError, match=r"tiny-a\.npy was not written by an export, or changed since"):
        exported(run, out)
    (tmp_path / "elsewhere.npy").write_bytes(whole)  # the very bytes, and still not to be written through
    files["tiny-a.npy"].unlink()
    files["tiny-a.npy"].symlink_to(tmp_path / "elsewhere.npy")
    with pytest.raises(UsageError, match="was not written by an export"):
        exported(run, out)


def contents(directory):
    return {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def test_files_of_two_runs_never_stand_side_by_side(run, tmp_path):
    other = shutil.copytree(run, tmp_path / "other")
    before, _ = exported(run, tmp_path / "to", "npy,jsonl")
    held = {name: path.read_bytes() for name, path in before.items()}
    said = (
        r"Docs has .*fused\.npy of run r, whose rows are others: choose another --to, or export what replaces them too"
    )
    with pytest.raises(UsageError, match=said):
        exported(other, tmp_path / "to", "jsonl")
    assert {name: path.read_bytes() for name, path in before.items()} == held
    after, _ = exported(other, tmp_path / "to", "jsonl,npy")
    assert set(after) == set(before)
    assert json.loads((tmp_path / "to" / "Docs" / "export.json").read_text())["run"] == "other"
    assert set(exported(other, tmp_path / "to", "jsonl")[0]) == {"points.jsonl"}


def test_two_runs_of_one_name_are_two(run, tmp_path, tiny_a):
    chunks = corpus(tmp_path / "in", {"Docs": {"a.jsonl": sentences(3)}})
    flags = {"roster": f"{tiny_a}=1", "out": str(tmp_path / "runs"), "run_id": "r", "export": "npy"}
    assert Run(chunks, load(flags, {}, None), Controls()).go() == ExitCode.COMPLETED
    exported(run, tmp_path / "to", "npy,jsonl", collection="Docs")
    with pytest.raises(UsageError, match=r"Docs has .*points\.jsonl of another run r, whose rows are others"):
        exported(tmp_path / "runs" / "r", tmp_path / "to", "npy")
    assert set(exported(run, tmp_path / "to", "npy", collection="Docs")[0]) >= {"fused.npy"}


def test_what_lacks_a_vector_is_told_and_stands_beside_nothing_that_has_it(tmp_path, tiny_b):
    chunks = corpus(
        tmp_path / "in", {"Docs": {"a.jsonl": [*sentences(9), "a long one " * 60]}, "More": {"b.jsonl": [""]}}
    )
    flags = {"roster": str(tiny_b), "out": str(tmp_path / "runs"), "run_id": "r", "devices": "sim:1xT4"}
    faulty = {"faults": "oom-over:40KiB", "cpu_fallback": "no"}
    assert Run(chunks, load(flags | faulty, {}, None), Controls()).go() == ExitCode.FAILED
    told = []
    export(tmp_path / "runs" / "r", load({"export": "npy"}, {}, None), ExportRequest(to=tmp_path / "out"), told.append)
    assert np.isnan(np.load(tmp_path / "out" / "Docs" / "fused.npy")).any(axis=1).sum() == 1
    docs, more = (each.message for each in told if isinstance(each, Warned))
    assert "Docs is incomplete in its run" in docs and ": 1 text has no tiny-b vector" in docs
    assert "More is failed in its run" in more and ": no usable record" in more
    again = {"resume": True, "retry_parked": True, "faults": "", "max_refused": "1,files"}
    Run(chunks, load(flags | again, {}, None), Controls()).go()
    with pytest.raises(UsageError, match=r"fused\.npy of an earlier state of run r, whose rows are others"):
        exported(tmp_path / "runs" / "r", tmp_path / "out", "parquet")
    files, _ = exported(tmp_path / "runs" / "r", tmp_path / "out", "npy,parquet")
    assert np.isfinite(np.load(files["fused.npy"])).all()


def test_a_retry_on_worse_limits_takes_no_vector_away(tmp_path, tiny_b):
    chunks = corpus(tmp_path / "in", {"Docs": {"a.jsonl": [*sentences(5), *(f"{n} long " * 60 for n in range(5))]}})
    flags = {"roster": str(tiny_b), "out": str(tmp_path / "runs"), "run_id": "r", "devices": "sim:1xT4"}
    flags |= {"cpu_fallback": "no", "export": "npy"}
    had = []
    for faults in ("oom-over:40KiB", "oom-over:1KiB", ""):
        Run(chunks, load(flags | {"faults": faults, "resume": bool(had)}, {}, None), Controls()).go()
        had.append(np.load(tmp_path / "runs" / "r" / "exports" / "Docs" / "fused.npy"))
    assert [np.isfinite(each).all(axis=1).sum() for each in had] == [5, 5, 10]
    np.testing.assert_array_equal(had[1], had[0])


def test_fused_vectors_of_two_projections_never_stand_side_by_side(run, tmp_path):
    exported(run, tmp_path / "out", "npy", {"project": "8"}, collection="Docs")
    with pytest.raises(UsageError, match=r"has fused\.npy of another projection\.npy than this export's"):
        exported(run, tmp_path / "out", "jsonl", {"project": "4"}, collection="Docs")
    again, _ = exported(run, tmp_path / "out", "jsonl", {"project": "8"}, collection="Docs")
    line = json.loads(again["points.jsonl"].open(encoding="utf-8").readline())
    np.testing.assert_array_equal(line["vectors"]["fused"], np.load(tmp_path / "out" / "Docs" / "fused.npy")[0])
    files, _ = exported(run, tmp_path / "out", "npy,jsonl", {"project": "4"}, collection="Docs")
    assert np.load(files["fused.npy"]).shape[1] == np.load(files["projection.npy"]).shape[1] == 4


def test_a_projection_that_no_export_wrote_never_stands_beside_vectors_that_it_did_not_make(run, tmp_path):
    place = tmp_path / "out" / "Docs" / "projection.npy"
    place.parent.mkdir(parents=True)
    np.save(place, np.eye(4, dtype=np.float32))
    with pytest.raises(
        UsageError, match=r"projection\.npy was not written by an export.*: choose another --to, or move"
    ):
        exported(run, tmp_path / "out", "npy", collection="Docs")
    assert [each.name for each in place.parent.iterdir()] == ["projection.npy"]


def test_a_projection_goes_with_the_vectors_that_it_made(run, tmp_path):
    out = tmp_path / "out" / "Docs"
    exported(run, out.parent, "npy", collection="Docs")
    with pytest.raises(
        UsageError, match=r"has fused\.npy of another projection\.npy than this export's: choose another"
    ):
        exported(run, out.parent, "jsonl", {"project": "8"}, collection="Docs")
    (out / "fused.npy").unlink()
    exported(run, out.parent, "npy,jsonl", {"project": "8"}, collection="Docs")
    with pytest.raises(UsageError, match=r"has fused\.npy of another projection\.npy than this export's"):
        exported(run, out.parent, "jsonl", collection="Docs")
    (out / "points.jsonl").unlink()  # what is gone stands beside nothing
    files, _ = exported(run, out.parent, "npy", collection="Docs")
    assert np.load(files["fused.npy"]).shape[1] == 80 and not (out / "projection.npy").exists()
    assert "projection.npy" not in json.loads((out / "export.json").read_text())["files"]


def test_an_export_waits_for_no_other_and_says_what_is_for_a_store(run, tmp_path):
    (tmp_path / "Docs").mkdir()
    handle = os.open(tmp_path / "Docs", os.O_RDONLY)
    fcntl.flock(handle, fcntl.LOCK_EX)
    with pytest.raises(UsageError, match=r"another process writes into .*Docs: wait for its end"):
        exported(run, tmp_path, collection="Docs")
    os.close(handle)
    assert exported(run, tmp_path, collection="Docs")[0]
    for name, value in {"compact": True, "quantise": "int8", "prune": True, "bm25": "german"}.items():
        with pytest.raises(UsageError, match=f"--{name} is for a store: add --to-store DIR, or drop it"):
            exported(run, tmp_path, "npy", {name: value})


def test_files_do_not_go_into_a_store(run, tmp_path, tiny_a):
    chunks = corpus(tmp_path / "in", {"docs": {"a.jsonl": TEXTS}})
    flags = {"roster": str(tiny_a), "out": str(tmp_path / "runs"), "run_id": "r", "export": "npy"}
    assert Run(chunks, load(flags, {}, None), Controls()).go() == ExitCode.COMPLETED
    embedded = tmp_path / "runs" / "r"
    with pytest.raises(UsageError, match="is a collection of a store, which files do not go into"):
        export(embedded, NOTHING, ExportRequest(to=tmp_path / "one", store=tmp_path / "one"), [].append)
    export(embedded, NOTHING, ExportRequest(store=tmp_path / "other"), [].append)
    with pytest.raises(UsageError, match="is a collection of a store, which files do not go into"):
        export(embedded, NOTHING, ExportRequest(to=tmp_path / "other"), [].append)
    assert not (tmp_path / "one").exists() and not list(tmp_path.glob("other/docs/*.npy"))


def test_a_run_that_goes_while_it_is_exported_is_no_fault_of_the_program(run, tmp_path, monkeypatch):
    gone, check = shutil.copytree(run, tmp_path / "r"), reuse.check

    def checked(path):
        found = check(path)
        (path / "run.json").unlink()
        return found

    monkeypatch.setattr(reuse, "check", checked)
    assert exported(gone, tmp_path / "out")[0]  # all else of it is still there


def test_the_file_that_a_disk_refuses_is_the_one_that_is_told(run, tmp_path):
    limited = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (4000, 4000))"
    words = ["export", str(run), "--to", str(tmp_path / "out"), "--export", "npy,jsonl", "--collection", "Docs"]
    program = f"{limited}\nfrom interlock.console.main import main\nraise SystemExit(main({words}))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 1 and "tiny-a.npy: File too large" in done.stderr, done.stderr


def test_nothing_of_others_goes_to_make_place_for_an_export(run, tmp_path):
    theirs, out = tmp_path / "theirs", tmp_path / "out" / "Docs"
    (theirs / "below").mkdir(parents=True)
    (out / ".staging").mkdir(parents=True)
    for file in (theirs / "below" / "a", theirs / "b", out / ".staging" / "c", out / ".film.partial"):
        file.write_text("mine")
    before = contents(tmp_path)
    (out / exports.STAGING).symlink_to(theirs)
    with pytest.raises(UsageError, match="is not a directory that an export made"):
        exported(run, out.parent)
    assert contents(tmp_path) == before
    (out / exports.STAGING).unlink()
    exported(run, out.parent, collection="Docs")
    assert before.items() <= contents(tmp_path).items()


@pytest.mark.parametrize("content", ["{}", '{"tool": "another", "files": {}}', '{"schema_version": "2"}'])
def test_another_programs_record_is_never_written_over(run, tmp_path, content):
    (tmp_path / "Docs").mkdir()
    (tmp_path / "Docs" / exports.RECORD).write_text(content)
    with pytest.raises(UsageError, match="is not what an export wrote"):
        exported(run, tmp_path)
    assert [(path.name, path.read_text()) for path in (tmp_path / "Docs").iterdir()] == [(exports.RECORD, content)]


def test_nothing_is_written_into_the_run_not_through_a_link_either(run, tmp_path):
    before = contents(run)
    (tmp_path / "Docs").symlink_to(run / "exports" / "Docs")
    for asked in (tmp_path, run / "exports", run / "new"):
        with pytest.raises(UsageError, match="is in run r, which stays as it is"):
            exported(run, asked, "jsonl")
    with pytest.raises(UsageError, match="is in run r, which stays as it is"):
        export(run, NOTHING, ExportRequest(store=run / "store"), print)
    assert contents(run) == before


@pytest.mark.parametrize("flag", ["--to", "--to-store", "--chunks"])
def test_a_circle_of_links_is_refused_in_words(run, tmp_path, flag):
    (tmp_path / "circle").symlink_to("circle")
    words = () if flag != "--chunks" else ("--to", tmp_path / "files")
    refused = interlock("export", run, flag, tmp_path / "circle", *words, check=None, cwd=tmp_path)
    assert refused.returncode in (ExitCode.FAILED, ExitCode.USAGE)
    assert "circle" in refused.stderr and "a bug" not in refused.stderr


KILLED = """
import os, signal, sys
from pathlib import Path
from interlock.console.main import main
replace, done = Path.replace, []
def replacing(self, target):
    if self.parent.parent.name == ".interlock-export" != target.parent.parent.name:
        done.append(self)
        if len(done) == 2:
            os.kill(os.getpid(), signal.SIGKILL)
    return replace(self, target)
Path.replace = replacing
main(sys.argv[1:])
"""


def test_killed_between_two_files_it_has_whole_ones_alone_and_is_repeated(run, tmp_path, monkeypatch):
    out, temporary = tmp_path / "out", tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    before, _ = exported(run, out)  # the same names, with other contents
    arguments = ["export", str(run), "--to", str(out), "--export", "npy,jsonl", "--project", "4"]
    told = subprocess.run([sys.executable, "-c", KILLED, *arguments], cwd=ROOT, env=os.environ, capture_output=True)
    assert told.returncode == -signal.SIGKILL, told.stderr
    assert [np.load(path).shape[0] for path in before.values()] == [43, 43, 43]
    assert len([*temporary.iterdir()]) == 1
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    monkeypatch.setattr(atomic, "FRESH", -1.0)
    after, _ = exported(run, out, "npy,jsonl", {"project": "4"})
    assert np.load(after["fused.npy"]).shape == (43, 4) and not [*temporary.iterdir()]
    record = json.loads((out / "Docs" / "export.json").read_text())
    assert sorted(record["files"]) == sorted(
        path.name for path in (out / "Docs").iterdir() if path.name != "export.json"
    )
    assert all(len(known) == 1 for known in record["files"].values())


def test_a_killed_export_of_another_run_leaves_no_file_that_a_narrower_one_keeps(run, tmp_path):
    other, out = shutil.copytree(run, tmp_path / "other"), tmp_path / "out"
    exported(run, out, "npy,jsonl")
    arguments = ["export", str(other), "--to", str(out), "--export", "npy,jsonl", "--project", "4"]
    told = subprocess.run([sys.executable, "-c", KILLED, *arguments], cwd=ROOT, env=os.environ, capture_output=True)
    assert told.returncode == -signal.SIGKILL, told.stderr
    with pytest.raises(UsageError, match=r"Docs has .*fused\.npy of an export that was cut short, .*: choose another"):
        exported(other, out, "jsonl", collection="Docs")
    assert np.load(out / "Docs" / "fused.npy").shape == (43, 80)
    whole, _ = exported(other, out, "npy,jsonl", {"project": "4"}, collection="Docs")
    assert np.load(whole["fused.npy"]).shape == (43, 4)
    narrow, _ = exported(other, out, "jsonl", {"project": "4"}, collection="Docs")
    assert set(narrow) == {"points.jsonl", "projection.npy"}


def copied(run, place):
    return shutil.copytree(run, place / "runs" / "r")


def test_what_is_no_longer_as_the_run_left_it_is_not_delivered(run, tmp_path):
    out, request = tmp_path / "out", ExportRequest(to=tmp_path / "out")

    def refused(directory, message, asked=request):
        with pytest.raises(UsageError, match=message):
            export(directory, NOTHING, asked, print)
        assert not list(out.rglob("*.npy"))

    damaged = copied(run, tmp_path / "damaged")
    with next(damaged.glob("passes/0_*/vectors.npy")).open("rb+") as file:
        file.seek(-4, os.SEEK_END)
        file.write(b"\0\0\0\0")
    refused(damaged, "vectors of tiny-a .* damaged or missing: resume run r")

    unfinished = copied(run, tmp_path / "unfinished")
    lines = (unfinished / "journal.jsonl").read_bytes().splitlines(keepends=True)
    last = max(place for place, line in enumerate(lines) if b'"event":"batch_committed"' in line)
    (unfinished / "journal.jsonl").write_bytes(b"".join(lines[:last]))
    refused(unfinished, "run r has no tiny-b of .* yet: resume it first")

    chunks = shutil.copytree(json.loads((run / "run.json").read_text())["chunks"], tmp_path / "in")
    with (chunks / "Docs" / "b.jsonl").open("a") as file:
        file.write('{"text": "one more"}\n')
    refused(run, "are not those of run r .*b.jsonl", ExportRequest(to=out, chunks=chunks))
    refused(tmp_path, "is not a run")
    refused(run, "inside", ExportRequest(to=chunks / "out", chunks=chunks))
    refused(run, "--to, or one of a store", ExportRequest())
    refused(run, "has no collection 'Nope': choose one of Docs; More", ExportRequest(to=out, collection="Nope"))
    with (run / "journal.jsonl").open("rb") as journal:
        fcntl.flock(journal, fcntl.LOCK_EX)
        refused(run, "is in use")
    with pytest.raises(UsageError, match="have no narrower numbers"):
        exported(run, out, "jsonl", precision="int8")


def test_a_store_is_written_after_the_fact_and_the_run_is_left_as_it_was(run, vectors, call, tmp_path):
    mark = run / "exports" / "Docs" / "missing.json"
    mark.write_text("{}")
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    code, out, _ = call("export", run, "--to-store", tmp_path / "store", "--keep", "both", "--collection", "Docs")
    assert (code, "docs verified: 43 points" in out) == (0, True)
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before
    mark.unlink()
    shard = edge.EdgeShard.load(str(tmp_path / "store" / "docs"))
    records, _ = shard.scroll(edge.ScrollRequest(limit=100, with_payload=True, with_vector=True))
    shard.close()
    row = {text: number for number, text in enumerate(["with metadata", *TEXTS])}
    for each in records:
        for name, wanted in vectors.items():
            np.testing.assert_allclose(each.vector[name], wanted[row[each.payload["text"]]], atol=1e-6)
        assert each.vector["bm25"].indices
    assert [path.name for path in (tmp_path / "store").iterdir()] == ["docs"]
    again = "export", run, "--to-store", tmp_path / "store", "--collection", "Docs"
    assert "choose another store directory" in call(*again, "--keep", "fused")[2]
    assert "choose another store directory" in call(*again, "--payload", "flat")[2]


@pytest.mark.parametrize("last", ["shard.load", "embedded.Store.flush"])
def test_a_store_whose_export_was_killed_says_to_repeat_that_which_does_it(run, tmp_path, last):
    again = "export", run, "--to-store", tmp_path / "store", "--collection", "Docs"
    died = f"import os\nfrom interlock.engine.targets import embedded, shard\n{last} = lambda *_, **more: os.abort()"
    interlock(*again, first=died, check=-signal.SIGABRT)
    asked = "search", tmp_path / "store", "text", "--only", "bm25"
    assert "repeat its export" in interlock(*asked, check=None).stderr
    interlock(*again)
    assert interlock(*asked).stderr == ""


def test_a_record_that_is_damaged_is_refused(tmp_path):
    (tmp_path / exports.RECORD).write_text("{")
    with pytest.raises(UsageError, match="choose another --to"):
        exports.read_record(Path(tmp_path))
