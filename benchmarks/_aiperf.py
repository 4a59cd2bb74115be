"""Runs AIPerf, if there is one, without a network."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

from _command import Spent, run_measured

HELP = """\
AIPerf is compared if it is there. It wants an environment of its own:
    python3.11 -m venv aiperf-env
    aiperf-env/bin/pip install aiperf==0.13.0
    export AIPERF=aiperf-env/bin/aiperf         # or --aiperf PATH
(140 packages, 1.2 GB; a tokenizer is trained on the text that comes with it.)
"""

_TRAIN = """
import sys
from importlib.util import find_spec
from pathlib import Path
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast
text = Path(find_spec("aiperf").origin).parent / "dataset/generator/assets/shakespeare.txt"
alphabet = pre_tokenizers.ByteLevel.alphabet()
tokenizer = Tokenizer(models.BPE())
tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
tokenizer.decoder = decoders.ByteLevel()
special = ["<|bos|>", "<|eos|>"]
tokenizer.train([str(text)], trainers.BpeTrainer(
    vocab_size=32000, special_tokens=special, initial_alphabet=alphabet, show_progress=False))
wrapped = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token=special[0], eos_token=special[1])
wrapped.save_pretrained(sys.argv[1])
"""


def default_path() -> str | None:
    return os.environ.get("AIPERF")


def train_tokenizer(aiperf: Path, folder: Path) -> Path:
    """A tokenizer that AIPerf can load without a download; returns its folder."""
    tokenizer = folder / "tokenizer"
    command = [str(aiperf.with_name("python")), "-c", _TRAIN, str(tokenizer)]
    subprocess.run(command, check=True, capture_output=True)
    return tokenizer


def run_aiperf(
    aiperf: Path, url: str, tokenizer: Path, out: Path, options: Sequence[str], *, apart: Sequence[int]
) -> Spent:
    """`aiperf profile` of chat completions at `url`; what it measured is in `out`/profile_export.jsonl."""
    command = [aiperf, "profile", "--model", "mock", "--url", url, "--endpoint-type", "chat", "--streaming"]
    command += ["--tokenizer", tokenizer, "--ui", "none", "--artifact-dir", out]
    command += ["--no-gpu-telemetry", "--no-server-metrics", *options]
    return run_measured([str(part) for part in command], apart=apart)
