"""Tells errors of the engine in Python's words: `--run-id` of the command line is the setting `run_id`."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from interlock.engine import parsers
from interlock.engine.errors import InterlockError, UsageError
from interlock.engine.settings import flag_of, knobs

_SETTINGS = {flag_of(item.name): item.name + "=True" * (not item.metadata["metavar"]) for item in knobs()}
_SETTINGS |= {"--shared": "exclusive=False", "--collection": "collection", "--limit": "limit"}
_SETTINGS |= {"--rerank-share": "rerank_share", "--rerank-depth": "rerank_depth", "--rerank": "rerank"}
_SETTINGS |= {"--filter": "where", "--weights": "weights", "--only": "only", "--hybrid": "hybrid"}
_SETTINGS |= {"--sparse-share": "sparse_share"}
_SETTINGS |= {"--queries": "queries", "--qrels": "qrels", "--seed": "seed"}
_SETTINGS |= {"--alias": "alias", "--index": "indexes", "--vector-type": "vector_type", "--patience": "patience"}
_SETTINGS |= {"--quantisation": "quantisation", "--settle": "settle", "--api-key-file": "api_key_file"}
_COMMANDS = "go `interlock run --qdrant URL` and `interlock upload`", "goes interlock.upload(run, url)"
_FLAG = re.compile(
    rf"(?<![\w-])({'|'.join(_SETTINGS)})(?![\w-])(?: (DIR|\d+|cpu|named|mean|sim:\w+|[\w.-]*/[^\s,:]*)(?![\w/]))?"
)


def in_python(text: str) -> str:
    """Write the flags in a message, and the values that follow them, as a caller from Python passes them."""

    def written(found: re.Match[str]) -> str:
        name, value = _SETTINGS[found[1]], found[2]
        if value in (None, "DIR"):
            return name
        return f"{name}={value}" if value.isdigit() else f"{name}={value!r}"

    return _FLAG.sub(written, text.replace(*_COMMANDS))


@contextmanager
def telling() -> Iterator[None]:
    """Let errors of ours out in Python's words."""
    try:
        yield
    except InterlockError as error:
        error.args = (in_python(str(error)),)
        raise


def path_of(value: object, what: str) -> Path:
    """Return the path that a caller gave as `what`, its `~` resolved. Raises UsageError for what is no path."""
    try:
        return parsers.path(value)
    except ValueError as wanted:
        raise UsageError(f"{what}: {wanted}, got {value!r:.100}") from None
