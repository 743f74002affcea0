"""The packaged models: sizes and masses of the well-known ones, subset, stability, and lookup by name."""

from __future__ import annotations

import importlib.util
import re
import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass
from pathlib import Path

import mujoco
import numpy as np
import pytest

from mujoco_torch._src.zoo import MODELS, ModelNotFoundError, model_path


@dataclass(frozen=True)
class Known:
    """Documented facts of a model: sizes, gears by actuator, masses [kg] by body; and our contact slots."""

    nq: int
    nv: int
    gears: tuple[float, ...]
    masses: tuple[float, ...]
    mass: float
    integrator: mujoco.mjtIntegrator
    slots: int
    gymnasium: str | None = None

    @property
    def nu(self) -> int:
        return len(self.gears)


EULER = mujoco.mjtIntegrator.mjINT_EULER
RK4 = mujoco.mjtIntegrator.mjINT_RK4

LEG = (4.752, 2.756, 1.131)
ARM = (1.661, 0.961, 0.268)
KNOWN = {
    "humanoid": Known(
        nq=28,
        nv=27,
        gears=(40, 40, 40, *(40, 40, 120, 80, 20, 20) * 2, *(20, 20, 40) * 2),
        masses=(5.854, 3.054, 2.262, 6.616, *LEG, *LEG, *ARM, *ARM),
        mass=40.844,
        integrator=EULER,
        slots=43,
    ),
    "ant": Known(
        nq=15,
        nv=14,
        gears=(150,) * 8,
        masses=(0.4838, *(0.0392, 0.0676) * 4),
        mass=0.911,
        integrator=EULER,
        slots=17,
        gymnasium="ant.xml",
    ),
    "halfcheetah": Known(
        nq=9,
        nv=9,
        gears=(120, 90, 60, 120, 60, 30),
        masses=(6.25, 1.544, 1.587, 1.095, 1.438, 1.201, 0.885),
        mass=14.0,
        integrator=EULER,
        slots=16,
        gymnasium="half_cheetah.xml",
    ),
    "hopper": Known(
        nq=6,
        nv=6,
        gears=(200,) * 3,
        masses=(3.665, 4.058, 2.781, 5.316),
        mass=15.82,
        integrator=EULER,
        slots=8,
        gymnasium="hopper.xml",
    ),
    "walker2d": Known(
        nq=9,
        nv=9,
        gears=(100,) * 6,
        masses=(3.665, *(4.058, 2.781, 3.167) * 2),
        mass=23.677,
        integrator=RK4,
        slots=14,
        gymnasium="walker2d_v5.xml",
    ),
}

SUBSET = {
    "mujoco": {"model"},
    "option": {"timestep", "integrator", "iterations", "ls_iterations"},
    "statistic": {"center", "extent"},
    "default": {"class"},
    "worldbody": set(),
    "body": {"name", "pos"},
    "freejoint": {"name"},
    "joint": {"name", "class", "type", "axis", "pos", "range", "ref", "armature", "damping", "stiffness"}
    | {"solimplimit"},
    "geom": {"name", "class", "type", "size", "fromto", "mass", "rgba"}
    | {"contype", "conaffinity", "condim", "friction", "solref", "solimp"},
    "light": {"name", "directional", "pos", "dir"},
    "camera": {"name", "mode", "pos", "xyaxes"},
    "contact": set(),
    "pair": {"name", "geom1", "geom2", "condim"},
    "actuator": set(),
    "motor": {"name", "joint", "gear", "ctrlrange"},
    "keyframe": set(),
    "key": {"name", "qpos"},
}

PLANE, SPHERE, CAPSULE = (
    mujoco.mjtGeom.mjGEOM_PLANE,
    mujoco.mjtGeom.mjGEOM_SPHERE,
    mujoco.mjtGeom.mjGEOM_CAPSULE,
)
FLOOR = 0


@pytest.fixture(params=MODELS)
def name(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def mjm(name: str) -> mujoco.MjModel:
    return load(name)


def load(name: str) -> mujoco.MjModel:
    return mujoco.MjModel.from_xml_path(str(model_path(name)))


def geom_height(mjm: mujoco.MjModel, mjd: mujoco.MjData) -> np.ndarray:
    """Height [m] of the lowest point of every geom but the floor, (ngeom - 1,)."""
    half_length = np.where(mjm.geom_type == CAPSULE, mjm.geom_size[:, 1], 0.0)
    reach = mjm.geom_size[:, 0] + half_length * np.abs(mjd.geom_xmat[:, 8])
    return (mjd.geom_xpos[:, 2] - reach)[FLOOR + 1 :]


def slot_count(mjm: mujoco.MjModel) -> int:
    """Contacts that every candidate pair together can give: two where a capsule meets a plane or capsule."""
    floor_pairs = [(FLOOR, g) for g in range(mjm.ngeom) if g != FLOOR]
    pairs = floor_pairs + list(zip(mjm.pair_geom1, mjm.pair_geom2, strict=True))
    return sum(1 if SPHERE in mjm.geom_type[list(pair)] else 2 for pair in pairs)


def test_every_packaged_file_is_listed() -> None:
    folder = model_path("humanoid").parent
    assert sorted(path.stem for path in folder.glob("*.xml")) == sorted(MODELS)
    assert set(KNOWN) == set(MODELS)


def test_sizes(name: str, mjm: mujoco.MjModel) -> None:
    known = KNOWN[name]
    assert (mjm.nq, mjm.nv, mjm.nu) == (known.nq, known.nv, known.nu)
    assert mjm.opt.integrator == known.integrator
    assert mjm.opt.solver == mujoco.mjtSolver.mjSOL_NEWTON
    assert mjm.opt.cone == mujoco.mjtCone.mjCONE_PYRAMIDAL


def test_actuators_drive_every_joint_but_the_root(name: str, mjm: mujoco.MjModel) -> None:
    root_joints = 1 if mjm.jnt_type[0] == mujoco.mjtJoint.mjJNT_FREE else 3
    np.testing.assert_array_equal(mjm.actuator_trnid[:, 0], np.arange(root_joints, mjm.njnt))
    np.testing.assert_array_equal(mjm.actuator_gear[:, 0], KNOWN[name].gears)
    np.testing.assert_array_equal(mjm.actuator_ctrlrange, [[-1.0, 1.0]] * mjm.nu)
    assert mjm.actuator_ctrllimited.all()
    assert mjm.jnt_limited[root_joints:].all()
    assert not mjm.jnt_limited[:root_joints].any()


def test_masses(name: str, mjm: mujoco.MjModel) -> None:
    known = KNOWN[name]
    np.testing.assert_allclose(mjm.body_mass[1:], known.masses, rtol=1e-12)
    assert mjm.body_mass.sum() == pytest.approx(known.mass, abs=1e-9)


def test_sizes_gears_and_masses_equal_gymnasium(name: str, mjm: mujoco.MjModel) -> None:
    known = KNOWN[name]
    if known.gymnasium is None:
        pytest.skip(f"gymnasium has no {name} of this size")
    package = importlib.util.find_spec("gymnasium")
    if package is None or package.origin is None:
        pytest.skip("gymnasium is not installed")
    path = Path(package.origin).parent / "envs" / "mujoco" / "assets" / known.gymnasium
    if not path.is_file():
        pytest.skip(f"this gymnasium has no {known.gymnasium}")
    other = mujoco.MjModel.from_xml_path(str(path))
    assert (mjm.nq, mjm.nv, mjm.nu) == (other.nq, other.nv, other.nu)
    assert sorted(mjm.actuator_gear[:, 0]) == sorted(other.actuator_gear[:, 0])
    # Our masses are theirs rounded to a gram (a tenth of a gram for the ant).
    assert mjm.body_mass.sum() == pytest.approx(other.body_mass.sum(), abs=1e-3)


def test_root(name: str, mjm: mujoco.MjModel) -> None:
    joint = mujoco.mjtJoint
    free = name in ("humanoid", "ant")
    expected = [joint.mjJNT_FREE] if free else [joint.mjJNT_SLIDE, joint.mjJNT_SLIDE, joint.mjJNT_HINGE]
    assert list(mjm.jnt_type[: len(expected)]) == expected
    assert (mjm.jnt_type[len(expected) :] == joint.mjJNT_HINGE).all()


def test_only_features_of_the_subset(name: str) -> None:
    for element in ElementTree.parse(model_path(name)).iter():
        assert element.tag in SUBSET
        unknown = set(element.attrib) - SUBSET[element.tag]
        assert not unknown, f"<{element.tag}> has {unknown}"


def test_library_supports_the_model(mjm: mujoco.MjModel) -> None:
    from mujoco_torch._src.check import check

    assert check(mjm) == ()


def test_contact_candidates(name: str, mjm: mujoco.MjModel) -> None:
    """The floor meets every other geom; geoms meet each other only in the listed pairs."""
    assert mjm.geom_type[FLOOR] == PLANE
    assert np.isin(mjm.geom_type[FLOOR + 1 :], (SPHERE, CAPSULE)).all()
    meets = (mjm.geom_contype[:, None] & mjm.geom_conaffinity) | (
        mjm.geom_conaffinity[:, None] & mjm.geom_contype
    )
    assert meets[FLOOR, FLOOR + 1 :].all()
    assert not meets[FLOOR + 1 :, FLOOR + 1 :].any()
    assert mjm.npair == (7 if name == "humanoid" else 0)
    assert slot_count(mjm) == KNOWN[name].slots


def test_loads_without_warnings(name: str, capfd: pytest.CaptureFixture[str]) -> None:
    load(name)
    captured = capfd.readouterr()
    assert "WARNING" not in captured.out + captured.err


def test_a_compiler_warning_would_be_seen(capfd: pytest.CaptureFixture[str]) -> None:
    mujoco.MjModel.from_xml_string("<mujoco><compiler settotalmass='1'/></mujoco>")
    captured = capfd.readouterr()
    assert "WARNING" in captured.out + captured.err


def test_first_keyframe_stands_on_the_floor(mjm: mujoco.MjModel) -> None:
    assert mjm.key(0).name == "stand"
    mjd = mujoco.MjData(mjm)
    for key in range(mjm.nkey):
        mujoco.mj_resetDataKeyframe(mjm, mjd, key)
        qpos = mjd.qpos.copy()
        mujoco.mj_normalizeQuat(mjm, mjd.qpos)
        np.testing.assert_allclose(mjd.qpos, qpos, rtol=1e-12)
        mujoco.mj_forward(mjm, mjd)
        np.testing.assert_allclose(geom_height(mjm, mjd).min(), -0.0005, atol=1e-4)
        assert mjd.ncon >= 2
        assert all(FLOOR in contact.geom for contact in mjd.contact)
        assert mjd.nefc == 4 * mjd.ncon, "no joint is at its limit"
        assert (mjd.qfrc_constraint[[0, 1, 2]] != 0).any()


def test_default_pose_is_the_stand(mjm: mujoco.MjModel) -> None:
    np.testing.assert_allclose(mjm.key_qpos[0], mjm.qpos0, atol=1e-3)


def test_random_control_stays_finite_and_on_the_floor(mjm: mujoco.MjModel) -> None:
    """2,000 steps; the controls hold for ten steps each, so that the limbs reach their limits."""
    rng = np.random.default_rng(0)
    mjd = mujoco.MjData(mjm)
    mujoco.mj_resetDataKeyframe(mjm, mjd, 0)
    most_contacts = 0
    for step in range(2000):
        if step % 10 == 0:
            mjd.ctrl[:] = rng.uniform(-1, 1, mjm.nu)
        mujoco.mj_step(mjm, mjd)
        most_contacts = max(most_contacts, mjd.ncon)
        # A fast limb sinks in by a few centimetres before the soft contact turns it round.
        assert geom_height(mjm, mjd).min() > -0.1, f"through the floor at step {step}"
    assert np.isfinite(mjd.qpos).all()
    assert np.isfinite(mjd.qvel).all()
    assert np.abs(mjd.qvel).max() < 150
    # Nothing jumped away: the robot is still within its own size of the floor.
    assert geom_height(mjm, mjd).min() < 1
    assert most_contacts >= 2
    assert not any(warning.number for warning in mjd.warning)


def test_solver_converges_within_the_models_iterations(name: str, mjm: mujoco.MjModel) -> None:
    """Cold-started accelerations equal those of a tightly converged solve to 1e-6 (relative)."""
    tight = load(name)
    tight.opt.iterations, tight.opt.ls_iterations, tight.opt.tolerance = 100, 50, 1e-12
    rng = np.random.default_rng(1)
    mjd, ref = mujoco.MjData(mjm), mujoco.MjData(tight)
    mujoco.mj_resetDataKeyframe(mjm, mjd, 0)
    for step in range(1000):
        mjd.ctrl[:] = rng.uniform(-1, 1, mjm.nu)
        mujoco.mj_step(mjm, mjd)
        if step % 10:
            continue
        # Fresh data: the warm start is zero, as far from the solution as it gets.
        ref.qpos[:], ref.qvel[:], ref.ctrl[:] = mjd.qpos, mjd.qvel, mjd.ctrl
        mujoco.mj_forward(tight, ref)
        probe = mujoco.MjData(mjm)
        probe.qpos[:], probe.qvel[:], probe.ctrl[:] = mjd.qpos, mjd.qvel, mjd.ctrl
        mujoco.mj_forward(mjm, probe)
        scale = max(1.0, np.abs(ref.qacc).max())
        np.testing.assert_allclose(probe.qacc, ref.qacc, rtol=0, atol=1e-6 * scale)
        assert probe.solver_niter.max() < mjm.opt.iterations


def test_humanoid_self_contacts_happen() -> None:
    mjm = load("humanoid")
    mjd = mujoco.MjData(mjm)
    mujoco.mj_resetDataKeyframe(mjm, mjd, 0)
    for side in ("right", "left"):
        mjd.joint(f"{side}_hip_roll").qpos = 0.2
    mujoco.mj_forward(mjm, mjd)
    touching = {contact.dim for contact in mjd.contact if FLOOR not in contact.geom}
    assert touching == {1}


def test_model_path_of_packaged_names(name: str) -> None:
    path = model_path(name)
    assert path.is_file()
    assert path == model_path(f"{name}.xml")


def test_model_path_keeps_an_existing_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = tmp_path / "humanoid.xml"
    own.write_text("<mujoco/>")
    assert model_path(own) == own
    assert model_path(str(own)) == own
    monkeypatch.chdir(tmp_path)
    assert model_path("humanoid.xml") == Path("humanoid.xml")
    assert model_path("humanoid").parent != tmp_path


@pytest.mark.parametrize(
    ("wrong", "near"),
    [
        ("humanod", "humanoid"),
        ("half_cheetah.xml", "halfcheetah"),
        ("Hopper", "hopper"),
        ("some/walker.xml", "walker2d"),
    ],
)
def test_unknown_name_suggests_the_nearest(wrong: str, near: str) -> None:
    with pytest.raises(ModelNotFoundError, match=re.escape(f"did you mean {near!r}?")) as error:
        model_path(wrong)
    message = str(error.value)
    assert repr(wrong) in message
    assert all(model in message for model in MODELS)
    assert "\n" not in message
    assert isinstance(error.value, FileNotFoundError)


def test_unknown_name_without_a_neighbour() -> None:
    with pytest.raises(ModelNotFoundError) as error:
        model_path("zzz.xml")
    assert "did you mean" not in str(error.value)


def test_a_directory_is_not_a_model(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match="is a directory"):
        model_path(tmp_path)
