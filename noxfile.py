"""Sessions that check the repository; `nox` alone runs the tests."""

from pathlib import Path

import nox

nox.needs_version = ">=2025.2"
nox.options.default_venv_backend = "venv"
nox.options.sessions = ["tests"]

PINNED = ("-c", "constraints.txt")
MJX_PINNED = ("-c", "benchmarks/constraints-mjx.txt")
LIBRARY = "packages/mujoco-torch"
COMMAND_LINE = "packages/mjt-cli"

# Read for their model files only, never imported: what they require (JAX among it) is left out.
MODEL_ZOO = ("brax", "dm_control", "gymnasium", "mujoco-mjx", "mujoco-warp")

# Two test processes on two cores: each gets one thread, or they would wait for each other.
ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}

# Code compiled before a patch must not be found after it.
NO_COMPILED_CODE = {"TORCHINDUCTOR_FX_GRAPH_CACHE": "0", "TORCHINDUCTOR_AUTOGRAD_CACHE": "0"}

# Another torch comes with versions of these that suit it.
TORCH_PINS = ("setuptools", "triton")

# The lower bounds of packages/mujoco-torch/pyproject.toml.
OLDEST = ("torch==2.11.0", "tensordict==0.14.0")


def install_packages(session: nox.Session, extra: str = "") -> None:
    """Install both distributions from the work tree, as a user would, with the pinned requirements."""
    session.install(*PINNED, f"./{LIBRARY}{extra}", f"./{COMMAND_LINE}{extra}")


@nox.session
def tests(session: nox.Session) -> None:
    """Run the tests of both packages on two workers; arguments go to pytest."""
    install_for_tests(session)
    run_tests(session, *(session.posargs or ["--durations=15"]))


@nox.session
def oldest(session: nox.Session) -> None:
    """Run the tests with the oldest torch and tensordict that the packages accept; arguments go to pytest."""
    install_with(session, *OLDEST, extra="[test]")
    session.install(*PINNED, "--no-deps", *MODEL_ZOO)
    run_tests(session, *session.posargs)


@nox.session
def zoo(session: nox.Session) -> None:
    """Compare every model of the packages with MuJoCo C, the large ones too; write docs/zoo.md."""
    install_for_tests(session)
    session.run("python", "docs/generate.py")
    run_tests(session, "--all-models", f"{LIBRARY}/tests/test_zoo.py", *session.posargs)


@nox.session(name="random-models")
def random_models(session: nox.Session) -> None:
    """Compare 500 random models with MuJoCo C, other ones each time."""
    install_for_tests(session)
    profile = ("--hypothesis-profile", "many")
    run_tests(session, *profile, f"{LIBRARY}/tests/test_parity_random.py", *session.posargs)


def install_for_tests(session: nox.Session) -> None:
    """Install both distributions, what tests need, and the packages whose models are compared."""
    install_packages(session, "[test]")
    session.install(*PINNED, "--no-deps", *MODEL_ZOO)


def run_tests(session: nox.Session, *arguments: str) -> None:
    """Run pytest on two workers with caches of the session's own."""
    caches = Path(session.create_tmp()).resolve()
    env = ONE_THREAD | {
        "TORCHINDUCTOR_CACHE_DIR": str(caches / "inductor"),
        "XDG_CACHE_HOME": str(caches / "xdg"),
    }
    session.run("pytest", "-n", "2", "--dist", "worksteal", *arguments, env=env)


@nox.session
def lint(session: nox.Session) -> None:
    """Check style, formatting, types and import layers."""
    install_packages(session)
    session.install(*PINNED, "ruff", "ty", "import-linter")
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")
    session.run("ty", "check", "--python", session.virtualenv.location)
    session.run("lint-imports")


@nox.session
def docs(session: nox.Session) -> None:
    """Build the documentation into docs/_build; a warning is an error."""
    session.install(*PINNED, "sphinx", "myst-parser", "furo")
    session.run("sphinx-build", "-W", "--keep-going", "-b", "html", "docs", "docs/_build/html")


@nox.session
def bench(session: nox.Session) -> None:
    """Compare the engines on the humanoid; arguments go to benchmarks/compare.py."""
    install_packages(session)
    arguments = session.posargs or ["--scenes", "humanoid", "--rounds", "3"]
    session.run("python", "benchmarks/compare.py", "--python-mjx", str(mjx_python(session)), *arguments)


@nox.session(name="patched-torch-tests")
def patched_torch_tests(session: nox.Session) -> None:
    """Prove the patches on torch 2.13.0, or on what the arguments say, such as 2.14.1 or 2.11.0 tensordict==0.14.0."""
    caches = Path(session.create_tmp()).resolve() / "inductor"  # torch 2.12 compiles in another folder
    env = ONE_THREAD | {"TORCHINDUCTOR_CACHE_DIR": str(caches)} | NO_COMPILED_CODE
    others = [argument for argument in session.posargs if "==" in argument]
    for version in [argument for argument in session.posargs if "==" not in argument] or ["2.13.0"]:
        install_with(session, f"torch=={version}", *others)
        session.install("pytest")
        session.run("python", "patches/prove.py", env=env)


def install_with(session: nox.Session, *requirements: str, extra: str = "") -> None:
    """Install both distributions with these requirements instead of the pinned ones."""
    unpinned = {*TORCH_PINS, *(requirement.partition("==")[0] for requirement in requirements)}
    pins = Path("constraints.txt").read_text(encoding="utf-8").splitlines()
    others = Path(session.create_tmp()) / "constraints.txt"
    others.write_text("\n".join(x for x in pins if x.partition("==")[0] not in unpinned), encoding="utf-8")
    session.install("-c", str(others), *requirements, f"./{LIBRARY}{extra}", f"./{COMMAND_LINE}{extra}")


def mjx_python(session: nox.Session) -> Path:
    """Interpreter of a separate environment with MJX, which needs a MuJoCo of its own version."""
    home = Path(session.create_tmp()) / "mjx"
    python = home / "bin" / "python"
    if not python.exists():
        session.run("python", "-m", "venv", str(home))
    session.run(
        str(python), "-m", "pip", "install", "-q", *MJX_PINNED, "jax", "mujoco", "mujoco-mjx", external=True
    )
    return python
