"""HTTP/1 origins: says what it took each request for, `echo METHOD TARGET BYTES`. The listening socket is standard input.

Usage: http_peer.py aiohttp|h11|httptools
"""

import asyncio
import socket
import sys


def listening():
    return socket.socket(fileno=0)


async def with_aiohttp():
    from aiohttp import WSMsgType, web

    async def answer(request):
        if request.path == "/ws":
            ws = web.WebSocketResponse()
            await ws.prepare(request)
            async for message in ws:
                if message.type == WSMsgType.TEXT:
                    await ws.send_str("back " + message.data)
            return ws
        body = await request.read()
        return web.Response(text=f"echo {request.method} {request.raw_path} {len(body)}\n")

    app = web.Application(client_max_size=1 << 30)
    app.router.add_route("*", "/{rest:.*}", answer)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.SockSite(runner, listening()).start()
    await asyncio.Event().wait()


async def with_uvicorn(parser):
    import uvicorn

    async def app(scope, receive, send):
        if scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.accept"})
            while (event := await receive())["type"] == "websocket.receive":
                await send({"type": "websocket.send", "text": "back " + event["text"]})
            return
        length, more = 0, True
        while more:
            event = await receive()
            if event["type"] == "http.disconnect":
                return
            length += len(event.get("body", b""))
            more = event.get("more_body", False)
        target = scope["raw_path"].decode() + ("?" + scope["query_string"].decode() if scope["query_string"] else "")
        body = f"echo {scope['method']} {target} {length}\n".encode()
        headers = [(b"content-type", b"text/plain"), (b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    config = uvicorn.Config(app, http=parser, log_level="critical", lifespan="off", loop="asyncio", ws="websockets")
    await uvicorn.Server(config).serve(sockets=[listening()])


kind = sys.argv[1]
asyncio.run(with_aiohttp() if kind == "aiohttp" else with_uvicorn(kind))
