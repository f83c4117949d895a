"""A hijacked program, step by step. The argument is a JSON list of steps; one JSON line
comes out for each, with the seconds since the epoch between which it was done.

`{"tcp": [host, port], "send": text}`, `{"tls": [host, port], "sni": name or null, "send": text}` (verifying nothing),
`{"udp": [host, port], "send": text}`, `{"icmp": host, "send": text}`, `{"dns": [server or null, name, type], "over": "udp" or "tcp"}`,
`{"connect": target, "sni": ..., "send": text}` and `{"absolute": text}` by the HTTP proxy, `{"socks": [host, port], "send": text}`,
`{"hello": [host, port], "sni": ..., "kind": "ech"}`, `{"nested": step}` in a network namespace made here,
`{"h2": [host, port], "sni": name, "streams": [[[name, value], ...], ...]}` (each stream without a body, as it is written),
`{"run": [argv]}`. `tcp` and `tls` may have a `then`: what is sent once there was an answer. A step that fails is told, and the next one is tried.
"""

import ctypes
import json
import os
import socket
import ssl
import struct
import subprocess
import sys
import time
import urllib.parse

TIMEOUT = 4
SILENCE = 1
TYPES = {"A": 1, "NS": 2, "NULL": 10, "PTR": 12, "MX": 15, "TXT": 16, "AAAA": 28, "SRV": 33, "SVCB": 64, "HTTPS": 65, "ANY": 255}


def main():
    for step in json.loads(sys.argv[1]):
        began = time.time()
        try:
            told = {"got": perform(step)}
        except (OSError, ValueError, UnicodeError, EOFError) as problem:
            told = {"problem": f"{type(problem).__name__}: {problem}"[:300]}
        print(json.dumps({"from": began, "to": time.time(), **told}), flush=True)
    print("the end", flush=True)


def perform(step):
    data = step.get("send", "").encode("latin-1")
    if "tcp" in step:
        with socket.create_connection(tuple(step["tcp"]), timeout=TIMEOUT) as stream:
            return talk(stream, data) + talk_on(stream, step)
    if "tls" in step:
        with socket.create_connection(tuple(step["tls"]), timeout=TIMEOUT) as stream:
            return secret_talk(stream, step.get("sni", step["tls"][0]), data, step)
    if "h2" in step:
        with socket.create_connection(tuple(step["h2"]), timeout=TIMEOUT) as stream:
            return many_streams(stream, step)
    if "udp" in step:
        return datagram(*step["udp"], data)
    if "icmp" in step:
        return echo_request(step["icmp"], data)
    if "dns" in step:
        return query(*step["dns"], step.get("over", "udp"))
    if "connect" in step:
        return through_connect(step["connect"], step, data)
    if "absolute" in step:
        with proxy() as stream:
            return talk(stream, step["absolute"].encode("latin-1"))
    if "socks" in step:
        return through_socks(*step["socks"], data)
    if "hello" in step:
        with socket.create_connection(tuple(step["hello"]), timeout=TIMEOUT) as stream:
            return talk(stream, client_hello(step["sni"], step.get("kind")))
    if "nested" in step:
        return nested(step["nested"])
    done = subprocess.run(step["run"], capture_output=True, text=True, timeout=30, errors="replace")
    return f"{done.returncode}: {done.stdout[:2000]} {done.stderr[:500]}"


def talk(stream, data):
    """Sends, and reads what there is until the other side closes or is silent for a while."""
    stream.settimeout(SILENCE)
    if data:
        stream.sendall(data)
    whole = b""
    try:
        while part := stream.recv(65536):
            whole += part
            if len(whole) > 1 << 20:
                break
    except TimeoutError:
        whole += b"(silence)"
    return whole[:2000].decode("latin-1")


def talk_on(stream, step):
    """The second thing to say, if there is one."""
    return talk(stream, step["then"].encode("latin-1")) if "then" in step else ""


def many_streams(stream, step):
    """Requests of HTTP/2 on one connection, with no check of our own on what they say."""
    import h2.config
    import h2.connection
    import h2.events

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    with context.wrap_socket(stream, server_hostname=step["sni"]) as inner:
        session = h2.connection.H2Connection(h2.config.H2Configuration(
            header_encoding="utf-8", validate_outbound_headers=False, normalize_outbound_headers=False))
        session.initiate_connection()
        told = []
        inner.settimeout(SILENCE)
        for fields in step["streams"]:
            number = session.get_next_available_stream_id()
            session.send_headers(number, [tuple(field) for field in fields], end_stream=True)
            inner.sendall(session.data_to_send())
            open_ = True
            while open_:
                try:
                    data = inner.recv(65536)
                except TimeoutError:
                    told.append("silence")
                    break
                if not data:
                    return told + ["closed"]
                for event in session.receive_data(data):
                    if isinstance(event, h2.events.ResponseReceived):
                        told.append(dict(event.headers).get(":status", "?"))
                    if isinstance(event, h2.events.StreamReset):
                        told.append("reset")
                    if isinstance(event, (h2.events.StreamReset, h2.events.StreamEnded)):
                        open_ = False
                    if isinstance(event, h2.events.ConnectionTerminated):
                        return told + ["terminated"]
                inner.sendall(session.data_to_send())
        return told


def secret_talk(stream, name, data, step=None):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    with context.wrap_socket(stream, server_hostname=name) as inner:
        return talk(inner, data) + talk_on(inner, step or {})


def datagram(host, port, data):
    told = ""
    for family, kind, protocol, _, address in socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM):
        with socket.socket(family, kind, protocol) as out:
            out.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
            out.settimeout(0.3)
            try:
                out.sendto(data, address)
                told += "sent; "
                told += out.recv(2000).decode("latin-1")
            except OSError as problem:
                told += f"{problem}; "
    return told


def echo_request(host, data):
    six = ":" in host
    family, protocol = (socket.AF_INET6, 58) if six else (socket.AF_INET, 1)
    head = struct.pack("!BBHHH", 128 if six else 8, 0, 0, 7, 1)
    total = sum(struct.unpack(f"!{len(head + data + bytes(len(data) % 2)) // 2}H", head + data + bytes(len(data) % 2)))
    total = (total >> 16) + (total & 0xFFFF)
    head = struct.pack("!BBHHH", 128 if six else 8, 0, ~(total + (total >> 16)) & 0xFFFF, 7, 1)
    told = ""
    for kind in (socket.SOCK_RAW, socket.SOCK_DGRAM):
        try:
            with socket.socket(family, kind, protocol) as out:
                out.sendto(head + data, (host, 0))
                told += "sent; "
        except OSError as problem:
            told += f"{problem}; "
    return told


def query(server, name, kind, over):
    if server is None:
        with open("/etc/resolv.conf") as file:
            server = next((line.split()[1] for line in file if line.startswith("nameserver")), None)
        if server is None:
            raise ValueError("no resolver is told")
    labels = b"".join(bytes([len(part)]) + part.encode("latin-1") for part in name.split("."))
    message = struct.pack("!HHHHHH", 7, 0x0100, 1, 0, 0, 0) + labels + b"\0" + struct.pack("!HH", TYPES[kind], 1)
    if over == "tcp":
        with socket.create_connection((server, 53), timeout=TIMEOUT) as stream:
            stream.sendall(struct.pack("!H", len(message)) + message)
            answer = stream.recv(4096)[2:]
    else:
        with socket.socket(socket.AF_INET6 if ":" in server else socket.AF_INET, socket.SOCK_DGRAM) as out:
            out.settimeout(1)
            out.sendto(message, (server, 53))
            answer = out.recv(4096)
    return f"rcode {answer[3] & 15}, {struct.unpack_from('!H', answer, 6)[0]} records"


def proxy():
    told = urllib.parse.urlsplit(os.environ.get("HTTP_PROXY") or os.environ.get("http_proxy") or "http://198.18.0.1:3128")
    return socket.create_connection((told.hostname, told.port), timeout=TIMEOUT)


def through_connect(target, step, data):
    with proxy() as stream:
        stream.sendall(f"CONNECT {target} HTTP/1.1\r\nHost: {step.get('host', target)}\r\n\r\n".encode("latin-1"))
        head = b""
        while b"\r\n\r\n" not in head:
            part = stream.recv(4096)
            if not part:
                raise EOFError(f"closed after CONNECT: {head!r}")
            head += part
        if b" 200" not in head.split(b"\r\n")[0]:
            raise EOFError(head[:300].decode("latin-1"))
        return secret_talk(stream, step["sni"], data) if "sni" in step else talk(stream, data)


def through_socks(host, port, data):
    with proxy() as stream:
        stream.sendall(b"\x05\x01\x00")
        if stream.recv(2) != b"\x05\x00":
            raise EOFError("no SOCKS")
        name = host.encode()
        stream.sendall(b"\x05\x01\x00\x03" + bytes([len(name)]) + name + struct.pack("!H", port))
        answer = stream.recv(262)
        if answer[1:2] != b"\0":
            raise EOFError(f"SOCKS says {answer[:2].hex()}")
        return talk(stream, data)


def client_hello(name, kind):
    """A real hello; with `ech`, one that also carries an encrypted hello of another name."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    try:
        context.wrap_bio(incoming, outgoing, server_hostname=name).do_handshake()
    except ssl.SSLWantReadError:
        pass
    hello = outgoing.read()
    if kind != "ech":
        return hello
    extra = struct.pack("!HH", 0xFE0D, 64) + bytes([0, 0, 1, 0, 1, 7]) + struct.pack("!H", 32) + os.urandom(32) + bytes([0, 22]) + os.urandom(22)
    place = 43 + 1 + hello[43]
    place += 2 + int.from_bytes(hello[place : place + 2], "big")
    place += 1 + hello[place]
    sizes = [(3, 2), (6, 3), (place, 2)]
    hello = bytearray(hello) + extra
    for at, width in sizes:
        hello[at : at + width] = (int.from_bytes(hello[at : at + width], "big") + len(extra)).to_bytes(width, "big")
    return bytes(hello)


def nested(step):
    """In a user and network namespace made here: it has no way but those that it is given."""
    child = os.fork()
    if child == 0:
        libc = ctypes.CDLL(None, use_errno=True)
        done = libc.unshare(0x10000000 | 0x40000000)
        try:
            perform(step)
        except (OSError, ValueError, EOFError):
            pass
        os._exit(0 if done == 0 else 3)
    return f"unshare and step: {os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])}"


main()
