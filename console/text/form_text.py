"""What the set-up form shows of the models, and says below its fields and in place of a plan. Pure."""

from collections.abc import Mapping, Sequence
from itertools import accumulate

from interlock.console.form import ChunksSeen, ModelRow
from interlock.engine.record.words import human_bytes, safe, several
from interlock.engine.settings import setting_of
from interlock.widgets.text import TABLE_GAP, Row, Span, plain, table_rows, width_of

LABELS = {"roster": "models", "qdrant": "store", "out": "runs", "run_id": "run id"}
"""What fields are called that are not called as their settings."""
PLACEHOLDERS = {
    "chunks": "folder that contains your collections", "qdrant": "Qdrant store directory (optional)",
    "run_id": "its start time", "flags": "any other flag of `interlock run`, as --dim 256 --shared",
}  # fmt: skip
NAMED = 4
"""Collections that are named; more are counted."""
HEADS = ("    model", "dim", "tokens", "on disk", "languages", "licence")


def models(rows: Sequence[ModelRow], places: Mapping[str, str], width: int) -> tuple[Row, list[Row]]:
    """Draw the heads, and a row for each model: the number of a ticked one is its place in the roster."""
    lines = []
    for each in rows:
        size = human_bytes(each.size) if each.size is not None else "yes"
        here = {None: "...", True: size, False: "to fetch"}[each.here]
        numbers = str(each.dim or "?"), f"{each.tokens:,}" if each.tokens else "?"
        lines.append((f"[{places.get(each.key, ' ')}] {each.key}", *numbers, here, each.languages, each.licence))
    needs = [max(map(width_of, column)) + TABLE_GAP for column in zip(HEADS, *lines, strict=True)]
    fitting = max(1, sum(1 for end in accumulate(needs) if end <= width + TABLE_GAP))
    # Columns that would cost the names some signs are left out.
    heads, *drawn = table_rows(HEADS[:fitting], [line[:fitting] for line in lines], max(1, width))
    drawn = drawn[: len(lines)]
    for place, each in enumerate(rows):
        if each.key in places:
            drawn[place] = (Span(plain([drawn[place]])[0], "bold"),)
    return heads, drawn


def label(name: str) -> str:
    return LABELS.get(name, name)


def fixes(wrong: Mapping[str, str]) -> str:
    """Name the fields in which something is wrong, and say what it is in the first."""
    first = next(iter(wrong))
    return f"X fix: {', '.join(map(label, wrong))}\n{label(first)}: {safe(wrong[first], 300)}"


def chunks(seen: ChunksSeen, typed: str, tree: str) -> str:
    """Say what the directory that was `typed` holds, as far as it was looked at; `tree` is the key that shows all."""
    if not typed:
        return f"type a path (tab completes it), or {tree} for a tree of directories"
    if seen.of != typed:
        return "looking..."
    each = [f"{one.name} ({several(one.files, 'file')}, about {several(one.chunks, 'chunk')})" for one in seen.found]
    shown = each[:NAMED] + [f"{len(each) - NAMED} more"] * (len(each) > NAMED)
    least = "" if seen.whole else "at least "
    return f"{least}{several(len(each), 'collection')}, {human_bytes(seen.bytes)}: {', '.join(shown)}"


def about(model: ModelRow) -> str:
    """Say of a model what its line may have no room for, and what the keys do."""
    told = f"{model.key}: languages {model.languages or 'unknown'}, licence {model.licence or 'unknown'}"
    return f"{told}; space ticks, the number is the order of the passes, 1 is the primary"


def hint(name: str, gpus: Sequence[str] | None) -> str:
    """Say what the field with the cursor is for; `gpus` is None while nobody has asked the driver."""
    if name == "devices":
        here = ", ".join(f"cuda:{number} {gpu}" for number, gpu in enumerate(gpus or ()))
        return "looking for GPUs..." if gpus is None else f"here: {here or 'no GPU'}, cpu"
    if name == "roster":
        return "ticked below, or typed: NAME, hf:org/name, pkg:dist or a directory, each with =WEIGHT (optional)"
    return "" if name == "flags" else str(setting_of(name).metadata["help"])


def no_plan(much: int, key: str) -> str:
    """Say why there is no plan yet. `much` are the bytes of chunks where they are too many to be read unasked, else 0;
    `key` asks for the plan."""
    if much:
        return f"{human_bytes(much)} of chunks would be read and tokenised for a plan: press {key} for it."
    return "The plan appears here once the form is filled in: passes, batches, tokens, predicted memory and time."
