"""What each command takes: a function adds the arguments of its name's command, and its docstring is the help."""

import argparse
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any, TypeVar

from interlock.engine import parsers
from interlock.engine.knobs import GROUPS, ScreenSettings
from interlock.engine.record.words import given
from interlock.engine.settings import flag_of, knobs
from interlock.engine.targets.connection import MOST_STREAMS

QUESTION = "how do I make a date from an ISO 8601 string?"
"""What the demo searches for; its sample holds the answer on every Python."""
LIMITS = ("ceiling", "host_ceiling", "margin")
RERANKING = ("offline", "allow_pickle", "devices", "cpu_fallback", "threads", *LIMITS, "faults")
"""The settings that count for the commands that score pairs."""
ASKED = ("pause", "resume", "stop", "exclusive", "fallback", "status")
WEB = "127.0.0.1:8765"
T = TypeVar("T")


def chunk(command: argparse.ArgumentParser) -> None:
    """Cut the documents in DIR into chunks that every model of --roster reads whole, and write them to a chunk file for
    `interlock run`: Markdown at its headings and paragraphs, texts and code at theirs; HTML, PDF and Office files where
    markitdown is installed. Each chunk keeps its file, its headings and where it stands.
    """
    command.add_argument("documents", type=PATH, metavar="DIR", help="directory of documents, or one")
    text = "chunk file to write, whole or not at all: chunks/Name/pages.jsonl"
    command.add_argument("--out", type=PATH, metavar="FILE.jsonl", required=True, dest="chunk_file", help=text)
    text = "most tokens of a chunk, by the tokenizer of each model, with prompt and special tokens (default 256)"
    command.add_argument("--tokens", type=told(parsers.at_least_one), default=256, metavar="N", help=text)
    text = "tokens that a chunk may share with the one before (default 0)"
    command.add_argument("--overlap", type=told(parsers.count), default=0, metavar="N", help=text)
    settings(command, "roster", "sparse", "offline", "allow_pickle")


def run(command: argparse.ArgumentParser) -> None:
    """Embed every collection under CHUNKS (<root>/<Collection>/**/*_chunks.json or *.jsonl; tables), or one file, with
    every model of the roster, one model at a time, and deliver vectors, points and a summary into a run directory.
    """
    text = "directory of collections, or one file; or a URL: s3://, gs://, az://"
    command.add_argument("chunks", type=PLACE, metavar="CHUNKS", help=text)
    _front_end(command)
    _to_server(command)
    settings(command)


def plan(command: argparse.ArgumentParser) -> None:
    """Read and tokenise CHUNKS, then show passes, batches, tokens, truncation and predicted memory. Loads no
    weights and writes nothing.
    """
    text = "directory of collections, or one file; or a URL: s3://, gs://, az://"
    command.add_argument("chunks", type=PLACE, metavar="CHUNKS", help=text)
    text = "also price a cluster of N machines like this one: time, what limits it, head, network"
    command.add_argument("--nodes", type=told(parsers.some_counts), metavar="N,...", help=text)
    settings(command)


def demo(command: argparse.ArgumentParser) -> None:
    """Embed the docstrings of the installed standard library with the demo roster into an embedded Qdrant
    store, then search it once. A real run on the GPUs of this machine, else on simulated ones; the demo models must be
    installed or cached (`make install`).
    """
    command.add_argument("--all", action="store_true", help="use every docstring (thousands), not a few hundred")
    command.add_argument("--query", default=QUESTION, help="search query at the end")
    text = "rehearse every failure: the real engine on simulated GPUs, models without weights"
    command.add_argument("--scripted", action="store_true", help=text)
    text = "with --scripted: N times as fast, above 0 (default 1)"
    command.add_argument("--speed", type=told(parsers.decimal), default=1.0, metavar="N", help=text)
    _front_end(command)
    settings(command)


def runs(command: argparse.ArgumentParser) -> None:
    """List every run under --out, the latest first: how it stands and why, progress, ETA, what to look at, devices,
    age, models, rows, its size on disk, and the process that has it in use. On a terminal a screen opens in which a run
    is watched, viewed, resumed, compared or deleted. With --shards: whether those of a run (`run --shard K/N`) are all
    there, complete and of the same texts and settings, and whether their counts add up; exit code 1 where not.
    """
    text = "with --shards: run directory, or a directory of runs (default: --out)"
    command.add_argument("runs", type=PATH, nargs="*", metavar="RUN_DIR", help=text)
    command.add_argument("--shards", action="store_true", help="check that the shards of a run are all there")
    command.add_argument("--plain", action="store_true", help="print a table to stdout instead")
    command.add_argument("--json", action="store_true", help="machine-readable")
    settings(command, "out", *(item.name for item in fields(ScreenSettings)))


def watch(command: argparse.ArgumentParser) -> None:
    """Show the console of a run: follow and steer one that is running in another process (--readonly: only follow), or
    show or replay one that ended. Of a directory of runs, of several runs, or of those under --out where none is named,
    a line each: state, progress, ETA, issues, devices; those that need somebody stand first, what ended more than a day
    ago last. Enter opens one, escape comes back. Without a terminal these lines are printed, and of one run what
    happens until it is over. Locks nothing.
    """
    text = "run directory, or a directory of runs (default: --out)"
    command.add_argument("runs", type=PATH, nargs="*", metavar="RUN_DIR", help=text)
    text = "replay at N times the speed, above 0 (without: show its current state)"
    command.add_argument("--speed", type=told(parsers.decimal), metavar="N", help=text)
    command.add_argument("--readonly", action="store_true", help="watch only, change nothing")
    text = f"show it in a browser, at an address with a token (default {WEB}: this machine alone)"
    command.add_argument("--web", nargs="?", const=WEB, metavar="[HOST:]PORT", help=text)
    settings(command, "out", *(item.name for item in fields(ScreenSettings)))


def ctl(command: argparse.ArgumentParser) -> None:
    """Ask something of a run that is running in another process of yours, over the control socket in its directory, and
    wait for its answer: at the next batch, or for `stop` when the run has stopped. `status` says how a run stands,
    running or not.
    """
    command.add_argument("run", type=PATH, metavar="RUN_DIR", help="run directory")
    command.add_argument("action", choices=ASKED, help="what to ask for")
    command.add_argument("value", nargs="?", choices=["on", "off"], help="for exclusive and fallback")
    command.add_argument("--no-wait", action="store_true", help="do not wait until it is acknowledged")
    text = "seconds to wait (default 60)"
    command.add_argument("--timeout", type=told(parsers.seconds), default=60.0, metavar="S", help=text)
    command.add_argument("--json", action="store_true", help="machine-readable")


def view(command: argparse.ArgumentParser) -> None:
    """Show the summary of a run as a tree and tables; with two, their differences. Without a terminal, or with
    --plain, print text to stdout.
    """
    command.add_argument("file", type=PATH, metavar="FILE", help="summary.json or run directory")
    command.add_argument("other", type=PATH, nargs="?", metavar="FILE", help="second summary to compare with")
    command.add_argument("--plain", action="store_true", help="print text to stdout instead")
    settings(command, "theme", "ascii", "slow_link")


def upload(command: argparse.ArgumentParser) -> None:
    """Upload what RUN_DIR exported to a Qdrant server: every chunk as one point with all its vectors, by ids that stay,
    so that nothing is there twice. Collections are made if they are not there, with an index that is built once at the
    end; one of another configuration is refused, and nothing on the server is deleted without --prune. Then every id is
    counted and a sample is read back and compared. The key comes from QDRANT_API_KEY or --api-key-file.
    """
    command.add_argument("run", type=PATH, metavar="RUN_DIR", help="run directory, with its parquet exports")
    text = "the server: http://HOST:PORT or https://HOST:PORT (port 6333 unless it names one)"
    command.add_argument("--qdrant", dest="server", metavar="URL", required=True, help=text)
    command.add_argument("--collection", type=NAME, metavar="NAME", help="only this collection of the run")
    text = "upload beside what NAME means, into NAME-<generation>, and switch the alias once that is verified"
    command.add_argument("--alias", type=NAME, metavar="NAME", help=text)
    text = (
        "index this key of the payload before points come, as in metadata.lang:keyword (tenant, integer, float, bool, "
        "datetime, uuid, text, geo); may be repeated"
    )
    command.add_argument("--index", action="append", metavar="KEY:TYPE", help=text)
    text = "also keep smaller copies of the dense vectors in memory: none (default), int8 or binary"
    command.add_argument("--quantisation", metavar="KIND", default="none", help=text)
    text = "numbers of the dense vectors on disk: float32 (default) or float16"
    command.add_argument("--vector-type", metavar="TYPE", default="float32", help=text)
    text = "of a cluster: shards of a collection that is made (default: as the server has it)"
    command.add_argument("--shards", type=told(parsers.at_least_one), metavar="N", help=text)
    text = "of a cluster: servers that have each shard"
    command.add_argument("--replicas", type=told(parsers.at_least_one), metavar="N", help=text)
    text = "of a cluster: replicas that must have written a point before it counts"
    command.add_argument("--write-consistency", type=told(parsers.at_least_one), metavar="N", help=text)
    text = "where points have metadata: nested (metadata.lang) or flat (lang); default: as in the run"
    command.add_argument("--payload", metavar="FORM", help=text)
    server_flags(command, 300.0)
    text = "seconds to wait for its indexes at the end (default 3600)"
    command.add_argument("--settle", type=told(parsers.seconds), default=3600.0, metavar="S", help=text)
    text = "where points may go over gRPC; 0: nowhere (default 6334 if the URL's port is 6333; else 0)"
    command.add_argument("--grpc-port", type=told(parsers.port), metavar="PORT", help=text)
    text = "once all is verified, remove points that earlier uploads put there and that are not of this run"
    command.add_argument("--prune", action="store_true", help=text)
    _to_server(command)
    _metrics(command)
    log(command)
    text = (
        "show points, bytes, requests and the collection's configuration, and ask no server; with --prune ask it how "
        "many points would be removed, with --incremental how many differ"
    )
    command.add_argument("--dry-run", action="store_true", help=text)
    command.add_argument("--json", action="store_true", help="print one JSON array: a report of each collection")


def export(command: argparse.ArgumentParser) -> None:
    """Deliver what a finished run has computed once more, from its own vectors: into files below DIR, into an embedded
    store, or both. Loads no model and writes nothing into the run. (--resume of `run` goes on with a run that is not
    finished; it is not for this.) Everything is as the run was set, unless it is set here.
    """
    command.add_argument("run", type=PATH, metavar="RUN_DIR", help="run directory")
    text = "write files into a directory for each collection there, over none but those of earlier exports; a URL too"
    command.add_argument("--to", type=PLACE, metavar="DIR|URL", help=text)
    command.add_argument("--to-store", type=PATH, metavar="DIR", help="write into the embedded Qdrant store there")
    text = (
        "numbers of the fused and the models' own vectors in files (default float32); what narrower ones lose is told"
    )
    command.add_argument("--vectors", choices=("float32", "float16", "int8"), default="float32", help=text)
    command.add_argument("--collection", type=NAME, metavar="NAME", help="only this collection (default: all)")
    text = "where the run's chunks are now (default: where they were)"
    command.add_argument("--chunks", type=PLACE, metavar="DIR|URL", help=text)
    settings(command, "keep", "project", "quantise", "compact", "payload", "export", "prune", "bm25")


def prune(command: argparse.ArgumentParser) -> None:
    """Remove the points of STORE that the last whole delivery found to be of chunks no longer in the corpus, and tell
    how many they are. A run with --prune does so at its end."""
    command.add_argument("store", type=PATH, metavar="STORE", help="--qdrant directory of a run")
    command.add_argument("--collection", type=NAME, metavar="NAME", help="only this collection (default: all)")
    command.add_argument("--dry-run", action="store_true", help="tell how many there are, and remove nothing")


def rerank(command: argparse.ArgumentParser) -> None:
    """Score each line of PAIRS ({"query": ..., "text": ...} or {"query": ..., "texts": [...]}) with a cross-encoder, on
    a GPU if it fits there, else on the CPU; print a JSON object for each line, in their order: {"score": ...} or
    {"scores": [...]}.
    """
    command.add_argument("pairs", type=PATH, metavar="PAIRS.jsonl", help="file of pairs")
    text = "cross-encoders: the first that can be had, the others in its place"
    command.add_argument("--model", type=told(parsers.some_names), metavar="MODEL,...", required=True, help=text)
    text = "write the scores to this file, whole or not at all"
    command.add_argument("--out", type=PATH, metavar="SCORES.jsonl", dest="scores", help=text)
    log(command)
    settings(command, *RERANKING)


def log(command: argparse._ActionsContainer, text: str = "") -> None:
    text += "each line of stderr a JSON object: time, level, event, message, fields"
    command.add_argument("--log-json", action="store_true", help=text)


def models(command: argparse.ArgumentParser) -> None:
    """List every model of the registry with its sources and whether its files are on this machine. `models fetch`
    downloads the named models into the Hugging Face cache. `models bundle DIR` copies those that are named, or those of
    the roster, into a directory with a manifest of every file, which --models takes on a machine without a network.
    """
    actions, text = ["list", "fetch", "bundle"], "list (default), fetch or bundle"
    command.add_argument("action", nargs="?", choices=actions, default="list", help=text)
    text = "only these models, by key, org/name of the hub or directory; for bundle the directory first"
    command.add_argument("names", nargs="*", type=NAME, metavar="MODEL", help=text)
    command.add_argument("--plan", action="store_true", help="for bundle: show what it takes, and write nothing")
    command.add_argument("--json", action="store_true", help="machine-readable")
    settings(command, "roster", "sparse", "token_vectors", "offline", "refresh_models", "allow_pickle")


def config(command: argparse.ArgumentParser) -> None:
    """Print every setting and its origin."""
    command.add_argument("action", choices=["show"], help="print the settings")
    settings(command)


def doctor(command: argparse.ArgumentParser) -> None:
    """Check versions, devices, memory, disk, caches and the demo models. Exits with 5 if any check fails. With --gpu:
    try each GPU out with small models made in place, in every precision and with every kernel that a run may come to;
    downloads nothing. Exits with 1 if any check fails, with 5 without a GPU.
    """
    command.add_argument("--gpu", action="store_true", help="try each GPU out, and print what a bug report needs")
    command.add_argument("--json", action="store_true", help="machine-readable")
    settings(command)


def schema(command: argparse.ArgumentParser) -> None:
    """Print the JSON Schema of summary.json."""


def server_flags(command: "argparse.ArgumentParser | argparse._ArgumentGroup", patience: float) -> None:
    """Add how a server is asked, for so many seconds where nobody says it."""
    text = "file with the server's API key, in place of QDRANT_API_KEY"
    command.add_argument("--api-key-file", type=PATH, metavar="FILE", help=text)
    text = f"seconds to go on asking a server that does not answer (default {patience:g})"
    command.add_argument("--patience", type=told(parsers.seconds), default=patience, metavar="S", help=text)


def _front_end(command: argparse.ArgumentParser) -> None:
    group = command.add_argument_group("output")
    group.add_argument("--no-ui", action="store_true", help="no console, plain log output on stderr")
    log(group, "--no-ui with ")
    group.add_argument("--events", choices=["-"], help="stream events to stdout as JSON lines")
    group.add_argument("--summary", metavar="PATH|-", help="also write summary.json to PATH, or to stdout")
    group.add_argument("--quiet", action="store_true", help="print errors only")
    _metrics(group)
    text = (
        "at the very end, after an upload too, call this command with the path of summary.json, and {run}, {state}, "
        "{reason}, {done} and {next} in it filled in; it changes no exit code"
    )
    group.add_argument("--notify", metavar="COMMAND", help=text)


def _to_server(command: argparse.ArgumentParser) -> None:
    text = (
        "to a server, send the points alone that differ there or lack, by a digest that it keeps in each payload "
        "(interlock_digest)"
    )
    command.add_argument("--incremental", action="store_true", help=text)
    text = "to a server, keep N requests with points under way at once (default 1, at most 16)"
    command.add_argument("--streams", type=told(parsers.up_to(MOST_STREAMS, 1)), metavar="N", help=text)


def _metrics(group: argparse._ActionsContainer) -> None:
    text = "serve the run's numbers to Prometheus (any host but this one takes a key), or keep them in a .prom file"
    group.add_argument("--metrics", metavar="[HOST:]PORT|FILE", help=text)


def told(parse: Callable[[object], T]) -> Callable[[str], T]:
    """Return `parse` with what it expects said in place of its name."""

    def read(text: str) -> T:
        try:
            return parse(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(f"{error}, got {given(text)}") from None

    return read


PATH, PLACE, NAME = told(parsers.path), told(parsers.place), told(parsers.name)


def settings(command: argparse.ArgumentParser, *names: str) -> None:
    """Add the configuration file and the flags of these settings by what they are about; without names, of all."""
    text = "TOML file with settings and [models.*] tables"
    command.add_argument("--config", type=PATH, metavar="FILE.toml", help=text)
    metadata = {item.name: item.metadata for item in knobs()}
    wanted = names or tuple(metadata)
    for members in GROUPS:
        if mine := [item.name for item in fields(members) if item.name in wanted]:
            group = command.add_argument_group(members.__doc__)
            for name in mine:
                _setting(group, name, metadata[name])


def _setting(command: argparse._ArgumentGroup, name: str, about: Mapping[str, Any]) -> None:
    text = (about["help"] + (f" (default {about['default']})" if about["default"] else "")).replace("%", "%%")
    switch = {"action": argparse.BooleanOptionalAction}
    kind: dict[str, Any] = {"metavar": about["metavar"]} if about["metavar"] else switch
    either = command.add_mutually_exclusive_group() if name == "window" else command
    either.add_argument(flag_of(name), dest=name, help=text, **kind)
    if name == "window":
        either.add_argument("--shared", dest=name, action="store_const", const=parsers.SHARED, help="--window shared")
