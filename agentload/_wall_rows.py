"""The row of an attempt on the wall clock: what an answer and its reading say, on the run's clock."""

from __future__ import annotations

from agentload._answers import ParsedAnswer, last_byte_ns
from agentload._http_client import Answer
from agentload._rows import put_arrivals
from agentload_simbackend import Arrival
from agentload_traces import RequestRow


def fill_row(row: RequestRow, answer: Answer, parsed: ParsedAnswer, origin_ns: int) -> None:
    """Fill the row of a turn with what came of an attempt. origin_ns: when the run's clock read 0."""
    _fill_transport(row, answer, origin_ns)
    # An answer that was broken off ended when it broke, which may be long after its last byte.
    row.end_ns = (answer.end_ns if answer.error else last_byte_ns(answer)) - origin_ns
    row.output_tokens = parsed.output_tokens
    row.finish_reason = parsed.finish_reason
    if parsed.error is not None:
        row.status, row.error, row.error_kind = "failed", parsed.error, parsed.error_kind
    if (usage := parsed.usage) is not None:
        row.reported_input_tokens, row.reported_output_tokens = usage.input_tokens, usage.output_tokens
        row.cached_tokens, row.cache_written_tokens = usage.cached_tokens, usage.cache_written_tokens
        row.reasoning_tokens = usage.reasoning_tokens
    if parsed.arrivals:
        row.first_token_ns = parsed.arrivals[0].at_ns - origin_ns
        put_arrivals(row, [Arrival(at - origin_ns, tokens) for at, tokens in parsed.arrivals])
        _fill_phases(row, parsed)


def _fill_transport(row: RequestRow, answer: Answer, origin_ns: int) -> None:
    row.http_status = answer.status
    row.sent_ns = answer.sent_ns - origin_ns
    row.unread_bytes = answer.unread_bytes
    if answer.opened is not None:
        row.dns_ns, row.connect_ns, row.tls_ns = answer.opened
    if answer.written_ns is not None:
        opened_ns = sum(part or 0 for part in answer.opened) if answer.opened is not None else 0
        row.send_ns = max(0, answer.written_ns - answer.sent_ns - opened_ns)
    if answer.first_byte_ns is not None:
        row.first_byte_ns = answer.first_byte_ns - origin_ns


def _fill_phases(row: RequestRow, parsed: ParsedAnswer) -> None:
    assert row.end_ns is not None
    assert row.scheduled_ns is not None
    assert row.first_token_ns is not None
    assert row.sent_ns is not None
    total_ns = row.end_ns - row.scheduled_ns
    timing = parsed.timing
    told_ns = 0
    if timing is not None:
        told_ns = timing.queue_ns + timing.prefill_ns + timing.handoff_ns + timing.decode_ns
    if timing is None or told_ns > total_ns:
        # Phases that take longer than the turn are not believed.
        row.first_token_wait_ns = row.first_token_ns - row.sent_ns
        row.decode_ns = row.end_ns - row.first_token_ns
        row.client_ns = total_ns - row.first_token_wait_ns - row.decode_ns
        return
    row.queue_ns, row.prefill_ns = timing.queue_ns, timing.prefill_ns
    row.handoff_ns, row.decode_ns = timing.handoff_ns, timing.decode_ns
    row.steps, row.replica = timing.steps, timing.replica
    row.handoff_tokens = timing.handoff_tokens
    row.client_ns = total_ns - told_ns


def without_timeline(row: RequestRow) -> None:
    """Leave out when the tokens came: of an attempt that was followed by another nobody asks."""
    row.arrival_dt_us = row.arrival_tokens = None
