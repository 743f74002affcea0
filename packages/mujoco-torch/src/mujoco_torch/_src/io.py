"""Into and out of the library: models and states from MuJoCo's own structs, and back."""

import copy
from collections.abc import Callable, Sequence

import mujoco
import numpy as np
import torch
from torch import Tensor

from mujoco_torch._src import layout, topology
from mujoco_torch._src.callbacks import callbacks
from mujoco_torch._src.check import findings_given
from mujoco_torch._src.enums import ConstraintType, IntegratorType, JointType, SolverType
from mujoco_torch._src.errors import ArgumentError, StateError, UnsupportedModelError
from mujoco_torch._src.integrate import step, step1, step2
from mujoco_torch._src.structure.arrays import state_value
from mujoco_torch._src.types import Data, Model, new_data, read_field, shape_of

DTYPES = (torch.float32, torch.float64)


def put_model(
    mjm: mujoco.MjModel,
    *,
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
    solver: str | None = None,
    mjcb_control: Callable | None = None,
    mjcb_passive: Callable | None = None,
    mjcb_act_dyn: Callable | None = None,
    mjcb_act_gain: Callable | None = None,
    mjcb_act_bias: Callable | None = None,
) -> Model:
    """Model on a device, from a compiled ``MjModel``.

    Args:
      mjm: the compiled model; later changes to it are not seen.
      device: where the arrays go; torch's default device if None.
      dtype: torch.float32 or torch.float64; torch's default dtype if None.
      solver: "newton" or "cg", to solve by, whatever solver the model asks for; the model's own if None. The optimum
        is the same, so this is how to simulate a model that asks for PGS.
      mjcb_control: called as ``f(m, d)`` in every evaluation of the dynamics, before actuation (not if that is
        disabled); returns a dict of what it sets, of ``ctrl``, ``qfrc_applied`` and ``xfrc_applied``.
      mjcb_passive: called as ``f(m, d)``; returns a force ``(nworld, nv)`` that is added to ``qfrc_passive``.
      mjcb_act_dyn: called as ``f(m, d)`` in every evaluation of the actuators; returns rates of activations
        ``(nworld, nactuator)``, of which those of actuators with user dynamics are used.
      mjcb_act_gain, mjcb_act_bias: the same for gains and biases; they also see the ``act_dot`` of now.

    Without its callback an actuator of type user is refused. The integrators that are implicit in velocity take what
    user gains and biases return for independent of it, as in C.

    Callbacks belong to this model alone. They see the state with a world axis, ``d.qpos`` ``(nworld, nq)``, and what is
    computed by then. They must be functions of it in torch, free of branches on data: a compiled step traces them once.
    Where they hold tensors, make them a ``torch.nn.Module``: its parameters and buffers are inputs of the step, which
    sees them change and gives them gradients. A module must be on the model's device.

    Raises:
      UnsupportedModelError: the model uses features that are not simulated exactly; it lists all of them.
      ArgumentError: ``mjm``, ``device``, ``dtype``, ``solver`` or a callback cannot be used.
    """
    if not isinstance(mjm, mujoco.MjModel):
        raise ArgumentError(
            f"put_model takes a mujoco.MjModel, not {type(mjm).__name__}; "
            "compile the XML first: mujoco.MjModel.from_xml_path(path)"
        )
    if solver is not None:
        mjm = _solved_by(mjm, solver)
    functions = callbacks(
        mjcb_control=mjcb_control,
        mjcb_passive=mjcb_passive,
        mjcb_act_dyn=mjcb_act_dyn,
        mjcb_act_gain=mjcb_act_gain,
        mjcb_act_bias=mjcb_act_bias,
    )
    findings = findings_given(mjm, {name for name, function in functions.items() if function})
    if findings:
        raise UnsupportedModelError(findings)
    dtype = _dtype(dtype)
    structure, flat = topology.build(mjm, **functions)
    params = torch.as_tensor(flat).to(device=_device(device), dtype=dtype)
    if params.device.type != "cpu":
        structure.prepare(params)
    if not any(functions.values()):
        return Model(structure, params)
    weights = [x for function in functions.values() if function for x in function.weights]
    return _with_fresh_step(Model(structure, params, tuple(weights)))


def _solved_by(mjm: mujoco.MjModel, solver: str) -> mujoco.MjModel:
    """A copy of the model that asks for another constraint solver."""
    kinds = {"newton": SolverType.NEWTON, "cg": SolverType.CG}
    if solver not in kinds:
        raise ArgumentError(f"solver is {solver!r}; allowed are {', '.join(map(repr, kinds))} and None")
    mjm = copy.copy(mjm)
    mjm.opt.solver = kinds[solver]
    return mjm


@torch.no_grad()
def _with_fresh_step(m: Model) -> Model:
    """The model with the step of a fresh world, which bad worlds get, by the library, since C knows no callbacks."""
    if not m.autoreset:
        return m
    worlds = {"stepped": step(m, make_data(m))}
    if m.integrator == IntegratorType.RK4:
        worlds["stepped2"] = step2(m, step1(m, make_data(m)))
    params = m.params.clone()
    for kind, d in worlds.items():
        for name in layout.STATE:
            if name != "warning":
                start, _ = m.topology.layout[f"{kind}_{name}"]
                value = read_field(d, name)
                params[start : start + value.numel()] = value.flatten().to(params.dtype)
    return Model(m.topology, params, m.weights)


def device_put(
    value: mujoco.MjModel | mujoco.MjData | Sequence[mujoco.MjData],
    model: Model | None = None,
    *,
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
) -> Model | Data:
    """``put_model`` for an ``MjModel``; ``put_data`` for ``MjData`` and the ``model`` it belongs to.

    Raises:
      ArgumentError: an ``MjData`` without its model, or an argument that ``put_model`` refuses.
    """
    if isinstance(value, mujoco.MjModel):
        return put_model(value, device=device, dtype=dtype)
    if model is None:
        raise ArgumentError(
            "device_put of MjData needs its model: device_put(mjd, model) with model = put_model(mjm)"
        )
    return put_data(model, value)


def make_data(m: Model, nworld: int | None = None) -> Data:
    """Data of a fresh world at ``qpos0``, or of ``nworld`` of them (``mj_makeData``); derived fields are zero.

    Raises:
      ArgumentError: ``nworld`` is not a positive number.
    """
    if nworld is not None and (isinstance(nworld, bool) or not isinstance(nworld, int) or nworld < 1):
        raise ArgumentError(
            f"nworld is {nworld!r}; it must be a positive integer, or None for one world without a batch"
        )
    batch = torch.Size([] if nworld is None else [nworld])
    fields = {}
    for name, field in layout.FIELDS.items():
        dtype = torch.int32 if field.integer else m.dtype
        fields[name] = torch.zeros((*batch, *shape_of(m.topology, field)), dtype=dtype, device=m.device)
    for name in layout.STATE:
        initial = getattr(m, f"initial_{name}").to(fields[name].dtype)
        fields[name] = initial.expand_as(fields[name]).clone()
    return new_data(fields, batch)


def put_data(m: Model, mjd: mujoco.MjData | Sequence[mujoco.MjData]) -> Data:
    """State of one world, or of a batch of worlds, from MuJoCo's; derived fields that C holds are taken over, too.

    Args:
      m: the model on its device.
      mjd: one ``MjData`` for batch size ``()``, or a sequence of them, one per world.

    Raises:
      StateError: sizes do not fit the model, or a state field has a NaN; names field, world and index.
    """
    single = isinstance(mjd, mujoco.MjData)
    worlds = [mjd] if single else list(mjd)
    if not worlds:
        raise StateError("put_data got an empty sequence; give at least one MjData")
    d = make_data(m, len(worlds))
    fields = {name: _gather(m, worlds, name, read_field(d, name)) for name in layout.FIELDS}
    d = new_data(fields, d.batch_size)
    return d[0].clone() if single else d


def _gather(m: Model, worlds: Sequence[mujoco.MjData], name: str, like: Tensor) -> Tensor:
    """One field of all worlds as a tensor like the given one."""
    values = []
    for world, mjd in enumerate(worlds):
        value = np.asarray(_from_c(m, mjd, name), dtype=np.float64)
        shape = tuple(like.shape[1:])
        if value.size != int(np.prod(shape)):
            raise StateError(
                f"world {world}: MjData.{name} has shape {value.shape}, the model needs {shape}; "
                "is it the data of another model?"
            )
        if name in layout.STATE and not np.isfinite(value).all():
            index = tuple(int(i) for i in np.argwhere(~np.isfinite(value))[0])
            raise StateError(
                f"world {world}: MjData.{name}{list(index)} is {value[index]}; a state must be finite"
            )
        values.append(value.reshape(shape))
    return torch.as_tensor(np.stack(values)).to(dtype=like.dtype, device=like.device)


def _from_c(m: Model, mjd: mujoco.MjData, name: str) -> np.ndarray:
    """C's value of a field in our shape: dense matrices, slots filled where C has the contact or row."""
    mjm = mjd.model
    if name == "actuator_moment":
        dense = np.zeros((mjm.nout, mjm.nv))
        if mjm.nout:
            mujoco.mju_sparse2dense(
                dense, mjd.actuator_moment, mjd.moment_rownnz, mjd.moment_rowadr, mjd.moment_colind
            )
        return dense
    if name == "ten_J":
        dense = np.zeros((mjm.ntendon, mjm.nv))
        if mjm.ntendon:
            mujoco.mju_sparse2dense(dense, mjd.ten_J, mjm.ten_J_rownnz, mjm.ten_J_rowadr, mjm.ten_J_colind)
        return dense
    if name == "solver_niter":
        return mjd.solver_niter[0]
    if name.startswith("contact_"):
        return _contact_slots(m, mjd, name.removeprefix("contact_"))
    if name.startswith("efc_"):
        return _row_slots(m, mjd, name)
    if name in layout.STATE:
        return state_value(mjd, name)
    return getattr(mjd, name)


def contact_slots(m: Model, mjd: mujoco.MjData) -> list[int]:
    """The slot of each of C's contacts, by its geoms and condim; of two slots for one contact only one is used."""
    known = list(zip(m.contact_geom, m.contact_dim, m.contact_place, strict=True))
    slots, used = [], set()
    for c in mjd.contact:
        geoms = tuple(int(g) for g in c.geom)
        fitting = (
            i for i, (g, dim, place) in enumerate(known) if (g, dim) == (geoms, c.dim) and place not in used
        )
        slot = next(fitting, None)
        if slot is None:
            raise StateError(f"MjData has a contact of geoms {geoms} that the model has no slot for")
        used.add(m.contact_place[slot])
        slots.append(slot)
    return slots


def _contact_slots(m: Model, mjd: mujoco.MjData, what: str) -> np.ndarray:
    slots = contact_slots(m, mjd)
    out = np.full(m.nconmax, np.inf) if what == "dist" else np.zeros((m.nconmax, 3 if what == "pos" else 9))
    for slot, c in zip(slots, mjd.contact, strict=True):
        out[slot] = getattr(c, what)
    return out


def row_slots(m: Model, mjd: mujoco.MjData) -> list[int]:
    """The slot of each of C's constraint rows."""
    contact = contact_slots(m, mjd)
    given = {owner: slot for slot, owner in enumerate(m.given_owner)}
    jacobian = c_jacobian(mjd)
    slots: list[int] = []
    for i in range(mjd.nefc):
        kind, owner = int(mjd.efc_type[i]), int(mjd.efc_id[i])
        if kind in _CONTACT_ROWS:
            first = mjd.contact[owner].efc_address
            slots.append(len(given) + m.contact_efc_address[contact[owner]] + i - first)
        else:
            slots.append(given[kind, owner, _part(m, mjd, i, jacobian[i])])
    return slots


_CONTACT_ROWS = (
    ConstraintType.CONTACT_FRICTIONLESS,
    ConstraintType.CONTACT_PYRAMIDAL,
    ConstraintType.CONTACT_ELLIPTIC,
)


def _part(m: Model, mjd: mujoco.MjData, row: int, jac: np.ndarray) -> int:
    """Number of a row within its equality, or the side of its limit."""
    mjm, kind, owner = mjd.model, mjd.efc_type[row], mjd.efc_id[row]
    if kind == ConstraintType.EQUALITY:
        same = (np.asarray(mjd.efc_type) == kind) & (np.asarray(mjd.efc_id) == owner)
        return row - int(np.flatnonzero(same)[0])
    if kind == ConstraintType.LIMIT_TENDON:  # the upper side pushes back
        return int(jac @ _from_c(m, mjd, "ten_J")[owner] < 0)
    scalar = kind == ConstraintType.LIMIT_JOINT and mjm.jnt_type[owner] != JointType.BALL
    return int(scalar and jac[mjm.jnt_dofadr[owner]] < 0)


def c_jacobian(mjd: mujoco.MjData) -> np.ndarray:
    """C's constraint Jacobian as a dense ``(nefc, nv)`` array, from either of its two formats."""
    mjm = mjd.model
    if not mjd.nefc:
        return np.zeros((0, mjm.nv))
    if not mujoco.mj_isSparse(mjm):
        return np.array(mjd.efc_J[: mjd.nefc * mjm.nv]).reshape(mjd.nefc, mjm.nv)
    dense = np.zeros((mjd.nefc, mjm.nv))
    mujoco.mju_sparse2dense(dense, mjd.efc_J, mjd.efc_J_rownnz, mjd.efc_J_rowadr, mjd.efc_J_colind)
    return dense


def _row_slots(m: Model, mjd: mujoco.MjData, name: str) -> np.ndarray:
    value = np.array(getattr(mjd, name))
    out = np.zeros(m.njmax)
    out[row_slots(m, mjd)] = value
    return out


def get_data_into(result: mujoco.MjData | Sequence[mujoco.MjData], m: Model, d: Data) -> None:
    """Write a state into MuJoCo's structs: the state fields, then everything derived, by ``mj_forward`` in C.

    The state is written and C recomputes what follows from it, so contacts and rows are exactly C's own structures.
    ``qacc``, ``qacc_warmstart`` and the constraint forces are then those of ``d``.

    Args:
      result: one ``MjData`` for batch size ``()``, or one per world.
      m, d: the model and the state.

    Raises:
      StateError: number of worlds or sizes differ; nothing is written then.
    """
    targets = [result] if isinstance(result, mujoco.MjData) else list(result)
    worlds = d.unsqueeze(0) if not d.batch_size else d
    if len(targets) != worlds.batch_size[0]:
        raise StateError(
            f"get_data_into got {len(targets)} MjData for {worlds.batch_size[0]} worlds; give one per world"
        )
    for name in layout.STATE:
        shape = shape_of(m.topology, layout.FIELDS[name])
        found = [tuple(read_field(worlds, name).shape[1:]), *(state_value(t, name).shape for t in targets)]
        for other in found:
            if other != shape:
                raise StateError(
                    f"get_data_into: {name} has shape {other}, the model needs {shape}; is it of another model? "
                    "Nothing is written."
                )
    for world, target in enumerate(targets):
        _write_world(target, worlds[world])


def _write_world(target: mujoco.MjData, d: Data) -> None:
    for name in layout.STATE:
        value = read_field(d, name).detach().cpu().double().numpy()
        if name == "time":
            target.time = float(value)
        elif name == "warning":
            for warning, number in zip(target.warning, value, strict=True):
                warning.number = int(number)
        else:
            getattr(target, name)[:] = value
    mujoco.mj_forward(target.model, target)
    for name in ("qacc", "qacc_warmstart", "qfrc_constraint"):
        getattr(target, name)[:] = read_field(d, name).detach().cpu().double().numpy()


def _dtype(dtype: torch.dtype | None) -> torch.dtype:
    dtype = torch.get_default_dtype() if dtype is None else dtype
    if dtype not in DTYPES:
        raise ArgumentError(f"dtype is {dtype!r}; allowed are torch.float32 and torch.float64")
    return dtype


def _device(device: torch.device | str | None) -> torch.device:
    try:
        device = torch.get_default_device() if device is None else torch.device(device)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, TypeError) as error:
        reason = str(error).splitlines()[0]
        raise ArgumentError(f"device {device!r} cannot be used: {reason}") from None
    return device
