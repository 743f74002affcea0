"""The Triton kernels against the operators' references: on a GPU, else in Triton's interpreter on CPU tensors.

Triton reads TRITON_INTERPRET as it is imported, so `test_in_the_interpreter` runs the others in a process of its own.
"""

import os
import subprocess
import sys
from importlib.util import find_spec
from itertools import pairwise

import pytest
import torch

from mujoco_torch._src import ops
from mujoco_torch._src.pattern import Pattern
from mujoco_torch._src.solver import mass, newton
from mujoco_torch._src.solver.system import System

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
CUDA = torch.cuda.is_available() and not INTERPRETED
DEVICE = "cuda" if CUDA else "cpu"
F64 = torch.float64

pytestmark = pytest.mark.skipif(find_spec("triton") is None, reason="needs Triton: pip install triton")
kernels = pytest.mark.skipif(not (CUDA or INTERPRETED), reason="run by test_in_the_interpreter")

# Dofs, contacts, limits of one dof, limits of ball joints.
SIZES = {
    "1 dof": (1, 0, 1, 0),
    "6 dofs": (6, 5, 2, 1),
    "27 dofs": (27, 6, 4, 2),
    "64 dofs": (64, 3, 2, 1),
    "contacts only": (5, 4, 0, 0),
    "limits only": (5, 0, 3, 1),
    "no constraints": (4, 0, 0, 0),
    "no dofs": (0, 2, 0, 0),
}

# Beside them: equalities, friction losses, options. A system without any of these is that of limits and pyramids.
KINDS = {
    "equalities": dict(equalities=3),
    "frictions": dict(frictions=4),
    "bounds": dict(equalities=2, frictions=3),
    "cones": dict(cone=1),
    "all": dict(equalities=2, frictions=3, cone=1),
}
NEWTON, CG = 2, 1
EIGHT = {NEWTON: {}, CG: {"iterations": 8}}
solvers = pytest.mark.parametrize("solver", [NEWTON, CG], ids=["newton", "cg"])


PARTS = ("kinds", "not kinds and test_solve", "not test_solve")
"""Expressions that choose tests: each of them once."""


@pytest.mark.slow
@pytest.mark.skipif(CUDA or INTERPRETED, reason="the tests below run by themselves")
@pytest.mark.parametrize("part", PARTS)
def test_in_the_interpreter(part):
    options = ["-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-W", "error"]
    run = subprocess.run(
        [sys.executable, "-m", "pytest", __file__, *options, "-k", part],
        env=os.environ | {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert "passed" in run.stdout


# ---- problems


def random_system(nv, contacts, scalars, balls, seed=0, equalities=0, frictions=0, **options):
    """A tree of dofs, each with a body of its own, contacts of all dimensions with one or two sides, given rows."""
    g = torch.Generator().manual_seed(seed)

    def integer(high):
        return int(torch.randint(high, (), generator=g))

    rows = []
    for i in range(nv):
        parent = integer(i + 1) - 1 if i % 3 == 0 else i - 1
        rows.append((*rows[parent], i) if parent >= 0 else (i,))

    def side():
        columns = [(j, 1 - 2 * integer(2)) for j in range(nv) if integer(3)]
        return integer(nv + 1), tuple(columns)

    def dofs(most):
        return tuple(sorted({integer(nv) for _ in range(1 + integer(most))}))

    given = [(0, dofs(4)) for _ in range(equalities)] + [(1, dofs(1 + 3 * (i % 2))) for i in range(frictions)]
    given += [(2, (integer(nv),)) for _ in range(scalars)]
    given += [(2, (first, first + 1, first + 2)) for first in (integer(nv - 2) for _ in range(balls))]
    return System(
        **{
            "nv": nv,
            "nbody": nv + 1,
            "M_rownnz": tuple(len(row) for row in rows),
            "M_colind": tuple(j for row in rows for j in row),
            "dof_bodyid": tuple(range(1, nv + 1)),
            "given_kind": tuple(kind for kind, _ in given),
            "given_dofs": tuple(dofs for _, dofs in given),
            "contact_dim": tuple((1, 3, 4, 6)[c % 4] for c in range(contacts)),
            "contact_sides": tuple(tuple(side() for _ in range(1 + c % 2)) for c in range(contacts)),
            "tolerance": 1e-8,
            "ls_tolerance": 0.01,
            "iterations": 100,
            "ls_iterations": 50,
        }
        | options
    )


def random_mass(system, worlds, g):
    """A sparse M = L' D L."""
    nv = system.nv
    lower = torch.eye(nv, dtype=F64).unsqueeze(-1).repeat(1, 1, worlds)
    for i, row in enumerate(system.M_rows):
        for j in row[:-1]:
            lower[i, j] = 0.4 * torch.randn(worlds, generator=g, dtype=F64)
    diagonal = 0.5 + torch.rand(nv, 1, worlds, generator=g, dtype=F64)
    dense = torch.einsum("kib,kjb->ijb", lower, diagonal * lower)
    elements = [dense[i, j] for i, row in enumerate(system.M_rows) for j in row]
    return torch.stack(elements) if elements else torch.zeros(0, worlds, dtype=F64)


def random_problem(system, worlds, seed=0, references=1):
    """The arguments of `solve` but the system: every fourth world without constraints, the others with some."""
    g = torch.Generator().manual_seed(seed)
    nl, nc, nv = system.ngiven, system.contacts, system.nv

    def normal(*size):
        return torch.randn(*size, generator=g, dtype=F64)

    M = random_mass(system, worlds, g)
    force = 5 * normal(nv, worlds)
    smooth = mass.solve_m(*mass.factor_m(M, system.key), force, system.key) if nv else force
    edge, scale, friction = random_axes(system, g)
    D = (10 * normal(nl + nc, worlds).abs() + 0.1) * (normal(nl + nc, worlds) > -0.3)
    D[:, ::4] = 0
    given, contact = D.split((nl, nc))
    return (
        M, normal(6, nv, worlds), normal(3, system.nbody, worlds), normal(3, nc, worlds), normal(9, nc, worlds), edge,
        normal(system.nJ, worlds), given, normal(nl, worlds), contact, normal(references, nc, worlds), scale, friction,
        normal(system.nefc, 1).abs(), 1 + normal(system.nf, 1).abs(), normal(nv, worlds), force, smooth,
        smooth + normal(nv, worlds),
    )  # fmt: skip


def random_axes(system, g):
    """Edges and scales of the contact rows, and the friction of cones."""
    edge = torch.zeros(system.axes, system.rows, 1, dtype=F64)
    scale = torch.ones(system.rows, 1, dtype=F64)
    friction = torch.zeros(0, system.contacts, 1, dtype=F64)
    if system.cone:
        friction = 0.3 + torch.rand(system.axes, system.contacts, 1, generator=g, dtype=F64)
        for c, (first, end) in enumerate(pairwise(system.contact_row)):
            edge[range(end - first), range(first, end)] = 1
            scale[first + 1 : end] = (friction[1 : end - first, c] / friction[0, c]) ** 2
        return edge, scale, friction
    edge[0] = 1
    for row, axis in enumerate(system.row_axis):
        if axis:
            edge[axis, row] = 0.8 * (-1) ** row
    return edge, scale, friction


def on_device(problem, dtype=F64):
    return tuple(x.to(DEVICE, dtype) for x in problem)


def solve(system, problem, dtype=F64):
    """The kernel's result, on the CPU."""
    from mujoco_torch._src.solver import triton_kernels

    return tuple(x.cpu() for x in triton_kernels.solve(*on_device(problem, dtype), system.key))


def assert_same(system, problem, rtol=1e-9):
    """Equal to the reference, of the largest number of a world, after the same number of iterations."""
    qacc, qfrc, niter = solve(system, problem)
    expected = newton.solve(*problem, system.key)
    for got, want in zip((qacc, qfrc), expected[:2], strict=True):
        scale = want.abs().amax(0, keepdim=True).clamp_min(1) if want.numel() else 1
        assert not want.isnan().any()
        torch.testing.assert_close(got / scale, want / scale, rtol=0, atol=rtol)
    assert niter.equal(expected[2])
    return niter


# ---- solve


@kernels
@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
def test_solve_equals_the_reference(sizes):
    system = random_system(*sizes)
    worlds = 5 if sizes[0] < 30 else 2
    problem = random_problem(system, worlds)
    niter = assert_same(system, problem)
    if system.ngiven + system.contacts and system.nv:
        assert niter.max() >= 1
        assert not niter[::4].any()


@kernels
@pytest.mark.parametrize("kind", ["all", None])
def test_solve_by_parts(kind):
    """Nothing but the limits and the contacts on single dofs: parts of one tree each."""
    sides = tuple(((1, ((3 * c, 1),)),) for c in range(4))
    options = dict(contact_dim=(1, 3, 4, 6), contact_sides=sides, islands=True, cone=int(kind == "all"))
    system = random_system(12, 4, 3, 0, frictions=int(kind == "all"), **options)
    assert len(system.parts) > 1
    assert assert_same(system, random_problem(system, 5)).max() > 1


@kernels
@pytest.mark.parametrize("seed", range(3))
def test_solve_of_random_sizes(seed):
    g = torch.Generator().manual_seed(seed)
    nv, contacts, scalars, balls = (int(torch.randint(n, (), generator=g)) for n in (12, 6, 4, 3))
    system = random_system(nv + 3, contacts, scalars, balls, seed)
    assert_same(system, random_problem(system, 6, seed))


@kernels
@solvers
@pytest.mark.parametrize("kind", KINDS)
def test_solve_of_all_kinds_of_rows(kind, solver):
    """To the end by Newton's method; eight steps of conjugate gradients, before rounding tells them apart."""
    system = random_system(6, 5, 1, 1, solver=solver, **KINDS[kind], **EIGHT[solver])
    niter = assert_same(system, random_problem(system, 5))
    assert niter.max() > 2
    assert not niter[::4].any()


@kernels
@pytest.mark.parametrize(
    "solver, kind, nv", [(NEWTON, "all", 1), (CG, "all", 2), (CG, None, 5), (NEWTON, "all", 64)]
)
def test_solve_of_all_kinds_of_rows_and_sizes(solver, kind, nv):
    system = random_system(nv, 3, 2, 0, solver=solver, **KINDS.get(kind, {}), **EIGHT[solver])
    assert assert_same(system, random_problem(system, 3, seed=1)).max() > 0


@kernels
@pytest.mark.parametrize("seed", range(4))
def test_solve_of_random_kinds(seed):
    g = torch.Generator().manual_seed(100 + seed)
    sizes = (8, 6, 3, 2, 4, 4)
    nv, contacts, scalars, balls, equalities, frictions = (
        int(torch.randint(n, (), generator=g)) for n in sizes
    )
    solver = (NEWTON, CG)[seed % 2]
    system = random_system(
        nv + 3, contacts, scalars, balls, seed, equalities, frictions, cone=1, solver=solver, **EIGHT[solver]
    )
    assert_same(system, random_problem(system, 4, seed))


@kernels
@pytest.mark.parametrize("cone", [0, 1], ids=["pyramids", "cones"])
def test_solve_of_references_along_every_axis(cone):
    """As moving surfaces have them."""
    system = random_system(4, 4, 1, 0, cone=cone)
    assert assert_same(system, random_problem(system, 2, references=system.axes)).max() > 0


@kernels
@pytest.mark.parametrize("cone", [0, 1], ids=["pyramids", "cones"])
def test_conjugate_gradients_converge(cone):
    """To the same minimum as the reference, and as Newton's method, of a problem that is conditioned well."""
    sizes = dict(equalities=1, frictions=2, cone=cone, tolerance=1e-10)
    system, other = (random_system(4, 2, 1, 0, solver=solver, **sizes) for solver in (CG, NEWTON))
    problem = list(random_problem(system, 3))
    for weight in (7, 9):
        problem[weight] = problem[weight] / 60
    niter = assert_same(system, problem)
    assert 3 < niter.max() < 50
    exact = newton.solve(*problem, other.key)[0]
    torch.testing.assert_close(solve(system, problem)[0], exact, rtol=1e-3, atol=1e-3)


@kernels
def test_solve_at_the_tip_of_cones():
    """Rows that nothing moves, residuals of zero, slipping of no speed, cones that one world alone has."""
    system = random_system(4, 4, 0, 0, cone=1)
    problem = [x.clone() for x in random_problem(system, 4)]
    problem[4][:, 1] = 0  # the contact's frame
    problem[4][3:, 2] = 0
    problem[9][3, 2:] = 0  # its weight
    problem[10][..., 1:3] = 0  # its reference
    problem[15][:] = 0  # qvel
    problem[18][:] = problem[17]
    assert_same(system, problem)


@kernels
@pytest.mark.parametrize("worlds", [1, 4])
def test_groups_of_few_worlds(worlds, monkeypatch):
    """As a GPU has them: the fewer worlds, the more dofs."""
    from mujoco_torch._src.solver.triton_kernels import newton as kernel

    monkeypatch.setattr(kernel, "_group", lambda M, n: worlds)
    system = random_system(4, 3, 1, 0, **KINDS["all"])
    assert assert_same(system, random_problem(system, 3)).max() > 0


@kernels
@pytest.mark.parametrize(
    "options",
    [
        {"iterations": 0},
        {"iterations": 1},
        {"iterations": 2, "ls_iterations": 3},
        {"ls_iterations": 4},
        {"tolerance": 1e-3},
    ],
    ids=str,
)
def test_solve_equals_the_reference_when_cut_short(options):
    system = random_system(6, 4, 2, 1, **options)
    assert_same(system, random_problem(system, 6))


@kernels
def test_solve_brackets_the_minimum(monkeypatch):
    """Rows of very different weights, from afar: the line search has to shrink its bracket."""
    system = random_system(6, 4, 2, 1)
    problem = list(random_problem(system, 8))
    factor = 10.0 ** torch.linspace(-2, 3, system.ngiven + system.contacts, dtype=F64).unsqueeze(-1)
    problem[7], problem[9] = problem[7] * factor[: system.ngiven], problem[9] * factor[system.ngiven :]
    problem[-1] = 1e3 * problem[-1]
    evaluations = []

    def bracket(*args):
        evaluations.append(args[6].sum())
        return original(*args)

    original = newton._bracket
    monkeypatch.setattr(newton, "_bracket", bracket)
    assert assert_same(system, problem).max() > 3
    assert sum(evaluations) > 4


@kernels
def test_solve_from_the_solution_takes_no_iteration():
    system = random_system(6, 5, 2, 1, tolerance=1e-6)
    problem = random_problem(system, 5)
    exact = random_system(6, 5, 2, 1, tolerance=1e-14)
    solution = newton.solve(*problem, exact.key)[0]
    assert assert_same(system, (*problem[:-1], solution)).max() == 0


@kernels
@pytest.mark.parametrize("solver, kind", [(NEWTON, None), (NEWTON, "all"), (CG, "all")])
def test_solve_in_float32(solver, kind):
    """As far from float64 as the reference, five times at most: the order of sums differs."""
    kinds = KINDS.get(kind, {}) | EIGHT[solver]
    system = random_system(9, 4, 2, 1, tolerance=1e-6, solver=solver, **kinds)
    problem = random_problem(system, 5)
    qacc, qfrc, niter = solve(system, problem, torch.float32)
    reference = newton.solve(*(x.float() for x in problem), system.key)
    exact = newton.solve(*problem, system.key)
    for got, near, want in zip((qacc, qfrc), reference[:2], exact[:2], strict=True):
        assert got.dtype == torch.float32
        assert (got - want).abs().max() < 5 * (near - want).abs().max() + 1e-5 * want.abs().max()
    assert (niter - reference[2]).abs().max() <= 2


@kernels
def test_solve_of_shared_axes_and_any_strides():
    system = random_system(4, 2, 1, 1)
    problem = list(random_problem(system, 5))
    shared = problem[6][..., :1]
    expected = newton.solve(*problem[:6], shared.expand(-1, 5), *problem[7:], system.key)
    strided = [x.movedim(-1, 0).contiguous().movedim(0, -1) for x in problem]
    for axis in (shared, shared.expand(-1, 5), shared.expand(-1, 5).contiguous()):
        got = solve(system, [*strided[:6], axis, *strided[7:]])
        torch.testing.assert_close(got[0], expected[0], rtol=1e-9, atol=1e-9)
        assert got[2].equal(expected[2])


@kernels
def test_solve_of_one_world_and_of_none():
    system = random_system(6, 5, 2, 1)
    problem = random_problem(system, 3)
    one = tuple(x[..., 1:2] if x.shape[-1] == 3 else x for x in problem)
    assert assert_same(system, one).max() >= 1
    none = tuple(x[..., :0] if x.shape[-1] == 3 else x for x in problem)
    assert solve(system, none)[0].shape == (6, 0)


@kernels
def test_solve_keeps_a_broken_world_to_itself():
    system = random_system(4, 2, 1, 1)
    problem = random_problem(system, 6)
    expected = solve(system, problem)
    broken = tuple(x.clone() for x in problem)
    broken[16][2, 3] = float("nan")
    qacc, _, niter = solve(system, broken)
    keep = torch.arange(6) != 3
    assert qacc[:, 3].isnan().any()
    assert niter[3] <= 2
    assert torch.equal(qacc[:, keep], expected[0][:, keep])


@kernels
def test_solve_of_several_groups_of_worlds():
    system = random_system(3, 2, 1, 0)
    assert assert_same(system, random_problem(system, 21)).max() >= 1


@kernels
def test_operators_call_the_kernels_on_cuda():
    system = random_system(3, 2, 1, 0)
    problem = on_device(random_problem(system, 4))
    call = ops._on_cuda("solve", newton.solve, "mujoco_torch._src.solver.triton_kernels")
    assert call is not newton.solve
    assert all(map(torch.equal, call(*problem, system.key), call(*problem, system.key)))


@pytest.mark.gpu
@pytest.mark.skipif(not CUDA, reason="needs a CUDA GPU: torch.cuda.is_available() is False")
def test_solve_in_a_cuda_graph():
    from mujoco_torch._src.solver import triton_kernels

    system = random_system(27, 9, 6, 2)
    problem = on_device(random_problem(system, 300))
    expected = triton_kernels.solve(*problem, system.key)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = triton_kernels.solve(*problem, system.key)
    for _ in range(2):
        graph.replay()
        assert all(map(torch.equal, captured, expected))


# ---- the inertia


@kernels
@pytest.mark.parametrize("nv", [1, 6, 27, 33])
def test_inertia_equals_the_reference(nv):
    from mujoco_torch._src.solver import triton_kernels

    system = random_system(nv, 0, 0, 0)
    g = torch.Generator().manual_seed(nv)
    worlds = 7

    def normal(*size):
        return torch.randn(*size, generator=g, dtype=F64)

    inertia = (normal(10, system.nbody, worlds), normal(6, nv, worlds), normal(nv, 1))
    M = triton_kernels.mass_matrix(*on_device(inertia), system.key).cpu()
    torch.testing.assert_close(M, mass.mass_matrix(*inertia, system.key), rtol=1e-12, atol=1e-12)

    M, b = random_mass(system, worlds, g), normal(nv, worlds)
    factor = mass.factor_m(M, system.key)
    for got, want in zip(triton_kernels.factor_m(*on_device([M]), system.key), factor, strict=True):
        torch.testing.assert_close(got.cpu(), want, rtol=1e-11, atol=1e-11)
    x = triton_kernels.solve_m(*on_device([*factor, b]), system.key).cpu()
    torch.testing.assert_close(x, mass.solve_m(*factor, b, system.key), rtol=1e-11, atol=1e-11)


# ---- sparse constant matrices


def random_matrix(rows, columns, seed=0):
    """About half of the numbers are zero, a row is, and the first column holds nothing but 1."""
    g = torch.Generator().manual_seed(seed)
    matrix = torch.randn(rows, columns, generator=g, dtype=F64)
    matrix *= torch.rand(rows, columns, generator=g) < 0.6
    matrix[:, :1], matrix[rows // 2 : rows // 2 + 1] = 1, 0
    return matrix


def combine(pattern, x):
    from mujoco_torch._src.solver import triton_kernels

    return triton_kernels.combine(x.to(DEVICE), pattern.key).cpu()


@kernels
@pytest.mark.parametrize("dtype", [F64, torch.float32], ids=str)
@pytest.mark.parametrize("size", [(5, 4), (1, 1), (17, 9), (0, 3), (3, 0)], ids=str)
@pytest.mark.parametrize("lead, worlds", [((), 1), ((2,), 515), ((1, 2), 9), ((0,), 2), ((2,), 0)])
def test_combine_equals_the_dense_product(lead, worlds, size, dtype):
    matrix = random_matrix(*size)
    x = torch.randn(*lead, size[1], worlds, generator=torch.Generator().manual_seed(1), dtype=F64).to(dtype)
    out = combine(Pattern.of_matrix(matrix.numpy()), x)
    assert out.dtype == dtype
    assert out.is_contiguous()
    limit = 1e-13 if dtype == F64 else 1e-5
    torch.testing.assert_close(out, matrix.to(dtype) @ x, rtol=limit, atol=limit)


@kernels
def test_combine_copies_what_is_selected():
    """Numbers that are not finite too, and touches no others."""
    x = torch.randn(3, 9, generator=torch.Generator().manual_seed(0), dtype=F64)
    x[1, 4], x[2, 0] = torch.inf, torch.nan
    select = Pattern([(0, 0, 1), (2, 0, 1), (3, 1, 1)], (4, 3))
    assert torch.equal(combine(select, x), torch.stack([x[0], torch.zeros_like(x[0]), x[0], x[1]]))


@kernels
def test_combine_of_any_strides():
    pattern = Pattern.of_matrix(random_matrix(5, 4).numpy())
    x = torch.randn(3, 4, 9, generator=torch.Generator().manual_seed(0), dtype=F64)
    expected = combine(pattern, x)
    for strided in (x.movedim(-1, 0).contiguous().movedim(0, -1), x.repeat_interleave(2, -1)[..., ::2]):
        assert torch.equal(combine(pattern, strided), expected)
    assert torch.equal(combine(pattern, x[:1].expand(3, 4, 9)), expected[:1].expand(3, 5, 9))


@kernels
def test_combine_refuses_a_shape_that_does_not_fit():
    pattern = Pattern.of_matrix(random_matrix(5, 4).numpy())
    for size in ((3, 9), (4,)):
        with pytest.raises(RuntimeError, match="combine: wrong shape"):
            combine(pattern, torch.zeros(size, dtype=F64))


# ---- structure


@kernels
def test_tables_are_made_once_for_a_system():
    from mujoco_torch._src.solver.triton_kernels.tables import tables_of

    system = random_system(6, 5, 2, 1)
    tables = tables_of(system, torch.device(DEVICE))
    assert tables_of(system, torch.device(DEVICE)) is tables
    starts = tables.constraint_row.tolist()
    assert starts[-1] == system.ngiven + system.rows
    sizes = [1] * system.ngiven + [max(1, 2 * (dim - 1)) for dim in system.contact_dim]
    assert [b - a for a, b in pairwise(starts)] == sizes


# ---- compilation


compiled = pytest.mark.skipif(INTERPRETED, reason="the interpreter compiles nothing")

INTEGERS = (
    "niter_out element constraint_row row_constraint given_at side_root slot_row next_group rowadr colind bodyid "
    "start column"
).split()
TYPES = dict.fromkeys(INTEGERS, "*i32") | dict.fromkeys(("worlds", "given_worlds"), "i64")
TYPES |= {"side_moved": "*i8", "rows": "i32", "columns": "i32"}


def machine_code(kernel, values, number="*fp32"):
    """What a kernel compiles to for an H100 or H200, without one."""
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource, compile

    constants = {x: values[x] for x in kernel.arg_names if x in values}
    signature = {x: "constexpr" if x in constants else TYPES.get(x, number) for x in kernel.arg_names}
    options = {"num_warps": 1, "enable_fp_fusion": True}
    return compile(
        ASTSource(kernel, signature, constants), target=GPUTarget("cuda", 90, 32), options=options
    ).asm


@pytest.mark.slow
@compiled
@pytest.mark.parametrize("name", ["mass_kernel", "factor_kernel", "solve_kernel", "combine_kernel"])
def test_small_kernels_compile_for_a_gpu(name, monkeypatch, tmp_path):
    from mujoco_torch._src.solver.triton_kernels import mass
    from mujoco_torch._src.solver.triton_kernels.combine import combine_kernel

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    values = {"nv": 6, "nbody": 7, "N": 8, "W": 4}
    assert machine_code(getattr(mass, name, combine_kernel), values)["cubin"]


COMPILED = {
    "limits and pyramids": (1, {}),
    "in float64": (1, {}),
    "references along every axis": (6, {}),
    "all kinds": (1, KINDS["all"]),
    "all kinds, conjugate gradients": (1, KINDS["all"] | {"solver": CG}),
}


@pytest.mark.slow
@compiled
@pytest.mark.parametrize("case", COMPILED)
def test_solve_compiles_for_a_gpu(case, monkeypatch, tmp_path):
    from mujoco_torch._src.solver.triton_kernels import newton as kernel

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    references, kinds = COMPILED[case]
    values = kernel.constants(random_system(6, 5, 2, 1, **kinds), 8, 4, references)
    assert machine_code(kernel.newton_kernel, values, "*fp64" if "float64" in case else "*fp32")["cubin"]
