"""Snapshots of runs that never were, for tests of panes and screens: any number of devices, passes and leases.

`sample()` is a run in the middle of its second of three passes on two devices; every argument moves one thing, and any
field of `Snapshot` may be given by its name and has the last word. The same arguments give the same snapshot.
"""

from collections import deque
from collections.abc import Sequence
from types import ModuleType
from typing import Any

from msgspec.structs import replace

from interlock.engine.record import events as ev
from interlock.engine.record.facts import DeviceFacts, Memory, Readings, Receipt, Tally, node_of
from interlock.engine.record.snapshot import CollectionView, DeviceView, PassView, Snapshot
from interlock.engine.record.state import Lately, LeaseState, NodeState, Pace
from interlock.widgets.pane import View
from interlock.widgets.text import Row

MIB, GIB = 2**20, 2**30
T4 = 15_828_254_720
CONTEXT = 300 * MIB
BEGAN = 1_795_273_282.0
MODELS = ("all-minilm-l6", "all-mpnet-base-v2", "bge-m3", "e5-large-v2", "gte-large", "nomic-embed-v1.5")
WEIGHTS = (0.1, 3.1, 2.2, 1.3, 1.2, 0.5)
ENDS = {"completed": 0, "incomplete": 1, "failed": 1, "stopped": 4}
EARLY = ("starting", "resolving", "reading")


def sample(
    devices: int = 2,
    passes: int = 3,
    *,
    at: float | None = None,
    phase: str = "running",
    kind: str = "cuda",
    schedule: str = "exclusive",
    batches: int = 512,
    collections: int = 2,
    lost: Sequence[int] = (),
    mitigations: int = 3,
    parked: int = 1,
    names: Sequence[str] = MODELS,
    seconds: float = 252.0,
    **fields: Any,
) -> Snapshot:
    """`at` is how many passes are done: 1.41 is 41 % of the second. `kind` is cuda, cpu, sim or scripted; `lost` are
    numbers of devices; `phase` is any of `Snapshot.phase`."""
    at = at if at is not None else float(passes) if phase in ("delivering", "completed") else min(1.41, passes * 0.47)
    views = () if phase in EARLY else many_passes(passes, at, batches, devices, kind, mitigations, parked, names)
    running = phase == "running"
    if phase in ENDS:
        views = tuple(replace(each, word="waiting" if each.word == "running" else each.word) for each in views)
    found = () if phase == "starting" else many_devices(devices, kind, views if running else (), lost)
    snapshot = Snapshot(
        seq=1000,
        run_id="20261121-150122",
        chunks="/data/chunks",
        phase=phase,
        exit_code=ENDS.get(phase),
        device_kind=kind,
        schedule=schedule,
        began_at=BEGAN,
        latest_at=BEGAN + seconds,
        elapsed=seconds,
        current_pass=min(int(at), passes - 1) if views else None,
        batch_index=int(batches * (at % 1)) if views else None,
        devices=found,
        passes=views,
        leases=many_leases(views, found, running, lost),
        leases_in_all=sum(bool(each.batches_done) for each in views),
        collections=many_collections(collections, phase),
        models=tuple(many_models(passes, names)) if phase not in ("starting", "resolving") else (),
        retries=2,
        warnings=1,
        parked=parked if views else 0,
        pace=pace() if views else Pace(),
    )
    return replace(snapshot, **fields)


def on_nodes(nodes: int, gpus: int = 2, *, lost: Sequence[int] = (), **fields: Any) -> Snapshot:
    """A run on so many nodes of so many GPUs; `lost` are numbers of nodes, from 1, and `fields` are those of
    `sample`."""
    run = sample(nodes * gpus, **fields)
    place = {f"cuda:{at}": f"node-{at // gpus + 1}/cuda:{at % gpus}" for at in range(nodes * gpus)}
    reason = {f"node-{number}": "no answer for 30 s" for number in lost}
    devices = tuple(
        replace(
            each,
            facts=replace(each.facts, name=place[each.facts.name]),
            lost=reason.get(node_of(place[each.facts.name]), each.lost),
        )
        for each in run.devices
    )
    leases = tuple(
        one_lease(
            number, lease=f"node-{node}/L{number:03d}", model_pass=lease.model_pass, model=lease.model,
            devices=[f"node-{node}/cuda:{card}" for card in range(gpus)], held=lease.held_seconds, left=node in lost,
        )
        for number, lease in enumerate(run.leases, 1)
        for node in range(1, nodes + 1)
    )  # fmt: skip
    return replace(
        run,
        devices=devices,
        passes=tuple(replace(each, devices=tuple(place[name] for name in each.devices)) for each in run.passes),
        leases=leases,
        leases_in_all=len(leases),
        nodes=tuple(
            NodeState(
                node=f"node-{number}", label=f"ws-{number}", since=BEGAN, lost=reason.get(f"node-{number}", ""),
                losses=(reason[f"node-{number}"],) if number in lost else (),
            )
            for number in range(1, nodes + 1)
        ),
    )  # fmt: skip


def drawn(
    pane: ModuleType, snapshot: Snapshot, width: int, height: int, *, shown: Sequence[str] = ("cache",), **view: Any
) -> list[Row]:
    """The rows of a pane, that of the cache on the screen with it."""
    rows: list[Row] = pane.PANE.rows(View(snapshot, width, height, shown=shown, **view))
    return rows


def many_passes(
    passes: int,
    at: float,
    batches: int,
    devices: int,
    kind: str,
    mitigations: int = 0,
    parked: int = 0,
    names: Sequence[str] = MODELS,
) -> tuple[PassView, ...]:
    """The first `at` of them are done."""
    return tuple(
        one_pass(
            number,
            done=int(batches * max(0.0, min(1.0, at - number)) + 1e-6),
            batches=batches,
            model=_model(number, names),
            weight=1 / passes,
            devices=device_names(devices, kind),
            mitigations=mitigations if number == int(at) else 0,
            parked=parked if number == int(at) else 0,
        )
        for number in range(passes)
    )


def one_pass(
    number: int,
    *,
    done: int,
    batches: int,
    model: str = "all-minilm-l6",
    weight: float = 0.5,
    devices: Sequence[str] = ("cuda:0", "cuda:1"),
    mitigations: int = 0,
    parked: int = 0,
    **fields: Any,
) -> PassView:
    """A pass of which `done` batches are committed: from both ends, as two devices take them, and in no order."""
    cells = [place // 2 if place % 2 == 0 else batches - 1 - place // 2 for place in range(done)]
    lately = Lately(done * 2e15, done * 0.5, done * 0.5**2 / 2e15)
    view = PassView(
        model_pass=number,
        model=model,
        weight=weight,
        word="done" if done == batches else "running" if done else "queued",
        batches=batches,
        batches_done=done,
        rows=batches * 24,
        reused=batches * 2,
        tokens=batches * 2000,
        padding=0,
        truncated=0,
        truncated_tokens=0,
        done=Tally(done * 24, done * 2000, 0, done * 0.5),
        cost=batches * 2e15,
        cost_done=done * 2e15,
        lately=lately,
        lately_on_host=lately,
        devices=tuple(devices) if done else (),
        cells=tuple(reversed(cells)),
        mitigations=mitigations,
        parked=parked,
        failure="",
    )
    return replace(view, **fields)


def did(view: PassView, **work: Any) -> PassView:
    """A pass whose batches did this."""
    return replace(view, done=replace(view.done, **work))


def samples(occupied: Sequence[int], heat: Sequence[int] = ()) -> tuple[ev.DeviceSampled, ...]:
    """What a device told of so many bytes and degrees, one a second."""
    return tuple(
        ev.DeviceSampled(
            device="cuda:0",
            memory=Memory(allocated=0, occupied=each),
            readings=Readings(used=each, total=T4, temperature=heat[place], utilisation=70) if heat else None,
        )
        for place, each in enumerate(occupied)
    )


def device_names(devices: int, kind: str = "cuda") -> tuple[str, ...]:
    return ("cpu",) if kind == "cpu" else tuple(f"cuda:{number}" for number in range(devices))


def many_devices(
    devices: int, kind: str = "cuda", passes: Sequence[PassView] = (), lost: Sequence[int] = ()
) -> tuple[DeviceView, ...]:
    """Each a little fuller than the one before, where a pass is running."""
    working = any(each.word == "running" for each in passes)
    weights = int(WEIGHTS[1] * GIB) if working else 0
    return tuple(
        one_device(
            number,
            name=name,
            kind=kind,
            weights=weights,
            work=int((0.8 + number * 5.4 / max(1, devices - 1)) * GIB) if working else 0,
            lost="CUDA error: an illegal memory access was encountered" if number in lost else "",
            history=120 if devices <= 16 else 12,
        )
        for number, name in enumerate(device_names(devices, kind))
    )


def one_device(
    number: int,
    *,
    name: str = "cuda:0",
    kind: str = "cuda",
    weights: int = 0,
    work: int = 0,
    total: int = T4,
    ceiling: int = 12 * GIB,
    lost: str = "",
    history: int = 120,
    **fields: Any,
) -> DeviceView:
    """A card (or the host) with `weights` attached and `work` bytes of activations, and `history` seconds of that."""
    occupied = CONTEXT + weights + work
    label = {"cpu": "host", "sim": "Tesla T4 (simulated)", "scripted": "Tesla T4 (scripted)"}.get(kind, "Tesla T4")
    card = kind in ("cuda", "sim", "scripted")
    told = [CONTEXT + (occupied - CONTEXT) * min(1 + place * 13 % 29, 40) // 40 for place in range(history)]
    view = DeviceView(
        facts=DeviceFacts(name=name, kind=kind, label=label, total_bytes=total, ceiling_bytes=ceiling),
        memory=Memory(allocated=weights + work // 2, reserved=(weights + work) * card, occupied=occupied),
        readings=Readings(
            used=occupied + 200 * MIB,
            total=total,
            others=200 * MIB if card else None,
            utilisation=min(99, 40 + number * 7) if kind == "cuda" else None,
            temperature=61 + number if kind == "cuda" else None,
        ),
        peak=max(occupied, int(occupied * 1.2)),
        weights=weights,
        lost=lost,
        latest=samples(told, heat=[58 + place // 40 for place in range(history)] if kind == "cuda" else ()),
        samples=len(told),
        course=tuple(told),
    )
    return replace(view, **fields)


def many_leases(
    passes: Sequence[PassView], devices: Sequence[DeviceView], running: bool, lost: Sequence[int] = ()
) -> tuple[LeaseState, ...]:
    """One a pass that has begun; those of `running` passes are held."""
    names = [device.facts.name for device in devices]
    begun = [each for each in passes if each.batches_done]
    return tuple(
        one_lease(
            number + 1,
            model_pass=each.model_pass,
            model=each.model,
            devices=names,
            held=None if running and each.word == "running" else each.done.seconds / max(1, len(names)),
            weights=WEIGHTS[each.model_pass % len(WEIGHTS)],
            lost=[names[place] for place in lost if place < len(names)],
            granted_at=BEGAN + 120.0 * number,
        )
        for number, each in enumerate(begun)
    )


def one_lease(
    number: int,
    *,
    model_pass: int = 0,
    model: str = "all-minilm-l6",
    devices: Sequence[str] = ("cuda:0", "cuda:1"),
    held: float | None = None,
    weights: float = 0.1,
    residue: int = 0,
    lost: Sequence[str] = (),
    **fields: Any,
) -> LeaseState:
    """A lease that is held (`held` None), or was for so many seconds and has its receipts."""
    base = Memory(allocated=0, reserved=0, occupied=CONTEXT)
    top = int(weights * 3 * GIB)
    peak = Memory(allocated=top, reserved=top, occupied=CONTEXT + top)
    after = Memory(allocated=residue, reserved=residue, occupied=CONTEXT + residue)
    lease = LeaseState(
        lease=f"L{number:03d}",
        model_pass=model_pass,
        model=model,
        devices=list(devices),
        device_kind="cuda",
        budget_bytes=12 * GIB - CONTEXT,
        predicted_bytes=top,
        budgets=dict.fromkeys(devices, 12 * GIB - CONTEXT),
        weights_bytes=int(weights * GIB),
        weights_on={name: int(weights * GIB) for name in devices},
        attach_seconds=1.2,
        warm=number % 2 == 0,
        held_seconds=held,
        receipts=[
            Receipt(device=name, before=base, peak=peak, after=after, residue_bytes=residue, lost=name in lost)
            for name in devices
            if held is not None
        ],
    )
    return replace(lease, **fields)


def many_collections(collections: int, phase: str) -> tuple[CollectionView, ...]:
    """The first of them has duplicates and refusals."""
    word = {"starting": "", "reading": "reading", "resolving": ""}.get(phase, phase if phase in ENDS else "planned")
    first = ("Python-Stdlib", "Kernel-Docs", "RFCs", "Papers")
    names = [first[number % 4] + (f"-{number}" if number > 3 else "") for number in range(collections)]
    return tuple(
        CollectionView(
            name=name,
            word=word,
            read=ev.CollectionRead(name, name.lower(), 1, 12_288 // collections, 120 * leads, 2 * leads, 0.1),
            refused=2 * leads,
            artefacts=3 if phase == "completed" else 0,
            verified=True if phase == "completed" else None,
            reason="disk full" if phase == "failed" and number == 0 else "",
        )
        for number, name in enumerate(names if word else [])
        for leads in [number == 0]
    )


def many_models(passes: int, names: Sequence[str] = MODELS) -> list[ev.ModelResolved]:
    """The second is downloaded, the others are in the cache."""
    return [
        ev.ModelResolved(
            model=_model(number, names),
            source=f"hub:example/{_model(number, names)}",
            outcome="download" if number == 1 else "hit",
            commit="0123456789abcdef",
            bytes=int(WEIGHTS[number % len(WEIGHTS)] * GIB),
            seconds=12.5 if number == 1 else 0.2,
        )
        for number in range(passes)
    ]


def pace(seconds: int = 120, rows: int = 1842, tokens_a_row: int = 80) -> Pace:
    """Rows and tokens of each second, with a stall in the middle."""
    told = [0 if abs(place - seconds // 2) < 3 else rows * (70 + place * 17 % 31) // 100 for place in range(seconds)]
    return Pace(seconds, deque(told, maxlen=600), deque((each * tokens_a_row for each in told), maxlen=600))


def _model(number: int, names: Sequence[str]) -> str:
    name = names[number % len(names)]
    return name if number < len(names) else f"{name}-{number}"
