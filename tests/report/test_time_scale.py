"""The decay of a step and its time scale, by hand."""

from support.made_runs import MakeSpec, decoder_run, text_run

from ettsweep.report.time_scale import TimeScale, time_scale
from ettsweep.runs.point import Point


def test_time_scale_is_in_steps_and_in_epochs_of_images(make_spec: MakeSpec) -> None:
    spec = make_spec(batch_size=32)  # of 797 images: 24 steps, the rest left out
    assert spec.info.steps_per_epoch == 24
    scale = time_scale(Point.of(lr=2.0**-4, wd=2.0**-6), spec.info)
    assert scale == TimeScale(2.0**-10, 1024.0, 1024 / 24, None)
    assert (scale.lr_wd_text, scale.text) == ("2^-10", "1024 steps, 42.7 epochs")
    assert time_scale(Point.of(lr=1.0, wd=0.0), spec.info).text == "no decay"
    sgd = make_spec(optimizer={"kind": "sgd", "momentum": 0.75})
    assert time_scale(Point.of(lr=2.0**-4, wd=2.0**-6), sgd.info).steps == 256, "momentum takes each step four times"
    windows, padded = decoder_run().info, text_run().info
    assert time_scale(Point.of(lr=2.0**-2, wd=2.0**-3), windows).tokens == 32 * windows.tokens_per_step == 32 * 9 * 24
    assert time_scale(Point.of(lr=2.0**-2, wd=2.0**-3), padded) == TimeScale(2.0**-5, 32.0, None, None)
