"""Sparse constant matrices over the item axis: gathers, and sums along the tree.

"The body of each geom" or "all bodies below this one" is a matrix of few entries, known with the model. ``P @ x`` takes
items ``[..., n, B]`` to ``[..., rows, B]``. It is one operator, opaque to the compiler: an index in a compiled loop
costs seconds of compile time, and a dense product does mostly nothing (humanoid: 8 of 30 us a world for 36 products).
"""

import hashlib
import weakref
from collections.abc import Sequence
from functools import cached_property
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from mujoco_torch._src import kernels, ops
from mujoco_torch._src.components import Components, stacked


class Pattern:
    """A constant matrix, by its entries; frozen, and interned by value.

    ``key`` names the value in a compiled graph, which can hold a number but not an object.
    """

    _interned: ClassVar[weakref.WeakValueDictionary[int, "Pattern"]] = weakref.WeakValueDictionary()
    entries: tuple[tuple[int, int, float], ...]
    shape: tuple[int, int]
    key: int
    _constants: dict[tuple[torch.dtype, torch.device], Tensor]

    def __new__(cls, entries: Sequence[tuple[int, int, float]], shape: tuple[int, int]) -> "Pattern":
        ordered = tuple(sorted((int(i), int(j), float(x)) for i, j, x in entries))
        if len({(i, j) for i, j, _ in ordered}) < len(ordered):
            raise ValueError("a pattern has at most one entry in a place")
        key = content_key((ordered, shape))
        if key in cls._interned:
            return cls._interned[key]
        self = super().__new__(cls)
        self.entries, self.shape, self.key = ordered, shape, key
        self._constants = {}
        cls._interned[key] = self
        counts = (
            np.bincount([i for i, _, _ in ordered], minlength=shape[0])
            if ordered
            else np.zeros(shape[0], int)
        )
        kernels.tell_pattern(
            key,
            shape[1],
            [0, *np.cumsum(counts).tolist()],
            [j for _, j, _ in ordered],
            [x for _, _, x in ordered],
        )
        return self

    @classmethod
    def of(cls, key: int) -> "Pattern":
        """The pattern of a model that is alive."""
        return cls._interned[key]

    @classmethod
    def of_matrix(cls, matrix: np.ndarray) -> "Pattern":
        """The entries of a dense matrix that are not zero."""
        return cls([(i, j, matrix[i, j]) for i, j in np.argwhere(matrix)], matrix.shape)

    @cached_property
    def T(self) -> "Pattern":
        """The transposed matrix."""
        return Pattern([(j, i, x) for i, j, x in self.entries], self.shape[::-1])

    @cached_property
    def jumps(self) -> tuple["Pattern", ...]:
        """Of a pattern that picks each item's parent, a root itself: that, the parent's parent, and so on by doubling.

        Pointer jumping: after round r an item is joined with its 2**r nearest ancestors.
        """
        jumps, up = [], [j for _, j, _ in self.entries]
        while any(up):
            jumps.append(Pattern([(i, j, 1) for i, j in enumerate(up)], self.shape))
            up = [up[j] for j in up]
        return tuple(jumps)

    def dense(self, like: Tensor) -> Tensor:
        """The matrix itself, with dtype and device of another tensor."""
        matrix = np.zeros(self.shape)
        for i, j, x in self.entries:
            matrix[i, j] = x
        return torch.as_tensor(matrix).to(dtype=like.dtype, device=like.device)

    def constant(self, like: Tensor) -> Tensor:
        """The same, made once: for the operator, which may run in a CUDA graph, where nothing can be made."""
        kind = like.dtype, like.device
        if kind not in self._constants:
            self._constants[kind] = self.dense(like)
        return self._constants[kind]

    def __matmul__(self, x: Tensor | Components) -> Tensor:
        return _combine(stacked(x), self.key)

    def __reduce__(self):
        return Pattern, (self.entries, self.shape)

    def __repr__(self) -> str:
        return f"Pattern({self.shape[0]}x{self.shape[1]}, key={self.key})"


def content_key(content: object) -> int:
    """A number that names a value by its content, the same in every process."""
    digest = hashlib.sha256(repr(content).encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def _reference(x: Tensor, key: int) -> Tensor:
    return (Pattern.of(key).constant(x) @ x).contiguous()


def _fake(x: Tensor, key: int) -> Tensor:
    return x.new_empty((*x.shape[:-2], Pattern.of(key).shape[0], x.shape[-1]))


_operator = ops.define(
    "combine(Tensor x, int pattern) -> Tensor",
    _reference,
    _fake,
    cuda="mujoco_torch._src.solver.triton_kernels",
)


class _Combine(torch.autograd.Function):
    @staticmethod
    def forward(x, key):
        return _operator(x, key)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.pattern = Pattern.of(inputs[1])  # so that it lives as long as the gradient may be asked for

    @staticmethod
    def backward(ctx, *grads):
        return ctx.pattern.T @ grads[0], None

    @staticmethod
    def vmap(info, in_dims, *args):
        return ops.vmapped(_combine, (), info.batch_size, in_dims, args)


_combine = ops.differentiable(_Combine, _operator)
