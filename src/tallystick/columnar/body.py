"""Bodies in columns: messages of one queue as two record batches, one of their values and one of all else.

Apart, because a reader who does not want the values need not read them: they are nearly all of the bytes. Each is kept
with a checksum of its own, which is verified whenever it is read; what stores the bytes need not look at them.

    4 bytes   the mark of this form
    4         which columns there are, one bit each
    4         the number of messages
    4         the place of the first one in its request, if they follow each other there
    8         XXH3 of all other bytes
    the rest  an Arrow IPC message: a record batch, not compressed
"""

from __future__ import annotations

from functools import cache
from struct import Struct as Packer
from typing import Any

from tallystick.columnar.arrow import pyarrow
from tallystick.core.errors import DamagedData

_HEAD = Packer("<4sIII")
_CHECK = Packer("<Q")
_MARK = b"TSC1"
_BEGIN = _HEAD.size + _CHECK.size
# In the order of their bits, which is for ever. A column that is not there is one without values.
_COLUMNS = ("sequence", "key", "headers", "tag", "value")
VALUE = 1 << _COLUMNS.index("value")


class Encoded:
    """One stored record batch, verified: what is asked of it is made when it is asked."""

    def __init__(self, stored: bytes, where: str) -> None:
        self.bits, self.rows, self.start = _verified(stored, where)
        self._stored = stored

    @property
    def columns(self) -> dict[str, Any]:
        """Arrow arrays by name, which lie in the stored bytes."""
        pa = pyarrow()
        if not self.bits:
            return {}
        schema = _schema(self.bits)
        message = pa.py_buffer(self._stored).slice(_BEGIN)
        return dict(zip(schema.names, pa.ipc.read_record_batch(message, schema).columns, strict=True))

    def sequences(self, columns: dict[str, Any]) -> Any:
        """The places of the messages in the request that brought them."""
        given = columns.get("sequence")
        return pyarrow().array(range(self.start, self.start + self.rows), "int32") if given is None else given


def encode(columns: dict[str, Any], rows: int, start: int = 0) -> bytes:
    """The form in which arrays of these names are stored."""
    pa = pyarrow()
    bits = sum(1 << _COLUMNS.index(name) for name in columns)
    payload = b""
    if bits:
        schema = _schema(bits)
        payload = pa.record_batch([columns[name] for name in schema.names], schema=schema).serialize()
    head = _HEAD.pack(_MARK, bits, rows, start)
    return b"".join((head, _CHECK.pack(_checksum(head, payload)), payload))


def checksum(content: bytes) -> int:
    """Of a request, to know it when it comes again."""
    import xxhash

    return int(xxhash.xxh3_64_intdigest(content))


@cache
def _schema(bits: int) -> Any:
    pa = pyarrow()
    kinds = {
        "sequence": pa.int32(),
        "key": pa.string(),
        "headers": pa.map_(pa.string(), pa.string()),
        "tag": pa.string(),
        "value": pa.binary(),
    }
    return pa.schema([pa.field(name, kinds[name]) for at, name in enumerate(_COLUMNS) if bits >> at & 1])


def _checksum(head: bytes, payload: Any) -> int:
    import xxhash

    digest = xxhash.xxh3_64(head)
    digest.update(payload)
    return int(digest.intdigest())


def _verified(stored: bytes, where: str) -> tuple[int, int, int]:
    if len(stored) < _BEGIN:
        raise DamagedData(f"{where}: of the stored bytes only {len(stored)} are there; restore them from a copy")
    head = stored[: _HEAD.size]
    mark, bits, rows, start = _HEAD.unpack(head)
    (check,) = _CHECK.unpack_from(stored, _HEAD.size)
    if _checksum(head, memoryview(stored)[_BEGIN:]) != check:
        raise DamagedData(
            f"{where}: the stored bytes are damaged (their checksum is another); restore them from a copy"
        )
    if mark != _MARK:
        raise DamagedData(f"{where}: the form {mark!r} of a body is not known to this version of Tallystick")
    return bits, rows, start
