"""Stacked quantities whose components stay apart until something needs them in one tensor.

A chain of vector algebra written with stacked tensors makes one buffer per step of the chain: on a CPU, Inductor
materialises every ``stack``, even one whose parts are only taken out again. ``Components`` postpones the stack.
Arithmetic acts on each component, so a chain fuses into one loop over registers; a matrix product, or a field of Data,
stacks.
(Humanoid step: 501 of 623 tensor views of the generated wrapper were pieces of such stacks.)
"""

import functools
import operator
from collections.abc import Iterable, Iterator

import torch
from torch import Tensor


class Components:
    """A tensor ``[k, ...]`` held as its ``k`` components ``[...]``.

    Arithmetic with a tensor of one more dimension than a component has, and ``k`` in front, goes component by
    component; any other tensor or number counts as a scalar. Torch functions other than arithmetic see the stacked
    tensor.
    """

    def __init__(self, parts: Iterable[Tensor]) -> None:
        self.parts = tuple(parts)

    def stack(self) -> Tensor:
        """All components in one tensor ``[k, ...]``."""
        return torch.stack(torch.broadcast_tensors(*self.parts))

    def __len__(self) -> int:
        return len(self.parts)

    def __iter__(self) -> Iterator[Tensor]:
        return iter(self.parts)

    def __getitem__(self, index):
        """A component, some components, or with a tuple the same index into the rest of each of some components."""
        if isinstance(index, int):
            return self.parts[index]
        if isinstance(index, slice):
            return Components(self.parts[index])
        first, *rest = index
        return Components(part[tuple(rest)] for part in self.parts[first])

    def __neg__(self) -> "Components":
        return Components(-part for part in self.parts)

    def __add__(self, other) -> "Components":
        return _each(operator.add, self, other)

    def __sub__(self, other) -> "Components":
        return _each(operator.sub, self, other)

    def __mul__(self, other) -> "Components":
        return _each(operator.mul, self, other)

    def __truediv__(self, other) -> "Components":
        return _each(operator.truediv, self, other)

    def __radd__(self, other) -> "Components":
        return _each(operator.add, other, self)

    def __rsub__(self, other) -> "Components":
        return _each(operator.sub, other, self)

    def __rmul__(self, other) -> "Components":
        return _each(operator.mul, other, self)

    def __rmatmul__(self, other: Tensor) -> Tensor:
        return other @ self.stack()

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        """Arithmetic of a tensor with Components by component; anything else on stacked tensors."""
        kwargs = kwargs or {}
        if elementwise := _ARITHMETIC.get(func.__name__.strip("_")):
            return _each(elementwise, *args)
        return func(*(stacked(x) for x in args), **kwargs)


_ARITHMETIC = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "radd": lambda x, y: y + x,
    "rsub": lambda x, y: y - x,
    "rmul": lambda x, y: y * x,
}


def _each(fn, *values) -> Components:
    """``fn`` applied to the components of the values; a scalar serves every component."""
    example = next(x for x in values if isinstance(x, Components))
    return Components(fn(*(_part(x, i, example) for x in values)) for i in range(len(example)))


def _part(x, i: int, example: Components):
    if isinstance(x, Components):
        return x[i]
    if isinstance(x, Tensor) and x.dim() == example[0].dim() + 1:
        return x[i]
    return x


def stacked(x):
    """``x`` with its components, or those of its elements if it is a tuple or list, in one tensor."""
    if isinstance(x, Components):
        return x.stack()
    if isinstance(x, (tuple, list)):
        return type(x)(stacked(item) for item in x)
    return x


def where(condition: Tensor, x, y) -> Components:
    """``torch.where`` by component; ``condition`` is a scalar."""
    return _each(functools.partial(torch.where, condition), x, y)


def join(*values: Iterable[Tensor]) -> Components:
    """The components of all values, one after the other."""
    return Components(part for value in values for part in value)
