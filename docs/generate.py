"""Writes the pages that are made from the code: supported.md and zoo.md. Run it after a change of either source."""

import importlib.util
from pathlib import Path

from mujoco_torch._src.check import supported_table

HERE = Path(__file__).parent
ZOO_TEST = HERE.parent / "packages" / "mujoco-torch" / "tests" / "test_zoo.py"

SUPPORTED = """# What is simulated

Made from the rules of `mujoco_torch.check` by `docs/generate.py`. What is not in the first table is refused by
name, in `check`, in `put_model` and in `mjt check`.

"""

ZOO = """# Models of other packages

Every model file of gymnasium, brax, dm_control's suite and mujoco-mjx, as `test_zoo.py` sees it: a supported one is
compared with MuJoCo C over its `forward` and a few steps, a refused one is refused with the reasons listed. Made by
`docs/generate.py`.

"""


def supported_page() -> str:
    """The page of supported and refused features."""
    return SUPPORTED + supported_table().strip() + "\n"


def zoo_page() -> str:
    """The page of all models of the installed packages."""
    spec = importlib.util.spec_from_file_location("test_zoo", ZOO_TEST)
    zoo = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(zoo)
    return ZOO + zoo.table() + "\n"


if __name__ == "__main__":
    (HERE / "supported.md").write_text(supported_page())
    (HERE / "zoo.md").write_text(zoo_page())
