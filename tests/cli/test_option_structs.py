"""Commands that take their options as one struct."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import pytest
import typer

from p2psync.cli.option_structs import takes_options


@dataclass(frozen=True, kw_only=True)
class Paint:
    """A group of options."""

    colour: Annotated[str, typer.Option(help="Of it.")] = "red"
    coats: Annotated[int, typer.Option(help="How many.", min=1)] = 1


@dataclass(frozen=True, kw_only=True)
class Job:
    """The options of a command."""

    what: Annotated[str, typer.Argument()]
    hurry: Annotated[bool, typer.Option("--hurry")] = False
    paint: Paint
    days: Annotated[list[int] | None, typer.Option()] = None


def run(*words: str) -> Job:
    """The struct that a command of these words is given."""
    jobs: list[Job] = []
    app = typer.Typer(rich_markup_mode=None)

    @app.command()
    @takes_options(Job)
    def work(job: Job) -> None:
        """Do it."""
        jobs.append(job)

    app(words, standalone_mode=False)
    return jobs[0]


def test_a_struct_has_the_values_of_its_options_and_of_its_groups() -> None:
    assert run("wall") == Job(what="wall", paint=Paint())
    given = ("--days", "1", "--coats", "2", "wall", "--hurry", "--days", "3", "--colour", "blue")
    assert run(*given) == Job(what="wall", hurry=True, paint=Paint(colour="blue", coats=2), days=[1, 3])


def test_a_bound_of_an_option_in_a_group_holds() -> None:
    with pytest.raises(typer.BadParameter, match=r"x>=1|greater than or equal to 1"):
        run("wall", "--coats", "0")


def test_the_options_of_a_group_stand_in_its_place() -> None:
    app = typer.Typer(rich_markup_mode=None)
    app.command()(takes_options(Job)(lambda job: None))
    names = [option.name for option in typer.main.get_command(app).params]
    assert names[:5] == ["what", "hurry", "colour", "coats", "days"]
