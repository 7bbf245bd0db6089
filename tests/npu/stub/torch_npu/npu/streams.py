"""Streams of the device."""


class Stream:
    """A stream with the attribute names of all versions."""

    npu_stream, stream_id, device_index, device_type = 7, 7, 0, 20
