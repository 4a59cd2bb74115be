"""Show what each turn of a session handed over to the decode side, and how long the others queued.

Example: python examples/handed_over.py "slow tools" runs/evict runs/keep
"""

from __future__ import annotations

import sys

from agentload_traces import RunReader


def show(session_id: str, run: str) -> None:
    """The hand-offs of one session's turns, then those of all others together."""
    rows = RunReader(run).requests().collect().to_dicts()
    own = [row for row in rows if row["session_id"] == session_id]
    others = [row for row in rows if row["session_id"] != session_id]
    print(f"{run}: {session_id}")
    for row in own:
        handed, ms = f"{row['handoff_tokens']:7,} of {row['input_tokens']:,}", row["handoff_ns"] / 1e6
        print(f"  {row['turn_id']}: {handed} tokens handed over in {ms:.2f} ms")
    share = sum(row["handoff_tokens"] for row in others) / sum(row["input_tokens"] for row in others)
    waits_s = [row["queue_ns"] / 1e9 for row in others]
    waited = sum(wait_s > 1 for wait_s in waits_s)
    print(f"  others: {share:.0%} of their tokens; {waited} turns queued for more than 1 s", end="")
    print(f", at the most {max(waits_s):.1f} s")


if __name__ == "__main__":
    for path in sys.argv[2:]:
        show(sys.argv[1], path)
