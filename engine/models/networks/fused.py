"""Parts of transformers' rotary networks in fewer kernels, with the same weights and the same mathematics.

What these architectures compute between their matrix products they compute in many small steps, each of which reads and
writes all of a batch once more. Here norms are one call, queries and keys are projected, normed and turned together,
and both halves of a gated feed-forward are one product. Differences are those of rounding. Where a batch says so,
Triton's kernels compute what lies between products.
"""

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from interlock.engine.models.networks.attention import attend_here, by_triton, seen

_LIBRARY = torch.library.Library("interlock", "DEF")  # type: ignore[no-untyped-call]
for _schema in (
    "rms_norm(Tensor rows, Tensor? weight, float epsilon) -> (Tensor, Tensor)",
    "turn(Tensor(a!) rows, Tensor? weights, Tensor cosines, Tensor sines, float epsilon, bool one) -> ()",
    "gate(Tensor(a!) rows, str activation) -> ()",
    "norm(Tensor(a!) out, Tensor(b!) rows, Tensor? other, Tensor weight, Tensor? bias, float epsilon, bool one) -> ()",
):
    _LIBRARY.define(_schema)  # type: ignore[no-untyped-call]
_GATES = {"SiLU": "silu", "SiLUActivation": "silu", "GELUActivation": "gelu", "GELUTanh": "tanh"}
"""What a gate of Triton's calls the activations of torch and transformers."""


def fuse(network: nn.Module) -> nn.Module:
    """Replace what can be computed in fewer kernels, in place; returns the network."""
    for fuse_part in (_fused, _layer):  # a layer takes what its parts have become
        for module in list(network.modules()):
            for name, part in list(module.named_children()):
                if (fused := fuse_part(part)) is not None:
                    setattr(module, name, fused)
    return network


def add_normed(rows: Tensor, other: Tensor, norm: nn.LayerNorm) -> Tensor:
    """Norm the sum of both [T, width] by Triton, in place of `rows`."""
    torch.ops.interlock.norm(rows, rows, other, norm.weight, norm.bias, norm.eps, False)
    return rows


def pack_for_cpu(network: nn.Module) -> nn.Module:
    """Lay the weights of plain maps out for oneDNN's kernels, in place; returns the network. They cannot be moved then.

    Weights in float32 only, and where torch has these kernels.
    """
    # The maps themselves are held by nobody here: each gives its memory back as soon as it is packed.
    for module in [each for each in network.modules() if type(each) is not nn.Linear]:
        for name, part in list(module.named_children()):
            if type(part) is nn.Linear and part.weight.dtype is torch.float32 and part.weight.device.type == "cpu":
                setattr(module, name, _HostLinear(part) if hasattr(torch.ops.mkldnn, "_linear_pointwise") else part)
    return network


def _fused(part: nn.Module) -> nn.Module | None:
    kind = type(part).__name__
    if isinstance(part, nn.Dropout):  # it does nothing here, but a trace takes it for a copy
        return nn.Identity()
    if kind.endswith("RMSNorm"):
        return _Norm(part)
    if kind.endswith("MLP") and hasattr(part, "gate_proj"):
        return _FeedForward(part)
    if kind.endswith("Attention") and (hasattr(part, "q_proj") or hasattr(part, "Wqkv")):
        return _Attention(part)
    return None


def _layer(part: Any) -> nn.Module | None:
    """A layer of which both norms stand before a half; Gemma's has more of them."""
    kinds = {"self_attn": _Attention, "mlp": _FeedForward, "input_layernorm": _Norm, "post_attention_layernorm": _Norm}
    before = all(isinstance(getattr(part, name, None), kind) for name, kind in kinds.items())
    return _Layer(part) if before and not hasattr(part, "pre_feedforward_layernorm") else None


class _Layer(nn.Module):
    """A layer with a norm before each half, called as transformers calls its own."""

    def __init__(self, plain: Any) -> None:
        """Take over the parts of a layer that transformers built, once they are those of this file."""
        super().__init__()
        self.first_norm, self.attention = plain.input_layernorm, plain.self_attn
        self.second_norm, self.feed_forward = plain.post_attention_layernorm, plain.mlp
        self.attention_type = getattr(plain, "attention_type", None)  # transformers before 5.6 asks for it

    def forward(self, hidden_states: Tensor, **given: Any) -> Tensor:
        mixed, _ = self.attention(self.first_norm(hidden_states), **given)
        if by_triton():
            normed = self.second_norm.by_triton(mixed, hidden_states)  # and `mixed` is the sum
            return self.feed_forward(normed).add_(mixed)  # type: ignore[no-any-return]
        rows = hidden_states + mixed
        del mixed
        return rows + self.feed_forward(self.second_norm(rows))  # type: ignore[no-any-return]


class _Attention(nn.Module):
    """Attention of rows laid end to end, queries and keys turned by their positions."""

    def __init__(self, plain: Any) -> None:
        """Take over the weights of an attention that transformers built."""
        super().__init__()
        config = plain.config
        self._heads, self._size = config.num_attention_heads, plain.head_dim
        self._scale = getattr(plain, "scaling", self._size**-0.5)
        windowed = config if config.model_type == "mistral" else plain
        self._causal, self._window = seen(plain, getattr(windowed, "sliding_window", None))
        if hasattr(plain, "Wqkv"):
            self.turned, self.value = _parted(plain.Wqkv, 2 * self._heads * self._size)
            self.out = plain.Wo
        else:
            self.turned, self.value = _joined(plain.q_proj, plain.k_proj), plain.v_proj
            self.out = plain.o_proj
        self.norm: nn.Parameter | None = None
        self._epsilon, self._beyond_one = 0.0, False
        if hasattr(plain, "q_norm"):
            query, key = _Norm(plain.q_norm), _Norm(plain.k_norm)
            counts = self._heads, self.value.weight.shape[0] // self._size
            weights = [norm.weight.expand(count, -1) for norm, count in zip((query, key), counts, strict=True)]
            self.norm, self._epsilon, self._beyond_one = _frozen(torch.cat(weights)), query.epsilon, query.beyond_one

    def forward(
        self, hidden_states: Tensor, position_embeddings: tuple[Tensor, Tensor], **_: object
    ) -> tuple[Tensor, None]:
        """`[1, T, width]` in and out; cosines and sines are `[1, T, d]`."""
        rows = hidden_states[0]
        both = self.turned(rows).view(len(rows), -1, self._size)
        if by_triton():
            angles = (each[0] for each in position_embeddings)
            torch.ops.interlock.turn(both, self.norm, *angles, self._epsilon, self._beyond_one)
        else:
            if self.norm is not None:
                both = torch.ops.interlock.rms_norm(both, None, self._epsilon)[0]
                both = _weighed(both, self.norm, beyond_one=self._beyond_one)
            both = turn(both, *(each[0].unsqueeze(1) for each in position_embeddings))
        query, key = both[:, : self._heads], both[:, self._heads :]
        value = self.value(rows).view(len(rows), -1, self._size)
        mixed = attend_here(query, key, value, causal=self._causal, window=self._window, scale=self._scale)
        del both, query, key, value
        return self.out(mixed.flatten(1))[None], None


class _FeedForward(nn.Module):
    """A feed-forward of which one half gates the other; each row by itself."""

    def __init__(self, plain: Any) -> None:
        """Take over the weights of a feed-forward that transformers built."""
        super().__init__()
        self.up, self.down = _joined(plain.gate_proj, plain.up_proj), plain.down_proj
        self.activation = nn.SiLU(inplace=True) if isinstance(plain.act_fn, nn.SiLU) else plain.act_fn
        self._gate = _GATES.get(type(plain.act_fn).__name__)

    def forward(self, rows: Tensor) -> Tensor:
        if self._gate and by_triton():
            both = self.up(rows).flatten(0, -2)
            torch.ops.interlock.gate(both, self._gate)
            return self.down(both[:, : both.shape[1] // 2]).view(rows.shape)  # type: ignore[no-any-return]
        gate, up = self.up(rows).chunk(2, -1)
        return self.down(self.activation(gate).mul_(up))  # type: ignore[no-any-return]


class _Norm(nn.Module):
    """Each row over the root of its mean square."""

    def __init__(self, plain: Any) -> None:
        """Take over the weights of a norm that transformers built."""
        super().__init__()
        centred = hasattr(plain, "eps")  # Gemma's weights say by how much they differ from one
        self.beyond_one = centred and plain.weight.dtype is not torch.float32
        """Whether weights are kept so: one and a small number lose bits of it where they are added in bfloat16."""
        self.weight = _frozen(plain.weight.data + 1 if centred and not self.beyond_one else plain.weight.data)
        self.epsilon = float(plain.eps if centred else plain.variance_epsilon)

    def forward(self, rows: Tensor) -> Tensor:
        if self.beyond_one and by_triton():
            return self.by_triton(rows)
        if self.beyond_one:
            return _weighed(torch.ops.interlock.rms_norm(rows, None, self.epsilon)[0], self.weight, beyond_one=True)
        return torch.ops.interlock.rms_norm(rows, self.weight, self.epsilon)[0]  # type: ignore[no-any-return]

    def by_triton(self, rows: Tensor, other: Tensor | None = None) -> Tensor:
        """Norm `rows`, or their sum with `other`, which `rows` then are; weights beyond one as Gemma has them."""
        out, flat = torch.empty_like(rows), None if other is None else other.flatten(0, -2)
        given = out.flatten(0, -2), rows.flatten(0, -2), flat, self.weight, None, self.epsilon, self.beyond_one
        torch.ops.interlock.norm(*given)
        return out


def _weighed(normed: Tensor, weight: Tensor, *, beyond_one: bool) -> Tensor:
    """Weigh normed rows in place."""
    return normed.addcmul_(normed, weight) if beyond_one else normed.mul_(weight)


class _HostLinear(nn.Module):
    """A map whose weights lie as the host's kernels read them."""

    def __init__(self, plain: nn.Linear) -> None:
        super().__init__()
        self.weight = _frozen(torch.ops.mkldnn._reorder_linear_weight(plain.weight.data))
        self.bias = plain.bias

    def forward(self, rows: Tensor) -> Tensor:
        fuse = torch.ops.mkldnn._linear_pointwise.default
        return fuse(rows, self.weight, self.bias, "none", [], "none")  # type: ignore[no-any-return]


def turn(rows: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    """Turn the values `[T, heads, d]` of each token by its angles `[T, 1, d]`, of which the halves are equal."""
    turned, half = rows * cosines, rows.shape[-1] // 2
    turned[..., :half].addcmul_(rows[..., half:], sines[..., :half], value=-1)
    turned[..., half:].addcmul_(rows[..., :half], sines[..., half:])
    return turned


@torch.library.impl(_LIBRARY, "rms_norm", "CUDA")
def _on_gpu(rows: Tensor, weight: Tensor | None, epsilon: float) -> tuple[Tensor, Tensor]:
    """One kernel of torch's (2.9 and later), for rows that lie together."""
    normed, scale = torch.ops.aten._fused_rms_norm(rows, rows.shape[-1:], weight, epsilon)
    return normed, scale


@torch.library.impl(_LIBRARY, "rms_norm", "CPU")
def _on_host(rows: Tensor, weight: Tensor | None, epsilon: float) -> tuple[Tensor, Tensor]:
    """What torch computes in six steps of whole rows, in three."""
    root = torch.linalg.vector_norm(rows, dim=-1, keepdim=True, dtype=torch.float32)
    scale = root.square_().div_(rows.shape[-1]).add_(epsilon).rsqrt_()
    normed = (rows * scale).to(rows.dtype)
    return normed if weight is None else normed.mul_(weight), scale


@torch.library.register_fake("interlock::rms_norm", lib=_LIBRARY)  # type: ignore[untyped-decorator]
def _as_shapes(rows: Tensor, weight: Tensor | None, epsilon: float) -> tuple[Tensor, Tensor]:
    """What a GPU allocates, which a trace counts: torch has no such kernel for the host, and knows of none."""
    return torch.empty_like(rows), rows.new_empty((*rows.shape[:-1], 1), dtype=torch.float32)


def _launch(name: str, *given: Any) -> None:
    from interlock.engine.models.networks import triton_kernels  # and Triton itself

    getattr(triton_kernels, name)(*given)


for _name in ("turn", "gate", "norm"):  # they write where they are told, and allocate nothing
    torch.library.impl(_LIBRARY, _name, "CompositeExplicitAutograd")(partial(_launch, _name))
    torch.library.register_fake(f"interlock::{_name}", lambda *_: None, lib=_LIBRARY)


def _joined(first: nn.Linear, second: nn.Linear) -> nn.Linear:
    """One map in place of two, their outputs side by side."""
    first.weight = _frozen(torch.cat([first.weight.data, second.weight.data]))
    if first.bias is not None:
        first.bias = _frozen(torch.cat([first.bias.data, second.bias.data]))
    return first


def _parted(whole: nn.Linear, at: int) -> tuple[nn.Linear, nn.Linear]:
    """Two maps in place of one: its first `at` outputs, and the others."""
    parts = [nn.Linear(1, 1, whole.bias is not None, device="meta") for _ in range(2)]
    for part, kept in zip(parts, (slice(at), slice(at, None)), strict=True):
        part.weight = _frozen(whole.weight.data[kept].clone())
        if whole.bias is not None:
            part.bias = _frozen(whole.bias.data[kept].clone())
    turned, value = parts
    return turned, value


def _frozen(tensor: Tensor) -> nn.Parameter:
    return nn.Parameter(tensor, requires_grad=False)
