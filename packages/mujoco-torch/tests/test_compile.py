"""``mujoco_torch.compile``: blocks of worlds give what the plain step gives, and compile once.

Most tests run the pieces as captured (backend "eager"); those marked slow generate code.
"""

from collections.abc import Callable, Iterator
from pathlib import Path

import mujoco
import pytest
import torch
import torch._dynamo
from torch._dynamo.eval_frame import _debug_get_cache_entry_list
from torch._dynamo.utils import clear_compilation_metrics, get_compilation_metrics

import mujoco_torch as mjt
from mujoco_torch import testing
from mujoco_torch._src import tuning
from mujoco_torch._src.pieces import Piece

SCENE = """
<mujoco model="scene">
  <option timestep="0.005"/>
  <worldbody>
    <geom type="plane" size="1 1 0.1"/>
    <body pos="0 0 0.09">
      <freejoint/>
      <geom type="sphere" size="0.1"/>
      <body pos="0.15 0 0.05">
        <joint name="arm" axis="0 1 0" damping="0.1" stiffness="1" range="-20 20"/>
        <geom type="capsule" size="0.03" fromto="0 0 0 0.2 0 0"/>
      </body>
    </body>
  </worldbody>
  <actuator><motor joint="arm"/></actuator>
</mujoco>
"""
SLIDER = """
<mujoco><worldbody>
  <geom type="plane" size="1 1 0.1"/>
  <body pos="0 0 0.09"><joint type="slide" axis="0 0 1"/><geom size="0.1"/></body>
</worldbody></mujoco>
"""
RUNGE_KUTTA = SCENE.replace('timestep="0.005"', 'timestep="0.005" integrator="RK4"')
MODELS = {"scene": SCENE, "slider": SLIDER, "runge-kutta": RUNGE_KUTTA}
SAME = 1e-12
WRITTEN = (
    "qpos",
    "qvel",
    "time",
    "qacc_warmstart",
    "qacc",
    "xpos",
    "M",
    "cvel",
    "efc_force",
    "ncon",
    "solver_niter",
)


@pytest.fixture
def captured(monkeypatch: pytest.MonkeyPatch) -> list[Callable]:
    """Pieces and steps run as captured, without code generation; the functions that are compiled."""
    real = torch.compile
    functions: list[Callable] = []

    def as_captured(fn: Callable, **options) -> Callable:
        filters = {name: f for name, f in options.pop("options", {}).items() if name == "guard_filter_fn"}
        options.pop("mode", None)
        options.pop("backend", None)
        functions.append(fn)
        return real(fn, backend="eager", options=filters or None, **options)

    monkeypatch.setattr(torch, "compile", as_captured)
    return functions


@pytest.fixture(autouse=True)
def _compiler_forgets() -> Iterator[None]:
    torch._dynamo.reset()
    clear_compilation_metrics()
    yield
    torch._dynamo.reset()


def batch(name: str, nworld: int, dtype: torch.dtype = torch.float64) -> tuple[mjt.Model, mjt.Data]:
    mjm = mujoco.MjModel.from_xml_string(MODELS[name])
    m = mjt.put_model(mjm, dtype=dtype)
    return m, mjt.put_data(m, testing.perturbed_states(mjm, nworld, seed=0, settle=20))


def controls(m: mjt.Model, nworld: int, nstep: int) -> torch.Tensor:
    return torch.randn(nworld, nstep, m.nu, dtype=m.dtype)


def assert_equal(d: mjt.Data, other: mjt.Data, names: tuple[str, ...] = WRITTEN) -> None:
    for name in names:
        torch.testing.assert_close(getattr(d, name), getattr(other, name), rtol=SAME, atol=1e-9, msg=name)
    torch.testing.assert_close(d.contact.dist, other.contact.dist, rtol=SAME, atol=SAME)


@pytest.mark.usefixtures("captured")
@pytest.mark.parametrize("name", MODELS)
def test_a_step_is_that_of_the_library(name: str) -> None:
    """Fewer worlds than a block, whole blocks, a ragged last block."""
    m, d = batch(name, 13)
    step, before, expected = mjt.compile(mjt.step, block=4), d.clone(), mjt.step(m, d)
    for nworld in (1, 4, 8, 10, 13):
        assert_equal(step(m, d[:nworld]), expected[:nworld])
    assert_equal(d, before, ("qpos", "qvel", "ctrl", "xpos"))


@pytest.mark.usefixtures("captured")
@pytest.mark.parametrize("name", MODELS)
def test_several_steps(name: str) -> None:
    m, d = batch(name, 6)
    assert_equal(mjt.compile(mjt.step, block=4)(m, d, nsteps=3), mjt.step(m, d, nsteps=3))


@pytest.mark.usefixtures("captured")
def test_one_world_without_a_batch() -> None:
    m, d = batch("scene", 1)
    after = mjt.compile(mjt.step)(m, d[0])
    assert after.batch_size == torch.Size([])
    assert_equal(after, mjt.step(m, d[0]))


@pytest.mark.usefixtures("captured")
@pytest.mark.parametrize("name", MODELS)
def test_a_rollout_is_that_of_the_library(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whole blocks and a ragged one; more steps than are kept at once."""
    monkeypatch.setitem(mjt.compile.__globals__, "STEPS_AT_ONCE", 2)
    m, d = batch(name, 6)
    keep = ("qpos", "xpos", "contact_dist", "ncon")
    u = controls(m, 6, 5)
    after, kept = mjt.compile(mjt.rollout, block=4)(m, d, u, keep=keep)
    expected, reference = mjt.rollout(m, d, u, keep=keep)
    assert kept.batch_size == torch.Size([6, 5])
    for field in keep:
        torch.testing.assert_close(kept[field], reference[field], rtol=SAME, atol=1e-9)
    assert_equal(after, expected, ("qpos", "qvel", "time", "ctrl", "xpos"))
    assert after.cvel.isnan().all()
    assert expected.cvel.isnan().all()


@pytest.mark.usefixtures("captured")
def test_a_rollout_steps_through_its_controls() -> None:
    m, d = batch("scene", 3)
    u = controls(m, 3, 4)
    _, kept = mjt.rollout(m, d, u)
    for k in range(4):
        d = mjt.step(m, d.replace(ctrl=u[:, k]))
        torch.testing.assert_close(kept["qvel"][:, k], d.qvel)
    one, single = mjt.compile(mjt.rollout)(m, d[0], u[0])
    assert single.batch_size == torch.Size([4])
    assert one.batch_size == torch.Size([])


@pytest.mark.usefixtures("captured")
def test_what_is_not_kept_says_so() -> None:
    m, d = batch("scene", 5)
    after = mjt.compile(mjt.step, keep=("xpos", "contact_pos"), block=4)(m, d)
    expected = mjt.step(m, d)
    torch.testing.assert_close(after.xpos, expected.xpos)
    torch.testing.assert_close(after.qpos, expected.qpos)
    torch.testing.assert_close(after.contact.pos, expected.contact.pos)
    assert after.xmat.isnan().all()
    assert (after.ncon == -1).all()
    assert after.xmat.shape == expected.xmat.shape


@pytest.mark.usefixtures("captured")
def test_outputs_share_no_memory_with_inputs_or_each_other() -> None:
    m, d = batch("scene", 5)
    after = mjt.compile(mjt.step, block=4)(m, d)
    fields = dict(after.to_tensordict().items(include_nested=True, leaves_only=True)).values()
    places = [x.untyped_storage().data_ptr() for x in fields if x.numel()]
    assert len(set(places)) == len(places)
    given = dict(d.to_tensordict().items(include_nested=True, leaves_only=True)).values()
    assert not {x.untyped_storage().data_ptr() for x in given if x.numel()} & set(places)


@pytest.mark.usefixtures("captured")
@pytest.mark.parametrize(("name", "pieces"), [("scene", 1), ("runge-kutta", 3)])
def test_compiles_once(name: str, pieces: int) -> None:
    """Whatever the number of worlds above the block, of steps, of calls; the stages of Runge-Kutta are one piece."""
    m, d = batch(name, 9)
    step = mjt.compile(mjt.step, block=4, keep=())
    once = step(m, d)
    compiled = len(get_compilation_metrics())
    assert compiled == pieces
    step(m, once)
    step(m, d[:6].clone(), nsteps=5)
    step(m, torch.stack([d[0]] * 8))
    assert len(get_compilation_metrics()) == compiled


def test_nothing_is_guarded(captured: list[Callable]) -> None:
    m, d = batch("scene", 4)
    mjt.compile(mjt.step, keep=())(m, d)
    entries = [entry for fn in captured for entry in _debug_get_cache_entry_list(fn.__code__)]
    trees = [str(entry.guard_manager).split() for entry in entries]
    assert trees == [["TREE_GUARD_MANAGER:", "+-", "RootGuardManager"]]


@pytest.mark.usefixtures("captured")
def test_two_models_do_not_share_a_piece() -> None:
    step = mjt.compile(mjt.step)
    for name in (*MODELS, "scene"):
        m, d = batch(name, 4)
        assert_equal(step(m, d), mjt.step(m, d))
    m, d = batch("scene", 4, torch.float32)
    assert step(m, d).qpos.dtype == torch.float32


@pytest.mark.usefixtures("captured")
def test_parameters_are_those_of_the_call() -> None:
    """A Model with other arrays but the same structure runs the same piece."""
    m, d = batch("scene", 4)
    step = mjt.compile(mjt.step)
    step(m, d)
    other = mjt.Model(m.topology, m.params * 1.01)
    assert_equal(step(other, d), mjt.step(other, d))


@pytest.mark.usefixtures("captured")
def test_several_threads() -> None:
    m, d = batch("scene", 23)
    step = mjt.compile(mjt.step, block=4)
    one = step(m, d)
    torch.set_num_threads(2)
    try:
        assert_equal(step(m, d), one)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(1)


@pytest.mark.usefixtures("captured")
def test_gradients_take_the_plain_way() -> None:
    m, d = batch("scene", 4)
    qvel = d.qvel.clone().requires_grad_()
    (expected,) = torch.autograd.grad(mjt.step(m, d.replace(qvel=qvel)).qpos.sum(), qvel)
    (found,) = torch.autograd.grad(mjt.compile(mjt.step)(m, d.replace(qvel=qvel)).qpos.sum(), qvel)
    torch.testing.assert_close(found, expected)


@pytest.mark.usefixtures("captured")
def test_without_a_wrapper_the_plain_way_and_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self, params, values):
        raise torch._dynamo.exc.TorchDynamoException("no Python.h here\nmore")

    monkeypatch.setattr(Piece, "__call__", broken)
    m, d = batch("scene", 4)
    step = mjt.compile(mjt.step)
    with pytest.warns(RuntimeWarning, match=r"no C\+\+ wrapper \(no Python.h here\)"):
        after = step(m, d)
    assert_equal(after, mjt.step(m, d))
    assert_equal(step(m, d), after)


@pytest.mark.usefixtures("captured")
def test_state_that_is_not_contiguous() -> None:
    m, d = batch("scene", 12)
    assert_equal(mjt.compile(mjt.step, block=4)(m, d[::2]), mjt.step(m, d[::2]))


@pytest.mark.usefixtures("captured")
def test_bad_state() -> None:
    m, d = batch("scene", 4)
    step = mjt.compile(mjt.step)
    with pytest.raises(mjt.StateError, match="qpos has shape"):
        step(m, d.replace(qpos=d.qpos[:, :-1]))
    with pytest.raises(mjt.StateError, match="float32"):
        step(m, d.replace(ctrl=d.ctrl.float()))
    with pytest.raises(mjt.StateError, match="Flatten the batch first"):
        step(m, d.reshape(2, 2))


def test_bad_arguments() -> None:
    m, d = batch("scene", 4)
    with pytest.raises(mjt.ArgumentError, match=r"step or mujoco_torch.rollout"):
        mjt.compile(mjt.forward)
    with pytest.raises(mjt.ArgumentError, match="block is 0"):
        mjt.compile(mjt.step, block=0)
    with pytest.raises(mjt.ArgumentError, match=r"'nonsense'"):
        mjt.compile(mjt.step, keep=("nonsense",))
    with pytest.raises(mjt.ArgumentError, match="keep is 'xpos'"):
        mjt.compile(mjt.step, keep="xpos")
    for call in (mjt.step, mjt.compile(mjt.step)):
        with pytest.raises(mjt.ArgumentError, match="nsteps is 0"):
            call(m, d, nsteps=0)
    for call in (mjt.rollout, mjt.compile(mjt.rollout)):
        with pytest.raises(mjt.StateError, match=r"controls have shape \(4, 3, 9\)"):
            call(m, d, torch.zeros(4, 3, 9, dtype=m.dtype))
        with pytest.raises(mjt.StateError, match="controls have no step"):
            call(m, d, controls(m, 4, 0))
        with pytest.raises(mjt.StateError, match=r"controls are torch.float32"):
            call(m, d, controls(m, 4, 3).float())
        with pytest.raises(mjt.ArgumentError, match="list fields"):
            call(m, d, controls(m, 4, 3), keep=("qpos", "speed"))


@pytest.mark.slow
def test_generated_code_gives_the_same() -> None:
    m, d = batch("slider", 11)
    step = mjt.compile(mjt.step, block=8)
    after = step(m, step(m, d), nsteps=2)
    assert_equal(after, mjt.step(m, d, nsteps=3))
    (piece,) = step.__self__.pieces
    assert piece.run is not piece.traced  # Dynamo is out of the way


@pytest.mark.parametrize(
    "nv, size", [(0, 1024), (4, 1024), (9, 512), (10, 256), (27, 128), (37, 64), (5000, 64)]
)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_large_models_have_small_blocks(
    nv: int, size: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A number of float32 takes half of the cache."""
    monkeypatch.setattr(tuning, "remembered", lambda model: None)
    m, d = batch("scene", 2, dtype)
    doubled = 1 if dtype == torch.float64 else 2
    monkeypatch.setattr(type(m), "nv", nv * doubled, raising=False)
    assert mjt.compile(mjt.step).__self__.block_size(m, d) == size


@pytest.mark.usefixtures("captured")
def test_a_measured_block_is_remembered(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(tuning, "CANDIDATES", (2, 4, 64))
    monkeypatch.setattr(tuning, "_seconds", lambda run, size: float(size != 4))
    m, d = batch("slider", 9)
    name = f"{m.topology.digest}-{m.dtype}"
    assert tuning.remembered(name) is None
    assert_equal(mjt.compile(mjt.step, block="measure")(m, d), mjt.step(m, d))
    assert tuning.remembered(name) == 4
    step = mjt.compile(mjt.step)
    step(m, d)
    assert [stepper.block for stepper in step.__self__._steppers.values()] == [4]
    (file,) = (tmp_path / "mujoco_torch").glob("blocks-*.json")
    file.write_text("{damaged")
    assert tuning.remembered(name) is None
