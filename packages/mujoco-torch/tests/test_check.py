"""Every feature that is not simulated gives its finding, and nothing else does."""

import functools
import pickle
import re
from pathlib import Path

import mujoco
import numpy as np
import pytest

from mujoco_torch._src.check import RULES, SUPPORTED, Finding, check, supported_table
from mujoco_torch._src.errors import MujocoTorchError, UnsupportedModelError
from mujoco_torch._src.topology import build

NO_CONTACT = 'contype="0" conaffinity="0"'
BALL_GEOM = f'<geom name="ball" size=".1" {NO_CONTACT}/>'
LIMITED = f'<body><joint name="j" range="-30 30"/>{BALL_GEOM}</body>'
FALLING = '<body pos="0 0 1"><freejoint/><geom name="foot" type="{type}" size=".1 .1 .1"/></body>'
FLOOR = '<geom name="floor" type="plane" size="1 1 1"/>'


def _xml(world: str = LIMITED, rest: str = "") -> str:
    return f"<mujoco>{rest}<worldbody>{world}</worldbody></mujoco>"


def _option(attributes: str, world: str = LIMITED) -> str:
    return _xml(world, f"<option {attributes}/>")


def _flag(name: str) -> str:
    return _xml(rest=f'<option><flag {name}="enable"/></option>')


def _joint(attributes: str) -> str:
    return _xml(f'<body><joint name="j" {attributes}/>{BALL_GEOM}</body>')


def _actuator(element: str, joint: str = 'type="hinge"') -> str:
    world = f'<body><joint name="j" {joint}/>{BALL_GEOM}<site name="s"/></body><body name="b"/>'
    return _xml(world, f"<actuator>{element}</actuator>")


def _touching(kind1: str, kind2: str) -> str:
    return _xml(FLOOR.replace("plane", kind1) + FALLING.format(type=kind2))


TENDON = '<tendon><fixed name="t" {}><joint joint="j" coef="1"/></fixed></tendon>'
BALL_SERVO = '<position name="servo" joint="j" kp="3" gear="0 0 1"/>'
TWO_BODIES = "".join(
    f'<body name="b{i}" pos="{i} 0 0"><joint/><geom size=".1" {NO_CONTACT}/></body>' for i in (0, 1)
)
ROPE = '<flex name="rope" dim="1" body="b0 b1" element="0 1" vertex="0 0 0 0 0 0"/>'
PID = '<plugin name="m" joint="j" plugin="mujoco.pid"><config key="kp" value="1"/></plugin>'
EXTENSION = '<extension><plugin plugin="mujoco.pid"/></extension>'
SENSORS = '<sensor><jointpos name="q" joint="j"/><clock/></sensor>'
SLIDING = f'<body><joint frictionloss="1"/>{BALL_GEOM}</body>'
PULLED = (
    f'<site name="w"/><body><joint name="j"/>{BALL_GEOM}<site name="s" pos="1 0 0"/>'
    '<site name="side" pos="0 0 1"/></body>'
)
ROPES = (
    '<tendon><spatial name="t" range="0 1" frictionloss="1" armature="1"><site site="w"/><site site="s"/>'
    '<pulley divisor="2"/><site site="w"/><site site="s"/></spatial><spatial stiffness="1" springlength="0 1">'
    '<site site="w"/><geom geom="ball" sidesite="side"/><site site="s"/></spatial></tendon>'
)
CRANK = '<motor name="m" cranksite="s" slidersite="s" cranklength="1"/>'

MEETING = FLOOR + FALLING.format(type="sphere") + '<body pos="3 0 3"><freejoint/><geom size=".1"/></body>'
JOINED = "".join(f'<body><joint name="j{i}"/><geom size=".1" {NO_CONTACT}/></body>' for i in (0, 1))
JOINING = '<equality><joint joint1="j0" joint2="j1"/></equality>'

# Feature, the model, and elements of its one finding.
REFUSED = [
    ("integrator", _option('integrator="discrete"'), ()),
    ("solver", _option('solver="PGS"'), ()),
    ("solver", _option('solver="PGS"', FLOOR + FALLING.format(type="sphere")), ()),
    ("solver", _option('solver="PGS"', SLIDING), ()),
    ("islands", _option('iterations="9"', MEETING), ()),
    ("islands", _option('solver="CG" iterations="99"', MEETING), ()),
    ("islands", _xml(JOINED, '<option iterations="9"/>' + JOINING), ()),
    ("enable-flag", _flag("sleep"), ("flag 'sleep'",)),
    ("plugin", _xml(rest=f"{EXTENSION}<actuator>{PID}</actuator>"), ("plugin 0",)),
    ("flex", _xml(TWO_BODIES, f"<deformable>{ROPE}</deformable>"), ("flex 'rope'",)),
    ("sensor", _xml(rest=SENSORS), ("sensor 'q'", "sensor 1")),
    (
        "actuator-dynamics",
        _actuator('<general name="m" joint="j" dyntype="user" actdim="2"/>'),
        ("actuator 'm'",),
    ),
    ("actuator-gain", _actuator('<general name="m" joint="j" gaintype="user"/>'), ("actuator 'm'",)),
    ("actuator-bias", _actuator('<general name="m" joint="j" biastype="user"/>'), ("actuator 'm'",)),
    (
        "actuator-combination",
        _actuator('<general name="m" joint="j" gaintype="affine" biastype="dcmotor"/>'),
        ("actuator 'm'",),
    ),
    (
        "actuator-combination",
        _actuator(
            '<general name="m" joint="j" gaintype="dcmotor" biastype="affine" dyntype="dcmotor" actearly="true"/>'
        ),
        ("actuator 'm'",),
    ),
    *(
        ("geom-pair", _touching(*kinds), ("geom 'floor' with geom 'foot'",))
        for kinds in (
            ("plane", "box"),
            ("plane", "cylinder"),
            ("plane", "ellipsoid"),
            ("sphere", "box"),
            ("capsule", "ellipsoid"),
            ("box", "box"),
        )
    ),
    ("geom-pair", _touching("cylinder", "sphere"), ("geom 'foot' with geom 'floor'",)),
]

ALLOWED = {
    "empty": "<mujoco/>",
    "joints": _xml(
        f'<body><freejoint/>{BALL_GEOM}<body><joint type="ball" range="0 30" stiffness="1" damping="1"/>'
        f'<geom size=".1"/><body><geom size=".1"/><body><joint type="slide" range="-1 1" armature="1"/>'
        f'<joint range="-30 30" stiffness="2" springref="10" actuatorfrcrange="-1 1"/><geom size=".1"/>'
        f"</body></body></body></body>"
    ),
    "friction losses": _joint('type="ball" frictionloss="1"'),
    "polynomial springs and dampers": _joint('type="ball" stiffness="1 0 2" damping="0 1"'),
    "tendon springs that yield": _xml(rest=TENDON.format('stiffness="1" springyield="5"')),
    "springs that yield": _joint('stiffness="1" springyield="5"'),
    "mocap bodies": _xml(LIMITED + '<body mocap="true"/>'),
    "gravity compensation": _xml(f'<body gravcomp=".5"><joint/>{BALL_GEOM}</body>'),
    "gravity compensation through actuators": _xml(
        f'<body gravcomp=".5"><joint name="j" actuatorgravcomp="true"/>{BALL_GEOM}</body>',
        '<actuator><motor joint="j"/></actuator>',
    ),
    "a medium": _option('density="1.2" viscosity=".01" wind="1 2 3"'),
    "ellipsoids in a medium": _option(
        'density="1.2"', LIMITED.replace("<geom", '<geom fluidshape="ellipsoid"')
    ),
    "fixed tendons": _xml(
        rest=TENDON.format(
            'armature="1" stiffness="1 2 3" springlength="0 1" damping="1 2 3" range="0 1" frictionloss="1"'
        )
    ),
    "spatial tendons": _xml(PULLED, ROPES),
    "equalities": _xml(
        LIMITED + '<body name="a"><freejoint/><geom size=".1"/><site name="s"/></body><site name="w"/>',
        TENDON.format("")
        + '<equality><joint joint1="j" active="false"/><weld body1="a"/><weld site1="s" site2="w"/>'
        + '<connect body1="a" anchor="0 0 0"/><connect site1="s" site2="w"/><tendon tendon1="t"/></equality>',
    ),
    "contacts": _option(
        'impratio="2"',
        FLOOR
        + FALLING.format(type="sphere")
        + FALLING.format(type="capsule").replace("foot", "shin")
        + FALLING.format(type="sphere").replace('"foot"', '"toe" condim="6" margin=".1" priority="1"'),
    ),
    "elliptic cones": _option('cone="elliptic"', FLOOR + FALLING.format(type="sphere")),
    "a moving surface": _xml(FLOOR.replace("/>", ' surfacevel="1 0 0"/>') + FALLING.format(type="sphere")),
    "adhesion": _xml(
        FLOOR.replace("/>", ' adhesion="1"/>') + FALLING.format(type="sphere"),
        '<contact><pair geom1="floor" geom2="foot" adhesion="1"/></contact>',
    ),
    "a box that cannot touch": _xml(f'{FLOOR}<geom type="box" size="1 1 1"/>' + LIMITED),
    "a box that is excluded": _xml(
        FLOOR + FALLING.format(type="box").replace("<body", '<body name="b"'),
        '<contact><exclude body1="world" body2="b"/></contact>',
    ),
    "contacts disabled": _touching("box", "box").replace(
        "<mujoco>", '<mujoco><option><flag contact="disable"/></option>'
    ),
    **{name: _option(f'integrator="{name}"') for name in ("Euler", "RK4", "implicit", "implicitfast")},
    "conjugate gradients": _option('solver="CG"', FLOOR + FALLING.format(type="sphere")),
    "a no-slip pass": _option('noslip_iterations="2"', FLOOR + FALLING.format(type="sphere")),
    "few iterations for one tree": _option('iterations="1"', FLOOR + FALLING.format(type="sphere")),
    "few iterations for trees that cannot meet": _option(
        'iterations="1"', LIMITED + FLOOR + FALLING.format(type="sphere")
    ),
    "few iterations without islands": _xml(
        MEETING,
        '<option iterations="9"><flag island="disable"/></option>',
    ),
    "another solver with nothing to solve": _option('solver="PGS"', ""),
    "another solver with its rows disabled": _xml(
        rest='<option solver="PGS"><flag limit="disable"/></option>'
    ),
    "sparse Jacobian": _option('jacobian="sparse"'),
    "actuators": _actuator(
        '<motor joint="j" ctrlrange="-1 1" forcerange="-2 2" gear="3"/><position joint="j" kp="2" kv="1"/>'
        '<velocity joint="j"/><damper joint="j" ctrlrange="0 1"/><motor jointinparent="j" group="3"/>'
        '<general joint="j" gaintype="affine" gainprm="1 2 3" biastype="affine" biasprm="1 2 3"/>'
    ),
    "stateful actuators": _actuator(
        '<general joint="j" dyntype="integrator" actearly="true"/><general joint="j" dyntype="filter"/>'
        '<general joint="j" dyntype="filterexact" actlimited="true" actrange="0 1"/>'
        '<muscle joint="j" lengthrange="0 1"/><pid joint="j" ki="1"/>'
        '<dcmotor joint="j" resistance="1" motorconst="1" lugre="1 1 1 1 1"/>'
    ),
    "delays, disabled groups, reflected terms": _actuator(
        '<motor joint="j" delay=".01" nsample="4" group="2" damping="1 2" armature="1"/>'
    ).replace("<mujoco>", '<mujoco><option actuatorgroupdisable="2"/>'),
    "motors on a ball joint": _actuator(
        '<motor joint="j"/><motor jointinparent="j"/><velocity joint="j"/>'
        '<general joint="j" gainprm="2" biastype="affine" biasprm="0 -1 0"/>',
        'type="ball"',
    ),
    "servos on a ball joint": _actuator(
        BALL_SERVO + BALL_SERVO.replace("joint=", "jointinparent=").replace("servo", "parent"), 'type="ball"'
    ),
    "motors on a free joint": _actuator('<motor joint="j"/><position jointinparent="j"/>', 'type="free"'),
    "motors on tendons": _xml(rest=TENDON.format("") + '<actuator><motor tendon="t"/></actuator>'),
    "orientation servos": _actuator(
        '<orientation joint="j"/><orientation joint="j" input="quat"/>', 'type="ball"'
    ),
    "other transmissions": _actuator(
        f'<motor site="s"/><position site="s" refsite="s"/>{CRANK}<adhesion body="b" ctrlrange="0 1"/>'
    ),
    "no physics": _xml(
        LIMITED + '<camera mode="targetbody" target="world"/><light mode="trackcom"/><site name="s"/>',
        '<size nuserdata="3"/><custom><numeric name="n" data="1"/></custom>'
        '<keyframe><key qpos="0"/></keyframe>'
        '<asset><material name="m"/><mesh name="u" vertex="0 0 0 1 0 0 0 1 0 0 0 1"/></asset>',
    ),
}


@pytest.mark.parametrize(("feature", "xml", "elements"), REFUSED)
def test_a_refused_feature_gives_its_finding_alone(feature, xml, elements):
    findings = check(mujoco.MjModel.from_xml_string(xml))
    assert [finding.feature for finding in findings] == [feature]
    assert findings[0].message and findings[0].hint
    assert findings[0].elements == elements


@pytest.mark.parametrize("name", ALLOWED)
def test_what_is_simulated_gives_no_finding(name):
    assert check(mujoco.MjModel.from_xml_string(ALLOWED[name])) == ()


def test_equalities_of_other_kinds_are_refused_by_name():
    rest = '<equality><joint joint1="j"/><joint name="e" joint1="j"/><joint joint1="j"/></equality>'
    mjm = mujoco.MjModel.from_xml_string(_xml(rest=rest))
    assert check(mjm) == ()
    mjm.eq_type[1:] = mujoco.mjtEq.mjEQ_FLEX, mujoco.mjtEq.mjEQ_DISTANCE
    findings = check(mjm)
    assert [finding.feature for finding in findings] == ["equality", "equality"]
    assert [finding.elements for finding in findings] == [("equality 'e'",), ("equality 2",)]
    assert "flex" in findings[0].message and "distance" in findings[1].message


@pytest.mark.parametrize("flag", [bit for bit in mujoco.mjtDisableBit.__members__ if bit != "mjNDISABLE"])
def test_every_disable_flag_is_supported(flag):
    mjm = mujoco.MjModel.from_xml_string(_xml(FLOOR + FALLING.format(type="sphere")))
    mjm.opt.disableflags = int(getattr(mujoco.mjtDisableBit, flag))
    assert check(mjm) == ()


@pytest.mark.parametrize("flag", [bit for bit in mujoco.mjtEnableBit.__members__ if bit != "mjNENABLE"])
def test_enable_flags_of_energy_and_inverse_dynamics_are_supported(flag):
    mjm = mujoco.MjModel.from_xml_string(_xml())
    mjm.opt.enableflags = int(getattr(mujoco.mjtEnableBit, flag))
    name = flag.removeprefix("mjENBL_").lower()
    found = [(finding.feature, finding.elements) for finding in check(mjm)]
    assert found == (
        [] if name in ("energy", "fwdinv", "invdiscrete") else [("enable-flag", (f"flag '{name}'",))]
    )


def test_unknown_bits_and_values_are_refused():
    motor = '<actuator><motor joint="j"/></actuator>'
    mjm = mujoco.MjModel.from_xml_string(_xml(LIMITED + FLOOR + FALLING.format(type="sphere"), motor))
    mjm.opt.disableflags = 1 << 25
    mjm.opt.enableflags = 1 << 26
    values = {"integrator": 77, "cone": 78, "solver": 79}
    for name, value in values.items():
        setattr(mjm.opt, name, value)
    mjm.actuator_trntype[0] = values["actuator-transmission"] = 88
    findings = {finding.feature: finding for finding in check(mjm)}
    assert set(findings) == {"disable-flag", "enable-flag", *values}
    assert findings["disable-flag"].elements == (f"flag {1 << 25}",)
    assert findings["enable-flag"].elements == (f"flag {1 << 26}",)
    assert all(str(value) in findings[name].message for name, value in values.items())


def test_armature_of_a_tendon_that_wraps_is_refused():
    """Its own or that of an actuator; the compiler of MuJoCo refuses it, too, so the model is edited."""
    rest = ROPES + '<actuator><motor name="m" tendon="t"/></actuator>'
    mjm = mujoco.MjModel.from_xml_string(_xml(PULLED, rest))
    assert check(mjm) == ()
    mjm.tendon_armature[1] = 1.0
    (finding,) = check(mjm)
    assert (finding.feature, finding.elements) == ("tendon-armature", ("tendon 1",))
    mjm.tendon_armature[1] = 0.0
    mjm.actuator_trnid[0, 0], mjm.actuator_armature[0], mjm.tendon_actuatorid[:] = 1, 1.0, (-1, 0)
    (finding,) = check(mjm)
    assert (finding.feature, finding.elements) == ("tendon-armature", ("tendon 1",))


CALLBACKS = ("control", "passive", "contactfilter", "sensor", "act_dyn", "act_gain", "act_bias")


@pytest.mark.parametrize("name", CALLBACKS)
def test_an_installed_callback_is_found(name):
    mjm = mujoco.MjModel.from_xml_string(_xml())
    install = getattr(mujoco, f"set_mjcb_{name}")
    install(lambda *args: 0)
    try:
        (finding,) = check(mjm)
    finally:
        install(None)
    assert (finding.feature, finding.elements) == ("callback", (f"mjcb_{name}",))
    assert check(mjm) == ()


def test_every_callback_of_mujoco_is_considered():
    prefix = "set_mjcb_"
    known = {name.removeprefix(prefix) for name in dir(mujoco) if name.startswith(prefix)}
    assert known == {*CALLBACKS, "time"}


BAD = _xml(rest=f'<option integrator="discrete"><flag sleep="enable"/></option>{SENSORS}')


def test_all_findings_are_reported_together_and_in_order():
    findings = check(mujoco.MjModel.from_xml_string(BAD))
    assert [finding.feature for finding in findings] == ["integrator", "enable-flag", "sensor"]
    order = [rule.feature for rule in RULES]
    assert [order.index(finding.feature) for finding in findings] == sorted(
        order.index(finding.feature) for finding in findings
    )


def test_different_pairs_of_types_are_different_findings():
    world = FLOOR + FALLING.format(type="box") + FALLING.format(type="sphere").replace("foot", "toe")
    findings = check(mujoco.MjModel.from_xml_string(_xml(world)))
    assert [finding.feature for finding in findings] == ["geom-pair", "geom-pair"]
    assert "plane with box" in findings[0].message and "sphere with box" in findings[1].message


def test_check_refuses_what_is_no_model():
    with pytest.raises(TypeError, match=r"takes a mujoco\.MjModel, got str.*from_xml_path"):
        check("humanoid.xml")


# What in a model edited after compilation changes the physics, the value, and the finding it must give.
EDITED = {
    "actuator_biastype": (5, "actuator-bias"),
    "actuator_dyntype": (7, "actuator-dynamics"),
    "actuator_gaintype": (6, "actuator-gain"),
    "actuator_trntype": (1000, "actuator-transmission"),
    "eq_type": (4, "equality"),
    "geom_type": (6, "geom-pair"),
    "opt.cone": (2, "cone"),
    "opt.enableflags": (16, "enable-flag"),
    "opt.integrator": (4, "integrator"),
    "opt.solver": (0, "solver"),
}


@pytest.mark.parametrize("field", EDITED)
def test_an_edited_field_is_found(field):
    world = f'{FLOOR}{FALLING.format(type="sphere")}<body><joint name="j" range="-1 1"/>{BALL_GEOM}</body>'
    rest = '<actuator><motor joint="j"/></actuator><contact><pair geom1="floor" geom2="foot"/></contact>'
    rest += TENDON.format("") + '<equality><joint joint1="j"/></equality>'
    mjm = mujoco.MjModel.from_xml_string(_xml(world, rest))
    assert check(mjm) == ()
    owner, name = (mjm.opt, field[4:]) if field.startswith("opt.") else (mjm, field)
    value, feature = EDITED[field]
    if np.ndim(getattr(owner, name)):
        getattr(owner, name)[:] = value
    else:
        setattr(owner, name, value)
    assert feature in {finding.feature for finding in check(mjm)}


# All other fields of MjModel, as patterns: each is read by the library, or of no effect on what it computes.
READ = (
    "qpos0|qpos_spring",
    "body_(parentid|rootid|weldid|mocapid|treeid|jntadr|dof(num|adr)|geom(num|adr)|pos|quat|ipos|iquat|mass|subtreemass)",
    "body_(inertia|invweight0|gravcomp)",
    "jnt_(type|qposadr|dofadr|bodyid|actuatorid|limited|actfrclimited|actgravcomp|solref|solimp|pos|axis|stiffness)",
    "jnt_(stiffnesspoly|range|actfrcrange|margin|springyield|plasticadr)",
    "dof_(bodyid|jntid|parentid|solref|solimp|frictionloss|armature|damping|dampingpoly|invweight0)",
    "tree_dofnum",
    "geom_(contype|conaffinity|condim|bodyid|priority|solmix|solref|solimp|size|pos|quat|friction|margin|gap|fluid)",
    "geom_(surfacevel|adhesion)",
    "pair_(dim|geom[12]|signature|solref|solreffriction|solimp|margin|gap|friction|adhesion)",
    "exclude_signature",
    "site_(bodyid|pos|quat)|(body|geom|site)_sameframe",
    "cam_(mode|bodyid|targetbodyid|pos|quat|poscom0|pos0|mat0)",
    "light_(mode|bodyid|targetbodyid|pos|dir|poscom0|pos0|dir0)",
    "eq_(obj1id|obj2id|objtype|active0|solref|solimp|data)",
    "tendon_(type|adr|num|actuatorid|limited|actfrclimited|solref_(lim|fri)|solimp_(lim|fri)|range|actfrcrange|margin)",
    "tendon_(stiffness|stiffnesspoly|damping|dampingpoly|armature|frictionloss|lengthspring|length0|invweight0)",
    "tendon_(springyield|plasticadr)",
    "wrap_(type|objid|prm)|ten_J_(rownnz|rowadr|colind)",
    "actuator_(trnid|actadr|actnum|group|history|historyadr|delay|ctrllimited|forcelimited|actlimited|dynprm|gainprm)",
    "actuator_(biasprm|actearly|ctrlrange|forcerange|actrange|damping|dampingpoly|armature|gear|cranklength|acc0)",
    "actuator_(lengthrange|ctrladr|ctrlnum|ctrlspec|outadr|outnum)",
    "[DM]_(rownnz|rowadr|colind)",
    "key_(time|qpos|qvel|act|plastic|ctrl|mpos|mquat)",
    "flg_(gravcomp|surfacevel|adhesion)",
)
NOT_READ = {
    "counts, all but those that are attributes of Model": "n[A-Za-z].*|signature",
    "drawn only": ".*_(rgba|matid)|tendon_width|(geom|site|tendon|jnt|skin)_group|(skin|tex|mat)_.*|vis|stat"
    "|(cam|light)_(?!mode|bodyid|targetbodyid|pos|quat|dir|mat0).*|site_(type|size|dataid)|geom_castshadow",
    "for the user": ".*_user|numeric_.*|text_.*|tuple_.*|name_.*|names|names_map|paths",
    "shortcuts of C": "B_.*|D_diag|map.*|.*_bvh(adr|num)|bvh_.*|oct_.*|body_(simple|jntnum)"
    "|body_(contype|conaffinity|margin)|geom_(aabb|rbound)|dof_(Madr|simplenum|length)",
    "of islands and of sleep": "dof_treeid|tendon_tree(num|id)|tree_(?!dofnum).*",
    "of how C makes the model": "dof_M0|actuator_length0",
    "of elements that are refused": "sensor_.*|flex.*|efm.*|plugin(_.*)?|(body|geom|actuator)_plugin",
    "of geoms that touch nothing": "geom_dataid|(mesh|hfield)_.*",
}


def _fields_of_the_model() -> set[str]:
    mjm = mujoco.MjModel.from_xml_string("<mujoco/>")
    return {name for name in dir(mjm) if name[0] != "_" and not callable(getattr(mjm, name))} - {"opt"}


def test_every_field_of_the_model_has_been_thought_of():
    """A later MuJoCo that adds a field fails here, until its effect is simulated or refused."""
    patterns = ["|".join(READ), "|".join(NOT_READ.values()), "|".join(EDITED)]
    places = {
        name: sum(bool(re.fullmatch(pattern, name)) for pattern in patterns)
        for name in _fields_of_the_model()
    }
    assert {name: count for name, count in places.items() if count != 1} == {}


def _numbers() -> list[str]:
    """Fields that are read and hold numbers; others are indices, sizes and switches, which cannot vary freely."""
    mjm = mujoco.MjModel.from_xml_string("<mujoco/>")
    fields = [name for name in _fields_of_the_model() if re.fullmatch("|".join(READ), name)]
    return sorted(
        name for name in fields if np.issubdtype(getattr(getattr(mjm, name), "dtype", int), np.floating)
    )


# What everything.xml lacks: where one use of a field excludes another.
MORE = """
<mujoco>
  <option cone="elliptic"/>
  <worldbody>
    <geom name="floor" type="plane" size="1 1 1"/>
    <camera mode="track"/>
    <light mode="track"/>
    <body mocap="true"/>
    <body pos="0 0 1">
      <freejoint/>
      <geom size=".1" surfacevel="1 0 0 0 0 1" adhesion="1" solmix="2" condim="6"/>
    </body>
    <body>
      <joint name="j" springyield=".1" stiffness="1"/>
      <geom name="rod" type="capsule" size=".1 .2"/>
      <geom type="box" size=".1 .2 .3" pos=".1 0 0" euler="10 20 30" contype="0" conaffinity="0"/>
    </body>
  </worldbody>
  <contact><pair geom1="floor" geom2="rod" solreffriction=".1 1" condim="6" adhesion="1"/></contact>
  <tendon><fixed name="t" actuatorfrcrange="-1 1" springyield=".1"><joint joint="j" coef="1"/></fixed></tendon>
  <actuator>
    <muscle joint="j" lengthrange="-1 1"/>
    <motor tendon="t" delay=".01" nsample="3"/>
    <general joint="j" dyntype="integrator" actlimited="true" actrange="-1 1"/>
  </actuator>
  <keyframe><key time="1"/></keyframe>
</mujoco>
"""


@functools.cache
def _with_every_number() -> tuple[tuple[mujoco.MjModel, tuple], ...]:
    """Models, and what `put_model` makes of them by itself: without automatic resets, whose state C computes."""
    models = [
        mujoco.MjModel.from_xml_string(MORE),
        mujoco.MjModel.from_xml_path(str(Path(__file__).with_name("everything.xml"))),
    ]
    for mjm in models:
        mjm.opt.disableflags = int(mujoco.mjtDisableBit.mjDSBL_AUTORESET)
    return tuple((mjm, build(mjm)) for mjm in models)


def _is_read(mjm: mujoco.MjModel, built: tuple, field: str) -> bool:
    """Whether another value of a field makes another model."""
    x = getattr(mjm, field)
    before = x.copy()
    x[:] = 1.1 * x + 0.01
    topology, flat = build(mjm)
    x[:] = before
    return topology is not built[0] or not np.array_equal(flat, built[1])


@pytest.mark.parametrize("field", _numbers())
def test_every_number_that_is_said_to_be_read_makes_another_model(field):
    assert any(_is_read(mjm, built, field) for mjm, built in _with_every_number())


def test_every_option_has_been_thought_of():
    mjm = mujoco.MjModel.from_xml_string("<mujoco/>")
    options = {name for name in dir(mjm.opt) if name[0] != "_" and not callable(getattr(mjm.opt, name))}
    refused = {name.removeprefix("opt.") for name in EDITED if name.startswith("opt.")}
    read = {"timestep", "impratio", "tolerance", "ls_tolerance", "iterations", "ls_iterations"}
    read |= {"noslip_iterations", "noslip_tolerance"}
    read |= {"gravity", "density", "viscosity", "wind", "disableflags", "disableactuator"}
    of_refused = {"sleep_tolerance", "ccd_tolerance", "ccd_iterations", "magnetic"}
    of_refused |= {"sdf_initpoints", "sdf_iterations", "o_margin", "o_solref", "o_solimp", "o_friction"}
    without_effect = {"jacobian"}
    assert options == refused | read | of_refused | without_effect


def test_a_finding_reads_as_one_line():
    elements = tuple(f"tendon {i}" for i in range(6))
    finding = Finding("tendon", "these are not simulated", elements, "remove them")
    assert str(finding) == (
        "tendon: these are not simulated (tendon 0, tendon 1, tendon 2, tendon 3 and 2 more); remove them"
    )
    assert str(Finding("cone", "no")) == "cone: no"


def test_the_error_lists_every_finding_and_survives_a_process_border():
    mjm = mujoco.MjModel.from_xml_string(BAD)
    error = UnsupportedModelError(check(mjm))
    lines = str(error).splitlines()
    assert isinstance(error, MujocoTorchError) and isinstance(error, ValueError)
    assert lines[0] == "this release does not simulate the model exactly, 3 findings:"
    assert lines[1].startswith("  integrator: the integrator discrete") and "Euler or RK4" in lines[1]
    assert lines[3].startswith("  sensor: ") and "sensor 'q', sensor 1" in lines[3] and len(lines) == 4
    copy = pickle.loads(pickle.dumps(error))
    assert copy.findings == error.findings and str(copy) == str(error)


def test_feature_ids_are_unique_kebab_case_and_all_tested():
    features = [rule.feature for rule in RULES]
    assert len(set(features)) == len(features)
    assert all(re.fullmatch("[a-z]+(-[a-z]+)*", feature) for feature in features)
    elsewhere = {"cone", "disable-flag", "callback", "equality", "tendon-armature", "actuator-transmission"}
    assert set(features) == {case[0] for case in REFUSED} | elsewhere


def test_the_table_lists_every_rule():
    table = supported_table()
    assert all(f"| `{rule.feature}` | {rule.refused} | {rule.hint} |" in table for rule in RULES)
    assert all(f"| {area} | {what} |" in table for area, what in SUPPORTED)
    assert table.count("\n|") == len(RULES) + len(SUPPORTED) + 3
