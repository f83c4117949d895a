"""AWS Signature Version 4, as a server checks it: its own reading of the scheme, with the real key."""

import hashlib
import hmac
import urllib.parse

key = None


def answer(request):
    """200 with `right`, or 403 with the reason."""
    problem = _problem(request)
    return (403, [], f"{problem}\n".encode()) if problem else (200, [], b"right\n")


def _problem(request):
    access, secret, token = key
    kind, _, rest = request.field("authorization").partition(" ")
    if kind != "AWS4-HMAC-SHA256":
        return "no signature"
    parts = dict(part.strip().split("=", 1) for part in rest.split(","))
    who, day, region, service, end = parts["Credential"].split("/")
    if who != access or end != "aws4_request":
        return "another key"
    if request.field("x-amz-security-token") != token:
        return "another token"
    names = parts["SignedHeaders"].split(";")
    if "host" not in names or "x-amz-security-token" not in names:
        return "too little is signed"
    held = hashlib.sha256(request.body).hexdigest()
    digest = request.field("x-amz-content-sha256", held)
    if digest not in ("UNSIGNED-PAYLOAD", held):
        return "another body"
    path, _, query = request.target.partition("?")
    pairs = sorted((_encoded(name), _encoded(value)) for name, value in urllib.parse.parse_qsl(query, keep_blank_values=True))
    fields = "".join(f"{name}:{_value(request, name)}\n" for name in names)
    canonical = "\n".join([request.method, _encoded(urllib.parse.unquote(path), "/") if service == "s3" else _encoded(path, "/"),
                           "&".join(f"{name}={value}" for name, value in pairs), fields, ";".join(names), digest])
    scope = f"{day}/{region}/{service}/aws4_request"
    text = "\n".join(["AWS4-HMAC-SHA256", request.field("x-amz-date"), scope, hashlib.sha256(canonical.encode()).hexdigest()])
    made = f"AWS4{secret}".encode()
    for part in (day, region, service, "aws4_request"):
        made = hmac.digest(made, part.encode(), "sha256")
    signature = hmac.digest(made, text.encode(), "sha256").hex()
    return None if hmac.compare_digest(signature, parts["Signature"]) else f"the signature is wrong for {canonical!r}"


def _value(request, name):
    return ",".join(" ".join(value.split()) for own, value in request.fields if own.lower() == name)


def _encoded(text, safe=""):
    return urllib.parse.quote(text, safe=safe + "-_.~")
