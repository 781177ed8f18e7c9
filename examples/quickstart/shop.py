"""The caller of the quick start: sells by reserving at the stock, which it reaches through its own sidecar.

Like any service with W3C trace context it hands `traceparent` and `tracestate` on to what it calls. It knows nothing
of Aftershock. Plain Python, no dependencies."""

import json
import sys
import urllib.error
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

STOCK = sys.argv[2]


class Shop(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        body = self.rfile.read(int(self.headers["content-length"]))
        context = {name: self.headers[name] for name in ("traceparent", "tracestate") if self.headers[name]}
        request = urllib.request.Request(STOCK + "/reserve", body, {"content-type": "application/json", **context})
        # The weakness: when the answer does not come, the shop just asks again.
        for attempt in (1, 2):
            try:
                with urllib.request.urlopen(request, timeout=0.5) as response:
                    return self.answer(200, json.loads(response.read()))
            except (OSError, urllib.error.URLError):
                if attempt == 2:
                    return self.answer(502, {"reserved": False})

    def answer(self, status, value):
        body = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Shop).serve_forever()
