"""Spatial algebra against MuJoCo's utility functions, and its gradients where formulas have a 0/0."""

import math
from collections.abc import Callable

import mujoco
import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor

from mujoco_torch._src import spatial
from mujoco_torch._src.components import Components, stacked

# A handful of products of numbers below 10: rounding stays far under this.
CLOSE = dict(rtol=1e-12, atol=1e-12)

property_test = settings(max_examples=60, deadline=None, derandomize=True, database=None)


def arrays(n: int, largest: float = 3.0) -> st.SearchStrategy[np.ndarray]:
    """Vectors of n numbers; tiny ones are zero, since C's thresholds (1e-15) would be a matter of rounding."""
    number = st.floats(-largest, largest).map(lambda x: 0.0 if abs(x) < 1e-9 else x)
    return st.lists(number, min_size=n, max_size=n).map(np.array)


def units(n: int) -> st.SearchStrategy[np.ndarray]:
    return arrays(n).filter(lambda x: np.linalg.norm(x) > 0.1).map(lambda x: x / np.linalg.norm(x))


def inside(x: np.ndarray) -> Tensor:
    """One item in one world: ``[k, 1, 1]``."""
    return torch.as_tensor(np.array(x, dtype=float))[:, None, None]


def outside(x: Tensor | Components) -> np.ndarray:
    return stacked(x)[..., 0, 0].detach().numpy()


def from_c(function: Callable[..., None], size: int, *arguments: object) -> np.ndarray:
    result = np.zeros(size)
    function(result, *arguments)
    return result


def rotation_vector_of(quat: np.ndarray) -> np.ndarray:
    return from_c(mujoco.mju_quat2Vel, 3, quat, 1.0)


# ------------------------------------------------------------------------------------------- vectors


@property_test
@given(arrays(3), arrays(3))
def test_products_of_vectors(a: np.ndarray, b: np.ndarray) -> None:
    np.testing.assert_allclose(outside(spatial.cross(inside(a), inside(b))), np.cross(a, b), **CLOSE)
    np.testing.assert_allclose(outside(spatial.dot(inside(a), inside(b))), a @ b, **CLOSE)


@property_test
@given(st.one_of(arrays(3), arrays(4)))
def test_norm_and_normalize(a: np.ndarray) -> None:
    unit, length = spatial.normalize(inside(a))
    reference = a.copy()
    norm = (mujoco.mju_normalize3 if len(a) == 3 else mujoco.mju_normalize4)(reference)
    np.testing.assert_allclose(outside(unit), reference, **CLOSE)
    np.testing.assert_allclose(outside(length), norm, **CLOSE)
    np.testing.assert_allclose(outside(spatial.norm(inside(a))), norm, **CLOSE)


def test_any_trailing_shape() -> None:
    """Functions look at the first axis only: items and worlds are independent."""
    a, b = torch.randn(2, 3, 4, 5, dtype=torch.float64)
    whole = stacked(spatial.cross(a, b))
    for item in range(4):
        for world in range(5):
            alone = stacked(spatial.cross(a[:, item, world], b[:, item, world]))
            torch.testing.assert_close(whole[:, item, world], alone)


# --------------------------------------------------------------------------------------- quaternions


@property_test
@given(units(4), units(4), arrays(3))
def test_quaternion_algebra(p: np.ndarray, q: np.ndarray, v: np.ndarray) -> None:
    product = spatial.quat_mul(inside(p), inside(q))
    turned = spatial.rotate(inside(p), inside(v))
    np.testing.assert_allclose(outside(product), from_c(mujoco.mju_mulQuat, 4, p, q), **CLOSE)
    np.testing.assert_allclose(outside(turned), from_c(mujoco.mju_rotVecQuat, 3, v, p), **CLOSE)
    matrix = spatial.quat_to_mat(inside(p))
    np.testing.assert_allclose(outside(matrix), from_c(mujoco.mju_quat2Mat, 9, p), **CLOSE)
    np.testing.assert_allclose(outside(matrix).reshape(3, 3) @ v, outside(turned), **CLOSE)
    # The product of rotations is the rotation of the product.
    twice = spatial.rotate(inside(p), spatial.rotate(inside(q), inside(v)))
    np.testing.assert_allclose(outside(spatial.rotate(product, inside(v))), outside(twice), **CLOSE)


@property_test
@given(units(3), st.floats(-20.0, 20.0))
def test_axis_angle(axis: np.ndarray, angle: float) -> None:
    ours = spatial.axis_angle_to_quat(inside(axis), inside([angle])[0])
    np.testing.assert_allclose(outside(ours), from_c(mujoco.mju_axisAngle2Quat, 4, axis, angle), **CLOSE)


@property_test
@given(units(4), arrays(3, 50.0), st.floats(1e-3, 0.1))
def test_integrate_quat(q: np.ndarray, velocity: np.ndarray, dt: float) -> None:
    reference = q.copy()
    mujoco.mju_quatIntegrate(reference, velocity, dt)
    ours = spatial.integrate_quat(inside(q), inside(velocity), dt)
    np.testing.assert_allclose(outside(ours), reference, **CLOSE)


# Angles on both sides of where the series takes over (1e-4 rad) and next to a half turn.
ANGLES = (0.0, 1e-12, 1e-7, 0.99e-4, 1.01e-4, 2.1e-4, 0.1, 1.0, 3.0, math.pi - 1e-6, math.pi - 1e-12)


@pytest.mark.parametrize("angle", ANGLES)
@pytest.mark.parametrize("sign", [1.0, -1.0])
@pytest.mark.parametrize("axis", [(1, 0, 0), (0, -0.6, 0.8), (0.48, 0.6, -0.64)])
def test_rotation_vector_round_trip(angle: float, sign: float, axis: tuple[float, ...]) -> None:
    """The quaternions q and -q are one rotation, so they give one rotation vector."""
    vector = angle * np.array(axis)
    quat = sign * spatial.rotation_vector_to_quat(inside(vector))
    np.testing.assert_allclose(np.linalg.norm(outside(quat)), 1.0, **CLOSE)
    back = outside(spatial.quat_to_rotation_vector(quat))
    np.testing.assert_allclose(back, vector, rtol=1e-11, atol=1e-14)


@property_test
@given(units(4))
def test_quat_to_rotation_vector(q: np.ndarray) -> None:
    ours = outside(spatial.quat_to_rotation_vector(inside(q)))
    np.testing.assert_allclose(ours, rotation_vector_of(q), **CLOSE)
    if abs(q[0]) > 1e-9:
        np.testing.assert_allclose(outside(spatial.quat_to_rotation_vector(inside(-q))), ours, **CLOSE)
    assert np.linalg.norm(ours) <= math.pi + 1e-12


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_half_turn(sign: float) -> None:
    """At w = 0 both ways round are as short; ours is C's."""
    quat = sign * np.array([0.0, 0.6, 0.0, -0.8])
    np.testing.assert_allclose(
        outside(spatial.quat_to_rotation_vector(inside(quat))), rotation_vector_of(quat), **CLOSE
    )


@property_test
@given(arrays(3, 1.8), arrays(3))
def test_rotation_vector_rate(vector: np.ndarray, spin: np.ndarray) -> None:
    """Central differences of the rotation vector along the motion; vectors stay clear of the half turn."""
    step = 1e-5

    def moved(dt: float) -> np.ndarray:
        quat = spatial.integrate_quat(spatial.rotation_vector_to_quat(inside(vector)), inside(spin), dt)
        return outside(spatial.quat_to_rotation_vector(quat))

    assume(np.linalg.norm(vector) < 3.0)
    rate = outside(spatial.rotation_vector_rate(inside(vector), inside(spin)))
    np.testing.assert_allclose(rate, (moved(step) - moved(-step)) / (2 * step), rtol=0, atol=1e-6)


@pytest.mark.parametrize("angle", [0.0, 1e-8, 0.99e-4, 1.01e-4, 1e-3])
def test_rotation_vector_rate_near_zero(angle: float) -> None:
    """Both branches agree with the series: at 1e-4 rad its next term is 1e-20."""
    vector, spin = angle * np.array([0.48, 0.6, -0.64]), np.array([0.3, -2.0, 1.1])
    twice = np.cross(vector, np.cross(vector, spin))
    series = spin + np.cross(vector, spin) / 2 + (1 / 12 + angle**2 / 720) * twice
    rate = outside(spatial.rotation_vector_rate(inside(vector), inside(spin)))
    np.testing.assert_allclose(rate, series, rtol=0, atol=1e-14)


# ----------------------------------------------------------------------------------- spatial vectors


def skew(a: np.ndarray) -> np.ndarray:
    """The matrix of the cross product with a."""
    return np.cross(a, np.eye(3)).T


@property_test
@given(arrays(6), arrays(6), arrays(6))
def test_cross_products_of_spatial_vectors(v: np.ndarray, m: np.ndarray, f: np.ndarray) -> None:
    motion = spatial.motion_cross(inside(v), inside(m))
    force = spatial.force_cross(inside(v), inside(f))
    matrix = np.block([[skew(v[:3]), np.zeros((3, 3))], [skew(v[3:]), skew(v[:3])]])
    np.testing.assert_allclose(outside(motion), matrix @ m, **CLOSE)
    np.testing.assert_allclose(outside(force), -matrix.T @ f, **CLOSE)
    # The two are dual: power is conserved, (v x m) . f = - m . (v x* f).
    power = spatial.dot(motion, inside(f)) + spatial.dot(inside(m), force)
    np.testing.assert_allclose(outside(power), 0.0, atol=1e-11)
    # A motion does not change itself.
    np.testing.assert_allclose(outside(spatial.motion_cross(inside(v), inside(v))), 0.0, atol=1e-12)


@property_test
@given(arrays(10), arrays(6), arrays(6))
def test_inertia_mul(inertia: np.ndarray, v: np.ndarray, w: np.ndarray) -> None:
    ours = spatial.inertia_mul(inside(inertia), inside(v))
    xx, yy, zz, xy, xz, yz = inertia[:6]
    rotational = np.array([[xx, xy, xz], [xy, yy, yz], [xz, yz, zz]])
    moment = skew(inertia[6:9])
    matrix = np.block([[rotational, moment], [-moment, inertia[9] * np.eye(3)]])
    np.testing.assert_allclose(outside(ours), matrix @ v, **CLOSE)
    # Inertia is symmetric.
    other = spatial.inertia_mul(inside(inertia), inside(w))
    np.testing.assert_allclose(
        outside(spatial.dot(ours, inside(w))), outside(spatial.dot(other, inside(v))), rtol=0, atol=1e-10
    )


# ----------------------------------------------------------------------------------------- gradients


def jacobian(function: Callable[[Tensor], Tensor], at: tuple[float, ...]) -> np.ndarray:
    x = torch.tensor(at, dtype=torch.float64)
    return torch.autograd.functional.jacobian(
        lambda x: stacked(function(x[:, None, None]))[..., 0, 0], x
    ).numpy()


def test_gradients_at_zero() -> None:
    """Exact where the function has a derivative; zero where it has none (a length at zero)."""
    zero, identity = (0.0, 0.0, 0.0), (1.0, 0.0, 0.0, 0.0)
    half = np.eye(4, 3, k=-1) / 2
    np.testing.assert_array_equal(jacobian(spatial.norm, zero), np.zeros(3))
    np.testing.assert_array_equal(jacobian(spatial.rotation_vector_to_quat, zero), half)
    np.testing.assert_array_equal(jacobian(lambda v: spatial.normalize(v)[0], zero), np.zeros((3, 3)))
    at_identity = jacobian(spatial.quat_to_rotation_vector, identity)
    np.testing.assert_array_equal(at_identity[:, 1:], 2 * np.eye(3))
    spin = torch.tensor([0.3, -2.0, 1.1], dtype=torch.float64)[:, None, None]
    about = jacobian(lambda v: spatial.rotation_vector_rate(v, spin), zero)
    expected = np.array([np.cross(e, [0.3, -2.0, 1.1]) / 2 for e in np.eye(3)]).T
    np.testing.assert_allclose(about, expected, atol=1e-15)


@pytest.mark.parametrize("quat", [(1.0, 0.0, 0.0, 0.0), (-1.0, 0.0, 0.0, 0.0)])
def test_gradient_of_a_turn_at_identity(quat: tuple[float, ...]) -> None:
    """The angle between a body and itself has a finite gradient, through normalisation too."""
    gradient = jacobian(lambda q: spatial.quat_to_rotation_vector(spatial.normalize(q)[0]), quat)
    np.testing.assert_allclose(gradient[:, 1:], 2 * quat[0] * np.eye(3), atol=1e-14)
    np.testing.assert_allclose(gradient[:, 0], 0.0, atol=1e-14)


@pytest.mark.parametrize(
    "function",
    [
        spatial.norm, lambda v: spatial.normalize(v)[0], spatial.rotation_vector_to_quat,
        lambda v: spatial.rotation_vector_rate(v, v.flip(0)),
        lambda v: spatial.quat_to_rotation_vector(spatial.rotation_vector_to_quat(v)),
        lambda v: spatial.integrate_quat(spatial.rotation_vector_to_quat(v), v.flip(0), 0.1),
    ],
)  # fmt: skip
@pytest.mark.parametrize("size", [1e-3, 0.7, 2.5])
def test_gradients_of_vector_functions(function: Callable[[Tensor], Tensor], size: float) -> None:
    vector = size * torch.tensor([0.48, 0.6, -0.64], dtype=torch.float64)[:, None, None]
    # Short differences for short vectors, so that a curvature of 1/size does not spoil them.
    torch.autograd.gradcheck(
        lambda v: stacked(function(v)), vector.requires_grad_(), eps=1e-7 * size**0.5, atol=1e-5
    )
