"""Differences over several judged sets: those of Welch's test, with a star where chance gives one in twenty tables."""

import json
import re

import numpy as np
import pytest

from interlock.engine.errors import UsageError
from interlock.engine.evaluation.comparing import compared
from interlock.engine.evaluation.report import LEAST, differences, dumps
from interlock.engine.evaluation.strata import pool_files
from tests.builders import interlock
from tests.test_eval import skewed as skewed

pytest.importorskip("pytrec_eval", reason="make install brings ir-measures")


def test_two_sets_are_told_as_by_the_test_of_welch_and_one_to_the_last_digit_as_by_a_plain_t_interval():
    from scipy import special, stats  # not for all who collect this

    generator = np.random.default_rng(2)
    one, other = generator.normal(0.1, 0.3, 40), generator.normal(0.02, 0.05, 9)
    (found,) = differences([one], [-other])  # half of the difference between both
    bounds = stats.ttest_ind(one, other, equal_var=False).confidence_interval(0.95)
    assert (found.low, found.high) == pytest.approx((bounds.low / 2, bounds.high / 2))
    assert found.mean == pytest.approx((one.mean() - other.mean()) / 2)
    for many in range(2, 120):
        values = generator.normal(0.1, 0.2, many)
        (alone,), wide = differences([values]), special.stdtrit(many - 1, 0.975) * (values.std(ddof=1) / np.sqrt(many))
        assert (alone.low, alone.high) == (max(values.mean() - wide, -1), min(values.mean() + wide, 1))


def test_sets_count_alike_whatever_their_queries_and_none_says_anything_of_two():
    big, small = np.tile([0.1, 0.3], 100), np.tile([-0.11, -0.09], LEAST)
    (found,) = differences([big], [small])
    assert found.mean == pytest.approx((0.2 - 0.1) / 2) and found.significant
    assert not differences([big], [small[: LEAST - 1]])[0].significant
    assert not differences([big[:10]], [small[: 10 - 1]])[0].significant  # nineteen queries
    (same,) = differences([np.full(20, 0.25)], [np.full(5, 0.75)])
    assert (same.low, same.mean, same.high, same.significant) == (0.5, 0.5, 0.5, True)


@pytest.mark.parametrize("counts", [(4, 3, 3), (10, 5, 5), (40, 5, 15), (200, 30, 70)])
def test_intervals_over_sets_hold_what_they_say_and_stars_are_chance_in_one_table_of_twenty(skewed, counts):
    generator, held, starred = np.random.default_rng(0), [], 0
    sets = [skewed[start : start + 3] for start in (0, 3, 6)]
    for _ in range(400):
        drawn = [[generator.choice(each, many) for each in own] for own, many in zip(sets, counts, strict=True)]
        found = differences(*drawn)
        held += [each.low <= 0 <= each.high for each in found]
        starred += any(each.significant for each in found)
    assert 0.93 <= np.mean(held) <= 0.98
    assert starred / 400 <= 0.075  # 5 % and what 400 tables may differ from it


@pytest.fixture
def sets(tmp_path):
    """Comparisons of two sets of queries by the same two runs, the second of which finds each answer later."""
    for name, queries in {"one": 30, "two": 8}.items():
        asked = [f"q{at}" for at in range(queries)]
        runs = {"a": {q: {"d0": 2.0, "d1": 1.0} for q in asked}, "b": {q: {"d1": 2.0, "d0": 1.0} for q in asked}}
        grades = {q: {"d0": 1 + (at + len(name)) % 2, "d1": at % 2} for at, q in enumerate(asked)}
        (tmp_path / f"{name}.json").write_bytes(dumps(compared(runs, grades, ("nDCG@10", "AP"), {}, [])))
    return tmp_path


def test_comparisons_of_several_sets_are_pooled_on_the_command_line(sets):
    said = interlock("compare", "one.json", "two.json", "--json", "all.json", cwd=sets).stdout
    found = json.loads((sets / "all.json").read_text())
    assert found["sets"] == {"one.json": 30, "two.json": 8}
    own = [json.loads((sets / name).read_text())["differences"][0]["difference"]["mean"] for name in found["sets"]]
    (first, second) = found["differences"]
    assert (first["measure"], second["measure"]) == ("nDCG@10", "AP")
    assert first["sets"] == pytest.approx(own, abs=1e-6)
    assert first["difference"]["mean"] == pytest.approx(np.mean(own), abs=1e-6)
    assert "nDCG@10, against a" in said and re.search(r"\n  b +-\.\d+ ±\.\d+\* +-", said)
    assert max(map(len, said.splitlines())) <= 80
    wrong = interlock("compare", "one.json", "two.json", "--measures", "AP", cwd=sets, check=2)
    assert "pass --qrels too" in wrong.stderr


def test_what_cannot_be_pooled_is_refused_and_what_one_set_lacks_is_told(sets):
    one, two = (sets / f"{name}.json" for name in ("one", "two"))
    told = json.loads(two.read_text())
    told["runs"] = [{**run, "values": {"AP": run["values"]["AP"]}} for run in told["runs"]]
    (less := sets / "less.json").write_text(json.dumps(told))
    found = pool_files([one, less])
    assert [each.measure for each in found.differences] == ["AP"]
    assert found.notes == ["nDCG@10 of b against a is left out: not all sets have both"]
    (sets / "none.json").write_text(json.dumps({**told, "runs": []}))
    (sets / "few.json").write_text(json.dumps({**told, "query_ids": ["q0"]}))
    (sets / "other.json").write_text("{}")
    (sets / "copy.json").write_bytes(one.read_bytes())
    for files, why in {
        ("one",): "is one set: name two",
        ("one", "copy"): "says what another file says",
        ("one", "none"): "no pair in common",
        ("one", "few"): "fewer than two judged queries, or not the values of all",
        ("one", "other"): "is not what --json of eval or compare writes",
        ("one", "nowhere"): "No such file",
    }.items():
        with pytest.raises(UsageError, match=why):
            pool_files([sets / f"{name}.json" for name in files])
