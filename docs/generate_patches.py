"""Writes patches.md out of the series of patches. Run it after a change of one; a test compares the two."""

from pathlib import Path

from mjt_cli.patches.series import Patch, Series, all_series

PAGE = Path(__file__).parent / "patches.md"

INTRODUCTION = """# Patches of PyTorch and tensordict

Fixes for bugs of PyTorch and tensordict that this project met, as diffs of Python files for installed wheels. Nothing
in `mujoco_torch` needs one, and nothing applies one on its own: the solver of a step is one operation, and
`test_own_step.py` runs the step on released versions. They are for what is built around it: a loop of one's own under
`torch.vmap`, outputs of a CUDA graph fed back, entries shared by all worlds. Made from `patches/*/series.toml` by
`docs/generate_patches.py`.

    mjt patches status                      what each patch is to the installed versions
    mjt patches apply [NAME...]             apply all that fit, or those named
    mjt patches revert [NAME...]            take them off again
    mjt patches status --python PATH        the same for another environment

[The command line](cli.md#mjt-patches) has the details. `nox -s patched-torch-tests` proves every patch, `nox -s
patched-torch-tests -- 2.11.0 tensordict==0.14.0` those of the oldest supported versions: the tests of a patch fail
without it for the reason stated here and pass with it, it applies without fuzz, and after it every file has the hash it
had. Without a GPU the tests run the compiler's own code over memory, partitions and devices that are made up; those
marked `gpu` are skipped there, and no GPU has run them yet.
"""

SERIES = """
## {upstream}

Tested with {distribution} {tested}.
"""


def page() -> str:
    """The whole page."""
    return INTRODUCTION + "".join(series_text(series) for series in all_series())


def series_text(series: Series) -> str:
    """The patches of one upstream."""
    head = SERIES.format(
        upstream=series.upstream, distribution=series.distribution, tested=", ".join(series.tested)
    )
    return head + "".join(patch_text(patch) for patch in series.patches)


def patch_text(patch: Patch) -> str:
    """One patch: a heading, its state, its cause, the reason why there is no diff."""
    facts = [f"status {patch.status}" + (f" in {patch.merged_in}" if patch.merged_in else "")]
    facts += [f"not in {patch.unaffected}"] if patch.unaffected else []
    facts += [f"[upstream]({patch.link})"]
    facts += [f"`{variant.file}` for {variant.versions}" for variant in patch.variants]
    facts += [f"test `{patch.test}`"] if patch.test else []
    facts += [f"test needs `{name}`" for name in patch.needs]
    paragraphs = [f"### {patch.name}: {patch.title}", "; ".join(facts) + ".", patch.cause.strip()]
    if patch.fails_with:
        paragraphs.append(f"Without it: `{patch.fails_with}`.")
    if patch.reason:
        paragraphs.append(f"{patch.status.capitalize()}: {patch.reason.strip()}")
    return "\n" + "\n\n".join(paragraphs) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
