"""HTTP/2 with the same behaviours, and a small gRPC service.

`/range.Echo/Say` gives the message back; `/range.Echo/Repeat` gives it three times, 50 ms apart; a failure is asked
for by `/range.Echo/Fail`.
"""

import time

import behaviours
from http1 import Request


def serve(connection):
    """One connection, its streams in the order in which they are complete."""
    import h2.config
    import h2.connection
    import h2.events
    import h2.exceptions

    session = h2.connection.H2Connection(h2.config.H2Configuration(
        client_side=False, header_encoding="latin-1", validate_inbound_headers=False))
    session.initiate_connection()
    connection.stream.sendall(session.data_to_send())
    pending = {}
    while data := connection.stream.recv(65536):
        try:
            events = session.receive_data(data)
        except h2.exceptions.ProtocolError as problem:
            connection.note("problem", text=str(problem))
            connection.stream.sendall(session.data_to_send())
            return
        for event in events:
            if isinstance(event, h2.events.RequestReceived):
                pending[event.stream_id] = (event.headers, bytearray())
            elif isinstance(event, h2.events.DataReceived):
                pending[event.stream_id][1].extend(event.data)
                session.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
            elif isinstance(event, h2.events.StreamReset):
                pending.pop(event.stream_id, None)
            if isinstance(event, h2.events.StreamEnded):
                headers, body = pending.pop(event.stream_id)
                _respond(connection, session, event.stream_id, _request(connection, headers, bytes(body)))
        connection.stream.sendall(session.data_to_send())


def _request(connection, headers, body):
    own = {}
    for name, value in headers:
        own.setdefault(name, value)
    lines = [f"{own.get(':method', '')} {own.get(':path', '')} HTTP/2"]
    lines += [f"{name.removeprefix(':')}: {value}" for name, value in headers if name not in (":method", ":path")]
    if not any(name == "host" for name, _ in headers):
        lines.append(f"host: {own.get(':authority', '')}")
    request = Request(connection, "\r\n".join(lines), body, "h2")
    request.note()
    return request


def _respond(connection, session, stream, request):
    if request.field("content-type").startswith("application/grpc"):
        return _grpc(connection, session, stream, request)
    status, fields, body = behaviours.answer(request)
    session.send_headers(stream, [(":status", str(status)), *((name.lower(), value) for name, value in fields)])
    for part in [body] if isinstance(body, bytes) else body:
        _send(connection, session, stream, part)
    if late := behaviours.trailers(request):
        session.send_headers(stream, late, end_stream=True)
        return
    session.end_stream(stream)


def _grpc(connection, session, stream, request):
    if told := behaviours.refused(request):
        session.send_headers(stream, [(":status", str(told[0])), ("content-type", "application/grpc")], end_stream=True)
        return
    session.send_headers(stream, [(":status", "200"), ("content-type", "application/grpc")])
    word = request.target.rpartition("/")[2]
    for turn in range({"Say": 1, "Repeat": 3}.get(word, 0)):
        if turn:
            time.sleep(0.05)
        _send(connection, session, stream, request.body)
    code = "0" if word in ("Say", "Repeat") else "5"
    session.send_headers(stream, [("grpc-status", code), ("grpc-message", "as asked")], end_stream=True)


def _send(connection, session, stream, data):
    """Sends as the window opens; what else arrives meanwhile is taken in and left to the session."""
    while data:
        room = min(session.local_flow_control_window(stream), session.max_outbound_frame_size, len(data))
        if room > 0:
            session.send_data(stream, data[:room])
            data = data[room:]
        connection.stream.sendall(session.data_to_send())
        if room <= 0:
            got = connection.stream.recv(65536)
            if not got:
                raise ConnectionError("closed while sending")
            session.receive_data(got)
