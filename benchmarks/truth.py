"""What clients say of a stream, against a server that remembers when it wrote each token.

Each client in turn reads the same streams (291 us a token, one event a token) from `truth_server.c`:
    agentload  `agentload replay` of sessions of one turn; figures from its run directory, as reports use them
    aiperf     AIPerf, figures from its profile export
    lean       `lean_reader.py --parse`: the leanest asyncio reader that reads its events
    bare       the same without reading them
Printed for each number of streams: the error of TTFT (client minus truth; the truth counts from the request's
arrival) and the size of the error of every gap between two tokens; tokens lost; CPU per token of the
client's whole tree of processes, from the first request to the last token, to its end, and of the whole
command with its start; and whether agentload calls its own run valid.

    python benchmarks/truth.py [--streams 1 12 50 100] [--seconds 5] [--json]

"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterable
from itertools import chain, pairwise
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import _aiperf
import polars as pl
from _command import Spent, run_measured
from _truth_server import TruthServer, Written, truth_server

from agentload_traces import RunReader, Turn, write_trace

STEP_NS = 291_000
PREFILL_NS = 5_000_000
TOKENS = 512
LEAST_REQUESTS = 100
"""A p99 of TTFT needs so many."""
AIPERF_TOKENS = 150_000
"""AIPerf is given no more than this: beyond a few streams it needs many times the time of the others."""


class Load(NamedTuple):
    streams: int
    requests: int

    @property
    def tokens(self) -> int:
        return self.requests * TOKENS


class Seen(NamedTuple):
    """What a client says of one answer."""

    ttft_ns: float
    gaps_ns: list[float]
    tokens: int


Client = Callable[[TruthServer, Load, Path], tuple[Spent, dict[str, Seen], dict[str, Any]]]


def agentload(server: TruthServer, load: Load, folder: Path) -> tuple[Spent, dict[str, Seen], dict[str, Any]]:
    trace, run = folder / "trace.jsonl", folder / "run"
    write_trace(
        trace,
        (
            Turn(session_id=f"s{number}", turn_id="t", input_tokens=64, output_tokens=TOKENS)
            for number in range(load.requests)
        ),
    )
    command = [sys.executable, "-m", "agentload", "replay", str(trace), "--target", server.url]
    command += ["--model", "mock", "--concurrency", str(load.streams), "--out", str(run)]
    spent = run_measured(command, apart=[server.pid])
    if spent.exit_code:
        sys.exit(spent.output)
    reader = RunReader(run)
    seen = {}
    for row in reader.requests().collect().iter_rows(named=True):
        gaps = _spread(row["arrival_dt_us"], row["arrival_tokens"])
        ttft_ns = row["first_token_ns"] - row["scheduled_ns"]
        seen[f"{row['session_id']} {row['turn_id']}"] = Seen(
            ttft_ns, [gap * 1e3 for gap in gaps[1:]], row["output_tokens"]
        )
    active = reader.client().filter(pl.col("active_turns") > 0).collect()
    own_cpu_ns = sum(active["cpu_ns"].to_list())
    of_table = {
        "own_cpu_us_per_token": own_cpu_ns / 1e3 / load.tokens,
        "valid": reader.manifest.valid,
        "reasons": list(reader.manifest.invalid_reasons),
    }
    return spent, seen, of_table


def _spread(values: Iterable[float], counts: Iterable[int]) -> list[float]:
    """One value a token: those that came together came with no gap between them."""
    return list(
        chain.from_iterable([value, *[0] * (count - 1)] for value, count in zip(values, counts, strict=True))
    )


def lean(
    server: TruthServer, load: Load, folder: Path, *options: str
) -> tuple[Spent, dict[str, Seen], dict[str, Any]]:
    out = folder / "lean.jsonl"
    command = [sys.executable, str(Path(__file__).with_name("lean_reader.py"))]
    command += [str(urlsplit(server.url).port), str(out), "--streams", str(load.streams)]
    command += ["--requests", str(load.requests), "--tokens", str(TOKENS), *options]
    spent = run_measured(command, apart=[server.pid])
    if spent.exit_code:
        sys.exit(spent.output)
    seen = {}
    for line in out.read_text().splitlines():
        name, sent_ns, at_ns, tokens = json.loads(line)
        gaps = [later - earlier for earlier, later in pairwise(at_ns)]
        seen[name] = Seen(at_ns[0] - sent_ns, _spread([0, *gaps], tokens)[1:], sum(tokens))
    return spent, seen, {}


def lean_parsing(
    server: TruthServer, load: Load, folder: Path
) -> tuple[Spent, dict[str, Seen], dict[str, Any]]:
    return lean(server, load, folder, "--parse")


def aiperf(program: Path, tokenizer: Path) -> Client:
    def run(server: TruthServer, load: Load, folder: Path) -> tuple[Spent, dict[str, Seen], dict[str, Any]]:
        options = ["--isl", "64", "--osl", str(TOKENS), "--concurrency", str(load.streams)]
        options += ["--request-count", str(load.requests), "--num-dataset-entries", "10"]
        spent = _aiperf.run_aiperf(
            program, server.url, tokenizer, folder / "aiperf", options, apart=[server.pid]
        )
        export = folder / "aiperf" / "profile_export.jsonl"
        if spent.exit_code or not export.exists():
            sys.exit(spent.output)
        seen = {}
        for line in export.read_text().splitlines():
            record = json.loads(line)
            metrics = record["metrics"]
            seen[record["metadata"]["x_request_id"]] = Seen(
                metrics["time_to_first_token"]["value"] * 1e6,
                [gap * 1e6 for gap in metrics["inter_chunk_latency"]["value"]],
                round(metrics["output_sequence_length"]["value"]),
            )
        return spent, seen, {}

    return run


def compared(
    seen: dict[str, Seen], truth: dict[str, Written]
) -> tuple[dict[str, float | None], dict[str, float | None], int]:
    """Errors of TTFT, sizes of the errors of gaps, tokens lost."""
    ttft: list[float] = []
    gaps: list[float] = []
    lost = 0
    for name, written in truth.items():
        client = seen.get(name)
        lost += len(written.at_ns) - (client.tokens if client else 0)
        if client is None:
            continue
        ttft.append(client.ttft_ns - (written.at_ns[0] - written.received_ns))
        times = written.at_ns
        if len(client.gaps_ns) == len(times) - 1:
            gaps += map(
                lambda said, earlier, later: abs(said - (later - earlier)), client.gaps_ns, times, times[1:]
            )
    return _figures(ttft), _figures(gaps), lost


def _figures(errors_ns: list[float]) -> dict[str, float | None]:
    errors = pl.Series(errors_ns, dtype=pl.Float64) / 1e6
    figures: dict[str, float | None] = {"count": len(errors)}
    for name, quantile in (("p50_ms", 0.5), ("p99_ms", 0.99)):
        figures[name] = errors.quantile(quantile, interpolation="linear")
    return figures


def measure(name: str, client: Client, load: Load) -> dict[str, Any]:
    with (
        tempfile.TemporaryDirectory(prefix="agentload-truth-") as folder,
        truth_server(STEP_NS, PREFILL_NS) as server,
    ):
        spent, seen, more = client(server, load, Path(folder))
    # A baseline or a probe of the client's own is no part of it.
    truth = {key: written for key, written in server.answers.items() if key in seen or name == "agentload"}
    if len(server.answers) != load.requests:
        print(f"{name}: {len(server.answers)} answers of {load.requests}", file=sys.stderr)
    ttft, gaps, lost = compared(seen, truth)
    first_ns = min(written.received_ns for written in truth.values())
    last_ns = max(written.at_ns[-1] for written in truth.values())
    tokens = sum(len(written.at_ns) for written in truth.values())
    at_first, at_last = spent.cpu_until_ns(first_ns), spent.cpu_until_ns(last_ns)
    pace_ns = statistics.median((w.at_ns[-1] - w.at_ns[0]) / (len(w.at_ns) - 1) for w in truth.values())
    return {
        "client": name,
        "streams": load.streams,
        "requests": len(truth),
        "tokens": tokens,
        "ttft_error": ttft,
        "gap_error": gaps,
        "lost_tokens": lost,
        "cpu_us_per_token": (at_last - at_first) / 1e3 / tokens,
        "cpu_us_per_token_to_end": (spent.cpu_s * 1e9 - at_first) / 1e3 / tokens,
        "cpu_us_per_token_whole": spent.cpu_s * 1e6 / tokens,
        "cpu_s": spent.cpu_s,
        "wall_s": spent.wall_s,
        "server_step_us": pace_ns / 1e3,
        "peak_rss_mb": spent.peak_rss_bytes / 1e6,
        "foreign_cores": spent.foreign_cores,
        **more,
    }


def loads_of(name: str, streams: int, seconds: float) -> Load:
    each = max(round(seconds * 1e9 / (PREFILL_NS + TOKENS * STEP_NS)), -(-LEAST_REQUESTS // streams))
    if name == "aiperf":
        each = max(1, min(each, AIPERF_TOKENS // TOKENS // streams))
    return Load(streams, streams * each)


def ratios(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """CPU a token while tokens come: agentload's to the readers', and AIPerf's to agentload's."""
    found = []
    for streams in dict.fromkeys(row["streams"] for row in rows):
        cpu = {row["client"]: row["cpu_us_per_token"] for row in rows if row["streams"] == streams}
        if own := cpu.pop("agentload", None):
            of = {f"{name}_to_agentload": us / own for name, us in cpu.items() if name == "aiperf"}
            of |= {f"agentload_to_{name}": own / us for name, us in cpu.items() if name != "aiperf"}
            found.append({"streams": streams, **of})
    return found


def print_rows(rows: list[dict[str, Any]]) -> None:
    print("streams client     TTFT error ms    gap error ms   lost   CPU us a token          pace  valid")
    print("                    p50     p99      p50     p99          load  to end   whole    us")
    for row in rows:
        ttft, gap = row["ttft_error"], row["gap_error"]
        print(
            f"{row['streams']:7} {row['client']:9} {_ms(ttft['p50_ms'])} {_ms(ttft['p99_ms'])} "
            f"{_ms(gap['p50_ms'])} {_ms(gap['p99_ms'])} {row['lost_tokens']:6} "
            f"{row['cpu_us_per_token']:7.2f} {row['cpu_us_per_token_to_end']:7.2f} "
            f"{row['cpu_us_per_token_whole']:7.2f} {row['server_step_us']:6.0f}  {row.get('valid', '')}"
        )
        for reason in row.get("reasons", ()):
            print(f"{'':18}{reason}")
    for each in ratios(rows):
        shown = (f"{name} {value:.2f}" for name, value in each.items() if name != "streams")
        print(f"{each['streams']:7} CPU a token:", *shown)


def _ms(value: float | None) -> str:
    return f"{'-':>7}" if value is None else f"{value:7.3f}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__ + _aiperf.HELP, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 12, 50, 100])
    parser.add_argument(
        "--seconds", type=float, default=5.0, help="length of each run, if the server keeps its pace"
    )
    parser.add_argument(
        "--clients", nargs="+", default=["agentload", "lean", "bare", "aiperf"], metavar="NAME"
    )
    parser.add_argument("--aiperf", type=Path, default=_aiperf.default_path())
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    clients: dict[str, Client] = {"agentload": agentload, "lean": lean_parsing, "bare": lean}
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        if args.aiperf and "aiperf" in args.clients:
            clients["aiperf"] = aiperf(args.aiperf, _aiperf.train_tokenizer(args.aiperf, Path(folder)))
        elif "aiperf" in args.clients:
            print("no AIPerf, see --help", file=sys.stderr)
        for streams in args.streams:
            for name in args.clients:
                if name in clients:
                    rows.append(measure(name, clients[name], loads_of(name, streams, args.seconds)))
                    print(f"{name} {streams}", file=sys.stderr)
    if args.json:
        print(json.dumps({"rows": rows, "ratios": ratios(rows)}))
    else:
        print_rows(rows)


if __name__ == "__main__":
    main()
