"""Chooses the profile with which the last actor commits soonest: a cost model, fed by measured publishes. Pure.

For each profile, with N units in the model, C of them expected to change, b bits for each, and the slowest link of all
members giving L bytes a second:

    E = (e + e_unit · N + e_change · C) / cores     encoding
    D = (d + d_unit · N + d_change · C) / cores     decoding and applying, at the trainer and at each actor
    X = b · C / 8 / L                               every byte crosses every slow link about once; 0 if L is not known
    T = E + D + max(X, D) + min(X, D) / chunks

A version is announced once it is whole and its own trainer has decoded it (E + D). From then on its transfer and its
decoding are a pipeline: the slower stage sets the time, and the other one adds one chunk. C is the count that the last
delta changed, b the bits that the profile last took. Core seconds start from a calibration and are scaled by measured
publishes; a profile that was not measured yet gets the mean scale of the others.

The profile with the smaller T is taken, at a tie the one of fewer bytes; once one is in use, another must be better by
`HYSTERESIS` and `MIN_GAIN_SECONDS` to take its place.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from p2psync.delta.container import PROFILES
from p2psync.errors import UsageError
from p2psync.membership.records import Member
from p2psync.store.encoding import MAX_DELTA_CHUNK_BYTES

AUTO = "auto"
#: Another profile must be faster than the one in use by this share, and by so many seconds: smaller gains are noise.
HYSTERESIS = 0.1
MIN_GAIN_SECONDS = 0.05
#: Weight of the newest measurement.
_NEW = 0.3
#: The share of units that change in the very first step (FP32 masters have not yet settled: 4 % at lr 1e-6).
_FIRST_SHARE = 0.04


@dataclass(frozen=True, slots=True)
class CodecCost:
    """unit: core seconds for each unit scanned. change: for each changed unit. fixed: for files, at any size."""

    unit: float
    change: float
    fixed: float = 0.02

    def seconds(self, units: int, changed: float) -> float:
        """Returns the seconds in all, on one core."""
        return self.fixed + self.unit * units + self.change * changed


#: One core that reads both arrays at 15 GB/s of model, through 1.06 and 4.1 % changed (`p2psync bench codec`).
ENCODE = {"fast": CodecCost(0.18e-9, 5.6e-9), "tight": CodecCost(0.20e-9, 12.6e-9)}
APPLY = {"fast": CodecCost(0.06e-9, 4.3e-9), "tight": CodecCost(0.12e-9, 11e-9)}
#: Bits for each changed unit at 1 % changed.
BITS = {"fast": 9.9, "tight": 7.0}


@dataclass(frozen=True, slots=True)
class ProfileForecast:
    """The expected cost of a profile, in seconds. seconds: until the last actor commits. nbytes: of its chunks."""

    profile: str
    seconds: float
    encode: float
    transfer: float
    decode: float
    nbytes: float


@dataclass(frozen=True, slots=True)
class ProfileChoice:
    """The profile to publish in, and why, in one line for people."""

    profile: str
    why: str
    forecasts: tuple[ProfileForecast, ...] = ()


class ProfileChooser:
    """Chooses a profile for each delta of one trainer, and learns from each delta that was made."""

    def __init__(self, profile: str = AUTO, *, cores: int = 1) -> None:
        """profile: `AUTO`, or the one to take always. cores: that encoding and decoding each use.

        Raises `UsageError` for an unknown profile.
        """
        if profile not in (AUTO, *PROFILES):
            raise UsageError(f"--profile {profile}: choose {', '.join(PROFILES)} or {AUTO}")
        self._forced = None if profile == AUTO else profile
        self._cores = cores
        self._share = _FIRST_SHARE
        self._bits: dict[str, float] = {}
        self._encode: dict[str, float] = {}
        self._apply: dict[str, float] = {}
        self._current: str | None = None

    def choose(self, units: int, link: float | None) -> ProfileChoice:
        """Returns the profile for a delta of a model of `units` units.

        link: bytes a second of the slowest useful link, None: not known.
        """
        if self._forced is not None:
            return ProfileChoice(self._forced, "as told")
        found = [self.forecast(profile, units, link) for profile in PROFILES]
        best = min(found, key=lambda f: (f.seconds, f.nbytes))
        now = next((f for f in found if f.profile == self._current), None)
        if now is not None and best.seconds > min((1 - HYSTERESIS) * now.seconds, now.seconds - MIN_GAIN_SECONDS):
            best = now
        self._current = best.profile
        return ProfileChoice(best.profile, _why(best, found, link), tuple(found))

    def forecast(self, profile: str, units: int, link: float | None) -> ProfileForecast:
        """Returns the expected cost of one profile, by the module's formula. units, link: see `choose`."""
        changed = self._share * units
        nbytes = changed * self.bits(profile) / 8
        encode = ENCODE[profile].seconds(units, changed) * _scale(self._encode, profile) / self._cores
        decode = APPLY[profile].seconds(units, changed) * _scale(self._apply, profile) / self._cores
        transfer = nbytes / link if link else 0.0
        chunks = max(1.0, nbytes / MAX_DELTA_CHUNK_BYTES)
        total = encode + decode + max(transfer, decode) + min(transfer, decode) / chunks
        return ProfileForecast(profile, total, encode, transfer, decode, nbytes)

    def bits(self, profile: str) -> float:
        """Returns bits for each changed unit: as last seen, else calibrated and scaled as the other profile's."""
        if profile in self._bits:
            return self._bits[profile]
        return BITS[profile] * _scale({p: bits / BITS[p] for p, bits in self._bits.items()}, profile)

    def seen(self, profile: str, units: int, changed: int, nbytes: int) -> None:
        """Take in a delta whose coding times are not known. units, changed: of the model. nbytes: of its chunks."""
        if units and changed:
            self._share = changed / units
            _mix(self._bits, profile, 8 * nbytes / changed)

    def made(
        self, profile: str, units: int, changed: int, nbytes: int, encode_seconds: float, apply_seconds: float
    ) -> None:
        """Take in a delta that was made: as `seen`, and the seconds that encoding and applying took."""
        if not units or not changed:
            return
        self.seen(profile, units, changed, nbytes)
        _mix(self._encode, profile, self._cores * encode_seconds / ENCODE[profile].seconds(units, changed))
        _mix(self._apply, profile, self._cores * apply_seconds / APPLY[profile].seconds(units, changed))


def slowest_link(members: Iterable[Member]) -> float | None:
    """Returns the lowest fetch rate that an actor measured (bytes a second); None if none measured one."""
    rates = [member.fetch_rate for member in members if member.info.role == "actor" and member.fetch_rate]
    return float(min(rates)) if rates else None


def _scale(seen: dict[str, float], profile: str) -> float:
    """Returns the ratio of measured to calibrated: of this profile, else the mean of the others, else 1."""
    if profile in seen:
        return seen[profile]
    return sum(seen.values()) / len(seen) if seen else 1.0


def _mix(seen: dict[str, float], profile: str, value: float) -> None:
    before = seen.get(profile)
    seen[profile] = value if before is None else (1 - _NEW) * before + _NEW * value


def _why(best: ProfileForecast, found: list[ProfileForecast], link: float | None) -> str:
    slow = "no link was ever busy" if link is None else f"the slowest link gives {8e-6 * link:.4g} Mbit/s"
    others = ", ".join(f"{f.seconds:.3g} s in {f.profile}" for f in found if f is not best)
    return f"{slow}: the last commit is expected {best.seconds:.3g} s after the publish, {others}"
