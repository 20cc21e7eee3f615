"""The key space. Every number is big-endian, so that byte order is number order.

    tx     t <gid>                         a transaction: Prepared or Resolved
           p <part> 0 <index>              half messages of an unclaimed part
           c <gid>                         calls of a transaction that has an outcome
    log    <topic id> <queue> <last>       a chunk, or a reference to a body, under the offset of its last message
           <topic id> ffff <number>        a body: messages of a part, for one queue
    index  T <name>                        topic              N <topic id> <queue>   next offset
           C <via:name>                    check channel      S <topic id> <queue>   first kept offset
           d <channel> <time> <gid>        due check          w <channel>            where due scans may begin
           k <gid>                         check state        a <created> <gid>      unresolved and checked before
           P <gid>                         parked             e <time> <part>        part expiry
           y <time> <sequence>             delayed message    o <sequence>           outcomes of one group commit
           G <name>                        consumer group     g <gt> <queue>         receive cursor
           l <gt> <queue> <offset>         lease              v <gt> <time> <queue> <offset>  visible again
           q <gt> <queue>                  stored offset      M <name>               counters
           b <topic id> <queue> <last>     its body's key     L <app>                last batch of an application
           x <gid>                         state of its calls U <name>               call topic
           D <channel> <time> <call>       due call           i <time> <call>        call under lease
           X <call>                        parked call        z <time> <gid>         tombstone kept for its calls
           E <name>                        how a deleted topic ended

`gt` is <group id> <topic id>; `call` is <gid> 0 <index>.
"""

from __future__ import annotations

from struct import Struct as Packer

_QUEUE = Packer(">IH")
_U16 = Packer(">H")
_U32 = Packer(">I")
_U64 = Packer(">Q")
_GT = Packer(">II")

u16 = _U16.pack
u32 = _U32.pack
u64 = _U64.pack
queue_prefix = _QUEUE.pack
group_topic = _GT.pack


def read_u16(data: bytes, at: int = 0) -> int:
    return int(_U16.unpack_from(data, at)[0])


def read_u32(data: bytes, at: int = 0) -> int:
    return int(_U32.unpack_from(data, at)[0])


def read_u64(data: bytes, at: int = 0) -> int:
    return int(_U64.unpack_from(data, at)[0])


def after_prefix(prefix: bytes) -> bytes:
    """The first key behind every key that begins with `prefix`."""
    trimmed = prefix.rstrip(b"\xff")
    return trimmed[:-1] + bytes([trimmed[-1] + 1])


def transaction(gid: str) -> bytes:
    return b"t" + gid.encode()


def part(part_id: str, index: int) -> bytes:
    return b"p" + part_id.encode() + b"\0" + u32(index)


def part_prefix(part_id: str) -> bytes:
    return b"p" + part_id.encode() + b"\0"


def chunk(topic_id: int, queue: int, last: int) -> bytes:
    return queue_prefix(topic_id, queue) + u64(last)


def body(topic_id: int, number: int) -> bytes:
    """No queue has the number ffff; being under the topic's id, a body goes when its topic does. Bodies are numbered
    and not named after their part: a part of that name may come again while its first messages are still here."""
    return queue_prefix(topic_id, 0xFFFF) + u64(number)


def due(channel: int, at: int, gid: str) -> bytes:
    return b"d" + u32(channel) + u64(at) + gid.encode()


def calls(gid: str) -> bytes:
    return b"c" + gid.encode()


def call(gid: str, index: int) -> bytes:
    return gid.encode() + b"\0" + u16(index)


def read_call(data: bytes, at: int) -> tuple[str, int]:
    return data[at:-3].decode(), read_u16(data, len(data) - 2)


def due_call(channel: int, at: int, gid: str, index: int) -> bytes:
    return b"D" + u32(channel) + u64(at) + call(gid, index)


def leased_call(until: int, gid: str, index: int) -> bytes:
    return b"i" + u64(until) + call(gid, index)


def aged(created_at: int, gid: str) -> bytes:
    return b"a" + u64(created_at) + gid.encode()


def lease(gt: bytes, queue: int, offset: int) -> bytes:
    return b"l" + gt + u16(queue) + u64(offset)


def visible(gt: bytes, at: int, queue: int, offset: int) -> bytes:
    return b"v" + gt + u64(at) + u16(queue) + u64(offset)
