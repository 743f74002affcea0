"""How the CPU kernels are built, loaded and registered, and what runs where they cannot be had."""

import functools
import os
import re
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from mujoco_torch._src import kernels, ops

OPERATORS = (
    "combine",
    "poses",
    "com",
    "mass_matrix",
    "factor_m",
    "solve_m",
    "hessian_solve",
    "solve",
    "noslip",
    "solve_dense",
)

# What an operator of each kind gives, and a gradient through all of them; run here and in processes of their own.
EXERCISE = """
import os
import torch
from mujoco_torch._src import kernels
from mujoco_torch._src.pattern import Pattern
from mujoco_torch._src.solver import System, factor_m, mass_matrix, noslip, solve, solve_dense, solve_m

SELECT = Pattern([(0, 2, 1), (1, 0, 0.5), (1, 1, -2)], (3, 3))
SYSTEM = System(
    nv=3, nbody=3, M_rownnz=(1, 2, 1), M_colind=(0, 0, 1, 2), dof_bodyid=(1, 1, 2), given_kind=(2,), given_dofs=((1,),),
    contact_dim=(3,), contact_sides=(((1, ((0, 1), (1, 1))), (2, ((2, -1),))),), tolerance=1e-12, ls_tolerance=0.01,
    iterations=50, ls_iterations=50, noslip_iterations=3,
)

def results(worlds=9):
    numbers = torch.linspace(0, 100, 1000, dtype=torch.float64).sin()

    def some(*size):
        return numbers[: torch.Size(size).numel() * worlds].reshape(*size, worlds)

    force = some(3).clone().requires_grad_()
    crb = some(10, 3) * 0.1 + torch.tensor([1.0] * 3 + [0] * 6 + [1])[:, None, None]
    M = mass_matrix(SYSTEM, crb, some(6, 3), torch.full((3, 1), 5.0, dtype=torch.float64))
    factor = factor_m(SYSTEM, M)
    smooth = solve_m(SYSTEM, M, *factor, force)
    edge = torch.tensor([[1, 1, 1, 1], [0.5, -0.5, 0, 0], [0, 0, 0.5, -0.5]], dtype=torch.float64).unsqueeze(-1)
    contact = (some(3, 3), some(3, 1), torch.eye(3).reshape(9, 1, 1) + 0 * some(9, 1), edge, some(1) + 2)
    shared = [torch.full((n, 1), x, dtype=torch.float64) for n, x in ((4, 1.0), (5, 0.1), (0, 0.0))]
    scale, damping, loss = shared
    D, ref = some(2).abs() + 1, some(2) + 3
    rows = (D[:1], ref[:1], D[1:], ref[None, 1:], scale, scale.new_zeros(0, 1, 1), damping, loss, some(3))
    problem = (M, some(6, 3), *contact, *rows)
    qacc, qfrc, niter = solve(SYSTEM, *problem, force, smooth, 0.5 * smooth)
    without_slip = noslip(SYSTEM, *problem, smooth, qacc)
    moved = SELECT @ qacc + SELECT @ without_slip[0]
    (grad,) = torch.autograd.grad(moved.square().sum(), force)
    mapped = torch.vmap(lambda x: SELECT @ x)(torch.stack([smooth, qacc]))
    dense = solve_dense(some(3, 3) + 3 * torch.eye(3)[..., None], some(3))
    out = (M, *factor, smooth, qacc, qfrc, niter, *without_slip, moved, grad, mapped, dense)
    return [x.detach() for x in out]
"""

HERE: dict = {}


def results_here() -> list[torch.Tensor]:
    if not HERE:
        exec(EXERCISE, HERE)
    return HERE["results"]()


@pytest.fixture(scope="module", autouse=True)
def _built() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if kernels.library() is None:
            pytest.skip("no C++ compiler on this machine")


def assert_same_results(found: list[torch.Tensor], expected: list[torch.Tensor]) -> None:
    assert len(found) == len(expected)
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-11, atol=1e-11)


# ------------------------------------------------------------------------------------------- processes


def start(code: str, cache: Path, *flags: str, **environment: str) -> subprocess.Popen:
    """A process that runs the exercise and the code after it, with a cache and an environment of its own."""
    return subprocess.Popen(
        [sys.executable, *flags, "-c", EXERCISE + code],
        env={**os.environ, "XDG_CACHE_HOME": str(cache), "OMP_NUM_THREADS": "1", **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def output(process: subprocess.Popen) -> tuple[list[str], str]:
    """What it printed, and its messages; it must have succeeded."""
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    return out.splitlines(), err


@pytest.fixture(scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A compiler that does not optimise: the build is tested, not what it gives."""
    return script(tmp_path_factory.mktemp("compiler") / "quick", f'exec {real_compiler()} "$@" -O0\n')


def real_compiler() -> str:
    (path,) = kernels.find_compiler()[-1:]
    return path


def script(path: Path, body: str) -> str:
    path.write_text(f"#!/bin/sh\n{body}")
    path.chmod(0o755)
    return str(path)


def test_processes_may_build_at_once(tmp_path: Path, quick: str) -> None:
    """Neither warns, both have kernels that work, and one library stays behind."""
    code = f"torch.save(results(), f'{tmp_path}/{{os.getpid()}}'); print(kernels.library() is not None)"
    processes = [start(code, tmp_path / "cache", "-W", "error", CXX=quick) for _ in range(2)]
    assert [output(p)[0] for p in processes] == [["True"]] * 2
    for p in processes:
        assert_same_results(torch.load(tmp_path / str(p.pid)), results_here())
    assert [f.suffix for f in (tmp_path / "cache" / "mujoco_torch").iterdir()] == [".so"]


def test_the_reference_runs_without_a_compiler(tmp_path: Path) -> None:
    """The same numbers, by operators, gradient and vmap alike, and one warning however often they run."""
    code = (
        f"for _ in range(2): torch.save(results(), {str(tmp_path / 'results')!r})\nprint(kernels.library())"
    )
    process = start(code, tmp_path / "cache", "-W", "always", CXX="no-such-compiler -O1")
    out, err = output(process)
    assert out == ["None"]
    assert (
        err.count("RuntimeWarning: mujoco_torch: no CPU kernels (CXX=no-such-compiler -O1: not found)") == 1
    )
    assert not list((tmp_path / "cache").glob("**/*.so"))
    assert_same_results(torch.load(tmp_path / "results"), results_here())


# ------------------------------------------------------------------------------------------- the build, in this process


@pytest.fixture
def unbuilt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quick: str) -> Iterator[Path]:
    """An empty cache, and a loader that has not looked for its kernels; the loaded ones stay registered."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("CXX", quick)
    monkeypatch.setattr(kernels, "_library", functools.cache(kernels._library.__wrapped__))
    return tmp_path


@pytest.fixture
def compilations(monkeypatch: pytest.MonkeyPatch) -> list:
    runs, run = [], subprocess.run
    monkeypatch.setattr(
        subprocess, "run", lambda *args, **kwargs: runs.append(args[0]) or run(*args, **kwargs)
    )
    return runs


def target(native: tuple[str, ...] = kernels._NATIVE[0]) -> Path:
    folder = kernels.cache_dir()
    assert folder is not None
    return folder / f"kernels-{kernels._key([*kernels.find_compiler(), *kernels._FLAGS, *native])}.so"


def test_built_once(unbuilt: Path, compilations: list) -> None:
    """A damaged file is replaced; a good one is used as it is."""
    target().write_bytes(b"not a library")
    for _ in range(2):
        kernels._library.cache_clear()
        assert kernels.library() is not None
    assert len(compilations) == 1
    assert list((unbuilt / "cache" / "mujoco_torch").iterdir()) == [target()]


def test_a_cache_that_cannot_be_written_is_replaced(
    unbuilt: Path, compilations: list, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a folder that is gone after loading; and a compiler that does not know -march is asked without it."""
    plain = (
        f'case "$*" in *native*) echo unknown option >&2; exit 1;; esac\nexec {real_compiler()} "$@" -O0\n'
    )
    monkeypatch.setenv("CXX", script(unbuilt / "plain", plain))
    (unbuilt / "cache").write_text("a file where the folder should be")
    assert kernels.cache_dir() is None
    library = kernels.library()
    assert library is not None
    assert all(hasattr(library, f"mjt_{name}") for name in OPERATORS)
    assert [[x for x in command if "native" in x] for command in compilations] == [
        ["-march=native"], ["-mcpu=native"], [],
    ]  # fmt: skip
    assert not Path(compilations[-1][-1]).parent.exists()


@pytest.mark.parametrize(
    ("variable", "value", "reason"),
    [
        ("CXX", "no-such-compiler -O1", "CXX=no-such-compiler -O1: not found"),
        ("PATH", "", "no C[+][+] compiler among g[+][+], clang[+][+], c[+][+]"),
    ],
)
def test_one_warning_without_a_compiler(
    unbuilt: Path, monkeypatch: pytest.MonkeyPatch, variable: str, value: str, reason: str
) -> None:
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv(variable, value)
    with pytest.warns(RuntimeWarning, match=reason) as caught:
        for _ in range(3):
            assert kernels.library() is None
        kernels.tell_pattern(1, 1, [0, 0], [], [])
        kernels.tell_system(1, object())
        assert not kernels.register.__wrapped__(OPERATORS)
    assert len(caught) == 1


def test_a_failing_compiler_is_reported(unbuilt: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", script(unbuilt / "broken", "echo cannot compile today >&2\nexit 3\n"))
    with pytest.warns(RuntimeWarning, match="broken failed: cannot compile today"):
        assert kernels.library() is None
    folder = kernels.cache_dir()
    assert folder is not None
    assert not list(folder.iterdir())


def test_a_compiler_that_says_nothing_is_reported(unbuilt: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", script(unbuilt / "silent", "exit 3\n"))
    with pytest.warns(RuntimeWarning, match="silent failed: exit status 3"):
        assert kernels.library() is None


def test_a_compiler_that_builds_no_library_is_reported(
    unbuilt: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It says that all is well, and leaves an empty file."""
    monkeypatch.setenv("CXX", script(unbuilt / "empty", "exit 0\n"))
    with pytest.warns(RuntimeWarning, match="file too short"):
        assert kernels.library() is None


def test_the_name_of_a_library_says_what_it_is_made_of(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Compiler, flags, processor and every source file; a cache may be shared, and outlives an update."""
    names = {kernels._key(["g++"]), kernels._key(["clang++"]), kernels._key(["g++", "-O1"])}
    monkeypatch.setattr(kernels, "_processor", lambda: "another")
    names.add(kernels._key(["g++"]))
    assert {path.name for path in kernels._PARTS} == {
        path.name for path in Path(kernels.__file__).parent.iterdir() if path.suffix in (".cpp", ".h")
    }
    for part in kernels._PARTS:
        changed = tmp_path / part.name
        changed.write_text(part.read_text() + "\n")
        monkeypatch.setattr(kernels, "_PARTS", tuple(changed if p == part else p for p in kernels._PARTS))
        names.add(kernels._key(["g++"]))
    assert len(names) == 4 + len(kernels._PARTS)


def test_cache_dir(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "one"))
    folder = kernels.cache_dir()
    assert folder == tmp_path / "one" / "mujoco_torch"
    assert folder.stat().st_mode & 0o077 == 0
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "two"))
    assert kernels.cache_dir() == tmp_path / "two" / ".cache" / "mujoco_torch"
    monkeypatch.setattr(Path, "home", lambda: (_ for _ in ()).throw(RuntimeError("no home")))
    assert kernels.cache_dir() is None


# ------------------------------------------------------------------------------------------- registration


def test_every_operator_is_a_kernel() -> None:
    ops.prepare()
    assert set(OPERATORS) == set(ops._references)
    for name in OPERATORS:
        assert torch._C._dispatch_has_kernel_for_dispatch_key(f"mujoco_torch::{name}", "CPU")
        assert hasattr(kernels.library(), f"mjt_{name}")


def test_no_python_between_the_dispatcher_and_a_kernel() -> None:
    """The reference would run Python: then the profiler sees operators of torch inside."""
    results_here()
    x = torch.ones(3, 9, dtype=torch.float64)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        HERE["SELECT"] @ x
    names = [event.key for event in profile.key_averages()]
    assert "mujoco_torch::combine" in names
    assert not {"aten::matmul", "aten::bmm", "aten::mm", "aten::contiguous"} & set(names)


def fields_of(source: str, struct: str) -> list[str]:
    """Names of the members of a struct in C, in order."""
    text = (Path(kernels.__file__).parent / source).read_text()
    (body,) = re.findall(rf"struct {struct} \{{(.*?)\}};", re.sub(r"//.*", "", text), re.DOTALL)
    names = []
    for member in body.split(";"):
        function = re.findall(r"^\s*\w+ \(\*(\w+)\)", member)
        names += function or re.findall(r"\w+", re.sub(r"^\s*(const )?\w+", "", member))
    return names


@pytest.mark.parametrize(
    ("names", "source", "struct"),
    [
        (lambda: [name for name, _ in kernels._Pattern._fields_], "structure.h", "PatternSpec"),
        (lambda: [name for name, _ in kernels._System._fields_], "structure.h", "SystemSpec"),
        (lambda: [*_without_prefix(kernels._TORCH), *kernels._DTYPES], "torch_api.h", "Torch"),
    ],
    ids=["pattern", "system", "torch"],
)  # fmt: skip
def test_python_and_c_agree_on_the_order_of_fields(
    names: Callable[[], list[str]], source: str, struct: str
) -> None:
    assert names() == fields_of(source, struct)


def _without_prefix(names: tuple[str, ...]) -> list[str]:
    return [re.sub("^(aoti_)?torch_|_object$", "", name) for name in names]
