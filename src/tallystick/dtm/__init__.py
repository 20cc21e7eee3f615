"""The two-phase message in dtm's manner, for those who come from dtm.

    msg = Msg(client, gid).add("http://bank-b/trans-in", {"amount": 30})
    msg.do_and_submit_db(None, conn, lambda conn: conn.execute("update ..."))

and on the side that is called:

    BranchBarrier.from_query(request.args).call(conn, lambda conn: conn.execute("update ..."))

`tallystick.Client.transaction` does the same with less: see docs/how-to/move-from-dtm.md.
"""

from typing import TYPE_CHECKING

from tallystick.lazy_names import lazy_names

if TYPE_CHECKING:
    from tallystick.dtm import web
    from tallystick.dtm.branch import AsyncBranchBarrier, BranchBarrier
    from tallystick.dtm.errors import Duplicated, Failure, Ongoing
    from tallystick.dtm.msg import AsyncMsg, Msg

__all__ = [
    "AsyncBranchBarrier",
    "AsyncMsg",
    "BranchBarrier",
    "Duplicated",
    "Failure",
    "Msg",
    "Ongoing",
    "web",
]

if not TYPE_CHECKING:  # a type checker knows each name from above, and that there is no other
    __getattr__ = lazy_names(
        __name__,
        {
            "branch": ("AsyncBranchBarrier", "BranchBarrier"),
            "errors": ("Duplicated", "Failure", "Ongoing"),
            "msg": ("AsyncMsg", "Msg"),
            "web": (),
        },
    )
