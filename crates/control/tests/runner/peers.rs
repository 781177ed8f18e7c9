//! The runner's gRPC client against grpcio, the implementation that most services speak with.

use std::process::Stdio;

use aftershock_control::api::OracleVerdict;
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::{Child, Command};

use crate::stage::{Controller, Log, runner, scenario};

const PYTHON: &str = "/usr/bin/python3";

/// A server without generated code: it takes and gives bytes.
const SERVER: &str = r#"
import grpc, json, sys
from concurrent import futures

class Handler(grpc.GenericRpcHandler):
    def service(self, details):
        method = details.method.rsplit("/", 1)[-1]
        def call(request, context):
            if method == "Refuse":
                context.abort(grpc.StatusCode.FAILED_PRECONDITION, "no – not now")
            sent = dict(context.invocation_metadata())
            return json.dumps({
                "message": request.decode(),
                "tracestate": sent.get("tracestate", ""),
                "traceparent": sent.get("traceparent", ""),
            }).encode()
        return grpc.unary_unary_rpc_method_handler(call) if method in ("Echo", "Refuse") else None

server = grpc.server(futures.ThreadPoolExecutor(max_workers=2))
server.add_generic_rpc_handlers((Handler(),))
print(server.add_insecure_port("127.0.0.1:0"), flush=True)
server.start()
sys.stdin.read()
"#;

/// A running grpcio server and its port; none where there is no grpcio.
async fn grpcio() -> Option<(Child, u16)> {
    let probe = Command::new(PYTHON).args(["-c", "import grpc"]).stderr(Stdio::null()).status().await;
    if !probe.is_ok_and(|status| status.success()) {
        let required = std::env::var_os("AFTERSHOCK_REQUIRE_PEERS").is_some_and(|value| value == "1");
        assert!(!required, "{PYTHON} has no grpcio (Debian: python3-grpcio), and AFTERSHOCK_REQUIRE_PEERS=1");
        eprintln!("SKIPPED a test with grpcio: {PYTHON} has none (Debian: python3-grpcio)");
        return None;
    }
    let mut child = Command::new(PYTHON)
        .args(["-c", SERVER])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).await.unwrap();
    let port = line.trim().parse().unwrap();
    Some((child, port))
}

#[tokio::test]
async fn grpcio_takes_our_calls_and_we_its_answers() {
    let Some((_server, port)) = grpcio().await else { return };
    for (method, expect, found) in [
        (
            "Echo",
            "{grpc_status: 0, body: [{json_path: $.message, equals: hi}, {json_path: $.tracestate, matches: \"^aft=1-0-0-00000000000000aa-[0-9a-f]{8}$\"}, {json_path: $.traceparent, matches: \"^00-\"}]}",
            &[][..],
        ),
        ("Refuse", "{}", &["call: expected grpc-status 0, found 9 (no – not now)"]),
        ("Refuse", "{grpc_status: 9}", &[]),
        ("Unknown", "{grpc_status: 12}", &[]),
    ] {
        let log = Log::default();
        let spec = format!(
            "  entry: http://127.0.0.1:{port}\n  requests:\n    - {{name: call, grpc: {{method: shop.Echo/{method}, message: hi}}, expect: {expect}}}\n"
        );
        let (runner, _) = runner(Controller::default(), scenario(&spec), &log).await;
        let outcome = runner.round(None, &()).await.unwrap();
        assert_eq!(outcome.oracle.differences, found, "{method}");
        assert_eq!(outcome.oracle.found == OracleVerdict::Held, found.is_empty());
    }
}
