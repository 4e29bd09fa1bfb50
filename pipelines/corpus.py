"""corpus: real conversations as raw records, one JSONL file a topic.

    python pipelines/corpus.py                  # 1 s: data/raw/english-ai.jsonl ... 38 files, 2,492 conversations

The conversations come from the PyPI package chatterbot-corpus (BSD licence), English and Chinese. A record is `{"id":
"english-ai-0007", "messages": [{"role": "user", "content": ...}, {"role": "assistant", ...}, ...]}`, the form that
OpenAI's fine-tuning interface takes; the number in the id is the place in the package's file. data/raw belongs to the
user: it is written once, whole or not at all, and never touched again.
"""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path

import yaml

LANGUAGES = ("english", "chinese")
RAW = Path("data/raw")


def messages_of(conversation: object) -> list[dict[str, str]] | None:
    """The turns as messages that end with an answer, or None where there is no answer or a turn is not text."""
    if not isinstance(conversation, list) or len(conversation) < 2:
        return None
    if not all(isinstance(turn, str) and turn.strip() for turn in conversation):
        return None  # an unquoted colon made the turn a mapping
    answered = conversation[: len(conversation) // 2 * 2]  # a last question that nobody answers teaches nothing
    return [{"role": ("user", "assistant")[i % 2], "content": turn.strip()} for i, turn in enumerate(answered)]


def records(stem: str, text: str, counts: Counter[str]) -> Iterator[dict[str, object]]:
    """The records of one YAML file; what is left out is counted in `counts`."""
    for number, conversation in enumerate(yaml.load(text, Loader=yaml.BaseLoader)["conversations"]):  # noqa: S506 -- strings only
        messages = messages_of(conversation)
        counts["records" if messages else "skipped"] += 1
        if messages:
            counts["shortened"] += len(messages) < len(conversation)
            yield {"id": f"{stem}-{number:04d}", "messages": messages}


def write_corpus(raw: Path = RAW) -> Counter[str]:
    """Write `raw`, if there is none, and say how many records there are, were skipped and were shortened."""
    counts: Counter[str] = Counter()
    if raw.exists():
        return counts
    fresh = raw.with_name(f".{raw.name}.tmp")
    shutil.rmtree(fresh, ignore_errors=True)  # of a run that was killed
    fresh.mkdir(parents=True)
    for language in LANGUAGES:
        sources = files("chatterbot_corpus").joinpath("data", language)
        for source in sorted(sources.iterdir(), key=lambda file: file.name):
            topic = source.name.removesuffix(".yml").replace("_", "-")
            lines = records(f"{language}-{topic}", source.read_text(encoding="utf-8"), counts)
            text = "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in lines)
            (fresh / f"{language}-{topic}.jsonl").write_text(text, encoding="utf-8")
    fresh.rename(raw)
    return counts


if __name__ == "__main__":
    written = write_corpus()
    print(f"{RAW}: {dict(written)}" if written else f"{RAW} is there already and yours; nothing written")
