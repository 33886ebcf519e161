"""Compiles the codec before the first version comes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection

from p2psync.observe.events import CodecCompiled, CodecCompiling, Event, Note
from p2psync.warmup import Warmup, compiled


class CodecCompiler:
    """widths: of the units that are coded here (bytes)."""

    def __init__(self, widths: Collection[int], emit: Callable[[Event], None]) -> None:
        self._widths = widths
        self._warmup = Warmup(widths)
        self._emit = emit
        self._loop = asyncio.get_running_loop()

    async def run(self, in_thread: Callable[[Callable[[], None]], Awaitable[None]]) -> None:
        """Compiles in a thread, that of the engine where there is one, so that its first call finds all compiled."""
        began, cold = self._loop.time(), not compiled(self._widths)
        if cold:
            self._emit(CodecCompiling())

        def tell(seconds: float) -> None:
            self._loop.call_soon_threadsafe(self._tell, seconds)

        await in_thread(lambda: self._warmup.run(tell))
        if cold:
            self._emit(CodecCompiled(self._loop.time() - began))

    def stop(self) -> None:
        """Ends the compilation."""
        self._warmup.stop()

    def _tell(self, seconds: float) -> None:
        if seconds >= 1:
            self._emit(Note(f"still compiling the codec: {seconds:.0f} s; versions wait for it"))
