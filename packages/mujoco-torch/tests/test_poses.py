"""The operators of poses and centres of mass against their references, which other devices run; joined fields."""

from collections.abc import Callable, Iterator

import mujoco
import pytest
import torch
from torch import Tensor

import mujoco_torch as mjt
from mujoco_torch import testing
from mujoco_torch._src import com, poses
from mujoco_torch._src.components import Components
from mujoco_torch._src.pattern import Pattern
from mujoco_torch._src.types import InsideData

# The tree the other way round: sums in another order, products of at most eight quaternions.
TOLERANCE = {torch.float64: 1e-13, torch.float32: 2e-6}
TENSORS = {poses: 4, com: 6}

JOINTS = """
<mujoco>
  <worldbody>
    <camera name="still" pos="1 2 3"/>
    <geom type="plane" size="1 1 1" euler="5 0 0"/>
    <body name="m" mocap="true" pos="1 0 2"><geom size=".1" pos=".1 0 0"/>
      <body pos="0 0 .3"><joint type="ball" pos="0 .1 0"/><geom size=".1"/>
        <site pos=".1 .2 .3" euler="10 20 30"/></body>
    </body>
    <body pos="0 0 1" euler="10 20 30"><freejoint/><geom type="capsule" size=".1 .2"/>
      <body pos=".3 0 0" euler="0 30 0">
        <joint type="slide" axis="1 1 0"/><joint type="hinge" axis="0 1 1" pos=".1 0 .2"/>
        <joint type="ball" pos="0 0 .1"/>
        <geom size=".1 .1" type="capsule" euler="0 45 0"/>
        <body pos="0 .3 0"><geom size=".1" euler="0 0 45"/><site/></body>
      </body>
    </body>
  </worldbody>
</mujoco>
"""
NO_JOINTS = (
    "<mujoco><worldbody><body pos='1 2 3'><geom size='.1' pos='0 0 1'/><site/></body></worldbody></mujoco>"
)


def load(name: str) -> mujoco.MjModel:
    if name in mjt.MODELS:
        return mujoco.MjModel.from_xml_path(str(mjt.model_path(name)))
    return mujoco.MjModel.from_xml_string({"joints": JOINTS, "no joints": NO_JOINTS}[name])


MODELS = ("humanoid", "hopper", "joints", "no joints")
operators = pytest.mark.parametrize(
    "module", [poses, com], ids=lambda module: module.__name__.rpartition(".")[2]
)
models = pytest.mark.parametrize("name", MODELS)


@pytest.fixture
def arguments(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable]:
    """What a step of a model gives an operator."""

    def capture(module, name: str, worlds: int = 9, dtype: torch.dtype = torch.float64) -> tuple:
        given: list[tuple] = []
        call = module._call

        def spy(*args):
            given.append(args)
            return call(*args)

        with monkeypatch.context() as patch:
            patch.setattr(module, "_call", spy)
            mjm = load(name)
            m = mjt.put_model(mjm, dtype=dtype)
            d = mjt.put_data(m, testing.perturbed_states(mjm, worlds, 3, settle=5))
            mjt.forward(m, d)
        kept.append(m)  # keys name patterns of a model that is alive
        return given[0]

    kept: list[mjt.Model] = []
    yield capture


def assert_same(found: tuple, expected: tuple, tolerance: float) -> None:
    assert len(found) == len(expected)
    for x, y in zip(found, expected, strict=True):
        assert x.shape == y.shape and x.dtype == y.dtype and x.is_contiguous()
        torch.testing.assert_close(x, y, rtol=tolerance, atol=tolerance)


@operators
@models
@pytest.mark.parametrize("dtype", list(TOLERANCE), ids=str)
@pytest.mark.parametrize("worlds", [1, 7, 8, 9, 33])
def test_equals_the_reference(
    arguments: Callable, module, name: str, dtype: torch.dtype, worlds: int
) -> None:
    args = arguments(module, name, worlds, dtype)
    assert_same(module._operator(*args), module._reference(*args), TOLERANCE[dtype])


def unit(frames: Tensor) -> Tensor:
    """Frames, or quaternions, with unit quaternions."""
    quat = frames[-4:]
    return torch.cat((frames[:-4], quat / quat.norm(dim=0)))


@operators
def test_any_strides(arguments: Callable, module) -> None:
    args = arguments(module, "joints")
    count = TENSORS[module]
    strided = [x.movedim(-1, 0).contiguous().movedim(0, -1) for x in args[:count]]
    apart = [torch.cat((x, x), 1)[:, : x.shape[1]] for x in args[:count]]
    expected = module._operator(*args)
    for tensors in (strided, apart):
        assert_same(module._operator(*tensors, *args[count:]), expected, 0.0)


@operators
@pytest.mark.parametrize("name", ["joints", "no joints"])
def test_gradients(arguments: Callable, module, name: str) -> None:
    """By all arguments, those of the model as well; quaternions stay unit ones.

    No variables are the frame of the world, the motion of a slot without a joint, and whether a joint is free.
    """
    args = arguments(module, name, 2)
    count = TENSORS[module]
    joint = Pattern.of(args[5]) if module is poses else None
    taken = joint and joint.T @ torch.ones(joint.shape[0], 1, dtype=torch.float64) > 0

    def run(first: Tensor, *rest: Tensor) -> tuple[Tensor, ...]:
        first = torch.cat((args[0][:, :1], first[:, 1:]), 1)
        if module is poses:
            motion, slots, local = rest
            rest = torch.where(taken, unit(motion), args[1]), torch.cat((slots[:6], args[2][6:])), local
            first = unit(first)
        return module._call(first, *rest, *args[count:])

    inputs = [x.detach().clone(memory_format=torch.contiguous_format) for x in args[:count]]
    assert torch.autograd.gradcheck(run, [x.requires_grad_() for x in inputs])


@operators
def test_vmap_is_more_worlds(arguments: Callable, module) -> None:
    args = arguments(module, "joints", 6)
    count = TENSORS[module]
    mapped = [x.shape[-1] == 6 for x in args[:count]]
    split = [x.unflatten(-1, (2, 3)) if y else x for x, y in zip(args[:count], mapped, strict=True)]
    dims = tuple(x.dim() - 2 if y else None for x, y in zip(split, mapped, strict=True))
    out = torch.vmap(lambda *x: module._call(*x, *args[count:]), in_dims=dims, out_dims=-2)(*split)
    assert_same(tuple(x.flatten(-2) for x in out), module._operator(*args), 0.0)


@models
def test_gradients_of_each_world(name: str) -> None:
    """``vmap`` of a gradient, where the rules of the operators serve."""
    mjm = load(name)
    m = mjt.put_model(mjm, dtype=torch.float64)
    d = mjt.put_data(m, testing.perturbed_states(mjm, 3, 3, settle=5))

    def height(qpos: Tensor, d: mjt.Data) -> Tensor:
        after = mjt.forward(m, d.replace(qpos=qpos))
        return after.geom_xpos.square().sum() + after.cdof.square().sum()

    mapped = torch.vmap(torch.func.grad(height))(d.qpos, d)
    each = torch.stack([torch.func.grad(height)(d.qpos[world], d[world]) for world in range(3)])
    torch.testing.assert_close(mapped, each, rtol=1e-12, atol=1e-12)


@operators
def test_opcheck(arguments: Callable, module) -> None:
    name = module.__name__.rpartition(".")[2]
    torch.library.opcheck(getattr(torch.ops.mujoco_torch, name).default, arguments(module, "joints", 3))


@operators
def test_wrong_shapes(arguments: Callable, module) -> None:
    args = list(arguments(module, "joints", 3))
    args[2] = args[2][:, :-1]
    with pytest.raises(RuntimeError, match="has a shape or dtype that does not fit"):
        module._operator(*args)


# ------------------------------------------------------------------------------------------- fields in one tensor


def test_joined_fields_are_parts_of_one_tensor() -> None:
    x = torch.randn(12, 2, 3)
    d = InsideData({}).replace_joined(Components(x), "xipos", "ximat")
    assert torch.equal(d.xipos, x[:3])
    assert torch.equal(d.ximat, x[3:])
    whole = d.joined("xipos", "ximat")
    assert torch.equal(whole, x)
    assert whole.data_ptr() == d.xipos.data_ptr()
    assert torch.equal(d.joined("ximat", "xipos"), torch.cat((x[3:], x[:3])))


def test_a_field_that_is_replaced_leaves_the_tensor() -> None:
    x, new = torch.randn(12, 2, 3), torch.randn(9, 2, 3)
    d = InsideData({}).replace_joined(x, "xipos", "ximat").replace(ximat=new)
    assert torch.equal(d.joined("xipos", "ximat"), torch.cat((x[:3], new)))


def test_arrays_that_lie_one_after_the_other() -> None:
    m = mjt.put_model(load("joints"))
    joined = m.joined("dof_scalar", "dof_linear", "dof_axis", "dof_local_axis")
    assert joined.shape == (8, m.nv, 1)
    assert torch.equal(joined[2:5], m.dof_axis)
    with pytest.raises(ValueError, match="do not lie one after the other"):
        m.joined("dof_linear", "dof_scalar")
