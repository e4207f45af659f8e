"""Writes metrics.md, the table of all metrics, from the catalogue:

python docs/make_metrics.py [--check]
"""

from __future__ import annotations

import sys
from pathlib import Path

from gpuconsole.model.metrics import CATALOGUE

PAGE = Path(__file__).with_name("metrics.md")
HEAD = """# Metrics

Made by `python docs/make_metrics.py` from `gpuconsole/model/metrics.py`; a test checks that this
page is current.

The name of a metric ends with its unit, if it has one. A ratio is 0 to 1. **source** is the reader
that usually supplies the value: `nvml.gpm` are the hardware counters of Hopper and newer as
averages between two readings, `nvml.field` are NVML's field values, `nvml` is a separate call,
`derived` is computed here. If another source supplied the value (PCIe and NVLink before Hopper,
DCGM), the device screen and `Sample.sources` name it. **needs** is the oldest hardware that reports
the value. A value that a driver, a container or MIG withholds reads `n/a` with the reason, never
zero.

| metric | unit | kind | source | needs | meaning |
|---|---|---|---|---|---|
"""


def page() -> str:
    rows = (
        (
            f"| `{metric.name}` | {metric.unit or '-'} | {metric.kind} | {metric.source} |"
            f" {metric.needs} | {metric.meaning} |\n"
        )
        for metric in CATALOGUE.values()
    )
    return HEAD + "".join(rows)


def main() -> int:
    if "--check" not in sys.argv[1:]:
        PAGE.write_text(page(), encoding="utf-8")
        return 0
    if PAGE.read_text(encoding="utf-8") == page():
        return 0
    print(f"{PAGE.name} is out of date: python docs/make_metrics.py", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
