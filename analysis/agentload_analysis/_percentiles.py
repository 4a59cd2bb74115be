"""What a percentile needs."""

from __future__ import annotations

VALUES_NEEDED = {"p99": 100, "p1": 100, "p90": 10, "p10": 10}
"""How many values a percentile needs, so that at least one lies beyond it; others need 1."""
