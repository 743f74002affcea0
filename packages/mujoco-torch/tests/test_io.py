"""Models and states on their way in and out: round trips, refusals, copies and files."""

import copy
import io
import pickle
import subprocess
import sys

import mujoco
import numpy as np
import pytest
import torch

import mujoco_torch as mjt
from mujoco_torch import testing

NWORLD = 4


def load(name: str) -> mujoco.MjModel:
    return mujoco.MjModel.from_xml_path(str(mjt.model_path(name)))


@pytest.fixture(scope="module")
def mjm() -> mujoco.MjModel:
    return load("humanoid")


@pytest.fixture(scope="module")
def mjds(mjm: mujoco.MjModel) -> list[mujoco.MjData]:
    """Worlds that differ, some in contact, everything computed."""
    mjds = testing.perturbed_states(mjm, NWORLD, seed=5)
    for mjd in mjds:
        mujoco.mj_forward(mjm, mjd)
    assert any(mjd.ncon for mjd in mjds)
    return mjds


@pytest.fixture(scope="module")
def m(mjm: mujoco.MjModel) -> mjt.Model:
    return mjt.put_model(mjm, dtype=torch.float64)


def state_of(mjm: mujoco.MjModel, mjd: mujoco.MjData) -> np.ndarray:
    spec = int(mujoco.mjtState.mjSTATE_INTEGRATION)
    values = np.empty(mujoco.mj_stateSize(mjm, spec))
    mujoco.mj_getState(mjm, mjd, values, spec)
    return values


def assert_same(d: mjt.Data, other: mjt.Data) -> None:
    assert d.batch_size == other.batch_size
    assert (d == other).all()


# ------------------------------------------------------------------------------------------ round trip


def test_put_data_takes_over_everything(m: mjt.Model, mjds: list[mujoco.MjData]) -> None:
    testing.compare(m, mjt.put_data(m, mjds), mjds, rtol=1e-12).raise_for_failures()


def test_round_trip(mjm: mujoco.MjModel, m: mjt.Model, mjds: list[mujoco.MjData]) -> None:
    results = [mujoco.MjData(mjm) for _ in mjds]
    assert mjt.get_data_into(results, m, mjt.put_data(m, mjds)) is None
    for mjd, result in zip(mjds, results, strict=True):
        np.testing.assert_array_equal(state_of(mjm, result), state_of(mjm, mjd))
        assert (result.ncon, result.nefc) == (mjd.ncon, mjd.nefc)
        for name in ("xpos", "xmat", "cvel", "qfrc_bias", "qacc", "qfrc_constraint"):
            np.testing.assert_allclose(getattr(result, name), getattr(mjd, name), rtol=0, atol=1e-9)
        np.testing.assert_allclose(result.contact.dist, mjd.contact.dist, rtol=0, atol=1e-12)


def test_round_trip_of_one_world(mjm: mujoco.MjModel, m: mjt.Model, mjds: list[mujoco.MjData]) -> None:
    d = mjt.put_data(m, mjds[1])
    assert d.batch_size == ()
    result = mujoco.MjData(mjm)
    mjt.get_data_into(result, m, d)
    np.testing.assert_array_equal(state_of(mjm, result), state_of(mjm, mjds[1]))
    again = mujoco.MjData(mjm)
    mjt.get_data_into([again], m, d)
    np.testing.assert_array_equal(state_of(mjm, again), state_of(mjm, mjds[1]))


def test_result_of_a_step_comes_back(mjm: mujoco.MjModel, m: mjt.Model, mjds: list[mujoco.MjData]) -> None:
    """C goes on from our state as from its own."""
    d = mjt.step(m, mjt.put_data(m, mjds))
    results = [mujoco.MjData(mjm) for _ in mjds]
    mjt.get_data_into(results, m, d)
    for world, (mjd, result) in enumerate(zip(mjds, results, strict=True)):
        reference = testing.copy_state(mjm, mjd)
        mujoco.mj_step(mjm, reference)
        assert result.time == reference.time
        np.testing.assert_array_equal(result.qpos, d.qpos[world].numpy())
        np.testing.assert_allclose(result.qvel, reference.qvel, rtol=0, atol=1e-6)
        np.testing.assert_array_equal(result.qacc_warmstart, d.qacc_warmstart[world].numpy())


def test_data_with_a_gradient_comes_back(mjm: mujoco.MjModel, m: mjt.Model) -> None:
    d = mjt.make_data(m)
    d = mjt.step(m, d.replace(qvel=d.qvel.clone().requires_grad_()))
    result = mujoco.MjData(mjm)
    mjt.get_data_into(result, m, d)
    np.testing.assert_array_equal(result.qpos, d.qpos.detach().numpy())


def test_worlds_of_a_batch_come_from_their_own_data(m: mjt.Model, mjds: list[mujoco.MjData]) -> None:
    batch = mjt.put_data(m, tuple(mjds))
    for world, mjd in enumerate(mjds):
        assert_same(batch[world], mjt.put_data(m, mjd))


def test_float32_model_takes_float64_data(mjm: mujoco.MjModel, mjds: list[mujoco.MjData]) -> None:
    m = mjt.put_model(mjm, dtype=torch.float32)
    d = mjt.put_data(m, mjds)
    assert d.qpos.dtype == torch.float32
    result = mujoco.MjData(mjm)
    mjt.get_data_into(result, m, d[2])
    np.testing.assert_array_equal(result.qpos, mjds[2].qpos.astype(np.float32))


def test_make_data_is_c_s_fresh_data(mjm: mujoco.MjModel, m: mjt.Model) -> None:
    testing.compare(m, mjt.make_data(m), mujoco.MjData(mjm), testing.STATE_FIELDS, 0.0).raise_for_failures()
    for world in mjt.make_data(m, 3):
        assert_same(world, mjt.make_data(m))


# -------------------------------------------------------------------------------------------- aliases


def test_device_put(mjm: mujoco.MjModel, m: mjt.Model, mjds: list[mujoco.MjData]) -> None:
    ours = mjt.device_put(mjm, device="cpu", dtype=torch.float64)
    assert ours.topology is m.topology
    assert torch.equal(ours.params, m.params)
    assert_same(mjt.device_put(mjds[0], m), mjt.put_data(m, mjds[0]))
    assert_same(mjt.device_put(mjds, m), mjt.put_data(m, mjds))
    with pytest.raises(mjt.ArgumentError, match="device_put\\(mjd, model\\)"):
        mjt.device_put(mjds[0])


def test_dtype_and_device_default_to_torch_s(mjm: mujoco.MjModel) -> None:
    assert mjt.put_model(mjm).dtype == torch.get_default_dtype()
    assert mjt.put_model(mjm).device == torch.get_default_device()
    previous = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        assert mjt.put_model(mjm).dtype == torch.float64
    finally:
        torch.set_default_dtype(previous)


def test_later_changes_of_the_mjmodel_are_not_seen() -> None:
    mjm = load("hopper")
    m = mjt.put_model(mjm, dtype=torch.float64)
    before = m.params.clone()
    mjm.body_mass *= 2.0
    mjm.opt.timestep *= 2.0
    mjm.qpos0 += 1.0
    assert torch.equal(m.params, before)


# ------------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize("nworld", [0, -1, True, 1.5, "4"])
def test_number_of_worlds(m: mjt.Model, nworld: object) -> None:
    with pytest.raises(mjt.ArgumentError, match=f"nworld is {nworld!r}.*positive integer"):
        mjt.make_data(m, nworld)


@pytest.mark.parametrize("value", [None, "humanoid.xml", 3])
def test_put_model_of_something_else(value: object) -> None:
    with pytest.raises(mjt.ArgumentError, match=rf"not {type(value).__name__}; compile the XML first"):
        mjt.put_model(value)


@pytest.mark.parametrize("dtype", [torch.float16, torch.int64, "float64"])
def test_dtype_of_a_model(mjm: mujoco.MjModel, dtype: object) -> None:
    with pytest.raises(mjt.ArgumentError, match=r"dtype is .*torch\.float32 and torch\.float64"):
        mjt.put_model(mjm, dtype=dtype)


@pytest.mark.parametrize("device", ["nosuch", "cpu:x", 1.5])
def test_device_of_a_model(mjm: mujoco.MjModel, device: object) -> None:
    with pytest.raises(mjt.ArgumentError, match=f"device {device!r} cannot be used"):
        mjt.put_model(mjm, device=device)


def test_unsupported_model_lists_all_findings() -> None:
    mjm = mujoco.MjModel.from_xml_string("""
        <mujoco>
          <option solver="PGS"><flag sleep="enable"/></option>
          <worldbody>
            <body><joint name="j" range="0 9"/><geom size="0.1" adhesion="1"/></body>
          </worldbody>
        </mujoco>""")
    findings = mjt.check(mjm)
    assert len(findings) >= 2
    with pytest.raises(mjt.UnsupportedModelError) as caught:
        mjt.put_model(mjm)
    assert caught.value.findings == findings
    for finding in findings:
        assert str(finding) in str(caught.value)


@pytest.mark.parametrize("name", ["qpos", "qvel", "qacc_warmstart", "ctrl", "qfrc_applied", "xfrc_applied"])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_state_that_is_not_finite(mjm: mujoco.MjModel, m: mjt.Model, name: str, value: float) -> None:
    """The message names field, world and index."""
    mjds = [mujoco.MjData(mjm) for _ in range(3)]
    array = getattr(mjds[2], name)
    index = tuple(size - 1 for size in array.shape)
    array[index] = value
    with pytest.raises(mjt.StateError) as caught:
        mjt.put_data(m, mjds)
    for part in ("world 2", f"MjData.{name}{list(index)}", str(value)):
        assert part in str(caught.value)


def test_data_of_another_model(mjm: mujoco.MjModel, m: mjt.Model) -> None:
    other = mujoco.MjData(load("ant"))
    with pytest.raises(
        mjt.StateError, match=r"world 1: MjData\.qpos has shape \(15,\).*\(28,\).*another model"
    ):
        mjt.put_data(m, [mujoco.MjData(mjm), other])
    with pytest.raises(mjt.StateError, match="another model"):
        mjt.get_data_into(other, m, mjt.make_data(m))


@pytest.mark.parametrize("value", [[], ()])
def test_no_data_at_all(m: mjt.Model, value: object) -> None:
    with pytest.raises(mjt.StateError, match="empty sequence"):
        mjt.put_data(m, value)


WRONG = {
    "shape": (lambda d: d.replace(ctrl=d.ctrl[:, :-1]), r"Data\.ctrl has shape \(2, 20\).*\(2, 21\)"),
    "dtype": (lambda d: d.replace(qvel=d.qvel.float()), r"Data\.qvel is torch\.float32.*torch\.float64"),
    "device": (lambda d: d.to("meta"), r"Data\.\w+ is on meta.*on cpu"),
    "batch": (lambda d: torch.stack([d, d]), r"batch size \(2, 2\).*reshape"),
}


@pytest.mark.parametrize("what", WRONG)
@pytest.mark.parametrize("stage", ["step", "forward"])
def test_step_of_data_that_does_not_fit(m: mjt.Model, what: str, stage: str) -> None:
    spoil, message = WRONG[what]
    with pytest.raises(mjt.StateError, match=message):
        getattr(mjt, stage)(m, spoil(mjt.make_data(m, 2)))


def test_a_reshaped_batch_steps(m: mjt.Model) -> None:
    """What the message for a batch of batches advises."""
    d = torch.stack([mjt.make_data(m, 2)] * 2)
    assert mjt.step(m, d.reshape(-1)).batch_size == (4,)


# ----------------------------------------------------------------------------- nothing is half-written


def assert_untouched(result: mujoco.MjData) -> None:
    fresh = mujoco.MjData(result.model)
    np.testing.assert_array_equal(state_of(result.model, result), state_of(result.model, fresh))


@pytest.mark.parametrize("fault", ["number", "another", "no-sequence"])
def test_get_data_into_writes_nothing_if_it_fails(
    mjm: mujoco.MjModel, m: mjt.Model, mjds: list[mujoco.MjData], fault: str
) -> None:
    d = mjt.put_data(m, mjds)
    results: object = {
        "number": [mujoco.MjData(mjm) for _ in range(NWORLD - 1)],
        "another": [*(mujoco.MjData(mjm) for _ in range(NWORLD - 1)), mujoco.MjData(load("ant"))],
        "no-sequence": mujoco.MjData(mjm),
    }[fault]
    with pytest.raises(mjt.StateError):
        mjt.get_data_into(results, m, d)
    for result in results if isinstance(results, list) else [results]:
        assert_untouched(result)


def with_another_body(name: str) -> mujoco.MjModel:
    """A packaged model with one body more that has no joint: nq, nv and nu stay."""
    spec = mujoco.MjSpec.from_file(str(mjt.model_path(name)))
    spec.worldbody.add_body().add_geom(
        type=mujoco.mjtGeom.mjGEOM_SPHERE, size=[0.1, 0, 0], contype=0, conaffinity=0
    )
    return spec.compile()


def test_get_data_into_of_a_look_alike_writes_nothing() -> None:
    """The sizes of all that is written count, not only those of qpos, qvel and ctrl."""
    hopper, other = load("hopper"), with_another_body("hopper")
    m = mjt.put_model(hopper, dtype=torch.float64)
    d = mjt.make_data(m, 2)
    d = mjt.step(m, d.replace(qvel=d.qvel + 1.0))
    results = [mujoco.MjData(hopper), mujoco.MjData(other)]
    with pytest.raises(mjt.StateError, match="another model"):
        mjt.get_data_into(results, m, d)
    for result in results:
        assert_untouched(result)


def test_get_data_into_of_a_state_of_another_model_writes_nothing(mjm: mujoco.MjModel, m: mjt.Model) -> None:
    d = mjt.make_data(mjt.put_model(load("ant"), dtype=torch.float64))
    result = mujoco.MjData(mjm)
    with pytest.raises(mjt.StateError, match="model"):
        mjt.get_data_into(result, m, d.replace(time=d.time + 1.0))
    assert_untouched(result)


# --------------------------------------------------------------------------------- copies and files


def same_step(m: mjt.Model, other: mjt.Model) -> bool:
    d = mjt.make_data(m, 2)
    return bool((mjt.step(m, d) == mjt.step(other, d)).all())


def through_torch_save(value: object) -> object:
    file = io.BytesIO()
    torch.save(value, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


COPIES = {
    "pickle": lambda x: pickle.loads(pickle.dumps(x)),
    "deepcopy": copy.deepcopy,
    "copy": copy.copy,
    "torch.save": through_torch_save,
}


@pytest.mark.parametrize("way", COPIES)
def test_copy_of_a_model(m: mjt.Model, way: str) -> None:
    other = COPIES[way](m)
    assert other.topology is m.topology
    assert torch.equal(other.params, m.params)
    assert repr(other) == repr(m)
    assert same_step(m, other)


@pytest.mark.parametrize("way", COPIES)
@pytest.mark.parametrize("nworld", [None, 2])
def test_copy_of_data(m: mjt.Model, mjds: list[mujoco.MjData], way: str, nworld: int | None) -> None:
    d = mjt.put_data(m, mjds[0] if nworld is None else mjds[:nworld])
    other = COPIES[way](d)
    assert isinstance(other, mjt.Data)
    assert isinstance(other.contact, mjt.Contact)
    assert_same(d, other)
    if way != "copy":
        other.qpos.zero_()
        assert d.qpos.abs().sum() > 0
    assert_same(mjt.step(m, d), mjt.step(m, COPIES[way](d)))


@pytest.mark.slow
def test_model_and_data_in_another_process(m: mjt.Model, tmp_path) -> None:
    """Structures of models are found by value: nothing of this process is needed to use the file."""
    d = mjt.make_data(m, 2)
    torch.save((m, d), tmp_path / "scene.pt")
    program = (
        "import sys, torch, mujoco_torch as mjt\n"
        "m, d = torch.load(sys.argv[1], weights_only=False)\n"
        "torch.save(mjt.step(m, d), sys.argv[2])\n"
    )
    files = [str(tmp_path / "scene.pt"), str(tmp_path / "after.pt")]
    subprocess.run([sys.executable, "-c", program, *files], check=True, timeout=120)
    after = torch.load(files[1], weights_only=False)
    torch.testing.assert_close(after.qpos, mjt.step(m, d).qpos, rtol=0, atol=1e-14)


# ------------------------------------------------------------------------------------------------ model


def test_model_is_as_it_says(m: mjt.Model, mjm: mujoco.MjModel) -> None:
    assert (m.nq, m.nv, m.nu, m.nbody) == (mjm.nq, mjm.nv, mjm.nu, mjm.nbody)
    np.testing.assert_array_equal(m.body_mass.flatten().numpy(), mjm.body_mass)
    with pytest.raises(AttributeError, match="Model has no attribute 'nosuch'"):
        _ = m.nosuch
    with pytest.raises(AttributeError, match="frozen"):
        m.topology.nq = 3
    assert m.to("cpu").topology is m.topology


def test_equal_models_share_one_topology(mjm: mujoco.MjModel) -> None:
    a, b = mjt.put_model(load("ant")), mjt.put_model(load("ant"), dtype=torch.float64)
    assert a.topology is b.topology
    assert a.topology is not mjt.put_model(mjm).topology
    heavier = load("ant")
    heavier.body_mass *= 2.0
    assert mjt.put_model(heavier).topology is a.topology  # masses are parameters, not structure


def test_a_solver_of_the_users_choice() -> None:
    """A model that asks for PGS is refused, unless the user names a solver."""
    mjm = mujoco.MjModel.from_xml_string("""
        <mujoco>
          <option solver="PGS"/>
          <worldbody>
            <geom type="plane" size="1 1 0.1"/>
            <body pos="0 0 0.09"><freejoint/><geom size="0.1"/></body>
          </worldbody>
        </mujoco>""")
    with pytest.raises(mjt.UnsupportedModelError, match='solver="newton"'):
        mjt.put_model(mjm)
    expected = mujoco.MjData(mjm)
    mjm.opt.solver = mujoco.mjtSolver.mjSOL_NEWTON
    mujoco.mj_step(mjm, expected)
    mjm.opt.solver = mujoco.mjtSolver.mjSOL_PGS
    for solver in ("newton", "cg"):
        m = mjt.put_model(mjm, dtype=torch.float64, solver=solver)
        d = mjt.step(m, mjt.make_data(m))
        np.testing.assert_allclose(d.qvel.numpy(), expected.qvel, atol=1e-8)
    assert mjm.opt.solver == mujoco.mjtSolver.mjSOL_PGS
    with pytest.raises(mjt.ArgumentError, match="'newton', 'cg'"):
        mjt.put_model(mjm, solver="pgs")
