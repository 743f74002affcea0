"""Scenes of the benchmarks: which model, and how its worlds start."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import tomllib
from pathlib import Path

import mujoco
import numpy as np

HERE = Path(__file__).resolve().parent
SCENES = HERE / "scenes"
MODELS = HERE.parent / "packages" / "mujoco-torch" / "src" / "mujoco_torch" / "models"
STATES = HERE / ".cache"

# Worlds are always made for this many, and a smaller batch takes the first of them.
NWORLD = 4096

# Metres between copies of a model.
COPY_DISTANCE = 2.0

Arrays = dict[str, np.ndarray]


@dataclasses.dataclass(frozen=True)
class Scene:
    """One model and the distribution of its starting states."""

    name: str
    model: str
    seed: int
    position_noise: float
    velocity_noise: float
    control_fraction: float
    settle: int
    keyframe: str | None = None
    copies: int = 1

    @property
    def path(self) -> Path:
        """The model's file."""
        return MODELS / self.model

    def load(self) -> mujoco.MjModel:
        """Compile the model with the MuJoCo of this environment: side by side, if it is to be there several times."""
        spec, *others = [mujoco.MjSpec.from_file(str(self.path)) for _ in range(self.copies)]
        for copy, other in enumerate(others, start=1):
            place = spec.worldbody.add_frame(pos=[0, COPY_DISTANCE * copy, 0])
            for body in other.worldbody.bodies:
                place.attach_body(body, f"{copy}-", "")
        return spec.compile()


def names() -> list[str]:
    """Names of all scenes."""
    return sorted(path.stem for path in SCENES.glob("*.toml"))


def scene(name: str) -> Scene:
    """The scene of that name."""
    return Scene(name=name, **tomllib.loads((SCENES / f"{name}.toml").read_text()))


def states(scene: Scene, nworld: int) -> Arrays:
    """Starting states, arrays `qpos`, `qvel`, `ctrl` of (nworld, ...); made once and stored."""
    if nworld > NWORLD:
        tiles = -(-nworld // NWORLD)
        return {key: np.tile(value, (tiles, 1))[:nworld] for key, value in states(scene, NWORLD).items()}
    path = STATES / f"{scene.name}-{_digest(scene)}.npz"
    if not path.exists():
        _store(path, _make_states(scene))
    with np.load(path) as stored:
        return {key: stored[key][:nworld] for key in stored.files}


def reference_step(mjm: mujoco.MjModel, start: Arrays) -> np.ndarray:
    """Velocities after one step of MuJoCo C from each state, (nworld, nv)."""
    mjd = mujoco.MjData(mjm)
    result = np.empty_like(start["qvel"])
    for world, row in enumerate(result):
        set_state(mjm, mjd, start, world)
        mujoco.mj_step(mjm, mjd)
        row[:] = mjd.qvel
    return result


def set_state(mjm: mujoco.MjModel, mjd: mujoco.MjData, start: Arrays, world: int) -> None:
    """Reset `mjd` to one of the starting states."""
    mujoco.mj_resetData(mjm, mjd)
    mjd.qpos[:], mjd.qvel[:], mjd.ctrl[:] = (start[key][world] for key in ("qpos", "qvel", "ctrl"))


def _digest(scene: Scene) -> str:
    """Changes with the scene and with the text of its model."""
    text = repr(dataclasses.astuple(scene)).encode() + scene.path.read_bytes()
    return hashlib.sha256(text).hexdigest()[:12]


def _store(path: Path, arrays: Arrays) -> None:
    """Write under another name first, so that a second process never reads half a file."""
    path.parent.mkdir(exist_ok=True)
    partial = path.with_name(f"{os.getpid()}-{path.name}")
    np.savez(partial, **arrays)
    partial.replace(path)


def _make_states(scene: Scene) -> Arrays:
    mjm = scene.load()
    mjd = mujoco.MjData(mjm)
    random = np.random.default_rng(scene.seed)
    worlds = [_make_state(scene, mjm, mjd, random) for _ in range(NWORLD)]
    return {key: np.array([world[key] for world in worlds]) for key in ("qpos", "qvel", "ctrl")}


def _make_state(scene: Scene, mjm: mujoco.MjModel, mjd: mujoco.MjData, random: np.random.Generator) -> Arrays:
    mujoco.mj_resetData(mjm, mjd)
    if scene.keyframe is not None:
        mujoco.mj_resetDataKeyframe(mjm, mjd, mjm.key(scene.keyframe).id)
    mujoco.mj_integratePos(mjm, mjd.qpos, scene.position_noise * random.standard_normal(mjm.nv), 1.0)
    mjd.qvel[:] = scene.velocity_noise * random.standard_normal(mjm.nv)
    low, high = _control_range(mjm)
    draw = scene.control_fraction * random.uniform(-1.0, 1.0, mjm.nu)
    mjd.ctrl[:] = (low + high) / 2 + draw * (high - low) / 2
    mujoco.mj_step(mjm, mjd, nstep=scene.settle)
    return {key: getattr(mjd, key).copy() for key in ("qpos", "qvel", "ctrl")}


def _control_range(mjm: mujoco.MjModel) -> tuple[np.ndarray, np.ndarray]:
    """Lower and upper bound of each control; -1 to 1 where it has none."""
    limited = mjm.actuator_ctrllimited.astype(bool)[:, None]
    return tuple(np.where(limited, mjm.actuator_ctrlrange, (-1.0, 1.0)).T)
