"""Memory and streams of a device extraction: two rooms, each with buffers on the device and their pinned twins.

On a CPU the same code runs with plain memory and without streams; every operation is then done when its call returns.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch

#: Signed, because torch indexes and subtracts signed integers on every device, and unsigned ones only on some.
SIGNED: dict[int, torch.dtype] = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
#: Numbers in the table for each block: addresses of old and new, units, and one that a finder chooses.
TABLE_COLUMNS = 4
#: Most blocks of a group.
MAX_GROUP_BLOCKS = 1 << 13


def entry_bytes(width: int) -> int:
    """Bytes that one changed unit takes in a room: position, old bits, step."""
    return 4 + 2 * width


class ExtractionBuffers:
    """What one group of blocks needs, twice: on the device, and pinned on the host.

    A group's finds are views of `data` for its width: positions (int32), old bits and steps (`SIGNED`), `entries` each.
    """

    def __init__(self, device: torch.device, data_bytes: int, runs: int, blocks: int) -> None:
        """Raises torch's own errors where memory cannot be had."""
        pinned = device.type == "cuda"
        self._data = torch.empty(data_bytes, dtype=torch.uint8, device=device)
        self._host_data = torch.empty(data_bytes, dtype=torch.uint8, pin_memory=pinned)
        #: (runs, 2): first entry and number of finds of each tile of each block.
        self.runs = torch.empty(runs, 2, dtype=torch.int32, device=device)
        self.host_runs = torch.empty(runs, 2, dtype=torch.int32, pin_memory=pinned)
        self.table = torch.empty(blocks, TABLE_COLUMNS, dtype=torch.int64, device=device)
        self.host_table = torch.empty(blocks, TABLE_COLUMNS, dtype=torch.int64, pin_memory=pinned)
        #: How many entries were asked for; one beside the kernel's own counter.
        self.cursor = torch.zeros(1, dtype=torch.int32, device=device)
        self._device = device
        self._staged: tuple[torch.Tensor, torch.Tensor] | None = None

    def entries(self, width: int) -> int:
        """How many finds fit."""
        return self._data.numel() // entry_bytes(width) // 16 * 16

    def arrays(self, width: int, *, host: bool = False) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Positions, old bits, steps: views of all entries."""
        n, data = self.entries(width), self._host_data if host else self._data
        cuts = (0, 4 * n, (4 + width) * n, (4 + 2 * width) * n)
        dtypes = (torch.int32, SIGNED[width], SIGNED[width])
        views = [data[a:b].view(dtype) for a, b, dtype in zip(cuts, cuts[1:], dtypes, strict=False)]
        return views[0], views[1], views[2]

    def staged(self, size: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Room (device, pinned) for `size` bytes of old bits that are streamed from the host; made when first asked."""
        if self._staged is None or self._staged[0].numel() < size:
            self._staged = (
                torch.empty(size, dtype=torch.uint8, device=self._device),
                torch.empty(size, dtype=torch.uint8, pin_memory=self._device.type == "cuda"),
            )
        return self._staged


class ExtractionStreams:
    """The streams of one extraction: `upload` feeds `compute`, whose finds go home by `copy`.

    Marks are events; waiting for one is the only thing that holds the host up.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._cuda = device.type == "cuda"
        if self._cuda:
            # What was computed on any stream before must be there to be read.
            torch.cuda.synchronize(device)
        self._streams = [_new_stream(device) for _ in range(3)] if self._cuda else []

    def upload(self) -> AbstractContextManager[object]:
        """Work on the stream that brings old bits to the device."""
        return self._on(0)

    def compute(self) -> AbstractContextManager[object]:
        """Work on the stream that extracts."""
        return self._on(1)

    def copy(self) -> AbstractContextManager[object]:
        """Work on the stream that brings finds to the host."""
        return self._on(2)

    def mark(self) -> StreamEvent:
        """What has been asked of the current stream up to now."""
        if not self._cuda:
            return StreamEvent(None)
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self._device))
        return StreamEvent(event)

    def _on(self, index: int) -> AbstractContextManager[object]:
        return _stream(self._streams[index]) if self._cuda else nullcontext()


class StreamEvent:
    """A point in a stream."""

    def __init__(self, event: torch.cuda.Event | None) -> None:
        self._event = event

    def hold(self) -> None:
        """Let the current stream wait for it; the host goes on."""
        if self._event is not None:
            self._event.wait()

    def wait(self) -> None:
        """Wait for it."""
        if self._event is not None:
            self._event.synchronize()


#: Nothing to wait for.
NO_EVENT = StreamEvent(None)


def _new_stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


@contextmanager
def _stream(stream: torch.cuda.Stream) -> Iterator[None]:
    with torch.cuda.stream(stream):
        yield
