"""How long it takes to prefill the new tokens of a prompt."""

from __future__ import annotations

from agentload_simbackend._deployment import Deployment


class PrefillModel:
    """Compute-bound prefill of one instance, after a cached prefix."""

    def __init__(self, deployment: Deployment) -> None:
        model, chip = deployment.model, deployment.prefill_chip
        core = model.parameters.whole - model.embedding_parameters.whole
        self._linear = 2 * core
        per_key = 4 * model.query_heads.whole
        self._full = per_key * model.full_attention_layers.whole * model.head_dim_full.whole
        self._sliding = per_key * model.sliding_layers.whole * model.head_dim_sliding.whole
        self._window = model.window.whole
        rate = chip.fp8_flops.value * chip.flops_efficiency.value
        self._flops_per_s = rate * deployment.spec.prefill.gpus_per_instance.value
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
