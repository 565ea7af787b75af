"""A script that tries a model's tokenizer within limits, and builds it as transformers does for others to load.

It is run in a process of its own, since nobody vouches for the files; it takes a folder with copies of them, and
prints an answer as JSON. It imports nothing of this package, and no torch, which would take seconds.
"""

import json
import resource
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

SIGNS = "aA0 .-_\n\té字​😀"
PLAIN = "The quick brown fox (it jumps, 12.5 times) over the lazy dog. "
ODD = (
    "", " ", "a", "  Two  blanks\tand\n\nlines ", "ÀÉÎõü Ångström naïve ﬁ ½ Ⅷ", "日本語 中文字 한국어",
    "\0\x07\x85\u200b\ufeff\u00a0", "z" * 101, "WORD" * 60, "don't you'll it's 1,234.56 $9.99 a@b.cc http://x.yy/z?q=1",
    "🏳️‍🌈 👍🏽", "هذا नमस्ते ไทย",
)  # fmt: skip
PREAMBLE = 100_000
"""Signs that a template may write beside a pair's own."""
PIECES = 4096
"""Pieces of the vocabulary that are tried as texts, several in each."""


def limited(seconds: int, memory: int) -> None:
    """Let this process take so much more processor time, and so much memory at all."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    soft = int(used.ru_utime + used.ru_stime) + seconds
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CPU, (soft, resource.getrlimit(resource.RLIMIT_CPU)[1]))
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))


def grown(made: int, text: str) -> None:
    """Refuse what makes too much of a text."""
    if made > 100 * len(text):
        raise ValueError(f"it turns {len(text)} characters into {made}")


def tried(path: Path) -> Any:
    """Return the tokenizer of a file once it has done what runs will ask of it."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(path))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    tokenizer.encode("a", add_special_tokens=True)
    for text in ["a", PLAIN * 40, *(sign * 200 + "!" for sign in SIGNS)]:
        if tokenizer.normalizer:
            grown(len(tokenizer.normalizer.normalize_str(text)), text)
        try:
            found = tokenizer.encode_batch_fast([text], add_special_tokens=False)
        except Exception:  # it may still do for the texts that there are
            if text == "a":
                raise
        else:
            grown(len(found[0].ids), text)
    return tokenizer


def lowered(tokenizer: Any) -> None:
    """Put small letters before all else, as sentence-transformers does where its settings say so."""
    from tokenizers.normalizers import Lowercase, Sequence

    own: Any = tokenizer.normalizer
    several = isinstance(own, Sequence)
    parts: list[Any] = list(own) if several else [own] if own else []
    if not any(isinstance(part, Lowercase) for part in parts):
        tokenizer.normalizer = Sequence([Lowercase(), *parts])


def built(path: Path, lower: bool) -> tuple[Any, dict[str, Any]]:
    """Build the tokenizer as transformers does; with it, what the `tokenizers` library needs for the same."""
    from tokenizers.models import BPE
    from transformers import AutoTokenizer

    whole = AutoTokenizer.from_pretrained(str(path), trust_remote_code=False, local_files_only=True)
    backend = getattr(whole, "backend_tokenizer", None)
    if backend is None:
        raise ValueError(f"tokenizer_class is {type(whole).__name__}, which does not read tokenizer.json")
    backend.no_truncation()
    backend.no_padding()
    if lower:
        lowered(backend)
    if isinstance(backend.model, BPE):  # what makes training more robust makes two runs differ
        backend.model.dropout = None
    content = json.loads(backend.to_str())
    if whole.split_special_tokens:  # they are texts like any others, and the template knows them by their ids
        content["added_tokens"] = [token for token in content["added_tokens"] if not token["special"]]
    return whole, content


def probes(tokenizer: Any) -> list[str]:
    """Texts by which two tokenizers are told apart: odd ones, and many pieces of the vocabulary."""
    added = [token.content for token in tokenizer.get_added_tokens_decoder().values()][:256]
    every = sorted(tokenizer.get_vocab())
    some = every[:: len(every) // PIECES + 1]
    rows = [some[start : start + 16] for start in range(0, len(some), 16)]
    return [*ODD, PLAIN, PLAIN.upper(), *(f"a {token}b {token} c" for token in added), "".join(added),
            *(" ".join(row) for row in rows), *("".join(row) for row in rows)]  # fmt: skip


def each_of(texts: Iterable[str], encode: Callable[[str], Any]) -> list[Any]:
    """What becomes of each text; None where it cannot be taken."""

    def one(text: str) -> Any:
        try:
            return encode(text)
        except Exception:
            return None

    return [one(text) for text in texts]


def types_of(tokenizer: Any, texts: Iterable[str]) -> tuple[list[int], int, list[int]] | None:
    """Types of the tokens before a text, of its own, and after it; None where its template does more than that."""
    around: tuple[list[Any], int, list[Any]] | None = None
    for text in texts:
        plain, whole = tokenizer.encode(text, add_special_tokens=False).ids, tokenizer.encode(text)
        if around is None:
            count = len(whole.ids) - len(plain)
            starts = [at for at in range(count + 1) if whole.ids[at : at + len(plain)] == plain]
            if not starts:
                return None
            first, last = starts[0], starts[0] + len(plain)
            pairs = list(zip(whole.ids, whole.type_ids, strict=True))
            around = pairs[:first], pairs[first][1] if plain else 0, pairs[last:]
        before, own, after = around
        expected = [*before, *((piece, own) for piece in plain), *after]
        if list(zip(whole.ids, whole.type_ids, strict=True)) != expected:
            return None
    assert around
    return [kind for _, kind in around[0]], around[1], [kind for _, kind in around[2]]


def limit_of(value: object) -> int | None:
    """A limit on tokens as a whole number; None for none, and for a number beyond all bounds."""
    return int(value) if isinstance(value, int | float) and 0 < value < 1 << 40 else None


def meaning(content: dict[str, Any]) -> object:
    """What decides the ids."""
    return [content[name] for name in ("model", "normalizer", "pre_tokenizer", "post_processor", "added_tokens")]


def answer(folder: Path, lower: bool) -> dict[str, Any]:
    """Try and build the tokenizer in `folder`; where it is not what its file alone says, `built.json` there is."""
    from tokenizers import Tokenizer

    plain = tried(folder / "tokenizer.json")
    random = getattr(plain.model, "dropout", None)
    try:
        whole, content = built(folder, lower)
    except Exception as error:
        named = [json.loads(file.read_text()).get("tokenizer_class") for file in folder.glob("*config.json")]
        said = [f"tokenizer_class {name}" for name in named if name]
        return {"fault": " ".join(": ".join([*said[:1], str(error)]).split())[:300], "of": "settings"}
    rebuilt = Tokenizer.from_str(json.dumps(content))
    texts = probes(rebuilt)
    names = ("input_ids", "token_type_ids") if "token_type_ids" in whole.model_input_names else ("input_ids",)
    theirs = each_of(texts, lambda text: [whole(text)[name] for name in names])
    ours = each_of(texts, lambda text: [(it := rebuilt.encode(text)).ids, it.type_ids][: len(names)])
    if ours != theirs:
        return {"fault": f"{type(whole).__name__} of transformers does more than tokenizer.json can say",
                "of": "settings"}  # fmt: skip
    taken = [text for text, found in zip(texts, theirs, strict=True) if found is not None]
    types = types_of(rebuilt, ["a", *taken])
    if types is None:
        return {"fault": "its template changes the text, which is not supported", "of": "file"}
    if lower:
        lowered(plain)
    same = not random and meaning(json.loads(plain.to_str())) == meaning(content)
    alike = same or (not random and each_of(texts, lambda text: plain.encode(text).ids) == [i and i[0] for i in theirs])
    if not same:
        (folder / "built.json").write_text(json.dumps(content, ensure_ascii=False))
    return {"fault": "", "same": same, "alike": alike, "types": types if len(names) > 1 else None,
            "limit": limit_of(whole.model_max_length), "side": whole.truncation_side,
            "chat": whole.chat_template is not None}  # fmt: skip


def filled(folder: Path) -> dict[str, Any]:
    """Try the template for messages in `folder` with pairs of texts, short and long, as words and as lists of parts: of
    what it does not take it says so itself, soon."""
    from transformers import AutoTokenizer

    whole = AutoTokenizer.from_pretrained(str(folder), trust_remote_code=False, local_files_only=True)
    for text in (PLAIN, PLAIN * 100):
        for content in (text, [{"type": "text", "text": text}]):
            messages = [{"role": role, "content": content} for role in ("query", "document")]
            for made in each_of([""], lambda _: whole.apply_chat_template(messages, tokenize=False)):  # noqa: B023
                grown(len(made or "") - PREAMBLE, text)
    return {"fault": ""}


def main(folder: str, how: str, seconds: str, memory: str) -> None:
    """Answer on the standard output, whatever happens."""
    sys.modules["torch"] = None  # type: ignore[assignment]
    try:
        limited(int(seconds), int(memory))
        found = filled(Path(folder)) if how == "messages" else answer(Path(folder), how == "lower")
    except BaseException as error:
        found = {"fault": " ".join(str(error).split())[:500] or type(error).__name__, "of": "file"}
    print(json.dumps(found))  # noqa: T201


if __name__ == "__main__":
    main(*sys.argv[1:])
