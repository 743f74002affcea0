"""Actuators of every type against MuJoCo C: rates of activations, forces, and what a step makes of the state."""

import functools
import itertools

import mujoco
import numpy as np
import pytest
import torch

import mujoco_torch as mjt
from mujoco_torch import testing

NWORLD = 6

# An elbow with two tendons, a ball joint and a slide; nothing touches.
BODIES = """
<mujoco>
  <option timestep="0.004" gravity="0 0.3 -9.81"{option}/>
  <default><geom contype="0" conaffinity="0"/></default>
  <worldbody>
    <body name="upper" gravcomp="{gravcomp}">
      <joint name="shoulder" axis="0 1 0.2" damping="0.02" {shoulder}/>
      <geom type="capsule" size="0.03" fromto="0 0 0 0.3 0 0"/>
      <site name="a" pos="0.1 0 0.05"/>
      <body name="lower" pos="0.3 0 0" gravcomp="{gravcomp}">
        <joint name="elbow" axis="0 1 0"/>
        <geom type="capsule" size="0.02" fromto="0 0 0 0.25 0 0.02"/>
        <site name="b" pos="0.1 0 0.04"/>
        <body name="hand" pos="0.25 0 0.02">
          <joint name="wrist" type="ball" damping="0.01"/>
          <geom type="box" size="0.03 0.05 0.02" pos="0.03 0.01 0"/>
          <site name="palm" pos="0.03 0 0" euler="10 20 30"/>
          <body name="finger" pos="0.06 0 0">
            <joint name="finger" type="slide" axis="1 0 0" damping="0.3"/>
            <geom type="sphere" size="0.02" mass="0.2"/>
          </body>
        </body>
      </body>
    </body>
    <site name="world" pos="0.2 0.1 0.3" euler="30 10 -20"/>
  </worldbody>
  <tendon>
    <fixed name="mix" {mix}><joint joint="shoulder" coef="0.7"/><joint joint="elbow" coef="-1.1"/></fixed>
    <spatial name="string" {string}><site site="a"/><site site="b"/></spatial>
  </tendon>
  <actuator>{actuators}</actuator>
</mujoco>
"""

ACTIVATIONS = """
<motor joint="shoulder" ctrllimited="true" ctrlrange="-0.5 0.4"/>
<general joint="shoulder" dyntype="integrator" gainprm="2" actlimited="true" actrange="-0.3 0.4"/>
<general joint="elbow" dyntype="filter" dynprm="0.03" gaintype="affine" gainprm="1 0.5 -0.2" biastype="affine"
  biasprm="0.1 -2 -0.05" gear="1.5"/>
<general joint="elbow" dyntype="filterexact" dynprm="0.003" forcelimited="true" forcerange="-0.2 0.3"/>
<general joint="finger" dyntype="integrator" actearly="true" gear="-2"/>
<general joint="finger" dyntype="filter" dynprm="0.02" actearly="true" actlimited="true" actrange="-0.1 0.2"/>
<general joint="wrist" dyntype="filterexact" dynprm="0.02" actearly="true" gear="0.1 0.2 0.3"/>
<general tendon="string" dyntype="filterexact" dynprm="0.001" gear="3"/>
<intvelocity joint="elbow" kp="3" kv="0.1" actrange="-1 1"/>
"""

MUSCLES = """
<muscle joint="shoulder" lengthrange="-1.2 1.1"/>
<muscle joint="elbow" lengthrange="-0.9 1.3" timeconst="0.02 0.05" tausmooth="0.3" range="0.6 1.2" force="30"
  lmin="0.4" lmax="1.7" vmax="1.2" fpmax="1.5" fvmax="1.4" gear="1.3"/>
<muscle tendon="string" lengthrange="0.2 0.4" scale="5" tausmooth="0.05"/>
<general joint="finger" dyntype="muscle" dynprm="0.01 0.04 0" gainprm="2"/>
<general joint="shoulder" dyntype="filter" dynprm="0.05" gaintype="muscle" biastype="affine" biasprm="0.1 -0.2 -0.3"
  gainprm="0.7 1.1 10 5 0.5 1.6 1.5 1.3 1.2" lengthrange="-1 1"/>
<general joint="elbow" gainprm="3" biastype="muscle" biasprm="0.7 1.1 20 5 0.5 1.6 1.5 1.3 1.2" lengthrange="-0.3 0.2"/>
"""

CONTROLLERS = """
<pid joint="shoulder" kp="3" kv="0.4"/>
<pid joint="shoulder" kp="3" kv="0.4" ki="0.5" imax="0.6" slewmax="7" input="pos vel ff" posrange="-1 1"
  velrange="-2 2" ffrange="-0.3 0.3" forcerange="-1 1.5"/>
<pid joint="elbow" kp="2" ki="0.7" input="pos"/>
<pid joint="elbow" kp="2" kv="0.1" input="vel"/>
<pid joint="finger" kp="2" kv="0.1" slewmax="2" input="pos ff"/>
<pid tendon="mix" kp="1" kv="0.1" input="ff"/>
<general joint="finger" gaintype="pid" biastype="affine" dyntype="pid" actdim="2" dynprm="0.4 3" gainprm="0.6"
  biasprm="0.3 -2 -0.1" actearly="true" actlimited="true" actrange="-0.5 0.5"/>
<pid joint="wrist" kp="0.2" ki="0.1" slewmax="9" gear="0 0 1" input="pos"/>
"""

ON_THE_CIRCLE = """
<position joint="wrist" kp="0.3" gear="0 0 1"/>
<general joint="wrist" dyntype="integrator" gainprm="0.3" biastype="affine" biasprm="0 -0.3 0" gear="0 1 0"
  actearly="true"/>
<general joint="wrist" dyntype="filter" dynprm="0.1" gainprm="0.3" biastype="affine" biasprm="0 -0.3 0" gear="0 2 0"/>
<general jointinparent="wrist" dyntype="filterexact" dynprm="0.1" gainprm="0.3" biastype="affine" biasprm="0 -0.3 0"
  gear="1 0 0.5" actlimited="true" actrange="-12 12"/>
<general site="palm" refsite="world" dyntype="integrator" gainprm="0.3" biastype="affine" biasprm="0 -0.3 0"
  gear="0 0 0 0.3 1 0"/>
<pid site="palm" refsite="world" kp="0.2" gear="0 0 0 0 0 1"/>
<dcmotor joint="wrist" resistance="2" motorconst="0.05 0.06" input="pos" controller="0.1" gear="0 0 1"/>
"""

ORIENTATIONS = """
<orientation joint="wrist" kp="0.3" kv="0.02"/>
<orientation joint="wrist" kp="0.3" kv="0.02" input="quat" forcerange="0 0.3"/>
<general joint="wrist" gaintype="so3" biastype="so3" gainprm="0.4" biasprm="0.1 -0.4 -0.02" dyntype="integrator"/>
<general joint="wrist" gaintype="so3" biastype="so3" gainprm="0.4" biasprm="0 -0.4 -0.02" dyntype="integrator"
  actearly="true" actlimited="true" actrange="-3 4" forcelimited="true" forcerange="0 0.9"/>
<orientation site="palm" refsite="world" kp="0.2"/>
"""

TENDON_LIMITS = """
<motor tendon="mix" gear="1.5"/>
<general tendon="mix" dyntype="filter" dynprm="0.05" gainprm="2" forcelimited="true" forcerange="-0.9 0.8"/>
<position tendon="mix" kp="1"/>
<motor tendon="string" gear="2"/>
<motor joint="elbow"/>
"""

REFLECTED = """
<motor joint="shoulder" damping="0.2" armature="0.01" gear="2"/>
<motor joint="elbow" damping="0.1 0.05 0.02" armature="0.003"/>
<motor joint="elbow" damping="0.03" gear="1.5"/>
<motor joint="wrist" damping="0.02 0.01 0" armature="0.0004" gear="0.7 2 3"/>
<motor tendon="mix" damping="0.05 0.1 0.2" armature="0.002" gear="1.3"/>
<motor tendon="string" armature="0.2" gear="0.5"/>
<motor tendon="string" damping="0.3" gear="0.5" group="2"/>
"""

DISABLED = """
<motor joint="shoulder" group="1" forcelimited="true" forcerange="0.1 0.2"/>
<general joint="shoulder" dyntype="integrator" group="1" actlimited="true" actrange="2 3"/>
<general joint="elbow" dyntype="filter" dynprm="0.04" group="2"/>
<muscle joint="elbow" lengthrange="-1 1" group="1"/>
<pid joint="finger" ki="1" slewmax="3" group="1" input="pos"/>
<dcmotor joint="finger" group="1" resistance="2" motorconst="0.3" lugre="100 2 0.3 0.4 0.1" inductance="0.01"
  thermal="4 5 0 0.01 25 20" cogging="0.1 5 0.4" input="pos ff" controller="1 0.5 0.1 3 0.2 4"/>
<dcmotor joint="elbow" group="31" resistance="2" motorconst="0.3"/>
<orientation joint="wrist" group="1" kp="0.3"/>
<orientation joint="wrist" group="2" kp="0.2"/>
"""

DELAYS = """
<motor joint="shoulder" nsample="4" delay="0.010" ctrlrange="-0.5 0.4"/>
<motor joint="elbow" nsample="3" delay="0.009" interp="linear" gear="0.5"/>
<general joint="finger" nsample="6" delay="0.0171" interp="cubic" dyntype="filter" dynprm="0.02"/>
<motor joint="elbow" nsample="2" gear="0.3"/>
<pid joint="shoulder" kp="2" kv="0.1" nsample="5" delay="0.014" interp="cubic"/>
<motor joint="finger" nsample="1" delay="0.004"/>
<motor joint="shoulder" gear="0.1"/>
"""

MODELS = {
    "activations": dict(actuators=ACTIVATIONS),
    "muscles": dict(actuators=MUSCLES),
    "controllers": dict(actuators=CONTROLLERS),
    "circle": dict(actuators=ON_THE_CIRCLE),
    "orientations": dict(actuators=ORIENTATIONS),
    "tendon-limits": dict(
        actuators=TENDON_LIMITS,
        mix='actuatorfrclimited="true" actuatorfrcrange="-1 0.7"',
        string='actuatorfrclimited="true" actuatorfrcrange="-0.5 1.5"',
    ),
    "reflected": dict(actuators=REFLECTED, mix='damping="0.1"'),
    "disabled": dict(actuators=DISABLED, option=' actuatorgroupdisable="1"'),
    "delays": dict(actuators=DELAYS),
    "gravcomp": dict(
        actuators='<motor joint="shoulder"/>',
        gravcomp="1",
        shoulder='actuatorgravcomp="true" actuatorfrclimited="true" actuatorfrcrange="-0.2 1"',
    ),
}


def build(actuators: str, **filled: str) -> mujoco.MjModel:
    """The arm with these actuators, and with more attributes where the text leaves room."""
    empty = dict(option="", gravcomp="0", shoulder="", mix="", string="")
    return mujoco.MjModel.from_xml_string(BODIES.format(**(empty | filled), actuators=actuators))


@functools.cache
def load(name: str) -> mujoco.MjModel:
    return build(**MODELS[name])


def rk4(mjm: mujoco.MjModel) -> mujoco.MjModel:
    mjm = testing.converged(mjm)
    mjm.opt.integrator = mujoco.mjtIntegrator.mjINT_RK4
    return mjm


def states(mjm: mujoco.MjModel, nworld: int = NWORLD, seed: int = 3) -> list[mujoco.MjData]:
    """Worlds at random, with activations and controls of order one, and a few steps of random controls behind them."""
    rng = np.random.default_rng(seed)
    found = []
    for world in range(nworld):
        mjd = mujoco.MjData(mjm)
        mujoco.mj_integratePos(mjm, mjd.qpos, 0.5 * rng.standard_normal(mjm.nv), 1.0)
        mjd.qvel = rng.standard_normal(mjm.nv)
        mjd.act = rng.standard_normal(mjm.na) * (0.5, 1.0, 3.0)[world % 3]
        if mjm.nhistory:
            for _ in range(2 * world):
                mjd.ctrl = rng.standard_normal(mjm.nu)
                mujoco.mj_step(mjm, mjd)
        mjd.ctrl = rng.standard_normal(mjm.nu) * (1.0, 5.0)[world % 2]
        found.append(mjd)
    return found


def after_steps(mjm: mujoco.MjModel, nsteps: int, dtype=torch.float64, nworld: int = NWORLD):
    """Our model and Data, and C's, after steps with the same changing controls."""
    mjds = states(mjm, nworld)
    m = mjt.put_model(mjm, dtype=dtype)
    d = mjt.put_data(m, mjds)
    mjds = [testing.copy_state(mjm, mjd) for mjd in mjds]
    for number in range(nsteps):
        for world, mjd in enumerate(mjds):
            mjd.ctrl = mjd.ctrl * np.cos(number + world)
            mujoco.mj_step(mjm, mjd)
        turn = torch.tensor([np.cos(number + world) for world in range(nworld)], dtype=dtype)
        d = mjt.step(m, d.replace(ctrl=d.ctrl * turn[:, None]))
    return m, d, mjds


STATE = ("time", "qpos", "qvel", "act", "history")


@pytest.mark.parametrize("name", MODELS)
def test_rates_and_forces(name: str) -> None:
    """``act_dot``, ``actuator_force`` and ``qfrc_actuator`` of the stage, and every field after ``forward``."""
    mjm = load(name)
    testing.stage_parity(mjm, "fwd_actuation", states(mjm)).raise_for_failures()
    testing.stage_parity(mjm, "forward", states(mjm)).raise_for_failures()


@pytest.mark.parametrize("integrator", ["Euler", "RK4"])
@pytest.mark.parametrize("name", MODELS)
def test_steps(name: str, integrator: str) -> None:
    """Activations, buffers of controls and motion after one step and after eight."""
    mjm = load(name) if integrator == "Euler" else rk4(load(name))
    for nsteps in (1, 8):
        m, d, mjds = after_steps(mjm, nsteps)
        fields = (*STATE, "act_dot", "actuator_force", "qfrc_actuator")
        testing.compare(m, d, mjds, fields, 1e-9 if nsteps > 1 else 1e-10).raise_for_failures()


@pytest.mark.parametrize("name", MODELS)
def test_float32(name: str) -> None:
    """Three steps in float32 follow C; buffers are read at the same samples."""
    m, d, mjds = after_steps(load(name), 3, torch.float32)
    testing.compare(m, d, mjds, STATE, 1e-4).raise_for_failures()


MOTORS = [
    (inputs, inductance, thermal, friction, slew, windup)
    for inputs in ("pos", "vel", "pos vel", "pos vel ff voltage", "ff", "vel voltage", "voltage", "none")
    for inductance, thermal, friction in itertools.product((False, True), repeat=3)
    for slew, windup in ((0, 0), (5, 0.5))
]


def _motor(
    inputs: str, inductance: bool, thermal: bool, friction: bool, slew: float, windup: float, maxvolt: float
):
    position = "pos" in inputs.split()
    controller = ""
    if inputs not in ("voltage", "none"):
        controller = f'controller="1 {2 if position else 0} 0.3 {slew} {windup if position else 0} {maxvolt}"'
    return (
        f'<dcmotor joint="finger" resistance="2" motorconst="0.05 0.06" gear="1.3" input="{inputs}" {controller} '
        f'cogging="0.1 2 3" saturation="0.3 0 {9 if inductance else 0}" '
        + ('inductance="0.01 0" ' if inductance else "")
        + ('thermal="4 5 0 0.01 25 20" ' if thermal else "")
        + ('lugre="100 2 0.3 0.4 0.1" ' if friction else "")
        + "/>"
    )


@pytest.mark.parametrize("inputs", sorted({motor[0] for motor in MOTORS}))
def test_dc_motors(inputs: str) -> None:
    """Every combination of inputs, states and limits that C tells apart: all variants of one input in one model."""
    actuators = "".join(
        _motor(*motor, maxvolt) for motor in MOTORS if motor[0] == inputs for maxvolt in (0, 6)
    )
    mjm = build(actuators)
    testing.stage_parity(mjm, "fwd_actuation", states(mjm)).raise_for_failures()
    m, d, mjds = after_steps(mjm, 2)
    testing.compare(m, d, mjds, STATE, 1e-9).raise_for_failures()


def test_a_passive_motor_without_motor_constant() -> None:
    """Friction and cogging alone; a model whose only actuator has no control."""
    actuators = (
        '<dcmotor joint="finger" resistance="2" motorconst="0 0" input="none" lugre="100 2 0.3 0.4 0.1" '
        'cogging="1 2 3"/>'
    )
    mjm = build(actuators)
    assert (mjm.nu, mjm.nactuator) == (0, 1)
    testing.stage_parity(mjm, "fwd_actuation", states(mjm)).raise_for_failures()
    m, d, mjds = after_steps(mjm, 3)
    testing.compare(m, d, mjds, STATE, 1e-10).raise_for_failures()


@pytest.mark.parametrize(
    "friction", ["", 'lugre="5 0.1 0.3 0.4 0.1" thermal="4 5 0 0.01 25 20" inductance="0.01 0"']
)
def test_a_dc_motor_in_runge_kutta_steps(friction: str) -> None:
    """C takes the velocity at the start of the step for the bristle, and leaves it in ``actuator_velocity``."""
    mjm = rk4(
        build(f'<dcmotor joint="finger" resistance="2" motorconst="0.05 0.06" input="pos" {friction}/>')
    )
    m, d, mjds = after_steps(mjm, 2)
    testing.compare(m, d, mjds, (*STATE, "act_dot", "actuator_velocity"), 1e-10).raise_for_failures()


def test_a_filter_without_time_constant() -> None:
    """The least time constant is 1e-15 s: the exact filter is at its control after a step."""
    mjm = build('<general joint="finger" dyntype="filterexact" dynprm="0" gear="3"/>')
    m, d, mjds = after_steps(mjm, 2)
    testing.compare(m, d, mjds, (*STATE, "act_dot"), 1e-10).raise_for_failures()


@pytest.mark.parametrize("name", ["activations", "muscles", "delays"])
def test_disabled_actuation(name: str) -> None:
    """No force, no rate, activations stay; buffers still take the controls."""
    mjm = testing.converged(load(name))
    mjm.opt.disableflags = int(mujoco.mjtDisableBit.mjDSBL_ACTUATION)
    m, d, mjds = after_steps(mjm, 3)
    testing.compare(m, d, mjds, (*STATE, "qfrc_actuator", "actuator_force"), 1e-10).raise_for_failures()


def test_a_bad_control_zeroes_the_controls_of_its_world() -> None:
    """Also those that activations take; other worlds are not touched."""
    mjm = load("activations")
    mjds = states(mjm, 4)
    mjds[1].ctrl[0] = 1e11
    mjds[2].ctrl[3] = -1e11
    mjm = testing.converged(mjm)
    mjm.opt.disableflags = int(mujoco.mjtDisableBit.mjDSBL_CLAMPCTRL)
    testing.stage_parity(mjm, "fwd_actuation", mjds).raise_for_failures()


def test_damping_and_armature_edited_away_from_the_compiled_marks() -> None:
    """As in C only the actuators that the compiler marked count (``jnt_actuatorid``)."""
    mjm = testing.converged(load("activations"))
    mjm.actuator_damping[:] = 0.3
    mjm.actuator_armature[:] = 0.3
    testing.stage_parity(mjm, "forward", states(mjm)).raise_for_failures()


@pytest.mark.parametrize("flag", ["DAMPER", "EULERDAMP"])
def test_reflected_damping_has_the_flags_of_damping(flag: str) -> None:
    mjm = testing.converged(load("reflected"))
    mjm.opt.disableflags = int(getattr(mujoco.mjtDisableBit, f"mjDSBL_{flag}"))
    testing.stage_parity(mjm, "step", states(mjm)).raise_for_failures()


# Places of a sample relative to the newest, in time steps: appended, in place of one, between two, before all.
@pytest.mark.parametrize("shift", [1.0, 0.3, 0.0, -0.4, -1.0, -1.6, -2.2, -5.0])
def test_a_buffer_takes_a_sample_of_any_time(shift: float) -> None:
    """A user may set the time back or on: the sample goes where C puts it, and is read there."""
    mjm = load("delays")
    mjds = states(mjm)
    for mjd in mjds:
        mjd.time += (shift - 1.0) * mjm.opt.timestep
    testing.stage_parity(mjm, "fwd_actuation", mjds).raise_for_failures()
    report = testing.stage_parity(mjm, "euler", mjds)
    assert report["history"].error <= 1e-12, str(report)


def test_a_reset_world_has_empty_buffers() -> None:
    mjm = load("delays")
    d = mjt.make_data(mjt.put_model(mjm, dtype=torch.float64))
    np.testing.assert_array_equal(d.history, mujoco.MjData(mjm).history)


def _loss(m: mjt.Model, d: mjt.Data, weights: list[torch.Tensor], *inputs: torch.Tensor) -> torch.Tensor:
    qpos, qvel, act, ctrl = inputs
    d = mjt.step(m, d.replace(qpos=qpos, qvel=qvel, act=act, ctrl=ctrl))
    return sum(
        (w * x).sum() for w, x in zip(weights, (d.qvel, d.act, d.actuator_force, d.act_dot), strict=True)
    )


@pytest.mark.parametrize("name", MODELS)
def test_gradients_are_those_of_differences(name: str) -> None:
    """Of motion, activations and forces after a step, by state and control; away from the kinks of clamps."""
    mjm = load(name)
    m = mjt.put_model(mjm, dtype=torch.float64)
    d = mjt.put_data(m, states(mjm, 4)[1:3])
    start = [x.detach() for x in (d.qpos, d.qvel, d.act, d.ctrl)]
    generator = torch.Generator().manual_seed(0)
    after = mjt.step(m, d)
    weights = [
        torch.randn(x.shape, generator=generator, dtype=x.dtype) / (1.0 + x.abs())
        for x in (after.qvel, after.act, after.actuator_force, after.act_dot)
    ]
    inputs = [x.clone().requires_grad_() for x in start]
    grads = torch.autograd.grad(_loss(m, d, weights, *inputs), inputs, materialize_grads=True)
    for number in (1, 2, 3):
        direction = torch.randn(start[number].shape, generator=generator, dtype=torch.float64)
        if not direction.numel():
            continue
        h = 1e-6
        ends = []
        for sign in (1, -1):
            moved = list(start)
            moved[number] = start[number] + sign * h * direction
            ends.append(_loss(m, d, weights, *moved))
        expected = (ends[0] - ends[1]) / (2 * h)
        torch.testing.assert_close((grads[number] * direction).sum(), expected, rtol=1e-5, atol=1e-5)
    assert all(torch.isfinite(grad).all() for grad in grads)


@pytest.mark.parametrize("name", MODELS)
def test_gradients_are_finite_at_rest(name: str) -> None:
    """At zero velocity, activation and control, where norms vanish and time constants switch."""
    mjm = load(name)
    m = mjt.put_model(mjm, dtype=torch.float64)
    d = mjt.make_data(m, 2)
    inputs = [x.clone().requires_grad_() for x in (d.qpos, d.qvel, d.act, d.ctrl)]
    after = mjt.step(m, d.replace(**dict(zip(("qpos", "qvel", "act", "ctrl"), inputs, strict=True))))
    loss = after.qvel.sum() + after.act.sum() + after.actuator_force.sum() + after.history.sum()
    grads = torch.autograd.grad(loss, inputs, materialize_grads=True)
    assert all(torch.isfinite(grad).all() for grad in grads)


def test_a_control_acts_through_the_buffer_on_later_steps() -> None:
    """The gradient of a delayed control arrives after its delay, and not before."""
    mjm = load("delays")
    m = mjt.put_model(mjm, dtype=torch.float64)
    d = mjt.make_data(m, 1)
    ctrl = torch.full((1, mjm.nu), 0.1, dtype=torch.float64, requires_grad=True)
    d = mjt.step(m, d.replace(ctrl=ctrl))
    late = []
    for _ in range(4):
        d = mjt.step(m, d.replace(ctrl=torch.zeros_like(ctrl)))
        (grad,) = torch.autograd.grad(d.actuator_force[0, 0], ctrl, retain_graph=True, allow_unused=True)
        late.append(0.0 if grad is None else float(grad[0, 0]))
    assert late == [0.0, 0.0, 1.0, 0.0]  # 0.010 s is 2.5 time steps, and the sample before is held


@pytest.mark.parametrize(
    ("name", "integrator"),
    [
        ("muscles", "Euler"),
        ("circle", "Euler"),
        ("disabled", "Euler"),
        ("delays", "Euler"),
        ("activations", "RK4"),
    ],
)
def test_compiled_step_is_the_same(name: str, integrator: str) -> None:
    """One graph, no break, and the eager numbers."""
    mjm = load(name) if integrator == "Euler" else rk4(load(name))
    m = mjt.put_model(mjm, dtype=torch.float64)
    d = mjt.put_data(m, states(mjm, 4))
    torch._dynamo.reset()
    compiled = torch.compile(mjt.step, backend="aot_eager", fullgraph=True)(m, d)
    eager = mjt.step(m, d)
    for field in ("qpos", "qvel", "act", "history", "actuator_force"):
        torch.testing.assert_close(getattr(compiled, field), getattr(eager, field), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", ["activations", "delays", "disabled"])
def test_vmap_and_a_single_world(name: str) -> None:
    """A world alone, mapped, or in a batch gives the same."""
    mjm = load(name)
    m = mjt.put_model(mjm, dtype=torch.float64)
    d = mjt.put_data(m, states(mjm, 4))
    batch = mjt.step(m, d)
    mapped = torch.vmap(lambda d: mjt.step(m, d))(d)
    alone = mjt.step(m, d[2])
    for field in ("qvel", "act", "history", "actuator_force"):
        torch.testing.assert_close(getattr(mapped, field), getattr(batch, field), rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(getattr(alone, field), getattr(batch, field)[2], rtol=1e-9, atol=1e-9)


def test_a_mocap_body_does_not_disturb_muscles() -> None:
    """Nor does its place in the tree."""
    plain = BODIES.format(option="", gravcomp="0", shoulder="", mix="", string="", actuators=MUSCLES)
    mocap = '<body name="target" mocap="true" pos="3 0 0"><geom size="0.1"/></body>'
    forces = []
    for xml in (
        plain,
        plain.replace("<worldbody>", "<worldbody>" + mocap),
        plain.replace("</worldbody>", mocap + "</worldbody>"),
    ):
        mjm = mujoco.MjModel.from_xml_string(xml)
        m = mjt.put_model(mjm, dtype=torch.float64)
        forces.append(mjt.forward(m, mjt.put_data(m, states(mjm))).qfrc_actuator)
    torch.testing.assert_close(forces[1], forces[0], rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(forces[2], forces[0], rtol=1e-12, atol=1e-12)


def test_plain_models_pay_nothing() -> None:
    """No switch of this module is on in the packaged models, whose actuators are motors."""
    off = (
        "delayed has_history slew_limited linear_dyn muscle_dyn integral dcmotor muscle_gain muscle_bias uses_next pid "
        "so3 tendon_clamp so3_limited motor_cogging motor_friction wraps act_limited actgravcomp"
    )
    for name in mjt.MODELS:
        topology = mjt.put_model(mujoco.MjModel.from_xml_path(str(mjt.model_path(name)))).topology
        assert not any(getattr(topology, switch) for switch in off.split())
        assert topology.input_is_ctrl
