"""The commands that ask the engine once and print the answer: no run, no screen.

Every function takes the parsed options and returns an exit code. Text from outside goes through `safe`.
"""

import argparse
import json
import shutil
import sys
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Literal

from interlock.console.cli import configuration, limit_threads
from interlock.console.text.columns import render
from interlock.engine.errors import ExitCode, UnavailableError, UsageError
from interlock.engine.models.registry import extended, find, label, members, vouched
from interlock.engine.record.words import human_bytes, safe, several
from interlock.engine.settings import Configuration, RunSettings, flag_of, knobs, shown

if TYPE_CHECKING:
    from interlock.engine.compute.parts.terms import SparseRows

Side = Literal["query", "document"]


def plan(options: argparse.Namespace) -> int:
    """Show what a run would do."""
    from interlock.console.text.plan_text import plan_text
    from interlock.engine.flows.forecast import forecast

    if options.chunks is None:
        return _survey(configuration(options))
    settings = configuration(options)
    limit_threads(settings)
    seen = forecast(options.chunks, settings)
    print(plan_text(seen))
    left = any(each.layout.card.kind == "dense" and not each.refused for each in seen.passes)
    refused = [each.refused for each in seen.passes if each.refused]
    if refused and not (settings.settings.allow_missing and left):
        raise UnavailableError("\n".join(refused))
    return ExitCode.COMPLETED


def _survey(settings: Configuration) -> int:
    """What each model of the registry would take."""
    from interlock.engine.flows.forecast import survey
    from interlock.engine.models.configurations import UNREACHED

    models, ceiling, kind = survey(settings)
    rows = []
    for each in models:
        needs = ["-"] * 4
        if law := each.law:
            a_thousand = law.activations(1024, min(1024, each.longest))
            batch = f"{each.batch_tokens:,} tokens: {human_bytes(each.batch_bytes)}"
            fits = f"{each.most_tokens:,}" + ", streamed or CPU" * (each.most_tokens < each.longest)
            needs = [human_bytes(law.weights), human_bytes(a_thousand), batch, fits]
        rows.append([each.key, each.dtype, f"{each.longest:,}", *needs, each.source])
    most = f"most in {human_bytes(ceiling)}"
    heads = ["model", "dtype", "longest text", "weights", "per 1,024 tokens", "a batch", most, "configuration"]
    print(render(heads, rows))
    print(f"\npredicted for {kind}: peak including weights; no weights were read and nothing was computed")
    if unreached := sum(each.source == UNREACHED for each in models):
        print(f"hub not reached: no configuration for {several(unreached, 'model')}", file=sys.stderr)
    return ExitCode.COMPLETED


def rerank(options: argparse.Namespace) -> int:
    """Score the pairs of a file, or plan that."""
    from interlock.console.reranking import Telemetry, check_telemetry, plan_file, score_file

    settings = configuration(options)
    limit_threads(settings)
    check_telemetry(options.telemetry, {"the file of pairs": options.pairs, "that of --out": options.scores})
    hear = partial(Telemetry, options.telemetry)
    if options.plan:
        print(plan_file(settings, options.pairs, options.model, hear))
    else:
        score_file(settings, options.pairs, options.model, options.scores, hear)
    return ExitCode.COMPLETED


def eval(options: argparse.Namespace) -> int:
    """Judge what a roster finds."""
    from interlock.console.evaluating import evaluate

    settings = configuration(options)
    limit_threads(settings)
    return evaluate(settings, options)


def term_rows(settings: Configuration, model: str, texts: Sequence[str], side: Side) -> "SparseRows":
    """Weigh the terms of `texts` by a sparse model on the CPU, as queries or as documents."""
    from interlock.engine.compute.weigh import weigh_documents, weigh_queries
    from interlock.engine.gpu.cpu import CpuDevice
    from interlock.engine.gpu.lease import Lessor
    from interlock.engine.models import assets
    from interlock.engine.models.card import read_card

    (spec,) = members(extended(settings.models), (), (model,))
    policy = assets.Policy(offline=settings.settings.offline, pickles=settings.settings.allow_pickle)
    card = read_card(spec, assets.resolve(spec, policy, lambda _: None), "cpu")
    lessor = Lessor([CpuDevice()], settings.settings.ceiling, settings.settings.host_ceiling)
    return (weigh_queries if side == "query" else weigh_documents)(card, texts, lessor)


def models(options: argparse.Namespace) -> int:
    """List the registry, or fetch models."""
    from interlock.console.text.event_text import line_of
    from interlock.engine.models import assets

    settings = configuration(options)
    if options.action == "bundle":
        from interlock.console.bundling import bundle

        return bundle(settings, options)
    registry = extended(settings.models)
    specs, allowed = find(registry, options.names or list(registry)), settings.settings.allow_pickle
    if options.action == "fetch":
        if not options.names:
            raise UsageError("models fetch: name the models to fetch")
        policy = assets.Policy(settings.settings.offline, settings.settings.refresh_models, allowed)
        for spec in specs:
            found = assets.resolve(spec, policy, lambda event: print(safe(line_of(event))))
            print(f"{safe(spec.key)}: {safe(found.path)}")
        return ExitCode.COMPLETED
    rows = []
    for spec in specs:
        here = assets.cached(vouched(spec, allowed))
        state = f"yes, {here[1].partition(':')[0]}" if here else "no"
        sources = ", ".join(label(source) for source in spec.sources)
        size = [str(spec.dim or "?"), str(spec.max_tokens or "?")]
        rows.append([spec.key, spec.kind, *size, spec.languages, spec.licence, state, sources])
    if options.json:
        names = ["model", "kind", "dim", "max_tokens", "languages", "licence", "cached", "sources"]
        print(json.dumps([dict(zip(names, row, strict=True)) for row in rows], indent=2))
    else:
        print(render(["model", "kind", "dim", "tokens", "languages", "licence", "on this machine", "sources"], rows))
    return ExitCode.COMPLETED


def config(options: argparse.Namespace) -> int:
    """Print every setting with its origin."""
    settings = configuration(options)
    rows = [
        [name, safe(json.dumps(shown(getattr(settings.settings, name)))), settings.origins[name], flag_of(name)]
        for name in (item.name for item in knobs())
    ]
    print(render(["setting", "value", "from", "flag"], rows))
    return ExitCode.COMPLETED


def doctor(options: argparse.Namespace) -> int:
    """Check this machine."""
    from interlock.console.doctor import examine

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

    from interlock.console.doctor import examine_gpus
    from interlock.console.text.checkup_text import check_text, report_text

    width = shutil.get_terminal_size().columns
    report = examine_gpus(settings, lambda check: None if as_json else print(check_text(check, width), flush=True))
    if as_json:
        print(msgspec.json.format(msgspec.json.encode(report), indent=2).decode())
    else:
        print(f"\n{report_text(report, width)}")
    failed = any(check.outcome == "failed" for check in report.checks)
    return ExitCode.FAILED if failed else ExitCode.COMPLETED


def schema(options: argparse.Namespace) -> int:
    """Print the JSON Schema of summary.json."""
    from interlock.engine.record.summary import schema_text

    print(schema_text(), end="")
    return ExitCode.COMPLETED
