//! The service behind everything: it answers HTTP/1.1 and h2c on this process's thread, as each request asks.

use std::net::SocketAddr;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use crate::{http1, http2};

/// What is read at once.
pub(crate) const READ: usize = 64 * 1024;

/// Begins to listen.
pub(crate) async fn start() -> anyhow::Result<SocketAddr> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    tokio::task::spawn_local(async move {
        while let Ok((stream, _)) = listener.accept().await {
            // A connection that breaks is the client's to notice.
            tokio::task::spawn_local(answer(stream));
        }
    });
    Ok(address)
}

async fn answer(mut stream: TcpStream) -> anyhow::Result<()> {
    stream.set_nodelay(true)?;
    let (mut input, mut output) = (Vec::new(), Vec::new());
    let mut h2: Option<http2::Server> = None;
    loop {
        input.reserve(READ);
        if stream.read_buf(&mut input).await? == 0 {
            return Ok(());
        }
        if h2.is_none() && input.starts_with(b"PRI") {
            h2 = Some(http2::Server::default());
        }
        let (taken, is_last) = match &mut h2 {
            Some(server) => (server.answer(&input, &mut output)?, false),
            None => http1::answer(&input, &mut output)?,
        };
        input.drain(..taken);
        stream.write_all(&output).await?;
        output.clear();
        if is_last {
            return Ok(());
        }
    }
}
