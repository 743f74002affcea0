"""Worlds whose state goes bad are reset as in MuJoCo C; worlds reset on request; a step in two halves."""

import functools

import mujoco
import numpy as np
import pytest
import torch

import mujoco_torch as mjt
from mujoco_torch import testing
from mujoco_torch._src import layout
from mujoco_torch._src.enums import WarningType

ROLLER = """
<mujoco>
  <option timestep="0.003" {option}/>
  <worldbody>
    <geom type="plane" size="3 3 0.1"/>
    <body pos="0 0 0.3">
      <freejoint/>
      <geom type="capsule" size="0.1 0.2"/>
      <body pos="0.2 0 0">
        <joint name="arm" axis="0 1 0" range="-40 40" limited="true" damping="0.1" stiffness="1"/>
        <geom type="sphere" size="0.08" pos="0.2 0 0"/>
      </body>
    </body>
  </worldbody>
  <actuator><motor joint="arm" gear="0.2"/></actuator>
  <keyframe>
    <key time="0.5" qpos="1 2 3 1 0 0 0 0.1" ctrl="0.3"/>
    <key qpos="0 0 1 0 1 0 0 -0.1" qvel="1 2 3 4 5 6 7"/>
  </keyframe>
</mujoco>
"""

FIELDS = ("time", "qpos", "qvel", "qacc_warmstart", "ctrl", "qfrc_applied", "xfrc_applied")
BAD = [
    ("qpos", np.nan, WarningType.BADQPOS),
    ("qpos", -2e10, WarningType.BADQPOS),
    ("qvel", np.inf, WarningType.BADQVEL),
    ("qvel", 1.0001e10, WarningType.BADQVEL),
    ("qfrc_applied", np.nan, WarningType.BADQACC),
    ("xfrc_applied", 1e15, WarningType.BADQACC),
    ("qvel", 9e9, WarningType.BADQACC),
]


def roller(option: str = "") -> mujoco.MjModel:
    return testing.converged(mujoco.MjModel.from_xml_string(ROLLER.format(option=option)))


@functools.cache
def states() -> list[mujoco.MjData]:
    return testing.perturbed_states(roller(), 4, seed=0, settle=50)


def worlds(mjm: mujoco.MjModel) -> list[mujoco.MjData]:
    return [testing.copy_state(mjm, state) for state in states()]


@pytest.fixture(autouse=True)
def _quiet(tmp_path, monkeypatch) -> None:
    """C writes its warnings to a file where it runs."""
    monkeypatch.chdir(tmp_path)


def spoil(d: mjt.Data, name: str, value: float) -> mjt.Data:
    """World 2 with a bad last number in a field."""
    x = d.get(name).clone()
    x[2].view(-1)[-1] = value
    return d.replace(**{name: x})


def assert_state(d: mjt.Data, mjds: list[mujoco.MjData], rtol: float = 1e-8) -> None:
    for name in FIELDS:
        expected = np.array([getattr(mjd, name) for mjd in mjds])
        np.testing.assert_allclose(
            d.get(name).numpy(), expected, rtol=0, atol=rtol * (1 + np.abs(expected).max()), err_msg=name
        )


@pytest.mark.parametrize(("name", "value", "why"), BAD)
@pytest.mark.parametrize("option", ["", 'integrator="RK4"'])
@pytest.mark.parametrize("halves", [False, True])
def test_a_bad_world_is_reset_as_in_c(
    name: str, value: float, why: WarningType, option: str, halves: bool
) -> None:
    """It ends the step as C's world does, clock and controls included, with a warning; the others keep every bit."""
    mjm = roller(option)
    mjds = worlds(mjm)
    m = mjt.put_model(mjm, dtype=torch.float64)
    d = mjt.put_data(m, mjds)
    np.asarray(getattr(mjds[2], name)).reshape(-1)[-1] = value

    def step(d: mjt.Data) -> mjt.Data:
        return mjt.step2(m, mjt.step1(m, d)) if halves else mjt.step(m, d)

    good, after = step(d), step(spoil(d, name, value))
    others = [0, 1, 3]
    assert (after[others] == good[others]).all()
    for mjd in mjds:
        for function in (mujoco.mj_step1, mujoco.mj_step2) if halves else (mujoco.mj_step,):
            function(mjm, mjd)
    assert_state(after, mjds)
    assert after.warning.tolist() == [[w.number for w in mjd.warning] for mjd in mjds]
    assert after.warning[2].tolist() == [int(kind == why) for kind in WarningType]


def test_the_next_steps_are_those_of_c() -> None:
    mjm = roller()
    mjds = worlds(mjm)
    m = mjt.put_model(mjm, dtype=torch.float64)
    d = spoil(mjt.put_data(m, mjds), "qfrc_applied", np.nan)
    mjds[2].qfrc_applied[-1] = np.nan
    d = mjt.step(m, d, 20)
    for mjd in mjds:
        mujoco.mj_step(mjm, mjd, 20)
    assert_state(d, mjds, 1e-6)


def test_warnings_add_up() -> None:
    """Over resets: departure 1 of ``step``."""
    m = mjt.put_model(roller(), dtype=torch.float64)
    d = mjt.make_data(m, 3)
    for name in ("qpos", "qvel", "qvel", "qfrc_applied"):
        d = mjt.step(m, spoil(d, name, torch.nan))
    assert d.warning[2].tolist() == [0, 0, 0, 1, 2, 1, 0]
    assert (d.warning[:2] == 0).all()
    both = mjt.step(m, spoil(spoil(mjt.make_data(m, 3), "qpos", torch.nan), "qvel", torch.nan))
    assert both.warning[2].tolist() == [0, 0, 0, 1, 0, 0, 0]  # the reset for qpos mends qvel, too


@pytest.mark.parametrize("option", ["", 'integrator="RK4"'])
def test_nothing_is_reset_with_the_flag_disabled(option: str) -> None:
    mjm = roller(option)
    mjm.opt.disableflags |= int(mujoco.mjtDisableBit.mjDSBL_AUTORESET)
    m = mjt.put_model(mjm, dtype=torch.float64)
    d = mjt.put_data(m, worlds(mjm))
    good, after = mjt.step(m, d), mjt.step(m, spoil(d, "qpos", torch.nan))
    assert after.qpos[2].isnan().any()
    assert (after[[0, 1, 3]] == good[[0, 1, 3]]).all()
    assert (after.warning == 0).all()


@pytest.mark.parametrize("option", ["", 'integrator="RK4"'])
def test_gradients_of_good_worlds_do_not_see_a_bad_one(option: str) -> None:
    """And those of a world that is reset for its position or velocity are zero: where it went is a constant."""
    mjm = roller(option)
    m = mjt.put_model(mjm, dtype=torch.float64)
    d = mjt.put_data(m, worlds(mjm))

    def slopes(d: mjt.Data) -> list[torch.Tensor]:
        inputs = [d.get(name).clone().requires_grad_() for name in ("qpos", "qvel", "ctrl")]
        after = mjt.step(m, d.replace(qpos=inputs[0], qvel=inputs[1], ctrl=inputs[2]), 2)
        return torch.autograd.grad(after.qpos.sum() + after.qvel.sum(), inputs)

    good = slopes(d)
    for name in ("qpos", "qvel", "qfrc_applied"):
        for mine, expected in zip(slopes(spoil(d, name, torch.nan)), good, strict=True):
            torch.testing.assert_close(mine[[0, 1, 3]], expected[[0, 1, 3]], rtol=0, atol=1e-12)
            if name != "qfrc_applied":
                assert (mine[2] == 0).all()


def test_gradients_of_shared_parameters_stay_finite() -> None:
    """The state is mended before anything is computed from it."""
    mjm = roller()
    m = mjt.put_model(mjm, dtype=torch.float64)
    params = m.params.clone().requires_grad_()
    d = spoil(spoil(mjt.put_data(m, worlds(mjm)), "qpos", torch.nan), "qvel", torch.inf)
    after = mjt.step(mjt.Model(m.topology, params), d)
    (slope,) = torch.autograd.grad(after.qvel.sum(), params)
    assert slope.isfinite().all()


@pytest.mark.parametrize("option", ["", 'integrator="RK4"'])
def test_compiled_mapped_float32_and_one_world(option: str) -> None:
    mjm = roller(option)
    m = mjt.put_model(mjm, dtype=torch.float64)
    d = mjt.put_data(m, worlds(mjm))
    step = torch.compile(mjt.step, backend="aot_eager", fullgraph=True)
    for name in ("qpos", "qfrc_applied"):
        bad = spoil(d, name, torch.nan)
        expected = mjt.step(m, bad)
        for field in (*FIELDS, "warning"):
            torch.testing.assert_close(step(m, bad).get(field), expected.get(field), rtol=0, atol=1e-12)
            mapped = torch.vmap(lambda d, field=field: mjt.step(m, d).get(field))(bad)
            torch.testing.assert_close(mapped, expected.get(field), rtol=0, atol=1e-12)
            torch.testing.assert_close(
                mjt.step(m, bad[2]).get(field), expected.get(field)[2], rtol=0, atol=1e-12
            )
        m32 = mjt.put_model(mjm, dtype=torch.float32)
        single = mjt.step(m32, spoil(mjt.put_data(m32, worlds(mjm)), name, torch.nan))
        torch.testing.assert_close(single.qpos.double(), expected.qpos, rtol=0, atol=1e-3)
        assert (single.warning == expected.warning).all()


def test_warnings_cross_the_border() -> None:
    """From C's structs and back."""
    mjm = roller()
    mjds = worlds(mjm)
    mjds[1].warning[int(WarningType.BADQVEL)].number = 3
    m = mjt.put_model(mjm, dtype=torch.float64)
    d = mjt.put_data(m, mjds)
    assert d.warning[1].tolist() == [0, 0, 0, 0, 3, 0, 0]
    other = [mujoco.MjData(mjm) for _ in mjds]
    mjt.get_data_into(other, m, d)
    assert [[w.number for w in mjd.warning] for mjd in other] == d.warning.tolist()


@pytest.mark.parametrize("option", ["", 'integrator="RK4"'])
def test_steps_in_blocks_hand_everything_on(option: str, monkeypatch) -> None:
    """The pieces of ``mujoco_torch.compile`` pass on resets, what a control sets and comparisons (run uncompiled)."""
    monkeypatch.setattr(torch, "compile", lambda fn, **_: fn)

    def forced(m: mjt.Model, d: mjt.Data) -> dict[str, torch.Tensor]:
        return {"ctrl": 0.5 - d.qvel[:, -1:]}

    mjm = roller(option)
    mjm.opt.enableflags |= int(mujoco.mjtEnableBit.mjENBL_FWDINV)
    keep = ("qacc", "qfrc_inverse", "solver_fwdinv", "xpos")
    for callbacks in ({}, {"mjcb_control": forced}):
        m = mjt.put_model(mjm, dtype=torch.float64, **callbacks)
        d = spoil(mjt.put_data(m, worlds(mjm)), "qfrc_applied", torch.nan)
        d.qvel[0, 0] = torch.nan
        d.qfrc_applied[0] = 1.0
        after, expected = mjt.compile(mjt.step, keep=keep)(m, d, 2), mjt.step(m, d, 2)
        for name in (*layout.STATE, *keep):
            torch.testing.assert_close(after.get(name), expected.get(name), rtol=0, atol=1e-9, msg=name)
        controls = torch.randn(4, 3, m.nu, dtype=torch.float64)
        ours = mjt.compile(mjt.rollout)(m, d, controls, ("qpos", "warning"))
        theirs = mjt.rollout(m, d, controls, ("qpos", "warning"))
        torch.testing.assert_close(ours[1]["qpos"], theirs[1]["qpos"], rtol=0, atol=1e-9)
        assert (ours[1]["warning"] == theirs[1]["warning"]).all()


@pytest.mark.parametrize("option", ["", 'integrator="RK4"'])
def test_blocks_find_a_bad_state_of_which_a_step_makes_a_good_one(option: str, monkeypatch) -> None:
    """A quaternion is normalized on its way."""
    monkeypatch.setattr(torch, "compile", lambda fn, **_: fn)
    mjm = roller(option)
    m = mjt.put_model(mjm, dtype=torch.float64)
    d = mjt.put_data(m, worlds(mjm))
    d.qpos[1, 3:7] *= 1e11
    after, expected = mjt.compile(mjt.step, block=2)(m, d, 2), mjt.step(m, d, 2)
    for name in layout.STATE:
        torch.testing.assert_close(after.get(name), expected.get(name), rtol=0, atol=1e-9, msg=name)
    assert after.warning[:, int(WarningType.BADQPOS)].tolist() == [0, 1, 0, 0]


# ------------------------------------------------------------------------------------------- reset on request


def test_reset_of_some_worlds() -> None:
    """As fresh ones, derived fields included; the others keep every bit."""
    mjm = roller()
    m = mjt.put_model(mjm, dtype=torch.float64)
    d = mjt.forward(m, mjt.put_data(m, worlds(mjm)))
    mask = torch.tensor([False, True, True, False])
    after, fresh = mjt.reset_data(m, d, mask), mjt.make_data(m, 4)
    assert (after[mask] == fresh[mask]).all()
    assert (after[~mask] == d[~mask]).all()
    assert (mjt.reset_data(m, d) == fresh).all()
    assert (mjt.reset_data(m, d[0]) == fresh[0]).all()
    assert (mjt.reset_data(m, d[0], torch.tensor(True)) == fresh[0]).all()


def test_reset_to_keyframes() -> None:
    mjm = roller()
    mjds = worlds(mjm)
    m = mjt.put_model(mjm, dtype=torch.float64)
    d = mjt.put_data(m, mjds)
    for mjd, key in zip(mjds, (1, 0, 0, 1), strict=True):
        mujoco.mj_resetDataKeyframe(mjm, mjd, key)
    assert_state(mjt.reset_data(m, d, keyframe=torch.tensor([1, 0, 0, 1])), mjds, 0.0)
    one = mjt.reset_data(m, d, torch.tensor([True, False, False, False]), keyframe=1)
    assert_state(one[:1], mjds[:1], 0.0)
    assert (one[1:] == d[1:]).all()
    keys = torch.tensor([1, 0, 0, 1])
    mapped = torch.vmap(lambda d, key: mjt.reset_data(m, d, key == 1, key).qpos)(d, keys)
    assert (mapped == mjt.reset_data(m, d, keys == 1, keys).qpos).all()
    assert (mjt.reset_data(m, d[0], keyframe=keys[0]).qpos == m.key_qpos[1]).all()


def test_bad_resets_are_refused() -> None:
    m = mjt.put_model(roller(), dtype=torch.float64)
    d = mjt.make_data(m, 4)
    with pytest.raises(mjt.StateError, match=r"torch.bool \(4,\)"):
        mjt.reset_data(m, d, torch.ones(4))
    with pytest.raises(mjt.StateError, match=r"torch.bool \(4,\)"):
        mjt.reset_data(m, d, torch.ones(3, dtype=torch.bool))
    with pytest.raises(mjt.ArgumentError, match="the model has 2"):
        mjt.reset_data(m, d, keyframe=2)
    with pytest.raises(mjt.StateError, match="keyframe is"):
        mjt.reset_data(m, d, keyframe=torch.zeros(4))


def test_resets_compile_into_the_loop_around_the_step() -> None:
    """One graph of a step and a reset by a condition on the state."""
    mjm = roller()
    m = mjt.put_model(mjm, dtype=torch.float64)
    d = mjt.put_data(m, worlds(mjm))

    def episode(m: mjt.Model, d: mjt.Data) -> mjt.Data:
        d = mjt.step(m, d)
        return mjt.reset_data(m, d, d.qpos[:, 2] < d.qpos[:, 2].median(), keyframe=1)

    expected = episode(m, d)
    compiled = torch.compile(episode, backend="aot_eager", fullgraph=True)(m, d)
    assert {
        name for name in layout.STATE if not torch.allclose(compiled.get(name), expected.get(name))
    } == set()
    assert (expected.time == 0).any() and (expected.time > 0).any()


# ------------------------------------------------------------------------------------------- two halves


@pytest.mark.parametrize("option", ["", 'integrator="RK4"'])
def test_two_halves_make_a_step(option: str) -> None:
    """With controls set between them, by what the first half found; RK4 turns into Euler, as in C."""
    mjm = roller(option)
    mjds = worlds(mjm)
    m = mjt.put_model(mjm, dtype=torch.float64)
    d = mjt.put_data(m, mjds)
    for _ in range(5):
        d = mjt.step1(m, d)
        d = mjt.step2(m, d.replace(ctrl=-d.actuator_velocity))
        for mjd in mjds:
            mujoco.mj_step1(mjm, mjd)
            mjd.ctrl[:] = -mjd.actuator_velocity
            mujoco.mj_step2(mjm, mjd)
    assert_state(d, mjds, 1e-7)
