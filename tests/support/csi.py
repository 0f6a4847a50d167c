"""A client of the Container Storage Interface: gRPC by curl, messages by what csi.proto says of them.

Enough of protobuf for that file: messages, enums, maps of strings, oneofs, and the wrappers of numbers.
"""

import re
import struct
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from urllib.parse import unquote

from enkaku_lab import REPOSITORY
from enkaku_lab.peers import need
from enkaku_lab.process import run

PROTO = REPOSITORY / "crates/csi/proto/csi.proto"
CODES = {
    0: "OK", 3: "INVALID_ARGUMENT", 4: "DEADLINE_EXCEEDED", 5: "NOT_FOUND", 6: "ALREADY_EXISTS", 8: "RESOURCE_EXHAUSTED",
    9: "FAILED_PRECONDITION", 10: "ABORTED", 11: "OUT_OF_RANGE", 12: "UNIMPLEMENTED", 13: "INTERNAL", 14: "UNAVAILABLE",
}
CALL_S_MAX = 120
NUMBERS = {"int32", "int64", "bool"}
WRAPPED = {"google.protobuf.Int64Value": "int64", "google.protobuf.BoolValue": "bool"}


@dataclass(frozen=True)
class Field:
    number: int
    kind: str
    repeated: bool


@cache
def described() -> tuple[dict[str, dict[str, Field]], set[str], dict[str, tuple[str, str, str]]]:
    """Messages by their full names, names of enums, and methods: service, request, response."""
    text = re.sub(r"//[^\n]*", "", PROTO.read_text())
    messages: dict[str, dict[str, Field]] = {}
    enums: set[str] = set()
    methods: dict[str, tuple[str, str, str]] = {}
    service, inside = "", []
    # A block that is no message (oneof, service, extend) stands as "" for the names in it.
    token = re.compile(
        r"(?P<kind>message|enum|oneof|service|extend)\s+(?P<name>[\w.]+)\s*\{|(?P<end>\})|"
        r"rpc\s+(?P<rpc>\w+)\s*\(\s*(?P<asked>\w+)\s*\)\s*returns\s*\((?:\s*stream)?\s*(?P<told>\w+)\s*\)\s*\{\}|"
        r"(?P<rep>repeated\s+)?(?P<type>map\s*<\s*string\s*,\s*string\s*>|[\w.]+)\s+(?P<field>\w+)\s*=\s*(?P<number>\d+)"
    )
    for found in token.finditer(text):
        names = ".".join(name for kind, name in inside if kind == "message")
        if found["kind"]:
            inside.append((found["kind"], found["name"]))
            full = ".".join(filter(None, [names, found["name"]]))
            if found["kind"] == "message":
                messages[full] = {}
            elif found["kind"] == "enum":
                enums.add(full)
            elif found["kind"] == "service":
                service = found["name"]
        elif found["end"]:
            if inside:
                inside.pop()
        elif found["rpc"]:
            methods[found["rpc"]] = (service, found["asked"], found["told"])
        elif found["field"] and inside and inside[-1][0] in ("message", "oneof"):
            kind = "map" if found["type"].startswith("map") else found["type"].lstrip(".")
            messages[names][found["field"]] = Field(int(found["number"]), kind, bool(found["rep"]))
    return messages, enums, methods


def kind_of(message: str, kind: str) -> str:
    """The full name of a type that is named inside a message, or `number`."""
    messages, enums, _ = described()
    if kind in NUMBERS:
        return "number"
    scope = message.split(".")
    for upto in range(len(scope), -1, -1):
        full = ".".join([*scope[:upto], kind])
        if full in enums:
            return "number"
        if full in messages:
            return full
    return kind


def varint(value: int) -> bytes:
    value &= (1 << 64) - 1
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def lengthy(number: int, data: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(data)) + data


def encode(message: str, value: dict) -> bytes:
    fields = described()[0][message]
    out = b""
    for name, given in value.items():
        field = fields[name]
        for one in given if field.repeated else [given]:
            kind = kind_of(message, field.kind)
            if kind == "map":
                entries = [lengthy(1, k.encode()) + lengthy(2, v.encode()) for k, v in one.items()]
                out += b"".join(lengthy(field.number, entry) for entry in entries)
            elif kind == "number":
                out += varint(field.number << 3) + varint(int(one))
            elif kind == "string":
                out += lengthy(field.number, one.encode())
            else:
                out += lengthy(field.number, encode(kind, one))
    return out


def pieces(data: bytes):
    """Numbers of fields with their values: an int or bytes."""
    at = 0

    def number() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = data[at]
            at, value, shift = at + 1, value | (byte & 0x7F) << shift, shift + 7
            if byte < 0x80:
                return value

    while at < len(data):
        key = number()
        if key & 7 == 0:
            yield key >> 3, number()
        else:
            assert key & 7 == 2, f"wire type {key & 7}"
            length = number()
            at += length
            yield key >> 3, data[at - length : at]


def signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value


def decode(message: str, data: bytes) -> dict:
    if message in WRAPPED or message == "google.protobuf.Timestamp":
        return {number: signed(value) for number, value in pieces(data)}
    by_number = {field.number: (name, field) for name, field in described()[0][message].items()}
    out: dict = {}
    for number, value in pieces(data):
        name, field = by_number[number]
        kind = kind_of(message, field.kind)
        if kind == "map":
            entry = dict(pieces(value))
            out.setdefault(name, {})[entry[1].decode()] = entry.get(2, b"").decode()
            continue
        if kind == "number":
            value = signed(value)
        elif kind == "string":
            value = value.decode()
        else:
            value = decode(kind, value)
        if field.repeated:
            out.setdefault(name, []).append(value)
        else:
            out[name] = value
    return out


class Refused(Exception):
    """What was answered instead."""

    def __init__(self, code: str, message: str):
        self.code, self.message = code, message
        super().__init__(f"{code}: {message}")


class Client:
    """Calls by their names: `client.CreateVolume(name="a", …)`."""

    def __init__(self, socket: Path, scratch: Path):
        self.socket, self.scratch = socket, scratch

    def __getattr__(self, method: str):
        if method not in described()[2]:
            raise AttributeError(method)
        return lambda **fields: self.call(method, fields)

    def call(self, method: str, fields: dict) -> dict:
        service, asked, told = described()[2][method]
        message = encode(asked, fields)
        body = struct.pack(">BI", 0, len(message)) + message
        head, data = self.exchange(f"csi.v1.{service}/{method}", body)
        # Trailers stand behind the headers.
        headers = dict(re.findall(r"^([\w-]+): (.*?)\r?$", head, re.M))
        code = int(headers.get("grpc-status", "0"))
        if code != 0:
            raise Refused(CODES.get(code, str(code)), unquote(headers.get("grpc-message", "")))
        compressed, length = struct.unpack(">BI", data[:5])
        assert not compressed and len(data) == 5 + length
        return decode(told, data[5:])

    def exchange(self, method: str, body: bytes) -> tuple[str, bytes]:
        """Headers and the body that answer one; a body where there is any."""
        asked, told, head = (self.scratch / f"curl-{name}" for name in ("asked", "told", "head"))
        asked.write_bytes(body)
        told.unlink(missing_ok=True)
        run([need("curl"), *self.options(method, asked, told, head)], timeout_s=CALL_S_MAX)
        return head.read_text(), told.read_bytes() if told.exists() else b""

    def options(self, method: str, asked: Path, told: Path, head: Path) -> list[str]:
        """Of curl."""
        return [
            "--silent", "--show-error", "--http2-prior-knowledge", "--unix-socket", str(self.socket),
            "--header", "content-type: application/grpc", "--header", "te: trailers", "--data-binary", f"@{asked}",
            "--output", str(told), "--dump-header", str(head), f"http://localhost/{method}",
        ]


def mounted_as(fs_type: str = "", mode: int = 1, flags: list[str] = []) -> dict:
    """A file system; modes: 1 one writer, 2 one reader, 3 several readers, 6 one workload."""
    return {"mount": {"fs_type": fs_type, "mount_flags": flags}, "access_mode": {"mode": mode}}


def as_block(mode: int = 1) -> dict:
    return {"block": {}, "access_mode": {"mode": mode}}
