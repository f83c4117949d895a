"""The HTTP libraries of Python, each with one GET of the same page: all of them, or those that are named."""

import asyncio
import ssl
import sys
import urllib.request

import aiohttp
import httpx
import requests
import urllib3

url = f"https://{sys.argv[1]}/page"


def system():
    """The system's trust: some libraries bring a list of authorities of their own."""
    return ssl.create_default_context()


async def by_aiohttp():
    async with aiohttp.ClientSession(trust_env=True) as session, session.get(url, ssl=system()) as answer:
        return await answer.json()


def by_requests():
    import os

    bundle = os.environ.get("REQUESTS_CA_BUNDLE", "/etc/ssl/certs/ca-certificates.crt")
    return requests.get(url, verify=bundle, timeout=10).json()


WAYS = {
    "urllib": lambda: __import__("json").load(urllib.request.urlopen(url, timeout=10)),
    "urllib3": lambda: urllib3.PoolManager(ssl_context=system()).request("GET", url, retries=False, timeout=10).json(),
    "requests": by_requests,
    "httpx": lambda: httpx.get(url, verify=system(), timeout=10).json(),
    "httpx-2": lambda: httpx.Client(http2=True, verify=system()).get(url, timeout=10).json(),
    "aiohttp": lambda: asyncio.run(by_aiohttp()),
}
for name in sys.argv[2:] or WAYS:
    assert WAYS[name]()["host"] == sys.argv[1]
print("ok")
