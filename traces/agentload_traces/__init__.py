"""What is on disk: traces, run directories, their readers, writers and importers."""

from agentload_traces._errors import AgentloadError, RunDirectoryError, SpecError, TraceError
from agentload_traces._filler import filler
from agentload_traces._info import TraceInfo, trace_info
from agentload_traces._printable import counted, decodable, printable
from agentload_traces._problems import ImportReport, Position, TraceProblem, TraceProblemError
from agentload_traces._reader import TraceReader, open_trace
from agentload_traces._records import Message, PrefixBlocks, Session, ToolCall, Turn
from agentload_traces._replacing import replacing_file
from agentload_traces._results import (
    Baseline,
    ClientRow,
    ErrorFigures,
    ErrorKind,
    Manifest,
    OptionValue,
    RequestRow,
    ToolCallRow,
)
from agentload_traces._rundir import RunWriter
from agentload_traces._rundir_reader import RunReader
from agentload_traces._samples import list_samples, sample_path
from agentload_traces._tokens import count_tokens
from agentload_traces._whole_file import cannot_write, write_whole
from agentload_traces._writer import write_trace

__all__ = [
    "AgentloadError",
    "Baseline",
    "ClientRow",
    "ErrorFigures",
    "ErrorKind",
    "ImportReport",
    "Manifest",
    "Message",
    "OptionValue",
    "Position",
    "PrefixBlocks",
    "RequestRow",
    "RunDirectoryError",
    "RunReader",
    "RunWriter",
    "Session",
    "SpecError",
    "ToolCall",
    "ToolCallRow",
    "TraceError",
    "TraceInfo",
    "TraceProblem",
    "TraceProblemError",
    "TraceReader",
    "Turn",
    "cannot_write",
    "count_tokens",
    "counted",
    "decodable",
    "filler",
    "list_samples",
    "open_trace",
    "printable",
    "replacing_file",
    "sample_path",
    "trace_info",
    "write_trace",
    "write_whole",
]
