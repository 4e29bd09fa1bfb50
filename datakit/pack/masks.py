"""masks: the token ids of a record, and which of them a model learns to predict.

Three forms of record, as trainers of the field take them: `messages` (OpenAI's chat form, rendered by the tokenizer's
own chat template), `prompt` and `completion` (texts, or lists of messages), and `text`. Supervised are the answers:
what an assistant's turn adds, up to and including its end token; a completion and the end token; all of a text.

The mask of a chat is right by construction. For each answer the conversation is rendered up to it and up to its end;
both must be the beginning of the whole, in text and in ids, and the answer is the difference. Where a tokenizer melts
the end of a prompt and the beginning of an answer into one token (an answer that begins with white space), the two are
encoded apart, as they are when the model is asked. A template that changes a turn once another follows cannot be
masked so, and its record is refused instead of guessed.

What it does not do: load a tokenizer, cut to a length, or pack several records into one sequence.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from datakit.errors import InputError

_TURNS = 'Write {"messages": [{"role": "user", "content": "..."}, ...]}'


class TemplateRefusal(InputError):
    """A chat template refuses a conversation (templates raise where roles do not alternate, for example)."""


class Chat(Protocol):
    """What is needed of a tokenizer with a chat template."""

    def render(self, messages: Sequence[Mapping[str, Any]], *, tools: Any, answer_next: bool) -> str:
        """The text of a conversation; with `answer_next`, up to where the model would go on."""
        ...

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Ids of each text, without special tokens of its own."""
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids, special tokens included."""
        ...


@dataclass(frozen=True, slots=True)
class Encoded:
    """A record as tokens: `ids` int32 [T], `mask` uint8 [T], 1 where a token is supervised."""

    ids: npt.NDArray[np.int32]
    mask: npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Draft:
    """A record that waits for its texts to be encoded, many records at once.

    Attributes:
        texts: What to encode.
        finish: Makes the record's tokens of the ids of these texts.
    """

    texts: tuple[str, ...]
    finish: Callable[[Sequence[Sequence[int]]], Encoded]


@dataclass(frozen=True, slots=True)
class Ends:
    """Special tokens: those put before a plain text, the one put after it (or none), and all that can end an answer."""

    before: tuple[int, ...]
    after: tuple[int, ...]
    special: frozenset[int]


def draft(record: Mapping[str, Any], *, chat: Chat, ends: Ends, where: str) -> Draft:
    """Say what of a record is to be encoded, and how its mask follows.

    Args:
        record: A JSON object in one of the three forms.
        chat: Renders conversations.
        ends: The tokenizer's special tokens.
        where: The record's name in messages.

    Raises:
        InputError: It has none of the forms, or its template renders prefixes that are none.
    """
    if "messages" in record:
        return _draft_chat(
            _messages(record["messages"], where), 0, record.get("tools"), chat=chat, ends=ends, where=where
        )
    prompt, completion = record.get("prompt"), record.get("completion")
    if isinstance(prompt, list) and isinstance(completion, list):
        messages = _messages([*prompt, *completion], where)
        return _draft_chat(messages, len(prompt), record.get("tools"), chat=chat, ends=ends, where=where)
    if isinstance(prompt, str) and isinstance(completion, str):
        # encoded apart, as a prompt is when the model is asked
        return Draft((prompt, completion), lambda ids: _joined(ids[0], ids[1], ends))
    if isinstance(record.get("text"), str):
        return Draft((record["text"],), lambda ids: _joined((), ids[0], ends))
    raise InputError(
        f"{where} has neither messages, nor prompt and completion, nor text",
        hint=_TURNS,
        subject=where,
    )


def _joined(prompt: Sequence[int], answer: Sequence[int], ends: Ends) -> Encoded:
    ids = [*ends.before, *prompt, *answer, *ends.after]
    mask = np.zeros(len(ids), np.uint8)
    mask[len(ends.before) + len(prompt) :] = 1
    return Encoded(np.array(ids, np.int32), mask)


def _draft_chat(
    messages: Sequence[Mapping[str, Any]], first: int, tools: Any, *, chat: Chat, ends: Ends, where: str
) -> Draft:
    texts = [chat.render(messages, tools=tools, answer_next=False)]
    for turn in range(first, len(messages)):
        if messages[turn]["role"] == "assistant":
            if turn == 0:
                raise InputError(
                    f"{where} begins with an answer to nothing", hint="Begin with user or system", subject=where
                )
            texts.append(chat.render(messages[:turn], tools=tools, answer_next=True))
            texts.append(chat.render(messages[: turn + 1], tools=tools, answer_next=False))
    if not all(texts[0].startswith(text) for text in texts):
        raise InputError(
            f"{where}: the chat template changes a turn once another follows, so answers cannot be masked",
            hint="Use a template whose turns stay as they are, or give records as prompt and completion",
            subject=where,
        )

    def finish(ids: Sequence[Sequence[int]]) -> Encoded:
        whole, bounds = list(ids[0]), [len(prefix) for prefix in ids[1:]]
        if not all(whole[: len(prefix)] == list(prefix) for prefix in ids[1:]):
            whole, bounds = _apart(texts[0], texts[1:], chat=chat, where=where)
        return _masked(whole, bounds, ends)

    return Draft(tuple(texts), finish)


def _apart(whole: str, prefixes: Sequence[str], *, chat: Chat, where: str) -> tuple[list[int], list[int]]:
    """Ids of the whole with a token boundary at the end of each prefix, and where these boundaries are."""
    cuts = [0, *map(len, prefixes), len(whole)]
    ids: list[int] = []
    bounds = []
    for piece in chat.encode([whole[start:stop] for start, stop in pairwise(cuts)]):
        ids += piece
        bounds.append(len(ids))
    if chat.decode(ids) != chat.decode(chat.encode([whole])[0]):
        raise InputError(
            f"{where}: an answer and its prompt share a token and this tokenizer cannot encode them apart",
            hint="Take the white space off the ends of its contents",
            subject=where,
        )
    return ids, bounds[:-1]


def _masked(whole: Sequence[int], bounds: Sequence[int], ends: Ends) -> Encoded:
    """The mask of a chat: `bounds` holds where each answer begins and where its turn ends, in tokens."""
    mask = np.zeros(len(whole), np.uint8)
    for start, stop in zip(bounds[::2], bounds[1::2], strict=True):
        # what a template puts after the end token (a line break) belongs to no answer
        last = next((i for i in range(stop - 1, start - 1, -1) if whole[i] in ends.special), stop - 1)
        mask[start : last + 1] = 1
    return Encoded(np.array(whole, np.int32), mask)


def _messages(value: Any, where: str) -> Sequence[Mapping[str, Any]]:
    if not isinstance(value, list) or not value:
        raise InputError(f"{where}: messages is not a list of turns", hint=_TURNS, subject=where)
    for turn in value:
        if not isinstance(turn, dict) or not isinstance(turn.get("role"), str):
            raise InputError(f"{where}: {turn!r:.80} is not a message with a role", hint=_TURNS, subject=where)
        if not isinstance(turn.get("content"), str) and not turn.get("tool_calls"):
            raise InputError(
                f"{where}: the content of a message is {turn.get('content')!r:.80}, not text",
                hint=_TURNS,
                subject=where,
            )
    return value
