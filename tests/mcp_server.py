"""An MCP server of a few tools, run as a program of its own; what it is told is written to a log."""

from __future__ import annotations

import json
import os
import sys
import threading
from pathlib import Path
from typing import Any

_log = Path(sys.argv[1]).open("a", encoding="utf-8")  # noqa: SIM115 (held until the process ends)
_lock = threading.Lock()
_release = threading.Event()

_TOOLS = ["echo", "broken", "structured", "image", "wait", "release", "environment", "die"]


def _say(message: dict[str, Any]) -> None:
    with _lock:
        sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
        sys.stdout.flush()


def _text(text: str, **more: Any) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": text}], **more}


def _call(number: int, name: str, arguments: dict[str, Any]) -> None:
    if name == "wait":
        _say({"method": "notifications/message", "params": {"level": "info", "data": "waiting"}})
        _release.wait()
        _say({"id": number, "result": _text("waited")})
    elif name == "release":
        _release.set()
        _say({"id": number, "result": _text("released")})
    elif name == "broken":
        _say({"id": number, "result": _text("it is\nbroken", isError=True)})
    elif name == "structured":
        _say({"id": number, "result": {"structuredContent": {"a": 1}}})
    elif name == "image":
        _say(
            {"id": number, "result": {"content": [{"type": "image", "data": "AA", "mimeType": "image/png"}]}}
        )
    elif name == "environment":
        _say({"id": number, "result": _text(json.dumps(sorted(os.environ)))})
    elif name == "die":
        sys.stderr.write("out of luck\n")
        sys.stderr.flush()
        os._exit(3)
    else:
        _say({"id": number, "result": _text(json.dumps(arguments))})


def _answer(message: dict[str, Any]) -> None:
    method, number, params = message.get("method"), message.get("id"), message.get("params", {})
    if method == "initialize":
        sys.stdout.write("a banner that is no JSON\n")
        _say({"id": "ask", "method": "ping"})
        _say({"id": number, "result": {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}}})
    elif method == "tools/list":
        half = len(_TOOLS) // 2
        names, more = (_TOOLS[half:], {}) if params.get("cursor") else (_TOOLS[:half], {"nextCursor": "2"})
        _say({"id": number, "result": {"tools": [{"name": name} for name in names], **more}})
    elif method == "tools/call":
        arguments = (number, params["name"], params["arguments"])
        threading.Thread(target=_call, args=arguments, daemon=True).start()
    elif number is not None and method is not None:
        _say({"id": number, "error": {"code": -32601, "message": "no such method"}})


for line in sys.stdin:
    _log.write(line)
    _log.flush()
    _answer(json.loads(line))
_log.write("end\n")
_log.close()
