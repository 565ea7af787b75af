"""Embed document collections with an ensemble of models under a hard memory ceiling.

    import interlock

    settings = interlock.Settings(roster={"all-minilm-l6": 0.4, "bge-m3": 0.6}, ceiling=8 << 30, qdrant="store")
    print(interlock.plan("chunks", settings))
    run = interlock.embed("chunks", settings)
    vectors = run.vectors("Handbook")
    hits = interlock.search(run, "how do I rotate the keys?")
    question = interlock.encode(run, ["how do I rotate the keys?"]).dense["fused"]

Everything is loaded when it is first used: importing the package loads no torch and no terminal library.
"""

from importlib import import_module
from typing import TYPE_CHECKING

try:
    from interlock.engine import __version__ as __version__
except ImportError:
    raise ImportError(
        "interlock's folders engine, console and widgets are symbolic links, which this checkout or archive does not "
        "have: check out again with `git config core.symlinks true`, or `pip install` a wheel of it"
    ) from None

if TYPE_CHECKING:
    from interlock.api import Plan as Plan
    from interlock.api import Settings as Settings
    from interlock.api import embed as embed
    from interlock.api import plan as plan
    from interlock.api import term_weights as term_weights
    from interlock.api import upload as upload
    from interlock.asking import Reranker as Reranker
    from interlock.asking import Searcher as Searcher
    from interlock.asking import encode as encode
    from interlock.asking import rerank as rerank
    from interlock.asking import search as search
    from interlock.engine.compute.parts.terms import SparseRows as SparseRows
    from interlock.engine.errors import ExitCode as ExitCode
    from interlock.engine.errors import InterlockError as InterlockError
    from interlock.engine.errors import Stopped as Stopped
    from interlock.engine.errors import UnavailableError as UnavailableError
    from interlock.engine.errors import UsageError as UsageError
    from interlock.engine.evaluation.comparing import RunComparison as RunComparison
    from interlock.engine.evaluation.report import Evaluation as Evaluation
    from interlock.engine.record import events as events
    from interlock.engine.record.events import Entry as Entry
    from interlock.engine.record.summary import Summary as Summary
    from interlock.engine.search.hits import Answer as Answer
    from interlock.engine.search.hits import EncodedTexts as EncodedTexts
    from interlock.engine.search.hits import Hit as Hit
    from interlock.engine.search.hits import RankedHit as RankedHit
    from interlock.engine.targets.upload_plan import UploadReport as UploadReport
    from interlock.judging import compare as compare
    from interlock.judging import evaluate as evaluate
    from interlock.recorded import DeliveredVectors as DeliveredVectors
    from interlock.recorded import RecordedRun as RecordedRun
    from interlock.recorded import open_run as open_run
    from interlock.recorded import watch as watch

if not TYPE_CHECKING:  # a type checker is to know exactly what there is
    _HOMES = {
        "interlock.api": ("Plan", "Settings", "embed", "events", "plan", "term_weights", "upload"),
        "interlock.asking": ("Reranker", "Searcher", "encode", "rerank", "search"),
        "interlock.engine.compute.parts.terms": ("SparseRows",),
        "interlock.engine.errors": ("ExitCode", "InterlockError", "Stopped", "UnavailableError", "UsageError"),
        "interlock.engine.evaluation.comparing": ("RunComparison",),
        "interlock.engine.evaluation.report": ("Evaluation",),
        "interlock.engine.record.events": ("Entry",),
        "interlock.engine.record.summary": ("Summary",),
        "interlock.engine.search.hits": ("Answer", "EncodedTexts", "Hit", "RankedHit"),
        "interlock.engine.targets.upload_plan": ("UploadReport",),
        "interlock.judging": ("compare", "evaluate"),
        "interlock.recorded": ("DeliveredVectors", "RecordedRun", "open_run", "watch"),
    }
    _HOME_OF = {name: module for module, names in _HOMES.items() for name in names}
    __all__ = sorted([*_HOME_OF, "__version__"])

    def __getattr__(name: str) -> object:
        if name not in _HOME_OF:
            raise AttributeError(f"module 'interlock' has no attribute {name!r}")
        found = globals()[name] = getattr(import_module(_HOME_OF[name]), name)
        return found

    def __dir__() -> list[str]:
        return __all__
