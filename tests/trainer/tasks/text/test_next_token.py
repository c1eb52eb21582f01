"""Windows of consecutive tokens beside the documents that they are made of, and the objective that reads them."""

import math
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pytest
import torch
from support.texts import TOPICS, small_tokenizer

from ettsweep.errors import DataMissingError, InputError
from ettsweep.runs.spec import validated_spec
from ettsweep.schema import digest, identity, validate
from ettsweep.token_ids import FIRST_BPE, PAD, START
from ettsweep.trainer.models.registry import model_spec
from ettsweep.trainer.tasks.registry import check_compatible, task_kind, task_spec
from ettsweep.trainer.tasks.task import Batch, BatchShare
from ettsweep.trainer.tasks.text.blocks import Texts, TokenWindows
from ettsweep.trainer.tasks.text.corpus import corpus_from_texts
from ettsweep.trainer.tasks.text.next_token import NextToken
from ettsweep.trainer.tasks.text.pydoc import documents, pydoc_corpus
from ettsweep.trainer.tasks.text.text_task import DenoisingTask, NextTokenTask
from ettsweep.trainer.tasks.text.tokenizer import token_bytes

MODEL = model_spec("gpt-tiny").model_copy(update={"vocabulary": 512, "tokens": 16})
TEXT = NextTokenTask(text="pydoc")


def texts_of(*documents: Sequence[int], first: int = 100) -> Texts:
    """Return documents, each of sentences of so many tokens; ids count up."""
    lengths, ends = [sum(document) for document in documents], [np.cumsum(document) for document in documents]
    return Texts(
        np.arange(first, first + sum(lengths), dtype=np.uint16),
        np.cumsum([0, *lengths], dtype=np.int32),
        np.concatenate(ends).astype(np.uint32),
        np.cumsum([0, *map(len, ends)], dtype=np.int32),
    )


def stream(*parts: Texts) -> list[int]:
    """Return the stream of all documents, made token by token."""
    values = list[int]()
    for texts in parts:
        for begin, end in pairwise(texts.token_offsets):
            values += [START, *texts.tokens[begin:end].tolist()]
    return values


# --- windows ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tokens", [1, 2, 3, 7, 12, 60])
def test_windows_follow_each_other_through_all_documents_of_all_parts(tokens: int) -> None:
    first, *others = [((3, 2), (1,), (4, 4, 1)), ((1,),), ((2,),), ((30,), (1,))]
    parts = [texts_of(*first), *(texts_of(*part, first=100 * k) for k, part in enumerate(others, start=2))]
    windows, values = TokenWindows(parts, tokens), stream(*parts)
    expected = [values[k : k + tokens + 1] for k in range(0, len(values) - tokens, tokens)]
    assert [windows.window(k).tolist() for k in range(len(windows))] == expected
    for beyond in (-1, len(windows)):
        with pytest.raises(IndexError):
            windows.window(beyond)


def test_a_side_without_text_has_no_windows() -> None:
    assert len(TokenWindows([], 4)) == 0


def test_bytes_of_tokens_are_those_of_the_text() -> None:
    tokenizer = small_tokenizer()
    text = TOPICS[0] + " naïve – 日本 \x00"
    tokens, _ = tokenizer.encode([text])
    assert token_bytes(tokenizer)[tokens].sum() == len(text.encode())
    assert not token_bytes(tokenizer)[:FIRST_BPE].any()


# --- the objective ----------------------------------------------------------------------------------------------------


def task(seed: int = 0, share: BatchShare = BatchShare(16), **changes: object) -> NextToken:  # noqa: B008
    spec = TEXT.model_copy(update=changes)
    return NextToken(spec, MODEL, pydoc_corpus(MODEL.vocabulary), seed, torch.device("cpu"), share)


def test_each_token_is_predicted_from_the_one_before_and_the_text_is_pythons_documentation() -> None:
    made, corpus = task(share=BatchShare(1)), pydoc_corpus(MODEL.vocabulary)
    read = {}
    for _, batch in zip(range(made.steps_per_epoch), made.batches(1), strict=False):
        previous_BT, target_BT = batch.inputs
        assert previous_BT.shape == target_BT.shape == (1, 16)
        assert torch.equal(previous_BT[:, 1:], target_BT[:, :-1])
        assert batch.targets is target_BT
        assert batch.share == 1
        assert not (target_BT == PAD).any()
        read[tuple(previous_BT[0].tolist())] = target_BT[0, -1].item()
    assert len(read) > 0.95 * made.steps_per_epoch, "an epoch has each window once; some are alike"
    first = corpus.tokenizer.encode([documents()[0].strip()])[0][:15].tolist()
    assert (START, *first) in read


def test_a_resumed_run_sees_what_an_undisturbed_one_would() -> None:
    made = task()
    batches = made.batches(1)
    undisturbed = [next(batches) for _ in range(made.steps_per_epoch + 2)]
    for step in (2, made.steps_per_epoch + 1):
        same = next(task().batches(step))
        assert all(map(torch.equal, same.inputs, undisturbed[step - 1].inputs))
    assert not torch.equal(next(task(seed=1).batches(1)).targets, undisturbed[0].targets)


def test_any_number_of_processes_trains_and_validates_on_the_same_windows() -> None:
    first = next(task().batches(2))
    shares = [BatchShare(16, rank, 3, 2) for rank in range(3)]
    values = [next(batches) for s in shares for batches in [task(share=s).batches(2)] for _ in s.slices]
    assert torch.equal(torch.cat([batch.targets for batch in values]), first.targets)
    assert sum(batch.share for batch in values) == pytest.approx(1)
    whole = torch.cat([batch.targets for batch in task(seed=5).validation()])
    for rank, share in enumerate(shares):
        assert torch.equal(torch.cat([batch.targets for batch in task(share=share).validation()]), whole[rank::3])
    assert len(torch.cat([batch.targets for batch in task(val_blocks=7).validation()])) == 7


def test_loss_is_in_nats_and_in_bits_a_token_and_a_byte() -> None:
    tokenizer = small_tokenizer()
    corpus = corpus_from_texts(TOPICS[:4], tokenizer, [False, False, False, True])
    model = MODEL.model_copy(update={"vocabulary": tokenizer.n_vocab, "tokens": 1})
    made = NextToken(TEXT, model, corpus, 0, torch.device("cpu"), BatchShare(2))
    text = TOPICS[3].strip()
    count = len(tokenizer.encode([text])[0])
    sums = np.zeros(3)
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


def test_a_batch_beyond_the_text_is_refused_with_what_would_work() -> None:
    with pytest.raises(DataMissingError, match=r"batch_size 100000 is more than the \d+ training texts of up to 16"):
        task(share=BatchShare(100000))


def test_validation_text_without_a_whole_window_is_refused() -> None:
    tokenizer = small_tokenizer()
    corpus = corpus_from_texts([TOPICS[0] * 9, "a"], tokenizer, [False, True])
    model = MODEL.model_copy(update={"vocabulary": tokenizer.n_vocab, "tokens": 8})
    with pytest.raises(DataMissingError, match="no validation text is long enough for the model's tokens"):
        NextToken(TEXT, model, corpus, 0, torch.device("cpu"), BatchShare(2))


# --- data times objective ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "kind", "data"),
    [
        ({"kind": "denoise", "text": "pydoc"}, "pydoc", ""),
        ({"kind": "denoise", "text": "tokens"}, "text", "text"),
        ({"kind": "denoise"}, "text", "text"),
        ({"kind": "pydoc", "text": "tokens"}, "text", "text"),
        ({"kind": "next_token", "text": "pydoc"}, "next_token", ""),
        ({"kind": "next_token"}, "next_token", "text"),
    ],
)
def test_each_objective_reads_each_text(fields: dict[str, str], kind: str, data: str) -> None:
    made = task_kind(task_spec(fields["kind"])).spec.model_validate(fields)
    assert (made.kind, task_kind(made).data_kind(made)) == (kind, data)


def test_denoising_has_the_ids_that_it_had_before_it_was_called_so() -> None:
    """Those of its fields on the day before, by the digest that makes ids."""
    fields = {"mask_ratio": 0.3, "span_mean": 3.0, "permute_sentences": True, "val_blocks": 5000, "corpus": None}
    for text, kind in (("pydoc", "pydoc"), ("tokens", "text")):
        made = DenoisingTask.model_validate({"kind": "denoise", "text": text})
        assert digest(identity(made)) == digest({"kind": kind, **fields})
        assert made == DenoisingTask.model_validate({"kind": kind})


def test_runs_of_both_names_are_one_run() -> None:
    spec = {
        "model": {"kind": "encdec", "width": 8, "depth": 1, "heads": 1, "vocabulary": 512, "tokens": 16},
        **{"batch_size": 4, "strategy": {"s": 0.0}, "lr": 1.0, "wd": 0.0, "seed": 0},
        "schedule": {"total_steps": 8, "warmup_steps": 2, "eval_every": 8},
    }
    named = [{"kind": "pydoc"}, {"kind": "denoise", "text": "pydoc"}, "pydoc"]
    assert len({validated_spec({**spec, "task": name}, "spec").run_id for name in named}) == 1


def test_an_unknown_text_and_a_model_of_the_other_objective_are_refused() -> None:
    for kind, message in (
        ("denoise", "text: pydoc or tokens is expected, got 'wiki'"),
        ("next_token", "text: input should be 'pydoc' or 'tokens', got 'wiki'"),
        ("denoise", "text: pydoc or tokens is expected, got ['wiki']"),
    ):
        text = ["wiki"] if "[" in message else "wiki"
        with pytest.raises(InputError) as error:
            validate(task_kind(task_spec(kind)).spec, {"kind": kind, "text": text}, "grid.yaml")
        assert message in str(error.value)
    decoder, encdec = model_spec("gpt-tiny"), model_spec("encdec-tiny")
    check_compatible(TEXT, decoder, 1)
    for made, model, message in (
        (TEXT, encdec, "model: task next_token needs a decoder, such as kind gpt, got encdec"),
        (
            DenoisingTask(kind="pydoc"),
            decoder,
            "model: task pydoc needs a model that reads a source, such as kind encdec, got gpt",
        ),
        (TEXT, model_spec("vit-digits"), "model: task next_token needs a decoder, such as kind gpt, got vit"),
    ):
        with pytest.raises(InputError) as error:
            check_compatible(made, model, 1)
        assert str(error.value) == message


def test_a_batch_is_what_a_decoder_is_called_with() -> None:
    batch: Batch = next(task().batches(1))
    assert [x.dtype for x in batch.inputs] == [torch.int64] * 2
    assert all(x.is_contiguous() for x in batch.inputs)
