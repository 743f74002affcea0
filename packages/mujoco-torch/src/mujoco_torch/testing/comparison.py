"""Errors of a Data against MuJoCo C, field by field."""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence

import mujoco
import numpy as np
import torch

import mujoco_torch as mjt
from mujoco_torch.testing.fields import (
    COMPONENT_FLOOR,
    ENTRYWISE,
    FIELDS,
    GEOMETRY,
    SCALE_FLOOR,
    SMOOTH,
    SOLVED,
    SOLVED_FIELDS,
)
from mujoco_torch.testing.reference import reference_value


@dataclasses.dataclass(frozen=True)
class FieldError:
    """The worst entry of one field.

    Attributes:
      field: name, ``contact.`` in front of a contact's.
      error: error relative to the field's scale; infinite where shapes or integers differ or ours is not
        finite.
      rtol: the error allowed.
      world: index of the world of the worst entry.
      index: index of the entry inside that world's field.
      ours: value of the entry.
      reference: C's value of it.
    """

    field: str
    error: float
    rtol: float
    world: int = 0
    index: tuple[int, ...] = ()
    ours: float | str = 0.0
    reference: float | str = 0.0

    @property
    def ok(self) -> bool:
        """True if the error is within the tolerance."""
        return self.error <= self.rtol

    def __str__(self) -> str:
        verdict = f"{'ok  ' if self.ok else 'FAIL'} {self.field:<24} {self.error:9.2e} (<= {self.rtol:.0e})"
        return f"{verdict}  world {self.world} {list(self.index)}: {self.ours} / C {self.reference}"


@dataclasses.dataclass(frozen=True)
class Report:
    """Worst relative error per field, in the order compared."""

    errors: tuple[FieldError, ...]
    title: str = ""

    @property
    def ok(self) -> bool:
        """True if every field is within its tolerance."""
        return all(error.ok for error in self.errors)

    @property
    def failures(self) -> tuple[FieldError, ...]:
        """The fields out of tolerance."""
        return tuple(error for error in self.errors if not error.ok)

    @property
    def worst(self) -> float:
        """Largest relative error of all fields, 0 where none was compared."""
        return max((error.error for error in self.errors), default=0.0)

    def __getitem__(self, field: str) -> FieldError:
        return next(error for error in self.errors if error.field == field)

    def __str__(self) -> str:
        return "\n".join([self.title or "parity with MuJoCo C", *map(str, self.errors)])

    def raise_for_failures(self) -> None:
        """Raises AssertionError that lists every field out of tolerance, in pipeline order."""
        if not self.ok:
            raise AssertionError(str(dataclasses.replace(self, errors=self.failures)))


def compare(
    m: mjt.Model,
    d: mjt.Data,
    mjds: mujoco.MjData | Sequence[mujoco.MjData],
    fields: Iterable[str] = FIELDS,
    rtol: float | Mapping[str, float] | None = None,
) -> Report:
    """Compares `d` with one MjData per world.

    Args:
      m: our model.
      d: our data, batch size (nworld,), or () with a single MjData.
      mjds: C's data of the worlds, as left by the C function to compare with.
      fields: names to compare, of `FIELDS`.
      rtol: one tolerance, a table of them by field, or None for the module's SMOOTH, GEOMETRY and SOLVED.
        A field the table lacks takes the module's.

    Raises:
      ValueError: the number of worlds differs.
      AttributeError: an unknown field.
    """
    single = isinstance(mjds, mujoco.MjData)
    references = [mjds] if single else list(mjds)
    batch = () if single else (len(references),)
    if tuple(d.batch_size) != batch:
        raise ValueError(f"data has batch size {tuple(d.batch_size)}, the MjData given make {batch}")
    errors = []
    for name in fields:
        ours = worlds_of(m, d, name, single)
        theirs = [reference_value(reference.model, reference, name) for reference in references]
        if name == "efc_force":
            ours, theirs = _known_forces(ours, theirs, references)
        errors.append(_field_error(name, ours, theirs, _tolerance(name, rtol), _cancelling(name, references)))
    return Report(tuple(errors))


#: Constraint mass of a row that no joint moves, at C's bound: its force is this times a rounding error.
_UNMOVED = 1e14


def _known_forces(
    ours: list[np.ndarray], theirs: list[np.ndarray], references: Sequence[mujoco.MjData]
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """The forces without those of rows that no joint moves, where both have the same rows."""
    moved = [np.asarray(mjd.efc_D) < _UNMOVED for mjd in references]
    if any(x.shape != mask.shape for x, mask in zip(ours, moved, strict=True)):
        return ours, theirs

    def keep(forces: list[np.ndarray]) -> list[np.ndarray]:
        return [np.where(mask, x, 0.0) for x, mask in zip(forces, moved, strict=True)]

    return keep(ours), keep(theirs)


def worlds_of(m: mjt.Model, d: mjt.Data, name: str, single: bool) -> list[np.ndarray]:
    """Our value of a field for every world; of rows and contacts only the active ones."""

    def worlds(x: torch.Tensor) -> list[np.ndarray]:
        x = x.detach().cpu()
        return list((x.unsqueeze(0) if single else x).numpy())

    if name.startswith("contact."):
        active = [np.isfinite(dist) for dist in worlds(d.contact.dist)]
        name = name.removeprefix("contact.")
        slots = (
            [_static_slots(m, name)] * len(active) if name in _STATIC else worlds(getattr(d.contact, name))
        )
        return [slot[mask] for slot, mask in zip(slots, active, strict=True)]
    values = worlds(mjt.efc_jacobian(m, d) if name == "efc_J" else getattr(d, name))
    if name.startswith("efc_"):
        values = [value[mass > 0] for value, mass in zip(values, worlds(d.efc_D), strict=True)]
    return values


#: What of a contact does not change with the state: the model's name for it, its shape per slot.
_STATIC: dict[str, tuple[str, tuple[int, ...]]] = {
    "geom": ("contact_geom", (2,)),
    "dim": ("contact_dim", ()),
    "includemargin": ("contact_margin", ()),
    "friction": ("contact_friction", (5,)),
}


def _static_slots(m: mjt.Model, name: str) -> np.ndarray:
    attribute, shape = _STATIC[name]
    value = getattr(m, attribute)
    if isinstance(value, torch.Tensor):
        value = value[..., 0].detach().cpu().numpy().T
    return np.reshape(value, (m.nconmax, *shape))


def _tolerance(name: str, rtol: float | Mapping[str, float] | None) -> float:
    if isinstance(rtol, (int, float)):
        return float(rtol)
    if rtol is not None and name in rtol:
        return rtol[name]
    if name in SOLVED_FIELDS:
        return SOLVED
    return GEOMETRY if name.startswith(("contact.", "efc_")) else SMOOTH


def _cancelling(name: str, references: Sequence[mujoco.MjData]) -> float:
    """Magnitude of what may cancel in a field: in the bias force of a balanced body its weight."""
    if name != "qfrc_bias":
        return 0.0
    models = [mjd.model for mjd in references]
    return max(mjm.body_mass.sum() * np.linalg.norm(mjm.opt.gravity) for mjm in models)


def _field_error(
    name: str,
    ours: Sequence[np.ndarray],
    references: Sequence[np.ndarray],
    rtol: float,
    cancelling: float = 0.0,
) -> FieldError:
    for world, (mine, reference) in enumerate(zip(ours, references, strict=True)):
        if mine.shape != reference.shape:
            shapes = f"shape {mine.shape}", f"shape {reference.shape}"
            return FieldError(name, float("inf"), rtol, world, (), *shapes)
    if not sum(reference.size for reference in references):
        return FieldError(name, 0.0, rtol)
    scale = _scale(name, references, cancelling)
    worst = FieldError(name, -1.0, rtol)
    for world, (mine, reference) in enumerate(zip(ours, references, strict=True)):
        if reference.size:
            worst = max(worst, worst_entry(name, world, mine, reference, scale, rtol), key=lambda e: e.error)
    return worst


def _scale(name: str, references: Sequence[np.ndarray], cancelling: float) -> np.ndarray | float | None:
    """Scale of a field, per component if it has several; None for entry-wise and integer fields."""
    if name in ENTRYWISE or not np.issubdtype(references[0].dtype, np.floating):
        return None
    magnitudes = [np.abs(reference) for reference in references if reference.size]
    whole = max(cancelling, *(magnitude.max() for magnitude in magnitudes))
    if references[0].ndim < 2:
        return max(whole, SCALE_FLOOR)
    component = np.max(
        [magnitude.reshape(-1, magnitude.shape[-1]).max(axis=0) for magnitude in magnitudes], axis=0
    )
    return np.maximum(component, max(COMPONENT_FLOOR * whole, SCALE_FLOOR))


def worst_entry(
    name: str,
    world: int,
    ours: np.ndarray,
    reference: np.ndarray,
    scale: np.ndarray | float | None,
    rtol: float,
) -> FieldError:
    """The entry of one world with the largest error, as a FieldError."""
    if np.issubdtype(reference.dtype, np.floating):
        divisor = np.maximum(np.abs(reference), np.finfo(float).tiny) if scale is None else scale
        error = np.abs(ours.astype(np.float64) - reference) / divisor
        error = np.where(np.isfinite(error), error, np.inf)
    else:
        error = np.where(ours == reference, 0.0, np.inf)
    index = np.unravel_index(np.argmax(error), error.shape)
    place = tuple(int(i) for i in index)
    return FieldError(
        name, float(error[index]), rtol, world, place, ours[index].item(), reference[index].item()
    )
