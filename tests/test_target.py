"""The one walk into a target, its comparison and its pruning, on a target in memory that does just what is asked."""

import re
from collections import Counter
from uuid import UUID

import numpy as np
import pytest

from interlock.engine.corpus.identity import digest_of, point_of
from interlock.engine.errors import InterlockError
from interlock.engine.targets.collection import REST_BYTES, for_client
from interlock.engine.targets.mirror import texts_held
from interlock.engine.targets.target import (
    MIN_COSINE,
    MOST_BYTES,
    TooLarge,
    compare,
    deliver,
    halves,
    lacking,
    others,
    prune,
    size_of,
)
from interlock.engine.vectors.points import Point, Terms

DIMS = {"a": 4}


class Memory:
    """A target that keeps points as they come; an upsert has at most `largest` bytes."""

    def __init__(self, largest=10**9):
        self.where, self.dims, self.sparse, self.tokens = "memory", DIMS, {"t"}, {"late": 3}
        self.most_points, self.most_bytes, self.largest = 7, 10**6, largest
        self.held, self.sizes = {}, []

    def upsert(self, points, size):
        if size > self.largest:
            raise TooLarge("memory takes no request of this size: send less")
        self.sizes.append(len(points))
        self.held |= {point.id: point for point in points}

    def ids(self):
        ids = sorted(self.held)
        for start in range(0, len(ids), 5):
            yield ids[start : start + 5]

    def count(self, among=None):
        return len(self.held if among is None else self.held.keys() & set(among))

    def read(self, ids):
        return {each: self.held[each] for each in ids if each in self.held}

    def payloads(self, ids, keys=()):
        return {each: self.held[each].payload for each in ids if each in self.held}

    def remove(self, ids):
        for each in ids:
            del self.held[each]


def made(count, collection="docs"):
    rng = np.random.default_rng(0)
    return [
        Point(
            str(point_of(collection, "a.jsonl", f"c{row}")),
            {"text": f"text {row}", "source": "a.jsonl", "chunk_id": f"c{row}"},
            {"a": rng.standard_normal(4).astype(np.float32)},
            {"t": Terms(np.array([row, row + 1]), np.array([0.5, 1], np.float32))},
            {"late": rng.standard_normal((2, 3)).astype(np.float16)},
        )
        for row in range(count)
    ]


def test_points_go_in_order_and_each_is_acknowledged_once_behind_what_is_there():
    target, points, done = Memory(), made(30), []

    def acknowledge(batch, size):
        assert all(point.id in target.held for point in batch) and size == sum(map(size_of, batch))
        done.extend(point.id for point in batch)

    deliver(points, target, acknowledge)
    assert done == [point.id for point in points] and target.sizes == [7, 7, 7, 7, 2]


def test_what_is_too_large_goes_in_halves_and_so_does_what_comes_after_it():
    points = made(40)
    target, done = Memory(largest=3 * max(map(size_of, points))), []
    deliver(points, target, lambda batch, _: done.extend(point.id for point in batch))
    assert done == [point.id for point in points]
    assert set(Counter(done).values()) == {1} and max(target.sizes) <= 3
    with pytest.raises(TooLarge):
        deliver(points, Memory(largest=10))


def terms(indices, values):
    return Terms(np.array(indices, np.int32), np.array(values, np.float32))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"id": "12"}, "cannot store point 12 in memory"),
        *(({"payload": {"x": value}}, "in memory: ") for value in (float("nan"), {1, 2}, "\ud800", b"bytes")),
        ({"vectors": {"a": np.zeros(4, np.float32)}}, "vector 'a' is zero or not finite"),
        ({"vectors": {"a": np.full(4, np.nan, np.float32)}}, "vector 'a' is zero or not finite"),
        ({"vectors": {"a": np.full(4, np.inf, np.float32)}}, "vector 'a' is zero or not finite"),
        ({"vectors": {"a": np.ones(3, np.float32)}}, "vector 'a' has shape .3,., expected 4 dimensions"),
        ({"vectors": {"b": np.ones(4, np.float32)}}, "no vector 'b'; it has a"),
        ({"sparse": {"other": terms([1], [1])}}, "no sparse vector 'other'; it has t"),
        ({"sparse": {"t": terms([], [])}}, "has no terms"),
        ({"sparse": {"t": terms([1, 2], [1])}}, "not as many values as indices"),
        *(
            ({"sparse": {"t": terms(of, [1, 1])}}, "has terms that are not in order")
            for of in ([2, 1], [1, 1], [-1, 1])
        ),
        *(({"sparse": {"t": terms([1], [weight])}}, "without a weight") for weight in (np.nan, np.inf, 0)),
        ({"tokens": {"other": np.ones((1, 3), np.float16)}}, "no token vectors 'other'; it has late"),
        ({"tokens": {"late": np.ones((2, 4), np.float16)}}, "token vectors 'late' .2, 4. are none of 3 dimensions"),
        ({"tokens": {"late": np.full((2, 3), np.nan, np.float16)}}, "token vectors 'late' .2, 3. are none of 3"),
    ],
)
def test_what_a_target_would_take_and_must_not_is_refused_before_it_is_sent(change, says):
    point, target = made(1)[0], Memory()
    with pytest.raises(InterlockError, match=says):
        deliver([Point(**{**vars(point), **change})], target)
    assert not target.held


def test_a_text_that_is_missing_or_another_is_seen_and_so_is_a_point_that_is_not_there():
    target, points = Memory(), made(20)
    deliver(points, target)
    planned = {point.id: digest_of(point.payload["text"]) for point in points}
    assert texts_held(target, [planned]).missing == texts_held(target, [planned]).changed == []
    target.held[points[3].id] = Point(points[3].id, {"text": "another"}, points[3].vectors)
    del target.held[points[4].id]
    held = texts_held(target, [planned])
    assert (held.expected, held.missing, held.changed) == (20, [points[4].id], [points[3].id])
    assert lacking(target, [[*planned]], 6) == 1


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"payload": {"text": "another"}}, "has another payload"),
        ({"vectors": {"a": np.ones(4, np.float32)}}, "vector 'a' of point .* has a cosine of"),
        ({"vectors": {}}, r"has not the vectors that it should have \(a\)"),
        ({"sparse": {"t": Terms(np.array([9]), np.ones(1, np.float32))}}, "vector 't' of point .* has other numbers"),
        ({"tokens": {"late": np.ones((2, 3), np.float16)}}, "vector 'late' of point .* has other numbers"),
    ],
)
def test_a_sample_is_compared_number_by_number(change, says):
    target, points = Memory(), made(25)
    deliver(points, target)
    whole = compare(points, target.read, payloads=True)
    assert (whole.points, whole.faults) == (25, {}) and whole.worst_cosine > MIN_COSINE
    changed = points[11]
    target.held[changed.id] = Point(**{**vars(changed), **change})
    found = compare(points, target.read, payloads=True)
    assert [*found.faults] == [changed.id]
    assert re.search(says, found.faults[changed.id])


def test_points_that_left_the_corpus_are_removed_and_somebody_elses_are_kept():
    target, points = Memory(), made(30)
    deliver(points, target)
    theirs = Point(str(UUID(int=7)), {"text": "theirs"}, points[0].vectors)
    copied = Point(str(UUID(int=8)), points[29].payload, points[0].vectors)
    deliver([theirs, copied], target)
    known = halves(point.id for point in points[:20])
    assert sum(len(page.stale) for page in others(target, known)) == 12  # of a target that is ours alone
    removed = []
    assert prune(target, others(target, known, "docs"), 4, lambda: removed.append(target.count())) == (10, 2)
    assert target.held.keys() == {point.id for point in points[:20]} | {theirs.id, copied.id}
    assert removed and removed[-1] == 22


def test_points_that_are_there_after_they_were_removed_are_told():
    target, points = Memory(), made(9)
    deliver(points, target)
    target.remove = lambda ids: None
    with pytest.raises(InterlockError, match="memory still has 5 of 5 points that were removed"):
        prune(target, others(target, halves([points[0].id]), "docs"), 100)


@pytest.mark.parametrize(("dense", "tokens"), [(2000, 0), (0, 200), (384, 1)])
def test_a_request_by_rest_takes_8_mb_at_most_whatever_its_points_are_made_of(dense, tokens):
    from qdrant_client.http.api.points_api import jsonable_encoder

    draw = np.random.default_rng(3)
    each = {"m": draw.normal(size=dense).astype(np.float32) / 40} if dense else {}
    late = {"m-tokens": (draw.normal(size=(tokens, 128)) / 11).astype(np.float16)} if tokens else {}
    one = Point(str(UUID(int=1)), {"text": "a"}, each, tokens=late)
    body = jsonable_encoder(for_client([one] * 50))
    assert len(body.encode()) / (50 * size_of(one)) <= MOST_BYTES / REST_BYTES
