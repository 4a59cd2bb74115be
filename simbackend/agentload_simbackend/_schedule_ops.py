"""The dependent operations of a layer, and what each costs one LPU of a group.

Everything is split evenly over the group: the columns or rows of every matrix (of every expert too, so that
no schedule hangs on the routing), the KV cache by heads and tokens, the elements of every vector. A vector
operation works on its LPU's part, for the factor of a norm can be applied to the products' own columns, and
partial sums are added as they arrive. The chain of an attention layer with a dense network is

    norm (VXM), q k v (MXM), rotate (SXM), rope (VXM)    -> gather q, k, v to where the KV is
    kv write (MEM), scores (MXM), softmax (VXM), values (MXM)   -> combine the partial softmax
    rescale (VXM), o (MXM)      -> reduce-scatter
    residual (VXM)              -> all-gather
    norm (VXM), gate up (MXM), activation (VXM), down (MXM)     -> reduce-scatter
    residual (VXM)              -> all-gather

16 operations and 6 exchanges. Latent attention has one exchange more, since its up-projections contract over
the latent vector; a mixture of experts one for the router's scores, and one if its experts work in a latent
space. The units are those of the TSP (https://doi.org/10.1109/ISCA45697.2020.00023).
"""

from __future__ import annotations

from math import ceil
from typing import Literal, NamedTuple

from agentload_simbackend._model import FfnShape, LayerKind, MixerShape, Product
from agentload_simbackend._model_specs import Drafter
from agentload_simbackend._schedule_group import Group
from agentload_simbackend._schedule_input import StepInput

FunctionalUnit = Literal["MXM", "VXM", "SXM", "MEM"]
"""MXM: matrix products. VXM: vector arithmetic. SXM: shifts and permutations. MEM: SRAM."""

FUNCTIONAL_UNITS: tuple[FunctionalUnit, ...] = ("MXM", "VXM", "SXM", "MEM")

Share = Literal["on_chip", "weights", "attention"]
"""The line of the budget that an operation's arithmetic belongs to."""


class Part(NamedTuple):
    """One product or vector operation, in cycles of arithmetic (not whole ones); `tiles` of the matrix
    unit."""

    name: str
    cycles: float
    tiles: int = 1


class Exchange(NamedTuple):
    """Each LPU sends all others their part of `elements` of each token.

    In a group of several racks it is taken to be hierarchical, so that each part crosses between racks once.
    The ladder of reach latencies holds that crossing; the bandwidth between racks, 4 x 100 Gbit/s per LPU
    (https://newsletter.semianalysis.com/p/nvidia-the-inference-kingdom-expands), is not modelled.
    """

    name: str
    elements: int


class Task(NamedTuple):
    """One dependent operation: independent parts that a unit takes one after the other, and who awaits
    them."""

    name: str
    unit: FunctionalUnit
    share: Share
    parts: tuple[Part, ...]
    exchange: Exchange | None = None


class Work:
    """What a group does in a step: turns bytes, FLOPs and elements of the whole model into cycles of one LPU.

    rows: tokens that go through every layer. context_tokens: sum of the contexts of the batch.
    """

    def __init__(self, group: Group, asked: StepInput) -> None:
        chip, per_cycle = group.chip, group.chips / group.clock_hz
        self.batch, self.tokens, self.rows = asked.batch, asked.tokens, asked.rows
        self.context_tokens = asked.context_tokens
        self._weight_bytes, self._kv_bytes = asked.weight_bytes, asked.kv_bytes
        self._lanes = chip.vector_bytes.whole
        self._bytes = chip.sram_bandwidth.value * chip.sram_efficiency.value * per_cycle
        self._gemm = chip.fp8_flops.value * chip.gemm_efficiency.value * per_cycle
        self._attention = chip.fp8_flops.value * chip.attention_efficiency.value * per_cycle
        self._exps = chip.exp_rate.value * per_cycle
        self._elements = group.chips * self._lanes
        self._tile = group.chips * self._lanes * self._lanes

    def matrix(self, name: str, parameters: float) -> Part:
        """A matrix that every row goes through: read from SRAM while the rows stream through it."""
        return self._product(name, parameters, parameters)

    def expert(self, ffn: FfnShape, product: Product) -> Part:
        """One matrix of all experts: as many are read as the rows are expected to touch, routed evenly."""
        read = ffn.experts_touched(self.rows) * product.parameters
        return self._product(product.name, read, ffn.active * product.parameters)

    def _product(self, name: str, read: float, used: float) -> Part:
        read_cycles = read * self._weight_bytes / self._bytes
        cycles = max(read_cycles, 2.0 * used * self.rows / self._gemm)
        return Part(name, cycles, ceil(read / self._tile))

    def keys(self, mixer: MixerShape) -> float:
        """Tokens that attention reads, of all streams; a window is read as far as it can be filled."""
        return min(self.context_tokens, self.batch * mixer.window) if mixer.window else self.context_tokens

    def attend(self, mixer: MixerShape, name: str) -> Part:
        """Scores or values: each of them half the KV cache and half the FLOPs."""
        keys = self.keys(mixer)
        read = 0.5 * mixer.kv_elements * keys
        flops = 0.5 * mixer.flops_per_key * keys * self.tokens
        cycles = max(read * self._kv_bytes / self._bytes, flops / self._attention)
        return Part(name, cycles, ceil(read / self._tile))

    def read(self, name: str, elements: float) -> Part:
        """A KV cache of which only the size is known."""
        return Part(name, elements * self._kv_bytes / self._bytes, ceil(elements / self._tile))

    def softmax(self, mixer: MixerShape) -> Part:
        """Its exponentials."""
        return Part("softmax", mixer.exps_per_key * self.keys(mixer) * self.tokens / self._exps)

    def state(self, mixer: MixerShape) -> Part:
        """The state of each stream is read and written once, and updated for each token."""
        moved = 2.0 * mixer.state_bytes * self.batch / self._bytes
        return Part("state", max(moved, mixer.flops_per_key * self.rows / self._attention))

    def write(self, kv_elements: float) -> Part:
        """The new tokens' keys and values go to SRAM."""
        return Part("kv write", kv_elements * self.rows * self._kv_bytes / self._bytes)

    def vector(self, name: str, elements: int) -> Part:
        """A vector operation over so many elements a row, a lane's worth in a cycle."""
        return Part(name, elements * self.rows / self._elements)


def layer_tasks(kind: LayerKind, hidden: int, work: Work, *, split_attention: bool = False) -> list[Task]:
    """The operations of one layer, in order; `split_attention` leaves out a mixer whose cache grows."""
    tasks: list[Task] = []
    if kind.mixer is not None and not (split_attention and kind.mixer.grows):
        tasks += _mixer(kind.mixer, hidden, work)
    if kind.ffn is not None:
        tasks += _ffn(kind.ffn, hidden, work)
    return tasks


def draft_tasks(drafter: Drafter, work: Work) -> list[Task]:
    """One layer of a draft model: the chain of an attention layer with a dense network.

    Its spec has only totals: its matrices count as four equal products, its KV cache (if it keeps one) as
    bytes.
    """
    hidden, layers = drafter.hidden.whole, drafter.layers.whole
    quarter = drafter.parameters.value / layers / 4
    cached = drafter.kv_elements_per_token.value / layers
    keys = cached * work.context_tokens
    return [
        _vector("norm", work, hidden),
        _matrices("q k v", work.matrix("q k v", quarter)),
        *_rope(work, hidden, Exchange("gather q k v", hidden)),
        Task("kv write", "MEM", "on_chip", (work.write(cached),)),
        _attention("scores", work.read("scores", 0.5 * keys)),
        Task("softmax", "VXM", "attention", (Part("softmax", 0.0),)),
        _attention("values", work.read("values", 0.5 * keys), Exchange("combine softmax", hidden)),
        _vector("rescale", work, hidden),
        *_reduced("o", hidden, work, work.matrix("o", quarter)),
        _vector("norm", work, hidden),
        _matrices("gate up", work.matrix("gate up", quarter)),
        _vector("activation", work, hidden),
        *_reduced("down", hidden, work, work.matrix("down", quarter)),
    ]


def _mixer(mixer: MixerShape, hidden: int, work: Work) -> list[Task]:
    if mixer.kind == "state_space":
        return _state_space(mixer, hidden, work)
    before = {product.name: work.matrix(product.name, product.parameters) for product in mixer.before}
    outputs = {product.name: product.outputs for product in mixer.before}
    tasks = [_vector("norm", work, hidden)]
    if mixer.kind == "latent":
        latent = outputs["q down"] + outputs["kv down"]
        down = (before["q down"], before["kv down"])
        tasks += [
            _matrices("q kv down", *down, exchange=Exchange("gather latent", latent)),
            _vector("latent norm", work, latent),
            _matrices("q up", before["q up"]),
            _matrices("k up", before["k up"]),
        ]
        rotated = outputs["q up"]
    else:
        tasks.append(_matrices(" ".join(before), *before.values()))
        rotated = sum(outputs.values())
    tasks += [
        *_rope(work, rotated, Exchange("gather q k v", hidden)),
        Task("kv write", "MEM", "on_chip", (work.write(mixer.kv_elements),)),
        _attention("scores", work.attend(mixer, "scores")),
        Task("softmax", "VXM", "attention", (work.softmax(mixer),)),
        _attention("values", work.attend(mixer, "values"), Exchange("combine softmax", hidden)),
        _vector("rescale", work, mixer.after[-1].inputs),
    ]
    *inner, last = mixer.after
    tasks += [_matrices(each.name, work.matrix(each.name, each.parameters)) for each in inner]
    return [*tasks, *_reduced(last.name, hidden, work, work.matrix(last.name, last.parameters))]


def _state_space(mixer: MixerShape, hidden: int, work: Work) -> list[Task]:
    """Heads are split over the group; what they share (B, C) is gathered."""
    into, out = mixer.before[0], mixer.after[0]
    inner = out.inputs
    return [
        _vector("norm", work, hidden),
        _matrices(
            into.name,
            work.matrix(into.name, into.parameters),
            exchange=Exchange("gather B C", into.outputs - 2 * inner),
        ),
        _vector("convolution", work, into.outputs - inner),
        Task("state", "VXM", "attention", (work.state(mixer),)),
        _vector("gate", work, inner),
        *_reduced(out.name, hidden, work, work.matrix(out.name, out.parameters)),
    ]


def _ffn(ffn: FfnShape, hidden: int, work: Work) -> list[Task]:
    """A dense network, or a router, its experts and the network that every token shares."""
    dense = {product.name.split()[-1]: product for product in ffn.dense}
    parts = {name: work.matrix(product.name, product.parameters) for name, product in dense.items()}
    every = {product.name.split()[-1]: work.expert(ffn, product) for product in ffn.expert}
    tasks = [_vector("norm", work, hidden)]
    if ffn.experts:
        into = tuple(parts[name] for name in ("router", "in") if name in parts)
        chosen = sum(dense[name].outputs for name in ("router", "in") if name in dense)
        tasks.append(
            _matrices(" ".join(part.name for part in into), *into, exchange=Exchange("gather router", chosen))
        )
        tasks.append(_vector("top k", work, ffn.experts))
    wide = [name for name in ("gate", "up") if name in every or name in parts]
    tasks.append(
        _matrices(
            " ".join(wide), *(group[name] for name in wide for group in (every, parts) if name in group)
        )
    )
    inner = dense["down"].inputs if "down" in dense else 0
    inner += ffn.active * ffn.expert[-1].inputs if ffn.expert else 0
    tasks.append(_vector("activation", work, inner))
    down = tuple(group["down"] for group in (every, parts) if "down" in group)
    if "out" not in parts:
        return [*tasks, *_reduced("down", hidden, work, *down)]
    latent = dense["out"].inputs
    return [
        *tasks,
        _matrices("down", *down, exchange=Exchange("reduce-scatter latent", latent)),
        _vector("latent sum", work, latent),
        *_reduced("latent out", hidden, work, parts["out"]),
    ]


def _rope(work: Work, elements: int, exchange: Exchange) -> tuple[Task, Task]:
    rotate = Task("rotate", "SXM", "on_chip", (work.vector("rotate", elements),))
    return rotate, _vector("rope", work, elements, exchange)


def _reduced(name: str, hidden: int, work: Work, *parts: Part) -> tuple[Task, Task]:
    """Products whose sums are spread over the group, and the residual that they are added to."""
    products = _matrices(name, *parts, exchange=Exchange("reduce-scatter", hidden))
    return products, _vector("residual", work, hidden, Exchange("all-gather", hidden))


def _matrices(name: str, *parts: Part, exchange: Exchange | None = None) -> Task:
    return Task(name, "MXM", "weights", parts, exchange)


def _attention(name: str, part: Part, exchange: Exchange | None = None) -> Task:
    return Task(name, "MXM", "attention", (part,), exchange)


def _vector(name: str, work: Work, elements: int, exchange: Exchange | None = None) -> Task:
    return Task(name, "VXM", "on_chip", (work.vector(name, elements),), exchange)
