"""Specs of the tasks on text, and their compatibility with models."""

from typing import Annotated, Literal

from pydantic import Field

from ettsweep.schema import OmitFromIdAt, Positive
from ettsweep.token_ids import LEAST_BPE, vocabulary_size
from ettsweep.trainer.specs import ModelSpec, TaskSpec, TextModel

CorpusDigest = Annotated[str, Field(pattern=r"^[0-9a-f]{12}$")]


class DenoisingTask(TaskSpec):
    """Span denoising: reconstruct a text from its corruption (BART's text infilling).

    Attributes:
        mask_ratio: total length of the drawn spans, as a share of the words; they may overlap, so fewer are removed.
        span_mean: mean of the Poisson distribution of span lengths, in words.
        permute_sentences: whether corruption shuffles the sentences of a text.
        val_blocks: largest number of validation texts; they are spread evenly over the validation side.
        samples: number of training texts to use, the same ones for every run; None for all.
        corpus: 12 hex digits that bind the run to a tokenised text; None takes the text at hand when runs are planned.
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
    """Any text that `ettsweep data text` has tokenised; its path is not part of the spec."""

    kind: Literal["text"] = "text"


def incompatibilities(task: DenoisingTask, model: ModelSpec, batch_size: int) -> list[str]:
    """Return the reasons why a model cannot be trained on this task; empty if it can."""
    if not isinstance(model, TextModel):
        return [f"model: task {task.kind} needs a text model (kind encdec), got {model.kind}"]
    min_vocabulary = vocabulary_size(LEAST_BPE)
    if model.vocabulary < min_vocabulary:
        return [
            f"model.vocabulary: {model.vocabulary} is below {min_vocabulary}: {LEAST_BPE} bytes and the special tokens"
        ]
    if task.samples and batch_size > task.samples:
        return [f"batch_size: {batch_size} is more than the {task.samples} training texts"]
    return []
