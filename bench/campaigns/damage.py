"""Ways to damage a file, each a function of its path; all leave something or nothing at that path, and never fail."""

import json
import pickle
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np

Way = Callable[[Path, random.Random], object]


def _bytes(change: Callable[[bytes, random.Random], bytes]) -> Way:
    return lambda path, rng: path.write_bytes(change(path.read_bytes(), rng))


def _flipped(data: bytes, rng: random.Random, bits: int = 1) -> bytes:
    changed = bytearray(data)
    for _ in range(bits if changed else 0):
        changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
    return bytes(changed)


def _text(words: bytes) -> Way:
    return lambda path, _: path.write_bytes(words)


def _directory(path: Path, _: random.Random) -> None:
    path.unlink()
    path.mkdir()


def _full_directory(path: Path, rng: random.Random) -> None:
    _directory(path, rng)
    (path / "something").write_text("else")


def _linked(target: str) -> Way:
    def link(path: Path, _: random.Random) -> None:
        path.unlink()
        path.symlink_to(target)

    return link


def _retyped(path: Path, rng: random.Random) -> None:
    """One value of a JSON object, at any depth, becomes one of another type, or goes."""
    try:
        document = json.loads(path.read_bytes())
    except ValueError:
        path.write_bytes(b"[1]")
        return
    places = list(_places(document))
    holder, key = rng.choice(places) if places else (None, None)
    if holder is None:
        return
    value = rng.choice((None, 1, -1, 1e400, 10**39, "x", [], {}, [1], {"a": 1}, True, "\u202e", "../x", ...))
    if value is ...:
        del holder[key]
    else:
        holder[key] = value
    path.write_text(json.dumps(document))


def _places(document: object) -> list[tuple[object, object]]:
    keys = document.keys() if isinstance(document, dict) else range(len(document)) if isinstance(document, list) else ()
    own = [(document, key) for key in keys]
    return own + [place for key in keys for place in _places(document[key])]


def _array(change: Callable[[np.ndarray, random.Random], np.ndarray | None]) -> Way:
    """Change what a `.npy` holds and keep it a `.npy`; another file is cut in half."""

    def way(path: Path, rng: random.Random) -> None:
        try:
            array = np.load(path)
        except ValueError:
            path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
            return
        changed = change(array, rng)
        with path.open("wb") as handle:
            np.save(handle, array if changed is None else changed)

    return way


def _bit_of_value(array: np.ndarray, rng: random.Random) -> None:
    """A value's sign, or a bit in its middle."""
    if array.dtype == np.float32 and array.size:
        array.reshape(-1).view(np.uint32)[rng.randrange(array.size)] ^= np.uint32(1 << rng.choice((31, 20, 12)))
    elif array.size:
        flat = array.reshape(-1).view(np.uint8)
        flat[rng.randrange(len(flat))] ^= 1


def _rows_swapped(array: np.ndarray, rng: random.Random) -> None:
    if len(array) > 1:
        one, other = rng.sample(range(len(array)), 2)
        array[[one, other]] = array[[other, one]]


def _row_set(value: float) -> Callable[[np.ndarray, random.Random], None]:
    def change(array: np.ndarray, rng: random.Random) -> None:
        if len(array):
            array[rng.randrange(len(array))] = value if array.dtype.kind == "f" else 1

    return change


def _pickled(path: Path, _: random.Random) -> None:
    path.write_bytes(pickle.dumps({"a": 1}))


WAYS: dict[str, Way] = {
    "empty": _text(b""),
    "half": _bytes(lambda data, _: data[: len(data) // 2]),
    "a byte less": _bytes(lambda data, _: data[:-1]),
    "a byte more": _bytes(lambda data, rng: data + rng.randbytes(1)),
    "cut anywhere": _bytes(lambda data, rng: data[: rng.randrange(len(data) + 1)]),
    "zeros": _bytes(lambda data, _: bytes(len(data))),
    "garbage": _bytes(lambda data, rng: rng.randbytes(len(data))),
    "a bit flipped": _bytes(_flipped),
    "bits flipped": _bytes(lambda data, rng: _flipped(data, rng, 8)),
    "garbage in the middle": _bytes(
        lambda data, rng: data[: len(data) // 2] + rng.randbytes(9) + data[len(data) // 2 + 9 :]
    ),
    "a list": _text(b"[1]"),
    "a number": _text(b"1"),
    "null": _text(b"null"),
    "true": _text(b"true"),
    "NaN": _text(b"NaN"),
    "an object": _text(b"{}"),
    "a string": _text(b'"x"'),
    "no UTF-8": _text(b'{"a": "\xff\xfe"}'),
    "too deep": _text(b"[" * 200_000),
    "another type": _retyped,
    "other types": lambda path, rng: [_retyped(path, rng) for _ in range(4)],
    "a value's bit": _array(_bit_of_value),
    "rows swapped": _array(_rows_swapped),
    "a row of NaN": _array(_row_set(float("nan"))),
    "a row of sevens": _array(_row_set(7.0)),
    "a row less": _array(lambda array, _: array[:-1]),
    "another precision": _array(lambda array, _: array.astype(np.float64)),
    "one dimension": _array(lambda array, _: array.reshape(-1)),
    "a pickle": _pickled,
    "a directory": _directory,
    "a full directory": _full_directory,
    "a link to nothing": _linked("nothing/there"),
    "a link to itself": lambda path, rng: _linked(path.name)(path, rng),
    "removed": lambda path, _: path.unlink(),
    "its directory removed": lambda path, _: shutil.rmtree(path.parent),
}
