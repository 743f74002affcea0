"""The static pair list against the contact list of MuJoCo C: order, geoms, parameters, filters."""

from itertools import groupby

import mujoco
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from mujoco_torch._src.collision.pairs import GeomPair, geom_pairs

# A gap larger than the scene makes C list every pair that passes its filters, wherever the geoms are.
LIST_ALL = '<default><geom gap="100"/><pair gap="100"/></default>'

INCLUDED, IN_GAP, NO_DOFS = 0, 1, 3  # values of contact.exclude

SPHERE = '<geom type="sphere" size=".3"/>'
CAPSULE = '<geom type="capsule" size=".2 .4" euler="10 20 30"/>'
PLANE = '<geom type="plane" size="1 1 1"/>'


def model(body: str, head: str = LIST_ALL) -> mujoco.MjModel:
    return mujoco.MjModel.from_xml_string(f"<mujoco>{head}{body}</mujoco>")


def listed(mjm: mujoco.MjModel) -> list[mujoco.MjContact]:
    """The first contact of every pair, in C's order."""
    mjd = mujoco.MjData(mjm)
    mujoco.mj_forward(mjm, mjd)
    return [next(group) for _, group in groupby(mjd.contact, key=lambda c: tuple(c.geom.tolist()))]


def geoms(pairs: tuple[GeomPair, ...]) -> list[tuple[int, int]]:
    return [(p.geom1, p.geom2) for p in pairs]


def assert_same(mjm: mujoco.MjModel) -> tuple[GeomPair, ...]:
    """C lists the pairs of ``geom_pairs``, in its order, with its parameters."""
    pairs, contacts = geom_pairs(mjm), listed(mjm)
    assert geoms(pairs) == [tuple(c.geom.tolist()) for c in contacts]
    for pair, contact in zip(pairs, contacts, strict=True):
        assert pair.condim == contact.dim
        assert (pair.type1, pair.type2) == tuple(mjm.geom_type[list(contact.geom)])
        assert pair.type1 <= pair.type2
        # C makes no rows, and so excludes no contact for want of dofs, in a model without any.
        unmoved = NO_DOFS if pair.fixed and mjm.nv else INCLUDED
        assert contact.exclude in (IN_GAP, unmoved)
        for name in ("friction", "solref", "solreffriction", "solimp"):
            np.testing.assert_array_equal(getattr(pair, name), getattr(contact, name), err_msg=name)
        assert pair.margin == contact.includemargin
    return pairs


@pytest.mark.parametrize("midphase", ["enable", "disable"])
def test_order_depends_on_the_midphase(midphase: str) -> None:
    """Sorted by the ids after the swap by type with the midphase, by the bodies' geoms without."""
    mjm = model(
        f"""<option><flag midphase="{midphase}"/></option>
        <worldbody>{PLANE}{CAPSULE}{SPHERE}
          <body><freejoint/>{SPHERE}{CAPSULE}{SPHERE}</body>
          <body><freejoint/>{CAPSULE}{SPHERE}</body>
          <body><freejoint/>{SPHERE}</body>
        </worldbody>"""
    )
    pairs = geoms(assert_same(mjm))
    assert (pairs.index((3, 1)) > pairs.index((2, 5))) == (midphase == "enable")


def test_parent_weld_and_mocap_filters() -> None:
    body = f"""<worldbody>{PLANE}{SPHERE}
      <body>{SPHERE}</body>
      <body mocap="true">{SPHERE}<body>{CAPSULE}</body><body><joint/>{SPHERE}</body></body>
      <body mocap="true">{CAPSULE}</body>
      <body><freejoint/>{SPHERE}
        <body>{SPHERE}<body><joint/>{CAPSULE}<body><joint/>{SPHERE}</body></body></body>
      </body>
    </worldbody>"""
    pairs = assert_same(model(body))
    unfiltered = assert_same(model('<option><flag filterparent="disable"/></option>' + body))
    assert len(pairs) < len(unfiltered)


def test_predefined_pairs_and_excludes() -> None:
    """A predefined pair passes every filter, replaces the dynamic one and comes first of its body pair."""
    mjm = model(
        f"""<worldbody><geom name="p" type="plane" size="1 1 1"/><geom name="w" type="sphere" size=".3"/>
          <body name="s"><geom name="s" type="sphere" size=".3"/></body>
          <body mocap="true"><geom name="m" type="sphere" size=".3"/></body>
          <body mocap="true"><geom name="n" type="capsule" size=".3 .1"/></body>
          <body name="f"><freejoint/><geom name="f" type="sphere" size=".3"/><geom name="g" {CAPSULE[5:-2]}/>
            <body name="c"><joint/>
              <geom name="c" type="capsule" size=".3 .2" contype="0" conaffinity="0"/>
            </body>
          </body>
          <body name="last"><freejoint/>{SPHERE}{CAPSULE}</body>
        </worldbody>
        <contact>
          <pair geom1="w" geom2="s"/><pair geom1="p" geom2="s" condim="1" margin=".02" gap="99"/>
          <pair geom1="w" geom2="p"/><pair geom1="m" geom2="s"/><pair geom1="m" geom2="n"/>
          <pair geom1="f" geom2="g"/><pair geom1="g" geom2="c" friction="0 0 1 2 3" condim="6"/>
          <pair geom1="f" geom2="m" solref=".1 .2" solreffriction=".3 .4" solimp=".1 .2 .3 .4 .5"/>
          <pair geom1="c" geom2="p"/><pair geom1="c" geom2="w"/>
          <exclude body1="f" body2="world"/><exclude body1="last" body2="f"/>
          <exclude body1="c" body2="world"/>
        </contact>"""
    )
    pairs = assert_same(mjm)
    assert [p.pair for p in pairs if p.pair >= 0] == list(range(mjm.npair))
    assert any(p.fixed for p in pairs)


@pytest.mark.parametrize("flag", ["contact", "constraint"])
def test_disabled(flag: str) -> None:
    scene = f"<worldbody>{PLANE}<body><freejoint/>{SPHERE}</body></worldbody>"
    assert len(assert_same(model(scene))) == 1
    assert assert_same(model(scene, f'<option><flag {flag}="disable"/></option>')) == ()


def test_world_only() -> None:
    """Without a body nothing collides, predefined or not."""
    mjm = model(
        """<worldbody><geom name="a" size="1"/><geom name="b" size="1"/></worldbody>
        <contact><pair geom1="a" geom2="b"/></contact>"""
    )
    assert assert_same(mjm) == ()


def test_unsupported_kinds_are_listed_without_a_count() -> None:
    mjm = model(
        f"""<asset><hfield name="h" nrow="2" ncol="2" size="1 1 1 1"/></asset>
        <worldbody>{PLANE}<geom type="hfield" hfield="h"/><body mocap="true">{PLANE}</body>
          <body><freejoint/><geom type="box" size=".1 .1 .1"/>{SPHERE}</body>
        </worldbody>"""
    )
    found = {(p.geom1, p.geom2): p.maxcon for p in geom_pairs(mjm)}
    assert found == {(0, 3): None, (0, 4): 1, (1, 3): None, (1, 4): None, (2, 3): None, (2, 4): 1}


def test_mixing() -> None:
    """Priority, solmix (also below its floor), direct solref, friction floor, condim, summed margins."""
    balls = [
        'solmix="2" condim="1" friction="0 0 0" margin=".01" gap="50"',
        'solmix="0" condim="3" friction=".5 .1 .2" solref=".05 .7" margin=".02" gap="60"',
        'solmix="1e-16" condim="4" friction="2 1e-6 .3" solref="-100 -10" solimp=".5 .6 .01 .4 3"',
        'solmix="5" condim="6" friction=".3 .2 .1" priority="1" solref=".03 1.5"',
        'solmix="5" condim="1" friction="1e-7 0 .01" priority="1" solimp=".1 .2 .3 .4 .5"',
        'solmix="3" condim="4" priority="-1" margin="-.003"',
    ]
    bodies = "".join(f'<body><freejoint/><geom size=".1" {b}/></body>' for b in balls)
    pairs = assert_same(model(f"<worldbody>{PLANE}{bodies}</worldbody>"))
    assert len(pairs) == 21
    assert {p.condim for p in pairs} == {1, 3, 4, 6}


def test_pairs_are_values() -> None:
    mjm = model(f"<worldbody>{PLANE}<body><freejoint/>{SPHERE}{CAPSULE}</body></worldbody>")
    assert hash(geom_pairs(mjm)) == hash(geom_pairs(mjm))
    assert [p.maxcon for p in geom_pairs(mjm)] == [1, 2]


def random_xml(seed: int) -> str:
    """A random tree: welded, jointed, mocap bodies of several geoms, filters, predefined pairs, excludes."""
    rng = np.random.default_rng(seed)
    names: list[str] = []

    def geom() -> str:
        names.append(f"g{len(names)}")
        kind = rng.choice(['type="sphere" size=".1"', 'type="capsule" size=".1 .2"'])
        bits = f'contype="{rng.integers(0, 4)}" conaffinity="{rng.integers(0, 4)}"'
        place = " ".join(f"{v:.3f}" for v in rng.normal(size=3))
        turn = " ".join(f"{v:.1f}" for v in rng.uniform(0, 180, size=3))
        mix = (
            f'condim="{rng.choice([1, 3, 4, 6])}" priority="{rng.integers(0, 2)}" margin="{rng.random():.3f}"'
        )
        return f'<geom name="{names[-1]}" {kind} {bits} pos="{place}" euler="{turn}" {mix} mass="1"/>'

    def body(depth: int) -> str:
        name = f"b{len(bodies)}"
        bodies.append(name)
        mocap = ' mocap="true"' if depth == 0 and rng.random() < 0.2 else ""
        joint = "" if mocap or rng.random() < 0.4 else "<joint/>"
        inner = "".join(geom() for _ in range(rng.integers(0, 4)))
        if depth < 3:
            inner += "".join(body(depth + 1) for _ in range(rng.integers(0, 3)))
        return (
            f'<body name="{name}"{mocap}>{joint}{inner}<geom size=".01" contype="0" conaffinity="0"/></body>'
        )

    bodies: list[str] = []
    world = "".join(geom() for _ in range(rng.integers(0, 3))) + (PLANE if rng.random() < 0.7 else "")
    world += "".join(body(0) for _ in range(rng.integers(1, 4)))
    couples = (
        {tuple(sorted(rng.choice(len(names), 2, replace=False))) for _ in range(4)} if len(names) > 1 else ()
    )
    contact = "".join(f'<pair geom1="g{b}" geom2="g{a}"/>' for a, b in couples)
    if len(bodies) > 1:
        a, b = rng.choice(len(bodies), 2, replace=False)
        contact += f'<exclude body1="b{a}" body2="b{b}"/>'
    flags = f'<option><flag midphase="{rng.choice(["enable", "disable"])}"/></option>'
    return f"{flags}<worldbody>{world}</worldbody><contact>{contact}</contact>"


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32 - 1))
@example(6031)  # no dofs at all
def test_random_models(seed: int) -> None:
    assert_same(model(random_xml(seed)))
