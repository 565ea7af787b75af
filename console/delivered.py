"""The commands about what runs have delivered: `interlock export` and `interlock prune`."""

import argparse
from typing import TYPE_CHECKING

from interlock.console.cli import configuration
from interlock.console.writing import tell
from interlock.engine.errors import ExitCode
from interlock.engine.record.words import safe, several

if TYPE_CHECKING:
    from interlock.engine.vectors.narrow import Loss


def export(options: argparse.Namespace) -> int:
    """Deliver a finished run once more; a line for each file and store."""
    from interlock.console.text.event_text import line_of
    from interlock.engine.flows.exporting import ExportRequest
    from interlock.engine.flows.exporting import export as deliver
    from interlock.engine.record.events import AnyEvent, StoreVerified

    failed = False

    def hear(event: AnyEvent) -> None:
        nonlocal failed
        failed = failed or (isinstance(event, StoreVerified) and not event.ok)
        line = line_of(event)
        tell(safe(line, 2000), error=line.startswith(("warning:", "error:")))

    asked = ExportRequest(options.to, options.to_store, options.vectors, options.collection, options.chunks)
    for collection, losses in deliver(options.run, configuration(options), asked, hear).items():
        for each in losses:
            tell(safe(f"{collection}: {each.name} in {options.vectors}: {_cost(each)}", 2000))
    return ExitCode.FAILED if failed else ExitCode.COMPLETED


def _cost(loss: "Loss") -> str:
    """What narrower numbers cost, in words."""
    if loss.least_cosine is None or loss.mean_cosine is None:
        return "no chunk has such a vector"
    kept = "" if loss.neighbours is None else f", {loss.neighbours:.1%} of the ten nearest neighbours kept"
    cosine = f"{loss.least_cosine:.7f} at the least, {loss.mean_cosine:.7f} in the mean"
    return f"cosine to float32 {cosine}{kept}, of {several(loss.sampled, 'chunk')}"


def prune(options: argparse.Namespace) -> int:
    """Remove stale points from a store, or tell how many there are."""
    from interlock.engine.targets import mirror, shard

    for name in shard.named(options.store, options.collection):
        each = mirror.prune(options.store, name, remove=not options.dry_run)
        done = f"removed, {each.points - each.stale:,} left" if each.removed else "no longer in the corpus"
        tell(f"{safe(each.collection)}: {each.stale:,} of {several(each.points, 'point')} {done}")
    return ExitCode.COMPLETED
