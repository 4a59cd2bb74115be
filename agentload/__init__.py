"""agentload: generate, replay and record agent sessions."""
