//! The least a sidecar can be: it reads `kind: Sidecar`, relays TCP on every listener, and ends with its input.
//!
//! The lab's own tests run it as sidecar, to see that the wiring is right whatever the real one does.

use std::net::SocketAddr;

use aftershock_core::yaml;
use serde::Deserialize;
use tokio::net::{TcpListener, TcpStream};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Sidecar {
    #[serde(rename = "apiVersion")]
    _api_version: String,
    #[serde(rename = "kind")]
    _kind: String,
    service: String,
    #[serde(default, rename = "control")]
    _control: Option<String>,
    inbound: Vec<Inbound>,
    outbound: Vec<Outbound>,
    #[serde(rename = "association")]
    _association: Association,
    #[serde(rename = "templates")]
    _templates: Vec<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Inbound {
    listen: SocketAddr,
    to: SocketAddr,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Outbound {
    listen: SocketAddr,
    callee: String,
    to: Vec<SocketAddr>,
    #[serde(rename = "host")]
    _host: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Association {
    #[serde(rename = "carrier")]
    _carrier: String,
    #[serde(rename = "correlate")]
    _correlate: Vec<String>,
}

fn main() -> anyhow::Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [flag, path, lifeline] = &args[..] else { anyhow::bail!("expected --config FILE --exit-with-stdin") };
    anyhow::ensure!(flag == "--config" && lifeline == "--exit-with-stdin", "unexpected arguments {args:?}");
    let sidecar: Sidecar = yaml::from_str_as("Sidecar", path, &std::fs::read_to_string(path)?)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let (ended, end_of_input) = tokio::sync::oneshot::channel();
    std::thread::spawn(move || {
        // Whatever ends the input ends the relay.
        let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
        let _ = ended.send(());
    });
    runtime.block_on(async {
        for inbound in sidecar.inbound {
            serve(inbound.listen, vec![inbound.to], format!("inbound of {}", sidecar.service)).await?;
        }
        for outbound in sidecar.outbound {
            serve(outbound.listen, outbound.to, format!("outbound to {}", outbound.callee)).await?;
        }
        // An error means that the thread ended without a word, which is an end as well.
        let _ = end_of_input.await;
        anyhow::Ok(())
    })?;
    runtime.shutdown_background();
    Ok(())
}

#[allow(clippy::print_stdout, reason = "its output is what the tests look at")]
async fn serve(listen: SocketAddr, to: Vec<SocketAddr>, role: String) -> anyhow::Result<()> {
    let listener = TcpListener::bind(listen).await?;
    tokio::spawn(async move {
        // A connection at a time, as the real one.
        let mut turns = to.into_iter().cycle();
        while let (Ok((mut downstream, _)), Some(to)) = (listener.accept().await, turns.next()) {
            let role = role.clone();
            tokio::spawn(async move {
                if let Ok(mut upstream) = TcpStream::connect(to).await {
                    // Small frames would wait for each other's acknowledgement. An error means a closed connection.
                    let _ = downstream.set_nodelay(true).and_then(|()| upstream.set_nodelay(true));
                    let moved = tokio::io::copy_bidirectional(&mut downstream, &mut upstream).await;
                    let (sent, received) = moved.unwrap_or_default();
                    println!("{role}: {} bytes", sent + received);
                }
            });
        }
    });
    Ok(())
}
