"""What scripts and notebooks judge by what people said: a roster or a run, and ranked lists of any program."""

from collections.abc import Iterable, Mapping, Sequence
from numbers import Integral
from os import PathLike
from typing import TYPE_CHECKING, Any, Literal, TypedDict, Unpack, overload

from interlock.api import DEFAULTS, Settings, check_kind, configured, names_in
from interlock.engine.errors import UsageError
from interlock.engine.parsers import path_of
from interlock.recorded import AnyPath, RecordedRun
from interlock.wording import python_wording

if TYPE_CHECKING:
    from interlock.engine.evaluation.comparing import RunComparison
    from interlock.engine.evaluation.report import Evaluation
    from interlock.engine.evaluation.strata import PooledEvaluation


class EvaluationOptions(TypedDict, total=False):
    """What an evaluation may be told beside its settings, for a type checker; `evaluate` says what each means."""

    rerank: str | Sequence[str]
    limit: int | None
    seed: int
    queries: AnyPath | None
    qrels: AnyPath | None
    collection: str | None
    split: str | None
    measures: str | Sequence[str]
    run_out: AnyPath | None
    missing: Literal["error", "drop", "count"]


@overload
def evaluate(  # type: ignore[overload-overlap]  # a text is one place, and no sequence of them
    data: RecordedRun | AnyPath, settings: Settings = DEFAULTS, **options: Unpack[EvaluationOptions]
) -> "Evaluation": ...


@overload
def evaluate(
    data: Sequence[RecordedRun | AnyPath], settings: Settings = DEFAULTS, **options: Unpack[EvaluationOptions]
) -> "PooledEvaluation": ...


def evaluate(
    data: RecordedRun | AnyPath | Sequence[RecordedRun | AnyPath],
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
) -> "Evaluation | PooledEvaluation":
    """Judge the roster of `settings` by the judged collection in `data` (a directory, or a name of ir_datasets behind
    `irds:`) or what a run has delivered of `collection`, by its `split` or by the files `queries` and `qrels`: the
    figures of `interlock eval --json`. Of several in a list `evaluations` has those of each, `differences` those of all
    together.

    `limit` judges by so many queries, which `seed` draws. `measures` are named as ir-measures does (`"nDCG@10 AP"`);
    what every way found is written into `run_out` as TREC runs; judgements of what is `missing` may be dropped, or its
    texts counted as not found. Texts are encoded once, on GPUs where there are some, and kept; progress goes to stderr.
    Raises UsageError for what cannot be judged by, naming file and line, UnavailableError for a model that is not
    there, and without ir-measures.
    """
    configuration = configured(settings)
    from interlock.console.writing import progress, say, telling
    from interlock.engine.flows import Listener
    from interlock.engine.flows.evaluate import EvaluationRequest, evaluate_sets
    from interlock.engine.flows.evaluate import evaluate as judge

    check_kind(Integral, "a whole number", limit=limit, seed=seed)
    names, wanted = names_in(rerank, "rerank"), names_in(measures, "measures")
    files = {"queries": queries, "qrels": qrels, "run_out": run_out}
    asked, judged, lists = (None if each is None else path_of(each, name) for name, each in files.items())
    every: Sequence[Any] = data if isinstance(data, Sequence) and not isinstance(data, str) else [data]
    if not every:
        raise UsageError("data: expected a collection, or several: name one")
    places = [each.path if isinstance(each, RecordedRun) else path_of(each, "data") for each in every]
    with python_wording(), progress() as done:
        told = names, limit, seed, asked, judged, collection, split, wanted, lists, missing
        requests = [EvaluationRequest(place, *told) for place in places]
        listener = Listener(telling, say, done)
        if every is data:
            return evaluate_sets(configuration, requests, listener)
        return judge(configuration, requests[0], listener)


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
    with python_wording():
        asked = None if queries is None else path_of(queries, "queries")
        return compare_files(files, path_of(qrels, "qrels"), asked, names_in(measures, "measures"), list(named))
