"""How long it takes to prefill the new tokens of a prompt."""

from __future__ import annotations

from agentload_simbackend._deployment import Deployment


class PrefillModel:
    """Compute-bound prefill of one instance, after a cached prefix."""

    def __init__(self, deployment: Deployment) -> None:
        shape, chip, prefill = deployment.shape, deployment.prefill_chip, deployment.spec.prefill
        assert chip is not None
        assert prefill is not None
        self._linear = 2 * shape.active_core_parameters
        self._full = shape.flops_per_key
        self._sliding = shape.window_flops_per_key
        self._window = shape.window_tokens
        rate = (chip.fp8_flops or chip.bf16_flops).value * chip.prefill.flops_efficiency.value
        self._flops_per_s = rate * prefill.gpus_per_instance.value
        self.latency_ns = round(chip.prefill.latency.value * 1e9)
        """The constant part: latency that does not occupy the GPUs."""

    def flops(self, cached_tokens: int, new_tokens: int) -> int:
        """FLOPs of `new_tokens` tokens that follow `cached_tokens` cached ones.

        The layers' weights once per new token; each new token attends to all before it in full-attention
        layers, to at most a window of them in sliding ones.
        """
        end = cached_tokens + new_tokens
        full = new_tokens * (cached_tokens + end + 1) // 2
        if cached_tokens >= self._window:
            sliding = new_tokens * self._window
        else:
            sliding = self._windowed(end) - self._windowed(cached_tokens)
        return self._linear * new_tokens + self._full * full + self._sliding * sliding

    def compute_ns(self, cached_tokens: int, new_tokens: int) -> int:
        """Time for which the prefill occupies its instance, at least 1 ns."""
        return int(self.flops(cached_tokens, new_tokens) / self._flops_per_s * 1e9) + 1

    def _windowed(self, tokens: int) -> int:
        """Keys that the first `tokens` tokens attend to in one sliding layer."""
        if tokens <= self._window:
            return tokens * (tokens + 1) // 2
        return self._window * (self._window + 1) // 2 + (tokens - self._window) * self._window
