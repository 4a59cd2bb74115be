"""How long it takes to prefill the new tokens of a prompt: on GPUs of its own, or between decode steps."""

from __future__ import annotations

from collections.abc import Callable

from agentload_simbackend._gpu_terms import GpuGroup, GpuModel, GpuParameters
from agentload_simbackend._lpu_step import LpuWork, lpu_chunk
from agentload_simbackend._model import ModelShape
from agentload_simbackend._pieces import progression_ns, value_ns


class PrefillModel:
    """Prefill of one group of GPUs, after a cached prefix, in chunks of `chip.prefill.chunk` tokens.

    Each chunk takes what `GpuTerms.prefill_s` says of its tokens.
    """

    def __init__(self, shape: ModelShape, group: GpuGroup) -> None:
        self._model = model = GpuModel(shape)
        p = GpuParameters.stated(group.chip)
        self._attention_flops_per_s = group.chips * group.attention_flops * p.flops_efficiency
        self.chunk_tokens = group.chip.prefill.chunk.whole
        read_s, computed_s = model.prefill_products(group, self.chunk_tokens)
        self._chunk_s = p.slower_s(read_s, computed_s)
        self._chunk_read_s = read_s / p.hbm_efficiency
        self._token_s = computed_s / p.flops_efficiency / self.chunk_tokens
        self._parameter_s = self._chunk_read_s / shape.parameters_touched(self.chunk_tokens)
        fitted = group.chip.prefill.layer_overhead is not None  # Else its `flops_efficiency` holds exchanges.
        self._exchange_s = model.terms(group).prefill_exchange / p.link_efficiency if fitted else 0.0
        latency_s = model.prefill_layers * p.prefill_layer_overhead_s or group.chip.prefill.latency.value
        self.latency_ns = round(latency_s * 1e9)
        """The constant part: latency that does not occupy the GPUs."""

    def flops(self, cached_tokens: int, new_tokens: int) -> int:
        """FLOPs of `new_tokens` tokens that follow `cached_tokens` cached ones, but for the output head."""
        products = 2 * self._model.shape.active_core_parameters * new_tokens
        return products + self._model.attention_flops(cached_tokens, new_tokens)

    def compute_ns(self, cached_tokens: int, new_tokens: int) -> int:
        """Time for which the prefill occupies its group, at least 1 ns."""
        return int(self.compute_s(cached_tokens, new_tokens) * 1e9) + 1

    def compute_s(self, cached_tokens: int, new_tokens: int) -> float:
        """The same in seconds."""
        whole, rest = divmod(new_tokens, self.chunk_tokens)
        total_s = whole * self._chunk_s + new_tokens * self._exchange_s
        if rest:
            total_s += self._products_s(rest)
        attention = self._model.attention_flops(cached_tokens, new_tokens)
        return total_s + attention / self._attention_flops_per_s

    def _products_s(self, tokens: int) -> float:
        """`GpuParameters.slower_s` of fewer tokens than a chunk, which never touch more."""
        computing_s = tokens * self._token_s
        if computing_s >= self._chunk_read_s:
            return computing_s
        return max(computing_s, self._model.shape.parameters_touched(tokens) * self._parameter_s)


class LpuPrefill:
    """Prefill of one group of LPUs, by its static schedule: a pass over each chunk of a prompt.

    The last pass has fewer tokens; its time is between that of one token and that of a whole chunk.
    """

    def __init__(self, work: LpuWork, chunk_tokens: int) -> None:
        self._whole = lpu_chunk(work, chunk_tokens)
        self._single = lpu_chunk(work, 1)
        self.chunk_tokens = chunk_tokens
        self.latency_ns = round((work.group.head_s + work.group.host_s) * 1e9)
        """The constant part: output head and host, once for a prompt."""

    def compute_s(self, cached_tokens: int, new_tokens: int) -> float:
        """Time of all passes; each token attends to those before it, so a pass to half of itself."""
        chunk = self.chunk_tokens
        whole, rest = divmod(new_tokens, chunk)
        total_ns = progression_ns(self._whole, cached_tokens + (chunk + 1) / 2, chunk, whole)
        if rest:
            context = cached_tokens + whole * chunk + (rest + 1) / 2
            least_ns = value_ns(self._single, context)
            share = (rest - 1) / max(chunk - 1, 1)
            total_ns += least_ns + share * (value_ns(self._whole, context) - least_ns)
        return total_ns / 1e9


class ChunkedPrefill:
    """Prefill in the decode replica itself: each chunk lengthens a decode step of the replica.

    compute_s: time of (cached, new) tokens as a whole. latency_ns: a constant that occupies nothing.
    """

    def __init__(self, compute_s: Callable[[int, int], float], chunk_tokens: int, latency_ns: int) -> None:
        self._compute_s = compute_s
        self.chunk_tokens = chunk_tokens
        self.latency_ns = latency_ns

    def plan(self, cached_tokens: int, new_tokens: int) -> tuple[int, float, float]:
        """(chunks, first_ns, growth_ns): chunk k, from 0, takes first_ns + k x growth_ns.

        Their sum is the time of the whole. They grow as whole chunks do from the first to the last.
        """
        chunk = self.chunk_tokens
        total_ns = self._compute_s(cached_tokens, new_tokens) * 1e9
        whole = new_tokens // chunk
        chunks = whole + (new_tokens % chunk > 0)
        if whole < 2:
            return chunks, total_ns / chunks, 0.0
        last_s = self._compute_s(cached_tokens + (whole - 1) * chunk, chunk)
        growth_ns = (last_s - self._compute_s(cached_tokens, chunk)) * 1e9 / (whole - 1)
        mean_ns = total_ns / chunks
        growth_ns = max(min(growth_ns, 2 * mean_ns / (chunks - 1)), 0.0)
        return chunks, max(mean_ns - growth_ns * (chunks - 1) / 2, 0.0), growth_ns
