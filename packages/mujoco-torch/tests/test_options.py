"""Options and kinds of models, one by one, over a rollout against MuJoCo C."""

import mujoco
import numpy as np
import pytest
import torch

import mujoco_torch as mjt
from mujoco_torch import testing

NSTEP = 20
#: Of every field, relative to its scale, after the rollout: rounding, grown by stiff contacts.
PARITY = 1e-10
#: What the solver's last bits do to forces of stiff rows.
SOLVED = dict.fromkeys(
    ("qacc", "qfrc_constraint", "efc_force", "qacc_warmstart", "efc_vel", "efc_aref"), 1e-07
)
FIELDS = [name for name in testing.FIELDS if name != "efc_J"]

ZOO = """
<mujoco model="zoo">
  <option timestep="0.004" impratio="1.5"/>
  <worldbody>
    <geom name="floor" type="plane" size="2 2 0.1" solref="0.006 1" priority="1"/>
    <body name="trunk" pos="0 0 0.22">
      <freejoint/>
      <geom type="capsule" size="0.1" fromto="-0.15 0 0 0.15 0 0" condim="4" friction="0.7 0.01 0.001"/>
      <body name="arm" pos="0.3 0 0">
        <joint name="shoulder" type="ball" damping="0.02" stiffness="0.8" range="0 25"/>
        <geom type="capsule" size="0.04" fromto="0 0 0 0.2 0 -0.1" condim="1"/>
        <body name="hand" pos="0.2 0 -0.1">
          <joint name="wrist" axis="0 1 0" damping="0.05" stiffness="1" springref="20" range="-15 15" margin="0.02"/>
          <joint name="reach" type="slide" axis="1 0 0" damping="1" stiffness="40" range="-0.02 0.02"/>
          <geom type="sphere" size="0.05" margin="0.01" gap="0.004"/>
        </body>
      </body>
      <body name="leg" pos="-0.1 0.02 -0.05">
        <joint name="hip" axis="0 1 0.2" armature="0.01" damping="0.1"/>
        <geom type="capsule" size="0.04" fromto="0 0 0 -0.05 0 -0.2" condim="6"/>
      </body>
    </body>
    <body name="ball" pos="0.25 0.02 0.45">
      <freejoint/>
      <geom type="sphere" size="0.08" condim="6"/>
    </body>
  </worldbody>
  <actuator>
    <motor joint="shoulder" gear="0.2 0.1 -0.3" ctrllimited="true" ctrlrange="-0.5 0.5"/>
    <position joint="wrist" kp="5" forcelimited="true" forcerange="-0.5 0.4"/>
    <motor joint="hip" gear="2" ctrllimited="true" ctrlrange="-1 0.3"/>
    <velocity joint="reach" kv="3"/>
  </actuator>
</mujoco>
"""


def compiled(xml: str) -> mujoco.MjModel:
    return mujoco.MjModel.from_xml_string(xml)


def rollout_parity(
    mjm: mujoco.MjModel, states: list[mujoco.MjData] | None = None, nstep: int = NSTEP
) -> list[mujoco.MjData]:
    """Asserts that all of Data equals C's after a rollout and a forward; returns C's worlds.

    The solver goes on to the last bit: where it stops early, rounding decides.
    """
    mjm = testing.converged(mjm, tolerance=0.0)
    mjds = [testing.copy_state(mjm, state) for state in (states or testing.perturbed_states(mjm, 4, seed=3))]
    m = mjt.put_model(mjm, dtype=torch.float64)
    d = mjt.put_data(m, mjds)
    for _ in range(nstep):
        d = mjt.step(m, d)
        for mjd in mjds:
            mujoco.mj_step(mjm, mjd)
    assert not any(warning.number for mjd in mjds for warning in mjd.warning)
    d = mjt.forward(m, d)
    for mjd in mjds:
        mujoco.mj_forward(mjm, mjd)
    testing.compare(m, d, mjds, FIELDS, dict.fromkeys(FIELDS, PARITY) | SOLVED).raise_for_failures()
    return mjds


# ------------------------------------------------------------------------------------- disable flags

HONOURED = (
    "CONSTRAINT", "EQUALITY", "FRICTIONLOSS", "LIMIT", "CONTACT", "SPRING", "DAMPER", "GRAVITY", "CLAMPCTRL",
    "WARMSTART", "FILTERPARENT", "ACTUATION", "REFSAFE", "SENSOR", "MIDPHASE", "EULERDAMP", "AUTORESET", "NATIVECCD",
    "ISLAND", "MULTICCD",
)  # fmt: skip

#: Flags that only switch what a supported model has not got, or how C gets to the same result.
WITHOUT_EFFECT = {
    "EQUALITY", "FRICTIONLOSS", "WARMSTART", "SENSOR", "MIDPHASE", "AUTORESET", "NATIVECCD", "ISLAND", "MULTICCD",
}  # fmt: skip


def strained_states() -> list[mujoco.MjData]:
    """Worlds of the plain model, with controls far beyond their ranges."""
    states = testing.perturbed_states(compiled(ZOO), 4, seed=3)
    for state in states:
        state.ctrl *= 3.0
    return states


def flagged(*flags: str) -> mujoco.MjModel:
    mjm = compiled(ZOO)
    for flag in flags:
        mjm.opt.disableflags |= int(getattr(mujoco.mjtDisableBit, f"mjDSBL_{flag}"))
    return mjm


def test_the_list_of_flags_is_complete() -> None:
    """Every flag of C is honoured, and so tested here, or refused."""
    for flag in mujoco.mjtDisableBit.__members__:
        name = flag.removeprefix("mjDSBL_")
        if flag.startswith("mjDSBL_"):
            assert bool(mjt.check(flagged(name))) == (name not in HONOURED), name


@pytest.mark.parametrize("integrator", ["EULER", "RK4"])
@pytest.mark.parametrize("flag", HONOURED)
def test_disable_flag(flag: str, integrator: str) -> None:
    mjm = flagged(flag)
    mjm.opt.integrator = int(getattr(mujoco.mjtIntegrator, f"mjINT_{integrator}"))
    states = strained_states()  # of the plain model: what it rests on is to vanish with the flag
    flagged_worlds = rollout_parity(mjm, states, NSTEP if integrator == "EULER" else 5)
    if integrator == "EULER":
        plain = testing.converged(compiled(ZOO), tolerance=0.0)
        plain_worlds = [testing.copy_state(plain, state) for state in states]
        for mjd in plain_worlds:
            mujoco.mj_step(plain, mjd, NSTEP)
        moved = max(np.abs(a.qpos - b.qpos).max() for a, b in zip(flagged_worlds, plain_worlds, strict=True))
        assert (moved < 1e-9) == (flag in WITHOUT_EFFECT), f"the flag moves the model by {moved}"


def test_flags_together() -> None:
    rollout_parity(flagged("SPRING", "DAMPER"))
    rollout_parity(flagged("DAMPER", "EULERDAMP"))
    rollout_parity(flagged("CLAMPCTRL", "WARMSTART", "REFSAFE", "FILTERPARENT"))


@pytest.mark.parametrize("ls_iterations", [1, 50])
@pytest.mark.parametrize("iterations", [1, 3])
@pytest.mark.parametrize("flag", [(), ("WARMSTART",)])
def test_few_iterations_and_the_warm_start(
    flag: tuple[str, ...], iterations: int, ls_iterations: int
) -> None:
    """Cut short, the result depends on where the solver starts: ours starts and stops where C does."""
    mjm = flagged(*flag, "ISLAND")
    mjm.opt.iterations, mjm.opt.ls_iterations = iterations, ls_iterations
    mjds = testing.perturbed_states(mjm, 4, seed=3)
    m = mjt.put_model(mjm, dtype=torch.float64)
    d = mjt.put_data(m, mjds)
    for _ in range(3):
        d = mjt.step(m, d)
        for mjd in mjds:
            mujoco.mj_step(mjm, mjd)
    testing.compare(m, d, mjds, testing.STATE_FIELDS, 1e-8).raise_for_failures()


@pytest.mark.parametrize("gravity", [(0, 0, 0), (1.0, -2.0, 3.0)])
def test_gravity(gravity: tuple[float, ...]) -> None:
    mjm = compiled(ZOO)
    mjm.opt.gravity = gravity
    rollout_parity(mjm)


# ------------------------------------------------------------------------------------------ actuators


def test_force_ranges_of_joints_and_actuators() -> None:
    """Clamped one after the other: controls, then forces, then the sum of forces on the joint."""
    mjm = compiled("""
        <mujoco>
          <worldbody>
            <body>
              <joint name="a" axis="0 1 0" actuatorfrcrange="-1 0.5"/>
              <geom type="capsule" size="0.05" fromto="0 0 0 0.3 0 0" contype="0" conaffinity="0"/>
              <body pos="0.3 0 0">
                <joint name="b" type="slide" axis="1 0 0" actuatorfrcrange="-2 3"/>
                <geom size="0.05" contype="0" conaffinity="0"/>
              </body>
            </body>
          </worldbody>
          <actuator>
            <motor joint="a" gear="3" forcerange="-0.3 0.2"/>
            <position joint="a" kp="5" forcerange="-4 4"/>
            <motor joint="b" gear="4" ctrlrange="-0.5 0.5"/>
            <general joint="b" gaintype="affine" gainprm="2 -1 0.5" biastype="affine" biasprm="0.3 -2 -0.1"/>
          </actuator>
        </mujoco>""")
    states = testing.perturbed_states(mjm, 6, seed=1)
    for state in states:
        state.ctrl *= 3.0
    mjds = rollout_parity(mjm, states)
    forces = np.stack([mjd.qfrc_actuator for mjd in mjds])
    assert {-1.0, 0.5} <= set(forces[:, 0])


# ---------------------------------------------------------------------------------------- orientations

BALL = """
<mujoco>
  <worldbody>
    <body>
      <joint name="ball" type="ball" range="0 40" stiffness="2" springref="0"/>
      <geom type="capsule" size="0.05" fromto="0 0 0 0.3 0 0"/>
    </body>
    <body pos="0 1 0"><freejoint/><geom type="sphere" size="0.1"/></body>
  </worldbody>
  <actuator><motor joint="ball" gear="1 0.5 0.2"/></actuator>
</mujoco>
"""


@pytest.mark.parametrize("angle", [0.0, 0.3, 0.8, 2.0, 3.1])
def test_both_quaternions_of_an_orientation(angle: float) -> None:
    """A limit, a spring and an actuator on a ball joint act alike at q and -q."""
    mjm = compiled(BALL)
    quat = np.zeros(4)
    mujoco.mju_axisAngle2Quat(quat, np.array([0.48, 0.6, -0.64]), angle)
    states = []
    for sign in (1.0, -1.0):
        mjd = mujoco.MjData(mjm)
        mjd.qpos[:4] = sign * quat
        mjd.qpos[7:11] *= sign
        mjd.qvel[:3] = (1.0, -2.0, 0.5)
        mjd.ctrl = 0.3
        states.append(mjd)
    first, second = rollout_parity(mjm, states)
    np.testing.assert_allclose(first.qvel, second.qvel, rtol=0, atol=1e-9)
    assert bool(first.nefc) == (angle > 0.5)


@pytest.mark.parametrize("scale", [0.5, 3.0, 0.0])
def test_quaternions_that_are_not_normalized(scale: float) -> None:
    """C normalizes them where it uses them; one that is all zero counts as the identity."""
    mjm = testing.converged(compiled(BALL), tolerance=0.0)
    mjds = testing.perturbed_states(mjm, 2, seed=2)
    for mjd in mjds:
        mjd.qpos[:4] *= scale
        mjd.qpos[7:11] *= scale
    m = mjt.put_model(mjm, dtype=torch.float64)
    d = mjt.put_data(m, mjds)
    computed = mjt.forward(m, d)
    d = mjt.step(m, d)
    for mjd in mjds:
        mujoco.mj_forward(mjm, mjd)
    testing.compare(
        m, computed, mjds, ["xpos", "xquat", "xmat", "qfrc_spring", "qacc"], 1e-9
    ).raise_for_failures()
    for mjd in mjds:
        mujoco.mj_step(mjm, mjd)
    testing.compare(m, d, mjds, ["qpos", "qvel"], 1e-9).raise_for_failures()


# --------------------------------------------------------------------------------- cameras and lights


def test_cameras_and_lights_in_all_modes() -> None:
    modes = ("fixed", "track", "trackcom", "targetbody", "targetbodycom")
    looking = {mode: ' target="target"' if mode.startswith("target") else "" for mode in modes}
    cameras = "".join(
        f'<camera pos="0.3 {i} 0.5" euler="{10 * i} 20 30" mode="{mode}"{looking[mode]}/>'
        f'<light pos="0.1 {i} 0.9" dir="0.2 {0.1 * i} -1" mode="{mode}"{looking[mode]}/>'
        for i, mode in enumerate(modes)
    )
    mjm = compiled(f"""
        <mujoco>
          <worldbody>
            {cameras}
            <body pos="0 0 1" euler="10 20 30">
              <freejoint/>
              <geom type="capsule" size="0.05" fromto="0 0 0 0.3 0 0.1"/>
              {cameras}
              <body name="target" pos="0.4 0 0">
                <joint axis="0 1 0"/>
                <geom type="sphere" size="0.1" pos="0.1 0.1 0"/>
                {cameras}
              </body>
            </body>
          </worldbody>
        </mujoco>""")
    assert {int(mode) for mode in mjm.cam_mode} == {int(mode) for mode in mjm.light_mode} == set(range(5))
    rollout_parity(mjm)


# ------------------------------------------------------------------------------------ shapes of models


def test_nested_bodies_without_joints() -> None:
    """Bodies welded to each other and to the world, with geoms, sites and inertia."""
    mjds = rollout_parity(
        compiled("""
        <mujoco>
          <worldbody>
            <body pos="0 0 0.1" euler="0 5 0">
              <geom type="plane" size="1 1 0.1"/>
              <body pos="0.3 0 0"><geom type="capsule" size="0.05 0.1" euler="90 0 0"/><site pos="0 0 1"/></body>
            </body>
            <body pos="0 0 0.35">
              <freejoint/>
              <geom type="sphere" size="0.1"/>
              <body pos="0.1 0 0" euler="0 0 40">
                <body pos="0.1 0 0" euler="0 30 0">
                  <geom type="capsule" size="0.04" fromto="0 0 0 0.2 0 0"/>
                  <body pos="0.2 0 0">
                    <joint axis="0 1 0"/>
                    <geom type="sphere" size="0.06"/>
                    <body pos="0.1 0 0"><inertial pos="0 0 0.1" mass="0.2" diaginertia="0.001 0.002 0.0015"/></body>
                  </body>
                </body>
              </body>
            </body>
          </worldbody>
        </mujoco>""")
    )
    assert any(mjd.ncon for mjd in mjds)


def test_frames_that_are_almost_the_same() -> None:
    """A frame within 1e-6 of the body's or of its inertia's is taken for it, as in C, which the compiler decides."""
    mjm = compiled("""
        <mujoco>
          <worldbody>
            <body pos="0 0 1" euler="10 20 30">
              <freejoint/>
              <inertial pos="3e-7 -2e-7 1e-7" quat="1 2e-7 -1e-7 3e-7" mass="1" diaginertia="0.1 0.2 0.15"/>
              <geom size="0.1" pos="2e-7 4e-7 -3e-7" quat="1 1e-7 2e-7 -2e-7"/>
              <site pos="1e-7 -3e-7 2e-7"/>
              <site pos="0.1 0 0" quat="1 2e-7 0 1e-7"/>
            </body>
            <body pos="1 0 1">
              <joint type="ball"/>
              <inertial pos="0.1 0.02 0" quat="0.9 0.1 0.3 -0.2" mass="1" diaginertia="0.1 0.2 0.15"/>
              <geom type="box" size="0.1 0.2 0.3" pos="0.1000002 0.0199999 2e-7" quat="0.9 0.1 0.3 -0.2"
                contype="0" conaffinity="0"/>
              <site pos="0.2 0 0" quat="0.9000001 0.1 0.3 -0.2"/>
            </body>
          </worldbody>
        </mujoco>""")
    kinds = [getattr(mujoco.mjtSameFrame, f"mjSAMEFRAME_{kind}") for kind in ("BODY", "INERTIA")]
    assert mjm.body_sameframe[1] == kinds[0] and list(mjm.geom_sameframe) == kinds
    rollout_parity(mjm)


def test_trees_in_contact_with_each_other() -> None:
    stack = "".join(
        f'<body pos="{0.01 * i} {0.012 * i} {0.1 + 0.19 * i}"><freejoint/><geom {shape}/></body>'
        for i, shape in enumerate(
            ['type="sphere" size="0.1"', 'type="capsule" size="0.1 0.1" euler="90 0 0"'] * 2
        )
    )
    mjds = rollout_parity(
        compiled(f"""
        <mujoco>
          <option timestep="0.003"/>
          <worldbody>
            <geom type="plane" size="1 1 0.1"/>{stack}
            <body pos="0.2 0 0.25">
              <joint axis="0 1 0" damping="0.1"/>
              <geom type="capsule" size="0.05" fromto="0 0 0 -0.15 0 0"/>
            </body>
          </worldbody>
        </mujoco>"""),
        nstep=10,
    )
    bodies = {
        tuple(mjd.model.geom_bodyid[geom] for geom in contact.geom) for mjd in mjds for contact in mjd.contact
    }
    assert any(0 not in pair for pair in bodies)


WITHOUT = {
    "joints": """<geom type="plane" size="1 1 0.1"/><body pos="0 0 0.5"><geom size="0.1"/><site/></body>""",
    "actuators": """<geom type="plane" size="1 1 0.1"/><body pos="0 0 0.09"><freejoint/><geom size="0.1"/></body>""",
    "contacts": """<body><joint axis="0 1 0" range="-5 5"/><geom size="0.1" pos="0.2 0 0"/></body>""",
    "rows": """<body><joint axis="0 1 0"/><geom size="0.1" pos="0.2 0 0" contype="0" conaffinity="0"/></body>""",
    "geoms": """<body><joint type="ball" range="0 10"/>
      <inertial pos="0.1 0 0" mass="1" diaginertia="0.1 0.2 0.15"/></body>""",
    "bodies": """<geom type="plane" size="1 1 0.1"/>""",
    "anything": "",
}


@pytest.mark.parametrize("integrator", ["Euler", "RK4"])
@pytest.mark.parametrize("what", WITHOUT)
def test_models_without(what: str, integrator: str) -> None:
    mjm = compiled(
        f'<mujoco><option integrator="{integrator}"/><worldbody>{WITHOUT[what]}</worldbody></mujoco>'
    )
    mjds = rollout_parity(mjm)
    empty = {"joints": "njnt", "actuators": "nu", "geoms": "ngeom", "anything": "ngeom"}
    assert getattr(mjm, empty.get(what, "nu")) == 0
    if what in ("contacts", "rows", "geoms"):
        assert not any(mjd.ncon for mjd in mjds)


@pytest.mark.parametrize("what", WITHOUT)
def test_data_of_models_without(what: str) -> None:
    """One world and many, in both types; a gradient where something moves."""
    mjm = compiled(f"<mujoco><worldbody>{WITHOUT[what]}</worldbody></mujoco>")
    for dtype in (torch.float32, torch.float64):
        m = mjt.put_model(mjm, dtype=dtype)
        for d in (mjt.make_data(m), mjt.make_data(m, 3)):
            after = mjt.step(m, mjt.step(m, d))
            assert after.batch_size == d.batch_size
            assert after.qpos.shape == d.qpos.shape
            assert after.qpos.isfinite().all()
            torch.testing.assert_close(after.time, torch.full_like(d.time, 2 * mjm.opt.timestep))


def test_only_contacts() -> None:
    """Spheres on a plane and on each other, without actuators, limits, springs or dampers."""
    mjds = rollout_parity(
        compiled("""
        <mujoco>
          <worldbody>
            <geom type="plane" size="1 1 0.1" condim="1"/>
            <body pos="0 0 0.09"><freejoint/><geom size="0.1" condim="1"/></body>
            <body pos="0.19 0 0.1"><freejoint/><geom size="0.1" condim="3"/></body>
            <body pos="0.1 0.02 0.26"><freejoint/><geom size="0.1" condim="4"/></body>
          </worldbody>
        </mujoco>""")
    )
    assert any(mjd.ncon for mjd in mjds)
