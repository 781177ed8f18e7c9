//! Against peers that are not ours: grpcio and curl.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use aftershock_lab::{Options, up};

use crate::client::post;
use crate::running::{service_launcher, start};
use crate::topology_files::shipped;

const PYTHON: &str = "/usr/bin/python3";

/// Whether the peer of a Debian package is there. Without it the test is skipped aloud, or fails where peers are required.
fn peer(test: &str, package: &str, probe: &[&str]) -> bool {
    let there = Command::new(probe[0]).args(&probe[1..]).output().is_ok_and(|output| output.status.success());
    if !there {
        assert!(std::env::var_os("AFTERSHOCK_REQUIRE_PEERS").is_none_or(|v| v != "1"), "{test} needs {package}");
        eprintln!("SKIPPED {test}: needs {package}");
    }
    there
}

fn grpcio(test: &str) -> bool {
    peer(test, "python3-grpcio", &[PYTHON, "-c", "import grpc"])
}

async fn run(program: &str, args: Vec<String>) -> String {
    let output = tokio::process::Command::new(program).args(&args).kill_on_drop(true).output().await.unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    text
}

const CLIENT: &str = r#"
import grpc, json, sys

channel = grpc.insecure_channel(sys.argv[1])

def call(method, message, timeout=5):
    try:
        return "OK", channel.unary_unary(method)(message, timeout=timeout)
    except grpc.RpcError as error:
        return error.code().name, error.details()

key = lambda key: json.dumps({"key": key}).encode()
code, answer = call("/fig2.Risk/Check", key("good"))
answer = json.loads(answer)
print(code, answer["api"], answer["key"])
print(*call("/fig2.Risk/Check", key("refuse-1")))
print(*call("/fig2.Risk/Nothing", key("good")))
print(*call("/fig2.Risk/Check", b"[]"))
print(call("/grpc.health.v1.Health/Check", b""))
print(call("/fig2.Risk/Check", key("late"), timeout=0.001)[0])
"#;

#[tokio::test]
async fn grpcio_calls_a_mock_service() {
    if !grpcio("grpcio_calls_a_mock_service") {
        return;
    }
    let lab = start(shipped("fig2-patterns")).await;
    let address = lab.address("risk").unwrap().to_string();
    let said = run(PYTHON, vec!["-c".into(), CLIENT.into(), address]).await;
    let lines: Vec<&str> = said.lines().collect();
    assert_eq!(lines[0], "OK RiskCheck good");
    assert_eq!(lines[1], "FAILED_PRECONDITION RiskCheck refuses the key");
    assert_eq!(lines[2], "UNIMPLEMENTED risk has no method fig2.Risk/Nothing");
    assert!(lines[3].starts_with("INVALID_ARGUMENT expected a JSON object with `key`"), "{}", lines[3]);
    assert_eq!(lines[4], r"('OK', b'\x08\x01')");
    assert_eq!(lines[5], "DEADLINE_EXCEEDED");
}

const SERVER: &str = r#"
import concurrent.futures, grpc, json, sys

class Payment(grpc.GenericRpcHandler):
    def service(self, details):
        return grpc.unary_unary_rpc_method_handler(self.charge) if details.method.endswith("/Charge") else None

    def charge(self, message, context):
        key = json.loads(message)["key"]
        assert "grpc-timeout" not in dict(context.invocation_metadata())
        if key == "poor":
            context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "no money")
        return json.dumps({"api": "Charge", "key": key}).encode()

server = grpc.server(concurrent.futures.ThreadPoolExecutor(2))
server.add_generic_rpc_handlers((Payment(),))
print(server.add_insecure_port("127.0.0.1:0"), flush=True)
server.start()
sys.stdin.read()
"#;

#[tokio::test]
async fn a_mock_service_calls_grpcio() {
    if !grpcio("a_mock_service_calls_grpcio") {
        return;
    }
    use tokio::io::{AsyncBufReadExt, BufReader};
    let mut server = tokio::process::Command::new(PYTHON)
        .args(["-c", SERVER])
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let mut port = String::new();
    BufReader::new(server.stdout.take().unwrap()).read_line(&mut port).await.unwrap();
    let address = format!("127.0.0.1:{}", port.trim()).parse().unwrap();
    let detours = BTreeMap::from([("paymentservice".to_owned(), address)]);
    let lab = up(shipped("online-boutique"), &Options { detours, ..Options::new(service_launcher()) }).await.unwrap();
    let checkout = lab.entry("checkout").unwrap();
    let (status, body) = post(checkout, "/cart/checkout?key=rich").await;
    assert_eq!(status, 200, "{body}");
    let (status, body) = post(checkout, "/cart/checkout?key=poor").await;
    assert_eq!(status, 500);
    assert_eq!(body["error"], "PlaceOrder: INTERNAL, Charge: RESOURCE_EXHAUSTED, no money");
    assert_eq!(lab.ledger("shipments", "poor").await.unwrap().count, 0);
}

#[tokio::test]
async fn curl_is_a_client_and_reads_ledgers() {
    if !peer("curl_is_a_client_and_reads_ledgers", "curl", &["curl", "--version"]) {
        return;
    }
    assert!(Path::new("/dev/null").exists());
    let lab = start(shipped("online-boutique")).await;
    let base = format!("http://{}", lab.entry("checkout").unwrap());
    let curl = |args: &[&str]| {
        let fixed = ["-sS", "--max-time", "10", "-w", "\n%{http_code} %{http_version} %{num_connects}"];
        run("curl", fixed.iter().chain(args).map(|arg| (*arg).to_owned()).collect())
    };
    let body = r#"{"key": "k", "params": {"cart_items": 1}}"#;
    let order = curl(&["-H", "content-type: application/json", "-d", body, &format!("{base}/cart/checkout")]).await;
    let (answer, code) = order.rsplit_once('\n').unwrap();
    assert_eq!(code, "200 1.1 1");
    assert_eq!(serde_json::from_str::<serde_json::Value>(answer).unwrap()["api"], "checkout");
    let log = lab.events("k").await.unwrap();
    assert_eq!(log.calls().iter().filter(|call| call.parent.is_some()).count(), 18, "one line in the cart");

    let (home, cart) = (format!("{base}/?key=k"), format!("{base}/cart?key=k"));
    let pages = curl(&[&home, &cart]).await;
    let codes: Vec<&str> = pages.lines().filter(|line| line.starts_with("200")).collect();
    assert!(pages.contains("200 1.1 0"), "the second request reuses the connection: {codes:?}");

    let ledger = curl(&["-G", "--data-urlencode", "key=k", &lab.ledger_url("charges").unwrap()]).await;
    let ledger: serde_json::Value = serde_json::from_str(ledger.rsplit_once('\n').unwrap().0).unwrap();
    assert_eq!(ledger["count"], 1);
}
