"""Generate a session and show how its context grows, with the packages as libraries.

Example: python examples/generate_sessions.py
"""

from __future__ import annotations

from agentload import generate_sessions, load_profile


def main() -> None:
    """One session of 100 turns; a line for each turn that a user started or that compacted the context."""
    profile = load_profile("coding")
    [session] = generate_sessions(profile, sessions=1, turns=100, seed=1)
    for index, turn in enumerate(session.turns):
        if turn.trigger != "tool":
            counts = f"{turn.input_tokens:>7,} tokens in, {turn.new_input_tokens:>6,} of them new"
            print(f"turn {index:3}  {turn.trigger:<10} {counts}")


if __name__ == "__main__":
    main()
