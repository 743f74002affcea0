"""Rows of the constraint problem against MuJoCo C, row by row: equalities, friction losses, limits, contacts."""

import mujoco
import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import mujoco_torch as mjt
from mujoco_torch import testing

NWORLD = 4
GEOMETRY = 1e-8  # contact frames divide by short lengths
ROWS = ("nefc", "efc_J", "efc_pos", "efc_D", "efc_vel", "efc_aref")

BODIES = """
<mujoco model="{name}">
  <option timestep="0.002" {option}>{flag}</option>
  <worldbody>
    <site name="wall" pos="0.1 -0.2 0.9" euler="10 20 30"/>
    <body name="static" pos="0.3 0.1 0.5" euler="0 30 0"><site name="shelf" pos="0 0.1 0"/></body>
    <body name="arm" pos="0 0 1">
      <joint name="shoulder" type="ball" pos="0 0.02 0" damping="0.1"/>
      <geom type="capsule" size="0.03" fromto="0 0 0 0.4 0 0.02" contype="0" conaffinity="0"/>
      <site name="wrist" pos="0.4 0.01 0" euler="15 0 40"/>
      <body name="forearm" pos="0.4 0 0" euler="0 0 20">
        <joint name="elbow" axis="0 1 0.2" ref="5"/>
        <joint name="extend" type="slide" axis="1 0 0.1" ref="0.05"/>
        <geom type="capsule" size="0.03" fromto="0 0 0 0.3 0 0" contype="0" conaffinity="0"/>
        <site name="hand" pos="0.3 0 0.02" quat="0.7 0.1 -0.6 0.3"/>
      </body>
    </body>
    <body name="box" pos="0.5 0.3 1.2" quat="0.9 0.1 0.3 -0.2">
      <freejoint/>
      <geom type="box" size="0.1 0.08 0.05" pos="0.01 0 0.02" contype="0" conaffinity="0"/>
      <site name="handle" pos="-0.1 0 0.05" euler="20 -30 5"/>
      <body name="lid" pos="0 0.08 0.05">
        <joint name="lid" axis="1 0 0"/>
        <geom type="box" size="0.1 0.08 0.01" pos="0 -0.05 0.02" contype="0" conaffinity="0"/>
      </body>
    </body>
    <body name="crank" pos="1 0 1">
      <joint name="crank" axis="0 1 0"/>
      <geom type="capsule" size="0.02" fromto="0 0 0 0.2 0 0" contype="0" conaffinity="0"/>
      <body name="rod" pos="0.2 0 0">
        <joint name="rod" axis="0 1 0"/>
        <geom type="capsule" size="0.02" fromto="0 0 0 0.3 0 0" contype="0" conaffinity="0"/>
      </body>
    </body>
  </worldbody>
  {rest}
</mujoco>
"""

EQUALITIES = {
    "connect-bodies": '<connect body1="arm" body2="box" anchor="0.3 0.1 0"/>',
    "connect-to-world": '<connect body1="rod" anchor="0.3 0 0.01" solref="0.03 0.8" solimp="0.8 0.97 0.1 0.4 3"/>',
    "connect-sites": '<connect site1="hand" site2="handle" solref="-800 -30"/>',
    "connect-site-to-world": '<connect site1="wall" site2="handle"/>',
    "connect-within-a-tree": '<connect body1="forearm" body2="arm" anchor="0.1 0 0.3"/>',
    "weld-bodies": '<weld body1="box" body2="arm" anchor="0.05 0.1 0" torquescale="0.7"/>',
    "weld-with-relpose": '<weld body1="rod" body2="box" relpose="0.1 0.2 0.3 0.8 0.1 -0.4 0.2" anchor="0.1 0 0"/>',
    "weld-to-world": '<weld body1="box" torquescale="2"/>',
    "weld-sites": '<weld site1="wrist" site2="handle" torquescale="1.3" solimp="0.8 0.8 0.01"/>',
    "weld-within-a-tree": '<weld site1="hand" site2="wrist"/>',
    "joint-alone": '<joint joint1="elbow" polycoef="0.2 5 6 7 8"/>',
    "joint-pair": '<joint joint1="extend" joint2="elbow" polycoef="0.1 -0.7 0.3 0.2 -0.5" solref="0.04 1"/>',
    "joint-of-trees": '<joint joint1="crank" joint2="lid" polycoef="0 1.5 0 0 0" solimp="0.7 0.9 0.2 0.5 1"/>',
}

MIXED = "".join(
    EQUALITIES[name]
    for name in (
        "joint-pair", "weld-bodies", "connect-sites", "joint-alone", "weld-sites", "connect-to-world", "joint-of-trees",
        "weld-to-world",
    )
)  # fmt: skip


def bodies(rest: str, option: str = "", flag: str = "") -> mujoco.MjModel:
    return mujoco.MjModel.from_xml_string(BODIES.format(name="rows", rest=rest, option=option, flag=flag))


def states(mjm: mujoco.MjModel, seed: int = 3) -> list[mujoco.MjData]:
    return testing.perturbed_states(mjm, NWORLD, seed, settle=20)


def advanced(mjm: mujoco.MjModel, mjds: list[mujoco.MjData]) -> list[mujoco.MjData]:
    """The states with everything that C computes of position and velocity."""
    for mjd in mjds:
        mujoco.mj_fwdPosition(mjm, mjd)
        mujoco.mj_fwdVelocity(mjm, mjd)
    return mjds


def rows_report(
    mjm: mujoco.MjModel, mjds: list[mujoco.MjData], rtol: float = testing.SMOOTH
) -> testing.Report:
    """Rows made of C's poses and velocities, against C's rows."""
    m = mjt.put_model(mjm, dtype=torch.float64)
    given = mjt.put_data(m, advanced(mjm, mjds))
    return testing.compare(m, mjt.make_constraint(m, given), mjds, ROWS, rtol)


@pytest.mark.parametrize("name", EQUALITIES)
def test_one_equality(name: str) -> None:
    """Position, Jacobian, mass, velocity and reference (with J-dot v) of a single equality of each kind."""
    mjm = bodies(f"<equality>{EQUALITIES[name]}</equality>")
    mjds = states(mjm)
    for mjd in mjds:
        mjd.eq_active[:] = True
    report = rows_report(mjm, mjds)
    assert all(mjd.ne for mjd in mjds)
    report.raise_for_failures()


def test_equalities_of_all_kinds_go_by_id() -> None:
    mjm = bodies(f"<equality>{MIXED}</equality>")
    rows_report(mjm, states(mjm)).raise_for_failures()


def test_equalities_are_switched_world_by_world() -> None:
    """The same model and step: an equality that is off in a world has no row there, and takes part in no force."""
    mjm = bodies(f"<equality>{MIXED}</equality>")
    mjds = states(mjm)
    for world, mjd in enumerate(mjds):
        mjd.eq_active[:] = [(e + world) % 3 > 0 for e in range(mjm.neq)]
    mjds[3].eq_active[:] = False
    m = mjt.put_model(mjm, dtype=torch.float64)
    rows_report(mjm, mjds).raise_for_failures()
    d = mjt.make_constraint(m, mjt.put_data(m, advanced(mjm, mjds)))
    assert len({int(n) for n in d.nefc}) > 1
    assert d.nefc[3] == 0
    assert (d.efc_D[3] == 0).all()
    assert m.ne == d.efc_D.shape[1]


def test_an_equality_that_no_dof_moves_has_no_rows() -> None:
    mjm = bodies('<equality><weld body1="static"/><connect body1="static" anchor="0 0 1"/></equality>')
    assert mjt.put_model(mjm).ne == 0
    rows_report(mjm, states(mjm)).raise_for_failures()


@pytest.mark.parametrize("flag", ["equality", "frictionloss", "limit", "constraint", "refsafe"])
def test_disable_flags_of_rows(flag: str) -> None:
    mjm = mujoco.MjModel.from_xml_string(LOSSY.replace("{flag}", f'<flag {flag}="disable"/>'))
    rows_report(mjm, states(mjm)).raise_for_failures()


LOSSY = """
<mujoco model="lossy">
  <option timestep="0.004">{flag}</option>
  <worldbody>
    <site name="hook" pos="0.2 0.3 1.4"/>
    <geom name="bar" type="cylinder" size="0.05" fromto="-0.3 0.1 1.1 0.3 0.1 1.1" contype="0" conaffinity="0"/>
    <body name="base" pos="0 0 1">
      <freejoint/>
      <geom type="sphere" size="0.1" contype="0" conaffinity="0"/>
      <body name="arm">
        <joint name="shoulder" type="ball" frictionloss="0.3" range="0 20" limited="true" margin="0.1"
          solreffriction="0.05 0.7" solimpfriction="0.8 0.95 0.002 0.3 3"/>
        <geom type="capsule" size="0.03" fromto="0 0 0 0.3 0 0" contype="0" conaffinity="0"/>
        <site name="tip" pos="0.3 0 0"/>
        <body name="hand" pos="0.3 0 0">
          <joint name="hinge" axis="0 1 0" frictionloss="0.1" range="-5 5" limited="true"/>
          <joint name="slide" type="slide" axis="1 0 0" range="-0.01 0.02" limited="true" margin="0.05"
            solreflimit="-500 -10" frictionloss="0"/>
          <joint name="twist" axis="1 0 0" frictionloss="0.02" solreffriction="-1 -5" solimpfriction="0.9 0.9 0 0.5 2"/>
          <geom type="sphere" size="0.05" pos="0.05 0 0" contype="0" conaffinity="0"/>
          <site name="palm" pos="0.1 0.02 0"/>
        </body>
      </body>
    </body>
  </worldbody>
  <tendon>
    <fixed name="sum" limited="true" range="-0.1 0.05" margin="0.2" frictionloss="0.2">
      <joint joint="hinge" coef="1"/>
      <joint joint="slide" coef="-3"/>
    </fixed>
    <spatial name="cable" limited="true" range="0.2 0.4" solreflimit="0.03 0.9" solimplimit="0.8 0.9 0.1 0.5 1">
      <site site="hook"/>
      <geom geom="bar"/>
      <site site="tip"/>
      <site site="palm"/>
    </spatial>
    <spatial name="rope" frictionloss="0.4" solreffriction="0.1 1">
      <site site="hook"/>
      <site site="palm"/>
    </spatial>
    <fixed name="twin" limited="true" range="-0.02 0.3">
      <joint joint="twist" coef="0.5"/>
    </fixed>
  </tendon>
  <equality>
    <tendon tendon1="cable" polycoef="-0.1 1 2 3 4"/>
    <joint joint1="twist" joint2="hinge" polycoef="0 0.5 1 0 0"/>
    <tendon tendon1="rope" tendon2="sum" polycoef="0.1 -0.6 0.5 0.7 -0.2" solref="0.05 1.2"/>
    <tendon tendon1="twin" tendon2="cable" polycoef="0 0.3 0 0 0.1" active="false"/>
  </equality>
</mujoco>
"""


def test_friction_losses_limits_and_tendons() -> None:
    """Dof and tendon friction with their own solref and solimp; limits of joints, balls and tendons, with margins."""
    mjm = mujoco.MjModel.from_xml_string(LOSSY.replace("{flag}", ""))
    mjds = states(mjm)
    for mjd in mjds:
        mjd.qvel *= 0.3
    report = rows_report(mjm, mjds)
    kinds = {int(kind) for mjd in mjds for kind in mjd.efc_type}
    assert kinds == {
        mujoco.mjtConstraint.mjCNSTR_EQUALITY, mujoco.mjtConstraint.mjCNSTR_FRICTION_DOF,
        mujoco.mjtConstraint.mjCNSTR_FRICTION_TENDON, mujoco.mjtConstraint.mjCNSTR_LIMIT_JOINT,
        mujoco.mjtConstraint.mjCNSTR_LIMIT_TENDON,
    }  # fmt: skip
    report.raise_for_failures()


def test_both_sides_of_a_limit_may_be_active() -> None:
    """A margin wider than the range: two rows for a hinge and for a tendon."""
    mjm = mujoco.MjModel.from_xml_string(
        """<mujoco><worldbody><body><joint name="j" axis="0 1 0" range="-5 5" limited="true" margin="0.5"/>
        <geom size="0.1" pos="0.2 0 0"/></body></worldbody><tendon><fixed name="t" limited="true" range="-0.1 0.1"
        margin="0.4"><joint joint="j" coef="2"/></fixed></tendon></mujoco>"""
    )
    mjds = states(mjm)
    report = rows_report(mjm, mjds)
    assert max(mjd.nefc for mjd in mjds) == 4
    report.raise_for_failures()


def test_counts_of_row_slots() -> None:
    mjm = mujoco.MjModel.from_xml_string(LOSSY.replace("{flag}", ""))
    m = mjt.put_model(mjm)
    assert (m.ne, m.nf, m.nl) == (4, 5 + 2, 5 + 6)
    assert m.njmax == m.ne + m.nf + m.nl


HEAP = """
<mujoco model="heap">
  <option timestep="0.003" cone="{cone}" impratio="{impratio}"/>
  <worldbody>
    <geom name="floor" type="plane" size="3 3 0.1" solref="0.03 0.9" condim="1"/>
    <geom name="ramp" type="plane" size="2 2 0.1" pos="0.5 0 -0.1" euler="0 -15 0" margin="0.01"/>
    <body name="ball" pos="0 0 0.12">
      <freejoint/>
      <geom name="ball" type="sphere" size="0.1" condim="6" margin="0.02" gap="0.01" friction="0.8 0.02 0.003"/>
    </body>
    <body name="log" pos="0.05 0 0.3" euler="90 10 0">
      <freejoint/>
      <geom name="log" type="capsule" size="0.06 0.2" condim="4" priority="1" friction="0 0.01 0"/>
    </body>
    <body name="twin" pos="0.05 0.02 0.42" euler="90 12 0">
      <freejoint/>
      <geom name="twin" type="capsule" size="0.05 0.15" friction="1.2 0.01 0.001"/>
      <body name="knob" pos="0 0.09 0.1">
        <joint name="knob" axis="1 0 0" range="-40 40" limited="true" frictionloss="0.01"/>
        <geom name="knob" type="sphere" size="0.05" condim="1" solref="-500 -20"/>
      </body>
    </body>
    <body name="puck" pos="0.6 0.5 0.2">
      <freejoint/>
      <geom name="puck" type="sphere" size="0.1" friction="0.6 0.01 0.001"/>
    </body>
    <body name="ghost" pos="-0.1 0.1 0.1">
      <freejoint/>
      <geom name="ghost" type="sphere" size="0.1" contype="2" conaffinity="2"/>
    </body>
  </worldbody>
  <contact>
    <pair geom1="ghost" geom2="floor" condim="6" friction="0.5 0.7 0.01 0.002 0.003" margin="0.01"
      solreffriction="0.05 0.6"/>
    <pair geom1="log" geom2="ball" condim="3" friction="1 0.3 0.01 0.001 0.001" solref="0.05 1"
      solreffriction="-1 -8" gap="0.002"/>
    <pair geom1="twin" geom2="floor" condim="4" friction="0.9 0.3 0.01 0.001 0.001" solreffriction="0.001 1"/>
  </contact>
</mujoco>
"""


def heap(cone: str, impratio: float) -> mujoco.MjModel:
    mjm = mujoco.MjModel.from_xml_string(HEAP.format(cone=cone, impratio=impratio))
    return mjm


@pytest.mark.parametrize("impratio", [1, 5])
@pytest.mark.parametrize("cone", ["pyramidal", "elliptic"])
def test_contacts_of_mixed_dimensions(cone: str, impratio: float) -> None:
    """Condim 1, 3, 4 and 6 together, friction at its floor, impratio, and solreffriction of predefined pairs."""
    mjm = heap(cone, impratio)
    mjds = testing.perturbed_states(mjm, NWORLD, seed=1, settle=200)
    report = rows_report(mjm, mjds, GEOMETRY)
    dims = {
        int(dim)
        for mjd in mjds
        for dim, at in zip(mjd.contact.dim, mjd.contact.efc_address, strict=True)
        if at >= 0
    }
    assert dims == {1, 3, 4, 6}
    report.raise_for_failures()


@pytest.mark.parametrize("cone", ["pyramidal", "elliptic"])
@pytest.mark.parametrize("impratio", [1, 3])
def test_contacts_of_wheels(impratio: int, cone: str) -> None:
    """A body that turns about its centre of mass alone has no translational weight: R has its least value, as in C."""
    wheels = "".join(
        f'<body pos="{i} 0 .09"><joint axis="0 1 0"/><geom size=".1" friction="{mu}" condim="{condim}"/></body>'
        for i, (mu, condim) in enumerate([(1, 3), (0.3, 6), (1e-5, 4), (1, 1)])
    )
    mjm = mujoco.MjModel.from_xml_string(f"""
        <mujoco>
          <option impratio="{impratio}" cone="{cone}"/>
          <worldbody><geom type="plane" size="1 1 1" friction="1e-5"/>{wheels}</worldbody>
        </mujoco>""")
    assert (mjm.body_invweight0[:, 0] == 0).all()
    states = testing.perturbed_states(mjm, NWORLD, seed=0, settle=0)
    report = testing.stage_parity(mjm, "make_constraint", states)
    assert report["nefc"].ok and report["efc_D"].ok and report["efc_aref"].ok, report


@pytest.mark.parametrize("cone", ["pyramidal", "elliptic"])
def test_rows_of_c_keep_their_slots(cone: str) -> None:
    """put_data takes C's rows over, each into the slot that the same row has when it is made here."""
    mjm = heap(cone, 2)
    mjds = advanced(mjm, testing.perturbed_states(mjm, NWORLD, seed=1, settle=200))
    m = mjt.put_model(mjm, dtype=torch.float64)
    given = mjt.put_data(m, mjds)
    made = mjt.make_constraint(m, given)
    active = given.efc_D > 0
    assert (active == (made.efc_D > 0)).all()
    torch.testing.assert_close(made.efc_aref[active], given.efc_aref[active], rtol=1e-8, atol=1e-8)


def test_rows_of_c_keep_their_slots_in_tendons_and_equalities() -> None:
    mjm = mujoco.MjModel.from_xml_string(LOSSY.replace("{flag}", ""))
    mjds = advanced(mjm, states(mjm))
    m = mjt.put_model(mjm, dtype=torch.float64)
    given = mjt.put_data(m, mjds)
    made = mjt.make_constraint(m, given)
    active = given.efc_D > 0
    assert (active == (made.efc_D > 0)).all()
    torch.testing.assert_close(made.efc_pos[active], given.efc_pos[active], rtol=1e-10, atol=1e-10)


def moving_surfaces(cone: str) -> mujoco.MjModel:
    """Without friction at its floor: there a row's mass is 1e10 and a force no longer a number of many digits."""
    xml = HEAP.format(cone=cone, impratio=2).replace('friction="0 0.01 0"', 'friction="0.4 0.01 0.002"')
    for name, field in {
        "floor": "0.5 -0.3 0.2 0 0 2",
        "ramp": "0 1 0 0.4 0.1 -1",
        "ball": "0.1 0.2 0.3 3 2 1",
    }.items():
        xml = xml.replace(f'name="{name}" type', f'name="{name}" surfacevel="{field}" type')
    return mujoco.MjModel.from_xml_string(xml)


@pytest.mark.parametrize("cone", ["pyramidal", "elliptic"])
def test_moving_surfaces(cone: str) -> None:
    """Conveyors and turntables, on either side of a contact: velocity and reference of the friction rows."""
    mjm = moving_surfaces(cone)
    mjds = testing.perturbed_states(mjm, NWORLD, seed=1, settle=200)
    report = rows_report(mjm, mjds, GEOMETRY)
    assert max(np.abs(mjd.contact.surfacevel).max() for mjd in mjds if mjd.ncon) > 0.5
    report.raise_for_failures()


def lossy() -> mujoco.MjModel:
    return mujoco.MjModel.from_xml_string(LOSSY.replace("{flag}", ""))


def everything() -> mujoco.MjModel:
    """Equalities of every kind but tendons, on one model."""
    return bodies(f"<equality>{''.join(EQUALITIES.values())}</equality>")


@pytest.mark.parametrize("make", [everything, lossy])
def test_float32(make) -> None:
    mjm = make()
    mjds = advanced(mjm, states(mjm))
    m = mjt.put_model(mjm, dtype=torch.float32)
    d = mjt.make_constraint(m, mjt.put_data(m, mjds))
    testing.compare(m, d, mjds, ROWS, 1e-4).raise_for_failures()


def made_rows(m: mjt.Model, d: mjt.Data) -> mjt.Data:
    return mjt.fwd_velocity(m, mjt.fwd_position(m, d))


def row_values(d: mjt.Data) -> torch.Tensor:
    return torch.cat((d.efc_pos, d.efc_D * 1e-3, d.efc_vel, d.efc_aref * 1e-2), -1)


@pytest.mark.parametrize("make", [everything, lossy])
def test_gradients_are_those_of_finite_differences(make) -> None:
    """Of all row values by qpos and qvel, along random directions; states off the edges of the constraints."""
    mjm = make()
    m = mjt.put_model(mjm, dtype=torch.float64)
    d = mjt.put_data(m, states(mjm)[0])
    generator = torch.Generator().manual_seed(0)
    qpos, qvel = (torch.randn(x.shape, generator=generator, dtype=x.dtype) for x in (d.qpos, d.qvel))

    def along(t: torch.Tensor) -> torch.Tensor:
        return row_values(made_rows(m, d.replace(qpos=d.qpos + t * qpos, qvel=d.qvel + t * qvel)))

    zero = torch.zeros((), dtype=torch.float64)
    exact = torch.func.jacrev(along)(zero)
    step = torch.tensor(1e-6, dtype=torch.float64)
    approximate = (along(step) - along(-step)) / (2 * step)
    torch.testing.assert_close(exact, approximate, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    "name", ["connect-to-world", "weld-to-world", "weld-within-a-tree", "joint-pair", "connect-bodies"]
)
def test_gradients_are_finite_without_a_violation(name: str) -> None:
    """At qpos0 and at rest a connect is at distance zero and a weld at the identity."""
    mjm = bodies(f"<equality>{EQUALITIES[name]}</equality>")
    mjd = mujoco.MjData(mjm)
    mujoco.mj_forward(mjm, mjd)
    m = mjt.put_model(mjm, dtype=torch.float64)
    d = mjt.make_data(m, 2)
    qpos, qvel = d.qpos.clone().requires_grad_(), d.qvel.clone().requires_grad_()
    row_values(made_rows(m, d.replace(qpos=qpos, qvel=qvel))).sum().backward()
    assert qpos.grad.isfinite().all()
    assert qvel.grad.isfinite().all()


@pytest.mark.parametrize("make", [everything, lossy])
def test_compiled_and_mapped_rows_are_the_same(make) -> None:
    mjm = make()
    m = mjt.put_model(mjm, dtype=torch.float64)
    d = mjt.put_data(m, advanced(mjm, states(mjm)))
    eager = mjt.make_constraint(m, d)
    compiled = torch.compile(mjt.make_constraint, backend="aot_eager", fullgraph=True)(m, d)
    mapped = torch.vmap(lambda one: mjt.make_constraint(m, one))(d)
    for name in ("nefc", "efc_pos", "efc_D", "efc_vel", "efc_aref"):
        torch.testing.assert_close(getattr(compiled, name), getattr(eager, name))
        torch.testing.assert_close(getattr(mapped, name), getattr(eager, name))


class Counting(TorchDispatchMode):
    """Counts the operators that run."""

    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += 1
        return func(*args, **(kwargs or {}))


def operators(mjm: mujoco.MjModel) -> int:
    m = mjt.put_model(mjm, dtype=torch.float64)
    d = made_rows(m, mjt.make_data(m, 3))
    with Counting() as counting:
        mjt.make_constraint(m, d)
    return counting.count


def test_the_work_does_not_grow_with_the_number_of_equalities() -> None:
    """The step holds as many operators for five connects, welds and joint equalities as for one of each."""
    kinds = (EQUALITIES[name] for name in ("connect-bodies", "weld-sites", "joint-pair"))
    one = "".join(kinds)
    few, many = (operators(bodies(f"<equality>{one * count}</equality>")) for count in (1, 5))
    assert few == many


@pytest.mark.parametrize("make", [everything, lossy])
def test_forward_and_step(make) -> None:
    """Accelerations and forces of rows of every kind, with equalities on and off."""
    mjm = make()
    testing.stage_parity(mjm, "forward", states(mjm)).raise_for_failures()
    testing.stage_parity(mjm, "step", states(mjm)).raise_for_failures()


@pytest.mark.parametrize("name", EQUALITIES)
def test_forward_with_one_equality(name: str) -> None:
    mjm = bodies(f"<equality>{EQUALITIES[name]}</equality>")
    testing.stage_parity(mjm, "forward", states(mjm)).raise_for_failures()


@pytest.mark.parametrize("cone", ["pyramidal", "elliptic"])
def test_forward_on_moving_surfaces(cone: str) -> None:
    mjm = moving_surfaces(cone)
    mjds = testing.perturbed_states(mjm, NWORLD, seed=1, settle=200)
    testing.stage_parity(mjm, "forward", mjds).raise_for_failures()


def test_a_ball_limit_does_not_depend_on_the_sign_of_the_quaternion() -> None:
    mjm = lossy()
    m = mjt.put_model(mjm, dtype=torch.float64)
    d = mjt.put_data(m, states(mjm))
    start = int(mjm.jnt_qposadr[mjm.joint("shoulder").id])
    qpos = d.qpos.clone()
    qpos[:, start : start + 4] *= -1
    d, other = made_rows(m, d), made_rows(m, d.replace(qpos=qpos))
    torch.testing.assert_close(mjt.efc_jacobian(m, d), mjt.efc_jacobian(m, other))
    for name in ("efc_pos", "efc_D", "efc_aref"):
        torch.testing.assert_close(getattr(d, name), getattr(other, name))
