"""Random models of the supported subset against MuJoCo C: combinations nobody thought of writing down."""

import mujoco
import numpy as np
import pytest

from mujoco_torch import testing

NWORLD = 4
SEEDS = range(12)

GEOM_TYPES = (mujoco.mjtGeom.mjGEOM_SPHERE, mujoco.mjtGeom.mjGEOM_CAPSULE)
JOINT_SETS = (
    (),
    ("hinge",),
    ("slide",),
    ("ball",),
    ("hinge", "slide"),
    ("slide", "ball"),
    ("slide", "slide", "hinge"),
)
FLAGS = (
    "LIMIT", "CONTACT", "SPRING", "DAMPER", "GRAVITY", "CLAMPCTRL", "WARMSTART", "FILTERPARENT", "ACTUATION",
    "REFSAFE", "EULERDAMP",
)  # fmt: skip


def random_model(seed: int) -> mujoco.MjModel:
    """A model with random trees, joints, geoms, contact parameters, actuators, options and disable flags."""
    rng = np.random.default_rng(seed)
    spec = mujoco.MjSpec()
    spec.compiler.degree = False
    spec.option.timestep = rng.uniform(0.001, 0.005)
    spec.option.integrator = rng.choice([mujoco.mjtIntegrator.mjINT_EULER, mujoco.mjtIntegrator.mjINT_RK4])
    spec.option.impratio = rng.choice([1.0, 3.0])
    spec.option.gravity = rng.normal((0.0, 0.0, -6.0), 3.0)
    spec.option.disableflags = int(sum(_bit(flag) for flag in FLAGS if rng.random() < 0.08))
    world = spec.worldbody
    for i in range(rng.integers(1, 3)):
        plane = world.add_geom(name=f"plane{i}", type=mujoco.mjtGeom.mjGEOM_PLANE, size=[3, 3, 0.1])
        plane.pos = [0, 0, -0.3 * i]
        plane.quat = _small_rotation(rng, 0.2 * i)
        _contact_parameters(rng, plane)
    bodies = [world]
    for i in range(rng.integers(3, 9)):
        parent = bodies[rng.integers(len(bodies))] if rng.random() < 0.7 else world
        bodies.append(_add_body(rng, parent, f"body{i}", free=parent is world and rng.random() < 0.5))
    _add_pairs(rng, spec)
    _add_actuators(rng, spec)
    return testing.converged(spec.compile())


def _bit(flag: str) -> int:
    return int(getattr(mujoco.mjtDisableBit, f"mjDSBL_{flag}"))


def _small_rotation(rng: np.random.Generator, size: float) -> np.ndarray:
    quat = np.array([1.0, *(size * rng.standard_normal(3))])
    return quat / np.linalg.norm(quat)


def _add_body(rng: np.random.Generator, parent, name: str, free: bool):
    position = rng.uniform((-0.3, -0.3, -0.05), (0.3, 0.3, 0.55))
    body = parent.add_body(name=name, pos=position, quat=_small_rotation(rng, 1.0))
    if free:
        body.add_freejoint(name=f"{name}-free")
    else:
        for k, kind in enumerate(JOINT_SETS[rng.integers(len(JOINT_SETS))]):
            _add_joint(rng, body, f"{name}-{kind}{k}", kind)
    for k in range(rng.integers(1, 3)):
        geom = body.add_geom(name=f"{name}-geom{k}", type=GEOM_TYPES[rng.integers(2)])
        geom.size = [rng.uniform(0.04, 0.1), rng.uniform(0.05, 0.2), 0.0]
        geom.pos = rng.uniform(-0.1, 0.1, 3)
        geom.quat = _small_rotation(rng, 1.0)
        _contact_parameters(rng, geom)
    body.add_site(pos=rng.uniform(-0.1, 0.1, 3), quat=_small_rotation(rng, 1.0))
    return body


def _add_joint(rng: np.random.Generator, body, name: str, kind: str) -> None:
    joint = body.add_joint(name=name, type=getattr(mujoco.mjtJoint, f"mjJNT_{kind.upper()}"))
    joint.axis = rng.standard_normal(3)
    joint.pos = rng.uniform(-0.1, 0.1, 3)
    joint.armature = rng.uniform(0.005, 0.05)
    joint.damping = [rng.choice([0.0, 0.2]), 0.0, 0.0]
    joint.stiffness = [rng.choice([0.0, 5.0]), 0.0, 0.0]
    joint.ref = 0.0 if kind == "ball" else rng.normal(0.0, 0.1)
    joint.springref = rng.normal(0.0, 0.2)
    joint.margin = rng.choice([0.0, 0.1])
    joint.solref_limit = _solref(rng)
    joint.solimp_limit = _solimp(rng)
    if rng.random() < 0.6:
        joint.limited = mujoco.mjtLimited.mjLIMITED_TRUE
        joint.range = [0.0, 0.3] if kind == "ball" else [-0.1, 0.15]
    if kind != "ball" and rng.random() < 0.3:
        joint.actfrclimited = mujoco.mjtLimited.mjLIMITED_TRUE
        joint.actfrcrange = [-0.2, 0.3]


def _contact_parameters(rng: np.random.Generator, geom) -> None:
    geom.condim = rng.choice([1, 3, 4, 6])
    geom.friction = [rng.uniform(0.2, 1.2), rng.uniform(0.001, 0.05), rng.uniform(0.0001, 0.01)]
    geom.priority = rng.choice([0, 0, 0, 1])
    geom.solmix = rng.choice([0.5, 1.0, 2.0])
    geom.margin = rng.choice([0.0, 0.02])
    geom.gap = rng.choice([0.0, 0.01])
    geom.solref = _solref(rng)
    geom.solimp = _solimp(rng)
    geom.contype, geom.conaffinity = rng.choice([1, 1, 2, 3]), rng.choice([1, 1, 3])


def _solref(rng: np.random.Generator) -> list[float]:
    choices = ([0.02, 1.0], [0.05, 0.7], [0.003, 1.0], [-800.0, -30.0])
    return choices[rng.integers(len(choices))]


def _solimp(rng: np.random.Generator) -> list[float]:
    choices = (
        [0.9, 0.95, 0.001, 0.5, 2.0], [0.5, 0.99, 0.02, 0.3, 3.0], [0.9, 0.9, 0.001, 0.5, 2.0],
        [0.8, 0.95, 0.0, 0.5, 1.0], [0.7, 0.9, 0.01, 0.5, 1.0],
    )  # fmt: skip
    return choices[rng.integers(len(choices))]


def _add_pairs(rng: np.random.Generator, spec: mujoco.MjSpec) -> None:
    geoms = [geom.name for geom in spec.geoms if "plane" not in geom.name]
    for i in range(rng.integers(0, 3)):
        first, second = rng.choice([*geoms, "plane0"], 2, replace=False)
        pair = spec.add_pair(name=f"pair{i}", geomname1=first, geomname2=second)
        pair.condim = rng.choice([1, 3, 4, 6])
        pair.friction = rng.uniform(0.01, 1.0, 5)
        pair.margin, pair.gap = rng.choice([0.0, 0.03]), rng.choice([0.0, 0.01])
        pair.solref = _solref(rng)
    bodies = [body.name for body in spec.bodies if body.name != "world"]
    first, second = rng.choice(bodies, 2, replace=False)
    spec.add_exclude(bodyname1=first, bodyname2=second)


def _add_actuators(rng: np.random.Generator, spec: mujoco.MjSpec) -> None:
    for joint in spec.joints:
        for k in range(rng.integers(0, 3)):
            actuator = spec.add_actuator(name=f"{joint.name}-{k}", target=joint.name)
            transmissions = (mujoco.mjtTrn.mjTRN_JOINT, mujoco.mjtTrn.mjTRN_JOINTINPARENT)
            actuator.trntype = transmissions[rng.integers(2)]
            actuator.gear = rng.normal(0.0, 0.3, 6)
            if rng.random() < 0.5:
                actuator.gaintype = mujoco.mjtGain.mjGAIN_AFFINE
                actuator.gainprm[:3] = rng.normal(0.0, 0.3, 3)
            if rng.random() < 0.5:
                actuator.biastype = mujoco.mjtBias.mjBIAS_AFFINE
                actuator.biasprm[:3] = [rng.normal(0.0, 0.3), -rng.uniform(0, 1.0), -rng.uniform(0, 0.1)]
            if rng.random() < 0.5:
                actuator.ctrllimited, actuator.ctrlrange = mujoco.mjtLimited.mjLIMITED_TRUE, [-0.5, 0.8]
            if rng.random() < 0.5:
                actuator.forcelimited, actuator.forcerange = mujoco.mjtLimited.mjLIMITED_TRUE, [-0.4, 0.3]


@pytest.mark.parametrize("seed", SEEDS)
def test_random_model(seed: int) -> None:
    mjm = random_model(seed)
    states = testing.perturbed_states(mjm, NWORLD, seed)
    testing.stage_parity(mjm, "forward", states).raise_for_failures()
    testing.stage_parity(mjm, "step", states).raise_for_failures()
