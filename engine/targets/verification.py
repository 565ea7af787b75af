"""What was written to a store, read back and compared with what was planned."""

from collections.abc import Iterable, Mapping

import numpy as np

from interlock.engine.corpus.corpus import digest_of
from interlock.engine.record.facts import Verification
from interlock.engine.record.words import few, several
from interlock.engine.targets.qdrant import Store
from interlock.engine.vectors.points import Terms, Tokens, Vector

MIN_COSINE, MIN_QUANTISED = 1 - 1e-5, 0.999
"""Between a vector as written and as it is in the store; in eight bits a number it has lost some."""


def verify(
    store: Store,
    planned: Iterable[Mapping[str, bytes]],
    sample: Mapping[str, Mapping[str, Vector]],
    sparse: Mapping[str, Mapping[str, Terms]] = {},
    tokens: Iterable[tuple[str, Mapping[str, Tokens]]] = (),
) -> Verification:
    """Read the store back and compare it with what was planned.

    `planned` are the points of the corpus, a window at a time: by id the digest of each text. `sample` has the dense
    vectors that some of them must have, id -> name -> vector, and `sparse` their sparse ones; `tokens` are ids with the
    token vectors of each, by name. ok: every planned point is there with its text, there is no other but the stale
    ones, and every sampled point has just its vectors: a dense one with a cosine above 1 - 1e-5, or 0.999 where the
    store quantises, a sparse one with the same terms, tokens with the same numbers.
    """
    expected, missing, changed = 0, list[str](), list[str]()
    for window in planned:
        texts = store.texts(list(window))
        expected += len(window)
        missing += window.keys() - texts.keys()
        changed += [point for point, text in texts.items() if text is None or digest_of(text) != window[point]]
    points, stale = store.count(), store.stale
    stored = {point.id: point for point in store.retrieve(list(sample))}
    cosines = [
        _cosine(vector, stored[point].vectors.get(name) if point in stored else None)
        for point, vectors in sample.items()
        for name, vector in vectors.items()
    ]
    worst = min(cosines, default=None)
    odd = [
        point for point in sample if point not in stored or not stored[point].has(sample[point], sparse.get(point, {}))
    ]
    odd += [point for point, wanted in tokens if point not in odd and not _same_tokens(store.tokens_of(point), wanted)]
    faults = {"missing": missing, "with a different text": changed, "with other vectors than delivered": odd}
    # Stale points are no fault: an earlier delivery wrote them.
    ok = (
        points - stale == expected
        and (worst is None or worst > (MIN_QUANTISED if store.quantise != "none" else MIN_COSINE))
        and not any(faults.values())
    )
    vectors = "no vector sampled"
    if worst is not None:
        vectors = f"vectors of {several(len(sample), 'point')} compared, worst cosine {worst:.7f}"
    compared = f"{several(expected - len(missing), 'text')} compared; {vectors}"
    told = "".join(f"; {len(ids)} {fault}: {few(ids)}" for fault, ids in faults.items() if ids)
    detail = f"{points:,} points ({expected:,} expected, {stale:,} stale); {compared}{told}"
    return Verification(
        store=str(store.path.parent),
        points=points,
        expected=expected,
        stale=stale,
        sampled=len(sample),
        worst_cosine=worst,
        ok=ok,
        detail=detail,
    )


def _same_tokens(stored: Mapping[str, Tokens], delivered: Mapping[str, Tokens]) -> bool:
    same = (np.array_equal(stored[name], delivered[name]) for name in delivered if name in stored)
    return stored.keys() == delivered.keys() and all(same)


def _cosine(delivered: Vector, stored: Vector | None) -> float:
    if stored is None or stored.shape != delivered.shape:
        return 0.0
    one, other = delivered.astype(np.float64), stored.astype(np.float64)
    with np.errstate(invalid="ignore", divide="ignore"):
        cosine = float(one @ other / (np.linalg.norm(one) * np.linalg.norm(other)))
    return cosine if np.isfinite(cosine) else 0.0  # NaN would slip through min() as if it were fine
