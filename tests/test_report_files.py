"""The files of a report: what they replace, what they leave alone, what is left where they fail."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest
from file_limits import file_size_limit
from report_output import report
from run_rows import agent_session, write_run

from agentload_analysis import summarise, write_csv, write_html
from agentload_traces import AgentloadError, RunDirectoryError

LONGEST_NAME = 255


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return write_run(tmp_path / "run", agent_session(1, 5))


def write_page(run: Path, folder: Path) -> Path:
    return write_html(run, folder / "page.html")


def write_tables(run: Path, folder: Path) -> Path:
    return write_csv(summarise(run), folder)[0]


WRITERS = pytest.mark.parametrize(
    ("write", "name"), [(write_page, "page.html"), (write_tables, "per_session.csv")]
)
Write = Callable[[Path, Path], Path]


def refusal(write: Write, run: Path, folder: Path) -> str:
    with pytest.raises(AgentloadError) as refused:
        write(run, folder)
    assert "\n" not in str(refused.value)
    return str(refused.value)


@WRITERS
@pytest.mark.parametrize("through_link", [False, True])
def test_a_fifo_is_refused_and_stays(
    run: Path, tmp_path: Path, write: Write, name: str, through_link: bool
) -> None:
    folder = tmp_path / "out"
    folder.mkdir()
    fifo = tmp_path / "fifo" if through_link else folder / name
    os.mkfifo(fifo)
    if through_link:
        (folder / name).symlink_to(fifo)
    assert "is a pipe; give the name of a file" in refusal(write, run, folder)
    assert stat.S_ISFIFO(fifo.lstat().st_mode)
    assert [path.name for path in folder.iterdir()] == [name]


@WRITERS
def test_a_directory_is_refused_and_stays(run: Path, tmp_path: Path, write: Write, name: str) -> None:
    (tmp_path / "out" / name).mkdir(parents=True)
    assert "is a directory; give the name of a file" in refusal(write, run, tmp_path / "out")
    assert [path.name for path in (tmp_path / "out").iterdir()] == [name]


@WRITERS
@pytest.mark.parametrize("existing", [True, False])
def test_a_symlink_is_written_through(
    run: Path, tmp_path: Path, write: Write, name: str, existing: bool
) -> None:
    plain = tmp_path / "plain"
    plain.mkdir()
    expected = write(run, plain).read_bytes()
    folder, elsewhere = tmp_path / "out", tmp_path / "elsewhere"
    folder.mkdir()
    elsewhere.mkdir()
    if existing:
        (elsewhere / "file").write_text("old")
    (folder / name).symlink_to(Path("..") / "elsewhere" / "file")
    assert write(run, folder) == folder / name
    assert (folder / name).is_symlink()
    assert (elsewhere / "file").read_bytes() == expected
    assert [path.name for path in elsewhere.iterdir()] == ["file"]


@WRITERS
def test_a_circle_of_symlinks_is_one_line(run: Path, tmp_path: Path, write: Write, name: str) -> None:
    folder = tmp_path / "out"
    folder.mkdir()
    (folder / name).symlink_to(name)
    assert "cannot be written" in refusal(write, run, folder)


@WRITERS
def test_files_have_the_permissions_of_any_new_file_and_spare_others_files(
    run: Path, tmp_path: Path, write: Write, name: str
) -> None:
    folder = tmp_path / "out"
    folder.mkdir()
    (folder / f"{name}.tmp").write_text("of somebody else")
    (folder / name).write_text("old")
    before = os.umask(0o027)
    try:
        written = write(run, folder)
    finally:
        os.umask(before)
    assert stat.S_IMODE(written.stat().st_mode) == 0o640
    assert written.read_text(encoding="utf-8") != "old"
    assert (folder / f"{name}.tmp").read_text() == "of somebody else"
    assert not [path for path in folder.iterdir() if path.name.startswith(".")]


@WRITERS
def test_a_full_disk_is_one_line_and_leaves_what_was_there(
    run: Path, tmp_path: Path, write: Write, name: str
) -> None:
    folder = tmp_path / "out"
    folder.mkdir()
    (folder / name).write_text("old")
    with file_size_limit(64):
        line = refusal(write, run, folder)
    assert f"{folder / name}: cannot be written: " in line
    assert [path.name for path in folder.iterdir()] == [name]
    assert (folder / name).read_text() == "old"


def test_the_longest_name_that_a_file_can_have_will_do_and_a_longer_one_is_one_line(
    run: Path, tmp_path: Path
) -> None:
    longest = tmp_path / ("p" * (LONGEST_NAME - 5) + ".html")
    assert write_html(run, longest).stat().st_size
    with pytest.raises(AgentloadError, match="cannot be written: File name too long"):
        write_html(run, tmp_path / ("p" * (LONGEST_NAME + 1)))
    with pytest.raises(AgentloadError, match="cannot be written: File name too long"):
        write_csv(summarise(run), tmp_path / ("d" * (LONGEST_NAME + 1)))


def test_a_file_in_place_of_a_directory_is_one_line(run: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(AgentloadError, match="cannot be written: Not a directory"):
        write_html(run, tmp_path / "file" / "page.html")
    with pytest.raises(AgentloadError, match="cannot be written: Not a directory"):
        write_csv(summarise(run), tmp_path / "file" / "tables")


@pytest.mark.skipif(os.geteuid() == 0, reason="nothing is forbidden to root")
@WRITERS
def test_a_forbidden_directory_is_one_line(run: Path, tmp_path: Path, write: Write, name: str) -> None:
    folder = tmp_path / "out"
    folder.mkdir(mode=0o555)
    assert "cannot be written: Permission denied" in refusal(write, run, folder)
    assert not (folder / name).exists()


def test_a_run_that_cannot_be_read_is_one_line(run: Path, tmp_path: Path) -> None:
    with pytest.raises(RunDirectoryError, match="cannot be read: File name too long"):
        summarise(tmp_path / ("r" * (LONGEST_NAME + 1)))
    table = run / "requests.parquet"
    content = table.read_bytes()
    for damaged in (b"", content[:-20], b"PAR1" * 10, content[: len(content) // 2] + content[-100:]):
        table.write_bytes(damaged)
        with pytest.raises(RunDirectoryError) as refused:
            summarise(run)
        assert str(refused.value).startswith(f"{run}: its rows cannot be read: ")
        assert str(refused.value).isprintable()


def test_a_run_that_is_not_named_in_utf_8_is_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = Path(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9"))
    run = write_run(folder, agent_session(1, 5), status="running")
    page = folder / "page.html"
    out = report(capsys, run, "--html", page)
    assert f"wrote {tmp_path}/caf�/page.html" in out
    assert f'<p class="run">{tmp_path}/caf�</p>' in page.read_text(encoding="utf-8")
    assert f'"run": "{tmp_path}/caf\\ufffd"' in report(capsys, run, "--json")
    with pytest.raises(AgentloadError, match=r"caf�/no/page\.html: cannot be written"):
        write_html(run, folder / "no" / "page.html")
