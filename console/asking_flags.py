"""What the commands take that ask a store or a server, or judge what answers, as `flags` has it for the others."""

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from interlock.console.flags import NAME, PATH, RERANKING, log, server_flags, settings, told
from interlock.engine import parsers
from interlock.engine.search.options import SearchRules
from interlock.engine.settings import flag_of
from interlock.engine.targets.connection import is_address

_READ: Mapping[str, Mapping[str, Any]] = {
    "MODEL=W,...": {"type": told(parsers.weights)},
    "MODEL,...": {"type": told(parsers.some_names), "default": ()},
    "NAME": {"type": NAME},
    "N": {"type": told(parsers.integer)},
    "S": {"type": told(parsers.decimal)},
    "KEY=VALUE": {"action": "append"},
}
"""How the value of an option of a search is read, by what it is called; the others are one of their words."""
RERANK = ("rerank", "rerank_share", "rerank_depth")


def place(text: str) -> Path | str:
    """Read where a collection is: the URL of a server as it stands, anything else as a directory."""
    return text if is_address(text) else PATH(text)


def search(command: argparse.ArgumentParser) -> None:
    """Encode QUERY as the texts of STORE were encoded (models, weights, prompts) and print the best chunks. STORE is a
    directory that a run wrote, or the URL of a Qdrant server with a collection that was uploaded. One that
    has sparse vectors (BM25's, say) is searched by words too, and both lists are blended. With --rerank a
    cross-encoder scores the best chunks anew; if it cannot, the order is that of the search alone, and the exit code
    says why. Without QUERY, on a terminal, it opens a screen that takes one question after another.
    """
    text = "--qdrant directory of a run, or the URL of a server, as in http://localhost:6333"
    command.add_argument("store", type=place, metavar="STORE", help=text)
    command.add_argument("query", nargs="?", metavar="QUERY", help="search query; without one, the search screen opens")
    _collection(command, "to search; required if the store has several")
    _copy(command)
    text = "number of chunks (default 5, on the screen 20)"
    command.add_argument("--limit", type=told(parsers.integer), metavar="N", help=text)
    command.add_argument("--json", action="store_true", help="print one JSON object per line")
    text = "tell each chunk's rank and score by stage, and milliseconds by stage"
    command.add_argument("--explain", action="store_true", help=text)
    _options(command, "where")
    group = command.add_argument_group("many queries")
    text = (
        'answer each line of a file: .jsonl ({"id": ..., "text": ...}), .tsv (id, tab, text) or .txt; 64 or more are '
        "encoded on the GPUs of --devices"
    )
    group.add_argument("--queries", type=PATH, metavar="FILE", help=text)
    text = "write the answers to this file, whole or not at all: .jsonl, or .trec for trec_eval"
    group.add_argument("--out", type=PATH, metavar="FILE", dest="answers", help=text)
    text = "ids of chunks in a .trec: their chunk_id (default) or that of their point"
    group.add_argument("--ids", choices=("chunk", "point"), default="chunk", help=text)
    group = command.add_argument_group("stages")
    _options(group, "weights", "only", "hybrid", "sparse_share")
    group = command.add_argument_group("reranking")
    _options(group, *RERANK)
    _server(command, exact=True)
    log(command)
    settings(command, *RERANKING, "theme", "ascii", "slow_link")


def questions(command: argparse.ArgumentParser) -> None:
    """Make judgements of one's own: ask STORE each question in every way that it can be searched, and show the chunks
    that any way found, in an order that does not say which, on a screen where keys say whether they answer. SHEET is
    a directory that is made, or gone on with: the questions, TREC's judgements (qrels.txt) and each way's lists. Each
    judgement is on disk before the next key. At its end, and without a terminal, it says how the ways differ and how
    many judged questions more tell them apart: 20 to 50 are wanted.
    """
    text = "--qdrant directory of a run, or the URL of a server, as in http://localhost:6333"
    command.add_argument("store", type=place, metavar="STORE", help=text)
    command.add_argument("sheet", type=PATH, metavar="SHEET", help="directory of the questions and judgements")
    text = 'ask each line of a file too: .jsonl ({"id": ..., "text": ...}), .tsv (id, tab, text) or .txt'
    command.add_argument("--queries", type=PATH, metavar="FILE", help=text)
    text = "number of hits of each way that are to be judged (default 10)"
    command.add_argument("--depth", type=told(parsers.at_least_one), default=10, metavar="N", help=text)
    _collection(command, "to ask; required if the store has several")
    _copy(command)
    _options(command, "rerank", text="cross-encoders that score the best chunks anew, or maxsim: one way more")
    _server(command)
    settings(command, *RERANKING, "theme", "ascii", "slow_link")


def encode(command: argparse.ArgumentParser) -> None:
    """Encode each TEXT as a question to what PLACE holds (or with --side document as one of its chunks) and print the
    vectors that its points have, by their names: a line of JSON for each text. PLACE is the directory of a run or of a
    store, or the URL of a Qdrant server with a collection that was uploaded.
    """
    text = "directory of a run, --qdrant directory of one, or the URL of a server"
    command.add_argument("store", type=place, metavar="PLACE", help=text)
    text = "texts; without any, or with -, one a line on stdin"
    command.add_argument("texts", nargs="*", metavar="TEXT", help=text)
    text = 'take the texts of a file: .jsonl ({"id": ..., "text": ...}), .tsv (id, tab, text) or .txt (one a line)'
    command.add_argument("--file", type=PATH, metavar="FILE", help=text)
    text = "encode as questions are (default), or as the run's chunks"
    command.add_argument("--side", choices=("query", "document"), default="query", help=text)
    text = "one vector alone: fused, a model's, or bm25; only its models have to be there"
    command.add_argument("--only", type=NAME, metavar="NAME", help=text)
    _collection(command, "that is meant; required if there are several")
    text = (
        "write to this file, whole or not at all: .jsonl as on stdout, .parquet, or .npy (the fused vectors, or those "
        "of --only)"
    )
    command.add_argument("--out", type=PATH, metavar="FILE", dest="vectors", help=text)
    _server(command)
    settings(command, *RERANKING)


def serve(command: argparse.ArgumentParser) -> None:
    """Answer other programs over HTTP until ctrl+c: POST /v1/embeddings, as clients of OpenAI's API ask it, makes the
    vectors that the points of PLACE have, and POST /search finds chunks there. The models stay in memory, on the GPUs
    of --devices that are free, else on the CPU; requests that arrive together are one batch. PLACE is the directory of
    a store or of a run, or the URL of a Qdrant server with a collection that was uploaded. With INTERLOCK_SERVE_KEY in
    the environment only who sends that key is answered; without it nobody outside this machine.
    """
    text = "directory of a run, --qdrant directory of one, or the URL of a server"
    command.add_argument("store", type=place, metavar="PLACE", help=text)
    _collection(command, "that is meant; required if there are several")
    _copy(command)
    text = "address to listen at (default 127.0.0.1); any other takes a key"
    command.add_argument("--host", default="127.0.0.1", metavar="HOST", help=text)
    text = "port to listen at (default 8077); 0: any that is free"
    command.add_argument("--port", type=told(parsers.port), default=8077, metavar="PORT", help=text)
    text = "texts that may wait (default 2048); more are refused with 429"
    command.add_argument("--waiting", type=told(parsers.at_least_one), default=2048, metavar="N", help=text)
    group = command.add_argument_group("reranking")
    _options(group, *RERANK)
    log(command)
    _server(command, exact=True)
    settings(command, *RERANKING)


def eval(command: argparse.ArgumentParser) -> None:
    """Judge the models of --roster and --sparse by the collection in DATA (corpus.jsonl, queries.jsonl, qrels/test.tsv,
    as BEIR has them, or TREC's qrels; qrels/train.tsv chooses weights where it is there): each alone, every fusion,
    smaller forms of storage, hybrid search with sparse models and BM25, and a reranker. Texts are encoded on the GPUs
    of --devices, else on the CPU, and kept, so that a second evaluation takes seconds. Of a run the vectors that it
    delivered are judged, and its models and weights.
    """
    text = (
        "directory of a judged collection, or of a run; or irds:NAME, what ir_datasets has by that name; several "
        "collections are judged one by one and together"
    )
    command.add_argument("data", type=PATH, nargs="+", metavar="DATA", help=text)
    text = (
        'queries in place of queries.jsonl, and for a run: {"_id": ..., "text": ...} a line, or a .tsv (id, tab, text)'
    )
    command.add_argument("--queries", type=PATH, metavar="FILE", help=text)
    text = (
        "judgements in place of those in qrels/, and for a run, of its chunk_ids: TREC's four columns, or query-id, "
        "corpus-id and score with tabs between; also .gz"
    )
    command.add_argument("--qrels", type=PATH, metavar="FILE", help=text)
    text = "split in qrels/ to be measured (default test, or the only one)"
    command.add_argument("--split", metavar="NAME", help=text)
    text = (
        "what to do with judgements of texts or queries that are not there (default error): drop them, or count the "
        "texts as not found, as trec_eval does"
    )
    command.add_argument("--missing", choices=("error", "drop", "count"), default="error", help=text)
    _collection(command, "of the run; required if it has several")
    text = "judge these too, behind the search: cross-encoders, maxsim, or a model of the roster for its token vectors"
    _options(command, "rerank", text=text)
    text = "judge by N queries of each split, drawn by --seed (default all)"
    command.add_argument("--limit", type=told(parsers.integer), metavar="N", help=text)
    text = "what the queries of --limit, halves and fifths are drawn by (default 0)"
    command.add_argument("--seed", type=told(parsers.integer), default=0, metavar="N", help=text)
    text = "show how many texts and tokens are to be encoded and how long that takes, and judge nothing"
    command.add_argument("--plan", action="store_true", help=text)
    _measuring(command)
    text = "print the ten queries with the lowest nDCG@10, each with its first wrong hits; --json has them too"
    command.add_argument("--worst", action="store_true", help=text)
    text = "write what every way of one collection found into this directory, each as a TREC run"
    command.add_argument("--run-out", type=PATH, metavar="DIR", help=text)
    text = (
        "write the proposed weights into this file, which --config takes; of a run also into its store, where searches "
        "find them"
    )
    command.add_argument("--calibrate", type=PATH, metavar="FILE.toml", help=text)
    settings(command, "roster", "sparse", "fusion", "bm25", "precision", *RERANKING)


def compare(command: argparse.ArgumentParser) -> None:
    """Compare ranked lists in TREC's files (query, Q0, text, rank, score and tag a line; also .gz), whatever program
    made them, by people's judgements: each with the first or --baseline, query by query, measured as trec_eval does. A
    judged query that a run does not answer counts 0. Without --qrels the RUNs are what `eval --json` or `compare
    --json` wrote of several sets: each difference over all of them, with one interval.
    """
    text = "runs, of which the first is what the others are compared with; or JSON files, one of each set"
    command.add_argument("runs", nargs="+", type=PATH, metavar="RUN", help=text)
    text = "judgements: TREC's four columns, or query-id, corpus-id and score with tabs between; also .gz"
    command.add_argument("--qrels", type=PATH, metavar="FILE", help=text)
    text = "texts of the queries, to be shown with those that differ most; as `eval` takes them"
    command.add_argument("--queries", type=PATH, metavar="FILE", help=text)
    text = "run that the others are compared with, by the name of its file without .run (default: the first)"
    command.add_argument("--baseline", type=NAME, metavar="NAME", help=text)
    _measuring(command)


def _measuring(command: argparse.ArgumentParser) -> None:
    """Add what is measured, and where figures are written."""
    text = (
        'measures as ir-measures or trec_eval name them: nDCG@k, P@k, R@k, AP, RR, Judged@k (default "nDCG@10 R@100 '
        'RR@10"); the first is that of several sets, and of the queries in which runs differ most'
    )
    command.add_argument("--measures", type=str.split, default=(), metavar="NAMES", help=text)
    text = "write every figure to this file, also of each query"
    command.add_argument("--json", type=PATH, metavar="FILE", help=text)
    text = "write the values of each query to this file: run or way, measure, query and value, with tabs between"
    command.add_argument("--tsv", type=PATH, metavar="FILE", help=text)


def _options(command: argparse._ActionsContainer, *names: str, text: str = "") -> None:
    """Add options of a search as they are declared, with another `text` where a command means less by one."""
    for name in names:
        metavar, about = SearchRules.__annotations__[name].__metadata__
        how = {"metavar": metavar, **_READ.get(metavar, {"choices": metavar.split("|")})}
        command.add_argument("--filter" if name == "where" else flag_of(name), dest=name, help=text or about, **how)


def _collection(command: argparse.ArgumentParser, meant: str) -> None:
    command.add_argument("--collection", type=NAME, metavar="NAME", help=f"collection {meant}")


def _copy(command: argparse.ArgumentParser) -> None:
    text = "search a copy of the store (in TMPDIR), so that others may read it and a run may write to it meanwhile"
    command.add_argument("--copy", action="store_true", help=text)


def _server(command: argparse.ArgumentParser, *, exact: bool = False) -> None:
    """Add how a server is asked where a URL names one; `exact` where points are found in it."""
    group = command.add_argument_group("a server")
    server_flags(group, 10.0)
    text = "projection.npy of the run's exports, where the run had --project: no server keeps it"
    group.add_argument("--projection", type=PATH, metavar="FILE", help=text)
    if exact:
        text = "look at every point, as in a directory; without, the server answers by its indexes, which find most"
        group.add_argument("--exact", action="store_true", help=text)
