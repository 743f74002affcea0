"""The enumerations carry MuJoCo's members and values, all of them."""

import enum

import mujoco
import pytest

from mujoco_torch._src import enums

C_ENUMS = {
    "BiasType": ("mjtBias", "mjBIAS_"),
    "CamLightType": ("mjtCamLight", "mjCAMLIGHT_"),
    "ConeType": ("mjtCone", "mjCONE_"),
    "ConstraintType": ("mjtConstraint", "mjCNSTR_"),
    "CtrlChart": ("mjtCtrlChart", "mjCHART_"),
    "CtrlInput": ("mjtCtrlInput", "mjINPUT_"),
    "DisableBit": ("mjtDisableBit", "mjDSBL_"),
    "DynType": ("mjtDyn", "mjDYN_"),
    "EnableBit": ("mjtEnableBit", "mjENBL_"),
    "EqType": ("mjtEq", "mjEQ_"),
    "GainType": ("mjtGain", "mjGAIN_"),
    "GeomType": ("mjtGeom", "mjGEOM_"),
    "IntegratorType": ("mjtIntegrator", "mjINT_"),
    "JacobianType": ("mjtJacobian", "mjJAC_"),
    "JointType": ("mjtJoint", "mjJNT_"),
    "ObjType": ("mjtObj", "mjOBJ_"),
    "SameFrame": ("mjtSameFrame", "mjSAMEFRAME_"),
    "SensorType": ("mjtSensor", "mjSENS_"),
    "SolverType": ("mjtSolver", "mjSOL_"),
    "TendonType": ("mjtTendon", "mjTENDON_"),
    "TrnType": ("mjtTrn", "mjTRN_"),
    "WrapType": ("mjtWrap", "mjWRAP_"),
    "WarningType": ("mjtWarning", "mjWARN_"),
}


def _members_of_c(c_name: str, prefix: str) -> dict[str, int]:
    """Members of a C enumeration without prefix; the counts (`mjN...`) are no members."""
    members = getattr(mujoco, c_name).__members__.items()
    return {name.removeprefix(prefix): int(value) for name, value in members if not name.startswith("mjN")}


@pytest.mark.parametrize("name", C_ENUMS)
def test_members_and_values_are_those_of_c(name):
    ours = {member.name: int(member) for member in getattr(enums, name)}
    assert ours == _members_of_c(*C_ENUMS[name])


def test_every_enumeration_of_the_module_is_compared():
    public = {
        name
        for name, value in vars(enums).items()
        if isinstance(value, type) and issubclass(value, enum.Enum) and value.__module__ == enums.__name__
    }
    assert public == set(C_ENUMS)


@pytest.mark.parametrize("name", ["DisableBit", "EnableBit"])
def test_bits_combine(name):
    bits = getattr(enums, name)
    assert issubclass(bits, enum.IntFlag)
    both = bits(1) | bits(2)
    assert bits(1) in both and int(both) == 3
