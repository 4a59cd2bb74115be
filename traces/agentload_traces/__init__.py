"""What is on disk: traces, run directories, their readers, writers and importers."""

from agentload_traces._errors import AgentloadError, RunDirectoryError, SpecError, TraceError
from agentload_traces._records import Message, PrefixBlocks, Session, ToolCall, Turn
from agentload_traces._results import Manifest, RequestRow, ToolCallRow

__all__ = [
    "AgentloadError",
    "Manifest",
    "Message",
    "PrefixBlocks",
    "RequestRow",
    "RunDirectoryError",
    "Session",
    "SpecError",
    "ToolCall",
    "ToolCallRow",
    "TraceError",
    "Turn",
]
