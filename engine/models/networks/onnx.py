"""Models that are published as ONNX alone: onnxruntime computes them, on the CPU.

A graph is given rows of one length, so that it has nothing to mask and no row sees padding. It gives the states of
tokens, and what comes after them is computed as for any other model. No code comes along: a graph names operators of
onnxruntime's own, and any other is refused by it.
"""

import mmap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from interlock.engine.errors import UnavailableError, UsageError
from interlock.engine.models.networks.batching import Batching
from interlock.engine.models.networks.kernels import PackedBatch
from interlock.engine.models.networks.pooling import POOLINGS
from interlock.engine.models.registry import ModelSpec

INPUTS = ("input_ids", "attention_mask", "token_type_ids")
STATES = ("last_hidden_state", "token_embeddings")
"""What the states of tokens are called among what a graph gives."""
BY_BATCH = b"DynamicQuantize"
"""In the names of operators that measure all rows of a forward by one scale."""
AFTER = frozenset({"Transformer", "Pooling", "Dense", "Normalize"})
_INSTEAD = "use the model that it was made of"


def how_computed(
    spec: ModelSpec, file: Path, root: Path, device_kind: str, kinds: Sequence[str], pooling: str | None
) -> dict[str, Any]:
    """Say which rows of the model of `file` in `root` are computed together; `kinds` are its modules.

    Raises UsageError for a device or precision that is none of ONNX, UnavailableError for what is not computed here.
    """
    name = file.relative_to(root).as_posix()
    if spec.kind != "dense":
        raise UnavailableError(f"model {spec.key}: {file} is ONNX, which gives vectors of texts alone here: {_INSTEAD}")
    if device_kind != "cpu":
        raise UsageError(f"model {spec.key} is ONNX ({name}), which is computed on the CPU alone: add --devices cpu")
    if spec.dtype.get("cpu"):
        raise UsageError(f"[models.{spec.key}] dtype: {name} is ONNX, which says its own: drop it")
    if pooling not in POOLINGS or {*kinds} - AFTER:
        told = f"modules {', '.join(kinds)}" if pooling in POOLINGS else f"pooling {pooling or 'of several ways'}"
        raise UnavailableError(f"model {spec.key}: {file} is ONNX, beside which {told} is not computed: {_INSTEAD}")
    _session_of(spec.key, file, pooled=bool(kinds))
    with file.open("rb") as handle, mmap.mmap(handle.fileno(), 0, access=mmap.ACCESS_READ) as content:
        batching = Batching.EVEN if content.find(BY_BATCH) < 0 else Batching.SINGLE
    why = "nothing is computed for padding" if batching is Batching.EVEN else "its numbers are scaled by forward"
    return {"batching": batching, "padded_because": f"onnxruntime computes its {name}; {batching} at a time: {why}"}


class OnnxNetwork(nn.Module):
    """A graph that gives the states of tokens, and the modules that follow the pooling."""

    def __init__(self, model: str, file: Path, after: Sequence[nn.Module], size: int) -> None:
        """`size` is how many bytes its files have. Raises UnavailableError for a graph that is not computed here."""
        super().__init__()
        self.after = nn.ModuleList(after)
        self.beside = size
        """Bytes of weights that are no tensors of torch."""
        self._session = _session_of(model, file)
        self._types = {each.name: np.int32 if "int32" in each.type else np.int64 for each in self._session.get_inputs()}
        self._given = next(each.name for each in self._session.get_outputs() if each.name in STATES)

    def forward(self, batch: PackedBatch) -> Tensor:
        """Compute the states `[T, width]` of the tokens of rows of one length."""
        shape = len(batch.lengths), batch.longest
        ids = batch.ids[: batch.tokens].numpy().reshape(shape)
        types = np.zeros(shape) if batch.types is None else batch.types[: batch.tokens].numpy().reshape(shape)
        every = dict(zip(INPUTS, (ids, np.ones(shape), types), strict=True))
        given = {name: every[name].astype(kind) for name, kind in self._types.items()}
        try:
            (states,) = self._session.run([self._given], given)
        except Exception as error:  # onnxruntime raises classes of its own
            raise MemoryError(str(error)) if "allocate" in str(error) else RuntimeError(str(error)) from error
        return torch.from_numpy(states).flatten(0, 1).float()


def _session_of(model: str, file: Path, *, pooled: bool = True) -> Any:
    """Load a graph. Raises UnavailableError, naming the file, for one that asks for what is not given, or gives no
    states of tokens; and, where nothing says how they are `pooled`, for one that does it itself."""
    try:
        import onnxruntime
    except ImportError:
        raise UnavailableError(
            f"model {model}: {file} is ONNX, which needs onnxruntime: install it with pip install 'interlock[onnx]'"
        ) from None
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.enable_cpu_mem_arena = options.enable_mem_pattern = False  # what an arena once had it keeps
    options.log_severity_level = 4  # what is wrong is raised
    try:
        session = onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
    except Exception as error:
        told = " ".join(str(error).split())
        raise UnavailableError(f"model {model}: onnxruntime cannot load {file} ({told:.200}): {_INSTEAD}") from error
    asked, gives = [each.name for each in session.get_inputs()], [each.name for each in session.get_outputs()]
    if others := [name for name in asked if name not in INPUTS]:
        raise UnavailableError(
            f"model {model}: {file} asks for {', '.join(others[:3])}, which is not given here: {_INSTEAD}"
        )
    if not {*gives} & {*STATES} or (not pooled and "sentence_embedding" in gives):
        raise UnavailableError(
            f"model {model}: {file} gives {', '.join(gives[:3])}, and vectors are made of {' or '.join(STATES)}"
            f"{'' if pooled else ' as a modules.json says, of which there is none'}: {_INSTEAD}"
        )
    return session
