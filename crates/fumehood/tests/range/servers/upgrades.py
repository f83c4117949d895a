"""WebSocket, as an echo; messages are written down. On `/echo` the request's head is the first message."""

import base64
import hashlib
import struct

import behaviours
import journal

_WELL_KNOWN = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"


def wanted(request):
    """Whether the request asks for a WebSocket."""
    return request.field("upgrade").lower() == "websocket" and behaviours.path_of(request) != "/no-socket"


def serve(connection, request, reader):
    """Accepts, then echoes message for message until the other side closes."""
    if told := behaviours.refused(request):
        connection.stream.sendall(f"HTTP/1.1 {told[0]} -\r\ncontent-length: 0\r\n\r\n".encode())
        return
    key = request.field("sec-websocket-key") + _WELL_KNOWN
    accept = base64.b64encode(hashlib.sha1(key.encode()).digest()).decode()
    connection.stream.sendall(
        f"HTTP/1.1 101 -\r\nupgrade: websocket\r\nconnection: Upgrade\r\nsec-websocket-accept: {accept}\r\n\r\n".encode())
    if behaviours.path_of(request) == "/echo":
        _send(connection.stream, 1, request.head.encode("latin-1"))
    while (frame := _frame(reader)) is not None:
        code, data = frame
        if code in (1, 2):
            connection.note("message", data=journal.text(data, 4096))
        _send(connection.stream, {9: 10}.get(code, code), data)
        if code == 8:
            return


def _frame(reader):
    head = reader.read(2)
    if len(head) < 2:
        return None
    length = head[1] & 127
    if length == 126:
        length = struct.unpack("!H", reader.read(2))[0]
    elif length == 127:
        length = struct.unpack("!Q", reader.read(8))[0]
    mask = reader.read(4) if head[1] & 128 else bytes(4)
    data = reader.read(length)
    return head[0] & 15, bytes(byte ^ mask[place & 3] for place, byte in enumerate(data))


def _send(stream, code, data):
    if len(data) < 126:
        head = bytes([128 | code, len(data)])
    elif len(data) < 65536:
        head = struct.pack("!BBH", 128 | code, 126, len(data))
    else:
        head = struct.pack("!BBQ", 128 | code, 127, len(data))
    stream.sendall(head + data)
