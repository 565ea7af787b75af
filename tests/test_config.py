"""Settings: flag, environment, file, default, each with its origin; what cannot be used is named with its place."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import interlock as interlock_api
from interlock.console.cli import configuration, parse
from interlock.console.look import look_of
from interlock.console.main import main
from interlock.engine.errors import UsageError
from interlock.engine.flows.rerank import rerank_of
from interlock.engine.gpu.devices import choose
from interlock.engine.models.members import members, rerankers
from interlock.engine.models.registry import REGISTRY, RESERVED, check_key, extended, find
from interlock.engine.record.facts import DeviceFacts, Setting
from interlock.engine.record.rundir import _STEERED, Begun
from interlock.engine.removed import REMOVED
from interlock.engine.settings import continued, flag_of, knobs, load, recorded, shown, variable_of
from tests.builders import interlock


def file_of(tmp_path, text):
    (file := tmp_path / "interlock.toml").write_text(text)
    return file


def setting(name, value):
    """One setting from its text, as a flag gives it."""
    return getattr(load({name: value}, {}).settings, name)


def test_without_any_source_every_setting_is_its_default_and_says_so():
    found = load({}, {})
    assert set(found.origins.values()) == {"default"}
    assert [name for name, _ in found.settings.roster] == ["all-minilm-l6", "all-mpnet-base-v2"]
    assert found.origins.keys() == {item.name for item in knobs()}


def test_a_flag_goes_before_environment_before_file_before_default(
    tmp_path,
):
    file, environment = file_of(tmp_path, "threads = 1"), {"INTERLOCK_THREADS": "2"}
    loaded = [
        load({"threads": "3"}, environment, file),
        load({}, environment, file),
        load({}, {}, file),
        load({}, {}),
    ]
    assert [(found.settings.threads, found.origins["threads"]) for found in loaded] == [
        (3, "flag --threads"),
        (2, "environment INTERLOCK_THREADS"),
        (1, f"file {file}"),
        (0, "default"),
    ]


def test_a_file_named_by_the_environment_is_read_unless_a_flag_names_another(tmp_path):
    file, other = file_of(tmp_path, "threads = 1"), tmp_path / "other.toml"
    other.write_text("threads = 2")
    environment = {"INTERLOCK_CONFIG": str(file)}
    assert load({}, environment).settings.threads == 1
    assert load({}, environment, other).settings.threads == 2


def test_lists_tables_numbers_and_booleans_of_toml_are_understood(tmp_path):
    file = file_of(
        tmp_path,
        'collections = ["A", "B"]\nexport = []\nthreads = 2\nresume = true\nceiling = "8GiB"\n'
        'qdrant = "store"\n[roster]\n"all-minilm-l6" = 0.7\nbge-m3 = 0.3\n[models.mine]\nsource = "/m"\n',
    )
    found = load({}, {}, file)
    settings = found.settings
    assert settings.collections == ("A", "B")
    assert settings.export == ()
    assert (settings.threads, settings.resume, settings.ceiling) == (2, True, 8 << 30)
    assert settings.qdrant == Path("store")
    assert settings.roster == (("all-minilm-l6", 0.7), ("bge-m3", 0.3))
    assert found.models == {"mine": {"source": "/m"}}


@pytest.mark.parametrize(
    ("text", "roster"),
    [
        ("a", [("a", 1)]),
        ("a=0.25, b = 2".replace(" = ", "="), [("a", 0.25), ("b", 2)]),
        ("hf:org/name", [("hf:org/name", 1)]),
        ("hf:org/name=0.5,pkg:dist=1", [("hf:org/name", 0.5), ("pkg:dist", 1)]),
        ("/m/a=b/c", [("/m/a=b/c", 1)]),
        ("/m/a=b/c=2", [("/m/a=b/c", 2)]),
        (" a , ,b,", [("a", 1), ("b", 1)]),
    ],
)
def test_a_roster_keeps_its_order_and_a_weight_is_one_by_default(text, roster):
    assert setting("roster", text) == tuple(roster)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "at least one model"),
        (" , ", "at least one model"),
        ("a=x", "a number as the weight of a, got 'a=x'"),
        ("a=", "a number as the weight of a, got 'a='"),
        ("a=0", "above 0"),
        ("a=-1", "above 0"),
        ("a=nan", "above 0"),
        ("a=inf", "above 0"),
        ("a=1e-300,b=1", "at least 1e-12 of all weights for a, got 'a=1e-300,b=1'"),
        ("a=1e308,b=1e308", "at least 1e-12 of all weights for a"),
        ("a,b,a=2", "each model once, got 'a,b,a=2'"),
    ],
)
def test_an_impossible_roster_is_refused_with_the_reason(text, why):
    with pytest.raises(UsageError, match=f"--roster: expected .*{why}"):
        setting("roster", text)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("12GiB", 12 << 30),
        ("800 MiB", 800 << 20),
        ("1.5gib", 3 << 29),
        ("2kb", 2000),
        ("3MB", 3_000_000),
        ("1KiB", 1024),
        ("0", 0),
    ],
)
def test_a_size_is_parsed_to_bytes(text, size):
    assert setting("ceiling", text) == size


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("ceiling", "12 gigs"),
        ("ceiling", "-1GiB"),
        ("ceiling", ""),
        ("ceiling", "9" * 400),
        ("threads", "many"),
        ("threads", "-1"),
        ("dim", "1.5"),
        ("resume", "maybe"),
        ("fusion", "sum"),
        ("export", "npy,csv"),
        ("run_id", "../up"),
        ("run_id", ".hidden"),
        ("run_id", "a/b"),
        ("run_id", "a\x1b"),
        ("run_id", "a" * 201),
        ("out", "~nobody-of-this-name/runs"),
        ("qdrant", "~nobody-of-this-name/store"),
    ],
)
@pytest.mark.parametrize("source", ["flag", "environment", "file"])
def test_a_bad_value_is_refused_with_the_place_where_it_stood(tmp_path, source, name, text):
    flags = {name: text} if source == "flag" else {}
    environment = {variable_of(name): text} if source == "environment" else {}
    file = file_of(tmp_path, f"{name} = {json.dumps(text)}") if source == "file" else None
    origin = {"flag": flag_of(name), "environment": variable_of(name), "file": f"{file}: {name}"}[source]
    with pytest.raises(UsageError) as raised:
        load(flags, environment, file)
    assert f"{origin}: expected " in str(raised.value) or f"{origin}: unknown 'csv'" in str(raised.value)
    assert f", got {text!r}"[:90] in str(raised.value)


@pytest.mark.parametrize(("text", "value"), [("yes", True), ("ON", True), ("1", True), ("no", False), ("", False)])
def test_a_switch_in_the_environment_takes_the_usual_words(text, value):
    assert load({}, {"INTERLOCK_STRICT": text}).settings.strict is value


def test_an_unknown_variable_is_named():
    with pytest.raises(UsageError, match="INTERLOCK_THREAD is not a setting"):
        load({}, {"INTERLOCK_THREAD": "2", "HOME": "/"})


def test_an_unknown_key_in_a_file_is_named_with_the_file(tmp_path):
    file = file_of(tmp_path, "thread = 2")
    with pytest.raises(UsageError, match=f"{file}: unknown setting 'thread'"):
        load({}, {}, file)


@pytest.mark.parametrize("text", ["threads = ", "\xff", "models = 4", "[models]\nmine = 1"])
def test_an_unusable_configuration_file_is_named(tmp_path, text):
    (file := tmp_path / "interlock.toml").write_bytes(text.encode("latin-1"))
    with pytest.raises(UsageError, match=str(file)):
        load({}, {}, file)


@pytest.mark.parametrize("kind", ["missing", "directory"])
def test_an_unreadable_configuration_file_is_named(tmp_path, kind):
    file = tmp_path / "missing.toml" if kind == "missing" else tmp_path
    with pytest.raises(UsageError, match=str(file)):
        load({}, {}, file)


@given(st.sampled_from([item.name for item in knobs()]), st.text(max_size=20))
def test_any_text_as_a_value_is_taken_or_refused_by_name(name, text):
    try:
        value = setting(name, text)
    except UsageError as error:
        assert flag_of(name) in str(error)
    else:
        json.dumps(shown(value))


def test_a_model_table_adds_to_the_registry_or_changes_an_entry():
    registry = extended(
        {"mine": {"source": "/m", "matryoshka": [8, 16]}, "bge-m3": {"batch_tokens": 64, "sources": ["/b", "hf:x/y"]}}
    )
    assert (registry["mine"].sources, registry["mine"].matryoshka) == (("/m",), (8, 16))
    assert registry["bge-m3"].batch_tokens == 64
    assert registry["bge-m3"].sources == ("/b", "hf:x/y")
    assert registry["bge-m3"].dim == REGISTRY["bge-m3"].dim
    assert "mine" not in REGISTRY


def test_a_file_that_begins_with_a_byte_order_mark_is_read(tmp_path):
    (tmp_path / "c.toml").write_bytes(b"\xef\xbb\xbfrun_id = 'r'\n")
    assert load({}, {}, tmp_path / "c.toml").settings.run_id == "r"


@pytest.mark.parametrize("flag", ["--run-id", "--qdrant"])
def test_a_flag_with_an_empty_text_is_not_taken_for_one_that_was_not_given(flag):
    with pytest.raises(UsageError, match=f"{flag}: got an empty text"):
        configuration(parse(["run", "chunks", flag, ""]))


@pytest.mark.parametrize(
    ("table", "why"),
    [
        ({"a": {"source": "/m", "width": 3}}, "width"),
        ({"a": {"dim": 3}}, "needs source"),
        ({"a": {"source": ""}}, "needs source"),
        ({"a/b": {"source": "/m"}}, "cannot name a model"),
        ({".a": {"source": "/m"}}, "cannot name a model"),
        ({"": {"source": "/m"}}, "cannot name a model"),
        ({"a\x1b": {"source": "/m"}}, "cannot name a model"),
    ],
)
def test_an_impossible_model_table_is_refused_with_entry_and_field(table, why):
    with pytest.raises(UsageError, match=why):
        extended(table)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("dtype", "float32"),
        ("batch_tokens", "many"),
        ("batch_tokens", 0),
        ("max_tokens", "many"),
        ("max_tokens", 0),
        ("dim", "32"),
        ("document_prompt", 5),
        ("query_prompt", ["a"]),
        ("matryoshka", "abc"),
        ("sources", "/m"),
        ("source", 5),
        ("weights_sha256", 1),
    ],
)
def test_a_field_of_the_wrong_type_is_refused_with_entry_and_field(field, value):
    with pytest.raises(UsageError, match=rf"\[models\.mine\].*{field}"):
        extended({"mine": {"source": "/m", field: value}})


@pytest.mark.parametrize("name", ["hf:org/name", "pkg:name", "/dir/name", "./dir/name/", "../name"])
def test_the_last_part_of_a_source_in_the_roster_is_the_models_key(name):
    (spec,) = find(REGISTRY, [name])
    assert (spec.key, spec.sources) == ("name", (name,))


@pytest.mark.parametrize(
    ("given", "recorded"),
    [
        ("all-miniLM-l6", "all-minilm-l6"),
        ("SPLADE-v3", "splade-v3"),
        ("MY-model", "my-Model"),
        ("BAAI/bge-m3", "hf:BAAI/bge-m3"),
        ("here/model", "here/model"),
        ("./here/model", "./here/model"),
        ("hf:Org/Name", "hf:Org/Name"),
    ],
)
def test_a_model_in_other_letters_or_a_bare_name_of_the_hub_is_recorded_by_its_own(
    tmp_path, monkeypatch, given, recorded
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "here" / "model").mkdir(parents=True)
    file = file_of(tmp_path, '[models.my-Model]\nsource = "hf:org/name"\n')
    found = load({"roster": f"{given}=0.5", "sparse": given, "allow_pickle": [given]}, {}, file).settings
    assert found.roster == ((recorded, 0.5),)
    assert found.sparse == found.allow_pickle == (recorded,)


def test_rows_that_python_gives_are_found_in_their_own_letters():
    settings = interlock_api.Settings(roster="All-MiniLM-L6", models={"All-MiniLM-L6": {"source": "hf:org/name"}})
    found = settings.configuration()
    assert found.settings.members(extended(found.models))[0].key == "All-MiniLM-L6"


def test_a_bare_name_of_the_hub_means_what_it_means_with_hf_before_it_wherever_a_model_is_named():
    names = ["BAAI/bge-m3", "All-MiniLM-L6"]
    assert find(REGISTRY, names) == find(REGISTRY, ["hf:BAAI/bge-m3", "all-minilm-l6"])
    assert rerankers(REGISTRY, ["BGE-Reranker-v2-m3", "org/name"]) == rerankers(
        REGISTRY, ["bge-reranker-v2-m3", "hf:org/name"]
    )
    assert members(REGISTRY, names, ["SPLADE-V3"], ["all-minilm-L6"]) == members(
        REGISTRY, ["hf:BAAI/bge-m3", "all-minilm-l6"], ["splade-v3"], ["all-minilm-l6"]
    )
    assert rerank_of(load({}, {}), ["QWEN3-Embedding-0.6B"], None, None).late == "qwen3-embedding-0.6b"


@pytest.mark.parametrize(
    ("roster", "weights"),
    [
        (None, (0.3, 0.7)),
        ("all-minilm-l6,all-mpnet-base-v2", (0.3, 0.7)),
        (["all-mpnet-base-v2", "All-MiniLM-L6"], (0.7, 0.3)),
        ("all-minilm-l6,all-mpnet-base-v2,near", (0.3, 0.7, 0.7)),
        ("near,better", (0.3, 0.7)),
        ("all-minilm-l6=1,all-mpnet-base-v2", (1, 1)),
        ({"all-minilm-l6": 1, "all-mpnet-base-v2": 1}, (1, 1)),
        ([("all-minilm-l6", 2), ("all-mpnet-base-v2", 1)], (2, 1)),
        ("all-minilm-l6,all-mpnet-base-v2,unknown", (1, 1, 1)),
        ("all-minilm-l6,bge-m3", (1, 1)),
        ("all-mpnet-base-v2", (1,)),
    ],
)
def test_weights_that_nobody_gives_follow_what_is_published_where_that_is_known_of_every_model(roster, weights):
    rows = {"near": {"quality": 56.1}, "better": {"quality": 70}, "unknown": {}}
    rows = {name: {"source": "hf:org/name", **row} for name, row in rows.items()}
    found = load({} if roster is None else {"roster": roster}, {}, rows=rows).settings
    assert tuple(weight for _, weight in found.roster) == weights


def test_a_run_that_was_begun_at_other_weights_keeps_them_whatever_is_usual_now(tmp_path):
    names, begun = (
        ("all-minilm-l6", "all-mpnet-base-v2"),
        {"roster": Setting([["all-minilm-l6", 1.0], ["all-mpnet-base-v2", 1.0]], "default")},
    )
    file = file_of(tmp_path, f'roster = "{",".join(names)}"\n')
    for now in (load({}, {}), load({"roster": ",".join(names)}, {}), load({}, {}, file)):
        assert now.settings.roster == ((names[0], 0.3), (names[1], 0.7))
        kept = continued(begun, now)
        assert kept.settings.roster == ((names[0], 1.0), (names[1], 1.0)) and not kept.notes
    given = continued(begun, load({"roster": f"{names[0]}=1,{names[1]}=2"}, {}))
    assert given.settings.roster == ((names[0], 1.0), (names[1], 2.0))


@pytest.mark.parametrize("name", ["all-minilm", "name", "hf:", "/", "/a/b:c", "/a/.hidden", "/a/x\x1b"])
def test_a_name_of_no_model_is_refused(name):
    with pytest.raises(UsageError):
        find(REGISTRY, [name])


def test_two_models_that_would_share_a_name_are_refused():
    with pytest.raises(UsageError, match="name"):
        find(REGISTRY, ["/a/name", "hf:org/name"])


@pytest.mark.parametrize("name", RESERVED)
def test_a_model_named_like_a_column_of_the_points_is_refused(name):
    with pytest.raises(UsageError, match=f"'{name}'"):
        find(REGISTRY, [f"/models/{name}"])


def test_a_key_of_200_bytes_is_taken_and_a_longer_one_refused():
    check_key("ü" * 100)
    with pytest.raises(UsageError, match="200 bytes"):
        check_key("ü" * 100 + "a")


@pytest.mark.parametrize("name", ["dim", "ceiling", "deadline", "max_refused", "roster", "devices", "cluster"])
def test_a_number_has_ascii_digits_and_nothing_of_python(name):
    usual = {"ceiling": "{}2GiB", "deadline": "{}2h", "max_refused": "{}2%", "roster": "all-minilm-l6={}2"}
    text = {**usual, "devices": "sim:{}2xT4", "cluster": "local:{}2"}.get(name, "{}2")
    assert load({name: text.format("1" if name not in ("devices", "cluster") else "")}, {})
    for digit in ("1_", "\uff11", "\u0661"):
        with pytest.raises(UsageError):
            choose(load({name: text.format(digit)}, {}).settings.devices)


def test_config_show_exits_2_with_one_line_on_a_bad_value(tmp_path):
    done = interlock("config", "show", env={"INTERLOCK_DIM": "wide"}, cwd=tmp_path, check=2)
    assert done.stderr.startswith("interlock: environment INTERLOCK_DIM: expected a whole number, got 'wide'")
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("text", "meant"), [("10", "10GiB"), ("1.5", "1GiB"), ("8000", "8000MiB"), (str(12 << 30), "12288MiB")]
)
def test_a_size_without_a_unit_is_refused_with_what_may_be_meant(tmp_path, text, meant):
    file = tmp_path / "c.toml"
    file.write_text(f"ceiling = {text}\n")
    said = rf"ceiling: expected a size with its unit \(did you mean {meant}\?\), got '{text}'$"
    with pytest.raises(UsageError, match="^--" + said):
        load({"ceiling": text}, {})
    with pytest.raises(UsageError, match=rf"c.toml: {said}"):
        load({}, {}, file)


def by_value(**values):
    """Settings from Python's values."""
    return load(values, {}, origin_of="python Settings.{}".format)


@pytest.mark.parametrize(
    ("name", "value", "taken"),
    [
        ("roster", {"a": 0.4, "/m/x,y=z": 1}, (("a", 0.4), ("/m/x,y=z", 1.0))),
        ("roster", ["a=0.5", "b", ("c,d", 2)], (("a", 0.5), ("b", 1.0), ("c,d", 2.0))),
        ("roster", [Path("/m/mine=2")], (("/m/mine=2", 1.0),)),
        ("collections", ["Q, A", "B"], ("Q, A", "B")),
        ("devices", ("cuda:0", "cuda:1"), "cuda:0,cuda:1"),
        ("ceiling", 12 << 30, 12 << 30),
        ("ceiling", "2GiB", 2 << 30),
        ("cpu_fallback", False, False),
        ("qdrant", Path("/s"), Path("/s")),
        ("threads", 3, 3),
    ],
)
def test_a_python_value_is_taken_as_it_is_and_says_where_it_came_from(name, value, taken):
    found = by_value(**{name: value})
    assert (getattr(found.settings, name), found.origins[name]) == (taken, f"python Settings.{name}")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("threads", True),
        ("threads", 1.5),
        ("threads", [1]),
        ("ceiling", -1),
        ("cpu_fallback", 2),
        ("collections", [""]),
        ("collections", b"Docs"),
        ("roster", b"tiny"),
        ("roster", [Path("/m/\0")]),
        *((name, value) for name in ("out", "qdrant", "reuse") for value in (True, 5, b"a", ["a"], "a\0b", "\ud800")),
        ("out", ""),
    ],
)
def test_a_python_value_of_another_kind_is_refused_with_its_name(name, value):
    with pytest.raises(UsageError, match=rf"^Settings\.{name}: expected"):
        by_value(**{name: value})


@pytest.mark.parametrize("limits", [{}, {"ceiling": "20GiB", "host_ceiling": "12GiB"}])
def test_a_margin_that_leaves_nothing_is_refused_in_one_line_and_the_usual_one_never_is(limits):
    assert load({**limits, "margin": "11GiB"}, {}).settings.margin == 11 << 30
    with pytest.raises(UsageError) as refused:
        load({**limits, "margin": "12GiB"}, {})
    said = "--margin 12.0 GiB (flag --margin) leaves nothing of a limit of 12.0 GiB: choose a smaller one"
    assert str(refused.value) == said
    assert load({"ceiling": "1KiB"}, {}).settings.margin == 64 << 20


def test_names_with_commas_are_kept_when_a_run_is_continued():
    begun = {name: Setting(json.loads(json.dumps(each.value)), each.origin) for name, each in recorded(
        by_value(collections=["Q, A"], roster={"/m/x,y": 2.0})
    ).items()}  # fmt: skip
    found = continued(begun, load({}, {})).settings
    assert (found.collections, found.roster) == (("Q, A",), (("/m/x,y", 2.0),))


@pytest.mark.parametrize(
    ("kind", "processors", "row", "tokens"),
    [
        ("cpu", 0, {}, 2048),
        ("sim", 0, {}, 2048),
        ("cuda", 40, {}, 16384),
        ("cuda", 0, {}, 16384),
        ("cuda", 108, {}, 65536),
        ("cuda", 108, {"gpu_batch_tokens": 300}, 300),
    ],
)
def test_a_batch_is_as_large_as_its_device_needs_unless_the_row_says_otherwise(kind, processors, row, tokens):
    assert extended({"m": {"source": "/m"} | row})["m"].tokens_for(kind, processors) == tokens


@pytest.mark.parametrize(
    ("text", "found"),
    [("local:016", "local:16"), *((text, text) for text in ("", "auto", "10.0.0.1:6379", "[::1]:63"))],
)
def test_a_cluster_is_auto_an_address_or_nodes_on_this_machine(text, found):
    assert setting("cluster", text) == found


@pytest.mark.parametrize(
    "text", ["local", "local:", "local:0", "local:17", "local:x", "10.0.0.1", "10.0.0.1:0", "h:70000", "a b:1", "Auto"]
)
def test_no_other_text_is_a_cluster(text):
    with pytest.raises(UsageError, match="--cluster: expected auto, HOST:PORT, or local:N with N from 1 to 16"):
        setting("cluster", text)


def test_a_proxy_of_a_cluster_is_refused_with_what_to_give():
    with pytest.raises(UsageError, match="expected HOST:PORT of the cluster without ray://, on a machine of it"):
        setting("cluster", "ray://10.0.0.1:10001")


def test_a_resumed_run_computes_where_it_is_told_now_not_where_it_began():
    begun = recorded(load({"cluster": "local:3", "window": "2"}, {}))
    assert continued(begun, load({}, {})).settings.cluster == ""
    assert continued(begun, load({"cluster": "local:2"}, {})).settings.cluster == "local:2"
    assert continued(begun, load({}, {})).settings.window == 2


OLD = {
    "bm25 = false\nbm25_language = 'german'": ("bm25", "off"),
    "bm25 = true": ("bm25", "english"),
    "bm25_language = 'german'": ("bm25", "german"),
    "exclusive = false\nwindow = 0": ("window", "shared"),
    "exclusive = true\nwindow = 3": ("window", 3),
    "deadline = '8h'\npartial = true": ("deadline", "8h,export"),
    "deadline = '8h,export'\npartial = true": ("deadline", "8h,export"),
    "partial = true": ("deadline", ""),
    "bm25 = '0'\nbm25_language = 'german'": ("bm25", "off"),
    "bm25 = 'french'\nbm25_language = 'german'": ("bm25", "french"),
    "refresh = 2\nreadonly = true": ("slow_link", False),
}


@pytest.mark.parametrize("text", OLD)
def test_what_earlier_versions_were_told_still_reads_and_is_told_in_a_line(tmp_path, text):
    name, value = OLD[text]
    found = load({}, {}, file_of(tmp_path, text))
    assert getattr(found.settings, name) == value
    gone = [line.partition(" = ")[0] for line in text.splitlines() if line.partition(" = ")[0] in REMOVED]
    assert len(found.notes) == len(gone) and all(REMOVED[each].instead in "".join(found.notes) for each in gone)


@pytest.mark.parametrize(
    ("text", "flags", "environment", "value"),
    [
        ("exclusive = false", {"window": "0"}, {}, 0),
        ("exclusive = false", {}, {"INTERLOCK_WINDOW": "3"}, 3),
        ("window = 3", {}, {"INTERLOCK_EXCLUSIVE": "no"}, "shared"),
        ("bm25_language = 'german'", {"bm25": "french"}, {}, "french"),
        ("bm25_language = 'german'", {}, {"INTERLOCK_BM25": "on"}, "german"),
        ("bm25_language = 'german'", {"bm25": "off"}, {}, "off"),
        ("partial = true", {"deadline": "8h"}, {}, "8h,export"),
    ],
)
def test_what_goes_before_a_setting_of_earlier_versions_goes_before_what_it_becomes(
    tmp_path, text, flags, environment, value
):
    settings = load(flags, environment, file_of(tmp_path, text)).settings
    assert value in (settings.window, settings.bm25, settings.deadline)


def test_spaces_beside_the_comma_of_a_deadline_and_no_number_for_a_window():
    assert load({"deadline": " 17:45 , export"}, {}).settings.deadline == "17:45,export"
    with pytest.raises(UsageError, match="expected a whole number, or shared, got 'side'"):
        load({"window": "side"}, {})


def test_a_bad_value_of_earlier_versions_is_refused_with_its_place(tmp_path):
    with pytest.raises(UsageError, match=r"interlock.toml: exclusive: .*, got 'maybe'"):
        load({}, {}, file_of(tmp_path, "exclusive = 'maybe'"))


@pytest.mark.parametrize(("words", "told"), [(["--readonly"], ""), ([], "yes"), ([], "no")])
def test_who_only_looks_on_does_so_in_every_run_that_is_chosen(monkeypatch, tmp_path, words, told):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "journal.jsonl").touch()
    monkeypatch.chdir(tmp_path)
    seen, chosen = list[bool](), [["watch", "other"], []]
    monkeypatch.setenv("INTERLOCK_READONLY", told)

    def watched(run, speed, settings):
        seen.append(look_of(settings).readonly)
        return chosen.pop(0)

    monkeypatch.setattr("interlock.console.front_ends.dispatch.watch_journal", watched)
    assert main(["watch", "run", *words]) == 0
    assert seen == [told != "no"] * 2


def test_config_show_tells_of_settings_that_there_are_no_more(capsys, monkeypatch):
    monkeypatch.setenv("INTERLOCK_READONLY", "yes")
    assert main(["config", "show"]) == 0
    assert REMOVED["readonly"].instead in capsys.readouterr().out


def test_a_run_of_an_earlier_version_goes_on_as_it_was_set():
    said = {"bm25": True, "bm25_language": "german", "exclusive": False, "window": 0, "partial": True, "refresh": 4.0}
    settings = continued({name: Setting(value, "default") for name, value in said.items()}, load({}, {})).settings
    assert (settings.language, settings.window) == ("german", "shared")
    steered = {name: Setting(value, "operator") for name, value in _STEERED["schedule", "exclusive"].items()}
    assert continued({"exclusive": Setting(False, "flag"), **steered}, load({}, {})).settings.window == 0
    given = load({"window": "2"}, {})
    assert continued({"exclusive": Setting(False, "flag")}, given).settings.window == 2


@pytest.mark.parametrize(
    ("names", "kept"),
    [(("cuda:0", "cuda:1"), "cuda:0,cuda:1"), (("node-1/cpu", "node-2/cpu"), "auto"), ((), "auto")],
    ids=["machine", "nodes", "none"],
)
def test_devices_that_a_run_chose_are_kept_by_name_but_for_those_of_nodes(names, kept):
    facts = tuple(DeviceFacts(name=name, kind="", label="", total_bytes=1, ceiling_bytes=1) for name in names)
    assert Begun({"devices": Setting("auto", "default")}, facts).kept["devices"].value == kept


def test_a_tilde_is_the_home_directory_of_a_model_and_no_directory_of_that_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    named = load({"roster": ["~/model=0.5"], "sparse": "~/s"}, {}).settings
    assert (named.roster, named.sparse) == (((f"{tmp_path}/home/model", 0.5),), (f"{tmp_path}/home/s",))
    (found,) = load({"roster": "./~/model=0.5"}, {}).settings.roster
    assert found == (str(tmp_path / "~" / "model"), 0.5)
