"""Specs of the tasks on text, data times objective, and their compatibility with models."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from ettsweep.schema import OmitFromIdAt, Positive
from ettsweep.token_ids import LEAST_BPE, vocabulary_size
from ettsweep.trainer.specs import ModelSpec, TaskSpec, TextModel

CorpusDigest = Annotated[str, Field(pattern=r"^[0-9a-f]{12}$")]

Source = Literal["pydoc", "tokens"]
"""The text: the English documentation of Python (`pydoc_data.topics`), or any tokenised by `ettsweep data text`, whose
path is not part of the spec."""

DENOISING_KIND: dict[str, str] = {"pydoc": "pydoc", "tokens": "text"}
"""The kind of span denoising in ids, by its text: it was the only objective once."""


class TextTask(TaskSpec):
    """An objective on text.

    Attributes:
        val_blocks: largest number of validation texts; they are spread evenly over the validation side.
        samples: number of training texts to use, the same ones for every run; None for all.
        corpus: 12 hex digits that bind the run to a tokenised text; None takes the text at hand when runs are planned.
    """

    val_blocks: Positive = 5000
    samples: Annotated[Positive | None, OmitFromIdAt(None)] = None
    corpus: CorpusDigest | None = None


class DenoisingTask(TextTask):
    """Span denoising: reconstruct a text from its corruption (BART's text infilling).

    In a grid file, `{kind: denoise, text: pydoc}`, or for short its kind, `pydoc` or `text` (of tokens).

    Attributes:
        mask_ratio: total length of the drawn spans, as a share of the words; they may overlap, so fewer are removed.
        span_mean: mean of the Poisson distribution of span lengths, in words.
        permute_sentences: whether corruption shuffles the sentences of a text.
    """

    kind: Literal["pydoc", "text"] = "text"
    mask_ratio: Annotated[float, Field(ge=0, le=1)] = 0.3
    span_mean: Annotated[float, Field(ge=0.01, le=1000)] = 3.0
    permute_sentences: bool = True

    @model_validator(mode="before")
    @classmethod
    def _kind_of_its_text(cls, data: object) -> object:
        """Turn `{kind: denoise, text: pydoc}` into the kind: equal runs must have one id."""
        if not isinstance(data, dict) or not (data.get("kind") == "denoise" or "text" in data):
            return data
        text = data.get("text", "tokens")
        if not isinstance(text, str) or text not in DENOISING_KIND:
            raise ValueError(f"text: pydoc or tokens is expected, got {text!r}")
        return {key: value for key, value in data.items() if key != "text"} | {"kind": DENOISING_KIND[text]}


class NextTokenTask(TextTask):
    """Prediction of each token from those before it, in windows of consecutive tokens.

    Attributes:
        text: which text.
    """

    kind: Literal["next_token"] = "next_token"
    text: Source = "tokens"


def reads_pydoc(task: TextTask) -> bool:
    """Return whether a task reads Python's documentation, rather than tokenised text."""
    return (task.text if isinstance(task, NextTokenTask) else task.kind) == "pydoc"


def incompatibilities(task: TextTask, model: ModelSpec, batch_size: int) -> list[str]:
    """Return the reasons why a model cannot be trained on this task; empty if it can."""
    is_next_token = isinstance(task, NextTokenTask)
    if not isinstance(model, TextModel) or model.reads_source is is_next_token:
        reader = "a decoder, such as kind gpt" if is_next_token else "a model that reads a source, such as kind encdec"
        return [f"model: task {task.kind} needs {reader}, got {model.kind}"]
    min_vocabulary = vocabulary_size(LEAST_BPE)
    if model.vocabulary < min_vocabulary:
        return [
            f"model.vocabulary: {model.vocabulary} is below {min_vocabulary}: {LEAST_BPE} bytes and the special tokens"
        ]
    if task.samples and batch_size > task.samples:
        return [f"batch_size: {batch_size} is more than the {task.samples} training texts"]
    return []
