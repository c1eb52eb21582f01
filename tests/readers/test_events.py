"""Event files against TensorBoard's own reader and writer."""

import math
import re
import struct
from pathlib import Path
from typing import Any

import pytest

from ettsweep.readers.events import records, scalars
from ettsweep.readers.registry import reader_of
from ettsweep.readers.source import MetricSource

RECORDED = sorted((Path(__file__).parent / "data" / "tensorboard" / "run").rglob("events*"))


def ours(path: Path) -> list[tuple[float, int, str, float]]:
    events = [event for _, event in records(path.read_bytes(), str(path)) if event is not None]
    return [tuple(scalar) for event in events for scalar in scalars(event)]


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.parent.name)
def test_scalars_are_those_that_tensorboard_reads(path: Path) -> None:
    loader = pytest.importorskip("tensorboard.backend.event_processing.event_file_loader")
    expected = []
    for event in loader.EventFileLoader(str(path)).Load():
        for value in event.summary.value:
            if value.HasField("tensor") and value.metadata.plugin_data.plugin_name == "scalars":
                expected.append((event.wall_time, event.step, value.tag, value.tensor.float_val[0]))
    assert ours(path) == expected
    assert expected


def test_tensors_of_one_number_are_scalars(tmp_path: Path) -> None:
    """As TensorFlow 2 writes them, and `add_scalar(..., new_style=True)`."""
    event_pb2: Any = pytest.importorskip("tensorboard.compat.proto.event_pb2")
    tensor_pb2: Any = pytest.importorskip("tensorboard.compat.proto.tensor_pb2")
    event = event_pb2.Event(wall_time=12.5, step=2**40)
    for tag, tensor in {
        "float": tensor_pb2.TensorProto(dtype=1, float_val=[0.25]),
        "content": tensor_pb2.TensorProto(dtype=1, tensor_content=struct.pack("<f", 0.5)),
        "double": tensor_pb2.TensorProto(dtype=2, double_val=[0.1]),
        "two": tensor_pb2.TensorProto(dtype=1, float_val=[1, 2]),
        "text": tensor_pb2.TensorProto(dtype=7, string_val=[b"x"]),
    }.items():
        event.summary.value.add(tag=tag, tensor=tensor)
    event.summary.value.add(tag="ü/nan", simple_value=math.nan)
    read = {tag: (wall_s, step, value) for wall_s, step, tag, value in scalars(event.SerializeToString())}
    assert math.isnan(read.pop("ü/nan")[2])
    assert read == {"float": (12.5, 2**40, 0.25), "content": (12.5, 2**40, 0.5), "double": (12.5, 2**40, 0.1)}


def source_of(folder: Path, data: bytes) -> MetricSource:
    (folder / "events.out.tfevents.1").write_bytes(data)
    return MetricSource(reader_of("tensorboard"), folder)


@pytest.mark.parametrize(
    ("offset", "resumed_at", "note"),
    [
        (20, 3, "events.out.tfevents.1: left out a damaged event: its checksum is wrong"),
        (2, None, "wrong checksum: .* damaged, .*; left out the rest of the file"),
    ],
    ids=["content", "length"],
)
def test_of_a_damaged_file_the_whole_events_are_read(
    tmp_path: Path, offset: int, resumed_at: int | None, note: str
) -> None:
    whole = RECORDED[0].read_bytes()
    rows = source_of(tmp_path, whole).rows()
    ends = [end for end, event in records(whole, "") if event and list(scalars(event))]
    data = bytearray(whole)
    data[ends[1] + offset] ^= 1  # in the third one with a scalar
    source = source_of(tmp_path, bytes(data))
    assert source.rows() == rows[:2] + (rows[resumed_at:] if resumed_at else [])
    assert re.search(note, source.notes()[0])
    with (tmp_path / "events.out.tfevents.1").open("ab") as file:  # it grows on
        file.write(whole[ends[0] : ends[1]])
    assert len(source.rows()) == (offset == 20)


def test_an_event_that_belongs_to_no_step_is_left_out(tmp_path: Path) -> None:
    event_pb2: Any = pytest.importorskip("tensorboard.compat.proto.event_pb2")
    writer_of: Any = pytest.importorskip("tensorboard.summary.writer.record_writer").RecordWriter
    with (tmp_path / "events.out.tfevents.1").open("wb") as file:
        for step, tag in ((-1, "hp_metric"), (5, "val_loss"), (-1, "val_loss")):
            event = event_pb2.Event(wall_time=1.0, step=step)
            event.summary.value.add(tag=tag, simple_value=0.5)
            writer_of(file).write(event.SerializeToString())
    source = MetricSource(reader_of("tensorboard"), tmp_path)
    assert source.rows() == [{"step": 5, "val_loss": 0.5}]
    assert "val_loss: the step -1 is not a whole number; left out" in source.notes()[0]
