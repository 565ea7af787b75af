"""The manifest of what a run exported, as others may read it: made of what the run recorded, whatever its files are."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from interlock.engine.record.facts import RosterEntry
from interlock.engine.record.inputs import language_of
from interlock.engine.record.summary import CollectionSummary, Summary
from interlock.engine.vectors import UNSAID_SHARE
from interlock.engine.vectors.bm25 import Words, WordWeights
from interlock.engine.vectors.fusion import PROJECTION, Fusion
from interlock.engine.vectors.manifest import CollectionSpec, remaining
from interlock.engine.vectors.points import NESTED
from interlock.engine.vectors.precision import VectorForm


def spec_of(run: Summary, roster: Sequence[RosterEntry], summary: CollectionSummary, width: int) -> CollectionSpec:
    """Say what a collection is, of which fused vectors that were projected have this `width`; how many words its texts
    have on average, which only the texts say, is left at 1."""
    language = language_of(run.configuration)
    settings = {name: each.value for name, each in run.configuration.items()}
    written = {Path(each.path).name: each for each in summary.exports}
    projection = written[PROJECTION].sha256 if PROJECTION in written else ""
    return CollectionSpec(
        summary.qdrant_collection,
        Fusion(run.fusion),
        remaining(roster, summary.missing),
        run.run_id,
        WordWeights(words=Words(language=language), average_length=1.0) if language else None,
        str(settings.get("chunk_sparse") or ""),
        VectorForm(settings.get("keep") or "both", width if projection else 0),
        projection,
        summary.missing,
        payload=settings.get("payload") or NESTED,
        sparse_share=settings.get("sparse_share", UNSAID_SHARE),
    )


def told(manifest: Mapping[str, object]) -> dict[str, object]:
    """A manifest as others may read it: as JSON, of a model in a directory of this machine only the last name, and of
    one that is missing not why."""
    plain: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(manifest))
    sources = {
        name: Path(source).name if Path(source).is_absolute() else source
        for name, source in plain["run"]["sources"].items()
    }
    own = ("bm25_average_length", "began", "missing")
    origin = {key: value for key, value in plain["run"].items() if key not in own}
    return {**plain, "run": {**origin, "sources": sources}}
