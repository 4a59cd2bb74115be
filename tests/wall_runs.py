"""Plays sessions on the wall clock, against any URL, into memory."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

from test_virtual import Rows

from agentload._cap import Cap
from agentload._endpoint import Endpoint
from agentload._feed import SessionFeed
from agentload._options import ReplayOptions
from agentload._wall import WallRun
from agentload_traces import ClientRow


class WallRows(Rows):
    """Keeps what the replayer saw of itself, too."""

    def __init__(self) -> None:
        super().__init__()
        self.client: list[ClientRow] = []
        self.add_client = self.client.append


async def play_wall(
    url: str,
    feed: SessionFeed,
    rows: WallRows,
    *,
    seed: int = 0,
    on_start: Callable[[int], None] = lambda origin_ns: None,
) -> None:
    """Play a feed against the endpoint at `url`, of chat completions."""
    options = ReplayOptions(trace=Path("t"), out=Path("run"), target=url, clock="wall", seed=seed)
    endpoint = Endpoint(urls=(url,), model="m")
    with TemporaryDirectory() as directory:
        run = WallRun(options, endpoint, feed, rows, directory=Path(directory), cap=Cap(), on_start=on_start)
        await run.run()
