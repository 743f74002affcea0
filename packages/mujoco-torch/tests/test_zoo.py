"""Every model file of the packages people take models from: refused with reasons, or equal to MuJoCo C.

`nox -s zoo` compares the large ones, too, and writes docs/zoo.md.
"""

import importlib.util
import tomllib
from pathlib import Path

import mujoco
import pytest
import torch

import mujoco_torch as mjt
from mujoco_torch import testing
from mujoco_torch._src.collision.pairs import geom_pairs

NWORLD = 4
NSTEP = 3

#: Where the packages keep their models: importable name of the package, folder in it. Nothing is imported from it.
PACKAGES = {
    "gymnasium": ("gymnasium", "envs/mujoco/assets"),
    "brax": ("brax", "."),
    "dm_control": ("dm_control", "."),
    "mujoco-mjx": ("mujoco.mjx", "test_data"),
    "mujoco-warp": ("mujoco_warp", "test_data"),
}

#: The verdict on every model, written out so that a model lost, or won, is noticed: "supported", the features
#: refused, or "not compiled" where MuJoCo 4.0 itself refuses the file. Made by docs/generate.py.
VERDICTS: dict[str, dict[str, str]] = tomllib.loads(Path(__file__).with_suffix(".toml").read_text())
SUPPORTED, NOT_COMPILED = "supported", "not compiled"

#: Models whose result is rounding in C, too, and why; they are not compared.
ILL_POSED = {
    (
        "mujoco-mjx",
        "actuator/general_dyntype.xml",
    ): "four slides in three dimensions: the inertia is singular",
    (
        "mujoco-warp",
        "actuation/adhesion.xml",
    ): "a contact below the axis of a hinge that nothing moves, of 1e17 N",
}

#: Models with more degrees of freedom or pairs of geoms are compared where --all-models asks for it.
SMALL_NV, SMALL_PAIRS = 30, 400


def folder(package: str) -> Path | None:
    """The folder with the models of a package, None where it is not installed."""
    module, models = PACKAGES[package]
    spec = importlib.util.find_spec(module)
    if spec is None or not spec.submodule_search_locations:
        return None
    return Path(spec.submodule_search_locations[0]) / models


def names(package: str) -> list[str]:
    """Model files of an installed package, by their path under its folder."""
    root = folder(package)
    return sorted(str(path.relative_to(root)) for path in root.rglob("*.xml")) if root else []


def load(package: str, name: str) -> mujoco.MjModel:
    return mujoco.MjModel.from_xml_path(str(folder(package) / name))


ALL = [(package, name) for package in PACKAGES for name in names(package)]
TESTED = [entry for entry in ALL if VERDICTS.get(entry[0], {}).get(entry[1]) == SUPPORTED]


def verdict(package: str, name: str) -> str:
    """What happens to a model: supported, not compiled, or the features refused."""
    try:
        mjm = load(package, name)
    except ValueError:
        return NOT_COMPILED
    return ", ".join(dict.fromkeys(finding.feature for finding in mjt.check(mjm))) or SUPPORTED


def verdicts() -> dict[str, dict[str, str]]:
    """The verdicts on all models of the installed packages."""
    return {package: {name: verdict(package, name) for name in names(package)} for package in PACKAGES}


@pytest.fixture(autouse=True)
def _log_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """MuJoCo appends its warnings to a file in the working directory."""
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("package", PACKAGES)
def test_verdicts(package: str) -> None:
    if folder(package) is None:
        pytest.skip(f"{package} is not installed")
    found = {name: verdict(package, name) for name in names(package)}
    assert found == VERDICTS[package]


@pytest.mark.parametrize("package", PACKAGES)
def test_refused_models_are_refused_by_name(package: str) -> None:
    """`put_model` names the features that the verdict lists."""
    refused = [name for name, found in VERDICTS[package].items() if found not in (SUPPORTED, NOT_COMPILED)]
    for name in [name for name in refused if (package, name) in ALL][:5]:
        with pytest.raises(mjt.UnsupportedModelError, match=VERDICTS[package][name].partition(",")[0]):
            mjt.put_model(load(package, name))


def load_supported(package: str, name: str, request: pytest.FixtureRequest) -> mujoco.MjModel:
    """A supported model, unless it is a large one and only small ones are asked for."""
    if (package, name) in ILL_POSED:
        pytest.skip(ILL_POSED[package, name])
    mjm = load(package, name)
    large = mjm.nv > SMALL_NV or len(geom_pairs(mjm)) > SMALL_PAIRS
    if large and not request.config.getoption("--all-models"):
        pytest.skip(f"{mjm.nv} dofs: large models are compared by nox -s zoo")
    return mjm


@pytest.mark.parametrize(("package", "name"), TESTED, ids=[":".join(entry) for entry in TESTED])
def test_model(package: str, name: str, request: pytest.FixtureRequest) -> None:
    """`forward` and a few steps, the solver run until it has converged."""
    mjm = load_supported(package, name, request)
    states = testing.perturbed_states(mjm, NWORLD, seed=0, settle=200)
    testing.stage_parity(mjm, "forward", states).raise_for_failures()
    steps_parity(testing.converged(mjm), states).raise_for_failures()


@pytest.mark.parametrize(("package", "name"), TESTED, ids=[":".join(entry) for entry in TESTED])
def test_steps_with_the_options_of_the_model(package: str, name: str, request: pytest.FixtureRequest) -> None:
    """The iterations, tolerances and warm start of the file: ours stops where C stops."""
    mjm = load_supported(package, name, request)
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
