"""Mocap bodies stand where the state says, and carry what is attached to them, as in MuJoCo C."""

import functools

import mujoco
import numpy as np
import pytest
import torch

import mujoco_torch as mjt
from mujoco_torch import testing

NWORLD = 4
STAGES = (
    "kinematics",
    "com_pos",
    "camlight",
    "collision",
    "fwd_position",
    "fwd_velocity",
    "forward",
    "euler",
    "step",
)

PUPPETS = """
<mujoco model="puppets">
  <option timestep="0.003"/>
  <worldbody>
    <geom name="floor" type="plane" size="3 3 0.1"/>
    <camera name="eye" pos="0 -2 1" mode="targetbody" target="shelf"/>
    <body name="ball" pos="0 0.05 0.44">
      <freejoint/>
      <geom name="ball" size="0.1"/>
    </body>
    <body name="hand" mocap="true" pos="0 0.05 0.3" quat="0.9 0.1 0.3 -0.2">
      <inertial pos="0.1 0 0" mass="0.3" diaginertia="0.1 0.1 0.1"/>
      <geom name="palm" type="capsule" size="0.05 0.2"/>
      <site name="grip" pos="0.05 0 0"/>
      <camera name="wrist" pos="0.1 0 0"/>
      <light name="lamp" pos="0 0 0.2" dir="1 0 -1"/>
      <body name="shelf" pos="0.1 0 0.2" euler="0 30 0">
        <geom name="shelf" size="0.08"/>
        <body name="pendulum" pos="0 0.1 0" euler="20 0 0">
          <joint name="swing" axis="1 0 0" damping="0.01" stiffness="0.3" range="-40 40" limited="true"/>
          <joint name="turn" type="ball" pos="0 0 0.05"/>
          <geom name="bob" type="capsule" size="0.04" fromto="0 0 0 0 0.1 -0.3"/>
          <body name="welded" pos="0 0.1 -0.3"><geom name="weight" size="0.06"/></body>
        </body>
      </body>
    </body>
    <body name="log" pos="0.1 0 0.2">
      <joint name="slide" type="slide" axis="1 0 0.2"/>
      <geom name="log" type="capsule" size="0.06 0.2" euler="90 0 0"/>
    </body>
    <body name="second" mocap="true" pos="0.3 0 0.2"><geom name="second" size="0.1"/></body>
  </worldbody>
  <contact>
    <pair geom1="palm" geom2="second"/>
    <pair geom1="palm" geom2="floor"/>
    <exclude body1="log" body2="second"/>
  </contact>
  <actuator><motor joint="swing" gear="0.1"/><motor joint="slide"/></actuator>
</mujoco>
"""


@functools.cache
def load() -> mujoco.MjModel:
    return mujoco.MjModel.from_xml_string(PUPPETS)


@functools.cache
def states() -> list[mujoco.MjData]:
    """Mocap bodies elsewhere in every world, with quaternions of any length; a zero one is the identity."""
    mjm = load()
    rng = np.random.default_rng(5)
    mjds = testing.perturbed_states(mjm, NWORLD, seed=5, settle=20)
    for mjd, length in zip(mjds, (1.0, 0.3, 2.0, 0.0), strict=True):
        mjd.mocap_pos += 0.05 * rng.standard_normal((mjm.nmocap, 3))
        mjd.mocap_quat[0] = length * (np.array([1.0, 0, 0, 0]) + 0.3 * rng.standard_normal(4))
    return mjds


@pytest.mark.parametrize("stage", STAGES)
def test_stage(stage: str) -> None:
    testing.stage_parity(load(), stage, states()).raise_for_failures()


def test_worlds_touch_mocap_bodies() -> None:
    """Otherwise the contacts would be compared on nothing."""
    touching = 0
    for state in states():
        mjd = testing.copy_state(load(), state)
        mujoco.mj_forward(load(), mjd)
        bodies = load().geom_bodyid[np.array(mjd.contact.geom)]
        touching += int((load().body_mocapid[bodies] >= 0).any(axis=1).sum())
    assert touching >= 4


@pytest.mark.parametrize("integrator", ["Euler", "RK4"])
def test_twenty_steps_of_a_moving_hand(integrator: str) -> None:
    """The user moves the body before every step; it keeps its place within the stages of RK4."""
    mjm = mujoco.MjModel.from_xml_string(PUPPETS.replace("<option", f'<option integrator="{integrator}"'))
    mjm = testing.converged(mjm)
    m = mjt.put_model(mjm, dtype=torch.float64)
    mjds = [testing.copy_state(mjm, state) for state in states()]
    d = mjt.put_data(m, mjds)
    for i in range(20):
        move = torch.tensor([0.002 * np.sin(i), 0.001, -0.002], dtype=torch.float64)
        d = mjt.step(m, d.replace(mocap_pos=d.mocap_pos + move))
        for mjd in mjds:
            mjd.mocap_pos += move.numpy()
            mujoco.mj_step(mjm, mjd)
    testing.compare(m, d, mjds, testing.STATE_FIELDS, 1e-6).raise_for_failures()


def test_children_follow_in_each_world_by_itself() -> None:
    """A body moved in one world moves what is fixed to it there, and nothing in the other world."""
    m = mjt.put_model(load(), dtype=torch.float64)
    d = mjt.make_data(m, 2)
    before = mjt.forward(m, d)
    shift = torch.zeros_like(d.mocap_pos)
    shift[0, 0] = torch.tensor([0.3, -0.2, 0.1])
    after = mjt.forward(m, d.replace(mocap_pos=d.mocap_pos + shift))
    moved = after.xpos - before.xpos
    ids = [load().body(name).id for name in ("hand", "shelf", "pendulum", "welded")]
    torch.testing.assert_close(moved[0, ids], shift[0, 0].expand(4, 3))
    ids = [load().body(name).id for name in ("ball", "log", "second")]
    assert (moved[0, ids] == 0).all() and (moved[1] == 0).all()


ARM = """
<mujoco>
  <worldbody>
    {first}
    <body pos="0 0 1">
      <joint name="a" axis="0 1 0" damping="0.1" stiffness="1"/>
      <geom type="capsule" size="0.04" fromto="0 0 0 0.3 0 0"/>
      <body pos="0.3 0 0">
        <joint name="b" type="ball"/>
        <geom type="capsule" size="0.04" fromto="0 0 0 0.3 0 0"/>
      </body>
    </body>
    {last}
  </worldbody>
  <actuator><position joint="a" kp="3"/><motor joint="b" gear="0.1 0.2 0.3"/></actuator>
</mujoco>
"""
BYSTANDER = '<body name="bystander" mocap="true" pos="5 5 5"><geom size="0.1"/></body>'


@pytest.mark.parametrize("place", ["first", "last"])
def test_an_unrelated_mocap_body_changes_nothing(place: str) -> None:
    """Neither forces nor motion, wherever in the tree it is (issue 2606 of MuJoCo)."""
    alone = mujoco.MjModel.from_xml_string(ARM.format(first="", last=""))
    beside = mujoco.MjModel.from_xml_string(ARM.format(**{"first": "", "last": ""} | {place: BYSTANDER}))
    results = []
    for mjm in (alone, beside):
        m = mjt.put_model(mjm, dtype=torch.float64)
        d = mjt.make_data(m, 3)
        ramp = torch.arange(3.0, dtype=torch.float64)[:, None]
        d = d.replace(qvel=0.1 * ramp + d.qvel, ctrl=ramp.expand(3, m.nu).clone())
        if m.nmocap:
            d = d.replace(mocap_pos=d.mocap_pos + ramp[..., None])
        results.append(mjt.step(m, d, 5))
    for field in ("qpos", "qvel"):
        torch.testing.assert_close(
            getattr(results[0], field), getattr(results[1], field), rtol=1e-13, atol=1e-13
        )
    forces = [
        mjt.forward(mjt.put_model(mjm, dtype=torch.float64), r).qfrc_actuator
        for mjm, r in zip((alone, beside), results, strict=True)
    ]
    torch.testing.assert_close(*forces, rtol=1e-13, atol=1e-13)


def test_no_joint_moves_a_mocap_body() -> None:
    """Jacobians of the body and of what is welded to it are zero; what hangs on it has its own joints only."""
    m = mjt.put_model(load(), dtype=torch.float64)
    d = mjt.forward(m, mjt.put_data(m, states()))
    for name in ("hand", "shelf", "second"):
        body = load().body(name).id
        for jacobian in mjt.jac(m, d, d.xpos[:, body], body):
            assert (jacobian == 0).all()
    body = load().body("welded").id
    jacobian, _ = mjt.jac(m, d, d.xpos[:, body], body)
    for world, state in enumerate(states()):
        mjd = testing.copy_state(load(), state)
        mujoco.mj_forward(load(), mjd)
        expected = np.zeros((3, load().nv))
        mujoco.mj_jac(load(), mjd, expected, None, mjd.xpos[body], body)
        np.testing.assert_allclose(jacobian[world].numpy().T, expected, atol=1e-12)


def test_reset_of_one_world_restores_its_mocap_bodies() -> None:
    """The mocap poses are state: a world put back to a fresh one goes on as a fresh one."""
    m = mjt.put_model(load(), dtype=torch.float64)
    fresh = mjt.make_data(m, NWORLD)
    d = mjt.step(m, mjt.put_data(m, states()), 3)
    mask = torch.tensor([True, False, False, False])
    reset = torch.where(mask, fresh, d)
    torch.testing.assert_close(mjt.step(m, reset).qpos[0], mjt.step(m, fresh).qpos[0], rtol=1e-12, atol=1e-12)
    assert (mjt.step(m, reset).mocap_pos[0] == fresh.mocap_pos[0]).all()


def test_state_goes_in_and_out() -> None:
    m = mjt.put_model(load(), dtype=torch.float64)
    d = mjt.put_data(m, states())
    back = [mujoco.MjData(load()) for _ in range(NWORLD)]
    mjt.get_data_into(back, m, d)
    for mjd, state in zip(back, states(), strict=True):
        np.testing.assert_array_equal(mjd.mocap_pos, state.mocap_pos)
        np.testing.assert_array_equal(mjd.mocap_quat, state.mocap_quat)


def test_gradient_by_the_pose_of_a_hand() -> None:
    """Against finite differences, and finite where the quaternion is zero."""
    m = mjt.put_model(load(), dtype=torch.float64)
    d = mjt.put_data(m, states()[:1])

    def run(pos, quat):
        moved = mjt.kinematics(m, d.replace(mocap_pos=pos, mocap_quat=quat))
        return moved.xpos, moved.xmat, moved.geom_xpos

    inputs = d.mocap_pos.clone().requires_grad_(), d.mocap_quat.clone().requires_grad_()
    assert torch.autograd.gradcheck(run, inputs)
    zero = torch.zeros_like(d.mocap_quat).requires_grad_()
    moved = mjt.step(m, d.replace(mocap_pos=inputs[0], mocap_quat=zero))
    grads = torch.autograd.grad(moved.qvel.square().sum(), (inputs[0], zero))
    assert all(torch.isfinite(grad).all() for grad in grads)


def test_float32() -> None:
    testing.float32_parity(load(), states()).raise_for_failures()


def test_compiled_in_one_graph_and_mapped() -> None:
    m = mjt.put_model(load(), dtype=torch.float64)
    d = mjt.put_data(m, states())
    eager = mjt.step(m, d)
    compiled = torch.compile(mjt.step, backend="aot_eager", fullgraph=True)(m, d)
    mapped = torch.vmap(lambda d: mjt.step(m, d))(d)
    for field in ("qpos", "qvel", "xpos", "mocap_pos"):
        for other in (compiled, mapped):
            torch.testing.assert_close(getattr(other, field), getattr(eager, field), rtol=1e-12, atol=1e-12)
