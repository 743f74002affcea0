"""``compile``: a step in cache-sized blocks of worlds on a CPU, one graph on a GPU.

On a CPU one call over thousands of worlds waits for memory, and Inductor's Python wrapper holds the interpreter's lock.
So the worlds go in blocks, one thread each, through Inductor's C++ wrapper; a block stays in the cache from the first
line of the step to the last, and over all substeps. The compiled functions have no guards: ``_Worlds`` checks a Data
as a whole, once a call.

Between two pieces of a block runs Python, one thread at a time. Each operation of torch's there gives the lock away and
waits for it, so that threads wait for each other: a step has next to none.
"""

import functools
import itertools
import os
import threading
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
import torch._dynamo.exc
import torch._inductor
from tensordict import TensorDict
from torch import Tensor

from mujoco_torch._src import callbacks, layout, tuning
from mujoco_torch._src.enums import IntegratorType
from mujoco_torch._src.errors import ArgumentError
from mujoco_torch._src.forward import forward
from mujoco_torch._src.integrate import (
    ACTUATION,
    ADVANCED,
    COMPARED,
    RK4_CARRIED,
    RK4_CARRIED_ACT,
    RK4_CARRIED_MOTOR,
    RK4_CARRIED_TENDON,
    RK4_FRACTIONS,
    RK4_WEIGHTS,
    YIELDING,
    changed,
    check_controls,
    check_keep,
    check_nsteps,
    forward_compared,
    not_computed,
    rk4_begin,
    rk4_end,
    rk4_stage,
    rollout,
    step,
    unchecked_step,
)
from mujoco_torch._src.reset import check_acc, check_state, has_bad_state, note_bad, replace_bad
from mujoco_torch._src.stage import ALL, check_batch, check_fits
from mujoco_torch._src.topology import Topology
from mujoco_torch._src.types import (
    Data,
    InsideData,
    InsideModel,
    Model,
    new_data,
    read_field,
    replace_fields,
    shape_of,
)

BLOCK = 256
"""Worlds in a block, unless there are fewer."""

SMALLEST_SHARE = 32
"""Worlds that are worth a thread of their own: four registers of float64."""

STEPS_AT_ONCE = 16
"""Steps of a rollout whose controls are read, and whose kept fields are written, at once."""

LANES = 16
"""The most worlds that a register holds: numbers of float32 in 64 bytes."""

Inside = Callable[[InsideModel, InsideData], InsideData]
Values = dict[str, Tensor]


class _Piece:
    """A function of a block of worlds, compiled without guards, from named inside tensors to named inside tensors."""

    _names = itertools.count()

    def __init__(
        self,
        fn: Inside,
        m: Model,
        inputs: Sequence[str],
        outputs: Sequence[str],
        mode: str | None,
        block: int,
    ) -> None:
        empty = set(m.topology.empty_fields.split())
        self.inputs = tuple(name for name in inputs if name not in empty)
        self.outputs = tuple(name for name in outputs if name not in empty)
        digest, given, wanted = m.topology.digest, self.inputs, self.outputs

        @torch.compiler.allow_in_graph
        def core(params: Tensor, *values: Tensor) -> tuple[Tensor, ...]:
            topology = Topology.of(digest)
            fields = dict(zip(given, values, strict=False))
            weights = values[len(given) :]
            worlds = fields["time"].shape
            for name in empty.intersection(layout.STATE):
                fields[name] = params.new_zeros((*_inside_shape(topology, name), *worlds))
            d = fn(InsideModel(topology, params, weights), InsideData(fields))
            # What is loaded is contiguous, and so must be what takes its place in the next step.
            return tuple([getattr(d, name).contiguous() for name in wanted])

        def run(params: Tensor, *values: Tensor) -> tuple[Tensor, ...]:
            return core(params, *values)

        # Dynamo keeps compiled functions by code object; without guards two pieces must not share one.
        run.__code__ = run.__code__.replace(co_name=f"piece_{next(self._names)}")
        self._options = _inductor_options(mode, block)
        self.traced = torch.compile(
            run,
            backend=self._generate,
            fullgraph=True,
            dynamic=False,
            options={"guard_filter_fn": _no_guards},
        )
        self.run: Callable[..., Sequence[Tensor]] = self.traced
        self.weights = m.weights
        self.compiled = False
        self._generated: Callable[..., Sequence[Tensor]] | None = None

    def _generate(self, graph: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Sequence[Tensor]]:
        """Inductor as the backend of Dynamo, whose result is kept, to be called without Dynamo from then on."""
        self._generated = torch._inductor.compile(graph, inputs, self._options)
        return self._generated

    def __call__(self, params: Tensor, values: Values) -> Values:
        inputs = [values[name] for name in self.inputs]
        if self.compiled:
            return dict(zip(self.outputs, self.run(params, *inputs, *self.weights), strict=True))
        # Dynamo takes two inputs that are one tensor now for one input for ever; a guard would tell.
        outputs = self.run(params, *(x.clone() for x in inputs), *self.weights)
        self.compiled = True
        self.run = self._generated or self.run
        return dict(zip(self.outputs, outputs, strict=True))


def _inductor_options(mode: str | None, block: int) -> dict[str, Any]:
    """How Inductor makes a piece of a block of worlds: by the C++ wrapper, one thread, vectors along the worlds.

    Flags of the C++ compiler stay as they are: with others, headers are precompiled once more, for 6 CPU-seconds.
    """
    options = dict(torch._inductor.list_mode_options(mode or "default"))
    options |= {"cpp_wrapper": True, "cpp.threads": 1}
    if block % LANES == 0:
        # Worlds fill vectors, so it always pays to make them; to estimate whether it does takes 3 % of a compilation.
        options["cpp.enable_tiling_heuristics"] = False
        # The loop over what is left is generated even where nothing is, which takes 10 % of a compilation.
        options["cpp.enable_loop_tail_vec"] = False
    return options


def _no_guards(guards: Sequence[Any]) -> list[bool]:
    return [False] * len(guards)


def _inside_shape(topology: Topology, name: str) -> tuple[int, ...]:
    field = layout.FIELDS[name]
    shape = shape_of(topology, field)
    if field.kind == "vector":
        return shape[1], shape[0]
    if field.kind == "matrix":
        return 9, shape[0]
    return shape


class _Stepper:
    """The pieces of a step of one model that keeps certain fields, for blocks of one size."""

    def __init__(self, m: Model, keep: Sequence[str], block: int, mode: str | None) -> None:
        empty = m.topology.empty_fields.split()
        self.block = block
        self.state = [name for name in layout.STATE if name not in empty]
        self.kept = [name for name in keep if name not in layout.STATE and name not in empty]
        self.shapes = {name: shape_of(m.topology, layout.FIELDS[name]) for name in (*self.state, *self.kept)}
        self.ready = False
        self._autoreset = m.autoreset
        self.changed = changed(m)
        self._inside = functools.partial(InsideModel, m.topology, weights=m.weights)
        make = functools.partial(_Piece, m=m, mode=mode, block=block)
        suspect, bad = (("suspect",), ("bad_qacc",)) if m.autoreset else ((), ())
        if m.integrator == IntegratorType.RK4:
            self._advance = self._runge_kutta
            carried = ("time", "qpos", "qvel", "qacc", *RK4_CARRIED)
            moved = ("time", "qpos", "qvel", *RK4_CARRIED[3:])
            given = callbacks.CONTROLLED if m.mjcb_control else ()
            slopes = ("qacc",)
            if m.na:
                carried, slopes = (*carried, "act", *ACTUATION, *RK4_CARRIED_ACT), (*slopes, *ACTUATION)
                moved = (*moved, "act", RK4_CARRIED_ACT[-1])
            if m.motor_stateful:
                carried = (*carried, *RK4_CARRIED_MOTOR)
            compared = [name for name in self.kept if name in COMPARED] if m.fwdinv else []
            after = [name for name in self.kept if name not in (*slopes, *compared)]
            if m.tendons_of_start:
                slopes = (*slopes, *YIELDING)
            self._of_start = [name for name in self.kept if name in YIELDING] if m.tendons_of_start else []
            slopes = (*slopes, *given)
            self._bad = bad
            self._forward = make(_checked_forward, inputs=self.state, outputs=(*slopes, *bad))
            self._first, self._last = self._forward, self._forward
            if compared:
                self._first = make(_checked_compared, inputs=self.state, outputs=(*slopes, *bad, *compared))
            if after:
                self._last = make(forward.inside, inputs=self.state, outputs=(*slopes, *after))
            self._stage = make(rk4_stage, inputs=(*carried, "rk_weight", "rk_fraction"), outputs=moved)
            buffers = ("ctrl", "history") if m.nhistory else ()
            plastic = ("plastic",) if m.joints_yield or m.tendon_yields else ()
            tendons = RK4_CARRIED_TENDON if m.tendons_of_start else ()
            inputs = (*carried, *buffers, *plastic, *tendons)
            self._end = make(_end_step, inputs=(*inputs, *bad), outputs=(*ADVANCED, "qacc", *suspect))
            self._numbers = {x: torch.tensor(x, dtype=m.dtype) for x in {*RK4_WEIGHTS, *RK4_FRACTIONS}}
        else:
            self._advance = self._euler
            outputs = (*changed(m), *suspect, *bad, *self.kept)
            self._step = make(unchecked_step, inputs=self.state, outputs=outputs)

    @property
    def pieces(self) -> list[_Piece]:
        """Its compiled functions."""
        return list(dict.fromkeys(x for x in vars(self).values() if isinstance(x, _Piece)))

    def advance(self, params: Tensor, values: Values) -> Values:
        """One step. Bad worlds are seldom: only where the pieces note that there are some, they are looked for."""
        after = self._advance(params, values)
        if self._autoreset and after["suspect"]:
            m = self._inside(params)
            if has_bad_state(InsideData(values)):
                after = self._advance(params, _contiguous(check_state(m, InsideData(values))))
            after = _contiguous(replace_bad(m, InsideData(after)))
        return after

    def _euler(self, params: Tensor, values: Values) -> Values:
        return values | self._step(params, values)

    def _runge_kutta(self, params: Tensor, values: Values) -> Values:
        values = values | self._first(params, values)
        bad = {name: values[name] for name in self._bad}  # of the start, as in C
        values = rk4_begin(self._inside(params), InsideData(values)).fields
        *early, last = zip(RK4_WEIGHTS, RK4_FRACTIONS, strict=True)
        for weight, fraction in early:
            values = self._move(params, values, weight, fraction)
            values = values | self._forward(params, values)
        values = self._move(params, values, *last)
        values = values | self._last(params, values) | bad
        values = values | self._end(params, values)
        return values | {name: values[f"rk_{name}"] for name in self._of_start}

    def _move(self, params: Tensor, values: Values, weight: float, fraction: float) -> Values:
        numbers = {"rk_weight": self._numbers[weight], "rk_fraction": self._numbers[fraction]}
        return values | self._stage(params, values | numbers)


def _checked_forward(m: InsideModel, d: InsideData) -> InsideData:
    return check_acc(m, forward.inside(m, d))


def _checked_compared(m: InsideModel, d: InsideData) -> InsideData:
    return check_acc(m, forward_compared(m, d))


def _end_step(m: InsideModel, d: InsideData) -> InsideData:
    return note_bad(m, rk4_end(m, d), d.rk_qpos, d.rk_qvel)


def _contiguous(d: InsideData) -> Values:
    """The values as the pieces were compiled for."""
    return {name: x.contiguous() for name, x in d.fields.items()}


class _Pool:
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


_pool = _Pool()
if hasattr(os, "register_at_fork"):  # a child has none of its parent's threads
    os.register_at_fork(after_in_child=lambda: _pool.__init__())


class _Worlds:
    """What a call works on: the state of all worlds, where results go, and how they are cut into blocks."""

    def __init__(self, m: Model, d: Data, stepper: _Stepper) -> None:
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

    def _place(self, name: str, stepper: _Stepper) -> Tensor:
        """Memory for a result: a state field worlds first, with what most steps leave as it is; others as inside."""
        if name in self.inputs:
            x = self.inputs[name]
            return x.new_empty(x.shape) if name in stepper.changed else _copy(x)
        dtype = torch.int32 if layout.FIELDS[name].integer else self.m.dtype
        return torch.empty((*_inside_shape(self.m.topology, name), self.nworld), dtype=dtype)

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
            elif self.lone:
                self.outputs[name] = _copy(layout.to_public(field, x) if name in loaded else x)
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


class _Kept:
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


class _Engine:
    """Compiled steppers of the models that came along, and the calls that run them."""

    def __init__(self, mode: str | None, keep: tuple[str, ...] | None, block: int | str | None) -> None:
        self.mode = mode
        self.keep = ALL if keep is None else keep
        self.block = block
        self._steppers: dict[tuple, _Stepper] = {}
        self._sizes: dict[tuple, int] = {}
        self._plain = torch.compile(step, fullgraph=True, mode=mode)
        self._wrapper = True

    @property
    def pieces(self) -> list[_Piece]:
        """The pieces compiled so far, for `mjt diagnose`: it counts the guards of their `run`, and replaces it."""
        return [piece for stepper in self._steppers.values() for piece in stepper.pieces if piece.compiled]

    def step(self, m: Model, d: Data, nsteps: int = 1) -> Data:
        """``step``, compiled."""
        check_nsteps(nsteps)
        check_batch(d)
        if not self._in_blocks(m, d):
            for _ in range(nsteps):
                d = self._plain_step(m, d)
            return d
        stepper = self._stepper(m, d, self.keep)
        worlds = _Worlds(m, d, stepper)

        def run(start: int, first: int) -> None:
            values = loaded = worlds.load(start)
            for _ in range(nsteps):
                values = stepper.advance(m.params, values)
            worlds.store(values, loaded, start, first)

        return worlds.data() if self._run(stepper, worlds, run) else self.step(m, d, nsteps)

    def rollout(
        self, m: Model, d: Data, controls: Tensor, keep: Sequence[str] = ("qpos", "qvel")
    ) -> tuple[Data, TensorDict]:
        """``rollout``, compiled."""
        check_batch(d)
        check_controls(m, d, controls)
        check_keep(keep)
        if not self._in_blocks(m, d):
            return rollout(m, d, controls, keep, step=self._plain_step)
        stepper = self._stepper(m, d, tuple(keep))
        worlds = _Worlds(m, d, stepper)
        nstep = controls.shape[-2]
        ctrl = controls.reshape(worlds.nworld, nstep, m.nu)
        kept = _Kept(m, keep, worlds.nworld, nstep)

        def run(start: int, first: int) -> None:
            values = loaded = worlds.load(start)
            for begin in range(0, nstep, STEPS_AT_ONCE):
                steps = []
                for u in _step_by_step(ctrl[start : start + worlds.block, begin : begin + STEPS_AT_ONCE]):
                    values = stepper.advance(m.params, values | {"ctrl": u} if m.nu else values)
                    steps.append([values[name] for name in kept.full])
                kept.store(steps, begin, start, first)
            worlds.store(values, loaded, start, first)

        if not self._run(stepper, worlds, run):
            return self.rollout(m, d, controls, keep)
        trajectory = TensorDict(kept.fields, batch_size=(worlds.nworld, nstep))
        return worlds.data(), trajectory if d.batch_size else trajectory[0]

    def _in_blocks(self, m: Model, d: Data) -> bool:
        """Whether a call can run in blocks: on a CPU, no gradients, nothing that traces."""
        if m.device.type != "cpu" or not self._wrapper:
            return False
        if torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active():
            return False
        if not torch.is_grad_enabled():
            return True
        return not any(
            x.requires_grad for x in (m.params, *m.weights, *(read_field(d, name) for name in layout.STATE))
        )

    def _plain_step(self, m: Model, d: Data) -> Data:
        d = self._plain(m, d)
        # A CUDA graph overwrites its outputs in the next call.
        graphs = m.device.type == "cuda" and self.mode in ("reduce-overhead", "max-autotune")
        return d.clone() if graphs else d

    def block_size(self, m: Model, d: Data) -> int:
        """Worlds in a block of a model: as asked for, as measured on this processor before, or the usual number."""
        if isinstance(self.block, int):
            return self.block
        name = f"{m.topology.digest}-{m.dtype}"
        found = tuning.remembered(name)
        if found or self.block is None:
            return found or BLOCK

        def run(size: int) -> Data:
            return trials[size].step(m, d, 5)

        candidates = [size for size in tuning.CANDIDATES if size <= d.numel()] or [d.numel()]
        trials = {size: _Engine(self.mode, (), size) for size in candidates}
        return tuning.measure(name, candidates, run)

    def _stepper(self, m: Model, d: Data, keep: tuple[str, ...]) -> _Stepper:
        block = self._sizes.get((m.topology.digest, m.dtype))
        if block is None:
            block = self._sizes[m.topology.digest, m.dtype] = self.block_size(m, d)
        nworld = d.batch_size[0] if d.batch_size else 1
        block = min(block, nworld)
        if not self.block:  # every thread gets a block, if it is not too small to be worth it
            block = min(block, max(SMALLEST_SHARE, -(-nworld // torch.get_num_threads())))
        key = (m.topology.digest, m.dtype, block, keep)
        if key not in self._steppers:
            self._steppers[key] = _Stepper(m, keep, block, self.mode)
        return self._steppers[key]

    def _run(self, stepper: _Stepper, worlds: _Worlds, run: Callable[[int, int], None]) -> bool:
        """Run all blocks; False where the C++ wrapper cannot be built, once, with a warning."""
        blocks = worlds.blocks()
        if not stepper.ready:
            first, *blocks = blocks  # compiles, so no other thread may run meanwhile
            try:
                _pool.compile(functools.partial(run, *first))
            except torch._dynamo.exc.TorchDynamoException as error:
                warnings.warn(
                    f"mujoco_torch.compile: no C++ wrapper ({_reason(error)}); "
                    "steps run as torch.compile(step, fullgraph=True).",
                    RuntimeWarning,
                    stacklevel=3,
                )
                self._wrapper = False
                return False
            stepper.ready = True
        if len(blocks) == 1:  # not worth waking a thread
            with torch.no_grad():
                run(*blocks[0])
        else:
            _pool.run([functools.partial(run, *block) for block in blocks])
        return True


def _step_by_step(controls: Tensor) -> Sequence[Tensor]:
    """Controls ``(worlds, steps, nu)`` as they are inside, ``[nu, B]`` of each step."""
    worlds, steps, nu = controls.shape
    return controls.reshape(worlds, steps * nu).T.contiguous().view(steps, nu, worlds).unbind(0)


def _kept_field(m: Model, name: str, batch: tuple[int, int]) -> Tensor:
    field = layout.FIELDS[name]
    return torch.empty(
        (*batch, *shape_of(m.topology, field)), dtype=torch.int32 if field.integer else m.dtype
    )


def _reason(error: Exception) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)


def compile(
    fn: Callable = step,
    *,
    mode: str | None = None,
    keep: Sequence[str] | None = None,
    block: int | str | None = None,
) -> Callable:
    """A compiled ``step`` or ``rollout``: in blocks of worlds on a CPU, one graph on a GPU.

    ``compile(step)`` is called like ``step``: ``(m, d, nsteps=1)``; ``compile(rollout)`` like ``rollout``. Each model,
    dtype and, below ``block`` worlds for each thread, each number of worlds is compiled once, at its first call; the
    number of steps, and the number of worlds above that, do not matter.

    Where gradients or ``torch.func`` transforms are asked for, and where the C++ wrapper cannot be built (a warning
    says why), a call runs as ``torch.compile(fn, fullgraph=True)`` would.

    Args:
      fn: ``mujoco_torch.step`` or ``mujoco_torch.rollout``.
      mode: as of ``torch.compile``.
      keep: derived fields that ``step`` shall write; None for all. State fields are always written. A field that is
        not kept holds NaN (integers: -1).
      block: worlds in a block on a CPU. "measure" tries several sizes at the first call of a model, which compiles each
        of them, and remembers the fastest in the user's cache; None takes the remembered size, or else the usual one.

    Raises:
      ArgumentError: ``fn``, ``keep`` or ``block`` cannot be used.
    """
    if fn not in (step, rollout):
        raise ArgumentError(
            "compile takes mujoco_torch.step or mujoco_torch.rollout; "
            "for another stage use torch.compile(stage, fullgraph=True)"
        )
    if block not in (None, "measure") and not (isinstance(block, int) and block > 0):
        raise ArgumentError(f'block is {block!r}; it must be a positive number of worlds, "measure" or None')
    if keep is not None:
        check_keep(keep)
    kept = None if keep is None else tuple(keep)
    engine = _Engine(mode, kept, block)
    return engine.rollout if fn is rollout else engine.step
