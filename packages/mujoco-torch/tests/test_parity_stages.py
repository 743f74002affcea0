"""Every stage function against MuJoCo C's own, on the same inputs, batches of different worlds."""

import functools

import mujoco
import numpy as np
import pytest
import torch

import mujoco_torch as mjt
from mujoco_torch import testing

NWORLD = 4

CHAINS = """
<mujoco model="chains">
  <option timestep="0.004" gravity="0.1 0.2 -0.6"/>
  <worldbody>
    <camera name="still" pos="1 2 3" xyaxes="1 0 0 0 0.6 0.8"/>
    <camera name="at-arm" pos="0 -2 1" mode="targetbody" target="arm"/>
    <camera name="at-com" pos="0 2 1" mode="targetbodycom" target="trunk"/>
    <light name="still" pos="0 0 3" dir="0.2 0 -1"/>
    <light name="at-arm" pos="0 1 3" mode="targetbody" target="arm"/>
    <body name="trunk" pos="0 0 1" quat="0.9 0.1 -0.3 0.2">
      <freejoint name="root"/>
      <inertial pos="0.02 -0.03 0.05" quat="0.8 0.3 0.1 -0.4" mass="2.5" diaginertia="0.03 0.02 0.015"/>
      <camera name="track" pos="0 -1 0.4" mode="track"/>
      <camera name="trackcom" pos="0 -1 0.4" mode="trackcom"/>
      <camera name="eye" pos="0.1 0 0" euler="10 20 30"/>
      <light name="track" pos="0 0 1" mode="track"/>
      <light name="trackcom" pos="0 0 1" mode="trackcom"/>
      <light name="lamp" pos="0.1 0 0" dir="1 0 -0.2"/>
      <geom type="capsule" size="0.05" fromto="-0.1 0 0 0.2 0 0" contype="0" conaffinity="0"/>
      <site name="imu" pos="0.05 0.02 0" quat="0.5 0.5 -0.5 0.5"/>
      <body name="arm" pos="0.2 0.05 0" euler="0 30 40">
        <joint name="shoulder" type="ball" pos="0.01 0 -0.02" range="0 40" limited="true" damping="0.3"
          stiffness="2" armature="0.01"/>
        <geom type="box" size="0.04 0.03 0.1" pos="0 0 -0.1" euler="5 10 15" contype="0" conaffinity="0"/>
        <body name="forearm" pos="0 0 -0.25">
          <joint name="elbow-x" axis="1 0.2 0" range="-20 25" limited="true" stiffness="3" springref="15"/>
          <joint name="elbow-y" axis="0 1 0" pos="0 0 0.05" ref="10" damping="0.2"/>
          <joint name="extend" type="slide" axis="0.1 0 1" range="-0.02 0.03" limited="true" margin="0.01"
            stiffness="50" damping="1" armature="0.05" solreflimit="0.03 0.8"
            solimplimit="0.8 0.93 0.01 0.4 3"/>
          <geom type="ellipsoid" size="0.03 0.04 0.12" pos="0 0 -0.1" contype="0" conaffinity="0"/>
          <body name="hand" pos="0 0.02 -0.2" quat="0.7 0.1 0.6 0.2">
            <geom type="sphere" size="0.04" contype="0" conaffinity="0"/>
            <site name="palm" pos="0 0 -0.04"/>
          </body>
        </body>
      </body>
      <body name="tail" pos="-0.15 0 0.02">
        <joint name="tail" axis="0 1 1" damping="0.1" armature="0.002" range="-30 30" limited="true"/>
        <geom type="cylinder" size="0.02 0.1" pos="-0.1 0 0" contype="0" conaffinity="0"/>
      </body>
    </body>
    <body name="pendulum" pos="1 0 2">
      <joint name="swing" type="ball" pos="0 0 0.1" damping="0.05" stiffness="1"/>
      <geom type="capsule" size="0.03" fromto="0 0 0 0.05 0 -0.3" contype="0" conaffinity="0"/>
      <body name="weight" pos="0.05 0 -0.3">
        <joint name="rail" type="slide" axis="1 0 0" stiffness="20" damping="0.5"/>
        <joint name="spin" type="hinge" axis="0 0 1" damping="0.01" range="-90 80" limited="true"
          margin="0.3"/>
        <geom type="sphere" size="0.06" pos="0.02 0 0" contype="0" conaffinity="0"/>
        <body name="bell" pos="0 0 -0.1">
          <joint name="tilt" type="ball" range="0 25" limited="true" margin="0.1" stiffness="0.5"/>
          <geom type="capsule" size="0.03" fromto="0 0 0 0.02 0 -0.2" contype="0" conaffinity="0"/>
        </body>
      </body>
    </body>
  </worldbody>
  <actuator>
    <motor name="ball" joint="shoulder" gear="0.1 0.05 -0.2"/>
    <motor name="ball-parent" jointinparent="shoulder" gear="0.1 0.05 -0.2" ctrllimited="true"
      ctrlrange="-1 0.5"/>
    <motor name="root" joint="root" gear="1 2 3 0.01 0.02 0.03"/>
    <motor name="root-parent" jointinparent="root" gear="1 -2 -3 0.01 0.02 -0.03"/>
    <position name="servo" joint="elbow-x" kp="20" kv="0.3" forcelimited="true" forcerange="-3 2"/>
    <velocity name="speed" joint="elbow-y" kv="0.2" gear="-1.5"/>
    <general name="affine" joint="extend" gaintype="affine" gainprm="3 1 0.5" biastype="affine"
      biasprm="0.1 -5 -0.3" gear="2"/>
    <motor name="spin" joint="spin" gear="0.04" ctrllimited="true" ctrlrange="-0.5 1"/>
    <motor name="spin-too" joint="spin" gear="-0.03"/>
  </actuator>
</mujoco>
"""

CLAMPED_JOINT = """
<mujoco model="clamped-joint">
  <worldbody>
    <body pos="0 0 1">
      <joint name="a" axis="0 1 0" actuatorfrclimited="true" actuatorfrcrange="-1 0.5"/>
      <geom type="capsule" size="0.05" fromto="0 0 0 0.3 0 0" contype="0" conaffinity="0"/>
      <body pos="0.3 0 0">
        <joint name="b" axis="0 0 1"/>
        <geom type="capsule" size="0.05" fromto="0 0 0 0.3 0 0" contype="0" conaffinity="0"/>
      </body>
    </body>
  </worldbody>
  <actuator>
    <motor joint="a" gear="3"/>
    <position joint="a" kp="5"/>
    <motor joint="b"/>
  </actuator>
</mujoco>
"""

PILE = """
<mujoco model="pile">
  <option timestep="0.003" impratio="2"/>
  <default>
    <geom friction="0.8 0.02 0.003"/>
  </default>
  <worldbody>
    <geom name="floor" type="plane" size="3 3 0.1" solref="0.03 0.9" condim="1"/>
    <geom name="ramp" type="plane" size="2 2 0.1" pos="0.5 0 -0.1" euler="0 -15 0" margin="0.01"/>
    <geom name="post" type="capsule" size="0.08" fromto="0.2 0.3 0 0.2 0.3 0.5" condim="4"/>
    <body name="ball" pos="0 0 0.12">
      <freejoint/>
      <geom name="ball" type="sphere" size="0.1" condim="6" margin="0.02" gap="0.01" solmix="2"/>
    </body>
    <body name="log" pos="0.05 0 0.3" euler="90 10 0">
      <freejoint/>
      <geom name="log" type="capsule" size="0.06 0.2" condim="4" priority="1" solimp="0.85 0.97 0.004 0.5 2"/>
    </body>
    <body name="twin" pos="0.05 0.02 0.42" euler="90 12 0">
      <freejoint/>
      <geom name="twin" type="capsule" size="0.05 0.15" friction="1.2 0.01 0.001"/>
      <body name="knob" pos="0 0.09 0.1">
        <joint name="knob" axis="1 0 0" range="-40 40" limited="true" stiffness="1" damping="0.05"/>
        <geom name="knob" type="sphere" size="0.05" condim="1" solref="-500 -20"/>
      </body>
    </body>
    <body name="cross" pos="0.1 0.3 0.1">
      <freejoint/>
      <geom name="bar-x" type="capsule" size="0.04" fromto="-0.2 0 0 0.2 0 0"/>
      <geom name="bar-y" type="capsule" size="0.04" fromto="0 -0.2 0 0 0.2 0" condim="6"/>
    </body>
    <body name="ghost" pos="-0.1 0.1 0.1">
      <freejoint/>
      <geom name="ghost" type="sphere" size="0.1" contype="2" conaffinity="2"/>
    </body>
  </worldbody>
  <contact>
    <exclude body1="ball" body2="cross"/>
    <pair geom1="ghost" geom2="floor" condim="6" friction="0.5 0.7 0.01 0.002 0.003" margin="0.01"/>
    <pair geom1="log" geom2="ball" condim="3" friction="1 0.3 0.01 0.001 0.001" solref="0.05 1"
      solreffriction="0.04 0.7" gap="0.002"/>
  </contact>
</mujoco>
"""

TUMBLER = PILE.replace('model="pile"', 'model="tumbler"').replace("<option", '<option integrator="RK4"')

SPINNERS = """
<mujoco model="spinners">
  <option integrator="RK4" timestep="0.01"/>
  <worldbody>
    <body name="anchored">
      <joint name="ball" type="ball"/>
      <inertial pos="0.1 0.02 -0.05" mass="1" diaginertia="1 2 2.5"/>
    </body>
    <body name="flying">
      <freejoint name="free"/>
      <inertial pos="0 0 0" mass="2" diaginertia="0.3 0.2 0.15"/>
    </body>
  </worldbody>
</mujoco>
"""

PROBES = {"chains": CHAINS, "clamped-joint": CLAMPED_JOINT, "pile": PILE, "tumbler": TUMBLER}
ALL_MODELS = (*mjt.MODELS, *PROBES)

SOLVED_STAGES = [name for name, stage in testing.STAGES.items() if stage.solves]


@functools.cache
def load(name: str) -> mujoco.MjModel:
    if name in PROBES:
        return mujoco.MjModel.from_xml_string(PROBES[name])
    return mujoco.MjModel.from_xml_path(str(mjt.model_path(name)))


@functools.cache
def states(name: str) -> list[mujoco.MjData]:
    return testing.perturbed_states(load(name), NWORLD, seed=1)


def flagged(mjm: mujoco.MjModel, flag: str) -> mujoco.MjModel:
    mjm = testing.converged(mjm)
    mjm.opt.disableflags |= int(getattr(mujoco.mjtDisableBit, f"mjDSBL_{flag}"))
    return mjm


@pytest.mark.parametrize("stage", testing.STAGES)
@pytest.mark.parametrize("name", ALL_MODELS)
def test_stage(name: str, stage: str) -> None:
    testing.stage_parity(load(name), stage, states(name)).raise_for_failures()


@pytest.mark.parametrize("name", ALL_MODELS)
def test_worlds_are_in_contact_or_at_limits(name: str) -> None:
    """The states exercise the rows: without any, the solver would pass unseen."""
    if name == "clamped-joint":
        pytest.skip("a model without rows")
    mjds = [testing.copy_state(load(name), state) for state in states(name)]
    for mjd in mjds:
        mujoco.mj_forward(load(name), mjd)
    assert sum(mjd.nefc > 0 for mjd in mjds) >= 2
    assert len({mjd.nefc for mjd in mjds}) >= 2


@pytest.mark.parametrize(
    "flag",
    [
        "CONSTRAINT", "LIMIT", "CONTACT", "SPRING", "DAMPER", "GRAVITY", "CLAMPCTRL", "WARMSTART",
        "FILTERPARENT", "ACTUATION", "REFSAFE", "EULERDAMP", "EQUALITY", "FRICTIONLOSS", "SENSOR",
        "MIDPHASE", "NATIVECCD", "ISLAND", "AUTORESET", "MULTICCD",
    ],
)  # fmt: skip
@pytest.mark.parametrize("name", ["chains", "pile"])
def test_disable_flag(name: str, flag: str) -> None:
    mjm = flagged(load(name), flag)
    testing.stage_parity(mjm, "forward", states(name)).raise_for_failures()
    testing.stage_parity(mjm, "step", states(name)).raise_for_failures()


@pytest.mark.parametrize("name", ["chains", "pile", "humanoid"])
def test_unnormalised_quaternions(name: str) -> None:
    """C normalises the quaternions of qpos where it uses them; an all-zero one counts as the identity."""
    mjm = load(name)
    scaled = [testing.copy_state(mjm, state) for state in states(name)]
    for world, mjd in enumerate(scaled):
        for joint in range(mjm.njnt):
            kind = mjm.jnt_type[joint]
            if kind in (mujoco.mjtJoint.mjJNT_FREE, mujoco.mjtJoint.mjJNT_BALL):
                offset = 3 if kind == mujoco.mjtJoint.mjJNT_FREE else 0
                start = mjm.jnt_qposadr[joint] + offset
                mjd.qpos[start : start + 4] *= (0.5, 1.7, 3.0, 0.0)[world]
    testing.stage_parity(mjm, "forward", scaled).raise_for_failures()
    testing.stage_parity(mjm, "step", scaled).raise_for_failures()


def test_rungekutta4_turns_far_within_a_step() -> None:
    """Up to more than a full turn per step, where the correction for rotations no longer is a short series."""
    mjm = mujoco.MjModel.from_xml_string(SPINNERS)
    axes = np.array([[1.0, 0.5, -0.7], [-0.3, 0.8, 0.6]])
    spinning = []
    for turn in (0.0, 1e-4, 0.1, 0.5, 1.0, 2.5, 3.5, 5.0, 7.0):
        mjd = mujoco.MjData(mjm)
        rates = turn / mjm.opt.timestep * axes / np.linalg.norm(axes, axis=1, keepdims=True)
        mjd.qvel[0:3], mjd.qvel[6:9] = rates
        spinning.append(mjd)
    for mjd in spinning:
        testing.stage_parity(mjm, "step", [mjd]).raise_for_failures()
    report = testing.stage_parity(mjm, "step", spinning[:6])
    assert report["qpos"].error <= testing.SMOOTH


@pytest.mark.parametrize("name", ALL_MODELS)
def test_float32(name: str) -> None:
    testing.float32_parity(load(name), states(name)).raise_for_failures()


@pytest.mark.parametrize("name", ALL_MODELS)
def test_step_with_the_options_of_the_model(name: str) -> None:
    """Few iterations and a loose tolerance: ours stops where C's does, to the tolerance of the solve."""
    mjm = load(name)
    m = mjt.put_model(mjm, dtype=torch.float64)
    d = mjt.step(m, mjt.put_data(m, states(name)))
    mjds = [testing.copy_state(mjm, state) for state in states(name)]
    for mjd in mjds:
        mujoco.mj_step(mjm, mjd)
    testing.compare(m, d, mjds, testing.STATE_FIELDS, testing.SOLVED).raise_for_failures()


@pytest.mark.parametrize("stage", ["forward", "step"])
@pytest.mark.parametrize("name", ["humanoid", "pile"])
def test_input_is_not_changed(name: str, stage: str) -> None:
    mjm = load(name)
    m = mjt.put_model(mjm, dtype=torch.float64)
    d = mjt.put_data(m, states(name))
    before = d.clone()
    getattr(mjt, stage)(m, d)
    assert (before == d).all()


@pytest.mark.parametrize("name", ["humanoid", "walker2d", "pile"])
def test_single_world_is_a_world_of_the_batch(name: str) -> None:
    mjm = load(name)
    m = mjt.put_model(mjm, dtype=torch.float64)
    batch = mjt.step(m, mjt.put_data(m, states(name)))
    for world, state in enumerate(states(name)):
        alone = mjt.step(m, mjt.put_data(m, state))
        assert alone.batch_size == ()
        torch.testing.assert_close(alone.qvel, batch.qvel[world], rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(alone.qpos, batch.qpos[world], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", ["pile", "humanoid"])
def test_worlds_do_not_depend_on_their_order(name: str) -> None:
    mjm = load(name)
    m = mjt.put_model(mjm, dtype=torch.float64)
    forth = mjt.forward(m, mjt.put_data(m, states(name)))
    back = mjt.forward(m, mjt.put_data(m, states(name)[::-1]))
    torch.testing.assert_close(forth.qacc, back.qacc.flip(0), rtol=1e-9, atol=1e-9)
