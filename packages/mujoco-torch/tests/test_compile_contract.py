"""What ``torch.compile(step, fullgraph=True)`` promises: one graph, compiled once, equal to eager.

The backends "eager" and "aot_eager" run the graph as captured; they tell of breaks, guards and recompilations in
seconds. Only the tests marked slow generate code.
"""

from collections.abc import Callable, Iterator
from pathlib import Path

import mujoco
import pytest
import torch
import torch._dynamo
from functorch.compile import make_boxed_func
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.utils import clear_compilation_metrics, counters, get_compilation_metrics

import mujoco_torch as mjt
from mujoco_torch import testing

NWORLD = 4
MOST_GUARDS = 250
# Compiled and eager run the same operations: what may differ is the order of a sum. (Backends that capture only.)
SAME = 1e-12

SMALL = """
<mujoco model="small">
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
    <body pos="1 0 1">
      <joint name="ball" type="ball" damping="0.05" stiffness="0.5" range="0 30"/>
      <geom type="capsule" size="0.03" fromto="0 0 0 0.2 0 0"/>
    </body>
  </worldbody>
  <actuator>
    <motor joint="arm" ctrllimited="true" ctrlrange="-1 1"/>
    <motor joint="ball" gear="0.1 0.2 0.3"/>
  </actuator>
</mujoco>
"""

TINY = """
<mujoco model="tiny">
  <worldbody>
    <geom type="plane" size="1 1 0.1"/>
    <body pos="0 0 0.09"><joint type="slide" axis="0 0 1"/><geom type="sphere" size="0.1"/></body>
  </worldbody>
</mujoco>
"""

Step = Callable[[mjt.Model, mjt.Data], mjt.Data]


def load(name: str) -> mujoco.MjModel:
    if name == "everything":
        return mujoco.MjModel.from_xml_path(str(Path(__file__).with_name("everything.xml")))
    if name in ("small", "tiny"):
        return mujoco.MjModel.from_xml_string({"small": SMALL, "tiny": TINY}[name])
    return mujoco.MjModel.from_xml_path(str(mjt.model_path(name)))


def batch(m: mjt.Model, mjm: mujoco.MjModel, seed: int = 0) -> mjt.Data:
    return mjt.put_data(m, testing.perturbed_states(mjm, NWORLD, seed, settle=100))


def assert_equal(d: mjt.Data, other: mjt.Data, tolerance: float = SAME) -> None:
    """Values relative to each field's largest, since cancellation leaves rounding noise of the terms."""
    assert d.batch_size == other.batch_size
    ours = dict(d.to_tensordict().items(include_nested=True, leaves_only=True))
    theirs = dict(other.to_tensordict().items(include_nested=True, leaves_only=True))
    assert ours.keys() == theirs.keys()
    for name, x in ours.items():
        y = theirs[name]
        assert torch.equal(x.isfinite(), y.isfinite()), name
        x, y = x.nan_to_num(posinf=0.0), y.nan_to_num(posinf=0.0)
        scale = max(1.0, float(y.abs().max())) if y.numel() else 1.0
        error = float((x - y).abs().max()) / scale if y.numel() else 0.0
        assert error <= tolerance, f"{name}: {error}"


@pytest.fixture(autouse=True)
def _compiler_forgets() -> Iterator[None]:
    forget()
    yield
    forget()


def forget() -> None:
    torch._dynamo.reset()
    counters.clear()
    clear_compilation_metrics()


def compilations() -> int:
    return len(get_compilation_metrics())


def assert_one_graph() -> None:
    assert dict(counters["graph_break"]) == {}
    assert counters["stats"]["unique_graphs"] == 1
    reasons = [record.recompile_reason for record in get_compilation_metrics()]
    assert reasons == [None]


def masked_reset(m: mjt.Model, d: mjt.Data) -> mjt.Data:
    return torch.where(torch.arange(NWORLD) % 2 == 0, mjt.make_data(m, NWORLD), d)


def in_place_reset(m: mjt.Model, d: mjt.Data) -> mjt.Data:
    d = d.clone()
    d[torch.arange(NWORLD) % 2 == 0] = mjt.make_data(m, 2)
    return d


def lives(m: mjt.Model, mjm: mujoco.MjModel, step: Step) -> Iterator[tuple[str, mjt.Data]]:
    """Data as a training loop makes it, of every origin."""
    yield "make_data", mjt.make_data(m, NWORLD)
    d = step(m, mjt.make_data(m, NWORLD))
    yield "fed back", d
    d = step(m, d)
    yield "fed back twice", d
    yield "masked reset", masked_reset(m, d)
    yield "reset in place", in_place_reset(m, d)
    yield "new controls", d.replace(ctrl=torch.rand(NWORLD, m.nu, dtype=m.dtype))
    yield "stacked", torch.stack([mjt.make_data(m) for _ in range(NWORLD)])
    yield "stacked worlds of a batch", torch.stack([d[world] for world in range(NWORLD)])
    yield "put_data", batch(m, mjm)
    yield "clone", d.clone()
    yield "after forward", mjt.forward(m, d)


@pytest.mark.parametrize("name", [*mjt.MODELS, "everything"])
def test_contract(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """One graph, no break, no recompilation, few guards, the values of eager."""
    mjm = load(name)
    m = mjt.put_model(mjm, dtype=torch.float64)
    step = torch.compile(mjt.step, backend="eager", fullgraph=True)
    for origin, d in lives(m, mjm, step):
        before = d.clone()
        assert_equal(step(m, d), mjt.step(m, d))
        assert compilations() == 1, (
            f"recompiled for {origin}: {get_compilation_metrics()[-1].recompile_reason}"
        )
        assert (d == before).all(), f"{origin} was changed"
    assert_one_graph()
    guards = get_compilation_metrics()[0].guard_count
    with capsys.disabled():
        print(f"\n{name}: {guards} guards", end=" ")
    assert 0 < guards <= MOST_GUARDS


def test_models_of_one_structure_share_a_graph() -> None:
    """Masses, lengths and the like are inputs of the graph; the file read again is the same structure."""
    mjm = load("tiny")
    step = torch.compile(mjt.step, backend="eager", fullgraph=True)
    m = mjt.put_model(mjm, dtype=torch.float64)
    d = batch(m, mjm)
    expected = mjt.step(m, d)
    assert_equal(step(m, d), expected)
    del m
    again = mjt.put_model(load("tiny"), dtype=torch.float64)
    assert_equal(step(again, d), expected)
    mjm.body_mass *= 1.5
    mjm.body_inertia *= 1.5
    heavier = mjt.put_model(mjm, dtype=torch.float64)
    assert_equal(step(heavier, d), mjt.step(heavier, d))
    assert not torch.equal(step(heavier, d).qvel, expected.qvel)
    assert compilations() == 1


def test_each_dtype_compiles_once() -> None:
    mjm = load("tiny")
    step = torch.compile(mjt.step, backend="eager", fullgraph=True)
    for _ in range(2):
        for dtype, tolerance in ((torch.float64, SAME), (torch.float32, 1e-5)):
            m = mjt.put_model(mjm, dtype=dtype)
            d = batch(m, mjm)
            after = step(m, d)
            assert after.qpos.dtype == dtype
            assert_equal(after, mjt.step(m, d), tolerance)
    assert compilations() == 2


def test_one_world_without_a_batch() -> None:
    mjm = load("tiny")
    m = mjt.put_model(mjm, dtype=torch.float64)
    step = torch.compile(mjt.step, backend="eager", fullgraph=True)
    d = mjt.make_data(m)
    for _ in range(3):
        after = step(m, d)
        assert_equal(after, mjt.step(m, d))
        d = after
    assert_one_graph()


def test_a_user_s_function_with_several_steps_is_one_graph() -> None:
    mjm = load("small")
    m = mjt.put_model(mjm, dtype=torch.float64)

    def rollout(d: mjt.Data, ctrls: torch.Tensor) -> tuple[mjt.Data, torch.Tensor]:
        heights = []
        for ctrl in ctrls.unbind(0):
            d = mjt.step(m, d.replace(ctrl=ctrl))
            heights.append(d.xpos[:, 1, 2])
        return d, torch.stack(heights)

    d, ctrls = batch(m, mjm), torch.rand(2, NWORLD, m.nu, dtype=m.dtype)
    ours, heights = torch.compile(rollout, backend="eager", fullgraph=True)(d, ctrls)
    theirs, expected = rollout(d, ctrls)
    assert_equal(ours, theirs)
    torch.testing.assert_close(heights, expected, rtol=0, atol=SAME)
    assert_one_graph()


@pytest.mark.parametrize("name", ["kinematics", "collision", "make_constraint", "fwd_velocity", "euler"])
def test_a_stage_alone_compiles(name: str) -> None:
    mjm = load("tiny")
    m = mjt.put_model(mjm, dtype=torch.float64)
    stage = getattr(mjt, name)
    compiled = torch.compile(stage, backend="eager", fullgraph=True)
    for seed in range(2):
        d = mjt.forward(m, batch(m, mjm, seed))
        assert_equal(compiled(m, d), stage(m, d))
    assert_one_graph()


def test_stages_do_not_share_the_limit_of_recompilations() -> None:
    """Dynamo compiles a code object eight times at most: a ninth compiled stage of a process would be refused."""
    codes = {getattr(mjt, name).__code__ for name in testing.STAGES}
    assert len(codes) == len(testing.STAGES)


def test_errors_are_seen_through_the_compiler() -> None:
    """A wrong state is refused with the message of eager, while the graph is made."""
    m = mjt.put_model(load("small"), dtype=torch.float64)
    d = mjt.make_data(m, 2)
    step = torch.compile(mjt.step, backend="eager", fullgraph=True)
    with pytest.raises(Exception, match=r"Data\.ctrl has shape \(2, 1\)"):
        step(m, d.replace(ctrl=d.ctrl[:, :-1]))


# --------------------------------------------------------------------------------- graph of the operators


class Capture:
    """A backend that keeps the graphs AOTAutograd makes, and runs them as they are."""

    def __init__(self) -> None:
        self.graphs: list[torch.fx.GraphModule] = []
        self.backend = aot_autograd(fw_compiler=self._keep)

    def _keep(self, graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Callable:
        self.graphs.append(graph)
        return make_boxed_func(graph.forward)


# Python data made into a tensor, values read back to the host, copies between devices, gathers by index.
FORBIDDEN = (
    "lift_fresh", "_local_scalar_dense", "device_put", "arange", "linspace", "index", "gather", "scatter", "nonzero",
    "copy_", "eye", "rand",
)  # fmt: skip


def test_the_step_makes_no_constants() -> None:
    """Every tensor of the graph comes from its inputs, but for numbers and zeros that a kernel takes in."""
    mjm = load("small")
    m = mjt.put_model(mjm, dtype=torch.float64)
    d, capture = batch(m, mjm), Capture()
    with torch.no_grad():
        after = torch.compile(mjt.step, backend=capture.backend, fullgraph=True)(m, d)
        assert_equal(after, mjt.step(m, d))
    (graph,) = capture.graphs
    assert [node for node in graph.graph.nodes if node.op == "get_attr"] == []
    assert list(graph.buffers()) + list(graph.parameters()) == []
    calls = [node.target for node in graph.graph.nodes if node.op == "call_function"]
    operators = {target.name() for target in calls if isinstance(target, torch._ops.OpOverload)}
    made = [name for name in operators if any(word in name.split("::")[1] for word in FORBIDDEN)]
    assert made == []
    copies = [
        node for node in graph.graph.nodes if "_to_copy" in str(node.target) and "device" in node.kwargs
    ]
    assert copies == []
    # A filled tensor: zero (what is not computed), a number without dimensions, or without elements.
    for node in graph.graph.nodes:
        if node.op == "call_function" and getattr(node.target, "_opname", "") == "full":
            sizes, value = node.args[:2]
            assert value == 0 or list(sizes) == [] or 0 in sizes, node.format_node()


# ------------------------------------------------------------------------------------------------- vmap


def test_vmap_is_the_native_batch() -> None:
    for name in ("small", "hopper"):
        mjm = load(name)
        m = mjt.put_model(mjm, dtype=torch.float64)
        d = batch(m, mjm)
        assert_equal(torch.vmap(lambda d, m=m: mjt.step(m, d))(d), mjt.step(m, d))


def test_compiled_vmap_is_the_native_batch() -> None:
    mjm = load("tiny")
    m = mjt.put_model(mjm, dtype=torch.float64)
    d = batch(m, mjm)
    step = torch.compile(torch.vmap(lambda d: mjt.step(m, d)), backend="aot_eager", fullgraph=True)
    assert_equal(step(d), mjt.step(m, d))
    assert_one_graph()


@pytest.mark.xfail(
    reason="fields without elements come out of vmap with other strides than they went in", strict=True
)
def test_compiled_vmap_compiles_once() -> None:
    m = mjt.put_model(load("tiny"), dtype=torch.float64)
    step = torch.compile(torch.vmap(lambda d: mjt.step(m, d)), backend="eager", fullgraph=True)
    d = mjt.make_data(m, NWORLD)
    for _ in range(3):
        d = step(d)
    assert compilations() == 1


# ---------------------------------------------------------------------------------------------- bad worlds


@pytest.mark.parametrize("compiled", [False, True])
def test_a_nan_stays_in_its_world(compiled: bool) -> None:
    """Without resets; with them see test_autoreset."""
    mjm = load("hopper")
    mjm.opt.disableflags |= int(mujoco.mjtDisableBit.mjDSBL_AUTORESET)
    m = mjt.put_model(mjm, dtype=torch.float64)
    d = batch(m, mjm)
    step = torch.compile(mjt.step, backend="eager", fullgraph=True) if compiled else mjt.step
    healthy = [0, 2, 3]
    expected = step(m, step(m, d))
    for field in ("qpos", "qvel", "qacc_warmstart", "ctrl", "qfrc_applied", "xfrc_applied"):
        value = d.get(field).clone()
        value.select(0, 1).fill_(torch.nan)
        after = step(m, step(m, d.replace(**{field: value})))
        assert (after[healthy] == expected[healthy]).all(), field
        if field in ("qpos", "qvel"):
            assert not after.qpos[1].isfinite().all()


# ----------------------------------------------------------------------------------------- generated code


@pytest.mark.slow
def test_inductor_equals_eager() -> None:
    mjm = load("hopper")
    m = mjt.put_model(mjm, dtype=torch.float64)
    d = mjt.put_data(m, testing.perturbed_states(mjm, 8, settle=100))
    step = torch.compile(mjt.step, fullgraph=True)
    after = step(m, d)
    assert_equal(after, mjt.step(m, d), 1e-9)
    again = step(m, after)
    assert_equal(again, mjt.step(m, after), 1e-9)
    assert_one_graph()


@pytest.mark.slow
def test_reduce_overhead_runs_on_a_cpu() -> None:
    """The mode for CUDA graphs is harmless where there are none."""
    m = mjt.put_model(load("tiny"), dtype=torch.float64)
    d = mjt.make_data(m, 8)
    after = torch.compile(mjt.step, fullgraph=True, mode="reduce-overhead")(m, d)
    assert_equal(after, mjt.step(m, d), 1e-9)


def humanoids(count: int) -> mujoco.MjModel:
    """Several humanoids on one floor."""
    path = str(mjt.model_path("humanoid"))
    spec = mujoco.MjSpec.from_file(path)
    for i in range(1, count):
        more = mujoco.MjSpec.from_file(path)
        for geom in list(more.worldbody.geoms):
            more.delete(geom)
        spec.attach(more, prefix=f"{i}-", frame=spec.worldbody.add_frame(pos=[1.5 * i, 0, 0]))
    return spec.compile()


def test_nodes_do_not_grow_with_the_number_of_robots() -> None:
    """A graph has as many nodes for eight humanoids as for one: it grows with the depth of the tree only."""
    nodes = []
    for count in (1, 2, 8):
        m, capture = mjt.put_model(humanoids(count), dtype=torch.float64), Capture()
        with torch.no_grad():
            torch.compile(mjt.step, backend=capture.backend, fullgraph=True)(m, mjt.make_data(m, 2))
        nodes.append(len(capture.graphs[0].graph.nodes))
        forget()
    assert nodes[1:] == [nodes[0]] * 2
