"""Lengths, velocities and moments of every transmission, and set points on the circle, against MuJoCo C."""

import functools

import mujoco
import numpy as np
import pytest
import torch

import mujoco_torch as mjt
from mujoco_torch import testing
from mujoco_torch._src import topology
from mujoco_torch._src.structure.actuation import actuators
from mujoco_torch._src.transmission import wrap_setpoint
from mujoco_torch._src.types import InsideModel, Model

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
    <motor cranksite="hand" slidersite="torso" cranklength="1.5" gear="2"/>
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

MODELS = {
    "sites": ARM.format(actuators=SITES),
    "refsites": ARM.format(actuators=REFSITES),
    "cranks": ARM.format(actuators=CRANKS),
    "gripper": GRIPPER.format(shelf=0.09),
    "gripper-shelf-in-gap": GRIPPER.format(shelf=0.12),
    "servos": ARM.format(actuators=SERVOS),
}
ORIENTED = ARM.format(actuators=ORIENTATIONS)
TRANSMISSION_FIELDS = ("actuator_length", "actuator_moment", "actuator_velocity", "qfrc_actuator")


@functools.cache
def load(xml: str) -> mujoco.MjModel:
    return mujoco.MjModel.from_xml_string(xml)


@functools.cache
def states(xml: str) -> list[mujoco.MjData]:
    """Worlds far apart: orientations all over the sphere."""
    return testing.perturbed_states(load(xml), NWORLD, seed=3, scale=4.0 if "arm" in xml else 0.5, settle=100)


def unchecked_model(mjm: mujoco.MjModel) -> Model:
    """A model of which only what the actuators act on is simulated; it may have features that are refused."""
    structure, flat = topology.build(mjm)
    return Model(structure, torch.as_tensor(flat))


@pytest.mark.parametrize("stage", ["transmission", "fwd_velocity", "fwd_actuation", "forward", "step"])
@pytest.mark.parametrize("name", MODELS)
def test_stage(name: str, stage: str) -> None:
    xml = MODELS[name]
    testing.stage_parity(load(xml), stage, states(xml)).raise_for_failures()
