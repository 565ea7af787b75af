"""The tables of figures in the documentation, made from `results/*.json`; `tools.generate` puts them there.

Each table says of every result that it shows when and on which commit it was measured, and whether the code that it
speaks of has changed since. A result that is not there has no row. A missed goal is bold.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from bench import evidence

PACKED = ("flash", "memory-efficient", "runs")
"""Kernels of the memory law for rows laid end to end."""
Result = Mapping[str, Any]
Row = Sequence[object]


class Figures(NamedTuple):
    """A table, and what its figures were measured on."""

    heads: list[str]
    rows: list[Row]
    origin: str


def figures(heads: list[str], names: Sequence[str], rows: Callable[..., Iterator[Row]]) -> Figures:
    """The table that `rows` makes of these results, each None where it has never been measured."""
    results = {name: result(name) for name in names}
    moments = {name: _when(found) for name, found in results.items() if found}
    told = [(when, [name for name in moments if moments[name] == when]) for when in dict.fromkeys(moments.values())]
    origin = "; ".join(f"{when} ({', '.join(each)})" for when, each in told)
    return Figures(heads, list(rows(*results.values())), f"Measured: {origin or 'nothing yet'}.")


def result(name: str) -> Result | None:
    file = evidence.RESULTS / f"{name}.json"
    return dict(json.loads(file.read_text())) if file.exists() else None


def _when(found: Result) -> str:
    age = evidence.age(found)
    if age == evidence.UNRECORDED:
        return age
    return f"{found['date']} at {found['commit']}" + (f", **{age}**" if age else "")


def _met(text: str, met: bool) -> str:
    return text if met else f"**{text}**"


def _goal(found: Result, name: str, form: str = "{:.2f}x", scale: float = 1) -> tuple[str, str]:
    """A figure and its goal, both in the same form."""
    goal = found["goals"][name]
    wanted = float(goal["goal"].split()[1])
    return _met(form.format(goal["value"] * scale), goal["met"]), _plain(form, wanted * scale)


def _plain(form: str, wanted: float) -> str:
    """The goal without the digits that only a figure needs."""
    unit = form.partition("}")[2]
    return f"{wanted:.7g}{unit}"


def measured(
    chunks: Any,
    docstrings: Any,
    bfloat16: Any,
    other: Any,
    qwen3: Any,
    modernbert: Any,
    memory: Any,
    start: Any,
    over: Any,
    lawful: Any,
) -> Iterator[Row]:
    """Those of docs/measurements.md."""
    if chunks:
        yield "encode against sentence-transformers' default batch, real chunks", *_goal(chunks, "x default")
        yield "encode against its best batch size, real chunks", *_goal(chunks, "x best")
    if bfloat16:
        both = [_goal(bfloat16, name, "{:.1f}x") for name in ("x float32 default", "x own best")]
        yield (
            "the same in bfloat16, against its float32 default / its own best bfloat16, docstrings",
            *(" / ".join(pair) for pair in zip(*both, strict=True)),
        )
    if other:
        best = _median(other, other["openvino_best"])
        theirs = _median(other, "st 32") / best
        ours = _median(other, "st 32") / _median(other, "interlock")
        yield (
            "sentence-transformers' OpenVINO backend at its best batch size, against its default, real chunks",
            f"{theirs:.2f}x (ours {ours:.2f}x)",
            "",
        )
    if qwen3 and modernbert:
        both = [_goal(each, "x best") for each in (qwen3, modernbert)]
        yield (
            "a small Qwen3 / ModernBERT, texts of all lengths, against its best batch size",
            *(" / ".join(pair) for pair in zip(*both, strict=True)),
        )
    if chunks:
        yield "cosine to sentence-transformers' own vectors, worst", *_goal(chunks, "minimal cosine", "{:.7f}")
        theirs = chunks["padding"]["st 32"]
        yield f"padding (sentence-transformers' default on the same texts: {theirs:.0%})", *_share(chunks, "padding")
    if memory:
        count = max(memory["runs"], key=int)
        both = [_goal(memory, f"{count} chunks, {name}, MB", "{:.0f}") for name in ("without", "with --qdrant")]
        yield (
            f"resident memory beyond torch and weights at {int(count):,} chunks, without / with a store",
            f"{both[0][0]} / {both[1][0]} MB",
            f"{both[0][1]} MB",
        )
    if start:
        yield (
            "start to the end of a one-batch run, CPU, against importing sentence-transformers and loading the model",
            *_goal(start, "CPU, whole process"),
        )
    if over:
        yield (
            f"share of a run of {over['chunks']:,} chunks that is not a forward pass",
            *_share(over, "share not forward"),
        )
    if lawful:
        packed = [each["peak"] for each in lawful["cases"] if each["attention"] in PACKED]
        farthest = (100 * max(abs(each[name]) for each in packed) for name in ("median", "worst"))
        yield (
            "memory law against traces of whole networks, packed, each GPU kernel: error of the peak, median / worst",
            " / ".join(f"{each:.3f} %" for each in farthest),
            "1 % / 2 %",
        )
        both = [_share(lawful, f"{name} error of peak", 2) for name in ("median", "worst")]
        what = "the same with padded networks, which are computed where rows cannot be packed"
        yield what, *(" / ".join(pair) for pair in zip(*both, strict=True))
    shares = [_share(each, "share of GEMM peak", 0) for each in (docstrings, chunks) if each]
    if shares:
        yield "share of the processor's own float32 matrix rate", " / ".join(s for s, _ in shares), shares[0][1]


def _share(found: Result, name: str, digits: int = 1) -> tuple[str, str]:
    return _goal(found, name, f"{{:.{digits}f}} %", 100)


def _median(found: Result, name: str) -> float:
    return float(found["cpu_seconds"][name]["median"])


def encode(*found: Any) -> Iterator[Row]:
    there = [each for each in found if each]
    yield "texts / tokens / rounds", *(f"{f['texts']} / {f['tokens']:,} / {f['rounds']}" for f in there)
    yield "interlock", *(_spread(f, "interlock") for f in there)
    yield "sentence-transformers, default (32)", *(_spread(f, "st 32") for f in there)
    yield "the same in float32", *(_spread(f, "st float32 32") for f in there)
    yield "its best batch size", *(f"{_spread(f, f['best'])} at {f['best'].split()[1]}" for f in there)
    if any(f.get("openvino_best") for f in there):
        yield "its OpenVINO backend, best batch size", *(
            f"{_spread(f, b)} at {b.split()[1]}" if (b := f.get("openvino_best")) else "" for f in there
        )  # fmt: skip
    for name in ("x default", "x float32 default", "x best", "x own best", "minimal cosine", "mean cosine"):
        form = "{:.7f}" if "cosine" in name else "{:.2f}"
        yield name, *(_beside(f, name, form) for f in there)
    yield "share of GEMM peak", *(_beside(f, "share of GEMM peak", "{:.1f} %", 100) for f in there)
    yield "padding", *(_beside(f, "padding", "{:.2f} %", 100) for f in there)
    yield "padding of the default", *(f"{f['padding']['st 32']:.0%}" for f in there)
    yield "tokenising, of our time", *(f"{f['tokenise_share']:.1%}" for f in there)


def _spread(found: Result, name: str) -> str:
    if name not in found["cpu_seconds"]:
        return ""
    each = found["cpu_seconds"][name]
    return f"{each['median']:.2f} ({each['min']:.2f}-{each['max']:.2f})"


def _beside(found: Result, name: str, form: str, scale: float = 1) -> str:
    """A figure with its goal, where this result has one of that name."""
    return ", goal ".join(_goal(found, name, form, scale)) if name in found["goals"] else ""


def memory(found: Any) -> Iterator[Row]:
    for count, phases in (found or {"runs": {}})["runs"].items():
        beyond = (f"{phases[phase]['beyond_mb']:.0f}" for phase in ("reading", "pass", "files", "store"))
        anonymous = " / ".join(f"{phases[phase]['RssAnon_beyond_mb']:.0f}" for phase in ("pass", "store"))
        yield f"{int(count):,}", *beyond, anonymous


def law(found: Any) -> Iterator[Row]:
    cases = (found or {"cases": []})["cases"]
    for name in dict.fromkeys(each["architecture"] for each in cases):
        peaks = {each["attention"]: each["peak"] for each in cases if each["architecture"] == name}
        yield name, *(_percents(peaks.get(attention)) for attention in _ways(found))
    if cases:
        activations = [each["activations"] for each in cases]
        worst = 100 * max((each["worst"] for each in activations), key=abs)
        median = 100 * max(each["median"] for each in activations)
        met = found["goals"]["worst error of activations"]["met"]
        rest = [""] * (len(_ways(found)) - 1)
        yield "activations alone, of all", f"{median:.2f} / {_met(f'{worst:.0f}', met)}", *rest


def _ways(found: Any) -> list[str]:
    """How attention was computed in the cases of the memory law."""
    return list(dict.fromkeys(each["attention"] for each in (found or {"cases": []})["cases"]))


def _percents(found: Any) -> str:
    return f"{100 * found['median']:.3f} / {100 * found['worst']:.2f}" if found else ""


def kernels(found: Any) -> Iterator[Row]:
    cells: dict[str, dict[str, Any]] = {}
    for each in (found or {"ways": []})["ways"]:
        cells.setdefault(each["architecture"], {})[each["way"]] = each
    for kind, ways in cells.items():
        first = ways["resident"]
        layers = " / ".join(f"{each['kernels_a_layer']:.0f}" for each in ways.values())
        name = kind if first["packed"] else f"{kind}, padded".replace(" padded, padded", ", padded")
        faults = sum(each["faults"] for each in ways.values())
        beside = f"{first['kernels_beside_layers']:.0f}"
        yield name, _met(str(faults), not faults), layers, beside, first["waits_a_batch"]
    for name in (found or {"goals": {}})["goals"]:
        yield f"goal: {name}", *_goal(found, name, "{:.0f}"), "", ""


def console(*found: Any) -> Iterator[Row]:
    """Each goal once: of the result that comes first."""
    goals = {name: result for result in reversed(found) if result for name in result["goals"]}
    for name, each in goals.items():
        scale, form = (100, "{:.1f} %") if name.startswith("engine's rate") else (1, "{:.4g}")
        yield name, *_goal(each, name, form, scale)


def processes(found: Any) -> Iterator[Row]:
    for name, each in (found or {"seconds": {}})["seconds"].items():
        yield (
            name,
            *(
                f"{s['median']:.2f} ({s['min']:.2f}-{s['max']:.2f})" if (s := each.get(what)) else ""
                for what in ("cpu", "wall", "first_batch")
            ),
        )
    for name in found["goals"] if found else ():
        yield f"ours against theirs: {name}", _beside(found, name, "{:.2f}"), "", ""


def overhead(found: Any) -> Iterator[Row]:
    seconds = dict(found["seconds"]) if found else {}
    for name, each in seconds.items():
        yield name, f"{each:.2f}", f"{100 * each / seconds['run']:.2f} %"
    if found:
        yield "not a forward pass", "", _beside(found, "share not forward", "{:.1f} %", 100)


def plans(found: Any) -> Iterator[Row]:
    for name, value in (found or {}).items():
        if name in ("commit", "date", "sources", "sources_sha256", "seconds_on_this_host"):
            continue
        told = (
            ", ".join(f"{key} {count:,}" for key, count in value.items()) if isinstance(value, dict) else f"{value:,}"
        )
        yield name.replace("_", " "), told


def campaigns(found: Any) -> Iterator[Row]:
    for each in (found or {"campaigns": []})["campaigns"]:
        tried = ", ".join(f"{name} {count:,}" for name, count in each["tried"].items())
        failures = len(each["failures"])
        yield each["name"], each["what"], f"{each['trials']:,}", tried, _met(f"{failures:,}", not failures)
    for name, goal in (found or {"goals": {}})["goals"].items():
        yield f"all: {name}", f"goal {goal['goal']:,}", "", _met(f"{goal['tried']:,}", goal["met"]), ""


def growth(found: Any) -> Iterator[Row]:
    for each in (found or {"subjects": []})["subjects"]:
        exponents = (each["exponent"], each["memory_exponent"])
        told = ("" if k is None else _met(f"{k:.2f}", k <= found["most"]) for k in exponents)
        largest = each["sizes"][-1]
        yield each["subject"], f"{largest:,}", f"{each['cpu_seconds'][-1]:.2f}", f"{each['mib'][-1]:.0f}", *told
    if big := (found or {}).get("big"):
        yield (
            "identical records, planned",
            f"{big['identical_records']:,}",
            big["identical_records_cpu_seconds"],
            "",
            "",
            "",
        )
        each = big["kib_a_chunk"]
        beside = f"{_met(str(each['value']), each['met'])} KiB each"
        seconds, mib = big["small_chunks_cpu_seconds"], f"{big['mib_for_small_chunks']:.0f}"
        yield "small chunks, planned", f"{big['small_chunks']:,}", seconds, mib, "", beside


ENCODES = ("encode-float32-docstrings", "encode-float32-chunks", "encode-bfloat16-docstrings", "encode-openvino",
           "encode-qwen3", "encode-modernbert")  # fmt: skip
SHORT = ("float32, docstrings", "float32, chunks", "bfloat16, docstrings", "float32 beside OpenVINO", "small Qwen3",
         "small ModernBERT")  # fmt: skip
FIRST = ("encode-float32-chunks", ENCODES[0], *ENCODES[2:], "memory", "start", "overhead", "law")


def _encode() -> Figures:
    heads = ["", *(short for name, short in zip(ENCODES, SHORT, strict=True) if result(name))]
    return figures(heads, ENCODES, encode)


PARTS: dict[str, Callable[[], Figures]] = {
    "measured": lambda: figures(["what", "measured", "goal"], FIRST, measured),
    "encode": _encode,
    "memory": lambda: figures(
        ["chunks", "reading", "pass", "files", "store", "of it anonymous, pass / store"], ["memory"], memory
    ),
    "memory law": lambda: figures(["", *_ways(result("law"))], ["law"], law),
    "kernels": lambda: figures(
        ["architecture", "faults", "kernels a layer: resident / sliced / streamed / T4", "beside the layers", "waits"],
        ["kernels"],
        kernels,
    ),
    "console": lambda: figures(["", "measured", "goal"], ["screen", "screen-throughput"], console),
    "start": lambda: figures(["process", "CPU s", "wall s", "wall to first batch s"], ["start"], processes),
    "overhead": lambda: figures(["part", "s", "of the run"], ["overhead"], overhead),
    "campaigns": lambda: figures(["campaign", "", "trials", "tried", "failures"], ["campaigns"], campaigns),
    "growth": lambda: figures(
        ["of", "largest", "CPU s", "peak MiB", "exponent, time", "exponent, memory"], ["growth"], growth
    ),
    "random plans": lambda: figures(["what the plans met", ""], ["plans"], plans),
}
