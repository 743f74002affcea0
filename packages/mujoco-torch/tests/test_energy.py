"""Potential and kinetic energy against MuJoCo C."""

import mujoco
import numpy as np
import pytest
import torch

import mujoco_torch as mjt
from mujoco_torch import testing

SPRINGS = """
<mujoco>
  <option gravity="0.5 -1 -7" integrator="{integrator}"><flag energy="enable" {flags}/></option>
  <worldbody>
    <body pos="0 0 2">
      <freejoint name="free"/>
      <geom type="capsule" size="0.05" fromto="0 0 0 0.3 0 0.1"/>
      <body pos="0.3 0 0">
        <joint name="ball" type="ball" stiffness="3" damping="0.1"/>
        <geom type="capsule" size="0.04" fromto="0 0 0 0 0.1 -0.3"/>
        <body pos="0 0 -0.3">
          <joint name="hinge" axis="0 1 0.3" stiffness="4" springref="20"/>
          <joint name="slide" type="slide" axis="1 0 0" stiffness="30" armature="0.1"/>
          <geom type="sphere" size="0.07"/>
          <body pos="0 0 -0.2">
            <joint name="loose" axis="1 0 0"/>
            <geom type="sphere" size="0.03" pos="0.1 0 0"/>
          </body>
        </body>
      </body>
    </body>
  </worldbody>
</mujoco>
"""

POLYNOMIAL = """
<mujoco>
  <option><flag energy="enable"/></option>
  <worldbody>
    <body><joint name="h" stiffness="2 3 5"/><geom size="0.1" pos="0.2 0 0"/></body>
    <body pos="1 0 0"><joint name="b" type="ball" stiffness="0 3 4"/><geom size="0.1" pos="0.2 0 0"/></body>
    <body pos="2 0 0"><joint name="s" type="slide" stiffness="2 -1"/><geom size="0.1"/></body>
  </worldbody>
</mujoco>
"""

TENDONS = """
<mujoco>
  <option><flag energy="enable"/></option>
  <worldbody>
    <body><joint name="a"/><geom size="0.1" pos="0.2 0 0"/></body>
    <body pos="1 0 0"><joint name="b" type="slide"/><geom size="0.1"/></body>
  </worldbody>
  <tendon>
    <fixed stiffness="5 2 3" springlength="-0.1 0.1"><joint joint="a" coef="1"/><joint joint="b" coef="-2"/></fixed>
    <fixed stiffness="7" springlength="0.2"><joint joint="b" coef="1"/></fixed>
    <fixed><joint joint="a" coef="1"/></fixed>
  </tendon>
</mujoco>
"""

PLASTIC = """
<mujoco>
  <option><flag energy="enable"/></option>
  <worldbody>
    <body><joint name="h" stiffness="2" springyield="0.3"/><geom size="0.1" pos="0.2 0 0"/></body>
    <body pos="1 0 0"><joint name="b" type="ball" stiffness="3" springyield="0.2"/><geom size="0.1"/></body>
  </worldbody>
</mujoco>
"""


def springs(integrator: str = "Euler", flags: str = "", free: float = 6.0) -> mujoco.MjModel:
    """The model, with a spring on its free joint, which MJCF cannot give."""
    mjm = mujoco.MjModel.from_xml_string(SPRINGS.format(integrator=integrator, flags=flags))
    mjm.jnt_stiffness[0] = free
    return mjm


def worlds(mjm: mujoco.MjModel, seed: int = 0) -> list[mujoco.MjData]:
    return [
        testing.copy_state(mjm, mjd)
        for mjd in testing.perturbed_states(mjm, 4, seed=seed, settle=50, scale=3.0)
    ]


def assert_energies(
    mjm: mujoco.MjModel, run: str = "forward", dtype: torch.dtype = torch.float64, rtol=1e-12
) -> None:
    mjds = worlds(mjm)
    m = mjt.put_model(mjm, dtype=dtype)
    d = getattr(mjt, run)(m, mjt.put_data(m, mjds))
    for mjd in mjds:
        getattr(mujoco, f"mj_{run}")(mjm, mjd)
    expected = np.array([mjd.energy for mjd in mjds])
    assert (np.abs(expected[:, 1]) > 1e-3).all()
    np.testing.assert_allclose(d.energy.numpy(), expected, rtol=rtol, atol=rtol * np.abs(expected).max())


@pytest.mark.parametrize("run", ["forward", "step", "step1"])
@pytest.mark.parametrize("integrator", ["Euler", "RK4"])
def test_energies_are_those_of_c(integrator: str, run: str) -> None:
    """Gravity, and springs of every joint type, of the free joint too; after an RK4 step those of its last stage."""
    assert_energies(springs(integrator), run, rtol=1e-12 if run != "step" else 1e-8)


@pytest.mark.parametrize("flags", ['gravity="disable"', 'spring="disable"', 'damper="disable"'])
def test_flags_switch_their_own_energy_off(flags: str) -> None:
    assert_energies(springs(flags=flags))


@pytest.mark.parametrize("xml", [POLYNOMIAL, TENDONS, PLASTIC])
def test_springs_of_other_kinds(xml: str) -> None:
    """Polynomial springs of joints and tendons, tendons with a range of rest, springs that have yielded."""
    assert_energies(mujoco.MjModel.from_xml_string(xml))


def test_energies_are_zero_unless_asked_for() -> None:
    mjm = springs()
    mjm.opt.enableflags = 0
    m = mjt.put_model(mjm, dtype=torch.float64)
    d = mjt.forward(m, mjt.put_data(m, worlds(mjm)))
    assert (d.energy == 0).all()


def test_stages_compute_energies_without_the_flag() -> None:
    """As in C, a stage that is called computes, and leaves the other energy alone."""
    mjm = springs()
    mjm.opt.enableflags = 0
    m = mjt.put_model(mjm, dtype=torch.float64)
    d = mjt.fwd_position(m, mjt.put_data(m, mjds := worlds(mjm)))
    d = mjt.energy_vel(m, mjt.energy_pos(m, d))
    for mjd in mjds:
        mujoco.mj_fwdPosition(mjm, mjd)
        mujoco.mj_energyPos(mjm, mjd)
        mujoco.mj_energyVel(mjm, mjd)
    np.testing.assert_allclose(d.energy.numpy(), [mjd.energy for mjd in mjds], rtol=1e-12)


def test_a_pendulum_keeps_its_energy() -> None:
    """Without damping RK4 keeps the sum, whatever the two exchange."""
    mjm = mujoco.MjModel.from_xml_string(
        '<mujoco><option integrator="RK4"><flag energy="enable"/></option><worldbody><body><joint axis="0 1 0" '
        'stiffness="0.3"/><geom size="0.1" pos="0.5 0 0"/></body></worldbody></mujoco>'
    )
    m = mjt.put_model(mjm, dtype=torch.float64)
    d = mjt.make_data(m, 4)
    d = d.replace(qvel=torch.linspace(0, 3, 4, dtype=torch.float64).unsqueeze(1))
    first = mjt.forward(m, d).energy
    last = mjt.forward(m, mjt.step(m, d, 100)).energy
    assert (first - last).abs().max() > 0.1
    torch.testing.assert_close(first.sum(1), last.sum(1), rtol=0, atol=1e-8)


def test_the_gradient_of_the_energy_is_minus_the_force() -> None:
    """Of a tree of hinges and slides at rest: -dE/dq = qfrc_spring - qfrc_bias; and dE/dv = M v."""
    mjm = mujoco.MjModel.from_xml_string(
        '<mujoco><option><flag energy="enable"/></option><worldbody><body><joint axis="0 1 0" stiffness="3" '
        'springref="10"/><geom size="0.1" pos="0.5 0 0"/><body pos="0.5 0 0"><joint type="slide" axis="1 0 1" '
        'stiffness="4"/><geom size="0.1" pos="0.1 0 0"/></body></body></worldbody></mujoco>'
    )
    m = mjt.put_model(mjm, dtype=torch.float64)
    d = mjt.make_data(m, 4)
    qpos = torch.randn(4, 2, dtype=torch.float64, requires_grad=True)
    qvel = torch.zeros(4, 2, dtype=torch.float64)
    e = mjt.forward(m, d.replace(qpos=qpos, qvel=qvel))
    (slope,) = torch.autograd.grad(e.energy[:, 0].sum(), qpos)
    torch.testing.assert_close(-slope, (e.qfrc_spring - e.qfrc_bias).detach())
    qvel = torch.randn(4, 2, dtype=torch.float64, requires_grad=True)
    e = mjt.forward(m, d.replace(qpos=qpos.detach(), qvel=qvel))
    (slope,) = torch.autograd.grad(e.energy[:, 1].sum(), qvel)
    torch.testing.assert_close(slope, mjt.mul_m(m, e, qvel).detach())


def test_gradients_are_finite_at_rest() -> None:
    """A ball joint at its reference, where the length of its turn has no derivative."""
    mjm = springs()
    m = mjt.put_model(mjm, dtype=torch.float64)
    d = mjt.make_data(m, 4)
    qpos, qvel = d.qpos.clone().requires_grad_(), d.qvel.clone().requires_grad_()
    energy = mjt.forward(m, d.replace(qpos=qpos, qvel=qvel)).energy
    for slope in torch.autograd.grad(energy.sum(), (qpos, qvel)):
        assert slope.isfinite().all()


def test_float32_compiled_and_mapped() -> None:
    mjm = springs()
    assert_energies(mjm, dtype=torch.float32, rtol=1e-4)
    m = mjt.put_model(mjm, dtype=torch.float64)
    d = mjt.put_data(m, worlds(mjm))
    expected = mjt.forward(m, d).energy
    compiled = torch.compile(mjt.forward, backend="aot_eager", fullgraph=True)(m, d).energy
    torch.testing.assert_close(compiled, expected, rtol=0, atol=1e-12)
    mapped = torch.vmap(lambda d: mjt.forward(m, d).energy)(d)
    torch.testing.assert_close(mapped, expected, rtol=0, atol=1e-12)
