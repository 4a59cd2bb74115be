"""How many bytes of KV cache tokens take."""

from __future__ import annotations

from typing import NamedTuple

from agentload_simbackend._model import ModelShape


class KvShape(NamedTuple):
    """KV cache of one model.

    Full-attention layers grow with the context, sliding ones up to the window; a state space has one state
    per stream.
    """

    bytes_per_token: int
    sliding_bytes_per_token: int
    window_tokens: int
    state_bytes: int

    @classmethod
    def of(cls, shape: ModelShape, bytes_per_element: int) -> KvShape:
        """K and V stored apart, for every KV head; states in their own format."""
        return cls(
            shape.kv_elements_per_token * bytes_per_element,
            shape.window_elements_per_token * bytes_per_element,
            shape.window_tokens,
            shape.state_bytes,
        )

    @classmethod
    def on_gpus(cls, shape: ModelShape, bytes_per_element: int, gpus: int) -> KvShape:
        """As a tensor-parallel group holds it in all: more than once where it has fewer KV heads than GPUs.

        Each GPU has one KV head at least, and of latent attention all.
        """
        growing = sliding = states = 0
        for kind in shape.kinds:
            if kind.mixer is None:
                continue
            copies = kind.count * gpus
            ways = min(gpus, kind.mixer.cache_ways)
            kv_bytes = -(-copies * kind.mixer.kv_elements * bytes_per_element // ways)
            growing += 0 if kind.mixer.window else kv_bytes
            sliding += kv_bytes if kind.mixer.window else 0
            states += -(-copies * kind.mixer.state_bytes // ways)
        return cls(growing, sliding, shape.window_tokens, states)

    @property
    def window_bytes(self) -> int:
        """Sliding-window part of one stream, allocated whole."""
        return self.sliding_bytes_per_token * self.window_tokens

    @property
    def fixed_bytes(self) -> int:
        """What a stream reserves whatever its context: windows and states."""
        return self.window_bytes + self.state_bytes

    def stream_bytes(self, tokens: int) -> int:
        """What a stream of `tokens` tokens (prompt and answer) reserves."""
        return tokens * self.bytes_per_token + self.fixed_bytes

    def missing_window_tokens(self, prompt_tokens: int, resident_tokens: int, past_tokens: int | None) -> int:
        """For how many of a prompt's tokens a hand-off brings the sliding-window part.

        The first `resident_tokens` are there. The windows there end `past_tokens` tokens after them, or
        somewhere else (`None`), and then all of the prompt's window is brought.
        """
        window = self.window_tokens
        wanted = window if window < prompt_tokens else prompt_tokens
        if past_tokens is None or past_tokens >= window:
            return wanted
        held_from = resident_tokens + past_tokens - window
        wanted_from = prompt_tokens - wanted
        there = resident_tokens - (held_from if held_from > wanted_from else wanted_from)
        return wanted - there if there > 0 else wanted

    def transfer_bytes(self, tokens: int, window_tokens: int) -> int:
        """What a hand-off of `tokens` tokens carries, `window_tokens` of them with their sliding window.

        More than the model's window there never is of it. States cross with every hand-off, for every prefill
        changes them.
        """
        windowed = window_tokens if window_tokens < self.window_tokens else self.window_tokens
        return tokens * self.bytes_per_token + windowed * self.sliding_bytes_per_token + self.state_bytes
