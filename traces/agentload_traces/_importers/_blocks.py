"""Block ids of imported formats."""

from __future__ import annotations

from agentload_traces._problems import ImportReport, Position
from agentload_traces._records import UINT64_MAX, BlockScope, PrefixBlocks


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
    whole, rest = divmod(input_tokens, block_tokens)
    if len(ids) != whole and (rest == 0 or len(ids) != whole + 1):
        expected = f"{whole}" if rest == 0 else f"{whole} or {whole + 1}"
        report.mend(
            where,
            "hash_ids",
            f"has {len(ids)} ids, but {length_field} {input_tokens} makes {expected} blocks "
            f"of {block_tokens} tokens; ids dropped",
        )
        return None
    if ids and (min(ids) < 0 or max(ids) > UINT64_MAX):
        wrong = next(i for i in ids if not 0 <= i <= UINT64_MAX)
        report.mend(where, "hash_ids", f"must be 0 to 2^64 - 1, one is {wrong}; ids dropped")
        return None
    return PrefixBlocks(ids=tuple(ids), block_tokens=block_tokens, scope=scope)
