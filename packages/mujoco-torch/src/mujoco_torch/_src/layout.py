"""Fields of Data, and the border between the user's layout and the inside layout.

A user sees worlds first: ``d.xpos`` is ``(nworld, nbody, 3)``. Inside, a quantity is stacked component-major, items
in the middle, worlds last: ``[3, nbody, B]``. The public tensor of a derived field is a permuted view of the inside
one, so the border copies nothing. State fields are stored contiguously worlds-first instead: they are what ``step``
reads, so a freshly made, fed-back, stacked or masked ``Data`` has the same strides and never recompiles a step.
"""

from typing import NamedTuple

from torch import Tensor


class Field(NamedTuple):
    """One field of Data: how it is laid out, and its shape per world in size names of the model."""

    kind: str  # "items": [*shape, B]; "vector": [k, n, B]; "matrix": [9, n, B]
    shape: tuple[str | int, ...]
    integer: bool = False


# The fields in MuJoCo's order (mjData). A field of a nested class carries its owner's name: d.contact.dist is
# "contact_dist".
FIELDS = {
    "solver_niter": Field("items", (), integer=True),
    "solver_fwdinv": Field("items", (2,)),
    "warning": Field("items", (7,), integer=True),
    "ncon": Field("items", (), integer=True),
    "nefc": Field("items", (), integer=True),
    "time": Field("items", ()),
    "energy": Field("items", (2,)),
    "qpos": Field("items", ("nq",)),
    "qvel": Field("items", ("nv",)),
    "act": Field("items", ("na",)),
    "history": Field("items", ("nhistory",)),
    "plastic": Field("items", ("nplastic",)),
    "qacc_warmstart": Field("items", ("nv",)),
    "ctrl": Field("items", ("nu",)),
    "qfrc_applied": Field("items", ("nv",)),
    "xfrc_applied": Field("vector", ("nbody", 6)),
    "eq_active": Field("items", ("neq",), integer=True),
    "mocap_pos": Field("vector", ("nmocap", 3)),
    "mocap_quat": Field("vector", ("nmocap", 4)),
    "qacc": Field("items", ("nv",)),
    "act_dot": Field("items", ("na",)),
    "xpos": Field("vector", ("nbody", 3)),
    "xquat": Field("vector", ("nbody", 4)),
    "xmat": Field("matrix", ("nbody", 3, 3)),
    "xipos": Field("vector", ("nbody", 3)),
    "ximat": Field("matrix", ("nbody", 3, 3)),
    "xanchor": Field("vector", ("njnt", 3)),
    "xaxis": Field("vector", ("njnt", 3)),
    "geom_xpos": Field("vector", ("ngeom", 3)),
    "geom_xmat": Field("matrix", ("ngeom", 3, 3)),
    "site_xpos": Field("vector", ("nsite", 3)),
    "site_xmat": Field("matrix", ("nsite", 3, 3)),
    "cam_xpos": Field("vector", ("ncam", 3)),
    "cam_xmat": Field("matrix", ("ncam", 3, 3)),
    "light_xpos": Field("vector", ("nlight", 3)),
    "light_xdir": Field("vector", ("nlight", 3)),
    "subtree_com": Field("vector", ("nbody", 3)),
    "cdof": Field("vector", ("nv", 6)),
    "cinert": Field("vector", ("nbody", 10)),
    "ten_J": Field("items", ("ntendon", "nv")),
    "ten_length": Field("items", ("ntendon",)),
    "actuator_length": Field("items", ("nout",)),
    "actuator_moment": Field("items", ("nout", "nv")),
    "crb": Field("vector", ("nbody", 10)),
    "M": Field("items", ("nC",)),
    "qLD": Field("items", ("nC",)),
    "qLDiagInv": Field("items", ("nv",)),
    "ten_velocity": Field("items", ("ntendon",)),
    "actuator_velocity": Field("items", ("nout",)),
    "cvel": Field("vector", ("nbody", 6)),
    "cdof_dot": Field("vector", ("nv", 6)),
    "qfrc_bias": Field("items", ("nv",)),
    "qfrc_spring": Field("items", ("nv",)),
    "qfrc_damper": Field("items", ("nv",)),
    "qfrc_gravcomp": Field("items", ("nv",)),
    "qfrc_fluid": Field("items", ("nv",)),
    "qfrc_adhesion": Field("items", ("nv",)),
    "qfrc_passive": Field("items", ("nv",)),
    "actuator_force": Field("items", ("nout",)),
    "qfrc_actuator": Field("items", ("nv",)),
    "qfrc_smooth": Field("items", ("nv",)),
    "qacc_smooth": Field("items", ("nv",)),
    "qfrc_constraint": Field("items", ("nv",)),
    "qfrc_inverse": Field("items", ("nv",)),
    "contact_dist": Field("items", ("nconmax",)),
    "contact_pos": Field("vector", ("nconmax", 3)),
    "contact_frame": Field("matrix", ("nconmax", 3, 3)),
    "efc_pos": Field("items", ("njmax",)),
    "efc_D": Field("items", ("njmax",)),
    "efc_vel": Field("items", ("njmax",)),
    "efc_aref": Field("items", ("njmax",)),
    "efc_force": Field("items", ("njmax",)),
}

# What a step reads, and what a user sets.
STATE = (
    "time", "qpos", "qvel", "act", "history", "plastic", "qacc_warmstart", "ctrl", "qfrc_applied", "xfrc_applied",
    "eq_active", "mocap_pos", "mocap_quat", "warning",
)  # fmt: skip


def names(text: str) -> tuple[str, ...]:
    """Field names from a string, each of them checked."""
    found = tuple(text.split())
    unknown = [name for name in found if name not in FIELDS]
    if unknown:
        raise KeyError(f"no such fields of Data: {unknown}")
    return found


def components(name: str) -> int:
    """Number of components ``k`` of a field that is stored as ``[k, n, B]``."""
    field = FIELDS[name]
    return 9 if field.kind == "matrix" else int(field.shape[1])


def to_inside(field: Field, x: Tensor) -> Tensor:
    """Public tensor ``(nworld, ...)`` of a field, in the inside layout (a view)."""
    if field.kind == "vector":
        return x.permute(2, 1, 0)
    if field.kind == "matrix":
        return x.flatten(-2).permute(2, 1, 0)
    return x.movedim(0, -1)


def to_public(field: Field, x: Tensor) -> Tensor:
    """Inside tensor of a field as the user sees it, worlds first (a view)."""
    if field.kind == "vector":
        return x.permute(2, 1, 0)
    if field.kind == "matrix":
        return x.permute(2, 1, 0).unflatten(-1, (3, 3))
    return x.movedim(-1, 0)
