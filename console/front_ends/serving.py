"""`interlock serve`: opens a collection with its models, and the door to it."""

import argparse
import sys
from functools import partial

from interlock.console.cli import configuration
from interlock.console.searching import place_of
from interlock.console.writing import Telemetry, check_telemetry, warn
from interlock.engine.errors import ExitCode, UnavailableError
from interlock.engine.record.words import safe
from interlock.engine.settings import limit_threads

KEY = "INTERLOCK_SERVE_KEY"


def serve(options: argparse.Namespace) -> int:
    """Answer other programs until a signal ends it."""
    try:
        from interlock.console.front_ends import connections, http
    except ModuleNotFoundError as missing:
        raise UnavailableError(f"`serve` needs {missing.name}: install interlock[serve]") from None
    from interlock.engine.flows.rerank import rerank_of
    from interlock.engine.flows.search import Service

    admission = connections.Admission.of(f"--host {options.host}", options.host, KEY)
    settings = configuration(options)
    limit_threads(settings)
    rerank = rerank_of(settings, options.rerank or (), options.rerank_share, options.rerank_depth)
    check_telemetry(options.telemetry, {})
    events = partial(Telemetry, options.telemetry)
    with (
        connections.listening(options.host, options.port) as at,
        Service(settings, place_of(options), options.collection, rerank, events) as service,
    ):
        warn(service.manifest.gap)
        named = f"[{options.host}]" if ":" in options.host else options.host
        dims = ", ".join(f"{name} ({dim:,})" for name, dim in service.dims.items())
        told = f"{service.manifest.collection}: {dims} on {', '.join(service.devices)}"
        door, url = http.Door(service, options.waiting, admission), f"http://{named}:{at.getsockname()[1]}"
        print(safe(told))
        print(f"{url}/v1/embeddings" + (f", {url}/search" if service.searches else "; no store: embeddings alone"))
        asked = f"with the key of {KEY}" if admission.key else f"no key asked for (set {KEY} to one)"
        print(f"{asked}; base URL of OpenAI's clients {url}/v1; ctrl+c ends it", flush=True)
        try:
            connections.server_of(door.app).run(sockets=[at])
        finally:
            door.close()
    print("interlock: ended", file=sys.stderr)
    return ExitCode.COMPLETED
