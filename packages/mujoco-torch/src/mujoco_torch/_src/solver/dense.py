"""Unsymmetric systems, worlds last: ``solve_dense``, with its gradient."""

import torch
from torch import Tensor

from mujoco_torch._src import ops


def solve_dense(A: Tensor, b: Tensor) -> Tensor:
    """x (n, B) of A x = b; A (n, n, B), b (n, B). A world whose matrix is singular gets NaN or infinity.

    The kernel eliminates from the last unknown to the first without pivoting, as C does with M - h D, and skips what is
    zero by structure; the reference pivots.
    """
    return _solve_dense(A, b)


def _reference(A: Tensor, b: Tensor) -> Tensor:
    return torch.linalg.solve_ex(A.movedim(-1, 0), b.T.unsqueeze(-1))[0].squeeze(-1).T.contiguous()


_operator = ops.define(
    "solve_dense(Tensor A, Tensor b) -> Tensor", _reference, lambda A, b: b.new_empty(b.shape)
)


class _SolveDense(torch.autograd.Function):
    """With y = A^-T g: db = y, dA = -y x'."""

    @staticmethod
    def forward(A, b):
        return _operator(A, b)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(inputs[0], output)

    @staticmethod
    def backward(ctx, *grads):
        A, x = ctx.saved_tensors
        y = _solve_dense(A.transpose(0, 1), grads[0])
        return -y.unsqueeze(1) * x.unsqueeze(0), y

    @staticmethod
    def vmap(info, in_dims, *args):
        return ops.vmapped(_solve_dense, (), info.batch_size, in_dims, args)


_solve_dense = ops.differentiable(_SolveDense, _operator)
