"""Delayed controls: ring buffers of samples with their times (``mj_readCtrl``, ``mju_historyInsert``).

A table is ``[slot, control, B]`` in the order of memory; ``age`` numbers the slots of a buffer from the oldest sample,
0, to the newest. The cursor of a buffer is data, so a sample is picked by comparing ages, not by an index.
Source: MuJoCo documentation, "Modeling", section "Delays".
"""

from typing import NamedTuple

import torch
from torch import Tensor

from mujoco_torch._src.types import InsideData, InsideModel

UNUSED = -9.0  # age of a slot that pads a short buffer: no sample, nor a neighbour of one
SAME_TIME = 1e-15  # [s], C's tolerance: in double precision, equal times
SAME_STEP = 1e-2  # [time steps], in single precision


class _Buffers(NamedTuple):
    age: Tensor
    times: Tensor
    values: Tensor
    cursor: Tensor

    def at(self, table: Tensor, age: Tensor) -> Tensor:
        """Entries ``[control, B]`` of the samples of an age, 0 where there is none."""
        return torch.where(self.age == age, table, 0.0).sum(0)

    def before(self, time: Tensor) -> Tensor:
        """Number of samples ``[control, B]`` that are older than a time."""
        return ((self.times < time) & (self.age >= 0)).sum(0).to(self.times.dtype)


def _buffers(m: InsideModel, d: InsideData) -> _Buffers:
    shape = m.history_used.shape[:2]
    times = (m.history_times @ d.history).unflatten(0, shape)
    values = (m.history_values @ d.history).unflatten(0, shape)
    cursor = m.history_cursor @ d.history
    age = torch.remainder(m.history_slot - cursor - 1.0, m.history_count)
    return _Buffers(torch.where(m.history_used > 0, age, UNUSED), times, values, cursor)


def _tolerance(m: InsideModel) -> Tensor | float:
    return SAME_TIME if m.timestep.dtype == torch.float64 else SAME_STEP * m.timestep


def read_ctrl(m: InsideModel, d: InsideData) -> Tensor:
    """Controls ``[nu, B]``, the delayed ones as they were, held or interpolated (``mj_readCtrl``).

    Departures from C:
      1. In float32 a sample within a hundredth of a time step of the time that is asked for counts as of that time;
         C asks for equality to 1e-15, which the rounding of float32 times defeats.
    """
    buffers = _buffers(m, d)
    time, tolerance = d.time - m.history_delay, _tolerance(m)
    last = m.history_count - 1.0
    following = torch.minimum(buffers.before(time).clamp(min=1.0), last)
    times = [buffers.at(buffers.times, following + k) for k in (-1, 0)]
    values = [buffers.at(buffers.values, following + k) for k in (-1, 0)]
    read = torch.where(
        (time - times[1]).abs() < tolerance, values[1], _between(m, buffers, following, times, values, time)
    )
    oldest = time <= buffers.at(buffers.times, torch.zeros_like(last)) + tolerance
    read = torch.where(oldest, buffers.at(buffers.values, torch.zeros_like(last)), read)
    newest = time >= buffers.at(buffers.times, last) - tolerance
    read = torch.where(newest & ~oldest, buffers.at(buffers.values, last), read)
    return m.history_undelayed * d.ctrl + m.history_delayed.T @ read


def _between(
    m: InsideModel,
    buffers: _Buffers,
    following: Tensor,
    times: list[Tensor],
    values: list[Tensor],
    time: Tensor,
) -> Tensor:
    """Value between two samples: that of the first, a straight line, or a cubic (Catmull-Rom)."""
    (t0, t1), (v0, v1) = times, values
    span = torch.where(t1 > t0, t1 - t0, 1.0)
    x = (time - t0) / span
    read = torch.where(m.history_linear > 0, v0 + x * (v1 - v0), v0)
    if not m.history_has_cubic:
        return read
    # The slope at a sample is that from its one neighbour to the other, and zero at either end of the buffer.
    before, after = following - 2.0, following + 1.0
    t_before, v_before = buffers.at(buffers.times, before), buffers.at(buffers.values, before)
    t_after, v_after = buffers.at(buffers.times, after), buffers.at(buffers.values, after)
    inner0, inner1 = before >= 0.0, after < m.history_count
    slope0 = torch.where(inner0, (v1 - v_before) / torch.where(inner0, t1 - t_before, 1.0), 0.0)
    slope1 = torch.where(inner1, (v_after - v0) / torch.where(inner1, t_after - t0, 1.0), 0.0)
    x2, x3 = x * x, x * x * x
    cubic = (
        (2.0 * x3 - 3.0 * x2 + 1.0) * v0
        + (x3 - 2.0 * x2 + x) * span * slope0
        + (3.0 * x2 - 2.0 * x3) * v1
        + (x3 - x2) * span * slope1
    )
    return torch.where(m.history_cubic > 0, cubic, read)


def next_history(m: InsideModel, d: InsideData) -> Tensor:
    """State ``history`` ``[nhistory, B]`` with the present controls in the buffers (``mju_historyInsert``).

    A sample of a time that is there already takes its place; a newer one takes the place of the oldest; one in between,
    as after the time was set back, drives out the oldest.
    """
    buffers = _buffers(m, d)
    time = d.time.expand_as(buffers.cursor)
    place = buffers.before(time)
    there = (place < m.history_count) & ((time - buffers.at(buffers.times, place)).abs() < _tolerance(m))
    newest = (place == m.history_count) & ~there
    target = torch.where(there, place, torch.where(newest, 0.0, (place - 1.0).clamp(min=0.0)))
    moved = (buffers.age >= 0) & (buffers.age < target) & ~there
    writes = buffers.age == target
    times = torch.where(moved, _following(m, buffers.times), buffers.times)
    times = torch.where(writes & ~there, time, times)
    values = torch.where(moved, _following(m, buffers.values), buffers.values)
    values = torch.where(writes, m.history_ctrl @ d.ctrl, values)
    cursor = torch.where(newest, torch.remainder(buffers.cursor + 1.0, m.history_count), buffers.cursor)
    return (
        m.history_untouched * d.history
        + m.history_new_cursor.T @ cursor
        + m.history_new_times.T @ times.flatten(0, 1)
        + m.history_values.T @ values.flatten(0, 1)
    )


def _following(m: InsideModel, table: Tensor) -> Tensor:
    """Of each slot, the entry of the next one in its ring."""
    return (m.history_next @ table.flatten(0, 1)).unflatten(0, table.shape[:2])
