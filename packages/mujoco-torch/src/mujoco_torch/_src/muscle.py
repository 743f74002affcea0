"""Muscles: activation dynamics and force curves (``mju_muscleDynamics``, ``mju_muscleGain``, ``mju_muscleBias``).

Source: MuJoCo documentation, "Modeling", section "Muscles"; Millard et al., "Flexing computational muscle: modeling and
simulation of musculotendon dynamics", Journal of Biomechanical Engineering 135 (2013).
"""

import torch
from torch import Tensor

MINVAL = 1e-15  # mjMINVAL


def muscle_dynamics(ctrl: Tensor, act: Tensor, time: Tensor) -> Tensor:
    """Rate of the activation ``[n, B]`` [1/s]; ``time`` ``[3, n, 1]`` [s]: to activate, to deactivate, smoothing width.

    The time constant depends on the activation, and on whether there is more excitation than activation: it switches,
    or passes smoothly over the width.
    """
    activation, deactivation, width = time
    excess = ctrl.clamp(0.0, 1.0) - act
    slowness = 0.5 + 1.5 * act.clamp(0.0, 1.0)
    up, down = activation * slowness, deactivation / slowness
    hard = width < MINVAL
    smooth = _sigmoid(excess / torch.where(hard, 1.0, width) + 0.5)
    tau = down + (up - down) * torch.where(hard, (excess > 0).to(excess.dtype), smooth)
    return excess / tau.clamp(min=MINVAL)


def _sigmoid(x: Tensor) -> Tensor:
    """The polynomial of fifth degree from 0 to 1 whose first two derivatives vanish at both ends."""
    x = x.clamp(0.0, 1.0)
    return x * x * x * (3.0 * x * (2.0 * x - 5.0) + 10.0)


def muscle_gain(length: Tensor, velocity: Tensor, curve: Tensor) -> Tensor:
    """Force per activation ``[n, B]`` [N], of the force-length and the force-velocity curve; a pull is negative.

    ``curve`` is described in ``structure.actuation``.
    """
    offset, per_length, per_velocity, peak, lmin, lmax, _, fvmax = curve
    return (
        -peak
        * _force_length(offset + length * per_length, lmin, lmax)
        * _force_velocity(velocity * per_velocity, fvmax)
    )


def muscle_gain_rate(length: Tensor, velocity: Tensor, curve: Tensor) -> Tensor:
    """Derivative ``[n, B]`` of ``muscle_gain`` by the velocity."""
    offset, per_length, per_velocity, peak, lmin, lmax, _, fvmax = curve
    slope = _force_velocity_slope(velocity * per_velocity, fvmax)
    return -peak * _force_length(offset + length * per_length, lmin, lmax) * slope * per_velocity


def muscle_bias(length: Tensor, curve: Tensor) -> Tensor:
    """Passive force ``[n, B]`` [N] of a stretched muscle: quadratic, then linear; a pull is negative."""
    offset, per_length, _, peak, _, lmax, fpmax, _ = curve
    width = (0.5 * (1.0 + lmax) - 1.0).clamp(min=MINVAL)  # from the optimal length to where it becomes linear
    x = ((offset + length * per_length - 1.0) / width).clamp(min=0.0)
    return -peak * fpmax * torch.where(x <= 1.0, 0.5 * x * x, x - 0.5)


def _force_length(length: Tensor, lmin: Tensor, lmax: Tensor) -> Tensor:
    """Four parabolas that join smoothly: 0 at lmin and lmax, 1 at the optimal length 1."""
    rise, fall = 0.5 * (lmin + 1.0), 0.5 * (1.0 + lmax)  # where the parabolas meet
    foot_left = (length - lmin) / (rise - lmin).clamp(min=MINVAL)
    top_left = (1.0 - length) / (1.0 - rise).clamp(min=MINVAL)
    top_right = (length - 1.0) / (fall - 1.0).clamp(min=MINVAL)
    foot_right = (lmax - length) / (lmax - fall).clamp(min=MINVAL)
    left = torch.where(length <= rise, 0.5 * foot_left * foot_left, 1.0 - 0.5 * top_left * top_left)
    right = torch.where(length <= fall, 1.0 - 0.5 * top_right * top_right, 0.5 * foot_right * foot_right)
    inside = (lmin <= length) & (length <= lmax)
    return torch.where(inside, torch.where(length <= 1.0, left, right), 0.0)


def _force_velocity(velocity: Tensor, fvmax: Tensor) -> Tensor:
    """0 at the largest speed of shortening, -1; 1 at rest; fvmax when it lengthens fast."""
    excess = fvmax - 1.0
    shortening = (velocity + 1.0).clamp(min=0.0).square()
    missing = (excess - velocity).clamp(min=0.0)
    return torch.where(velocity <= 0.0, shortening, fvmax - missing * missing / excess.clamp(min=MINVAL))


def _force_velocity_slope(velocity: Tensor, fvmax: Tensor) -> Tensor:
    excess = fvmax - 1.0
    missing = (excess - velocity).clamp(min=0.0)
    return 2.0 * torch.where(
        velocity <= 0.0, (velocity + 1.0).clamp(min=0.0), missing / excess.clamp(min=MINVAL)
    )
