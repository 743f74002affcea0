"""The parity table: one small model for each feature of the dynamics, beside MuJoCo C.

`docs/generate.py` writes the table to docs/features.md.
"""

import functools
from typing import NamedTuple

import mujoco
import pytest

import mujoco_torch as mjt
from mujoco_torch import testing

NWORLD = 4


def scene(
    *,
    option="",
    flag="",
    floor="",
    free="",
    geom="",
    shoulder="",
    elbow="",
    rail="",
    ball="",
    arm="",
    world="",
    more="",
) -> str:
    """A free capsule on a floor, an arm of hinge, hinge and slide, and a pendulum on a ball joint.

    The arguments are attributes of the elements of their names; `world` is added to the world's body, `more` to the model.
    """
    return f"""
<mujoco>
  <option timestep="0.004" {option}><flag {flag}/></option>
  <worldbody>
    <geom name="floor" type="plane" size="3 3 0.1" {floor}/>
    <site name="anchor" pos="0.3 0.1 1.2" quat="0.9 0.1 0.3 -0.2"/>
    {world}
    <body name="free" pos="0 0 0.12" {free}>
      <freejoint name="free"/>
      <geom name="free" type="capsule" size="0.06 0.1" euler="90 10 0" {geom}/>
      <site name="free" pos="0.05 0 0.02" quat="0.8 0.5 0.1 0.2"/>
    </body>
    <body name="arm" pos="0.5 0 0.9" {arm}>
      <joint name="shoulder" axis="0 1 0.1" armature="0.02" {shoulder}/>
      <geom name="upper" type="capsule" size="0.04" fromto="0 0 0 0.3 0 0"/>
      <site name="upper" pos="0.15 0 0.06"/>
      <site name="inner" pos="0.28 0.02 0"/>
      <body name="forearm" pos="0.3 0 0">
        <joint name="elbow" axis="0 0.3 1" {elbow}/>
        <geom name="lower" type="sphere" size="0.05" pos="0.1 0 0"/>
        <geom name="pin" type="cylinder" size="0.03 0.1" contype="0" conaffinity="0" euler="20 0 0"/>
        <site name="hand" pos="0.2 0.02 0.01" quat="0.7 0.1 -0.4 0.3"/>
        <site name="side" pos="0 0 0.05"/>
        <body name="tool" pos="0.2 0 0">
          <joint name="rail" type="slide" axis="1 0.2 0" {rail}/>
          <geom name="tool" type="sphere" size="0.04" pos="0.06 0 0"/>
          <site name="tip" pos="0.1 0 0"/>
        </body>
      </body>
    </body>
    <body name="pendulum" pos="-0.5 0 0.8">
      <joint name="ball" type="ball" {ball}/>
      <geom name="bob" type="capsule" size="0.05" fromto="0 0 0 0.1 0 -0.35"/>
      <site name="bob" pos="0.1 0 -0.35" quat="0.6 0.2 0.5 -0.1"/>
    </body>
  </worldbody>
  {more}
</mujoco>"""


def equality(text: str) -> str:
    return scene(more=f"<equality>{text}</equality>")


def tendon(text: str, more: str = "", **parts: str) -> str:
    return scene(more=f"<tendon>{text}</tendon>{more}", **parts)


def actuator(text: str, more: str = "", **parts: str) -> str:
    return scene(more=f"<actuator>{text}</actuator>{more}", **parts)


SITES = '<site site="anchor"/><site site="upper"/><site site="hand"/>'
FIXED = '<fixed name="fixed" {}><joint joint="shoulder" coef="0.7"/><joint joint="rail" coef="-1.3"/></fixed>'
SPATIAL = '<spatial name="spatial" {}>' + SITES + "</spatial>"
SO3 = '<orientation name="a" site="hand" refsite="anchor" kp="3" kv="0.2"/>'


class Feature(NamedTuple):
    """A row of the table: what it is, the function of MuJoCo C that computes it, a model that uses it."""

    group: str
    name: str
    function: str
    xml: str
    stages: tuple[str, ...] = ("forward", "step")


FEATURES = [
    Feature(
        "equality",
        "connect, bodies",
        "mj_instantiateEquality",
        equality('<connect body1="tool" body2="pendulum" anchor="0.1 0 0"/>'),
    ),
    Feature(
        "equality", "connect, sites", "mj_instantiateEquality", equality('<connect site1="tip" site2="bob"/>')
    ),
    Feature(
        "equality",
        "weld, bodies",
        "mj_instantiateEquality",
        equality('<weld body1="free" body2="pendulum" torquescale="0.6" relpose="0.3 0 0.2 0.9 0.1 0.2 0"/>'),
    ),
    Feature(
        "equality",
        "weld, sites",
        "mj_instantiateEquality",
        equality('<weld site1="hand" site2="anchor" torquescale="1.4"/>'),
    ),
    Feature(
        "equality",
        "joint to joint",
        "mj_instantiateEquality",
        equality('<joint joint1="shoulder" joint2="rail" polycoef="0.1 0.5 0.3 -0.2 0.1"/>'),
    ),
    Feature(
        "equality",
        "joint alone",
        "mj_instantiateEquality",
        equality('<joint joint1="elbow" polycoef="0.1 0 0 0 0"/>'),
    ),
    Feature(
        "equality",
        "tendon to tendon",
        "mj_instantiateEquality",
        tendon(
            FIXED.format("") + SPATIAL.format(""),
            '<equality><tendon tendon1="spatial" tendon2="fixed" polycoef="0.05 0.4 0.2 0 0"/></equality>',
        ),
    ),
    Feature(
        "equality",
        "several, active in some worlds",
        "mj_instantiateEquality",
        equality(
            '<joint joint1="elbow" active="false"/><connect body1="tool" anchor="0 0 0"/><weld body1="free" body2="forearm" solref="0.05 1"/><joint joint1="rail"/>'
        ),
    ),
    Feature(
        "friction loss",
        "joints",
        "mj_instantiateFriction",
        scene(
            shoulder='frictionloss="0.4"',
            rail='frictionloss="2" solreffriction="0.05 0.8"',
            ball='frictionloss="0.1"',
        ),
    ),
    Feature(
        "friction loss",
        "tendons",
        "mj_instantiateFriction",
        tendon(
            FIXED.format('frictionloss="0.5"')
            + SPATIAL.format('frictionloss="1.5" solimpfriction="0.8 0.9 0.01"')
        ),
    ),
    Feature(
        "limits",
        "joints, both sides, margin",
        "mj_instantiateLimit",
        scene(
            shoulder='range="-2 3" limited="true" margin="0.2"',
            rail='range="-0.01 0.01" limited="true" margin="0.05"',
        ),
    ),
    Feature(
        "limits", "ball joints", "mj_instantiateLimit", scene(ball='range="0 8" limited="true" margin="0.05"')
    ),
    Feature(
        "limits",
        "tendons, both sides, margin",
        "mj_instantiateLimit",
        tendon(
            FIXED.format('range="-0.02 0.02" limited="true" margin="0.1"')
            + SPATIAL.format('range="0.4 0.5" limited="true"')
        ),
    ),
    Feature(
        "contacts",
        "pyramidal cone, condim 1, 3, 4, 6",
        "mj_instantiateContact",
        scene(
            floor='condim="1"',
            geom='condim="6" friction="0.7 0.02 0.01"',
            world='<geom name="slope" type="plane" size="3 3 0.1" euler="0 5 0" condim="4"/><geom name="other" type="plane" size="3 3 0.1" euler="5 0 0" condim="3"/>',
        ),
    ),
    Feature(
        "contacts",
        "elliptic cone, condim 1, 3, 4, 6",
        "mj_instantiateContact",
        scene(
            option='cone="elliptic" impratio="3"',
            floor='condim="1"',
            geom='condim="6" friction="0.7 0.02 0.01"',
            world='<geom name="slope" type="plane" size="3 3 0.1" euler="0 5 0" condim="4"/><geom name="other" type="plane" size="3 3 0.1" euler="5 0 0" condim="3"/>',
        ),
    ),
    Feature(
        "contacts",
        "friction below its floor",
        "mj_instantiateContact",
        scene(option='cone="elliptic"', floor='friction="0 0 0"', geom='friction="0 0 0" condim="6"'),
    ),
    Feature("contacts", "adhesion", "mj_adhesion", scene(geom='adhesion="5"')),
    Feature("contacts", "surface velocity", "mj_instantiateContact", scene(geom='surfacevel="0.3 0.1 0"')),
    Feature(
        "solvers",
        "Newton, elliptic",
        "mj_solNewton",
        scene(
            option='cone="elliptic"',
            shoulder='frictionloss="0.4"',
            more='<equality><connect body1="tool" body2="pendulum" anchor="0.1 0 0"/></equality>',
        ),
    ),
    Feature(
        "solvers",
        "CG, pyramidal",
        "mj_solCG",
        scene(
            option='solver="CG"',
            shoulder='frictionloss="0.4"',
            more='<equality><connect body1="tool" body2="pendulum" anchor="0.1 0 0"/></equality>',
        ),
    ),
    Feature("solvers", "CG, elliptic", "mj_solCG", scene(option='solver="CG" cone="elliptic"')),
    Feature(
        "solvers",
        "noslip",
        "mj_solNoSlip",
        scene(
            option='cone="elliptic" noslip_iterations="20" noslip_tolerance="1e-12"',
            shoulder='frictionloss="0.4"',
        ),
    ),
    Feature("tendons", "fixed", "mj_tendon", tendon(FIXED.format('stiffness="30" damping="0.5"'))),
    Feature("tendons", "spatial, sites", "mj_tendon", tendon(SPATIAL.format('stiffness="30" damping="0.5"'))),
    Feature(
        "tendons",
        "spatial, pulley",
        "mj_tendon",
        tendon(
            f'<spatial name="s" stiffness="30">{SITES}<pulley divisor="2"/><site site="bob"/><site site="free"/></spatial>'
        ),
    ),
    Feature(
        "tendons",
        "wrapping a sphere",
        "mju_wrap",
        tendon(
            '<spatial name="s" stiffness="30"><site site="upper"/><geom geom="lower"/><site site="tip"/></spatial>'
        ),
    ),
    Feature(
        "tendons",
        "wrapping a cylinder, side site",
        "mju_wrap",
        tendon(
            '<spatial name="s" stiffness="30"><site site="inner"/><geom geom="pin" sidesite="side"/><site site="hand"/></spatial>'
        ),
    ),
    Feature(
        "tendons",
        "wrapping inside a sphere",
        "mju_wrap",
        tendon(
            '<spatial name="s" stiffness="30"><site site="a"/><geom geom="hollow" sidesite="c"/><site site="bob"/></spatial>',
            world='<geom name="hollow" type="sphere" size="0.2" pos="-0.3 0 0.6" contype="0" conaffinity="0"/><site name="a" pos="-0.1 0.3 0.7"/><site name="c" pos="-0.3 0 0.61"/>',
        ),
    ),
    Feature(
        "tendons",
        "armature",
        "mj_tendonArmature, mj_tendonBias",
        tendon(FIXED.format('armature="0.1"') + SPATIAL.format('armature="0.3"')),
    ),
    Feature(
        "tendons",
        "dead band",
        "mj_springdamper",
        tendon(SPATIAL.format('stiffness="30" springlength="0.3 0.55"')),
    ),
    Feature(
        "tendons",
        "polynomial spring and damper",
        "mj_springdamper",
        tendon(SPATIAL.format('stiffness="30 5 9" damping="0.5 0.2 0.1" springlength="0.4"')),
    ),
    Feature(
        "tendons",
        "force range",
        "mj_fwdActuation",
        tendon(
            FIXED.format('actuatorfrcrange="-0.3 0.2"'),
            '<actuator><motor tendon="fixed" gear="2"/><position tendon="fixed" kp="3"/></actuator>',
        ),
    ),
    Feature(
        "transmission",
        "joint, joint in parent",
        "mj_transmission",
        actuator(
            '<motor joint="ball" gear="0.1 0.2 -0.3"/><motor jointinparent="ball" gear="0.3 0.2 0.1"/><motor jointinparent="free" gear="1 2 3 0.1 0.2 0.3"/><motor joint="rail" gear="2"/>'
        ),
    ),
    Feature(
        "transmission",
        "tendon",
        "mj_transmission",
        tendon(
            SPATIAL.format("") + FIXED.format(""),
            '<actuator><motor tendon="spatial" gear="2"/><position tendon="fixed" kp="3"/></actuator>',
        ),
    ),
    Feature(
        "transmission", "site", "mj_transmission", actuator('<motor site="hand" gear="1 2 3 0.1 -0.2 0.3"/>')
    ),
    Feature(
        "transmission",
        "site with reference",
        "mj_transmission",
        actuator(
            '<motor site="hand" refsite="upper" gear="1 2 3 0.1 -0.2 0.3"/><position site="bob" refsite="anchor" gear="0 0 0 1 0 0" kp="2"/>'
        ),
    ),
    Feature(
        "transmission",
        "slider-crank",
        "mj_transmission",
        actuator('<motor cranksite="hand" slidersite="upper" cranklength="0.4" gear="1.5"/>'),
    ),
    Feature(
        "transmission",
        "body (adhesion)",
        "mj_transmission",
        actuator('<adhesion name="a" body="free" ctrlrange="0 2" gain="3"/>'),
    ),
    Feature("transmission", "orientation", "mj_transmission", actuator(SO3)),
    Feature(
        "activation",
        "integrator",
        "mj_fwdActuation",
        actuator(
            '<intvelocity joint="elbow" kp="5" actrange="-0.3 0.3"/><general joint="rail" dyntype="integrator" gainprm="3" actearly="true" actrange="-0.5 0.4" actlimited="true"/>'
        ),
    ),
    Feature(
        "activation",
        "filter, exact filter",
        "mj_nextActivation",
        actuator(
            '<general joint="elbow" dyntype="filter" dynprm="0.05" gainprm="2"/><general joint="rail" dyntype="filterexact" dynprm="0.05" gainprm="2" actearly="true"/><position joint="shoulder" kp="3" timeconst="0.1"/>'
        ),
    ),
    Feature(
        "activation",
        "muscle",
        "mju_muscleDynamics, mju_muscleGain, mju_muscleBias",
        tendon(
            SPATIAL.format(""),
            '<actuator><muscle tendon="spatial" lengthrange="0.2 0.9"/><muscle joint="elbow" lengthrange="-1 1" force="5" tausmooth="0.2"/></actuator>',
        ),
    ),
    Feature(
        "activation",
        "DC motor",
        "mj_fwdActuation",
        actuator('<dcmotor name="a" joint="elbow" motorconst="0.05" resistance="2"/>'),
    ),
    Feature(
        "activation",
        "PID",
        "mj_fwdActuation",
        actuator('<pid name="a" joint="elbow" kp="5" kv="0.3" ki="1"/>'),
    ),
    Feature(
        "forces",
        "gain and bias affine",
        "mj_fwdActuation",
        actuator(
            '<general joint="elbow" gaintype="affine" gainprm="1 0.5 0.1" biastype="affine" biasprm="0.1 -2 -0.3"/>'
        ),
    ),
    Feature(
        "forces",
        "clamps of control and force",
        "mj_fwdActuation",
        actuator(
            '<position joint="elbow" kp="50" forcerange="-1 0.5"/><motor joint="rail" ctrlrange="-0.2 0.3"/>',
            elbow='actuatorfrcrange="-0.4 0.3"',
        ),
    ),
    Feature(
        "forces",
        "disabled groups",
        "mj_fwdActuation",
        actuator(
            '<motor joint="elbow" group="2"/><motor joint="rail" group="1"/><general joint="shoulder" group="2" dyntype="filter" dynprm="0.1"/>',
            option='actuatorgroupdisable="2"',
        ),
    ),
    Feature(
        "forces",
        "damping and armature of actuators",
        "mj_passive, mj_crb",
        actuator('<position joint="elbow" kp="5" damping="0.3" armature="0.1" gear="2"/>'),
    ),
    Feature(
        "forces",
        "delays",
        "mj_fwdActuation",
        actuator(
            '<position joint="elbow" kp="5" delay="0.02" nsample="6" interp="linear"/><motor joint="rail" delay="0.01" nsample="4"/>'
        ),
    ),
    Feature(
        "forces",
        "set points on a circle",
        "mj_fwdActuation",
        actuator(
            '<position joint="ball" kp="2" gear="1 0.2 0.1"/><position site="bob" refsite="anchor" gear="0 0 0 1 0 0" kp="2"/>'
        ),
    ),
    Feature(
        "passive", "gravity compensation", "mj_gravcomp", scene(free='gravcomp="0.7"', arm='gravcomp="1.2"')
    ),
    Feature(
        "passive",
        "gravity compensation by actuators",
        "mj_gravcomp",
        scene(
            arm='gravcomp="1.2"',
            shoulder='actuatorgravcomp="true" actuatorfrcrange="-1 1"',
            more='<actuator><motor joint="shoulder"/></actuator>',
        ),
    ),
    Feature(
        "passive",
        "fluid, inertia box",
        "mj_inertiaBoxFluidModel",
        scene(option='density="1.5" viscosity="0.3"'),
    ),
    Feature(
        "passive",
        "fluid, ellipsoid, wind",
        "mj_ellipsoidFluidModel",
        scene(
            option='density="1.5" viscosity="0.3" wind="1 0.5 -0.2"',
            geom='fluidshape="ellipsoid" fluidcoef="0.6 0.3 1.2 0.9 0.8"',
        ),
    ),
    Feature(
        "passive",
        "polynomial springs",
        "mj_springdamper",
        scene(
            shoulder='stiffness="3 2 4" springref="10"',
            ball='stiffness="1 0.5 2"',
            rail='stiffness="30 20 40"',
        ),
    ),
    Feature(
        "passive",
        "polynomial dampers",
        "mj_springdamper",
        scene(shoulder='damping="0.3 0.2 0.1"', ball='damping="0.1 0.05 0.2"'),
    ),
    Feature(
        "passive",
        "plastic springs",
        "mj_springdamper",
        scene(shoulder='stiffness="3" springyield="0.2"', rail='stiffness="30" springyield="0.1"'),
    ),
    Feature(
        "passive",
        "plastic springs of tendons",
        "mj_springdamper",
        tendon(
            FIXED.format('stiffness="30 5" springlength="0.2" springyield="0.1"')
            + SPATIAL.format('stiffness="20" springlength="0 0.3" springyield="0.05"')
        ),
    ),
    Feature(
        "passive",
        "springs off, dampers on",
        "mj_passive",
        scene(flag='spring="disable"', shoulder='stiffness="3" damping="0.3"', arm='gravcomp="1"'),
    ),
    Feature(
        "passive",
        "dampers off, springs on",
        "mj_passive",
        scene(flag='damper="disable"', shoulder='stiffness="3" damping="0.3"', arm='gravcomp="1"'),
    ),
    Feature(
        "bodies",
        "mocap, with children and a weld",
        "mj_kinematics",
        scene(
            world='<body name="mocap" mocap="true" pos="0.2 0 0.5"><geom type="sphere" size="0.1"/><body pos="0.1 0 0"><geom type="capsule" size="0.05 0.1"/></body></body>',
            more='<equality><weld body1="mocap" body2="free"/></equality>',
        ),
    ),
    Feature("bodies", "applied forces", "mj_xfrcAccumulate", scene()),
    Feature(
        "integrators",
        "Euler, damping explicit",
        "mj_Euler",
        scene(flag='eulerdamp="disable"', shoulder='damping="0.5"'),
    ),
    Feature(
        "integrators",
        "Euler, damping implicit",
        "mj_Euler",
        scene(
            shoulder='damping="5 1 1"',
            ball='damping="0.3"',
            more='<actuator><position joint="elbow" kp="5" damping="3"/></actuator>',
        ),
    ),
    Feature(
        "integrators",
        "RK4",
        "mj_RungeKutta",
        scene(
            option='integrator="RK4"',
            shoulder='damping="0.5"',
            more='<actuator><general joint="rail" dyntype="filter" dynprm="0.05" gainprm="2"/></actuator>',
        ),
    ),
    Feature(
        "integrators",
        "implicit",
        "mj_implicit",
        scene(
            option='integrator="implicit"',
            shoulder='damping="5"',
            more='<actuator><position joint="elbow" kp="5" kv="3"/><position joint="rail" kp="50" kv="9" forcerange="-1 1"/></actuator>',
        ),
    ),
    Feature(
        "integrators",
        "implicitfast",
        "mj_implicit",
        scene(
            option='integrator="implicitfast"',
            shoulder='damping="5"',
            more='<actuator><position joint="elbow" kp="5" kv="3"/><position joint="rail" kp="50" kv="9" forcerange="-1 1"/></actuator>',
        ),
    ),
    Feature(
        "inverse dynamics",
        "every kind of row",
        "mj_inverse",
        scene(
            option='cone="elliptic"',
            shoulder='frictionloss="0.4" range="-2 3" limited="true"',
            more='<equality><weld body1="tool" body2="pendulum"/></equality>',
        ),
        ("inverse",),
    ),
    Feature(
        "inverse dynamics",
        "in discrete time",
        "mj_inverse, mj_discreteAcc",
        scene(option='integrator="implicitfast"', flag='invdiscrete="enable"', shoulder='damping="3"'),
        ("inverse",),
    ),
    Feature(
        "energy",
        "potential and kinetic",
        "mj_energyPos, mj_energyVel",
        tendon(
            SPATIAL.format('stiffness="30"'),
            flag='energy="enable"',
            shoulder='stiffness="3"',
            ball='stiffness="1"',
        ),
    ),
]


@functools.cache
def load(xml: str) -> mujoco.MjModel:
    return mujoco.MjModel.from_xml_string(xml)


def states(mjm: mujoco.MjModel) -> list[mujoco.MjData]:
    return testing.perturbed_states(mjm, NWORLD, seed=0, settle=100)


def parity(feature: Feature) -> testing.Report:
    """`forward`, then the state after a step, of four different worlds in float64."""
    mjm = load(feature.xml)
    reports = [testing.stage_parity(mjm, stage, states(mjm)) for stage in feature.stages]
    return testing.Report(tuple(error for report in reports for error in report.errors))


IDS = [f"{feature.group}: {feature.name}" for feature in FEATURES]


@pytest.mark.parametrize("feature", FEATURES, ids=IDS)
def test_feature(feature: Feature) -> None:
    parity(feature).raise_for_failures()


@pytest.mark.parametrize("feature", FEATURES, ids=IDS)
def test_feature_in_float32(feature: Feature) -> None:
    mjm = load(feature.xml)
    testing.float32_parity(mjm, states(mjm)).raise_for_failures()


def table() -> str:
    """The parity table in Markdown."""
    lines = [
        "| feature | MuJoCo C | worst error, float64 | in | float32, share of the tolerance |",
        "|---|---|---|---|---|",
    ]
    for feature in FEATURES:
        mjm = load(feature.xml)
        name = f"{feature.group}: {feature.name}"
        refused = ", ".join(finding.feature for finding in mjt.check(mjm))
        if refused:
            lines.append(f"| {name} | `{feature.function}` | refused: {refused} | | |")
            continue
        worst = max(parity(feature).errors, key=lambda error: error.error)
        single = testing.float32_parity(mjm, states(mjm)).worst
        lines.append(
            f"| {name} | `{feature.function}` | {worst.error:.0e} | `{worst.field}` | {single:.2f} |"
        )
    return "\n".join(lines)
