"""Options from environment variables: reads them, ignores those of others, and names bad values and mistyped names.

Kubernetes sets variables for every service of a namespace: a service `p2psync-trainer` gives its pods
`P2PSYNC_TRAINER_PORT=tcp://10.0.0.1:7071`, which is no option of ours. Such a value is ignored, with a line.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Collection, Mapping
from typing import TypeVar

from p2psync.errors import UsageError

T = TypeVar("T")
#: Prefix and names of the variables by which a vLLM engine joins: …JOIN, …TRUST (keys, separated by commas), …
VLLM_PREFIX = "P2PSYNC_VLLM_"
VLLM_NAMES = ("JOIN", "TRUST", "STORE", "HOST", "PORT", "ADVERTISE", "REGION", "TOKEN", "HOLD")
_SERVICE_LINK = re.compile(r"(tcp|udp|sctp)://", re.IGNORECASE)
#: The ends of the names of variables that Kubernetes sets for a service.
_SERVICE_NAME = re.compile(r"_(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT(_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?)$")
#: How alike an unknown and a known name must be for the known one to be offered, 0 to 1: a letter or two of a word, or
#: a word too few. Names share their prefix, so less would offer unlike ones.
_ALIKE = 0.8


def is_service_link(value: str) -> bool:
    """Returns whether a variable's value is what Kubernetes sets for a service's port."""
    return _SERVICE_LINK.match(value) is not None


def ignored_line(variable: str, value: str) -> str:
    """Returns the message about an ignored variable."""
    return (
        f"{variable}={value} is ignored: Kubernetes sets it for a service of that name, and it is no option "
        "(a pod with enableServiceLinks: false has none)"
    )


def unknown_line(variable: str, known: Collection[str]) -> str:
    """Returns the message about a variable whose name is none of the known ones; "" if it resembles none of them, and
    for a variable that Kubernetes sets."""
    near = difflib.get_close_matches(variable, known, n=1, cutoff=_ALIKE)
    if variable in known or not near or _SERVICE_NAME.search(variable):
        return ""
    return f"{variable} in the environment is ignored: it is no option; did you mean {near[0]}?"


def bad_value(setting: str, place: str, expected: str) -> UsageError:
    """Returns the refusal of a value. setting: name and value. place: where it stands. expected: its form, in words."""
    return UsageError(f"{setting} in {place}: {expected}; set it so, or leave it out")


class Environment:
    """The variables that begin with a prefix. An empty value counts as none."""

    def __init__(self, prefix: str, variables: Mapping[str, str], on_ignored: Callable[[str], None]) -> None:
        """on_ignored: told in one line of a variable that is asked for and ignored."""
        self._prefix = prefix
        self._variables = variables
        self._on_ignored = on_ignored

    def tell_unknown(self, names: Collection[str]) -> None:
        """Tells of each variable whose name resembles one of these, and is none of them."""
        known = [self._prefix + name for name in names]
        for variable in self._variables:
            if variable.startswith(self._prefix) and (line := unknown_line(variable, known)):
                self._on_ignored(line)

    def text(self, name: str, default: str = "") -> str:
        """A variable's value, `default` if it is not set or is no option's."""
        variable = self._prefix + name
        value = self._variables.get(variable, "")
        if is_service_link(value):
            self._on_ignored(ignored_line(variable, value))
            return default
        return value or default

    def number(self, name: str, default: int, least: int, most: int) -> int:
        """A whole number from `least` to `most`. Raises `UsageError` that names the variable."""
        text = self.text(name, str(default)).strip()
        if not re.fullmatch(r"-?[0-9]{1,18}", text) or not least <= int(text) <= most:
            raise self._bad(name, text, f"it should be a whole number from {least} to {most}")
        return int(text)

    def checked(self, name: str, check: Callable[[str], object], expected: str, default: str = "") -> str:
        """A variable's value that `check` takes. Raises `UsageError` that names the variable where it does not."""
        text = self.text(name, default)
        try:
            if text != default:
                check(text)
        except UsageError:
            raise self._bad(name, text, expected) from None
        return text

    def _bad(self, name: str, text: str, expected: str) -> UsageError:
        return bad_value(f"{self._prefix}{name}={text!r}", "the environment", expected)
