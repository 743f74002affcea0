"""Print the ratios in files of results as a Markdown table, one row per comparison."""

from __future__ import annotations

import json
import sys
from pathlib import Path

HEADER = """\
| scene | worlds | dtype | engines | steps/s | ratio, median (smallest to largest) |
|---|---:|---|---|---:|---:|"""


def main() -> None:
    """Read the files named on the command line."""
    print(HEADER)
    for path in map(Path, sys.argv[1:]):
        for line in map(json.loads, path.read_text().splitlines()):
            if line["kind"] == "ratio":
                print(row(line))


def row(line: dict) -> str:
    """One comparison."""
    engines = f"{line['numerator']} / {line['denominator']}"
    speeds = f"{line['numerator_steps_per_second']:,.0f} / {line['denominator_steps_per_second']:,.0f}"
    ratio = f"{line['ratio_median']:.2f} ({line['ratio_min']:.2f} to {line['ratio_max']:.2f})"
    cells = (line["scene"], f"{line['batch']:,}", line["dtype"], engines, speeds, ratio)
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    main()
