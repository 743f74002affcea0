"""Writes what is made from the code: supported.md, features.md, zoo.md and the verdicts that test_zoo.py expects.

Run it after a change of what is supported, with the packages of the zoo installed.
"""

import collections
import importlib.util
from pathlib import Path
from types import ModuleType

from mujoco_torch._src.check import supported_table

HERE = Path(__file__).parent
TESTS = HERE.parent / "packages" / "mujoco-torch" / "tests"
VERDICTS = TESTS / "test_zoo.toml"

SUPPORTED = """# What is simulated

Made from the rules of `mujoco_torch.check` by `docs/generate.py`. What is not in the first table is refused by
name, in `check`, in `put_model` and in `mjt check`.

"""

FEATURES = """# Features beside MuJoCo C

One small model for each feature, as `test_features.py` compares it: `forward`, then the state after a step, of four
different worlds. The error in float64 is the largest of all fields, relative to the scale of the field, which is named
beside it; the result of the constraint solver is compared to 1e-6, geometry of contacts to 1e-8, all else to 1e-10. The
error in float32 is a share of the tolerance that MuJoCo's own parity recipe allows ([parity](parity.md)). Made by
`docs/generate.py`.

"""

ZOO = """# Models of other packages

Every model file of gymnasium, brax, dm_control, mujoco-mjx and mujoco-warp, as `test_zoo.py` sees it: a supported one
is compared with MuJoCo C over its `forward` and a few steps, a refused one is refused with the features listed, and a
file that is not a whole model, or not one of MuJoCo 4.0, is not compiled by MuJoCo. `nox -s zoo` compares all of them.
Made by `docs/generate.py`.

"""


def supported_page() -> str:
    """The page of supported and refused features."""
    return SUPPORTED + supported_table().strip() + "\n"


def features_page() -> str:
    """The parity table."""
    return FEATURES + module("test_features").table() + "\n"


def zoo_page(verdicts: dict[str, dict[str, str]]) -> str:
    """Counts, the reasons of refusals by how often they occur, and the table of all models."""
    lines = ["| package | files | supported | refused | not compiled |", "|---|---|---|---|---|"]
    reasons: collections.Counter[str] = collections.Counter()
    for package, found in verdicts.items():
        supported = sum(verdict == "supported" for verdict in found.values())
        broken = sum(verdict == "not compiled" for verdict in found.values())
        lines.append(
            f"| {package} | {len(found)} | {supported} | {len(found) - supported - broken} | {broken} |"
        )
        refused = [verdict for verdict in found.values() if verdict not in ("supported", "not compiled")]
        reasons.update(reason for verdict in refused for reason in verdict.split(", "))
    lines += ["", "| refused for | models |", "|---|---|"]
    lines += [f"| {reason} | {count} |" for reason, count in reasons.most_common()]
    lines += ["", "| package | model | verdict |", "|---|---|---|"]
    for package, found in verdicts.items():
        lines += [f"| {package} | {name} | {verdict} |" for name, verdict in found.items()]
    return ZOO + "\n".join(lines) + "\n"


def verdicts_toml(verdicts: dict[str, dict[str, str]]) -> str:
    """The verdicts as test_zoo.py reads them."""
    tables = [
        "\n".join([f"[{package}]", *(f'"{name}" = "{verdict}"' for name, verdict in found.items())])
        for package, found in verdicts.items()
    ]
    return (
        "# The verdict on every model file of some packages. Made by docs/generate.py.\n\n"
        + "\n\n".join(tables)
        + "\n"
    )


def find_verdicts() -> dict[str, dict[str, str]]:
    """The verdicts on all models of the installed packages, as test_zoo.py finds them."""
    VERDICTS.touch()
    return module("test_zoo").verdicts()


def module(name: str) -> ModuleType:
    """A test, as a module."""
    spec = importlib.util.spec_from_file_location(name, TESTS / f"{name}.py")
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


if __name__ == "__main__":
    found = find_verdicts()
    VERDICTS.write_text(verdicts_toml(found))
    (HERE / "supported.md").write_text(supported_page())
    (HERE / "features.md").write_text(features_page())
    (HERE / "zoo.md").write_text(zoo_page(found))
