"""A node: the devices of one machine, leased and computed on as in a run of its own, for batches that it is handed.

It reads no chunks, writes no journal and delivers nothing. Its executor pulls from a source that the head fills; what
happens is told to the head, which alone decides what counts.
"""

import hashlib
import os
import shutil
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import cache
from importlib import metadata
from pathlib import Path, PurePosixPath
from tempfile import mkdtemp

import numpy as np
import numpy.typing as npt
import torch

from interlock.engine.compute.cluster.messages import (
    GridPlan,
    Hello,
    ModelFiles,
    Orders,
    PassPlan,
    Ready,
    RemoteFacts,
    Report,
    Welcome,
)
from interlock.engine.compute.cluster.remote import RemoteSource
from interlock.engine.compute.context import REAL, Backend, RunContext
from interlock.engine.compute.executor import PassExecutor
from interlock.engine.errors import ExitCode, InterlockError, Stopped, UnavailableError
from interlock.engine.gpu.device import Device, facts_of
from interlock.engine.gpu.devices import describe_host
from interlock.engine.gpu.lease import Lessor, imports_left_alone
from interlock.engine.gpu.locks import holding
from interlock.engine.gpu.sampler import Sampler
from interlock.engine.models.assets import ModelSnapshot, Policy
from interlock.engine.models.card import ModelCard
from interlock.engine.models.masters import Masters
from interlock.engine.models.sources import PATTERNS, model_cache
from interlock.engine.record import atomic

PACKAGES = ("interlock", "torch", "numpy", "tokenizers", "transformers", "safetensors")
"""What decides numbers: every node has the head's version of it."""
SENT, KEPT = "sent", 7 * 86400.0
"""The folder of the cache for models that were sent, and the seconds for which one is kept after it was used last: a
node that comes again is not sent it anew."""


@cache
def versions() -> dict[str, str]:
    """Say which versions of what makes vectors are installed here, and which sources: one changed line is another
    interlock, whatever its version says."""
    found = {name: metadata.version(name) for name in PACKAGES}
    root, digest = Path(__file__).parents[3], hashlib.sha256()
    files = (Path(folder, name) for folder, _, names in os.walk(root, followlinks=True) for name in names)
    for file in sorted(each for each in files if each.suffix == ".py"):
        digest.update(f"{file.relative_to(root)}\0{file.stat().st_size}\0".encode() + file.read_bytes())
    return found | {"Python": "{}.{}".format(*sys.version_info), "interlock's sources": digest.hexdigest()[:12]}


class ClusterNode:
    """One process on one machine; every method but `exchange` is called once at a time, and `exchange` beside them."""

    def __init__(self, backend: Backend = REAL) -> None:
        self._backend = backend
        self._stack = ExitStack()
        self._sent = set[str]()
        self._plan: GridPlan | None = None
        self._source: RemoteSource | None = None
        self._thread: threading.Thread | None = None

    def welcome(self, hello: Hello) -> Welcome:
        """Look at the devices and hold them, so that no other run has them meanwhile."""
        try:
            self._devices = self._backend.devices(hello.devices, hello.faults)
            gpus = [device for device in self._devices if device.kind != "cpu"]
            self._hello, self._host = hello, self._backend.host() if gpus else self._devices[0]
            about = describe_host(self._devices)
            self._stack.enter_context(holding(self._devices, hello.run))
        except InterlockError as error:
            return Welcome(versions=versions(), trouble=str(error))
        for device in {id(each): each for each in (*self._devices, self._host)}.values():
            device.name = f"{hello.node}/{device.name}"
        if hello.threads:
            torch.set_num_threads(hello.threads)
        return Welcome([_facts(device, hello) for device in self._devices], versions(), about)

    def begin(self, plan: GridPlan) -> Ready:
        """Resolve the models of the plan, and be ready for batches; again after what was lacking was taken."""
        self._plan = plan
        lacking, cards = list[str](), dict[int, ModelCard]()
        for each in plan.passes:
            key, (card, why) = each.layout.card.key, self._card(each, Policy(offline=True, pickles=plan.pickles))
            if card is None and key in self._sent:
                return Ready(trouble=f"model {key} was sent, and cannot be used: {why}")
            if card is None:
                lacking.append(key)
                continue
            if card.snapshot.fingerprint != each.fingerprint:
                return Ready(
                    trouble=f"its copy of model {key} in {card.snapshot.path} is another one (fingerprint "
                    f"{card.snapshot.fingerprint[:12]}, the head's {each.fingerprint[:12]}): delete it there, or "
                    "bring it to the same revision"
                )
            cards[each.model_pass] = replace(each.layout.card, snapshot=card.snapshot)
        return Ready(lacking=lacking) if lacking else self._start(plan, cards)

    def _card(self, each: PassPlan, policy: Policy) -> tuple[ModelCard | None, str]:
        """The model of a pass: this machine's own, or else what was sent here once and is whole; None, and why."""
        place, why = _kept(each.fingerprint), ""
        for spec in (each.spec, replace(each.spec, sources=(str(place),))):
            try:
                (card,) = self._backend.cards([spec], policy, self._devices, lambda _: None)
            except UnavailableError as error:
                why = str(error)
                continue
            if spec is each.spec:
                return card, ""
            if card.snapshot.fingerprint == each.fingerprint:
                os.utime(place)
                return card, ""
            why = "it is another one"
        shutil.rmtree(place, ignore_errors=True)  # what was found wanting is sent anew
        return None, why

    def take(self, files: ModelFiles) -> Ready:
        """Keep a model that was lacking here."""
        assert self._plan, "only then is it known what is lacking"
        place = _kept(next(each.fingerprint for each in self._plan.passes if each.layout.card.key == files.key))
        try:
            _keep(files, place)
        except InterlockError as error:
            return Ready(trouble=str(error))
        self._sent.add(files.key)
        return self.begin(self._plan)

    def exchange(self, orders: Orders) -> Report:
        """Follow the orders, and report once there is news or `orders.wait` seconds are over."""
        assert self._source, "it has begun"
        self._source.follow(orders)
        return self._source.report(orders.wait)

    def nudge(self) -> None:
        """Have an exchange that waits answer now."""
        if self._source:
            self._source.nudge()

    def close(self) -> None:
        """Stop after the batches that are being computed, and let go of everything."""
        if self._source:
            self._source.controls.stop(ExitCode.STOPPED)
            self._source.end()
        if self._thread:
            self._thread.join()
        self._stack.close()

    def _lends(self, devices: Sequence[Device], granted: int) -> Lessor:
        hello = self._hello
        limits = hello.ceiling, hello.host_ceiling, hello.margin
        return Lessor(devices, *limits, granted=granted, whose=f"{hello.node}/")

    def _start(self, plan: GridPlan, cards: Mapping[int, ModelCard]) -> Ready:
        source = self._source = RemoteSource(plan, cards, self._hello.node)
        gpus = [device for device in self._devices if device is not self._host]
        context = RunContext(
            devices=self._devices,
            host=self._host,
            lessor=self._lends([*gpus, self._host], plan.granted + self._hello.granted),
            masters=Masters(self._hello.warm, self._backend.hydrate(self._devices[0])),
            controls=source.controls,
            emit=source.emit,
            sync=lambda: None,
            backend=self._backend,
            deadline=source.deadline,
        )
        executor = PassExecutor(source, context)
        refused = executor.unplaceable()
        self._thread = threading.Thread(target=self._work, args=(executor, source), name="node", daemon=True)
        self._thread.start()
        return Ready(refused=refused)

    def _work(self, executor: PassExecutor, source: RemoteSource) -> None:
        try:
            with Sampler(self._devices, source.emit, margin=self._hello.margin), imports_left_alone():
                executor.run()
            source.end()
        except Stopped as stopped:
            source.end("" if source.controls.stop_requested else str(stopped))
        except Exception as error:  # whatever it is, the head has to know
            known = isinstance(error, InterlockError)
            source.end(str(error) if known else f"{type(error).__name__}: {error}")


def _facts(device: Device, hello: Hello) -> RemoteFacts:
    ceiling = hello.host_ceiling if device.kind == "cpu" and hello.host_ceiling else hello.ceiling
    return RemoteFacts(facts_of(device, ceiling), device.capability, device.processors)


# A model that a node lacks: what makes it what it is (weights, heads, configuration, modules, tokenizer) and the
# settings beside it. Files are mapped, not read: a model of many GB takes no memory before it is sent.


def pack(key: str, snapshot: ModelSnapshot) -> ModelFiles:
    """Map the files of the model `key` by their path in its snapshot; heads that lie elsewhere are put beside it.

    Raises UnavailableError for one that cannot be read.
    """
    files = {_name(file, snapshot.path): file for file in sorted(_sent(snapshot))}
    try:
        return ModelFiles(key, {name: [_mapped(file)] for name, file in files.items()})
    except OSError as error:
        raise UnavailableError(
            f"model {key}: cannot read {error.filename or snapshot.path}: {error.strerror}"
        ) from error


def _kept(fingerprint: str) -> Path:
    """Where a model that is sent lies on this machine."""
    return model_cache() / SENT / fingerprint[:32]


def _keep(files: ModelFiles, place: Path) -> None:
    """Write a model to its place, whole or not at all, and remove those that no node has used for long. Raises
    DiskError where there is no room."""
    for each in place.parent.glob("*"):
        with suppress(OSError):
            if time.time() - each.stat().st_mtime > KEPT:
                shutil.rmtree(each)
    with atomic.explaining(place):
        place.parent.mkdir(parents=True, exist_ok=True)
        new = Path(mkdtemp(prefix="new-", dir=place.parent))
        try:
            unpack(files, new / "model")
            with suppress(OSError):  # another node of this machine was sent it too, and may be reading it
                (new / "model").rename(place)
        finally:
            shutil.rmtree(new, ignore_errors=True)


def unpack(files: ModelFiles, place: Path) -> Path:
    """Write the files of a model into `place`, each whole or not at all, one in memory at a time; returns `place`, a
    source for `assets.resolve`.

    Raises UnavailableError for a name that leads out of `place`, DiskError naming what cannot be written.
    """
    for name in files.files:
        path = PurePosixPath(name)
        if path.is_absolute() or ".." in path.parts or not path.parts:
            raise UnavailableError(f"model {files.key}: {name!r} leads out of its directory, so it was not written")
        with atomic.replacing(place / path) as partial, partial.open("wb") as out:
            for part in files.files[name]:
                out.write(part.data)
    return place


def _sent(snapshot: ModelSnapshot) -> Iterator[Path]:
    """What counts in a model, and what its settings' directories hold beside it, other weights left out."""
    counting = snapshot.stamps or snapshot.stamped()
    yield from counting
    for folder in {file.parent for file in counting if file.is_relative_to(snapshot.path)}:
        for pattern in PATTERNS:
            yield from (file for file in folder.glob(pattern) if file.suffix != ".safetensors" and file.is_file())


def _name(file: Path, root: Path) -> str:
    return str(file.relative_to(root)) if file.is_relative_to(root) else file.name


def _mapped(file: Path) -> npt.NDArray[np.uint8]:
    return np.memmap(file, np.uint8, "r") if file.stat().st_size else np.zeros(0, np.uint8)  # no empty map
