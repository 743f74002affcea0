"""Simulations beside MuJoCo C's: 1,000 steps together until chaos, single steps all along a trajectory."""

import mujoco
import numpy as np
import pytest
import torch

import mujoco_torch as mjt
from mujoco_torch import testing

NWORLD = 4
NSTEP = 1000

#: A C simulation that receives relative errors of 1e-12 in every step is this far away at the horizon.
DIVERGED = 1e-6
#: Steps before the horizon, at least. Measured with C alone: 320, 519, 475, 1000, 1000 in this order.
HORIZON = {"humanoid": 250, "ant": 400, "halfcheetah": 400, "hopper": NSTEP, "walker2d": NSTEP}


def load(name: str) -> mujoco.MjModel:
    return mujoco.MjModel.from_xml_path(str(mjt.model_path(name)))


def free_states(mjm: mujoco.MjModel, seed: int) -> list[mujoco.MjData]:
    """Perturbed states without applied forces, which would carry a robot away."""
    states = testing.perturbed_states(mjm, NWORLD, seed)
    for mjd in states:
        mjd.qfrc_applied = 0.0
        mjd.xfrc_applied = 0.0
    return states


@pytest.mark.slow
@pytest.mark.parametrize("name", mjt.MODELS)
def test_rollout_stays_together_until_chaos(name: str) -> None:
    """Our rounding moves a trajectory less than a tenth of what errors of 1e-12 per step do to C's own.

    Measured: 0.002 to 0.02 of it, on all models.
    """
    mjm = testing.converged(load(name))
    rollout = testing.rollout_parity(mjm, free_states(mjm, seed=2), NSTEP, perturbation=1e-12)
    horizon = rollout.horizon(DIVERGED / rollout.perturbation)
    assert horizon >= HORIZON[name]
    assert rollout.ratio(horizon) <= 0.1
    assert np.isfinite(rollout.ours).all()


@pytest.mark.parametrize("name", mjt.MODELS)
def test_single_steps_along_a_trajectory(name: str) -> None:
    """Every fifth state of a thousand C steps is a world of one batch, which takes one step."""
    mjm = testing.converged(load(name))
    rng = np.random.default_rng(0)
    mjd = free_states(mjm, seed=3)[0]
    before, after = [], []
    for i in range(NSTEP):
        if i % 10 == 0:
            mjd.ctrl = rng.uniform(-1.0, 1.0, mjm.nu)
        if i % 5 == 0:
            before.append(testing.copy_state(mjm, mjd))
        mujoco.mj_step(mjm, mjd)
        if i % 5 == 0:
            after.append(testing.copy_state(mjm, mjd))
    m = mjt.put_model(mjm, dtype=torch.float64)
    d = mjt.step(m, mjt.put_data(m, before))
    testing.compare(m, d, after, testing.STATE_FIELDS, testing.SOLVED).raise_for_failures()
