"""Shared by all tests: Hypothesis is deterministic and undisturbed by the clock."""

from __future__ import annotations

from hypothesis import settings
from server_fixtures import client, engine, server

__all__ = ["client", "engine", "server"]

# Machines that run the tests are shared and slow at times; a deadline would fail on them and find nothing.
settings.register_profile("agentload", deadline=None, derandomize=True, print_blob=True)
settings.load_profile("agentload")
