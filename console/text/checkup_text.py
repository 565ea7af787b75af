"""What a check of the GPUs has found, as lines of text: each check as it is done, and the rest when all are."""

from textwrap import wrap

from interlock.engine.compute.checks.checkup import GpuCheck, GpuReport
from interlock.engine.compute.checks.findings import Remembered
from interlock.engine.record.words import safe, several
from interlock.widgets.formats import width_of

MARKS = {"passed": "ok", "limited": "! ", "untried": "--", "failed": "!!"}
NAME = 24
"""Cells of a check's name; what was found stands beside it, or below where the name is longer."""
SHOWN = 20
"""Canaries of earlier runs that are listed, the newest first."""


def check_text(check: GpuCheck, width: int) -> str:
    """Write a check, and what to do about it, in lines of `width` cells."""
    took = "" if check.seconds is None else f", {check.seconds:.1f} s"
    return _entry(MARKS[check.outcome], f"{check.device} {check.name}", [check.found + took, check.advice], width)


def report_text(report: GpuReport, width: int) -> str:
    """Write what is told once of all GPUs: what computes, earlier canaries, and how the checks have ended."""
    lines = [_entry("", name, [found], width) for name, found in report.software.items()]
    lines += ["", f"canaries of earlier runs: {len(report.canaries) or 'none'}"]
    lines += [_entry("", each.model, [_canary(each)], width) for each in report.canaries[:SHOWN]]
    ended = {name: sum(check.outcome == name for check in report.checks) for name in MARKS}
    counted = ", ".join(f"{count} {name}" for name, count in ended.items() if count)
    simulated = "SIMULATED, says nothing of a real GPU: " if report.simulated else ""
    last = f"{simulated}{several(len(report.checks), 'check')}: {counted}, {report.seconds:.0f} s"
    return "\n".join([*lines, "", *wrap(last, width)])


def _canary(each: Remembered) -> str:
    found = each.finding
    said = found.outcome if found.cosine is None else f"{found.outcome} with cosine {found.cosine:.7f}"
    return f"{said}: {each.dtype}, {each.attention} on {each.label}" + (f"; {found.detail}" if found.detail else "")


def _entry(mark: str, name: str, paragraphs: list[str], width: int) -> str:
    indent = 4 + NAME + 2
    room = max(20, width - indent)
    lines = [line for text in paragraphs for line in wrap(safe(text), room, break_on_hyphens=False)] or [""]
    head = f"{mark:<2}  {safe(name)}"
    left = indent - width_of(head)
    if left < 2:
        return "\n".join([head, *(" " * indent + line for line in lines)])
    return "\n".join([f"{head}{' ' * left}{lines[0]}", *(" " * indent + line for line in lines[1:])])
