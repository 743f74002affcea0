"""What this machine offers the library: versions, devices, compilers, settings."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

PACKAGES = ("mujoco-torch", "mjt-cli", "torch", "tensordict", "mujoco", "numpy", "triton")
SETTINGS = {
    "CXX": "the C++ compiler of generated CPU kernels",
    "OMP_NUM_THREADS": "threads of one operator on a CPU",
    "MKL_NUM_THREADS": "threads of linear algebra on a CPU",
    "ATEN_CPU_CAPABILITY": "limits the vector instructions of torch's own kernels",
    "CUDA_VISIBLE_DEVICES": "which GPUs are seen",
    "TORCHINDUCTOR_CACHE_DIR": "where compiled kernels are kept",
    "TRITON_CACHE_DIR": "where compiled GPU kernels are kept",
    "TORCHINDUCTOR_FORCE_DISABLE_CACHES": "compiles everything again",
    "TORCH_COMPILE_DISABLE": "turns torch.compile off",
    "TORCHDYNAMO_DISABLE": "turns torch.compile off",
    "TORCH_LOGS": "what the compiler tells",
    "NO_COLOR": "output without colours",
}
DISABLING = ("TORCH_COMPILE_DISABLE", "TORCHDYNAMO_DISABLE")


@dataclass(frozen=True)
class Capability:
    """One thing the library can use, or why it cannot."""

    name: str
    usable: bool
    detail: str


@dataclass(frozen=True)
class Environment:
    """Versions, machine, capabilities and settings."""

    versions: dict[str, str | None]
    machine: dict[str, str | int]
    devices: list[str]
    capabilities: list[Capability]
    settings: dict[str, str]


def environment() -> Environment:
    """Looks at this process and this machine; compiles nothing."""
    return Environment(
        versions=_versions(),
        machine=machine(),
        devices=["cpu", *_gpus()],
        capabilities=[_compiling(), _vector_kernels(), _gpu_kernels(), _cuda_graphs()],
        settings={name: os.environ[name] for name in SETTINGS if name in os.environ},
    )


def _versions() -> dict[str, str | None]:
    """Python's version and those of the packages; torch tells its build, too, which a wheel's metadata may not."""
    installed = {name: _version(name) for name in PACKAGES}
    return {"python": platform.python_version()} | installed | {"torch": str(torch.__version__)}


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def machine() -> dict[str, str | int]:
    """System, processor, cores that this process may use, threads of torch."""
    return {
        "system": f"{platform.system()} {platform.release()}",
        "architecture": platform.machine(),
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        "torch_threads": torch.get_num_threads(),
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or "unknown"
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or "unknown")


def _gpus() -> list[str]:
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return [f"cuda:{index} {torch.cuda.get_device_name(index)}" for index in range(count)]


def _compiling() -> Capability:
    turned_off = [name for name in DISABLING if os.environ.get(name, "0") not in ("", "0")]
    if turned_off:
        return Capability("torch.compile", False, f"turned off by {', '.join(turned_off)}")
    compiler = _compiler()
    if compiler is None:
        return Capability(
            "torch.compile", False, "no C++ compiler found: install g++ (macOS: clang++), or set CXX"
        )
    return Capability("torch.compile", True, compiler)


def _compiler() -> str | None:
    """Path and first line of the version of the C++ compiler that torch will use; None without one."""
    default = "clang++" if platform.system() == "Darwin" else "g++"
    path = shutil.which(os.environ.get("CXX") or default)
    if path is None:
        return None
    try:
        told = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return f"{path}: {told.stdout.splitlines()[0]}"


def _vector_kernels() -> Capability:
    level = torch.backends.cpu.get_cpu_capability()
    return Capability("vectorised CPU kernels", level not in ("DEFAULT", "NO AVX"), level)


def _gpu_kernels() -> Capability:
    if not torch.cuda.is_available():
        built = f"CUDA {torch.version.cuda}" if torch.version.cuda else "no CUDA"
        return Capability("GPU kernels", False, f"torch sees no GPU (built with {built})")
    triton = _version("triton")
    detail = f"Triton {triton}" if triton else "Triton is not installed"
    return Capability("GPU kernels", triton is not None, detail)


def _cuda_graphs() -> Capability:
    if not torch.cuda.is_available():
        return Capability("CUDA graphs", False, "they replay work of a GPU, and there is none")
    return Capability("CUDA graphs", True, "modes reduce-overhead and max-autotune")
