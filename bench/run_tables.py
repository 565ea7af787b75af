"""The tables of forms of texts, of whole jobs and of GPUs that wait."""

from collections.abc import Callable, Iterator
from typing import Any

from bench.figures import Figures, Row, beside_goal, figures, met_or_bold

JOBS = ("whole-chunks", "whole-short", "whole-qwen3", "whole-qwen3-bfloat16")
MIB = 1 << 20


def forms(*found: Any) -> Iterator[Row]:
    for each in [form for result in found if result for form in result["forms"]]:
        last = each["sizes"][-1]
        peaks = (f"{last[name] / MIB:.0f}" for name in ("VmHWM", "RssAnon"))
        a_row = met_or_bold(f"{each['VmHWM a row']:.0f}", each["VmHWM a row"] <= found[0]["flat"])
        yield each["form"], f"{last['rows']:,}", each["us a row"], *peaks, a_row, f"{each['RssAnon a row']:.0f}"


def jobs(*found: Any) -> Iterator[Row]:
    """Ours beside theirs, and how often ours fits into theirs."""
    for each in [result for result in found if result]:
        cells = []
        for what, scale, form in (("cpu", 1, "{:.1f}"), ("wall", 1, "{:.1f}"), ("VmHWM", MIB, "{:.0f}")):
            cells.append(" / ".join(form.format(job[what]["median"] / scale) for job in each["jobs"].values()))
        named = f"{each['chunks']:,} {each['kind']}, {each['model']}, {each['dtype']}"
        yield named, *cells, beside_goal(each, "whole job, CPU", "{:.2f}x")


def waits(found: Any) -> Iterator[Row]:
    for name, each in (found or {"ways": {}})["ways"].items():
        shares = (f"{each[what]['median']:.0%}" for what in ("before", "between"))
        seconds = (f"{each[what]['median']:.1f}" for what in ("first", "seconds", "cpu", "cpu to all"))
        yield name, *shares, *seconds


PARTS: dict[str, Callable[[], Figures]] = {
    "forms": lambda: figures(
        ["form", "rows", "CPU µs a row", "peak MiB", "of it anonymous", "bytes a row", "anonymous"],
        ["forms", "forms-large"],
        forms,
    ),
    "whole jobs": lambda: figures(["job: ours / theirs", "CPU s", "wall s", "peak MiB", "x CPU"], [*JOBS], jobs),
    "waits": lambda: figures(
        ["GPUs", "idle before the first batch", "from there on", "s to it", "to the last", "CPU s to it", "to the end"],
        ["idle"],
        waits,
    ),
}
