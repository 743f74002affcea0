"""What the launches share: shapes of programs, contiguous arguments, the device."""

from contextlib import AbstractContextManager

import torch
import triton
from torch import Tensor

LANES = 32
"""Threads of a warp."""

_TILE_BYTES = 4096
"""Of its largest tile, what one warp holds in registers: 32 of the 255 that a thread has."""


def padded(nv: int) -> int:
    """Size of a tile for `nv` dofs: a power of two."""
    return triton.next_power_of_2(nv)


def warps(elements: int, dtype: torch.dtype) -> int:
    """Warps for a program whose largest tile has so many elements."""
    return min(8, triton.next_power_of_2(triton.cdiv(elements * dtype.itemsize, _TILE_BYTES)))


def contiguous(*tensors: Tensor) -> tuple[Tensor, ...]:
    """The arguments as the kernels read them."""
    return tuple(x.contiguous() for x in tensors)


def on_device(x: Tensor) -> AbstractContextManager:
    """Makes the tensor's GPU the current one; nothing for a CPU tensor, which Triton's interpreter takes."""
    return torch.accelerator.device_index(x.device.index if x.is_cuda else None)
