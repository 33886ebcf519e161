"""Memory and streams of a device extraction: scratch buffers on the device, and their pinned copies on the host.

On a CPU the same code runs with plain memory and without streams; every operation is then done when its call returns.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch

#: Integer dtype of the bits by width (bytes). Signed, because torch supports unsigned ones only on some devices.
SIGNED: dict[int, torch.dtype] = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
#: Columns of the table of blocks: addresses of old and new bits, units, and one that a finder chooses.
TABLE_COLUMNS = 4
#: Maximum blocks of a group.
MAX_GROUP_BLOCKS = 1 << 13


def entry_bytes(width: int) -> int:
    """Returns the bytes that one changed unit takes in the buffers: position, old bits, step."""
    return 4 + 2 * width


class ExtractionBuffers:
    """Scratch buffers of one group of blocks, on the device and pinned on the host.

    The changes of a group are views of one buffer, by the group's width: positions (int32), old bits and steps
    (`SIGNED`), `entries` each.
    """

    def __init__(self, device: torch.device, data_bytes: int, runs: int, blocks: int) -> None:
        """Raises torch's own errors if there is not enough memory."""
        pinned = device.type == "cuda"
        self._data = torch.empty(data_bytes, dtype=torch.uint8, device=device)
        self._host_data = torch.empty(data_bytes, dtype=torch.uint8, pin_memory=pinned)
        #: (runs, 2) int32: first entry and number of changes of each tile of each block.
        self.runs = torch.empty(runs, 2, dtype=torch.int32, device=device)
        self.host_runs = torch.empty(runs, 2, dtype=torch.int32, pin_memory=pinned)
        self.table = torch.empty(blocks, TABLE_COLUMNS, dtype=torch.int64, device=device)
        self.host_table = torch.empty(blocks, TABLE_COLUMNS, dtype=torch.int64, pin_memory=pinned)
        #: The kernel's atomic counter of entries.
        self.cursor = torch.zeros(1, dtype=torch.int32, device=device)
        self._device = device
        self._upload_buffers: tuple[torch.Tensor, torch.Tensor] | None = None

    def entries(self, width: int) -> int:
        """Returns how many changes of this width (bytes) fit."""
        return self._data.numel() // entry_bytes(width) // 16 * 16

    def arrays(self, width: int, *, host: bool = False) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Returns views of all entries: positions, old bits, steps."""
        n, data = self.entries(width), self._host_data if host else self._data
        cuts = (0, 4 * n, (4 + width) * n, (4 + 2 * width) * n)
        dtypes = (torch.int32, SIGNED[width], SIGNED[width])
        views = [data[a:b].view(dtype) for a, b, dtype in zip(cuts, cuts[1:], dtypes, strict=False)]
        return views[0], views[1], views[2]

    def upload_buffers(self, size: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns buffers (device, pinned) for `size` bytes of old bits that are streamed from the host."""
        if self._upload_buffers is None or self._upload_buffers[0].numel() < size:
            self._upload_buffers = (
                torch.empty(size, dtype=torch.uint8, device=self._device),
                torch.empty(size, dtype=torch.uint8, pin_memory=self._device.type == "cuda"),
            )
        return self._upload_buffers


class ExtractionStreams:
    """The CUDA streams of one extraction: `upload` feeds `compute`, whose changes go to the host by `copy`.

    The host waits for events only.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._cuda = device.type == "cuda"
        if self._cuda:
            # Results of earlier work on any stream must be readable.
            torch.cuda.synchronize(device)
        self._streams = [_new_stream(device) for _ in range(3)] if self._cuda else []

    def upload(self) -> AbstractContextManager[object]:
        """Selects the stream that copies old bits to the device."""
        return self._on(0)

    def compute(self) -> AbstractContextManager[object]:
        """Selects the stream that finds changes."""
        return self._on(1)

    def copy(self) -> AbstractContextManager[object]:
        """Selects the stream that copies changes to the host."""
        return self._on(2)

    def record(self) -> StreamEvent:
        """Returns an event that is reached once all work queued on the current stream is done."""
        if not self._cuda:
            return StreamEvent(None)
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self._device))
        return StreamEvent(event)

    def _on(self, index: int) -> AbstractContextManager[object]:
        return _stream(self._streams[index]) if self._cuda else nullcontext()


class StreamEvent:
    """A point in a stream; None is a point that is already reached."""

    def __init__(self, event: torch.cuda.Event | None) -> None:
        self._event = event

    def block_stream(self) -> None:
        """Makes the current stream wait for the event; the host does not wait."""
        if self._event is not None:
            self._event.wait()

    def wait(self) -> None:
        """Waits on the host for the event."""
        if self._event is not None:
            self._event.synchronize()


#: An event that is already reached.
NO_EVENT = StreamEvent(None)


def _new_stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


@contextmanager
def _stream(stream: torch.cuda.Stream) -> Iterator[None]:
    with torch.cuda.stream(stream):
        yield
