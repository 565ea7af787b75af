"""What `import interlock` offers a notebook or a script to do: plan, embed, search.

Each function does what a command does (`embed` what `run` does), with the same engine, and raises an InterlockError
where the command would end with an exit code other than 0; only `plan` returns what fits nowhere. None needs the main
thread, and none touches signals or event loops.
"""

import os
import sys
import tempfile
import time
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from interlock.console.sources.again import taken_up
from interlock.console.sources.session import Session, Work
from interlock.console.text.event_text import SEVERE, describe
from interlock.console.text.plan_text import plan_text
from interlock.engine.compute.controls import Controls
from interlock.engine.corpus.tokens import texts_in
from interlock.engine.crash import reportable
from interlock.engine.errors import ExitCode, InterlockError, Stopped, UsageError
from interlock.engine.parsers import path_of
from interlock.engine.record import events as events
from interlock.engine.settings import ON_SCREEN, Configuration, knobs, limit_threads, load
from interlock.engine.standing.runs import overview
from interlock.given import GivenSettings
from interlock.progress import follow
from interlock.recorded import AnyPath, RecordedRun, open_run
from interlock.texts import INPUTS, Texts, path_to, places_of
from interlock.wording import in_python, python_wording

if TYPE_CHECKING:
    from interlock.engine.compute.parts.terms import SparseRows
    from interlock.engine.flows.forecast import Forecast
    from interlock.engine.targets.upload_plan import UploadReport

SHOWN = ("auto", "lines", "none")


def _compute_alone() -> None:
    """Have a fork compute in one thread: it has not those of the process that it is of, and waits for them for ever."""
    if torch := sys.modules.get("torch"):
        torch.set_num_threads(1)


os.register_at_fork(after_in_child=_compute_alone)


@dataclass(frozen=True, kw_only=True)
class Settings(GivenSettings):
    """Set what a run takes, by value; None leaves a setting to the environment, the file or its default.

    Sizes are bytes, or a text such as "12GiB". `config` is a TOML file, `models` are rows for the registry in addition
    to those of its [models.*] tables: `{"mine": {"source": "hf:org/name", "query_prompt": "query: "}}`.
    """

    config: AnyPath | None = None
    models: Mapping[str, Mapping[str, object]] = field(default_factory=dict, hash=False)

    def __repr__(self) -> str:
        said = [
            f"{each.name}={value!r}" for each in fields(self) if (value := getattr(self, each.name)) not in (None, {})
        ]
        return f"Settings({', '.join(said)})"

    def configuration(self) -> Configuration:
        """Resolve every setting, with where it came from. Raises UsageError naming the one that cannot be used."""
        values = {item.name: getattr(self, item.name) for item in fields(GivenSettings)}
        given = {name: value for name, value in values.items() if value is not None}
        for name, value in given.items():  # one is empty when it is asked again, of the other each process has an order
            if isinstance(value, Iterator) or (name == "roster" and isinstance(value, set | frozenset)):
                raise UsageError(f"Settings.{name}: expected a list, got a {type(value).__name__}: pass a list of it")
        file = None if self.config in (None, "") else path_of(self.config, "Settings.config")
        if not isinstance(self.models, Mapping) or not all(isinstance(row, Mapping) for row in self.models.values()):
            raise UsageError(f"Settings.models: expected a table of rows by model, got {self.models!r:.100}")
        with python_wording():
            found = load(given, file=file, origin_of="python Settings.{}".format, rows=self.models)
        return replace(found, models={**found.models, **self.models})


Settings.__doc__ = f"{Settings.__doc__}\n" + "".join(
    f"    {item.name}: {item.metadata['help']} (default {item.metadata['default'] or 'none'})\n"
    for item in knobs()
    if item.name not in ON_SCREEN
)
DEFAULTS = Settings()


@dataclass(frozen=True, repr=False)
class Plan:
    """What a run would do; printed, it is what `interlock plan` prints."""

    forecast: "Forecast"
    """Its collections and passes, in numbers; a pass that fits nowhere says why in `refused`."""

    def __str__(self) -> str:
        return plan_text(self.forecast)

    __repr__ = __str__


def plan(chunks: Texts, settings: Settings = DEFAULTS, *, name: str = "texts") -> Plan:
    """Plan a run of `chunks`, as `embed` takes them: passes, batches, tokens, memory. Loads no weights, downloads
    nothing and writes nothing but caches.

    Raises UsageError for chunks or settings that no run can have, UnavailableError for a model or device that is not
    there. A pass that fits nowhere says so in its `refused`. Of the run's directory is looked at only whether one to be
    resumed is there, of a store which points it has.
    """
    configuration = configured(settings)
    from interlock.engine.flows.forecast import forecast

    with tempfile.TemporaryDirectory() as scratch, python_wording():
        return Plan(forecast(path_to(chunks, name, Path(scratch), configuration.settings.naming), configuration))


def embed(
    chunks: Texts,
    settings: Settings = DEFAULTS,
    *,
    progress: Literal["auto", "lines", "none"] = "auto",
    name: str = "texts",
) -> RecordedRun:
    """Embed `chunks`, show how far it is, and return the completed run.

    `chunks` is a directory or a file, or texts as they are in memory: a list or an iterator of strings, of records
    (`{"text": ..., "id": ..., ...}`) or of documents of LangChain, LlamaIndex, Haystack, Unstructured or Docling, or
    a table that gives itself as Arrow (pandas, polars, pyarrow); `text_field`, `id_field` and `title_field` of the
    settings name its columns. Such texts are one collection, called `name`, and are kept in `inputs` beside the runs,
    where the same texts lie once, and an export finds them.

    A call that is made again, as by a cell that runs again, goes on with the run that it began, or reuses its vectors
    in a new one where chunks or settings have changed since, and says so; `Settings(resume=False)` computes all anew.

    `progress` "auto" draws a table in a terminal or a notebook's cell and prints lines elsewhere. An interrupt (Ctrl-C,
    a notebook's stop button) ends the run after the batch in flight, in an event loop too; a second one returns at once
    and leaves that batch to end by itself. It reaches the main thread alone: what is called in another goes on.

    Raises Stopped for a run that was interrupted, which `Settings(run_id=..., resume=True)` continues, and another
    InterlockError for one that failed, is incomplete, or was refused; its `exit_code` is that of the command.
    """
    configuration = configured(settings)
    if progress not in SHOWN:
        raise UsageError(f"progress: expected one of {', '.join(SHOWN)}, got {progress!r:.100}")
    path = path_to(chunks, name, configuration.settings.out / INPUTS, configuration.settings.naming)
    configuration, before = taken_up(path, configuration)

    def make(controls: Controls) -> Work:
        from interlock.engine.flows.run import Run

        return Run(path, configuration, controls)

    session = Session(make)
    follow(session, progress, in_python(before) if progress != "none" else "")
    try:
        code = session.result()
    except Exception as error:
        failure = reportable(error, session.work.directory.path if session.work else None)
        with python_wording():
            raise failure from (None if failure is error else error)
    assert session.work, "a run that has a result was made"
    run = RecordedRun(session.work.directory.path.absolute())
    if code != ExitCode.COMPLETED:
        raise _ended(run, code, path)
    return run


def term_weights(
    model: str | Path,
    texts: Iterable[str],
    *,
    side: Literal["query", "document"] = "query",
    settings: Settings = DEFAULTS,
) -> "SparseRows":
    """Weigh the terms of `texts` by a sparse model, as queries or as documents, on the CPU; row i is that of text i.

    A run delivers the weights of chunks; those of a query, by dot product with them, rank the chunks. An inference-free
    model weighs queries by its table, without a network; any other runs its network under a lease, as it does for
    documents. The prompt of the side is put before each text. A row's terms are
    `[starts[i]:starts[i + 1]]` of `indices`, which are ids of the model's tokens, and `values`.

    Raises UsageError for a model that is not sparse and for texts that are no strings, UnavailableError for a model
    that is not there or whose queries are weighed in a way that is not known.
    """
    configuration = configured(settings)
    check_side(side)
    from interlock.engine.flows.models import term_rows

    with python_wording():
        return term_rows(configuration, str(model), texts_in(texts), side)


def upload(
    run: RecordedRun | AnyPath,
    url: str,
    *,
    collection: str | None = None,
    alias: str = "",
    indexes: Mapping[str, str] | None = None,
    quantisation: Literal["none", "int8", "binary"] = "none",
    vector_type: Literal["float32", "float16"] = "float32",
    shards: int | None = None,
    replicas: int | None = None,
    write_consistency: int | None = None,
    api_key_file: AnyPath | None = None,
    patience: float = 300.0,
    settle: float = 3600.0,
    grpc_port: int | None = None,
    prune: bool = False,
    incremental: bool = False,
    streams: int = 1,
    payload: Literal["nested", "flat"] | None = None,
) -> "list[UploadReport]":
    """Upload a run's collections to the Qdrant server at `url` as `interlock upload` does; what each came to.

    `indexes` are keys of the payload with their types (`{"metadata.lang": "keyword"}`). The key comes from
    QDRANT_API_KEY or from `api_key_file`. `grpc_port` is where points may go over gRPC (0: nowhere); without it that is
    6334 where the URL's own port is 6333. Progress goes to stderr. After an interruption the same call continues.
    `prune` removes points that earlier uploads put there and that are not of this run, once all is verified;
    `incremental` sends those points alone that differ there or lack, by a digest in each payload (`interlock_digest`).
    `streams` (1 to 16) requests with points are under way at once.
    `payload` says where points have metadata, if not as in the run. `shards`, `replicas` and `write_consistency` are
    for a collection that is made on a cluster of servers.

    Raises UsageError for a run, a server or a collection that does not fit, UnavailableError for a server that does not
    answer for `patience` seconds, InterlockError where what is there is not what was sent, and once all is uploaded
    where the run itself has gaps.
    """
    from interlock.console.writing import say
    from interlock.engine.flows import Listener
    from interlock.engine.flows import upload as flow
    from interlock.engine.targets.layout import parse_indexes, payload_of, quantisation_of, topology_of, vector_type_of

    check_kind(str, "a text", url=url, collection=collection, alias=alias)
    check_kind(Mapping, "a dict", indexes=indexes)
    path, key_file = open_run(run).path, None if api_key_file is None else path_of(api_key_file, "api_key_file")
    with python_wording():
        request = flow.UploadRequest(
            run=path,
            url=url,
            collection=collection,
            alias=alias,
            indexes=parse_indexes([f"{key}:{kind}" for key, kind in (indexes or {}).items()]),
            vector_type=vector_type_of(vector_type),
            quantisation=quantisation_of(quantisation),
            topology=topology_of(shards, replicas, write_consistency),
            key_file=key_file,
            patience=patience,
            settle=settle,
            grpc_port=grpc_port,
            prune=prune,
            incremental=bool(incremental),
            streams=streams,
            payload=payload_of(payload),
        )
        return list(flow.upload(request, Listener(say=lambda text: say(in_python(text)))))


def check_kind(kind: type, wanted: str, **given: object) -> None:
    """Raise UsageError for the first value, by its name, that is neither None nor of this kind, `wanted` in words."""
    for name, value in given.items():
        if value is not None and not isinstance(value, kind):
            raise UsageError(f"{name}: expected {wanted}, got {value!r:.100}: pass one")


def names_in(given: object, what: str) -> list[str]:
    """One name, or those of a list. Raises UsageError for what is neither."""
    return [given] if isinstance(given, str) else texts_in(given, what)


def check_side(side: object) -> None:
    """Raise UsageError for what is neither side of a search."""
    if side not in ("query", "document"):
        raise UsageError(f"side: expected 'query' or 'document', got {side!r:.100}")


def configured(settings: Settings) -> Configuration:
    """The settings of a call, once the libraries' threads are limited to them."""
    if not isinstance(settings, Settings):
        raise UsageError(f"settings: expected interlock.Settings, got {settings!r:.100}")
    configuration = settings.configuration()
    limit_threads(configuration)
    return configuration


def _ended(run: RecordedRun, code: ExitCode, texts: Path) -> InterlockError:
    """Why a run that came to work is not what its caller asked for."""
    summary, kind = run.summary, InterlockError
    reasons = [f"{each.name} {each.status}: {each.reason}" for each in summary.collections if each.reason]
    why = in_python(f"run {run.id} {summary.status}: {'; '.join(reasons) or summary.reason}")
    refused = [each.record for of in summary.collections for each in of.refusals if each.record is not None]
    allows = overview(run.path, time.time()).allows
    if allows and summary.status == "incomplete":
        given = f" ({places_of(texts, refused)})" if refused and texts.parent.parent.name == INPUTS else ""
        without = ", and its store has all else" if any(each.verification for each in summary.collections) else ""
        why = f"{why}{given}{without}: mend them, or use Settings(max_refused={allows!r})"
    if code == ExitCode.MITIGATED:
        why = f"run {run.id} {summary.reason or 'needed mitigations'}, a failure under Settings(strict=True)"
    if summary.status == "stopped":
        kind, why = Stopped, f"run {run.id} was stopped: continue it with Settings(run_id={run.id!r}, resume=True)"
    error = kind(f"{why}: open_run({str(run.path)!r}) has what was done")
    error.exit_code = code
    return error


def warned(device_kind: str) -> AbstractContextManager[events.Emit]:
    """Turn what an operator would be warned of into a RuntimeWarning."""

    def emit(event: events.AnyEvent) -> None:
        said = describe(event, device_kind)
        if said.printed and said.severity in SEVERE:
            warnings.warn(in_python(said.line or said.text), RuntimeWarning, stacklevel=2)

    return nullcontext(emit)
