"""Potential and kinetic energy (``mj_energyPos``, ``mj_energyVel``)."""

import torch
from torch import Tensor

from mujoco_torch._src.inertia import mul_m
from mujoco_torch._src.layout import names
from mujoco_torch._src.passive import spring_stretch
from mujoco_torch._src.spatial import MINVAL, dot
from mujoco_torch._src.stage import public
from mujoco_torch._src.tendon import tendon_stretch
from mujoco_torch._src.types import InsideData, InsideModel


@public(reads=names("qpos plastic xipos ten_length energy"), writes=("energy",))
def energy_pos(m: InsideModel, d: InsideData) -> InsideData:
    """Potential energy [J] of gravity and of the springs of joints and tendons, in ``energy[0]`` (``mj_energyPos``).

    A spring of force ``a x + b x^2 + c x^3`` holds ``a x^2 / 2 + b x^3 / 3 + c x^4 / 4``. For a ball joint x is the
    angle, for a free one distance and angle, for a tendon how far it is beyond its range of rest.
    Source: MuJoCo documentation, "Computation", section "Polynomial forces".

    Raises:
      StateError: the poses of ``d`` do not fit the model.
    """
    return d.replace(energy=torch.stack((_potential(m, d), d.energy[1])))


@public(reads=("qvel", "M", "energy"), writes=("energy",))
def energy_vel(m: InsideModel, d: InsideData) -> InsideData:
    """Kinetic energy [J], ``qvel' M qvel / 2``, in ``energy[1]`` (``mj_energyVel``).

    Raises:
      StateError: ``qvel`` or ``M`` does not fit the model.
    """
    return d.replace(energy=torch.stack((d.energy[0], _kinetic(m, d))))


def energies(m: InsideModel, d: InsideData) -> InsideData:
    """Both energies, if the model has the enable flag ``energy``, else zeros."""
    if not m.energy:
        return d.replace(energy=d.qpos.new_zeros((2, d.qpos.shape[-1])))
    return d.replace(energy=torch.stack((_potential(m, d), _kinetic(m, d))))


def _potential(m: InsideModel, d: InsideData) -> Tensor:
    energy = -(m.body_mass * dot(m.gravity, d.xipos)).sum(0)
    if m.energy_joints:
        energy = energy + _spring_energy(m.energy_stiffness, _joint_displacement(m, d)).sum(0)
    if m.energy_tendons:
        energy = energy + _spring_energy(m.energy_tendon_stiffness, tendon_stretch(m, d)).sum(0)
    return energy


def _spring_energy(coefficients: Tensor, x: Tensor) -> Tensor:
    linear, quadratic, cubic = coefficients
    return x * x * (linear + x * (quadratic + x * cubic))


def _joint_displacement(m: InsideModel, d: InsideData) -> Tensor:
    """Signed displacement of the springs of slides and hinges, length of those of balls and free joints."""
    stretch = spring_stretch(m, d)
    if not m.energy_quat:
        return m.energy_spring @ stretch
    square = m.energy_spring @ (stretch * stretch)
    # The root of what is no length, or of a length of zero, would have no finite gradient.
    length = (m.energy_vector > 0) & (square > MINVAL * MINVAL)
    return (m.energy_signed @ stretch) + torch.where(length, torch.where(length, square, 1.0).sqrt(), 0.0)


def _kinetic(m: InsideModel, d: InsideData) -> Tensor:
    return 0.5 * (d.qvel * mul_m(m, d, d.qvel)).sum(0)
