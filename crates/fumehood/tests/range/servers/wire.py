"""Every packet that starts something: TCP SYNs, UDP datagrams, ICMP and all else, whoever listens or not."""

import ipaddress
import socket
import struct
import threading

import journal
from namespace import RESOLVER

_OUTGOING = 4
_lock = threading.Lock()
_socket = None
# Accepts what is no TCP, and of TCP the first packet of a connection.
_FILTER = [
    (0x30, 0, 0, 0),  # ldb [0]
    (0x54, 0, 0, 0xF0),  # and 0xf0
    (0x15, 2, 0, 0x40),  # IPv4: +2
    (0x15, 7, 0, 0x60),  # IPv6: +7
    (0x06, 0, 0, 0),  # drop
    (0x30, 0, 0, 9),  # ldb [9]
    (0x15, 0, 10, 6),  # not TCP: accept
    (0xB1, 0, 0, 0),  # ldxb 4*([0]&0xf)
    (0x50, 0, 0, 13),  # ldb [x+13]
    (0x54, 0, 0, 0x12),  # and SYN|ACK
    (0x15, 6, 5, 2),  # SYN alone: accept
    (0x30, 0, 0, 6),  # ldb [6]
    (0x15, 0, 4, 6),  # not TCP: accept
    (0x30, 0, 0, 53),  # ldb [40+13]
    (0x54, 0, 0, 0x12),
    (0x15, 1, 0, 2),
    (0x06, 0, 0, 0),  # drop
    (0x06, 0, 0, 0xFFFF),  # accept
]
_NAMES = {1: "icmp", 6: "tcp", 17: "udp", 58: "icmp"}


def start():
    """Looks at loopback from now on."""
    global _socket
    import ctypes

    _socket = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, 0)
    program = b"".join(struct.pack("=HBBI", *step) for step in _FILTER)
    held = ctypes.create_string_buffer(program)
    _socket.setsockopt(socket.SOL_SOCKET, 26, struct.pack("HL", len(_FILTER), ctypes.addressof(held)))
    _socket.setsockopt(socket.SOL_SOCKET, 35, 1)  # SO_TIMESTAMPNS
    _socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8 << 20)
    _socket.bind(("lo", 0x0003))
    threading.Thread(target=_watch, daemon=True).start()


def drain():
    """Takes in all that has passed so far."""
    with _lock:
        while True:
            try:
                packet, told, _, address = _socket.recvmsg(65535, 64, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return
            # Loopback shows each packet on its way out and on its way in.
            if address[2] == _OUTGOING:
                # The kernel's own time of the packet, so that a busy machine does not move it.
                seconds, rest = struct.unpack("qq", told[0][2])
                _note(packet, seconds + rest / 1e9)


def _watch():
    import select

    while True:
        select.select([_socket], [], [])
        drain()


def _note(packet, at):
    if packet[0] >> 4 == 4:
        start, protocol = 4 * (packet[0] & 15), packet[9]
        ends = packet[12:16], packet[16:20]
    else:
        start, protocol = 40, packet[6]
        ends = packet[8:24], packet[24:40]
    source, target = (str(ipaddress.ip_address(end)) for end in ends)
    facts = {"protocol": _NAMES.get(protocol, str(protocol)), "from": source, "to": target}
    if protocol in (6, 17) and len(packet) >= start + 4:
        facts["from_port"], facts["port"] = struct.unpack_from("!HH", packet, start)
    if protocol == 1 and packet[start] == 3 or protocol == 58 and packet[start] == 1:
        return  # The kernel's own word that nobody listens.
    if protocol == 58 and packet[start] in range(130, 138) or protocol == 58 and packet[start] == 143:
        return  # Neighbours and groups: the kernel's own housekeeping.
    if facts.get("from_port") == 53 and source in RESOLVER:
        return  # What the resolver says back.
    if protocol != 6:
        facts["payload"] = journal.text(packet[start:], 512)
    journal.add("wire", at, **facts)
