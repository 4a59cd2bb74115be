"""Numbers as text, the same for the terminal and the page."""

from __future__ import annotations

from agentload_analysis._metrics import K_TOKENS
from agentload_analysis._percentiles import VALUES_NEEDED

UNKNOWN = "–"


def duration(seconds: float | None) -> str:
    """A length of time with its unit: "812 ms", "12.3 s", "12 min 5 s", "3 h 20 min"."""
    if seconds is None:
        return UNKNOWN
    if seconds < 0.9995:
        return f"{number(seconds * 1e3)} ms"
    if seconds < 99.95:
        return f"{seconds:.1f} s"
    if round(seconds) < 3600:
        minutes, rest = divmod(round(seconds), 60)
        return f"{minutes} min {rest} s"
    hours, rest = divmod(round(seconds / 60), 60)
    return f"{hours:,} h {rest} min"


def number(value: float | None) -> str:
    """A number to three or four significant figures, thousands separated."""
    if value is None:
        return UNKNOWN
    size = abs(value)
    if size >= 99.95 or value == 0:
        return f"{value:,.0f}"
    if size >= 9.995:
        return f"{value:.1f}"
    return f"{value:.2f}" if size >= 0.9995 else f"{value:.3f}"


def tokens(count: float | None) -> str:
    """A context length: "812", "95.2K" (K = 1,000)."""
    if count is None:
        return UNKNOWN
    return f"{count:,.0f}" if count < K_TOKENS else f"{number(count / K_TOKENS)}K"


def percentile(value: float | None, name: str, count: int) -> str:
    """A percentile; "~" stands before one that `count` values cannot carry."""
    mark = "~" if value is not None and count < VALUES_NEEDED.get(name, 1) else ""
    return mark + number(value)
