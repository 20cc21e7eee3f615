"""The barrier in MongoDB, for services whose truth is there. Needs a replica set, for its transactions.

Needs PyMongo: `pip install 'tallystick[mongodb]'`. What has been tested and what has not: docs/how-to/mongodb.md.
"""

from typing import TYPE_CHECKING

from tallystick.lazy_names import lazy_names

try:
    import pymongo as _driver  # noqa: F401
except ModuleNotFoundError as _missing:
    raise ModuleNotFoundError(
        "tallystick.barrier.mongo needs PyMongo; install it with `pip install 'tallystick[mongodb]'`", name="pymongo"
    ) from _missing

if TYPE_CHECKING:
    from tallystick.barrier.mongo.barrier import MongoBarrier, MongoDecider, create_collection
    from tallystick.barrier.mongo.documents import COLLECTION

__all__ = ["COLLECTION", "MongoBarrier", "MongoDecider", "create_collection"]

if not TYPE_CHECKING:  # a type checker knows each name from above, and that there is no other
    __getattr__ = lazy_names(
        __name__,
        {
            "barrier": ("MongoBarrier", "MongoDecider", "create_collection"),
            "documents": ("COLLECTION",),
        },
    )
