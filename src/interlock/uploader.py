"""Uploads from notebooks and scripts: what a run exported, as points of a Qdrant server."""

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal

from interlock.console.uploading import PATIENCE, SETTLE, AskedUpload, uploaded
from interlock.engine.record.words import safe
from interlock.recorded import AnyPath, RecordedRun, open_run
from interlock.wording import in_python, path_of, telling

if TYPE_CHECKING:
    from interlock.engine.targets.report import UploadReport


def upload(
    run: RecordedRun | AnyPath,
    url: str,
    *,
    collection: str | None = None,
    alias: str = "",
    indexes: Mapping[str, str] | None = None,
    quantisation: Literal["none", "int8", "binary"] = "none",
    vector_type: Literal["float32", "float16"] = "float32",
    api_key_file: AnyPath | None = None,
    patience: float = PATIENCE,
    settle: float = SETTLE,
    grpc_port: int | None = None,
    prune: bool = False,
) -> "list[UploadReport]":
    """Upload a run's collections to the Qdrant server at `url` as `interlock upload` does; what each came to.

    `indexes` are keys of the payload with their types (`{"metadata.lang": "keyword"}`). The key comes from
    QDRANT_API_KEY or from `api_key_file`. `grpc_port` is where points may go over gRPC (0: nowhere); without it that is
    6334 where the URL's own port is 6333. Progress goes to stderr. After an interruption the same call continues.
    `prune` removes points that earlier uploads put there and that are not of this run, once all is verified.

    Raises UsageError for a run, a server or a collection that does not fit, UnavailableError for a server that does not
    answer for `patience` seconds, InterlockError where what is there is not what was sent.
    """
    asked = AskedUpload(
        open_run(run).path,
        url,
        collection,
        alias,
        [f"{key}:{kind}" for key, kind in (indexes or {}).items()],
        vector_type,
        quantisation,
        None if api_key_file is None else path_of(api_key_file, "api_key_file"),
        patience,
        settle,
        grpc_port,
        prune,
        lambda text: sys.stderr.write(f"interlock: {safe(in_python(text), 1000)}\n"),
    )
    with telling():
        return list(uploaded(asked))
