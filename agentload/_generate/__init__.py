"""Generated agent sessions: a profile of measured quantiles in, turns out."""

from agentload._generate._profile import Profile, ProfileError, load_profile, profile_names
from agentload._generate._sessions import generate_sessions

__all__ = ["Profile", "ProfileError", "generate_sessions", "load_profile", "profile_names"]
