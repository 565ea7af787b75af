"""What a run would do, as text: its collections, its passes, and what is not known beforehand."""

from typing import TYPE_CHECKING

from interlock.console.text.columns import render
from interlock.engine.record.units import duration, human_bytes

if TYPE_CHECKING:
    from interlock.engine.forecast import Forecast


def plan_text(seen: "Forecast") -> str:
    """Two tables, of collections and of passes, without a final newline."""
    collections = [
        [
            rows.collection.name,
            f"{len(rows.collection.files):,}",
            f"{len(rows.texts):,}",
            f"{rows.own_texts:,}",
            f"{rows.duplicates:,}",
            f"{len(rows.refusals):,}",
            rows.collection.qdrant_collection,
        ]
        for rows in seen.collections
    ]
    passes = [
        [
            str(number),
            each.layout.card.key,
            each.layout.card.dtype,
            str(each.layout.card.dim),
            f"{each.batches:,}",
            f"{each.rows:,}",
            f"{sum(share.reused for share in each.layout.shares):,}",
            f"{each.tokens:,}",
            f"{each.truncated:,}",
            human_bytes(each.weights_bytes),
            human_bytes(each.predicted_bytes),
            duration(each.seconds) if each.seconds else "?",
            each.place,
        ]
        for number, each in enumerate(seen.passes, 1)
    ]
    heads = ["pass", "model", "dtype", "dim", "batches", "rows", "reused", "tokens", "truncated", "weights"]
    heads += ["predicted", "time", f"of {human_bytes(seen.budget_bytes)} on"]
    found = ["collection", "files", "chunks", "distinct", "duplicates", "refused", "Qdrant collection"]
    told = [render(found, collections), "", render(heads, passes), ""]
    told.append(f"fused vectors: {seen.fused_dim or 'none, one named vector a model'}")
    if any(each.seconds is None for each in seen.passes):
        told.append("time: known after a first run of a model on this kind of device")
    return "\n".join(told)
