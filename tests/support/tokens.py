"""tokens: a byte-level tokenizer of a few hundred tokens with a chat template, saved as a model directory holds it."""

from __future__ import annotations

from pathlib import Path

CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
FORGETFUL = (
    "{% for message in messages %}{% if message['role'] != 'assistant' or loop.last %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
"""Leaves earlier answers out once a later turn follows, as templates of reasoning models do with thoughts."""

DATED = "{% if strftime_now is defined %}{{ strftime_now('%d %b %Y') }}{% endif %}" + CHATML
"""Puts the date before a conversation, as templates of some models do."""

PICKY = "{{ raise_exception('roles must alternate') }}"


def tiny_tokenizer(
    path: Path, *, template: str | None = CHATML, begin: bool = False, end: str = "<|im_end|>", start: str = "<s>"
) -> Path:
    """Train one on a few sentences and save it; `begin` makes it put a token before every plain text."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=320,
        special_tokens=["<|im_start|>", "<|im_end|>", "<s>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(["user assistant system hello there, what is it  \n\n it is the answer"] * 5, trainer)
    if begin:
        tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 2)])
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token=start, eos_token=end, additional_special_tokens=["<|im_start|>"]
    )
    fast.chat_template = template
    fast.save_pretrained(path)
    return path
