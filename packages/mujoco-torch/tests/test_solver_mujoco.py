"""Solvers, cones and the no-slip pass of whole models against MuJoCo C."""

import mujoco
import numpy as np
import pytest
import torch
from torch import Tensor

import mujoco_torch as mjt

F64 = torch.float64

HEAP = """
<mujoco>
  <option cone="{cone}" solver="{solver}" impratio="{impratio}" tolerance="{tolerance}" iterations="{iterations}"
      noslip_iterations="{noslip}" noslip_tolerance="{noslip_tolerance}">
    <flag island="disable"/>
  </option>
  <worldbody>
    <geom name="floor" type="plane" size="5 5 .1" condim="3" friction="1 .02 .001"/>
    <body name="a" pos="0 0 .12"><freejoint/><geom size=".1" condim="4"/></body>
    <body name="b" pos=".05 0 .33"><freejoint/><geom size=".1" condim="6" friction=".8 .01 .001"/></body>
    <body name="c" pos="-.3 0 .2"><freejoint/><geom type="capsule" size=".05 .1" condim="1"/></body>
    <body pos=".5 0 .3">
      <joint name="j1" axis="0 1 0" frictionloss=".3" limited="true" range="-30 30"/>
      <geom type="capsule" fromto="0 0 0 .4 0 -.3" size=".04"/>
      <body pos=".4 0 0">
        <joint name="j2" axis="0 1 0" frictionloss="1"/>
        <geom type="capsule" fromto="0 0 0 .3 0 -.25" size=".04"/>
      </body>
    </body>
  </worldbody>
  <equality>
    <connect body1="a" body2="c" anchor="0 0 .1"/>
    <joint joint1="j1" joint2="j2" polycoef="0 .5 0 0 0"/>
  </equality>
</mujoco>
"""
"""Rows of every kind, contacts of every condim."""


def heap(**options: object) -> mujoco.MjModel:
    defaults = dict(
        cone="pyramidal",
        solver="Newton",
        impratio=1,
        tolerance=1e-12,
        iterations=500,
        noslip=0,
        noslip_tolerance=0,
    )
    return mujoco.MjModel.from_xml_string(HEAP.format(**{**defaults, **options}))


def states(mjm: mujoco.MjModel, worlds: int = 6) -> list[mujoco.MjData]:
    """After mj_forward, along a noisy rollout that starts in the air and comes to lie."""
    d, rng, found = mujoco.MjData(mjm), np.random.default_rng(0), []
    d.qvel[:] = rng.normal(size=mjm.nv) * 0.5
    for step in range(60 + 25 * worlds):
        d.qfrc_applied[:] = rng.normal(size=mjm.nv) * 2
        mujoco.mj_forward(mjm, d)
        if step >= 60 and step % 25 == 0:
            found.append(d.__copy__())
        mujoco.mj_step(mjm, d)
    return found[:worlds]


def relative(ours: Tensor, theirs: Tensor) -> float:
    return float((ours - theirs).abs().max() / theirs.abs().max())


def assert_equals_c(mjm: mujoco.MjModel, mjds: list[mujoco.MjData], rtol: float, off: int = 0) -> None:
    """Accelerations, joint forces and the force of every row, after the same number of iterations, or `off` more."""
    m = mjt.put_model(mjm, dtype=F64)
    given = mjt.put_data(m, mjds)
    d = mjt.forward(m, given)
    counts = torch.tensor([int(mjd.solver_niter.sum()) for mjd in mjds])
    assert (d.solver_niter - counts).abs().max() <= off
    assert d.nefc.tolist() == [mjd.nefc for mjd in mjds]
    for name in ("qacc", "qfrc_constraint", "efc_force"):
        assert relative(getattr(d, name), getattr(given, name)) < rtol, name


@pytest.mark.parametrize("impratio", [1, 10])
@pytest.mark.parametrize("solver", ["Newton", "CG"])
@pytest.mark.parametrize("cone", ["pyramidal", "elliptic"])
def test_solve_equals_mujoco(cone: str, solver: str, impratio: float) -> None:
    """To rounding: 1e-12 of Newton's method, 5e-9 of conjugate gradients, which amplify it for 200 iterations."""
    mjm = heap(cone=cone, solver=solver, impratio=impratio)
    assert_equals_c(mjm, states(mjm), 1e-12 if solver == "Newton" else 5e-9)


@pytest.mark.parametrize("iterations", [1, 2, 3])
@pytest.mark.parametrize("solver", ["Newton", "CG"])
@pytest.mark.parametrize("cone", ["pyramidal", "elliptic"])
def test_solve_equals_mujoco_when_cut_short(cone: str, solver: str, iterations: int) -> None:
    """The directions and steps are C's, not the optimum alone."""
    mjm = heap(cone=cone, solver=solver, iterations=iterations)
    assert_equals_c(mjm, states(mjm), 1e-9)


@pytest.mark.parametrize(("noslip", "noslip_tolerance"), [(1, 0), (5, 1e-9), (100, 1e-6)])
@pytest.mark.parametrize("solver", ["Newton", "CG"])
@pytest.mark.parametrize("cone", ["pyramidal", "elliptic"])
def test_noslip_equals_mujoco(cone: str, solver: str, noslip: int, noslip_tolerance: float) -> None:
    """Of friction losses, pyramids and elliptic cones; its sweeps count as iterations."""
    mjm = heap(cone=cone, solver=solver, noslip=noslip, noslip_tolerance=noslip_tolerance)
    # A hundred conjugate gradients amplify rounding, and may end an iteration or two sooner.
    assert_equals_c(mjm, states(mjm), *((1e-11, 0) if solver == "Newton" else (1e-6, 3)))


def test_noslip_without_anything_to_hold() -> None:
    """No rows are active in the air: no sweep is counted."""
    mjm = mujoco.MjModel.from_xml_string(
        '<mujoco><option noslip_iterations="3"/><worldbody><geom type="plane" size="5 5 .1"/>'
        '<body pos="0 0 1"><freejoint/><geom size=".1"/></body></worldbody></mujoco>'
    )
    mjd = mujoco.MjData(mjm)
    mujoco.mj_forward(mjm, mjd)
    m = mjt.put_model(mjm, dtype=F64)
    d = mjt.forward(m, mjt.put_data(m, [mjd, mjd]))
    assert d.solver_niter.tolist() == [0, 0]
    assert torch.equal(d.qacc, d.qacc_smooth)


LEVELS = 12


def tower(**options: object) -> mujoco.MjModel:
    """Logs laid crosswise, with a heavy pair on top: the cost at rest is large, what a step changes of it is small."""
    logs = "".join(
        f'<geom type="capsule" size=".05" fromto="-.3 {side} 0 .3 {side} 0" mass="{{mass}}"/>'
        for side in (-0.2, 0.2)
    )
    bodies = "".join(
        f'<body pos="0 0 {0.05 + 0.1 * level}" euler="0 0 {90 * (level % 2)}"><freejoint/>'
        f"{logs.format(mass=100 if level == LEVELS - 1 else 1)}</body>"
        for level in range(LEVELS)
    )
    settings = " ".join(f'{name}="{value}"' for name, value in options.items())
    return mujoco.MjModel.from_xml_string(
        f'<mujoco><option {settings}><flag island="disable"/></option>'
        f'<worldbody><geom type="plane" size="5 5 .1"/>{bodies}</worldbody></mujoco>'
    )


@pytest.mark.parametrize("solver", ["Newton", "CG"])
@pytest.mark.parametrize("cone", ["pyramidal", "elliptic"])
def test_a_tower_stands_in_float32(cone: str, solver: str) -> None:
    """Differences of cost that float32 cannot tell neither stop the search early nor spoil what it has found."""
    mjm = tower(cone=cone, solver=solver, iterations=300)
    mjd, rng, mjds = mujoco.MjData(mjm), np.random.default_rng(0), []
    mjd.qvel[:] = rng.normal(size=mjm.nv) * 0.01
    for _ in range(4):
        mujoco.mj_step(mjm, mjd, nstep=40)
        mjds.append(mjd.__copy__())
        mjds[-1].qfrc_applied[:] = rng.normal(size=mjm.nv) * 20
        mjds[-1].qacc_warmstart[:] = 0
        mujoco.mj_forward(mjm, mjds[-1])
    m = mjt.put_model(mjm, dtype=torch.float32)
    given = mjt.put_data(m, mjds)
    d = mjt.forward(m, given.replace(qacc_warmstart=torch.zeros_like(given.qacc)))
    assert relative(d.qfrc_constraint, given.qfrc_constraint) < 2e-5
    d = given
    for _ in range(100):
        d = mjt.step(m, d)
    for mjd in mjds:
        mujoco.mj_step(mjm, mjd, nstep=100)
    assert (d.qpos - torch.tensor(np.stack([mjd.qpos for mjd in mjds]))).abs().max() < 1e-3


SETTINGS = {
    "elliptic": dict(cone="elliptic", impratio=3),
    "cg": dict(solver="CG", iterations=60),
    "noslip": dict(noslip=2),
    "elliptic noslip": dict(cone="elliptic", noslip=2),
}


@pytest.mark.parametrize("name", SETTINGS)
def test_islands_give_the_same_accelerations(name: str) -> None:
    """C solves trees that do not touch one by one; both stop within the tolerance."""
    mjm = heap(**{**SETTINGS[name], "tolerance": 1e-13, "iterations": 1000})
    mjds = states(mjm)
    mjm.opt.disableflags &= ~int(mujoco.mjtDisableBit.mjDSBL_ISLAND)
    for mjd in mjds:
        mujoco.mj_forward(mjm, mjd)
    m = mjt.put_model(mjm, dtype=F64)
    given = mjt.put_data(m, mjds)
    assert relative(mjt.forward(m, given).qacc, given.qacc) < 1e-5


@pytest.mark.parametrize("name", SETTINGS)
def test_a_compiled_step_equals_an_eager_one(name: str) -> None:
    """In one graph, float64 and float32; float32 is near float64."""
    mjm = heap(**{**SETTINGS[name], "tolerance": 1e-8})
    mjds = states(mjm, 4)
    exact = None
    for dtype, limit in ((F64, 1e-12), (torch.float32, 1e-4)):
        m = mjt.put_model(mjm, dtype=dtype)
        d = mjt.put_data(m, mjds)
        eager = mjt.step(m, d)
        compiled = torch.compile(mjt.step, fullgraph=True, backend="aot_eager")(m, d)
        torch.testing.assert_close(compiled.qvel, eager.qvel, rtol=limit, atol=limit)
        exact = eager if exact is None else exact
        assert relative(eager.qvel.double(), exact.qvel) < 1e-3
    mapped = torch.vmap(lambda x: mjt.step(m, x))(d)
    torch.testing.assert_close(mapped.qvel, eager.qvel, rtol=1e-4, atol=1e-4)


def test_gradients_of_conjugate_gradients_are_those_of_the_optimum() -> None:
    grads = []
    for solver in ("CG", "Newton"):
        mjm = heap(solver=solver, tolerance=1e-14, iterations=2000)
        m = mjt.put_model(mjm, dtype=F64)
        start = mjt.put_data(m, states(heap(), 4)[1:])
        force = start.qfrc_applied.clone().requires_grad_()
        d = mjt.forward(m, start.replace(qfrc_applied=force))
        grads += torch.autograd.grad(d.qacc.square().sum() + d.qfrc_constraint.sum(), force)
    assert relative(*grads) < 1e-4


@pytest.mark.parametrize("name", [name for name in SETTINGS if name != "cg"])
def test_gradients_of_a_forward_equal_finite_differences(name: str) -> None:
    """Of accelerations and row forces by applied forces and velocities, also through the sweeps of the no-slip pass.

    The difference is 1e-6 on either side: 1e-5 relative is what the solve's tolerance of 1e-14 leaves of it.
    """
    mjm = heap(**{**SETTINGS[name], "tolerance": 1e-14, "iterations": 2000})
    m = mjt.put_model(mjm, dtype=F64)
    start = mjt.put_data(m, states(mjm, 4)[1:])
    g = torch.Generator().manual_seed(0)
    weigh = torch.randn(start.qacc.shape, generator=g, dtype=F64)

    def loss(force: Tensor, qvel: Tensor) -> Tensor:
        d = mjt.forward(m, start.replace(qfrc_applied=force, qvel=qvel))
        return ((d.qacc + 0.1 * d.qfrc_constraint) * weigh).sum() + 0.01 * d.efc_force.sum()

    leaves = [x.clone().requires_grad_() for x in (start.qfrc_applied, start.qvel)]
    grads = torch.autograd.grad(loss(*leaves), leaves)
    for i, grad in enumerate(grads):
        assert grad.isfinite().all()
        along = torch.randn(grad.shape, generator=g, dtype=F64)
        values = [
            loss(*(x.detach() + (h * along if k == i else 0) for k, x in enumerate(leaves)))
            for h in (1e-6, -1e-6)
        ]
        expected = (values[0] - values[1]) / 2e-6
        torch.testing.assert_close((grad * along).sum(), expected, rtol=1e-4, atol=1e-4)
