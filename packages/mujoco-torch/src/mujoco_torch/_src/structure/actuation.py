"""Structure and arrays of the actuators' forces."""

import mujoco
import numpy as np

from mujoco_torch._src.enums import BiasType, GainType
from mujoco_torch._src.structure.arrays import Part, items


def actuators(mjm: mujoco.MjModel) -> Part:
    """Gains, biases and clamps of the actuators."""
    nu = mjm.nu
    affine_gain = mjm.actuator_gaintype == GainType.AFFINE
    affine_bias = mjm.actuator_biastype == BiasType.AFFINE
    gain = mjm.actuator_gainprm[:, :3] * np.stack([np.ones(nu), affine_gain, affine_gain], 1)
    bias = mjm.actuator_biasprm[:, :3] * affine_bias[:, None]
    ctrllimited = mjm.actuator_ctrllimited.astype(bool)
    frclimited = mjm.actuator_forcelimited.astype(bool)
    arrays = dict(
        actuator_gain=items(gain.reshape(nu, 3)),
        actuator_bias=items(bias.reshape(nu, 3)),
        actuator_ctrlmin=items(np.where(ctrllimited, mjm.actuator_ctrlrange[:, 0], -np.inf)),
        actuator_ctrlmax=items(np.where(ctrllimited, mjm.actuator_ctrlrange[:, 1], np.inf)),
        actuator_forcemin=items(np.where(frclimited, mjm.actuator_forcerange[:, 0], -np.inf)),
        actuator_forcemax=items(np.where(frclimited, mjm.actuator_forcerange[:, 1], np.inf)),
    )
    return {}, arrays
