"""Patches of PyTorch and tensordict: what they are (`series`), where they go (`target`), how (`hunks`, `installed`)."""
