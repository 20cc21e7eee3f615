"""The key space. Every number is big-endian, so that byte order is number order.

    tx     t <gid>                         a transaction: Prepared or Resolved
           p <part> 0 <index>              half messages of an unclaimed part
           c <gid>                         calls of a transaction that has an outcome
    log    <topic id> <queue> <last>       a chunk, or a reference to a body, under the offset of its last message
           <topic id> ffff <number>        a body: messages of a part, for one queue
    body   <topic id> <number> 0           a body in columns: all but the values of its messages
           <topic id> <number> 1           their values
    index  T <name>                        topic              N <topic id> <queue>   next offset
           C <via:name>                    check channel      S <topic id> <queue>   first kept offset
           d <channel> <time> <gid>        due check          w <channel>            where due scans may begin
           k <gid>                         check state        a <created> <gid>      unresolved and checked before
           P <gid>                         parked             e <time> <part>        part expiry
           y <time> <sequence>             delayed message    o <sequence>           outcomes of one group commit
           G <name>                        consumer group     g <gt> <queue>         receive cursor
           l <gt> <queue> <offset>         lease              v <gt> <time> <queue> <offset>  visible again
           q <gt> <queue>                  stored offset      M <name>               counters, id, half a copy
           b <topic id> <queue> <last>     its body's key     L <app>                last batch of an application
           x <gid>                         state of its calls U <name>               call topic
           D <channel> <time> <call>       due call           i <time> <call>        call under lease
           X <call>                        parked call        z <time> <gid>         tombstone kept for its calls
           E <name>                        how a deleted topic ended
           O <number>                      an origin of transactions
           K <name>                        token              A <time> <sequence>    line of the audit log

`gt` is <group id> <topic id>; `call` is <gid> 0 <index>.

Each kind of key makes its keys, reads them again and tells the ranges [first, end) that it lies in. Nobody else
knows a byte of them.
"""

from __future__ import annotations

from struct import Struct as Packer

Range = tuple[bytes, bytes]

_U16 = Packer(">H")
_U32 = Packer(">I")
_U64 = Packer(">Q")
_QUEUE = Packer(">IH")
_CHUNK = Packer(">IHQ")
_LINE = Packer(">IQ")
_GT = Packer(">II")
_VISIBLE = Packer(">QHQ")

u16 = _U16.pack
u32 = _U32.pack
u64 = _U64.pack
group_topic = _GT.pack


def read_u16(data: bytes, at: int = 0) -> int:
    return int(_U16.unpack_from(data, at)[0])


def read_u32(data: bytes, at: int = 0) -> int:
    return int(_U32.unpack_from(data, at)[0])


def read_u64(data: bytes, at: int = 0) -> int:
    return int(_U64.unpack_from(data, at)[0])


def behind(key: bytes) -> bytes:
    """The first key behind this one."""
    return key + b"\0"


def _under(prefix: bytes) -> Range:
    """All keys that begin with `prefix`."""
    trimmed = prefix.rstrip(b"\xff")
    return prefix, trimmed[:-1] + bytes([trimmed[-1] + 1])


def _call(gid: str, index: int) -> bytes:
    return gid.encode() + b"\0" + u16(index)


# --- shapes ------------------------------------------------------------------------------------------------------


class Kind:
    """All keys that begin with one byte; some numbers may follow, and then mostly a name."""

    def __init__(self, byte: bytes, numbers: int = 0) -> None:
        self._byte = byte
        self._name_at = 1 + numbers
        self.all: Range = _under(byte)

    def holds(self, key: bytes) -> bool:
        return key.startswith(self._byte)

    def name(self, key: bytes) -> str:
        return key[self._name_at :].decode()


class Named(Kind):
    def key(self, name: str) -> bytes:
        return self._byte + name.encode()

    def after(self, name: str) -> Range:
        return behind(self.key(name)), self.all[1]


class Timed(Kind):
    """In order of a time."""

    def __init__(self, byte: bytes) -> None:
        super().__init__(byte, 8)

    def at(self, key: bytes) -> int:
        return read_u64(key, 1)

    def before(self, at: int) -> Range:
        return self._byte, self._byte + u64(at)

    def since(self, at: int) -> Range:
        return self._byte + u64(at), self.all[1]


class TimedName(Timed):
    def key(self, at: int, name: str) -> bytes:
        return self._byte + u64(at) + name.encode()


class ChannelLine(Kind):
    """One line for each channel, in order of time."""

    def __init__(self, byte: bytes) -> None:
        super().__init__(byte, 12)

    def at(self, key: bytes) -> int:
        return read_u64(key, 5)

    def line_of(self, key: bytes) -> Range:
        """All of its channel."""
        return _under(key[:5])

    def since(self, channel: int, at: int) -> Range:
        return self._byte + _LINE.pack(channel, at), _under(self._byte + u32(channel))[1]

    def between(self, channel: int, start: int, end: int) -> Range:
        return self._byte + _LINE.pack(channel, start), self._byte + _LINE.pack(channel, end)


class OfCall(Kind):
    def call(self, key: bytes) -> tuple[str, int]:
        """The gid of its transaction and its index there."""
        return key[self._name_at : -3].decode(), read_u16(key, len(key) - 2)


class OfQueue(Kind):
    def key(self, topic_id: int, queue: int) -> bytes:
        return self._byte + _QUEUE.pack(topic_id, queue)

    def where(self, key: bytes) -> tuple[int, int]:
        return read_u32(key, 1), read_u16(key, 5)

    def of_topic(self, topic_id: int) -> Range:
        return _under(self._byte + u32(topic_id))


class OfGroup(Kind):
    """What a group has in a topic; `gt` is the pair of them, see `group_topic`."""

    def of(self, gt: bytes) -> Range:
        return _under(self._byte + gt)

    def of_queue(self, gt: bytes, queue: int) -> Range:
        return _under(self._byte + gt + u16(queue))

    def of_group(self, group_id: int) -> Range:
        return _under(self._byte + u32(group_id))

    def topic_id(self, key: bytes) -> int:
        return read_u32(key, 5)


# --- those that have a shape of their own --------------------------------------------------------------------------


class _Channel(Kind):
    def key(self, via: str, name: str) -> bytes:
        return self._byte + f"{via}:{name}".encode()

    def via_and_name(self, key: bytes) -> tuple[str, str]:
        via, _, name = self.name(key).partition(":")
        return via, name


class _Mark(Kind):
    def key(self, channel: int) -> bytes:
        return self._byte + u32(channel)

    def channel(self, key: bytes) -> int:
        return read_u32(key, 1)


class _Numbered(Kind):
    def key(self, number: int) -> bytes:
        return self._byte + u32(number)

    def number(self, key: bytes) -> int:
        return read_u32(key, 1)


class _Outcomes(Kind):
    def key(self, number: int) -> bytes:
        return self._byte + u64(number)

    def number(self, key: bytes) -> int:
        return read_u64(key, 1)

    def since(self, number: int) -> Range:
        return self.key(number), self.all[1]


class TimedNumber(Timed):
    def key(self, at: int, number: int) -> bytes:
        return self._byte + u64(at) + u64(number)


class _Due(ChannelLine):
    def key(self, channel: int, at: int, gid: str) -> bytes:
        return self._byte + _LINE.pack(channel, at) + gid.encode()


class _DueCall(ChannelLine, OfCall):
    def key(self, channel: int, at: int, gid: str, index: int) -> bytes:
        return self._byte + _LINE.pack(channel, at) + _call(gid, index)


class _LeasedCall(Timed, OfCall):
    def key(self, until: int, gid: str, index: int) -> bytes:
        return self._byte + u64(until) + _call(gid, index)


class _ParkedCall(OfCall):
    def key(self, gid: str, index: int) -> bytes:
        return self._byte + _call(gid, index)


class _Part(Kind):
    def key(self, part: str, index: int) -> bytes:
        return self._byte + part.encode() + b"\0" + u32(index)

    def of(self, part: str) -> Range:
        return _under(self._byte + part.encode() + b"\0")


class _PartExpiry(Timed):
    """Holds the whole key of the part."""

    def key(self, at: int, part: bytes) -> bytes:
        return self._byte + u64(at) + part

    def part(self, key: bytes) -> bytes:
        return key[self._name_at :]


class _Chunk:
    """Without a byte of its own: nothing else lies in the log."""

    def key(self, topic_id: int, queue: int, last: int) -> bytes:
        return _CHUNK.pack(topic_id, queue, last)

    def last(self, key: bytes) -> int:
        return read_u64(key, 6)

    def of_topic(self, topic_id: int) -> Range:
        """With its bodies."""
        return _under(u32(topic_id))

    def since(self, topic_id: int, queue: int, offset: int) -> Range:
        """From the chunk that holds `offset` on."""
        return self.key(topic_id, queue, offset), _under(_QUEUE.pack(topic_id, queue))[1]

    def between(self, topic_id: int, queue: int, offset: int, end: int) -> Range:
        return self.key(topic_id, queue, offset), self.key(topic_id, queue, end)


class _Body:
    """No queue has the number ffff; being under the topic's id, a body goes when its topic does. Bodies are numbered
    and not named after their part: a part of that name may come again while its first messages are still here."""

    def key(self, topic_id: int, number: int) -> bytes:
        return _CHUNK.pack(topic_id, 0xFFFF, number)


class _Columns:
    """Bodies in columns, which have an area for themselves. Both halves of one have its number."""

    def halves(self, topic_id: int, number: int) -> tuple[bytes, bytes]:
        key = _LINE.pack(topic_id, number)
        return key + b"\0", key + b"\1"

    def of_topic(self, topic_id: int) -> Range:
        return _under(u32(topic_id))


class _Reference(Kind):
    def key(self, topic_id: int, queue: int, last: int) -> bytes:
        return self._byte + _CHUNK.pack(topic_id, queue, last)

    def last(self, key: bytes) -> int:
        return read_u64(key, 7)

    def of_topic(self, topic_id: int) -> Range:
        return _under(self._byte + u32(topic_id))

    def before(self, topic_id: int, queue: int, offset: int) -> Range:
        return self.key(topic_id, queue, 0), self.key(topic_id, queue, offset)


class _Place(OfGroup):
    def key(self, gt: bytes, queue: int) -> bytes:
        return self._byte + gt + u16(queue)


class _Lease(OfGroup):
    def key(self, gt: bytes, queue: int, offset: int) -> bytes:
        return self._byte + gt + u16(queue) + u64(offset)

    def offset(self, key: bytes) -> int:
        return read_u64(key, 11)


class _VisibleAgain(OfGroup):
    def key(self, gt: bytes, at: int, queue: int, offset: int) -> bytes:
        return self._byte + gt + _VISIBLE.pack(at, queue, offset)

    def since(self, gt: bytes, at: int) -> Range:
        return self._byte + gt + u64(at), self.of(gt)[1]

    def read(self, key: bytes) -> tuple[int, int, int]:
        """Time, queue and offset."""
        at, queue, offset = _VISIBLE.unpack_from(key, 9)
        return at, queue, offset


# --- the kinds -----------------------------------------------------------------------------------------------------

TRANSACTION = Named(b"t")
PART = _Part(b"p")
CALLS = Named(b"c")

CHUNK = _Chunk()
BODY = _Body()
COLUMNS = _Columns()

TOPIC = Named(b"T")
END = OfQueue(b"N")
START = OfQueue(b"S")
ENDED = Named(b"E")
REFERENCE = _Reference(b"b")
DELAYED = TimedNumber(b"y")

CHANNEL = _Channel(b"C")
MARK = _Mark(b"w")
DUE = _Due(b"d")
CHECK = Named(b"k")
AGED = TimedName(b"a")
PARKED = Named(b"P")
PART_EXPIRY = _PartExpiry(b"e")
OUTCOMES = _Outcomes(b"o")
KEPT = TimedName(b"z")
APP = Named(b"L")

GROUP = Named(b"G")
CURSOR = _Place(b"g")
STORED = _Place(b"q")
LEASE = _Lease(b"l")
VISIBLE = _VisibleAgain(b"v")

CALL_TOPIC = Named(b"U")
CALLS_STATE = Named(b"x")
DUE_CALL = _DueCall(b"D")
LEASED_CALL = _LeasedCall(b"i")
PARKED_CALL = _ParkedCall(b"X")

ORIGIN = _Numbered(b"O")

TOKEN = Named(b"K")
AUDIT = TimedNumber(b"A")

COUNTERS = b"Mcounters"
STORE_ID = b"Mid"  # of a store that has no directory to keep its id in
PROBE = b"Mprobe"  # followed by a number: what a probe of the engine's room writes and deletes
HALF_COPIED = b"Mcopying"  # what such a store is half a copy of

_REWRITTEN = frozenset((b"N", b"S", b"w", b"g", b"q"))


def rewritten(key: bytes) -> bool:
    """Whether units set this key of `index` again and again: counters, ends, starts, marks, cursors, stored offsets."""
    return key[:1] in _REWRITTEN or key == COUNTERS
