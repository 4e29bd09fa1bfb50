"""train/evaluate: the same number every time, the same as by hand, and what stock peft makes of our adapter."""

from __future__ import annotations

import datetime as dt
import json
import shutil
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

import datakit
from datakit.events import Event, Progress
from datakit.train.batch import Collate, read_tokens
from datakit.train.evaluate import Evaluator, answer, evaluate
from datakit.train.model import identify, load_adapter, load_base
from datakit.train.recipe import Recipe
from support.commits import flip_bit
from support.tiny import VOCABULARY, commit_model, token_sample, write_dataset

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def trained(tokens_dir: Path, base_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An adapter that has learned something."""
    run = tmp_path_factory.mktemp("trained") / "run"
    recipe = Recipe(steps=20, learning_rate=0.02, warmup_steps=2, rank=4, save_every_steps=20, threads=1)
    return datakit.train(tokens_dir, model=base_dir, output=run, settings=recipe).adapter


def stock(base_dir: Path, adapter: Path) -> Any:
    """Plain transformers and plain peft, as a user without datakit would load it."""
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what these libraries say to each other is not under test
        return PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base_dir), adapter).eval()


def test_stock_peft_loads_the_adapter_and_gives_the_same_logits(
    trained: Path, base_dir: Path, tokens_dir: Path
) -> None:
    """Oracle: `PeftModel.from_pretrained`; and the adapter does change the logits."""
    ours = load_adapter(load_base(identify(base_dir), precision="fp32", device=CPU), trained).eval()
    theirs = stock(base_dir, trained)
    ids = torch.arange(24).reshape(2, 12) % VOCABULARY

    with torch.inference_mode():
        logits = [model(input_ids=ids).logits for model in (ours, theirs)]
        with theirs.disable_adapter():
            without = theirs(input_ids=ids).logits

    assert torch.equal(*logits)
    assert (logits[0] - without).abs().max() > 1e-3


def test_a_checkpoint_is_an_adapter_too(trained: Path, base_dir: Path) -> None:
    """Stock peft loads `step-*` as well; the last one equals the adapter."""
    checkpoint = trained.parent / "checkpoints" / "step-00000020"

    one, other = stock(base_dir, trained), stock(base_dir, checkpoint)

    ids = torch.arange(10).reshape(1, 10)
    with torch.inference_mode():
        assert torch.equal(one(input_ids=ids).logits, other(input_ids=ids).logits)


def test_the_loss_is_the_mean_over_every_supervised_token(base_dir: Path, tokens_dir: Path) -> None:
    """Oracle: log-probabilities by hand, sample by sample, without padding."""
    model = load_base(identify(base_dir), precision="fp32", device=CPU).eval()
    total, count = 0.0, 0
    for item in datakit.open_dataset(tokens_dir):
        ids, mask = (torch.from_numpy(array.astype("i8")) for array in read_tokens(item))
        with torch.inference_mode():
            scores = model(input_ids=ids[None]).logits[0].log_softmax(-1)
        for at in range(1, len(ids)):
            if mask[at]:
                total -= float(scores[at - 1, ids[at]])
                count += 1

    result = evaluate(tokens_dir, model=base_dir)

    assert (result.supervised_tokens, result.samples) == (count, 13)
    assert result.loss == pytest.approx(total / count, abs=1e-5)


def test_evaluating_twice_gives_the_same_bits(trained: Path, base_dir: Path, tokens_dir: Path) -> None:
    """No dropout, no sampling; the batch size moves the last bits only; progress reaches the end."""
    events: list[Event] = []

    losses = [
        evaluate(tokens_dir, model=base_dir, adapter=trained, batch_size=size, on_event=events.append).loss
        for size in (8, 8, 3)
    ]

    assert losses[0] == losses[1] == pytest.approx(losses[2], abs=1e-5)
    assert [event.done for event in events if isinstance(event, Progress)][:2] == [8, 13]


def test_training_lowered_the_loss(trained: Path, base_dir: Path, tokens_dir: Path) -> None:
    """On the data it was trained on, at least."""
    before, after = evaluate(tokens_dir, model=base_dir), evaluate(tokens_dir, model=base_dir, adapter=trained)

    assert after.loss < before.loss - 0.05


def test_a_damaged_adapter_is_not_used(trained: Path, base_dir: Path, tokens_dir: Path, tmp_path: Path) -> None:
    """One flipped bit is an integrity error, not a slightly different answer."""
    copy = shutil.copytree(trained, tmp_path / "adapter")
    data = bytearray((copy / "adapter_model.safetensors").read_bytes())
    data[-5] ^= 1
    (copy / "adapter_model.safetensors").write_bytes(data)

    with pytest.raises(datakit.IntegrityError, match="adapter_model"):
        evaluate(tokens_dir, model=base_dir, adapter=copy)


def test_a_dataset_without_a_supervised_token_has_no_loss(base_dir: Path, tmp_path: Path) -> None:
    """It is said, not printed as NaN."""
    write_dataset(tmp_path / "silent", [token_sample("a", [1, 2, 3], [0, 0, 0])])

    with pytest.raises(datakit.InputError, match="no token of"):
        evaluate(tmp_path / "silent", model=base_dir)


def add_tokenizer(model: Path, *, template: str = "{% for m in messages %}{{ m['content'] }} {% endfor %}") -> None:
    """A tokenizer of words w0 .. w95 with a chat template."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = {f"w{number}": number for number in range(VOCABULARY)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.save(str(model / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": "w0", "chat_template": template}
    (model / "tokenizer_config.json").write_text(json.dumps(config))


def greedy(model: Any, asked: Sequence[int], count: int) -> list[int]:
    ids = list(asked)
    for _ in range(count):
        with torch.inference_mode():
            ids.append(int(model(input_ids=torch.tensor([ids])).logits[0, -1].argmax()))
        if ids[-1] == 1:
            break
    return ids[len(asked) :]


def test_an_answer_is_the_likeliest_token_each_time(trained: Path, base_dir: Path, tmp_path: Path) -> None:
    """Oracle: argmax by hand, with and without the adapter."""
    model = shutil.copytree(base_dir, tmp_path / "model")
    add_tokenizer(model)

    said = (
        answer("w7 w12 w17", model=model, max_new_tokens=5),
        answer("w7 w12 w17", model=model, adapter=trained, max_new_tokens=5),
    )

    plain = load_base(identify(base_dir), precision="fp32", device=CPU).eval()
    assert said[0].split() == [f"w{token}" for token in greedy(plain, [7, 12, 17], 5)]
    assert said[1].split() == [f"w{token}" for token in greedy(stock(base_dir, trained), [7, 12, 17], 5)]


def test_a_model_without_a_tokenizer_cannot_be_asked(base_dir: Path) -> None:
    """The directory is named."""
    with pytest.raises(datakit.InputError, match=f"{base_dir} holds no tokenizer"):
        answer("hello", model=base_dir)


def test_a_question_is_asked_on_the_day_that_the_data_was_tokenized(base_dir: Path, tmp_path: Path) -> None:
    """A template that asks for the date sees the one that is given; without one it is refused, never today's."""
    model = shutil.copytree(base_dir, tmp_path / "model")
    add_tokenizer(model, template="w{{ strftime_now('%d') }} {% for m in messages %}{{ m['content'] }} {% endfor %}")

    said = answer("w7 w12", model=model, max_new_tokens=5, date=dt.date(2024, 7, 26))
    with pytest.raises(datakit.InputError, match="asks for today's date"):
        answer("w7 w12", model=model)

    plain = load_base(identify(base_dir), precision="fp32", device=CPU).eval()
    assert said.split() == [f"w{token}" for token in greedy(plain, [26, 7, 12], 5)]


def test_collate_is_the_same_for_training_and_evaluation(tokens_dir: Path) -> None:
    """Both count the same supervised tokens."""
    items = list(datakit.open_dataset(tokens_dir))

    assert Collate(4)(items).supervised_tokens == sum(Collate(1)([item]).supervised_tokens for item in items)


def test_one_model_answers_for_before_and_after(
    trained: Path, base_dir: Path, tokens_dir: Path, tmp_path: Path
) -> None:
    """Oracle: a model loaded for each; the adapter that is set aside leaves no bit behind, in whichever order."""
    model = shutil.copytree(base_dir, tmp_path / "model")
    add_tokenizer(model)
    both = Evaluator(model, trained)

    losses = [both.evaluate(tokens_dir, adapted=adapted).loss for adapted in (True, False, True)]
    said = [both.answer("w7 w12 w17", adapted=adapted, max_new_tokens=5) for adapted in (False, True)]

    alone = [evaluate(tokens_dir, model=base_dir, adapter=adapter).loss for adapter in (trained, None)]
    assert losses == [alone[0], alone[1], alone[0]]
    assert said == [answer("w7 w12 w17", model=model, adapter=one, max_new_tokens=5) for one in (None, trained)]


def test_a_damaged_base_model_is_not_evaluated(tokens_dir: Path, base_dir: Path, tmp_path: Path) -> None:
    """A number would be that of another model."""
    base = commit_model(base_dir, tmp_path / "base")
    flip_bit(base / "model.safetensors", 5000)

    with pytest.raises(datakit.IntegrityError, match="safetensors: bytes 0 to"):
        evaluate(tokens_dir, model=base)
