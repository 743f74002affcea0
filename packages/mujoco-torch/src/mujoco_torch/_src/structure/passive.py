"""Structure and arrays of the passive forces: springs, dampers, gravity compensation, and the surrounding medium."""

import mujoco
import numpy as np

from mujoco_torch._src.enums import DisableBit, GeomType, JointType
from mujoco_torch._src.pattern import Pattern
from mujoco_torch._src.structure.arrays import (
    MINVAL,
    QUAT_JOINTS,
    SCALAR_JOINTS,
    Part,
    disabled,
    items,
    moved_by,
    select,
)
from mujoco_torch._src.structure.reflected import reflected


def passive_forces(mjm: mujoco.MjModel) -> Part:
    """All parts below; with springs and dampers both disabled C leaves out every passive force."""
    static: dict = {}
    arrays: dict = {}
    off = disabled(mjm, DisableBit.SPRING) and disabled(mjm, DisableBit.DAMPER)
    for part in (_springs, _plastic, _dampers, _gravcomp, _box_medium, _ellipsoid_medium):
        values, more = part(mjm)
        static |= values
        arrays |= more
    static |= dict(
        has_gravcomp=static["has_gravcomp"] and not off,
        fluid_boxes=0 if off else static["fluid_boxes"],
        fluid_ellipsoids=0 if off else static["fluid_ellipsoids"],
    )
    return static, arrays


def _by_dof(mjm: mujoco.MjModel, of_joint: np.ndarray) -> np.ndarray:
    """What joints have, given to each of their dofs."""
    return of_joint[mjm.dof_jntid] if mjm.nv else of_joint[:0]


def _plastic_joints(mjm: mujoco.MjModel) -> list[int]:
    return [j for j in range(mjm.njnt) if mjm.jnt_plasticadr[j] >= 0]


def _springs(mjm: mujoco.MjModel) -> Part:
    """Stiffness and reference of the joint springs; the reference of a plastic spring is not here but in the state."""
    off = disabled(mjm, DisableBit.SPRING)
    stiffness = _by_dof(mjm, mjm.jnt_stiffness) * (not off)
    poly = _by_dof(mjm, mjm.jnt_stiffnesspoly) * (not off)
    quat = [j for j in range(mjm.njnt) if mjm.jnt_type[j] in QUAT_JOINTS]
    adr = [mjm.jnt_qposadr[j] + 3 * (mjm.jnt_type[j] == JointType.FREE) for j in quat]
    spring_quat = np.array([_unit(mjm.qpos_spring[a : a + 4]) for a in adr]).reshape(len(quat), 4)
    qpos_spring = mjm.qpos_spring.copy()
    for j in _plastic_joints(mjm):
        if j in quat:
            spring_quat[quat.index(j)] = 0.0
        else:
            qpos_spring[mjm.jnt_qposadr[j]] = 0.0
    stiff = mjm.jnt_stiffness[quat].any() or mjm.jnt_stiffnesspoly[quat].any()
    static = dict(
        has_spring=bool(stiffness.any() or poly.any()),
        has_stiffnesspoly=bool(poly.any()),
        quat_spring=bool(quat) and bool(stiff),
    )
    arrays = dict(
        dof_stiffness=items(stiffness),
        dof_stiffnesspoly=items(poly),
        spring_dofs=Pattern.of_matrix(_same_displacement(mjm)),
        qpos_spring=qpos_spring[:, None],
        spring_quat=items(spring_quat),
    )
    return static, arrays


def _unit(quat: np.ndarray) -> np.ndarray:
    """A zero quaternion stays as it is: its spring is at rest everywhere, as in C."""
    length = np.linalg.norm(quat)
    return quat / length if length else quat


def _same_displacement(mjm: mujoco.MjModel) -> np.ndarray:
    """1 where two dofs are components of one vector: the translation or the rotation of a joint, ``(nv, nv)``."""
    local = np.arange(mjm.nv) - _by_dof(mjm, mjm.jnt_dofadr)
    group = 2 * mjm.dof_jntid + (local >= 3)
    return (group[:, None] == group[None]).astype(float)


def _plastic(mjm: mujoco.MjModel) -> Part:
    """Springs that yield: where their reference is in ``plastic``, and how far they stretch before."""
    joints = _plastic_joints(mjm)
    scalar = [j for j in joints if mjm.jnt_type[j] in SCALAR_JOINTS]
    ball = [j for j in joints if j not in scalar]
    quat = [j for j in range(mjm.njnt) if mjm.jnt_type[j] in QUAT_JOINTS]
    scalar_adr = mjm.jnt_plasticadr[scalar]
    ball_adr = [mjm.jnt_plasticadr[j] + k for k in range(4) for j in ball]
    into_quat = [
        (k * len(quat) + quat.index(j), mjm.jnt_plasticadr[j] + k, 1) for k in range(4) for j in ball
    ]
    static = dict(
        plastic_scalars=len(scalar),
        plastic_balls=len(ball),
        joints_yield=bool(joints) and not disabled(mjm, DisableBit.SPRING),
    )
    arrays = dict(
        plastic_scalar=select(scalar_adr, mjm.nplastic),
        plastic_ball=select(ball_adr, mjm.nplastic),
        plastic_into_quat=Pattern(into_quat, (4 * len(quat), mjm.nplastic)),
        plastic_qpos=select(mjm.jnt_qposadr[scalar], mjm.nq),
        plastic_quat=select([quat.index(j) for j in ball], len(quat)),
        scalar_springyield=items(mjm.jnt_springyield[scalar]),
        ball_springyield=items(mjm.jnt_springyield[ball]),
    )
    return static, arrays


def _dampers(mjm: mujoco.MjModel) -> Part:
    """Damping of the dofs, with that of their actuators, and whether Euler's method treats it implicitly."""
    off = disabled(mjm, DisableBit.DAMPER)
    total = reflected(mjm)
    damping, poly = total.dof_damping * (not off), total.dof_dampingpoly * (not off)
    implicit = (mjm.dof_damping > 0).any() or mjm.dof_dampingpoly.any() or (mjm.jnt_actuatorid != -1).any()
    static = dict(
        has_dampingpoly=bool(poly.any()),
        eulerdamp=not off and not disabled(mjm, DisableBit.EULERDAMP) and bool(implicit),
    )
    return static, dict(dof_damping=items(damping), dof_dampingpoly=items(poly))


def _gravcomp(mjm: mujoco.MjModel) -> Part:
    """Constant force on each body with gravity compensation, and the dofs that feel it."""
    gravity = np.zeros(3) if disabled(mjm, DisableBit.GRAVITY) else mjm.opt.gravity
    bodies = [b for b in range(1, mjm.nbody) if mjm.body_gravcomp[b] and moved_by(mjm)[b].any()]
    weight = (mjm.body_mass * mjm.body_gravcomp)[bodies]
    through_actuators = _by_dof(mjm, mjm.jnt_actgravcomp).astype(float)
    # As in C, the compiled model's flag decides, also where body_gravcomp was edited since.
    static = dict(has_gravcomp=bool(mjm.flg_gravcomp) and bool(bodies) and bool(gravity.any()))
    arrays = dict(
        gravcomp_body=select(bodies, mjm.nbody),
        gravcomp_root=select(mjm.body_rootid[bodies], mjm.nbody),
        gravcomp_dof=Pattern.of_matrix(moved_by(mjm)[bodies].T),
        gravcomp_force=items((-weight[:, None] * gravity).reshape(len(bodies), 3)),
        # 0 where the compensation is part of the actuator forces instead
        gravcomp_passive=items(1.0 - through_actuators),
    )
    return static, arrays


def _in_medium(mjm: mujoco.MjModel) -> tuple[list[int], list[int]]:
    """Bodies whose inertia box, and geoms whose ellipsoid the medium acts on."""
    boxes: list[int] = []
    ellipsoids: list[int] = []
    if not (mjm.opt.density or mjm.opt.viscosity):
        return boxes, ellipsoids
    moved = moved_by(mjm).max(1, initial=0.0)
    for b in range(1, mjm.nbody):
        if mjm.body_mass[b] < MINVAL or not moved[b]:
            continue
        geoms = range(mjm.body_geomadr[b], mjm.body_geomadr[b] + mjm.body_geomnum[b])
        own = [g for g in geoms if mjm.geom_fluid[g, 0] > 0]
        ellipsoids += own
        boxes += [] if own else [b]
    return boxes, ellipsoids


def ellipsoids(mjm: mujoco.MjModel) -> list[int]:
    """The geoms that the medium acts on as ellipsoids, in the order of its arrays."""
    return _in_medium(mjm)[1]


def _medium(mjm: mujoco.MjModel, name: str, bodies) -> dict[str, Pattern]:
    """The body of each thing in the medium, the root of its tree, and the dofs that feel its force."""
    return {
        f"{name}_body": select(bodies, mjm.nbody),
        f"{name}_root": select(mjm.body_rootid[bodies], mjm.nbody),
        f"{name}_dof": Pattern.of_matrix(moved_by(mjm)[bodies].T),
    }


def _box_medium(mjm: mujoco.MjModel) -> Part:
    """Drag of the boxes that have the inertia of the bodies (documentation, "Fluid forces", "Inertia model")."""
    bodies, _ = _in_medium(mjm)
    inertia, mass = mjm.body_inertia[bodies], mjm.body_mass[bodies]
    squares = np.maximum(MINVAL, inertia.sum(1, keepdims=True) - 2.0 * inertia) / mass[:, None] * 6.0
    x, y, z = np.sqrt(squares).T
    diameter = (x + y + z) / 3.0
    # A negative number means no such force for boxes, but a reversed force for ellipsoids.
    density, viscosity = max(mjm.opt.density, 0.0), max(mjm.opt.viscosity, 0.0)
    areas = np.stack([y * z, x * z, x * y], 1)
    moments = np.stack([x * (y**4 + z**4), y * (x**4 + z**4), z * (x**4 + y**4)], 1)
    arrays = dict(
        fluid_box_viscous=items(3.0 * np.pi * viscosity * diameter),
        fluid_box_viscous_turn=items(np.pi * viscosity * diameter**3),
        fluid_box_drag=items(density / 2.0 * areas),
        fluid_box_drag_turn=items(density / 64.0 * moments),
    )
    static = dict(fluid_boxes=len(bodies))
    return static, arrays | _medium(mjm, "fluid_box", bodies) | dict(wind=items(mjm.opt.wind[None]))


def _ellipsoid_medium(mjm: mujoco.MjModel) -> Part:
    """Forces on ellipsoids (documentation, "Fluid forces", "Ellipsoid model"); the density is in the coefficients."""
    _, geoms = _in_medium(mjm)
    scale, blunt, slender, angular, kutta, magnus = mjm.geom_fluid[geoms, :6].T
    added = mjm.geom_fluid[geoms, 6:]
    axes = _semiaxes(mjm, geoms)
    small, middle, large = np.sort(axes, 1).T
    diameter = 2.0 / 3.0 * axes.sum(1)
    density, viscosity = scale * mjm.opt.density, scale * mjm.opt.viscosity
    area = np.pi * large * middle
    moment = 8.0 / 15.0 * np.pi * axes * np.maximum(np.roll(axes, -1, 1), np.roll(axes, -2, 1)) ** 4
    largest = 8.0 / 15.0 * np.pi * middle * large**4
    # Both relative to their largest, since the squares of small numbers would count as zero.
    turn, largest_turn = _relative(angular[:, None] * moment + slender[:, None] * (largest[:, None] - moment))
    sections, widest = _relative((np.roll(axes, -1, 1) * np.roll(axes, -2, 1)) ** 2)
    arrays = dict(
        fluid_mass=items(density[:, None] * added[:, :3]),
        fluid_inertia=items(density[:, None] * added[:, 3:]),
        fluid_magnus=items(density * magnus * 4.0 / 3.0 * np.pi * small * middle * large),
        fluid_kutta=items(density * kutta),
        fluid_sections=items(sections),
        fluid_area=items(np.pi * np.sqrt(widest)),
        fluid_drag=items(density * slender * area),
        fluid_drag_area=items(density * (blunt - slender)),
        fluid_viscous=items(viscosity * 3.0 * np.pi * diameter),
        fluid_viscous_turn=items(viscosity * np.pi * diameter**3),
        fluid_drag_turn=items(density * largest_turn),
        fluid_turn_axes=items(turn),
        fluid_geom=select(geoms, mjm.ngeom),
    )
    static = dict(fluid_ellipsoids=len(geoms))
    return static, arrays | _medium(mjm, "fluid_geom", mjm.geom_bodyid[geoms])


def _relative(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Rows divided by the largest magnitude in each, and that magnitude."""
    largest = np.abs(x).max(1, initial=0.0)
    return x / np.where(largest > 0, largest, 1.0)[:, None], largest


def _semiaxes(mjm: mujoco.MjModel, geoms: list[int]) -> np.ndarray:
    """Semi-axes of the ellipsoids that stand for geoms, ``(ngeom, 3)``."""
    axes = mjm.geom_size[geoms].copy()
    for row, g in zip(axes, geoms, strict=True):
        kind, (radius, half, _) = mjm.geom_type[g], mjm.geom_size[g]
        if kind == GeomType.SPHERE:
            row[:] = radius
        elif kind == GeomType.CAPSULE:
            row[:] = radius, radius, radius + half
        elif kind == GeomType.CYLINDER:
            row[:] = radius, radius, half
    return axes
