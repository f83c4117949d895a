"""The HTTP libraries of Python, each with one GET of the same page."""

import asyncio
import ssl
import sys
import urllib.request

import aiohttp
import httpx
import requests

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


for way in (
    lambda: __import__("json").load(urllib.request.urlopen(url, timeout=10)),
    by_requests,
    lambda: httpx.get(url, verify=system(), timeout=10).json(),
    lambda: httpx.Client(http2=True, verify=system()).get(url, timeout=10).json(),
    lambda: asyncio.run(by_aiohttp()),
):
    assert way()["host"] == sys.argv[1]
print("ok")
