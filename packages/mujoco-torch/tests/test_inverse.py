"""Inverse dynamics against MuJoCo C, and against forward dynamics."""

import functools
from pathlib import Path

import mujoco
import numpy as np
import pytest
import torch

import mujoco_torch as mjt
from mujoco_torch import testing

EVERYTHING = Path(__file__).with_name("everything.xml")

ARM = """
<mujoco>
  <option timestep="0.004" gravity="0.1 0.2 -3" {option}><flag {flags}/></option>
  <worldbody>
    <geom type="plane" size="3 3 0.1" condim="1"/>
    <body name="trunk" pos="0 0 0.4">
      <freejoint/>
      <geom type="capsule" size="0.05" fromto="-0.1 0 0 0.2 0 0" condim="4"/>
      <body name="arm" pos="0.2 0.05 0">
        <joint name="shoulder" type="ball" range="0 40" limited="true" damping="0.3" stiffness="2" armature="0.01"/>
        <geom type="capsule" size="0.03" fromto="0 0 0 0 0 -0.25" condim="6"/>
        <body pos="0 0 -0.25">
          <joint name="elbow" axis="1 0.2 0" range="-20 25" limited="true" damping="0.5"/>
          <joint name="extend" type="slide" axis="0 0 1" range="-0.02 0.03" limited="true" damping="1"/>
          <geom type="sphere" size="0.06" pos="0 0 -0.1"/>
        </body>
      </body>
    </body>
  </worldbody>
  <actuator>
    <position joint="elbow" kp="20" kv="0.3"/>
    <motor joint="shoulder" gear="0.1 0.05 -0.2"/>
  </actuator>
</mujoco>
"""


def arm(option: str = "", flags: str = 'energy="disable"') -> mujoco.MjModel:
    return testing.converged(mujoco.MjModel.from_xml_string(ARM.format(option=option, flags=flags)))


@functools.cache
def states(seed: int = 0) -> list[mujoco.MjData]:
    return testing.perturbed_states(arm(), 4, seed=seed, settle=100)


def worlds(mjm: mujoco.MjModel) -> list[mujoco.MjData]:
    """States with accelerations that no forward dynamics gave: some press on the constraints, some pull off."""
    rng = np.random.default_rng(1)
    mjds = [testing.copy_state(mjm, state) for state in states()]
    for mjd in mjds:
        mjd.qacc[:] = 3.0 * rng.standard_normal(mjm.nv)
    return mjds


def put(mjm: mujoco.MjModel, mjds: list[mujoco.MjData], dtype: torch.dtype = torch.float64, **callbacks):
    m = mjt.put_model(mjm, dtype=dtype, **callbacks)
    return m, mjt.put_data(m, mjds)


def reference(mjds: list[mujoco.MjData], name: str) -> np.ndarray:
    return np.array([getattr(mjd, name) for mjd in mjds])


def assert_close(x: torch.Tensor, expected: np.ndarray, rtol: float = 1e-10) -> None:
    np.testing.assert_allclose(x.detach().numpy(), expected, rtol=0, atol=rtol * np.abs(expected).max())


@pytest.mark.parametrize(
    ("option", "flags"),
    [
        ("", 'energy="enable"'),
        ("", 'contact="disable"'),
        ("", 'constraint="disable"'),
        ("", 'invdiscrete="enable"'),
        ("", 'invdiscrete="enable" eulerdamp="disable"'),
        ("", 'invdiscrete="enable" damper="disable"'),
        ('integrator="implicit"', 'invdiscrete="enable"'),
        ('integrator="implicitfast"', 'invdiscrete="enable"'),
        ('integrator="RK4"', 'actuation="disable"'),
    ],
)
def test_inverse_is_that_of_c(option: str, flags: str) -> None:
    """Of any acceleration: forces of rows from the acceleration alone, then of joints; energies if asked for."""
    mjm = arm(option, flags)
    mjds = worlds(mjm)
    m, d = put(mjm, mjds)
    d = mjt.inverse(m, d)
    for mjd in mjds:
        mujoco.mj_inverse(mjm, mjd)
    testing.compare(
        m, d, mjds, ("efc_force", "qfrc_constraint", "qfrc_inverse", "energy"), 1e-10
    ).raise_for_failures()
    assert_close(d.qacc, reference(mjds, "qacc"))  # as it was given, also in discrete time
    if "constraint" not in flags:
        assert sum((mjd.efc_force > 0).any() for mjd in mjds) >= 2


@pytest.mark.parametrize("cone", ["PYRAMIDAL", "ELLIPTIC"])
@pytest.mark.parametrize("integrator", ["EULER", "IMPLICIT", "IMPLICITFAST"])
def test_inverse_of_rows_of_every_kind(integrator: str, cone: str) -> None:
    """Equalities, friction losses, limits of joints and tendons, cones; in discrete time of all smooth forces, too."""
    mjm = testing.converged(mujoco.MjModel.from_xml_path(str(EVERYTHING)))
    mjm.opt.integrator = int(getattr(mujoco.mjtIntegrator, f"mjINT_{integrator}"))
    mjm.opt.cone = int(getattr(mujoco.mjtCone, f"mjCONE_{cone}"))
    mjds = testing.perturbed_states(mjm, 4, seed=0, settle=100)
    for flags in (0, int(mujoco.mjtEnableBit.mjENBL_INVDISCRETE)):
        mjm.opt.enableflags = flags
        rng = np.random.default_rng(2)
        for mjd in mjds:
            mujoco.mj_forward(mjm, mjd)
            mjd.qacc[:] = 3.0 * rng.standard_normal(mjm.nv)
        m, d = put(mjm, mjds)
        d = mjt.inverse(m, d)
        for mjd in mjds:
            mujoco.mj_inverse(mjm, mjd)
        fields = ("efc_force", "qfrc_constraint", "qfrc_inverse")
        testing.compare(m, d, mjds, fields, 1e-10).raise_for_failures()


@pytest.mark.parametrize("integrator", ["Euler", "implicit", "implicitfast"])
def test_discrete_inverse_of_every_force_undoes_a_step(integrator: str) -> None:
    """Velocity-dependent actuators, a medium, a body that flies alone: all that an implicit step solves for."""
    mjm = mujoco.MjModel.from_xml_path(str(EVERYTHING))
    mjm.opt.integrator = int(getattr(mujoco.mjtIntegrator, f"mjINT_{integrator.upper()}"))
    mjm.opt.enableflags = int(mujoco.mjtEnableBit.mjENBL_INVDISCRETE)
    mjm.opt.disableflags = int(mujoco.mjtDisableBit.mjDSBL_CONSTRAINT)
    m, d = put(mjm, testing.perturbed_states(mjm, 4, seed=0, settle=100))
    after = mjt.step(m, d)
    d = mjt.forward(m, d).replace(qacc=(after.qvel - d.qvel) / mjm.opt.timestep)
    d = mjt.inverse(m, d)
    applied = d.qfrc_applied + d.qfrc_actuator + mjt.xfrc_accumulate(m, d)
    assert_close(d.qfrc_inverse, applied.numpy(), 1e-9)


def test_inverse_undoes_forward() -> None:
    mjm = arm()
    m, d = put(mjm, states())
    d = mjt.inverse(m, mjt.forward(m, d))
    applied = d.qfrc_applied + d.qfrc_actuator + mjt.xfrc_accumulate(m, d)
    assert_close(d.qfrc_inverse, applied.numpy(), 1e-6)


@pytest.mark.parametrize("flags", ["", 'eulerdamp="disable"'])
def test_discrete_inverse_undoes_a_step(flags: str) -> None:
    """Contacts and limits apart, whose forces a step computes in continuous time."""
    mjm = arm("", f'invdiscrete="enable" constraint="disable" {flags}')
    m, d = put(mjm, states())
    after = mjt.step(m, d)
    d = mjt.inverse(m, d.replace(qacc=(after.qvel - d.qvel) / mjm.opt.timestep))
    applied = d.qfrc_applied + after.qfrc_actuator + mjt.xfrc_accumulate(m, d)
    assert_close(d.qfrc_inverse, applied.numpy(), 1e-9)


def test_rk4_has_no_discrete_inverse() -> None:
    """An error, as in C."""
    mjm = arm('integrator="RK4"', 'invdiscrete="enable"')
    m, d = put(mjm, worlds(mjm))
    with pytest.raises(mjt.StateError, match="integrator rk4; use another"):
        mjt.inverse(m, d)


@pytest.mark.parametrize("option", ["", 'integrator="RK4"'])
@pytest.mark.parametrize("flags", ['fwdinv="enable"', 'fwdinv="enable" invdiscrete="enable"'])
def test_a_step_compares_forward_and_inverse(option: str, flags: str) -> None:
    """``solver_fwdinv`` and ``qfrc_inverse``; a world without rows has zeros. RK4 compares before its first stage."""
    if option and "invdiscrete" in flags:
        pytest.skip("no discrete inverse of RK4")
    mjm = arm(option, flags)
    mjm.opt.iterations, mjm.opt.tolerance = 2, 0.0  # stopped early, so that there is a difference
    mjm.opt.disableflags |= int(mujoco.mjtDisableBit.mjDSBL_ISLAND)
    mjds = [testing.copy_state(mjm, state) for state in states()]
    mjds[3].qpos[:] = mjm.qpos0
    mjds[3].qpos[2] = 10.0  # in the air
    m, d = put(mjm, mjds)
    d = mjt.step(m, d)
    for mjd in mjds:
        mujoco.mj_step(mjm, mjd)
    expected = reference(mjds, "solver_fwdinv")
    assert expected.max() > 1e-3
    assert (expected[3] == 0).all()
    assert_close(d.solver_fwdinv, expected, 1e-6)
    assert_close(d.qfrc_inverse, reference(mjds, "qfrc_inverse"), 1e-6)
    assert_close(d.qpos, reference(mjds, "qpos"), 1e-6)


def test_nothing_is_compared_unless_asked_for() -> None:
    m, d = put(arm(), states())
    d = mjt.step(m, d)
    assert (d.solver_fwdinv == 0).all()
    assert (d.qfrc_inverse == 0).all()


def test_rne_with_acceleration() -> None:
    mjm = arm()
    mjds = worlds(mjm)
    m, d = put(mjm, mjds)
    d = mjt.inverse(m, d)
    expected = np.zeros((4, mjm.nv))
    for mjd, row in zip(mjds, expected, strict=True):
        mujoco.mj_inverse(mjm, mjd)
        mujoco.mj_rne(mjm, mjd, 1, row)
    assert_close(mjt.rne_acc(m, d), expected)
    assert_close(mjt.rne_acc(m, d[1]), expected[1])


def test_gradients() -> None:
    """By position, velocity and acceleration, as finite differences say."""
    mjm = arm()
    mjds = worlds(mjm)
    m, d = put(mjm, mjds)
    d = mjt.make_data(m, 4).replace(**{name: d.get(name) for name in ("qpos", "qvel", "qacc")})[:2]

    def force(qpos, qvel, qacc):
        return mjt.inverse(m, d.replace(qpos=qpos, qvel=qvel, qacc=qacc)).qfrc_inverse

    inputs = [d.get(name).clone().requires_grad_() for name in ("qpos", "qvel", "qacc")]
    assert torch.autograd.gradcheck(force, inputs, eps=1e-7, atol=1e-4, rtol=1e-4, fast_mode=True)
    fresh = mjt.make_data(m, 4)
    inputs = [fresh.get(name).clone().requires_grad_() for name in ("qpos", "qvel", "qacc")]
    out = mjt.inverse(m, fresh.replace(qpos=inputs[0], qvel=inputs[1], qacc=inputs[2])).qfrc_inverse
    assert all(slope.isfinite().all() for slope in torch.autograd.grad(out.sum(), inputs))


def test_gradients_of_the_comparison_are_finite() -> None:
    m, d = put(arm("", 'fwdinv="enable"'), states())
    qvel = d.qvel.clone().requires_grad_()
    (slope,) = torch.autograd.grad(mjt.step(m, d.replace(qvel=qvel)).qvel.sum(), qvel)
    assert slope.isfinite().all()


def test_float32_compiled_mapped_and_one_world() -> None:
    mjm = arm()
    mjds = worlds(mjm)
    m, d = put(mjm, mjds)
    expected = mjt.inverse(m, d)
    for name in ("qfrc_inverse", "qfrc_constraint"):
        value = expected.get(name)
        single = mjt.inverse(*put(mjm, mjds, torch.float32)).get(name)
        torch.testing.assert_close(single.double(), value, rtol=0, atol=1e-3 * value.abs().max().item())
        compiled = torch.compile(mjt.inverse, backend="aot_eager", fullgraph=True)(m, d).get(name)
        torch.testing.assert_close(compiled, value, rtol=1e-12, atol=1e-12)
        mapped = torch.vmap(lambda d, name=name: mjt.inverse(m, d).get(name))(d)
        torch.testing.assert_close(mapped, value, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(mjt.inverse(m, d[2]).get(name), value[2], rtol=1e-12, atol=1e-12)
