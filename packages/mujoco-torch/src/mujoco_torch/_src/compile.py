"""``compile``: a step in cache-sized blocks of worlds on a CPU, one graph on a GPU.

On a CPU one call over thousands of worlds waits for memory, and Inductor's Python wrapper holds the interpreter's lock.
So the worlds go in blocks, one thread each, through Inductor's C++ wrapper; a block stays in the cache from the first
line of the step to the last, and over all substeps. The compiled functions have no guards: ``Worlds`` checks a Data
as a whole, once a call.

Between two pieces of a block runs Python, one thread at a time. Each operation of torch's there gives the lock away and
waits for it, so that threads wait for each other: a step has next to none.
"""

import functools
import warnings
from collections.abc import Callable, Sequence

import torch
import torch._dynamo.exc
from tensordict import TensorDict
from torch import Tensor

from mujoco_torch._src import layout, tuning
from mujoco_torch._src.blocks import Kept, Worlds, pool, step_by_step
from mujoco_torch._src.errors import ArgumentError
from mujoco_torch._src.integrate import check_controls, check_keep, check_nsteps, rollout, step
from mujoco_torch._src.pieces import Piece
from mujoco_torch._src.stage import ALL, check_batch
from mujoco_torch._src.stepper import Stepper
from mujoco_torch._src.types import Data, Model, read_field

BLOCKS = (1024, 512, 256, 128, 64)
"""Worlds in a block, unless there are fewer: in small blocks threads wait for the interpreter more often."""

BLOCK_BYTES = 36 * 1024
"""Of one number for each dof of a block: of a larger model a block has fewer worlds, so that it stays in the cache."""

SMALLEST_SHARE = 32
"""Worlds that are worth a thread of their own: four registers of float64."""

STEPS_AT_ONCE = 16
"""Steps of a rollout whose controls are read, and whose kept fields are written, at once."""


class _Engine:
    """Compiled steppers of the models that came along, and the calls that run them."""

    def __init__(self, mode: str | None, keep: tuple[str, ...] | None, block: int | str | None) -> None:
        self.mode = mode
        self.keep = ALL if keep is None else keep
        self.block = block
        self._steppers: dict[tuple, Stepper] = {}
        self._sizes: dict[tuple, int] = {}
        self._plain = torch.compile(step, fullgraph=True, mode=mode)
        self._wrapper = True

    @property
    def pieces(self) -> list[Piece]:
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
        worlds = Worlds(m, d, stepper)

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
        worlds = Worlds(m, d, stepper)
        nstep = controls.shape[-2]
        ctrl = controls.reshape(worlds.nworld, nstep, m.nu)
        kept = Kept(m, keep, worlds.nworld, nstep)

        def run(start: int, first: int) -> None:
            values = loaded = worlds.load(start)
            for begin in range(0, nstep, STEPS_AT_ONCE):
                steps = []
                for u in step_by_step(ctrl[start : start + worlds.block, begin : begin + STEPS_AT_ONCE]):
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
            return found or _usual_block(m)

        def run(size: int) -> Data:
            return trials[size].step(m, d, 5)

        candidates = [size for size in tuning.CANDIDATES if size <= d.numel()] or [d.numel()]
        trials = {size: _Engine(self.mode, (), size) for size in candidates}
        return tuning.measure(name, candidates, run)

    def _stepper(self, m: Model, d: Data, keep: tuple[str, ...]) -> Stepper:
        block = self._sizes.get((m.topology.digest, m.dtype))
        if block is None:
            block = self._sizes[m.topology.digest, m.dtype] = self.block_size(m, d)
        nworld = d.batch_size[0] if d.batch_size else 1
        block = min(block, nworld)
        if not self.block:  # every thread gets a block, if it is not too small to be worth it
            block = min(block, max(SMALLEST_SHARE, -(-nworld // torch.get_num_threads())))
        key = (m.topology.digest, m.dtype, block, keep)
        if key not in self._steppers:
            self._steppers[key] = Stepper(m, keep, block, self.mode)
        return self._steppers[key]

    def _run(self, stepper: Stepper, worlds: Worlds, run: Callable[[int, int], None]) -> bool:
        """Run all blocks; False where the C++ wrapper cannot be built, once, with a warning."""
        blocks = worlds.blocks()
        if not stepper.ready:
            first, *blocks = blocks  # compiles, so no other thread may run meanwhile
            try:
                pool.compile(functools.partial(run, *first))
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
            pool.run([functools.partial(run, *block) for block in blocks])
        return True


def _usual_block(m: Model) -> int:
    most = BLOCK_BYTES // max(1, m.nv * m.dtype.itemsize)
    return next((size for size in BLOCKS if size <= most), BLOCKS[-1])


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
