"""The inertia operators against MuJoCo C, definitions and finite differences; the kernel against the reference."""

from collections.abc import Callable
from dataclasses import dataclass

import mujoco
import numpy as np
import pytest
import torch
from torch import Tensor

from mujoco_torch._src import solver
from mujoco_torch._src.ops import prepare
from mujoco_torch._src.solver import System, mass
from mujoco_torch._src.zoo import MODELS, model_path

F64 = torch.float64

# Relative to the largest number of the world: rounding of sums in another order. (Against C, measured: 1e-14.)
TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-4}

BATCHES = (1, 7, 8, 9, 33)
"""Below, at and above the width of a register."""

SPHERES = """
<mujoco model="spheres">
  <worldbody>
    <body pos="0 0 1"><freejoint/><geom size=".1"/></body>
    <body pos="1 0 1"><freejoint/><geom type="box" size=".1 .2 .3"/></body>
    <body pos="2 0 1"><joint type="slide" axis="0 0 1" armature=".3"/><geom size=".1"/></body>
  </worldbody>
</mujoco>
"""

MIXED = """
<mujoco model="mixed">
  <worldbody>
    <body name="free" pos="0 0 1"><freejoint/><geom size=".1"/></body>
    <body name="trunk" pos="0 0 2">
      <freejoint/>
      <inertial pos=".02 -.03 .05" quat=".8 .3 .1 -.4" mass="2.5" diaginertia=".03 .02 .015"/>
      <body pos=".2 0 0">
        <joint type="ball" armature=".01"/>
        <geom type="capsule" size=".03" fromto="0 0 0 .1 .2 -.3"/>
        <body pos="0 0 -.3">
          <joint axis="1 .2 0"/>
          <joint type="slide" axis=".1 0 1" pos="0 .1 0" armature=".05"/>
          <geom type="ellipsoid" size=".03 .04 .12"/>
        </body>
      </body>
      <body pos="-.2 0 0"><joint axis="0 1 1"/><geom type="cylinder" size=".02 .1" pos="-.1 0 0"/></body>
    </body>
    <body name="still" pos="3 0 0"><geom size=".1"/>
      <body pos="0 0 .5"><joint axis="0 1 0" pos="0 0 .1"/><geom size=".1" pos=".2 0 0"/></body>
    </body>
    <body name="free too" pos="4 0 1"><freejoint/><geom size=".1"/></body>
  </worldbody>
</mujoco>
"""


@dataclass
class Case:
    """A model in several states of MuJoCo C: its structure, the inputs of the operators, and C's results."""

    mjm: mujoco.MjModel
    system: System
    datas: list[mujoco.MjData]

    def of(self, get: Callable[[mujoco.MjData], np.ndarray], dtype: torch.dtype = F64) -> Tensor:
        """Values of all states, worlds last."""
        return torch.as_tensor(np.stack([get(d) for d in self.datas], -1)).to(dtype)

    def inputs(self, dtype: torch.dtype = F64) -> tuple[Tensor, Tensor, Tensor]:
        armature = torch.as_tensor(self.mjm.dof_armature[:, None]).to(dtype)
        return self.of(lambda d: d.crb.T, dtype), self.of(lambda d: d.cdof.T, dtype), armature


def load(name: str) -> mujoco.MjModel:
    texts = {"spheres": SPHERES, "mixed": MIXED}
    if name in texts:
        return mujoco.MjModel.from_xml_string(texts[name])
    return mujoco.MjModel.from_xml_path(str(model_path(name)))


def structure(rows: list[tuple[int, ...]], bodies: list[int], nbody: int) -> System:
    """An inertia with the given columns in each row, and no constraints."""
    return System(
        nv=len(rows), nbody=nbody, M_rownnz=tuple(len(row) for row in rows),
        M_colind=tuple(j for row in rows for j in row), dof_bodyid=tuple(bodies), given_kind=(), given_dofs=(),
        contact_dim=(), contact_sides=(), tolerance=1e-8, ls_tolerance=0.01, iterations=100, ls_iterations=50,
    )  # fmt: skip


def system_of(mjm: mujoco.MjModel) -> System:
    """The structure of a model of MuJoCo C, whatever else is in it."""
    starts = zip(mjm.M_rowadr.tolist(), mjm.M_rownnz.tolist(), strict=True)
    rows = [tuple(mjm.M_colind[a : a + n].tolist()) for a, n in starts]
    return structure(rows, mjm.dof_bodyid.tolist(), mjm.nbody)


def case_of(name: str, worlds: int = 9) -> Case:
    mjm, rng, datas = load(name), np.random.default_rng(0), []
    for _ in range(worlds):
        d = mujoco.MjData(mjm)
        mujoco.mj_integratePos(mjm, d.qpos, rng.normal(size=mjm.nv), 1.0)
        for stage in (mujoco.mj_kinematics, mujoco.mj_comPos, mujoco.mj_crb, mujoco.mj_factorM):
            stage(mjm, d)
        datas.append(d)
    return Case(mjm, system_of(mjm), datas)


@pytest.fixture(scope="module", params=["spheres", "mixed", *MODELS])
def case(request: pytest.FixtureRequest) -> Case:
    return case_of(request.param)


def tree(parents: list[int], *, bodies: list[int] | None = None) -> System:
    """Structure of dofs with the given parents (-1: none), each on a body of its own by default."""
    rows: list[tuple[int, ...]] = []
    for i, parent in enumerate(parents):
        rows.append((*(rows[parent] if parent >= 0 else ()), i))
    bodies = bodies or list(range(1, len(parents) + 1))
    return structure(rows, bodies, max(bodies, default=0) + 1)


def random_tree(nv: int) -> System:
    """Some roots, some chains, some branches; some bodies of more than one dof."""
    rng = np.random.default_rng(nv)
    parents = [int(rng.choice([i - 1, i - 1, rng.integers(-1, i)])) for i in range(nv)]
    return tree(parents, bodies=(1 + np.cumsum(rng.random(nv) < 0.6)).tolist())


def random(*size: int, dtype: torch.dtype = F64, seed: int = 0) -> Tensor:
    g = torch.Generator().manual_seed(1000 * sum(size) + seed)
    return torch.randn(*size, generator=g, dtype=F64).to(dtype)


def random_mass(system: System, worlds: int, seed: int = 0) -> Tensor:
    """L' D L (nC, B) of random L and D with the elements of the structure."""
    lower = np.zeros((system.nv, system.nv))
    where = [(i, j) for i, row in enumerate(system.M_rows) for j in row]
    out = []
    rng = np.random.default_rng(100 * system.nv + seed)
    for _ in range(worlds):
        for i, j in where:
            lower[i, j] = 1.0 if i == j else rng.normal() / len(system.M_rows[i])
        full = lower.T @ np.diag(rng.uniform(0.5, 2, system.nv)) @ lower
        out.append([full[i, j] for i, j in where])
    return torch.tensor(np.array(out).reshape(worlds, system.nC).T.copy())


def dense(system: System, M: Tensor) -> Tensor:
    """M (nv, nv, B) element by element."""
    full = M.new_zeros(system.nv, system.nv, M.shape[-1])
    for (i, j), x in zip(((i, j) for i, row in enumerate(system.M_rows) for j in row), M, strict=True):
        full[i, j] = full[j, i] = x
    return full


def assert_same(a: Tensor, b: Tensor, tolerance: float | None = None) -> None:
    """Equal to the tolerance (default: of the dtype), relative to the largest number of the world."""
    assert a.shape == b.shape
    assert a.dtype == b.dtype
    if b.numel():
        scale = b.abs().flatten(0, -2).amax(0).clamp_min(1e-6)
        assert ((a - b).abs() / scale).max() < (tolerance or TOLERANCE[a.dtype])


# The reference of each operator, with the operator's arguments.
REFERENCES: dict[str, Callable] = {
    "mass_matrix": lambda s, *x: mass.mass_matrix(*x, s.key),
    "factor_m": lambda s, *x: mass.factor_m(*x, s.key),
    "solve_m": lambda s, M, *x: mass.solve_m(*x, s.key),
}


def run(name: str, which: str, system: System, *args: Tensor):
    return getattr(solver, name)(system, *args) if which == "operator" else REFERENCES[name](system, *args)


both = pytest.mark.parametrize("which", ["operator", "reference"])


# ------------------------------------------------------------------------------------------- MuJoCo C


def test_models_are_what_their_names_say() -> None:
    spheres, mixed = load("spheres"), load("mixed")
    assert spheres.nC == spheres.nv == 13
    assert (spheres.M_rownnz == 1).all()
    assert {*mixed.M_rownnz[:6], *mixed.M_rownnz[-6:]} == {1}
    assert mixed.M_rownnz.max() > 10


@both
def test_mass_matrix_equals_mujoco(case: Case, which: str) -> None:
    M = run("mass_matrix", which, case.system, *case.inputs())
    assert_same(M, case.of(lambda d: d.M))


def test_full_m_equals_mujoco(case: Case) -> None:
    def full(d: mujoco.MjData) -> np.ndarray:
        out = np.zeros((case.mjm.nv, case.mjm.nv))
        mujoco.mj_fullM(case.mjm, d, out)
        return out

    assert torch.equal(solver.full_m(case.of(lambda d: d.M), case.system), case.of(full))


@both
def test_factor_m_equals_mujoco(case: Case, which: str) -> None:
    qLD, qLDiagInv = run("factor_m", which, case.system, case.of(lambda d: d.M))
    assert_same(qLD, case.of(lambda d: d.qLD))
    expected = case.of(lambda d: d.qLDiagInv)
    assert ((qLDiagInv - expected) / expected).abs().max() < TOLERANCE[F64]


@both
def test_solve_m_equals_mujoco(case: Case, which: str) -> None:
    b = random(case.mjm.nv, len(case.datas))
    given = (case.of(lambda d: d.M), case.of(lambda d: d.qLD), case.of(lambda d: d.qLDiagInv))
    x = run("solve_m", which, case.system, *given, b)
    expected = np.zeros((len(case.datas), case.mjm.nv))
    for d, right, out in zip(case.datas, b.T.contiguous().numpy(), expected, strict=True):
        mujoco.mj_solveM(case.mjm, d, out[None], right[None])
    assert_same(x, torch.as_tensor(expected.T))


def test_float32_is_near_mujoco(case: Case) -> None:
    """1e-4 of M's largest number; the solution fits to 1e-3 of what M x is made of."""
    M = solver.mass_matrix(case.system, *case.inputs(torch.float32))
    assert_same(M, case.of(lambda d: d.M, torch.float32))
    b = random(case.mjm.nv, len(case.datas), dtype=torch.float32)
    x = solver.solve_m(case.system, M, *solver.factor_m(case.system, M), b)
    full = dense(case.system, M).double()
    error = (full * x).sum(1) - b
    terms = (full * x).abs().sum(1) + b.abs()
    assert (error.abs() / terms).max() < 1e-3


# ------------------------------------------------------------------------------------------- definitions


@both
@pytest.mark.parametrize("nv", [1, 2, 7, 40])
def test_factor_and_solution_fit_their_definitions(which: str, nv: int) -> None:
    system, worlds = random_tree(nv), 5
    M, b = random_mass(system, worlds), random(nv, worlds)
    qLD, qLDiagInv = run("factor_m", which, system, M)
    ends = torch.tensor(system.M_rownnz).cumsum(0) - 1
    torch.testing.assert_close(qLDiagInv, 1 / qLD[ends])
    lower = dense(system, qLD).movedim(-1, 0).tril(-1) + torch.eye(nv, dtype=F64)
    torch.testing.assert_close((lower.mT * qLD[ends].T[:, None]) @ lower, dense(system, M).movedim(-1, 0))
    x = run("solve_m", which, system, M, qLD, qLDiagInv, b)
    torch.testing.assert_close((dense(system, M) * x).sum(1), b)


def test_mass_matrix_fits_its_definition() -> None:
    """M[i, j] = cdof_j . I(body i) cdof_i, with I the spatial inertia (6, 6) written out."""
    system, worlds = random_tree(9), 3
    crb, cdof, armature = random(10, system.nbody, worlds), random(6, 9, worlds), random(9, 1)
    M = dense(system, solver.mass_matrix(system, crb, cdof, armature))
    for w in range(worlds):
        for i, row in enumerate(system.M_rows):
            xx, yy, zz, xy, xz, yz, x, y, z, m = crb[:, system.dof_bodyid[i], w].tolist()
            turn = np.array([[xx, xy, xz], [xy, yy, yz], [xz, yz, zz]])
            arm = np.array([[0, -z, y], [z, 0, -x], [-y, x, 0]])
            inertia = np.block([[turn, arm], [arm.T, m * np.eye(3)]])
            for j in row:
                expected = (
                    cdof[:, j, w].numpy() @ inertia @ cdof[:, i, w].numpy() + (i == j) * armature[i].item()
                )
                assert M[i, j, w].item() == pytest.approx(expected, rel=1e-12, abs=1e-12)


# ------------------------------------------------------------------------------------------- kernel and reference


@pytest.mark.parametrize("dtype", list(TOLERANCE), ids=str)
@pytest.mark.parametrize("worlds", BATCHES)
@pytest.mark.parametrize("nv", [1, 2, 3, 5, 13, 27, 40])
def test_kernel_equals_the_reference(nv: int, worlds: int, dtype: torch.dtype) -> None:
    system = random_tree(nv)
    inputs = (random(10, system.nbody, worlds), random(6, nv, worlds), random(nv, 1))
    inputs = tuple(x.to(dtype) for x in inputs)
    assert_same(solver.mass_matrix(system, *inputs), REFERENCES["mass_matrix"](system, *inputs))
    M, b = random_mass(system, worlds).to(dtype), random(nv, worlds, dtype=dtype)
    factor = REFERENCES["factor_m"](system, M)
    for a, expected in zip(solver.factor_m(system, M), factor, strict=True):
        assert_same(a, expected)
    assert_same(solver.solve_m(system, M, *factor, b), REFERENCES["solve_m"](system, M, *factor, b))


@pytest.mark.parametrize("worlds", [0, 3])
@both
def test_empty(which: str, worlds: int) -> None:
    for nv in (0, 2) if worlds == 0 else (0,):
        system = tree([-1] * nv)
        M = run(
            "mass_matrix", which, system, random(10, nv + 1, worlds), random(6, nv, worlds), random(nv, 1)
        )
        qLD, qLDiagInv = run("factor_m", which, system, M)
        x = run("solve_m", which, system, M, qLD, qLDiagInv, random(nv, worlds))
        assert [tuple(t.shape) for t in (M, qLD, qLDiagInv, x)] == [(nv, worlds)] * 4


def strided(x: Tensor) -> list[Tensor]:
    """The same numbers in other places: worlds first in memory, and every second number of twice as many."""
    return [x.movedim(-1, 0).contiguous().movedim(0, -1), x.repeat_interleave(2, -1)[..., ::2]]


def test_any_strides() -> None:
    system, worlds = random_tree(7), 9
    inputs = (random(10, system.nbody, worlds), random(6, 7, worlds), random(7, 1))
    M, b = random_mass(system, worlds), random(7, worlds)
    factor = solver.factor_m(system, M)
    for i in range(2):
        assert torch.equal(
            solver.mass_matrix(system, *(strided(x)[i] for x in inputs)), solver.mass_matrix(system, *inputs)
        )
        for a, expected in zip(solver.factor_m(system, strided(M)[i]), factor, strict=True):
            assert torch.equal(a, expected)
        rest = (strided(x)[i] for x in (*factor, b))
        assert torch.equal(solver.solve_m(system, M, *rest), solver.solve_m(system, M, *factor, b))


@both
def test_a_broken_world_keeps_to_itself(which: str) -> None:
    system, worlds = random_tree(7), 12
    M, b = random_mass(system, worlds), random(7, worlds)
    broken = M.clone()
    broken[:, 3] = torch.nan
    keep = torch.arange(worlds) != 3
    good, bad = (run("factor_m", which, system, x) for x in (M, broken))
    for a, expected in zip(bad, good, strict=True):
        assert a[:, 3].isnan().any()
        assert_same(a[:, keep], expected[:, keep])
    x = run("solve_m", which, system, M, *bad, b)
    assert x[:, 3].isnan().any()
    assert_same(x[:, keep], run("solve_m", which, system, M, *good, b)[:, keep])


def test_threads_give_the_same_numbers() -> None:
    system, worlds = random_tree(9), 1000
    inputs = (random(10, system.nbody, worlds), random(6, 9, worlds), random(9, 1))
    M, b = random_mass(system, worlds), random(9, worlds)

    def all_of_them() -> tuple[Tensor, ...]:
        factor = solver.factor_m(system, M)
        return solver.mass_matrix(system, *inputs), *factor, solver.solve_m(system, M, *factor, b)

    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        one = all_of_them()
        torch.set_num_threads(3)
        three = all_of_them()
    finally:
        torch.set_num_threads(before)
    for a, b in zip(one, three, strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("which", ["operator", "reference"])
def test_small_pivots_are_those_of_mujoco(which: str) -> None:
    """A pivot below mjMINVAL is replaced by it: M of ones has rank one. The other worlds are not touched."""
    system = tree([-1, 0])
    M = torch.tensor([[2.0, 1.0], [1.0, 1.0], [2.0, 1.0]], dtype=F64)  # healthy, singular
    qLD, qLDiagInv = run("factor_m", which, system, M)
    torch.testing.assert_close(qLD[:, 0], torch.tensor([1.5, 0.5, 2.0], dtype=F64))
    torch.testing.assert_close(qLD[:, 1], torch.tensor([1e-15, 1.0, 1.0], dtype=F64), rtol=1e-12, atol=0)
    torch.testing.assert_close(qLDiagInv[:, 1], torch.tensor([1e15, 1.0], dtype=F64))


# ------------------------------------------------------------------------------------------- gradients and transforms


def chain(system: System) -> Callable[..., Tensor]:
    """Inertia, its factor and a solve, as a step runs them; positive definite inertias come from squares."""

    def f(root: Tensor, cdof: Tensor, armature: Tensor, b: Tensor) -> Tensor:
        M = solver.mass_matrix(system, _inertia(root), cdof, armature.square() + 1)
        return solver.solve_m(system, M, *solver.factor_m(system, M), b)

    return f


def _inertia(root: Tensor) -> Tensor:
    """Inertias (10, nbody, B) of points with mass at three places each: root (4, nbody, B)."""
    x, y, z, m = root.unbind(0)
    m = m.square() + 0.1
    turn = [m * (y * y + z * z), m * (x * x + z * z), m * (x * x + y * y), -m * x * y, -m * x * z, -m * y * z]
    return torch.stack([*turn, m * x, m * y, m * z, m])


def leaves(system: System, worlds: int = 2) -> tuple[Tensor, ...]:
    nv = system.nv
    # Composite inertias of a tree: those of descendants are part of a body's; one for all keeps M positive.
    root = random(4, 1, worlds).expand(-1, system.nbody, -1)
    sizes = (root, random(6, nv, worlds), random(nv, 1), random(nv, worlds))
    return tuple(x.clone().requires_grad_() for x in sizes)


FOREST = [-1, 0, 0, -1, 2]


def test_gradients() -> None:
    system = tree(FOREST, bodies=[1, 1, 2, 3, 4])
    crb, cdof, armature = random(10, 5, 2), random(6, 5, 2), random(5, 1)
    inputs = tuple(x.requires_grad_() for x in (crb, cdof, armature))
    assert torch.autograd.gradcheck(lambda *x: solver.mass_matrix(system, *x), inputs)
    assert torch.autograd.gradgradcheck(lambda *x: solver.mass_matrix(system, *x), inputs)
    M, b = random_mass(system, 2).requires_grad_(), random(5, 2).requires_grad_()

    def solved(M: Tensor, b: Tensor) -> Tensor:
        return solver.solve_m(system, M, *solver.factor_m(system, M), b)

    assert torch.autograd.gradcheck(solved, (M, b))
    assert torch.autograd.gradgradcheck(solved, (M, b))
    assert torch.autograd.gradcheck(chain(system), leaves(system))


def test_no_gradient_flows_through_the_factor() -> None:
    system = tree(FOREST)
    M = random_mass(system, 2).requires_grad_()
    assert not any(x.requires_grad for x in solver.factor_m(system, M))
    assert_same(solver.full_m(M, system).detach(), dense(system, M.detach()))
    assert torch.autograd.gradcheck(lambda M: solver.full_m(M, system), (M,))


@pytest.mark.parametrize("in_dims", [(0, 0, None, 0), (None, 1, None, -1)], ids=["all", "some"])
def test_vmap(in_dims: tuple[int | None, ...]) -> None:
    system = tree(FOREST)
    single = [x.detach() for x in leaves(system, worlds=3)]
    each = [
        [x if d is None else f * x for x, d in zip(single, in_dims, strict=True)]
        for f in (0.5, 1.0, 2.0, 3.0)
    ]
    batched = [
        single[i] if d is None else torch.stack([e[i] for e in each], d) for i, d in enumerate(in_dims)
    ]
    f = chain(system)
    expected = torch.stack([f(*e) for e in each])
    assert_same(torch.vmap(f, in_dims=in_dims)(*batched), expected)

    def loss(*args: Tensor) -> Tensor:
        return f(*args).square().sum()

    grads = torch.vmap(torch.func.grad(loss, (0, 1, 2, 3)), in_dims=in_dims)(*batched)
    for i, args in enumerate(each):
        for a, b in zip(grads, torch.func.grad(loss, (0, 1, 2, 3))(*args), strict=True):
            torch.testing.assert_close(a[i], b)


def test_vmap_refuses_to_map_the_armature() -> None:
    system = tree(FOREST)
    crb, cdof = random(10, system.nbody, 2), random(6, system.nv, 2)
    with pytest.raises(ValueError, match="an array of the model is the same in all worlds"):
        torch.vmap(lambda a: solver.mass_matrix(system, crb, cdof, a))(random(4, system.nv, 1))


def test_func_grad() -> None:
    system = tree(FOREST)
    args, f = leaves(system), chain(system)

    def loss(*args: Tensor) -> Tensor:
        return f(*args).square().sum()

    expected = torch.autograd.grad(loss(*args), args)
    grads = torch.func.grad(loss, tuple(range(len(args))))(*(x.detach() for x in args))
    for a, b in zip(grads, expected, strict=True):
        torch.testing.assert_close(a, b)


def test_compiled_with_gradients() -> None:
    """Inside a function that Dynamo does not look into, as stages are."""
    system = tree(FOREST)
    args, f = leaves(system), torch.compiler.allow_in_graph(chain(system))

    def loss(*args: Tensor) -> Tensor:
        return f(*args).square().sum()

    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(*args), loss(*args))
    ours, theirs = torch.autograd.grad(compiled(*args), args), torch.autograd.grad(loss(*args), args)
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b)


def test_opcheck() -> None:
    prepare()
    system, worlds = tree(FOREST), 3
    M = random_mass(system, worlds)
    factor = solver.factor_m(system, M)
    ops = torch.ops.mujoco_torch
    inputs = (random(10, system.nbody, worlds), random(6, system.nv, worlds), random(system.nv, 1))
    torch.library.opcheck(ops.mass_matrix.default, (*inputs, system.key))
    torch.library.opcheck(ops.factor_m.default, (M, system.key))
    torch.library.opcheck(ops.solve_m.default, (*factor, random(system.nv, worlds), system.key))
    torch.library.opcheck(ops.factor_m.default, (strided(M)[0], system.key))


# ------------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("name", "index", "change", "message"),
    [
        ("mass_matrix", 0, lambda x: x[:9], r"mass_matrix: crb has shape \(9, 6, 3\), expected \(10, 6, 3\)"),
        ("mass_matrix", 0, lambda x: x[..., :1], r"mass_matrix: crb has shape \(10, 6, 1\)"),
        ("mass_matrix", 1, lambda x: x[:, 1:], r"mass_matrix: cdof has shape \(6, 4, 3\), expected \(6, 5, 3\)"),
        ("mass_matrix", 0, lambda x: x.float(), "mass_matrix: crb is torch.float32 on cpu, others are torch.float64"),
        ("mass_matrix", 1, lambda x: x.half(), "dtype torch.float16 is not supported, use torch.float32 or"),
        ("factor_m", 0, lambda x: x[1:], r"factor_m: M has shape \(8, 3\), expected \(9, 3\) \(worlds last\)"),
        ("factor_m", 0, lambda x: x[..., None], r"factor_m: M has shape \(9, 3, 1\)"),
        ("factor_m", 0, lambda x: x.to(torch.int64), "factor_m: dtype torch.int64 is not supported"),
        ("solve_m", 0, lambda x: x[1:], r"solve_m: M has shape \(8, 3\)"),
        ("solve_m", 1, lambda x: x[..., :2], r"solve_m: qLD has shape \(9, 2\), expected \(9, 3\)"),
        ("solve_m", 2, lambda x: x[1:], r"solve_m: qLDiagInv has shape \(4, 3\), expected \(5, 3\)"),
        ("solve_m", 3, lambda x: x.float(), "solve_m: b is torch.float32 on cpu"),
    ],
)  # fmt: skip
def test_refuses_what_does_not_fit(name: str, index: int, change: Callable, message: str) -> None:
    system, worlds = tree(FOREST), 3
    assert system.nC == 9
    M = random_mass(system, worlds)
    args = {
        "mass_matrix": [random(10, system.nbody, worlds), random(6, system.nv, worlds), random(system.nv, 1)],
        "factor_m": [M],
        "solve_m": [M, *solver.factor_m(system, M), random(system.nv, worlds)],
    }[name]
    args[index] = change(args[index])
    with pytest.raises(ValueError, match=message):
        getattr(solver, name)(system, *args)


def test_refuses_an_armature_that_does_not_fit() -> None:
    system = tree(FOREST)
    crb, cdof, armature = random(10, system.nbody, 3), random(6, system.nv, 3), random(system.nv, 1)
    with pytest.raises(ValueError, match=r"armature has shape \(5, 3\), expected \(5, 1\)"):
        solver.mass_matrix(system, crb, cdof, armature.expand(-1, 3))
    with pytest.raises(ValueError, match=r"armature is torch\.float32 on cpu, others are torch\.float64"):
        solver.mass_matrix(system, crb, cdof, armature.float())


def test_refuses_an_unknown_structure() -> None:
    prepare()
    with pytest.raises(RuntimeError, match="given an unknown structure"):
        torch.ops.mujoco_torch.factor_m.default(torch.ones(1, 3), 1)
