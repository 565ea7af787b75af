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
        "use --bm25 LANGUAGE",
        lambda value, others: {"bm25": value} if parsers.is_on(others.get("bm25", True)) else {},
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
