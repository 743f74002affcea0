"""Finds and loads models: a path, or the name of a model packaged with mujoco-torch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import mujoco

import mujoco_torch as mjt
from mjt_cli.errors import CliError, ExitCode, one_line


@dataclass(frozen=True)
class LoadedModel:
    """A model as MuJoCo compiled it, with the name to show and the file it came from."""

    name: str
    path: Path
    mjm: mujoco.MjModel


def load_model(text: str) -> LoadedModel:
    """Loads MJCF, URDF or a binary model (.mjb); raises `CliError` saying why not."""
    path = _find(text)
    try:
        mjm = _load(path)
    except (ValueError, mujoco.FatalError, OSError) as error:
        raise CliError(f"{path}: MuJoCo cannot load this model: {one_line(str(error), 300)}") from error
    return LoadedModel(path.stem, path, mjm)


def require_supported(model: LoadedModel) -> None:
    """Raises `CliError` (exit 3) naming every feature of the model that is not simulated exactly."""
    refused = mjt.check(model.mjm)
    if refused:
        reasons = "; ".join(f"{finding.feature}: {finding.message}" for finding in refused)
        message = f"{model.path}: not supported: {reasons} (details: mjt check {model.path})"
        raise CliError(message, ExitCode.NOT_SUPPORTED)


def _find(text: str) -> Path:
    try:
        path = Path(mjt.model_path(text))
    except OSError as error:
        raise CliError(str(error)) from error
    if not path.is_file():
        raise CliError(f"{text}: not a file")
    return path


def _load(path: Path) -> mujoco.MjModel:
    if path.suffix == ".mjb":
        return mujoco.MjModel.from_binary_path(str(path))
    return mujoco.MjModel.from_xml_path(str(path))
