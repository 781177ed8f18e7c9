"""The callee of the quick start: reserves an item for an order, and remembers it. Plain Python, no dependencies."""

import json
import sys
import urllib.parse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

reservations = {}


class Stock(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        order = json.loads(self.rfile.read(int(self.headers["content-length"])))["order"]
        reservations.setdefault(order, []).append("item")
        self.answer({"reserved": True})

    def do_GET(self):
        order = urllib.parse.parse_qs(urllib.parse.urlsplit(self.path).query).get("order", [""])[0]
        self.answer({"count": len(reservations.get(order, []))})

    def answer(self, value):
        body = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Stock).serve_forever()
