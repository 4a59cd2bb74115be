"""Faults and limits: what may happen to a simulated deployment, and when.

A timeline is a TOML or JSON file with a list `faults`; times are seconds from the start of the run.
"""

from __future__ import annotations

from typing import Literal

import msgspec


class _Fault(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="type"):
    """at_s: when it begins. for_s: how long it lasts (`None`: to the end). replica: which (`None`: all)."""

    at_s: float = 0.0
    for_s: float | None = None
    replica: int | None = None


class ChipsDown(_Fault, frozen=True, kw_only=True, tag="chips_down"):
    """So many chips of a decode group fail.

    Its requests end, its KV is lost, and its static schedule is rebuilt for the chips that are left, which
    takes `replan_s`; if the weights do not fit them, it stays down.
    """

    chips: int
    replan_s: float = 30.0


class LinkDown(_Fault, frozen=True, kw_only=True, tag="link_down"):
    """The link into a replica carries nothing; hand-offs wait. A chip-to-chip link is a `ChipsDown`."""


class Drain(_Fault, frozen=True, kw_only=True, tag="drain"):
    """A replica takes no new requests; those under way end as they would have."""


class PowerCap(_Fault, frozen=True, kw_only=True, tag="power_cap"):
    """The clock of a replica is `clock_fraction` of what it was, 0.001 to 1: each step takes longer."""

    clock_fraction: float


class KvLoss(_Fault, frozen=True, kw_only=True, tag="kv_loss"):
    """Cached KV is lost at once: idle contexts of a replica, or the prefix cache of the prefill side.

    What a request is using stays: one that decodes, is prefilled, or has yet to be handed over.
    """

    store: Literal["decode", "prefix_cache"]


class Refuse(_Fault, frozen=True, kw_only=True, tag="refuse"):
    """A share of new requests is answered with an error.

    Drawn by seed, session, turn, how often that turn was refused before, and which `Refuse` this is.
    """

    status: Literal[429, 503]
    share: float = 1.0
    retry_after_s: float | None = None


class Stall(_Fault, frozen=True, kw_only=True, tag="stall"):
    """A replica makes no step while it lasts; what is under way goes on after. Needs `for_s`."""


class Reset(_Fault, frozen=True, kw_only=True, tag="reset"):
    """Connections break once, at `at_s`: a share of the requests that decode fails in mid-stream."""

    share: float = 1.0


Fault = ChipsDown | LinkDown | Drain | PowerCap | KvLoss | Refuse | Stall | Reset
