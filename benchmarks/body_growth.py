"""What it costs to build the request of turn 300 at 150K tokens, against turn 10 and a copy of its bytes.

    python benchmarks/body_growth.py

A session grows by 500 tokens a turn to 150K tokens at turn 300. Each body is built from the serialised
history, which a turn extends. Beside it, in the same run: two plain copies of the body's bytes, of which no
client can do without one, and `json.dumps` of the whole request, for clients that keep messages as objects.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from statistics import median
from time import perf_counter_ns

from agentload._requests import RequestBuilder
from agentload_traces import Session, ToolCall, Turn

TURNS, LAST_TOKENS, FIRST_TOKENS, OUTPUT_TOKENS = 301, 150_000, 8_000, 220
NEW_TOKENS = round((LAST_TOKENS - FIRST_TOKENS) / (TURNS - 1)) - OUTPUT_TOKENS
NEAR = 5
"""Figures are medians over so many turns at each place, and over the rounds."""


def a_session(number: int) -> Session:
    turns = []
    context = 0
    for turn in range(TURNS):
        new = FIRST_TOKENS if turn == 0 else NEW_TOKENS
        calls = (ToolCall(name="shell"),)
        kept = {"input_tokens": context + new, "new_input_tokens": new, "output_tokens": OUTPUT_TOKENS}
        waits = (f"t{turn - 1}",) if turn else ()
        turns.append(
            Turn(session_id=f"s{number}", turn_id=f"t{turn}", wait_for=waits, tool_calls=calls, **kept)
        )
        context += new + OUTPUT_TOKENS
    return Session(f"s{number}", tuple(turns))


def timed_us(work: Callable[[], object]) -> float:
    before = perf_counter_ns()
    work()
    return (perf_counter_ns() - before) / 1e3


def measure(rounds: int) -> dict[str, dict[str, float]]:
    places = {"turn 10": range(10, 10 + NEAR), "turn 300": range(TURNS - NEAR, TURNS)}
    taken: dict[str, dict[str, list[float]]] = {name: {} for name in places}
    for number in range(rounds):
        session = a_session(number)
        builder = RequestBuilder(session, seed=1, model="m")
        for index, turn in enumerate(session.turns):
            before = perf_counter_ns()
            built = builder.build(turn)
            build_us = (perf_counter_ns() - before) / 1e3
            for name, turns in places.items():
                if index in turns:
                    request = json.loads(built.body)
                    figures = {
                        "build_us": build_us,
                        "two_copies_us": timed_us(lambda body=built.body: bytes(bytearray(body))),  # type: ignore[misc]
                        "dumps_us": timed_us(lambda request=request: json.dumps(request)),  # type: ignore[misc]
                        "body_bytes": len(built.body),
                        "input_tokens": turn.input_tokens,
                    }
                    for figure, value in figures.items():
                        taken[name].setdefault(figure, []).append(value)
    return {
        name: {figure: median(values) for figure, values in figures.items()}
        for name, figures in taken.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    figures = measure(args.rounds)
    late, early = figures["turn 300"], figures["turn 10"]
    ratios = {
        "build, turn 300 to turn 10": late["build_us"] / early["build_us"],
        "build to dumps, turn 300": late["build_us"] / late["dumps_us"],
        "build to two copies, turn 300": late["build_us"] / late["two_copies_us"],
    }
    if args.json:
        print(json.dumps({**figures, "ratios": ratios}))
        return
    for name, place in figures.items():
        print(
            f"{name:9} {place['input_tokens']:>9,.0f} tokens {place['body_bytes']:>9,.0f} bytes:"
            f" build {place['build_us']:7.1f} us, two copies {place['two_copies_us']:7.1f} us,"
            f" json.dumps {place['dumps_us']:8.1f} us"
        )
    for name, ratio in ratios.items():
        print(f"{name}: {ratio:.2f}")


if __name__ == "__main__":
    main()
