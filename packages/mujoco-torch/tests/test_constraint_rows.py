"""Rows of the constraint problem against MuJoCo C, row by row: equalities, friction losses, limits, contacts."""

import functools

import mujoco
import numpy as np
import pytest
import torch

import mujoco_torch as mjt
from mujoco_torch import testing

NWORLD = 4
ROWS = ("nefc", "efc_J", "efc_pos", "efc_D", "efc_vel", "efc_aref")

BODIES = """
<mujoco model="{name}">
  <option timestep="0.002" {option}>{flag}</option>
  <worldbody>
    <site name="wall" pos="0.1 -0.2 0.9" euler="10 20 30"/>
    <body name="static" pos="0.3 0.1 0.5" euler="0 30 0"><site name="shelf" pos="0 0.1 0"/></body>
    <body name="arm" pos="0 0 1">
      <joint name="shoulder" type="ball" pos="0 0.02 0" damping="0.1"/>
      <geom type="capsule" size="0.03" fromto="0 0 0 0.4 0 0.02" contype="0" conaffinity="0"/>
      <site name="wrist" pos="0.4 0.01 0" euler="15 0 40"/>
      <body name="forearm" pos="0.4 0 0" euler="0 0 20">
        <joint name="elbow" axis="0 1 0.2" ref="5"/>
        <joint name="extend" type="slide" axis="1 0 0.1" ref="0.05"/>
        <geom type="capsule" size="0.03" fromto="0 0 0 0.3 0 0" contype="0" conaffinity="0"/>
        <site name="hand" pos="0.3 0 0.02" quat="0.7 0.1 -0.6 0.3"/>
      </body>
    </body>
    <body name="box" pos="0.5 0.3 1.2" quat="0.9 0.1 0.3 -0.2">
      <freejoint/>
      <geom type="box" size="0.1 0.08 0.05" pos="0.01 0 0.02" contype="0" conaffinity="0"/>
      <site name="handle" pos="-0.1 0 0.05" euler="20 -30 5"/>
      <body name="lid" pos="0 0.08 0.05">
        <joint name="lid" axis="1 0 0"/>
        <geom type="box" size="0.1 0.08 0.01" pos="0 -0.05 0.02" contype="0" conaffinity="0"/>
      </body>
    </body>
    <body name="crank" pos="1 0 1">
      <joint name="crank" axis="0 1 0"/>
      <geom type="capsule" size="0.02" fromto="0 0 0 0.2 0 0" contype="0" conaffinity="0"/>
      <body name="rod" pos="0.2 0 0">
        <joint name="rod" axis="0 1 0"/>
        <geom type="capsule" size="0.02" fromto="0 0 0 0.3 0 0" contype="0" conaffinity="0"/>
      </body>
    </body>
  </worldbody>
  {rest}
</mujoco>
"""

EQUALITIES = {
    "connect-bodies": '<connect body1="arm" body2="box" anchor="0.3 0.1 0"/>',
    "connect-to-world": '<connect body1="rod" anchor="0.3 0 0.01" solref="0.03 0.8" solimp="0.8 0.97 0.1 0.4 3"/>',
    "connect-sites": '<connect site1="hand" site2="handle" solref="-800 -30"/>',
    "connect-site-to-world": '<connect site1="wall" site2="handle"/>',
    "connect-within-a-tree": '<connect body1="forearm" body2="arm" anchor="0.1 0 0.3"/>',
    "weld-bodies": '<weld body1="box" body2="arm" anchor="0.05 0.1 0" torquescale="0.7"/>',
    "weld-with-relpose": '<weld body1="rod" body2="box" relpose="0.1 0.2 0.3 0.8 0.1 -0.4 0.2" anchor="0.1 0 0"/>',
    "weld-to-world": '<weld body1="box" torquescale="2"/>',
    "weld-sites": '<weld site1="wrist" site2="handle" torquescale="1.3" solimp="0.8 0.8 0.01"/>',
    "weld-within-a-tree": '<weld site1="hand" site2="wrist"/>',
    "joint-alone": '<joint joint1="elbow" polycoef="0.2 5 6 7 8"/>',
    "joint-pair": '<joint joint1="extend" joint2="elbow" polycoef="0.1 -0.7 0.3 0.2 -0.5" solref="0.04 1"/>',
    "joint-of-trees": '<joint joint1="crank" joint2="lid" polycoef="0 1.5 0 0 0" solimp="0.7 0.9 0.2 0.5 1"/>',
}

MIXED = "".join(
    EQUALITIES[name]
    for name in (
        "joint-pair", "weld-bodies", "connect-sites", "joint-alone", "weld-sites", "connect-to-world", "joint-of-trees",
        "weld-to-world",
    )
)  # fmt: skip


def bodies(rest: str, option: str = "", flag: str = "") -> mujoco.MjModel:
    return mujoco.MjModel.from_xml_string(BODIES.format(name="rows", rest=rest, option=option, flag=flag))


def states(mjm: mujoco.MjModel, seed: int = 3) -> list[mujoco.MjData]:
    return testing.perturbed_states(mjm, NWORLD, seed, settle=20)


def advanced(mjm: mujoco.MjModel, mjds: list[mujoco.MjData]) -> list[mujoco.MjData]:
    """The states with everything that C computes of position and velocity."""
    for mjd in mjds:
        mujoco.mj_fwdPosition(mjm, mjd)
        mujoco.mj_fwdVelocity(mjm, mjd)
    return mjds


def rows_report(mjm: mujoco.MjModel, mjds: list[mujoco.MjData], rtol: float = testing.SMOOTH) -> testing.Report:
    """Rows made of C's poses and velocities, against C's rows."""
    m = mjt.put_model(mjm, dtype=torch.float64)
    given = mjt.put_data(m, advanced(mjm, mjds))
    return testing.compare(m, mjt.make_constraint(m, given), mjds, ROWS, rtol)


@pytest.mark.parametrize("name", EQUALITIES)
def test_one_equality(name: str) -> None:
    """Position, Jacobian, mass, velocity and reference (with J-dot v) of a single equality of each kind."""
    mjm = bodies(f"<equality>{EQUALITIES[name]}</equality>")
    mjds = states(mjm)
    for mjd in mjds:
        mjd.eq_active[:] = True
    report = rows_report(mjm, mjds)
    assert all(mjd.ne for mjd in mjds)
    report.raise_for_failures()


def test_equalities_of_all_kinds_go_by_id() -> None:
    mjm = bodies(f"<equality>{MIXED}</equality>")
    rows_report(mjm, states(mjm)).raise_for_failures()
