"""A name server for one test: whatever is asked for is this host. Says a line when it listens."""

import socket

server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
server.bind(("127.53.53.53", 53))
print("ready", flush=True)
while True:
    question, caller = server.recvfrom(512)
    end = question.index(b"\0", 12) + 5
    is_address = question[end - 4 : end - 2] == b"\0\x01"
    answer = b"\xc0\x0c\0\x01\0\x01\0\0\0\x3c\0\x04\x7f\0\0\x01" if is_address else b""
    head = question[:2] + b"\x85\x80\0\x01\0" + bytes([is_address]) + b"\0\0\0\0"
    server.sendto(head + question[12:end] + answer, caller)
