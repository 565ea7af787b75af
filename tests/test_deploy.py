"""docs/deploy: dashboard and alerts ask for numbers that there are, alerts fire when they should and at no other
time, and what is handed to Kubernetes runs commands that there are.
"""

import json
import re
import shlex
import subprocess

import pytest

from interlock.console.cli import configuration as settings_of
from interlock.console.cli import parser
from interlock.console.front_ends.exposing import KEY
from interlock.engine.record import events as ev
from interlock.engine.record.facts import Memory, Readings
from interlock.engine.record.journal import Acknowledged, Upload, UploadBinding
from tests.builders import ROOT
from tests.test_nodes import BEGUN, GIB, LOSS
from tests.test_scrapes import DECLARED, NOW, SEEN, WORK, Scraped, folded

yaml = pytest.importorskip("yaml")

DEPLOY = ROOT / "docs" / "deploy"
ALERTS = {
    rule["alert"]: rule
    for group in yaml.safe_load((DEPLOY / "alerts.yaml").read_text())["groups"]
    for rule in group["rules"]
}
GRAFANA = json.loads((DEPLOY / "grafana.json").read_text())
LABELS = {
    f"{family.name}{end}": {*family.labels.split(), *({family.name} if kind == "state" else ()), "instance", *more}
    for family, kind in DECLARED
    for end, more in {
        "counter": (("_total", ()),), "histogram": (("_bucket", ("le",)), ("_sum", ()), ("_count", ())),
    }.get(kind, (("", ()),))
}  # fmt: skip
PANELS = [panel for panel in GRAFANA["panels"] if panel["type"] != "row"]
ASKED = [target["expr"] for panel in PANELS for target in panel["targets"]] + [rule["expr"] for rule in ALERTS.values()]


@pytest.mark.parametrize("asked", ASKED)
def test_every_name_and_label_that_is_asked_for_is_declared(asked):
    named = re.findall(r"\b(interlock_\w+)(\{[^}]*\})?", re.sub(r'"[^"]*"|\b(?:by|on) \([^)]*\)', '""', asked))
    names = [name for name, _ in named if name in LABELS]
    assert names and all(name in LABELS or any(name in LABELS[each] for each in names) for name, _ in named)
    grouped = re.findall(r"\b(?:by|on) \(([^)]*)\)", asked)
    matched = [label for _, within in named for label in re.findall(r"(\w+)=", within)]
    used = {label.strip() for group in grouped for label in group.split(",")} | {*matched}
    assert used <= set().union(*(LABELS[name] for name in names))
    assert asked.count("(") == asked.count(")") and asked.count("{") == asked.count("}")


def test_the_names_of_lines_are_labels_of_what_they_show():
    for panel in PANELS:
        for target in panel["targets"]:
            name = re.findall(r"interlock_\w+", target["expr"])[0]
            assert {*re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])} <= LABELS[name], target


def test_panels_do_not_overlap_and_each_family_but_a_few_is_on_one():
    cells = [
        (panel["gridPos"]["x"] + x, panel["gridPos"]["y"] + y)
        for panel in GRAFANA["panels"]
        for x in range(panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["h"])
    ]
    assert len(cells) == len({*cells}) and max(x for x, _ in cells) < 24
    assert len({panel["id"] for panel in GRAFANA["panels"]}) == len(GRAFANA["panels"])
    asked = " ".join(ASKED)
    assert sum(family.name in asked for family, _ in DECLARED) > 0.6 * len(DECLARED)


# What an alert asks for, evaluated over two scrapes a minute apart: the part of PromQL that the rules use, `for` aside.


def samples_of(state, uploads, now):
    """Every sample as its name, its labels and its value; Prometheus adds where it is from."""
    return [
        (sample.name, {**sample.labels, "instance": "here"}, float(sample.value))
        for family in Scraped(state, uploads, now).collect()
        for sample in family.samples
    ]


def chosen(selector, samples):
    """What a selector takes of samples, by the labels."""
    name, within = re.fullmatch(r"(\w+)(?:\{(.*)\})?", selector.strip()).groups()
    wanted = re.findall(r'(\w+)(=~|=)"([^"]*)"', within or "")
    return {
        tuple(sorted(labels.items())): value
        for each, labels, value in samples
        if each == name
        and all(re.fullmatch(v if how == "=~" else re.escape(v), labels.get(k, "")) for k, how, v in wanted)
    }


def value_of(term, before, after, now):
    """What a term is: by labels."""
    if found := re.fullmatch(r"time\(\) - (.+)", term):
        return {labels: now - value for labels, value in chosen(found[1], after).items()}
    if found := re.fullmatch(r"increase\((.+)\[15m\]\)", term):
        then = chosen(found[1], before)
        return {labels: value - then.get(labels, value) for labels, value in chosen(found[1], after).items()}
    if found := re.fullmatch(r"last_over_time\((.+)\[10m\]\)", term):
        return chosen(found[1], before) | chosen(found[1], after)
    return chosen(term, after)


def fires(expr, before, after, now):
    """The labels for which an alert fires."""
    asked, _, unless = expr.partition(" unless on (instance) ")
    term, how, number = re.fullmatch(r"(.+) (==|>|<) ([\d.]+)", asked).groups()
    met = {"==": float.__eq__, ">": float.__gt__, "<": float.__lt__}[how]
    left_out = {dict(labels)["instance"] for labels in chosen(unless, after)} if unless else set()
    found = value_of(term, before, after, now)
    return [labels for labels, value in found.items() if met(value, float(number)) and not left_out]


def closed(status, code):
    return ev.RunClosed(status=status, reason="", exit_code=code)


def sampled(**more):
    told = {name: getattr(SEEN, name) for name in SEEN.__struct_fields__} | more
    return ev.DeviceSampled(device="cuda:0", memory=Memory(allocated=0, occupied=GIB), readings=Readings(**told))


def upload(**more):
    bound = UploadBinding("http://here:6333", "docs", "f", 80)
    latest = Acknowledged(**{"rows": 40, "at": NOW + 60, **more})
    return [Upload(ROOT, bound, latest, latest.ended is None)]


MITIGATED = [
    ev.Mitigated(model_pass=0, batch_index=3, rung="split", device="cuda:0", cause="c", action="a", rows=5)
    for _ in range(21)
]
PARKED = ev.RowParked(collection="Docs", model_pass=0, model="m", row=3, reason="not finite", batch_index=0)
TAKEN = ev.MemoryTaken(device="cuda:0", others_bytes=9 * GIB, free_bytes=1, needed_bytes=GIB)
REFUSED = ev.CollectionRead(
    collection="Docs", qdrant_collection="docs", files=1, chunks=80, duplicates=0, refused=3, seconds=0.1
)
DEADLINE = ev.DeadlineSet(asked="2s", seconds=2.0, ends=NOW + 61, partial=False)
WHAT = {
    "InterlockRunStalled": (WORK, WORK, 3600, []),
    "InterlockRunNeedsSomebody": (WORK, (*WORK, ev.PassFailed(model_pass=0, model="m", reason="broken")), 60, []),
    "InterlockRunGone": (WORK, None, 60, []),
    "InterlockRunSilent": (WORK, WORK, 3600, []),
    "InterlockRunFailed": (WORK, (*WORK, closed("failed", 1)), 60, []),
    "InterlockRunLate": (WORK, (*WORK, DEADLINE), 60, []),
    "InterlockDeviceCrowded": (WORK, (*WORK, TAKEN), 60, []),
    "InterlockDeviceLost": (WORK, (*WORK, ev.DeviceLost(device="cuda:0", reason="fell off the bus")), 60, []),
    "InterlockNodeLost": ((*BEGUN, *LOSS[:-1]), (*BEGUN, *LOSS), 60, []),
    "InterlockDiskLow": (WORK, (*WORK, sampled(disk_free=2 * GIB)), 60, []),
    "InterlockHostMemoryLow": (WORK, (*WORK, sampled(memory_free=GIB // 2)), 60, []),
    "InterlockTextsWithoutVector": (WORK, (*WORK, PARKED), 60, []),
    "InterlockRecordsRefused": (WORK, (*WORK, REFUSED), 60, []),
    "InterlockManyMitigations": ((*WORK, MITIGATED[0]), (*WORK, *MITIGATED, MITIGATED[0]), 60, []),
    "InterlockUploadWaits": (
        WORK,
        (*WORK, closed("completed", 0)),
        60,
        upload(waits="no route", attempts=3, since=NOW, until=NOW + 300),
    ),
    "InterlockUploadFailed": (WORK, (*WORK, closed("completed", 0)), 60, upload(ended="the disk is full")),
}
"""For each alert two scrapes: what the journal says at either, at which second the latter is, and its upload."""


def test_every_alert_has_a_case_says_what_to_do_and_how_bad_it_is():
    assert [*WHAT] == [*ALERTS]
    for rule in ALERTS.values():
        assert rule["labels"]["severity"] in ("page", "ticket", "info")
        assert re.search(r"[:;,.] \S", rule["annotations"]["summary"]) and len(rule["annotations"]["summary"]) < 130


@pytest.mark.parametrize("name", WHAT)
def test_an_alert_fires_for_what_it_is_about(name):
    earlier, later, second, uploads = WHAT[name]
    before = samples_of(folded(*earlier), [], NOW + 10)
    after = [] if later is None else samples_of(folded(*later), uploads, NOW + second)
    assert fires(ALERTS[name]["expr"], before, after, NOW + second)
    assert not fires(ALERTS[name]["expr"], before, before, NOW + 10)


@pytest.mark.parametrize(
    ("more", "second"), [((), 60), ((closed("completed", 0),), 60), ((closed("completed", 0),), 3600)]
)
def test_no_alert_fires_for_a_run_that_is_well_or_has_ended_so(more, second):
    before = samples_of(folded(*WORK), [], NOW + 10)
    after = samples_of(folded(*WORK, *more), upload(ended="", rows=80) if more else [], NOW + second)
    assert [name for name, rule in ALERTS.items() if fires(rule["expr"], before, after, NOW + second)] == []


def documents():
    return [each for file in sorted(DEPLOY.glob("*.yaml")) for each in yaml.safe_load_all(file.read_text())]


def test_the_job_runs_a_command_that_the_parser_takes_and_is_scraped_where_it_listens():
    job, monitor = (next(each for each in documents() if each.get("kind") == kind) for kind in ("Job", "PodMonitor"))
    (container,) = job["spec"]["template"]["spec"]["containers"]
    words = shlex.split(container["args"][0])
    options = parser().parse_args(words[words.index("interlock") + 1 :])
    assert options.resume and options.run_id and options.log_json
    (port,) = container["ports"]
    assert options.metrics == f"0.0.0.0:{port['containerPort']}"
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    assert endpoint["port"] == port["name"] and endpoint["authorization"]["type"] == "Bearer"
    (variable,) = container["env"]
    assert variable["name"] == KEY
    assert variable["valueFrom"]["secretKeyRef"] == endpoint["authorization"]["credentials"]
    labels = job["spec"]["template"]["metadata"]["labels"]
    assert monitor["spec"]["selector"]["matchLabels"].items() <= labels.items()
    mounted = {each["name"] for each in container["volumeMounts"]}
    assert mounted == {each["name"] for each in job["spec"]["template"]["spec"]["volumes"]}


def test_the_indexed_job_runs_each_shard_once():
    (job,) = (each for each in documents() if each.get("spec", {}).get("completionMode") == "Indexed")
    (container,) = job["spec"]["template"]["spec"]["containers"]
    (of,) = {job["spec"][name] for name in ("completions", "parallelism")}
    shards = []
    for index in range(of):
        script = (
            f"JOB_COMPLETION_INDEX={index}; set -- {container['args'][0].removeprefix('exec ')}; printf '%s\\n' \"$@\""
        )
        words = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=True).stdout.splitlines()
        shards.append(settings_of(parser().parse_args(words[1:])).settings.shard)
    assert shards == [f"{number}/{of}" for number in range(1, of + 1)]
