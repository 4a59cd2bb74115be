"""Generated sessions: laws for every profile, seed and count, and the shape of the bundled profile."""

from __future__ import annotations

import hashlib
import json
import statistics
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentload import Profile, ProfileError, generate_sessions, load_profile, profile_names
from agentload._cli import main
from agentload_traces import Session, Turn, open_trace

# Small and extreme: compacts every few turns, many calls a turn.
PROFILE = """
name = "tiny"
summary = "for tests"
first_prompt_tokens = { kind = "estimate", source = "s", points = [[0, 50], [100, 300]] }
fixed_prefix_tokens = { kind = "fact", source = "s", value = 100 }
new_tokens = { kind = "estimate", source = "s", points = [[0, 0], [50, 10], [100, 400]] }
output_tokens = { kind = "fitted", source = "s", points = [[0, 1], [100, 90]] }
turns_per_user_message = { kind = "estimate", source = "s", value = 3 }
tool_calls_per_turn = { kind = "fact", source = "s", weights = { 1 = 1, 4 = 1, 5 = 1, 23 = 1 } }
think_time_s = { kind = "fact", source = "s", points = [[0, 0], [33.3, 0.5], [100, 7.25]] }
compaction_at_tokens = { kind = "fact", source = "s", points = [[0, 700], [100, 1500]] }
compacted_tokens = { kind = "fact", source = "s", points = [[0, 160], [100, 500]] }
summary_tokens = { kind = "fact", source = "s", value = 60 }
[tools.shell]
share = 2
kind = "fact"
source = "s"
latency_s = [[0, 0.001], [100, 2]]
[tools.edit]
share = 1
kind = "fact"
source = "s"
latency_s = [[0, 0], [100, 0]]
"""


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Profile:
    path = tmp_path_factory.mktemp("profile") / "tiny.toml"
    path.write_text(PROFILE)
    return load_profile(path)


def made(profile: Profile, *, sessions: int = 1, turns: int = 1, seed: int = 0) -> list[Session]:
    return list(generate_sessions(profile, sessions=sessions, turns=turns, seed=seed))


seeds = st.integers(0, 2**64 - 1)


def cause(turn: Turn, previous: Turn) -> str:
    """What a turn that follows a normal answer is triggered by."""
    return "tool" if previous.tool_calls else "user"


@given(seed=seeds, turns=st.integers(1, 60))
def test_context_holds_what_came_before_until_it_is_compacted(tiny: Profile, seed: int, turns: int) -> None:
    [session] = made(tiny, turns=turns, seed=seed)
    first = session.turns[0]
    assert (first.trigger, first.new_input_tokens, first.wait_for) == ("user", first.input_tokens, ())
    for before, turn in pairwise(session.turns):
        assert before.output_tokens is not None
        assert turn.new_input_tokens is not None
        assert turn.wait_for == (before.turn_id,)
        if before.trigger == "compaction":
            kept = turn.input_tokens - turn.new_input_tokens
            assert kept == min(100, first.input_tokens)
            assert turn.new_input_tokens >= before.output_tokens
        else:
            assert turn.input_tokens == before.input_tokens + before.output_tokens + turn.new_input_tokens


@given(seed=seeds)
def test_compaction_comes_when_the_context_is_full_and_delays_the_turn_that_was_due(
    tiny: Profile, seed: int
) -> None:
    [session] = made(tiny, turns=80, seed=seed)
    compacting = [i for i, turn in enumerate(session.turns[:-1]) if turn.trigger == "compaction"]
    assert compacting
    # One limit a session: every compacted prompt is above it and every other grown prompt is not.
    lowest = min(session.turns[i].input_tokens for i in compacting)
    grown = [
        turn.input_tokens
        for before, turn in pairwise(session.turns)
        if turn.trigger != "compaction" and before.trigger != "compaction"
    ]
    assert lowest > 700
    assert max(grown) <= min(lowest, 1500)
    for i in compacting:
        due = session.turns[i + 1]
        assert session.turns[i].tool_calls == ()
        assert session.turns[i].output_tokens == 60
        assert (due.trigger, due.delay_ms) == (cause(due, session.turns[i - 1]), 0)


@given(seed=seeds)
def test_tool_results_are_the_new_tokens_and_only_users_think(tiny: Profile, seed: int) -> None:
    [session] = made(tiny, turns=40, seed=seed)
    for before, turn in pairwise(session.turns):
        if before.trigger == "compaction":
            continue
        assert turn.trigger in ("compaction", cause(turn, before))
        if before.tool_calls:
            assert turn.delay_ms == 0
            assert sum(call.result_tokens or 0 for call in before.tool_calls) == turn.new_input_tokens
        else:
            assert turn.delay_ms is not None
            assert 0 <= turn.delay_ms <= 7250


@given(seed=seeds)
def test_counts_are_positive_and_times_are_whole_milliseconds(tiny: Profile, seed: int) -> None:
    [session] = made(tiny, turns=40, seed=seed)
    assert len({turn.turn_id for turn in session.turns}) == 40
    for turn in session.turns:
        assert turn.output_tokens is not None
        assert turn.new_input_tokens is not None
        assert min(turn.input_tokens, turn.output_tokens, turn.new_input_tokens) >= 1
        assert turn.delay_ms is not None
        assert turn.delay_ms.is_integer()
        assert len(turn.tool_calls) in (0, 1, 4, 5, 23)
        for call in turn.tool_calls:
            assert call.name in ("shell", "edit")
            assert call.result_tokens is not None
            assert call.result_tokens >= 1
            assert call.duration_ms is not None
            assert call.duration_ms.is_integer()
            assert 0 <= call.duration_ms <= 2000


@given(seed=seeds, sessions=st.integers(1, 5), turns=st.integers(1, 30))
def test_a_longer_trace_begins_with_the_shorter(tiny: Profile, seed: int, sessions: int, turns: int) -> None:
    longer = made(tiny, sessions=sessions + 3, turns=turns + 7, seed=seed)
    shorter = made(tiny, sessions=sessions, turns=turns, seed=seed)
    assert [Session(session.session_id, session.turns[:turns]) for session in longer[:sessions]] == shorter


@given(seed=seeds)
def test_sessions_and_seeds_differ(tiny: Profile, seed: int) -> None:
    drawn = made(tiny, sessions=2, turns=20, seed=seed)
    drawn += made(tiny, sessions=1, turns=20, seed=(seed + 1) % 2**64)
    shapes = {tuple((turn.input_tokens, turn.output_tokens) for turn in session.turns) for session in drawn}
    assert len(shapes) == len({session.session_id for session in drawn}) == 3


def test_the_same_seed_gives_the_same_bytes_everywhere(tiny: Profile) -> None:
    turns = [turn for session in made(tiny, sessions=3, turns=50, seed=7) for turn in session.turns]
    digest = hashlib.sha256(msgspec.json.encode(turns)).hexdigest()
    assert digest == "89822c4c9531dd99c0963f83cac03c750a617e55fb4ed95fd2eb7ba23de7fc03"


def test_sessions_are_made_one_at_a_time(tiny: Profile) -> None:
    endless = generate_sessions(tiny, sessions=10**12, turns=2, seed=0)
    assert next(iter(endless)).session_id == "tiny-0-0"


def quantile(values: Sequence[float], percent: int) -> float:
    return statistics.quantiles(values, n=100, method="inclusive")[percent - 1]


def test_coding_profile_has_the_measured_shape() -> None:
    # The figures are those of the recorded sessions that the profile names.
    sessions = made(load_profile("coding"), sessions=100, turns=200, seed=3)
    turns = [turn for session in sessions for turn in session.turns]
    growth = [
        after.input_tokens - before.input_tokens
        for session in sessions
        for before, after in pairwise(session.turns)
        if before.trigger != "compaction"
    ]
    answers = [turn for turn in turns if turn.trigger != "compaction"]
    calls = [call for turn in turns for call in turn.tool_calls]
    latency_s = [call.duration_ms / 1000 for call in calls if call.duration_ms is not None]
    calling = sum(1 for turn in turns if turn.tool_calls)

    assert quantile([session.turns[0].input_tokens for session in sessions], 50) == pytest.approx(
        19300, rel=0.25
    )
    assert quantile(growth, 50) == pytest.approx(650, rel=0.25)
    assert statistics.mean(growth) == pytest.approx(1555, rel=0.25)
    assert quantile([turn.output_tokens or 0 for turn in answers], 50) == pytest.approx(217, rel=0.1)
    assert quantile([turn.output_tokens or 0 for turn in answers], 90) == pytest.approx(879, rel=0.1)
    assert len(calls) / calling == pytest.approx(1.2, rel=0.1)
    assert sum(call.name == "shell" for call in calls) / len(calls) == pytest.approx(0.44, rel=0.1)
    assert quantile(latency_s, 50) == pytest.approx(0.366, rel=0.25)
    assert 0.02 < sum(seconds > 60 for seconds in latency_s) / len(calls) < 0.04
    assert len(turns) / sum(turn.trigger == "user" for turn in turns) == pytest.approx(14.4, rel=0.25)
    compacting = [turn.input_tokens for turn in turns if turn.trigger == "compaction"]
    assert quantile(compacting, 50) == pytest.approx(155000, rel=0.1)


def test_bundled_profiles_load_and_name_every_source() -> None:
    assert "coding" in profile_names()
    for name in profile_names():
        profile = load_profile(name)
        assert profile.name == name
        assert dict(profile.not_measured()).keys() <= {
            *profile.__struct_fields__,
            *(f"tools.{t}" for t in profile.tools),
        }


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("value = 3 }", "value = 0.5 }", "turns_per_user_message.value: 0.5 should be at least 1"),
        (
            "[[0, 1], [100, 90]]",
            "[[0, 0], [100, 90]]",
            "output_tokens.points: values must lie between 1 and 2^31",
        ),
        ("[[0, 1], [100, 90]]", "[[0, 1], [90, 90]]", "output_tokens.points: must go from percent 0 to"),
        ("[50, 10]", "[50, 500]", "new_tokens.points: percents must increase and values must not decrease"),
        ("[50, 10]", "[50, nan]", "new_tokens.points: percents must increase and values must not decrease"),
        ("[50, 10]", "[50, 'x']", "Expected `float`, got `str` - at `$.new_tokens.points[1][1]`"),
        ('kind = "fitted"', 'kind = "guess"', "Invalid enum value 'guess' - at `$.output_tokens.kind`"),
        ("1 = 1, 4 = 1", "0 = 1, 4 = 1", "tool_calls_per_turn.weights: numbers of calls must be at least 1"),
        ("share = 2", "share = -2", "tools.*.share: needs at least one positive weight and none below 0"),
        ("[0, 160]", "[0, 159]", "compacted_tokens.points: 159 is less than what a compacted prompt holds"),
        ("[0, 0.001]", "[0, -1]", "tools.shell.latency_s: values must lie between 0 and 2^31"),
        ('name = "tiny"', "", "missing required field `name`"),
        ('name = "tiny"', "name =", "not TOML"),
        ('name = "tiny"', 'name = "tiny"\nnome = 1', "unknown field `nome`"),
    ],
)
def test_a_wrong_profile_is_refused_in_one_line(tmp_path: Path, old: str, new: str, says: str) -> None:
    path = tmp_path / "wrong.toml"
    path.write_text(PROFILE.replace(old, new, 1))
    with pytest.raises(ProfileError) as raised:
        load_profile(path)
    assert str(raised.value).startswith(f"{path}: ")
    assert says in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(("sessions", "turns", "seed"), [(-1, 1, 0), (1, -1, 0), (1, 1, -1), (1, 1, 2**64)])
def test_counts_and_seed_out_of_range_are_refused(
    tiny: Profile, sessions: int, turns: int, seed: int
) -> None:
    with pytest.raises(ValueError, match="must"):
        generate_sessions(tiny, sessions=sessions, turns=turns, seed=seed)


def run_command(*arguments: str) -> int:
    """Call `agentload generate` and return its exit code."""
    with pytest.raises(SystemExit) as ended:
        main(["generate", *arguments])
    return int(ended.value.code or 0)


Captured = pytest.CaptureFixture[str]


@pytest.mark.parametrize("ending", [".jsonl", ".jsonl.zst", ".parquet"])
def test_command_writes_the_trace_and_tells_its_totals(tmp_path: Path, capsys: Captured, ending: str) -> None:
    path = tmp_path / f"sessions{ending}"
    assert run_command("-o", str(path), "--sessions", "3", "--turns", "250", "--seed", "5", "--json") == 0
    told = json.loads(capsys.readouterr().out)
    expected = made(load_profile("coding"), sessions=3, turns=250, seed=5)
    reader = open_trace(path)
    assert list(reader.sessions()) == expected
    assert not reader.report.problems
    turns = [turn for session in expected for turn in session.turns]
    assert (told["path"], told["seed"], told["sessions"], told["turns"]) == (str(path), 5, 3, 750)
    assert told["input_tokens"] == sum(turn.input_tokens for turn in turns)
    assert told["output_tokens"] == sum(turn.output_tokens or 0 for turn in turns)
    assert told["tool_calls"] == sum(len(turn.tool_calls) for turn in turns)
    assert told["compactions"] == sum(turn.trigger == "compaction" for turn in turns)
    assert told["not_measured"]["turns_per_user_message"] == "estimate"


def test_command_says_what_rests_on_estimates(tmp_path: Path, capsys: Captured) -> None:
    assert run_command("-o", str(tmp_path / "one.jsonl"), "--sessions", "1", "--turns", "3") == 0
    told = capsys.readouterr().out
    assert "1 sessions, 3 turns" in told
    assert "profile coding, estimate: turns_per_user_message, summary_tokens" in told


def test_command_takes_a_profile_of_your_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.toml").write_text(PROFILE)
    assert run_command("--profile", "mine.toml", "--sessions", "2") == 0
    assert [path.name for path in tmp_path.glob("tiny*")] == ["tiny.jsonl"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--profile", "codng"], "no profile named 'codng': take one of coding, or the path of a .toml file"),
        (["--profile", "none.toml"], "none.toml: No such file or directory"),
        (["-o", "sessions.csv"], "sessions.csv: the ending says how to write a trace"),
        (
            ["-o", "no/such/folder.jsonl"],
            "no/such/folder.jsonl: cannot be written (No such file or directory)",
        ),
    ],
)
def test_command_refuses_bad_input_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured, arguments: list[str], says: str
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run_command(*arguments) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.startswith(f"error: {says}")
    assert told.err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("arguments", [["--sessions", "0"], ["--turns", "-1"], ["--seed", "-1"]])
def test_command_refuses_counts_out_of_range(capsys: Captured, arguments: list[str]) -> None:
    assert run_command(*arguments) == 2
    assert arguments[0] in capsys.readouterr().err
