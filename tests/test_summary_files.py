"""Which files are summaries: what cannot be shown is told with its path and the reason."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from interlock.console.summary.document import load, parse
from interlock.engine.errors import ExitCode, UsageError
from tests.builders import environment, interlock
from tests.summaries import BAD, a_summary, changed


@pytest.mark.parametrize("name", BAD)
def test_reading_a_bad_file_names_it_and_says_why(tmp_path, name):
    data, why = BAD[name]
    (tmp_path / "summary.json").write_bytes(data)
    with pytest.raises(UsageError, match=r"summary\.json") as caught:
        load(tmp_path)
    assert why in str(caught.value)


@given(st.binary(max_size=60))
def test_any_bytes_are_a_summary_or_a_usage_error(data):
    try:
        assert parse(data, "x")["schema_version"] == "1"
    except UsageError:
        pass


def view(*args, cwd=None):
    return interlock("view", *args, cwd=cwd, check=None)


@pytest.mark.parametrize("name", ["empty", "cut", "NaN", "later", "foreign", "bare"])
def test_viewing_a_bad_file_exits_2_and_says_why_on_stderr(tmp_path, name):
    (file := tmp_path / "s.json").write_bytes(BAD[name][0])
    done = view(file)
    assert (done.returncode, done.stdout) == (ExitCode.USAGE, "")
    assert BAD[name][1] in done.stderr and "Traceback" not in done.stderr


def test_viewing_a_path_without_a_summary_says_what_to_do_and_exits_2(tmp_path):
    (loop := tmp_path / "loop").symlink_to(loop)
    (run := tmp_path / "runs" / "r").mkdir(parents=True)
    (run / "journal.jsonl").touch()
    (whole := tmp_path / "done" / "r").mkdir(parents=True)
    (whole / "summary.json").write_text(json.dumps(a_summary()))
    (empty := tmp_path / "nothing").mkdir()
    cases = {
        tmp_path / "missing.json": "does not exist",
        tmp_path / "missing\x1b[2J": "does not exist",
        loop: "does not exist",
        run: "interlock watch",
        whole.parent: f"has 1 run: name one, such as {whole}",
        empty: "name a run directory",
        Path("/dev/null"): "not a file",
        whole / "summary.json" / "x": "",
    }
    for path, why in cases.items():
        done = view(path)
        assert (done.returncode, done.stdout) == (ExitCode.USAGE, ""), path
        assert why in done.stderr and done.stderr.startswith("interlock: ")
        assert "\x1b" not in done.stderr and "Traceback" not in done.stderr
    assert view(whole, tmp_path / "missing.json").returncode == ExitCode.USAGE


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_viewing_a_file_without_permission_says_so(tmp_path):
    (file := tmp_path / "s.json").write_text("{}")
    file.chmod(0)
    done = view(file)
    assert done.returncode == ExitCode.USAGE and "permissions" in done.stderr


def test_a_file_that_the_disk_refuses_is_told_with_what_to_check(tmp_path, monkeypatch):
    (file := tmp_path / "s.json").write_text("{}")

    def refuse(self):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "read_bytes", refuse)
    with pytest.raises(UsageError, match=r"s\.json: Permission denied; check the path and its permissions"):
        load(file)


def test_without_a_terminal_the_summary_is_text_and_no_screen_is_loaded(tmp_path):
    (tmp_path / "summary.json").write_text(json.dumps(a_summary()))
    (tmp_path / "b.json").write_text(json.dumps(changed()))
    code = (
        "import sys; from interlock.console.main import main; code = main(sys.argv[1:]);"
        "print(*[m for m in ('textual', 'rich', 'torch') if m in sys.modules], file=sys.stderr); sys.exit(code)"
    )
    for args in ([tmp_path], [tmp_path, "b.json"]):
        line = [sys.executable, "-c", code, "view", *map(str, args)]
        done = subprocess.run(line, env=environment(), cwd=tmp_path, capture_output=True, text=True)
        assert (done.returncode, done.stderr.strip()) == (0, "")
        assert "\x1b" not in done.stdout and "20261121-120431  completed" in done.stdout
    assert "3 differences" in done.stdout
    assert "~ $.collections[0].passes[1].batches: 512 -> 511" in done.stdout
