"""The closed choices of `mjt diagnose` and `mjt bench`, and the checks of the open ones."""

from __future__ import annotations

from enum import StrEnum

import torch

from mjt_cli.errors import CliError
from mjt_cli.report import FINDING_KINDS


class Mode(StrEnum):
    """Modes of `torch.compile`."""

    DEFAULT = "default"
    REDUCE_OVERHEAD = "reduce-overhead"
    MAX_AUTOTUNE = "max-autotune"
    MAX_AUTOTUNE_NO_CUDAGRAPHS = "max-autotune-no-cudagraphs"


class DType(StrEnum):
    """Floating point types the library simulates in."""

    FLOAT64 = "float64"
    FLOAT32 = "float32"


DEFAULT_FAIL_ON = "graph-break,recompile,parity,nan,compiled-mismatch"


def parse_device(text: str) -> str:
    """The device as torch names it; raises `CliError` where it does not exist or cannot be used here."""
    try:
        device = torch.device(text)
    except RuntimeError:
        raise CliError(f"--device {text}: unknown device; use cpu, cuda or cuda:N") from None
    if device.type == "cpu":
        return "cpu"
    if device.type != "cuda":
        raise CliError(f"--device {text}: not a device of this library; use cpu, cuda or cuda:N")
    count = torch.cuda.device_count()
    if not torch.cuda.is_available() or (device.index or 0) >= count:
        raise CliError(f"--device {text}: not available; torch {torch.__version__} sees {count} CUDA devices")
    return str(device)


def parse_fail_on(text: str) -> frozenset[str]:
    """Kinds of findings out of a comma list; `none` or an empty list means that no finding fails the run."""
    kinds = {kind.strip() for kind in text.split(",") if kind.strip()} - {"none"}
    unknown = sorted(kinds - set(FINDING_KINDS))
    if unknown:
        raise CliError(
            f"--fail-on {', '.join(unknown)}: unknown kind; choose from {', '.join(FINDING_KINDS)}"
        )
    return frozenset(kinds)
