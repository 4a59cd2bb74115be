"""What keeps the house in order: who imports whom, what is slow to load, how large things get."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from agentload._cli import cli
from agentload_simbackend import build_engine

ROOT = Path(__file__).resolve().parent.parent

PACKAGES = {
    "agentload": ROOT / "agentload",
    "agentload_traces": ROOT / "traces/agentload_traces",
    "agentload_simbackend": ROOT / "simbackend/agentload_simbackend",
    "agentload_analysis": ROOT / "analysis/agentload_analysis",
}

MAY_IMPORT = {
    "agentload": {"agentload_traces", "agentload_simbackend", "agentload_analysis"},
    "agentload_traces": set[str](),
    "agentload_simbackend": {"agentload_traces"},
    "agentload_analysis": {"agentload_traces"},
}

# What one package takes from the private modules of another. The server's text is made of the filler's own
# blocks and counted by its tokeniser, which are no business of anybody else's.
PRIVATE_IMPORTS = {
    (f"simbackend/agentload_simbackend/{module}.py", f"agentload_traces.{name}")
    for module, name in (("_scripted", "_filler"), ("_server", "_tokens"), ("_server_prompt", "_tokens"))
}

# The sans-IO cores are told the time and given their randomness: these modules, and all that they import from
# their own package. The virtual-time driver is here too, for it must not know any real clock.
CORES = ["agentload._player", "agentload._prompts", "agentload._virtual", "agentload._generate._sessions"]
NOT_IN_CORES = {
    "aiohttp",
    "asyncio",
    "http",
    "random",
    "requests",
    "socket",
    "threading",
    "time",
    "urllib.request",
    "uvloop",
}

MODULE_LINES = 400
FUNCTION_LINES = 60


def modules() -> Iterator[tuple[str, Path]]:
    for package, folder in PACKAGES.items():
        for path in sorted(folder.rglob("*.py")):
            yield package, path


def python_files() -> list[Path]:
    others = [
        path for folder in ("tests", "benchmarks", "examples") for path in (ROOT / folder).rglob("*.py")
    ]
    return sorted([path for _, path in modules()] + others)


def imported(path: Path) -> Iterator[str]:
    """Full names of all modules that a file imports, anywhere in it."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: relative import"
            assert node.module
            yield node.module


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def test_imports_between_packages_run_one_way() -> None:
    wrong = [
        f"{relative(path)} imports {name}"
        for package, path in modules()
        for name in imported(path)
        if (root := name.partition(".")[0]) in PACKAGES
        and root != package
        and root not in MAY_IMPORT[package]
    ]
    assert not wrong


def test_packages_take_only_public_names_from_each_other() -> None:
    wrong = {
        (relative(path), name)
        for package, path in modules()
        for name in imported(path)
        if (root := name.partition(".")[0]) in PACKAGES and root != package and "._" in name
    }
    assert wrong - PRIVATE_IMPORTS == set()
    assert PRIVATE_IMPORTS - wrong == set(), "these exceptions are needed no more"


def module_path(name: str) -> Path | None:
    """The file of a module of the house, `None` for other modules."""
    root, _, rest = name.partition(".")
    if root not in PACKAGES:
        return None
    base = PACKAGES[root].joinpath(*rest.split(".")) if rest else PACKAGES[root]
    return next((path for path in (base.with_suffix(".py"), base / "__init__.py") if path.is_file()), None)


def core_modules() -> dict[str, Path]:
    """All modules of the cores, by name."""
    found: dict[str, Path] = {}
    open_names = [*CORES, build_engine.__module__]
    while open_names:
        name = open_names.pop()
        path = module_path(name)
        assert path is not None, f"there is no module {name}"
        found[name] = path
        package = name.partition(".")[0]
        inner = (other for other in imported(path) if other.startswith(f"{package}.") and other not in found)
        open_names += [other for other in inner if module_path(other)]
    return found


def test_cores_hold_no_sockets_clocks_or_global_randomness() -> None:
    wrong = [
        f"{name} imports {other}"
        for name, path in core_modules().items()
        for other in imported(path)
        if {other, other.partition(".")[0]} & NOT_IN_CORES
    ]
    assert not wrong


@pytest.mark.parametrize("arguments", [["--help"], ["--version"]])
def test_help_does_not_wait_for_heavy_imports(arguments: list[str]) -> None:
    script = (
        "import sys, agentload, agentload_traces, agentload_simbackend, agentload_analysis\n"
        "from agentload._cli import main\n"
        "try: main(sys.argv[1:])\n"
        "except SystemExit as end: assert not end.code, end.code\n"
        "print('imported:', *sorted({name.partition('.')[0] for name in sys.modules}))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    loaded = set(done.stdout.splitlines()[-1].split()[1:])
    assert "click" in loaded
    assert loaded & {"aiohttp", "altair", "polars", "rich", "splintr", "vl_convert"} == set()


@pytest.mark.parametrize("package", PACKAGES)
def test_exported_names_exist_and_are_documented(package: str) -> None:
    module = importlib.import_module(package)
    assert module.__doc__
    undocumented = []
    for name in getattr(module, "__all__", []):
        value = getattr(module, name)
        if inspect.isclass(value) or inspect.isfunction(value):
            undocumented += [] if value.__doc__ else [name]
        if inspect.isclass(value):
            undocumented += [
                f"{name}.{method}"
                for method, function in vars(value).items()
                if not method.startswith("_") and inspect.isfunction(function) and not function.__doc__
            ]
    assert undocumented == []


def test_modules_and_functions_stay_small() -> None:
    large = []
    for path in python_files():
        text = path.read_text(encoding="utf-8")
        if (lines := text.count("\n")) > MODULE_LINES:
            large.append(f"{relative(path)} has {lines} lines")
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                assert node.end_lineno is not None
                if (lines := node.end_lineno - node.lineno + 1) > FUNCTION_LINES:
                    large.append(f"{relative(path)}:{node.lineno} {node.name} has {lines} lines")
    assert not large


def test_no_path_of_one_machine_is_written_down() -> None:
    tracked = [
        *python_files(),
        *ROOT.glob("*.md"),
        *ROOT.glob("docs/*.md"),
        ROOT / "Makefile",
        ROOT / ".ci/run",
    ]
    tracked += [path for folder in PACKAGES.values() for path in folder.rglob("*.toml")]
    machine_path = re.compile(r"(?<![\w./:-])/(work|home|root|Users|opt|mnt)/\w")
    wrong = [
        f"{relative(path)}:{number}"
        for path in tracked
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if machine_path.search(line)
    ]
    assert not wrong


def test_dependencies_are_pinned_by_name_and_version_only() -> None:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    assert lines
    wrong = [line for line in lines if not re.fullmatch(r"[a-z0-9-]+==[\w.]+( ; [^/]+)?", line)]
    assert not wrong


def commands(
    command: click.Command, words: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """All commands below one, with the words that call them."""
    yield words, command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            child = command.get_command(context, name)
            assert child is not None
            yield from commands(child, (*words, name))


def test_every_command_has_help_with_an_example() -> None:
    for words, _ in commands(cli):
        result = CliRunner().invoke(cli, [*words, "--help"])
        assert result.exit_code == 0, (words, result.output)
        assert "Example:" in result.output, f"agentload {' '.join(words)}"
        assert f"agentload {' '.join(words)}".strip() in result.output.partition("Example:")[2], words
