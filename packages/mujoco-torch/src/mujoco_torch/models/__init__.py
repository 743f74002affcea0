"""The packaged MJCF models; `mujoco_torch.model_path` finds them by name."""
