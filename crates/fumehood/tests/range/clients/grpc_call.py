"""A gRPC client: one call, and one whose answers come one by one."""

import os
import sys

import grpc

bundle = os.environ.get("SSL_CERT_FILE", "/etc/ssl/certs/ca-certificates.crt")
with open(bundle, "rb") as file:
    trust = grpc.ssl_channel_credentials(file.read())
host = sys.argv[1]
with grpc.secure_channel(f"{host}:443", trust) as channel:
    same = {"request_serializer": bytes, "response_deserializer": bytes}
    assert channel.unary_unary("/range.Echo/Say", **same)(b"a message", timeout=10) == b"a message"
    assert list(channel.unary_stream("/range.Echo/Repeat", **same)(b"more", timeout=10)) == [b"more"] * 3
print("ok")
