"""Trees that no constraint can join are solved one by one, as the islands of MuJoCo C."""

import mujoco
import numpy as np
import pytest
import torch
from torch import Tensor

import mujoco_torch as mjt
from mujoco_torch._src import solver
from mujoco_torch._src.solver import newton
from mujoco_torch._src.solver.system import System

F64 = torch.float64

SCENE = """
<mujoco>
  <option timestep="0.004" cone="{cone}" solver="{solver}" iterations="300" tolerance="{tolerance}">
    <flag island="{island}"/>
  </option>
  <worldbody>
    <geom type="plane" size="5 5 .1" contype="0" conaffinity="3"/>
    <body name="a" pos="0 0 .12"><freejoint/><geom size=".1" condim="4" contype="2" conaffinity="2"/></body>
    <body name="arm" pos="0 0 .3">
      <joint name="j1" axis="0 1 0" frictionloss=".3" limited="true" range="-20 20"/>
      <geom type="capsule" fromto="0 0 0 .4 0 -.28" size=".04" contype="1" conaffinity="0"/>
      <body pos=".4 0 -.2">
        <joint name="j2" axis="0 1 0" frictionloss=".1"/>
        <geom type="capsule" fromto="0 0 0 .3 0 -.1" size=".04" contype="1" conaffinity="0" condim="6"/>
      </body>
    </body>
    <body name="b" pos=".05 0 .3"><freejoint/><geom size=".1" condim="6" contype="2" conaffinity="2"/></body>
    <body pos="0 0 2"><joint axis="0 1 0"/>
      <geom type="capsule" fromto="0 0 0 .2 0 0" size=".02" contype="0" conaffinity="0"/>
    </body>
    <body name="c" pos="1 0 .1"><freejoint/><geom type="capsule" size=".05 .1" condim="1" conaffinity="0"/></body>
  </worldbody>
  <equality>
    <joint joint1="j1" joint2="j2" polycoef="0 .5 0 0 0"/>
    {equality}
  </equality>
</mujoco>
"""

KINDS = [(cone, method) for cone in ("pyramidal", "elliptic") for method in ("Newton", "CG")]
kinds = pytest.mark.parametrize("cone, method", KINDS)


def scene(
    cone: str = "pyramidal",
    method: str = "Newton",
    tolerance: float = 1e-12,
    island: str = "enable",
    equality: str = "",
) -> mujoco.MjModel:
    values = dict(cone=cone, solver=method, tolerance=tolerance, island=island, equality=equality)
    return mujoco.MjModel.from_xml_string(SCENE.format(**values))


def states(mjm: mujoco.MjModel, worlds: int = 10) -> list[mujoco.MjData]:
    """After mj_forward, along a noisy rollout until all lies about."""
    mjd, rng, found = mujoco.MjData(mjm), np.random.default_rng(0), []
    mjd.qvel[:] = rng.normal(size=mjm.nv) * 0.3
    for step in range(20 * worlds):
        mjd.qfrc_applied[:] = rng.normal(size=mjm.nv)
        mujoco.mj_step(mjm, mjd)
        if step % 20 == 19:
            mujoco.mj_forward(mjm, mjd)
            found.append(mjd.__copy__())
    return found


def arguments(mjm: mujoco.MjModel, monkeypatch: pytest.MonkeyPatch) -> tuple[System, list[Tensor]]:
    """What a forward pass gives to `solve`."""
    given, solve = [], solver.solve
    monkeypatch.setattr(solver, "solve", lambda *x: given.append(x) or solve(*x))
    m = mjt.put_model(mjm, dtype=F64)
    mjt.forward(m, mjt.put_data(m, states(mjm)))
    monkeypatch.undo()
    system, *tensors = given[0]
    return system, tensors


def relative(x: Tensor, y: Tensor) -> float:
    return ((x - y).abs() / y.abs().amax(0).clamp_min(1)).max().item()


def test_parts_are_the_trees_that_constraints_can_join() -> None:
    system = mjt.put_model(scene()).topology.system
    assert [part.dofs for part in system.parts] == [
        [*range(6), *range(8, 14)],  # a and b, which can meet
        [6, 7],  # the arm
        [14],  # what nothing touches
        [*range(15, 21)],  # c
    ]
    assert [len(part.contacts) for part in system.parts] == [3, 4, 0, 2]
    assert [len(part.given) for part in system.parts] == [0, 5, 0, 0]


@pytest.mark.parametrize(
    "change",
    [dict(island="disable"), dict(equality='<connect body1="arm" body2="c" anchor="0 0 0"/>')],
    ids=["disabled", "joined"],
)
def test_without_islands_or_with_an_equality_there_are_fewer(change: dict) -> None:
    parts = mjt.put_model(scene(**change)).topology.system.parts
    assert len(parts) == (0 if "island" in change else 3)


@kinds
def test_the_kernel_equals_the_reference(cone: str, method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    system, tensors = arguments(scene(cone, method, tolerance=1e-8), monkeypatch)
    got, want = solver.solve(system, *tensors), newton.solve(*tensors, system.key)
    for x, y in zip(got[:2], want[:2], strict=True):
        assert relative(x, y) < 1e-9
    assert got[2].equal(want[2])
    assert got[2].max() > 1


@kinds
def test_parts_have_the_optimum_of_the_whole(cone: str, method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    system, tensors = arguments(scene(cone, method), monkeypatch)
    whole = System(**{name: getattr(system, name) for name in System.FIELDS} | dict(islands=False))
    for x, y in zip(solver.solve(system, *tensors)[:2], solver.solve(whole, *tensors)[:2], strict=True):
        assert relative(x, y) < 1e-6


@kinds
def test_accelerations_are_those_of_c(cone: str, method: str) -> None:
    mjm = scene(cone, method)
    mjds = states(mjm)
    m = mjt.put_model(mjm, dtype=F64)
    given = mjt.put_data(m, mjds)
    assert relative(mjt.forward(m, given).qacc.T, given.qacc.T) < 1e-6


COPIES = """
<mujoco>
  <option cone="{cone}" solver="{solver}" iterations="{iterations}"/>
  <worldbody>
    <geom type="plane" size="5 5 .1" contype="0" conaffinity="1"/>
    <body pos="0 0 .06"><freejoint/>
      <geom type="capsule" size=".05 .2" conaffinity="0"/>
      <body pos="0 0 .2">
        <joint axis="0 1 0" limited="true" range="-20 20"/>
        <geom type="capsule" fromto="0 0 0 .2 0 .1" size=".03" conaffinity="0"/>
      </body>
    </body>
    <body pos="1 0 .1"><freejoint/><geom size=".1" condim="4" conaffinity="0"/></body>
    <body pos="2 0 .3">
      <joint axis="0 1 0" frictionloss=".3" limited="true" range="-10 10"/>
      <geom type="capsule" fromto="0 0 0 .4 0 -.28" size=".04" conaffinity="0"/>
    </body>
  </worldbody>
</mujoco>
"""


@kinds
def test_where_every_part_is_a_tree_iterations_are_those_of_c(cone: str, method: str) -> None:
    """Of conjugate gradients rounding may add or take one."""
    mjm = mujoco.MjModel.from_xml_string(COPIES.format(cone=cone, solver=method, iterations=300))
    mjds = states(mjm, 20)
    m = mjt.put_model(mjm, dtype=F64)
    assert len(m.topology.system.parts) == mjm.ntree == 3
    niter = mjt.forward(m, mjt.put_data(m, mjds)).solver_niter
    want = torch.tensor([max(mjd.solver_niter[: mjd.nisland], default=0) for mjd in mjds])
    assert max(mjd.nisland for mjd in mjds) == 3
    assert want.max() > 2
    assert (niter - want).abs().max() <= (1 if method == "CG" else 0)


@kinds
@pytest.mark.parametrize("iterations", [1, 3])
def test_where_every_part_is_a_tree_iterations_may_be_few(cone: str, method: str, iterations: int) -> None:
    """Each island of C's has got as far as ours when both are cut short."""
    mjm = mujoco.MjModel.from_xml_string(COPIES.format(cone=cone, solver=method, iterations=iterations))
    mjds = states(mjm, 20)
    m = mjt.put_model(mjm, dtype=F64)
    given = mjt.put_data(m, mjds)
    got = mjt.forward(m, given)
    assert got.solver_niter.max() == iterations
    assert relative(got.qacc.T, given.qacc.T) < 1e-8


def test_gradients_are_those_of_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    system, tensors = arguments(scene(), monkeypatch)
    whole = System(**{name: getattr(system, name) for name in System.FIELDS} | dict(islands=False))
    grads = []
    for some in (system, whole):
        inputs = [x.clone().requires_grad_(i < 17) for i, x in enumerate(tensors)]
        qacc, qfrc, _ = solver.solve(some, *inputs)
        weight = torch.linspace(-1, 1, qacc.numel(), dtype=F64).reshape(qacc.shape)
        grads.append(
            torch.autograd.grad((qacc * weight + qfrc * weight**2).sum(), inputs[:17], allow_unused=True)
        )
    for x, y in zip(*grads, strict=True):
        assert (x is None) == (y is None)
        if x is not None and y.numel():
            assert (x - y).abs().max() < 1e-5 * y.abs().max().clamp_min(1)
