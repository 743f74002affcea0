"""Gradients of a step: against finite differences of MuJoCo C and of our own, and finite at the delicate states."""

from collections.abc import Callable

import mujoco
import numpy as np
import pytest
import torch
from torch import Tensor

import mujoco_torch as mjt
from mujoco_torch import testing
from mujoco_torch._src import spatial

# Central differences over 1e-6 of a function computed to 1e-14 leave about 1e-8, near stiff contacts 1e-7.
FINITE_DIFFERENCES = 1e-5

BALANCER = """
<mujoco model="balancer">
  <option timestep="0.005" tolerance="0" iterations="100"/>
  <worldbody>
    <geom type="plane" size="1 1 0.1"/>
    <body pos="0 0 0.195">
      <joint name="rail" type="slide" axis="1 0 0" damping="0.2" armature="0.1"/>
      <joint name="lift" type="slide" axis="0 0 1"/>
      <joint name="tilt" axis="0 1 0" damping="0.1" stiffness="2" range="-10 10"/>
      <geom type="capsule" size="0.1" fromto="0 0 -0.1 0.05 0.02 0.2"/>
    </body>
    <body pos="1 0 1">
      <joint name="ball" type="ball" damping="0.05" stiffness="0.5" range="0 20"/>
      <geom type="capsule" size="0.03" fromto="0 0 0 0.2 0 0"/>
    </body>
  </worldbody>
  <actuator>
    <motor joint="rail" ctrllimited="true" ctrlrange="-1 1"/>
    <position joint="tilt" kp="3"/>
    <motor joint="ball" gear="0.1 0.2 0.3"/>
  </actuator>
</mujoco>
"""


def load(name: str) -> mujoco.MjModel:
    if name == "balancer":
        return mujoco.MjModel.from_xml_string(BALANCER)
    return mujoco.MjModel.from_xml_path(str(mjt.model_path(name)))


def sharp(name: str) -> mujoco.MjModel:
    """A model whose solver goes on to the last bit, so that differences of results mean something."""
    return testing.converged(load(name), tolerance=0.0)


# --------------------------------------------------------------------------------- tangents of positions


FREE, BALL = int(mujoco.mjtJoint.mjJNT_FREE), int(mujoco.mjtJoint.mjJNT_BALL)


def quaternions(mjm: mujoco.MjModel) -> list[tuple[int, int]]:
    """First element in qpos and first dof of every quaternion."""
    shift = {FREE: 3, BALL: 0}
    joints = [j for j in range(mjm.njnt) if mjm.jnt_type[j] in shift]
    return [
        (mjm.jnt_qposadr[j] + shift[mjm.jnt_type[j]], mjm.jnt_dofadr[j] + shift[mjm.jnt_type[j]])
        for j in joints
    ]


def tangents(mjm: mujoco.MjModel, qpos: np.ndarray) -> np.ndarray:
    """Change of qpos with a small motion of each dof, (nq, nv): a quaternion q changes by q (0, w) / 2."""
    out = np.zeros((mjm.nq, mjm.nv))
    angular = {dof + k for _, dof in quaternions(mjm) for k in range(3)}
    linear = [(q, v) for q, v in scalar_addresses(mjm) if v not in angular]
    for q, v in linear:
        out[q, v] = 1.0
    for q, v in quaternions(mjm):
        for k in range(3):
            pure = np.zeros(4)
            pure[1 + k] = 0.5
            product = np.zeros(4)
            mujoco.mju_mulQuat(product, qpos[q : q + 4], pure)
            out[q : q + 4, v + k] = product
    return out


def scalar_addresses(mjm: mujoco.MjModel) -> list[tuple[int, int]]:
    """Element of qpos and dof of everything that is not part of a quaternion."""
    pairs = []
    for j in range(mjm.njnt):
        count = {FREE: 3, BALL: 0}.get(mjm.jnt_type[j], 1)
        pairs += [(mjm.jnt_qposadr[j] + k, mjm.jnt_dofadr[j] + k) for k in range(count)]
    return pairs


def cotangents(mjm: mujoco.MjModel, qpos: np.ndarray) -> np.ndarray:
    """The other way, (nv, nq): columns of a quaternion are orthogonal and of length 1/2."""
    back = tangents(mjm, qpos).T.copy()
    for _, v in quaternions(mjm):
        back[v : v + 3] *= 4.0
    return back


# ----------------------------------------------------------------------------------- Jacobian of a step


def jacobian_of_step(m: mjt.Model, d: mjt.Data) -> tuple[Tensor, Tensor, Tensor, mjt.Data]:
    """Derivative of (qpos, qvel) after a step of one world to qpos, qvel and ctrl: (nq + nv, n) each.

    One backward pass: as many equal worlds as outputs, of world i only output i counts.
    """
    count = m.nq + m.nv
    d = torch.stack([d] * count)
    inputs = [x.clone().requires_grad_() for x in (d.qpos, d.qvel, d.ctrl)]
    after = mjt.step(m, d.replace(**dict(zip(("qpos", "qvel", "ctrl"), inputs, strict=True))))
    torch.cat((after.qpos, after.qvel), 1).diagonal().sum().backward()
    return (*(x.grad for x in inputs), after[0].detach())


def transition(mjm: mujoco.MjModel, m: mjt.Model, d: mjt.Data) -> tuple[np.ndarray, np.ndarray]:
    """Our A (2 nv, 2 nv) and B (2 nv, nu) of ``mjd_transitionFD``."""
    to_qpos, to_qvel, to_ctrl, after = (
        x.numpy() if isinstance(x, Tensor) else x for x in jacobian_of_step(m, d)
    )
    out = np.zeros((2 * mjm.nv, mjm.nq + mjm.nv))
    out[: mjm.nv, : mjm.nq] = cotangents(mjm, after.qpos.numpy())
    out[mjm.nv :, mjm.nq :] = np.eye(mjm.nv)
    a = np.concatenate([to_qpos @ tangents(mjm, d.qpos.numpy()), to_qvel], axis=1)
    return out @ a, out @ to_ctrl


def states(mjm: mujoco.MjModel, seed: int = 2) -> list[mujoco.MjData]:
    """One world in flight, one in contact; controls inside their range, where the clamp has a derivative."""
    mjds = testing.perturbed_states(mjm, 2, seed)
    for mjd in mjds:
        mjd.ctrl *= 0.5
        mujoco.mj_normalizeQuat(mjm, mjd.qpos)
        mujoco.mj_forward(mjm, mjd)
    assert mjds[1].nefc
    return mjds


def assert_close(ours: np.ndarray, reference: np.ndarray, tolerance: float = FINITE_DIFFERENCES) -> None:
    np.testing.assert_allclose(ours, reference, rtol=0, atol=tolerance * max(1.0, np.abs(reference).max()))


@pytest.mark.parametrize("name", [*(name for name in mjt.MODELS if name != "walker2d"), "balancer"])
def test_transition_is_that_of_c(name: str) -> None:
    """All derivatives of a step, contacts and limits included, against ``mjd_transitionFD``."""
    mjm = sharp(name)
    m = mjt.put_model(mjm, dtype=torch.float64)
    for mjd in states(mjm):
        ours = transition(mjm, m, mjt.put_data(m, mjd))
        a, b = np.zeros((2 * mjm.nv, 2 * mjm.nv)), np.zeros((2 * mjm.nv, mjm.nu))
        mujoco.mjd_transitionFD(mjm, mjd, 1e-6, True, a, b, None, None)
        assert_close(ours[0], a)
        assert_close(ours[1], b)


def test_runge_kutta_is_that_of_its_own_differences() -> None:
    """C has no derivative of this integrator."""
    mjm, h = sharp("walker2d"), 1e-6
    assert mjm.opt.integrator == mujoco.mjtIntegrator.mjINT_RK4
    m = mjt.put_model(mjm, dtype=torch.float64)
    for mjd in states(mjm):
        d = mjt.put_data(m, mjd)
        jacobians = jacobian_of_step(m, d)[:3]
        for name, ours in zip(("qpos", "qvel", "ctrl"), jacobians, strict=True):
            at = d.get(name)
            shifts = h * torch.eye(len(at), dtype=torch.float64)
            worlds = torch.stack([d] * len(at))
            ahead = mjt.step(m, worlds.replace(**{name: at + shifts}))
            behind = mjt.step(m, worlds.replace(**{name: at - shifts}))
            difference = torch.cat((ahead.qpos - behind.qpos, ahead.qvel - behind.qvel), 1) / (2 * h)
            assert_close(ours.numpy(), difference.T.numpy())


INPUTS = ("qpos", "qvel", "ctrl", "qfrc_applied", "xfrc_applied")


def test_gradcheck_of_a_step() -> None:
    """To every input that has a gradient, of every result; differences of our own step."""
    mjm = load("balancer")
    m = mjt.put_model(mjm, dtype=torch.float64)
    d = mjt.put_data(m, states(mjm))

    def run(*values: Tensor) -> tuple[Tensor, ...]:
        after = mjt.step(m, d.replace(**dict(zip(INPUTS, values, strict=True))))
        return (
            after.qpos,
            after.qvel,
            after.qacc,
            after.xpos,
            after.qfrc_constraint / 100,
            after.efc_force / 100,
        )

    values = [d.get(name).clone().requires_grad_() for name in INPUTS]
    assert torch.autograd.gradcheck(run, values, eps=1e-6, atol=1e-4, rtol=1e-4, fast_mode=True)


def test_gradient_of_the_parameters() -> None:
    """Masses, damping, stiffness of contacts: the arrays of the model are inputs like any other."""
    mjm = load("balancer")
    m = mjt.put_model(mjm, dtype=torch.float64)
    d = mjt.put_data(m, states(mjm))
    params = m.params.clone().requires_grad_()
    mjt.step(mjt.Model(m.topology, params), d).qvel.square().sum().backward()
    assert params.grad.isfinite().all()
    for name in ("body_mass", "dof_damping", "dof_armature", "gravity", "actuator_gain", "contact_stiffness"):
        start, shape = m.topology.layout[name]
        at = start + int(np.argmax(np.abs(params.grad[start : start + int(np.prod(shape))].numpy())))
        h = 1e-6
        values = []
        for sign in (1.0, -1.0):
            moved = m.params.clone()
            moved[at] += sign * h
            values.append(mjt.step(mjt.Model(m.topology, moved), d).qvel.square().sum().item())
        difference = (values[0] - values[1]) / (2 * h)
        assert abs(difference) > 1e-6, name
        np.testing.assert_allclose(params.grad[at].item(), difference, rtol=1e-4, err_msg=name)


def test_gradient_through_several_steps() -> None:
    """Back through a rollout in contact, to the controls of every step."""
    mjm = sharp("hopper")
    m = mjt.put_model(mjm, dtype=torch.float64)
    start = mjt.put_data(m, states(mjm))
    ctrls = 0.1 * torch.randn(5, 2, mjm.nu, dtype=torch.float64)

    def distance(ctrls: Tensor) -> Tensor:
        d = start
        for ctrl in ctrls.unbind(0):
            d = mjt.step(m, d.replace(ctrl=ctrl))
        return d.qpos.square().sum() + d.qvel.square().sum()

    assert torch.autograd.gradcheck(
        distance, ctrls.requires_grad_(), eps=1e-6, atol=1e-4, rtol=1e-4, fast_mode=True
    )


# ----------------------------------------------------------------------------------- delicate states


def assert_finite_gradients(m: mjt.Model, d: mjt.Data, step: Callable = mjt.step) -> dict[str, Tensor]:
    """Gradients of the sum of everything that a step computes, to the inputs and the parameters."""
    inputs = {name: d.get(name).clone().requires_grad_() for name in INPUTS}
    params = m.params.clone().requires_grad_()
    after = step(mjt.Model(m.topology, params), d.replace(**inputs))
    total = 0.0
    for x in after.to_tensordict().values(include_nested=True, leaves_only=True):
        if x.is_floating_point() and x.requires_grad:
            total = total + torch.where(x.isfinite(), x, 0.0).square().sum()
    total.backward()
    gradients = {name: x.grad for name, x in inputs.items()} | {"params": params.grad}
    for name, gradient in gradients.items():
        if gradient is not None:
            assert gradient.isfinite().all(), (
                f"{name}: {gradient.isfinite().logical_not().nonzero().tolist()[:5]}"
            )
    assert gradients["qpos"] is not None
    return gradients


@pytest.mark.parametrize("name", [*mjt.MODELS, "balancer"])
def test_fresh_data(name: str) -> None:
    """Nothing moves, nothing turned: lengths, angles and velocities are zero."""
    m = mjt.put_model(load(name), dtype=torch.float64)
    assert_finite_gradients(m, mjt.make_data(m, 2))
    assert_finite_gradients(m, mjt.make_data(m))


@pytest.mark.parametrize("name", mjt.MODELS)
def test_perturbed_data(name: str) -> None:
    mjm = load(name)
    m = mjt.put_model(mjm, dtype=torch.float64)
    assert_finite_gradients(m, mjt.put_data(m, testing.perturbed_states(mjm, 4)))


SHAPES = {
    "sphere": '<geom type="sphere" size="0.1"/>',
    "upright": '<geom type="capsule" size="0.1 0.2" pos="0 0 0.2"/>',
    "lying": '<geom type="capsule" size="0.1 0.2" euler="90 0 0"/>',
}
GROUNDS = {
    "plane": '<geom type="plane" size="1 1 0.1"/>',
    "sphere": '<geom type="sphere" size="0.1" pos="0 0 -0.1"/>',
    "capsule": '<geom type="capsule" size="0.1 0.2" pos="0 0 -0.1" euler="90 0 0"/>',
    "crossed": '<geom type="capsule" size="0.1 0.2" pos="0 0 -0.1" euler="90 90 0"/>',
}


@pytest.mark.parametrize("condim", [1, 3, 6])
@pytest.mark.parametrize("ground", GROUNDS)
@pytest.mark.parametrize("shape", SHAPES)
def test_onset_of_contact(shape: str, ground: str, condim: int) -> None:
    """At the height of touching exactly, just above, just below, deep, and with the centres in one point."""
    mjm = mujoco.MjModel.from_xml_string(f"""
        <mujoco>
          <default><geom condim="{condim}"/></default>
          <worldbody>{GROUNDS[ground]}<body><freejoint/>{SHAPES[shape]}</body></worldbody>
        </mujoco>""")
    m = mjt.put_model(mjm, dtype=torch.float64)
    heights = torch.tensor([0.1, 0.1 + 1e-12, 0.1 - 1e-12, 0.05, 0.0, -0.1], dtype=torch.float64)
    d = mjt.make_data(m, len(heights))
    d.qpos[:, 2] = heights
    assert_finite_gradients(m, d)
    after = mjt.step(m, mjt.step(m, d))  # moving out of contact, with a warm start
    assert_finite_gradients(m, after)


def test_bodies_at_rest() -> None:
    mjm = load("balancer")
    mjd = mujoco.MjData(mjm)
    for _ in range(3000):
        mujoco.mj_step(mjm, mjd)
    assert np.abs(mjd.qvel).max() < 1e-2
    assert mjd.ncon
    m = mjt.put_model(mjm, dtype=torch.float64)
    assert_finite_gradients(m, mjt.put_data(m, mjd))


def test_orientations_of_a_half_turn() -> None:
    """A ball joint with a spring and a limit at rotations of zero, a half turn and nearly one; q and -q."""
    mjm = load("balancer")
    m = mjt.put_model(mjm, dtype=torch.float64)
    axis = torch.tensor([0.48, 0.6, -0.64], dtype=torch.float64)
    angles = torch.tensor([0.0, 1e-9, 1e-5, 1.0, 3.1, torch.pi, -torch.pi], dtype=torch.float64)
    vectors = axis[:, None, None] * angles
    quats = torch.stack(tuple(spatial.rotation_vector_to_quat(vectors)))[:, 0].T
    d = mjt.make_data(m, 2 * len(angles))
    d.qpos[:, 3:7] = torch.cat((quats, -quats))
    gradients = assert_finite_gradients(m, d)
    # q and -q are one state, so a gradient changes its sign with q (at the half turn the axis does, too).
    there, back = gradients["qpos"][:5, 3:7], gradients["qpos"][7:12, 3:7]
    torch.testing.assert_close(there, -back, rtol=1e-9, atol=1e-9)


# ------------------------------------------------------------------------------------------- compiled


@pytest.mark.slow
def test_compiled_gradients_are_those_of_eager() -> None:
    mjm = mujoco.MjModel.from_xml_string(
        """
        <mujoco>
          <worldbody>
            <geom type="plane" size="1 1 0.1"/>
            <body pos="0 0 0.09">
              <joint type="slide" axis="0 0 1"/>
              <joint type="hinge" axis="0 1 0" damping="0.1"/>
              <geom type="capsule" size="0.1" fromto="0 0 0 0.1 0 0.1"/>
            </body>
          </worldbody>
          <actuator><motor joint="spin"/></actuator>
        </mujoco>""".replace('type="hinge"', 'name="spin" type="hinge"')
    )
    m = mjt.put_model(mjm, dtype=torch.float64)
    d = mjt.put_data(m, testing.perturbed_states(mjm, 3, scale=0.2))
    torch._dynamo.reset()
    step = torch.compile(mjt.step, backend="aot_eager", fullgraph=True)
    eager = assert_finite_gradients(m, d)
    compiled = assert_finite_gradients(m, d, step)
    torch._dynamo.reset()
    for name, expected in eager.items():
        scale = 1.0 + float(expected.abs().max())
        torch.testing.assert_close(compiled[name], expected, rtol=0, atol=1e-11 * scale)


@pytest.mark.parametrize("name", mjt.MODELS)
def test_finite_in_many_random_states(name: str) -> None:
    """2,000 states of each of five models: deep contact and none, zero velocity, identity quaternions."""
    mjm = mujoco.MjModel.from_xml_path(str(mjt.model_path(name)))
    m = mjt.put_model(mjm, dtype=torch.float64)
    d = mjt.make_data(m, 2000)
    world = torch.arange(2000)[:, None]
    qpos = d.qpos + 0.3 * torch.randn_like(d.qpos) * (world % 4 != 0)
    if mjm.jnt_type[0] == mujoco.mjtJoint.mjJNT_FREE:
        qpos[:, 2] = 1.2 * torch.rand(2000, dtype=torch.float64)
        qpos[::3, 3:7] = torch.tensor([1.0, 0.0, 0.0, 0.0], dtype=torch.float64)
    qvel = 2.0 * torch.randn_like(d.qvel) * (world % 3 != 0)
    inputs = [x.requires_grad_() for x in (qpos, qvel, torch.randn_like(d.ctrl))]
    after = mjt.step(m, d.replace(qpos=qpos, qvel=qvel, ctrl=inputs[2]))
    assert (after.ncon > 0).any()
    (after.qvel.square().sum() + after.qpos.square().sum()).backward()
    for x in inputs:
        assert x.grad is not None
        assert x.grad.isfinite().all()
