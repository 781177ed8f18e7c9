//! Load on one address, from this process's thread: closed loops (saturated), or an open loop at a fixed rate.
//!
//! In an open loop a request is due when the schedule says, whatever became of those before it, and its latency counts
//! from then: what waits for a connection is not left out. The pacer spins, since a timer would be late by what is to be
//! measured; it has a processor for itself.
//!
//! Every answer is checked. A single one that is missing or wrong fails the load.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use serde::Serialize;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::Notify;
use tokio::task::JoinSet;

use crate::client::{Client, Ticket};
use crate::histogram::Histogram;
use crate::http1::OneAtATime;
use crate::http2::Multiplexed;
use crate::message::Answer;
use crate::origin::READ;
use crate::process::Process;
use crate::traffic::{Executions, Traffic};

/// What connections speak.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub(crate) enum Protocol {
    #[serde(rename = "HTTP/1.1")]
    Http1,
    #[serde(rename = "h2c")]
    H2c,
}

/// How many connections, and streams on each.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub(crate) struct Shape {
    pub(crate) protocol: Protocol,
    pub(crate) connections: usize,
    pub(crate) streams: usize,
}

impl Shape {
    pub(crate) const fn http1(connections: usize) -> Self {
        Shape { protocol: Protocol::Http1, connections, streams: 1 }
    }

    pub(crate) const fn h2c(connections: usize, streams: usize) -> Self {
        Shape { protocol: Protocol::H2c, connections, streams }
    }

    fn client(self) -> Box<dyn Client> {
        match self.protocol {
            Protocol::Http1 => Box::new(OneAtATime::default()),
            Protocol::H2c => Box::new(Multiplexed::new(self.streams)),
        }
    }
}

/// When requests are sent.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Pace {
    /// As soon as there is room.
    Saturated,
    /// So many in a second.
    Rate(f64),
}

/// How long a load lasts.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Extent {
    /// First without being measured, then measured.
    Time { warm_up: Duration, measured: Duration },
    /// So many requests.
    Requests(u64),
}

/// A load.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Load {
    pub(crate) shape: Shape,
    pub(crate) pace: Pace,
    pub(crate) extent: Extent,
    /// Look at the resident set of the process under load meanwhile.
    pub(crate) watch_memory: bool,
}

/// What a load came to.
#[derive(Debug, Clone, Default)]
pub(crate) struct Measured {
    /// All answers, measured or not.
    pub(crate) all: u64,
    /// Answers within the time that is measured.
    pub(crate) requests: u64,
    pub(crate) elapsed: Duration,
    /// What the process under load used, if there is one.
    pub(crate) cpu: Option<Duration>,
    /// What this process used, the origin among it.
    pub(crate) load_cpu: Duration,
    pub(crate) latencies: Histogram,
    /// Requests that were due and for which there was no room to the end.
    pub(crate) unsent: u64,
    /// The largest resident set that was seen.
    pub(crate) rss_kib: Option<u64>,
}

/// What the connections of a load share.
#[derive(Debug, Default)]
struct Board {
    sent: Cell<u64>,
    most: Cell<Option<u64>>,
    answered: Cell<u64>,
    is_measured: Cell<bool>,
    is_over: Cell<bool>,
    latencies: RefCell<Histogram>,
}

impl Board {
    fn answered(&self, since: Instant) {
        self.answered.set(self.answered.get() + 1);
        if self.is_measured.get() {
            self.latencies.borrow_mut().record(since.elapsed());
        }
    }

    /// Whether nothing more is to be sent.
    fn is_last(&self) -> bool {
        self.is_over.get() || self.most.get().is_some_and(|most| self.sent.get() >= most)
    }
}

/// Requests of one connection that are due.
#[derive(Debug, Default)]
struct Due {
    waiting: RefCell<VecDeque<Instant>>,
    more: Notify,
}

impl Load {
    /// Puts `address` under load, which belongs to `process`.
    pub(crate) async fn run(
        &self,
        address: SocketAddr,
        traffic: &Rc<Traffic>,
        process: Option<&Process>,
    ) -> anyhow::Result<Measured> {
        let board = Rc::new(Board::default());
        let mut dues = Vec::new();
        let mut connections = JoinSet::new();
        for _ in 0..self.shape.connections {
            let due = matches!(self.pace, Pace::Rate(_)).then(|| Rc::new(Due::default()));
            dues.extend(due.clone());
            let executions = Executions::new(Rc::clone(traffic));
            let drive = drive(address, self.shape.client(), executions, Rc::clone(&board), due);
            connections.spawn_local(drive);
        }
        let mut measured = Measured::default();
        let all = async {
            while let Some(connection) = connections.join_next().await {
                connection.context("a connection's task broke off")??;
            }
            anyhow::Ok(())
        };
        let pacer = async {
            if let Pace::Rate(rate) = self.pace {
                pace(rate, &dues, &board).await;
            }
            anyhow::Ok(())
        };
        let clock = async {
            self.keep_time(&board, process, &mut measured).await?;
            dues.iter().for_each(|due| due.more.notify_one());
            anyhow::Ok(())
        };
        // A connection that fails ends all.
        tokio::try_join!(all, pacer, clock)?;
        measured.all = board.answered.get();
        let counted = if matches!(self.extent, Extent::Time { .. }) { measured.requests } else { measured.all };
        if counted == 0 {
            bail!("no request was answered");
        }
        measured.latencies = board.latencies.take();
        let late = dues.iter().flat_map(|due| due.waiting.take()).map(|since| since.elapsed());
        for latency in late {
            measured.latencies.record(latency);
            measured.unsent += 1;
        }
        Ok(measured)
    }

    /// Says when what begins and ends, and reads the clocks of the processors then.
    async fn keep_time(&self, board: &Board, process: Option<&Process>, measured: &mut Measured) -> anyhow::Result<()> {
        let (warm_up, length) = match self.extent {
            Extent::Time { warm_up, measured } => (warm_up, measured),
            Extent::Requests(most) => {
                board.most.set(Some(most));
                return Ok(());
            }
        };
        tokio::time::sleep(warm_up).await;
        let cpu = |process: Option<&Process>| process.map(Process::cpu).transpose();
        let (began, before, own) = (Instant::now(), cpu(process)?, own_cpu());
        let answered = board.answered.get();
        board.is_measured.set(true);
        let end = began + length;
        while self.watch_memory && Instant::now() < end {
            let rss = process.map(Process::rss_kib).transpose()?;
            measured.rss_kib = measured.rss_kib.max(rss);
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        tokio::time::sleep_until(end.into()).await;
        measured.cpu = cpu(process)?.zip(before).map(|(after, before)| after - before);
        measured.load_cpu = own_cpu().saturating_sub(own);
        measured.elapsed = began.elapsed();
        measured.requests = board.answered.get() - answered;
        board.is_measured.set(false);
        board.is_over.set(true);
        Ok(())
    }
}

/// What this process has used so far.
fn own_cpu() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(u64::try_from(time.tv_sec).unwrap_or_default(), u32::try_from(time.tv_nsec).unwrap_or_default())
}

/// Hands out what is due, to one connection after the other.
async fn pace(rate: f64, dues: &[Rc<Due>], board: &Board) {
    let began = Instant::now();
    let mut count: u64 = 0;
    let at = |count: u64| began + Duration::from_secs_f64(count as f64 / rate);
    while !board.is_over.get() {
        let now = Instant::now();
        while at(count) <= now {
            let due = &dues[usize::try_from(count % dues.len() as u64).unwrap_or_default()];
            due.waiting.borrow_mut().push_back(at(count));
            due.more.notify_one();
            count += 1;
        }
        tokio::task::yield_now().await;
    }
}

/// One connection, to its end.
async fn drive(
    address: SocketAddr,
    mut client: Box<dyn Client>,
    mut executions: Executions,
    board: Rc<Board>,
    due: Option<Rc<Due>>,
) -> anyhow::Result<()> {
    let mut stream = TcpStream::connect(address).await.with_context(|| format!("cannot connect to {address}"))?;
    stream.set_nodelay(true)?;
    let (mut input, mut output) = (Vec::new(), Vec::new());
    loop {
        while client.has_room() && !board.is_last() {
            let since = match &due {
                None => Instant::now(),
                Some(due) => match due.waiting.borrow_mut().pop_front() {
                    Some(since) => since,
                    None => break,
                },
            };
            let tag = board.sent.get();
            board.sent.set(tag + 1);
            client.send(Ticket { tag, answer: Answer::Usual, since }, executions.next()?, &mut output);
        }
        if board.is_last() && client.is_idle() {
            return Ok(());
        }
        if !output.is_empty() {
            stream.write_all(&output).await?;
            output.clear();
        }
        input.reserve(READ);
        let read = match &due {
            None => stream.read_buf(&mut input).await?,
            Some(due) => tokio::select! {
                biased;
                read = stream.read_buf(&mut input) => read?,
                () = due.more.notified() => continue,
            },
        };
        if read == 0 {
            bail!("a connection was closed under load");
        }
        let taken = client.take(&input, &mut output, &mut |since| board.answered(since))?;
        input.drain(..taken);
    }
}

/// Opens `count` connections, has one request answered on each, and keeps them.
pub(crate) async fn idle(address: SocketAddr, traffic: &Rc<Traffic>, count: usize) -> anyhow::Result<Vec<TcpStream>> {
    /// How many are opened at once.
    const AT_ONCE: usize = 50;
    let mut kept = Vec::with_capacity(count);
    for first in (0..count).step_by(AT_ONCE) {
        let mut opening = JoinSet::new();
        for tag in first..count.min(first + AT_ONCE) {
            let executions = Executions::new(Rc::clone(traffic));
            opening.spawn_local(once(address, executions, tag as u64));
        }
        while let Some(connection) = opening.join_next().await {
            kept.push(connection.context("a connection's task broke off")??);
        }
    }
    Ok(kept)
}

/// One request on a new connection.
async fn once(address: SocketAddr, mut executions: Executions, tag: u64) -> anyhow::Result<TcpStream> {
    let mut stream = TcpStream::connect(address).await?;
    let (mut client, mut input, mut output) = (OneAtATime::default(), Vec::new(), Vec::new());
    let ticket = Ticket { tag, answer: Answer::Usual, since: Instant::now() };
    client.send(ticket, executions.next()?, &mut output);
    stream.write_all(&output).await?;
    while !client.is_idle() {
        if stream.read_buf(&mut input).await? == 0 {
            bail!("a connection was closed before its answer");
        }
        let taken = client.take(&input, &mut output, &mut |_| {})?;
        input.drain(..taken);
    }
    Ok(stream)
}
