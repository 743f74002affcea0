"""A step in compiled pieces: one, or with Runge-Kutta's method those of its four forward passes."""

import functools
from collections.abc import Sequence

import torch
from torch import Tensor

from mujoco_torch._src import callbacks, layout
from mujoco_torch._src.enums import IntegratorType
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
    forward_compared,
    rk4_begin,
    rk4_end,
    rk4_stage,
    unchecked_step,
)
from mujoco_torch._src.pieces import Piece, Values
from mujoco_torch._src.reset import check_acc, check_state, has_bad_state, note_bad, replace_bad
from mujoco_torch._src.types import InsideData, InsideModel, Model, shape_of


class Stepper:
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
        make = functools.partial(Piece, m=m, mode=mode, block=block)
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
    def pieces(self) -> list[Piece]:
        """Its compiled functions."""
        return list(dict.fromkeys(x for x in vars(self).values() if isinstance(x, Piece)))

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
