"""Jacobians, applied forces and products with the inertia against MuJoCo C's."""

import mujoco
import numpy as np
import pytest
import torch

import mujoco_torch as mjt
from mujoco_torch import testing

NWORLD = 4


class Scene:
    """A model on both sides, with the same worlds computed by C."""

    def __init__(self, name: str) -> None:
        self.mjm = mujoco.MjModel.from_xml_path(str(mjt.model_path(name)))
        self.mjds = testing.perturbed_states(self.mjm, NWORLD, seed=3)
        for mjd in self.mjds:
            mujoco.mj_forward(self.mjm, mjd)
        self.m = mjt.put_model(self.mjm, dtype=torch.float64)
        self.d = mjt.put_data(self.m, self.mjds)
        rng = np.random.default_rng(0)
        self.points, self.forces, self.torques = rng.standard_normal((3, NWORLD, 3))
        self.vectors = rng.standard_normal((NWORLD, self.mjm.nv))


@pytest.fixture(scope="module", params=["humanoid", "ant", "walker2d"])
def scene(request: pytest.FixtureRequest) -> Scene:
    return Scene(request.param)


def assert_equal(ours: torch.Tensor, reference: np.ndarray) -> None:
    scale = max(1.0, np.abs(reference).max())
    np.testing.assert_allclose(ours.numpy(), reference, rtol=0, atol=testing.SMOOTH * scale)


def test_jac(scene: Scene) -> None:
    for body in range(scene.mjm.nbody):
        ours = mjt.jac(scene.m, scene.d, torch.as_tensor(scene.points), body)
        for world, mjd in enumerate(scene.mjds):
            reference = np.zeros((2, 3, scene.mjm.nv))
            mujoco.mj_jac(scene.mjm, mjd, *reference, scene.points[world], body)
            assert_equal(ours[0][world], reference[0].T)
            assert_equal(ours[1][world], reference[1].T)


def test_jac_of_one_point_and_of_one_world(scene: Scene) -> None:
    point = torch.as_tensor(scene.points[0])
    batch = mjt.jac(scene.m, scene.d, point, 1)
    single = mjt.jac(scene.m, mjt.put_data(scene.m, scene.mjds[2]), point, 1)
    assert batch[0].shape == (NWORLD, scene.mjm.nv, 3)
    assert single[0].shape == (scene.mjm.nv, 3)
    torch.testing.assert_close(single[0], batch[0][2])
    torch.testing.assert_close(single[1], batch[1][2])


@pytest.mark.parametrize("body", [-1, 1000])
def test_jac_refuses_an_unknown_body(scene: Scene, body: int) -> None:
    with pytest.raises(IndexError, match=str(body)):
        mjt.jac(scene.m, scene.d, torch.zeros(3, dtype=torch.float64), body)


def test_apply_ft(scene: Scene) -> None:
    body = scene.mjm.nbody - 1
    force, torque, point = (torch.as_tensor(x) for x in (scene.forces, scene.torques, scene.points))
    ours = mjt.apply_ft(scene.m, scene.d, force, torque, point, body)
    for world, mjd in enumerate(scene.mjds):
        reference = np.zeros(scene.mjm.nv)
        wrench = scene.forces[world], scene.torques[world]
        mujoco.mj_applyFT(scene.mjm, mjd, *wrench, scene.points[world], body, reference)
        assert_equal(ours[world], reference)


def test_xfrc_accumulate(scene: Scene) -> None:
    ours = mjt.xfrc_accumulate(scene.m, scene.d)
    for world, mjd in enumerate(scene.mjds):
        reference = np.zeros(scene.mjm.nv)
        for body in range(1, scene.mjm.nbody):
            force, torque = mjd.xfrc_applied[body].reshape(2, 3)
            mujoco.mj_applyFT(scene.mjm, mjd, force, torque, mjd.xipos[body], body, reference)
        assert_equal(ours[world], reference)


def test_full_m_and_mul_m(scene: Scene) -> None:
    matrix = mjt.full_m(scene.m, scene.d)
    product = mjt.mul_m(scene.m, scene.d, torch.as_tensor(scene.vectors))
    for world, mjd in enumerate(scene.mjds):
        reference = np.zeros((scene.mjm.nv, scene.mjm.nv))
        mujoco.mj_fullM(scene.mjm, mjd, reference)
        assert_equal(matrix[world], reference)
        vector = np.zeros(scene.mjm.nv)
        mujoco.mj_mulM(scene.mjm, mjd, vector, scene.vectors[world])
        assert_equal(product[world], vector)


def test_full_m_shares_no_memory(scene: Scene) -> None:
    matrix = mjt.full_m(scene.m, scene.d)
    matrix.zero_()
    assert scene.d.M.abs().sum() > 0
