"""The exponents of `bench/growth.py`: what is quadratic is seen, what is paid once is not, and the script runs."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from bench.growth import MOST, fit
from tests.builders import ROOT, environment

SIZES = [640, 1600, 4000, 10_000]


@pytest.mark.parametrize(("power", "fixed"), [(1.0, 0.0), (1.0, 5.0), (0.5, 1.0)])
def test_growth_that_is_linear_or_less_passes_whatever_is_paid_once(power, fixed):
    exponent = fit(SIZES, [fixed + 3 * (n / 10_000) ** power for n in SIZES], 0.1)
    assert exponent == pytest.approx(power, abs=0.03)
    assert exponent <= MOST


@pytest.mark.parametrize(("power", "fixed"), [(2.0, 0.0), (2.0, 1.0), (1.5, 0.2)])
def test_growth_that_is_more_than_linear_fails(power, fixed):
    exponent = fit(SIZES, [fixed + 3 * (n / 10_000) ** power for n in SIZES], 0.1)
    assert exponent == pytest.approx(power, abs=0.03)
    assert exponent > MOST


def test_what_does_not_grow_has_no_exponent():
    assert fit(SIZES, [1.0, 1.02, 0.99, 1.05], 0.1) is None


@pytest.mark.nightly
def test_a_short_growth_run_tells_time_and_memory_of_every_size(tmp_path: Path):
    file = tmp_path / "growth.json"
    words = ["--quick", "--only", "plan, rows", "--only", "watch, leases", "--json", str(file)]
    done = subprocess.run(
        [sys.executable, ROOT / "bench" / "growth.py", *words], env=environment(), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(file.read_text())["subjects"]
    assert [each["subject"] for each in told] == ["plan, rows", "watch, leases"]
    assert all(len(each["cpu_seconds"]) == len(each["mib"]) == len(each["sizes"]) == 4 for each in told)
