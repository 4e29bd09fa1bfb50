"""pack/masks: which tokens are learned, for every form of record, by construction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from datakit import InputError
from datakit.pack.masks import Encoded, Ends, draft

START, END, BEGIN = 1, 2, 3
ENDS = Ends(before=(BEGIN,), after=(END,), special=frozenset({START, END, BEGIN}))


class Letters:
    """A tokenizer that a person can follow: one token a character, `<` starts a turn, `>` ends it.

    Two line breaks, or a line break and a blank, melt into one token, as they do in byte-pair encodings.
    """

    melted = ("\n\n", "\n ")

    def render(self, messages: Sequence[Mapping[str, Any]], *, tools: Any, answer_next: bool) -> str:
        """A turn a line: `<user:text>`."""
        turns = "".join(f"<{message['role'][0]}\n{message['content']}>\n" for message in messages)
        return (f"[{tools}]" if tools else "") + turns + ("<a\n" if answer_next else "")

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Special tokens, melted pairs, and code points for the rest."""
        found = []
        for text in texts:
            ids, at = [], 0
            while at < len(text):
                if text[at : at + 2] in self.melted:
                    ids.append(10 + self.melted.index(text[at : at + 2]))
                    at += 2
                else:
                    ids.append({"<": START, ">": END}.get(text[at], 100 + ord(text[at])))
                    at += 1
            found.append(ids)
        return found

    def decode(self, ids: Sequence[int]) -> str:
        """The text again."""
        words = {START: "<", END: ">", 10: "\n\n", 11: "\n "}
        return "".join(words.get(token) or chr(token - 100) for token in ids)


def encoded(record: Mapping[str, Any], chat: Letters | None = None) -> Encoded:
    """A record's tokens."""
    chat = chat or Letters()
    sketch = draft(record, chat=chat, ends=ENDS, where="sample x")
    return sketch.finish(chat.encode(sketch.texts))


def learned(found: Encoded) -> str:
    """The text of the supervised tokens."""
    return Letters().decode(found.ids[found.mask == 1].tolist())


def say(*turns: str) -> dict[str, Any]:
    """A conversation: `u:hello`, `a:hi`."""
    roles = {"u": "user", "a": "assistant", "s": "system"}
    return {"messages": [{"role": roles[turn[0]], "content": turn[2:]} for turn in turns]}


def test_the_answers_are_learned_with_their_end_tokens() -> None:
    """Both answers, nothing of the questions, and not the line break that the template puts behind."""
    found = encoded(say("s:be kind", "u:hello", "a:hi", "u:more", "a:no"))

    assert learned(found) == "hi>no>"
    assert Letters().decode(found.ids.tolist()) == "<s\nbe kind>\n<u\nhello>\n<a\nhi>\n<u\nmore>\n<a\nno>\n"
    assert (found.ids.dtype, found.mask.dtype) == ("int32", "uint8")


CONTENTS = st.text(st.sampled_from("ab c\n"), max_size=6)


@given(st.lists(st.tuples(CONTENTS, CONTENTS), min_size=1, max_size=4))
def test_the_mask_covers_exactly_the_answers(pairs: list[tuple[str, str]]) -> None:
    """For any contents, also such that melt with what stands before them: text, answers and rest add up."""
    turns = [turn for question, answer in pairs for turn in (f"u:{question}", f"a:{answer}")]

    found = encoded(say(*turns))

    whole = Letters().render(say(*turns)["messages"], tools=None, answer_next=False)
    assert Letters().decode(found.ids.tolist()) == whole
    assert learned(found) == "".join(f"{answer}>" for _question, answer in pairs)


PLAIN = CONTENTS.filter(lambda content: content[:1] not in ("\n", " "))


@given(st.lists(st.tuples(PLAIN, PLAIN), min_size=1, max_size=3))
def test_ids_are_those_of_the_whole_where_nothing_melts(pairs: list[tuple[str, str]]) -> None:
    """Looking at prefixes changes no token: the ids are what encoding the whole conversation gives."""
    turns = [turn for question, answer in pairs for turn in (f"u:{question}", f"a:{answer}")]

    found = encoded(say(*turns))

    whole = Letters().render(say(*turns)["messages"], tools=None, answer_next=False)
    assert found.ids.tolist() == Letters().encode([whole])[0]


def test_an_answer_that_melts_with_its_prompt_is_encoded_as_when_asked() -> None:
    """The model is asked with a prompt that ends in a line break; its answer then begins with a token of its own."""
    found = encoded(say("u:q", "a: yes"))

    prompt, answer = Letters().encode(["<u\nq>\n<a\n", " yes>"])
    assert found.ids.tolist()[: len(prompt) + len(answer)] == prompt + answer
    assert learned(found) == " yes>"


def test_a_tokenizer_that_cannot_encode_apart_is_refused() -> None:
    """One that puts something before every text would put it into the middle."""

    class Prefixing(Letters):
        def encode(self, texts: Sequence[str]) -> list[list[int]]:
            return [[100 + ord("_"), *ids] for ids in super().encode(texts)]

    with pytest.raises(InputError, match="sample x: an answer and its prompt share a token"):
        encoded(say("u:q", "a: yes"), Prefixing())


def test_a_template_that_rewrites_earlier_turns_is_refused() -> None:
    """Guessing where an answer was would teach the wrong tokens."""

    class Forgetful(Letters):
        def render(self, messages: Sequence[Mapping[str, Any]], *, tools: Any, answer_next: bool) -> str:
            return super().render(messages[-2:], tools=tools, answer_next=answer_next)

    with pytest.raises(InputError, match="sample x: the chat template changes a turn once another follows"):
        encoded(say("u:one", "a:two", "u:three", "a:four"), Forgetful())


def test_prompt_and_completion_are_encoded_apart() -> None:
    """The completion and the end token are learned; a beginning token is put where the tokenizer has one."""
    found = encoded({"prompt": "q\n", "completion": " yes"})

    assert found.ids.tolist() == [BEGIN, *Letters().encode(["q\n"])[0], *Letters().encode([" yes"])[0], END]
    assert learned(found) == " yes>"


def test_completions_of_messages_learn_only_the_completion() -> None:
    """Answers within the prompt are context."""
    turns = say("u:one", "a:two", "u:three", "a:four")["messages"]

    found = encoded({"prompt": turns[:3], "completion": turns[3:]})

    assert learned(found) == "four>"


def test_all_of_a_text_is_learned() -> None:
    """From its first token to the end token; the beginning token is given."""
    found = encoded({"text": "abc"})

    assert found.mask.tolist() == [0, 1, 1, 1, 1]
    assert learned(found) == "abc>"


def test_tools_reach_the_template() -> None:
    """A record's `tools` are rendered as its template wants them."""
    found = encoded({**say("u:q", "a:r"), "tools": ["clock"]})

    assert Letters().decode(found.ids.tolist()).startswith("[['clock']]<u\n")


@pytest.mark.parametrize(
    ("record", "said"),
    [
        ({}, "has neither messages, nor prompt and completion, nor text"),
        ({"prompt": "p"}, "has neither"),
        ({"prompt": "p", "completion": []}, "has neither"),
        ({"text": 7}, "has neither"),
        ({"messages": []}, "messages is not a list of turns"),
        ({"messages": "hello"}, "messages is not a list of turns"),
        ({"messages": ["hello"]}, "is not a message with a role"),
        ({"messages": [{"content": "x"}]}, "is not a message with a role"),
        ({"messages": [{"role": "user", "content": [1]}]}, "not text"),
        ({"messages": [{"role": "user"}]}, "not text"),
        (say("a:first"), "begins with an answer to nothing"),
    ],
)
def test_a_record_of_no_known_form_is_named(record: dict[str, Any], said: str) -> None:
    """With what is wrong with it."""
    with pytest.raises(InputError, match="sample x") as caught:
        encoded(record)
    assert said in caught.value.message
