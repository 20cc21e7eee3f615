"""One family of errors for every layer.

The docstring of a class is its default message. `status` is how the HTTP API answers, `code` is the stable
word that programs compare, and `retryable` tells a client whether the same request may succeed later.
"""

from __future__ import annotations

from typing import Any, ClassVar


class TallystickError(Exception):
    """Something went wrong in Tallystick."""

    status: ClassVar[int] = 500
    code: ClassVar[str] = "error"
    retryable: ClassVar[bool] = False

    def __init__(self, detail: str = "", *, field: str | None = None, **extra: Any) -> None:
        self.extra = extra
        self.field = field
        self.detail = detail or self.title
        super().__init__(self.detail)

    @property
    def title(self) -> str:
        """What kind of error it is, in one line."""
        return (type(self).__doc__ or "").strip().splitlines()[0]


class InvalidRequest(TallystickError):
    """The request does not have the form the broker expects."""

    status = 400
    code = "invalid_request"


class TooLarge(TallystickError):
    """The request is larger than the broker's limit."""

    status = 413
    code = "too_large"


class NotAllowed(TallystickError):
    """The broker's operator has not allowed this."""

    status = 403
    code = "not_allowed"


class Unauthenticated(TallystickError):
    """The broker does not know who is asking."""

    status = 401
    code = "unauthenticated"


class Unproven(Unauthenticated):
    """The request does not prove that a broker sent it."""

    code = "unproven"

    @property
    def reason(self) -> str:
        """One of missing, malformed, unknown_key, skewed, elsewhere, altered, replayed, full."""
        return str(self.extra.get("reason", ""))


class Forbidden(TallystickError):
    """This is not for the one who asks."""

    status = 403
    code = "forbidden"


class NotFound(TallystickError):
    """There is no such thing on this broker."""

    status = 404
    code = "not_found"


class MethodNotAllowed(TallystickError):
    """The address exists, but not for this method."""

    status = 405
    code = "method_not_allowed"


class Conflict(TallystickError):
    """The request contradicts what is already durable."""

    status = 409
    code = "conflict"


class OutcomeConflict(Conflict):
    """The transaction already has the other outcome; the first one stands for ever."""

    code = "outcome_conflict"


class AlreadyResolved(Conflict):
    """The transaction is resolved; it cannot be prepared again."""

    code = "already_resolved"


class DifferentContent(Conflict):
    """The gid, or the number of a batch, is taken by something with other content."""

    code = "different_content"


class PartUnavailable(Conflict):
    """A named part is missing, expired, already claimed or incomplete; nothing was committed."""

    code = "part_unavailable"


class StaleLease(Conflict):
    """The lease has passed to another consumer or was settled already."""

    code = "stale_lease"


class OffsetMoved(Conflict):
    """The stored offset is not the expected one; another consumer moved it."""

    code = "offset_moved"


class OffsetOutOfRange(TallystickError):
    """The offset is no longer (or not yet) in the queue."""

    status = 416
    code = "offset_out_of_range"


class Busy(TallystickError):
    """The broker has as much work waiting as it will hold; try again in a moment."""

    status = 429
    code = "busy"
    retryable = True


class Draining(TallystickError):
    """The broker is shutting down and takes no new work."""

    status = 503
    code = "draining"
    retryable = True


class DamagedData(TallystickError):
    """Stored bytes are not what was written."""

    code = "damaged_data"


class StorageFailed(TallystickError):
    """The store does not answer or takes no writes at the moment; nothing was acknowledged."""

    status = 503
    code = "storage_failed"
    retryable = True

    @property
    def title(self) -> str:
        if self.extra.get("stopped"):
            return "The store could not make data durable and has stopped; the broker must be restarted."
        return super().title


class Moved(StorageFailed):
    """The store has another owner now; ask again, any broker of the cluster knows which."""

    code = "moved"


class StorageFull(TallystickError):
    """The store has no room for this request; nothing of it was stored."""

    status = 507
    code = "storage_full"
    retryable = True


class DataDirectoryError(TallystickError):
    """The data directory cannot be used."""

    code = "data_directory"


class DirectoryInUse(DataDirectoryError):
    """A broker works on the data directory."""

    code = "directory_in_use"


class ConfigError(TallystickError):
    """The configuration is not valid."""

    code = "config"


class BrokerUnavailable(TallystickError):
    """No answer from the broker; whether it acted is unknown."""

    status = 503
    code = "unavailable"
    retryable = True


class BrokerUnreachable(BrokerUnavailable):
    """The broker could not be reached; nothing was sent."""

    code = "unreachable"


class BrokerUntrusted(BrokerUnreachable):
    """What answers is not a broker to trust (an untrusted certificate, another protocol); nothing was sent."""

    code = "untrusted"
    retryable = False


class OutcomeUnknown(TallystickError):
    """The local commit's result is unknown; the check-back will find the truth, nothing was guessed."""

    code = "outcome_unknown"


class TransactionFailed(TallystickError):
    """The transaction was decided as rolled back before it could commit."""

    code = "transaction_failed"


class AlreadyCommitted(TransactionFailed):
    """An earlier attempt under this gid has committed; this one changed nothing."""

    code = "already_committed"


# --- Of Spark. They are here so that the last line of each traceback in its logs begins with the name of this module.


class DataLoss(TallystickError):
    """Messages that should have been read are gone."""

    code = "data_loss"


class DamagedArchive(TallystickError):
    """The archive does not hold what its manifests say."""

    code = "damaged_archive"


class ArchiveUnwritable(TallystickError):
    """The archive's directory cannot be written to."""

    code = "archive_unwritable"


class Incomplete(TallystickError):
    """The broker's answer was not the range that was asked for."""

    code = "incomplete"


def _family(root: type[TallystickError]) -> dict[str, type[TallystickError]]:
    known = {root.code: root}
    for child in root.__subclasses__():
        known.update(_family(child))
    return known


# Only the classes above: what other modules derive is never sent, and need not be made from a detail and a field.
_SENT = _family(TallystickError)


def error_from_code(code: str, detail: str, field: str | None = None) -> TallystickError:
    """Rebuild on the client what the broker raised; a word that nobody knows gives the root of the family."""
    return _SENT.get(code, TallystickError)(detail, field=field)
