"""The application around the set-up form: which models are here, what a plan says, and the command that comes of it."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from interlock.console.apps.base import Frame
from interlock.console.look import Look
from interlock.console.screens.setup import Setup
from interlock.console.text.columns import render
from interlock.engine.config import Configuration
from interlock.engine.record.units import duration, human_bytes

if TYPE_CHECKING:
    from interlock.engine.intake.corpus import Rows


class Form(Frame[list[str]]):
    """Gives the arguments of `interlock` that were filled in; nothing when it was left."""

    ENABLE_COMMAND_PALETTE = False

    def __init__(self, look: Look, configuration: Configuration) -> None:
        super().__init__(look)
        self._configuration = configuration

    def open(self) -> None:
        roster = ",".join(
            name if weight == 1 else f"{name}={weight:g}" for name, weight in self._configuration.settings.roster
        )
        self.push_screen(Setup(models_here(self._configuration), plan_of, roster, self.look))


def models_here(configuration: Configuration) -> list[str]:
    """The models of the registry whose files are on this machine."""
    from interlock.engine.models import assets
    from interlock.engine.models.registry import extended

    return [spec.key for spec in extended(configuration.models).values() if assets.cached(spec)]


def plan_of(words: Sequence[str]) -> list[str]:
    """What a run of these arguments would do. Raises what `interlock plan` would raise."""
    from interlock.console.cli import configuration, parse
    from interlock.engine.forecast import forecast

    options = parse(["plan", *words[1:]])
    seen = forecast(options.chunks, configuration(options))
    lines = [_read(each) for each in seen.collections]
    table = [
        [
            each.layout.card.key,
            f"{each.batches:,}",
            f"{each.rows:,}",
            f"{each.tokens:,}",
            f"{each.truncated:,}",
            human_bytes(each.predicted_bytes),
            duration(each.seconds) if each.seconds else "?",
            each.place,
        ]
        for each in seen.passes
    ]
    heads = ["pass", "batches", "rows", "tokens", "cut", "memory", "time", "on"]
    lines += ["", *render(heads, table).splitlines(), ""]
    lines.append(f"fused vectors: {seen.fused_dim or 'none, one named vector a model'}")
    lines += [each.refused for each in seen.passes if each.refused]
    if any(each.seconds is None for each in seen.passes):
        lines.append("time: known after a first run of a model on this kind of device")
    return lines


def _read(rows: "Rows") -> str:
    refused = f", {len(rows.refusals):,} refused" if rows.refusals else ""
    return f"{rows.collection.name}: {len(rows.texts):,} chunks, {rows.duplicates:,} duplicates{refused}"
