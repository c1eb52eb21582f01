"""What tasks with text are: the fields that change the numbers of a run, and which models they fit."""

from typing import Annotated, Literal

from pydantic import Field

from ettsweep.runs.spec import ModelSpec, TaskSpec, TextModel
from ettsweep.schema import OmitFromIdAt, Positive
from ettsweep.token_ids import LEAST_BPE, vocabulary_size

CorpusDigest = Annotated[str, Field(pattern=r"^[0-9a-f]{12}$")]


class DenoisingTask(TaskSpec):
    """Span denoising: what a text was, from what a corruption has left of it (BART's text infilling).

    Attributes:
        mask_ratio: share of the words that spans are drawn for; they overlap, so less is removed.
        span_mean: mean of the Poisson distribution of span lengths, in words.
        permute_sentences: whether the sentences of a corrupted text change places.
        val_blocks: validation texts that are measured, at most; they are spread evenly over all.
        samples: training texts that are used, chosen once and for all; None for all.
        corpus: 12 hex digits of the tokenised text; the planner fills in those of the data at hand.
    """

    kind: str
    mask_ratio: Annotated[float, Field(ge=0, le=1)] = 0.3
    span_mean: Annotated[float, Field(ge=0.01, le=1000)] = 3.0
    permute_sentences: bool = True
    val_blocks: Positive = 5000
    samples: Annotated[Positive | None, OmitFromIdAt(None)] = None
    corpus: CorpusDigest | None = None


class PydocTask(DenoisingTask):
    """The English documentation that comes with Python (`pydoc_data.topics`)."""

    kind: Literal["pydoc"] = "pydoc"


class TextTask(DenoisingTask):
    """Any text that `ettsweep data text` has tokenised; where it lies is not part of the spec."""

    kind: Literal["text"] = "text"


def misfits(task: DenoisingTask, model: ModelSpec, batch_size: int) -> list[str]:
    """Return why a model cannot be trained on text."""
    if not isinstance(model, TextModel):
        return [f"model: task {task.kind} has text, which {model.kind} cannot read; an encdec is expected"]
    min_vocabulary = vocabulary_size(LEAST_BPE)
    if model.vocabulary < min_vocabulary:
        return [
            f"model.vocabulary: {model.vocabulary} is below {min_vocabulary}, the {LEAST_BPE} bytes and special tokens"
        ]
    if task.samples and batch_size > task.samples:
        return [f"batch_size: {batch_size} is more than the {task.samples} training texts"]
    return []
