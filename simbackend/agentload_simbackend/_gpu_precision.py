"""What the name of a precision says: how wide weights are stored, and in which format products are.

Engines and checkpoints write `fp8_block`, `nvfp4`, `w4a16_mxfp4`, `int4`. In `wXaY` weights have X bits and
activations Y; tensor cores multiply in the activations' format. INT4 stores weights alone: products are in
BF16. https://docs.vllm.ai/en/latest/features/quantization
"""

from __future__ import annotations

import re
from typing import NamedTuple

import msgspec

from agentload_simbackend._specs import GpuChip

_BITS = re.compile(r"w(4|8|16)a(?:fp|int)?(4|8|16)(?!\d)")
_NAMED = {
    "fp4": (4, 4),
    "int4": (4, 16),
    "fp8": (8, 8),
    **dict.fromkeys(("bf16", "fp16", "bfloat16", "float16"), (16, 16)),
}
_WEIGHT_BYTES = {4: 0.5625, 8: 1.0, 16: 2.0}
"""Four bits have a scale of eight for each block of 16."""


class Precision(NamedTuple):
    """weight_bytes: of a parameter as it is stored. compute_bits: of the format that products are in."""

    weight_bytes: float
    compute_bits: int

    @classmethod
    def of(cls, name: str) -> Precision | None:
        """That of a name such as `fp8_block`, whatever its case; `None` if it is not known."""
        wanted = name.lower()
        bits = _BITS.match(wanted)
        if bits is not None:
            return cls(_WEIGHT_BYTES[int(bits[1])], int(bits[2]))
        for part, (stored, computed) in _NAMED.items():
            if part in wanted:
                return cls(_WEIGHT_BYTES[stored], computed)
        return None

    def on(self, chip: GpuChip) -> GpuChip:
        """The chip without the formats that are narrower than these products."""
        if self.compute_bits > 8:
            return msgspec.structs.replace(chip, fp4_flops=None, fp8_flops=None)
        return msgspec.structs.replace(chip, fp4_flops=None) if self.compute_bits > 4 else chip


def named_precision(checkpoint: str) -> str | None:
    """The precision in a checkpoint's name, if it has one."""
    name = checkpoint.lower()
    bits = _BITS.search(name)
    return bits[0] if bits is not None else next((part for part in _NAMED if part in name), None)
