"""Planes, spheres and capsules against ``mj_collision``: contact lists, their geometry, gradients."""

from collections.abc import Sequence
from typing import NamedTuple

import mujoco
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from mujoco_torch._src.collision.pairs import GeomPair, geom_pairs
from mujoco_torch._src.collision.primitive import COLLIDERS, Collider, default_hint, frame_along
from mujoco_torch._src.components import stacked

TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-5}  # a few rounding steps at the scale of the scene

Found = tuple[tuple[int, int], np.ndarray, np.ndarray, np.ndarray]  # geoms, dist, pos, frame


def inside(values: Sequence[np.ndarray], dtype: torch.dtype) -> Tensor:
    """Per-world arrays ``(n, k)`` as one tensor ``[k, n, B]``."""
    return torch.as_tensor(np.stack(values).T.copy(), dtype=dtype)


class Contacts(NamedTuple):
    """Contacts of all slots: ``[k, n, B]``, ``[3, k, n, B]``, ``[9, k, n, B]``, ``[k, n, B]``."""

    dist: Tensor
    pos: Tensor
    frame: Tensor
    active: Tensor


def run(collider: Collider, *inputs: Tensor | float) -> Contacts:
    """A collider's contacts, all of one shape and stacked, with the frames that ``collision`` makes of them."""
    c = collider(*inputs)
    dist = torch.stack(torch.broadcast_tensors(*c.dist))

    def slots(values: Sequence) -> Tensor:
        return torch.stack([stacked(x).expand(len(x), *dist.shape[1:]) for x in values], 1)

    normals = c.normal * (len(dist) // len(c.normal))
    frames = [frame_along(x, default_hint(x) if c.hint is None else c.hint) for x in normals]
    active = torch.stack([x.expand(dist.shape[1:]) for x in c.active])
    return Contacts(dist, slots(c.pos), slots(frames), active)


def collide(
    mjm: mujoco.MjModel, worlds: list[mujoco.MjData], pairs: Sequence[GeomPair], dtype: torch.dtype
) -> Contacts:
    """Contacts of pairs of one kind in all worlds."""
    ids = [p.geom1 for p in pairs], [p.geom2 for p in pairs]
    geoms = []
    for geom in ids:
        geoms.append(inside([d.geom_xpos[geom] for d in worlds], dtype))
        geoms.append(inside([d.geom_xmat[geom] for d in worlds], dtype))
        geoms.append(inside([mjm.geom_size[geom]], dtype))
    margin = torch.tensor([[p.margin + p.gap] for p in pairs], dtype=dtype)
    return run(COLLIDERS[pairs[0].type1, pairs[0].type2], *geoms, margin)


def found(
    mjm: mujoco.MjModel, worlds: list[mujoco.MjData], dtype: torch.dtype = torch.float64
) -> list[list[Found]]:
    """The contacts of every world, in the order of the pair list."""
    pairs = geom_pairs(mjm)
    kinds = {
        (p.type1, p.type2): [q for q in pairs if (q.type1, q.type2) == (p.type1, p.type2)] for p in pairs
    }
    results = {kind: collide(mjm, worlds, members, dtype) for kind, members in kinds.items()}
    for contacts in results.values():
        assert all(x.dtype in (dtype, torch.bool) and x.isfinite().all() for x in contacts)
    lists: list[list[Found]] = [[] for _ in worlds]
    for pair in pairs:
        kind = pair.type1, pair.type2
        contacts, i = results[kind], kinds[kind].index(pair)
        assert contacts.dist.shape == (pair.maxcon, len(kinds[kind]), len(worlds))
        for world, listed in enumerate(lists):
            for slot in range(pair.maxcon):
                if contacts.active[slot, i, world]:
                    values = (contacts.dist, contacts.pos, contacts.frame)
                    listed.append(
                        ((pair.geom1, pair.geom2), *(v[..., slot, i, world].numpy() for v in values))
                    )
    return lists


def expected(mjm: mujoco.MjModel, worlds: list[mujoco.MjData]) -> list[list[Found]]:
    for mjd in worlds:
        mujoco.mj_collision(mjm, mjd)
    return [
        [(tuple(c.geom.tolist()), np.array(c.dist), c.pos.copy(), c.frame.copy()) for c in mjd.contact]
        for mjd in worlds
    ]


def assert_same(
    mjm: mujoco.MjModel,
    worlds: list[mujoco.MjData],
    dtype: torch.dtype = torch.float64,
    frame_tolerance: float | None = None,
) -> int:
    """Same contacts as C in every world; returns how many."""
    atol = TOLERANCE[dtype]
    total = 0
    for ours, theirs in zip(found(mjm, worlds, dtype), expected(mjm, worlds), strict=True):
        assert [c[0] for c in ours] == [c[0] for c in theirs]
        for our, their in zip(ours, theirs, strict=True):
            np.testing.assert_allclose(our[1], their[1], rtol=0, atol=atol, err_msg="dist")
            np.testing.assert_allclose(our[2], their[2], rtol=0, atol=atol, err_msg="pos")
            np.testing.assert_allclose(
                our[3], their[3], rtol=0, atol=frame_tolerance or atol, err_msg="frame"
            )
        total += len(theirs)
    return total


def free_geoms(geoms: Sequence[str], world: str = "") -> mujoco.MjModel:
    """A model with one free body per geom."""
    bodies = "".join(f"<body><freejoint/><geom mass='1' {g}/></body>" for g in geoms)
    return mujoco.MjModel.from_xml_string(f"<mujoco><worldbody>{world}{bodies}</worldbody></mujoco>")


def posed(mjm: mujoco.MjModel, qpos: np.ndarray) -> mujoco.MjData:
    mjd = mujoco.MjData(mjm)
    mjd.qpos[:] = qpos
    mujoco.mj_kinematics(mjm, mjd)
    return mjd


def pose(
    pos: Sequence[float] = (0, 0, 0), axis: Sequence[float] = (0, 0, 1), angle: float = 0.0
) -> np.ndarray:
    quat = np.zeros(4)
    mujoco.mju_axisAngle2Quat(quat, np.array(axis, dtype=float), angle)
    return np.concatenate((np.array(pos, dtype=float), quat))


def random_worlds(
    mjm: mujoco.MjModel, rng: np.random.Generator, spread: float, count: int = 5
) -> list[mujoco.MjData]:
    worlds = []
    for _ in range(count):
        qpos = rng.normal(size=(mjm.nq // 7, 7))
        qpos[:, :3] *= spread
        worlds.append(posed(mjm, qpos.ravel()))
    return worlds


SCENE = (
    'type="sphere" size=".3"',
    'type="sphere" size=".1" margin=".05"',
    'type="capsule" size=".2 .5"',
    'type="capsule" size=".1 .05" margin=".03" gap=".1"',
    'type="sphere" size=".25" gap=".2"',
    'type="capsule" size=".15 .4" margin="-.02"',
    'type="capsule" size=".3 1"',
)
FLOOR = '<geom type="plane" size="1 1 1"/><geom type="plane" size="1 1 1" pos="0 0 -.2" euler="25 -40 60"/>'
STATIC = '<geom type="capsule" size=".1 .6" euler="80 0 10"/><geom size=".2" pos=".3 0 0"/>'


SPREADS = {"deep": 0.05, "touching": 0.4, "sparse": 1.0}


@pytest.mark.parametrize("spread", SPREADS)
def test_random_poses(spread: str) -> None:
    """Planes, static and free geoms, margins and gaps, from deep penetration to few contacts."""
    mjm = free_geoms(SCENE, FLOOR + STATIC)
    worlds = random_worlds(mjm, np.random.default_rng(7), SPREADS[spread], count=40)
    assert assert_same(mjm, worlds) > 10 * len(worlds)


@pytest.mark.parametrize("spread", SPREADS)
def test_random_poses_in_single_precision(spread: str) -> None:
    """The same without the poses whose list of contacts hangs on rounding."""
    mjm = free_geoms(SCENE, FLOOR + STATIC)
    worlds = random_worlds(mjm, np.random.default_rng(7), SPREADS[spread], count=40)
    clear = [w for w in worlds if not near_detection(mjm, w)]
    # the normal of two centres a millimetre apart keeps four digits
    assert assert_same(mjm, clear, torch.float32, 1e-3 if spread == "deep" else None) > 10 * len(clear)


def near_detection(mjm: mujoco.MjModel, mjd: mujoco.MjData) -> bool:
    """Whether a contact of this pose is listed or not by less than 1e-4 m."""
    counts = []
    gap = mjm.geom_gap.copy()
    for shift in (-1e-4, 1e-4):
        mjm.geom_gap[:] = gap + shift
        mujoco.mj_collision(mjm, mjd)
        counts.append(mjd.ncon)
    mjm.geom_gap[:] = gap
    return counts[0] != counts[1]


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32 - 1), st.floats(0.0, 1.5))
def test_random_models(seed: int, spread: float) -> None:
    """Random sizes, margins and gaps of random geoms."""
    rng = np.random.default_rng(seed)
    geoms = []
    for _ in range(rng.integers(1, 7)):
        kind = rng.choice(["sphere", "capsule"])
        size = f"{rng.uniform(0.01, 0.5)} {rng.uniform(0.01, 1.0)}"
        geoms.append(
            f'type="{kind}" size="{size}" margin="{rng.uniform(0, 0.2)}" gap="{rng.uniform(0, 0.2)}"'
        )
    mjm = free_geoms(geoms, FLOOR)
    assert_same(mjm, random_worlds(mjm, rng, spread, count=4))


CAPSULES = ('type="capsule" size=".1 .5" gap="2"', 'type="capsule" size=".15 .3" gap="2"')


@pytest.mark.parametrize("angle", [0.0, 1e-9, 1e-6, 0.9e-4, 1.1e-4, 1e-3, np.pi, np.pi - 1e-7, np.pi - 1e-3])
def test_parallel_capsules(angle: float) -> None:
    """Side by side, shifted, end to end and apart; two contacts up to an angle of 1e-4."""
    mjm = free_geoms(CAPSULES)
    first = pose((0.1, 0.2, 0.3), (1, 2, 3), 1.1)
    axis, side = posed(mjm, np.concatenate((first, pose()))).geom_xmat[0].reshape(3, 3)[:, [2, 0]].T
    worlds = []
    for along in (0.0, 0.1, 0.3, 0.81, -0.9, 2.0):
        for apart in (0.0, 0.2, 0.5):
            second = first.copy()
            second[:3] += along * axis + apart * side
            turn = pose(axis=side, angle=angle)[3:]
            mujoco.mju_mulQuat(second[3:], turn, first[3:].copy())
            worlds.append(posed(mjm, np.concatenate((first, second))))
    sine = abs(np.sin(angle))
    assert assert_same(mjm, worlds) == len(worlds) * (1 if sine > 1e-4 else 2)


def test_parallel_capsules_lone_second_end() -> None:
    """Only the upper end of two nearly parallel capsules is near: its contact takes the first slot."""
    mjm = free_geoms(('type="capsule" size=".01 50"', 'type="capsule" size=".01 50"'))
    tilted = [posed(mjm, np.concatenate((pose(), pose((0.022, 0, 0), (0, 1, 0), a)))) for a in (-9e-5, 9e-5)]
    assert assert_same(mjm, tilted) == 2


def test_crossed_capsules_and_ends() -> None:
    """Axes that meet, cross at a distance, and ends against sides and ends."""
    mjm = free_geoms(CAPSULES)
    places = [
        (0, 0, 0),
        (0.2, 0, 0),
        (0, 0, 0.5),
        (0, 0.2, 0.6),
        (0.3, 0, 0.5),
        (0.35, 0.1, -0.5),
        (0.4, 0, 0.8),
    ]
    turns = [((0, 1, 0), np.pi / 2), ((1, 0, 0), np.pi / 2), ((1, 1, 0), 0.7), ((0, 1, 0), -2.5)]
    worlds = [posed(mjm, np.concatenate((pose(), pose(p, *t)))) for p in places for t in turns]
    assert assert_same(mjm, worlds) == len(worlds)


def test_point_capsules() -> None:
    """A segment too short to have a direction counts as its lower end."""
    short = 'type="capsule" size=".1 1e-8" gap="2"'
    mjm = free_geoms((short, CAPSULES[0], short))
    rng = np.random.default_rng(3)
    worlds = random_worlds(mjm, rng, 0.2)
    for ours, theirs in zip(found(mjm, worlds), expected(mjm, worlds), strict=True):
        assert [c[0] for c in ours] == [c[0] for c in theirs]
        for our, their in zip(ours, theirs, strict=True):
            np.testing.assert_allclose(our[1], their[1], atol=1e-10)


@pytest.mark.parametrize("kinds", ["sphere sphere", "sphere capsule", "capsule capsule"])
def test_coincident_centres(kinds: str) -> None:
    """The normal is the cross product of the z axes, or x where these align."""
    sizes = {"sphere": 'type="sphere" size=".3"', "capsule": 'type="capsule" size=".2 .4"'}
    mjm = free_geoms([sizes[k] for k in kinds.split()])
    turns = [
        ((0, 0, 1), 0.3),
        ((1, 0, 0), 0.5),
        ((0, 1, 0), np.pi / 2),
        ((1, 1, 0), np.pi),
        ((2, 1, 0), 1e-20),
    ]
    worlds = [posed(mjm, np.concatenate((pose((1, 2, 3)), pose((1, 2, 3), *t)))) for t in turns]
    assert assert_same(mjm, worlds) >= len(worlds)


def test_capsule_upright_lying_and_upside_down_on_planes() -> None:
    """Both ends, one end (either), and along the normal, which leaves the first tangent undefined."""
    world = '<geom type="plane" size="1 1 1" quat="0 0 1 0" contype="2" conaffinity="2"/>' + FLOOR
    mjm = free_geoms(['type="capsule" size=".2 .5" contype="3"'], world)
    turns = [((1, 0, 0), 0.0), ((1, 0, 0), np.pi), ((0, 1, 0), np.pi / 2), ((1, 0, 0), 1.0), ((1, 0, 0), 2.0)]
    worlds = [posed(mjm, pose((0, 0, z), *t)) for t in turns for z in (0.1, 0.5, 0.69)]
    assert assert_same(mjm, worlds) > len(worlds)


@pytest.mark.parametrize("plane", ["0 0 0", "90 0 0", "0 90 0", "30 -50 10"])
def test_first_tangent_of_an_axis_along_the_normal(plane: str) -> None:
    """C takes the world's x axis then, in every dtype here."""
    mjm = free_geoms(['type="capsule" size=".2 .5"'], f'<geom type="plane" size="1 1 1" euler="{plane}"/>')
    quat = mjm.geom_quat[0]
    worlds = [posed(mjm, np.concatenate(((0, 0, 0), quat)))]
    assert_same(mjm, worlds)
    exact = found(mjm, worlds)
    single = found(mjm, worlds, torch.float32)
    for a, b in zip(exact[0], single[0], strict=True):
        np.testing.assert_allclose(a[3], b[3], atol=1e-6)


def test_one_world_of_a_static_geom_serves_all() -> None:
    """Inputs with one world give the same as inputs repeated per world."""
    rng = np.random.default_rng(0)
    for (kind1, _), collider in COLLIDERS.items():
        mats = [np.linalg.qr(rng.normal(size=(3, 3)))[0].reshape(9, 1, 1) for _ in range(2)]
        one = (torch.zeros(3, 1, 1).double(), torch.tensor(mats[0]), torch.full((3, 1, 1), 0.3).double())
        many = (torch.tensor(rng.normal(size=(3, 1, 4))), torch.tensor(mats[1]).expand(9, 1, 4), one[2])
        repeated = tuple(x.expand(-1, -1, 4) for x in one)
        for a, b in zip(run(collider, *one, *many, 0.1), run(collider, *repeated, *many, 0.1), strict=True):
            assert a.shape == b.shape and torch.equal(a, b), kind1


def test_gradients_match_finite_differences() -> None:
    """Distance, position and frame of generic poses, by every collider."""
    rng = np.random.default_rng(11)
    size = torch.tensor([0.3, 0.4, 0.0], dtype=torch.float64).reshape(3, 1, 1).expand(3, 2, 2)
    for collider in COLLIDERS.values():
        pos = [torch.tensor(rng.normal(size=(3, 2, 2)), requires_grad=True) for _ in range(2)]
        turns = rng.normal(size=(2, 2, 2, 3, 3))
        mats = [torch.tensor(np.linalg.qr(t)[0].reshape(2, 2, 9).T.copy(), requires_grad=True) for t in turns]

        def smooth(p1: Tensor, m1: Tensor, p2: Tensor, m2: Tensor, collider=collider) -> tuple[Tensor, ...]:
            return run(collider, p1, m1, size, p2, m2, size, 10.0)[:3]

        assert torch.autograd.gradcheck(smooth, (pos[0], mats[0], pos[1], mats[1]), atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("offset", [0.0, 1e-20, 1e-16, 1e-12, 0.3], ids=str)
@pytest.mark.parametrize("angle", [0.0, 1e-20, 1e-9, np.pi / 2, np.pi], ids=str)
@pytest.mark.parametrize("length", [0.0, 0.3], ids=str)
def test_gradients_are_finite_at_degenerate_poses(
    dtype: torch.dtype, offset: float, angle: float, length: float
) -> None:
    """Coincident centres, parallel and crossing axes, segments without length: no NaN, no infinity."""
    c, s = np.cos(angle), np.sin(angle)
    for collider in COLLIDERS.values():
        pos1 = torch.zeros(3, 1, 1, dtype=dtype, requires_grad=True)
        pos2 = torch.full((3, 1, 1), offset, dtype=dtype, requires_grad=True)
        mat1 = torch.eye(3, dtype=dtype).reshape(9, 1, 1).requires_grad_()
        turned = torch.tensor([[1, 0, 0], [0, c, -s], [0, s, c]], dtype=dtype)
        mat2 = turned.reshape(9, 1, 1).requires_grad_()
        size = torch.tensor([0.2, length, 0.0], dtype=dtype).reshape(3, 1, 1).requires_grad_()
        contacts = run(collider, pos1, mat1, size, pos2, mat2, size, 1.0)
        assert contacts.active[0].all()
        for value in contacts[:3]:
            assert value.isfinite().all()
            for gradient in torch.autograd.grad(
                value.square().sum(), (pos1, mat1, pos2, mat2, size), retain_graph=True, allow_unused=True
            ):
                assert gradient is None or gradient.isfinite().all()
