"""Random models against MuJoCo C: combinations nobody thought of writing down.

Forty models in the tests; `nox -s random-models` makes it 500, others in each run.
"""

import mujoco
import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mujoco_torch import testing

NWORLD = 4
NSTEP = 50
FAR = 1e5  # kg m^2
CALM = 1e5  # acceleration
GEOMETRY = 1e-8  # near a touch, a tendon that wraps around something magnifies rounding
#: Relative: what two solvers that have converged may differ by.
PERTURBATION = 1e-9

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
    "REFSAFE", "EULERDAMP", "EQUALITY", "FRICTIONLOSS",
)  # fmt: skip
INTEGRATORS = ("EULER", "RK4", "IMPLICIT", "IMPLICITFAST")
#: What a model may have beside bodies, joints, contacts and joint actuators.
FEATURES = (
    "actuators", "adhesion", "elliptic", "energy", "equality", "fluid", "frictionloss", "gravcomp", "mocap",
    "noslip", "passive", "tendons",
)  # fmt: skip


def random_model(seed: int, nbody: int, features: frozenset[str], integrator: str) -> mujoco.MjModel:
    """A model with random trees, joints, geoms, contact parameters, actuators, options and disable flags."""
    rng = np.random.default_rng(seed)
    spec = mujoco.MjSpec()
    spec.compiler.degree = False
    _options(rng, spec, features, integrator)
    world = spec.worldbody
    for i in range(rng.integers(1, 3)):
        plane = world.add_geom(name=f"plane{i}", type=mujoco.mjtGeom.mjGEOM_PLANE, size=[3, 3, 0.1])
        plane.pos = [0, 0, -0.3 * i]
        plane.quat = _small_rotation(rng, 0.2 * i)
        _contact_parameters(rng, plane)
    bodies = [world]
    for i in range(nbody):
        parent = bodies[rng.integers(len(bodies))] if rng.random() < 0.7 else world
        bodies.append(_add_body(rng, parent, f"body{i}", parent is world and rng.random() < 0.5, features))
    if "mocap" in features:
        _add_mocap(rng, world)
    _add_pairs(rng, spec)
    _add_actuators(rng, spec)
    if "tendons" in features:
        _add_tendons(rng, spec, features)
    if "equality" in features:
        _add_equalities(rng, spec)
    if "actuators" in features:
        _add_more_actuators(rng, spec)
    return testing.converged(spec.compile(), tolerance=1e-15)


def _options(
    rng: np.random.Generator, spec: mujoco.MjSpec, features: frozenset[str], integrator: str
) -> None:
    spec.option.timestep = rng.uniform(0.001, 0.005)
    spec.option.integrator = getattr(mujoco.mjtIntegrator, f"mjINT_{integrator}")
    spec.option.impratio = rng.choice([1.0, 3.0])
    spec.option.gravity = rng.normal((0.0, 0.0, -6.0), 3.0)
    spec.option.disableflags = int(sum(_bit(flag) for flag in FLAGS if rng.random() < 0.06))
    if "elliptic" in features:
        spec.option.cone = mujoco.mjtCone.mjCONE_ELLIPTIC
    if "noslip" in features:
        spec.option.noslip_iterations, spec.option.noslip_tolerance = 5, 1e-12
    if "energy" in features:
        spec.option.enableflags = int(mujoco.mjtEnableBit.mjENBL_ENERGY)
    if "fluid" in features:
        spec.option.density, spec.option.viscosity = 1.2, 0.02
        spec.option.wind = rng.normal(0.0, 1.0, 3)


def _bit(flag: str) -> int:
    return int(getattr(mujoco.mjtDisableBit, f"mjDSBL_{flag}"))


def _small_rotation(rng: np.random.Generator, size: float) -> np.ndarray:
    quat = np.array([1.0, *(size * rng.standard_normal(3))])
    return quat / np.linalg.norm(quat)


def _add_body(rng: np.random.Generator, parent, name: str, free: bool, features: frozenset[str]):
    position = rng.uniform((-0.3, -0.3, -0.05), (0.3, 0.3, 0.55))
    body = parent.add_body(name=name, pos=position, quat=_small_rotation(rng, 1.0))
    if free:
        body.add_freejoint(name=f"{name}-free")
    else:
        for k, kind in enumerate(JOINT_SETS[rng.integers(len(JOINT_SETS))]):
            _add_joint(rng, body, f"{name}-{kind}{k}", kind, features)
    if "gravcomp" in features:
        body.gravcomp = rng.choice([0.0, 0.7, 1.3])
    for k in range(rng.integers(1, 3)):
        geom = body.add_geom(name=f"{name}-geom{k}", type=GEOM_TYPES[rng.integers(2)])
        geom.size = [rng.uniform(0.04, 0.1), rng.uniform(0.05, 0.2), 0.0]
        geom.pos = rng.uniform(-0.1, 0.1, 3)
        geom.quat = _small_rotation(rng, 1.0)
        _contact_parameters(rng, geom)
        if "fluid" in features and rng.random() < 0.5:
            geom.fluid_ellipsoid = 1
        if "adhesion" in features and rng.random() < 0.5:
            geom.adhesion = rng.uniform(0.0, 3.0)
    body.add_site(name=f"{name}-site", pos=rng.uniform(-0.1, 0.1, 3), quat=_small_rotation(rng, 1.0))
    return body


def _add_joint(rng: np.random.Generator, body, name: str, kind: str, features: frozenset[str]) -> None:
    joint = body.add_joint(name=name, type=getattr(mujoco.mjtJoint, f"mjJNT_{kind.upper()}"))
    joint.axis = rng.standard_normal(3)
    joint.pos = rng.uniform(-0.1, 0.1, 3)
    joint.armature = rng.uniform(0.005, 0.05)
    joint.damping = [rng.choice([0.0, 0.2]), 0.0, 0.0]
    joint.stiffness = [rng.choice([0.0, 5.0]), 0.0, 0.0]
    if "passive" in features:
        joint.damping = [0.2, rng.choice([0.0, 0.1]), rng.choice([0.0, 0.05])]
        joint.stiffness = [5.0, rng.choice([0.0, 3.0]), rng.choice([0.0, 10.0])]
    if "frictionloss" in features:
        joint.frictionloss = rng.choice([0.0, 0.1, 1.0])
    if "gravcomp" in features:
        joint.actgravcomp = int(rng.random() < 0.5)
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


def _add_mocap(rng: np.random.Generator, world) -> None:
    body = world.add_body(
        name="mocap", pos=rng.uniform(-0.3, 0.3, 3), quat=_small_rotation(rng, 1.0), mocap=True
    )
    body.add_geom(name="mocap-geom", type=mujoco.mjtGeom.mjGEOM_SPHERE, size=[0.08, 0, 0])
    body.add_site(name="mocap-site", pos=[0.05, 0, 0])
    child = body.add_body(name="mocap-child", pos=[0.1, 0, 0.05])
    child.add_geom(name="mocap-child-geom", type=mujoco.mjtGeom.mjGEOM_CAPSULE, size=[0.04, 0.08, 0])


def _scalar_joints(spec: mujoco.MjSpec) -> list[str]:
    kinds = (mujoco.mjtJoint.mjJNT_HINGE, mujoco.mjtJoint.mjJNT_SLIDE)
    return [joint.name for joint in spec.joints if joint.type in kinds]


def _some(rng: np.random.Generator, names: list[str], most: int) -> list[str]:
    return list(rng.permutation(names)[: rng.integers(1, most + 1)]) if names else []


def _add_tendons(rng: np.random.Generator, spec: mujoco.MjSpec, features: frozenset[str]) -> None:
    joints, sites = _scalar_joints(spec), [site.name for site in spec.sites]
    spheres = [
        geom.name
        for geom in spec.geoms
        if geom.type == mujoco.mjtGeom.mjGEOM_SPHERE and geom.name.startswith("body")
    ]
    chosen = _some(rng, joints, 3)
    if chosen:
        fixed = spec.add_tendon(name="fixed")
        for joint in chosen:
            fixed.wrap_joint(str(joint), rng.normal(0.0, 1.0))
        _tendon_parameters(rng, fixed, features)
    if len(sites) < 2:
        return
    spatial = spec.add_tendon(name="spatial")
    first, second = rng.choice(sites, 2, replace=False)
    spatial.wrap_site(str(first))
    wrapped = bool(spheres) and rng.random() < 0.5
    if wrapped:
        spatial.wrap_geom(str(rng.choice(spheres)), "")
    spatial.wrap_site(str(second))
    if rng.random() < 0.5:
        spatial.wrap_pulley(2.0)
        for site in rng.choice(sites, 2, replace=False):
            spatial.wrap_site(str(site))
    _tendon_parameters(rng, spatial, features)
    spatial.armature = 0.0 if wrapped else spatial.armature  # C refuses both together


def _tendon_parameters(rng: np.random.Generator, tendon, features: frozenset[str]) -> None:
    tendon.stiffness = [rng.choice([0.0, 3.0]), 0.0, 0.0]
    tendon.damping = [rng.choice([0.0, 0.2]), 0.0, 0.0]
    tendon.armature = rng.choice([0.0, 0.01])
    tendon.springlength = [0.1, 0.2]
    if "frictionloss" in features:
        tendon.frictionloss = rng.choice([0.0, 0.1])
    if rng.random() < 0.5:
        tendon.limited, tendon.range = mujoco.mjtLimited.mjLIMITED_TRUE, [-0.1, 0.3]
        tendon.margin = rng.choice([0.0, 0.05])


def _add_equalities(rng: np.random.Generator, spec: mujoco.MjSpec) -> None:
    # Where two bodies are one rigid body, rounding decides whether C has rows.
    moving = [body for body in spec.bodies if list(body.joints)]
    bodies = [body.name for body in moving]
    sites = [site.name for body in moving for site in body.sites]
    joints = _scalar_joints(spec)
    tendons = [tendon.name for tendon in spec.tendons]
    for i in range(rng.integers(1, 4)):
        kind = rng.choice(["connect", "weld", "connect-sites", "weld-sites", "joint", "tendon"])
        names = {"joint": joints, "tendon": tendons}.get(kind, sites if "sites" in kind else bodies)
        chosen = [str(name) for name in rng.permutation(names)[:2]]
        if not chosen or (len(chosen) < 2 and kind not in ("joint", "tendon")):
            continue
        equality = spec.add_equality(name=f"equality{i}", active=rng.random() < 0.8)
        equality.type = getattr(mujoco.mjtEq, f"mjEQ_{kind.partition('-')[0].upper()}")
        equality.name1 = chosen[0]
        if len(chosen) > 1 and (kind not in ("joint", "tendon") or rng.random() < 0.7):
            equality.name2 = chosen[1]
        equality.objtype = mujoco.mjtObj.mjOBJ_SITE if "sites" in kind else mujoco.mjtObj.mjOBJ_BODY
        equality.solref, equality.solimp = _solref(rng), _solimp(rng)
        if kind in ("joint", "tendon"):
            equality.data[:5] = rng.normal(0.0, 0.3, 5)
        if kind == "connect":
            equality.data[:3] = rng.normal(0.0, 0.1, 3)
        if kind.startswith("weld"):
            equality.data[10] = rng.choice([1.0, 0.3])


def _add_more_actuators(rng: np.random.Generator, spec: mujoco.MjSpec) -> None:
    joints = _scalar_joints(spec)
    sites, tendons = [site.name for site in spec.sites], [tendon.name for tendon in spec.tendons]
    targets = [(mujoco.mjtTrn.mjTRN_JOINT, joints), (mujoco.mjtTrn.mjTRN_SITE, sites)]
    targets.append((mujoco.mjtTrn.mjTRN_TENDON, tendons))
    for i in range(rng.integers(1, 5)):
        trntype, names = targets[rng.integers(len(targets))]
        if not names:
            continue
        actuator = spec.add_actuator(name=f"more{i}", trntype=trntype, target=str(rng.choice(names)))
        actuator.gear = rng.normal(0.0, 0.3, 6)
        if trntype == mujoco.mjtTrn.mjTRN_SITE and rng.random() < 0.5:
            actuator.refsite = str(rng.choice(sites))
        _stateful(rng, actuator)


def _stateful(rng: np.random.Generator, actuator) -> None:
    kind = rng.choice(["none", "integrator", "filter", "filterexact", "muscle"])
    if kind == "muscle":
        actuator.set_to_muscle([0.01, 0.04], 0.5, [0.75, 1.05], 5.0, 200.0, 0.5, 1.6, 1.5, 1.3, 1.2)
        actuator.lengthrange = [0.1, 1.0]
        return
    actuator.dyntype = getattr(mujoco.mjtDyn, f"mjDYN_{kind.upper()}")
    actuator.dynprm[0] = 0.05
    actuator.actearly = bool(rng.random() < 0.5)
    actuator.gainprm[0] = rng.normal(0.0, 0.5)
    if kind != "none" and rng.random() < 0.5:
        actuator.actlimited, actuator.actrange = mujoco.mjtLimited.mjLIMITED_TRUE, [-0.3, 0.4]


def well_posed(mjm: mujoco.MjModel, state: mujoco.MjData) -> bool:
    """Whether the numbers of a state have the digits that are compared.

    Every row moves something: of a tendon between bodies that no joint moves apart, C's Jacobian is rounding, 1e-18,
    and the force of its limit that divided by 1e-15: tons, and whose sign is anybody's guess. And nothing has flown
    away on its slide: about a hinge a kilometre away the inertia of the other bodies is lost to rounding.
    """
    mjd = testing.copy_state(mjm, state)
    mujoco.mj_forward(mjm, mjd)
    return mjd.efc_D.max(initial=0.0) < 0.5 / mujoco.mjMINVAL and np.abs(mjd.qLD).max(initial=0.0) < FAR


def calm(mjm: mujoco.MjModel, state: mujoco.MjData) -> bool:
    """Whether C simulates a state without an explosion: bodies that start deep in each other fly apart.

    An acceleration of a million, right to twelve digits, is wrong by more than what the steps before it differ by.
    """
    mjd = testing.copy_state(mjm, state)
    for _ in range(NSTEP):
        mujoco.mj_step(mjm, mjd)
        if np.abs(mjd.qacc).max(initial=0.0) > CALM or mjd.time < state.time:
            return False
    return True


MODEL = dict(
    seed=st.integers(0, 2**32 - 1),
    nbody=st.integers(2, 8),
    features=st.frozensets(st.sampled_from(FEATURES)),
    integrator=st.sampled_from(INTEGRATORS),
)


@settings(deadline=None, suppress_health_check=list(HealthCheck), print_blob=True)
@given(**MODEL)
def test_random_model(seed: int, nbody: int, features: frozenset[str], integrator: str) -> None:
    """`forward` and fifty steps: as near to C, until chaos, as C to itself when perturbed in every step."""
    mjm = random_model(seed, nbody, features, integrator)
    states = [state for state in testing.perturbed_states(mjm, NWORLD, seed) if well_posed(mjm, state)]
    if not states:
        return
    for stage in ("forward", "step"):
        report = testing.stage_parity(mjm, stage, states)
        least = GEOMETRY if "tendons" in features else 0.0
        assert [str(error) for error in report.failures if error.error > least] == []
    states = [state for state in states if calm(mjm, state)]
    if not states:
        return
    rollout = testing.rollout_parity(mjm, states, NSTEP, perturbation=PERTURBATION)
    assert rollout.ratio(rollout.horizon()) <= 100.0
