"""Span denoising by the rules of BART's released code (fairseq), and batches that depend on seed and position alone."""

import itertools
import math
from collections.abc import Iterable
from typing import Any

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
    mark_words,
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


def test_span_lengths_are_poisson_and_sum_to_the_budget_no_sooner() -> None:
    from scipy import stats

    for budget in (1, 7, 150):
        for seed in range(100):
            lengths = draw_span_lengths(budget, 3.0, rng(seed))
            assert lengths.sum() == budget > lengths[:-1].sum()
            assert lengths.min() >= 0
            assert lengths[-1] >= 1
    # All but the last of each draw: the last is cut, and the one that crosses is longer than most.
    drawn = np.concatenate([draw_span_lengths(3000, 3.0, rng(seed))[:800] for seed in range(50)])
    counts, expected = np.bincount(drawn, minlength=13)[:13], stats.poisson(3).pmf(np.arange(13))
    assert stats.chisquare(counts, expected / expected.sum() * counts.sum()).pvalue > 1e-3


def test_spans_end_where_walking_through_the_text_ends_them() -> None:
    """They take whole words, and stop at the end of the text."""
    for seed in range(200):
        draw = rng(seed)
        block = pieces(*draw.integers(1, 5, size=draw.integers(1, 25)))
        total = int(block.starts_T.sum())
        lengths = draw_span_lengths(math.ceil(0.5 * total), 2.0, draw)
        lengths = lengths[lengths > 0]
        fast = infill_spans(block.tokens_T, block.starts_T, lengths, MASK, rng(seed + 1))
        chosen = rng(seed + 1).permutation(total)[: len(lengths)]
        slow = slow_infill(block.tokens_T.tolist(), block.starts_T.tolist(), chosen.tolist(), lengths.tolist())
        assert fast.tolist() == slow


def test_inserted_masks_leave_the_text_in_order_and_fall_anywhere() -> None:
    from scipy import stats

    counts = np.zeros(6)
    for seed in range(1000):
        out = insert_masks(np.arange(5), 1, MASK, rng(seed))
        assert out[out != MASK].tolist() == [0, 1, 2, 3, 4]
        counts[np.flatnonzero(out == MASK)] += 1
    assert stats.chisquare(counts).pvalue > 1e-3


# --- the whole corruption ---------------------------------------------------------------------------------------------


def test_share_of_removed_tokens_masks_and_insertions_is_barts() -> None:
    """26.8% go: 30% of the words are drawn for, and spans overlap."""
    count, samples = 500, 300
    block = words(count)
    removed, masks, inserted, spans = [], [], [], []
    for seed in range(samples):
        out = corrupt(block, TEXT, MASK, 512, rng(seed))
        removed.append(1 - (out != MASK).sum() / count)
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


def test_sentences_change_places_and_stay_whole_with_their_words() -> None:
    starts = np.array([True, False, True, False, True])
    block = WordMarkedText(np.arange(5), np.array([1, 1, 3]), starts)
    seen = set()
    for seed in range(200):
        tokens, moved = permute_sentences(block, rng(seed))
        seen.add(tuple(tokens.tolist()))
        assert moved.tolist() == starts[tokens].tolist()
    parts = [(0,), (1,), (2, 3, 4)]
    assert seen == {a + b + c for a, b, c in itertools.permutations(parts)}


def test_corruption_depends_on_its_generator_alone_and_stays_within_a_source() -> None:
    block = words(100, sentences=5)
    item, same, other = (corrupt(block, TEXT, MASK, 512, rng(seed)) for seed in (1, 1, 2))
    assert item.tolist() == same.tolist() != other.tolist()
    still = TEXT.model_copy(update={"mask_ratio": 0.0, "permute_sentences": False})
    assert corrupt(block, still, MASK, 512, rng(0)).tolist() == block.tokens_T.tolist()
    # Of a mean of 0.02 words, many empty spans come before the budget is spent.
    short = TEXT.model_copy(update={"span_mean": 0.02})
    assert max(len(corrupt(words(10), short, MASK, 12, rng(seed))) for seed in range(50)) == 12


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


def equal(a: Iterable[torch.Tensor], b: Iterable[torch.Tensor]) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def test_ends_stay_in_place_and_pads_are_never_predicted() -> None:
    made = task()
    for batch in [next(made.batches(1)), *itertools.islice(made.validation(), 2)]:
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


def test_texts_come_in_the_order_of_seed_and_epoch_each_corrupted_by_seed_epoch_and_number() -> None:
    """What a resumed run sees, too."""
    corpus = pydoc_corpus(MODEL.vocabulary)
    blocks, count = corpus.blocks("train", 62), task(share=BatchShare(1)).steps_per_epoch
    for seed, epoch, at in ((0, 0, 0), (0, 0, 5), (3, 0, 5), (0, 1, 2)):
        number = int(np.random.default_rng(derive_seed(seed, "order", epoch)).permutation(count)[at])
        text = mark_words(blocks.block(number), corpus)
        generator = rng(derive_seed(seed, "corruption", epoch, number))
        source_S = corrupt(text, TEXT, MODEL.vocabulary - 1, 62, generator)
        ((source_BS, _, target_BT),) = take(task(seed, BatchShare(1)), 1, epoch * count + at + 1)
        assert source_BS.tolist() == pad_texts([source_S], 64).tolist()
        assert target_BT.tolist() == pad_texts([text.tokens_T], 64).tolist()
    undisturbed, steps = take(task(), count // 16 + 2), count // 16
    for step in (2, steps, steps + 1):
        assert equal(take(task(), 1, step)[0], undisturbed[step - 1])


def test_any_number_of_processes_trains_on_the_same_texts_and_loss() -> None:
    first = next(task().batches(2))
    shares = [BatchShare(16, rank, world=3, micro_batch=2) for rank in range(3)]
    batches = [next(made) for share in shares for made in [task(share=share).batches(2)] for _ in share.slices]
    for k in range(3):
        assert torch.equal(torch.cat([batch.inputs[k] for batch in batches]), first.inputs[k])
    # Means over the target tokens of each micro-batch, weighed by their shares, are the mean over all.
    for batch in batches:
        assert batch.share == pytest.approx(int((batch.targets != PAD).sum()) / int((first.targets != PAD).sum()))


def test_validation_is_the_same_for_all_runs_and_shared_out_whole() -> None:
    def sources(**settings: Any) -> torch.Tensor:
        return torch.cat([batch.inputs[0] for batch in task(**settings).validation()])

    whole = sources(seed=0)
    assert torch.equal(whole, sources(seed=5))
    assert torch.equal(whole, sources(samples=16))
    for rank in range(3):
        assert torch.equal(sources(share=BatchShare(16, rank, 3)), whole[rank::3])
    assert len(sources(val_blocks=7)) == 7


def test_a_run_of_some_texts_reads_no_others() -> None:
    chosen = [
        {tuple(row) for row in batch.targets.tolist()} for batch in itertools.islice(task(samples=32).batches(1), 4)
    ]
    assert task(samples=32).steps_per_epoch == 2
    assert chosen[0] | chosen[1] == chosen[2] | chosen[3]


def test_more_texts_than_there_are_are_refused_with_what_would_work() -> None:
    with pytest.raises(InputError, match=r"^task\.samples: 1000000 were requested, only \d+ training"):
        task(samples=1_000_000)
    with pytest.raises(DataMissingError, match=r"batch_size 16 is more than the 10 training texts .*batch_size=10 or"):
        task(samples=10)
