"""Streams of the device."""


class Stream:
    """One, with its names of all versions."""

    npu_stream, stream_id, device_index, device_type = 7, 7, 0, 20
