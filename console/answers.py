"""The commands that ask the engine once and print the answer: no run, no screen.

Every function takes the parsed options and returns an exit code. Text from outside goes through `safe`.
"""

import argparse
import json
import shutil
import sys
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING

from interlock.console.cli import configuration
from interlock.console.writing import check_file, check_several, progress, say, tell, telling
from interlock.engine.errors import ExitCode, UnavailableError, UsageError
from interlock.engine.flows import Listener
from interlock.engine.models.registry import label
from interlock.engine.record import atomic
from interlock.engine.record.inputs import needed
from interlock.engine.record.rundir import RunDirectory, is_run
from interlock.engine.record.words import argument, command, few, human_bytes, safe, several, typed, unarmed
from interlock.engine.settings import Configuration, RunSettings, flag_of, knobs, shown
from interlock.engine.standing.runs import chunks_of
from interlock.widgets.formats import render

if TYPE_CHECKING:
    from interlock.engine.evaluation.comparing import RunComparison
    from interlock.engine.evaluation.report import Evaluation, MeasuredWeights
    from interlock.engine.evaluation.strata import PooledEvaluation
    from interlock.engine.flows.evaluate import EvaluationRequest


def chunk(options: argparse.Namespace) -> int:
    """Cut documents into a chunk file, and say what to do with it."""
    from interlock.engine.flows.models import chunk as flow

    out, settings = options.chunk_file, configuration(options)
    if not out.name.endswith(".jsonl"):
        raise UsageError(f"--out {out}: a run reads chunk files by their names: name it {out.stem}.jsonl")
    with progress("file") as told:
        made = flow(settings, options.documents, out, options.tokens, options.overlap, told)
    for refusal in made.refusals:
        print(safe(f"interlock: {refusal.file} refused: {refusal.reason}"), file=sys.stderr)
    if made.others:
        others = ", ".join(f"{count} {ending}" for ending, count in made.others.most_common(5))
        print(safe(f"interlock: left out by their endings: {others}"), file=sys.stderr)
    if made.empty:
        print(safe(f"interlock: without text: {few(made.empty, 5)}"), file=sys.stderr)
    print(safe(f"{several(made.chunks, 'chunk')} of {several(made.documents, 'document')} in {out}"))
    alone = [*out.parent.iterdir()] == [out]  # then its directory is the collection, and names it
    words = ["run", argument(out.parent if alone else out)]
    for name in ("config", "models", "roster", "sparse", "offline", "allow_pickle"):
        given = getattr(options, name, None)
        flag = flag_of(name) if given is not False else f"--no-{name}"
        value = argument(given) if isinstance(given, Path) else str(given)
        words += [] if given is None else [flag] if isinstance(given, bool) else [flag, value]
    words += [] if settings.settings.qdrant else ["--qdrant", "store"]
    print(f"next: {command(words)}")
    return ExitCode.FAILED if made.refusals else ExitCode.COMPLETED


def plan(options: argparse.Namespace) -> int:
    """Show what a run would do."""
    from interlock.console.text.plan_text import cluster_text, plan_text
    from interlock.engine.flows.forecast import forecast

    settings = configuration(options)
    with progress("record") as told:
        seen = forecast(options.chunks, settings, reached=lambda name, records: told(name, records, 0))
    print(plan_text(seen))
    if options.nodes:
        print(f"\n{cluster_text(seen.work, options.nodes)}")
    left = any(each.layout.card.kind == "dense" and not each.refused for each in seen.passes)
    refused = [each.refused for each in seen.passes if each.refused]
    if refused and not (settings.settings.allow_missing and left):
        raise UnavailableError("\n".join(refused))
    return ExitCode.COMPLETED


def models(options: argparse.Namespace) -> int:
    """List the registry, or fetch models, or bundle them."""
    from interlock.console.text.event_text import line_of
    from interlock.engine.flows import models as flow

    settings = configuration(options)
    if options.action == "bundle":
        return _bundle(settings, options)
    specs = flow.named(settings, options.names)
    if options.action == "fetch":
        if not options.names:
            raise UsageError("models fetch: name the models to fetch")
        for spec in specs:
            try:
                found = flow.fetch(spec, settings, lambda event: print(safe(line_of(event))))
            except UnavailableError as error:  # what was typed is no advice, but where a licence comes first
                said = str(error).splitlines()
                lines = [line for line in said if "HF_TOKEN" in str(error) or "interlock models fetch" not in line]
                there = [each.key for each in flow.named(settings, ()) if flow.here(each, settings).path]
                lines += [f"  or use one that is on this machine: {few(there)}"] * bool(there)
                raise UnavailableError("\n".join(lines)) from error
            print(f"{safe(spec.key)}: {safe(found.path)}")
        return ExitCode.COMPLETED
    rows = []
    for spec in specs:
        here = flow.here(spec, settings)
        absent = f"refused: use {spec.instead.partition(',')[0]}" if spec.instead else "no"
        state = f"yes, {here.source.partition(':')[0]}" if here.path else absent
        sources = ", ".join(label(source) for source in spec.sources)
        size = [str(spec.dim or "?"), str(spec.max_tokens or "?")]
        pooling, *prompts = here.told or ("?", "?", "?") if spec.kind == "dense" else ("", "", "")
        sides = [side for side, prompt in zip(("documents", "queries"), prompts, strict=True) if prompt]
        told = ", ".join(sides) or ("none" if here.told else pooling)
        said = [pooling, *prompts] if options.json else [pooling, told]
        rows.append([spec.key, spec.kind, *size, *said, spec.languages, spec.licence, state, sources])
    if options.json:
        said = ["pooling", "document_prompt", "query_prompt"]
        names = ["model", "kind", "dim", "max_tokens", *said, "languages", "licence", "cached", "sources"]
        print(json.dumps([dict(zip(names, row, strict=True)) for row in rows], indent=2))
    else:
        heads = ["model", "kind", "dim", "tokens", "pooling", "prompts", "languages", "licence", "on this machine"]
        print(render([*heads, "sources"], rows))
    return ExitCode.COMPLETED


def _bundle(settings: Configuration, options: argparse.Namespace) -> int:
    """Write the bundle that the options ask for, or show what it would take."""
    from interlock.console.text.event_text import line_of
    from interlock.engine.flows import models as flow

    if not options.names:
        raise UsageError("models bundle: name the directory to write, as in `interlock models bundle DIR`")
    directory, specs = Path(options.names[0]), flow.bundled(settings, options.names[1:])
    flow.check_bundle(directory)
    if options.plan:
        found = [flow.here(spec, settings, measured=True) for spec in specs]
        rows = [
            [each.spec.key, label(each.source), str(each.files), human_bytes(each.bytes)]
            if each.files
            else [each.spec.key, label(each.spec.sources[0]), "", "to be fetched or unpacked"]
            for each in found
        ]
        lacking = sum(not each.files for each in found)
        more = f", and {several(lacking, 'model')} whose size is not known yet" if lacking else ""
        print(render(["model", "source", "files", "bytes"], rows))
        print(f"{human_bytes(sum(each.bytes for each in found))} on this machine{more}")
        return ExitCode.COMPLETED

    def copied(name: str, done: int, total: int) -> None:
        tell(safe(f"copied {name}: {human_bytes(done)} of {human_bytes(total)}"), error=True)

    made = flow.bundle(directory, specs, settings, lambda event: tell(safe(line_of(event)), error=True), copied)
    total = human_bytes(sum(model.bytes for model in made.models))
    keys = ", ".join(model.key for model in made.models)
    tell(safe(f"{directory}: {several(len(made.models), 'model')} ({keys}), {total}"))
    return ExitCode.COMPLETED


def config(options: argparse.Namespace) -> int:
    """Print every setting with its origin. Raises UsageError then for what no run can have, whatever its chunks."""
    from interlock.engine.flows.plan import named
    from interlock.engine.gpu.devices import choose

    settings = configuration(options)
    rows = [
        [name, safe(json.dumps(shown(getattr(settings.settings, name)))), settings.origins[name], flag_of(name)]
        for name in (item.name for item in knobs())
    ]
    print(render(["setting", "value", "from", "flag"], rows))
    for note in settings.notes:
        print(f"note: {safe(note)}")
    named(settings)
    if settings.settings.faults:
        choose(settings.settings.devices, settings.settings.faults)
    return ExitCode.COMPLETED


def doctor(options: argparse.Namespace) -> int:
    """Check this machine."""
    from interlock.engine.flows.doctor import examine

    if options.gpu:
        return _check_gpus(configuration(options).settings, as_json=options.json)
    checks = examine(configuration(options))
    if options.json:
        print(json.dumps([{"check": name, "good": good, "found": found} for good, name, found in checks], indent=2))
        return ExitCode.COMPLETED if all(good for good, _, _ in checks) else ExitCode.UNAVAILABLE
    print(render(["", "check", "found"], [["ok" if good else "!!", name, safe(found)] for good, name, found in checks]))
    return ExitCode.COMPLETED if all(good for good, _, _ in checks) else ExitCode.UNAVAILABLE


def _check_gpus(settings: RunSettings, *, as_json: bool) -> int:
    """Try out each GPU, and print each check as soon as it is done, or all as one JSON object."""
    import msgspec

    from interlock.console.text.checkup_text import check_text, report_text
    from interlock.engine.flows.doctor import examine_gpus

    width = shutil.get_terminal_size().columns
    report = examine_gpus(settings, lambda check: None if as_json else print(check_text(check, width), flush=True))
    if as_json:
        print(unarmed(msgspec.json.format(msgspec.json.encode(report), indent=2), ascii=True).decode())
    else:
        print(f"\n{report_text(report, width)}")
    failed = any(check.outcome == "failed" for check in report.checks)
    return ExitCode.FAILED if failed else ExitCode.COMPLETED


def schema(options: argparse.Namespace) -> int:
    """Print the JSON Schema of summary.json."""
    from interlock.engine.record.summary import schema_text

    print(schema_text(), end="")
    return ExitCode.COMPLETED


def eval(options: argparse.Namespace) -> int:
    """Judge a roster by one collection or several, or plan that."""
    from interlock.console.text.evaluation_text import amounts_text, evaluation_text, pooled_text
    from interlock.engine.flows import evaluate as flow

    settings = configuration(options)
    given = {each.name: getattr(options, each.name) for each in fields(flow.EvaluationRequest)}
    request, *others = (flow.EvaluationRequest(**{**given, "data": data}) for data in options.data)
    check_file("--calibrate", options.calibrate, begin=b"roster = ")
    _check_figures(options, {"--calibrate": options.calibrate, "--run-out": options.run_out})
    if options.calibrate and others:
        raise UsageError("--calibrate writes the weights of one collection: name one")
    if options.calibrate and options.config:
        raise UsageError(
            f"--calibrate writes a file for --config, which takes one: drop it, and set roster in {options.config}"
        )
    with progress() as done:
        listener = Listener(telling, say, done)
        if options.plan:
            if others:
                flow.check_sets(settings, (request, *others))
            for each in (request, *others):
                print(*[f"{each.data}:"] * bool(others), amounts_text(flow.amounts(settings, each, listener)), sep="\n")
            return ExitCode.COMPLETED
        together = flow.evaluate_sets(settings, (request, *others), listener) if others else None
        found, *more = together.evaluations if together else [flow.evaluate(settings, request, listener)]
    _write_figures(options, together or found)
    whole = not (sys.stdout and sys.stdout.isatty())
    width = shutil.get_terminal_size().columns
    texts = [evaluation_text(each, whole=whole, worst=options.worst, width=width) for each in (found, *more)]
    tell("\n\n\n".join([*texts, pooled_text(together)] if together else texts))
    if options.calibrate:
        atomic.write_bytes(options.calibrate, flow.weights_file(found, request.data))
        print()
        if found.weights and is_run(request.data):
            print(_calibrated(request, found.weights))
        print(_taken(request.data if is_run(request.data) else None, options.calibrate))
    return ExitCode.COMPLETED


def compare(options: argparse.Namespace) -> int:
    """Compare runs of TREC by judgements, or pool what was written of several sets."""
    from interlock.console.text.evaluation_text import comparison_text, pooled_text
    from interlock.engine.evaluation.comparing import compare_files
    from interlock.engine.evaluation.report import dumps
    from interlock.engine.evaluation.strata import pool_files

    _check_figures(options, {})
    if options.qrels:
        found = compare_files(options.runs, options.qrels, options.queries, options.measures, baseline=options.baseline)
        _write_figures(options, found)
        tell(comparison_text(found))
        return ExitCode.COMPLETED
    if options.queries or options.measures or options.tsv or options.baseline:
        raise UsageError(
            "--queries, --measures, --tsv and --baseline are of TREC runs, not of several sets: pass --qrels too, or "
            "drop them"
        )
    pooled = pool_files(options.runs)
    if options.json:
        atomic.write_bytes(options.json, dumps(pooled))
    tell(pooled_text(pooled))
    return ExitCode.COMPLETED


def _check_figures(options: argparse.Namespace, others: Mapping[str, Path | None]) -> None:
    """Raise UsageError for files of figures that hold something else, or are one, or one of the `others`."""
    check_file("--json", options.json, begin=b'{\n "')
    check_file("--tsv", options.tsv, begin=b"run\tmeasure\tquery\tvalue")
    check_several({"--json": options.json, "--tsv": options.tsv, **others})


def _write_figures(options: argparse.Namespace, found: "Evaluation | RunComparison | PooledEvaluation") -> None:
    from interlock.engine.evaluation.report import dumps
    from interlock.engine.evaluation.strata import values_of

    if options.json:
        atomic.write_bytes(options.json, dumps(found))
    if options.tsv:
        atomic.write_bytes(options.tsv, values_of(found).encode())


def _taken(data: Path | None, file: Path) -> str:
    """Say how weights that were written are taken: by a run of the chunks of that which was judged, if it was one."""
    if data is None:
        return f"take them with --config {typed(file)}"
    chunks = chunks_of(data, "CHUNKS", {})
    begun = RunDirectory(data).begun()
    config = {name: said for name, said in begun.config.items() if name != "config"} if begun else {}
    words = ["run", argument(chunks), *needed(data, config), "--config", argument(file), "--out", argument(data.parent)]
    return f"next: {command(words)}"


def _calibrated(request: "EvaluationRequest", weights: "MeasuredWeights") -> str:
    """Give the store of a judged run these weights; what came of it."""
    from interlock.engine.flows.evaluate import calibrate_store

    done = calibrate_store(request, weights)
    if isinstance(done, str):
        return safe(done)
    store, chosen = done
    now, before = (
        ", ".join(f"{name} {weight:.2g}" for name, weight in each.items()) for each in (chosen.weights, chosen.before)
    )
    return safe(f"{store}: questions count {now} from now on, before {before} (--weights says otherwise)", 1000)
