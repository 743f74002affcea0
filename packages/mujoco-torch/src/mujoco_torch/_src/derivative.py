"""How forces change with velocity, for the integrators that are implicit in it (``mjd_smooth_vel``).

The derivative D = d qfrc_smooth / d qvel has the elements of C's ``qDeriv``, one for each pair of dofs of which one is
the other or moves with it; what couples other dofs (a tendon between branches) is left out, as in C. It is held as its
lower triangle ``[nL, B]``, row by row, and, where it is not symmetric, its upper triangle in the same order. It is no
field of ``Data``.

A force that depends on velocity is added in one place: anything of the form J' f(J v) in ``symmetric_rate``, what
acts on bodies in ``medium_rate``, Coriolis and centrifugal forces in ``bias_rate``.
"""

import torch
from torch import Tensor

from mujoco_torch._src import solver
from mujoco_torch._src.actuation import clamped_controls, gain_input, next_activation, usable_controls
from mujoco_torch._src.components import Components, join
from mujoco_torch._src.fluid_derivative import body_rates
from mujoco_torch._src.inertia import factor_m, solve_m
from mujoco_torch._src.motor import motor_force, motor_rate
from mujoco_torch._src.muscle import muscle_gain_rate
from mujoco_torch._src.passive import damping_rate
from mujoco_torch._src.spatial import cross, dot, inertia_mul, motion_cross, norm
from mujoco_torch._src.transmission import moments
from mujoco_torch._src.types import InsideData, InsideModel

# A force that is scaled to its limit may miss it by rounding.
SLACK = 16


def symmetric_rate(m: InsideModel, d: InsideData) -> Tensor:
    """Lower triangle ``[nL, B]`` of the derivative of all forces of the form J' f(J v): dampers and actuators."""
    total = m.rate_diagonal @ -damping_rate(m, d.qvel).expand_as(d.qvel)
    if m.tendon_dampers:
        rate = tendon_damping_rate(m, d)
        total = total - ((m.rate_row @ (rate[:, None] * d.ten_J)) * (m.rate_col @ d.ten_J)).sum(0)
    if m.actuator_rates:
        moment = moments(m, d)
        weighted = moment * (m.moment_row @ _actuator_rate(m, d))
        total = total + m.rate_sum @ ((m.rate_left @ weighted) * (m.rate_right @ moment))
    return total


def tendon_damping_rate(m: InsideModel, d: InsideData) -> Tensor:
    """Derivative of minus the tendons' damper forces by their velocity, ``[ntendon, B]``: ``a + 2 b |v| + 3 c v^2``."""
    first, second, third = m.tendon_damper
    speed = d.ten_velocity.abs()
    return first + speed * (2.0 * second + 3.0 * speed * third)


def _actuator_rate(m: InsideModel, d: InsideData) -> Tensor:
    """Derivative ``[nout, B]`` of the actuators' forces by their velocities, zero where a force is at its limit.

    What a DC motor has beside its electrical force is beyond that limit. As in C a bad control does not zero others.

    Departures from C:
      1. A control that is NaN counts as zero; in C it makes the acceleration NaN if it scales a gain on the velocity.
      2. A sum of forces, or a torque, that was scaled to its limit is at the limit; in C rounding decides.
    """
    rate = m.actuator_bias[2].expand_as(d.actuator_force)
    following = next_activation(m, d, d.act_dot) if m.uses_next else None
    if m.gain_rates:
        ctrl = clamped_controls(m, d)
        gain = m.actuator_gain[2]
        if m.muscle_gain:
            length, velocity = m.gain_out @ d.actuator_length, m.gain_out @ d.actuator_velocity
            gain = gain + m.gain_out.T @ muscle_gain_rate(length, velocity, m.gain_curve)
        rate = rate + gain * gain_input(m, d, torch.where(ctrl.isnan(), 0.0, ctrl), following)
    force = d.actuator_force
    drag = m.motor_cogging or m.motor_friction
    if m.dcmotor:
        controls = usable_controls(m, d)
        rate = rate + motor_rate(m, d, controls)
        if drag:
            force = torch.where(m.rate_motor > 0, motor_force(m, d, controls, following), force)
    free = _inside(force, m.actuator_forcemin, m.actuator_forcemax)
    if m.so3_limited:
        torque = norm((m.so3_out @ force).unflatten(0, (3, m.so3_gain.shape[0])))
        held = (torque >= m.so3_max * _slack(torque)).to(torque.dtype)
        free = free & (m.so3_out.T @ torch.cat((held, held, held)) == 0)
    rate = torch.where(free, rate, 0.0)
    if m.motor_friction:
        rate = rate - m.motor_force.T @ m.motor_bristle[1].expand(-1, rate.shape[-1])
    if m.joint_saturation:
        at_limit = _at_limit(m.rate_joint, d.qfrc_actuator, m.dof_actfrcmin, m.dof_actfrcmax)
        rate = torch.where(at_limit, 0.0, rate)
    if m.tendon_saturation:
        total = m.rate_tendon.T @ d.actuator_force
        slack = _slack(total)
        at_limit = _at_limit(m.rate_tendon, total, slack * m.rate_tendonmin, slack * m.rate_tendonmax)
        rate = torch.where(at_limit, 0.0, rate)
    return rate


def _slack(x: Tensor) -> float:
    return 1.0 - SLACK * torch.finfo(x.dtype).eps


def _inside(x: Tensor, lower: Tensor, upper: Tensor) -> Tensor:
    return (x > lower) & (x < upper)


def _at_limit(of_output, force: Tensor, lower: Tensor, upper: Tensor) -> Tensor:
    """Whether the joint or tendon that an output acts on has all the force it may have."""
    return of_output @ (~_inside(force, lower, upper)).to(force.dtype) > 0


def medium_rate(m: InsideModel, d: InsideData, symmetric: bool) -> tuple[Tensor, Tensor]:
    """Both triangles ``[nL, B]`` of d qfrc_fluid / d qvel, diagonal included.

    The derivative of a body's wrench by its motion is a 6 x 6 matrix; those of a subtree add up, as inertias do.
    Symmetric: only its symmetric part counts, as in C under ``implicitfast``, but the whole for free bodies that carry
    no joint.
    """
    rates = m.system.dof_body @ (m.body_descendants @ body_rates(m, d, symmetric))
    columns = rates.unflatten(0, (6, 6))  # [column, row]
    wrench = sum(columns[k] * d.cdof[k] for k in range(6))
    upper = dot(m.rate_col @ d.cdof, m.rate_row @ wrench)
    if symmetric and not m.lone_skew:
        return upper, upper
    transposed = torch.stack([dot(columns[k], d.cdof) for k in range(6)])
    return dot(m.rate_row @ transposed, m.rate_col @ d.cdof), upper


def _modified_inertia(m: InsideModel, d: InsideData) -> Tensor:
    """Lower triangle ``[nL, B]`` of M - h D without what is not symmetric."""
    return m.rate_inertia.T @ d.M - m.timestep * symmetric_rate(m, d)


def bias_rate(m: InsideModel, d: InsideData) -> tuple[Tensor, Tensor]:
    """Both triangles ``[nL, B]`` of d qfrc_bias / d qvel, diagonal included (``mjd_rne_vel``).

    With S the axis of a dof and I, V the inertia and velocity of a body, the force F of a body has the derivative

        dF / dv_k = I (S'_k - S_k x U_k) + B S_k,     B s = I (s x V) + s x* (I V) + V x* (I s)

    for every dof k that moves it, where U_k is the velocity of all that dof k does not turn. B acts on the rotation w
    of s alone: B s = (Q w, 2 w x p), with p the momentum of the body. So both sums over a subtree are small: I in
    ``crb``, Q and p here.

    Source: derived from Featherstone (2008), ch. 5, by the Jacobi identity of cross products; compare Echeandia and
    Wensing, "Numerical methods to compute the Coriolis matrix and Christoffel symbols for rigid-body systems",
    Journal of Computational and Nonlinear Dynamics 16 (2021).
    """
    subtree = m.system.dof_body @ (m.body_descendants @ _gyration(d.cinert, d.cvel))
    gyration, momentum = subtree[:9].unflatten(0, (3, 3)), subtree[9:]  # [column, row] of Q
    inertia = m.system.dof_body @ d.crb
    turn, slide = d.cdof[:3], d.cdof[3:]
    rate = d.cdof_dot - motion_cross(d.cdof, m.rate_still @ (d.cdof * d.qvel))

    force = inertia_mul(inertia, rate) + join(_product(gyration, turn), 2.0 * cross(turn, momentum))
    upper = dot(m.rate_col @ d.cdof, m.rate_row @ force)
    twist = Components(dot(column, turn) for column in gyration) + 2.0 * cross(momentum, slide)
    lower = dot(m.rate_row @ inertia_mul(inertia, d.cdof), m.rate_col @ rate)
    return lower + dot(m.rate_row @ twist, m.rate_col @ turn), upper


def _gyration(inertia: Tensor, velocity: Tensor) -> Components:
    """Q, column by column, and p of every body ``[12, nbody, B]``: Q w = 2 h x (w x u) + tr(J) w x o + 2 o x (J w).

    J and h are rotational inertia and mass times offset, o and u rotation and translation of the velocity.
    """
    (xx, yy, zz, xy, xz, yz), h, mass = inertia[:6], Components(inertia[6:9]), inertia[9]
    o, u = velocity[:3], velocity[3:]
    trace, along = xx + yy + zz, dot(h, u)
    zero = torch.zeros_like(trace)
    columns = []
    for axis, J in enumerate(((xx, xy, xz), (xy, yy, yz), (xz, yz, zz))):
        unit = Components(trace if k == axis else zero for k in range(3))
        straight = Components((along if k == axis else zero) - h[axis] * u[k] for k in range(3))
        columns.append(2.0 * (straight + cross(o, Components(J))) + cross(unit, o))
    return join(*columns, mass * u - cross(h, o))


def _implicit_triangles(m: InsideModel, d: InsideData) -> tuple[Tensor, Tensor]:
    """Both triangles ``[nL, B]`` of M - h D with all of D, diagonal included."""
    both = _modified_inertia(m, d)
    lower, upper = bias_rate(m, d)
    if m.fluid_boxes or m.fluid_ellipsoids:
        below, above = medium_rate(m, d, symmetric=False)
        lower, upper = lower - below, upper - above
    return both + m.timestep * lower, both + m.timestep * upper


def solve_implicit(m: InsideModel, d: InsideData, force: Tensor) -> Tensor:
    """Acceleration ``[nv, B]``: (M - h D)^-1 force, with all of D (``mj_implicit``)."""
    triangles = torch.cat(_implicit_triangles(m, d))
    dense = (m.rate_dense @ triangles).unflatten(0, (m.nv, m.nv))
    return solver.solve_dense(dense, force)


def mul_implicit(m: InsideModel, d: InsideData, qacc: Tensor) -> Tensor:
    """Force ``[nv, B]``: (M - h D) qacc, the inverse of ``solve_implicit``."""
    return _mul_triangles(m, *_implicit_triangles(m, d), qacc)


def _mul_triangles(m: InsideModel, lower: Tensor, upper: Tensor, x: Tensor) -> Tensor:
    """Product with vectors ``[nv, B]``; the diagonal is that of the lower triangle."""
    above = torch.where(m.rate_diagonal @ torch.ones_like(x) > 0, 0.0, upper)
    return m.rate_row.T @ (lower * (m.rate_col @ x)) + m.rate_col.T @ (above * (m.rate_row @ x))


def solve_implicitfast(m: InsideModel, d: InsideData, force: Tensor) -> Tensor:
    """The same without the derivative of ``qfrc_bias``, so that M - h D is symmetric and as sparse as M.

    Free bodies that carry no joint keep that derivative, too; their 6 x 6 blocks are solved apart.
    """
    modified, above = _implicitfast_triangles(m, d)
    sparse = modified if m.rate_full else m.rate_inertia @ modified
    factored = factor_m.inside(m, d.replace(M=sparse))
    qacc = solve_m(m, factored, force)
    if not m.nlone:
        return qacc
    return _replace_lone(m, qacc, _solve_lone(m, d, modified, above, force))


def mul_implicitfast(m: InsideModel, d: InsideData, qacc: Tensor) -> Tensor:
    """Force ``[nv, B]``: (M - h D) qacc, the inverse of ``solve_implicitfast``."""
    modified, above = _implicitfast_triangles(m, d)
    sparse = modified if m.rate_full else m.rate_inertia.T @ (m.rate_inertia @ modified)
    force = _mul_triangles(m, sparse, sparse, qacc)
    return _replace_lone(m, force, _mul_lone(m, d, modified, above, qacc)) if m.nlone else force


def _implicitfast_triangles(m: InsideModel, d: InsideData) -> tuple[Tensor, Tensor]:
    """Both triangles ``[nL, B]`` of M - h D without the derivative of ``qfrc_bias``.

    They differ only for free bodies that carry no joint, which are solved apart.
    """
    modified = _modified_inertia(m, d)
    if not (m.fluid_boxes or m.fluid_ellipsoids):
        return modified, modified
    below, above = medium_rate(m, d, symmetric=True)
    lower = modified - m.timestep * below
    return lower, modified - m.timestep * above if m.lone_skew else lower


def _replace_lone(m: InsideModel, x: Tensor, lone: Components) -> Tensor:
    """Joint-space vectors ``[nv, B]`` with other values ``[6, nlone, B]`` for the bodies that carry no joint."""
    return x - m.lone_dof.T @ (m.lone_dof @ x) + m.lone_dof.T @ lone.stack().flatten(0, 1)


def _lone_blocks(m: InsideModel, d: InsideData, lower: Tensor, upper: Tensor) -> tuple[list[Components], ...]:
    """The four 3 x 3 blocks, by columns, of M - h D of each free body that carries no joint."""
    triangles = torch.cat((lower, upper)) if m.lone_skew else lower
    blocks = (m.lone_block @ triangles).unflatten(0, (4, 9, m.nlone))
    A, B, C, D = (_columns(block) for block in blocks)
    shift, turn = _lone_bias_rate(m, d)
    B = [b + m.timestep * x for b, x in zip(B, shift, strict=True)]
    D = [x + m.timestep * y for x, y in zip(D, turn, strict=True)]
    return A, B, C, D


def _mul_lone(m: InsideModel, d: InsideData, lower: Tensor, upper: Tensor, qacc: Tensor) -> Components:
    """Forces ``[6, nlone, B]`` on free bodies that carry no joint."""
    A, B, C, D = _lone_blocks(m, d, lower, upper)
    moving = (m.lone_dof @ qacc).unflatten(0, (6, m.nlone))
    slide, turn = moving[:3], moving[3:]
    return join(_product(A, slide) + _product(B, turn), _product(C, slide) + _product(D, turn))


def _solve_lone(m: InsideModel, d: InsideData, lower: Tensor, upper: Tensor, force: Tensor) -> Components:
    """Accelerations ``[6, nlone, B]`` of free bodies that carry no joint, by elimination of the translation."""
    A, B, C, D = _lone_blocks(m, d, lower, upper)
    pushed = (m.lone_dof @ force).unflatten(0, (6, m.nlone))
    # (A B; C D) (x; w) = (f; t):  w = (D - C A^-1 B)^-1 (t - C A^-1 f),  x = A^-1 (f - B w)
    *reduced, along = _solve3(A, [*B, pushed[:3]])
    schur = [x - _product(C, y) for x, y in zip(D, reduced, strict=True)]
    (spin,) = _solve3(schur, [pushed[3:] - _product(C, along)])
    return join(along - _product(reduced, spin), spin)


def _lone_bias_rate(m: InsideModel, d: InsideData) -> tuple[list[Components], list[Components]]:
    """Columns of d qfrc_bias / d qvel by the three turns of a free body: rows of its translation, of its turns.

    About the centre of mass the force is m o x (o x r) and the torque o x (I o), with o the angular velocity and r from
    the joint to the centre of mass. No column of the translation differs from zero.
    """
    inertia, velocity = m.lone_body @ d.crb, m.lone_body @ d.cvel
    mass = inertia[9]
    slide = (m.lone_slide @ d.qvel).unflatten(0, (3, m.nlone))
    o, drift = velocity[:3], velocity[3:] - slide  # o x r
    axes = (m.lone_turn @ d.cdof).unflatten(1, (3, m.nlone)).unbind(1)
    momentum = _rotational(inertia, o)
    shifts, torques = [], []
    for axis in axes:
        turn, arm = axis[:3], axis[3:]  # arm is turn x r
        shifts.append(mass * (cross(turn, drift) + cross(o, arm)))
        torques.append(cross(turn, momentum) + cross(o, _rotational(inertia, turn)))
    rows = [
        Components(dot(axis[:3], torque) + dot(axis[3:], shift) for axis in axes)
        for shift, torque in zip(shifts, torques, strict=True)
    ]
    return shifts, rows


def _rotational(inertia: Tensor, w: Tensor) -> Components:
    """Rotational inertia of ``cinert`` times a vector."""
    xx, yy, zz, xy, xz, yz = inertia[:6]
    wx, wy, wz = w
    return Components((xx * wx + xy * wy + xz * wz, xy * wx + yy * wy + yz * wz, xz * wx + yz * wy + zz * wz))


def _columns(block: Tensor) -> list[Components]:
    """Columns of row-major 3 x 3 matrices ``[9, ...]``."""
    return [Components((block[k], block[3 + k], block[6 + k])) for k in range(3)]


def _product(columns, x) -> Components:
    """Matrix, by its columns, times a vector."""
    return columns[0] * x[0] + columns[1] * x[1] + columns[2] * x[2]


def _solve3(columns, rights) -> list[Components]:
    """Solutions of 3 x 3 systems, by Cramer's rule; zero where the matrix is singular."""
    a, b, c = columns
    rows = cross(b, c), cross(c, a), cross(a, b)
    determinant = dot(a, rows[0])
    regular = determinant != 0
    inverse = torch.where(regular, 1.0 / torch.where(regular, determinant, 1.0), 0.0)
    return [Components(dot(row, right) * inverse for row in rows) for right in rights]
