"""Object storage: what is read there is read as on disk, and what a service refuses costs a wait or one line."""

from unittest.mock import Mock

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from interlock import Settings, embed
from interlock.engine import parsers, storage
from interlock.engine.corpus.collections import discover, glance, overlooked
from interlock.engine.corpus.corpus import read_corpus
from interlock.engine.errors import UnavailableError, UsageError
from tests.builders import corpus, sentences

LINE = b'{"text": "a text of some length"}\n'


class Service(MemoryFileSystem):
    """A service that answers as `moods` say, one after the other: with an error, or with what a function makes of the
    bytes."""

    protocol = "az"
    store, pseudo_dirs, moods, asked = {}, [""], [], []

    @classmethod
    def _strip_protocol(cls, path):
        return "/" + path.removeprefix("az://").strip("/")

    def cat_file(self, path, start=None, end=None, **more):
        self.asked.append((path, start, end))
        data, mood = super().cat_file(path, start, end, **more), self.moods.pop(0) if self.moods else bytes
        if isinstance(mood, Exception):
            raise mood
        return mood(data)


@pytest.fixture
def service(monkeypatch):
    fsspec.register_implementation("az", Service, clobber=True)
    monkeypatch.setattr(Service, "store", {})
    monkeypatch.setattr(Service, "moods", [])
    monkeypatch.setattr(Service, "asked", [])
    monkeypatch.setattr(storage, "FIRST", 0.001)
    return Service()


@pytest.fixture
def on_disk(tmp_path):
    docs = {"a.jsonl": sentences(20), "deep/er=%2F/b::c_chunks.json": sentences(5, start=50)}
    root = corpus(tmp_path / "root", {"Docs": docs, ".hidden": {"c.jsonl": ["x"]}})
    (root / "Docs" / "seen.txt").write_text("unread")
    (root / "Tables").mkdir()
    (root / "Docs" / "z.csv.gz").write_bytes(b"")
    pq.write_table(pa.table({"text": sentences(30, start=100)}), root / "Tables" / "t.parquet")
    return root


def put(service, root, place):
    for file in (each for each in root.rglob("*") if each.is_file()):
        service.pipe(f"az://{place}/{file.relative_to(root).as_posix()}", file.read_bytes())
    return parsers.place(f"az://{place}")


def read(root):
    found = discover(root)
    fields = list[bytes]()
    read = read_corpus(found, lambda _: None, lambda chunk: fields.append(chunk.whole_payload))
    points = [rows.points.tolist() for rows in read.rows]
    refused = [rows.refusals.told for rows in read.rows]
    told = [each.replace(str(root), "ROOT") for each in overlooked(root, found)]
    return (
        [each.files for each in found],
        read.fingerprint(),
        points,
        read.digests.tolist(),
        refused,
        told,
        glance(root),
        fields,
    )


def test_collections_that_are_tables_alone_are_found_in_storage_as_on_disk(service, tmp_path):
    for name in ("A", "B"):
        (tmp_path / "root" / name).mkdir(parents=True)
        (tmp_path / "root" / name / "t.csv").write_text("text\na text of some length\n")
    place = put(service, tmp_path / "root", "bucket/root")
    assert [(each.name, each.files) for each in discover(place)] == [("A", ("t.csv",)), ("B", ("t.csv",))]


def test_a_tree_in_storage_is_read_as_the_same_one_on_disk(service, on_disk):
    assert read(put(service, on_disk, "bucket/some/root")) == read(on_disk)


def test_a_table_in_storage_is_read_as_the_same_one_on_disk(service, on_disk):
    assert read(put(service, on_disk / "Tables", "bucket/Tables")) == read(on_disk / "Tables")


def test_one_file_in_storage_is_a_collection(service):
    service.pipe("az://bucket/Docs.jsonl", LINE)
    assert [(each.name, each.files) for each in discover(parsers.place("az://bucket/Docs.jsonl"))] == [
        ("Docs", ("Docs.jsonl",))
    ]


def test_a_run_from_storage_gives_the_bytes_of_one_from_disk_and_is_resumed_there(service, on_disk, tiny_a, tmp_path):
    place = put(service, on_disk, "bucket/root")
    settings = {"models": {"tiny-a": {"source": str(tiny_a)}}, "roster": "tiny-a", "devices": "cpu", "export": "npy"}
    runs = [
        embed(str(each), Settings(out=tmp_path / "runs", run_id=name, **settings))
        for name, each in (("disk", on_disk), ("storage", place))
    ]
    files = [{file.name: file.read_bytes() for file in each.path.glob("exports/*/*")} for each in runs]
    assert files[0] == files[1] and files[0]
    again = embed(str(place), Settings(out=tmp_path / "runs", resume=True, **settings))
    assert again.path == runs[1].path


def test_an_export_to_storage_is_that_to_disk_and_replaces_its_own_alone(service, exported, tmp_path, call):
    run = exported / "runs" / "one"
    for _ in range(2):  # over its own
        code, _, told = call("export", run, "--to", "az://bucket/out")
        assert code == 0, told
    assert call("export", run, "--to", tmp_path / "out")[0] == 0
    made = {file.relative_to(tmp_path / "out").as_posix(): file for file in (tmp_path / "out").glob("*/*")}
    assert {name.removeprefix("/bucket/out/") for name in service.find("az://bucket/out")} == made.keys() and made
    assert [name for name, file in made.items() if service.cat(f"az://bucket/out/{name}") != file.read_bytes()] == []
    name = next(iter(made.keys() - {each for each in made if each.endswith("export.json")}))
    service.pipe(f"az://bucket/out/{name}", b"somebody else's")
    code, _, told = call("export", run, "--to", "az://bucket/out")
    assert code == 2 and f"az://bucket/out/{name} was not written by an export" in told
    assert service.cat(f"az://bucket/out/{name}") == b"somebody else's"


def test_an_export_that_comes_back_otherwise_than_it_was_sent_is_not_called_verified(service, exported, call):
    service.moods[:] = [lambda data: b" " * len(data)]
    code, out, told = call("export", exported / "runs" / "one", "--to", "az://bucket/out")
    assert code == 1 and "differs from what was sent: check for another writer, then export again" in told
    assert "verified" not in out + told


@pytest.mark.parametrize("mood", [OSError(16, "503 Slow Down"), TimeoutError("no answer"), lambda data: data[:5]])
def test_what_a_service_refuses_or_cuts_short_is_asked_for_again(service, mood):
    service.pipe("az://bucket/Docs.jsonl", LINE * 3)
    service.moods[:] = [mood, mood]
    assert storage.ObjectReader(parsers.place("az://bucket/Docs.jsonl")).readall() == LINE * 3
    assert len(service.asked) == 3


@pytest.mark.parametrize("mood", [OSError(16, "503 Slow Down"), lambda data: data[:5]])
def test_a_service_that_does_not_recover_ends_the_reading_with_one_line(service, mood, monkeypatch):
    monkeypatch.setattr(storage, "PATIENCE", 0.05)
    service.pipe("az://bucket/Docs.jsonl", LINE * 3)
    service.moods[:] = [mood] * 1000
    with pytest.raises(
        UnavailableError, match=r"^cannot reach az://bucket/Docs.jsonl .*, tried for .* s: check the network"
    ):
        read(parsers.place("az://bucket/Docs.jsonl"))


def test_keys_that_are_refused_are_not_tried_twice_nor_told(service, monkeypatch):
    monkeypatch.setenv("SOME_SECRET", "sesame-open")
    service.pipe("az://bucket/Docs.jsonl", LINE)
    service.moods[:] = [PermissionError("the token sesame-open has expired")]
    with pytest.raises(UnavailableError, match=r"^no access to az://bucket/Docs.jsonl \(the token \*\*\* has exp"):
        read(parsers.place("az://bucket/Docs.jsonl"))
    assert len(service.asked) == 1


def test_an_object_that_becomes_another_between_two_ranges_is_refused(service, monkeypatch):
    monkeypatch.setattr(storage, "BLOCK", len(LINE))

    def replace(data):
        service.pipe("az://bucket/Docs.jsonl", LINE.replace(b"some", b"more") * 3)
        return data

    service.pipe("az://bucket/Docs.jsonl", LINE * 3)
    service.moods[:] = [replace]
    with pytest.raises(OSError, match="changed while it was read"):
        storage.ObjectReader(parsers.place("az://bucket/Docs.jsonl")).readall()


def test_an_object_that_grew_since_it_was_opened_is_refused(service):
    service.pipe("az://bucket/Docs.jsonl", LINE)
    opened = storage.ObjectReader(parsers.place("az://bucket/Docs.jsonl"))
    service.pipe("az://bucket/Docs.jsonl", LINE * 2)
    with pytest.raises(OSError, match="changed while it was read"):
        opened.readall()


def test_what_is_not_in_storage_is_said_to_be_missing(service, call):
    service.pipe("az://bucket/Docs.jsonl", LINE)
    code, _, told = call("plan", "az://bucket/Dogs")
    assert code == 2 and "az://bucket/Dogs does not exist: name a file or a directory of texts" in told


def test_a_url_with_keys_in_it_is_refused_and_not_repeated(call):
    for url in ("s3://key:sesame@bucket/x", "s3://bucket/x?sig=sesame"):
        code, out, told = call("plan", url)
        assert code == 2 and "s3://*** holds more than a place: drop user, password" in told
        assert "sesame" not in out + told


@pytest.mark.parametrize("words", [("plan",), ("run", "chunks", "--out"), ("export", "run", "--to")])
def test_what_is_no_place_in_storage_is_refused_without_the_keys_that_it_may_hold(call, words):
    for url in ("https://u:sesame@host/x.jsonl?X-Sig=sesame", "ftp://u:sesame@host/x", "memory://chunks?k=sesame"):
        code, out, told = call(*words, url)
        assert code == 2 and url.partition(":")[0] in told and "expected a path" in told and "sesame" not in out + told


def test_a_scheme_that_only_its_package_makes_known_names_the_extra(call, monkeypatch):
    monkeypatch.setattr("fsspec.get_filesystem_class", Mock(side_effect=ValueError("Protocol not known: abfss")))
    code, _, told = call("plan", "abfss://c@account/x")
    assert code == 5 and "abfss://c@account/x needs adlfs: install interlock[az]" in told


def test_a_service_whose_package_is_missing_names_the_extra(call, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "gcsfs", None)
    code, _, told = call("plan", "gs://bucket/x")
    assert code == 5 and "gs://bucket/x needs gcsfs: install interlock[gs]" in told


def test_a_url_is_refused_where_only_this_machine_has_a_place(call, on_disk):
    for flag in ("--out", "--config", "--reuse"):
        code, _, told = call("run", on_disk, flag, "s3://bucket/runs")
        assert code == 2 and "expected a path on this machine, not a URL" in told


def test_a_file_url_is_a_path():
    assert parsers.place("file:///data/a%20b") == parsers.path("/data/a b")
    with pytest.raises(ValueError, match="a URL that begins with s3://, gs://, az://, file://"):
        parsers.place("https://host/x")
    with pytest.raises(UsageError, match="holds more than a place"):
        parsers.place("az://bucket/x?y")
