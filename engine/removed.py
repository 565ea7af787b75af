"""Settings of earlier versions, which files, environments and recorded runs may still name: what is said of them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from interlock.engine import parsers


@dataclass(frozen=True)
class Removed:
    """A setting of earlier versions: what is said to who names it, and which settings its value gives, if any."""

    instead: str
    becomes: Callable[[object, Mapping[str, object]], Mapping[str, object]] = lambda value, others: {}
    yields: tuple[str, ...] = ()
    """What of that it says only where no source that goes before its own says so."""


REMOVED: Mapping[str, Removed] = {
    "exclusive": Removed(
        "a run is exclusive unless --shared or --window says otherwise",
        lambda value, _: {} if parsers.flag(value) else {"window": parsers.SHARED},
        yields=("window",),
    ),
    "bm25_language": Removed(
        "use --bm25 LANGUAGE", lambda value, others: {"bm25": value} if parsers.is_on(others.get("bm25", True)) else {}
    ),
    "partial": Removed(
        "use --deadline 8h30m,export",
        lambda value, others: (
            {"deadline": f"{ends.removesuffix(parsers.EXPORTING)}{parsers.EXPORTING}"}
            if parsers.flag(value) and (ends := str(others.get("deadline") or "").strip().lower())
            else {}
        ),
    ),
    **dict.fromkeys(("long", "long_overlap"), Removed("texts are cut at a model's limit")),
    "refresh": Removed("the screen is drawn four times a second, once by --slow-link; + and - change it"),
    "readonly": Removed(
        "use it with `interlock watch`",
        lambda value, _: {"readonly": True} if parsers.flag(value) else {},  # no setting, and not forgotten: see `load`
    ),
}
"""What a file, the environment, or a run of earlier versions may still say."""
PREDECESSOR: Mapping[str, str] = {
    "--chunked-dir DIR": "`interlock run DIR`: this directory and no other",
    "--output-dir DIR": "`--out DIR`, with a directory for each run",
    "--ensemble-models A B": "`--roster A=0.6,B=0.4`; what is not named is not loaded",
    "--collections A B": "`--collections A,B`; an unknown one is refused",
    "--sparse-models A B": "`--sparse A,B`: each has vectors of its own; `splade` is nearest to `splade-v3`",
    "--enable-ensemble": "nothing: several models of a roster are one",
    "--matryoshka-dim N": "`--dim N` for models trained for it, else `--project N`",
    "--rerank-model, --rerank-candidates, --rerank-top-k": "with the question, not with the run: "
    '`interlock search STORE "..." --rerank MODEL --rerank-depth 50 --limit 20`',
    "--disable-rerank, --disable-sparse": "nothing: both are off until they are asked for",
    "--disable-exclusive, --no-exclusive-ensemble": "`--shared` (models side by side), or `--window N` (in turns)",
    "--force-cpu": "`--devices cpu`, which keeps the roster",
    "--local-files-only": "`--offline`",
    "--refresh-cache": "`--refresh-models`",
    "--hf-cache-dir DIR": "`HF_HOME`, or `--models DIR` for what `interlock models bundle` wrote",
    "--summary-path FILE": "`--summary FILE`",
    "--monitor, EMBEDDER_METRICS_ENABLED": "the console; `--metrics PORT`",
    "--save-intermediate": "nothing: each batch is kept, and `--resume` goes on with it",
    "--disable-stage-report": "`--quiet`",
    "--backend onnx, --export-prefix": "nothing",
}
"""What flags of the predecessor are called here, in Markdown; `docs/predecessor.md` has it as a table."""
FLAGS: Mapping[str, str] = {
    "--picture": "the table and --json say the same",
    **{
        word.split()[0]: f"here it is {said}".replace("here it is nothing", "drop it").replace("`", "")
        for words, said in PREDECESSOR.items()
        for word in words.split(", ")
    },
}
"""Flags of earlier versions that were no settings, and those of the predecessor: what is said to who gives them."""
