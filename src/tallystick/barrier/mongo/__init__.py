"""The barrier in MongoDB, for services whose truth is there. Needs a replica set, for its transactions.

Needs PyMongo: `pip install 'tallystick[mongodb]'`. What has been tested and what has not: docs/how-to/mongodb.md.
"""

try:
    import pymongo as _driver  # noqa: F401
except ModuleNotFoundError as _missing:
    raise ModuleNotFoundError(
        "tallystick.barrier.mongo needs PyMongo; install it with `pip install 'tallystick[mongodb]'`", name="pymongo"
    ) from _missing

from tallystick.barrier.mongo.barrier import MongoBarrier, MongoDecider, create_collection
from tallystick.barrier.mongo.documents import COLLECTION

__all__ = ["COLLECTION", "MongoBarrier", "MongoDecider", "create_collection"]
