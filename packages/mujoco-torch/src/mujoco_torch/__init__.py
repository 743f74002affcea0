"""MuJoCo's physics in PyTorch: thousands of worlds in one call, exact, compiled to one graph."""

from mujoco_torch._src.actuation import fwd_actuation
from mujoco_torch._src.bias import rne
from mujoco_torch._src.check import Finding, check
from mujoco_torch._src.com import com_pos, com_vel
from mujoco_torch._src.compile import compile
from mujoco_torch._src.constraint import make_constraint
from mujoco_torch._src.contact import collision
from mujoco_torch._src.energy import energy_pos, energy_vel
from mujoco_torch._src.errors import ArgumentError, MujocoTorchError, StateError, UnsupportedModelError
from mujoco_torch._src.forward import (
    forward,
    fwd_acceleration,
    fwd_position,
    fwd_velocity,
    solve,
)
from mujoco_torch._src.inertia import crb, factor_m
from mujoco_torch._src.integrate import euler, implicit, rollout, rungekutta4, step, step1, step2
from mujoco_torch._src.inverse import inverse, rne_acc
from mujoco_torch._src.io import device_put, get_data_into, make_data, put_data, put_model
from mujoco_torch._src.kinematics import camlight, kinematics
from mujoco_torch._src.passive import passive
from mujoco_torch._src.reset import reset_data
from mujoco_torch._src.support import apply_ft, efc_jacobian, full_m, jac, mul_m, xfrc_accumulate
from mujoco_torch._src.tendon import tendon
from mujoco_torch._src.transmission import transmission
from mujoco_torch._src.types import Contact, Data, Model
from mujoco_torch._src.zoo import MODELS, ModelNotFoundError, model_path

__version__ = "0.1.0"

__all__ = [
    "MODELS",
    "ArgumentError",
    "Contact",
    "Data",
    "Finding",
    "Model",
    "ModelNotFoundError",
    "MujocoTorchError",
    "StateError",
    "UnsupportedModelError",
    "apply_ft",
    "camlight",
    "check",
    "collision",
    "com_pos",
    "com_vel",
    "compile",
    "crb",
    "device_put",
    "efc_jacobian",
    "energy_pos",
    "energy_vel",
    "euler",
    "factor_m",
    "forward",
    "full_m",
    "fwd_acceleration",
    "fwd_actuation",
    "fwd_position",
    "fwd_velocity",
    "get_data_into",
    "implicit",
    "inverse",
    "jac",
    "kinematics",
    "make_constraint",
    "make_data",
    "model_path",
    "mul_m",
    "passive",
    "put_data",
    "put_model",
    "reset_data",
    "rne",
    "rne_acc",
    "rollout",
    "rungekutta4",
    "solve",
    "step",
    "step1",
    "step2",
    "tendon",
    "transmission",
    "xfrc_accumulate",
]
