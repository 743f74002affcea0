"""Every model file of the packages people take models from: refused with reasons, or equal to MuJoCo C.

Run as a script it prints the table of all of them in Markdown.
"""

import importlib.util
import pathlib

import mujoco
import pytest
import torch

import mujoco_torch as mjt
from mujoco_torch import testing

NWORLD = 4
NSTEP = 3

#: Where the packages keep their models: importable name of the package, folder in it. Nothing is imported from it.
PACKAGES = {
    "gymnasium": ("gymnasium", "envs/mujoco/assets"),
    "brax": ("brax", "."),
    "dm_control": ("dm_control", "suite"),
    "mujoco-mjx": ("mujoco.mjx", "test_data"),
}

#: Written out, so that a model lost, or won, is noticed.
SUPPORTED = {
    "gymnasium": [
        "ant.xml",
        "half_cheetah.xml",
        "hopper.xml",
        "inverted_double_pendulum.xml",
        "inverted_pendulum.xml",
        "reacher.xml",
        "walker2d.xml",
        "walker2d_v5.xml",
    ],
    "brax": [
        "envs/assets/ant.xml",
        "envs/assets/half_cheetah.xml",
        "envs/assets/hopper.xml",
        "envs/assets/humanoid.xml",
        "envs/assets/humanoidstandup.xml",
        "envs/assets/inverted_double_pendulum.xml",
        "envs/assets/inverted_pendulum.xml",
        "envs/assets/pusher.xml",
        "envs/assets/reacher.xml",
        "envs/assets/walker2d.xml",
        "test_data/capsule.xml",
        "test_data/double_pendulum.xml",
        "test_data/double_prismatic.xml",
        "test_data/nonzero_joint_ref.xml",
        "test_data/prismaversal_2dof_joint.xml",
        "test_data/prismaversal_3dof_joint.xml",
        "test_data/single_pendulum.xml",
        "test_data/single_pendulum_motor.xml",
        "test_data/single_pendulum_position.xml",
        "test_data/single_pendulum_position_frclimit.xml",
        "test_data/single_pendulum_velocity.xml",
        "test_data/single_prismatic.xml",
        "test_data/single_spherical_pendulum.xml",
        "test_data/single_spherical_pendulum_motor.xml",
        "test_data/single_spherical_pendulum_position.xml",
        "test_data/single_universal_pendulum.xml",
        "test_data/solver_params_v2.xml",
        "test_data/triple_pendulum.xml",
        "test_data/triple_pendulum_motor.xml",
        "test_data/triple_prismatic.xml",
        "test_data/world_fromto.xml",
        "test_data/world_self_collision.xml",
    ],
    "dm_control": [
        "acrobot.xml",
        "cartpole.xml",
        "common/materials.xml",
        "common/skybox.xml",
        "common/visual.xml",
        "lqr.xml",
        "pendulum.xml",
        "reacher.xml",
    ],
    "mujoco-mjx": [
        "humanoid/01_humanoids.xml",
        "humanoid/humanoid.xml",
        "ray.xml",
        "tendon/no_tendon.xml",
    ],
}

#: Models that MuJoCo 4.0 itself refuses to compile.
NOT_COMPILED = {
    "brax": ["test_data/world_body_transform.xml"],
    "mujoco-mjx": ["actuator/arm26.xml", "constraints.xml"],
}


def folder(package: str) -> pathlib.Path | None:
    """The folder with the models of a package, None where it is not installed."""
    module, models = PACKAGES[package]
    spec = importlib.util.find_spec(module)
    if spec is None or not spec.submodule_search_locations:
        return None
    return pathlib.Path(spec.submodule_search_locations[0]) / models


def names(package: str) -> list[str]:
    """Model files of an installed package, by their path under its folder."""
    root = folder(package)
    return sorted(str(path.relative_to(root)) for path in root.rglob("*.xml")) if root else []


def load(package: str, name: str) -> mujoco.MjModel:
    return mujoco.MjModel.from_xml_path(str(folder(package) / name))


ALL = [(package, name) for package in PACKAGES for name in names(package)]
TESTED = [(package, name) for package, name in ALL if name in SUPPORTED[package]]


@pytest.fixture(autouse=True)
def _log_elsewhere(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """MuJoCo appends its warnings to a file in the working directory."""
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("package", PACKAGES)
def test_package_has_the_models_listed(package: str) -> None:
    if folder(package) is None:
        pytest.skip(f"{package} is not installed")
    listed = {*SUPPORTED[package], *NOT_COMPILED.get(package, [])}
    assert listed <= set(names(package))


@pytest.mark.parametrize(("package", "name"), ALL, ids=[":".join(entry) for entry in ALL])
def test_model(package: str, name: str) -> None:
    if name in NOT_COMPILED.get(package, []):
        with pytest.raises(ValueError, match="Error"):
            load(package, name)
        return
    mjm = load(package, name)
    findings = mjt.check(mjm)
    if name not in SUPPORTED[package]:
        assert findings
        with pytest.raises(mjt.UnsupportedModelError, match=findings[0].feature):
            mjt.put_model(mjm)
        return
    assert not findings
    states = testing.perturbed_states(mjm, NWORLD, seed=0, settle=200)
    testing.stage_parity(mjm, "forward", states).raise_for_failures()
    steps_parity(testing.converged(mjm), states).raise_for_failures()


@pytest.mark.parametrize(("package", "name"), TESTED, ids=[":".join(entry) for entry in TESTED])
def test_steps_with_the_options_of_the_model(package: str, name: str) -> None:
    """The iterations, tolerances and warm start of the file: ours stops where C stops."""
    mjm = load(package, name)
    steps_parity(mjm, testing.perturbed_states(mjm, NWORLD, seed=1, settle=200)).raise_for_failures()


def steps_parity(mjm: mujoco.MjModel, states: list[mujoco.MjData]) -> testing.Report:
    """Compares the state after a few steps.

    With weak controls: at full strength some of the models explode, and C resets a state that does.
    """
    mjds = [testing.copy_state(mjm, state) for state in states]
    for mjd in mjds:
        mjd.ctrl *= 0.01
    m = mjt.put_model(mjm, dtype=torch.float64)
    d = mjt.put_data(m, mjds)
    for _ in range(NSTEP):
        d = mjt.step(m, d)
        for mjd in mjds:
            mujoco.mj_step(mjm, mjd)
    assert not any(warning.number for mjd in mjds for warning in mjd.warning)
    return testing.compare(m, d, mjds, testing.STATE_FIELDS, testing.SOLVED)


def table() -> str:
    """All models of the installed packages, in Markdown: supported, or the features refused."""
    lines = ["| package | model | nq | nv | nu | verdict |", "|---|---|---|---|---|---|"]
    for package, name in ALL:
        try:
            mjm = load(package, name)
        except ValueError as error:
            lines.append(
                f"| {package} | {name} | | | | MuJoCo does not compile it: {str(error).splitlines()[0]} |"
            )
            continue
        features = dict.fromkeys(finding.feature for finding in mjt.check(mjm))
        verdict = "refused: " + ", ".join(features) if features else "supported"
        lines.append(f"| {package} | {name} | {mjm.nq} | {mjm.nv} | {mjm.nu} | {verdict} |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(table())
