//! The processes between which the load runs: the origin, the relay, the sidecar.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::{Duration, Instant};

use aftershock_core::hop::{HopKey, Keyring};
use aftershock_core::id::ObserverId;
use aftershock_core::name::Service;
use aftershock_core::wire::{FromController, PROTOCOL, Registry};
use aftershock_proxy::config::Config;
use aftershock_proxy::exchange::{Decider, Door};
use aftershock_proxy::link::{Listener, Router, Stop};
use aftershock_proxy::sidecar::Sidecar;
use anyhow::Context;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::pass::Pass;

use crate::{Decide, http1, http2};

/// Runs on one thread, after saying where it listens, until whoever started this process has gone.
fn on_one_thread<F: Future<Output = anyhow::Result<()>>>(run: impl FnOnce(TcpListener) -> F) -> anyhow::Result<()> {
    let listener = std::net::TcpListener::bind("127.0.0.1:0")?;
    listener.set_nonblocking(true)?;
    writeln!(io::stdout(), "{}", listener.local_addr()?)?;
    std::thread::spawn(|| {
        let _ = io::stdin().read_to_end(&mut Vec::new());
        std::process::exit(0);
    });
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    tokio::task::LocalSet::new().block_on(&runtime, async { run(TcpListener::from_std(listener)?).await })
}

/// Answers HTTP/1.1 and h2c.
pub(crate) fn origin() -> anyhow::Result<()> {
    on_one_thread(|listener| async move {
        loop {
            let (stream, _) = listener.accept().await?;
            stream.set_nodelay(true)?;
            tokio::task::spawn_local(answer(stream));
        }
    })
}

/// Answers on one connection; a broken one is the load's to notice.
async fn answer(mut stream: TcpStream) {
    let (mut input, mut output) = (Vec::new(), Vec::new());
    let mut buffer = vec![0; 64 * 1024];
    let mut h2: Option<http2::Server> = None;
    while let Ok(read) = stream.read(&mut buffer).await {
        if read == 0 {
            return;
        }
        input.extend_from_slice(&buffer[..read]);
        if h2.is_none() && input.starts_with(b"PRI") {
            h2 = Some(http2::Server::default());
        }
        let taken = match &mut h2 {
            Some(server) => server.answer(&input, &mut output),
            None => http1::answer(&input, &mut output),
        };
        input.drain(..taken);
        if stream.write_all(&output).await.is_err() {
            return;
        }
        output.clear();
    }
}

/// Copies bytes both ways, one task and one upstream connection per connection, as the sidecar does.
pub(crate) fn relay(to: SocketAddr) -> anyhow::Result<()> {
    on_one_thread(|listener| async move {
        loop {
            let (mut app, _) = listener.accept().await?;
            app.set_nodelay(true)?;
            tokio::task::spawn_local(async move {
                let mut upstream = TcpStream::connect(to).await?;
                upstream.set_nodelay(true)?;
                tokio::io::copy_bidirectional(&mut app, &mut upstream).await
            });
        }
    })
}

/// The connection driver with the editors and a decider.
pub(crate) fn sidecar(to: SocketAddr, decider: Decide) -> anyhow::Result<()> {
    on_one_thread(|socket| async move {
        let decider: Rc<RefCell<dyn Decider>> = match decider {
            Decide::Brain => Rc::new(RefCell::new(brain(socket.local_addr()?, to)?)),
            Decide::Pass => Rc::new(RefCell::new(Pass::default())),
        };
        let listeners = vec![Listener::before(Door::Inbound(0), socket, vec![to])];
        aftershock_proxy::link::serve(listeners, decider, Router::new(), Stop::new(), Duration::ZERO).await;
        Ok(())
    })
}

/// A brain that a controller has registered.
fn brain(listen: SocketAddr, to: SocketAddr) -> anyhow::Result<Sidecar> {
    let text = format!(
        "apiVersion: aftershock.dev/v1alpha1\nkind: Sidecar\nservice: origin\ninbound:\n  - listen: {listen}\n    to: {to}\n"
    );
    let config = Config::parse("overhead.yaml", &text).map_err(|error| anyhow::anyhow!("{error}"))?;
    // A permutation of the numbers (splitmix64): random numbers are drawn from a pool in the sidecar, too.
    let mut state = 1_u64;
    let random = move || {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    };
    let wall = || {
        let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
    };
    let mut brain = Sidecar::new(config, ObserverId(1), Box::new(random), Box::new(wall));
    let service: Service = "origin".parse().ok().context("a service name")?;
    let registry = Registry {
        addresses: BTreeMap::from([(listen.to_string(), service.clone())]),
        templates: BTreeMap::new(),
        services: BTreeSet::from([service]),
        ..Registry::default()
    };
    let keys = Keyring(vec![HopKey { id: 1, secret: [7; 16] }]);
    let welcome =
        FromController::Welcome { protocol: PROTOCOL, version: String::new(), keys, registry, late: Vec::new() };
    brain.on_control(welcome, Instant::now());
    Ok(brain)
}
