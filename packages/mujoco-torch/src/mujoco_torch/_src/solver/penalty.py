"""What rows and friction cones cost, and their forces, worlds last, in plain torch.

A row of residual r = J a - aref and weight D costs 1/2 D p^2 + D p (r - p), with p the residual within the bounds of
its force -D p: none for an equality, the friction loss on both sides, no pulling for a limit or the edge of a pyramid.

A contact with an elliptic cone has a residual per axis. Scaled, z = (mu r_0, friction_1 r_1, ...) = (N, U), the cone is
circular, and the cost is c/2 |p|^2 of the vector p: z itself where the contact sticks (mu N + |U| <= 0, "bottom"), zero
where it is open (N >= mu |U|, "top"), else ("middle") the part of z along the cone's side. c = D_0 / mu^2; the weights
of the other rows are those that make the cost smooth: D_k = c friction_k^2.

Source: MuJoCo documentation, "Computation", sections "Friction cones" and "Reduced formulation"; engine_solver.c for
which zone a border belongs to.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from .system import System


class Penalty(NamedTuple):
    """The cost of rows as a function of their residuals (nefc, B).

    weight (nefc, B): D of a row by itself, zero in the rows of cones.
    bound (nf, B): residual at which a friction row has its largest force.
    stiffness (ncone, B), friction (axes, ncone, B): c, and mu and friction, of each cone.
    """

    system: System
    weight: Tensor
    bound: Tensor
    stiffness: Tensor
    friction: Tensor

    @property
    def constrained(self) -> Tensor:
        """Where any row is active (B,)."""
        return (self.weight != 0).any(0) | (self.stiffness != 0).any(0)

    def take(self, index: Tensor) -> "Penalty":
        """Of some worlds."""
        values = (self.weight, self.bound, self.stiffness, self.friction)
        return Penalty(self.system, *(x.index_select(-1, index) for x in values))

    def force(self, residual: Tensor) -> Tensor:
        """Forces (nefc, B) of the rows: minus the derivative of the cost."""
        parts = []
        equality, friction, push = self._split(self.weight)
        r_equality, r_friction, r_push = self._split(residual)
        if self.system.ne:
            parts.append(-equality * r_equality)
        if self.system.nf:
            parts.append(-friction * r_friction.clamp(-self.bound, self.bound))
        if len(push):
            parts.append(torch.where(push != 0, -push * _negative(r_push), 0.0))
        plain = _joined(parts, residual)
        if not self.system.cones:
            return plain
        return plain - self._from_cones(self.stiffness * self._cone(residual).projection)

    def cost_above(self, start: Tensor, residual: Tensor) -> Tensor:
        """Cost (B,) above that of other residuals, summed row by row, so float32 keeps its digits."""
        total = residual.new_zeros(residual.shape[-1])
        equality, friction, push = self._split(self.weight)
        for weight, bound, r0, r in zip(
            (equality, friction, push),
            (None, self.bound, 0),
            self._split(start),
            self._split(residual),
            strict=True,
        ):
            if not len(weight):
                continue
            if bound is None:
                change = 0.5 * (r - r0) * (r + r0)
            elif bound is self.bound:
                p0, p = r0.clamp(-bound, bound), r.clamp(-bound, bound)
                change = 0.5 * (p - p0) * (p + p0) + p * (r - p) - p0 * (r0 - p0)
            else:
                p0, p = _negative(r0), _negative(r)
                change = 0.5 * (p - p0) * (p + p0)
            total = total + (weight * change).sum(0)
        if self.system.cones:
            p0, p = self._cone(start).projection, self._cone(residual).projection
            total = total + 0.5 * (self.stiffness * (p - p0) * (p + p0)).sum((0, 1))
        return total

    def cost(self, residual: Tensor) -> Tensor:
        """Cost (B,) of all rows."""
        return self.cost_above(torch.zeros_like(residual), residual)

    def stiff(self, residual: Tensor) -> Tensor:
        """Second derivative (nefc, B) of the cost of each row by itself."""
        equality, friction, push = self._split(self.weight)
        _, r_friction, r_push = self._split(residual)
        parts = [equality] if self.system.ne else []
        if self.system.nf:
            parts.append(torch.where(r_friction.abs() < self.bound, friction, 0.0))
        if len(push):
            parts.append(torch.where(r_push < 0, push, 0.0))
        return _joined(parts, residual)

    def stiffen(self, residual: Tensor, rate: Tensor) -> Tensor:
        """The second derivative of the cost times a change (nefc, B) of the residuals."""
        plain = self.stiff(residual) * rate
        if not self.system.cones:
            return plain
        cone, v = self._cone(residual), self._to_cones(rate)
        along = (cone.unit * v[1:]).sum(0)
        lead = v[0] - cone.turned * cone.mu * along
        side = v[1:] - cone.turned * cone.unit * along
        normal, tangent = self._cone_weights(cone)
        across = normal * lead
        bent = tangent * side - cone.turned * cone.mu * cone.unit * across
        return plain + self._from_cones(torch.cat((across.unsqueeze(0), bent)))

    def hessian_rows(self, jac: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
        """Rows (n, nv, B) and weights (n, B) with the second derivative of the cost: J' diag(w) J over them.

        The block of a cone is the sum of a row along the cone's side, and of rows across it.
        """
        plain = self.stiff(residual)
        if not self.system.cones:
            return jac, plain
        cone = self._cone(residual)
        units = self._to_cones(jac.transpose(0, 1)).transpose(1, 2)  # (axes, ncone, nv, B)
        along = (cone.unit.unsqueeze(2) * units[1:]).sum(0)
        turned = cone.turned.unsqueeze(1)
        lead = units[0] - turned * cone.mu.unsqueeze(1) * along
        side = units[1:] - turned * cone.unit.unsqueeze(2) * along
        normal, tangent = self._cone_weights(cone)
        rows = torch.cat((lead.unsqueeze(0), side)).flatten(0, 1)
        weights = torch.cat((normal.unsqueeze(0), tangent.expand_as(cone.unit))).flatten(0, 1)
        return torch.cat((jac, rows)), torch.cat((plain, weights))

    def _split(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Equalities, friction losses, and what only pushes."""
        ne, nf = self.system.ne, self.system.nf
        return x[:ne], x[ne : ne + nf], x[ne + nf :]

    def _to_cones(self, rows: Tensor) -> Tensor:
        """Scaled values (axes, ..., ncone, B) of cones, of those (..., nefc, B) of rows."""
        values = (self.system.cone_rows @ rows).unflatten(-2, (self.system.axes, self.system.cones))
        values = values.movedim(-3, 0)
        friction = self.friction
        for _ in range(values.dim() - friction.dim()):
            friction = friction.unsqueeze(1)
        return friction * values

    def _from_cones(self, values: Tensor) -> Tensor:
        """Values (nefc, B) of rows, of scaled ones (axes, ncone, B) of cones."""
        return self.system.cone_rows.T @ (self.friction * values).flatten(0, 1)

    def _cone(self, residual: Tensor) -> "Cone":
        z = self._to_cones(residual)
        N, U, mu = z[0], z[1:], self.friction[0]
        square = (U * U).sum(0)
        slides = square > 0
        T = torch.where(slides, torch.where(slides, square, 1.0).sqrt(), 0.0)
        unit = U / torch.where(slides, T, 1.0)
        top, bottom = mu * T <= N, mu * N + T <= 0
        middle = ~(top | bottom)
        slip = (N - mu * T) / (1 + mu * mu)
        side = slip * torch.cat((torch.ones_like(mu).unsqueeze(0), -mu * unit))
        projection = torch.where(middle, side, torch.where(bottom & ~top, z, 0.0))
        bend = torch.where(
            middle, -mu * slip / torch.where(slides, T, 1.0), torch.where(bottom & ~top, 1.0, 0.0)
        )
        press = torch.where(middle, 1 / (1 + mu * mu), torch.where(bottom & ~top, 1.0, 0.0))
        return Cone(projection, unit, mu, middle.to(z.dtype), press, bend)

    def _cone_weights(self, cone: "Cone") -> tuple[Tensor, Tensor]:
        return self.stiffness * cone.press, self.stiffness * cone.bend


class Cone(NamedTuple):
    """Where the scaled residual of each cone is, each (ncone, B) but projection and unit with components first.

    projection: the vector p. unit: direction of slipping. turned: 1 in the middle zone, else 0. press, bend: second
    derivatives of |p|^2 / 2 along the cone's side and across it.
    """

    projection: Tensor
    unit: Tensor
    mu: Tensor
    turned: Tensor
    press: Tensor
    bend: Tensor


def make_penalty(system: System, D: Tensor, frictionloss: Tensor, cone_friction: Tensor) -> Penalty:
    """The cost of rows with weight D (nefc, B), friction loss (nf, 1) and cone friction (axes, ncon, 1)."""
    held = D[system.ne : system.ne + system.nf]
    bound = torch.where(held > 0, frictionloss / torch.where(held > 0, held, 1.0), 0.0) if system.nf else held
    weight, stiffness, friction = D, D[:0], D[:0].unsqueeze(0)
    if system.cones:
        friction = (system.cone_contacts @ cone_friction).expand(-1, -1, D.shape[-1])
        first = (system.cone_rows @ D).unflatten(0, (system.axes, system.cones))[0]
        stiffness = first / friction[0] ** 2
        weight = D * (1 - system.cone_rows.T @ torch.ones_like(friction).flatten(0, 1))
    return Penalty(system, weight, bound, stiffness, friction)


def row_force(
    system: System, D: Tensor, residual: Tensor, frictionloss: Tensor, cone_friction: Tensor
) -> Tensor:
    """Forces (nefc, B) of all rows of weight D at the residuals J qacc - aref (``efc_force``)."""
    return make_penalty(system, D, frictionloss, cone_friction).force(residual)


def _joined(parts: list[Tensor], like: Tensor) -> Tensor:
    if not parts:
        return torch.zeros_like(like)
    return torch.cat(parts) if len(parts) > 1 else parts[0]


def _negative(x: Tensor) -> Tensor:
    return torch.where(x < 0, x, 0)
