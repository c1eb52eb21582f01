import pytest
from support.smallest import SMALLEST, SMALLEST_OF_TEXT

from ettsweep.theory.expectations import mean_between_samples, mean_over_positions
from ettsweep.theory.probe import SAMPLES, make_probe, small_model
from ettsweep.trainer.models.encdec_spec import EncDecSpec
from ettsweep.trainer.models.registry import model_spec, parameter_count
from ettsweep.trainer.models.vit import patchify
from ettsweep.trainer.models.vit_spec import VitSpec


def test_a_small_model_is_the_model_with_few_tokens() -> None:
    model, selected = small_model(model_spec("vit-b16"), None), model_spec("vit-b16")
    assert isinstance(model, VitSpec)
    assert model == selected.model_copy(update={"image_size": 48})
    assert small_model(selected, 3) == model.model_copy(update={"depth": 3})
    assert small_model(model_spec("vit-digits"), None) == model_spec("vit-digits")  # has few already


def test_text_has_a_small_vocabulary_and_no_dropout() -> None:
    model, selected = small_model(model_spec("bart-large"), None), model_spec("bart-large")
    assert isinstance(model, EncDecSpec)
    changed = {"depth": 4, "tokens": 8, "vocabulary": 2048, "dropout": 0.0, "attention_dropout": 0.0}
    assert model == selected.model_copy(update=changed)
    assert parameter_count(model) < parameter_count(selected) / 2


def test_all_widths_see_one_batch() -> None:
    for named in SMALLEST.values():
        model = small_model(named, 1)
        first, second = (make_probe(model.model_copy(update={"width": n})) for n in (32, 64))
        pairs = zip(
            (*first.batch.inputs, first.batch.targets), (*second.batch.inputs, second.batch.targets), strict=True
        )
        assert all(a.equal(b) for a, b in pairs)


def test_images_are_alike_in_part() -> None:
    model = small_model(model_spec("vit-b16"), 1)
    assert isinstance(model, VitSpec)
    patches = patchify(make_probe(model).batch.inputs[0], model.patch_size).flatten(0, 1).double().numpy()
    kernel = patches @ patches.T / patches.shape[1]
    # A quarter each is common to all, to a place, to an image, and to nothing; 768 numbers tell to a few hundredths.
    assert abs(mean_over_positions(kernel) - 1) < 0.1
    assert abs(mean_between_samples(SAMPLES)(kernel) - (0.25 + 0.25 / 9)) < 0.1
    assert abs(kernel[0, 1] - 0.5) < 0.15


@pytest.mark.parametrize("name", SMALLEST_OF_TEXT)
def test_nobody_reads_the_quiet_tokens_and_those_to_predict(name: str) -> None:
    probe = make_probe(small_model(model_spec(name), 1))
    *texts, target = probe.batch.inputs
    read = {token for text in texts for token in text.flatten().tolist()}
    assert not read & set(probe.unread_K.tolist())
    assert set(probe.trained_K.tolist()) == set(target.flatten().tolist()) <= set(probe.unread_K.tolist())
    assert len(read) < texts[0].numel()  # some come several times
    assert min(read) > 3  # no special ones
