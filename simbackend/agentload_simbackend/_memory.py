"""How many bytes of KV cache tokens take."""

from __future__ import annotations

from typing import NamedTuple

from agentload_simbackend._specs import Decoder


class KvShape(NamedTuple):
    """KV cache of one model: full-attention layers grow with the context, sliding ones up to the window."""

    bytes_per_token: int
    sliding_bytes_per_token: int
    window_tokens: int

    @classmethod
    def of(cls, model: Decoder, bytes_per_element: int) -> KvShape:
        """K and V stored apart, for every KV head."""
        full = model.full_attention_layers.whole * model.kv_heads_full.whole * model.head_dim_full.whole
        sliding = model.sliding_layers.whole * model.kv_heads_sliding.whole * model.head_dim_sliding.whole
        return cls(2 * full * bytes_per_element, 2 * sliding * bytes_per_element, model.window.whole)

    @property
    def window_bytes(self) -> int:
        """Sliding-window part of one stream, allocated whole."""
        return self.sliding_bytes_per_token * self.window_tokens

    def stream_bytes(self, tokens: int) -> int:
        """What a stream of `tokens` tokens (prompt and answer) reserves."""
        return tokens * self.bytes_per_token + self.window_bytes

    def transfer_bytes(self, tokens: int) -> int:
        """What a hand-off of the last `tokens` tokens of a context carries."""
        windowed = tokens if tokens < self.window_tokens else self.window_tokens
        return tokens * self.bytes_per_token + windowed * self.sliding_bytes_per_token
