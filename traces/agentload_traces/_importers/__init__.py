"""The trace formats that are known, the more particular before the more general."""

from agentload_traces._importer import Importer
from agentload_traces._importers._mooncake import MOONCAKE
from agentload_traces._importers._weka import WEKA
from agentload_traces._native import NATIVE_JSONL
from agentload_traces._parquet import NATIVE_PARQUET

IMPORTERS: tuple[Importer, ...] = (NATIVE_PARQUET, NATIVE_JSONL, WEKA, MOONCAKE)

__all__ = ["IMPORTERS"]
