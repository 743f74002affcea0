"""Blocks of worlds: the threads that run them, what they are cut from, and where their results go."""

import functools
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor

from mujoco_torch._src import layout
from mujoco_torch._src.integrate import not_computed
from mujoco_torch._src.pieces import Values, inside_shape
from mujoco_torch._src.stage import check_fits
from mujoco_torch._src.stepper import Stepper
from mujoco_torch._src.topology import Topology
from mujoco_torch._src.types import Data, Model, new_data, read_field, replace_fields, shape_of


class Pool:
    """Threads that run blocks, each with one thread of torch's."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._executor: ThreadPoolExecutor | None = None
        self._size = 0
        # Never ends: where torch finds no GPU for its CUDA build, tracing points the process at a device guard that
        # dies with its thread (torch 2.11: the next backward pass then crashes).
        self._compiler = ThreadPoolExecutor(1, "mujoco_torch_compiler", initializer=_prepare_thread)

    def compile(self, job: Callable[[], None]) -> None:
        """Run a job that compiles, alone; raises what it raised."""
        self._compiler.submit(job).result()

    def run(self, jobs: Sequence[Callable[[], None]]) -> None:
        """Run all jobs on as many threads as torch would use here; raises what a job raised."""
        size, queue = torch.get_num_threads(), iter(jobs)

        def work() -> None:
            for job in queue:  # threads take their jobs from one iterator, each when it is done with the last
                job()

        threads = self._threads(size)
        for future in [threads.submit(work) for _ in range(min(size, len(jobs)))]:
            future.result()

    def _threads(self, size: int) -> ThreadPoolExecutor:
        with self._lock:
            if self._executor is None or self._size != size:
                if self._executor is not None:
                    self._executor.shutdown(wait=False)
                self._executor = ThreadPoolExecutor(size, "mujoco_torch", initializer=_prepare_thread)
                self._size = size
            return self._executor


def _prepare_thread() -> None:
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)


pool = Pool()
if hasattr(os, "register_at_fork"):  # a child has none of its parent's threads
    os.register_at_fork(after_in_child=lambda: pool.__init__())


class Worlds:
    """What a call works on: the state of all worlds, where results go, and how they are cut into blocks."""

    def __init__(self, m: Model, d: Data, stepper: Stepper) -> None:
        self.m = m
        self.batch = d.batch_size
        self.nworld = d.batch_size[0] if d.batch_size else 1
        self.block = stepper.block
        self.lone = self.block == self.nworld
        self.inputs = {name: self._checked(d, name, stepper.shapes[name]) for name in stepper.state}
        self.names = (*stepper.state, *stepper.kept)
        self.outputs = {} if self.lone else {name: self._place(name, stepper) for name in self.names}

    def _checked(self, d: Data, name: str, shape: tuple[int, ...]) -> Tensor:
        x = read_field(d, name)
        check_fits(name, x, (*self.batch, *shape), layout.FIELDS[name], self.m.params)
        return x if self.batch else x.unsqueeze(0)

    def _place(self, name: str, stepper: Stepper) -> Tensor:
        """Memory for a result: a state field worlds first, with what most steps leave as it is; others as inside."""
        if name in self.inputs:
            x = self.inputs[name]
            return x.new_empty(x.shape) if name in stepper.changed else _copy(x)
        dtype = torch.int32 if layout.FIELDS[name].integer else self.m.dtype
        return torch.empty((*inside_shape(self.m.topology, name), self.nworld), dtype=dtype)

    def blocks(self) -> list[tuple[int, int]]:
        """First world of each block, and the first that no block before has: a ragged last block overlaps another."""
        starts = range(0, self.nworld - self.block + 1, self.block)
        done = starts[-1] + self.block
        ragged = [(self.nworld - self.block, done)] if done < self.nworld else []
        return [*((start, start) for start in starts), *ragged]

    def load(self, start: int) -> Values:
        """State of a block, in the inside layout, contiguous."""
        worlds = slice(start, start + self.block)
        return {
            name: layout.to_inside(layout.FIELDS[name], x if self.lone else x[worlds]).contiguous()
            for name, x in self.inputs.items()
        }

    def store(self, values: Values, loaded: Values, start: int, first: int) -> None:
        """Results of a block, from world `first` on, but for fields of which `_place` made a copy."""
        for name in self.names:
            x, field = values[name], layout.FIELDS[name]
            if x is loaded.get(name):
                if self.lone:
                    self.outputs[name] = _copy(self.inputs[name])
            elif self.lone:  # what a piece returns is new; derived fields stay as they are inside
                self.outputs[name] = _copy(layout.to_public(field, x)) if name in loaded else x
            elif name in loaded:
                x = layout.to_public(field, x[..., first - start :])
                self.outputs[name][first : start + self.block] = x
            else:
                self.outputs[name][..., first : start + self.block] = x[..., first - start :]

    def data(self) -> Data:
        """The results as a Data; what was not asked for is marked so."""
        fields = {}
        for name, x in self.outputs.items():
            public = x if name in self.inputs else layout.to_public(layout.FIELDS[name], x)
            fields[name] = public if self.batch else public.squeeze(0)
        return replace_fields(_not_computed(self.m.topology, self.m.dtype, self.batch), fields)


def _copy(x: Tensor) -> Tensor:
    return x.clone(memory_format=torch.contiguous_format)


@functools.lru_cache(maxsize=64)
def _not_computed(topology: Topology, dtype: torch.dtype, batch: torch.Size) -> Data:
    """Every field as it is when nobody asked for it. Nobody can write to these, so all calls may share them."""
    return new_data({name: not_computed(topology, dtype, name, batch) for name in layout.FIELDS}, batch)


class Kept:
    """What a rollout keeps of every step, ``(nworld, nstep, ...)`` for each field."""

    def __init__(self, m: Model, names: Sequence[str], nworld: int, nstep: int) -> None:
        self.fields = {name: _kept_field(m, name, (nworld, nstep)) for name in names}
        self.full = [name for name, x in self.fields.items() if x.numel()]

    def store(self, steps: Sequence[Sequence[Tensor]], begin: int, start: int, first: int) -> None:
        """The full fields of a block of worlds after steps from number `begin` on, from world `first` on."""
        for name, values in zip(self.full, zip(*steps, strict=True), strict=True):
            # Transposed first, which torch does block by block, and then put in place: 10 us a step instead of 18.
            x = layout.to_public(layout.FIELDS[name], torch.cat(values, -1)).contiguous()
            x = x.unflatten(0, (len(steps), -1)).transpose(0, 1)
            worlds = slice(first, start + x.shape[0])
            self.fields[name][worlds, begin : begin + len(steps)] = x[first - start :]


def _kept_field(m: Model, name: str, batch: tuple[int, int]) -> Tensor:
    field = layout.FIELDS[name]
    return torch.empty(
        (*batch, *shape_of(m.topology, field)), dtype=torch.int32 if field.integer else m.dtype
    )


def step_by_step(controls: Tensor) -> Sequence[Tensor]:
    """Controls ``(worlds, steps, nu)`` as they are inside, ``[nu, B]`` of each step."""
    worlds, steps, nu = controls.shape
    return controls.reshape(worlds, steps * nu).T.contiguous().view(steps, nu, worlds).unbind(0)
