import itertools
import math
from collections import Counter

import numpy as np
import pytest
import torch

from ettsweep.errors import DataMissingError, InputError
from ettsweep.seeding import derive_seed
from ettsweep.token_ids import END, PAD, START
from ettsweep.trainer.models.encdec_spec import EncDecSpec
from ettsweep.trainer.tasks.task import BatchShare
from ettsweep.trainer.tasks.text.denoising import (
    Denoising,
    WordMarkedText,
    corrupt,
    decoder_inputs,
    draw_span_lengths,
    infill_spans,
    insert_masks,
    pad_texts,
    permute_sentences,
)
from ettsweep.trainer.tasks.text.pydoc import pydoc_corpus
from ettsweep.trainer.tasks.text.text_task import DenoisingTask

MASK = 9999
TEXT = DenoisingTask(kind="pydoc")
MODEL = EncDecSpec(width=8, depth=1, heads=1, vocabulary=600, tokens=64)


def rng(seed: int) -> np.random.Generator:
    return np.random.default_rng(seed)


def words(count: int, sentences: int = 1) -> WordMarkedText:
    """Return a text of words of one token each; ids are positions, from 100."""
    return WordMarkedText(100 + np.arange(count), np.full(sentences, count // sentences), np.ones(count, dtype=bool))


def pieces(*lengths: int) -> WordMarkedText:
    """Return a text of one sentence whose words have so many tokens."""
    starts = np.concatenate([[True, *[False] * (n - 1)] for n in lengths])
    return WordMarkedText(100 + np.arange(len(starts)), np.array([len(starts)]), starts)


def slow_infill(tokens: list[int], starts: list[bool], chosen: list[int], lengths: list[int]) -> list[int]:
    """Walk through the text span by span, as BART's released code does."""
    values = [k for k, start in enumerate(starts) if start]
    keep, out = [True] * len(tokens), list(tokens)
    for text, length in zip(chosen, lengths, strict=True):
        k, left = values[text], length - 1
        out[k] = MASK
        while k + 1 < len(tokens):
            left -= starts[k + 1]
            if left < 0:
                break
            k += 1
            keep[k] = False
    return [token for token, remaining in zip(out, keep, strict=True) if remaining]


# --- spans ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("budget", [1, 2, 7, 150])
def test_spans_sum_to_the_budget_and_no_sooner(budget: int) -> None:
    for seed in range(300):
        lengths = draw_span_lengths(budget, 3.0, rng(seed))
        assert lengths.sum() == budget
        assert lengths[:-1].sum() < budget
        assert lengths.min() >= 0
        assert lengths[-1] >= 1


def test_span_lengths_are_poisson() -> None:
    from scipy import stats

    # All but the last of each draw: the last is cut, and the one that crosses is longer than most.
    concatenate_result = np.concatenate([draw_span_lengths(3000, 3.0, rng(seed))[:800] for seed in range(50)])
    counts = np.bincount(concatenate_result, minlength=13)[:13]
    expected = stats.poisson(3).pmf(np.arange(13))
    assert stats.chisquare(counts, expected / expected.sum() * counts.sum()).pvalue > 1e-3


def test_spans_end_where_walking_through_the_text_ends_them() -> None:
    for seed in range(400):
        draw = rng(seed)
        block = pieces(*draw.integers(1, 5, size=draw.integers(1, 25)))
        total = int(block.starts_T.sum())
        lengths = draw_span_lengths(math.ceil(0.5 * total), 2.0, draw)
        lengths = lengths[lengths > 0]
        fast = infill_spans(block.tokens_T, block.starts_T, lengths, MASK, rng(seed + 1))
        chosen = rng(seed + 1).permutation(total)[: len(lengths)]
        slow = slow_infill(block.tokens_T.tolist(), block.starts_T.tolist(), chosen.tolist(), lengths.tolist())
        assert fast.tolist() == slow


def test_a_span_takes_whole_words_and_stops_at_the_end() -> None:
    block = pieces(2, 3, 1)
    left = infill_spans(block.tokens_T, block.starts_T, np.array([3]), MASK, rng(2))
    first = int(rng(2).permutation(3)[0])
    assert left.tolist() == [[MASK], [100, 101, MASK], [100, 101, 102, 103, 104, MASK]][first]


def test_inserted_masks_leave_the_text_in_order_and_fall_anywhere() -> None:
    from scipy import stats

    values = np.zeros(6)
    for seed in range(3000):
        out = insert_masks(np.arange(5), 1, MASK, rng(seed))
        assert out[out != MASK].tolist() == [0, 1, 2, 3, 4]
        values[np.flatnonzero(out == MASK)] += 1
    assert stats.chisquare(values).pvalue > 1e-3


# --- the whole corruption ---------------------------------------------------------------------------------------------


def test_share_of_removed_tokens_masks_and_insertions_is_barts() -> None:
    """26.8% go: 30% of the words are drawn for, and spans overlap."""
    count, samples = 500, 600
    block = words(count)
    removed, masks, inserted, spans = [], [], [], []
    for seed in range(samples):
        out = corrupt(block, TEXT, MASK, 512, rng(seed))
        remaining = out[out != MASK]
        removed.append(1 - len(remaining) / count)
        masks.append((out == MASK).sum())
        same = rng(seed)
        same.permutation(1)  # of the sentences
        lengths = draw_span_lengths(150, 3.0, same)
        spans.append((lengths > 0).sum())
        inserted.append((lengths == 0).sum())
    assert np.mean(removed) == pytest.approx(0.268, abs=0.002)
    # Poisson(3): a mean of 3 words a draw, e^-3 of them empty; a draw more than 50 for the one that is cut.
    draws = np.mean(spans) + np.mean(inserted)
    assert draws == pytest.approx(50.5, abs=0.5)
    assert np.mean(inserted) / draws == pytest.approx(math.exp(-3), abs=0.005)
    # A mask inside another span goes with it; that of an empty span stays.
    assert np.mean(inserted) < np.mean(masks) < draws


def test_sentences_change_places_and_stay_whole() -> None:
    block = WordMarkedText(np.arange(10), np.array([2, 3, 5]), np.ones(10, dtype=bool))
    tuples = {tuple(permute_sentences(block, rng(seed))[0].tolist()) for seed in range(200)}
    values = [(0, 1), (2, 3, 4), (5, 6, 7, 8, 9)]
    assert tuples == {a + b + c for a in values for b in values for c in values if len({a, b, c}) == 3}


def test_word_starts_move_with_their_sentence() -> None:
    block = WordMarkedText(np.arange(5), np.array([2, 3]), np.array([True, False, True, False, True]))
    for seed in range(20):
        tokens, starts = permute_sentences(block, rng(seed))
        assert tokens[starts].tolist() in ([0, 2, 4], [2, 4, 0])


def test_nothing_is_corrupted_at_ratio_zero() -> None:
    still = TEXT.model_copy(update={"mask_ratio": 0.0, "permute_sentences": False})
    assert corrupt(words(50), still, MASK, 512, rng(0)).tolist() == words(50).tokens_T.tolist()


def test_insertions_never_overfill_a_source() -> None:
    """A single long word: the budget is one word, and empty spans come before it."""
    short = TEXT.model_copy(update={"span_mean": 0.02})
    block = pieces(1, *[1] * 9)
    sizes = [len(corrupt(block, short, MASK, 12, rng(seed))) for seed in range(50)]
    assert max(sizes) == 12


def test_corruption_depends_on_its_generator_alone() -> None:
    block = words(100, sentences=5)
    item, same, other = (corrupt(block, TEXT, MASK, 512, rng(seed)) for seed in (1, 1, 2))
    assert item.tolist() == same.tolist() != other.tolist()


# --- batches ----------------------------------------------------------------------------------------------------------


def test_the_decoder_reads_the_target_one_step_later() -> None:
    target_BT = pad_texts([np.array([50, 51]), np.array([60, 61, 62, 63])], 6)
    assert target_BT.tolist() == [[START, 50, 51, END, PAD, PAD], [START, 60, 61, 62, 63, END]]
    assert decoder_inputs(target_BT).tolist() == [[END, START, 50, 51, PAD, PAD], [END, START, 60, 61, 62, 63]]


def task(seed: int = 0, share: BatchShare = BatchShare(16), **changes: object) -> Denoising:  # noqa: B008
    spec = TEXT.model_copy(update=changes)
    return Denoising(spec, MODEL, pydoc_corpus(MODEL.vocabulary), seed, torch.device("cpu"), share)


def take(created: Denoising, count: int, first_step: int = 1) -> list[tuple[torch.Tensor, ...]]:
    batches = created.batches(first_step)
    return [next(batches).inputs for _ in range(count)]


def test_ends_stay_in_place_and_pads_are_never_predicted() -> None:
    task_result = task()
    for batch in [*(next(task_result.batches(step)) for step in (1, 2, 3)), *task_result.validation()]:
        source_BS, previous_BT, target_BT = batch.inputs
        for ids_BT in (source_BS, target_BT):
            length_B = (ids_BT != PAD).sum(1)
            assert (ids_BT[:, 0] == START).all()
            assert (ids_BT.gather(1, length_B[:, None] - 1) == END).all()
            assert ((ids_BT == START).sum(1) == 1).all()
            assert ((ids_BT == END).sum(1) == 1).all()
            assert (ids_BT[torch.arange(64) >= length_B[:, None]] == PAD).all()
        assert not (target_BT == MODEL.vocabulary - 1).any()
        assert torch.equal(previous_BT == PAD, target_BT == PAD)
        # What is left of a text is its own tokens and masks.
        for source_S, target_T in zip(source_BS.tolist(), target_BT.tolist(), strict=True):
            assert set(source_S) <= {*target_T, PAD, MODEL.vocabulary - 1}


def test_a_resumed_run_sees_what_an_undisturbed_one_would() -> None:
    task_result = task()
    epoch = task_result.steps_per_epoch
    undisturbed = take(task_result, epoch + 3)
    for step in (2, epoch, epoch + 1):
        for ours, theirs in zip(take(task(), 2, step), undisturbed[step - 1 :], strict=False):
            assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))
    assert not torch.equal(take(task(seed=1), 1)[0][0], undisturbed[0][0])


def test_texts_are_corrupted_anew_in_each_epoch() -> None:
    task_result = task(share=BatchShare(1))
    chosen = np.random.default_rng(derive_seed(0, "order", 0)).permutation(task_result.steps_per_epoch)[0]
    permutation_result = np.random.default_rng(derive_seed(0, "order", 1)).permutation(task_result.steps_per_epoch)
    step = task_result.steps_per_epoch + 1 + int(np.flatnonzero(permutation_result == chosen)[0])
    (source, _, target), (source_2, _, target_2) = take(task_result, 1)[0], take(task_result, 1, step)[0]
    assert torch.equal(target, target_2)
    assert not torch.equal(source, source_2)


@pytest.mark.parametrize(("world", "micro_batch"), [(1, 3), (2, None), (3, 2)])
def test_any_number_of_processes_trains_on_the_same_texts_and_loss(world: int, micro_batch: int | None) -> None:
    first = next(task().batches(2))
    values = [
        [next(created) for _ in share.slices]
        for share in (BatchShare(16, rank, world, micro_batch) for rank in range(world))
        for created in [task(share=share).batches(2)]
    ]
    for k in range(3):
        assert torch.equal(torch.cat([batch.inputs[k] for section in values for batch in section]), first.inputs[k])
    # Means over the target tokens of each micro-batch, weighed by their shares, are the mean over all.
    tokens = [(batch, int((batch.targets != PAD).sum())) for section in values for batch in section]
    assert sum(batch.share for batch, _ in tokens) == pytest.approx(1)
    for batch, count in tokens:
        assert batch.share == pytest.approx(count / int((first.targets != PAD).sum()))


def test_validation_is_the_same_for_all_runs_and_shared_out_whole() -> None:
    cat_result = torch.cat([batch.inputs[0] for batch in task(seed=0).validation()])
    assert torch.equal(cat_result, torch.cat([batch.inputs[0] for batch in task(seed=5).validation()]))
    cats = [torch.cat([b.inputs[0] for b in task(share=BatchShare(16, rank, 3)).validation()]) for rank in range(3)]
    for rank, section in enumerate(cats):
        assert torch.equal(section, cat_result[rank::3])
    cat_value = torch.cat([batch.targets for batch in task(val_blocks=7).validation()])
    assert len(cat_value) == 7
    targets = torch.cat([batch.targets for batch in task().validation()])
    assert all((targets == row).all(1).any() for row in cat_value)


def test_loss_is_in_nats_and_bits_per_target_token() -> None:
    task_result = task()
    batch = next(task_result.batches(1))
    count = int((batch.targets != PAD).sum())
    assert task_result.loss(torch.tensor(3.0 * count), batch).item() == pytest.approx(3.0)
    sums = task_result.measure(torch.tensor(2.0 * count), batch)
    # Of texts with [start] and [end], which have no bytes.
    text = "".join(task_result._corpus.tokenizer.decode(row) for row in batch.targets.tolist())
    per_byte = 2.0 * count / math.log(2) / len(text.encode())
    expected = {"val_loss": 2.0, "val_bits": 2.0 / math.log(2), "val_bits_per_byte": per_byte}
    assert task_result.metrics(sums.tolist()) == pytest.approx(expected)


def texts(created: Denoising, number: int = 0) -> Counter[int]:
    """Return a number for each text of an epoch, and how often it is there: headings come again."""
    steps = created.steps_per_epoch
    batches = itertools.islice(created.batches(number * steps + 1), steps)
    return Counter(hash(tuple(row)) for batch in batches for row in batch.targets.tolist())


def test_every_run_trains_on_the_same_texts_and_on_no_other() -> None:
    task_result = task(share=BatchShare(8), samples=40)
    chosen = texts(task_result)
    assert (task_result.steps_per_epoch, chosen.total()) == (5, 40)
    assert not chosen - texts(task(share=BatchShare(1)))
    assert chosen == texts(task(seed=5, share=BatchShare(20), samples=40), number=2)
    assert chosen == texts(task(share=BatchShare(8, 0, 2), samples=40)) + texts(
        task(share=BatchShare(8, 1, 2), samples=40)
    )


def test_fewer_texts_leave_the_validation_texts_as_they_are() -> None:
    for ours, theirs in zip(task(samples=16).validation(), task().validation(), strict=True):
        assert all(torch.equal(a, b) for a, b in zip(ours.inputs, theirs.inputs, strict=True))


def test_more_texts_than_there_are_are_refused() -> None:
    with pytest.raises(
        InputError, match=r"^task\.samples: 1000000 were requested, only \d+ training samples are available$"
    ):
        task(samples=1_000_000)


def test_batch_beyond_the_text_is_refused_with_what_would_work() -> None:
    with pytest.raises(DataMissingError, match=r"batch_size 100000 is more than the \d+ training texts of up to 62"):
        task(share=BatchShare(100000))
    with pytest.raises(DataMissingError, match=r"batch_size 16 is more than the 10 training texts .*batch_size=10 or"):
        task(samples=10)


def test_training_texts_are_not_for_validation() -> None:
    corpus = pydoc_corpus(MODEL.vocabulary)
    train, val = (
        {tuple(blocks.block(k).tokens_T) for k in range(len(blocks))}
        for blocks in (corpus.blocks("train", 62), corpus.blocks("val", 62))
    )
    assert 0.05 < len(val) / len(train) < 0.25
    shared = sum(len(block) for block in train & val) / sum(map(len, val))
    assert shared < 0.02, "but for headings and phrases"
