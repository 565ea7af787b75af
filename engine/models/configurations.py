"""What models' `config.json` say, for planning ahead: no weights are read, and nobody is kept waiting for a hub.

A configuration that is on this machine is read there. For the others the hub is asked once each, all at the same time,
and within a few seconds for all of them together; what is missing then is told as missing. Nothing is retried.
"""

import logging
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from interlock.engine.errors import UnavailableError
from interlock.engine.models.assets import Policy, is_offline
from interlock.engine.models.bundles import bundled
from interlock.engine.models.checkpoint import usual
from interlock.engine.models.layout import home_of, read_object
from interlock.engine.models.registry import ModelSpec, label
from interlock.engine.models.sources import Missing, config_in

PATIENCE = 4.0
"""Seconds that the hub has for all models together."""
NOWHERE, UNREACHED = "not found", "hub not reached"
DENIED = (401, 403, 404)
"""What the hub answers for what it has not, or not for this user."""


@dataclass(frozen=True)
class Found:
    """A model's configuration and the source that had it; no `config` where `source` says why not."""

    config: Mapping[str, object] | None
    source: str


def configurations(specs: Sequence[ModelSpec], policy: Policy) -> list[Found]:
    """Find each model's configuration: on this machine, else, where the policy lets it, on the hub."""
    found = [_here(spec) for spec in specs]
    missing = [index for index, spec in enumerate(specs) if found[index].config is None and spec.hub_repo]
    if missing and not policy.offline and not is_offline():
        for index, answer in _of_hub({index: specs[index] for index in missing}).items():
            if answer.config is not None or found[index].source == NOWHERE:
                found[index] = answer
    return found


def _here(spec: ModelSpec) -> Found:
    """What this machine has, or why it has none: what is wrong with a file that is here says more than its absence."""
    why = NOWHERE
    if there := bundled(spec, whole=False):
        (path, *_), source = there
        return Found(usual(read_object(home_of(path) / "config.json")), label(source))
    for source in spec.sources:
        try:
            return Found(usual(read_object(config_in(source, spec))), label(source))
        except Missing:
            continue
        except UnavailableError as error:
            why = str(error)
    return Found(None, why)


def _of_hub(specs: Mapping[int, ModelSpec]) -> dict[int, Found]:
    """Ask all at the same time; a thread that hangs, in a look-up of a name for one, is left behind."""
    import huggingface_hub  # noqa: F401  # its import is not the hub's time, and threads are not to race for it

    logging.getLogger("huggingface_hub").setLevel(logging.CRITICAL)
    answers = dict.fromkeys(specs, Found(None, UNREACHED))
    until = time.monotonic() + PATIENCE

    def ask(index: int) -> None:
        with suppress(Exception):  # the hub and its transport each raise their own
            answers[index] = _answer(specs[index].hub_repo or "", specs[index].revision, until)

    threads = [threading.Thread(target=ask, args=(index,), name="hub", daemon=True) for index in specs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, until - time.monotonic()))
    return dict(answers)


def _answer(repo: str, revision: str, until: float) -> Found:
    """Ask, with a look-up first that is not retried: the library's own download would wait for a network."""
    from huggingface_hub import get_session, hf_hub_download, hf_hub_url
    from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]

    url = hf_hub_url(repo, "config.json", revision=revision)
    left = until - time.monotonic()
    status = get_session().head(url, headers=build_hf_headers(), timeout=left).status_code
    if status >= 400:
        return Found(None, NOWHERE if status in DENIED else UNREACHED)
    try:
        return Found(usual(read_object(Path(hf_hub_download(repo, "config.json", revision=revision)))), f"hf:{repo}")
    except UnavailableError as error:
        return Found(None, str(error))
