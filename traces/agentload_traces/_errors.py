"""The exceptions that a user can cause.

AgentloadError             anything whose message is one clear line for the user; the CLI exits with 2
 ├─ TraceError             a trace cannot be read or written
 ├─ RunDirectoryError      a run directory cannot be read or written
 └─ SpecError              a hardware, model or deployment spec is wrong (raised by the simulator)
"""

from __future__ import annotations


class AgentloadError(Exception):
    """Base of the errors that a user can mend; `str()` is one line: what, where, what would be right."""


class TraceError(AgentloadError):
    """A trace cannot be read or written."""


class RunDirectoryError(AgentloadError):
    """A run directory cannot be read or written."""


class SpecError(AgentloadError):
    """A hardware, model or deployment spec is wrong."""
