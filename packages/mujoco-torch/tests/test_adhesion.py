"""Adhesion of geoms and geom pairs against MuJoCo C: which contacts have it, what it pulls, what it does to rows."""

import copy
import functools

import mujoco
import numpy as np
import pytest
import torch

import mujoco_torch as mjt
from mujoco_torch import testing

NWORLD = 4
CONES = ("pyramidal", "elliptic")

HEAP = """
<mujoco model="sticky heap">
  <option timestep="0.002" cone="{cone}" impratio="{impratio}" {option}><flag {flag}/></option>
  <worldbody>
    <geom name="floor" type="plane" size="3 3 0.1" adhesion="0.5" {floor}/>
    <geom name="ramp" type="plane" size="2 2 0.1" pos="0.5 0 -0.1" euler="0 -15 0" margin="0.01" condim="1"/>
    <body name="ball" pos="0 0 0.12">
      <freejoint/>
      <geom name="ball" type="sphere" size="0.1" condim="6" margin="0.02" gap="0.03" adhesion="8"
        friction="0.8 0.02 0.003"/>
    </body>
    <body name="log" pos="0.2 0 0.17" euler="65 10 0">
      <freejoint/>
      <geom name="log" type="capsule" size="0.06 0.2" condim="4" priority="1" friction="0.4 0.01 0" adhesion="3"
        gap="0.15"/>
    </body>
    <body name="twin" pos="0.05 0.02 0.42" euler="90 12 0">
      <freejoint/>
      <geom name="twin" type="capsule" size="0.05 0.15" friction="1.2 0.01 0.001" adhesion="-0.5" gap="0.1"/>
      <body name="knob" pos="0 0.09 0.1">
        <joint name="knob" axis="1 0 0" range="-40 40" limited="true" frictionloss="0.01"/>
        <geom name="knob" type="sphere" size="0.05" condim="1" gap="0.05" adhesion="2"/>
        <body name="cap" pos="0.05 0 0.02">
          <joint name="cap" axis="0 1 0"/>
          <geom name="cap" type="sphere" size="0.04" adhesion="1"/>
        </body>
      </body>
    </body>
    <body name="puck" pos="0.6 0.5 0.13">
      <freejoint/>
      <geom name="puck" type="sphere" size="0.1" priority="2" condim="4" adhesion="1"/>
    </body>
    <body name="magnet" pos="-0.3 0.1 0.2" mocap="true">
      <geom name="magnet" type="sphere" size="0.1" adhesion="20" gap="0.2" priority="3" condim="3"/>
    </body>
  </worldbody>
  <contact>
    <pair geom1="log" geom2="floor" condim="6" friction="0.5 0.7 0.01 0.002 0.003" adhesion="1.5" gap="0.25"/>
    <pair geom1="twin" geom2="floor" condim="4" friction="0.9 0.3 0.01 0.001 0.001" margin="0.05" gap="0.1"
      adhesion="4"/>
    <pair geom1="log" geom2="twin" condim="1" gap="0.1" adhesion="2"/>
    <pair geom1="twin" geom2="cap" condim="3" adhesion="6" gap="0.2"/>
    <pair geom1="knob" geom2="floor" condim="3" margin="0.01" gap="0.1"/>
  </contact>
  <actuator>
    <adhesion body="log" gain="3" ctrlrange="0 1"/>
    <adhesion body="world" gain="2" ctrlrange="0 1"/>
    <adhesion body="twin" gain="2" ctrlrange="0 1"/>
  </actuator>
</mujoco>
"""

BALL = """
<mujoco>
  <option {option}><flag {flag}/></option>
  <worldbody>
    <geom name="floor" type="plane" size="3 3 0.1" {floor}/>
    <body name="ball" pos="0 0 {z}"><freejoint/><geom name="ball" size="0.25" {ball}/></body>
  </worldbody>
  {more}
</mujoco>
"""


@functools.cache
def heap(
    cone: str = "pyramidal", impratio: float = 1, option: str = "", flag: str = "", floor: str = ""
) -> mujoco.MjModel:
    text = HEAP.format(cone=cone, impratio=impratio, option=option, flag=flag, floor=floor)
    return mujoco.MjModel.from_xml_string(text)


@functools.cache
def states(mjm: mujoco.MjModel) -> list[mujoco.MjData]:
    return testing.perturbed_states(mjm, NWORLD, seed=5, settle=60, scale=0.5)


def ball(z: float = 0.249, **parts: str) -> mujoco.MjModel:
    return mujoco.MjModel.from_xml_string(
        BALL.format(z=z, **dict(option="", flag="", floor="", ball="", more="") | parts)
    )


def same_forward(mjm: mujoco.MjModel, mjds: list[mujoco.MjData] | None = None) -> list[mujoco.MjData]:
    """Check `forward` against C on the given states, or on worlds of different velocities; return C's results."""
    mjds = moving(mjm) if mjds is None else mjds
    testing.stage_parity(mjm, "forward", mjds).raise_for_failures()
    done = [testing.states.copy_state(mjm, mjd) for mjd in mjds]
    for mjd in done:
        mujoco.mj_forward(mjm, mjd)
    return done


def moving(mjm: mujoco.MjModel) -> list[mujoco.MjData]:
    """Worlds at qpos0 that move in different ways, the first not at all."""
    rng = np.random.default_rng(0)
    mjds = [mujoco.MjData(mjm) for _ in range(NWORLD)]
    for mjd in mjds[1:]:
        mjd.qvel = 0.5 * rng.standard_normal(mjm.nv)
    return mjds


@pytest.mark.parametrize("impratio", [1, 4])
@pytest.mark.parametrize("cone", CONES)
def test_everything_that_forward_computes(cone: str, impratio: float) -> None:
    """Condim 1, 3, 4 and 6, on both sides of the margin; contacts in a tree, of two, of a mocap body."""
    mjm = heap(cone, impratio)
    done = same_forward(mjm, states(mjm))
    contacts = [c for mjd in done for c in mjd.contact if c.adhesion]
    assert {int(c.dim) for c in contacts if c.dist < c.includemargin} == {1, 3, 4, 6}
    assert sum(c.dist > c.includemargin for c in contacts) > NWORLD
    assert {float(c.adhesion) for c in contacts} >= {1.5, 3, 6, 20}
    mixed = [
        {c.dist < c.includemargin for c in mjd.contact if tuple(c.geom) == geoms}
        for mjd in done
        for geoms in {tuple(c.geom) for c in mjd.contact}
    ]
    assert {True, False} in mixed  # one contact of a pair is in the gap, the other is not
    assert all(np.abs(mjd.qfrc_adhesion).max() > 1 for mjd in done)


@pytest.mark.parametrize("cone", CONES)
@pytest.mark.parametrize("integrator", ["Euler", "implicitfast", "RK4"])
def test_a_step(cone: str, integrator: str) -> None:
    mjm = heap(cone, 2, option=f'integrator="{integrator}"')
    testing.stage_parity(mjm, "step", states(mjm)).raise_for_failures()


@pytest.mark.parametrize("stage", ["collision", "passive", "make_constraint", "solve", "transmission"])
def test_stages_with_what_c_computed_before(stage: str) -> None:
    """Each stage on C's contacts, so every contact is put into the slot that the stage takes for it."""
    mjm = heap("elliptic", 2)
    testing.stage_parity(mjm, stage, states(mjm)).raise_for_failures()


@pytest.mark.parametrize("cone", CONES)
def test_moving_surfaces_that_stick(cone: str) -> None:
    """A contact in the gap has no friction, and is not carried along by the surface."""
    mjm = heap(cone, 2, floor='surfacevel="0.5 -0.3 0.2 0 0 2"')
    same_forward(mjm, states(mjm))


@pytest.mark.parametrize("cone", CONES)
def test_contacts_of_c_get_the_slots_that_we_give_them(cone: str) -> None:
    mjm = heap(cone, 2)
    mjds = [testing.states.copy_state(mjm, mjd) for mjd in states(mjm)]
    for mjd in mjds:
        mujoco.mj_forward(mjm, mjd)
    m = mjt.put_model(mjm, dtype=torch.float64)
    given = mjt.put_data(m, mjds)
    made = mjt.fwd_position(m, given)
    torch.testing.assert_close(given.contact.dist, made.contact.dist, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(given.efc_D, mjt.fwd_velocity(m, made).efc_D, rtol=1e-8, atol=1e-8)


MIXTURES = {
    "sum": (dict(ball='adhesion="5"', floor='adhesion="2"'), 7),
    "one": (dict(floor='adhesion="2"'), 2),
    "priority": (dict(ball='adhesion="5" priority="1"', floor='adhesion="2"'), 5),
    "priority of the floor": (dict(ball='adhesion="5"', floor='adhesion="2" priority="1"'), 2),
    "repulsion": (dict(ball='adhesion="-5"', floor='adhesion="2"'), -3),
    "nothing left": (dict(ball='adhesion="2"', floor='adhesion="-2"'), 0),
    "pair": (dict(ball='adhesion="5"', more='<contact><pair geom1="floor" geom2="ball" adhesion="1"/></contact>'), 1),
    "pair without": (dict(ball='adhesion="5"', more='<contact><pair geom1="floor" geom2="ball"/></contact>'), 0),
    "pair that repels": (dict(more='<contact><pair geom1="floor" geom2="ball" adhesion="-2"/></contact>'), -2),
}  # fmt: skip


@pytest.mark.parametrize("name", MIXTURES)
def test_adhesion_of_a_contact(name: str) -> None:
    """The sum of both geoms, that of the higher priority, or that of the pair; any sign."""
    parts, adhesion = MIXTURES[name]
    mjm = ball(**parts)
    done = same_forward(mjm)
    assert [float(mjd.contact.adhesion[0]) for mjd in done] == [adhesion] * NWORLD
    m = mjt.put_model(mjm)
    assert m.adhesive == (adhesion != 0)
    if adhesion:
        assert (m.contact_adhesion == adhesion).all()


@pytest.mark.parametrize("cone", CONES)
@pytest.mark.parametrize("condim", [1, 3, 4, 6])
@pytest.mark.parametrize(
    ("z", "band"),
    [
        (0.249, 'gap="0"'),
        (0.25, 'gap="0"'),
        (0.25, 'gap="0.25"'),
        (0.375, 'margin="0.125" gap="0.25"'),
        (0.374, 'margin="0.125" gap="0.25"'),
        (0.5, 'gap="0.25"'),
        (0.501, 'gap="0.25"'),
        (0.375, 'margin="0.25" gap="-0.0625"'),
    ],
)
def test_on_both_sides_of_margin_and_gap(cone: str, condim: int, z: float, band: str) -> None:
    """Also exactly at the margin, as for a ball put onto the floor: there the contact has no friction."""
    mjm = ball(z, option=f'cone="{cone}" impratio="2"', ball=f'adhesion="5" condim="{condim}" {band}')
    mjm.geom_condim[0] = 1
    (dims,) = {tuple(mjd.contact.dim) for mjd in same_forward(mjm)}
    near = mjm.geom_margin[1] > z - 0.25
    listed = z - 0.25 <= mjm.geom_margin[1] + mjm.geom_gap[1]
    assert dims == ((condim if near else 1,) if listed else ())


@pytest.mark.parametrize(
    "flag",
    [
        'spring="disable"',
        'damper="disable"',
        'spring="disable" damper="disable"',
        'contact="disable"',
        'constraint="disable"',
        'gravity="disable"',
    ],
)
def test_disable_flags(flag: str) -> None:
    """Without passive forces the pull is gone, but not what makes good for it in the rows."""
    (adhesion,) = {
        float(mjd.qfrc_adhesion[2]) for mjd in same_forward(ball(flag=flag, ball='adhesion="5"'))[:1]
    }
    off = flag.count("disable") == 2 or "con" in flag
    assert adhesion == (0 if off else -5)


@pytest.mark.parametrize("z", [0.249, 0.3])
def test_adhesion_edited_after_compilation(z: float) -> None:
    """The flag that the compiler sets switches the forces, but a contact in the gap has a row without it."""
    mjm = ball(z, ball='gap="0.1"')
    mjm.geom_adhesion[1] = 4
    assert not mjm.flg_adhesion
    assert all(mjd.nefc and not mjd.qfrc_adhesion.any() for mjd in same_forward(mjm))
    mjm = ball(z, ball='gap="0.1" adhesion="1"')
    mjm.geom_adhesion[1] = -4
    assert same_forward(mjm)[0].qfrc_adhesion[2] == 4


FIXED = """
<mujoco>
  <worldbody>
    <geom name="floor" type="plane" size="3 3 0.1"/>
    <body name="static" pos="0 0 {z}"><geom name="s" size="0.1"/></body>
    <body name="pair" pos="0 0 1">
      <freejoint/>
      <geom name="t" size="0.1"/>
      <body name="welded" pos="{x} 0 0"><geom name="u" size="0.1"/></body>
    </body>
  </worldbody>
  <contact>
    <pair geom1="floor" geom2="s" gap="0.01" adhesion="{adhesion}"/>
    <pair geom1="t" geom2="u" gap="0.01" adhesion="{adhesion}"/>
  </contact>
  <actuator>
    <adhesion body="static" ctrlrange="0 1"/><adhesion body="pair" ctrlrange="0 1"/>
    <adhesion body="world" ctrlrange="0 1"/>
  </actuator>
</mujoco>
"""


@pytest.mark.parametrize("adhesion", [0, 5])
@pytest.mark.parametrize(("z", "x"), [(0.099, 0.205), (0.105, 0.19)])
def test_geoms_that_cannot_move_apart(adhesion: float, z: float, x: float) -> None:
    """Their contacts are listed, have no rows and pull nothing; actuators do not count them."""
    mjm = mujoco.MjModel.from_xml_string(FIXED.format(adhesion=adhesion, z=z, x=x))
    done = same_forward(mjm)
    assert all(mjd.ncon == 2 and mjd.nefc == 0 for mjd in done)
    assert sorted(mjd.contact.dim.tolist() for mjd in done)[0] == [3, 3] if not adhesion else True


def test_an_actuator_counts_contacts_in_the_gap() -> None:
    """Two contacts of a capsule, one of them in the gap, share the force of an adhesion actuator."""
    mjm = mujoco.MjModel.from_xml_string(
        """<mujoco><worldbody><geom type="plane" size="3 3 0.1"/><body name="log" pos="0 0 0.12" euler="0 80 0">
        <freejoint/><geom type="capsule" size="0.1 0.2" gap="0.1" adhesion="3"/></body></worldbody>
        <actuator><adhesion body="log" ctrlrange="0 1"/></actuator></mujoco>"""
    )
    done = same_forward(mjm)
    assert all(mjd.contact.dim.tolist() == [1, 3] for mjd in done)


@pytest.mark.parametrize("cone", CONES)
def test_a_pressed_contact_is_as_without_adhesion(cone: str) -> None:
    """The documentation's promise: resting penetration does not know of adhesion, and a net force may pull."""
    results = {}
    for adhesion in (0, 7):
        parts = dict(option=f'cone="{cone}"', floor='condim="1"')
        mjm = ball(**parts, ball=f'condim="1" mass="1" adhesion="{adhesion}"')
        m = mjt.put_model(mjm, dtype=torch.float64)
        for pull in (0.0, 15.0):
            d = mjt.make_data(m)
            force = torch.zeros_like(d.qfrc_applied)
            force[2] = pull
            results[adhesion, pull] = mjt.forward(m, d.replace(qfrc_applied=force))
    torch.testing.assert_close(results[7, 0.0].qacc, results[0, 0.0].qacc)
    net = results[7, 15.0].efc_force.sum() - m.contact_adhesion.max()
    assert -7 < net < 0 == results[0, 15.0].efc_force.sum()
    assert results[7, 15.0].qacc[2] < results[0, 15.0].qacc[2]


def test_inverse_dynamics() -> None:
    """Applied forces are found again from the acceleration: adhesion is among the passive forces."""
    mjm = copy.copy(heap())
    mjm.dof_frictionloss[:] = 0
    testing.stage_parity(mjm, "inverse", states(mjm)).raise_for_failures()


@pytest.mark.parametrize("cone", CONES)
def test_float32(cone: str) -> None:
    mjm = heap(cone, 2)
    testing.float32_parity(mjm, states(mjm)).raise_for_failures()
    mjds = [testing.states.copy_state(mjm, mjd) for mjd in states(mjm)]
    for mjd in mjds:
        mujoco.mj_forward(mjm, mjd)
    m = mjt.put_model(mjm, dtype=torch.float32)
    d = mjt.forward(m, mjt.put_data(m, mjds))
    assert d.qacc.dtype == torch.float32
    testing.compare(m, d, mjds, ("qfrc_adhesion", "qfrc_passive"), 1e-4).raise_for_failures()


def test_a_model_without_adhesion_has_nothing_of_it() -> None:
    m = mjt.put_model(ball(ball='gap="0.1"'))
    assert not m.adhesive
    assert not m.split_contacts
    assert m.nadhesive == 0
    assert m.nconmax == 1
    assert not any("adhesive" in name or name == "contact_bias" for name in m.topology.layout)


@pytest.mark.parametrize("cone", CONES)
def test_compiled_and_mapped_steps_are_the_same(cone: str) -> None:
    mjm = heap(cone)
    m = mjt.put_model(mjm, dtype=torch.float64)
    d = mjt.put_data(m, states(mjm))
    eager = mjt.step(m, d)
    compiled = torch.compile(mjt.step, backend="aot_eager", fullgraph=True)(m, d)
    mapped = torch.vmap(lambda one: mjt.step(m, one))(d)
    for other in (compiled, mapped):
        for name in ("qpos", "qvel", "qfrc_adhesion", "efc_aref"):
            torch.testing.assert_close(getattr(other, name), getattr(eager, name), rtol=1e-9, atol=1e-9)


def test_gradients_are_those_of_finite_differences() -> None:
    """Of the pull and of the rows, by qpos and qvel, away from the edges of the gap."""
    mjm = heap()
    m = mjt.put_model(mjm, dtype=torch.float64)
    d = mjt.put_data(m, states(mjm))
    generator = torch.Generator().manual_seed(0)
    qpos, qvel = (torch.randn(x.shape, generator=generator, dtype=x.dtype) for x in (d.qpos, d.qvel))

    def along(t: torch.Tensor) -> torch.Tensor:
        moved = mjt.fwd_position(m, d.replace(qpos=d.qpos + t * qpos, qvel=d.qvel + t * qvel))
        moved = mjt.fwd_velocity(m, moved)
        return torch.cat((moved.qfrc_adhesion, torch.where(moved.efc_D > 0, moved.efc_aref * 1e-2, 0.0)), -1)

    zero = torch.zeros((), dtype=torch.float64)
    exact = torch.func.jacrev(along)(zero)
    step = torch.tensor(1e-7, dtype=torch.float64)
    approximate = (along(step) - along(-step)) / (2 * step)
    torch.testing.assert_close(exact, approximate, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("cone", CONES)
@pytest.mark.parametrize("z", [0.2, 0.25, 0.3, 0.7])
def test_gradients_are_finite(cone: str, z: float) -> None:
    """Through a step of a contact that is pressed, exactly touching, in the gap, and absent."""
    m = mjt.put_model(ball(z, option=f'cone="{cone}"', ball='adhesion="5" gap="0.1"'), dtype=torch.float64)
    d = mjt.make_data(m, 2)
    qpos, qvel = d.qpos.clone().requires_grad_(), d.qvel.clone().requires_grad_()
    after = mjt.step(m, d.replace(qpos=qpos, qvel=qvel))
    (after.qpos.sum() + after.qvel.square().sum()).backward()
    assert qpos.grad.isfinite().all()
    assert qvel.grad.isfinite().all()
