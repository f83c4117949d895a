"""Signs a request as a client of AWS does (Signature Version 4) with the key in the variable AWS, and sends it.

`sign.py METHOD URL BODY SERVICE`; prints the status and what the server says of the signature.
"""

import datetime
import hashlib
import hmac
import os
import sys
import urllib.parse

import requests

method, url, body, service = sys.argv[1:]
access, secret, *token = os.environ["AWS"].split(":", 2)
body = body.encode()
now = datetime.datetime.now(datetime.timezone.utc).strftime("%Y%m%dT%H%M%SZ")
parts = urllib.parse.urlsplit(url)
fields = {"host": parts.netloc, "x-amz-date": now}
digest = hashlib.sha256(body).hexdigest()
if service == "s3":
    fields["x-amz-content-sha256"] = digest
if token:
    fields["x-amz-security-token"] = token[0]
quote = lambda text, safe="": urllib.parse.quote(text, safe=safe + "-_.~")
pairs = sorted((quote(name), quote(value)) for name, value in urllib.parse.parse_qsl(parts.query))
names = ";".join(sorted(fields))
path = parts.path if service == "s3" else quote(parts.path, "/")
canonical = "\n".join([method, path, "&".join(f"{name}={value}" for name, value in pairs),
                       "".join(f"{name}:{fields[name]}\n" for name in sorted(fields)), names, digest])
scope = f"{now[:8]}/eu-north-1/{service}/aws4_request"
text = "\n".join(["AWS4-HMAC-SHA256", now, scope, hashlib.sha256(canonical.encode()).hexdigest()])
key = f"AWS4{secret}".encode()
for part in scope.split("/"):
    key = hmac.digest(key, part.encode(), "sha256")
signature = hmac.digest(key, text.encode(), "sha256").hex()
fields["Authorization"] = f"AWS4-HMAC-SHA256 Credential={access}/{scope}, SignedHeaders={names}, Signature={signature}"
bundle = os.environ.get("REQUESTS_CA_BUNDLE", "/etc/ssl/certs/ca-certificates.crt")
answer = requests.request(method, url, data=body, headers=fields, verify=bundle, timeout=10)
print(answer.status_code, answer.text.strip())
