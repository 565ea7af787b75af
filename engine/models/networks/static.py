"""Static models: a table with a vector for each token, of which a text's is the mean. There is no attention, and no row
depends on another.

Tables are read as sentence-transformers' StaticEmbedding reads them, of its own files and of model2vec's: there a token
has the row that `mapping` names, times its own of `weights`.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from interlock.engine.errors import UnavailableError
from interlock.engine.models.layout import STATIC_TYPE, shapes_in
from interlock.engine.models.networks.checkpoint import frozen
from interlock.engine.models.networks.kernels import PackedBatch

OWN, OTHER = "embedding.weight", "embeddings"
"""What sentence-transformers and model2vec call the table."""


def table_settings(files: Sequence[Path]) -> Mapping[str, Any]:
    """Say of a table what a configuration says of a network. Raises UnavailableError for a file that holds none."""
    shapes = {name: shape for file in files for name, shape in shapes_in(file).items()}
    table = shapes.get(OWN, shapes.get(OTHER, ()))
    if len(table) != 2:
        raise UnavailableError(f"{files[0]} lacks a table of vectors ({OWN} or {OTHER}): fetch the model again")
    words = table[0] if OWN in shapes else shapes.get("mapping", table)[0]
    return {"model_type": STATIC_TYPE, "hidden_size": table[1], "vocab_size": words}


class StaticTable(nn.Module):
    """A table with a row for each token."""

    def __init__(self, rows: Tensor) -> None:
        super().__init__()
        self.rows = frozen(rows)

    @classmethod
    def from_state(cls, state: Mapping[str, Tensor], dtype: torch.dtype) -> "StaticTable":
        """Build the table in `dtype` of the tensors of its files, one row for each token."""
        if OWN in state:
            return cls(state[OWN].to(dtype))
        rows = state[OTHER]
        if "mapping" in state:
            rows = rows[state["mapping"].long()]
        if "weights" in state:
            rows = rows.to(torch.promote_types(rows.dtype, torch.float32))
            rows = (rows * state["weights"][:, None]).to(rows.dtype)
        return cls(rows.to(dtype))

    def forward(self, batch: PackedBatch) -> Tensor:
        """Look up the rows `[T, width]` of the tokens of a batch."""
        return F.embedding(batch.ids[: batch.tokens], self.rows)
