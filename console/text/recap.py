"""What became of a run, as the shell and the last screen say it: what was done, how fast, how much memory against what
was predicted, what went wrong, where it lies, and the command that comes next."""

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from interlock.engine.errors import UsageError
from interlock.engine.record.facts import DeviceFacts, timed
from interlock.engine.record.inputs import onward
from interlock.engine.record.snapshot import PassView, Snapshot
from interlock.engine.record.state import NodeState
from interlock.engine.record.words import argument, command, duration, human_bytes, percent, safe, several
from interlock.engine.standing.health import health, outputs_of
from interlock.engine.standing.judgement import attention
from interlock.widgets.formats import placed, render, several_devices, width_of

MOST = 8
"""Nodes in trouble, and devices of nodes, that are told one by one."""


def recap(snapshot: Snapshot, run: Path | None, width: int | None = None) -> list[str]:
    """Sum up a run whose directory is `run` (None: somebody took it away), as a terminal takes it; a table of models
    wider than `width` is told as a line for each."""
    lines = [_headline(snapshot), *_models(snapshot, width), *(f"nodes: {text}" for text in _nodes(snapshot))]
    lines += [f"memory: {text}" for text in _memory(snapshot)]
    earlier = {each.device: each.reason for each in snapshot.losses} | {
        device.facts.name: "" for device in snapshot.devices if device.lost
    }
    lines += [f"lost in an earlier session: {name} ({reason})" for name, reason in earlier.items() if reason]
    lines += ["to look at: " + ", ".join(words)] if (words := attention(snapshot).words) else []
    lines += [f"summary: {run / 'summary.json'}"] if run else []
    return [*map(safe, lines), *(f"next: {each}" for each in (next_commands(snapshot, run) if run else ()))]


def next_commands(snapshot: Snapshot, run: Path) -> list[str]:
    """Name what an operator would run next, ready to be pasted."""
    commands = [again] if (again := onward(snapshot, run)) else []
    stored = [each.read.qdrant_collection for each in snapshot.collections if each.read.chunks]
    if not again and stored and not snapshot.rehearsed:  # whose models have no weights
        bundle = ["--models", str(snapshot.config["models"].value)] if "models" in snapshot.config else []
        if snapshot.store:
            commands.append(search_command(snapshot.store, stored, *bundle))
        elif snapshot.phase == "completed" and "server" not in snapshot.config:
            commands.append(command(["export", argument(str(run)), "--to-store", "store"]))
    return [*commands, command(["view", argument(str(run))])]


def search_command(store: str, written: Sequence[str], *flags: str) -> str:
    """Write the command that asks the store in which these collections were written, the first of them where it has
    several."""
    from interlock.engine.targets.stores import collections

    held = set(written)
    with suppress(UsageError):  # it was taken away
        held.update(collections(Path(store)))
    chosen = [f"--collection={written[0]}"] if len(held) > 1 else []
    return command(["search", argument(_from_here(store)), *chosen, *flags]) + ' "your question"'


def _from_here(place: str) -> str:
    """Name a place below the working directory as one types it there; a run records the whole path of its store."""
    try:
        below = str(Path(place).relative_to(Path.cwd()))
    except (ValueError, OSError):  # it lies elsewhere, or the working directory is gone
        return place
    return place if below.startswith(("-", ".")) else below


def _headline(snapshot: Snapshot) -> str:
    """How it ended, and over how much."""
    state = health(snapshot, snapshot.latest_at)
    rows = max((each.rows + each.reused for each in snapshot.passes), default=0)
    models, collections = len(snapshot.passes), len(snapshot.collections)
    done = "" if snapshot.share_done >= 1 else f" at {percent(snapshot.share_done).strip()} of the work"
    took = f" in {duration(snapshot.elapsed)}" if timed(snapshot.device_kind) else ""
    chunks = sum(each.read.chunks for each in snapshot.collections)
    whose = f" for {several(chunks, 'chunk')}" * (chunks > rows > 0)
    text = f"{state.word}{done}: {several(models, 'model')}, {several(rows, 'text')}{whose} of "
    return text + several(collections, "collection") + took + f": {state.detail}" * bool(state.detail)


def _models(snapshot: Snapshot, width: int | None) -> list[str]:
    """A line for each model: under one another, or in words where columns would be broken."""
    cells = [_told(each, snapshot) for each in snapshot.passes]
    table = render(["model", "state", "done", "time", "texts/s", "on"], cells).splitlines() if cells else []
    if width is None or max(map(width_of, table), default=0) <= width:
        return table
    lines = []
    for model, state, done, took, pace, devices in cells:
        facts = [done, f"in {took}" * bool(took), f"{pace} texts/s" * bool(pace), f"on {devices}" * bool(devices)]
        lines.append(f"{model} {state}: {', '.join(filter(None, facts))}")
    return lines


def _told(each: PassView, snapshot: Snapshot) -> list[str]:
    """How a model stands in a run that has ended, where nothing waits any more; its texts, those of them without a
    vector, and what else was given of them; how fast."""
    leased = any(lease.model_pass == each.model_pass for lease in snapshot.leases)
    begun = "stopped" if each.batches_done or leased else "not begun"
    word = begun if snapshot.over and each.word in ("running", "waiting", "queued") else each.word
    whole = each.batches_done >= each.batches
    texts = several(each.done.rows, "text") if whole else f"{each.done.rows:,} of {several(each.rows, 'text')}"
    texts = several(each.reused, "text") if each.word == "reused" else texts
    texts += " (stopped while it was loaded and tried)" * (word == "stopped" and not each.batches_done)
    done = ", ".join([texts + f", {each.parked} parked" * bool(each.parked), *outputs_of(each)])
    fast = timed(snapshot.device_kind) and each.done.seconds
    speed = (duration(each.wall_seconds), f"{each.rows_per_second:.1f}") if fast else ("", "")
    return [each.model, word, done, *speed, placed(each.devices, ", ")]


def _nodes(snapshot: Snapshot) -> list[str]:
    """How many there were, and each that was lost or refused; nothing on one machine."""
    if not snapshot.nodes:
        return []
    texts = [text for node in snapshot.nodes if (text := _trouble(node))]
    more = [f"and {len(texts) - MOST} more like these (all are in the summary)"] * (len(texts) > MOST)
    devices = several_devices([name for node in snapshot.nodes for name in node.devices])
    return [f"{len(snapshot.nodes)} with {devices or 'no device'}", *texts[:MOST], *more]


def _trouble(node: NodeState) -> str:
    """What went wrong with a node, and what that cost; empty where nothing did."""
    if not node.losses:
        return f"{node.node} took no part: {node.refused}" if node.refused else ""
    times = {1: "once", 2: "twice"}.get(len(node.losses), f"{len(node.losses)} times")
    batches = f"{several(node.batches_again, 'batch', 'batches')} of {several(node.rows_again, 'text')}"
    again = f"{batches} computed again" if node.batches_again else "nothing to compute again"
    return f"{node.node} lost {times} ({'; '.join(dict.fromkeys(node.losses))}): {again}"


def _memory(snapshot: Snapshot) -> list[str]:
    """The peak of each device beside its ceiling, and of the leases on it beside what was predicted for them."""
    texts = []
    devices = [device for device in snapshot.devices if device.peak]
    many = len(devices) > MOST and bool(snapshot.nodes)
    fullest = max(devices, key=lambda device: device.peak / max(1, device.facts.ceiling_bytes), default=None)
    for device in [fullest] if many and fullest else devices:
        share = f"{device.peak / device.facts.ceiling_bytes:.0%}" if device.facts.ceiling_bytes else "?"
        text = f"{device.facts.name} peak {human_bytes(device.peak)}, {share} of the ceiling"
        lost = f"; LOST: {device.lost}" if device.lost else ""
        lost += f", the fullest of {len(devices)} devices" * many
        texts.append(text + _against(snapshot, device.facts) + lost)
    return texts


def _against(snapshot: Snapshot, device: DeviceFacts) -> str:
    """The largest tensors of a lease on a GPU, and what was predicted for that lease."""
    found = [
        (receipt.peak.allocated, lease.predicted_bytes)
        for lease in snapshot.leases
        for receipt in lease.receipts
        if receipt.device == device.name and receipt.peak.reserved and not receipt.lost
    ]
    if not found:
        return ""
    measured, predicted = max(found)
    workspace = "" if device.kind == "sim" else " and cuBLAS workspace"  # a simulated GPU counts tensors alone
    return f"; {human_bytes(measured)} of tensors{workspace}, {human_bytes(predicted)} of tensors predicted"
