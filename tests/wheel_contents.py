"""Check that an installed agentload holds every file of the packages of a checkout, and the samples.

Example: python tests/wheel_contents.py CHECKOUT
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

# Folder in the checkout -> (package, folder in it, what must be among its files whatever the checkout says).
FOLDERS = {
    "agentload": ("agentload", ".", ("py.typed", "profiles")),
    "traces/agentload_traces": ("agentload_traces", ".", ("py.typed", "_filler_words.txt")),
    "traces/samples": ("agentload_traces", "samples", ("README.md", "LICENSE-Apache-2.0.txt")),
    "simbackend/agentload_simbackend": ("agentload_simbackend", ".", ("py.typed", "specs", "data")),
    "analysis/agentload_analysis": ("agentload_analysis", ".", ("py.typed", "report.css", "report.js")),
}


def installed_folder(package: str) -> Path:
    """Where a package is installed, without importing it."""
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit(f"error: package {package} is not installed")
    return Path(spec.submodule_search_locations[0])


def files_of(folder: Path) -> list[Path]:
    """The files below a folder that are not made by Python itself."""
    found = (path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    return sorted(path.relative_to(folder) for path in found)


def main(checkout: Path) -> None:
    """Compare byte for byte; exit with a line that names what is missing."""
    for folder, (package, inside, needed) in FOLDERS.items():
        source = checkout / folder
        target = installed_folder(package) / inside
        if target.is_relative_to(checkout):
            raise SystemExit(f"error: {package} comes from the checkout, not from a wheel")
        for name in needed:
            if not (target / name).exists():
                raise SystemExit(f"error: {target / name} is missing: it is not in the wheel")
        names = files_of(source)
        for path in names:
            if not (target / path).is_file() or (target / path).read_bytes() != (source / path).read_bytes():
                raise SystemExit(f"error: {target / path} is missing or differs from that in {folder}")
        sys.stdout.write(f"{folder}: {len(names)} files\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
