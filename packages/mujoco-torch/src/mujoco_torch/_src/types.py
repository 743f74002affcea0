"""Model and Data as a user holds them, and the records a stage works on."""

import math
from typing import Any

import torch
from tensordict import TensorClass, TensorDict, is_tensorclass
from torch import Tensor

from mujoco_torch._src import layout
from mujoco_torch._src.components import Components
from mujoco_torch._src.topology import Topology


class Model:
    """A model on one device: what ``put_model`` returns. Never changed after it is made.

    Attributes:
      topology: the static structure (sizes, switches, slots), on which a compiled step specialises.
      params: every array of the model in one flat tensor, so that a compiled step guards and receives one input.
      weights: parameters and buffers of the modules that are callbacks, not copies of them.

    Sizes and switches (``m.nq``, ``m.integrator``) and arrays (``m.body_mass``) are attributes of their own; an array
    is a view of ``params`` in the inside layout (components, items, 1). Many arrays are derived from several fields of
    the MjModel (mixed friction, impedance): to change the physics, change the MjModel and put it again.
    """

    def __init__(self, topology: Topology, params: Tensor, weights: tuple[Tensor, ...] = ()) -> None:
        self.topology = topology
        self.params = params
        self.weights = weights

    @property
    def device(self) -> torch.device:
        """Device of the arrays."""
        return self.params.device

    @property
    def dtype(self) -> torch.dtype:
        """Floating-point type of the arrays, float32 or float64."""
        return self.params.dtype

    def to(self, device: torch.device | str) -> "Model":
        """The same model on another device."""
        return Model(self.topology, self.params.to(device), self.weights)

    def __getattr__(self, name: str) -> Any:
        # Only names not found the ordinary way come here. "topology", "params" and "weights" are looked up below, so a
        # half-made object (as in unpickling) must not recurse.
        if name.startswith("_") or name in ("topology", "params", "weights"):
            raise AttributeError(name)
        return getattr(InsideModel(self.topology, self.params, self.weights), name)

    def __repr__(self) -> str:
        t = self.topology
        sizes = f"nq={t.nq}, nv={t.nv}, nu={t.nu}, nbody={t.nbody}, nconmax={t.nconmax}, njmax={t.njmax}"
        return f"Model({sizes}, dtype={self.dtype}, device={self.device})"


class InsideModel:
    """The model as a stage reads it: ``m.nv`` from the topology, ``m.body_mass`` as an inside-layout view."""

    def __init__(self, topology: Topology, params: Tensor, weights: tuple[Tensor, ...]) -> None:
        self._topology = topology
        self._params = params
        self._weights = weights
        self._products: dict[tuple[str, int], tuple[Tensor, Tensor]] = {}

    def once(self, name: str, x: Tensor) -> Tensor:
        """The product of a pattern of the model with a tensor, made once in a stage for the same tensor."""
        key = name, id(x)
        if key not in self._products:
            self._products[key] = getattr(self, name) @ x, x  # x lives on, so that its id names nothing else
        return self._products[key][0]

    def joined(self, *names: str) -> Tensor:
        """Arrays of the same items, which ``put_model`` has laid one after the other, as one ``[k, n, 1]``."""
        places = [self._topology.layout[name] for name in names]
        start, components = places[0][0], 0
        stop = start
        for first, shape in places:
            if first != stop:
                raise ValueError(f"the arrays {names} do not lie one after the other")
            stop += math.prod(shape)
            components += math.prod(shape[:-2])
        return self._params[start:stop].view(components, *places[0][1][-2:])

    def __getattr__(self, name: str) -> Any:
        place = self._topology.layout.get(name)
        if place is None:
            try:
                return getattr(self._topology, name)
            except AttributeError:
                raise AttributeError(f"Model has no attribute {name!r}") from None
        start, shape = place
        return self._params[start : start + math.prod(shape)].view(shape)


class InsideData:
    """The state of the worlds as a stage sees it: fields in the inside layout, replaced, never written to.

    Beside the fields of Data it may carry values that only later stages of the same step need. Fields of the same items
    may be parts of one tensor.
    """

    def __init__(self, fields: dict[str, Any], places: dict[str, tuple[Tensor, int]] | None = None) -> None:
        self.fields = fields
        self._places = places or {}

    def __getattr__(self, name: str) -> Any:
        try:
            return self.fields[name]
        except KeyError:
            raise AttributeError(f"field {name!r} is not computed yet at this stage") from None

    def replace(self, **fields: Any) -> "InsideData":
        """The same record with some fields new."""
        places = {name: place for name, place in self._places.items() if name not in fields}
        return InsideData({**self.fields, **{name: _whole(x) for name, x in fields.items()}}, places)

    def replace_joined(self, whole: Tensor | Components, *names: str) -> "InsideData":
        """The same record with some fields new: the components of one tensor, one field after the other."""
        whole, places, fields, start = _whole(whole), {}, {}, 0
        for name in names:
            places[name] = whole, start
            stop = start + layout.components(name)
            fields[name] = whole[start:stop]
            start = stop
        d = self.replace(**fields)
        return InsideData(d.fields, {**d._places, **places})

    def joined(self, *names: str) -> Tensor:
        """Fields of the same items in one tensor, one after the other; made anew unless they already lie so."""
        if names[0] in self._places:
            whole, first = self._places[names[0]]
            stop = first
            for name in names:
                place = self._places.get(name)
                if place is None or place[0] is not whole or place[1] != stop:
                    break
                stop += layout.components(name)
            else:
                return whole[first:stop]
        return torch.cat([self.fields[name] for name in names])


def _whole(x: Any) -> Any:
    """What leaves a stage is one tensor."""
    return x.stack() if isinstance(x, Components) else x


# tensordict 0.14 guards a frame that makes a Data on how many classes it has met, in whatever call. So that a step does
# not compile again after the first index or clone, it meets those of ordinary calls now.
for _class in (
    Tensor,
    TensorDict,
    dict,
    list,
    tuple,
    int,
    float,
    bool,
    str,
    torch.Size,
    torch.dtype,
    torch.device,
):
    is_tensorclass(_class)


class _Worlds:
    """What ``TensorClass`` does itself from tensordict 0.15 on; 0.14 knows the method ``where`` only."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        if func is torch.where and len(args) == 3 and isinstance(args[1], cls):
            condition, chosen, other = args
            return chosen.where(condition, other)
        return super().__torch_function__(func, types, args, kwargs)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return self.clone()


class Contact(_Worlds, TensorClass["tensor_only"]):
    """Contact slots of every world, in MuJoCo C's order; ``m.contact_geom`` names the geoms of each slot.

    A slot holds a contact of ``mj_collision`` where ``dist`` is finite and inf where C lists none. An adhesive contact
    with friction has a second slot, of condim 1, for the gap.
    """

    dist: Tensor
    """distance between the surfaces [m], negative in penetration, inf in an empty slot, ``(nworld, nconmax)``"""
    pos: Tensor
    """point half-way between the surfaces [m], world frame, ``(nworld, nconmax, 3)``"""
    frame: Tensor
    """rows: normal from the first geom to the second, two tangents; world frame, ``(nworld, nconmax, 3, 3)``"""


class Data(_Worlds, TensorClass["tensor_only"]):
    """State of ``nworld`` worlds and all that ``forward`` computes from it, named and ordered as ``mjData``.

    Batch size ``()`` (one world) or ``(nworld,)``. Worlds come first, then the shape MuJoCo gives, except that rotation
    matrices are ``(3, 3)``, and contacts and rows have static slots. ``efc_J`` is made on request, by
    ``efc_jacobian(m, d)``. Units are SI: m, rad, s, kg, N, Nm.
    """

    solver_niter: Tensor
    """iterations of the constraint solver, ``(nworld,)``"""
    solver_fwdinv: Tensor
    """forward minus inverse dynamics: norms of constraint and of applied force [N, Nm], ``(nworld, 2)``"""
    warning: Tensor
    """number of warnings of each ``WarningType``: how often a bad state was reset, and why, ``(nworld, 7)``"""
    ncon: Tensor
    """number of contacts, ``(nworld,)``"""
    nefc: Tensor
    """number of active constraint rows, ``(nworld,)``"""
    time: Tensor
    """simulation time [s], ``(nworld,)``"""
    energy: Tensor
    """potential and kinetic energy [J], 0 unless the model asks for it, ``(nworld, 2)``"""
    qpos: Tensor
    """position [m, rad, unit quaternion], ``(nworld, nq)``"""
    qvel: Tensor
    """velocity [m/s, rad/s], ``(nworld, nv)``"""
    act: Tensor
    """actuator activation, ``(nworld, na)``"""
    history: Tensor
    """buffers of delayed controls, as C keeps them, ``(nworld, nhistory)``"""
    plastic: Tensor
    """references of the springs that yield [m, rad], ``(nworld, nplastic)``

    One number for a slide or hinge, a quaternion for a ball, two rest lengths for a tendon."""
    qacc_warmstart: Tensor
    """acceleration from which the next solve starts [m/s^2, rad/s^2], ``(nworld, nv)``"""
    ctrl: Tensor
    """control, ``(nworld, nu)``"""
    qfrc_applied: Tensor
    """applied generalized force [N, Nm], ``(nworld, nv)``"""
    xfrc_applied: Tensor
    """applied force and torque at the centre of mass, world frame [N, Nm], ``(nworld, nbody, 6)``"""
    eq_active: Tensor
    """1 where an equality constraint is active, else 0, ``(nworld, neq)``"""
    mocap_pos: Tensor
    """position of mocap bodies [m], ``(nworld, nmocap, 3)``"""
    mocap_quat: Tensor
    """orientation of mocap bodies, ``(nworld, nmocap, 4)``"""
    qacc: Tensor
    """acceleration [m/s^2, rad/s^2], ``(nworld, nv)``"""
    act_dot: Tensor
    """time-derivative of activation, ``(nworld, na)``"""
    xpos: Tensor
    """position of body frames [m], ``(nworld, nbody, 3)``"""
    xquat: Tensor
    """orientation of body frames, ``(nworld, nbody, 4)``"""
    xmat: Tensor
    """orientation of body frames, ``(nworld, nbody, 3, 3)``"""
    xipos: Tensor
    """centre of mass of bodies [m], ``(nworld, nbody, 3)``"""
    ximat: Tensor
    """orientation of body inertias, ``(nworld, nbody, 3, 3)``"""
    xanchor: Tensor
    """joint anchors [m], ``(nworld, njnt, 3)``"""
    xaxis: Tensor
    """joint axes, ``(nworld, njnt, 3)``"""
    geom_xpos: Tensor
    """position of geoms [m], ``(nworld, ngeom, 3)``"""
    geom_xmat: Tensor
    """orientation of geoms, ``(nworld, ngeom, 3, 3)``"""
    site_xpos: Tensor
    """position of sites [m], ``(nworld, nsite, 3)``"""
    site_xmat: Tensor
    """orientation of sites, ``(nworld, nsite, 3, 3)``"""
    cam_xpos: Tensor
    """position of cameras [m], ``(nworld, ncam, 3)``"""
    cam_xmat: Tensor
    """orientation of cameras, ``(nworld, ncam, 3, 3)``"""
    light_xpos: Tensor
    """position of lights [m], ``(nworld, nlight, 3)``"""
    light_xdir: Tensor
    """direction of lights, ``(nworld, nlight, 3)``"""
    subtree_com: Tensor
    """centre of mass of each subtree [m], ``(nworld, nbody, 3)``"""
    cdof: Tensor
    """motion axis of each dof about the tree's centre of mass (rotation, translation), ``(nworld, nv, 6)``"""
    cinert: Tensor
    """inertia of each body about the tree's centre of mass, and mass, ``(nworld, nbody, 10)``"""
    ten_J: Tensor
    """tendon Jacobians, dense, ``(nworld, ntendon, nv)``"""
    ten_length: Tensor
    """tendon lengths [m], ``(nworld, ntendon)``"""
    actuator_length: Tensor
    """actuator lengths, ``(nworld, nout)``"""
    actuator_moment: Tensor
    """actuator moments, dense, ``(nworld, nout, nv)``"""
    crb: Tensor
    """composite inertia of each body's subtree, ``(nworld, nbody, 10)``"""
    M: Tensor
    """joint-space inertia, sparse as in C (``full_m`` makes it dense), ``(nworld, nC)``"""
    qLD: Tensor
    """factor of M = L' D L, sparse like M: L below the diagonal, D on it, ``(nworld, nC)``"""
    qLDiagInv: Tensor
    """1 / D of the factor, ``(nworld, nv)``"""
    ten_velocity: Tensor
    """tendon velocities [m/s], ``(nworld, ntendon)``"""
    actuator_velocity: Tensor
    """actuator velocities, ``(nworld, nout)``"""
    cvel: Tensor
    """velocity of each body about the tree's centre of mass (rotation, translation), ``(nworld, nbody, 6)``"""
    cdof_dot: Tensor
    """time-derivative of cdof, ``(nworld, nv, 6)``"""
    qfrc_bias: Tensor
    """Coriolis, centrifugal and gravity force [N, Nm], ``(nworld, nv)``"""
    qfrc_spring: Tensor
    """passive spring force [N, Nm], ``(nworld, nv)``"""
    qfrc_damper: Tensor
    """passive damper force [N, Nm], ``(nworld, nv)``"""
    qfrc_gravcomp: Tensor
    """gravity compensation force [N, Nm], ``(nworld, nv)``"""
    qfrc_fluid: Tensor
    """force of the medium [N, Nm], ``(nworld, nv)``"""
    qfrc_adhesion: Tensor
    """adhesion force of contacts [N, Nm], ``(nworld, nv)``"""
    qfrc_passive: Tensor
    """total passive force [N, Nm], ``(nworld, nv)``"""
    actuator_force: Tensor
    """actuator force in actuation space, ``(nworld, nout)``"""
    qfrc_actuator: Tensor
    """actuator force in joint space [N, Nm], ``(nworld, nv)``"""
    qfrc_smooth: Tensor
    """net unconstrained force [N, Nm], ``(nworld, nv)``"""
    qacc_smooth: Tensor
    """unconstrained acceleration [m/s^2, rad/s^2], ``(nworld, nv)``"""
    qfrc_constraint: Tensor
    """constraint force in joint space [N, Nm], ``(nworld, nv)``"""
    qfrc_inverse: Tensor
    """force that gives the acceleration, by ``inverse`` [N, Nm], ``(nworld, nv)``"""
    contact: Contact
    """contact slots, see ``Contact``"""
    efc_pos: Tensor
    """constraint position [m, rad], ``(nworld, njmax)``"""
    efc_D: Tensor
    """constraint mass, 0 in an inactive slot, ``(nworld, njmax)``"""
    efc_vel: Tensor
    """velocity of each row, J qvel, ``(nworld, njmax)``"""
    efc_aref: Tensor
    """reference pseudo-acceleration, ``(nworld, njmax)``"""
    efc_force: Tensor
    """constraint force, 0 in an inactive slot, ``(nworld, njmax)``"""


def read_field(d: Data, name: str) -> Tensor:
    """Public tensor of a field named as in ``layout.FIELDS``."""
    if name.startswith("contact_"):
        return getattr(d.contact, name.removeprefix("contact_"))
    return getattr(d, name)


def replace_fields(d: Data, fields: dict[str, Tensor]) -> Data:
    """Data with the given public tensors in place of its own, by the names of ``layout.FIELDS``."""
    contact = {name.removeprefix("contact_"): x for name, x in fields.items() if name.startswith("contact_")}
    plain = {name: x for name, x in fields.items() if not name.startswith("contact_")}
    if contact:
        plain["contact"] = d.contact.replace(**contact)
    return d.replace(**plain)


def new_data(fields: dict[str, Tensor], batch_size: torch.Size) -> Data:
    """Data made of public tensors for every field of ``layout.FIELDS``."""
    contact = {name.removeprefix("contact_"): x for name, x in fields.items() if name.startswith("contact_")}
    plain = {name: x for name, x in fields.items() if not name.startswith("contact_")}
    plain["contact"] = Contact.from_tensordict(TensorDict(contact, batch_size=batch_size))
    return Data.from_tensordict(TensorDict(plain, batch_size=batch_size))


def shape_of(topology: Topology, field: layout.Field) -> tuple[int, ...]:
    """Shape per world of a field, for the sizes of a model."""
    return tuple(n if isinstance(n, int) else getattr(topology, n) for n in field.shape)
