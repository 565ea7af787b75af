"""A query as the one vector that a store of fused vectors is asked with, at whatever weights.

A store of `concat` holds `[sqrt(w_i) * u_i]`. A query that scales each model's vector by `v_i / sqrt(w_i)` meets it in
`sum v_i * cos_i`: so weights are chosen when a query comes, and no model's own vectors need be kept for that.
"""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from interlock.engine.errors import UsageError
from interlock.engine.vectors.fusion import Fusion, Vectors, fuse, shares
from interlock.engine.vectors.manifest import Manifest


def query_vectors(
    manifest: Manifest, unit: Mapping[str, Vectors], weights: Mapping[str, float], projection: Vectors | None = None
) -> tuple[Vectors, NDArray[np.float64]]:
    """Make [n, width] unit vectors of the models' `unit` vectors of n queries, each [n, dim], and their scale [n].

    The cosine of such a vector with one of the store, times its scale, is the weighted mean of the models' cosines,
    where `weights` sum to anything above 0; a model without a weight, or with 0, has no say and needs no vectors. A
    store of `mean` takes the weights it was written with alone, and its cosine is that of the means, at a scale of 1.
    `projection` [width, N] is the store's own, where it has one: the sum is as near then as that keeps.

    Raises ValueError where the store's projection is left out, and UsageError for weights that are negative, not
    finite, all 0 or of no model of the store, and for others than its own where it is a store of `mean`.
    """
    if (projection is None) is not (manifest.projection is None):
        raise ValueError(f"the projection to pass is that of the store: expected {manifest.projection}")
    asked, own = _asked(manifest, weights), shares([member.weight for member in manifest.models])
    if manifest.fusion is Fusion.MEAN:
        if not np.allclose(asked, own, rtol=0, atol=1e-6):
            raise UsageError(
                f"the store was written with --fusion {Fusion.MEAN}, which mixes its models for good: use the weights "
                f"it was written with ({_told(manifest, own)}), or deliver again with --fusion {Fusion.CONCAT}"
            )
        whole = fuse(Fusion.MEAN, [unit[member.model] for member in manifest.models], own.tolist())
        assert whole is not None, "a mean is one vector"
        return _scaled(whole.astype(np.float64), projection, whole_is=1.0)
    rows = max(len(vectors) for vectors in unit.values())
    blocks = [
        unit[member.model].astype(np.float64) * (say / np.sqrt(share)) if say else np.zeros((rows, member.dim))
        for member, say, share in zip(manifest.models, asked.tolist(), own.tolist(), strict=True)
    ]
    return _scaled(np.concatenate(blocks, axis=1), projection)


def _scaled(
    vectors: NDArray[np.float64], projection: Vectors | None, whole_is: float | None = None
) -> tuple[Vectors, NDArray[np.float64]]:
    """The unit vectors, projected where there is something to project by, and how long they were."""
    if projection is not None:
        vectors = vectors @ projection.astype(np.float64)
    scale = np.linalg.norm(vectors, axis=1)
    unit: Vectors = (vectors / scale[:, None]).astype(np.float32)
    return unit, scale if whole_is is None else np.full(len(unit), whole_is)


def _asked(manifest: Manifest, weights: Mapping[str, float]) -> NDArray[np.float64]:
    """The weights of the store's models in their order, scaled to sum 1."""
    names = [member.model for member in manifest.models]
    if unknown := sorted(weights.keys() - {*names}):
        raise UsageError(f"the store has no vectors of {', '.join(unknown)}: name any of {', '.join(names)}")
    given = np.array([weights.get(name, 0.0) for name in names], np.float64)
    if not (np.isfinite(given) & (given >= 0)).all() or not given.any():
        raise UsageError(
            f"weights of a query: expected numbers of 0 or more, one of them above 0, got {dict(weights)}: give 0 to a "
            "model that is to have no say"
        )
    scaled = given / given.max()
    return np.asarray(scaled / scaled.sum(), np.float64)


def _told(manifest: Manifest, own: NDArray[np.float64]) -> str:
    return ", ".join(f"{member.model}={share:.3g}" for member, share in zip(manifest.models, own, strict=True))
