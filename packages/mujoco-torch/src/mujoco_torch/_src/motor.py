"""DC motors (``dcmotor``): winding, temperature, on-board controller, cogging and friction.

Every quantity is ``[n, B]`` with n motors; what a motor lacks has parameters that leave no trace.
Source: MuJoCo documentation, "XML reference", element actuator/dcmotor; friction after Canudas de Wit et al., "A new
model for control of systems with friction", IEEE Transactions on Automatic Control 40 (1995).
"""

import torch
from torch import Tensor

from mujoco_torch._src.types import InsideData, InsideModel

MINVAL = 1e-15  # mjMINVAL


def _motion(m: InsideModel, d: InsideData) -> tuple[Tensor, Tensor]:
    return m.motor_out @ d.actuator_length, m.motor_out @ d.actuator_velocity


def _resistance(m: InsideModel, d: InsideData) -> Tensor:
    """Resistance of the winding [Ohm] at its temperature."""
    resistance = m.motor_winding[0]
    if not m.motor_thermal:
        return resistance
    coefficient, over_reference, _, _ = m.motor_heat
    return resistance * (1.0 + coefficient * (m.motor_temp @ d.act + over_reference))


def _driven_voltage(m: InsideModel, d: InsideData, ctrl: Tensor) -> Tensor:
    """Voltage [V] that the controller asks for."""
    length, velocity = _motion(m, d)
    kp, ki, kd = m.motor_gain
    per_torque, per_velocity = m.motor_drive
    torque = kp * (m.motor_pos @ ctrl - length) + kd * (m.motor_vel @ ctrl - velocity) + m.motor_ff @ ctrl
    if m.motor_integral:
        torque = torque + ki * (m.motor_x @ d.act)
    return per_torque * torque + per_velocity * velocity


def _voltage(m: InsideModel, d: InsideData, ctrl: Tensor) -> Tensor:
    """Terminal voltage [V]: what the controller drives, within its limit, plus the raw input."""
    voltage = torch.zeros_like(m.motor_out @ d.actuator_length)
    if m.motor_controlled:
        voltage = torch.clamp(_driven_voltage(m, d, ctrl), -m.motor_maxvolt, m.motor_maxvolt)
    return voltage + m.motor_volt @ ctrl if m.motor_voltage else voltage


def motor_dynamics(m: InsideModel, d: InsideData, ctrl: Tensor) -> Tensor:
    """Rates ``[na, B]`` of temperature [K/s], bristle [rad/s] and current [A/s], zero at all other activations.

    C dT/dt = R i^2 - T / R_t,  dz/dt = v - sigma0 |v| z / g(v),  tau di/dt = (V - K v) / R - i
    """
    act_dot = torch.zeros_like(d.act)
    velocity = m.motor_out @ d.actuator_velocity
    if m.motor_thermal or m.motor_electric:
        resistance, constant = _resistance(m, d), m.motor_winding[1]
        settled = (_voltage(m, d, ctrl) - constant * velocity) / resistance
        current = m.motor_current @ d.act if m.motor_electric else settled
        if m.motor_electric:
            rate = torch.clamp((settled - current) / m.motor_timeconst, -m.motor_maxrate, m.motor_maxrate)
            act_dot = act_dot + m.motor_current.T @ rate
            current = torch.where(m.motor_is_electric > 0, current, settled)
        if m.motor_thermal:
            _, _, thermal_resistance, capacity = m.motor_heat
            heat = resistance * current * current - m.motor_temp @ d.act / thermal_resistance
            act_dot = act_dot + m.motor_temp.T @ (heat / capacity)
    if m.motor_friction:
        act_dot = act_dot + m.motor_z.T @ (_bristle_decay(m, velocity) * (m.motor_z @ d.act) + velocity)
    return act_dot


def _bristle_decay(m: InsideModel, velocity: Tensor) -> Tensor:
    """Rate [1/s], at most 0, at which a bristle loses its deflection while sliding (LuGre, with Stribeck's curve)."""
    stiffness, _, coulomb, static, stribeck = m.motor_bristle
    friction = coulomb + (static - coulomb) * torch.exp(-(velocity / stribeck).square())
    return -stiffness * velocity.abs() / friction.clamp(min=MINVAL)


def next_bristle(m: InsideModel, d: InsideData) -> Tensor:
    """Deflection ``[n, B]`` [rad] after a time step at the present velocity, by the exact integral."""
    velocity = m.motor_out @ d.actuator_velocity
    decay = _bristle_decay(m, velocity)
    sliding = decay < -MINVAL
    change = torch.expm1(decay * m.timestep)
    drift = torch.where(sliding, change / torch.where(sliding, decay, 1.0), m.timestep)
    return (1.0 + change) * (m.motor_z @ d.act) + drift * velocity


def motor_force(m: InsideModel, d: InsideData, ctrl: Tensor, following: Tensor | None) -> Tensor:
    """Electrical force ``[nout, B]`` [Nm]: K times the next current, or the current that would settle now.

    ``following`` holds the next activations.
    """
    resistance, constant = _resistance(m, d), m.motor_winding[1]
    velocity = m.motor_out @ d.actuator_velocity
    gain = constant / resistance.clamp(min=MINVAL)
    force = gain * (_voltage(m, d, ctrl) - constant * velocity)
    if m.motor_electric:
        force = torch.where(m.motor_is_electric > 0, constant * (m.motor_current @ following), force)
    return m.motor_force.T @ force


def motor_rate(m: InsideModel, d: InsideData, ctrl: Tensor) -> Tensor:
    """Derivative ``[nout, B]`` of the electrical force by the velocity: back-EMF, and damping by the controller.

    Zero for the part of a voltage, or of the rate of a current, that is at its limit.
    """
    resistance, constant = _resistance(m, d), m.motor_winding[1]
    velocity = m.motor_out @ d.actuator_velocity
    slope = -constant * torch.ones_like(velocity)
    if m.motor_controlled:
        per_torque, per_velocity = m.motor_drive
        within = _driven_voltage(m, d, ctrl).abs() < m.motor_maxvolt
        slope = slope + torch.where(within, per_velocity - per_torque * m.motor_gain[2], 0.0)
    rate = constant / resistance.clamp(min=MINVAL) * slope
    if m.motor_electric:
        settled = (_voltage(m, d, ctrl) - constant * velocity) / resistance
        change = (settled - m.motor_current @ d.act) / m.motor_timeconst
        share = (m.motor_current @ m.act_step) / m.motor_timeconst
        next_rate = torch.where(change.abs() < m.motor_maxrate, share * rate, 0.0)
        rate = torch.where(m.motor_is_electric > 0, next_rate, rate)
    return m.motor_force.T @ rate


def motor_drag(m: InsideModel, d: InsideData, act_dot: Tensor) -> Tensor:
    """Cogging torque and friction ``[nout, B]`` [Nm], which no current limits."""
    drag = torch.zeros_like(m.motor_out @ d.actuator_length)
    if m.motor_cogging:
        amplitude, poles, phase = m.motor_cog
        drag = amplitude * torch.sin(poles * (m.motor_out @ d.actuator_length) + phase)
    if m.motor_friction:
        stiffness, damping = m.motor_bristle[:2]
        drag = drag - stiffness * (m.motor_z @ d.act) - damping * (m.motor_z @ act_dot)
    return m.motor_force.T @ drag
