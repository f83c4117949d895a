"""A WebSocket client: one message there and back."""

import asyncio
import sys

import websockets


async def main():
    async with websockets.connect(f"wss://{sys.argv[1]}/socket") as socket:
        await socket.send("a message of websocket.py")
        assert await socket.recv() == "a message of websocket.py"
    print("ok")


asyncio.run(main())
