"""What scripts and notebooks judge by what people said: a roster or a run, and ranked lists of any program."""

from collections.abc import Iterable, Mapping, Sequence
from numbers import Integral
from os import PathLike
from typing import TYPE_CHECKING, Literal

from interlock.api import DEFAULTS, Settings, check_kind, configured, names_in
from interlock.engine.errors import UsageError
from interlock.engine.parsers import path_of
from interlock.recorded import AnyPath, RecordedRun
from interlock.wording import python_wording

if TYPE_CHECKING:
    from interlock.engine.evaluation.comparing import RunComparison
    from interlock.engine.evaluation.report import Evaluation


def evaluate(
    data: RecordedRun | AnyPath,
    settings: Settings = DEFAULTS,
    *,
    rerank: str | Sequence[str] = (),
    limit: int | None = None,
    seed: int = 0,
    queries: AnyPath | None = None,
    qrels: AnyPath | None = None,
    collection: str | None = None,
    split: str | None = None,
    measures: str | Sequence[str] = (),
    run_out: AnyPath | None = None,
    missing: Literal["error", "drop", "count"] = "error",
) -> "Evaluation":
    """Judge the roster of `settings` by the judged collection in `data` (a directory, or a name of ir_datasets behind
    `irds:`) or what a run has delivered of `collection`, by its `split` or by the files `queries` and `qrels`: the
    figures of `interlock eval --json`.

    `limit` judges by so many queries, which `seed` draws. `measures` are named as ir-measures does (`"nDCG@10 AP"`);
    what every way found is written into `run_out` as TREC runs; judgements of what is `missing` may be dropped, or its
    texts counted as not found. Texts are encoded once, on GPUs where there are some, and kept; progress goes to stderr.
    Raises UsageError for what cannot be judged by, naming file and line, UnavailableError for a model that is not
    there, and without ir-measures.
    """
    configuration = configured(settings)
    from interlock.console.writing import progress, say, telling
    from interlock.engine.flows import Listener
    from interlock.engine.flows.evaluate import EvaluationRequest
    from interlock.engine.flows.evaluate import evaluate as judge

    check_kind(Integral, "a whole number", limit=limit, seed=seed)
    names = names_in(rerank, "rerank")
    place = data.path if isinstance(data, RecordedRun) else path_of(data, "data")
    wanted = measures.split() if isinstance(measures, str) else names_in(measures, "measures")
    files = {"queries": queries, "qrels": qrels, "run_out": run_out}
    asked, judged, lists = (None if each is None else path_of(each, name) for name, each in files.items())
    with python_wording(), progress() as done:
        request = EvaluationRequest(place, names, limit, seed, asked, judged, collection, split, wanted, lists, missing)
        return judge(configuration, request, Listener(telling, say, done))


def compare(
    runs: Sequence[AnyPath] | Mapping[str, AnyPath],
    qrels: AnyPath,
    *,
    queries: AnyPath | None = None,
    measures: str | Sequence[str] = (),
) -> "RunComparison":
    """Compare TREC runs, by name or by their files' names, each with the first, by the judgements in `qrels`: the
    figures of `interlock compare --json`, nDCG@10, R@100 and RR@10 unless `measures` are named.

    `queries` has the texts of those that differ most. A judged query that a run does not answer counts 0. Raises
    UsageError for a file that cannot be used, naming its line, UnavailableError without ir-measures.
    """
    from interlock.engine.evaluation.comparing import compare_files

    if isinstance(runs, str | PathLike) or not isinstance(runs, Iterable):
        raise UsageError("runs: expected several files: give a list of them, or a name for each")
    named = runs if isinstance(runs, Mapping) else {}
    files = [path_of(each, "runs") for each in (named.values() if named else runs)]
    wanted = measures.split() if isinstance(measures, str) else names_in(measures, "measures")
    with python_wording():
        asked = None if queries is None else path_of(queries, "queries")
        return compare_files(files, path_of(qrels, "qrels"), asked, wanted, list(named))
