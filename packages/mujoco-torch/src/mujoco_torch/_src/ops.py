"""How an operator of the library is registered with torch.

An operator has a schema, a reference in torch (any device), a CPU kernel where a C++ compiler is found, maybe a CUDA
kernel where Triton is installed, a fake for tracing, a rule for ``vmap`` that appends the mapped dimension to the
worlds, and a gradient. The gradient is a ``torch.autograd.Function`` around the operator rather than a kernel of
torch's autograd key, which would run Python at every call, differentiated or not (40 us, against 4).
"""

import functools
import importlib
import importlib.util
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from mujoco_torch._src import kernels

_library = torch.library.Library("mujoco_torch", "DEF")
_references: dict[str, Callable] = {}
_ready = False


def define(
    schema: str,
    reference: Callable,
    fake: Callable,
    shared: Sequence[int] = (),
    cuda: str | None = None,
    kernel: bool = True,
) -> Callable:
    """Register an operator ``name(...) -> ...`` of the schema; returns the function that calls it.

    Args:
      reference: the operator in plain torch.
      fake: the outputs' shapes, for tracing.
      shared: positions of tensor arguments that have no worlds and cannot be mapped by ``vmap``.
      kernel: whether there is a C++ kernel; without one the reference runs on a CPU.
      cuda: module of Triton kernels with a function of the operator's name, imported at the first call on CUDA.
    """
    name = schema.partition("(")[0]
    _library.define(schema)
    if kernel:
        _references[name] = reference
    else:
        _library.impl(name, reference, "CPU")
    _library.impl(name, _on_cuda(name, reference, cuda), "CUDA")
    torch.library.register_fake(f"mujoco_torch::{name}", fake, lib=_library)
    operator = getattr(torch.ops.mujoco_torch, name).default
    torch.library.register_vmap(f"mujoco_torch::{name}", _vmap_rule(operator, shared), lib=_library)

    def call(*args):
        prepare()
        return operator(*args)

    return call


def _on_cuda(name: str, reference: Callable, module: str | None) -> Callable:
    """The function of that name in a module that needs Triton; the reference where there is none."""
    if module is None or importlib.util.find_spec("triton") is None:
        return reference

    @functools.cache
    def kernel() -> Callable:
        return getattr(importlib.import_module(module), name)

    return lambda *args: kernel()(*args)


def fused(
    operator: Callable,
    reference: Callable,
    tensors: int,
    shared: Sequence[int],
    named: Callable[[int], object],
) -> Callable:
    """An operator that is one on a CPU only: elsewhere its reference is traced, and the compiler fuses it.

    Arguments are some tensors, then keys of what ``named`` finds. The gradient is that of the reference.
    """

    def forward(*args):
        return operator(*args)

    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs[:tensors])
        ctx.keys = inputs[tensors:]
        ctx.named = [
            named(key) for key in ctx.keys
        ]  # so that it lives as long as the gradient may be asked for

    def backward(ctx, *grads):
        pull = torch.func.vjp(lambda *x: reference(*x, *ctx.keys), *ctx.saved_tensors)[1]
        return *pull(grads), *(None for _ in ctx.keys)

    def vmap(info, in_dims, *args):
        return vmapped(on_cpu, shared, info.batch_size, in_dims, args)

    rules = dict(forward=forward, setup_context=setup_context, backward=backward, vmap=vmap)
    function = type(
        "Fused", (torch.autograd.Function,), {key: staticmethod(rule) for key, rule in rules.items()}
    )
    on_cpu = differentiable(function, operator)

    def call(*args):
        return (on_cpu if args[0].device.type == "cpu" else reference)(*args)

    return call


def prepare() -> None:
    """Give every operator its implementation on a CPU: the kernel, or the reference where there is none."""
    global _ready
    if _ready:
        return
    _ready = True
    if not kernels.register(tuple(_references)):
        for name, reference in _references.items():
            _library.impl(name, reference, "CPU")


def differentiable(function: type[torch.autograd.Function], operator: Callable) -> Callable:
    """The operator, by way of the function that knows its gradient where somebody may ask for one."""

    def call(*args):
        wanted = torch.is_grad_enabled() and any(isinstance(x, Tensor) and x.requires_grad for x in args)
        if wanted or torch._C._are_functorch_transforms_active():
            return function.apply(*args)
        return operator(*args)

    return call


def _merge(x: Tensor, dim: int | None, count: int) -> Tensor:
    """(..., B) with a mapped dimension anywhere, or without one, as (..., count * B)."""
    x = x.unsqueeze(-2).expand(*x.shape[:-1], count, x.shape[-1]) if dim is None else x.movedim(dim, -2)
    return x.reshape(*x.shape[:-2], x.shape[-2] * x.shape[-1])


def _split(x: Tensor, count: int) -> Tensor:
    return x.reshape(*x.shape[:-1], count, x.shape[-1] // count)


def vmapped(
    operator: Callable, shared: Sequence[int], count: int, in_dims: Sequence[int | None], args: Sequence
):
    """Outputs and their mapped dimensions of an operator whose arguments are mapped: the worlds are that many more."""
    merged = []
    for i, (x, dim) in enumerate(zip(args, in_dims, strict=True)):
        if i in shared and dim is not None:
            raise ValueError(
                "vmap: an array of the model is the same in all worlds and cannot be mapped; use in_dims None for it"
            )
        merged.append(_merge(x, dim, count) if isinstance(x, Tensor) and i not in shared else x)
    out = operator(*merged)
    if isinstance(out, Tensor):
        return _split(out, count), out.dim() - 1
    return tuple(_split(x, count) for x in out), tuple(x.dim() - 1 for x in out)


def _vmap_rule(operator: Callable, shared: Sequence[int]) -> Callable:
    def rule(info, in_dims, *args):
        return vmapped(operator, shared, info.batch_size, in_dims, args)

    return rule
