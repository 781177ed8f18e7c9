//! Envoy as it is compared with: HTTP connection manager and fault filter (at 0 %), one worker, no access log, no sinks.

use std::ffi::OsStr;
use std::net::{SocketAddr, TcpListener as StdListener};
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use serde_json::{Value, json};

use crate::process::Process;

/// How long it may take to listen.
const PATIENCE: Duration = Duration::from_secs(20);

/// Starts it; where it listens for HTTP/1.1 and h2c.
pub(crate) async fn start(
    program: &Path,
    cpu: usize,
    to: SocketAddr,
    folder: &Path,
) -> anyhow::Result<(Process, SocketAddr, SocketAddr)> {
    // Envoy cannot say which port it was given, so it gets two that were free a moment ago.
    let free = || -> anyhow::Result<(StdListener, SocketAddr)> {
        let listener = StdListener::bind("127.0.0.1:0")?;
        let address = listener.local_addr()?;
        Ok((listener, address))
    };
    let ((first, http1), (second, h2c)) = (free()?, free()?);
    let file = folder.join("envoy.json");
    std::fs::write(&file, serde_json::to_vec_pretty(&configuration(http1, h2c, to))?)
        .context("cannot write Envoy's configuration")?;
    drop((first, second));
    let options = ["--concurrency", "1", "--log-level", "error", "--disable-hot-restart", "--config-path"];
    let arguments = options.iter().map(OsStr::new).chain([file.as_os_str()]);
    let mut process = Process::start("envoy", Some(cpu), program.as_os_str(), arguments)?;
    let until = Instant::now() + PATIENCE;
    for address in [http1, h2c] {
        while tokio::net::TcpStream::connect(address).await.is_err() {
            process.check()?;
            ensure!(Instant::now() < until, "envoy does not listen after {} s", PATIENCE.as_secs());
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
    Ok((process, http1, h2c))
}

/// What it calls itself: `1.40.0`.
pub(crate) fn version(program: &Path) -> anyhow::Result<String> {
    let done = std::process::Command::new(program).arg("--version").output();
    let done = done.with_context(|| format!("cannot start {}", program.display()))?;
    let text = String::from_utf8_lossy(&done.stdout).into_owned();
    // `envoy  version: <commit>/<version>/Clean/RELEASE/BoringSSL`
    let version = text.split('/').find(|part| part.starts_with(|c: char| c.is_ascii_digit()) && part.contains('.'));
    version.map(str::to_owned).with_context(|| format!("{} is no Envoy: {text:?}", program.display()))
}

fn configuration(http1: SocketAddr, h2c: SocketAddr, to: SocketAddr) -> Value {
    json!({
        "static_resources": {
            "listeners": [listener("http1", http1, "HTTP1"), listener("h2c", h2c, "HTTP2")],
            "clusters": [
                cluster("http1", to, json!({"http_protocol_options": {}})),
                cluster("h2c", to, json!({"http2_protocol_options": {}})),
            ],
        },
    })
}

fn address(address: SocketAddr) -> Value {
    json!({"socket_address": {"address": address.ip().to_string(), "port_value": address.port()}})
}

fn listener(name: &str, at: SocketAddr, codec: &str) -> Value {
    let typed = |kind: &str, rest: Value| {
        let mut config = json!({"@type": format!("type.googleapis.com/envoy.extensions.filters.{kind}")});
        if let (Some(config), Value::Object(rest)) = (config.as_object_mut(), rest) {
            config.extend(rest);
        }
        config
    };
    let never = json!({"numerator": 0, "denominator": "HUNDRED"});
    let fault = json!({
        "abort": {"http_status": 503, "percentage": never},
        "delay": {"fixed_delay": "0.100s", "percentage": never},
    });
    let connection_manager = json!({
        "stat_prefix": name,
        "codec_type": codec,
        "route_config": {
            "virtual_hosts": [
                {"name": "all", "domains": ["*"], "routes": [{"match": {"prefix": "/"}, "route": {"cluster": name}}]},
            ],
        },
        "http_filters": [
            {"name": "envoy.filters.http.fault", "typed_config": typed("http.fault.v3.HTTPFault", fault)},
            {"name": "envoy.filters.http.router", "typed_config": typed("http.router.v3.Router", json!({}))},
        ],
    });
    let manager = typed("network.http_connection_manager.v3.HttpConnectionManager", connection_manager);
    json!({
        "name": name,
        "address": address(at),
        "enable_reuse_port": false,
        "filter_chains": [
            {"filters": [{"name": "envoy.filters.network.http_connection_manager", "typed_config": manager}]},
        ],
    })
}

fn cluster(name: &str, to: SocketAddr, protocol: Value) -> Value {
    json!({
        "name": name,
        "type": "STATIC",
        "load_assignment": {
            "cluster_name": name,
            "endpoints": [{"lb_endpoints": [{"endpoint": {"address": address(to)}}]}],
        },
        "typed_extension_protocol_options": {
            "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
                "@type": "type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions",
                "explicit_http_config": protocol,
            },
        },
    })
}
