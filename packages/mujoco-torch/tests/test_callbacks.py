"""A user's control, passive forces and actuators in the step, against MuJoCo C with the same callbacks."""

import pickle

import mujoco
import numpy as np
import pytest
import torch

import mujoco_torch as mjt
from mujoco_torch import testing

SWINGER = """
<mujoco>
  <option timestep="0.004" {option}><flag {flags}/></option>
  <worldbody>
    <body pos="0 0 1">
      <joint name="a" axis="0 1 0" damping="0.1"/>
      <geom type="capsule" size="0.05" fromto="0 0 0 0.3 0 0"/>
      <body pos="0.3 0 0">
        <joint name="b" axis="0 1 0" range="-60 60" limited="true"/>
        <geom type="capsule" size="0.05" fromto="0 0 0 0.3 0 0"/>
      </body>
    </body>
  </worldbody>
  <actuator><motor joint="a"/><position joint="b" kp="3"/></actuator>
</mujoco>
"""


def control(m: mjt.Model, d: mjt.Data) -> dict[str, torch.Tensor]:
    """A regulator, a push that grows with time, and a wrench that depends on a pose."""
    xfrc = torch.zeros_like(d.xfrc_applied)
    xfrc[:, 2, 0] = 0.5 * d.xpos[:, 2, 2]
    push = torch.sin(10.0 * d.time).unsqueeze(-1) * d.M[:, :2]
    return {"ctrl": -2.0 * d.qpos - 0.3 * d.qvel, "qfrc_applied": push, "xfrc_applied": xfrc}


def c_control(m: mujoco.MjModel, d: mujoco.MjData) -> None:
    d.ctrl[:] = -2.0 * d.qpos - 0.3 * d.qvel
    d.qfrc_applied[:] = np.sin(10.0 * d.time) * d.M[:2]
    d.xfrc_applied[:] = 0.0
    d.xfrc_applied[2, 0] = 0.5 * d.xpos[2, 2]


def drag(m: mjt.Model, d: mjt.Data) -> torch.Tensor:
    """Quadratic drag."""
    return -0.2 * d.qvel * d.qvel.abs()


def c_drag(m: mujoco.MjModel, d: mujoco.MjData) -> None:
    d.qfrc_passive[:] += -0.2 * d.qvel * np.abs(d.qvel)


def swinger(option: str = "", flags: str = 'energy="disable"') -> mujoco.MjModel:
    return testing.converged(mujoco.MjModel.from_xml_string(SWINGER.format(option=option, flags=flags)))


def put(mjm: mujoco.MjModel, dtype: torch.dtype = torch.float64, **callbacks):
    m = mjt.put_model(mjm, dtype=dtype, **callbacks)
    mjds = [testing.copy_state(mjm, mjd) for mjd in testing.perturbed_states(mjm, 4, seed=0, settle=20)]
    return m, mjt.put_data(m, mjds), mjds


def run_c(mjm: mujoco.MjModel, mjds: list[mujoco.MjData], function, **callbacks) -> None:
    """C with callbacks by name, which are removed again."""
    try:
        for name, callback in callbacks.items():
            getattr(mujoco, f"set_mjcb_{name}")(callback)
        for mjd in mjds:
            function(mjm, mjd)
    finally:
        for name in callbacks:
            getattr(mujoco, f"set_mjcb_{name}")(None)


def assert_equal_c(
    d: mjt.Data, mjds: list[mujoco.MjData], fields: tuple[str, ...], rtol: float = 1e-9
) -> None:
    for name in fields:
        expected = np.array([getattr(mjd, name) for mjd in mjds])
        atol = rtol * max(1.0, np.abs(expected).max())
        np.testing.assert_allclose(d.get(name).numpy(), expected, rtol=0, atol=atol, err_msg=name)


@pytest.mark.parametrize("option", ["", 'integrator="RK4"'])
@pytest.mark.parametrize(
    "flags",
    [
        "",
        'actuation="disable"',
        'spring="disable" damper="disable"',
        'damper="disable"',
        'autoreset="disable"',
    ],
)
def test_steps_with_callbacks_are_those_of_c(option: str, flags: str) -> None:
    """Both of them, as often as C calls them: not with actuation, or with all passive forces, switched off."""
    mjm = swinger(option, flags or 'energy="disable"')
    m, d, mjds = put(mjm, mjcb_control=control, mjcb_passive=drag)
    for _ in range(10):
        d = mjt.step(m, d)
        run_c(mjm, mjds, mujoco.mj_step, control=c_control, passive=c_drag)
    state = ("qpos", "qvel", "time", "ctrl", "qfrc_applied", "xfrc_applied", "qfrc_passive", "qfrc_actuator")
    assert_equal_c(d, mjds, state if not option else state[:-2])


def test_forward_uses_what_the_control_sets() -> None:
    """And leaves the state as it was: departure 1 of ``forward``."""
    mjm = swinger()
    m, d, mjds = put(mjm, mjcb_control=control)
    after = mjt.forward(m, d)
    run_c(mjm, mjds, mujoco.mj_forward, control=c_control)
    assert_equal_c(after, mjds, ("qacc", "qfrc_actuator", "qfrc_smooth"))
    assert (after.ctrl == d.ctrl).all()


def test_the_first_half_of_a_step_calls_the_control() -> None:
    mjm = swinger()
    m, d, mjds = put(mjm, mjcb_control=control, mjcb_passive=drag)
    run_c(mjm, mjds, mujoco.mj_step1, control=c_control, passive=c_drag)
    half = mjt.step1(m, d)
    assert_equal_c(half, mjds, ("ctrl", "qfrc_applied", "xfrc_applied", "qfrc_passive"))
    run_c(mjm, mjds, mujoco.mj_step2, control=c_control, passive=c_drag)
    assert_equal_c(mjt.step2(m, half), mjds, ("qpos", "qvel"))


def test_inverse_dynamics_calls_the_passive_force() -> None:
    mjm = swinger()
    m, d, mjds = put(mjm, mjcb_control=control, mjcb_passive=drag)
    for mjd in mjds:
        mjd.qacc[:] = 1.0
    run_c(mjm, mjds, mujoco.mj_inverse, control=c_control, passive=c_drag)
    d = mjt.inverse(m, d.replace(qacc=torch.ones_like(d.qacc)))
    assert_equal_c(d, mjds, ("qfrc_inverse", "qfrc_passive"))


@pytest.mark.parametrize("option", ["", 'integrator="RK4"'])
def test_a_bad_world_is_reset_under_its_callbacks(option: str, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)

    def forced(m: mjt.Model, d: mjt.Data) -> dict[str, torch.Tensor]:
        return {"ctrl": 0.5 + d.qpos}

    def c_forced(m: mujoco.MjModel, d: mujoco.MjData) -> None:
        d.ctrl[:] = 0.5 + d.qpos

    mjm = swinger(option)
    m, d, mjds = put(mjm, mjcb_control=forced, mjcb_passive=drag)
    d.qfrc_applied[1, 0], mjds[1].qfrc_applied[0] = torch.nan, np.nan
    d.qpos[2, 0], mjds[2].qpos[0] = torch.nan, np.nan
    run_c(mjm, mjds, mujoco.mj_step, control=c_forced, passive=c_drag)
    assert_equal_c(mjt.step(m, d), mjds, ("qpos", "qvel", "time", "ctrl", "qfrc_applied", "qacc_warmstart"))


def test_compiled_mapped_float32_and_one_world() -> None:
    """Traced into the one graph, where two models that differ in a callback alone do not share it."""
    mjm = swinger()
    m, d, _ = put(mjm, mjcb_control=control, mjcb_passive=drag)
    expected = mjt.step(m, d)
    step = torch.compile(mjt.step, backend="aot_eager", fullgraph=True)
    plain, _, _ = put(mjm)
    other, _, _ = put(mjm, mjcb_control=lambda m, d: {"ctrl": 0.1 * d.qvel})
    for name in ("qpos", "qvel", "ctrl"):
        value = expected.get(name)
        torch.testing.assert_close(step(m, d).get(name), value, rtol=0, atol=1e-12)
        torch.testing.assert_close(step(plain, d).get(name), mjt.step(plain, d).get(name), rtol=0, atol=1e-12)
        torch.testing.assert_close(step(other, d).get(name), mjt.step(other, d).get(name), rtol=0, atol=1e-12)
        torch.testing.assert_close(mjt.step(m, d[1]).get(name), value[1], rtol=0, atol=1e-12)
        mapped = torch.vmap(lambda d, name=name: mjt.step(m, d).get(name))(d)
        torch.testing.assert_close(mapped, value, rtol=0, atol=1e-12)
    m32, d32, _ = put(mjm, torch.float32, mjcb_control=control, mjcb_passive=drag)
    torch.testing.assert_close(mjt.step(m32, d32).qvel.double(), expected.qvel, rtol=0, atol=1e-4)


def test_gradients_flow_through_callbacks() -> None:
    mjm = swinger()
    m, d, _ = put(mjm, mjcb_control=control, mjcb_passive=drag)

    def after(qpos: torch.Tensor, qvel: torch.Tensor) -> torch.Tensor:
        return mjt.step(m, d.replace(qpos=qpos, qvel=qvel)).qvel

    inputs = [d.qpos.clone().requires_grad_(), d.qvel.clone().requires_grad_()]
    assert torch.autograd.gradcheck(after, inputs, eps=1e-6, atol=1e-5, fast_mode=True)


class Policy(torch.nn.Module):
    """A network that controls."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 2).double()
        self.register_buffer("scale", torch.tensor(0.7, dtype=torch.float64))

    def forward(self, m: mjt.Model, d: mjt.Data) -> dict[str, torch.Tensor]:
        return {"ctrl": self.scale * self.layer(torch.cat((d.qpos, d.qvel), -1)).tanh()}


class Friction(torch.nn.Module):
    """A passive force with a coefficient to be found."""

    def __init__(self) -> None:
        super().__init__()
        self.rate = torch.nn.Parameter(torch.tensor([0.2, 0.1], dtype=torch.float64))

    def forward(self, m: mjt.Model, d: mjt.Data) -> torch.Tensor:
        return -self.rate * d.qvel


@pytest.mark.parametrize("compiled", [False, True])
def test_modules_learn(compiled: bool) -> None:
    """Weights of callbacks get gradients, and a compiled step sees them change."""
    policy, friction = Policy(), Friction()
    m, d, _ = put(swinger(), mjcb_control=policy, mjcb_passive=friction)
    weights = [*policy.parameters(), *friction.parameters()]
    step = torch.compile(mjt.step, backend="aot_eager", fullgraph=True) if compiled else mjt.step

    def loss(step) -> torch.Tensor:
        return step(m, step(m, d)).qvel.square().sum()

    slopes = torch.autograd.grad(loss(step), weights)
    for weight, slope in zip(weights, slopes, strict=True):
        assert slope.abs().max() > 0
        with torch.no_grad():
            before = loss(mjt.step)
            weight.view(-1)[0] += 1e-5
            after = loss(mjt.step)
            torch.testing.assert_close(loss(step), after, rtol=0, atol=1e-12)
        torch.testing.assert_close((after - before) / 1e-5, slope.view(-1)[0], rtol=1e-3, atol=1e-6)


def test_modules_run_in_blocks_and_under_vmap(monkeypatch) -> None:
    """The pieces of ``mujoco_torch.compile`` are handed the weights (run uncompiled)."""
    monkeypatch.setattr(torch, "compile", lambda fn, **_: fn)
    m, d, _ = put(
        swinger(), mjcb_control=Policy().requires_grad_(False), mjcb_passive=Friction().requires_grad_(False)
    )
    expected = mjt.step(m, d).qpos
    torch.testing.assert_close(mjt.compile(mjt.step)(m, d).qpos, expected, rtol=0, atol=1e-12)
    torch.testing.assert_close(torch.vmap(lambda d: mjt.step(m, d).qpos)(d), expected, rtol=0, atol=1e-12)


def test_callbacks_see_contacts_and_helpers() -> None:
    """The state works with the library's helpers, and says what is not computed yet."""
    mjm = mujoco.MjModel.from_xml_string(
        '<mujoco><worldbody><geom type="plane" size="1 1 1"/><body pos="0 0 .1"><freejoint/><geom size=".11"/></body>'
        "</worldbody></mujoco>"
    )
    seen = {}

    def look(m: mjt.Model, d: mjt.Data) -> torch.Tensor:
        seen["dist"], seen["batch"] = d.contact.dist, d.batch_size
        seen["M"] = mjt.full_m(m, d)
        with pytest.raises(AttributeError, match="'qacc' is not computed yet"):
            _ = d.qacc
        with pytest.raises(AttributeError, match="no field 'nonsense'"):
            _ = d.nonsense
        return torch.zeros_like(d.qvel)

    m = mjt.put_model(mjm, dtype=torch.float64, mjcb_passive=look)
    d = mjt.forward(m, mjt.make_data(m, 3))
    torch.testing.assert_close(seen["dist"], d.contact.dist)
    torch.testing.assert_close(seen["M"], mjt.full_m(m, d))
    assert seen["batch"] == (3,)


@pytest.mark.parametrize(
    ("kind", "function", "message"),
    [
        ("mjcb_control", lambda m, d: d.qvel, "returned Tensor; it must return a dict of ctrl, qfrc_applied"),
        ("mjcb_control", lambda m, d: {"qpos": d.qpos}, r"returned \['qpos'\]"),
        (
            "mjcb_control",
            lambda m, d: {"ctrl": d.qvel[0]},
            r"\(2,\) torch.float64 on cpu for ctrl; .* \(4, 2\)",
        ),
        ("mjcb_passive", lambda m, d: None, "returned NoneType for qfrc_passive"),
        ("mjcb_passive", lambda m, d: d.qvel.float(), r"\(4, 2\) torch.float32 .* torch.float64"),
    ],
)
def test_what_cannot_be_used_is_named(kind: str, function, message: str) -> None:
    mjm = swinger(flags='autoreset="disable"')  # else put_model takes a step of one world
    m, d, _ = put(mjm, **{kind: function})
    with pytest.raises(mjt.StateError, match=message):
        mjt.step(m, d)


def test_a_callback_must_be_callable() -> None:
    with pytest.raises(mjt.ArgumentError, match="a callback is 3"):
        mjt.put_model(swinger(), mjcb_control=3)


def test_models_are_told_apart_by_their_callbacks() -> None:
    """The same function makes the same structure, another function another; a model with one can be pickled."""
    mjm = swinger()
    with_drag, again, without = put(mjm, mjcb_passive=drag)[0], put(mjm, mjcb_passive=drag)[0], put(mjm)[0]
    assert with_drag.topology is again.topology
    assert with_drag.topology is not without.topology
    assert put(mjm, mjcb_passive=lambda m, d: drag(m, d))[0].topology is not with_drag.topology
    assert pickle.loads(pickle.dumps(with_drag)).topology is with_drag.topology


# ------------------------------------------------------------------------------------------- actuators of type user


USERS = """
<mujoco>
  <option timestep="0.004" {option}><flag {flags}/></option>
  <worldbody>
    <body pos="0 0 1">
      <joint name="a" axis="0 1 0" damping="0.1"/>
      <geom type="capsule" size="0.05" fromto="0 0 0 0.3 0 0"/>
      <site name="s" pos="0.1 0 0"/>
      <body pos="0.3 0 0">
        <joint name="b" type="ball" damping="0.1"/>
        <geom type="capsule" size="0.05" fromto="0 0 0 0.3 0 0"/>
      </body>
    </body>
  </worldbody>
  <tendon>
    <fixed name="t" actuatorfrclimited="true" actuatorfrcrange="-0.4 0.4"><joint joint="a" coef="0.5"/></fixed>
  </tendon>
  <actuator>
    <orientation joint="b" kp="0.3"/>
    <general name="all" joint="a" dyntype="user" gaintype="user" biastype="user" gear="0.4"/>
    <general name="dyn" joint="a" dyntype="user" gainprm="0.3" actlimited="true" actrange="-0.2 0.1"/>
    <general name="early" joint="a" dyntype="user" gaintype="user" actearly="true" gear="0.3"/>
    <general name="gain" tendon="t" gaintype="user" gainprm="1 2 3" biastype="affine" biasprm="0 -1 -0.2"
      ctrllimited="true" ctrlrange="-0.1 0.1"/>
    <general name="bias" site="s" gaintype="affine" gainprm="0.1 0.1 -0.3" biastype="user" biasprm="1 2 3"
      gear="0 0 1 0 0 0" forcelimited="true" forcerange="-0.3 0.3"/>
    <general name="filter" joint="a" dyntype="filter" dynprm="0.1" gaintype="user" gear="0.3"/>
    <general name="off" group="2" joint="a" dyntype="user" gaintype="user" biastype="user"/>
    <position joint="a" kp="0.5"/>
  </actuator>
</mujoco>
"""
FIRST = 2  # the output of actuator i > 0 is i + 2, since the first actuator has three
ACTUATOR_STATE = ("qpos", "qvel", "act", "act_dot", "actuator_force", "qfrc_actuator")


def users(option: str = "", flags: str = "", off: bool = True) -> mujoco.MjModel:
    flags = flags or 'energy="disable"'
    option += ' actuatorgroupdisable="2"' if off else ""
    return testing.converged(mujoco.MjModel.from_xml_string(USERS.format(option=option, flags=flags)))


def spread(m: mjt.Model, x: torch.Tensor) -> torch.Tensor:
    """Numbers for all actuators from one, (nworld,)."""
    return x.unsqueeze(-1) * torch.arange(1, m.nactuator + 1, dtype=x.dtype, device=x.device)


def dyn(m: mjt.Model, d: mjt.Data) -> torch.Tensor:
    return spread(m, 2.0 * d.qvel[:, 0] - d.ctrl[:, 3] + d.act[:, 0] - d.xpos[:, 2, 2])


def c_dyn(m: mujoco.MjModel, d: mujoco.MjData, i: int) -> float:
    return (i + 1) * (2.0 * d.qvel[0] - d.ctrl[3] + d.act[0] - d.xpos[2, 2])


def gain(m: mjt.Model, d: mjt.Data) -> torch.Tensor:
    """Of the rates that the dynamics gave, too; NaN where it is not used."""
    value = 0.2 * spread(m, torch.cos(d.actuator_velocity[:, 4]) + 0.1 * d.act_dot[:, 1])
    used = torch.as_tensor(m.user_gain_mask.flatten() > 0)
    return torch.where(used, value, torch.nan)


def c_gain(m: mujoco.MjModel, d: mujoco.MjData, i: int) -> float:
    return 0.2 * (i + 1) * (np.cos(d.actuator_velocity[4]) + 0.1 * d.act_dot[1])


def bias(m: mjt.Model, d: mjt.Data) -> torch.Tensor:
    """Damping of each of those that have one output."""
    last = d.actuator_velocity[:, FIRST:]
    return torch.sin(d.time).unsqueeze(-1) - 0.3 * last * last.abs()


def c_bias(m: mujoco.MjModel, d: mujoco.MjData, i: int) -> float:
    v = d.actuator_velocity[FIRST + i]
    return np.sin(d.time) - 0.3 * v * abs(v)


USER = {"mjcb_act_dyn": dyn, "mjcb_act_gain": gain, "mjcb_act_bias": bias}
C_USER = {"act_dyn": c_dyn, "act_gain": c_gain, "act_bias": c_bias}


@pytest.mark.parametrize("flags", ["", 'actuation="disable"', 'clampctrl="disable"'])
@pytest.mark.parametrize("off", [False, True])
def test_user_actuators_act_as_in_c(flags: str, off: bool) -> None:
    """Dynamics, gains and biases: forces, rates and accelerations, with and without a disabled group."""
    mjm = users(flags=flags, off=off)
    m, d, mjds = put(mjm, **USER)
    run_c(mjm, mjds, mujoco.mj_forward, **C_USER)
    after = mjt.forward(m, d)
    assert_equal_c(after, mjds, ("act_dot", "actuator_force", "qfrc_actuator"), rtol=1e-10)
    assert_equal_c(after, mjds, ("qacc",), rtol=1e-6)


@pytest.mark.parametrize("integrator", ["Euler", "implicit", "implicitfast", "RK4"])
@pytest.mark.parametrize("flags", ["", 'autoreset="disable"'])
def test_steps_of_user_actuators_are_those_of_c(integrator: str, flags: str) -> None:
    """Activations by Euler's rule; implicit integration knows nothing of how user forces change with velocity."""
    mjm = users(f'integrator="{integrator}"', flags)
    m, d, mjds = put(mjm, **USER)
    for _ in range(5):
        d = mjt.step(m, d)
        run_c(mjm, mjds, mujoco.mj_step, **C_USER)
    assert_equal_c(d, mjds, ACTUATOR_STATE[: 3 if integrator == "RK4" else None])


def test_a_bad_world_is_reset_under_its_user_actuators(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    mjm = users()
    m, d, mjds = put(mjm, **USER)
    d.qfrc_applied[1, 0], mjds[1].qfrc_applied[0] = torch.nan, np.nan
    run_c(mjm, mjds, mujoco.mj_step, **C_USER)
    assert_equal_c(mjt.step(m, d), mjds, ("qpos", "qvel", "act", "time"))


def test_the_stage_of_actuation_alone_calls_user_actuators() -> None:
    """They see what the stage reads."""
    mjm = users()
    m, d, mjds = put(
        mjm, mjcb_act_dyn=lambda m, d: spread(m, d.qvel[:, 0]), mjcb_act_gain=gain, mjcb_act_bias=bias
    )
    c_callbacks = C_USER | {"act_dyn": lambda m, d, i: (i + 1) * d.qvel[0]}
    run_c(mjm, mjds, mujoco.mj_forward, **c_callbacks)
    after = mjt.fwd_actuation(m, mjt.fwd_velocity(m, mjt.fwd_position(m, d)))
    assert_equal_c(after, mjds, ("act_dot", "actuator_force", "qfrc_actuator"), rtol=1e-10)


def test_user_actuators_compiled_mapped_float32_and_one_world() -> None:
    mjm = users('integrator="implicitfast"')
    m, d, _ = put(mjm, **USER)
    expected = mjt.step(m, d)
    step = torch.compile(mjt.step, backend="aot_eager", fullgraph=True)
    compiled, one = step(m, d), mjt.step(m, d[1])
    mapped = torch.vmap(lambda d: tuple(mjt.step(m, d).get(name) for name in ACTUATOR_STATE))(d)
    m32, d32, _ = put(mjm, torch.float32, **USER)
    single = mjt.step(m32, d32)
    for name, value in zip(ACTUATOR_STATE, mapped, strict=True):
        torch.testing.assert_close(compiled.get(name), expected.get(name), rtol=0, atol=1e-12)
        torch.testing.assert_close(value, expected.get(name), rtol=0, atol=1e-12)
        torch.testing.assert_close(one.get(name), expected.get(name)[1], rtol=0, atol=1e-12)
        torch.testing.assert_close(single.get(name).double(), expected.get(name), rtol=1e-4, atol=1e-4)


def test_gradients_flow_through_user_actuators() -> None:
    """Also where the callback gives NaN for an actuator that is not of type user."""
    m, d, _ = put(users(), **USER)

    def after(qvel: torch.Tensor, act: torch.Tensor, ctrl: torch.Tensor) -> torch.Tensor:
        d1 = mjt.step(m, d.replace(qvel=qvel, act=act, ctrl=ctrl))
        return torch.cat((d1.qvel, d1.act), -1)

    inputs = [x.clone().requires_grad_() for x in (d.qvel, d.act, d.ctrl)]
    assert torch.autograd.gradcheck(after, inputs, eps=1e-6, atol=1e-5, fast_mode=True)


class Gain(torch.nn.Module):
    """A gain for each actuator, to be found."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.value = torch.nn.Parameter(torch.linspace(0.05, 0.25, count, dtype=torch.float64))

    def forward(self, m: mjt.Model, d: mjt.Data) -> torch.Tensor:
        return self.value * (1.0 + d.actuator_length[:, -1:])


def test_modules_for_user_actuators_learn_beside_others() -> None:
    """Each callback is handed its own tensors; actuators that are not of type user get no gradient."""
    mjm = users(off=False)
    friction = Friction()
    friction.rate = torch.nn.Parameter(torch.full((4,), 0.1, dtype=torch.float64))
    modules = {
        "mjcb_act_gain": Gain(mjm.nactuator),
        "mjcb_passive": friction,
        "mjcb_act_bias": Gain(mjm.nactuator),
    }
    m, d, _ = put(mjm, mjcb_act_dyn=dyn, **modules)
    weights = [w for module in modules.values() for w in module.parameters()]

    def loss() -> torch.Tensor:
        return mjt.step(m, mjt.step(m, d)).qvel.square().sum()

    slopes = torch.autograd.grad(loss(), weights)
    user = [
        mjm.actuator_gaintype == mujoco.mjtGain.mjGAIN_USER,
        mjm.actuator_biastype == mujoco.mjtBias.mjBIAS_USER,
    ]
    assert [(slopes[i] != 0).tolist() for i in (0, 2)] == [x.tolist() for x in user]
    for weight, slope in zip(weights, slopes, strict=True):
        with torch.no_grad():
            before = loss()
            weight[1] += 1e-5
            after = loss()
        torch.testing.assert_close((after - before) / 1e-5, slope[1], rtol=1e-3, atol=1e-6)


def test_user_actuators_run_in_blocks(monkeypatch) -> None:
    """The pieces of ``mujoco_torch.compile`` (run uncompiled)."""
    monkeypatch.setattr(torch, "compile", lambda fn, **_: fn)
    for integrator in ("Euler", "RK4"):
        m, d, _ = put(users(f'integrator="{integrator}"'), **USER)
        after, expected = mjt.compile(mjt.step)(m, d, 2), mjt.step(m, d, 2)
        for name in ("qpos", "qvel", "act"):
            torch.testing.assert_close(after.get(name), expected.get(name), rtol=0, atol=1e-12)


ELEMENTS = {
    "mjcb_act_dyn": ("actuator-dynamics", ("all", "dyn", "early", "off")),
    "mjcb_act_gain": ("actuator-gain", ("all", "early", "gain", "filter", "off")),
    "mjcb_act_bias": ("actuator-bias", ("all", "bias", "off")),
}


@pytest.mark.parametrize("missing", ELEMENTS)
def test_a_user_actuator_without_its_callback_is_refused_by_name(missing: str) -> None:
    """And the message names the argument; ``check`` alone knows of no callbacks."""
    mjm = users()
    assert [finding.feature for finding in mjt.check(mjm)] == [feature for feature, _ in ELEMENTS.values()]
    with pytest.raises(mjt.UnsupportedModelError, match=f"give put_model {missing}") as error:
        mjt.put_model(mjm, **{name: f for name, f in USER.items() if name != missing})
    (finding,) = error.value.findings
    feature, names = ELEMENTS[missing]
    assert (finding.feature, finding.elements) == (feature, tuple(f"actuator '{name}'" for name in names))


def test_user_dynamics_of_several_activations_are_refused() -> None:
    """C's callback does not return their rates, but writes them."""
    xml = USERS.format(option="", flags="").replace('name="dyn"', 'name="dyn" actdim="2"')
    with pytest.raises(
        mjt.UnsupportedModelError, match=r"several activations are not simulated \(actuator 'dyn'\)"
    ):
        mjt.put_model(mujoco.MjModel.from_xml_string(xml), **USER)


@pytest.mark.parametrize("name", USER)
def test_what_a_user_actuator_cannot_use_is_named(name: str) -> None:
    mjm = users(flags='autoreset="disable"')
    m, d, _ = put(mjm, **USER | {name: lambda m, d: d.qvel})
    with pytest.raises(mjt.StateError, match=rf"{name} returned \(4, 4\) .* for the actuators; .* \(4, 9\)"):
        mjt.step(m, d)
