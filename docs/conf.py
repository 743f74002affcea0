"""Configuration of the documentation's build."""

project = "mujoco-torch"
author = "the mujoco-torch authors"
release = "0.1.0"

extensions = ["myst_parser", "sphinx.ext.mathjax"]
myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 3

html_theme = "furo"
html_title = f"mujoco-torch {release}"
exclude_patterns = ["_build"]
