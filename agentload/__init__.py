"""agentload: generate, replay and record agent sessions."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agentload._generate import Profile, ProfileError, generate_sessions, load_profile, profile_names

__all__ = ["Profile", "ProfileError", "generate_sessions", "load_profile", "profile_names"]

# Where each public name is; its module is imported when the name is first used.
_MODULES = {
    "Profile": "agentload._generate",
    "ProfileError": "agentload._generate",
    "generate_sessions": "agentload._generate",
    "load_profile": "agentload._generate",
    "profile_names": "agentload._generate",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_MODULES[name]), name)
