//! What a sidecar is compared with: a relay that copies bytes, and one made of a hyper server and a hyper client. Both
//! have one thread and one upstream connection for each connection, as the sidecar does.

use std::future::Future;
use std::io::{self, Write as _};
use std::net::SocketAddr;
use std::rc::Rc;

use hyper::client::conn as client;
use hyper::server::conn as server;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Mutex;

/// A buffer in each direction: with the usual 8 KiB, what many streams write at once would take several turns.
const BUFFER: usize = 64 * 1024;

/// Copies bytes both ways.
pub(crate) fn plain(to: SocketAddr) -> anyhow::Result<()> {
    serve(to, |mut app, mut upstream| async move {
        tokio::io::copy_bidirectional_with_sizes(&mut app, &mut upstream, BUFFER, BUFFER).await?;
        Ok(())
    })
}

/// Reads and writes HTTP by the book: hyper as anybody would use it.
pub(crate) fn naive(to: SocketAddr) -> anyhow::Result<()> {
    serve(to, |app, upstream| async move {
        let mut first = [0; 3];
        let is_h2 = app.peek(&mut first).await? == first.len() && first == *b"PRI";
        if is_h2 { naive_h2(app, upstream).await } else { naive_h1(app, upstream).await }
    })
}

async fn naive_h1(app: TcpStream, upstream: TcpStream) -> anyhow::Result<()> {
    let (sender, connection) = client::http1::handshake(TokioIo::new(upstream)).await?;
    tokio::task::spawn_local(connection);
    let sender = Rc::new(Mutex::new(sender));
    let forward = service_fn(move |request| {
        let sender = Rc::clone(&sender);
        async move {
            let mut sender = sender.lock().await;
            sender.ready().await?;
            sender.send_request(request).await
        }
    });
    Ok(server::http1::Builder::new().serve_connection(TokioIo::new(app), forward).await?)
}

async fn naive_h2(app: TcpStream, upstream: TcpStream) -> anyhow::Result<()> {
    let (sender, connection) = client::http2::handshake(TokioExecutor::new(), TokioIo::new(upstream)).await?;
    tokio::spawn(connection);
    let forward = service_fn(move |request| {
        let mut sender = sender.clone();
        async move {
            sender.ready().await?;
            sender.send_request(request).await
        }
    });
    Ok(server::http2::Builder::new(TokioExecutor::new()).serve_connection(TokioIo::new(app), forward).await?)
}

/// Serves pairs of connections on one thread, after saying where.
fn serve<F>(to: SocketAddr, pair: impl Fn(TcpStream, TcpStream) -> F + Clone + 'static) -> anyhow::Result<()>
where
    F: Future<Output = anyhow::Result<()>>,
{
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    tokio::task::LocalSet::new().block_on(&runtime, async {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        writeln!(io::stdout(), "{}", listener.local_addr()?)?;
        loop {
            let (app, _) = listener.accept().await?;
            let pair = pair.clone();
            tokio::task::spawn_local(async move {
                app.set_nodelay(true)?;
                let upstream = TcpStream::connect(to).await?;
                upstream.set_nodelay(true)?;
                // A pair that breaks is the load's to notice.
                pair(app, upstream).await
            });
        }
    })
}
