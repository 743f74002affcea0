"""The parity helpers themselves: do they see what they are meant to see?"""

import dataclasses

import mujoco
import numpy as np
import pytest
import torch

import mujoco_torch as mjt
from mujoco_torch import testing
from mujoco_torch.testing.float32 import inertia_magnitude
from mujoco_torch.testing.reference import dense_mass

#: Fields of Data that C's MjData has in no comparable form; each says why.
NOT_COMPARED = {
    "contact": "compared field by field",
    "solver_fwdinv": "a difference that is zero up to rounding",
    "solver_niter": "one more or less iteration may be decided by rounding",
}


@pytest.fixture(scope="module")
def mjm() -> mujoco.MjModel:
    return mujoco.MjModel.from_xml_path(str(mjt.model_path("humanoid")))


@pytest.fixture(scope="module")
def mjds(mjm: mujoco.MjModel) -> list[mujoco.MjData]:
    states = testing.perturbed_states(mjm, 4, seed=0)
    for mjd in states:
        mujoco.mj_forward(mjm, mjd)
    return states


@pytest.fixture(scope="module")
def m(mjm: mujoco.MjModel) -> mjt.Model:
    return mjt.put_model(mjm, dtype=torch.float64)


@pytest.fixture
def d(m: mjt.Model, mjds: list[mujoco.MjData]) -> mjt.Data:
    return mjt.put_data(m, mjds)


def test_states_differ_and_repeat(mjm: mujoco.MjModel) -> None:
    first = testing.perturbed_states(mjm, 4, seed=5)
    again = testing.perturbed_states(mjm, 4, seed=5)
    other = testing.perturbed_states(mjm, 4, seed=6)
    for name in ("qpos", "qvel", "ctrl", "qfrc_applied", "xfrc_applied", "time"):
        values = [np.array(getattr(mjd, name)) for mjd in first]
        assert all(np.array_equal(v, getattr(mjd, name)) for v, mjd in zip(values, again, strict=True))
        assert not any(np.array_equal(v, getattr(mjd, name)) for v, mjd in zip(values, other, strict=True))
        assert all(not np.array_equal(values[0], v) for v in values[1:])
        assert all(np.isfinite(v).all() for v in values)


def test_states_have_unit_quaternions_and_touch_the_floor(mjm: mujoco.MjModel) -> None:
    for world, mjd in enumerate(testing.perturbed_states(mjm, 4, seed=5)):
        assert np.linalg.norm(mjd.qpos[3:7]) == pytest.approx(1.0)
        mujoco.mj_forward(mjm, mjd)
        assert mjd.ncon > 0 or world % 2 == 0


def test_controls_go_beyond_their_range(mjm: mujoco.MjModel) -> None:
    states = testing.perturbed_states(mjm, 8, seed=0, settle=0)
    ctrl = np.array([mjd.ctrl for mjd in states])
    low, high = mjm.actuator_ctrlrange.T
    assert (ctrl < low).any()
    assert (ctrl > high).any()


def test_expected_knows_every_field_of_data(d: mjt.Data) -> None:
    names = {field.name for field in dataclasses.fields(mjt.Data)} - {"batch_size"}
    assert names - set(testing.FIELDS) - set(NOT_COMPARED) == set()


def test_expected_is_dense(mjm: mujoco.MjModel, mjds: list[mujoco.MjData]) -> None:
    mjd = next(mjd for mjd in mjds if mjd.nefc)
    values = testing.expected(mjm, mjd)
    assert values["M"].shape == (mjm.nC,)
    assert values["xmat"].shape == (mjm.nbody, 3, 3)
    assert values["contact.frame"].shape == (mjd.ncon, 3, 3)
    assert values["actuator_moment"].shape == (mjm.nu, mjm.nv)
    assert values["efc_J"].shape == (mjd.nefc, mjm.nv)
    np.testing.assert_allclose(values["efc_J"] @ mjd.qvel, mjd.efc_vel, atol=1e-12)


def test_expected_reads_a_sparse_jacobian(mjm: mujoco.MjModel, mjds: list[mujoco.MjData]) -> None:
    spec = mujoco.MjSpec.from_file(str(mjt.model_path("humanoid")))
    spec.option.jacobian = mujoco.mjtJacobian.mjJAC_SPARSE
    sparse = spec.compile()
    mjd = testing.copy_state(sparse, next(mjd for mjd in mjds if mjd.nefc))
    mujoco.mj_forward(sparse, mjd)
    assert mujoco.mj_isSparse(sparse)
    np.testing.assert_allclose(testing.expected(sparse, mjd)["efc_J"] @ mjd.qvel, mjd.efc_vel, atol=1e-12)


def test_converged_leaves_the_model_alone(mjm: mujoco.MjModel) -> None:
    before = mjm.opt.iterations, mjm.opt.tolerance
    tight = testing.converged(mjm)
    assert (mjm.opt.iterations, mjm.opt.tolerance) == before
    assert (tight.opt.iterations, tight.opt.tolerance) == (100, 1e-12)


def test_compare_finds_no_fault_in_what_was_put(m: mjt.Model, d: mjt.Data, mjds: list[mujoco.MjData]) -> None:
    report = testing.compare(m, d, mjds)
    assert report.ok
    assert report.worst <= 1e-14  # not zero: the Jacobian of the rows is made on request
    assert "xmat" in str(report)


@pytest.mark.parametrize("error", [1e-6, float("nan"), float("inf")])
def test_compare_points_at_the_entry(
    m: mjt.Model, d: mjt.Data, mjds: list[mujoco.MjData], error: float
) -> None:
    xpos = d.xpos.clone()
    xpos[2, 5, 1] += error
    report = testing.compare(m, d.replace(xpos=xpos), mjds, ["xquat", "xpos"])
    assert [failure.field for failure in report.failures] == ["xpos"]
    assert (report["xpos"].world, report["xpos"].index) == (2, (5, 1))
    with pytest.raises(AssertionError, match=r"xpos.*world 2 \[5, 1\]"):
        report.raise_for_failures()


def test_compare_reports_a_missing_contact(
    m: mjt.Model, mjm: mujoco.MjModel, mjds: list[mujoco.MjData]
) -> None:
    lifted = [testing.copy_state(mjm, mjd) for mjd in mjds]
    for mjd in lifted:
        mjd.qpos[2] += 10.0
    d = mjt.forward(m, mjt.put_data(m, lifted))
    report = testing.compare(m, d, mjds, ["ncon", "contact.dist"])
    assert {failure.field for failure in report.failures} == {"ncon", "contact.dist"}
    assert report["contact.dist"].error == float("inf")


def test_compare_takes_a_table_of_tolerances(m: mjt.Model, d: mjt.Data, mjds: list[mujoco.MjData]) -> None:
    changed = d.replace(xpos=d.xpos + 1e-5, qvel=d.qvel + 1e-5)
    assert testing.compare(m, changed, mjds, ["xpos", "qvel"], 1e-3).ok
    report = testing.compare(m, changed, mjds, ["xpos", "qvel"], {"xpos": 1e-3})
    assert [failure.field for failure in report.failures] == ["qvel"]


def test_compare_refuses_another_number_of_worlds(
    m: mjt.Model, d: mjt.Data, mjds: list[mujoco.MjData]
) -> None:
    with pytest.raises(ValueError, match="batch size"):
        testing.compare(m, d, mjds[:3])
    with pytest.raises(ValueError, match="batch size"):
        testing.compare(m, d, mjds[0])


def test_stage_parity_sees_a_stage_that_differs(
    mjm: mujoco.MjModel, mjds: list[mujoco.MjData], monkeypatch: pytest.MonkeyPatch
) -> None:
    com_vel = mjt.com_vel

    def wrong(m: mjt.Model, d: mjt.Data) -> mjt.Data:
        d = com_vel(m, d)
        return d.replace(cdof_dot=d.cdof_dot * (1.0 + 1e-8))

    monkeypatch.setattr(mjt, "com_vel", wrong)
    report = testing.stage_parity(mjm, "com_vel", mjds)
    assert [failure.field for failure in report.failures] == ["cdof_dot"]


def test_stage_parity_knows_every_stage() -> None:
    assert all(callable(getattr(mjt, name)) for name in testing.STAGES)
    with pytest.raises(KeyError):
        testing.STAGES["no-such-stage"]


def test_inertia_magnitude_bounds_the_mass_matrix(mjm: mujoco.MjModel, mjds: list[mujoco.MjData]) -> None:
    magnitude = inertia_magnitude(mjm, mjds[0])
    mass = dense_mass(mjm, mjds[0])
    assert (magnitude >= np.abs(mass) * (1 - 1e-12)).all()
    assert (magnitude[mass == 0.0] == 0.0).mean() > 0.5


def test_rollout_horizon_and_ratio() -> None:
    steps = np.arange(1.0, 11.0)[:, None]
    rollout = testing.Rollout(ours=1e-13 * steps, shadow=1e-12 * 10.0**steps, perturbation=1e-12)
    assert rollout.horizon(amplification=1e4) == 4
    assert rollout.horizon(amplification=1e99) == 10
    assert rollout.ratio() == pytest.approx(1e-2)
    late = testing.Rollout(ours=np.ones((3, 1)), shadow=np.array([[2.0], [1.0], [4.0]]), perturbation=1e-12)
    assert late.ratio(2) == pytest.approx(0.5)
    assert late.ratio(0) == 0.0


def test_rollout_parity_of_a_short_run(mjm: mujoco.MjModel) -> None:
    tight = testing.converged(mjm)
    rollout = testing.rollout_parity(tight, testing.perturbed_states(mjm, 2, seed=1), 10)
    assert rollout.ours.shape == rollout.shadow.shape == (10, 2)
    assert rollout.ratio() <= 1.0
