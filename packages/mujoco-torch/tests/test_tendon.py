"""Tendons against MuJoCo C: lengths, Jacobians, wrapping, springs, dampers, armature, and their gradients."""

import functools
import importlib.util
import math
from pathlib import Path

import mujoco
import numpy as np
import pytest
import torch

import mujoco_torch as mjt
from mujoco_torch import testing

F64 = torch.float64
NWORLD = 6
STAGES = ("tendon", "fwd_position", "fwd_velocity", "forward", "step")

# A free body, a ball, hinges and a slide in two trees, sites on all of them.
BODIES = """
  <default><geom contype="0" conaffinity="0"/></default>
  <worldbody>
    <site name="hook" pos="0 .3 1"/>
    <geom name="rock" type="sphere" size=".12" pos=".3 0 .5"/>
    <site name="near rock" pos=".3 .2 .5"/>
    <body name="trunk">
      <freejoint/>
      <geom size=".1"/>
      <geom name="bone" type="cylinder" size=".06 .2" pos=".25 0 .05" euler="80 10 0"/>
      <site name="chest" pos=".02 0 .13"/><site name="hip" pos="-.1 .1 .03"/>
      <site name="marrow" pos=".25 .01 .05"/>
      <body pos=".5 0 0">
        <joint type="ball" damping=".1"/>
        <geom type="capsule" size=".05" fromto="0 0 0 .2 0 0"/>
        <site name="elbow" pos="0 .1 .08"/>
        <body pos=".3 0 0">
          <joint name="bend" axis="0 1 0" stiffness="3"/><joint name="twist" axis="0 1 1"/>
          <geom type="capsule" size=".05" fromto="0 0 0 .2 0 0"/>
          <geom name="wrist" type="sphere" size=".1" pos=".1 0 0"/>
          <site name="palm" pos=".1 0 .05"/>
        </body>
      </body>
    </body>
    <body pos="1.5 0 0">
      <joint name="rail" type="slide" axis="1 0 0"/>
      <geom size=".1"/>
      <site name="cart" pos="0 0 .2"/>
    </body>
  </worldbody>
"""

TENDONS = {
    "fixed": """
      <fixed name="f" armature=".3" stiffness="5" damping="1" springlength="-.1 .1">
        <joint joint="bend" coef="2"/><joint joint="rail" coef="-1"/></fixed>
      <fixed name="g"><joint joint="twist" coef=".5"/></fixed>""",
    "sites": """
      <spatial name="s" armature="1.5" stiffness="10" damping="1">
        <site site="hook"/><site site="chest"/><site site="hip"/><site site="elbow"/>
        <pulley divisor="2"/><site site="palm"/><site site="cart"/>
        <pulley divisor="3"/><site site="elbow"/><site site="palm"/></spatial>
      <spatial name="leading pulley" armature=".2">
        <pulley divisor=".2"/><site site="hook"/><site site="cart"/></spatial>""",
    "around": """
      <spatial name="w" stiffness="10" springlength=".3 .5">
        <site site="chest"/><geom geom="bone"/><site site="elbow"/><geom geom="wrist"/><site site="palm"/>
        <site site="cart"/><pulley divisor="4"/><site site="hook"/><geom geom="rock"/><site site="chest"/></spatial>""",
    "sided": """
      <spatial name="w" damping="2">
        <site site="hook"/><geom geom="rock" sidesite="near rock"/><site site="chest"/></spatial>""",
    "through": """
      <spatial name="w" damping="2">
        <site site="chest"/><geom geom="bone" sidesite="marrow"/><site site="elbow"/></spatial>""",
    "side on another body": """
      <spatial name="w" stiffness="2">
        <site site="chest"/><geom geom="bone" sidesite="marrow"/><site site="elbow"/>
        <geom geom="rock" sidesite="palm"/><site site="cart"/></spatial>""",
}
TENDONS["all"] = "".join(
    f"{text}".replace('name="', f'name="{number} ') for number, text in enumerate(TENDONS.values())
)


@functools.cache
def load(name: str) -> mujoco.MjModel:
    return mujoco.MjModel.from_xml_string(f"<mujoco>{BODIES}<tendon>{TENDONS[name]}</tendon></mujoco>")


@functools.cache
def states(name: str) -> list[mujoco.MjData]:
    return testing.perturbed_states(load(name), NWORLD, seed=3, settle=20)


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("name", TENDONS)
def test_stage(name: str, stage: str) -> None:
    testing.stage_parity(load(name), stage, states(name)).raise_for_failures()


@pytest.mark.parametrize("name", TENDONS)
def test_float32(name: str) -> None:
    testing.float32_parity(load(name), states(name)).raise_for_failures()


@pytest.mark.parametrize("name", ["armature", "fixed_site_wrap", "pulley_fixed_site_wrap", "wrap_sidesite"])
def test_models_of_mjx(name: str) -> None:
    spec = importlib.util.find_spec("mujoco.mjx")
    if spec is None:
        pytest.skip("mujoco-mjx is not installed")
    path = Path(spec.submodule_search_locations[0]) / "test_data" / "tendon" / f"{name}.xml"
    mjm = mujoco.MjModel.from_xml_path(str(path))
    batch = testing.perturbed_states(mjm, NWORLD, seed=0, settle=20)
    testing.stage_parity(mjm, "forward", batch).raise_for_failures()


# ------------------------------------------------------------------------------------- wrapping, in detail

# Both ends of every tendon move freely.
OBSTACLES = """
<mujoco>
  <worldbody>
    <body name="a"><joint type="slide" axis="1 0 0"/><joint type="slide" axis="0 1 0"/>
      <joint type="slide" axis="0 0 1"/><geom size=".01" contype="0" conaffinity="0"/><site name="a"/></body>
    <body name="b"><joint type="slide" axis="1 0 0"/><joint type="slide" axis="0 1 0"/>
      <joint type="slide" axis="0 0 1"/><geom size=".01" contype="0" conaffinity="0"/><site name="b"/></body>
    <geom name="sphere" type="sphere" size=".5" contype="0" conaffinity="0"/>
    <geom name="cylinder" type="cylinder" size=".4 .1" contype="0" conaffinity="0"/>
    <geom name="leaning" type="cylinder" size=".4 .1" euler="50 20 10" contype="0" conaffinity="0"/>
    <site name="outside" pos="0 .7 .1"/><site name="inside" pos=".05 .1 0"/><site name="centre"/>
    <body name="c" mocap="false"><joint type="slide" axis="1 0 0"/>
      <geom size=".01" contype="0" conaffinity="0"/><site name="moving" pos=".4 .1 .1"/></body>
  </worldbody>
  <tendon>TENDONS</tendon>
</mujoco>
"""
GEOMS = ("sphere", "cylinder", "leaning")
SIDES = ("", "outside", "inside", "centre", "moving")
ROUTES = [(geom, side) for geom in GEOMS for side in SIDES]


def obstacles(routes: list[tuple[str, str]]) -> mujoco.MjModel:
    paths = [
        f'<site site="a"/><geom geom="{geom}" {f"""sidesite="{side}" """ if side else ""}/><site site="b"/>'
        for geom, side in routes
    ]
    tendons = "".join(f"<spatial>{path}</spatial>" for path in paths)
    return mujoco.MjModel.from_xml_string(OBSTACLES.replace("TENDONS", tendons))


def paths(mjm: mujoco.MjModel, qpos: np.ndarray) -> tuple[torch.Tensor, ...]:
    """Lengths and Jacobians, ours and C's, and C's numbers of points on the paths."""
    mjds = []
    for q in qpos:
        mjd = mujoco.MjData(mjm)
        mjd.qpos[:] = q
        mujoco.mj_fwdPosition(mjm, mjd)
        mjds.append(mjd)
    m = mjt.put_model(mjm, dtype=F64)
    d = mjt.fwd_position(m, mjt.make_data(m, len(qpos)).replace(qpos=torch.as_tensor(qpos)))
    length, jacobian = (
        torch.as_tensor(np.stack([testing.expected(mjm, mjd)[name] for mjd in mjds]))
        for name in ("ten_length", "ten_J")
    )
    return d.ten_length, length, d.ten_J, jacobian, np.array([mjd.ten_wrapnum.copy() for mjd in mjds])


@pytest.mark.parametrize(
    "kinds", [ROUTES, [("sphere", "")], [("cylinder", "outside")], [("sphere", "centre")]]
)
def test_paths_from_anywhere_to_anywhere(kinds) -> None:
    """Outside, inside, short and long ways, of hundreds of random places, all wraps of a model together or alone."""
    mjm = obstacles(kinds)
    qpos = np.random.default_rng(0).normal(size=(400, mjm.nq)) * 0.9
    length, expected, jacobian, expected_jacobian, points = paths(mjm, qpos)
    torch.testing.assert_close(length, expected, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(jacobian, expected_jacobian, rtol=1e-10, atol=1e-10)
    assert ((points == 4).mean(0) > 0.03).all()  # there is contact, and there is none
    assert ((points == 2).mean(0) > 0.03).all()


def test_the_side_site_decides_the_way_up_to_a_full_turn() -> None:
    """The rule of MuJoCo 4.0: an end goes around, and the tendon follows without a jump, to beyond half a turn."""
    mjm = obstacles([("sphere", "outside"), ("cylinder", "outside")])
    angle = np.linspace(-math.pi + 0.01, math.pi - 0.01, 300)
    qpos = np.zeros((len(angle), mjm.nq))
    qpos[:, 0], qpos[:, 1] = -0.3, -0.9  # not far from the ray opposite the side site, which is at +y
    qpos[:, 3], qpos[:, 4] = np.sin(angle), np.cos(angle)
    length, expected, jacobian, expected_jacobian, _ = paths(mjm, qpos)
    torch.testing.assert_close(length, expected, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(jacobian, expected_jacobian, rtol=1e-10, atol=1e-10)
    assert length.diff(dim=0).abs().max() < 0.03  # [m] for steps of 0.021 m
    assert (length.max(0).values > 0.4 * 1.5 * math.pi).all()


#: Ends in line with the centre, on the axis, on the surface, in the geom, at its centre, at one place.
DELICATE = [
    [1, 0, 0, -1, 0, 0], [0, 1, 0, 0, -2, 0], [0, 0, 2, 0, 0, -1], [0, 0, 1, 0, 0, 2], [1, 0, 0, 2, 0, 0],
    [0.5, 0, 0, 1, 1, 0], [0.4, 0, 0, 0, 1, 0], [0.1, 0, 0, 1, 1, 0], [0, 0, 0, 1, 1, 0], [0, 0, 0, 0, 0, 0],
    [1, 1, 0, 1, 1, 0], [1, 0.5, 0, -1, 0.5, 0], [1, 0.4, 0, -1, 0.4, 0], [0.5, 0, 0, 0.5, 0, 0], [0, -1, 0, 0, -1, 1],
    [0, -1, 0, 1, 0, 0], [1, 1, 1, -1, -1, -1], [0.5, 0, 0, 0, 0.5, 0], [0.5, 0, 0, -0.5, 0, 0],
]  # fmt: skip


def test_delicate_places() -> None:
    """Where C has special cases, lengths equal C's, and every gradient is finite."""
    mjm = obstacles([route for route in ROUTES if route[0] != "leaning"])
    qpos = np.array([[*place, 0.0] for place in DELICATE])
    length, expected, jacobian, expected_jacobian, _ = paths(mjm, qpos)
    torch.testing.assert_close(length, expected, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(jacobian, expected_jacobian, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_gradients_are_finite(dtype: torch.dtype) -> None:
    """Also where an end is on the surface, in the geom or at the other end, in all branches."""
    mjm = obstacles(ROUTES)
    mjm.tendon_stiffness[:] = 3.0
    mjm.tendon_damping[:] = 0.5
    m = mjt.put_model(mjm, dtype=dtype)
    random = np.random.default_rng(0).normal(size=(100, mjm.nq))
    qpos = np.concatenate([np.array([[*place, 0.0] for place in DELICATE]), random])
    qpos = torch.as_tensor(qpos, dtype=dtype).requires_grad_()
    d = mjt.make_data(m, len(qpos)).replace(qpos=qpos)
    d = mjt.step(m, d.replace(qvel=torch.ones_like(qpos)))
    weights = torch.randn(3, dtype=dtype)
    (weights[0] * d.ten_length.sum() + weights[1] * d.ten_J.sum() + weights[2] * d.qvel.sum()).backward()
    assert qpos.grad.isfinite().all()


def test_a_geom_without_radius_is_no_obstacle() -> None:
    mjm = obstacles([("sphere", ""), ("cylinder", "outside"), ("sphere", "outside")])
    mjm.geom_size[mjm.geom("sphere").id] = 0.0
    qpos = np.random.default_rng(0).normal(size=(50, mjm.nq)) * 0.9
    length, expected, jacobian, expected_jacobian, _ = paths(mjm, qpos)
    torch.testing.assert_close(length, expected, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(jacobian, expected_jacobian, rtol=1e-10, atol=1e-10)


# ------------------------------------------------------------------------------------------------ gradients


def test_the_gradient_of_the_length_is_the_jacobian() -> None:
    """Sides, tangents and the point of reflection give no share of their own: the path is the shortest.

    The point of reflection is one to 1e-6 rad only, as in C, and its share is as small.
    """
    mjm = obstacles(ROUTES)
    m = mjt.put_model(mjm, dtype=F64)
    qpos = torch.as_tensor(np.random.default_rng(1).normal(size=(200, mjm.nq))).requires_grad_()
    d = mjt.fwd_position(m, mjt.make_data(m, len(qpos)).replace(qpos=qpos))
    for t in range(mjm.ntendon):
        (grad,) = torch.autograd.grad(d.ten_length[:, t].sum(), qpos, retain_graph=True)
        torch.testing.assert_close(grad, d.ten_J[:, t].detach(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kinds", [[route] for route in ROUTES if route[0] != "leaning"])
def test_the_gradient_of_the_jacobian_is_its_difference(kinds) -> None:
    mjm = obstacles(kinds)
    m = mjt.put_model(mjm, dtype=F64)
    d = mjt.make_data(m, 5)
    qpos = torch.tensor(
        [
            [1.0, 0.3, 0.2, -0.9, -0.2, 0.1], [0.8, 0.5, -0.2, -0.3, 0.9, 0.4], [-1.1, 0.2, 0.3, 0.7, 0.4, -0.3],
            [0.9, -0.3, 0.1, 0.2, -0.8, 0.3], [1.5, 1.4, 0.3, -1.0, 1.3, 0.2],
        ],
        dtype=F64,
    )  # fmt: skip
    qpos = torch.cat((qpos, torch.zeros(5, 1, dtype=F64)), 1).requires_grad_()
    torch.autograd.gradcheck(
        lambda q: mjt.fwd_position(m, d.replace(qpos=q)).ten_J, qpos, eps=1e-6, atol=1e-4, rtol=1e-4
    )


def test_gradients_of_a_step_with_armature() -> None:
    """Of the mass matrix, the bias force of armature, springs and dampers."""
    mjm = mujoco.MjModel.from_xml_string(f"<mujoco>{BODIES}<tendon>{TENDONS['sites']}</tendon></mujoco>")
    m = mjt.put_model(mjm, dtype=F64)
    d = mjt.put_data(m, states("sites")[:2])
    d = d.replace(xfrc_applied=d.xfrc_applied * 0)

    def qvel(v, plunge):
        moved = torch.cat((plunge, d.qpos[:, 2:]), 1)
        return mjt.step(m, d.replace(qvel=v, qpos=moved)).qvel

    inputs = (d.qvel.clone().requires_grad_(), d.qpos[:, :2].clone().requires_grad_())
    torch.autograd.gradcheck(qvel, inputs, eps=1e-6, atol=1e-5, rtol=1e-5)


# ------------------------------------------------------------------------------------------- passive, armature


@pytest.mark.parametrize("flag", [0, mujoco.mjtDisableBit.mjDSBL_SPRING, mujoco.mjtDisableBit.mjDSBL_DAMPER])
def test_polynomial_springs_and_dampers(flag: int) -> None:
    """On both sides of the dead band; each flag switches off its own."""
    text = TENDONS["fixed"] + TENDONS["sites"]
    text = text.replace('stiffness="5"', 'stiffness="5 1 2"').replace('damping="1"', 'damping="1 .5 .3"')
    text = text.replace('stiffness="10"', 'stiffness="0 3 4" springlength="1 3"')
    mjm = mujoco.MjModel.from_xml_string(f"<mujoco>{BODIES}<tendon>{text}</tendon></mujoco>")
    mjm.opt.disableflags |= int(flag)
    batch = testing.perturbed_states(mjm, 16, seed=5, settle=0)
    for world, mjd in enumerate(batch):
        mjd.qpos[mjm.jnt_qposadr[mjm.joint("rail").id]] += world / 4 - 2
    testing.stage_parity(mjm, "fwd_velocity", batch).raise_for_failures()
    testing.stage_parity(mjm, "step", batch).raise_for_failures()


@pytest.mark.parametrize("rest", ["0", "5"])
def test_a_slack_spring_has_no_force(rest: str) -> None:
    """The dead band of springlength, from its lower to its upper end."""
    text = f'<fixed stiffness="7" springlength="0 {rest}"><joint joint="rail" coef="1"/></fixed>'
    mjm = mujoco.MjModel.from_xml_string(f"<mujoco>{BODIES}<tendon>{text}</tendon></mujoco>")
    m = mjt.put_model(mjm, dtype=F64)
    d = mjt.make_data(m, 3)
    d = d.replace(qpos=torch.cat((d.qpos[:, :-1], torch.tensor([[-1.0], [2.0], [6.0]], dtype=F64)), 1))
    force = mjt.forward(m, d).qfrc_spring[:, -1]
    expected = {"0": [7.0, -14.0, -42.0], "5": [7.0, 0.0, -7.0]}[rest]
    torch.testing.assert_close(force, torch.tensor(expected, dtype=F64))


def test_armature_keeps_the_sparsity_of_the_mass_matrix() -> None:
    """As in C, the product of dofs on two trees is left out of M; within a tree it is there."""
    mjm = load("fixed")
    m = mjt.put_model(mjm, dtype=F64)
    full = mjt.full_m(m, mjt.forward(m, mjt.put_data(m, states("fixed"))))
    without = mujoco.MjModel.from_xml_string(
        f"<mujoco>{BODIES}<tendon>{TENDONS['fixed'].replace('.3', '0')}</tendon></mujoco>"
    )
    m = mjt.put_model(without, dtype=F64)
    bare = mjt.full_m(m, mjt.forward(m, mjt.put_data(m, states("fixed"))))
    bend, rail = (int(mjm.jnt_dofadr[mjm.joint(name).id]) for name in ("bend", "rail"))
    expected = torch.zeros(mjm.nv, mjm.nv, dtype=F64)
    expected[bend, bend], expected[rail, rail] = 0.3 * 4, 0.3
    torch.testing.assert_close(full - bare, expected.expand(NWORLD, -1, -1))


def test_armature_with_its_bias_keeps_energy() -> None:
    """A pendulum on a rail and a heavy tendon, frictionless: without the bias force energy would drift at once."""
    xml = """
    <mujoco>
      <option timestep=".0005" integrator="RK4"><flag energy="enable"/></option>
      <worldbody>
        <site name="hook" pos="0 .4 .5"/>
        <body><joint axis="0 1 0"/><joint axis="1 0 0"/><geom size=".1" pos=".3 0 0" contype="0" conaffinity="0"/>
          <site name="tip" pos=".4 .1 0"/></body>
      </worldbody>
      <tendon><spatial armature="30"><site site="hook"/><site site="tip"/></spatial></tendon>
    </mujoco>
    """
    mjm = mujoco.MjModel.from_xml_string(xml)
    start = mujoco.MjData(mjm)
    start.qvel[:] = 2.0, -1.0
    mujoco.mj_forward(mjm, start)
    mjm.opt.enableflags = 0
    m = mjt.put_model(mjm, dtype=F64)
    d = mjt.put_data(m, [start])
    for _ in range(60):
        d = mjt.step(m, d)
    mjm.opt.enableflags = int(mujoco.mjtEnableBit.mjENBL_ENERGY)
    end = mujoco.MjData(mjm)
    end.qpos[:], end.qvel[:] = d.qpos[0], d.qvel[0]
    mujoco.mj_forward(mjm, end)
    assert abs(end.energy.sum() - start.energy.sum()) < 1e-7 * abs(start.energy).max()


# ------------------------------------------------------------------------------------- compile, vmap, refusals


def test_compiled_equals_eager() -> None:
    m = mjt.put_model(load("all"), dtype=F64)
    d = mjt.put_data(m, states("all"))
    compiled = torch.compile(mjt.step, backend="aot_eager", fullgraph=True)(m, d)
    eager = mjt.step(m, d)
    for name in ("ten_length", "ten_J", "ten_velocity", "M", "qfrc_bias", "qfrc_passive", "qpos", "qvel"):
        torch.testing.assert_close(getattr(compiled, name), getattr(eager, name), rtol=1e-12, atol=1e-12)


def test_vmap_equals_the_batch() -> None:
    m = mjt.put_model(load("all"), dtype=F64)
    d = mjt.put_data(m, states("all"))
    mapped = torch.vmap(lambda world: mjt.forward(m, world))(d)
    whole = mjt.forward(m, d)
    torch.testing.assert_close(mapped.ten_J, whole.ten_J)
    torch.testing.assert_close(mapped.qacc, whole.qacc)


def test_one_world() -> None:
    m = mjt.put_model(load("all"), dtype=F64)
    d = mjt.put_data(m, states("all")[0])
    alone = mjt.forward(m, d)
    whole = mjt.forward(m, mjt.put_data(m, states("all")))
    torch.testing.assert_close(alone.ten_length, whole.ten_length[0])
    torch.testing.assert_close(alone.ten_J, whole.ten_J[0])


@pytest.mark.parametrize("owner", ["tendon", "actuator"])
def test_armature_with_wrapping_is_refused(owner: str) -> None:
    """The compiler of MuJoCo refuses it, too; a model edited afterwards would stop C."""
    motor = '<actuator><motor tendon="w"/></actuator>'
    mjm = mujoco.MjModel.from_xml_string(
        f"<mujoco>{BODIES}<tendon>{TENDONS['around']}</tendon>{motor}</mujoco>"
    )
    assert mjt.check(mjm) == ()
    getattr(mjm, f"{owner}_armature")[:] = 1.0
    mjm.tendon_actuatorid[:] = 0
    (finding,) = mjt.check(mjm)
    assert (finding.feature, finding.elements) == ("tendon-armature", ("tendon 'w'",))


# ------------------------------------------------------------------------------------- springs that yield

# Fixed and spatial, wrapped, with and without a dead band, one without strength, one that never yields.
YIELDING = """
  <fixed name="f" stiffness="5 2 1" springlength="-.1 .1" springyield=".05" damping="1">
    <joint joint="bend" coef="2"/><joint joint="rail" coef="-1"/></fixed>
  <fixed name="never" stiffness="5" springyield="100"><joint joint="twist" coef=".5"/></fixed>
  <fixed name="loose" springyield=".02"><joint joint="rail" coef="1"/></fixed>
  <spatial name="rope" stiffness="10" springlength="0 .3" springyield=".1">
    <site site="hook"/><site site="chest"/><pulley divisor="2"/><site site="palm"/><site site="cart"/></spatial>
  <spatial name="wrapped" stiffness="20 3" springlength="1" springyield=".01">
    <site site="chest"/><geom geom="bone"/><site site="elbow"/><geom geom="wrist"/><site site="palm"/></spatial>
  <spatial name="elastic" stiffness="7" springlength=".4 .6"><site site="hip"/><site site="cart"/></spatial>
"""


@functools.cache
def yielding(integrator: str = "Euler", flag: str = "") -> mujoco.MjModel:
    """Beside the tendons a joint that yields: its reference comes first in the state."""
    bodies = BODIES.replace('stiffness="3"', 'stiffness="3" springyield="5"')
    option = f'<option integrator="{integrator}"><flag energy="enable" {flag}/></option>'
    return mujoco.MjModel.from_xml_string(f"<mujoco>{option}{bodies}<tendon>{YIELDING}</tendon></mujoco>")


@functools.cache
def yielded_states() -> list[mujoco.MjData]:
    """Every second world has yielded before, each another way."""
    mjm, rng = yielding(), np.random.default_rng(5)
    mjds = testing.perturbed_states(mjm, NWORLD, seed=3, settle=20)
    for mjd in mjds[::2]:
        mjd.plastic += 0.1 * rng.standard_normal(mjm.nplastic)
    return mjds


def steps_parity(mjm: mujoco.MjModel, mjds: list[mujoco.MjData], nstep: int, fields=()) -> mjt.Data:
    """Compares the state after some steps, and other fields where named."""
    m = mjt.put_model(mjm, dtype=F64)
    mjds = [testing.copy_state(mjm, mjd) for mjd in mjds]
    d = mjt.step(m, mjt.put_data(m, mjds), nstep)
    for mjd in mjds:
        for _ in range(nstep):
            mujoco.mj_step(mjm, mjd)
    testing.compare(m, d, mjds, (*testing.STATE_FIELDS, *fields), 1e-9).raise_for_failures()
    return d


@pytest.mark.parametrize("stage", ["passive", "forward", "step"])
@pytest.mark.parametrize("integrator", ["Euler", "implicit", "implicitfast", "RK4"])
def test_yielding_stage(integrator: str, stage: str) -> None:
    """Forces, energy and the advance of the references, with every integrator."""
    testing.stage_parity(yielding(integrator), stage, yielded_states()).raise_for_failures()


@pytest.mark.parametrize("integrator", ["Euler", "implicitfast", "RK4"])
def test_yielding_in_a_run(integrator: str) -> None:
    """Some springs yield and some do not, as in C; references that did not yield keep every bit."""
    mjm = yielding(integrator)
    d = steps_parity(mjm, yielded_states(), 20, ("energy",) if integrator != "RK4" else ())
    before = mjt.put_data(mjt.put_model(mjm, dtype=F64), yielded_states()).plastic
    same = d.plastic == before
    never, rope = (int(mjm.tendon(name).plasticadr[0]) for name in ("never", "rope"))
    assert same[:, never : never + 2].all() and not same[:, rope + 1].all()
    assert same[1::2, rope].all()  # pinned at zero


@pytest.mark.parametrize("flags", [("SPRING",), ("DAMPER",), ("SPRING", "DAMPER")], ids="+".join)
@pytest.mark.parametrize("integrator", ["Euler", "RK4"])
def test_tendons_do_not_yield_where_springs_are_disabled(integrator: str, flags: tuple[str, ...]) -> None:
    mjm = yielding(integrator, " ".join(f'{flag.lower()}="disable"' for flag in flags))
    d = steps_parity(mjm, yielded_states(), 3)
    before = mjt.put_data(mjt.put_model(mjm, dtype=F64), yielded_states()).plastic
    assert bool((d.plastic == before).all()) == ("SPRING" in flags)


@pytest.mark.parametrize("threshold", [0.0, -0.1])
def test_tendons_with_no_strength_slip(threshold: float) -> None:
    """`springyield` edited to zero, or below: the reference follows the tendon."""
    mjm = mujoco.MjModel.from_xml_string(f"<mujoco>{BODIES}<tendon>{YIELDING}</tendon></mujoco>")
    mjm.tendon_springyield[:] = threshold
    steps_parity(mjm, testing.perturbed_states(mjm, NWORLD, seed=3, settle=20), 3)


def one_tendon(rest: str) -> mujoco.MjModel:
    return mujoco.MjModel.from_xml_string(
        f"""<mujoco><option timestep=".01"><flag energy="enable" gravity="disable"/></option>
        <worldbody><body><joint name="s" type="slide"/><geom size=".1"/></body></worldbody>
        <tendon><fixed stiffness="3 2 1" springlength="{rest}" springyield=".05">
        <joint joint="s" coef="1"/></fixed></tendon></mujoco>"""
    )


@pytest.mark.parametrize("rest", ["0 1.1", "0", ".5 1.1", "-.2 .3"])
def test_the_state_decides_which_rest_length_is_pinned(rest: str) -> None:
    """Zero below a positive one, and exactly zero; ranges upside down; tendons too long and too short."""
    mjm = one_tendon(rest)
    lengths = (-1.0, -0.07, 0.1, 0.3, 1.13, 2.0)
    ranges = [
        (0, 1.1),
        (1e-12, 1.1),
        (-1e-12, 1.1),
        (0, 0),
        (0, -0.1),
        (0.1, 0.2),
        (4, 1),
        (0.5, 0.2),
        (0, 1e-20),
    ]
    mjds = []
    for length in lengths:
        for ends in ranges:
            mjds.append(mujoco.MjData(mjm))
            mjds[-1].qpos[:], mjds[-1].qvel[:], mjds[-1].plastic[:] = length, 0.5, ends
    testing.stage_parity(mjm, "forward", mjds).raise_for_failures()
    steps_parity(mjm, mjds, 2, ("energy",))


@pytest.mark.parametrize("which", ["tendon", "joint", "none"])
def test_lengths_after_a_step_of_rk4(which: str) -> None:
    """As in C they are those of the start if a spring of the model yields, else those of the last stage."""
    bodies = BODIES.replace('stiffness="3"', 'stiffness="3" springyield="5"' if which == "joint" else "")
    text = YIELDING if which == "tendon" else TENDONS["sites"].replace("armature", "margin")
    xml = f'<mujoco><option integrator="RK4"/>{bodies}<tendon>{text}</tendon></mujoco>'
    mjm = mujoco.MjModel.from_xml_string(xml)
    assert bool(mjm.nplastic) == (which != "none")
    mjds = testing.perturbed_states(mjm, NWORLD, seed=3, settle=20)
    steps_parity(mjm, mjds, 2, ("ten_length", "ten_J"))


def yielding_batch(dtype: torch.dtype = F64, integrator: str = "Euler") -> tuple[mjt.Model, mjt.Data]:
    m = mjt.put_model(yielding(integrator), dtype=dtype)
    return m, mjt.put_data(m, yielded_states())


def test_yielding_in_float32() -> None:
    (m32, d32), (m64, d64) = yielding_batch(torch.float32), yielding_batch()
    low, high = mjt.step(m32, d32), mjt.step(m64, d64)
    for field in ("qfrc_spring", "plastic"):
        exact = getattr(high, field)
        torch.testing.assert_close(
            getattr(low, field).double(), exact, rtol=1e-4, atol=1e-4 * (1 + exact.abs().max().item())
        )


@pytest.mark.parametrize("integrator", ["Euler", "RK4"])
def test_yielding_compiled_equals_eager(integrator: str) -> None:
    m, d = yielding_batch(integrator=integrator)
    eager, compiled = mjt.step(m, d), torch.compile(mjt.step, backend="aot_eager", fullgraph=True)(m, d)
    for field in ("qpos", "qvel", "plastic", "ten_length"):
        torch.testing.assert_close(getattr(compiled, field), getattr(eager, field), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("integrator", ["Euler", "RK4"])
def test_yielding_in_pieces(integrator: str, monkeypatch) -> None:
    """The pieces of `mujoco_torch.compile`, here not compiled, hand on all that springs of tendons need."""
    monkeypatch.setattr(torch, "compile", lambda fn, **_: fn)
    m, d = yielding_batch(integrator=integrator)
    fields = ("qpos", "qvel", "plastic", "ten_length", "ten_J")
    pieces, eager = mjt.compile(mjt.step, keep=fields[3:])(m, d, 2), mjt.step(m, d, 2)
    for field in fields:
        torch.testing.assert_close(getattr(pieces, field), getattr(eager, field), rtol=1e-12, atol=1e-12)


def test_yielding_under_vmap() -> None:
    m, d = yielding_batch()
    batch, mapped = mjt.step(m, d), torch.vmap(lambda d: mjt.step(m, d))(d)
    for field in ("qpos", "qvel", "plastic"):
        torch.testing.assert_close(getattr(mapped, field), getattr(batch, field), rtol=1e-12, atol=1e-12)


def test_gradients_of_a_step_with_yielding() -> None:
    """Against finite differences, away from the kinks where a spring starts to yield."""
    m, d = yielding_batch()
    d = d[:2]

    def run(qpos, qvel, plastic):
        moved = mjt.step(m, d.replace(qpos=qpos, qvel=qvel, plastic=plastic))
        return moved.qvel, moved.plastic

    inputs = [x.clone().requires_grad_() for x in (d.qpos, d.qvel, d.plastic)]
    assert torch.autograd.gradcheck(run, inputs, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, F64])
def test_gradients_at_rest_with_yielding(dtype: torch.dtype) -> None:
    """Lengths are exactly those of rest: finite."""
    m = mjt.put_model(yielding(), dtype=dtype)
    d = mjt.make_data(m, 1)
    inputs = [d.qpos.requires_grad_(), d.qvel.requires_grad_(), d.plastic.requires_grad_()]
    moved = mjt.step(m, d)
    for output in (moved.qvel, moved.plastic, moved.energy):
        grads = torch.autograd.grad(output.square().sum(), inputs, allow_unused=True, retain_graph=True)
        assert all(torch.isfinite(g).all() for g in grads if g is not None)


def test_a_threshold_edited_into_an_elastic_spring_is_ignored() -> None:
    """As in C: only the compiler gives a spring its place in the state."""
    elastic = mujoco.MjModel.from_xml_string(f"<mujoco>{BODIES}<tendon>{TENDONS['fixed']}</tendon></mujoco>")
    elastic.tendon_springyield[:] = 0.01
    steps_parity(elastic, testing.perturbed_states(elastic, NWORLD, seed=3, settle=20), 3)
