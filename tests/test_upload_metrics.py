"""`interlock upload` alone tells Prometheus and a collector of logs how far it is, as a run does."""

import json
import shutil
import subprocess

from tests.builders import command, environment
from tests.edge_bridge import serving
from tests.uploads import ROWS


def test_an_upload_alone_has_numbers_for_prometheus_and_lines_for_a_collector_of_logs(upload, tmp_path):
    numbers, run = tmp_path / "numbers.prom", tmp_path / "run"
    shutil.copytree(upload.run, run)
    with serving(upload.bridge) as url:
        words = ["upload", run, "--qdrant", url, "--metrics", numbers, "--log-json"]
        done = subprocess.run(command(*words), capture_output=True, env=environment(), timeout=120, check=True)
    told = numbers.read_text()
    assert 'interlock_upload_state{interlock_upload_state="completed"} 1.0' in told
    assert f"interlock_upload_points {ROWS}.0\n" in told and f"interlock_upload_points_expected {ROWS}.0\n" in told
    assert 'interlock_rows_total{model="a"}' in told
    lines = [json.loads(line) for line in done.stderr.splitlines()]
    assert all([*each][:4] == ["time", "level", "event", "message"] for each in lines)
