"""Block ids of imported formats."""

from __future__ import annotations

from agentload_traces._checks import wrong_block_ids
from agentload_traces._problems import ImportReport, Position
from agentload_traces._records import BlockScope, PrefixBlocks


def fitting_blocks(
    ids: list[int] | None,
    input_tokens: int,
    *,
    block_tokens: int,
    scope: BlockScope,
    length_field: str,
    where: Position,
    report: ImportReport,
) -> PrefixBlocks | None:
    """Return a prompt's blocks; drop and report ids that do not fit the prompt (the turn is kept without).

    Their number must be that of the prompt's blocks, a partial last one counted or not, and each id must
    fit in unsigned 64 bits.
    """
    if ids is None:
        return None
    message = wrong_block_ids(ids, input_tokens, block_tokens, length_field=length_field, all_blocks=True)
    if message is not None:
        report.mend(where, "hash_ids", f"{message}; ids dropped")
        return None
    return PrefixBlocks(ids=tuple(ids), block_tokens=block_tokens, scope=scope)
