"""Fields of Data: order, shapes, types, memory, and what a step leaves alone."""

import ast
import inspect
import itertools
import textwrap

import mujoco
import numpy as np
import pytest
import torch
from mujoco.introspect import structs

import mujoco_torch as mjt
from mujoco_torch import testing
from mujoco_torch._src import layout
from mujoco_torch.testing.stages import with_integrator

NWORLD = 3


@pytest.fixture(scope="module", params=["hopper", "humanoid"])
def mjm(request: pytest.FixtureRequest) -> mujoco.MjModel:
    return mujoco.MjModel.from_xml_path(str(mjt.model_path(request.param)))


@pytest.fixture(scope="module")
def mjds(mjm: mujoco.MjModel) -> list[mujoco.MjData]:
    mjds = testing.perturbed_states(mjm, NWORLD, settle=50)
    for mjd in mjds:
        mujoco.mj_forward(mjm, mjd)
    return mjds


def names_of(cls: type) -> list[str]:
    return list(cls.__annotations__)


def names_in_c(struct: str) -> list[str]:
    return [field.name for field in structs.STRUCTS[struct].fields if hasattr(field, "name")]


def flat(d: mjt.Data) -> dict[str, torch.Tensor]:
    """Every tensor of Data by its name, those of contacts with ``contact_`` in front."""
    fields = {name: getattr(d, name) for name in names_of(mjt.Data) if name != "contact"}
    return fields | {f"contact_{name}": getattr(d.contact, name) for name in names_of(mjt.Contact)}


def documented_shapes(cls: type) -> dict[str, str]:
    """The shape in the docstring below every field, in the order of the source, ``(nworld, ...)``."""
    body = ast.parse(textwrap.dedent(inspect.getsource(cls))).body[0].body
    return {
        field.target.id: doc.value.value.split("``")[-2]
        for field, doc in itertools.pairwise(body)
        if isinstance(field, ast.AnnAssign) and isinstance(doc, ast.Expr)
    }


# --------------------------------------------------------------------------------------- declaration


@pytest.mark.parametrize(("cls", "struct"), [(mjt.Data, "mjData"), (mjt.Contact, "mjContact")])
def test_fields_are_in_the_order_of_c(cls: type, struct: str) -> None:
    theirs = names_in_c(struct)
    shared = [name for name in names_of(cls) if name in theirs]
    assert shared == [name for name in theirs if name in shared]


@pytest.mark.parametrize(("cls", "struct"), [(mjt.Data, "mjData"), (mjt.Contact, "mjContact")])
def test_own_fields_come_last(cls: type, struct: str) -> None:
    own = [name not in names_in_c(struct) for name in names_of(cls)]
    assert own == sorted(own)


def test_the_layout_lists_the_fields_of_data() -> None:
    contact = [f"contact_{name}" for name in names_of(mjt.Contact)]
    declared = [name for name in names_of(mjt.Data) if name != "contact"]
    assert sorted(layout.FIELDS) == sorted(declared + contact)
    assert [name for name in layout.FIELDS if name in declared] == declared
    assert [name for name in layout.FIELDS if name in contact] == contact


@pytest.mark.parametrize("cls", [mjt.Data, mjt.Contact])
def test_docstrings_state_the_shapes(cls: type) -> None:
    shapes = {name: shape for name, shape in documented_shapes(cls).items() if name != "contact"}
    assert list(shapes) == [name for name in names_of(cls) if name != "contact"]
    for name, shape in shapes.items():
        field = layout.FIELDS[name if cls is mjt.Data else f"contact_{name}"]
        expected = ", ".join(["nworld", *map(str, field.shape)])
        assert shape == (f"({expected})" if field.shape else "(nworld,)"), name


# ---------------------------------------------------------------------------------- shapes and types


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("nworld", [None, 1, NWORLD])
def test_shapes_and_types(mjm: mujoco.MjModel, nworld: int | None, dtype: torch.dtype) -> None:
    m = mjt.put_model(mjm, dtype=dtype)
    batch = () if nworld is None else (nworld,)
    made = mjt.make_data(m, nworld)
    one = mujoco.MjData(mjm)
    put = mjt.put_data(m, one if nworld is None else [one] * nworld)
    for d in (made, put, mjt.forward(m, made), mjt.step(m, made)):
        assert d.batch_size == batch
        assert d.contact.batch_size == batch
        for name, x in flat(d).items():
            field = layout.FIELDS[name]
            sizes = tuple(n if isinstance(n, int) else getattr(m, n) for n in field.shape)
            assert tuple(x.shape) == (*batch, *sizes), name
            assert x.dtype == (torch.int32 if field.integer else dtype), name


def test_shapes_are_those_of_c(mjm: mujoco.MjModel) -> None:
    """Matrices are 3x3; actuator_moment and ten_J are dense; contacts and rows have slots."""
    m = mjt.put_model(mjm)
    d, mjd = mjt.make_data(m), mujoco.MjData(mjm)
    own = {"actuator_moment", "ten_J", "solver_niter", "warning", "ncon", "nefc", "time"}
    for name, x in flat(d).items():
        if name not in own and not name.startswith(("efc_", "contact_")):
            assert x.numel() == getattr(mjd, name).size, name
            assert name.endswith("mat") or tuple(x.shape) == getattr(mjd, name).shape, name


# --------------------------------------------------------------------------------------------- memory


def assert_no_shared_memory(d: mjt.Data) -> None:
    """Fills one field after the other: none may change with another, none may hold an element twice."""
    fields = flat(d)
    for number, x in enumerate(fields.values()):
        x.fill_(number)
    for number, (name, x) in enumerate(fields.items()):
        assert (x == number).all(), f"{name} was overwritten"


@pytest.mark.parametrize("nworld", [None, 1, NWORLD])
@pytest.mark.parametrize("source", ["make_data", "put_data", "forward", "step"])
def test_no_two_fields_share_memory(
    mjm: mujoco.MjModel, mjds: list[mujoco.MjData], nworld: int | None, source: str
) -> None:
    """Nor does a field share any with the model, the given MjData or, of a step, the given Data.

    (The other stages hand on the fields that they do not write.)
    """
    m = mjt.put_model(mjm, dtype=torch.float64)
    params, qpos = m.params.clone(), [mjd.qpos.copy() for mjd in mjds]
    given = mjt.put_data(m, mjds[0] if nworld is None else mjds[:nworld])
    before = given.clone()
    made = {
        "make_data": lambda: mjt.make_data(m, nworld),
        "put_data": lambda: mjt.put_data(m, mjds[0] if nworld is None else mjds[:nworld]),
        "forward": lambda: mjt.forward(m, given),
        "step": lambda: mjt.step(m, given),
    }[source]()
    assert_no_shared_memory(made)
    if source != "forward":
        assert (given == before).all()
    assert torch.equal(m.params, params)
    for mjd, was in zip(mjds, qpos, strict=True):
        np.testing.assert_array_equal(mjd.qpos, was)


STAGES = [name for name in testing.STAGES if name not in ("forward", "step")]


@pytest.mark.parametrize("stage", [*STAGES, "forward", "step"])
def test_a_stage_changes_neither_its_input_nor_the_model(
    mjm: mujoco.MjModel, mjds: list[mujoco.MjData], stage: str
) -> None:
    m = mjt.put_model(with_integrator(mjm, testing.STAGES[stage]), dtype=torch.float64)
    d = mjt.forward(m, mjt.put_data(m, mjds))
    before, params = d.clone(), m.params.clone()
    getattr(mjt, stage)(m, d)
    for name, x in flat(d).items():
        assert torch.equal(x, flat(before)[name]), name
    assert torch.equal(m.params, params)


def test_state_is_contiguous_wherever_it_comes_from(mjm: mujoco.MjModel, mjds: list[mujoco.MjData]) -> None:
    """Equal strides are what keeps a compiled step from compiling again."""
    m = mjt.put_model(mjm, dtype=torch.float64)
    made = mjt.make_data(m, NWORLD)
    sources = {
        "make_data": made,
        "put_data": mjt.put_data(m, mjds),
        "forward": mjt.forward(m, made),
        "step": mjt.step(m, made),
        "stack": torch.stack([mjt.make_data(m)] * NWORLD),
        "where": torch.where(torch.arange(NWORLD) % 2 == 0, made, mjt.step(m, made)),
    }
    for source, d in sources.items():
        for name in layout.STATE:
            assert flat(d)[name].is_contiguous(), (source, name)
            if flat(d)[name].numel():
                assert flat(d)[name].stride() == flat(made)[name].stride(), (source, name)


# ------------------------------------------------------------------------------------------- borders


@pytest.mark.parametrize(
    ("name", "items", "inside"),
    [
        ("qpos", (5,), (5, NWORLD)), ("time", (), (NWORLD,)), ("M", (4, 4), (4, 4, NWORLD)),
        ("xpos", (5, 3), (3, 5, NWORLD)), ("xmat", (5, 3, 3), (9, 5, NWORLD)),
    ],
)  # fmt: skip
def test_the_border_of_layouts(name: str, items: tuple[int, ...], inside: tuple[int, ...]) -> None:
    """Inside is components, items, worlds; there and back is the same memory."""
    field = layout.FIELDS[name]
    public = torch.arange(float(NWORLD * int(np.prod(items)))).reshape(NWORLD, *items)
    crossed = layout.to_inside(field, public)
    assert crossed.shape == inside
    assert crossed.data_ptr() == public.data_ptr()
    back = layout.to_public(field, crossed)
    assert torch.equal(back, public)
    if name == "xmat":  # row-major
        assert torch.equal(crossed[3 * 1 + 2, :, 0], public[0, :, 1, 2])
