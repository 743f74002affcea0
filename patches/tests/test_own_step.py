"""What the patches are to this project: its step needs none of them; a solver with a loop, and a GPU, do."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch._dynamo.utils import counters

import mujoco_torch as mjt

NO_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU; torch sees none")


def humanoid(device: str = "cpu") -> tuple[mjt.Model, mjt.Data]:
    """A model, and a batch of eight different worlds in contact."""
    import mujoco

    mjm = mujoco.MjModel.from_xml_path(str(mjt.model_path("humanoid")))
    m = mjt.put_model(mjm, dtype=torch.float64, device=device)
    d = mjt.make_data(m, nworld=8)
    noise = torch.randn(d.qvel.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    return m, d.replace(qvel=0.1 * noise.to(device))


def test_own_step_needs_no_patch():
    m, d = humanoid()
    step = torch.compile(mjt.step, fullgraph=True, backend="aot_eager")
    expected = d
    for _ in range(3):
        d, expected = step(m, d), mjt.step(m, expected)
    torch.testing.assert_close(d.qpos, expected.qpos)
    assert counters["stats"]["unique_graphs"] == 1


def test_while_nodes_need_more_than_python():
    """Bindings of C++ make the nodes; these are declared in builds without CUDA, too."""
    declared = (Path(torch.__file__).parent / "_C" / "__init__.pyi").read_text()
    version = tuple(int(part) for part in torch.__version__.split(".")[:2])
    assert ("begin_capture_to_if_node" in declared) == (version >= (2, 12))
    assert ("begin_capture_to_while_node" in declared) == (version >= (2, 14))


def newton(
    mass: Tensor, rows: Tensor, stiffness: Tensor, target: Tensor, start: Tensor
) -> tuple[Tensor, Tensor]:
    """Minimises 1/2 x'Mx + sum of 1/2 D min(0, Jx - a)^2 in a `torch.while_loop`: the iterations, and x."""

    def gradient(x: Tensor) -> tuple[Tensor, Tensor]:
        pushing = (rows @ x < target).to(x.dtype) * stiffness
        return mass @ x + (pushing * (rows @ x - target)) @ rows, pushing

    def goes_on(count: Tensor, x: Tensor) -> Tensor:
        return (gradient(x)[0].norm() > 1e-10) & (count < 50)

    def step(count: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        slope, pushing = gradient(x)
        hessian = mass + torch.einsum("ri,r,rj->ij", rows, pushing, rows)
        return count + 1, x - torch.linalg.solve(hessian, slope)

    return torch.while_loop(goes_on, step, (torch.zeros((), dtype=torch.int64), start))


def problems(count: int, device: str = "cpu") -> tuple[Tensor, ...]:
    """Random problems that take different numbers of iterations."""
    generator = torch.Generator().manual_seed(2)

    def random(*shape: int) -> Tensor:
        return torch.randn(count, *shape, generator=generator, dtype=torch.float64)

    factor = random(5, 5)
    mass = factor @ factor.mT + 5 * torch.eye(5, dtype=torch.float64)
    values = (mass, random(8, 5), 10 * torch.rand_like(random(8)), random(8), random(5))
    return tuple(value.to(device) for value in values)


@pytest.mark.patch("while-loop-vmap")
@pytest.mark.parametrize("backend", [None, "aot_eager"])
def test_solver_in_a_loop_under_vmap(backend: str | None):
    batch = problems(6)
    f = torch.vmap(newton)
    count, x = (f if backend is None else torch.compile(f, fullgraph=True, backend=backend))(*batch)
    singly = [newton(*one) for one in zip(*batch, strict=True)]
    assert count.tolist() == [int(steps) for steps, _ in singly]
    assert len(set(count.tolist())) > 1
    torch.testing.assert_close(x, torch.stack([x for _, x in singly]))


def assert_no_graph_skipped() -> None:
    assert counters["inductor"]["cudagraph_skips"] == 0


@NO_GPU
@pytest.mark.gpu
@pytest.mark.patch("partition-lists")
def test_loop_between_graphs_on_a_gpu():
    def f(x: Tensor) -> Tensor:
        y = torch.sin(x)
        y = torch.while_loop(lambda y: y.sum() < 10, lambda y: (y * 1.2 + 0.1,), (y,))[0]
        return torch.cos(y)

    counters.clear()
    compiled = torch.compile(f, mode="reduce-overhead", fullgraph=True)
    with torch._inductor.config.patch("triton.slow_path_cudagraph_asserts", True):
        for i in range(6):
            x = torch.full((64,), 0.1 * i, device="cuda")
            torch.testing.assert_close(compiled(x), f(x))
    assert_no_graph_skipped()


@NO_GPU
@pytest.mark.gpu
@pytest.mark.patch("fed-back-outputs")
def test_fed_back_on_a_gpu():
    def f(x: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        return v.sin(), x + v

    counters.clear()
    compiled = torch.compile(f, mode="reduce-overhead", fullgraph=True)
    got = expected = (torch.ones(64, device="cuda"), torch.ones(64, device="cuda"))
    for _ in range(100):
        got, expected = compiled(*got), f(*expected)
    torch.testing.assert_close(got, expected)
    assert_no_graph_skipped()


@NO_GPU
@pytest.mark.gpu
@pytest.mark.patch("fed-back-outputs")
def test_own_step_fed_back_on_a_gpu():
    m, d = humanoid("cuda")
    counters.clear()
    step = torch.compile(mjt.step, mode="reduce-overhead", fullgraph=True)
    expected = d
    for _ in range(100):
        d, expected = step(m, d), mjt.step(m, expected)
    torch.testing.assert_close(d.qpos, expected.qpos, rtol=1e-6, atol=1e-6)
    assert_no_graph_skipped()


@NO_GPU
@pytest.mark.gpu
@pytest.mark.patch("while-loop-vmap")
def test_solver_in_a_loop_under_vmap_on_a_gpu():
    batch = problems(6, "cuda")
    solve = torch.compile(torch.vmap(newton), mode="reduce-overhead", fullgraph=True)
    expected = torch.stack([newton(*one)[1] for one in zip(*batch, strict=True)])
    for _ in range(6):
        torch.testing.assert_close(solve(*batch)[1], expected)
    assert_no_graph_skipped()
