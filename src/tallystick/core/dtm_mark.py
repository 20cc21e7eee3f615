"""How a stored transaction shows that it came through dtm's interfaces, so that its answers are read by dtm's rule.

The mark is the beginning of the remark beside its calls. It needs no field in stored records or in requests between
brokers, so brokers of other versions keep reading both. Without it, a transaction's answers are read strictly.
"""

from __future__ import annotations

from tallystick.core.transaction import Undecided

DTM_GROUP = "dtm"  # the producer group of every transaction that was prepared through dtm's interfaces
DTM_TAG = "dtm"
DTM_TAG_FIELD = "rule"
DTM_REMARK = f'{{"{DTM_TAG_FIELD}":"{DTM_TAG}"'
_BEFORE_THE_MARK = '"query_prepared":"'  # in every remark that was written for a check-back before the mark existed


def has_dtm_calls(remark: str) -> bool:
    """Whether the calls with this remark came through dtm's interfaces."""
    return remark.startswith(DTM_REMARK)


def has_dtm_check(record: Undecided) -> bool:
    """Whether the check-back of this transaction came through dtm's interfaces.

    The group alone does not show it: native clients may have a group of that name.
    """
    if record.pushed is None:
        return record.group == DTM_GROUP and not record.messages  # without steps: the outcome has no effect
    remark = record.pushed.remark
    return has_dtm_calls(remark) or (record.group == DTM_GROUP and _BEFORE_THE_MARK in remark)
