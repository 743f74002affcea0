"""Lengths, velocities and moments of every transmission, and set points on the circle, against MuJoCo C."""

import functools

import mujoco
import numpy as np
import pytest
import torch

import mujoco_torch as mjt
from mujoco_torch import testing
from mujoco_torch._src.transmission import wrap_setpoint

NWORLD = 6

ARM = """
<mujoco model="arm">
  <worldbody>
    <site name="base" pos="0.1 -0.2 0.3" quat="0.7 0.1 -0.4 0.3"/>
    <body name="mount" pos="0.2 0 0.1" euler="10 20 30">
      <site name="mount" pos="0 0.1 0" euler="40 0 10"/>
    </body>
    <body name="torso" pos="0 0 1" quat="0.9 0.1 -0.3 0.2">
      <freejoint name="root"/>
      <geom size="0.1 0.2 0.15" type="ellipsoid" contype="0" conaffinity="0"/>
      <site name="torso" pos="0.05 0.02 -0.03" quat="0.5 0.5 -0.5 0.5"/>
      <site name="torso-too" pos="-0.05 0.1 0.2" euler="20 -50 0"/>
      <body name="upper" pos="0.2 0.05 0" euler="0 30 40">
        <joint name="shoulder" type="ball" pos="0.01 0 -0.02" damping="0.3"/>
        <geom type="capsule" size="0.04 0.1" pos="0 0 -0.1" contype="0" conaffinity="0"/>
        <site name="upper" pos="0 0.03 -0.1" quat="0.3 0.2 0.8 0.4"/>
        <body name="lower" pos="0 0 -0.25">
          <joint name="elbow" axis="1 0.2 0"/>
          <geom type="capsule" size="0.03 0.1" pos="0 0.02 -0.1" contype="0" conaffinity="0"/>
          <body name="glove" pos="0 0 -0.2" euler="5 6 7">
            <geom size="0.04" contype="0" conaffinity="0"/>
            <site name="hand" pos="0.01 -0.02 -0.04" quat="0.8 0.2 -0.3 0.4"/>
          </body>
        </body>
      </body>
      <body name="tail" pos="-0.15 0 0.02">
        <joint name="tail" axis="0 1 1"/>
        <joint name="rail" type="slide" axis="0.1 1 0"/>
        <geom type="capsule" size="0.02 0.1" pos="-0.1 0 0" contype="0" conaffinity="0"/>
        <site name="tail" pos="-0.2 0 0.01" quat="0.5 0.2 -0.3 0.4"/>
      </body>
    </body>
    <body name="other" pos="1 0 0.5">
      <joint name="swing" type="ball"/>
      <geom size="0.05" pos="0 0.02 -0.2" contype="0" conaffinity="0"/>
      <site name="other" pos="0.02 0 -0.2" euler="30 60 10"/>
    </body>
  </worldbody>
  <actuator>
    {actuators}
  </actuator>
</mujoco>
"""

SITES = """
    <motor joint="elbow" gear="1.5"/>
    <motor site="hand" gear="1 -2 0.5 0.3 0.5 -0.7"/>
    <motor site="torso" gear="0 0 2"/>
    <motor site="mount" gear="1 2 3 0.1 0 0"/>
    <motor jointinparent="shoulder" gear="0.2 -0.1 0.4"/>
    <motor joint="swing" gear="0.3 0.1 0.2"/>
    <motor site="tail" gear="0 0 0 0 0.4 0"/>
"""

REFSITES = """
    <general site="hand" refsite="torso" gear="1 2 3 0 0 0"/>
    <motor joint="tail" gear="-2"/>
    <general site="hand" refsite="tail" gear="0 0 0 0.3 0.5 -0.7"/>
    <general site="hand" refsite="base" gear="1 -0.5 0.2 0.3 0.5 -0.7"/>
    <general site="torso" refsite="mount" gear="0 1 0"/>
    <general site="other" refsite="hand" gear="0.4 1 0.3 0 1 0"/>
    <general site="mount" refsite="upper" gear="0 0 0 0 0 1"/>
    <general site="mount" refsite="base" gear="1 2 3 1 2 3"/>
    <general site="torso" refsite="torso-too" gear="1 2 3 1 2 3"/>
    <position site="tail" refsite="torso-too" gear="0.5 0 1" kp="2"/>
"""

CRANKS = """
    <motor cranksite="hand" slidersite="torso" cranklength="0.3" gear="2"/>
    <motor cranksite="tail" slidersite="base" cranklength="3" gear="-0.5"/>
    <motor joint="rail" gear="0.7"/>
    <motor cranksite="other" slidersite="hand" cranklength="0.05"/>
    <motor cranksite="mount" slidersite="upper" cranklength="2"/>
    <motor cranksite="torso" slidersite="torso-too" cranklength="1"/>
    <motor cranksite="mount" slidersite="base" cranklength="1"/>
"""

ORIENTATIONS = """
    <position joint="elbow" kp="3"/>
    <orientation site="hand" refsite="tail" kp="2" kv="0.1"/>
    <orientation joint="shoulder" kp="3" input="quat"/>
    <motor site="hand" gear="0 1 0"/>
    <orientation joint="swing" kp="1"/>
    <orientation site="other" refsite="base" kp="1"/>
"""

GRIPPER = """
<mujoco model="gripper">
  <option timestep="0.003"/>
  <worldbody>
    <geom name="floor" type="plane" size="2 2 0.1" condim="1"/>
    <body name="wall" pos="0.33 0 0.1"><geom name="wall" size="0.1"/></body>
    <body name="shelf" pos="0 1 {shelf}"><geom name="shelf" size="0.1"/></body>
    <body name="cup" pos="0 0 0.15">
      <freejoint/>
      <geom name="cup" size="0.1" condim="6"/>
      <geom name="rim" size="0.08" pos="0.2 0 0" condim="4" margin="0.01" gap="0.15"/>
      <body name="handle" pos="-0.15 0 0"><geom name="handle" size="0.08" condim="3"/></body>
      <body name="finger" pos="0 0.2 0">
        <joint name="finger" axis="1 0 0" range="-60 60" limited="true"/>
        <geom name="finger" type="capsule" size="0.05" fromto="0 0 0 0 0.2 0" gap="0.1"/>
      </body>
    </body>
    <body name="ball" pos="0.1 0.2 0.35"><freejoint/><geom name="ball" size="0.1" gap="0.05"/></body>
  </worldbody>
  <contact>
    <pair geom1="cup" geom2="handle"/>
    <pair geom1="shelf" geom2="floor" gap="0.1"/>
  </contact>
  <actuator>
    <adhesion body="cup" gain="3" ctrlrange="0 1"/>
    <adhesion body="wall" gain="2" ctrlrange="0 1"/>
    <motor joint="finger" gear="0.1"/>
    <adhesion body="finger" gain="1" ctrlrange="0 1"/>
    <adhesion body="world" gain="2" ctrlrange="0 1"/>
    <adhesion body="handle" gain="2" ctrlrange="0 1"/>
    <adhesion body="ball" gain="1" ctrlrange="0 1"/>
    <adhesion body="shelf" gain="1" ctrlrange="0 1"/>
  </actuator>
</mujoco>
"""

SERVOS = """
    <position joint="swing" gear="0 0 1" kp="2"/>
    <position jointinparent="shoulder" gear="0.5 -2 1" kp="0.7" kv="0.1"/>
    <position joint="elbow" kp="3"/>
    <position site="hand" refsite="base" gear="0 0 0 0.3 0.5 -0.7" kp="1"/>
    <position site="hand" refsite="base" gear="0.1 0 0 0 0 1" kp="1"/>
    <general joint="swing" gear="1 0 0" gainprm="2" biastype="affine" biasprm="0.1 -1.9 0"/>
    <motor joint="swing" gear="1 0 0"/>
"""

TENDONS = ARM.replace(
    "  <actuator>",
    """  <tendon>
    <spatial name="free"><site site="hand"/><site site="torso"/><site site="tail"/></spatial>
    <fixed name="fixed"><joint joint="tail" coef="0.3"/><joint joint="elbow" coef="-2"/></fixed>
    <spatial name="split">
      <site site="upper"/><site site="hand"/><pulley divisor="2"/><site site="other"/><site site="tail"/>
    </spatial>
  </tendon>
  <actuator>""",
).format(
    actuators="""
    <motor tendon="split" gear="2"/>
    <motor joint="tail"/>
    <position tendon="fixed" gear="-0.5"/>
    <motor tendon="free"/>
    <motor tendon="fixed" gear="3"/>
    """
)
MODELS = {
    "sites": ARM.format(actuators=SITES),
    "refsites": ARM.format(actuators=REFSITES),
    "cranks": ARM.format(actuators=CRANKS),
    "gripper": GRIPPER.format(shelf=0.09),
    "gripper-shelf-in-gap": GRIPPER.format(shelf=0.12),
    "servos": ARM.format(actuators=SERVOS),
    "orientations": ARM.format(actuators=ORIENTATIONS),
    "tendons": TENDONS,
    "all": TENDONS.replace("<actuator>", "<actuator>" + SITES + REFSITES + CRANKS + ORIENTATIONS + SERVOS),
}
TRANSMISSION_FIELDS = ("actuator_length", "actuator_moment", "actuator_velocity", "qfrc_actuator")


@functools.cache
def load(xml: str) -> mujoco.MjModel:
    return mujoco.MjModel.from_xml_string(xml)


@functools.cache
def states(xml: str) -> list[mujoco.MjData]:
    """Worlds far apart: orientations all over the sphere."""
    return testing.perturbed_states(load(xml), NWORLD, seed=3, scale=4.0 if "arm" in xml else 0.5, settle=100)


def forwarded(mjm: mujoco.MjModel, mjds: list[mujoco.MjData]) -> list[mujoco.MjData]:
    """C's data of the states, after ``mj_forward``."""
    mjds = [testing.copy_state(mjm, mjd) for mjd in mjds]
    for mjd in mjds:
        mujoco.mj_forward(mjm, mjd)
    return mjds


def ours(name: str) -> tuple[mjt.Model, mjt.Data]:
    """Model and states of our own, float64."""
    m = mjt.put_model(load(MODELS[name]), dtype=torch.float64)
    return m, mjt.put_data(m, states(MODELS[name]))


@pytest.mark.parametrize("stage", ["transmission", "fwd_velocity", "fwd_actuation", "forward", "step"])
@pytest.mark.parametrize("name", MODELS)
def test_stage(name: str, stage: str) -> None:
    xml = MODELS[name]
    testing.stage_parity(load(xml), stage, states(xml)).raise_for_failures()


@pytest.mark.parametrize("name", ["all", "gripper"])
def test_float32(name: str) -> None:
    """Everything in float32 stays near C: 1e-4 of each field's largest value."""
    mjm = load(MODELS[name])
    m = mjt.put_model(mjm, dtype=torch.float32)
    d = mjt.forward(m, mjt.put_data(m, states(MODELS[name])))
    mjds = forwarded(mjm, states(MODELS[name]))
    for field in TRANSMISSION_FIELDS:
        expected = np.stack([testing.expected(mjm, mjd)[field] for mjd in mjds])
        scale = max(1.0, np.abs(expected).max())
        np.testing.assert_allclose(
            getattr(d, field).numpy(), expected, rtol=0, atol=1e-4 * scale, err_msg=field
        )


@pytest.mark.parametrize("name", ["all", "gripper"])
def test_compiled_step_equals_eager(name: str) -> None:
    m, d = ours(name)
    compiled = torch.compile(mjt.step, backend="aot_eager", fullgraph=True)(m, d)
    eager = mjt.step(m, d)
    for field in (*TRANSMISSION_FIELDS, "qpos", "qvel"):
        torch.testing.assert_close(getattr(compiled, field), getattr(eager, field), rtol=1e-10, atol=1e-10)


def test_mapped_step_equals_the_batch() -> None:
    m, d = ours("gripper")
    mapped, batch = torch.vmap(lambda d: mjt.forward(m, d))(d), mjt.forward(m, d)
    for field in TRANSMISSION_FIELDS:
        torch.testing.assert_close(getattr(mapped, field), getattr(batch, field), rtol=1e-10, atol=1e-10)


def test_the_states_are_on_both_sides_of_every_branch() -> None:
    """Cranks within and beyond the rod's reach; contacts that touch, in the gap, and of bodies that cannot move."""
    mjm, seen = load(MODELS["cranks"]), set()
    for mjd in forwarded(mjm, states(MODELS["cranks"])):
        pin, slider = mjm.actuator_trnid[0]
        v, axis = mjd.site_xpos[pin] - mjd.site_xpos[slider], mjd.site_xmat[slider].reshape(3, 3)[:, 2]
        seen.add(bool((axis @ v) ** 2 + mjm.actuator_cranklength[0] ** 2 > v @ v))
    assert seen == {True, False}
    exclusions = [
        c.exclude
        for mjd in forwarded(load(MODELS["gripper"]), states(MODELS["gripper"]))
        for c in mjd.contact
    ]
    assert set(exclusions) >= {0, 1, 3}


def test_opposite_quaternions_are_one_pose() -> None:
    m, d = ours("all")
    flipped = d.qpos.clone()
    for joint in range(load(MODELS["all"]).njnt):
        kind, start = (getattr(load(MODELS["all"]), f"jnt_{x}")[joint] for x in ("type", "qposadr"))
        if kind in (mujoco.mjtJoint.mjJNT_FREE, mujoco.mjtJoint.mjJNT_BALL):
            start += 3 * (kind == mujoco.mjtJoint.mjJNT_FREE)
            flipped[:, start : start + 4] *= -1
    there, here = mjt.forward(m, d.replace(qpos=flipped)), mjt.forward(m, d)
    for field in TRANSMISSION_FIELDS:
        torch.testing.assert_close(getattr(there, field), getattr(here, field), rtol=1e-12, atol=1e-12)


def test_length_of_a_site_in_a_reference_site() -> None:
    """Gear times position and rotation vector of the site in the frame of the reference site."""
    xml = """
    <mujoco><worldbody>
      <body pos="1 2 3" quat="0.8 0 0.6 0"><joint/><geom size="0.1"/><site name="a" quat="0.5 0.5 0.5 0.5"/></body>
      <site name="b" pos="0.5 0 0" quat="0.6 0.8 0 0"/>
    </worldbody><actuator><general site="a" refsite="b" gear="1 2 3 0.1 0.2 0.3"/></actuator></mujoco>
    """
    m = mjt.put_model(load(xml), dtype=torch.float64)
    d = mjt.forward(m, mjt.make_data(m))
    turn, into = np.zeros(3), np.array([0.6, -0.8, 0.0, 0.0])
    pos, site, relative = np.zeros(3), np.zeros(4), np.zeros(4)
    mujoco.mju_rotVecQuat(pos, np.array([0.5, 2.0, 3.0]), into)
    mujoco.mju_mulQuat(site, np.array([0.8, 0.0, 0.6, 0.0]), np.full(4, 0.5))
    mujoco.mju_mulQuat(relative, into, site)
    mujoco.mju_quat2Vel(turn, relative, 1.0)
    expected = pos @ [1, 2, 3] + turn @ [0.1, 0.2, 0.3]
    assert abs(float(d.actuator_length[0]) - expected) < 1e-12


def test_motors_of_two_branches_do_not_mix() -> None:
    """Two chains of two hinges with a motor each: every force goes to its own joint."""
    chain = """
      <body pos="{x} 0 1"><joint name="{n}0" axis="0 1 0"/><geom size="0.05" contype="0" conaffinity="0"/>
        <body pos="0 0 -0.3"><joint name="{n}1" axis="0 1 0"/><geom size="0.05" contype="0" conaffinity="0"/></body>
      </body>"""
    motors = "".join(
        f'<motor joint="{n}" gear="{g}"/>' for n, g in (("b1", 2), ("a0", 3), ("b0", 5), ("a1", 7))
    )
    world = chain.format(x=0, n="a") + chain.format(x=1, n="b")
    xml = f"<mujoco><worldbody>{world}</worldbody><actuator>{motors}</actuator></mujoco>"
    testing.stage_parity(load(xml), "forward", states(xml)).raise_for_failures()
    m = mjt.put_model(load(xml), dtype=torch.float64)
    d = mjt.forward(m, mjt.make_data(m).replace(ctrl=torch.ones(4, dtype=torch.float64)))
    assert d.qfrc_actuator.tolist() == [3.0, 7.0, 5.0, 2.0]


# --------------------------------------------------------------------------------------------- set points


@pytest.mark.parametrize("hinge", ["", "<joint/>"])
def test_length_of_a_tendon_that_no_joint_moves(hinge: str) -> None:
    """Of a tendon between a mocap body and the world: it has a length, and moves nothing."""
    mjm = mujoco.MjModel.from_xml_string(
        f"""<mujoco><worldbody><site name="a"/><body pos="0 0 1">{hinge}<geom size=".1"/></body>
        <body name="hand" mocap="true" pos="1 0 0"><site name="b"/></body></worldbody>
        <tendon><spatial name="t"><site site="a"/><site site="b"/></spatial></tendon>
        <actuator><general tendon="t" gear="2" dyntype="integrator"/></actuator></mujoco>"""
    )
    mjds = [mujoco.MjData(mjm) for _ in range(4)]
    for world, mjd in enumerate(mjds):
        mjd.mocap_pos[0, 1] = world
        mujoco.mj_forward(mjm, mjd)
    m = mjt.put_model(mjm, dtype=torch.float64)
    d = mjt.forward(m, mjt.put_data(m, mjds))
    expected = torch.tensor([2.0, 8**0.5, 20**0.5, 40**0.5], dtype=torch.float64)
    torch.testing.assert_close(d.actuator_length[:, 0], expected)
    torch.testing.assert_close(
        d.actuator_length, torch.tensor(np.array([mjd.actuator_length for mjd in mjds]))
    )
    assert not d.actuator_moment.any()


def test_set_points_wind_with_the_angle() -> None:
    """Controls of many turns: C's forces, wrapped on ball joints and turning sites only."""
    mjm = testing.converged(load(MODELS["servos"]))
    m, mjds = mjt.put_model(mjm, dtype=torch.float64), []
    for world, state in enumerate(states(MODELS["servos"])):
        mjds.append(testing.copy_state(mjm, state))
        mjds[-1].ctrl = np.linspace(-40, 30, mjm.nu) + 7 * world
    d = mjt.forward(m, mjt.put_data(m, mjds))
    for mjd in mjds:
        mujoco.mj_forward(mjm, mjd)
    testing.compare(m, d, mjds, ("actuator_force", "qfrc_actuator"), 1e-10).raise_for_failures()
    unwrapped = mjm.actuator_gainprm[:, 0] * (mjds[0].ctrl - mjds[0].actuator_length)
    wrapped = np.abs(mjds[0].actuator_force - unwrapped) > 1
    assert wrapped[:5].tolist() == [True, True, False, True, False]


def test_wrap_setpoint() -> None:
    """The nearest representative; half a turn away it is moved towards the length; without a period it is as given."""
    period = torch.tensor([[2.5], [0.0]], dtype=torch.float64)
    setpoint = torch.tensor([0.4, -0.4, 0.5, -0.5, 1.5, -1.5, 3.2, torch.inf], dtype=torch.float64) * 2.5
    setpoint = setpoint.expand(2, -1)
    wrapped = wrap_setpoint(period, setpoint, torch.zeros_like(setpoint))
    expected = torch.tensor([0.4, -0.4, -0.5, 0.5, -0.5, 0.5, 0.2], dtype=torch.float64) * 2.5
    torch.testing.assert_close(wrapped[0, :7], expected)
    assert torch.equal(wrapped[1], setpoint[1])


def test_gradient_of_a_wrapped_set_point_is_one() -> None:
    m, d = ours("servos")
    ctrl = (d.ctrl + 20).requires_grad_()
    force = mjt.forward(m, d.replace(ctrl=ctrl)).actuator_force
    (grad,) = torch.autograd.grad(force.sum(), ctrl)
    gain = torch.as_tensor(load(MODELS["servos"]).actuator_gainprm[:, 0])
    torch.testing.assert_close(grad, gain.expand_as(grad))


# --------------------------------------------------------------------------------------------- gradients


@pytest.mark.parametrize("name", ["all", "gripper"])
def test_gradients(name: str) -> None:
    """Of lengths and moments by position, against differences."""
    m, d = ours(name)
    d = d[1:2]

    def outputs(qpos: torch.Tensor) -> tuple[torch.Tensor, ...]:
        found = mjt.fwd_position(m, d.replace(qpos=qpos))
        return found.actuator_length, found.actuator_moment

    assert torch.autograd.gradcheck(outputs, d.qpos.clone().requires_grad_(), eps=1e-7, atol=1e-5)


STILL = """
<mujoco>
  <worldbody>
    <site name="here" pos="0 0 1"/>
    <body name="a" pos="0 0 1">
      <joint name="free" type="free"/><geom size="0.1" gap="0.1"/><site name="a"/>
      <body name="b" pos="0 0.3 0"><joint type="ball"/><geom size="0.1"/><site name="b" pos="0.4 0 0"/></body>
    </body>
    <geom type="plane" size="1 1 1" pos="0 0 -5"/>
  </worldbody>
  <actuator>
    <position site="a" refsite="here" gear="1 0 0 0 1 0"/>
    <position site="a" refsite="here" gear="0 0 0 0 1 0"/>
    <motor cranksite="a" slidersite="here" cranklength="0.2"/>
    <motor cranksite="b" slidersite="here" cranklength="0.5"/>
    <motor cranksite="b" slidersite="b" cranklength="0.1"/>
    <motor cranksite="b" slidersite="here" cranklength="0.1"/>
    <adhesion body="a" ctrlrange="0 1"/>
  </actuator>
</mujoco>
"""


def test_gradients_are_finite_where_formulas_are_singular() -> None:
    """Sites on one another, a rod that just reaches, one that does not, no contact."""
    m = mjt.put_model(load(STILL), dtype=torch.float64)
    d = mjt.make_data(m, NWORLD)
    qpos, qvel, ctrl = (getattr(d, name).clone().requires_grad_() for name in ("qpos", "qvel", "ctrl"))
    after = mjt.step(m, d.replace(qpos=qpos, qvel=qvel, ctrl=ctrl))
    total = after.actuator_length.sum() + after.actuator_moment.square().sum() + after.qvel.sum()
    for grad in torch.autograd.grad(total, (qpos, qvel, ctrl)):
        assert torch.isfinite(grad).all()
