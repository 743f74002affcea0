"""Parity with MuJoCo C, measured: states to compare on, C's values in our layout, errors, stages, rollouts.

The functions here are what the library's own tests use, and they serve a user's model just as well::

    mjm = mujoco.MjModel.from_xml_path("robot.xml")
    states = perturbed_states(mjm, nworld=4, seed=0)
    for stage in STAGES:
        print(stage_parity(mjm, stage, states))

How errors are measured. An entry's error is its absolute difference from C divided by the *scale* of its
field: the largest magnitude C has, over all worlds and items, in that component (the x of all positions,
column j of the mass matrix), but at least ``COMPONENT_FLOOR`` of the field's largest magnitude (of
``qfrc_bias`` the model's weight, if that is more: it may cancel), and at least ``SCALE_FLOOR``. An
entry-wise relative error is meaningless for the many entries that are zero up to rounding (the y of a planar
robot); the fields in ``ENTRYWISE``, which are positive and span many decades, do use it. Integer fields must
be equal.

Constraint rows and contacts are compacted first: of our static slots only the active ones count, which must
be the rows and contacts C lists, in C's order. Another number of them is an infinite error of every field
that lists them.
"""

from mujoco_torch.testing.comparison import FieldError, Report, compare
from mujoco_torch.testing.fields import FIELDS, SMOOTH, SOLVED, STATE_FIELDS
from mujoco_torch.testing.float32 import float32_parity
from mujoco_torch.testing.reference import expected
from mujoco_torch.testing.rollouts import Rollout, rollout_parity
from mujoco_torch.testing.stages import STAGES, Stage, stage_parity
from mujoco_torch.testing.states import converged, copy_state, perturbed_states

__all__ = [
    "FIELDS",
    "SMOOTH",
    "SOLVED",
    "STAGES",
    "STATE_FIELDS",
    "FieldError",
    "Report",
    "Rollout",
    "Stage",
    "compare",
    "converged",
    "copy_state",
    "expected",
    "float32_parity",
    "perturbed_states",
    "rollout_parity",
    "stage_parity",
]
