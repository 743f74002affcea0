"""Actuator forces (``mj_fwdActuation``), for actuators without activation."""

import torch

from mujoco_torch._src.stage import public
from mujoco_torch._src.transmission import moments, wrap_setpoint
from mujoco_torch._src.types import InsideData, InsideModel

MAXVAL = 1e10  # mjMAXVAL: a control beyond it, or NaN, counts as bad


@public(
    reads=("qvel", "ctrl", "act", "actuator_length", "actuator_moment", "actuator_velocity"),
    writes=("act_dot", "actuator_force", "qfrc_actuator"),
)
def fwd_actuation(m: InsideModel, d: InsideData) -> InsideData:
    """Forces of actuators with fixed or affine gain and bias (``mj_fwdActuation``).

    As in C, a bad control (NaN or huge) zeroes all controls of its world.
    Source: MuJoCo documentation, "Computation", section "Actuation model".

    Raises:
      StateError: ``ctrl`` or the transmission of ``d`` does not fit the model.
    """
    if not (m.nu and m.actuation):
        return d.replace(
            act_dot=torch.zeros_like(d.act),
            actuator_force=torch.zeros_like(d.actuator_length),
            qfrc_actuator=torch.zeros_like(d.qvel),
        )
    ctrl = torch.clamp(d.ctrl, m.actuator_ctrlmin, m.actuator_ctrlmax) if m.clampctrl else d.ctrl
    ctrl = torch.where((ctrl.abs() <= MAXVAL).all(0), ctrl, 0.0)
    if m.wraps:
        ctrl = wrap_setpoint(m, ctrl, d.actuator_length)
    gain = (
        m.actuator_gain[0] + m.actuator_gain[1] * d.actuator_length + m.actuator_gain[2] * d.actuator_velocity
    )
    bias = (
        m.actuator_bias[0] + m.actuator_bias[1] * d.actuator_length + m.actuator_bias[2] * d.actuator_velocity
    )
    force = torch.clamp(gain * ctrl + bias, m.actuator_forcemin, m.actuator_forcemax)
    qfrc_actuator = m.moment_col.T @ (moments(m, d) * (m.moment_row @ force))
    qfrc_actuator = torch.clamp(qfrc_actuator, m.dof_actfrcmin, m.dof_actfrcmax)
    return d.replace(act_dot=torch.zeros_like(d.act), actuator_force=force, qfrc_actuator=qfrc_actuator)
