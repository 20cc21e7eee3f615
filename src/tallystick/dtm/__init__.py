"""The two-phase message in dtm's manner, for those who come from dtm.

    msg = Msg(client, gid).add("http://bank-b/trans-in", {"amount": 30})
    msg.do_and_submit_db(None, conn, lambda conn: conn.execute("update ..."))

and on the side that is called:

    BranchBarrier.from_query(request.args).call(conn, lambda conn: conn.execute("update ..."))

`tallystick.Client.transaction` does the same with less: see docs/how-to/move-from-dtm.md.
"""

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
