"""The prefix cache over HBM and host memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pytest
from engine_driving import answer, request
from hypothesis import given, settings
from hypothesis import strategies as st

from agentload_simbackend import PromptRun, load_deployment
from agentload_simbackend._engine import SimEngine
from agentload_simbackend._memory import KvShape
from agentload_simbackend._prefix_cache import PrefixCache
from agentload_simbackend._prefix_nodes import Node
from agentload_simbackend._setup import setup_of

S = 1_000_000_000
KV = KvShape(10, 3, 4, 25)
PROMPTS = st.lists(
    st.builds(PromptRun, st.sampled_from(["a", "b", "c", 3]), st.integers(1, 9)), min_size=1, max_size=5
)


def nodes(cache: PrefixCache) -> Iterator[Node]:
    """Every node of the tree but its root."""
    waiting = list(cache._root.children.values())
    while waiting:
        node = waiting.pop()
        waiting += node.children.values()
        yield node


def counted_bytes(node: Node) -> int:
    """KV of a node; only the end of a branch has windows and states, and what is in use."""
    if node.children and not node.pins:
        return node.tokens * KV.bytes_per_token
    depth, above = node.tokens, node.parent
    while above is not None:
        depth, above = depth + above.tokens, above.parent
    return KV.transfer_bytes(node.tokens, depth)


def check(cache: PrefixCache, pinned: Iterable[Node] = ()) -> None:
    found = list(nodes(cache))
    for node in pinned:
        assert node is cache._root or node in found
        assert not node.on_host
    assert sum(node.pins for node in (cache._root, *found)) == len(list(pinned))
    assert cache.used_bytes == sum(counted_bytes(node) for node in found if not node.on_host)
    assert cache.used_host_bytes == sum(counted_bytes(node) for node in found if node.on_host)
    if cache.over:
        idle = [node for node in found if not node.on_host and not node.in_hbm and not node.pins]
        assert idle == []
    assert cache.used_host_bytes <= cache.host_capacity_bytes
    assert cache.used_runs == sum(len(node.runs) for node in found)
    for node in found:
        assert node.in_hbm == sum(not child.on_host for child in node.children.values())
        assert node.tokens == sum(run.tokens for run in node.runs)
        assert not (node.on_host and node.in_hbm)


@settings(max_examples=200)
@given(
    st.sampled_from([0, 60, 150, 400]),
    st.sampled_from([0, 60, 150, 400]),
    st.lists(
        st.tuples(PROMPTS, st.booleans(), st.integers(0, 3), st.sampled_from([0, 0, 50, 200])), max_size=40
    ),
)
def test_every_byte_is_counted_in_one_place(
    hbm: int, host: int, turns: list[tuple[list[PromptRun], bool, int, int]]
) -> None:
    """Whatever is in use, and for how long."""
    cache = PrefixCache(hbm, host, KV)
    pinned: list[tuple[Node, list[PromptRun]]] = []
    for runs, kept, most_pinned, reserved in turns:
        tokens = sum(run.tokens for run in runs)
        cache.reserve(reserved - cache.reserved_bytes)
        hit_tokens, host_bytes, node = cache.hit(runs)
        check(cache, [node, *(node for node, _ in pinned)])
        assert 0 <= hit_tokens <= tokens
        assert host_bytes >= 0
        cache.unpin(node)
        check(cache, [node for node, _ in pinned])
        if kept:
            pinned.append((cache.insert(runs, tokens), runs))
            check(cache, [node for node, _ in pinned])
        while len(pinned) > most_pinned:
            cache.unpin(pinned.pop(0)[0])
            check(cache, [node for node, _ in pinned])
    cache.clear()
    check(cache, [node for node, _ in pinned])
    for node, runs in pinned:  # what is in use is there still
        tokens, _, found = cache.hit(runs)
        assert tokens == sum(run.tokens for run in runs)
        cache.unpin(found)
        cache.unpin(node)
    cache.clear()
    cache.reserved_bytes = 0
    assert cache.hit([PromptRun("a", 9)])[:2] == (0, 0)
    assert (cache.used_bytes, cache.used_host_bytes, list(nodes(cache))) == (0, 0, [])


@settings(max_examples=100)
@given(st.sampled_from([100, 300, 600]), st.lists(PROMPTS, max_size=30))
def test_what_hbm_has_no_room_for_is_found_on_the_host(hbm: int, prompts: list[list[PromptRun]]) -> None:
    """Hits are those of a cache without limit."""
    unlimited, tiered = PrefixCache(1 << 40, 0, KV), PrefixCache(hbm, 1 << 40, KV)
    for runs in prompts:
        hit_tokens, host_bytes, node = tiered.hit(runs)
        tiered.unpin(node)
        tokens, _, node = unlimited.hit(runs)
        unlimited.unpin(node)
        assert hit_tokens == tokens
        assert host_bytes <= KV.transfer_bytes(hit_tokens, hit_tokens)
        tokens = sum(run.tokens for run in runs)
        for cache in (unlimited, tiered):
            cache.unpin(cache.insert(runs, tokens))


def test_what_comes_back_from_the_host_takes_its_transfer() -> None:
    setup = setup_of(load_deployment("gemma4-31b/pd"), 0)
    assert setup.plan.prefill is not None
    room = setup.plan.prefill.kv.stream_bytes(100_000)
    prefill = setup.plan.prefill._replace(
        cache_bytes=int(1.5 * room), host_cache_bytes=int(1.5 * room), host_bytes_per_ns=100.0
    )
    engine = SimEngine(setup._replace(plan=setup.plan._replace(prefill=prefill)))
    # b pushes a out of HBM onto the host; a comes back and pushes b out; c then pushes b off the host.
    names = ["a", "a", "b", "a", "a", "b", "c", "d", "a"]
    done = [
        answer(engine, request(index, 100_000, 1, runs=[PromptRun(name, 100_000)]), index * 10 * S)
        for index, name in enumerate(names)
    ]
    cached = [each.cached_tokens for each in done]
    assert cached == [0, 99_968, 0, 99_968, 99_968, 99_968, 0, 0, 0]
    in_hbm = done[1].phases.prefill_ns
    extra = [each.phases.prefill_ns - in_hbm for each in done]
    assert extra[4] == 0
    assert extra[3] == extra[5] == pytest.approx(room / 100, abs=2)
