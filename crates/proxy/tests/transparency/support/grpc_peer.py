"""A gRPC server and client without generated code, for comparing exchanges with and without a sidecar.

`serve HOST` prints the port it listens on and serves until its input ends; `call ADDRESS` makes one call of each kind and prints
what the application sees of it: messages, metadata, status; `try ADDRESS SECONDS` makes one call and prints its status,
and that of a second one on the same channel; `again ADDRESS` does so with a second one that waits for a connection, `anew
ADDRESS` with one that begins when the first connection is lost; `stream ADDRESS METHOD` does so with a call of several
messages; `last ADDRESSES` calls until its input ends and prints which statuses it saw. Needs the Debian package python3-grpcio.
"""

import json
import os
import sys
import threading
from concurrent import futures

import grpc

OPTIONS = [
    ("grpc.max_metadata_size", 64 * 1024),
    ("grpc.so_reuseport", 0),
    # Otherwise the channels of one process share a connection.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
] + list(json.loads(os.environ.get("GRPC_OPTIONS", "{}")).items())
# The context of the round, where there is one.
CONTEXT = [("tracestate", os.environ["TRACESTATE"])] if "TRACESTATE" in os.environ else []
CANCELLED = threading.Event()


def unary(request, context):
    context.send_initial_metadata((("x-initial", "1"), ("x-initial-bin", b"\0\xff")))
    context.set_trailing_metadata((("x-trailing", "2"), ("x-trailing-bin", bytes(range(40)))))
    return request[::-1]


def refuse(request, context):
    """A trailers-only answer: nothing is sent before the status."""
    context.abort(grpc.StatusCode.FAILED_PRECONDITION, "refused: \u00e9 100%")


def metadata(request, context):
    own = sorted(f"{m.key}={m.value!r}" for m in context.invocation_metadata() if m.key.startswith("x-"))
    return "&".join(own).encode()


def large_trailers(request, context):
    context.set_trailing_metadata((("x-large", "v" * 16 * 1024),))
    return b"large"


def count(request, context):
    for number in range(int(request)):
        yield b"%d" % number


def fail_midway(request, context):
    yield b"one"
    yield b"two"
    context.abort(grpc.StatusCode.DATA_LOSS, "midway")


def collect(requests, context):
    return b"+".join(requests)


def echo(requests, context):
    for request in requests:
        yield request


def endless(request, context):
    context.add_callback(CANCELLED.set)
    yield b"first"
    while context.is_active() and not CANCELLED.wait(0.01):
        pass


def ticks(request, context):
    """Goes on until somebody ends it."""
    context.add_callback(CANCELLED.set)
    while not CANCELLED.wait(0.01):
        yield b"tick"


def was_cancelled(request, context):
    return b"yes" if CANCELLED.wait(10) else b"no"


def slow(request, context):
    done = threading.Event()
    context.add_callback(done.set)
    done.wait(10)
    return b"late"


UNARY = {"Unary": unary, "Refuse": refuse, "Metadata": metadata, "LargeTrailers": large_trailers,
         "WasCancelled": was_cancelled, "Slow": slow}
STREAM = {"Count": count, "FailMidway": fail_midway, "Endless": endless, "Ticks": ticks}


def serve(host):
    handlers = {name: grpc.unary_unary_rpc_method_handler(run) for name, run in UNARY.items()}
    handlers |= {name: grpc.unary_stream_rpc_method_handler(run) for name, run in STREAM.items()}
    handlers["Collect"] = grpc.stream_unary_rpc_method_handler(collect)
    handlers["Echo"] = grpc.stream_stream_rpc_method_handler(echo)
    server = grpc.server(futures.ThreadPoolExecutor(16), options=OPTIONS)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("test.Peer", handlers),))
    print(server.add_insecure_port(f"{host}:0"), flush=True)
    server.start()
    sys.stdin.read()
    server.stop(None)


class Tagged(grpc.UnaryUnaryClientInterceptor, grpc.UnaryStreamClientInterceptor, grpc.StreamUnaryClientInterceptor,
             grpc.StreamStreamClientInterceptor):
    """Every call carries the context."""

    def tag(self, go_on, details, request):
        return go_on(details._replace(metadata=list(details.metadata or ()) + CONTEXT), request)

    intercept_unary_unary = intercept_unary_stream = intercept_stream_unary = intercept_stream_stream = tag


def connect(address):
    channel = grpc.insecure_channel(address, options=OPTIONS)
    return channel, grpc.intercept_channel(channel, Tagged()) if CONTEXT else channel


def pairs(metadata):
    """Metadata as it came, without what is ours to change or the transport's own."""
    return [(m.key, m.value) for m in metadata or () if not m.key.startswith(("grpc-", "content-", "user-agent", "date"))]


def show(name, *what):
    print(name, *what, flush=True)


def outcome(name, call, results):
    if isinstance(results, bytes) and len(results) > 200:
        results = len(results)
    show(name, results, call.code(), repr(call.details()), pairs(call.initial_metadata()), pairs(call.trailing_metadata()))


def call(address):
    channel, calling = connect(address)

    def method(kind, name):
        return getattr(calling, kind)(f"/test.Peer/{name}")

    def unary_call(name, request, **more):
        try:
            answer, made = method("unary_unary", name).with_call(request, **more)
            outcome(name, made, answer)
        except grpc.RpcError as error:
            outcome(name, error, None)

    def stream_call(name, made):
        got = []
        try:
            for message in made:
                got.append(message)
        except grpc.RpcError:
            pass
        outcome(name, made, got)

    unary_call("Unary", b"abc")
    unary_call("Unary", b"x" * 300_000)
    unary_call("Unary", b"x" * (4 << 20))
    unary_call("Refuse", b"")
    unary_call("Nowhere", b"")
    unary_call("Metadata", b"", metadata=(("x-b", "2"), ("x-a-bin", b"\1\2\3"), ("x-a", "1"), ("x-a", "0")))
    unary_call("LargeTrailers", b"")
    stream_call("Count", method("unary_stream", "Count")(b"1000"))
    stream_call("Count", method("unary_stream", "Count")(b"0"))
    stream_call("FailMidway", method("unary_stream", "FailMidway")(b""))
    collected = method("stream_unary", "Collect").with_call(iter([b"a", b"b" * 100_000, b"c"]))
    show("Collect", len(collected[0]), collected[0][:4], collected[1].code())
    # Each answer must come before the next request is sent: nothing may be buffered.
    asked = threading.Semaphore(1)

    def requests():
        for number in range(50):
            asked.acquire()
            yield b"%d" % number

    echoed = method("stream_stream", "Echo")(requests())
    got = []
    for message in echoed:
        got.append(message)
        asked.release()
    outcome("Echo", echoed, got)
    cancelled = method("unary_stream", "Endless")(b"")
    first = next(cancelled)
    cancelled.cancel()
    show("Endless", first, cancelled.code())
    unary_call("WasCancelled", b"")
    try:
        method("unary_unary", "Slow")(b"", timeout=0.3)
    except grpc.RpcError as error:
        # Both sides have a clock; whose words come first is a race.
        show("Slow", error.code())
    running = [method("unary_unary", "Unary").future(b"%d" % number * 1000) for number in range(50)]
    show("Parallel", [done.result()[:2] for done in running])
    channel.close()


def try_once(address, seconds):
    channel = grpc.insecure_channel(address, options=OPTIONS)
    for name in ("Unary", "Metadata"):
        try:
            channel.unary_unary(f"/test.Peer/{name}")(b"abc", timeout=seconds)
            show(name, "OK")
        except grpc.RpcError as error:
            show(name, error.code().name, error.details())
    channel.close()


def when_lost(channel):
    """Returns when the channel knows that it has no connection."""
    lost = threading.Event()
    channel.subscribe(lambda state: state is grpc.ChannelConnectivity.READY or lost.set())
    lost.wait()


def again(address, anew):
    channel, calling = connect(address)
    for name, wait in (("Unary", False), ("Metadata", True)):
        try:
            calling.unary_unary(f"/test.Peer/{name}")(b"abc", timeout=20, wait_for_ready=wait)
            show(name, "OK")
        except grpc.RpcError as error:
            show(name, error.code().name)
        if anew and not wait:
            when_lost(channel)
    channel.close()


def stream(address, name):
    channel = grpc.insecure_channel(address, options=OPTIONS)
    got, asked = [], threading.Semaphore(1)

    def requests():
        for number in range(50):
            asked.acquire()
            yield b"%d" % number

    if name == "Echo":
        made = channel.stream_stream("/test.Peer/Echo")(requests())
    else:
        made = channel.unary_stream(f"/test.Peer/{name}")(b"50")
    try:
        for message in made:
            got.append(message)
            asked.release()
    except grpc.RpcError:
        pass
    asked.release()
    show(name, got, made.code().name, made.details())
    if name == "Ticks":
        show("WasCancelled", channel.unary_unary("/test.Peer/WasCancelled")(b"", wait_for_ready=True))
    channel.unary_unary("/test.Peer/Metadata")(b"", wait_for_ready=True)
    show("Metadata", "OK")
    channel.close()


def last(addresses):
    """Calls all the time until the input ends, some at once, on a channel of their own each."""
    over, outcomes, lock, answered = threading.Event(), set(), threading.Lock(), [0]

    def caller():
        channel = grpc.insecure_channel(addresses, options=OPTIONS)
        unary = channel.unary_unary("/test.Peer/Unary")
        while not over.is_set():
            try:
                unary(b"abc")
                outcome = "OK"
            except grpc.RpcError as error:
                outcome = error.code().name
                print(error.details(), file=sys.stderr)
            with lock:
                outcomes.add(outcome)
                answered[0] += 1
                if answered[0] % 500 == 0:
                    show(answered[0])
        channel.close()

    callers = [threading.Thread(target=caller) for _ in range(8)]
    for each in callers:
        each.start()
    sys.stdin.read()
    over.set()
    for each in callers:
        each.join()
    show("outcomes", ",".join(sorted(outcomes)))


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        serve(sys.argv[2])
    elif sys.argv[1] == "try":
        try_once(sys.argv[2], float(sys.argv[3]))
    elif sys.argv[1] in ("again", "anew"):
        again(sys.argv[2], sys.argv[1] == "anew")
    elif sys.argv[1] == "stream":
        stream(sys.argv[2], sys.argv[3])
    elif sys.argv[1] == "last":
        last(sys.argv[2])
    else:
        call(sys.argv[2])
