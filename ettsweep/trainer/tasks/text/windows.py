"""Windows of consecutive tokens of one side of a corpus, for models that predict the next token."""

import numpy as np
from numpy.typing import NDArray

from ettsweep.token_ids import START
from ettsweep.trainer.tasks.text.shards import Shards


class TokenWindows:
    """All windows of one side of a corpus, in its order; the index takes four bytes of memory a document.

    The documents of a shard are one stream, with [start] before each. A window has `tokens` tokens and the one after
    them, which is the first of the next window; what is left at the end of a shard is dropped.
    """

    def __init__(self, shards: Shards, tokens: int) -> None:
        self._shards, self._tokens = shards, tokens
        # By shard, the place of each document's [start] in the stream.
        self._starts: list[NDArray[np.uint32]] = []
        # Number of windows before each shard; the last entry is the number of all.
        self._first = np.zeros(len(shards) + 1, np.int64)
        for shard in range(len(shards)):
            texts = shards[shard]
            document_ends = np.concatenate((np.zeros(1, np.uint32), texts.sentence_ends))[texts.document_ends]
            starts = np.concatenate((np.zeros(1, np.uint32), document_ends[:-1]))
            self._starts.append((starts + np.arange(len(starts))).astype(np.uint32))
            length = len(texts.tokens) + len(starts)
            self._first[shard + 1] = self._first[shard] + max(0, length - 1) // tokens

    def __len__(self) -> int:
        return int(self._first[-1])

    def window(self, index: int) -> NDArray[np.int64]:
        """Return the tokens of a window and the one after them, [tokens + 1].

        Raises:
            IndexError: the index is out of range.
            CorruptError: the file of its shard cannot be read any more.
        """
        if not 0 <= index < len(self):
            raise IndexError(index)
        shard = int(np.searchsorted(self._first, index, side="right")) - 1
        begin = (index - int(self._first[shard])) * self._tokens
        end = begin + self._tokens + 1
        # `begin` and `end` as uint32: else numpy would convert all starts in each call.
        before, until = np.searchsorted(self._starts[shard], np.array([begin, end], np.uint32))
        window = np.full(end - begin, START, np.int64)
        is_token = np.ones(end - begin, np.bool_)
        is_token[self._starts[shard][before:until].astype(np.int64) - begin] = False
        window[is_token] = self._shards[shard].tokens[begin - before : end - until]
        return window
