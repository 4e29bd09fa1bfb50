"""tokenizer: a model's own tokenizer with its chat template; the only door of transformers in this wing.

It is loaded from a local directory and never from a hub, and its identity is a digest of what it does (the serialised
tokenizer, the template, the special tokens that it puts around texts and hands to the template), so that the same
tokenizer saved by another version of a library is the same. A template sees no clock: one that asks for the date gets
the date that was set, or is refused, because bytes that depend on the day are no dataset.

What it does not do: slow tokenizers written in Python, or templates fetched from elsewhere.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from datakit.errors import InputError, MissingExtra, NotFound
from datakit.pack.masks import Ends, TemplateRefusal
from datakit.storage.access import local_path
from datakit.storage.disk import at_door

_ASKED = "datakit: a template asked for the date"
_OTHER = "Mend that record, or name a template that takes it: --template FILE"
_CHANCE = re.compile(r"""\|\s*random\b|\blipsum\s*\(|['"]random['"]""")
"""Jinja's own ways to draw at random: the filter, also by name in `map`, and the global."""

_DIRECTIVES = "aAbBcdDeFgGhHIjmMnprRStTuUVwWxXyYzZ"
"""What may follow a percent sign in a format of strftime(3)."""


def _clock(date: dt.date | None) -> str:
    """A macro, one line before a template, that takes the place of the clock which transformers gives to templates."""
    said = f"raise_exception({_ASKED!r})"
    if date is not None:
        given = [(f"%{one}", dt.datetime.combine(date, dt.time()).strftime(f"%{one}")) for one in _DIRECTIVES]
        # "%%" comes first and last, so that it begins no directive
        steps = [("%%", chr(1)), *given, (chr(1), "%")]
        said = "form" + "".join(f" | replace({old!r}, {new!r})" for old, new in steps)
    return f"{{% macro strftime_now(form) %}}{{{{ {said} }}}}{{% endmacro %}}\n"


class Tokenizer:
    """A tokenizer of a model directory, with its chat template.

    Args:
        model: Directory with the tokenizer's files.
        template: `auto`, or the path of a Jinja file.
        date: The date that a template sees, or None to refuse templates that ask for it.

    Raises:
        UsageError: The directory is a URL.
        NotFound: The directory, or the template's file, is not there.
        InputError: The directory holds no tokenizer that can be used.
        NotAllowed: A file of it may not be read.
        MissingExtra: transformers is not installed.
    """

    def __init__(self, model: str | Path, *, template: str = "auto", date: dt.date | None = None) -> None:
        self._where = str(model)
        self._date = date
        self._tokenizer = _load(local_path(model))
        if template != "auto":
            self._tokenizer.chat_template = _read_template(Path(template))

    @property
    def digest(self) -> str:
        """Identity of what it does, the date apart, from what it is and not from files: 64 hex digits."""
        ends = self.ends
        whole = {
            "tokenizer": self._tokenizer.backend_tokenizer.to_str(),
            "template": self._tokenizer.chat_template,
            "ends": [ends.before, ends.after, sorted(ends.special)],
            "special": {name: str(token) for name, token in self._tokenizer.special_tokens_map.items()},
        }
        return hashlib.sha256(json.dumps(whole, sort_keys=True).encode()).hexdigest()

    @property
    def ends(self) -> Ends:
        """Special tokens around a plain text."""
        begin, end = self._tokenizer.bos_token_id, self._tokenizer.eos_token_id
        adds_begin = begin is not None and begin in self._tokenizer("")["input_ids"]
        return Ends(
            before=(begin,) if adds_begin else (),
            after=() if end is None else (end,),
            special=frozenset(self._tokenizer.all_special_ids),
        )

    def render(self, messages: Sequence[Mapping[str, Any]], *, tools: Any, answer_next: bool) -> str:
        """The text of a conversation."""
        if self._tokenizer.chat_template is None:
            raise InputError(
                f"the tokenizer of {self._where} has no chat template",
                hint="Name one: --template FILE.jinja",
                subject=self._where,
            )
        try:
            return str(
                self._tokenizer.apply_chat_template(
                    list(messages),
                    chat_template=self._template(tools),
                    tools=tools,
                    tokenize=False,
                    add_generation_prompt=answer_next,
                )
            )
        except TemplateRefusal:
            raise
        except Exception as error:  # noqa: BLE001 -- a template is a foreign program, it may raise anything
            if _ASKED in str(error):
                raise InputError(
                    f"the chat template of {self._where} asks for today's date: its tokens would change every day",
                    hint="Set the date that it sees, and keep it: --date 2024-07-26",
                    subject=self._where,
                ) from None
            raise TemplateRefusal(f"the chat template says: {error}", hint=_OTHER) from None

    def _template(self, tools: Any) -> str:
        """The template without a clock and without chance."""
        template = str(self._tokenizer.get_chat_template(tools=tools))
        if _CHANCE.search(template):
            message = "the chat template draws at random, so its tokens would differ from run to run"
            raise TemplateRefusal(message, hint=_OTHER)
        return _clock(self._date) + template if "strftime_now" in template else template

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Ids of each text, without special tokens of its own."""
        return [
            found.ids for found in self._tokenizer.backend_tokenizer.encode_batch(list(texts), add_special_tokens=False)
        ]

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids, special tokens included."""
        return str(self._tokenizer.backend_tokenizer.decode(list(ids), skip_special_tokens=False))


def _load(model: Path) -> Any:
    if not model.is_dir():
        kind = InputError if model.exists() else NotFound
        raise kind(f"{model} is not a directory with a tokenizer", hint="Name a model's directory", subject=str(model))
    try:
        from transformers import AutoTokenizer
    except ImportError:
        raise MissingExtra("transformers", extra="train") from None
    try:
        tokenizer = AutoTokenizer.from_pretrained(str(model), local_files_only=True)
    except Exception as error:  # noqa: BLE001 -- tokenizers raises bare Exception for what it cannot read
        raise _unusable(model, error) from None
    if not getattr(tokenizer, "is_fast", False):
        raise InputError(
            f"the tokenizer of {model} has no tokenizer.json", hint="Save a fast tokenizer", subject=str(model)
        )
    return tokenizer


def _unusable(model: Path, error: Exception) -> InputError:
    """Why a tokenizer cannot be loaded, in our words where its own file is the reason.

    Raises:
        NotAllowed: Its file may not be read.
    """
    from tokenizers import Tokenizer as Backend

    file = model / "tokenizer.json"
    hint = "Save the model's fast tokenizer there again"
    if not file.is_file():
        return InputError(
            f"{model} holds no tokenizer that can be loaded: it has no tokenizer.json", hint=hint, subject=str(model)
        )
    with at_door(file):
        data = file.read_bytes()
    try:
        Backend.from_buffer(data)
    except Exception as reason:  # noqa: BLE001 -- as above
        said = " ".join(str(reason).split())
        return InputError(f"{file} is not a tokenizer that can be used: {said}", hint=hint, subject=str(file))
    said = " ".join(str(error).split())
    return InputError(f"{model} holds no tokenizer that can be loaded: {said}", hint=hint, subject=str(model))


def _read_template(path: Path) -> str:
    with at_door(path):
        return path.read_text(encoding="utf-8")
