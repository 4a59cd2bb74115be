"""Scenes of serving, as a user plays them: what becomes of KV between turns, who waits, and for what."""

from __future__ import annotations

import runpy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from engine_driving import drive, finished_by_id, request

from agentload._cli import main
from agentload_analysis import summarise
from agentload_simbackend import LatencyClass, build_engine, load_deployment
from agentload_traces import RunReader, ToolCall, Turn, write_trace

ROOT = Path(__file__).resolve().parent.parent
KV_POLICIES = ROOT / "examples/kv_policies"
MS = 1_000_000
S = 1_000_000_000
SLOW = pl.col("session_id") == "slow tools"
WHOLE = pl.col("handoff_tokens") == pl.col("input_tokens")
POLICIES = {
    "evict": "gemma4-31b/pd",
    "keep": str(KV_POLICIES / "keep.toml"),
    "drop": str(KV_POLICIES / "drop.toml"),
}


def play(trace: Path, out: Path, *arguments: object, code: int = 0) -> pl.DataFrame:
    """The rows of turns of `agentload replay`, which must end with this exit code."""
    with pytest.raises(SystemExit) as ended:
        main(["replay", str(trace), "--out", str(out), *map(str, arguments)])
    assert (ended.value.code or 0) == code
    return RunReader(out).requests().collect()


def own_deployment(folder: Path, text: str) -> Path:
    path = folder / "own.toml"
    path.write_text(f'name = "own"\n{text}', encoding="utf-8")
    return path


def number(value: float, unit: str) -> str:
    return f'{{ value = {value}, unit = "{unit}", kind = "estimate", source = "this test" }}'


def all_at_once(path: Path, sessions: int, *, turns: int = 1, tokens: int, output_tokens: int) -> Path:
    """A trace of sessions that start together and have no text in common."""

    def each(session: int) -> Iterator[Turn]:
        for index in range(turns):
            yield Turn(
                session_id=f"s{session}",
                turn_id=f"t{index}",
                wait_for=(f"t{index - 1}",) if index else (),
                start_ms=0.0 if index == 0 else None,
                input_tokens=tokens + 1_000 * index,
                output_tokens=output_tokens,
                tool_calls=(ToolCall(name="shell", duration_ms=1_000.0),),
            )

    write_trace(path, (turn for session in range(sessions) for turn in each(session)))
    return path


@pytest.fixture(scope="module")
def crowd(tmp_path_factory: pytest.TempPathFactory) -> dict[str, pl.DataFrame]:
    """An agent whose tools take 30 s among twenty others, under each policy: the trace of the examples."""
    folder = tmp_path_factory.mktemp("crowd")
    trace = folder / "crowd.jsonl"
    write_trace(trace, runpy.run_path(str(ROOT / "examples/crowd.py"))["crowd"]())
    return {
        policy: play(trace, folder / policy, "--target", target, "--no-arrivals")
        for policy, target in POLICIES.items()
    }


def queues_s(rows: pl.DataFrame) -> list[float]:
    return (rows["queue_ns"] / S).to_list()


def test_kv_of_slow_tools_is_evicted_and_its_hand_off_paid_again(crowd: dict[str, pl.DataFrame]) -> None:
    slow, others = crowd["evict"].filter(SLOW), crowd["evict"].filter(~SLOW)
    assert slow.height == 5
    assert slow.select(WHOLE.all()).item()
    per_token_ns = (slow["handoff_ns"] / slow["handoff_tokens"]).to_list()
    assert min(per_token_ns) == pytest.approx(max(per_token_ns), rel=0.02)
    # It is the one that pays: the KV of those that are back soon stays.
    assert others.select(WHOLE.mean()).item() < 0.3
    assert max(queues_s(crowd["evict"])) < 1


def test_kept_kv_is_not_handed_over_again_and_others_queue_instead(crowd: dict[str, pl.DataFrame]) -> None:
    slow, others = crowd["keep"].filter(SLOW), crowd["keep"].filter(~SLOW)
    assert slow["handoff_tokens"].to_list() == [100_000, *[150] * 4]
    first_ns, *then_ns = slow["handoff_ns"]
    assert max(then_ns) < first_ns / 10
    assert queues_s(slow) == [0.0] * 5
    waited = [wait_s for wait_s in queues_s(others) if wait_s > 1]
    assert waited
    # Somebody waits until a session has ended and its room is kept no more.
    assert max(waited) > 60
    before = crowd["evict"].filter(~SLOW)
    assert others["queue_ns"].sum() > 100 * before["queue_ns"].sum()
    assert others["end_ns"].max() > before["end_ns"].max()  # type: ignore[operator]


def test_dropped_kv_is_paid_for_in_every_turn(crowd: dict[str, pl.DataFrame]) -> None:
    assert crowd["drop"].select(WHOLE.all()).item()
    evicted, dropped = (crowd[policy]["handoff_ns"].sum() for policy in ("evict", "drop"))
    assert dropped > 2 * evicted
    assert max(queues_s(crowd["drop"])) < 1


def test_tools_wait_for_slots_and_the_report_says_how_long(tmp_path: Path) -> None:
    trace = all_at_once(tmp_path / "t.jsonl", 12, turns=3, tokens=5_000, output_tokens=50)
    free = play(trace, tmp_path / "free", "--tool-slots", 0)
    narrow = play(trace, tmp_path / "narrow", "--tool-slots", 3)
    calls = RunReader(tmp_path / "narrow").tool_calls().collect()
    summary = summarise(tmp_path / "narrow")
    assert summary["tool_queue_ms"]["count"] == (calls["queue_ns"] > 0).sum() > 0
    waited_ns = calls["queue_ns"].sum()
    assert summary["tool_queue_share"] == pytest.approx(waited_ns / (waited_ns + 36 * S))
    # Twelve tools in three slots take four rounds of a second, twice before the last turn.
    assert narrow["end_ns"].max() > free["end_ns"].max() + 5 * S  # type: ignore[operator]
    assert summarise(tmp_path / "free")["tool_queue_ms"]["count"] == 0


def test_one_too_many_is_a_failed_turn_and_an_exit_code_of_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = own_deployment(
        tmp_path, f'base = "gemma4-31b/pd"\n[router]\nmost_waiting = {number(4, "count")}\n'
    )
    trace = all_at_once(tmp_path / "t.jsonl", 30, turns=2, tokens=100_000, output_tokens=1_000)
    rows = play(trace, tmp_path / "run", "--target", target, code=1)
    failed = rows.filter(pl.col("status") == "failed")
    assert 0 < failed.height < 30
    assert failed["error"].str.starts_with("rate_limit_exceeded: ").all()
    assert set(rows.filter(pl.col("status") == "skipped")["session_id"]) == set(
        failed.filter(pl.col("turn_index") == 0)["session_id"]
    )
    assert f"{failed.height} of 60 turns failed" in capsys.readouterr().err
    (error,) = summarise(tmp_path / "run")["errors"]
    assert error["turns"] == failed.height


def test_what_lpx_has_no_room_for_is_decoded_on_rubin_at_its_pace(tmp_path: Path) -> None:
    trace = all_at_once(tmp_path / "t.jsonl", 16, tokens=100_000, output_tokens=5_000)
    rows = play(trace, tmp_path / "run", "--target", "gemma4-31b/pd-spill")
    gap_us = pl.col("arrival_dt_us").list.slice(1).list.median()
    on_lpx, spilled = rows.filter(pl.col("replica") < 2), rows.filter(pl.col("replica") >= 2)
    assert (on_lpx.height, spilled.height) == (12, 4)
    slowest_lpx = on_lpx.select(gap_us.max()).item()
    assert spilled.select(gap_us.min()).item() > 3 * slowest_lpx
    assert (spilled["queue_ns"] >= S).all()


def hand_offs_ns(folder: Path, sessions: int) -> list[int]:
    """As many hand-offs at once into one replica; a group of GPUs for each prompt."""
    target = own_deployment(
        folder,
        'base = "gemma4-31b/pd-1replica"\n[prefill]\n'
        f"gpus_per_instance = {number(4, 'count')}\ninstances = {number(18, 'count')}\n",
    )
    trace = all_at_once(folder / f"{sessions}.jsonl", sessions, tokens=40_000, output_tokens=10)
    rows = play(trace, folder / str(sessions), "--target", target)
    return rows["handoff_ns"].to_list()


def test_ten_hand_offs_at_once_take_ten_times_as_long(tmp_path: Path) -> None:
    (alone,) = hand_offs_ns(tmp_path, 1)
    two, ten = hand_offs_ns(tmp_path, 2), hand_offs_ns(tmp_path, 10)
    # What does not grow is the latency of the link.
    sending_ns = two[0] - alone
    assert 0 < alone - sending_ns < 0.1 * alone
    assert two == [alone + sending_ns] * 2
    assert ten == pytest.approx([alone + 9 * sending_ns] * 10, abs=20)


def test_under_load_interactive_goes_first_and_batch_is_not_starved() -> None:
    """A request of 100K tokens of each class every 100 ms: more than LPX can serve, for a minute."""
    deployment = load_deployment("gemma4-31b/pd")
    classes: tuple[LatencyClass, ...] = ("batch", "standard", "interactive")
    asked = [
        (
            100 * MS * slot + place,
            request(3 * slot + place, 100_000, 3_000, latency_class=latency_class),
        )
        for slot in range(600)
        for place, latency_class in enumerate(classes)
    ]
    done = finished_by_id(drive(build_engine(deployment, 0), asked))
    assert len(done) == len(asked)
    start_ns = {number: each.at_ns - each.phases.decode_ns for number, each in done.items()}
    came_ns = {each.request_id: at_ns for at_ns, each in asked}
    waits_ns = [
        sorted(start_ns[number] - came_ns[number] for number in done if number % 3 == place)
        for place in range(3)
    ]
    batch, standard, interactive = (waits[len(waits) // 2] for waits in waits_ns)
    assert interactive < standard < batch
    # Who came 30 s (the allowance) before an interactive request is never behind it, batch or not.
    allowances: dict[str, Any] = deployment.spec.router.allowance
    allowance_ns = round(allowances["batch"].value * S)
    for slot in range(0, 600, 20):
        later = [n for n in range(2, 1_800, 3) if came_ns[n] > came_ns[3 * slot] + allowance_ns + S]
        assert all(start_ns[n] > start_ns[3 * slot] for n in later)
