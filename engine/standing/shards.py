"""Whether runs are all the shards of one run: each there once and complete, of the same texts and settings, with counts
that add up to what each of them says all have. Reads run.json and journals, and nothing else."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from interlock.engine.errors import InterlockError, UsageError
from interlock.engine.record.events import CollectionRead
from interlock.engine.record.inputs import union_of
from interlock.engine.record.rundir import RunDirectory, runs_at
from interlock.engine.record.state import RunState
from interlock.engine.record.words import few, several
from interlock.engine.standing.runs import state_of

ALIKE = ("bm25", "chunk_sparse", "export", "keep", "payload")
"""Settings that shards have in common, beside what their texts and models are."""


@dataclass(frozen=True)
class ShardUnion:
    """The shards of one run: a line for each collection with what was counted, and what is wrong, if anything is."""

    told: list[str]
    faults: list[str]


def unions(places: Sequence[Path]) -> list[ShardUnion]:
    """Look at the runs in these places, directories of runs or single ones, as shards. Raises UsageError where none is
    one, InterlockError for a journal that is damaged."""
    found = defaultdict[str, dict[int, list[tuple[Path, RunState]]]](lambda: defaultdict(list))
    sizes = dict[str, int]()
    for path in runs_at(places):
        inputs = dict[str, object]()
        with suppress(InterlockError):  # of one that is damaged nobody knows whether it is a shard
            inputs = RunDirectory(path).inputs()
        if union := union_of(inputs):
            number, _, of = str(inputs["shard"]).partition("/")
            sizes[union] = int(of)
            found[union][int(number)].append((path, state_of(path)))
    if not found:
        raise UsageError(f"no run in {few([str(each) for each in places])} is a shard: name runs made with --shard K/N")
    return [_union(held, sizes[union]) for union, held in found.items()]


def _union(held: dict[int, list[tuple[Path, RunState]]], of: int) -> ShardUnion:
    whole, faults = list[RunState](), list[str]()
    for number in sorted(held):
        done = [each for each in held[number] if each[1].status == "completed"]
        whole += [state for _, state in done[:1]]
        if len(done) > 1:
            runs = few([path.name for path, _ in done])
            faults.append(f"shard {number}/{of} is there {len(done)} times: keep one of {runs}")
        elif not done:
            path, state = held[number][0]
            faults.append(f"shard {number}/{of} is {state.status or 'begun'} ({path}): --resume it")
    if missing := [f"{number}/{of}" for number in range(1, of + 1) if number not in held]:
        faults.append(f"no run of {few(missing)}: run them, or name where they are")
    configs = [state.started.config for state in whole if state.started]
    for name in ALIKE:
        had = {str(config[name].value) for config in configs if name in config}
        if len(had) > 1:
            faults.append(f"--{name.replace('_', '-')} is not the same in all ({few(sorted(had))}): run those anew")
    told, complete = [f"{len(whole):,} of {several(of, 'shard')} completed"], not faults
    for name in whole[0].collections if whole else ():
        reads = [state.collections[name].read for state in whole if name in state.collections]
        told.append(f"{name}: {_counted(reads)}")
        faults += [f"{name}: {each}" for each in _odd(reads, complete=complete)]
    return ShardUnion(told, faults)


def _own(read: CollectionRead) -> dict[str, int]:
    return {"chunks": read.chunks, "same": read.same, "refused": read.refused - read.refused_files}


def _counted(reads: Sequence[CollectionRead]) -> str:
    sums = Counter[str]()
    for read in reads:
        sums.update(_own(read))
    files = max(read.refused_files for read in reads)  # each tells all of them
    parts = f"{sums['chunks']:,} chunks + {sums['same']:,} the same + {sums['refused']:,} refused"
    return f"{several(sums.total(), 'record')} = {parts}" + f"; {several(files, 'file')} refused" * bool(files)


def _odd(reads: Sequence[CollectionRead], *, complete: bool) -> Iterator[str]:
    """What does not add up: all shards say the same of all, and, where all are there, that is what they have."""
    every = {tuple(count + read.elsewhere.get(kind, 0) for kind, count in _own(read).items()) for read in reads}
    if len(every) > 1 or len({read.refused_files for read in reads}) > 1:
        yield "shards counted different records: run them anew from the same files"
    elif complete and tuple(map(sum, zip(*(_own(read).values() for read in reads), strict=True))) not in every:
        yield "the shards' records are not those that each says all have: run them anew from the same files"
