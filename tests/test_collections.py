"""Which directories are collections, what Qdrant will call them, and which names are never followed."""

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import unicodedata
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from interlock import Settings, embed, plan
from interlock.engine.corpus.chunks import Chunk, ChunkReader
from interlock.engine.corpus.collections import discover, overlooked, qdrant_name, refuse_path
from interlock.engine.corpus.corpus import read_corpus
from interlock.engine.corpus.naming import Naming
from interlock.engine.corpus.rereading import reread
from interlock.engine.errors import UsageError
from interlock.engine.record.facts import Refusal
from tests.builders import ROOT, corpus, interlock, unprivileged

PINNED = "b77901d4b5b0f53ad63c362a6ee00e78dfe401cf997910671b74155eaa065273"
"""The SHA-256 of ids that records had before directories gave them fields."""


def refused(root, name="Docs"):
    return {
        refusal.file: refusal.reason for found in discover(root) if found.name == name for refusal in found.refusals
    }


@pytest.fixture
def root(tmp_path):
    return corpus(tmp_path / "root", {"Docs": {"a_chunks.json": ["a text"]}})


def test_chunk_files_at_any_depth_belong_to_their_collection(tmp_path):
    root = corpus(
        tmp_path,
        {"B": {"z_chunks.json": ["a"], "deep/er/a.jsonl": ["b"], "notes.json": ["c"]}, "A": {"x_chunks.json": ["d"]}},
    )
    found = discover(root)
    assert [(each.name, each.qdrant_collection, each.files) for each in found] == [
        ("A", "a", ("x_chunks.json",)),
        ("B", "b", ("deep/er/a.jsonl", "z_chunks.json")),
    ]


def test_a_root_with_chunk_files_of_its_own_is_one_collection_named_after_it(tmp_path):
    root = corpus(tmp_path, {"My Docs": {"a_chunks.json": ["a"], "sub/b.jsonl": ["b"]}}) / "My Docs"
    (found,) = discover(root)
    assert (found.name, found.qdrant_collection) == ("My Docs", "my_docs")
    assert found.files == ("a_chunks.json", "sub/b.jsonl")


def test_a_root_that_is_a_link_is_followed(root, tmp_path):
    (link := tmp_path / "link").symlink_to(root)
    assert discover(link) == discover(root)


def test_a_hidden_directory_is_no_collection(root):
    corpus(root, {".cache": {"a_chunks.json": ["a"]}})
    assert [found.name for found in discover(root)] == ["Docs"]


def test_a_chunk_file_beside_collections_makes_one_of_all_and_is_warned_of(tmp_path):
    root = corpus(tmp_path / "in", {"Docs": {"a_chunks.json": ["a"]}, "More": {"deep/a.jsonl": ["b"]}, "Empty": {}})
    assert list(overlooked(root, discover(root))) == []
    (root / "stray.jsonl").write_text('"c"\n')
    assert [found.name for found in discover(root)] == ["in"]
    (said,) = overlooked(root, discover(root))
    assert said.endswith("move them into a directory of their own to have Docs; More as collections")


def test_files_that_are_not_read_are_counted_by_their_endings_in_one_line(tmp_path):
    root = corpus(tmp_path / "in", {"Docs": {"a_chunks.json": ["a"]}})
    (root / ".venv" / "deep").mkdir(parents=True)
    (root / "Docs" / "pictures").mkdir()
    for name in ("a.json", "b.JSONL", "x.tar.gz", "pictures/1.png", "pictures/2.PNG", "pictures/notes", ".hidden.csv"):
        (root / "Docs" / name).write_text("[]")
    for name in ("c.parquet", ".venv/deep/a.json", "Docs/README.md", "LICENSE", "_SUCCESS", "Docs/.a.jsonl.crc"):
        (root / name).write_text("[]")
    (said,) = overlooked(root, discover(root))
    assert said.startswith(
        "7 files not read (1 .json, 1 .jsonl, 1 .parquet, 2 .png, 1 .tar.gz, 1 without ending; first Docs/a.json): "
        "chunk files (*_chunks.json, *.jsonl) are, where there are some, else tables, else other JSON; name such a file"
    )
    for kind in range(8):
        (root / "Docs" / f"x.{kind}").touch()
    assert "1 .0, 1 .1, 8 other; first" in next(overlooked(root, discover(root)))


def test_what_runs_wrote_is_no_input(tmp_path, tiny_a):
    root = corpus(tmp_path / "in", {"Docs": {"a_chunks.json": ["a"]}})
    embed(root, Settings(roster=[tiny_a], out=tmp_path / "runs"), progress="none")
    embed([{"text": "b"}], Settings(roster=[tiny_a], out=tmp_path / "runs"), progress="none")
    shutil.copytree(tmp_path / "runs", root / "Docs" / "old")
    (run, *_) = sorted(path.name for path in (tmp_path / "runs").iterdir())
    (said,) = overlooked(root, found := discover(root))
    assert [each.files for each in found] == [("a_chunks.json",)]
    assert said.startswith(f"not read, since runs wrote it: Docs/old/{run}; ") and "Docs/old/inputs" in said


def test_what_is_only_called_as_runs_call_it_is_read(tmp_path):
    root = corpus(tmp_path / "in", {"Docs": {"journal.jsonl": ["a"], "inputs/b/c.jsonl": ["b"], "more/d.jsonl": ["c"]}})
    (root / "Docs" / "run.json").write_text("{}")
    (found,) = discover(root)
    assert found.files == ("inputs/b/c.jsonl", "journal.jsonl", "more/d.jsonl")


def test_a_hidden_chunk_file_is_read_as_any_other(tmp_path):
    root = corpus(tmp_path / "in", {"Docs": {".hidden.jsonl": ["a"], "deep/.more/b.jsonl": ["b"]}})
    assert discover(root)[0].files == (".hidden.jsonl", "deep/.more/b.jsonl")


def test_the_summary_says_what_is_not_read_and_a_quiet_run_nothing(tmp_path, tiny_a):
    root = corpus(tmp_path / "in", {"Docs": {"a_chunks.json": ["a"]}})
    (root / "Docs" / "a.txt").write_text("a text")
    done = interlock("run", root, "--roster", tiny_a, "--quiet", "--summary", "s.json", cwd=tmp_path, check=0)
    (told,) = json.loads((tmp_path / "s.json").read_text())["warnings"]
    assert "1 file not read (Docs/a.txt)" in str(told) and not done.stderr


def test_a_collection_is_named_in_either_form_of_unicode(tmp_path):
    root = corpus(tmp_path / "in", {"Caf\u00e9": {"a_chunks.json": ["a"]}, "Tee": {"a_chunks.json": ["a"]}})
    assert [each.name for each in discover(root, ["Cafe\u0301"])] == ["Caf\u00e9"]


def test_what_directories_say_as_partitions_are_fields_of_each_record(tmp_path):
    files = {"year=2023/lang=d%C3%A9/a.jsonl": ["a"], "year=__HIVE_DEFAULT_PARTITION__/a=b=c/x=/a.jsonl": ["b"]}
    root = corpus(tmp_path / "in", {"Events": files | {"year=7/b.jsonl": [{"text": "c", "year": 7, "k": 1}]}})
    (found,) = discover(root)
    records = {each.text: json.loads(each.record) for each in ChunkReader(found)}
    assert records == {
        "a": {"year": "2023", "lang": "d\u00e9"},
        "b": {"year": None, "a": "b=c", "x": ""},
        "c": {"year": 7, "k": 1},
    }
    assert not [*overlooked(root, [found])]
    (told,) = [each for each in overlooked(root / "Events", discover(root / "Events")) if "partition" in each]
    assert told.endswith(f"name the directory above {root / 'Events'} to have them as one")
    inner = {each.name: [json.loads(one.record) for one in ChunkReader(each)] for each in discover(root / "Events")}
    assert inner["year=2023"] == [records["a"]]


def test_a_field_of_the_record_wins_over_its_directory_and_a_difference_is_told(tmp_path):
    rows = [{"text": "a", "n": 1}, {"text": "b", "n": None}, {"text": "c", "n": "1"}, {"text": "d", "n": True}]
    root = corpus(tmp_path / "in", {"Docs": {"n=1/a.jsonl": rows, "n=2/n=1/b.jsonl": ["e"]}})
    reader = ChunkReader(discover(root)[0])
    assert [json.loads(each.record)["n"] for each in reader] == [1, None, "1", True, "2"]
    (told,) = reader.counts.told("Docs")
    said = "Docs: a directory says n=1 above None of n=1/a.jsonl record 2, which is kept: rename it, or drop the field"
    assert told == said


def test_a_title_may_be_what_a_directory_says_and_no_id_is(tmp_path):
    root = corpus(
        tmp_path / "in", {"Docs": {"lang=de/id=7/a.ndjson": ["a"], "lang=__HIVE_DEFAULT_PARTITION__/b.ndjson": ["b"]}}
    )
    found = [*ChunkReader(discover(root, naming=Naming(title="lang"))[0])]
    assert [each.text for each in found] == ["b", "de a"] and found[1].chunk_id != "7"


def test_a_directory_and_a_field_are_of_one_name_in_either_form_of_unicode(tmp_path):
    root = corpus(
        tmp_path / "in", {"Docs": {"gro\u0308\u00dfe=klein/a.jsonl": [{"text": "a", "gr\u00f6\u00dfe": "gro\u00df"}]}}
    )
    (found,) = (reader := ChunkReader(discover(root)[0]))
    assert json.loads(found.record) == {"gr\u00f6\u00dfe": "gro\u00df"}
    assert "a directory says" in next(reader.counts.told("Docs"))


def test_records_that_their_partition_alone_tells_apart_are_all_kept(tmp_path):
    row = {"text": "a", "metadata": {"chunk_id": "k", "source_path": "s"}}
    names = {f"lang={lang}/a.jsonl": [row, row] for lang in ("de", "en", "fr", "it")}
    chunks = list[Chunk]()
    corpus_of = read_corpus(discover(corpus(tmp_path / "in", {"Docs": names})), lambda _: None, chunks.append)
    assert [json.loads(each.record)["lang"] for each in chunks] == ["de", "en", "fr", "it"]
    assert chunks[0].chunk_id == "k" and len({each.point_id for each in chunks}) == 4
    assert (corpus_of.rows[0].counts.same, list(reread(corpus_of.rows[0], corpus_of.digests))) == (4, chunks)


def test_a_field_of_a_directory_changes_no_id(tmp_path):
    rows = [{"text": "a", "id": 1}, {"text": "b"}, {"text": "b"}, {"text": "c", "metadata": {"chunk_id": "k"}}]
    rows += [{"text": "d", "page": 2, "metadata": {"chunk_id": "k"}}, {"text": "b", "metadata": {"source_path": "s"}}]
    root = corpus(tmp_path / "in", {"Docs": {"part=1/a.jsonl": rows, "part=2/a.jsonl": rows}})
    found = [(each.text, each.chunk_id, each.point_id) for each in ChunkReader(discover(root)[0])]
    assert hashlib.sha256(json.dumps(found).encode()).hexdigest() == PINNED


def test_a_hidden_directory_with_chunk_files_is_warned_of(tmp_path, tiny_a):
    root = corpus(tmp_path / "in", {"Docs": {"a_chunks.json": ["a"]}, ".drafts": {"below/a_chunks.json": ["b"]}})
    (root / ".cache").mkdir()
    run = embed(root, Settings(roster=[tiny_a], out=tmp_path / "runs"), progress="none")
    assert run.summary.warnings == [f"skipped .drafts in {root}: names of collections do not begin with a dot"]


def test_a_root_whose_only_chunk_files_are_hidden_is_refused_with_the_reason(tmp_path):
    root = corpus(tmp_path / "in", {".drafts": {"a_chunks.json": ["b"]}})
    with pytest.raises(UsageError, match=r"has no chunk files .*; skipped \.drafts"):
        discover(root)


def test_only_wanted_collections_are_chosen(root):
    corpus(root, {"More": {"a_chunks.json": ["a"]}, "Most": {"a_chunks.json": ["a"]}})
    assert [found.name for found in discover(root, ["Most", "Docs"])] == ["Docs", "Most"]


def test_an_unknown_wanted_name_lists_those_there_are(root):
    with pytest.raises(UsageError, match="no collection 'Nowhere': available Docs"):
        discover(root, ["Docs", "Nowhere"])


@pytest.mark.parametrize(
    ("name", "mapped"),
    [
        ("Docling", "docling"),
        ("Python-Stdlib", "python-stdlib"),
        ("Café Übung", "cafe_ubung"),
        ("a  b//c", "a_b_c"),
        ("__x__", "x"),
        ("v1.2", "v1_2"),
        ("n" * 300, "n" * 200),
    ],
)
def test_a_directory_name_is_mapped_to_a_valid_qdrant_name(name, mapped):
    assert qdrant_name(name) == mapped


@given(st.text())
def test_a_name_in_any_script_becomes_one_that_qdrant_takes_and_that_stays(name):
    mapped = qdrant_name(name)
    assert 1 <= len(mapped) <= 200
    assert set(mapped) <= set("abcdefghijklmnopqrstuvwxyz0123456789_-")
    assert qdrant_name(mapped) == mapped.strip("_-")


@pytest.mark.parametrize(
    ("name", "mapped"),
    [
        ("日本語", "collection-77710aed"),
        ("Документы", "collection-"),
        ("___", "collection-"),
        ("ガ", "collection-"),
        ("資料2024", "2024-"),
        ("Größe", "groe-"),
    ],
)
def test_a_name_that_loses_letters_is_told_apart_by_its_hash(name, mapped):
    assert qdrant_name(name).startswith(mapped)
    assert qdrant_name(name).endswith(f"-{hashlib.sha256(name.encode()).hexdigest()[:8]}")
    assert qdrant_name(unicodedata.normalize("NFD", name)) == qdrant_name(name)


def test_names_that_differ_only_in_letters_that_are_lost_do_not_collide(tmp_path):
    root = corpus(tmp_path, {"資料2024": {"a_chunks.json": ["a"]}, "図2024": {"a_chunks.json": ["b"]}})
    assert len({found.qdrant_collection for found in discover(root)}) == 2


def test_two_directories_with_one_qdrant_name_are_both_named(tmp_path):
    root = corpus(tmp_path, {"My Docs": {"a_chunks.json": ["a"]}, "my_docs": {"a_chunks.json": ["b"]}})
    with pytest.raises(UsageError, match=r"'My Docs' and 'my_docs' .*'my_docs'.*--collections"):
        discover(root)
    assert [found.name for found in discover(root, ["my_docs"])] == ["my_docs"]


def test_a_name_collision_stops_the_run_before_it_begins(tmp_path):
    root = corpus(tmp_path / "in", {"A B": {"a_chunks.json": ["a"]}, "a_b": {"a_chunks.json": ["b"]}})
    done = interlock("run", root, "--roster", tmp_path / "no-model", cwd=tmp_path, check=2)
    assert "both map to the Qdrant collection 'a_b'" in done.stderr
    assert not (tmp_path / "runs").exists()


OUTSIDE, ODD = "link points outside the root", "name contains a control character or is not UTF-8: rename it"


@pytest.mark.parametrize(
    ("link", "target", "said"),
    [
        ("Docs/out_chunks.json", "../../secret_chunks.json", OUTSIDE),
        ("Docs/out", "../../elsewhere", OUTSIDE),
        ("Whole", "../elsewhere", OUTSIDE),
        ("Again", "Docs", "link to a directory (its files are read where they are)"),
        ("Docs/gone_chunks.json", "nowhere", "broken link"),
        ("Docs/loop_chunks.json", "loop_chunks.json", "broken link"),
    ],
)
def test_a_link_that_is_not_followed_is_refused_by_name_and_its_neighbours_are_kept(root, tmp_path, link, target, said):
    corpus(tmp_path, {"elsewhere": {"b_chunks.json": ["b"]}})
    (tmp_path / "secret_chunks.json").write_text('[{"text": "secret"}]')
    (root / link).symlink_to(target)
    place = Path(link)
    assert refused(root, str(place.parent) if place.parent.name else link) == {place.name: said}
    assert [found.files for found in discover(root) if found.name == "Docs"] == [("a_chunks.json",)]


def test_a_link_to_a_file_within_the_root_is_read(root):
    (root / "Docs" / "b_chunks.json").symlink_to("a_chunks.json")
    assert discover(root)[0].files == ("a_chunks.json", "b_chunks.json")


@pytest.mark.parametrize(
    ("name", "shown", "said"),
    [
        (b"a\x1b[2J_chunks.json", "a\\x1b[2J_chunks.json", ODD),
        (b"b\nb_chunks.json", "b\\nb_chunks.json", ODD),
        (b"caf\xe9_chunks.json", "caf\\udce9_chunks.json", ODD),
    ],
)
def test_a_name_that_cannot_be_told_as_it_is_is_refused_and_shown_escaped(root, name, shown, said):
    (root / "Docs" / os.fsdecode(name)).write_text('["x"]')
    assert refused(root) == {shown: said}


def test_a_collection_name_that_is_not_utf8_is_refused_and_others_embedded(root, tmp_path, tiny_a):
    (directory := root / os.fsdecode(b"caf\xe9")).mkdir()
    (directory / "a_chunks.json").write_text('[{"text": "x"}]')
    done = interlock("run", root, "--roster", tiny_a, "--export", "npy", cwd=tmp_path, check=1)
    assert "name contains a control character or is not UTF-8" in done.stderr
    assert len(list(tmp_path.glob("runs/*/exports/Docs/*.npy"))) == 1


def test_a_pipe_named_like_a_chunk_file_is_refused_without_waiting(root):
    os.mkfifo(root / "Docs" / "pipe_chunks.json")
    code = (
        "import sys; from pathlib import Path; from interlock.engine.corpus.collections import discover, overlooked\n"
        "from interlock.engine.corpus.chunks import ChunkReader\n"
        "for found in ChunkReader(discover(Path(sys.argv[1]))[0]): print(type(found).__name__)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, root], cwd=ROOT, capture_output=True, text=True, timeout=5, check=True
    )
    assert sorted(done.stdout.split()) == ["Chunk", "Refusal"]


def test_a_directory_named_like_a_chunk_file_is_searched(root):
    corpus(root, {"Docs": {"d_chunks.json/b_chunks.json": ["b"]}})
    assert discover(root)[0].files == ("a_chunks.json", "d_chunks.json/b_chunks.json")


def test_a_collection_without_chunk_files_is_kept_empty(root):
    (root / "Empty").mkdir()
    assert [(found.name, found.files) for found in discover(root)] == [("Docs", ("a_chunks.json",)), ("Empty", ())]


@pytest.mark.parametrize("make", ["missing", "file", "empty"])
def test_a_root_without_chunks_is_named_in_the_error(tmp_path, make):
    root = tmp_path / "root"
    if make == "file":
        root.write_text("[]")
    elif make == "empty":
        (root / "Docs").mkdir(parents=True)
    with pytest.raises(UsageError, match="root"):
        discover(root)


def test_refusals_come_in_the_same_order_every_time(root):
    for name in ("c\n", "b\n", "a\n"):
        corpus(root, {"Docs": {f"{name}_chunks.json": ["x"]}})
    (found,) = discover(root)
    assert found.refusals == tuple(Refusal(f"{name}\\n_chunks.json", None, ODD) for name in "abc")


def test_dots_within_a_name_are_part_of_it_and_a_key_in_storage_that_leads_upwards_is_refused(root):
    corpus(root, {"Docs": {"Report..2024_chunks.json": ["x"], "v1../..b_chunks.json": ["x"]}})
    assert discover(root)[0].files == ("Report..2024_chunks.json", "a_chunks.json", "v1../..b_chunks.json")
    assert refuse_path(root / "Docs" / ".." / "a_chunks.json", root) == "its path has a part '..': rename it"


@pytest.fixture
def nobody():
    """A directory that everybody may read, and from here on a user who may read nothing else."""
    with tempfile.TemporaryDirectory() as directory:
        Path(directory).chmod(0o755)
        yield Path(directory)


@pytest.mark.parametrize(("closed", "mode"), [("above/in", 0o000), ("above/in", 0o711), ("above", 0o000)])
def test_a_root_that_may_not_be_read_is_refused_with_permission_denied(nobody, closed, mode):
    root = corpus(nobody / "above" / "in", {"Docs": {"a_chunks.json": ["a"]}})
    (nobody / closed).chmod(mode)
    with unprivileged(), pytest.raises(UsageError, match=r"cannot read .*in: Permission denied"):
        discover(root)
    (nobody / closed).chmod(0o755)


@pytest.mark.parametrize(("name", "mode"), [("Closed", 0o444), ("Closed", 0o000), ("Closed/deep", 0o000)])
def test_a_directory_that_may_not_be_read_is_refused_and_its_neighbour_kept(nobody, name, mode):
    root = corpus(nobody / "in", {name: {"a_chunks.json": ["a"]}, "Docs": {"a_chunks.json": ["a"]}})
    (root / name).chmod(mode)
    with unprivileged():
        closed, docs = discover(root)
    (root / name).chmod(0o755)
    assert (closed.files, docs.files) == ((), ("a_chunks.json",))
    assert [each.reason.endswith(": Permission denied") for each in closed.refusals] == [True]


def test_a_path_beyond_what_the_system_takes_is_refused_alone(tmp_path):
    root = corpus(tmp_path, {"Docs": {"a_chunks.json": ["a"]}})
    here = os.open(root / "Docs", os.O_RDONLY)
    for _ in range(16):  # 16 * 255 bytes and the root's own are just short of the limit for a file, or beyond it
        os.mkdir("d" * 254, dir_fd=here)
        here, before = os.open("d" * 254, os.O_RDONLY, dir_fd=here), here
        os.close(before)
        os.close(os.open("b_chunks.json", os.O_CREAT | os.O_WRONLY, dir_fd=here))
        os.close(os.open("n" * 240 + "_chunks.json", os.O_CREAT | os.O_WRONLY, dir_fd=here))
        os.symlink("nowhere", "l" * 250, dir_fd=here)
    os.close(here)
    (found,) = discover(root)
    assert "a_chunks.json" in found.files
    assert any("File name too long" in each.reason for each in found.refusals)
    subprocess.run(["rm", "-rf", str(root)], check=True)


def test_a_link_to_itself_beside_the_collections_hurts_none(tmp_path):
    root = corpus(tmp_path, {"Docs": {"a_chunks.json": ["a"]}})
    (root / "loop").symlink_to("loop")
    assert [each.name for each in discover(root)] == ["Docs"]


def test_a_plan_tells_what_it_does_not_read(tmp_path, tiny_a):
    root = corpus(tmp_path / "in", {"Docs": {"a_chunks.json": ["a"]}})
    (root / "Docs" / "a.json").write_text("[]")
    said = str(plan(root, Settings(roster=[tiny_a], out=tmp_path / "runs", devices="cpu")))
    assert said.splitlines()[-1].startswith("warning: 1 file not read (Docs/a.json)")
