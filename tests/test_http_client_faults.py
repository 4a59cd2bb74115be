"""Every fault of the fake endpoint, in every API, ends in an answer or in the failure that it is."""

from __future__ import annotations

import json
from typing import get_args

import pytest
from fake_endpoint import fake_endpoint_thread
from fake_reply import Fault, Reply
from http_peers import asks, on_both_loops

from agentload._answers import shows_token
from agentload._endpoint import Endpoint
from agentload._http_client import StampingClient, Timeouts
from agentload._options import Api

KINDS = {
    "close": "reset",
    "reset": "reset",
    "not_http": "bad_stream",
    "no_first_token": "first_token_timeout",
    "stall": "stall_timeout",
    "reset_in_stream": "cut_off",
    "half_event": "cut_off",
    "bad_chunk": "bad_stream",
}
"""What the client itself sees; the other faults are for the reader of the answer."""

BODIES = {
    "chat": {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 8},
    "responses": {"input": "hello", "max_output_tokens": 16},
    "completions": {"prompt": "hello", "max_tokens": 8},
    "messages": {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 8},
}


@pytest.mark.parametrize("api", get_args(Api))
@on_both_loops
async def test_each_fault_is_told(api: Api) -> None:
    for fault in get_args(Fault):
        # Only the fault that needs a limit has a short one: a busy machine may be slow with the others.
        timeouts = Timeouts(
            first_token_s=0.3 if fault == "no_first_token" else None,
            stall_s=0.3 if fault == "stall" else 30.0,
        )
        client = StampingClient(timeouts=timeouts, shows_token=shows_token(api))
        body = json.dumps({"model": "m", "stream": True, **BODIES[api]}).encode()
        # In a thread of its own: it breaks connections in ways that uvloop does not offer.
        with fake_endpoint_thread(lambda number, asked, fault=fault: Reply(fault=fault)) as endpoint:
            async with client:
                answer = await client.post(asks(Endpoint((endpoint.url,), "m").url_for(api), body))
        assert (fault, answer.error_kind) == (fault, KINDS.get(fault))
        assert (answer.error is None) == (answer.error_kind is None)
        assert answer.end_ns >= answer.sent_ns
