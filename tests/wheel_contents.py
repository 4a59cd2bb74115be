"""Check that an installed agentload holds every data file of a checkout.

Example: python tests/wheel_contents.py CHECKOUT
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

# Folder in the checkout -> (package, folder in it).
DATA = {
    "agentload/profiles": ("agentload", "profiles"),
    "traces/samples": ("agentload_traces", "samples"),
    "simbackend/agentload_simbackend/specs": ("agentload_simbackend", "specs"),
}


def installed_folder(package: str) -> Path:
    """Where a package is installed, without importing it."""
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit(f"error: package {package} is not installed")
    return Path(spec.submodule_search_locations[0])


def main(checkout: Path) -> None:
    """Compare byte for byte; exit with a line that names what is missing."""
    for folder, (package, inside) in DATA.items():
        source = checkout / folder
        names = sorted(path.relative_to(source) for path in source.rglob("*") if path.is_file())
        if not names:
            raise SystemExit(f"error: {source} holds no files")
        target = installed_folder(package) / inside
        if target.is_relative_to(checkout):
            raise SystemExit(f"error: {package} comes from the checkout, not from a wheel")
        for name in names:
            if not (target / name).is_file() or (target / name).read_bytes() != (source / name).read_bytes():
                raise SystemExit(
                    f"error: {package}/{inside}/{name} is missing or differs in the installed package"
                )
        sys.stdout.write(f"{package}/{inside}: {len(names)} files\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
