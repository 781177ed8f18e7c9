//! Connections as clients make them: some requests, and an end that is clean, half, announced, or none at all.

use std::cell::Cell;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::{Duration, Instant};

use aftershock_core::id::scatter;
use anyhow::{Context as _, anyhow, bail, ensure};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::client::{Client, Ticket};
use crate::http1::OneAtATime;
use crate::http2::Multiplexed;
use crate::message::Answer;
use crate::origin::READ;
use crate::traffic::{Executions, Traffic};

/// How long all requests of one connection may take.
const PATIENCE: Duration = Duration::from_secs(60);
/// Streams that an HTTP/2 connection has open at once.
const STREAMS: usize = 4;

/// What has happened so far.
#[derive(Debug, Default)]
pub(super) struct Tally {
    pub(super) is_over: Cell<bool>,
    pub(super) answered: Cell<u64>,
    /// Requests that their client did not wait for.
    pub(super) given_up: Cell<u64>,
    pub(super) connections: Cell<u64>,
    pub(super) ended_badly: Cell<u64>,
    pub(super) rounds: Cell<u64>,
    sent: Cell<u64>,
}

fn add(count: &Cell<u64>, more: u64) {
    count.set(count.get() + more);
}

/// How a connection ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ending {
    /// All answers came, then it is closed.
    Clean,
    /// HTTP/1.1: the client says that nothing more will come, and reads the last answer.
    Half,
    /// HTTP/1.1: the answer says that it is the last.
    Announced,
    /// The client closes within a request.
    Cut,
    /// The client resets while an answer is awaited.
    Reset,
}

/// What kind of connection.
#[derive(Debug, Clone, Copy)]
struct Kind {
    h2: bool,
    requests: u64,
    ending: Ending,
    recorded: bool,
}

impl Kind {
    fn draw(random: &mut impl FnMut() -> u64) -> Self {
        let h2 = random().is_multiple_of(2);
        let ending = match (random() % 10, h2) {
            (0, _) => Ending::Cut,
            (1, _) => Ending::Reset,
            (2 | 3, false) => Ending::Half,
            (4 | 5, false) => Ending::Announced,
            _ => Ending::Clean,
        };
        Kind { h2, requests: 1 + random() % 100, ending, recorded: !random().is_multiple_of(3) }
    }
}

/// One connection after the other.
pub(super) async fn work(
    address: SocketAddr,
    mut seed: u64,
    tally: Rc<Tally>,
    rounds: Rc<Traffic>,
    ordinary: Rc<Traffic>,
) -> anyhow::Result<()> {
    let mut random = move || {
        seed += 1;
        scatter(seed)
    };
    while !tally.is_over.get() {
        let kind = Kind::draw(&mut random);
        let executions = Executions::new(Rc::clone(if kind.recorded { &rounds } else { &ordinary }));
        let talk = async {
            match kind.h2 {
                true => h2(address, kind, executions, &tally, &mut random).await,
                false => h1(address, kind, executions, &tally, &mut random).await,
            }
        };
        let talked = tokio::time::timeout(PATIENCE, talk).await;
        let talked = talked.unwrap_or_else(|_| Err(anyhow!("not over after {} s", PATIENCE.as_secs())));
        talked.with_context(|| format!("after {} requests, on {kind:?}", tally.answered.get()))?;
        add(&tally.connections, 1);
    }
    Ok(())
}

async fn connect(address: SocketAddr) -> anyhow::Result<TcpStream> {
    let stream = TcpStream::connect(address).await?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

fn ticket(tally: &Tally, answer: Answer) -> Ticket {
    add(&tally.sent, 1);
    Ticket { tag: tally.sent.get(), answer, since: Instant::now() }
}

async fn h1(
    address: SocketAddr,
    kind: Kind,
    mut executions: Executions,
    tally: &Tally,
    random: &mut impl FnMut() -> u64,
) -> anyhow::Result<()> {
    let mut stream = connect(address).await?;
    let (mut client, mut input, mut output) = (OneAtATime::default(), Vec::new(), Vec::new());
    for left in (0..kind.requests).rev() {
        let ending = if left == 0 { kind.ending } else { Ending::Clean };
        let answer = match (ending, random() % 4) {
            (Ending::Announced, _) => Answer::Last,
            (_, 0) => Answer::Other,
            _ => Answer::Usual,
        };
        client.send(ticket(tally, answer), executions.next()?, &mut output);
        if ending == Ending::Cut {
            let some = usize::try_from(random() % output.len() as u64)?;
            stream.write_all(&output[..some]).await?;
            give_up(tally, 1);
            return Ok(());
        }
        stream.write_all(&output).await?;
        output.clear();
        match ending {
            Ending::Half => stream.shutdown().await?,
            Ending::Reset => {
                stream.set_zero_linger()?;
                give_up(tally, 1);
                return Ok(());
            }
            _ => {}
        }
        while !client.is_idle() {
            receive(&mut stream, &mut client, &mut input, &mut output, tally).await?;
        }
    }
    if matches!(kind.ending, Ending::Half | Ending::Announced) {
        let read = stream.read_buf(&mut input).await.context("the end of the connection")?;
        ensure!(read == 0, "{read} octets came behind the last answer");
    }
    Ok(())
}

async fn h2(
    address: SocketAddr,
    kind: Kind,
    mut executions: Executions,
    tally: &Tally,
    random: &mut impl FnMut() -> u64,
) -> anyhow::Result<()> {
    let mut stream = connect(address).await?;
    let (mut client, mut input, mut output) = (Multiplexed::new(STREAMS), Vec::new(), Vec::new());
    let mut left = kind.requests;
    loop {
        while left > 0 && client.has_room() {
            let answer = if random().is_multiple_of(4) { Answer::Other } else { Answer::Usual };
            client.send(ticket(tally, answer), executions.next()?, &mut output);
            left -= 1;
        }
        if left == 0 && matches!(kind.ending, Ending::Cut | Ending::Reset) {
            let some = match kind.ending {
                Ending::Cut => usize::try_from(random() % (output.len() as u64 + 1))?,
                _ => output.len(),
            };
            stream.write_all(&output[..some]).await?;
            if kind.ending == Ending::Reset {
                stream.set_zero_linger()?;
            }
            give_up(tally, client.waiting());
            return Ok(());
        }
        if random().is_multiple_of(20) && client.cancel(&mut output) {
            add(&tally.given_up, 1);
        }
        stream.write_all(&output).await?;
        output.clear();
        if client.is_idle() {
            if left == 0 {
                return Ok(());
            }
            continue;
        }
        receive(&mut stream, &mut client, &mut input, &mut output, tally).await?;
    }
}

/// The client does not wait for what it has asked for.
fn give_up(tally: &Tally, requests: u64) {
    add(&tally.given_up, requests);
    add(&tally.ended_badly, 1);
}

async fn receive(
    stream: &mut TcpStream,
    client: &mut dyn Client,
    input: &mut Vec<u8>,
    output: &mut Vec<u8>,
    tally: &Tally,
) -> anyhow::Result<()> {
    input.reserve(READ);
    if stream.read_buf(input).await? == 0 {
        bail!("the connection was closed before an answer");
    }
    let taken = client.take(input, output, &mut |_| add(&tally.answered, 1))?;
    input.drain(..taken);
    Ok(())
}
