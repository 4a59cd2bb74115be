"""Replays under faults: a failed turn is a row whose times add up, and both clocks tell the same story."""

from __future__ import annotations

import time
from pathlib import Path

import msgspec
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs
from session_feeds import closed_loop, open_loop
from session_graphs import sessions
from test_cli_run import REQUESTS, agentload, failing
from test_virtual import Rows
from wall_runs import WallRows, play_wall

from agentload._options import ReplayOptions
from agentload._run_manifest import new_manifest
from agentload._virtual import VirtualRun
from agentload_simbackend import (
    ChipsDown,
    Drain,
    Fault,
    KvLoss,
    LinkDown,
    PowerCap,
    Refuse,
    Reset,
    SimServer,
    Stall,
    load_deployment,
)
from agentload_simbackend.testing import FixedStepEngine
from agentload_traces import RequestRow, RunReader, RunWriter, Session, Turn, write_trace

MS = 1_000_000


def turn(session_id: str, turn_id: str, output_tokens: int, **fields: object) -> Turn:
    return Turn(
        session_id=session_id,
        turn_id=turn_id,
        input_tokens=100,
        output_tokens=output_tokens,
        **fields,  # type: ignore[arg-type]
    )


TROUBLED = [
    # Decodes for a second when the connections break after half of it.
    turn("a", "a0", 1_000, start_ms=0.0),
    turn("a", "a1", 5, wait_for=("a0",)),
    # Is over before anything happens; its second turn comes while the deployment refuses.
    turn("b", "b0", 20, start_ms=0.0),
    turn("b", "b1", 5, wait_for=("b0",), delay_ms=1_300),
    # Comes when all is well again.
    turn("c", "c0", 20, start_ms=3_000.0),
    turn("c", "c1", 20, wait_for=("c0",)),
]
TROUBLES: tuple[Fault, ...] = (Reset(at_s=0.5), Refuse(at_s=1.0, for_s=1.0, status=503))
STATUSES = {"a0": "failed", "a1": "skipped", "b0": "ok", "b1": "failed", "c0": "ok", "c1": "ok"}


def by_session(turns: list[Turn]) -> list[Session]:
    names = dict.fromkeys(each.session_id for each in turns)
    return [Session(name, tuple(each for each in turns if each.session_id == name)) for name in names]


def troubled_engine() -> FixedStepEngine:
    return FixedStepEngine(step_ns=MS, prefill_ns=5 * MS, faults=TROUBLES)


def troubled_virtually() -> dict[str, RequestRow]:
    rows = Rows()
    VirtualRun(troubled_engine(), open_loop(by_session(TROUBLED), 1.0), rows).run()
    return {row.turn_id: row for row in rows.requests}


def phases_ns(row: RequestRow) -> int:
    told = (row.queue_ns, row.prefill_ns, row.handoff_ns, row.decode_ns, row.client_ns)
    return sum(phase or 0 for phase in told)


def test_a_failed_turn_keeps_what_came_and_where_its_time_went() -> None:
    rows = troubled_virtually()
    assert {name: row.status for name, row in rows.items()} == STATUSES
    broken = rows["a0"]
    assert broken.error == "connection_reset: the connection broke"
    assert broken.output_tokens == sum(broken.arrival_tokens or ()) == 495
    assert (broken.first_token_ns, broken.end_ns) == (6 * MS, 500 * MS)
    assert (broken.prefill_ns, phases_ns(broken)) == (5 * MS, 500 * MS)
    assert (broken.sent_tokens, broken.reported_output_tokens, broken.replica) == (100, None, 0)
    assert rows["b1"].error == "service_unavailable: refused"
    assert rows["b1"].end_ns == rows["b1"].scheduled_ns


async def test_both_clocks_tell_the_same_story() -> None:
    origin_ns = [time.monotonic_ns()]

    def clock() -> int:
        return max(0, time.monotonic_ns() - origin_ns[0])

    def start(at_ns: int) -> None:
        origin_ns[0] = at_ns

    rows = WallRows()
    async with SimServer(troubled_engine(), model="m", clock=clock) as server:
        feed = open_loop(by_session(TROUBLED), 1.0)
        await play_wall(server.url, feed, rows, seed=0, on_start=start)
    wall, virtual = {row.turn_id: row for row in rows.requests}, troubled_virtually()
    assert {name: row.status for name, row in wall.items()} == STATUSES
    assert wall["a0"].error == "the stream was cut off before its end"
    assert (wall["b1"].error, wall["b1"].http_status) == ("HTTP 503: refused", 503)
    # What comes later than in virtual time has less time until the fault, and never more.
    assert 0 < (wall["a0"].output_tokens or 0) <= (virtual["a0"].output_tokens or 0)
    assert (wall["a0"].end_ns or 0) >= (virtual["a0"].end_ns or 0)
    for row in (wall["b0"], wall["c0"], wall["c1"]):
        assert row.output_tokens == virtual[row.turn_id].output_tokens
        assert row.prefill_ns == virtual[row.turn_id].prefill_ns


@given(
    many=st.tuples(*(sessions(session_id=f"s{n}", max_turns=5) for n in range(3))).map(list),
    faults=st.lists(
        st.builds(Reset, at_s=st.floats(0, 3))
        | st.builds(
            Refuse,
            at_s=st.floats(0, 3),
            for_s=st.floats(0.01, 2),
            status=st.sampled_from([429, 503]),
        ),
        max_size=4,
    ),
    concurrency=st.integers(1, 3),
)
def test_whatever_happens_each_turn_is_one_row_whose_times_add_up(
    many: list[Session], faults: list[Fault], concurrency: int
) -> None:
    rows = Rows()
    engine = FixedStepEngine(step_ns=MS, tokens_per_step=3, prefill_ns=20 * MS, faults=faults)
    VirtualRun(engine, closed_loop(many, concurrency), rows).run()
    seen = {(row.session_id, row.turn_id): row for row in rows.requests}
    assert len(seen) == len(rows.requests) == sum(len(session.turns) for session in many)
    for session in many:
        for each in session.turns:
            row = seen[session.session_id, each.turn_id]
            waits = [name for name in (*each.wait_for, each.parent_turn_id) if name]
            waited = {seen[session.session_id, name].status for name in waits}
            assert (row.status == "skipped") == bool(waited - {"ok"})
            if row.status == "skipped":
                assert row.scheduled_ns is None
                continue
            assert phases_ns(row) == (row.end_ns or 0) - (row.scheduled_ns or 0)
            received = row.output_tokens or 0
            assert received == sum(row.arrival_tokens or ())
            assert (received == each.output_tokens) == (row.status == "ok")
            assert (row.first_token_ns is None) == (received == 0)


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "trace.jsonl"
    write_trace(path, [turn("a", "a0", 40), turn("a", "a1", 40, wait_for=("a0",), delay_ms=200)])
    return path


@pytest.fixture
def refusing(tmp_path: Path) -> Path:
    path = tmp_path / "faults.toml"
    path.write_text('[[faults]]\ntype = "refuse"\nat_s = 0.15\nstatus = 503\nretry_after_s = 2\n')
    return path


def test_a_real_server_and_virtual_time_agree(tmp_path: Path) -> None:
    faults, trace = tmp_path / "faults.json", tmp_path / "troubled.jsonl"
    faults.write_bytes(msgspec.json.encode(TROUBLES))
    long = [structs.replace(TROUBLED[0], output_tokens=20_000), *TROUBLED[1:]]
    write_trace(trace, long)
    tables = {}
    for clock in ("virtual", "wall"):
        out = tmp_path / clock
        done = agentload("replay", trace, "--out", out, "--clock", clock, "--faults", faults)
        assert done.returncode == 1, done.stderr
        assert "2 of 6 turns failed and 1 were not sent" in done.stderr
        tables[clock] = pl.read_parquet(out / REQUESTS).sort("turn_id")
        assert dict(tables[clock].select("turn_id", "status").iter_rows()) == STATUSES
        manifest = RunReader(out).manifest
        assert manifest.options["faults"] == str(faults)
        assert manifest.conditions[-1] == f"With the faults of {faults}: reset at 0.5 s, refuse at 1 s."
    answered = ["turn_id", "output_tokens", "steps", "cached_tokens", "prefill_ns"]
    whole = [table.filter(pl.col("status") == "ok").select(answered) for table in tables.values()]
    assert whole[0].equals(whole[1])
    virtual, wall = (table.row(0, named=True) for table in tables.values())
    # What comes later than in virtual time has less time until the fault, and never more.
    assert 0 < wall["output_tokens"] <= virtual["output_tokens"]
    assert virtual["end_ns"] == 500 * MS <= wall["end_ns"]
    assert tables["wall"]["http_status"].to_list() == [200, None, 200, 503, 200, 200]


ONE_OF_EACH: list[Fault] = [
    ChipsDown(at_s=0.25, chips=100, replica=0),
    LinkDown(at_s=0.25, for_s=0.4),
    Drain(at_s=0.25, for_s=0.6, replica=0),
    PowerCap(at_s=0.25, clock_fraction=0.5),
    KvLoss(at_s=0.25, store="decode"),
    Refuse(status=503, share=0.3),
    Stall(at_s=0.25, for_s=0.4),
    Reset(at_s=0.25, share=0.5),
]


@pytest.mark.slow
@pytest.mark.parametrize("fault", ONE_OF_EACH, ids=lambda fault: type(fault).__name__)
def test_each_fault_has_the_same_end_on_both_clocks(fault: Fault, tmp_path: Path) -> None:
    """First turns decode from about 0.07 to 0.5 s, so that a late client changes nobody's fate, and come one
    after the other: those that come at once are placed in whatever order their connections are read."""
    faults, trace = tmp_path / "faults.json", tmp_path / "crowd.jsonl"
    faults.write_bytes(msgspec.json.encode([fault]))
    crowd = []
    for place, name in enumerate("abcd"):
        crowd += [
            turn(name, f"{name}0", 1_500, start_ms=10.0 * place),
            turn(name, f"{name}1", 40, wait_for=(f"{name}0",)),
        ]
    write_trace(trace, crowd)
    fates = []
    for clock in ("virtual", "wall"):
        out = tmp_path / clock
        done = agentload("replay", trace, "--out", out, "--clock", clock, "--faults", faults, "--seed", 2)
        table = pl.read_parquet(out / REQUESTS).sort("turn_id")
        whole = table.filter(pl.col("status") == "ok").select("turn_id", "output_tokens", "steps")
        fates.append((done.returncode, table["status"].to_list(), whole.rows()))
    assert fates[0] == fates[1]
    broken = isinstance(fault, ChipsDown | Refuse | Reset)
    assert ("failed" in fates[0][1]) == broken == (fates[0][0] == 1)


def test_resume_wants_the_same_faults(tmp_path: Path, trace: Path, refusing: Path) -> None:
    out = tmp_path / "run"
    options = ReplayOptions(trace=trace, out=out, faults=refusing)
    with RunWriter(out, new_manifest(options, load_deployment(options.target))) as writer:
        writer.finish("interrupted")
    told = refusing.read_text()
    refusing.write_text(told.replace("0.15", "0.16"))
    assert "the file of faults changed" in failing("replay", "--resume", out)
    moved = refusing.rename(tmp_path / "moved.toml")
    assert f"--resume {out} --faults FILE" in failing("replay", "--resume", out)
    assert "the file of faults changed" in failing("replay", "--resume", out, "--faults", moved)
    moved.write_text(told)
    done = agentload("replay", "--resume", out, "--faults", moved)
    assert done.returncode == 1
    assert RunReader(out).requests().collect()["status"].to_list() == ["ok", "failed"]


def test_a_run_with_relative_paths_is_resumed_from_elsewhere(
    tmp_path: Path, trace: Path, refusing: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = tmp_path / "own.toml"
    own.write_text('base = "gemma4-31b/pd"\nname = "own"\n')
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(tmp_path)
    files = {"trace": Path(trace.name), "faults": Path(refusing.name), "target": own.name}
    options = msgspec.convert({**files, "out": Path("run")}, ReplayOptions)
    with RunWriter(options.out, new_manifest(options, load_deployment(options.target))) as writer:
        writer.finish("interrupted")
    monkeypatch.chdir(elsewhere)
    out = tmp_path / "run"
    assert f"--resume {out} TRACE" in failing("replay", "--resume", out)
    assert f"--resume {out} --faults FILE" in failing("replay", trace, "--resume", out)
    given = ("replay", trace, "--resume", out, "--faults", refusing)
    assert f"--resume {out} --target FILE" in failing(*given)
    assert "specs changed" in failing(*given, "--target", changed(tmp_path))
    done = agentload(*given, "--target", own)
    assert done.returncode == 1, done.stderr
    assert "1 failed" in done.stdout
    manifest = RunReader(out).manifest
    assert (manifest.target, manifest.options["faults"]) == ("own.toml", refusing.name)


def changed(folder: Path) -> Path:
    path = folder / "changed.toml"
    path.write_text('base = "gemma4-31b/pd"\nname = "changed"\n')
    return path


def test_what_a_run_was_started_without_it_does_not_get_when_it_is_resumed(
    tmp_path: Path, trace: Path, refusing: Path
) -> None:
    out = tmp_path / "run"
    options = ReplayOptions(trace=trace, out=out)
    with RunWriter(out, new_manifest(options, load_deployment(options.target))) as writer:
        writer.finish("interrupted")
    assert "was started without" in failing("replay", "--resume", out, "--faults", refusing)
    line = failing("replay", "--resume", out, "--target", "gemma4-31b/rubin")
    assert "was started on gemma4-31b/pd, which is no file" in line


def test_wrong_options_are_one_line(tmp_path: Path, trace: Path) -> None:
    out = ("--out", tmp_path / "run")
    (tmp_path / "bad.toml").write_text("[[faults]]\ntype = 'stall'\n")
    line = failing("replay", trace, *out, "--faults", tmp_path / "bad.toml")
    assert "bad.toml: faults[0].for_s: missing" in line
    assert "bad.toml: faults[0].for_s: missing" in failing("serve", "--faults", tmp_path / "bad.toml")
    url = "http://127.0.0.1:9"
    assert "agentload serve --faults" in failing(
        "replay", trace, *out, "--target", url, "--faults", tmp_path / "bad.toml"
    )
    assert "--content poems: gemma4-31b/pd knows coding, general" in failing(
        "replay", trace, *out, "--content", "poems"
    )
    to_url = ("--target", url, "--content", "\u00e9")
    assert "cannot stand in a header" in failing("replay", trace, *out, *to_url)
    assert not (tmp_path / "run").exists()


def test_the_classes_and_slots_of_a_run_reach_the_deployment_and_the_manifest(
    tmp_path: Path, trace: Path
) -> None:
    options = ("--content", "coding", "--latency-class", "batch", "--tool-slots", 3)
    steps = []
    for name, given_options in (("plain", ()), ("virtual", options), ("wall", (*options, "--clock", "wall"))):
        out = tmp_path / name
        assert agentload("replay", trace, "--out", out, *given_options).returncode == 0
        steps.append(pl.read_parquet(out / REQUESTS).sort("turn_id")["steps"].to_list())
        conditions = RunReader(out).manifest.conditions
        told = (
            "All requests are of the content class coding: 5.37 tokens a step, fact.",
            "All requests are of the latency class batch.",
            "Tools run in 3 slots; further calls wait.",
        )
        assert [sentence in conditions for sentence in told] == [name != "plain"] * 3
    # Code is guessed better than other text, so it takes fewer steps.
    assert steps[1] == steps[2]
    assert sum(steps[1]) < sum(steps[0])
