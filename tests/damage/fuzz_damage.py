"""Damage to every file of an actor, a relay or a trainer: the right bits come of it, or a refusal of one line.

    python -m tests.damage.fuzz_damage --seeds 0:500
    python -m tests.damage.fuzz_damage --seeds 17
    setpriv --bounding-set=-dac_override,-dac_read_search python -m tests.damage.fuzz_damage  # permissions bind root

What is damaged, how, and when follows from the seed alone. Damage comes at rest, between two of a process's lives, and
while it runs: between any two actions, and at any of the points at which the engine may be ended.
"""

from __future__ import annotations

import argparse
import asyncio
import faulthandler
import os
import random
import sys
import tempfile
import time
import traceback
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

sys.path += [str(Path(__file__).parents[1] / folder) for folder in ("", "damage", "engines", "store", "trainer")]

from damage_parts import VERSIONS, Life, Published, one_line
from damages import damage_one
from trainer_parts import KEY, RUN, Arrays

from p2psync.errors import DigestMismatchError, P2PSyncError, StoreError
from p2psync.store.packs import Store
from p2psync.store.records import clear
from p2psync.trainer.run_state import RunState, load_run, save_run
from p2psync.trainer.versions.builder import LocalVersionBuilder

#: One case that takes longer (seconds) is a hang: the process is ended with a trace.
HANG = 120
#: Chunks that are fetched at most, as a multiple of all there are: damage costs a new copy, and not many.
MAX_FETCHED_FACTOR = 12


@dataclass
class Report:
    """The outcomes of a run of cases."""

    cases: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)
    damages: int = 0


class Case:
    """One seed."""

    def __init__(self, seed: int, published: Published, place: Path) -> None:
        self.dice = random.Random(f"damage {seed}")
        self.seed = seed
        self.root = place
        self.done: list[str] = []
        self.refused = ""
        self._published = published
        self._hooks = 0
        self._at_hook = -1

    def run(self) -> None:
        """Damage, and see. Raises AssertionError, or whatever the code under test should not raise."""
        if self.seed % 4 == 3:
            self._run_trainer()
        else:
            asyncio.run(self._run_node(relay=self.seed % 4 == 2))

    # ---- an actor or a relay

    async def _run_node(self, *, relay: bool) -> None:
        dice = self.dice
        life = self._open(relay=relay)
        start = dice.randrange(VERSIONS)
        for version in range(start + 1):
            assert await life.follow(version, lambda: None), f"no damage yet: {life.troubles}"
        for _ in range(dice.choice([1, 1, 2])):
            when = dice.choice(["at rest", "at rest", "idle", "between", "at a hook"])
            if when == "at rest":
                await life.close()
                for _ in range(dice.choice([1, 1, 3])):
                    self._damage(when)
                try:
                    life = self._open(relay=relay)
                except P2PSyncError as error:
                    self._refuse(str(error))
                    return
            elif when == "idle":
                self._damage(when)
            elif when == "at a hook":
                self._at_hook = self._hooks + dice.randrange(20)
            rounds = dice.randrange(1, 30) if when == "between" else -1

            def between() -> None:
                nonlocal rounds
                rounds -= 1
                if rounds == 0:
                    self._damage("between")

            arrived = False
            for version in range(dice.randrange(start, VERSIONS), VERSIONS):
                arrived = await life.follow(version, between)
            self._at_hook = -1
            self._judge(life, arrived)
            if self.refused:
                return
        await life.close()
        try:
            life = self._open(relay=relay)
        except P2PSyncError as error:
            self._refuse(str(error))
            return
        self._judge(life, await life.follow(VERSIONS - 1, lambda: None))
        await life.close()

    def _judge(self, life: Life, arrived: bool) -> None:
        one_line(life.troubles)
        fetched = sum(len(chunks) for chunks in self._published.chunks.values())
        assert life.counts["fetched"] <= MAX_FETCHED_FACTOR * fetched, f"{life.counts['fetched']} chunks were fetched"
        if not arrived:
            assert life.troubles, "it did not get there, and said nothing"
            self._refuse(life.troubles[-1])
            return
        life.engine.inspect()
        if not os.path.islink(self.root / "current") and os.path.lexists(self.root / "current"):  # noqa: PTH114
            self._refuse(life.troubles[-1])
            return
        try:
            life.check_claim()
        except AssertionError:
            # A write to the slot that the engine is changing cannot be told from its own; the scrub reads every bit.
            if not any(line.startswith(("at ", "between")) and not line.startswith("at rest") for line in self.done):
                raise
            assert not life.engine.scrub(), "wrong bits are live, and the scrub finds nothing"

    def _open(self, *, relay: bool) -> Life:
        return Life(self._published, self.root, relay=relay, hook=self._hook)

    def _hook(self, name: str) -> None:
        self._hooks += 1
        if self._hooks == self._at_hook:
            self._damage(f"at {name}")

    def _damage(self, when: str) -> None:
        what = damage_one(self.root, self.dice, _spared)
        self.done.append(f"{when}: {what}")

    def _refuse(self, line: str) -> None:
        one_line([line])
        assert ":" in line, f"says nothing of what to do: {line}"
        self.refused = line

    # ---- a trainer

    def _run_trainer(self) -> None:
        dice = self.dice
        source = Arrays(a=40_000, b=300, c=1)
        store, builder = self._open_trainer()
        try:
            for _ in range(dice.randrange(1, 4)):
                builder.make(source.step())
            if dice.random() < 0.7:
                builder.close()
                store.close()
                for _ in range(dice.choice([1, 1, 3])):
                    self._damage_trainer("at rest")
                store, builder = self._open_trainer()
            else:
                self._damage_trainer("idle")
            for _ in range(2):
                made = builder.make(source.step(), profile=dice.choice(["fast", "tight"]))
                assert made is not None
            _check_versions(store, builder, source, self.root)
        except (StoreError, DigestMismatchError) as error:
            self._refuse(str(error))
        finally:
            builder.close()
            store.close()

    def _open_trainer(self) -> tuple[Store, LocalVersionBuilder]:
        told: list[str] = []
        store = Store(self.root / "packs")
        try:
            found = load_run(self.root / "run.json", store, told.append)
            run = found.run if store.packs() else RUN
            save_run(self.root / "run.json", RunState(run, found.epoch + 1, found.node))
            builder = LocalVersionBuilder(store, self.root / "snapshot", KEY, run, found.epoch + 1)
        except BaseException:
            store.close()
            raise
        one_line(told + store.diagnostics)
        return store, builder

    def _damage_trainer(self, when: str) -> None:
        what = damage_one(self.root, self.dice, _spared, unseen=lambda path: path.name.startswith("bits-"))
        self.done.append(f"{when}: {what}")


def _spared(path: Path) -> bool:
    return path.name == "lock"


def _check_versions(store: Store, builder: LocalVersionBuilder, source: Arrays, root: Path) -> None:
    """The newest version is the source, and the packs alone lead there."""
    assert builder.position is not None
    assert builder.position.digest == source.digest
    other = LocalVersionBuilder(store, root / "other" / "snapshot", KEY, builder.position.run, 9)
    if other.position is None or other.position.digest != source.digest:
        # The packs lead there no more, as after a damaged one was forgotten: a trainer then writes an anchor.
        other.close()
        builder.make_anchor()
        other = LocalVersionBuilder(store, root / "another" / "snapshot", KEY, builder.position.run, 9)
    assert other.position is not None
    assert other.position.digest == source.digest
    for name, bits in source.bits.items():
        assert (other.snapshot.units(name) == bits).all()
    other.close()


def run_cases(seeds: range, report: Report, on: Path | None = None) -> None:
    """Runs these seeds, and collects their outcomes. on: a directory of the file system to be used."""
    with tempfile.TemporaryDirectory(prefix="p2psync-damage-", dir=on) as folder:
        place = Path(folder)
        published = Published(place / "published")
        for seed in seeds:
            case = Case(seed, published, place / "case")
            faulthandler.dump_traceback_later(HANG, exit=True)
            try:
                case.run()
            except (StoreError, P2PSyncError) as error:
                report.faults.append(f"{seed}: {case.done}: refused where it should not: {error!r}")
            except Exception:
                report.faults.append(f"{seed}: {case.done}: {traceback.format_exc()}")
            finally:
                faulthandler.cancel_dump_traceback_later()
            report.cases += 1
            report.damages += len(case.done)
            if case.refused:
                report.refused[case.refused.replace(str(place / "case"), "DIR")] += 1
            clear(place / "case")


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", default="0:100", help="FIRST:END, or one")
    parser.add_argument("--on", type=Path, help="a directory of the file system to be used [that of temporary files]")
    given = parser.parse_args()
    command = "python -m tests.damage.fuzz_damage --seeds"
    print(f"{command} {given.seeds}", flush=True)
    first, _, end = given.seeds.partition(":")
    report, began = Report(), time.monotonic()
    run_cases(range(int(first), int(end) if end else int(first) + 1), report, given.on)
    print(f"{report.cases} cases, {report.damages} damages, {time.monotonic() - began:.0f} s")
    for line, count in report.refused.most_common():
        print(f"  refused {count} ×: {line}")
    for fault in report.faults:
        print(f"FAULT {fault}\n  again: {command} {fault.split(':', 1)[0]}")
    return 1 if report.faults else 0


if __name__ == "__main__":
    sys.exit(main())
