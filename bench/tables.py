"""The tables of figures in the documentation, made from `results/*.json`; `tools.generate` puts them there.

Each table says of every result that it shows when and on which commit it was measured, and whether the code that it
speaks of has changed since.
"""

from collections.abc import Callable, Iterator
from typing import Any

from bench import cluster_tables, retrieval_tables, run_tables
from bench.figures import Figures, Row, beside_goal, current, figures, goal_of, median_of, met_or_bold, spread_of
from bench.overview import measured


def encode(*found: Any) -> Iterator[Row]:
    there = [each for each in found if each]
    yield "texts / tokens / rounds", *(f"{f['texts']} / {f['tokens']:,} / {f['rounds']}" for f in there)
    yield "interlock", *(spread_of(f, "interlock") for f in there)
    yield "sentence-transformers, default (32)", *(spread_of(f, "st 32") for f in there)
    yield "the same in float32", *(spread_of(f, "st float32 32") for f in there)
    yield "its best batch size", *(f"{spread_of(f, f['best'])} at {f['best'].split()[1]}" for f in there)
    if any(f.get("openvino_best") for f in there):
        yield "its OpenVINO backend, best batch size", *(
            f"{spread_of(f, b)} at {b.split()[1]}" if (b := f.get("openvino_best")) else "" for f in there
        )  # fmt: skip
    for name in ("x default", "x float32 default", "x best", "x own best", "minimal cosine", "mean cosine"):
        form = "{:.7f}" if "cosine" in name else "{:.2f}"
        yield name, *(beside_goal(f, name, form) for f in there)
    yield "nearest ten kept", *(beside_goal(f, "nearest ten kept", "{:.1f} %", 100) for f in there)
    yield "share of GEMM peak", *(beside_goal(f, "share of GEMM peak", "{:.1f} %", 100) for f in there)
    yield "padding", *(beside_goal(f, "padding", "{:.2f} %", 100) for f in there)
    yield "padding of the default", *(f"{f['padding']['st 32']:.0%}" for f in there)
    yield "tokenising, of our time", *(f"{f['tokenise_share']:.1%}" for f in there)


def sparse(*found: Any) -> Iterator[Row]:
    there = [each for each in found if each]
    if not there:
        return
    yield "texts / tokens / terms a text", *(
        f"{f['texts']} / {f['tokens']:,} / {f['terms_per_text']:.0f}" for f in there
    )  # fmt: skip
    yield "interlock", *(spread_of(f, "interlock") for f in there)
    yield "SparseEncoder, default (32)", *(spread_of(f, "st 32") for f in there)
    yield "its best batch size", *(f"{spread_of(f, f['best'])} at {f['best'].split()[1]}" for f in there)
    yield "texts a CPU second, ours / its best", *(
        f"{f['texts'] / median_of(f, 'interlock'):.1f} / {f['texts'] / median_of(f, f['best']):.1f}" for f in there
    )  # fmt: skip
    for name in ("x default", "x best"):
        yield name, *(beside_goal(f, name, "{:.2f}") for f in there)
    yield "largest difference of a weight", *(beside_goal(f, "largest difference", "{:.1e}") for f in there)


def bm25(found: Any) -> Iterator[Row]:
    for each in (found or {"collections": []})["collections"]:
        yield each["collection"], each["texts"], each["queries"], f"{each['english']:.4f}", f"{each['none']:.4f}"
    if found:
        texts, ways = found["texts"], ("without", "with")
        took = " / ".join(f"{1000 * found['cpu_seconds'][way]['median'] / texts:.2f}" for way in ways)
        size = " / ".join(f"{found['bytes a text'][way]:,}" for way in ways)
        yield "CPU ms a text into the store, without / with", texts, "", f"{took} ({found['ratio']:.2f}x)", ""
        yield "bytes a text in the store, without / with", texts, "", size, ""


def search(found: Any) -> Iterator[Row]:
    if found:
        told = {
            "process": "`interlock search`, a process of its own",
            "first": "first question of a `Searcher`",
            "warm": "the next ones",
            "batch": f"each of {found['questions']:,} at once",
        }
        for name, words in told.items():
            each = found["cpu_seconds"][name]
            yield words, f"{1000 * each['median']:.0f} ({1000 * each['min']:.0f} to {1000 * each['max']:.0f})"
        yield "the next ones, by stage", ", ".join(f"{stage} {took}" for stage, took in found["stages_ms"].items())
        for each in found["index"]:
            of = f"{each['points']:,} points of {each['dim']} numbers"
            yield f"{of}: every one compared", each["exact_ms"]
            yield (
                f"{of}: by an index that finds {each['recall']:.1%} of them, built in {each['building_s']} s",
                each["indexed_ms"],
            )


def upload(found: Any) -> Iterator[Row]:
    for name in (found or {"cpu_seconds": {}})["cpu_seconds"]:
        took = (f"{1e6 * found[f'{kind}_seconds'][name]['median'] / found['points']:.0f}" for kind in ("cpu", "wall"))
        size = found["bytes"].get(name)
        yield name, f"{size:,}" if size else "", *took
    for name, each in (found or {"ratios": {}})["ratios"].items():
        yield name, "", beside_goal(found, f"CPU, {name}", "{:.2f}x"), f"{each['wall']:.2f}x"


def streams(found: Any) -> Iterator[Row]:
    for each in (found or {"rows": []})["rows"]:
        cpu, wall = (f"{1e6 * each[kind]['median'] / found['points']:.0f}" for kind in ("cpu", "wall"))
        yield f"{each['way']}, {each['latency_ms']} ms a request", each["streams"], cpu, wall


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
        yield "activations alone, of all", f"{median:.2f} / {met_or_bold(f'{worst:.0f}', met)}", *rest


def _ways(found: Any) -> list[str]:
    """How attention was computed in the cases of the memory law."""
    return list(dict.fromkeys(each["attention"] for each in (found or {"cases": []})["cases"]))


def _percents(found: Any) -> str:
    return f"{100 * found['median']:.3f} / {100 * found['worst']:.2f}" if found else ""


LAW_PLANS = ("plans", "", "texts a second: median", "1 % / 99 %", "forwards", "out of memory", "layers streamed",
             "texts on the CPU", "refused by the GPU", "placed otherwise")  # fmt: skip


def law_plans(found: Any) -> Iterator[Row]:
    """What generated plans come to by a traced law -> by the estimated one; their pace is the second's by the first."""
    for row in (found or {"tables": []})["tables"]:
        what = ("forwards", "ooms", "streamed", "on_host", "refused")
        pairs = [f"{row[f'{each}_traced']:,} -> {row[f'{each}_small']:,}" for each in what]
        pace = f"{row['pace_median']:.3f}", f"{row['pace_p1']:.3f} / {row['pace_p99']:.3f}"
        yield row["group"], f"{row['plans']:,}", *pace, *pairs, row["placed_otherwise"]


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
        yield name, met_or_bold(str(faults), not faults), layers, beside, first["waits_a_batch"]
    for name in (found or {"goals": {}})["goals"]:
        yield f"goal: {name}", *goal_of(found, name, "{:.0f}"), "", ""


def console(*found: Any) -> Iterator[Row]:
    """Each goal once: of the result that comes first."""
    goals = {name: result for result in reversed(found) if result for name in result["goals"]}
    for name, each in goals.items():
        scale, form = (100, "{:.1f} %") if name.startswith("engine's rate") else (1, "{:.4g}")
        yield name, *goal_of(each, name, form, scale)


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
        yield f"ours against theirs: {name}", beside_goal(found, name, "{:.2f}"), "", ""


def overhead(found: Any) -> Iterator[Row]:
    seconds = dict(found["seconds"]) if found else {}
    for name, each in seconds.items():
        yield name, f"{each:.2f}", f"{100 * each / seconds['run']:.2f} %"
    if found:
        yield "not a forward pass", "", beside_goal(found, "share not forward", "{:.1f} %", 100)


def foretold(*found: Any) -> Iterator[Row]:
    results = [each for each in found if each]
    for each in [group for result in results for group in result["groups"]]:
        told, held = each["moments"] - each["silent"], f"{100 * each['held']:.0f} %"
        named = (f"{each['made']}, {each['kind']}", f"{told} of {each['moments']}")
        yield *named, *(f"{100 * each[name]:.0f} %" for name in ("median", "median_of_whole", "bias", "spread")), held
    falls = "times that a percent fell though no work was added"
    if results:
        total = sum(each["goals"][falls]["value"] for each in results)
        yield falls, *[""] * 5, met_or_bold(f"{total:.0f}", total == 0)


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
        yield each["name"], each["what"], f"{each['trials']:,}", tried, met_or_bold(f"{failures:,}", not failures)
    for name, goal in (found or {"goals": {}})["goals"].items():
        yield f"all: {name}", f"goal {goal['goal']:,}", "", met_or_bold(f"{goal['tried']:,}", goal["met"]), ""


def growth(found: Any) -> Iterator[Row]:
    for each in (found or {"subjects": []})["subjects"]:
        exponents = (each["exponent"], each["memory_exponent"])
        told = ("" if k is None else met_or_bold(f"{k:.2f}", k <= found["most"]) for k in exponents)
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
        beside = f"{met_or_bold(str(each['value']), each['met'])} KiB each"
        seconds, mib = big["small_chunks_cpu_seconds"], f"{big['mib_for_small_chunks']:.0f}"
        yield "small chunks, planned", f"{big['small_chunks']:,}", seconds, mib, "", beside


def late(*found: Any) -> Iterator[Row]:
    """What re-ordering by token vectors is worth in each form, on each collection."""
    there = [each for each in found if each]
    if there:
        yield "the search alone", "", *(cell for each in there for cell in (f"{each['alone']:.4f}", ""))
    for rows in zip(*(each["forms"] for each in there), strict=True):
        size = " / ".join(f"{row['bytes a text'] / 1000:.1f}" for row in rows)
        yield rows[0]["form"], size, *(cell for row in rows for cell in (_gained(row, "0.3"), _gained(row, "0.5")))


def _gained(row: Any, share: str) -> str:
    """A figure with the interval (95 %) of its gain."""
    _, low, high = row[f"gain at {share}"]
    return f"{row[f'ndcg at {share}']:.4f} [{low:+.3f}, {high:+.3f}]"


ENCODES = ("encode-float32-docstrings", "encode-float32-chunks", "encode-bfloat16-docstrings", "encode-openvino",
           "encode-qwen3", "encode-modernbert", "encode-int8-chunks")  # fmt: skip
SHORT = ("float32, docstrings", "float32, chunks", "bfloat16, docstrings", "float32 beside OpenVINO", "small Qwen3",
         "small ModernBERT", "int8, chunks")  # fmt: skip
LATE = ("cranfield", "med", "cisi")
SPARSE = ("sparse-splade-tiny", "sparse-distilbert")
FIRST = ("encode-float32-chunks", ENCODES[0], *ENCODES[2:-1], "memory", "start", "overhead", "law", "law-heads",
         *SPARSE, "rerank")  # fmt: skip


def _encode() -> Figures:
    heads = ["", *(short for name, short in zip(ENCODES, SHORT, strict=True) if current(name))]
    return figures(heads, ENCODES, encode)


PARTS: dict[str, Callable[[], Figures]] = {
    "measured": lambda: figures(["what", "measured", "goal"], FIRST, measured),
    "encode": _encode,
    "memory": lambda: figures(
        ["chunks", "reading", "pass", "files", "store", "of it anonymous, pass / store"], ["memory"], memory
    ),
    "memory law": lambda: figures(["", *_ways(current("law"))], ["law"], law),
    "memory law of heads": lambda: figures(["", *_ways(current("law-heads"))], ["law-heads"], law),
    "law plans": lambda: figures([*LAW_PLANS], ["law-plans"], law_plans),
    "sparse": lambda: figures(["", *(name for name in SPARSE if current(name))], SPARSE, sparse),
    "kernels": lambda: figures(
        [
            "architecture",
            "faults",
            "kernels a layer: resident / streamed / T4 / without Triton",
            "beside the layers",
            "waits",
        ],
        ["kernels"],
        kernels,
    ),
    "console": lambda: figures(["", "measured", "goal"], ["screen"], console),
    "start": lambda: figures(["process", "CPU s", "wall s", "wall to first batch s"], ["start"], processes),
    "overhead": lambda: figures(["part", "s", "of the run"], ["overhead"], overhead),
    **retrieval_tables.PARTS,
    **run_tables.PARTS,
    "term weights": lambda: figures(["collection", "texts", "queries", "stemmed", "words as they are"], ["bm25"], bm25),
    "search": lambda: figures(["", "CPU ms"], ["search"], search),
    "upload": lambda: figures(["way", "bytes a point", "CPU µs a point", "wall µs a point"], ["upload"], upload),
    "streams": lambda: figures(["", "streams", "CPU µs a point", "wall µs a point"], ["upload-streams"], streams),
    "late interaction": lambda: figures(
        [
            "token vectors",
            "kB a text",
            *(f"{name} {share}" for name in LATE if current(f"late-{name}") for share in (".3", ".5")),
        ],
        [f"late-{name}" for name in LATE],
        late,
    ),
    "cluster": lambda: figures(["what", "measured", "goal"], ["cluster"], cluster_tables.cluster),
    "cards": lambda: figures(cluster_tables.CARDS, ["cluster"], cluster_tables.cards),
    "campaigns": lambda: figures(["campaign", "", "trials", "tried", "failures"], ["campaigns"], campaigns),
    "growth": lambda: figures(
        ["of", "largest", "CPU s", "peak MiB", "exponent, time", "exponent, memory"], ["growth"], growth
    ),
    "time left": lambda: figures(
        ["runs", "moments with a word", "error", "of the whole run", "bias", "band", "held"],
        ["eta", "eta-real"],
        foretold,
    ),
    "random plans": lambda: figures(["what the plans met", ""], ["plans"], plans),
}
