"""`interlock run` on all GPUs: it reads, tokenises, leases, tries out, computes and writes as it does for its users.

Idle is the share of the GPUs' time in which they compute no batch: before the first, and from there to the last.
"""

import json
from collections.abc import Iterator
from typing import Any

from acceptance.goals import Timed
from acceptance.inputs import lengths_of, texts_of
from acceptance.workbench import Bench

from interlock.engine.compute.controls import Controls
from interlock.engine.flows.run import Run
from interlock.engine.record import events as ev
from interlock.engine.record import journal
from interlock.engine.settings import load

MODEL = "XLM-R-large"


def whole(bench: Bench) -> Iterator[tuple[str, Any]]:
    """One run of a model over as many tokens as the scale says; watts are the mean of what the driver told."""
    texts = texts_of(bench, lengths_of(bench, "chunks", bench.scale.run_tokens))
    chunks = bench.place / "whole"
    chunks.mkdir()
    (chunks / "texts.jsonl").write_text("\n".join(json.dumps({"text": text}) for text in texts))
    devices = "cuda" if bench.real else "sim:2xT4"
    asked = {"roster": str(bench.card(MODEL).snapshot.path), "devices": devices, "out": str(bench.place / "runs")}
    run = Run(chunks, load(asked, {}), Controls())
    code = run.go()
    entries = [*journal.read(run.directory.journal)]
    batches = [(each.elapsed, each.body) for each in entries if isinstance(each.body, ev.BatchCommitted)]
    gpus = next(len(each.body.devices) for each in entries if isinstance(each.body, ev.DevicesFound))
    first, last = (limit(at for at, _ in batches) for limit in (min, max))
    first -= batches[0][1].seconds
    tokens, busy = (sum(getattr(batch, name) for _, batch in batches) for name in ("tokens", "seconds"))
    samples = [each.body.readings for each in entries if isinstance(each.body, ev.DeviceSampled)]
    watts = [each.power for each in samples if each and each.power is not None]
    yield "exit_code", int(code)
    yield (
        "run",
        {
            "gpus": gpus,
            "texts": len(texts),
            "tokens": tokens,
            "batches": len(batches),
            "seconds_before_the_first_batch": Timed(first),
            "tokens_per_s": Timed(tokens / last),
            "idle_before": Timed(first / last),
            "idle_between": Timed(1 - busy / (gpus * (last - first))),
            **({"watts_a_gpu": Timed(sum(watts) / len(watts))} if watts else {}),
        },
    )
