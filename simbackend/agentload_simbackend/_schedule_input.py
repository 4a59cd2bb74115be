"""What a schedule is asked for: the streams of a step, how numbers are stored, and ablations."""

from __future__ import annotations

from typing import NamedTuple

FIRST_BIT_S = 2e-6
"""What arbitration costs an exchange on a GPU fabric.

The small-message all-reduce (128 B to 64 KB, CUDA graph) takes 4.0 to 4.8 us on GB300, 3.6 to 4.6 on GB200
and 4.6 to 6.3 on B200; it is a reduce-scatter and an all-gather, thus two exchanges of 2 us. Measured: NVIDIA
AIConfigurator,
https://github.com/ai-dynamo/aiconfigurator/tree/095f58a51c4ca8e61b66ec108d86f223f8d559ce/aic-core/src/aiconfigurator_core/systems
"""


class ScheduleOptions(NamedTuple):
    """Ablations. overlap: vectors leave as they are computed, else after the whole operation.

    first_bit_s: latency that arbitration adds to every exchange (a static schedule has none). An all-reduce
    is two exchanges.
    """

    overlap: bool = True
    first_bit_s: float = 0.0


AS_IT_IS = ScheduleOptions()
"""No ablation."""


class StepInput(NamedTuple):
    """A step of `batch` streams that each verify `tokens` tokens (a draft: that each get one).

    context_tokens: the sum of their contexts. weight_bytes: per parameter. kv_bytes: per element.
    split_attention: without the mixers whose cache grows, which run elsewhere (mode afd).
    """

    batch: int
    tokens: int
    context_tokens: float
    weight_bytes: float
    kv_bytes: float
    split_attention: bool = False
    options: ScheduleOptions = AS_IT_IS

    @property
    def rows(self) -> int:
        """Tokens that go through every layer."""
        return self.batch * self.tokens
