"""What `agentload schedule` says in sentences."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from agentload_simbackend import (
        AblationRow,
        MemoryNeed,
        OperationTime,
        ScheduledDeployment,
        ScheduleOptions,
    )

_WORTH = 0.01
"""Tensor parallelism over more chips pays if a stream is faster by more than this."""


def title(scheduled: ScheduledDeployment) -> str:
    """What was scheduled."""
    streams = "1 stream" if scheduled.batch == 1 else f"{scheduled.batch} streams"
    return (
        f"{scheduled.deployment.model.name}: a decode step on {scheduled.group.chips} LPUs, {streams} of "
        f"{scheduled.context_tokens:,} tokens, {scheduled.draft_tokens + 1} verified per stream"
    )


def speeds(scheduled: ScheduledDeployment) -> list[str]:
    """The speed without and with drafts; each line says what it must not be read without."""
    caveat = _caveat(scheduled)
    lines = [f"One token a step, no drafts: {scheduled.plain_tokens_per_s:,.0f} tokens/s per stream{caveat}."]
    if not scheduled.draft_tokens:
        return lines
    drafts = f"{scheduled.draft_tokens} drafts" if scheduled.draft_tokens > 1 else "1 draft"
    text = f"Step with {drafts}: {scheduled.seconds * 1e6:,.1f} us"
    if scheduled.tokens_per_s is None:
        return [*lines, f"{text}; how many tokens it yields is not known for so many{caveat}."]
    speed = f"{scheduled.tokens_per_s:,.0f} tokens/s per stream"
    return [*lines, f"{text}; at {scheduled.acceptance_length:g} tokens a step {speed}{caveat}."]


def _caveat(scheduled: ScheduledDeployment) -> str:
    parts = []
    if elsewhere := scheduled.elsewhere:
        gpus = scheduled.memory()[-1].chip.name
        bound = ", micro-batches a bound" if len(elsewhere) > 2 else ""
        parts.append(f"crossings and attention on {gpus}, which it includes, are estimates{bound}")
    if not scheduled.holds_batch:
        held = scheduled.streams_that_fit() or "none"
        parts.append(f"DOES NOT FIT: of {_streams(scheduled.batch)} the memory holds {held}")
    return f" ({'; '.join(parts)})" if parts else ""


def conditions(scheduled: ScheduledDeployment) -> list[str]:
    """What the numbers hold for."""
    return [
        f"Built for {scheduled.deployment.name}; not run on any machine.",
        *_memory(scheduled),
        *_ablations(scheduled),
        _operation_time(scheduled.operation_time, scheduled.group.chips),
        *_left_out(scheduled),
        *_numbers(scheduled),
    ]


def _memory(scheduled: ScheduledDeployment) -> Iterator[str]:
    for need in scheduled.memory():
        kind, memory = ("LPUs", "SRAM") if need.side == "decode" else ("GPUs", "HBM")
        weights = f"weights {need.weights_bytes / 1e9:,.1f} GB"
        drafter = f", drafter {need.drafter_bytes / 1e9:,.2f} GB" if need.drafter_bytes else ""
        usable = f"{need.chip_bytes * need.chips / 1e9:,.1f} GB usable"
        yield f"{memory} of {need.chips:,} {kind}: {usable}, {weights}{drafter}; {_room(scheduled, need)}."


def _room(scheduled: ScheduledDeployment, need: MemoryNeed) -> str:
    tokens = scheduled.context_tokens
    stream = need.stream_bytes(tokens)
    streams = need.streams(tokens)
    if not need.holds_weights:
        return "it does not hold them with one token of KV"
    if streams is None:
        return "streams take none of it"
    return f"of streams of {tokens:,} tokens ({stream / 1e9:,.2f} GB each) {_fit(max(0, streams))}"


def _streams(count: int) -> str:
    return "1 such stream" if count == 1 else f"{count} such streams"


def _fit(count: int) -> str:
    return "none fits" if count == 0 else "1 fits" if count == 1 else f"{count:,} fit"


def _ablations(scheduled: ScheduledDeployment) -> Iterator[str]:
    if not scheduled.options.overlap:
        yield "Without overlap: results leave when the whole operation is done."
    if scheduled.options.first_bit_s:
        yield f"With arbitration: {scheduled.options.first_bit_s * 1e6:g} us more per exchange."


def _operation_time(time: OperationTime, lpus: int) -> str:
    said = f"The operation time, {time.quantity.value * 1e6:.3g} us, "
    if time.quantity.kind != "fitted":
        return f"{said}is not fitted: {time.quantity.kind.replace('_', ' ')}."
    if time.lpus is None:
        return f"{said}is fitted, and no deployment here says to which group."
    here = "" if time.lpus == lpus else f", not to one of {lpus}: nothing published says what it is there"
    return f"{said}was fitted to a group of {time.lpus} LPUs that decodes {time.model}{here}."


def _left_out(scheduled: ScheduledDeployment) -> Iterator[str]:
    if max(row.lpus for row in scheduled.ablation) > scheduled.rack_lpus:
        yield (
            f"Groups beyond a rack of {scheduled.rack_lpus} LPUs: exchanges are taken to be hierarchical, "
            "each part crossing between racks once; the reach latency holds that, but the bandwidth between "
            "racks (4 x 100 Gbit/s per LPU) is not modelled."
        )
    shape = scheduled.deployment.shape
    for kind in shape.kinds:
        if kind.mixer is not None and kind.mixer.kind == "latent":
            yield (
                f"The gather of queries, keys and values counts the model's width ({shape.hidden:,} elements "
                f"a token), not the absorbed queries of latent attention ({kind.mixer.exps_per_key} x "
                f"{kind.mixer.kv_elements})."
            )
            break
    if scheduled.draft_tokens and scheduled.draft is None:
        yield "No drafter is known for this model: drafts cost nothing here."


def _numbers(scheduled: ScheduledDeployment) -> Iterator[str]:
    from agentload_simbackend import shown_number

    words: dict[str, list[str]] = {"fitted": [], "estimate": []}
    for path, quantity in scheduled.numbers():
        name = path.removeprefix("decode.").removeprefix("chip.").replace(".", " ").replace("_", " ")
        if quantity.kind in words:
            words[quantity.kind].append(f"{name} {shown_number(quantity.value, quantity.unit)}")
    if words["fitted"]:
        yield f"Also fitted to published results: {', '.join(words['fitted'])}."
    if words["estimate"]:
        yield f"Estimates: {', '.join(words['estimate'])}."


def ablation_caption(scheduled: ScheduledDeployment) -> str:
    """What the table of ablations shows."""
    from agentload_simbackend import FIRST_BIT_S

    length = scheduled.acceptance_length
    yields = f"{length:g} tokens a step" if length and scheduled.draft_tokens else "one token a step"
    first_bit_s = scheduled.options.first_bit_s or FIRST_BIT_S
    source = ""
    if first_bit_s == FIRST_BIT_S:
        source = ", half a small all-reduce on GB300 (4 us; NVIDIA AIConfigurator), which is two exchanges"
    return (
        f"Tokens/s per stream at {yields}, by size of the group (* the fastest that holds the weights); "
        f"arbitration is {first_bit_s * 1e6:g} us an exchange{source}; the operation time is that of the "
        "group that it was fitted to"
    )


def stops_paying(scheduled: ScheduledDeployment) -> str:
    """Where more chips make a stream no faster, in one sentence."""
    static, arbitrated = list(scheduled.ablation[0].speeds)[:2]
    holding = [row for row in scheduled.ablation if row.holds_weights]
    by_speed = (
        f"by speed alone tensor parallelism would stop paying at {_enough(scheduled.ablation, static).lpus}"
    )
    if not holding:
        return f"None of these groups holds the weights; {by_speed}."
    if len(holding) == 1:
        return f"Only {holding[0].lpus} LPUs hold the weights; {by_speed}."
    enough, beside = _enough(holding, static), _enough(holding, arbitrated)
    streams = "1 stream" if scheduled.batch == 1 else f"{scheduled.batch} streams"
    if enough is holding[-1]:
        text = f"With {streams} tensor parallelism pays up to {enough.lpus} LPUs, the largest group here"
    else:
        text = (
            f"With {streams} tensor parallelism stops paying at {enough.lpus} LPUs: no larger group is more "
            f"than {_WORTH:.0%} faster"
        )
    also = "too" if beside is enough else f"at {beside.lpus}"
    return f"{text}; with arbitration {also}{_tie(scheduled, holding)}."


def _enough(rows: list[AblationRow], options: ScheduleOptions) -> AblationRow:
    """The smallest group that is as fast as any, but for what is not worth it."""
    fastest = max(row.speeds[options] for row in rows)
    return next(row for row in rows if row.speeds[options] * (1 + _WORTH) >= fastest)


def _tie(scheduled: ScheduledDeployment, rows: list[AblationRow]) -> str:
    """Sizes that were fitted each for itself come out the same because they were fitted to the same."""
    times = {row.lpus: row.operation_time for row in rows}
    model = scheduled.deployment.model.name
    own = [str(lpus) for lpus, time in times.items() if (time.lpus, time.model) == (lpus, model)]
    if len(own) < 2:
        return ""
    sizes = " and ".join(own)
    return (
        f" (but {sizes} were each fitted to the same published speed: that they are close is no prediction)"
    )
