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

/// A server with reflection, whose types are made at run time from two files, one of which imports the other. It also
/// writes a set of descriptors.
const TYPED: &str = r#"
import sys
import grpc
from concurrent import futures
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from grpc_reflection.v1alpha import reflection

T = descriptor_pb2.FieldDescriptorProto
def field(name, number, kind, label=T.LABEL_OPTIONAL, of=None):
    return T(name=name, number=number, type=kind, label=label, type_name=of, json_name=name.title().replace("_", "")[0].lower() + name.title().replace("_", "")[1:])

money = descriptor_pb2.FileDescriptorProto(name="money.proto", package="shop", syntax="proto3")
money.message_type.add(name="Money").field.append(field("cents", 1, T.TYPE_INT64))
shop = descriptor_pb2.FileDescriptorProto(name="shop.proto", package="shop", syntax="proto3", dependency=["money.proto"])
shop.message_type.add(name="Order").field.extend([
    field("order_id", 1, T.TYPE_STRING),
    field("prices", 2, T.TYPE_MESSAGE, T.LABEL_REPEATED, ".shop.Money"),
])
shop.message_type.add(name="Receipt").field.extend([
    field("order_id", 1, T.TYPE_STRING),
    field("total", 2, T.TYPE_MESSAGE, of=".shop.Money"),
    field("failed", 3, T.TYPE_BOOL),
])
service = shop.service.add(name="Checkout")
service.method.add(name="Place", input_type=".shop.Order", output_type=".shop.Receipt")
service.method.add(name="Watch", input_type=".shop.Order", output_type=".shop.Receipt", server_streaming=True)
pool = descriptor_pool.Default()
for file in (money, shop):
    pool.AddSerializedFile(file.SerializeToString())
open(sys.argv[1], "wb").write(descriptor_pb2.FileDescriptorSet(file=[money, shop]).SerializeToString())
factory = message_factory.MessageFactory(pool)
Order, Receipt = (factory.GetPrototype(pool.FindMessageTypeByName("shop." + name)) for name in ("Order", "Receipt"))

def place(order, context):
    receipt = Receipt(order_id=order.order_id)
    receipt.total.cents = sum(price.cents for price in order.prices)
    return receipt

server = grpc.server(futures.ThreadPoolExecutor(max_workers=2))
handler = grpc.unary_unary_rpc_method_handler(place, request_deserializer=Order.FromString, response_serializer=Receipt.SerializeToString)
server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("shop.Checkout", {"Place": handler}),))
if sys.argv[2] == "reflection":
    reflection.enable_server_reflection(("shop.Checkout", reflection.SERVICE_NAME), server)
print(server.add_insecure_port("127.0.0.1:0"), flush=True)
server.start()
sys.stdin.read()
"#;

/// Where Python finds grpcio's reflection: with the system's packages, or fetched beside the tests' own files.
async fn reflection() -> Option<std::path::PathBuf> {
    let folder = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("grpcio-reflection");
    let there = || async {
        let probe = Command::new(PYTHON)
            .env("PYTHONPATH", &folder)
            .args(["-c", "import grpc, google.protobuf, grpc_reflection.v1alpha.reflection"])
            .stderr(Stdio::null())
            .status();
        probe.await.is_ok_and(|status| status.success())
    };
    if !there().await {
        // Debian has no package of it; this is the release of the same date as its grpcio.
        let mut pip = Command::new(PYTHON);
        pip.args(["-m", "pip", "install", "--quiet", "--no-deps", "grpcio-reflection==1.51.1", "--target"])
            .arg(&folder);
        let _ = pip.stdout(Stdio::null()).stderr(Stdio::null()).status().await;
    }
    if there().await {
        return Some(folder);
    }
    let required = std::env::var_os("AFTERSHOCK_REQUIRE_PEERS").is_some_and(|value| value == "1");
    assert!(!required, "{PYTHON} has no grpcio-reflection, and AFTERSHOCK_REQUIRE_PEERS=1");
    eprintln!(
        "SKIPPED a test with grpcio's reflection: it is not installed (python3-grpcio, python3-protobuf, PyPI: grpcio-reflection)"
    );
    None
}

async fn typed(folder: &std::path::Path, python_path: &std::path::Path, mode: &str) -> (Child, u16) {
    let mut child = Command::new(PYTHON)
        .env("PYTHONPATH", python_path)
        .args(["-c", TYPED, &folder.join("shop.binpb").display().to_string(), mode])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).await.unwrap();
    (child, line.trim().parse().unwrap())
}

#[tokio::test]
async fn a_message_is_written_as_json_by_reflection_or_by_a_file_of_descriptors() {
    let Some(python_path) = reflection().await else { return };
    let folder = tempfile::tempdir().unwrap();
    let (_server, port) = typed(folder.path(), &python_path, "reflection").await;
    let (_bare, bare) = typed(folder.path(), &python_path, "bare").await;
    let round = async |port: u16, call: &str| {
        let log = Log::default();
        let text = format!(
            "apiVersion: aftershock.dev/v1alpha1\nkind: Scenario\nmetadata: {{name: s}}\nspec:\n  entry: http://127.0.0.1:{port}\n  requests:\n    \
             - name: place\n      grpc: {call}\n      extract: {{id: {{json_path: $.orderId}}}}\n      \
             expect: {{body: [{{json_path: $.total.cents, equals: 12}}, {{json_path: $.failed, equals: false}}]}}\n"
        );
        let file = folder.path().join("s.yaml").display().to_string();
        let scenario =
            aftershock_control::scenario::Scenario::parse(&file, &text).unwrap_or_else(|error| panic!("{error}"));
        let (runner, _) = runner(Controller::default(), scenario, &log).await;
        let outcome = runner.round(None, &()).await.map_err(|error| error.to_string());
        // What cannot be sent is refused before anything is armed.
        assert_eq!(outcome.is_err(), log.lines().is_empty(), "{:?}", log.lines());
        outcome
    };
    let json = "json: {orderId: \"{key}\", prices: [{cents: 5}, {cents: \"7\"}]}";
    for (port, call) in [
        (port, format!("{{method: shop.Checkout/Place, {json}, reflection: true}}")),
        (bare, format!("{{method: shop.Checkout/Place, {json}, descriptors: shop.binpb}}")),
    ] {
        let outcome = round(port, &call).await.unwrap();
        assert_eq!(outcome.oracle.differences, [""; 0]);
    }
    for (port, call, expected) in [
        (
            port,
            "{method: shop.Checkout/Plaze, json: {}, reflection: true}",
            "`shop.Checkout` has no method `Plaze`; did you mean `Place`?",
        ),
        (
            port,
            "{method: shop.Checkout/Watch, json: {}, reflection: true}",
            "`shop.Checkout/Watch` is a streaming call",
        ),
        (port, "{method: shop.Checkuot/Place, json: {}, reflection: true}", "did not describe `shop.Checkuot`"),
        (
            port,
            "{method: shop.Checkout/Place, json: {orderld: x}, reflection: true}",
            "unknown field `orderld` of shop.Order; did you mean `orderId`?",
        ),
        (
            port,
            "{method: shop.Checkout/Place, json: {prices: [{cent: 1}]}, reflection: true}",
            "unknown field `cent` of shop.Money; did you mean `cents`?",
        ),
        (
            port,
            "{method: shop.Checkout/Place, json: {prices: {cents: many}}, reflection: true}",
            "not a message of shop.Order",
        ),
        (bare, "{method: shop.Checkout/Place, json: {}, reflection: true}", "it has no reflection"),
        (
            bare,
            "{method: shop.Checkuot/Place, json: {}, descriptors: shop.binpb}",
            "unknown service `shop.Checkuot`; did you mean `shop.Checkout`?",
        ),
        (bare, "{method: shop.Checkout/Place, json: {}, descriptors: gone.binpb}", "failed to read"),
        (bare, "{method: shop.Checkout/Place, json: {}, descriptors: s.txt}", "is no set of descriptors"),
    ] {
        std::fs::write(folder.path().join("s.txt"), "no descriptors").unwrap();
        let error = round(port, call).await.unwrap_err();
        assert!(error.starts_with("failed to build the request \"place\"") && error.contains(expected), "{error}");
    }
}
