"""Port 22: the real `sshd`, one a connection, for the account that runs the range."""

import os
import pwd
import shutil
import socket
import subprocess

folder = None


def prepare():
    """Keys and configuration; gives what a client needs, or None where there is no sshd."""
    if sshd() is None:
        return None
    for name in ("host", "client"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "range", "-f", _at(name)], check=True)
    shutil.copy(_at("client.pub"), _at("authorized"))
    with open(_at("conf"), "w") as file:
        file.write(f"HostKey {_at('host')}\nAuthorizedKeysFile {_at('authorized')}\nStrictModes no\nUsePAM no\n"
                   "PermitRootLogin yes\nPasswordAuthentication no\nPidFile none\nUseDNS no\nLogLevel ERROR\n")
    with open(_at("host.pub")) as file:
        key = " ".join(file.read().split()[:2])
    with open(_at("client")) as file:
        return {"host_key": key, "client_key": file.read(), "account": pwd.getpwuid(os.getuid()).pw_name}


def sshd():
    """Where the program is."""
    return shutil.which("sshd", path="/usr/sbin:/usr/local/sbin:/usr/bin:/usr/local/bin")


def serve(connection):
    """Hands the stream over; without sshd, a banner alone."""
    connection.note("banner")
    if folder is None or not os.path.exists(_at("conf")):
        connection.stream.sendall(b"SSH-2.0-range\r\n")
        connection.stream.recv(4096)
        return
    with open(_at("log"), "ab") as log:
        subprocess.run([sshd(), "-i", "-f", _at("conf"), "-E", _at("log")],
                       stdin=connection.stream.fileno(), stdout=connection.stream.fileno(), stderr=log)
    connection.stream.shutdown(socket.SHUT_RDWR)


def _at(name):
    return os.path.join(folder, name)
