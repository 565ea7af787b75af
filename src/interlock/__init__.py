"""Embed document collections with an ensemble of models under a hard memory ceiling.

    import interlock

    settings = interlock.Settings(roster={"all-minilm-l6": 0.4, "bge-m3": 0.6}, ceiling=8 << 30, qdrant="store")
    print(interlock.plan("chunks", settings))
    run = interlock.embed("chunks", settings)
    vectors = run.vectors("Handbook")
    hits = interlock.search(run, "how do I rotate the keys?")

Everything is loaded when it is first used: importing the package loads no torch and no terminal library.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from interlock.engine import __version__
from interlock.engine.errors import ExitCode, InterlockError, Stopped, UnavailableError, UsageError

if TYPE_CHECKING:
    from interlock.api import Plan as Plan
    from interlock.api import Settings as Settings
    from interlock.api import embed as embed
    from interlock.api import plan as plan
    from interlock.api import search as search
    from interlock.engine.outlet.qdrant import Hit as Hit
    from interlock.engine.record import events as events
    from interlock.engine.record.events import Entry as Entry
    from interlock.engine.record.summary import Summary as Summary
    from interlock.recorded import DeliveredVectors as DeliveredVectors
    from interlock.recorded import RecordedRun as RecordedRun
    from interlock.recorded import open_run as open_run
    from interlock.recorded import watch as watch

__all__ = [
    "DeliveredVectors",
    "Entry",
    "ExitCode",
    "Hit",
    "InterlockError",
    "Plan",
    "RecordedRun",
    "Settings",
    "Stopped",
    "Summary",
    "UnavailableError",
    "UsageError",
    "__version__",
    "embed",
    "events",
    "open_run",
    "plan",
    "search",
    "watch",
]

_ELSEWHERE = {
    **dict.fromkeys(("DeliveredVectors", "RecordedRun", "open_run", "watch"), "interlock.recorded"),
    "Entry": "interlock.engine.record.events",
    "Hit": "interlock.engine.outlet.qdrant",
    "Summary": "interlock.engine.record.summary",
}

if not TYPE_CHECKING:  # a type checker is to know exactly what there is

    def __getattr__(name: str) -> object:
        if name not in __all__:
            raise AttributeError(f"module 'interlock' has no attribute {name!r}")
        found = globals()[name] = getattr(import_module(_ELSEWHERE.get(name, "interlock.api")), name)
        return found

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
