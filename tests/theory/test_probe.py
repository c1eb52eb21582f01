import pytest
from support.smallest import SMALLEST_OF_TEXT

from ettsweep.theory.probe import make_probe, small_model
from ettsweep.trainer.models.registry import model_spec


def test_a_small_model_is_the_model_with_few_tokens_a_small_vocabulary_and_no_dropout() -> None:
    vit, bart = model_spec("vit-b16"), model_spec("bart-large")
    assert small_model(vit, 3) == vit.model_copy(update={"image_size": 48, "depth": 3})
    assert small_model(model_spec("vit-digits"), None) == model_spec("vit-digits"), "it has few already"
    changed = {"depth": 4, "tokens": 8, "vocabulary": 2048, "dropout": 0.0, "attention_dropout": 0.0}
    assert small_model(bart, None) == bart.model_copy(update=changed)


@pytest.mark.parametrize("name", SMALLEST_OF_TEXT)
def test_nobody_reads_the_quiet_tokens_and_those_to_predict(name: str) -> None:
    probe = make_probe(small_model(model_spec(name), 1))
    *texts, target = probe.batch.inputs
    read = {token for text in texts for token in text.flatten().tolist()}
    assert not read & set(probe.unread_K.tolist())
    assert set(probe.trained_K.tolist()) == set(target.flatten().tolist()) <= set(probe.unread_K.tolist())
    assert len(read) < texts[0].numel()  # some come several times
    assert min(read) > 3  # no special ones
