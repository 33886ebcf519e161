"""Options from environment variables: reads them, ignores those of others, and names bad values.

Kubernetes sets variables for every service of a namespace: a service `p2psync-trainer` gives its pods
`P2PSYNC_TRAINER_PORT=tcp://10.0.0.1:7071`, which is no option of ours. Such a value is ignored, with a line.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import TypeVar

from p2psync.errors import UsageError

T = TypeVar("T")
_SERVICE_LINK = re.compile(r"(tcp|udp|sctp)://", re.IGNORECASE)


def is_service_link(value: str) -> bool:
    """Returns whether a variable's value is what Kubernetes sets for a service's port."""
    return _SERVICE_LINK.match(value) is not None


def ignored_line(variable: str, value: str) -> str:
    """Returns the message about an ignored variable."""
    return (
        f"{variable}={value} is ignored: Kubernetes sets it for a service of that name, and it is no option "
        "(a pod with enableServiceLinks: false has none)"
    )


def bad_value(variable: str, value: str, expected: str) -> UsageError:
    """Returns the refusal of a variable's value. expected: the right form of the value, in words."""
    return UsageError(f"{variable}={value!r} in the environment: {expected}; set it so, or unset it")


class Environment:
    """The variables that begin with a prefix. An empty value counts as none."""

    def __init__(self, prefix: str, variables: Mapping[str, str], on_ignored: Callable[[str], None]) -> None:
        """on_ignored: told in one line of a variable that is asked for and ignored."""
        self._prefix = prefix
        self._variables = variables
        self._on_ignored = on_ignored

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
            raise bad_value(self._prefix + name, text, f"it should be a whole number from {least} to {most}")
        return int(text)

    def checked(self, name: str, check: Callable[[str], object], expected: str, default: str = "") -> str:
        """A variable's value that `check` takes. Raises `UsageError` that names the variable where it does not."""
        text = self.text(name, default)
        try:
            if text != default:
                check(text)
        except UsageError:
            raise bad_value(self._prefix + name, text, expected) from None
        return text
