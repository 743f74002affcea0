"""The operators' CPU kernels: built by the host's C++ compiler on first use, cached, and registered with torch.

The source, kernels.cpp and its headers, is plain C++17 without torch headers and compiles in a few seconds. The
compiler is the environment's CXX, else g++, clang++ or c++. The library is kept in $XDG_CACHE_HOME/mujoco_torch
(default ~/.cache/mujoco_torch) under a name made of its source, its flags and the processor. Without a compiler there
is one warning, and the operators use their torch reference.

The kernels are registered through libtorch's C interface, so that a compiled step calls them without Python: neither
the interpreter's lock nor 40 us of Python stand between two kernels.
"""

import ctypes
import functools
import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
import threading
import warnings
from collections.abc import Sequence
from pathlib import Path

import torch

_SOURCE = Path(__file__).with_name("kernels.cpp")
_PARTS = (_SOURCE, *sorted(_SOURCE.parent.glob("*.h")))
# Nobody looks at errno or floating-point traps; NaN and infinity keep their meaning.
_FLAGS = ("-std=c++17", "-O3", "-fno-math-errno", "-fno-trapping-math", "-shared", "-fPIC")
_NATIVE = (("-march=native",), ("-mcpu=native",), ())
_COMPILERS = ("g++", "clang++", "c++")
_lock = threading.Lock()


class BuildError(Exception):
    """The kernel cannot be built or loaded; the message says why."""


def library() -> ctypes.CDLL | None:
    """The loaded kernel, or None (after one warning) where it cannot be had."""
    with _lock:
        return _library()


@functools.cache
def _library() -> ctypes.CDLL | None:
    try:
        return _load(find_compiler())
    except BuildError as error:
        warnings.warn(
            f"mujoco_torch: no CPU kernels ({error}); operators run their slower torch reference. "
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


def processor_key() -> str:
    """A short name of the processor, for what is measured on it."""
    return hashlib.sha256(_processor().encode()).hexdigest()[:12]


def _processor() -> str:
    """What `-march=native` depends on: a cache folder may be shared by machines that differ."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return "\n".join(
        sorted({x for x in lines if x.startswith(("model name", "flags", "Features", "CPU part"))})
    )


# The functions of libtorch that torch_api.h wants, in its order.
_TORCH = (
    "aoti_torch_get_data_ptr",
    "aoti_torch_get_dim",
    "aoti_torch_get_sizes",
    "aoti_torch_get_strides",
    "aoti_torch_get_dtype",
    "aoti_torch_empty_strided",
    "aoti_torch_delete_tensor_object",
    "torch_get_num_threads",
    "torch_parallel_for",
)
_DTYPES = ("float32", "float64", "int32")


@functools.cache
def register(operators: tuple[str, ...]) -> bool:
    """Make the kernels torch's implementation of the named operators on a CPU; False where there is no kernel."""
    lib = library()
    if lib is None:
        return False
    torch_cpu = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / _torch_library()))
    handle = ctypes.c_void_p()
    _succeed(torch_cpu.aoti_torch_library_init_impl(b"mujoco_torch", b"CPU", b"", 0, ctypes.byref(handle)))
    addresses = [ctypes.cast(getattr(torch_cpu, name), ctypes.c_void_p).value or 0 for name in _TORCH]
    codes = [getattr(torch_cpu, f"aoti_torch_dtype_{name}")() for name in _DTYPES]
    lib.mjt_bind((ctypes.c_uint64 * (len(addresses) + len(codes)))(*addresses, *codes))
    for name in operators:
        kernel = ctypes.cast(getattr(lib, f"mjt_{name}"), ctypes.c_void_p)
        _succeed(torch_cpu.aoti_torch_library_impl(handle, name.encode(), kernel))
    return True


def _torch_library() -> str:
    return {"win32": "torch_cpu.dll", "darwin": "libtorch_cpu.dylib"}.get(sys.platform, "libtorch_cpu.so")


def _succeed(error: int) -> None:
    if error:
        raise RuntimeError("libtorch refused to register the kernels of mujoco_torch")


class _Pattern(ctypes.Structure):
    """`PatternSpec` of structure.h."""

    _fields_ = (
        ("rows", ctypes.c_int64),
        ("columns", ctypes.c_int64),
        ("start", ctypes.c_void_p),
        ("column", ctypes.c_void_p),
        ("value", ctypes.c_void_p),
    )


class _System(ctypes.Structure):
    """`SystemSpec` of structure.h."""

    sizes = (
        "nv",
        "nbody",
        "ngiven",
        "nJ",
        "contacts",
        "rows",
        "axes",
        "ne",
        "nf",
        "cone",
        "solver",
        "iterations",
        "ls_iterations",
        "noslip_iterations",
    )
    tolerances = ("tolerance", "ls_tolerance", "noslip_tolerance")
    arrays = (
        "M_rowadr",
        "M_rownnz",
        "M_colind",
        "dof_bodyid",
        "given_start",
        "given_dof",
        "contact_row",
        "side_start",
        "side_root",
        "column_start",
        "column_dof",
        "column_sign",
    )
    of_parts = ("part_key", "part_dof", "part_given", "part_contact")
    _fields_ = (
        *((name, ctypes.c_int64) for name in sizes),
        *((name, ctypes.c_double) for name in tolerances),
        *((name, ctypes.c_void_p) for name in arrays),
        ("parts", ctypes.c_int64),
        *((name, ctypes.c_void_p) for name in of_parts),
    )


def _integers(values: Sequence[int]) -> ctypes.Array:
    return (ctypes.c_int64 * max(1, len(values)))(*values)


def tell_pattern(
    key: int, columns: int, start: Sequence[int], column: Sequence[int], value: Sequence[float]
) -> None:
    """Tell the kernels a sparse matrix by rows; they copy it."""
    if (lib := library()) is None:
        return
    numbers = (ctypes.c_double * max(1, len(value)))(*value)
    arrays = [_integers(start), _integers(column), numbers]
    spec = _Pattern(len(start) - 1, columns, *(ctypes.addressof(x) for x in arrays))
    lib.mjt_pattern(ctypes.c_int64(key), ctypes.byref(spec))


def tell_system(key: int, system: object) -> None:
    """Tell the kernels the structure of a model, an object with the attributes that `_System` names; they copy it."""
    if (lib := library()) is None:
        return
    numbers = [getattr(system, name) for name in (*_System.sizes, *_System.tolerances)]
    arrays, parts = (
        [_integers(getattr(system, name)) for name in names] for names in (_System.arrays, _System.of_parts)
    )
    count = len(system.parts)
    addresses = ([ctypes.addressof(x) for x in some] for some in (arrays, parts))
    spec = _System(*numbers, *next(addresses), count, *next(addresses))
    lib.mjt_system(ctypes.c_int64(key), ctypes.byref(spec))
