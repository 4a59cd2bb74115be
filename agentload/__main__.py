"""`python -m agentload` is the `agentload` command."""

from agentload._cli import entry

entry()
