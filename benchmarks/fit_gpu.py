"""Fit the GPU parameters and print them, with their errors on rows that they were not fitted to.

    python benchmarks/fit_gpu.py [ROWS.csv]

The values go by hand into simbackend/agentload_simbackend/specs/chips/*.toml, rounded to three digits; those
of the B200 into the files of GB200, B300 and GB300 too.
"""

from __future__ import annotations

import sys
from collections import Counter

from agentload_simbackend._gpu_fit import GpuErrors, errors, fit, fit_systems, leave_one_out, split
from agentload_simbackend._gpu_rows import MEASURED, read_gpu_rows


def main() -> None:
    parts = split(read_gpu_rows(sys.argv[1] if len(sys.argv) > 1 else MEASURED))
    for reason, rows in parts.left_out.most_common():
        print(f"left out {rows:5}  {reason}")
    rows = Counter(case.row.system for case in parts.fit)
    for system in sorted({case.row.system for case in parts.others} - set(parts.systems)):
        print(f"{system}: not fitted, too few rows")
    fitted = fit_systems(parts.fit)
    for system, parameters in fitted.items():
        print(f"{system}: fitted on {rows[system]} rows")
        for name, value in parameters._asdict().items():
            print(f"    {name:26} {value:.3g}")
    held_out = [case for case in parts.others if case.row.system in fitted]
    show("fitted on", errors(parts.fit, lambda c: fitted[c.row.system]))
    show("held out", errors(held_out, lambda c: fitted[c.row.system]))
    for key in sorted({(c.row.system, c.row.model_path) for c in held_out}):
        own = [c for c in held_out if (c.row.system, c.row.model_path) == key]
        show(f"  {' '.join(key)}", errors(own, lambda c: fitted[c.row.system]))
    cases = parts.of_systems
    without = leave_one_out(cases)
    left = [c for c in cases if (c.row.system, c.row.model_path) in without]
    show("model not fitted on", errors(left, lambda c: without[c.row.system, c.row.model_path]))
    for key in without:
        own = [c for c in cases if (c.row.system, c.row.model_path) == key]
        show(f"  {' '.join(key)}", errors(own, lambda c: without[c.row.system, c.row.model_path]))
    other_systems = {s: fit([c for c in cases if c.row.system != s]) for s in fitted}
    show("system not fitted on", errors(cases, lambda c: other_systems[c.row.system]))
    for system in fitted:
        own = [c for c in cases if c.row.system == system]
        show(f"  {system}", errors(own, lambda c: other_systems[c.row.system]))


def show(name: str, found: GpuErrors) -> None:
    def percent(value: float | None) -> str:
        return "-" if value is None else f"{100 * value:.1f}"

    print(
        f"{name:45} {found.rows:5} rows  TPOT {percent(found.tpot_median)} % (p90 {percent(found.tpot_p90)})"
        f"  {found.ttft_rows:5} rows  TTFT {percent(found.ttft_median)} % (p90 {percent(found.ttft_p90)})"
    )


if __name__ == "__main__":
    main()
