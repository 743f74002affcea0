"""The solver's CPU kernel: built by the host's C++ compiler on first use, cached, and called through ctypes.

The source, kernels.cpp and its headers, is plain C++17 without torch headers and compiles in about three seconds. The
compiler is the environment's CXX, else g++, clang++ or c++. The library is kept in $XDG_CACHE_HOME/mujoco_torch
(default ~/.cache/mujoco_torch) under a name made of its source, its flags and the processor. Without a compiler there
is one warning, and the solver uses its torch reference.
"""

import ctypes
import functools
import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
import threading
import warnings
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

_SOURCE = Path(__file__).with_name("kernels.cpp")
_PARTS = (_SOURCE, *sorted(_SOURCE.parent.glob("*.h")))
# Nobody looks at errno or floating-point traps; NaN and infinity keep their meaning.
_FLAGS = ("-std=c++17", "-O3", "-fno-math-errno", "-fno-trapping-math", "-shared", "-fPIC", "-pthread")
_NATIVE = (("-march=native",), ("-mcpu=native",), ())
_COMPILERS = ("g++", "clang++", "c++")
_SUFFIX = {torch.float32: "f32", torch.float64: "f64"}
_lock = threading.Lock()


class BuildError(Exception):
    """The kernel cannot be built or loaded; the message says why."""


def usable(x: Tensor) -> bool:
    """True if tensors like `x` can go through the kernel: on a CPU, and the kernel is there. Builds it on first use."""
    return x.device.type == "cpu" and library() is not None


def library() -> ctypes.CDLL | None:
    """The loaded kernel, or None (after one warning) where it cannot be had."""
    with _lock:
        return _library()


@functools.cache
def _library() -> ctypes.CDLL | None:
    try:
        return _declare(_load(find_compiler()))
    except BuildError as error:
        warnings.warn(
            f"mujoco_torch: no CPU kernel ({error}); the solver runs its slower torch reference. "
            "Install g++ or clang++, or set CXX.",
            RuntimeWarning,
            stacklevel=2,
        )
        return None


def find_compiler() -> list[str]:
    """The C++ compiler's command line; raises `BuildError` where there is none."""
    if chosen := os.environ.get("CXX"):
        command = shlex.split(chosen)
        if shutil.which(command[0]) is None:
            raise BuildError(f"CXX={chosen}: not found")
        return command
    for name in _COMPILERS:
        if path := shutil.which(name):
            return [path]
    raise BuildError(f"no C++ compiler among {', '.join(_COMPILERS)}")


def cache_dir() -> Path | None:
    """The folder of built kernels, or None where the user's cache cannot be written."""
    try:
        folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "mujoco_torch"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except (OSError, RuntimeError):  # RuntimeError: there is no home
        return None
    return folder if os.access(folder, os.W_OK) else None


def _load(compiler: list[str]) -> ctypes.CDLL:
    if folder := cache_dir():
        return _load_from(folder, compiler)
    with tempfile.TemporaryDirectory(prefix="mujoco_torch-") as temporary:
        return _load_from(Path(temporary), compiler)  # a loaded library outlives its file


def _load_from(folder: Path, compiler: list[str]) -> ctypes.CDLL:
    error = ""
    for native in _NATIVE:
        command = [*compiler, *_FLAGS, *native]
        target = folder / f"kernels-{_key(command)}.so"
        try:
            return ctypes.CDLL(str(target))
        except OSError:  # not built yet, or damaged
            error = _build(command, target)
        if not error:
            try:
                return ctypes.CDLL(str(target))
            except OSError as problem:
                raise BuildError(str(problem)) from problem
    raise BuildError(f"{shlex.join(compiler)} failed: {error}")


def _build(command: list[str], target: Path) -> str:
    """Compile to `target` and return "", or what went wrong. Processes may do this at once: the last rename wins."""
    handle, partial = tempfile.mkstemp(suffix=".so", dir=target.parent)
    os.close(handle)
    try:
        result = subprocess.run([*command, str(_SOURCE), "-o", partial], capture_output=True, text=True)
        if result.returncode != 0:
            return (result.stderr.strip() or f"exit status {result.returncode}").splitlines()[-1]
        os.replace(partial, target)
        return ""
    except OSError as error:
        return str(error)
    finally:
        Path(partial).unlink(missing_ok=True)


def _key(command: list[str]) -> str:
    parts = (*(part.read_text() for part in _PARTS), *command, platform.machine(), _processor())
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:20]


def _processor() -> str:
    """What `-march=native` depends on: a cache folder may be shared by machines that differ."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return "\n".join(
        sorted({x for x in lines if x.startswith(("model name", "flags", "Features", "CPU part"))})
    )


class _Problem(ctypes.Structure):
    """`Problem` of newton.h."""

    _inputs = (
        "mass",
        "cdof",
        "wrench",
        "moved",
        "limit_axis",
        "limit_dof",
        "limit_size",
        "weight",
        "aref",
        "force",
    )
    _starts = ("qacc_smooth", "qacc_warmstart")
    _outputs = ("qacc", "efc_force", "qfrc_constraint", "niter")
    _sizes = ("nv", "limits", "contacts", "sides", "worlds", "fixed_axis", "iterations", "ls_iterations")
    _fields_ = (
        *((name, ctypes.c_void_p) for name in (*_inputs, *_starts, *_outputs)),
        *((name, ctypes.c_int64) for name in _sizes),
        ("tolerance", ctypes.c_double),
        ("ls_tolerance", ctypes.c_double),
    )


def _declare(lib: ctypes.CDLL) -> ctypes.CDLL:
    pointer, size, integer = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int
    signatures = {
        "chol_factor": [pointer] * 2 + [size] * 2 + [integer],
        "chol_solve": [pointer] * 3 + [size] * 2 + [integer],
        "hessian_solve": [pointer] * 5 + [size] * 3 + [integer],
        "solve": [ctypes.POINTER(_Problem), integer],
    }
    for name, arguments in signatures.items():
        for suffix in _SUFFIX.values():
            function = getattr(lib, f"mjt_{name}_{suffix}")
            function.argtypes, function.restype = arguments, ctypes.c_int
    return lib


def _run(name: str, dtype: torch.dtype, *arguments: object) -> None:
    """Run an entry point on as many threads as torch would use here; ctypes releases the interpreter meanwhile."""
    function = getattr(_library(), f"mjt_{name}_{_SUFFIX[dtype]}")
    if function(*arguments, torch.get_num_threads()):
        raise MemoryError(f"{name}: no memory for the solver's workspace")


def _call(name: str, tensors: list[Tensor], *numbers: int) -> None:
    _run(name, tensors[0].dtype, *[x.data_ptr() for x in tensors], *numbers)


def chol_factor(a: Tensor) -> Tensor:
    """`linalg.chol_factor` by the kernel."""
    out = torch.empty_like(a, memory_format=torch.contiguous_format)
    _call("chol_factor", [a.contiguous(), out], a.shape[0], a.shape[-1])
    return out


def chol_solve(factor: Tensor, b: Tensor) -> Tensor:
    """`linalg.chol_solve` by the kernel."""
    out = torch.empty_like(b, memory_format=torch.contiguous_format)
    _call("chol_solve", [factor.contiguous(), b.contiguous(), out], *b.shape)
    return out


def hessian_solve(mass: Tensor, jac: Tensor, weight: Tensor, b: Tensor) -> Tensor:
    """`linalg.hessian_solve` by the kernel."""
    out = torch.empty_like(b, memory_format=torch.contiguous_format)
    inputs = [x.contiguous() for x in (mass, jac, weight, b)]
    _call("hessian_solve", [*inputs, out], b.shape[0], jac.shape[0], b.shape[-1])
    return out


def solve(
    mass: Tensor,
    cdof: Tensor,
    wrench: Tensor,
    moved: Tensor,
    limit_axis: Tensor,
    limit_dof: Sequence[int],
    limit_size: Sequence[int],
    weight: Tensor,
    *rest: Tensor,
    tolerance: float,
    ls_tolerance: float,
    iterations: int,
    ls_iterations: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """`newton.solve` by the kernel. A limit_axis expanded over the worlds is read once."""
    nv, worlds, (sides, contacts) = mass.shape[0], mass.shape[-1], moved.shape[:2]
    limits = len(limit_dof)
    fixed_axis = limit_axis.stride(-1) == 0
    if fixed_axis:
        limit_axis = limit_axis[..., :1]
    integers = ctypes.c_int32 * limits
    qacc, efc_force, qfrc = (mass.new_empty(n, worlds) for n in (nv, limits + contacts, nv))
    niter = torch.empty(worlds, dtype=torch.int32)
    tensors = [x.contiguous() for x in (mass, cdof, wrench, moved, limit_axis)]
    lists = [integers(*limit_dof), integers(*limit_size)]
    others = [*(x.contiguous() for x in (weight, *rest)), qacc, efc_force, qfrc, niter]
    problem = _Problem(
        *(x.data_ptr() for x in tensors), *(ctypes.addressof(x) for x in lists), *(x.data_ptr() for x in others),
        nv, limits, contacts, sides, worlds, fixed_axis, iterations, ls_iterations, tolerance, ls_tolerance,
    )  # fmt: skip
    _run("solve", mass.dtype, ctypes.byref(problem))
    return qacc, efc_force, qfrc, niter
