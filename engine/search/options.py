"""How questions are asked, each option declared once: its type, how a command line calls its value, and its help.

The flags of `search`, `serve`, `questions` and `eval` are made of these fields, and Python takes them by the same
names; `/search` knows no others. None, like no mention, is the default. Imports nothing heavy.
"""

from collections.abc import Mapping, Sequence
from typing import Annotated, Literal, TypedDict

Conditions = str | Sequence[str] | Mapping[str, str | float | list[str | float | None] | None]
"""Conditions on payloads: "metadata.lang=en", several of these, or the value (or one of a list) by key; None: none."""


class SearchRules(TypedDict, total=False):
    """Which lists answer a question, how they become one, which chunks may be in them, and what scores these anew."""

    weights: Annotated[Mapping[str, float] | None, "MODEL=W,...",
        "weights of the dense models for this search; 0, or no mention, leaves one out (default those of the store)",
    ]  # fmt: skip
    only: Annotated[str | None, "NAME", "one model's vectors or terms alone, or bm25"]
    hybrid: Annotated[Literal["weighted", "rrf", "dbsf", "off"] | None, "weighted|rrf|dbsf|off",
        "how dense and sparse lists become one: weighted (default), a sum of scores from 0 to 1; rrf as Qdrant has "
        "it and dbsf, which lose much on some collections; or off",
    ]  # fmt: skip
    sparse_share: Annotated[float | None, "S",
        "how much the sparse lists count together, from 0 to 1 (default that of the store: 0.25, or 0.2 of one of an "
        "earlier version); more than 0.3 has done harm",
    ]  # fmt: skip
    where: Annotated[Conditions, "KEY=VALUE",
        "only chunks whose payload has this value (!=, >=, <=, >, < too), as in metadata.lang=en; may be repeated",
    ]  # fmt: skip
    rerank: Annotated[str | Sequence[str], "MODEL,...",
        "cross-encoders that score the best chunks anew: the first that can be had, the others in its place; or maxsim "
        "(or one model of the store), which compares stored token vectors",
    ]  # fmt: skip
    rerank_share: Annotated[float | None, "S",
        "how much its scores count beside the search's own, from 0 to 1 (default 0.2; of maxsim 0.3)",
    ]  # fmt: skip
    rerank_depth: Annotated[int | None, "N", "number of chunks that it scores (default 50)"]
