"""`mjt`: what the PyTorch compiler makes of a MuJoCo model simulated by mujoco-torch."""

__version__ = "0.1.0"
