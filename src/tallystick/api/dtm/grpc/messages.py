"""dtm's messages and methods as dtm.proto describes them."""

from __future__ import annotations

from importlib.resources import files
from typing import Any

from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

# Made from descriptors and not by protoc's Python code: that works with few versions of protobuf only. In a pool of
# their own, because dtm's own description, loaded beside ours, would have the same names.
POOL = DescriptorPool()
for _file in FileDescriptorSet.FromString(files(__package__).joinpath("dtm.binpb").read_bytes()).file:
    POOL.Add(_file)

SERVICE = POOL.FindServiceByName("dtmgimp.Dtm")


def _message(name: str) -> Any:
    return GetMessageClass(POOL.FindMessageTypeByName(name))


Empty = _message("google.protobuf.Empty")
DtmRequest = _message("dtmgimp.DtmRequest")
DtmTransOptions = _message("dtmgimp.DtmTransOptions")
DtmTopicRequest = _message("dtmgimp.DtmTopicRequest")
DtmBranchRequest = _message("dtmgimp.DtmBranchRequest")
DtmGidReply = _message("dtmgimp.DtmGidReply")
DtmProgressesReply = _message("dtmgimp.DtmProgressesReply")
