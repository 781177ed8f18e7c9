//! One mock service as a process: its listeners, its handlers, its connections, its memory.
//!
//! It lives as long as its standard input: the parent writes the [`ServiceSpec`] as one line and keeps the pipe open, so
//! that no service outlives the lab however that ends.

mod call;
mod context;
mod grpc;
mod handler;
mod inbound;
mod memory;
mod outbound;
mod payload;

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::io::{BufRead, Read};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use anyhow::{Context as _, bail, ensure};
use bytes::Bytes;
use http_body_util::combinators::BoxBody;
use serde::{Deserialize, Serialize};
use tokio::net::TcpListener;
use tokio::sync::{mpsc, oneshot};

use self::memory::Memory;
use self::outbound::{Channel, Http1, Http2};
use crate::file::Protocol;
use crate::scalar::{GrpcCode, Status};
use crate::topology::{Api, Client, Propagation, Topology};

type Body = BoxBody<Bytes, Infallible>;

/// Version of [`ServiceSpec`].
pub const SPEC_SCHEMA: &str = "aftershock.dev/lab-service/v1alpha1";

/// Which service to run, and where it finds the others.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ServiceSpec {
    /// [`SPEC_SCHEMA`].
    pub schema: String,
    /// Name of the topology's file, for errors.
    pub topology_file: String,
    /// The topology's text.
    pub topology: String,
    /// The service of the topology to run.
    pub service: String,
    /// Where its callers, or its sidecar, reach it.
    pub listen: SocketAddr,
    /// Where its ledgers, events and health are read.
    pub admin: SocketAddr,
    /// Where those of the service's other instances are read: each answers for the ledgers of all.
    #[serde(default)]
    pub replicas: Vec<SocketAddr>,
    /// It is on a network of the lab's own, whose addresses nobody else reaches.
    #[serde(default)]
    pub isolated: bool,
    /// Where it reaches each service that it calls: it keeps one connection for each address and takes them in turn, a
    /// call at a time. Addresses may repeat, where something behind one spreads connections.
    pub callees: BTreeMap<String, Vec<SocketAddr>>,
    /// Where it writes down what it must not forget when it is killed, and reads it again at its start.
    #[serde(default)]
    pub journal: Option<PathBuf>,
    /// Replaces the propagation of the file.
    pub propagation: Option<Propagation>,
}

/// A running service.
#[derive(Debug)]
struct Process {
    topology: Topology,
    service: String,
    protocol: Protocol,
    propagation: Option<Propagation>,
    client: Client,
    memory: Memory,
    replicas: Vec<SocketAddr>,
    channels: BTreeMap<String, Channels>,
    calls: AtomicU64,
    /// Distinguishes the calls of a restarted process from those of the one before.
    start: u32,
    crashed: mpsc::UnboundedSender<String>,
}

/// The ways to one callee, taken in turn.
#[derive(Debug)]
struct Channels {
    ways: Vec<(SocketAddr, Channel)>,
    taken: AtomicUsize,
}

impl Process {
    fn new(spec: ServiceSpec, crashed: mpsc::UnboundedSender<String>) -> anyhow::Result<Self> {
        ensure!(spec.schema == SPEC_SCHEMA, "expected schema {SPEC_SCHEMA}, found {}", spec.schema);
        let topology = Topology::parse(&spec.topology_file, &spec.topology)?;
        let service = topology.service(&spec.service).with_context(|| format!("no service `{}`", spec.service))?;
        let mut channels = BTreeMap::new();
        for callee in topology.callees(&spec.service) {
            let channel = |&address: &SocketAddr| match callee.protocol {
                Protocol::Http1 => (address, Channel::Http1(Http1::new(address))),
                Protocol::Grpc => (address, Channel::Http2(Http2::new(address))),
            };
            let ways: Vec<_> = spec.callees.get(&callee.name).into_iter().flatten().map(channel).collect();
            ensure!(!ways.is_empty(), "no address for callee `{}`", callee.name);
            channels.insert(callee.name.clone(), Channels { ways, taken: AtomicUsize::new(0) });
        }
        Ok(Self {
            service: service.name.clone(),
            protocol: service.protocol,
            propagation: service.propagation.map(|shipped| spec.propagation.unwrap_or(shipped)),
            client: service.client,
            memory: Memory::open(&service.name, spec.journal.as_deref())?,
            replicas: spec.replicas,
            channels,
            calls: AtomicU64::new(0),
            start: getrandom::u32()?,
            crashed,
            topology,
        })
    }

    fn own_apis(&self) -> impl Iterator<Item = &Api> {
        self.topology.apis().filter(|api| api.service == self.service)
    }

    fn keeps(&self, ledger: &str) -> bool {
        self.topology.ledgers().any(|(name, service)| name == ledger && service == self.service)
    }

    fn channel(&self, callee: &str) -> (SocketAddr, &Channel) {
        let channels = self.channels.get(callee).expect("every callee got channels at the start");
        let turn = channels.taken.fetch_add(1, Ordering::Relaxed) % channels.ways.len();
        let (address, channel) = &channels.ways[turn];
        (*address, channel)
    }

    fn next_call(&self) -> String {
        format!("{}.{:08x}.{}", self.service, self.start, self.calls.fetch_add(1, Ordering::Relaxed) + 1)
    }

    /// A span id; not 0, which W3C forbids.
    fn next_span(&self) -> u64 {
        getrandom::u64().unwrap_or_else(|_| self.calls.load(Ordering::Relaxed)).max(1)
    }

    fn success(&self) -> Status {
        crate::resolve::success(self.protocol)
    }

    fn internal_error(&self) -> Status {
        match self.protocol {
            Protocol::Http1 => Status::Http(500),
            Protocol::Grpc => Status::Grpc(GrpcCode::Internal),
        }
    }

    /// Ends the process as soon as the runtime gets to it.
    fn crash(&self, cause: &str) {
        // Without receiver the process is ending already.
        let _ = self.crashed.send(cause.to_owned());
    }
}

/// Runs the service of `spec` until `stop` resolves or a handler crashes it.
pub async fn run(spec: ServiceSpec, stop: impl Future<Output = ()>) -> anyhow::Result<()> {
    let (crashed, mut crash) = mpsc::unbounded_channel();
    let (listen, admin) = (spec.listen, spec.admin);
    // Whoever reaches it reads ledgers and logs, and is asked for nothing.
    let private = admin.ip().is_loopback() || spec.isolated;
    anyhow::ensure!(private, "expected a loopback address for ledgers and events, found {admin}");
    let process = Arc::new(Process::new(spec, crashed)?);
    let bind = |address: SocketAddr| async move {
        TcpListener::bind(address).await.with_context(|| format!("cannot listen on {address}"))
    };
    tokio::spawn(inbound::serve_application(process.clone(), bind(listen).await?));
    // Last, since an answer here tells the parent that the service is ready.
    tokio::spawn(inbound::serve_state(process, bind(admin).await?));
    tokio::pin!(stop);
    tokio::select! {
        () = &mut stop => Ok(()),
        Some(cause) = crash.recv() => bail!("crashed, as the topology says: {cause}"),
    }
}

/// Runs the service whose spec is the first line of standard input, until end of input or SIGTERM.
pub fn main() -> anyhow::Result<()> {
    let mut line = String::new();
    std::io::stdin().lock().read_line(&mut line).context("cannot read the spec from standard input")?;
    let spec: ServiceSpec = serde_json::from_str(&line).context("the spec on standard input is malformed")?;
    let (ended, end_of_input) = oneshot::channel();
    std::thread::spawn(move || {
        let mut rest = [0; 256];
        let mut stdin = std::io::stdin().lock();
        while matches!(stdin.read(&mut rest), Ok(1..)) {}
        // Without receiver the process is ending already.
        let _ = ended.send(());
    });
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let outcome = runtime.block_on(async {
        let mut terminate = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate())?;
        let stop = async {
            tokio::select! {
                _ = end_of_input => {}
                _ = terminate.recv() => {}
            }
        };
        run(spec, stop).await
    });
    // The thread above may still wait for input.
    runtime.shutdown_background();
    outcome
}
