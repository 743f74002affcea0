"""The same step on a GPU: equal to the CPU, compiled in every mode. Skipped where there is none."""

import mujoco
import pytest
import torch

import mujoco_torch as mjt

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not torch.cuda.is_available(), reason="needs a CUDA GPU: torch.cuda.is_available() is False"
    ),
]


def _pair(name: str, nworld: int):
    """A model and a batch of different worlds, on the CPU and on the GPU."""
    mjm = mujoco.MjModel.from_xml_path(str(mjt.model_path(name)))
    m = mjt.put_model(mjm, dtype=torch.float64)
    d = mjt.make_data(m, nworld)
    generator = torch.Generator().manual_seed(0)
    d = d.replace(qvel=0.1 * torch.randn(d.qvel.shape, generator=generator, dtype=torch.float64))
    return m, d, m.to("cuda"), d.to("cuda")


@pytest.mark.parametrize("name", mjt.MODELS)
def test_step_equals_the_cpu(name):
    m, d, m_gpu, d_gpu = _pair(name, 64)
    for _ in range(20):
        d, d_gpu = mjt.step(m, d), mjt.step(m_gpu, d_gpu)
    torch.testing.assert_close(d_gpu.qpos.cpu(), d.qpos, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_compiled_step_equals_eager(mode):
    _, _, m, d = _pair("hopper", 256)
    step = torch.compile(mjt.step, fullgraph=True, mode=mode)
    eager, compiled = d, d
    for _ in range(10):
        eager = mjt.step(m, eager)
        compiled = step(m, compiled).clone()  # the output of a CUDA graph is overwritten by the next replay
    torch.testing.assert_close(compiled.qpos, eager.qpos, rtol=1e-10, atol=1e-10)
