"""The simulator: specs, step-time models, the engine, the HTTP server."""
