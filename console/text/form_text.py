"""What the set-up form says below its fields and in place of a plan, as pure text."""

from collections.abc import Sequence

from interlock.console.form.found import ChunksSeen
from interlock.engine.record.words import human_bytes, several
from interlock.widgets.ticks import ModelRow

NAMED = 4
"""Collections that are named; more are counted."""


def chunks(shelf: ChunksSeen, typed: str, tree: str) -> str:
    """Say what the directory that was `typed` holds, as far as it was looked at; `tree` is the key that shows all."""
    if not typed:
        return f"type a path (tab completes it), or {tree} for a tree of directories"
    if shelf.of != typed:
        return "looking..."
    each = [f"{one.name} ({several(one.files, 'file')}, about {several(one.chunks, 'chunk')})" for one in shelf.found]
    shown = each[:NAMED] + [f"{len(each) - NAMED} more"] * (len(each) > NAMED)
    least = "" if shelf.whole else "at least "
    return f"{least}{several(len(each), 'collection')}, {human_bytes(shelf.bytes)}: {', '.join(shown)}"


def about(model: ModelRow) -> str:
    """Say of a model what its line may have no room for."""
    return f"{model.key}: languages {model.languages or 'unknown'}, licence {model.licence or 'unknown'}"


def hint(name: str, gpus: Sequence[str] | None, *, ascii: bool) -> str:
    """Say what the field with the cursor may be; `gpus` is None while nobody has asked the driver."""
    arrows = "up/down" if ascii else "↑↓"
    match name:
        case "models":
            return "space ticks, + - or digits weigh; the number is the order of the passes, 1 is the primary"
        case "devices" if gpus is None:
            return "looking for GPUs..."
        case "devices":
            here = ", ".join(f"cuda:{number} {gpu}" for number, gpu in enumerate(gpus or ()))
            return f"{arrows} chooses; here: {here or 'no GPU'}, cpu"
        case "fusion":
            return f"{arrows} chooses: concat, named, mean"
    return ""


def no_plan(much: int, key: str) -> str:
    """Say why there is no plan yet. `much` are the bytes of chunks where they are too many to be read unasked, else 0;
    `key` asks for the plan."""
    if much:
        return f"{human_bytes(much)} of chunks would be read and tokenised for a plan: press {key} for it."
    return "The plan appears here once the form is filled in: passes, batches, tokens, predicted memory and time."
