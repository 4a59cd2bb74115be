"""The recording reverse proxy.

The proxy passes bytes between pairs of connections and copies what it passes (`_proxy`, `_pair`, `_http`); a
process of its own reads the copies and makes turns of them (`_worker`, `_prompt`, `_sessions`, `_turns`).
"""
