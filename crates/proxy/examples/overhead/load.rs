//! The load: closed loops over kept connections, on this process's thread.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use crate::process::Process;
use crate::{Protocol, http1, http2};

/// What a process used for so many requests.
pub(crate) struct Measured {
    cpu: Duration,
    pub(crate) requests: u64,
}

impl Measured {
    /// Microseconds per request.
    pub(crate) fn micros(&self) -> f64 {
        self.cpu.as_secs_f64() * 1e6 / self.requests as f64
    }
}

/// One end of a connection under load.
trait Client {
    /// Takes answers from the front of `input` and puts requests into `output`; bytes taken and requests answered.
    /// No new requests once `last`; `None` if the answers are not what they should be.
    fn turn(&mut self, input: &[u8], output: &mut Vec<u8>, last: bool) -> Option<(usize, u64)>;
    /// Whether an answer is awaited.
    fn waits(&self) -> bool;
}

impl Client for http1::Client {
    fn turn(&mut self, input: &[u8], output: &mut Vec<u8>, last: bool) -> Option<(usize, u64)> {
        http1::Client::turn(self, input, output, last)
    }

    fn waits(&self) -> bool {
        http1::Client::waits(self)
    }
}

impl Client for http2::Client {
    fn turn(&mut self, input: &[u8], output: &mut Vec<u8>, last: bool) -> Option<(usize, u64)> {
        http2::Client::turn(self, input, output, last)
    }

    fn waits(&self) -> bool {
        http2::Client::waits(self)
    }
}

/// Puts `through` under load for `time`.
pub(crate) fn run(through: &Process, protocol: Protocol, time: Duration) -> anyhow::Result<Measured> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let before = through.cpu()?;
    let address = through.address();
    let until = Instant::now() + time;
    let requests = runtime.block_on(async {
        let mut connections = JoinSet::new();
        match protocol {
            Protocol::Http1 => {
                (0..16).for_each(|_| drop(connections.spawn(drive(address, until, http1::Client::default()))))
            }
            Protocol::H2c => (0..4).for_each(|_| drop(connections.spawn(drive(address, until, http2::Client::new(4))))),
        }
        let mut requests = 0;
        while let Some(connection) = connections.join_next().await {
            requests += connection.context("a connection's task broke off")??;
        }
        anyhow::Ok(requests)
    })?;
    if requests == 0 {
        bail!("no request was answered");
    }
    Ok(Measured { cpu: through.cpu()? - before, requests })
}

async fn drive(address: SocketAddr, until: Instant, mut client: impl Client) -> anyhow::Result<u64> {
    let mut stream = TcpStream::connect(address).await?;
    stream.set_nodelay(true)?;
    let (mut input, mut output) = (Vec::new(), Vec::new());
    let mut buffer = vec![0; 64 * 1024];
    let mut requests = 0;
    loop {
        let last = Instant::now() >= until;
        let (taken, answered) =
            client.turn(&input, &mut output, last).context("an answer is not what was asked for")?;
        input.drain(..taken);
        requests += answered;
        if !client.waits() {
            return Ok(requests);
        }
        stream.write_all(&output).await?;
        output.clear();
        let read = stream.read(&mut buffer).await?;
        if read == 0 {
            bail!("a connection was closed under load");
        }
        input.extend_from_slice(&buffer[..read]);
    }
}
