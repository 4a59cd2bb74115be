"""Small random session graphs for Hypothesis: a main agent, its tools, sub-agents that fork and join."""

from __future__ import annotations

from hypothesis import strategies as st

from agentload_traces import Session, ToolCall, Turn

_MS = st.integers(0, 5_000).map(float)


def tool_calls() -> st.SearchStrategy[tuple[ToolCall, ...]]:
    call = st.builds(
        ToolCall,
        name=st.sampled_from(["shell", "read_file", None]),
        duration_ms=st.none() | _MS,
        result_tokens=st.none() | st.integers(0, 500),
    )
    return st.lists(call, max_size=3).map(tuple)


@st.composite
def sessions(draw: st.DrawFn, session_id: str = "s", max_turns: int = 8) -> Session:
    """A session whose contexts grow; some turns start sub-agents that a later turn waits for."""
    turns: list[Turn] = []
    context = {"": 0}
    waiting: list[str] = []
    last_main: str | None = None

    def turn(agent: str, wait_for: tuple[str, ...], parent: str | None) -> str:
        new = draw(st.integers(1, 3_000))
        output = draw(st.integers(1, 400))
        shrinks = context[agent] > 0 and draw(st.integers(0, 9)) == 0
        total = draw(st.integers(1, context[agent])) if shrinks else context[agent] + new
        turn_id = f"t{len(turns)}"
        turns.append(
            Turn(
                session_id=session_id,
                turn_id=turn_id,
                agent_id=agent or None,
                wait_for=wait_for,
                parent_turn_id=parent,
                start_ms=0.0 if not turns else None,
                delay_ms=draw(st.none() | _MS),
                trigger=draw(st.sampled_from(["user", "tool", None])),
                input_tokens=total,
                new_input_tokens=None if shrinks else new,
                output_tokens=output,
                tool_calls=draw(tool_calls()),
            )
        )
        context[agent] = total + output
        return turn_id

    for number in range(draw(st.integers(1, max_turns))):
        wait_for = (
            ((last_main, *waiting) if last_main else ()) if not waiting or draw(st.booleans()) else None
        )
        if wait_for is None:
            wait_for = (last_main,) if last_main else ()
        else:
            waiting = []
        last_main = turn("", wait_for, None)
        if draw(st.integers(0, 4)) == 0:
            agent = f"sub{number}"
            context[agent] = 0
            last = turn(agent, (), last_main)
            for _ in range(draw(st.integers(0, 2))):
                last = turn(agent, (last,), None)
            waiting.append(last)
    return Session(session_id, tuple(turns))
