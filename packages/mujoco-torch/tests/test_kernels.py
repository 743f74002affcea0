"""The CPU kernel against the torch reference, and its build."""

import os
import subprocess
import sys
import threading
import warnings

import pytest
import torch

from mujoco_torch._src.solver import chol_factor, kernels, linalg
from mujoco_torch._src.solver.newton import solve as solve_reference

# float64: rounding of sums in another order. float32: 1e-4, the same with a margin for weak matrices.
TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-4}
OPTIONS = {"tolerance": 1e-8, "ls_tolerance": 0.01, "iterations": 50, "ls_iterations": 50}


@pytest.fixture(scope="module", autouse=True)
def _built():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if kernels.library() is None:
            pytest.skip("no C++ compiler on this machine")


def generator(*seed):
    g = torch.Generator().manual_seed(sum(1000**i * n for i, n in enumerate(seed)))
    return lambda *size: torch.randn(*size, generator=g, dtype=torch.float64)


def random_mass(nv, worlds, normal):
    root = normal(nv, nv, worlds)
    return torch.einsum("ikb,jkb->ijb", root, root) + nv * torch.eye(nv, dtype=torch.float64)[:, :, None]


def random_problem(nv, nl, nc, worlds, dtype, sides=1):
    """The arguments of `solve`: limits of both sizes, contact rows moved by some dofs, a fifth of the rows idle."""
    normal = generator(nv, nl, nc, worlds)
    mass = random_mass(nv, worlds, normal)
    size = [3 if nv >= 3 and i % 3 == 2 else 1 for i in range(nl)]
    dof = [i % (nv + 1 - n) for i, n in enumerate(size)]
    # Unit rows on average, so that many dofs do not make weak matrices weaker.
    moved = normal(sides, nc, nv).sign() * (normal(sides, nc, nv) > 0) / (6 * sides) ** 0.5
    rows = (normal(6, nv, worlds), normal(sides, 6, nc, worlds), moved, normal(3, nl, worlds), dof, size)
    weight = 10 * normal(nl + nc, worlds).abs() * (normal(nl + nc, worlds) > 0.2)
    force = 5 * normal(nv, worlds)
    smooth = linalg.chol_solve(linalg.chol_factor(mass), force)
    problem = (mass, *rows, weight, normal(nl + nc, worlds), force, smooth, smooth + normal(nv, worlds))
    return tuple(x.to(dtype) if isinstance(x, torch.Tensor) else x for x in problem)


def assert_same(a, b, tolerance=None):
    """Equal to the tolerance (default: of the dtype), relative to the largest number of the world."""
    assert a.shape == b.shape
    if b.numel() == 0:
        return
    scale = b.abs().flatten(0, -2).amax(0).clamp_min(1)
    assert ((a - b).abs() / scale).max() < (tolerance or TOLERANCE[a.dtype])


@pytest.mark.parametrize("dtype", list(TOLERANCE), ids=str)
@pytest.mark.parametrize("worlds", [1, 3, 8, 37, 300])
@pytest.mark.parametrize("nv", [1, 2, 3, 4, 6, 13, 27, 40])
def test_equal_to_the_reference(nv, worlds, dtype):
    for nl, nc, sides in ((1, 0, 1), (0, 1, 1), (7, 0, 2), (5, 25, 2), (20, 60, 1)):
        problem = random_problem(nv, nl, nc, worlds, dtype, sides)
        *values, niter = kernels.solve(*problem, **OPTIONS)
        *expected, counts = solve_reference(*problem, **OPTIONS)
        for a, b in zip(values, expected, strict=True):
            assert_same(a, b)
        assert (niter - counts).abs().max() <= (0 if dtype == torch.float64 else 1)


@pytest.mark.parametrize("dtype", list(TOLERANCE), ids=str)
@pytest.mark.parametrize("worlds", [1, 8, 37])
@pytest.mark.parametrize("nv", [1, 2, 4, 13, 27])
def test_linear_solves_equal_the_reference(nv, worlds, dtype):
    normal = generator(nv, worlds)
    mass, force = random_mass(nv, worlds, normal).to(dtype), normal(nv, worlds).to(dtype)
    factor = linalg.chol_factor(mass)
    assert_same(kernels.chol_factor(mass), factor)
    assert_same(kernels.chol_solve(factor, force), linalg.chol_solve(factor, force))
    for nefc in (0, 1, 30):
        jac = normal(nefc, nv, worlds) * (normal(nefc, nv, 1) > 0)
        weight = normal(nefc, worlds).clamp(min=0)
        rows = (mass, jac.to(dtype), weight.to(dtype), force)
        assert_same(kernels.hessian_solve(*rows), linalg.hessian_solve(*rows))


@pytest.mark.parametrize("ls_iterations", [1, 2, 3, 4, 6, 10])
@pytest.mark.parametrize("iterations", [1, 3])
def test_equal_to_the_reference_when_cut_short(iterations, ls_iterations):
    """Rows 10,000 times as stiff: the line search has something to do, and rounding counts 10,000 times as much."""
    options = {**OPTIONS, "iterations": iterations, "ls_iterations": ls_iterations}
    problem = random_problem(9, 10, 30, 64, torch.float64)
    problem = (*problem[:7], 1e4 * problem[7], *problem[8:])
    *values, niter = kernels.solve(*problem, **options)
    *expected, counts = solve_reference(*problem, **options)
    for a, b in zip(values, expected, strict=True):
        assert_same(a, b, 1e-8)
    assert torch.equal(niter, counts)


def test_more_than_64_tile_columns():
    problem = random_problem(270, 9, 5, 2, torch.float64)
    *values, _ = kernels.solve(*problem, **OPTIONS)
    *expected, _ = solve_reference(*problem, **OPTIONS)
    for a, b in zip(values, expected, strict=True):
        assert_same(a, b)


def test_threads_give_the_same_numbers():
    problem = random_problem(9, 10, 20, 1000, torch.float64)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        one = kernels.solve(*problem, **OPTIONS)
        torch.set_num_threads(3)
        three = kernels.solve(*problem, **OPTIONS)
    finally:
        torch.set_num_threads(before)
    for a, b in zip(one, three, strict=True):
        assert torch.equal(a, b)


def test_callable_from_many_threads_at_once():
    problems = [random_problem(5 + i, 5, 15, 100, torch.float64) for i in range(4)]
    expected = [kernels.solve(*p, **OPTIONS)[0] for p in problems]
    results = [None] * 4

    def work(i):
        for _ in range(5):
            results[i] = kernels.solve(*problems[i], **OPTIONS)[0]

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert all(torch.equal(a, b) for a, b in zip(results, expected, strict=True))


# ---- build

FACTOR = """
import torch
from mujoco_torch._src.solver import chol_factor, kernels
eye = torch.eye(3).unsqueeze(-1)
assert torch.equal(chol_factor(eye), eye)
print(kernels.library() is not None)
"""


def test_processes_may_build_at_once(tmp_path):
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-W", "error", "-c", FACTOR]
    processes = [
        subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    outputs = [p.communicate(timeout=300) for p in processes]
    assert [out.strip() for out, _ in outputs] == ["True", "True"], outputs
    assert [f.suffix for f in (tmp_path / "mujoco_torch").iterdir()] == [".so"]


@pytest.fixture
def unbuilt(tmp_path, monkeypatch):
    """An empty cache, and a process that has not looked for its kernel yet."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    kernels._library.cache_clear()
    yield tmp_path
    kernels._library.cache_clear()


def test_built_once(unbuilt, monkeypatch):
    """A damaged file is replaced; a good one is used as it is."""
    command = [*kernels.find_compiler(), *kernels._FLAGS, *kernels._NATIVE[0]]
    (kernels.cache_dir() / f"kernels-{kernels._key(command)}.so").write_bytes(b"not a library")
    runs, run = [], subprocess.run
    monkeypatch.setattr(subprocess, "run", lambda *args, **kwargs: runs.append(args) or run(*args, **kwargs))
    for _ in range(2):
        kernels._library.cache_clear()
        assert kernels.library() is not None
    assert len(runs) == 1


def test_a_cache_that_cannot_be_written_is_replaced(unbuilt, monkeypatch):
    (unbuilt / "cache").write_text("a file where the folder should be")
    assert kernels.library() is not None


@pytest.mark.parametrize(
    ("variable", "value", "reason"),
    [
        ("CXX", "no-such-compiler -O1", "CXX=no-such-compiler -O1: not found"),
        ("PATH", "", "no C[+][+] compiler among"),
    ],
)
def test_one_warning_and_the_reference_without_a_compiler(unbuilt, monkeypatch, variable, value, reason):
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv(variable, value)
    eye = torch.eye(3).unsqueeze(-1)
    with pytest.warns(RuntimeWarning, match=reason) as caught:
        for _ in range(3):
            assert torch.equal(chol_factor(eye), eye)
    assert len(caught) == 1


def test_a_failing_compiler_is_reported(unbuilt, monkeypatch):
    compiler = unbuilt / "broken"
    compiler.write_text("#!/bin/sh\necho cannot compile today >&2\nexit 3\n")
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    with pytest.warns(RuntimeWarning, match="broken failed: cannot compile today"):
        assert kernels.library() is None
    assert not list(kernels.cache_dir().iterdir())
