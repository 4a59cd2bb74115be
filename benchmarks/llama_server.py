"""A real engine on the CPU: llama.cpp's own HTTP server with a small random model that is made on the spot.

    pip install xllamacpp gguf
    python benchmarks/llama_server.py

Prints its URL when it answers and serves until its standard input ends. The model has two layers, random
weights and one token a byte; what it says means nothing, but it is prefilled, cached and decoded as any
other.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from urllib.request import urlopen

PACKAGES = ("xllamacpp", "gguf")
DIM, LAYERS, HEADS, FEED_FORWARD, CONTEXT = 64, 2, 4, 192, 32_768
SLOTS = 4


def missing_packages() -> list[str]:
    """Those that must be installed first."""
    return [name for name in PACKAGES if find_spec(name) is None]


@contextmanager
def llama_server() -> Iterator[str]:
    """Serve in a process of its own; yields its URL, without `/v1`."""
    with subprocess.Popen(
        [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            # Its C++ code may print, too.
            url = next((line.strip() for line in process.stdout if line.startswith("http://")), None)
            if url is None:
                raise RuntimeError(f"the engine did not start (exit code {process.wait()})")
            yield url
        finally:
            process.stdin.close()
            process.wait()


def make_model(path: Path) -> None:
    """Write a model of 0.6 MB in the manner of Llama, with weights from a fixed seed."""
    import gguf
    import numpy as np

    random = np.random.default_rng(0)
    texts = [b"<unk>", b"<s>", b"</s>", *(b"<0x%02X>" % byte for byte in range(256))]
    texts += [bytes([byte]) for byte in range(33, 127)] + ["\u2581".encode()]
    types = [gguf.TokenType.UNKNOWN, *[gguf.TokenType.CONTROL] * 2, *[gguf.TokenType.BYTE] * 256]
    types += [gguf.TokenType.NORMAL] * (len(texts) - len(types))

    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name("random")
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(DIM)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(FEED_FORWARD)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(HEADS)
    writer.add_rope_dimension_count(DIM // HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(len(texts))
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    writer.add_tokenizer_model("llama")
    writer.add_token_list(texts)
    writer.add_token_scores([0.0] * len(texts))
    writer.add_token_types(types)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_chat_template("{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant:")

    def add(name: str, *shape: int) -> None:
        writer.add_tensor(name, (random.standard_normal(shape) * 0.05).astype(np.float32))

    def add_norm(name: str) -> None:
        writer.add_tensor(name, np.ones(DIM, np.float32))

    add("token_embd.weight", len(texts), DIM)
    add_norm("output_norm.weight")
    add("output.weight", len(texts), DIM)
    for layer in range(LAYERS):
        for part in ("attn_q", "attn_k", "attn_v", "attn_output"):
            add(f"blk.{layer}.{part}.weight", DIM, DIM)
        add_norm(f"blk.{layer}.attn_norm.weight")
        add_norm(f"blk.{layer}.ffn_norm.weight")
        for part in ("ffn_gate", "ffn_up"):
            add(f"blk.{layer}.{part}.weight", FEED_FORWARD, DIM)
        add(f"blk.{layer}.ffn_down.weight", DIM, FEED_FORWARD)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main() -> None:
    if missing := missing_packages():
        sys.exit(f"not installed: {', '.join(missing)}; pip install {' '.join(PACKAGES)}")
    import xllamacpp

    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder, "random.gguf")
        make_model(model)
        params = xllamacpp.CommonParams()
        params.model.path = str(model)
        params.hostnames = ["127.0.0.1"]
        params.port = 0
        params.n_parallel = SLOTS
        params.n_ctx = CONTEXT * SLOTS
        params.cont_batching = True
        # More threads than free cores make it several times slower: they wait for each other by spinning.
        params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
        params.warmup = params.ui = False
        params.verbosity = 0
        server = xllamacpp.Server(params)
        wait_until_loaded(server.listening_address)
    print(server.listening_address, flush=True)
    sys.stdin.read()
    os._exit(0)  # its threads are not waited for


def wait_until_loaded(url: str) -> None:
    while True:
        with suppress(OSError), urlopen(f"{url}/health", timeout=10) as answer:
            if answer.status == 200:
                return
        time.sleep(0.02)


if __name__ == "__main__":
    main()
