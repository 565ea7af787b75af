"""What a model's directory holds: its JSON files, modules and weights, each read with care.

Every failure is an UnavailableError that names the file. Reads JSON and the headers of weights, never the weights;
weights are safetensors or refused, and code that a model brings along is only named here.
"""

import json
import math
import mmap
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
from safetensors import SafetensorError, safe_open

from interlock.engine.corpus.tokens import SENTENCE_CONFIGS
from interlock.engine.errors import UnavailableError

POSITIONS = 512
"""The longest row of a model that does not say its own."""
SPLADE = "SpladePooling"
"""What a sparse model ends with."""
NETWORKS = ("Transformer", "MLMTransformer")
STATIC = "StaticEmbedding"
STATIC_TYPE = "static"
"""The `model_type` that a table of vectors is given here."""
WEIGHTED = frozenset({"Dense", "LayerNorm", "WeightedLayerPooling"})
SUPPORTED = {*NETWORKS, *WEIGHTED, STATIC, "Pooling", "Normalize", "Dropout", SPLADE, "LogitScore"}
POOLED = ("Pooling", SPLADE, "LogitScore", STATIC)
"""What makes one thing of a text out of those of its tokens."""
ROUTER, MODULES, PROMPTS = "router_config.json", "modules.json", "config_sentence_transformers.json"
WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
ONNX = ".onnx"
PLAIN_ONNX = ("onnx/model.onnx", "model.onnx")
_EXTERNAL = re.compile(rb"\n\x08location\x12([\x01-\x7f])")
"""In an ONNX file, before the name of a file beside it that has numbers of it, and how long that is."""
OF_TOKENIZER = ("tokenizer_config.json", "special_tokens_map.json", "added_tokens.json")
"""What changes ids beside `tokenizer.json`."""
SETTINGS = (*SENTENCE_CONFIGS, "tokenizer_config.json", PROMPTS)
MERGED = "merged.json"
"""Of which files a model was merged."""
OF_MODEL = (MODULES, PROMPTS, ROUTER, "idf.json", MERGED)
OF_NETWORK = (
    *("config.json", "tokenizer.json", *OF_TOKENIZER, *SENTENCE_CONFIGS, "vocab.txt", "vocab.json", "merges.txt"),
    *("*.model", "chat_template.*", "generation_config.json", "adapter_config.json", "*processor_config.json"),
)
"""What libraries read beside weights: of a model, and in the folder of its network."""


class Unsupported(UnavailableError):
    """A model is what is not computed here, however much of it there is."""


class PickleOnly(UnavailableError):
    """The weights at `place` are pickles, and nothing says that they may be read."""

    def __init__(self, place: object) -> None:
        super().__init__(f"{place} has its weights as pickle only")
        self.place = str(place)


@dataclass(frozen=True)
class Module:
    """One row of `modules.json`: a part of a sentence-transformers model and its folder, '' for the model's own."""

    type: str
    path: str = ""

    @property
    def kind(self) -> str:
        return self.type.rsplit(".", 1)[-1]


class _Router(msgspec.Struct):
    types: dict[str, str]
    structure: dict[str, list[str]]


def check_supported(path: Path) -> None:
    """Raise Unsupported, naming file and module, for a model that has one that is not computed here, or not where it
    stands."""
    for module in document_modules(path):
        route = [each.kind for each in routes_of(path).get("document", [])]
        through = f" whose documents go through {', '.join(route)}" * bool(route)
        if not module.type.startswith("sentence_transformers."):
            raise Unsupported(
                f"{path / MODULES} names {module.type}, the model's own code, which is never run: use a model "
                "without it"
            )
        named = module.kind or module.type
        if module.kind not in SUPPORTED:
            raise Unsupported(f"{path / MODULES}: module {named}{through} is not supported: use another model")
        if module.kind in NETWORKS and path / module.path != home_of(path):
            raise Unsupported(
                f"{path / MODULES}: path of the Transformer: expected the model's directory, got {module.path!r}"
            )
    _check_order(path, [module.kind for module in document_modules(path)])


def _check_order(path: Path, kinds: Sequence[str]) -> None:
    """Raise Unsupported where a module is given what none before it makes: a network comes first, and vectors of whole
    texts come of a pooling."""
    if not kinds and (path / MODULES).is_file():
        raise Unsupported(f"{path / MODULES} names no module: fetch the model again")
    if STATIC in kinds and (kinds[0] != STATIC or {*kinds[1:]} - {"Normalize"}):
        named = f"expected a {STATIC} with nothing but a Normalize, got {', '.join(kinds)}"
        raise Unsupported(f"{path / MODULES}: {named}: use another model")
    if kinds and kinds[0] not in (*NETWORKS, STATIC):
        raise Unsupported(f"{path / MODULES}: expected the Transformer first, got {kinds[0]}: use another model")
    pooled = next((place for place, kind in enumerate(kinds) if kind in POOLED), len(kinds))
    if early := [kind for kind in kinds[:pooled] if kind in ("Normalize", "LayerNorm")]:
        raise Unsupported(f"{path / MODULES}: {early[0]} stands before any Pooling: use another model")


def check_complete(path: Path) -> None:
    """Raise UnavailableError unless everything that loading reads is there, through its links, and can be read."""
    home = home_of(path)
    for name in ("config.json", "tokenizer.json")[is_static(path) :]:
        _require(home, name)
    for name in ("config.json", *SETTINGS):
        read_object(home / name)
    read_object(path / PROMPTS)
    for weights in weights_of(path):
        if weights.suffix == ".safetensors":
            values_in(weights)
    for module in document_modules(path):
        if module.path and module.kind not in ("Normalize", STATIC):
            _require(path, f"{module.path}/config.json")
            read_object(path / module.path / "config.json")


def read_object(file: Path) -> dict[str, object]:
    """Read the object in a JSON file; empty where there is no such file."""
    if not file.is_file():
        return {}
    content = _read(file)
    if not isinstance(content, dict):
        raise UnavailableError(f"{file} is not a JSON object")
    return content


def architecture_of(config: Mapping[str, object]) -> str:
    """Return what a configuration calls its network; empty where it names none."""
    named = config.get("architectures")
    return str(named[0]) if isinstance(named, list) and named else ""


def modules_of(path: Path) -> list[Module]:
    """Read the rows of `modules.json`; none where there is no such file."""
    file = path / MODULES
    if not file.is_file():
        return []
    try:
        modules = msgspec.convert(_read(file), list[Module])
    except msgspec.ValidationError as error:
        raise UnavailableError(f"cannot use {file}: {error}") from None
    _check_inside(file, modules)
    return modules


def routes_of(path: Path) -> dict[str, list[Module]]:
    """Read the modules that texts go through, by their task, where a Router decides; empty where there is none."""
    file = path / ROUTER
    if [module.kind for module in modules_of(path)] != ["Router"] or not file.is_file():
        return {}
    try:
        router = msgspec.convert(_read(file), _Router)
        routes = {
            task: [Module(router.types[name], name) for name in names] for task, names in router.structure.items()
        }
    except (msgspec.ValidationError, KeyError) as error:
        raise UnavailableError(f"cannot use {file}: {error}") from None
    for modules in routes.values():
        _check_inside(file, modules)
    return routes


def document_modules(path: Path) -> list[Module]:
    """List the modules that documents go through: of a sparse model with routes, those of its route for documents."""
    route = routes_of(path).get("document", [])
    return route if route and route[-1].kind == SPLADE else modules_of(path)


def home_of(path: Path) -> Path:
    """Find the folder of a model's network, its configuration and tokenizer: that of the model, of a route, or of a
    table."""
    first = next(iter(document_modules(path)), None)
    apart = first is not None and (first.kind == STATIC or (first.kind in NETWORKS and bool(routes_of(path))))
    return path / first.path if first and apart else path


def is_static(path: Path) -> bool:
    """Tell whether a model is a table of vectors: of sentence-transformers, or of model2vec alone."""
    modules = modules_of(path)
    model2vec = read_object(path / "config.json").get("model_type") == "model2vec"
    return modules[0].kind == STATIC if modules else model2vec


def weights_of(path: Path) -> list[Path]:
    """List the weight files of a model, those that transformers would read: its own, then those of its modules."""
    home = home_of(path)
    config = home / "config.json"
    if named := read_object(config).get("transformers_weights"):
        raise Unsupported(f"{config}: transformers_weights is {named!r:.100}, which is not supported")
    if onnx := onnx_of(path):
        files = [onnx, *_beside(onnx)]
    else:
        files = list(_indexed(home) if is_indexed(home) else _single(home, needed=True))
    for module in document_modules(path):
        if path / module.path not in (path, home):
            files += _single(path / module.path, needed=module.kind in WEIGHTED)
    return files


def onnx_of(path: Path) -> Path | None:
    """Find the ONNX file of a model that has no other weights; None where it has, or where none is the plain one."""
    home = home_of(path)
    if is_indexed(home) or any(any(home.glob(pattern)) for pattern in ("*.safetensors", "*.bin")):
        return None
    name = plain_onnx(file.relative_to(home).as_posix() for each in ("*", "onnx/*") for file in home.glob(each + ONNX))
    return home / name if name else None


def plain_onnx(names: Iterable[str]) -> str:
    """Choose among the files of a model the ONNX that is no variant of another: the plain one, or the only one there;
    empty where there is none."""
    found = [name for name in names if name.endswith(ONNX) and name.rpartition("/")[0] in ("", "onnx")]
    return next((name for name in PLAIN_ONNX if name in found), found[0] if len(found) == 1 else "")


def _beside(onnx: Path) -> list[Path]:
    """The files in which an ONNX file keeps numbers. Raises UnavailableError where one lacks or lies elsewhere."""
    try:
        with onnx.open("rb") as handle, mmap.mmap(handle.fileno(), 0, access=mmap.ACCESS_READ) as content:
            found = [content[each.end() : each.end() + each[1][0]] for each in _EXTERNAL.finditer(content)]
    except (OSError, ValueError) as error:
        raise UnavailableError(f"{onnx} is damaged ({error}): delete that copy and fetch it again") from error
    names = sorted({name.decode("utf-8", "replace") for name in found})
    for name in names:
        if Path(name).name != name:
            raise Unsupported(f"{onnx} keeps numbers in {name!r:.100}, outside its folder: use another model")
        _require(onnx.parent, name)
    return [onnx.parent / name for name in names]


def is_indexed(home: Path) -> bool:
    """Tell whether weights are spread over files that an index names: where there is a single file, that counts."""
    return not (home / WEIGHTS).is_file() and (home / INDEX).is_file()


def settings_of(path: Path) -> list[Path]:
    """List everything beside `weights_of` that loading may read: with these a model is what it is."""
    home, routes = home_of(path), [module for route in routes_of(path).values() for module in route]
    folders = {path / module.path for module in (*modules_of(path), *routes)} - {path, home}
    found = [path / name for name in OF_MODEL] + [file for name in OF_NETWORK for file in home.glob(name)]
    found += [file for folder in folders for file in folder.glob("*.json")]
    found += [path / module.path / WEIGHTS for module in routes if path / module.path != home]
    found += [home / INDEX] * is_indexed(home)
    return sorted({file for file in found if file.is_file()})


def values_in(file: Path) -> int:
    """Count the numbers that a safetensors file holds, by its header; refuses a file that was cut short."""
    return sum(math.prod(shape) for shape in shapes_in(file).values())


def shapes_in(file: Path) -> dict[str, tuple[int, ...]]:
    """Read the shape of each tensor in a safetensors file, by its header; refuses a file that was cut short."""
    _require(file.parent, file.name)
    try:
        with safe_open(file, framework="np") as header:
            return {name: tuple(header.get_slice(name).get_shape()) for name in header.keys()}  # noqa: SIM118
    except (SafetensorError, OSError, ValueError) as error:
        raise UnavailableError(f"{file} is damaged ({error}): delete that copy and fetch it again") from error


def _check_inside(file: Path, modules: Sequence[Module]) -> None:
    for module in modules:
        if Path(module.path).is_absolute() or ".." in Path(module.path).parts:
            raise UnavailableError(f"{file} names {module.path}, outside the model's directory")


def _require(path: Path, name: str) -> None:
    """Raise UnavailableError saying why a file is missing or cannot be read; libraries would not say."""
    if not (path / name).is_file():
        raise UnavailableError(f"{path} lacks {name}")
    try:
        (path / name).open("rb").close()
    except OSError as error:
        raise UnavailableError(f"cannot read {path / name}: {error.strerror}") from error


def _read(file: Path) -> object:
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise UnavailableError(f"cannot read {file}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise UnavailableError(f"cannot read {file}: {error}") from error


def _indexed(path: Path) -> Iterator[Path]:
    """The parts of weights that are spread over several files."""
    file = path / INDEX
    table = read_object(file).get("weight_map")
    names = list(table.values()) if isinstance(table, dict) else []
    if not names or not all(isinstance(name, str) and Path(name).name == name for name in names):
        raise UnavailableError(f"{file} lacks a weight_map that names the weight files")
    yield from (path / name for name in sorted(set(names)))


def _single(folder: Path, *, needed: bool) -> Iterator[Path]:
    if (folder / WEIGHTS).is_file():
        yield folder / WEIGHTS
    elif any(folder.glob("*.bin")):
        raise PickleOnly(folder)
    elif needed:
        raise UnavailableError(f"{folder} lacks {WEIGHTS}")
