"""Which features of a model this release does not simulate exactly.

`check` goes through `RULES`, one rule for each feature that is refused. A rule reports a feature wherever the
model has it, also when a flag of the model switches it off at present, with one exception: what only shapes
constraint rows (cone, solver, its iterations) is reported only if the model can have one. Enumerated values of options,
equalities, actuators and geoms that can touch, and flags, are compared with those that are supported, so one that a
later MuJoCo adds is refused.

Without effect on the simulated state, hence never reported: what is only drawn (materials, textures, skins,
lights), unused assets, user data, custom fields, keyframes, sleep policies without the sleep flag, the legacy
sizes `njmax` and `nconmax`, the storage of the Jacobian.

A departure from MuJoCo C that is no feature of a model: C iterates on each constraint island by itself, here on trees
that constraints may ever join together, which is the same once both have converged.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
from collections.abc import Callable, Collection, Iterable, Iterator

import mujoco
import numpy as np

from mujoco_torch._src.collision.pairs import GeomPair, geom_pairs
from mujoco_torch._src.enums import (
    BiasType,
    ConeType,
    DisableBit,
    DynType,
    EnableBit,
    EqType,
    GainType,
    GeomType,
    IntegratorType,
    ObjType,
    SensorType,
    SolverType,
    TrnType,
    WrapType,
)
from mujoco_torch._src.structure.reflected import reflected

# A name in a message is enough to find the element; a list of thousands is not read.
_SHOWN_ELEMENTS = 4

_SOLVERS = (SolverType.NEWTON, SolverType.CG)
_INTEGRATORS = tuple(kind for kind in IntegratorType if kind != IntegratorType.DISCRETE)
_TRANSMISSIONS = tuple(kind for kind in TrnType if kind != TrnType.UNDEFINED)
_EQUALITIES = (EqType.CONNECT, EqType.WELD, EqType.JOINT, EqType.TENDON)

_ENABLE_FLAGS = EnableBit.ENERGY | EnableBit.FWDINV | EnableBit.INVDISCRETE
_DISABLE_FLAGS = functools.reduce(lambda a, b: a | b, DisableBit)

# `time` is left out: it feeds C's own timers only.
_CALLBACKS = ("control", "passive", "contactfilter", "sensor", "act_dyn", "act_gain", "act_bias")

# Newton's method takes 1 to 8 iterations on the packaged models, from any start; fewer may stop it half-way. Conjugate
# gradients take 100 at most where few rows are active.
_ENOUGH_ITERATIONS = {SolverType.NEWTON: 10, SolverType.CG: 100}


@dataclasses.dataclass(frozen=True)
class Finding:
    """One feature of a model that is not simulated exactly.

    Attributes:
      feature: stable kebab-case id, for programs.
      message: what is not simulated, without the elements.
      elements: all elements concerned, such as `geom 'foot'` or, without a name, `geom 3`; empty where the
        whole model is concerned.
      hint: the next step.
    """

    feature: str
    message: str
    elements: tuple[str, ...] = ()
    hint: str = ""

    def __str__(self) -> str:
        where = f" ({_listing(self.elements)})" if self.elements else ""
        hint = f"; {self.hint}" if self.hint else ""
        return f"{self.feature}: {self.message}{where}{hint}"


class _Subject:
    """The model under check and the names of its callbacks; its geom pairs are listed at most once."""

    def __init__(self, mjm: mujoco.MjModel, given: Collection[str]):
        self.mjm = mjm
        self.given = given

    @functools.cached_property
    def pairs(self) -> tuple[GeomPair, ...]:
        return geom_pairs(self.mjm)

    @functools.cached_property
    def has_rows(self) -> bool:
        """Whether an equality, friction loss, limit or contact can ever give a constraint row."""
        m, off = self.mjm, DisableBit(self.mjm.opt.disableflags)
        kinds = (
            (DisableBit.EQUALITY, (m.neq,)),
            (DisableBit.FRICTIONLOSS, (m.dof_frictionloss, m.tendon_frictionloss)),
            (DisableBit.LIMIT, (m.jnt_limited, m.tendon_limited)),
        )
        given = any(np.any(x) for flag, values in kinds if not off & flag for x in values)
        return (given and not off & DisableBit.CONSTRAINT) or bool(self.pairs)

    @functools.cached_property
    def trees_may_join(self) -> bool:
        """Whether a constraint may ever join trees: a contact of two, or any equality or tendon."""
        m = self.mjm
        if m.ntree < 2 or not self.has_rows:
            return False
        trees = m.body_treeid[m.geom_bodyid]
        meeting = [trees[[pair.geom1, pair.geom2]] for pair in self.pairs]
        return bool(m.neq or m.ntendon) or any(min(t) >= 0 and t[0] != t[1] for t in meeting)


# What a rule reports: message and elements of each finding.
_Found = Iterator[tuple[str, tuple[str, ...]]]


@dataclasses.dataclass(frozen=True)
class Rule:
    """How one refused feature is found.

    Attributes:
      feature: id of its findings.
      refused: the feature in words, for the table of the documentation.
      hint: the next step, for its findings.
      find: yields message and elements of each finding.
    """

    feature: str
    refused: str
    hint: str
    find: Callable[[_Subject], _Found]


def check(mjm: mujoco.MjModel) -> tuple[Finding, ...]:
    """Lists every feature of a model that this release does not simulate exactly.

    Args:
      mjm: a compiled model. The user callbacks that are installed in MuJoCo count as part of it.

    Returns:
      The findings in the order of `RULES`; empty exactly if `put_model` accepts the model without callbacks.

    Raises:
      TypeError: `mjm` is not a `mujoco.MjModel`.
    """
    if not isinstance(mjm, mujoco.MjModel):
        raise TypeError(
            f"check takes a mujoco.MjModel, got {type(mjm).__name__}; "
            "compile one with mujoco.MjModel.from_xml_path or from_xml_string"
        )
    return findings_given(mjm, ())


def findings_given(mjm: mujoco.MjModel, given: Collection[str]) -> tuple[Finding, ...]:
    """What `check` finds if the model is given some callbacks, such as `mjcb_act_gain`."""
    subject = _Subject(mjm, given)
    return tuple(
        Finding(rule.feature, message, elements, rule.hint)
        for rule in RULES
        for message, elements in rule.find(subject)
    )


def supported_table() -> str:
    """Two Markdown tables, what is supported and what is refused, for the documentation."""
    supported = _markdown(("area", "supported"), SUPPORTED)
    rows = ((f"`{rule.feature}`", rule.refused, rule.hint) for rule in RULES)
    refused = _markdown(("finding", "refused", "what to do"), rows)
    return f"{supported}\n\n{refused}\n"


def _markdown(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    return "\n".join("| " + " | ".join(row) + " |" for row in (head, ("---",) * len(head), *rows))


def _listing(elements: tuple[str, ...]) -> str:
    shown = ", ".join(elements[:_SHOWN_ELEMENTS])
    more = len(elements) - _SHOWN_ELEMENTS
    return f"{shown} and {more} more" if more > 0 else shown


def _name(mjm: mujoco.MjModel, kind: ObjType, index: int) -> str:
    name = mujoco.mj_id2name(mjm, kind, index)
    return f"{kind.name.lower()} '{name}'" if name else f"{kind.name.lower()} {index}"


def _names(mjm: mujoco.MjModel, kind: ObjType, indices: Iterable[int]) -> tuple[str, ...]:
    return tuple(_name(mjm, kind, int(index)) for index in indices)


def _where(mjm: mujoco.MjModel, kind: ObjType, *values: np.ndarray) -> tuple[str, ...]:
    """Names of the elements for which any of the values, with the element first, is not zero."""
    hit = np.zeros(values[0].shape[0], bool)
    for value in values:
        hit |= value.any(axis=tuple(range(1, value.ndim)))
    return _names(mjm, kind, np.flatnonzero(hit))


def _label(kind: type[enum.IntEnum], value: int) -> str:
    """Lower-case name of an enumerated value, or the bare number of one that is not known here."""
    known = {int(member): member.name.lower() for member in kind}
    return known.get(int(value), f"number {int(value)}")


def _labels(kind: type[enum.IntEnum], values: Iterable[int]) -> str:
    return ", ".join(_label(kind, value) for value in sorted({int(value) for value in values}))


def _bit_names(kind: type[enum.IntFlag], flags: int) -> tuple[str, ...]:
    known = {int(bit): name.lower() for name, bit in kind.__members__.items()}
    bits = (1 << shift for shift in range(flags.bit_length()) if flags & 1 << shift)
    return tuple(f"flag '{known[bit]}'" if bit in known else f"flag {bit}" for bit in bits)


def _report(message: str, elements: tuple[str, ...]) -> _Found:
    if elements:
        yield message, elements


# Options of the whole model.


def _integrator(s: _Subject) -> _Found:
    value = s.mjm.opt.integrator
    if value not in _INTEGRATORS:
        yield f"the integrator {_label(IntegratorType, value)} is not available", ()


def _cone(s: _Subject) -> _Found:
    value = s.mjm.opt.cone
    if value not in tuple(ConeType) and s.pairs:
        yield f"the friction cone {_label(ConeType, value)} is not available", ()


def _solver(s: _Subject) -> _Found:
    value = s.mjm.opt.solver
    if value not in _SOLVERS and s.has_rows:
        yield f"the constraint solver {_label(SolverType, value)} is not available", ()


def _islands(s: _Subject) -> _Found:
    opt = s.mjm.opt
    by_islands = s.trees_may_join and not opt.disableflags & DisableBit.ISLAND
    if by_islands and opt.iterations < _ENOUGH_ITERATIONS.get(opt.solver, 0):
        yield (
            f"{s.mjm.ntree} trees in separate islands get {opt.iterations} solver iterations each in MuJoCo, "
            "while here those that constraints may join share them",
            (),
        )


def _enable_flag(s: _Subject) -> _Found:
    refused = s.mjm.opt.enableflags & ~int(_ENABLE_FLAGS)
    yield from _report("optional features are not available", _bit_names(EnableBit, refused))


def _disable_flag(s: _Subject) -> _Found:
    unknown = s.mjm.opt.disableflags & ~int(_DISABLE_FLAGS)
    yield from _report("bits of disableflags are not known", _bit_names(DisableBit, unknown))


def _callback(s: _Subject) -> _Found:
    del s  # Callbacks belong to the process, not to the model.
    names = (f"mjcb_{name}" for name in _CALLBACKS)
    installed = tuple(name for name in names if getattr(mujoco, f"get_{name}")() is not None)
    yield from _report("callbacks of MuJoCo are not called", installed)


def _plugin(s: _Subject) -> _Found:
    yield from _report("plugins are not run", _names(s.mjm, ObjType.PLUGIN, range(s.mjm.nplugin)))


# Equalities, tendons, flexes, sensors.


def _equality(s: _Subject) -> _Found:
    """One finding for each kind."""
    kinds = s.mjm.eq_type
    for kind in np.unique(kinds[~np.isin(kinds, _EQUALITIES)]):
        elements = _names(s.mjm, ObjType.EQUALITY, np.flatnonzero(kinds == kind))
        yield f"equality constraints of kind {_label(EqType, kind)} are not simulated", elements


def _tendon_armature(s: _Subject) -> _Found:
    """Only a model edited after compilation can have it: the compiler refuses it, and C stops at it."""
    m = s.mjm
    wrapping = np.isin(m.wrap_type, (WrapType.SPHERE, WrapType.CYLINDER))
    paths = zip(m.tendon_adr, m.tendon_num, strict=True)
    wrapped = np.array([wrapping[start : start + count].any() for start, count in paths], bool)
    tendons = _where(m, ObjType.TENDON, wrapped & (reflected(m).tendon_armature != 0))
    yield from _report("armature of tendons that wrap geoms is not simulated, nor in MuJoCo", tendons)


def _flex(s: _Subject) -> _Found:
    yield from _report("deformable bodies are not simulated", _names(s.mjm, ObjType.FLEX, range(s.mjm.nflex)))


def _sensor(s: _Subject) -> _Found:
    kinds = _labels(SensorType, s.mjm.sensor_type)
    elements = _names(s.mjm, ObjType.SENSOR, range(s.mjm.nsensor))
    yield from _report(f"sensors are not computed, kinds {kinds}", elements)


# Actuators.


def _actuators_outside(
    s: _Subject, values: np.ndarray, kind: type[enum.IntEnum], allowed: tuple[int, ...], what: str
) -> _Found:
    """Actuators whose enumerated value is not among those allowed, one finding for each value."""
    for value in np.unique(values[~np.isin(values, allowed)]):
        actuators = _names(s.mjm, ObjType.ACTUATOR, np.flatnonzero(values == value))
        yield f"the actuator {what} {_label(kind, value)} is not simulated", actuators


def _with_callback(s: _Subject, kind: type[enum.IntEnum], callback: str) -> tuple[int, ...]:
    """The kinds that can be simulated: user only with its callback."""
    return tuple(value for value in kind if value.name != "USER" or callback in s.given)


def _actuator_transmission(s: _Subject) -> _Found:
    yield from _actuators_outside(s, s.mjm.actuator_trntype, TrnType, _TRANSMISSIONS, "transmission")


def _actuator_dynamics(s: _Subject) -> _Found:
    """User dynamics of several activations, too: C's callback writes their rates into MjData, it returns none."""
    m, allowed = s.mjm, _with_callback(s, DynType, "mjcb_act_dyn")
    yield from _actuators_outside(s, m.actuator_dyntype, DynType, allowed, "dynamics")
    if DynType.USER in allowed:
        several = (m.actuator_dyntype == DynType.USER) & (m.actuator_actnum > 1)
        message = "user dynamics of several activations are not simulated"
        yield from _report(message, _where(m, ObjType.ACTUATOR, several))


def _actuator_gain(s: _Subject) -> _Found:
    allowed = _with_callback(s, GainType, "mjcb_act_gain")
    yield from _actuators_outside(s, s.mjm.actuator_gaintype, GainType, allowed, "gain")


def _actuator_bias(s: _Subject) -> _Found:
    allowed = _with_callback(s, BiasType, "mjcb_act_bias")
    yield from _actuators_outside(s, s.mjm.actuator_biastype, BiasType, allowed, "bias")


def _actuator_combination(s: _Subject) -> _Found:
    """The compiler of MuJoCo leaves others than these only to models written with element general, or edited."""
    m = s.mjm
    gain, bias, dyn = m.actuator_gaintype, m.actuator_biastype, m.actuator_dyntype
    motor = [gain == GainType.DCMOTOR, bias == BiasType.DCMOTOR, dyn == DynType.DCMOTOR]
    mixed = np.any(motor, 0) & ~np.all(motor, 0)
    mixed |= (gain == GainType.SO3) != (bias == BiasType.SO3)
    mixed |= (gain == GainType.SO3) & ~np.isin(dyn, (DynType.NONE, DynType.INTEGRATOR))
    mixed |= (gain == GainType.PID) & ((bias != BiasType.AFFINE) | ~np.isin(dyn, (DynType.NONE, DynType.PID)))
    mixed |= (dyn == DynType.PID) & (gain != GainType.PID)
    mixed |= ((gain == GainType.USER) | (bias == BiasType.USER)) & (m.actuator_outnum != 1)
    yield from _report("gain, bias and dynamics do not belong together", _where(m, ObjType.ACTUATOR, mixed))


# Contacts.


def _geom_pair(s: _Subject) -> _Found:
    """One finding for each combination of geom types, naming the pairs of geoms."""
    names: dict[tuple[int, int], list[str]] = {}
    for pair in s.pairs:
        if pair.maxcon is None:
            both = " with ".join(_names(s.mjm, ObjType.GEOM, (pair.geom1, pair.geom2)))
            names.setdefault((int(pair.type1), int(pair.type2)), []).append(both)
    for (type1, type2), elements in sorted(names.items()):
        kinds = f"{_label(GeomType, type1)} with {_label(GeomType, type2)}"
        yield f"contacts of {kinds} are not simulated", tuple(elements)


RULES = (
    Rule(
        "integrator",
        "the integrator discrete",
        "set the option integrator to implicitfast, implicit, Euler or RK4",
        _integrator,
    ),
    Rule(
        "cone",
        "friction cones that MuJoCo 4.0 does not have, where a contact is possible",
        "set the option cone to pyramidal or elliptic",
        _cone,
    ),
    Rule(
        "solver",
        "the solver PGS, where a constraint is possible",
        'set the option solver to Newton or CG, or give put_model solver="newton"',
        _solver,
    ),
    Rule(
        "islands",
        "constraint islands cut short: trees that may meet and less than ten solver iterations, of CG a hundred",
        'set <flag island="disable"/>, or the option iterations to 10 or more, with CG to 100',
        _islands,
    ),
    Rule(
        "enable-flag",
        "flags override, sleep, diagexact, ipc, speculative",
        "disable them in option/flag",
        _enable_flag,
    ),
    Rule(
        "disable-flag",
        "disable flags that MuJoCo 4.0 does not have",
        "clear these bits in opt.disableflags",
        _disable_flag,
    ),
    Rule(
        "callback",
        "callbacks installed in MuJoCo itself, other than the timer",
        "uninstall them with mujoco.set_mjcb_NAME(None); give put_model mjcb_control, mjcb_passive, mjcb_act_dyn, "
        "mjcb_act_gain or mjcb_act_bias",
        _callback,
    ),
    Rule("plugin", "plugins of every kind", "remove the plugin instances", _plugin),
    Rule(
        "equality",
        "equality constraints other than connect, weld, joint and tendon, active or not",
        "remove them from the model",
        _equality,
    ),
    Rule(
        "tendon-armature",
        "armature of tendons that wrap geoms",
        "set armature of the tendons and of their actuators to 0",
        _tendon_armature,
    ),
    Rule("flex", "deformable bodies (flex)", "remove them, or use rigid bodies", _flex),
    Rule("sensor", "sensors of every kind", "remove them and compute the quantity from Data", _sensor),
    Rule(
        "actuator-transmission",
        "transmissions that MuJoCo 4.0 does not have",
        "use one of joint, jointinparent, tendon, site, slider-crank, body and orientation",
        _actuator_transmission,
    ),
    Rule(
        "actuator-dynamics",
        "actuators with user dynamics, without their callback or with several activations",
        "give put_model mjcb_act_dyn, with actdim 1, or use another dyntype",
        _actuator_dynamics,
    ),
    Rule(
        "actuator-gain",
        "actuators with a user gain, without their callback",
        "give put_model mjcb_act_gain, or use another gaintype",
        _actuator_gain,
    ),
    Rule(
        "actuator-bias",
        "actuators with a user bias, without their callback",
        "give put_model mjcb_act_bias, or use another biastype",
        _actuator_bias,
    ),
    Rule(
        "actuator-combination",
        "gains, biases and dynamics of DC motors, PID controllers and orientation servos with those of others",
        "use the elements dcmotor, pid and orientation",
        _actuator_combination,
    ),
    Rule(
        "geom-pair",
        "contacts other than those between planes, spheres and capsules",
        "change the geom types, or keep the geoms apart with contype and conaffinity or an exclude",
        _geom_pair,
    ),
)

SUPPORTED = (
    ("bodies", "any tree; mocap bodies; gravity compensation"),
    ("joints", "free, ball, slide and hinge; armature; limits; friction loss"),
    (
        "tendons",
        "fixed and spatial: sites, pulleys, spheres and cylinders wrapped around or passed through, side sites; "
        "limits; friction loss; armature; springs with two rest lengths and dampers, linear and polynomial; springs "
        "that yield",
    ),
    (
        "passive forces",
        "springs and dampers of joints, linear and polynomial; joint springs that yield; a medium with "
        "wind, as inertia boxes and ellipsoids",
    ),
    ("applied forces", "on dofs and on bodies"),
    (
        "actuators",
        "every type, user with callbacks: activations, muscles, DC motors, PID controllers, orientation servos; clamps "
        "of control, activation and force, on joints and tendons; disabled groups; delays; damping, armature; gravity "
        "compensation",
    ),
    (
        "transmissions",
        "joint, joint in parent, tendon, site with and without reference, slider-crank, body (adhesion), orientation",
    ),
    ("equality", "connect and weld, of bodies or sites; joint; tendon; each active or not, by world"),
    (
        "contacts",
        "plane, sphere and capsule with each other; condim 1, 3, 4 and 6; moving surfaces; "
        "adhesion of geoms and pairs; both cones",
    ),
    ("contact filters", "contype and conaffinity, exclude, pair, parent; priority, mixing, margin, gap"),
    ("solver", "Newton, conjugate gradients, warm start, no-slip pass"),
    ("integrators", "Euler with implicit damping, implicit, implicitfast, RK4"),
    (
        "inverse dynamics",
        "in continuous and, but for RK4, in discrete time; comparison with forward dynamics",
    ),
    ("energy", "potential and kinetic"),
    ("resets", "of bad states, and to keyframes, world by world"),
    ("flags", "every disable flag of MuJoCo 4.0; the enable flags energy, fwdinv, invdiscrete"),
    (
        "callbacks",
        "mjcb_control, mjcb_passive, mjcb_act_dyn, mjcb_act_gain and mjcb_act_bias, given to put_model",
    ),
    ("cameras and lights", "every tracking mode"),
)
