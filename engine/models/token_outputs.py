"""What a pass gives of each token of a text beside its vector, as the run asks for it and the model's files allow.

Reads JSON, the tokenizer and the headers of weights. What is asked for and cannot be computed is refused by name.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tokenizers import Tokenizer

from interlock.engine.corpus.tokens import load_tokenizer, specials_of
from interlock.engine.errors import UnavailableError, UsageError
from interlock.engine.models.assets import ModelSnapshot
from interlock.engine.models.layout import read_object, shapes_in
from interlock.engine.models.registry import ModelSpec
from interlock.engine.models.token_heads import check_heads
from interlock.engine.record.facts import TokenForm

UNWEIGHED = ("cls_token", "eos_token", "pad_token", "unk_token")
"""They are in no text, or stand for what is not known."""


@dataclass(frozen=True)
class TokenOutputs:
    """Weights and vectors of tokens; without arguments, neither."""

    unweighed: tuple[int, ...] | None = None
    """The ids that weigh nothing, where tokens are weighed and the weights of terms come of that."""
    vectors: TokenForm | None = None
    """How the vectors of tokens are kept."""
    around: tuple[int, int] = (0, 0)
    """Tokens at the start and at the end of each row that have no vector."""


def is_lexical(spec: ModelSpec, snapshot: ModelSnapshot, modules: Sequence[str]) -> bool:
    """Tell whether terms get their weights from those of tokens. Raises UsageError for a dense model that is to weigh
    terms beside its vectors and has no `sparse_linear`."""
    if spec.kind == "sparse":
        return "sparse_linear" in snapshot.heads and "SpladePooling" not in modules
    if "sparse" in spec.gives and "sparse_linear" not in snapshot.heads:
        raise UsageError(
            f"--sparse: {spec.key} is a dense model without lexical weights ({snapshot.path} lacks "
            "sparse_linear.safetensors): name it in --roster alone"
        )
    return "sparse" in spec.gives


def token_outputs(
    spec: ModelSpec, snapshot: ModelSnapshot, path: Path, width: int, padded: str, *, lexical: bool, ours: bool
) -> TokenOutputs:
    """Read what the tokens of a model give whose network lies in `path` and has states of `width` numbers.

    `padded` is why its rows are padded, where they are. Raises UnavailableError for what is not computed here.
    """
    if not lexical and "tokens" not in spec.gives:
        return TokenOutputs()
    if (lexical or snapshot.heads) and not ours:
        raise UnavailableError(
            f"model {spec.key} has heads of its own beside a network that is not packed here "
            f"({', '.join(file.name for file in snapshot.heads.values())}): use bge-m3, or drop what they give"
        )
    if padded:
        raise UnavailableError(
            f"model {spec.key} gives no token vectors here, since its rows are padded ({padded}): drop it from "
            "--token-vectors"
        )
    check_heads(spec.key, snapshot.heads, width)
    tokenizer = load_tokenizer(path / "tokenizer.json")
    specials = specials_of(tokenizer)
    unweighed = {*_special_ids(path, tokenizer), *specials.before, *specials.after}
    mapped = snapshot.heads.get("colbert_linear")
    dim = shapes_in(mapped)["bias"][0] if mapped else width
    precision = spec.token_precision
    if "tokens" in spec.gives and precision == "bit" and dim % 8:
        raise UsageError(f"--token-precision bit: {spec.key} has {dim} numbers in a vector, no multiple of 8: use int8")
    # BGE-M3 was trained to leave out the first token alone. Of a network that was not trained for its tokens, special
    # ones say nothing of any word: each would be alike with that of every query.
    around = (1, 0) if mapped else (len(specials.before), len(specials.after))
    wanted = "tokens" in spec.gives
    return TokenOutputs(
        tuple(sorted(unweighed)) if lexical else None,
        TokenForm(dim=dim, precision=precision, pooling=spec.token_pooling) if wanted else None,
        around if wanted else (0, 0),
    )


def _special_ids(path: Path, tokenizer: Tokenizer) -> set[int]:
    """The ids of the tokens of `UNWEIGHED`, as the model's files name them."""
    told = {**read_object(path / "special_tokens_map.json"), **read_object(path / "tokenizer_config.json")}
    words = [each.get("content") if isinstance(each := told.get(name), dict) else each for name in UNWEIGHED]
    ids = (tokenizer.token_to_id(word) for word in words if isinstance(word, str))
    return {number for number in ids if number is not None}
