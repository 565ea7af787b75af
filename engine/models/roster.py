"""The models of a run: resolved, read and checked before any work, in the order of their passes."""

import hashlib
import unicodedata
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial

from interlock.engine.corpus.corpus import Rows, Tokenising
from interlock.engine.corpus.tokens import encoded, load_tokenizer, lowercases
from interlock.engine.errors import UsageError
from interlock.engine.gpu.device import Device
from interlock.engine.models.assets import ModelSnapshot, Policy, resolve
from interlock.engine.models.card import ModelCard, read_card
from interlock.engine.models.layout import ONNX, architecture_of, modules_of
from interlock.engine.models.networks.kernels import OLDEST, Capability
from interlock.engine.models.registry import REGISTRY, ModelSpec
from interlock.engine.record import atomic
from interlock.engine.record.events import Emit, Warned
from interlock.engine.record.facts import RosterEntry, TermForm
from interlock.engine.record.words import few, safe

UNKNOWN = ("[UNK]", "<unk>")
UNREAD, APART, APART_WIDE = 0.05, 0.7, 1.3
"""Share of tokens that are unknown, and tokens a sign (of Chinese, Japanese and Korean, whose signs are whole syllables
or words), above which a script is none that a tokenizer learnt."""


def cards_of(specs: Sequence[ModelSpec], policy: Policy, devices: Sequence[Device], emit: Emit) -> list[ModelCard]:
    """Resolve every model and read its card for these devices. Raises UnavailableError for the first that cannot be
    had."""
    cards = [card_for(spec, resolve(spec, policy, emit), devices) for spec in specs]
    for card in cards:
        if names := card.unused_prompts:
            message = (
                f"{card.key}: its prompts {few(names)} stand before neither chunks nor queries: set document_prompt "
                f"and query_prompt in [models.{card.key}] to use them"
            )
            emit(Warned(message=message))
        if taken := _taken_for(card):
            emit(Warned(message=taken))
        if others := _variants(card):
            file = card.snapshot.weights[0].name
            emit(Warned(message=f"{card.key}: computed of {file}, the plain ONNX file, and not of {', '.join(others)}"))
        if card.config.get("auto_map") and not card.onnx:
            kind = card.config.get("model_type")
            message = (
                f"{card.key}: its config.json names code of its own (auto_map), which is never run, so it is computed "
                f"as {kind}: compare with its model card whether that is the same"
            )
            emit(Warned(message=message))
    return cards


def _variants(card: ModelCard) -> list[str]:
    """The other ONNX files of a model that is computed of one."""
    places = [card.snapshot.path / card.home / folder for folder in ("onnx", "")] if card.onnx else []
    return sorted({file.name for place in places for file in place.glob(f"*{ONNX}")} - {card.snapshot.weights[0].name})


def _taken_for(card: ModelCard) -> str:
    """What a model is taken for whose files do not say it; empty where they do."""
    named = architecture_of(card.config)
    if card.kind != "dense" or not named.endswith("ForMaskedLM") or modules_of(card.snapshot.path):
        return ""
    return (
        f"{card.key}: nothing says how it is pooled (no modules.json), and it is a {named}: taken for a dense model, "
        f"pooling {card.how_pooled}; name it in --sparse if it is a SPLADE model"
    )


def card_for(spec: ModelSpec, snapshot: ModelSnapshot, devices: Sequence[Device]) -> ModelCard:
    """Read the card of a snapshot for these devices. Raises as `read_card` does."""
    lowest = lowest_capability(devices) or OLDEST
    return read_card(spec, snapshot, devices[0].kind, lowest, fewest_processors(devices))


def lowest_capability(devices: Sequence[Device]) -> Capability | None:
    """Find what all GPUs among `devices` can do; None where there is none that computes itself."""
    return min((device.capability for device in devices if device.capability), default=None)


def fewest_processors(devices: Sequence[Device]) -> int:
    """Count the multiprocessors of the smallest GPU among `devices`; 0 where that is not known."""
    return min((device.processors for device in devices if device.processors), default=0)


def entry_of(card: ModelCard, weight: float, dim: int) -> RosterEntry:
    """Record what of a model is kept and makes its vectors what they are; `dim` is the delivered width."""
    return RosterEntry(
        model=card.key,
        weight=weight,
        source=card.snapshot.source,
        commit=card.snapshot.commit,
        fingerprint=card.snapshot.fingerprint,
        dim=dim,
        dtype=card.dtype,
        max_tokens=card.max_tokens,
        document_prompt=card.document_prompt,
        query_prompt=card.query_prompt,
        pooling=card.how_pooled,
        batch_tokens=card.batch_tokens,
        kind="sparse" if card.kind == "sparse" else "dense",
        tokens=card.by_token.vectors,
        terms=_terms(card),
        outputs=card.asked,
        words=card.words if card.kind == "dense" and "sparse" in card.outputs else 0,
        heads={str(head): digest for head, digest in card.snapshot.head_digests.items()},
        tokenizer=card.tokens_digest,
    )


def entry_without(spec: ModelSpec, weight: float, missing: str) -> RosterEntry:
    """Record the place in the roster of a model that cannot be had, and why."""
    return RosterEntry(
        model=spec.key,
        weight=weight,
        source=spec.sources[0],
        commit=None,
        fingerprint="",
        dim=0,
        dtype="",
        max_tokens=0,
        document_prompt="",
        query_prompt="",
        batch_tokens=0,
        kind="sparse" if spec.kind == "sparse" else "dense",
        outputs=spec.outputs,
        missing=missing,
    )


def _terms(card: ModelCard) -> TermForm | None:
    form = TermForm(most=card.terms.most, unweighed=card.by_token.unweighed or ())
    return form if "sparse" in card.outputs and form != TermForm() else None


def delivered_dim(spec: ModelSpec, card: ModelCard, wanted: int) -> int:
    """Return the width of this model's delivered vectors under `--dim wanted` (0: whole).

    Raises UsageError where a Matryoshka model was not trained for it. Other models are not cut.
    """
    if not wanted or not spec.matryoshka or card.kind == "sparse" or wanted >= card.dim:
        return card.dim
    if wanted not in spec.matryoshka:
        raise UsageError(f"--dim {wanted}: {card.key} supports only {', '.join(map(str, spec.matryoshka))}")
    return wanted


def illegible(rows: Sequence[Rows], cards: Mapping[int, ModelCard]) -> Iterator[str]:
    """Tell of each collection most of whose sampled texts are in a script that a model's tokenizer does not know or
    takes apart into single signs, and what to take instead."""
    many = next(key for key, spec in REGISTRY.items() if spec.kind == "dense" and spec.languages[0].isdigit())
    for each in rows:
        least, texts = len(each.sample) // 2, [text for text in each.sample if _foreign(text)]
        lost = list[str]()
        for job in tokenisings(list(cards.values())).values() if len(texts) > least else ():
            tokenizer = load_tokenizer(job.tokenizer)
            unknown = {tokenizer.token_to_id(token) for token in UNKNOWN}
            ids = [encoding.ids for encoding in encoded(tokenizer, texts)]
            lost += job.models if sum(map(partial(_broken, unknown), texts, ids)) > least else ()
        if lost:
            scripts = (unicodedata.name(next(filter(_beyond_latin, text)), "other") for text in texts)
            script = Counter(name.split()[0].capitalize() for name in scripts).most_common(1)[0][0]
            yield (
                f"{safe(each.collection.name)}: most texts are in a script ({script}) that {' and '.join(lost)} cannot "
                f"read: use a model of many languages, such as {many}"
            )


def _beyond_latin(sign: str) -> bool:
    return sign.isalpha() and sign > "\u036f"


def _foreign(text: str) -> bool:
    """Whether most letters of a text are of another script than Latin, and it is made of letters."""
    beyond = sum(map(_beyond_latin, text))
    return 2 * beyond > sum(map(str.isalpha, text)) and 3 * beyond > len("".join(text.split()))


def _broken(unknown: Collection[int | None], text: str, ids: Sequence[int]) -> bool:
    """Whether a tokenizer does not know a text of another script than Latin, or takes it apart: what learnt its words
    needs half as many tokens."""
    most = sum(APART_WIDE if unicodedata.east_asian_width(sign) == "W" else APART for sign in "".join(text.split()))
    return len(ids) > most or sum(each in unknown for each in ids) > UNREAD * len(ids)


def tokenisings(cards: Sequence[ModelCard]) -> dict[str, Tokenising]:
    """List what has to be tokenised: once for each distinct tokenizer and prompt."""
    users: dict[str, list[ModelCard]] = {}
    for card in cards:
        users.setdefault(token_key(card), []).append(card)
    return {
        key: Tokenising(
            cards[0].tokenizer_file,
            cards[0].document_prompt,
            max(card.max_tokens for card in cards),
            [card.key for card in cards],
        )
        for key, cards in users.items()
    }


def token_key(card: ModelCard) -> str:
    """Name a tokenizer together with a prompt: equal keys mean equal ids."""
    lower = "\0lower" if lowercases(card.tokenizer_file) else ""
    content = atomic.sha256_of(card.tokenizer_file) + lower + "\0" + card.document_prompt
    return hashlib.sha256(content.encode()).hexdigest()[:16]
