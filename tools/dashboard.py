"""Writes `docs/deploy/grafana.json`: a row of panels for each question of an operator, over what `--metrics` tells.

What panels ask is below; the rest is what Grafana wants of a dashboard that is imported. `tests/test_deploy.py`
compares every name and label with those that are declared.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

FILE = Path(__file__).parent.parent / "docs" / "deploy" / "grafana.json"
SOURCE = {"type": "prometheus", "uid": "${source}"}
ACROSS = 24


class Panel(NamedTuple):
    """One panel: its unit as Grafana names it, and expressions with how each line is called; `$` stands for the run."""

    title: str
    unit: str
    asked: Sequence[tuple[str, str]]
    kind: str = "timeseries"
    width: int = 8


ROWS: dict[str, Sequence[Panel]] = {
    "How does it stand?": (
        Panel("State", "short", [("interlock_run_state$ == 1", "{{interlock_run_state}}")], "stat", 4),
        Panel("Header", "short", [("interlock_run_health$ == 1", "{{interlock_run_health}}")], "stat", 4),
        Panel("Done", "percentunit", [("interlock_run_done_ratio$", "done")], "gauge", 4),
        Panel("Left", "s", [("interlock_run_remaining_seconds$", "left")], "stat", 4),
        Panel("Without a vector", "short", [("sum(interlock_rows_parked_total$)", "texts")], "stat", 4),
        Panel("Refused", "short", [("interlock_records_refused_total$", "records")], "stat", 4),
    ),
    "How fast is it?": (
        Panel("Texts a second", "short", [("sum by (model) (rate(interlock_rows_total$[1m]))", "{{model}}")]),
        Panel("Tokens a second", "short", [("sum by (model) (rate(interlock_tokens_total$[1m]))", "{{model}}")]),
        Panel(
            *("Seconds of a batch, 95 of 100", "s"),
            [("histogram_quantile(0.95, sum by (le, model) (rate(interlock_batch_seconds_bucket$[5m])))", "{{model}}")],
        ),
        Panel(
            *("Texts", "short"),
            [("interlock_rows_total$", "{{model}}"), ("interlock_rows_expected$", "{{model}}, all of them")],
        ),
        Panel("Batches left", "short", [("interlock_batches_left$", "{{model}}")]),
        Panel(
            *("Seconds left", "s"),
            [("interlock_run_remaining_seconds$", "left"), ("interlock_run_remaining_spread_seconds$", "off by")],
        ),
    ),
    "What do devices do?": (
        Panel(
            *("Memory", "bytes"),
            [
                ("interlock_device_occupied_bytes$", "{{device}}, ours"),
                ("interlock_device_others_bytes$", "{{device}}, others"),
                ("interlock_device_free_bytes$", "{{device}}, free"),
                ("interlock_device_ceiling_bytes$", "{{device}}, ceiling"),
                ("interlock_device_total_bytes$", "{{device}}, all"),
            ],
            width=12,
        ),
        Panel("Weights", "bytes", [("interlock_device_weights_bytes$", "{{device}}")], width=6),
        Panel("Leases", "short", [("interlock_leases_held$", "{{model}}")], width=6),
        Panel("Busy", "percentunit", [("interlock_device_utilisation_ratio$", "{{device}}")]),
        Panel("Warm", "celsius", [("interlock_device_temperature_celsius$", "{{device}}")]),
        Panel("Power", "watt", [("interlock_device_power_watts$", "{{device}}")]),
    ),
    "What goes wrong?": (
        Panel(
            *("Steps of the ladder", "short"),
            [("sum by (rung, device) (increase(interlock_mitigations_total$[5m]))", "{{rung}} on {{device}}")],
        ),
        Panel(
            *("Warnings and losses", "short"),
            [
                ("interlock_warnings_total$", "warnings"),
                ("interlock_device_losses_total$", "devices lost"),
                ("interlock_batches_lost_total$", "batches lost"),
                ("interlock_download_retries_total$", "downloads tried again"),
            ],
        ),
        Panel(
            *("Disk and memory of the host, free", "bytes"),
            [("interlock_disk_free_bytes$", "disk"), ("interlock_host_memory_free_bytes$", "memory")],
        ),
    ),
    "What do nodes do?": (
        Panel("There", "short", [("interlock_node_up$", "{{node}}")]),
        Panel(
            *("Lost, and computed again", "short"),
            [("interlock_node_losses_total$", "{{node}}"), ("interlock_rows_again_total$", "{{node}}, texts again")],
        ),
        Panel("Texts that count, by device", "short", [("interlock_device_rows$", "{{device}}")]),
    ),
    "Is it delivered?": (
        Panel("Collections", "short", [("interlock_collections$", "{{status}}")]),
        Panel("Files", "bytes", [("interlock_exported_bytes$", "written")]),
        Panel(
            *("Points on the server", "short"),
            [
                ("interlock_upload_points$", "there"),
                ("interlock_upload_points_expected$", "all of them"),
                ("interlock_upload_failed_attempts$", "asked in vain"),
            ],
        ),
    ),
}


def dashboard() -> str:
    """Write all of it, as it is imported."""
    panels: list[dict[str, Any]] = []
    top = 0
    for title, row in ROWS.items():
        panels.append({"type": "row", "title": title, "gridPos": {"h": 1, "w": ACROSS, "x": 0, "y": top}, "panels": []})
        top, left = top + 1, 0
        for panel in row:
            height = 4 if panel.kind in ("stat", "gauge") else 8
            if left + panel.width > ACROSS:
                top, left = top + height, 0
            place = {"h": height, "w": panel.width, "x": left, "y": top}
            panels.append(_panel(panel, place))
            left += panel.width
        top += height
    for number, each in enumerate(panels, 1):
        each["id"] = number
    variables = [
        {"name": "source", "type": "datasource", "query": "prometheus", "label": "Prometheus"},
        {
            "name": "instance",
            "type": "query",
            "label": "Run",
            "datasource": SOURCE,
            "refresh": 2,
            "multi": True,
            "query": "label_values(interlock_run_info, instance)",
            "includeAll": True,
        },
    ]
    made = {
        "title": "Interlock",
        "uid": "interlock",
        "tags": ["interlock"],
        "schemaVersion": 39,
        "version": 1,
        "time": {"from": "now-1h", "to": "now"},
        "refresh": "15s",
        "templating": {"list": variables},
        "panels": panels,
    }
    return json.dumps(made, indent=1) + "\n"


def _panel(panel: Panel, place: dict[str, int]) -> dict[str, Any]:
    targets = [
        {"refId": chr(ord("A") + at), "expr": asked.replace("$", '{instance=~"$instance"}'), "legendFormat": name}
        for at, (asked, name) in enumerate(panel.asked)
    ]
    defaults: dict[str, Any] = {"unit": panel.unit, "min": 0}
    named = panel.kind == "stat" and "== 1" in panel.asked[0][0]
    return {
        "type": panel.kind,
        "title": panel.title,
        "datasource": SOURCE,
        "gridPos": place,
        "targets": targets,
        "fieldConfig": {"defaults": defaults | ({"max": 1} if panel.unit == "percentunit" else {}), "overrides": []},
        **({"options": {"textMode": "name"}} if named else {}),
    }
