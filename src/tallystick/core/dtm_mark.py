"""How a stored transaction shows that its answers are read by dtm's rule.

It came through dtm's interfaces, or is a message of `tallystick.dtm`, which has dtm's API for Python.

The mark is the beginning of the remark beside its calls. It needs no field in stored records or in requests between
brokers, so brokers of other versions keep reading both. Without it, a transaction's answers are read strictly.
"""

from __future__ import annotations

from tallystick.core.transaction import Undecided

DTM_GROUP = "dtm"  # the producer group of every transaction that was prepared through dtm's interfaces
DTM_TAG = "dtm"
DTM_TAG_FIELD = "rule"
DTM_REMARK = f'{{"{DTM_TAG_FIELD}":"{DTM_TAG}"'
MSG_REMARK = DTM_REMARK + "}"  # of a message of `tallystick.dtm`
_BEFORE_THE_MARK = '"query_prepared":"'  # in every remark that was written for a check-back before the mark existed


def has_dtm_calls(remark: str) -> bool:
    """Whether the answers to the calls with this remark follow dtm's rule."""
    return remark.startswith(DTM_REMARK)


def has_dtm_check(record: Undecided) -> bool:
    """Whether the answer to the check-back of this transaction follows dtm's rule.

    The group alone does not show it: native clients may have a group of that name.
    """
    if record.pushed is None:
        # Without steps, as older versions stored it: the outcome has no effect.
        return record.group == DTM_GROUP and not record.messages
    remark = record.pushed.remark
    return has_dtm_calls(remark) or (record.group == DTM_GROUP and _BEFORE_THE_MARK in remark)
