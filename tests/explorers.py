"""A running explorer for tests, and a second model whose tokens are no harmless words."""

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from tiny import Sizes, tiny

EVIL = ("<img/src=x/onerror=alert(1)>", "</script>", "<b>", "&amp;")


@contextmanager
def explorer(*options: str, environment: Mapping[str, str] = os.environ, folder: Path | None = None) -> Iterator[str]:
    """The address, with its token, of a server in a process of its own on a free port."""
    command = [sys.executable, "-m", "keyhole", "explore", "--no-browser", "--port", "0", *options]
    quiet = {**environment, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=quiet, cwd=folder
    ) as server:
        assert server.stdout is not None and server.stderr is not None
        try:
            line = server.stdout.readline()
            words = [word for word in line.split() if word.startswith("http://127.0.0.1:")]
            assert words, (
                f"no address was printed: {line!r} {server.stderr.read() if server.poll() is not None else ''}"
            )
            yield words[0]
        finally:
            server.terminate()
            server.wait(timeout=20)


def evil_model(folder: Path) -> Path:
    """A small random llama that says what no page should take for markup."""
    words = ["<unk>", *EVIL, *(f"w{i}" for i in range(56))]
    split = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="<unk>"))
    split.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tiny("llama", Sizes(layers=8, heads=8, kv_heads=8, d_model=64, vocab=len(words), positions=256)).save_pretrained(
        folder
    )
    PreTrainedTokenizerFast(tokenizer_object=split, unk_token="<unk>").save_pretrained(folder)
    return folder
