"""Springs, dampers, yielding, gravity compensation and the medium, against MuJoCo C on models of each rule."""

import functools
import importlib.util
import itertools
from pathlib import Path

import mujoco
import numpy as np
import pytest
import torch

import mujoco_torch as mjt
from mujoco_torch import testing

NWORLD = 4
STAGES = ("passive", "fwd_velocity", "forward", "euler", "step")

POLYNOMIALS = """
<mujoco model="polynomials">
  <option gravity="0 0 -2" timestep="0.002"/>
  <default><geom contype="0" conaffinity="0"/></default>
  <worldbody>
    <body name="floating" pos="0 0 1" quat="0.9 0.2 -0.1 0.3">
      <joint name="free" type="free" stiffness="3 -2 5" damping="0.3 0.5 0.2"/>
      <geom type="ellipsoid" size="0.1 0.15 0.2" pos="0.05 0 0"/>
      <body name="wrist" pos="0.2 0 0">
        <joint name="ball" type="ball" stiffness="0 1.5 0" damping="0 0 0.05" pos="0 0 0.02"/>
        <geom type="capsule" size="0.05" fromto="0 0 0 0.2 0.1 0"/>
        <body name="finger" pos="0.2 0.1 0">
          <joint name="hinge" axis="0 1 0.3" stiffness="2 3 4" springref="25" damping="0.1 0.2"/>
          <joint name="slide" type="slide" axis="1 0 0" stiffness="20 -30 400" damping="0 2" springref="0.05"/>
          <geom size="0.06" pos="0.1 0 0"/>
        </body>
      </body>
    </body>
    <body name="plain" pos="1 0 0">
      <joint name="linear" axis="0 1 0" stiffness="4" damping="0.5"/>
      <joint name="negative" axis="1 0 0" damping="-0.1"/>
      <geom size="0.1" pos="0.2 0 -0.1"/>
    </body>
  </worldbody>
</mujoco>
"""

PLASTIC = """
<mujoco model="plastic">
  <option gravity="0 0 -3" timestep="0.01"/>
  <default><geom contype="0" conaffinity="0"/></default>
  <worldbody>
    <body name="base">
      <joint name="bent" axis="0 1 0" stiffness="5 1 2" springref="10" springyield="6" damping="0.05"/>
      <geom type="capsule" size="0.04" fromto="0 0 0 0.3 0 0"/>
      <body name="elastic-hand" pos="0.3 0 0">
        <joint name="elastic-ball" type="ball" stiffness="2"/>
        <geom type="capsule" size="0.04" fromto="0 0 0 0.2 0.1 0"/>
        <body name="hand" pos="0.2 0.1 0">
          <joint name="bent-ball" type="ball" stiffness="3" springyield="8" damping="0.02"/>
          <geom type="ellipsoid" size="0.05 0.08 0.12" pos="0.05 0 0"/>
        </body>
      </body>
    </body>
    <body name="cart" pos="0 1 0">
      <joint name="elastic" type="slide" axis="1 0 0" stiffness="30"/>
      <joint name="stretched" type="slide" axis="0 0 1" stiffness="40" springyield="0.04" springref="0.1"/>
      <geom size="0.1"/>
      <body name="wire" pos="0 0 0.1">
        <joint name="wire" type="ball" stiffness="0 2" springyield="5"/>
        <geom type="capsule" size="0.03" fromto="0 0 0 0 0.05 0.2"/>
        <body name="slack" pos="0 0 0.2">
          <joint name="slack" axis="1 0 0" springyield="4"/>
          <geom size="0.05" pos="0 0.05 0"/>
        </body>
      </body>
    </body>
  </worldbody>
</mujoco>
"""

MEDIUM = """
<mujoco model="medium">
  <option density="300" viscosity="1.5" wind="1 0.5 -0.3" timestep="0.002"/>
  <asset><mesh name="wedge" vertex="0 0 0  0.2 0 0  0 0.3 0  0 0 0.1"/></asset>
  <default>
    <geom contype="0" conaffinity="0"/>
    <default class="ellipsoid"><geom fluidshape="ellipsoid"/></default>
  </default>
  <worldbody>
    <geom name="fixed" class="ellipsoid" size="0.1"/>
    <body name="hull" pos="0 0 1">
      <freejoint/>
      <geom type="capsule" size="0.1 0.2" euler="20 30 0"/>
      <geom type="box" size="0.1 0.05 0.2" pos="0.2 0 0"/>
      <body name="fin" pos="-0.3 0 0" euler="10 20 30">
        <joint type="ball" damping="0.1"/>
        <geom class="ellipsoid" type="ellipsoid" size="0.1 0.15 0.02" pos="-0.1 0 0" euler="5 6 7"/>
        <geom class="ellipsoid" type="box" size="0.1 0.05 0.02" fluidcoef="0.4 0.3 1.2 0.8 0.9"/>
        <geom type="sphere" size="0.05" pos="0 0 0.1"/>
        <body name="tip" pos="-0.2 0 0">
          <geom class="ellipsoid" type="cylinder" size="0.03 0.1" euler="0 40 0"/>
        </body>
      </body>
    </body>
    <body name="arm" pos="2 0 0">
      <joint axis="0 1 0" pos="0.1 0 0"/>
      <geom class="ellipsoid" type="capsule" size="0.05 0.2" fluidcoef="0.2 0.1 0.7 0.5 0.3"/>
      <body name="rod" pos="0 0 0.4">
        <joint type="slide" axis="0 1 0" stiffness="100" damping="1 2"/>
        <inertial pos="0.1 0 0.02" mass="0.7" diaginertia="0.01 0.02 0.03" quat="0.8 0.1 0.3 0.2"/>
        <geom class="ellipsoid" type="sphere" size="0.1" fluidcoef="0 0 0 0 0"/>
        <body name="plate" pos="0.2 0 0">
          <joint axis="1 0 1"/>
          <geom class="ellipsoid" type="mesh" mesh="wedge"/>
          <body name="light" pos="0.2 0 0"><geom class="ellipsoid" size="0.1" mass="0"/></body>
        </body>
      </body>
    </body>
  </worldbody>
</mujoco>
"""

LIFTED = """
<mujoco model="lifted">
  <option gravity="1 -2 -9"/>
  <default><geom contype="0" conaffinity="0"/></default>
  <worldbody>
    <body name="drone" pos="0 0 1" gravcomp="1">
      <freejoint/>
      <geom type="box" size="0.2 0.1 0.05" pos="0.05 0 0"/>
      <body name="load" pos="0 0 -0.2" gravcomp="0.4">
        <geom size="0.05"/>
        <body name="rope" pos="0 0 -0.1">
          <joint type="ball" damping="0.01"/>
          <geom type="capsule" size="0.02" fromto="0 0 0 0 0.05 -0.3"/>
          <body name="hook" pos="0 0 -0.3" gravcomp="-1.5">
            <joint axis="1 0 0" stiffness="1"/>
            <geom size="0.03" pos="0 0.1 0"/>
          </body>
        </body>
      </body>
    </body>
    <body name="static" gravcomp="1"><geom size="0.1"/></body>
    <body name="heavy" pos="2 0 1">
      <joint name="lift" type="slide" axis="0 0.2 1"/>
      <geom size="0.1"/>
    </body>
  </worldbody>
</mujoco>
"""

MODELS = {"polynomials": POLYNOMIALS, "plastic": PLASTIC, "medium": MEDIUM, "lifted": LIFTED}


def load(name: str, integrator: str = "Euler") -> mujoco.MjModel:
    return mujoco.MjModel.from_xml_string(
        MODELS[name].replace("<option", f'<option integrator="{integrator}"')
    )


def moved_references(mjm: mujoco.MjModel, states: list[mujoco.MjData]) -> list[mujoco.MjData]:
    """Springs that have yielded before, each world another way; quaternions not of unit length."""
    rng = np.random.default_rng(3)
    for mjd in states:
        mjd.plastic += 0.1 * rng.standard_normal(mjm.nplastic)
    return states


@functools.cache
def states(name: str) -> list[mujoco.MjData]:
    mjm = load(name)
    return moved_references(mjm, testing.perturbed_states(mjm, NWORLD, seed=2, settle=20, scale=1.5))


def one_joint(joint: str, option: str = "", geom: str = "") -> mujoco.MjModel:
    geom = geom or '<geom type="ellipsoid" size="0.1 0.15 0.2" pos="0.1 0 0" mass="3"/>'
    return mujoco.MjModel.from_xml_string(
        f"<mujoco><option {option}/><worldbody><body>{joint}{geom}</body></worldbody></mujoco>"
    )


def steps_parity(mjm: mujoco.MjModel, mjds: list[mujoco.MjData], nstep: int, rtol: float = 1e-9) -> mjt.Data:
    """Compares the state after some steps, with the forces applied all the while."""
    m = mjt.put_model(mjm, dtype=torch.float64)
    mjds = [testing.copy_state(mjm, mjd) for mjd in mjds]
    d = mjt.step(m, mjt.put_data(m, mjds), nstep)
    for mjd in mjds:
        for _ in range(nstep):
            mujoco.mj_step(mjm, mjd)
    testing.compare(m, d, mjds, testing.STATE_FIELDS, rtol).raise_for_failures()
    return d


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("name", MODELS)
def test_stage(name: str, stage: str) -> None:
    testing.stage_parity(load(name), stage, states(name)).raise_for_failures()


@pytest.mark.parametrize("name", MODELS)
def test_every_force_of_the_model_acts(name: str) -> None:
    """Otherwise parity would say nothing."""
    mjm = load(name)
    mjd = testing.copy_state(mjm, states(name)[0])
    mujoco.mj_forward(mjm, mjd)
    acting = {"lifted": "qfrc_gravcomp", "medium": "qfrc_fluid"}.get(name, "qfrc_spring")
    assert np.abs(getattr(mjd, acting)).max() > 0.05


@pytest.mark.parametrize("integrator", ["Euler", "RK4"])
@pytest.mark.parametrize("name", MODELS)
def test_twenty_steps(name: str, integrator: str) -> None:
    steps_parity(load(name, integrator), states(name), 20)


FLAG_SETS = (("SPRING",), ("DAMPER",), ("SPRING", "DAMPER"), ("GRAVITY",), ("EULERDAMP",))


@pytest.mark.parametrize("flags", FLAG_SETS, ids="+".join)
@pytest.mark.parametrize("name", MODELS)
def test_disable_flags(name: str, flags: tuple[str, ...]) -> None:
    """Springs and dampers are independent, but with both disabled C has no passive force at all."""
    mjm = load(name)
    for flag in flags:
        mjm.opt.disableflags |= int(getattr(mujoco.mjtDisableBit, f"mjDSBL_{flag}"))
    testing.stage_parity(mjm, "passive", states(name)).raise_for_failures()
    steps_parity(mjm, states(name), 2)


# ------------------------------------------------------------------------------------------ damping of Euler


@pytest.mark.parametrize("kind", ["free", "ball", "slide", "hinge"])
@pytest.mark.parametrize(
    "damping", ["0.5", "0 0.2", "0 0 0.1", "0 -0.2", "-0.2 0.3", "-0.2 -0.1", "-0.2", "0.5 1 -0.05"]
)
def test_implicit_damping_takes_the_derivative(kind: str, damping: str) -> None:
    """It is implicit if any linear term is positive or there are others; terms may have any sign."""
    mjm = one_joint(f'<joint type="{kind}" damping="{damping}"/>', 'timestep="0.01"')
    testing.stage_parity(
        mjm, "step", testing.perturbed_states(mjm, NWORLD, seed=4, settle=3)
    ).raise_for_failures()


def test_a_positive_damping_makes_those_of_others_implicit() -> None:
    """Negative damping alone is explicit, beside a positive one it is not."""
    joints = '<joint axis="1 0 0" damping="0.3"/><joint axis="0 1 0" damping="-0.2"/>'
    mjm = one_joint(joints, 'timestep="0.01"')
    report = testing.stage_parity(mjm, "step", testing.perturbed_states(mjm, NWORLD, settle=3))
    assert report["qvel"].error <= testing.SMOOTH


# ------------------------------------------------------------------------------------------ yielding springs


@pytest.mark.parametrize("integrator", ["Euler", "RK4"])
def test_springs_yield_in_a_long_run(integrator: str) -> None:
    """Some springs yield and some do not, as in C; references that did not yield keep every bit."""
    mjm = load("plastic", integrator)
    start = [mujoco.MjData(mjm) for _ in range(2)]
    start[1].qvel[:] = np.linspace(-1, 1, mjm.nv)
    d = steps_parity(mjm, start, 100, rtol=1e-8)
    before = mjt.put_data(mjt.put_model(mjm, dtype=torch.float64), start).plastic
    assert (d.plastic != before).any() and (d.plastic == before).any()


def test_springs_do_not_yield_where_springs_are_disabled() -> None:
    mjm = load("plastic")
    mjm.opt.disableflags |= int(mujoco.mjtDisableBit.mjDSBL_SPRING)
    d = steps_parity(mjm, states("plastic"), 3)
    before = mjt.put_data(mjt.put_model(mjm, dtype=torch.float64), states("plastic")).plastic
    assert (d.plastic == before).all()


def test_springs_with_no_strength_slip() -> None:
    """`springyield` set to zero afterwards: the reference follows the joint."""
    mjm = load("plastic")
    mjm.jnt_springyield[:] = 0.0
    steps_parity(mjm, states("plastic"), 3)


@pytest.mark.parametrize("scale", [-1.0, 0.0, 1e-3, 1.0, 50.0])
def test_reference_quaternions_of_any_length(scale: float) -> None:
    """C reads the direction of a reference only, and a zero quaternion is no spring; unyielded, it is kept."""
    for springyield in (5, 170):
        joint = f'<joint type="ball" stiffness="4" springyield="{springyield}"/>'
        mjm = one_joint(joint, 'gravity="0 0 0" timestep="0.01"')
        mjds = testing.perturbed_states(mjm, NWORLD, settle=3)
        for mjd in mjds:
            mjd.plastic[:] = scale * np.array([0.9, 0.3, -0.2, 0.1])
        testing.stage_parity(mjm, "passive", mjds).raise_for_failures()
        steps_parity(mjm, mjds, 2)


# -------------------------------------------------------------------------------------------------- the medium


@pytest.mark.parametrize(("density", "viscosity"), [(1000, 0), (0, 2), (-50, 0), (0, -2), (5, -1), (-5, 1)])
def test_medium_of_any_sign(density: float, viscosity: float) -> None:
    """C lets a negative density or viscosity drive ellipsoids, and ignores it for boxes."""
    mjm = load("medium")
    mjm.opt.density, mjm.opt.viscosity = density, viscosity
    testing.stage_parity(mjm, "passive", states("medium")).raise_for_failures()


@pytest.mark.parametrize("axes", [(1, 1, 1), (1, 1.5, 0.5), (1, 1, 0.01), (0.02, 1, 0.02), (1, 1, 0)])
def test_ellipsoids_of_every_size_and_speed(axes: tuple[float, ...]) -> None:
    """Small and slow ones keep their digits; flat ones and bodies at rest are no division by zero."""
    for size, speed in itertools.product((1e-3, 0.1), (0.0, 1e-6, 1.0)):
        # the geom's size is set afterwards, as MuJoCo compiles no flat ellipsoid
        geom = f'<geom type="ellipsoid" size="{size} {size} {size}" mass="1" fluidshape="ellipsoid"/>'
        mjm = one_joint("<freejoint/>", 'density="800" viscosity="0.1"', geom)
        mjm.geom_size[:] = size * np.array(axes)
        mjds = [mujoco.MjData(mjm) for _ in range(NWORLD)]
        for world, mjd in enumerate(mjds):
            mjd.qvel[:] = speed * np.eye(6)[world] if world < 3 else speed * np.arange(1.0, 7.0)
            mujoco.mj_forward(mjm, mjd)
        m = mjt.put_model(mjm, dtype=torch.float64)
        d = mjt.put_data(m, mjds)
        force = mjt.passive(m, d).qfrc_fluid.numpy()
        for world, mjd in enumerate(mjds):
            scale = max(np.abs(mjd.qfrc_fluid).max(), 1e-250)
            assert np.abs(force[world] - mjd.qfrc_fluid).max() <= 1e-10 * scale


def test_light_bodies_are_in_no_medium() -> None:
    """C leaves out bodies without mass, and nothing acts on what cannot move."""
    mjm = load("medium")
    m = mjt.put_model(mjm)
    assert m.fluid_boxes == 1
    assert m.fluid_ellipsoids == 6


def stored_models() -> list[Path]:
    found = []
    for package, pattern in (
        ("gymnasium", "envs/mujoco/assets/swimmer.xml"),
        ("brax", "test_data/fluid_*.xml"),
        ("dm_control", "suite/swimmer.xml"),
        ("dm_control", "suite/fish.xml"),
    ):
        spec = importlib.util.find_spec(package)
        if spec and spec.submodule_search_locations:
            found += sorted(Path(spec.submodule_search_locations[0]).glob(pattern))
    return found


@pytest.mark.parametrize("path", stored_models(), ids=lambda path: f"{path.parts[-3]}-{path.stem}")
def test_swimmers_of_other_packages(path: Path) -> None:
    """Without their sensors, which act on nothing."""
    spec = mujoco.MjSpec.from_file(str(path))
    for sensor in spec.sensors:
        spec.delete(sensor)
    mjm = spec.compile()
    refused = {finding.feature for finding in mjt.check(mjm)}
    if refused:
        pytest.skip(f"refused for {', '.join(sorted(refused))}")
    # so slow that the explicit drag of light fins is stable
    mjds = testing.perturbed_states(mjm, NWORLD, settle=50, scale=0.1)
    testing.stage_parity(mjm, "forward", mjds).raise_for_failures()
    steps_parity(testing.converged(mjm), mjds, 20, rtol=1e-6)


# ------------------------------------------------------------------------ gravity compensation and the actuators


@pytest.mark.parametrize("motor", ['<motor joint="lift"/>', ""])
def test_compensation_through_actuators_is_not_passive(motor: str) -> None:
    """Where a joint takes it from the actuators, it is left out of the passive forces; without any, it is lost."""
    mjm = mujoco.MjModel.from_xml_string(
        LIFTED.replace("</mujoco>", f"<actuator>{motor}</actuator></mujoco>")
    )
    mjm.jnt_actgravcomp[:] = 1, 0, 1, 1
    mjds = testing.perturbed_states(mjm, NWORLD, settle=3)
    testing.stage_parity(mjm, "passive", mjds).raise_for_failures()
    testing.stage_parity(mjm, "forward", mjds).raise_for_failures()
    steps_parity(mjm, mjds, 5)


# ------------------------------------------------------------------------------------------------------ gradients


def forces(m: mjt.Model, d: mjt.Data):
    def run(qpos, qvel, plastic):
        moved = mjt.step(m, d.replace(qpos=qpos, qvel=qvel, plastic=plastic))
        return moved.qpos, moved.qvel, moved.plastic

    return run


@pytest.mark.parametrize("name", MODELS)
def test_gradient_of_a_step(name: str) -> None:
    """Against finite differences; worlds are away from the kinks, where a spring starts to yield."""
    m = mjt.put_model(load(name), dtype=torch.float64)
    d = mjt.put_data(m, states(name)[:2])
    inputs = [x.clone().requires_grad_() for x in (d.qpos, d.qvel, d.plastic) if x.numel()]
    if not d.plastic.numel():
        run = forces(m, d)
        assert torch.autograd.gradcheck(lambda q, v: run(q, v, d.plastic)[:2], inputs, atol=1e-4, rtol=1e-4)
    else:
        assert torch.autograd.gradcheck(forces(m, d), inputs, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", MODELS)
def test_gradients_are_finite_at_rest(name: str, dtype: torch.dtype) -> None:
    """Lengths, angles and speeds are all zero, which is where roots and directions have no derivative."""
    mjm = load(name)
    mjm.opt.wind[:] = 0.0
    mjm.qpos_spring[:] = mjm.qpos0
    m = mjt.put_model(mjm, dtype=dtype)
    d = mjt.make_data(m, 1)
    inputs = [d.qpos.requires_grad_(), d.qvel.requires_grad_(), d.plastic.requires_grad_()]
    for output in forces(m, d)(*inputs):
        if not output.numel():
            continue
        grads = torch.autograd.grad(output.square().sum(), inputs, allow_unused=True, retain_graph=True)
        assert all(torch.isfinite(g).all() for g in grads if g is not None)


# ------------------------------------------------------------------------------------- other ways to run a step


@pytest.mark.parametrize("name", MODELS)
def test_float32(name: str) -> None:
    mjm = load(name)
    m32, m64 = (mjt.put_model(mjm, dtype=dtype) for dtype in (torch.float32, torch.float64))
    low, high = (mjt.forward(m, mjt.put_data(m, states(name))) for m in (m32, m64))
    for field in ("qfrc_spring", "qfrc_damper", "qfrc_gravcomp", "qfrc_fluid", "qfrc_passive"):
        exact = getattr(high, field)
        torch.testing.assert_close(
            getattr(low, field).double(), exact, rtol=1e-4, atol=1e-4 * (1 + exact.abs().max().item())
        )


@pytest.mark.parametrize("name", MODELS)
def test_compiled_in_one_graph(name: str) -> None:
    m = mjt.put_model(load(name), dtype=torch.float64)
    d = mjt.put_data(m, states(name))
    eager, compiled = mjt.step(m, d), torch.compile(mjt.step, backend="aot_eager", fullgraph=True)(m, d)
    for field in ("qpos", "qvel", "plastic", "qfrc_passive"):
        torch.testing.assert_close(getattr(compiled, field), getattr(eager, field), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", MODELS)
def test_vmap(name: str) -> None:
    m = mjt.put_model(load(name), dtype=torch.float64)
    d = mjt.put_data(m, states(name))
    batch, mapped = mjt.step(m, d), torch.vmap(lambda d: mjt.step(m, d))(d)
    for field in ("qpos", "qvel", "plastic", "qfrc_passive"):
        torch.testing.assert_close(getattr(mapped, field), getattr(batch, field), rtol=1e-12, atol=1e-12)


def test_edited_gravity_compensation_needs_the_flag() -> None:
    """As in C: what was edited in after compilation counts once ``flg_gravcomp`` is set."""
    mjm = mujoco.MjModel.from_xml_string(POLYNOMIALS)
    mjm.body_gravcomp[1:] = 0.5
    for flag in (False, True):
        mjm.flg_gravcomp = flag
        assert mjt.put_model(mjm).has_gravcomp == flag
        states = testing.perturbed_states(mjm, NWORLD, seed=0, settle=10)
        testing.stage_parity(mjm, "passive", states).raise_for_failures()


@pytest.mark.parametrize("name", mjt.MODELS)
def test_a_plain_model_has_none_of_it(name: str) -> None:
    """Every part is left out of the step by a static switch."""
    m = mjt.put_model(mujoco.MjModel.from_xml_path(str(mjt.model_path(name))))
    switches = (
        m.has_gravcomp,
        m.fluid_boxes,
        m.fluid_ellipsoids,
        m.has_stiffnesspoly,
        m.has_dampingpoly,
        m.joints_yield,
        m.tendon_yields,
    )
    assert not any(switches)
