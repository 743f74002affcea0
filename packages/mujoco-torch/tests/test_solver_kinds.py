"""Equalities, friction losses, elliptic cones, conjugate gradients and the no-slip pass in the constraint solve.

The solution is checked against the conditions of an optimum, written down here on their own, and against MuJoCo C.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from mujoco_torch._src.solver import RowKind, System, full_m, newton, noslip, solve
from mujoco_torch._src.solver.arguments import Factors
from mujoco_torch._src.solver.noslip import noslip as noslip_reference
from mujoco_torch._src.solver.rows import make_rows

F64 = torch.float64

TIGHT = dict(tolerance=1e-14, ls_tolerance=0.01, iterations=200, ls_iterations=50)
NEWTON, CG = 2, 1

GIVEN = (
    (RowKind.EQUALITY, (0, 1)), (RowKind.EQUALITY, (2,)), (RowKind.EQUALITY, (0, 2, 3)), (RowKind.FRICTION, (1,)),
    (RowKind.FRICTION, (3,)), (RowKind.FRICTION, (0, 3)), (RowKind.LIMIT, (2,)), (RowKind.LIMIT, (0, 1, 3)),
)  # fmt: skip
"""Given rows (kind, dofs), for nv of at least 4."""

CONTACTS = ((3, 2), (1, 1), (4, 1), (6, 2), (3, 1), (3, 0))
"""Contacts (condim, number of sides)."""

KINDS = {
    "equality": dict(given=GIVEN[:3]),
    "friction": dict(given=GIVEN[3:6]),
    "given": dict(given=GIVEN),
    "pyramids": dict(given=GIVEN, contacts=CONTACTS),
    "elliptic": dict(contacts=CONTACTS, cone=1),
    "elliptic, one axis": dict(contacts=((1, 1), (1, 2)), cone=1),
    "all": dict(given=GIVEN, contacts=CONTACTS, cone=1),
}


def make_system(
    nv: int = 7, given: tuple = (), contacts: tuple = (), seed: int = 0, trees: int = 1, **options: Any
) -> System:
    """Trees of as many dofs, each a chain (the first with a branch), and random dofs that move the contacts."""
    rng = np.random.default_rng(seed)
    rows: list[tuple[int, ...]] = []
    for i in range(nv):
        rows.append((*(rows[i - 1 - (i == 4)] if i % (nv // trees) else ()), i))

    def side() -> tuple:
        dofs = rows[rng.integers(nv)]
        return int(rng.integers(nv + 1)), tuple((j, int(rng.choice([-1, 1]))) for j in dofs)

    return System(
        nv=nv, nbody=nv + 1, M_rownnz=tuple(len(row) for row in rows), M_colind=tuple(j for row in rows for j in row),
        dof_bodyid=tuple(range(1, nv + 1)), given_kind=tuple(kind for kind, _ in given),
        given_dofs=tuple(dofs for _, dofs in given), contact_dim=tuple(dim for dim, _ in contacts),
        contact_sides=tuple(tuple(side() for _ in range(sides)) for _, sides in contacts), **{**TIGHT, **options},
    )  # fmt: skip


def make_problem(
    system: System, worlds: int, seed: int = 0, idle: float = 0.2, impratio: float = 2.0
) -> dict[str, Tensor]:
    """Arguments of `solve` by name: random, well conditioned, and a share of the rows is not active."""
    rng = np.random.default_rng([seed, worlds])
    nv, ncon, ngiven = system.nv, system.contacts, system.ngiven

    def normal(*size: int) -> Tensor:
        return torch.as_tensor(rng.normal(size=size))

    def weight(n: int) -> Tensor:
        active = rng.random((n, worlds)) >= idle
        return (10 * normal(n, worlds).abs() + 0.1) * torch.as_tensor(active)

    lower = np.zeros((worlds, nv, nv))
    for i, row in enumerate(system.M_rows):
        for j in row:
            lower[:, i, j] = 1.0 if i == j else rng.normal(size=worlds) / len(row)
    full = lower.swapaxes(1, 2) @ (rng.uniform(1, 3, (worlds, nv, 1)) * lower)
    force = 5 * normal(nv, worlds)
    smooth = torch.as_tensor(np.linalg.solve(full, force.T.numpy()[..., None])[..., 0].T.copy())
    frames = np.linalg.qr(rng.normal(size=(worlds, ncon, 3, 3)))[0].reshape(worlds, ncon, 9)
    mu = torch.as_tensor(rng.uniform(0.3, 1.2, (5, ncon)))
    friction = torch.cat((mu[:1] / impratio**0.5, mu))[: system.axes]
    return dict(
        M=torch.as_tensor(np.array([full[:, i, j] for i, row in enumerate(system.M_rows) for j in row])),
        cdof=normal(6, nv, worlds) / 3,
        subtree_com=normal(3, system.nbody, worlds) / 3,
        contact_pos=normal(3, ncon, worlds) / 3,
        contact_frame=torch.as_tensor(frames.transpose(2, 1, 0).copy()).contiguous(),
        row_edge=row_edges(system, mu),
        given_jac=normal(system.nJ, worlds),
        given_D=weight(ngiven),
        given_ref=2 * normal(ngiven, worlds),
        contact_D=weight(ncon),
        contact_ref=2 * normal(1, ncon, worlds),
        row_scale=row_scales(system, friction),
        cone_friction=friction.unsqueeze(-1) if system.cone else torch.zeros(0, ncon, 1, dtype=F64),
        damping=torch.as_tensor(rng.uniform(0, 1, (system.nefc, 1))),
        frictionloss=torch.as_tensor(rng.uniform(0.5, 3, (system.nf, 1))),
        qvel=normal(nv, worlds),
        qfrc_smooth=force,
        qacc_smooth=smooth,
        qacc_warmstart=smooth + normal(nv, worlds),
    )


def row_owners(system: System) -> list[tuple[int, int]]:
    """Contact, and number in it, of each contact row."""
    return [
        (c, k)
        for c, (first, end) in enumerate(zip(system.contact_row, system.contact_row[1:], strict=False))
        for k in range(end - first)
    ]


def row_edges(system: System, mu: Tensor) -> Tensor:
    edge = torch.zeros(system.axes, system.rows, 1, dtype=F64)
    for row, (c, k) in enumerate(row_owners(system)):
        if system.cone or system.contact_dim[c] == 1:
            edge[k, row] = 1.0
        else:
            edge[0, row], edge[1 + k // 2, row] = 1.0, mu[k // 2, c] * (-1) ** k
    return edge


def row_scales(system: System, friction: Tensor) -> Tensor:
    """The weights' ratios that make the cost of elliptic cones smooth."""
    scale = torch.ones(system.rows, 1, dtype=F64)
    for row, (c, k) in enumerate(row_owners(system)):
        if system.cone and k:
            scale[row] = (friction[k, c] / friction[0, c]) ** 2
    return scale


def operator(system: System, p: dict[str, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    return solve(system, **p)


def reference(system: System, p: dict[str, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    return newton.solve(*p.values(), system.key)


both = pytest.mark.parametrize("run", [operator, reference], ids=lambda run: run.__name__)


def rows_at(system: System, p: dict[str, Tensor], qacc: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """J, D and residual of every row."""
    J, D, ref = make_rows(system, Factors(*(p[name] for name in Factors._fields)))
    return J, D, (J * qacc).sum(1) + p["damping"] * (J * p["qvel"]).sum(1) - ref


def violation(system: System, p: dict[str, Tensor], f: Tensor, r: Tensor, D: Tensor) -> float:
    """How far forces are from those that minimise 1/2 f' D^-1 f + f' r in their bounds or cones (the dual problem).

    With w = D^-1 f + r: an interval wants w to be zero inside and to point outwards at its ends; a cone K wants f in K,
    w in its dual and f' w = 0.
    """
    worst = 0.0

    def note(x: Tensor) -> None:
        nonlocal worst
        if x.numel():
            worst = max(worst, float(x.abs().max()))

    used = D > 0
    note(f[~used])
    w = torch.where(used, f / torch.where(used, D, 1.0) + r, 0.0)
    ne, nf, loss = system.ne, system.nf, p["frictionloss"]
    note(w[:ne])
    held, end = slice(ne, ne + nf), f[ne : ne + nf] / loss
    note((end.abs() - 1).clamp(min=0))
    note(torch.where(end.abs() < 1 - 1e-12, w[held], (w[held] * end.sign()).clamp(min=0)))
    cones = [
        list(range(system.ngiven + first, system.ngiven + stop))
        for c, (first, stop) in enumerate(zip(system.contact_row, system.contact_row[1:], strict=False))
        if system.cone and system.contact_dim[c] > 1
    ]
    inside = {row for rows in cones for row in rows}
    for row in range(ne + nf, system.nefc):
        if row not in inside:
            note(f[row].clamp(max=0))
            note(w[row].clamp(max=0))
            note(f[row] * w[row])
    owner = [c for c, dim in enumerate(system.contact_dim) if dim > 1]
    for c, rows in zip(owner, cones, strict=False):
        mu = p["cone_friction"][1 : len(rows), c]
        note(((f[rows[1:]] / mu).norm(dim=0) - f[rows[0]]).clamp(min=0))
        note(((w[rows[1:]] * mu).norm(dim=0) - w[rows[0]]).clamp(min=0))
        note((f[rows] * w[rows]).sum(0))
    return worst


def row_forces(system: System, p: dict[str, Tensor], qacc: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    from mujoco_torch._src.solver import row_force

    J, D, r = rows_at(system, p, qacc)
    return J, D, r, row_force(system, D, r, p["frictionloss"], p["cone_friction"])


@both
@pytest.mark.parametrize("solver", [NEWTON, CG], ids=["newton", "cg"])
@pytest.mark.parametrize("kind", KINDS)
def test_reaches_the_optimum(kind: str, solver: int, run: Callable) -> None:
    """Newton's law holds with the forces found, and these satisfy the conditions of the dual optimum, to 1e-9."""
    system = make_system(**KINDS[kind], solver=solver)
    p = make_problem(system, 9)
    qacc, qfrc, niter = run(system, p)
    J, D, r, f = row_forces(system, p, qacc)
    expected = (J * f.unsqueeze(1)).sum(0)
    torch.testing.assert_close(qfrc, expected, rtol=1e-9, atol=1e-9)
    residual = (full_m(p["M"], system) * qacc).sum(1) - p["qfrc_smooth"] - qfrc
    # Without cones Newton's last step is exact; else the last improvement is 1e-14, and the gradient its root.
    assert residual.abs().max() < (1e-8 if solver == NEWTON and not system.cones else 1e-5)
    assert violation(system, p, f, r, D) < 1e-9
    assert niter.max() >= 1
    assert niter.max() < (30 if solver == NEWTON else 150)


LEAVES = ("M", "cdof", "subtree_com", "contact_pos", "contact_frame", "given_jac", "given_D", "given_ref",
          "contact_D", "contact_ref", "cone_friction", "damping", "frictionloss", "qvel", "qfrc_smooth")  # fmt: skip


@pytest.mark.parametrize("kind", ["given", "elliptic", "all"])
def test_gradients(kind: str) -> None:
    """Of every kind of row, equal to finite differences; cones are in all of their zones."""
    system = make_system(5, **{**KINDS[kind], "contacts": KINDS[kind].get("contacts", ())[:4]})
    p = make_problem(system, 3, idle=0.0)
    names = [name for name in LEAVES if p[name].numel()]
    leaves = [p[name].contiguous().clone().requires_grad_() for name in names]

    def f(*leaves: Tensor) -> tuple[Tensor, Tensor]:
        return solve(system, **{**p, **dict(zip(names, leaves, strict=True))})[:2]

    assert torch.autograd.gradcheck(f, leaves, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("solver", [NEWTON, CG], ids=["newton", "cg"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [F64, torch.float32], ids=str)
def test_kernel_equals_the_reference(kind: str, solver: int, dtype: torch.dtype) -> None:
    """In float64 after the same number of iterations; also cut short, and in ragged batches."""
    loose = {F64: dict(tolerance=1e-9), torch.float32: dict(tolerance=1e-6)}[dtype]
    for options, worlds in (({}, 9), ({"iterations": 3}, 33), ({"ls_iterations": 4}, 1)):
        system = make_system(9, **KINDS[kind], **{**loose, **options}, solver=solver)
        p = {name: x.to(dtype) for name, x in make_problem(system, worlds, seed=worlds).items()}
        (qacc, qfrc, niter), expected = operator(system, p), reference(system, p)
        if dtype == F64:
            assert niter.tolist() == expected[2].tolist()
        # Conjugate gradients in float32 stop some 2e-3 away from the optimum, not always after as many iterations.
        limit = {F64: 1e-8, torch.float32: 2e-3 if solver == NEWTON else 4e-3}[dtype]
        if options and dtype == torch.float32:
            continue  # rounding may turn a search that is cut short
        for x, y in zip((qacc, qfrc), expected[:2], strict=True):
            assert ((x - y).abs() / y.abs().amax(0).clamp_min(1)).max() < limit


BETWEEN = (
    (RowKind.EQUALITY, (3, 40)), (RowKind.FRICTION, (20, 60)), (RowKind.LIMIT, (71,)), (RowKind.LIMIT, (9, 50, 71)),
)  # fmt: skip
"""Given rows of dofs of several trees."""


@pytest.mark.parametrize("idle", [0.0, 0.8])
@pytest.mark.parametrize("kind", ["alone", "pyramids", "all"])
@pytest.mark.parametrize("dtype", [F64, torch.float32], ids=str)
def test_several_trees(kind: str, dtype: torch.dtype, idle: float) -> None:
    """72 dofs of 8 trees, tiles across two trees; worlds differ in the rows that connect trees, or none do."""
    contacts = tuple((dim, min(sides, 1)) for dim, sides in CONTACTS) if kind == "alone" else CONTACTS
    given = GIVEN if kind == "alone" else tuple(sorted(GIVEN + BETWEEN))
    tolerance = 1e-10 if dtype == F64 else 1e-6
    system = make_system(
        72, given=given, contacts=5 * contacts, trees=8, cone=int(kind == "all"), tolerance=tolerance
    )
    p = {name: x.to(dtype) for name, x in make_problem(system, 19, seed=1, idle=idle).items()}
    (qacc, qfrc, niter), expected = operator(system, p), reference(system, p)
    if dtype == F64:
        assert niter.tolist() == expected[2].tolist()
    for x, y in zip((qacc, qfrc), expected[:2], strict=True):
        assert ((x - y).abs() / y.abs().amax(0).clamp_min(1)).max() < {F64: 1e-9, torch.float32: 1e-3}[dtype]


def noslip_arguments(p: dict[str, Tensor], qacc: Tensor) -> dict[str, Tensor]:
    """Arguments of `noslip` by name, from those of `solve`."""
    rows = {name: x for name, x in p.items() if name not in ("qfrc_smooth", "qacc_smooth", "qacc_warmstart")}
    return {**rows, "qacc_smooth": p["qacc_smooth"], "qacc": qacc}


@pytest.mark.parametrize("solver", [NEWTON, CG], ids=["newton", "cg"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [F64, torch.float32], ids=str)
def test_noslip_equals_the_reference(kind: str, solver: int, dtype: torch.dtype) -> None:
    """In float64 after as many sweeps; worlds differ in what they use, and one uses nothing. Also in ragged batches."""
    for worlds, trees, sweeps in ((1, 1, 1), (9, 1, 30), (150, 2, 4)):
        contacts = 3 * KINDS[kind].get("contacts", ())
        tolerance = 1e-9 if dtype == F64 else 1e-5
        options = dict(noslip_iterations=sweeps, noslip_tolerance=tolerance, solver=solver, trees=trees)
        system = make_system(10, **{**KINDS[kind], "contacts": contacts}, **options)
        p = make_problem(system, worlds, seed=worlds, idle=0.6)
        p["given_D"][:, -1] = p["contact_D"][:, -1] = 0
        p = {name: x.to(dtype) for name, x in p.items()}
        arguments = noslip_arguments(p, reference(system, p)[0]).values()
        found, expected = noslip(system, *arguments), noslip_reference(*arguments, system.key)
        if dtype == F64:
            assert found[3].tolist() == expected[3].tolist()
        assert found[3][-1] == 0 and (worlds == 1 or found[3].max() > 1)
        limit = {F64: 1e-10, torch.float32: 1e-3}[dtype]
        for x, y in zip(found[:3], expected[:3], strict=True):
            assert ((x - y).abs() / y.abs().amax(0).clamp_min(1)).max() < limit


@pytest.mark.parametrize("kind", ["given", "pyramids", "all"])
def test_gradients_of_noslip(kind: str) -> None:
    """Of all that it gives by all that it takes, equal to finite differences."""
    contacts = KINDS[kind].get("contacts", ())[2:5]
    system = make_system(5, **{**KINDS[kind], "contacts": contacts}, noslip_iterations=2)
    p = make_problem(system, 3, idle=0.0)
    leaves = [
        x.clone().requires_grad_(x.numel() > 0 and name not in ("row_edge", "row_scale"))
        for name, x in noslip_arguments(p, solve(system, **p)[0]).items()
    ]
    assert torch.autograd.gradcheck(lambda *x: noslip(system, *x)[:3], leaves, rtol=1e-3, atol=1e-5)


def test_gradients_of_noslip_in_many_worlds() -> None:
    """Which are differentiated some at a time: the same as those of half of the worlds, and the other half."""
    system = make_system(5, **KINDS["all"], noslip_iterations=2)
    p = make_problem(system, 150)
    arguments = noslip_arguments(p, solve(system, **p)[0])

    def gradients(part: slice) -> list[Tensor]:
        some = [x[..., part] if x.shape[-1] > 1 else x for x in arguments.values()]
        leaves = [x.clone().requires_grad_() for x in some]
        qacc, qfrc, force, _ = noslip(system, *leaves)
        return list(
            torch.autograd.grad(qacc.square().sum() + qfrc.square().sum() + force.square().sum(), leaves)
        )

    for x, *halves in zip(
        *(gradients(part) for part in (slice(150), slice(75), slice(75, 150))), strict=True
    ):
        expected = torch.cat(halves, -1) if x.shape[-1] > 1 else halves[0] + halves[1]
        torch.testing.assert_close(x, expected, rtol=1e-9, atol=1e-9)


def test_trees_do_not_see_each_other() -> None:
    """Where nothing connects two trees, the acceleration of one is the same with and without rows of the other."""
    system = make_system(18, given=((RowKind.LIMIT, (2,)), (RowKind.LIMIT, (16,))), trees=2)
    p = make_problem(system, 9, idle=0.0)
    without = {**p, "given_D": p["given_D"] * torch.tensor([[1.0], [0.0]], dtype=F64)}
    both, alone = solve(system, **p)[0], solve(system, **without)[0]
    torch.testing.assert_close(both[:9], alone[:9], rtol=1e-9, atol=1e-9)
    assert not torch.allclose(both[9:], alone[9:])


@pytest.mark.parametrize("kind", ["pyramids", "all"])
def test_references_along_every_axis(kind: str) -> None:
    """As moving surfaces have them: kernel, reference and gradient."""
    system = make_system(5, **{**KINDS[kind], "contacts": CONTACTS[:4]})
    p = make_problem(system, 3, idle=0.0)
    g = torch.Generator().manual_seed(0)
    p["contact_ref"] = torch.randn(system.axes, system.contacts, 3, generator=g, dtype=F64)
    for x, y in zip(operator(system, p), reference(system, p), strict=True):
        torch.testing.assert_close(x, y, rtol=1e-9, atol=1e-9)
    assert violation(system, p, *(row_forces(system, p, operator(system, p)[0])[i] for i in (3, 2, 1))) < 1e-9
    leaf = p["contact_ref"].clone().requires_grad_()
    assert torch.autograd.gradcheck(
        lambda x: solve(system, **{**p, "contact_ref": x})[:2], leaf, rtol=1e-3, atol=1e-5
    )


def test_gradients_are_finite_where_a_cone_has_its_tip() -> None:
    """Rows that nothing moves, residuals of zero, slipping of no speed, contacts that are not active."""
    system = make_system(5, contacts=CONTACTS, cone=1)
    p = make_problem(system, 4, idle=0.0)
    p["contact_frame"][:, 0] = 0
    p["contact_frame"][3:, 4] = 0
    p["contact_ref"][..., 0] = 0
    p["contact_D"][3, 1] = p["contact_D"][0, 2] = 0
    p["qvel"] = 0 * p["qvel"]
    leaves = [p[name].contiguous().clone().requires_grad_() for name in LEAVES if p[name].numel()]
    names = [name for name in LEAVES if p[name].numel()]
    qacc, qfrc, _ = solve(system, **{**p, **dict(zip(names, leaves, strict=True))})
    for grad in torch.autograd.grad(qacc.square().sum() + qfrc.sum(), leaves):
        assert grad.isfinite().all()


def test_what_a_system_of_cones_derives() -> None:
    system = make_system(4, given=GIVEN[:1], contacts=((3, 1), (1, 1), (4, 2)), cone=1)
    assert (system.rows, system.contact_row, system.cones) == (8, (0, 3, 4, 8), 2)
    assert system.row_axis == (0, 1, 2, 0, 0, 1, 2, 3)
    rows = torch.arange(9.0).unsqueeze(-1)
    along = (system.cone_rows @ rows).reshape(4, 2).tolist()
    assert along == [[1.0, 5.0], [2.0, 6.0], [3.0, 7.0], [0.0, 8.0]]
    assert (system.cone_contacts @ rows[:3]).flatten().tolist() == [0.0, 2.0]
    assert make_system(4, contacts=((3, 1),)).cones == 0
