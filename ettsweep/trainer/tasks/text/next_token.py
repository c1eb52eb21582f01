"""Prediction of the next token: a model reads a window of text, and predicts it shifted by one."""

import numpy as np
import torch

from ettsweep.trainer.specs import TextModel
from ettsweep.trainer.tasks.task import BatchShare, LoaderSettings
from ettsweep.trainer.tasks.text.blocks import TokenWindows
from ettsweep.trainer.tasks.text.corpus import Corpus
from ettsweep.trainer.tasks.text.language import Ids, LanguageTask, load_corpus
from ettsweep.trainer.tasks.text.text_task import NextTokenTask


class NextToken(LanguageTask):
    """The task of a run that predicts the next token; nothing is drawn for a text."""

    def __init__(
        self, spec: NextTokenTask, model: TextModel, corpus: Corpus, seed: int, device: torch.device, share: BatchShare
    ) -> None:
        self._tokens = model.tokens
        self._train, self._validation = (corpus.windows(side, model.tokens) for side in ("train", "val"))
        super().__init__(spec, corpus, self._train, self._validation, model.tokens, seed, device, share)

    def target_lengths(self, indices: Ids) -> Ids:
        return np.full(len(indices), self._tokens)

    def training_inputs(self, indices: Ids, epoch: int) -> tuple[Ids, ...]:
        return _inputs(self._train, indices)

    def validation_inputs(self, indices: Ids) -> tuple[Ids, ...]:
        return _inputs(self._validation, indices)


def _inputs(windows: TokenWindows, indices: Ids) -> tuple[Ids, ...]:
    """Return the tokens that are read and those to predict, (B, T) each."""
    window_BT = np.stack([windows.window(int(k)) for k in indices])
    return window_BT[:, :-1].copy(), window_BT[:, 1:].copy()  # contiguous, as torch wants them


def load_next_token(
    task: NextTokenTask, model: TextModel, seed: int, device: torch.device, share: BatchShare, loading: LoaderSettings
) -> NextToken:
    """Return the task of a run; see `load_corpus` for what it raises."""
    return NextToken(task, model, load_corpus(task, model, loading), seed, device, share)
