"""The objective of a decoder: its batches, its loss in nats and bits, and the texts that it reads."""

import math

import numpy as np
import pytest
import torch
from support.texts import TOPICS, small_tokenizer

from ettsweep.errors import DataMissingError, InputError
from ettsweep.schema import validate
from ettsweep.seeding import derive_seed
from ettsweep.token_ids import FIRST_BPE
from ettsweep.trainer.models.registry import model_spec
from ettsweep.trainer.tasks.registry import task_kind, task_spec
from ettsweep.trainer.tasks.task import Batch, BatchShare
from ettsweep.trainer.tasks.text.corpus import corpus_from_texts
from ettsweep.trainer.tasks.text.next_token import NextToken
from ettsweep.trainer.tasks.text.pydoc import documents, pydoc_corpus
from ettsweep.trainer.tasks.text.text_task import DenoisingTask, NextTokenTask
from ettsweep.trainer.tasks.text.tokenizer import token_bytes

MODEL = model_spec("gpt-tiny").model_copy(update={"vocabulary": 512, "tokens": 16})
TEXT = NextTokenTask(text="pydoc")


def test_bytes_of_tokens_are_those_of_the_text() -> None:
    tokenizer = small_tokenizer()
    text = TOPICS[0] + " naïve – 日本 \x00"
    tokens, _ = tokenizer.encode([text])
    assert token_bytes(tokenizer)[tokens].sum() == len(text.encode())
    assert not token_bytes(tokenizer)[:FIRST_BPE].any()


def task(seed: int = 0, share: BatchShare = BatchShare(16), **changes: object) -> NextToken:  # noqa: B008
    spec = TEXT.model_copy(update=changes)
    return NextToken(spec, MODEL, pydoc_corpus(MODEL.vocabulary), seed, torch.device("cpu"), share)


def test_windows_come_in_the_order_of_seed_and_epoch_each_token_predicted_from_the_one_before() -> None:
    corpus = pydoc_corpus(MODEL.vocabulary)
    windows, steps = corpus.windows("train", 16), task().steps_per_epoch
    assert windows.window(0)[1:].tolist() == corpus.tokenizer.encode([documents()[0].strip()])[0][:16].tolist()
    for seed, step in ((0, 1), (0, 2), (3, 2), (0, steps + 1)):
        epoch, at = divmod(step - 1, steps)
        order = np.random.default_rng(derive_seed(seed, "order", epoch)).permutation(len(windows))
        expected = [windows.window(int(k)).tolist() for k in order[16 * at : 16 * at + 16]]
        batch: Batch = next(task(seed).batches(step))
        previous_BT, target_BT = batch.inputs
        assert torch.cat((previous_BT[:, :1], target_BT), 1).tolist() == expected
        assert torch.equal(previous_BT[:, 1:], target_BT[:, :-1])
        assert batch.targets is target_BT
        assert batch.share == 1


def test_loss_is_in_nats_and_in_bits_a_token_and_a_byte() -> None:
    tokenizer = small_tokenizer()
    corpus = corpus_from_texts(TOPICS[:4], tokenizer, [False, False, False, True])
    model = MODEL.model_copy(update={"vocabulary": tokenizer.n_vocab, "tokens": 1})
    made = NextToken(TEXT, model, corpus, 0, torch.device("cpu"), BatchShare(2))
    text, sums = TOPICS[3].strip(), np.zeros(3)
    count = len(tokenizer.encode([text])[0])
    for batch in made.validation():
        loss = torch.tensor(2.0 * batch.targets.numel())
        assert made.loss(loss, batch).item() == 2.0
        sums += made.measure(loss, batch).numpy()
    # Windows of one token predict all of them.
    assert made.metrics(sums.tolist()) == pytest.approx(
        {
            "val_loss": 2.0,
            "val_bits": 2.0 / math.log(2),
            "val_bits_per_byte": 2.0 * count / math.log(2) / len(text.encode()),
        }
    )


def test_text_that_is_too_short_is_refused() -> None:
    with pytest.raises(DataMissingError, match=r"batch_size 100000 is more than the \d+ training texts of up to 16"):
        task(share=BatchShare(100000))
    tokenizer = small_tokenizer()
    corpus = corpus_from_texts([TOPICS[0] * 9, "a"], tokenizer, [False, True])
    model = MODEL.model_copy(update={"vocabulary": tokenizer.n_vocab, "tokens": 8})
    with pytest.raises(DataMissingError, match="no validation text is long enough for the model's tokens"):
        NextToken(TEXT, model, corpus, 0, torch.device("cpu"), BatchShare(2))


@pytest.mark.parametrize(
    ("fields", "kind", "data"),
    [
        ({"kind": "denoise", "text": "pydoc"}, "pydoc", ""),
        ({"kind": "denoise"}, "text", "text"),
        ({"kind": "pydoc", "text": "tokens"}, "text", "text"),
        ({"kind": "next_token", "text": "pydoc"}, "next_token", ""),
        ({"kind": "next_token"}, "next_token", "text"),
    ],
)
def test_each_objective_reads_each_text(fields: dict[str, str], kind: str, data: str) -> None:
    made = task_kind(task_spec(fields["kind"])).spec.model_validate(fields)
    assert (made.kind, task_kind(made).data_kind(made)) == (kind, data)


def test_an_unknown_text_is_refused() -> None:
    with pytest.raises(InputError, match="text: pydoc or tokens is expected, got 'wiki'"):
        validate(DenoisingTask, {"kind": "denoise", "text": "wiki"}, "grid.yaml")
