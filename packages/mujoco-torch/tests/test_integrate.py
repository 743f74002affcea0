"""Integrators: order of accuracy, what they conserve, and implicit damping with its switches."""

import itertools

import mujoco
import numpy as np
import pytest
import torch
from torch import Tensor

import mujoco_torch as mjt
from mujoco_torch import testing

TUMBLER = """
<mujoco model="tumbler">
  <option gravity="0 0 0" integrator="{integrator}" timestep="{timestep}"/>
  <worldbody>
    <body>
      <freejoint/>
      <inertial pos="0 0 0" mass="1" diaginertia="0.1 0.2 0.25"/>
    </body>
  </worldbody>
</mujoco>
"""

PENDULUM = """
<mujoco model="pendulum">
  <option integrator="{integrator}" timestep="{timestep}"/>
  <worldbody>
    <body>
      <joint axis="0 1 0"/>
      <geom type="capsule" size="0.05" fromto="0 0 0 0.4 0 0" contype="0" conaffinity="0"/>
      <body pos="0.4 0 0">
        <joint type="ball"/>
        <geom type="capsule" size="0.04" fromto="0 0 0 0.2 0.1 0.1" contype="0" conaffinity="0"/>
      </body>
    </body>
  </worldbody>
</mujoco>
"""

DAMPED = """
<mujoco model="damped">
  <option timestep="0.01"/>
  <worldbody>
    <geom type="plane" size="1 1 0.1"/>
    <body pos="0 0 0.5">
      <freejoint/>
      <geom type="sphere" size="0.1"/>
      <body pos="0.1 0 0">
        <joint name="stiff" axis="0 1 0" damping="0.02" stiffness="0.5"/>
        <joint name="rail" type="slide" axis="1 0 0" damping="2"/>
        <geom type="capsule" size="0.04" fromto="0 0 0 0.3 0 0"/>
        <body pos="0.3 0 0">
          <joint name="ball" type="ball" damping="0.005" range="0 40"/>
          <geom type="capsule" size="0.04" fromto="0 0 0 0.2 0 0"/>
        </body>
      </body>
    </body>
  </worldbody>
  <actuator><motor joint="stiff"/></actuator>
</mujoco>
"""


def simulate(
    xml: str, integrator: str, steps: int, duration: float, qvel: list[float]
) -> tuple[mjt.Model, mjt.Data]:
    """The state after a duration [s] cut into equal steps, everything computed."""
    xml = xml.format(integrator=integrator, timestep=duration / steps)
    m = mjt.put_model(mujoco.MjModel.from_xml_string(xml), dtype=torch.float64)
    d = mjt.make_data(m)
    d = d.replace(qvel=torch.tensor(qvel, dtype=torch.float64))
    for _ in range(steps):
        d = mjt.step(m, d)
    return m, mjt.forward(m, d)


def converged(xml: str, duration: float, qvel: list[float]) -> mujoco.MjData:
    """The same by MuJoCo C, of fourth order in so many steps that the rest is rounding."""
    steps = 2000
    mjm = mujoco.MjModel.from_xml_string(xml.format(integrator="RK4", timestep=duration / steps))
    mjd = mujoco.MjData(mjm)
    mjd.qvel = qvel
    for _ in range(steps):
        mujoco.mj_step(mjm, mjd)
    return mjd


def energy(m: mjt.Model, d: mjt.Data) -> float:
    """Kinetic energy, and potential in gravity [J]."""
    mass, gravity = m.body_mass.flatten(), m.gravity.flatten()
    return float(0.5 * d.qvel @ mjt.mul_m(m, d, d.qvel) - mass @ (d.xipos @ gravity))


def order(errors: list[float]) -> float:
    """Exponent of the step size, of errors at steps that halve each time."""
    return float(np.mean(np.log2(np.array(errors[:-1]) / np.array(errors[1:]))))


def turn_between(a: Tensor, b: Tensor) -> float:
    """Angle between two orientations [rad]."""
    sine = torch.linalg.vector_norm(a - b * torch.sign(a @ b))
    return float(4 * torch.asin(sine / 2))


SPIN = [0.3, -0.2, 0.1, 2.0, 5.0, -3.0]


ORDERS = [("Euler", 1, (20, 40, 80)), ("RK4", 4, (8, 16, 32))]


@pytest.mark.parametrize(("integrator", "expected", "counts"), ORDERS)
def test_order_of_a_tumbling_body(integrator: str, expected: int, counts: tuple[int, ...]) -> None:
    """A free body without a load: its orientation is the hard part, its path is straight."""
    reference = torch.as_tensor(converged(TUMBLER, 0.5, SPIN).qpos[3:])
    results = [simulate(TUMBLER, integrator, steps, 0.5, SPIN)[1] for steps in counts]
    errors = [turn_between(d.qpos[3:], reference) for d in results]
    assert abs(order(errors) - expected) < 0.25, errors
    for d in results:
        torch.testing.assert_close(
            d.qpos[:3], 0.5 * torch.tensor(SPIN[:3], dtype=torch.float64), rtol=0, atol=1e-12
        )
        assert abs(d.qpos[3:].norm() - 1.0) < 1e-14
        assert abs(float(d.time) - 0.5) < 1e-12


@pytest.mark.parametrize(("integrator", "expected", "counts"), ORDERS)
def test_order_of_a_pendulum(integrator: str, expected: int, counts: tuple[int, ...]) -> None:
    """Positions and velocities of a hinge and a ball under gravity."""
    start = [1.0, 2.0, -1.0, 3.0]
    reference = torch.as_tensor(converged(PENDULUM, 0.2, start).qvel)
    results = [simulate(PENDULUM, integrator, steps, 0.2, start)[1] for steps in counts]
    errors = [float((d.qvel - reference).norm()) for d in results]
    assert abs(order(errors) - expected) < 0.4, errors


def test_energy_of_a_pendulum() -> None:
    """Without damping the energy stays: to 1e-4 with RK4, with Euler the closer the shorter the steps."""
    start = [1.0, 2.0, -1.0, 3.0]
    begin = energy(*simulate(PENDULUM, "RK4", 1, 1e-9, start))

    def lost(integrator: str, steps: int) -> float:
        return abs(energy(*simulate(PENDULUM, integrator, steps, 0.5, start)) / begin - 1.0)

    assert lost("RK4", 50) < 1e-4
    assert 0.4 < lost("Euler", 200) / lost("Euler", 100) < 0.6


@pytest.mark.parametrize(("integrator", "tolerance"), [("Euler", 0.1), ("RK4", 1e-5)])
def test_angular_momentum_of_a_tumbling_body(integrator: str, tolerance: float) -> None:
    inertia = torch.tensor([0.1, 0.2, 0.25], dtype=torch.float64)
    d = simulate(TUMBLER, integrator, 50, 0.5, SPIN)[1]
    momentum = d.ximat[1] @ (inertia_in_axes(d) * (d.ximat[1].T @ d.xmat[1] @ d.qvel[3:]))
    start = inertia * torch.tensor(SPIN[3:], dtype=torch.float64)
    assert float((momentum - start).norm() / start.norm()) < tolerance


def inertia_in_axes(d: mjt.Data) -> Tensor:
    """Principal inertias in the order of the axes of ``ximat`` (MuJoCo sorts them)."""
    axes = (d.xmat[1].T @ d.ximat[1]).abs().argmax(0)
    return torch.tensor([0.1, 0.2, 0.25], dtype=torch.float64)[axes]


# ------------------------------------------------------------------------------------ implicit damping

DAMPER, EULERDAMP = mujoco.mjtDisableBit.mjDSBL_DAMPER, mujoco.mjtDisableBit.mjDSBL_EULERDAMP


@pytest.mark.parametrize(("damper", "eulerdamp"), [*itertools.product([True, False], repeat=2)])
def test_switches_of_damping(damper: bool, eulerdamp: bool) -> None:
    """On and off, together and apart: what is integrated implicitly is what acts."""
    mjm = testing.converged(mujoco.MjModel.from_xml_string(DAMPED))
    mjm.opt.disableflags |= int(DAMPER) * (not damper) | int(EULERDAMP) * (not eulerdamp)
    mjds = testing.perturbed_states(mjm, 4, settle=100)
    m = mjt.put_model(mjm, dtype=torch.float64)
    d = mjt.put_data(m, mjds)
    for _ in range(20):
        d = mjt.step(m, d)
        for mjd in mjds:
            mujoco.mj_step(mjm, mjd)
    testing.compare(m, d, mjds, testing.STATE_FIELDS, 1e-9).raise_for_failures()


def test_strong_damping_is_stable_only_when_implicit() -> None:
    mjm = mujoco.MjModel.from_xml_string(DAMPED)
    mjm.dof_damping[6] = 500.0
    speeds = []
    for flags in (0, int(EULERDAMP)):
        mjm.opt.disableflags = flags | int(mujoco.mjtDisableBit.mjDSBL_AUTORESET)
        m = mjt.put_model(mjm, dtype=torch.float64)
        d = mjt.make_data(m)
        d = d.replace(qvel=d.qvel + torch.eye(m.nv, dtype=torch.float64)[6])
        for _ in range(3):
            d = mjt.step(m, d)
        speeds.append(float(d.qvel[6].abs()))
    assert speeds[0] < 1.0 < speeds[1]


# --------------------------------------------------------------------------------- pieces of the advance


@pytest.mark.parametrize("integrator", ["Euler", "RK4"])
def test_step_is_forward_and_integrator(integrator: str) -> None:
    mjm = mujoco.MjModel.from_xml_string(DAMPED)
    mjm.opt.integrator = int(getattr(mujoco.mjtIntegrator, f"mjINT_{integrator.upper()}"))
    m = mjt.put_model(mjm, dtype=torch.float64)
    d = mjt.put_data(m, testing.perturbed_states(mjm, 3, settle=50))
    whole = mjt.step(m, d)
    advance = mjt.euler if integrator == "Euler" else mjt.rungekutta4
    parts = advance(m, mjt.forward(m, d))
    for name in testing.STATE_FIELDS:
        assert torch.equal(whole.get(name), parts.get(name)), name
    if integrator == "Euler":
        assert torch.equal(whole.qacc_warmstart, whole.qacc)


def test_time_advances_by_the_timestep() -> None:
    mjm = mujoco.MjModel.from_xml_string(DAMPED)
    m = mjt.put_model(mjm, dtype=torch.float64)
    d = mjt.make_data(m, 2)
    d = d.replace(time=torch.tensor([0.0, 7.5], dtype=torch.float64))
    d = mjt.step(m, mjt.step(m, d))
    torch.testing.assert_close(d.time, torch.tensor([0.02, 7.52], dtype=torch.float64), rtol=0, atol=1e-14)


def test_quaternions_stay_of_unit_length() -> None:
    mjm = mujoco.MjModel.from_xml_string(DAMPED)
    m = mjt.put_model(mjm, dtype=torch.float64)
    d = mjt.put_data(m, testing.perturbed_states(mjm, 3, settle=50))
    for _ in range(100):
        d = mjt.step(m, d)
    for start in (3, 9):
        norms = d.qpos[:, start : start + 4].norm(dim=1)
        torch.testing.assert_close(norms, torch.ones_like(norms), rtol=0, atol=1e-14)
