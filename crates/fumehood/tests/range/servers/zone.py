"""The internet's name service: one authoritative server, its zone set by the test, each query noted."""

import ipaddress
import socket
import struct
import threading
import time

import journal
from namespace import RESOLVER

TYPES = {"A": 1, "NS": 2, "CNAME": 5, "SOA": 6, "NULL": 10, "PTR": 12, "MX": 15, "TXT": 16, "AAAA": 28, "SRV": 33,
         "SVCB": 64, "HTTPS": 65, "ANY": 255}
_WORDS = {number: word for word, number in TYPES.items()}
_lock = threading.Lock()
_zone = {}


def put(name, record):
    """Sets what `name` answers.

    `answers` is a list of lists of addresses: query after query takes the next, the last one stays. A and
    AAAA count on their own. `cname` names another name; `ttl` is in seconds; `hostile` is one of loop, huge,
    wrong-id, wrong-question, truncated, garbage, silence, servfail, slow, pointer.
    """
    with _lock:
        _zone[name.lower().rstrip(".")] = dict(record, asked={})


def start():
    """Serves UDP and TCP on port 53 of both resolver addresses."""
    for address in RESOLVER:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        udp, tcp = socket.socket(family, socket.SOCK_DGRAM), socket.socket(family, socket.SOCK_STREAM)
        for one in (udp, tcp):
            if family == socket.AF_INET6:
                one.setsockopt(socket.IPPROTO_IPV6, 78, 1)  # IPV6_FREEBIND
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            one.bind((address, 53))
        tcp.listen(64)
        threading.Thread(target=_datagrams, args=(udp,), daemon=True).start()
        threading.Thread(target=_streams, args=(tcp,), daemon=True).start()


def answer(query, via):
    """The answer to one message, or None for silence. Every well-formed query is noted."""
    try:
        identity, name, number, question = _parse(query)
    except (IndexError, struct.error):
        journal.add("dns", name=None, via=via, payload=journal.text(query))
        return None
    kind = _WORDS.get(number, str(number))
    journal.add("dns", name=name, qtype=kind, via=via)
    with _lock:
        found = _find(name)
    hostile = (found or {}).get("hostile")
    if hostile == "silence":
        return None
    if hostile == "slow":
        time.sleep(3)
    if hostile == "garbage":
        return query[:2] + b"\xff" * 40
    if hostile == "pointer":
        return struct.pack("!HHHHHH", identity, 0x8580, 1, 1, 0, 0) + question + b"\xc0\x0c" * 8
    if hostile == "servfail" or hostile == "truncated" and via == "udp":
        code = 0x8582 if hostile == "servfail" else 0x8780
        return struct.pack("!HHHHHH", identity, code, 1, 0, 0, 0) + question
    if hostile == "wrong-id":
        identity ^= 0xFFFF
    if hostile == "wrong-question":
        question = _spell("another.test") + struct.pack("!HH", number, 1)
    if found is None:
        return struct.pack("!HHHHHH", identity, 0x8583, 1, 0, 0, 0) + question
    records = b"".join(_records(name, number, found))
    count = sum(1 for _ in _records(name, number, found, dry=True))
    return struct.pack("!HHHHHH", identity, 0x8580, 1, count, 0, 0) + question + records


def _records(name, number, found, dry=False):
    """The answer's records; a name that is another name is followed here, as a recursive server does."""
    seen = 0
    while found is not None and "cname" in found and seen < 12:
        yield _record(name, TYPES["CNAME"], found.get("ttl", 0), _spell(found["cname"]))
        name, seen = found["cname"], seen + 1
        found = _zone.get(name.lower().rstrip("."))
    if found is None or found.get("hostile") == "loop":
        return
    if found.get("hostile") == "huge":
        for number_of_it in range(3000):
            yield _record(name, 1, 0, socket.inet_aton(f"203.0.{number_of_it >> 8}.{number_of_it & 255}"))
        return
    for text in _turn(found, number, dry):
        address = ipaddress.ip_address(text)
        if TYPES["A" if address.version == 4 else "AAAA"] == number:
            yield _record(name, number, found.get("ttl", 0), address.packed)
    for text in found.get("txt", []) if number == TYPES["TXT"] else []:
        yield _record(name, number, found.get("ttl", 0), bytes([len(text)]) + text.encode())


def _turn(found, number, dry):
    answers = found.get("answers") or [[]]
    with _lock:
        place = found["asked"].get(number, 0)
        # Counting goes last, so that both passes over one query see the same turn.
        if dry:
            found["asked"][number] = place + 1
    return answers[min(place, len(answers) - 1)]


def _find(name):
    if name in _zone:
        return _zone[name]
    labels = name.split(".")
    for cut in range(1, len(labels) + 1):
        stands = ".".join(["*", *labels[cut:]])
        if stands in _zone:
            return _zone[stands]
    return None


def _parse(query):
    identity = struct.unpack_from("!H", query)[0]
    place, labels = 12, []
    while query[place] != 0:
        labels.append(query[place + 1 : place + 1 + query[place]].decode("latin-1"))
        place += 1 + query[place]
    number = struct.unpack_from("!H", query, place + 1)[0]
    return identity, ".".join(labels).lower(), number, query[12 : place + 5]


def _spell(name):
    parts = [part.encode() for part in name.rstrip(".").split(".") if part]
    return b"".join(bytes([len(part)]) + part for part in parts) + b"\0"


def _record(name, number, ttl, data):
    return _spell(name) + struct.pack("!HHIH", number, 1, ttl, len(data)) + data


def _datagrams(udp):
    while True:
        query, sender = udp.recvfrom(65535)
        threading.Thread(target=_reply, args=(udp, query, sender), daemon=True).start()


def _reply(udp, query, sender):
    told = answer(query, "udp")
    if told is None:
        return
    if len(told) > 1232:
        told = told[:2] + struct.pack("!H", struct.unpack_from("!H", told, 2)[0] | 0x0200) + told[4:1232]
        told = told[:6] + b"\0\0" + told[8:12] + query[12 : _question_end(query)]
    udp.sendto(told, sender)


def _question_end(query):
    place = 12
    while query[place] != 0:
        place += 1 + query[place]
    return place + 5


def _streams(tcp):
    while True:
        stream, _ = tcp.accept()
        threading.Thread(target=serve, args=(stream,), daemon=True).start()


def serve(stream):
    """Answers the queries of one TCP connection to its end."""
    with stream, stream.makefile("rb") as reader:
        while len(head := reader.read(2)) == 2:
            told = answer(reader.read(struct.unpack("!H", head)[0]), "tcp")
            if told is None:
                return
            stream.sendall(struct.pack("!H", min(len(told), 65535)) + told[:65535])
