"""An agent in forty lines: a conversation of a few turns, at the endpoint that OPENAI_BASE_URL names.

agentload record --upstream http://127.0.0.1:8400 --out trace.jsonl -- python examples/small_agent.py
"""

from __future__ import annotations

import json
import os
import sys
import urllib.request
from typing import Any

TURNS = 5


def ask(messages: list[dict[str, Any]]) -> str:
    """The text of the answer to a conversation."""
    body = {"model": "any", "messages": messages, "max_tokens": 60}
    request = urllib.request.Request(
        f"{os.environ['OPENAI_BASE_URL']}/chat/completions",
        json.dumps(body).encode(),
        {
            "content-type": "application/json",
            "authorization": f"Bearer {os.environ.get('OPENAI_API_KEY', 'none')}",
        },
    )
    with urllib.request.urlopen(request) as response:
        return str(json.load(response)["choices"][0]["message"]["content"])


def main() -> int:
    """Say something, listen, and say more."""
    messages = [{"role": "system", "content": "You fix bugs."}]
    for turn in range(TURNS):
        messages.append({"role": "user", "content": f"Bug number {turn}: the build is red again."})
        messages.append({"role": "assistant", "content": ask(messages)})
    print(f"{TURNS} turns, {sum(len(str(message['content'])) for message in messages)} characters")
    return 0


if __name__ == "__main__":
    sys.exit(main())
