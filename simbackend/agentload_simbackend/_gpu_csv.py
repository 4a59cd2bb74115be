"""Rows of measured TTFT and TPOT, in the format of `silicon_sample.csv` in NVIDIA's AIConfigurator."""

from __future__ import annotations

import csv
import math
from pathlib import Path
from typing import NamedTuple

from agentload_traces import SpecError, printable

MEASURED = Path(__file__).parent / "data" / "gpu_measured.csv"
"""The rows that come with the package; source and licence in the README beside it."""

NODE_GPUS = 8
"""GPUs of an HGX node."""


class GpuRow(NamedTuple):
    """One measured configuration. `None`, 0, "", NaN: it does not tell. Sizes as they stand in the file."""

    model_path: str
    system: str
    isl: int
    osl: int
    concurrency: int | None = None
    backend: str = ""
    backend_version: str = ""
    precision: str = ""
    disaggregated: bool = False
    batch_size: int = 0
    tp: int = 0
    pp: int = 1
    attention_dp: int = 0
    moe_tp: int = 0
    moe_ep: int = 0
    prefill_tp: int = 0
    decode_batch_size: int = 0
    decode_workers: int = 0
    decode_tp: int = 0
    decode_attention_dp: int = 0
    ttft_s: float = math.nan
    tpot_s: float = math.nan
    line: int = 0

    @property
    def configuration(self) -> str:
        """What is equal in the rows of one sweep over the concurrency."""
        software = self.backend, self.backend_version, self.precision or "bf16"
        split = self.gpus, self.dp, self.moe_ep > 1
        return "|".join(map(str, (self.model_path, self.system, *software, self.isl, self.osl, *split)))

    @property
    def gpus(self) -> int:
        """GPUs of the group that decodes.

        In some rows of 8-GPU nodes TP and EP are multiplied (tp 64, moe_tp 8, moe_ep 8 repeats the row of
        tp 8): there is no such group in one node, so the factor counts once.
        """
        if self.disaggregated:
            return max(self.decode_tp, 1)
        gpus = max(self.tp, 1) * max(self.attention_dp, 1)
        if gpus > NODE_GPUS and self.system.endswith("_sxm") and self.moe_tp == self.moe_ep > 1:
            return self.moe_ep
        experts = max(self.moe_tp, 1) * max(self.moe_ep, 1)
        return experts if gpus < experts <= NODE_GPUS and self.moe_tp != self.moe_ep else gpus

    @property
    def dp(self) -> int:
        """Groups into which the GPUs are split for attention."""
        if self.disaggregated:
            return max(self.decode_attention_dp, 1)
        return max(self.gpus // max(self.tp, 1), 1)


def read_gpu_rows(path: str | Path = MEASURED) -> list[GpuRow]:
    """Read rows of AIConfigurator's format; raises `SpecError` with the line and field that is wrong."""
    path = Path(path)
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file)
            missing = _COLUMNS - set(reader.fieldnames or ())
            if missing:
                raise SpecError(f"{path}: column {min(missing)} is missing")
            rows = [_row(record, f"{path}: line {reader.line_num}", reader.line_num) for record in reader]
            if not rows:
                raise SpecError(f"{path}: no row under the header")
            return rows
    except OSError as error:
        raise SpecError(f"{path}: cannot be read: {error.strerror}") from None
    except (UnicodeDecodeError, csv.Error) as error:
        raise SpecError(f"{path}: is not CSV in UTF-8: {error}") from None


_MOST = 10**9
"""Of tokens, streams, GPUs and milliseconds: larger numbers are mistakes."""

_LEAST_MS = 1e-6
"""Of a latency: one of a nanosecond or less is a mistake, too."""

_COLUMNS = frozenset(
    (
        *("concurrency", "model_path", "system", "backend", "backend_version", "precision", "mode"),
        *("isl", "osl", "batch_size", "tp_size", "attention_dp_size", "moe_tp_size", "moe_ep_size"),
        *("prefill_tp_size", "decode_batch_size", "decode_num_workers", "decode_tp_size"),
        *("decode_attention_dp_size", "silicon_ttft_ms", "silicon_tpot_ms"),
    )
)


def _row(record: dict[str, str | None], where: str, line: int) -> GpuRow:
    def text(field: str) -> str:
        return printable((record[field] or "").strip())

    def count(field: str) -> int:
        try:
            value = float(text(field) or 0)
            if not 0 <= value <= _MOST or not value.is_integer():
                raise ValueError
        except ValueError:
            raise SpecError(f'{where}: {field} is "{text(field)}", must be a whole number or empty') from None
        return int(value)

    def seconds(field: str) -> float:
        try:
            value = float(text(field))
        except ValueError:
            value = math.nan
        if not _LEAST_MS <= value <= _MOST:
            raise SpecError(f'{where}: {field} is "{text(field)}", must be {_LEAST_MS:g} to {_MOST:g} ms')
        return value / 1e3

    if None in record or None in record.values():
        raise SpecError(f"{where}: must have one field for each column")
    for field in ("isl", "osl"):
        if not count(field):
            raise SpecError(f"{where}: {field} must be a number of tokens above 0")
    if text("mode") not in ("agg", "disagg"):
        raise SpecError(f'{where}: mode is "{text("mode")}", must be agg or disagg')
    return GpuRow(
        line=line,
        model_path=text("model_path"),
        system=text("system"),
        backend=text("backend"),
        backend_version=text("backend_version"),
        precision=text("precision"),
        disaggregated=text("mode") == "disagg",
        concurrency=count("concurrency") or None,
        isl=count("isl"),
        osl=count("osl"),
        batch_size=count("batch_size"),
        tp=count("tp_size"),
        attention_dp=count("attention_dp_size"),
        moe_tp=count("moe_tp_size"),
        moe_ep=count("moe_ep_size"),
        prefill_tp=count("prefill_tp_size"),
        decode_batch_size=count("decode_batch_size"),
        decode_workers=count("decode_num_workers"),
        decode_tp=count("decode_tp_size"),
        decode_attention_dp=count("decode_attention_dp_size"),
        ttft_s=seconds("silicon_ttft_ms"),
        tpot_s=seconds("silicon_tpot_ms"),
        pp=count("pp_size") if "pp_size" in record else 1,
    )
