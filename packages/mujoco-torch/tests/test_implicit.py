"""The integrators ``implicit`` and ``implicitfast``: derivatives, steps and rollouts beside MuJoCo C, gradients."""

import re

import mujoco
import numpy as np
import pytest
import torch
from torch import Tensor

import mujoco_torch as mjt
from mujoco_torch import testing
from mujoco_torch._src import derivative, ops
from mujoco_torch._src.bias import rne
from mujoco_torch._src.com import com_vel
from mujoco_torch._src.layout import FIELDS
from mujoco_torch._src.solver import dense as dense_solver
from mujoco_torch._src.solver import solve_dense
from mujoco_torch._src.stage import inside

NWORLD = 4
INTEGRATORS = {"implicit": 2, "implicitfast": 3}
BOTH = pytest.mark.parametrize("integrator", INTEGRATORS)
# Closed forms in float64 against C's recursions: rounding, amplified by the condition of the inertia.
EXACT = 1e-10
# Two Newton solvers of tolerance 1e-12 agree so far; forces of contacts are stiff.
CONTACTS = 1e-6

ARMS = """
<mujoco model="arms">
  <option timestep="0.004"/>
  <worldbody>
    <body pos="0 0 1">
      <freejoint name="root"/>
      <geom type="capsule" size="0.08" fromto="-0.1 0 0 0.2 0.05 0" contype="0" conaffinity="0"/>
      <body pos="0.2 0.05 0">
        <joint name="shoulder" type="ball" pos="0.01 0 -0.02" damping="0.3" armature="0.01"/>
        <geom type="box" size="0.04 0.03 0.1" pos="0 0 -0.1" contype="0" conaffinity="0"/>
        <body pos="0 0 -0.25">
          <joint name="elbow" axis="1 0.2 0" damping="0.1" actuatorfrclimited="true" actuatorfrcrange="-2 1.5"/>
          <joint name="twist" axis="0 1 0.3" pos="0 0 0.05"/>
          <joint name="extend" type="slide" axis="0.1 0 1" stiffness="50" damping="1"/>
          <geom type="capsule" size="0.03" fromto="0 0 0 0.02 0 -0.2" contype="0" conaffinity="0"/>
        </body>
      </body>
      <body pos="-0.15 0 0.02">
        <joint name="tail" axis="0 1 1" damping="0.1"/>
        <geom type="capsule" size="0.03" fromto="0 0 0 -0.2 0 0" contype="0" conaffinity="0"/>
      </body>
    </body>
    <body pos="1 0 2">
      <joint name="swing" type="ball" pos="0 0 0.1" damping="0.05" stiffness="1"/>
      <geom type="capsule" size="0.03" fromto="0 0 0 0.05 0 -0.3" contype="0" conaffinity="0"/>
      <body pos="0.05 0 -0.3">
        <joint name="rail" type="slide" axis="1 0 0" stiffness="20"/>
        <joint name="spin" axis="0 0 1" damping="0.01"/>
        <geom type="sphere" size="0.06" pos="0.02 0 0" contype="0" conaffinity="0"/>
      </body>
    </body>
    <body pos="2 0 1">
      <joint name="whirl" type="ball"/>
      <geom type="box" size="0.1 0.05 0.02" contype="0" conaffinity="0"/>
    </body>
    <body pos="0 2 1">
      <freejoint name="loose"/>
      <geom type="box" size="0.1 0.05 0.02" pos="0.03 0.02 0.01" contype="0" conaffinity="0"/>
      <body pos="0.1 0 0" euler="20 30 0">
        <geom type="capsule" size="0.02 0.1" contype="0" conaffinity="0"/>
      </body>
    </body>
    <body pos="0 3 1">
      <freejoint name="balanced"/>
      <geom type="box" size="0.1 0.05 0.02" contype="0" conaffinity="0"/>
    </body>
  </worldbody>
  <actuator>
    <position joint="elbow" kp="20" kv="0.3" forcelimited="true" forcerange="-3 2"/>
    <velocity joint="elbow" kv="0.2"/>
    <position joint="twist" kp="4" kv="1" forcelimited="true" forcerange="-0.3 0.3"/>
    <velocity joint="tail" kv="0.2" gear="-1.5"/>
    <general joint="shoulder" gear="0.3 -0.2 0.1" biastype="affine" biasprm="0 0 -2"/>
    <general jointinparent="swing" gear="0.3 -0.2 0.1" biastype="affine" biasprm="0 0 -1"/>
    <general joint="whirl" gear="0.3 -0.2 0.1" biastype="affine" biasprm="0 0 -0.01"/>
    <general joint="extend" gaintype="affine" gainprm="3 1 -0.5" biastype="affine" biasprm="0.1 -5 -0.3"
      gear="2" ctrllimited="true" ctrlrange="-0.5 1"/>
    <general joint="balanced" gear="1 2 3 0.1 0.2 0.3" biastype="affine" biasprm="0 0 -0.1"/>
    <general jointinparent="loose" gear="1 -2 3 0.1 0.2 0.3" biastype="affine" biasprm="0 0 -0.05"/>
    <motor joint="spin" gear="0.04"/>
  </actuator>
</mujoco>
"""

LANDING = """
<mujoco model="landing">
  <option timestep="0.003"/>
  <worldbody>
    <geom type="plane" size="3 3 0.1"/>
    <body pos="0 0 0.12">
      <freejoint/>
      <geom type="capsule" size="0.08" fromto="0 0 0 0.2 0.05 0"/>
      <body pos="0.2 0 0">
        <joint name="knee" axis="0 1 0" damping="0.2" range="-40 40"/>
        <geom type="capsule" size="0.04" fromto="0 0 0 0.2 0 -0.05"/>
      </body>
    </body>
    <body pos="0 1 0.1">
      <freejoint/>
      <geom type="capsule" size="0.1 0.1" condim="4"/>
    </body>
  </worldbody>
  <actuator><position joint="knee" kp="10" kv="0.5" forcerange="-1 1"/></actuator>
</mujoco>
"""


def load(xml: str, integrator: str) -> mujoco.MjModel:
    mjm = mujoco.MjModel.from_xml_string(xml)
    mjm.opt.integrator = INTEGRATORS[integrator]
    return mjm


def fast_states(mjm: mujoco.MjModel, speed: float = 10.0) -> list[mujoco.MjData]:
    """States in which velocities matter."""
    states = testing.perturbed_states(mjm, NWORLD, seed=3, settle=20)
    for mjd in states:
        mjd.qvel[:] *= speed
    return states


def with_step(mjm: mujoco.MjModel, states: list[mujoco.MjData]) -> np.ndarray:
    """C's ``qDeriv``, dense ``(nworld, nv, nv)``; the states become those at which it was computed."""
    derivatives = np.zeros((len(states), mjm.nv, mjm.nv))
    for world, mjd in enumerate(states):
        mujoco.mj_forward(mjm, mjd)
        stepped = testing.copy_state(mjm, mjd)
        mujoco.mj_step(mjm, stepped)
        mujoco.mju_sparse2dense(derivatives[world], stepped.qDeriv, mjm.D_rownnz, mjm.D_rowadr, mjm.D_colind)
    return derivatives


def dense(m: mjt.Model, lower: Tensor, upper: Tensor) -> np.ndarray:
    """A matrix ``(nworld, nv, nv)`` of its triangles ``[nL, B]``."""
    row, col = m.rate_row.dense(lower), m.rate_col.dense(lower)
    below = torch.einsum("ei,eb,ej->bij", row, lower, col)
    above = torch.einsum("ei,eb,ej->bij", col, upper, row)
    return (below.tril() + above.triu(1)).numpy()


def our_derivative(mjm: mujoco.MjModel, d: mjt.Data, m: mjt.Model) -> np.ndarray:
    """Our derivative of the smooth forces of a model that uses ``implicit``."""
    model, data = inside(m, d, tuple(FIELDS))
    symmetric = derivative.symmetric_rate(model, data)
    lower, upper = derivative.bias_rate(model, data)
    if m.fluid_boxes or m.fluid_ellipsoids:
        below, above = derivative.medium_rate(model, data, symmetric=False)
        lower, upper = lower - below, upper - above
    return dense(m, symmetric - lower, symmetric - upper)


def assert_close(ours: np.ndarray, c: np.ndarray, tolerance: float = EXACT) -> None:
    np.testing.assert_allclose(ours, c, rtol=0, atol=tolerance * max(1.0, np.abs(c).max()))


# ------------------------------------------------------------------------------------------- derivatives


def test_derivative_is_that_of_c() -> None:
    """Dampers, servos below and at their limits, Coriolis forces of every joint type: C's ``qDeriv``."""
    mjm = load(ARMS, "implicit")
    states = fast_states(mjm)
    expected = with_step(mjm, states)
    m = mjt.put_model(mjm, dtype=torch.float64)
    assert_close(our_derivative(mjm, mjt.put_data(m, states), m), expected)


def test_closed_form_of_the_bias_force_is_its_derivative() -> None:
    """Against differentiation of the velocities and the recursive Newton-Euler stage."""
    mjm = load(ARMS, "implicit")
    states = fast_states(mjm)
    for mjd in states:
        mujoco.mj_forward(mjm, mjd)
    m = mjt.put_model(mjm, dtype=torch.float64)
    model, data = inside(m, mjt.put_data(m, states), tuple(FIELDS))

    qvel = data.qvel.clone().requires_grad_()
    bias = rne.inside(model, com_vel.inside(model, data.replace(qvel=qvel))).qfrc_bias
    rows = [torch.autograd.grad(row.sum(), qvel, retain_graph=True)[0] for row in bias]
    ours = dense(m, *derivative.bias_rate(model, data))
    assert_close(ours, torch.stack(rows).movedim(-1, 0).numpy())


SERVO = """
<mujoco>
  <option integrator="implicit" timestep="0.01" gravity="0 0 0"/>
  <worldbody>
    <body>
      <joint name="a" axis="0 1 0" damping="0.1" {joint}/>
      <geom type="capsule" size="0.05" fromto="0 0 0 0.3 0 0" contype="0"/>
      <body pos="0.3 0 0">
        <joint name="b" axis="0 0 1"/>
        <geom type="capsule" size="0.05" fromto="0 0 0 0.3 0 0" contype="0"/>
      </body>
    </body>
  </worldbody>
  <actuator>{actuator}</actuator>
</mujoco>
"""
DAMPER = '<general joint="a" biastype="affine" biasprm="0 0 -2" {}/>'
LIMITED = 'forcelimited="true" forcerange="-1 1"'
JOINT_LIMITED = 'actuatorfrclimited="true" actuatorfrcrange="-1 1"'
GAIN = '<general joint="a" gaintype="affine" gainprm="1 0 -3" ctrllimited="true" ctrlrange="-.5 .5"/>'

# What is said of the actuators: attributes of the joint, actuators, controls, and the damping of the joint that C has.
SATURATION = {
    "below": ("", DAMPER.format(LIMITED), [0.5], 2.1),
    "at the upper limit": ("", DAMPER.format(LIMITED), [1.0], 0.1),
    "at the lower limit": ("", DAMPER.format(LIMITED), [-1.0], 0.1),
    "above": ("", DAMPER.format(LIMITED), [3.0], 0.1),
    "joint below": (JOINT_LIMITED, DAMPER.format(""), [0.5], 2.1),
    "joint at its limit": (JOINT_LIMITED, DAMPER.format(""), [1.0], 0.1),
    "joint above": (JOINT_LIMITED, DAMPER.format("") * 2, [3.0, -1.5], 0.1),
    "joint relieved": (JOINT_LIMITED, DAMPER.format("") * 2, [3.0, -2.5], 4.1),
    "in the parent": (JOINT_LIMITED, DAMPER.format("").replace("joint", "jointinparent"), [-4.0], 0.1),
    "another joint": (JOINT_LIMITED, DAMPER.replace('"a"', '"b"').format(""), [4.0], 0.1),
    "gain": ("", GAIN, [0.2], 0.7),
    "gain at the end of the control range": ("", GAIN, [2.0], 1.6),
    "bad control of another": ("", GAIN + DAMPER.format(""), [0.2, float("nan")], 2.7),
    "negative damping": ("", DAMPER.replace("-2", "2").format(""), [0.0], -1.9),
}


@pytest.mark.parametrize("case", SATURATION)
@BOTH
def test_saturated_actuators_have_no_derivative(case: str, integrator: str) -> None:
    joint, actuator, ctrl, damping = SATURATION[case]
    mjm = load(SERVO.format(joint=joint, actuator=actuator), integrator)
    mjd = mujoco.MjData(mjm)
    mjd.ctrl[:] = ctrl
    expected = with_step(mjm, [mjd])[0]
    assert -expected[0, 0] == pytest.approx(damping)
    m = mjt.put_model(mjm, dtype=torch.float64)
    fresh = mujoco.MjData(mjm)
    d = mjt.put_data(m, fresh).replace(ctrl=torch.tensor(ctrl, dtype=torch.float64))
    after = mjt.step(m, d)
    mujoco.mj_step(mjm, mjd)
    assert_close(after.qvel.numpy(), mjd.qvel)


FORCES_OF_OTHERS = """
<mujoco>
  <option timestep="0.01"/>
  <worldbody>
    <body>
      <joint name="a" axis="0 1 0" damping="0.5 0.2 0.05"/>
      <geom type="capsule" size="0.05" fromto="0 0 0 0.3 0 0" contype="0"/>
      <body pos="0.3 0 0">
        <joint name="b" type="ball" damping="0 0.3"/>
        <geom type="capsule" size="0.05" fromto="0 0 0 0.3 0 0" contype="0"/>
      </body>
      <body pos="0.3 0 0">
        <joint name="c" axis="0 0 1"/>
        <geom type="capsule" size="0.05" fromto="0 0 0 0 0.3 0" contype="0"/>
      </body>
    </body>
  </worldbody>
  <tendon>
    <fixed name="branches" damping="0.5 0.2 0.1"><joint joint="a" coef="1"/><joint joint="c" coef="2"/></fixed>
    <fixed name="line" damping="0.7"><joint joint="c" coef="1"/></fixed>
  </tendon>
  <actuator>
    <motor joint="a" gear="2" damping="0.3 0.1 0.2"/>
    <motor joint="a" damping="0.1"/>
    <motor joint="b" gear="1 2 3" damping="0.4"/>
  </actuator>
</mujoco>
"""


@pytest.mark.parametrize("damper", [True, False])
def test_derivative_of_polynomial_dampers_tendons_and_reflected_damping(damper: bool) -> None:
    mjm = load(FORCES_OF_OTHERS, "implicit")
    mjm.opt.disableflags |= 0 if damper else int(mujoco.mjtDisableBit.mjDSBL_DAMPER)
    states = fast_states(mjm, 2.0)
    expected = with_step(mjm, states)
    m = mjt.put_model(mjm, dtype=torch.float64)
    assert_close(our_derivative(mjm, mjt.put_data(m, states), m), expected)


MACHINE = """
<mujoco>
  <option timestep="0.004"/>
  <default><geom contype="0" conaffinity="0"/></default>
  <worldbody>
    <body pos="0 0 1">
      <joint name="a" axis="0 1 0.2" damping="0.02"/>
      <geom type="capsule" size="0.03" fromto="0 0 0 0.3 0 0"/>
      <site name="a" pos="0.1 0 0.05"/>
      <body pos="0.3 0 0">
        <joint name="b" axis="0 1 0"/>
        <geom type="capsule" size="0.03" fromto="0 0 0 0.25 0 0.02"/>
        <site name="b" pos="0.1 0 0.04"/>
        <body pos="0.25 0 0.02">
          <joint name="c" type="ball"/>
          <geom type="box" size="0.03 0.05 0.02" pos="0.03 0.01 0"/>
          <site name="c" pos="0.03 0 0" euler="10 20 30"/>
          <body pos="0.06 0 0"><joint name="d" type="slide"/><geom size="0.02" mass="0.2"/></body>
        </body>
      </body>
    </body>
    <site name="world" pos="0.2 0.1 1.3" euler="30 10 -20"/>
  </worldbody>
  <tendon>
    <fixed name="sum" damping="0.02" actuatorfrclimited="true" actuatorfrcrange="-0.6 0.5">
      <joint joint="a" coef="0.7"/><joint joint="b" coef="-1.1"/>
    </fixed>
    <spatial name="string" damping="0.1 0.05"><site site="a"/><site site="b"/></spatial>
  </tendon>
  <actuator>{}</actuator>
</mujoco>
"""

MOTOR = '<dcmotor joint="d" resistance="2" motorconst="0.05 0.06" gear="1.3" cogging="0.1 2 3" '
CONTROLLED = MOTOR + 'input="pos vel ff voltage" controller="1 2 0.3 0 0.5 2" '
ACTUATORS = {
    "activations": """
      <general joint="b" dyntype="filter" dynprm="0.03" gaintype="affine" gainprm="1 0.5 -0.2" gear="1.5"/>
      <general joint="d" dyntype="integrator" gaintype="affine" gainprm="1 0 -3" actearly="true" actlimited="true"
        actrange="-0.2 0.3"/>
      <general joint="a" dyntype="filterexact" dynprm="0.02" gaintype="affine" gainprm="1 0 -0.3"/>
      <general joint="d" gaintype="affine" gainprm="1 0 -3" nsample="4" delay="0.01"/>
    """,
    "muscles": """
      <muscle joint="a" lengthrange="-1.2 1.1"/>
      <muscle joint="b" lengthrange="-0.9 1.3" force="30" vmax="1.2" fvmax="1.4" gear="1.3"/>
      <muscle tendon="string" lengthrange="0.2 0.4" scale="5"/>
      <general joint="a" dyntype="filter" dynprm="0.05" gaintype="muscle" biastype="affine" biasprm="0.1 -0.2 -0.3"
        gainprm="0.7 1.1 10 5 0.5 1.6 1.5 1.3 1.2" lengthrange="-1 1"/>
    """,
    "controllers": """
      <pid joint="a" kp="3" kv="0.4" ki="0.5" imax="0.6" slewmax="7" input="pos vel ff" forcerange="-1 1.5"/>
      <pid tendon="sum" kp="0.3" kv="0.1"/>
      <orientation joint="c" kp="0.3" kv="0.02"/>
      <orientation joint="c" kp="0.3" kv="0.01" input="quat" forcerange="0 3"/>
      <orientation site="c" refsite="world" kp="0.1" kv="0.02"/>
    """,
    "motors": "".join(
        f"{motor}{saturation}{inductance}{thermal}{friction}/>"
        for motor in (MOTOR, CONTROLLED)
        for saturation, inductance in (
            (' saturation="0.05"', ""),
            (' saturation="0.3 0 9"', ' inductance="0.01 0"'),
        )
        for thermal in ("", ' thermal="4 5 0 0.01 25 20"')
        for friction in ("", ' lugre="100 2 0.3 0.4 0.1"')
    ),
    "transmissions": """
      <velocity tendon="sum" kv="0.5" forcerange="-0.3 0.3"/>
      <velocity tendon="sum" kv="0.2"/>
      <velocity tendon="string" kv="0.3"/>
      <velocity site="c" refsite="world" gear="0.1 0.2 0.3 0.4 0.5 0.6" kv="0.1"/>
      <velocity cranksite="a" slidersite="world" cranklength="2" kv="0.2"/>
      <damper joint="d" kv="0.5" ctrlrange="0 1"/>
    """,
    "reflected": """
      <motor joint="a" damping="0.2" armature="0.01" gear="2"/>
      <motor tendon="sum" damping="0.05 0.1 0.2" armature="0.002" gear="1.3"/>
      <motor joint="b" damping="0.1" group="1"/>
    """,
}


def machine_states(mjm: mujoco.MjModel) -> list[mujoco.MjData]:
    """Worlds at random, with velocities, activations and controls of order one."""
    rng = np.random.default_rng(7)
    states = []
    for _ in range(NWORLD):
        mjd = mujoco.MjData(mjm)
        mujoco.mj_integratePos(mjm, mjd.qpos, 0.5 * rng.standard_normal(mjm.nv), 1.0)
        mjd.qvel[:] = 2.0 * rng.standard_normal(mjm.nv)
        mjd.act[:] = rng.standard_normal(mjm.na)
        mjd.ctrl[:] = 2.0 * rng.standard_normal(mjm.nu)
        states.append(mjd)
    return states


@pytest.mark.parametrize("name", ACTUATORS)
def test_derivative_of_actuators_of_every_kind(name: str) -> None:
    """Also where a force, a torque, a voltage, the rate of a current, or the sum on a tendon is at its limit."""
    mjm = load(MACHINE.format(ACTUATORS[name]), "implicit")
    states = machine_states(mjm)
    expected = with_step(mjm, states)
    m = mjt.put_model(mjm, dtype=torch.float64)
    assert_close(our_derivative(mjm, mjt.put_data(m, states), m), expected)


@pytest.mark.parametrize("name", ACTUATORS)
@BOTH
def test_one_step_with_actuators_of_every_kind(name: str, integrator: str) -> None:
    """Activations and buffers of controls advance as in Euler's method."""
    mjm = load(MACHINE.format(ACTUATORS[name]), integrator)
    report = testing.stage_parity(mjm, "step", machine_states(mjm))
    moved = [error for error in report.errors if error.field in ("qpos", "qvel", "act", "history")]
    assert max(error.error for error in moved) <= EXACT, report


def test_a_torque_at_its_limit_has_no_derivative() -> None:
    """An orientation servo whose torque is shortened; C says so, too, unless rounding leaves it below the limit."""
    servo = '<orientation joint="c" kp="0.3" kv="0.5" input="quat" forcerange="0 0.05"/>'
    mjm = load(MACHINE.format(servo), "implicit")
    states = machine_states(mjm)
    expected = with_step(mjm, states)
    m = mjt.put_model(mjm, dtype=torch.float64)
    ours = our_derivative(mjm, mjt.put_data(m, states), m)
    free = load(MACHINE.format(servo.replace("0 0.05", "0 50")), "implicit")
    unlimited = with_step(free, [testing.copy_state(free, mjd) for mjd in states])
    held = [np.abs(x - y).max() < EXACT for x, y in zip(ours, expected, strict=True)]
    assert any(held)
    for world in np.flatnonzero(np.logical_not(held)):
        assert_close(expected[world], unlimited[world])
    assert np.abs(ours - unlimited).max((1, 2)).min() > 0.4


def in_medium(shape: str) -> str:
    """The arms in a thick wind: all bodies boxes, some of them ellipsoids, or all, the free ones among them."""
    xml = ARMS.replace("<option ", '<option density="800" viscosity="0.3" wind="1 -2 0.5" ')
    if shape == "boxes":
        return xml
    geom = r'(<geom type="(?:box|capsule)")'
    return re.sub(
        geom, r'\1 fluidshape="ellipsoid" fluidcoef="0.5 0.3 1.2 0.9 1.1"', xml, count=6 * (shape == "some")
    )


@pytest.mark.parametrize("shape", ["boxes", "some", "ellipsoids"])
def test_derivative_of_the_medium(shape: str) -> None:
    """Drag, viscosity, lift and added mass."""
    mjm = load(in_medium(shape), "implicit")
    states = fast_states(mjm)
    expected = with_step(mjm, states)
    m = mjt.put_model(mjm, dtype=torch.float64)
    assert_close(our_derivative(mjm, mjt.put_data(m, states), m), expected)


@pytest.mark.parametrize("shape", ["boxes", "some", "ellipsoids"])
@BOTH
def test_one_step_in_a_medium(shape: str, integrator: str) -> None:
    """``implicitfast`` takes the symmetric part of the derivative, except for free bodies that carry no joint, also if
    they are of several parts; at rest in still water it is finite."""
    mjm = load(in_medium(shape), integrator)
    report = testing.stage_parity(mjm, "implicit", fast_states(mjm))
    assert report.ok, report
    mjm.opt.wind[:] = 0.0
    m = mjt.put_model(mjm, dtype=torch.float64)
    d = mjt.make_data(m)
    qvel = d.qvel.clone().requires_grad_()
    end = mjt.step(m, mjt.step(m, d.replace(qvel=qvel)))
    end.qvel.square().sum().backward()
    assert end.qvel.isfinite().all() and qvel.grad.isfinite().all()
    rest = mujoco.MjData(mjm)
    mujoco.mj_step(mjm, rest, 2)
    assert_close(end.qvel.detach().numpy(), rest.qvel)


SWIMMERS = """
<mujoco>
  <option timestep="0.01" density="60" viscosity="0.05" wind="0.7 -1.1 0.4"/>
  <default><geom contype="0" conaffinity="0" fluidcoef="0.5 0.3 1.2 0.9 1.1"/></default>
  <worldbody>{}</worldbody>
</mujoco>
"""
ELLIPSOID = (
    '<geom type="{}" size="0.1 0.05 0.03" pos="0.03 -0.02 0.01" euler="{} 30 0" fluidshape="ellipsoid"/>'
)
BOX = '<geom type="box" size="0.08 0.05 0.02" pos="0.02 0.01 0"/>'
WELDED = '<body pos="0.1 0 0.05" euler="20 0 10">{}</body>'
HINGED = '<body pos="0.1 0 0.05"><joint axis="0 1 0.2"/>{}</body>'

# What a free body is made of, and whether C keeps the derivative of its medium as it is.
LONE = {
    "one ellipsoid": (ELLIPSOID.format("box", 10), True),
    "several ellipsoids": (ELLIPSOID.format("box", 10) + ELLIPSOID.format("ellipsoid", 50), True),
    "a welded ellipsoid": (BOX + WELDED.format(ELLIPSOID.format("capsule", 10)), True),
    "two welded ellipsoids": (ELLIPSOID.format("box", 0) + WELDED.format(ELLIPSOID.format("box", 10)), True),
    "boxes alone": (BOX + WELDED.format(BOX), False),
    "a hinged box": (ELLIPSOID.format("box", 10) + HINGED.format(BOX), False),
    "a hinged ellipsoid": (BOX + HINGED.format(ELLIPSOID.format("box", 10)), False),
}
# The two solve the same 6 x 6 blocks.
SAME_BLOCKS = 1e-12


def swimmers(*names: str) -> str:
    """Free bodies in a thick wind, one of each name."""
    return SWIMMERS.format("".join(f"<body><freejoint/>{LONE[name][0]}</body>" for name in names))


@pytest.mark.parametrize("name", LONE)
@BOTH
def test_one_step_of_a_free_body_in_a_medium(name: str, integrator: str) -> None:
    """Under ``implicitfast`` a free body that carries no joint keeps a derivative that is not symmetric."""
    mjm = load(swimmers(name), integrator)
    states = fast_states(mjm, 4.0)
    derivatives = with_step(mjm, states)
    if integrator == "implicitfast":
        skew = np.abs(derivatives - derivatives.swapaxes(1, 2)).max() / np.abs(derivatives).max()
        assert skew > 1e-2 if LONE[name][1] else skew < EXACT
    m = mjt.put_model(mjm, dtype=torch.float64)
    after = mjt.step(m, mjt.put_data(m, states))
    for mjd in states:
        mujoco.mj_step(mjm, mjd)
    assert_close(after.qvel.numpy(), np.array([mjd.qvel for mjd in states]), SAME_BLOCKS)


@BOTH
def test_many_bodies_in_a_medium(integrator: str) -> None:
    """All of them in one model, in float64 and float32, and gradients at rest in still water."""
    mjm = load(swimmers(*LONE), integrator)
    states = fast_states(mjm, 4.0)
    m, single = (mjt.put_model(mjm, dtype=dtype) for dtype in (torch.float64, torch.float32))
    after = mjt.step(m, mjt.put_data(m, states)).qvel.numpy()
    rough = mjt.step(single, mjt.put_data(single, states)).qvel.numpy()
    for mjd in states:
        mujoco.mj_step(mjm, mjd)
    expected = np.array([mjd.qvel for mjd in states])
    assert_close(after, expected, SAME_BLOCKS)
    assert_close(rough, expected, 1e-4)
    mjm.opt.wind[:], mjm.opt.gravity[:] = 0.0, 0.0
    m = mjt.put_model(mjm, dtype=torch.float64)
    d = mjt.make_data(m)
    qvel = d.qvel.clone().requires_grad_()
    mjt.step(m, d.replace(qvel=qvel)).qvel.sum().backward()
    assert qvel.grad.isfinite().all() and qvel.grad.any()


# ------------------------------------------------------------------------------------ unsymmetric systems


def unsymmetric(n: int, worlds: int, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    """Matrices with a structure of zeros, and right sides."""
    A = torch.randn(n, n, worlds, dtype=dtype)
    A = torch.where(torch.rand(n, n, 1) < 0.5, A, 0.0) + 3.0 * n * torch.eye(n, dtype=dtype)[..., None]
    return A, torch.randn(n, worlds, dtype=dtype)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize(("n", "worlds"), [(1, 1), (3, 17), (9, 8), (20, 33)])
def test_the_kernel_solves_unsymmetric_systems(n: int, worlds: int, dtype: torch.dtype) -> None:
    A, b = unsymmetric(n, worlds, dtype)
    x = solve_dense(A, b)
    torch.testing.assert_close((A * x).sum(1), b)
    torch.testing.assert_close(x, dense_solver._reference(A, b))
    torch.testing.assert_close(
        solve_dense(A.transpose(0, 1), b), dense_solver._reference(A.transpose(0, 1), b)
    )


def test_gradients_of_unsymmetric_systems() -> None:
    A, b = (x.requires_grad_() for x in unsymmetric(4, 3))
    assert torch.autograd.gradcheck(solve_dense, (A, b))
    assert torch.autograd.gradgradcheck(solve_dense, (A, b))
    ops.prepare()
    torch.library.opcheck(torch.ops.mujoco_torch.solve_dense.default, (A.detach(), b.detach()))


def test_a_bad_world_does_not_spoil_others() -> None:
    A, b = unsymmetric(5, 6)
    expected = solve_dense(A, b)
    A[..., 2], b[..., 4] = 0.0, float("nan")
    x = solve_dense(A, b)
    good = [0, 1, 3, 5]
    assert torch.equal(x[:, good], expected[:, good])
    assert not x[:, [2, 4]].isfinite().any()


# ---------------------------------------------------------------------------------------- steps and rollouts


@BOTH
@pytest.mark.parametrize("speed", [1.0, 30.0])
def test_one_step_is_that_of_c(integrator: str, speed: float) -> None:
    """Free, ball, slide and hinge joints, and servos at and beyond their limits."""
    mjm = load(ARMS, integrator)
    report = testing.stage_parity(mjm, "implicit", fast_states(mjm, speed))
    assert report.ok, report
    whole = testing.stage_parity(mjm, "step", fast_states(mjm, speed))
    assert max(error.error for error in whole.errors if error.field in ("qpos", "qvel")) <= EXACT, whole


@BOTH
def test_one_step_in_contact(integrator: str) -> None:
    mjm = testing.converged(load(LANDING, integrator))
    report = testing.stage_parity(mjm, "step", testing.perturbed_states(mjm, NWORLD, seed=2))
    assert max(error.error for error in report.errors) <= CONTACTS, report


@BOTH
@pytest.mark.parametrize("xml", [ARMS, LANDING], ids=["arms", "landing"])
def test_a_hundred_steps_stay_with_c(integrator: str, xml: str) -> None:
    """As near as C stays to itself when every step is perturbed by rounding."""
    mjm = testing.converged(load(xml, integrator))
    result = testing.rollout_parity(mjm, testing.perturbed_states(mjm, NWORLD, seed=5), 100)
    assert result.ratio(result.horizon()) < 100.0


@BOTH
def test_float32(integrator: str) -> None:
    mjm = load(ARMS, integrator)
    states = testing.perturbed_states(mjm, NWORLD, seed=3, settle=20)
    m = mjt.put_model(mjm, dtype=torch.float32)
    after = mjt.step(m, mjt.put_data(m, states))
    for mjd in states:
        mujoco.mj_step(mjm, mjd)
    assert_close(after.qvel.numpy(), np.array([mjd.qvel for mjd in states]), 1e-4)


TWO_HINGES = """
<mujoco>
  <option timestep="0.00208333333333333"/>
  <worldbody>
    <body>
      <joint name="a" axis="0 1 0"/>
      <geom type="capsule" size="0.04" fromto="0 0 0 0.4 0 0" contype="0"/>
      <body pos="0.4 0 0">
        <joint name="b" axis="1 0 0.2"/>
        <geom type="capsule" size="0.04" fromto="0 0 0 0 0.4 0" contype="0"/>
      </body>
    </body>
  </worldbody>
</mujoco>
"""


@pytest.mark.slow
def test_two_hinges_do_not_gain_speed() -> None:
    """Three seconds of a double pendulum, which a wrong sign of the Coriolis derivative drives to 1e12 rad/s."""
    mjm = load(TWO_HINGES, "implicit")
    m = mjt.put_model(mjm, dtype=torch.float64)
    states = testing.perturbed_states(mjm, NWORLD, seed=1, settle=10)
    for mjd in states:
        mjd.qfrc_applied[:], mjd.xfrc_applied[:] = 0, 0
    d = mjt.put_data(m, states)
    fastest = np.zeros((2, NWORLD))
    for _ in range(1440):
        d = mjt.step(m, d)
        fastest[0] = np.maximum(fastest[0], d.qvel.abs().amax(1).numpy())
        for world, mjd in enumerate(states):
            mujoco.mj_step(mjm, mjd)
            fastest[1, world] = max(fastest[1, world], np.abs(mjd.qvel).max())
    assert fastest[1].max() < 100.0
    np.testing.assert_allclose(fastest[0], fastest[1], rtol=1e-6)


FLOATING = """
<mujoco>
  <option timestep="0.005" jacobian="sparse"/>
  <worldbody>
    <body pos="0 0 1">
      <freejoint/>
      <geom type="capsule" size="0.1 0.1" contype="0"/>
      <body pos="0.1 0 0">
        <joint name="arm" axis="0 1 0" damping="2"/>
        <geom type="capsule" size="0.04" fromto="0 0 0 0.3 0 0" contype="0"/>
      </body>
    </body>
  </worldbody>
  <actuator><position joint="arm" kp="50" kv="5"/></actuator>
</mujoco>
"""


@BOTH
def test_damping_behind_a_floating_base(integrator: str) -> None:
    """The derivative finds the dofs of the arm, six dofs of the base before them."""
    mjm = load(FLOATING, integrator)
    states = fast_states(mjm)
    derivatives = with_step(mjm, states)
    assert derivatives[0, 6, 6] == pytest.approx(-7.0, rel=0.1) or integrator == "implicit"
    report = testing.stage_parity(mjm, "implicit", states)
    assert report.ok, report
    assert testing.rollout_parity(mjm, states, 50).ratio() < 100.0


TUMBLERS = """
<mujoco>
  <option timestep="0.01" gravity="0 0 0"/>
  <worldbody>
    <body><freejoint/><inertial pos="0 0 0" mass="1" diaginertia="0.1 0.2 0.25"/></body>
    <body pos="0 0 2"><freejoint/><inertial pos="0.1 0.2 0" mass="1" diaginertia="0.1 0.2 0.25"/></body>
    <body pos="0 0 4">
      <freejoint/>
      <inertial pos="0.1 0 0" mass="2" diaginertia="0.1 0.2 0.25"/>
      <body pos="0.3 0 0"><geom type="box" size="0.1 0.05 0.02" euler="10 20 30" contype="0"/></body>
    </body>
  </worldbody>
</mujoco>
"""


def test_free_bodies_are_the_same_under_both() -> None:
    """Bodies that carry no joint keep their gyroscopic derivative under ``implicitfast``."""
    mjm = load(TUMBLERS, "implicit")
    states = fast_states(mjm, 20.0)
    after = []
    for integrator in INTEGRATORS:
        mjm.opt.integrator = INTEGRATORS[integrator]
        m = mjt.put_model(mjm, dtype=torch.float64)
        after.append(mjt.step(m, mjt.put_data(m, states), 20).qvel.numpy())
    for mjd in states:
        mujoco.mj_step(mjm, mjd, 20)
    assert_close(after[0], after[1])
    assert_close(after[1], np.array([mjd.qvel for mjd in states]))


# --------------------------------------------------------------------------- gradients, compiling, vmap


SMALL = """
<mujoco>
  <option timestep="0.02" density="30" viscosity="0.01" wind="0.3 -0.2 0.1"/>
  <worldbody>
    <body pos="0 0 1">
      <joint name="a" axis="0 1 0" damping="0.2"/>
      <geom type="capsule" size="0.04" fromto="0 0 0 0.4 0 0" contype="0"/>
      <body pos="0.4 0 0">
        <joint type="ball" damping="0.02"/>
        <geom type="capsule" size="0.04" fromto="0 0 0 0 0.3 0.1" contype="0" fluidshape="ellipsoid"/>
      </body>
    </body>
    <body pos="0 1 1"><freejoint/><geom type="capsule" size="0.05 0.1" pos="0.02 0 0" contype="0"/></body>
    <body pos="0 2 1">
      <freejoint/>
      <geom type="box" size="0.1 0.05 0.03" pos="0.02 0 0" contype="0" fluidshape="ellipsoid"/>
    </body>
  </worldbody>
  <actuator>
    <general joint="a" gaintype="affine" gainprm="2 0 -0.4" biastype="affine" biasprm="0 -3 -0.5"/>
  </actuator>
</mujoco>
"""


@BOTH
def test_gradients_of_a_step(integrator: str) -> None:
    """Against finite differences, by positions, velocities, controls and forces."""
    mjm = load(SMALL, integrator)
    m = mjt.put_model(mjm, dtype=torch.float64)
    d = mjt.put_data(m, fast_states(mjm, 4.0)[:2])

    def after(qpos: Tensor, qvel: Tensor, ctrl: Tensor, qfrc_applied: Tensor) -> tuple[Tensor, Tensor]:
        stepped = mjt.step(m, d.replace(qpos=qpos, qvel=qvel, ctrl=ctrl, qfrc_applied=qfrc_applied))
        return stepped.qpos, stepped.qvel

    inputs = tuple(x.clone().requires_grad_() for x in (d.qpos, d.qvel, d.ctrl, d.qfrc_applied))
    assert torch.autograd.gradcheck(after, inputs, atol=1e-6, rtol=1e-5)


@BOTH
def test_gradients_are_finite_at_rest_and_in_contact(integrator: str) -> None:
    """At zero velocity, where dampers have a kink, and with bodies that touch."""
    mjm = load(LANDING, integrator)
    m = mjt.put_model(mjm, dtype=torch.float64)
    params = m.params.clone().requires_grad_()
    d = mjt.make_data(m, NWORLD)
    qpos, qvel = d.qpos.clone().requires_grad_(), d.qvel.clone().requires_grad_()
    end = d.replace(qpos=qpos, qvel=qvel)
    for _ in range(3):
        end = mjt.step(mjt.Model(m.topology, params), end)
    (end.qvel.square().sum() + end.qpos.sum()).backward()
    for x in (params, qpos, qvel):
        assert x.grad.isfinite().all() and x.grad.any()


@BOTH
def test_compiled_and_mapped_steps_are_the_same(integrator: str) -> None:
    """One graph without a break, and ``vmap`` over worlds."""
    mjm = load(SMALL, integrator)
    m = mjt.put_model(mjm, dtype=torch.float64)
    d = mjt.put_data(m, fast_states(mjm))
    eager = mjt.step(m, d)
    compiled = torch.compile(mjt.step, backend="aot_eager", fullgraph=True)(m, d)
    mapped = torch.vmap(lambda world: mjt.step(m, world))(d)
    for other in (compiled, mapped):
        torch.testing.assert_close(other.qvel, eager.qvel, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(other.qpos, eager.qpos, rtol=1e-12, atol=1e-12)


@BOTH
def test_a_model_without_joints(integrator: str) -> None:
    mjm = load("<mujoco><worldbody><geom size='1'/></worldbody></mujoco>", integrator)
    m = mjt.put_model(mjm, dtype=torch.float64)
    assert float(mjt.step(m, mjt.make_data(m)).time) == pytest.approx(mjm.opt.timestep)


def test_other_integrators_are_named() -> None:
    """An error, as in C."""
    euler = mujoco.MjModel.from_xml_string(ARMS)
    m = mjt.put_model(euler, dtype=torch.float64)
    with pytest.raises(mjt.ArgumentError, match="integrator of the model is euler"):
        mjt.implicit(m, mjt.forward(m, mjt.make_data(m, 2)))
