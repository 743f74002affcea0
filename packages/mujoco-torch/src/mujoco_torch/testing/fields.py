"""Fields that parity is measured on, and the tolerances of each kind."""

import mujoco

#: Smooth quantities: sums of a few hundred products of order one leave 1e-13 or less, so 1e-10 has room for
#: badly conditioned inertia and still catches any formula that differs.
SMOOTH = 1e-10
#: Contact geometry and what follows from it: normals divide by short lengths near degenerate poses.
GEOMETRY = 1e-8
#: Result of a converged iterative solve; both solvers stop on a tolerance, not at the optimum.
SOLVED = 1e-6

#: Share of a field's largest magnitude below which a component's own scale is not used.
COMPONENT_FLOOR = 1e-4
#: Smallest scale of any field; below it a field is rounding noise (forces of an unloaded robot at 1e-17).
SCALE_FLOOR = 1e-6

ENTRYWISE = frozenset({"efc_D"})

STATE_FIELDS = ("time", "qpos", "qvel", "act", "history", "plastic", "qacc_warmstart", "warning")
INPUT_FIELDS = ("ctrl", "qfrc_applied", "xfrc_applied", "eq_active", "mocap_pos", "mocap_quat")
POSE_FIELDS = (
    "xpos", "xquat", "xmat", "xipos", "ximat", "xanchor", "xaxis", "geom_xpos", "geom_xmat", "site_xpos",
    "site_xmat",
)  # fmt: skip
COM_FIELDS = ("subtree_com", "cinert", "cdof")
CAMERA_FIELDS = ("cam_xpos", "cam_xmat", "light_xpos", "light_xdir")
TENDON_FIELDS = ("ten_length", "ten_J")
INERTIA_FIELDS = ("crb", "M")
CONTACT_FIELDS = (
    "ncon", "contact.geom", "contact.dim", "contact.includemargin", "contact.friction", "contact.dist",
    "contact.pos", "contact.frame",
)  # fmt: skip
TRANSMISSION_FIELDS = ("actuator_length", "actuator_moment")
COM_VELOCITY_FIELDS = ("cvel", "cdof_dot")
PASSIVE_FIELDS = (
    "qfrc_spring", "qfrc_damper", "qfrc_gravcomp", "qfrc_fluid", "qfrc_adhesion", "qfrc_passive",
)  # fmt: skip
ROW_FIELDS = ("nefc", "efc_J", "efc_pos", "efc_D", "efc_vel", "efc_aref")
ACTUATION_FIELDS = ("act_dot", "actuator_force", "qfrc_actuator")
ACCELERATION_FIELDS = ("qfrc_smooth", "qacc_smooth")
SOLVE_FIELDS = ("qacc", "qfrc_constraint", "efc_force")
INVERSE_FIELDS = ("qfrc_inverse", "qfrc_constraint", "efc_force")
POSITION_FIELDS = (
    *POSE_FIELDS, *COM_FIELDS, *CAMERA_FIELDS, *TENDON_FIELDS, *INERTIA_FIELDS, "qLD", "qLDiagInv", *CONTACT_FIELDS,
    *TRANSMISSION_FIELDS,
)  # fmt: skip
VELOCITY_FIELDS = (
    "ten_velocity", "actuator_velocity", *COM_VELOCITY_FIELDS, *PASSIVE_FIELDS, "qfrc_bias", *ROW_FIELDS,
)  # fmt: skip

#: Every field `expected` knows, in the order of the pipeline: the first field in error points at the cause.
FIELDS: tuple[str, ...] = (
    *STATE_FIELDS, *INPUT_FIELDS, *POSITION_FIELDS, *VELOCITY_FIELDS, *ACTUATION_FIELDS, *ACCELERATION_FIELDS,
    *SOLVE_FIELDS, "energy", "qfrc_inverse",
)  # fmt: skip

MATRIX_FIELDS = frozenset({"xmat", "ximat", "geom_xmat", "site_xmat", "cam_xmat"})
SOLVED_FIELDS = frozenset({*SOLVE_FIELDS, "qacc_warmstart"})
INTEGRATION = int(mujoco.mjtState.mjSTATE_INTEGRATION)
