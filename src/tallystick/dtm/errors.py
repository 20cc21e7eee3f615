"""What a business function says when it does not simply succeed; `status` is how dtm has it told over HTTP."""

from __future__ import annotations

from tallystick.core.errors import TallystickError, TransactionFailed


class Failure(TallystickError):
    """The business refuses; the local transaction is rolled back."""

    status = 409
    code = "failure"


class Ongoing(TallystickError):
    """Not finished yet; ask again after the usual interval."""

    status = 425
    code = "ongoing"


class Duplicated(TransactionFailed):
    """The gid has an outcome already: a check-back came first, or the gid was used before."""

    code = "duplicated"
