"""The static structure of a model, computed once by ``put_model``.

``build(mjm)`` turns an ``MjModel`` into a ``Topology`` (sizes, switches, slot order, patterns: frozen, hashable,
compared by value) and the arrays of the model in the inside layout. A structural selection ("the body of each geom",
"all bodies below this one") is a ``Pattern`` over the item axis, so the step holds no index: ``P @ x`` gathers or sums.
"""

import hashlib
import weakref
from typing import Any, ClassVar

import mujoco
import numpy as np
import torch

from mujoco_torch._src.layout import FIELDS
from mujoco_torch._src.pattern import Pattern
from mujoco_torch._src.solver import System
from mujoco_torch._src.structure.actuation import actuators
from mujoco_torch._src.structure.bodies import attached, bodies, dofs, joints, options
from mujoco_torch._src.structure.derivative import derivatives
from mujoco_torch._src.structure.dynamics import energies, products, resets
from mujoco_torch._src.structure.passive import passive_forces
from mujoco_torch._src.structure.rows import contacts, given
from mujoco_torch._src.structure.tendons import tendons
from mujoco_torch._src.structure.transmission import transmissions

PARTS = (
    options,
    bodies,
    joints,
    dofs,
    passive_forces,
    attached,
    tendons,
    transmissions,
    actuators,
    derivatives,
    given,
    contacts,
    energies,
    products,
    resets,
)


class Topology:
    """Everything about a model that the compiled step specialises on.

    Frozen, and interned by value: two equal models hold the same object, so they share one compiled step. Attributes
    are Python numbers, strings, tuples and dicts of them. ``digest`` names the value; ``Topology.of(digest)`` finds it,
    since a graph can hold a string but not an object.
    """

    _interned: ClassVar[weakref.WeakValueDictionary[str, "Topology"]] = weakref.WeakValueDictionary()

    def __new__(cls, **values) -> "Topology":
        digest = hashlib.sha256(repr(sorted(values.items())).encode()).hexdigest()
        if digest in cls._interned:
            return cls._interned[digest]
        self = super().__new__(cls)
        self.__dict__.update(values, digest=digest)
        cls._interned[digest] = self
        return self

    @classmethod
    def of(cls, digest: str) -> "Topology":
        """The topology of a model that is alive."""
        return cls._interned[digest]

    def prepare(self, like: torch.Tensor) -> None:
        """Make the constants that the patterns need on the device of a tensor, with its dtype."""
        for value in (*self.__dict__.values(), *self.body_parent.jumps, *self.system.patterns):
            if isinstance(value, Pattern):
                value.constant(like)
                value.T.constant(like)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"Topology is frozen: cannot set {name!r}")

    def __reduce__(self):
        values = {name: value for name, value in self.__dict__.items() if name != "digest"}
        return _restore, (values,)

    def __repr__(self) -> str:
        return f"Topology(nq={self.nq}, nv={self.nv}, nbody={self.nbody}, njmax={self.njmax}, digest={self.digest[:8]})"


def build(mjm: mujoco.MjModel, **given: Any) -> tuple[Topology, np.ndarray]:
    """Static structure, and every inside-layout array in one flat float64 array, of a model that ``check`` passed.

    Static values that no part of the MjModel has, as callbacks, may be ``given``.

    ``topology.layout`` maps the name of an array to its first element and its shape.
    """
    static: dict[str, Any] = dict(given)
    arrays: dict[str, np.ndarray] = {}
    for part in PARTS:
        values, more = part(mjm)
        static.update(values)
        static.update({name: value for name, value in more.items() if isinstance(value, Pattern)})
        arrays.update({name: value for name, value in more.items() if not isinstance(value, Pattern)})
    static["njmax"] = len(static["given_kind"]) + static["nefc_contact"]
    arrays["row_damping"] = np.concatenate([arrays["given_damping"], arrays["contact_row_damping"]])
    static["system"] = System(**{name: static[name] for name in System.FIELDS})
    layout, start = {}, 0
    for name, value in arrays.items():
        layout[name] = (start, value.shape)
        start += value.size
    static["empty_fields"] = " ".join(
        name for name, field in FIELDS.items() if 0 in (static.get(n, n) for n in field.shape)
    )
    flat = np.concatenate([np.asarray(value, dtype=np.float64).ravel() for value in arrays.values()])
    return Topology(**static, layout=layout), flat


def _restore(values: dict[str, object]) -> Topology:
    return Topology(**values)
