"""readme: the commands of a document, and a place where they can be run as they stand there.

In a fence marked `console`, a line that starts with `$ ` is a command; in one marked `sh` or `bash`, every line that is
no comment. A backslash continues a line.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

TURNS = [("What is {0} and {0}?", "{0} and {0} is {1}."), ("你好，{0} 的两倍是多少？", "{0} 的两倍是 {1}。")]


def commands(text: str) -> list[str]:
    """Every command line of a document, in its order."""
    return [line for kind, body in fences(text) for line in _lines(kind, body)]


def programs(text: str) -> list[str]:
    """Every Python example of a document, in its order."""
    return [body for kind, body in fences(text) if kind in ("python", "py")]


def fences(text: str) -> list[tuple[str, str]]:
    """Mark and content of every fenced block."""
    return re.findall(r"^```(\w*)[^\n]*\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def _lines(kind: str, body: str) -> Iterator[str]:
    body = re.sub(r"\\\n\s*(?:> )?", "", body)
    for line in body.splitlines():
        if kind == "console" and line.startswith("$ "):
            yield line[2:].strip()
        elif kind in ("sh", "bash") and line.strip() and not line.startswith("#"):
            yield line.strip()


def words_of(line: str) -> list[str]:
    """The words of a command line, without a comment at its end."""
    return shlex.split(line, comments=True)


def buckets_of(text: str) -> set[str]:
    """The buckets that a document names."""
    return set(re.findall(r"s3://([a-z0-9.-]+)", text))


def write_records(path: Path, *, keys: list[str], count: int = 80) -> None:
    """Conversations as JSON lines, some of them under the given keys."""
    path.parent.mkdir(parents=True, exist_ok=True)
    names = [*keys, *(f"chat-{number:05d}" for number in range(count - len(keys)))]
    with path.open("w", encoding="utf-8") as file:
        for number, name in enumerate(names):
            question, answer = (text.format(number, 2 * number) for text in TURNS[number % 2])
            turns = [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
            file.write(json.dumps({"id": name, "messages": turns}, ensure_ascii=False) + "\n")


def save_model(path: Path) -> None:
    """A chat model of two layers with random weights, and a tokenizer of bytes: real formats, milliseconds."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    special = ["<|im_start|>", "<|im_end|>"]
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(
        models.BPE(vocab={text: number for number, text in enumerate([*special, *letters])}, merges=[])
    )
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token=special[0], eos_token=special[1], pad_token=special[1]
    )
    fast.chat_template = (
        "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=len(special) + len(letters),
        max_position_embeddings=4096,
        bos_token_id=0,
        eos_token_id=1,
    )
    LlamaForCausalLM(config).save_pretrained(path)
    fast.save_pretrained(path)
