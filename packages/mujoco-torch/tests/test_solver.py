"""The solver's operators against definitions, finite differences and MuJoCo C."""

import sys

import mujoco
import numpy as np
import pytest
import torch

from mujoco_torch._src.solver import (
    chol_factor,
    chol_solve,
    hessian_solve,
    jacobian,
    kernels,
    linalg,
    ops,
    solve,
)
from mujoco_torch._src.solver.newton import newton as newton_reference
from mujoco_torch._src.solver.newton import solve as solve_reference
from mujoco_torch._src.solver.rows import jacobian_transposed

F64 = torch.float64
OPTIONS = {"tolerance": 1e-8, "ls_tolerance": 0.01, "iterations": 100, "ls_iterations": 50}
TIGHT = {**OPTIONS, "tolerance": 1e-14}

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


def spd(x):
    """Symmetric positive definite matrices from any (n, n, B)."""
    return torch.einsum("ikb,jkb->ijb", x, x) + torch.eye(x.shape[0], dtype=x.dtype)[:, :, None]


def random_problem(nv, nefc, worlds, dtype=F64, seed=0):
    """M, J, D, aref, qfrc_smooth, qacc_smooth, qacc_warmstart of well-conditioned random worlds."""
    g = torch.Generator().manual_seed(seed + 1000 * nv + 10 * nefc + worlds)

    def normal(*size):
        return torch.randn(*size, generator=g, dtype=F64)

    root = normal(nv, nv, worlds)
    mass = torch.einsum("ikb,jkb->ijb", root, root) + nv * torch.eye(nv, dtype=F64)[:, :, None]
    jac = normal(nefc, nv, worlds) * (normal(nefc, nv, 1) > 0)
    weight = 10 * normal(nefc, worlds).abs() * (normal(nefc, worlds) > 0.2)
    aref, force = normal(nefc, worlds), 5 * normal(nv, worlds)
    smooth = linalg.hessian_solve(mass, jac[:0], weight[:0], force)
    problem = (mass, jac, weight, aref, force, smooth, smooth + normal(nv, worlds))
    return tuple(x.to(dtype) for x in problem)


def factors_of(jac):
    """A dense J (nefc, nv, B) as contact rows: side s holds the columns 6 s to 6 s + 5, whose cdof are unit vectors."""
    nefc, nv, worlds = jac.shape
    sides = max(1, -(-nv // 6))
    dof = torch.arange(nv)
    cdof = (torch.arange(6)[:, None] == dof % 6).to(jac.dtype)[:, :, None].expand(-1, -1, worlds)
    side = (torch.arange(sides)[:, None] == dof // 6).to(jac.dtype)
    padded = torch.nn.functional.pad(jac, (0, 0, 0, 6 * sides - nv))
    wrench = padded.reshape(nefc, sides, 6, worlds).movedim(0, 2)
    return cdof, wrench, side[:, None].repeat(1, nefc, 1), jac.new_zeros(3, 0, worlds), [], []


def newton(mass, jac, *rest, **options):
    """The operator as a function of a dense J, like `newton_reference`: accelerations and iterations."""
    out = solve(mass, *factors_of(jac), *rest, **options)
    return out[0], out[3]


MOVED = 3
"""Which argument of `solve` has no worlds."""

# Limits in the tests' factored problems: (dof, size), for nv of at least 4.
LIMITS = ((0, 1), (0, 1), (1, 3), (3, 1))


def factored_problem(nv=5, nc=6, sides=2, worlds=3, limits=LIMITS, seed=0):
    """The arguments of `solve` for random rows: M, the six that make J, D, aref, force and the starting points."""
    g = torch.Generator().manual_seed(seed)
    nl = len(limits)

    def normal(*size):
        return torch.randn(*size, generator=g, dtype=F64)

    mass = spd(normal(nv, nv, worlds))
    moved = normal(sides, nc, nv).sign() * (normal(sides, nc, nv) > 0)
    weight = (normal(nl + nc, worlds).abs() + 0.1) * (normal(nl + nc, worlds) > -0.5)
    force = normal(nv, worlds)
    smooth = linalg.chol_solve(linalg.chol_factor(mass), force)
    dof, size = [d for d, _ in limits], [n for _, n in limits]
    rows = (normal(6, nv, worlds), normal(sides, 6, nc, worlds), moved, normal(3, nl, worlds), dof, size)
    return (mass, *rows, weight, normal(nl + nc, worlds), force, smooth, smooth + normal(nv, worlds))


def optimality(problem, qacc):
    """Norm of the cost's gradient, over the norm of the applied force, per world."""
    mass, jac, weight, aref, force = problem[:5]
    residual = (jac * qacc).sum(1) - aref
    pull = weight * residual.clamp(max=0)
    grad = (mass * qacc).sum(1) - force + (jac * pull[:, None]).sum(0)
    return grad.norm(dim=0) / force.norm(dim=0)


def problem_of(model, data):
    """What MuJoCo C solves in `data` (after mj_forward), one world, with its solution and iteration count."""
    mass = np.zeros((model.nv, model.nv))
    mujoco.mj_fullM(model, data, mass)
    rows = data.efc_J.reshape(data.nefc, model.nv).copy() if data.nefc else np.zeros((0, model.nv))
    return {
        "inputs": (mass, rows, data.efc_D.copy(), data.efc_aref.copy(), data.qfrc_smooth.copy()),
        "starts": (data.qacc_smooth.copy(), data.qacc_warmstart.copy()),
        "qacc": data.qacc.copy(),
        "niter": int(data.solver_niter.sum()),
    }


def rollout(xml, steps=200, **options):
    """Model and the solver's problems along a noisy rollout of MuJoCo C."""
    model = mujoco.MjModel.from_xml_string(xml)
    for name, value in options.items():
        setattr(model.opt, name, value)
    data, rng, problems = mujoco.MjData(model), np.random.default_rng(0), []
    data.qvel[:] = rng.normal(size=model.nv) * 0.5
    for step in range(steps):
        data.qfrc_applied[:] = rng.normal(size=model.nv) * (2 if step < steps // 2 else 0)
        mujoco.mj_forward(model, data)
        problems.append(problem_of(model, data))
        mujoco.mj_step(model, data)
    return model, problems


def stack(problems):
    """Worlds last, rows padded with zero weight."""
    nefc = max(p["inputs"][2].size for p in problems)
    columns = []
    for p in problems:
        mass, rows, weight, aref, force = p["inputs"]
        pad = nefc - weight.size
        rows = np.pad(rows, ((0, pad), (0, 0)))
        columns.append((mass, rows, np.pad(weight, (0, pad)), np.pad(aref, (0, pad)), force, *p["starts"]))
    return tuple(torch.tensor(np.stack(x, -1)) for x in zip(*columns, strict=True))


# ---- values


@pytest.mark.parametrize("n", [1, 2, 5, 27])
def test_cholesky_factor_and_solve(n):
    mass, *_, force, _, _ = random_problem(n, 1, 7)
    factor = chol_factor(mass)
    assert torch.equal(factor.movedim(-1, 0).triu(1), torch.zeros(7, n, n, dtype=F64))
    torch.testing.assert_close(torch.einsum("ikb,jkb->ijb", factor, factor), mass)
    torch.testing.assert_close((mass * chol_solve(factor, force)).sum(1), force)


def test_cholesky_clamps_small_pivots_as_mujoco_does():
    singular = torch.ones(2, 2, 3, dtype=F64)
    factor = chol_factor(singular)
    torch.testing.assert_close(factor[1, 1], torch.full((3,), 1e-15, dtype=F64).sqrt())


def test_hessian_solve():
    mass, jac, weight, _, force, _, _ = random_problem(6, 9, 5)
    x = hessian_solve(mass, jac, weight, force)
    hessian = mass + torch.einsum("rib,rb,rjb->ijb", jac, weight, jac)
    torch.testing.assert_close((hessian * x).sum(1), force)


@pytest.mark.parametrize(("nv", "nefc", "worlds"), [(1, 1, 1), (3, 12, 8), (27, 80, 37), (40, 20, 300)])
def test_newton_reaches_the_optimum(nv, nefc, worlds):
    problem = random_problem(nv, nefc, worlds)
    for run in (newton, newton_reference):
        qacc, niter = run(*problem, **TIGHT)
        assert optimality(problem, qacc).max() < 1e-11
        assert niter.dtype == torch.int32
        assert niter.max() < 30


def test_newton_without_active_rows_returns_qacc_smooth():
    problem = random_problem(4, 6, 5)
    idle = (*problem[:2], torch.zeros_like(problem[2]), *problem[3:])
    for run in (newton, newton_reference):
        qacc, niter = run(*idle, **OPTIONS)
        assert torch.equal(qacc, problem[5])
        assert not niter.any()


def test_newton_mixes_idle_and_busy_worlds():
    problem = random_problem(4, 6, 9)
    problem[2][:, ::2] = 0
    for run in (newton, newton_reference):
        qacc, niter = run(*problem, **OPTIONS)
        assert torch.equal(qacc[:, ::2], problem[5][:, ::2])
        assert not niter[::2].any()
        assert niter[1::2].all()


@pytest.mark.parametrize(("nv", "nefc", "worlds"), [(0, 0, 3), (0, 2, 3), (3, 0, 4), (3, 2, 0)])
def test_newton_empty(nv, nefc, worlds):
    size = ((nv, nv), (nefc, nv), (nefc,), (nefc,), (nv,), (nv,), (nv,))
    problem = [torch.ones(*s, worlds, dtype=F64) for s in size]
    qacc, niter = newton(*problem, **OPTIONS)
    assert torch.equal(qacc, problem[5])
    assert niter.shape == (worlds,)
    assert not niter.any()


def test_newton_starts_from_the_better_point():
    problem = random_problem(5, 10, 6)
    qacc, _ = newton(*problem, **TIGHT)
    assert newton(*problem[:6], qacc, **OPTIONS)[1].max() == 0
    absurd = 1e6 * torch.ones_like(qacc)
    assert newton(*problem[:6], absurd, **OPTIONS)[1].equal(newton(*problem[:6], problem[5], **OPTIONS)[1])


def test_newton_keeps_a_broken_world_to_itself():
    problem = random_problem(5, 10, 12)
    broken = tuple(x.clone() for x in problem)
    broken[4][2, 3] = float("nan")
    for run in (newton, newton_reference):
        expected, _ = run(*problem, **OPTIONS)
        qacc, niter = run(*broken, **OPTIONS)
        assert qacc[:, 3].isnan().any()
        assert niter[3] <= 2
        keep = torch.arange(12) != 3
        torch.testing.assert_close(qacc[:, keep], expected[:, keep], rtol=1e-12, atol=1e-12)


def test_newton_takes_any_strides():
    problem = random_problem(6, 9, 10)
    strided = tuple(x.movedim(-1, 0).contiguous().movedim(0, -1) for x in problem)
    for a, b in zip(newton(*problem, **OPTIONS), newton(*strided, **OPTIONS), strict=True):
        assert torch.equal(a, b)
    twice = tuple(x.repeat_interleave(2, -1)[..., ::2] for x in problem)
    assert torch.equal(newton(*twice, **OPTIONS)[0], newton(*problem, **OPTIONS)[0])


# ---- rows in factored form


@pytest.mark.parametrize("sides", [1, 2])
def test_jacobian(sides):
    _, cdof, wrench, moved, axis, dof, size, *_ = factored_problem(sides=sides)
    jac = jacobian(cdof, wrench, moved, axis, dof, size)
    for row, (start, count) in enumerate(zip(dof, size, strict=True)):
        expected = torch.zeros_like(jac[row])
        expected[start : start + count] = axis[:count, row]
        assert torch.equal(jac[row], expected)
    contacts = torch.einsum("scj,skcb,kjb->cjb", moved, wrench, cdof)
    torch.testing.assert_close(jac[len(dof) :], contacts)


@pytest.mark.parametrize(("limits", "nc"), [(LIMITS, 6), (LIMITS, 0), ((), 6), ((), 0)])
def test_jacobian_transposed(limits, nc):
    _, cdof, wrench, moved, axis, *limit = factored_problem(limits=limits, nc=nc)[:7]
    leaves = tuple(x.requires_grad_() for x in (cdof, wrench, axis))
    jac = jacobian(cdof, wrench, moved, axis, *limit)
    grad = torch.randn(jac.shape, generator=torch.Generator().manual_seed(1), dtype=F64)
    expected = torch.autograd.grad(jac, leaves, grad)
    for a, b in zip(jacobian_transposed(grad, cdof, wrench, moved, *limit), expected, strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("sides", [1, 2])
@pytest.mark.parametrize(("limits", "nc"), [(LIMITS, 6), (LIMITS, 0), ((), 6), ((), 0)])
@pytest.mark.parametrize("run", [solve, solve_reference], ids=["operator", "reference"])
def test_forces_are_those_at_the_acceleration(run, limits, nc, sides):
    problem = factored_problem(limits=limits, nc=nc, sides=sides, worlds=11)
    mass, weight, aref, force = problem[0], *problem[7:10]
    qacc, efc_force, qfrc, niter = run(*problem, **TIGHT)
    jac = jacobian(*problem[1:7])
    torch.testing.assert_close(efc_force, weight * (aref - (jac * qacc).sum(1)).clamp(min=0))
    torch.testing.assert_close(qfrc, (jac * efc_force[:, None]).sum(0))
    torch.testing.assert_close((mass * qacc).sum(1), force + qfrc)
    assert not efc_force[weight == 0].any()
    assert niter.any() == (len(limits) + nc > 0)


def test_an_expanded_limit_axis():
    problem = list(factored_problem(worlds=10))
    problem[4] = problem[4][..., :1].expand(-1, -1, 10)
    expected = solve(*problem, **OPTIONS)
    problem[4] = problem[4].contiguous()
    for a, b in zip(solve(*problem, **OPTIONS), expected, strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize(
    ("index", "change", "message"),
    [
        (1, lambda x: x[:, :-1], r"solve: cdof has shape \(6, 4, 3\), expected \(6, 5, 3\)"),
        (2, lambda x: x[:1], r"solve: wrench has shape \(1, 6, 6, 3\), expected \(2, 6, 6, 3\)"),
        (3, lambda x: x[..., :-1], r"solve: moved has shape \(2, 6, 4\), expected \(2, 6, 5\)"),
        (9, lambda x: x[..., :-1], r"solve: qfrc_smooth has shape \(5, 2\)"),
        (8, lambda x: x.float(), "solve: aref is torch.float32 on cpu"),
        (3, lambda x: x.int(), "solve: moved is torch.int32 on cpu"),
        (5, lambda x: x[:-1], "solve: 3 limit_dof, but 4 limit_size"),
        (5, lambda x: [0, 0, 3, 3], "solve: a limit of size 3 at dof 3"),
        (6, lambda x: [1, 1, 2, 1], "solve: a limit of size 2 at dof 1; sizes are 1 and 3"),
    ],
)
def test_solve_refuses_what_does_not_fit(index, change, message):
    problem = list(factored_problem())
    problem[index] = change(problem[index])
    with pytest.raises(ValueError, match=message):
        solve(*problem, **OPTIONS)


def test_only_floats():
    with pytest.raises(ValueError, match=r"use torch\.float32 or torch\.float64"):
        chol_factor(torch.ones(2, 2, 3, dtype=torch.float16))


# ---- MuJoCo C


@pytest.mark.parametrize("xml", [LEGGED, BALLS, ARM], ids=["legged", "balls", "arm"])
@pytest.mark.parametrize("run", [newton, newton_reference], ids=["operator", "reference"])
def test_newton_equals_mujoco(xml, run):
    """The same accelerations to rounding (1e-9 relative), after the same number of iterations, one off at most."""
    _, problems = rollout(xml, tolerance=1e-10)
    qacc, niter = run(*stack(problems), **{**OPTIONS, "tolerance": 1e-10})
    expected = torch.tensor(np.stack([p["qacc"] for p in problems], -1))
    scale = expected.abs().amax(0).clamp_min(1)
    assert ((qacc - expected).abs().amax(0) / scale).max() < 1e-9
    counts = torch.tensor([p["niter"] for p in problems])
    assert counts.max() >= 2
    assert (niter - counts).abs().max() <= 1


@pytest.mark.parametrize(
    "options",
    [{"iterations": 1}, {"iterations": 2, "ls_iterations": 3}, {"ls_iterations": 1}, {"ls_iterations": 5}],
    ids=str,
)
def test_newton_equals_mujoco_when_cut_short(options):
    """With few iterations the result is not the optimum, and the same as MuJoCo's all the same."""
    _, problems = rollout(LEGGED, **options)
    expected = torch.tensor(np.stack([p["qacc"] for p in problems], -1))
    for run in (newton, newton_reference):
        qacc, niter = run(*stack(problems), **{**OPTIONS, **options})
        scale = expected.abs().amax(0).clamp_min(1)
        assert ((qacc - expected).abs().amax(0) / scale).max() < 1e-9
        assert niter.tolist() == [p["niter"] for p in problems]


# ---- operators


def operator_arguments(worlds=3):
    mass, jac, weight, _, force, *_ = (x.requires_grad_() for x in random_problem(4, 6, worlds))
    factor = linalg.chol_factor(mass.detach()).requires_grad_()
    problem = factored_problem(worlds=worlds)
    for i, x in enumerate(problem):
        if isinstance(x, torch.Tensor) and i != MOVED:
            x.requires_grad_()
    return {
        ops._chol_factor: (mass,),
        ops._chol_solve: (factor, force),
        ops._hessian_solve: (mass, jac, weight, force),
        ops._solve: (*problem, 1e-8, 0.01, 20, 20),
    }


@pytest.mark.parametrize("op", list(operator_arguments()), ids=lambda op: op._name)
def test_opcheck(op):
    torch.library.opcheck(op, operator_arguments()[op])


def solve_all(x, cdof, wrench, axis, weight, aref, force):
    """The chain a step runs: factor, smooth acceleration, constrained acceleration and the forces."""
    mass = spd(x)
    smooth = chol_solve(chol_factor(mass), force)
    side, row, dof = (torch.arange(n) for n in (wrench.shape[0], wrench.shape[2], x.shape[0]))
    moved = ((side[:, None, None] + row[:, None] + dof) % 3 - 1).to(x.dtype)
    dof, size = zip(*LIMITS, strict=True)
    rows = (cdof, wrench, moved, axis, dof, size, weight, aref)
    return solve(mass, *rows, force, smooth, 0.5 * smooth, **TIGHT)[:3]


def loss(*args):
    qacc, efc_force, qfrc = solve_all(*args)
    return (
        qacc.square().sum() + (0.3 * efc_force + 0.1 * efc_force**2).sum() + (qfrc * qacc).sum() + qfrc.sum()
    )


def leaves(nv=5, nc=4, worlds=3, seed=3):
    """What `solve_all` is a function of: a root of M, and the rest of a factored problem."""
    _, cdof, wrench, _, axis, _, _, weight, aref, force, *_ = factored_problem(nv, nc, 2, worlds, seed=seed)
    x = torch.randn(nv, nv, worlds, generator=torch.Generator().manual_seed(seed), dtype=F64)
    out = (x, cdof, wrench, axis, weight + 0.1, aref, force)
    return tuple(x.clone().requires_grad_() for x in out)


def test_gradients_of_linear_solves():
    _, jac, weight, _, force, *_ = (x.requires_grad_() for x in random_problem(4, 6, 3))
    x = torch.randn(4, 4, 3, generator=torch.Generator().manual_seed(0), dtype=F64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: chol_factor(spd(x)), (x,))
    assert torch.autograd.gradcheck(lambda x, b: chol_solve(chol_factor(spd(x)), b), (x, force))
    assert torch.autograd.gradcheck(lambda x, *args: hessian_solve(spd(x), *args), (x, jac, weight, force))
    assert torch.autograd.gradgradcheck(lambda x, b: chol_solve(chol_factor(spd(x)), b), (x, force))


@pytest.mark.parametrize("outputs", [(0,), (1,), (2,), (0, 1, 2)], ids=str)
def test_gradients(outputs):
    """Of each output on its own (the others have no gradient then), and of all."""
    assert torch.autograd.gradcheck(lambda *args: tuple(solve_all(*args)[i] for i in outputs), leaves())


def test_second_gradients():
    assert torch.autograd.gradgradcheck(loss, leaves(4, 2, 1))


def test_gradient_is_finite_for_degenerate_rows():
    args = leaves()
    _, _, wrench, axis, weight, *_ = args
    with torch.no_grad():
        wrench[:, :, 1] = wrench[:, :, 0]
        wrench[:, :, 2] = 0
        axis[:, 3] = 0
        weight[3] = 0
        weight[-1] = 0
    grads = torch.autograd.grad(loss(*args), args)
    assert all(g.isfinite().all() for g in grads)
    assert not grads[4][[3, -1]].any()
    assert not grads[2][:, :, -1].any()


def test_no_gradient_to_the_starting_points():
    problem = factored_problem()
    tensors = [
        x.requires_grad_() for i, x in enumerate(problem) if isinstance(x, torch.Tensor) and i != MOVED
    ]
    solve(*problem, **OPTIONS)[0].sum().backward()
    assert tensors[-1].grad is None
    assert tensors[-2].grad is None
    assert all(x.grad is not None for x in tensors[:-2])


def test_compiled_with_gradients():
    args = leaves()
    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(*args), loss(*args))
    for a, b in zip(
        torch.autograd.grad(compiled(*args), args), torch.autograd.grad(loss(*args), args), strict=True
    ):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize(
    "dims", [(0, 0, 0, 0, 0, 0, 0), (None, 1, -1, None, 0, None, 0)], ids=["all", "some"]
)
def test_vmap(compiled, dims):
    single = [x.detach() for x in leaves()]
    factors = torch.linspace(0.5, 1.5, 5, dtype=F64)
    each = [[x if d is None else f * x for x, d in zip(single, dims, strict=True)] for f in factors]
    batched = [single[i] if d is None else torch.stack([e[i] for e in each], d) for i, d in enumerate(dims)]
    mapped = torch.vmap(solve_all, in_dims=dims)
    if compiled:
        mapped = torch.compile(mapped, fullgraph=True, backend="aot_eager")
    for out, *expected in zip(mapped(*batched), *(solve_all(*e) for e in each), strict=True):
        torch.testing.assert_close(out, torch.stack(expected), rtol=1e-12, atol=1e-12)


def test_vmap_refuses_to_map_what_worlds_share():
    problem = factored_problem()
    before, moved, after = problem[:MOVED], problem[MOVED], problem[MOVED + 1 :]
    with pytest.raises(ValueError, match="vmap: moved is the same in all worlds"):
        torch.vmap(lambda x: solve(*before, x, *after, **OPTIONS))(torch.stack([moved, moved]))


@pytest.mark.xfail(
    reason="torch: a custom_op's gradient cannot be reached by torch.func.grad", raises=RuntimeError
)
def test_func_grad():
    torch.func.grad(loss)(*(x.detach() for x in leaves()))


def test_reference_splits_large_batches(monkeypatch):
    problem = factored_problem(worlds=23)
    whole = solve_reference(*problem, **OPTIONS)
    monkeypatch.setattr(sys.modules[solve_reference.__module__], "BLOCK", 10)
    for a, b in zip(solve_reference(*problem, **OPTIONS), whole, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


def test_operators_run_the_reference_without_a_kernel(monkeypatch):
    factored = factored_problem(worlds=4)
    expected = solve(*factored, **OPTIONS)
    monkeypatch.setattr(kernels, "library", lambda: None)
    for a, b in zip(solve(*factored, **OPTIONS), expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)
    mass, jac, weight, _, force, *_ = random_problem(3, 5, 4)
    x = chol_solve(chol_factor(mass), force)
    torch.testing.assert_close(hessian_solve(mass, jac[:0], weight[:0], force), x)
