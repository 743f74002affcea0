"""Implementation of mujoco_torch; the public names live in the package itself."""
