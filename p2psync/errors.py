"""The exceptions of p2psync: a small tree whose every message is one line that says what to do.

The command line prints `str(error)` and exits 1 (2 for `UsageError`); daemons log it and carry on where they can.
"""


class P2PSyncError(Exception):
    """Base of every error that p2psync raises on purpose."""


class UsageError(P2PSyncError):
    """The caller asked for something that cannot be asked (wrong flags, wrong configuration)."""


class FormatError(P2PSyncError):
    """Bytes that are not what they claim to be: a chunk, a manifest, a frame, a safetensors file."""


class BaseMismatchError(P2PSyncError):
    """A delta was offered to weights that are not its base, or two deltas do not meet end to end."""


class DigestMismatchError(P2PSyncError):
    """Weights do not have the digest that the manifest signs; the staged version does not become live."""


class TrustError(P2PSyncError):
    """A signature that is wrong, or a key that is not trusted."""


class ReplayError(TrustError):
    """A rightly signed manifest of the past, or of an epoch that was fenced off."""


class FencedError(P2PSyncError):
    """A later epoch has taken the run over; this trainer must stop publishing."""


class LeaseError(P2PSyncError):
    """A lease that has ended or was never granted; join again."""


class StoreError(P2PSyncError):
    """The disk refused: full, read-only, or holding something that is not ours."""


class DamagedError(StoreError):
    """A file of this node differs from the written one: cut short, altered, unreadable, or no file at all."""


class HubError(P2PSyncError):
    """The hub cannot be reached, or gave an answer that no hub gives."""


class LineageFullError(HubError):
    """The hub holds as many manifests as it takes; retire old ones, then announce again."""


class RanksError(P2PSyncError):
    """A rank that publishes together with this one failed or went; nothing was published."""


class EngineError(P2PSyncError):
    """The place where the weights live refused a stage, commit or roll-back."""


class UnvouchedError(EngineError):
    """Live weights whose bits nobody can vouch for; nothing may be served from them."""


class ModuleError(EngineError, UsageError):
    """A torch module that cannot be published or kept live as it is."""


class MisfitError(EngineError):
    """A version whose tensors are not those of the place that it is for; another module or other names are needed."""


class WaitTimeoutError(P2PSyncError, TimeoutError):
    """An awaited event did not come in time; the message says what is missing."""
