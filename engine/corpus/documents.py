"""Documents cut into chunks: pages, texts and code in a directory become the lines of one chunk file.

A chunk ends where the document does: at a heading, a paragraph, a sentence, and holds no more tokens than every model
of a roster reads. It keeps its file, its headings and where it stands, so that no text is there twice but for what
overlaps, and none is lost.
"""

import os
import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from io import FileIO
from pathlib import Path

import msgspec
from tokenizers import Tokenizer

from interlock.engine.corpus.collections import printable, refuse_path
from interlock.engine.corpus.tokens import load_tokenizer
from interlock.engine.errors import UnavailableError, UsageError, near
from interlock.engine.record import atomic
from interlock.engine.record.facts import Refusal
from interlock.engine.record.words import few

MARKED = (".md", ".markdown", ".mdx")
PROSE = (".txt", ".rst", ".adoc", ".org", ".tex")
PLAIN = (
    *PROSE,
    *(".py", ".pyi", ".js", ".jsx", ".ts", ".tsx", ".java", ".kt", ".scala"),
    *(".c", ".h", ".cc", ".cpp", ".hpp", ".cs", ".go", ".rs", ".rb", ".php", ".swift", ".sh", ".sql", ".r", ".jl"),
    *(".lua", ".toml", ".yaml", ".yml", ".ini", ".cfg"),
)
CONVERTED = (".html", ".htm", ".pdf", ".docx", ".pptx", ".xlsx", ".epub")
"""What `markitdown` makes Markdown of, where it is installed."""
DOCUMENTS = (*MARKED, *PLAIN, *CONVERTED)
RAW = ("%PDF-", "PK\x03\x04")
"""How files begin that were not converted."""
SIGNS = 16
"""Signs of a text, for each token that a chunk may have, that are counted first: the splitter asks for all of what is
left of a line, many times."""
LARGEST = 64 << 20
"""Bytes of a document."""
_HEADING = re.compile(r"^(```|~~~)|^(#{1,6})[ \t]+(.+?)[ \t]*#*$", re.MULTILINE)
_ENDS = re.compile(r"[.!?:;。！？…][^\w\s]*\s\Z|\n\Z")
"""How a text ends, with the sign behind it, where a sentence or line does."""
_SENTENCE = re.compile(r"[.!?…][^\w\s]{0,3}(?=\s)|[。！？]|\n(?=[ \t]*\n)")
"""Where a sentence or a paragraph ends, unless a small letter follows."""
_BLOCK = re.compile(r"\s*\Z|[ \t]*\n[ \t]*(\n|#|[-*+] |\d+[.)] |\||```|~~~|>|<)")
"""What follows where a block of Markdown ends."""
Told = Callable[[str, int, int], object]
Splitter = Callable[[str], Iterator[tuple[int, str]]]
"""Cuts a text into chunks: where each begins, and the chunk."""


@dataclass(frozen=True)
class TokenCounter:
    """A model's tokenizer, which counts a text with the prompt and the special tokens that a run puts around it."""

    tokenizer: Path
    prompt: str
    most: int
    model: str

    def count(self, text: str) -> int:
        return len(_loaded(self.tokenizer).encode(self.prompt + text).ids)


@lru_cache
def _loaded(file: Path) -> Tokenizer:
    return load_tokenizer(file)


@dataclass
class ChunkedFiles:
    """What became of a directory: documents that gave chunks, those without text, refusals, files of no known kind."""

    documents: int = 0
    chunks: int = 0
    empty: list[str] = field(default_factory=list)
    refusals: list[Refusal] = field(default_factory=list)
    others: Counter[str] = field(default_factory=Counter)


def chunk_documents(
    root: Path, out: Path, counters: Sequence[TokenCounter], tokens: int, overlap: int, told: Told
) -> ChunkedFiles:
    """Cut the documents under `root`, or that file, into chunks of at most `tokens` tokens by each of `counters`, and
    write them to the chunk file `out`, whole or not at all.

    Raises UsageError for a root without documents that can be read and for sizes that cannot be, UnavailableError
    without the splitter.
    """
    short = min(counters, key=lambda each: each.most)
    if tokens > short.most:
        raise UsageError(f"--tokens {tokens}: {short.model} reads {short.most} of a text: set at most that")
    wide = max(counters, key=lambda each: each.count(""))
    if tokens <= (around := wide.count("")):
        raise UsageError(f"--tokens {tokens}: {wide.model} puts {around} around a text: set more than that")
    if not 0 <= overlap < tokens - around:
        raise UsageError(
            f"--overlap {overlap}: expected less than --tokens without the {around} that {wide.model} puts around a "
            f"text, which is {tokens - around}: set it lower"
        )
    report, root = ChunkedFiles(), Path(os.path.realpath(root))
    files = list(_documents(root, report))
    if not files and not report.refusals:
        kinds = ", ".join(DOCUMENTS[:4])
        raise UsageError(f"{root} has no documents ({kinds}, ...): name a directory of pages, texts or code")

    def size(text: str) -> int:
        """Tokens of a text; of one that has far too many by its first signs, how many those have."""
        first = max(each.count(text[: SIGNS * tokens]) for each in counters)
        whole = len(text) <= SIGNS * tokens or first > 2 * tokens
        return first if whole else max(each.count(text) for each in counters)

    split = _splitters(size, tokens, overlap)
    with atomic.explaining(out):
        out.parent.mkdir(parents=True, exist_ok=True)
    atomic.sweep(out.parent, out.name[:50])  # what a killed process left of it
    with atomic.replacing(out) as partial, partial.open("wb") as lines:
        for done, file in enumerate(files, 1):
            name = file.relative_to(root).as_posix() if file != root else file.name
            told("documents", done, len(files))
            try:
                text, kind = _text_of(file)
                chunks = list(_chunks(name, text, split[kind], marked=kind == MARKED))
            except _Unreadable as error:
                report.refusals.append(Refusal(printable(name), None, str(error)))
                continue
            report.documents += bool(chunks)
            report.empty += [printable(name)] * (not chunks)
            report.chunks += len(chunks)
            lines.writelines(msgspec.json.encode(chunk) + b"\n" for chunk in chunks)
        if not report.chunks:
            why = [f"{each.file}: {each.reason}" for each in report.refusals] or ["all of them are empty"]
            raise UsageError(f"nothing to cut into chunks under {root}: fix its documents first ({few(why, 3)})")
    return report


def _documents(root: Path, report: ChunkedFiles) -> Iterator[Path]:
    """The documents in the order of their paths; what is no document is counted by its ending."""
    if root.is_file():
        yield root
        return
    if not root.is_dir():
        raise UsageError(f"{root} does not exist{near(root)}: name a directory of documents")
    found = list[Path]()
    for folder, folders, names in os.walk(root):
        report.others.update("hidden" for name in (*folders, *names) if name[0] == ".")
        folders[:] = [name for name in folders if name[0] != "."]
        links = (Path(folder, name) for name in folders if Path(folder, name).is_symlink())
        found += [link for link in links if not link.resolve().is_relative_to(root)]  # refused below
        found += [Path(folder, name) for name in names if name[0] != "."]
    for file in sorted(found):
        if file.suffix.lower() not in DOCUMENTS and not file.is_dir():
            report.others[file.suffix.lower() or "without an ending"] += 1
        elif reason := refuse_path(file, root):
            report.refusals.append(Refusal(printable(file.relative_to(root).as_posix()), None, reason))
        else:
            yield file


class _Unreadable(Exception):
    """Why a document is left out."""


def _text_of(file: Path) -> tuple[str, tuple[str, ...]]:
    """The text of a document, and whether it is cut as what is `MARKED`, as `PROSE` or as `PLAIN`. Raises
    _Unreadable."""
    kind = file.suffix.lower()
    try:
        if kind in CONVERTED:
            return _converted(file), MARKED
        with FileIO(file, opener=atomic.at_once) as handle:
            data = handle.read(LARGEST + 1)
        if len(data) > LARGEST:
            raise _Unreadable("larger than 64 MiB")
        wide = data[:2] in (b"\xff\xfe", b"\xfe\xff")
        text = data.decode("utf-16" if wide else "utf-8-sig")
    except UnicodeDecodeError as error:
        raise _Unreadable(f"not UTF-8 (byte {error.start}): save the file as UTF-8") from None
    except OSError as error:
        raise _Unreadable(f"cannot read the file: {error.strerror or error}") from None
    if "\0" in text:
        raise _Unreadable("holds null bytes, as texts never do")
    return text.replace("\r\n", "\n").replace("\r", "\n"), next(each for each in (MARKED, PROSE, PLAIN) if kind in each)


def _converted(file: Path) -> str:
    try:
        from markitdown import MarkItDown
    except ImportError:
        raise _Unreadable(f"{file.suffix} needs a parser: install interlock[documents]") from None
    try:
        text = str(MarkItDown(enable_plugins=False).convert_local(file).text_content)
        if text.startswith(RAW):  # it takes what it does not know for plain text
            raise ValueError("it is broken, or its parser is missing")
        return text
    except Exception as error:  # of any of its parsers
        raise _Unreadable(f"cannot be converted ({str(error).splitlines()[0][:100]}): save it as Markdown") from None


def _splitters(size: Callable[[str], int], tokens: int, overlap: int) -> dict[tuple[str, ...], Splitter]:
    """What cuts Markdown, prose and other texts; no chunk is of more than `tokens`."""
    try:
        from semantic_text_splitter import MarkdownSplitter, TextSplitter
    except ImportError:
        raise UnavailableError("no splitter of texts is installed: install interlock[chunk]") from None
    kinds: dict[bool, type[MarkdownSplitter] | type[TextSplitter]] = {True: MarkdownSplitter, False: TextSplitter}

    def bounded(text: str, marked: bool, most: int) -> Iterator[tuple[int, str]]:
        made = kinds[marked].from_callback(size, most, overlap=min(overlap, most - 1))
        for start, chunk in made.chunk_indices(text):
            beyond = size(chunk) - tokens  # the splitter takes more text for more tokens, which not all is
            if beyond <= 0 or most == 1 or len(chunk) == 1:
                yield start, chunk
            else:
                yield from ((start + at, part) for at, part in bounded(chunk, marked, max(1, most - beyond)))

    def headed(text: str) -> Iterator[tuple[int, str]]:
        """Those of Markdown; a heading that stands alone, before as much of what follows as has room behind it."""
        begun: int | None = None
        for start, chunk in bounded(text, True, tokens):
            end = start + len(chunk)
            if _heads(chunk) and (begun is None or size(text[begun:end]) <= tokens):
                begun = start if begun is None else begun
            elif begun is None or begun >= start:  # of chunks that overlap it begins the next one too
                yield start, chunk
                begun = None
            else:
                taken = end
                if size(text[begun:end]) > tokens:
                    room = tokens + size("") - size(text[begun:start])
                    at, first = next(bounded(chunk, True, room)) if room > 1 else (0, "")
                    taken = start + at + len(first)
                whole = taken == end or _ENDS.search(text[start : taken + 1])  # no sentence is cut for it
                taken = taken if whole and size(text[begun:taken]) <= tokens else start
                yield begun, text[begun:taken].rstrip()
                yield from ((taken + at, part) for at, part in bounded(text[taken:end], True, tokens))
                begun = None
        if begun is not None:
            yield begun, text[begun:].rstrip()

    def whole(text: str, marked: bool) -> Iterator[tuple[int, str]]:
        """Those of Markdown or prose; what one has of a sentence that goes on in the next begins that one."""
        left: int | None = None  # where a sentence begins that the next chunk is to have
        for start, chunk in headed(text) if marked else bounded(text, False, tokens):
            at = first = start if left is None else left
            end, left = start + len(chunk), None
            broken = not overlap and _goes_on(text, end)
            made = first == start and not broken  # as the splitter made it, with nothing before it
            while at < end and not made and size(text[at:end]) > tokens:
                middle, ends = (at + end) // 2, _sentences(text, at, end)
                ends.sort(key=lambda each: -each if broken else abs(each - middle))
                cut = next((each for each in ends if size(text[at:each]) <= tokens), 0)
                cut = cut or at + len(next(bounded(text[at:end], marked, tokens))[1])
                yield at, text[at:cut].rstrip()
                at = end - len(text[cut:end].lstrip())
            if broken and first < at < end:  # it was cut, and this is of the next chunk
                left = at
            elif at < end:
                ends = [each for each in _sentences(text, at, end) if each > (at + end) // 2] if broken else []
                cut = ends[-1] if ends else end  # at none in the second half: the chunk would be short
                yield at, text[at:cut].rstrip()
                rest = end - len(text[cut:end].lstrip())
                left = rest if rest < end else None

    prose = {MARKED: partial(whole, marked=True), PROSE: partial(whole, marked=False)}
    return {**prose, PLAIN: partial(bounded, marked=False, most=tokens)}


def _goes_on(text: str, end: int) -> bool:
    """Whether the text of Markdown up to there ends within a sentence."""
    before = text[max(0, end - 8) : end].rstrip()
    return not (_BLOCK.match(text, end) or _ENDS.search(before + " ") or text.count("\n```", 0, end) % 2)


def _sentences(text: str, start: int, end: int) -> list[int]:
    """Where sentences and paragraphs of a part of a text end."""
    ends = (found.end() for found in _SENTENCE.finditer(text, start, end))
    return [each for each in ends if not text[each : each + 8].lstrip()[:1].islower()]


def _heads(chunk: str) -> bool:
    """Whether all its lines are headings and marks of code, which tell nothing by themselves."""
    return all(_HEADING.match(line.lstrip()) for line in chunk.splitlines() if line.strip())


def _chunks(name: str, text: str, splitter: Splitter, *, marked: bool) -> Iterator[dict[str, object]]:
    places, paths = _headings(text) if marked else ([], [])
    for number, (start, chunk) in enumerate(splitter(text)):
        headings = paths[place - 1] if (place := bisect_right(places, start)) else []
        metadata = {
            "chunk_id": str(number),
            "source_path": name,
            "start": start,
            "end": start + len(chunk),
            **({"headings": headings} if headings else {}),
        }
        yield {"text": chunk, "metadata": metadata}


def _headings(text: str) -> tuple[list[int], list[list[str]]]:
    """Where the headings of Markdown begin, and each with those above it; none of a block of code is one."""
    places, paths, path, fence = list[int](), list[list[str]](), dict[int, str](), ""
    for found in _HEADING.finditer(text):
        if found[1]:
            fence = "" if fence == found[1] else fence or found[1]
        elif not fence:
            level = len(found[2])
            path = {depth: title for depth, title in path.items() if depth < level} | {level: found[3]}
            places.append(found.start())
            paths.append(list(path.values()))
    return places, paths
