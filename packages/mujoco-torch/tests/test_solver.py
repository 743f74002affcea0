"""The constraint solver against definitions, finite differences and MuJoCo C; the kernel against the reference."""

import gc
import pickle
import sys
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

import mujoco
import numpy as np
import pytest
import torch
from torch import Tensor

from mujoco_torch._src.ops import prepare
from mujoco_torch._src.solver import (
    RowKind,
    System,
    factor_m,
    full_m,
    jacobian,
    linalg,
    newton,
    ops,
    solve,
    solve_m,
)
from mujoco_torch._src.solver.arguments import Arguments

F64 = torch.float64

# Relative to the largest number of the world. float64: rounding of sums in another order, times the condition of the
# random problems (1e3 or so). float32: the same.
TOLERANCE = {torch.float64: 1e-11, torch.float32: 1e-3}

OPTIONS = dict(tolerance=1e-8, ls_tolerance=0.01, iterations=100, ls_iterations=50)
TIGHT = {**OPTIONS, "tolerance": 1e-14}

BATCHES = (1, 7, 8, 9, 33)
"""Below, at and above the width of a register."""

LEGGED = """
<mujoco>
  <option timestep="0.005"/>
  <worldbody>
    <geom type="plane" size="5 5 .1"/>
    <body pos="0 0 .55">
      <freejoint/>
      <geom type="capsule" size=".12 .15" mass="6"/>
      <body pos="0 .15 -.1">
        <joint axis="1 0 0" range="-40 40" limited="true"/>
        <joint axis="0 1 0" range="-60 20" limited="true"/>
        <geom type="capsule" fromto="0 0 0 0 .05 -.25" size=".05" mass="2"/>
        <body pos="0 .05 -.25">
          <joint axis="0 1 0" range="0 100" limited="true"/>
          <geom type="capsule" fromto="0 0 0 0 0 -.2" size=".04" mass="1"/>
        </body>
      </body>
      <body pos="0 -.15 -.1">
        <joint axis="1 0 0" range="-40 40" limited="true"/>
        <joint axis="0 1 0" range="-60 20" limited="true"/>
        <geom type="capsule" fromto="0 0 0 0 -.05 -.25" size=".05" mass="2"/>
      </body>
    </body>
  </worldbody>
</mujoco>
"""

BALLS = """
<mujoco>
  <option timestep="0.004"><flag island="disable"/></option>
  <worldbody>
    <geom type="plane" size="5 5 .1" condim="6" friction="1 .02 .001"/>
    <body pos="0 0 .12"><freejoint/><geom size=".1" condim="4"/></body>
    <body pos=".05 0 .33"><freejoint/><geom size=".1" condim="6" friction=".8 .01 .001"/></body>
    <body pos="-.3 0 .2"><freejoint/><geom type="capsule" size=".05 .1" condim="1"/></body>
  </worldbody>
</mujoco>
"""

ARM = """
<mujoco>
  <option timestep="0.01"/>
  <worldbody>
    <body>
      <joint axis="0 1 0" range="-30 30" limited="true"/>
      <geom type="capsule" fromto="0 0 0 .3 0 0" size=".03"/>
      <body pos=".3 0 0">
        <joint type="ball" range="0 40" limited="true"/>
        <geom type="capsule" fromto="0 0 0 .3 0 0" size=".03"/>
        <body pos=".3 0 0">
          <joint type="slide" axis="1 0 0" range="-.05 .05" limited="true" margin=".01"/>
          <geom size=".05"/>
        </body>
      </body>
    </body>
  </worldbody>
</mujoco>
"""


# ------------------------------------------------------------------------------------------- problems


class Problem(Arguments):
    """The arguments of `solve`."""

    def to(self, dtype: torch.dtype) -> "Problem":
        return Problem(*(x.to(dtype) for x in self))

    def each(self, change: Callable[[Tensor], Tensor]) -> "Problem":
        """With a change to every tensor that has worlds."""
        return self._replace(**{name: change(getattr(self, name)) for name in PER_WORLD})


SHARED = ("row_edge", "row_scale", "cone_friction", "damping", "frictionloss")
PER_WORLD = tuple(name for name in Problem._fields if name not in SHARED)
ROWS = ("cdof", "subtree_com", "contact_pos", "contact_frame", "row_edge", "given_jac")

LIMITS = ((0,), (0,), (1, 2, 3), (3,))
"""Dofs of limits, for nv of at least 4."""

CONTACTS = ((1, 1), (3, 2), (4, 1), (6, 2), (3, 0), (3, 1))
"""Contacts (condim, number of sides); one of fixed bodies, which nothing moves."""


def structure(
    parents: list[int], limits: tuple = (), contacts: tuple = (), seed: int = 0, **options: Any
) -> System:
    """A model of dofs with the given parents (-1: none): random bodies, and random dofs that move the contacts."""
    nv, rng = len(parents), np.random.default_rng(seed)
    rows: list[tuple[int, ...]] = []
    for i, parent in enumerate(parents):
        rows.append((*(rows[parent] if parent >= 0 else ()), i))
    bodies = (1 + np.cumsum(rng.random(nv) < 0.6)).tolist()
    nbody = max(bodies, default=0) + 1

    def side() -> tuple:
        if not nv:
            return (0, ())
        dofs = rows[rng.integers(nv)]
        start = int(rng.integers(len(dofs)))  # the dofs above are those of both bodies, and cancel
        return int(rng.integers(nbody)), tuple((j, int(rng.choice([-1, 1]))) for j in dofs[start:])

    return System(
        nv=nv, nbody=nbody, M_rownnz=tuple(len(row) for row in rows), M_colind=tuple(j for row in rows for j in row),
        dof_bodyid=tuple(bodies), given_kind=(RowKind.LIMIT,) * len(limits), given_dofs=tuple(limits),
        contact_dim=tuple(dim for dim, _ in contacts),
        contact_sides=tuple(tuple(side() for _ in range(sides)) for _, sides in contacts), **{**OPTIONS, **options},
    )  # fmt: skip


def tree(nv: int, seed: int = 0) -> list[int]:
    """Parents of dofs: some roots, some chains, some branches."""
    rng = np.random.default_rng(seed)
    return [int(rng.choice([i - 1, i - 1, rng.integers(-1, i)])) for i in range(nv)]


def with_options(system: System, **options: Any) -> System:
    return System(**{name: getattr(system, name) for name in System.FIELDS} | options)


def edges(system: System, mu: Tensor) -> Tensor:
    """How far each contact row goes along each axis (axes, nrow, 1), for friction mu (5, ncon)."""
    base, sign = torch.zeros(2, system.axes, system.rows, dtype=mu.dtype)
    owner = []
    row = 0
    for c, dim in enumerate(system.contact_dim):
        for axis, side in [(0, 0.0)] if dim == 1 else [(k, x) for k in range(1, dim) for x in (1.0, -1.0)]:
            base[0, row], sign[axis, row] = 1.0, side
            owner.append(c)
            row += 1
    reach = sign[1:] * mu[: system.axes - 1, torch.tensor(owner, dtype=torch.int64)]
    return (base + torch.cat((torch.zeros_like(base[:1]), reach))).unsqueeze(-1)


def random_problem(system: System, worlds: int, seed: int = 0, idle: float = 0.3) -> Problem:
    """A well-conditioned random problem; a share of the constraints of each world is not active."""
    rng = np.random.default_rng([seed, system.nv, system.ngiven, system.contacts, worlds])
    nv, nbody, ncon, ngiven = system.nv, system.nbody, system.contacts, system.ngiven

    def normal(*size: int) -> Tensor:
        return torch.as_tensor(rng.normal(size=size))

    lower = np.zeros((worlds, nv, nv))
    for i, row in enumerate(system.M_rows):
        for j in row:
            lower[:, i, j] = 1.0 if i == j else rng.normal(size=worlds) / len(row)
    full = lower.swapaxes(1, 2) @ (rng.uniform(1, 3, (worlds, nv, 1)) * lower)
    elements = [full[:, i, j] for i, row in enumerate(system.M_rows) for j in row]
    force = 5 * normal(nv, worlds)
    smooth = torch.as_tensor(np.linalg.solve(full, force.T.numpy()[..., None])[..., 0].T.copy())
    frames = np.linalg.qr(rng.normal(size=(worlds, ncon, 3, 3)))[0].reshape(worlds, ncon, 9)

    def weight(n: int) -> Tensor:
        return 10 * normal(n, worlds).abs() * torch.as_tensor(rng.random((n, worlds)) >= idle)

    return Problem(
        M=torch.as_tensor(np.array(elements).reshape(system.nC, worlds)),
        cdof=normal(6, nv, worlds) / 3,
        subtree_com=normal(3, nbody, worlds) / 3,
        contact_pos=normal(3, ncon, worlds) / 3,
        contact_frame=torch.as_tensor(frames.transpose(2, 1, 0).copy()),
        row_edge=edges(system, torch.as_tensor(rng.uniform(0.2, 1, (5, ncon)))),
        given_jac=normal(system.nJ, worlds),
        given_D=weight(ngiven),
        given_ref=2 * normal(ngiven, worlds),
        contact_D=weight(ncon),
        contact_ref=2 * normal(1, ncon, worlds),
        row_scale=torch.as_tensor(rng.uniform(0.5, 2, (system.rows, 1))),
        cone_friction=torch.zeros(0, ncon, 1, dtype=F64),
        damping=torch.as_tensor(rng.uniform(0, 1, (system.nefc, 1))),
        frictionloss=torch.as_tensor(rng.uniform(0.5, 3, (system.nf, 1))),
        qvel=normal(nv, worlds),
        qfrc_smooth=force,
        qacc_smooth=smooth,
        qacc_warmstart=smooth + normal(nv, worlds),
    )


def example(worlds: int = 3, nv: int = 6, seed: int = 0, **options: Any) -> tuple[System, Problem]:
    """Limits of both kinds, contacts of every kind."""
    system = structure(tree(nv, seed), LIMITS, CONTACTS, seed, **options)
    return system, random_problem(system, worlds, seed)


Run = Callable[[System, Problem], tuple[Tensor, Tensor, Tensor]]


def operator(system: System, problem: Problem) -> tuple[Tensor, Tensor, Tensor]:
    return solve(system, *problem)


def reference(system: System, problem: Problem) -> tuple[Tensor, Tensor, Tensor]:
    return newton.solve(*problem, system.key)


both = pytest.mark.parametrize("run", [operator, reference], ids=lambda run: run.__name__)


def expected_jacobian(system: System, p: Problem) -> Tensor:
    """J (rows, nv, B): how fast each dof moves a limit, or two bodies apart at a contact along the edge of a row."""
    worlds = p.M.shape[-1]
    J = np.zeros((system.nefc, system.nv, worlds))
    cdof, com, pos, frame, edge, given = (getattr(p, name).numpy() for name in ROWS)
    values = iter(given)
    for row, dofs in enumerate(system.given_dofs):
        for dof in dofs:
            J[row, dof] = next(values)
    row = 0
    for c, (dim, sides) in enumerate(zip(system.contact_dim, system.contact_sides, strict=True)):
        for axis in [0] if dim == 1 else np.repeat(np.arange(1, dim), 2):
            for root, columns in sides:
                for dof, sign in columns:
                    turn, move = cdof[:3, dof], cdof[3:, dof]
                    velocity = move + np.cross(turn, pos[:, c] - com[:, root], axis=0)
                    along = frame[3 * (axis % 3) : 3 * (axis % 3) + 3, c]
                    power = (frame[:3, c] * velocity).sum(0)
                    if axis:
                        power = power + edge[axis, row] * (along * (velocity if axis < 3 else turn)).sum(0)
                    J[system.ngiven + row, dof] += sign * power
            row += 1
    return torch.as_tensor(J)


def rows_of(system: System, p: Problem) -> tuple[Tensor, Tensor, Tensor]:
    """Jacobian, D and reference acceleration of every row."""
    J = expected_jacobian(system, p)
    owner = [c for c, dim in enumerate(system.contact_dim) for _ in range(1 if dim == 1 else 2 * (dim - 1))]
    weight = torch.cat((p.given_D, p.row_scale * p.contact_D[owner]))
    reference = torch.cat((p.given_ref, p.contact_ref[0, owner]))
    return J, weight, reference - p.damping * (J * p.qvel).sum(1)


def forces(system: System, p: Problem, qacc: Tensor) -> Tensor:
    """Joint forces of the rows at an acceleration, by definition."""
    J, weight, aref = rows_of(system, p)
    return (J * (weight * (aref - (J * qacc).sum(1)).clamp(min=0)).unsqueeze(1)).sum(0)


def optimality(system: System, p: Problem, qacc: Tensor) -> Tensor:
    """Norm of the cost's gradient, over the norm of the applied force, per world."""
    grad = (full_m(p.M, system) * qacc).sum(1) - p.qfrc_smooth - forces(system, p, qacc)
    return grad.norm(dim=0) / p.qfrc_smooth.norm(dim=0)


def assert_same(a: Tensor, b: Tensor, tolerance: float | None = None) -> None:
    """Equal to the tolerance (default: of the dtype), relative to the largest number of the world."""
    assert a.shape == b.shape
    assert a.dtype == b.dtype
    if b.numel():
        scale = b.abs().flatten(0, -2).amax(0).clamp_min(1)
        assert ((a - b).abs() / scale).max() < (tolerance or TOLERANCE[a.dtype])


def assert_same_solution(
    a: tuple[Tensor, ...], b: tuple[Tensor, ...], tolerance: float | None = None
) -> None:
    for x, y in zip(a[:2], b[:2], strict=True):
        assert_same(x, y, tolerance)
    assert a[2].dtype == b[2].dtype == torch.int32
    assert (a[2] - b[2]).abs().max() <= (0 if a[0].dtype == F64 else 1)


# ------------------------------------------------------------------------------------------- dense linear algebra


def random_dense(nv: int, nefc: int, worlds: int, dtype: torch.dtype = F64) -> tuple[Tensor, ...]:
    """M, J, D and a right side."""
    g = torch.Generator().manual_seed(1000 * nv + 10 * nefc + worlds)

    def normal(*size: int) -> Tensor:
        return torch.randn(*size, generator=g, dtype=F64)

    root = normal(nv, nv, worlds)
    mass = torch.einsum("ikb,jkb->ijb", root, root) + nv * torch.eye(nv, dtype=F64)[:, :, None]
    jac = normal(nefc, nv, worlds) * (normal(nefc, nv, 1) > 0)
    weight = 10 * normal(nefc, worlds).abs() * (normal(nefc, worlds) > 0.2)
    return tuple(x.to(dtype) for x in (mass, jac, weight, 5 * normal(nv, worlds)))


@pytest.mark.parametrize("n", [1, 2, 5, 27])
def test_cholesky_factor_and_solve(n: int) -> None:
    mass, *_, force = random_dense(n, 1, 7)
    factor = linalg.chol_factor(mass)
    assert torch.equal(factor.movedim(-1, 0).triu(1), torch.zeros(7, n, n, dtype=F64))
    torch.testing.assert_close(torch.einsum("ikb,jkb->ijb", factor, factor), mass)
    torch.testing.assert_close((mass * linalg.chol_solve(factor, force)).sum(1), force)


def test_cholesky_clamps_small_pivots_as_mujoco_does() -> None:
    singular = torch.ones(2, 2, 3, dtype=F64)
    factor = linalg.chol_factor(singular)
    torch.testing.assert_close(factor[1, 1], torch.full((3,), 1e-15, dtype=F64).sqrt())


@pytest.mark.parametrize("run", [ops._hessian_solve, linalg.hessian_solve], ids=["operator", "reference"])
def test_hessian_solve(run: Callable) -> None:
    mass, jac, weight, force = random_dense(6, 9, 5)
    hessian = mass + torch.einsum("rib,rb,rjb->ijb", jac, weight, jac)
    torch.testing.assert_close((hessian * run(mass, jac, weight, force)).sum(1), force)


@pytest.mark.parametrize("dtype", list(TOLERANCE), ids=str)
@pytest.mark.parametrize("worlds", BATCHES)
@pytest.mark.parametrize("nv", [1, 2, 4, 13, 27])
def test_hessian_solve_equals_the_reference(nv: int, worlds: int, dtype: torch.dtype) -> None:
    for nefc in (0, 1, 30):
        problem = random_dense(nv, nefc, worlds, dtype)
        assert_same(ops._hessian_solve(*problem), linalg.hessian_solve(*problem))


@pytest.mark.parametrize("dtype", list(TOLERANCE), ids=str)
def test_hessian_solve_of_blocks(dtype: torch.dtype) -> None:
    """Blocks of 7 that a few rows connect, most of M and J being zero."""
    M, J, w, b = random_dense(42, 6, 9, dtype)
    block = torch.arange(42) // 7
    M = M * (block[:, None] == block)[..., None]
    J = J * (block % 3 == torch.arange(6)[:, None] % 3)[..., None]
    assert_same(ops._hessian_solve(M, J, w, b), linalg.hessian_solve(M, J, w, b))


def test_hessian_solve_takes_any_strides() -> None:
    problem = random_dense(6, 9, 10)
    strided = (x.movedim(-1, 0).contiguous().movedim(0, -1) for x in problem)
    assert torch.equal(ops._hessian_solve(*strided), ops._hessian_solve(*problem))


# ------------------------------------------------------------------------------------------- values


@pytest.mark.parametrize("seed", range(4))
def test_jacobian(seed: int) -> None:
    system, p = example(seed=seed)
    J = jacobian(system, *(getattr(p, name) for name in ROWS))
    torch.testing.assert_close(J, expected_jacobian(system, p))


@pytest.mark.parametrize("limits", [LIMITS, ()], ids=["limits", "none"])
@pytest.mark.parametrize("contacts", [CONTACTS, ((3, 0), (1, 0)), ()], ids=["contacts", "fixed", "none"])
def test_jacobian_without_some_rows(limits: tuple, contacts: tuple) -> None:
    system = structure(tree(5), limits, contacts)
    p = random_problem(system, 3)
    J = jacobian(system, *(getattr(p, name) for name in ROWS))
    torch.testing.assert_close(J, expected_jacobian(system, p))


@both
@pytest.mark.parametrize(
    ("nv", "nc", "worlds"), [(4, 0, 1), (5, 3, 8), (13, 12, 37), (27, 20, 9), (40, 8, 130)]
)
def test_reaches_the_optimum(run: Run, nv: int, nc: int, worlds: int) -> None:
    system = structure(tree(nv), LIMITS, (CONTACTS * 4)[:nc], **TIGHT)
    p = random_problem(system, worlds)
    qacc, qfrc, niter = run(system, p)
    assert optimality(system, p, qacc).max() < 1e-11
    assert_same(qfrc, forces(system, p, qacc))
    assert niter.dtype == torch.int32
    assert niter.any()
    assert niter.max() < 30


@both
@pytest.mark.parametrize("limits", [LIMITS, ()], ids=["limits", "none"])
@pytest.mark.parametrize("contacts", [CONTACTS, ((3, 0),), ()], ids=["contacts", "fixed", "none"])
def test_forces_are_those_at_the_acceleration(run: Run, limits: tuple, contacts: tuple) -> None:
    system = structure(tree(5), limits, contacts, **TIGHT)
    p = random_problem(system, 11)
    qacc, qfrc, niter = run(system, p)
    torch.testing.assert_close(qfrc, forces(system, p, qacc))
    torch.testing.assert_close((full_m(p.M, system) * qacc).sum(1), p.qfrc_smooth + qfrc)
    assert niter.any() == (len(limits) > 0 or contacts == CONTACTS)


@both
def test_without_active_constraints_qacc_is_qacc_smooth(run: Run) -> None:
    system, p = example(9)
    qacc, qfrc, niter = run(system, p._replace(given_D=0 * p.given_D, contact_D=0 * p.contact_D))
    assert torch.equal(qacc, p.qacc_smooth)
    assert not qfrc.any()
    assert not niter.any()


@both
def test_idle_and_busy_worlds_mixed(run: Run) -> None:
    system, p = example(9)
    for D in (p.given_D, p.contact_D):
        D[:, ::2] = 0
        D[:, 1::2] += 1
    qacc, qfrc, niter = run(system, p)
    assert torch.equal(qacc[:, ::2], p.qacc_smooth[:, ::2])
    assert not qfrc[:, ::2].any()
    assert not niter[::2].any()
    assert niter[1::2].all()


@both
@pytest.mark.parametrize(
    ("nv", "limits", "contacts", "worlds"),
    [(0, (), (), 3), (0, (), ((3, 0), (1, 1)), 3), (4, (), (), 4), (4, LIMITS, CONTACTS, 0), (0, (), (), 0)],
)
def test_empty(run: Run, nv: int, limits: tuple, contacts: tuple, worlds: int) -> None:
    system = structure([-1] * nv, limits, contacts)
    p = random_problem(system, worlds)
    qacc, qfrc, niter = run(system, p)
    assert torch.equal(qacc, p.qacc_smooth)
    assert qfrc.shape == (nv, worlds)
    assert not qfrc.any()
    assert niter.shape == (worlds,)
    assert not niter.any()


@both
def test_starts_from_the_better_point(run: Run) -> None:
    system, p = example(9)
    tight = with_options(system, **TIGHT)
    qacc, *_ = run(tight, p)
    assert run(system, p._replace(qacc_warmstart=qacc))[2].max() == 0
    absurd = run(system, p._replace(qacc_warmstart=1e6 * torch.ones_like(qacc)))[2]
    assert torch.equal(absurd, run(system, p._replace(qacc_warmstart=p.qacc_smooth))[2])


@both
@pytest.mark.parametrize("name", ["M", "cdof", "contact_pos", "given_D", "contact_D", "qfrc_smooth"])
def test_a_broken_world_keeps_to_itself(run: Run, name: str) -> None:
    system, p = example(12)
    p.given_D[:, 3] += 1
    p.contact_D[:, 3] += 1
    broken = p._replace(**{name: getattr(p, name).clone()})
    getattr(broken, name)[..., -1, 3] = torch.nan
    expected, qacc, niter = run(system, p)[0], *run(system, broken)[::2]
    assert qacc[:, 3].isnan().any()
    assert niter[3] <= 2
    keep = torch.arange(12) != 3
    assert_same(qacc[:, keep], expected[:, keep])


def strided(x: Tensor) -> list[Tensor]:
    """The same numbers in other places: worlds first in memory, and every second number of twice as many."""
    return [x.movedim(-1, 0).contiguous().movedim(0, -1), x.repeat_interleave(2, -1)[..., ::2]]


@pytest.mark.parametrize("way", [0, 1])
@pytest.mark.parametrize("dtype", list(TOLERANCE), ids=str)
def test_any_strides(way: int, dtype: torch.dtype) -> None:
    system, p = example(10)
    p = p.to(dtype)
    others = Problem(*(strided(x)[way] for x in p))
    assert not others.M.is_contiguous()
    for a, b in zip(solve(system, *others), solve(system, *p), strict=True):
        assert torch.equal(a, b)


@both
def test_given_rows_without_worlds(run: Run) -> None:
    """Limits of scalar joints alone: the side of the limit."""
    system, p = example(10)
    fixed = p._replace(given_jac=p.given_jac[..., :1].contiguous())
    results = [
        run(system, p._replace(given_jac=x))
        for x in (fixed.given_jac.expand(-1, 10), fixed.given_jac.expand(-1, 10).contiguous())
    ]
    for x in results:
        for a, b in zip(x, run(system, fixed), strict=True):
            assert torch.equal(a, b)


# ------------------------------------------------------------------------------------------- kernel and reference


@pytest.mark.parametrize("dtype", list(TOLERANCE), ids=str)
@pytest.mark.parametrize("nv", [1, 2, 3, 4, 6, 13, 27, 40])
def test_kernel_equals_the_reference(nv: int, dtype: torch.dtype) -> None:
    """Trees of 1 to 40 dofs, limits and contacts in several numbers, in batches of several sizes."""
    balls = ((0, 1, 2), (nv - 3, nv - 2, nv - 1)) if nv >= 3 else ()
    limits = tuple((i % nv,) for i in range(9)) + balls
    cases = [
        (limits[:1], ()),
        ((), CONTACTS[1:2]),
        (limits, ()),
        (limits[4:], CONTACTS),
        (limits, CONTACTS * 3),
    ]
    for seed, ((limits, contacts), worlds) in enumerate(zip(cases, BATCHES, strict=True)):
        system = structure(tree(nv, seed), limits, contacts, seed)
        p = random_problem(system, worlds, seed).to(dtype)
        assert_same_solution(operator(system, p), reference(system, p))


@pytest.mark.parametrize("dtype", list(TOLERANCE), ids=str)
@pytest.mark.parametrize("worlds", [*BATCHES, 300])
def test_kernel_equals_the_reference_in_ragged_batches(worlds: int, dtype: torch.dtype) -> None:
    """And a world's numbers do not depend on its neighbours beyond rounding."""
    system, whole = example(300)
    whole = whole.to(dtype)
    p = whole.each(lambda x: x[..., :worlds].contiguous())
    found = operator(system, p)
    assert_same_solution(found, reference(system, p))
    assert_same_solution(found, tuple(x[..., :worlds] for x in operator(system, whole)))


@pytest.mark.parametrize("contact", [(dim, sides) for dim in (1, 3, 4, 6) for sides in (0, 1, 2)], ids=str)
@pytest.mark.parametrize("idle", [0.0, 0.8])
def test_contacts_of_every_kind(contact: tuple[int, int], idle: float) -> None:
    system = structure(tree(9), (), (contact,) * 5, **TIGHT)
    p = random_problem(system, 9, idle=idle)
    found = operator(system, p)
    assert_same_solution(found, reference(system, p))
    assert optimality(system, p, found[0]).max() < 1e-11


@pytest.mark.parametrize("ls_iterations", [1, 2, 3, 4, 6, 10])
@pytest.mark.parametrize("iterations", [1, 3])
def test_kernel_equals_the_reference_when_cut_short(iterations: int, ls_iterations: int) -> None:
    """Rows 10,000 times as stiff: the line search has something to do, and rounding counts 10,000 times as much."""
    system = structure(tree(9), LIMITS, CONTACTS, iterations=iterations, ls_iterations=ls_iterations)
    p = random_problem(system, 64)
    p = p._replace(given_D=1e4 * p.given_D, contact_D=1e4 * p.contact_D)
    assert_same_solution(operator(system, p), reference(system, p), 1e-7)


def test_more_than_64_tile_columns() -> None:
    system = structure([-1 if i % 9 == 0 else i - 1 for i in range(270)], (*LIMITS, (262,)), CONTACTS)
    p = random_problem(system, 2)
    assert_same_solution(operator(system, p), reference(system, p))


def test_threads_give_the_same_numbers() -> None:
    system, p = example(1000)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        one = operator(system, p)
        torch.set_num_threads(3)
        three = operator(system, p)
    finally:
        torch.set_num_threads(before)
    for a, b in zip(one, three, strict=True):
        assert torch.equal(a, b)


def test_callable_from_many_threads_at_once() -> None:
    problems = [example(100, nv=5 + i) for i in range(4)]
    expected = [operator(*p)[0] for p in problems]
    results: list[Tensor | None] = [None] * 4

    def work(i: int) -> None:
        for _ in range(5):
            results[i] = operator(*problems[i])[0]

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert all(torch.equal(a, b) for a, b in zip(results, expected, strict=True))


def test_reference_splits_large_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    system, p = example(23)
    p = p._replace(given_jac=p.given_jac[..., :1])
    whole = reference(system, p)
    monkeypatch.setattr(sys.modules[newton.__name__], "BLOCK", 10)
    assert_same_solution(reference(system, p), whole)


# ------------------------------------------------------------------------------------------- MuJoCo C


class Slots:
    """Static places for the contacts of a rollout: of each pair of geoms as many as it ever has at once."""

    def __init__(self, mjm: mujoco.MjModel, datas: list[mujoco.MjData]) -> None:
        most: Counter = Counter()
        kind = {}
        for d in datas:
            most |= Counter(tuple(c.geom.tolist()) for c in d.contact)
            kind |= {tuple(c.geom.tolist()): (c.dim, c.friction.copy()) for c in d.contact}
        pairs = [(*pair, k) for pair in sorted(most) for k in range(most[pair])]
        self.contact = {pair: i for i, pair in enumerate(pairs)}
        self.dims = [kind[pair[:2]][0] for pair in pairs]
        self.friction = np.array([kind[pair[:2]][1] for pair in pairs]).reshape(-1, 5)
        bodies = [mjm.geom_bodyid[list(pair[:2])] for pair in pairs]
        self.sides = tuple(sides(mjm, *pair) for pair in bodies)
        joints = [j for j in range(mjm.njnt) if mjm.jnt_limited[j]]
        ball = mujoco.mjtJoint.mjJNT_BALL
        limits = [(j, side) for j in joints for side in ((-1,) if mjm.jnt_type[j] == ball else (1, -1))]
        self.limit = {limit: i for i, limit in enumerate(limits)}
        first = mjm.jnt_dofadr.tolist()
        self.limits = [
            (first[j], first[j] + 1, first[j] + 2) if mjm.jnt_type[j] == ball else (first[j],)
            for j, _ in limits
        ]


def sides(mjm: mujoco.MjModel, body1: int, body2: int) -> tuple:
    """Of each tree in touch its root, and the dofs that move one of the bodies and not the other."""
    found: dict[int, Counter] = {}
    for body, sign in ((body2, 1), (body1, -1)):
        root, b = int(mjm.body_rootid[body]), int(body)
        while b:
            for k in range(mjm.body_dofnum[b]):
                found.setdefault(root, Counter())[int(mjm.body_dofadr[b]) + k] += sign
            b = int(mjm.body_parentid[b])
    return tuple(
        (root, tuple(sorted((j, s) for j, s in moved.items() if s))) for root, moved in found.items()
    )


def system_of(mjm: mujoco.MjModel, slots: Slots) -> System:
    return System(
        nv=mjm.nv, nbody=mjm.nbody, M_rownnz=tuple(mjm.M_rownnz.tolist()), M_colind=tuple(mjm.M_colind.tolist()),
        dof_bodyid=tuple(mjm.dof_bodyid.tolist()), given_kind=(RowKind.LIMIT,) * len(slots.limits),
        given_dofs=tuple(slots.limits), contact_dim=tuple(slots.dims), contact_sides=slots.sides,
        tolerance=mjm.opt.tolerance, ls_tolerance=mjm.opt.ls_tolerance, iterations=mjm.opt.iterations,
        ls_iterations=mjm.opt.ls_iterations,
    )  # fmt: skip


def constraints_of(mjm: mujoco.MjModel, d: mujoco.MjData, slots: Slots) -> dict[int, int]:
    """The first row of MuJoCo C in each constraint that is active."""
    J = d.efc_J.reshape(d.nefc, mjm.nv) if d.nefc else np.zeros((0, mjm.nv))
    rows, seen = {}, Counter()
    for row in np.flatnonzero(d.efc_type == mujoco.mjtConstraint.mjCNSTR_LIMIT_JOINT):
        joint = int(d.efc_id[row])
        ball = mjm.jnt_type[joint] == mujoco.mjtJoint.mjJNT_BALL
        side = -1 if ball else int(np.sign(J[row, mjm.jnt_dofadr[joint]]))
        rows[slots.limit[joint, side]] = int(row)
    for c in d.contact:
        pair = tuple(c.geom.tolist())
        if c.efc_address >= 0:
            rows[len(slots.limits) + slots.contact[(*pair, seen[pair])]] = c.efc_address
        seen[pair] += 1
    return rows


def rows_of_constraint(system: System, constraint: int) -> tuple[int, int]:
    """First row of a given row or contact, and their number."""
    contact = constraint - system.ngiven
    if contact < 0:
        return constraint, 1
    first, end = system.contact_row[contact : contact + 2]
    return system.ngiven + first, end - first


def problem_of(
    mjm: mujoco.MjModel, datas: list[mujoco.MjData]
) -> tuple[System, Problem, list[dict[int, int]]]:
    """What MuJoCo C solves in each of the datas (after mj_forward), as one problem of that many worlds."""
    slots = Slots(mjm, datas)
    system, worlds = system_of(mjm, slots), len(datas)
    nl, ncon = system.ngiven, system.contacts
    D, ref, damping = np.zeros((nl + ncon, worlds)), np.zeros((nl + ncon, worlds)), np.zeros((system.nefc, 1))
    jac, pos, frame = np.zeros((system.nJ, worlds)), np.zeros((3, ncon, worlds)), np.zeros((9, ncon, worlds))
    rows = [constraints_of(mjm, d, slots) for d in datas]
    for w, d in enumerate(datas):
        J = d.efc_J.reshape(d.nefc, mjm.nv) if d.nefc else np.zeros((0, mjm.nv))
        for constraint, row in rows[w].items():
            damp = d.efc_KBIP[row, 1]
            first, count = rows_of_constraint(system, constraint)
            assert (damping[first] == 0) | (damping[first] == damp)
            damping[first : first + count] = damp
            D[constraint, w] = d.efc_D[row]
            ref[constraint, w] = d.efc_aref[row] + damp * d.efc_vel[row]
            if constraint < nl:
                jac[system.given_start[constraint] : system.given_start[constraint + 1], w] = J[
                    row, list(system.given_dofs[constraint])
                ]
        seen: Counter = Counter()
        for c in d.contact:
            pair = tuple(c.geom.tolist())
            at = slots.contact[(*pair, seen[pair])]
            pos[:, at, w], frame[:, at, w] = c.pos, c.frame
            seen[pair] += 1

    def stack(name: str) -> Tensor:
        return torch.as_tensor(np.stack([getattr(d, name).T for d in datas], -1))

    problem = Problem(
        M=stack("M"), cdof=stack("cdof"), subtree_com=stack("subtree_com"), contact_pos=torch.as_tensor(pos),
        contact_frame=torch.as_tensor(frame), row_edge=edges(system, torch.as_tensor(slots.friction.T.copy())),
        given_jac=torch.as_tensor(jac), given_D=torch.as_tensor(D[:nl]), given_ref=torch.as_tensor(ref[:nl]),
        contact_D=torch.as_tensor(D[nl:]), contact_ref=torch.as_tensor(ref[None, nl:]),
        row_scale=torch.ones(system.rows, 1, dtype=F64), cone_friction=torch.zeros(0, ncon, 1, dtype=F64),
        damping=torch.as_tensor(damping), frictionloss=torch.zeros(0, 1, dtype=F64),
        qvel=stack("qvel"), qfrc_smooth=stack("qfrc_smooth"),
        qacc_smooth=stack("qacc_smooth"), qacc_warmstart=stack("qacc_warmstart"),
    )  # fmt: skip
    return system, problem, rows


def rollout(xml: str, steps: int = 200, **options: Any) -> tuple[mujoco.MjModel, list[mujoco.MjData]]:
    """Model and data after mj_forward along a noisy rollout of MuJoCo C."""
    mjm = mujoco.MjModel.from_xml_string(xml)
    for name, value in options.items():
        setattr(mjm.opt, name, value)
    data, rng, datas = mujoco.MjData(mjm), np.random.default_rng(0), []
    data.qvel[:] = rng.normal(size=mjm.nv) * 0.5
    for step in range(steps):
        data.qfrc_applied[:] = rng.normal(size=mjm.nv) * (2 if step < steps // 2 else 0)
        mujoco.mj_forward(mjm, data)
        datas.append(data.__copy__())
        mujoco.mj_step(mjm, data)
    return mjm, datas


def solution_of(datas: list[mujoco.MjData]) -> tuple[Tensor, Tensor, Tensor]:
    """What MuJoCo C finds: accelerations, joint forces of the constraints, iterations."""
    qacc, qfrc = (
        torch.as_tensor(np.stack([getattr(d, name) for d in datas], -1))
        for name in ("qacc", "qfrc_constraint")
    )
    return qacc, qfrc, torch.tensor([int(d.solver_niter.sum()) for d in datas])


MODELS = {"legged": LEGGED, "balls": BALLS, "arm": ARM}


@both
@pytest.mark.parametrize("name", MODELS)
def test_equals_mujoco(name: str, run: Run) -> None:
    """The same accelerations to rounding (1e-9 relative), after the same number of iterations, one off at most."""
    mjm, datas = rollout(MODELS[name], tolerance=1e-10)
    system, p, _ = problem_of(mjm, datas)
    qacc, qfrc, niter = run(system, p)
    expected, expected_qfrc, counts = solution_of(datas)
    assert_same(qacc, expected, 1e-9)
    assert_same(qfrc, expected_qfrc, 1e-9)
    assert counts.max() >= 2
    assert (niter - counts).abs().max() <= 1


@pytest.mark.parametrize("name", MODELS)
def test_jacobian_equals_mujoco(name: str) -> None:
    """1e-12: a few products. Rows of MuJoCo C are found by the constraint they belong to."""
    mjm, datas = rollout(MODELS[name], steps=60)
    system, p, rows = problem_of(mjm, datas)
    J = jacobian(system, *(getattr(p, name) for name in ROWS))
    assert any(rows)
    for w, d in enumerate(datas):
        given = d.efc_J.reshape(d.nefc, mjm.nv) if d.nefc else np.zeros((0, mjm.nv))
        for constraint, row in rows[w].items():
            start, count = rows_of_constraint(system, constraint)
            assert_same(J[start : start + count, :, w].T, torch.as_tensor(given[row : row + count].T), 1e-12)


@both
@pytest.mark.parametrize(
    "options",
    [{"iterations": 1}, {"iterations": 2, "ls_iterations": 3}, {"ls_iterations": 1}, {"ls_iterations": 5}],
    ids=str,
)
def test_equals_mujoco_when_cut_short(options: dict[str, int], run: Run) -> None:
    """With few iterations the result is not the optimum, and the same as MuJoCo's all the same."""
    mjm, datas = rollout(LEGGED, **options)
    system, p, _ = problem_of(mjm, datas)
    qacc, _, niter = run(system, p)
    expected, _, counts = solution_of(datas)
    assert_same(qacc, expected, 1e-9)
    assert niter.tolist() == counts.tolist()


# ------------------------------------------------------------------------------------------- gradients and transforms

# What `differentiated` is a function of: the tensors of a problem, with friction in the place of the edges.
LEAVES = (
    "M", *ROWS, "given_D", "given_ref", "contact_D", "contact_ref", "row_scale", "cone_friction", "damping",
    "frictionloss", "qvel", "qfrc_smooth",
)  # fmt: skip


def differentiated(system: System) -> Callable[..., tuple[Tensor, Tensor]]:
    """What a step runs: factor, smooth acceleration, then constrained acceleration and forces, of the leaves."""

    def f(*leaves: Tensor) -> tuple[Tensor, Tensor]:
        given = dict(zip(LEAVES, leaves, strict=True))
        given["row_edge"] = edges(system, given["row_edge"])
        M, force = given["M"], given["qfrc_smooth"]
        smooth = solve_m(system, M, *factor_m(system, M), force)
        return solve(system, **given, qacc_smooth=smooth, qacc_warmstart=0.5 * smooth)[:2]

    return f


def loss_of(system: System) -> Callable[..., Tensor]:
    f = differentiated(system)

    def loss(*leaves: Tensor) -> Tensor:
        qacc, qfrc = f(*leaves)
        return qacc.square().sum() + (qfrc * qacc).sum() + (0.3 * qfrc + 0.1 * qfrc**2).sum()

    return loss


def leaves_of(system: System, worlds: int = 2, seed: int = 0) -> tuple[Tensor, ...]:
    """Leaves at which every constraint is active and most push: no row is at its kink."""
    p = random_problem(system, worlds, seed, idle=0.0)
    mu = torch.as_tensor(np.random.default_rng(seed).uniform(0.2, 1, (5, system.contacts)))
    values = p._replace(
        row_edge=mu, given_D=p.given_D + 0.5, contact_D=p.contact_D + 0.5, given_ref=p.given_ref + 2,
        contact_ref=p.contact_ref + 2,
    )  # fmt: skip
    return tuple(getattr(values, name).clone().requires_grad_() for name in LEAVES)


SMALL = dict(parents=[-1, 0, 1, -1], limits=((0,), (1, 2, 3)), contacts=((3, 2), (1, 1), (6, 1)), **TIGHT)


def test_gradients_of_the_jacobian() -> None:
    system = structure(**SMALL)
    p = random_problem(system, 2)
    rows = tuple(getattr(p, name).requires_grad_() for name in ROWS)
    assert torch.autograd.gradcheck(lambda *x: jacobian(system, *x), rows)


@pytest.mark.parametrize("outputs", [(0,), (1,), (0, 1)], ids=str)
def test_gradients(outputs: tuple[int, ...]) -> None:
    """Of each output on its own (the other has no gradient then), and of both; of the model's arrays too."""
    system = structure(**SMALL)
    f, leaves = differentiated(system), leaves_of(system)
    assert torch.autograd.gradcheck(lambda *x: tuple(f(*x)[i] for i in outputs), leaves)


def test_gradients_with_inactive_constraints() -> None:
    system = structure(**SMALL)
    f, leaves = differentiated(system), leaves_of(system, worlds=3)
    weights = [LEAVES.index("given_D"), LEAVES.index("contact_D")]
    given, contact = (leaves[i].requires_grad_(False) for i in weights)
    given[1, 0] = contact[1, 1] = 0
    given[:, 2] = contact[:, 2] = 0
    assert torch.autograd.gradcheck(f, leaves)


def test_gradients_with_given_rows_without_worlds() -> None:
    system = structure(**SMALL)
    f, leaves = differentiated(system), list(leaves_of(system))
    at = LEAVES.index("given_jac")
    leaves[at] = leaves[at].detach()[..., :1].clone().requires_grad_()
    assert torch.autograd.gradcheck(f, tuple(leaves))


def test_second_gradients() -> None:
    system = structure([-1, 0, -1], ((0,),), ((3, 2),), **TIGHT)
    assert torch.autograd.gradgradcheck(loss_of(system), leaves_of(system, 1))


def test_gradient_after_the_structure_is_let_go() -> None:
    """As when a function makes a model, steps it and returns a loss."""
    system = structure(**{**SMALL, "tolerance": 1.25e-14})
    leaves = leaves_of(system)
    expected = torch.autograd.grad(loss_of(system)(*leaves), leaves)
    loss = loss_of(system)(*leaves)
    del system
    gc.collect()
    for a, b in zip(torch.autograd.grad(loss, leaves), expected, strict=True):
        assert torch.equal(a, b)


def test_gradient_is_finite_for_degenerate_rows() -> None:
    system = structure(tree(5), LIMITS, ((3, 1), (3, 1), (4, 2), (3, 2)))
    leaves = leaves_of(system)
    given = dict(zip(LEAVES, leaves, strict=True))
    with torch.no_grad():
        for name in ("contact_pos", "contact_frame"):
            given[name][:, 1] = given[name][:, 0]  # two rows alike, where the same dofs move them
        given["contact_frame"][:, 2] = 0
        given["given_jac"][3] = 0
        given["given_D"][3] = given["contact_D"][-1] = 0
    grads = dict(zip(LEAVES, torch.autograd.grad(loss_of(system)(*leaves), leaves), strict=True))
    assert all(g.isfinite().all() for g in grads.values())
    assert not grads["given_D"][3].any()
    assert not grads["contact_D"][-1].any()
    assert not grads["contact_pos"][:, -1].any()
    assert not grads["contact_frame"][:, -1].any()
    assert grads["contact_pos"][:, 0].any()


def test_no_gradient_to_the_starting_points() -> None:
    system, p = example()
    tensors = [x.requires_grad_() for x in p]
    qacc, _, niter = solve(system, *p)
    assert not niter.requires_grad
    qacc.sum().backward()
    assert tensors[-1].grad is None
    assert tensors[-2].grad is None
    assert all(x.grad is not None for x in tensors[:-2])


def test_func_grad() -> None:
    system = structure(**SMALL)
    loss, leaves = loss_of(system), leaves_of(system)
    expected = torch.autograd.grad(loss(*leaves), leaves)
    grads = torch.func.grad(loss, tuple(range(len(leaves))))(*(x.detach() for x in leaves))
    for a, b in zip(grads, expected, strict=True):
        torch.testing.assert_close(a, b)


def test_compiled_with_gradients() -> None:
    """Inside a function that Dynamo does not look into, as stages are."""
    system = structure(**SMALL)
    f, leaves = torch.compiler.allow_in_graph(loss_of(system)), leaves_of(system)

    def loss(*leaves: Tensor) -> Tensor:
        return 2 * f(*leaves)

    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(*leaves), loss(*leaves))
    ours, theirs = (torch.autograd.grad(run(*leaves), leaves) for run in (compiled, loss))
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b)


DIMS = {
    "all": {name: None if name in SHARED else 0 for name in LEAVES},
    "some": {
        **dict.fromkeys(LEAVES),
        "cdof": 1,
        "contact_pos": -1,
        "given_D": 0,
        "qfrc_smooth": 2,
        "given_jac": 0,
    },
}


@pytest.mark.parametrize(
    ("dims", "given_worlds", "compiled"),
    [("all", 2, False), ("some", 2, False), ("all", 1, False), ("some", 1, False), ("all", 1, True), ("some", 2, True)],
)  # fmt: skip
def test_vmap(dims: str, given_worlds: int, compiled: bool) -> None:
    system = structure(**SMALL)
    f, in_dims = differentiated(system), tuple(DIMS[dims].values())
    single = [x.detach() for x in leaves_of(system)]
    given = LEAVES.index("given_jac")
    single[given] = single[given][..., :given_worlds]
    factors = torch.linspace(0.5, 1.5, 5, dtype=F64)
    each = [[x if d is None else k * x for x, d in zip(single, in_dims, strict=True)] for k in factors]
    batched = [
        single[i] if d is None else torch.stack([e[i] for e in each], d) for i, d in enumerate(in_dims)
    ]
    mapped = torch.vmap(f, in_dims=in_dims)
    if compiled:  # inside a function that Dynamo does not look into, as stages are
        opaque = torch.compiler.allow_in_graph(mapped)
        mapped = torch.compile(lambda *x: opaque(*x), fullgraph=True, backend="aot_eager")
    for out, *expected in zip(mapped(*batched), *(f(*e) for e in each), strict=True):
        torch.testing.assert_close(out, torch.stack(expected), rtol=1e-11, atol=1e-11)


def test_vmap_and_grad() -> None:
    """The gradient of each of several batches, also to what the worlds share; and of all batches together."""
    system = structure(**SMALL)
    loss, every = loss_of(system), tuple(range(len(LEAVES)))
    in_dims = tuple(DIMS["all"].values())
    each = [[x.detach() for x in leaves_of(system, seed=seed)] for seed in range(3)]
    each = [[each[0][i] if d is None else e[i] for i, d in enumerate(in_dims)] for e in each]
    batched = [each[0][i] if d is None else torch.stack([e[i] for e in each]) for i, d in enumerate(in_dims)]
    expected = [torch.func.grad(loss, every)(*e) for e in each]
    separate = torch.vmap(torch.func.grad(loss, every), in_dims=in_dims)(*batched)
    together = torch.func.grad(lambda *x: torch.vmap(loss, in_dims=in_dims)(*x).sum(), every)(*batched)
    for i, d in enumerate(in_dims):
        stacked = torch.stack([g[i] for g in expected])
        torch.testing.assert_close(separate[i], stacked)
        torch.testing.assert_close(together[i], stacked.sum(0) if d is None else stacked)


@pytest.mark.parametrize("name", SHARED)
def test_vmap_refuses_to_map_what_worlds_share(name: str) -> None:
    system, p = example()
    shared = getattr(p, name)
    with pytest.raises(ValueError, match="vmap: an array of the model is the same in all worlds"):
        torch.vmap(lambda x: solve(system, *p._replace(**{name: x})))(torch.stack([shared, shared]))


def test_opcheck() -> None:
    prepare()
    system, p = example()
    torch.library.opcheck(torch.ops.mujoco_torch.solve.default, (*p, system.key))
    others = Problem(*(strided(x)[0] for x in p))
    torch.library.opcheck(torch.ops.mujoco_torch.solve.default, (*others, system.key))
    torch.library.opcheck(torch.ops.mujoco_torch.hessian_solve.default, random_dense(4, 6, 3))


# ------------------------------------------------------------------------------------------- the structure


def test_system_is_interned_by_value() -> None:
    system = structure(**SMALL)
    assert structure(**SMALL) is system
    assert System.of(system.key) is system
    assert with_options(system, iterations=7).key != system.key
    assert pickle.loads(pickle.dumps(system)) is system
    assert repr(system) == f"System(nv=4, given=2, contacts=3, key={system.key})"


def test_system_is_known_while_somebody_holds_it() -> None:
    data = pickle.dumps(structure(**SMALL, seed=77))
    key = structure(**SMALL, seed=77).key
    gc.collect()
    with pytest.raises(KeyError):
        System.of(key)
    again = pickle.loads(data)
    assert again.key == key
    p = random_problem(again, 3)
    assert_same_solution(operator(again, p), reference(again, p))


def test_what_a_system_derives() -> None:
    system = System(
        nv=5, nbody=3, M_rownnz=(1, 2, 1, 3, 4), M_colind=(0, 0, 1, 2, 0, 1, 3, 0, 1, 3, 4),
        dof_bodyid=(1, 1, 2, 1, 1), given_kind=(0, 2), given_dofs=((0,), (1, 2, 3)), contact_dim=(3, 1, 4),
        contact_sides=(((1, ((0, 1), (1, -1))), (2, ((2, 1),))), (), ((1, ((0, 1),)),)), **OPTIONS,
    )  # fmt: skip
    assert system.nC == 11
    assert system.M_rowadr == (0, 1, 3, 4, 7)
    assert system.M_rows == [(0,), (0, 1), (2,), (0, 1, 3), (0, 1, 3, 4)]
    assert (system.ngiven, system.contacts, system.rows, system.axes) == (2, 3, 11, 4)
    assert system.contact_row == (0, 4, 5, 11)
    assert system.row_axis == (1, 1, 2, 2, 0, 1, 1, 2, 2, 3, 3)
    assert (system.side_start, system.side_root) == ((0, 2, 2, 3), (1, 2, 1))
    assert (system.column_start, system.column_dof) == ((0, 2, 3, 4), (0, 1, 2, 0))
    assert system.column_sign == (1, -1, 1, 1)
    x = torch.arange(1.0, 6.0).unsqueeze(-1)
    assert (system.ne, system.nf, system.nJ, system.given_start) == (1, 0, 4, (0, 1, 4))
    assert (system.given_sum @ (system.given_col @ x)).squeeze(-1).tolist() == [1.0, 9.0]
    assert (system.row_contact @ x[:3]).squeeze(-1).tolist() == [1.0] * 4 + [2.0] + [3.0] * 6
    assert (system.dof_body @ x[:3]).squeeze(-1).tolist() == [2.0, 2.0, 3.0, 2.0, 2.0]


def test_a_model_without_constraints_has_empty_structure() -> None:
    system = structure([-1, 0])
    assert (system.ngiven, system.contacts, system.rows, system.axes) == (0, 0, 0, 1)
    assert system.contact_row == system.side_start == system.column_start == (0,)
    assert system.numbered_sides == []


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (dict(given_kind=(2,)), r"kinds \(2,\) of 2 given rows; they must increase"),
        (dict(given_kind=(2, 0)), r"kinds \(2, 0\) of 2 given rows"),
        (dict(given_dofs=((0,), (2, 1))), r"a given row of dofs \(2, 1\); they must increase, from 0 to 3"),
        (dict(given_dofs=((0,), (1, 1))), r"a given row of dofs \(1, 1\)"),
        (dict(given_dofs=((-1,), (1,))), r"a given row of dofs \(-1,\)"),
        (dict(given_dofs=((4,), (1,))), r"a given row of dofs \(4,\)"),
        (dict(M_colind=(0, 1, 0, 0, 1, 2, 3)), r"row 1 of the inertia is \(1, 0\), which is not the path of a tree"),
        (dict(M_rownnz=(1, 2, 2, 1), M_colind=(0, 0, 1, 1, 2, 3)), r"row 2 of the inertia is \(1, 2\)"),
        (dict(M_rownnz=(1, 2, 3, 0), M_colind=(0, 0, 1, 0, 1, 2)), r"row 3 of the inertia is \(\)"),
    ],
)  # fmt: skip
def test_system_refuses_what_is_no_model(changes: dict[str, Any], message: str) -> None:
    system = structure(**SMALL)
    with pytest.raises(ValueError, match=message):
        with_options(system, **changes)


def test_system_refuses_other_keywords() -> None:
    with pytest.raises(TypeError, match=r"System takes .*'contact_sides'.*, not "):
        System(nv=3)
    with pytest.raises(TypeError, match=r"not .*'njnt'"):
        with_options(structure(**SMALL), njnt=3)


# ------------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("M", lambda x: x[1:], r"solve: M has shape \(\d+, 3\), expected \(\d+, 3\) \(worlds last\)"),
        ("cdof", lambda x: x[:, :-1], r"solve: cdof has shape \(6, 5, 3\), expected \(6, 6, 3\)"),
        ("subtree_com", lambda x: x[:2], r"solve: subtree_com has shape \(2, "),
        ("contact_pos", lambda x: x[:, 1:], r"solve: contact_pos has shape \(3, 5, 3\), expected \(3, 6, 3\)"),
        ("contact_frame", lambda x: x[:3], r"solve: contact_frame has shape \(3, 6, 3\), expected \(9, 6, 3\)"),
        ("given_jac", lambda x: x[:-1], r"solve: given_jac has shape \(5, 3\), expected \(6, 3\)"),
        ("given_jac", lambda x: x[..., :2], r"solve: given_jac has shape \(6, 2\), expected \(6, 3\)"),
        ("given_jac", lambda x: x.float(), "solve: given_jac is torch.float32 on cpu, others are torch.float64"),
        ("given_D", lambda x: x[:-1], r"solve: given_D has shape \(3, 3\), expected \(4, 3\)"),
        ("given_ref", lambda x: x[..., :2], r"solve: given_ref has shape \(4, 2\), expected \(4, 3\)"),
        ("contact_D", lambda x: x[:-1], r"solve: contact_D has shape \(5, 3\), expected \(6, 3\)"),
        ("contact_ref", lambda x: x.expand(2, -1, -1), r"solve: contact_ref has shape \(2, 6, 3\), expected \(6, 6,"),
        ("contact_ref", lambda x: x.float(), "solve: contact_ref is torch.float32 on cpu, others are torch.float64"),
        ("qvel", lambda x: x[1:], r"solve: qvel has shape \(5, 3\), expected \(6, 3\)"),
        ("qfrc_smooth", lambda x: x[..., :-1], r"solve: qfrc_smooth has shape \(6, 2\), expected \(6, 3\)"),
        ("qacc_smooth", lambda x: x.int(), "solve: qacc_smooth is torch.int32 on cpu"),
        ("qacc_warmstart", lambda x: x[..., None], r"solve: qacc_warmstart has shape \(6, 3, 1\)"),
        ("M", lambda x: x.half(), "solve: dtype torch.float16 is not supported, use torch.float32 or torch.float64"),
        ("row_edge", lambda x: x[:, 1:], r"solve: row_edge has shape \(6, \d+, 1\), expected"),
        ("row_edge", lambda x: x.expand(-1, -1, 3), r"solve: row_edge has shape \(6, \d+, 3\), expected"),
        ("row_edge", lambda x: x.float(), "solve: row_edge is torch.float32 on cpu, others are torch.float64"),
        ("row_scale", lambda x: x[1:], r"solve: row_scale has shape \(\d+, 1\), expected"),
        ("cone_friction", lambda x: x[:, 1:], r"solve: cone_friction has shape \(0, 5, 1\), expected \(0, 6, 1\)"),
        ("frictionloss", lambda x: x.new_zeros(1, 1), r"solve: frictionloss has shape \(1, 1\), expected \(0, 1\)"),
        ("damping", lambda x: x[:-1], r"solve: damping has shape \(\d+, 1\), expected"),
        ("damping", lambda x: x[:, 0], r"solve: damping has shape \(\d+,\), expected"),
        ("damping", lambda x: x.float(), "solve: damping is torch.float32 on cpu, others are torch.float64"),
    ],
)  # fmt: skip
def test_refuses_what_does_not_fit(name: str, change: Callable, message: str) -> None:
    system, p = example()
    with pytest.raises(ValueError, match=message):
        solve(system, *p._replace(**{name: change(getattr(p, name))}))


def test_refuses_an_unknown_structure() -> None:
    prepare()
    _, p = example()
    with pytest.raises(RuntimeError, match="given an unknown structure"):
        torch.ops.mujoco_torch.solve.default(*p, 1)
