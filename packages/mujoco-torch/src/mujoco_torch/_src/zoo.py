"""The models that come with the package, found by name."""

from __future__ import annotations

import difflib
import os
from pathlib import Path

MODELS: tuple[str, ...] = ("humanoid", "ant", "halfcheetah", "hopper", "walker2d")

_FOLDER = Path(__file__).resolve().parent.parent / "models"


class ModelNotFoundError(FileNotFoundError):
    """A name that is neither an existing file nor a packaged model."""


def model_path(name: str | os.PathLike[str]) -> Path:
    """Path of a model: an existing file as it is, else a packaged model ("humanoid" or "humanoid.xml").

    Raises ModelNotFoundError, naming the packaged models and the nearest one.
    """
    path = Path(name)
    if path.is_file():
        return path
    stem = os.fspath(name).removesuffix(".xml")
    if stem in MODELS:
        return _FOLDER / f"{stem}.xml"
    raise ModelNotFoundError(_not_found_message(path))


def _not_found_message(path: Path) -> str:
    what = "is a directory, not a model file" if path.is_dir() else "is neither a file nor a packaged model"
    near = difflib.get_close_matches(path.stem.lower(), MODELS, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    return f"{str(path)!r} {what}; packaged models: {', '.join(MODELS)}{hint}"
